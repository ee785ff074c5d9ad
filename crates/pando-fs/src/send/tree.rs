//! The traits of trees that can be sent and received: calls of a file system, by path from the top.
//!
//! Paths have slashes between names, no slash at an end, and are empty for the top. No call follows a symbolic link,
//! wherever it stands in a path. Errors are those of the system, by kind.

use std::{ffi::OsString, io};

use crate::types::{FileKind, Time};

/// What is kept of a file besides its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMeta {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a regular file.
    pub size: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Number of a device.
    pub rdev: u32,
    /// Inode number.
    pub ino: u64,
    /// Names.
    pub nlink: u64,
}

/// A tree that is sent, which does not change meanwhile.
pub trait SourceTree {
    /// What an entry is.
    fn meta(&self, path: &[u8]) -> io::Result<FileMeta>;
    /// Names in a directory, with what they are, in any order.
    fn list(&self, path: &[u8]) -> io::Result<Vec<(OsString, FileMeta)>>;
    /// Where a symbolic link points to.
    fn readlink(&self, path: &[u8]) -> io::Result<Vec<u8>>;
    /// All extended attributes, access lists included, by name.
    fn xattrs(&self, path: &[u8], kind: FileKind) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Opens a regular file.
    fn open(&self, path: &[u8]) -> io::Result<Box<dyn SourceFile + '_>>;
}

/// A regular file that is sent.
pub trait SourceFile {
    /// Reads at an offset; fewer bytes than asked only at the end.
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// The first bytes, from and to, at or behind `offset` and before `end` that are no hole.
    fn data_from(&mut self, offset: u64, end: u64) -> io::Result<Option<(u64, u64)>>;
}

/// A tree that is received.
pub trait TargetTree {
    /// What an entry is.
    fn meta(&mut self, path: &[u8]) -> io::Result<FileMeta>;
    /// Makes a directory, for its owner only.
    fn mkdir(&mut self, path: &[u8]) -> io::Result<()>;
    /// Makes a regular file, or empties the one that is there if `again`; the calls without a path are about it.
    fn create(&mut self, path: &[u8], again: bool) -> io::Result<()>;
    /// Opens a regular file for writing; the calls without a path are about it.
    fn open(&mut self, path: &[u8]) -> io::Result<()>;
    /// Lets go of the file that is open, of which perhaps nothing more was said; an error of writing it that no call
    /// has told. Without effect if none is open.
    fn close(&mut self) -> io::Result<()>;
    /// Writes all of the bytes.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a range of zeros, without space where that can be; the size stays.
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Sets the size.
    fn set_len(&mut self, size: u64) -> io::Result<()>;
    /// Makes a symbolic link.
    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()>;
    /// Makes a device node, pipe or socket.
    fn special(&mut self, path: &[u8], kind: FileKind, rdev: u32) -> io::Result<()>;
    /// Gives a file another name.
    fn link(&mut self, to: &[u8], path: &[u8]) -> io::Result<()>;
    /// Renames, where nothing is.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&mut self, path: &[u8]) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&mut self, path: &[u8]) -> io::Result<()>;
    /// Sets the owner.
    fn chown(&mut self, path: &[u8], uid: u32, gid: u32) -> io::Result<()>;
    /// Removes all extended attributes.
    fn clear_xattrs(&mut self, path: &[u8]) -> io::Result<()>;
    /// Sets one.
    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()>;
    /// Sets owner, permission bits (not of a symbolic link) and times.
    fn set_meta(
        &mut self,
        path: &[u8],
        owner: (u32, u32),
        perm: u16,
        atime: Time,
        mtime: Time,
    ) -> io::Result<()>;
}
