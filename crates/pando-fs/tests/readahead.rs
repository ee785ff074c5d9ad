//! Reading ahead of files that are read in order: how much is read, how many requests are in flight, and that
//! nothing is ever shown that is not in the file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, DeviceCall, HookedDevice, MemDevice};
use pando_fs::*;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;

/// What reads of a device in memory take, as those of a disk do, and how many are under way.
#[derive(Debug, Default)]
struct SlowReads {
    /// Microseconds of a read request.
    latency: AtomicU64,
    under_way: AtomicU64,
    most_under_way: AtomicU64,
    /// Reads of data: requests of 64 KiB or more, and their bytes.
    large: AtomicU64,
    large_bytes: AtomicU64,
    /// Requests of others than the threads that read ahead.
    own: AtomicU64,
}

impl SlowReads {
    fn read(&self, bytes: u64) {
        if bytes >= 64 << 10 {
            self.large.fetch_add(1, Relaxed);
            self.large_bytes.fetch_add(bytes, Relaxed);
        }
        if std::thread::current().name() != Some("pando-ahead") {
            self.own.fetch_add(1, Relaxed);
        }
        let now = self.under_way.fetch_add(1, Relaxed) + 1;
        self.most_under_way.fetch_max(now, Relaxed);
        std::thread::sleep(Duration::from_micros(self.latency.load(Relaxed)));
        self.under_way.fetch_sub(1, Relaxed);
    }
}

struct SlowDevice {
    device: Arc<HookedDevice>,
    reads: Arc<SlowReads>,
}

impl SlowDevice {
    fn new(size: u64) -> Self {
        Self::lending(size, true)
    }

    /// With memory to lend, as a file has that is read past the page cache, or without.
    fn lending(size: u64, lends: bool) -> Self {
        let reads = Arc::new(SlowReads::default());
        let asked = reads.clone();
        let device = HookedDevice::new(Arc::new(MemDevice::new(size)), false, move |call| {
            if let DeviceCall::Read(range) = call {
                asked.read(range.end - range.start);
            }
            Ok(())
        });
        let device = if lends { device.with_memory_to_lend() } else { device };
        Self { device: Arc::new(device), reads }
    }
}

fn mounted() -> MountOptions {
    MountOptions::default().atime(AtimePolicy::Noatime)
}

/// A file system with one file, which is not in any cache.
fn cold(content: &[u8], node: u32, size: u64, options: MountOptions) -> (SlowDevice, Fs, Ino) {
    cold_on(SlowDevice::new(size), content, node, options)
}

fn cold_on(device: SlowDevice, content: &[u8], node: u32, options: MountOptions) -> (SlowDevice, Fs, Ino) {
    Fs::format(device.device.clone(), &FormatOptions::default().node_size(node)).unwrap();
    let fs = Fs::open(device.device.clone(), mounted()).unwrap();
    let me = Caller::root();
    let (attr, handle) = fs.create(&me, ROOT, "file".as_ref(), 0o644, O_RDWR).unwrap();
    for (i, part) in content.chunks(128 << 10).enumerate() {
        fs.write(handle, attr.ino, (i as u64) * (128 << 10), part, false).unwrap();
    }
    fs.release(attr.ino, handle);
    fs.close().unwrap();
    let fs = Fs::open(device.device.clone(), options).unwrap();
    let ino = fs.resolve(Path::new("/file")).unwrap().ino;
    (device, fs, ino)
}

/// Reads all of a file in order and compares.
fn pass(fs: &Fs, ino: Ino, content: &[u8], size: usize) {
    let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
    for (i, part) in content.chunks(size).enumerate() {
        let found = fs.read(handle, ino, (i * size) as u64, size as u32).unwrap();
        assert!(found[..] == *part, "read {i} of {size} bytes");
    }
    fs.release(ino, handle);
}

