//! Data is written once: what the device writes for each byte of files that are written in order, by calls of
//! any size, aligned or not, appended or into a file that has its size already; and that nothing is read for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, MemDevice};
use pando_fs::*;
use std::sync::Arc;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Device bytes for each byte of the user, for calls of 4 KiB and more, and for smaller ones.
const MOST: f64 = 1.05;
const MOST_SMALL: f64 = 1.2;
/// The same of files that grow side by side (ratchet: the goal is 1.05). Where a record is full, the last blocks of all
/// files are cut.
const SIDE_BY_SIDE: f64 = 1.35;
/// The same where older data is written over: no goal of its own.
const OVER_OLD: f64 = 1.08;

#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    /// At the end, by a handle opened so.
    Append,
    /// By offset into an empty file.
    Grow,
    /// By offset into a file that `truncate` has made so long.
    Sized,
}

struct Disk {
    device: Arc<MemDevice>,
    fs: Fs,
    me: Caller,
}

impl Disk {
    fn new(node: u32, options: MountOptions) -> Self {
        Self::of_size(512 << 20, node, options)
    }

    fn of_size(size: u64, node: u32, options: MountOptions) -> Self {
        let device = Arc::new(MemDevice::new(size));
        Fs::format(device.clone(), &FormatOptions::default().node_size(node)).unwrap();
        let fs = Fs::open(device.clone(), options.cache_bytes(64 << 20)).unwrap();
        Self { device, fs, me: Caller::root() }
    }

    fn make(&self, name: &str, how: How, size: usize) -> (Ino, FileHandle) {
        let flags = if how == How::Append { O_RDWR | O_APPEND } else { O_RDWR };
        let (attr, handle) = self.fs.create(&self.me, ROOT, name.as_ref(), 0o644, flags).unwrap();
        if how == How::Sized {
            let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            self.fs.setattr(&self.me, attr.ino, &change).unwrap();
        }
        (attr.ino, handle)
    }

    /// Bytes written and requests to read while `work` is done.
    fn during(&self, work: impl FnOnce()) -> (u64, u64) {
        let before = self.device.stats();
        work();
        let after = self.device.stats();
        (after.write_bytes - before.write_bytes, after.reads - before.reads)
    }

    /// Everything there is in the file system is found again after it was closed and opened.
    fn holds(self, files: &[(Ino, &[u8])]) {
        self.fs.close().unwrap();
        let fs = Fs::open(self.device.clone(), options()).unwrap();
        for (i, (ino, content)) in files.iter().copied().enumerate() {
            let attr = fs.lookup(ROOT, format!("f{i}").as_ref()).unwrap();
            assert_eq!((attr.ino, attr.size), (ino, content.len() as u64));
            for (part, at) in content.chunks(100_003).zip((0..).step_by(100_003)) {
                assert!(fs.read(NONE, ino, at, 100_003).unwrap()[..] == *part, "file {i} at {at}");
            }
        }
        let report = fs.check(|problem| panic!("{problem}")).unwrap();
        assert_eq!(report.problems, 0);
        fs.close().unwrap();
    }
}

/// One file of noise in order by calls of `call` bytes; the ratio.
fn one(how: How, call: usize, size: usize, node: u32, threads: bool) -> (f64, u64) {
    one_of(&noise(call as u64, size), how, call, node, threads)
}

/// One file of this content.
fn one_of(content: &[u8], how: How, call: usize, node: u32, threads: bool) -> (f64, u64) {
    let disk = Disk::new(node, options().background(threads));
    let size = content.len();
    let (ino, handle) = disk.make("f0", how, size);
    disk.fs.fsync(ino, false).unwrap();
    let (written, reads) = disk.during(|| {
        for (i, part) in content.chunks(call).enumerate() {
            assert_eq!(
                disk.fs.write(handle, ino, (i * call) as u64, part, false).unwrap() as usize,
                part.len()
            );
        }
        disk.fs.fsync(ino, false).unwrap();
        disk.fs.release(ino, handle);
        // What waits in memory and would be written twice is written now.
        disk.fs.db().checkpoint().unwrap();
    });
    let ratio = written as f64 / size as f64;
    println!(
        "{how:?} by {call} B, nodes of {} KiB, threads {threads}: {ratio:.3} written a byte, {reads} reads",
        node >> 10
    );
    disk.holds(&[(ino, content)]);
    (ratio, reads)
}

