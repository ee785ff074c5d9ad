//! The bytes of the FUSE protocol, version 7.45, as far as they are used here.
//!
//! Layouts and numbers only, in native byte order: nothing is decided here.
//! Each struct has the fields of the one of the same purpose in the kernel's
//! `include/uapi/linux/fuse.h`, and no padding of its own.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use pando_fs::{Attr, FileKind, StatFs, Time};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::transport::{Found, common::VALID_SECS};

/// Version of the protocol spoken here.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 45;
/// The least one that is spoken here (Linux 4.20): answers have had these sizes since 7.23, and requests of 1 MiB
/// since this.
pub(super) const LEAST_MINOR: u32 = 28;

/// From this one on (Linux 6.16) pages are under writeback until the server has answered.
pub(super) const MINOR_THAT_AWAITS_WRITES: u32 = 44;
/// From this one on (Linux 6.1) the kernel takes a set-group-id bit away that the caller may not give to what it makes.
pub(super) const MINOR_THAT_TAKES_GROUP_BITS: u32 = 37;

/// Requests by number.
pub(super) mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    /// The kernel's reply to a notification; it gets no answer.
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const STATX: u32 = 52;
    pub const TMPFILE: u32 = 51;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// What is agreed on at the start. The kernel offers a set, the server answers with a subset.
pub(super) mod flag {
    pub const ASYNC_READ: u64 = 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has a second half ([`super::SetxattrMore`]).
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The upper half of the flags is there.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of `OpenOut::open_flags`.
pub(super) const FOPEN_DIRECT_IO: u32 = 1;
/// A GETATTR names a handle.
pub(super) const GETATTR_FH: u32 = 1;
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub(super) const FOPEN_CACHE_DIR: u32 = 1 << 3;
pub(super) const FOPEN_NOFLUSH: u32 = 1 << 5;

/// Bits of `SetattrIn::valid`.
pub(super) mod fattr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bit of `ReadIn::read_flags`.
pub(super) const READ_LOCKOWNER: u32 = 1 << 1;

/// Bits of `WriteIn::write_flags`.
pub(super) const WRITE_CACHE: u32 = 1;
pub(super) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Bit of `FsyncIn::fsync_flags`.
pub(super) const FSYNC_FDATASYNC: u32 = 1;

/// Codes of what the server says unasked.
pub(super) const NOTIFY_INVAL_INODE: i32 = 2;
pub(super) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(super) const NOTIFY_STORE: i32 = 4;
pub(super) const NOTIFY_RETRIEVE: i32 = 5;

/// Structs that come from the kernel.
macro_rules! received {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, FromBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(dead_code)] // some fields only keep their place
        pub(super) struct $name { $(pub(super) $field: $type),* }
    )* };
}

/// Structs that go to the kernel.
macro_rules! sent {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type),* }
    )* };
}

received! {
    struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// The first fields of INIT, which every version has, and the upper half of the flags, which
    /// is 0 where the kernel is too old to send it.
    struct InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32 }
    struct ForgetIn { nlookup: u64 }
    struct InterruptIn { unique: u64 }
    struct ForgetOne { nodeid: u64, nlookup: u64 }
    struct BatchForgetIn { count: u32, dummy: u32 }
    struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    struct MkdirIn { mode: u32, umask: u32 }
    struct RenameIn { newdir: u64 }
    struct Rename2In { newdir: u64, flags: u32, padding: u32 }
    struct LinkIn { oldnodeid: u64 }
    struct OpenIn { flags: u32, open_flags: u32 }
    struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// The input of READ, READDIR and READDIRPLUS.
    struct ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    struct WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    struct SetxattrIn { size: u32, flags: u32 }
    struct SetxattrMore { more_flags: u32, padding: u32 }
    /// The input of GETXATTR and LISTXATTR.
    struct GetxattrIn { size: u32, padding: u32 }
    struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    struct AccessIn { mask: u32, padding: u32 }
    struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    struct CopyIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}

