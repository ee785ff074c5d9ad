//! Open files without a name, on a store so full that they cannot be removed when they are closed: their space comes
//! back later, without a mount.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant},
};

use super::common::{O_RDWR, World, check_keys, noise, options};
use pando_db::{
    Snapshot,
    device::{BLOCK, Device, SimDevice},
};
use pando_fs::*;

const ENOSPC: i32 = 28;
const ENOENT: i32 = 2;

const DEVICE_BYTES: u64 = 12 << 20;
const LOG_BYTES: u64 = 1 << 20;
/// Orphans, and the bytes of each.
const ORPHANS: usize = 60;
const ORPHAN_BYTES: usize = 20_000;
/// Unlinks that are refused before a store counts as used up.
const REFUSED: usize = 20;
/// How long it may take until the space of orphans is back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Files in the area of orphans.
fn orphans(fs: &Fs) -> usize {
    let mut last = Vec::new();
    let keys = fs.db().prefix(b"\xff\xff\xff\xffO").map(|pair| pair.unwrap().0);
    keys.filter(|key| {
        last != key[5..13] && {
            last = key[5..13].to_vec();
            true
        }
    })
    .count()
}

/// Returns when no orphan is left.
fn wait_for_removal(fs: &Fs, what: &str) -> Duration {
    let since = Instant::now();
    while orphans(fs) > 0 {
        assert!(since.elapsed() < PATIENCE, "{what}: {} orphans are left", orphans(fs));
        std::thread::sleep(Duration::from_millis(50));
    }
    since.elapsed()
}

struct Scene {
    w: World,
    device: Arc<SimDevice>,
    open: Vec<(Ino, FileHandle)>,
    /// Bytes in use while the store was empty.
    empty: u64,
}

impl Scene {
    /// A store with open files, of which `nameless` never had a name.
    fn new(o: MountOptions, nameless: usize) -> Self {
        let device = Arc::new(SimDevice::new(DEVICE_BYTES, 7));
        let format = FormatOptions::default().node_size(16 << 10).log_size(LOG_BYTES);
        Fs::format(device.clone(), &format).unwrap();
        let w = World::over(Fs::open(device.clone(), o).unwrap());
        w.fs.db().settle().unwrap();
        let empty = w.fs.db().stats().unwrap().used;
        w.mkdir("/d");
        let mut scene = Self { w, device, open: Vec::new(), empty };
        let w = &scene.w;
        for i in 0..ORPHANS {
            let (attr, handle) = match i < nameless {
                true => w.on("/d", |d| w.fs.tmpfile(&w.me, d.ino, 0o644, O_RDWR)),
                false => w.at(&format!("/d/o{i}"), |d, n| w.fs.create(&w.me, d, n, 0o644, O_RDWR)),
            }
            .unwrap();
            let data = noise(i as u64, ORPHAN_BYTES);
            assert_eq!(w.fs.write(handle, attr.ino, 0, &data, false).unwrap() as usize, ORPHAN_BYTES);
            scene.open.push((attr.ino, handle));
        }
        scene
    }

    /// Removes the names of the open files, fills the store, and removes files beside a reader that holds what they
    /// take, until not even that is possible.
    fn use_up(&self, nameless: usize) -> Snapshot {
        let w = &self.w;
        let small = |i: usize| format!("/d/t{i}");
        let write = |path: &str, len| w.create(path).and_then(|_| w.write_at(path, 0, &noise(1, len)));
        let most = DEVICE_BYTES / 20;
        let count =
            (0..).find(|&i| write(&small(i), 300 + i * 7919 % 700).is_err() || w.fs.db().space().0 < most);
        let count = count.unwrap();
        (nameless..ORPHANS).for_each(|i| w.unlink(&format!("/d/o{i}")).unwrap());
        w.fs.db().settle().unwrap();
        let view = w.fs.db().snapshot();
        for len in [100_000, 10_000, 1000, 10] {
            (0..).find(|i| write(&format!("/d/f{len}.{i}"), len).is_err()).unwrap();
        }
        let (mut removed, mut refused) = (0, 0);
        for i in 0..count {
            match w.unlink(&small(i * 7919 % count)) {
                Ok(()) => removed += 1,
                Err(e) => refused += usize::from(e.errno() == ENOSPC),
            }
            if refused > REFUSED {
                break;
            }
        }
        println!("{count} files, {removed} removed, {refused} refused");
        view
    }

