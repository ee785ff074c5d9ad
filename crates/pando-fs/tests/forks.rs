//! Forks: what they know, what a merge makes of two histories, who may, and that crashes leave all of it or nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    ffi::OsStr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    time::Duration,
};

use super::common::{
    EINTR, ENOENT, ESTALE, World, check_keys, errno,
    merged::{conflicts, expect},
    noise, options,
    seeds::{is_replay, seeds_for},
    trees::{Node, Rng, picture, read, step},
};
use pando_db::device::{Device, DeviceCall, FailMode, HookedDevice, MemDevice, SimDevice};
use pando_fs::*;

fn tiny() -> World {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    World { device, fs, me: Caller::root() }
}

#[derive(Default, Debug)]
struct Seen {
    merged: u32,
    conflicts: u32,
    /// No preference settles them.
    unsettled: u32,
    renamed: u32,
    held: u32,
}

fn history(seed: u64, seen: &mut Seen) {
    let mut rng = Rng(seed | 1);
    let mut w = tiny();
    w.mkdir("/s");
    for _ in 0..rng.next(30) {
        step(&w, "/s", &mut rng);
    }
    w.fork("/s", "/f");
    let mut base = picture(&w, "/f");
    for round in 0..3 {
        let what = format!("PANDO_SEED={seed} round {round}");
        for _ in 0..rng.next(12) {
            step(&w, "/f", &mut rng);
        }
        for _ in 0..rng.next(6) {
            step(&w, "/s", &mut rng);
        }
        if rng.next(4) == 0 {
            w.remount();
        }
        let (fork, source) = (picture(&w, "/f"), picture(&w, "/s"));
        if ![&base, &fork, &source].iter().all(|p| p.is_plain()) {
            break; // a clone in a tree that was taken has the numbers of what it was made of
        }
        let (theirs, ours) = (&fork.tree, &source.tree);
        let (merged, clashes) = expect(&base, &fork, &source, None);
        let all = || format!("{what}\nbase {base:?}\ntheirs {fork:?}\nours {source:?}");
        let report = w.merge("/f", "/s", MergeOptions { dry_run: true, ..Default::default() }).unwrap();
        assert_eq!(conflicts(&report), clashes, "{}", all());
        assert!(!report.merged && read(&w, "/s") == *ours, "{what}: a dry run did something");
        seen.renamed += u32::from(report.changes.iter().any(|c| c.kind == MergeKind::Renamed));
        let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        assert_eq!(report.merged, clashes.is_empty(), "{what}");
        let wanted = match merged {
            Some(merged) => merged,
            None => {
                seen.conflicts += 1;
                assert!(read(&w, "/s") == *ours, "{what}: a merge with conflicts did something");
                let prefer = [MergeSide::Ours, MergeSide::Theirs][rng.next(2)];
                let o = MergeOptions { prefer: Some(prefer), ..Default::default() };
                let report = w.merge("/f", "/s", o).unwrap();
                let (wanted, clashes) = expect(&base, &fork, &source, Some(prefer));
                assert_eq!(report.merged, wanted.is_some(), "{prefer:?} {clashes:?} {report:?} {}", all());
                let Some(wanted) = wanted else {
                    seen.unsettled += 1;
                    assert!(read(&w, "/s") == *ours, "{what}: a merge with conflicts did something");
                    break;
                };
                wanted
            }
        };
        seen.merged += u32::from(wanted != *ours);
        assert_eq!(read(&w, "/s"), wanted, "{}", all());
        assert_eq!(read(&w, "/f"), *theirs, "{what}: the fork changed");
        // What is in memory is what is stored.
        w.walk("/");
        w.remount();
        assert_eq!(read(&w, "/s"), wanted, "{what}: after a remount");
        let again = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        assert!(again.changes.is_empty(), "{what}: {again:?}");
        let mut problems = Vec::new();
        w.fs.check(|text| problems.push(text.to_owned())).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "{what}");
        check_keys(&w);
        base = fork;
    }
    seen.held += 1;
    w.fs.close().unwrap();
}

