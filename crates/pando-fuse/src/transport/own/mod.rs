//! The transport: the FUSE protocol over `/dev/fuse` or io_uring.
//!
//! `Session::new` does the handshake on a mounted descriptor and starts the queues of io_uring where these are wanted;
//! `Session::serve` reads what the kernel sends over the descriptor (everything, or with queues FORGET and INTERRUPT
//! only) until the file system is unmounted.
//!
//! - `wire`: the bytes of the protocol; `offer`: whether the kernel offers io_uring
//! - `device`: reads and writes the descriptor and sends notifications; `ended`: whether the mount has ended
//! - `serve`: calls the handler
//! - `readers`: the threads that read the descriptor, into the memory of `buffers`; `watch` looks for requests while
//!   these wait
//! - `ring`: one thread per request over io_uring

mod buffers;
mod device;
mod ended;
pub mod offer;
mod readers;
mod ring;
mod serve;
mod watch;
mod wire;

use std::{io, os::fd::OwnedFd, path::Path, sync::Arc};

use zerocopy::FromBytes;

use self::{device::Device, readers::Readers, serve::Agreed, wire::flag};
use crate::counters::Counters;
use crate::transport::{
    Handler, Notify,
    common::{MAX_BACKGROUND_REQUESTS, MAX_WRITE_BYTES},
    poll::Poller,
};

/// Background requests in flight from which on the kernel considers the server congested, a count.
const CONGESTION_REQUESTS: u16 = 48;

/// Bits of what the kernel shall do on its own, where it can (docs/fuse.md has the reasons).
const WANTED: u64 = flag::ASYNC_READ
    | flag::ATOMIC_O_TRUNC
    | flag::BIG_WRITES
    | flag::DONT_MASK
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::EXPLICIT_INVAL_DATA
    | flag::HANDLE_KILLPRIV_V2
    | flag::DIRECT_IO_ALLOW_MMAP
    | flag::INIT_EXT;

/// How requests come.
pub(crate) struct Channel {
    /// Over io_uring; otherwise over the descriptor.
    pub(crate) ring: bool,
    /// Threads that read the descriptor, a count.
    pub(crate) readers: usize,
    /// What these do before they sleep.
    pub(crate) poller: Poller,
    pub(crate) counters: Arc<Counters>,
}

/// What the kernel is asked for besides what every mount has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    /// The kernel has a write-back cache for this mount.
    pub(crate) writeback: bool,
    /// The kernel checks access lists, and so always checks permissions.
    pub(crate) access_lists: bool,
}

/// A mounted file system that has said hello.
pub(crate) struct Session<H: Handler> {
    readers: Arc<Readers<H>>,
    minor: u32,
    rings: Option<ring::Rings<H>>,
}

impl<H: Handler> Session<H> {
    /// Does the handshake over the connection `fd` of the mount on `dir`, and starts the queues. `wishes` are the
    /// features to ask the kernel for.
    ///
    /// Fails if io_uring is demanded, and the kernel does not offer it or a queue cannot be started; then no request
    /// on this mount will be answered.
    pub(crate) fn new(
        handler: Arc<H>,
        fd: OwnedFd,
        dir: &Path,
        channel: Channel,
        wishes: Wishes,
    ) -> io::Result<Self> {
        let Channel { ring, readers, poller, counters } = channel;
        let device = Arc::new(Device::new(fd, dir.to_owned()));
        let mut rings = match ring {
            true => Some(ring::Rings::prepare(handler.clone(), device.clone())?),
            false => None,
        };
        let minor = greet(&device, ring, wishes)?;
        handler.start(device.clone() as Arc<dyn Notify>);
        if let Some(rings) = &mut rings {
            rings.start()?;
        }
        let readers = Arc::new(Readers::new(handler, device, poller, counters, readers.max(1)));
        Ok(Self { readers, minor, rings })
    }

    /// Whether requests come over io_uring.
    pub(crate) fn over_io_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// Whether this kernel counts pages as written when the server has answered for them, not before (Linux 6.16).
    pub(crate) fn awaits_answers_to_writes(&self) -> bool {
        self.minor >= wire::MINOR_THAT_AWAITS_WRITES
    }

    /// Answers requests until the file system is unmounted.
    pub(crate) fn serve(self) -> io::Result<()> {
        let served = self.readers.serve();
        // After an unmount the queues end by themselves; after an error the caller unmounts by force.
        if let (Ok(()), Some(rings)) = (&served, &self.rings) {
            rings.join();
        }
        served
    }
}

/// Answers INIT, the first request, and gives the version of the kernel's protocol. With `ring` the others come over
/// io_uring.
fn greet(device: &Device, ring: bool, wishes: Wishes) -> io::Result<u32> {
    let unsupported = |what| Err(io::Error::new(io::ErrorKind::Unsupported, what));
    let mut buffer = vec![0; device::READ_BUFFER_BYTES];
    let other = || io::Error::other("the kernel's first request is not INIT");
    let n = device.read(&mut buffer)?.ok_or_else(other)?;
    // Kernels before 5.17 send less of it. What they do not know is zero behind that.
    buffer.get_mut(n..).unwrap_or_default().fill(0);
    let (header, rest) = wire::InHeader::read_from_prefix(&buffer).map_err(|_| other())?;
    if header.opcode != wire::op::INIT {
        return Err(other());
    }
    let (init, _) = wire::InitIn::read_from_prefix(rest).map_err(|_| other())?;
    if init.major != wire::MAJOR || init.minor < wire::LEAST_MINOR {
        device.answer(header.unique, libc::EPROTO, &[])?;
        return unsupported("this kernel's FUSE is too old");
    }
    let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
    if ring && offered & flag::OVER_IO_URING == 0 {
        device.answer(header.unique, libc::EPROTO, &[])?;
        return unsupported("this kernel has no FUSE over io_uring");
    }
    if wishes.writeback && offered & flag::WRITEBACK_CACHE == 0 {
        device.answer(header.unique, libc::EPROTO, &[])?;
        return unsupported("this kernel has no write-back cache for FUSE");
    }
    let wanted = WANTED | if wishes.writeback { flag::WRITEBACK_CACHE } else { 0 };
    // Only a kernel that checks access lists says which bits of the mode a list removes.
    let wanted = wanted | if wishes.access_lists { flag::POSIX_ACL | flag::SETXATTR_EXT } else { 0 };
    let wanted = wanted | if ring { flag::OVER_IO_URING } else { 0 };
    let lacking = wanted & !offered;
    if lacking != 0 {
        log::info!("this kernel lacks the FUSE flags {lacking:#x}");
    }
    let flags = offered & wanted;
    let page = rustix::param::page_size() as u32;
    let out = wire::InitOut {
        major: wire::MAJOR,
        minor: wire::MINOR.min(init.minor),
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: MAX_BACKGROUND_REQUESTS,
        congestion_threshold: CONGESTION_REQUESTS,
        max_write: MAX_WRITE_BYTES,
        time_gran: 1,
        max_pages: u16::try_from(MAX_WRITE_BYTES.div_ceil(page)).unwrap_or(u16::MAX),
        ..wire::InitOut::default()
    };
    device.agree(Agreed {
        long_setxattr: flags & flag::SETXATTR_EXT != 0,
        takes_group_bits: init.minor >= wire::MINOR_THAT_TAKES_GROUP_BITS,
        says_when_bits_go: flags & flag::HANDLE_KILLPRIV_V2 != 0,
    });
    device.answer(header.unique, 0, zerocopy::IntoBytes::as_bytes(&out))?;
    Ok(init.minor)
}
