//! What a leaf takes in: how it is read for that.
//!
//! Deletes, because these can be asked to go down at once. The same in both forms, with pages as large as they get.

use crate::setup::{Cost, MIB, Store, key, load, page_bytes, turn};

const COUNT: u64 = 100_000;

/// What it costs to carry deletes of these keys down into 16 leaves or so, their headers being in memory.
fn carry_down(keys: impl Iterator<Item = u64>) -> (u64, Cost) {
    let mut store = Store::new(MIB, 64 * MIB);
    load(&store.db, "t/", COUNT, 100);
    store.reopen();
    let leaves = store.db.stats().unwrap().nodes_by_height[0];
    store.db.usage(b"").unwrap();
    let cost = store.during(|db| {
        keys.for_each(|i| db.delete(key("t/", i)).unwrap());
        db.settle().unwrap();
    });
    (leaves, cost)
}

#[test]
fn a_leaf_that_changes_all_over_is_read_with_few_requests() {
    let _turn = turn();
    let (leaves, cost) = carry_down((0..COUNT).step_by(37));
    println!("deletes all over {leaves} leaves: {cost}");
    let pages = leaves * MIB / page_bytes(MIB);
    assert!(cost.read_bytes >= pages / 2 * page_bytes(MIB), "not all of it was read: is it there still?");
    assert!(cost.reads <= 4 * leaves, "4 reads a leaf would do; pages: {pages}");
}

/// The rest of the leaf is copied when it is written, a run of pages with one request.
#[test]
fn a_leaf_that_changes_in_places_is_read_once() {
    let _turn = turn();
    const TOGETHER: u64 = 20;
    const APART: u64 = 5_000;
    let (leaves, cost) = carry_down((0..COUNT).filter(|i| i % APART < TOGETHER));
    let places = COUNT / APART;
    println!("deletes in {places} places of {leaves} leaves: {cost}");
    assert!(cost.read_bytes <= leaves * MIB + 2 * places * page_bytes(MIB), "pages were read twice");
    assert!(cost.reads <= 3 * places + 2 * leaves, "3 reads a place and 2 a leaf would do");
}
