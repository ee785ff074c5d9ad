//! From a request's bytes to the handler, and from its answer to bytes.
//!
//! Knows nothing of how requests come and answers go, so that `/dev/fuse` and
//! io_uring share it. A request that makes no sense is answered with `EINVAL`,
//! one that is not known with `ENOSYS`, one whose handler panics with `EIO`.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use bytes::Bytes;
use pando_fs::{Attr, FileKind, Seek, SetAttr, SetTime};
use zerocopy::{FromBytes, IntoBytes};

use crate::transport::own::wire::{self, fattr, op};
use crate::transport::{
    Answer, Context, Copy, DirSink, Errno, Found, Handler, Opened, Outcome, Write,
    common::{MAX_COPY_BYTES, is_direct_write},
};

/// What the kernel and the server have agreed on, as far as requests depend on it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Agreed {
    /// SETXATTR has its second half: it says whether an access list takes a set-group-id bit away.
    pub(super) long_setxattr: bool,
    /// The kernel has taken that bit from what is to be made, if the caller may not give it.
    pub(super) takes_group_bits: bool,
    /// The kernel says with each write whether set-id bits go: it knows what the writer may do.
    pub(super) says_when_bits_go: bool,
}

/// A request in its three parts.
pub(super) struct Request<'a> {
    pub(super) header: wire::InHeader,
    /// The struct of the operation.
    pub(super) op: &'a [u8],
    /// Names and data.
    pub(super) payload: &'a [u8],
    pub(super) agreed: Agreed,
}

/// What goes back.
pub(super) enum Reply {
    /// Nothing: the kernel expects none.
    None,
    /// An error number, positive.
    Error(i32),
    /// The bytes in the buffer that was given.
    Buffer,
    /// Bytes of an answer.
    Data(Bytes),
}

/// Work that may wait.
pub(super) type Later = Box<dyn FnOnce(&mut Vec<u8>) -> Reply + Send>;

/// An answer, or the work that makes it.
pub(super) enum Step {
    Done(Reply),
    /// Work that may wait for the device, for other requests, or for the kernel.
    Later(Later),
    /// Work like that of `Later`, which mostly waits for the device only.
    Here(Later),
}

impl<'a> Request<'a> {
    fn op<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.op).map(|(op, _)| op).map_err(|_| INVALID)
    }

    /// The one name that the payload is.
    fn name(&self) -> Result<&'a OsStr, Errno> {
        wire::name(self.payload).map(|(name, _)| name).ok_or(INVALID)
    }

    fn names(&self) -> Result<(&'a OsStr, &'a OsStr), Errno> {
        let (first, rest) = wire::name(self.payload).ok_or(INVALID)?;
        let (second, _) = wire::name(rest).ok_or(INVALID)?;
        Ok((first, second))
    }

    fn context(&self) -> Context {
        let makes = matches!(self.header.opcode, op::CREATE | op::MKNOD | op::TMPFILE);
        let keeps_group_bit = (makes && self.agreed.takes_group_bits).then_some(true);
        Context {
            uid: self.header.uid,
            gid: self.header.gid,
            pid: self.header.pid,
            unique: self.header.unique,
            keeps_group_bit,
            says_when_bits_go: self.agreed.says_when_bits_go,
        }
    }
}

const INVALID: Errno = Errno(libc::EINVAL);

/// Answers `request`, or says how. `out` is where the bytes of [`Reply::Buffer`] are put.
pub(super) fn serve<H: Handler>(handler: &H, request: &Request<'_>, out: &mut Vec<u8>) -> Step {
    out.clear();
    match catch_unwind(AssertUnwindSafe(|| answer(handler, request, out))) {
        Ok(Ok(step)) => step,
        Ok(Err(e)) => Step::Done(Reply::Error(e.0)),
        Err(_) => {
            log::error!("a request failed by a panic and was answered with EIO");
            Step::Done(Reply::Error(libc::EIO))
        }
    }
}

