//! Group commit through a mount: programs that fsync different files at the same time share flushes of the device.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use common::World;
use pando_db::device::{Device, DeviceStats, MemDevice};
use pando_fuse::Settings;

/// A device in memory on which a flush takes a while, as on a disk; it counts flushes and durable writes.
struct Disk {
    below: MemDevice,
    flushes: AtomicU64,
}

impl Disk {
    fn wait(&self) {
        self.flushes.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_millis(2));
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
        self.wait();
        Ok(true)
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

/// Flushes for each fsync of `threads`, each with its own file.
fn flushes_per_fsync(w: &World, disk: &Disk, threads: usize) -> f64 {
    const SYNCS: usize = 40;
    let go = Barrier::new(threads);
    let before = disk.flushes.load(Relaxed);
    std::thread::scope(|s| {
        for t in 0..threads {
            let go = &go;
            s.spawn(move || {
                let file = File::create(w.path(&format!("{threads}-{t}"))).unwrap();
                go.wait();
                for i in 0..SYNCS {
                    (&file).write_all(&[i as u8; 300]).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    let flushes = disk.flushes.load(Relaxed) - before;
    for t in 0..threads {
        let mut last = [0; 1];
        let file = File::open(w.path(&format!("{threads}-{t}"))).unwrap();
        file.read_exact_at(&mut last, (SYNCS * 300 - 1) as u64).unwrap();
        assert_eq!(last, [SYNCS as u8 - 1]);
    }
    let each = flushes as f64 / (threads * SYNCS) as f64;
    println!("{threads} files: {each:.3} flushes an fsync");
    each
}

#[test]
fn fsyncs_of_different_files_share_flushes() {
    let disk = Arc::new(Disk { below: MemDevice::new(256 << 20), flushes: 0.into() });
    let Some(w) = World::on(disk.clone(), Settings::default()) else { return };
    let few = flushes_per_fsync(&w, &disk, 8);
    let many = flushes_per_fsync(&w, &disk, 64);
    assert!(few <= 0.5, "{few:.3} flushes an fsync of 8 files");
    assert!(many <= 0.15, "{many:.3} flushes an fsync of 64 files");
}
