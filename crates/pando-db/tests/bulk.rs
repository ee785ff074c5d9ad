//! Data that comes in bulk is written once, and is there after a crash.
#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use crate::model::rng::Rng;
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{Device, DeviceCall, FileDevice, HookedDevice, MemDevice},
};

const NODE: u32 = 1 << 20;

fn options() -> Options {
    Options::default().background(false).memtable_bytes(4 << 20)
}

fn store(size: u64) -> (Arc<MemDevice>, Db) {
    let device = Arc::new(MemDevice::new(size));
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    (device, db)
}

/// Bytes that no compression makes shorter.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    Rng(seed).noise(len)
}

/// Device bytes per user byte of a sequential load, checkpoints included.
fn load(value: usize, total: usize) -> f64 {
    let (device, db) = store(4 * total as u64 + (16 << 20));
    let before = device.stats().write_bytes;
    let count = total / value;
    for i in 0..count {
        db.put(format!("file/{i:08}"), noise(i as u64, value)).unwrap();
        if i % (1 << 20).max(4 * value).div_euclid(value) == 0 {
            db.sync().unwrap();
        }
    }
    db.checkpoint().unwrap();
    let ratio = (device.stats().write_bytes - before) as f64 / (count * value) as f64;
    for i in (0..count).step_by(7) {
        assert_eq!(db.get(format!("file/{i:08}").as_bytes()).unwrap().unwrap(), noise(i as u64, value));
    }
    assert!(db.check().unwrap().findings.is_empty());
    ratio
}

/// A value that moves while it waits in memory is the same value at the same place in the order: only its key tells that
/// the page that was written for it must not be taken.
#[test]
fn a_value_that_was_moved_does_not_come_back_under_its_old_key() {
    let (_, db) = store(64 << 20);
    let mut batch = Batch::new();
    (0..40).for_each(|i| _ = batch.put(format!("k{i:02}"), noise(i, 3000)));
    db.write(batch).unwrap();
    db.sync().unwrap();
    db.rename_prefix("k05", "k04x").unwrap();
    db.checkpoint().unwrap();
    assert!(db.get(b"k05").unwrap().is_none());
    assert!(db.get(b"k04x").unwrap().unwrap() == noise(5, 3000));
}

#[test]
fn a_sequential_load_is_written_once() {
    for value in [4 << 10, 16 << 10, 128 << 10] {
        let ratio = load(value, 128 << 20);
        println!("values of {value} bytes: {ratio:.3} device bytes per user byte");
        assert!(ratio < 1.1, "values of {value} bytes: {ratio:.3}");
    }
}

/// Memory of the cache after 64 MiB of values of so many bytes, and what reading the last and the first 2 MiB of them
/// twice takes, in requests.
fn cached_after_writing(value: usize, options: Options) -> (u64, [u64; 4]) {
    let (all, part) = ((64 << 20) / value as u64, (2 << 20) / value as u64);
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    for i in 0..all {
        db.put(format!("file/{i:08}"), noise(i, value)).unwrap();
    }
    db.settle().unwrap();
    let cached = db.stats().unwrap().cache_used;
    let reads = [all - part..all, all - part..all, 0..part, 0..part].map(|range| {
        let before = device.stats().reads;
        for i in range {
            assert_eq!(db.get(format!("file/{i:08}").as_bytes()).unwrap().unwrap(), noise(i, value));
        }
        device.stats().reads - before
    });
    assert!(db.check().unwrap().findings.is_empty());
    (cached, reads)
}

/// The kernel keeps what is written into a mount: what the store keeps of it too made the process grow by all that was
/// written, and most of the time of a write was spent on memory that was new to it. Pages of a value or two, as large
/// files have them, take an eighth of the bound.
#[test]
fn pages_that_were_only_written_have_a_bound() {
    // Leaves of short values are written by checkpoints too, and what these write is kept as ever.
    for (value, bound, most) in [(4 << 10, 4 << 20, 12 << 20), (16 << 10, 32 << 20, 6 << 20)] {
        let (cached, reads) = cached_after_writing(value, options().written_bytes(bound));
        println!("values of {value}, a bound of {bound}: {cached} bytes, reads {reads:?}");
        assert!(cached < most, "{cached} bytes in the cache");
        assert_eq!(reads[..2], [0, 0], "what was written last is there");
        assert!(reads[2] > 0 && reads[3] == 0, "what was read stays, whatever the bound: {reads:?}");
    }
    let (cached, reads) = cached_after_writing(16 << 10, options());
    println!("without: {cached} bytes, reads {reads:?}");
    assert!(cached > 64 << 20 && reads == [0; 4], "without a bound all of it is there: {cached}, {reads:?}");
}

