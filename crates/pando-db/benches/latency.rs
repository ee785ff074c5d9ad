//! What the foreground notices of the background, as ratios of one run: readers beside readers, a reader beside a
//! writer at full speed, 4 KiB writes at full speed beside checkpoints.
//!
//! `cargo bench -p pando-db --bench latency [-- DIRECTORY]`: the store is made in a file there (by default where
//! temporary files go) and removed again. Needs a quiet machine with two processors or more. Ends with an error if a
//! goal is missed. What does not depend on the machine is asserted by `tests/latency.rs`.

#![allow(clippy::unwrap_used)]

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use pando_db::{Batch, CreateOptions, Db, Options, device::FileDevice};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(1500);
/// Keys that are read; they and their values of 100 bytes fit into the cache.
const KEYS: u64 = 200_000;

struct Bed {
    db: Db,
    dir: tempfile::TempDir,
}

impl Bed {
    fn new(place: &Option<String>) -> Bed {
        let dir = place.as_ref().map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();
        let options = Options::default();
        let device = Arc::new(FileDevice::create(dir.path().join("store"), 8 << 30, true).unwrap());
        Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
        Bed { db: Db::open(device, options).unwrap(), dir }
    }

    fn filled(place: &Option<String>) -> Bed {
        let bed = Bed::new(place);
        for chunk in 0..KEYS / 1000 {
            let mut batch = Batch::new();
            for i in chunk * 1000..(chunk + 1) * 1000 {
                batch.put(key(i), vec![i as u8; 100]);
            }
            bed.db.write(batch).unwrap();
        }
        bed.db.checkpoint().unwrap();
        for i in 0..KEYS {
            bed.db.get(&key(i)).unwrap();
        }
        bed
    }

    fn done(self) {
        self.db.close().unwrap();
        drop(self.db);
        self.dir.close().unwrap();
    }
}

fn key(i: u64) -> Vec<u8> {
    let mut key = *b"key-000000000000";
    key[4..12].copy_from_slice(&i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key.to_vec()
}

/// Time that the calling thread has run.
fn on_cpu() -> Duration {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(said.split(' ').next().unwrap().parse().unwrap())
}

/// What all reading threads did: reads a second, and the part of the time that they ran.
fn read(db: &Db, threads: u64) -> (f64, f64) {
    let stop = AtomicBool::new(false);
    let (done, ran) = (AtomicU64::new(0), AtomicU64::new(0));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let (stop, done, ran) = (&stop, &done, &ran);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        assert!(db.get(&key(random.random_range(0..KEYS))).unwrap().is_some());
                    }
                    n += 64;
                }
                done.fetch_add(n, Ordering::Relaxed);
                ran.fetch_add(on_cpu().as_nanos() as u64, Ordering::Relaxed);
            });
        }
        std::thread::sleep(TIME);
        stop.store(true, Ordering::Relaxed);
    });
    let time = started.elapsed().as_secs_f64();
    let ran = ran.load(Ordering::Relaxed) as f64 / 1e9 / time / threads as f64;
    (done.load(Ordering::Relaxed) as f64 / time, ran)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Two reading threads to one, on cached data.
fn two_readers(place: &Option<String>) -> f64 {
    let bed = Bed::filled(place);
    let ratios = (0..ROUNDS).map(|_| {
        let ((one, _), (two, _)) = (read(&bed.db, 1), read(&bed.db, 2));
        println!("  one reader {one:.0}/s, two {two:.0}/s: {:.2}", two / one);
        two / one
    });
    let ratio = median(ratios.collect());
    bed.done();
    ratio
}

