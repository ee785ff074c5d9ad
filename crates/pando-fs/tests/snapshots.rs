//! Snapshots: what they show, who may, where they go when directories move, and what they cost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::*;
use pando_db::device::{Device, MemDevice};
use pando_fs::*;
use std::{
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

pub fn by(w: &World) -> Authority<'_> {
    Authority::Caller(&w.me)
}

pub fn named(name: &str) -> NewSnapshot {
    NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() }
}

pub fn snap(w: &World, path: &str, name: &str) -> SnapshotInfo {
    w.on(path, |a| w.fs.snapshot(by(w), a.ino, &named(name))).unwrap().0
}

pub fn names(w: &World, path: &str) -> Vec<String> {
    w.on(path, |a| Ok(w.list(a.ino, 3).into_iter().map(|e| e.name.into_string().unwrap()).collect())).unwrap()
}

#[test]
fn a_snapshot_shows_what_was_and_is_in_no_listing() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", b"before");
    assert!(!w.exists("/d/.snapshots"));
    let info = snap(&w, "/d", "one");
    assert_eq!((info.number, info.source.to_str(), info.keep), (1, Some("/d"), false));
    w.put("/d/f", b"after!");
    w.put("/d/g", b"new");
    assert_eq!(names(&w, "/d"), ["f", "g"]);
    assert_eq!(names(&w, "/d/.snapshots"), ["one"]);
    assert_eq!(names(&w, "/d/.snapshots/one"), ["f"]);
    assert_eq!(w.get("/d/.snapshots/one/f").unwrap(), b"before");
    assert_ne!(w.attr("/d/.snapshots/one/f").ino, w.attr("/d/f").ino);
    let numbers = |w: &World| ["", "/one", "/one/f"].map(|p| w.attr(&format!("/d/.snapshots{p}")).ino);
    let before = numbers(&w);
    let mut w = w;
    w.remount();
    assert_eq!(numbers(&w), before, "numbers are the same after a remount");
    check_keys(&w);
    // The whole tree, with the snapshot in no snapshot.
    snap(&w, "/", "all");
    assert_eq!(names(&w, "/.snapshots/all"), ["d"]);
    assert_eq!(w.get("/.snapshots/all/d/f").unwrap(), b"after!");
    assert!(!w.exists("/.snapshots/all/d/.snapshots"));
    w.remove_tree("/d").unwrap();
    assert_eq!(w.get("/.snapshots/all/d/g").unwrap(), b"new");
    w.assert_nothing_referenced();
    check_keys(&w);
}

#[test]
fn names_are_checked_and_the_default_is_the_time() {
    let w = World::new();
    w.mkdir("/d");
    for bad in ["", ".", "..", "a/b", "17", "1..3", "a..b"] {
        let result = w.on("/d", |a| w.fs.snapshot(by(&w), a.ino, &named(bad)));
        assert_eq!(errno(result.map(|_| ())), EINVAL, "{bad:?}");
    }
    let make = || w.on("/d", |a| w.fs.snapshot(by(&w), a.ino, &NewSnapshot::default())).unwrap().0;
    let (first, second) = (make(), make());
    assert_eq!(first.name.to_str().unwrap()[..20], first.created.to_utc());
    assert_ne!(first.name, second.name);
    snap(&w, "/d", "x");
    assert_eq!(errno(w.on("/d", |a| w.fs.snapshot(by(&w), a.ino, &named("x"))).map(|_| ())), EEXIST);
    // A file of the user's own of that name stays what it is.
    w.mkdir("/e");
    w.put("/e/.snapshots", b"mine");
    assert_eq!(errno(w.on("/e", |a| w.fs.snapshot(by(&w), a.ino, &named("x"))).map(|_| ())), EEXIST);
    assert_eq!(w.get("/e/.snapshots").unwrap(), b"mine");
    // In a snapshot there are none to make.
    let result = w.on("/d/.snapshots/x", |a| w.fs.snapshot(by(&w), a.ino, &named("y")));
    assert_eq!(errno(result.map(|_| ())), EROFS);
}

