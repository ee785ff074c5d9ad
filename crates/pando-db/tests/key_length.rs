//! No clone or rename makes a key longer than `MAX_KEY`: it is refused, for that reason only, and every key that exists can
//! be deleted.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Error, MAX_KEY, Merge, Op, Options, PatchMerge, Result,
    device::{Device, DeviceCall, HookedDevice, MemDevice},
    patch,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const DEVICE: u64 = 256 << 20;
/// Deletes the value.
const DELETE: &[u8] = b"-";

/// Patches, and [`DELETE`].
struct Deleting;

impl Merge for Deleting {
    fn name(&self) -> &'static str {
        "patch"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        if op == DELETE { None } else { PatchMerge.apply(old, op) }
    }

    fn combine(&self, _: &[u8], _: &[u8]) -> Option<Bytes> {
        None
    }
}

fn options(memtable: usize) -> Options {
    let mut options = Options::default();
    options.background = false;
    options.memtable_bytes = memtable;
    options.cache_bytes = 8 << 20;
    options.merge = Arc::new(Deleting);
    options
}

struct Store {
    device: Arc<MemDevice>,
    db: Db,
    options: Options,
}

impl Store {
    fn new(node_size: u32, options: Options) -> Self {
        let device = Arc::new(MemDevice::new(DEVICE));
        let mut create = CreateOptions::default();
        (create.node_size, create.log_size) = (node_size, Some(16 << 20));
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device.clone(), options.clone()).unwrap();
        Self { device, db, options }
    }

    /// Closes and opens it.
    fn reopen(&mut self) {
        self.db.close().unwrap();
        self.db = Db::open(self.device.clone(), self.options.clone()).unwrap();
    }

    /// Goes on with what a crash would leave now.
    fn crash(&mut self) {
        self.db.sync().unwrap();
        let copy = Arc::new(MemDevice::new(DEVICE));
        let mut bytes = vec![0; 1 << 20];
        for at in (0..DEVICE).step_by(bytes.len()) {
            self.device.read_at(at, &mut bytes).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                copy.write_at(at, &bytes).unwrap();
            }
        }
        self.device = copy;
        self.db = Db::open(self.device.clone(), self.options.clone()).unwrap();
    }
}

fn keys(db: &Db) -> Vec<Bytes> {
    db.range(b"", None).map(|pair| pair.unwrap().0).collect()
}

/// `prefix` and as much as makes it a key of `len` bytes.
fn padded(prefix: &str, len: usize) -> Bytes {
    let mut key = prefix.as_bytes().to_vec();
    key.resize(len, b'x');
    key.into()
}

fn is_too_long(result: Result<()>) -> bool {
    match result {
        Ok(()) => false,
        Err(Error::TooLarge { what: "key", len, limit }) => {
            assert!(len > limit && limit == MAX_KEY as u64, "a key of {len} bytes refused");
            true
        }
        Err(other) => panic!("{other}"),
    }
}

