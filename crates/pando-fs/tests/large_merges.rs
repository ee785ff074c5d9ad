//! Merges that are made beside the tree: the tests of merges once more in that way; and what only they meet: writers,
//! crashes in the middle, what is in memory, what is kept by place.
#![allow(clippy::unwrap_used, clippy::expect_used)]

// It knows from its own path how these tests are to run.
#[path = "common/mod.rs"]
mod common;

#[path = "forks.rs"]
mod forks;
#[path = "full_disk.rs"]
mod full_disk;
#[path = "merge_beside.rs"]
mod merge_beside;
#[path = "merge_clones.rs"]
mod merge_clones;
#[path = "merge_linked.rs"]
mod merge_linked;
#[path = "merge_renames.rs"]
mod merge_renames;
#[path = "merge_text.rs"]
mod merge_text;
#[path = "quotas.rs"]
mod quotas;
#[path = "together.rs"]
mod together;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    World, check_keys,
    merged::conflicts,
    options,
    trees::{Rng, read},
};
use pando_db::device::{FailMode, MemDevice, SimDevice};
use pando_fs::*;

#[test]
fn each_merge_is_made_beside_the_tree_here_and_not_elsewhere() {
    assert_eq!((common::merge_steps(), crate::common::merge_steps()), (0, 10_000));
}

/// A fork `/f` of `/s` with `files` files, of which each has changed, every third is gone, and a directory has moved.
fn changed(w: &World, files: usize) {
    w.mkdir("/s");
    changed_in(w, files, |_| (), |_| ());
}

/// The same in a directory `/s` that is there, with `more` in it before the fork is made, and what the fork does to that.
fn changed_in(w: &World, files: usize, more: impl FnOnce(&World), theirs: impl FnOnce(&World)) {
    for dir in ["a", "b", "quiet", "quiet/deep", "moves"] {
        w.mkdir(&format!("/s/{dir}"));
    }
    for i in 0..files {
        w.put(&format!("/s/{}/f{i}", ["a", "b"][i % 2]), format!("first {i}").as_bytes());
    }
    w.put("/s/quiet/file", b"quiet");
    w.put("/s/moves/file", b"moves");
    w.put("/s/moded", b"moded");
    more(w);
    w.fork("/s", "/f");
    for i in 0..files {
        let path = format!("/f/{}/f{i}", ["a", "b"][i % 2]);
        match i % 3 {
            0 => w.unlink(&path).unwrap(),
            _ => _ = w.write_at(&path, 0, b"fork ").unwrap(),
        }
    }
    w.rename("/f/moves", "/f/a/moved", 0).unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    w.on("/f/moded", |a| w.fs.setattr(&w.me, a.ino, &mode)).unwrap();
    theirs(w);
}

fn assert_changed(w: &World, files: usize) {
    for i in 0..files {
        let path = format!("/s/{}/f{i}", ["a", "b"][i % 2]);
        match i % 3 {
            0 => assert!(!w.exists(&path), "{path}"),
            _ => assert_eq!(
                w.get(&path).unwrap(),
                [b"fork ", format!("first {i}").as_bytes().split_at(5).1].concat()
            ),
        }
    }
    assert!(!w.exists("/s/moves"));
    assert_eq!(w.attr("/s/moded").perm, 0o600);
}

fn steps(n: usize) -> MountOptions {
    options().merge_steps(n)
}

