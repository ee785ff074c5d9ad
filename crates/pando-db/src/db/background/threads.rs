//! Background threads: one flushes and reclaims, one writes the log, one checkpoints.

use std::{
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    process::{getpriority_process, setpriority_process},
    thread::gettid,
};

use crate::{
    db::{
        checkpoint::discard::Rounds,
        engine::{Engine, signal::Work},
    },
    error::{Error, Result},
    pool,
};

/// How long a thread sleeps at most before it looks for work again.
const NAP: Duration = Duration::from_millis(50);
/// How long after the last write deletes are carried down.
const QUIET: Duration = Duration::from_secs(2);

/// How often memory is looked through for large deletes beside writes.
const LOOK: Duration = Duration::from_millis(500);
/// How often those that have reached the DAG unnoticed are looked for.
const WALK_INTERVAL: Duration = Duration::from_secs(30);
/// Nodes taken out that are worth a checkpoint, and the least time between two for that.
const MANY_NODES: u64 = 256;
const GIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The same of few.
const SOME_NODES: u64 = 8;
const GIVE_SOME: Duration = Duration::from_secs(10);

pub(crate) fn spawn(engine: &Arc<Engine>) -> Result<Vec<JoinHandle<()>>> {
    let nice = engine.options.background_nice.clamp(0, 19);
    let start = |name: &str, nice: i32, work: fn(&Engine)| {
        let engine = engine.clone();
        let thread = std::thread::Builder::new().name(format!("pando-{name}"));
        let guarded = move || {
            let alive = Alive(&engine);
            be_nicer(nice);
            work(&engine);
            std::mem::forget(alive);
        };
        thread.spawn(guarded).map_err(|e| Error::Io { action: "start a thread", offset: 0, source: e })
    };
    Ok(vec![
        start("flush", nice, flusher)?,
        // It does little, and writers wait for it.
        start("log", 0, syncer)?,
        start("checkpoint", nice, checkpointer)?,
    ])
}

/// Lets other threads go before the calling one. Only a matter of speed: where it is refused, nothing is
/// lost.
fn be_nicer(by: i32) {
    let me = Some(gettid());
    if by > 0
        && let Ok(now) = getpriority_process(me)
    {
        let _refused = setpriority_process(me, (now + by).min(19));
    }
}

/// Stops the store if a thread panics: a bug must not leave callers waiting for work that nobody does.
struct Alive<'a>(&'a Engine);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.log.stop("a background thread panicked: this is a bug".into());
        self.0.signal.all();
    }
}

/// Keeps the in-memory tables few, and gives back what was deleted.
fn flusher(engine: &Engine) {
    let mut quiet = Quiet { msn: 0, since: Instant::now() };
    let mut beside = Beside::new();
    while !engine.signal.shutting_down() {
        let worked = (|| {
            if engine.check_running().is_err() {
                return Ok(false);
            }
            engine.make_way()?;
            Ok(engine.flush_messages()? || engine.reclaim_step()?)
        })();
        let worked = worked.and_then(|worked| {
            beside.collect(engine)?;
            Ok(worked || quiet.collect(engine)?)
        });
        match worked {
            Ok(true) => (),
            Ok(false) => {
                // Or space that only a reader's last view holds would wait for the next write.
                drop(engine.views.left_by_readers());
                pool::rest();
                engine.signal.wait_for(Work::Flush, NAP);
                engine.throttle.flusher_rested();
            }
            Err(error) => {
                engine.fail("flush", &error);
                engine.signal.sleep(NAP);
            }
        }
    }
}

/// Notices when nothing has been written for a while.
struct Quiet {
    msn: u64,
    since: Instant,
}

impl Quiet {
    /// After deletes, and when it has been quiet since: carries them to where they give space back.
    /// One bounded step a call; whether there was one to make.
    fn collect(&mut self, engine: &Engine) -> Result<bool> {
        let msn = engine.log.appended_msn();
        if msn != self.msn {
            *self = Quiet { msn, since: Instant::now() };
        }
        if self.since.elapsed() < QUIET || !engine.counters.deletes.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(_turn) = engine.gc_turn.try_lock() else { return Ok(false) };
        engine.seal();
        engine.flush_all()?;
        if engine.gc_step()? {
            return Ok(true);
        }
        engine.counters.deletes.store(false, Ordering::Relaxed);
        while engine.reclaim_step()? {}
        engine.counters.settled.store(true, Ordering::Relaxed);
        engine.signal.ask(Work::Checkpoint);
        Ok(false)
    }
}