/// Whatever the size of the reads, of the nodes and of the cache.
#[test]
fn a_cold_file_in_order_is_read_once_by_large_requests_several_at_a_time() {
    let content = noise(1, 24 << 20);
    for (node, cache, read) in [
        (1 << 20, 256 * MIB, 128 << 10),
        (1 << 20, 256 * MIB, 1 << 20),
        (1 << 20, 64 * MIB, 4 << 10),
        (1 << 20, 32 * MIB, 128 << 10),
        (256 << 10, 64 * MIB, 128 << 10),
        (4 << 20, 256 * MIB, 50_000),
    ] {
        let (device, fs, ino) = cold(&content, node, 256 * MIB, mounted().cache_bytes(cache));
        device.reads.latency.store(500, Relaxed);
        device.reads.most_under_way.store(0, Relaxed);
        device.reads.large.store(0, Relaxed);
        device.reads.large_bytes.store(0, Relaxed);
        let before = device.device.stats();
        pass(&fs, ino, &content, read);
        let after = device.device.stats();
        let ratio = (after.read_bytes - before.read_bytes) as f64 / content.len() as f64;
        let most = device.reads.most_under_way.load(Relaxed);
        let mean = device.reads.large_bytes.load(Relaxed) / device.reads.large.load(Relaxed).max(1);
        println!(
            "node {node}, cache {} MiB, reads of {read}: {ratio:.3} read a byte, {} requests, {most} under way, {} KiB a large one",
            cache / MIB,
            after.reads - before.reads,
            mean >> 10
        );
        // Small nodes make many extents, and what is left of a block behind each is read with it.
        assert!(ratio <= if node < 1 << 20 { 1.08 } else { 1.05 }, "{ratio} bytes read a byte");
        assert!(most >= 2, "never more than {most} requests under way");
        if node >= 1 << 20 {
            assert!(mean >= 256 << 10, "requests of {mean} bytes");
        }
        fs.close().unwrap();
    }
}

/// What is stored as it is, is read into memory that the device lends, and has none of the cache when it is read once;
/// the second time it is kept. What had to be unpacked is kept at once, but not where somebody keeps it above. Without
/// memory from the device all else is kept.
#[test]
fn a_file_that_is_read_once_leaves_the_cache_to_others() {
    let text: Vec<u8> = (0..24 << 20).map(|i: u32| b"a few words\n"[(i / 3 % 12) as usize]).collect();
    let cases = [
        (noise(7, 24 << 20), false, false, 2),
        (noise(7, 24 << 20), true, false, 1),
        (text.clone(), false, false, 1),
        (text, true, true, 2),
    ];
    for (case, (content, keeps, above, passes)) in cases.into_iter().enumerate() {
        let device = SlowDevice::lending(256 * MIB, !keeps);
        let options = mounted().cache_bytes(256 * MIB).kept_above(above);
        let (device, fs, ino) = cold_on(device, &content, 1 << 20, options);
        device.reads.latency.store(300, Relaxed);
        let mut read = vec![];
        for pass_number in 1..=passes + 1 {
            let before = device.device.stats().read_bytes;
            pass(&fs, ino, &content, [4 << 10, 128 << 10, 50_000, 1 << 20][pass_number % 4]);
            read.push(device.device.stats().read_bytes - before);
            let used = fs.stats().unwrap().engine.cache_used;
            if pass_number < passes {
                // What the reader has overtaken it reads for itself.
                assert!(used < 16 * MIB, "{used} bytes are kept of what was read once");
            }
            if pass_number >= passes {
                assert!(used >= 24 * MIB, "case {case}: {used} bytes are kept after pass {pass_number}");
            }
        }
        println!("case {case}: {read:?} bytes read by passes");
        assert!(read.last().unwrap() < &(MIB / 4), "case {case}: read again after {passes} passes");
        assert!(read.iter().all(|&read| read <= (25 << 20)), "case {case}: read more than once");
        fs.close().unwrap();
    }
}

