//! Single entries of pages in the cache (`store/row_cache.rs`) beside everything that changes what a key means.
//!
//! A store of many times its cache, so that hardly a page stays, and a few hot keys, so that their entries do. They are
//! read all the time, as of now and in snapshots that are held, between puts, deletes, upserts, deletes and upserts of
//! prefixes, clones, renames, checkpoints and reopens; an ordered map says what they must be. Most reads must really
//! have been served by entries without their page, or a test fails as vacuous.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

use pando_db::{Batch, Codec, CreateOptions, Db, Options, Snapshot, device::MemDevice, patch};
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

const TREES: u32 = 12;
const KEYS: u32 = 1500;
const HOT: usize = 60;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn tree(i: u32) -> String {
    // Prefixes of several lengths, some of which begin like others.
    format!("{}/", "abc".repeat(i as usize % 3 + 1) + &i.to_string())
}

fn key(tree_no: u32, i: u32) -> Vec<u8> {
    format!("{}{i:05}", tree(tree_no)).into_bytes()
}

fn below<'m>(map: &'m Map, prefix: &str) -> impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)> {
    let from = (Bound::Included(prefix.as_bytes()), Bound::Unbounded);
    map.range::<[u8], _>(from).take_while(move |(key, _)| key.starts_with(prefix.as_bytes()))
}

fn change(value: &mut [u8], at: usize, byte: u8) {
    if let Some(old) = value.get_mut(at) {
        *old = byte;
    }
}

/// Hot keys: most of trees that are there, some of which are not.
fn hot(rng: &mut SmallRng) -> Vec<Vec<u8>> {
    (0..HOT).map(|_| key(rng.random_range(0..TREES), rng.random_range(0..KEYS + KEYS / 8))).collect()
}

/// One random change of the store and the map.
fn step(db: &Db, map: &mut Map, rng: &mut SmallRng, hot: &[Vec<u8>]) {
    let some = |rng: &mut SmallRng| key(rng.random_range(0..TREES), rng.random_range(0..KEYS));
    let pick = |rng: &mut SmallRng| match rng.random_range(0..4) {
        0 => hot.choose(rng).unwrap().clone(),
        _ => some(rng),
    };
    let value = |rng: &mut SmallRng| -> Vec<u8> {
        let len = rng.random_range(60..140);
        (0..len).map(|_| rng.random()).collect()
    };
    let (one, other) = (tree(rng.random_range(0..TREES)), tree(rng.random_range(0..TREES)));
    match rng.random_range(0..100) {
        0..40 => {
            let mut batch = Batch::new();
            for _ in 0..rng.random_range(1..40) {
                let (key, value) = (pick(rng), value(rng));
                batch.put(key.clone(), value.clone());
                map.insert(key, value);
            }
            db.write(batch).unwrap();
        }
        40..55 => {
            let key = pick(rng);
            db.delete(key.clone()).unwrap();
            map.remove(&key);
        }
        55..75 => {
            let (key, at, byte) = (pick(rng), rng.random_range(0..50), rng.random());
            // Of one that is there: what a patch makes of nothing is another test's matter.
            if let Some(value) = map.get_mut(&key) {
                change(value, at, byte);
                db.upsert(key, patch::write(at as u32, &[byte])).unwrap();
            }
        }
        75..80 => {
            let (at, byte) = (rng.random_range(0..50), rng.random());
            let keys: Vec<_> = below(map, &one).map(|(key, _)| key.clone()).collect();
            keys.iter().for_each(|key| change(map.get_mut(key).unwrap(), at, byte));
            db.upsert_prefix(one, patch::write(at as u32, &[byte])).unwrap();
        }
        80..82 => {
            let part = format!("{one}00{}", rng.random_range(0..10));
            let keys: Vec<_> = below(map, &part).map(|(key, _)| key.clone()).collect();
            keys.iter().for_each(|key| _ = map.remove(key));
            db.delete_prefix(part).unwrap();
        }
        82..94 if one != other => {
            let renamed = rng.random_range(0..3) == 0;
            let copied: Vec<_> =
                below(map, &one).map(|(key, value)| (key[one.len()..].to_vec(), value.clone())).collect();
            if copied.is_empty() {
                return;
            }
            map.retain(|key, _| !key.starts_with(other.as_bytes()));
            if renamed {
                map.retain(|key, _| !key.starts_with(one.as_bytes()));
                db.rename_prefix(one, other.clone()).unwrap();
            } else {
                db.clone_prefix(one, other.clone()).unwrap();
            }
            map.extend(copied.into_iter().map(|(rest, value)| ([other.as_bytes(), &rest].concat(), value)));
        }
        _ => db.checkpoint().unwrap(),
    }
}

fn create(cache_bytes: u64, background: bool) -> (Arc<MemDevice>, Options) {
    let options = Options::default()
        .cache_bytes(cache_bytes)
        .background(background)
        .memtable_bytes(32 << 10)
        .codec(Codec::None);
    let device = Arc::new(MemDevice::new(1 << 30));
    let create = CreateOptions::default().node_size(64 << 10);
    Db::create(device.clone(), &create, &options).unwrap();
    (device, options)
}