sent! {
    struct OutHeader { len: u32, error: i32, unique: u64 }
    struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, unused: [u32; 7],
    }
    struct AttrBytes {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: AttrBytes,
    }
    struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrBytes }
    struct StatxTime { secs: i64, nanos: u32, reserved: u32 }
    struct StatxBytes {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime,
        ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
        dev_minor: u32, spare2: [u64; 14],
    }
    struct StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxBytes,
    }
    struct OpenOut { fh: u64, open_flags: u32, padding: u32 }
    struct WriteOut { size: u32, padding: u32 }
    struct CopyOut { bytes: u64 }
    struct GetxattrOut { size: u32, padding: u32 }
    struct LseekOut { offset: u64 }
    struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    struct StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }
    struct InvalInode { ino: u64, off: i64, len: i64 }
    struct InvalEntry { parent: u64, namelen: u32, flags: u32 }
    struct Store { ino: u64, offset: u64, size: u32, padding: u32 }
    struct Retrieve { unique: u64, ino: u64, offset: u64, size: u32, padding: u32 }
}

/// The type bits of a mode.
pub(super) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
    }
}

impl From<&Attr> for AttrBytes {
    fn from(a: &Attr) -> Self {
        Self {
            ino: a.ino,
            size: a.size,
            blocks: a.blocks,
            atime: a.atime.secs,
            mtime: a.mtime.secs,
            ctime: a.ctime.secs,
            atimensec: a.atime.nanos,
            mtimensec: a.mtime.nanos,
            ctimensec: a.ctime.nanos,
            mode: type_bits(a.kind) | u32::from(a.perm),
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            blksize: a.blksize,
            flags: 0,
        }
    }
}

impl EntryOut {
    /// An entry that is there. Inode numbers are never used twice, so the generation is always 0.
    pub(super) fn of(a: &Attr) -> Self {
        Self {
            nodeid: a.ino,
            entry_valid: VALID_SECS,
            attr_valid: VALID_SECS,
            attr: a.into(),
            ..Self::default()
        }
    }

    /// The answer with attributes; how long the kernel may cache them depends on the file.
    pub(super) fn found(found: &Found) -> Self {
        Self { attr_valid: valid_secs(found), ..Self::of(&found.attr) }
    }

    /// An absent name, which the kernel may remember as such.
    pub(super) fn absent() -> Self {
        Self { entry_valid: VALID_SECS, ..Self::default() }
    }

    /// An entry of a listing that the kernel is not to look at: `.` and `..`.
    pub(super) fn unseen(ino: u64, kind: FileKind) -> Self {
        let attr = AttrBytes { ino, mode: type_bits(kind), ..AttrBytes::default() };
        Self { attr, ..Self::default() }
    }
}

/// How long the kernel may cache these attributes, seconds.
fn valid_secs(found: &Found) -> u64 {
    if found.keep { VALID_SECS } else { 0 }
}

impl From<&Found> for AttrOut {
    fn from(found: &Found) -> Self {
        Self { attr_valid: valid_secs(found), attr: (&found.attr).into(), ..Self::default() }
    }
}

