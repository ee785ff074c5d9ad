//! A watcher process that cuts the connection of a mount when the daemon is killed.
//!
//! A thread that makes the kernel drop pages or names waits in a write(2) on the connection: for dirty pages to be
//! written, for a page that is being read, for a directory that is locked by a lookup. All these wait for answers of
//! the same daemon. If it is killed then, no answer comes, so the thread never ends, the descriptor of the connection
//! stays open, and the kernel does not end the connection either. Nothing inside the process can help, because all
//! its threads have to end. So another process watches: when the daemon ends, for whatever reason, the watcher makes
//! the kernel cut the connection, by a file of fusectl (`connections/N/abort`).
//!
//! Guarantee: only the connection of this mount is cut, because the file is opened while the mount exists, and never
//! refers to another one.

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
