//! The redo log: a chain of checksummed records in a ring of fixed size.
//!
//! A [`Log`] appends in memory and makes records durable for many callers at once; a [`Replay`] reads the valid
//! records back. Guarantees, over any crash: the replayed records are a prefix of those that were appended, contain
//! every record whose sync returned, and never one of an earlier lap of the ring or of a session before an earlier
//! crash. The log does not interpret records. Of `space` it uses extents only, which hold large values outside the
//! ring.
//!
//! A position is the count of bytes since the log began, so it only grows; it lies at `base + position % size` on the
//! device. Every write-out ends with a guard and at a block boundary, and the next record begins in the next block.
//! So a block that may be durable is not written again before the ring comes around to it, and no torn write can
//! damage a synced record. `record` describes the bytes of a record and how records are chained; `guard` describes the
//! parity and checksums that distinguish damage from the end of the log, and repair it.

use std::sync::Arc;

use crate::device::Device;

mod append;
mod blob;
mod buffer;
mod guard;
mod reader;
mod record;
mod writer;

pub use blob::{BlobPlacer, Group, Placed, reserved};
pub use reader::{Found, Replay};
pub use writer::{AppendError, Log};

/// A log that was empty when its start was noted is searched for so many bytes, and further only if something is found
/// there.
const EMPTY_SEARCH_BYTES: u64 = 1 << 20;

/// Where a log lies.
#[derive(Clone)]
pub struct Region {
    /// The device.
    pub device: Arc<dyn Device>,
    /// First byte, a multiple of [`crate::device::BLOCK`].
    pub base: u64,
    /// Length in bytes, whole blocks.
    pub size: u64,
    /// A number that no other store on the same device has or had, so that the reader does not take footers that an
    /// older store has left in the region for its own.
    pub store: u64,
}

/// A place between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPos {
    /// Bytes since the log began; only grows.
    pub pos: u64,
    /// Checksum of the record that ends here. A new log begins with a number with which no earlier log on the same
    /// device began, such as a random one. Otherwise the reader could take records of that log for its own.
    pub chain: u64,
}

/// Length of the longest payload in a ring of `size` bytes: with its header a quarter of it.
fn max_payload(size: u64) -> usize {
    (size / 4).min(u64::from(u32::MAX)).saturating_sub(record::RECORD_HEADER_BYTES as u64) as usize
}

#[cfg(test)]
mod tests;