/// Does what may wait.
pub(super) fn finish(work: Later, out: &mut Vec<u8>) -> Reply {
    out.clear();
    catch_unwind(AssertUnwindSafe(|| work(out))).unwrap_or_else(|_| {
        log::error!("a request failed by a panic and was answered with EIO");
        Reply::Error(libc::EIO)
    })
}

/// A step from an answer whose value `encode` turns into a reply.
fn step<T: 'static>(
    answer: Answer<T>,
    out: &mut Vec<u8>,
    encode: impl FnOnce(T, &mut Vec<u8>) -> Reply + Send + 'static,
) -> Step {
    match answer {
        Answer::Now(outcome) => Step::Done(reply(outcome, out, encode)),
        Answer::Later(work) => Step::Later(Box::new(move |out| reply(work(), out, encode))),
        Answer::Here(work) => Step::Here(Box::new(move |out| reply(work(), out, encode))),
    }
}

fn reply<T>(outcome: Outcome<T>, out: &mut Vec<u8>, encode: impl FnOnce(T, &mut Vec<u8>) -> Reply) -> Reply {
    match outcome {
        Ok(value) => encode(value, out),
        Err(e) => Reply::Error(e.0),
    }
}

fn answer<H: Handler>(h: &H, r: &Request<'_>, out: &mut Vec<u8>) -> Result<Step, Errno> {
    let (c, node) = (r.context(), r.header.nodeid);
    let done = match r.header.opcode {
        op::LOOKUP => {
            return Ok(step(h.lookup(&c, node, r.name()?), out, |found, out| {
                put(out, &found.as_ref().map_or_else(wire::EntryOut::absent, wire::EntryOut::found))
            }));
        }
        op::FORGET => {
            h.forget(node, r.op::<wire::ForgetIn>()?.nlookup);
            Reply::None
        }
        op::INTERRUPT => {
            h.interrupted(r.op::<wire::InterruptIn>()?.unique);
            Reply::None
        }
        op::BATCH_FORGET => {
            let count = r.op::<wire::BatchForgetIn>()?.count as usize;
            let each = size_of::<wire::ForgetOne>();
            for bytes in r.payload.chunks_exact(each).take(count) {
                if let Ok((one, _)) = wire::ForgetOne::read_from_prefix(bytes) {
                    h.forget(one.nodeid, one.nlookup);
                }
            }
            Reply::None
        }
        op::GETATTR => {
            let i: wire::GetattrIn = r.op()?;
            let handle = (i.getattr_flags & wire::GETATTR_FH != 0).then_some(i.fh);
            return Ok(step(h.getattr(node, handle), out, |a, out| put(out, &wire::AttrOut::from(&a))));
        }
        op::STATX => return Ok(step(h.statx(node), out, |a, out| put(out, &wire::StatxOut::from(&a)))),
        op::SETATTR => {
            let a = h.setattr(&c, node, change(&r.op()?)?)?;
            put(out, &wire::AttrOut::from(&Found { attr: a, keep: h.may_keep(&c, a.ino) }))
        }
        op::READLINK => Reply::Data(h.readlink(node)?),
        op::SYMLINK => {
            let (name, target) = r.names()?;
            put_entry(out, &h.symlink(&c, node, name, Path::new(target))?)
        }
        op::MKNOD => {
            let i: wire::MknodIn = r.op()?;
            put_entry(out, &h.mknod(&c, node, r.name()?, i.mode, i.umask, i.rdev)?)
        }
        op::MKDIR => {
            let i: wire::MkdirIn = r.op()?;
            put_entry(out, &h.mkdir(&c, node, r.name()?, i.mode, i.umask)?)
        }
        op::UNLINK => empty(h.unlink(&c, node, r.name()?))?,
        op::RMDIR => empty(h.rmdir(&c, node, r.name()?))?,
        op::RENAME => {
            let (from, to) = r.names()?;
            let newdir = r.op::<wire::RenameIn>()?.newdir;
            empty(h.rename(&c, (node, from), (newdir, to), 0))?
        }
        op::RENAME2 => {
            let (from, to) = r.names()?;
            let i: wire::Rename2In = r.op()?;
            empty(h.rename(&c, (node, from), (i.newdir, to), i.flags))?
        }
        op::LINK => {
            let i: wire::LinkIn = r.op()?;
            let a = h.link(&c, i.oldnodeid, node, r.name()?)?;
            put(out, &wire::EntryOut::found(&Found { attr: a, keep: h.may_keep(&c, a.ino) }))
        }
        op::OPEN => {
            let i: wire::OpenIn = r.op()?;
            return Ok(step(h.open(&c, node, i.flags as i32), out, |o, out| put(out, &opened(&o))));
        }
        op::CREATE => {
            let i: wire::CreateIn = r.op()?;
            let (a, o) = h.create(&c, node, r.name()?, i.mode, i.umask, i.flags as i32)?;
            put(out, &wire::EntryOut::of(&a));
            put(out, &opened(&o))
        }
        op::TMPFILE => {
            let i: wire::CreateIn = r.op()?;
            let (a, o) = h.tmpfile(&c, node, i.mode, i.umask, i.flags as i32)?;
            put(out, &wire::EntryOut::of(&a));
            put(out, &opened(&o))
        }
        op::READ => {
            let i: wire::ReadIn = r.op()?;
            // A direct read has a lock owner: it fills a buffer of the caller, past the page cache.
            let of_pages = i.read_flags & wire::READ_LOCKOWNER == 0;
            let answer = h.read(i.fh, node, i.offset, i.size, of_pages);
            return Ok(step(answer, out, |data, _| Reply::Data(data)));
        }
        op::WRITE => {
            let i: wire::WriteIn = r.op()?;
            let data = r.payload.get(..i.size as usize).ok_or(INVALID)?;
            return Ok(step(h.write(&c, write(&i, node, data)), out, |n, out| {
                put(out, &wire::WriteOut { size: n, padding: 0 })
            }));
        }
        op::RELEASE => {
            let i: wire::ReleaseIn = r.op()?;
            if let Some(behind) = h.release(node, i.fh, i.flags as i32) {
                // Nobody waits for the answer.
                let work = Answer::later(move || {
                    behind();
                    Ok(())
                });
                return Ok(step(work, out, |(), _| Reply::Buffer));
            }
            Reply::Buffer
        }
        op::FSYNC | op::FSYNCDIR => {
            let i: wire::FsyncIn = r.op()?;
            let datasync = i.fsync_flags & wire::FSYNC_FDATASYNC != 0;
            return Ok(step(h.fsync(node, datasync), out, |(), _| Reply::Buffer));
        }
        op::OPENDIR => {
            let i: wire::OpenIn = r.op()?;
            let o = h.opendir(&c, node, i.flags as i32)?;
            let cached = if o.cached { wire::FOPEN_CACHE_DIR } else { 0 };
            let kept = if o.keep_cache { wire::FOPEN_KEEP_CACHE } else { 0 };
            put(out, &wire::OpenOut { fh: o.handle, open_flags: cached | kept, padding: 0 })
        }
        op::READDIR | op::READDIRPLUS => {
            let i: wire::ReadIn = r.op()?;
            let plus = r.header.opcode == op::READDIRPLUS;
            h.readdir(i.fh, node, i.offset, &mut DirentBuffer { out, limit: i.size as usize, plus })?;
            Reply::Buffer
        }
        op::RELEASEDIR => {
            let i: wire::ReleaseIn = r.op()?;
            h.releasedir(node, i.fh);
            Reply::Buffer
        }
        op::STATFS => put(out, &wire::StatfsOut::from(&h.statfs(node)?)),
        op::IOCTL => {
            let i: wire::IoctlIn = r.op()?;
            let data = r.payload.get(..i.in_size as usize).ok_or(INVALID)?;
            let answer = h.ioctl(&c, node, i.fh, i.cmd, data);
            return Ok(step(answer, out, move |data, out| {
                if data.len() > i.out_size as usize {
                    return Reply::Error(libc::EOVERFLOW);
                }
                put(out, &wire::IoctlOut::default());
                out.extend_from_slice(&data);
                Reply::Buffer
            }));
        }
        op::SETXATTR => {
            /// The access list that is set takes the set-group-id bit away.
            const KILLS_GROUP_BIT: u32 = 1;
            let i: wire::SetxattrIn = r.op()?;
            let (name, value) = wire::name(r.payload).ok_or(INVALID)?;
            let value = value.get(..i.size as usize).ok_or(INVALID)?;
            let more = r.op.get(size_of::<wire::SetxattrIn>()..).unwrap_or_default();
            let more = wire::SetxattrMore::read_from_prefix(more).ok();
            let keeps_group_bit = more.map(|(more, _)| more.more_flags & KILLS_GROUP_BIT == 0);
            let c = Context { keeps_group_bit, ..c };
            let answer = h.setxattr(&c, node, name, value, i.flags as i32);
            return Ok(step(answer, out, |(), _| Reply::Buffer));
        }
        op::GETXATTR => {
            let i: wire::GetxattrIn = r.op()?;
            sized(out, h.getxattr(&c, node, r.name()?)?, i.size)?
        }
        op::LISTXATTR => {
            let i: wire::GetxattrIn = r.op()?;
            sized(out, h.listxattr(&c, node)?, i.size)?
        }
        op::REMOVEXATTR => empty(h.removexattr(&c, node, r.name()?))?,
        op::FALLOCATE => {
            let i: wire::FallocateIn = r.op()?;
            let answer = h.fallocate(&c, node, i.offset, i.length, i.mode as i32);
            return Ok(step(answer, out, |(), _| Reply::Buffer));
        }
        op::ACCESS => {
            let i: wire::AccessIn = r.op()?;
            empty(h.access(node, i.mask as i32))?
        }
        op::LSEEK => {
            let i: wire::LseekIn = r.op()?;
            let what = match i.whence as i32 {
                libc::SEEK_DATA => Seek::Data,
                libc::SEEK_HOLE => Seek::Hole,
                _ => return Err(INVALID),
            };
            return Ok(step(h.seek(node, i.offset, what), out, |offset, out| {
                put(out, &wire::LseekOut { offset })
            }));
        }
        op::COPY_FILE_RANGE => {
            return Ok(step(copy(h, r)?, out, |n, out| {
                put(out, &wire::WriteOut { size: u32::try_from(n).unwrap_or(u32::MAX), padding: 0 })
            }));
        }
        op::COPY_FILE_RANGE_64 => {
            return Ok(step(copy(h, r)?, out, |bytes, out| put(out, &wire::CopyOut { bytes })));
        }
        op::DESTROY => Reply::Buffer,
        op::NOTIFY_REPLY => Reply::None,
        // Among them FLUSH: the kernel does not ask again, and answers on its own what docs/fuse.md says.
        _ => {
            h.unsupported();
            return Err(Errno(libc::ENOSYS));
        }
    };
    Ok(Step::Done(done))
}

