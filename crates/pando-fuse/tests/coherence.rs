//! The kernel's caches after writes, mappings and clones: no stale byte, no lost one, and no
//! read that was not needed.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use super::common::{World, errno, mapped::Map};
use pando_fs::{Caller, FileHandle, ModeChange, TreeChange};
use pando_fuse::{
    Kind,
    control::ControlRequest,
    tool::{self, EntryPath},
};

macro_rules! world {
    () => {
        match World::new() {
            Some(world) => world,
            None => return,
        }
    };
}

/// How often something is tried that the kernel may spoil by itself, with the pages of others on a busy machine.
const ATTEMPTS: u8 = 20;
const MAPPED_BYTES: usize = 16 * 4096;

fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn wo(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

fn byte_at(file: &File, at: u64) -> u8 {
    let mut b = [0];
    file.read_exact_at(&mut b, at).unwrap();
    b[0]
}

#[test]
fn mappings_and_calls_see_each_other() {
    let mut w = world!();
    let f = w.path("f");
    fs::write(&f, vec![b'.'; 3 * 4096 + 10]).unwrap();
    let (ro, both) = (File::open(&f).unwrap(), rw(&f));
    let reader = Map::new(&ro, 3 * 4096 + 10, false);
    let writer = Map::new(&both, 3 * 4096 + 10, true);
    assert_eq!(reader.get(5000), b'.');
    // write(2) through each kind of open, seen by both mappings and read(2).
    for (i, file) in [(100, &both), (5000, &wo(&f)), (3 * 4096 + 9, &wo(&f))] {
        file.write_all_at(b"W", i as u64).unwrap();
        assert_eq!((reader.get(i), writer.get(i), byte_at(&ro, i as u64)), (b'W', b'W', b'W'), "at {i}");
    }
    // A store through the mapping, seen by read(2) through each kind of open at once.
    writer.set(4097, b'M');
    assert_eq!((reader.get(4097), byte_at(&ro, 4097), byte_at(&both, 4097)), (b'M', b'M', b'M'));
    // A direct write next to it on the same page keeps it.
    wo(&f).write_all_at(b"N", 4098).unwrap();
    assert_eq!((writer.get(4097), writer.get(4098), byte_at(&ro, 4097)), (b'M', b'N', b'M'));
    writer.set(0, b'Z');
    drop((reader, writer, ro, both));
    w.remount();
    let all = fs::read(w.path("f")).unwrap();
    assert_eq!((all[0], all[100], all[4097], all[4098], all[5000]), (b'Z', b'W', b'M', b'N', b'W'));
}

#[test]
fn msync_and_fsync_bring_mappings_home() {
    let w = world!();
    let f = w.path("f");
    fs::write(&f, vec![0; 8192]).unwrap();
    let file = rw(&f);
    let map = Map::new(&file, 8192, true);
    map.set(1, 1);
    map.sync();
    map.set(5000, 2);
    file.sync_all().unwrap();
    map.set(6000, 3);
    w.send(&ControlRequest::Sync).unwrap();
    // Another way to the same bytes that the page cache has no part in.
    w.clone_tree("f", "g", false).unwrap();
    let g = fs::read(w.path("g")).unwrap();
    assert_eq!((g[1], g[5000], g[6000]), (1, 2, 3));
}

/// A database that is open for reading and writing keeps its pages when something else is cloned.
#[test]
fn a_clone_leaves_the_pages_of_other_files_alone() {
    let w = world!();
    fs::create_dir(w.path("empty")).unwrap();
    fs::create_dir(w.path("tree")).unwrap();
    let warm = |name: &str| {
        fs::write(w.path(name), vec![7; 4 << 20]).unwrap();
        let file = rw(&w.path(name));
        let mut all = vec![0; 4 << 20];
        file.read_exact_at(&mut all, 0).unwrap();
        file
    };
    let (beside, inside) = (warm("database"), warm("tree/database"));
    let again = |file: &File| {
        let before = w.requests(Kind::Read);
        let mut all = vec![0; 4 << 20];
        file.read_exact_at(&mut all, 0).unwrap();
        w.requests(Kind::Read) - before
    };
    // What is in the source is written out. Only the daemon of root can have that without dropping the pages.
    let kept = |file, of_source: bool| again(file) == 0 || of_source && !rustix::process::geteuid().is_root();
    // The kernel itself may drop a page now and then, on a busy machine: each attempt begins warm.
    let attempt = |source: &str, round| {
        let _ = (again(&beside), again(&inside));
        w.clone_tree(source, &format!("{source}{round}"), false).unwrap();
        kept(&beside, false) & kept(&inside, source == "tree")
    };
    for source in ["empty", "tree"] {
        assert!((1..=ATTEMPTS).any(|round| attempt(source, round)), "a clone of '{source}' dropped pages");
    }
}

/// Nor does it wait for them: what a mapping elsewhere was told stays in the kernel.
#[test]
fn a_clone_does_not_write_the_mappings_of_other_files() {
    let w = world!();
    // The write-back cache is emptied by a clone.
    if super::common::kept() {
        return;
    }
    fs::create_dir(w.path("src")).unwrap();
    let mapped = |name: &str| {
        fs::write(w.path(name), vec![0; MAPPED_BYTES]).unwrap();
        let file = rw(&w.path(name));
        (Map::new(&file, MAPPED_BYTES, true), file)
    };
    let ((elsewhere, _file), (below, _other)) = (mapped("elsewhere"), mapped("src/below"));
    let writes = |work: &dyn Fn()| {
        let before = w.requests(Kind::Write);
        work();
        w.requests(Kind::Write) - before
    };
    // The kernel may write pages when it likes, and does so where memory is short: what stays in it is seen in one of
    // some attempts, what must go out in each.
    let stayed = (1..=ATTEMPTS).any(|round| {
        for map in [&below, &elsewhere] {
            map.set_in_pages(0, round);
        }
        let copy = format!("copy{round}");
        w.clone_tree("src", &copy, false).unwrap();
        assert_eq!(writes(&|| below.sync()), 0, "what is below the source was not written");
        assert_eq!(fs::read(w.path(&format!("{copy}/below"))).unwrap()[4096], round);
        writes(&|| elsewhere.sync()) > 0
    });
    assert!(stayed, "the pages of another file were written as well, in each of {ATTEMPTS} attempts");
}

#[test]
fn a_clone_has_what_mappings_were_told_before_it() {
    let w = world!();
    fs::create_dir(w.path("d")).unwrap();
    let files: Vec<_> = (0..20)
        .map(|i| {
            let path = w.path(&format!("d/{i}"));
            fs::write(&path, vec![0; 1 << 20]).unwrap();
            let file = rw(&path);
            let map = Map::new(&file, 1 << 20, true);
            (file, map)
        })
        .collect();
    for round in 1..=5u8 {
        for (_, map) in &files {
            map.set_in_pages(7, round);
        }
        let name = format!("clone{round}");
        w.clone_tree("d", &name, false).unwrap();
        for i in 0..20 {
            let all = fs::read(w.path(&format!("{name}/{i}"))).unwrap();
            assert!((0..256).all(|page| all[page * 4096 + 7] == round), "round {round}, file {i}");
        }
        // And the mapping goes on working on the original alone.
        for (_, map) in &files {
            assert_eq!(map.get(7), round);
        }
    }
    assert_eq!(fs::read(w.path("clone1/3")).unwrap()[7], 1);
}

#[test]
fn copy_file_range_copies_what_mappings_were_told() {
    let w = world!();
    fs::write(w.path("src"), vec![0; 1 << 20]).unwrap();
    let src = rw(&w.path("src"));
    let map = Map::new(&src, 1 << 20, true);
    map.set(4096, 9);
    let dst = File::create(w.path("dst")).unwrap();
    let (mut from, mut to) = (0, 0);
    let n = rustix::fs::copy_file_range(&src, Some(&mut from), &dst, Some(&mut to), 1 << 20).unwrap();
    assert_eq!(n, 1 << 20);
    assert!(w.requests(Kind::Copy) > 0, "the kernel copied by itself");
    assert_eq!(fs::read(w.path("dst")).unwrap()[4096], 9);
    // Pages of the destination that were cached before are dropped.
    src.write_all_at(b"new", 10).unwrap();
    let (mut from, mut to) = (8, 0);
    assert_eq!(byte_at(&File::open(w.path("dst")).unwrap(), 2), 0);
    assert_eq!(rustix::fs::copy_file_range(&src, Some(&mut from), &dst, Some(&mut to), 5).unwrap(), 5);
    assert_eq!(fs::read(w.path("dst")).unwrap()[..6], *b"\0\0new\0");
}

#[test]
fn seeking_data_finds_what_mappings_were_told() {
    let w = world!();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(w.path("f")).unwrap();
    file.set_len(1 << 20).unwrap();
    let map = Map::new(&file, 1 << 20, true);
    map.set(512 << 10, 9);
    // SAFETY: the descriptor is open.
    let at = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
    assert!((1..=512 << 10).contains(&at), "data is at {at}, not at half of the file");
}

/// Who syncs the root of the mount syncs everything.
#[test]
fn a_sync_of_the_root_stores_what_the_kernel_keeps_of_all_files() {
    let w = world!();
    fs::create_dir(w.path("d")).unwrap();
    let file = File::create(w.path("d/f")).unwrap();
    file.write_all_at(b"kept", 0).unwrap();
    File::open(w.root()).unwrap().sync_all().unwrap();
    let stored = w.fs().resolve("/d/f".as_ref()).unwrap().ino;
    let data = w.fs().read(FileHandle(0), stored, 0, 100).unwrap();
    w.fs().forget(stored, 1);
    assert_eq!(&data[..], b"kept");
}

/// The kernel returns all references of an inode when it drops it: otherwise removed files would take memory, and space
/// in the store, as long as the mount lasts.
#[test]
fn files_that_are_gone_are_forgotten() {
    const FILES: u64 = 200;
    let w = world!();
    let path = |i: u64| w.path(&format!("f{i}"));
    for i in 0..FILES {
        fs::write(path(i), b"x").unwrap();
    }
    assert!(w.fs().stats().unwrap().inodes_in_memory > FILES);
    (0..FILES).for_each(|i| fs::remove_file(path(i)).unwrap());
    let begin = Instant::now();
    while w.fs().stats().unwrap().inodes_in_memory > FILES / 10 {
        assert!(begin.elapsed() < Duration::from_secs(20), "inodes are kept: {:?}", w.fs().stats());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_clone_is_seen_at_once_where_nothing_was() {
    let w = world!();
    fs::create_dir(w.path("src")).unwrap();
    fs::write(w.path("src/f"), "1").unwrap();
    for i in 0..50 {
        let name = format!("dst{i}");
        // The kernel remembers that there is nothing, and what the directory holds.
        assert_eq!(errno(fs::metadata(w.path(&name))), libc::ENOENT);
        assert_eq!(errno(fs::read(w.path(&format!("{name}/f")))), libc::ENOENT);
        let listed = fs::read_dir(w.root()).unwrap().count();
        let mtime = fs::metadata(w.root()).unwrap().modified().unwrap();
        // Until the clock that times are taken from has ticked.
        std::thread::sleep(Duration::from_millis(11));
        w.clone_tree("src", &name, false).unwrap();
        assert_eq!(fs::read(w.path(&format!("{name}/f"))).unwrap(), b"1");
        assert_eq!(fs::read_dir(w.root()).unwrap().count(), listed + 1);
        assert!(fs::metadata(w.root()).unwrap().modified().unwrap() > mtime);
    }
}

#[test]
fn a_replaced_tree_shows_nothing_of_the_old_one() {
    let w = world!();
    for (dir, content) in [("new", "new content"), ("dst", "old")] {
        fs::create_dir_all(w.path(&format!("{dir}/sub/deep"))).unwrap();
        for i in 0..20 {
            fs::write(w.path(&format!("{dir}/sub/deep/{i}")), content).unwrap();
        }
        fs::write(w.path(&format!("{dir}/only-in-{dir}")), content).unwrap();
    }
    let held = File::open(w.path("dst/sub/deep/3")).unwrap();
    let map_file = File::open(w.path("dst/sub/deep/4")).unwrap();
    let map = Map::new(&map_file, 3, false);
    assert_eq!(map.get(0), b'o');
    let held_dir = File::open(w.path("dst/sub")).unwrap();
    for i in 0..20 {
        assert_eq!(fs::read(w.path(&format!("dst/sub/deep/{i}"))).unwrap(), b"old");
    }
    assert!(w.path("dst/only-in-dst").exists() && !w.path("dst/only-in-new").exists());
    let before = fs::metadata(w.path("dst/sub/deep/1")).unwrap().ino();

    assert_eq!(w.clone_tree("new", "dst", false).unwrap_err().errno(), Some(libc::EEXIST));
    w.clone_tree("new", "dst", true).unwrap();

    assert!(!w.path("dst/only-in-dst").exists() && w.path("dst/only-in-new").exists());
    for i in 0..20 {
        let path = w.path(&format!("dst/sub/deep/{i}"));
        assert_eq!(fs::read(&path).unwrap(), b"new content");
        assert_eq!(fs::metadata(&path).unwrap().len(), 11);
    }
    assert_ne!(fs::metadata(w.path("dst/sub/deep/1")).unwrap().ino(), before);
    // What was open is the old file or an error, never the new bytes under an old name.
    let mut text = Vec::new();
    match (&held).read_to_end(&mut text) {
        Ok(_) => assert!(text == b"old" || text.is_empty(), "{text:?}"),
        Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ESTALE)),
    }
    drop((held, held_dir, map));
    // Writes go to the clone alone.
    fs::write(w.path("dst/sub/deep/1"), "edited").unwrap();
    assert_eq!(fs::read(w.path("new/sub/deep/1")).unwrap(), b"new content");
}

/// The figures had the clone alone, not what its caller waits for before: pages that the kernel writes out.
#[test]
fn the_latency_of_clones_has_what_their_callers_wait_for() {
    let w = world!();
    fs::create_dir(w.path("d")).unwrap();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(w.path("d/f")).unwrap();
    for round in 0..3u8 {
        file.write_all_at(&vec![round; 8 << 20], 0).unwrap();
        let micros = w.clone_tree("d", &format!("c{round}"), false).unwrap();
        let figures = w.fs().stats().unwrap();
        let slowest = figures.clone_latency.quantile(1.0).unwrap();
        assert!(slowest > micros, "{micros} us, and the slowest took less than {slowest}");
        assert_eq!(figures.clones, u64::from(round) + 1);
    }
}

#[test]
fn a_single_file_can_be_replaced_while_it_is_cached() {
    let w = world!();
    fs::write(w.path("a"), vec![1; 300_000]).unwrap();
    fs::write(w.path("b"), vec![2; 200_000]).unwrap();
    assert_eq!(fs::read(w.path("b")).unwrap()[0], 2);
    w.clone_tree("a", "b", true).unwrap();
    assert!(fs::read(w.path("b")).unwrap() == vec![1; 300_000]);
    wo(&w.path("b")).write_all_at(&[3], 5).unwrap();
    assert_eq!((fs::read(w.path("a")).unwrap()[5], fs::read(w.path("b")).unwrap()[5]), (1, 3));
}

#[test]
fn an_open_file_of_a_tree_that_is_gone_has_no_name() {
    let w = world!();
    for replaced in [false, true] {
        for dir in ["d", "other"] {
            fs::create_dir_all(w.path(dir)).unwrap();
        }
        fs::write(w.path("d/f"), b"x").unwrap();
        let file = File::open(w.path("d/f")).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 1);
        match replaced {
            true => w.clone_tree("other", "d", true).map(drop).unwrap(),
            false => w.remove_tree("d").map(drop).unwrap(),
        }
        assert_eq!(file.metadata().unwrap().nlink(), 0, "replaced {replaced}");
    }
}

