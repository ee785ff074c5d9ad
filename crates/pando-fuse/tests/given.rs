//! Small files that come with the answer to their open: how much that saves, and that it harms nothing that others do
//! meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::common::World;
use pando_fuse::{Kind, Settings};

/// Files that come with their open have at most so many bytes.
const SMALL_BYTES: usize = 128 << 10;

/// Content of a file that shows its version: every byte is the same.
fn content(version: u8, bytes: usize) -> Vec<u8> {
    vec![version; bytes]
}

/// The file as the server has it, past the page cache.
fn behind_the_cache(path: &Path) -> Vec<u8> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn who_reads_small_files_needs_no_read_for_them() {
    let Some(mut w) = World::new() else { return };
    const FILES: usize = 320;
    let size = |i: usize| match i % 8 {
        0 => 0,
        1 => 1,
        2 => 4096,
        3 => 4097,
        4 => 50_000,
        5 => SMALL_BYTES,
        _ => 300,
    };
    let name = |i: usize| format!("{i:03}");
    for i in 0..FILES {
        fs::write(w.path(&name(i)), content(i as u8, size(i))).unwrap();
    }
    fs::write(w.path("large"), content(1, SMALL_BYTES + 1)).unwrap();
    w.remount();
    for i in 0..FILES {
        assert!(fs::read(w.path(&name(i))).unwrap() == content(i as u8, size(i)), "file {i}");
    }
    let reads = w.requests(Kind::Read);
    // Three show that this thread reads, and of 16 files one is left to it, to see whether it still does.
    assert!(reads <= 3 + 2 + FILES as u64 / 16, "{reads} READs of {FILES} files");
    assert!(reads > FILES as u64 / 32, "nothing would show that the caller reads no more");
    assert!(fs::read(w.path("large")).unwrap() == content(1, SMALL_BYTES + 1));
    assert!(w.requests(Kind::Read) > reads, "a large file is read when it is asked for");
    // The kernel has them now.
    let reads = w.requests(Kind::Read);
    for i in 0..FILES {
        assert!(fs::read(w.path(&name(i))).unwrap() == content(i as u8, size(i)), "file {i} again");
    }
    assert_eq!(w.requests(Kind::Read), reads);
}

/// Of what was given, nothing is kept when the file changes, in whatever way.
#[test]
fn what_was_given_is_as_good_as_what_was_read() {
    let Some(mut w) = World::new() else { return };
    const FILES: usize = 120;
    let name = |i: usize| format!("{i:03}");
    for i in 0..FILES {
        fs::write(w.path(&name(i)), content(1, 70_000)).unwrap();
    }
    w.remount();
    for i in 0..FILES {
        assert!(fs::read(w.path(&name(i))).unwrap() == content(1, 70_000));
    }
    for i in 0..FILES {
        let path = w.path(&name(i));
        let mut wanted = content(1, 70_000);
        match i % 6 {
            0 => {
                OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"changed", 5000).unwrap();
                wanted[5000..5007].copy_from_slice(b"changed");
            }
            1 => {
                OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
                wanted.extend_from_slice(b"more");
            }
            2 => {
                crate::common::truncate(&path, 10);
                wanted.truncate(10);
            }
            3 => {
                crate::common::truncate(&path, 100_000);
                wanted.resize(100_000, 0);
            }
            4 => {
                fs::write(&path, b"new").unwrap();
                wanted = b"new".to_vec();
            }
            _ => {
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                file.write_all_at(&[9; 4096], 8192).unwrap();
                wanted[8192..12288].fill(9);
            }
        }
        assert!(fs::read(&path).unwrap() == wanted, "file {i}");
        assert_eq!(fs::metadata(&path).unwrap().size(), wanted.len() as u64);
        assert!(behind_the_cache(&path) == wanted, "file {i} behind the cache");
    }
}

/// One thread reads files that the kernel has no pages of, and is given them; others open, write, cut and extend the
/// same files in the same moments, each file one of them. What they wrote must be there, in the cache and behind it.
#[test]
fn what_others_write_while_a_file_is_given_stays() {
    let Some(mut w) = World::with(Settings { threads: 4, ..Settings::default() }) else { return };
    const FILES: usize = 128;
    const WRITERS: usize = 3;
    let seconds = std::env::var("PANDO_GIVEN_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let name = |i: usize| format!("{i:03}");
    let begin = Instant::now();
    let mut round = 0_usize;
    while begin.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        for i in 0..FILES {
            fs::write(w.path(&name(i)), content(1, 9000)).unwrap();
        }
        w.remount();
        // The kernel finds them by name before, so that what follows is opens.
        (0..FILES).for_each(|i| assert_eq!(fs::metadata(w.path(&name(i))).unwrap().len(), 9000));
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (w, done) = (&w, &done);
            s.spawn(move || {
                for i in (0..FILES).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    let bytes = fs::read(w.path(&name(i))).unwrap();
                    assert!(bytes.iter().all(|b| [0, 1, 2].contains(b)), "file {i}: no such version");
                }
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|who| {
                    s.spawn(move || {
                        for i in (0..FILES).filter(|i| i % WRITERS == who) {
                            change(&w.path(&name(i)), i + round);
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|t| t.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        for i in 0..FILES {
            let (path, wanted) = (w.path(&name(i)), changed(i + round));
            let what = format!("file {i} in round {round}, change {}", (i + round) % CHANGES);
            assert_eq!(fs::metadata(&path).unwrap().size(), wanted.len() as u64, "size of {what}");
            assert!(fs::read(&path).unwrap() == wanted, "{what}");
            assert!(behind_the_cache(&path) == wanted, "{what}, behind the cache");
        }
    }
    println!("{round} rounds");
}

const CHANGES: usize = 5;

/// Changes a file of 9,000 bytes in one of several ways.
fn change(path: &Path, way: usize) {
    let open = |o: &mut OpenOptions| -> File { o.open(path).unwrap() };
    match way % CHANGES {
        0 => open(OpenOptions::new().read(true).write(true)).write_all_at(&content(2, 9000), 0).unwrap(),
        1 => crate::common::truncate(path, 100),
        2 => crate::common::truncate(path, 20_000),
        3 => fs::write(path, content(2, 5000)).unwrap(),
        _ => open(OpenOptions::new().append(true)).write_all(&content(2, 3000)).unwrap(),
    }
}

/// What the file is then.
fn changed(way: usize) -> Vec<u8> {
    let mut bytes = content(1, 9000);
    match way % CHANGES {
        0 => bytes.fill(2),
        1 => bytes.truncate(100),
        2 => bytes.resize(20_000, 0),
        3 => bytes = content(2, 5000),
        _ => bytes.resize(12_000, 2),
    }
    bytes
}
