//! Files that lose their last name while a call by that name is on its way.
//!
//! The kernel looks a file up by name, and then opens or changes it with a second call. If the file was replaced or
//! removed in between, the second call gets ESTALE, and the kernel looks the path up once more. If a name is replaced
//! thousands of times a second, the repeated call comes too late as well, and the program gets ESTALE.
//!
//! So a call that came too late is noted. For some time afterwards ([`KEEPS_FOR`]) a file that loses its last name is
//! kept as if it were open, until the kernel has forgotten it, so that the repeated call finds it. Guarantees: if no
//! call comes too late, no file is kept and there is no cost; at most [`MAX_KEPT_FILES`] files are kept at a time,
//! and others are removed at once.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{inode::InodeRef, types::Ino};

/// Time after a call that came too late during which files are kept: far longer than a kernel needs to try again.
const KEEPS_FOR: Duration = Duration::from_secs(2);
/// Files kept at a time, a count.
const MAX_KEPT_FILES: usize = 1024;

/// A file that is kept, and still has its last name.
pub(crate) struct KeptFile<'a> {
    calls: &'a LateCalls,
    /// Until the name is gone.
    inode: Option<InodeRef>,
}

impl KeptFile<'_> {
    /// Notes that the name is gone.
    pub(crate) fn lost_its_name(mut self) {
        self.inode = None;
    }
}

impl Drop for KeptFile<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take() {
            self.calls.take_back(&inode);
        }
    }
}

#[derive(Default)]
struct LateState {
    last: Option<Instant>,
    kept: HashMap<Ino, InodeRef>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct LateCalls {
    state: Mutex<LateState>,
    /// Files that are kept.
    len: AtomicUsize,
}

impl LateCalls {
    /// Notes a call on a file that has lost its last name meanwhile.
    pub(crate) fn came(&self) {
        self.state.lock().last = Some(Instant::now());
    }

    /// Whether a file that loses its last name now is to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.state.lock().last.is_some_and(|last| last.elapsed() < KEEPS_FOR)
    }

    /// Counts an open of a file that is about to lose its last name, if the kernel knows it. The caller holds `tree` of
    /// it exclusively, and says when the name is gone: until then the open is taken back where the answer is dropped.
    pub(crate) fn keep(&self, inode: &InodeRef) -> Option<KeptFile<'_>> {
        let mut state = self.state.lock();
        // The file may be kept already, if a mount has never forgotten it.
        if state.kept.len() >= MAX_KEPT_FILES || state.kept.contains_key(&inode.ino) {
            return None;
        }
        // Before the look: a FORGET of the file after that sees that files are kept, and waits for the lock.
        self.len.store(state.kept.len() + 1, Ordering::Release);
        let known = inode.peek(|s| s.lookups > 0);
        if known {
            inode.change(|s| s.opens += 1);
            state.kept.insert(inode.ino, inode.clone());
        }
        self.len.store(state.kept.len(), Ordering::Release);
        known.then(|| KeptFile { calls: self, inode: Some(inode.clone()) })
    }

    /// Takes back an open of [`LateCalls::keep`], if the kernel has not forgotten the file meanwhile.
    fn take_back(&self, inode: &InodeRef) {
        let mut state = self.state.lock();
        // A call that is tried again is no reason to keep files.
        state.last = None;
        let kept = state.kept.remove(&inode.ino);
        self.len.store(state.kept.len(), Ordering::Release);
        drop(state);
        if kept.is_some() {
            inode.change(|s| s.opens = s.opens.saturating_sub(1));
        }
    }

    /// To be asked when the kernel has given references back: the file, if it was kept and the kernel knows it no
    /// longer. The caller takes back the open.
    pub(crate) fn forgotten(&self, ino: Ino) -> Option<InodeRef> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let known = state.kept.get(&ino)?.peek(|s| s.lookups > 0);
        let gone = if known { None } else { state.kept.remove(&ino) };
        self.len.store(state.kept.len(), Ordering::Release);
        gone
    }

    /// Stops keeping files, and returns those that were kept. The caller undoes their opens.
    pub(crate) fn end(&self) -> Vec<InodeRef> {
        let kept = std::mem::take(&mut self.state.lock().kept);
        self.len.store(0, Ordering::Release);
        kept.into_values().collect()
    }
}
