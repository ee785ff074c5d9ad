//! Batches that expect values: compare-and-set, alone and beside other writers, flushes and crashes.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Error, Options, Result,
    device::{MemDevice, SimDevice},
    patch,
};

fn options(background: bool) -> Options {
    Options::default().background(background).memtable_bytes(16 << 10).cache_bytes(4 << 20)
}

fn store(background: bool) -> (Arc<MemDevice>, Db) {
    let device = Arc::new(MemDevice::new(64 << 20));
    let create = CreateOptions::default().node_size(4096);
    Db::create(device.clone(), &create, &options(background)).unwrap();
    let db = Db::open(device.clone(), options(background)).unwrap();
    (device, db)
}

fn value(text: &'static str) -> Option<Bytes> {
    Some(text.into())
}

/// A put that expects something of the same key.
fn replace(db: &Db, key: &'static str, old: Option<Bytes>, new: &'static str) -> Result<()> {
    let mut batch = Batch::new();
    batch.expect(key, old).put(key, new);
    db.write(batch)
}

/// The key and what was found, of an error that must be a conflict.
fn conflict(result: Result<()>) -> (Bytes, Option<Bytes>) {
    match result {
        Err(Error::Conflict { key, found }) => (key, found),
        other => panic!("a conflict is expected, not {other:?}"),
    }
}

/// The same, if it is one.
fn conflict_or_none(result: Result<()>) -> Option<(Bytes, Option<Bytes>)> {
    if result.is_ok() { None } else { Some(conflict(result)) }
}

#[test]
fn a_batch_is_applied_only_if_its_keys_are_as_expected() {
    let (_, db) = store(false);
    replace(&db, "key", None, "one").unwrap();
    assert_eq!(conflict(replace(&db, "key", None, "two")), ("key".into(), value("one")));
    assert_eq!(conflict(replace(&db, "key", value("on"), "two")), ("key".into(), value("one")));
    replace(&db, "key", value("one"), "two").unwrap();
    assert_eq!(conflict(replace(&db, "other", value("one"), "two")), ("other".into(), None));
    assert_eq!(db.get(b"key").unwrap(), value("two"));
    // The empty value is one.
    db.put("empty", "").unwrap();
    assert_eq!(conflict(replace(&db, "empty", None, "x")), ("empty".into(), value("")));
    assert_eq!(conflict(replace(&db, "absent", value(""), "x")), ("absent".into(), None));
    // What a batch does to a key it expects something of comes after the check, wherever it stands.
    let mut batch = Batch::new();
    batch.delete("key").expect("key", value("two")).put("key", "three");
    db.write(batch).unwrap();
    assert_eq!(db.get(b"key").unwrap(), value("three"));
    // Only looking writes nothing.
    let mut look = Batch::new();
    look.expect("key", value("three")).expect("absent", None);
    assert!(!look.is_empty());
    assert_eq!(look.len(), 0);
    db.write(look.clone()).unwrap();
    db.put("absent", "no longer").unwrap();
    assert_eq!(conflict(db.write(look)), ("absent".into(), value("no longer")));
}

#[test]
fn a_batch_is_applied_only_if_there_is_nothing_below_its_prefixes() {
    for checkpoint in [false, true] {
        let (_, db) = store(false);
        let settle = || {
            if checkpoint {
                db.checkpoint().unwrap()
            }
        };
        let write = |prefix: &'static str, key: &'static str| {
            let mut batch = Batch::new();
            batch.expect_empty(prefix).put(key, "x");
            db.write(batch)
        };
        (0..1000).for_each(|n| db.put(format!("b/{n:04}"), "old").unwrap());
        settle();
        db.delete_prefix("b/0").unwrap();
        settle();
        write("b/0", "c").unwrap();
        for (prefix, key) in [("c", "c"), ("a/", "d"), ("b/00", "b/0050"), ("b", "d")] {
            let found = conflict_or_none(write(prefix, key));
            let expected = (prefix == "c" || prefix == "b").then(|| match prefix {
                "c" => ("c".into(), value("x")),
                _ => ("b/0050".into(), value("x")),
            });
            assert_eq!(found, expected, "{prefix}");
            settle();
        }
        // What a batch puts there itself comes after the check.
        db.clone_prefix("b/0", "e/f").unwrap();
        settle();
        assert_eq!(conflict(write("e/", "z")), ("e/f050".into(), value("x")));
        let text = write("e/", "z").unwrap_err().to_string();
        assert_eq!(text, "conflict: key \"e/f050\" has a value that was not expected (1 bytes)");
        let mut look = Batch::new();
        look.expect_empty("g");
        assert!(!look.is_empty());
        db.write(look).unwrap();
    }
}

