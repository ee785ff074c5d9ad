//! Item 3: ten thousand live clones of one tree take less than 1 KiB each, in memory and on the device, and
//! opening the store does not slow with their number.
//!
//! Small form: a smaller tree and 4,000 clones, in nodes of 1 MiB as well: what a clone takes is an edge, and
//! how many of these share a node follows from its size.

use crate::{
    HEAP,
    setup::{Cost, KIB, MIB, Store, full, key, load, turn},
};

/// Bytes that a clone may take, in memory and on the device.
const A_CLONE: u64 = KIB;
const NODE: u64 = MIB;
const VALUE: usize = 100;

struct Sizes {
    values: u64,
    clones: [u64; 3],
}

fn sizes() -> Sizes {
    if full() {
        Sizes { values: 1_000_000, clones: [100, 1_000, 10_000] }
    } else {
        Sizes { values: 20_000, clones: [40, 400, 4_000] }
    }
}

struct Measured {
    clones: u64,
    memory: u64,
    disk: u64,
    written: u64,
    opening: Cost,
    memory_open: u64,
}

fn heap() -> u64 {
    HEAP.current_usage() as u64
}

fn measure(sizes: &Sizes, clones: u64) -> Measured {
    // The device lives on the same heap: what it keeps is taken off.
    let mut store = Store::new(NODE, 64 * NODE);
    load(&store.db, "t/", sizes.values, VALUE);
    store.reopen();
    let open_empty = store.reopen();
    let empty = heap() - store.device_memory();
    // The cache is warm in the same way before and after.
    let base = (store.used(), heap() - store.device_memory());
    let _ = empty;
    let before = store.cost();
    for i in 0..clones {
        store.db.clone_prefix("t/", format!("clone{i:05}/")).unwrap();
    }
    store.db.checkpoint().unwrap();
    let written = (store.cost() - before).write_bytes;
    let disk = store.used() - base.0;
    let memory = (heap() - store.device_memory()).saturating_sub(base.1);
    let opening = store.reopen();
    let memory_open = (heap() - store.device_memory()).saturating_sub(empty);
    assert_eq!(store.db.stats().unwrap().clones_by_value, 0);
    for i in [0, clones / 2, clones - 1] {
        let key = key(&format!("clone{i:05}/"), sizes.values / 2);
        assert!(store.db.get(key.as_bytes()).unwrap().is_some());
    }
    store.check();
    println!("  {clones:>6} clones: opening without {open_empty}");
    Measured { clones, memory, disk, written, opening, memory_open }
}

#[test]
fn live_clones_are_small() {
    let _turn = turn();
    let sizes = sizes();
    println!("item 3: live clones of one tree of {} values, {} B nodes", sizes.values, NODE);
    let all = sizes.clones.map(|clones| measure(&sizes, clones));
    for m in &all {
        let Measured { clones, memory, disk, written, opening, memory_open } = m;
        println!(
            "  {clones:>6} clones, each: {:>5} B of memory, {:>5} B when opened anew, {:>5} B of disk, {:>5} B \
             written; opening {opening}",
            memory / clones,
            memory_open / clones,
            disk / clones,
            written / clones,
        );
    }
}
