//! Pages that the server refused and the kernel has let go of since: what was in them is lost, and no sync may say
//! otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    os::fd::AsRawFd,
    os::unix::fs::{FileExt, MetadataExt},
    time::{Duration, Instant},
};

use crate::common::World;
use pando_fuse::{Settings, control::ControlRequest};
use rustix::fs::{Advice, fadvise};

const MIB: usize = 1 << 20;

/// A mount with a directory `dir` whose number is the other value; `None` where the server has no way into its mount.
fn scene() -> Option<(World, u64)> {
    let w = World::with(Settings { writeback: true, ..Settings::default() })?;
    if !rustix::process::geteuid().is_root() {
        println!("not root: skipped");
        return None;
    }
    fs::create_dir(w.path("dir")).unwrap();
    let dir = fs::metadata(w.path("dir")).unwrap().ino();
    Some((w, dir))
}

/// A file of 3 MiB that are stored and 4 of which half are refused, without the program having heard of it.
fn partly_refused(w: &World, dir: u64) -> (File, Vec<u8>) {
    w.fs().set_quota(dir, Some(5 << 20)).unwrap();
    let path = w.path("dir").join("f");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let written: Vec<u8> =
        (0..7 * MIB).map(|i| if i < 3 * MIB { b'A' } else { (i / 4096) as u8 | 1 }).collect();
    file.write_all_at(&written[..3 * MIB], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&written[3 * MIB..], 3 * MIB as u64).unwrap();
    // As in the background.
    // SAFETY: the descriptor is open.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    let begin = Instant::now();
    while w.send(&ControlRequest::Sync).unwrap() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "vacuous: nothing was refused");
    }
    // The kernel tells of the error once.
    assert_eq!(errno(file.sync_all()), Some(libc::ENOSPC));
    (file, written)
}

/// The error number of a call; `None` if there is no error.
fn errno(done: std::io::Result<()>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

/// Anybody who may read the file can have them dropped, and so does a kernel that is short of memory.
fn drop_pages(w: &World) {
    fadvise(File::open(w.path("dir/f")).unwrap(), 0, None, Advice::DontNeed).unwrap();
}

/// Some rounds of what is tried again.
fn rounds() {
    std::thread::sleep(Duration::from_secs(2));
}

fn stored(w: &World, file: &File, len: usize) -> Vec<u8> {
    let ino = file.metadata().unwrap().ino();
    let piece =
        |at: usize| w.fs().read(pando_fs::FileHandle(0), ino, at as u64, MIB as u32).unwrap().to_vec();
    (0..len).step_by(MIB).flat_map(piece).collect()
}

#[test]
fn no_sync_succeeds_when_refused_pages_are_gone() {
    let Some((w, dir)) = scene() else { return };
    // Whoever brings them back first: the server, which tries them again, or a reader.
    for reader in [false, true] {
        let (file, written) = partly_refused(&w, dir);
        drop_pages(&w);
        if reader {
            assert!(fs::read(w.path("dir/f")).unwrap() != written, "vacuous: the pages are still there");
        }
        w.fs().set_quota(dir, None).unwrap();
        rounds();
        for _ in 0..3 {
            let told = errno(file.sync_all());
            assert_eq!(told, Some(libc::EIO), "reader: {reader}: what was written is nowhere");
        }
        assert_eq!(w.send(&ControlRequest::Sync).unwrap(), 1, "reader: {reader}");
        // A byte in each page brings the pages to the server, and not what was in them.
        (0..7 * MIB).step_by(4096).for_each(|at| file.write_all_at(b"B", at as u64).unwrap());
        rounds();
        for _ in 0..3 {
            assert_eq!(errno(file.sync_all()), Some(libc::EIO), "reader: {reader}: the rest is nowhere");
        }
        assert!(stored(&w, &file, 7 * MIB)[3 * MIB..] != written[3 * MIB..], "vacuous: it was stored");
        // Whoever opens it when it was closed by all sees what is stored, and may build on that.
        drop(file);
        let again = || OpenOptions::new().read(true).write(true).open(w.path("dir/f")).unwrap();
        let (begin, mut file) = (Instant::now(), again());
        while let Some(e) = errno(file.sync_all()) {
            assert!(e == libc::EIO && begin.elapsed() < Duration::from_secs(20), "error {e}");
            drop(file);
            std::thread::sleep(Duration::from_millis(20));
            file = again();
        }
        file.write_all_at(&written, 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(w.send(&ControlRequest::Sync).unwrap(), 0, "reader: {reader}");
        assert!(stored(&w, &file, 7 * MIB) == written);
    }
}

#[test]
fn what_is_gone_is_no_matter_of_a_file_that_is_cut_or_forgotten() {
    let Some((w, dir)) = scene() else { return };
    let lost = || {
        let (file, _) = partly_refused(&w, dir);
        drop_pages(&w);
        w.fs().set_quota(dir, None).unwrap();
        rounds();
        assert_eq!(errno(file.sync_all()), Some(libc::EIO));
        file
    };
    let file = lost();
    file.set_len(3 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // A program that only writes is not kept from that.
    let file = lost();
    let writer = OpenOptions::new().append(true).open(w.path("dir/f")).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(rustix::io::write(&writer, b"more").unwrap(), 4);
    drop((file, writer));
    fs::remove_file(w.path("dir/f")).unwrap();
    let begin = Instant::now();
    while w.send(&ControlRequest::Sync).unwrap() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is remembered although nobody has it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The kernel drops the pages of what was copied to.
#[test]
fn what_is_copied_over_refused_pages_is_there() {
    let Some((w, dir)) = scene() else { return };
    fs::write(w.path("source"), vec![b'S'; 4 * MIB]).unwrap();
    let source = File::open(w.path("source")).unwrap();
    let (file, mut written) = partly_refused(&w, dir);
    w.fs().set_quota(dir, None).unwrap();
    let (mut from, mut to) = (0, 3 << 20);
    while from < 4 << 20 {
        let more = (4 << 20) - from as usize;
        assert!(
            rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), more).unwrap() > 0
        );
    }
    rounds();
    file.sync_all().unwrap();
    written[3 * MIB..].fill(b'S');
    assert!(fs::read(w.path("dir/f")).unwrap() == written);
    assert!(stored(&w, &file, 7 * MIB) == written);
}
