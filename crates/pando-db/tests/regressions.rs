//! One test for every bug that the other tests have found, under the name of what went wrong.
//!
//! Most are runs of the model test, cut down by its shrinker
//! (`PANDO_SOURCE=1` prints a failure in this form).

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, thread};

use crate::image::Image;
use crate::model::{
    campaign::Watchdog,
    config::{Config, Profile},
    shrink::run_steps,
    step::{How, OpenWith, Step},
};
use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Error, Merge, Op, Options,
    device::{BLOCK, Device, DeviceCall, FailMode, HookedDevice, MemDevice, SimDevice},
};
use parking_lot::Mutex;

/// A value of some length; what is in it has never mattered.
fn put(key: &[u8], len: usize) -> Op {
    let value: Vec<u8> = (0..len).map(|i| ((i * 7919) >> 3) as u8).collect();
    Op::Put(Bytes::copy_from_slice(key), value.into())
}

fn rename(src: &[u8], dst: &[u8]) -> Op {
    Op::RenamePrefix(Bytes::copy_from_slice(src), Bytes::copy_from_slice(dst))
}

const SMALL: OpenWith = OpenWith { memtable: 1024, cache: 256 << 10, abundant: None };

/// A store as the model test has them: tiny nodes, the smallest log, nothing in the background.
fn config(profile: Profile) -> Config {
    Config { node_size: 4096, log_size: 64 << 10, first: SMALL, ..Config::new(1, profile) }
}

fn passes(config: &Config, steps: &[Step]) {
    let watchdog = Watchdog::new("--test all regressions::".into());
    watchdog.begin(config.seed);
    let run = run_steps(config, steps);
    watchdog.end();
    if let Err(error) = run.outcome {
        panic!("at step {}: {error}", run.steps.len().saturating_sub(1));
    }
}

/// The children of a shared node that was pulled up into its parent looked private to the merge that
/// followed, because the parent's new references were not counted yet (model test, seed 123 of
/// `full_stores`).
#[test]
fn what_is_pulled_up_from_a_shared_node_is_not_merged_in_place() {
    let mut config = config(Profile::Crashes);
    config.first.abundant = Some(1000);
    let steps = [
        Step::Write(vec![put(b"M\x02b\x00\x02lib\x00\x02b\x00\x01x.rs\x00", 0)]),
        Step::Write(vec![
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f09"].concat(), 37),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f10"].concat(), 77),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f11"].concat(), 183),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f12"].concat(), 189),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f13"].concat(), 100),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f14"].concat(), 143),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f15"].concat(), 92),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f16"].concat(), 37),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f17"].concat(), 36),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f18"].concat(), 112),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f19"].concat(), 0),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f20"].concat(), 0),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f21"].concat(), 0),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f22"].concat(), 0),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f23"].concat(), 0),
            put(&[&b"/b/\xff/c/a/aa/a"[..], &[255; 217], b"/f24"].concat(), 0),
        ]),
        Step::Write(vec![rename(b"/", b"M\x02lib\x00")]),
        Step::Write(vec![put(b"M\x01z\x00", 898)]),
        Step::Write(vec![rename(b"M\x02lib\x00", b"D\x02src\x00\x01y\x00\x00\x00")]),
        Step::Write(vec![
            put(b"M\x02a\x00\x02/f02", 243),
            put(b"M\x02a\x00\x02/f04", 0),
            put(b"M\x02a\x00\x02/f05", 0),
            put(b"M\x02a\x00\x02/f06", 178),
            put(b"M\x02a\x00\x02/f07", 143),
            put(b"M\x02a\x00\x02/f08", 99),
            put(b"M\x02a\x00\x02/f09", 236),
            put(b"M\x02a\x00\x02/f10", 194),
            put(b"M\x02a\x00\x02/f11", 77),
            put(b"M\x02a\x00\x02/f12", 139),
            put(b"M\x02a\x00\x02/f13", 24),
            put(b"M\x02a\x00\x02/f14", 176),
            put(b"M\x02a\x00\x02/f15", 197),
            put(b"M\x02a\x00\x02/f16", 21),
            put(b"M\x02a\x00\x02/f17", 145),
            put(b"M\x02a\x00\x02/f18", 81),
            put(b"M\x02a\x00\x02/f19", 167),
            put(b"M\x02a\x00\x02/f20", 230),
            put(b"M\x02a\x00\x02/f21", 140),
        ]),
    ];
    passes(&config, &steps);
}

