//! Following the CPU of the program that makes the requests, on a machine whose CPUs are all busy.
//!
//! A request is two wake-ups: of the thread that reads it, and of the program that waits for the answer. If other
//! programs keep every CPU busy and the two run on different CPUs, each of them queues behind those programs at every
//! request. On one CPU the thread can run as soon as the program sleeps, and the program as soon as the thread does,
//! for as long as the scheduler lets the two of them run. The kernel does not bring them together by itself: the
//! wake-ups of FUSE are not marked as synchronous. So while requests come one after the other and polling finds few
//! of them, the thread that answers looks now and then at where the program ran last, moves to that CPU, and leaves it
//! to the scheduler to move it on.
//!
//! Where a program ran last is told by `/proc/TID/stat` alone, and reading that waits as long as the program is being
//! replaced by another one (execve(2)), while it may wait for an answer of ours. So a thread of its own reads it, and
//! what it found counts for one of the next answers.
//!
//! Guarantees: after a look the next one is not due before [`LOOK_INTERVAL`]; no move where polling finds most
//! requests, or where fewer threads are runnable than there are CPUs; a thread that answers never waits for another
//! program; a thread that was moved may use the CPUs that it could use before. Where the program cannot be seen (it
//! is in another namespace of processes, or there is no procfs) nothing is done; where procfs is that of another
//! namespace, a wrong CPU may be found, which costs a move. Knows nothing of the protocol.

