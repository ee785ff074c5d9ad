//! Linked files without a name in a snapshot, or in the origin of a fork: they go, and nothing that is read changes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{common::*, send, snapshots::*};
use pando_db::device::{Device, FailMode, MemDevice, SimDevice};
use pando_fs::*;

/// Bytes of a large file.
const LARGE: usize = 1 << 20;

/// The options that users have.
fn plain() -> MountOptions {
    MountOptions::default().background(false).atime(AtimePolicy::Noatime)
}

fn free(w: &World) -> u64 {
    w.fs.db().settle().unwrap();
    w.fs.db().space().0
}

/// The numbers of the files in the link area of the root of a volume, and of those that have names there.
fn linked_in(w: &World, volume: u32) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let prefix = |kind: u8| [&volume.to_be_bytes()[..], b"M", &[kind]].concat();
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes[bytes.len() - 8..].try_into().unwrap());
    let pairs = |kind: u8| w.fs.db().prefix(&prefix(kind)).map(|pair| pair.unwrap());
    let files = pairs(3).map(|(key, _)| number(&key)).collect();
    (
        files,
        pairs(4).map(|(_, value)| u64::from_le_bytes(value[value.len() - 8..].try_into().unwrap())).collect(),
    )
}

/// Small linked files in `/s` with large ones between, that have their names in `/big`.
fn large_and_small(w: &World, large: usize) {
    w.mkdir("/big");
    w.mkdir("/s");
    for i in 0..large {
        if i % 3 == 1 {
            w.put(&format!("/s/f{i}"), &noise(i as u64, 5_000));
            w.link(&format!("/s/f{i}"), &format!("/s/g{i}")).unwrap();
        }
        w.put(&format!("/big/f{i}"), &noise(i as u64, LARGE));
        w.link(&format!("/big/f{i}"), &format!("/big/g{i}")).unwrap();
    }
}

/// A user deletes large files, and the space does not come back, because somewhere there is a fork of a directory in
/// which they never had a name.
#[test]
fn files_linked_elsewhere_are_freed_beside_a_fork() {
    for made in ["fork", "snapshot", "merged fork", "fork of a fork"] {
        let mut w = World::new();
        w.remount_with(plain());
        large_and_small(&w, 12);
        free(&w);
        match made {
            "snapshot" => _ = snap(&w, "/s", "one"),
            _ => w.fork("/s", "/f"),
        }
        if made == "merged fork" {
            w.fs.count_links().unwrap();
            w.put("/f/new", b"new");
            assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
        }
        if made == "fork of a fork" {
            w.fork("/f", "/g");
        }
        w.remove_tree("/big").unwrap();
        w.fs.count_links().unwrap();
        let top = if made == "snapshot" { "/s/.snapshots/one" } else { "/f" };
        for i in [1, 4, 7, 10] {
            assert_eq!(w.get(&format!("{top}/g{i}")).unwrap(), noise(i as u64, 5_000));
        }
        w.fs.check(|p| panic!("{made}: {p}")).unwrap();
        check_keys(&w);
        // What the deletion of the copies frees was held by them.
        let before = free(&w);
        match made {
            "snapshot" => w.on("/s", |a| w.fs.delete_snapshot(by(&w), a.ino, 1)).map(drop).unwrap(),
            _ => drop(w.remove_tree("/f").unwrap()),
        }
        if made == "fork of a fork" {
            w.remove_tree("/g").unwrap();
        }
        let held = free(&w) - before;
        assert!(held < LARGE as u64, "{made}: {held} B of deleted files were kept");
    }
}

