//! The descriptor of `/dev/fuse`: requests read, answers and notifications written. With io_uring only FORGET and
//! INTERRUPT arrive here; any other request would be served all the same. Guarantees: an answer that the kernel does
//! not want any more is no error.

use std::{
    ffi::OsStr,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};
use zerocopy::IntoBytes;

use crate::own_mount::with_unshared_files;
use crate::transport::own::{
    ended::Ended,
    serve::{Agreed, Reply},
    wire::{self, OutHeader},
};
use crate::transport::{
    Notify,
    common::{MAX_WRITE_BYTES, signed},
};

/// Bytes for a read; the kernel refuses one into less than its largest request.
pub(super) const READ_BUFFER_BYTES: usize = MAX_WRITE_BYTES as usize + 4096;

/// Messages up to this long are sent in one part, bytes.
const SHORT_BYTES: usize = 512;

pub(super) struct Device {
    fd: OwnedFd,
    ended: Ended,
    /// A read of the descriptor does not wait.
    nonblocking: AtomicBool,
    /// Where the file system is mounted.
    dir: PathBuf,
    /// Calls of [`Device::request_no_op`] so far.
    no_op_requests: AtomicU64,
    agreed: OnceLock<Agreed>,
}

impl Device {
    pub(super) fn new(fd: OwnedFd, dir: PathBuf) -> Self {
        Self {
            fd,
            dir,
            ended: Ended::default(),
            nonblocking: AtomicBool::new(false),
            no_op_requests: AtomicU64::new(0),
            agreed: OnceLock::new(),
        }
    }

    /// Notes what INIT has settled, before any other request.
    pub(super) fn agree(&self, agreed: Agreed) {
        let first = self.agreed.set(agreed).is_ok();
        assert!(first, "a connection begins once");
    }

    /// What INIT has settled.
    pub(super) fn agreed(&self) -> Agreed {
        self.agreed.get().copied().unwrap_or_default()
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the file system is known to be unmounted.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// The next request, which is waited for; `None` once the file system is unmounted.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.set_nonblocking(false)?;
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                // ENOENT: the request was withdrawn before it was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                read => return self.outcome(read),
            }
        }
    }

    /// As [`Device::read`], but `None` if there is no request yet. Not while another thread waits in a read:
    /// `O_NONBLOCK` belongs to the descriptor, and is set only if it has to change.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> Option<io::Result<Option<usize>>> {
        if let Err(e) = self.set_nonblocking(true) {
            return Some(Err(e));
        }
        match rustix::io::read(&self.fd, buffer) {
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => None,
            read => Some(self.outcome(read)),
        }
    }

    fn outcome(&self, read: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
        match read {
            Ok(n) => Ok(Some(n)),
            Err(Errno::NODEV | Errno::CONNABORTED) => {
                self.ended.set();
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn set_nonblocking(&self, wanted: bool) -> io::Result<()> {
        if self.nonblocking.load(Ordering::Relaxed) != wanted {
            let mut flags = fcntl_getfl(&self.fd)?;
            flags.set(OFlags::NONBLOCK, wanted);
            fcntl_setfl(&self.fd, flags)?;
            self.nonblocking.store(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Answers the request `unique` with an error number (positive, or 0) and data.
    pub(super) fn answer(&self, unique: u64, error: i32, data: &[u8]) -> io::Result<()> {
        self.send(unique, -error, &[data])
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|p| p.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique };
        let part = |i: usize| parts.get(i).copied().unwrap_or_default();
        let all = [header.as_bytes(), part(0), part(1), part(2)];
        debug_assert!(parts.len() < all.len(), "a message in more parts than are sent");
        let mut short = [0; SHORT_BYTES];
        loop {
            // The kernel pins the memory of each part, which costs more than to copy a short one.
            let result = match short.get_mut(..len) {
                Some(short) => rustix::io::write(&self.fd, joined(&all, short)),
                None => rustix::io::writev(&self.fd, &all.map(IoSlice::new)),
            };
            match result {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends a notification.
    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.send(0, code, parts) {
            // What the kernel does not know it need not forget.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }

    /// Makes the kernel send a request that changes nothing, through the queue of the CPU that the caller
    /// runs on. `ino` is the inode of a request in progress.
    ///
    /// Over io_uring the kernel gives queued requests only to an entry that commits an answer, and not to one that is
    /// registered later. The answer to this request is such a commit.
    pub(super) fn request_no_op(&self, ino: u64) -> io::Result<()> {
        // The kernel counts its own requests from 0, so that they never have the highest bit; the lowest
        // one would mean an interrupt.
        let unique = 1 << 63 | self.no_op_requests.fetch_add(1, Ordering::Relaxed) << 1;
        let body = wire::Retrieve { unique, ino, offset: 0, size: 0, padding: 0 };
        match self.send(0, wire::NOTIFY_RETRIEVE, &[body.as_bytes()]) {
            // The inode is no regular file, or the kernel has forgotten it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                // A wait for an answer of this very process must not hold the connection's descriptor (see
                // `own_mount`). The thread runs on the CPU of this one.
                with_unshared_files(|_| rustix::fs::statfs(&self.dir).map(drop))??;
                Ok(())
            }
            result => result,
        }
    }

    /// Sends the answer of a request; fails only on a broken protocol.
    pub(super) fn reply(&self, unique: u64, reply: &Reply, buffer: &[u8]) {
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
}

/// The parts one behind the other in `room`, which is as long as all of them.
fn joined<'a>(parts: &[&[u8]], room: &'a mut [u8]) -> &'a [u8] {
    let mut rest = &mut *room;
    for part in parts {
        let (here, behind) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
    room
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

    fn give_pages(&self, ino: u64, data: &[u8]) -> io::Result<()> {
        let head = wire::Store { ino, offset: 0, size: data.len() as u32, padding: 0 };
        self.notify(wire::NOTIFY_STORE, &[head.as_bytes(), data])
    }
}
