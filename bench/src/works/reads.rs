//! Random point reads of keys that are there: hot, from a set that fits into the cache and was read
//! before; and cold, from the whole data set after a new start with the files out of the page cache.

use anyhow::{Result, ensure};

use super::{Outcome, READ_BATCH, Run, measure};
use crate::{
    data::{Key, Random, TREE, VALUE, even, key},
    engine::Engine,
    meter::evict,
};

/// Reads random ones of the first `keys` keys until `stop`, `count` at most. Returns how many.
pub(super) fn read(
    engine: &dyn Engine,
    random: &mut Random,
    (keys, count): (u64, u64),
    stop: impl Fn() -> bool,
) -> Result<u64> {
    let mut done = 0;
    while done < count && !stop() {
        let batch: Vec<Key> = (0..READ_BATCH).map(|_| key(TREE, even(random.below(keys)))).collect();
        engine.get_many(&batch, &mut |value| {
            ensure!(value.is_some_and(|v| v.len() == VALUE), "a key is missing");
            done += 1;
            Ok(())
        })?;
    }
    Ok(done)
}

/// Reads every one of the first `keys` keys once.
pub(super) fn warm(engine: &dyn Engine, keys: u64) -> Result<()> {
    for first in (0..keys).step_by(READ_BATCH) {
        let batch: Vec<Key> =
            (first..keys.min(first + READ_BATCH as u64)).map(|i| key(TREE, even(i))).collect();
        engine.get_many(&batch, &mut |_| Ok(()))?;
    }
    Ok(())
}

pub(super) fn hot(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let keys = run.hot_keys();
    warm(&*engine, keys)?;
    warm(&*engine, keys)?;
    let mut random = Random::new(4);
    let cap = run.cap.min(2.0);
    let outcome = measure(&*engine, "reads", |meter| {
        let done = read(&*engine, &mut random, (keys, u64::MAX), || meter.seconds() > cap)?;
        Ok((done as f64, 0))
    })?;
    Ok(vec![Outcome { note: format!("from {keys} keys"), ..outcome }])
}

pub(super) fn cold(run: &Run<'_>) -> Result<Vec<Outcome>> {
    evict(run.dir)?;
    let engine = run.open()?;
    let mut random = Random::new(5);
    let outcome = measure(&*engine, "reads", |meter| {
        let stop = || meter.seconds() > run.cap;
        let done = read(&*engine, &mut random, (run.keys, 5000.min(run.keys / 10)), stop)?;
        Ok((done as f64, 0))
    })?;
    let note = format!("{:.1} KiB read a key", outcome.read as f64 / 1024.0 / outcome.count);
    Ok(vec![Outcome { note, ..outcome }])
}