/// A thousand reads at random, of a page and of more, have nothing read ahead, and read what they read without.
#[test]
fn reads_at_random_have_nothing_read_ahead() {
    let content = noise(2, 24 << 20);
    let (device, fs, ino) = cold(&content, 1 << 20, 128 * MIB, mounted());
    fs.close().unwrap();
    let counts = [0, u64::MAX].map(|most| {
        let options = mounted().cache_bytes(64 * MIB).readahead_bytes(most);
        let fs = Fs::open(device.device.clone(), options).unwrap();
        assert_eq!(fs.resolve(Path::new("/file")).unwrap().ino, ino);
        let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
        let before = device.device.stats().read_bytes;
        let mut r = Random::new(3);
        for _ in 0..1000 {
            let at = r.below(content.len() - (64 << 10)) / 4096 * 4096;
            let len = [4, 4096, 16 << 10, 64 << 10][r.below(4)];
            assert!(fs.read(handle, ino, at as u64, len as u32).unwrap()[..] == content[at..at + len]);
        }
        assert_eq!(fs.stats().unwrap().readahead_bytes, 0);
        let read = device.device.stats().read_bytes - before;
        fs.release(ino, handle);
        fs.close().unwrap();
        read
    });
    println!("{counts:?} bytes read without readahead and with it");
    assert_eq!(counts[0], counts[1]);
}

/// Who begins at a place in the middle, reads a little in order and leaves, has at most as much read in vain, and
/// no more than 128 KiB.
#[test]
fn what_is_read_in_vain_is_no_more_than_what_was_read() {
    let content = noise(4, 24 << 20);
    let (device, fs, ino) = cold(&content, 1 << 20, 128 * MIB, mounted());
    let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
    let before = device.device.stats().read_bytes;
    let mut r = Random::new(5);
    let mut asked = 0;
    for _ in 0..12 {
        let at = r.below(content.len() - (2 << 20)) / 4096 * 4096;
        let reads = 3 + r.below(6);
        for i in 0..reads {
            let at = at + i * (64 << 10);
            let found = fs.read(handle, ino, at as u64, 64 << 10).unwrap();
            assert!(found[..] == content[at..at + (64 << 10)]);
        }
        asked += reads * (64 << 10);
        // What it left behind is done by then.
        std::thread::sleep(Duration::from_millis(20));
    }
    let read = device.device.stats().read_bytes - before;
    println!("{read} bytes read for {asked}");
    assert!(read as f64 <= 2.3 * asked as f64 + 12.0 * 128.0 * 1024.0);
    fs.release(ino, handle);
    fs.close().unwrap();
}

/// Many files at once stay within the room that all have together, and none is read twice.
#[test]
fn many_files_in_order_at_once_stay_within_the_budget() {
    const FILES: usize = 24;
    let device = SlowDevice::new(256 * MIB);
    Fs::format(device.device.clone(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(device.device.clone(), mounted()).unwrap();
    let me = Caller::root();
    let content: Vec<_> = (0..FILES).map(|i| noise(10 + i as u64, 3 << 20)).collect();
    for (i, content) in content.iter().enumerate() {
        let (attr, handle) = fs.create(&me, ROOT, format!("f{i}").as_ref(), 0o644, O_RDWR).unwrap();
        fs.write(handle, attr.ino, 0, content, false).unwrap();
        fs.release(attr.ino, handle);
    }
    fs.close().unwrap();
    let cache = 64 * MIB;
    let fs = Fs::open(device.device.clone(), mounted().cache_bytes(cache)).unwrap();
    device.reads.latency.store(300, Relaxed);
    let before = device.device.stats().read_bytes;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fs, content) = (&fs, &content);
            scope.spawn(move || {
                let mine: Vec<_> = (thread..FILES).step_by(4).collect();
                let open = |&i: &usize| {
                    let ino = fs.resolve(Path::new(&format!("/f{i}"))).unwrap().ino;
                    (i, ino, fs.open_file(&Caller::root(), ino, 0).unwrap())
                };
                let open: Vec<_> = mine.iter().map(open).collect();
                for at in (0..3 << 20).step_by(128 << 10) {
                    for (i, ino, handle) in &open {
                        let found = fs.read(*handle, *ino, at as u64, 128 << 10).unwrap();
                        assert!(found[..] == content[*i][at..at + (128 << 10)]);
                    }
                }
                open.iter().for_each(|(_, ino, handle)| fs.release(*ino, *handle));
            });
        }
    });
    let read = device.device.stats().read_bytes - before;
    let ratio = read as f64 / ((FILES * 3) << 20) as f64;
    println!("{ratio:.3} read a byte, {} asked for ahead", fs.stats().unwrap().readahead_bytes);
    assert!(ratio <= 1.05, "{ratio} bytes read a byte");
    let used = fs.stats().unwrap().engine.cache_used;
    assert!(used <= cache + cache / 16, "{used} bytes of memory");
    fs.close().unwrap();
}

