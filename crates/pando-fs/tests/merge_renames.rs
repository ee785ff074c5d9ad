//! Renames in merges, one by one: what follows them, what is a conflict, and what stays what it is in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::common::{World, check_keys, merged::conflicts, options, trees::read};
use pando_db::device::{Device, FailMode, MemDevice, SimDevice};
use pando_fs::*;

const EPERM: i32 = 1;
const EINTR: i32 = 4;

/// A source with a few directories, and a fork of it.
fn scene() -> World {
    let w = World::new();
    w.mkdir("/s");
    for dir in ["/s/a", "/s/b", "/s/a/in"] {
        w.mkdir(dir);
    }
    for file in ["/s/f", "/s/g", "/s/a/x", "/s/a/in/y"] {
        w.put(file, file.as_bytes());
    }
    w.fork("/s", "/f");
    w
}

fn mv(w: &World, from: &str, to: &str) {
    w.rename(from, to, 0).unwrap();
}

fn merge(w: &World) -> MergeReport {
    w.merge("/f", "/s", MergeOptions::default()).unwrap()
}

fn prefer(w: &World, side: MergeSide) -> MergeReport {
    w.merge("/f", "/s", MergeOptions { prefer: Some(side), ..Default::default() }).unwrap()
}

fn whole(mut w: World) {
    let tree = read(&w, "/s");
    // Times included, of what is in memory and of what is not.
    let seen = w.walk("/");
    w.remount();
    assert_eq!(read(&w, "/s"), tree);
    assert_eq!(w.walk("/"), seen);
    w.fs.check(|problem| panic!("{problem}")).unwrap();
    check_keys(&w);
}

/// The conflicts of a merge, which does nothing: the paths, and why.
fn refused(w: &World) -> Vec<(String, MergeConflict)> {
    let before = read(w, "/s");
    let report = merge(w);
    assert!(!report.merged && read(w, "/s") == before, "{report:?}");
    let why = |c: &MergeChange| match c.kind {
        MergeKind::Conflict(why) => Some((c.path.to_str().unwrap().to_owned(), why)),
        _ => None,
    };
    report.changes.iter().filter_map(why).collect()
}

#[test]
fn a_change_follows_a_rename_of_the_other_side() {
    for here in [false, true] {
        let w = scene();
        let (renames, changes) = if here { ("/s", "/f") } else { ("/f", "/s") };
        mv(&w, &format!("{renames}/f"), &format!("{renames}/b/f2"));
        mv(&w, &format!("{renames}/a"), &format!("{renames}/b/a2"));
        w.put(&format!("{changes}/f"), b"changed");
        w.put(&format!("{changes}/a/in/y"), b"changed too");
        w.put(&format!("{changes}/a/in/new"), b"came");
        w.unlink(&format!("{changes}/a/x")).unwrap();
        let report = merge(&w);
        assert!(report.merged, "{report:?}");
        let told = report.changes.iter().filter(|c| c.kind == MergeKind::Renamed).count();
        assert_eq!(told, if here { 0 } else { 2 }, "{report:?}");
        assert_eq!(w.get("/s/b/f2").unwrap(), b"changed");
        assert_eq!(w.get("/s/b/a2/in/y").unwrap(), b"changed too");
        assert_eq!(w.get("/s/b/a2/in/new").unwrap(), b"came");
        assert_eq!((w.names("/s"), w.names("/s/b/a2")), (vec!["b".into(), "g".into()], vec!["in".into()]));
        whole(w);
    }
}

#[test]
fn the_same_rename_on_both_sides_is_none_and_different_ones_are_a_conflict() {
    let w = scene();
    mv(&w, "/f/f", "/f/same");
    mv(&w, "/s/f", "/s/same");
    mv(&w, "/f/a", "/f/there");
    mv(&w, "/s/a", "/s/here");
    w.put("/f/a2", b"beside");
    assert_eq!(refused(&w), [("here".into(), MergeConflict::Renamed)]);
    w.put("/f/there/x", b"inside");
    assert!(prefer(&w, MergeSide::Ours).merged);
    assert_eq!(w.names("/s"), ["a2", "b", "g", "here", "same"]);
    assert_eq!(w.get("/s/here/x").unwrap(), b"inside");
    whole(w);
    let w = scene();
    mv(&w, "/f/a", "/f/there");
    mv(&w, "/s/a", "/s/here");
    assert!(prefer(&w, MergeSide::Theirs).merged);
    assert_eq!(w.names("/s"), ["b", "f", "g", "there"]);
    whole(w);
}