/// Nobody has to ask for it.
#[test]
fn files_linked_elsewhere_go_from_a_snapshot_in_the_background_and_after_a_mount() {
    for again in [false, true] {
        let mut w = World::new();
        w.remount_with(plain());
        large_and_small(&w, 4);
        if !again {
            w.remount_with(plain().background(true));
        }
        let number = snap(&w, "/s", "one").number;
        if again {
            assert_eq!(linked_in(&w, number).0.len(), 5);
            w.remount_with(plain().background(true));
        }
        let end = Instant::now() + Duration::from_secs(60);
        while linked_in(&w, number).0.len() > 1 {
            assert!(Instant::now() < end, "mounted again {again}: they are still there");
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(w.get("/s/.snapshots/one/g1").unwrap(), noise(1, 5_000));
    }
}

/// A clone whose names were not counted yet when the snapshot was made, also if it lies in what the snapshot is of.
#[test]
fn files_without_a_name_go_from_a_snapshot_that_was_made_right_after_a_clone() {
    let w = World::new();
    large_and_small(&w, 4);
    w.mkdir("/d");
    w.clone_tree("/s", "/d/c", false).unwrap();
    let own = w.on("/d/c", |a| w.fs.snapshot(by(&w), a.ino, &named("own"))).unwrap().0.number;
    let around = snap(&w, "/d", "around").number;
    let all = snap(&w, "/", "all").number;
    w.fs.count_links().unwrap();
    assert_eq!(linked_in(&w, own).0, linked_in(&w, own).1);
    for (number, dirs) in [(around, &b"\x02c\0"[..]), (all, b"\x02d\0\x02c\0")] {
        let area = [&number.to_be_bytes()[..], b"M", dirs, &[3]].concat();
        assert_eq!(w.fs.db().prefix(&area).count(), 1, "snapshot {number}");
    }
    for top in ["/d/c/.snapshots/own", "/d/.snapshots/around/c", "/.snapshots/all/d/c"] {
        assert_eq!(w.get(&format!("{top}/g1")).unwrap(), noise(1, 5_000), "{top}");
    }
    // These have their names in the snapshot.
    assert_eq!(w.get("/.snapshots/all/big/g3").unwrap(), noise(3, LARGE));
    w.fs.check(|p| panic!("{p}")).unwrap();
}

/// What is not worth two messages stays: a few small files between two with names.
#[test]
fn of_small_gaps_many_files_or_large_ones_go() {
    let mut w = World::new();
    w.remount_with(plain());
    for dir in ["/s", "/o"] {
        w.mkdir(dir);
    }
    let put = |path: &str, len: usize| {
        w.put(path, &noise(1, len));
        w.link(path, &format!("{path}.")).unwrap();
    };
    let sizes: [&[usize]; 5] = [&[1; 63], &[1; 64], &[255 << 10], &[256 << 10], &[100 << 10; 3]];
    for (i, sizes) in sizes.iter().enumerate() {
        put(&format!("/s/{i}"), 1);
        sizes.iter().enumerate().for_each(|(j, len)| put(&format!("/o/{i}-{j}"), *len));
    }
    let number = snap(&w, "/s", "one").number;
    w.fs.count_links().unwrap();
    let (files, names) = linked_in(&w, number);
    assert_eq!(names.len(), 5);
    assert_eq!(files.len(), 5 + 63 + 1, "of each gap all or nothing");
    w.fs.check(|p| panic!("{p}")).unwrap();
}

fn roots(w: &World) -> Vec<(Ino, SnapshotInfo)> {
    let all = |source| w.fs.snapshots(source).unwrap().into_iter().map(move |info| (source, info));
    w.fs.snapshot_sources().unwrap().into_iter().flat_map(all).collect()
}

/// Everything that can be read of snapshots `one` and `two` of `/s`, and of what differs.
fn readings(w: &World) -> Vec<String> {
    let mut out = Vec::new();
    let tops = ["/s/.snapshots/one", "/s/.snapshots/two"];
    for top in tops {
        let mut attrs = w.walk(top);
        // Numbers of snapshots that nobody has looked at come with the first look.
        attrs.values_mut().for_each(|a| a.atime = Time::default());
        out.push(format!("{attrs:?} {:?}", send::picture(w, top)));
    }
    for (a, b) in [(0, 1), (1, 0)].map(|(a, b)| (tops[a], tops[b])).into_iter().chain(
        tops.into_iter().flat_map(|top| [(top, "/s"), ("/s", top), (top, "/c"), ("/c", top), (top, "/big")]),
    ) {
        for no_renames in [false, true] {
            let options = DiffOptions { ranges: true, no_renames };
            let found = w.on(a, |a| w.on(b, |b| w.fs.diff(None, a.ino, b.ino, options)));
            let found: Result<Vec<_>> = found.unwrap().collect();
            out.push(format!("{a} {b} {:?}", found.unwrap()));
        }
    }
    let [one, two] = ["one", "two"]
        .map(|name| roots(w).into_iter().find(|(_, info)| info.name == OsStr::new(name)).unwrap().1);
    for stream in [(None, &one), (None, &two), (Some(&one), &two), (Some(&two), &one)] {
        out.push(format!("{:?}", send::send(w, "/s", stream.0, stream.1, Default::default())));
    }
    for path in ["f1", "d/f", "", "d"] {
        let alike = w.on("/s", |a| w.fs.alike_snapshots(None, a.ino, Path::new(path), (0, 9)));
        out.push(format!("{:?}", alike.unwrap().numbers));
    }
    out
}

/// Clones a snapshot of `/s` to `/k`.
fn clone_out(w: &World, number: u32) {
    w.on("/s", |a| {
        let root = w.fs.open_snapshot(a.ino, number)?;
        w.fs.clone_snapshot(by(w), root.ino, (ROOT, OsStr::new("k")), false)?;
        w.fs.forget(root.ino, 1);
        Ok(())
    })
    .unwrap();
}

/// Two snapshots with changes of linked files, in and out of the directory, between.
fn two_snapshots(w: &World) {
    large_and_small(w, 12);
    w.mkdir("/s/d");
    w.put("/s/d/f", b"0");
    w.link("/s/d/f", "/big/of d").unwrap();
    snap(w, "/s", "one");
    w.clone_tree("/s", "/c", false).unwrap();
    w.write_at("/s/f1", 100, b"changed").unwrap();
    w.write_at("/big/g2", 100, b"changed").unwrap();
    w.write_at("/big/of d", 0, b"1").unwrap();
    w.link("/big/f3", "/s/now here").unwrap();
    w.unlink("/s/f4").unwrap();
    w.unlink("/s/g4").unwrap();
    w.rename("/s/f7", "/big/now there", 0).unwrap();
    snap(w, "/s", "two");
    w.write_at("/s/f10", 100, b"changed").unwrap();
    w.unlink("/big/f5").unwrap();
    w.unlink("/big/g5").unwrap();
}

#[test]
fn a_snapshot_reads_the_same_when_files_without_a_name_have_gone() {
    let mut w = World::new();
    w.remount_with(options());
    two_snapshots(&w);
    let before = readings(&w);
    let numbers: Vec<u32> = roots(&w).iter().map(|(_, info)| info.number).collect();
    let files = |w: &World| numbers.iter().map(|number| linked_in(w, *number).0.len()).sum::<usize>();
    let (usage, all) = (w.fs.usage_of_snapshot(numbers[0]).unwrap().visible_bytes, files(&w));
    w.fs.count_links().unwrap();
    assert!(all > 30 && files(&w) == 10, "{all} files, now {}", files(&w));
    for number in &numbers {
        assert_eq!(linked_in(&w, *number).0, linked_in(&w, *number).1);
    }
    w.fs.db().settle().unwrap();
    assert!(w.fs.usage_of_snapshot(numbers[0]).unwrap().visible_bytes < usage / 2);
    for round in 0..2 {
        for (i, (was, now)) in before.iter().zip(readings(&w)).enumerate() {
            // The names in the clone `/c` were counted meanwhile, which is no difference.
            assert!(*was == now, "round {round}, reading {i}: {:.3000}\n{:.3000}", was, now);
        }
        w.fs.check(|p| panic!("{p}")).unwrap();
        w.remount();
    }
    // What is made of one has the files, and exact counts.
    clone_out(&w, numbers[0]);
    w.on("/s", |a| w.fs.rollback(by(&w), a.ino, numbers[0], false)).unwrap();
    w.fs.count_links().unwrap();
    for top in ["/k", "/s"] {
        assert_eq!(w.groups(top).len(), 5, "{top}");
        assert_eq!(w.get(&format!("{top}/g4")).unwrap(), noise(4, 5_000), "{top}");
    }
    w.fs.check(|p| panic!("{p}")).unwrap();
    check_keys(&w);
}

/// More files differ than those with a name: the ones without are skipped, and no difference is.
#[test]
fn of_many_linked_files_that_have_gone_none_hides_a_difference() {
    for named in [vec![0], vec![1, 2, 30, 59], (0..60).step_by(3).collect(), (40..60).collect()] {
        let mut w = World::new();
        w.remount_with(options());
        let changed: Vec<usize> = named.iter().copied().step_by(2).chain(named.last().copied()).collect();
        w.mkdir("/big");
        w.mkdir("/s");
        // Link numbers are in this order.
        for i in 0..60 {
            let dir = if named.contains(&i) { "/s" } else { "/big" };
            w.put(&format!("{dir}/f{i}"), &noise(i as u64, 3_000));
            w.link(&format!("{dir}/f{i}"), &format!("{dir}/g{i}")).unwrap();
        }
        let number = snap(&w, "/s", "one").number;
        w.fork("/s", "/f");
        for i in &changed {
            w.write_at(&format!("/s/f{i}"), 7, b"ours").unwrap();
        }
        w.write_at("/f/f0", 9, b"theirs").ok();
        w.fs.count_links().unwrap();
        assert_eq!(linked_in(&w, number).0.len(), named.len(), "vacuous");
        let expected: BTreeSet<_> = changed.iter().flat_map(|i| [format!("f{i}"), format!("g{i}")]).collect();
        for (a, b) in [("/s/.snapshots/one", "/s"), ("/s", "/s/.snapshots/one")] {
            let found = w.on(a, |a| w.on(b, |b| w.fs.diff(None, a.ino, b.ino, DiffOptions::default())));
            let found: Result<Vec<_>> = found.unwrap().collect();
            let paths = found.unwrap().into_iter().map(|change| change.path.to_string_lossy().into_owned());
            assert_eq!(paths.collect::<BTreeSet<_>>(), expected, "{a} {b}");
        }
        // What both sides changed is a conflict; all else that one side changed is kept.
        let both = named.contains(&0);
        let prefer = both.then_some(MergeSide::Ours);
        let options = MergeOptions { prefer, ..MergeOptions::default() };
        assert!(w.merge("/f", "/s", options).unwrap().merged);
        for i in &changed {
            let mut wanted = noise(*i as u64, 3_000);
            wanted[7..11].copy_from_slice(b"ours");
            assert_eq!(w.get(&format!("/s/g{i}")).unwrap(), wanted);
        }
        w.fs.check(|p| panic!("{p}")).unwrap();
        check_keys(&w);
    }
}

/// The check finds what the removal must never do.
#[test]
fn a_linked_file_that_is_gone_from_a_snapshot_although_it_has_a_name_is_found() {
    let mut w = World::new();
    w.remount_with(plain());
    large_and_small(&w, 6);
    let (one, two) = (snap(&w, "/s", "one").number, snap(&w, "/s", "two").number);
    w.fs.check(|p| panic!("{p}")).unwrap();
    // Of the second the check sees that the file is gone, of the first that the name has none.
    for number in [two, one] {
        let (_, named) = linked_in(&w, number);
        let key = [&number.to_be_bytes()[..], b"M", &[3], &named.first().unwrap().to_be_bytes()].concat();
        let value = w.fs.db().get(&key).unwrap().unwrap();
        w.fs.db().delete(key.clone()).unwrap();
        let mut found = Vec::new();
        w.fs.check(|p| found.push(p.to_owned())).unwrap();
        assert!(found.iter().any(|p| p.contains("names a linked file")), "{number}: {found:?}");
        w.fs.db().put(key, value).unwrap();
    }
    w.fs.check(|p| panic!("{p}")).unwrap();
}

/// An origin has what a fork has, without what was excluded.
#[test]
fn linked_files_that_were_excluded_from_a_fork_are_freed_beside_it() {
    let mut w = World::new();
    w.remount_with(plain());
    w.mkdir("/t");
    w.mkdir("/t/big");
    for i in 0..8 {
        w.put(&format!("/t/big/f{i}"), &noise(90 + i, LARGE));
        w.link(&format!("/t/big/f{i}"), &format!("/t/big/g{i}")).unwrap();
    }
    w.put("/t/small", b"x");
    w.link("/t/small", "/t/small too").unwrap();
    // The root of a lineage.
    w.clone_tree("/t", "/root", false).unwrap();
    w.remove_tree("/t").unwrap();
    w.fs.count_links().unwrap();
    let fork = |d, n: &OsStr, e, m: &OsStr| w.fs.fork_tree(&w.me, (d, n), (e, m), false, &["big".into()]);
    w.at("/root", |d, n| w.at("/f", |e, m| fork(d, n, e, m))).unwrap();
    w.remove_tree("/root/big").unwrap();
    w.fs.count_links().unwrap();
    w.fs.check(|p| panic!("{p}")).unwrap();
    let before = free(&w);
    w.remove_tree("/f").unwrap();
    let held = free(&w).saturating_sub(before);
    assert!(held < LARGE as u64, "{held} B of deleted files were kept");
}

/// A merge compares with the origin of the fork, of which most is not there any more.
#[test]
fn a_merge_is_the_same_when_files_without_a_name_have_gone_from_the_origin() {
    let tree = |counted: bool| {
        let w = World::new();
        large_and_small(&w, 12);
        w.mkdir("/s/d");
        w.put("/s/d/f", b"0");
        w.link("/s/d/f", "/big/of d").unwrap();
        w.fork("/s", "/f");
        let count = || {
            if counted {
                w.fs.count_links().unwrap()
            }
        };
        count();
        w.write_at("/f/f1", 100, b"theirs").unwrap();
        w.write_at("/s/f4", 100, b"ours").unwrap();
        w.write_at("/big/of d", 0, b"1").unwrap();
        w.link("/big/f3", "/s/now here").unwrap();
        w.link("/f/f7", "/f/d/third").unwrap();
        w.unlink("/f/f10").unwrap();
        count();
        let first = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        count();
        w.write_at("/f/g4", 0, b"again").unwrap();
        w.write_at("/s/g7", 0, b"again").unwrap();
        count();
        let second = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        w.fs.count_links().unwrap();
        w.fs.check(|p| panic!("{p}")).unwrap();
        check_keys(&w);
        let paths: BTreeMap<_, _> = w.walk("/s").into_iter().map(|(p, a)| (p, (a.size, a.nlink))).collect();
        let contents: Vec<_> = paths
            .keys()
            .filter_map(|p| w.get(p).ok())
            .map(|data| data[..data.len().min(200)].to_vec())
            .collect();
        (format!("{first:?} {second:?}"), paths, contents)
    };
    let (plain, counted) = (tree(false), tree(true));
    assert_eq!(plain.0, counted.0);
    assert_eq!(plain.1, counted.1);
    assert!(plain.2 == counted.2);
}

/// What was counted in a snapshot is counted again when something was removed from it.
#[test]
fn a_clone_of_a_snapshot_has_the_account_of_what_is_in_it() {
    let w = World::new();
    large_and_small(&w, 4);
    w.mkdir("/d");
    w.mkdir("/q");
    w.clone_tree("/s", "/d/c", false).unwrap();
    let around = w.on("/d", |a| w.fs.snapshot(by(&w), a.ino, &named("around"))).unwrap().0.number;
    let part = snap(&w, "/s", "part").number;
    w.on("/q", |a| w.fs.set_quota(a.ino, Some(40 << 20))).unwrap();
    for round in 0..3 {
        for (top, number) in [("/d", around), ("/s", part)] {
            let to = format!("{}{round}", &top[1..]);
            let q = w.attr("/q").ino;
            w.on(top, |a| {
                let root = w.fs.open_snapshot(a.ino, number)?;
                let done = w.on("/q", |_| w.fs.clone_snapshot(by(&w), root.ino, (q, OsStr::new(&to)), false));
                w.fs.forget(root.ino, 1);
                done
            })
            .unwrap();
            w.fs.check(|p| panic!("round {round}, {top}: {p}")).unwrap();
        }
        w.fs.count_links().unwrap();
        w.fs.count_quotas().unwrap();
        w.fs.check(|p| panic!("round {round}: {p}")).unwrap();
    }
    assert_eq!(w.names("/q").len(), 6);
}

/// A power failure while files are removed: the snapshot is whole, and the rest goes after the next mount.
#[test]
fn a_crash_while_files_without_a_name_are_removed_leaves_a_whole_snapshot() {
    const FILES: usize = 400;
    let (mut cut, mut begun) = (0, 0);
    for seed in 0..16 {
        let mut device = Arc::new(SimDevice::new(64 << 20, seed));
        Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10).log_size(1 << 20)).unwrap();
        let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
        for dir in ["/s", "/o"] {
            w.mkdir(dir);
        }
        for i in 0..FILES {
            for dir in ["/s", "/o"] {
                let path = format!("{dir}/{i}");
                w.put(&path, &[i as u8; 40]);
                w.link(&path, &format!("{path}.")).unwrap();
            }
        }
        let number = snap(&w, "/s", "one").number;
        w.fs.db().checkpoint().unwrap();
        device.set_fail_at(Some(seed / 2), FailMode::Onwards);
        let _failed = w.fs.count_links().and_then(|()| w.fs.db().checkpoint().map_err(Into::into));
        device.crash();
        device = device.reopen();
        w.fs = Fs::open(device.clone(), options()).unwrap();
        w.fs.check(|p| panic!("seed {seed}: {p}")).unwrap();
        let left = linked_in(&w, number).0.len();
        cut += usize::from(left > FILES);
        begun += usize::from((FILES + 1..2 * FILES).contains(&left));
        for i in (0..FILES).step_by(13) {
            assert_eq!(w.get(&format!("/s/.snapshots/one/{i}.")).unwrap(), [i as u8; 40], "seed {seed}");
        }
        w.fs.count_links().unwrap();
        assert_eq!(linked_in(&w, number).0, linked_in(&w, number).1, "seed {seed}");
        w.fs.check(|p| panic!("seed {seed}, removed: {p}")).unwrap();
        assert_eq!(w.names("/s/.snapshots/one").len(), 2 * FILES);
    }
    println!("{cut} crashes before the end, {begun} in the middle");
    assert!(cut > 0, "vacuous");
}

