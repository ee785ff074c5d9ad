//! Directories and removal: list a directory in pieces, remove a tree in one step, see the space.
//!
//! `cargo run -p pando-fs --example listing`

use std::{ffi::OsStr, sync::Arc};

use pando_db::device::MemDevice;
use pando_fs::{Caller, FormatOptions, Fs, MountOptions, ROOT};

fn main() -> pando_fs::Result<()> {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default())?;
    let fs = Fs::open(device, MountOptions::default())?;
    let me = Caller::root();
    let grove = fs.mkdir(&me, ROOT, OsStr::new("grove"), 0o755)?;
    for name in ["yew", "oak", "aspen"] {
        fs.mkdir(&me, grove.ino, OsStr::new(name), 0o755)?;
    }

    // Names come in byte order. Each call goes on behind the cookie of the entry before.
    let (dir, mut cookie) = (fs.opendir(grove.ino)?, 0);
    let mut names = Vec::new();
    loop {
        let entries = fs.readdir(dir, grove.ino, cookie, 2)?;
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        names.extend(entries.into_iter().map(|entry| entry.name));
    }
    fs.releasedir(dir);
    assert_eq!(names, [".", "..", "aspen", "oak", "yew"]);

    // As `rm -r`, but as one change, whatever lies below.
    let report = fs.remove_tree(&me, ROOT, OsStr::new("grove"))?;
    assert!(fs.lookup(ROOT, OsStr::new("grove")).is_err());
    let space = fs.statfs()?;
    let free = space.bfree * u64::from(space.frsize);
    println!("removed in {} microseconds; {} MiB are free", report.micros, free >> 20);
    fs.close()
}
