//! The border between the kernel's requests and the code that answers them.
//!
//! [`Handler`] is what a file system has to answer, in the types of
//! `pando-fs`; [`Notify`] is what it may tell the kernel unasked. A transport
//! turns one into the other, so it can be replaced without touching a handler:
//! [`own`] speaks the protocol over `/dev/fuse` and over io_uring.
//!
//! Guarantees to a handler: every request is answered exactly once, with
//! `EIO` if the handler panics; [`Answer::Later`] runs on another thread than
//! the one that reads requests (over io_uring, where each request has a thread,
//! on that), and [`Answer::Here`] while another one reads, so they may wait for
//! a device or send notifications without stopping other requests.

mod common;
mod follow;
mod halting;
pub mod own;
pub(crate) mod poll;
pub(crate) mod workers;

pub use self::halting::HaltPoll;

use std::{ffi::OsStr, io, path::Path, sync::Arc};

use bytes::Bytes;
use pando_fs::{Attr, FileKind, Seek, SetAttr, StatFs};

use crate::failures;

/// An error number as the kernel understands it (positive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<pando_fs::Error> for Errno {
    fn from(error: pando_fs::Error) -> Self {
        let errno = error.errno();
        if errno == libc::EIO {
            failures::log(&error);
        }
        Errno(errno)
    }
}

/// What a handler returns for most requests.
pub type Outcome<T> = std::result::Result<T, Errno>;

/// The process that made a request, as the kernel states it.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// File-system user id of the caller.
    pub uid: u32,
    /// File-system group id of the caller.
    pub gid: u32,
    /// Process (thread) id of the caller, 0 if it lives in a foreign pid namespace.
    pub pid: u32,
    /// Number of the request, of its own until it is answered.
    pub unique: u64,
    /// Whether a set-group-id bit stays on what is made, or gets an access list, where the kernel has decided that.
    pub keeps_group_bit: Option<bool>,
    /// The kernel says with each write whether set-id bits go ([`Write::kill_suidgid`]).
    pub says_when_bits_go: bool,
}

/// Work behind a request that has been answered; may wait and notify the kernel.
pub type Behind = Box<dyn FnOnce() + Send>;

/// An answer given at once or worked out on another thread.
pub enum Answer<T> {
    /// The answer.
    Now(Outcome<T>),
    /// Work that may wait for a device, for other requests, or notify the kernel.
    Later(Box<dyn FnOnce() -> Outcome<T> + Send>),
    /// Work like that of `Later`, but which mostly waits for a device only: the thread does it itself, without waking
    /// another one, if another thread can read requests meanwhile.
    Here(Box<dyn FnOnce() -> Outcome<T> + Send>),
}

impl<T> Answer<T> {
    /// An answer that `work` gives on another thread.
    pub fn later(work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Self {
        Answer::Later(Box::new(work))
    }

    /// An answer that `work` gives, which waits for a device as a rule.
    pub fn here(work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Self {
        Answer::Here(Box::new(work))
    }
}

impl<T> From<Outcome<T>> for Answer<T> {
    fn from(outcome: Outcome<T>) -> Self {
        Answer::Now(outcome)
    }
}

/// Attributes in an answer.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// What they are.
    pub attr: Attr,
    /// The kernel may rely on them. If not, it asks again.
    pub keep: bool,
}

/// An open file or directory, and how the kernel shall cache it.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// Handle that comes back with each request.
    pub handle: u64,
    /// Reads and writes bypass the page cache.
    pub direct: bool,
    /// Pages cached before this open are still right.
    pub keep_cache: bool,
}

/// An open directory, and how the kernel shall cache its listing.
#[derive(Debug, Clone, Copy)]
pub struct OpenedDir {
    /// Handle that comes back with each request.
    pub handle: u64,
    /// The kernel may keep the listing, and use one that it has kept.
    pub cached: bool,
    /// What it has kept before this open is still right.
    pub keep_cache: bool,
}

/// A write as the kernel sends it.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Handle from open; not reliable if `writeback`.
    pub handle: u64,
    /// The file.
    pub ino: u64,
    /// Byte offset; for appends the size that the kernel knows.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// Pages of a shared mapping on their way out, not a `write` call.
    pub writeback: bool,
    /// A `write` call that bypasses the page cache; the kernel holds no pages locked for it, and
    /// sends no fsync after it if `flags` ask for one.
    pub direct: bool,
    /// The caller may not keep set-user-id and set-group-id bits alive.
    pub kill_suidgid: bool,
    /// `O_*` flags of the open file, with `O_SYNC` or `O_DSYNC` also if this call asks for that.
    pub flags: i32,
}

/// The two ends of a copy between open files.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    /// File read.
    pub ino_in: u64,
    /// Where to begin reading.
    pub offset_in: u64,
    /// File written.
    pub ino_out: u64,
    /// Its handle from open.
    pub handle_out: u64,
    /// Where to begin writing.
    pub offset_out: u64,
    /// Bytes to copy.
    pub len: u64,
}

/// Where directory entries go.
pub trait DirSink {
    /// Offers an entry; `false` means that it did not fit and nothing more will.
    fn add(&mut self, ino: u64, kind: FileKind, name: &OsStr, cookie: u64, attr: Option<&Attr>) -> bool;
    /// Whether entries should come with attributes (each then counts as a lookup).
    fn wants_attributes(&self) -> bool;
    /// Bytes worth fetching entries for at a time; there may be room for more.
    fn capacity(&self) -> usize;
}

