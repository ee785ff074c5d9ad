//! Queues: who asks for the first (or last) key and takes it out, again and again, need not pass all that was
//! taken out before. Counted, not timed; and an oracle for what is remembered of ranges that were found empty.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use crate::model::rng::Rng;
use pando_db::{Batch, CreateOptions, Db, Options, Snapshot, device::MemDevice, patch};

fn store(background: bool) -> Db {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = Options::default().background(background).memtable_bytes(16 << 10);
    let create = CreateOptions::default().node_size(4096).log_size(1 << 20);
    Db::create(device.clone(), &create, &options).unwrap();
    Db::open(device, options).unwrap()
}

fn key(i: u64) -> String {
    format!("q/{i:08}")
}

fn first(db: &Db) -> Option<String> {
    db.prefix(b"q/").next().map(|pair| String::from_utf8(pair.unwrap().0.to_vec()).unwrap())
}

fn passed(db: &Db) -> u64 {
    db.stats().unwrap().deletes_passed
}

const MANY: u64 = 6000;
/// For each key that is taken out. A cursor says what it has passed when that is 64 or more, so half of that on
/// average, and once in ten thousand batches all is passed again. Without that it would be half of all keys.
const MOST_PASSED: u64 = 40;

#[test]
fn a_queue_is_emptied_without_passing_what_was_taken_out() {
    let db = store(false);
    (0..MANY).for_each(|i| db.put(key(i), "job").unwrap());
    db.put("a", "below").unwrap();
    db.put("z", "above").unwrap();
    for i in 0..2 * MANY {
        assert_eq!(first(&db), Some(key(i)));
        db.delete(key(i)).unwrap();
        // While it is emptied, it goes on to be filled.
        if i < MANY {
            db.put(key(MANY + i), "job").unwrap();
        }
    }
    assert_eq!(first(&db), None);
    let passed = passed(&db);
    println!("{passed} deletes passed for {} keys", 2 * MANY);
    assert!(passed <= MOST_PASSED * 2 * MANY, "{passed}");
}

#[test]
fn a_stack_is_emptied_from_its_end() {
    let db = store(false);
    (0..MANY).for_each(|i| db.put(key(i), "job").unwrap());
    for i in (0..MANY).rev() {
        let last = db.prefix(b"q/").next_back().unwrap().unwrap().0;
        assert_eq!(last, key(i));
        db.delete(last).unwrap();
    }
    assert!(passed(&db) <= MOST_PASSED * MANY, "{}", passed(&db));
}

#[test]
fn jobs_that_come_in_anywhere_are_found() {
    let db = store(false);
    let mut oracle = BTreeMap::new();
    let mut rng = Rng(7);
    let mut taken = 0;
    for i in 0..4 * MANY {
        if i < MANY || rng.chance(450) {
            let key = key(rng.below(1 << 24));
            db.put(key.clone(), "job").unwrap();
            oracle.insert(key, ());
        } else {
            let next = oracle.pop_first().map(|(key, ())| key);
            assert_eq!(first(&db), next);
            taken += 1;
            next.into_iter().for_each(|key| db.delete(key).unwrap());
        }
    }
    assert!(passed(&db) <= MOST_PASSED * taken, "{}", passed(&db));
}

#[test]
fn what_is_coalesced_with_the_batch_before_is_found_where_all_was_taken_out() {
    let db = store(false);
    (0..1000).for_each(|i| db.put(key(i), "job").unwrap());
    (0..1000).for_each(|i| db.delete(key(i)).unwrap());
    for i in 0..100 {
        let coalesced = db.stats().unwrap().batches_coalesced;
        // All of it is known to have nothing, for the next who looks.
        assert_eq!((first(&db), first(&db)), (None, None));
        for key in [format!("a{i}"), key(7 * i + 3)] {
            let mut batch = Batch::new();
            batch.may_coalesce();
            batch.put(key, "job");
            db.write(batch).unwrap();
        }
        assert_eq!(db.stats().unwrap().batches_coalesced, coalesced + 1, "vacuous");
        assert_eq!(first(&db), Some(key(7 * i + 3)));
        db.delete(key(7 * i + 3)).unwrap();
    }
}

