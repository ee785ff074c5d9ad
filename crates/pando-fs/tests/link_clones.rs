//! Hard links in trees that are cloned: what stays together and what is apart, when names are counted, cost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, MemDevice};
use pando_fs::*;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

#[test]
fn a_linked_file_does_not_replace_the_clone_that_it_lies_in() {
    let w = World::new();
    for dir in ["/o", "/above"] {
        w.mkdir(dir);
    }
    w.put("/o/c", b"1");
    w.link("/o/c", "/o/d").unwrap();
    w.clone_tree("/o", "/e", false).unwrap();
    w.clone_tree("/o", "/above/e", false).unwrap();
    for (file, target) in [("/e/c", "/e"), ("/above/e/c", "/above/e"), ("/above/e/d", "/above")] {
        assert_eq!(errno(w.clone_tree(file, target, true)), EINVAL, "{file}, by its name");
        let (source, replaced) = (w.attr(file).ino, w.attr(target).ino);
        let by_number = w.at(target, |dir, name| {
            let rights = VerifiedRights {
                uid: 0,
                owns_source: true,
                adds_to: Some(dir),
                removes: Some(replaced),
                root: true,
            };
            w.on(file, |_| w.fs.clone_verified(&rights, source, (dir, name), true, &[]))
        });
        assert_eq!(errno(by_number), EINVAL, "{file}, by its number");
    }
    // One that only lies beside what is replaced does.
    w.mkdir("/e/sub");
    w.clone_tree("/e/c", "/e/sub", true).unwrap();
    assert_eq!(w.get("/e/sub").unwrap(), b"1");
    check_keys(&w);
}

#[test]
fn links_stay_together_in_a_clone_and_apart_from_the_original() {
    let mut w = World::new();
    for dir in ["/out", "/t", "/t/s", "/t/s/deep"] {
        w.mkdir(dir);
    }
    w.put("/t/s/a", &pattern(60_000, 1));
    w.link("/t/s/a", "/t/s/deep/b").unwrap();
    w.link("/t/s/a", "/out/c").unwrap();
    w.put("/t/one", b"outside of s");
    w.link("/t/one", "/t/two").unwrap();
    w.clone_tree("/t/s", "/copy", false).unwrap();
    w.fs.count_links().unwrap();
    check_keys(&w);
    assert_eq!(w.groups("/copy"), [["/a", "/deep/b"]]);
    assert_eq!((w.nlink("/copy/a"), w.nlink("/t/s/a")), (2, 3));
    assert_ne!(w.attr("/copy/a").ino, w.attr("/t/s/a").ino);
    w.write_at("/copy/deep/b", 0, b"copy").unwrap();
    w.write_at("/out/c", 0, b"orig").unwrap();
    assert_eq!(
        (&w.get("/copy/a").unwrap()[..4], &w.get("/t/s/a").unwrap()[..4]),
        (&b"copy"[..], &b"orig"[..])
    );
    // Nothing of what has no name in the clone is left in it.
    assert!(w.fs.db().prefix(b"\0\0\0\0M\x02copy\0\x03").count() == 1);
    // Clones of the clone, of a part of it, and of the whole around both.
    w.clone_tree("/copy", "/copy2", false).unwrap();
    w.clone_tree("/copy2/deep", "/t/s/part", false).unwrap();
    w.mkdir("/all");
    w.clone_tree("/t", "/all/t", false).unwrap();
    let groups = vec![vec!["/one", "/two"], vec!["/s/a", "/s/deep/b"], vec!["/s/part/b"]];
    for round in 0..2 {
        assert_eq!(w.groups("/all/t"), groups, "{round}");
        w.fs.count_links().unwrap();
        check_keys(&w);
        w.remount();
    }
    assert_eq!((w.nlink("/all/t/s/a"), w.nlink("/all/t/s/part/b"), w.nlink("/copy2/a")), (2, 1, 2));
    // The original goes; the clones stay.
    w.remove_tree("/t").unwrap();
    assert_eq!(w.nlink("/out/c"), 1);
    w.unlink("/out/c").unwrap();
    w.remount();
    assert_eq!(w.get("/copy2/deep/b").unwrap()[..4], b"copy"[..]);
    assert_eq!(w.get("/all/t/s/deep/b").unwrap()[..4], b"orig"[..]);
    check_keys(&w);
}

