//! Item 4: small random upserts into ten times as much data as the cache holds.
//!
//! Bytes written for an upsert follow `levels * fanout / messages a node`, times the size of a node: with
//! `messages a node = node size / message`, that is `levels * fanout * message` bytes, whatever the size of
//! nodes. These have 4 KiB in the small form and 64 KiB in the full one, because 1/100 of the largest cache
//! must still hold some. The number of requests does depend on it: a flush into a leaf brings `node size /
//! fanout` bytes of messages and reads nine pieces; so the bound on requests is tested with 64 KiB and 1 MiB.

use pando_db::patch;

use crate::setup::{KIB, MIB, Rng, Store, full, key, load, turn};

/// Edges of a node at these node sizes.
const FANOUT: f64 = 8.0;
/// A message of 16 bytes with its key and what frames it.
const MESSAGE: f64 = 48.0;

/// Part of the model that was reached when this was written: 0.20 and less. (0.27 while an interior node took one node of messages only:
/// in nodes of 4 KiB a reference to a page is half as large as the page, and checkpoints come early. In a store of half a megabyte the
/// copy of the superblock shows: 0.22.)
const OF_MODEL: f64 = 0.225;

struct Run {
    node: u64,
    cache: u64,
    value: usize,
    upserts: u64,
}

/// What an upsert takes: bytes written, their ratio to the model, requests.
fn measure(run: &Run) -> (f64, f64, f64) {
    let Run { node, cache, value, upserts } = *run;
    let count = 10 * cache / (value as u64 + 12);
    let mut store = Store::with_memtable(node, cache, cache / 8);
    load(&store.db, "t/", count, value);
    store.reopen();
    let levels = store.levels();
    let mut rng = Rng(5);
    let cost = store.during(|db| {
        for _ in 0..upserts {
            let at = rng.below(value as u64 - 16) as u32;
            db.upsert(key("t/", rng.below(count)), patch::write(at, &rng.noise(16))).unwrap();
        }
        db.checkpoint().unwrap();
    });
    let each = |n: u64| n as f64 / upserts as f64;
    let (bytes, requests) = (each(cost.write_bytes), each(cost.requests()));
    let model = bytes / (levels as f64 * FANOUT * MESSAGE);
    println!(
        "{count:>9} values, {levels} levels, {node:>7} B nodes, cache {cache:>9} B: {bytes:>7.1} B written an \
         upsert, {model:.2} of the model; {requests:.3} requests | {cost}"
    );
    (bytes, model, requests)
}

#[test]
fn bytes_written_for_an_upsert_follow_the_height() {
    let _turn = turn();
    println!("item 4: random upserts of 16 bytes into 10 times the cache");
    let (node, first) = if full() { (64 * KIB, 2 * MIB) } else { (4 * KIB, 64 * KIB) };
    let run = |times: u64| {
        let cache = first * times;
        measure(&Run { node, cache, value: 100, upserts: cache / 40 })
    };
    let all = [1, 10, 100].map(run);
    for (i, (_, model, _)) in all.iter().enumerate() {
        assert!(*model <= OF_MODEL, "{model:.2} of the model");
        // With the data the height grows, and nothing else: where the model is exact the ratio stays.
        assert!(i == 0 || *model <= all[i - 1].1 * 1.05, "{all:?}");
    }
}

#[test]
fn requests_for_upserts_are_few() {
    let _turn = turn();
    println!("item 4: random upserts of 16 bytes into 10 times the cache");
    let (node, upserts) = if full() { (MIB, 5_000_000) } else { (64 * KIB, 80_000) };
    let (.., requests) = measure(&Run { node, cache: 16 * node, value: 1000, upserts });
    assert!(requests <= 1.0 / 20.0, "{requests} requests an upsert");
}