#[test]
fn they_stay_with_their_directory_and_outlive_it() {
    let w = World::new();
    w.mkdir("/d");
    w.mkdir("/d/sub");
    w.put("/d/sub/f", b"x");
    let info = snap(&w, "/d/sub", "s");
    let ino = w.attr("/d/sub").ino;
    w.rename("/d", "/moved", 0).unwrap();
    w.rename("/moved/sub", "/sub", 0).unwrap();
    assert_eq!(w.get("/sub/.snapshots/s/f").unwrap(), b"x");
    // A clone begins without any, whether of the directory or of one around it.
    w.mkdir("/around");
    w.rename("/sub", "/around/sub", 0).unwrap();
    w.clone_tree("/around", "/copy", false).unwrap();
    assert!(!w.exists("/copy/sub/.snapshots") && w.exists("/around/sub/.snapshots/s"));
    snap(&w, "/copy/sub", "own");
    assert_eq!(
        (names(&w, "/copy/sub/.snapshots"), names(&w, "/around/sub/.snapshots")),
        (vec!["own".to_string()], vec!["s".to_string()])
    );
    // Across a border of lineages the number stays, and the snapshots with it.
    w.rename("/around/sub", "/copy/sub2", 0).unwrap();
    assert_eq!((w.attr("/copy/sub2").ino, names(&w, "/copy/sub2/.snapshots")), (ino, vec!["s".into()]));
    w.remove_tree("/copy/sub2").unwrap();
    assert_eq!(w.fs.snapshots(ino).unwrap(), std::slice::from_ref(&info));
    let root = w.fs.open_snapshot(ino, info.number).unwrap();
    assert_eq!(w.fs.snapshot_of(root.ino), Some(info.number));
    w.fs.clone_snapshot(by(&w), root.ino, (ROOT, OsStr::new("again")), false).unwrap();
    assert_eq!(w.get("/again/f").unwrap(), b"x");
    assert_eq!(errno(w.fs.clone_snapshot(by(&w), root.ino, (ROOT, OsStr::new("again")), false)), EEXIST);
    w.put("/again/f", b"y");
    w.fs.delete_snapshot(by(&w), ino, info.number).unwrap();
    assert_eq!(w.fs.getattr(root.ino).unwrap().nlink, 0);
    assert_eq!(errno(w.fs.lookup(root.ino, OsStr::new("f"))), ESTALE);
    w.fs.forget(root.ino, 1);
    w.assert_nothing_referenced();
    check_keys(&w);
}

