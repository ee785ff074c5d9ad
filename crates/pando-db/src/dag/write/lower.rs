//! Lowering nodes that clones have left higher than their contents need.
//!
//! A node takes over the edges of its highest children: it shows the same as before, so readers see no difference,
//! and nothing is flushed. A node that is much too tall takes over many edges, and puts them under new children. So
//! several levels of few edges each, most of which lead to low nodes, become as many levels as the number of edges
//! needs.
//!
//! Guarantees: a node is lowered or left as it is, and stays above the height that its caller gives, for the Gotos
//! that rest above it. New nodes are lower than the node that they are made for. Works on an [`Edit`]; the caller
//! publishes. I/O: headers of a node and of its children, and pages at the borders of the ranges that are shown of
//! these.

use crate::{
    dag::{
        edit::Edit,
        write::flush::{NodePart, pending},
    },
    error::{Result, or_if_damaged},
    node::{Body, Edge, Node, NodeId},
};

/// From so many levels above the height of a tall node on, a node is lowered even if it becomes wider than others,
/// and a DAG is lowered while it is written to.
const TOO_TALL_LEVELS: u8 = 4;
/// Most edges that such a node takes over, as a multiple of the fanout.
const WIDE_FACTOR: usize = 8;

impl Edit<'_> {
    /// Lowers a DAG that is much higher than its data needs, along its tallest path, until the edit is large. Returns
    /// whether any node was lowered. Nothing is flushed. A shared node ends the path, because other parents may have
    /// Gotos that rest above it; but the node above it takes over its edges.
    pub(crate) fn lower_tallest(&mut self) -> Result<bool> {
        self.lower_above(TOO_TALL_LEVELS)
    }

    /// [`Edit::lower_tallest`] for a DAG and nodes that are `spare` levels above a tall one.
    pub(crate) fn lower_above(&mut self, spare: u8) -> Result<bool> {
        let most = self.cx.limits.tall.saturating_add(spare);
        if self.height(self.root)? <= most || self.cx.pager.knows_damage() {
            return Ok(false);
        }
        let (mut id, mut least) = (self.root, 0);
        let (mut path, mut any) = (Vec::new(), false);
        while !self.is_large() && self.is_private(id) && self.height(id)? > most {
            any |= self.lower_node(id, least, true)?;
            path.push(id);
            let node = self.peek(id)?;
            let mut tallest: Option<(u8, NodeId, u8)> = None;
            for edge in node.edges() {
                if let Some(child) = &edge.child {
                    let height = self.height(child.id)?;
                    if tallest.is_none_or(|highest| height > highest.0) {
                        tallest = Some((height, child.id, self.least_below(edge)?));
                    }
                }
            }
            let Some((_, child, floor)) = tallest else { break };
            (id, least) = (child, floor);
        }
        self.lower_path(&path)?;
        Ok(any)
    }

    /// Rewrites the nodes of a path from the root with the least height that their children allow, after these have
    /// become lower. Without this, a clone of a tree would be placed higher than needed, and each clone of the clone
    /// higher again. Nodes above which a Goto rests, and nodes that were removed, stay as they are. I/O: headers.
    pub(crate) fn lower_path(&mut self, path: &[NodeId]) -> Result<()> {
        for (i, &id) in path.iter().enumerate().rev() {
            if !self.exists(id) || !self.is_private(id) || self.height(id)? == 0 {
                continue;
            }
            let may = match i.checked_sub(1).and_then(|above| path.get(above)) {
                Some(above) => self.may_be_lowered_below(*above, id)?,
                None => id == self.root,
            };
            // Most nodes are only read.
            let Some(node) = or_if_damaged(self.peek(id).map(Some), None)?.filter(|_| may) else { continue };
            if self.height_needed(&node)? < node.height {
                self.put(id, self.lowest(self.load(id)?)?)?;
            }
        }
        Ok(())
    }

    /// True if exactly one edge of node `above` leads to `id`, and no Goto rests at that edge.
    fn may_be_lowered_below(&self, above: NodeId, id: NodeId) -> Result<bool> {
        if !self.exists(above) {
            return Ok(false);
        }
        let Some(above) = or_if_damaged(self.peek(above).map(Some), None)? else { return Ok(false) };
        let mut edges = above.edges().iter().filter(|edge| edge.child.as_ref().is_some_and(|t| t.id == id));
        Ok(edges.next().is_some_and(|edge| !edge.holds_gotos()) && edges.next().is_none())
    }

    /// The least height of the child of an edge: higher than the targets of the Gotos that rest there.
    pub(crate) fn least_below(&self, edge: &Edge) -> Result<u8> {
        let mut least = 0;
        for target in edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref()) {
            least = least.max(self.height(target.id)?.saturating_add(1));
        }
        Ok(least)
    }

    /// Rewrites a node with the edges of its highest children in place of these, as far as the edges fit, if that
    /// lowers the node. With `wide` many edges fit: they are put under new children, in as many levels as their
    /// number needs.
    pub(crate) fn lower_node(&mut self, id: NodeId, least: u8, wide: bool) -> Result<bool> {
        let limits = self.cx.limits;
        let mut node = self.load(id)?;
        let (high, span) = (node.height, node.span.clone());
        let factor = if wide { WIDE_FACTOR } else { 1 };
        let mut taken = Vec::new();
        loop {
            let Some(highest) = self.highest_child(&node)? else { break };
            if highest < limits.tall {
                break;
            }
            let (flat, gone) = self.flatten_children(node.clone(), highest, factor * limits.fanout)?;
            let fits = flat.edges().len() <= factor * limits.fanout && pending(&flat) <= factor * limits.node;
            if !fits || self.highest_child(&flat)?.is_some_and(|height| height >= highest) {
                break;
            }
            node = flat;
            taken.extend(gone);
        }
        let mut node = self.lowest(node)?;
        if factor > 1 && node.edges().len() > limits.fanout {
            let parts = self.parts(None, node.clone())?;
            let levels = if parts.len() > limits.fanout { 2 } else { 1 };
            let large = self.changed_nodes() + parts.len() > limits.edit_nodes;
            if large || node.height.saturating_add(levels).max(least) >= high {
                return Ok(false);
            }
            node = self.above_parts(parts, node)?;
            if levels > 1 {
                node = self.above_parts(self.parts(None, node.clone())?, node)?;
            }
        }
        node.height = node.height.max(least);
        if node.height >= high {
            return Ok(false);
        }
        assert_eq!(node.span, span, "a node that is lowered holds other keys");
        self.put_pruned(id, node)?;
        self.reclaim(&taken)?;
        Ok(true)
    }

    /// A node with `parts` of `node` as its children.
    pub(crate) fn above_parts(&mut self, parts: Vec<NodePart>, node: Node) -> Result<Node> {
        let Node { height, span, .. } = node;
        assert_eq!(
            span.common_prefix_len(),
            0,
            "parts of a node whose keys all begin alike are no parts of its edge"
        );
        let edge = Edge { lo: span.lo.clone(), ..Default::default() };
        let top = Node { height: height.saturating_add(1), span, body: Body::Interior(vec![edge]) };
        let top = self.attach(top, 0, parts)?;
        self.lowest(top)
    }

    fn highest_child(&self, node: &Node) -> Result<Option<u8>> {
        let Body::Interior(edges) = &node.body else { return Ok(None) };
        let heights = edges.iter().filter_map(|edge| edge.child.as_ref()).map(|child| self.height(child.id));
        heights.reduce(|a, b| Ok(a?.max(b?))).transpose()
    }
}
