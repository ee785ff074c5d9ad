//! Taking messages into a node: range messages rest, or turn into edges; points
//! go to the edge of their key; updates are parted among the edges that they
//! cover; at a leaf all of them become pairs.
//!
//! Invariant kept: every message of an interior node lies within one edge, and
//! a Goto rests only at least two levels above its target (FAST'20 section 3,
//! "Flushing GOTO messages").

use super::{edit::Edit, run::merge_runs};
use crate::{
    error::{Error, Result},
    format::node::{Body, Edge, Layer, Node, RangeMsg, Run, Target},
    key::Span,
};

impl Edit<'_> {
    /// `node` with `layer` on top of all it holds.
    pub fn absorb(&self, mut node: Node, mut layer: Layer) -> Result<Node> {
        if let Body::Leaf(run) = &node.body {
            node.body = Body::Leaf(self.apply_to_leaf(run, &layer)?);
            return Ok(node);
        }
        let mut resting = Vec::with_capacity(layer.ranges.len());
        for range in std::mem::take(&mut layer.ranges) {
            if self.may_rest(&node, &range)? {
                resting.push(range);
            } else {
                self.turn(&mut node, &range)?;
            }
        }
        layer.ranges = resting;
        let (pager, merge) = (self.cx.pager, self.cx.merge);
        let spans: Vec<_> = (0..node.edges().len()).map(|i| node.edge_span(i)).collect();
        let Body::Interior(edges) = &mut node.body else { unreachable!("leaves were handled above") };
        for (edge, span) in edges.iter_mut().zip(&spans) {
            edge.push_layer(layer.slice(span, pager)?, pager, merge)?;
        }
        Ok(node)
    }

    /// True if the message lies inside one edge without filling it, and may still sink.
    fn may_rest(&self, node: &Node, range: &RangeMsg) -> Result<bool> {
        let i = node.edge_at(&range.span.lo);
        let live = node.edge_span(i);
        if !live.covers(&range.span) || range.span.covers(&live) {
            return Ok(false);
        }
        let Some(target) = &range.target else { return Ok(true) };
        // An edge may skip heights: what rests above it must be able to sink into the child it has.
        let below = match &node.edges()[i].child {
            Some(child) => self.height(child.id)?,
            None => node.height - 1,
        };
        Ok(self.height(target.id)? < below)
    }

    /// Replaces what `node` shows over the range by an edge to the message's target. Older messages
    /// in the range go, edges partly covered are narrowed, one with live data on both sides becomes
    /// two to the same child.
    fn turn(&self, node: &mut Node, range: &RangeMsg) -> Result<()> {
        if let Some(target) = &range.target
            && self.height(target.id)? >= node.height
        {
            return Err(Error::corrupt("message", 0, "a Goto below the height of its target"));
        }
        let pager = self.cx.pager;
        let mut edges: Vec<Edge> = Vec::with_capacity(node.edges().len() + 2);
        let mut placed = false;
        for (i, edge) in node.edges().iter().enumerate() {
            let live = node.edge_span(i);
            if !live.overlaps(&range.span) {
                edges.push(edge.clone());
                continue;
            }
            let (below, above) = live.without(&range.span);
            if let Some(below) = below {
                edges.push(self.sliver(edge.narrowed(&live, &below, pager)?, &below, node.height)?);
            }
            if !placed {
                placed = true;
                let child = range.target.clone();
                let loose = child.is_some();
                edges.push(Edge { lo: range.span.lo.clone(), child, layers: Vec::new(), loose });
            }
            if let Some(above) = above {
                edges.push(self.sliver(edge.narrowed(&live, &above, pager)?, &above, node.height)?);
            }
        }
        assert!(placed, "a range message outside its node");
        join_empty(&mut edges);
        node.body = Body::Interior(edges);
        Ok(())
    }

    /// What is left of an edge that was cut, without its child if nothing of that is visible.
    fn sliver(&self, mut edge: Edge, live: &Span, height: u8) -> Result<Edge> {
        if let Some(target) = &edge.child
            && self.shows_nothing(live, target, height)?
        {
            (edge.child, edge.loose) = (None, false);
            edge.drop_idle_updates();
        }
        Ok(edge)
    }

    /// The pairs of a leaf after the messages of a layer.
    fn apply_to_leaf(&self, run: &Run, layer: &Layer) -> Result<Run> {
        let pager = self.cx.pager;
        if layer.ranges.iter().any(|r| r.target.is_some()) {
            return Err(Error::corrupt("message", 0, "a Goto above a leaf"));
        }
        let kept = run.without(&layer.ranges, pager)?;
        merge_runs(&kept, &layer.run, [&[], &layer.updates], true, pager, self.cx.merge)
    }
}

/// Joins neighbouring edges with nothing below and nothing pending.
pub(crate) fn join_empty(edges: &mut Vec<Edge>) {
    let is_void = |e: &Edge| e.child.is_none() && e.layers.is_empty();
    edges.dedup_by(|next, kept| is_void(next) && is_void(kept));
}

impl Target {
    /// A target that adds nothing to keys.
    pub fn plain(id: crate::format::node::NodeId) -> Self {
        Target { id, prepend: Default::default(), pin: None }
    }
}