fn check(db: &Db) {
    let report = db.check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Deletes every key that there is, one by one.
fn delete_each(db: &Db) {
    for key in keys(db) {
        assert!(key.len() <= MAX_KEY, "a key of {} bytes", key.len());
        db.delete(key.clone()).unwrap();
        assert!(db.get(&key).unwrap().is_none());
    }
    assert!(keys(db).is_empty());
}

type Settle = fn(&mut Store);

/// What may have happened between a change and the next.
const SETTLES: [(&str, Settle); 5] = [
    ("in memory", |_| ()),
    ("checkpoint", |s| s.db.checkpoint().unwrap()),
    ("settled", |s| s.db.settle().unwrap()),
    ("reopened", Store::reopen),
    ("crashed", Store::crash),
];

#[test]
fn a_copy_at_the_limit_is_made_and_one_beyond_is_refused() {
    for node_size in [4 << 10, 16 << 10, 1 << 20] {
        for (how, settle) in SETTLES {
            let mut s = Store::new(node_size, options(32 << 10));
            for n in 0..2000 {
                s.db.put(format!("src/{n:04}"), vec![7; 100]).unwrap();
            }
            let longest = padded("src/1000-", MAX_KEY - 10);
            s.db.put(longest.clone(), "long").unwrap();
            settle(&mut s);
            let before = keys(&s.db);
            for rename in [false, true] {
                let op = |dst: Bytes| match rename {
                    true => s.db.rename_prefix("src/", dst),
                    false => s.db.clone_prefix("src/", dst),
                };
                for more in [11, 12, 500, 10_000] {
                    assert!(is_too_long(op(padded("dst", 4 + more))), "{how}, {more} bytes more");
                }
                assert_eq!(keys(&s.db), before, "a refusal has changed something");
            }
            // Its own subtrees, without the long key, may go anywhere.
            s.db.clone_prefix("src/0", padded("deep", 5000)).unwrap();
            s.db.rename_prefix("src/1", padded("src/1", 14)).map_err(|e| e.to_string()).unwrap_err();
            s.db.clone_prefix("src/", padded("dst", 14)).unwrap();
            settle(&mut s);
            assert!(is_too_long(s.db.clone_prefix(padded("dst", 14), padded("dsu", 15))), "{how}");
            s.db.clone_prefix(padded("dst", 14), "short").unwrap();
            settle(&mut s);
            s.db.clone_prefix("short", "copy-of-short").unwrap();
            check(&s.db);
            assert_eq!(keys(&s.db).iter().map(Bytes::len).max(), Some(MAX_KEY));
            delete_each(&s.db);
        }
    }
}

#[test]
fn fifty_renames_make_no_key_too_long_and_the_backup_restores() {
    for (how, settle) in SETTLES {
        let mut s = Store::new(4 << 10, options(16 << 10));
        for n in 0..200 {
            s.db.put(format!("0/{n:03}"), "v").unwrap();
        }
        s.db.put(padded("0/", 10_000), "long").unwrap();
        // Each to the bottom of a new place, as a tree is moved below another.
        let mut prefix = Bytes::from_static(b"0/");
        let mut refused = 0;
        for n in 1..=50 {
            let longer = padded(&format!("{n}"), prefix.len() + 1000);
            match is_too_long(s.db.rename_prefix(prefix.clone(), longer.clone())) {
                true => refused += 1,
                false => prefix = longer,
            }
            settle(&mut s);
        }
        assert_eq!((prefix.len(), refused), (6002, 44), "{how}");
        let all = keys(&s.db);
        assert_eq!(all.len(), 201);
        let mut stream = Vec::new();
        s.db.snapshot().backup(&mut stream).unwrap();
        let restored = Arc::new(MemDevice::new(DEVICE));
        Db::restore(restored.clone(), &stream[..], &CreateOptions::default(), &s.options).unwrap();
        assert_eq!(keys(&Db::open(restored, s.options.clone()).unwrap()), all);
        delete_each(&s.db);
        s.db.put(padded("0/", MAX_KEY), "as long as before").unwrap();
        check(&s.db);
    }
}

#[test]
fn clones_of_clones_in_one_batch_are_judged_by_what_they_come_to() {
    for (how, settle) in SETTLES {
        let mut s = Store::new(4 << 10, options(16 << 10));
        s.db.put(padded("a/", 10_000), "long").unwrap();
        s.db.put("a/short", "short").unwrap();
        settle(&mut s);
        let chain = |steps: usize, own: bool| {
            let mut batch = Batch::new();
            if own {
                batch.put(padded("a/own", 11_000), "of the batch itself");
            }
            let place = |step: usize| padded(&format!("{step}/"), 2 + step * 1000);
            batch.clone_prefix("a/", place(1));
            for step in 1..steps {
                batch.clone_prefix(place(step), place(step + 1));
            }
            batch
        };
        let before = keys(&s.db);
        assert!(is_too_long(s.db.write(chain(7, false))), "{how}");
        assert!(is_too_long(s.db.write(chain(6, true))), "{how}");
        assert_eq!(keys(&s.db), before);
        s.db.write(chain(5, true)).unwrap();
        settle(&mut s);
        s.db.write(chain(5, false)).unwrap();
        // What the batch deletes before it clones does not count, in whichever way it does.
        let long = padded("a/", 10_000);
        for way in 0..4 {
            let mut batch = Batch::new();
            batch.clone_prefix("a/", "b/").put("b/more", "more");
            batch.delete(padded("b/own", 11_000));
            let in_b = Bytes::from([b"b/", &long[2..]].concat());
            match way {
                0 => batch.delete(in_b),
                1 => batch.delete_range(in_b.clone(), Some([&in_b[..], b"\0"].concat().into())),
                2 => batch.upsert(in_b, DELETE),
                _ => batch.upsert_prefix("b/x", DELETE),
            };
            batch.clone_prefix("b/", padded(&format!("c{way}"), MAX_KEY - 100)).delete_prefix("b/");
            s.db.write(batch).map_err(|e| format!("{how}, way {way}: {e}")).unwrap();
        }
        check(&s.db);
        delete_each(&s.db);
    }
}

#[test]
fn long_keys_elsewhere_and_deleted_ones_are_no_reason_to_refuse() {
    for (how, settle) in SETTLES {
        let mut s = Store::new(4 << 10, options(16 << 10));
        for n in 0..500 {
            s.db.put(format!("small/{n:03}"), vec![1; 60]).unwrap();
        }
        for n in 0..8 {
            // Before, behind and between.
            for place in ["a", "small", "small.", "small0", "small/1", "z"] {
                s.db.put(padded(&format!("{place}{n}"), MAX_KEY - n), "long").unwrap();
            }
        }
        settle(&mut s);
        let far = padded("far", MAX_KEY - 20);
        assert!(is_too_long(s.db.clone_prefix("small/", far.clone())), "{how}: small/1 has long keys");
        s.db.clone_prefix("small/2", far.clone()).unwrap();
        // Deleted one by one, all at once, and by an operation that leaves nothing.
        for n in 0..8 {
            let key = padded(&format!("small/1{n}"), MAX_KEY - n);
            match n % 3 {
                0 => s.db.delete(key).unwrap(),
                1 => s.db.delete_range(key.clone(), Some([&key[..], b"\0"].concat().into())),
                _ => s.db.upsert(key, DELETE).unwrap(),
            }
        }
        s.db.clone_prefix("small/", far.clone()).map_err(|e| format!("{how}, deleted: {e}")).unwrap();
        settle(&mut s);
        s.db.clone_prefix("small/", padded("fas", MAX_KEY - 20)).unwrap();
        assert_eq!(s.db.prefix(&far).count(), 500 + s.db.prefix(b"small/2").count() - 100);
        check(&s.db);
        delete_each(&s.db);
    }
}

trait DeleteRange {
    fn delete_range(&self, lo: Bytes, hi: Option<Bytes>);
}

impl DeleteRange for Db {
    fn delete_range(&self, lo: Bytes, hi: Option<Bytes>) {
        let mut batch = Batch::new();
        batch.delete_range(lo, hi);
        self.write(batch).unwrap();
    }
}

/// The contents as they should be; what a clone would make too long is the reason of a refusal.
#[derive(Clone, Default)]
struct Oracle(BTreeMap<Bytes, Bytes>);

impl Oracle {
    /// False if the batch is to be refused; then nothing has changed.
    fn write(&mut self, ops: &[Op]) -> bool {
        let mut after = self.clone();
        if !ops.iter().all(|op| after.apply(op)) {
            return false;
        }
        *self = after;
        true
    }

    fn apply(&mut self, op: &Op) -> bool {
        match op {
            Op::Put(key, value) => _ = self.0.insert(key.clone(), value.clone()),
            Op::Delete(key) => _ = self.0.remove(key),
            Op::Upsert(key, change) => match Deleting.apply(self.0.get(key).map(|v| &v[..]), change) {
                Some(value) => _ = self.0.insert(key.clone(), value),
                None => _ = self.0.remove(key),
            },
            Op::UpsertPrefix(prefix, change) => {
                for key in self.under(prefix) {
                    self.apply(&Op::Upsert(key, change.clone()));
                }
            }
            Op::DeleteRange(lo, hi) => {
                self.0.retain(|key, _| key < lo || hi.as_ref().is_some_and(|hi| key >= hi));
            }
            Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) => {
                let copies: Vec<_> = self.under(src).iter().map(|key| self.0.get_key_value(key)).collect();
                let copies: Vec<(Bytes, Bytes)> = copies
                    .into_iter()
                    .flatten()
                    .map(|(key, value)| ([dst, &key[src.len()..]].concat().into(), value.clone()))
                    .collect();
                // A copy that is no longer than its source is no reason.
                if dst.len() > src.len() && copies.iter().any(|(key, _)| key.len() > MAX_KEY) {
                    return false;
                }
                let rename = matches!(op, Op::RenamePrefix(..));
                self.0.retain(|key, _| !(key.starts_with(dst) || rename && key.starts_with(src)));
                self.0.extend(copies);
            }
            _ => unreachable!("an operation that the model does not know"),
        }
        true
    }

    fn under(&self, prefix: &Bytes) -> Vec<Bytes> {
        let keys = self.0.range(prefix.clone()..).map(|(key, _)| key);
        keys.take_while(|key| key.starts_with(prefix)).cloned().collect()
    }
}