/// One thread writes into the directory all the time, where the merge changes nothing, where it moves a directory, and
/// into a file whose mode it changes. The merge waits for it, and it for the merge, only for moments.
#[test]
fn nothing_of_a_writer_beside_a_large_merge_is_lost() {
    let files = 1500;
    for (round, batch) in [3, 40, 400].into_iter().enumerate() {
        let device = Arc::new(MemDevice::new(256 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
        let mut w = World::over(Fs::open(device.clone(), steps(batch)).unwrap());
        w.device = device;
        changed(&w, files);
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let (report, during, model) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_all_the_time(&w.fs, &stop, &written, round as u64 + 1));
            while written.load(Ordering::SeqCst) < 50 && !writer.is_finished() {
                std::thread::yield_now();
            }
            let before = written.load(Ordering::SeqCst);
            let report = w.merge("/f", "/s", MergeOptions::default());
            let during = written.load(Ordering::SeqCst) - before;
            // Some more behind it.
            while written.load(Ordering::SeqCst) < before + during + 50 && !writer.is_finished() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::SeqCst);
            (report.unwrap(), during, writer.join().unwrap())
        });
        assert!(report.merged && during > 20, "{during} writes beside the merge");
        println!("{batch} steps a batch: {during} writes beside it");
        for again in [false, true] {
            if again {
                w.remount_with(steps(batch));
            }
            assert_changed(&w, files);
            let quiet: BTreeMap<_, _> =
                read(&w, "/s/quiet").into_iter().filter(|(p, _)| !p.is_empty()).collect();
            let names: Vec<_> = quiet.keys().cloned().collect();
            let wanted: Vec<_> = model.files.keys().cloned().collect();
            assert_eq!(
                names.iter().filter(|n| n.contains("/w")).collect::<Vec<_>>(),
                wanted.iter().collect::<Vec<_>>()
            );
            for (path, data) in &model.files {
                assert_eq!(w.get(&format!("/s/quiet{path}")).unwrap(), *data, "{path}");
            }
            assert_eq!(w.get("/s/moded").unwrap(), model.moded);
            assert_eq!(w.get("/s/a/moved/file").unwrap(), model.moved);
            w.walk("/");
        }
        check_keys(&w);
    }
}

/// Access times of what the merge removes and replaces change all the time.
#[test]
fn somebody_who_reads_all_the_time_does_not_disturb_a_large_merge() {
    // A busy machine may give the reader no turn while one merge runs (20 ms), but not in all of them.
    let mut beside = Vec::new();
    while beside.len() < 20 && beside.iter().all(|reads| *reads <= 20) {
        beside.push(reads_beside_a_merge());
    }
    assert!(beside.iter().any(|reads| *reads > 20), "{beside:?} reads beside the merges");
}

/// How many reads a reader made while a merge ran that removed and replaced what it read.
fn reads_beside_a_merge() -> u64 {
    let files = 120;
    let mut w = World::new();
    w.remount_with(steps(2).atime(AtimePolicy::Strict));
    changed(&w, files);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = World::over(w.fs.clone());
            while !stop.load(Ordering::SeqCst) {
                for i in 0..files {
                    let path = format!("/s/{}/f{i}", ["a", "b"][i % 2]);
                    // It may be gone by now.
                    reads.fetch_add(u64::from(other.get(&path).is_ok()), Ordering::SeqCst);
                }
            }
        });
        while reads.load(Ordering::SeqCst) < 20 {
            std::thread::yield_now();
        }
        let before = reads.load(Ordering::SeqCst);
        let report = w.merge("/f", "/s", MergeOptions::default());
        let beside = reads.load(Ordering::SeqCst) - before;
        stop.store(true, Ordering::SeqCst);
        assert!(report.unwrap().merged);
        beside
    });
    assert_changed(&w, files);
    check_keys(&w);
    beside
}

/// What a writer has made of the tree.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, Vec<u8>>,
    moded: Vec<u8>,
    moved: Vec<u8>,
}