#[test]
fn snapshots_of_a_directory_that_is_gone_are_found_and_given_to_another() {
    let mut w = World::new();
    for dir in ["/gone", "/top", "/top/in", "/moved", "/there"] {
        w.mkdir(dir);
        w.put(&format!("{dir}/f"), dir.as_bytes());
    }
    w.put("/gone/large", &vec![7; 300_000]);
    let numbers: Vec<u32> = ["/gone", "/gone", "/top/in", "/moved", "/there"]
        .iter()
        .enumerate()
        .map(|(i, dir)| snap(&w, dir, &format!("s{i}")).number)
        .collect();
    let outer = snap(&w, "/top", "outer").number;
    // Across a border of lineages it keeps its number.
    w.mkdir("/a");
    w.clone_tree("/a", "/clone", false).unwrap();
    w.rename("/moved", "/clone/moved", 0).unwrap();
    let gone =
        |w: &World| w.fs.snapshots_of_gone().unwrap().iter().map(|info| info.number).collect::<Vec<_>>();
    assert_eq!(gone(&w), []);
    w.remove_tree("/gone").unwrap();
    // What is removed stays gone when a rollback of the directory above brings another one back.
    w.remove_tree("/top/in").unwrap();
    w.on("/top", |a| w.fs.rollback(by(&w), a.ino, outer, true)).unwrap();
    for _ in 0..2 {
        assert_eq!(gone(&w), numbers[..3]);
        w.remount();
    }
    // Some of the directories are in memory now.
    assert_eq!(
        (names(&w, "/top"), names(&w, "/there/.snapshots")),
        (vec!["f".into(), "in".into()], vec!["s4".into()])
    );
    assert_eq!(gone(&w), numbers[..3]);

    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    w.mkdir("/new");
    let adopt = |w: &World, c: &Caller, path: &str, number: u32| {
        w.on(path, |a| w.fs.adopt_snapshots(Authority::Caller(c), a.ino, number)).map(drop)
    };
    assert_eq!(errno(adopt(&w, &user, "/new", numbers[0])), EPERM);
    assert_eq!(errno(adopt(&w, &w.me, "/there", numbers[0])), EEXIST);
    assert_eq!(errno(adopt(&w, &w.me, "/new", numbers[3])), ENOENT);
    adopt(&w, &w.me, "/new", numbers[1]).unwrap();
    adopt(&w, &w.me, "/top/in", numbers[2]).unwrap();
    assert_eq!(errno(adopt(&w, &w.me, "/a", numbers[0])), ENOENT);
    for _ in 0..2 {
        assert_eq!(gone(&w), []);
        assert_eq!(names(&w, "/new/.snapshots"), ["s0", "s1"]);
        assert_eq!(w.get("/new/.snapshots/s1/large").unwrap(), vec![7; 300_000]);
        assert_eq!(w.get("/top/in/.snapshots/s2/f").unwrap(), b"/top/in");
        w.fs.check(|problem| panic!("{problem}")).unwrap();
        w.remount();
    }
    w.on("/new", |a| w.fs.rollback(by(&w), a.ino, numbers[0], true)).unwrap();
    assert_eq!(w.get("/new/f").unwrap(), b"/gone");
    w.on("/new", |a| {
        assert_eq!(w.fs.snapshots(a.ino)?.len(), 2);
        w.fs.delete_snapshot(by(&w), a.ino, numbers[0])?;
        w.fs.delete_snapshot(by(&w), a.ino, numbers[1])
    })
    .unwrap();
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

/// A clone of `.snapshots` asked an inode for its name while it had the lock for that: the whole mount stood still.
#[test]
fn the_directory_of_snapshots_is_neither_cloned_nor_compared() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", b"1");
    snap(&w, "/d", "s");
    let rights =
        |to: Ino| VerifiedRights { uid: 0, owns_source: true, adds_to: Some(to), removes: None, root: true };
    w.on("/d/.snapshots", |all| {
        let (to, name) = ((ROOT, OsStr::new("new")), rights(ROOT));
        assert_eq!(errno(w.fs.clone_verified(&name, all.ino, to, false, &[])), EINVAL);
        assert_eq!(errno(w.fs.fork_verified(&name, all.ino, to, false, &[])), EINVAL);
        w.on("/d", |dir| {
            let options = DiffOptions::default();
            for (a, b) in [(all.ino, dir.ino), (dir.ino, all.ino), (all.ino, all.ino)] {
                assert_eq!(errno(w.fs.diff(None, a, b, options).map(|_| ())), EINVAL);
            }
            Ok(())
        })
    })
    .unwrap();
    w.on("/d/.snapshots/s", |root| {
        let forked = w.fs.fork_verified(&rights(ROOT), root.ino, (ROOT, OsStr::new("new")), false, &[]);
        assert_eq!(errno(forked), EINVAL);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.get("/d/.snapshots/s/f").unwrap(), b"1");
    w.assert_nothing_referenced();
}

#[test]
fn no_entry_hides_the_snapshots_of_its_directory() {
    let w = World::new();
    for dir in ["/d", "/d/in", "/e", "/free"] {
        w.mkdir(dir);
        w.put(&format!("{dir}/f"), dir.as_bytes());
    }
    let number = snap(&w, "/d", "s").number;
    let rename = |from: &str, to: &str, flags| {
        w.at(from, |d, n| w.at(to, |e, m| w.fs.rename(&w.me, d, n, e, m, flags)))
    };
    let made = |result: Result<Attr>| result.map(|attr| w.fs.forget(attr.ino, 1));
    {
        let to = "/d/.snapshots";
        assert_eq!(errno(w.at(to, |d, n| made(w.fs.mkdir(&w.me, d, n, 0o755)))), EEXIST);
        assert_eq!(errno(w.at(to, |d, n| made(w.fs.mknod(&w.me, d, n, 0o100644, 0)))), EEXIST);
        assert_eq!(errno(w.at(to, |d, n| made(w.fs.symlink(&w.me, d, n, OsStr::new("x"))))), EEXIST);
        assert_eq!(errno(w.on("/e/f", |f| w.at(to, |d, n| made(w.fs.link(&w.me, f.ino, d, n))))), EEXIST);
        for from in ["/e", "/e/f", "/d/in"] {
            assert_eq!(errno(rename(from, to, 0)), EEXIST, "{from}");
            assert_eq!(errno(w.clone_tree(from, to, false)), EEXIST, "{from}");
            assert_eq!(errno(w.clone_tree(from, to, true)), EEXIST, "{from}");
        }
        let fork = w.at("/e", |d, n| w.at(to, |e, m| w.fs.fork_tree(&w.me, (d, n), (e, m), true, &[])));
        assert_eq!(errno(fork), EEXIST);
        w.on("/d/.snapshots/s", |root| {
            assert_eq!(errno(w.at(to, |d, n| w.fs.clone_snapshot(by(&w), root.ino, (d, n), false))), EEXIST);
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(w.get("/d/.snapshots/s/f").unwrap(), b"/d");
    // A merge brings none either.
    w.fork("/d", "/fork");
    w.mkdir("/fork/.snapshots");
    assert_eq!(errno(w.merge("/fork", "/d", MergeOptions::default())), EEXIST);
    w.rename("/fork/.snapshots", "/fork/other", 0).unwrap();
    assert!(w.merge("/fork", "/d", MergeOptions::default()).unwrap().merged);
    // Where there are no snapshots it is a name like any other.
    w.mkdir("/free/.snapshots");
    w.rename("/free/.snapshots", "/e/.snapshots", 0).unwrap();
    w.on("/d", |a| w.fs.rollback(by(&w), a.ino, number, true)).unwrap();
    w.fs.check(|problem| panic!("{problem}")).unwrap();
    w.assert_nothing_referenced();
}

/// Nor by a merge that moves one there, in one batch or beside the tree.
#[test]
fn no_merge_moves_an_entry_over_the_snapshots_of_a_directory() {
    for steps in [10_000, 0] {
        let mut w = World::new();
        w.remount_with(options().merge_steps(steps));
        for dir in ["/d", "/d/in", "/d/sub"] {
            w.mkdir(dir);
            w.put(&format!("{dir}/f"), dir.as_bytes());
        }
        snap(&w, "/d", "s");
        snap(&w, "/d/sub", "t");
        w.fork("/d", "/fork");
        w.put("/fork/f", b"changed");
        for (from, to) in [("f", ".snapshots"), ("in", ".snapshots"), ("in/f", "sub/.snapshots")] {
            let (from, to) = (format!("/fork/{from}"), format!("/fork/{to}"));
            w.rename(&from, &to, 0).unwrap();
            for dry_run in [true, false] {
                let options = MergeOptions { dry_run, ..MergeOptions::default() };
                assert_eq!(
                    errno(w.merge("/fork", "/d", options)),
                    EEXIST,
                    "{from}, {steps} steps, {dry_run}"
                );
            }
            assert_eq!(w.get("/d/.snapshots/s/f").unwrap(), b"/d");
            assert_eq!(w.get("/d/sub/.snapshots/t/f").unwrap(), b"/d/sub");
            assert_eq!(w.get("/d/f").unwrap(), b"/d");
            w.rename(&to, &from, 0).unwrap();
        }
        // What the fork has made itself.
        w.mkdir("/fork/sub/.snapshots");
        assert_eq!(errno(w.merge("/fork", "/d", MergeOptions::default())), EEXIST, "{steps} steps");
        w.at("/fork/sub/.snapshots", |d, n| w.fs.rmdir(&w.me, d, n)).unwrap();
        assert!(w.merge("/fork", "/d", MergeOptions::default()).unwrap().merged);
        assert_eq!(w.get("/d/f").unwrap(), b"changed");
        w.fs.check(|problem| panic!("{problem}")).unwrap();
        w.assert_nothing_referenced();
    }
}

/// A snapshot that is made while a large merge works is not hidden by what the merge brings at its end.
#[test]
fn a_large_merge_hides_no_snapshot_that_is_made_meanwhile() {
    let mut refused = 0;
    for round in 0..20 {
        let mut w = World::new();
        w.remount_with(options().merge_steps(1));
        w.mkdir("/d");
        w.put("/d/f", b"old");
        w.fork("/d", "/fork");
        (0..100).for_each(|i| _ = w.put(&format!("/fork/n{i}"), b"new"));
        match round % 2 {
            0 => _ = w.mkdir("/fork/.snapshots"),
            _ => w.rename("/fork/f", "/fork/.snapshots", 0).unwrap(),
        }
        let merged = std::thread::scope(|scope| {
            let merge = scope.spawn(|| w.merge("/fork", "/d", MergeOptions::default()));
            std::thread::sleep(std::time::Duration::from_millis(round / 2));
            let made = w.on("/d", |a| w.fs.snapshot(by(&w), a.ino, &NewSnapshot::default()));
            (merge.join().unwrap(), made.map(|(info, _)| info))
        });
        match merged {
            // Whichever came first, the other was refused.
            (Err(e), Ok(info)) => {
                assert_eq!(e.errno(), EEXIST);
                let name = info.name.to_str().unwrap();
                assert_eq!(w.get(&format!("/d/.snapshots/{name}/f")).unwrap(), b"old");
                refused += 1;
            }
            (Ok(report), Err(e)) => assert!(report.merged && e.errno() == EEXIST, "{e}"),
            (merged, made) => panic!("{:?}, {:?}", merged.map(|r| r.merged), made.map(|info| info.name)),
        }
        w.fs.check(|problem| panic!("{problem}")).unwrap();
    }
    println!("{refused} of 20 merges came behind a snapshot");
}

/// A rollback to it would hide all others.
#[test]
fn no_tree_with_an_entry_of_that_name_becomes_a_snapshot_of_another_directory() {
    let w = World::new();
    w.mkdir("/d");
    snap(&w, "/d", "s");
    w.mkdir("/tree");
    w.mkdir("/tree/.snapshots");
    let taken = |w: &World| {
        w.on("/d", |d| {
            w.on("/tree", |t| w.fs.snapshot_of_tree(by(w), d.ino, (by(w), t.ino), &NewSnapshot::default()))
        })
    };
    assert_eq!(errno(taken(&w).map(|_| ())), EEXIST);
    w.at("/tree/.snapshots", |d, n| w.fs.rmdir(&w.me, d, n)).unwrap();
    taken(&w).unwrap();
}

#[test]
fn linked_files_stay_linked_in_a_snapshot_and_on_the_way_back() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/one", b"linked");
    w.link("/d/one", "/d/two").unwrap();
    w.link("/d/one", "/outside").unwrap();
    let info = snap(&w, "/d", "s");
    w.put("/d/one", b"LINKED");
    w.unlink("/d/two").unwrap();
    let seen = ["one", "two"].map(|name| w.attr(&format!("/d/.snapshots/s/{name}")).ino);
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], w.attr("/d/one").ino);
    assert_eq!(w.get("/d/.snapshots/s/two").unwrap(), b"linked");
    w.on("/d", |a| w.fs.rollback(by(&w), a.ino, info.number, false)).unwrap();
    assert_eq!(w.attr("/d/one").ino, w.attr("/d/two").ino);
    assert_eq!(
        (w.get("/d/two").unwrap(), w.get("/outside").unwrap()),
        (b"linked".to_vec(), b"LINKED".to_vec())
    );
    w.put("/d/two", b"again");
    assert_eq!(w.get("/d/one").unwrap(), b"again");
    assert_eq!(w.get("/d/.snapshots/s/one").unwrap(), b"linked");
    w.fs.count_links().unwrap();
    assert_eq!((w.attr("/d/one").nlink, w.attr("/outside").nlink), (2, 1));
    check_keys(&w);
}

#[test]
fn only_who_may_clone_may_change_them() {
    let w = World::new();
    let dir = w.mkdir("/d");
    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let (user, root) = (Authority::Caller(&user), by(&w));
    let refused = |result: Result<CloneReport>| assert_eq!(errno(result), EPERM);
    w.on("/d", |_| {
        refused(w.fs.snapshot(user, dir, &named("s")).map(|(_, report)| report));
        let (info, _) = w.fs.snapshot(root, dir, &named("s"))?;
        refused(w.fs.delete_snapshot(user, dir, info.number));
        refused(w.fs.rename_snapshot(user, dir, info.number, OsStr::new("t")));
        refused(w.fs.keep_snapshot(user, dir, info.number, true));
        refused(w.fs.rollback(user, dir, info.number, true).map(|(report, _)| report));
        let owner = SetAttr { uid: Some(1000), ..SetAttr::default() };
        w.fs.setattr(&w.me, dir, &owner)?;
        let (own, _) = w.fs.snapshot(user, dir, &named("own"))?;
        assert_eq!(own.uid, 1000);
        w.fs.delete_snapshot(user, dir, info.number)?;
        Ok(())
    })
    .unwrap();
    w.remove_tree("/d").unwrap();
    let left = w.fs.snapshots(dir).unwrap();
    refused(w.fs.delete_snapshot(user, dir, left[0].number));
    w.fs.delete_snapshot(root, dir, left[0].number).unwrap();
    assert_eq!(errno(w.fs.delete_snapshot(root, dir, left[0].number)), ENOENT);
}

#[test]
fn shown_in_listings_if_asked() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", b"");
    snap(&w, "/d", "s");
    w.fs.close().unwrap();
    let fs = Fs::open(w.device.clone(), MountOptions::default().snapshots_visible(true).background(false))
        .unwrap();
    let dir = fs.resolve("/d".as_ref()).unwrap();
    let handle = fs.opendir(dir.ino).unwrap();
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = fs.readdir(handle, dir.ino, cookie, 1).unwrap();
        let Some(entry) = entries.first() else { break };
        (cookie, _) = (entry.cookie, seen.push(entry.name.clone().into_string().unwrap()));
    }
    assert_eq!(seen, [".", "..", ".snapshots", "f"]);
}

