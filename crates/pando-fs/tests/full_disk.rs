//! A disk that is full before, during or after a fork, a merge, a discard, a snapshot or a rollback: all of it or
//! nothing, ENOSPC, and the same succeeds once there is room.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::common::{
    World, check_keys,
    merged::expect,
    options,
    seeds::{is_replay, seeds_for},
    trees::{Picture, Rng, Tree, picture, read, step},
};
use pando_db::device::{Device, SimDevice};
use pando_fs::*;

const ENOSPC: i32 = 28;
/// Bytes of a device that is soon full.
const SMALL_DEVICE: u64 = 12 << 20;
/// Files that the fork has got beside random changes, a count: a batch of some 10 KiB.
const MANY: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Merge,
    Fork,
    Discard,
    Snapshot,
    Rollback,
}

const CALLS: [Call; 5] = [Call::Merge, Call::Fork, Call::Discard, Call::Snapshot, Call::Rollback];

/// All that can be seen of the trees, forks and snapshots.
#[derive(Debug, PartialEq)]
struct Seen {
    source: Picture,
    fork: Picture,
    /// Whether the fork that is to be discarded, and the one that is to be made, are there.
    others: [Option<Tree>; 2],
    forks: Vec<ForkInfo>,
    snapshots: Vec<(u32, String)>,
}

/// A source with a snapshot and two forks, random changes on all sides, and what is in the filler.
struct Scene {
    w: World,
    base: Picture,
    first: Tree,
    snapshot: u32,
    fillers: Vec<String>,
    made: u32,
}

impl Scene {
    fn new(device: Arc<dyn Device>, rng: &mut Rng) -> Self {
        Self::mounted(device, options(), rng)
    }

    /// One whose merge a preferred side settles.
    fn mergeable(options: &MountOptions) -> (Self, Rng) {
        let scenes = (7..).map(|seed| {
            let mut rng = Rng(seed);
            let device = Arc::new(SimDevice::new(SMALL_DEVICE, seed));
            (Self::mounted(device, options.clone(), &mut rng), rng)
        });
        scenes.into_iter().find(|(scene, _)| scene.can(Call::Merge, &scene.seen())).unwrap()
    }

