//! Values that do not stand in the log's records (value separation): who decides where they go.
//!
//! A record names a group of such values and numbers in it. When the log is written out, a [`BlobPlacer`] puts the
//! group somewhere and says so in records of its own. No I/O here.

use std::sync::Arc;

use bytes::Bytes;

use crate::{error::Result, space::Extent, store::log::record::record_len};

/// Values that were set aside, with their keys, in the order of their numbers from 0 on.
pub struct Group {
    /// Its number: no two groups of one run of a store have the same.
    pub id: u64,
    /// Keys and values.
    pub values: Vec<(Bytes, Bytes)>,
    /// Those from this number on are of the last record, which batches may still have been joined to: newer
    /// values of their keys are likely.
    pub open: usize,
    /// Every record that names the group has at most this MSN.
    pub msn: u64,
}

/// What was done with a group.
#[derive(Default)]
pub struct Placed {
    /// Records that say so, of at most `Log::max_payload` bytes each.
    pub payloads: Vec<Bytes>,
    /// What must not be reused while the records that name the group may be replayed.
    pub extents: Vec<Arc<Extent>>,
}

/// Decides where groups go.
pub trait BlobPlacer: Send + Sync {
    /// Puts the values somewhere, not durable before the device's next flush. The records may take as
    /// much room as [`owed`] says. An error stops the log.
    fn place(&self, group: Group, max_payload: usize) -> Result<Placed>;
}

/// Room that the log keeps for a value set aside, in bytes: a record of its own for each.
pub fn owed(value: usize) -> u64 {
    record_len(value + 64) + 64
}
