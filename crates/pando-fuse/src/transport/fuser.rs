//! The transport over `/dev/fuse` by the crate `fuser`.
//!
//! Translates requests and answers, chooses what the kernel shall do on its
//! own (see `docs/fuse.md` for the reasons), and sends notifications. One
//! thread reads requests unless told otherwise; answers that may wait are
//! worked out by [`Workers`]. The only module that names `fuser`'s types.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    CopyFileRangeFlags, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pando_fs::{Attr, FileKind, SetAttr, SetTime, Time};

use super::{
    Answer, Context, Copy, DirSink, Errno, Handler, Notify, Opened, Outcome, Write, workers::Workers,
};

/// How long the kernel may rely on a name or on attributes. The server is the only one that
/// changes them behind the kernel's back, and then it notifies.
const TTL: Duration = Duration::from_secs(86_400);
/// Largest write request; the kernel caps a request at 256 pages by default.
const MAX_WRITE: u32 = 1 << 20;
/// Requests for readahead and asynchronous I/O that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 64;
/// Threads for answers that wait. More of them let more fsyncs share one flush.
const MAX_WORKERS: usize = 16;
/// Inode numbers are never used twice, so the generation never changes.
const GENERATION: Generation = Generation(0);

/// What the kernel shall do on its own, where it can. `HANDLE_KILLPRIV_V2` saves a getxattr per
/// write, `ATOMIC_O_TRUNC` a request per truncating open, `EXPLICIT_INVAL_DATA` keeps pages when
/// the size known to the kernel lags behind.
const WANTED: [InitFlags; 10] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_EXPLICIT_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

/// A [`Handler`] as `fuser` wants it.
pub(crate) struct Adapter<H: Handler> {
    handler: Arc<H>,
    workers: Workers,
}

impl<H: Handler> Adapter<H> {
    pub(crate) fn new(handler: Arc<H>) -> Self {
        Self { handler, workers: Workers::new(MAX_WORKERS) }
    }

    /// Gives `answer` to `send`, now or from a worker.
    fn deliver<T: 'static>(&self, answer: Answer<T>, send: impl FnOnce(Outcome<T>) + Send + 'static) {
        match answer {
            Answer::Now(outcome) => send(outcome),
            Answer::Later(work) => self.workers.run(move || send(work())),
        }
    }
}

/// Sends notifications over the session's channel.
pub(crate) struct Notifier(pub(crate) fuser::Notifier);

impl Notify for Notifier {
    fn forget_entry(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        self.0.inval_entry(INodeNo(parent), name)
    }

    fn forget_pages(&self, ino: u64, offset: u64, len: u64) -> io::Result<()> {
        let clamp = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.0.inval_inode(INodeNo(ino), clamp(offset), clamp(len))
    }

    fn forget_attributes(&self, ino: u64) -> io::Result<()> {
        self.0.inval_inode(INodeNo(ino), -1, 0)
    }
}

fn context(request: &Request) -> Context {
    Context { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn errno(e: Errno) -> fuser::Errno {
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
fn received(t: SystemTime) -> Time {
    match t.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(_) => t.into(),
        Err(e) => {
            let (s, n) = (e.duration().as_secs(), e.duration().subsec_nanos());
            Time { secs: 0i64.checked_sub_unsigned(s).unwrap_or(i64::MIN), nanos: n }
        }
    }
}

fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(received(t)),
    }
}