    fn mounted(device: Arc<dyn Device>, options: MountOptions, rng: &mut Rng) -> Self {
        let format = FormatOptions::default().node_size(16 << 10).log_size(1 << 20);
        Fs::format(device.clone(), &format).unwrap();
        let w = World::over(Fs::open(device, options).unwrap());
        w.mkdir("/fill");
        w.mkdir("/s");
        (0..20).for_each(|_| step(&w, "/s", rng));
        let first = read(&w, "/s");
        let snapshot = w
            .on("/s", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()))
            .unwrap()
            .0
            .number;
        (0..3).for_each(|_| step(&w, "/s", rng));
        w.fork("/s", "/f");
        w.fork("/s", "/g");
        let base = picture(&w, "/f");
        (0..8).for_each(|_| step(&w, "/f", rng));
        for i in 0..MANY {
            w.put(&format!("/f/a file with quite a long name, number {i}"), &[b'm'; 50]);
        }
        (0..4).for_each(|_| step(&w, "/s", rng));
        Self { w, base, first, snapshot, fillers: Vec::new(), made: 0 }
    }

    fn seen(&self) -> Seen {
        let w = &self.w;
        let tree = |path: &str| w.exists(path).then(|| read(w, path));
        let snapshots = w.on("/s", |a| w.fs.snapshots(a.ino)).unwrap();
        Seen {
            source: picture(w, "/s"),
            fork: picture(w, "/f"),
            others: [tree("/g"), tree("/new")],
            forks: w.fs.forks(None).unwrap(),
            snapshots: snapshots.iter().map(|s| (s.number, s.name.to_str().unwrap().to_owned())).collect(),
        }
    }

    fn call(&self, call: Call) -> Result<()> {
        let w = &self.w;
        match call {
            Call::Merge => {
                let o = MergeOptions { prefer: Some(MergeSide::Theirs), ..Default::default() };
                w.merge("/f", "/s", o).map(|report| assert!(report.merged))
            }
            Call::Fork => w
                .at("/s", |d, n| w.at("/new", |e, m| w.fs.fork_tree(&w.me, (d, n), (e, m), false, &[])))
                .map(drop),
            Call::Discard => w.at("/g", |d, n| w.fs.discard(&w.me, d, n)).map(drop),
            Call::Snapshot => {
                let new = NewSnapshot { name: Some("late".into()), ..NewSnapshot::default() };
                w.on("/s", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)).map(drop)
            }
            Call::Rollback => {
                w.on("/s", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, self.snapshot, false)).map(drop)
            }
        }
    }

    /// Whether the call can be made: there are merges that no preferred side settles.
    fn can(&self, call: Call, was: &Seen) -> bool {
        let settled = || expect(&self.base, &was.fork, &was.source, Some(MergeSide::Theirs)).0.is_some();
        call != Call::Merge || settled()
    }

    /// Whether `now` is what the call makes of `was`.
    fn is_done(&self, call: Call, was: &Seen, now: &Seen) -> bool {
        let same = |source: bool, others: bool, forks: usize, snapshots: usize| {
            (!source || now.source == was.source)
                && now.fork == was.fork
                && (!others || now.others == was.others)
                && now.forks.len() == forks
                && now.snapshots.len() == snapshots
        };
        let (forks, snapshots) = (was.forks.len(), was.snapshots.len());
        match call {
            Call::Merge => {
                let wanted = expect(&self.base, &was.fork, &was.source, Some(MergeSide::Theirs)).0;
                same(false, true, forks, snapshots)
                    && Some(&now.source.tree) == wanted.as_ref()
                    && now.forks != was.forks
            }
            Call::Fork => {
                same(true, false, forks + 1, snapshots)
                    && now.others == [was.others[0].clone(), Some(was.source.tree.clone())]
            }
            Call::Discard => {
                same(true, false, forks - 1, snapshots) && now.others == [None, was.others[1].clone()]
            }
            Call::Snapshot => same(true, true, forks, snapshots + 1),
            Call::Rollback => same(false, true, forks, snapshots + 1) && now.source.tree == self.first,
        }
    }

    /// Writes files of bytes that no compression makes small, larger ones first, until there is no room for 64 bytes,
    /// or until there are so many more.
    fn fill(&mut self, rng: &mut Rng, most: usize) {
        let most = self.fillers.len() + most;
        for size in [256 << 10, 32 << 10, 4 << 10, 512, 64] {
            while self.fillers.len() < most {
                self.made += 1;
                let path = format!("/fill/{}", self.made);
                let bytes: Vec<u8> = (0..size).map(|_| rng.next(256) as u8).collect();
                let done = self.w.create(&path).and_then(|_| {
                    self.fillers.push(path.clone());
                    self.w.write_at(&path, 0, &bytes)
                });
                match done {
                    Ok(n) if n as usize == size => {}
                    Ok(_) => break,
                    Err(e) => {
                        assert_eq!(e.errno(), ENOSPC, "{e}");
                        break;
                    }
                }
            }
        }
    }

    /// Removes the last filler; false if there is none.
    fn make_room(&mut self) -> bool {
        let Some(path) = self.fillers.pop() else { return false };
        self.w.unlink(&path).unwrap();
        true
    }

    fn check(&self, what: &dyn Debug) {
        self.w.fs.check(|problem| panic!("{what:?}: {problem}")).unwrap();
    }
}

/// How often each call was refused, and done.
#[derive(Default, Debug)]
struct Counts {
    refused: [u32; CALLS.len()],
    done: [u32; CALLS.len()],
}

impl Counts {
    /// Whether each call was done, and a merge and another one refused.
    fn are_enough(&self) -> bool {
        self.done.iter().all(|n| *n > 0) && self.refused[0] > 0 && self.refused[1..].iter().sum::<u32>() > 0
    }
}

/// Histories for some seconds, and behind that until enough is seen.
fn histories(seconds: u64, history: impl Fn(u64, &mut Counts)) {
    let mut counts = Counts::default();
    let mut seeds = seeds_for("PANDO_MODEL_SECONDS", seconds);
    while let Some(seed) = seeds.next_until(counts.are_enough(), 200) {
        history(seed, &mut counts);
    }
    println!("refused and done, of {CALLS:?}: {counts:?}");
    assert!(counts.are_enough() || is_replay(), "vacuous: {counts:?}");
}

