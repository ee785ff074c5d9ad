//! Bursts of clones, and of their deletion: what they cost the processor grows with their number and no faster, and
//! what is deleted leaves nothing behind.
#![allow(clippy::unwrap_used)]

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{expect, one_of_three_tries};
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{Device, MemDevice},
};

const MIB: usize = 1 << 20;

/// Items that a clone may cost. A table has a thousand clones and is taken in by a root in which a node's worth of
/// them may rest; what must not come in is the number of all clones, of which there are thousands.
const A_CLONE: u64 = 100;

/// What the stores of a test have in common.
#[derive(Clone, Copy)]
struct Setup {
    node_size: usize,
    /// Of 100 bytes, in the tree that is cloned.
    values: u64,
    cache_bytes: u64,
    /// Whether names come in order.
    sorted: bool,
}

const USUAL: Setup = Setup { node_size: MIB, values: 20_000, cache_bytes: 256 << 20, sorted: true };

impl Setup {
    fn options(&self) -> Options {
        Options::default().background(false).cache_bytes(self.cache_bytes)
    }

    /// A store with the tree `t/`.
    fn store(&self) -> (Arc<MemDevice>, Db) {
        let device = Arc::new(MemDevice::new(1 << 30));
        let create = CreateOptions::default().node_size(self.node_size as u32);
        Db::create(device.clone(), &create, &self.options()).unwrap();
        let db = Db::open(device.clone(), self.options()).unwrap();
        let mut batch = Batch::new();
        for i in 0..self.values {
            let value: Vec<u8> = (0..100).map(|j| (scattered(i) >> (j % 57)) as u8).collect();
            batch.put(format!("t/{i:08}"), value);
            if batch.ops().len() == 1000 {
                db.write(std::mem::take(&mut batch)).unwrap();
            }
        }
        db.write(batch).unwrap();
        db.settle().unwrap();
        (device, db)
    }

    fn name(&self, round: u64, i: u64) -> String {
        let i = if self.sorted { i } else { scattered(i) };
        format!("c{round}{i:016x}/")
    }

    /// Clones of `t/` with an edit each.
    fn clones(&self, db: &Db, round: u64, count: u64) {
        for i in 0..count {
            let name = self.name(round, i);
            db.clone_prefix("t/", name.clone()).unwrap();
            db.put(format!("{name}{:08}", i * 7919 % self.values), "edited").unwrap();
        }
    }

