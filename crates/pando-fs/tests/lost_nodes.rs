//! An image of which one node is lost, whichever: it can be mounted, or says what it misses and can be mounted for reading.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, atomic::AtomicBool};

use crate::common::{World, pattern};
use pando_db::device::{Device, MemDevice};
use pando_fs::{Authority, Caller, FormatOptions, Fs, MountOptions, NewSnapshot, ROOT};

const SIZE: u64 = 64 << 20;
const FILES: usize = 400;

fn name(i: usize) -> String {
    format!("f{i:04}")
}

fn copy(device: &MemDevice) -> Arc<MemDevice> {
    let copy = Arc::new(MemDevice::new(SIZE));
    let mut chunk = vec![0; 1 << 20];
    for at in (0..SIZE).step_by(1 << 20) {
        device.read_at(at, &mut chunk).unwrap();
        if chunk.iter().any(|byte| *byte != 0) {
            copy.write_at(at, &chunk).unwrap();
        }
    }
    copy
}

/// Files that can be looked up and read whole.
fn readable(fs: &Fs) -> usize {
    let is_whole = |i: usize| -> pando_fs::Result<bool> {
        let attr = fs.lookup(ROOT, name(i).as_ref())?;
        let handle = fs.open_file(&Caller::root(), attr.ino, 0)?;
        let data = fs.read(handle, attr.ino, 0, 1 << 20);
        fs.release(attr.ino, handle);
        Ok(data? == pattern(700, i as u8))
    };
    (0..FILES)
        .filter(|&i| match is_whole(i) {
            Ok(whole) => {
                assert!(whole, "other data than was written");
                true
            }
            Err(e) => {
                assert_eq!(e.errno(), 5, "{e}");
                false
            }
        })
        .count()
}

/// Snapshots of directories that are gone, beside a lost node: all of them, or an error; what each takes is told of those
/// that are whole. Whoever does not wait any more is answered within the scan.
#[test]
fn snapshots_of_directories_that_are_gone_are_listed_beside_damage() {
    let device = Arc::new(MemDevice::new(SIZE));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let options = || MountOptions::default().background(false);
    let w = World::over(Fs::open(device.clone(), options()).unwrap());
    w.mkdir("/beside");
    for dir in ["/one", "/two"] {
        w.mkdir(dir);
        for i in 0..FILES {
            w.put(&format!("{dir}/{}", name(i)), &pattern(700, i as u8));
            w.put(&format!("/beside/{}{i}", &dir[1..]), &pattern(700, i as u8));
        }
        let by = Authority::Caller(&w.me);
        w.on(dir, |a| w.fs.snapshot(by, a.ino, &NewSnapshot::default())).unwrap();
        w.remove_tree(dir).unwrap();
    }
    w.fs.db().settle().unwrap();
    w.fs.close().unwrap();
    let numbers = |fs: &Fs, stop: bool| {
        let found = fs.snapshots_of_gone_unless(&AtomicBool::new(stop));
        found.map(|all| all.iter().map(|info| info.number).collect::<Vec<_>>()).map_err(|e| e.errno())
    };
    let fs = Fs::open(device.clone(), options().read_only(true)).unwrap();
    let reads = |stop| {
        let before = device.stats().reads;
        (numbers(&fs, stop), device.stats().reads - before)
    };
    let ((interrupted, few), (all, many)) = (reads(true), reads(false));
    println!("interrupted after {few} reads, all are {many}");
    assert_eq!((interrupted, all), (Err(4), Ok(vec![1, 2])));
    assert!(few * 3 < many, "interrupted after {few} reads, all are {many}");
    let nodes = fs.db().inspect(&Default::default()).unwrap().nodes;
    drop(fs);
    let (mut failed, mut one_of_two) = (0, 0);
    for node in nodes {
        let broken = copy(&device);
        for extent in &node.extents {
            broken.write_at(extent.offset, &vec![0x5a; extent.len as usize]).unwrap();
        }
        let fs = Fs::open(broken, options().read_only(true)).unwrap();
        match numbers(&fs, false) {
            Ok(all) => assert_eq!(all, [1, 2]),
            Err(errno) => {
                assert_eq!(errno, 5);
                failed += 1;
            }
        }
        let told = [1, 2].map(|number| fs.usage_of_snapshot(number).map_err(|e| e.errno()));
        assert!(
            told.iter().all(|told| told.as_ref().is_ok_and(|u| u.stored_bytes > 0) || *told == Err(5)),
            "{told:?}"
        );
        one_of_two += usize::from(told.iter().filter(|told| told.is_ok()).count() == 1);
    }
    println!("{failed} lists failed, {one_of_two} times the size of one snapshot was not known");
    assert!(failed > 0 && one_of_two > 0, "nothing was tested");
}