#[test]
fn a_file_in_order_is_written_once_at_every_call_size() {
    let mut bad = Vec::new();
    for how in [How::Append, How::Grow, How::Sized] {
        for call in
            [512, 1000, 4 * KIB, 5000, 10 * KIB, 16 * KIB, 32 * KIB, 40 * KIB, 100_000, 128 * KIB, MIB]
        {
            let size = if call < 4 * KIB { 8 * MIB } else { 32 * MIB };
            let (ratio, reads) = one(how, call, size, 1 << 20, false);
            if ratio > if call < 4 * KIB { MOST_SMALL } else { MOST } || reads > 0 {
                bad.push((how, call, ratio, reads));
            }
        }
    }
    assert!(bad.is_empty(), "too much is written: {bad:?}");
}

/// What compresses well is short on the device, however long a part of a file it is: it need not be copied together.
#[test]
fn what_compresses_well_is_not_read_either() {
    for word in [1, 40, 400] {
        // A sixtieth of it is noise, or less.
        let content = noise(word as u64, 32 * MIB / 64 / word * word);
        let content: Vec<u8> = content.chunks(word).flat_map(|word| word.repeat(64)).collect();
        let (ratio, reads) = one_of(&content, How::Grow, MIB, 1 << 20, false);
        println!("  words of {word} B: {ratio:.4} bytes written for each of the user's");
        assert!(ratio < 0.2 && reads == 0, "words of {word}: {ratio:.4}, {reads} reads");
    }
    let zeros = vec![0; 32 * MIB];
    let (ratio, reads) = one_of(&zeros, How::Grow, MIB, 1 << 20, false);
    println!("  zeros: {ratio:.4} bytes written for each of the user's");
    assert!(ratio < 0.03 && reads == 0, "{ratio:.4}, {reads} reads");
}

/// With the threads of the background, which write the log when they come to it, and with other nodes: what a large
/// call costs, and little more.
#[test]
fn beside_threads_and_with_other_nodes_too() {
    let mut bad = Vec::new();
    for (node, threads) in [(1 << 20, true), (256 << 10, false), (4 << 20, true), (4 << 20, false)] {
        let (base, _) = one(How::Grow, MIB, 32 * MIB, node, threads);
        for (how, call) in
            [(How::Append, 1000), (How::Grow, 4 * KIB), (How::Sized, 40 * KIB), (How::Append, 7777)]
        {
            let size = if call < 4 * KIB { 8 * MIB } else { 32 * MIB };
            let (ratio, reads) = one(how, call, size, node, threads);
            // When the threads write the log is a matter of time: a block that is cut then is written twice.
            let (more, most_reads) = if threads { (0.1, 16) } else { (0.02, 2) };
            let small = if call < 4 * KIB { MOST_SMALL - MOST } else { 0.0 };
            if ratio > base + more + small || reads > most_reads {
                bad.push((how, call, node, threads, ratio, base, reads));
            }
        }
    }
    assert!(bad.is_empty(), "too much is written: {bad:?}");
}

/// Several files that grow at the same time, a call each in turn.
#[test]
fn files_that_grow_side_by_side_are_written_once() {
    for (files, call) in [(2, 512), (3, 4 * KIB), (4, 10 * KIB), (8, 4 * KIB), (8, 40 * KIB)] {
        let size = 4 * MIB;
        let disk = Disk::new(1 << 20, options());
        let contents: Vec<Vec<u8>> = (0..files).map(|i| noise(i, size)).collect();
        let open: Vec<_> = (0..files).map(|i| disk.make(&format!("f{i}"), How::Grow, size)).collect();
        let (written, reads) = disk.during(|| {
            for at in (0..size).step_by(call) {
                for ((ino, handle), content) in open.iter().zip(&contents) {
                    let part = &content[at..size.min(at + call)];
                    disk.fs.write(*handle, *ino, at as u64, part, false).unwrap();
                }
            }
            disk.fs.sync().unwrap();
            disk.fs.db().checkpoint().unwrap();
        });
        let ratio = written as f64 / (size * files as usize) as f64;
        println!("{files} files by {call} B in turn: {ratio:.3} written a byte, {reads} reads");
        assert!(ratio <= SIDE_BY_SIDE, "{files} files by {call} B in turn: {ratio:.3} written a byte");

        let inos = open.iter().map(|(ino, _)| *ino);
        disk.holds(&inos.zip(contents.iter().map(|content| &content[..])).collect::<Vec<_>>());
    }
}