/// A store that is full to the last bytes; then a file goes at a time, until the call succeeds.
fn with_ever_more_room(seed: u64, counts: &mut Counts) {
    let mut rng = Rng(seed | 1);
    let device = Arc::new(SimDevice::new(SMALL_DEVICE, seed));
    let mut scene = Scene::new(device.clone(), &mut rng);
    // In half of the histories a merge comes first.
    let mut calls = CALLS.to_vec();
    let cut = rng.next(2 * calls.len());
    calls.rotate_left(if cut < CALLS.len() { cut } else { 0 });
    for (index, call) in calls.iter().map(|call| (CALLS.iter().position(|c| c == call).unwrap(), *call)) {
        scene.fill(&mut rng, usize::MAX / 2);
        let was = scene.seen();
        if !scene.can(call, &was) {
            continue;
        }
        for attempt in 0.. {
            let what = format!("PANDO_SEED={seed} {call:?} attempt {attempt}");
            let done = scene.call(call);
            let now = scene.seen();
            scene.check(&what);
            match done {
                Ok(()) => {
                    counts.done[index] += 1;
                    assert!(scene.is_done(call, &was, &now), "{what}\nwas {was:?}\nnow {now:?}");
                    break;
                }
                Err(e) => {
                    counts.refused[index] += 1;
                    assert_eq!(e.errno(), ENOSPC, "{what}: {e}");
                    assert_ne!(call, Call::Discard, "{what}: what makes room was refused");
                    assert_eq!(now, was, "{what}: a part was done");
                }
            }
            if rng.next(30) == 0 {
                // Without closing: what is there is what a crash of the process leaves, too.
                scene.w.fs.sync().unwrap();
                scene.w.fs = Fs::open(device.reopen(), options()).unwrap();
                return resumed(scene, (call, index), &was, &what, counts);
            }
            for _ in 0..=attempt {
                assert!(scene.make_room() || attempt < 20, "{what}: an empty store is full");
            }
        }
    }
    check_keys(&scene.w);
    scene.w.fs.close().unwrap();
}

/// After a crash in a full store all is as it was, and with room the call succeeds.
fn resumed(
    mut scene: Scene,
    (call, index): (Call, usize),
    was: &Seen,
    what: &dyn Debug,
    counts: &mut Counts,
) {
    assert_eq!(&scene.seen(), was, "{what:?}: after a crash");
    scene.check(what);
    while scene.make_room() {}
    scene.call(call).unwrap_or_else(|e| panic!("{what:?}: with room: {e}"));
    counts.done[index] += 1;
    let now = scene.seen();
    assert!(scene.is_done(call, was, &now), "{what:?}\nwas {was:?}\nnow {now:?}");
    check_keys(&scene.w);
}

#[test]
fn a_full_store_refuses_a_merge_a_fork_or_a_rollback_as_a_whole() {
    histories(6, with_ever_more_room);
}

/// A removal of names that have to be counted takes a number, and the first one after a mount is written down.
#[test]
fn a_tree_with_linked_files_goes_from_a_full_store_after_a_remount() {
    let device = Arc::new(SimDevice::new(SMALL_DEVICE, 5));
    let mut rng = Rng(5);
    let mut scene = Scene::mounted(device.clone(), options(), &mut rng);
    let w = &scene.w;
    w.mkdir("/linked");
    w.put("/linked/a", b"1");
    w.on("/linked/a", |f| {
        w.at("/linked/b", |d, n| w.fs.link(&w.me, f.ino, d, n)).map(|a| w.fs.forget(a.ino, 1))
    })
    .unwrap();
    scene.fill(&mut rng, usize::MAX / 2);
    let mkdir = |w: &World, i: usize| {
        let made = w.at(&format!("/fill/{i}{}", "x".repeat(200)), |d, n| w.fs.mkdir(&w.me, d, n, 0o755));
        made.map(|attr| w.fs.forget(attr.ino, 1))
    };
    let full = (0..100_000).find_map(|i| mkdir(&scene.w, i).err()).unwrap();
    assert_eq!(full.errno(), ENOSPC);
    scene.w.fs.sync().unwrap();
    drop(scene);
    let w = World::over(Fs::open(device, options()).unwrap());
    assert_eq!(mkdir(&w, 100_000).unwrap_err().errno(), ENOSPC);
    w.remove_tree("/linked").unwrap();
    check_keys(&w);
}

