//! `Db::usage` counts extents as the allocator does: those too that several nodes, or a node and a copy of
//! it, use together.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use pando_db::{CreateOptions, Db, InspectOptions, Options, device::MemDevice};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const NODE: u64 = 16 << 10;
const BLOCK: u64 = 4096;

struct Store {
    device: Arc<MemDevice>,
    db: Db,
    rng: StdRng,
}

fn options() -> Options {
    Options::default().background(false).memtable_bytes(256 << 10)
}

/// Who uses an extent.
#[derive(Default, Debug)]
struct Used {
    len: u64,
    shared: bool,
    by: BTreeSet<u64>,
}

impl Store {
    fn new(seed: u64) -> Store {
        Store::with_nodes(seed, NODE)
    }

    fn with_nodes(seed: u64, node_size: u64) -> Store {
        let device = Arc::new(MemDevice::new(256 << 20));
        let create = CreateOptions::default().node_size(node_size as u32);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        Store { device, db, rng: StdRng::seed_from_u64(seed) }
    }

    fn reopen(&mut self) {
        self.db.close().unwrap();
        self.db = Db::open(self.device.clone(), options()).unwrap();
    }

    /// Small values wait in interior nodes, large ones lie where the log has placed them.
    fn put(&mut self, key: String) {
        let len = match self.rng.random_bool(0.3) {
            true => self.rng.random_range(2048..6000),
            false => self.rng.random_range(50..800),
        };
        let value: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        self.db.put(key, value).unwrap();
    }

    fn fill(&mut self, prefix: &str, count: u32) {
        (0..count).for_each(|n| self.put(format!("{prefix}{n:06}")));
    }

    fn edit(&mut self, prefix: &str, times: u32) {
        for _ in 0..times {
            let n = self.rng.random_range(0..800);
            self.put(format!("{prefix}{n:06}"));
        }
    }

    /// Bytes that nodes have in use once everything has settled.
    fn settled(&self) -> u64 {
        self.db.settle().unwrap();
        let stats = self.db.stats().unwrap();
        assert_eq!((stats.reclaimable_nodes, stats.dirty), (0, 0));
        stats.node_bytes
    }

    /// All extents of nodes, by offset.
    fn extents(&self) -> BTreeMap<u64, Used> {
        let all = self.db.inspect(&InspectOptions { limit: usize::MAX, ..Default::default() }).unwrap();
        assert_eq!(all.nodes.len() as u64, all.nodes_in_all);
        let mut extents = BTreeMap::<u64, Used>::new();
        for node in &all.nodes {
            for extent in &node.extents {
                let used = extents.entry(extent.offset).or_default();
                (used.len, used.shared) = (extent.len, extent.shared);
                used.by.insert(node.id);
            }
        }
        extents
    }

    /// Deletes a prefix; the bytes that came back and the nodes that went.
    fn delete(&self, prefix: &str) -> (i64, BTreeSet<u64>) {
        let (used, before) = (self.settled(), nodes(&self.extents()));
        self.db.delete_prefix(prefix.to_string()).unwrap();
        let (left, after) = (self.settled(), nodes(&self.extents()));
        (used as i64 - left as i64, before.difference(&after).copied().collect())
    }

    /// A random history over trees `a/` to at most `f/`, of which each has keys `x` and `y`.
    fn history(&mut self, steps: u32) -> u32 {
        self.fill("a/x", 400);
        self.fill("a/y", 400);
        let mut trees = 1;
        for _ in 0..steps {
            let tree = |n: u32| format!("{}/", (b'a' + n as u8) as char);
            let some = tree(self.rng.random_range(0..trees));
            match self.rng.random_range(0..10) {
                0 | 1 if trees < 6 => {
                    self.db.clone_prefix(some, tree(trees)).unwrap();
                    trees += 1;
                }
                2 => self.db.delete_prefix(format!("{some}x{:05}", self.rng.random_range(0..40))).unwrap(),
                3 => self.db.checkpoint().unwrap(),
                4 => {
                    let (part, n) =
                        (['x', 'y'][self.rng.random_range(0..2usize)], self.rng.random_range(0..300));
                    (n..n + 80).for_each(|n| self.put(format!("{some}{part}{n:06}")));
                }
                _ => {
                    for _ in 0..self.rng.random_range(1..120) {
                        let (part, n) =
                            (['x', 'y'][self.rng.random_range(0..2usize)], self.rng.random_range(0..600));
                        self.put(format!("{some}{part}{n:06}"));
                    }
                }
            }
        }
        trees
    }
}

