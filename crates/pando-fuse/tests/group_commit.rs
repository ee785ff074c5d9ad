//! Group commit through a mount: programs that fsync different files at the same time share flushes of the device.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    sync::{Arc, Barrier},
    time::Duration,
};

use crate::common::World;
use pando_db::device::{Device, HookedDevice, MemDevice};
use pando_fuse::Settings;

/// How long a flush takes, as on a disk.
const FLUSH: Duration = Duration::from_millis(2);

/// Flushes for each fsync of `threads`, each with its own file.
fn flushes_per_fsync(w: &World, disk: &HookedDevice, threads: usize) -> f64 {
    const SYNCS: usize = 40;
    let go = Barrier::new(threads);
    let before = disk.stats().flushes;
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
    let flushes = disk.stats().flushes - before;
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
    let disk = HookedDevice::new(Arc::new(MemDevice::new(256 << 20)), true, |call| {
        if call.makes_durable() {
            std::thread::sleep(FLUSH);
        }
        Ok(())
    });
    let disk = Arc::new(disk);
    let Some(w) = World::on(disk.clone(), Settings::default()) else { return };
    // Those share a flush that come in time, so of several runs the best: others may have the CPU.
    let best = |threads, enough: f64| {
        let mut runs = (0..3).map(|_| flushes_per_fsync(&w, &disk, threads));
        let first = runs.next().unwrap();
        if first <= enough { first } else { runs.fold(first, f64::min) }
    };
    let (few, many) = (best(8, 0.5), best(64, 0.15));
    assert!(few <= 0.5, "{few:.3} flushes an fsync of 8 files");
    assert!(many <= 0.15, "{many:.3} flushes an fsync of 64 files");
}
