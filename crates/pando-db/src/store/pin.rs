//! Pins: references to nodes from memory, where no reference count of the table reaches.
//!
//! A Goto in the in-memory table refers to its target without being counted,
//! because a checkpoint's counts cover its own nodes only and recovery makes
//! the Goto anew from the log. While a [`Pin`] lives, its node is treated as
//! shared: it is neither changed in place nor reclaimed.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::format::node::NodeId;

/// All pins of a store.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    counts: Mutex<HashMap<NodeId, usize>>,
}

/// One pin; dropping it lets go.
#[derive(Debug)]
pub(crate) struct Pin {
    id: NodeId,
    pins: Weak<Pins>,
}

impl Pins {
    pub fn pin(self: &Arc<Self>, id: NodeId) -> Arc<Pin> {
        *self.counts.lock().entry(id).or_default() += 1;
        Arc::new(Pin { id, pins: Arc::downgrade(self) })
    }

    /// Every node that has a pin.
    pub fn all(&self) -> Vec<NodeId> {
        self.counts.lock().keys().copied().collect()
    }

    pub fn is_pinned(&self, id: NodeId) -> bool {
        self.counts.lock().contains_key(&id)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(pins) = self.pins.upgrade() else { return };
        let mut counts = pins.counts.lock();
        if let std::collections::hash_map::Entry::Occupied(mut entry) = counts.entry(self.id) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}
