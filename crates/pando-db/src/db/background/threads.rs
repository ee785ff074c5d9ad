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
        background::beside::Beside,
        checkpoint::discard::Rounds,
        engine::{Engine, signal::Work},
    },
    error::{Error, Result},
    pool,
};

/// How long a thread sleeps at most before it looks for work again.
const NAP: Duration = Duration::from_millis(50);
/// How long one that looks at the time sleeps at most before it does.
const MAX_CLOCK_SLEEP: Duration = Duration::from_millis(100);
/// After this time without a write a store is idle: its threads look for work less often.
const IDLE: Duration = Duration::from_secs(10);
/// How often they do then.
const IDLE_NAP: Duration = Duration::from_secs(1);
/// How long after the last write tombstones are pushed down.
const QUIET: Duration = Duration::from_secs(2);

pub(crate) fn spawn(engine: &Arc<Engine>) -> Result<Vec<JoinHandle<()>>> {
    let nice = engine.options.background_nice;
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
        // This thread does little work, and writers wait for it, so it has the normal priority.
        start("log", 0, syncer)?,
        start("checkpoint", nice, checkpointer)?,
    ])
}

/// Gives the calling thread a lower priority. Where the system refuses that, callers are slower and nothing else is
/// wrong.
fn be_nicer(by: i32) {
    let me = Some(gettid());
    if by > 0
        && let Ok(now) = getpriority_process(me)
    {
        let _refused = setpriority_process(me, (now + by).min(19));
    }
}

/// Stops the store if a thread panics, so that callers do not wait for work that no thread does.
struct Alive<'a>(&'a Engine);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.log.stop("a background thread panicked: this is a bug".into());
        self.0.signal.all();
    }
}

/// Flushes sealed memtables into the tree, and collects garbage.
fn flusher(engine: &Engine) {
    let mut quiet = Quiet { idle: Idle::new(), holds: false };
    let mut beside = Beside::new();
    while !engine.signal.shutting_down() {
        quiet.look(engine);
        let worked = (|| {
            if engine.check_running().is_err() {
                return Ok(false);
            }
            engine.make_way()?;
            let step = engine.or_given_back(engine.flush_messages());
            if matches!(step, Err(Error::NoSpace)) {
                engine.note_stuck();
            }
            let step = step?;
            Ok(engine.goes_on(step)? || engine.reclaim_step()?)
        })();
        let worked = worked.and_then(|worked| {
            let collected = beside.collect(engine, worked)?;
            Ok(worked || collected || quiet.collect(engine)?)
        });
        match worked {
            Ok(true) => (),
            Ok(false) => {
                // Otherwise space that only the last view of a reader holds would not be free before the next write.
                drop(engine.views.left_by_readers());
                pool::rest();
                let nap = quiet.idle.nap(engine, NAP);
                engine.signal.wait_for(Work::Flush, beside.next_step().min(nap));
                engine.throttle.flusher_rested();
            }
            Err(error) => {
                engine.fail("flush", &error);
                engine.signal.sleep(NAP);
            }
        }
    }
}

/// Notices when a store is idle.
struct Idle {
    msn: u64,
    since: Instant,
}

impl Idle {
    fn new() -> Self {
        Self { msn: 0, since: Instant::now() }
    }

    /// For how long nothing has been written, as far as was looked.
    fn look(&mut self, engine: &Engine) -> Duration {
        let msn = engine.log.appended_msn();
        if msn != self.msn {
            (self.msn, self.since) = (msn, Instant::now());
        }
        self.since.elapsed()
    }

    /// How long to sleep at most: `nap`, or longer if the store is idle. A request for work wakes the thread in any
    /// case.
    fn nap(&mut self, engine: &Engine, nap: Duration) -> Duration {
        if self.look(engine) < IDLE { nap } else { nap.max(IDLE_NAP) }
    }
}

/// Notices when nothing has been written for a while.
struct Quiet {
    idle: Idle,
    /// A walk may hold a version.
    holds: bool,
}

impl Quiet {
    /// Checks whether anything was written. If so, this drops the versions that walks of an idle store hold, which
    /// would otherwise stay as long as writes go on.
    fn look(&mut self, engine: &Engine) {
        let quiet = self.idle.look(engine);
        // Another thread that holds this lock drops the walks itself.
        if self.holds
            && quiet < QUIET
            && let Some(_turn) = engine.collecting.try_lock()
        {
            engine.let_walks_go();
            self.holds = false;
        }
    }

    /// If there were deletes and no writes since, pushes the tombstones down to where they give space back. A call
    /// makes one bounded step, and says whether there was one to make.
    fn collect(&mut self, engine: &Engine) -> Result<bool> {
        if self.idle.since.elapsed() < QUIET || !engine.counters.deletes.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(_turn) = engine.collecting.try_lock() else { return Ok(false) };
        engine.seal();
        engine.flush_all()?;
        self.holds = true;
        // Cleared before the last step: a delete during that may lie behind it.
        engine.counters.deletes.store(false, Ordering::Relaxed);
        let step = engine.gc_step();
        if !matches!(step, Ok(false)) {
            engine.counters.deletes.store(true, Ordering::Relaxed);
            return step;
        }
        engine.let_walks_go();
        self.holds = false;
        engine.reclaim_all()?;
        engine.counters.settled.store(true, Ordering::Relaxed);
        engine.signal.ask(Work::Checkpoint);
        Ok(false)
    }
}

/// Writes the log out when much of it waits, and makes it durable within `Options::sync_interval`. When nothing was
/// written for such an interval, a mark in the log says that its last records are durable.
fn syncer(engine: &Engine) {
    /// Shortest time between two flushes.
    const LEAST_INTERVAL: Duration = Duration::from_millis(1);
    let interval = engine.options.sync_interval.max(LEAST_INTERVAL);
    let (mut last, mut seen, mut idle) = (Instant::now(), 0, Idle::new());
    while !engine.signal.shutting_down() {
        engine.pager.device().rest();
        let nap = interval.min(idle.nap(engine, MAX_CLOCK_SLEEP));
        if engine.signal.wait_for(Work::Log, nap) {
            // A failure stops the log, and every later call says why.
            let _stopped = engine.log.write_out();
        }
        if last.elapsed() >= interval {
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
    let (mut discards, mut idle) = (Rounds::new(), Idle::new());
    while !engine.signal.shutting_down() {
        let nap = if discards.more { Duration::ZERO } else { idle.nap(engine, MAX_CLOCK_SLEEP) };
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