use std::{
    fs::File,
    io::Read,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::counters::Counters;

/// How long after a look the next one is, at least. A look takes some 20 us.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// So many requests, a count, within so long are a stream. On a busy machine one request may take 20 ms.
const STREAM_REQUESTS: u32 = 4;
const STREAM_TIME: Duration = Duration::from_millis(100);
/// Where the CPU stands in the status of a thread, an index of fields after its name (proc(5), field 39).
const CPU_FIELD: usize = 36;
/// Where the threads that are runnable stand in `/proc/loadavg`, an index of fields.
const RUNNABLE_FIELD: usize = 3;

/// Moves the thread that answers to the CPU of the program that asks.
pub(crate) struct Follower {
    possible: bool,
    /// The CPUs that this process might use at first.
    allowed: CpuSet,
    /// The affinity of a thread that was moved, afterwards, as long as it is `allowed` what it was at first.
    unmoved: CpuSet,
    state: Mutex<FollowState>,
    lookout: Arc<Lookout>,
    /// The thread that looks was started, or could not be.
    started: Once,
    counters: Arc<Counters>,
}

/// What came since the last look.
struct FollowState {
    looked: Instant,
    requests: u32,
    /// Of these, the ones that polling found.
    polled: u32,
}

/// What is shared with the thread that looks.
#[derive(Default)]
struct Lookout {
    asked: Mutex<LookOrder>,
    changed: Condvar,
    /// The CPU that it found and that was not used yet, plus one; zero if there is none.
    found: AtomicUsize,
}

/// What the thread that looks is to do.
#[derive(Default)]
struct LookOrder {
    thread: Option<u32>,
    ended: bool,
}

impl Follower {
    /// For `threads` that read at the same time. With several of them the kernel chooses which one it wakes.
    pub(crate) fn new(threads: usize, counters: Arc<Counters>) -> Self {
        let state = Mutex::new(FollowState::new(Instant::now()));
        // Where no thread can be had, nobody is followed.
        let look = || std::thread::Builder::new().spawn(affinities).ok()?.join().ok().flatten();
        let found = if threads == 1 { look() } else { None };
        let possible = found.is_some();
        let (allowed, unmoved) = found.unwrap_or_else(|| (CpuSet::new(), CpuSet::new()));
        Self { possible, allowed, unmoved, state, lookout: Arc::default(), started: Once::new(), counters }
    }

    /// To be called by the thread that is going to answer a request of the thread `caller`, which is 0 if it cannot be
    /// seen from here. `polled`: the request was found by polling.
    pub(crate) fn answering(&self, caller: u32, polled: bool) {
        if !self.possible || caller == 0 {
            return;
        }
        let now = Instant::now();
        let (is_fresh, is_due) = {
            let mut state = self.state.lock();
            (now.duration_since(state.looked) < STREAM_TIME, state.is_due(polled, now))
        };
        // What was found for a stream that has ended says nothing about this request.
        if self.lookout.take().filter(|_| is_fresh).is_some_and(|cpu| self.move_to(cpu)) {
            self.counters.followed();
        }
        if !is_due {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return };
        if runnable_threads().is_none_or(|n| n <= allowed.count() as usize) {
            return;
        }
        self.started.call_once(|| {
            let lookout = self.lookout.clone();
            let look = move || lookout.run();
            // Not joined: it may wait for a program that waits for somebody else. Where that wait cannot be killed,
            // the guard of the mount cuts the connection.
            if let Err(e) = std::thread::Builder::new().name("pando-follow".into()).spawn(look) {
                log::warn!("programs are not followed to their CPUs: {e}");
            }
        });
        self.lookout.ask(caller);
    }

    /// Moves the calling thread to another CPU, if it may run there; whether it did.
    fn move_to(&self, cpu: usize) -> bool {
        if sched_getcpu() == cpu || cpu >= CpuSet::MAX_CPU {
            return false;
        }
        let Some(allowed) = sched_getaffinity(None).ok().filter(|allowed| allowed.is_set(cpu)) else {
            return false;
        };
        let mut there = CpuSet::new();
        there.set(cpu);
        if sched_setaffinity(None, &there).is_err() {
            return false;
        }
        // Somebody may have given the thread other CPUs since.
        let back = if allowed == self.allowed { &self.unmoved } else { &allowed };
        if let Err(e) = sched_setaffinity(None, back) {
            log::warn!("a thread that answers requests stays on CPU {cpu}: {e}");
        }
        true
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.lookout.asked.lock().ended = true;
        self.lookout.changed.notify_one();
    }
}

impl Lookout {
    /// Has it look where `thread` is, when it has looked for the one before.
    fn ask(&self, thread: u32) {
        self.asked.lock().thread = Some(thread);
        self.changed.notify_one();
    }

    /// The CPU that was found last, once.
    fn take(&self) -> Option<usize> {
        if self.found.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.found.swap(0, Ordering::Relaxed).checked_sub(1)
    }

    /// Looks, whenever it is asked, until the end.
    fn run(&self) {
        let mut asked = self.asked.lock();
        while !asked.ended {
            let Some(thread) = asked.thread.take() else {
                self.changed.wait(&mut asked);
                continue;
            };
            let cpu = MutexGuard::unlocked(&mut asked, || last_cpu(thread));
            self.found.store(cpu.map_or(0, |cpu| cpu + 1), Ordering::Relaxed);
        }
    }
}

impl FollowState {
    fn new(now: Instant) -> Self {
        Self { looked: now, requests: 0, polled: 0 }
    }

    /// Counts a request; whether it is time to look.
    fn is_due(&mut self, polled: bool, now: Instant) -> bool {
        self.requests += 1;
        self.polled += u32::from(polled);
        let time = now.duration_since(self.looked);
        let is_stream = time < STREAM_TIME;
        if is_stream && (time < LOOK_INTERVAL || self.requests < STREAM_REQUESTS) {
            return false;
        }
        let sleeps = self.polled * 2 < self.requests;
        *self = Self::new(now);
        is_stream && sleeps
    }
}

/// Threads that run or want to, of all programs.
fn runnable_threads() -> Option<usize> {
    let mut buffer = [0; 128];
    let text = std::str::from_utf8(read("/proc/loadavg", &mut buffer)?).ok()?;
    text.split_ascii_whitespace().nth(RUNNABLE_FIELD)?.split_once('/')?.0.parse().ok()
}

/// The CPU on which a thread ran last. Waits while that thread becomes another program.
fn last_cpu(thread: u32) -> Option<usize> {
    // A name of at most 64 bytes, which may hold anything, and 51 numbers of at most 20 digits.
    let mut buffer = [0; 1200];
    // Of the thread alone: the other file of this name adds up all threads of the process.
    let status = read(&format!("/proc/{thread}/task/{thread}/stat"), &mut buffer)?;
    let name_end = status.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(status.get(name_end + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(CPU_FIELD)?.parse().ok()
}

/// What one read of a file gives.
fn read<'b>(path: &str, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let n = File::open(path).and_then(|mut file| file.read(buffer)).ok()?;
    buffer.get(..n)
}

/// The CPUs that this process may use, and the affinity of a thread that goes on to use them: all CPUs, if it may use
/// every CPU that its control group has, which may be others later. To be called by a thread of its own, whose affinity
/// it changes.
fn affinities() -> Option<(CpuSet, CpuSet)> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    let is_free = sched_setaffinity(None, &all).is_ok() && sched_getaffinity(None).ok()? == allowed;
    Some((allowed, if is_free { all } else { allowed }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;

    /// The CPUs that this thread may use, if there are two at least.
    fn two_cpus() -> Option<(CpuSet, usize, usize)> {
        let allowed = sched_getaffinity(None).unwrap();
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        Some((allowed, cpus.next()?, cpus.next()?))
    }

    #[test]
    fn a_thread_is_found_where_it_was_moved_and_may_go_on_from_there() {
        thread::spawn(|| {
            let Some((allowed, first, second)) = two_cpus() else { return };
            let follower = Follower::new(1, Arc::default());
            let mut one = CpuSet::new();
            for cpu in [second, first, second] {
                one.clear();
                one.set(cpu);
                sched_setaffinity(None, &one).unwrap();
                let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                assert_eq!(last_cpu(tid), Some(cpu));
                assert!(!follower.move_to(first + second - cpu), "to a CPU that it may not use");
                assert_eq!(sched_getaffinity(None).unwrap(), one);
            }
            let begin = Instant::now();
            sched_setaffinity(None, &allowed).unwrap();
            // Somebody else may move it meanwhile.
            while !follower.move_to(first) {
                assert!(begin.elapsed() < Duration::from_secs(20), "never moved to CPU {first}");
                one.clear();
                one.set(second);
                sched_setaffinity(None, &one).unwrap();
                sched_setaffinity(None, &allowed).unwrap();
            }
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn names_of_threads_may_hold_anything() {
        thread::spawn(|| {
            for name in [c"a) R 1 2 3", c"(((", c"\xc3\x28 )"] {
                rustix::thread::set_name(name).unwrap();
                let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                assert!(last_cpu(tid).is_some(), "{name:?}");
            }
        })
        .join()
        .unwrap();
        assert_eq!(last_cpu(0), None);
        assert!(runnable_threads().unwrap() >= 1);
    }

    #[test]
    fn only_a_stream_that_is_not_polled_is_followed() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        // Whether the last of requests at these times makes the thread look.
        let looks = |polled: &[bool], times: &[u64]| {
            let mut state = FollowState::new(begin);
            polled
                .iter()
                .zip(times)
                .map(|(&polled, &time)| state.is_due(polled, after(time)))
                .collect::<Vec<_>>()
        };
        assert_eq!(looks(&[false; 5], &[1, 2, 3, 6, 7]), [false, false, false, true, false]);
        assert_eq!(looks(&[false; 4], &[1, 2, 3, 4]), [false; 4], "too early");
        assert_eq!(looks(&[false; 3], &[20, 40, 60]), [false; 3], "too few");
        assert_eq!(looks(&[false; 5], &[101, 202, 303, 404, 505]), [false; 5], "too rare");
        assert_eq!(looks(&[true, true, false, false], &[1, 2, 3, 6]), [false; 4], "polling finds them");
        assert_eq!(looks(&[true, false, false, false], &[1, 2, 3, 6]), [false, false, false, true]);
    }

    /// A process that was given a CPU keeps to it.
    #[test]
    fn a_thread_with_an_affinity_of_its_own_has_it_again() {
        thread::spawn(|| {
            let Some((allowed, first, _)) = two_cpus() else { return };
            let all = Follower::new(1, Arc::default()).unmoved;
            sched_setaffinity(None, &all).unwrap();
            assert_eq!(sched_getaffinity(None).unwrap(), allowed, "unless somebody has pinned these tests");
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            assert_eq!(Follower::new(1, Arc::default()).unmoved, one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn several_readers_follow_nobody() {
        assert!(!Follower::new(2, Arc::default()).possible);
    }
}
