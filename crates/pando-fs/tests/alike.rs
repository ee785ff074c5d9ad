//! In which snapshots something is surely what it was in the one before: against the difference of each two, and what
//! it costs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::common::{
    World, options,
    seeds::{is_replay, seeds_for},
    trees::{Made, Rng, change, read, step},
};
use pando_db::device::{Device, DeviceCall, HookedDevice, MemDevice};
use pando_fs::*;

fn snapshot(w: &World, dir: &str, name: &str) -> u32 {
    let new = NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    w.on(dir, |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)).unwrap().0.number
}

/// All that are told, asked for a few at a time.
fn alike(w: &World, viewer: Option<&Caller>, dir: &str, path: &str, max: usize) -> BTreeSet<u32> {
    let (mut all, mut from) = (BTreeSet::new(), 0);
    loop {
        let ask = |a: Attr| w.fs.alike_snapshots(viewer, a.ino, Path::new(path), (from, max));
        let found = w.on(dir, ask).unwrap();
        all.extend(found.numbers);
        match found.next {
            Some(next) => from = next,
            None => return all,
        }
    }
}

/// Whether two paths lead to the same, as a difference sees it.
fn same(w: &World, a: &str, b: &str) -> bool {
    match (w.exists(a), w.exists(b)) {
        (false, false) => return true,
        (true, true) => {}
        _ => return false,
    }
    let (x, y) = (w.attr(a), w.attr(b));
    if x.kind != y.kind || (x.perm, x.uid, x.gid, x.mtime) != (y.perm, y.uid, y.gid, y.mtime) {
        return false;
    }
    if x.kind == FileKind::Symlink {
        let target = |path: &str| w.on(path, |a| w.fs.readlink(a.ino)).unwrap();
        return target(a) == target(b);
    }
    w.on(a, |x| w.on(b, |y| Ok(w.fs.diff(None, x.ino, y.ino, DiffOptions::default())?.next().is_none())))
        .unwrap()
}

#[test]
fn what_is_said_to_be_the_same_is_the_same_as_a_difference_sees_it() {
    let (mut told, mut are, mut runs) = (0, 0, 0);
    let mut seeds = seeds_for("PANDO_ALIKE_SECONDS", 6);
    while let Some(seed) = seeds.next_until(told > 1000, 100) {
        let w = World::new();
        let (mut rng, mut made) = (Rng(seed | 1), Made::default());
        let links = seed % 4 == 1;
        w.mkdir("/t");
        let mut paths = BTreeSet::new();
        let mut numbers = Vec::new();
        for round in 0..14 {
            for _ in 0..rng.next(4) {
                match links {
                    true => change(&w, "/t", &mut rng, &mut made),
                    false => step(&w, "/t", &mut rng),
                }
            }
            paths.extend(read(&w, "/t").into_keys());
            numbers.push((snapshot(&w, "/t", &format!("s{round}")), format!("/t/.snapshots/s{round}")));
        }
        if rng.next(2) == 0 {
            let gone = numbers.remove(rng.next(numbers.len()));
            w.on("/t", |a| w.fs.delete_snapshot(Authority::Caller(&w.me), a.ino, gone.0)).unwrap();
        }
        for path in paths {
            let inside = path.trim_start_matches('/');
            let found = alike(&w, None, "/t", inside, 2 + rng.next(5));
            for pair in numbers.windows(2) {
                let [(_, a), (number, b)] = pair else { unreachable!() };
                let is_same = same(&w, &format!("{a}{path}"), &format!("{b}{path}"));
                let is_told = found.contains(number);
                assert!(is_same || !is_told, "PANDO_SEED={seed}: {path} in {b} is not as in {a}");
                if !links {
                    (told, are) = (told + u32::from(is_told), are + u32::from(is_same));
                }
            }
            assert!(!numbers.first().is_some_and(|(first, _)| found.contains(first)), "there is none before");
        }
        runs += 1;
    }
    eprintln!("{runs} histories; {told} of {are} were told");
    assert!(is_replay() || told > 1000 && told * 10 > are * 9, "{told} of {are}");
}

#[test]
fn who_may_not_walk_to_something_is_told_nothing_of_it() {
    let w = World::new();
    w.mkdir("/t");
    w.mkdir("/t/open");
    w.mkdir("/t/closed");
    w.put("/t/open/f", b"1");
    w.put("/t/closed/f", b"1");
    let set = |path: &str, mode| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &set)).unwrap();
    };
    set("/t", 0o755);
    set("/t/open", 0o755);
    set("/t/closed", 0o700);
    let all: Vec<u32> = (0..4).map(|i| snapshot(&w, "/t", &format!("s{i}"))).collect();
    set("/t/open", 0o711);
    let last = snapshot(&w, "/t", "s4");
    let other = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let told = |viewer, path| alike(&w, viewer, "/t", path, 100);
    let most: BTreeSet<u32> = all[1..].iter().copied().collect();
    assert_eq!(told(Some(&other), "open/f"), most, "not behind the change of rights");
    assert_eq!(told(None, "open/f"), most, "nor for others: that is for the kernel to say");
    for path in ["closed/f", "closed", ""] {
        assert_eq!(told(Some(&other), path), BTreeSet::new(), "of {path:?}");
    }
    assert!(told(None, "closed/f").contains(&last));
    assert_eq!(told(None, "no/such/path").len(), 4);
    assert!(w.on("/t", |a| w.fs.alike_snapshots(None, a.ino, Path::new("../x"), (0, 9))).is_err());
}

