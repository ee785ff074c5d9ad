//! What forks and merges cost: by what differs, whatever the size of the trees; and one that takes very much.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(unsafe_code)] // an allocator that counts

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use common::{World, check_keys, options, pattern};
use pando_db::device::{Device, MemDevice};
use pando_fs::*;

/// Files in a directory of the trees here, a count.
const FILES_OF_DIR: u64 = 100;

/// Bytes that are allocated, now and at most.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all is done by the system's allocator; only sums are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: RwLock<()> = RwLock::new(());

/// For a test that counts what its own device is asked.
fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// For a test that counts memory, which is that of the whole process: no other runs beside it.
fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A file system with `files` files below `/s`.
fn tree(files: u64) -> (World, Arc<MemDevice>) {
    tree_with(files, FormatOptions::default())
}

fn tree_with(files: u64, options: FormatOptions) -> (World, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::new(4 << 30));
    Fs::format(device.clone(), &options.node_size(64 << 10)).unwrap();
    let w = World::over(open(&device));
    fill(&w, files, 200);
    (w, device)
}

fn fill(w: &World, files: u64, bytes: usize) {
    w.mkdir("/s");
    for i in 0..files {
        if i % FILES_OF_DIR == 0 {
            w.mkdir(&format!("/s/d{}", i / FILES_OF_DIR));
        }
        w.put(&format!("/s/{}", name(i)), &pattern(bytes, i as u8));
    }
}

fn name(file: u64) -> String {
    format!("d{}/f{file}", file / FILES_OF_DIR)
}

fn open(device: &Arc<MemDevice>) -> Fs {
    Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap()
}

fn merge(w: &World) -> Result<MergeReport> {
    w.merge("/f", "/s", MergeOptions::default())
}

/// Reads and bytes to the log of a cold merge of ten files that were changed in the fork of a tree with `files` files,
/// ten in the tree, and a directory that came; of the next merge, of nothing; and reads of going through one of the trees.
fn costs(files: u64) -> ((u64, u64), (u64, u64), u64) {
    let (w, device) = tree(files);
    w.fork("/s", "/f");
    let changed: Vec<u64> = (0..10).map(|i| files / 10 * i + files / 20).collect();
    for &file in &changed {
        w.write_at(&format!("/f/{}", name(file)), 3, b"fork").unwrap();
        w.write_at(&format!("/s/{}", name(file + 1)), 3, b"tree").unwrap();
    }
    w.mkdir("/f/new");
    for i in 0..files / 10 {
        w.put(&format!("/f/new/{i}"), b"came");
    }
    w.fs.close().unwrap();
    let w = World::over(open(&device));
    w.on("/f", |_| w.on("/s", |_| Ok(()))).unwrap();
    let measured = || {
        let before = device.stats();
        let report = merge(&w).unwrap();
        w.fs.db().sync().unwrap();
        let after = device.stats();
        assert!(report.merged);
        (report.changes.len(), (after.reads - before.reads, after.write_bytes - before.write_bytes))
    };
    let (changes, first) = measured();
    assert_eq!(changes, 11, "ten files and a directory");
    for &file in &changed {
        assert_eq!(w.get(&format!("/s/{}", name(file))).unwrap()[3..7], *b"fork");
        assert_eq!(w.get(&format!("/s/{}", name(file + 1))).unwrap()[3..7], *b"tree");
    }
    assert_eq!(w.names("/s/new").len() as u64, files / 10);
    let (changes, second) = measured();
    assert_eq!(changes, 0);
    w.fs.close().unwrap();
    let w = World::over(open(&device));
    let before = device.stats().reads;
    for path in w.walk("/s").into_iter().filter(|(_, a)| a.kind == FileKind::Regular).map(|(path, _)| path) {
        w.get(&path).unwrap();
    }
    (first, second, device.stats().reads - before)
}

#[test]
fn a_merge_costs_what_differs() {
    let _turn = beside_others();
    let (small, large) = (costs(5_000), costs(50_000));
    println!(
        "reads and bytes logged, of a merge and the next, and reads of a tree: 5,000 files {small:?}, 50,000 {large:?}"
    );
    // For each changed place a page more a level, in two regions of three trees.
    assert!(large.0.0 <= small.0.0 + 2 * 3 * 21, "{small:?} {large:?}");
    assert!(large.0.0 * 5 < large.2, "a merge goes through what is the same: {large:?}");
    assert!(large.0.1 <= small.0.1 + (8 << 10), "{small:?} {large:?}");
    assert!(large.1.0 <= small.1.0 + 20 && large.1.1 <= 16 << 10, "{small:?} {large:?}");
}

