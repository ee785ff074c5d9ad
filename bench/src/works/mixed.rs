//! A reader beside a writer: hot point reads alone, then the same reads while another thread makes
//! random changes in durable batches as fast as it can. Both rates are reported.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, anyhow};

use super::{
    BATCH, Outcome, Run, in_batches, measure,
    reads::{read, warm},
};
use crate::{
    data::{KEY, Random, TREE, VALUE, even, key},
    engine::Op,
    meter::Meter,
};

pub(super) fn run(run: &Run<'_>) -> Result<Vec<Outcome>> {
    let engine = run.open_warm()?;
    let engine = &*engine;
    let keys = run.hot_keys();
    warm(engine, keys)?;
    let mut random = Random::new(7);
    let alone = Meter::start();
    let before = read(engine, &mut random, (keys, u64::MAX), || alone.seconds() > 1.0)?;
    let alone = before as f64 / alone.seconds();

    let over = AtomicBool::new(false);
    let length = run.cap.min(3.0);
    let mut writes = (0, 0.0);
    let mut reads = measure(engine, "reads", |meter| {
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut random = Random::new(8);
                let make = |_| (key(TREE, even(random.below(run.keys)) + 1), random.bytes(VALUE));
                let result = in_batches(
                    engine,
                    (u64::MAX, BATCH),
                    make,
                    |(k, v)| Op::Put(k, v),
                    || over.load(Relaxed),
                );
                (result, meter.seconds())
            });
            let done = read(engine, &mut random, (keys, u64::MAX), || meter.seconds() > length);
            over.store(true, Relaxed);
            let (written, seconds) = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
            writes = (written?, seconds);
            Ok((done? as f64, writes.0 * (KEY + VALUE) as u64))
        })
    })?;
    // The last batch of the writer may outlast the reader.
    let read_for = length.min(reads.seconds);
    reads.seconds = read_for;
    reads.part = "reads".into();
    reads.note = format!("{:.0}% of {alone:.0}/s alone", 100.0 * reads.count / read_for / alone);
    let written = Outcome {
        part: "writes".into(),
        unit: "keys".into(),
        count: writes.0 as f64,
        seconds: writes.1,
        note: String::new(),
        ..reads.clone()
    };
    Ok(vec![Outcome { user: 0, written: 0, settle: 0.0, ..reads }, written])
}
