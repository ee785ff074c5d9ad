//! The space budget: what is reserved on the device, what the dirty nodes and memtables will take, and what is left.
//!
//! A checkpoint writes dirty nodes to new places while the last checkpoint still holds the old ones, so even a delete
//! takes space before it frees any. Therefore a reserve is kept back from ordinary writes, and a part of it even from
//! deletes, for the edits that these lead to. This module only computes: callers that find too little space wait or
//! make a checkpoint. May use: the state of the engine. The only I/O: the medium is asked to back space.

use std::sync::atomic::Ordering;

use crate::{
    dag::tree::MIN_EDIT_NODES,
    db::engine::Engine,
    device::{BLOCK, Device},
    error::{Error, Result},
};

/// Largest reserve, in bytes.
const MAX_RESERVE_BYTES: u64 = 256 << 20;
/// Bytes that the log may keep in extents before a checkpoint is asked for.
const MAX_HELD_BYTES: u64 = 256 << 20;

/// Nodes that the reserve holds at least, if that is not over a quarter of the device.
const RESERVE_NODES: u64 = 48;
/// The same on a small device, if that is not over half of it: the nodes of one edit, and four more for the splits
/// that deletes may cause.
const LEAST_RESERVE_NODES: u64 = MIN_EDIT_NODES as u64 + 4;
/// Space is nearly short where less than 1/n of the reserve is left for ordinary writes.
const NEARLY_FRACTION: u64 = 2;
/// Nodes that an edit may make dirty beyond its limit, because the last node that it changed was split.
pub(crate) const SPLIT_NODES: u64 = 2;

/// Bytes that are reserved on a device of `size` bytes, or on one whose medium can hold only `size`.
fn reserve(size: u64, node: usize) -> u64 {
    let (least, small) = (RESERVE_NODES * node as u64, LEAST_RESERVE_NODES * node as u64);
    (size / 16).clamp(least, MAX_RESERVE_BYTES.max(least)).min((size / 4).max(small)).min(size / 2)
}

/// Nodes that one edit may change: as many as fill a quarter of the reserve, as a rule, so that the rest of the
/// reserve has room for the splits of the last one and for pages of the translation table. At least enough for a
/// path from the root to a leaf, because flushing could not go on with fewer.
pub(crate) fn edit_nodes(size: u64, node: usize) -> usize {
    (reserve(size, node) / (4 * node as u64)).clamp(MIN_EDIT_NODES as u64, 256) as usize
}

/// What the medium can hold of a device of `size` bytes, for [`Engine::capacity`]. The reserve is a share of the size:
/// if the host of a sparse image is smaller than the image, a share of the image's size would be too much.
pub(crate) fn capacity(device: &dyn Device, size: u64) -> Result<u64> {
    let capacity = device.capacity().map_err(|e| Error::io("ask for the capacity", 0, e))?;
    Ok(if capacity < size { capacity } else { u64::MAX })
}

impl Engine {
    /// Bytes that are reserved so that deletes and checkpoints always go through.
    pub fn reserve(&self) -> u64 {
        reserve(self.backed_size(), self.limits.node)
    }

    /// Bytes for what one edit makes dirty, and for a checkpoint of that. Not even deletes may use them: they are let
    /// in because they free space, and the edit that flushes them needs these bytes to do so.
    pub(crate) fn edit_reserve(&self) -> u64 {
        (self.reserve() / 2).max(self.min_edit_reserve()).min(self.reserve())
    }

    /// Bytes for the nodes that one edit makes dirty, and for their table pages.
    pub(crate) fn min_edit_reserve(&self) -> u64 {
        let nodes = self.limits.edit_nodes as u64 + SPLIT_NODES;
        nodes * self.limits.node as u64 + self.table_pages(nodes) * BLOCK
    }

    /// Bytes that edits leave for a batch that removes the last reference to data, such as a snapshot, where other
    /// deletes free nothing: those of its edit, and of [`SPLIT_NODES`] more.
    pub(crate) fn release_reserve(&self) -> u64 {
        self.min_edit_reserve() + SPLIT_NODES * self.limits.node as u64
    }