/// Each file has changed in the fork, one by one, and every third is gone: the longest plan that such a tree can have.
#[test]
fn a_merge_of_everything_is_right_and_all_or_nothing() {
    let _turn = beside_others();
    let files = if std::env::var_os("PANDO_FULL").is_some() { 70_000 } else { 12_000 };
    let (w, device) = tree(files);
    w.fork("/s", "/f");
    for i in 0..files {
        match i % 3 {
            0 => w.unlink(&format!("/f/{}", name(i))).unwrap(),
            _ => _ = w.write_at(&format!("/f/{}", name(i)), 0, b"changed").unwrap(),
        }
    }
    // One conflict, and nothing is done.
    w.write_at(&format!("/s/{}", name(1)), 0, b"differs").unwrap();
    let before = w.walk("/s");
    let report = merge(&w).unwrap();
    assert!(!report.merged);
    let conflicts = report.changes.iter().filter(|c| matches!(c.kind, MergeKind::Conflict(_)));
    assert_eq!(conflicts.count(), 1);
    assert_eq!(w.walk("/s"), before);
    w.write_at(&format!("/s/{}", name(1)), 0, b"changed").unwrap();
    let started = std::time::Instant::now();
    let report = merge(&w).unwrap();
    println!("{} changes merged in {:?}", report.changes.len(), started.elapsed());
    // Of file 1 both sides have made the same.
    assert_eq!(report.changes.len() as u64, files - 1);
    w.fs.close().unwrap();
    let w = World::over(open(&device));
    for i in 0..files {
        let path = format!("/s/{}", name(i));
        match i % 3 {
            0 => assert!(!w.exists(&path)),
            _ => assert_eq!(w.get(&path).unwrap()[..7], *b"changed"),
        }
    }
}

/// A batch takes a quarter of the log, and this one would be more, though it has fewer changes than are made at once.
#[test]
fn a_merge_of_more_than_a_batch_holds_is_made_beside_the_tree() {
    let _turn = beside_others();
    let files = 4000;
    let (w, device) = tree_with(files, FormatOptions::default().log_size(1 << 20));
    w.fork("/s", "/f");
    for i in 0..files {
        w.write_at(&format!("/f/{}", name(i)), 0, b"changed").unwrap();
    }
    let report = merge(&w).unwrap();
    assert!(report.merged);
    assert_eq!(report.changes.len() as u64, files);
    w.fs.close().unwrap();
    let w = World::over(open(&device));
    for i in 0..files {
        assert_eq!(w.get(&format!("/s/{}", name(i))).unwrap()[..7], *b"changed");
    }
    assert!(merge(&w).unwrap().changes.is_empty());
    check_keys(&w);
}

/// Bytes of a path, about, of the merge with long ones.
const LONG_PATH_BYTES: usize = 3000;
/// How often a plan counts each of its paths, a count: three of a change, two times.
const COPIES_OF_PATHS: usize = 6;