/// What somebody above keeps is not kept by the store when it is read once, in order, by long requests: no memory that is
/// new to the process, and no copy. What is read again not long after is.
#[test]
fn long_reads_for_a_caller_who_keeps_them_leave_the_cache_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let device = FileDevice::create(&path, 256 << 20, false).unwrap().with_direct_io();
    if !device.is_direct() {
        println!("no direct requests to {}: nothing is lent", path.display());
        return;
    }
    let options = options().written_bytes(4 << 20).codec(pando_db::Codec::None);
    let device = Arc::new(device);
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE), &options).unwrap();
    let db = Db::open(device.clone(), options.clone()).unwrap();
    for i in 0..2048 {
        db.put(format!("file/{i:08}"), noise(i, 16 << 10)).unwrap();
    }
    db.close().unwrap();
    drop(db);
    let db = Db::open(device.clone(), options).unwrap();
    let read = || {
        let before = device.stats().read_bytes;
        for first in (0..2048).step_by(64) {
            let keys = [first, first + 64].map(|i| format!("file/{i:08}"));
            let pairs = db.range(keys[0].as_bytes(), Some(keys[1].as_bytes())).take_all();
            let pairs: Vec<_> = pairs.collect::<pando_db::Result<_>>().unwrap();
            assert_eq!(pairs.len(), 64);
            for (i, (_, value)) in (first..).zip(pairs) {
                assert_eq!(value, noise(i, 16 << 10));
            }
        }
        (device.stats().read_bytes - before, db.stats().unwrap().cache_used)
    };
    let passes = [read(), read(), read()];
    println!("bytes read, and bytes in the cache: {passes:?}");
    assert!(passes[0].0 >= 32 << 20 && passes[0].1 < 12 << 20, "the first pass is kept: {passes:?}");
    assert!(passes[1].1 > 24 << 20, "the second pass is not kept: {passes:?}");
    assert!(passes[2].0 < 4 << 20, "the third pass is read: {passes:?}");
}

#[test]
fn bulk_data_is_there_after_a_crash_and_after_what_follows() {
    let (device, db) = store(64 << 20);
    let value = |i: u64| noise(i, 3000);
    for i in 0..400 {
        db.put(format!("a/{:04}", i * 7919 % 400), value(i * 7919 % 400)).unwrap();
    }
    db.clone_prefix("a/", "b/").unwrap();
    db.sync().unwrap();
    // Not closed: all that is on the device is the log and what it names.
    drop(db);
    for round in 0..3 {
        let db = Db::open(device.clone(), options()).unwrap();
        for i in 0..400 {
            for tree in ["a", "b"] {
                let found = db.get(format!("{tree}/{i:04}").as_bytes()).unwrap();
                assert_eq!(found.as_deref(), Some(&value(i)[..]), "{tree}/{i:04} in round {round}");
            }
        }
        for i in 0..100 {
            db.put(format!("c/{round}/{i}"), value(i)).unwrap();
        }
        db.delete_prefix("c/").unwrap();
        db.checkpoint().unwrap();
        assert!(db.check().unwrap().findings.is_empty());
    }
}

#[test]
fn space_of_bulk_data_comes_back() {
    let (_, db) = store(64 << 20);
    for round in 0..12 {
        for i in 0..300 {
            db.put(format!("d/{i:04}"), noise(i, 40_000)).unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        db.sync().unwrap();
        assert!(db.stats().unwrap().used > 12_000_000);
        db.delete_prefix("d/").unwrap();
    }
    assert!(db.check().unwrap().findings.is_empty());
}

#[test]
fn values_overwritten_at_random_do_not_keep_what_they_replace() {
    let (_, db) = store(96 << 20);
    let mut at = 1u64;
    let user = 512 * 16_000;
    for i in 0..6000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        db.put(format!("v/{:04}", (at >> 33) % 512), noise(i, 16_000)).unwrap();
        if i % 50 == 0 {
            db.sync().unwrap();
        }
    }
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats().unwrap();
    let used = stats.used - stats.log_size;
    assert!(used < user * 3, "{used} bytes used for {user} visible");
}

/// A device in memory that takes its time for long writes.
fn slow(size: u64) -> Arc<HookedDevice> {
    let device = HookedDevice::new(Arc::new(MemDevice::new(size)), false, |call| {
        if matches!(call, DeviceCall::Write(range) if range.end - range.start >= 64 << 10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    Arc::new(device)
}

/// While one thread placed values, another did not know that there were any to wait for: a table became a layer with
/// values in it that had just been written, and they were written again.
#[test]
fn values_are_written_once_while_others_are_placed() {
    const BATCH: u64 = 800;
    let total = 20 * BATCH * 4096;
    let device = slow(256 << 20);
    let options = options().background(true).memtable_bytes(2 << 20);
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    let before = device.stats().write_bytes;
    for chunk in 0..total / (4096 * BATCH) {
        // More than a table holds: it is sealed by the write, and flushed while the sync places the values.
        let mut batch = Batch::new();
        for i in chunk * BATCH..(chunk + 1) * BATCH {
            batch.put(format!("file/{i:08}"), noise(i, 4096));
        }
        db.write(batch).unwrap();
        db.sync().unwrap();
    }
    db.checkpoint().unwrap();
    let ratio = (device.stats().write_bytes - before) as f64 / total as f64;
    assert!(ratio < 1.15, "{ratio:.2} device bytes per user byte");
    assert!(db.check().unwrap().findings.is_empty());
    db.close().unwrap();
}
