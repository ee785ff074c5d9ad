//! What the host of a sparse image can hold: after the store has grown, when the host has space again, and for a
//! copy of the image with holes.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use pando_db::{
    CreateOptions, Db, Error, Options,
    device::{BLOCK, Device, SimDevice},
};

/// Nothing that could be compressed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let next =
        |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(seed), next).map(|x| (x >> 40) as u8).take(len).collect()
}

fn created(size: u64) -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(size, 1));
    let create = CreateOptions::default().node_size(64 << 10).log_size(1 << 20);
    Db::create(device.clone(), &create, &Options::default()).unwrap();
    device
}

/// Values of 64 KiB that a store takes before it is full.
fn fill(db: &Db) -> u64 {
    for i in 0u64.. {
        let put = db.put(i.to_be_bytes().to_vec(), noise(i, 64 << 10)).and_then(|()| db.sync());
        match put {
            Ok(()) => (),
            Err(Error::NoSpace) => return i,
            Err(e) => panic!("{e}"),
        }
    }
    unreachable!()
}

#[test]
fn a_store_that_was_grown_beyond_its_host_takes_what_it_takes_after_an_opening() {
    let taken = |reopen: bool| {
        let device = created(16 << 20);
        device.set_space_limit(Some(24 << 20));
        let mut db = Db::open(device.clone() as Arc<dyn Device>, Options::default()).unwrap();
        db.grow(8 << 30).unwrap();
        if reopen {
            db.close().unwrap();
            drop(db);
            db = Db::open(device as Arc<dyn Device>, Options::default()).unwrap();
        }
        fill(&db)
    };
    let (now, later) = (taken(false), taken(true));
    assert!(later > 100, "{later} values of 64 KiB on a host of 24 MiB");
    assert!(now * 10 >= later * 9, "{now} values before, {later} after an opening");
}

/// Once the host has refused to back bytes, only those that it has promised count as free: a write that finds too few
/// of them asks the host again.
#[test]
fn a_store_goes_on_when_its_host_has_space_again() {
    for background in [false, true] {
        let device = created(256 << 20);
        let options = Options::default().background(background);
        let db = Db::open(device.clone() as Arc<dyn Device>, options).unwrap();
        device.set_space_limit(Some(device.space_used() + (16 << 20)));
        let taken = fill(&db);
        device.set_space_limit(None);
        // It is asked at most once a second.
        std::thread::sleep(Duration::from_millis(1500));
        let more =
            (0..taken).take_while(|i| db.put(format!("more/{i}"), noise(*i, 64 << 10)).is_ok()).count();
        assert_eq!(more as u64, taken, "values on a host without bound, after {taken} on a full one");
        db.close().unwrap();
    }
}

/// A copy that leaves out what is zero, as cp(1) makes it, has no log on the host.
#[test]
fn a_full_host_does_not_stop_a_store_whose_image_was_copied_with_holes() {
    let original = created(64 << 20);
    let copy = Arc::new(SimDevice::new(64 << 20, 1));
    let mut block = vec![0; BLOCK as usize];
    for at in (0..64 << 20).step_by(BLOCK as usize) {
        original.read_at(at, &mut block).unwrap();
        if block.iter().any(|&byte| byte != 0) {
            copy.write_at(at, &block).unwrap();
        }
    }
    copy.flush().unwrap();
    assert!(copy.space_used() < 100 << 10, "this copy has no holes");
    let db = Db::open(copy.clone() as Arc<dyn Device>, Options::default()).unwrap();
    for i in 0u64..8 {
        db.put(format!("before/{i}"), noise(i, 100_000)).unwrap();
    }
    db.checkpoint().unwrap();
    db.delete_prefix("before").unwrap();
    db.checkpoint().unwrap();
    copy.set_space_limit(Some(copy.space_used()));
    let mut written = 0;
    for i in 0..400 {
        let put = db.put("file", noise(i, 20_000)).and_then(|()| db.sync());
        match put.and_then(|()| db.delete("file")).and_then(|()| db.sync()) {
            Ok(()) => written += 1,
            Err(Error::NoSpace) => (),
            Err(e) => panic!("round {i}: {e}"),
        }
    }
    assert!(written > 100, "{written} rounds of 400 were possible");
    db.close().unwrap();
}