/// Build tools go by times: what was built here since the fork wrote a file is older than its new content.
#[test]
fn a_file_that_gets_the_forks_content_has_the_time_of_the_merge() {
    let w = World::new();
    w.mkdir("/s");
    for name in ["changed", "kept", "gone"] {
        w.put(&format!("/s/{name}"), b"old");
    }
    w.fork("/s", "/f");
    let old = |path: &str| {
        let at = SetAttr { mtime: Some(SetTime::At(Time { secs: 1000, nanos: 7 })), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &at)).unwrap();
    };
    w.put("/f/changed", b"new");
    w.put("/f/added", b"new");
    w.on("/f/kept", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }))
        .unwrap();
    ["/f/changed", "/f/added", "/s/kept", "/f/kept"].into_iter().for_each(old);
    w.put("/s/built", b"of the old content");
    let built = w.attr("/s/built").mtime;
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    let changed = w.attr("/s/changed");
    assert!(w.get("/s/changed").unwrap() == b"new" && changed.mtime > built, "{:?} {built:?}", changed.mtime);
    assert_eq!(changed.mtime, changed.ctime);
    assert_eq!(w.attr("/s/added").mtime.secs, 1000, "what is new keeps the time that it has in the fork");
    assert_eq!((w.attr("/s/kept").mtime.secs, w.attr("/s/kept").perm), (1000, 0o600), "its content stays");
}