/// The kernel caches the listing, and no call of its own has removed the directory.
#[test]
fn an_open_directory_that_is_gone_as_a_whole_is_not_listed_from_the_cache() {
    let w = world!();
    for replaced in [false, true] {
        for dir in ["d", "other"] {
            fs::create_dir_all(w.path(dir)).unwrap();
        }
        fs::write(w.path("d/f"), b"x").unwrap();
        let open = File::open(w.path("d")).unwrap();
        let listed = || -> Vec<String> {
            rustix::fs::seek(&open, rustix::fs::SeekFrom::Start(0)).unwrap();
            let dir = rustix::fs::Dir::new(open.try_clone().unwrap());
            let entries = dir.and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let names =
                entries.unwrap_or_default().into_iter().map(|e| e.file_name().to_string_lossy().into());
            names.filter(|name: &String| !name.starts_with('.')).collect()
        };
        for _ in 0..3 {
            assert_eq!(listed(), ["f"]);
        }
        match replaced {
            true => w.clone_tree("other", "d", true).map(drop).unwrap(),
            false => w.remove_tree("d").map(drop).unwrap(),
        }
        assert_eq!(listed(), [""; 0], "replaced {replaced}");
    }
}

#[test]
fn a_removed_tree_is_gone_at_once() {
    let w = world!();
    for round in 0..3 {
        fs::create_dir_all(w.path("d/e/f")).unwrap();
        for i in 0..50 {
            fs::write(w.path(&format!("d/e/f/{i}")), format!("{round}")).unwrap();
        }
        let inside = File::open(w.path("d/e")).unwrap();
        assert_eq!(fs::read_dir(w.path("d/e/f")).unwrap().count(), 50);
        w.remove_tree("d").unwrap();
        assert_eq!(errno(fs::metadata(w.path("d/e/f/7"))), libc::ENOENT);
        assert_eq!(errno(fs::metadata(w.path("d"))), libc::ENOENT);
        assert_eq!(fs::read_dir(w.root()).unwrap().count(), 0);
        drop(inside);
    }
    assert_eq!(w.remove_tree("d").unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn refusals_come_with_the_reason() {
    let w = world!();
    fs::create_dir_all(w.path("d/e")).unwrap();
    let inside = EntryPath::new(&w.path("d"), "e".as_ref()).unwrap();
    let e = tool::clone(&inside, &w.entry_path("d"), true).unwrap_err();
    assert_eq!(e.errno(), Some(libc::EINVAL), "{e}");
    assert!(e.to_string().contains("inside"), "{e}");
    assert_eq!(w.clone_tree("none", "x", false).unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(w.remove_tree("none").unwrap_err().errno(), Some(libc::ENOENT));
    // Not one of ours, and ours on another file system.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = pando_fuse::client::send(File::open(other.path()).unwrap(), &ControlRequest::Probe);
    assert!(matches!(elsewhere, Err(pando_fuse::client::ControlError::NotPando)));
    assert!(rustix::fs::ioctl_getflags(File::open(w.root()).unwrap()).is_err());
}

#[test]
fn small_writes_are_blind_and_do_not_shred_what_is_read_after() {
    let mut w = world!();
    const SIZE: usize = 16 << 20;
    fs::write(w.path("f"), vec![7; SIZE]).unwrap();
    let random = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (SIZE as u64 - 4);
    for (kind, writable_only) in [("write-only", true), ("read-write", false)] {
        w.remount();
        let f = w.path("f");
        let file = if writable_only { wo(&f) } else { rw(&f) };
        let before = w.requests(Kind::Read);
        for i in 0..2000 {
            file.write_all_at(b"blip", random(i)).unwrap();
        }
        // A kernel that keeps what is written reads the rest of each page: that is its price.
        if !super::common::kept() {
            assert_eq!(w.requests(Kind::Read), before, "{kind}: a small write read something");
        }
        if !writable_only {
            // A scan by the same descriptor notices that it is being shredded.
            let mut buf = vec![0; SIZE];
            file.read_exact_at(&mut buf, 0).unwrap();
            let reads = w.requests(Kind::Read) - before;
            assert!(
                reads < 400 || super::common::kept(),
                "{kind}: {reads} reads for a scan by the same descriptor"
            );
            for i in 2000..4000 {
                file.write_all_at(b"blip", random(i)).unwrap();
            }
        }
        drop(file);
        let before = w.requests(Kind::Read);
        let all = fs::read(&f).unwrap();
        let reads = w.requests(Kind::Read) - before;
        assert!(reads < 200 || super::common::kept(), "{kind}: {reads} reads for a scan");
        let last = |at: u64| &all[at as usize..at as usize + 4];
        assert_eq!(last(random(1999)), b"blip");
        // The kernel now and then does not keep some of the pages that it has read ahead, more of them on a busy machine.
        let again = || {
            let before = w.requests(Kind::Read);
            assert!(fs::read(&f).unwrap() == all);
            w.requests(Kind::Read) - before
        };
        let passes: Vec<_> = std::iter::repeat_with(again).take(5).collect();
        assert!(passes[0] <= 8 && passes.contains(&0), "{kind}: {passes:?} reads of what was read once");
    }
}

#[test]
fn a_small_change_of_a_file_of_some_pages_reads_nothing_and_sends_no_page() {
    let mut w = world!();
    fs::write(w.path("f"), vec![7; 100_000]).unwrap();
    w.remount();
    let before = (w.requests(Kind::Read), w.requests(Kind::Write));
    let file = wo(&w.path("f"));
    (0..5).for_each(|i| file.write_all_at(b"blip", i * 20_000 + 5).unwrap());
    assert_eq!((w.requests(Kind::Read), w.requests(Kind::Write)), (before.0, before.1 + 5));
    let all = fs::read(w.path("f")).unwrap();
    assert!(all.len() == 100_000 && all.windows(4).filter(|bytes| bytes == b"blip").count() == 5);
}

#[test]
fn a_reader_never_sees_an_older_value_than_one_written_before() {
    let w = world!();
    let f = w.path("f");
    fs::write(&f, vec![0; 4096]).unwrap();
    let ro = File::open(&f).unwrap();
    let map = Map::new(&ro, 4096, false);
    let written = AtomicU32::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|by_map| {
                let (map, ro, written, done) = (&map, &ro, &written, &done);
                s.spawn(move || {
                    let mut checks = 0u64;
                    // On a busy machine the thread may begin after the last write only.
                    while !done.load(Ordering::Acquire) || checks == 0 {
                        let floor = written.load(Ordering::Acquire);
                        let mut b = [0; 4];
                        if by_map == 1 {
                            // Byte by byte: only the low 24 bits change together rarely enough.
                            b = std::array::from_fn(|i| map.get(i));
                        } else {
                            ro.read_exact_at(&mut b, 0).unwrap();
                        }
                        let seen = u32::from(b[0]);
                        assert!(seen >= floor & 0xff || floor & 0xff > 250, "{seen} after {floor}");
                        checks += 1;
                    }
                    checks
                })
            })
            .collect();
        let file = wo(&f);
        for i in 1..=250u32 {
            file.write_all_at(&[i as u8], 0).unwrap();
            written.store(i, Ordering::Release);
            std::thread::sleep(Duration::from_micros(200));
            assert_eq!(u32::from(byte_at(&ro, 0)), i, "a stale page stayed in the cache");
            assert_eq!(u32::from(map.get(0)), i, "a stale page stayed mapped");
        }
        done.store(true, Ordering::Release);
        for r in readers {
            assert!(r.join().unwrap() > 0);
        }
    });
}

