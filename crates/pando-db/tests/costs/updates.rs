//! Item 7: a change of all values under a prefix is one message, however many values there are: it costs what one
//! small write costs.
//!
//! What that is depends on what happens to wait in the root, which is written anew; so it is measured beside it.
//!
//! Small form: 16 KiB nodes in place of 1 MiB. The bounds count requests and nodes.

use crate::setup::{Cost, KIB, MIB, Store, full, key, load, turn};
use pando_db::patch;

const VALUE: usize = 200;

/// What a change of all values under a prefix takes, with sync and checkpoint, and a scan afterwards.
struct Measured {
    change: Cost,
    /// What a single put takes, before.
    put: Cost,
    /// The bytes of the values and what it took to read them, before and after.
    scans: [(u64, Cost); 2],
}

/// `clone`: what is changed is a clone, and the original must stay as it was.
fn measure(node: u64, count: u64, clone: bool) -> Measured {
    let mut store = Store::new(node, 64 * MIB);
    load(&store.db, "t/", count, VALUE);
    let prefix = if clone { "c/" } else { "t/" };
    if clone {
        store.db.clone_prefix("t/", "c/").unwrap();
    }
    store.db.settle().unwrap();
    store.reopen();
    let before = store.scan(prefix);
    store.reopen();
    let put = store.during(|db| {
        db.put(key(prefix, 0), vec![b'o'; VALUE]).unwrap();
        db.sync().unwrap();
        db.checkpoint().unwrap();
    });
    store.reopen();
    let (nodes, used) = (store.nodes(), store.used());
    let change = store.during(|db| {
        db.upsert_prefix(prefix, patch::write(7, b"changed")).unwrap();
        db.sync().unwrap();
        db.checkpoint().unwrap();
    });
    assert!(store.nodes() <= nodes + 1 && store.used() <= used + 8 * KIB.max(node / 4), "it took space");
    store.reopen();
    let after = store.scan(prefix);
    let mut seen = 0;
    for pair in store.db.range(b"", None) {
        let (at, value) = pair.unwrap();
        let changed = value.get(7..14) == Some(b"changed");
        assert_eq!(changed, at.starts_with(prefix.as_bytes()), "{at:?}");
        seen += 1;
    }
    assert_eq!(seen, if clone { 2 * count } else { count });
    let some = store.db.get(key(prefix, count / 2).as_bytes()).unwrap().unwrap();
    assert_eq!(some.get(7..14), Some(&b"changed"[..]));
    store.check();
    Measured { change, put, scans: [before, after] }
}

#[test]
fn a_change_of_all_values_costs_no_more_for_more_values() {
    let _turn = turn();
    let (node, sizes) =
        if full() { (MIB, [100_000, 1_000_000, 10_000_000]) } else { (16 * KIB, [1_000, 10_000, 100_000]) };
    println!("item 7: a change of all values, {node} B nodes");
    for clone in [false, true] {
        let all = sizes.map(|count| {
            let m = measure(node, count, clone);
            println!("{count:>9} values, {}: {}", if clone { "a clone" } else { "alone" }, m.change);
            println!("{:>27} {}", "a put:", m.put);
            m
        });
        for Measured { change, put, .. } in &all {
            assert!(change.requests() <= put.requests() + 2, "{change}, but a put: {put}");
            assert!(change.nodes <= 1, "{change}");
            // A piece for each edge of the root that it covers.
            assert!(change.bytes() <= put.bytes() + 12 * KIB.max(node / 16), "{change}, but a put: {put}");
        }
        for m in &all {
            let [(bytes, before), (same, after)] = &m.scans;
            assert_eq!(bytes, same, "no value got longer");
            assert!(after.reads <= before.reads + 2, "{before} | {after}");
        }
    }
}
