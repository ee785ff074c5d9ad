//! Random small changes of values that are there: by a merge where the engine has one, otherwise by
//! reading and writing. A quarter as many as there are keys unless told otherwise.

use anyhow::Result;

use super::{BATCH, Outcome, Run, in_batches, measure, stopped_early};
use crate::{
    data::{KEY, Random, TREE, even, key},
    engine::Op,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let mut random = Random::new(3);
    let outcome = measure(&*engine, "keys", |meter| {
        let make = |_| key(TREE, even(random.below(run.keys)));
        let stop = || meter.seconds() > run.cap;
        let done = in_batches(&*engine, (run.share_keys(), BATCH), make, |k| Op::Add(k, 1), stop)?;
        Ok((done as f64, done * (KEY + 8) as u64))
    })?;
    Ok(vec![Outcome { note: stopped_early(outcome.count, run.share_keys()), ..outcome }])
}
