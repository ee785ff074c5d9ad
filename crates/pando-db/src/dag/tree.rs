//! A version of the DAG: the root, the table, and up to which batch they hold everything.

use crate::{
    format::node::NodeId,
    store::{log::LogPos, table::Table},
};

/// One immutable version. Cloning is O(1).
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub table: Table,
    pub root: NodeId,
    /// The newest batch that is in the nodes.
    pub msn: u64,
    /// Where the log goes on behind that batch.
    pub log_end: LogPos,
}

/// Sizes that structural work keeps to. All in bytes but the fanout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Largest leaf.
    pub node: usize,
    /// Most pending messages of an interior node before they are flushed.
    pub pending: usize,
    /// Most edges of an interior node.
    pub fanout: usize,
    /// Pending messages that justify a private copy of a shared child (copy-on-abundant-write).
    pub abundant: usize,
    /// Nodes that one edit changes before it stops cascading and leaves the rest to the next.
    pub edit_nodes: usize,
}

impl Limits {
    /// Limits for a target node size.
    pub fn new(node_size: u32, abundant: Option<usize>) -> Self {
        let node = node_size as usize;
        Self {
            node,
            pending: node,
            fanout: (node >> 15).clamp(8, 64),
            abundant: abundant.unwrap_or(node / 16),
            edit_nodes: 256,
        }
    }
}
