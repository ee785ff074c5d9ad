//! Many threads on one tree: no call may hang, no entry may outlive its directory, and no file
//! may hold bytes of another.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::*;
use pando_fs::*;
use std::{
    ffi::OsStr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Calls that may fail as others change the tree underneath, but only in these ways.
fn tolerated<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e) => {
            let fine = [ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL, ESTALE, ENAMETOOLONG];
            assert!(fine.contains(&e.errno()), "{e}");
            None
        }
    }
}

fn place(r: &mut Random) -> String {
    let depth = 1 + r.below(4);
    (0..depth).map(|_| format!("/{}", ["a", "b", "c"][r.below(3)])).collect()
}

#[test]
fn threads_on_one_tree_leave_it_whole() {
    let w = Arc::new(World::new());
    for top in ["/a", "/b", "/c"] {
        w.mkdir(top);
        for sub in ["/a", "/b", "/c"] {
            w.mkdir(&format!("{top}{sub}"));
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let done: Arc<Vec<AtomicU64>> = Arc::new((0..10).map(|_| AtomicU64::new(0)).collect());
    let count = std::env::var("PANDO_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let threads: Vec<_> = (0..count)
        .map(|seed| {
            let (w, stop, done) = (w.clone(), stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut r = Random::new(seed + 100);
                while !stop.load(Ordering::Relaxed) {
                    let (p, q) = (place(&mut r), place(&mut r));
                    let call = r.below(10);
                    let ok = match call {
                        0 => tolerated(w.at(&p, |d, n| w.fs.mkdir(&w.me, d, n, 0o755)))
                            .map(|a| w.fs.forget(a.ino, 1)),
                        1..=3 => tolerated(w.at(&p, |d, n| w.fs.create(&w.me, d, n, 0o644, O_RDWR))).map(
                            |(a, fh)| {
                                // A file holds only bytes of its own number: those of a clone are those of its source.
                                let data = [(a.ino % 251 + 1) as u8; 20_000];
                                for i in 0..3 {
                                    w.fs.write(fh, a.ino, i * 20_000, &data, false).unwrap();
                                }
                                let whole = w.fs.read(fh, a.ino, 0, 60_000).unwrap();
                                assert!(whole.len() == 60_000 && whole.iter().all(|b| *b == data[0]));
                                w.fs.release(a.ino, fh);
                                w.fs.forget(a.ino, 1);
                            },
                        ),
                        4 => tolerated(w.unlink(&p)),
                        5 => tolerated(w.rename(&p, &q, *r.pick(&[0, RENAME_EXCHANGE]))),
                        6 => tolerated(w.clone_tree(&p, &q, true)).map(|_| ()),
                        7 if r.below(8) == 0 => tolerated(w.remove_tree(&p)).map(|_| ()),
                        7 => tolerated(w.rmdir(&p)),
                        8 => tolerated(w.on(&p, |a| {
                            if a.kind == FileKind::Directory {
                                let dh = w.fs.opendir(a.ino)?;
                                let all = w.fs.readdir_plus(dh, a.ino, 0, 100);
                                for e in all.iter().flatten().skip(2) {
                                    w.fs.forget(e.ino, 1);
                                }
                                w.fs.releasedir(dh);
                                all.map(|_| ())
                            } else {
                                w.whole(a.ino).map(|_| ())
                            }
                        })),
                        _ => tolerated(w.on(&p, |a| {
                            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
                            w.fs.setattr(&w.me, a.ino, &set)
                        }))
                        .map(|_| ()),
                    };
                    if ok.is_some() {
                        done[call].fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let (begun, long) = (Instant::now(), [4, 60].map(Duration::from_secs));
    let each_worked = || done.iter().all(|d| d.load(Ordering::Relaxed) > 0);
    let mut last = 0;
    while begun.elapsed() < long[0] || !each_worked() && begun.elapsed() < long[1] {
        std::thread::sleep(Duration::from_millis(1000));
        let now: u64 = done.iter().map(|d| d.load(Ordering::Relaxed)).sum();
        assert!(!threads.iter().any(|t| t.is_finished()), "a thread has ended before its time");
        assert!(now > last, "no call has ended for a second");
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let counts: Vec<_> = done.iter().map(|d| d.load(Ordering::Relaxed)).collect();
    println!("{counts:?}");
    assert!(counts.iter().all(|c| *c > 0), "every call must have worked at times: {counts:?}");
    check_keys(&w);
    assert_eq!(w.fs.db().prefix(b"\xff\xff\xff\xffO").count(), 0, "orphans outlive their handles");
    w.assert_nothing_referenced();
    for (path, attr) in w.walk("/") {
        if attr.kind == FileKind::Regular {
            let content = w.get(&path).unwrap();
            assert!(content.iter().all(|b| *b == content[0]), "{path} holds bytes of another file");
        }
    }
}

/// A rollback gives the snapshots of a directory to what that has become. Whoever deletes or renames one meanwhile is told
/// so, and does not leave a second directory with the same snapshots.
#[test]
fn snapshots_are_deleted_and_renamed_beside_rollbacks() {
    let w = World::new();
    let by = || Authority::Caller(&w.me);
    let named = |name: &str| NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    let snap = |name: &str| w.on("/d", |a| w.fs.snapshot(by(), a.ino, &named(name)));
    w.mkdir("/d");
    w.put("/d/f", b"x");
    let first = snap("first").unwrap().0.number;
    let other = snap("other").unwrap().0.number;
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let (renamed, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
    let met = |n: &AtomicU64| n.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| {
            let begun = Instant::now();
            let is_enough =
                || [(&done, 20), (&renamed, 0), (&deleted, 1)].iter().all(|(n, more)| met(n) > *more);
            let long = [3, 60].map(Duration::from_secs);
            while begun.elapsed() < long[0] || !is_enough() && begun.elapsed() < long[1] {
                w.on("/d", |a| w.fs.rollback(by(), a.ino, first, true)).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        s.spawn(|| {
            for name in ["one", "two"].iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let done = tolerated(w.on("/d", |a| w.fs.rename_snapshot(by(), a.ino, other, name.as_ref())));
                renamed.fetch_add(u64::from(done.is_some()), Ordering::Relaxed);
            }
        });
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Some((info, _)) = tolerated(snap("third")) {
                    let delete = || w.on("/d", |a| w.fs.delete_snapshot(by(), a.ino, info.number));
                    while !stop.load(Ordering::Relaxed) && tolerated(delete()).is_none() {
                        std::thread::yield_now();
                    }
                    deleted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    });
    let [done, renamed, deleted] = [done, renamed, deleted].map(AtomicU64::into_inner);
    assert!(done > 20 && renamed > 0 && deleted > 1, "vacuous: {done}, {renamed}, {deleted}");
    let sources = w.fs.snapshot_sources().unwrap();
    assert!(sources == [w.attr("/d").ino], "{} directories have these snapshots", sources.len());
    check_keys(&w);
}

/// Who has found the path of a directory, and waits for its turn, finds nothing by it when the directory has moved
/// since: the path must be found again.
#[test]
fn a_file_is_found_while_its_directory_is_moved_all_the_time() {
    let w = World::new();
    let mut top = String::new();
    // So deep that paths are cached, and that it takes time to hold one.
    for level in 0..40 {
        top += &format!("/{level}");
        w.mkdir(&top);
    }
    w.mkdir(&format!("{top}/one"));
    w.mkdir(&format!("{top}/one/in"));
    w.put(&format!("{top}/one/in/f"), b"x");
    let ino = |path: &str| w.fs.resolve(Path::new(path)).unwrap().ino;
    let (parent, dir) = (ino(&top), ino(&format!("{top}/one/in")));
    let (done, found, missed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut moves = 0;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match w.fs.lookup(dir, "f".as_ref()) {
                        Ok(file) => {
                            w.fs.forget(file.ino, 1);
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => _ = missed.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
        let begin = Instant::now();
        let names = ["one", "other"].map(OsStr::new);
        let is_enough = |moves| moves > 100 && found.load(Ordering::Relaxed) > 100;
        let long = [2, 60].map(Duration::from_secs);
        while begin.elapsed() < long[0] || !is_enough(moves) && begin.elapsed() < long[1] {
            let (from, to) = (names[moves % 2], names[(moves + 1) % 2]);
            if w.fs.rename(&w.me, parent, from, parent, to, 0).is_err() {
                break;
            }
            moves += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    let (found, missed) = (found.into_inner(), missed.into_inner());
    println!("{moves} moves, {found} times found");
    assert_eq!(missed, 0, "not found, of {found} times, in {moves} moves");
    assert!(moves > 100 && found > 100, "vacuous: {moves} moves, {found} times found");
    [parent, dir].into_iter().for_each(|ino| w.fs.forget(ino, 1));
    check_keys(&w);
}