/// Each costs the same, and little, however many there are. `PANDO_FULL=1`: 10,000 of a tree of a million files.
#[test]
fn thousands_of_snapshots() {
    const NODE: u32 = 1 << 20;
    let full = std::env::var_os("PANDO_FULL").is_some();
    let (count, files) = if full { (10_000, 1_000_000) } else { (8000, 4000) };
    let device = Arc::new(MemDevice::new(if full { 8 << 30 } else { 1 << 30 }));
    Fs::format(device.clone(), &FormatOptions::default().node_size(NODE)).unwrap();
    let open = || Fs::open(device.clone(), MountOptions::default().background(false)).unwrap();
    let fs = open();
    let me = Caller::root();
    let dir = fs.mkdir(&me, ROOT, OsStr::new("d"), 0o755).unwrap();
    for i in 0..files {
        let (attr, handle) = fs.create(&me, dir.ino, format!("file{i}").as_ref(), 0o644, 2).unwrap();
        fs.write(handle, attr.ino, 0, &pattern(300, i as u8), false).unwrap();
        fs.release(attr.ino, handle);
        fs.forget(attr.ino, 1);
    }
    fs.db().settle().unwrap();
    let opening = |fs: Fs| {
        fs.close().unwrap();
        let before = device.stats().read_bytes;
        let fs = open();
        (fs, device.stats().read_bytes - before)
    };
    let (fs, first_open) = opening(fs);
    let dir = fs.resolve("/d".as_ref()).unwrap();
    let used = fs.db().stats().unwrap().used;
    let mut costs = Vec::new();
    for _ in 0..count / 500 {
        let before = (device.stats(), fs.db().stats().unwrap().items_handled);
        for _ in 0..500 {
            fs.snapshot(Authority::Caller(&me), dir.ino, &NewSnapshot::default()).unwrap();
        }
        fs.db().checkpoint().unwrap();
        let after = device.stats();
        costs.push((
            after.read_bytes - before.0.read_bytes,
            after.write_bytes - before.0.write_bytes,
            fs.db().stats().unwrap().items_handled - before.1,
        ));
    }
    fs.db().settle().unwrap();
    let each = (fs.db().stats().unwrap().used - used) / count;
    let (fs, last_open) = opening(fs);
    println!(
        "{count} snapshots of {files} files: {each} B each; opening reads {first_open} B without and {last_open} B \
         with them; read, written, handled for each five hundred: {costs:?}",
    );
    assert!(each < 1024, "{each}");
    let half = costs.len() / 2;
    let sum = |part: &[(u64, u64, u64)]| part.iter().map(|c| c.1).sum::<u64>();
    let (early, late) = (sum(&costs[..half]), sum(&costs[half..]));
    assert!(late < early * 2, "written: {early} {late}");
    // All of them go, and the space comes back.
    let dir = fs.resolve("/d".as_ref()).unwrap();
    for info in fs.snapshots(dir.ino).unwrap() {
        fs.delete_snapshot(Authority::Caller(&me), dir.ino, info.number).unwrap();
    }
    fs.db().settle().unwrap();
    let left = fs.db().stats().unwrap().used;
    assert!(left < used + used / 20 + (256 << 10), "{used} {left}");
    assert_eq!(fs.check(|problem| panic!("{problem}")).unwrap().snapshots, 0);
}

