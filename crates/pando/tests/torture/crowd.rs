//! Writers, readers and cloners on one mount at once; every file says itself what it must hold.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use super::{
    bed::{Bed, ok, str},
    random::{Deadline, Random},
    trees::inodes,
};

/// Divides a page: the kernel sends a write through its cache as one request for each page of which
/// it knows only a part, and a clone may come between two of them.
const RECORD: usize = 1024;

/// Record `i` of a file: anybody can tell whether it is whole.
fn record(seed: u64, i: u64) -> Vec<u8> {
    let mut bytes = seed.to_le_bytes().to_vec();
    bytes.extend(i.to_le_bytes());
    bytes.extend(Random::new(seed ^ (i << 32)).bytes(RECORD - 16));
    bytes
}

fn assert_whole(bytes: &[u8], what: &Path) {
    for (i, found) in bytes.chunks(RECORD).enumerate() {
        let seed = u64::from_le_bytes(found[..8].try_into().unwrap());
        let whole = record(seed, i as u64);
        let differs = || found.iter().zip(&whole).position(|(a, b)| a != b);
        let again = || std::fs::read(what).is_ok_and(|b| b == bytes);
        assert!(
            found == whole,
            "record {i} of {what:?} is not whole from its byte {:?}; read again, the file is the same: {}",
            differs(),
            again()
        );
    }
}

/// Makes, overwrites, renames and removes files of its own, and knows what each must hold.
fn writer(dir: &Path, mut r: Random, stop: &AtomicBool, done: &AtomicU64) {
    fs::create_dir(dir).unwrap();
    let mut lengths: Vec<Option<(u64, Vec<u64>)>> = vec![None; 20];
    let mut renamed = 0;
    while !stop.load(Ordering::Relaxed) {
        let i = r.below(20) as usize;
        let path = dir.join(format!("f{i}"));
        match &mut lengths[i] {
            None => {
                let records: Vec<u64> = (0..1 + r.below(60)).map(|_| r.next()).collect();
                let bytes: Vec<u8> =
                    records.iter().enumerate().flat_map(|(n, s)| record(*s, n as u64)).collect();
                fs::write(&path, bytes).unwrap();
                lengths[i] = Some((0, records));
            }
            Some((_, records)) if r.chance(2) => {
                let n = r.below(records.len() as u64);
                records[n as usize] = r.next();
                let file = OpenOptions::new().write(true).read(r.chance(2)).open(&path).unwrap();
                file.write_all_at(&record(records[n as usize], n), n * RECORD as u64).unwrap();
                if r.chance(20) {
                    file.sync_all().unwrap();
                }
            }
            Some((_, records)) if r.chance(2) => {
                let bytes = fs::read(&path).unwrap();
                let expected: Vec<u8> =
                    records.iter().enumerate().flat_map(|(n, s)| record(*s, n as u64)).collect();
                assert!(bytes == expected, "{path:?} does not hold what was written");
            }
            Some(_) if r.chance(3) => {
                fs::remove_file(&path).unwrap();
                lengths[i] = None;
            }
            Some(_) => {
                renamed += 1;
                let other = dir.join(format!("moved{renamed}"));
                fs::rename(&path, &other).unwrap();
                fs::rename(&other, &path).unwrap();
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Clones the first writer's directory while it writes: every file in the clone must be whole.
fn cloner(mnt: &Path, n: u64, mut r: Random, stop: &AtomicBool, done: &AtomicU64) {
    let clone = mnt.join(format!("clone{n}"));
    let target = str(&clone).to_owned();
    while !stop.load(Ordering::Relaxed) {
        let source = mnt.join(format!("w{}", r.below(2)));
        if !source.exists() {
            continue;
        }
        ok(&["clone", "--replace", str(&source), &target]);
        for entry in fs::read_dir(&clone).unwrap() {
            let path = entry.unwrap().path();
            let file = File::open(&path).unwrap_or_else(|e| panic!("{path:?} of a clone: {e}"));
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            // A file being written for the first time may end anywhere.
            let whole = bytes.len() / RECORD * RECORD;
            assert_whole(&bytes[..whole], &path);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Walks everything; only what is gone meanwhile may be missing.
fn walker(mnt: &Path, stop: &AtomicBool, done: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        for dir in fs::read_dir(mnt).unwrap().flatten() {
            for entry in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
                let _ = entry.metadata();
            }
        }
        rustix::fs::statvfs(mnt).unwrap();
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_crowd_on_one_mount_sees_nothing_torn() {
    let Some(bed) = Bed::new(&["--size", "1G", "--node-size", "64K"], &["--cache", "64M"]) else { return };
    let mut r = Random::seeded("crowd");
    let deadline = Deadline::after(8);
    let stop = AtomicBool::new(false);
    let done: [AtomicU64; 5] = Default::default();
    let mnt = &bed.mnt;
    thread::scope(|s| {
        for (n, done) in done[..2].iter().enumerate() {
            let (r, stop) = (Random::new(r.next()), &stop);
            s.spawn(move || writer(&mnt.join(format!("w{n}")), r, stop, done));
        }
        for (n, done) in done[2..4].iter().enumerate() {
            let (r, stop) = (Random::new(r.next()), &stop);
            s.spawn(move || cloner(mnt, n as u64, r, stop, done));
        }
        s.spawn(|| walker(mnt, &stop, &done[4]));
        // A panic in one of them must not keep the others going for ever.
        while !deadline.passed() {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let done: Vec<u64> = done.iter().map(|d| d.load(Ordering::Relaxed)).collect();
    eprintln!("crowd: {done:?} operations of writers, cloners, walker");
    assert!(done.iter().all(|&d| d > 0), "{done:?}");
    inodes(mnt);
    bed.umount();
    bed.check();
}