/// Somebody who compares a fork with its origin, file by file, must not go on with another origin.
#[test]
fn what_a_file_of_the_origin_held_is_told_of_that_origin_only() {
    let w = World::new();
    w.mkdir("/s");
    let old = noise(7, 40_000);
    w.put("/s/f", &old);
    w.put("/s/gone", b"gone");
    w.truncate("/s/f", 1 << 20).unwrap();
    w.write_at("/s/f", 600_000, b"island").unwrap();
    w.fork("/s", "/f");
    w.put("/f/f", b"new");
    w.unlink("/f/gone").unwrap();
    let number = || w.on("/f", |fork| w.fs.fork_of(fork.ino)).unwrap().number;
    let file_of = |number: u32, path: &str| {
        w.on("/f", |fork| w.fs.origin_file(None, (fork.ino, number), Path::new(path)))
    };
    let held = |number: u32, path: &str| -> Result<Vec<u8>> {
        let file = file_of(number, path)?;
        let mut out = vec![0; file.size() as usize];
        for piece in file {
            let (at, bytes) = piece?;
            out[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(out)
    };
    let mut expected = old;
    expected.resize(1 << 20, 0);
    expected[600_000..600_006].copy_from_slice(b"island");
    let first = number();
    assert_eq!(held(first, "gone").unwrap(), b"gone");
    assert!(held(first, "f").unwrap() == expected);
    assert_eq!(errno(held(first, "none")), ENOENT);
    let begun = file_of(first, "gone").unwrap();
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    assert_eq!(errno(held(first, "f")), ESTALE);
    assert_eq!(held(number(), "f").unwrap(), b"new");
    // One that had begun ends as it was, and ends early when that is wanted.
    begun.stop().store(true, Ordering::Relaxed);
    assert_eq!(errno(begun.collect::<Result<Vec<_>>>()), EINTR);
}

#[test]
fn merges_of_random_histories_are_those_of_plain_trees() {
    let (mut seen, mut seeds) = (Seen::default(), seeds_for("PANDO_MODEL_SECONDS", 8));
    let enough = |seen: &Seen| seen.merged > 5 && seen.conflicts > 5 && seen.renamed > 1;
    while let Some(seed) = seeds.next_until(enough(&seen), 100) {
        history(seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(enough(&seen) || is_replay(), "vacuous: {seen:?}");
}

/// What a merge brings is added to the account around its directory at once; a count afterwards changes nothing.
#[test]
fn what_a_merge_of_a_random_history_brings_is_known_at_once() {
    let (mut merged, mut less, mut inner) = (0, 0, 0);
    let mut seeds = seeds_for("PANDO_MODEL_SECONDS", 4);
    while let Some(seed) = seeds.next_until(merged > 10 && less > 3 && inner > 3, 200) {
        let mut rng = Rng(seed | 1);
        let w = tiny();
        w.mkdir("/q");
        w.mkdir("/q/s");
        for _ in 0..rng.next(40) {
            step(&w, "/q/s", &mut rng);
        }
        w.fork("/q/s", "/f");
        let limit = |path: &str| w.on(path, |a| w.fs.set_quota(a.ino, Some(1 << 30))).unwrap();
        limit("/q");
        let dirs: Vec<String> = read(&w, "/q/s")
            .into_iter()
            .filter(|(path, node)| !path.is_empty() && matches!(node, Node::Dir { .. }))
            .map(|(path, _)| path)
            .collect();
        for dir in dirs.iter().filter(|_| rng.next(3) == 0) {
            limit(&format!("/q/s{dir}"));
            inner += 1;
        }
        for _ in 0..rng.next(20) {
            step(&w, "/f", &mut rng);
        }
        for _ in 0..rng.next(4) {
            step(&w, "/q/s", &mut rng);
        }
        let used = || w.fs.quotas(ROOT).unwrap().iter().find(|q| q.path.ends_with("q")).unwrap().used;
        w.fs.count_quotas().unwrap();
        let before = used();
        let o = MergeOptions { prefer: Some(MergeSide::Theirs), ..Default::default() };
        if !w.merge("/f", "/q/s", o).unwrap().merged {
            continue;
        }
        let known = used();
        w.fs.count_quotas().unwrap();
        assert_eq!(known, used(), "PANDO_SEED={seed}: {before} before");
        merged += 1;
        less += u32::from(known < before);
        w.fs.check(|problem| panic!("PANDO_SEED={seed}: {problem}")).unwrap();
    }
    println!("{merged} merged, {less} to less, {inner} limits inside");
    assert!(merged > 10 && less > 3 && inner > 3 || is_replay(), "vacuous: {merged} {less} {inner}");
}

/// A fork and its source, with something of each kind to merge.
fn prepared(w: &World) {
    w.mkdir("/s");
    w.mkdir("/s/d");
    for name in ["keep", "edit", "moded", "gone", "d/x", "d/y"] {
        w.put(&format!("/s/{name}"), &vec![b'1'; 20_000]);
    }
    w.fork("/s", "/f");
    w.put("/f/edit", b"edited");
    w.put("/f/new", b"new");
    w.mkdir("/f/tree");
    w.put("/f/tree/leaf", &vec![b'2'; 50_000]);
    w.at("/f/gone", |d, n| w.fs.unlink(&w.me, d, n)).unwrap();
    w.at("/f/d", |d, n| w.fs.remove_tree(&w.me, d, n)).unwrap();
    w.put("/s/beside", b"of the source");
}

#[test]
fn a_crash_at_any_request_leaves_all_of_a_merge_or_nothing() {
    let (mut before, mut after) = (0u32, 0u32);
    // Each with several ways to lose what was not flushed.
    for n in (0u64..).flat_map(|n| [n; 4]) {
        assert!(n < 2000, "never done");
        let seed = (u64::from(before + after) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        Fs::format(device.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
        let w = World::over(Fs::open(device.clone(), options()).unwrap());
        prepared(&w);
        let (theirs, ours) = (read(&w, "/f"), read(&w, "/s"));
        let forks = w.fs.forks(None).unwrap();
        // Cold, so that the merge has to read.
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
        assert_eq!(read(&w, "/f"), theirs, "request {n}: the fork changed");
        if found == ours {
            assert!(!safe, "request {n}: a merge that was synced is lost");
            assert_eq!(w.fs.forks(None).unwrap(), forks, "request {n}");
            before += 1;
        } else {
            let mut wanted = theirs.clone();
            wanted.insert("/beside".into(), ours["/beside"].clone());
            assert_eq!(found, wanted, "request {n}: a part of a merge");
            assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().changes.is_empty(), "request {n}");
            after += 1;
        }
        assert!(found == ours || done.is_ok(), "request {n}: a merge that failed was made");
        if safe {
            break;
        }
    }
    println!("{before} before, {after} after");
    assert!(before > 10 && after > 10, "{before} before, {after} after");
}

#[test]
fn what_stays_keeps_its_number_and_what_is_open_stays_open() {
    let w = World::new();
    prepared(&w);
    w.on("/f/moded", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }))
        .unwrap();
    let moded = w.fs.resolve(Path::new("/s/moded")).unwrap();
    let (edit, keep) = (w.attr("/s/edit"), w.attr("/s/keep"));
    let open = |path: &str| {
        let attr = w.fs.resolve(Path::new(path)).unwrap();
        (attr.ino, w.fs.open_file(&w.me, attr.ino, 0).unwrap())
    };
    let (edited, gone, inner) = (open("/s/edit"), open("/s/gone"), open("/s/d/x"));
    let dir = w.fs.resolve(Path::new("/s/d")).unwrap();
    let (report, cache) =
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(None, f.ino, s.ino, MergeOptions::default()))).unwrap();
    assert!(report.merged);
    // What has another content is a new file, and the old one stays as it was for who has it open.
    assert_ne!(w.attr("/s/edit").ino, edit.ino);
    assert_eq!((w.attr("/s/keep").ino, w.attr("/s/moded").ino), (keep.ino, moded.ino));
    assert_eq!((w.attr("/s/keep").perm, w.attr("/s/moded").perm), (0o644, 0o600));
    assert_eq!(w.get("/s/edit").unwrap(), b"edited");
    for (ino, handle) in [edited, gone, inner] {
        assert_eq!(&w.fs.read(handle, ino, 0, 3).unwrap()[..], b"111");
        assert!(cache.orphaned.contains(&ino), "{cache:?}");
    }
    assert!(cache.replaced.contains(&moded.ino) && cache.replaced.contains(&dir.ino), "{cache:?}");
    assert!(!cache.replaced.contains(&keep.ino));
    let top = w.attr("/s").ino;
    for name in ["new", "tree", "gone", "d", "edit"] {
        assert!(cache.entries.contains(&(top, name.into())), "{name}: {cache:?}");
    }
    for (ino, handle) in [edited, gone, inner] {
        w.fs.release(ino, handle);
    }
    assert!(w.on("/s/d", Ok).is_err());
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

#[test]
fn a_new_fork_that_takes_the_changes_of_the_old_one_is_up_to_date() {
    let w = World::new();
    prepared(&w);
    let wanted = {
        w.clone_tree("/s", "/plain", false).unwrap();
        assert!(w.merge("/f", "/plain", MergeOptions::default()).unwrap().merged);
        read(&w, "/plain")
    };
    let source = read(&w, "/s");
    w.fork("/s", "/new");
    assert!(w.merge("/f", "/new", MergeOptions::default()).unwrap().merged);
    w.at("/f", |d, n| w.fs.discard(&w.me, d, n)).unwrap();
    w.at("/new", |d, n| w.at("/f", |e, m| w.fs.rename(&w.me, d, n, e, m, 0))).unwrap();
    assert_eq!((read(&w, "/f"), read(&w, "/s")), (wanted.clone(), source));
    // It takes over just what the old one had changed.
    let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
    assert!(report.merged && report.changes.len() == 5, "{report:?}");
    assert_eq!(read(&w, "/s"), wanted);
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().changes.is_empty());
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

#[test]
fn linked_files_are_merged_by_what_they_hold() {
    let w = World::new();
    w.mkdir("/s");
    w.mkdir("/s/d");
    w.put("/s/a", b"one");
    w.link("/s/a", "/s/d/b").unwrap();
    w.put("/s/p", b"pair");
    w.link("/s/p", "/s/q").unwrap();
    w.fork("/s", "/f");
    w.put("/f/a", b"two");
    w.at("/f/q", |d, n| w.fs.unlink(&w.me, d, n)).unwrap();
    w.mkdir("/f/n");
    w.link("/f/p", "/f/n/r").unwrap();
    let theirs = read(&w, "/f");
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    assert_eq!(read(&w, "/s"), theirs);
    w.fs.count_links().unwrap();
    assert_eq!((w.attr("/s/a").nlink, w.attr("/s/d/b").nlink), (1, 1), "each its own content");
    assert_eq!(w.attr("/s/p").nlink, 1);
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

#[test]
fn who_owns_both_sides_and_all_that_changes_may_merge() {
    let mut w = World::new();
    w.mkdir("/s");
    w.put("/s/roots", b"1");
    w.put("/s/mine", b"1");
    let own = SetAttr { uid: Some(1000), ..SetAttr::default() };
    for path in ["/s", "/s/mine"] {
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &own)).unwrap();
    }
    w.fork("/s", "/f");
    let as_user = |w: &World| {
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(Some(1000), f.ino, s.ino, MergeOptions::default())))
    };
    let other = w.on("/f", |f| w.on("/s", |s| w.fs.merge(Some(1001), f.ino, s.ino, MergeOptions::default())));
    assert_eq!(other.unwrap_err().errno(), libc_eperm());
    w.put("/f/mine", b"22");
    assert!(as_user(&w).unwrap().0.merged);
    w.put("/f/roots", b"22");
    let refused = as_user(&w).unwrap_err();
    assert_eq!(refused.errno(), libc_eperm());
    assert!(refused.to_string().contains("roots"), "{refused}");
    assert_eq!(w.get("/s/roots").unwrap(), b"1");
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    // A new file of another user, and a directory that holds one, are not taken or removed.
    w.put("/f/new", b"root's");
    assert_eq!(as_user(&w).unwrap_err().errno(), libc_eperm());
    w.remount();
    assert!(!w.exists("/s/new"));
}

