//! Threads of the server by which the kernel is given attributes: their requests change nothing of their own accord.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

/// The threads that are at it.
#[derive(Default)]
pub(crate) struct OwnThreads {
    /// The threads, each with whether nobody waits for it any more.
    threads: Mutex<Vec<(u32, Arc<AtomicBool>)>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
}

/// A thread that is one of them until this is dropped.
pub(crate) struct OwnThread<'a> {
    threads: &'a OwnThreads,
    id: u32,
}

impl OwnThreads {
    /// Makes the calling thread one of them, which `late` is the flag of.
    pub(crate) fn enter(&self, late: &Arc<AtomicBool>) -> OwnThread<'_> {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut threads = self.threads.lock();
        threads.push((id, late.clone()));
        self.count.store(threads.len(), Ordering::Release);
        OwnThread { threads: self, id }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the thread with this id, as the kernel names it in requests, is one of them; then, whether it is late.
    pub(crate) fn find(&self, id: u32) -> Option<bool> {
        if self.count() == 0 {
            return None;
        }
        let threads = self.threads.lock();
        let (_, late) = threads.iter().find(|(own, _)| *own == id)?;
        Some(late.load(Ordering::Acquire))
    }
}

impl Drop for OwnThread<'_> {
    fn drop(&mut self) {
        let mut threads = self.threads.threads.lock();
        threads.retain(|(id, _)| *id != self.id);
        self.threads.count.store(threads.len(), Ordering::Release);
    }
}
