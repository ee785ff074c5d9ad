//! A page that cannot be read costs what lies on it, and nothing else.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use pando_db::{
    Backup, Batch, CreateOptions, Db, EdgeInfo, Error, InspectOptions, NodeInfo, Options, PathInfo,
    device::{Device, DeviceCall, HookedDevice, MemDevice},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SIZE: u64 = 64 << 20;

fn options() -> Options {
    Options::default().background(false).memtable_bytes(16 << 10).cache_bytes(1 << 20)
}

struct Store {
    device: Arc<MemDevice>,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    rng: StdRng,
}

impl Store {
    /// A store of `count` values of `len` bytes that was closed.
    fn new(node_size: u32, count: u32, len: usize, seed: u64) -> Self {
        let device = Arc::new(MemDevice::new(SIZE));
        let create = CreateOptions::default().node_size(node_size);
        Db::create(device.clone(), &create, &options()).unwrap();
        let mut store = Store { device, pairs: BTreeMap::new(), rng: StdRng::seed_from_u64(seed) };
        let db = store.open();
        (0..count).for_each(|i| store.put(&db, key(i), len));
        db.close().unwrap();
        store
    }

    fn open(&self) -> Db {
        Db::open(self.device.clone(), options()).unwrap()
    }

    fn put(&mut self, db: &Db, key: Vec<u8>, len: usize) {
        let value: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        db.put(key.clone(), value.clone()).unwrap();
        self.pairs.insert(key, value);
    }

    /// Flips a bit wherever the value of `key` lies.
    fn damage(&self, key: &[u8]) {
        let value = &self.pairs[key];
        let mut image = vec![0; SIZE as usize];
        self.device.read_at(0, &mut image).unwrap();
        let mut hit = 0;
        let mut from = 0;
        while let Some(at) = memchr_like(&image[from..], value) {
            let at = (from + at) as u64;
            self.device.write_at(at, &[image[at as usize] ^ 4]).unwrap();
            (hit, from) = (hit + 1, at as usize + 1);
        }
        assert!(hit > 0, "the value is nowhere");
    }

    /// The keys that cannot be read, each other one verified.
    fn unreadable(&self, db: &Db) -> Vec<Vec<u8>> {
        let mut bad = Vec::new();
        for (key, value) in &self.pairs {
            match db.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..]), "{}", key.escape_ascii()),
                Err(Error::Corrupt { .. }) => bad.push(key.clone()),
                Err(other) => panic!("{other}"),
            }
        }
        bad
    }
}

