//! The daemon's memory stays within the cache budget, a constant and some bytes an inode.

use std::fs;

use super::{bed::Bed, random::Random, trees::same};

/// Budget of the cache in bytes.
const CACHE: u64 = 64 << 20;
/// What may come on top of it: memtables (up to five of 8 MiB, and their encoding), the log's
/// buffer, a checkpoint's node in the making, threads, and what malloc cannot give back.
const CONSTANT: u64 = 96 << 20;
/// Bytes for each inode that the kernel holds.
const INODE: u64 = 1024;

#[test]
fn a_tree_four_times_the_budget_in_and_out_stays_within_it() {
    let Some(bed) = Bed::new(&["--size", "2G"], &["--cache", "64M"]) else { return };
    let mut r = Random::seeded("memory");
    let (mut bytes, mut files) = (0, 0);
    while bytes < 4 * CACHE {
        let dir = bed.root.join(format!("source/d{}", files / 100));
        fs::create_dir_all(&dir).unwrap();
        let len = *r.pick(&[500, 3000, 3000, 20_000, 200_000, 1_000_000]);
        fs::write(dir.join(format!("f{files}")), r.bytes(len)).unwrap();
        bytes += len as u64;
        files += 1;
    }
    bed.sh("cp -a source mnt/tree");
    same(&bed.root.join("source"), &bed.mnt.join("tree"), true);
    bed.sh("cp -a mnt/tree mnt/copy");
    let inodes = bed.stats()["inodes"]["in_memory"].as_u64().unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", bed.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    let limit = CACHE + CONSTANT + INODE * inodes;
    eprintln!("memory: {} MiB for {files} files of {} MiB", peak >> 20, bytes >> 20);
    assert!(peak <= limit, "{} MiB, not {} (with {inodes} inodes)", peak >> 20, limit >> 20);
    bed.umount();
    bed.check();
}