/// The bytes that were asked for, if there is room for them; how many they are, if no room was offered.
fn sized(out: &mut Vec<u8>, data: Bytes, room: u32) -> Result<Reply, Errno> {
    match room {
        0 => Ok(put(out, &wire::GetxattrOut { size: data.len() as u32, padding: 0 })),
        room if data.len() > room as usize => Err(Errno(libc::ERANGE)),
        _ => Ok(Reply::Data(data)),
    }
}

fn copy<H: Handler>(h: &H, r: &Request<'_>) -> Result<Answer<u64>, Errno> {
    let i: wire::CopyIn = r.op()?;
    if i.flags != 0 {
        return Err(INVALID);
    }
    let len = i.len.min(MAX_COPY_BYTES);
    let copy = Copy {
        ino_in: r.header.nodeid,
        offset_in: i.off_in,
        ino_out: i.nodeid_out,
        handle_out: i.fh_out,
        offset_out: i.off_out,
        len,
    };
    Ok(h.copy(&r.context(), copy))
}

fn write<'a>(i: &wire::WriteIn, ino: u64, data: &'a [u8]) -> Write<'a> {
    let writeback = i.write_flags & wire::WRITE_CACHE != 0;
    Write {
        handle: i.fh,
        ino,
        offset: i.offset,
        data,
        writeback,
        direct: is_direct_write(i.write_flags & wire::WRITE_LOCKOWNER != 0, writeback),
        kill_suidgid: i.write_flags & wire::WRITE_KILL_SUIDGID != 0,
        flags: i.flags as i32,
    }
}