#[test]
fn what_comes_below_a_prefix_meanwhile_is_seen() {
    const ROUNDS: u64 = 2_000;
    let (_, db) = store(true);
    let round = AtomicU64::new(0);
    // Of two that are both to be the only one, one is.
    let won = AtomicU64::new(0);
    thread::scope(|scope| {
        for who in ["a", "b"] {
            let (db, round, won) = (&db, &round, &won);
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    round.fetch_add(1, Ordering::AcqRel);
                    while round.load(Ordering::Acquire) < 2 * n + 1 {
                        std::hint::spin_loop();
                    }
                    let mut batch = Batch::new();
                    batch.expect_empty(format!("{n:05}/")).put(format!("{n:05}/{who}"), "mine");
                    match db.write(batch) {
                        Ok(()) => won.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Conflict { .. }) => 0,
                        Err(e) => panic!("{e}"),
                    };
                }
            });
        }
    });
    assert_eq!(won.load(Ordering::Relaxed), ROUNDS);
    assert_eq!(db.prefix(b"").count() as u64, ROUNDS);
}

/// Batches that may be coalesced with others take another way into the memtable.
#[test]
fn what_a_batch_that_may_be_coalesced_puts_meanwhile_is_seen() {
    const ROUNDS: u64 = 2_000;
    let (_, db) = store(true);
    let round = AtomicU64::new(0);
    let both = |n: u64| {
        round.fetch_add(1, Ordering::AcqRel);
        while round.load(Ordering::Acquire) < 2 * n + 2 {
            std::hint::spin_loop();
        }
    };
    let won: Vec<bool> = thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..ROUNDS {
                let mut batch = Batch::new();
                batch.may_coalesce();
                batch.put(format!("{n:05}"), "other");
                both(n);
                db.write(batch).unwrap();
            }
        });
        let tries = (0..ROUNDS).map(|n| {
            let mut batch = Batch::new();
            batch.expect(format!("{n:05}"), None).put(format!("{n:05}"), "mine");
            both(n);
            conflict_or_none(db.write(batch)).is_none()
        });
        tries.collect()
    });
    assert!(won.iter().any(|won| *won) && won.iter().any(|won| !won), "vacuous");
    for (n, won) in won.into_iter().enumerate() {
        let last = db.get(format!("{n:05}").as_bytes()).unwrap();
        assert_eq!(last, value("other"), "round {n}, won: {won}: the other put came first, and was replaced");
    }
}

#[test]
fn what_is_expected_is_seen_wherever_it_lies() {
    for checkpoint in [false, true] {
        let (_, db) = store(false);
        let settle = || {
            if checkpoint {
                db.checkpoint().unwrap()
            }
        };
        for n in 0..2000 {
            db.put(format!("src/{n:04}"), format!("value {n}")).unwrap();
        }
        settle();
        db.clone_prefix("src/", "dst/").unwrap();
        settle();
        db.upsert("dst/0007", patch::write(0, b"VALUE")).unwrap();
        db.upsert_prefix("dst/10", patch::truncate(3)).unwrap();
        let mut delete = Batch::new();
        delete.delete_range("dst/02", Some("dst/03".into()));
        db.write(delete).unwrap();
        settle();
        let mut batch = Batch::new();
        batch.expect("dst/0007", value("VALUE 7")).expect("src/0007", value("value 7"));
        batch
            .expect("dst/1001", value("val"))
            .expect("dst/0250", None)
            .expect("dst/0350", value("value 350"));
        batch.rename_prefix("dst/", "moved/");
        db.write(batch.clone()).unwrap();
        assert_eq!(conflict(db.write(batch)), ("dst/0007".into(), None), "it was moved away");
        assert_eq!(db.get(b"moved/0007").unwrap(), value("VALUE 7"));
    }
}

#[test]
fn a_refused_batch_leaves_no_trace() {
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    Db::create(device.clone(), &CreateOptions::default(), &options(false)).unwrap();
    let db = Db::open(device.clone(), options(false)).unwrap();
    db.put("key", "one").unwrap();
    db.sync().unwrap();
    let log_used = db.stats().unwrap().log_used;
    for _ in 0..100 {
        let mut batch = Batch::new();
        batch.expect("key", value("zero")).put("key", "two").put("new", vec![7; 10_000]).delete_prefix("k");
        conflict(db.write(batch));
    }
    db.sync().unwrap();
    assert_eq!(db.stats().unwrap().log_used, log_used, "the log has grown");
    device.crash();
    drop(db);
    let db = Db::open(device.reopen(), options(false)).unwrap();
    let pairs: Vec<_> = db.range(b"", None).collect::<Result<_>>().unwrap();
    assert_eq!(pairs, [("key".into(), "one".into())]);
}

