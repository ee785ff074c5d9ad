//! Calls that take whole trees away leave entries alone on which something is mounted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{ffi::OsStr, path::PathBuf};

use crate::common::*;
use pando_fs::*;

const EBUSY: i32 = 16;

fn by(w: &World) -> Authority<'_> {
    Authority::Caller(&w.me)
}

fn snapshot(w: &World, path: &str, name: &str) -> u32 {
    let new = NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    w.on(path, |a| w.fs.snapshot(by(w), a.ino, &new)).unwrap().0.number
}

fn mounted<'a>(w: &'a World, paths: &[&str]) -> MountedOn<'a> {
    w.fs.mounted_on(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), Vec::new())
}

/// The call is refused, names the place, and does nothing; what is beside stays free.
fn busy<T: std::fmt::Debug>(result: Result<T>, place: &str) {
    let error = result.expect_err("something is mounted there");
    assert_eq!(error.errno(), EBUSY, "{error}");
    assert!(error.to_string().starts_with(&format!("{place}: something is mounted")), "{error}");
}

fn world() -> World {
    let w = World::new();
    for dir in ["/d", "/d/e", "/d/e/mnt", "/d/e/mnt/below", "/d/other", "/src"] {
        w.mkdir(dir);
    }
    w.put("/d/e/file", b"old");
    w.put("/src/new", b"new");
    w
}

#[test]
fn trees_around_a_mount_are_neither_removed_nor_replaced_nor_rolled_back() {
    let w = world();
    let number = snapshot(&w, "/d", "s");
    {
        let _first = mounted(&w, &["/d/e/mnt"]);
        let _second = mounted(&w, &["/d/e/mnt", "/gone", "/d/e/file", "/d/e/file/nothing"]);
        busy(w.remove_tree("/d"), "d/e/mnt");
        busy(w.remove_tree("/d/e/mnt"), "mnt");
        busy(w.clone_tree("/src", "/d", true), "d/e/mnt");
        busy(w.clone_tree("/src/new", "/d/e/file", true), "file");
        busy(w.on("/d", |a| w.fs.rollback(by(&w), a.ino, number, false)), "d/e/mnt");
        w.remove_tree("/d/e/mnt/below").unwrap();
        w.remove_tree("/d/other").unwrap();
        w.clone_tree("/src", "/d/e/beside", true).unwrap();
    }
    assert_eq!(w.get("/d/e/file").unwrap(), b"old");
    {
        let _moved = mounted(&w, &["/d/e/mnt"]);
        w.rename("/d/e", "/e", 0).unwrap();
        w.clone_tree("/src", "/d/e", false).unwrap();
        w.remove_tree("/d/e").unwrap();
        busy(w.remove_tree("/e"), "e/mnt");
        w.rename("/e", "/d/e", 0).unwrap();
    }
    w.on("/d", |a| w.fs.rollback(by(&w), a.ino, number, true)).unwrap();
    w.remove_tree("/d").unwrap();
    w.remove_tree("/src").unwrap();
    w.assert_nothing_referenced();
    check_keys(&w);
}

#[test]
fn a_snapshot_in_which_something_is_mounted_is_neither_deleted_nor_renamed() {
    let w = world();
    let number = snapshot(&w, "/d", "s");
    let other = snapshot(&w, "/d", "other");
    let on_d = |f: &dyn Fn(Ino) -> Result<()>| w.on("/d", |a| f(a.ino));
    let delete = |number| on_d(&|ino| w.fs.delete_snapshot(by(&w), ino, number).map(|_| ()));
    let rename = |number, name: &str| {
        on_d(&|ino| w.fs.rename_snapshot(by(&w), ino, number, OsStr::new(name)).map(|_| ()))
    };
    {
        let _in_it = mounted(&w, &["/d/.snapshots/s/e"]);
        busy(delete(number), "s/e");
        busy(rename(number, "t"), "s/e");
        on_d(&|ino| w.fs.keep_snapshot(by(&w), ino, other, true).map(|_| ())).unwrap();
        on_d(&|ino| w.fs.keep_snapshot(by(&w), ino, other, false).map(|_| ())).unwrap();
        rename(other, "u").unwrap();
        delete(other).unwrap();
        // They are seen there only.
        busy(w.remove_tree("/d"), "d/.snapshots");
        busy(on_d(&|ino| w.fs.rollback(by(&w), ino, number, false).map(|_| ())), "d/.snapshots");
    }
    {
        let _on_it = mounted(&w, &["/d/.snapshots/s"]);
        busy(delete(number), "s");
        busy(rename(number, "t"), "s");
    }
    rename(number, "t").unwrap();
    delete(number).unwrap();
    check_keys(&w);
}

#[test]
fn a_merge_takes_away_nothing_on_which_something_is_mounted() {
    for steps in [10_000, 0] {
        let mut w = World::new();
        w.remount_with(options().merge_steps(steps));
        w.mkdir("/d");
        for name in ["removed", "replaced", "renamed", "kept"] {
            w.mkdir(&format!("/d/{name}"));
            w.mkdir(&format!("/d/{name}/mnt"));
            w.put(&format!("/d/{name}/f"), name.as_bytes());
        }
        w.put("/d/changed", b"before");
        w.fork("/d", "/fork");
        w.remove_tree("/fork/removed").unwrap();
        w.remove_tree("/fork/replaced").unwrap();
        w.put("/fork/replaced", b"a file");
        w.rename("/fork/renamed", "/fork/kept/renamed", 0).unwrap();
        w.write_at("/fork/changed", 0, b"after").unwrap();
        let merge = || w.merge("/fork", "/d", MergeOptions::default());
        for name in ["removed", "replaced", "renamed"] {
            let (path, place) = (format!("/d/{name}/mnt"), format!("d/{name}/mnt"));
            let _mounted = mounted(&w, &[&path]);
            busy(merge(), &place);
        }
        {
            let _mounted = mounted(&w, &["/d/changed"]);
            busy(merge(), "d/changed");
        }
        assert_eq!(w.get("/d/changed").unwrap(), b"before");
        let _beside = mounted(&w, &["/d/kept/mnt", "/fork/kept/mnt", "/d/kept"]);
        assert!(merge().unwrap().merged);
        assert_eq!(w.get("/d/changed").unwrap(), b"aftere");
        assert!(w.exists("/d/kept/renamed/mnt") && w.exists("/d/kept/mnt") && !w.exists("/d/removed"));
        check_keys(&w);
    }
}
