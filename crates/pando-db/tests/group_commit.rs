//! Group commit: threads that sync at the same time share flushes.
#![allow(clippy::unwrap_used)]

use std::{
    io,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use pando_db::{
    CreateOptions, Db, Options,
    device::{Device, DeviceStats, MemDevice},
};

/// A device in memory on which a flush takes a while, as on a disk; it counts flushes and durable writes.
struct Disk {
    below: MemDevice,
    tells_apart: bool,
    flushes: AtomicU64,
}

impl Disk {
    fn wait(&self) {
        self.flushes.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(2));
    }
}

impl Device for Disk {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.wait();
        self.below.flush()
    }
    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        self.below.write_at(offset, buf)?;
        if self.tells_apart {
            self.wait();
        }
        Ok(self.tells_apart)
    }
    fn size(&self) -> u64 {
        self.below.size()
    }
    fn grow(&self, size: u64) -> io::Result<()> {
        self.below.grow(size)
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.reserve(offset, len)
    }
    fn stats(&self) -> DeviceStats {
        self.below.stats()
    }
}

/// Flushes for each sync of `threads` that write and sync, each its own keys.
fn flushes_per_sync(threads: u64, tells_apart: bool, value: usize) -> f64 {
    const SYNCS: u64 = 40;
    let device = Arc::new(Disk { below: MemDevice::new(1 << 30), tells_apart, flushes: 0.into() });
    // No thread of the store's own may flush what is counted here.
    let options = Options::default().background(false);
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    let before = device.flushes.load(Relaxed);
    let go = Barrier::new(threads as usize);
    thread::scope(|s| {
        for t in 0..threads {
            let (db, go) = (&db, &go);
            s.spawn(move || {
                go.wait();
                for i in 0..SYNCS {
                    db.put(format!("t{t:02}/{i:04}"), vec![t as u8; value]).unwrap();
                    db.sync().unwrap();
                }
            });
        }
    });
    let flushes = device.flushes.load(Relaxed) - before;
    assert_eq!(db.prefix(b"t").count() as u64, threads * SYNCS);
    let each = flushes as f64 / (threads * SYNCS) as f64;
    println!(
        "{threads} threads, values of {value} B, durable writes {tells_apart}: {each:.3} flushes a sync"
    );
    each
}

#[test]
fn threads_that_sync_share_flushes() {
    for tells_apart in [false, true] {
        // Values of 5,000 bytes stand outside the log, and are flushed with it.
        for value in [100, 5000] {
            // Those that come while a flush is under way share the next one: two turns for all, where all come at once.
            let few = flushes_per_sync(8, tells_apart, value);
            assert!(few <= 0.5, "{few:.3} flushes a sync of 8 threads");
            let many = flushes_per_sync(64, tells_apart, value);
            assert!(many <= 0.125, "{many:.3} flushes a sync of 64 threads");
        }
    }
    // Alone there is nothing to share: each sync is its own flush.
    let alone = flushes_per_sync(1, true, 100);
    assert!(alone >= 1.0, "{alone:.3} flushes a sync of one thread: what is it that makes it durable?");
}
