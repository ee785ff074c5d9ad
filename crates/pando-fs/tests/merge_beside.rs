//! What somebody does beside a merge that is made beside the tree, to what its copies do not show: files with several
//! names, whose area lies around; extended attributes outside of records; forks that come where the merge moves something.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{
    changed_in,
    common::{World, check_keys, merged::conflicts},
    merged_beside, steps,
};
use pando_fs::*;

/// How long after the copies are made somebody does something, microseconds: the merge takes some ten thousand.
const MOMENTS: [u64; 9] = [0, 200, 700, 1500, 3000, 6000, 12_000, 25_000, 50_000];

/// Writes to a file as one who looks whether it is there: the merge may put another file at this path, and whoever has
/// the old one open keeps that. Whether it is there.
fn write_seen(w: &World, path: &str, data: &[u8]) -> bool {
    while w.exists(path) {
        let written = w.write_at(path, 0, data).is_ok();
        if written && w.get(path).is_ok_and(|content| content.starts_with(data)) {
            return true;
        }
    }
    false
}

fn set_long(w: &World, path: &str, byte: u8) {
    w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, "user.long".as_ref(), &[byte; 3000], 0)).unwrap();
}

fn get_long(w: &World, path: &str) -> Option<u8> {
    let value = w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, "user.long".as_ref())).ok()?;
    assert!(value.len() == 3000 && value.iter().all(|byte| *byte == value[0]), "{path}");
    Some(value[0])
}

/// One file with two names in a directory of its own.
fn two_names(w: &World) {
    w.mkdir("/s/n");
    w.put("/s/n/one", b"linked");
    w.link("/s/n/one", "/s/n/two").unwrap();
}

/// The record says only how many such attributes there are, and how long their names.
#[test]
fn another_value_of_a_long_attribute_of_the_directory_itself_is_merged() {
    let mut w = World::new();
    w.remount_with(steps(0));
    w.mkdir("/s");
    set_long(&w, "/s", 7);
    w.fork("/s", "/f");
    set_long(&w, "/f", 8);
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    for _ in 0..2 {
        assert_eq!(get_long(&w, "/s"), Some(8));
        check_keys(&w);
        w.remount_with(steps(0));
    }
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().changes.is_empty());
}

/// The fork gives something another long value.
#[test]
fn a_long_value_of_an_attribute_meets_a_writer_beside_a_large_merge() {
    let paths = ["/s", "/s/x", "/s/n/one"];
    let fork = |path: &str| path.replacen("/s", "/f", 1);
    for (path, content) in paths.iter().map(|path| (*path, false)).chain([("/s/x", true)]) {
        let (mut merged, mut conflict) = (0, 0);
        for micros in MOMENTS {
            let changes = |w: &World| {
                w.mkdir("/s");
                let more = |w: &World| {
                    w.put("/s/x", b"content");
                    two_names(w);
                    paths.iter().for_each(|path| set_long(w, path, 7));
                };
                changed_in(w, 240, more, |w| set_long(w, &fork(path), 8));
            };
            let (w, report, _) = merged_beside(changes, micros, |w| match content {
                true => _ = w.write_at(path, 0, b"C").unwrap(),
                false => set_long(w, path, 9),
            });
            let wanted = if content { 8 } else { 9 };
            assert_eq!(get_long(&w, path), Some(wanted), "{path}, {micros}: merged {}", report.merged);
            assert!(w.get("/s/x").unwrap().starts_with(if content { b"C" } else { b"c" }), "{micros}");
            match report.merged {
                true => merged += 1,
                false => conflict += 1,
            }
            check_keys(&w);
        }
        println!("{path}, content {content}: {merged} merged, {conflict} conflicts");
        assert!(if content { conflict == 0 } else { conflict > 0 }, "{path}: {conflict} conflicts");
    }
}

#[test]
fn a_fork_that_comes_to_a_directory_that_a_large_merge_moves_stays_one() {
    let mut beside = 0;
    for micros in MOMENTS {
        let changes = |w: &World| {
            w.mkdir("/s");
            w.mkdir("/t");
            changed_in(w, 240, |_| (), |_| ());
        };
        let made = AtomicBool::new(false);
        let (w, report, met) = merged_beside(changes, micros, |w| {
            // After the merge there is no such directory.
            let done = w.at("/t", |d, n| {
                w.at("/s/moves/fork", |e, m| w.fs.fork_tree(&w.me, (d, n), (e, m), false, &[]))
            });
            made.store(done.is_ok(), Ordering::SeqCst);
        });
        beside += u32::from(met && made.load(Ordering::SeqCst));
        let dir = if report.merged { "/s/a/moved" } else { "/s/moves" };
        let mut wanted = vec![("/f".to_owned(), "/s".to_owned())];
        if made.into_inner() {
            wanted.push((format!("{dir}/fork"), "/t".to_owned()));
        }
        let forks = w.fs.forks(None).unwrap().into_iter();
        let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let found: Vec<_> =
            forks.map(|f| (text(f.path.as_ref()), text(f.source.unwrap().as_ref()))).collect();
        assert_eq!(found, wanted, "{micros}: merged {}", report.merged);
        if let Some((path, _)) = found.get(1) {
            w.put("/t/new", b"new");
            w.put(&format!("{path}/more"), b"more");
            assert!(w.merge(path, "/t", MergeOptions::default()).unwrap().merged);
            assert_eq!(w.get("/t/more").unwrap(), b"more");
        }
        check_keys(&w);
    }
    assert!(beside > 2, "{beside} beside the merge");
}

/// That which is merged itself.
#[test]
fn the_fork_itself_may_come_to_a_directory_that_its_large_merge_moves() {
    for micros in MOMENTS {
        let changes = |w: &World| {
            w.mkdir("/s");
            changed_in(w, 240, |_| (), |_| ());
        };
        let (w, report, _) = merged_beside(changes, micros, |w| {
            let _done = w.rename("/f", "/s/moves/f", 0);
        });
        let forks = w.fs.forks(None).unwrap();
        assert_eq!(forks.len(), 1, "{micros}: merged {}", report.merged);
        let path = forks[0].path.to_str().unwrap();
        assert!(w.exists(path), "{micros}, {path}: merged {}", report.merged);
        assert!(w.on(path, |f| w.fs.fork_of(f.ino)).is_ok(), "{micros}, {path}: merged {}", report.merged);
        check_keys(&w);
    }
}