fn memchr_like(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = needle[0];
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|byte| *byte == first) {
        if haystack[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn key(i: u32) -> Vec<u8> {
    format!("k/{i:06}").into_bytes()
}

/// One page of one leaf: flushes, checkpoints, a replay of the log and closing go on.
#[test]
fn a_bad_leaf_page_does_not_stop_the_store() {
    for (node_size, seed) in [(4096, 1), (16 << 10, 2), (64 << 10, 3)] {
        let mut store = Store::new(node_size, 6000, 100, seed);
        store.damage(&key(3000));
        let db = store.open();
        for _ in 0..4000 {
            let i = store.rng.random_range(0..6000);
            store.put(&db, key(i), 100);
        }
        db.checkpoint().unwrap();
        let bad = store.unreadable(&db);
        assert!(bad.len() < 400, "{} keys are lost", bad.len());
        // What was put since is there, also under keys of the page.
        store.put(&db, key(3000), 100);
        assert!(!store.unreadable(&db).contains(&key(3000)));
        db.checkpoint().unwrap();
        // With a log to replay.
        for i in (0..6000).step_by(5) {
            store.put(&db, key(i), 100);
        }
        db.sync().unwrap();
        drop(db);
        let db = store.open();
        let still = store.unreadable(&db);
        assert!(still.iter().all(|key| bad.contains(key)), "more has become unreadable");
        db.close().unwrap();
        // A delete that covers it all heals it.
        let db = store.open();
        db.delete_prefix("k/").unwrap();
        db.settle().unwrap();
        assert_eq!(db.range(b"", None).count(), 0);
        assert!(db.check().unwrap().findings.is_empty());
        db.close().unwrap();
    }
}

/// A delete of the keys of the page alone, and puts that follow it.
#[test]
fn a_delete_over_a_bad_page_heals_it() {
    let mut store = Store::new(16 << 10, 4000, 100, 4);
    store.damage(&key(2000));
    let db = store.open();
    let bad = store.unreadable(&db);
    let (first, last) = (bad.first().unwrap().clone(), bad.last().unwrap().clone());
    let mut end = last.clone();
    end.push(0);
    let mut batch = pando_db::Batch::new();
    batch.delete_range(first.clone(), Some(Bytes::from(end)));
    db.write(batch).unwrap();
    store.pairs.retain(|key, _| *key < first || *key > last);
    for key in bad.iter().step_by(3) {
        store.put(&db, key.clone(), 50);
    }
    db.settle().unwrap();
    assert!(store.unreadable(&db).is_empty());
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// Two hundred nodes' worth of messages for the keys of one bad page.
#[test]
fn what_waits_above_a_bad_page_is_spread_over_nodes() {
    let node_size = 4096;
    let mut store = Store::new(node_size, 4000, 100, 5);
    store.damage(&key(2000));
    let db = store.open();
    let bad = store.unreadable(&db);
    for i in 0..8000u32 {
        let mut key = bad[i as usize % bad.len()].clone();
        key.extend(format!("/{:05}", i * 7919 % 8000).bytes());
        store.put(&db, key, 100);
    }
    db.checkpoint().unwrap();
    let left = store.unreadable(&db);
    assert!(left.iter().all(|key| bad.contains(key)), "what came later is unreadable");
    let seen = db.inspect(&InspectOptions { limit: 100_000, ..InspectOptions::default() }).unwrap();
    let most = seen.nodes.iter().filter_map(|node| node.content.as_ref().ok()).map(pending).max().unwrap();
    // Eight edges, each with a node's worth or so.
    assert!(most < 24 * u64::from(node_size), "{most} bytes wait in one node of {node_size}");
    db.close().unwrap();
    let db = store.open();
    assert!(store.unreadable(&db).iter().all(|key| bad.contains(key)));
}

fn pending(content: &pando_db::Content) -> u64 {
    let layers = content.edges.iter().flat_map(|edge| &edge.layers);
    layers.flat_map(|layer| &layer.pages).map(|page| u64::from(page.raw)).sum()
}

/// Clones and renames of trees that hold a bad page, small and large ones, with much and little that waits above it: all
/// keys of it but those of the page are there, and the store goes on.
#[test]
fn a_clone_of_what_cannot_be_read_in_part_stops_nothing() {
    for (node_size, seed) in [(4096, 11), (16 << 10, 12), (64 << 10, 13)] {
        let mut store = Store::new(node_size, 6000, 100, seed);
        store.damage(&key(3000));
        let db = store.open();
        let lost = store.unreadable(&db);
        let mut copies = BTreeMap::new();
        for round in 0..12 {
            // `k/003000` is in all of them; one is a single leaf, or a part of one.
            let prefix = ["k/", "k/00", "k/0030", "k/00300"][round % 4].to_string();
            let waiting = [0, 30, 1500][round % 3];
            for _ in 0..waiting {
                let i = store.rng.random_range(0..6000);
                store.put(&db, key(i), 100);
            }
            let (first, copy) = (format!("a{round}/"), format!("b{round}/"));
            db.clone_prefix(prefix.clone(), first.clone()).unwrap();
            db.rename_prefix(first, copy.clone()).unwrap();
            let part = store.pairs.iter().filter_map(|(key, value)| {
                let rest = key.strip_prefix(prefix.as_bytes())?;
                Some(([copy.as_bytes(), rest].concat(), (key.clone(), value.clone())))
            });
            copies.extend(part);
            if round % 2 == 0 {
                db.checkpoint().unwrap();
            }
        }
        let check = |db: &Db| {
            let mut there = 0;
            for (copy, (source, value)) in &copies {
                match db.get(copy) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&value[..]), "{}", copy.escape_ascii()),
                    Err(_) => assert!(lost.contains(source), "{} is lost", copy.escape_ascii()),
                }
                there += u32::from(!lost.contains(source));
            }
            assert!(there > 10_000, "{there}");
        };
        check(&db);
        db.checkpoint().unwrap();
        check(&db);
        db.put("still", "running").unwrap();
        db.sync().unwrap();
        drop(db);
        let db = store.open();
        check(&db);
        db.close().unwrap();
        // What is left of the bad page goes with the last tree that shows it.
        let db = store.open();
        db.delete_prefix("").unwrap();
        db.settle().unwrap();
        assert!(db.check().unwrap().findings.is_empty());
    }
}

