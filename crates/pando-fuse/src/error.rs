//! Why mounting or unmounting failed, with what can be done about it.

use std::{io, path::PathBuf};

use crate::transport::own::offer;

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error(
        "/dev/fuse cannot be used: {0}: load the kernel module (modprobe fuse), \
         give this container the device, or open it to users (chmod 666 /dev/fuse)"
    )]
    NoDevice(io::Error),
    /// Mounting needs a helper that is not installed.
    #[error(
        "fusermount3 is not installed and only root mounts without it: \
         install the package fuse3 (Debian, Ubuntu: apt install fuse3)"
    )]
    NoHelper,
    /// `allow_other` is not allowed to ordinary users here.
    #[error("allow_other: add the line user_allow_other to /etc/fuse.conf, or mount without it")]
    NoAllowOther,
    /// The mount point is in use.
    #[error("{0}: in use: close the files and leave the directories below it (lsof {0} names the programs)")]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{0}: no file system is mounted there")]
    NotMounted(PathBuf),
    /// FUSE over io_uring was asked for and cannot be had.
    #[error("io_uring=on: {0}")]
    NoRing(offer::Missing),
    /// A mount option that is not known.
    #[error("{0}: unknown mount option, or a value that it cannot have")]
    Option(String),
    /// Anything else.
    #[error("{path}: {source}")]
    Io {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
