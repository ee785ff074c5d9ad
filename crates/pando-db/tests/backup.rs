//! Backups: what goes in comes out, and nothing else is taken for one.
#![allow(clippy::unwrap_used)]

use std::{
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use bytes::Bytes;
use pando_db::{
    Backup, CreateOptions, Db, Error, MAX_VALUE, Merge, Options, Snapshot,
    device::{Device, FailMode, MemDevice, SimDevice},
    patch,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn options() -> Options {
    Options::default().background(false).memtable_bytes(32 << 10)
}

fn small() -> CreateOptions {
    CreateOptions::default().node_size(16 << 10)
}

fn store(size: u64) -> Db {
    let device = Arc::new(MemDevice::new(size));
    Db::create(device.clone(), &small(), &options()).unwrap();
    Db::open(device, options()).unwrap()
}

/// A store with clones, deletes, upserts, odd keys and a few large values.
fn history(seed: u64) -> Db {
    let db = store(64 << 20);
    let mut rng = StdRng::seed_from_u64(seed);
    for n in 0..3000u32 {
        let len = rng.random_range(0..300);
        db.put(format!("a/{:05}", n * 7 % 3001), vec![n as u8; len]).unwrap();
    }
    db.put("", "the empty key").unwrap();
    db.put(vec![0xff; 100], "").unwrap();
    db.put(vec![b'k'; pando_db::MAX_KEY], "long key").unwrap();
    db.put("large", (0..900_000).map(|_| rng.random()).collect::<Vec<u8>>()).unwrap();
    db.clone_prefix("a/", "b/").unwrap();
    db.delete_prefix("a/02").unwrap();
    for n in 0..500u32 {
        db.upsert(format!("b/{:05}", n * 5), patch::write(3, b"changed")).unwrap();
    }
    db
}

fn pairs(snapshot: &Snapshot) -> Vec<(Bytes, Bytes)> {
    snapshot.range(b"", None).map(Result::unwrap).collect()
}

fn stream(snapshot: &Snapshot) -> Vec<u8> {
    let mut out = Vec::new();
    let report = snapshot.backup(&mut out).unwrap();
    assert_eq!(report.stream_bytes, out.len() as u64);
    out
}

/// Restores and opens; the device, whatever came of it.
fn restored(stream: impl Read) -> (Arc<MemDevice>, Result<Db, Error>) {
    let device = Arc::new(MemDevice::new(64 << 20));
    let result = Db::restore(device.clone(), stream, &small(), &options());
    let db = result.and_then(|_| Db::open(device.clone(), options()));
    (device, db)
}

fn is_no_store(device: &Arc<MemDevice>) -> bool {
    matches!(Db::open(device.clone(), options()), Err(Error::Format(_)))
}

/// Where the blocks of a stream begin, by the format's own description; and its end.
fn blocks(stream: &[u8]) -> Vec<usize> {
    let mut starts = vec![0, 88];
    while let Some(&at) = starts.last().filter(|at| **at < stream.len()) {
        let len = u32::from_le_bytes(stream[at + 12..at + 16].try_into().unwrap());
        starts.push(at + 24 + len as usize);
    }
    assert_eq!(starts.last(), Some(&stream.len()));
    starts
}

#[test]
fn what_goes_in_comes_out() {
    let db = history(1);
    let snapshot = db.snapshot();
    let before = pairs(&snapshot);
    let stream = stream(&snapshot);
    let backup = Backup::open(&stream[..]).unwrap();
    assert_eq!((backup.merge(), backup.node_size()), ("patch", 16 << 10));
    assert_eq!(backup.batch(), db.stats().unwrap().msn);
    let (device, copy) = restored(&stream[..]);
    let copy = copy.unwrap();
    assert_eq!(pairs(&copy.snapshot()), before);
    assert!(copy.check().unwrap().findings.is_empty());
    copy.put("new", "x").unwrap();
    copy.close().unwrap();
    drop(copy);
    assert_eq!(Db::open(device, options()).unwrap().get(b"new").unwrap().unwrap(), "x");
    // The same pairs give the same blocks.
    let (_, again) = restored(&stream[..]);
    let mut second = Vec::new();
    again.unwrap().snapshot().backup(&mut second).unwrap();
    assert_eq!(blocks(&second), blocks(&stream));
}

#[test]
fn an_empty_store_has_a_backup_too() {
    let stream = stream(&store(16 << 20).snapshot());
    assert_eq!(blocks(&stream).len(), 3);
    let (_, db) = restored(&stream[..]);
    assert_eq!(pairs(&db.unwrap().snapshot()), []);
}

#[test]
fn a_stream_that_was_cut_is_no_backup() {
    let stream = stream(&history(2).snapshot());
    let starts = blocks(&stream);
    assert!(starts.len() > 6, "{}", starts.len());
    let inside = starts.windows(2).flat_map(|w| [w[0], w[0] + 1, w[0] + 23, (w[0] + w[1]) / 2, w[1] - 1]);
    for cut in inside.filter(|cut| *cut < stream.len()) {
        let (device, db) = restored(&stream[..cut]);
        match db {
            Err(Error::Corrupt { what: "backup", detail, .. }) => {
                assert!(detail.contains("ends in the middle"))
            }
            other => panic!("cut at {cut}: {other:?}"),
        }
        assert!(is_no_store(&device), "cut at {cut}");
    }
    let longer = [&stream[..], b"x"].concat();
    assert!(matches!(restored(&longer[..]), (_, Err(Error::Corrupt { .. }))));
}

#[test]
fn no_byte_can_change_and_no_block_can_move() {
    let stream = stream(&history(3).snapshot());
    let starts = blocks(&stream);
    let mut rng = StdRng::seed_from_u64(9);
    let heads = starts.iter().flat_map(|at| *at..*at + 24);
    let mut places: Vec<usize> = (0..88).chain(heads).filter(|at| *at < stream.len()).collect();
    places.extend((0..60).map(|_| rng.random_range(0..stream.len())));
    for at in places {
        let mut bad = stream.clone();
        bad[at] ^= 1 << rng.random_range(0..8);
        let (device, db) = restored(&bad[..]);
        assert!(matches!(db, Err(Error::Corrupt { .. } | Error::Format(_))), "byte {at}: {db:?}");
        assert!(is_no_store(&device), "byte {at}");
    }
    // Whole blocks left out, twice, and exchanged.
    let block = |i: usize| &stream[starts[i]..starts[i + 1]];
    let all: Vec<&[u8]> = (0..starts.len() - 1).map(block).collect();
    for i in 1..all.len() - 2 {
        let mut missing = all.clone();
        missing.remove(i);
        let mut twice = all.clone();
        twice.insert(i, all[i]);
        let mut exchanged = all.clone();
        exchanged.swap(i, i + 1);
        for bad in [missing, twice, exchanged] {
            let (device, db) = restored(&bad.concat()[..]);
            assert!(matches!(db, Err(Error::Corrupt { .. })), "block {i}: {db:?}");
            assert!(is_no_store(&device));
        }
    }
}

#[test]
fn what_is_no_backup_is_said_to_be_none() {
    assert!(matches!(restored(&[b'x'; 500][..]), (_, Err(Error::Format(_)))));
    assert!(matches!(restored(io::empty()), (_, Err(Error::Corrupt { .. }))));
    struct Other;
    impl pando_db::Merge for Other {
        fn name(&self) -> &'static str {
            "other"
        }
        fn apply(&self, _: Option<&[u8]>, _: &[u8]) -> Option<Bytes> {
            None
        }
    }
    let stream = stream(&store(16 << 20).snapshot());
    let device = Arc::new(MemDevice::new(16 << 20));
    let options = options().merge(Arc::new(Other));
    let error = Db::restore(device, &stream[..], &small(), &options).unwrap_err().to_string();
    assert!(error.contains("patch") && error.contains("other"), "{error}");
}

#[test]
fn a_device_that_is_too_small_is_left_without_a_store() {
    let stream = stream(&history(4).snapshot());
    let device = Arc::new(MemDevice::new(2 << 20));
    // What was there before is gone as well.
    Db::create(device.clone(), &small(), &options()).unwrap();
    let result = Db::restore(device.clone(), &stream[..], &small(), &options());
    assert!(matches!(result, Err(Error::NoSpace)), "{result:?}");
    assert!(is_no_store(&device));
}

#[test]
fn a_crash_while_restoring_leaves_no_store_or_all_of_it() {
    let db = store(16 << 20);
    for n in 0..300 {
        db.put(format!("{n:04}"), vec![n as u8; 500]).unwrap();
    }
    let (snapshot, mut whole, mut none) = (db.snapshot(), 0, 0);
    let stream = stream(&snapshot);
    let mut at = 0;
    loop {
        let device = Arc::new(SimDevice::new(8 << 20, at));
        device.set_fail_at(Some(at), FailMode::Onwards);
        let done = Db::restore(device.clone(), &stream[..], &small(), &options()).is_ok();
        match Db::open(device.reopen(), options()) {
            Ok(copy) => {
                assert_eq!(pairs(&copy.snapshot()), pairs(&snapshot), "request {at}");
                whole += 1;
            }
            Err(Error::Format(_)) if !done => none += 1,
            Err(Error::Corrupt { what: "superblock", .. }) if !done => none += 1,
            Err(other) => panic!("request {at}: {other}"),
        }
        if done {
            break;
        }
        at += 1;
    }
    assert!(none > 10 && whole > 0, "{none} {whole}");
}

#[test]
fn writers_do_not_disturb_a_backup() {
    let db = Arc::new(store(64 << 20));
    for n in 0..5000u32 {
        db.put(format!("{n:06}"), vec![1; 100]).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (db, stop) = (db.clone(), stop.clone());
        move || {
            let mut rounds = 0u32;
            while !stop.load(Ordering::Relaxed) {
                db.put(format!("{:06}", rounds * 13 % 6000), vec![2; 90]).unwrap();
                if rounds.is_multiple_of(500) {
                    db.clone_prefix("00", "c").unwrap();
                    db.checkpoint().unwrap();
                }
                rounds += 1;
            }
            rounds
        }
    });
    for _ in 0..5 {
        let snapshot = db.snapshot();
        let before = pairs(&snapshot);
        // A slow receiver: the store changes a lot before the last block is written.
        struct Slow(Vec<u8>);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                thread::sleep(std::time::Duration::from_millis(2));
                self.0.write(&bytes[..bytes.len().min(32 << 10)])
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut slow = Slow(Vec::new());
        snapshot.backup(&mut slow).unwrap();
        let (_, copy) = restored(&slow.0[..]);
        assert!(pairs(&copy.unwrap().snapshot()) == before);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 100);
}

