//! A sparse image whose host's disk fills up: the same promises as for a full image.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    bed::{Bed, has, have_fuse, sh},
    full::{Pattern, empty, fill, verify},
    random::Random,
};

/// A small ext4 in a loop-mounted file.
struct Disk {
    tmp: tempfile::TempDir,
}

impl Disk {
    /// `None` where that cannot be made; says why.
    fn new() -> Option<Disk> {
        let root = rustix::process::geteuid().is_root();
        if !root || !Path::new("/dev/loop-control").exists() || !has("mkfs.ext4") {
            eprintln!("SKIPPED: a loop-mounted ext4 needs root, loop devices and mkfs.ext4");
            return None;
        }
        let disk = Disk { tmp: tempfile::Builder::new().prefix("pando-torture-").tempdir().unwrap() };
        let dir = disk.tmp.path();
        sh(dir, "mkdir disk bed; truncate -s 96M ext4; mkfs.ext4 -q -m 0 ext4");
        let mounted = Command::new("mount").args(["-o", "loop", "ext4", "disk"]).current_dir(dir).status();
        if !mounted.is_ok_and(|s| s.success()) {
            eprintln!("SKIPPED: no loop mount here");
            return None;
        }
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.tmp.path().join("disk")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

fn torture(name: &str, pattern: Pattern) {
    if !have_fuse() {
        return;
    }
    let Some(disk) = Disk::new() else { return };
    let mkfs = ["--size", "1G", "--node-size", "64K", "--log-size", "4M"];
    let image = disk.path().join("image");
    let bed = Bed::with(None, disk.tmp.path().join("bed"), image, &mkfs, &["--cache", "64M"]);
    let mut r = Random::seeded(name);
    let written = fill(&bed, pattern, &mut r);
    let bytes: usize = written.values().map(Vec::len).sum();
    eprintln!("{name}: {} files, {} KiB", written.len(), bytes >> 10);
    verify(&bed, &written);
    bed.remount();
    verify(&bed, &written);
    // Nor does anything need more of the disk than the image has got.
    sh(&disk.path(), "dd if=/dev/zero of=junk bs=64k status=none || true");
    bed.remount();
    verify(&bed, &written);
    // What the disk cannot hold is not promised; what the image held comes back.
    empty(&bed, (bytes as u64).min(8 << 20));
    bed.remount();
    assert!(fs::read(bed.mnt.join("again")).is_ok());
    bed.umount();
    bed.check();
}

#[test]
fn one_file_fills_the_disk_under_an_image() {
    torture("host-one", Pattern::OneFile);
}

#[test]
fn clones_and_edits_fill_the_disk_under_an_image() {
    torture("host-clones", Pattern::Clones);
}
