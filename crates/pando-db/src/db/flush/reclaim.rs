//! Taking nodes without references out of the store. Their space comes back with the next checkpoint.

use std::sync::atomic::Ordering;

use crate::{
    db::engine::Engine,
    error::{Error, Result},
    node::NodeId,
    waiting,
};

/// Nodes that one step takes out.
pub(crate) const RECLAIM_NODES: usize = 64;

impl Engine {
    /// Reclaims all nodes without references, also those that lose their last one by this, but no nodes that are made
    /// meanwhile: otherwise this might never end.
    pub fn reclaim_all(&self) -> Result<()> {
        let end = self.next_id.load(Ordering::SeqCst);
        while self.reclaim_before(end)? {}
        Ok(())
    }

    /// Takes some nodes without references out of the store; `false` if there are none that can be.
    pub fn reclaim_step(&self) -> Result<bool> {
        self.reclaim_before(NodeId::MAX)
    }

    /// Reclaims nodes with numbers below `end`.
    fn reclaim_before(&self, end: NodeId) -> Result<bool> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        let some: Vec<NodeId> = {
            let mut orphans = self.orphans.lock();
            let some: Vec<_> = orphans.range(..end).copied().take(RECLAIM_NODES).collect();
            some.iter().for_each(|id| {
                orphans.remove(id);
            });
            some
        };
        if some.is_empty() {
            return Ok(false);
        }
        let mut reclaimed = self.edit(|edit| edit.reclaim(&some), |_| ());
        if reclaimed.as_ref().is_err_and(Error::is_damage) {
            // One by one: the children of a node that cannot be read are unknown, so it stays with everything that it
            // owns.
            let one = |id| match self.edit(|edit| edit.reclaim(&[id]), |_| ()) {
                Err(error) if error.is_damage() => Ok(()),
                other => other,
            };
            reclaimed = some.iter().copied().try_for_each(one);
        }
        match &reclaimed {
            Ok(()) => _ = self.counters.reclaimed.fetch_add(some.len() as u64, Ordering::Relaxed),
            Err(_) => self.orphans.lock().extend(some),
        }
        reclaimed.map(|()| true)
    }

    /// Takes out what nothing refers to, so that the next checkpoint gives it back; the bytes that were free before.
    pub(crate) fn take_out_unreferenced(&self) -> Result<u64> {
        let before = self.space.free_bytes();
        drop(self.views.left_by_readers());
        match self.reclaim_all() {
            // Some may have been taken out.
            Ok(()) | Err(Error::NoSpace) => Ok(before),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Batch, CreateOptions, Db, Options, device::MemDevice};

    /// The call that reclaims all nodes ends although other threads free more and more: their nodes are newer.
    #[test]
    fn nodes_that_are_freed_meanwhile_are_left_to_the_next() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).expect("memory");
        let db = Db::open(device, options).expect("a store");
        let write = |tree: &str| {
            (0..4_000).for_each(|i| db.put(format!("{tree}/{i:05}"), vec![7; 400]).expect("room"));
            db.checkpoint().expect("room");
        };
        write("old");
        let engine = db.engine();
        let end = engine.next_id.load(Ordering::SeqCst);
        write("new");
        let mut batch = Batch::new();
        batch.delete_prefix("old/").delete_prefix("new/");
        db.write(batch).expect("room");
        db.checkpoint().expect("room");
        let newer = || engine.orphans.lock().range(end..).count();
        let before = newer();
        assert!(before > 0 && engine.orphans.lock().first().is_some_and(|id| *id < end), "nodes of both");
        while engine.reclaim_before(end).expect("readable") {}
        assert!(engine.orphans.lock().first().is_some_and(|id| *id >= end) && newer() >= before);
        engine.reclaim_all().expect("readable");
        assert!(engine.orphans.lock().is_empty());
        assert!(db.check().expect("readable").findings.is_empty());
    }
}
