//! Item 6: deleting a clone costs work in proportion to what it alone owns, whatever the size of what it shares.
//!
//! Small form: 16 KiB nodes in place of 1 MiB. The bounds count nodes.

use crate::setup::{Cost, KIB, MIB, Rng, Store, full, key, load, turn};
use pando_db::Batch;

const VALUE: usize = 1000;

struct Sizes {
    node: u64,
    /// Values in the tree that is cloned; the last is 100 times the first.
    trees: [u64; 3],
    /// Values of the largest tree that the clone overwrites; the last is 100 times the first.
    owned: [u64; 3],
}

fn sizes() -> Sizes {
    if full() {
        Sizes { node: MIB, trees: [10_000, 100_000, 1_000_000], owned: [5_000, 50_000, 500_000] }
    } else {
        Sizes { node: 16 * KIB, trees: [500, 5_000, 50_000], owned: [250, 2_500, 25_000] }
    }
}

/// What deleting a clone takes, until all of it is free.
struct Measured {
    /// Nodes and bytes that went with it.
    nodes: u64,
    bytes: u64,
    cost: Cost,
}

/// Clones a tree of `count` values, overwrites the first `own` of the clone, and deletes it.
fn measure(sizes: &Sizes, count: u64, own: u64) -> Measured {
    let mut store = Store::new(sizes.node, 64 * MIB);
    load(&store.db, "t/", count, VALUE);
    store.db.clone_prefix("t/", "c/").unwrap();
    store.db.checkpoint().unwrap();
    let mut rng = Rng(3);
    for i in 0..own {
        let mut batch = Batch::new();
        batch.put(key("c/", i), rng.noise(VALUE));
        store.db.write(batch).unwrap();
    }
    store.db.settle().unwrap();
    store.reopen();
    let (used, nodes) = (store.used(), store.nodes());
    store.reopen();
    let cost = store.during(|db| {
        db.delete_prefix("c/").unwrap();
        db.checkpoint().unwrap();
        // Each write frees a bounded number of nodes. These replace one small value in memory.
        for _ in 0..1000 {
            db.put("u", "").unwrap();
        }
        db.checkpoint().unwrap();
    });
    assert_eq!(store.db.stats().unwrap().reclaimable_nodes, 0);
    let (nodes, bytes) = (nodes.saturating_sub(store.nodes()), used.saturating_sub(store.used()));
    assert_eq!(store.db.prefix(b"c/").count(), 0);
    assert_eq!(store.db.prefix(b"t/").count() as u64, count);
    store.check();
    Measured { nodes, bytes, cost }
}

#[test]
fn deleting_a_clone_costs_what_it_owns() {
    let _turn = turn();
    let sizes = sizes();
    println!("item 6: deleting a clone, {} B nodes", sizes.node);
    let mut requests = Vec::new();
    for count in sizes.trees {
        let m = measure(&sizes, count, 0);
        println!(
            "{count:>9} values shared, {:>7} owned: {:>5} nodes {:>10} B | {}",
            0, m.nodes, m.bytes, m.cost
        );
        requests.push(m.cost.requests());
    }
    // Two levels more of the translation table (1 to 3) for 100 times what is shared, in each of two
    // checkpoints, and one or two of the DAG; and two reads of messages that the load has left in a node on the way,
    // which are copied with it.
    assert!(requests[2] <= requests[0] + 8, "{requests:?}");
    for own in sizes.owned {
        let count = sizes.trees[2];
        let m = measure(&sizes, count, own);
        println!(
            "{count:>9} values shared, {own:>7} owned: {:>5} nodes {:>10} B | {}",
            m.nodes, m.bytes, m.cost
        );
        let said = format!("{own} of {count}: {} nodes, {}", m.nodes, m.cost);
        assert!(m.bytes > own * VALUE as u64, "{said}");
        // The headers of interior nodes are read, no leaf is; what is written is pages of the table.
        assert!(m.cost.reads <= requests[2] + m.nodes / 3, "{said}");
        assert!(m.cost.writes <= requests[2] + 10 + m.nodes / 32, "{said}");
        assert!(m.cost.bytes() <= 160 * KIB.max(sizes.node / 16) + m.bytes / 50, "{said}");
    }
}