/// What a user of git would expect of `-X theirs`: the directory comes back without what went elsewhere.
#[test]
fn a_directory_that_comes_back_is_without_what_was_moved_out_of_it() {
    let w = World::new();
    for dir in ["/s", "/s/d", "/s/d/sub", "/s/d/deep"] {
        w.mkdir(dir);
    }
    for file in ["plain", "edited", "moved", "renamed", "sub/in", "deep/out"] {
        w.put(&format!("/s/d/{file}"), file.as_bytes());
    }
    w.fork("/s", "/f");
    // Here the directory goes, and most of what is in it is elsewhere before.
    for (from, to) in [("moved", "m"), ("renamed", "r"), ("sub", "sub"), ("deep/out", "o")] {
        w.rename(&format!("/s/d/{from}"), &format!("/s/{to}"), 0).unwrap();
    }
    w.remove_tree("/s/d").unwrap();
    w.put("/f/d/edited", b"by the fork");
    w.put("/f/d/moved", b"content of the fork");
    w.put("/f/d/sub/in", b"in it too");
    w.rename("/f/d/renamed", "/f/d/otherwise", 0).unwrap();
    w.put("/f/d/otherwise", b"has another name");
    let number = w.attr("/s/o").ino;
    let dry = w.merge("/f", "/s", MergeOptions::default()).unwrap();
    assert_eq!((dry.merged, conflicts(&dry)), (false, vec!["/d".to_owned()]));
    let theirs = MergeOptions { prefer: Some(MergeSide::Theirs), ..MergeOptions::default() };
    let report = w.merge("/f", "/s", theirs).unwrap();
    assert!(report.merged);
    assert_eq!(conflicts(&report), ["/d", "/r"], "{report:?}");
    let files: Vec<String> = read(&w, "/s").into_keys().collect();
    let wanted = ["", "/d", "/d/deep", "/d/edited", "/d/plain", "/m", "/o", "/r", "/sub", "/sub/in"];
    assert_eq!(files, wanted);
    for (file, content) in [
        ("d/plain", "plain"),
        ("d/edited", "by the fork"),
        ("m", "content of the fork"),
        ("r", "has another name"),
        ("sub/in", "in it too"),
        ("o", "deep/out"),
    ] {
        assert_eq!(w.get(&format!("/s/{file}")).unwrap(), content.as_bytes(), "{file}");
    }
    assert_eq!(w.attr("/s/o").ino, number);
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().changes.is_empty());
    check_keys(&w);
}

#[test]
fn renamed_on_one_side_and_removed_on_the_other_is_a_conflict() {
    let w = scene();
    mv(&w, "/s/f", "/s/renamed");
    w.unlink("/f/f").unwrap();
    assert_eq!(refused(&w), [("renamed".into(), MergeConflict::RemovedThere)]);
    assert!(prefer(&w, MergeSide::Theirs).merged);
    assert!(!w.exists("/s/renamed"));
    whole(w);
    let w = scene();
    w.remove_tree("/s/a").unwrap();
    mv(&w, "/f/a", "/f/b/renamed");
    assert_eq!(refused(&w), [("b/renamed".into(), MergeConflict::RemovedHere)]);
    assert!(prefer(&w, MergeSide::Theirs).merged);
    assert_eq!(w.get("/s/b/renamed/in/y").unwrap(), b"/s/a/in/y");
    whole(w);
    // What was moved out of a directory that the fork removed is not lost with it.
    let w = scene();
    mv(&w, "/s/a/x", "/s/rescued");
    w.remove_tree("/f/a").unwrap();
    assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
}