/// A removal writes the times of its directory, under as long a path as those that it deletes: however long that is, it
/// may use what is kept back for removals.
#[test]
fn what_has_a_long_path_can_be_removed_from_a_full_store() {
    let device = Arc::new(SimDevice::new(SMALL_DEVICE, 6));
    let mut rng = Rng(6);
    let mut scene = Scene::mounted(device, options(), &mut rng);
    let w = &scene.w;
    let long = |i: usize| format!("{i:05}{}", "x".repeat(200));
    let mut deep = String::new();
    for i in 0..12 {
        deep = format!("{deep}/{}", long(i));
        w.mkdir(&deep);
    }
    for i in 0..300 {
        w.mkdir(&format!("{deep}/{}", long(i)));
        w.put(&format!("{deep}/{}/file", long(i)), &[b'f'; 100]);
    }
    scene.fill(&mut rng, usize::MAX / 2);
    let w = &scene.w;
    let mkdir = |i: usize| {
        let made = w.at(&format!("/fill/{}", long(i)), |d, n| w.fs.mkdir(&w.me, d, n, 0o755));
        made.map(|attr| w.fs.forget(attr.ino, 1))
    };
    let full = (0..100_000).find_map(|i| mkdir(i).err()).unwrap();
    assert_eq!(full.errno(), ENOSPC);
    w.fs.sync().unwrap();
    // One by one, as `rm -r` does.
    for i in 0..300 {
        let dir = format!("{deep}/{}", long(i));
        w.unlink(&format!("{dir}/file")).unwrap();
        w.rmdir(&dir).unwrap();
    }
    check_keys(w);
}

/// What makes a file shorter, takes a part of it out, or an attribute, is no removal of keys as a rule: a part of a block
/// goes. It may use a part of what is kept back for removals all the same, as long as what it writes is small: without
/// that nearly all of these calls are refused on each store. With it they are so on some: what the last call before
/// the store was full has taken, beyond what was reckoned, is missing then.
#[test]
fn files_are_made_shorter_on_a_full_store() {
    let stores = 24;
    let done = (0..stores).filter(|seed| made_shorter(*seed)).count();
    assert!(done > 0, "on none of {stores} full stores");
}

fn made_shorter(seed: u64) -> bool {
    const FILES: usize = 200;
    let device = Arc::new(SimDevice::new(SMALL_DEVICE, 8));
    let mut rng = Rng(8 + seed);
    let mut scene = Scene::mounted(device, options(), &mut rng);
    let w = &scene.w;
    let data: Vec<u8> = (0..40_000).map(|_| rng.next(256) as u8).collect();
    let sizes = [100, 5000, 16_384, 16_385, 40_000];
    for i in 0..FILES {
        let path = format!("/s/cut{i}");
        w.put(&path, &data[..sizes[i % sizes.len()]]);
        w.on(&path, |a| w.fs.set_xattr(&w.me, a.ino, "user.a".as_ref(), b"small", 0)).unwrap();
        w.on(&path, |a| w.fs.set_xattr(&w.me, a.ino, "user.b".as_ref(), &data[..3000], 0)).unwrap();
    }
    scene.fill(&mut rng, usize::MAX / 2);
    let w = &scene.w;
    let mkdir = |i: usize| {
        let made = w.at(&format!("/fill/{i}{}", "x".repeat(200)), |d, n| w.fs.mkdir(&w.me, d, n, 0o755));
        made.map(|attr| w.fs.forget(attr.ino, 1))
    };
    let full = (0..100_000).find_map(|i| mkdir(i).err()).unwrap();
    assert_eq!(full.errno(), ENOSPC);
    let mut refused = [0; 4];
    for i in 0..FILES {
        let (path, size) = (format!("/s/cut{i}"), sizes[i % sizes.len()]);
        let cut = SetAttr { size: Some(size as u64 / 2 + 1), ..SetAttr::default() };
        let punch = 3; // FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE
        let call = |call: usize, ino: Ino| match call {
            0 => w.fs.setattr(&w.me, ino, &cut).map(drop),
            1 => w.fs.fallocate(&w.me, ino, 10, size as u64 / 3, punch),
            2 => w.fs.remove_xattr(&w.me, ino, "user.a".as_ref()),
            _ => w.fs.remove_xattr(&w.me, ino, "user.b".as_ref()),
        };
        for (i, refused) in refused.iter_mut().enumerate() {
            match w.on(&path, |a| call(i, a.ino)) {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e.errno(), ENOSPC, "{e}");
                    *refused += 1;
                }
            }
        }
    }
    println!("of {FILES} cuts, punches and removals of two attributes each, refused: {refused:?}");
    // However many were refused, what removes goes through.
    for i in 0..FILES {
        w.unlink(&format!("/s/cut{i}"))
            .unwrap_or_else(|e| panic!("store {seed}, {refused:?} refused: unlink {i}: {e}"));
    }
    w.remove_tree("/fill").unwrap_or_else(|e| panic!("store {seed}, {refused:?} refused: rm -r: {e}"));
    check_keys(w);
    refused.iter().all(|n| *n < FILES / 2)
}

