//! Lowering a DAG that is higher than its data asks for, while nothing else is to be done.
//!
//! Clones of clones, and what is written over them, leave nodes of few edges above each other, many of them
//! shared. A write makes only such nodes lower as it rewrites, and a shared one never. Here each node above a
//! height takes over the edges of its highest children, if it has room for them: it shows what it did, so shared
//! nodes are changed in place, and no path can tell the difference. The lowest ones go first, so that those above
//! find lower children.
//!
//! Guarantees: a step changes a bounded number of nodes and makes at least one of them lower and none higher, so the
//! steps end. No node becomes wider than others, and none is made. A node stays above what the Gotos lead to that rest
//! above it. I/O: headers of tall nodes and of their children, and pages on the fringes of what is shown of these.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    dag::{edit::Edit, write::flush::pending},
    error::Result,
    node::{Body, Node, NodeId},
};

/// Tall nodes that one step looks at; a DAG with more of them is left as it is.
const MOST_NODES: usize = 2048;

impl Edit<'_> {
    /// Makes some nodes above the limit of tall ones lower; whether there were any that could be. Nothing may wait to
    /// be reclaimed, and nothing is done where something cannot be read.
    pub fn lower(&mut self) -> Result<bool> {
        if self.height(self.root)? <= self.cx.limits.tall || self.cx.pager.knows_damage() {
            return Ok(false);
        }
        let mut any = false;
        for (id, least) in self.tall_nodes()?.into_iter().flatten() {
            if self.is_large() {
                break;
            }
            any |= self.exists(id) && self.lower_node(id, least)?;
        }
        Ok(any)
    }

    /// The nodes above the limit of tall ones, lowest first, each with the least height that Gotos allow which rest
    /// above it; `None` if there are too many.
    fn tall_nodes(&self) -> Result<Option<Vec<(NodeId, u8)>>> {
        let mut queue = BTreeMap::from([((Reverse(self.height(self.root)?), self.root), 0)]);
        let mut found = Vec::new();
        // All that refers to a node is higher, and has been seen when its turn comes.
        while let Some(((Reverse(_), id), least)) = queue.pop_first() {
            if found.len() >= MOST_NODES {
                return Ok(None);
            }
            found.push((id, least));
            for edge in self.peek(id)?.edges() {
                let mut above = 0;
                for target in edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref()) {
                    let height = self.height(target.id)?;
                    above = above.max(height.saturating_add(1));
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
        Ok(Some(found))
    }

    /// Puts a node anew without its highest children, as far as it has room for their edges, if that makes it lower.
    fn lower_node(&mut self, id: NodeId, least: u8) -> Result<bool> {
        let mut node = self.load(id)?;
        let high = node.height;
        let mut taken = Vec::new();
        loop {
            let Some(highest) = self.highest_child(&node)? else { break };
            if highest < self.cx.limits.tall {
                break;
            }
            let (flat, gone) = self.flatten_children(node.clone(), highest)?;
            let fits = flat.edges().len() <= self.cx.limits.fanout && pending(&flat) <= self.cx.limits.node;
            if !fits || self.highest_child(&flat)?.is_some_and(|height| height >= highest) {
                break;
            }
            node = flat;
            taken.extend(gone);
        }
        let mut node = self.lowest(node)?;
        node.height = node.height.max(least);
        if node.height >= high {
            return Ok(false);
        }
        self.put_pruned(id, node)?;
        self.reclaim(&taken)?;
        Ok(true)
    }

    fn highest_child(&self, node: &Node) -> Result<Option<u8>> {
        let Body::Interior(edges) = &node.body else { return Ok(None) };
        let heights = edges.iter().filter_map(|edge| edge.child.as_ref()).map(|child| self.height(child.id));
        heights.reduce(|a, b| Ok(a?.max(b?))).transpose()
    }
}