    /// A store that is used up beside a reader, and on which the orphans are closed: some of them stay. How far the
    /// threads in the background come meanwhile is a matter of time, so it is tried a few times.
    fn with_orphans_left() -> (Self, Snapshot) {
        const MAX_TRIES: usize = 5;
        for _ in 0..MAX_TRIES {
            let mut scene = Self::new(options().background(true), 0);
            let view = scene.use_up(0);
            scene.close_files();
            let left = orphans(&scene.w.fs);
            println!("{left} of {ORPHANS} orphans could not be removed");
            if left > 0 {
                return (scene, view);
            }
        }
        panic!("vacuous: all orphans were removed at once, {MAX_TRIES} times");
    }

    fn close_files(&mut self) {
        for (ino, handle) in std::mem::take(&mut self.open) {
            self.w.fs.release(ino, handle);
            self.w.fs.forget(ino, 1);
        }
    }
}

#[test]
fn space_of_orphans_that_were_closed_on_a_full_store_comes_back() {
    let (scene, view) = Scene::with_orphans_left();
    std::thread::sleep(Duration::from_secs(3));
    assert!(orphans(&scene.w.fs) > 0, "vacuous: there was space");
    drop(view);
    let took = wait_for_removal(&scene.w.fs, "after the reader");
    println!("removed after {took:?}");
    let w = &scene.w;
    check_keys(w);
    w.remove_tree("/d").unwrap();
    w.fs.db().settle().unwrap();
    let used = w.fs.db().stats().unwrap().used;
    println!("{} KiB used when empty, then {} KiB", scene.empty >> 10, used >> 10);
    assert!(used < scene.empty + (ORPHANS * ORPHAN_BYTES / 4) as u64, "{} bytes, then {used}", scene.empty);
    w.fs.close().unwrap();
}

#[test]
fn orphans_of_a_full_store_are_removed_after_a_crash() {
    for synced in [false, true] {
        let (mut scene, view) = if synced {
            Scene::with_orphans_left()
        } else {
            let scene = Scene::new(options().background(true), 0);
            let view = scene.use_up(0);
            (scene, view)
        };
        scene.w.fs.sync().unwrap();
        scene.close_files();
        let crashed = scene.device.reopen();
        drop(view);
        let w = World::over(Fs::open(crashed, options().background(true)).unwrap());
        wait_for_removal(&w.fs, "after a crash");
        check_keys(&w);
        w.remove_tree("/d").unwrap();
        w.fs.close().unwrap();
    }
}

/// A copy of an image with holes, on a host that has no space for more than the log: removing what a crash has left is
/// no reason not to open it.
#[test]
fn a_store_with_orphans_opens_on_a_full_host() {
    let scene = Scene::new(options(), ORPHANS);
    scene.w.fs.sync().unwrap();
    let crashed = scene.device.reopen();
    let mut block = vec![0; BLOCK as usize];
    for extra in (0..DEVICE_BYTES).step_by(16 << 10) {
        let copy = Arc::new(SimDevice::new(DEVICE_BYTES, 7));
        for at in (0..DEVICE_BYTES).step_by(block.len()) {
            crashed.read_at(at, &mut block).unwrap();
            if block.iter().any(|byte| *byte != 0) {
                copy.write_at(at, &block).unwrap();
            }
        }
        copy.flush().unwrap();
        copy.set_space_limit(Some(copy.space_used() + extra));
        let fs = match Fs::open(copy.clone(), options().background(true)) {
            Ok(fs) => fs,
            Err(e) => {
                assert_eq!(e.errno(), ENOSPC, "{e}");
                continue;
            }
        };
        let left = orphans(&fs);
        println!("opened with {} KiB of space, {left} orphans are left", extra >> 10);
        assert_eq!(left, ORPHANS, "vacuous: there was space");
        copy.set_space_limit(None);
        wait_for_removal(&fs, "with space on the host");
        return fs.close().unwrap();
    }
    panic!("the store was never opened");
}

