//! Rollbacks: what they bring back, and what stays with directories below.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::{common::*, snapshots::*};
use pando_fs::*;
use std::collections::BTreeMap;

#[test]
fn snapshots_of_directories_below_a_rollback_stay_with_them() {
    let mut w = World::new();
    for dir in ["/top", "/top/in", "/top/in/deep", "/top/other", "/new", "/new/in"] {
        w.mkdir(dir);
        w.put(&format!("{dir}/f"), b"1");
    }
    // A clone in it is the root of a lineage of its own.
    w.clone_tree("/new", "/top/clone", false).unwrap();
    let mut numbers: BTreeMap<&str, u32> =
        ["/top/in", "/top/in/deep", "/top/other", "/top/clone/in", "/new/in"]
            .map(|dir| (dir, snap(&w, dir, "inner").number))
            .into();
    let outer = snap(&w, "/top", "outer").number;
    // What came after, and what is another directory at the same place.
    w.mkdir("/top/later");
    snap(&w, "/top/later", "inner");
    w.remove_tree("/top/other").unwrap();
    w.mkdir("/top/other");
    let other = snap(&w, "/top/other", "inner").number;
    let removed = numbers.remove("/top/other").unwrap();
    w.put("/top/in/deep/f", b"2");
    for round in 0..3 {
        w.on("/top", |a| w.fs.rollback(by(&w), a.ino, outer, round != 1)).unwrap();
        for _ in 0..2 {
            w.fs.check(|problem| panic!("{problem}")).unwrap();
            for (dir, number) in &numbers {
                assert_eq!(names(&w, &format!("{dir}/.snapshots")), ["inner"], "{dir}");
                let found = w.on(dir, |a| w.fs.snapshots(a.ino)).unwrap();
                assert_eq!(found.iter().map(|info| info.number).collect::<Vec<_>>(), [*number], "{dir}");
                assert_eq!(w.get(&format!("{dir}/.snapshots/inner/f")).unwrap(), b"1");
            }
            assert_eq!(w.get("/top/in/deep/f").unwrap(), b"1");
            assert_eq!(errno(w.on("/top/later", |_| Ok(()))), ENOENT);
            assert_eq!(w.on("/top/other", |a| w.fs.snapshots(a.ino)).unwrap(), []);
            let gone: Vec<u32> = w.fs.snapshots_of_gone().unwrap().iter().map(|info| info.number).collect();
            assert_eq!(gone, [removed, outer + 1, other]);
            w.remount();
        }
        // They go with their directories, and are all that their directories need.
        w.rename("/top/in", "/top/away", 0).unwrap();
        w.rename("/top/away", "/top/in", 0).unwrap();
        w.on("/top/in/deep", |a| w.fs.rollback(by(&w), a.ino, numbers["/top/in/deep"], true)).unwrap();
    }
    let own = w.on("/top", |a| w.fs.snapshots(a.ino)).unwrap();
    assert_eq!(own.len(), 2, "outer, and one before a rollback");
    w.on("/top/in", |a| w.fs.delete_snapshot(by(&w), a.ino, numbers["/top/in"])).unwrap();
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

#[test]
fn a_directory_that_was_moved_comes_back_from_a_rollback_with_its_snapshots_and_policy() {
    let mut w = World::new();
    for dir in ["/top", "/top/a", "/top/a/b", "/top/late"] {
        w.mkdir(dir);
        w.put(&format!("{dir}/f"), b"1");
    }
    let of = |w: &World, path: &str| -> Vec<u32> {
        w.on(path, |a| w.fs.snapshots(a.ino)).unwrap().iter().map(|info| info.number).collect()
    };
    let policy = StoredPolicy { every_secs: 7, ..StoredPolicy::default() };
    w.on("/top/a", |a| w.fs.set_policy(by(&w), a.ino, Some(&policy))).unwrap();
    let (a, b) = (snap(&w, "/top/a", "one").number, snap(&w, "/top/a/b", "one").number);
    let outer = snap(&w, "/top", "outer").number;
    // Its only snapshot was made after that of the top, but at its place of then.
    let late = snap(&w, "/top/late", "one").number;
    w.rename("/top/late", "/top/moved", 0).unwrap();
    w.mkdir("/top/c");
    w.rename("/top/a", "/top/c/d", 0).unwrap();
    let again = snap(&w, "/top/c/d", "two").number;
    // Another directory has its place.
    w.mkdir("/top/a");
    let other = snap(&w, "/top/a", "one").number;
    w.on("/top", |a| w.fs.rollback(by(&w), a.ino, outer, true)).unwrap();
    for _ in 0..2 {
        w.fs.check(|problem| panic!("{problem}")).unwrap();
        assert_eq!((of(&w, "/top/a"), of(&w, "/top/a/b")), (vec![a, again], vec![b]));
        assert_eq!(of(&w, "/top/late"), [late]);
        assert_eq!(w.get("/top/a/.snapshots/two/b/f").unwrap(), b"1");
        let gone: Vec<u32> = w.fs.snapshots_of_gone().unwrap().iter().map(|info| info.number).collect();
        assert_eq!(gone, [other]);
        let stored = w.fs.policies().unwrap();
        assert_eq!(stored.iter().map(|(_, info)| info.path.to_str()).collect::<Vec<_>>(), [Some("/top/a")]);
        w.remount();
    }
    // One that was moved out keeps them, and what comes back in its place has none.
    w.rename("/top/a", "/out", 0).unwrap();
    w.on("/top", |a| w.fs.rollback(by(&w), a.ino, outer, true)).unwrap();
    assert_eq!((of(&w, "/out"), of(&w, "/out/b")), (vec![a, again], vec![b]));
    assert_eq!((of(&w, "/top/a"), of(&w, "/top/a/b")), (vec![], vec![]));
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

/// Two directories with snapshots came back to one place, and the snapshots of one of them belonged to nobody.
#[test]
fn a_clone_in_the_place_of_a_moved_directory_keeps_its_own_snapshots_and_policy() {
    let mut w = World::new();
    for dir in ["/top", "/top/p"] {
        w.mkdir(dir);
        w.put(&format!("{dir}/f"), b"1");
    }
    let policy = |secs| StoredPolicy { every_secs: secs, ..StoredPolicy::default() };
    let set = |w: &World, path: &str, secs| {
        w.on(path, |a| w.fs.set_policy(by(w), a.ino, Some(&policy(secs)))).unwrap();
    };
    set(&w, "/top/p", 7);
    let first = snap(&w, "/top/p", "one").number;
    let outer = snap(&w, "/top", "outer").number;
    w.rename("/top/p", "/top/q", 0).unwrap();
    w.clone_tree("/top/q", "/top/p", false).unwrap();
    set(&w, "/top/p", 9);
    let second = snap(&w, "/top/p", "two").number;
    w.on("/top", |a| w.fs.rollback(by(&w), a.ino, outer, true)).unwrap();
    for _ in 0..2 {
        w.fs.check(|problem| panic!("{problem}")).unwrap();
        let own = w.on("/top/p", |a| w.fs.snapshots(a.ino)).unwrap();
        let gone = w.fs.snapshots_of_gone().unwrap();
        let numbers = |infos: &[SnapshotInfo]| infos.iter().map(|info| info.number).collect::<Vec<_>>();
        assert_eq!((numbers(&own), numbers(&gone)), (vec![second], vec![first]));
        let stored = w.fs.policies().unwrap();
        assert_eq!(stored.iter().map(|(_, info)| info.policy.every_secs).collect::<Vec<_>>(), [9]);
        w.remount();
    }
}

#[test]
fn rolling_back_is_atomic_and_keeps_what_was() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", b"first");
    let info = snap(&w, "/d", "first");
    w.put("/d/f", b"second");
    w.mkdir("/d/more");
    // What was moved out since stays itself, beside its older copy.
    w.put("/d/out", b"out");
    snap(&w, "/d", "second");
    w.rename("/d/out", "/out", 0).unwrap();
    let open = w.attr("/d/f").ino;
    let held = w.fs.resolve("/d/f".as_ref()).unwrap();
    let handle = w.fs.open_file(&w.me, held.ino, 0).unwrap();
    let (report, before) = w.on("/d", |a| w.fs.rollback(by(&w), a.ino, info.number, false)).unwrap();
    assert_eq!(report.entries[0], (ROOT, "d".into()));
    assert_eq!((names(&w, "/d"), w.get("/d/f").unwrap()), (vec!["f".into()], b"first".to_vec()));
    assert_eq!(names(&w, "/d/.snapshots").len(), 3);
    let before = before.unwrap().name.into_string().unwrap();
    assert_eq!(names(&w, &format!("/d/.snapshots/{before}")), ["f", "more"]);
    assert_eq!(&w.fs.read(handle, open, 0, 100).unwrap()[..], b"second", "an open file stays usable");
    w.fs.release(open, handle);
    w.fs.forget(held.ino, 1);
    // Forward again, thrown away.
    let second = w.on("/d", |a| Ok(w.fs.snapshots(a.ino)?[1].clone())).unwrap();
    assert_eq!(second.name, "second");
    w.on("/d", |a| w.fs.rollback(by(&w), a.ino, second.number, true)).unwrap();
    assert_eq!(
        (names(&w, "/d"), names(&w, "/d/.snapshots").len()),
        (vec!["f".into(), "more".into(), "out".into()], 3)
    );
    w.walk("/");
    assert_eq!(errno(w.fs.rollback(by(&w), ROOT, 1, false).map(|_| ())), EINVAL);
    w.mkdir("/other");
    assert_eq!(errno(w.on("/other", |a| w.fs.rollback(by(&w), a.ino, 1, false).map(|_| ()))), ENOENT);
    check_keys(&w);
}

/// Else a command that looks its snapshot up says that there is none.
#[test]
fn a_directory_that_was_rolled_back_says_that_its_snapshots_are_elsewhere() {
    let w = World::new();
    w.mkdir("/d");
    let info = snap(&w, "/d", "one");
    let kept = |ino| w.fs.snapshots_of(ino, 0, 10).map(|found| found.len());
    w.on("/d", |before| {
        assert_eq!(kept(before.ino).unwrap(), 1);
        w.on("/d", |a| w.fs.rollback(by(&w), a.ino, info.number, true)).unwrap();
        assert_eq!(errno(kept(before.ino).map(drop)), ESTALE);
        w.on("/d", |after| kept(after.ino)).map(|n| assert_eq!(n, 1))
    })
    .unwrap();
    w.mkdir("/e");
    assert_eq!(w.on("/e", |a| kept(a.ino)).unwrap(), 0, "one without snapshots has none");
}

/// The time of a snapshot may be from before its batch: a policy's is that at which its round began.
#[test]
fn a_fork_that_is_in_a_snapshot_stays_one_when_that_is_rolled_back_to() {
    let w = World::new();
    w.mkdir("/w");
    w.mkdir("/w/a");
    w.put("/w/a/f", b"1");
    let policy = StoredPolicy { every_secs: 10, ..StoredPolicy::default() };
    let dir = w.attr("/w").ino;
    w.on("/w", |a| w.fs.set_policy(Authority::Caller(&w.me), a.ino, Some(&policy))).unwrap();
    let (_, info) = w.fs.policies().unwrap().remove(0);
    let before = Time { secs: 1_000_000_000, nanos: 0 };
    let mut fork = |_| w.fork("/w/a", "/w/f");
    let work = w.fs.carry_out_policy(&info, (before, false), &mut fork, &mut |_| {}).unwrap();
    assert!(work.made.is_some());
    let number = w.fs.snapshots(dir).unwrap()[0].number;
    w.put("/w/f/g", b"2");
    w.on("/w", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, number, true)).unwrap();
    check_keys(&w);
    w.put("/w/f/h", b"3");
    w.merge("/w/f", "/w/a", MergeOptions::default()).unwrap();
    assert_eq!(w.get("/w/a/h").unwrap(), b"3");
    check_keys(&w);
}
