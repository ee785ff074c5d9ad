//! Waking threads up: one condition for each kind of work, one for work done.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::waiting;

/// Kinds of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Flush = 0,
    Checkpoint = 1,
    Log = 2,
}

#[derive(Default)]
struct Asked {
    /// By kind: whether there is work.
    work: [bool; 3],
    shutdown: bool,
}

#[derive(Default)]
pub(crate) struct Signal {
    asked: Mutex<Asked>,
    /// By kind: those who do the work.
    workers: [Condvar; 3],
    /// Those who wait for nothing but the time, or the end.
    sleepers: Condvar,
    done_lock: Mutex<()>,
    done: Condvar,
}

impl Signal {
    /// Asks for work of a kind. Asking again before it is begun changes nothing.
    pub fn ask(&self, kind: Work) {
        let mut asked = self.asked.lock();
        if !std::mem::replace(&mut asked.work[kind as usize], true) {
            self.workers[kind as usize].notify_all();
        }
    }

    /// Waits until work of a kind is asked for, at most that long; whether it was.
    pub fn wait_for(&self, kind: Work, at_most: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !asked.work[kind as usize] && !asked.shutdown {
            self.workers[kind as usize].wait_for(&mut asked, at_most);
        }
        std::mem::take(&mut asked.work[kind as usize])
    }

    /// Asks all threads to end.
    pub fn ask_shutdown(&self) {
        self.asked.lock().shutdown = true;
        self.all();
    }

    pub fn shutting_down(&self) -> bool {
        self.asked.lock().shutdown
    }

    /// Wakes everybody, whatever they wait for.
    pub fn all(&self) {
        let _asked = self.asked.lock();
        self.workers.iter().chain([&self.sleepers]).for_each(|waiting| {
            waiting.notify_all();
        });
        drop(_asked);
        self.finished();
    }

    /// Sleeps that long, or until the end.
    pub fn sleep(&self, time: Duration) {
        let mut asked = self.asked.lock();
        if !asked.shutdown {
            self.sleepers.wait_for(&mut asked, time);
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
