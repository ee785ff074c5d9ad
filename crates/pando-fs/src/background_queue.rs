//! A queue with a background thread, which is there only while the queue has work.
//!
//! Guarantees: there is at most one thread, from [`BackgroundQueue::start`] until it is told that it does not go on;
//! after [`BackgroundQueue::stop`] there is none, and none is started. What the work is, and who runs the thread, is
//! for the user of the queue to say. Uses nothing of this crate.

use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Some work, and whether a thread does it.
#[derive(Default)]
pub(crate) struct BackgroundState<W> {
    pub work: W,
    running: bool,
    stopped: bool,
}

/// Work for a background thread.
#[derive(Default)]
pub(crate) struct BackgroundQueue<W> {
    state: Mutex<BackgroundState<W>>,
    changed: Condvar,
}

/// The work of a queue, which nobody else sees meanwhile.
pub(crate) type BackgroundGuard<'q, W> = MutexGuard<'q, BackgroundState<W>>;

impl<W> BackgroundState<W> {
    /// Whether the mount ends.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }
}

impl<W> BackgroundQueue<W> {
    pub fn lock(&self) -> BackgroundGuard<'_, W> {
        self.state.lock()
    }

    /// Whether the mount ends.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Notes that the thread is started; false if there is one already, nothing `is_wanted`, or the mount ends.
    pub fn start(&self, is_wanted: impl FnOnce(&W) -> bool) -> bool {
        let mut state = self.state.lock();
        !state.stopped && is_wanted(&state.work) && !std::mem::replace(&mut state.running, true)
    }

    /// For the thread: whether it is to go on, because it `has_work` and the mount does not end. If not, there is no
    /// thread from now on.
    pub fn goes_on(&self, state: &mut BackgroundGuard<'_, W>, has_work: bool) -> bool {
        let goes_on = !state.stopped && has_work;
        if !goes_on {
            state.running = false;
            self.changed.notify_all();
        }
        goes_on
    }

    /// Notes that there is no thread any more, or that it could not be started.
    pub fn ended(&self) {
        self.state.lock().running = false;
        self.changed.notify_all();
    }

    /// Wakes the thread, if it waits.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// For the thread: waits until that moment, until it is woken, or the mount ends.
    pub fn wait_until(&self, state: &mut BackgroundGuard<'_, W>, moment: Instant) {
        if !state.stopped {
            self.changed.wait_until(state, moment);
        }
    }

    /// Returns when the thread has ended, after which none is started. The work that is left stays.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        while state.running {
            self.changed.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
        thread,
        time::Duration,
    };

    use super::*;

    #[test]
    fn there_is_one_thread_and_none_after_the_stop() {
        let queue = Arc::new(BackgroundQueue::<u64>::default());
        assert!(!queue.start(|work| *work > 0), "there is no work");
        queue.lock().work = 3;
        assert!(queue.start(|work| *work > 0));
        assert!(!queue.start(|_| true), "there is a thread");
        let done = Arc::new(AtomicU64::new(0));
        let worker = {
            let (queue, done) = (queue.clone(), done.clone());
            thread::spawn(move || {
                loop {
                    let mut state = queue.lock();
                    let has_work = state.work > 0;
                    if !queue.goes_on(&mut state, has_work) {
                        return;
                    }
                    state.work -= 1;
                    done.fetch_add(1, Relaxed);
                }
            })
        };
        worker.join().unwrap();
        assert_eq!(done.load(Relaxed), 3);
        // The next one waits for an hour, unless it is stopped.
        queue.lock().work = 1;
        assert!(queue.start(|work| *work > 0));
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut state = queue.lock();
                while queue.goes_on(&mut state, true) {
                    queue.wait_until(&mut state, Instant::now() + Duration::from_secs(3600));
                }
            })
        };
        queue.stop();
        worker.join().unwrap();
        assert_eq!(queue.lock().work, 1, "what is left");
        assert!(queue.is_stopped() && !queue.start(|_| true), "the mount has ended");
    }

    #[test]
    fn a_thread_that_could_not_be_started_is_not_waited_for() {
        let queue = BackgroundQueue::<u64>::default();
        assert!(queue.start(|_| true));
        queue.ended();
        assert!(queue.start(|_| true), "it is tried again");
        queue.ended();
        queue.stop();
    }
}
