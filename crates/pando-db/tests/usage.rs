//! What `Db::usage` says comes back is what comes back when the prefix is deleted.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{CreateOptions, Db, Options, Usage, device::MemDevice};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const NODE: u64 = 16 << 10;

struct Store {
    device: Arc<MemDevice>,
    db: Db,
    rng: StdRng,
}

fn options() -> Options {
    Options::default().background(false).memtable_bytes(64 << 10)
}

impl Store {
    fn new(seed: u64) -> Store {
        let device = Arc::new(MemDevice::new(256 << 20));
        let create = CreateOptions::default().node_size(NODE as u32);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        Store { device, db, rng: StdRng::seed_from_u64(seed) }
    }

    /// Closes and opens it, so that nothing is in its cache.
    fn reopen(&mut self) {
        self.db.close().unwrap();
        self.db = Db::open(self.device.clone(), options()).unwrap();
    }

    fn put(&mut self, prefix: &str, n: u32) {
        let value: Vec<u8> = (0..self.rng.random_range(100..1000)).map(|_| self.rng.random()).collect();
        self.db.put(format!("{prefix}{n:06}"), value).unwrap();
    }

    fn fill(&mut self, prefix: &str, count: u32) {
        (0..count).for_each(|n| self.put(prefix, n));
    }

    /// Bytes in use once everything has settled.
    fn settled(&self) -> u64 {
        self.db.settle().unwrap();
        assert_eq!(self.db.stats().unwrap().reclaimable_nodes, 0);
        self.db.stats().unwrap().used
    }

    /// Deletes a prefix and compares what comes back with what was said. Allows for the nodes at the
    /// borders: `slack` nodes.
    fn delete(&self, prefix: &str, slack: u64) -> Usage {
        let before = self.settled();
        let usage = self.db.usage(prefix.as_bytes()).unwrap();
        assert_eq!(usage.stored_bytes, usage.exclusive_bytes + usage.shared_bytes);
        assert!(usage.estimated_bytes <= usage.exclusive_bytes);
        self.db.delete_prefix(prefix.to_string()).unwrap();
        let freed = before as i64 - self.settled() as i64;
        println!("{prefix}: {freed} bytes came back, said was {usage:?}");
        let error = (freed - usage.exclusive_bytes as i64).unsigned_abs();
        assert!(error <= slack * NODE, "{prefix}: {freed} bytes came back, said was {usage:?}");
        let after = self.db.usage(prefix.as_bytes()).unwrap();
        assert!(after.exclusive_bytes <= slack * NODE, "{after:?}");
        usage
    }
}

#[test]
fn a_tree_of_its_own_is_exclusive() {
    let mut s = Store::new(1);
    s.fill("a/", 3000);
    s.fill("b/", 3000);
    s.fill("c/", 3000);
    let usage = s.delete("b/", 4);
    assert!(usage.exclusive_bytes > 1_300_000 && usage.exclusive_nodes > 50, "{usage:?}");
    assert!(usage.shared_bytes < 4 * NODE, "{usage:?}");
    assert!(usage.visible_bytes > 1_300_000 && usage.visible_bytes < 2_200_000, "{usage:?}");
    // And nothing under a prefix that has nothing.
    let none = s.db.usage(b"b/").unwrap();
    assert!(none.exclusive_nodes <= 1 && none.visible_bytes < NODE, "{none:?}");
}

#[test]
fn a_fresh_clone_owns_nothing_and_neither_does_its_source() {
    let mut s = Store::new(2);
    s.fill("a/", 3000);
    s.fill("z/", 3000);
    s.settled();
    let alone = s.db.usage(b"a/").unwrap();
    s.db.clone_prefix("a/", "b/").unwrap();
    for prefix in ["a/", "b/"] {
        s.settled();
        let usage = s.db.usage(prefix.as_bytes()).unwrap();
        assert!(usage.exclusive_bytes <= 2 * NODE, "{prefix}: {usage:?}");
        assert!(usage.shared_bytes * 10 > alone.exclusive_bytes * 8, "{prefix}: {usage:?}, {alone:?}");
        assert!(usage.visible_bytes * 10 > alone.visible_bytes * 8, "{prefix}: {usage:?}, {alone:?}");
    }
    let both = s.settled();
    s.delete("a/", 3);
    // What was shared is the clone's own now, also where it lay in nodes that hold other trees as well.
    s.delete("b/", 4);
    let freed = both - s.settled();
    assert!(freed * 10 > alone.exclusive_bytes * 9, "{freed} bytes came back of {alone:?}");
}

#[test]
fn an_edited_clone_owns_its_edits() {
    let mut s = Store::new(3);
    s.fill("a/", 4000);
    s.fill("z/", 1000);
    s.db.clone_prefix("a/", "b/").unwrap();
    for n in 1000..2000 {
        s.put("b/", n);
    }
    let usage = s.delete("b/", 4);
    assert!(usage.exclusive_bytes > 400_000 && usage.exclusive_bytes < 1_500_000, "{usage:?}");
    assert!(usage.shared_bytes > 500_000, "{usage:?}");
    let usage = s.delete("a/", 4);
    assert!(usage.exclusive_bytes > 1_500_000 && usage.shared_bytes < 4 * NODE, "{usage:?}");
}