/// How many extents lose some of several users, and how many all, with the nodes `gone`.
fn common(extents: &BTreeMap<u64, Used>, gone: &BTreeSet<u64>) -> (usize, usize) {
    let common = || extents.values().filter(|extent| extent.by.len() > 1 && !extent.by.is_disjoint(gone));
    let all = common().filter(|extent| extent.by.is_subset(gone)).count();
    (common().count() - all, all)
}

fn nodes(extents: &BTreeMap<u64, Used>) -> BTreeSet<u64> {
    extents.values().flat_map(|extent| extent.by.iter().copied()).collect()
}

#[test]
fn all_keys_together_take_just_what_nodes_have_in_use() {
    let mut common = 0;
    for seed in 0..8 {
        let mut s = Store::new(seed);
        for _ in 0..3 {
            s.history(25);
            let (used, extents) = (s.settled(), s.extents());
            assert_eq!(extents.values().map(|extent| extent.len).sum::<u64>(), used, "somebody holds more");
            let usage = s.db.usage(b"").unwrap();
            assert_eq!(usage.stored_bytes, used, "seed {seed}: {usage:?}");
            assert!(usage.shared_bytes <= NODE, "nothing but the root stays: {usage:?}");
            common += extents.values().filter(|extent| extent.by.len() > 1).count();
        }
        let usage = s.db.usage(b"").unwrap();
        s.reopen();
        assert_eq!(s.db.usage(b"").unwrap(), usage, "seed {seed}, opened again");
    }
    assert!(common > 200, "{common} extents of several nodes");
}

#[test]
fn what_is_exclusive_comes_back_to_the_byte_with_the_nodes_that_go() {
    let (mut exact, mut some, mut all) = (0, 0, 0);
    for seed in 100..140 {
        let mut s = Store::new(seed);
        let trees = s.history(40);
        for _ in 0..2 {
            let victim = (b'a' + s.rng.random_range(0..trees) as u8) as char;
            let prefix = format!("{victim}/{}", ["", "x", "y"][s.rng.random_range(0..3usize)]);
            s.settled();
            let before = s.extents();
            let usage = s.db.usage(prefix.as_bytes()).unwrap();
            let (freed, gone) = s.delete(&prefix);
            let with_them: u64 = before.values().filter(|e| e.by.is_subset(&gone)).map(|e| e.len).sum();
            let sure = usage.exclusive_bytes - usage.estimated_bytes;
            assert!(usage.exclusive_nodes <= gone.len() as u64 && sure <= with_them, "{prefix}: {usage:?}");
            // Nodes at the borders may have been joined with others: estimated were their pages, and what is left
            // unused beside them may come back too.
            let joined = gone.len() as u64 - usage.exclusive_nodes;
            let slack = (usage.estimated_bytes + (2 + joined) * BLOCK) as i64;
            let more = freed - usage.exclusive_bytes as i64;
            assert!(more >= -slack, "seed {seed}, {prefix}: {more} of {usage:?}");
            assert!(more <= slack + (joined * NODE / 2) as i64, "seed {seed}, {prefix}: {more} of {usage:?}");
            if joined == 0 {
                assert_eq!(sure, with_them, "seed {seed}, {prefix}: {usage:?}");
                let (in_part, as_a_whole) = common(&before, &gone);
                (exact, some, all) = (exact + 1, some + in_part, all + as_a_whole);
            }
        }
    }
    assert!(
        exact >= 20 && some >= 20 && all >= 4,
        "{exact} exact; {some} extents lost a user, {all} the last"
    );
}

