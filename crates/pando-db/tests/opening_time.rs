//! How long opening a store takes whose log has very many small operations, beside an ordered map of the same.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use pando_db::{Batch, CreateOptions, Db, Options, device::MemDevice};

use crate::{bursts::copy, expect, one_of_three_tries};

const OPERATIONS: u64 = 600_000;
const OPERATIONS_PER_BATCH: usize = 100;
/// Bytes of a device, most of which are never touched.
const SIZE: u64 = 1 << 30;

/// Keys in no order, some of them again.
fn key(i: u64) -> Vec<u8> {
    let mixed = (i % (OPERATIONS * 3 / 4)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:016x}", mixed ^ mixed >> 29).into_bytes()
}

/// What a kill leaves that comes before the first checkpoint: the log has all.
fn killed() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(SIZE));
    Db::create(device.clone(), &CreateOptions::default().log_size(64 << 20), &Options::default()).unwrap();
    let options = Options::default().cache_bytes(1 << 30).checkpoint_interval(Duration::from_secs(1 << 20));
    let db = Db::open(device.clone(), options).unwrap();
    let all: Vec<u64> = (0..OPERATIONS).collect();
    for part in all.chunks(OPERATIONS_PER_BATCH) {
        let mut batch = Batch::new();
        part.iter().for_each(|i| _ = batch.put(key(*i), vec![*i as u8]));
        db.write(batch).unwrap();
    }
    db.sync().unwrap();
    assert_eq!(db.stats().unwrap().checkpoints, 0);
    copy(&device)
}

/// Each operation was put into a persistent map, one by one, which took several times as long as to read it: a log of
/// usual size with values of a few bytes took more than a second.
#[test]
fn a_log_of_tiny_values_is_replayed_faster_than_an_ordered_map_takes_them() {
    let image = killed();
    one_of_three_tries(|| {
        let (mut baseline, mut took) = (Duration::MAX, Duration::MAX);
        // The fastest of each: other programs take the CPU at times.
        for _ in 0..3 {
            let begin = Instant::now();
            let mut map = BTreeMap::new();
            (0..OPERATIONS).for_each(|i| _ = map.insert(key(i), vec![i as u8]));
            baseline = baseline.min(begin.elapsed());
            let begin = Instant::now();
            let db = Db::open(image.clone(), Options::default().read_only(true)).unwrap();
            took = took.min(begin.elapsed());
            assert_eq!(db.get(&key(7)).unwrap().as_deref(), map.get(&key(7)).map(|value| &value[..]));
        }
        println!("{OPERATIONS} operations replayed in {took:?}, put into a map in {baseline:?}");
        // Two threads do it where there are two processors.
        let most = if available_parallelism().is_ok_and(|n| n.get() > 1) {
            baseline * 2 / 5
        } else {
            baseline * 4 / 5
        };
        expect(took < most, format!("replayed in {took:?}, put into a map in {baseline:?}"))
    });
}