/// A reader of cached data beside a writer of new keys at random, to the same reader alone. The new keys lie beside
/// those that are read: among them they would thin the reader's data out over more and more pages, and the cache
/// would be measured.
fn beside_a_writer(place: &Option<String>) -> f64 {
    let bed = Bed::filled(place);
    let mut ratios = Vec::new();
    for round in 0..ROUNDS as u64 {
        let (alone, _) = read(&bed.db, 1);
        let stop = AtomicBool::new(false);
        let wrote = AtomicU64::new(0);
        let started = Instant::now();
        let (beside, ran) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = SmallRng::seed_from_u64(99 + round);
                while !stop.load(Ordering::Relaxed) {
                    let mut batch = Batch::new();
                    for _ in 0..100 {
                        let mut key = key(random.random_range(0..1 << 40));
                        key[0] = b'w';
                        batch.put(key, vec![1; 100]);
                    }
                    bed.db.write(batch).unwrap();
                    wrote.fetch_add(100, Ordering::Relaxed);
                }
            });
            std::thread::sleep(Duration::from_millis(300));
            let beside = read(&bed.db, 1);
            stop.store(true, Ordering::Relaxed);
            beside
        });
        let wrote = wrote.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
        bed.db.checkpoint().unwrap();
        println!(
            "  alone {alone:.0}/s, beside {beside:.0}/s (ran {ran:.2} of the time): {:.2}; {wrote:.0} keys/s written",
            beside / alone
        );
        ratios.push(beside / alone);
    }
    bed.done();
    median(ratios)
}

/// Latencies in nanoseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    fn at(&mut self, part: f64) -> Duration {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        Duration::from_nanos(self.0.get((last as f64 * part) as usize).copied().unwrap_or(0))
    }

    fn say(&mut self, what: &str) {
        println!(
            "  {what}: {} writes, median {:?}, 99% {:?}, 99.9% {:?}, 99.99% {:?}, longest {:?}",
            self.0.len(),
            self.at(0.5),
            self.at(0.99),
            self.at(0.999),
            self.at(0.9999),
            self.at(1.0),
        );
    }
}

/// The 99.9th percentile of writes of 4 KiB at random keys, one after the other at full speed: of those that meet a
/// checkpoint to those that do not.
fn beside_checkpoints(place: &Option<String>) -> f64 {
    let bed = Bed::new(place);
    let db = &bed.db;
    let mut random = SmallRng::seed_from_u64(7);
    let value: Vec<u8> = (0..4096).map(|_| random.random()).collect();
    let (mut with, mut without) = (Times::default(), Times::default());
    let (stop, during) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(300));
                during.store(true, Ordering::Relaxed);
                db.checkpoint().unwrap();
                during.store(false, Ordering::Relaxed);
            }
        });
        let started = Instant::now();
        while started.elapsed() < TIME * 8 {
            let before = during.load(Ordering::Relaxed);
            let begin = Instant::now();
            db.put(key(random.random_range(0..1 << 40)), value.clone()).unwrap();
            let took = begin.elapsed().as_nanos() as u64;
            if before || during.load(Ordering::Relaxed) { &mut with } else { &mut without }.0.push(took);
        }
        let n = with.0.len() + without.0.len();
        println!("  {:.0} writes/s", n as f64 / started.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
    });
    without.say("without a checkpoint");
    with.say(&format!("during one of {}", db.stats().unwrap().checkpoints));
    let ratio = with.at(0.999).as_secs_f64() / without.at(0.999).as_secs_f64();
    bed.done();
    ratio
}

fn main() -> ExitCode {
    // Cargo passes options of its own.
    let place = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let mut met = true;
    let mut goal = |what: &str, ratio: f64, good: bool, wanted: &str| {
        println!("{what}: {ratio:.2} (goal: {wanted})");
        met &= good;
    };
    let ratio = two_readers(&place);
    goal("two readers to one", ratio, ratio >= 1.7, "at least 1.7");
    let ratio = beside_a_writer(&place);
    goal("a reader beside a writer to one alone", ratio, ratio >= 0.8, "at least 0.8");
    let ratio = beside_checkpoints(&place);
    goal("99.9% of writes during checkpoints to without", ratio, ratio <= 2.0, "at most 2");
    if met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