/// Files that were made without a name get one while others of them are closed: each has its name and all its bytes, or
/// it is gone.
#[test]
fn files_are_linked_beside_orphans_that_wait_for_space() {
    let mut scene = Scene::new(options().background(true), ORPHANS);
    let view = scene.use_up(ORPHANS);
    let (w, files) = (&scene.w, std::mem::take(&mut scene.open));
    let dir = w.fs.resolve("/d".as_ref()).unwrap().ino;
    let link = |i: usize| {
        let name = format!("linked{i}");
        let linked = w.fs.link(&w.me, files[i].0, dir, OsStr::new(&name));
        linked.map(|attr| w.fs.forget(attr.ino, 1)).map_err(|e| e.errno())
    };
    let (first, others) = files.split_at(ORPHANS / 2);
    first.iter().for_each(|(ino, handle)| w.fs.release(*ino, *handle));
    let waiting = orphans(&w.fs) - others.len();
    assert!(waiting > 0, "vacuous: all orphans were removed at once");
    let linked: Vec<usize> = std::thread::scope(|s| {
        let links = s.spawn(|| {
            let (since, mut linked) = (Instant::now(), BTreeSet::new());
            // The last first, as others are closed from the other end.
            let mut left: Vec<usize> = (0..ORPHANS).collect();
            while !left.is_empty() {
                assert!(since.elapsed() < PATIENCE, "{} files neither linked nor gone", left.len());
                left.reverse();
                left.retain(|&i| match link(i) {
                    Ok(()) => {
                        linked.insert(i);
                        false
                    }
                    Err(ENOENT) => false,
                    Err(e) => e == ENOSPC || panic!("errno {e}"),
                });
                left.reverse();
            }
            linked.into_iter().collect()
        });
        std::thread::sleep(Duration::from_millis(500));
        drop(view);
        let since = Instant::now();
        while !w.exists(&format!("/d/linked{}", ORPHANS - 1)) && since.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        others.iter().for_each(|(ino, handle)| w.fs.release(*ino, *handle));
        links.join().unwrap()
    });
    println!("{} of {ORPHANS} files were linked, {waiting} had waited to be removed", linked.len());
    assert!(linked.contains(&(ORPHANS - 1)) && linked[0] >= ORPHANS / 2, "{linked:?}");
    wait_for_removal(&w.fs, "after links");
    for i in 0..ORPHANS {
        let path = format!("/d/linked{i}");
        match linked.contains(&i) {
            true => assert!(w.get(&path).unwrap() == noise(i as u64, ORPHAN_BYTES), "{path}"),
            false => assert!(!w.exists(&path), "{path}"),
        }
    }
    files.iter().for_each(|(ino, _)| w.fs.forget(*ino, 1));
    w.fs.forget(dir, 1);
    check_keys(w);
    w.fs.close().unwrap();
}