/// A checkpoint gave up the log's records, but those still in the buffer held their room in the ring: a
/// log smaller than the buffer's limit stayed full, and writers waited for ever.
#[test]
fn a_checkpoint_frees_the_log_also_of_what_was_never_written() {
    let steps: Vec<Step> =
        (0..100).map(|i| Step::Write(vec![put(format!("{i}").as_bytes(), 2000)])).collect();
    passes(&config(Profile::Crashes), &steps);
}

/// A device that fails while space is reserved is not full.
#[test]
fn a_failing_reservation_is_not_a_full_store() {
    let steps = [
        Step::Fault { after: 0, onwards: true },
        Step::Write(vec![put(b"a", 1)]),
        Step::Write(vec![put(b"b", 1)]),
    ];
    passes(&config(Profile::Faults), &steps);
}

/// Dirty nodes were counted by their bytes, but each takes whole blocks, and the translation table has
/// pages to write too: the reserve was used up by ordinary writes, and deletes were refused.
#[test]
fn deletes_go_through_on_a_full_store() {
    let config = config(Profile::Space);
    let device = Arc::new(SimDevice::new(1 << 20, 1));
    let options = config.options(&config.first);
    Db::create(device.clone(), &config.create_options(), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let key = |i: u64| format!("{:08x}", i.wrapping_mul(0x9E37_79B9) as u32);
    for round in 0..3 {
        let mut count = 0;
        loop {
            match db.put(key(count), vec![round; 90]) {
                Ok(()) => count += 1,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(count > 500, "only {count} pairs in round {round}");
        (0..count).for_each(|i| db.delete(key(i)).unwrap());
        db.put("again", "there is room").unwrap();
        assert!(db.get(key(0).as_bytes()).unwrap().is_none());
    }
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// Numbers in the superblock that no store can have, under a checksum that fits, must be refused: one
/// less than the first batch, and more nodes than the translation table can name.
#[test]
fn numbers_that_cannot_be_are_refused_although_sealed() {
    let config = config(Profile::Crashes);
    for (field, value) in [(144, 0), (152, 1 << 60)] {
        let device = Arc::new(MemDevice::new(1 << 20));
        let options = || config.options(&SMALL);
        Db::create(device.clone(), &config.create_options(), &options()).unwrap();
        let mut bytes = vec![0; 1 << 20];
        device.read_at(0, &mut bytes).unwrap();
        let mut image = Image::new(bytes);
        // Both slots say the same of a new store, but the newer one counts.
        for slot in [0, crate::image::BLOCK] {
            image.bytes[slot + field..slot + field + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        image.seal();
        device.write_at(0, &image.bytes).unwrap();
        assert!(Db::open(device, options()).is_err(), "{value} at byte {field}");
    }
}

/// Nodes with numbers that the superblock says were never given out: a new node would have got the number of one that
/// there is, and its place.
#[test]
fn nodes_with_numbers_that_were_not_given_out_are_refused_although_sealed() {
    const NEXT_NODE: usize = 152;
    let config = config(Profile::Crashes);
    let device = Arc::new(MemDevice::new(1 << 20));
    let options = || config.options(&SMALL);
    Db::create(device.clone(), &config.create_options(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    (0..400).for_each(|i| db.put(format!("{i:05}"), vec![7; 200]).unwrap());
    db.settle().unwrap();
    let nodes = db.inspect(&pando_db::InspectOptions::default()).unwrap().nodes;
    let root = nodes.iter().find(|node| node.distance == 0).unwrap().id;
    let highest = nodes.iter().map(|node| node.id).max().unwrap();
    db.close().unwrap();
    let mut bytes = vec![0; 1 << 20];
    device.read_at(0, &mut bytes).unwrap();
    assert!(root < highest, "the root is the newest node");
    for (next, opens) in [(highest + 1, true), (highest, false), (root + 1, false)] {
        let mut image = Image::new(bytes.clone());
        for slot in [0, crate::image::BLOCK] {
            image.bytes[slot + NEXT_NODE..][..8].copy_from_slice(&next.to_le_bytes());
        }
        image.seal();
        let device = Arc::new(MemDevice::new(1 << 20));
        device.write_at(0, &image.bytes).unwrap();
        match (Db::open(device, options()), opens) {
            (Ok(db), true) => db.close().unwrap(),
            (Err(Error::Corrupt { .. }), false) => (),
            (result, _) => panic!("next node {next} of {highest}: {:?}", result.map(drop)),
        }
    }
}

/// What is to be done once, by a thread of its own, while a device does something.
type Beside = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A device at whose first write from byte `data` on, once there is something `beside`, that is done: before the
/// write returns.
fn interrupted(device: Arc<SimDevice>, data: u64, beside: Beside) -> Arc<HookedDevice> {
    let device = HookedDevice::new(device, false, |_| Ok(()));
    Arc::new(device.and_after(move |call| {
        let in_data = matches!(call, DeviceCall::Write(range) if range.start >= data);
        if let Some(beside) = in_data.then(|| beside.lock().take()).flatten() {
            thread::spawn(beside).join().unwrap();
        }
    }))
}

/// A flush that fails may have lost whatever anybody had written, and the next flush knows nothing of it.
/// The checkpoint trusted its own flush alone: beside a sync whose flush failed, it made a superblock
/// durable whose nodes were lost.
#[test]
fn a_checkpoint_does_not_survive_the_failed_flush_of_a_sync() {
    for seed in 0..20 {
        let config = config(Profile::Crashes);
        let device = Arc::new(SimDevice::new(8 << 20, seed));
        let options = || config.options(&SMALL);
        Db::create(device.clone(), &config.create_options(), &options()).unwrap();
        let beside = Beside::default();
        let interrupted = interrupted(device.clone(), 2 * BLOCK + config.log_size, beside.clone());
        let db = Db::open(interrupted.clone(), options()).unwrap();
        // Few, so that no checkpoint has come by itself before.
        for i in 0..12 {
            db.put(format!("{i}"), vec![1; 300]).unwrap();
        }
        db.sync().unwrap();
        db.put("not synced", "is in the log's buffer").unwrap();
        *beside.lock() = Some(Box::new({
            let (db, device) = (db.clone(), device.clone());
            move || {
                // The log is written, its flush fails.
                device.set_fail_at(Some(1), FailMode::Once);
                assert!(db.sync().is_err());
            }
        }));
        assert!(db.checkpoint().is_err(), "seed {seed}: a checkpoint although data may be lost");
        assert!(db.sync().is_err() && db.put("a", "b").is_err());
        drop((db, interrupted));
        let db = Db::open(device.reopen(), options()).unwrap();
        for i in 0..12 {
            let value = db.get(format!("{i}").as_bytes()).unwrap();
            assert_eq!(value.as_deref(), Some(&[1; 300][..]), "seed {seed}: {i}");
        }
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
}

/// What a lying device had destroyed lay below a delete: no scan saw it, and the model test took the
/// checker's finding, which was right, for a fault of the engine (seed 310788551242 of `lying_devices`).
#[test]
fn damage_below_a_delete_may_be_found_by_the_checker_alone() {
    let with = |memtable, cache, abundant| OpenWith { memtable, cache, abundant };
    let seed = 310_788_551_242;
    let first = with(2048, 8 << 20, Some(8000));
    let config = Config { log_size: 256 << 10, first, ..Config { seed, ..config(Profile::Lies) } };
    let reopen = |how, with| Step::Reopen { how, with };
    let steps = [
        reopen(How::Crash, with(1024, 8 << 20, Some(8000))),
        reopen(How::Crash, with(2048, 256 << 10, Some(1000))),
        reopen(How::CrashInRecovery(4), with(2048, 8 << 20, None)),
        reopen(How::CrashInRecovery(45), with(16384, 256 << 10, None)),
        reopen(How::CrashInRecovery(46), with(2048, 256 << 10, Some(1000))),
        Step::Write(vec![
            put(&[&b"/b"[..], &[108; 223], b"y"].concat(), 1423),
            put(b"\xfe\x01\x01\x00", 0),
            put(b"M\x02a\x00\x02b\x00\x01x.rs\x00", 1302),
        ]),
        Step::Write(vec![put(b"/s/00027", 0)]),
        Step::Sync,
        reopen(How::Crash, with(16384, 1 << 20, None)),
        reopen(How::CrashInRecovery(16), with(1024, 8 << 20, Some(1000))),
        reopen(How::CrashTwice, with(2048, 8 << 20, Some(1000))),
        Step::Lie,
        Step::Write(vec![
            put(b"\xff\xfe\xfeab", 1454),
            put(b"/b/aa/c/f01", 154),
            put(&[&b"/b/a/f10"[..], &[255; 60], b"x"].concat(), 0),
            put(&[&b"/c/c/c"[..], &[108; 113], b"x"].concat(), 294),
        ]),
        Step::Write(vec![Op::DeleteRange(
            [&b"/c/b/c/c"[..], &[108; 150], b"y"].concat().into(),
            Some(Bytes::from_static(b"\xff\x00ab\xfeba")),
        )]),
        Step::Checkpoint,
    ];
    passes(&config, &steps);
}

/// What a write needed was all that the host was asked to keep, and all that a discard left: when the disk under a
/// sparse image filled up then, not even an empty store took a small value (model test, seed 328400567669 of
/// `full_stores`).
#[test]
fn an_empty_store_takes_a_small_value_when_its_host_is_full() {
    let mut config = config(Profile::Space);
    config.node_size = 16 << 10;
    config.device_size = 1_507_328;
    passes(&config, &[Step::Write(vec![put(b"a", 0)]), Step::Settle, Step::LimitSpace(3912), Step::MakeRoom]);
}

/// Carrying deletes down gave nothing back while a snapshot held what it replaced, and went on until the space that
/// checkpoints and deletes need was gone: both failed, on a store where nothing was written any more (model test,
/// seed 353980182575 of `full_stores`).
#[test]
fn settling_under_a_snapshot_leaves_the_room_of_deletes_and_checkpoints() {
    let config = Config { node_size: 16 << 10, ..config(Profile::Space) };
    let device = Arc::new(SimDevice::new(4 << 20, 1));
    let options = config.options(&config.first);
    Db::create(device.clone(), &config.create_options(), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let key = |i: u64| format!("{:08x}", i.wrapping_mul(0x9E37_79B9) as u32);
    let noise = |i: u64| -> Vec<u8> {
        (1..60).flat_map(|n| (i * n).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()).collect()
    };
    let count = (0..).take_while(|&i| db.put(key(i), noise(i)).is_ok()).count() as u64;
    assert!(count > 3000, "only {count} pairs");
    db.settle().unwrap();
    let snapshot = db.snapshot();
    // They wait high up in the DAG; where they go, all leaves are written anew.
    for i in (0..count).step_by(60) {
        db.delete(key(i)).unwrap();
    }
    for _ in 0..20 {
        db.settle().unwrap();
    }
    db.delete(key(1)).unwrap();
    db.checkpoint().unwrap();
    assert!(snapshot.get(key(1).as_bytes()).unwrap().is_some());
    drop(snapshot);
    for i in (0..count).step_by(7) {
        db.delete(key(i)).unwrap();
    }
    db.put("again", "there is room").unwrap();
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// An operation of which the merge function makes a panic.
struct Touchy;

impl Merge for Touchy {
    fn name(&self) -> &'static str {
        "touchy"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        assert_ne!(op, b"panic", "a merge function with a bug");
        old.map(Bytes::copy_from_slice)
    }
}

/// The active table was taken out of its place while a batch was put into it, and was lost with all that had been
/// written since the last one was sealed when a merge function panicked; the next checkpoint made that final.
#[test]
fn a_merge_function_that_panics_takes_nothing_with_it() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = |merge: Arc<dyn Merge>| Options::default().background(false).merge(merge);
    Db::create(device.clone(), &CreateOptions::default(), &options(Arc::new(Touchy))).unwrap();
    let db = Db::open(device.clone(), options(Arc::new(Touchy))).unwrap();
    db.put("a", "1").unwrap();
    db.put("b", "2").unwrap();
    db.sync().unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.upsert("a", "panic")));
    assert!(caught.is_err(), "the merge function is not asked where the value is at hand");
    assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&b"2"[..]));
    assert!(matches!(db.put("c", "3"), Err(Error::Stopped { .. })), "half a batch may be in memory");
    assert!(db.stats().unwrap().stopped.is_some_and(|reason| reason.contains("panicked")));
    assert!(db.checkpoint().is_err());
    drop(db);
    /// What it should have been.
    struct Mended;
    impl Merge for Mended {
        fn name(&self) -> &'static str {
            "touchy"
        }

        fn apply(&self, old: Option<&[u8]>, _: &[u8]) -> Option<Bytes> {
            old.map(Bytes::copy_from_slice)
        }
    }
    let db = Db::open(device, options(Arc::new(Mended))).unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&b"2"[..]));
}

/// Of a batch that may be coalesced with the one before, the record came first, and beside a reader the batch was
/// then put into a copy of the active table. When the merge function panicked, the store went on without the batch,
/// and recovery would have found it.
#[test]
fn a_batch_that_panics_beside_a_reader_is_not_logged_by_a_store_that_goes_on() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = Options::default().background(false).merge(Arc::new(Touchy));
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    db.put("a", "1").unwrap();
    thread::scope(|scope| _ = scope.spawn(|| db.get(b"a").unwrap()).join());
    let mut batch = Batch::new();
    batch.may_coalesce();
    batch.upsert("a", "panic");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| db.write(batch)));
    assert!(caught.is_err(), "the merge function is not asked where the value is at hand");
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(matches!(db.put("c", "3"), Err(Error::Stopped { .. })), "its record is in the log");
}

