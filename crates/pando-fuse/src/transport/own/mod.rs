//! A transport of our own: the FUSE protocol over io_uring, and `/dev/fuse` for the rest.
//!
//! `Session::new` does the handshake on a mounted descriptor and starts the
//! queues; `Session::serve` reads what the kernel sends over the descriptor
//! all the same (FORGET, and everything where the queues could not be
//! started) until the file system is unmounted. Parts: `wire` has the bytes,
//! `serve` calls the handler, `ring` is one thread per request over io_uring,
//! `device` reads and writes the descriptor and sends notifications, `offer`
//! says whether the kernel offers io_uring.

mod device;
pub mod offer;
mod ring;
mod serve;
mod wire;

use std::{
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use zerocopy::FromBytes;

use self::{device::Device, wire::flag};
use crate::transport::{
    Handler, Notify,
    common::{MAX_BACKGROUND_REQUESTS, MAX_WRITE_BYTES},
};

/// Background requests in flight from which on the kernel considers the server congested, a count.
const CONGESTION_REQUESTS: u16 = 48;

/// Bits of what the kernel shall do on its own, where it can (docs/fuse.md has the reasons).
const WANTED: u64 = flag::ASYNC_READ
    | flag::ATOMIC_O_TRUNC
    | flag::BIG_WRITES
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

/// A mounted file system that has said hello.
pub(crate) struct Session<H: Handler> {
    handler: Arc<H>,
    device: Arc<Device>,
    rings: ring::Rings<H>,
}

impl<H: Handler> Session<H> {
    /// Does the handshake over `fd` of what is mounted on `dir`, and starts the queues.
    ///
    /// Fails if the kernel does not offer io_uring or a queue cannot be started; then nobody will
    /// answer on this mount.
    pub(crate) fn new(handler: Arc<H>, fd: OwnedFd, dir: &Path, writeback: bool) -> io::Result<Self> {
        let device = Arc::new(Device::new(fd, dir.to_owned()));
        let mut rings = ring::Rings::prepare(handler.clone(), device.clone())?;
        greet(&device, writeback)?;
        handler.start(device.clone() as Arc<dyn Notify>);
        rings.start()?;
        Ok(Self { handler, device, rings })
    }

    /// Answers requests until the file system is unmounted.
    pub(crate) fn serve(self) -> io::Result<()> {
        let served = self.device.serve(&*self.handler);
        // Unmounted, the queues end by themselves; otherwise whoever called unmounts by force.
        if served.is_ok() {
            self.rings.join();
        }
        served
    }
}

/// Answers INIT, the first request. With `writeback` the kernel keeps what is written.
fn greet(device: &Device, writeback: bool) -> io::Result<()> {
    let mut buffer = vec![0; device::READ_BUFFER_BYTES];
    let other = || io::Error::other("the kernel's first request is not INIT");
    let n = device.read(&mut buffer)?.ok_or_else(other)?;
    let bytes = buffer.get(..n).unwrap_or_default();
    let (header, rest) = wire::InHeader::read_from_prefix(bytes).map_err(|_| other())?;
    if header.opcode != wire::op::INIT {
        return Err(other());
    }
    let (init, _) = wire::InitIn::read_from_prefix(rest)
        .map_err(|_| io::Error::new(io::ErrorKind::Unsupported, "this kernel's FUSE is too old"))?;
    let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
    if init.major != wire::MAJOR || offered & flag::OVER_IO_URING == 0 {
        device.answer(header.unique, libc::EPROTO, &[])?;
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel has no FUSE over io_uring"));
    }
    let wanted = WANTED | if writeback { flag::WRITEBACK_CACHE } else { 0 };
    let lacking = wanted & !offered;
    if lacking != 0 {
        log::info!("this kernel lacks the FUSE flags {lacking:#x}");
    }
    let flags = offered & (wanted | flag::OVER_IO_URING);
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
    device.answer(header.unique, 0, zerocopy::IntoBytes::as_bytes(&out))
}

/// Set once, when the mount has ended.
#[derive(Default)]
struct Ended(AtomicBool);

impl Ended {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