    /// Bytes that the medium is asked to reserve beyond what is needed: if the host of a sparse store becomes full, a
    /// little can still be written, and again after everything was deleted.
    pub(crate) fn working_space(&self) -> u64 {
        (2 * self.limits.node as u64 + 8 * BLOCK).min(self.reserve())
    }

    /// Bytes that the dirty nodes and memtables may still take on the device.
    pub(crate) fn owed(&self) -> u64 {
        let tables = self.memtable_sizes.bytes() as u64;
        self.owed_by_nodes() + tables + tables / 4
    }

    /// Most bytes that the next checkpoint writes, if nothing more is flushed before it.
    fn owed_by_nodes(&self) -> u64 {
        self.dirty.bytes() + self.table_pages(self.dirty.count()) * BLOCK
    }

    /// Whether there is space for all dirty nodes, if they grow by so many bytes and nodes, and `kept` bytes are left.
    pub(crate) fn has_space_for(&self, (bytes, nodes): (i64, i64), kept: u64) -> bool {
        if bytes <= 0 || self.options.read_only {
            return true;
        }
        let pages = self.table_pages(self.dirty.count().saturating_add_signed(nodes));
        self.space.free_bytes() >= self.dirty.bytes().saturating_add_signed(bytes) + pages * BLOCK + kept
    }

    /// True if more dirty nodes could become too many for the space that is left.
    pub fn is_tight(&self) -> Result<bool> {
        // A read-only store keeps what it has replayed in memory, and never writes it.
        if self.options.read_only {
            return Ok(false);
        }
        let owed = self.owed_by_nodes();
        let wanted = owed + self.edit_reserve();
        Ok(owed > 0 && !(self.space.free_bytes() >= wanted && self.space.ensure_backed(wanted)?))
    }

    /// True if the dirty nodes take a part of the reserve.
    pub fn is_short(&self) -> bool {
        self.space.free_bytes() < self.owed_by_nodes() + self.reserve()
    }

    /// True if ordinary writes are refused, or soon will be: all that they may still take is less than a half
    /// (1 / [`NEARLY_FRACTION`]) of the reserve.
    pub fn is_nearly_short(&self) -> bool {
        let reserve = self.reserve();
        self.space.free_bytes() < self.owed_by_nodes() + reserve + reserve / NEARLY_FRACTION
    }

    /// Most pages of the translation table that the next checkpoint writes: one a level for each of `dirty` nodes,
    /// and no more than the table has.
    fn table_pages(&self, dirty: u64) -> u64 {
        let (mut pages, mut below) = (0, self.next_id.load(Ordering::Relaxed));
        while below > 1 {
            below = below.div_ceil(crate::store::table::SLOTS as u64);
            pages += below.min(dirty);
        }
        pages
    }

    /// Bytes that ordinary writes may still take.
    pub fn available(&self) -> u64 {
        self.space.free_bytes().saturating_sub(self.owed() + self.reserve())
    }

    /// Size in bytes at which the active table is sealed: smaller when space is short, so that the tables in memory
    /// need less of it.
    pub fn seal_threshold(&self) -> usize {
        let share = (self.space.free_bytes() / 32).max(64 << 10) as usize;
        self.table_limit().min(share)
    }

    /// Bytes that the log may keep outside its ring before a checkpoint is asked for. Recovery reads all of them.
    pub(crate) fn max_held(&self) -> u64 {
        MAX_HELD_BYTES.min(self.space.end() / 8).max(1)
    }

    /// True if the log or the dirty nodes have grown enough for a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.log_wants_checkpoint() || self.nodes_want_checkpoint()
    }

    /// True if the log has grown enough: a checkpoint shortens it only after the memtables have reached the DAG.
    pub(crate) fn log_wants_checkpoint(&self) -> bool {
        self.log.used() > self.log_size() / 2 || self.log.held_bytes() >= self.max_held()
    }

    fn nodes_want_checkpoint(&self) -> bool {
        self.dirty.memory() > self.max_dirty() / 2
    }

    pub(crate) fn log_size(&self) -> u64 {
        // A quarter of the log is its longest payload.
        4 * self.log.max_payload() as u64
    }
}