/// Values that stay in the log are in records behind that of their batch. A checkpoint kept these, which nothing
/// needed any more: in the smallest log there was never room for the next batch, and whoever wrote it made checkpoints
/// for ever.
#[test]
fn a_small_log_has_room_again_when_values_stay_in_it() {
    for (value, background) in
        [(7 << 10, false), (13 << 10, true), (16_000, false), (16_200, false), (16_200, true)]
    {
        let (send, done) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let device = Arc::new(MemDevice::new(8 << 20));
            let create = CreateOptions::default().node_size(4096).log_size(64 << 10);
            let options = Options::default().background(background);
            Db::create(device.clone(), &create, &options).unwrap();
            let db = Db::open(device, options).unwrap();
            // Too full for values to be placed outside the log: less than an eighth is free.
            let mut filled = 0;
            while db.put(format!("filler/{filled:05}"), vec![filled as u8; 2000]).is_ok() {
                filled += 1;
            }
            db.settle().unwrap();
            for i in 0..filled / 40 {
                db.delete(format!("filler/{i:05}")).unwrap();
            }
            db.settle().unwrap();
            let mut written = 0;
            for i in 0..40 {
                written += u32::from(db.put("value", vec![i; value]).is_ok());
            }
            _ = send.send(written);
        });
        let written = done.recv_timeout(std::time::Duration::from_secs(40)).expect("a write never returned");
        assert!(written > 30, "{written} of 40 values of {value} bytes found room");
    }
}

