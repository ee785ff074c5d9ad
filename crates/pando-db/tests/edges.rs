//! The edges of the library: options out of their range, errors that name the store, what a batch may hold, and
//! what a full store has kept when it is closed.

#![allow(clippy::unwrap_used)]

use std::{
    error::Error as _,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use pando_db::{
    Batch, Codec, CreateOptions, Db, Error, Options,
    device::{Device, DeviceCall, HookedDevice, MemDevice},
};

fn small() -> CreateOptions {
    CreateOptions::default().size(16 << 20).node_size(16 << 10).log_size(1 << 20)
}

fn memory(bytes: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(bytes));
    Db::create(device.clone(), &small(), &Options::default()).unwrap();
    device
}

#[test]
fn options_out_of_their_range_are_refused_by_name() {
    let device = memory(16 << 20);
    let usual = Options::default;
    let wrong = [
        (usual().cache_bytes(0), "a cache of 0 bytes"),
        (usual().cache_bytes(u64::MAX), "a cache of 18446744073709551615 bytes"),
        (usual().memtable_bytes(0), "a memtable of 0 bytes"),
        (usual().sync_interval(Duration::ZERO), "without a pause"),
        (usual().codec(Codec::Zstd(0)), "zstd level 0"),
        (usual().codec(Codec::Zstd(20)), "zstd level 20"),
        (usual().background_nice(-1), "a nice value of -1"),
        (usual().background_nice(20), "a nice value of 20"),
    ];
    for (options, says) in wrong {
        match Db::open(device.clone(), options) {
            Err(Error::Invalid(why)) => assert!(why.contains(says), "{why}"),
            other => panic!("{says}: {other:?}"),
        }
    }
    for size in [0, 1 << 10, 32 << 20, u32::MAX] {
        let outcome = Db::create(device.clone(), &small().node_size(size), &Options::default());
        assert!(matches!(outcome, Err(Error::Invalid(_))), "a node size of {size}: {outcome:?}");
    }
    // The ends of the ranges are in them.
    for options in [
        usual().cache_bytes(16 << 40).memtable_bytes(usize::MAX).sync_interval(Duration::MAX),
        usual().checkpoint_interval(Duration::ZERO).abundant_bytes(0).written_bytes(0),
        usual().checkpoint_interval(Duration::MAX).abundant_bytes(usize::MAX).written_bytes(u64::MAX),
        usual().cache_bytes(32 << 10).memtable_bytes(1 << 10).sync_interval(Duration::from_nanos(1)),
        usual().background_nice(19).codec(Codec::Zstd(19)),
        usual().background_nice(0).codec(Codec::Zstd(1)),
    ] {
        let said = format!("{options:?}");
        let db = Db::open(device.clone(), options).unwrap();
        for i in 0..400u32 {
            db.put(i.to_be_bytes().to_vec(), vec![i as u8; 200]).unwrap();
        }
        db.clone_prefix(vec![0, 0], vec![1, 1]).unwrap();
        db.sync().unwrap();
        assert_eq!(db.get(&[1, 1, 0, 7]).unwrap().unwrap().len(), 200, "{said}");
        db.delete_prefix(vec![]).unwrap();
        db.close().unwrap();
    }
}

#[test]
fn errors_of_opening_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grove.pando");
    let error = Db::open(&path, Options::default()).unwrap_err();
    assert!(
        matches!(&error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound),
        "{error:?}"
    );
    assert!(error.to_string().contains("grove.pando: No such file"), "{error}");
    assert!(error.source().unwrap().to_string().contains("grove.pando"), "{error}");
    let error = Db::create(dir.path().join("none/x"), &small(), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("none/x: No such file"), "{error}");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    match Db::open(&path, Options::default()) {
        Err(Error::Format(why)) => assert!(why.contains("grove.pando: "), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_may_hold_what_is_said_and_no_more() {
    let db = Db::open(memory(16 << 20), Options::default()).unwrap();
    let most = db.max_batch();
    assert!(most > (1 << 20) / 5 && most <= (1 << 20) / 4, "{most}");
    for (more, fits) in [(0, true), (1, false)] {
        let mut batch = Batch::new();
        // 12 bytes for an operation, 8 of a key.
        let mut put = |i: usize, bytes: usize| _ = batch.put(i.to_be_bytes().to_vec(), vec![1; bytes - 20]);
        let whole = (most + more) / 1000 - 1;
        (0..whole).for_each(|i| put(i, 1000));
        put(whole, most + more - 1000 * whole);
        match (db.write(batch), fits) {
            (Ok(()), true) | (Err(Error::TooLarge { what: "batch", .. }), false) => {}
            (other, _) => panic!("{more} more than {most}: {other:?}"),
        }
    }
}

/// What was acknowledged is there after a close that has succeeded, however full the store is; and where the last of it
/// cannot be stored, the close does not succeed.
#[test]
fn a_close_that_succeeds_has_stored_all_that_was_written() {
    for (background, value) in [(true, 100), (false, 100), (true, 30_000), (false, 30_000)] {
        let device = memory(4 << 20);
        let options =
            || Options::default().background(background).cache_bytes(4 << 20).memtable_bytes(64 << 10);
        let db = Db::open(device.clone(), options()).unwrap();
        let mut kept = 0u32;
        let full = loop {
            match db.put(kept.to_be_bytes().to_vec(), vec![kept as u8; value]) {
                Ok(()) => kept += 1,
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full:?}");
        // Smaller ones may fit still.
        let mut more = 0u32;
        while more < 2000 && db.put([b"x", &more.to_be_bytes()[..]].concat(), "y").is_ok() {
            more += 1;
        }
        db.close().unwrap();
        drop(db);
        let db = Db::open(device, options()).unwrap();
        for i in 0..kept {
            let found = db.get(&i.to_be_bytes()).unwrap();
            assert!(found.is_some_and(|found| found[..] == vec![i as u8; value]), "{i} of {kept} is lost");
        }
        assert_eq!(db.prefix(b"x").map(Result::unwrap).count() as u32, more);
    }
}

#[test]
fn a_close_that_cannot_store_what_was_written_says_so() {
    for background in [true, false] {
        let below = memory(16 << 20);
        let full = Arc::new(AtomicBool::new(false));
        let is_full = full.clone();
        let hooked = HookedDevice::new(below.clone(), false, move |call| match call {
            DeviceCall::Write(_) if is_full.load(SeqCst) => {
                Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
            }
            _ => Ok(()),
        });
        let options = Options::default().background(background).sync_interval(Duration::from_secs(3600));
        let db = Db::open(Arc::new(hooked) as Arc<dyn Device>, options).unwrap();
        db.put("before", "x").unwrap();
        db.sync().unwrap();
        full.store(true, SeqCst);
        db.put("after", "x").unwrap();
        let outcome = db.close();
        assert!(outcome.is_err(), "a write was acknowledged and is nowhere");
        drop(db);
        let db = Db::open(below, Options::default()).unwrap();
        assert!(db.get(b"before").unwrap().is_some() && db.get(b"after").unwrap().is_none());
    }
}