/// What a clone replaces may be a name of a file in its source. The copy is of the moment before that name went.
#[test]
fn a_clone_that_replaces_a_name_of_a_file_in_it_is_of_the_moment_before() {
    for inside in [false, true] {
        let mut w = World::new();
        w.mkdir("/s");
        w.put("/s/a", &pattern(50_000, 3));
        let place = if inside { "/s/x" } else { "/x" };
        w.link("/s/a", place).unwrap();
        let before = w.attr("/s/a");
        std::thread::sleep(std::time::Duration::from_millis(20)); // the next tick of the clock
        w.clone_tree("/s", place, true).unwrap();
        w.fs.count_links().unwrap();
        let (copy, left) = (w.attr(&format!("{place}/a")), w.attr("/s/a"));
        assert_eq!((copy.ctime, copy.mtime), (before.ctime, before.mtime), "inside: {inside}");
        assert_eq!(copy.nlink, 1 + u32::from(inside), "the copy has the names of the moment before");
        assert!(
            left.ctime > before.ctime && left.nlink == 1,
            "that the original lost a name is a change of it"
        );
        w.remount();
        assert_eq!(w.attr(&format!("{place}/a")), copy);
        assert_eq!(w.get(&format!("{place}/a")).unwrap(), pattern(50_000, 3));
        check_keys(&w);
    }
}

/// Who looked at a clone before its names were counted has it counted, wherever it is moved meanwhile.
#[test]
fn a_clone_that_is_moved_before_its_names_are_counted_is_counted() {
    for looked_at in [true, false] {
        let mut w = World::new();
        w.mkdir("/d");
        w.put("/d/a", &pattern(100, 1));
        w.link("/d/a", "/b").unwrap();
        w.clone_tree("/d", "/c", false).unwrap();
        if looked_at {
            assert_eq!(w.nlink("/c/a"), 2, "not counted yet");
        }
        w.rename("/c", "/e", 0).unwrap();
        w.fs.count_links().unwrap();
        if !looked_at {
            w.nlink("/e/a"); // has it counted
            w.fs.count_links().unwrap();
        }
        assert_eq!(w.nlink("/e/a"), 1, "looked at: {looked_at}");
        w.assert_nothing_referenced();
        // The same where it is moved when it is known, and its names come to be counted once more.
        w.link("/e/a", "/e/f").unwrap();
        w.mkdir("/e/g");
        w.link("/e/a", "/e/g/h").unwrap();
        let parent = w.fs.resolve("/".as_ref()).unwrap().ino;
        let without = ["g".into()];
        w.fs.clone_tree_without(&w.me, (parent, "e".as_ref()), (parent, "i".as_ref()), false, &without)
            .unwrap();
        assert_eq!(w.nlink("/i/a"), 3, "not counted yet");
        w.rename("/i", "/j", 0).unwrap();
        w.fs.count_links().unwrap();
        assert_eq!((w.nlink("/j/a"), w.nlink("/e/a")), (2, 3), "looked at: {looked_at}");
        w.remount();
        assert_eq!((w.nlink("/j/f"), w.nlink("/e/f")), (2, 3));
        check_keys(&w);
    }
}

