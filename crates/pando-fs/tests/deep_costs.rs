//! What very deep directories cost: as much as their keys are long, which is all that there is to read.
//!
//! A key has the whole path, so the keys of n directories below each other have some n * n bytes together. Counted are
//! the bytes that are allocated, by an allocator of this program's own, and what is in memory at once.
#![allow(clippy::unwrap_used, unsafe_code)]

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::OsStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use common::options;
use pando_db::device::MemDevice;
use pando_fs::*;

/// Counts what is allocated: all of it, what is in memory now, and the most of that.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static NOW: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does all of it; numbers are counted beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as u64;
        ALLOCATED.fetch_add(bytes, Relaxed);
        MOST.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: as of the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Held by a test: what others allocate beside it would be counted too.
static ALONE: Mutex<()> = Mutex::new(());

#[global_allocator]
static HEAP: Counting = Counting;

/// Bytes that `work` allocates, and the most that it has of them at once.
fn counted(work: impl FnOnce()) -> (u64, u64) {
    let (allocated, now) = (ALLOCATED.load(Relaxed), NOW.load(Relaxed));
    MOST.store(now, Relaxed);
    work();
    (ALLOCATED.load(Relaxed) - allocated, MOST.load(Relaxed) - now)
}

/// A chain of so many directories, each with a file of a hundred bytes in it, closed.
fn chain(depth: u64) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let (me, mut dir) = (Caller::root(), ROOT);
    for _ in 0..depth {
        let (file, handle) = fs.create(&me, dir, OsStr::new("f"), 0o644, common::O_RDWR).unwrap();
        fs.write(handle, file.ino, 0, &[7; 100], false).unwrap();
        fs.release(file.ino, handle);
        fs.forget(file.ino, 1);
        dir = fs.mkdir(&me, dir, OsStr::new("d"), 0o755).unwrap().ino;
    }
    fs.close().unwrap();
    device
}

/// Goes down to the end as a check of each path does, with all that is above referenced.
fn walk(fs: &Fs, depth: u64) {
    let mut way = vec![ROOT];
    for _ in 0..depth {
        let &dir = way.last().unwrap();
        let handle = fs.opendir(dir).unwrap();
        let entries = fs.readdir(handle, dir, 0, 100).unwrap();
        fs.releasedir(handle);
        assert_eq!(entries.len(), 4, "itself, the one above, a directory and a file");
        let file = fs.lookup(dir, OsStr::new("f")).unwrap();
        let handle = fs.open_file(&Caller::root(), file.ino, 0).unwrap();
        assert_eq!(fs.read(handle, file.ino, 0, 200).unwrap().len(), 100);
        fs.release(file.ino, handle);
        fs.forget(file.ino, 1);
        way.push(fs.lookup(dir, OsStr::new("d")).unwrap().ino);
    }
}

/// What a check, and a walk down, of a chain allocate for each byte of its keys, and the most that a check has at once.
fn costs(depth: u64) -> (f64, f64, u64) {
    let fs = Fs::open(chain(depth), options().read_only(true)).unwrap();
    // Three keys of each level: of the directory, of the file, and of its data.
    let keys: u64 = (1..=depth).map(|level| 3 * (3 * level + 5)).sum();
    // The first fills the cache of the engine.
    for _ in 0..2 {
        let report = fs.check(|problem| panic!("{problem}")).unwrap();
        assert_eq!((report.directories, report.files, report.bytes), (depth + 1, depth, 100 * depth));
    }
    let (checked, most) = counted(|| _ = fs.check(|problem| panic!("{problem}")).unwrap());
    let (walked, _) = counted(|| walk(&fs, depth));
    let of_keys = |bytes: u64| bytes as f64 / keys as f64;
    println!(
        "{depth} levels, {keys} B of keys: for each a check allocates {:.2} B ({most} at once), a walk {:.2} B",
        of_keys(checked),
        of_keys(walked)
    );
    (of_keys(checked), of_keys(walked), most)
}

/// A check kept the path of each level, and took each key apart from the root on; a walk held a lock of each level. In
/// the engine a page had two or three entries, and the headers of nodes were as long as all keys together.
#[test]
fn deep_directories_are_checked_for_what_their_keys_are_long() {
    let _alone = ALONE.lock();
    for depth in [1_000, 4_000] {
        let (checked, walked, most) = costs(depth);
        assert!(checked < 2.0, "{depth} levels: {checked:.2} B are allocated for each byte of the keys");
        assert!(walked < 24.0, "{depth} levels: a walk allocates {walked:.2} B for each byte of the keys");
        let longest = 3 * depth + 5;
        assert!(
            most < 32 * longest + 32_768,
            "{depth} levels: {most} B in memory, the longest key has {longest}"
        );
    }
}