/// A key or prefix of words, now and then of nearly any length.
fn random_key(rng: &mut StdRng, oracle: &Oracle) -> Bytes {
    let mut key = Vec::new();
    if rng.random_bool(0.4) && !oracle.0.is_empty() {
        let at = rng.random_range(0..oracle.0.len());
        key = oracle.0.keys().nth(at).unwrap().to_vec();
        if rng.random_bool(0.5) {
            key.truncate(rng.random_range(1..=key.len().clamp(1, 40)));
        }
    } else {
        for _ in 0..rng.random_range(1..5) {
            key.extend_from_slice([&b"a/"[..], b"b/", b"ab/", b"\xff/"][rng.random_range(0..4)]);
        }
    }
    if rng.random_bool(0.1) {
        let len = match rng.random_range(0..3) {
            0 => rng.random_range(0..MAX_KEY),
            1 => MAX_KEY - rng.random_range(0..40),
            _ => MAX_KEY / 2 + rng.random_range(0..40),
        };
        let fill = [b'x', 0xff, b'a'][rng.random_range(0..3)];
        key.resize(len.max(key.len()), fill);
    }
    key.into()
}

fn random_op(rng: &mut StdRng, oracle: &Oracle) -> Op {
    let key = random_key(rng, oracle);
    let value = Bytes::from(vec![rng.random::<u8>(); rng.random_range(0..60)]);
    match rng.random_range(0..20) {
        0..6 => Op::Put(key, value),
        6..8 => Op::Delete(key),
        8 => Op::Upsert(key, pando_db::patch::write(0, &value)),
        9 => Op::Upsert(key, Bytes::from_static(DELETE)),
        10 if rng.random_bool(0.3) => Op::UpsertPrefix(key, Bytes::from_static(DELETE)),
        11 => {
            let hi = [&key[..], b"\0"].concat();
            Op::DeleteRange(key, Some(hi.into()))
        }
        12 if rng.random_bool(0.2) => Op::DeleteRange(key.clone(), Some([&key[..], b"\xff"].concat().into())),
        kind => {
            let mut src = random_key(rng, oracle);
            src.truncate(40);
            let dst = random_key(rng, oracle);
            let inside = src.starts_with(&dst) || dst.starts_with(&src);
            if inside || oracle.under(&src).len() + oracle.0.len() > 400 {
                return Op::Delete(key);
            }
            if kind < 17 { Op::ClonePrefix(src, dst) } else { Op::RenamePrefix(src, dst) }
        }
    }
}

