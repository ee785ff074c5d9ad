//! Direct requests against a copy in memory, and against what the kernel has in its page cache afterwards.

#![allow(clippy::unwrap_used)]

use std::{
    fs::OpenOptions,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rustix::fs::OFlags;

use super::*;

/// `None` where the file system of temporary files offers no direct requests.
fn direct(path: &Path, size: u64) -> Option<Direct> {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = options.open(path).ok().and_then(|file| Direct::new(file, Arc::default()));
    if direct.is_none() {
        println!("no direct requests here: skipped");
    }
    direct
}

fn read(direct: &Direct, at: u64, len: usize) -> Vec<u8> {
    // In memory that is lent, where it is short enough, and in two parts, of which one may be empty.
    let lent = direct.read_lent(at, len).unwrap();
    assert!(lent.is_some() || len > MAX_DIRECT_BYTES - 2 * BLOCK as usize);
    let (mut first, mut second) = (vec![0xaa; len / 3], vec![0xbb; len - len / 3]);
    direct.read(at, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
    let found = [first, second].concat();
    assert!(lent.is_none_or(|lent| lent == found), "{len} bytes at {at}");
    found
}

/// Reads and writes of every alignment and length, behind each other, ahead of each other and across the pieces in
/// which they are done, at any time seen by the next read; and on the medium after a flush.
#[test]
fn every_read_sees_every_write() {
    const SIZE: u64 = 12 << 20;
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let Some(direct) = direct(&path, SIZE) else { return };
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut expected = vec![0; SIZE as usize];
        let mut place = 0;
        for step in 0..700 {
            let len = match rng.random_range(0..5) {
                0 => rng.random_range(0..100),
                1 => rng.random_range(0..20_000),
                2 => rng.random_range(0..40) * BLOCK as usize,
                3 => rng.random_range(0..200_000),
                _ if step % 10 == 0 => rng.random_range(0..3 << 20),
                _ => 4096,
            };
            // Half of the time on from where the last one ended.
            let from = if rng.random() { place } else { rng.random_range(0..SIZE) };
            let from = if rng.random() { from } else { from / BLOCK * BLOCK };
            let len = len.min((SIZE - from) as usize);
            place = (from + len as u64) % SIZE;
            let (from, to) = (from as usize, from as usize + len);
            match rng.random_range(0..8) {
                0..4 => {
                    let found = read(&direct, from as u64, len);
                    assert!(found == expected[from..to], "seed {seed}, step {step}: {len} bytes at {from}");
                }
                4 => {
                    // A whole pass, as a scan does.
                    let size = rng.random_range(3000..150_000);
                    for at in (from..to).step_by(size) {
                        let end = (at + size).min(to);
                        assert!(
                            read(&direct, at as u64, end - at) == expected[at..end],
                            "seed {seed}, {step}"
                        );
                    }
                }
                kind => {
                    let byte: u8 = rng.random();
                    let bytes: Vec<u8> = (0..len).map(|i| byte ^ (i / 7) as u8).collect();
                    let durably = kind == 5 && direct.write_durably(from as u64, &bytes).unwrap();
                    let now = rng.random_range(0..4) == 0;
                    if !durably && rng.random() {
                        direct.write(from as u64, &bytes, now).unwrap();
                    } else if !durably {
                        let (first, second) = bytes.split_at(rng.random_range(0..=len));
                        let bufs = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
                        direct.write_vectored(from as u64, &bufs, now).unwrap();
                    }
                    expected[from..to].copy_from_slice(&bytes);
                }
            }
        }
        direct.drain().unwrap();
        drop(direct);
        let found = std::fs::read(&path).unwrap();
        assert!(found == expected, "seed {seed}: not what was written");
    }
}

/// What is written piece by piece, one behind the other, becomes requests of a buffer each, done without being asked
/// for as soon as another one begins.
#[test]
fn writes_side_by_side_are_one_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    if direct(&path, 16 << 20).is_none() {
        return;
    }
    let counters = Arc::new(Counters::default());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = Direct::new(options.open(&path).unwrap(), counters.clone()).unwrap();
    for at in (0..4u64 << 20).step_by(64 << 10) {
        direct.write(at, &[1; 64 << 10], false).unwrap();
    }
    let begin = std::time::Instant::now();
    while counters.stats().writes < 3 {
        assert!(begin.elapsed().as_secs() < 20, "{:?}", counters.stats());
        std::thread::yield_now();
    }
    direct.drain().unwrap();
    assert_eq!((counters.stats().writes, counters.stats().write_bytes), (4, 4 << 20));
    // Several buffers at a time, which begin and end anywhere in a block.
    for at in (4 << 20..8u64 << 20).step_by(64 << 10) {
        let data = [3; 64 << 10];
        let (first, second) = data.split_at(5000 + (at >> 16) as usize * 77);
        direct.write_vectored(at, &[IoSlice::new(first), IoSlice::new(second)], false).unwrap();
    }
    direct.drain().unwrap();
    assert_eq!((counters.stats().writes, counters.stats().write_bytes), (8, 8 << 20));
    // More than a request takes.
    let data: Vec<u8> = (0..7usize << 19).map(|i| (i / 11) as u8).collect();
    let ((first, rest), third) = (data.split_at(5000), &[][..]);
    let (second, fourth) = rest.split_at(2 << 20);
    direct.write_vectored(12 << 20, &[first, second, third, fourth].map(IoSlice::new), false).unwrap();
    direct.drain().unwrap();
    assert_eq!((counters.stats().writes, counters.stats().write_bytes), (12, 23 << 19));
    assert!(read(&direct, 12 << 20, data.len()) == data);
    // Elsewhere, with a gap, and over what is still open: each for itself.
    for at in [10 << 20, 9 << 20, (9 << 20) + 8192, 9 << 20] {
        direct.write(at, &[2; 4096], false).unwrap();
    }
    direct.drain().unwrap();
    assert_eq!(counters.stats().writes, 16);
}

