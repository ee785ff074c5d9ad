//! Item 4: small random upserts into ten times as much data as the cache holds.
//!
//! Bytes written for an upsert follow `levels * fanout / messages a node`, times the size of a node: with
//! `messages a node = node size / message`, that is `levels * fanout * message` bytes. Nodes have 4 KiB in
//! the small form and 64 KiB in the full one, because 1/100 of the largest cache must still hold some.

use pando_db::patch;

use crate::setup::{KIB, MIB, Rng, Store, full, key, load, turn};

const VALUE: usize = 100;
/// Edges of a node at these node sizes.
const FANOUT: f64 = 8.0;
/// A message of 16 bytes with its key and what frames it.
const MESSAGE: f64 = 48.0;

struct Sizes {
    node: u64,
    /// Bytes of cache; the last is 100 times the first.
    caches: [u64; 3],
}

fn sizes() -> Sizes {
    if full() {
        Sizes { node: 64 * KIB, caches: [2 * MIB, 20 * MIB, 200 * MIB] }
    } else {
        Sizes { node: 4 * KIB, caches: [64 * KIB, 640 * KIB, 6400 * KIB] }
    }
}

#[test]
fn random_upserts_are_written_in_bulk() {
    let _turn = turn();
    let sizes = sizes();
    println!("item 4: upserts of 16 bytes into 10 times the cache, {} B nodes", sizes.node);
    for cache in sizes.caches {
        let count = 10 * cache / (VALUE as u64 + 12);
        let upserts = count;
        let mut store = Store::with_memtable(sizes.node, cache, cache / 8);
        load(&store.db, "t/", count, VALUE);
        store.reopen();
        let levels = store.levels();
        let mut rng = Rng(5);
        let cost = store.during(|db| {
            for _ in 0..upserts {
                let at = rng.below(VALUE as u64 - 16) as u32;
                db.upsert(key("t/", rng.below(count)), patch::write(at, &rng.noise(16))).unwrap();
            }
            db.checkpoint().unwrap();
        });
        let each = |n: u64| n as f64 / upserts as f64;
        let model = levels as f64 * FANOUT * MESSAGE;
        println!(
            "{count:>9} values, {levels} levels, cache {cache:>9} B: {:>7.1} B written an upsert, {:.2} of the model; \
             {:.3} requests | {cost}",
            each(cost.write_bytes),
            each(cost.write_bytes) / model,
            each(cost.requests()),
        );
    }
}