#[test]
fn every_refusal_is_a_true_one() {
    let (mut refused, mut clones, mut searches) = (0, 0, 0);
    let seeds = if std::env::var_os("PANDO_FULL").is_some() { 24 } else { 12 };
    for seed in 0..seeds {
        let rng = &mut StdRng::seed_from_u64(seed);
        let node_size = [4 << 10, 16 << 10, 64 << 10][seed as usize % 3];
        let mut options = options([1 << 10, 16 << 10, 1 << 20][seed as usize / 3 % 3]);
        options.background = seed % 4 == 3;
        let mut s = Store::new(node_size, options);
        let mut oracle = Oracle::default();
        for step in 0..400 {
            let mut after = oracle.clone();
            let mut ops = Vec::new();
            for _ in 0..if rng.random_bool(0.7) { 1 } else { rng.random_range(1..6) } {
                let op = random_op(rng, &after);
                clones += usize::from(matches!(op, Op::ClonePrefix(..) | Op::RenamePrefix(..)));
                after.apply(&op);
                ops.push(op);
            }
            let mut batch = Batch::new();
            ops.iter().for_each(|op| _ = batch.push(op.clone()));
            let expected = !oracle.write(&ops);
            refused += usize::from(expected);
            if step % 3 == 0 {
                // What would be is told without doing it.
                assert_eq!(is_too_long(s.db.check_lengths(&batch)), expected, "seed {seed}, step {step}");
            }
            assert_eq!(is_too_long(s.db.write(batch)), expected, "seed {seed}, step {step}");
            let (_, settle) = SETTLES[rng.random_range(0..SETTLES.len())];
            if rng.random_bool(0.03) {
                searches += s.db.stats().unwrap().length_searches;
                settle(&mut s);
            }
            if rng.random_bool(0.1) {
                let pairs: BTreeMap<_, _> = s.db.range(b"", None).map(Result::unwrap).collect();
                assert!(pairs == oracle.0, "seed {seed}, step {step}: other pairs");
            }
        }
        check(&s.db);
        assert!(keys(&s.db).into_iter().eq(oracle.0.into_keys()), "seed {seed}");
        delete_each(&s.db);
    }
    println!("{clones} clones and renames, {refused} batches refused, {searches} searches");
    assert!(refused > 50 && clones > 10 * refused && searches > 50);
}

