//! The memory of a store beside its threads: each part within the share of the budget that it has.
//! (`tests/costs/memory.rs` measures all of it without threads.)
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{DeviceCall, HookedDevice, MemDevice},
};
use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

const BUDGET: u64 = 32 << 20;
const NODE: u32 = 64 << 10;
/// What a write of some pages takes.
const SLOW_WRITE: Duration = Duration::from_millis(2);

/// Random inserts at full speed, with checkpoints beside them as programs ask for them.
#[test]
fn dirty_nodes_stay_within_their_share_while_checkpoints_are_asked_for() {
    // A checkpoint takes long, so that writers get ahead of it; the log does not.
    let device = HookedDevice::new(Arc::new(MemDevice::new(1 << 30)), false, |call| {
        if let DeviceCall::Write(at) = call
            && at.end - at.start >= u64::from(NODE) / 4
            && at.end - at.start <= 8 * u64::from(NODE)
        {
            thread::sleep(SLOW_WRITE);
        }
        Ok(())
    });
    let device = Arc::new(device);
    let options = || Options::default().cache_bytes(BUDGET);
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE), &options()).unwrap();
    let db = Db::open(device, options()).unwrap();
    let stop = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                let stats = db.stats().unwrap();
                most = most.max(stats.dirty - stats.tables);
                thread::sleep(Duration::from_millis(1));
            }
            most
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                db.checkpoint().unwrap();
                thread::sleep(Duration::from_millis(20));
            }
        });
        let mut random = SmallRng::seed_from_u64(7);
        for _ in 0..4000 {
            let mut batch = Batch::new();
            for _ in 0..100 {
                let mut value = [0; 100];
                random.fill_bytes(&mut value);
                batch.put(random.random::<u64>().to_be_bytes().to_vec(), value.to_vec());
            }
            db.write(batch).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        looks.join().unwrap()
    });
    db.close().unwrap();
    // Three eighths, and one edit that has begun below that: half as much, and a path of nodes that were nearly
    // done.
    let allowed = BUDGET / 16 * 9 + 12 * u64::from(NODE);
    println!("{} KiB of dirty nodes at most, allowed are {}", most >> 10, allowed >> 10);
    assert!(most > BUDGET / 8 * 3, "{} KiB of dirty nodes: the limit was not met", most >> 10);
    assert!(most <= allowed, "{} KiB of dirty nodes, allowed are {}", most >> 10, allowed >> 10);
}