/// A producer of something else writes many batches between two looks.
#[test]
fn who_writes_elsewhere_does_not_make_a_queue_forgotten() {
    let db = store(false);
    (0..MANY / 2).for_each(|i| db.put(key(i), "job").unwrap());
    for i in 0..MANY / 2 {
        assert_eq!(first(&db), Some(key(i)));
        db.delete(key(i)).unwrap();
        (0..20).for_each(|n| db.put(format!("z/{n}"), "other").unwrap());
    }
    assert!(passed(&db) <= MOST_PASSED * MANY / 2, "{}", passed(&db));
}

#[test]
fn queues_are_not_in_the_way_of_each_other() {
    let db = store(false);
    const QUEUES: u64 = 200;
    let job = |queue: u64, i: u64| format!("q/{queue:03}/{i:05}");
    (0..QUEUES).for_each(|queue| (0..200).for_each(|i| db.put(job(queue, i), "job").unwrap()));
    for i in 0..200 {
        for queue in 0..QUEUES {
            let prefix = format!("q/{queue:03}/");
            let next = db.prefix(prefix.as_bytes()).next().unwrap().unwrap().0;
            assert_eq!(next, job(queue, i));
            db.delete(next).unwrap();
        }
    }
    assert!(passed(&db) <= MOST_PASSED * 200 * QUEUES, "{}", passed(&db));
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// All that a cursor may be asked, compared with the oracle.
fn compare(snapshot: &Snapshot, oracle: &Pairs, rng: &mut Rng, seed: u64) {
    let lo = key(rng.below(400)).into_bytes();
    let hi = rng.chance(700).then(|| key(rng.below(400)).into_bytes());
    let inside = |k: &[u8]| k >= &lo[..] && hi.as_ref().is_none_or(|hi| k < &hi[..]);
    let mut expected: Vec<_> = oracle.iter().filter(|(k, _)| inside(k)).collect();
    let mut cursor = snapshot.range(&lo, hi.as_deref());
    let steps = if rng.chance(500) { 3 } else { u64::MAX };
    for _ in 0..steps {
        if rng.chance(30) {
            let at = key(rng.below(400));
            cursor.seek(at.as_bytes());
            expected = oracle.iter().filter(|(k, _)| inside(k) && k.as_slice() >= at.as_bytes()).collect();
        }
        let back = rng.chance(500);
        let (found, wanted) = match back {
            true => (cursor.next_back(), expected.pop()),
            false => (cursor.next(), (!expected.is_empty()).then(|| expected.remove(0))),
        };
        let found = found.map(|pair| pair.unwrap()).map(|(k, v)| (k.to_vec(), v.to_vec()));
        let wanted = wanted.map(|(k, v)| (k.clone(), v.clone()));
        let ends = wanted.is_none();
        assert_eq!(found, wanted, "seed {seed}, back {back}, {:?}", String::from_utf8_lossy(&lo));
        if ends {
            break;
        }
    }
}

fn random_work(seed: u64, background: bool) {
    let db = store(background);
    let mut rng = Rng(seed);
    let mut oracle = Pairs::new();
    let mut kept: Vec<(Snapshot, Pairs)> = Vec::new();
    for _ in 0..400 {
        match rng.weighted(&[30, 25, 10, 6, 4, 3, 6, 16]) {
            // Runs of deletes, as long as are reported, and longer.
            0 => {
                let (from, len) = (rng.below(400), rng.below(150));
                for i in from..from + len {
                    db.delete(key(i)).unwrap();
                    oracle.remove(key(i).as_bytes());
                }
            }
            1 => {
                let mut batch = Batch::new();
                for _ in 0..rng.between(1, 5) {
                    let (key, value) = (key(rng.below(400)), rng.noise(8));
                    if rng.chance(300) {
                        batch.delete(key.clone());
                        oracle.remove(key.as_bytes());
                    } else {
                        batch.put(key.clone(), value.clone());
                        oracle.insert(key.into_bytes(), value);
                    }
                }
                db.write(batch).unwrap();
            }
            2 => {
                let (from, len) = (rng.below(400), rng.below(200));
                for i in from..(from + len).min(400) {
                    let value = rng.noise(8);
                    db.put(key(i), value.clone()).unwrap();
                    oracle.insert(key(i).into_bytes(), value);
                }
            }
            3 => {
                let key = key(rng.below(400));
                db.upsert(key.clone(), patch::write(0, b"new")).unwrap();
                let value = oracle.entry(key.into_bytes()).or_default();
                value.resize(value.len().max(3), 0);
                value[..3].copy_from_slice(b"new");
            }
            // A tenth of the keys elsewhere among them.
            4 => {
                let (src, dst) = (rng.below(40), rng.below(40));
                let (src, dst) = (format!("q/{src:07}"), format!("q/{dst:07}"));
                if src == dst {
                    continue;
                }
                let rename = rng.chance(300);
                let moved: Vec<_> = oracle.iter().filter(|(k, _)| k.starts_with(src.as_bytes())).collect();
                let moved: Vec<_> = moved
                    .into_iter()
                    .map(|(k, v)| ([dst.as_bytes(), &k[src.len()..]].concat(), v.clone()))
                    .collect();
                oracle.retain(|k, _| {
                    let goes = k.starts_with(dst.as_bytes()) || rename && k.starts_with(src.as_bytes());
                    !goes
                });
                oracle.extend(moved);
                match rename {
                    true => db.rename_prefix(src, dst).unwrap(),
                    false => db.clone_prefix(src, dst).unwrap(),
                }
            }
            5 => {
                let (lo, hi) = (rng.below(400), rng.below(400));
                let mut batch = Batch::new();
                batch.delete_range(key(lo), Some(key(hi).into()));
                db.write(batch).unwrap();
                oracle.retain(|k, _| k.as_slice() < key(lo).as_bytes() || k.as_slice() >= key(hi).as_bytes());
            }
            6 => {
                if kept.len() == 3 {
                    kept.remove(0);
                }
                kept.push((db.snapshot(), oracle.clone()));
            }
            _ => kept.iter().for_each(|(snapshot, oracle)| compare(snapshot, oracle, &mut rng, seed)),
        }
        compare(&db.snapshot(), &oracle, &mut rng, seed);
        if rng.chance(20) {
            assert!(db.check().unwrap().findings.is_empty(), "seed {seed}");
        }
    }
    assert!(db.check().unwrap().findings.is_empty(), "seed {seed}");
}

#[test]
fn what_is_known_to_be_empty_is_empty() {
    let runs = std::env::var("PANDO_QUEUE_SEEDS").map_or(60, |seeds| seeds.parse().unwrap());
    (0..runs).for_each(|seed| random_work(seed, seed % 3 == 0));
}

/// Producers put at both ends of what a consumer has found empty, while it looks.
#[test]
fn nothing_is_overlooked_beside_producers() {
    let db = Arc::new(store(true));
    const EACH: u64 = 4000;
    let producers: Vec<_> = (0..2)
        .map(|n| {
            let db = db.clone();
            std::thread::spawn(move || {
                let mut rng = Rng(n);
                for i in 0..EACH {
                    db.put(format!("q/{:08}-{n}-{i}", rng.below(1 << 16)), "job").unwrap();
                }
            })
        })
        .collect();
    let mut taken = 0;
    loop {
        // Asked before, so that nothing can come in behind a look that finds nothing.
        let all_are_in = producers.iter().all(|thread| thread.is_finished());
        match db.prefix(b"q/").next() {
            Some(pair) => {
                db.delete(pair.unwrap().0).unwrap();
                taken += 1;
            }
            None if all_are_in => break,
            None => (),
        }
    }
    producers.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(taken, 2 * EACH, "some were overlooked");
    println!("{} deletes passed", passed(&db));
}
