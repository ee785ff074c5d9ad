//! Worker threads for requests that may wait: fsync, clones, copies, control.
//!
//! The thread that reads requests never waits for the kernel. A thread is started when a job finds none idle, up to a
//! limit of busy threads. A thread that waits for the device or the kernel announces this (`pando_fs::waiting`) and
//! does not count against the limit, so that no job queues behind one that waits.
//!
//! Guarantees: the jobs of one user do not keep those of others from running, however long they wait and for whatever
//! reason. A user has at most as many threads as are left for the others (dynamic thresholds for a shared buffer:
//! Choudhury and Hahne, 1998): 128 of 256, if no other user has any. Root's share does not depend on others. Idle
//! threads above the limit end, the others when the pool is dropped, which waits for them as `ending` says; a panic
//! in a job costs that job only.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
};

use pando_fs::waiting;
use parking_lot::{Condvar, Mutex};

use crate::ending::{PATIENCE_AT_END, join_within};

type Job = Box<dyn FnOnce() + Send>;

/// Most threads that users share, and most of root, a count.
const MAX_BUSY_THREADS: usize = 256;
/// The number of root as a user.
const ROOT: u32 = 0;

/// Threads that have a job, all or those of a user.
#[derive(Default, Clone, Copy)]
struct Busy {
    count: usize,
    /// Threads among these whose jobs wait.
    waiting: usize,
}

impl Busy {
    fn at_work(self) -> usize {
        self.count - self.waiting
    }
}

/// Jobs that wait for a thread, and the threads.
#[derive(Default)]
struct JobQueue {
    /// The queued jobs, each with its user.
    jobs: VecDeque<(u32, Job)>,
    idle: usize,
    busy: Busy,
    /// The numbers of busy threads by user, for users with any.
    users: HashMap<u32, Busy>,
    /// Threads in all.
    count: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

impl JobQueue {
    /// Whether a job of this user may run now, where at most `limit` are at work.
    fn may_run(&self, uid: u32, limit: usize) -> bool {
        let own = self.users.get(&uid).copied().unwrap_or_default();
        // Threads that work for root do not count against the other users.
        let root = self.users.get(&ROOT).copied().unwrap_or_default();
        let (count, at_work) = match uid {
            ROOT => (0, 0),
            _ => (self.busy.count - root.count, self.busy.at_work() - root.at_work()),
        };
        own.count < MAX_BUSY_THREADS.saturating_sub(count) && own.at_work() < limit.saturating_sub(at_work)
    }

    /// Takes the first job that may run.
    fn take(&mut self, limit: usize) -> Option<(u32, Job)> {
        let at = self.jobs.iter().position(|(uid, _)| self.may_run(*uid, limit))?;
        let (uid, job) = self.jobs.remove(at)?;
        self.busy.count += 1;
        self.users.entry(uid).or_default().count += 1;
        Some((uid, job))
    }

    fn waits(&mut self, uid: u32) {
        self.busy.waiting += 1;
        self.users.entry(uid).or_default().waiting += 1;
    }

