//! Locks of images: advisory locks on the file or block device, and on the file below a loop device.
//!
//! Guarantees: of the stores that open an image for writing, through its file or through a loop device over it, one
//! has it, and of those that only read it any number. A loop device that begins elsewhere in its file is another
//! image. Uses nothing but the kernel.

use std::{
    ffi::OsString,
    fs::{File, Metadata, read},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::PathBuf,
};

use rustix::{
    fs::{FlockOperation, flock, major, minor},
    io::Errno,
};

use crate::error::{Error, Result};

/// The file below a loop device that covers the whole file, if `found` is one; by its name in the mount namespace of
/// the process that made the device.
pub(super) fn below(found: &Metadata) -> Option<PathBuf> {
    if !found.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (major(found.rdev()), minor(found.rdev()));
    let line = |name: &str| {
        let mut text = read(format!("/sys/dev/block/{major}:{minor}/loop/{name}")).ok()?;
        text.pop_if(|last| *last == b'\n');
        Some(text)
    };
    if line("offset")? != b"0" {
        return None;
    }
    line("backing_file").map(|path| OsString::from_vec(path).into())
}

/// Locks an image that is open as `file`, shared if it is only read: what has to stay open besides as long as it is
/// used. [`Error::Locked`] if another process has a lock that excludes this.
pub(super) fn lock(file: &File, read_only: bool) -> Result<Option<File>> {
    let failed = |e: Errno| match e {
        Errno::WOULDBLOCK => Error::Locked,
        e => Error::io("lock", 0, e.into()),
    };
    let how = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    flock(file, how).map_err(failed)?;
    let found = file.metadata().map_err(|e| Error::io("lock", 0, e))?;
    // If there is no file of this name, there is nothing to lock.
    let Some(below) = below(&found).and_then(|path| File::open(path).ok()) else { return Ok(None) };
    flock(&below, how).map_err(failed)?;
    Ok(Some(below))
}