/// A batch that was taken in while the store was being closed was nowhere afterwards, although its write had succeeded.
#[test]
fn what_is_written_beside_a_close_is_refused_or_there() {
    let mut late = 0;
    for round in 0..60 {
        let device = Arc::new(MemDevice::new(16 << 20));
        let create = CreateOptions::default().node_size(4096);
        Db::create(device.clone(), &create, &Options::default()).unwrap();
        let db = Db::open(device.clone(), Options::default()).unwrap();
        let writer = db.clone();
        let writing = thread::spawn(move || {
            (0u32..).take_while(|i| writer.put(i.to_be_bytes().to_vec(), vec![7; 100]).is_ok()).count()
        });
        thread::sleep(std::time::Duration::from_micros(round * 50));
        db.close().unwrap();
        let written = writing.join().unwrap();
        drop(db);
        let db = Db::open(device, Options::default()).unwrap();
        assert_eq!(db.range(&[], None).count(), written, "round {round}");
        late += usize::from(written > 0);
    }
    assert!(late > 10, "the writers never got anywhere");
}

/// After a failed flush a page cache shows what the medium has lost. A store that was opened again without a power cut
/// took that for its own, and built on it.
#[test]
fn what_a_failed_flush_has_lost_is_not_trusted_when_opened_again() {
    let mut lost = 0;
    for seed in 0..200 {
        let device = Arc::new(SimDevice::new(8 << 20, seed));
        let create = CreateOptions::default().node_size(4096).log_size(64 << 10);
        let options = || Options::default().background(false).memtable_bytes(2048);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        device.set_fail_at(Some(seed / 2), FailMode::Flush);
        let mut synced = 0;
        for i in 0u32..200 {
            let value = if i % 3 == 0 { 12_000 } else { 300 };
            if db.put(i.to_be_bytes().to_vec(), vec![i as u8; value]).is_err() {
                break;
            }
            let kept = if i % 7 == 6 { db.checkpoint() } else { db.sync() };
            match kept {
                Ok(()) => synced = i + 1,
                Err(_) => break,
            }
        }
        drop(db);
        device.set_fail_at(None, FailMode::Once);
        let pairs = |db: &Db| db.range(&[], None).collect::<Result<Vec<_>, _>>().unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let before = pairs(&db);
        assert!(before.len() >= synced as usize, "seed {seed}: {} of {synced} synced", before.len());
        db.sync().unwrap();
        lost += u32::from(before.len() == synced as usize);
        drop(db);
        device.crash();
        let db = Db::open(device.reopen(), options()).unwrap();
        assert!(pairs(&db) == before, "seed {seed}: what was there is not any more");
        assert!(db.check().unwrap().findings.is_empty(), "seed {seed}");
    }
    assert!(lost > 20, "in all runs but {lost} what the medium had lost was shown, and built on");
}

