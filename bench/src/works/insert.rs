//! Random inserts of new keys between those of the data set, a quarter as many as there are unless told
//! otherwise.

use anyhow::Result;

use super::{BATCH, Outcome, Run, in_batches, measure, stopped_early};
use crate::{
    data::{KEY, Random, TREE, VALUE, even, key},
    engine::Op,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let mut random = Random::new(2);
    let outcome = measure(&*engine, "keys", |meter| {
        let make = |_| (key(TREE, even(random.below(run.keys)) + 1), random.bytes(VALUE));
        let stop = || meter.seconds() > run.cap;
        let done = in_batches(&*engine, (run.share_keys(), BATCH), make, |(k, v)| Op::Put(k, v), stop)?;
        Ok((done as f64, done * (KEY + VALUE) as u64))
    })?;
    Ok(vec![Outcome { note: stopped_early(outcome.count, run.share_keys()), ..outcome }])
}
