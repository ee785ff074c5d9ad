//! Upserts that nothing combines, of a key whose page cannot be read: they pile up above it, and cost nothing else.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Error, InspectOptions, Merge, Options,
    device::{Device, MemDevice},
};

const SIZE: u64 = 512 << 20;
const KEYS: u64 = 6000;
const BAD: u64 = 3000;
/// Of an operation, in bytes.
const OP_BYTES: usize = 256 << 10;
/// Together more than a page may have.
const UPSERTS: u64 = 600;

/// Adds a number up, and combines nothing.
struct Sum;

impl Merge for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        let sum = old.map_or(0, number).wrapping_mul(3).wrapping_add(number(op));
        Some(Bytes::copy_from_slice(&sum.to_le_bytes()))
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn open(device: &Arc<MemDevice>) -> Db {
    let options = Options::default().background(false).cache_bytes(32 << 20).memtable_bytes(1 << 20);
    Db::open(device.clone(), options.merge(Arc::new(Sum))).unwrap()
}

fn key(i: u64) -> Vec<u8> {
    format!("k/{i:06}").into_bytes()
}

fn value(i: u64) -> Vec<u8> {
    (0..13).flat_map(|n| (i * 100 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// A store that was closed, in which the page of one key is damaged, and where.
fn damaged() -> (Arc<MemDevice>, u64) {
    let device = Arc::new(MemDevice::new(SIZE));
    let options = Options::default().merge(Arc::new(Sum));
    Db::create(device.clone(), &CreateOptions::default().node_size(16 << 10), &options).unwrap();
    let db = open(&device);
    (0..KEYS).for_each(|i| db.put(key(i), value(i)).unwrap());
    db.close().unwrap();
    let wanted = value(BAD);
    let mut hits = Vec::new();
    let mut window = vec![0; 4 << 20];
    for at in (0..SIZE - (2 << 20)).step_by(2 << 20) {
        device.read_at(at, &mut window).unwrap();
        let found = (0..2 << 20).filter(|i| window[*i] == wanted[0] && window[*i..].starts_with(&wanted));
        hits.extend(found.map(|i| at + i as u64));
    }
    // In the log it is not needed any more.
    hits.iter().for_each(|at| flip(&device, *at));
    (device, *hits.last().unwrap())
}

fn flip(device: &MemDevice, at: u64) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 4]).unwrap();
}

/// The numbers of the keys under a prefix that cannot be read; the others are verified.
fn unreadable(db: &Db, prefix: &str) -> Vec<u64> {
    let mut bad = Vec::new();
    for i in 0..KEYS {
        let key = [prefix.as_bytes(), &key(i)].concat();
        match db.get(&key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value(i)[..]), "{}", key.escape_ascii()),
            Err(Error::Corrupt { .. }) => bad.push(i),
            Err(other) => panic!("{other}"),
        }
    }
    bad
}

fn pile_up(db: &Db) {
    for i in 0..UPSERTS {
        let mut op = vec![0; OP_BYTES];
        op[..8].copy_from_slice(&i.to_le_bytes());
        db.upsert(key(BAD), op).unwrap();
        if i % 20 == 0 {
            db.checkpoint().unwrap();
        }
    }
    db.checkpoint().unwrap();
}

/// The raw bytes of the longest page of messages, and of all of them, and the most layers of an edge.
fn waiting(db: &Db) -> (u64, u64, usize) {
    let seen = db.inspect(&InspectOptions { limit: 100_000, ..InspectOptions::default() }).unwrap();
    let nodes = seen.nodes.iter().filter_map(|node| node.content.as_ref().ok());
    let edges: Vec<_> = nodes.flat_map(|content| &content.edges).collect();
    let pages = || edges.iter().flat_map(|edge| &edge.layers).flat_map(|layer| &layer.pages);
    let longest = pages().map(|page| u64::from(page.raw)).max().unwrap_or(0);
    let layers = edges.iter().map(|edge| edge.layers.len()).max().unwrap_or(0);
    (longest, pages().map(|page| u64::from(page.raw)).sum(), layers)
}

/// They became one entry, and its page longer than any that is accepted: the node above the bad page, which was the
/// root, could not be read any more.
#[test]
fn a_pile_of_upserts_over_a_bad_page_makes_nothing_else_unreadable() {
    let (device, at) = damaged();
    let db = open(&device);
    let bad = unreadable(&db, "");
    assert!(bad.contains(&BAD) && bad.len() < 400, "{bad:?}");
    pile_up(&db);
    db.close().unwrap();

    let db = open(&device);
    assert_eq!(unreadable(&db, ""), bad, "more keys than those of the bad page");
    let (longest, all, layers) = waiting(&db);
    assert!(all >= UPSERTS * OP_BYTES as u64 && longest <= 33 << 20, "{longest} of {all} bytes");
    assert!(layers < 24, "{layers} layers");
    // A clone shows what its source does.
    db.clone_prefix("k/", "copy/k/").unwrap();
    db.clone_prefix(key(BAD), "one").unwrap();
    db.upsert(key(BAD), 5u64.to_le_bytes().to_vec()).unwrap();
    db.close().unwrap();
    let db = open(&device);
    assert_eq!(unreadable(&db, ""), bad);
    assert_eq!(unreadable(&db, "copy/"), bad);
    assert!(matches!(db.get(b"one"), Err(Error::Corrupt { .. })));
    db.close().unwrap();

    // The device can read it again: all of them are applied, in order.
    flip(&device, at);
    let db = open(&device);
    let old = Sum.apply(None, &value(BAD));
    let sum = (0..UPSERTS).fold(old, |sum, i| Sum.apply(sum.as_deref(), &i.to_le_bytes()));
    assert_eq!(db.get(b"one").unwrap(), sum);
    let last = Sum.apply(sum.as_deref(), &5u64.to_le_bytes());
    for flushed in [false, true] {
        assert_eq!(db.get(&key(BAD)).unwrap(), last, "flushed: {flushed}");
        db.settle().unwrap();
    }
    assert!(db.check().unwrap().findings.is_empty());
}

/// What replaces the value is read past the pile; a delete of the page's keys frees it.
#[test]
fn a_pile_over_a_bad_page_ends_with_a_put_or_a_delete() {
    let (device, _) = damaged();
    let db = open(&device);
    let bad = unreadable(&db, "");
    pile_up(&db);
    db.put(key(BAD), value(BAD)).unwrap();
    db.checkpoint().unwrap();
    assert!(!unreadable(&db, "").contains(&BAD));
    pile_up(&db);
    let mut batch = Batch::new();
    batch.delete_range(key(bad[0]), Some(Bytes::from(key(bad[bad.len() - 1] + 1))));
    db.write(batch).unwrap();
    bad.iter().for_each(|i| db.put(key(*i), value(*i)).unwrap());
    db.settle().unwrap();
    let (_, all, _) = waiting(&db);
    assert!(all < 1 << 20, "{all} bytes wait still");
    db.close().unwrap();
    let db = open(&device);
    assert!(unreadable(&db, "").is_empty());
    // The edge was parted around the page, so that its leaf still has it; but nothing shows it.
    assert!(db.check().unwrap().findings.iter().all(|finding| finding.what.contains("checksum")));
}