#[test]
fn before_names_are_counted_a_clone_says_too_many_and_nothing_is_lost() {
    let mut w = World::new();
    w.mkdir("/s");
    w.put("/s/a", b"data");
    w.link("/s/a", "/b").unwrap();
    w.clone_tree("/s", "/copy", false).unwrap();
    assert_eq!(w.nlink("/copy/a"), 2, "as in the original");
    // Open, without a name, and not known to be so: it must outlive the directory.
    let attr = w.fs.resolve(Path::new("/copy/a")).unwrap();
    let fh = w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap();
    w.unlink("/copy/a").unwrap();
    check_keys(&w);
    w.fs.write(fh, attr.ino, 0, b"DATA", false).unwrap();
    w.rmdir("/copy").unwrap();
    w.fs.write(fh, attr.ino, 4, b"!", false).unwrap();
    assert_eq!(w.whole(attr.ino).unwrap(), b"DATA!");
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    // The same with the counting in between.
    w.clone_tree("/s", "/copy", false).unwrap();
    let attr = w.fs.resolve(Path::new("/copy/a")).unwrap();
    let fh = w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap();
    w.unlink("/copy/a").unwrap();
    assert_eq!(w.fs.getattr(attr.ino).unwrap().nlink, 1);
    w.fs.count_links().unwrap();
    assert_eq!(w.fs.getattr(attr.ino).unwrap().nlink, 0);
    assert_eq!(w.whole(attr.ino).unwrap(), b"data");
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    w.assert_nothing_referenced();
    // And over a remount, the clone being moved before anybody counts.
    w.clone_tree("/s", "/copy2", false).unwrap();
    w.rename("/copy2", "/copy/moved", 0).unwrap();
    w.remount();
    assert_eq!(w.nlink("/copy/moved/a"), 2);
    w.fs.count_links().unwrap();
    assert_eq!(w.nlink("/copy/moved/a"), 1);
    check_keys(&w);
}

#[test]
fn nothing_reaches_from_one_clone_into_another() {
    let mut w = World::new();
    for dir in ["/s", "/s/d", "/other"] {
        w.mkdir(dir);
    }
    w.put("/s/d/a", b"data");
    w.link("/s/d/a", "/s/b").unwrap();
    w.put("/plain", b"p");
    w.clone_tree("/s", "/copy", false).unwrap();
    w.fs.count_links().unwrap();
    assert_eq!(errno(w.link("/plain", "/copy/p")), EXDEV);
    assert_eq!(errno(w.link("/copy/b", "/b")), EXDEV);
    assert_eq!(errno(w.rename("/copy/b", "/b", 0)), EXDEV);
    assert_eq!(errno(w.rename("/copy/b", "/plain", RENAME_EXCHANGE)), EXDEV);
    assert_eq!(errno(w.rename("/plain", "/copy/b", RENAME_EXCHANGE)), EXDEV);
    assert_eq!(errno(w.rename("/copy/d", "/d", 0)), EXDEV);
    assert_eq!(errno(w.rename("/other", "/copy/d", RENAME_EXCHANGE)), EXDEV);
    // The clone itself moves with its links; plain files and directories without links move as ever.
    w.rename("/copy", "/other/copy", 0).unwrap();
    w.rename("/plain", "/other/copy/p", 0).unwrap();
    w.link("/other/copy/p", "/other/copy/d/q").unwrap();
    assert_eq!(w.groups("/other/copy"), [vec!["/b", "/d/a"], vec!["/d/q", "/p"]]);
    w.remount();
    check_keys(&w);
    assert_eq!(w.groups("/other/copy"), [vec!["/b", "/d/a"], vec!["/d/q", "/p"]]);
    // A directory that was moved out of its lineage, got links, and comes back is a root of its own still.
    w.mkdir("/other/copy/m");
    w.put("/other/copy/m/x", b"x");
    let ino = w.attr("/other/copy/m/x").ino;
    w.rename("/other/copy/m", "/m", 0).unwrap();
    w.link("/m/x", "/m/y").unwrap();
    w.rename("/m", "/other/copy/m", 0).unwrap();
    w.remount();
    assert_eq!((w.attr("/other/copy/m/y").ino, w.nlink("/other/copy/m/x")), (ino, 2));
    assert_eq!(errno(w.link("/other/copy/m/x", "/other/copy/x")), EXDEV);
    w.numbers("/");
    check_keys(&w);
    w.clone_tree("/other/copy", "/last", false).unwrap();
    assert_eq!(w.nlink("/last/m/x"), 2);
    w.numbers("/");
    w.remove_tree("/other/copy").unwrap();
    w.remount();
    assert_eq!(w.groups("/last").len(), 3);
    check_keys(&w);
}

