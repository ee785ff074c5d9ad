//! Background threads: one flushes and reclaims, one writes the log, one checkpoints.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::engine::Engine;
use crate::error::{Error, Result};

/// How long a thread sleeps at most before it looks for work again.
const NAP: Duration = Duration::from_millis(20);

pub(super) fn spawn(engine: &Arc<Engine>) -> Result<Vec<JoinHandle<()>>> {
    let start = |name: &str, work: fn(&Engine)| {
        let engine = engine.clone();
        let thread = std::thread::Builder::new().name(format!("pando-{name}"));
        thread.spawn(move || work(&engine)).map_err(|e| Error::Io { action: "start a thread", offset: 0, source: e })
    };
    Ok(vec![start("flush", flusher)?, start("log", syncer)?, start("checkpoint", checkpointer)?])
}

/// Keeps the in-memory tables few, and gives back what was deleted.
fn flusher(engine: &Engine) {
    while !engine.signal.shutting_down() {
        let worked = (|| {
            if engine.check_running().is_err() {
                return Ok(false);
            }
            if engine.is_tight() {
                engine.checkpoint()?;
            }
            Ok(engine.flush_step()? || engine.reclaim_step()?)
        })();
        match worked {
            Ok(true) => (),
            Ok(false) => engine.signal.wait_for_work(NAP),
            Err(error) => {
                engine.fail("flush", &error);
                engine.signal.wait_for_work(NAP);
            }
        }
    }
}

/// Makes what was written durable within the stated interval.
fn syncer(engine: &Engine) {
    let mut last = Instant::now();
    while !engine.signal.shutting_down() {
        engine.signal.wait_for_work(engine.options.sync_interval.min(Duration::from_millis(100)));
        if last.elapsed() >= engine.options.sync_interval {
            if engine.log.buffered() > 0 || engine.log.durable_msn() < engine.log.appended_msn() {
                // A failure stops the log, and every later call says why.
                let _stopped = engine.log.sync();
            }
            last = Instant::now();
        }
    }
}

/// Makes checkpoints when asked, and at an interval while there is anything to write.
fn checkpointer(engine: &Engine) {
    let mut last = Instant::now();
    while !engine.signal.shutting_down() {
        engine.signal.wait_for_work(Duration::from_millis(50));
        let due = last.elapsed() >= engine.options.checkpoint_interval && engine.log.used() > 0;
        if (engine.signal.take_checkpoint() || due) && engine.check_running().is_ok() {
            if let Err(error) = engine.checkpoint() {
                engine.fail("checkpoint", &error);
                std::thread::sleep(NAP);
            }
            last = Instant::now();
        }
    }
}