#[test]
fn a_growing_file_is_followed_by_its_readers() {
    let w = world!();
    let f = w.path("log");
    let mut writer = OpenOptions::new().append(true).create(true).open(&f).unwrap();
    let mut reader = File::open(&f).unwrap();
    for i in 0..200 {
        let line = format!("line {i}\n");
        std::io::Write::write_all(&mut writer, line.as_bytes()).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, line);
        assert_eq!(fs::metadata(&f).unwrap().len(), reader.metadata().unwrap().len());
    }
}

/// Whoever embeds the server may use the mount himself. A thread of the server that closes its copies of the process's
/// descriptors then has the kernel ask for what close asks for, and no request may wait for that thread.
#[test]
fn the_process_of_the_server_holds_changed_files_while_others_are_opened() {
    let w = world!();
    let large = w.path("large");
    fs::write(&large, vec![1; 128 << 10]).unwrap();
    for round in 0..20u8 {
        let changed = File::create(w.path(&format!("changed{round}"))).unwrap();
        changed.write_all_at(&[round; 100], 0).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let large = large.clone();
        // A thread of its own, so that the mount can be cut off if nothing comes of it.
        std::thread::spawn(move || {
            let file = wo(&large);
            file.write_all_at(&[round; 100], 1000).unwrap();
            let _ = tell.send(());
        });
        if told.recv_timeout(Duration::from_secs(20)).is_err() {
            // To close it would wait as well; the end of the mount by force does not.
            std::mem::forget(changed);
            panic!("an open waits for the close of another file");
        }
    }
}