/// A changed file becomes a new one at its name, and so does one of several names that alone gets other attributes:
/// that is a right to the directory, as for `mv`. A directory whose mode changes stays what it is.
#[test]
fn who_does_not_own_the_directory_may_not_put_new_files_into_it() {
    let mut w = World::new();
    w.mkdir("/s");
    w.mkdir("/s/roots");
    w.mkdir("/s/roots/mine");
    w.put("/s/roots/file", b"1");
    w.put("/s/roots/one", b"linked");
    w.link("/s/roots/one", "/s/roots/two").unwrap();
    let own = SetAttr { uid: Some(1000), ..SetAttr::default() };
    for path in ["/s", "/s/roots/mine", "/s/roots/file", "/s/roots/one"] {
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &own)).unwrap();
    }
    let chmod = |w: &World, path: &str| {
        let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &mode)).unwrap();
    };
    let as_user = |w: &World, fork: &str| {
        w.on(fork, |f| w.on("/s", |s| w.fs.merge(Some(1000), f.ino, s.ino, MergeOptions::default())))
    };
    for fork in ["/f", "/g", "/h"] {
        w.fork("/s", fork);
    }
    w.put("/f/roots/file", b"22");
    chmod(&w, "/g/roots/one");
    // A name that the fork does not know keeps its mode.
    w.link("/s/roots/one", "/s/roots/three").unwrap();
    chmod(&w, "/h/roots/mine");
    for fork in ["/f", "/g"] {
        let refused = as_user(&w, fork).unwrap_err();
        assert_eq!(refused.errno(), libc_eperm(), "{fork}");
        assert!(refused.to_string().contains("roots/"), "{refused}");
    }
    assert!(as_user(&w, "/h").unwrap().0.merged);
    w.remount();
    assert_eq!(w.get("/s/roots/file").unwrap(), b"1");
    assert_eq!(w.attr("/s/roots/one").perm & 0o777, 0o644);
    assert_eq!(w.attr("/s/roots/mine").perm & 0o777, 0o700);
}