/// Moves and clones beside a snapshot take space each time. They may be refused on a full store; what gives space back
/// may not, however often others tried those before.
#[test]
fn moves_and_clones_on_a_full_store_leave_room_for_deletes() {
    for case in 0..4 {
        let device = Arc::new(SimDevice::new(32 << 20, 6));
        let mut rng = Rng(6 + case);
        let mut scene = Scene::mounted(device, options(), &mut rng);
        let w = &scene.w;
        w.mkdir("/keep");
        w.mkdir("/other");
        for i in 0..150 {
            let data: Vec<u8> = (0..30_000).map(|_| rng.next(256) as u8).collect();
            w.put(&format!("/keep/{i}"), &data);
            w.put(&format!("/other/{i}"), &data[..20_000]);
        }
        let snapshot = NewSnapshot::default();
        let made = w.on("/keep", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &snapshot)).unwrap().0;
        scene.fill(&mut rng, usize::MAX / 2);
        let w = &scene.w;
        let link = |i: usize| {
            let target = "t".repeat(3000);
            let target = std::ffi::OsStr::new(&target);
            let linked = w.at(&format!("/fill/link{i}"), |d, n| w.fs.symlink(&w.me, d, n, target));
            linked.map(|attr| w.fs.forget(attr.ino, 1))
        };
        let full = (0..100_000).find_map(|i| link(i).err()).unwrap();
        assert_eq!(full.errno(), ENOSPC);
        let mut refused = 0;
        for i in 0..2000 {
            let (here, there) = (format!("/keep/{}", i % 150), format!("/keep/q{}", i % 150));
            let tried = match case {
                0 => w.rename(&here, &there, 0).and_then(|()| w.rename(&there, &here, 0)),
                1 => w.on("/keep", |a| {
                    w.fs.rollback(Authority::Caller(&w.me), a.ino, made.number, false).map(drop)
                }),
                2 => w.clone_tree(&format!("/keep/{}", (i + 1) % 150), &here, true).map(drop),
                _ => w
                    .rename(&here, &format!("/other/q{}", i % 150), 0)
                    .and_then(|()| w.rename(&format!("/other/q{}", i % 150), &here, 0)),
            };
            refused += usize::from(tried.is_err());
            if refused > 20 {
                break;
            }
        }
        let said = format!("case {case}, {refused} refused");
        for i in 0..150 {
            let file = format!("/other/{i}");
            match i % 2 {
                0 => w.unlink(&file).unwrap_or_else(|e| panic!("{said}: unlink {i}: {e}")),
                _ => _ = w.truncate(&file, 0).unwrap_or_else(|e| panic!("{said}: truncate {i}: {e}")),
            }
        }
        w.remove_tree("/fill").unwrap_or_else(|e| panic!("{said}: rm -r: {e}"));
        w.fs.sync().unwrap();
        w.put("/other/new", &[1; 100_000]);
        check_keys(w);
    }
}

/// What was deleted last lies in the frozen state that a merge plans with, so its space comes back only without that.
#[test]
fn what_was_deleted_just_before_makes_room_for_a_merge() {
    let (mut scene, mut rng) = Scene::mergeable(&options());
    let large: Vec<u8> = (0..4 << 20).map(|_| rng.next(256) as u8).collect();
    scene.w.put("/fill/large", &large);
    scene.fill(&mut rng, usize::MAX / 2);
    scene.w.fs.sync().unwrap();
    let was = scene.seen();
    assert_eq!(scene.call(Call::Merge).unwrap_err().errno(), ENOSPC);
    assert_eq!(scene.seen(), was);
    scene.w.unlink("/fill/large").unwrap();
    scene.call(Call::Merge).unwrap();
    let now = scene.seen();
    assert!(scene.is_done(Call::Merge, &was, &now));
    check_keys(&scene.w);
}

