//! What the next checkpoint has to write: dirty nodes, the memory they hold and the bytes they will take.
//!
//! Guarantees: the sums are those of the nodes in the list. May use: nodes and their layout on the device. No
//! I/O.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    device::BLOCK,
    locks::Mutex,
    node::{Node, NodeId},
    store::layout::bytes_to_write,
};

/// What the fixed part of a node's header takes at most, in bytes.
const NODE_HEADER_BYTES: usize = 128;

/// A dirty node, the memory it holds and the bytes it will take on the device.
pub(crate) type Weighed = (Arc<Node>, usize, usize);

/// Sizes of the nodes that the next checkpoint must write.
#[derive(Default)]
pub(crate) struct Dirty {
    nodes: Mutex<HashMap<NodeId, Weighed>>,
    memory: AtomicU64,
    bytes: AtomicU64,
    count: AtomicU64,
}

impl Dirty {
    /// Bytes of memory that dirty nodes hold.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes that writing them takes at most.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Nodes that are dirty.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// What to note of new versions: this goes through their pages, so it is done before a lock is taken.
    pub fn weigh(
        versions: Vec<(NodeId, Option<Arc<Node>>)>,
        node_size: usize,
    ) -> Vec<(NodeId, Option<Weighed>)> {
        let weighed = |node: Arc<Node>| {
            // A node takes whole blocks, and some of it is header.
            let bytes =
                (bytes_to_write(&node, node_size) + NODE_HEADER_BYTES).next_multiple_of(BLOCK as usize);
            let memory = node.memory();
            (node, memory, bytes)
        };
        versions.into_iter().map(|(id, version)| (id, version.map(weighed))).collect()
    }

    /// Bytes by which [`Dirty::bytes`] would grow, and nodes by which [`Dirty::count`] would, if these versions were
    /// noted.
    pub fn growth(&self, versions: &[(NodeId, Option<Weighed>)]) -> (i64, i64) {
        let nodes = self.nodes.lock();
        let mut growth = (0, 0);
        for (id, version) in versions {
            if let Some((_, _, bytes)) = version {
                growth = (growth.0 + *bytes as i64, growth.1 + 1);
            }
            if let Some((_, _, bytes)) = nodes.get(id) {
                growth = (growth.0 - *bytes as i64, growth.1 - 1);
            }
        }
        growth
    }

    /// Notes new versions, and nodes that are gone (`None`).
    pub fn note(&self, versions: Vec<(NodeId, Option<Weighed>)>) {
        let mut nodes = self.nodes.lock();
        for (id, version) in versions {
            let old = match version {
                Some((node, memory, bytes)) => {
                    self.memory.fetch_add(memory as u64, Ordering::Relaxed);
                    self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                    nodes.insert(id, (node, memory, bytes))
                }
                None => nodes.remove(&id),
            };
            self.forget(old);
        }
        self.count.store(nodes.len() as u64, Ordering::Relaxed);
    }

    /// Notes that this version has been written.
    pub fn written(&self, id: NodeId, version: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        if nodes.get(&id).is_some_and(|(node, ..)| Arc::ptr_eq(node, version)) {
            let old = nodes.remove(&id);
            self.count.store(nodes.len() as u64, Ordering::Relaxed);
            self.forget(old);
        }
    }

    fn forget(&self, old: Option<Weighed>) {
        if let Some((_, memory, bytes)) = old {
            let had = self.memory.fetch_sub(memory as u64, Ordering::Relaxed);
            assert!(had >= memory as u64, "a dirty node goes that was not counted");
            let had = self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            assert!(had >= bytes as u64, "a dirty node goes whose bytes were not counted");
        }
    }
}