/// Scans name what they cannot read, and go on if they are told to; forwards and backwards.
#[test]
fn a_scan_tells_what_it_skips_and_goes_on() {
    let store = Store::new(16 << 10, 4000, 100, 6);
    [500, 2000, 2001, 3999].into_iter().for_each(|i| store.damage(&key(i)));
    let db = store.open();
    let lost = store.unreadable(&db);
    assert!(lost.contains(&key(3999)) && lost.len() < 1500, "{} lost", lost.len());
    for backwards in [false, true] {
        let mut cursor = db.range(b"", None);
        let mut found = Vec::new();
        let mut skipped = Vec::new();
        loop {
            let next = if backwards { cursor.next_back() } else { cursor.next() };
            match next {
                None => break,
                Some(Ok((key, value))) => {
                    assert_eq!(store.pairs[&key[..]], value);
                    found.push(key.to_vec());
                }
                Some(Err(error)) => {
                    assert!(
                        matches!(&error, Error::Corrupt { .. }) && error.to_string().contains("keys from")
                    );
                    let ended = if backwards { cursor.next_back() } else { cursor.next() };
                    assert!(ended.is_none(), "a cursor ends with an error unless it is told to go on");
                    skipped.push(cursor.skip_unreadable().unwrap());
                }
            }
        }
        if backwards {
            found.reverse();
        }
        let expected: Vec<_> = store.pairs.keys().filter(|key| !lost.contains(key)).cloned().collect();
        assert_eq!(found.len(), expected.len());
        assert_eq!(found, expected);
        let covered =
            |key: &[u8]| skipped.iter().any(|(lo, hi)| lo <= key && hi.as_ref().is_none_or(|hi| key < hi));
        assert!(lost.iter().all(|key| covered(key)) && !found.iter().any(|key| covered(key)));
        assert!(cursor.skip_unreadable().is_none());
    }
}

