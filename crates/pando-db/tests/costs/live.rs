//! Item 3: ten thousand live clones of one tree take less than 1 KiB each, in memory and on the device, and
//! opening the store does not slow with their number.
//!
//! Small form: a smaller tree and 4,000 clones, in nodes of 1 MiB as well: what a clone takes is an edge, and
//! how many of these share a node follows from its size.

use pando_db::device::BLOCK;

use crate::{
    HEAP,
    setup::{Cost, KIB, MIB, Store, full, key, load, turn_alone},
};

/// Bytes that a clone may take, in memory and on the device.
const A_CLONE: u64 = KIB;
/// Bytes of the translation table that opening reads for a clone. Goal 0; 14 were measured: some five clones
/// share a node, and the whole table is read (docs/decisions/free-space.md).
const OPENING: u64 = 16;
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
    /// Opening the store without clones, and with them.
    without: Cost,
    opening: Cost,
    memory_open: u64,
}

impl Store {
    /// Bytes on the heap, but for what the device keeps there.
    fn heap(&self) -> u64 {
        HEAP.current_usage() as u64 - self.device_memory()
    }
}

fn measure(sizes: &Sizes, clones: u64) -> Measured {
    let mut store = Store::new(NODE, 64 * NODE);
    load(&store.db, "t/", sizes.values, VALUE);
    store.reopen();
    let without = store.reopen();
    let used = store.used();
    let empty = store.heap();
    let before = store.cost();
    for i in 0..clones {
        store.db.clone_prefix("t/", format!("clone{i:05}/")).unwrap();
    }
    store.db.checkpoint().unwrap();
    let written = (store.cost() - before).write_bytes;
    let disk = store.used() - used;
    let memory = store.heap().saturating_sub(empty);
    let opening = store.reopen();
    let memory_open = store.heap().saturating_sub(empty);
    assert_eq!(store.db.stats().unwrap().clones_by_value, 0);
    for i in [0, clones / 2, clones - 1] {
        let key = key(&format!("clone{i:05}/"), sizes.values / 2);
        assert!(store.db.get(key.as_bytes()).unwrap().is_some());
    }
    store.check();
    Measured { without, clones, memory, disk, written, opening, memory_open }
}

#[test]
fn live_clones_are_small() {
    let _turn = turn_alone();
    let sizes = sizes();
    println!("item 3: live clones of one tree of {} values, {} B nodes", sizes.values, NODE);
    let all = sizes.clones.map(|clones| measure(&sizes, clones));
    for m in &all {
        let Measured { clones, memory, disk, written, without, opening, memory_open } = m;
        println!(
            "  {clones:>6} clones, each: {:>5} B of memory, {:>5} B when opened anew",
            memory / clones,
            memory_open / clones
        );
        println!("{:>22} {:>5} B of disk, {:>5} B written", "", disk / clones, written / clones);
        println!("  opening without {without}");
        println!("  opening with    {opening}");
        // Of few clones the blocks and tables that are there anyway are a large part.
        if *clones >= 400 {
            assert!(memory / clones < A_CLONE && memory_open / clones < A_CLONE, "memory of {clones} clones");
            assert!(disk / clones < A_CLONE, "{disk} B of disk for {clones} clones");
        }
        let more = opening.bytes() - without.bytes();
        assert!(more <= 2 * BLOCK + clones * OPENING, "opening reads {more} B more for {clones} clones");
    }
    // It does not become dearer the more there are.
    assert!(all[2].disk / all[2].clones <= all[0].disk / all[0].clones);
}
