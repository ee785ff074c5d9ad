//! Deleted space comes back.
#![allow(clippy::unwrap_used)]
use pando_db::{Codec, CreateOptions, Db, Error, Options, device::MemDevice};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

#[test]
fn a_full_store_that_is_emptied_takes_as_much_again() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = Options::default().background(false);
    Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let mut state = 1u64;
    let mut noise = || -> Vec<u8> {
        (0..16_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect()
    };
    let mut first = 0;
    for round in 0..4 {
        let mut count = 0;
        loop {
            match db.put(format!("d/{count:05}"), noise()) {
                Ok(()) => count += 1,
                Err(Error::NoSpace) => break,
                Err(other) => panic!("{other}"),
            }
        }
        if round == 0 {
            first = count;
        }
        assert!(count * 10 >= first * 9, "{count} values after {round} rounds, {first} at first");
        db.delete_prefix("d/").unwrap();
        db.checkpoint().unwrap();
    }
}

/// The threads in the background each found room for an edit, and together made more dirty than there was space for: no
/// checkpoint could be made any more, so everything was refused for good, deletes too.
#[test]
fn a_store_filled_at_random_takes_deletes_beside_its_threads() {
    const MIB: u64 = 1 << 20;
    let key = |i: u64| format!("{:016x}", (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let value = |i: u64, words: u64| -> Vec<u8> {
        (0..words)
            .flat_map(|j| {
                let mixed = (i * 1000 + j + 7).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB).to_le_bytes()
            })
            .collect()
    };
    for (size, node, words) in [
        (16 * MIB, 4 << 10, 125),
        (16 * MIB, 16 << 10, 375),
        (40 * MIB, 1 << 20, 250),
        (96 * MIB, 1 << 20, 600),
    ] {
        let device = Arc::new(MemDevice::new(size));
        let what = format!("{size} bytes in nodes of {node}");
        Db::create(device.clone(), &CreateOptions::default().node_size(node), &Options::default()).unwrap();
        let db = Db::open(device, Options::default()).unwrap();
        for round in 0..3 {
            let mut count = 0;
            let refused = loop {
                match db.put(key(count), value(count, words)) {
                    Ok(()) => count += 1,
                    Err(refused) => break refused,
                }
            };
            assert!(matches!(refused, Error::NoSpace), "{what}: {refused}");
            assert!(count * words * 8 > size / 3, "{what}, round {round}: full after {count} values");
            match round {
                0 => (0..count).for_each(|i| db.delete(key(i)).expect(&what)),
                1 => db.delete_prefix("").expect(&what),
                // Of what is left, all can be read, and the store can be closed and opened.
                _ => db.delete(key(0)).expect(&what),
            }
            db.settle().expect(&what);
            db.checkpoint().expect(&what);
        }
        assert_eq!(db.get(key(1).as_bytes()).unwrap().as_deref(), Some(&value(1, words)[..]), "{what}");
        assert!(db.check().unwrap().findings.is_empty(), "{what}");
        db.close().expect(&what);
    }
}

/// Whoever settles waits for what was deleted before, not for what others go on writing and deleting.
#[test]
fn settle_returns_beside_writers_that_never_stop() {
    const TREES: u64 = 40;
    const PATIENCE: Duration = Duration::from_secs(60);
    let device = Arc::new(MemDevice::new(1 << 30));
    let options = Options::default();
    Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let put = |tree: &str, i: u64, words: usize| {
        db.put(format!("{tree}/{i:06}"), i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes().repeat(words))
            .unwrap();
    };
    (0..TREES).for_each(|tree| (0..1_000).for_each(|i| put(&format!("old{tree:03}"), i, 128)));
    db.checkpoint().unwrap();
    let full = db.stats().unwrap().node_bytes;
    for deletes in [false, true] {
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let taken = thread::scope(|scope| {
            scope.spawn(|| {
                for i in (0..).take_while(|_| !stop.load(Relaxed)) {
                    put("new", i % 10_000, 12);
                    if deletes && i % 100 == 99 {
                        db.delete_prefix(format!("new/{:04}", i % 10_000 / 100)).unwrap();
                    }
                    written.store(i, Relaxed);
                }
            });
            while written.load(Relaxed) < 1_000 {
                thread::yield_now();
            }
            let half = if deletes { TREES / 2..TREES } else { 0..TREES / 2 };
            half.for_each(|tree| db.delete_prefix(format!("old{tree:03}")).unwrap());
            let (done, end) = mpsc::channel();
            let other = db.clone();
            thread::spawn(move || _ = done.send(other.settle()));
            let (before, since) = (written.load(Relaxed), std::time::Instant::now());
            let ended = end.recv_timeout(PATIENCE);
            let during = written.load(Relaxed) - before;
            stop.store(true, Relaxed);
            ended.expect("it waits for writers that never stop").unwrap();
            (since.elapsed(), during)
        });
        println!("deletes: {deletes}: {:?}, {} writes meanwhile", taken.0, taken.1);
        assert!(taken.1 > 100, "nobody wrote meanwhile");
        let left = db.stats().unwrap().node_bytes;
        let most = if deletes { full / 5 } else { full / 10 * 7 };
        assert!(left < most, "{left} of {full} bytes of nodes are left");
    }
    assert_eq!(db.prefix(b"old").count(), 0);
    assert!(db.check().unwrap().findings.is_empty());
}

/// A reader holds all that is replaced after it has begun. One whose thread did not run for some milliseconds made a
/// write fail on a store in which there was room: unlinks on a full store were refused beside other unlinks.
#[test]
fn no_write_is_refused_because_of_a_reader_that_lets_go_at_once() {
    let device = Arc::new(MemDevice::new(24 << 20));
    let options = Options::default().background(false).codec(Codec::None);
    let create = CreateOptions::default().node_size(16 << 10);
    Db::create(device.clone(), &create, &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let put = |tree: &str, i: u64| db.put(format!("{tree}/{i:06}"), vec![7; 1000]);
    let count = (0..).take_while(|i| put("a", *i).is_ok()).count() as u64;
    assert!(count > 10_000, "full after {count} values");
    let (reader, held) = mpsc::channel::<pando_db::Snapshot>();
    thread::scope(|scope| {
        scope.spawn(move || {
            for snapshot in held {
                thread::sleep(Duration::from_millis(20));
                drop(snapshot);
            }
        });
        reader.send(db.snapshot()).unwrap();
        db.delete_prefix("a/").unwrap();
        for i in 0..count / 2 {
            put("b", i).unwrap_or_else(|e| panic!("value {i} of {count}: {e}"));
        }
        drop(reader);
    });
    // One that does not is waited for, but not long, and less each time.
    let more = (0..).take_while(|i| put("c", *i).is_ok()).count() as u64;
    let long = db.snapshot();
    db.delete_prefix("c/").unwrap();
    let begun = Instant::now();
    let refused = (0..1000).filter(|i| put("d", *i).is_err()).count();
    let took = begun.elapsed();
    drop(long);
    assert!(refused > 900, "{refused} of 1000 were refused, and {more} fitted before");
    assert!(took < Duration::from_secs(20), "{took:?} for {refused} refusals");
    put("e", 0).unwrap();
}
