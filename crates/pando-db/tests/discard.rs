//! The host of an image gets back what is deleted in it.
#![allow(clippy::unwrap_used)]

use std::{
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use pando_db::{CreateOptions, Db, Options, device::FileDevice};
use std::sync::Arc;

const VALUES: u32 = 1500;
/// What the store keeps for itself: 32 MiB of log, 32 MiB of reserve, and pieces that are too small.
const KEPT: u64 = 72 << 20;

fn noise(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..100_000).map(|_| step()).collect()
}

fn host_bytes(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

fn options(discard: bool) -> Options {
    Options::default().discard(discard).cache_bytes(64 << 20)
}

fn open(path: &Path, discard: bool) -> Db {
    Db::open(Arc::new(FileDevice::open(path, false).unwrap()), options(discard)).unwrap()
}

fn created(path: &Path) {
    let device = Arc::new(FileDevice::create(path, 512 << 20, false).unwrap());
    let create = CreateOptions::default().node_size(256 << 10);
    Db::create(device, &create, &options(true)).unwrap();
}

fn fill(db: &Db) {
    for i in 0..VALUES {
        db.put(format!("d/{i:05}"), noise(i)).unwrap();
    }
    db.put("kept", noise(VALUES)).unwrap();
    db.checkpoint().unwrap();
}

/// Deletes are carried to where they free something when it is quiet.
fn wait_until_deleted(db: &Db) {
    let begun = Instant::now();
    while db.space().0 < 440 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", db.space());
        db.checkpoint().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_whole(db: &Db) {
    assert_eq!(db.get(b"kept").unwrap().unwrap(), noise(VALUES));
    assert!(db.prefix(b"d/").next().is_none());
    assert!(db.check().unwrap().findings.is_empty());
}

/// Whether files can have holes where the tests run.
fn punches(dir: &Path) -> bool {
    use pando_db::device::Device;
    let can = FileDevice::create(dir.join("probe"), 1 << 20, false).unwrap().discard(0, 1 << 20).unwrap();
    if !can {
        eprintln!("SKIPPED: no holes can be punched here");
    }
    can
}

#[test]
fn deleted_space_goes_back_to_the_host_while_the_store_is_open() {
    let dir = tempfile::tempdir().unwrap();
    if !punches(dir.path()) {
        return;
    }
    let path = dir.path().join("image");
    created(&path);
    let db = open(&path, true);
    fill(&db);
    let full = host_bytes(&path);
    assert!(full > 150_000_000, "{full}");
    db.delete_prefix("d/").unwrap();
    let begun = Instant::now();
    while host_bytes(&path) > KEPT {
        let bytes = host_bytes(&path);
        assert!(begun.elapsed() < Duration::from_secs(100), "{bytes} of {full} bytes are on the host still");
        db.checkpoint().unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(db.stats().unwrap().device.discard_bytes > 100_000_000);
    is_whole(&db);
    db.close().unwrap();
    drop(db);
    is_whole(&open(&path, true));
}

#[test]
fn closing_gives_back_what_is_free() {
    let dir = tempfile::tempdir().unwrap();
    if !punches(dir.path()) {
        return;
    }
    let path = dir.path().join("image");
    created(&path);
    let db = open(&path, true);
    fill(&db);
    db.close().unwrap();
    drop(db);
    let full = host_bytes(&path);
    assert!((150_000_000..250_000_000).contains(&full), "{full}");
    // Written by an earlier process, deleted by this one.
    let db = open(&path, true);
    db.delete_prefix("d/").unwrap();
    wait_until_deleted(&db);
    db.close().unwrap();
    drop(db);
    assert!(host_bytes(&path) < KEPT, "{}", host_bytes(&path));
    is_whole(&open(&path, true));
}

#[test]
fn without_discards_space_stays_until_a_store_is_opened_with_them() {
    let dir = tempfile::tempdir().unwrap();
    if !punches(dir.path()) {
        return;
    }
    let path = dir.path().join("image");
    created(&path);
    let db = open(&path, false);
    fill(&db);
    db.delete_prefix("d/").unwrap();
    wait_until_deleted(&db);
    assert_eq!(db.stats().unwrap().device.discards, 0);
    db.close().unwrap();
    drop(db);
    assert!(host_bytes(&path) > 150_000_000);
    let db = open(&path, true);
    db.put("new", "value").unwrap();
    db.close().unwrap();
    drop(db);
    assert!(host_bytes(&path) < KEPT, "{}", host_bytes(&path));
    let db = open(&path, true);
    is_whole(&db);
    assert_eq!(db.get(b"new").unwrap().unwrap(), "value");
}