/// Closing while much is to be read ahead: it does not wait for all of that, no read fails, and nothing is read
/// behind it.
#[test]
fn closing_ends_what_is_under_way() {
    let content = noise(6, 24 << 20);
    for round in 0..10 {
        let (device, fs, ino) = cold(&content, 1 << 20, 128 * MIB, mounted());
        device.reads.latency.store(20_000, Relaxed);
        let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
        for at in 0..4 {
            fs.read(handle, ino, at * (512 << 10), 512 << 10).unwrap();
        }
        // On a busy machine the threads that read ahead may begin late.
        let patience = Instant::now() + Duration::from_secs(20);
        while fs.stats().unwrap().readahead_bytes == 0 {
            assert!(Instant::now() < patience, "nothing is read ahead");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(round));
        let begin = Instant::now();
        fs.close().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(2), "closing took {:?}", begin.elapsed());
        let reads = device.device.stats().reads;
        assert_eq!(device.reads.under_way.load(Relaxed), 0, "a read goes on behind the end");
        fs.release(ino, handle);
        drop(fs);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(device.device.stats().reads, reads, "read behind the end");
    }
}

/// Without closing as well: the last handle takes the threads along.
#[test]
fn dropping_the_file_system_ends_its_threads() {
    let content = noise(6, 24 << 20);
    let (device, fs, ino) = cold(&content, 1 << 20, 128 * MIB, mounted());
    let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
    device.reads.latency.store(5_000, Relaxed);
    for at in 0..4 {
        fs.read(handle, ino, at * (512 << 10), 512 << 10).unwrap();
    }
    drop(fs);
    assert_eq!(device.reads.under_way.load(Relaxed), 0);
    assert_eq!(Arc::strong_count(&device.device), 1, "somebody still has the device");
}

