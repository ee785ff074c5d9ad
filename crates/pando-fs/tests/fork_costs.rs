//! What forks and merges cost: by what differs, whatever the size of the trees; and one that takes very much.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;

use common::{World, check_keys, options, pattern};
use pando_db::device::{Device, MemDevice};
use pando_fs::*;

/// Files in a directory of the trees here, a count.
const FILES_OF_DIR: u64 = 100;

/// A file system with `files` files below `/s`.
fn tree(files: u64) -> (World, Arc<MemDevice>) {
    tree_with(files, FormatOptions::default())
}

fn tree_with(files: u64, options: FormatOptions) -> (World, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::new(4 << 30));
    Fs::format(device.clone(), &options.node_size(64 << 10)).unwrap();
    let w = World::over(open(&device));
    w.mkdir("/s");
    for i in 0..files {
        if i % FILES_OF_DIR == 0 {
            w.mkdir(&format!("/s/d{}", i / FILES_OF_DIR));
        }
        w.put(&format!("/s/{}", name(i)), &pattern(200, i as u8));
    }
    (w, device)
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
    let files = if std::env::var_os("PANDO_FULL").is_some() { 70_000 } else { 20_000 };
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

/// A batch takes a quarter of the log. The refusal names the way out, and that works.
#[test]
fn a_merge_of_more_than_a_batch_holds_says_so_and_changes_nothing() {
    let files = 4000;
    let (w, _device) = tree_with(files, FormatOptions::default().log_size(1 << 20));
    w.fork("/s", "/f");
    for i in 0..files {
        w.write_at(&format!("/f/{}", name(i)), 0, b"changed").unwrap();
    }
    let before = w.walk("/s");
    let refused = merge(&w).unwrap_err();
    assert_eq!(refused.errno(), rustix::io::Errno::FBIG.raw_os_error(), "{refused}");
    assert!(refused.to_string().contains("4000 changes are more than one merge can do"), "{refused}");
    assert_eq!(w.walk("/s"), before);
    assert_eq!(w.get("/s/d0/f1").unwrap(), pattern(200, 1));
    for i in 0..files * 9 / 10 {
        w.write_at(&format!("/s/{}", name(i)), 0, b"changed").unwrap();
    }
    let report = merge(&w).unwrap();
    assert!(report.merged);
    assert_eq!(report.changes.len() as u64, files / 10);
    for i in 0..files {
        assert_eq!(w.get(&format!("/s/{}", name(i))).unwrap()[..7], *b"changed");
    }
    check_keys(&w);
}
