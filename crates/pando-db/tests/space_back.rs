//! Deleted space comes back.
#![allow(clippy::unwrap_used)]
use pando_db::{CreateOptions, Db, Error, Options, device::MemDevice};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
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