/// Each of many small prefixes counted the whole page that it lies in, so files of 1 byte seemed to have 11 KB each.
#[test]
fn many_prefixes_in_one_page_see_it_once() {
    let mut s = Store::new(7);
    s.fill("a/", 3000);
    s.settled();
    let keys = |step: usize| {
        (0..3000).step_by(step).map(|n| format!("a/{n:06}").into()).collect::<Vec<bytes::Bytes>>()
    };
    let of = |prefixes: &[bytes::Bytes]| s.db.usage_of(prefixes).unwrap().visible_bytes;
    let all = of(&["a/".into()]);
    assert!(all > 1_300_000, "{all}");
    assert_eq!(of(&keys(1)), all);
    let half = of(&keys(2));
    assert!((all / 2..=all).contains(&half), "{half} of {all}");
    let few = of(&keys(300));
    assert!(few < all / 3, "{few} of {all}");
}

#[test]
fn two_clones_under_one_prefix_share_only_with_each_other() {
    let mut s = Store::new(4);
    s.fill("t/one/", 3000);
    s.fill("u/", 2000);
    s.db.clone_prefix("t/one/", "t/two/").unwrap();
    s.settled();
    let one = s.db.usage(b"t/one/").unwrap();
    let both = s.db.usage(b"t/").unwrap();
    assert!(one.exclusive_bytes <= 2 * NODE && both.exclusive_bytes > 1_300_000, "{one:?} {both:?}");
    assert!(both.visible_bytes > one.visible_bytes * 19 / 10, "seen twice: {one:?} {both:?}");
    assert!(both.stored_bytes < one.stored_bytes * 12 / 10, "kept once: {one:?} {both:?}");
    let listed = s.db.usage_of(&["t/one/".into(), "t/two/".into()]).unwrap();
    assert!(listed.exclusive_bytes.abs_diff(both.exclusive_bytes) <= 6 * NODE, "{listed:?} {both:?}");
    assert!(s.db.usage_of(&["t/".into(), "t/two/".into()]).is_err());
    s.delete("t/", 4);
}

#[test]
fn parts_of_shared_trees_and_random_histories() {
    for seed in 10..16 {
        let mut s = Store::new(seed);
        let tree = |n: u32| format!("{}/", (b'a' + n as u8) as char);
        s.fill("a/x", 1200);
        s.fill("a/y", 1200);
        s.fill("q/", 500);
        let mut trees = 1;
        for _ in 0..s.rng.random_range(2..8) {
            let source = tree(s.rng.random_range(0..trees));
            s.db.clone_prefix(source, tree(trees)).unwrap();
            trees += 1;
            let edited = tree(s.rng.random_range(0..trees));
            for _ in 0..s.rng.random_range(0..400) {
                let n = s.rng.random_range(0..1200);
                let half = if s.rng.random_bool(0.5) { "x" } else { "y" };
                s.put(&format!("{edited}{half}"), n);
            }
        }
        let all: Vec<Vec<bytes::Bytes>> = (0..trees).map(|n| vec![tree(n).into()]).collect();
        let each = s.db.usage_of_each(&all).unwrap();
        assert!(all.iter().zip(each).all(|(one, told)| s.db.usage_of(one).unwrap() == told), "seed {seed}");
        for _ in 0..3 {
            let victim = tree(s.rng.random_range(0..trees));
            let part = ["", "x", "y"][s.rng.random_range(0..3usize)];
            s.delete(&format!("{victim}{part}"), 6);
        }
        assert!(s.db.check().unwrap().findings.is_empty());
    }
}

#[test]
fn what_is_only_in_memory_counts_too() {
    let mut s = Store::new(5);
    s.fill("a/", 3000);
    s.db.checkpoint().unwrap();
    // The Goto of this clone is in memory: nothing counts it but the clone's pin.
    s.db.clone_prefix("a/", "b/").unwrap();
    let (a, b) = (s.db.usage(b"a/").unwrap(), s.db.usage(b"b/").unwrap());
    assert!(a.exclusive_bytes <= 2 * NODE && b.exclusive_bytes <= 2 * NODE, "{a:?} {b:?}");
    s.db.delete_prefix("b/").unwrap();
    assert!(s.db.usage(b"a/").unwrap().exclusive_bytes > 1_300_000);
}

/// Each path to a node brought a range of what stays, equal to those before: n trees that hold the last one twice made
/// 2^n of them in every node of the first, so the usage of any prefix did not end or took all memory. And as soon as
/// there were two, the headers of all leaves of the tree were read.
#[test]
fn what_clones_of_clones_show_on_many_paths_costs_usage_no_more_than_one() {
    let mut s = Store::new(8);
    s.fill("t00/", 4000);
    s.fill("z/", 10);
    for level in 1..=60usize {
        for copy in ["a", "b"] {
            s.db.clone_prefix(format!("t{:02}/", level - 1), format!("t{level:02}/{copy}/")).unwrap();
        }
        // One path shows less.
        s.db.delete_prefix(format!("t{level:02}/{}{level:05}", "a/".repeat(level))).unwrap();
        if ![1, 2, 4, 60].contains(&level) {
            continue;
        }
        s.settled();
        s.reopen();
        let before = s.db.stats().unwrap();
        let (leaves, interior) = (before.nodes_by_height[0], before.nodes_by_height[1..].iter().sum::<u64>());
        let z = s.db.usage(b"z/").unwrap();
        let reads = s.db.stats().unwrap().device.reads - before.device.reads;
        println!("{level} levels: {reads} reads, {leaves} leaves, {interior} interior nodes");
        assert!(
            leaves > 100 && reads < interior + leaves / 4,
            "{level} levels: {reads} reads, {leaves} leaves"
        );
        assert!(z.visible_bytes < 3 * NODE, "{z:?}");
        let all = s.db.usage(b"").unwrap();
        assert_eq!(all.stored_bytes, s.db.stats().unwrap().node_bytes, "{level} levels: {all:?}");
        // The root never goes.
        assert!(all.shared_bytes <= NODE, "{level} levels: {all:?}");
    }
}
