//! Widening an edge over the empty ranges beside it.
//!
//! When the clones beside a tree are deleted, their ranges become one edge with nothing below. If the node of the tree
//! has as many edges as a node may, that edge alone keeps a level above it. So the edge to the tree is widened over the
//! empty range: every node on the way down that side gets a wider span, and longer local keys where the wider span
//! shares fewer bytes. No key comes to be shown, because each of these nodes is first cut to what its edge shows. Works
//! on an [`Edit`], and changes nothing if a node on the way has a second parent or cannot be read.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Edge, Node, Target},
};

impl Edit<'_> {
    /// `node`, in which all edges but `i` are void, with edge `i` widened over those above it, or else over those below
    /// it; `None` if it can be widened over neither. Cost: the nodes along that side of the child are written again.
    /// I/O: their headers, and pages at the borders of what is shown of them.
    pub fn widened_over_void(&mut self, mut node: Node, i: usize) -> Result<Option<Node>> {
        let Some(target) = node.edges().get(i).and_then(|edge| edge.child.clone()) else { return Ok(None) };
        let live = node.edge_span(i);
        let over_above = (i + 1..node.edges().len(), Span { lo: live.lo.clone(), hi: node.span.hi.clone() });
        let over_below = (0..i, Span { lo: node.span.lo.clone(), hi: live.hi.clone() });
        for (void, wide) in [over_above, over_below] {
            if void.is_empty() {
                continue;
            }
            let Some(wider) = self.widened(&live, &target, &wide, node.height)? else { continue };
            if let Body::Interior(edges) = &mut node.body
                && let Some(edge) = edges.get_mut(i)
            {
                *edge = Edge { lo: wide.lo, child: Some(wider), loose: false, layers: edge.layers.clone() };
                assert!(edges.drain(void).all(|edge| edge.is_void()), "an edge is widened over another");
            }
            return Ok(Some(node));
        }
        Ok(None)
    }

    /// An edge's target that shows over `wide` the keys that `target` shows over `live`, and no others; `None` if a
    /// node on the way along the widened side is shared or cannot be read. `wide` begins or ends where `live` does.
    fn widened(&mut self, live: &Span, target: &Target, wide: &Span, above: u8) -> Result<Option<Target>> {
        assert!(wide.covers(live) && (wide.lo == live.lo || wide.hi == live.hi), "widened on both sides");
        if !self.is_private(target.id) {
            return Ok(None);
        }
        let child =
            self.load_below(target.id, above).and_then(|child| child.simple(live, target, self.cx.pager));
        let Some(child) = or_if_damaged(child.map(Some), None)? else { return Ok(None) };
        let longer = live.common_prefix().slice(wide.common_prefix_len()..);
        let mut child = child.through(&Lens::new(Bytes::new(), longer));
        let span = Lens::of_edge(wide, &Bytes::new()).apply_span(wide);
        assert!(span.covers(&child.span), "a widened node loses keys");
        let upwards = span.lo == child.span.lo;
        let at = if upwards { child.edges().len().saturating_sub(1) } else { 0 };
        if let Some(mut edge) = child.edges().get(at).cloned() {
            let live = child.edge_span(at);
            let wide = match upwards {
                true => Span { lo: live.lo.clone(), hi: span.hi.clone() },
                false => Span { lo: span.lo.clone(), hi: live.hi.clone() },
            };
            if let Some(target) = &edge.child {
                let Some(wider) = self.widened(&live, target, &wide, child.height)? else { return Ok(None) };
                (edge.child, edge.loose) = (Some(wider), false);
            }
            edge.lo = wide.lo;
            if let Body::Interior(edges) = &mut child.body {
                edges.splice(at..=at, [edge]);
            }
        }
        child.span = span;
        self.put(target.id, child)?;
        Ok(Some(Target::plain(target.id)))
    }
}