#[test]
fn several_threads_of_requests_work_too() {
    let settings = pando_fuse::Settings { threads: 4, ..Default::default() };
    let Some(w) = World::with(settings) else { return };
    std::thread::scope(|s| {
        for t in 0..4 {
            let w = &w;
            s.spawn(move || {
                let dir = format!("t{t}");
                fs::create_dir(w.path(&dir)).unwrap();
                for i in 0..100 {
                    let path = w.path(&format!("{dir}/{i}"));
                    fs::write(&path, format!("{t}/{i}")).unwrap();
                    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{t}/{i}"));
                }
                w.clone_tree(&dir, &format!("c{t}"), false).unwrap();
                assert_eq!(fs::read_dir(w.path(&format!("c{t}"))).unwrap().count(), 100);
            });
        }
    });
}

/// What the file system has given an answer about may be on its way to the kernel when a tree is changed, and would
/// show what was before. It is waited for, but not for ever: here it never comes.
#[test]
fn a_change_of_a_tree_waits_for_answers_on_their_way_and_for_a_second_at_most() {
    let world = world!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root changes trees at once");
        return;
    }
    fs::create_dir_all(world.path("t/d")).unwrap();
    fs::write(world.path("t/d/known"), "x").unwrap();
    let dir = fs::metadata(world.path("t/d")).unwrap().ino();
    let lost = world.fs().mknod(&Caller::root(), dir, "lost".as_ref(), 0o100644, 0).unwrap().ino;
    let change = |mode| {
        let change = TreeChange { mode: ModeChange::parse(mode, 0), ..TreeChange::default() };
        let begin = Instant::now();
        tool::change_tree(&File::open(world.path("t")).unwrap(), &change).unwrap().expect("at once");
        let took = begin.elapsed();
        let mode = |name: &str| fs::metadata(world.path(name)).unwrap().mode() & 0o777;
        (took, mode("t/d/known"))
    };
    let (took, mode) = change("go=");
    assert_eq!(mode, 0o600);
    let second = Duration::from_secs(1);
    assert!((second..20 * second).contains(&took), "{took:?}");
    // The kernel lets it go: nothing is on its way.
    world.fs().forget(lost, 1);
    let times = (0..3).map(|_| {
        let (took, mode) = change("g=u,o=");
        assert_eq!(mode, 0o660);
        took
    });
    // The machine may be busy.
    let took = times.min().unwrap();
    assert!(took < second, "{took:?}");
    assert_eq!(fs::metadata(world.path("t/d/lost")).unwrap().mode() & 0o777, 0o660);
}