fn fill(db: &Db, map: &mut Map, rng: &mut SmallRng) {
    for tree in 0..TREES {
        let mut batch = Batch::new();
        for i in 0..KEYS {
            let value: Vec<u8> = (0..100).map(|_| rng.random()).collect();
            batch.put(key(tree, i), value.clone());
            map.insert(key(tree, i), value);
        }
        db.write(batch).unwrap();
    }
}

#[test]
fn entries_without_their_pages_are_what_the_map_says() {
    let (mut row_hits, mut reads) = (0, 0);
    for seed in 0..6 {
        let rng = &mut SmallRng::seed_from_u64(seed);
        let (device, options) = create(512 << 10, false);
        let mut db = Db::open(device.clone(), options.clone()).unwrap();
        let (mut map, hot) = (Map::new(), hot(rng));
        fill(&db, &mut map, rng);
        let mut held: Vec<(Snapshot, Map)> = Vec::new();
        for turn in 0..120 {
            (0..rng.random_range(0..4)).for_each(|_| step(&db, &mut map, rng, &hot));
            for key in &hot {
                let (found, wanted) = (db.get(key).unwrap(), map.get(key));
                assert_eq!(found.as_deref(), wanted.map(|v| &v[..]), "seed {seed}, turn {turn}: {key:?}");
                reads += 1;
            }
            for (snapshot, then) in &held {
                for key in hot.iter().filter(|_| rng.random_range(0..4) == 0) {
                    let (found, wanted) = (snapshot.get(key).unwrap(), then.get(key));
                    assert_eq!(
                        found.as_deref(),
                        wanted.map(|v| &v[..]),
                        "seed {seed}, turn {turn}: {key:?}, held"
                    );
                }
            }
            match rng.random_range(0..20) {
                0 => held.push((db.snapshot(), map.clone())),
                1 if !held.is_empty() => drop(held.swap_remove(0)),
                2 if turn % 3 == 0 => {
                    held.clear();
                    row_hits += db.stats().unwrap().row_hits;
                    db.close().unwrap();
                    db = Db::open(device.clone(), options.clone()).unwrap();
                }
                _ => (),
            }
        }
        drop(held);
        row_hits += db.stats().unwrap().row_hits;
        assert!(db.check().unwrap().findings.is_empty());
        assert_eq!(db.range(b"", None).count(), map.len());
        db.close().unwrap();
    }
    println!("{row_hits} entries found without their pages in {reads} reads and those of snapshots");
    assert!(row_hits > reads / 8, "{row_hits} of {reads}: the entries are not used");
}

/// Each value says its version. A reader must never see an older one than was there before it asked.
#[test]
fn entries_without_their_pages_are_never_old_beside_a_writer() {
    let (device, options) = create(256 << 10, true);
    let db = Db::open(device, options).unwrap();
    let rng = &mut SmallRng::seed_from_u64(3);
    let hot: Vec<Vec<u8>> = (0..HOT as u32).map(|i| key(i % TREES, i * 97 % KEYS)).collect();
    let value = |version: u64| [&version.to_le_bytes()[..], &[7; 60]].concat();
    hot.iter().for_each(|key| db.put(key.clone(), value(0)).unwrap());
    // So many others that they sink to where those are.
    let others = |batch: &mut Batch, rng: &mut SmallRng| {
        for _ in 0..100 {
            let mut key = key(rng.random_range(0..TREES), rng.random_range(0..KEYS));
            key.push(b'x');
            batch.put(key, vec![5; 100]);
        }
    };
    for _ in 0..200 {
        let mut batch = Batch::new();
        others(&mut batch, rng);
        db.write(batch).unwrap();
    }
    db.checkpoint().unwrap();
    let written: Vec<AtomicU64> = (0..HOT).map(|_| 0.into()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (db, hot, written, stop) = (&db, &hot, &written, &stop);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed);
                while !stop.load(Relaxed) {
                    let i = rng.random_range(0..HOT);
                    let least = written[i].load(Acquire);
                    let found = db.get(&hot[i]).unwrap().unwrap();
                    let version = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert!(version >= least, "key {i}: version {version} after {least}");
                }
            });
        }
        struct Stops<'a>(&'a AtomicBool);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let _stops = Stops(&stop);
        for version in 1..400 {
            let i = rng.random_range(0..HOT);
            let mut batch = Batch::new();
            batch.put(hot[i].clone(), value(version));
            others(&mut batch, rng);
            db.write(batch).unwrap();
            written[i].store(version, Release);
            // What shares pages, moves them and pushes them out.
            if version % 20 == 0 {
                db.clone_prefix(tree(version as u32 % TREES), format!("copy{}/", version % 5)).unwrap();
                db.checkpoint().unwrap();
                db.prefix(b"").count();
            }
        }
    });
    let stats = db.stats().unwrap();
    println!("{} entries found without their pages", stats.row_hits);
    assert!(stats.row_hits > 200, "the entries are not used");
    db.close().unwrap();
}
