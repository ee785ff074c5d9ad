//! What `Db::usage_of_each` says of many snapshots of one tree, compared with what each gives back.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{
    Bytes, CreateOptions, Db, Merge, Options, Usage,
    device::{Device, MemDevice},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const DEVICE: u64 = 48 << 20;
const BLOCK: u64 = 4096;

struct Store {
    device: Arc<MemDevice>,
    db: Db,
    rng: StdRng,
    files: u32,
    large: f64,
}

fn options() -> Options {
    Options::default().background(false).memtable_bytes(256 << 10)
}

impl Store {
    fn new(seed: u64, node: u64) -> Store {
        let device = Arc::new(MemDevice::new(DEVICE));
        let create = CreateOptions::default().node_size(node as u32);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        Store { device, db, rng: StdRng::seed_from_u64(seed), files: 600, large: 0.4 }
    }

    fn put(&mut self, key: String) {
        let len = match self.rng.random_bool(self.large) {
            true => self.rng.random_range(2048..9000),
            false => self.rng.random_range(50..800),
        };
        let value: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        self.db.put(key, value).unwrap();
    }

    /// A tree `a/`, of which snapshots are made and deleted between changes; the prefixes of those that are left.
    fn history(&mut self, snapshots: u32) -> Vec<Bytes> {
        (0..self.files).for_each(|n| self.put(format!("a/{n:06}")));
        self.put("z/".into());
        let mut left = Vec::new();
        for snapshot in 0..snapshots {
            for _ in 0..self.rng.random_range(0..3) {
                let from = self.rng.random_range(0..self.files);
                match self.rng.random_range(0..6) {
                    0 => (from..from + 150).for_each(|n| self.put(format!("a/{n:06}"))),
                    1 if self.rng.random_bool(0.5) => {
                        self.db.delete_prefix(format!("a/{:04}", from / 100)).unwrap();
                    }
                    1 => self.db.delete_prefix(format!("a/{:05}", from / 10)).unwrap(),
                    2 => self.db.checkpoint().unwrap(),
                    _ => (0..self.rng.random_range(1..30)).for_each(|_| {
                        let n = self.rng.random_range(0..self.files);
                        self.put(format!("a/{n:06}"));
                    }),
                }
            }
            let name = Bytes::from(format!("s{snapshot:05}/"));
            self.db.clone_prefix("a/", name.clone()).unwrap();
            left.push(name);
            if self.rng.random_bool(0.3) {
                let gone = left.swap_remove(self.rng.random_range(0..left.len()));
                self.db.delete_prefix(gone).unwrap();
            }
        }
        left.sort();
        left
    }

    fn settled(&self) -> u64 {
        self.db.settle().unwrap();
        let stats = self.db.stats().unwrap();
        assert_eq!((stats.reclaimable_nodes, stats.dirty), (0, 0));
        stats.node_bytes
    }