/// A backup gets what can be got, lists what not, and what it got is restored.
#[test]
fn a_backup_goes_around_what_cannot_be_read() {
    let store = Store::new(16 << 10, 4000, 100, 7);
    [700, 2500].into_iter().for_each(|i| store.damage(&key(i)));
    let db = store.open();
    let lost = store.unreadable(&db);
    assert!(db.snapshot().backup(&mut Vec::new()).is_err(), "it is incomplete");
    let mut stream = Vec::new();
    let mut ranges = 0;
    let report = db.snapshot().backup_around(&mut stream, |_, _| {
        ranges += 1;
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!((report.skipped, report.pairs), (ranges, (store.pairs.len() - lost.len()) as u64));
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
    let opened = Backup::open(&stream[..]).unwrap();
    opened.restore(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let restored = Db::open(device, options()).unwrap();
    let expected = store.pairs.iter().filter(|(key, _)| !lost.contains(key));
    assert!(
        restored
            .range(b"", None)
            .map(Result::unwrap)
            .map(|(k, v)| (k.to_vec(), v.to_vec()))
            .eq(expected.map(|(k, v)| (k.clone(), v.clone())))
    );
}

/// The header of a leaf, or of an interior node: all below it is lost, and nothing else.
#[test]
fn a_bad_header_does_not_stop_the_store() {
    for (height, seed) in [(0, 8), (1, 9)] {
        let mut store = Store::new(4096, 6000, 100, seed);
        let db = store.open();
        let seen = db.inspect(&InspectOptions { limit: 100_000, ..InspectOptions::default() }).unwrap();
        let root = seen.nodes.iter().map(|node| node.height).max().unwrap();
        assert!(root > height + 1);
        let some = seen.nodes.iter().filter(|node| node.height == height).nth(3).unwrap();
        let at = some.extents[0].offset + 20;
        drop(db);
        let mut byte = [0];
        store.device.read_at(at, &mut byte).unwrap();
        store.device.write_at(at, &[byte[0] ^ 1]).unwrap();
        let db = store.open();
        for _ in 0..6000 {
            let i = store.rng.random_range(0..6000);
            store.put(&db, key(i), 100);
        }
        db.checkpoint().unwrap();
        let bad = store.unreadable(&db);
        assert!(!bad.is_empty() && bad.len() < 3000, "{} lost", bad.len());
        let mut cursor = db.range(b"", None);
        let (mut found, mut errors) = (0, 0);
        while let Some(next) = cursor.next() {
            match next {
                Ok((key, value)) => {
                    assert_eq!(store.pairs[&key[..]], value);
                    found += 1;
                }
                Err(_) => {
                    assert!(cursor.skip_unreadable().is_some());
                    errors += 1;
                }
            }
        }
        assert!(errors > 0 && found + bad.len() <= 6000 + errors * 6000 && found > 2000);
        for i in (0..6000).step_by(3) {
            store.put(&db, key(i), 100);
        }
        db.sync().unwrap();
        // A cursor keeps the store open.
        drop(cursor);
        drop(db);
        let db = store.open();
        assert!(store.unreadable(&db).iter().all(|key| bad.contains(key)));
        db.delete_prefix("k/").unwrap();
        db.checkpoint().unwrap();
        db.settle().unwrap();
        assert_eq!(db.range(b"", None).count(), 0);
        store.pairs.clear();
        store.put(&db, key(1), 100);
        db.close().unwrap();
    }
}

/// A store whose root has a page of messages that cannot be read, over keys around the middle; and the keys that
/// this hides.
fn with_bad_messages(node_size: u32, seed: u64) -> (Store, Db, Vec<Vec<u8>>) {
    let mut store = Store::new(node_size, 3000, 100, seed);
    let db = store.open();
    (0..3000).step_by(75).for_each(|i| store.put(&db, key(i + 3), 20));
    db.close().unwrap();
    drop(db);
    let seen = store.open().inspect(&InspectOptions { limit: 1, ..InspectOptions::default() }).unwrap();
    assert!(pending(seen.nodes[0].content.as_ref().unwrap()) > 0, "nothing waits in the root");
    store.damage(&key(1503));
    let db = store.open();
    let bad = store.unreadable(&db);
    assert!(bad.contains(&key(1503)) && bad.len() > 50, "{} keys are hidden", bad.len());
    (store, db, bad)
}

/// Deletes, clones and renames whose range ends inside a bad page of messages: before, this stopped the store.
#[test]
fn a_range_message_that_ends_in_a_bad_page_does_not_stop_the_store() {
    for node_size in [4096, 16 << 10, 64 << 10] {
        for kind in 0..6 {
            let (mut store, db, bad) = with_bad_messages(node_size, 20 + kind);
            for i in 0..40 {
                store.put(&db, format!("s/{i:03}").into_bytes(), 100);
                store.put(&db, format!("large/{i:03}").into_bytes(), 3000);
            }
            let (lo, hi) = (bad[bad.len() / 3].clone(), bad[bad.len() * 2 / 3].clone());
            let mut deleted = |lo: &[u8], hi: Option<&[u8]>| {
                let mut batch = Batch::new();
                batch.delete_range(lo.to_vec(), hi.map(|hi| Bytes::from(hi.to_vec())));
                db.write(batch).unwrap();
                store.pairs.retain(|key, _| &key[..] < lo || hi.is_some_and(|hi| &key[..] >= hi));
            };
            match kind {
                0 => deleted(&lo, Some(&hi)),
                1 => deleted(&lo, None),
                2 => deleted(b"", Some(&hi)),
                3 | 4 => {
                    let src: &[u8] = if kind == 3 { b"s/" } else { b"large/" };
                    let dst = &lo[..lo.len() - 2];
                    store.pairs.retain(|key, _| !key.starts_with(dst));
                    let copies: Vec<_> = store.pairs.iter().filter(|(key, _)| key.starts_with(src)).collect();
                    let copies: Vec<_> = copies
                        .into_iter()
                        .map(|(key, value)| ([dst, &key[src.len()..]].concat(), value.clone()))
                        .collect();
                    store.pairs.extend(copies);
                    db.clone_prefix(src.to_vec(), dst.to_vec()).unwrap();
                }
                _ => {
                    // The source of a rename is deleted.
                    let src = &lo[..lo.len() - 2];
                    db.rename_prefix(src.to_vec(), "moved/").unwrap();
                    store.pairs.retain(|key, _| !key.starts_with(src));
                }
            }
            db.checkpoint().unwrap_or_else(|e| panic!("node size {node_size}, kind {kind}: {e}"));
            let still_bad = |db: &Db, store: &Store| {
                let lost = store.unreadable(db);
                assert!(lost.iter().all(|key| bad.contains(key)), "kind {kind}: more has become unreadable");
                lost
            };
            still_bad(&db, &store);
            for round in 0..2 {
                for _ in 0..1000 {
                    let i = store.rng.random_range(0..3000);
                    store.put(&db, key(i), 100);
                }
                if round % 2 == 0 {
                    let i = store.rng.random_range(0..3000);
                    let lo = key(i);
                    db.delete_range_of(&lo, &key(i + 40));
                    store.pairs.retain(|key, _| *key < lo || *key >= self::key(i + 40));
                    db.checkpoint().unwrap();
                } else {
                    db.sync().unwrap();
                }
                still_bad(&db, &store);
            }
            drop(db);
            let db = store.open();
            still_bad(&db, &store);
            let levels = db.stats().unwrap().nodes_by_height.len();
            assert!(levels < 14, "{levels} levels");
            db.delete_prefix("").unwrap();
            db.settle().unwrap();
            assert_eq!(db.range(b"", None).count(), 0);
            assert!(db.check().unwrap().findings.is_empty());
            db.close().unwrap();
        }
    }
}

trait DeleteRange {
    fn delete_range_of(&self, lo: &[u8], hi: &[u8]);
}

impl DeleteRange for Db {
    fn delete_range_of(&self, lo: &[u8], hi: &[u8]) {
        let mut batch = Batch::new();
        batch.delete_range(lo.to_vec(), Some(Bytes::from(hi.to_vec())));
        self.write(batch).unwrap();
    }
}

/// The header of the root: what is below it is lost, but the store opens, takes and keeps what is put, and says what
/// it cannot read.
#[test]
fn a_bad_root_costs_what_is_below_it_and_nothing_else() {
    for (replay, node_size, seed) in [(false, 4096, 30), (true, 4096, 31), (false, 64 << 10, 32)] {
        let mut store = Store::new(node_size, 6000, 100, seed);
        let db = store.open();
        let seen = db.inspect(&InspectOptions { limit: 1, ..InspectOptions::default() }).unwrap();
        let at = seen.nodes[0].extents[0].offset + 20;
        let old = std::mem::take(&mut store.pairs);
        if replay {
            (0..300).for_each(|i| store.put(&db, format!("log/{i}").into_bytes(), 10));
            db.sync().unwrap();
        }
        drop(db);
        let mut byte = [0];
        store.device.read_at(at, &mut byte).unwrap();
        store.device.write_at(at, &[byte[0] ^ 1]).unwrap();
        // To read only: what the log has is there, and the rest is an error.
        let db = Db::open(store.device.clone(), options().read_only(true)).unwrap();
        assert!(store.unreadable(&db).is_empty());
        assert!(old.keys().all(|key| matches!(db.get(key), Err(Error::Corrupt { .. }))));
        drop(db);
        let db = store.open();
        for _ in 0..2000 {
            let i = store.rng.random_range(0..6000);
            store.put(&db, key(i), 100);
        }
        db.clone_prefix("k/", "c/").unwrap();
        db.clone_prefix("log/", "d/").unwrap();
        db.checkpoint().unwrap();
        assert!(store.unreadable(&db).is_empty(), "what was put is there");
        let lost: Vec<_> = old.keys().filter(|key| !store.pairs.contains_key(*key)).collect();
        assert!(
            lost.iter().all(|key| matches!(db.get(key), Err(Error::Corrupt { .. }))),
            "and nothing is made up"
        );
        assert!(!db.check().unwrap().findings.is_empty());
        // A backup gets what is not below the root, and lists the rest.
        let (mut stream, mut missing) = (Vec::new(), Vec::new());
        let report = db.snapshot().backup_around(&mut stream, |(lo, hi), _| {
            missing.push((lo.to_vec(), hi.map(<[u8]>::to_vec)));
            Ok(())
        });
        assert!(report.unwrap().skipped > 0);
        let covered =
            |key: &Vec<u8>| missing.iter().any(|(lo, hi)| lo <= key && hi.as_ref().is_none_or(|hi| key < hi));
        assert!(lost.iter().all(|key| covered(key)));
        db.close().unwrap();
        let db = store.open();
        assert!(store.unreadable(&db).is_empty());
        // Deleting everything heals it.
        db.delete_prefix("").unwrap();
        db.settle().unwrap();
        assert_eq!(db.range(b"", None).count(), 0);
        // (The nodes that were below it stay: nobody knows any more which they are.)
        store.pairs.clear();
        store.put(&db, key(1), 100);
        db.close().unwrap();
    }
}

/// Checkpoints write leaves anew with pages that the device cannot read just then, however often they try. When it can
/// again, all is there; before, that was given up for zeros.
#[test]
fn what_a_checkpoint_cannot_read_is_there_when_the_device_can() {
    for (node_size, reopened, cloned) in
        [(16 << 10, false, false), (64 << 10, true, false), (16 << 10, true, true), (64 << 10, false, true)]
    {
        let mut store = Store::new(node_size, 3000, 100, 40);
        if cloned {
            let db = store.open();
            db.clone_prefix("k/", "c/").unwrap();
            db.close().unwrap();
        }
        let value = store.pairs[&key(1500)].clone();
        let mut image = vec![0; SIZE as usize];
        store.device.read_at(0, &mut image).unwrap();
        let mut bad = Vec::new();
        let mut from = 0;
        while let Some(at) = memchr_like(&image[from..], &value) {
            let at = (from + at) as u64;
            bad.push(at / 512 * 512..at / 512 * 512 + 512);
            from = at as usize + 1;
        }
        // Places that cannot be read for a while.
        let (bad, failed) = (Arc::new(Mutex::new(bad)), Arc::new(AtomicU64::new(0)));
        let (places, count) = (bad.clone(), failed.clone());
        let flaky = HookedDevice::new(store.device.clone(), false, move |call| {
            let hit = |bad: &Range<u64>, range: &Range<u64>| bad.start < range.end && range.start < bad.end;
            match call {
                DeviceCall::Read(range) if places.lock().unwrap().iter().any(|bad| hit(bad, range)) => {
                    count.fetch_add(1, Ordering::Relaxed);
                    Err(io::Error::from_raw_os_error(5))
                }
                _ => Ok(()),
            }
        });
        let flaky = Arc::new(flaky);
        let open = || Db::open(flaky.clone(), options()).unwrap();
        // Another instance finds out which keys lie on the page, so that the next one does not know yet.
        let db = open();
        let lost: Vec<u32> = (0..3000).filter(|i| db.get(&key(*i)).is_err()).collect();
        assert!(lost.contains(&1500) && lost.len() < 500, "{} keys", lost.len());
        drop(db);
        failed.store(0, Ordering::Relaxed);
        let mut db = open();
        for round in 0..4 {
            for i in (0..3000).filter(|i| !lost.contains(i)) {
                store.put(&db, key(i), 90 + round);
            }
            db.checkpoint().unwrap();
            if reopened {
                db.close().unwrap();
                drop(db);
                db = open();
            }
        }
        assert!(failed.load(Ordering::Relaxed) > 1, "nothing had to be read");
        let stats = db.stats().unwrap();
        assert!(lost.iter().all(|i| matches!(db.get(&key(*i)), Err(Error::Io { .. }))));
        assert!(db.stats().unwrap().unreadable > 0, "{stats:?}");
        bad.lock().unwrap().clear();
        assert_eq!(store.unreadable(&db), Vec::<Vec<u8>>::new(), "it was given up");
        assert_eq!(db.stats().unwrap().unreadable, 0);
        for i in (0..3000).step_by(7) {
            store.put(&db, key(i), 100);
        }
        db.close().unwrap();
        drop(db);
        let db = open();
        assert!(store.unreadable(&db).is_empty());
        assert!(db.check().unwrap().findings.is_empty());
        if cloned {
            assert_eq!(db.get(format!("c/{:06}", 1500).as_bytes()).unwrap().as_deref(), Some(&value[..]));
        }
        // Nothing is held for it any more.
        db.delete_prefix("").unwrap();
        db.settle().unwrap();
        let left = db.stats().unwrap().node_bytes;
        assert!(left <= u64::from(node_size), "{left} bytes of nodes");
        db.close().unwrap();
    }
}

/// Nodes that two trees share are looked through for what neither shows. Meanwhile the nodes that lead one of the trees
/// to them cannot be read. What that tree shows must be there when they can.
#[test]
fn what_a_node_that_cannot_be_read_for_a_while_shows_is_there_when_it_can() {
    let mut store = Store::new(16 << 10, 12_000, 100, 50);
    let db = store.open();
    db.clone_prefix("k/", "c/").unwrap();
    let clone_of = |key: &[u8]| [b"c", &key[1..]].concat();
    let cloned: Vec<_> = store.pairs.iter().map(|(key, value)| (clone_of(key), value.clone())).collect();
    store.pairs.extend(cloned);
    db.checkpoint().unwrap();
    // The clone gets interior nodes of its own, and leaves that it shares.
    (0..12_000).step_by(10).for_each(|i| store.put(&db, clone_of(&key(i)), 100));
    db.settle().unwrap();
    db.checkpoint().unwrap();
    let all = InspectOptions { limit: usize::MAX, ..InspectOptions::default() };
    let nodes = db.inspect(&all).unwrap().nodes;
    let shared: Vec<u64> = nodes.iter().filter(|node| node.references > 1).map(|node| node.id).collect();
    let leads_there = |node: &&NodeInfo| {
        let in_clone = |path: &PathInfo| path.shown.lo.starts_with(b"c/");
        let to = |edge: &EdgeInfo| edge.child.as_ref().is_some_and(|child| shared.contains(&child.node));
        (node.height, node.references) == (1, 1)
            && node.path.as_ref().is_some_and(in_clone)
            && node.content.as_ref().is_ok_and(|content| content.edges.iter().any(to))
    };
    let bad: Vec<_> = nodes.iter().filter(leads_there).flat_map(|node| &node.extents).cloned().collect();
    assert!(bad.len() > 5, "the clone has {} nodes of its own over shared leaves", bad.len());
    db.close().unwrap();
    drop(db);

    let bad = Arc::new(Mutex::new(bad));
    let places = bad.clone();
    let flaky = HookedDevice::new(store.device.clone(), false, move |call| {
        let hit = |range: &Range<u64>| {
            let places = places.lock().unwrap();
            places.iter().any(|bad| bad.offset < range.end && range.start < bad.offset + bad.len)
        };
        match call {
            DeviceCall::Read(range) if hit(range) => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(()),
        }
    });
    let db = Db::open(Arc::new(flaky), options()).unwrap();
    // Of each shared leaf the origin shows a part only.
    for i in (0..12_000).step_by(200) {
        let deleted = key(i + 40)..key(i + 160);
        let mut batch = Batch::new();
        batch.delete_range(deleted.start.clone(), Some(deleted.end.clone().into()));
        db.write(batch).unwrap();
        store.pairs.retain(|pair, _| !deleted.contains(pair));
    }
    let hidden = (0..12_000).filter(|i| matches!(db.get(&clone_of(&key(*i))), Err(Error::Io { .. }))).count();
    assert!(hidden > 100, "only {hidden} keys cannot be read");
    db.settle().unwrap();
    db.checkpoint().unwrap();
    bad.lock().unwrap().clear();
    assert_eq!(store.unreadable(&db), Vec::<Vec<u8>>::new());
    assert_eq!(db.range(b"", None).count(), store.pairs.len());
    db.settle().unwrap();
    db.close().unwrap();
    assert!(store.unreadable(&store.open()).is_empty());
}