/// Gives back what large deletes cover, beside steady writes.
struct Beside {
    /// When the last step ended, and what it took.
    last: (Instant, Duration),
    /// When memory was looked through for large deletes.
    looked: Instant,
    /// A walk has begun, or one is due.
    walking: bool,
    /// The batch that has to be in the DAG before.
    until: u64,
    /// When the last walk ended.
    walked: Instant,
    /// Nodes that had been taken out when the last checkpoint was asked for, and when that was.
    given: (u64, Instant),
}

impl Beside {
    fn new() -> Self {
        let now = Instant::now();
        let last = (now, Duration::ZERO);
        Self { last, looked: now, walking: false, until: 0, walked: now, given: (0, now) }
    }

    /// One bounded step, if it is time for one: a tenth of the time is for this.
    fn collect(&mut self, engine: &Engine) -> Result<()> {
        if !engine.counters.deletes.load(Ordering::Relaxed) || self.last.0.elapsed() < 9 * self.last.1 {
            return Ok(());
        }
        self.give_back(engine);
        // Only what lies in memory and in headers is looked at where there is nothing to give back.
        let looks = self.looked.elapsed() >= LOOK && !self.walking;
        if !looks && !self.walking {
            return Ok(());
        }
        if self.walking && engine.superversion.read().tree.msn < self.until {
            return Ok(());
        }
        let Some(_turn) = engine.gc_turn.try_lock() else { return Ok(()) };
        let began = Instant::now();
        if self.walking {
            if !engine.gc_beside()? {
                (self.walking, self.walked) = (false, began);
            }
        } else {
            self.looked = began;
            if engine.holds_large_delete()? {
                self.until = engine.log.appended_msn();
                engine.seal();
                self.walking = true;
            }
            self.walking |= self.walked.elapsed() >= WALK_INTERVAL;
        }
        self.last = (Instant::now(), began.elapsed());
        Ok(())
    }

    /// Asks for a checkpoint once there is enough to come back with it.
    fn give_back(&mut self, engine: &Engine) {
        let taken = engine.reclaimed();
        let (before, at) = self.given;
        let more = taken - before;
        if (more >= MANY_NODES && at.elapsed() >= GIVE_INTERVAL)
            || (more >= SOME_NODES && at.elapsed() >= GIVE_SOME)
        {
            self.given = (taken, Instant::now());
            engine.counters.freed.store(true, Ordering::Relaxed);
            engine.signal.ask(Work::Checkpoint);
        }
    }
}

/// Writes the log out when much of it waits, and makes it durable within the stated interval. When nothing was
/// written for an interval, the log says of its last records that they are durable.
fn syncer(engine: &Engine) {
    let (mut last, mut seen) = (Instant::now(), 0);
    while !engine.signal.shutting_down() {
        let nap = engine.options.sync_interval.min(Duration::from_millis(100));
        if engine.signal.wait_for(Work::Log, nap) {
            // A failure stops the log, and every later call says why.
            let _stopped = engine.log.write_out();
        }
        if last.elapsed() >= engine.options.sync_interval {
            if engine.log.buffered() > 0 || engine.log.durable_msn() < engine.log.appended_msn() {
                // A failure stops the log, and every later call says why.
                let _stopped = engine.log.sync();
            }
            let msn = engine.log.appended_msn();
            if msn == std::mem::replace(&mut seen, msn) {
                let _stopped = engine.log.mark_rest();
            }
            last = Instant::now();
        }
    }
}

/// Makes checkpoints when asked, and at an interval while there is anything to write. Between them it gives
/// freed space back.
fn checkpointer(engine: &Engine) {
    let mut last = Instant::now();
    let mut discards = Rounds::new();
    while !engine.signal.shutting_down() {
        let nap = if discards.more { Duration::ZERO } else { Duration::from_millis(100) };
        let asked = engine.signal.wait_for(Work::Checkpoint, nap);
        let due = last.elapsed() >= engine.options.checkpoint_interval && engine.log.used() > 0;
        if (asked || due) && engine.check_running().is_ok() {
            let settled = engine.counters.settled.swap(false, Ordering::Relaxed);
            let freed = engine.counters.freed.swap(false, Ordering::Relaxed);
            let done = match freed {
                _ if due || settled => engine.checkpoint(),
                true => engine.checkpoint_nodes(|_| true),
                false => engine.checkpoint_as_asked(),
            };
            if let Err(error) = done {
                engine.fail("checkpoint", &error);
                engine.signal.sleep(NAP);
            }
            if due {
                last = Instant::now();
            }
        }
        discards.go_on(engine);
    }
}