fn libc_eperm() -> i32 {
    1
}

#[test]
fn forks_go_where_their_directories_go() {
    let mut w = World::new();
    prepared(&w);
    let paths = |w: &World| -> Vec<(String, Option<String>)> {
        let text = |s: &std::ffi::OsString| s.to_str().unwrap().to_owned();
        w.fs.forks(None).unwrap().iter().map(|f| (text(&f.path), f.source.as_ref().map(text))).collect()
    };
    let pair = |a: &str, b: Option<&str>| (a.to_owned(), b.map(str::to_owned));
    let rename = |w: &World, from: &str, to: &str, flags| {
        w.at(from, |d, n| w.at(to, |e, m| w.fs.rename(&w.me, d, n, e, m, flags))).unwrap();
    };
    w.mkdir("/up");
    rename(&w, "/f", "/up/f", 0);
    rename(&w, "/up", "/top", 0);
    w.mkdir("/t");
    rename(&w, "/s", "/t", RENAME_EXCHANGE);
    assert_eq!(paths(&w), [pair("/top/f", Some("/t"))]);
    // A rollback of the fork keeps it one; a clone is none.
    let number = w
        .on("/top/f", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()))
        .unwrap()
        .0
        .number;
    w.put("/top/f/late", b"1");
    w.on("/top/f", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, number, true)).unwrap();
    // So does one of a directory above, if it was a fork there already; what was forked later is none.
    let make =
        |path: &str| w.on(path, |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()));
    let (above, source) = (make("/top").unwrap().0.number, make("/t").unwrap().0.number);
    w.fork("/t", "/top/later");
    w.put("/top/f/late", b"2");
    w.on("/top", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, above, true)).unwrap();
    w.on("/t", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, source, true)).unwrap();
    check_keys(&w);
    w.clone_tree("/top", "/copy", false).unwrap();
    w.remount();
    assert_eq!(paths(&w), [pair("/top/f", Some("/t"))]);
    assert!(w.merge("/top/f", "/t", MergeOptions::default()).unwrap().merged);
    assert!(w.merge("/copy/f", "/t", MergeOptions::default()).is_err());
    for (from, to) in [("/top/f", "/top/f"), ("/top/f", "/")] {
        assert!(w.merge(from, to, MergeOptions::default()).is_err());
    }
    w.at("/t", |d, n| w.fs.remove_tree(&w.me, d, n)).unwrap();
    assert_eq!(paths(&w), [pair("/top/f", None)]);
    check_keys(&w);
    w.at("/top", |d, n| w.fs.remove_tree(&w.me, d, n)).unwrap();
    assert_eq!(paths(&w), []);
    check_keys(&w);
}

