//! The memory budget: how the parts of a store share it.
//!
//! There is one budget, [`crate::Options::cache_bytes`], for three parts. Memtables and dirty nodes come
//! first, each up to a limit of its own, because their contents cannot be dropped. The cache of clean pages has what
//! these two leave, less the memory that an edit of the DAG may need and half of the tables' size (the heap keeps
//! that much beside them), but always a quarter of the budget. A store that is only read has all of it as cache.
//! Guarantees: together the parts exceed the budget by a sixteenth at most (tables have a quarter of it, dirty nodes
//! three eighths, an edit half of that), and by a batch or two, since clean pages are dropped only with the next
//! batch. If the budget is small, they exceed it by the thirteen nodes that an edit needs at least, and by seven
//! tables of half a MiB. Not counted are the log's buffers, the pages of one table that writers have built, a
//! thousandth of the budget for the ghost list (a 256th at most), and what the allocator keeps. May use: the
//! superversion, the pager. No I/O.

use crate::{dag::tree::MIN_EDIT_NODES, db::engine::Engine};

/// Sealed memtables that may wait for the flusher before writers wait too. Many small ones rather than
/// a few large ones in the same memory: the flusher has work sooner, and does not stand still while one fills
/// up.
pub(crate) const MAX_SEALED_TABLES: usize = 6;
/// Sealed tables that may wait however small they are: a clone seals a table early where much of it is about
/// its source, and every reader looks into each.
pub(crate) const MAX_SMALL_SEALED_TABLES: usize = 64;
/// The limit for a clone, which does not wait behind writers that fill tables.
pub(crate) const MAX_SEALED_TABLES_FOR_CLONES: usize = 2 * MAX_SMALL_SEALED_TABLES;
/// Part (1/n) of the budget that one memtable may have.
const TABLE_SHARE: u64 = 28;
/// Part (1/n) of the budget that all tables together may have.
const TABLES_SHARE: u64 = 4;
/// Part (1/n) of the limit of dirty nodes that they may always take: with less, flushing could not make progress.
const LEAST_DIRTY_SHARE: u64 = 3;
/// Part (1/n) that clean data has at least.
const CLEAN_SHARE: u64 = 4;
/// Part (1/n) of what tables take that the heap keeps besides: they are freed by another thread than the one
/// that fills them, and in another order.
const HEAP_WASTE_SHARE: u64 = 2;
/// Smallest change (1/n of the budget) of the cache's share that is passed to the cache.
const SHRINK_SHARE: u64 = 256;
const GROW_SHARE: u64 = 64;
/// Least that a table may have, however small the budget: every table is work below.
const MIN_TABLE_BYTES: u64 = 1 << 19;

/// Part (1/n) of the budget that the log's buffer may have before a writer writes it out, and its bounds.
const LOG_SHARE: u64 = 32;
const MIN_LOG_BYTES: u64 = 1 << 20;
const MAX_LOG_BYTES: u64 = 8 << 20;

/// Bytes that dirty nodes may take before flushing waits for a checkpoint.
fn max_dirty(budget: u64) -> u64 {
    budget / 8 * 3
}

/// Nodes that one edit may change: half of those that may be dirty, but at least a path from the root to a leaf,
/// because flushing could otherwise make no progress. If an edit stops early, more messages wait in the nodes that
/// readers pass.
pub(crate) fn edit_nodes(budget: u64, node: usize) -> usize {
    (edit_bytes(budget) / node as u64).max(MIN_EDIT_NODES as u64) as usize
}

/// Bytes of memory that the nodes of one edit may take: a node with messages takes several times its size.
pub(crate) fn edit_bytes(budget: u64) -> u64 {
    max_dirty(budget) / 2
}

/// Nodes' worth of messages that may wait in one interior node, where the data is much larger than the
/// memory.
const MAX_PENDING_NODES: u64 = 4;
/// And part (1/n) of the device that they may have, so that what an edit makes dirty is a fraction of the
/// reserve.
const PENDING_SHARE: u64 = 512;

