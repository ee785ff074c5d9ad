//! Copies a prefix of many small pairs to another one, in a store of its own: without making it
//! durable, and then with. Every copy is verified by a scan.

use anyhow::{Result, ensure};

use super::{Outcome, Run, in_batches, measure};
use crate::{
    data::{Random, TREE, even, key},
    engine::Op,
};

/// Value size of the pairs that are copied, in bytes.
const VALUE: usize = 16;

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open()?;
    let keys = run.copy_keys;
    let mut random = Random::new(10);
    let make = |i| (key(TREE, even(i)), random.bytes(VALUE));
    in_batches(&*engine, (keys, 10_000), make, |(k, v)| Op::Put(k, v), || false)?;
    engine.settle()?;
    let mut outcomes = Vec::new();
    for (part, dst, durable) in [("unsynced", b'u', false), ("durable", b'v', true)] {
        let mut outcome = measure(&*engine, "keys", |_| {
            engine.copy_prefix(&[TREE], &[dst])?;
            if durable {
                engine.sync()?;
            }
            Ok((keys as f64, keys * 32))
        })?;
        let mut found = 0;
        engine.scan(&[dst], &mut |_, _| {
            found += 1;
            Ok(())
        })?;
        ensure!(found == keys, "the copy has {found} keys instead of {keys}");
        outcome.part = part.into();
        outcome.note = format!("{:.3} ms", outcome.seconds * 1e3);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}
