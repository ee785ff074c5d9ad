//! Group commit: threads that sync at the same time share flushes.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use crate::{expect, one_of_three_tries};
use pando_db::{
    CreateOptions, Db, Options,
    device::{Device, HookedDevice, MemDevice},
};

/// How long a flush takes, as on a disk.
const FLUSH: Duration = Duration::from_millis(2);

/// Flushes for each sync of `threads` that write and sync, each its own keys.
fn flushes_per_sync(threads: u64, tells_apart: bool, value: usize) -> f64 {
    const SYNCS: u64 = 40;
    let device = HookedDevice::new(Arc::new(MemDevice::new(1 << 30)), tells_apart, |call| {
        if call.makes_durable() {
            thread::sleep(FLUSH);
        }
        Ok(())
    });
    let device = Arc::new(device);
    // No thread of the store's own may flush what is counted here.
    let options = Options::default().background(false);
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    let before = device.stats().flushes;
    let go = Barrier::new(threads as usize);
    thread::scope(|s| {
        for t in 0..threads {
            let (db, go) = (&db, &go);
            s.spawn(move || {
                go.wait();
                for i in 0..SYNCS {
                    db.put(format!("t{t:02}/{i:04}"), vec![t as u8; value]).unwrap();
                    db.sync().unwrap();
                }
            });
        }
    });
    let flushes = device.stats().flushes - before;
    assert_eq!(db.prefix(b"t").count() as u64, threads * SYNCS);
    let each = flushes as f64 / (threads * SYNCS) as f64;
    println!(
        "{threads} threads, values of {value} B, durable writes {tells_apart}: {each:.3} flushes a sync"
    );
    each
}

#[test]
fn threads_that_sync_share_flushes() {
    for tells_apart in [false, true] {
        // Values of 5,000 bytes stand outside the log, and are flushed with it.
        for value in [100, 5000] {
            // Those that come while a flush is under way share the next one: two turns for all, where all come at once.
            one_of_three_tries(|| {
                let few = flushes_per_sync(8, tells_apart, value);
                expect(few <= 0.5, format!("{few:.3} flushes a sync of 8 threads"))
            });
            one_of_three_tries(|| {
                let many = flushes_per_sync(64, tells_apart, value);
                expect(many <= 0.125, format!("{many:.3} flushes a sync of 64 threads"))
            });
        }
    }
    // Alone there is nothing to share: each sync is its own flush.
    let alone = flushes_per_sync(1, true, 100);
    assert!(alone >= 1.0, "{alone:.3} flushes a sync of one thread: what is it that makes it durable?");
}
