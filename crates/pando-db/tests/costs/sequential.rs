//! Sequential inserts of small values do not cascade through the levels: each is written about once, in
//! the page that it came in, however many levels it sinks through.
//!
//! Beside the pages there are the log (every byte once more), headers, and what checkpoints find half full.
//! Random inserts, for which a write a level is fair, are the comparison.

use pando_db::Batch;

use crate::setup::{KIB, MIB, Rng, Store, full, key, turn};

const VALUE: usize = 100;
/// Bytes written for a byte of the user's, log included. Its goal is not stated anywhere; 2 would be each byte once in
/// the log and once in a page.
const WRITTEN: f64 = 2.5;
/// By how much a hundred times the size may make that more.
const GROWTH: f64 = 1.15;

/// Bytes written for each of the user's when `count` values come in the order given.
fn written(node: u64, count: u64, order: impl Fn(u64) -> u64) -> (f64, u64) {
    let store = Store::new(node, 256 * node);
    let mut rng = Rng(5);
    let mut bytes = 0;
    let cost = store.during(|db| {
        for from in (0..count).step_by(100) {
            let mut batch = Batch::new();
            for i in from..from + 100 {
                let key = key("t/", order(i));
                bytes += (key.len() + VALUE) as u64;
                batch.put(key, rng.noise(VALUE));
            }
            db.write(batch).unwrap();
        }
        db.checkpoint().unwrap();
    });
    store.check();
    (cost.write_bytes as f64 / bytes as f64, store.levels())
}

#[test]
fn sequential_inserts_do_not_cascade() {
    let _turn = turn();
    let (node, first) = if full() { (MIB, 100_000) } else { (16 * KIB, 10_000) };
    println!("sequential inserts of {VALUE} B, {node} B nodes");
    let mut ratios = Vec::new();
    for count in [first, 10 * first, 100 * first] {
        let (ratio, levels) = written(node, count, |i| i);
        println!("{count:>9} values, {levels} levels: {ratio:.2} bytes written for each");
        assert!(ratio <= WRITTEN, "{ratio:.2} bytes are written for each; {WRITTEN} are allowed");
        ratios.push((ratio, levels));
    }
    let ((least, low), (most, high)) = (ratios[0], ratios[2]);
    assert!(high > low, "the store has no more levels than before");
    assert!(most <= least * GROWTH, "{least:.2} became {most:.2}");
    let count = 10 * first;
    // A permutation: the factor and the count have no common divisor.
    let (random, levels) = written(node, count, |i| (i * 35_761) % count);
    println!("{count:>9} values in another order, {levels} levels: {random:.2} bytes written for each");
    assert!(random > ratios[1].0, "nothing is gained by the order");
}