/// A farm of `count` files with two names each, in a tree of `/s`.
pub(crate) fn farm(fs: &Fs, me: &Caller, count: usize, linked: bool) {
    let at = fs.mkdir(me, ROOT, "s".as_ref(), 0o755).unwrap().ino;
    for d in 0..count.div_ceil(500) {
        let dir = fs.mkdir(me, at, format!("d{d}").as_ref(), 0o755).unwrap().ino;
        for f in 0..500.min(count - d * 500) {
            let attr = fs.mknod(me, dir, format!("f{f}").as_ref(), 0o100644, 0).unwrap();
            if linked {
                fs.link(me, attr.ino, dir, format!("g{f}").as_ref()).unwrap();
                fs.forget(attr.ino, 1);
            } else {
                let other = fs.mknod(me, dir, format!("g{f}").as_ref(), 0o100644, 0).unwrap();
                fs.forget(other.ino, 1);
            }
            fs.forget(attr.ino, 1);
        }
        fs.forget(dir, 1);
    }
    fs.forget(at, 1);
}

/// What a clone of `/s` with `count` files of two names costs: requests and bytes read, bytes written, until all of it
/// is in the DAG and durable.
fn cost_of_clone(count: usize, linked: bool) -> (u64, u64, u64) {
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let me = Caller::root();
    let fs = Fs::open(device.clone(), options()).unwrap();
    farm(&fs, &me, count, linked);
    fs.close().unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let before = device.stats();
    fs.clone_tree(&me, (ROOT, "s".as_ref()), (ROOT, "copy".as_ref()), false).unwrap();
    fs.db().checkpoint().unwrap();
    let after = device.stats();
    let attr = fs.resolve(Path::new("/copy/d0/f7")).unwrap();
    assert_eq!(attr.nlink, if linked { 2 } else { 1 });
    (after.reads - before.reads, after.read_bytes - before.read_bytes, after.write_bytes - before.write_bytes)
}

#[test]
fn a_clone_costs_the_same_with_any_number_of_links() {
    let few = cost_of_clone(1000, true);
    let many = cost_of_clone(50_000, true);
    let none = cost_of_clone(50_000, false);
    println!("clone of 2,000 linked names {few:?}, of 100,000 {many:?}, of 100,000 without links {none:?}");
    // Three sources in place of one are found; the height may differ by one or two levels.
    assert!(many.0 <= none.0 * 4 + 8, "{many:?} {none:?}");
    assert!(many.1 <= none.1 * 4 + (256 << 10), "{many:?} {none:?}");
    assert!(many.2 <= none.2 * 3 + (256 << 10), "{many:?} {none:?}");
    assert!(many.0 <= few.0 * 3 + 12, "{few:?} {many:?}");
}

/// A copy of a part of a lineage has all of its linked files, until names are counted: also where it has been moved, or
/// copied, before that, and nobody looks.
#[test]
fn files_without_a_name_in_a_tree_that_was_moved_or_cloned_go_as_well() {
    let w = World::new();
    for dir in ["/a", "/b", "/p"] {
        w.mkdir(dir);
    }
    w.put("/a/f", b"has a name in every copy");
    w.link("/a/f", "/b/g").unwrap();
    w.put("/b/h", &pattern(50_000, 1));
    w.link("/b/h", "/b/i").unwrap();
    let files = || w.fs.check(|p| panic!("{p}")).unwrap().files;
    assert_eq!(files(), 2);
    w.clone_tree("/a", "/c", false).unwrap();
    w.rename("/c", "/d", 0).unwrap();
    assert_eq!(files(), 4, "not counted yet");
    w.fs.count_links().unwrap();
    assert_eq!(files(), 3);
    w.clone_tree("/a", "/p/c", false).unwrap();
    w.clone_tree("/p", "/q", false).unwrap();
    w.fs.count_links().unwrap();
    assert_eq!(files(), 5);
}