/// What a plan takes is counted, so that no user takes it all: it follows the paths, which may be long.
#[test]
fn a_plan_of_long_paths_takes_what_is_counted_and_no_more_than_a_user_may_have() {
    let _alone = alone();
    const FILES: usize = 4000;
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let open = |most| {
        let options = options().cache_bytes(16 << 20).merge_steps(1000).merge_plan_bytes(most);
        World::over(Fs::open(device.clone() as Arc<dyn Device>, options).unwrap())
    };
    let w = open(1 << 30);
    let mut dir = "/s".to_owned();
    w.mkdir(&dir);
    for _ in 0..LONG_PATH_BYTES / 250 {
        dir = format!("{dir}/{}", "d".repeat(250));
        w.mkdir(&dir);
    }
    (0..FILES).for_each(|i| _ = w.put(&format!("{dir}/{i}"), b"old"));
    w.fork("/s", "/f");
    let there = dir.replacen("/s", "/f", 1);
    (0..FILES).for_each(|i| _ = w.write_at(&format!("{there}/{i}"), 0, b"new").unwrap());
    let own = SetAttr { uid: Some(1000), ..SetAttr::default() };
    for path in w.walk("/").into_keys().filter(|path| path != "/") {
        w.on(&path, |a| w.fs.setattr(&w.me, a.ino, &own)).unwrap();
    }
    w.fs.close().unwrap();
    drop(w);
    let merged = |most, user, dry_run| {
        let w = open(most);
        let before = NOW.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let o = MergeOptions { dry_run, ..MergeOptions::default() };
        let done =
            w.on("/f", |f| w.on("/s", |s| w.fs.merge(user, f.ino, s.ino, o).map(|(report, _)| report)));
        (done.map(|report| report.changes.len()), PEAK.load(Ordering::Relaxed) - before)
    };
    // What is counted is more than half of what it takes, and not less than that.
    let (done, planned) = merged(2 * LONG_PATH_BYTES * COPIES_OF_PATHS * FILES, Some(1000), true);
    assert_eq!(done.unwrap(), FILES);
    let e = merged(planned / 4, Some(1000), true).0.unwrap_err();
    assert_eq!(e.errno(), rustix::io::Errno::FBIG.raw_os_error(), "{e}");
    assert_eq!(merged(planned / 4, None, true).0.unwrap(), FILES, "root may");
    let (done, carried_out) = merged(usize::MAX, Some(1000), false);
    assert_eq!(done.unwrap(), FILES);
    println!("{} bytes a change planned, {} carried out", planned / FILES, carried_out / FILES);
    let counted = LONG_PATH_BYTES * COPIES_OF_PATHS * FILES;
    assert!(carried_out < counted + BYTES_BESIDE && counted < 2 * carried_out, "{carried_out} {counted}");
}

/// Most memory of a merge for each change, bytes: the plan, what is told, and where things come to.
const BYTES_OF_CHANGE: usize = 400;
/// Most beside that, bytes: the cache, batches, and what waits in the engine.
const BYTES_BESIDE: usize = 48 << 20;

#[test]
fn a_merge_of_any_size_is_right_and_takes_memory_by_its_changes() {
    let _alone = alone();
    let files: u64 = if std::env::var_os("PANDO_FULL").is_some() { 1_000_000 } else { 100_000 };
    let dir = std::env::temp_dir().join(format!("pando-fork-costs-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let image = dir.join("image");
    let mount = || Fs::open(image.as_path(), options().cache_bytes(16 << 20)).unwrap();
    Fs::format(image.as_path(), &FormatOptions::default().size(16 << 30).node_size(256 << 10)).unwrap();
    let w = World::over(mount());
    // Directories are clones of one, since making so many files takes long.
    fill(&w, FILES_OF_DIR, 20);
    for dir in 1..files / FILES_OF_DIR {
        w.clone_tree("/s/d0", &format!("/s/d{dir}"), false).unwrap();
    }
    let name = |i: u64| format!("d{}/f{}", i / FILES_OF_DIR, i % FILES_OF_DIR);
    w.fork("/s", "/f");
    for i in 0..files {
        match i % 5 {
            0 => w.unlink(&format!("/f/{}", name(i))).unwrap(),
            1 => _ = w.create(&format!("/f/{}.new", name(i))).unwrap(),
            _ => _ = w.write_at(&format!("/f/{}", name(i)), 0, b"changed").unwrap(),
        }
    }
    w.fs.close().unwrap();
    drop(w);
    let w = World::over(mount());
    let (before, started) = (NOW.load(Ordering::Relaxed), std::time::Instant::now());
    PEAK.store(before, Ordering::Relaxed);
    let report = merge(&w).unwrap();
    let took = started.elapsed();
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    println!("{files} changes merged in {took:?}, {peak} bytes at most");
    assert!(report.merged);
    assert_eq!(report.changes.len() as u64, files);
    assert!(peak < BYTES_BESIDE + files as usize * BYTES_OF_CHANGE, "{peak} bytes");
    w.fs.close().unwrap();
    drop(w);
    let w = World::over(mount());
    for i in 0..files {
        let path = format!("/s/{}", name(i));
        match i % 5 {
            0 => assert!(!w.exists(&path)),
            1 => assert!(
                w.exists(&format!("{path}.new"))
                    && w.get(&path).unwrap() == pattern(20, (i % FILES_OF_DIR) as u8)
            ),
            _ => assert_eq!(w.get(&path).unwrap()[..7], *b"changed"),
        }
    }
    assert_eq!(w.names("/s").len() as u64, files / FILES_OF_DIR);
    w.fs.check(|problem| panic!("{problem}")).unwrap();
    w.fs.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
