//! Waking threads up: one condition for each kind of work, one for work done.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Condvar;

use crate::{locks::Mutex, waiting};

/// Kinds of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Flush = 0,
    Checkpoint = 1,
    Log = 2,
}

#[derive(Default)]
pub(crate) struct Signal {
    /// By kind: whether work was asked for that no thread has begun.
    asked: [AtomicBool; 3],
    /// Whether the threads are to end. A waiting thread checks this, and the work asked for, under this lock.
    shutdown: Mutex<bool>,
    /// By kind: wakes the threads that do the work.
    workers: [Condvar; 3],
    /// Wakes threads that only sleep, when the store is closed.
    sleepers: Condvar,
    done_lock: Mutex<()>,
    done: Condvar,
}

impl Signal {
    /// Asks for work of a kind. Asking again before it is begun changes nothing, and takes no lock.
    pub fn ask(&self, kind: Work) {
        // This is an exchange even if the flag is set already: a thread that begins the work later sees what the
        // caller has done.
        if !self.asked[kind as usize].swap(true, Ordering::AcqRel) {
            // A thread that has seen no work under this lock waits by now.
            let _shutdown = self.shutdown.lock();
            self.workers[kind as usize].notify_all();
        }
    }

    /// Waits until work of a kind is asked for, at most that long; whether it was.
    pub fn wait_for(&self, kind: Work, at_most: Duration) -> bool {
        let asked = &self.asked[kind as usize];
        let mut shutdown = self.shutdown.lock();
        if !asked.load(Ordering::Acquire) && !*shutdown {
            self.workers[kind as usize].wait_for(&mut shutdown, at_most);
        }
        asked.swap(false, Ordering::AcqRel)
    }

    /// Asks all threads to end.
    pub fn ask_shutdown(&self) {
        *self.shutdown.lock() = true;
        self.all();
    }

    pub fn shutting_down(&self) -> bool {
        *self.shutdown.lock()
    }

    /// Wakes everybody, whatever they wait for.
    pub fn all(&self) {
        let shutdown = self.shutdown.lock();
        self.workers.iter().chain([&self.sleepers]).for_each(|waiting| {
            waiting.notify_all();
        });
        drop(shutdown);
        self.finished();
    }

    /// Sleeps that long, or until the end.
    pub fn sleep(&self, time: Duration) {
        let mut shutdown = self.shutdown.lock();
        if !*shutdown {
            self.sleepers.wait_for(&mut shutdown, time);
        }
    }

    /// Tells waiters that something was done.
    pub fn finished(&self) {
        let _turn = self.done_lock.lock();
        self.done.notify_all();
    }

    /// Waits until something was done, or a short while: callers look again in a loop.
    pub fn wait_done(&self) {
        waiting::announce();
        let mut turn = self.done_lock.lock();
        self.done.wait_for(&mut turn, Duration::from_millis(20));
    }
}