/// What a merge does that is planned cold, and while whose plan is made somebody else does `late` to `/s/keep`.
fn merged_beside(
    prepare: impl FnOnce(&World),
    late: impl FnOnce(&Fs, Ino) + Send + 'static,
) -> (World, MergeReport) {
    let below: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    Fs::format(below.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
    {
        let w = World::over(Fs::open(below.clone(), options()).unwrap());
        prepare(&w);
        w.fs.close().unwrap();
    }
    // At the first read of the plan.
    let armed = Arc::new(AtomicBool::new(false));
    let ((begun_tx, begun_rx), (done_tx, done_rx)) = (channel(), channel());
    let (hook_armed, done_rx) = (armed.clone(), Mutex::new(done_rx));
    let device = HookedDevice::new(below, false, move |call| {
        if matches!(call, DeviceCall::Read(_)) && hook_armed.swap(false, Ordering::SeqCst) {
            begun_tx.send(()).unwrap();
            done_rx.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
        }
        Ok(())
    });
    let w = World::over(Fs::open(Arc::new(device), options()).unwrap());
    let [f, s] = ["/f", "/s"].map(|path| w.fs.resolve(Path::new(path)).unwrap().ino);
    let keep = w.fs.resolve(Path::new("/s/keep")).unwrap().ino;
    let report = std::thread::scope(|scope| {
        let fs = w.fs.clone();
        scope.spawn(move || {
            begun_rx.recv_timeout(Duration::from_secs(20)).unwrap();
            late(&fs, keep);
            done_tx.send(()).unwrap();
        });
        armed.store(true, Ordering::SeqCst);
        let report = w.fs.merge(None, f, s, MergeOptions::default()).unwrap().0;
        assert!(!armed.load(Ordering::SeqCst), "the merge has read nothing");
        report
    });
    (w, report)
}

#[test]
fn what_changes_while_a_merge_is_planned_is_not_lost() {
    let prepare = |w: &World| {
        prepared(w);
        w.put("/f/keep", b"of the fork");
    };
    let (w, report) = merged_beside(prepare, |fs, keep| {
        assert_eq!(fs.write(super::common::NONE, keep, 0, b"late", false).unwrap(), 4);
    });
    assert_eq!((report.merged, conflicts(&report)), (false, vec!["/keep".to_owned()]));
    assert_eq!(&w.get("/s/keep").unwrap()[..5], b"late1");
}

#[test]
fn what_changes_in_a_file_with_several_names_while_a_merge_is_planned_is_not_lost() {
    let prepare = |w: &World| {
        prepared(w);
        w.link("/s/keep", "/outside").unwrap();
        w.on("/f/keep", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }))
            .unwrap();
    };
    let (w, report) = merged_beside(prepare, |fs, keep| {
        assert_eq!(fs.write(super::common::NONE, keep, 20_000, b"late", false).unwrap(), 4);
    });
    assert!(report.merged);
    assert_eq!((w.attr("/s/keep").size, w.attr("/outside").perm), (20_004, 0o600));
    assert_eq!(&w.get("/outside").unwrap()[19_999..], b"1late");
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