fn change(i: &wire::SetattrIn) -> Result<SetAttr, Errno> {
    let has = |bit: u32| i.valid & bit != 0;
    let at = |bit: u32, now: u32, secs: u64, nanos: u32| match (has(bit), has(now)) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(SetTime::Now)),
        (true, false) => wire::time(secs, nanos).map(|t| Some(SetTime::At(t))).ok_or(INVALID),
    };
    let ctime = match has(fattr::CTIME) {
        true => Some(wire::time(i.ctime, i.ctimensec).ok_or(INVALID)?),
        false => None,
    };
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(i.mode),
        uid: has(fattr::UID).then_some(i.uid),
        gid: has(fattr::GID).then_some(i.gid),
        size: has(fattr::SIZE).then_some(i.size),
        atime: at(fattr::ATIME, fattr::ATIME_NOW, i.atime, i.atimensec)?,
        mtime: at(fattr::MTIME, fattr::MTIME_NOW, i.mtime, i.mtimensec)?,
        ctime,
        // By the protocol a change of owner always drops them, a truncation does where the kernel says so.
        kill_suidgid: has(fattr::KILL_SUIDGID) || has(fattr::UID) || has(fattr::GID),
    })
}

fn opened(o: &Opened) -> wire::OpenOut {
    // Nothing waits in the handler for the last close, so FLUSH is never worth a request.
    let mut open_flags = wire::FOPEN_NOFLUSH;
    if o.direct {
        open_flags |= wire::FOPEN_DIRECT_IO;
    }
    if o.keep_cache {
        open_flags |= wire::FOPEN_KEEP_CACHE;
    }
    wire::OpenOut { fh: o.handle, open_flags, padding: 0 }
}

