//! Garbage collection beside steady writes, on the thread that flushes.
//!
//! Guarantees: the collector advances however busy the writers are, and takes a bounded share of the thread's time;
//! each step is bounded, and no lock is held over its walk. Deletes are pushed down where that frees enough
//! (`dag/gc/cost_benefit.rs`); the others wait for two idle seconds, or for more deletes. Freed space can be used after
//! the next checkpoint, which the collector asks for when enough was freed.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    db::engine::{Engine, signal::Work},
    error::Result,
    key::behind,
};

/// How often the memtables are searched for large deletes.
const LARGE_DELETE_INTERVAL: Duration = Duration::from_millis(500);
/// Least time between two walks for small deletes.
const PAUSE: Duration = Duration::from_secs(3);
/// The same as a multiple of the time that the last walk worked.
const PAUSE_FACTOR: u32 = 10;
/// Pause after a step, as a multiple of the time that the step took: while the thread has other work, and while it has
/// none.
const BUSY_REST_FACTOR: u32 = 4;
const IDLE_REST_FACTOR: u32 = 1;
/// Longest time that a step counts for: if it took longer, other threads most likely had the processor.
const MAX_COUNTED: Duration = Duration::from_millis(100);
/// Longest time that the thread collects while it has other work; a step that has begun is completed.
const MAX_TURN: Duration = Duration::from_millis(20);
/// Most steps of a walk at one key, a count: beside steady deletes at that key the walk must still advance.
const MAX_STEPS_AT_A_KEY: u32 = 16;
/// After so many removed or rewritten nodes, a count, the collector asks for a checkpoint, at most once in the interval
/// below.
const MANY_NODES: u64 = 256;
const GIVE_INTERVAL: Duration = Duration::from_secs(1);
/// After so few, a count, it asks as well, but at most once in the longer interval below.
const SOME_NODES: u64 = 8;
const GIVE_SOME_INTERVAL: Duration = Duration::from_secs(10);

/// A walk for deletes.
struct PushdownWalk {
    /// The walk begins when this batch is flushed to the DAG.
    until: u64,
    /// The key at which the next step begins, and how many steps have begun there.
    from: Bytes,
    steps_here: u32,
    /// Time that its steps took together.
    work: Duration,
    /// Places at which the walk has pushed deletes down, a count.
    pushed: u64,
}

/// The state of garbage collection beside writes.
pub(super) struct Beside {
    /// When the last step ended, and how long after that the next one may begin.
    last: (Instant, Duration),
    /// When the memtables were last searched for large deletes.
    looked: Instant,
    walk: Option<PushdownWalk>,
    /// When the next walk for small deletes may begin.
    next_walk: Instant,
    /// Places at which all walks have pushed deletes down, a count.
    pushed: u64,
    /// When the last checkpoint was asked for: the nodes removed or rewritten by then, and the time.
    given: (u64, Instant),
}

impl Beside {
    pub fn new() -> Self {
        let now = Instant::now();
        let last = (now, Duration::ZERO);
        Self { last, looked: now, walk: None, next_walk: now, pushed: 0, given: (0, now) }
    }

    /// How long until the next step may be due.
    pub fn next_step(&self) -> Duration {
        match &self.walk {
            Some(_) => self.last.1.saturating_sub(self.last.0.elapsed()).max(Duration::from_millis(1)),
            None => LARGE_DELETE_INTERVAL,
        }
    }

    /// Makes the steps that are due, and returns whether any were. `busy`: the thread has other work to do.
    pub fn collect(&mut self, engine: &Engine, busy: bool) -> Result<bool> {
        if self.walk.is_none() && !engine.counters.deletes.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.give_back(engine);
        let rested = self.last.0.elapsed();
        if rested < self.last.1 {
            return Ok(false);
        }
        // A search that finds nothing reads only memtables and headers.
        let due = match &self.walk {
            Some(walk) => engine.superversion.read().tree.msn >= walk.until,
            None => self.looked.elapsed() >= LARGE_DELETE_INTERVAL,
        };
        if !due {
            return Ok(false);
        }
        let Some(_turn) = engine.collecting.try_lock() else { return Ok(false) };
        let began = Instant::now();
        // The share is one of time, because other work may have taken long.
        let allowed = (rested / BUSY_REST_FACTOR).min(MAX_TURN);
        match self.walk.take() {
            Some(mut walk) => loop {
                if !self.step(engine, &mut walk)? {
                    self.end(engine, &walk, began.elapsed());
                    break;
                }
                if !busy || began.elapsed() >= allowed {
                    walk.work += began.elapsed();
                    self.walk = Some(walk);
                    break;
                }
            },
            None => {
                self.looked = began;
                if self.wants_walk(engine)? {
                    self.walk = Some(PushdownWalk::begin(engine));
                }
            }
        }
        let took = began.elapsed().min(MAX_COUNTED);
        self.last = (Instant::now(), took * if busy { BUSY_REST_FACTOR } else { IDLE_REST_FACTOR });
        Ok(true)
    }

    fn wants_walk(&self, engine: &Engine) -> Result<bool> {
        // If space is short, writers collect garbage themselves (`db/admission`).
        let small = Instant::now() >= self.next_walk && !engine.is_short();
        if small && engine.counters.deletes_beside.swap(false, Ordering::Relaxed) {
            return Ok(true);
        }
        engine.holds_large_delete()
    }

    /// Makes one step of a walk. `false` at its end.
    fn step(&mut self, engine: &Engine, walk: &mut PushdownWalk) -> Result<bool> {
        let (pushed, next) = engine.pushdown_beside(&walk.from)?;
        let reclaimed = engine.reclaim_step()?;
        walk.pushed += u64::from(pushed);
        self.pushed += u64::from(pushed);
        match next {
            Some(next) if next != walk.from => (walk.from, walk.steps_here) = (next, 0),
            Some(_) if walk.steps_here < MAX_STEPS_AT_A_KEY => walk.steps_here += 1,
            Some(next) => (walk.from, walk.steps_here) = (behind(&next), 0),
            // A reclaimed node may have held the last reference to others.
            None => return Ok(reclaimed),
        }
        Ok(true)
    }

    fn end(&mut self, engine: &Engine, walk: &PushdownWalk, last: Duration) {
        self.next_walk = Instant::now() + PAUSE.max(PAUSE_FACTOR * (walk.work + last));
        if walk.pushed > 0 {
            self.give_all(engine);
        }
    }

    /// Asks for a checkpoint if it would free enough nodes.
    fn give_back(&mut self, engine: &Engine) {
        let (before, at) = self.given;
        let more = engine.reclaimed() + self.pushed - before;
        if (more >= MANY_NODES && at.elapsed() >= GIVE_INTERVAL)
            || (more >= SOME_NODES && at.elapsed() >= GIVE_SOME_INTERVAL)
        {
            self.give_all(engine);
        }
    }

    fn give_all(&mut self, engine: &Engine) {
        self.given = (engine.reclaimed() + self.pushed, Instant::now());
        engine.counters.freed.store(true, Ordering::Relaxed);
        engine.signal.ask(Work::Checkpoint);
    }
}

impl PushdownWalk {
    /// A walk that may begin as soon as the present memtables are flushed.
    fn begin(engine: &Engine) -> Self {
        let until = engine.log.appended_msn();
        engine.seal();
        engine.signal.ask(Work::Flush);
        PushdownWalk { until, from: Bytes::new(), steps_here: 0, work: Duration::ZERO, pushed: 0 }
    }
}
