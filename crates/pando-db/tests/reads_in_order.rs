//! Requests of queries that come in the order of their keys, and of such that do not (`store/sequence.rs`).

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{
    Codec, CreateOptions, Db, Options,
    device::{Device, MemDevice},
};

const KEYS: u64 = 20_000;
const VALUE: u64 = 1500;

fn options() -> Options {
    Options::default().background(false).codec(Codec::None).cache_bytes(16 << 20)
}

fn key(i: u64) -> Vec<u8> {
    i.to_be_bytes().to_vec()
}

fn value(i: u64) -> Vec<u8> {
    vec![i as u8; VALUE as usize]
}

/// Requests and bytes of queries in a store that was just opened.
fn ask(device: &Arc<MemDevice>, order: impl Iterator<Item = u64>, query: impl Fn(&Db, u64)) -> (u64, u64) {
    let db = Db::open(device.clone(), options()).unwrap();
    let before = device.stats();
    order.for_each(|i| query(&db, i));
    let after = device.stats();
    (after.reads - before.reads, after.read_bytes - before.read_bytes)
}

/// Values that are asked for one by one in the order of their keys come with few requests, as those of a scan do; at
/// random each costs its page and no more.
#[test]
fn queries_in_the_order_of_keys_read_pages_together() {
    let device = Arc::new(MemDevice::new(1 << 30));
    Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    (0..KEYS).for_each(|i| db.put(key(i), value(i)).unwrap());
    db.close().unwrap();
    drop(db);
    let get = |db: &Db, i: u64| assert_eq!(db.get(&key(i)).unwrap().unwrap(), value(i));
    let scan = |db: &Db, i: u64| {
        let (_, found) = db.range(&key(i), Some(&key(i + 1))).next().unwrap().unwrap();
        assert_eq!(found, value(i));
    };
    let pages = KEYS * VALUE / (32 << 10);
    for (name, (reads, bytes)) in
        [("queries", ask(&device, 0..KEYS, get)), ("short scans", ask(&device, 0..KEYS, scan))]
    {
        println!("{name} in order: {reads} requests, {bytes} bytes; {pages} pages");
        assert!(reads < pages / 4, "{name}: {reads} requests for {pages} pages");
        assert!(bytes < KEYS * VALUE / 10 * 11, "{name}: {bytes} bytes");
    }
    const COUNT: u64 = 300;
    let (reads, bytes) = ask(&device, (0..COUNT).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS), get);
    println!("{COUNT} queries at random: {reads} requests, {bytes} bytes");
    assert!(bytes < COUNT * (40 << 10), "{bytes} bytes for {COUNT} queries at random");
}