/// A writer that keeps two files in step, snapshots that come and go beside it, and readers in them: each snapshot is of
/// one moment, says the same twice, and nobody waits for ever.
#[test]
fn snapshots_beside_a_writer_and_readers() {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let w = World::over(Fs::open(device, MountOptions::default().cache_bytes(8 << 20)).unwrap());
    let dir = w.mkdir("/d");
    let held = w.fs.resolve("/d".as_ref()).unwrap();
    w.put("/d/a", &0u64.to_le_bytes());
    w.put("/d/b", &0u64.to_le_bytes());
    let begun = std::time::Instant::now();
    // On a busy machine it takes longer until somebody has seen something.
    let looks = AtomicU64::new(0);
    let going = || match begun.elapsed().as_secs() {
        secs if looks.load(Ordering::Relaxed) > 20 => secs < 3,
        secs => secs < 60,
    };
    let fs = &w.fs;
    let number = |ino: Ino| -> Result<u64> {
        let bytes = fs.read(NONE, ino, 0, 8)?;
        Ok(u64::from_le_bytes(bytes[..].try_into().expect("eight bytes")))
    };
    let (mut seen, mut gone) = (0u64, 0u64);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let [a, b] = ["/d/a", "/d/b"].map(|path| fs.resolve(path.as_ref()).unwrap().ino);
            let mut i = 0u64;
            while going() {
                i += 1;
                fs.write(NONE, a, 0, &i.to_le_bytes(), false).unwrap();
                fs.write(NONE, b, 0, &i.to_le_bytes(), false).unwrap();
            }
        });
        threads.spawn(|| {
            let me = Caller::root();
            let by = Authority::Caller(&me);
            let mut live = std::collections::VecDeque::new();
            while going() {
                live.push_back(fs.snapshot(by, dir, &NewSnapshot::default()).unwrap().0.number);
                if live.len() > 8 {
                    fs.delete_snapshot(by, dir, live.pop_front().unwrap()).unwrap();
                }
            }
        });
        let reader = || {
            let (mut seen, mut gone) = (0u64, 0u64);
            while going() {
                let Some(info) = fs.snapshots(dir).unwrap().pop() else { continue };
                let look = || -> Result<(u64, u64)> {
                    let root = fs.open_snapshot(dir, info.number)?;
                    let pair = ["a", "b"].map(|name| {
                        let found = fs.lookup(root.ino, name.as_ref())?;
                        let n = number(found.ino);
                        fs.forget(found.ino, 1);
                        n
                    });
                    fs.forget(root.ino, 1);
                    let [a, b] = pair;
                    Ok((a?, b?))
                };
                match (look(), look()) {
                    (Ok(first), Ok(second)) => {
                        assert_eq!(first, second, "snapshot {} has changed", info.number);
                        assert!(first.0 == first.1 || first.0 == first.1 + 1, "{first:?} of two moments");
                        seen += 1;
                        looks.fetch_add(1, Ordering::Relaxed);
                    }
                    (one, two) => {
                        for error in [one.err(), two.err()].into_iter().flatten() {
                            assert!([ENOENT, ESTALE].contains(&error.errno()), "{error}");
                        }
                        gone += 1;
                    }
                }
            }
            (seen, gone)
        };
        for reader in [threads.spawn(reader), threads.spawn(reader)] {
            let (s, g) = reader.join().unwrap();
            (seen, gone) = (seen + s, gone + g);
        }
    });
    println!("{seen} looks at snapshots, {gone} at ones that went");
    assert!(seen > 20, "nothing was seen");
    w.fs.forget(held.ino, 1);
    assert_eq!(w.fs.check(|problem| panic!("{problem}")).unwrap().problems, 0);
}