/// Writes, by inode where a path changes, until it is to stop; counts what it does.
fn write_all_the_time(fs: &Fs, stop: &AtomicBool, written: &AtomicU64, seed: u64) -> Model {
    let w = World::over(fs.clone());
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut model = Model { moded: b"moded".to_vec(), moved: b"moves".to_vec(), ..Model::default() };
    let moved = w.fs.resolve(Path::new("/s/moves/file")).unwrap().ino;
    let mut dirs = vec![String::new(), "/deep".to_owned()];
    for n in 0u64.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let dir = dirs[rng.next(dirs.len())].clone();
        let path = format!("{dir}/w{n}");
        let full = |path: &str| format!("/s/quiet{path}");
        match rng.next(8) {
            0 | 1 => {
                let data = vec![b'a' + (n % 26) as u8; rng.next(9000)];
                w.put(&full(&path), &data);
                model.files.insert(path, data);
            }
            2 => {
                let text = format!(" more{n}");
                w.write_at("/s/moded", model.moded.len() as u64, text.as_bytes()).unwrap();
                model.moded.extend_from_slice(text.as_bytes());
            }
            3 => {
                // It is the same file wherever it is by now.
                let text = format!(" more{n}");
                let done = fs.write(common::NONE, moved, model.moved.len() as u64, text.as_bytes(), false);
                assert_eq!(done.unwrap() as usize, text.len());
                model.moved.extend_from_slice(text.as_bytes());
            }
            4 if !model.files.is_empty() => {
                let old = model.files.keys().nth(rng.next(model.files.len())).unwrap().clone();
                w.rename(&full(&old), &full(&path), 0).unwrap();
                let data = model.files.remove(&old).unwrap();
                model.files.insert(path, data);
            }
            5 if !model.files.is_empty() => {
                let old = model.files.keys().nth(rng.next(model.files.len())).unwrap().clone();
                w.unlink(&full(&old)).unwrap();
                model.files.remove(&old);
            }
            6 if dirs.len() < 6 => {
                let dir = format!("{dir}/d{n}");
                w.mkdir(&full(&dir));
                dirs.push(dir);
            }
            _ if dirs.len() > 2 => {
                // A directory with all that is in it.
                let at = 2 + rng.next(dirs.len() - 2);
                let (old, new) = (dirs[at].clone(), format!("/d{n}"));
                w.rename(&full(&old), &full(&new), 0).unwrap();
                let renamed = |path: &str| match path.strip_prefix(&old).filter(|rest| rest.starts_with('/'))
                {
                    Some(rest) => format!("{new}{rest}"),
                    None => path.to_owned(),
                };
                model.files = model.files.iter().map(|(path, data)| (renamed(path), data.clone())).collect();
                dirs = dirs.iter().map(|dir| if *dir == old { new.clone() } else { renamed(dir) }).collect();
            }
            _ => {}
        }
        written.fetch_add(1, Ordering::SeqCst);
    }
    model
}

/// What a merge comes to beside which somebody does `late`, so many microseconds after its copies were made; whether
/// that was while it was under way.
fn merged_beside_after(micros: u64, late: impl FnOnce(&World) + Send) -> (World, MergeReport, bool) {
    merged_beside(|w| changed(w, 240), micros, late)
}

/// The same of what `changes` has made.
fn merged_beside(
    changes: impl FnOnce(&World),
    micros: u64,
    late: impl FnOnce(&World) + Send,
) -> (World, MergeReport, bool) {
    let mut w = World::new();
    w.remount_with(steps(2));
    changes(&w);
    let [f, s] = ["/f", "/s"].map(|path| w.fs.resolve(Path::new(path)).unwrap().ino);
    let ended = AtomicBool::new(false);
    let (report, met) = std::thread::scope(|scope| {
        let (other, ended) = (World::over(w.fs.clone()), &ended);
        let thread = scope.spawn(move || {
            let begun = || other.fs.db().prefix(b"\xff\xff\xff\xffG").next().is_some();
            while !ended.load(Ordering::SeqCst) && !begun() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(micros));
            let met = !ended.load(Ordering::SeqCst);
            late(&other);
            met
        });
        let report = w.fs.merge(None, f, s, MergeOptions::default()).unwrap().0;
        ended.store(true, Ordering::SeqCst);
        (report, thread.join().unwrap())
    });
    (w, report, met)
}

#[test]
fn a_merge_that_is_interrupted_at_any_moment_has_done_all_or_nothing() {
    let (mut merged, mut interrupted) = (0, 0);
    for n in 0..400 {
        if n >= 40 && merged > 2 && interrupted > 4 {
            break;
        }
        let mut w = World::new();
        // Every second one is a small merge.
        w.remount_with(if n % 2 == 0 { steps(2) } else { options() });
        changed(&w, 240);
        let before = read(&w, "/s");
        let [f, s] = ["/f", "/s"].map(|path| w.fs.resolve(Path::new(path)).unwrap().ino);
        let stop = AtomicBool::new(n == 0);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(n % 40 * (n % 40) * 60));
                stop.store(true, Ordering::SeqCst);
            });
            w.fs.merge_unless(None, f, s, MergeOptions::default(), &stop)
        });
        match result {
            Ok((report, _)) => {
                assert!(report.merged, "{n}");
                merged += 1;
            }
            Err(e) => {
                assert_eq!(e.errno(), libc_eintr(), "{n}: {e}");
                assert!(read(&w, "/s") == before, "{n}: a part of a merge");
                interrupted += 1;
                check_keys(&w);
                assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged, "{n}");
            }
        }
        assert_changed(&w, 240);
        w.fs.check(|problem| panic!("{n}: {problem}")).unwrap();
        check_keys(&w);
    }
    println!("{merged} merged, {interrupted} interrupted");
    assert!(merged > 2 && interrupted > 4, "{merged} merged, {interrupted} interrupted");
}

