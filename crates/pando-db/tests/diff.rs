//! The difference of two prefixes against the oracle's: random histories with clones, renames, deletes of ranges and
//! changes of all values under a prefix, in tiny nodes, between snapshots of any moments.
//!
//! `PANDO_DIFF_SECONDS` sets the time (8), `PANDO_SEED=N` tries one history.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::model::{
    config::{Config, Profile},
    generate::Generator,
    oracle::{World, show},
    rng::Rng,
    step::Step,
};
use bytes::Bytes;
use pando_db::{
    Batch, Change, CreateOptions, Db, Error, Op, Options, Snapshot,
    device::{DeviceCall, HookedDevice, MemDevice, SimDevice},
    patch,
};

/// What `before` and `after` say differently, by the simplest way.
fn expected(before: (&World, &[u8]), after: (&World, &[u8])) -> Vec<Change> {
    let pairs = |(world, prefix): (&World, &[u8])| -> Vec<(Bytes, Bytes)> {
        world.prefix(prefix).map(|(key, value)| (key.slice(prefix.len()..), value.clone())).collect()
    };
    let (old, new) = (pairs(before), pairs(after));
    let mut keys: Vec<Bytes> = old.iter().chain(&new).map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys.dedup();
    let value = |of: &[(Bytes, Bytes)], key: &Bytes| {
        of.binary_search_by(|(k, _)| k.cmp(key)).ok().map(|i| of[i].1.clone())
    };
    let changes = keys.into_iter().map(|key| {
        let (before, after) = (value(&old, &key), value(&new, &key));
        Change { key, before, after }
    });
    changes.filter(|change| change.before != change.after).collect()
}

#[derive(Default)]
struct Tally {
    diffs: u64,
    of_clones: u64,
    of_moments: u64,
    changes: u64,
    empty: u64,
    seeks: u64,
    most: usize,
}

struct History {
    rng: Rng,
    db: Db,
    device: Arc<SimDevice>,
    config: Config,
    world: World,
    /// Snapshots of earlier moments.
    moments: VecDeque<(Snapshot, World)>,
    /// Prefixes of which one was cloned or renamed to the other.
    pairs: VecDeque<(Bytes, Bytes)>,
}

