//! Item 5: bulk data is written about once, a cold point query takes small requests, a scan reads what it needs.
//!
//! Small form: 64 MiB in place of 1 GiB, with a sixteenth of the cache and of the log.

use pando_db::device::BLOCK;

use crate::setup::{Cost, KIB, MIB, Rng, Store, edit, full, key, load, page_bytes, turn};

/// Bytes written for a byte of the user's, by length of value: the goal.
const WRITTEN: [(u64, f64); 2] = [(4 * KIB, 1.1), (MIB, 1.1)];
/// Of what a scan reads, the part that it needs.
const USEFUL: f64 = 0.95;
/// Bytes that a request of a long scan reads at least on average. No goal of its own.
const A_REQUEST: u64 = 160 * KIB;

fn loaded(value: u64) -> (Store, f64) {
    let (bytes, cache) = if full() { (1024 * MIB, 256 * MIB) } else { (64 * MIB, 16 * MIB) };
    let store = Store::with_memtable(MIB, cache, cache / 32);
    let count = bytes / value;
    let cost = store.during(|db| {
        load(db, "t/", count, value as usize);
        db.sync().unwrap();
        db.checkpoint().unwrap();
    });
    let ratio = cost.write_bytes as f64 / bytes as f64;
    println!("  {count} values of {value} B: {ratio:.3} bytes written for each of the user's | {cost}");
    (store, ratio)
}

#[test]
fn a_sequential_load_and_its_scan() {
    let _turn = turn();
    println!("item 5: sequential load with sync and checkpoint, then a cold scan");
    for (value, most) in WRITTEN {
        let (mut store, ratio) = loaded(value);
        assert!(ratio <= most, "{ratio:.3} bytes are written for each of the user's; {most} are allowed");
        store.reopen();
        let (bytes, cost) = store.scan("t/");
        let useful = bytes as f64 / cost.read_bytes as f64;
        println!("  scan: {:.1} % useful | {cost}", useful * 100.0);
        assert!(useful >= USEFUL, "{useful}");
        assert!(cost.read_bytes / cost.reads >= A_REQUEST, "{cost}");
    }
}

#[test]
fn a_cold_point_query_takes_small_requests() {
    let _turn = turn();
    let (node, first) = if full() { (MIB, 10_000) } else { (16 * KIB, 1_000) };
    println!("item 5: cold point queries, {node} B nodes; after a load, and while upserts wait everywhere");
    for count in [first, 10 * first, 100 * first] {
        let mut store = Store::new(node, 1024 * node);
        load(&store.db, "t/", count, 1000);
        let mut rng = Rng(11);
        for upserts in [0, count / 4] {
            edit(&store.db, &mut rng, "t/", count, 1000, upserts as usize);
            let levels = store.levels();
            let (mut sum, mut most) = (Cost::default(), 0);
            const QUERIES: u64 = 30;
            for _ in 0..QUERIES {
                store.reopen();
                let cost = store.during(|db| {
                    assert!(db.get(key("t/", rng.below(count)).as_bytes()).unwrap().is_some());
                });
                sum += cost;
                most = most.max(cost.reads);
            }
            println!(
                "{count:>9} values, {levels} levels, {upserts:>6} upserts: at most {most} | {}",
                sum / QUERIES
            );
            assert!(most <= 2 * levels, "{most} requests at {levels} levels");
            assert!(sum.read_bytes <= sum.reads * page_bytes(node).max(BLOCK), "{sum}");
        }
    }
}

/// A page of one value adds a few bytes to it. Where nodes are small, an extent has few pages, and those bytes would
/// take a block of the device each time: a quarter more, for values of 16 KiB.
#[test]
fn values_of_whole_blocks_take_no_more_blocks() {
    let _turn = turn();
    println!("values of 16 KiB that do not compress, in nodes of 64 KiB");
    let mut store = Store::new(64 * KIB, 4 * MIB);
    let (count, len) = (1024, 16 * KIB);
    load(&store.db, "t/", count, len as usize);
    store.db.sync().unwrap();
    store.db.checkpoint().unwrap();
    let ratio = store.used() as f64 / (count * len) as f64;
    println!("  {ratio:.3} bytes of the device for each of the user's");
    // A leaf has a block for its header.
    assert!(ratio < 1.2, "{ratio:.3}");
    store.check();
    store.reopen();
    let mut same = Rng(count);
    for i in 0..count {
        let value = store.db.get(key("t/", i).as_bytes()).unwrap();
        assert!(value.as_deref() == Some(&same.noise(len as usize)[..]), "value {i}");
    }
}
