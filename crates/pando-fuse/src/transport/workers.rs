//! Threads for the requests that may wait: fsync, clones, copies, control.
//!
//! The thread that reads requests never waits for a device flush or for the
//! kernel. Threads are started when a job finds none idle, up to a limit
//! above which jobs queue, and end when the pool is dropped; a panic in a job
//! costs that job only.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait for a thread, and the threads.
#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

/// What the pool and its threads share.
#[derive(Default)]
struct PoolShared {
    state: Mutex<JobQueue>,
    wake: Condvar,
}

/// A small pool of threads.
pub(super) struct Workers {
    shared: Arc<PoolShared>,
    limit: usize,
}

impl Workers {
    /// A pool of at most `limit` threads, none of them started yet.
    pub(super) fn new(limit: usize) -> Self {
        assert!(limit > 0, "a pool without threads would never answer");
        Self { shared: Arc::default(), limit }
    }

    /// Runs `job` on some thread of the pool, soon.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads.len() < self.limit {
            let shared = self.shared.clone();
            let name = format!("pando-work-{}", state.threads.len());
            match thread::Builder::new().name(name).spawn(move || work(&shared)) {
                Ok(handle) => state.threads.push(handle),
                Err(e) if state.threads.is_empty() => {
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
        }
        drop(state);
        self.shared.wake.notify_one();
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

fn work(shared: &PoolShared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                log::error!("a request failed by a panic and was answered with EIO");
            }
            state = shared.state.lock();
        } else if state.closed {
            return;
        } else {
            state.idle += 1;
            shared.wake.wait(&mut state);
            state.idle -= 1;
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