/// What is left out of a clone may lie in something else that is.
#[test]
fn what_a_clone_leaves_out_may_be_named_twice() {
    let w = World::new();
    for dir in ["/a", "/a/b", "/a/b/c"] {
        w.mkdir(dir);
    }
    w.put("/a/b/c/f", b"f");
    w.link("/a/b/c/f", "/a/b/c/g").unwrap();
    w.link("/a/b/c/f", "/a/h").unwrap();
    w.clone_tree("/a/b", "/a/r", false).unwrap();
    let out = ["b", "r", "r/c", "r/c/f"].map(std::path::PathBuf::from);
    let (dir, to) = (ROOT, "z".as_ref());
    w.fs.clone_tree_without(&w.me, (ROOT, "a".as_ref()), (dir, to), false, &out).unwrap();
    w.fs.check(|p| panic!("{p}")).unwrap();
    assert_eq!(w.names("/z"), ["h"]);
    w.fs.count_links().unwrap();
    w.fs.check(|p| panic!("{p}")).unwrap();
}

/// The first link below a directory takes the data of its file out of what is cloned with the directory.
#[test]
fn a_tree_is_copied_with_what_is_linked_in_it_meanwhile() {
    const ROUNDS: usize = 3_000;
    let w = World::new();
    for dir in ["/s", "/s/d", "/c"] {
        w.mkdir(dir);
    }
    // Before links are made the first time, and with them elsewhere.
    for others in [false, true] {
        if others {
            w.put("/one", b"x");
            w.link("/one", "/two").unwrap();
        }
        let (done, links) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (mut copies, mut with) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    w.put("/s/d/f", &pattern(30_000, 1));
                    w.link("/s/d/f", "/s/d/g").unwrap();
                    w.unlink("/s/d/f").unwrap();
                    w.unlink("/s/d/g").unwrap();
                    links.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _done = SetWhenDropped(&done);
            for round in 0..ROUNDS {
                let copy = match round % 2 {
                    0 => w.clone_tree("/s", "/c/s", false).map(|_| "/c/s".to_string()).unwrap(),
                    _ => {
                        let new = NewSnapshot { name: Some("now".into()), ..NewSnapshot::default() };
                        w.on("/s", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)).unwrap();
                        "/s/.snapshots/now".to_string()
                    }
                };
                let names = w.names(&format!("{copy}/d"));
                for name in &names {
                    let bytes = w.get(&format!("{copy}/d/{name}")).unwrap();
                    let as_written = bytes == pattern(30_000, 1)[..bytes.len()];
                    assert!(as_written, "{name} of {names:?} in {copy}");
                    with += usize::from(name == "g");
                }
                copies += 1;
                match round % 2 {
                    0 => drop(w.remove_tree("/c/s").unwrap()),
                    _ => {
                        let source = w.attr("/s").ino;
                        let number = w.fs.snapshots(source).unwrap().remove(0).number;
                        w.fs.delete_snapshot(Authority::Caller(&w.me), source, number).unwrap();
                    }
                }
            }
        });
        let links = links.into_inner();
        assert!(
            links > ROUNDS / 20 && with > ROUNDS / 50,
            "vacuous: {copies} copies, {links} links, {with} seen"
        );
    }
    w.fs.check(|p| panic!("{p}")).unwrap();
    check_keys(&w);
}
