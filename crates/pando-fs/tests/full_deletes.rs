//! What gives space back on a full store: whatever was refused before, and however often, every unlink goes through and
//! so does `rm -r`, and their space comes back. Random stores and random calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{ffi::OsStr, sync::Arc, time::Instant};

use super::common::{
    World, check_keys, options,
    seeds::{is_replay, seeds_for},
    trees::Rng,
};
use pando_db::device::{Device, SimDevice};
use pando_fs::*;

const ENOSPC: i32 = 28;
/// Keep the size, punch a hole: modes of `fallocate`.
const PUNCH: i32 = 3;

/// Unlinks that are refused before a snapshot is deleted, a count.
const MAX_REFUSED: usize = 2_000;
/// Sizes of stores and of their nodes, in bytes.
const STORES: [(u64, u32); 5] = [
    (12 << 20, 16 << 10),
    (24 << 20, 16 << 10),
    (16 << 20, 64 << 10),
    (48 << 20, 64 << 10),
    (64 << 20, 128 << 10),
];

struct Full {
    w: World,
    device: Arc<SimDevice>,
    files: Vec<(String, u64)>,
    dirs: Vec<String>,
    what: String,
}

impl Full {
    /// A store with files of many sizes, some with attributes, some cloned and with snapshots, until nothing fits.
    fn new(seed: u64, rng: &mut Rng) -> Self {
        let store = rng.next(STORES.len());
        let sizes: [usize; 6] = [60, 700, 5_000, 16_385, 40_000, 300_000];
        let largest = 1 + rng.next(sizes.len());
        // Of short files, the large stores take so many that nothing else of a run fits its time.
        let (size, node) = STORES[if largest <= 2 { store % 2 } else { store }];
        let device = Arc::new(SimDevice::new(size, seed));
        let format = FormatOptions::default().node_size(node).log_size(1 << 20);
        Fs::format(device.clone(), &format).unwrap();
        let w = World::over(Fs::open(device.clone(), options()).unwrap());
        let what = format!("PANDO_SEED={seed}: {} KiB in nodes of {} KiB", size >> 10, node >> 10);
        let mut full = Self { w, device, files: Vec::new(), dirs: Vec::new(), what };
        let data: Vec<u8> = (0..sizes[5]).map(|_| rng.next(256) as u8).collect();
        let attributes = rng.next(3);
        let clones = rng.next(3) == 0;
        loop {
            let dir = format!("/d{}", full.dirs.len());
            let made = full.w.at(&dir, |d, n| full.w.fs.mkdir(&full.w.me, d, n, 0o755));
            let Ok(attr) = made else { break };
            full.w.fs.forget(attr.ino, 1);
            full.dirs.push(dir.clone());
            if (0..60).any(|_| {
                full.file(&dir, &data[rng.next(1000)..], &sizes[..largest], attributes, rng).is_err()
            }) {
                break;
            }
            if clones && rng.next(4) == 0 && full.w.clone_tree(&dir, &format!("{dir}c"), false).is_ok() {
                full.dirs.push(format!("{dir}c"));
            }
        }
        // The last bytes.
        for size in [4000, 500, 60, 1] {
            while full.file("/d0", &data, &[size], 0, rng).is_ok() {}
        }
        full
    }