    fn done(&mut self, uid: u32, waited: bool) {
        let waited = usize::from(waited);
        self.busy = Busy { count: self.busy.count - 1, waiting: self.busy.waiting - waited };
        if let Some(own) = self.users.get_mut(&uid) {
            *own = Busy { count: own.count - 1, waiting: own.waiting - waited };
            if own.count == 0 {
                self.users.remove(&uid);
            }
        }
    }
}

/// What the pool and its threads share.
struct PoolShared {
    /// Most threads at work, a count.
    limit: usize,
    state: Mutex<JobQueue>,
    wake: Condvar,
}

/// A small pool of threads.
pub(crate) struct Workers {
    shared: Arc<PoolShared>,
}

impl Workers {
    /// A pool of at most `limit` threads that are at work, none of them started yet. Root may have as many besides.
    pub(crate) fn new(limit: usize) -> Self {
        assert!(limit > 0, "a pool without threads would never answer");
        let shared = PoolShared { limit, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `job` of this user on some thread of the pool, soon.
    pub(crate) fn run(&self, uid: u32, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back((uid, Box::new(job)));
        match self.shared.start_if_wanted(&mut state) {
            Ok(()) => {}
            Err(e) if state.count == 0 => {
                // Without any thread the job would never run: run it here, where waiting is
                // allowed only because there is no alternative left.
                log::error!("no thread for a waiting request: {e}");
                let job = state.jobs.pop_back();
                drop(state);
                if let Some((_, job)) = job {
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
        let may_run = state.jobs.iter().filter(|(uid, _)| state.may_run(*uid, self.limit));
        if may_run.take(state.idle + 1).count() <= state.idle {
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

    /// Lets those jobs run that may run by what has changed.
    fn go_on(self: &Arc<Self>, state: &mut JobQueue) {
        if state.jobs.is_empty() || state.closed {
            return;
        }
        if let Err(e) = self.start_if_wanted(state) {
            log::warn!("no further thread for waiting requests: {e}");
        }
        self.wake.notify_one();
    }

    /// What a thread does.
    fn work(self: &Arc<Self>) {
        // Whose job it has, and whether that has said that it waits.
        let now = Rc::new(Cell::new((ROOT, false)));
        let (mine, shared) = (now.clone(), self.clone());
        waiting::on_wait(Some(Box::new(move || {
            let (uid, waits) = mine.get();
            if !waits {
                mine.set((uid, true));
                let mut state = shared.state.lock();
                state.waits(uid);
                shared.go_on(&mut state);
            }
        })));
        let mut state = self.state.lock();
        loop {
            if let Some((uid, job)) = state.take(self.limit) {
                now.set((uid, false));
                drop(state);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    log::error!("a request failed by a panic and was answered with EIO");
                }
                state = self.state.lock();
                state.done(uid, now.get().1);
                // There may be room for more than the one that this thread takes.
                self.go_on(&mut state);
            } else if state.closed && state.jobs.is_empty() || state.idle >= self.limit {
                state.count -= 1;
                drop(state);
                // Others may have slept while there were jobs that might not run.
                self.wake.notify_all();
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
        // The last owner of the pool may be one of its own threads.
        join_within(PATIENCE_AT_END, "requests", threads);
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
        let pool = Workers::new(8);
        let (tx, rx) = mpsc::channel();
        pool.run(1, || panic!("on purpose"));
        let begin = Instant::now();
        for i in 0..8 {
            let tx = tx.clone();
            pool.run(1, move || {
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
            pool.run(1, move || {
                waiting::announce();
                gate.1.wait_while(&mut gate.0.lock(), |closed| *closed);
                tx.send(i).ok();
            });
        }
        pool.run(1, move || tx.send(1000).unwrap());
        assert_eq!(rx.recv_timeout(Duration::from_secs(20)), Ok(1000));
        *gate.0.lock() = false;
        gate.1.notify_all();
        assert_eq!(rx.iter().map(|i| assert!(i < 50)).count(), 50);
        // Threads that did not wait end at once, the others when they find no more jobs.
        let begin = Instant::now();
        while pool.shared.state.lock().count > 2 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn no_user_keeps_another_from_running() {
        for waiting in [true, false] {
            let pool = Workers::new(16);
            let (tx, rx) = mpsc::channel();
            let gate = Arc::new((Mutex::new(true), Condvar::new()));
            // The last user comes when the others have all the threads that they may have.
            for uid in [1, 1, 2, 3, 4] {
                for _ in 0..300 {
                    let (tx, gate) = (tx.clone(), gate.clone());
                    pool.run(uid, move || {
                        if waiting {
                            waiting::announce();
                        }
                        gate.1.wait_while(&mut gate.0.lock(), |closed| *closed);
                        tx.send(uid).ok();
                    });
                }
            }
            for uid in [ROOT, 5] {
                let tx = tx.clone();
                pool.run(uid, move || tx.send(uid).unwrap());
                assert_eq!(rx.recv_timeout(Duration::from_secs(20)), Ok(uid));
            }
            let most = if waiting { MAX_BUSY_THREADS } else { 16 };
            assert!((most * 9 / 10..=most).contains(&pool.shared.state.lock().busy.count));
            *gate.0.lock() = false;
            gate.1.notify_all();
            drop(tx);
            assert_eq!(rx.iter().count(), 1500, "all run in the end");
            drop(pool);
        }
    }

    #[test]
    fn dropping_the_pool_finishes_what_was_queued() {
        let (tx, rx) = mpsc::channel();
        let pool = Workers::new(1);
        for i in 0..20 {
            let tx = tx.clone();
            pool.run(1, move || tx.send(i).unwrap());
        }
        drop(pool);
        assert_eq!(rx.try_iter().count(), 20);
    }
}