    /// The same store on a device of its own.
    fn copied(&mut self) -> Store {
        let (from, to) = (self.device.clone(), MemDevice::new(DEVICE));
        self.db.close().unwrap();
        let mut buf = vec![0; 1 << 20];
        for at in (0..DEVICE).step_by(buf.len()) {
            from.read_at(at, &mut buf).unwrap();
            if buf.iter().any(|byte| *byte != 0) {
                to.write_at(at, &buf).unwrap();
            }
        }
        let device = Arc::new(to);
        self.db = Db::open(self.device.clone(), options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        Store { device, db, rng: StdRng::seed_from_u64(0), files: self.files, large: self.large }
    }

    /// Deletes these in a copy; the bytes that come back.
    fn freed(&mut self, gone: &[Bytes]) -> i64 {
        let copy = self.copied();
        let before = copy.settled();
        gone.iter().for_each(|prefix| copy.db.delete_prefix(prefix.clone()).unwrap());
        before as i64 - copy.settled() as i64
    }
}

/// What each is said to give back, and what comes back when it alone is deleted.
fn compared(s: &mut Store, all: &[Bytes], some: usize) -> Vec<(Usage, i64)> {
    let groups: Vec<Vec<Bytes>> = all.iter().map(|one| vec![one.clone()]).collect();
    let told = s.db.usage_of_each(&groups).unwrap();
    let mut told: Vec<_> = all.iter().zip(told).collect();
    // Those with the most that is an estimate, and those with the most of all.
    told.sort_by_key(|(_, usage)| std::cmp::Reverse((usage.estimated_bytes, usage.exclusive_bytes)));
    told.truncate(some);
    told.into_iter().map(|(name, usage)| (usage, s.freed(std::slice::from_ref(name)))).collect()
}

/// Bytes by which a figure may be wrong: nodes at the place of what is deleted are written anew.
fn bound(node: u64) -> i64 {
    (node / 4 + 8 * BLOCK) as i64
}

#[test]
fn what_is_said_of_a_snapshot_comes_back() {
    let (mut told, mut estimated, mut flushed, mut errors) = (0, 0, 0, Vec::new());
    for (seed, node) in [(1, 16 << 10), (3, 256 << 10), (11, 128 << 10), (14, 256 << 10)] {
        let mut s = Store::new(seed, node);
        (s.files, s.large) = if seed % 2 == 1 { (600, 0.4) } else { (1500, 0.05) };
        let all = s.history(25);
        s.settled();
        for (usage, freed) in compared(&mut s, &all, 8) {
            let error = freed - usage.exclusive_bytes as i64;
            println!("seed {seed}: {freed} B came back, {error} more than said: {usage:?}");
            assert!(error <= bound(node), "seed {seed}: {freed} B came back, said was {usage:?}");
            // What waits above a node is flushed into it when no second tree needs it, and may make a new leaf.
            if error < -bound(node) {
                flushed += 1;
                continue;
            }
            (told, estimated) = (told + usage.exclusive_bytes, estimated + usage.estimated_bytes);
            errors.push(error.unsigned_abs());
        }
    }
    let mean = errors.iter().sum::<u64>() / errors.len() as u64;
    println!("{told} B were said, {estimated} of them an estimate; an error of {mean} B each");
    assert!(told > 1 << 20 && estimated > 300_000 && mean < 2 * BLOCK, "{told}, {estimated}, {mean}");
    assert!(flushed * 16 <= errors.len(), "{flushed} and {}", errors.len());
}

/// Makes two more snapshots, and compares what is said of `s1/` with what comes back.
fn s1_comes_back_beside_two_more(mut s: Store) {
    s.db.clone_prefix("a/", "s2/").unwrap();
    s.db.clone_prefix("a/", "s3/").unwrap();
    s.settled();
    let (usage, freed) = compared(&mut s, &["s1/".into()], 1)[0].clone();
    println!("{freed} B came back, said was {usage:?}; {:?}", s.db.stats().unwrap().nodes_by_height);
    assert!(freed.abs_diff(usage.exclusive_bytes as i64) < 8 * BLOCK, "{freed} B came back of {usage:?}");
}

/// What waits at an edge of a shared node is not taken out while anything else of the edge is shown.
#[test]
fn messages_of_an_edge_that_stays_do_not_come_back() {
    let mut s = Store::new(1, 256 << 10);
    s.large = 0.0;
    (0..6000).for_each(|n| s.put(format!("a/{n:06}")));
    s.settled();
    // These wait in interior nodes.
    (0..400).for_each(|n| s.put(format!("a/{n:06}")));
    s.db.checkpoint().unwrap();
    s.db.clone_prefix("a/", "s1/").unwrap();
    (0..3).for_each(|n| s.db.delete_prefix(format!("a/000{n}")).unwrap());
    s1_comes_back_beside_two_more(s);
}

/// A leaf of several trees of which a small part is shown no more stays as it is.
#[test]
fn little_of_a_leaf_of_several_trees_does_not_come_back() {
    let mut s = Store::new(2, 256 << 10);
    s.large = 0.0;
    (0..5000).for_each(|n| s.put(format!("a/{n:06}")));
    s.settled();
    s.db.clone_prefix("a/", "s1/").unwrap();
    // A tenth of each leaf.
    for ten in (0..500).filter(|ten| ten % 50 < 5) {
        s.db.delete_prefix(format!("a/{ten:05}")).unwrap();
    }
    s1_comes_back_beside_two_more(s);
}

/// A patch of a value: its place in pages, and its bytes.
struct Patch;

const PAGE_BYTES: usize = 4096;

impl Merge for Patch {
    fn name(&self) -> &'static str {
        "patch"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        let (page, with) = op.split_first()?;
        let (mut new, at) = (old.unwrap_or_default().to_vec(), *page as usize * PAGE_BYTES);
        new.resize(new.len().max(at + with.len()), 0);
        new[at..at + with.len()].copy_from_slice(with);
        Some(new.into())
    }
}

/// A file that is written at random between its snapshots, as databases and disk images are. A deletion of a snapshot
/// left nodes with one path, and these were flushed into: what waited above them was written into leaves that other
/// snapshots went on using in their old form, so that the deletion took up to nine times what it should give.
#[test]
fn deleting_a_snapshot_of_a_file_written_at_random_gives_what_was_said() {
    const VALUES: u32 = 2048;
    const SNAPSHOTS: u32 = 8;
    for node in [16 << 10, 1 << 20] {
        let options = || options().merge(Arc::new(Patch));
        let device = Arc::new(MemDevice::new(512 << 20));
        Db::create(device.clone(), &CreateOptions::default().node_size(node), &options()).unwrap();
        let db = Db::open(device, options()).unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        let mut noise = |len: usize| (0..len).map(|_| rng.random()).collect::<Vec<u8>>();
        (0..VALUES).for_each(|i| db.put(format!("a/{i:05}"), noise(4 * PAGE_BYTES)).unwrap());
        let mut order = StdRng::seed_from_u64(2);
        for snapshot in 0..SNAPSHOTS {
            for _ in 0..VALUES / 6 {
                let mut patch = noise(1 + PAGE_BYTES);
                patch[0] = order.random_range(0..4);
                db.upsert(format!("a/{:05}", order.random_range(0..VALUES)), patch).unwrap();
            }
            db.checkpoint().unwrap();
            db.clone_prefix("a/", format!("s{snapshot}/")).unwrap();
        }
        let used = || {
            db.settle().unwrap();
            db.stats().unwrap().node_bytes as i64
        };
        for snapshot in [3, 5, 6, 1, 0, 7, 2, 4] {
            let (prefix, before) = (Bytes::from(format!("s{snapshot}/")), used());
            let said = db.usage_of_each(&[vec![prefix.clone()]]).unwrap().remove(0).exclusive_bytes as i64;
            db.delete_prefix(prefix).unwrap();
            let freed = before - used();
            println!("nodes of {node}: snapshot {snapshot} was said to have {said} B, {freed} came back");
            assert!(
                (freed - said).abs() <= 8 * BLOCK as i64,
                "{node}, {snapshot}: {said} said, {freed} came"
            );
        }
        assert!(db.check().unwrap().findings.is_empty());
        db.close().unwrap();
    }
}