/// A clone needs what stands at its two ends, and no other node, whichever is lost.
#[test]
fn a_directory_whose_place_can_be_read_can_be_cloned_beside_damage() {
    let device = Arc::new(MemDevice::new(SIZE));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let options = || MountOptions::default().background(false);
    let w = World::over(Fs::open(device.clone(), options()).unwrap());
    // A root of names of its own, far from where the store keeps what it needs to be opened.
    w.mkdir("/empty");
    w.clone_tree("/empty", "/a", false).unwrap();
    w.mkdir("/a/source");
    for i in 0..FILES {
        // Between where the names would be and the directory.
        w.create(&format!("/a/0{}", name(i))).unwrap();
        w.put(&format!("/a/source/{}", name(i)), &pattern(700, i as u8));
        w.put(&format!("/{}", name(i)), &pattern(700, i as u8));
    }
    w.fs.db().settle().unwrap();
    let nodes = w.fs.db().inspect(&Default::default()).unwrap().nodes;
    w.fs.close().unwrap();
    let (mut made, mut not_found) = (0, 0);
    for node in nodes {
        let broken = copy(&device);
        for extent in &node.extents {
            broken.write_at(extent.offset, &vec![0x5a; extent.len as usize]).unwrap();
        }
        let Ok(fs) = Fs::open(broken, options()) else { continue };
        let w = World::over(fs);
        let (from, to) = ("/a/source", "/a/copy");
        let found = w.on(from, |_| Ok(())).and_then(|()| match w.on(to, |_| Ok(())) {
            Err(e) if e.errno() != 2 => Err(e),
            _ => Ok(()),
        });
        if found.is_err() {
            not_found += 1;
            continue;
        }
        w.clone_tree(from, to, false).unwrap_or_else(|e| panic!("without node {}: {e}", node.id));
        made += 1;
    }
    println!("{made} clones beside a lost node, {not_found} times one end could not be read");
    assert!(made > 20 && not_found > 0, "nothing was tested");
}

#[test]
fn a_mount_without_one_of_its_nodes_works_or_names_what_it_misses() {
    let device = Arc::new(MemDevice::new(SIZE));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let options = || MountOptions::default().background(false);
    let fs = Fs::open(device.clone(), options()).unwrap();
    for i in 0..FILES {
        let (attr, handle) = fs.create(&Caller::root(), ROOT, name(i).as_ref(), 0o644, 1).unwrap();
        fs.write(handle, attr.ino, 0, &pattern(700, i as u8), false).unwrap();
        fs.release(attr.ino, handle);
    }
    fs.db().settle().unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = Fs::open(device.clone(), options().read_only(true)).unwrap();
    assert_eq!(readable(&fs), FILES);
    let nodes = fs.db().inspect(&Default::default()).unwrap().nodes;
    drop(fs);
    let (mut refused, mut mounted) = (0, 0);
    for node in nodes {
        let broken = copy(&device);
        for extent in &node.extents {
            broken.write_at(extent.offset, &vec![0x5a; extent.len as usize]).unwrap();
        }
        match Fs::open(broken.clone(), options()) {
            Ok(fs) => {
                mounted += 1;
                let some = readable(&fs);
                assert!(node.height > 0 || some > FILES / 4, "{some} files without one leaf");
            }
            Err(e) => {
                refused += 1;
                let said = e.to_string();
                assert!(said.contains("of the file system cannot be read"), "{said}");
                assert!(said.contains("pando export") && said.contains("-o ro,norecovery"), "{said}");
                assert_eq!(e.errno(), 5);
                let fs = Fs::open(broken, options().read_only(true)).unwrap();
                let some = readable(&fs);
                println!("height {}: {said}; {some} of {FILES} files can be read", node.height);
                assert!(node.height > 0 || some > FILES / 4, "{some} files without one leaf");
            }
        }
    }
    println!("{mounted} mounts, {refused} refused");
    assert!(mounted > 5 && refused > 0, "nothing was tested");
}