/// Reads in order beside writers, truncations, clones and renames: each read shows a state between those before
/// and behind it. The file is blocks of 4 KiB that hold a version and their number; versions only grow.
#[test]
fn what_is_read_ahead_is_never_shown_when_it_is_old() {
    const UNIT: u64 = 4096;
    let seconds = std::env::var("PANDO_MODEL_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let device = SlowDevice::new(512 * MIB);
    Fs::format(device.device.clone(), &FormatOptions::default().node_size(128 << 10)).unwrap();
    let fs = Fs::open(device.device.clone(), mounted().cache_bytes(8 * MIB)).unwrap();
    device.reads.latency.store(100, Relaxed);
    let me = Caller::root();
    let units = 6 * MIB / UNIT;
    let unit = |version: u64, number: u64| -> Vec<u8> {
        let mut bytes = [version.to_le_bytes(), number.to_le_bytes()].concat();
        bytes.resize(UNIT as usize, (version * 31 + number) as u8);
        bytes
    };
    let ino = fs.create(&me, ROOT, "file".as_ref(), 0o644, O_RDWR).unwrap().0.ino;
    for number in 0..units {
        fs.write(NONE, ino, number * UNIT, &unit(1, number), false).unwrap();
    }
    fs.sync().unwrap();
    // A version may be in the file from `begun` on and is in it from `done` on.
    let begun: Vec<_> = (0..units).map(|_| AtomicU64::new(1)).collect();
    let done: Vec<_> = (0..units).map(|_| AtomicU64::new(1)).collect();
    let (stop, reads, cuts) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (fs, begun, done, stop, cuts, device) = (&fs, &begun, &done, &stop, &cuts, &device);
        scope.spawn(move || {
            // One writer: units, runs of them, truncations (the version 0 is "a hole"), and writes behind them.
            let mut r = Random::new(7);
            let mut version = 1;
            while !stop.load(Relaxed) {
                version += 1;
                let first = r.below(units as usize) as u64;
                if r.below(60) == 0 {
                    // What is cut reads as zeros until it is written again: the file has its length back at once
                    // in one more call, so readers may see the end in between.
                    cuts.fetch_add(1, Relaxed);
                    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
                    (first..units).for_each(|n| begun[n as usize].store(u64::MAX, Relaxed));
                    fs.setattr(&Caller::root(), ino, &set(first * UNIT)).unwrap();
                    (first..units).for_each(|n| done[n as usize].store(0, Relaxed));
                    for number in first..units {
                        fs.write(NONE, ino, number * UNIT, &unit(version, number), false).unwrap();
                        done[number as usize].store(version, Relaxed);
                        begun[number as usize].store(version, Relaxed);
                    }
                    continue;
                }
                let last = (first + 1 + r.below(64) as u64).min(units);
                let bytes: Vec<u8> = (first..last).flat_map(|n| unit(version, n)).collect();
                (first..last).for_each(|n| begun[n as usize].store(version, Relaxed));
                fs.write(NONE, ino, first * UNIT, &bytes, false).unwrap();
                (first..last).for_each(|n| done[n as usize].store(version, Relaxed));
                if r.below(20) == 0 {
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        });
        scope.spawn(move || {
            // Clones of it, renames of these and removals: what is read ahead is of keys that move.
            let mut round = 0;
            let me = Caller::root();
            let mut turn = [std::ffi::OsStr::new("file"), "moved".as_ref()];
            while !stop.load(Relaxed) {
                round += 1;
                let (from, to) = (turn[0], turn[1]);
                fs.clone_tree(&me, (ROOT, from), (ROOT, "copy".as_ref()), true).unwrap();
                fs.rename(&me, ROOT, from, ROOT, to, 0).unwrap();
                turn.reverse();
                if round % 50 == 0 {
                    fs.db().checkpoint().unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        for reader in 0..2 {
            let reads = &reads;
            scope.spawn(move || {
                let size = [128 << 10, 64 << 10][reader];
                while !stop.load(Relaxed) {
                    let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
                    for at in (0..units * UNIT).step_by(size) {
                        let first = at / UNIT;
                        let numbers = first..first + size as u64 / UNIT;
                        let before: Vec<_> = numbers.map(|n| done[n as usize].load(Relaxed)).collect();
                        let cuts_before = cuts.load(Relaxed);
                        let cut = |n: u64| begun[n as usize].load(Relaxed) == u64::MAX;
                        let holes: Vec<_> = (first..first + size as u64 / UNIT).map(cut).collect();
                        let found = fs.read(handle, ino, at, size as u32).unwrap();
                        for (i, bytes) in found.chunks_exact(UNIT as usize).enumerate() {
                            let number = first + i as u64;
                            let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                            let most = begun[number as usize].load(Relaxed);
                            let hole = holes[i] || before[i] == 0 || cuts.load(Relaxed) != cuts_before;
                            assert!(
                                version >= before[i] || (version == 0 && hole),
                                "unit {number} has version {version}, older than {}",
                                before[i]
                            );
                            assert!(version <= most, "unit {number}: {version} is newer than {most}");
                            if version > 0 {
                                assert!(bytes == unit(version, number), "unit {number} of version {version}");
                            }
                        }
                        reads.fetch_add(1, Relaxed);
                    }
                    fs.release(ino, handle);
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Relaxed);
        let _ = device;
    });
    let ahead = fs.stats().unwrap().readahead_bytes;
    println!("{} reads, {} cuts, {ahead} bytes ahead", reads.load(Relaxed), cuts.load(Relaxed));
    assert!(reads.load(Relaxed) > 100 && ahead > 0);
    fs.close().unwrap();
    assert_eq!(device.reads.under_way.load(Relaxed), 0);
}

/// A file system with files of these paths and of `len` bytes each, which are in no cache.
fn cold_files(paths: impl Iterator<Item = String>, len: usize) -> (SlowDevice, Vec<(String, Vec<u8>)>) {
    let device = SlowDevice::new(256 * MIB);
    Fs::format(device.device.clone(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(device.device.clone(), mounted()).unwrap();
    let me = Caller::root();
    let mut files = Vec::new();
    for (i, path) in (0..).zip(paths) {
        let mut parent = ROOT;
        let mut names = path.trim_start_matches('/').split('/').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_some() {
                parent = match fs.lookup(parent, name.as_ref()) {
                    Ok(found) => found.ino,
                    Err(_) => fs.mkdir(&me, parent, name.as_ref(), 0o755).unwrap().ino,
                };
                continue;
            }
            let content = noise(100 + i, len);
            let (attr, handle) = fs.create(&me, parent, name.as_ref(), 0o644, O_RDWR).unwrap();
            fs.write(handle, attr.ino, 0, &content, false).unwrap();
            fs.release(attr.ino, handle);
            files.push((path.clone(), content));
        }
    }
    fs.close().unwrap();
    (device, files)
}

/// 64 files of 200 KiB in a directory and 16 in one below.
fn cold_tree() -> (SlowDevice, Vec<(String, Vec<u8>)>) {
    let path = |i| if i < 64 { format!("/tree/{i:03}") } else { format!("/tree/below/{i:03}") };
    cold_files((0..80).map(path), 200 << 10)
}

/// What it takes to read some files, cold.
struct Cost {
    requests: u64,
    bytes: u64,
    /// Requests that were under way at once, at most.
    most: u64,
    /// Requests that the reader made itself, and waited for.
    own: u64,
}

/// What it takes to read these files, cold, in this order, by one who does a little with each.
fn read_tree(device: &SlowDevice, files: &[&(String, Vec<u8>)], ahead: u64) -> Cost {
    let fs = Fs::open(device.device.clone(), mounted().readahead_bytes(ahead)).unwrap();
    let inodes: Vec<Ino> = files.iter().map(|(path, _)| fs.resolve(Path::new(path)).unwrap().ino).collect();
    device.reads.most_under_way.store(0, Relaxed);
    device.reads.latency.store(1000, Relaxed);
    device.reads.own.store(0, Relaxed);
    let before = device.device.stats();
    for (ino, (_, content)) in inodes.iter().zip(files) {
        pass(&fs, *ino, content, 128 << 10);
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = device.device.stats();
    device.reads.latency.store(0, Relaxed);
    fs.close().unwrap();
    Cost {
        requests: after.reads - before.reads,
        bytes: after.read_bytes - before.read_bytes,
        most: device.reads.most_under_way.load(Relaxed),
        own: device.reads.own.load(Relaxed),
    }
}

/// `grep -r` of a cold tree: the files behind the one that is read are on their way, by large requests.
#[test]
fn files_that_are_read_in_order_have_their_neighbours_read_ahead() {
    let (device, files) = cold_tree();
    let bytes: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    let in_order: Vec<_> = files.iter().collect();
    let alone = read_tree(&device, &in_order, 0);
    let Cost { requests, bytes: read, most, own } = read_tree(&device, &in_order, u64::MAX);
    let ratio = read as f64 / bytes as f64;
    println!(
        "in order: {requests} requests, {own} of the reader ({} without readahead), {ratio:.3} read a byte, {most} under way",
        alone.requests
    );
    assert!(alone.requests <= 250, "{} requests without readahead", alone.requests);
    assert!(requests <= 120 && own * 3 <= alone.own, "{requests} requests, {own} of the reader");
    assert!(ratio <= 1.05, "{ratio} bytes read a byte");
    // Whether two are, in one pass, is also a matter of when the threads are let run.
    let again = || read_tree(&device, &in_order, u64::MAX).most;
    assert!(most >= 2 || (0..3).any(|_| again() >= 2), "never more than {most} requests under way");
}

/// A walk through directories of a few files each: what comes in the next one is on its way as well.
#[test]
fn a_walk_through_a_tree_reads_ahead_across_its_directories() {
    let path = |i| format!("/tree/{}/{:02}/{}", i / 32, i / 4 % 8, i % 4);
    let (device, files) = cold_files((0..192).map(path), 60 << 10);
    let bytes: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    let in_order: Vec<_> = files.iter().collect();
    let alone = read_tree(&device, &in_order, 0);
    let Cost { requests, bytes: read, own, .. } = read_tree(&device, &in_order, u64::MAX);
    let ratio = read as f64 / bytes as f64;
    println!(
        "walk: {requests} requests, {own} of the reader ({} without readahead), {ratio:.3} read a byte",
        alone.requests
    );
    assert!(own * 3 <= alone.own, "the reader waited for {own} requests, {} without readahead", alone.own);
    assert!(ratio <= 1.05, "{ratio} bytes read a byte");
}

/// A read of many blocks is one request for each place where they lie, whether or not others came before.
#[test]
fn a_single_read_of_many_blocks_takes_few_requests() {
    const READS: u64 = 24;
    let content = noise(8, 24 << 20);
    let (device, fs, ino) = cold(&content, 1 << 20, 256 * MIB, mounted());
    let handle = fs.open_file(&Caller::root(), ino, 0).unwrap();
    // The headers of the nodes on the way.
    let at = |i: u64| (i * 7 % READS) << 20;
    (0..READS).for_each(|i| drop(fs.read(handle, ino, at(i) + (768 << 10), 4).unwrap()));
    let before = device.device.stats();
    for i in 0..READS {
        let found = fs.read(handle, ino, at(i), 128 << 10).unwrap();
        assert!(found[..] == content[at(i) as usize..][..128 << 10]);
    }
    let requests = device.device.stats().reads - before.reads;
    println!("{requests} requests for {READS} reads of 128 KiB");
    assert!(requests <= 2 * READS, "{requests} requests for {READS} reads");
    fs.release(ino, handle);
    fs.close().unwrap();
}

/// Files in no order have nothing of others read.
#[test]
fn files_that_are_read_in_no_order_have_nothing_of_others_read_ahead() {
    let (device, files) = cold_tree();
    let mut in_no_order: Vec<_> = files.iter().step_by(3).collect();
    in_no_order.reverse();
    let alone = read_tree(&device, &in_no_order, 0).bytes;
    let read = read_tree(&device, &in_no_order, u64::MAX).bytes;
    println!("in no order: {read} bytes read, {alone} without readahead");
    assert!(read <= alone + alone / 50, "{read} bytes read, {alone} without readahead");
}

/// Files that were read to their end and stay open leave the budget to others.
#[test]
fn files_that_were_read_whole_hold_nothing_of_the_budget() {
    let device = SlowDevice::new(256 * MIB);
    Fs::format(device.device.clone(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(device.device.clone(), mounted()).unwrap();
    let me = Caller::root();
    let content = noise(7, 1 << 20);
    for i in 0..16 {
        let (attr, handle) = fs.create(&me, ROOT, format!("{i:02}").as_ref(), 0o644, O_RDWR).unwrap();
        fs.write(handle, attr.ino, 0, &content, false).unwrap();
        fs.release(attr.ino, handle);
    }
    fs.close().unwrap();
    let fs = Fs::open(device.device, mounted().readahead_bytes(MIB)).unwrap();
    let mut open = Vec::new();
    // Backwards, so that they are no run of files.
    for i in (0..16).rev() {
        let ino = fs.resolve(Path::new(&format!("/{i:02}"))).unwrap().ino;
        let handle = fs.open_file(&me, ino, 0).unwrap();
        let before = fs.stats().unwrap().readahead_bytes;
        for at in (0..content.len()).step_by(128 << 10) {
            fs.read(handle, ino, at as u64, 128 << 10).unwrap();
        }
        assert!(fs.stats().unwrap().readahead_bytes > before, "nothing of file {i} was read ahead");
        open.push((ino, handle));
    }
    open.into_iter().for_each(|(ino, handle)| fs.release(ino, handle));
    fs.close().unwrap();
}
