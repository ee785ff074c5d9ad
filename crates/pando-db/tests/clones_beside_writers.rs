//! A clone or rename of a tree that others write at full speed takes as long as one that nobody writes, holds
//! nobody up, and shows the tree of one moment.
//!
//! The first test is about structure and depends on no machine: nothing that a clone waits for stands still. The
//! others measure times beside writers with generous limits; `benches/latency.rs` has the goals.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{expect, one_of_three_tries};
use pando_db::{
    CreateOptions, Db, Options,
    device::{MemDevice, SimDevice},
};

/// Keys that a writer writes over and over.
const KEYS: u64 = 5_000;

fn seconds() -> Duration {
    let seconds = std::env::var("PANDO_CONCURRENT_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

fn key(tree: &str, i: u64) -> String {
    format!("{tree}/{:06}", i % KEYS)
}

/// What a writer has put last under `key` of the numbers up to `last`.
fn expected(key: u64, last: u64) -> Option<u64> {
    (key <= last).then(|| last - (last - key) % KEYS)
}

/// The tree must be what its writer's puts `0..=last` make, for some `last` not below `least`.
fn assert_one_moment(db: &Db, tree: &str, least: u64) -> u64 {
    let pairs: Vec<_> = db.prefix(format!("{tree}/").as_bytes()).map(|pair| pair.unwrap()).collect();
    let number = |value: &[u8]| u64::from_be_bytes(value[..8].try_into().unwrap());
    let last = pairs.iter().map(|(_, value)| number(value)).max().unwrap_or(0);
    assert!(last >= least, "{tree} shows put {last}; {least} was done before the clone was asked for");
    let keys = KEYS.min(last + 1);
    assert_eq!(pairs.len() as u64, keys, "{tree}");
    for (i, (found, value)) in (0..keys).zip(&pairs) {
        assert_eq!(found, key(tree, i).as_bytes());
        assert_eq!(Some(number(value)), expected(i, last), "{tree}, key {i}, of the state after put {last}");
    }
    last
}

/// Times of one kind of call.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        self.0.push(begun.elapsed());
        result
    }

    fn median(&mut self) -> Duration {
        self.0.sort();
        self.0[self.0.len() / 2]
    }

    fn longest(&self) -> Duration {
        self.0.iter().copied().max().unwrap_or_default()
    }
}

/// Clones the trees of `writers` full-speed writers in turn, and renames the clones, beside a reader.
fn beside(writers: u64, cache_bytes: u64) -> Result<(), String> {
    let device = Arc::new(MemDevice::new(1 << 30));
    let options = Options::default().cache_bytes(cache_bytes);
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let over = AtomicBool::new(false);
    let done: Vec<AtomicU64> = (0..writers).map(|_| AtomicU64::new(0)).collect();
    let (mut clones, mut renames) = (Times::default(), Times::default());
    let longest_put = std::thread::scope(|scope| {
        let (db, over, done) = (&db, &over, &done);
        let writing: Vec<_> = (0..writers)
            .map(|w| {
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    let mut value = [7; 100];
                    for i in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        value[..8].copy_from_slice(&u64::to_be_bytes(i));
                        let begun = Instant::now();
                        db.put(key(&format!("w{w}"), i), value.to_vec()).unwrap();
                        longest = longest.max(begun.elapsed());
                        done[w as usize].store(i, Ordering::SeqCst);
                    }
                    longest
                })
            })
            .collect();
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                db.prefix(b"kept/").take(5_000).for_each(|pair| _ = pair.unwrap());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let begun = Instant::now();
        let mut n = 0;
        while begun.elapsed() < seconds() {
            let w = n % writers;
            while done[w as usize].load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let least = done[w as usize].load(Ordering::SeqCst);
            clones.measure(|| db.clone_prefix(format!("w{w}/"), format!("c{n}/")).unwrap());
            // What is behind the clone is not in it.
            let most = assert_one_moment(db, &format!("c{n}"), least);
            renames.measure(|| db.rename_prefix(format!("c{n}/"), "kept/").unwrap());
            assert_eq!(assert_one_moment(db, "kept", least), most, "a rename changes nothing");
            assert_eq!(db.prefix(format!("c{n}/").as_bytes()).count(), 0);
            n += 1;
        }
        over.store(true, Ordering::Relaxed);
        writing.into_iter().map(|writer| writer.join().unwrap()).max().unwrap()
    });
    let (clone, rename) = (clones.median(), renames.median());
    println!(
        "{writers} writers, cache {} MiB: {} clones, median {clone:?}, longest {:?}; renames {rename:?}, {:?}; \
         longest put {longest_put:?}; {} puts",
        cache_bytes >> 20,
        clones.0.len(),
        clones.longest(),
        renames.longest(),
        done.iter().map(|done| done.load(Ordering::SeqCst)).sum::<u64>(),
    );
    assert!(clones.0.len() >= 5, "only {} clones came to their end", clones.0.len());
    db.checkpoint().unwrap();
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    let median = format!("median: clones {clone:?}, renames {rename:?}");
    expect(clone.max(rename) < Duration::from_millis(20), median)?;
    let longest = clones.longest().max(renames.longest());
    expect(longest < Duration::from_secs(1), format!("longest clone or rename {longest:?}"))?;
    expect(longest_put < Duration::from_secs(2), format!("longest put {longest_put:?}"))
}

#[test]
fn clones_beside_one_writer_at_full_speed() {
    one_of_three_tries(|| beside(1, 64 << 20));
}

#[test]
fn clones_beside_two_writers_at_full_speed() {
    one_of_three_tries(|| beside(2, 64 << 20));
}

/// Whatever waits above the node of a source, a crash right after the clone gives both sides.
#[test]
fn a_clone_beside_a_writer_outlives_a_crash() {
    for seed in 0..8 {
        let device = Arc::new(SimDevice::new(256 << 20, seed));
        let options = || Options::default().cache_bytes(4 << 20);
        Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let last = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (db, last, over) = (&db, &last, &over);
            let writer = scope.spawn(move || {
                for i in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let value = [&u64::to_be_bytes(i)[..], &[3; 40]].concat();
                    // The power fails while it writes.
                    if db.put(key("w0", i), value).is_err() {
                        break;
                    }
                    last.store(i, Ordering::SeqCst);
                }
            });
            let mut least = 0;
            for n in 0..10 {
                while last.load(Ordering::SeqCst) < 2_000 * (n + 1) {
                    assert!(!writer.is_finished(), "seed {seed}: a put failed before the crash");
                    std::thread::yield_now();
                }
                least = last.load(Ordering::SeqCst);
                db.clone_prefix("w0/", format!("c{n}/")).unwrap();
            }
            db.sync().unwrap();
            device.crash();
            over.store(true, Ordering::Relaxed);
            let db = Db::open(device.reopen(), options()).unwrap();
            let mut before = 0;
            for n in 0..10 {
                let now = assert_one_moment(&db, &format!("c{n}"), 2_000 * (n + 1));
                assert!(now >= before, "clone {n} is older than the one before it");
                before = now;
            }
            assert!(before >= least);
            assert_one_moment(&db, "w0", before);
            assert!(db.check().unwrap().findings.is_empty());
        });
    }
}