fn number(value: Option<Bytes>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
}

/// Adds to a number until nobody comes in between; how often somebody did.
fn add(db: &Db, key: &str, more: u64) -> u64 {
    let mut conflicts = 0;
    loop {
        let old = db.get(key.as_bytes()).unwrap();
        let mut batch = Batch::new();
        batch.expect(key.to_owned(), old.clone()).put(key.to_owned(), (number(old) + more).to_string());
        match db.write(batch) {
            Ok(()) => return conflicts,
            Err(Error::Conflict { .. }) => conflicts += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn increments_of_four_threads_lose_none_beside_flushes_and_checkpoints() {
    const THREADS: u64 = 4;
    const EACH: u64 = 3000;
    let (device, db) = store(true);
    let (conflicts, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                let (db, conflicts) = (&db, &conflicts);
                scope.spawn(move || {
                    let met = (0..EACH).map(|_| add(db, "counter", 1)).sum();
                    conflicts.fetch_add(met, Ordering::Relaxed);
                })
            })
            .collect();
        // Others fill tables, so that the counter sinks, and now and then move a tree over its neighbours.
        scope.spawn(|| {
            for round in 0.. {
                for n in 0..100 {
                    db.put(format!("noise/{n}"), vec![round as u8; 300]).unwrap();
                }
                db.clone_prefix("noise/", "copy/").unwrap();
                if round % 8 == 0 {
                    db.checkpoint().unwrap();
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    println!("{} conflicts", conflicts.load(Ordering::Relaxed));
    assert_eq!(number(db.get(b"counter").unwrap()), THREADS * EACH);
    db.close().unwrap();
    let db = Db::open(device, options(false)).unwrap();
    assert_eq!(number(db.get(b"counter").unwrap()), THREADS * EACH);
}

#[test]
fn transfers_between_accounts_keep_the_sum_at_every_moment() {
    const ACCOUNTS: u64 = 5;
    let (_, db) = store(true);
    (0..ACCOUNTS).for_each(|n| db.put(format!("account/{n}"), "1000").unwrap());
    let transfer = |from: u64, to: u64| loop {
        let (from, to) = (format!("account/{from}"), format!("account/{to}"));
        let (a, b) = (db.get(from.as_bytes()).unwrap(), db.get(to.as_bytes()).unwrap());
        let mut batch = Batch::new();
        batch.expect(from.clone(), a.clone()).expect(to.clone(), b.clone());
        batch.put(from, (number(a) - 1).to_string()).put(to, (number(b) + 1).to_string());
        match db.write(batch) {
            Ok(()) => break,
            Err(Error::Conflict { .. }) => (),
            Err(other) => panic!("{other}"),
        }
    };
    thread::scope(|scope| {
        for me in 0..3u64 {
            let transfer = &transfer;
            scope.spawn(move || {
                (0..900).for_each(|n| {
                    transfer((n + me) % ACCOUNTS, (n + me + 1 + n % (ACCOUNTS - 1)) % ACCOUNTS)
                });
            });
        }
        for _ in 0..300 {
            let sum: u64 = db.prefix(b"account/").map(|pair| number(Some(pair.unwrap().1))).sum();
            assert_eq!(sum, ACCOUNTS * 1000);
        }
    });
    assert_eq!(
        db.prefix(b"account/").map(|pair| number(Some(pair.unwrap().1))).sum::<u64>(),
        ACCOUNTS * 1000
    );
}

#[test]
fn one_of_many_creates_a_key_and_no_other() {
    let (_, db) = store(true);
    for round in 0..200 {
        let key = format!("lock/{round}");
        let winners: usize = thread::scope(|scope| {
            let tries: Vec<_> = (0..4)
                .map(|me: u64| {
                    let (db, key) = (&db, key.clone());
                    scope.spawn(move || {
                        let mut batch = Batch::new();
                        batch.expect(key.clone(), None).put(key, me.to_string());
                        db.write(batch).is_ok()
                    })
                })
                .collect();
            tries.into_iter().map(|t| usize::from(t.join().unwrap())).sum()
        });
        assert_eq!(winners, 1, "{key}");
    }
}