#[test]
fn an_extent_of_two_versions_of_a_node_goes_with_the_later() {
    let mut of_two = 0;
    for seed in 200..208 {
        let mut s = Store::new(seed);
        s.fill("a/", 800);
        s.fill("z/", 200);
        s.settled();
        // These wait in interior nodes, of which the clone's edits make copies that go on using the place.
        s.edit("a/", 250);
        s.db.checkpoint().unwrap();
        s.db.clone_prefix("a/", "b/").unwrap();
        // Old versions that a reader holds change nothing in what is said.
        let reader = s.db.snapshot();
        s.edit("b/", 250);
        s.settled();
        let extents = s.extents();
        let b = s.db.usage(b"b/").unwrap();
        let both = s.db.usage_of(&["a/".into(), "b/".into()]).unwrap();
        // The clone's edge is its own, so no node has to be written anew for this but the root, which may take a block
        // less without it.
        drop(reader);
        let (freed, of_b) = s.delete("b/");
        let more = freed - (b.exclusive_bytes - b.estimated_bytes) as i64;
        // A level that nothing needs any more goes too: a node, and what waited in it, is taken into the root.
        assert!((0..=5 * NODE as i64).contains(&more), "seed {seed}: {more} more than {b:?}");
        assert!(b.estimated_bytes < BLOCK, "seed {seed}: {b:?}");
        let left = |extent: &&Used| !extent.by.is_disjoint(&of_b) && !extent.by.is_subset(&of_b);
        of_two += extents.values().filter(left).count();
        let alone = s.db.usage(b"a/").unwrap();
        let (later, of_a) = s.delete("a/");
        for (freed, nodes, usage) in
            [(later, of_a.len(), &alone), (freed + later, of_a.len() + of_b.len(), &both)]
        {
            let joined = nodes as u64 - usage.exclusive_nodes;
            let error = freed.abs_diff(usage.exclusive_bytes as i64);
            assert!(
                error <= usage.estimated_bytes + (2 + joined) * BLOCK,
                "seed {seed}: {error} of {usage:?}"
            );
        }
    }
    assert!(of_two > 20, "{of_two} extents of two versions");
}

#[test]
fn a_fresh_clone_and_its_source_share_extents_as_a_whole() {
    let mut s = Store::new(300);
    s.fill("a/", 1500);
    s.fill("z/", 200);
    s.settled();
    s.edit("a/", 400);
    s.settled();
    let of_pages: u64 = s.extents().values().filter(|extent| extent.shared).map(|extent| extent.len).sum();
    assert!(of_pages > 20 * NODE, "{of_pages}");
    let alone = s.db.usage(b"a/").unwrap();
    s.db.clone_prefix("a/", "b/").unwrap();
    s.settled();
    for prefix in ["a/", "b/"] {
        let usage = s.db.usage(prefix.as_bytes()).unwrap();
        assert!(
            usage.stored_bytes.abs_diff(alone.stored_bytes) <= 3 * NODE,
            "{prefix}: {usage:?}, {alone:?}"
        );
    }
}

#[test]
fn an_extent_that_a_node_goes_on_using_does_not_come_back_in_part() {
    // Where the prefix begins, a page is cut.
    const PAGE: u64 = 32 << 10;
    let mut kept = 0;
    for part in 1..8 {
        let mut s = Store::with_nodes(part, 256 << 10);
        // One leaf, two extents, where the log has placed them.
        for n in 0..40 {
            let value: Vec<u8> = (0..4000).map(|_| s.rng.random()).collect();
            let tree = if n < part * 5 { 'a' } else { 'b' };
            s.db.put(format!("{tree}/{n:06}"), value).unwrap();
        }
        s.settled();
        let before = s.extents();
        let usage = s.db.usage(b"b/").unwrap();
        let (freed, _) = s.delete("b/");
        let after = s.extents();
        let vanished: u64 = before.iter().filter(|(at, _)| !after.contains_key(at)).map(|(_, e)| e.len).sum();
        assert!(usage.exclusive_bytes <= vanished, "{part} of 8: {vanished}, said was {usage:?}");
        let error = freed.abs_diff(usage.exclusive_bytes as i64);
        assert!(error <= usage.estimated_bytes + PAGE + 2 * BLOCK, "{part} of 8: {error} of {usage:?}");
        kept += before.iter().filter(|(at, extent)| extent.shared && after.contains_key(at)).count();
    }
    assert!(kept > 6, "{kept} extents stayed");
}