/// A merge that finds no room waits until what was deleted has come back, and not for what others go on writing.
#[test]
fn a_merge_on_a_full_disk_does_not_wait_for_writers_that_never_stop() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (mut scene, mut rng) = Scene::mergeable(&options().background(true));
    let large: Vec<u8> = (0..4 << 20).map(|_| rng.next(256) as u8).collect();
    scene.w.put("/fill/large", &large);
    scene.w.put("/fill/busy", &large[..1000]);
    scene.fill(&mut rng, usize::MAX / 2);
    scene.w.fs.sync().unwrap();
    let was = scene.seen();
    assert_eq!(scene.call(Call::Merge).unwrap_err().errno(), ENOSPC);
    let busy = scene.w.fs.resolve("/fill/busy".as_ref()).unwrap().ino;
    let (stop, tried) = (AtomicBool::new(false), AtomicU64::new(0));
    let (taken, beside) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                // It may find no room either, before that of the large file is back.
                let _full = scene.w.fs.write(FileHandle(0), busy, 0, &large[..1000], false);
                tried.fetch_add(1, Relaxed);
            }
        });
        while tried.load(Relaxed) < 100 {
            std::thread::yield_now();
        }
        scene.w.unlink("/fill/large").unwrap();
        let (before, since) = (tried.load(Relaxed), Instant::now());
        let done = scene.call(Call::Merge);
        let taken = since.elapsed();
        stop.store(true, Relaxed);
        done.unwrap();
        (taken, tried.load(Relaxed) - before)
    });
    println!("{taken:?}, {beside} writes beside it");
    assert!(taken < PATIENCE, "{taken:?}, {beside} writes beside it");
    let now = scene.seen();
    assert!(scene.is_done(Call::Merge, &was, &now));
    check_keys(&scene.w);
}

/// The disk under a sparse image is full after so many more blocks, at any moment before, during or after the call.
fn on_a_full_host(seed: u64, counts: &mut Counts) {
    let mut rng = Rng(seed | 1);
    let device = Arc::new(SimDevice::new(64 << 20, seed));
    let mut scene = Scene::new(device.clone(), &mut rng);
    match rng.next(2) {
        0 => scene.w.fs.sync().unwrap(),
        _ => scene.w.fs.db().checkpoint().unwrap(),
    }
    let index = rng.next(CALLS.len());
    let call = CALLS[index];
    let what = format!("PANDO_SEED={seed} {call:?}");
    let most_blocks = [100, 1000][rng.next(2)];
    let blocks = rng.next(most_blocks) as u64;
    device.set_space_limit(Some(device.space_used() + (blocks << 12)));
    let most = rng.next(40);
    scene.fill(&mut rng, most);
    let was = scene.seen();
    if !scene.can(call, &was) {
        return;
    }
    let done = scene.call(call);
    let mut safe = false;
    match &done {
        Ok(()) => {
            counts.done[index] += 1;
            let now = scene.seen();
            assert!(scene.is_done(call, &was, &now), "{what}\nwas {was:?}\nnow {now:?}");
        }
        Err(e) => {
            counts.refused[index] += 1;
            assert_eq!(e.errno(), ENOSPC, "{what}: {e}");
            assert_eq!(scene.seen(), was, "{what}: a part was done");
        }
    }
    scene.check(&what);
    if rng.next(3) > 0 {
        match scene.w.fs.sync() {
            Ok(()) => safe = true,
            Err(e) => assert_eq!(e.errno(), ENOSPC, "{what}: {e}"),
        }
    }
    let crashed = device.reopen();
    crashed.set_space_limit(None);
    scene.w.fs = Fs::open(crashed, options()).unwrap();
    scene.check(&what);
    let now = scene.seen();
    if now == was {
        assert!(!safe || done.is_err(), "{what}: what was synced is lost");
        scene.call(call).unwrap();
    } else {
        assert!(done.is_ok(), "{what}: what was refused was done\nwas {was:?}\nnow {now:?}");
    }
    let now = scene.seen();
    assert!(scene.is_done(call, &was, &now), "{what}: after a crash\nwas {was:?}\nnow {now:?}");
    scene.check(&what);
    check_keys(&scene.w);
}

#[test]
fn a_full_disk_under_the_image_leaves_all_of_a_merge_or_nothing() {
    histories(6, on_a_full_host);
}
