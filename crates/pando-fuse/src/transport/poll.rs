//! Polling for the next request for a moment, instead of sleeping at once.
//!
//! A thread that sleeps in `read` has to be woken, and if its CPU is idle by then, that costs more than the request
//! itself, most of all on a virtual machine. So while requests come densely, the thread that reads them polls for a
//! short time after each answer, and sleeps only if no request comes. Guarantees: a mount without requests sleeps,
//! with no timer running; after the last request of a series at most `limit` is spent on polling; polling stops when
//! another program wants the CPU. Uses getrusage(2) only; knows nothing of the protocol.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};
use parking_lot::Mutex;

use crate::{
    counters::Counters,
    transport::halting::{HaltPoll, Halting},
};

/// A request that comes soon after an answer scores one point. Points from which on polling begins, the most there
/// can be, and what a gap takes away; counts. A program that does a little now and then makes a few requests at once
/// (a rename is three, a transaction some ten), and to be woken for each takes longer than all of them.
const POLL_SCORE: u32 = 2;
const MAX_SCORE: u32 = 32;
const GAP_SCORE: u32 = 4;
/// Polling in vain again and again is put off for a number of requests that doubles each time, up to this count: the
/// program may be waiting for the CPU on which this thread polls.
const MAX_PUT_OFF_REQUESTS: u32 = 512;
/// How often it is checked whether another program wants the CPU.
const PREEMPTION_CHECK: Duration = Duration::from_millis(1);
/// How long polling stops if one does: after a while without, and at most. The pause doubles if that happens again soon
/// after the last pause, and soon after the start.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(40);
const RESUMED_LATELY: Duration = Duration::from_millis(30);

/// Decides after each answer whether to poll, and does.
pub(crate) struct Poller {
    possible: bool,
    limit: Duration,
    polite: bool,
    /// Keeps the CPUs of waiting programs from halting.
    halting: Option<Halting>,
    counters: Arc<Counters>,
    state: Mutex<PollState>,
}

struct PollState {
    /// When the last request had been answered.
    ended: Instant,
    /// Requests that came within the limit after the one before, less what gaps took.
    score: u32,
    /// The request that is coming was found by polling.
    caught: bool,
    /// It was in vain the last time.
    in_vain: bool,
    /// Requests, a count, for which it is put off if it is in vain again, and those that are left of them.
    put_off: u32,
    left: u32,
    /// No polling before this.
    resume: Instant,
    pause: Duration,
    /// When it was last looked how often this thread has lost its CPU, and how often that was;
    /// nothing while it does not poll.
    looked: Option<(Instant, i64)>,
}