impl From<&Found> for StatxOut {
    fn from(found: &Found) -> Self {
        /// Bits of the fields in the answer: those of stat(2), and the time of birth.
        const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        let a = &found.attr;
        let time = |t: Time| StatxTime { secs: t.secs, nanos: t.nanos, reserved: 0 };
        let stat = StatxBytes {
            mask: MASK,
            blksize: a.blksize,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            mode: (type_bits(a.kind) | u32::from(a.perm)) as u16,
            ino: a.ino,
            size: a.size,
            blocks: a.blocks,
            atime: time(a.atime),
            btime: time(a.crtime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: rustix::fs::major(a.rdev.into()),
            rdev_minor: rustix::fs::minor(a.rdev.into()),
            ..StatxBytes::default()
        };
        Self { attr_valid: valid_secs(found), stat, ..Self::default() }
    }
}

impl From<&StatFs> for StatfsOut {
    fn from(s: &StatFs) -> Self {
        Self {
            blocks: s.blocks,
            bfree: s.bfree,
            bavail: s.bavail,
            files: s.files,
            ffree: s.ffree,
            bsize: s.bsize,
            namelen: s.namelen,
            frsize: s.frsize,
            ..Self::default()
        }
    }
}

/// A time as the kernel sends it; `None` if it is none.
pub(super) fn time(secs: u64, nanos: u32) -> Option<Time> {
    (nanos < 1_000_000_000).then_some(Time { secs: secs as i64, nanos })
}

/// Bytes of the struct that follows the header of a request; names and data come behind it.
/// Over io_uring the two parts come apart. With `long_setxattr` that of SETXATTR has its second half.
pub(super) fn op_size(opcode: u32, long_setxattr: bool) -> usize {
    match opcode {
        op::FORGET => size_of::<ForgetIn>(),
        op::INTERRUPT => size_of::<InterruptIn>(),
        op::BATCH_FORGET => size_of::<BatchForgetIn>(),
        op::GETATTR => size_of::<GetattrIn>(),
        op::STATX => size_of::<StatxIn>(),
        op::SETATTR => size_of::<SetattrIn>(),
        op::MKNOD => size_of::<MknodIn>(),
        op::MKDIR => size_of::<MkdirIn>(),
        op::RENAME => size_of::<RenameIn>(),
        op::RENAME2 => size_of::<Rename2In>(),
        op::LINK => size_of::<LinkIn>(),
        op::OPEN | op::OPENDIR => size_of::<OpenIn>(),
        op::CREATE | op::TMPFILE => size_of::<CreateIn>(),
        op::RELEASE | op::RELEASEDIR => size_of::<ReleaseIn>(),
        op::READ | op::READDIR | op::READDIRPLUS => size_of::<ReadIn>(),
        op::WRITE => size_of::<WriteIn>(),
        op::FSYNC | op::FSYNCDIR => size_of::<FsyncIn>(),
        op::SETXATTR if long_setxattr => size_of::<SetxattrIn>() + size_of::<SetxattrMore>(),
        op::SETXATTR => size_of::<SetxattrIn>(),
        op::GETXATTR | op::LISTXATTR => size_of::<GetxattrIn>(),
        op::FALLOCATE => size_of::<FallocateIn>(),
        op::ACCESS => size_of::<AccessIn>(),
        op::LSEEK => size_of::<LseekIn>(),
        op::IOCTL => size_of::<IoctlIn>(),
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => size_of::<CopyIn>(),
        _ => 0,
    }
}

/// The name up to the first zero byte, and what follows that.
pub(super) fn name(bytes: &[u8]) -> Option<(&OsStr, &[u8])> {
    let end = bytes.iter().position(|&b| b == 0)?;
    let (name, rest) = bytes.split_at_checked(end)?;
    Some((OsStr::from_bytes(name), rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn structs_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<AttrBytes>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<StatxIn>(), 24);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<IoctlIn>(), 32);
        assert_eq!(size_of::<CopyIn>(), 56);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<InvalEntry>(), 16);
        assert_eq!(size_of::<Store>(), 24);
        assert_eq!(size_of::<Retrieve>(), 32);
    }

    #[test]
    fn names_end_at_a_zero_byte_or_are_none() {
        let (first, rest) = name(b"a\0bc\0").unwrap();
        assert_eq!((first, rest), (OsStr::new("a"), &b"bc\0"[..]));
        assert_eq!(name(rest).unwrap(), (OsStr::new("bc"), &b""[..]));
        assert_eq!(name(b"open end"), None);
    }

    #[test]
    fn times_before_1970_are_negative_seconds_and_nanoseconds_after() {
        assert_eq!(time(u64::MAX, 5), Some(Time { secs: -1, nanos: 5 }));
        assert_eq!(time(0, 1_000_000_000), None);
    }
}