/// What the fork moved into a directory that is new, which is taken as a whole, came back here.
#[test]
fn what_was_moved_into_a_new_directory_and_removed_here_is_a_conflict() {
    for dir in [false, true] {
        let what = if dir { "a" } else { "f" };
        let deleted = || {
            let w = scene();
            w.mkdir("/f/made");
            w.put("/f/made/beside", b"new");
            mv(&w, &format!("/f/{what}"), &format!("/f/made/{what}"));
            if dir {
                mv(&w, "/f/made/a/x", "/f/made/a/renamed");
                w.remove_tree("/s/a").unwrap();
            } else {
                w.unlink("/s/f").unwrap();
            }
            w
        };
        let w = deleted();
        assert_eq!(refused(&w), [(format!("made/{what}"), MergeConflict::RemovedHere)]);
        assert!(prefer(&w, MergeSide::Ours).merged);
        assert_eq!(w.names("/s/made"), ["beside"]);
        whole(w);
        let w = deleted();
        assert!(prefer(&w, MergeSide::Theirs).merged);
        assert_eq!(read(&w, "/s/made"), read(&w, "/f/made"));
        whole(w);
    }
    // Both sides have made the directory.
    let w = scene();
    for dir in ["/f/made", "/s/made"] {
        w.mkdir(dir);
    }
    mv(&w, "/f/f", "/f/made/f");
    w.unlink("/s/f").unwrap();
    assert_eq!(refused(&w), [("made/f".into(), MergeConflict::RemovedHere)]);
    assert!(prefer(&w, MergeSide::Ours).merged && w.names("/s/made").is_empty());
    whole(w);
    // Something in a directory that the fork moved there.
    let w = scene();
    w.mkdir("/f/made");
    mv(&w, "/f/a", "/f/made/a");
    w.unlink("/s/a/in/y").unwrap();
    assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
    // Also where the fork saved it as a new file, or moved what is around it once more.
    w.unlink("/f/made/a/in/y").unwrap();
    w.put("/f/made/a/in/y", b"/s/a/in/y");
    assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
    mv(&w, "/f/made/a/in", "/f/made/a/inside");
    assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
    mv(&w, "/f/made/a/inside", "/f/made/a/in");
    // The fork has removed it as well.
    w.unlink("/f/made/a/in/y").unwrap();
    assert!(merge(&w).merged);
    assert_eq!((w.exists("/s/a"), w.names("/s/made/a/in").len()), (false, 0));
    whole(w);
}

/// A file that the fork moved into something that does not come here, as this side is preferred, was in neither place.
#[test]
fn what_was_moved_into_something_that_is_left_out_stays() {
    type Change = fn(&World);
    let made: Change = |w| {
        w.mkdir("/f/made");
        mv(w, "/f/a", "/f/made/a");
    };
    let gone: Change = |w| drop(w.remove_tree("/s/a").unwrap());
    let cases: [(Change, Change, Change); 9] = [
        (made, |w| mv(w, "/f/f", "/f/made/a/f"), gone),
        (made, |w| mv(w, "/f/b", "/f/made/a/b"), gone),
        // Out of a directory that goes, or is another one, or with it.
        (
            made,
            |w| {
                mv(w, "/f/b/z", "/f/made/a/z");
                w.remove_tree("/f/b").unwrap();
            },
            gone,
        ),
        (
            made,
            |w| {
                mv(w, "/f/b", "/f/made/a/b");
                w.mkdir("/f/b");
            },
            gone,
        ),
        (
            made,
            |w| {
                mv(w, "/f/b", "/f/made/b");
                mv(w, "/f/made/b/z", "/f/made/a/z");
            },
            gone,
        ),
        // Something else has its name.
        (
            made,
            |w| {
                mv(w, "/f/f", "/f/made/a/f");
                w.put("/f/f", b"another");
            },
            gone,
        ),
        (
            made,
            |w| {
                mv(w, "/f/f", "/f/made/a/f");
                w.mkdir("/f/f");
            },
            gone,
        ),
        // There is a file in the place of the directory, or nothing around it.
        (
            |w| {
                w.mkdir("/f/made");
            },
            |w| mv(w, "/f/f", "/f/made/f"),
            |w| {
                w.put("/s/made", b"a file");
            },
        ),
        (
            |w| {
                w.mkdir("/f/a/new");
            },
            |w| mv(w, "/f/f", "/f/a/new/f"),
            gone,
        ),
    ];
    for (number, (first, then, here)) in cases.into_iter().enumerate() {
        let scene = || {
            let w = World::new();
            for dir in ["/s", "/s/a", "/s/b"] {
                w.mkdir(dir);
            }
            for file in ["/s/f", "/s/a/x", "/s/b/z"] {
                w.put(file, file.as_bytes());
            }
            w.fork("/s", "/f");
            first(&w);
            then(&w);
            here(&w);
            w
        };
        let w = scene();
        assert!(refused(&w).len() >= 2, "{number}: {:?}", refused(&w));
        assert!(prefer(&w, MergeSide::Ours).merged);
        for file in ["/s/f", "/s/b/z"] {
            let found = w.get(file).ok().or_else(|| w.get(&file.replace("/s/b/", "/s/made/b/")).ok());
            assert_eq!(found.as_deref(), Some(file.as_bytes()), "{number}: {:?}", read(&w, "/s").keys());
        }
        whole(w);
        let w = scene();
        assert!(prefer(&w, MergeSide::Theirs).merged);
        assert_eq!(read(&w, "/s"), read(&w, "/f"), "{number}");
        whole(w);
    }
}