/// The number of an orphan that waits is not given to a file of another clone, and what waits is tried again when the
/// file system is closed.
#[test]
fn no_file_gets_the_number_of_an_orphan_that_waits() {
    let mut scene = Scene::new(options(), 0);
    let w = &scene.w;
    w.mkdir("/source");
    w.put("/source/x", &noise(1, ORPHAN_BYTES));
    w.clone_tree("/source", "/clone", false).unwrap();
    let x = w.fs.resolve("/clone/x".as_ref()).unwrap().ino;
    let lineage = |ino: Ino| ino >> 40;
    assert_ne!(lineage(x), 0);
    let handle = w.fs.open_file(&w.me, x, O_RDWR).unwrap();
    w.unlink("/clone/x").unwrap();
    scene.open.push((x, handle));
    let view = scene.use_up(0);
    scene.close_files();
    let w = &scene.w;
    let key = [&b"\xff\xff\xff\xffO"[..], &x.to_be_bytes()].concat();
    assert!(w.fs.db().prefix(&key).next().is_some(), "vacuous: the orphan was removed at once");
    drop(view);
    w.remove_tree("/clone").unwrap();
    let mut seen = BTreeSet::new();
    for i in 0..600 {
        let clone = format!("/clone{i}");
        w.clone_tree("/source", &clone, false).unwrap();
        seen.insert(lineage(w.attr(&format!("{clone}/x")).ino));
        w.remove_tree(&clone).unwrap();
    }
    assert!(seen.len() < 600, "vacuous: no number was given twice");
    assert!(!seen.contains(&lineage(x)));
    w.fs.close().unwrap();
    let fs = Fs::open(scene.device.reopen(), options().read_only(true)).unwrap();
    assert_eq!(orphans(&fs), 0);
}

/// Open files lose their names on a full store, beside a reader that holds all that is there, after moves have taken so
/// much that no other is let in. Afterwards what is left can be removed, and space comes back.
#[test]
fn open_files_are_removed_and_replaced_on_a_full_store() {
    /// Of a store with space for moves beside the edits of deletes.
    const FILLED_BYTES: u64 = 128 << 20;
    const SMALL_FILE_BYTES: usize = 100_000;
    const OPEN_FILES: usize = 30;
    let device = Arc::new(SimDevice::new(FILLED_BYTES, 7));
    let format = FormatOptions::default().node_size(64 << 10).log_size(LOG_BYTES);
    Fs::format(device.clone(), &format).unwrap();
    let w = World::over(Fs::open(device, options()).unwrap());
    w.mkdir("/d");
    let open: Vec<_> = (0..OPEN_FILES)
        .map(|i| {
            let made = w.at(&format!("/d/o{i}"), |d, n| w.fs.create(&w.me, d, n, 0o644, O_RDWR));
            let (attr, handle) = made.unwrap();
            w.fs.write(handle, attr.ino, 0, &noise(i as u64, ORPHAN_BYTES), false).unwrap();
            (attr.ino, handle)
        })
        .collect();
    let small = |i: usize| format!("/d/f{i}");
    let write = |path: &str| w.create(path).and_then(|_| w.write_at(path, 0, &noise(1, SMALL_FILE_BYTES)));
    let files = (0..).find(|&i| write(&small(i)).is_err()).unwrap();
    let view = w.fs.db().snapshot();
    let move_away = |i: usize| w.rename(&small(i), &format!("/d/moved{i}"), 0).map_err(|e| e.errno());
    let refused = (OPEN_FILES..files).find_map(|i| move_away(i).err().map(|e| (i, e)));
    println!("{files} files; {refused:?}: the first move that was refused, and its error");
    assert_eq!(refused.unwrap().1, ENOSPC, "vacuous: there is space for any move");
    for i in 0..OPEN_FILES {
        let name = format!("/d/o{i}");
        match i % 2 {
            0 => w.unlink(&name),
            _ => w.rename(&small(i), &name, 0),
        }
        .unwrap_or_else(|e| panic!("{i}: {e}"));
    }
    for (i, (ino, handle)) in open.iter().enumerate() {
        let data = w.fs.read(*handle, *ino, 0, ORPHAN_BYTES as u32).unwrap();
        assert!(data[..] == noise(i as u64, ORPHAN_BYTES), "{i}");
    }
    (0..OPEN_FILES).for_each(|i| match i % 2 {
        0 => w.unlink(&small(i)).unwrap(),
        _ => w.unlink(&format!("/d/o{i}")).unwrap(),
    });
    for (ino, handle) in open {
        w.fs.release(ino, handle);
        w.fs.forget(ino, 1);
    }
    assert_eq!(orphans(&w.fs), 0);
    drop(view);
    check_keys(&w);
    w.remove_tree("/d").unwrap();
    w.fs.close().unwrap();
}