/// A writer puts long keys under the source and takes them out again, as fast as it can.
#[test]
fn beside_writers_of_long_keys_no_copy_is_too_long() {
    let mut with_threads = options(64 << 10);
    with_threads.background = true;
    let s = Store::new(16 << 10, with_threads);
    for n in 0..300 {
        s.db.put(format!("src/{n:03}"), vec![3; 50]).unwrap();
    }
    let done = AtomicBool::new(false);
    let (mut made, mut refused) = (0, 0);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (db, done) = (&s.db, &done);
            scope.spawn(move || {
                let mut n = 0;
                while !done.load(Ordering::Relaxed) {
                    let key = padded(&format!("src/{writer}/{}", n % 3), MAX_KEY - 30);
                    db.put(key.clone(), "long").unwrap();
                    db.put(format!("src/{writer}"), vec![4; 50]).unwrap();
                    db.delete(key).unwrap();
                    // Now and then for longer, so that some clones meet none.
                    if n % 20 == 0 {
                        thread::sleep(std::time::Duration::from_millis(5));
                    }
                    n += 1;
                }
            });
        }
        for n in 0..400 {
            let dst = padded(&format!("dst{:02}", n % 20), 100);
            let result = match n % 4 {
                3 => s.db.clone_prefix("src/0", dst),
                _ => s.db.clone_prefix("src/", dst),
            };
            if is_too_long(result) {
                refused += 1
            } else {
                made += 1
            }
            if n % 20 == 0 {
                assert!(keys(&s.db).iter().all(|key| key.len() <= MAX_KEY));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{made} clones made, {refused} refused");
    assert!(made > 0 && refused > 0);
    check(&s.db);
    delete_each(&s.db);
}

/// What another thread does while a clone searches.
type Meanwhile = fn(&Db);

/// What came and was flushed in the middle of a search was in no table any more when the clone asked what is newer than
/// the search: it made a key of more than `MAX_KEY` bytes. And what cannot matter is no reason to search again.
#[test]
fn what_comes_and_is_flushed_while_a_clone_searches_counts() {
    let cases: [(&str, Meanwhile, bool); 6] = [
        ("a long key, flushed", |db| put_flushed(db, padded("src/x", MAX_KEY - 30)), true),
        ("a long key of an upsert, flushed", |db| upsert_flushed(db, padded("src/x", MAX_KEY - 30)), true),
        ("a long key that is in memory", |db| db.put(padded("src/x", MAX_KEY - 30), "long").unwrap(), true),
        ("a clone of long keys", |db| db.clone_prefix("longer/", "src/y/").unwrap(), true),
        ("a short key, flushed", |db| put_flushed(db, "src/x".into()), false),
        ("a long key elsewhere, flushed", |db| put_flushed(db, padded("sra/x", MAX_KEY - 30)), false),
    ];
    for (what, meanwhile, refused) in cases {
        let (writer, armed) = (Arc::new(OnceLock::<Db>::new()), Arc::new(AtomicBool::new(false)));
        let (other, once) = (writer.clone(), armed.clone());
        let device = HookedDevice::new(Arc::new(MemDevice::new(DEVICE)), false, move |call| {
            if matches!(call, DeviceCall::Read(_)) && once.swap(false, Ordering::Relaxed) {
                meanwhile(other.get().unwrap());
            }
            Ok(())
        });
        let device = Arc::new(device);
        let (create, options) = (CreateOptions::default().node_size(64 << 10), options(1 << 20));
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device.clone(), options.clone()).unwrap();
        for n in 0..3000 {
            db.put(format!("src/{n:04}"), vec![3; 50]).unwrap();
        }
        db.put(padded("longer/", MAX_KEY), "long").unwrap();
        db.put(padded("srd", MAX_KEY), "long").unwrap();
        db.settle().unwrap();
        db.close().unwrap();
        drop(db);
        let db = Db::open(device, options).unwrap();
        // So that the root is in memory, and nothing that the search reads is needed by the flush.
        db.put("a", "").unwrap();
        db.checkpoint().unwrap();
        assert!(writer.set(db.clone()).is_ok());
        armed.store(true, Ordering::Relaxed);
        let result = db.clone_prefix("src/", padded("dst", 100));
        assert!(!armed.load(Ordering::Relaxed), "{what}: the search has read nothing");
        assert_eq!(is_too_long(result), refused, "{what}");
        let longest = keys(&db).iter().map(Bytes::len).max();
        assert!(longest <= Some(MAX_KEY), "{what}: a key of {longest:?} bytes");
        assert_eq!(db.stats().unwrap().length_searches, if refused { 2 } else { 1 }, "{what}");
        check(&db);
    }
}