#[test]
fn errors_of_the_other_side_are_passed_on() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let db = store(16 << 20);
    db.put("a", "b").unwrap();
    assert!(matches!(db.snapshot().backup(Full), Err(Error::Io { action: "write of the backup", .. })));
    let good = stream(&db.snapshot());
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let (device, result) = restored(good[..100].chain(Broken));
    assert!(matches!(result, Err(Error::Io { action: "read of the backup", .. })), "{result:?}");
    assert!(is_no_store(&device) && device.size() > 0);
}

/// Makes values longer and longer.
struct Appending;

impl Merge for Appending {
    fn name(&self) -> &'static str {
        "append"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        Some([old.unwrap_or_default(), op].concat().into())
    }

    fn combine(&self, _: &[u8], _: &[u8]) -> Option<Bytes> {
        None
    }
}

/// Upserts may make a value longer than a call takes, and a store with a larger log has longer ones. The backup was
/// made, and said nothing; restoring it was refused.
#[test]
fn values_that_are_longer_than_a_call_takes_restore() {
    let appending = || options().merge(Arc::new(Appending));
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &small(), &appending()).unwrap();
    let db = Db::open(device, appending()).unwrap();
    for n in 0..6u8 {
        db.upsert("grows", vec![n; 1_000_000]).unwrap();
        db.put(format!("long {n}"), vec![n; 3_000_000]).unwrap();
        db.put(format!("short {n}"), vec![n; 300]).unwrap();
    }
    let before = pairs(&db.snapshot());
    assert!(before[0].1.len() > MAX_VALUE);
    let stream = stream(&db.snapshot());
    // With a log of 64 KiB, of which a batch takes a quarter.
    let create = small().log_size(64 << 10);
    let device = Arc::new(MemDevice::new(64 << 20));
    let report = Db::restore(device.clone(), &stream[..], &create, &appending()).unwrap();
    assert_eq!(report.pairs, before.len() as u64);
    let copy = Db::open(device.clone(), appending()).unwrap();
    assert!(pairs(&copy.snapshot()) == before, "other pairs came out");
    assert!(copy.check().unwrap().findings.is_empty());
    // It is a store like any other, and keeps to the limits.
    assert!(matches!(copy.put("a", vec![1; 3_000_000]), Err(Error::TooLarge { .. })));
    copy.put("a", vec![1; 3000]).unwrap();
    copy.sync().unwrap();
    drop(copy);
    let copy = Db::open(device, appending()).unwrap();
    assert_eq!(copy.get(b"a").unwrap().unwrap().len(), 3000);
    assert_eq!(copy.range(b"", None).count(), before.len() + 1);
}

/// The superblocks were overwritten before anybody was asked.
#[test]
fn restoring_onto_a_store_that_is_in_use_is_refused_and_harms_nothing() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Db::create(device.clone(), &small(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    db.put("here", "before").unwrap();
    let stream = stream(&history(3).snapshot());
    let restore = |create: &CreateOptions| Db::restore(device.clone(), &stream[..], create, &options());
    assert!(matches!(restore(&small()), Err(Error::Locked)));
    db.put("and", "after").unwrap();
    db.sync().unwrap();
    drop(db);
    // Nor do options that no store can be made with.
    for create in [small().node_size(1), small().log_size(1), small().log_size(64 << 20)] {
        assert!(matches!(restore(&create), Err(Error::Invalid(_))));
    }
    let db = Db::open(device.clone(), options()).unwrap();
    assert_eq!(db.range(b"", None).count(), 2);
    // Both at once can only be one after the other.
    drop(db);
    restore(&small()).unwrap();
    assert!(Db::open(device.clone(), options()).unwrap().range(b"", None).count() > 3000);
}
