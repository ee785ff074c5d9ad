//! The connection of a mount seen from outside, so that somebody can cut it when the daemon is killed.
//!
//! A thread that has the kernel drop pages or names waits in a write(2) on the connection: for dirty pages to be
//! written, for a page that is being read, for a directory in which somebody is looking up a name. All these wait for
//! answers of the same daemon. Kill it then and none comes, the thread never ends, and as long as it does not end the
//! descriptor of the connection stays open, so the kernel never gives up either. Nothing inside of the process can
//! help, as all its threads are told to end. So another process watches: when the daemon ends, however, it tells the
//! kernel to cut the connection, by a file of fusectl (`connections/N/abort`).
//!
//! Guarantees: what is cut is the connection of this mount or none, as the file is opened while the mount is there and
//! stands for no other one later.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
};

/// Where fusectl is mounted as a rule.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The file by which the connection of the mount with this device number (`major:minor`) is cut.
///
/// Where fusectl is mounted nowhere, as in many containers, root mounts it for this one call, on no directory.
pub(crate) fn abort_file(device: &str) -> io::Result<OwnedFd> {
    let number = device.rsplit(':').next().unwrap_or_default();
    let file = PathBuf::from(number).join("abort");
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(Path::new(CONNECTIONS).join(&file), flags, Mode::empty()) {
        Ok(file) => Ok(file),
        Err(first) => {
            let unmounted = || {
                let fs = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
                rustix::mount::fsconfig_create(fs.as_fd())?;
                let flags = FsMountFlags::FSMOUNT_CLOEXEC;
                rustix::mount::fsmount(fs.as_fd(), flags, MountAttrFlags::empty())
            };
            let root = unmounted().map_err(|_| io::Error::from(first))?;
            Ok(rustix::fs::openat(&root, &file, flags, Mode::empty())?)
        }
    }
}

/// Cuts the connection that [`Mount::abort_file`](crate::Mount::abort_file) gave the file of: every call on the mount
/// fails from then on. Nothing happens if it has ended.
pub fn cut(mut abort: &File) -> io::Result<()> {
    abort.write_all(b"1")
}