fn put_flushed(db: &Db, key: Bytes) {
    db.put(key, "came meanwhile").unwrap();
    db.checkpoint().unwrap();
}

fn upsert_flushed(db: &Db, key: Bytes) {
    db.upsert(key, patch::write(0, b"came meanwhile")).unwrap();
    db.checkpoint().unwrap();
}

/// Ordinary clones are admitted by bounds, without a search, and a store with long keys elsewhere stays out of the way.
#[test]
fn ordinary_clones_need_no_search_and_others_little_reading() {
    let s = Store::new(4 << 10, options(16 << 10));
    for n in 0..3000 {
        s.db.put(format!("tree/{n:04}"), vec![n as u8; 100]).unwrap();
    }
    for round in 0..20 {
        for n in 0..100 {
            s.db.clone_prefix("tree/", format!("clones/of/the/tree/{round:02}/{n:02}/")).unwrap();
            s.db.clone_prefix(
                format!("clones/of/the/tree/{round:02}/{n:02}/"),
                format!("clones/of/clones/{n:02}/"),
            )
            .unwrap();
        }
        s.db.checkpoint().unwrap();
    }
    assert_eq!(s.db.stats().unwrap().length_searches, 0);
    for n in 0..30 {
        s.db.put(padded(&format!("u{n:02}"), MAX_KEY), "long").unwrap();
    }
    s.db.settle().unwrap();
    let before = s.db.stats().unwrap();
    for n in 0..100 {
        s.db.clone_prefix("tree/", padded(&format!("t{n:02}"), 60)).unwrap();
    }
    let after = s.db.stats().unwrap();
    let (searches, reads) =
        (after.length_searches - before.length_searches, after.device.reads - before.device.reads);
    println!("{searches} searches, {reads} reads for 100 clones beside long keys");
    assert!(searches > 0 && reads < 1000);
    // When the long keys are gone, their bounds may outlive them in a node that nothing has rewritten since. That
    // costs a clone one search of what is in memory, and refuses none.
    s.db.delete_range(Bytes::from_static(b"u"), Some(Bytes::from_static(b"v")));
    s.db.settle().unwrap();
    let before = s.db.stats().unwrap();
    s.db.clone_prefix("tree/", padded("t", 60)).unwrap();
    let after = s.db.stats().unwrap();
    assert!(after.length_searches <= before.length_searches + 1);
    assert_eq!(after.device.reads, before.device.reads, "the search reads");
}
