//! Listings that the kernel keeps: they cost nothing to read again, and none is ever older than what has happened.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use super::common::World;
use pando_fuse::{
    Kind,
    tool::{self, EntryPath},
};

/// Names in a directory, in order.
fn listed(path: &Path) -> Vec<String> {
    let names = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn a_kept_listing_follows_clones_removals_and_changes() {
    let Some(w) = World::new() else { return };
    fs::create_dir_all(w.path("d/tree")).unwrap();
    fs::write(w.path("d/file"), b"1").unwrap();
    let d = w.path("d");
    let twice = || {
        let first = listed(&d);
        // Nobody waits for RELEASEDIR, and until it has been done the directory counts as open, and is not kept.
        let begin = std::time::Instant::now();
        loop {
            let before = w.requests(Kind::Readdir);
            assert_eq!(listed(&d), first);
            if w.requests(Kind::Readdir) == before {
                return first;
            }
            assert!(begin.elapsed() < std::time::Duration::from_secs(20), "the kernel never keeps it");
        }
    };
    assert_eq!(twice(), ["file", "tree"]);
    tool::clone(&entry(&d, "tree"), &entry(&d, "copy"), false).unwrap();
    assert_eq!(twice(), ["copy", "file", "tree"]);
    tool::clone(&entry(&d, "file"), &entry(&d, "copy/inside"), false).unwrap_err();
    tool::clone(&entry(&d, "file"), &entry(&d.join("copy"), "inside"), false).unwrap();
    assert_eq!(listed(&d.join("copy")), ["inside"]);
    tool::remove(&entry(&d, "copy"), true).unwrap();
    assert_eq!(twice(), ["file", "tree"]);
    fs::write(d.join("new"), b"2").unwrap();
    assert_eq!(twice(), ["file", "new", "tree"]);
    fs::rename(d.join("new"), d.join("renamed")).unwrap();
    assert_eq!(twice(), ["file", "renamed", "tree"]);
    fs::remove_file(d.join("renamed")).unwrap();
    assert_eq!(twice(), ["file", "tree"]);
}

fn entry(dir: &Path, name: &str) -> EntryPath {
    EntryPath::new(dir, name.as_ref()).unwrap()
}

#[test]
fn an_open_directory_shows_a_clone_when_it_is_read_again() {
    let Some(w) = World::new() else { return };
    fs::create_dir_all(w.path("d/tree")).unwrap();
    let d = w.path("d");
    let count = |dir: &mut rustix::fs::Dir| dir.by_ref().filter(|e| e.is_ok()).count();
    let mut open = rustix::fs::Dir::new(File::open(&d).unwrap()).unwrap();
    let mut behind = rustix::fs::Dir::new(File::open(&d).unwrap()).unwrap();
    assert_eq!(count(&mut open), 3);
    // One is in the middle of it.
    assert!(behind.next().is_some());
    for round in 0..5 {
        tool::clone(&entry(&d, "tree"), &entry(&d, &format!("copy{round}")), false).unwrap();
        open.rewind();
        assert_eq!(count(&mut open), 4 + round);
        assert_eq!(listed(&d).len(), 2 + round);
    }
    drop(behind);
    tool::remove(&entry(&d, "copy0"), true).unwrap();
    open.rewind();
    assert_eq!(count(&mut open), 7);
    drop(open);
    assert_eq!(listed(&d), ["copy1", "copy2", "copy3", "copy4", "tree"]);
    assert_eq!(listed(&d), ["copy1", "copy2", "copy3", "copy4", "tree"]);
}

/// An entry that is made behind a listing tells: whoever looks for more finds it.
#[test]
fn a_small_directory_is_looked_through_once_for_a_listing() {
    let Some(w) = World::new() else { return };
    fs::create_dir(w.path("d")).unwrap();
    for name in ["a", "b"] {
        fs::write(w.path("d").join(name), b"").unwrap();
    }
    let mut open = rustix::fs::Dir::new(File::open(w.path("d")).unwrap()).unwrap();
    // Reads all, as it fits the buffer. The kernel asks once more for the end.
    assert!(open.next().is_some());
    let before = w.requests(Kind::Readdir);
    fs::write(w.path("d/c"), b"").unwrap();
    assert_eq!(open.by_ref().filter(|e| e.is_ok()).count(), 3, "the end was known");
    assert_eq!(w.requests(Kind::Readdir), before + 1);
    open.rewind();
    assert_eq!(open.by_ref().filter(|e| e.is_ok()).count(), 5);
    drop(open);
    for _ in 0..2 {
        assert_eq!(listed(&w.path("d")), ["a", "b", "c"]);
    }
}

/// The kernel holds the lock of the directory while it waits for entries, and a program that makes one waits for it.
#[test]
fn a_directory_is_listed_in_small_steps_while_others_make_entries_in_it() {
    let Some(w) = World::new() else { return };
    let d = w.path("d");
    fs::create_dir(&d).unwrap();
    (0..3000).for_each(|i| drop(File::create(d.join(format!("f{i:04}"))).unwrap()));
    // Entries of each getdents call until the end, with a call of `between` behind each.
    let steps = |between: &dyn Fn(usize)| {
        let mut buffer = Vec::with_capacity(64 << 10);
        let open = File::open(&d).unwrap();
        let mut dir = rustix::fs::RawDir::new(&open, buffer.spare_capacity_mut());
        let (mut steps, mut step) = (Vec::new(), 0);
        while let Some(entry) = dir.next() {
            entry.unwrap();
            step += 1;
            if dir.is_buffer_empty() {
                steps.push(std::mem::take(&mut step));
                between(steps.len());
            }
        }
        steps
    };
    let alone = steps(&|_| ());
    assert_eq!(alone.iter().sum::<i32>(), 3002, "{alone:?}");
    assert!(alone.len() < 8, "few long steps: {alone:?}");
    let beside = steps(&|step| {
        fs::write(d.join("new"), b"").unwrap();
        (step % 2 == 0).then(|| fs::remove_file(d.join("new")).unwrap());
    });
    let first = beside[0];
    assert!(beside[1..].iter().all(|step| *step <= 256 && *step < first), "short steps: {beside:?}");
    assert!((3002..=3003).contains(&beside.iter().sum()), "none is lost or repeated: {beside:?}");
    let again = steps(&|_| ());
    assert!(again.len() < 20, "the steps are long again: {again:?}");
}

#[test]
fn the_listing_of_a_directory_that_has_moved_names_its_new_parent() {
    let Some(w) = World::new() else { return };
    for dir in ["a/sub", "b", "c"] {
        fs::create_dir_all(w.path(dir)).unwrap();
    }
    let parent_of = |path: &str| {
        let dir = rustix::fs::Dir::new(File::open(w.path(path)).unwrap()).unwrap();
        // To the end: the kernel keeps no listing of which it has not seen that.
        let all: Vec<_> = dir.filter_map(Result::ok).collect();
        all.iter().find(|e| e.file_name().to_bytes() == b"..").unwrap().ino()
    };
    let ino = |path: &str| fs::metadata(w.path(path)).unwrap().ino();
    assert_eq!(parent_of("a/sub"), ino("a"));
    fs::rename(w.path("a/sub"), w.path("b/sub")).unwrap();
    assert_eq!(parent_of("b/sub"), ino("b"));
    assert_eq!(parent_of("b/sub"), ino("b"));
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    fs::create_dir(w.path("c/other")).unwrap();
    // Until the kernel keeps both listings, if it keeps any: nobody waits for RELEASEDIR.
    for _ in 0..100 {
        let before = w.requests(Kind::Readdir);
        assert_eq!((parent_of("b/sub"), parent_of("c/other")), (ino("b"), ino("c")));
        if w.requests(Kind::Readdir) == before {
            break;
        }
    }
    let (b, c) = (w.path("b/sub"), w.path("c/other"));
    rustix::fs::renameat_with(rustix::fs::CWD, &b, rustix::fs::CWD, &c, exchange).unwrap();
    assert_eq!((parent_of("b/sub"), parent_of("c/other")), (ino("b"), ino("c")));
}

#[test]
fn no_listing_is_ever_older_than_a_clone_before_it() {
    let Some(w) = World::new() else { return };
    fs::create_dir_all(w.path("d/tree")).unwrap();
    for i in 0..300 {
        fs::write(w.path(&format!("d/f{i}")), b"").unwrap();
    }
    let d = w.path("d");
    let made = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !over.load(SeqCst) {
                    let least = made.load(SeqCst);
                    let seen = listed(&d).iter().filter(|name| name.starts_with("copy")).count();
                    let most = made.load(SeqCst) + 1;
                    assert!((least..=most).contains(&seen), "{seen} clones listed, {least} were made");
                }
            });
        }
        let _over = Over(&over);
        for i in 0..200 {
            tool::clone(&entry(&d, "tree"), &entry(&d, &format!("copy{i}")), false).unwrap();
            made.fetch_add(1, SeqCst);
        }
    });
    assert_eq!(listed(&d).len(), 501);
}

/// Ends the other threads whatever happens.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
