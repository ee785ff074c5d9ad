//! The redo log: a chain of checksummed records in a ring of fixed size.
//!
//! A [`Log`] appends in memory and makes records durable for many callers at
//! once; a [`Replay`] reads back what is valid. Guarantees, over any crash:
//! what is replayed is a prefix of what was appended, contains every record
//! whose sync returned, and never a record of an earlier lap of the ring or of
//! a run before an earlier crash. Knows nothing of what a record means. Of
//! `space` it uses extents only, which hold large values outside the ring.
//!
//! A position is a count of bytes since the log began and only grows; it lies
//! at `base + position % size` on the device. Every write-out ends with a guard
//! and a whole block, and the next record begins in the next block: a block
//! that may be durable is never written again before the ring comes around,
//! so no torn write can reach a synced record. See `record` for the bytes and
//! for what chains them, and `guard` for what tells damage from the end and
//! repairs it.

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

/// How far a log is searched that was empty once, and to all appearances is empty still, in bytes.
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
    /// A number that no other store on the same device has or had: what an older one has left in the region
    /// says nothing about this one.
    pub store: u64,
}

/// A place between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPos {
    /// Bytes since the log began; only grows.
    pub pos: u64,
    /// Checksum of the record that ends here. A new log begins with a number
    /// that no earlier log on the same device began with (random, say), or
    /// the records of that one could be taken for its own.
    pub chain: u64,
}

/// Length of the longest payload in a ring of `size` bytes: with its header a quarter of it.
fn max_payload(size: u64) -> usize {
    (size / 4).min(u64::from(u32::MAX)).saturating_sub(record::RECORD_HEADER_BYTES as u64) as usize
}

#[cfg(test)]
mod tests;