    /// Looks at some of the clones.
    fn check(&self, db: &Db, round: u64, count: u64) {
        for i in (0..count).step_by(97) {
            let get = |key: u64| db.get(format!("{}{key:08}", self.name(round, i)).as_bytes()).unwrap();
            assert_eq!(get(i * 7919 % self.values).as_deref(), Some(&b"edited"[..]));
            assert_eq!(get((i * 7919 + 1) % self.values).map(|v| v.len()), Some(100));
        }
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

fn scattered(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Items handled and time taken by `count` clones, a checkpoint, and closing.
fn cost_of_clones(setup: Setup, count: u64) -> (u64, Duration) {
    let (_, db) = setup.store();
    let before = db.stats().unwrap().items_handled;
    let begun = Instant::now();
    setup.clones(&db, 0, count);
    db.checkpoint().unwrap();
    let took = begun.elapsed();
    let handled = db.stats().unwrap().items_handled - before;
    setup.check(&db, 0, count);
    let begun = Instant::now();
    db.close().unwrap();
    (handled, took + begun.elapsed())
}

/// Each range message copied all edges that its node had by then (`convert`), a wide node was looked at whole for
/// each edge that was flushed, and thin children were spliced in one by one: 5,000 clones took 1.9 s, 10,000 took 7.2
/// s, 20,000 two minutes.
#[test]
fn a_burst_of_clones_costs_in_proportion_to_their_number() {
    let setups = [
        USUAL,
        Setup { sorted: false, ..USUAL },
        Setup { values: 200, cache_bytes: 16 << 20, ..USUAL },
        Setup { node_size: 64 << 10, sorted: false, ..USUAL },
        Setup { node_size: 4 << 10, values: 3000, ..USUAL },
    ];
    let once = |setup: Setup| {
        let (few, short) = cost_of_clones(setup, 2_000);
        let (many, long) = cost_of_clones(setup, 8_000);
        println!("{} B nodes: {few} items, {short:?}; four times as many: {many}, {long:?}", setup.node_size);
        assert!(many < A_CLONE * 8_000, "{few} items were handled for 2,000 clones, {many} for 8,000");
        let most = 12 * short + Duration::from_millis(500);
        expect(long < most, format!("{short:?} for 2,000 clones, {long:?} for 8,000"))
    };
    setups.into_iter().for_each(|setup| one_of_three_tries(|| once(setup)));
}

/// What the clones of one batch are made from.
#[derive(Debug, Clone, Copy)]
enum Sources {
    /// The whole tree.
    One,
    /// A hundredth of it for each, as many times as needed.
    Parts,
    /// The clone before, so that each copies what the batch itself has made; renamed where that is wanted.
    Former { renamed: bool },
    /// The whole tree, and an edit follows each.
    Edited,
}

/// Items handled by a batch of `count` clones and what it leaves to do, without those of the batch itself.
fn cost_of_one_batch(setup: Setup, sources: Sources, count: u64) -> (u64, Duration) {
    let (_, db) = setup.store();
    let mut batch = Batch::new();
    for i in 0..count {
        let name = setup.name(0, i);
        let source = match sources {
            Sources::One | Sources::Edited => "t/".into(),
            Sources::Former { .. } if i > 0 => setup.name(0, i - 1),
            Sources::Former { .. } => "t/".into(),
            Sources::Parts => format!("t/{:06}", i * 7919 % (setup.values / 100)),
        };
        match sources {
            Sources::Former { renamed: true } if i > 0 => _ = batch.rename_prefix(source, name.clone()),
            _ => _ = batch.clone_prefix(source, name.clone()),
        }
        if let Sources::Edited = sources {
            batch.put(format!("{name}{:08}", i * 7919 % setup.values), "edited");
        }
    }
    let before = db.stats().unwrap().items_handled;
    let begun = Instant::now();
    db.write(batch).unwrap();
    db.checkpoint().unwrap();
    let (took, handled) = (begun.elapsed(), db.stats().unwrap().items_handled - before);
    for i in [0, 1, count / 2, count - 1] {
        let copies = match sources {
            Sources::Parts => 100,
            Sources::Former { renamed: true } if i + 1 < count => 0,
            _ => setup.values,
        };
        assert_eq!(db.prefix(setup.name(0, i).as_bytes()).count() as u64, copies, "{sources:?}, clone {i}");
    }
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    (handled, took)
}

/// 4,000 clones in one batch took 25 s: each looked at all that the batch had cloned before, in memory or in the
/// root.
#[test]
fn clones_in_one_batch_cost_in_proportion_to_their_number() {
    let small = Setup { values: 1_000, cache_bytes: 64 << 20, ..USUAL };
    let setups = [
        small,
        Setup { sorted: false, ..small },
        Setup { node_size: 64 << 10, sorted: false, ..small },
        Setup { node_size: 4 << 10, ..small },
    ];
    let sources = [
        Sources::One,
        Sources::Parts,
        Sources::Former { renamed: false },
        Sources::Former { renamed: true },
        Sources::Edited,
    ];
    let once = |setup: Setup, sources: Sources| {
        let (few, short) = cost_of_one_batch(setup, sources, 1_000);
        let (many, long) = cost_of_one_batch(setup, sources, 4 * 1_000);
        let what = format!("{} B nodes, {sources:?}", setup.node_size);
        println!("{what}: {few} items, {short:?}; of four times as many {many}, {long:?}");
        assert!(few >= 1_000, "{what}: {few} items for 1,000 clones: nothing was counted");
        assert!(many < 5 * few, "{what}: {few} items were handled for 1,000 clones, {many} for 4,000");
        let most = 12 * short + Duration::from_millis(500);
        expect(long < most, format!("{what}: {short:?} for 1,000 clones, {long:?} for 4,000"))
    };
    for (setup, sources) in setups.into_iter().flat_map(|setup| sources.map(|sources| (setup, sources))) {
        one_of_three_tries(|| once(setup, sources));
    }
}

/// A device with all that has been written to another one so far.
pub fn copy(device: &MemDevice) -> Arc<MemDevice> {
    let copy = Arc::new(MemDevice::new(device.size()));
    let mut chunk = vec![0; MIB];
    for at in (0..device.size()).step_by(MIB) {
        device.read_at(at, &mut chunk).unwrap();
        if chunk.iter().any(|byte| *byte != 0) {
            copy.write_at(at, &chunk).unwrap();
        }
    }
    copy
}

/// Replay looked at the whole root for every batch, and copied it for every clone: 24 s for 10,000 clones.
#[test]
fn a_crash_after_a_burst_of_clones_is_recovered_in_proportion_to_their_number() {
    let replay = |setup: Setup, count: u64| {
        let (device, db) = setup.store();
        setup.clones(&db, 0, count);
        db.sync().unwrap();
        let crashed = copy(&device);
        let begun = Instant::now();
        let db = Db::open(crashed, setup.options()).unwrap();
        let took = begun.elapsed();
        setup.check(&db, 0, count);
        (db.stats().unwrap().items_handled, took)
    };
    let once = |setup: Setup| {
        let (few, short) = replay(setup, 1_500);
        let (many, long) = replay(setup, 6_000);
        println!("{} B nodes: {few} items, {short:?}; four times as many: {many}, {long:?}", setup.node_size);
        assert!(many < A_CLONE * 6_000, "{few} items were handled for 1,500 clones, {many} for 6,000");
        let most = 12 * short + Duration::from_millis(500);
        expect(long < most, format!("{short:?} for 1,500 clones, {long:?} for 6,000"))
    };
    for setup in [USUAL, Setup { node_size: 64 << 10, sorted: false, ..USUAL }] {
        one_of_three_tries(|| once(setup));
    }
}

/// Edges of all nodes.
fn edges(db: &Db) -> usize {
    let dag = db.inspect(&Default::default()).unwrap();
    dag.nodes.iter().map(|node| node.content.as_ref().unwrap().edges.len()).sum()
}

/// Clones that were deleted left their edges, empty ones between them, and the levels above these for good; rounds
/// with other names piled up.
#[test]
fn clones_that_are_deleted_leave_neither_edges_nor_levels() {
    let setups = [
        USUAL,
        Setup { sorted: false, ..USUAL },
        Setup { values: 2_000, cache_bytes: 16 << 20, ..USUAL },
        Setup { node_size: 64 << 10, sorted: false, ..USUAL },
        Setup { node_size: 16 << 10, values: 3_000, ..USUAL },
    ];
    for setup in setups {
        let (_, db) = setup.store();
        let before = db.stats().unwrap();
        let edges_before = edges(&db);
        for (round, count) in [(0, 10_000), (1, 2_000), (2, 2_000), (3, 2_000)] {
            setup.clones(&db, round, count);
            db.checkpoint().unwrap();
            // In an order of their own, or all at once.
            match round % 2 {
                0 => (0..count).for_each(|i| {
                    db.delete_prefix(setup.name(round, i * 1_237 % count)).unwrap();
                }),
                _ => db.delete_prefix(format!("c{round}")).unwrap(),
            }
            db.settle().unwrap();
        }
        let after = db.stats().unwrap();
        println!(
            "{} B nodes: {:?}, {} B; before {:?}, {} B",
            setup.node_size,
            after.nodes_by_height,
            after.node_bytes,
            before.nodes_by_height,
            before.node_bytes
        );
        let levels =
            |stats: &pando_db::Stats| stats.nodes_by_height.iter().filter(|nodes| **nodes > 0).count();
        assert!(levels(&after) <= levels(&before) + 1, "levels that nothing needs");
        assert!(after.nodes_by_height.len() <= before.nodes_by_height.len() + 1, "it is higher");
        let nodes = |stats: &pando_db::Stats| stats.nodes_by_height.iter().sum::<u64>();
        assert!(nodes(&after) <= nodes(&before) + 3, "nodes that nothing needs");
        let edges = edges(&db);
        assert!(
            edges <= edges_before + edges_before / 8 + 6,
            "{edges} edges are left where {edges_before} were"
        );
        let most = before.node_bytes + before.node_bytes / 8 + 4 * 4096;
        assert!(
            after.node_bytes <= most,
            "{} B are left where {} B were",
            after.node_bytes,
            before.node_bytes
        );
        assert_eq!(db.prefix(b"").count() as u64, setup.values);
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// The level above the clones stayed when they were gone: a root that showed nothing but its one child, which was too
/// wide for being taken in beside other edges.
#[test]
fn the_level_above_deleted_clones_goes_with_them() {
    for (node_size, values) in [(64 << 10, 3_000), (16 << 10, 3_000), (4 << 10, 3_000), (MIB, 40_000)] {
        let setup = Setup { node_size, values, cache_bytes: 64 << 20, sorted: true };
        let (_, db) = setup.store();
        let before = db.stats().unwrap();
        setup.clones(&db, 0, 5_000);
        db.checkpoint().unwrap();
        assert!(db.stats().unwrap().nodes_by_height.len() > before.nodes_by_height.len());
        (0..5_000).for_each(|i| db.delete_prefix(setup.name(0, i)).unwrap());
        db.settle().unwrap();
        let after = db.stats().unwrap();
        println!("{node_size}: {:?}, before {:?}", after.nodes_by_height, before.nodes_by_height);
        assert_eq!(after.nodes_by_height.len(), before.nodes_by_height.len(), "nodes of {node_size} bytes");
        assert_eq!(db.prefix(b"").count() as u64, values);
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// An empty edge beside that of the tree kept the level above it, if the root of the tree had as many edges as a node
/// may have.
#[test]
fn a_full_root_keeps_no_level_above_it() {
    const FANOUT: usize = 8;
    let mut full_roots = 0;
    // The empty edge lies below that of the tree, or above it.
    for (values, names) in [13_000, 13_500, 14_000, 14_500].into_iter().flat_map(|n| [(n, 'c'), (n, 'x')]) {
        let setup = Setup { node_size: 64 << 10, values, cache_bytes: 64 << 20, sorted: false };
        let (_, db) = setup.store();
        let before = db.stats().unwrap();
        let dag = db.inspect(&Default::default()).unwrap();
        let root = dag.nodes.iter().max_by_key(|node| node.height).unwrap();
        full_roots += usize::from(root.content.as_ref().unwrap().edges.len() == FANOUT);
        let name = |i: u64| format!("{names}{:016x}/", scattered(i));
        for i in 0..2_000 {
            db.clone_prefix("t/", name(i)).unwrap();
            db.put(format!("{}{:08}", name(i), i * 7919 % values), "edited").unwrap();
        }
        db.checkpoint().unwrap();
        (0..2_000).for_each(|i| db.delete_prefix(name(i * 1_237 % 2_000)).unwrap());
        db.settle().unwrap();
        let after = db.stats().unwrap();
        assert_eq!(after.nodes_by_height, before.nodes_by_height, "{values} values, clones at {names}");
        assert_eq!(after.node_bytes, before.node_bytes, "{values} values, clones at {names}");
        for i in 0..values {
            assert_eq!(db.get(format!("t/{i:08}").as_bytes()).unwrap().map(|v| v.len()), Some(100));
        }
        assert_eq!(db.range(b"", None).count() as u64, values);
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
    assert!(full_roots > 4, "{full_roots} of 8 trees had a full root");
}

/// Small trees of many shapes, with deleted clones below and above them, and changes meanwhile: they hold what they
/// held, under as many levels. `PANDO_SEED=N` tries one of them, `PANDO_FULL=1` thousands.
#[test]
fn trees_of_many_shapes_outlive_the_clones_beside_them() {
    let single: Option<u64> = std::env::var("PANDO_SEED").ok().and_then(|seed| seed.parse().ok());
    // A root may hold more messages than the node below it has room for, or the changes may need a wider root.
    let mut higher = 0;
    let most = if std::env::var("PANDO_FULL").is_ok_and(|full| full == "1") { 5_000 } else { 160 };
    for seed in single.map_or(0..most, |seed| seed..seed + 1) {
        let random = Cell::new(scattered(seed) | 1);
        let below = |most: u64| {
            let mut x = random.get();
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            random.set(x);
            (x >> 16) % most
        };
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options::default().background(false).cache_bytes(16 << 20);
        Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).unwrap();
        let db = Db::open(device, options).unwrap();
        // The keys share a prefix of some length, also of bytes 0xFF, which have no successor, and lie in directories
        // of unequal sizes.
        let shared = below(6) as usize;
        let (tree, above): (Vec<u8>, &[u8]) = match seed % 3 {
            0 => ([&vec![0xff; shared + 1][..], b"/"].concat(), &[0xff; 9]),
            _ => ([&vec![b'm'; shared + 1][..], b"/"].concat(), b"x"),
        };
        let mut expected = BTreeMap::new();
        let mut put = |db: &Db| {
            let name = format!("{}/{:0w$}", below(1 + seed % 9), below(300), w = 3 + below(3) as usize);
            let key = [&tree[..], name.as_bytes()].concat();
            let value = vec![below(256) as u8; 20 + below(180) as usize];
            db.put(key.clone(), value.clone()).unwrap();
            expected.insert(key, value);
        };
        (0..150 + seed % 40 * 10).for_each(|_| put(&db));
        db.settle().unwrap();
        let levels = db.stats().unwrap().nodes_by_height.len();
        let clones = 20 + below(100);
        let name = |i: u64| {
            let side = [b"a", above][(scattered(i) as usize >> 9) % 2];
            [side, format!("{:08x}/", scattered(i) >> 32).as_bytes()].concat()
        };
        for i in 0..clones {
            db.clone_prefix(tree.clone(), name(i)).unwrap();
            db.put([&name(i)[..], &[below(9) as u8]].concat(), "edited").unwrap();
            if below(10) == 0 {
                put(&db);
            }
        }
        db.checkpoint().unwrap();
        for i in 0..clones {
            db.delete_prefix(name(i)).unwrap();
            if below(20) == 0 {
                put(&db);
            }
            if below(30) == 0 {
                db.checkpoint().unwrap();
            }
        }
        db.settle().unwrap();
        let after = db.stats().unwrap().nodes_by_height.len();
        assert!(after <= levels + 1, "PANDO_SEED={seed}: {after} levels, {levels} before");
        higher += usize::from(after > levels);
        let held: BTreeMap<Vec<u8>, Vec<u8>> = db
            .range(b"", None)
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap())
            .collect();
        assert!(held == expected, "PANDO_SEED={seed}: {} values for {}", held.len(), expected.len());
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "PANDO_SEED={seed}: {findings:?}");
    }
    assert!(higher <= most as usize / 100, "{higher} of {most} trees are higher than before");
}