fn attr(a: &Attr) -> fuser::FileAttr {
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
const ABSENT: fuser::FileAttr = fuser::FileAttr {
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

fn open_flags(o: &Opened) -> FopenFlags {
    // Nothing waits in the handler for the last close, so FLUSH is never worth a request.
    let mut flags = FopenFlags::FOPEN_NOFLUSH;
    flags.set(FopenFlags::FOPEN_DIRECT_IO, o.direct);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, o.keep_cache);
    flags
}

fn send_entry(reply: ReplyEntry, outcome: Outcome<Attr>) {
    match outcome {
        Ok(a) => reply.entry(&TTL, &attr(&a), GENERATION),
        Err(e) => reply.error(errno(e)),
    }
}

fn send_attr(reply: ReplyAttr, outcome: Outcome<Attr>) {
    match outcome {
        Ok(a) => reply.attr(&TTL, &attr(&a)),
        Err(e) => reply.error(errno(e)),
    }
}

fn send_empty(reply: ReplyEmpty, outcome: Outcome<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

/// Entries with attributes; `reserve` bytes are what the kernel offered.
struct PlusSink {
    reply: ReplyDirectoryPlus,
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
        DIR_BUFFER
    }
}

/// Entries without attributes.
struct PlainSink {
    reply: ReplyDirectory,
}

impl DirSink for PlainSink {
    fn add(&mut self, ino: u64, k: FileKind, name: &OsStr, cookie: u64, _: Option<&Attr>) -> bool {
        !self.reply.add(INodeNo(ino), cookie, kind(k), name)
    }

    fn wants_attributes(&self) -> bool {
        false
    }

    fn capacity(&self) -> usize {
        DIR_BUFFER
    }
}

/// What the kernel usually offers for a readdir; only a hint for how many entries to fetch.
const DIR_BUFFER: usize = 4096;

impl<H: Handler> fuser::Filesystem for Adapter<H> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                log::info!("this kernel lacks {flag:?}");
            }
        }
        if let Err(most) = config.set_max_write(MAX_WRITE) {
            let _ = config.set_max_write(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        // The kernel's own readahead is what it offers here; a larger one is set after the mount.
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.handler.lookup(parent.0, name) {
            Ok(Some(a)) => reply.entry(&TTL, &attr(&a), GENERATION),
            Ok(None) => reply.entry(&TTL, &ABSENT, GENERATION),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.handler.forget(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        send_attr(reply, self.handler.getattr(ino.0));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // The library does not pass FATTR_KILL_SUIDGID on; by the protocol a change of owner
        // always drops the bits and a truncation does for callers without CAP_FSETID.
        let kill_suidgid = uid.is_some() || gid.is_some() || (size.is_some() && request.uid() != 0);
        let change = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(received),
            kill_suidgid,
        };
        send_attr(reply, self.handler.setattr(&context(request), ino.0, change));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.handler.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        send_entry(reply, self.handler.mknod(&context(request), parent.0, name, mode, umask, rdev));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        send_entry(reply, self.handler.mkdir(&context(request), parent.0, name, mode, umask));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send_empty(reply, self.handler.unlink(&context(request), parent.0, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send_empty(reply, self.handler.rmdir(&context(request), parent.0, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        send_entry(reply, self.handler.symlink(&context(request), parent.0, name, target));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = (parent.0, name);
        let to = (new_parent.0, new_name);
        send_empty(reply, self.handler.rename(&context(request), from, to, flags.bits()));
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        // What link(2) documents for file systems without hard links.
        reply.error(fuser::Errno::EPERM);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.handler.open(&context(request), ino.0, flags.0) {
            Ok(o) => reply.opened(FileHandle(o.handle), open_flags(&o)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.handler.create(&context(request), parent.0, name, mode, umask, flags) {
            Ok((a, o)) => reply.created(&TTL, &attr(&a), GENERATION, FileHandle(o.handle), open_flags(&o)),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let answer = self.handler.read(handle.0, ino.0, offset, size);
        self.deliver(answer, move |outcome| match outcome {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(errno(e)),
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = Write {
            handle: handle.0,
            ino: ino.0,
            offset,
            data,
            writeback: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            kill_suidgid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            flags: flags.0,
        };
        let answer = self.handler.write(&context(request), write);
        self.deliver(answer, move |outcome| match outcome {
            Ok(n) => reply.written(n),
            Err(e) => reply.error(errno(e)),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel does not ask again, and close() succeeds.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handler.release(ino.0, handle.0, flags.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.deliver(self.handler.fsync(ino.0, datasync), move |outcome| send_empty(reply, outcome));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.handler.opendir(ino.0) {
            // No FOPEN_CACHE_DIR: a cached listing would outlive a clone (docs/fuse.md).
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, cookie: u64, reply: ReplyDirectory) {
        let mut sink = PlainSink { reply };
        match self.handler.readdir(handle.0, ino.0, cookie, &mut sink) {
            Ok(()) => sink.reply.ok(),
            Err(e) => sink.reply.error(errno(e)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        cookie: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let mut sink = PlusSink { reply };
        match self.handler.readdir(handle.0, ino.0, cookie, &mut sink) {
            Ok(()) => sink.reply.ok(),
            Err(e) => sink.reply.error(errno(e)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handler.releasedir(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.deliver(self.handler.fsync(ino.0, datasync), move |outcome| send_empty(reply, outcome));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.handler.statfs() {
            Ok(s) => {
                reply.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize)
            }
            Err(e) => reply.error(errno(e)),
        }
    }

    // Extended attributes: ENOSYS makes the kernel answer EOPNOTSUPP itself from then on.
    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn listxattr(&self, _: &Request, _: INodeNo, _: u32, reply: ReplyXattr) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        data: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let answer = self.handler.ioctl(&context(request), ino.0, command, data);
        self.deliver(answer, move |outcome| match outcome {
            Ok(data) if data.len() <= room as usize => reply.ioctl(0, &data),
            Ok(_) => reply.error(fuser::Errno::EOVERFLOW),
            Err(e) => reply.error(errno(e)),
        });
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        // ENOSYS becomes EOPNOTSUPP for good; glibc then falls back to writing zeros.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        // The kernel then treats the file as one piece of data up to its size, which is allowed.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if flags.bits() != 0 {
            return reply.error(fuser::Errno::EINVAL);
        }
        // The answer carries 32 bits; a caller goes on where a short copy ended.
        let len = len.min(0xfff0_0000);
        let copy = Copy { ino_in: ino_in.0, offset_in, ino_out: ino_out.0, offset_out, len };
        self.deliver(self.handler.copy(&context(request), copy), move |outcome| match outcome {
            Ok(n) => reply.written(u32::try_from(n).unwrap_or(u32::MAX)),
            Err(e) => reply.error(errno(e)),
        });
    }
}
