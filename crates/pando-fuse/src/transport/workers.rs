//! Threads for the requests that say that they may wait: fsync, clones, copies, control.
//!
//! The thread that reads requests never waits for the kernel. Threads are
//! started when a job finds none idle, up to a limit of those that are at work;
//! a thread that waits for the device is told so (`pando_fs::waiting`) and does
//! not count against it, so that a job which does not wait stands behind
//! none that does. Of these there are at most [`MAX_WAITING`]; where more wait,
//! jobs queue. Idle threads above the limit end, the others when the pool is
//! dropped; a panic in a job costs that job only.

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
};

use pando_fs::waiting;
use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Most threads that wait, a count.
const MAX_WAITING: usize = 256;

/// Jobs that wait for a thread, and the threads.
#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Threads whose jobs wait.
    waiting: usize,
    /// Threads in all.
    count: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

/// What the pool and its threads share.
struct PoolShared {
    /// Most threads at work, a count.
    limit: usize,
    state: Mutex<JobQueue>,
    wake: Condvar,
}

/// A small pool of threads.
pub(super) struct Workers {
    shared: Arc<PoolShared>,
}

impl Workers {
    /// A pool of at most `limit` threads that are at work, none of them started yet.
    pub(super) fn new(limit: usize) -> Self {
        assert!(limit > 0, "a pool without threads would never answer");
        let shared = PoolShared { limit, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `job` on some thread of the pool, soon.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(Box::new(job));
        match self.shared.start_if_wanted(&mut state) {
            Ok(()) => {}
            Err(e) if state.count == 0 => {
                // Without any thread the job would never run: run it here, where waiting is
                // allowed only because there is no alternative left.
                log::error!("no thread for a waiting request: {e}");
                let job = state.jobs.pop_back();
                drop(state);
                if let Some(job) = job {
                    job();
                }
                return;
            }
            Err(e) => log::warn!("no further thread for waiting requests: {e}"),
        }
        drop(state);
        self.shared.wake.notify_one();
    }
}

impl PoolShared {
    /// Starts a thread if there is a job for it and it may be.
    fn start_if_wanted(self: &Arc<Self>, state: &mut JobQueue) -> io::Result<()> {
        let at_work = state.count - state.waiting;
        if state.idle >= state.jobs.len() || at_work >= self.limit || state.waiting >= MAX_WAITING {
            return Ok(());
        }
        let shared = self.clone();
        let name = format!("pando-work-{}", state.count);
        let handle = thread::Builder::new().name(name).spawn(move || shared.work())?;
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(handle);
        state.count += 1;
        Ok(())
    }

    /// What a thread does.
    fn work(self: &Arc<Self>) {
        let waits = Rc::new(Cell::new(false));
        let (mine, shared) = (waits.clone(), self.clone());
        waiting::on_wait(Some(Box::new(move || {
            if !mine.replace(true) {
                let mut state = shared.state.lock();
                state.waiting += 1;
                if let Err(e) = shared.start_if_wanted(&mut state) {
                    log::warn!("no further thread for waiting requests: {e}");
                }
            }
        })));
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!("a request failed by a panic and was answered with EIO");
                }
                state = self.state.lock();
                state.waiting -= usize::from(waits.take());
            } else if state.closed || state.idle >= self.limit {
                state.count -= 1;
                drop(state);
                return waiting::on_wait(None);
            } else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for handle in threads {
            // The last owner of the pool may be one of its own threads.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        sync::mpsc,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn jobs_run_side_by_side_and_survive_a_panic() {
        let pool = Workers::new(4);
        let (tx, rx) = mpsc::channel();
        pool.run(|| panic!("on purpose"));
        let begin = Instant::now();
        for i in 0..8 {
            let tx = tx.clone();
            pool.run(move || {
                thread::sleep(Duration::from_millis(50));
                tx.send(i).ok();
            });
        }
        let mut seen: Vec<i32> = (0..8).map(|_| rx.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        assert!(begin.elapsed() < Duration::from_millis(390), "the jobs ran one after the other");
    }

    #[test]
    fn jobs_that_wait_hold_up_no_other() {
        let pool = Workers::new(2);
        let (tx, rx) = mpsc::channel();
        let gate = Arc::new((Mutex::new(true), Condvar::new()));
        for i in 0..50 {
            let (tx, gate) = (tx.clone(), gate.clone());
            pool.run(move || {
                waiting::announce();
                gate.1.wait_while(&mut gate.0.lock(), |closed| *closed);
                tx.send(i).ok();
            });
        }
        pool.run(move || tx.send(1000).unwrap());
        assert_eq!(rx.recv_timeout(Duration::from_secs(20)), Ok(1000));
        *gate.0.lock() = false;
        gate.1.notify_all();
        assert_eq!(rx.iter().map(|i| assert!(i < 50)).count(), 50);
        // Those who did not wait go at once, the others when they find nothing to do.
        let begin = Instant::now();
        while pool.shared.state.lock().count > 2 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn dropping_the_pool_finishes_what_was_queued() {
        let (tx, rx) = mpsc::channel();
        let pool = Workers::new(1);
        for i in 0..20 {
            let tx = tx.clone();
            pool.run(move || tx.send(i).unwrap());
        }
        drop(pool);
        assert_eq!(rx.try_iter().count(), 20);
    }
}