/// Everything that is done with snapshots, beside the removal.
#[test]
fn snapshots_are_read_deleted_and_rolled_back_to_while_files_are_removed_from_them() {
    let mut w = World::new();
    large_and_small(&w, 12);
    w.remount_with(options().background(true));
    let done = AtomicBool::new(false);
    let fs = &w.fs;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.count_links().unwrap();
            }
        });
        scope.spawn(|| {
            let w = World::over(fs.clone());
            for i in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let path = format!("/big/x{}", i % 20);
                w.put(&path, &noise(i, 20_000));
                w.link(&path, "/big/other").unwrap();
                w.unlink("/big/other").unwrap();
                w.unlink(&path).unwrap();
            }
        });
        let _done = SetWhenDropped(&done);
        let end = Instant::now() + Duration::from_secs(4);
        let mut round = 0u64;
        while Instant::now() < end || round <= 3 {
            round += 1;
            let info = snap(&w, "/s", "now");
            let top = "/s/.snapshots/now";
            w.fork("/s", "/f");
            for i in [1, 4, 7, 10] {
                assert_eq!(w.get(&format!("{top}/g{i}")).unwrap(), noise(i, 5_000), "round {round}");
                assert_eq!(w.get(&format!("/f/f{i}")).unwrap(), noise(i, 5_000), "round {round}");
            }
            let found: Result<Vec<_>> = w
                .on(top, |a| w.on("/s", |b| w.fs.diff(None, a.ino, b.ino, DiffOptions::default())))
                .unwrap()
                .collect();
            assert_eq!(found.unwrap().len(), 0, "round {round}");
            w.put("/f/new", &round.to_le_bytes());
            assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
            assert_eq!(w.get("/s/new").unwrap(), round.to_le_bytes());
            w.remove_tree("/f").unwrap();
            match round % 3 {
                0 => _ = w.on("/s", |a| w.fs.rollback(by(&w), a.ino, info.number, true)).unwrap(),
                1 => {
                    clone_out(&w, info.number);
                    assert_eq!(w.get("/k/g4").unwrap(), noise(4, 5_000));
                    w.remove_tree("/k").unwrap();
                }
                _ => {}
            }
            w.on("/s", |a| w.fs.delete_snapshot(by(&w), a.ino, info.number)).unwrap();
        }
        println!("{round} rounds");
    });
    w.fs.count_links().unwrap();
    w.fs.check(|p| panic!("{p}")).unwrap();
    check_keys(&w);
    assert_eq!(w.fs.db().prefix(b"\xff\xff\xff\xffV").count(), 0, "nothing waits");
}