impl Poller {
    /// Polls for up to `limit` after an answer; if `polite`, not while other programs want the CPU.
    ///
    /// Never polls with a limit of zero, or if this process may use only one CPU: then the next request can come only
    /// while this thread sleeps.
    pub(crate) fn new(limit: Duration, polite: bool, counters: Arc<Counters>) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let possible = cpus > 1 && !limit.is_zero();
        let state = Mutex::new(PollState::new(Instant::now()));
        Self { possible, limit, polite, halting: None, counters, state }
    }

    /// Keeps idle CPUs from halting while it polls, as `wanted`. Fails if that is asked for and cannot be had.
    pub(crate) fn with_halt_poll(mut self, wanted: HaltPoll) -> io::Result<Self> {
        if self.possible {
            self.halting = Halting::new(wanted, self.counters.clone())?;
        }
        Ok(self)
    }

    /// To be called when a request has come.
    pub(crate) fn came(&self) {
        if !self.possible {
            return;
        }
        let mut state = self.state.lock();
        state.came(self.limit);
        if state.score >= POLL_SCORE
            && let Some(halting) = &self.halting
        {
            halting.dense();
        }
    }

    /// To be called when the thread that reads the next request has answered one. Not for requests for whose answer
    /// no program waits: many of these may come at once, and polling must then end with the time after the last other
    /// answer.
    pub(crate) fn answered(&self) {
        if self.possible {
            self.state.lock().ended = Instant::now();
        }
    }

    /// To be called by a thread that is going to read requests from now on. What was seen last is about another one.
    pub(crate) fn begin(&self) {
        if self.possible {
            self.state.lock().looked = None;
        }
    }

    /// What `attempt` gives, which is tried again and again for a while if that is worth it; `None` if nothing came,
    /// so that it is time to sleep.
    pub(crate) fn poll<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.possible {
            return None;
        }
        let mut state = self.state.lock();
        if !state.may_poll(Instant::now(), self.polite, &self.counters) {
            return None;
        }
        // Else it is tried once, which is not polling.
        let polls = state.ended.elapsed() < self.limit;
        loop {
            if let Some(found) = attempt() {
                state.caught = true;
                (state.in_vain, state.put_off) = (false, 1);
                self.counters.caught();
                return Some(found);
            }
            if state.ended.elapsed() >= self.limit {
                self.counters.missed();
                if self.polite && polls {
                    state.missed(&self.counters);
                }
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

impl PollState {
    fn new(now: Instant) -> Self {
        Self {
            ended: now,
            score: 0,
            caught: false,
            in_vain: false,
            put_off: 1,
            left: 0,
            resume: now,
            pause: FIRST_PAUSE,
            looked: None,
        }
    }

    /// Polling was in vain. Once is how each stream ends.
    fn missed(&mut self, counters: &Counters) {
        if std::mem::replace(&mut self.in_vain, true) {
            self.put_off = (self.put_off * 2).min(MAX_PUT_OFF_REQUESTS);
            self.left = self.put_off;
            counters.put_off();
        }
    }

    fn came(&mut self, limit: Duration) {
        self.left = self.left.saturating_sub(1);
        let dense = self.caught || self.ended.elapsed() < limit;
        self.score =
            if dense { (self.score + 1).min(MAX_SCORE) } else { self.score.saturating_sub(GAP_SCORE) };
        self.caught = false;
    }

    /// Whether to poll now, which is not polite if this thread has lost its CPU to another.
    fn may_poll(&mut self, now: Instant, polite: bool, counters: &Counters) -> bool {
        if self.score < POLL_SCORE || self.left > 0 || now < self.resume {
            self.looked = None;
            return false;
        }
        if !polite || self.looked.is_some_and(|(at, _)| now.duration_since(at) < PREEMPTION_CHECK) {
            return true;
        }
        let lost = getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |u| u.involuntary_context_switches());
        let before = self.looked.replace((now, lost));
        if before.is_none_or(|(_, before)| before == lost) {
            return true;
        }
        let soon = now.duration_since(self.resume) < RESUMED_LATELY;
        self.pause = if soon { (self.pause * 2).min(MAX_PAUSE) } else { FIRST_PAUSE };
        self.resume = now + self.pause;
        self.looked = None;
        counters.yielded();
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;

    /// Long enough that no scheduler makes a gap of it.
    const LIMIT: Duration = Duration::from_millis(500);

    fn poller(limit: Duration) -> Poller {
        Poller::new(limit, false, Arc::default())
    }

    /// A request that is found if `there`, and answered.
    fn serve(poller: &Poller, there: impl FnMut() -> Option<()>) -> Option<()> {
        let found = poller.poll(there);
        poller.came();
        poller.answered();
        found
    }

    /// Makes as many requests in a row as it takes for polling to begin after the next one.
    fn make_dense(poller: &Poller) {
        for _ in 0..POLL_SCORE {
            assert_eq!(serve(poller, || Some(())), None, "polled without being dense");
        }
    }

    #[test]
    fn polls_when_requests_are_dense_and_only_then() {
        let poller = poller(LIMIT);
        make_dense(&poller);
        assert_eq!(serve(&poller, || Some(())), Some(()));
        assert_eq!(poller.counters.polling().caught, 1);
        assert_eq!(poller.counters.polling().missed, 0);
    }

    #[test]
    fn finds_what_comes_while_it_polls() {
        let poller = poller(Duration::from_secs(20));
        make_dense(&poller);
        let mut tries = 0;
        let third = || {
            tries += 1;
            (tries == 3).then_some(())
        };
        assert_eq!(serve(&poller, third), Some(()));
        assert_eq!(tries, 3, "tried again after it was found");
        assert_eq!(poller.counters.polling().caught, 1);
    }

    #[test]
    fn a_few_requests_at_once_are_polled_for_now_and_then_and_single_ones_are_not() {
        let limit = Duration::from_millis(50);
        let poller = poller(limit);
        for _ in 0..5 {
            thread::sleep(limit * 2);
            serve(&poller, || None);
        }
        assert_eq!(poller.counters.polling().missed, 0, "polled after a single request");
        for burst in 1..=5 {
            thread::sleep(limit * 2);
            // The first two are not looked for, the fourth is the last.
            for _ in 0..2 {
                assert_eq!(serve(&poller, || None), None);
            }
            let found = (0..2).filter_map(|_| serve(&poller, || Some(()))).count();
            assert!(found >= 1, "burst {burst}");
        }
    }

    #[test]
    fn gives_up_and_a_sparse_stream_ends_it() {
        let limit = Duration::from_millis(20);
        let poller = poller(limit);
        make_dense(&poller);
        let begin = Instant::now();
        assert_eq!(poller.poll(|| None::<()>), None);
        assert!(begin.elapsed() >= limit / 2);
        assert_eq!(poller.counters.polling().missed, 1);
        for _ in 0..10 {
            thread::sleep(limit * 2);
            serve(&poller, || None);
        }
        // The score after the stream allows for no gap, or for two if the system made requests late.
        assert!(poller.counters.polling().missed <= 3, "{:?}", poller.counters.polling());
    }

    /// As on a machine whose CPUs are all busy, where the program waits for the CPU on which this thread polls.
    #[test]
    fn polling_in_vain_again_and_again_becomes_rare_until_it_finds_something() {
        let poller = Poller::new(Duration::from_micros(10), true, Arc::default());
        let request = |there: Option<()>| {
            let before = poller.counters.polling().missed;
            {
                // Whether this thread loses its CPU is not what is tested.
                let mut state = poller.state.lock();
                (state.score, state.looked, state.resume) = (MAX_SCORE, None, state.ended);
            }
            poller.poll(|| there);
            poller.came();
            poller.answered();
            poller.counters.polling().missed > before
        };
        let misses = (0..10_000).filter(|_| request(None)).count();
        assert!((10..40).contains(&misses), "polled {misses} times in vain for 10,000 requests");
        // The last wait ends, it finds something, and from then on it polls after each answer.
        for _ in 0..=MAX_PUT_OFF_REQUESTS {
            request(Some(()));
        }
        let caught = poller.counters.polling().caught;
        assert!(request(None), "the end of a stream");
        for _ in 0..10 {
            request(Some(()));
        }
        assert_eq!(poller.counters.polling().caught, caught + 10, "put off by the end of one stream");
    }

    #[test]
    fn many_requests_without_answers_wait_no_longer_than_one() {
        let limit = Duration::from_millis(50);
        let poller = poller(limit);
        poller.state.lock().score = MAX_SCORE;
        poller.answered();
        let begin = Instant::now();
        for _ in 0..100 {
            poller.poll(|| None::<()>);
            poller.state.lock().score = MAX_SCORE;
        }
        assert!(begin.elapsed() < limit * 20, "{:?}", begin.elapsed());
    }

    #[test]
    fn never_without_a_second_cpu_or_a_limit() {
        let alone = thread::spawn(|| {
            let now = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|&c| now.is_set(c)).unwrap();
            let mut one = rustix::thread::CpuSet::new();
            one.set(cpu);
            rustix::thread::sched_setaffinity(None, &one).unwrap();
            Poller::new(LIMIT, true, Arc::default())
        });
        assert!(!alone.join().unwrap().possible);
        assert!(!poller(Duration::ZERO).possible);
    }

    #[test]
    fn losing_the_cpu_stops_polling_for_longer_and_longer() {
        let counters = Counters::default();
        let now = Instant::now();
        let mut state = PollState { score: MAX_SCORE, ..PollState::new(now) };
        let lose = |state: &mut PollState, begin: Instant| {
            assert!(state.may_poll(begin, true, &counters), "the first look only takes note");
            if let Some((_, lost)) = &mut state.looked {
                *lost -= 1;
            }
            assert!(state.may_poll(begin + PREEMPTION_CHECK / 2, true, &counters), "looks too often");
            assert!(!state.may_poll(begin + PREEMPTION_CHECK, true, &counters));
            assert!(!state.may_poll(state.resume - PREEMPTION_CHECK, true, &counters), "polls in a pause");
            (state.resume - begin - PREEMPTION_CHECK).as_millis()
        };
        let pauses: Vec<u128> = (0..8)
            .map(|_| {
                let begin = state.resume;
                lose(&mut state, begin)
            })
            .collect();
        assert_eq!(pauses, [20, 40, 40, 40, 40, 40, 40, 40]);
        assert_eq!(counters.polling().yielded, 8);
        // Quiet for a while: the next pause is short again.
        let begin = state.resume + RESUMED_LATELY;
        assert_eq!(lose(&mut state, begin), FIRST_PAUSE.as_millis());
    }
}