/// Moved in the fork, and here copied to the same place and deleted.
#[test]
fn what_both_sides_have_at_the_new_place_is_no_conflict() {
    for (here, merges) in [("/s/f", true), ("otherwise", false)] {
        let w = scene();
        for dir in ["/f/made", "/s/made"] {
            w.mkdir(dir);
        }
        mv(&w, "/f/f", "/f/made/f");
        w.unlink("/s/f").unwrap();
        w.put("/s/made/f", here.as_bytes());
        if !merges {
            assert_eq!(refused(&w), [("made/f".into(), MergeConflict::Changed)]);
            continue;
        }
        assert!(merge(&w).merged);
        assert_eq!((w.get("/s/made/f").unwrap(), w.exists("/s/f")), (b"/s/f".to_vec(), false));
        whole(w);
    }
}

/// What lies in a directory that was deleted here is not told again, also if others were.
#[test]
fn directories_that_were_moved_into_a_new_one_are_told_once_each() {
    let w = scene();
    w.mkdir("/f/made");
    for dir in ["a", "b"] {
        mv(&w, &format!("/f/{dir}"), &format!("/f/made/{dir}"));
        w.remove_tree(&format!("/s/{dir}")).unwrap();
    }
    mv(&w, "/f/made/a/x", "/f/made/a/renamed");
    let dir = |name: &str| (format!("made/{name}"), MergeConflict::RemovedHere);
    assert_eq!(refused(&w), [dir("a"), dir("b")]);
}

/// The fork has deleted a name, which was moved here over a file that both sides have.
#[test]
fn a_name_of_several_that_took_the_place_of_another_file_is_no_conflict() {
    let w = World::new();
    for dir in ["/s", "/s/d"] {
        w.mkdir(dir);
    }
    w.put("/s/one", b"linked");
    w.put("/s/d/f", b"replaced");
    w.link("/s/one", "/s/two").unwrap();
    w.fork("/s", "/f");
    mv(&w, "/s/one", "/s/d/f");
    w.unlink("/f/one").unwrap();
    assert!(prefer(&w, MergeSide::Theirs).merged);
    assert_eq!((w.get("/s/d/f").unwrap(), w.exists("/s/one")), (b"linked".to_vec(), false));
    w.fs.count_links().unwrap();
    whole(w);
}

/// Which of several names of a file has become which is not known: a rename of one is none of another.
#[test]
fn of_several_names_the_one_that_is_left_is_not_lost() {
    for changed in ["/f", "/s"] {
        for side in [MergeSide::Ours, MergeSide::Theirs] {
            let w = World::new();
            w.mkdir("/s");
            w.put("/s/x", b"linked");
            w.link("/s/x", "/s/y").unwrap();
            w.fork("/s", "/f");
            w.unlink("/s/x").unwrap();
            w.unlink("/f/x").unwrap();
            mv(&w, &format!("{changed}/y"), &format!("{changed}/y2"));
            assert!(prefer(&w, side).merged);
            assert_eq!(w.names("/s"), ["y2"], "{changed} {side:?}");
            assert_eq!(w.get("/s/y2").unwrap(), b"linked");
            w.fs.count_links().unwrap();
            whole(w);
        }
    }
}

/// What nobody waits for any more ends within the search for renames, which may take long.
#[test]
fn a_search_for_renames_ends_when_it_is_interrupted() {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let w = World::over(Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap());
    for dir in ["/s", "/s/d"] {
        w.mkdir(dir);
    }
    for i in 0..10_000 {
        w.put(&format!("/s/d/{i}"), &[1; 200]);
    }
    w.fork("/s", "/f");
    w.mkdir("/f/e");
    (0..10_000).for_each(|i| mv(&w, &format!("/f/d/{i}"), &format!("/f/e/{i}")));
    w.fs.close().unwrap();
    let reads = |stop: bool, merges: bool| {
        let w = World::over(Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap());
        let before = device.stats().reads;
        let stop = AtomicBool::new(stop);
        let options = MergeOptions { dry_run: true, ..MergeOptions::default() };
        let done = match merges {
            true => w.on("/f", |f| {
                w.on("/s", |s| w.fs.merge_unless(None, f.ino, s.ino, options, &stop).map(drop))
            }),
            false => w.on("/f", |f| {
                let mut diff = w.fs.diff_fork(None, f.ino, DiffOptions::default())?;
                diff.stop().store(stop.load(Ordering::Relaxed), Ordering::Relaxed);
                diff.next().transpose().map(drop)
            }),
        };
        assert_eq!(done.map_err(|e| e.errno()), if stop.into_inner() { Err(EINTR) } else { Ok(()) });
        device.stats().reads - before
    };
    for merges in [true, false] {
        let (all, few) = (reads(false, merges), reads(true, merges));
        println!("merge {merges}: {all} reads, interrupted {few}");
        assert!(few * 3 < all, "merge {merges}: {all} reads, interrupted {few}");
    }
}

