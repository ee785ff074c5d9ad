//! Threads of the server by which the kernel is given attributes: their requests change nothing of their own accord.
//!
//! Uses nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// The threads that are at it.
#[derive(Default)]
pub(crate) struct OwnThreads {
    ids: Mutex<Vec<u32>>,
    /// How many there are, to be asked without the lock.
    count: AtomicUsize,
}

/// A thread that is one of them until this is dropped.
pub(crate) struct OwnThread<'a> {
    threads: &'a OwnThreads,
    id: u32,
}

impl OwnThreads {
    /// Makes the calling thread one of them.
    pub(crate) fn enter(&self) -> OwnThread<'_> {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut ids = self.ids.lock();
        ids.push(id);
        self.count.store(ids.len(), Ordering::Release);
        OwnThread { threads: self, id }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether the thread with this id, as the kernel names it in requests, is one of them.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.ids.lock().contains(&id)
    }
}

impl Drop for OwnThread<'_> {
    fn drop(&mut self) {
        let mut ids = self.threads.ids.lock();
        ids.retain(|id| *id != self.id);
        self.threads.count.store(ids.len(), Ordering::Release);
    }
}