/// On a full store, whose space a fork and a snapshot hold, it comes back by unlinks alone.
#[test]
fn a_full_store_is_emptied_by_unlinks_of_linked_files_beside_a_fork_and_a_snapshot() {
    for seed in 0..6 {
        let node = [16 << 10, 64 << 10][seed as usize % 2];
        let device = Arc::new(SimDevice::new(48 << 20, seed));
        Fs::format(device.clone(), &FormatOptions::default().node_size(node).log_size(1 << 20)).unwrap();
        let mut w = World::over(Fs::open(device.clone(), plain()).unwrap());
        large_and_small(&w, 12);
        w.fork("/s", "/f");
        snap(&w, "/s", "one");
        // Not counted yet: the store is full before.
        let mut files = 0;
        let more = |path: &str, data: &[u8]| {
            w.create(path).is_ok() && w.on(path, |a| w.fs.write(NONE, a.ino, 0, data, false)).is_ok()
        };
        while more(&format!("/big/more{files}"), &noise(files, LARGE / 3)) {
            files += 1;
        }
        assert!(files > 3, "vacuous");
        if seed > 2 {
            w.fs.close().unwrap();
            w.fs = Fs::open(device.clone(), plain()).unwrap();
        }
        for i in 0..12 {
            for name in ["f", "g"] {
                let gone = w.unlink(&format!("/big/{name}{i}"));
                gone.unwrap_or_else(|e| panic!("seed {seed}, file {i}: {e}"));
            }
        }
        w.fs.count_links().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(free(&w) > 10 * LARGE as u64, "seed {seed}: {} B are free", free(&w));
        for i in [1, 4, 7, 10] {
            for top in ["/f", "/s/.snapshots/one"] {
                assert_eq!(w.get(&format!("{top}/g{i}")).unwrap(), noise(i as u64, 5_000));
            }
        }
        w.fs.check(|p| panic!("seed {seed}: {p}")).unwrap();
    }
}

