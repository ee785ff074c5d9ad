//! A check of the whole store reads everything once, by long requests, in whatever order it was written.
//!
//! The number of values is the same in both forms.

use crate::setup::{KIB, MIB, Rng, Store, key, turn};

/// Bytes that a request of the check reads at least on average.
const MIN_REQUEST_BYTES: u64 = 128 * KIB;

#[test]
fn a_check_reads_all_once_by_long_requests() {
    let _turn = turn();
    const TREES: u64 = 8;
    const VALUE: u64 = 48 * KIB;
    let mut store = Store::new(MIB, 16 * MIB);
    // As from programs that write files side by side: neighbours on the device are none in the order of keys.
    let count = 64 * MIB / VALUE;
    let mut rng = Rng(5);
    for i in 0..count {
        store.db.put(key(&format!("t{}/", i % TREES), i), rng.noise(VALUE as usize)).unwrap();
    }
    store.db.settle().unwrap();
    store.reopen();
    let cost = store.during(|db| assert!(db.check().unwrap().findings.is_empty()));
    println!("check of {count} values of {VALUE} B: {cost}");
    assert!(cost.read_bytes >= count * VALUE, "not all was read: {cost}");
    assert!(cost.read_bytes <= store.used() * 21 / 20, "some was read twice, of {} B: {cost}", store.used());
    assert!(cost.read_bytes / cost.reads >= MIN_REQUEST_BYTES, "{cost}");
}
