//! Upserts of one key that nothing combines pile up: each costs the same however many wait already, and reading
//! the key once costs one copy of its value.

#![allow(clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{expect, one_of_three_tries};
use bytes::Bytes;
use pando_db::{CreateOptions, Db, Merge, Options, device::MemDevice, patch};

/// Counts what it is given, and combines nothing.
struct Counter;

impl Merge for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let sum = old.map_or(0, number) + number(op);
        Some(Bytes::copy_from_slice(&sum.to_le_bytes()))
    }
}

fn store(options: Options) -> Db {
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    Db::open(device, options).unwrap()
}

/// Time of each of `count` calls, in nanoseconds.
fn each(count: u64, work: impl Fn(u64)) -> f64 {
    let begun = Instant::now();
    (0..count).for_each(work);
    begun.elapsed().as_nanos() as f64 / count as f64
}

#[test]
fn an_upsert_costs_the_same_however_many_wait() {
    // A reader beside shares the table, so that nothing can be changed in place.
    for shared in [false, true] {
        let time = |count: u64| {
            let db = store(Options::default().merge(Arc::new(Counter)));
            let snapshots = |i: u64| {
                if shared && i.is_multiple_of(64) {
                    drop(db.snapshot());
                }
            };
            // Of the calls for which half as many wait at least, the fastest 2,000: the machine may be busy.
            let mut fastest = f64::MAX;
            for from in (0..count).step_by(2_000) {
                let time = each(2_000, |i| {
                    snapshots(from + i);
                    db.upsert("n", 1u64.to_le_bytes().to_vec()).unwrap();
                });
                if from + 2_000 > count / 2 {
                    fastest = fastest.min(time);
                }
            }
            assert_eq!(db.get(b"n").unwrap().as_deref(), Some(&count.to_le_bytes()[..]));
            db.checkpoint().unwrap();
            assert_eq!(db.get(b"n").unwrap().as_deref(), Some(&count.to_le_bytes()[..]));
            fastest
        };
        let fastest = |count| (0..3).map(|_| time(count)).fold(f64::MAX, f64::min);
        let (few, many) = (fastest(2_000), fastest(64_000));
        println!("shared {shared}: {few:.0} ns each of 2,000, {many:.0} ns each of 64,000");
        assert!(many < 4.0 * few + 2_000.0, "{few:.0} ns each of 2,000, {many:.0} ns each of 64,000");
    }
}

/// Doubles the value.
struct Doubling;

impl Merge for Doubling {
    fn name(&self) -> &'static str {
        "doubling"
    }

    fn apply(&self, old: Option<&[u8]>, _: &[u8]) -> Option<Bytes> {
        Some(old.unwrap_or(b"x").repeat(2).into())
    }
}

/// A result beyond what a page can hold made its leaf unreadable, with all the keys beside it.
#[test]
fn a_result_that_is_too_long_leaves_the_value_as_it_was() {
    let device = Arc::new(MemDevice::new(1 << 30));
    let options = || Options::default().merge(Arc::new(Doubling));
    Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    (0..100).for_each(|i| db.put(format!("beside{i}"), "here").unwrap());
    db.put("grows", vec![7; 1 << 20]).unwrap();
    for round in 0..8 {
        db.upsert("grows", "").unwrap();
        if round % 3 == 0 {
            db.settle().unwrap();
        }
    }
    let check = |db: &Db| {
        assert_eq!(db.get(b"grows").unwrap().map(|value| value.len()), Some(pando_db::MAX_MERGED));
        assert_eq!(db.prefix(b"beside").map(Result::unwrap).count(), 100);
        assert!(db.check().unwrap().findings.is_empty());
    };
    check(&db);
    db.close().unwrap();
    check(&Db::open(device, options()).unwrap());
}

/// A database that writes two places of a block in turn.
#[test]
fn patches_of_two_places_in_turn_are_applied_in_one_copy() {
    const LEN: usize = 16 << 10;
    const PATCHES: u64 = 20_000;
    let db = store(Options::default());
    let mut expected = vec![0; LEN];
    db.put("block", expected.clone()).unwrap();
    db.checkpoint().unwrap();
    for i in 0..PATCHES {
        let at = if i % 2 == 0 { 100 } else { 9_000 };
        db.upsert("block", patch::write(at, &i.to_le_bytes())).unwrap();
        expected[at as usize..][..8].copy_from_slice(&i.to_le_bytes());
    }
    one_of_three_tries(|| {
        let begun = Instant::now();
        assert_eq!(db.get(b"block").unwrap().as_deref(), Some(&expected[..]));
        let took = begun.elapsed();
        // 20,000 copies of 16 KiB are 320 MB.
        println!("read in {took:?}");
        expect(took < Duration::from_millis(200), format!("{took:?}"))
    });
    db.checkpoint().unwrap();
    assert_eq!(db.get(b"block").unwrap().as_deref(), Some(&expected[..]));
}