impl History {
    fn write(&mut self, ops: Vec<Op>) {
        if self.world.refusal(&ops).is_some() {
            return;
        }
        let mut batch = Batch::new();
        ops.iter().for_each(|op| _ = batch.push(op.clone()));
        match self.db.write(batch) {
            Ok(()) => self.world = self.world.after(&ops),
            Err(Error::TooLarge { .. }) => return,
            Err(error) => panic!("write: {error}"),
        }
        for op in ops {
            if let Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) = op {
                self.pairs.push_back((src, dst));
                if self.pairs.len() > 6 {
                    self.pairs.pop_front();
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(ops) => self.write(ops),
            Step::Checkpoint => self.db.checkpoint().unwrap(),
            Step::Settle => self.db.settle().unwrap(),
            Step::Snapshot(_) => {
                self.moments.push_back((self.db.snapshot(), self.world.clone()));
                if self.moments.len() > 3 {
                    self.moments.pop_front();
                }
            }
            Step::Reopen { with, .. } => {
                self.moments.clear();
                self.db.close().unwrap();
                self.db = Db::open(self.device.clone(), self.config.options(&with)).unwrap();
            }
            _ => (),
        }
    }

    fn prefix(&mut self) -> Bytes {
        let at = self.rng.below(self.world.len() as u64 + 1) as usize;
        let key = self.world.range(&[], None).nth(at).map(|(key, _)| key.clone()).unwrap_or_default();
        key.slice(..self.rng.below(key.len() as u64 + 1) as usize)
    }

    fn prefixes(&mut self, tally: &mut Tally) -> (Bytes, Bytes) {
        let some = self.rng.below(self.pairs.len() as u64 + 1) as usize;
        match self.pairs.get(some).cloned() {
            Some((a, b)) => {
                tally.of_clones += 1;
                // The same place below both, or both, either way round.
                let below = self.world.prefix(&a).next().map(|(key, _)| key.slice(a.len()..));
                let more = below.filter(|_| self.rng.chance(300)).unwrap_or_default();
                let more = more.slice(..self.rng.below(more.len() as u64 + 1) as usize);
                let (a, b) = ([a, more.clone()].concat().into(), [b, more].concat().into());
                if self.rng.chance(500) { (a, b) } else { (b, a) }
            }
            None if self.rng.chance(500) => {
                let same = self.prefix();
                (same.clone(), same)
            }
            None => (self.prefix(), self.prefix()),
        }
    }

    fn compare(&mut self, tally: &mut Tally) {
        let (a, b) = self.prefixes(tally);
        let now = (self.db.snapshot(), self.world.clone());
        let pick = |rng: &mut Rng| {
            let i = rng.below(2 * self.moments.len() as u64 + 2) as usize;
            self.moments.get(i).cloned().unwrap_or_else(|| now.clone())
        };
        let (before, after) = (pick(&mut self.rng), pick(&mut self.rng));
        tally.of_moments += u64::from(before.1.digest() != after.1.digest());
        let mut wanted = expected((&before.1, &a), (&after.1, &b));
        let mut diff = before.0.diff(&a, &after.0, &b).unwrap();
        if self.rng.chance(250) {
            tally.seeks += 1;
            let at = self.rng.below(wanted.len() as u64 + 1) as usize;
            let mut key = wanted.get(at).map(|change| change.key.to_vec()).unwrap_or_default();
            // Something has been given before.
            diff.by_ref().take(self.rng.below(3) as usize).for_each(|change| _ = change.unwrap());
            key.truncate(self.rng.below(key.len() as u64 + 1) as usize);
            diff.seek(&key);
            wanted.retain(|change| *change.key >= *key);
        }
        let found: Vec<Change> = diff.map(|change| change.unwrap()).collect();
        if found != wanted {
            let i = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            panic!(
                "diff of {} and {}: {} changes, {} expected; number {i} is {:?}, not {:?}",
                show(&a),
                show(&b),
                found.len(),
                wanted.len(),
                found.get(i),
                wanted.get(i)
            );
        }
        tally.diffs += 1;
        tally.changes += found.len() as u64;
        tally.empty += u64::from(found.is_empty());
        tally.most = tally.most.max(found.len());
    }
}

fn run(seed: u64, tally: &mut Tally) {
    let config = Config::new(seed, Profile::Crashes);
    let device = Arc::new(SimDevice::new(config.device_size, seed));
    let options = config.options(&config.first);
    Db::create(device.clone(), &config.create_options(), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    let mut history = History {
        rng: Rng(seed ^ 0xD1FF),
        db,
        device,
        config: config.clone(),
        world: World::default(),
        moments: VecDeque::new(),
        pairs: VecDeque::new(),
    };
    let mut generator = Generator::new(&config);
    for i in 0..config.steps {
        let step = generator.step(&history.world);
        // Conditions are not what this is about.
        if !matches!(step, Step::Expect(_)) {
            history.step(step);
        }
        if i % 5 == 4 {
            history.compare(tally);
        }
    }
}

#[test]
fn differences_are_those_of_the_oracle() {
    let given = std::env::var("PANDO_DIFF_SECONDS").ok().and_then(|s| s.parse().ok());
    let seconds = given.unwrap_or(8);
    let mut tally = Tally::default();
    let guarded = |seed: u64, tally: &mut Tally| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, tally)));
        if let Err(panic) = result {
            println!("PANDO_SEED={seed} cargo test -p pando-db --test all diff::");
            std::panic::resume_unwind(panic);
        }
    };
    if let Some(seed) = std::env::var("PANDO_SEED").ok().and_then(|s| s.parse().ok()) {
        return guarded(seed, &mut tally);
    }
    // A run whose time is given takes seeds from the clock, others take the same ones.
    let clock =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let mut seed = given.map_or(1, |_| clock());
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        guarded(seed, &mut tally);
        seed += 1;
    }
    let Tally { diffs, of_clones, of_moments, changes, empty, seeks, most } = tally;
    println!(
        "{diffs} differences: {of_clones} of clones, {of_moments} between moments, {seeks} with a seek, \
         {empty} empty, {changes} changes, {most} at most"
    );
    assert!(diffs > 100 && of_clones > 30 && of_moments > 20 && seeks > 20, "too little happened");
    assert!(empty > 20 && empty < diffs && most > 50, "nothing was compared");
}