    fn file(
        &mut self,
        dir: &str,
        data: &[u8],
        sizes: &[usize],
        attributes: usize,
        rng: &mut Rng,
    ) -> Result<()> {
        let path = format!("{dir}/f{:05}", self.files.len());
        let w = &self.w;
        w.create(&path)?;
        let bytes = &data[..sizes[rng.next(sizes.len())].min(data.len())];
        self.files.push((path.clone(), bytes.len() as u64));
        if w.write_at(&path, 0, bytes)? as usize != bytes.len() {
            return Err(Error::Engine(pando_db::Error::NoSpace));
        }
        for i in 0..rng.next(attributes + 1) {
            let name = format!("user.{i}");
            w.on(&path, |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new(&name), &data[..100 + 2900 * i], 0))?;
        }
        Ok(())
    }

    /// A call that may be refused, but for want of space only.
    fn call(&self, i: usize, rng: &mut Rng) -> bool {
        let w = &self.w;
        let (path, size) = &self.files[rng.next(self.files.len())];
        let cut = SetAttr { size: Some(*size / 2 + 1), ..SetAttr::default() };
        let mode = SetAttr { mode: Some(0o600 + rng.next(0o100) as u32), ..SetAttr::default() };
        let dir = &self.dirs[rng.next(self.dirs.len())];
        let value = vec![b'v'; rng.next(3000)];
        let done = match rng.next(13) {
            0 => w.on(path, |a| w.fs.setattr(&w.me, a.ino, &cut)).map(drop),
            1 => w.on(path, |a| w.fs.fallocate(&w.me, a.ino, 10, *size / 3 + 1, PUNCH)),
            2 => w.on(path, |a| w.fs.remove_xattr(&w.me, a.ino, "user.0".as_ref())),
            3 => w.on(path, |a| w.fs.remove_xattr(&w.me, a.ino, "user.1".as_ref())),
            4 => w.on(path, |a| w.fs.setattr(&w.me, a.ino, &mode)).map(drop),
            5 => w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, "user.x".as_ref(), &value, 0)),
            6 => w.at(&format!("{dir}/{i}{}", "x".repeat(200)), |d, n| {
                w.fs.mkdir(&w.me, d, n, 0o755).map(|attr| w.fs.forget(attr.ino, 1))
            }),
            7 => w.create(&format!("{dir}/new{i}")).map(drop),
            8 => w.rename(path, &format!("{path}r"), 0).and_then(|()| w.rename(&format!("{path}r"), path, 0)),
            9 => w.clone_tree(dir, &format!("/clone{i}"), false).map(drop),
            10 => w
                .on(dir, |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()))
                .map(drop),
            11 => w.write_at(path, rng.next(*size as usize + 1) as u64, &value).map(drop),
            _ => {
                let (here, _) = path.rsplit_once('/').unwrap();
                w.link(path, &format!("{here}/link{i}")).map(drop)
            }
        };
        match done {
            Ok(()) => false,
            Err(e) => {
                // Names that are taken, attributes that are not there, a half of a double rename.
                assert!([ENOSPC, 17, 61, 2].contains(&e.errno()), "{}: {e}", self.what);
                e.errno() == ENOSPC
            }
        }
    }
}

/// Whether the store has had extents in several ranges: bit 4 of its incompatible features.
fn is_scattered(device: &SimDevice) -> bool {
    let mut superblock = [0; 32];
    device.read_at(0, &mut superblock).unwrap();
    superblock[24] & 4 != 0
}

/// Whether its free space was scattered.
fn deletes_go_through(seed: u64, refused: &mut usize) -> bool {
    let mut rng = Rng(seed | 1);
    let mut full = Full::new(seed, &mut rng);
    let calls = 200 + rng.next(2000);
    let n = (0..calls).filter(|i| full.call(*i, &mut rng)).count();
    *refused += n;
    let mut what = format!("{}, {n} of {calls} refused", full.what);
    if rng.next(3) == 0 {
        full.w.fs.sync().unwrap();
        full.device = full.device.reopen();
        full.w.fs = Fs::open(full.device.clone(), options()).unwrap();
        what += ", mounted again";
    }
    let w = &full.w;
    let figures = || {
        let s = w.fs.db().stats().unwrap();
        format!(
            "free {} KiB, available {}, tables {}, nodes {:?}",
            (s.device_size - s.used) >> 10,
            s.available,
            s.tables,
            s.nodes_by_height
        )
    };
    let one_by_one = rng.next(2) == 0;
    if one_by_one {
        let threads = 1 + 3 * rng.next(2);
        let what = format!("{what}, {threads} threads");
        let unlink = |(i, (path, _)): (usize, &(String, u64))| match w.unlink(path) {
            Ok(()) => {}
            Err(e) if e.errno() == 2 => {}
            Err(e) => panic!("{what}: unlink {i} of {}: {e}; {}", full.files.len(), figures()),
        };
        std::thread::scope(|s| {
            for thread in 0..threads {
                let unlink = &unlink;
                let mine = full.files.iter().enumerate().skip(thread).step_by(threads);
                s.spawn(move || mine.for_each(unlink));
            }
        });
    }
    // What they hold would stay.
    for source in w.fs.snapshot_sources().unwrap() {
        for snapshot in w.fs.snapshots(source).unwrap() {
            let deleted = w.fs.delete_snapshot(Authority::Caller(&w.me), source, snapshot.number);
            deleted.unwrap_or_else(|e| panic!("{what}: delete of a snapshot: {e}; {}", figures()));
        }
    }
    for dir in w.names("/") {
        w.remove_tree(&format!("/{dir}"))
            .unwrap_or_else(|e| panic!("{what}: rm -r {dir}: {e}; {}", figures()));
    }
    check_keys(w);
    w.fs.db().settle().unwrap();
    w.create("/new").unwrap();
    let room = w.fs.db().stats().unwrap();
    let fits = w
        .write_at("/new", 0, &vec![1; 1 << 20])
        .unwrap_or_else(|e| panic!("{what}: then {e}: {}", figures()));
    assert_eq!(fits, 1 << 20, "{what}: {room:?}");
    w.fs.close().unwrap();
    is_scattered(&full.device)
}

