//! A store on a block device: it takes all of it, and what is deleted is discarded, so that a device that is backed by a
//! sparse file gives the space back to its host.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    bed::{Bed, has, have_fuse, ok, sh, str, text},
    random::within,
};

const SIZE: u64 = 1 << 30;
const FILE: u64 = 300 << 20;

/// A loop device over a sparse file.
struct Loop {
    device: PathBuf,
    file: PathBuf,
}

impl Loop {
    /// `None` where that cannot be made; says so.
    fn new(dir: &Path) -> Option<Loop> {
        let file = dir.join("backing");
        std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
        let root = rustix::process::geteuid().is_root();
        if root && Path::new("/dev/loop-control").exists() && has("losetup") {
            let made = Command::new("losetup").args(["-f", "--show"]).arg(&file).output().unwrap();
            if made.status.success() {
                return Some(Loop { device: text(&made.stdout).trim().into(), file });
            }
        }
        eprintln!("SKIPPED: a loop device needs root");
        None
    }

    /// Bytes that the host has given to the backing file.
    fn taken(&self) -> u64 {
        std::fs::metadata(&self.file).unwrap().blocks() * 512
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

#[test]
fn a_block_device_gets_its_space_back() {
    if !have_fuse() {
        return;
    }
    let tmp = tempfile::Builder::new().prefix("pando-torture-").tempdir().unwrap();
    let Some(device) = Loop::new(tmp.path()) else { return };
    let root = tmp.path().join("bed");
    std::fs::create_dir(&root).unwrap();
    let bed = Bed::with(None, root, device.device.clone(), &[], &[]);
    sh(&bed.mnt, &format!("head -c {FILE} /dev/urandom > big; mkdir d; echo kept > d/small"));
    ok(&["sync", str(&bed.mnt)]);
    assert!(device.taken() >= FILE, "{} bytes of the device are in use", device.taken());
    sh(&bed.mnt, "rm big");
    ok(&["sync", str(&bed.mnt)]);
    let back = within(60, || device.taken() < FILE / 2);
    assert!(back, "{} bytes of the device are in use still", device.taken());
    bed.remount();
    assert_eq!(std::fs::read_to_string(bed.mnt.join("d/small")).unwrap(), "kept\n");
    bed.umount();
    ok(&["check", str(&bed.image)]);
}
