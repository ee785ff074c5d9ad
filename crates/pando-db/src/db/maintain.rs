//! Structural work: flushing sealed tables into the DAG, reclaiming what nothing refers to. Carrying deletes
//! further is [`super::tidy`]'s.
//!
//! One at a time, under the `flushing` lock, each step bounded; the result is
//! published at once, and made again if a clone pinned a node meanwhile.
//!
//! An edit asserts the invariants of all that it touches. No checksum can prove
//! those of an image that somebody made, so an assertion that fails here is an
//! error of the store: nothing has been published, and the edit is dropped.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    engine::{Engine, Front},
    signal::Work,
};
use crate::{
    dag::edit::Edit,
    error::{Error, Result},
    format::node::NodeId,
};

/// Nodes that one reclaim step takes out.
const RECLAIM_STEP: usize = 64;

impl Engine {
    /// Applies the oldest sealed table to the DAG; `false` if there is none.
    pub fn flush_step(&self) -> Result<bool> {
        let _turn = self.flushing.lock();
        let Some(table) = self.front.read().sealed.front().cloned() else { return Ok(false) };
        // What came in bulk is taken over as the log has placed it.
        if self.log.has_aside() {
            self.log.write_out()?;
        }
        let layer = table.to_layer(self.pager.page_target(), |points| self.bulk.page_at(points))?;
        let done = |front: &mut Front| {
            let applied = front.sealed.pop_front();
            debug_assert!(applied.is_some_and(|t| Arc::ptr_eq(&t, &table)));
            let tree = Arc::make_mut(&mut front.tree);
            (tree.msn, tree.log_end) = (table.msn, table.log_end);
        };
        self.edit(|edit| edit.apply_to_root(layer.clone()), done)?;
        self.bulk.forget(table.msn);
        self.signal.finished();
        Ok(true)
    }

    /// Goes on flushing where an edit had to stop; `false` if the root is within its limit.
    pub fn relieve_step(&self) -> Result<bool> {
        let _turn = self.flushing.lock();
        let any = std::cell::Cell::new(false);
        self.edit(|edit| edit.relieve_root().map(|a| any.set(a)), |_| ())?;
        Ok(any.get())
    }

    /// Before more is made dirty: makes a checkpoint where that could fill the device, or where dirty nodes
    /// have as much memory as they may.
    pub fn make_way(&self) -> Result<()> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        if self.is_full_of_dirt() {
            match self.checkpoint_nodes(Engine::is_full_of_dirt) {
                // What can be flushed in memory is.
                Ok(()) | Err(Error::NoSpace) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the messages of memory and root further down by one bounded step; `false` if all is well. What
    /// an edit had to leave in the root goes first: it would grow with every table.
    pub fn sink_messages(&self) -> Result<bool> {
        Ok(self.relieve_step()? || self.flush_step()?)
    }

    /// Applies all sealed tables, with checkpoints between where they have to be.
    pub fn flush_all(&self) -> Result<()> {
        loop {
            self.make_way()?;
            if !self.sink_messages()? {
                return Ok(());
            }
        }
    }

    /// Applies all sealed tables without writing anything: for recovery, where the device may not be
    /// writable.
    pub fn flush_all_in_memory(&self) -> Result<()> {
        while self.sink_messages()? {}
        Ok(())
    }

    /// Flushes everything that waits for `prefix` down to the node that holds all of it.
    pub fn push_down(&self, prefix: &Bytes) -> Result<()> {
        self.counters.push_downs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.seal();
        self.flush_all()?;
        let _turn = self.flushing.lock();
        self.edit(|edit| edit.push_down(prefix), |_| ())
    }

    /// Takes some nodes without references out of the store; `false` if there are none that can be.
    pub fn reclaim_step(&self) -> Result<bool> {
        let _turn = self.flushing.lock();
        let some: Vec<NodeId> = {
            let mut orphans = self.orphans.lock();
            let free = orphans.iter().copied().filter(|id| !self.pins.is_pinned(*id));
            let some: Vec<_> = free.take(RECLAIM_STEP).collect();
            some.iter().for_each(|id| {
                orphans.remove(id);
            });
            some
        };
        if some.is_empty() {
            return Ok(false);
        }
        let reclaimed = self.edit(|edit| edit.reclaim(&some), |_| ());
        // What a clone has pinned meanwhile waits for its turn.
        let tree = self.front.read().tree.clone();
        let left = some.into_iter().filter(|id| tree.table.get(*id).is_some_and(|entry| entry.count == 0));
        self.orphans.lock().extend(left);
        reclaimed.map(|()| true)
    }

    /// Makes an edit and publishes it, again if need be. The caller holds `flushing`.
    pub(super) fn edit(
        &self,
        mut work: impl FnMut(&mut Edit<'_>) -> Result<()>,
        then: impl Fn(&mut Front),
    ) -> Result<()> {
        let cx = self.context();
        loop {
            let base = self.front.read().tree.clone();
            let mut edit = Edit::new(&cx, &base);
            contain(|| work(&mut edit))?;
            let changes = edit.finish();
            if changes.is_empty() || self.publish(changes, &then)? {
                return Ok(());
            }
        }
    }

    /// What a write leaves to do where no threads do it.
    pub fn after_write(&self) -> Result<()> {
        if self.options.background {
            if !self.front.read().sealed.is_empty() {
                self.signal.ask(Work::Flush);
            }
            return Ok(());
        }
        let result = self.maintain_inline();
        if let Err(error) = &result {
            // The batch itself is in; what failed is the store's own work.
            self.fail("flush", error);
        }
        Ok(())
    }

    fn maintain_inline(&self) -> Result<()> {
        self.flush_all()?;
        self.reclaim_step()?;
        if self.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Stops the store, unless the failure is one that passes.
    pub fn fail(&self, during: &str, error: &crate::Error) {
        if !matches!(error, crate::Error::NoSpace) {
            self.stop(during, error);
        }
    }
}

/// Turns a failed assertion into an error. The work must leave nothing behind that matters.
pub(super) fn contain(work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("an assertion failed");
        Err(Error::corrupt("structure", 0, said))
    })
}