/// The fork's change of the file went with the directory, although the fork is preferred.
#[test]
fn what_was_moved_into_a_directory_that_goes_is_not_lost() {
    for changed in [true, false] {
        let w = scene();
        mv(&w, "/s/f", "/s/a/in/f");
        if changed {
            w.put("/f/f", b"changed in the fork");
        }
        w.remove_tree("/f/a").unwrap();
        assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
        let report = prefer(&w, MergeSide::Theirs);
        let why = MergeKind::Conflict(MergeConflict::MovedInto);
        assert!(!report.merged && report.changes.iter().any(|c| c.kind == why && c.path == "a/in/f"));
        mv(&w, "/s/a/in/f", "/s/out");
        assert!(prefer(&w, MergeSide::Theirs).merged);
        let wanted: &[u8] = if changed { b"changed in the fork" } else { b"/s/f" };
        assert_eq!(w.get("/s/out").unwrap(), wanted);
        assert!(!w.exists("/s/a"));
        whole(w);
    }
}

/// It comes into memory only for the rename, behind the change of its mode.
#[test]
fn a_directory_that_is_changed_and_moved_into_has_its_new_mode_in_memory() {
    let mut w = scene();
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    w.on("/f/b", |a| w.fs.setattr(&w.me, a.ino, &mode)).unwrap();
    mv(&w, "/f/a", "/f/b/a");
    w.remount();
    // What is moved is in memory, and so is what it is moved into from then on.
    let moved = w.fs.resolve("/s/a".as_ref()).unwrap().ino;
    assert!(merge(&w).merged);
    assert_eq!(w.attr("/s/b").perm, 0o700);
    w.fs.forget(moved, 1);
    whole(w);
}

/// A directory that nobody has in memory is moved, and something that is in memory is moved into it: it comes to memory
/// for that, and is to be known at its new place.
#[test]
fn what_is_moved_into_a_moved_directory_is_found_and_can_be_written() {
    for (dir, file) in [("a", "g"), ("b", "f"), ("a", "f")] {
        let mut w = scene();
        let new = format!("/f/{}/{dir}", if dir == "a" { "b" } else { "a" });
        mv(&w, &format!("/f/{dir}"), &new);
        mv(&w, &format!("/f/{file}"), &format!("{new}/{file}"));
        w.remount();
        let held = w.fs.resolve(format!("/s/{file}").as_ref()).unwrap().ino;
        assert!(merge(&w).merged);
        w.fs.write(FileHandle(0), held, 0, b"written after", false).unwrap();
        let there = format!("{}/{file}", new.replacen("/f/", "/s/", 1));
        assert!(w.get(&there).unwrap().starts_with(b"written after"), "{there}");
        w.fs.forget(held, 1);
        w.remount();
        assert!(w.get(&there).unwrap().starts_with(b"written after"), "{there}");
        whole(w);
    }
}

#[test]
fn a_taken_name_and_a_circle_are_conflicts_that_no_side_settles() {
    let w = scene();
    mv(&w, "/f/f", "/f/taken");
    w.put("/s/taken", b"something else");
    assert_eq!(refused(&w), [("f".into(), MergeConflict::Taken)]);
    for side in [MergeSide::Ours, MergeSide::Theirs] {
        assert!(!prefer(&w, side).merged);
    }
    mv(&w, "/s/taken", "/s/elsewhere");
    assert!(merge(&w).merged);
    assert_eq!(w.names("/s"), ["a", "b", "elsewhere", "g", "taken"]);
    whole(w);
    let w = scene();
    mv(&w, "/f/a", "/f/b/a");
    mv(&w, "/s/b", "/s/a/b");
    assert_eq!(refused(&w), [("a".into(), MergeConflict::Circle)]);
    for side in [MergeSide::Ours, MergeSide::Theirs] {
        assert!(!prefer(&w, side).merged);
    }
    // A name that something else of the origin has come to here.
    let w = scene();
    mv(&w, "/s/g", "/s/new");
    w.put("/f/new", b"made there");
    assert_eq!(refused(&w), [("new".into(), MergeConflict::Taken)]);
}