#[test]
fn names_in_directories_that_may_not_be_searched_are_not_told() {
    let w = World::new();
    w.mkdir("/s");
    w.mkdir("/s/closed");
    w.put("/s/closed/secret", b"1");
    let set = |path: &str, change: SetAttr| w.on(path, |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
    set("/s", SetAttr { uid: Some(1000), ..SetAttr::default() });
    set("/s/closed", SetAttr { mode: Some(0o700), ..SetAttr::default() });
    w.fork("/s", "/f");
    let merge_as_user = |dry_run: bool| {
        let o = MergeOptions { dry_run, ..MergeOptions::default() };
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(Some(1000), f.ino, s.ino, o))).unwrap_err()
    };
    w.put("/f/closed/secret", b"2");
    for dry_run in [true, false] {
        let e = merge_as_user(dry_run);
        assert!(e.to_string().contains("closed") && !e.to_string().contains("secret"), "{e}");
        assert_eq!(e.errno(), libc_eperm());
    }
    // A conflict neither.
    w.put("/s/closed/secret", b"3");
    assert!(!merge_as_user(true).to_string().contains("secret"));
}

#[test]
fn content_of_one_side_does_not_get_privileges_of_the_other() {
    let w = World::new();
    w.mkdir("/s");
    for name in ["granted_here", "granted_there", "chowned", "only_granted", "both_there"] {
        w.put(&format!("/s/{name}"), b"plain");
    }
    w.fork("/s", "/f");
    let set = |path: &str, change: SetAttr| w.on(path, |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
    let mode = |mode: u32| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let caps = |path: &str| {
        w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new("security.capability"), b"caps", 0)).unwrap();
    };
    // Somebody writes in one tree, and somebody else makes it set-id in the other.
    set("/s/granted_here", mode(0o6755));
    caps("/s/granted_here");
    w.put("/f/granted_here", b"forged");
    set("/f/granted_there", mode(0o6755));
    w.put("/s/granted_there", b"forged");
    set("/s/chowned", SetAttr { uid: Some(7), ..SetAttr::default() });
    set("/f/chowned", mode(0o4755));
    // What one side has done alone stays what it is.
    set("/f/only_granted", mode(0o6755));
    w.put("/f/both_there", b"new");
    set("/f/both_there", mode(0o4755));
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    let perm = |name: &str| w.attr(&format!("/s/{name}")).perm;
    assert_eq!(
        (w.get("/s/granted_here").unwrap(), w.get("/s/granted_there").unwrap()),
        (b"forged".into(), b"forged".into())
    );
    assert_eq!((perm("granted_here"), perm("granted_there"), perm("chowned")), (0o755, 0o755, 0o755));
    let attr = w.on("/s/granted_here", |a| w.fs.get_xattr(&w.me, a.ino, OsStr::new("security.capability")));
    assert!(attr.is_err(), "a capability stayed");
    assert_eq!((perm("only_granted"), perm("both_there")), (0o6755, 0o4755));
}

#[test]
fn a_directory_that_is_missing_is_one_conflict_however_many_names_a_file_had_in_it() {
    let w = World::new();
    w.mkdir("/s");
    w.mkdir("/s/d");
    w.put("/s/d/a", b"one");
    w.link("/s/d/a", "/s/d/b").unwrap();
    w.fork("/s", "/f");
    w.put("/f/d/a", b"two");
    for name in ["a", "b"] {
        w.at(&format!("/s/d/{name}"), |d, n| w.fs.unlink(&w.me, d, n)).unwrap();
    }
    w.at("/s/d", |d, n| w.fs.rmdir(&w.me, d, n)).unwrap();
    let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
    assert_eq!((report.merged, conflicts(&report)), (false, vec!["/d".to_owned()]));
    assert_eq!(report.changes.len(), 1, "{report:?}");
    let theirs = MergeOptions { prefer: Some(MergeSide::Theirs), ..Default::default() };
    assert!(w.merge("/f", "/s", theirs).unwrap().merged);
    assert_eq!((w.get("/s/d/a").unwrap(), w.get("/s/d/b").unwrap()), (b"two".into(), b"two".into()));
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}
