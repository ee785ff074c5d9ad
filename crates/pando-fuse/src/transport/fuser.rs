//! The transport over `/dev/fuse` by the crate `fuser`.
//!
//! Passes requests on and answers back, chooses what the kernel shall do on its
//! own (see `docs/fuse.md` for the reasons), and sends notifications. One
//! thread reads requests unless told otherwise; answers that may wait are
//! worked out by `Workers`. The only module that names `fuser`'s types.

mod convert;

use std::{
    ffi::OsStr,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fuser::{
    CopyFileRangeFlags, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use pando_fs::SetAttr;

use self::convert::{
    ABSENT, GENERATION, PlainSink, PlusSink, TTL, attr, context, errno, open_flags, received, send_attr,
    send_empty, send_entry, set_time,
};
use crate::transport::{
    Answer, Copy, Handler, Notify, Outcome, Write,
    common::{
        MAX_BACKGROUND_REQUESTS, MAX_COPY_BYTES, MAX_WORKERS, MAX_WRITE_BYTES, is_direct_write,
        kills_suidgid, signed,
    },
    poll::Poller,
    workers::Workers,
};

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
    poller: Poller,
    /// The kernel shall keep what is written.
    writeback: bool,
}

impl<H: Handler> Adapter<H> {
    pub(crate) fn new(handler: Arc<H>, poller: Poller, writeback: bool) -> Self {
        Self { handler, workers: Workers::new(MAX_WORKERS), poller, writeback }
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
        self.0.inval_inode(INodeNo(ino), signed(offset), signed(len))
    }

    fn forget_attributes(&self, ino: u64) -> io::Result<()> {
        self.0.inval_inode(INodeNo(ino), -1, 0)
    }
}

impl<H: Handler> fuser::Filesystem for Adapter<H> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                log::info!("this kernel lacks {flag:?}");
            }
        }
        if self.writeback && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no write-back cache for FUSE",
            ));
        }
        if let Err(most) = config.set_max_write(MAX_WRITE_BYTES) {
            let _ = config.set_max_write(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND_REQUESTS);
        // The kernel's own readahead is what it offers here; a larger one is set after the mount.
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.poller.turn();
        match self.handler.lookup(parent.0, name) {
            Ok(Some(a)) => reply.entry(&TTL, &attr(&a), GENERATION),
            Ok(None) => reply.entry(&TTL, &ABSENT, GENERATION),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        // The library takes batches apart and calls this for each.
        let _turn = self.poller.turn().unanswered();
        self.handler.forget(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
        let c = context(request);
        // The library does not pass FATTR_KILL_SUIDGID on.
        let kill_suidgid = kills_suidgid(&c, uid.is_some() || gid.is_some(), size.is_some(), None);
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
        send_attr(reply, self.handler.setattr(&c, ino.0, change));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
        send_entry(reply, self.handler.mkdir(&context(request), parent.0, name, mode, umask));
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.poller.turn();
        send_empty(reply, self.handler.unlink(&context(request), parent.0, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.poller.turn();
        send_empty(reply, self.handler.rmdir(&context(request), parent.0, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
        let from = (parent.0, name);
        let to = (new_parent.0, new_name);
        send_empty(reply, self.handler.rename(&context(request), from, to, flags.bits()));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.poller.turn();
        send_entry(reply, self.handler.link(&context(request), ino.0, parent.0, name));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.poller.turn();
        let answer = self.handler.open(&context(request), ino.0, flags.0);
        self.deliver(answer, move |outcome| match outcome {
            Ok(o) => reply.opened(FileHandle(o.handle), open_flags(&o)),
            Err(e) => reply.error(errno(e)),
        });
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
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
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
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.poller.turn();
        let writeback = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let write = Write {
            handle: handle.0,
            ino: ino.0,
            offset,
            data,
            writeback,
            direct: is_direct_write(lock_owner.is_some(), writeback),
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
        let _turn = self.poller.turn();
        let behind = self.handler.release(ino.0, handle.0, flags.0);
        reply.ok();
        if let Some(work) = behind {
            self.workers.run(work);
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.deliver(self.handler.fsync(ino.0, datasync), move |outcome| send_empty(reply, outcome));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.poller.turn();
        match self.handler.opendir(&context(request), ino.0, flags.0) {
            // No FOPEN_CACHE_DIR: a cached listing would outlive a clone (docs/fuse.md).
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, cookie: u64, reply: ReplyDirectory) {
        let _turn = self.poller.turn();
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
        let _turn = self.poller.turn();
        let mut sink = PlusSink { reply };
        match self.handler.readdir(handle.0, ino.0, cookie, &mut sink) {
            Ok(()) => sink.reply.ok(),
            Err(e) => sink.reply.error(errno(e)),
        }
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.poller.turn();
        self.handler.releasedir(ino.0, handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.deliver(self.handler.fsync(ino.0, datasync), move |outcome| send_empty(reply, outcome));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _turn = self.poller.turn();
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
        handle: FileHandle,
        _: IoctlFlags,
        command: u32,
        data: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let answer = self.handler.ioctl(&context(request), ino.0, handle.0, command, data);
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
        handle_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if flags.bits() != 0 {
            return reply.error(fuser::Errno::EINVAL);
        }
        let len = len.min(MAX_COPY_BYTES);
        let copy = Copy {
            ino_in: ino_in.0,
            offset_in,
            ino_out: ino_out.0,
            handle_out: handle_out.0,
            offset_out,
            len,
        };
        self.deliver(self.handler.copy(&context(request), copy), move |outcome| match outcome {
            Ok(n) => reply.written(u32::try_from(n).unwrap_or(u32::MAX)),
            Err(e) => reply.error(errno(e)),
        });
    }
}