/// Bytes of messages that may wait in an interior node of a store of `size` bytes, of which `used` hold
/// something.
///
/// A flush reads and writes a leaf for the messages that wait above it. The more there are, the less this costs for
/// each message, but the more messages a reader meets. So the limit is the size of one node, as in the literature on
/// B-epsilon-trees, as long as the cache has half of the data, and more if most leaves have to be read to be written
/// (`docs/decisions/pending-messages.md` has the figures).
fn most_pending(used: u64, budget: u64, size: u64, node: usize) -> usize {
    let node = node as u64;
    let wanted = u128::from(node) * u128::from(used.saturating_sub(budget)) / u128::from(budget.max(1));
    let most = (MAX_PENDING_NODES * node).min(size / PENDING_SHARE);
    wanted.min(most.into()).max(node.into()) as usize
}

/// Bytes that an edit may come to need while it is made: its nodes, and what it moves from one into another.
fn edit_memory(budget: u64, node: usize) -> u64 {
    ((edit_nodes(budget, node) + 1) * node) as u64
}

impl Engine {
    /// Size at which a table in memory is sealed at the latest.
    pub fn table_limit(&self) -> usize {
        let share = (self.options.cache_bytes / TABLE_SHARE).max(MIN_TABLE_BYTES);
        self.options.memtable_bytes.min(usize::try_from(share).unwrap_or(usize::MAX))
    }

    /// Bytes in the log's buffer at which a writer writes them out: a thread does so before, as a rule.
    pub(crate) fn max_buffered(&self) -> usize {
        (self.options.cache_bytes / LOG_SHARE).clamp(MIN_LOG_BYTES, MAX_LOG_BYTES) as usize
    }

    /// True if flushing has to wait for a checkpoint: dirty nodes have as much memory as they may.
    pub fn is_full_of_dirt(&self) -> bool {
        self.dirty.memory() >= self.max_dirty()
    }

    /// Bytes that dirty nodes may take now: less while tables that came from the log have more than the share of
    /// tables.
    pub(crate) fn max_dirty(&self) -> u64 {
        let budget = self.options.cache_bytes;
        let recovered = self.memtable_sizes.recovered_bytes() as u64;
        let most = max_dirty(budget);
        most.saturating_sub(recovered.saturating_sub(budget / TABLES_SHARE)).max(most / LEAST_DIRTY_SHARE)
    }

    /// Bytes that tables may take that came from the log, when it is replayed and nothing else needs memory yet.
    pub(crate) fn max_recovered(&self) -> u64 {
        self.options.cache_bytes / 2
    }

    /// Bytes of messages that may wait in an interior node.
    pub(crate) fn most_pending(&self) -> usize {
        let size = self.backed_size();
        most_pending(self.space.used_bytes(), self.options.cache_bytes, size, self.limits.node)
    }

    /// Gives clean data what tables and dirty nodes leave.
    pub fn share_memory(&self) {
        let budget = self.options.cache_bytes;
        let tables = self.memtable_sizes.bytes() as u64;
        let mut taken = self.dirty.memory() + tables + tables / HEAP_WASTE_SHARE;
        if taken > 0 {
            taken += edit_memory(budget, self.limits.node);
        }
        let left = budget.saturating_sub(taken).max(budget / CLEAN_SHARE);
        let has = self.pager.budget();
        if has.saturating_sub(left) > budget / SHRINK_SHARE || left.saturating_sub(has) > budget / GROW_SHARE
        {
            self.pager.set_budget(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::db::budget::memory::most_pending;

    #[test]
    fn more_may_wait_where_the_cache_has_less_of_the_data() {
        const MIB: u64 = 1 << 20;
        let mib = |used: u64, size: u64| most_pending(used * MIB, 64 * MIB, size * MIB, 1 << 20) as u64 / MIB;
        assert_eq!(
            [0, 64, 128, 192, 256, 320, 1 << 20].map(|used| mib(used, 1 << 20)),
            [1, 1, 1, 2, 3, 4, 4]
        );
        assert_eq!(mib(400, 512), 1, "on a small device the reserve would be too little for it");
        assert_eq!(most_pending(u64::MAX, 0, u64::MAX, 1 << 20), 4 << 20);
    }
}
