//! Makes the data set: small pairs in the order of their keys, in durable batches of 10,000.

use anyhow::Result;

use super::{Outcome, Run, in_batches, measure};
use crate::{
    data::{KEY, Random, TREE, VALUE, even, key},
    engine::Op,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open()?;
    let mut random = Random::new(1);
    let outcome = measure(&*engine, "keys", |_| {
        let make = |i| (key(TREE, even(i)), random.bytes(VALUE));
        let done = in_batches(&*engine, (run.keys, 10_000), make, |(k, v)| Op::Put(k, v), || false)?;
        Ok((done as f64, done * (KEY + VALUE) as u64))
    })?;
    Ok(vec![outcome])
}