fn put(out: &mut Vec<u8>, value: &(impl IntoBytes + zerocopy::Immutable)) -> Reply {
    out.extend_from_slice(value.as_bytes());
    Reply::Buffer
}

fn put_entry(out: &mut Vec<u8>, a: &Attr) -> Reply {
    put(out, &wire::EntryOut::of(a))
}

fn empty(outcome: Outcome<()>) -> Result<Reply, Errno> {
    outcome.map(|()| Reply::Buffer)
}

/// Entries on their way into a buffer of the size that the kernel offered.
struct DirentBuffer<'a> {
    out: &'a mut Vec<u8>,
    limit: usize,
    plus: bool,
}

impl DirSink for DirentBuffer<'_> {
    fn add(&mut self, ino: u64, kind: FileKind, name: &OsStr, cookie: u64, attr: Option<&Attr>) -> bool {
        let head = if self.plus { size_of::<wire::EntryOut>() } else { 0 } + size_of::<wire::Dirent>();
        let end = (self.out.len() + head + name.len()).next_multiple_of(8);
        if end > self.limit {
            return false;
        }
        if self.plus {
            put(self.out, &attr.map_or_else(|| wire::EntryOut::unseen(ino, kind), wire::EntryOut::of));
        }
        let namelen = name.len() as u32;
        put(self.out, &wire::Dirent { ino, off: cookie, namelen, kind: wire::type_bits(kind) >> 12 });
        self.out.extend_from_slice(name.as_bytes());
        self.out.resize(end, 0);
        true
    }

    fn wants_attributes(&self) -> bool {
        self.plus
    }

    fn capacity(&self) -> usize {
        self.limit.saturating_sub(self.out.len())
    }
}