#[test]
fn deletes_go_through_after_any_number_of_refused_calls() {
    let (mut refused, mut scattered, mut seeds) = (0, 0, seeds_for("PANDO_MODEL_SECONDS", 8));
    while let Some(seed) = seeds.next_until(refused > 100 && scattered > 0, 300) {
        scattered += usize::from(deletes_go_through(seed, &mut refused));
    }
    println!("{refused} calls were refused, the free space of {scattered} stores was scattered");
    assert!(
        (refused > 100 && scattered > 0) || is_replay(),
        "vacuous: {refused} refused, {scattered} scattered"
    );
}

/// What a snapshot holds does not come back by unlinks, and each of them takes space. When they are refused the snapshot
/// can be deleted, and then everything else. In some seeds none is refused; the tests below have seeds in which some are.
#[test]
fn a_snapshot_is_deleted_when_unlinks_beside_it_have_used_up_the_store() {
    let mut refused = 0;
    for seed in seeds_for("PANDO_MODEL_SECONDS", 4) {
        refused +=
            used_up_beside_a_snapshot(seed, 0) + used_up_beside_a_snapshot(seed, 1 + seed as usize / 2 % 4);
    }
    println!("{refused} unlinks were refused");
}

/// One delete can have as many shared nodes copied as an edit changes. Here the last that was let in copied nine, and
/// the snapshot stayed for ever.
#[test]
fn a_snapshot_is_deleted_when_the_last_unlink_beside_it_and_a_fork_took_much() {
    assert!(used_up_beside_a_snapshot(13_064_762_836_777, 1) > 0, "vacuous");
}

/// Edits that went on with an unlink took what the deletion of the snapshot needed: a part of the times, with and
/// without a fork. Or so many unlinks waited in the root that it could not be written any more.
#[test]
fn a_snapshot_is_deleted_when_what_goes_on_with_unlinks_beside_it_took_much() {
    assert!(used_up_beside_a_snapshot(5_800_511_297_333, 3) > 0, "vacuous");
    assert!(used_up_beside_a_snapshot(9_151_936_967_783, 0) > 0, "vacuous");
}

