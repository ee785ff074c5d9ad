//! The descriptor of `/dev/fuse`: requests read, answers and notifications written.
//!
//! With io_uring only FORGET and INTERRUPT come this way, which nobody
//! answers; should a request come all the same, it is served like any other,
//! and what may wait by a worker.

use std::{
    ffi::OsStr,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::transport::own::{
    Ended,
    serve::{Reply, Request, Step, finish, serve},
    wire::{self, OutHeader},
};
use crate::transport::{
    Handler, Notify,
    common::{MAX_WORKERS, MAX_WRITE_BYTES, signed},
    workers::Workers,
};

/// Bytes for a read; the kernel refuses one into less than its largest request.
pub(super) const READ_BUFFER_BYTES: usize = MAX_WRITE_BYTES as usize + 4096;

pub(super) struct Device {
    fd: OwnedFd,
    ended: Ended,
    /// Where the file system is mounted.
    dir: PathBuf,
    /// Calls of [`Device::request_no_op`] so far.
    no_op_requests: AtomicU64,
}

impl Device {
    pub(super) fn new(fd: OwnedFd, dir: PathBuf) -> Self {
        Self { fd, dir, ended: Ended::default(), no_op_requests: AtomicU64::new(0) }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the file system is known to be unmounted.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// The next request; `None` once the file system is unmounted.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(n) => return Ok(Some(n)),
                // ENOENT: the request was withdrawn before it was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => {
                    self.ended.set();
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers the request `unique` with an error number (positive, or 0) and data.
    pub(super) fn answer(&self, unique: u64, error: i32, data: &[u8]) -> io::Result<()> {
        self.send(unique, -error, &[data])
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique };
        let mut all = vec![IoSlice::new(header.as_bytes())];
        all.extend(parts.iter().map(|p| IoSlice::new(p)));
        loop {
            match rustix::io::writev(self.fd.as_fd(), &all) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Tells the kernel something unasked.
    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.send(0, code, parts) {
            // What the kernel does not know it need not forget.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Makes the kernel send a request that changes nothing, through the queue of the CPU that the caller
    /// runs on. `ino` is the inode of a request under way.
    ///
    /// Over io_uring the kernel hands out requests that stand in a queue only to an entry that commits
    /// an answer, not to one that is registered later. Answering this request is such a commit.
    pub(super) fn request_no_op(&self, ino: u64) -> io::Result<()> {
        // The kernel counts its own requests from 0, so that they never have the highest bit; the lowest
        // one would mean an interrupt.
        let unique = 1 << 63 | self.no_op_requests.fetch_add(1, Ordering::Relaxed) << 1;
        let body = wire::Retrieve { unique, ino, offset: 0, size: 0, padding: 0 };
        match self.send(0, wire::NOTIFY_RETRIEVE, &[body.as_bytes()]) {
            // Not a regular file, or one that the kernel has forgotten.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                rustix::fs::statfs(&self.dir)?;
                Ok(())
            }
            result => result,
        }
    }

    /// Sends the answer of a request; fails only on a broken protocol.
    fn reply(&self, unique: u64, reply: &Reply, buffer: &[u8]) {
        let sent = match reply {
            Reply::None => Ok(()),
            Reply::Error(e) => self.answer(unique, *e, &[]),
            Reply::Buffer => self.answer(unique, 0, buffer),
            Reply::Data(data) => self.answer(unique, 0, data),
        };
        match sent.map_err(|e| e.raw_os_error()) {
            // The caller was killed, or the file system unmounted by force, meanwhile.
            Ok(()) | Err(Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED)) => {}
            Err(e) => log::error!("the kernel refused an answer: {e:?}"),
        }
    }

    /// Serves what comes this way until the file system is unmounted.
    pub(super) fn serve<H: Handler>(self: &Arc<Self>, handler: &H) -> io::Result<()> {
        let workers = Workers::new(MAX_WORKERS);
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut out = Vec::new();
        while let Some(n) = self.read(&mut buffer)? {
            let bytes = buffer.get(..n).unwrap_or_default();
            let Ok((header, rest)) = wire::InHeader::read_from_prefix(bytes) else {
                return Err(io::Error::other("the kernel sent a request without a header"));
            };
            let (op, payload) = rest.split_at(wire::op_size(header.opcode).min(rest.len()));
            match serve(handler, &Request { header, op, payload }, &mut out) {
                Step::Done(reply) => self.reply(header.unique, &reply, &out),
                Step::Later(work) => {
                    let device = self.clone();
                    workers.run(move || {
                        let mut out = Vec::new();
                        let reply = finish(work, &mut out);
                        device.reply(header.unique, &reply, &out);
                    });
                }
            }
        }
        Ok(())
    }
}

impl Notify for Device {
    fn forget_entry(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        let head = wire::InvalEntry { parent, namelen: name.len() as u32, flags: 0 };
        self.notify(wire::NOTIFY_INVAL_ENTRY, &[head.as_bytes(), name.as_bytes(), &[0]])
    }

    fn forget_pages(&self, ino: u64, offset: u64, len: u64) -> io::Result<()> {
        let body = wire::InvalInode { ino, off: signed(offset), len: signed(len) };
        self.notify(wire::NOTIFY_INVAL_INODE, &[body.as_bytes()])
    }

    fn forget_attributes(&self, ino: u64) -> io::Result<()> {
        let body = wire::InvalInode { ino, off: -1, len: 0 };
        self.notify(wire::NOTIFY_INVAL_INODE, &[body.as_bytes()])
    }
}
