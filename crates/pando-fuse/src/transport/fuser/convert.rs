//! Between `fuser`'s types and those of [`transport`](super::super).
//!
//! Pure translation: nothing is decided here but what the kernel may remember
//! of an answer, and for how long.

use std::{
    ffi::OsStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, Request, TimeOrNow,
};
use pando_fs::{Attr, FileKind, SetTime, Time};

use crate::transport::{Context, DirSink, Errno, Opened, Outcome, common::VALID_SECS};

/// How long the kernel may rely on a name or on attributes.
pub(super) const TTL: Duration = Duration::from_secs(VALID_SECS);
/// Inode numbers are never used twice, so the generation never changes.
pub(super) const GENERATION: Generation = Generation(0);

pub(super) fn context(request: &Request) -> Context {
    Context { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

pub(super) fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.0)
}

fn kind(k: FileKind) -> FileType {
    match k {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// A time that came from the kernel through the library, which (0.18.0, hence the exact version
/// in Cargo.toml) turns `-s` seconds and `n` nanoseconds into a moment `s` seconds and `n`
/// nanoseconds before 1970 instead of `n` nanoseconds after second `-s`.
pub(super) fn received(t: SystemTime) -> Time {
    match t.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => t.into(),
        Err(e) => {
            let (s, n) = (e.duration().as_secs(), e.duration().subsec_nanos());
            Time { secs: 0i64.checked_sub_unsigned(s).unwrap_or(i64::MIN), nanos: n }
        }
    }
}

pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(received(t)),
    }
}

pub(super) fn attr(a: &Attr) -> fuser::FileAttr {
    fuser::FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: SystemTime::from(a.atime),
        mtime: SystemTime::from(a.mtime),
        ctime: SystemTime::from(a.ctime),
        crtime: SystemTime::from(a.crtime),
        kind: kind(a.kind),
        perm: a.perm,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.blksize,
        flags: 0,
    }
}

/// What an absent name looks like to the kernel: node 0, and it may remember that.
pub(super) const ABSENT: fuser::FileAttr = fuser::FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

pub(super) fn open_flags(o: &Opened) -> FopenFlags {
    // Nothing waits in the handler for the last close, so FLUSH is never worth a request.
    let mut flags = FopenFlags::FOPEN_NOFLUSH;
    flags.set(FopenFlags::FOPEN_DIRECT_IO, o.direct);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, o.keep_cache);
    flags
}

pub(super) fn send_entry(reply: ReplyEntry, outcome: Outcome<Attr>) {
    match outcome {
        Ok(a) => reply.entry(&TTL, &attr(&a), GENERATION),
        Err(e) => reply.error(errno(e)),
    }
}

pub(super) fn send_attr(reply: ReplyAttr, outcome: Outcome<Attr>) {
    match outcome {
        Ok(a) => reply.attr(&TTL, &attr(&a)),
        Err(e) => reply.error(errno(e)),
    }
}

pub(super) fn send_empty(reply: ReplyEmpty, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

/// Entries with attributes.
pub(super) struct PlusSink {
    pub(super) reply: ReplyDirectoryPlus,
}

impl DirSink for PlusSink {
    fn add(&mut self, ino: u64, k: FileKind, name: &OsStr, cookie: u64, a: Option<&Attr>) -> bool {
        // `.` and `..` come without attributes: node 0 tells the kernel not to look at them.
        let attributes = match a {
            Some(a) => attr(a),
            None => fuser::FileAttr { ino: INodeNo(ino), kind: kind(k), ..ABSENT },
        };
        let node = INodeNo(if a.is_some() { ino } else { 0 });
        !self.reply.add(node, cookie, name, &TTL, &attributes, GENERATION)
    }

    fn wants_attributes(&self) -> bool {
        true
    }

    fn capacity(&self) -> usize {
        DIR_BUFFER_BYTES
    }
}

/// Entries without attributes.
pub(super) struct PlainSink {
    pub(super) reply: ReplyDirectory,
}

impl DirSink for PlainSink {
    fn add(&mut self, ino: u64, k: FileKind, name: &OsStr, cookie: u64, _: Option<&Attr>) -> bool {
        !self.reply.add(INodeNo(ino), cookie, kind(k), name)
    }

    fn wants_attributes(&self) -> bool {
        false
    }

    fn capacity(&self) -> usize {
        DIR_BUFFER_BYTES
    }
}

/// The least that the kernel offers for a readdir, bytes. The library hides how much it is.
const DIR_BUFFER_BYTES: usize = 4096;
