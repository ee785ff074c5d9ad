//! Figures about a store, taken at one moment.

use crate::device::DeviceStats;

/// Figures about a store. All sizes are bytes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Size of the device.
    pub device_size: u64,
    /// Bytes that nodes, table pages, log and superblocks own.
    pub used: u64,
    /// Of these, bytes that nodes own, and values that the log has placed. Also what only a snapshot or the
    /// last checkpoint still holds.
    pub node_bytes: u64,
    /// Bytes that new data may still take.
    pub available: u64,
    /// Target node size.
    pub node_size: u64,
    /// Number of nodes at each height, leaves first.
    pub nodes_by_height: Vec<u64>,
    /// Nodes with more than one reference.
    pub shared_nodes: u64,
    /// Nodes without a reference that wait for the reclaimer.
    pub reclaimable_nodes: u64,
    /// Goto messages that rest in nodes or in memory.
    pub gotos_pending: u64,
    /// Pieces of range-upserts that wait in nodes or in memory.
    pub updates_pending: u64,
    /// Size of the redo log.
    pub log_size: u64,
    /// Bytes of the log that a recovery would replay.
    pub log_used: u64,
    /// Bytes of the cache in use by clean data.
    pub cache_used: u64,
    /// Bytes of memory that the process has in its pool of buffers from 8 to 256 KiB, which are most pages,
    /// clean or not. Of all its stores together, what is kept for later included.
    pub page_memory: u64,
    /// Of these, bytes that are in use: the rest is kept for later.
    pub page_memory_in_use: u64,
    /// Whether requests go past the host's caches: see [`Device::is_direct`](crate::device::Device::is_direct).
    pub direct_io: bool,
    /// Bytes of nodes changed since the last checkpoint, and of the memtables.
    pub dirty: u64,
    /// Of these, bytes of the memtables.
    pub tables: u64,
    /// Budget of the cache.
    pub cache_budget: u64,
    /// Checkpoints made since open.
    pub checkpoints: u64,
    /// Clones and renames of prefixes since open.
    pub clones: u64,
    /// Those that copied a few values instead of leaving a Goto.
    pub clones_by_value: u64,
    /// How often a clone had to flush its source first.
    pub clone_flushes: u64,
    /// Why no change is taken any more ([`crate::Error::Stopped`]), if that is so.
    pub stopped: Option<String>,
    /// Pages and headers of nodes that could not be read, or did not match their checksum, when they were read
    /// last, as far as they are remembered. (`Db::check` looks at all.)
    pub unreadable: u64,
    /// Batches whose clones made a search for long keys necessary since open: bounds did not show that all
    /// stay within [`crate::MAX_KEY`].
    pub length_searches: u64,
    /// Batches since open that were coalesced with the batch before: see [`crate::Batch::may_coalesce`].
    pub batches_coalesced: u64,
    /// Edges of nodes and messages about ranges of keys that structural work went through since open, and messages
    /// in memory that clones copied, each time they did: what bursts of clones and deletes cost the processor.
    pub items_handled: u64,
    /// Deleted keys that cursors have skipped since open, on the way to the next pair: their deletes wait to be
    /// pushed down.
    pub deletes_passed: u64,
    /// Pieces found in the cache since open.
    pub cache_hits: u64,
    /// Of these, single entries of pages that were not in it as a whole.
    pub row_hits: u64,
    /// Bytes of the cache in use by single entries of pages: small values that point queries have had to
    /// read, and keys that were not there. Part of `cache_used`.
    pub row_bytes: u64,
    /// Pieces read from the device since open.
    pub cache_misses: u64,
    /// Sequence number of the newest batch.
    pub msn: u64,
    /// What the device has served since open.
    pub device: DeviceStats,
}