/// Whoever flushes waits for what was written before, and not for what others go on to write.
#[test]
fn a_flush_ends_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let Some(direct) = direct(&dir.path().join("file"), 64 << 20) else { return };
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (direct, over) = (&direct, &over);
            scope.spawn(move || {
                let block = vec![3; 1 << 20];
                for at in (0..32u64).cycle() {
                    if over.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    direct.write((thread * 32 + at) << 20, &block, false).unwrap();
                }
            });
        }
        for _ in 0..50 {
            direct.drain().unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Each of several threads writes and reads a part of its own, and all read one part that nobody writes.
#[test]
fn threads_do_not_disturb_each_other() {
    const PART: u64 = 2 << 20;
    let dir = tempfile::tempdir().unwrap();
    let Some(direct) = direct(&dir.path().join("file"), 5 * PART) else { return };
    let still: Vec<u8> = (0..PART).map(|i| (i / 1000) as u8).collect();
    direct.write(0, &still, false).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..5u64 {
            let (direct, still) = (&direct, &still);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(thread);
                let mut mine = vec![0; PART as usize];
                for _ in 0..300 {
                    let len = rng.random_range(1..60_000);
                    let from = rng.random_range(0..PART as usize - len);
                    if rng.random() {
                        let from = from / 4096 * 4096;
                        mine[from..from + len].fill(rng.random());
                        direct.write(thread * PART + from as u64, &mine[from..from + len], false).unwrap();
                    }
                    assert!(read(direct, thread * PART + from as u64, len) == mine[from..from + len]);
                    assert!(read(direct, from as u64, len) == still[from..from + len]);
                }
            });
        }
    });
}

