//! Pages of full size, whose memory comes from a pool: what one page has left in a buffer must never show in another.
//!
//! Most tests have tiny nodes, whose pages are too small for the pool. Here are nodes of the usual size, data of several
//! times the cache, and values that say themselves what they must be: a writer, two readers and a scan go on at once, so that
//! buffers come and go in all threads. In debug builds a fresh buffer holds a pattern instead of what was there before.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use pando_db::{Batch, Codec, CreateOptions, Db, Options, device::MemDevice};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const KEYS: u32 = 30_000;
const BATCHES: u32 = 250;
const BATCH: u32 = 200;
const CACHE: u64 = 2 << 20;

fn key(i: u32) -> Vec<u8> {
    format!("tree/{i:06}").into_bytes()
}

/// The value of a key in a version: what it is of, and bytes that follow from that. Some compress, some do not, and a
/// few are so long that they are set aside.
fn value(i: u32, version: u32) -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(u64::from(i) << 32 | u64::from(version));
    let len = if rng.random_range(0..200) == 0 { 3000 } else { rng.random_range(0..500) };
    let mut value = [i.to_le_bytes(), version.to_le_bytes()].concat();
    match rng.random() {
        true => value.extend((0..len).map(|_| rng.random::<u8>())),
        false => value.extend((0..len).map(|at| (at % 7) as u8 ^ version as u8)),
    }
    value
}

/// The version of a value of key `i`, which must be as it was written.
fn version_of(i: u32, found: &[u8]) -> u32 {
    let version = u32::from_le_bytes(found[4..8].try_into().unwrap());
    assert!(found == value(i, version), "key {i}, version {version}: not what was written");
    version
}

/// Ends the readers also where the writer fails: else a failure would be a test without end.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run(codec: Codec) {
    let options = || Options::default().cache_bytes(CACHE).codec(codec);
    let device = Arc::new(MemDevice::new(512 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    for chunk in 0..KEYS / 1000 {
        let mut batch = Batch::new();
        (chunk * 1000..(chunk + 1) * 1000).for_each(|i| _ = batch.put(key(i), value(i, 0)));
        db.write(batch).unwrap();
    }
    let mut newest = vec![0; KEYS as usize];
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 0..2 {
            let (db, stop, reads) = (&db, &stop, &reads);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed);
                while !stop.load(Ordering::Relaxed) {
                    let i = rng.random_range(0..KEYS);
                    version_of(i, &db.get(&key(i)).unwrap().unwrap());
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut i = 0;
                let mut pairs = db.prefix(b"tree/");
                while let Some((found, value)) = pairs.next_ref().unwrap() {
                    assert_eq!(found, key(i));
                    version_of(i, value);
                    i += 1;
                }
                assert_eq!(i, KEYS);
            }
        });
        let _stops = Stops(&stop);
        let mut rng = SmallRng::seed_from_u64(9);
        for version in 1..=BATCHES {
            let mut batch = Batch::new();
            for _ in 0..BATCH {
                let i = rng.random_range(0..KEYS);
                batch.put(key(i), value(i, version));
                newest[i as usize] = version;
            }
            db.write(batch).unwrap();
            if version % 50 == 0 {
                db.checkpoint().unwrap();
            }
        }
    });
    assert!(reads.into_inner() > 100);
    assert!(db.stats().unwrap().page_memory > CACHE / 4, "the pool is not used");
    db.close().unwrap();
    drop(db);
    let db = Db::open(device, options()).unwrap();
    let report = db.check().unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    for i in 0..KEYS {
        assert_eq!(version_of(i, &db.get(&key(i)).unwrap().unwrap()), newest[i as usize]);
    }
    db.close().unwrap();
}

#[test]
fn pages_as_they_are() {
    run(Codec::None);
}

#[test]
fn pages_that_are_unpacked() {
    run(Codec::Lz4);
}

#[test]
fn pages_that_are_unpacked_by_zstd() {
    run(Codec::Zstd(1));
}
