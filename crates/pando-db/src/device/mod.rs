//! The lowest layer: bytes that can be read, written and made durable.
//!
//! A [`Device`] is the only thing through which the engine touches the world.
//! It guarantees nothing about order or durability between two flushes: a
//! write may be lost, torn or reordered by a crash until [`Device::flush`]
//! has returned, if it was not a durable one ([`Device::write_durably`]).
//! Everything above is built on that.

mod counters;
mod direct;
mod fail_stop;
mod file;
#[cfg(any(test, feature = "sim"))]
mod hooked;
mod in_use;
mod lock;
mod medium;
mod memory;
mod probe;
#[cfg(any(test, feature = "sim"))]
mod sim;
mod sparse;

use std::io::{self, IoSlice, IoSliceMut};

use bytes::Bytes;

pub(crate) use fail_stop::FailStop;
pub use file::FileDevice;
#[cfg(any(test, feature = "sim"))]
pub use hooked::{DeviceCall, HookedDevice};
pub(crate) use in_use::InUse;
pub use medium::Medium;
pub(crate) use medium::New;
pub use memory::MemDevice;
#[cfg(any(test, feature = "sim"))]
pub use sim::{FailMode, SimDevice};

/// Unit of allocation and of durable log padding, in bytes.
pub const BLOCK: u64 = 4096;

/// What the last block of a request is filled up with.
pub(crate) static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// Requests and bytes that a device has served since it was opened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DeviceStats {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads that did not begin where the previous read ended.
    pub read_seeks: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes, and durable writes.
    pub flushes: u64,
    /// Discards that were carried out.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
}

/// A byte-addressed store of fixed but growable size.
///
/// All methods may be called from several threads at once.
pub trait Device: Send + Sync + 'static {
    /// Fills `buf` from `offset`, whatever is in it before. Reading past the end is an error; a hole reads as
    /// zeros.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Fills all of `bufs`, one after the other, from `offset` on, as one request.
    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut all = vec![0; bufs.iter().map(|buf| buf.len()).sum()];
        self.read_at(offset, &mut all)?;
        let mut rest = &all[..];
        for buf in bufs {
            let (part, behind) = rest.split_at(buf.len());
            buf.copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }
    /// The `len` bytes from `offset` on, read by one request into memory that the device lends: a caller that keeps
    /// a part of them keeps all of it. `None` if it has none, or not for so many bytes, and nothing was read.
    fn read_lent(&self, _offset: u64, _len: usize) -> io::Result<Option<Bytes>> {
        Ok(None)
    }
    /// Writes all of `buf` at `offset`. Not durable before the next flush.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;
    /// Writes all of `bufs`, one after the other, at `offset`, as one request; otherwise as [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.write_at(offset, &joined(bufs))
    }
    /// Returns when every write that returned before this call is durable.
    fn flush(&self) -> io::Result<()>;
    /// Writes all of `buf` at `offset`, and returns when these bytes are durable, whatever becomes of others:
    /// a log need not wait for the pages of a checkpoint. `Ok(false)` if the medium cannot tell them apart,
    /// and this was a write like any other. An error means what that of a write or of a flush means.
    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        self.write_at(offset, buf)?;
        Ok(false)
    }
    /// Makes later reads show what the medium holds, with what was written since the last flush. A cache in
    /// between may show data that a failed flush has lost. Media without one do nothing.
    fn reread(&self) -> io::Result<()> {
        Ok(())
    }
    /// To be called some times a second while the device is open: frees memory that is not needed any more.
    fn rest(&self) {}
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Bytes that the medium could hold of the device, judging by what is free on it now; not more than the
    /// size. A sparse file may be larger than its file system.
    fn capacity(&self) -> io::Result<u64> {
        Ok(self.size())
    }
    /// Grows to `size` bytes (sparsely where the medium can). Shrinking is an error.
    fn grow(&self, size: u64) -> io::Result<()>;
    /// Makes sure that later writes to the range cannot fail for lack of
    /// space underneath (a sparse file on a full disk). Contents are kept.
    /// Media that cannot tell return `Ok`.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Says that the contents of the range are not needed any more, so that the medium underneath can have
    /// its space back. What reads see there afterwards is anything, until it is written again; after a
    /// crash before the next flush it may be what was there before. What was reserved there is no longer.
    /// `Ok(false)` if the medium cannot do that and nothing was done. An error leaves the range as after
    /// a discard that happened in part.
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }
    /// The first bytes at or behind `from` that the medium holds already, so that reserving them takes no
    /// space, as far as it can tell: (offset, length). `None` if it knows of none.
    fn next_held(&self, _from: u64) -> io::Result<Option<(u64, u64)>> {
        Ok(None)
    }
    /// Whether requests go past caches of the host: what a store reads again then costs a request, and its memory is
    /// all the memory that it takes.
    fn is_direct(&self) -> bool {
        false
    }
    /// Whether what was never written takes no space, so that discarding it again costs nothing.
    fn is_sparse(&self) -> bool {
        false
    }
    /// What was asked of the device so far.
    fn stats(&self) -> DeviceStats;
}

/// All bytes of `bufs`, in memory of their own.
fn joined(bufs: &[IoSlice<'_>]) -> Vec<u8> {
    let mut all = Vec::with_capacity(bufs.iter().map(|buf| buf.len()).sum());
    bufs.iter().for_each(|buf| all.extend_from_slice(buf));
    all
}

/// Refuses a request that does not lie inside a device of `size` bytes.
fn check_range(size: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{len} bytes at {offset} reach beyond the device of {size} bytes"),
        )),
    }
}