/// A file that is open for reading only: what is to be written fails later, and with it every flush and write from
/// then on, and every read of what was lost.
#[test]
fn a_write_that_fails_later_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    if direct(&path, 1 << 20).is_none() {
        return;
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = Direct::new(options.open(&path).unwrap(), Arc::default()).unwrap();
    direct.write(0, &[1; 4096], false).unwrap();
    for _ in 0..2 {
        assert_eq!(direct.drain().unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    }
    let failed = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()))
    };
    failed(direct.write(8192, &[1; 4096], false));
    failed(direct.write(8192, &[1; 4096], true));
    failed(direct.write(100, &[1; 10], false));
    failed(direct.write_durably(8192, &[1; 4096]).map(drop));
    for at in [0, 1, 4000] {
        failed(direct.read(at, &mut [IoSliceMut::new(&mut [0; 50])]));
    }
    assert_eq!(read(&direct, 4096, 8192), [0; 8192], "reads of all else go on");
}

/// Pages of the file in the page cache, counted by `mincore` through a mapping of the file.
#[test]
fn the_page_cache_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let Some(direct) = direct(&path, 16 << 20) else { return };
    for at in (0..16u64 << 20).step_by(1 << 20) {
        direct.write(at, &vec![7; 1 << 20], false).unwrap();
    }
    direct.drain().unwrap();
    for at in (0..16u64 << 20).step_by(50_000).take(300) {
        read(&direct, at, 50_000);
    }
    let file = OpenOptions::new().read(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5).unwrap();
    let cached = cached_pages(&path);
    // What was read just now, with what the kernel reads ahead of it.
    assert!(cached.is_none_or(|pages| (1..=64).contains(&pages)), "{cached:?} pages are cached");
}

/// As `fincore` says; `None` without it.
fn cached_pages(path: &Path) -> Option<u64> {
    let output = std::process::Command::new("fincore").args(["-n", "-o", "PAGES"]).arg(path).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Who waits for one write makes it: another thread would have to be woken, and would have to wake this one.
#[test]
fn a_flush_or_a_read_of_one_write_wakes_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let Some(direct) = direct(&dir.path().join("file"), 1 << 20) else { return };
    for i in 0..20 {
        direct.write(i * 2 * BLOCK, &[i as u8; 4096], false).unwrap();
        if i % 2 == 0 {
            direct.drain().unwrap();
        } else {
            assert_eq!(read(&direct, i * 2 * BLOCK, 4096), [i as u8; 4096]);
        }
    }
    assert_eq!(format!("{:?}", direct.crew), "Crew(0)", "threads were started for these writes");
}

/// A write right behind the open one was added to it even if an older write to the same place was still to be
/// done, or under way: of the two the older one could reach the medium last.
#[test]
fn a_write_that_continues_another_waits_for_older_ones_to_its_place() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(120 * BLOCK).unwrap();
    let raw = Raw { file, buffers: Buffers::default(), counters: Arc::default() };
    let behind = Behind::default();
    let add = |blocks: Range<u64>, byte: u8, ask: &dyn Fn()| {
        let bytes = vec![byte; ((blocks.end - blocks.start) * BLOCK) as usize];
        let range = blocks.start * BLOCK..blocks.end * BLOCK;
        behind.add(range, &[IoSlice::new(&bytes)], &raw.buffers, ask).unwrap();
    };
    let found = |block: u64| {
        let mut byte = [0];
        raw.file.read_exact_at(&mut byte, block * BLOCK).unwrap();
        byte[0]
    };
    let nobody = || ();
    add(100..110, 1, &nobody);
    add(90..100, 2, &nobody);
    assert_eq!((found(90), found(100)), (0, 0), "nobody was to write yet");
    // Whoever is asked does the oldest write, and now the one that is in the way.
    add(100..105, 3, &|| behind.write_one(&raw));
    assert_eq!(found(100), 1, "an older write to the same place is still to be done");
    // With nothing in its way a write is added to the open one as before.
    add(105..106, 4, &|| panic!("a write was closed that could be continued"));
    assert!(behind.close(None));
    for _ in 0..3 {
        behind.write_one(&raw);
    }
    behind.drain();
    assert_eq!([90, 99, 100, 104, 105, 106].map(found), [2, 2, 3, 3, 4, 1]);
}