#[test]
fn chains_exchanges_and_directories_turned_inside_out_are_made_at_once() {
    let w = scene();
    w.rename("/f/f", "/f/g", RENAME_EXCHANGE).unwrap();
    mv(&w, "/f/a/x", "/f/b/x");
    mv(&w, "/f/a/in", "/f/top");
    mv(&w, "/f/a", "/f/top/a");
    mv(&w, "/f/b", "/f/a");
    w.put("/f/b", b"a file by now");
    w.put("/s/a/in/y", b"changed here");
    w.put("/s/f", b"f of here");
    assert!(merge(&w).merged);
    assert_eq!((w.get("/s/g").unwrap(), w.get("/s/f").unwrap()), (b"f of here".into(), b"/s/g".into()));
    assert_eq!(w.get("/s/top/y").unwrap(), b"changed here");
    assert_eq!((w.names("/s"), w.names("/s/a")), (w.names("/f"), vec!["x".into()]));
    assert_eq!(w.names("/s/top"), ["a", "y"]);
    assert_eq!(w.get("/s/b").unwrap(), b"a file by now");
    whole(w);
}

#[test]
fn what_is_renamed_keeps_its_number_and_what_is_open_stays_open() {
    let w = scene();
    mv(&w, "/f/f", "/f/b/f2");
    mv(&w, "/f/a/in", "/f/b/in");
    w.remove_tree("/f/a").unwrap();
    w.put("/s/a/in/y", b"changed in what was moved out of a directory that goes");
    let open = |path: &str| {
        let attr = w.fs.resolve(Path::new(path)).unwrap();
        (attr.ino, w.fs.open_file(&w.me, attr.ino, 2).unwrap())
    };
    let (file, inner, gone) = (open("/s/f"), open("/s/a/in/y"), open("/s/a/x"));
    let (report, cache) =
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(None, f.ino, s.ino, MergeOptions::default()))).unwrap();
    assert!(report.merged, "{report:?}");
    assert_eq!((w.attr("/s/b/f2").ino, w.attr("/s/b/in/y").ino), (file.0, inner.0));
    assert_eq!(cache.orphaned, [gone.0]);
    let (top, b) = (w.attr("/s").ino, w.attr("/s/b").ino);
    for entry in [(top, "f"), (b, "f2"), (b, "in"), (top, "a")] {
        assert!(cache.entries.contains(&(entry.0, entry.1.into())), "{entry:?}: {cache:?}");
    }
    let in_memory = w.attr("/s/b");
    // Written through what was open before, and seen at the new names.
    for ((ino, handle), path) in [(file, Some("/s/b/f2")), (inner, Some("/s/b/in/y")), (gone, None)] {
        assert_eq!(w.fs.write(handle, ino, 0, b"late", false).unwrap(), 4);
        if let Some(path) = path {
            assert_eq!(&w.get(path).unwrap()[..4], b"late", "{path}");
        }
        w.fs.release(ino, handle);
        w.fs.forget(ino, 1);
    }
    assert_eq!(w.attr("/s/b"), in_memory, "what is stored");
    whole(w);
}

#[test]
fn what_cannot_be_moved_as_it_is_has_gone_and_come() {
    // Into a directory that is new.
    let w = scene();
    w.mkdir("/f/made");
    mv(&w, "/f/f", "/f/made/f");
    assert!(merge(&w).merged);
    assert_eq!((w.exists("/s/f"), w.get("/s/made/f").unwrap()), (false, b"/s/f".into()));
    whole(w);
    // Names of one file, and a directory with one.
    let w = World::new();
    for dir in ["/s", "/s/d", "/s/e"] {
        w.mkdir(dir);
    }
    w.put("/s/one", b"linked");
    w.link("/s/one", "/s/d/two").unwrap();
    w.fork("/s", "/f");
    mv(&w, "/f/one", "/f/e/one");
    mv(&w, "/f/d", "/f/e/d");
    let theirs = read(&w, "/f");
    assert!(merge(&w).merged);
    assert_eq!(read(&w, "/s"), theirs);
    w.fs.count_links().unwrap();
    whole(w);
    // A directory with a fork in it.
    let w = scene();
    w.fork("/s/b", "/s/a/forked");
    mv(&w, "/f/a", "/f/moved");
    assert_eq!(refused(&w), [("a".into(), MergeConflict::RemovedThere)]);
}

/// The merge failed: what moves had no record at its place.
#[test]
fn a_file_that_the_fork_renamed_may_have_got_a_second_name_here() {
    let w = scene();
    mv(&w, "/f/f", "/f/a/renamed");
    w.put("/f/a/renamed", b"changed");
    w.link("/s/f", "/s/b/second").unwrap();
    let dry = w.merge("/f", "/s", MergeOptions { dry_run: true, ..Default::default() }).unwrap();
    let report = merge(&w);
    assert!(report.merged && report.changes == dry.changes, "{report:?} {dry:?}");
    assert_eq!((w.exists("/s/f"), w.get("/s/a/renamed").unwrap()), (false, b"changed".into()));
    assert_eq!(w.get("/s/b/second").unwrap(), b"/s/f");
    w.fs.count_links().unwrap();
    whole(w);
}

