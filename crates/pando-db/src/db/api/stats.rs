//! `Db::stats`: gathers [`Stats`] from the parts of the engine.

use std::sync::atomic::Ordering;

use crate::{
    db::{engine::Engine, handle::Db},
    error::Result,
    pool,
    stats::Stats,
};

impl Db {
    /// Figures about the store and what it has done since it was opened. Cost: the headers of all interior nodes that
    /// are not cached.
    pub fn stats(&self) -> Result<Stats> {
        stats(self.engine())
    }
}

fn stats(engine: &Engine) -> Result<Stats> {
    let view = engine.view();
    let table_bytes = view.tree.table.page_bytes();
    let mut stats = Stats {
        device_size: engine.space.end(),
        used: engine.space.end().saturating_sub(engine.space.free_bytes()),
        node_bytes: engine.space.used_bytes().saturating_sub(table_bytes),
        available: engine.available(),
        node_size: engine.limits.node as u64,
        log_size: 4 * engine.log.max_payload() as u64,
        log_used: engine.log.used(),
        cache_used: engine.pager.cached_bytes(),
        page_memory: pool::resident(),
        page_memory_in_use: pool::in_use(),
        direct_io: engine.device.is_direct(),
        cache_budget: engine.options.cache_bytes,
        checkpoints: engine.counters.checkpoints.load(Ordering::Relaxed),
        clones: engine.counters.clones.load(Ordering::Relaxed),
        clones_by_value: engine.counters.by_value.load(Ordering::Relaxed),
        clone_flushes: engine.counters.push_downs.load(Ordering::Relaxed),
        stopped: engine.log.stopped(),
        unreadable: engine.pager.damage_known(),
        length_searches: engine.counters.length_searches.load(Ordering::Relaxed),
        batches_coalesced: engine.counters.coalesced.load(Ordering::Relaxed),
        items_handled: engine.counters.handled.load(Ordering::Relaxed),
        deletes_passed: engine.counters.deletes_passed.load(Ordering::Relaxed),
        msn: engine.log.appended_msn(),
        device: engine.device.stats(),
        ..Stats::default()
    };
    (stats.cache_hits, stats.cache_misses) = engine.pager.hit_counts();
    (stats.row_hits, stats.row_bytes) = engine.pager.row_counts();
    stats.tables = engine.memtable_sizes.bytes() as u64;
    stats.dirty = engine.dirty.memory() + stats.tables;
    let goto = |r: &crate::node::RangeMsg| r.target.is_some();
    for table in &view.tables {
        stats.gotos_pending += table.clones().count() as u64;
        stats.updates_pending += table.updates.len() as u64;
    }
    let mut interior = Vec::new();
    view.tree.table.for_each(|id, entry| {
        let height = usize::from(entry.height);
        if stats.nodes_by_height.len() <= height {
            stats.nodes_by_height.resize(height + 1, 0);
        }
        stats.nodes_by_height[height] += 1;
        stats.shared_nodes += u64::from(entry.count > 1);
        stats.reclaimable_nodes += u64::from(entry.count == 0);
        if height > 0 {
            interior.push(id);
        }
    });
    let (walked, kept) = (stats.shared_nodes, view.tree.table.shared());
    assert_eq!(walked, kept, "the table miscounts its shared nodes");
    for id in interior {
        let node = engine.pager.node(&view.tree.table, id)?.node;
        for layer in node.edges().iter().flat_map(|e| &e.layers) {
            stats.gotos_pending += layer.ranges.iter().filter(|r| goto(r)).count() as u64;
            stats.updates_pending += layer.updates.len() as u64;
        }
    }
    Ok(stats)
}
