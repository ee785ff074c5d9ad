//! Deleted space is looked for in bounded steps, beside others, and comes back beside them.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{expect, one_of_three_tries};
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{DeviceCall, HookedDevice, MemDevice},
};

/// A device on which a read takes a while.
struct Slow {
    device: Arc<HookedDevice>,
    /// Microseconds that a read takes.
    micros: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl Slow {
    fn new(size: u64) -> Self {
        let (micros, reads) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (wait, count) = (micros.clone(), reads.clone());
        let device = HookedDevice::new(Arc::new(MemDevice::new(size)), false, move |call| {
            if matches!(call, DeviceCall::Read(_)) {
                count.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_micros(wait.load(Relaxed)));
            }
            Ok(())
        });
        Self { device: Arc::new(device.with_discards()), micros, reads }
    }
}

fn fill(db: &Db, tree: &str, count: u32) {
    for from in (0..count).step_by(500) {
        let mut batch = Batch::new();
        for i in from..(from + 500).min(count) {
            // Nothing that could be compressed.
            let mut state = u64::from(i) + 1;
            let value = (0..13).flat_map(|_| {
                state = (state ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
                state.to_le_bytes()
            });
            batch.put(format!("{tree}/{i:07}"), value.collect::<Vec<u8>>());
        }
        db.write(batch).unwrap();
    }
}

/// A store of thousands of interior nodes that are not in the cache, a delete, and a pause in which it is idle: then somebody writes.
fn longest_write_beside_a_walk() -> Duration {
    let device = Slow::new(512 << 20);
    let create = CreateOptions::default().node_size(4096);
    let options =
        |background| Options::default().background(background).cache_bytes(1 << 20).memtable_bytes(64 << 10);
    Db::create(device.device.clone(), &create, &options(false)).unwrap();
    let db = Db::open(device.device.clone(), options(false)).unwrap();
    fill(&db, "a", 300_000);
    db.close().unwrap();
    let db = Db::open(device.device.clone(), options(true)).unwrap();
    device.micros.store(1000, Relaxed);
    db.delete("a/0000005").unwrap();
    thread::sleep(Duration::from_millis(2500));
    // As much as goes into many tables: it has to be flushed beside the walk.
    let before = device.reads.load(Relaxed);
    let mut longest = Duration::ZERO;
    let mut state = 1u64;
    for _ in 0..6 {
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let began = Instant::now();
            // Close together, so that flushing them reads little.
            db.put(format!("b/{:05}", state >> 50), vec![7; 400]).unwrap();
            longest = longest.max(began.elapsed());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let reads = device.reads.load(Relaxed) - before;
    println!("longest write {longest:?}, {reads} reads meanwhile");
    device.micros.store(0, Relaxed);
    db.close().unwrap();
    longest
}

#[test]
fn nobody_waits_for_the_walk_after_a_delete() {
    one_of_three_tries(|| {
        let longest = longest_write_beside_a_walk();
        expect(longest < Duration::from_millis(1500), format!("a write stood still for {longest:?}"))
    });
}

/// How long a read is held up for others before it is said that they wait for it, and after how long without a read the
/// walk has ended: it pauses for two seconds after each write.
const PATIENCE: Duration = Duration::from_secs(20);
const ENDED: Duration = Duration::from_secs(5);

/// Reads of the thread that flushes, each held up until somebody else has done something beside it.
#[derive(Default)]
struct HeldReads {
    state: Mutex<HeldState>,
    changed: Condvar,
}

#[derive(Default)]
struct HeldState {
    holding: bool,
    /// Reads that were held up, and those of them that may go on.
    held: u64,
    let_go: u64,
    /// A read waited in vain.
    stuck: bool,
}

impl HeldReads {
    /// What the device asks before a call.
    fn ask(&self, call: &DeviceCall) {
        let mut state = self.state.lock().unwrap();
        let held = matches!(call, DeviceCall::Read(_)) && thread::current().name() == Some("pando-flush");
        if !held || !state.holding {
            return;
        }
        state.held += 1;
        let mine = state.held;
        self.changed.notify_all();
        let waits = |state: &mut HeldState| state.holding && state.let_go < mine;
        let (mut state, waited) = self.changed.wait_timeout_while(state, PATIENCE, waits).unwrap();
        if waited.timed_out() {
            (state.stuck, state.holding) = (true, false);
        }
    }

    /// Does `work` beside each read until there are no more; how many there were. Fails if the work waits for one.
    fn beside_each(&self, mut work: impl FnMut(u64)) -> u64 {
        for number in 1.. {
            let none = |state: &mut HeldState| state.held < number;
            let state = self.state.lock().unwrap();
            let (state, waited) = self.changed.wait_timeout_while(state, ENDED, none).unwrap();
            if waited.timed_out() {
                return number - 1;
            }
            drop(state);
            work(number);
            let mut state = self.state.lock().unwrap();
            assert!(!state.stuck, "what was done beside read {number} of the walk waited for it");
            state.let_go = number;
            self.changed.notify_all();
        }
        0
    }
}

/// The thread that walks an idle store after a delete holds no lock over a read that writes, syncs and checkpoints need,
/// however long the read takes. All that waited has been carried down before: so the walk finds nothing, and each
/// read is its own. Somebody writes beside the first only, since the store has to be idle; for flushes beside each
/// read of each walk there is `no_lock_is_held_over_a_read_of_a_walk` in `db/background/gc.rs`.
#[test]
fn no_lock_is_held_over_a_read_of_the_walk_after_a_delete() {
    let reads = Arc::new(HeldReads::default());
    let asked = reads.clone();
    let device = Arc::new(HookedDevice::new(Arc::new(MemDevice::new(512 << 20)), false, move |call| {
        asked.ask(call);
        Ok(())
    }));
    let create = CreateOptions::default().node_size(4096);
    let options = |background| {
        Options::default().background(background).cache_bytes(256 << 10).memtable_bytes(64 << 10)
    };
    Db::create(device.clone(), &create, &options(false)).unwrap();
    let db = Db::open(device.clone(), options(false)).unwrap();
    fill(&db, "a", 50_000);
    db.close().unwrap();
    let db = Db::open(device, options(true)).unwrap();
    db.delete("a/0000005").unwrap();
    db.settle().unwrap();
    reads.state.lock().unwrap().holding = true;
    let count = reads.beside_each(|number| {
        if number == 1 {
            db.put("b/1", vec![7; 400]).unwrap();
        }
        db.sync().unwrap();
        db.checkpoint().unwrap();
    });
    reads.state.lock().unwrap().holding = false;
    println!("{count} reads");
    assert!(count > 200, "{count} reads of the walk: nothing was tested");
    db.close().unwrap();
}

/// With fewer reads than these nothing had to be waited for.
const ENOUGH_READS: u64 = 500;

/// Somebody writes all over trees whose nodes are not in the cache, and syncs and clones; where `deletes`, other trees
/// of thousands of nodes are deleted meanwhile and taken out node by node. The longest put, sync and clone.
fn beside_reads(deletes: bool, step: u64) -> [Duration; 3] {
    let device = Slow::new(512 << 20);
    let create = CreateOptions::default().node_size(4096);
    let options =
        |background| Options::default().background(background).cache_bytes(2 << 20).memtable_bytes(64 << 10);
    Db::create(device.device.clone(), &create, &options(false)).unwrap();
    let db = Db::open(device.device.clone(), options(false)).unwrap();
    fill(&db, "a", 150_000);
    fill(&db, "b", 10_000);
    for n in 0..20 {
        db.clone_prefix("b/", format!("c{n:02}/")).unwrap();
        (0..10_000).step_by(40).for_each(|i| db.put(format!("c{n:02}/{i:07}"), vec![n; 100]).unwrap());
    }
    db.close().unwrap();
    let db = Db::open(device.device.clone(), options(true)).unwrap();
    device.micros.store(1000, Relaxed);
    let before = device.reads.load(Relaxed);
    let mut longest = [Duration::ZERO; 3];
    let (began, mut round) = (Instant::now(), 0);
    // On a busy machine it takes longer until enough had to be read.
    let most = || if device.reads.load(Relaxed) - before > ENOUGH_READS { 6 } else { 60 };
    while began.elapsed() < Duration::from_secs(most()) {
        if deletes && round % 40 == 20 && round / 40 < 20 {
            db.delete_prefix(format!("c{:02}/", round / 40)).unwrap();
        }
        let what = [1, 0][usize::from(round % 50 > 0)];
        let what = if round % 101 == 100 { 2 } else { what };
        let start = Instant::now();
        match what {
            0 => db.put(format!("a/{:07}", round * step % 150_000), vec![7; 400]).unwrap(),
            1 => db.sync().unwrap(),
            _ => db.clone_prefix("a/00", format!("x{}/", round % 5)).unwrap(),
        }
        longest[what] = longest[what].max(start.elapsed());
        thread::sleep(Duration::from_micros(500));
        round += 1;
    }
    let reads = device.reads.load(Relaxed) - before;
    let [put, sync, clone] = longest;
    println!("longest put {put:?}, sync {sync:?}, clone {clone:?}; {round} rounds, {reads} reads meanwhile");
    device.micros.store(0, Relaxed);
    assert!(reads > ENOUGH_READS, "{reads} reads: nothing had to be waited for");
    db.close().unwrap();
    longest
}

#[test]
fn nobody_waits_for_the_reads_of_those_who_take_out_nodes() {
    one_of_three_tries(|| {
        let longest = beside_reads(true, 1);
        expect(longest.iter().all(|longest| *longest < Duration::from_millis(500)), format!("{longest:?}"))
    });
}

/// More is written than the device can take in, since each key has to be read for. Before, all tables filled up at the
/// speed of memory, and a put stood still for seconds until one was flushed.
#[test]
fn writers_are_spread_over_the_time_that_slow_flushes_take() {
    one_of_three_tries(|| {
        let longest = beside_reads(false, 7919);
        expect(longest.iter().all(|longest| *longest < Duration::from_millis(700)), format!("{longest:?}"))
    });
}

/// Somebody writes all the time; what was deleted is to come back all the same.
#[test]
fn deleted_space_comes_back_beside_steady_writes() {
    let device = Slow::new(512 << 20);
    let create = CreateOptions::default().node_size(64 << 10);
    let options = Options::default().cache_bytes(32 << 20);
    Db::create(device.device.clone(), &create, &options).unwrap();
    let db = Db::open(device.device, options).unwrap();
    fill(&db, "a", 1_000_000);
    fill(&db, "keep", 50_000);
    db.checkpoint().unwrap();
    let free = || db.space().0;
    let full = free();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (db, stop) = (db.clone(), stop.clone());
        thread::spawn(move || {
            let mut n = 0u64;
            while !stop.load(Relaxed) {
                db.put(format!("w/{:04}", n * 7919 % 10_000), vec![n as u8; 100]).unwrap();
                n += 1;
                thread::sleep(Duration::from_micros(400));
            }
            n
        })
    };
    thread::sleep(Duration::from_millis(500));
    db.delete_prefix("a/").unwrap();
    let began = Instant::now();
    let wanted = full + 60_000_000;
    let mut most = 0;
    while most < wanted && began.elapsed() < Duration::from_secs(100) {
        thread::sleep(Duration::from_millis(50));
        most = free().max(most);
    }
    let took = began.elapsed();
    stop.store(true, Relaxed);
    let written = writer.join().unwrap();
    println!("{} bytes came back after {took:?} beside {written} puts", most.saturating_sub(full));
    assert!(most >= wanted, "{} of 100 MB came back beside steady writes", most.saturating_sub(full));
    assert!(written > 100);
    assert_eq!(db.prefix(b"keep/").count(), 50_000);
    db.close().unwrap();
}
/// Some of the small files in every leaf are deleted while somebody writes elsewhere, at `rest` between two puts. No
/// delete covers a node or most of a leaf, so all of them waited for two idle seconds.
fn small_deletes_come_back(node_size: u32, value: u64, step: u64, rest: Duration) {
    one_of_three_tries(|| {
        let longest = longest_write_beside_small_deletes(node_size, value, step, rest);
        expect(longest < Duration::from_millis(500), format!("a write stood still for {longest:?}"))
    });
}

fn longest_write_beside_small_deletes(node_size: u32, value: u64, step: u64, rest: Duration) -> Duration {
    let files = 80_000_000 / value.max(1000);
    let device = Slow::new(512 << 20);
    // Other programs are not to decide how much time the threads have.
    let options = Options::default().cache_bytes(64 << 20).background_nice(0);
    Db::create(device.device.clone(), &CreateOptions::default().node_size(node_size), &options).unwrap();
    let db = Db::open(device.device, options).unwrap();
    let mut state = 1u64;
    for i in 0..files {
        let value = (0..value / 8).flat_map(|_| {
            state = (state ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
            state.to_le_bytes()
        });
        db.put(format!("f/{i:06}/0"), value.collect::<Vec<u8>>()).unwrap();
    }
    db.settle().unwrap();
    let stop = AtomicBool::new(false);
    // What nobody uses: what is still to be written for the writer is another matter.
    let free = || u64::MAX / 2 - db.stats().unwrap().used;
    let (took, back, wanted, longest, puts) = thread::scope(|s| {
        let writer = s.spawn(|| {
            let (mut n, mut longest) = (0u64, Duration::ZERO);
            while !stop.load(Relaxed) {
                let began = Instant::now();
                db.put(format!("w/{:04}", n * 7919 % 10_000), vec![n as u8; 100]).unwrap();
                longest = longest.max(began.elapsed());
                n += 1;
                if rest > Duration::ZERO {
                    thread::sleep(rest);
                }
            }
            (longest, n)
        });
        thread::sleep(Duration::from_millis(500));
        let before = free();
        // By ranges and one by one.
        for (n, i) in (0..files).step_by(step as usize).enumerate() {
            match n % 2 {
                0 => db.delete_prefix(format!("f/{i:06}/")).unwrap(),
                _ => db.delete(format!("f/{i:06}/0")).unwrap(),
            }
        }
        let began = Instant::now();
        // Blocks and the writer's own nodes take a part.
        let wanted = files / step * value / 10 * 7;
        // The most at once: what is back is used again, by checkpoints for instance.
        let mut back = 0;
        while back < wanted && began.elapsed() < Duration::from_secs(100) {
            thread::sleep(Duration::from_millis(50));
            back = free().saturating_sub(before).max(back);
        }
        let took = began.elapsed();
        stop.store(true, Relaxed);
        let (longest, puts) = writer.join().unwrap();
        (took, back, wanted, longest, puts)
    });
    println!(
        "nodes of {node_size}, one in {step} of {value} bytes: {back} of {wanted} bytes back after {took:?} \
         beside {puts} puts, the longest {longest:?}"
    );
    assert!(back >= wanted, "{back} bytes came back of the {wanted} that were awaited");
    assert_eq!(db.prefix(b"f/").count() as u64, files - files.div_ceil(step));
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    db.close().unwrap();
    longest
}

#[test]
fn what_small_deletes_cover_comes_back_beside_steady_writes() {
    small_deletes_come_back(1 << 20, 4000, 8, Duration::from_micros(400));
    small_deletes_come_back(64 << 10, 4000, 5, Duration::from_micros(400));
}

/// A node holds four files, so there are many places at which something waits.
#[test]
fn what_small_deletes_cover_comes_back_from_small_nodes_beside_steady_writes() {
    small_deletes_come_back(16 << 10, 4000, 4, Duration::from_micros(400));
    small_deletes_come_back(16 << 10, 200, 2, Duration::from_micros(400));
}

/// The thread that flushes has always something to do.
#[test]
fn what_small_deletes_cover_comes_back_beside_a_writer_at_full_speed() {
    small_deletes_come_back(1 << 20, 4000, 8, Duration::ZERO);
    small_deletes_come_back(64 << 10, 4000, 4, Duration::ZERO);
    small_deletes_come_back(16 << 10, 4000, 4, Duration::ZERO);
    small_deletes_come_back(16 << 10, 200, 2, Duration::ZERO);
}