/// Data that was there is written over in order.
#[test]
fn what_is_written_over_in_order_is_written_once() {
    for call in [1000, 4 * KIB, 10 * KIB, 40 * KIB, 16 * KIB, 128 * KIB] {
        let size = 8 * MIB;
        let disk = Disk::new(1 << 20, options());
        let (old, new) = (noise(1, size), noise(2, size));
        let (ino, handle) = disk.make("f0", How::Grow, size);
        for (i, part) in old.chunks(128 * KIB).enumerate() {
            disk.fs.write(handle, ino, (i * 128 * KIB) as u64, part, false).unwrap();
        }
        disk.fs.db().checkpoint().unwrap();
        let (written, reads) = disk.during(|| {
            for (i, part) in new.chunks(call).enumerate() {
                disk.fs.write(handle, ino, (i * call) as u64, part, false).unwrap();
            }
            disk.fs.sync().unwrap();
            disk.fs.db().checkpoint().unwrap();
        });
        let ratio = written as f64 / size as f64;
        println!("over old data by {call} B: {ratio:.3} written a byte, {reads} reads");
        assert!(ratio <= OVER_OLD && reads <= 8, "over old data by {call} B: {ratio:.3}, {reads} reads");
        disk.holds(&[(ino, &new)]);
    }
}

/// What a crash leaves of files that grow in small parts side by side, with clones and syncs between: all that was done
/// up to some moment (of one call perhaps a part), and nothing of later; and nothing of what was synced is missing.
#[test]
fn after_a_crash_the_parts_of_all_files_are_those_of_one_moment() {
    const FILES: usize = 3;
    for seed in 0..60 {
        let mut r = Random::new(seed);
        let disk = Disk::of_size(64 << 20, 64 << 10, options());
        let contents: Vec<Vec<u8>> = (0..FILES).map(|i| noise(seed * 10 + i as u64, MIB)).collect();
        let open: Vec<_> = (0..FILES).map(|i| disk.make(&format!("f{i}"), How::Grow, 0)).collect();
        // Each call: the file and its size before and after; or a clone of file 0, and its size.
        let (mut calls, mut clones, mut sizes, mut synced) = (Vec::new(), Vec::new(), [0usize; FILES], 0);
        for _ in 0..200 + r.below(300) {
            let i = r.below(FILES);
            let len = [1, 80, 512, 4000, 4096, 9000, 16_384, 20_000, 70_000][r.below(9)].min(MIB - sizes[i]);
            if len == 0 {
                continue;
            }
            let (ino, handle) = open[i];
            let part = &contents[i][sizes[i]..sizes[i] + len];
            disk.fs.write(handle, ino, sizes[i] as u64, part, false).unwrap();
            calls.push((i, sizes[i], sizes[i] + len));
            sizes[i] += len;
            match r.below(60) {
                0 => {
                    disk.fs.fsync(open[0].0, false).unwrap();
                    synced = calls.len();
                }
                1 => disk.fs.db().checkpoint().unwrap(),
                2 => {
                    let name = format!("c{}", clones.len());
                    let (from, to) = ((ROOT, "f0".as_ref()), (ROOT, name.as_ref()));
                    disk.fs.clone_tree(&disk.me, from, to, false).unwrap();
                    clones.push((calls.len(), sizes[0]));
                }
                _ => {}
            }
        }
        // What a crash of the process leaves: the bytes on the device as they are now.
        let copy = Arc::new(MemDevice::new(disk.device.size()));
        let mut bytes = vec![0; disk.device.size() as usize];
        disk.device.read_at(0, &mut bytes).unwrap();
        copy.write_at(0, &bytes).unwrap();
        let fs = Fs::open(copy, options()).unwrap();
        let whole = |name: &str| {
            let attr = fs.lookup(ROOT, name.as_ref()).ok()?;
            let content = fs.read(NONE, attr.ino, 0, MIB as u32 + 1).unwrap();
            assert_eq!(content.len() as u64, attr.size, "seed {seed}");
            Some(content)
        };
        let found: Vec<_> = (0..FILES).map(|i| whole(&format!("f{i}")).unwrap_or_default()).collect();
        for (content, sent) in found.iter().zip(&contents) {
            assert!(sent.starts_with(content), "seed {seed}: something else is in the file");
        }
        let done = |(i, _, end): &(usize, usize, usize)| found[*i].len() >= *end;
        let moment = calls.iter().position(|call| !done(call)).unwrap_or(calls.len());
        assert!(moment >= synced, "seed {seed}: {moment} calls of {synced} that were synced");
        for (i, begin, _) in calls.iter().skip(moment + 1) {
            assert!(found[*i].len() <= *begin, "seed {seed}: a later call shows, an earlier one does not");
        }
        for (n, (at, size)) in clones.iter().enumerate() {
            match whole(&format!("c{n}")) {
                Some(clone) => assert!(*at <= moment && clone[..] == contents[0][..*size], "seed {seed}"),
                None => assert!(*at >= moment, "seed {seed}: a clone before the moment is missing"),
            }
        }
        let report = fs.check(|problem| panic!("seed {seed}: {problem}")).unwrap();
        assert_eq!(report.problems, 0);
        disk.fs.close().unwrap();
    }
}
