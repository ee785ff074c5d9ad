//! Item 1: clone, rename and tree delete cost the same whatever the size of the tree, but for a node a level.
//!
//! Small form: 64 KiB nodes in place of 1 MiB, with a fanout of 8 in place of 32. The trees are then as many
//! levels high with less data; the bounds are in nodes and levels, not in bytes.

use pando_db::{Db, device::BLOCK};

use crate::setup::{Cost, KIB, MIB, Rng, Store, edit, full, key, load, page_bytes, turn};

struct Sizes {
    node: u64,
    cache: u64,
    /// Values in the trees, ascending, last at least 100 times the first.
    trees: [u64; 3],
    /// What "small edits" are: 64 of 16 bytes with 1 MiB nodes, 1/256 of a node with their keys.
    edits: usize,
}

fn sizes() -> Sizes {
    if full() {
        Sizes { node: MIB, cache: 256 * MIB, trees: [100_000, 1_000_000, 10_000_000], edits: 64 }
    } else {
        Sizes { node: 64 * KIB, cache: 16 * MIB, trees: [1_000, 10_000, 100_000], edits: 4 }
    }
}

const VALUE: usize = 100;
/// Levels of the translation table at most: 64 to the third are 262,144 nodes.
const TABLE_LEVELS: u64 = 3;
/// Clones of clones in the chain.
const CHAIN: u64 = 1000;

/// How often each operation is measured: whether one of them lets a node above overflow is chance.
const TIMES: u64 = 20;

/// A measured operation: the sum over all times, the dearest, and how high the DAG was before it.
struct Measured {
    name: &'static str,
    levels: u64,
    sum: Cost,
    most: Cost,
}

/// What an operation costs on a store that was just opened, until it is durable and in a checkpoint.
fn cold(store: &mut Store, name: &'static str, mut work: impl FnMut(&Db, u64)) -> Measured {
    let mut measured = Measured { name, levels: 0, sum: Cost::default(), most: Cost::default() };
    for i in 0..TIMES {
        measured.levels = measured.levels.max(store.levels());
        store.reopen();
        let cost = store.during(|db| {
            work(db, i);
            db.sync().unwrap();
            db.checkpoint().unwrap();
        });
        measured.sum += cost;
        if cost.bytes() > measured.most.bytes() {
            measured.most = cost;
        }
    }
    measured
}

fn measure(sizes: &Sizes, count: u64) -> Vec<Measured> {
    let mut store = Store::new(sizes.node, sizes.cache);
    let store = &mut store;
    load(&store.db, "a/", 10, VALUE);
    load(&store.db, "t/", count, VALUE);
    load(&store.db, "z/", 10, VALUE);
    let mut rng = Rng(count);
    let mut change = |db: &Db| edit(db, &mut rng, "t/", count, VALUE, sizes.edits);
    let mut out = Vec::new();
    out.push(cold(store, "clone", |db, i| db.clone_prefix("t/", format!("c{i}/")).unwrap()));
    out.push(cold(store, "the edits alone", |db, _| change(db)));
    out.push(cold(store, "edits, then clone", |db, i| {
        change(db);
        db.clone_prefix("t/", format!("e{i}/")).unwrap();
    }));
    for i in 0..CHAIN {
        let source = if i == 0 { "e19/".into() } else { format!("n{:04}/", i - 1) };
        store.db.clone_prefix(source, format!("n{i:04}/")).unwrap();
    }
    out.push(cold(store, "1,000th of a chain", |db, i| {
        let i = i + CHAIN;
        db.clone_prefix(format!("n{:04}/", i - 1), format!("n{i:04}/")).unwrap();
    }));
    for i in 0..CHAIN {
        store.db.clone_prefix("t/", format!("p{i:04}/")).unwrap();
    }
    out.push(cold(store, "1,000th of one tree", |db, i| {
        db.clone_prefix("t/", format!("p{:04}/", i + CHAIN)).unwrap();
    }));
    out.push(cold(store, "rename", |db, i| {
        let source = if i == 0 { "t/".into() } else { format!("r{}/", i - 1) };
        db.rename_prefix(source, format!("r{i}/")).unwrap();
    }));
    // The first is the tree itself under its last name.
    out.push(cold(store, "delete", |db, i| db.delete_prefix(format!("r{}/", TIMES - 1 - i)).unwrap()));

    assert_eq!(store.db.stats().unwrap().clones_by_value, 0, "the trees must be large enough to be shared");
    for prefix in ["c0/", "e19/", "n0000/", "n1019/", "p0500/"] {
        assert!(store.db.get(key(prefix, count - 1).as_bytes()).unwrap().is_some(), "{prefix}");
    }
    for prefix in ["t/", "r0/", "r19/"] {
        assert_eq!(store.db.prefix(prefix.as_bytes()).count(), 0);
    }
    store.check();
    out
}

#[test]
fn clone_rename_and_delete_do_not_grow_with_the_tree() {
    let _turn = turn();
    let sizes = sizes();
    println!(
        "item 1: one operation on a cold store, with sync and checkpoint; mean and dearest of {TIMES}; \
         {} B nodes",
        sizes.node
    );
    // Requests that reading a whole node takes: its header and its pages.
    let pieces = sizes.node / page_bytes(sizes.node) + 1;
    let mut smallest: Vec<Measured> = Vec::new();
    for count in sizes.trees {
        let measured = measure(&sizes, count);
        for m in &measured {
            println!("{count:>9} values, {:>2} levels  {:<20} {}", m.levels, m.name, m.sum / TIMES);
            println!("{:>51} {}", "dearest", m.most);
        }
        for (m, first) in measured.iter().zip(&smallest) {
            let more = TIMES * m.levels.saturating_sub(first.levels);
            let (sum, base) = (m.sum, first.sum);
            let said = format!("{} of {count}: {sum}; of the smallest tree: {base}", m.name);
            assert!(sum.nodes <= base.nodes + more, "{said}");
            assert!(sum.reads <= base.reads + more * pieces, "{said}");
            assert!(sum.bytes() <= base.bytes() + more * (sizes.node + BLOCK), "{said}");
        }
        for Measured { name, sum, most, levels } in &measured {
            let said = format!("{name} of {count}: {sum}; dearest {most}");
            // On average at most one node of each level is written, and what is read of it is no more.
            let nodes = TIMES * levels;
            assert!(sum.nodes <= nodes, "{said}");
            assert!(sum.reads <= nodes * pieces, "{said}");
            assert!(sum.read_bytes <= nodes * sizes.node, "{said}");
            // Headers differ by some bytes with the number of edges: each is at most a page (or block). What is
            // copied is read at once, and written.
            let pages = sum.reads * page_bytes(sizes.node).max(BLOCK);
            assert!(sum.read_bytes <= pages + sum.write_bytes, "{said}");
            // Beside nodes: log, superblock and its copy, and what leads to each node and to that which is cloned in the
            // translation table.
            assert_eq!(sum.writes, sum.nodes + sum.table_pages + 3 * TIMES, "{said}");
            assert!(sum.table_pages <= (sum.nodes + TIMES) * TABLE_LEVELS, "{said}");
            // The dearest is the one whose message makes a node above overflow: it pays for flushes down the
            // path, with the neighbours that split or merge.
            assert!(most.nodes <= 4 * levels, "{said}");
            assert!(most.bytes() <= 4 * levels * (sizes.node + BLOCK), "{said}");
        }
        if smallest.is_empty() {
            smallest = measured;
        }
    }
}
