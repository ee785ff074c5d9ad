//! Random small changes of values that are there: by a merge where the engine has one, otherwise by
//! reading and writing. A quarter as many as there are keys.

use anyhow::Result;

use super::{BATCH, Outcome, Run, in_batches, measure};
use crate::{
    data::{KEY, Random, TREE, even, key},
    engine::Op,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open()?;
    let mut random = Random::new(3);
    let outcome = measure(&*engine, "keys", |meter| {
        let make = |_| key(TREE, even(random.below(run.keys)));
        let stop = || meter.seconds() > run.cap;
        let done = in_batches(&*engine, (run.keys / 4, BATCH), make, |k| Op::Add(k, 1), stop)?;
        Ok((done as f64, done * (KEY + 8) as u64))
    })?;
    Ok(vec![outcome])
}