/// What is looked at is one moment; where a directory has gone since is none of its business.
#[test]
fn a_directory_that_moves_between_clones_is_never_taken_for_gone() {
    let w = World::new();
    w.mkdir("/a");
    for i in 0..2000 {
        w.create(&format!("/a/{i}")).unwrap();
    }
    w.mkdir("/t");
    w.mkdir("/t/sub");
    for clone in ["/x", "/y", "/x/c"] {
        w.clone_tree("/t", clone, false).unwrap();
        w.attr(clone);
    }
    for dir in ["/x/c", "/x/c/sub"] {
        w.on(dir, |a| w.fs.snapshot(by(&w), a.ino, &NewSnapshot::default())).unwrap();
    }
    let stop = AtomicBool::new(false);
    let mut moves = 0;
    let (mut gone, mut told) = (0, Vec::new());
    std::thread::scope(|scope| {
        let _end = SetWhenDropped(&stop);
        let mover = scope.spawn(|| {
            let mut moves = 0;
            while !stop.load(Ordering::Relaxed) {
                w.rename("/x/c", "/y/c", 0).unwrap();
                w.rename("/y/c", "/x/c", 0).unwrap();
                moves += 1;
            }
            moves
        });
        for _ in 0..20 {
            gone += w.fs.snapshots_of_gone().unwrap().len();
            w.fs.check(|text| told.push(text.to_owned())).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        moves = mover.join().unwrap();
    });
    assert!(moves > 20, "{moves}");
    assert_eq!((gone, told.first()), (0, None), "with {moves} moves");
    check_keys(&w);
}

/// It was refused, and a command that put it beside and exchanged the two could leave that behind.
#[test]
fn a_snapshot_takes_the_place_of_something_in_one_batch() {
    let mut w = World::new();
    w.mkdir("/d");
    w.mkdir("/d/sub");
    w.put("/d/f", b"one");
    w.put("/d/sub/g", b"two");
    w.link("/d/f", "/d/again").unwrap();
    let number = snap(&w, "/d", "s").number;
    let root = w.on("/d", |a| w.fs.open_snapshot(a.ino, number)).unwrap().ino;
    for dir in ["/old", "/old/in", "/old/in/mnt"] {
        w.mkdir(dir);
    }
    w.put("/old/in/f", b"old");
    w.put("/file", b"a file");
    let kept = w.attr("/old").ino;
    let file = w.attr("/old/in/f").ino;
    let open = w.on("/old/in/f", |a| w.fs.open_file(&w.me, a.ino, 0)).unwrap();
    let put = |path: &str, replace| w.at(path, |d, n| w.fs.clone_snapshot(by(&w), root, (d, n), replace));
    assert_eq!(errno(put("/old", false)), EEXIST);
    assert_eq!(errno(put("/d", true)), EINVAL, "its own directory would lose its snapshots");
    {
        // A refusal leaves all as it was, and nothing beside it.
        let _mounted = w.fs.mounted_on(&["/old/in/mnt".into()], Vec::new());
        assert_eq!(errno(put("/old", true)), 16);
    }
    assert_eq!((w.get("/old/in/f").unwrap(), w.attr("/old").ino), (b"old".to_vec(), kept));
    for path in ["/old", "/file", "/new"] {
        put(path, true).unwrap();
        assert_eq!(w.get(&format!("{path}/f")).unwrap(), b"one");
        assert_eq!(w.get(&format!("{path}/again")).unwrap(), b"one");
        assert_eq!(w.get(&format!("{path}/sub/g")).unwrap(), b"two");
        assert!(!w.exists(&format!("{path}/in")));
    }
    // What was open there is read on.
    assert_eq!(w.fs.read(open, file, 0, 10).unwrap(), b"old"[..]);
    w.fs.release(file, open);
    w.fs.forget(root, 1);
    check_keys(&w);
    w.remount();
    assert_eq!(w.get("/file/f").unwrap(), b"one");
}

/// `clone --replace p/sub@s p`, and a clone of p's snapshot to a directory above p, removed p: its snapshots, that of
/// the source too, were left without a directory, and nothing said so.
#[test]
fn nothing_of_a_snapshot_replaces_the_directory_that_has_the_snapshot() {
    let w = World::new();
    for dir in ["/up", "/up/p", "/up/p/sub", "/up/p/sub/deep", "/up/other"] {
        w.mkdir(dir);
    }
    w.put("/up/p/sub/f", b"then");
    w.put("/up/p/file", b"then");
    w.link("/up/p/file", "/up/p/linked").unwrap();
    let number = snap(&w, "/up/p", "s").number;
    snap(&w, "/up/p/sub", "own");
    w.put("/up/p/file", b"now");
    let clone = |from: &str, to: &str| {
        w.at(from, |d, n| w.at(to, |d2, n2| w.fs.clone_tree(&w.me, (d, n), (d2, n2), true)))
    };
    let by_number = |from: &str, to: &str| {
        let (source, replaced) = (w.attr(from).ino, w.attr(to).ino);
        w.at(to, |dir, name| {
            let adds_to = Some(dir);
            let rights =
                VerifiedRights { uid: 0, owns_source: true, adds_to, removes: Some(replaced), root: true };
            w.on(from, |_| w.fs.clone_verified(&rights, source, (dir, name), true, &[]))
        })
    };
    for from in ["/up/p/.snapshots/s/sub", "/up/p/.snapshots/s/file", "/up/p/.snapshots/s/linked"] {
        for to in ["/up/p", "/up"] {
            assert_eq!(errno(clone(from, to)), EINVAL, "{from} {to}, by name");
            assert_eq!(errno(by_number(from, to)), EINVAL, "{from} {to}, by number");
        }
    }
    let root = w.on("/up/p", |a| w.fs.open_snapshot(a.ino, number)).unwrap().ino;
    for to in ["/up/p", "/up"] {
        assert_eq!(errno(w.at(to, |d, n| w.fs.clone_snapshot(by(&w), root, (d, n), true))), EINVAL, "{to}");
    }
    w.fs.forget(root, 1);
    assert_eq!(errno(clone("/up/p/sub/.snapshots/own/deep", "/up/p")), EINVAL, "it is of a directory in it");
    assert_eq!(w.get("/up/p/file").unwrap(), b"now");
    assert_eq!(w.fs.snapshots_of_gone().unwrap(), []);
    // What does not have the snapshot is replaced, also in the directory that has it.
    clone("/up/p/.snapshots/s/sub", "/up/other").unwrap();
    clone("/up/p/.snapshots/s/linked", "/up/p/file").unwrap();
    clone("/up/p/sub/.snapshots/own/f", "/up/p/sub/deep").unwrap();
    assert_eq!(w.get("/up/p/sub/deep").unwrap(), b"then");
    assert_eq!(
        (w.get("/up/other/f").unwrap(), w.get("/up/p/file").unwrap()),
        (b"then".to_vec(), b"then".to_vec())
    );
    assert_eq!(names(&w, "/up/p/.snapshots"), ["s"]);
    assert_eq!(names(&w, "/up/p/sub/.snapshots"), ["own"]);
    check_keys(&w);
}