/// A range message that was converted into an edge merged the empty edge, at which a Goto was to rest, with its
/// neighbours, whose child was too low for that Goto to be flushed into (model test,
/// `with_threads_in_the_background`).
#[test]
fn a_goto_does_not_rest_above_a_child_as_low_as_its_target() {
    fn clone(src: &[u8], dst: &[u8]) -> Op {
        Op::ClonePrefix(Bytes::copy_from_slice(src), Bytes::copy_from_slice(dst))
    }
    fn delete(key: &[u8]) -> Op {
        Op::Delete(Bytes::copy_from_slice(key))
    }
    fn delete_range(lo: &[u8], hi: Option<&[u8]>) -> Op {
        Op::DeleteRange(Bytes::copy_from_slice(lo), hi.map(Bytes::copy_from_slice))
    }
    fn upsert_prefix(prefix: &[u8], op: &[u8]) -> Op {
        Op::UpsertPrefix(Bytes::copy_from_slice(prefix), Bytes::copy_from_slice(op))
    }
    let config = Config {
        threads: true,
        node_size: 16 << 10,
        log_size: 128 << 10,
        first: OpenWith { memtable: 4096, cache: 1 << 20, abundant: Some(1000) },
        ..Config::new(419365543026, Profile::Crashes)
    };
    let steps = [
        Step::Write(vec![put(b"/c/aa/aa/", 3425)]),
        Step::Write(vec![clone(b"/c/aa/a", b"/a")]),
        Step::Snapshot(2),
        Step::Write(vec![clone(b"/", b"M\x01ys/")]),
        Step::Write(vec![rename(b"M", b"/")]),
        Step::Write(vec![put(b"/aa/ab/ab/c/aa/a/f03\x00", 7091)]),
        Step::Write(vec![put(b"/b/aa/aa/b", 10568)]),
        Step::Write(vec![
            put(b"/ab/b/f00", 125),
            put(b"/ab/b/f01", 121),
            put(b"/ab/b/f03", 94),
            put(b"/ab/b/f04", 28),
            put(b"/ab/b/f05", 68),
            put(b"/ab/b/f06", 174),
            put(b"/ab/b/f07", 194),
            put(b"/ab/b/f08", 130),
            put(b"/ab/b/f09", 72),
            put(b"/ab/b/f10", 153),
            put(b"/ab/b/f11", 156),
            put(b"/ab/b/f12", 73),
            put(b"/ab/b/f13", 56),
            put(b"/ab/b/f14", 82),
            put(b"/ab/b/f15", 42),
            put(b"/ab/b/f16", 30),
            put(b"/ab/b/f17", 198),
            put(b"/ab/b/f18", 111),
        ]),
        Step::Write(vec![
            put(b"//f05", 239),
            put(b"//f06", 188),
            put(b"//f07", 204),
            put(b"//f08", 143),
            put(b"//f09", 107),
            put(b"//f11", 26),
            put(b"//f12", 170),
            put(b"//f13", 80),
            put(b"//f14", 173),
            put(b"//f15", 75),
            put(b"//f16", 91),
            put(b"//f17", 163),
        ]),
        Step::Write(vec![put(b"M\x02a\x00f01", 44)]),
        Step::Write(vec![delete_range(b"/ac", Some(b"M\x02a\x00c/aa/\xff/a"))]),
        Step::Write(vec![clone(b"/", b"M\x02a\x00c/aa/\xff/")]),
        Step::Write(vec![
            put(b"/b/f09", 214),
            put(b"/b/f11", 57),
            put(b"/b/f12", 160),
            put(b"/b/f13", 92),
            put(b"/b/f14", 98),
            put(b"/b/f15", 32),
            put(b"/b/f16", 132),
            put(b"/b/f17", 113),
            put(b"/b/f18", 200),
            put(b"/b/f19", 211),
            put(b"/b/f21", 218),
            put(b"/b/f22", 162),
            put(b"/b/f23", 63),
            put(b"/b/f24", 100),
            put(b"/b/f25", 187),
        ]),
        Step::Snapshot(2),
        Step::Write(vec![rename(b"M\x02a\x00c/aa/\xff", b"/c")]),
        Step::Write(vec![put(b"/\xff/ab/aa", 411)]),
        Step::Write(vec![
            upsert_prefix(b"/\xff/ab/", b"\x04\xf1"),
            upsert_prefix(b"/", b"\x04\x13"),
            delete_range(b"/aa", Some(b"/ab")),
            delete(b"/ab"),
            clone(b"//f03", b"M\x02a"),
        ]),
        Step::Write(vec![put(b"/b/\xff/aa/aa/f30", 94)]),
        Step::Write(vec![put(b"/b/a", 1422)]),
        Step::Write(vec![clone(b"/s/00343", b"/aa/a")]),
        Step::Write(vec![
            put(b"/aa/a//f00", 136),
            put(b"/aa/a//f02", 126),
            put(b"/aa/a//f03", 79),
            put(b"/aa/a//f04", 88),
            put(b"/aa/a//f05", 21),
            put(b"/aa/a//f06", 159),
            put(b"/aa/a//f07", 211),
            put(b"/aa/a//f08", 37),
            put(b"/aa/a//f09", 54),
            put(b"/aa/a//f10", 24),
            put(b"/aa/a//f11", 169),
            put(b"/aa/a//f12", 166),
            put(b"/aa/a//f13", 139),
        ]),
        Step::Write(vec![clone(b"/aa/b", b"/ab")]),
        Step::Write(vec![upsert_prefix(
            b"/b/",
            b"\x01\x05\x00\x00\x00\xa9\x00s\xff\xc6\xa4\'$u\x1e+\xce\xe9\x8d",
        )]),
        Step::Write(vec![delete_range(b"/b/aa/", Some(b"/b/aa0")), put(b"/c/b/\xff/a/f28", 590)]),
        Step::Write(vec![clone(b"/\xff/aa/c/aa/", b"/c/c/\xff")]),
        Step::Write(vec![upsert_prefix(b"/c/b/\xff/a/f28", b"\x02\xce\x00\x00\x00")]),
        Step::Write(vec![put(b"D\x01a\x00\x00\x00\x00\x02", 28)]),
        Step::Write(vec![rename(b"/ab/", b"/a/")]),
        Step::Write(vec![clone(b"/", b"M\x02src\x00\x02src\x00")]),
        Step::Write(vec![clone(b"/c/ab/aa", b"/s")]),
        Step::Write(vec![put(b"/aa/b/c/b/f39", 1494)]),
        Step::Write(vec![delete(b"/a/aa/b/b/b")]),
        Step::Write(vec![clone(b"M\x02src\x00\x02src\x00b/", b"/"), put(b"/s/00353", 7643)]),
        Step::Write(vec![put(b"/ab/f04", 62)]),
        Step::Write(vec![clone(b"/ab", b"/\xff/ab/a/c/f37")]),
        Step::Write(vec![delete_range(b"M\x02src\x00\x02src\x00aa/a//f05", None)]),
        Step::Write(vec![clone(b"M\x02src\x00", b"/aa/aa/c/")]),
        Step::Write(vec![clone(b"/aa/aa/", b"/c/c")]),
        Step::Write(vec![
            put(b"//f00", 7),
            put(b"//f01", 195),
            put(b"//f02", 101),
            put(b"//f03", 87),
            put(b"//f05", 68),
        ]),
        Step::Write(vec![delete_range(b"/ab", Some(b"/ab//f02"))]),
        Step::Write(vec![
            put(b"/s/00360/f00", 26),
            put(b"/s/00360/f02", 158),
            put(b"/s/00360/f03", 235),
            put(b"/s/00360/f04", 62),
            put(b"/s/00360/f05", 7),
            put(b"/s/00360/f06", 171),
            put(b"/s/00360/f07", 210),
        ]),
        Step::Write(vec![clone(b"/s/", b"/ab/\xff/")]),
        Step::Write(vec![put(b"/ab//f0", 20)]),
    ];
    passes(&config, &steps);
}
