//! Scans in the order of the keys: of all pairs, and of random prefixes of 128 pairs.

use anyhow::{Result, ensure};

use super::{Outcome, Run, measure};
use crate::data::{KEY, Random, TREE, VALUE, even, prefix};

pub(super) fn full(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let outcome = measure(&*engine, "pairs", |_| {
        let (mut pairs, mut bytes) = (0u64, 0);
        engine.scan(&[TREE], &mut |key, value| {
            pairs += 1;
            bytes += key.len() + value.len();
            Ok(())
        })?;
        ensure!(pairs >= run.keys && bytes as u64 >= run.keys * (KEY + VALUE) as u64, "pairs are missing");
        Ok((pairs as f64, 0))
    })?;
    Ok(vec![outcome])
}

pub(super) fn prefixes(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let mut random = Random::new(6);
    let cap = run.cap.min(2.0);
    let outcome = measure(&*engine, "pairs", |meter| {
        let mut pairs = 0u64;
        while meter.seconds() < cap {
            let before = pairs;
            // Two digits are 256 numbers; every second one is there.
            let chosen = prefix(TREE, even(random.below(run.keys)), 2);
            engine.scan(&chosen, &mut |_, _| {
                pairs += 1;
                Ok(())
            })?;
            ensure!(pairs > before, "a prefix is empty");
        }
        Ok((pairs as f64, 0))
    })?;
    Ok(vec![outcome])
}