/// What the server may tell the kernel unasked.
///
/// Never call these from the thread that reads requests, unless it says so: the
/// kernel may hold a lock that only an answer releases. From [`Answer::Later`]
/// and [`Answer::Here`] they are safe.
pub trait Notify: Send + Sync {
    /// Forgets a name, present or absent, and everything looked up below it.
    fn forget_entry(&self, parent: u64, name: &OsStr) -> io::Result<()>;
    /// Forgets attributes and the pages from byte `offset` on, for `len` bytes (0: to the end).
    /// Dirty pages of shared mappings in the range are written to the server first, and the
    /// call returns after that.
    fn forget_pages(&self, ino: u64, offset: u64, len: u64) -> io::Result<()>;
    /// Forgets attributes only.
    fn forget_attributes(&self, ino: u64) -> io::Result<()>;
    /// Puts a whole file into the page cache. Only while no open of the file is answered: then no program has its
    /// pages locked, so a thread that reads requests may call this, and no page is dirty, so nothing is lost. `data`
    /// must be as long as the file, or the kernel takes the file for longer than it is.
    fn give_pages(&self, ino: u64, data: &[u8]) -> io::Result<()>;
}

/// What a file system answers. Names are single components without `/`.
///
/// An [`Attr`] returned from `lookup`, `mknod`, `mkdir`, `symlink`, `create`
/// and each entry accepted by a [`DirSink`] that wants attributes (except `.`
/// and `..`) is one reference, given back by `forget`.
#[allow(missing_docs)] // the methods are the POSIX calls of the same name
pub trait Handler: Send + Sync + 'static {
    /// Called once before the first request.
    fn start(&self, notify: Arc<dyn Notify>);
    /// `Ok(None)`: the name does not exist and the kernel may remember that.
    fn lookup(&self, c: &Context, parent: u64, name: &OsStr) -> Answer<Option<Found>>;
    fn forget(&self, ino: u64, count: u64);
    /// The caller of the request with this number was killed, or got a signal. The request is answered nevertheless.
    fn interrupted(&self, unique: u64);
    /// GETATTR. With a handle the caller has the file open, mostly for a write through the page cache, which fails
    /// with the error of this answer.
    fn getattr(&self, ino: u64, handle: Option<u64>) -> Answer<Found>;
    /// STATX: attributes with the time of birth.
    fn statx(&self, ino: u64) -> Answer<Found>;
    /// Whether the kernel may keep the attributes that the answer to a SETATTR or LINK has. If not, it asks again.
    fn may_keep(&self, c: &Context, ino: u64) -> bool;
    fn setattr(&self, c: &Context, ino: u64, change: SetAttr) -> Outcome<Attr>;
    fn readlink(&self, ino: u64) -> Outcome<Bytes>;
    fn mknod(
        &self,
        c: &Context,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Outcome<Attr>;
    fn mkdir(&self, c: &Context, parent: u64, name: &OsStr, mode: u32, umask: u32) -> Outcome<Attr>;
    fn symlink(&self, c: &Context, parent: u64, name: &OsStr, target: &Path) -> Outcome<Attr>;
    fn unlink(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()>;
    fn rmdir(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()>;
    fn rename(&self, c: &Context, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Outcome<()>;
    fn link(&self, c: &Context, ino: u64, parent: u64, name: &OsStr) -> Outcome<Attr>;
    fn create(
        &self,
        c: &Context,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Outcome<(Attr, Opened)>;
    /// A file without a name, as one that is made in `parent`.
    fn tmpfile(&self, c: &Context, parent: u64, mode: u32, umask: u32, flags: i32)
    -> Outcome<(Attr, Opened)>;
    fn open(&self, c: &Context, ino: u64, flags: i32) -> Answer<Opened>;
    /// `of_pages`: the kernel has no pages of this range, and makes some of the answer.
    fn read(&self, handle: u64, ino: u64, offset: u64, size: u32, of_pages: bool) -> Answer<Bytes>;
    fn write(&self, c: &Context, write: Write<'_>) -> Answer<u32>;
    /// Returns the work that is left to be done after the answer, as [`Answer::Later`] does.
    fn release(&self, ino: u64, handle: u64, flags: i32) -> Option<Behind>;
    fn fsync(&self, ino: u64, datasync: bool) -> Answer<()>;
    fn opendir(&self, c: &Context, ino: u64, flags: i32) -> Outcome<OpenedDir>;
    fn readdir(&self, handle: u64, ino: u64, cookie: u64, sink: &mut dyn DirSink) -> Outcome<()>;
    fn releasedir(&self, ino: u64, handle: u64);
    fn statfs(&self, ino: u64) -> Outcome<StatFs>;
    fn setxattr(&self, c: &Context, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()>;
    fn getxattr(&self, c: &Context, ino: u64, name: &OsStr) -> Outcome<Bytes>;
    /// Names with a zero behind each.
    fn listxattr(&self, c: &Context, ino: u64) -> Outcome<Bytes>;
    fn removexattr(&self, c: &Context, ino: u64, name: &OsStr) -> Outcome<()>;
    fn fallocate(&self, c: &Context, ino: u64, offset: u64, len: u64, mode: i32) -> Answer<()>;
    /// Whether a program may use a file in this way (access(2)), where the kernel does not check permissions itself.
    fn access(&self, ino: u64, mask: i32) -> Outcome<()>;
    fn seek(&self, ino: u64, offset: u64, what: Seek) -> Answer<u64>;
    fn copy(&self, c: &Context, copy: Copy) -> Answer<u64>;
    /// A request that is not known came, and is answered with `ENOSYS`.
    fn unsupported(&self);
    /// A control request on a file or directory; `data` is the caller's struct, the answer replaces it.
    fn ioctl(&self, c: &Context, ino: u64, handle: u64, command: u32, data: &[u8]) -> Answer<Vec<u8>>;
}
