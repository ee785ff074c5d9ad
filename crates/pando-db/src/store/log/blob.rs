//! Values that are stored outside the log's records (value separation), and the trait that decides where.
//!
//! A record refers to such a value by a group and a number in it. When the log is written out, a [`BlobPlacer`]
//! writes the group to extents, and returns records that say where. No I/O here.

use std::sync::Arc;

use bytes::Bytes;

use crate::{error::Result, space::Extent, store::log::record::record_len};

/// Values that are stored together, with their keys, in the order of their numbers from 0 on.
pub struct Group {
    /// Its number: no two groups of one opening of a store have the same.
    pub id: u64,
    /// Keys and values.
    pub values: Vec<(Bytes, Bytes)>,
    /// The values from this number on are of the last record. Batches may have been coalesced with it until now, so
    /// newer values of the same keys are likely to follow.
    pub open: usize,
    /// Every record that names the group has at most this MSN.
    pub msn: u64,
}

/// Where the values of a group were written.
#[derive(Default)]
pub struct Placed {
    /// Payloads of the records that say where, of at most `Log::max_payload` bytes each.
    pub payloads: Vec<Bytes>,
    /// The extents, which must not be reused while records that name the group may be replayed.
    pub extents: Vec<Arc<Extent>>,
}

/// Decides where the values of groups are written.
pub trait BlobPlacer: Send + Sync {
    /// Writes the values; they are durable after the device's next flush. The returned records take at most the room
    /// that [`reserved`] reserves for the values. An error stops the log.
    fn place(&self, group: Group, max_payload: usize) -> Result<Placed>;
}

/// Room that the log reserves for a value stored outside of it, in bytes: enough for a record of its own.
pub fn reserved(value: usize) -> u64 {
    record_len(value + 64) + 64
}