/// A directory that was forked, or has a policy, is still that one at its new name.
#[test]
fn what_is_kept_of_a_directory_goes_with_it() {
    for exchanged in [false, true] {
        let w = scene();
        w.fork("/s/a", "/other");
        let policy = StoredPolicy { every_secs: 60, ..StoredPolicy::default() };
        let by = Authority::Caller(&w.me);
        w.on("/s/a", |a| w.fs.set_policy(by, a.ino, Some(&policy))).unwrap();
        mv(&w, "/f/a", "/f/moved");
        if exchanged {
            mv(&w, "/f/b", "/f/a");
        }
        assert!(merge(&w).merged);
        let paths: Vec<_> = w.fs.policies().unwrap().into_iter().map(|(_, info)| info.path).collect();
        assert_eq!(paths, [Path::new("/s/moved")]);
        let source = w.on("/other", |f| w.fs.fork_of(f.ino)).unwrap().source;
        assert_eq!(source.as_deref(), Some("/s/moved".as_ref()));
        whole(w);
    }
    // Also out of a directory that goes.
    let w = scene();
    w.fork("/s/a/in", "/other");
    mv(&w, "/f/a/in", "/f/b/in");
    w.remove_tree("/f/a").unwrap();
    assert!(merge(&w).merged);
    let source = w.on("/other", |f| w.fs.fork_of(f.ino)).unwrap().source;
    assert_eq!(source.as_deref(), Some("/s/b/in".as_ref()));
    whole(w);
}

#[test]
fn only_who_owns_what_moves_and_the_directories_around_may_merge_a_rename() {
    let w = scene();
    let own = |path: &str, uid| {
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &set)).unwrap();
    };
    for path in ["/s", "/f", "/s/f", "/f/f"] {
        own(path, 1000);
    }
    mv(&w, "/f/f", "/f/b/f");
    let merge =
        || w.on("/f", |f| w.on("/s", |s| w.fs.merge(Some(1000), f.ino, s.ino, MergeOptions::default())));
    assert_eq!(merge().unwrap_err().errno(), EPERM, "into a directory of root's");
    own("/s/b", 1000);
    own("/s/f", 0);
    own("/f/b/f", 0);
    assert_eq!(merge().unwrap_err().errno(), EPERM, "a file of root's");
    assert!(w.exists("/s/f"));
}

#[test]
fn a_fork_inside_what_it_is_merged_into_is_not_taken_for_what_came_from_there() {
    let w = World::new();
    for dir in ["/s", "/s/forks", "/s/d"] {
        w.mkdir(dir);
    }
    w.put("/s/d/x", b"x");
    w.fork("/s", "/s/forks/f");
    w.unlink("/s/d/x").unwrap();
    w.put("/s/forks/f/d/x", b"changed");
    let report = w.merge("/s/forks/f", "/s", MergeOptions::default()).unwrap();
    assert_eq!((report.merged, conflicts(&report)), (false, vec!["/d/x".to_owned()]));
    // Nor is the directory moved that it lies in.
    w.unlink("/s/forks/f/d/x").unwrap();
    mv(&w, "/s/forks/f/forks", "/s/forks/f/moved");
    let moved = w.merge("/s/forks/f", "/s", MergeOptions::default());
    assert!(moved.is_err() || !moved.as_ref().unwrap().merged, "{moved:?}");
    assert_eq!(w.get("/s/forks/f/d/x").map_err(|e| e.errno()), Err(2));
}

