//! Lowering a DAG that is higher than its data needs, while the store is idle.
//!
//! Clones of clones, and writes to them, leave levels of nodes with few edges, many of them shared. A write lowers
//! only nodes that it rewrites, and never a shared one. This module lowers each node above some height as
//! `write/lower.rs` says, shared ones in place, unless it would become wider than other nodes. The lowest nodes go
//! first, so that the nodes above find lower children. If no more nodes can be lowered so and the DAG is still much
//! too tall, its tallest path is lowered.
//!
//! Guarantees: a step changes a bounded number of nodes, lowers at least one of them and makes none higher; new nodes
//! are lower than the node that they are made for. So the steps end. A node stays higher than the targets of the
//! Gotos that rest above it. I/O: headers of tall nodes and of their children, and pages at the borders of the ranges
//! that are shown of these.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{dag::edit::Edit, error::Result, node::NodeId};

/// Tall nodes that one step reads, a count.
const MAX_TALL_NODES: usize = 2048;

impl Edit<'_> {
    /// Lowers some of the tall nodes. Returns whether any could be lowered. No node may wait to be reclaimed. Nodes
    /// below which something cannot be read stay as they are.
    pub fn lower(&mut self) -> Result<bool> {
        if self.height(self.root)? <= self.cx.limits.tall || self.cx.pager.knows_damage() {
            return Ok(false);
        }
        let mut any = false;
        for (id, least) in self.tall_nodes()? {
            if self.is_large() {
                break;
            }
            any |= self.exists(id) && self.lower_node(id, least, false)?;
        }
        if any { Ok(true) } else { self.lower_above(0) }
    }

    /// The tall nodes, lowest first, each with the least height that the Gotos above it allow. If there are many,
    /// only the tallest.
    fn tall_nodes(&self) -> Result<Vec<(NodeId, u8)>> {
        let mut queue = BTreeMap::from([((Reverse(self.height(self.root)?), self.root), 0)]);
        let mut found = Vec::new();
        // All nodes that refer to a node are higher, and were visited before it.
        while let Some(((Reverse(_), id), least)) = queue.pop_first() {
            if found.len() >= MAX_TALL_NODES {
                break;
            }
            found.push((id, least));
            for edge in self.peek(id)?.edges() {
                let above = self.least_below(edge)?;
                for target in edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref()) {
                    let height = self.height(target.id)?;
                    if height > self.cx.limits.tall {
                        queue.entry((Reverse(height), target.id)).or_insert(0);
                    }
                }
                let Some(child) = &edge.child else { continue };
                let height = self.height(child.id)?;
                if height > self.cx.limits.tall {
                    let least = queue.entry((Reverse(height), child.id)).or_insert(0);
                    *least = above.max(*least);
                }
            }
        }
        found.reverse();
        Ok(found)
    }
}