/// A store with `files` linked files that say they have 300 KiB, and have none, in `/s`, and for each of `every` a
/// directory `/x0`, `/x1`... with further names of every so many-th.
fn sparse_farm(files: usize, every: &[usize]) -> (World, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let me = Caller::root();
    let fs = Fs::open(device.clone(), plain()).unwrap();
    let dir = |name: &str| fs.mkdir(&me, ROOT, name.as_ref(), 0o755).unwrap().ino;
    let s = dir("s");
    let more: Vec<_> = every.iter().enumerate().map(|(n, every)| (dir(&format!("x{n}")), every)).collect();
    let set = SetAttr { size: Some(300 << 10), ..SetAttr::default() };
    for i in 0..files {
        let file = fs.mknod(&me, s, format!("f{i}").as_ref(), 0o100_644, 0).unwrap().ino;
        fs.setattr(&me, file, &set).unwrap();
        fs.link(&me, file, s, format!("g{i}").as_ref()).unwrap();
        fs.forget(file, 1);
        for (x, _) in more.iter().filter(|(_, every)| i % **every == 0) {
            fs.link(&me, file, *x, format!("x{i}").as_ref()).unwrap();
            fs.forget(file, 1);
        }
        fs.forget(file, 1);
    }
    fs.close().unwrap();
    let mut w = World::over(Fs::open(device.clone(), plain()).unwrap());
    w.device = device.clone();
    (w, device)
}

