//! Random inserts of new keys between those of the data set, a quarter as many as there are.

use anyhow::Result;

use super::{BATCH, Outcome, Run, in_batches, measure};
use crate::{
    data::{KEY, Random, TREE, VALUE, even, key},
    engine::Op,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open()?;
    let mut random = Random::new(2);
    let outcome = measure(&*engine, "keys", |meter| {
        let make = |_| (key(TREE, even(random.below(run.keys)) + 1), random.bytes(VALUE));
        let stop = || meter.seconds() > run.cap;
        let done = in_batches(&*engine, (run.keys / 4, BATCH), make, |(k, v)| Op::Put(k, v), stop)?;
        Ok((done as f64, done * (KEY + VALUE) as u64))
    })?;
    Ok(vec![outcome])
}
