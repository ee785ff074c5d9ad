//! Files that lose their last name while a call by that name is on its way.
//!
//! A kernel that has found a file by name opens it, or changes it, with a call of its own. If the file was replaced or
//! removed in between, that call gets ESTALE, and the kernel goes the path once more. Where one name is replaced
//! thousands of times a second, the second call comes too late as well, and the program is told ESTALE.
//!
//! So a call that came too late is noted, and for a while afterwards ([`WHILE`]) a file that loses its last name is
//! kept as if it were open, until the kernel has forgotten it: the second call finds it. Guarantees: where no call
//! comes too late, nothing is kept and nothing is paid; at most [`MOST_KEPT`] files are kept at a time, and others are
//! removed at once. Uses inodes.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{inode::InodeRef, types::Ino};

/// Time after a call that came too late during which files are kept: far longer than a kernel needs to try again.
const WHILE: Duration = Duration::from_secs(2);
/// Files kept at a time, a count.
const MOST_KEPT: usize = 1024;

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

    /// Counts an open of a file that is about to lose its last name, if the kernel knows it and a call has come too
    /// late lately. The caller holds `tree` of it exclusively.
    pub(crate) fn keep(&self, inode: &InodeRef) {
        let mut state = self.state.lock();
        let late = state.last.is_some_and(|last| last.elapsed() < WHILE);
        // One whose removal failed is kept already.
        if !late || state.kept.len() >= MOST_KEPT || state.kept.contains_key(&inode.ino) {
            return;
        }
        // Under the lock: what the kernel forgets after this finds the file kept.
        if inode.peek(|s| s.lookups > 0) {
            inode.change(|s| s.opens += 1);
            state.kept.insert(inode.ino, inode.clone());
            self.len.store(state.kept.len(), Ordering::Release);
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

    /// All files that are kept, which are so no longer. The caller takes back the opens.
    pub(crate) fn end(&self) -> Vec<InodeRef> {
        let kept = std::mem::take(&mut self.state.lock().kept);
        self.len.store(0, Ordering::Release);
        kept.into_values().collect()
    }
}
