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

/// Moments of a merge, and again in the next rounds: beside other load a writer may come too late for all of them.
fn rounds() -> impl Iterator<Item = (usize, u64)> {
    (0..10).flat_map(|round| MOMENTS.into_iter().map(move |micros| (round, micros)))
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

#[test]
fn what_somebody_writes_to_a_file_of_several_names_beside_a_large_merge_is_not_lost() {
    for case in ["content", "removed", "directory removed", "a name outside", "in a root"] {
        let (mut merged, mut conflict) = (0, 0);
        for (round, micros) in rounds() {
            if round > 0 && conflict > 0 {
                break;
            }
            let changes = |w: &World| {
                match case {
                    "in a root" => {
                        w.mkdir("/orig");
                        w.clone_tree("/orig", "/s", false).unwrap();
                    }
                    _ => _ = w.mkdir("/s"),
                }
                let more = |w: &World| {
                    two_names(w);
                    if case == "a name outside" {
                        w.link("/s/n/one", "/outside").unwrap();
                    }
                };
                changed_in(w, 240, more, |w| match case {
                    "removed" => ["one", "two"].iter().for_each(|n| w.unlink(&format!("/f/n/{n}")).unwrap()),
                    "directory removed" => _ = w.remove_tree("/f/n").unwrap(),
                    _ => _ = w.write_at("/f/n/one", 0, b"fork").unwrap(),
                });
            };
            let written = AtomicBool::new(false);
            let (w, report, _) = merged_beside(changes, micros, |w| {
                written.store(write_seen(w, "/s/n/one", b"late"), Ordering::SeqCst);
                w.fs.sync().unwrap();
            });
            w.fs.count_links().unwrap();
            if written.into_inner() {
                let content = w.get("/s/n/one");
                assert!(
                    content.is_ok_and(|c| c.starts_with(b"late")),
                    "{case}, {micros}: merged {}",
                    report.merged
                );
            }
            match report.merged {
                true => merged += 1,
                false => {
                    conflict += 1;
                    assert!(!conflicts(&report).is_empty(), "{case}, {micros}");
                    assert_eq!(w.get("/s/n/two").unwrap(), b"lateed", "{case}, {micros}");
                }
            }
            check_keys(&w);
        }
        println!("{case}: {merged} merged, {conflict} conflicts");
        assert!(conflict > 0, "{case}: nobody has met the merge");
    }
}

/// Others are written, those that the merge changes are read, and get names.
#[test]
fn who_changes_no_linked_file_that_a_large_merge_changes_does_not_disturb_it() {
    let mut w = World::new();
    w.remount_with(steps(2).atime(AtimePolicy::Strict));
    w.mkdir("/s");
    let more = |w: &World| {
        two_names(w);
        w.put("/s/attrs", b"read");
        set_long(w, "/s/attrs", 7);
        for (one, two) in [("/s/other", "/s/other2"), ("/s/alone", "/s/alone2"), ("/s/gone", "/s/gone2")] {
            w.put(one, b"linked");
            w.link(one, two).unwrap();
        }
    };
    changed_in(&w, 600, more, |w| {
        w.remove_tree("/f/n").unwrap();
        ["/f/gone", "/f/gone2"].iter().for_each(|name| w.unlink(name).unwrap());
        w.unlink("/f/alone").unwrap();
        w.put("/f/alone", b"linked");
        set_long(w, "/f/alone", 8);
        set_long(w, "/f/attrs", 8);
    });
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let during = std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = World::over(w.fs.clone());
            for n in 0u64.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // Some are gone by now.
                let _some = ["/s/n/one", "/s/gone", "/s/attrs", "/s/alone"].map(|path| other.get(path).ok());
                _ = other.link("/s/gone", &format!("/beside{n}"));
                let text = format!("{n:06}");
                other.write_at("/s/other", 0, text.as_bytes()).unwrap();
                other.write_at("/s/alone2", 0, text.as_bytes()).unwrap();
                done.store(n, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        while done.load(Ordering::SeqCst) < 5 {
            std::thread::yield_now();
        }
        let before = done.load(Ordering::SeqCst);
        let report = w.merge("/f", "/s", MergeOptions::default());
        let during = done.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::SeqCst);
        assert!(report.unwrap().merged);
        during
    });
    println!("{during} rounds beside the merge");
    assert!(!w.exists("/s/n") && !w.exists("/s/gone"));
    assert_eq!(w.get("/s/other").unwrap(), w.get("/s/other2").unwrap());
    assert_eq!((get_long(&w, "/s/attrs"), get_long(&w, "/s/alone")), (Some(8), Some(8)));
    assert_eq!(get_long(&w, "/s/alone2"), None);
    assert_eq!(w.get("/beside0").unwrap(), b"linked");
    w.fs.count_links().unwrap();
    check_keys(&w);
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
        for (round, micros) in rounds() {
            if round > 0 && (content || conflict > 0) {
                break;
            }
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
    for (round, micros) in rounds() {
        if round > 0 && beside > 0 {
            break;
        }
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
    assert!(beside > 0, "vacuous");
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