/// Unlinks that were refused before the snapshot was deleted, a count. So many forks are deleted before, which frees
/// nearly nothing.
fn used_up_beside_a_snapshot(seed: u64, forks: usize) -> usize {
    let mut rng = Rng(seed | 1);
    let mut full = Full::new(seed, &mut rng);
    let w = &full.w;
    let (me, what) = (Authority::Caller(&w.me), &full.what);
    if forks > 0 {
        // What the fork takes.
        loop {
            let room = full.files.len() / 10 + 1;
            full.files.drain(..room).for_each(|(path, _)| w.unlink(&path).unwrap());
            w.fs.db().settle().unwrap();
            let made = w.at("/few", |d, n| w.fs.mkdir(&w.me, d, n, 0o755));
            match made.map(|attr| w.fs.forget(attr.ino, 1)).and_then(|()| w.create("/few/one")) {
                Ok(_) => break,
                Err(e) => assert!(e.errno() == ENOSPC && full.files.len() > 10, "{what}: {e}"),
            }
            let _not_there = w.rmdir("/few");
        }
        (0..forks).for_each(|i| w.fork("/few", &format!("/fork{i}")));
    }
    let number = loop {
        // What the snapshot itself takes.
        let room = full.files.len() / 20 + 1;
        full.files.drain(..room).for_each(|(path, _)| w.unlink(&path).unwrap());
        w.fs.db().settle().unwrap();
        match w.on("/", |a| w.fs.snapshot(me, a.ino, &NewSnapshot::default())) {
            Ok(taken) => break taken.0.number,
            Err(e) => assert!(e.errno() == ENOSPC && full.files.len() > 10, "{what}: {e}"),
        }
    };
    let (mut left, all, begun) = (Vec::new(), full.files.len(), Instant::now());
    while !full.files.is_empty() && left.len() < MAX_REFUSED {
        let (path, _) = full.files.swap_remove(rng.next(full.files.len()));
        match w.unlink(&path) {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.errno(), ENOSPC, "{what}: {e}");
                left.push(path);
            }
        }
    }
    let refused = left.len();
    println!("{what}: {refused} of {all} unlinks refused, {:?}", begun.elapsed());
    for fork in (0..forks).map(|i| format!("/fork{i}")) {
        let one = format!("{fork}/one");
        w.unlink(&one).unwrap_or_else(|_| left.push(one.clone()));
        // Only an empty one goes.
        let gone = w.rmdir(&fork);
        assert!(gone.is_ok() || w.exists(&one), "{what}: {gone:?}");
    }
    let deleted = w.fs.delete_snapshot(me, ROOT, number);
    deleted.unwrap_or_else(|e| panic!("{what}: {e}, after {refused} refused unlinks"));
    for path in left.into_iter().chain(full.files.into_iter().map(|(path, _)| path)) {
        w.unlink(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    w.fs.db().settle().unwrap();
    w.create("/new").unwrap();
    assert_eq!(w.write_at("/new", 0, &vec![1; 1 << 20]).unwrap(), 1 << 20, "{what}");
    w.fs.close().unwrap();
    refused
}

/// What is written over takes its space twice as long as the new bytes wait above the old ones. A store that is short
/// of space carries them down: a program that changes its files in place never hears that it is full, if they fill no
/// more than a part of it, and what only a snapshot held is there again when that is deleted.
#[test]
fn files_are_changed_in_place_for_ever_on_a_store_that_they_fill_in_part() {
    for with_snapshot in [false, true] {
        changed_in_place(3, true, with_snapshot);
    }
}

/// A file that fills a part of a store is changed at random: with a snapshot until the store is full, after which the
/// snapshot is deleted, and then so often that each of its pages is changed twice on the mean.
fn changed_in_place(seed: u64, background: bool, with_snapshot: bool) {
    const CALL: usize = 4 << 10;
    let device = Arc::new(SimDevice::new(64 << 20, 1));
    let format = FormatOptions::default().node_size(128 << 10);
    Fs::format(device.clone(), &format).unwrap();
    let w = World::over(Fs::open(device, options().background(background)).unwrap());
    let mut rng = Rng(seed);
    let available = w.fs.db().stats().unwrap().available as usize;
    let calls = available * if with_snapshot { 50 } else { 60 } / 100 / CALL;
    w.mkdir("/d");
    w.create("/d/file").unwrap();
    // Nothing that can be compressed.
    let write = |i: usize, rng: &mut Rng| {
        let noise: Vec<u8> = (0..CALL / 4).flat_map(|_| (rng.next(1 << 32) as u32).to_le_bytes()).collect();
        w.write_at("/d/file", (i * CALL) as u64, &noise)
    };
    (0..calls).for_each(|i| assert_eq!(write(i, &mut rng).unwrap() as usize, CALL));
    w.fs.sync().unwrap();
    let say = |what: &str| {
        let stats = w.fs.db().stats().unwrap();
        let (size, left) = ((calls * CALL) >> 10, stats.available >> 10);
        format!("seed {seed}, {what}: {size} KiB of {}, {left} left", available >> 10)
    };
    if with_snapshot {
        w.on("/d", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default())).unwrap();
        let full = (0..4 * calls).any(|_| write(rng.next(calls), &mut rng).is_err());
        assert!(full, "vacuous: the old and the new bytes fit; {}", say("changed"));
        let (source, snapshot) = w.on("/d", |a| Ok((a.ino, w.fs.snapshots(a.ino)?.remove(0)))).unwrap();
        w.fs.delete_snapshot(Authority::Caller(&w.me), source, snapshot.number).unwrap();
        println!("{}", say("the snapshot is gone"));
    }
    for i in 0..2 * calls {
        write(rng.next(calls), &mut rng)
            .unwrap_or_else(|e| panic!("call {i} of {calls}: {e}; {}", say("then")));
        if i % 100 == 0 {
            w.fs.sync().unwrap();
        }
    }
    println!("{}", say("changed twice"));
    check_keys(&w);
}

/// The message of the delete waits behind those of the file. Garbage collection carried messages down on its way to it:
/// that takes space at first, so it gave up before it came there, and all writes were refused for good.
#[test]
fn what_only_a_snapshot_held_is_freed_before_messages_are_carried_down() {
    [3, 5].into_iter().for_each(|seed| changed_in_place(seed, false, true));
}