/// Bytes of a file for which its map has a piece.
const PIECE: u64 = 8 << 20;

/// A new file with a block in so many pieces of its map, open.
fn with_holes(fs: &Fs, dir: Ino, name: &str, pieces: u64) -> (Ino, FileHandle) {
    let (file, handle) = fs.create(&Caller::root(), dir, OsStr::new(name), 0o644, common::O_RDWR).unwrap();
    for piece in 0..pieces {
        fs.write(handle, file.ino, piece * PIECE + PIECE / 2, b"x", false).unwrap();
    }
    (file.ino, handle)
}

/// Each file with holes that was only looked at kept its whole map in memory, as long as the kernel knew it.
#[test]
fn many_copies_of_a_file_with_holes_are_looked_at_in_little_memory() {
    const PIECES: u64 = 20_000;
    const COPIES: u64 = 100;
    let _alone = ALONE.lock();
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let fs = Fs::open(device, options()).unwrap();
    let me = Caller::root();
    let dir = fs.mkdir(&me, ROOT, OsStr::new("d"), 0o755).unwrap().ino;
    let (file, handle) = with_holes(&fs, dir, "f", PIECES);
    fs.release(file, handle);
    let is = fs.getattr(file).unwrap();
    assert_eq!(is.blocks, PIECES * BLOCK_SIZE / 512 - (BLOCK_SIZE / 512 - 1), "the last one is short");
    for copy in 0..COPIES {
        let name = format!("c{copy}");
        fs.clone_tree(&me, (ROOT, OsStr::new("d")), (ROOT, OsStr::new(&name)), false).unwrap();
    }
    fs.sync().unwrap();
    let before = NOW.load(Relaxed);
    let mut copies = Vec::new();
    for copy in 0..COPIES {
        let dir = fs.lookup(ROOT, OsStr::new(&format!("c{copy}"))).unwrap().ino;
        let attr = fs.lookup(dir, OsStr::new("f")).unwrap();
        assert_eq!((attr.size, attr.blocks), (is.size, is.blocks));
        copies.push(attr.ino);
    }
    let looked = NOW.load(Relaxed).saturating_sub(before);
    // Where data begins and ends is asked of each, and each is written to.
    for ino in &copies {
        assert_eq!(fs.seek(*ino, PIECE, Seek::Data).unwrap(), PIECE + PIECE / 2);
        fs.write(FileHandle(0), *ino, 3 * PIECE, b"y", false).unwrap();
        assert_eq!(fs.seek(*ino, 3 * PIECE + BLOCK_SIZE, Seek::Hole).unwrap(), 3 * PIECE + BLOCK_SIZE);
    }
    let used = NOW.load(Relaxed).saturating_sub(before);
    for ino in &copies {
        assert_eq!(fs.getattr(*ino).unwrap().blocks, is.blocks + BLOCK_SIZE / 512);
    }
    println!("{COPIES} maps of {PIECES} pieces: {looked} B once looked at, {used} B once written to");
    assert!(looked < 32 << 20 && used < 64 << 20, "{looked} B once looked at, {used} B once written to");
    fs.check(|problem| panic!("{problem}")).unwrap();
}

/// Where the maps of two files did not fit into what all may take, a write to one took the map of the other out of
/// memory, so that writes in turn read a whole map each.
#[test]
fn writes_in_turn_to_files_with_holes_do_not_read_their_whole_maps() {
    const PIECES: u64 = 3_000;
    const FILES: u64 = 3;
    const WRITES: u64 = 300;
    let _alone = ALONE.lock();
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    // Of 8 MiB the maps may take 256 KiB, and each of these takes 400.
    let fs = Fs::open(device, options().cache_bytes(8 << 20)).unwrap();
    let mut files = Vec::new();
    for file in 0..FILES {
        files.push(with_holes(&fs, ROOT, &format!("f{file}"), PIECES));
    }
    fs.sync().unwrap();
    let before = files.iter().map(|(ino, _)| fs.getattr(*ino).unwrap().blocks).collect::<Vec<_>>();
    let (allocated, _) = counted(|| {
        for write in 0..WRITES {
            for (ino, handle) in &files {
                fs.write(*handle, *ino, (write * 7 % PIECES) * PIECE, b"y", false).unwrap();
            }
        }
    });
    let each = allocated / (WRITES * FILES);
    println!("a write to one of {FILES} files with maps of {PIECES} pieces allocates {each} B");
    assert!(each < 32 << 10, "{each} B are allocated for a write: a map of {PIECES} pieces is read");
    for ((ino, _), before) in files.iter().zip(before) {
        assert_eq!(fs.getattr(*ino).unwrap().blocks, before + WRITES * BLOCK_SIZE / 512);
    }
    fs.check(|problem| panic!("{problem}")).unwrap();
}
