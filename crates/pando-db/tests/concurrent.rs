//! Several writers, each with a tree of its own, readers beside them, and a crash at the end.
//!
//! The writers' trees share no keys, so that for each of them there is one
//! right answer at any time; the log is one sequence, so a crash cuts all of
//! them at one moment: what is left of each is a prefix of its batches, at
//! least up to its last sync, and no writer may have lost something that it
//! wrote before another one's surviving sync.

#![allow(clippy::unwrap_used)]

mod model;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use model::{
    campaign::{Watchdog, variable},
    config::{Config, Profile, open_with},
    oracle::{Pair, World, digest, successor},
    rng::Rng,
};
use pando_db::{Batch, Db, Op, Result, device::SimDevice, patch};

const WRITERS: u8 = 3;
const BATCHES: usize = 250;

/// What one writer did.
struct Writer {
    /// The state of its tree after each batch, the empty one first.
    states: Vec<World>,
    /// How many batches its last sync covers.
    synced: usize,
}

/// A batch within the tree of writer `me`.
fn batch(rng: &mut Rng, me: u8, world: &World) -> Vec<Op> {
    let key = |rng: &mut Rng| -> Bytes {
        let depth = rng.between(1, 4);
        let path: String = (0..depth).map(|_| *rng.pick(&["/a", "/b", "/c"])).collect();
        format!("{me}{path}/f{}", rng.below(30)).into()
    };
    let count = rng.between(1, 5);
    let mut after = world.clone();
    (0..count)
        .map(|_| {
            let (a, b) = (key(rng), key(rng));
            let cut =
                |key: &Bytes, rng: &mut Rng| key.slice(..(2 * rng.between(1, 4) as usize + 1).min(key.len()));
            let (src, dst) = (cut(&a, rng), cut(&b, rng));
            let apart = !src.starts_with(&dst) && !dst.starts_with(&src);
            let small = after.prefix(&src).count() + after.len() < 400;
            let op = match rng.below(10) {
                0 if apart && small => Op::ClonePrefix(src, dst),
                1 if apart => Op::RenamePrefix(src, dst),
                2 => {
                    let hi = successor(&src);
                    Op::DeleteRange(src, hi)
                }
                3 => Op::Delete(a),
                4 | 5 => Op::Upsert(a, patch::write(rng.below(30) as u32, &rng.next().to_le_bytes())),
                _ => Op::Put(a, vec![rng.next() as u8; rng.below(600) as usize].into()),
            };
            after.apply(&op);
            op
        })
        .collect()
}

fn write(db: &Db, me: u8, seed: u64) -> Writer {
    let mut rng = Rng(seed ^ u64::from(me) << 32);
    let mut writer = Writer { states: vec![World::default()], synced: 0 };
    for _ in 0..BATCHES {
        let world = writer.states.last().unwrap().clone();
        let ops = batch(&mut rng, me, &world);
        let mut batch = Batch::new();
        ops.iter().for_each(|op| _ = batch.push(op.clone()));
        db.write(batch).unwrap();
        let world = world.after(&ops);
        writer.states.push(world.clone());
        match rng.below(60) {
            0 => {
                db.sync().unwrap();
                writer.synced = writer.states.len() - 1;
            }
            1 => db.checkpoint().unwrap(),
            2..6 => {
                let pairs: Vec<Pair> = db.prefix(&[b'0' + me]).collect::<Result<_>>().unwrap();
                world.compare(&pairs).unwrap();
            }
            _ => (),
        }
    }
    writer
}

/// Reads what it likes until told to stop: two readings of one snapshot must agree.
fn read(db: &Db, stop: &AtomicBool, seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let mut rounds = 0;
    // Once at least, however busy the machine is.
    while rounds == 0 || !stop.load(Ordering::Relaxed) {
        let snapshot = db.snapshot();
        let first: Vec<Pair> = snapshot.range(&[], None).collect::<Result<_>>().unwrap();
        thread::sleep(Duration::from_millis(rng.below(5)));
        let mut second: Vec<Pair> = snapshot.range(&[], None).rev().collect::<Result<_>>().unwrap();
        second.reverse();
        assert!(first == second, "a snapshot has changed");
        if !first.is_empty() {
            let (key, value) = rng.pick(&first);
            assert_eq!(snapshot.get(key).unwrap().as_ref(), Some(value));
        }
        rounds += 1;
    }
    rounds
}

fn one(seed: u64) {
    let config =
        Config { node_size: 4096, log_size: 256 << 10, threads: true, ..Config::new(seed, Profile::Crashes) };
    let device = Arc::new(SimDevice::new(64 << 20, seed));
    let mut rng = Rng(seed);
    let with = open_with(&mut rng);
    Db::create(device.clone(), &config.create_options(), &config.options(&with)).unwrap();
    let db = Db::open(device.clone(), config.options(&with)).unwrap();
    let stop = AtomicBool::new(false);
    let writers: Vec<Writer> = thread::scope(|scope| {
        let reader = scope.spawn(|| read(&db, &stop, seed));
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| {
                scope.spawn({
                    let db = &db;
                    move || write(db, me, seed)
                })
            })
            .collect();
        let writers: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        stop.store(true, Ordering::Relaxed);
        let writers = writers.into_iter().map(|writer| writer.unwrap()).collect();
        assert!(reader.join().unwrap() > 0);
        writers
    });
    let all = |db: &Db, me: u8| -> Vec<Pair> { db.prefix(&[b'0' + me]).collect::<Result<_>>().unwrap() };
    for (me, writer) in writers.iter().enumerate() {
        writer.states.last().unwrap().compare(&all(&db, me as u8)).unwrap();
    }
    device.crash();
    drop(db);
    let db = Db::open(device.reopen(), config.options(&with)).unwrap();
    for (me, writer) in writers.iter().enumerate() {
        let found = all(&db, me as u8);
        let at = writer.states.iter().rposition(|state| state.digest() == digest(&found));
        let at = at.unwrap_or_else(|| panic!("writer {me}: a state that never was"));
        assert!(at >= writer.synced, "writer {me}: {at} batches are left of {} synced", writer.synced);
        writer.states[at].compare(&found).unwrap();
    }
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// Threads make each run different, but a seed that fails once tends to fail again.
#[test]
fn writers_and_readers_do_not_disturb_each_other() {
    let watchdog = Watchdog::new("--test concurrent".into());
    let single: Option<u64> = variable("PANDO_SEED");
    let deadline = Instant::now() + Duration::from_secs(variable("PANDO_CONCURRENT_SECONDS").unwrap_or(10));
    let mut seed = single.unwrap_or(1);
    loop {
        watchdog.begin(seed);
        println!("seed {seed}; again: PANDO_SEED={seed} cargo test -p pando-db --test concurrent");
        one(seed);
        watchdog.end();
        seed += 1;
        if single.is_some() || Instant::now() > deadline {
            break;
        }
    }
}