fn libc_eintr() -> i32 {
    rustix::io::Errno::INTR.raw_os_error()
}

#[test]
fn what_somebody_does_at_any_moment_of_a_large_merge_is_there_or_a_conflict() {
    let (mut merged, mut conflict, mut beside) = (0, 0, 0);
    let all_seen = |merged, conflict, beside| merged > 2 && conflict > 2 && beside > 4;
    for n in 0..240 {
        // How long a merge takes depends on what else the machine does, so it may take several rounds.
        if n >= 40 && all_seen(merged, conflict, beside) {
            break;
        }
        let later = if n < 80 { n } else { n % 40 };
        let (w, report, met) = merged_beside_after(later * later * 60, |w| {
            w.put("/s/quiet/late", b"late");
            w.rename("/s/quiet", "/s/loud", 0).unwrap();
            // The fork has changed it too.
            w.put("/s/a/f2", b"late");
        });
        beside += u32::from(met);
        assert_eq!(w.get("/s/loud/late").unwrap(), b"late", "{n}");
        assert_eq!(w.get("/s/a/f2").unwrap(), b"late", "{n}");
        match report.merged {
            true => {
                merged += 1;
                assert!(w.exists("/s/a/moved/file") && !w.exists("/s/moves"), "{n}");
                assert!(!w.exists("/s/a/f0") && w.get("/s/b/f1").unwrap().starts_with(b"fork "), "{n}");
            }
            false => {
                conflict += 1;
                assert_eq!(conflicts(&report), ["/a/f2"], "{n}");
                assert!(w.exists("/s/moves/file") && w.exists("/s/a/f0"), "{n}: a part of a merge");
            }
        }
        check_keys(&w);
    }
    println!("{merged} merged, {conflict} conflicts, {beside} beside the merge");
    let seen = all_seen(merged, conflict, beside);
    assert!(seen, "{merged} merged, {conflict} conflicts, {beside} beside");
}

/// The log is small, so there are requests all over the merge, and some of what is beside the tree is durable.
#[test]
fn a_crash_in_the_middle_of_a_large_merge_leaves_all_of_it_or_nothing_and_nothing_else() {
    let files = 400;
    let format = FormatOptions::default().node_size(4 << 10).log_size(1 << 20);
    let (mut before, mut after, mut left_over) = (0u32, 0u32, 0u32);
    let mut n = 0u64;
    loop {
        let seed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        Fs::format(device.clone(), &format).unwrap();
        let w = World::over(Fs::open(device.clone(), steps(2)).unwrap());
        changed(&w, files);
        let (theirs, ours) = (read(&w, "/f"), read(&w, "/s"));
        w.fs.db().checkpoint().unwrap();
        // Whoever syncs meanwhile makes durable what is there by then.
        let (stop, fs) = (AtomicBool::new(false), w.fs.clone());
        device.set_fail_at(Some(n), FailMode::Onwards);
        let done = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) && fs.sync().is_ok() {
                    std::thread::yield_now();
                }
            });
            let done = w.merge("/f", "/s", MergeOptions::default()).map(|report| assert!(report.merged));
            stop.store(true, Ordering::SeqCst);
            done
        });
        let safe = done.is_ok() && w.fs.sync().is_ok() && w.fs.db().checkpoint().is_ok();
        device.crash();
        drop((w, fs));
        let device = device.reopen();
        {
            let db = pando_db::Db::open(
                device.clone(),
                pando_db::Options::default().merge(Arc::new(FsMerge)).background(false),
            )
            .unwrap();
            left_over += u32::from(db.prefix(b"\xff\xff\xff\xffG").next().is_some());
            db.close().unwrap();
        }
        let w = World::over(Fs::open(device, steps(2)).unwrap());
        check_keys(&w);
        assert_eq!(read(&w, "/f"), theirs, "request {n}: the fork changed");
        let found = read(&w, "/s");
        if found == ours {
            assert!(!safe, "request {n}: a merge that was synced is lost");
            before += 1;
        } else {
            assert_eq!(found, theirs, "request {n}: a part of a merge");
            assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().changes.is_empty(), "request {n}");
            after += 1;
        }
        if safe {
            break;
        }
        n += 1;
        assert!(n < 3000, "never done");
    }
    println!("{n} requests: {before} before, {after} after, {left_over} with something left over");
    assert!(before > 2 && after > 2 && left_over > 0, "{before} before, {after} after, {left_over}");
}

