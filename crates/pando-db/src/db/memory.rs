//! Who may have how much of the memory that the store was given.
//!
//! There is one budget, [`crate::Options::cache_bytes`], and three who want it. Tables in memory and dirty
//! nodes come first, each up to a limit of its own: what they hold cannot be dropped. Readers' cache of clean
//! data has all that these two leave, less what an edit of the DAG may come to need, and a quarter of the budget
//! always. A store that is only read has all of it as cache.
//!
//! Guarantees: all together exceed the budget by a sixteenth at most (tables have a quarter of it, dirty nodes three
//! eighths, an edit half of that), and by a batch or two, for whose sake clean data goes only with the next; where
//! the budget is small, by the twelve nodes that an edit needs at least, and by tables of a MiB. Beyond it are the
//! log's buffers, and what the allocator keeps. May use: the front, the pager. No I/O.

use super::engine::Engine;

/// Sealed in-memory tables that may wait for the flusher before writers wait too.
pub(super) const MAX_SEALED: usize = 3;
/// Part (1/n) of the budget that one in-memory table may have.
const TABLE_SHARE: u64 = 16;
/// Part (1/n) that clean data has at least.
const CLEAN_SHARE: u64 = 4;
/// Smallest changes (1/n of the budget) of which the cache is told.
const WORTH_SHRINKING: u64 = 256;
const WORTH_GROWING: u64 = 64;
/// Least that a table may have, however small the budget: every table is work below.
const LEAST_TABLE: u64 = 1 << 20;

/// Part (1/n) of the budget that the log's buffer may have before a writer writes it out, and its bounds.
const LOG_SHARE: u64 = 32;
const LEAST_LOG: u64 = 1 << 20;
const MOST_LOG: u64 = 8 << 20;

/// Bytes that dirty nodes may take before flushing waits for a checkpoint.
fn max_dirty(budget: u64) -> u64 {
    budget / 8 * 3
}

/// Nodes that one edit may change: half of what may be dirty, but enough for a path from the root to
/// a leaf, or flushing would not get on. Where an edit stops early, more messages wait in the nodes that readers
/// pass.
pub(super) fn edit_nodes(budget: u64, node: usize) -> usize {
    (max_dirty(budget) / (2 * node as u64)).max(12) as usize
}

/// Bytes that an edit may come to need while it is made.
fn edit_memory(budget: u64, node: usize) -> u64 {
    (edit_nodes(budget, node) * node) as u64
}

impl Engine {
    /// Size at which a table in memory is sealed at the latest.
    pub fn table_limit(&self) -> usize {
        let share = (self.options.cache_bytes / TABLE_SHARE).max(LEAST_TABLE);
        self.options.memtable_bytes.min(usize::try_from(share).unwrap_or(usize::MAX))
    }

    /// Bytes in the log's buffer at which a writer writes them out: a thread does so before, as a rule.
    pub(super) fn max_buffered(&self) -> usize {
        (self.options.cache_bytes / LOG_SHARE).clamp(LEAST_LOG, MOST_LOG) as usize
    }

    /// True if flushing has to wait for a checkpoint: dirty nodes have as much memory as they may.
    pub fn is_full_of_dirt(&self) -> bool {
        self.dirty.memory() >= self.max_dirty()
    }

    pub(super) fn max_dirty(&self) -> u64 {
        max_dirty(self.options.cache_bytes)
    }

    /// Gives clean data what tables and dirty nodes leave.
    pub fn share_memory(&self) {
        let budget = self.options.cache_bytes;
        let mut taken = self.dirty.memory() + self.front.read().table_bytes() as u64;
        if taken > 0 {
            taken += edit_memory(budget, self.limits.node);
        }
        let left = budget.saturating_sub(taken).max(budget / CLEAN_SHARE);
        let has = self.pager.budget();
        if has.saturating_sub(left) > budget / WORTH_SHRINKING
            || left.saturating_sub(has) > budget / WORTH_GROWING
        {
            self.pager.set_budget(left);
        }
    }
}