#[test]
fn what_is_asked_ends_when_its_caller_is_gone_and_takes_no_impossible_name() {
    let w = World::new();
    w.mkdir("/t");
    w.put("/t/f", b"1");
    (0..3).for_each(|i| _ = snapshot(&w, "/t", &format!("s{i}")));
    let ask = |path: &str, stop: bool| {
        let (path, stop) = (Path::new(path), Arc::new(AtomicBool::new(stop)));
        w.on("/t", |a| w.fs.alike_snapshots_unless(None, a.ino, path, (0, 100), &stop))
    };
    assert_eq!(ask("f", false).unwrap().numbers.len(), 2);
    assert_eq!(ask("f", true).unwrap_err().errno(), 4);
    let long = "x".repeat(256);
    for path in [long.clone(), format!("{long}/f"), format!("f/{long}")] {
        assert_eq!(ask(&path, false).unwrap_err().errno(), 36);
    }
}

/// Whoever looks follows links on the way. What they lead to was not compared, and a change of the link was not told.
#[test]
fn a_path_through_a_link_is_never_told_to_be_the_same() {
    let w = World::new();
    w.mkdir("/t");
    w.mkdir("/t/v1");
    w.put("/t/v1/f", b"1");
    w.symlink("/t/cur", "v1");
    (0..2).for_each(|i| _ = snapshot(&w, "/t", &format!("a{i}")));
    w.unlink("/t/cur").unwrap();
    (0..2).for_each(|i| _ = snapshot(&w, "/t", &format!("b{i}")));
    w.symlink("/t/cur", "v2");
    w.link("/t/cur", "/t/again").unwrap();
    (0..2).for_each(|i| _ = snapshot(&w, "/t", &format!("c{i}")));
    let told = alike(&w, None, "/t", "cur/f", 100);
    let all = w.on("/t", |a| w.fs.snapshots(a.ino)).unwrap();
    let name = |number: &u32| all.iter().find(|s| s.number == *number).unwrap().name.clone();
    assert_eq!(told.iter().map(name).collect::<Vec<_>>(), ["b1"], "only where there is nothing");
}

/// Ten changes among thousands of snapshots: what is read does not grow with those that change nothing.
#[test]
fn snapshots_that_change_nothing_cost_no_reads() {
    nothing_costs_no_reads(false);
}

/// Of a file with several names each snapshot was looked at by itself.
#[test]
fn snapshots_that_change_nothing_of_a_linked_file_cost_no_reads() {
    nothing_costs_no_reads(true);
}

fn nothing_costs_no_reads(linked: bool) {
    let reads = Arc::new(AtomicU64::new(0));
    let count = reads.clone();
    let device = HookedDevice::new(Arc::new(MemDevice::new(1 << 30)), false, move |call| {
        if matches!(call, DeviceCall::Read(_)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let device = Arc::new(device);
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let open = || Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap();
    let w = World::over(open());
    w.mkdir("/t");
    w.mkdir("/t/d");
    for i in 0..300 {
        w.put(&format!("/t/d/f{i}"), &[i as u8; 300]);
    }
    if linked {
        w.link("/t/d/f7", "/t/also").unwrap();
    }
    let mut cost = Vec::new();
    let mut made = 0;
    for most in [250, 1000] {
        while made < most {
            if made % 100 == 50 {
                w.put("/t/d/f7", &[made as u8; 200]);
            }
            snapshot(&w, "/t", &format!("s{made}"));
            made += 1;
        }
        w.fs.sync().unwrap();
        w.fs.db().checkpoint().unwrap();
        let again = World::over(w.fs.clone());
        let before = reads.load(Ordering::Relaxed);
        let begun = std::time::Instant::now();
        let found = alike(&again, None, "/t", "d/f7", 1024).len();
        cost.push((reads.load(Ordering::Relaxed) - before, most - found, begun.elapsed()));
    }
    eprintln!("reads, changes and time: {cost:?}");
    // The first is alike to none.
    assert_eq!((cost[0].1, cost[1].1), (1 + 2, 1 + 10));
    assert!(cost[1].0 <= cost[0].0 + 10 * 12, "{cost:?}");
}
