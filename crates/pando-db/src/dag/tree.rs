//! A version of the DAG: the root, the table, and up to which batch they hold everything.

use std::sync::Arc;

use crate::{
    error::{Error, Result},
    node::{Node, NodeId},
    store::{
        log::LogPos,
        pager::{Handle, Pager},
        table::Table,
    },
};

/// One immutable version. Cloning is O(1).
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub table: Table,
    pub root: NodeId,
    /// The newest batch that is in the nodes.
    pub msn: u64,
    /// The end of that batch in the log.
    pub log_end: LogPos,
    /// Held by each version of this store.
    pub versions: Versions,
}

/// Counts the versions of a store that are held, mostly by readers. A held version keeps all nodes that were replaced
/// since.
#[derive(Debug, Clone, Default)]
pub(crate) struct Versions(Arc<()>);

impl Versions {
    /// How many there are, with the newest.
    pub fn count(&self) -> usize {
        Arc::strong_count(&self.0)
    }
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
    /// A node this high is higher than the data needs: [`tall_levels`].
    pub tall: u8,
    /// Pending messages that justify a private copy of a shared child (copy-on-abundant-write).
    pub abundant: usize,
    /// Nodes that one edit changes before it stops cascading and leaves the rest to the next.
    pub edit_nodes: usize,
    /// Most memory of these nodes, in bytes, if they are more than [`MIN_EDIT_NODES`].
    pub edit_bytes: usize,
}

/// Least number of nodes that an edit may change: enough for a path from the root to a leaf, with nodes beside it.
/// With fewer, flushing could not make progress.
pub(crate) const MIN_EDIT_NODES: usize = 12;

/// Least height that counts as tall, in levels: however little there is, clones of clones have some levels.
const MIN_TALL_LEVELS: u8 = 4;
/// Levels above those of a plain tree from which on a node counts as tall.
const SPARE_LEVELS: u32 = 6;
/// Levels above that height in an idle store.
const IDLE_SPARE_LEVELS: u32 = 1;

/// The height from which on a node is higher than `nodes` nodes ask for: that of a tree whose nodes have half of
/// their edges, and [`SPARE_LEVELS`] for what clones put above each other.
pub(crate) fn tall_levels(nodes: u64, fanout: usize) -> u8 {
    levels(nodes, fanout, SPARE_LEVELS).max(MIN_TALL_LEVELS)
}

/// The same in an idle store.
pub(crate) fn idle_levels(nodes: u64, fanout: usize) -> u8 {
    levels(nodes, fanout, IDLE_SPARE_LEVELS)
}

/// The height of such a tree, and `spare` levels.
fn levels(nodes: u64, fanout: usize, spare: u32) -> u8 {
    let wide = (fanout as u64 / 2).max(2);
    let plain = nodes.max(1).ilog(wide) + 1;
    u8::try_from(plain.saturating_add(spare)).unwrap_or(u8::MAX)
}

impl Limits {
    /// Limits for a target node size.
    pub fn new(node_size: u32, abundant: Option<usize>) -> Self {
        let node = node_size as usize;
        Self {
            node,
            pending: node,
            fanout: (node >> 15).clamp(8, 64),
            tall: MIN_TALL_LEVELS,
            abundant: abundant.unwrap_or(node / 16),
            edit_nodes: 256,
            edit_bytes: usize::MAX,
        }
    }
}

/// A node below one of height `above`: heights descend strictly, so that no path can go in circles.
pub(crate) fn child_node(pager: &Pager, table: &Table, id: NodeId, above: Option<u8>) -> Result<Handle> {
    let handle = pager.node(table, id)?;
    if above.is_some_and(|above| handle.node.height >= above) {
        return Err(Error::corrupt("edge", 0, format!("node {id} is not below its parent")));
    }
    Ok(handle)
}

pub(crate) fn out_of_node(id: NodeId, node: &Node, key: &[u8]) -> Error {
    Error::corrupt("edge", 0, format!("an edge leads to {key:?} in node {id}, which holds {:?}", node.span))
}
