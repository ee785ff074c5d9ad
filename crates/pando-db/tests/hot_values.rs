//! Small values that are read again and again, far more pages of them than the cache has room for: they are answered
//! from single entries (`store/row_cache.rs`), without the device.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{Device, MemDevice},
};

const KEYS: u64 = 2_000_000;
const HOT: u64 = 20_000;
/// Rounds over all hot keys in which they come to be known.
const WARM_ROUNDS: usize = 3;

fn key(i: u64) -> Vec<u8> {
    format!("tree/{i:08}").into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    let mut state = i + 1;
    let bytes = (0..13).flat_map(|_| {
        state = (state ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
        state.to_le_bytes()
    });
    bytes.take(100).collect()
}

/// 20,000 values of 100 bytes that are spread over all pages of a store of 220 MB. The reads of the last round, and what the
/// cache holds then.
fn reads_of_hot_values(cache_bytes: u64) -> (u64, u64) {
    let device = Arc::new(MemDevice::new(1 << 30));
    let options = || Options::default().cache_bytes(cache_bytes);
    Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    for from in (0..KEYS).step_by(1000) {
        let mut batch = Batch::new();
        (from..from + 1000).for_each(|i| _ = batch.put(key(i), value(i)));
        db.write(batch).unwrap();
    }
    db.settle().unwrap();
    db.close().unwrap();
    drop(db);
    let db = Db::open(device.clone(), options()).unwrap();
    // Far apart, and in an order that no readahead guesses.
    let hot = |n: u64| n.wrapping_mul(7919) % HOT * (KEYS / HOT);
    let mut last = 0;
    for _ in 0..=WARM_ROUNDS {
        let before = device.stats().reads;
        for n in 0..HOT {
            let i = hot(n);
            assert_eq!(db.get(&key(i)).unwrap().as_deref(), Some(&value(i)[..]));
        }
        last = device.stats().reads - before;
    }
    (last, db.stats().unwrap().cache_used)
}

#[test]
fn twenty_thousand_hot_values_are_answered_without_the_device() {
    for cache_mib in [128, 64] {
        let (reads, cached) = reads_of_hot_values(cache_mib << 20);
        println!("{cache_mib} MiB: {reads} reads for {HOT} hot values, {} MiB cached", cached >> 20);
        assert!(reads <= HOT / 100, "{cache_mib} MiB: {reads} reads for {HOT} values that were read before");
    }
}