fn open() -> Db {
    let device = Arc::new(MemDevice::new(64 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &Options::default()).unwrap();
    Db::open(device, Options::default()).unwrap()
}

/// The same change of all values under different prefixes of two clones is a difference in both.
#[test]
fn changes_of_ranges_count_where_they_are() {
    let db = open();
    for i in 0..2000 {
        db.put(format!("t/{i:04}"), vec![b'.'; 100]).unwrap();
    }
    db.checkpoint().unwrap();
    db.clone_prefix("t/", "c/").unwrap();
    db.upsert_prefix("t/01", patch::write(0, b"!")).unwrap();
    db.upsert_prefix("c/03", patch::write(0, b"!")).unwrap();
    for prefixes in [["t/", "c/"], ["c/", "t/"]] {
        let [a, b] = prefixes.map(str::as_bytes);
        let keys: Vec<Bytes> = db.diff(a, b).unwrap().map(|change| change.unwrap().key).collect();
        let wanted = (100..200).chain(300..400).map(|i| Bytes::from(format!("{i:04}")));
        assert!(keys.iter().cloned().eq(wanted), "{} keys", keys.len());
    }
    // The same change of the same keys is none.
    db.upsert_prefix("t/03", patch::write(0, b"!")).unwrap();
    db.upsert_prefix("c/01", patch::write(0, b"!")).unwrap();
    assert_eq!(db.diff(b"t/", b"c/").unwrap().count(), 0);
}

#[test]
fn snapshots_of_different_stores_are_refused() {
    let (one, other) = (open(), open());
    assert!(matches!(one.snapshot().diff(b"", &other.snapshot(), b""), Err(Error::Invalid(_))));
}

#[test]
fn a_difference_of_equal_data_ends_when_it_is_stopped() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = || Options::default().cache_bytes(1 << 20);
    Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    let value = |i: u32| Rng(i.into()).noise(1000);
    for prefix in ["a", "b"] {
        for i in 0..10_000u32 {
            db.put(format!("{prefix}{i:05}"), value(i)).unwrap();
        }
        db.checkpoint().unwrap();
    }
    db.close().unwrap();
    drop(db);
    // Somebody stops it at the tenth read, or at none.
    for stop_at in [Some(10), None] {
        let (reads, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stops) = (reads.clone(), stop.clone());
        let hooked = HookedDevice::new(device.clone(), false, move |call| {
            if matches!(call, DeviceCall::Read(_)) && Some(count.fetch_add(1, Relaxed) + 1) == stop_at {
                stops.store(true, Relaxed);
            }
            Ok(())
        });
        let db = Db::open(Arc::new(hooked), options().read_only(true)).unwrap();
        let before = reads.swap(0, Relaxed);
        let mut diff = db.diff(b"a", b"b").unwrap().stop_on(&stop);
        stop.store(false, Relaxed);
        let found = diff.next();
        let reads = reads.load(Relaxed);
        println!("{reads} reads, {before} to open");
        match stop_at {
            Some(at) => {
                assert!(matches!(found, Some(Err(Error::Interrupted))), "{found:?}");
                assert!((at..at + 4).contains(&reads), "{reads} reads");
            }
            None => assert!(found.is_none() && reads > 100, "{reads} reads"),
        }
        assert!(diff.next().is_none());
    }
}