/// Reads, bytes read and bytes written until what `f` does is in the DAG and durable.
fn cost(w: &World, device: &MemDevice, f: impl FnOnce(&World)) -> (u64, u64, u64) {
    let before = device.stats();
    f(w);
    w.fs.db().checkpoint().unwrap();
    let after = device.stats();
    (after.reads - before.reads, after.read_bytes - before.read_bytes, after.write_bytes - before.write_bytes)
}

#[test]
fn what_is_removed_from_a_snapshot_is_found_at_the_cost_of_its_names() {
    const FILES: usize = 50_000;
    let every = [FILES, FILES / 20, 25];
    let (mut w, device) = sparse_farm(FILES, &every);
    let mut all = Vec::new();
    for (x, every) in every.into_iter().enumerate().map(|(n, every)| (format!("/x{n}"), every)) {
        let made = cost(&w, &device, |w| _ = snap(w, &x, "one"));
        let stripped = cost(&w, &device, |w| w.fs.count_links().unwrap());
        let number = w.on(&x, |a| w.fs.snapshots(a.ino)).unwrap()[0].number;
        let left = linked_in(&w, number).0.len();
        w.remount_with(plain());
        let differs = cost(&w, &device, |w| {
            let options = DiffOptions::default();
            let snapshot = format!("{x}/.snapshots/one");
            let diff = w.on(&snapshot, |a| w.on(&x, |b| w.fs.diff(None, a.ino, b.ino, options)));
            assert_eq!(diff.unwrap().count(), 0);
        });
        println!(
            "{} names of {FILES} files: made {made:?}, removed {stripped:?}, {left} files left, difference {differs:?}",
            FILES.div_ceil(every)
        );
        all.push((made, stripped, differs, left));
    }
    w.fs.check(|p| panic!("{p}")).unwrap();
    let [few, some, many] = all[..] else { panic!() };
    for (made, ..) in [few, some, many] {
        assert!(made.0 <= 40 && made.2 <= 250 << 10, "a snapshot is small: {all:?}");
    }
    assert!(few.1.0 <= 30 && few.1.1 <= 1 << 20 && few.1.2 <= 100 << 10, "{all:?}");
    assert!(some.1.0 <= 100 && some.1.2 <= 200 << 10, "{all:?}");
    // The most gaps that are removed.
    assert!(many.1.2 <= 400 << 10 && many.1.1 <= 4 << 20, "{all:?}");
    assert_eq!((few.3, some.3), (1, 20));
    for (.., differs, _) in [few, some, many] {
        assert!(differs.0 <= 300 && differs.1 <= 4 << 20, "the names are read, not the area: {all:?}");
    }
}
