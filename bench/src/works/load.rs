//! Sequential load of large incompressible values: 4 KiB and 1 MiB, in durable batches of 4 MiB,
//! into a store of its own.

use anyhow::Result;

use super::{Outcome, Run, in_batches, measure};
use crate::{
    data::{KEY, Random, TREE, key},
    engine::Op,
};

const BATCH_BYTES: usize = 4 << 20;

fn load(run: &Run<'_>, value: usize) -> Result<Vec<Outcome>> {
    let engine = run.open()?;
    let count = (run.bytes / value as u64).max(4);
    let mut random = Random::new(9);
    let outcome = measure(&*engine, "MiB", |_| {
        let make = |i| (key(TREE, i), random.bytes(value));
        let size = (BATCH_BYTES / value).max(1);
        let done = in_batches(&*engine, (count, size), make, |(k, v)| Op::Put(k, v), || false)?;
        let bytes = done * (KEY + value) as u64;
        Ok((bytes as f64 / (1 << 20) as f64, bytes))
    })?;
    Ok(vec![outcome])
}

pub(super) fn small(run: &Run<'_>) -> Result<Vec<Outcome>> {
    load(run, 4 << 10)
}

pub(super) fn large(run: &Run<'_>) -> Result<Vec<Outcome>> {
    load(run, 1 << 20)
}