#[test]
fn what_is_in_memory_and_kept_by_prefix_is_there_after_a_large_merge() {
    let mut w = World::new();
    w.remount_with(steps(0));
    changed(&w, 30);
    for dir in ["dir", "dir/sub", "gone", "gone/in"] {
        w.mkdir(&format!("/s/{dir}"));
    }
    w.put("/s/gone/in/open", b"still read");
    w.put("/s/outside", b"of several names");
    w.link("/s/outside", "/s/dir/inside").unwrap();
    w.link("/s/outside", "/beside").unwrap();
    w.mkdir("/t");
    w.at("/f", |d, n| w.fs.discard(&w.me, d, n)).unwrap();
    w.fork("/s", "/f");
    // A fork of a directory in it, one in it, policies of one that moves and of one that goes.
    w.fork("/s/dir/sub", "/t/fork");
    w.fork("/t", "/s/gone/fork");
    let policy = StoredPolicy { on_sync_secs: 60, ..StoredPolicy::default() };
    for path in ["/s/moves", "/s/gone/in"] {
        w.on(path, |a| w.fs.set_policy(Authority::Caller(&w.me), a.ino, Some(&policy))).unwrap();
    }
    let ino = |path: &str| w.fs.resolve(Path::new(path)).unwrap().ino;
    let (open, stays, moves, sub) =
        (ino("/s/gone/in/open"), ino("/s/quiet/file"), ino("/s/moves"), ino("/s/dir/sub"));
    let handle = w.fs.open_file(&w.me, open, 0).unwrap();
    w.remove_tree("/f/gone").unwrap();
    w.rename("/f/moves", "/f/dir/moved", 0).unwrap();
    w.unlink("/f/dir/inside").unwrap();
    let set = |path: &str, mode: u32| {
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }))
            .unwrap();
    };
    set("/f/outside", 0o640);
    set("/f", 0o750);
    let top = ino("/s");
    // Something is in `/s/gone` that the fork has never seen, so it is a conflict: the fork's side is taken.
    let o = MergeOptions { prefer: Some(MergeSide::Theirs), ..MergeOptions::default() };
    let (report, cache) = w.on("/f", |f| w.on("/s", |s| w.fs.merge(None, f.ino, s.ino, o))).unwrap();
    assert!(report.merged, "{report:?}");
    assert_eq!(&w.fs.read(handle, open, 0, 99).unwrap()[..], b"still read");
    assert!(cache.orphaned.contains(&open) && cache.replaced.contains(&moves), "{cache:?}");
    assert!(cache.entries.contains(&(top, "gone".into())) && cache.entries.contains(&(top, "moves".into())));
    for again in [false, true] {
        if again {
            w.fs.release(open, handle);
            w.remount_with(steps(0));
        }
        let at = |path: &str| w.attr(path);
        assert_eq!((at("/s/quiet/file").ino, at("/s/dir/moved").ino), (stays, moves));
        assert_eq!((at("/s").ino, at("/s/dir/sub").ino, at("/s").perm), (top, sub, 0o750));
        assert_eq!((at("/s/outside").perm, at("/beside").perm), (0o640, 0o640));
        assert!(!w.exists("/s/gone") && !w.exists("/s/moves") && !w.exists("/s/dir/inside"));
        let forks: Vec<_> = w.fs.forks(None).unwrap().into_iter().map(|f| (f.path, f.source)).collect();
        assert_eq!(
            forks,
            [("/f".into(), Some("/s".into())), ("/t/fork".into(), Some("/s/dir/sub".into()))],
            "again {again}"
        );
        let policies = w.fs.policies().unwrap();
        assert_eq!(policies.len(), 1);
        w.fs.count_links().unwrap();
        assert_eq!((at("/s/outside").nlink, at("/beside").nlink), (2, 2));
        check_keys(&w);
        w.walk("/");
    }
}
