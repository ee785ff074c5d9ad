//! Waking threads up: one condition for work to do, one for work done.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What background threads are asked for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    pub checkpoint: bool,
    pub shutdown: bool,
}

#[derive(Default)]
pub(crate) struct Signal {
    asked: Mutex<Asked>,
    work: Condvar,
    done_lock: Mutex<u64>,
    done: Condvar,
}

impl Signal {
    /// Asks for a checkpoint soon.
    pub fn ask_checkpoint(&self) {
        self.asked.lock().checkpoint = true;
        self.work.notify_all();
    }

    /// Asks all threads to end.
    pub fn ask_shutdown(&self) {
        self.asked.lock().shutdown = true;
        self.all();
    }

    pub fn shutting_down(&self) -> bool {
        self.asked.lock().shutdown
    }

    /// True once for every time a checkpoint was asked for.
    pub fn take_checkpoint(&self) -> bool {
        std::mem::take(&mut self.asked.lock().checkpoint)
    }

    /// Wakes everybody, whatever they wait for.
    pub fn all(&self) {
        self.work.notify_all();
        self.finished();
    }

    /// Tells the threads that there is work.
    pub fn work(&self) {
        self.work.notify_all();
    }

    /// Waits for work, at most that long.
    pub fn wait_for_work(&self, at_most: Duration) {
        let mut asked = self.asked.lock();
        if !asked.checkpoint && !asked.shutdown {
            self.work.wait_for(&mut asked, at_most);
        }
    }

    /// Tells waiters that something was done.
    pub fn finished(&self) {
        *self.done_lock.lock() += 1;
        self.done.notify_all();
    }

    /// Waits until something was done, or a short while: callers look again in a loop.
    pub fn wait_done(&self) {
        let mut count = self.done_lock.lock();
        self.done.wait_for(&mut count, Duration::from_millis(20));
    }
}
