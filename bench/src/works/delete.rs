//! Removes every second range of 65,536 numbers of the data set (small sets: of 4,096), each by one
//! durable call.

use anyhow::{Result, ensure};

use super::{Outcome, Run, measure};
use crate::data::{TREE, even, prefix};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let digits: usize = if run.keys > 1 << 19 { 4 } else { 3 };
    let numbers = even(run.keys);
    let step = 1u64 << (4 * digits);
    let starts: Vec<u64> = (0..numbers / step).step_by(2).map(|i| i * step).collect();
    let outcome = measure(&*engine, "keys", |_| {
        for &start in &starts {
            engine.delete_prefix(&prefix(TREE, start, digits))?;
        }
        // The keys of the data set; what else was inserted among them goes too.
        Ok(((starts.len() as u64 * step / 2) as f64, starts.len() as u64 * 16))
    })?;
    if let Some(&first) = starts.first() {
        engine.scan(&prefix(TREE, first, digits), &mut |_, _| {
            ensure!(false, "a key is still there");
            Ok(())
        })?;
    }
    let note = format!("{} ranges, {:.2} ms each", starts.len(), 1e3 * outcome.seconds / starts.len() as f64);
    // Amplification has no meaning where nothing is given.
    Ok(vec![Outcome { user: 0, note, ..outcome }])
}
