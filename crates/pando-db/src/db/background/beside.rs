//! Giving deleted space back beside steady writes, on the thread that flushes.
//!
//! Guarantees: it gets on however busy the writers are, and takes a bounded share of the thread's time; each step is
//! bounded, and no lock is held over its walk. Deletes are carried down where that gives back enough
//! (`dag/gc/worth.rs`); the rest waits for two idle seconds, or for more deletes. What was freed comes back with
//! checkpoints, which are asked for when there is something to come back.

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

/// How often memory is looked through for large deletes.
const LARGE_DELETE_INTERVAL: Duration = Duration::from_millis(500);
/// Least time between two walks for small deletes, and that as a multiple of the work of the last one.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_FACTOR: u32 = 10;
/// Rest after a step as a multiple of what it took: where the thread has other work, and where it has none.
const BUSY_REST_FACTOR: u32 = 4;
const IDLE_REST_FACTOR: u32 = 1;
/// The most that a step counts for: if it took longer, that was most likely the processor's doing, which had others
/// to run.
const MAX_COUNTED: Duration = Duration::from_millis(100);
/// Longest time for which the thread turns from other work to this, but for the step that has begun.
const MAX_TURN: Duration = Duration::from_millis(20);
/// Steps of a walk that may go on at one key: where much is deleted all the time, it has to get on.
const MAX_STEPS_AT_A_KEY: u32 = 16;
/// Nodes taken out or written anew that are worth a checkpoint, and the least time between two for that.
const MANY_NODES: u64 = 256;
const GIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The same of few.
const SOME_NODES: u64 = 8;
const GIVE_SOME_INTERVAL: Duration = Duration::from_secs(10);

/// A walk for deletes.
struct PushdownWalk {
    /// The batch that has to be in the DAG before it begins.
    until: u64,
    /// Where it goes on, and how many steps have begun there.
    from: Bytes,
    steps_here: u32,
    /// What its steps took together.
    work: Duration,
    /// Places at which deletes were carried down.
    carried: u64,
}

/// Where giving back beside writes is.
pub(super) struct Beside {
    /// When the last step ended, and how long the next one waits for.
    last: (Instant, Duration),
    /// When memory was looked through for large deletes.
    looked: Instant,
    walk: Option<PushdownWalk>,
    /// When the next walk for small deletes may begin.
    next_walk: Instant,
    /// Nodes that were taken out or written anew by now, and had been when the last checkpoint was asked for, and
    /// when that was.
    carried: u64,
    given: (u64, Instant),
}

impl Beside {
    pub fn new() -> Self {
        let now = Instant::now();
        let last = (now, Duration::ZERO);
        Self { last, looked: now, walk: None, next_walk: now, carried: 0, given: (0, now) }
    }

    /// How long until there may be a step to make.
    pub fn next_step(&self) -> Duration {
        match &self.walk {
            Some(_) => self.last.1.saturating_sub(self.last.0.elapsed()).max(Duration::from_millis(1)),
            None => LARGE_DELETE_INTERVAL,
        }
    }

    /// Steps for which it is time; whether it was. `busy`: the thread has other work to do.
    pub fn collect(&mut self, engine: &Engine, busy: bool) -> Result<bool> {
        if self.walk.is_none() && !engine.counters.deletes.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.give_back(engine);
        let rested = self.last.0.elapsed();
        if rested < self.last.1 {
            return Ok(false);
        }
        // Only what lies in memory and in headers is looked at where there is nothing to give back.
        let due = match &self.walk {
            Some(walk) => engine.superversion.read().tree.msn >= walk.until,
            None => self.looked.elapsed() >= LARGE_DELETE_INTERVAL,
        };
        if !due {
            return Ok(false);
        }
        let Some(_turn) = engine.collecting.try_lock() else { return Ok(false) };
        let began = Instant::now();
        // Other work may have taken long: the share is one of time, not of turns.
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
        // Where space is short, whoever needs it gives it back.
        let small = Instant::now() >= self.next_walk && !engine.is_short();
        if small && engine.counters.deletes_beside.swap(false, Ordering::Relaxed) {
            return Ok(true);
        }
        engine.holds_large_delete()
    }

    /// A step of a walk; `false` at its end.
    fn step(&mut self, engine: &Engine, walk: &mut PushdownWalk) -> Result<bool> {
        let (carried, next) = engine.pushdown_beside(&walk.from)?;
        let reclaimed = engine.reclaim_step()?;
        walk.carried += u64::from(carried);
        self.carried += u64::from(carried);
        match next {
            Some(next) if next != walk.from => (walk.from, walk.steps_here) = (next, 0),
            Some(_) if walk.steps_here < MAX_STEPS_AT_A_KEY => walk.steps_here += 1,
            Some(next) => (walk.from, walk.steps_here) = (behind(&next), 0),
            // What it has taken out leads to more.
            None => return Ok(reclaimed),
        }
        Ok(true)
    }

    fn end(&mut self, engine: &Engine, walk: &PushdownWalk, last: Duration) {
        self.next_walk = Instant::now() + PAUSE.max(PAUSE_FACTOR * (walk.work + last));
        if walk.carried > 0 {
            self.give_all(engine);
        }
    }

    /// Asks for a checkpoint once there is enough to come back with it.
    fn give_back(&mut self, engine: &Engine) {
        let (before, at) = self.given;
        let more = engine.reclaimed() + self.carried - before;
        if (more >= MANY_NODES && at.elapsed() >= GIVE_INTERVAL)
            || (more >= SOME_NODES && at.elapsed() >= GIVE_SOME_INTERVAL)
        {
            self.give_all(engine);
        }
    }

    fn give_all(&mut self, engine: &Engine) {
        self.given = (engine.reclaimed() + self.carried, Instant::now());
        engine.counters.freed.store(true, Ordering::Relaxed);
        engine.signal.ask(Work::Checkpoint);
    }
}

impl PushdownWalk {
    /// A walk that may begin as soon as what is in memory now has reached the DAG.
    fn begin(engine: &Engine) -> Self {
        let until = engine.log.appended_msn();
        engine.seal();
        engine.signal.ask(Work::Flush);
        PushdownWalk { until, from: Bytes::new(), steps_here: 0, work: Duration::ZERO, carried: 0 }
    }
}