#[test]
fn a_crash_at_any_request_leaves_all_renames_of_a_merge_or_none() {
    let (mut before, mut after) = (0u32, 0u32);
    for n in (0u64..).flat_map(|n| [n; 2]) {
        assert!(n < 2000, "never done");
        let device = Arc::new(SimDevice::new(64 << 20, n + u64::from(before + after) + 1));
        Fs::format(device.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
        let w = World::over(Fs::open(device.clone(), options()).unwrap());
        for dir in ["/s", "/s/a", "/s/b"] {
            w.mkdir(dir);
        }
        for file in ["/s/f", "/s/g", "/s/a/x"] {
            w.put(file, &vec![file.len() as u8; 20_000]);
        }
        w.fork("/s", "/f");
        w.rename("/f/f", "/f/g", RENAME_EXCHANGE).unwrap();
        mv(&w, "/f/b", "/f/a/b");
        mv(&w, "/f/a", "/f/c");
        let (theirs, ours) = (read(&w, "/f"), read(&w, "/s"));
        w.fs.close().unwrap();
        let w = World::over(Fs::open(device.clone(), options()).unwrap());
        device.set_fail_at(Some(n), FailMode::Onwards);
        let done = w.merge("/f", "/s", MergeOptions::default()).map(|report| assert!(report.merged));
        let safe = done.is_ok() && w.fs.sync().is_ok() && w.fs.db().checkpoint().is_ok();
        device.crash();
        drop(w);
        let w = World::over(Fs::open(device.reopen(), options()).unwrap());
        w.fs.check(|problem| panic!("request {n}: {problem}")).unwrap();
        let found = read(&w, "/s");
        match found == ours {
            true => before += 1,
            false => after += 1,
        }
        assert!(found == ours && !safe || found == theirs && done.is_ok(), "request {n}: {found:?}");
        if safe {
            break;
        }
    }
    println!("{before} before, {after} after");
    assert!(before > 5 && after > 3, "{before} before, {after} after");
}

/// A renamed directory is moved by reference, whatever is in it.
#[test]
fn a_rename_of_a_large_directory_costs_what_one_of_a_small_one_does() {
    let cost = |files: u32| {
        let device = Arc::new(MemDevice::new(256 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
        let w = World::over(Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap());
        for dir in ["/s", "/s/d", "/s/e"] {
            w.mkdir(dir);
        }
        for i in 0..files {
            w.put(&format!("/s/d/{i}"), &[1; 200]);
        }
        w.fork("/s", "/f");
        mv(&w, "/f/d", "/f/e/moved");
        w.put("/s/d/7", b"changed here");
        w.fs.close().unwrap();
        let w = World::over(Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap());
        let stats = device.stats();
        assert!(merge(&w).merged);
        w.fs.sync().unwrap();
        let now = device.stats();
        assert_eq!(w.get("/s/e/moved/7").unwrap(), b"changed here");
        assert_eq!(w.names("/s/e/moved").len(), files as usize);
        (now.reads - stats.reads, now.write_bytes - stats.write_bytes)
    };
    let (small, large) = (cost(100), cost(10_000));
    println!("reads and bytes written: 100 files {small:?}, 10,000 files {large:?}");
    assert!(large.0 <= small.0 + 60 && large.1 <= small.1 + (8 << 10), "{small:?} {large:?}");
}

/// What is reported lies where it is after the merge, also if something else leaves that path.
#[test]
fn what_comes_to_a_path_that_another_leaves_is_told_by_that_path() {
    let w = World::new();
    w.mkdir("/s");
    w.put("/s/from", b"content");
    w.fork("/s", "/f");
    w.rename("/f/from", "/f/to", 0).unwrap();
    w.put("/f/from", b"new");
    let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
    let told: Vec<_> = report.changes.iter().map(|c| (c.kind, c.path.to_str().unwrap())).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    for wanted in [(MergeKind::Renamed, "to"), (MergeKind::Added, "from")] {
        assert!(told.contains(&wanted), "{told:?}");
    }
    assert_eq!((w.get("/s/to").unwrap(), w.get("/s/from").unwrap()), (b"content".to_vec(), b"new".to_vec()));
}

/// A clone has the number of what it was made of. Where that has gone from its path, and the clone in it has not, the
/// clone is not taken for it.
#[test]
fn a_clone_that_stays_in_a_new_directory_is_not_the_directory_that_went() {
    for dir in [true, false] {
        let w = World::new();
        w.mkdir("/s");
        w.mkdir("/s/b");
        w.put("/s/b/file", b"content");
        w.clone_tree("/s/b", "/clone", false).unwrap();
        w.rename("/clone", "/s/b/clone", 0).unwrap();
        w.fork("/s", "/f");
        // The same again, in a directory with another number.
        w.mkdir("/s/new");
        for name in ["file", "clone"] {
            w.rename(&format!("/s/b/{name}"), &format!("/s/new/{name}"), 0).unwrap();
        }
        w.rmdir("/s/b").unwrap();
        w.rename("/s/new", "/s/b", 0).unwrap();
        match dir {
            true => _ = w.remove_tree("/f/b/clone").unwrap(),
            false => _ = w.write_at("/f/b/clone/file", 0, b"CON").unwrap(),
        }
        let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        assert!(report.merged && report.changes.len() == 1, "{report:?}");
        assert_eq!(read(&w, "/s"), read(&w, "/f"), "{report:?}");
        w.fs.check(|problem| panic!("{problem}")).unwrap();
    }
}
