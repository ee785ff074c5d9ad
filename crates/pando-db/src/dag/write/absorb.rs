//! Taking messages into a node: range messages rest, or are converted into edges;
//! points go to the edge of their key; range-upserts are split among the edges
//! that they cover; at a leaf all of them become pairs.
//!
//! Invariant kept: every message of an interior node lies within one edge, and
//! a Goto rests only at least two levels above its target (FAST'20 section 3,
//! "Flushing GOTO messages").

use std::borrow::Cow;

use bytes::Bytes;

use crate::{
    dag::{edit::Edit, layer::run::merge_into_leaf},
    error::{Error, Result},
    key::Span,
    node::{Body, Layer, Node, Run},
};

/// Nodes' worth of bytes by which a leaf may grow, beyond the messages that it takes in, before the rest of these waits
/// for another flush.
const MAX_GROWTH_NODES: usize = 4;

/// A leaf that has taken in layers, in its own keys.
pub(crate) struct FilledLeaf {
    /// Its parts, ascending. The first has taken in all; a later one has taken in less, if anything.
    pub parts: Vec<Node>,
    /// What the later ones have not taken in, the oldest first.
    pub left: Vec<Layer>,
}

impl Edit<'_> {
    /// `node` with `layer` over all that it holds.
    pub fn absorb(&self, mut node: Node, mut layer: Layer) -> Result<Node> {
        check_inside(&node, &layer)?;
        if let Body::Leaf(run) = &node.body {
            node.body = Body::Leaf(self.apply_to_leaf(run, &layer, usize::MAX)?.0);
            return Ok(node);
        }
        if !layer.ranges.is_empty() {
            layer.ranges = self.convert_ranges(&mut node, std::mem::take(&mut layer.ranges))?;
        }
        let (pager, merge) = (self.cx.pager, self.cx.merge);
        let (mut points, mut ranges) = (0, 0);
        let spans: Vec<_> = (0..node.edges().len()).map(|i| node.edge_span(i)).collect();
        let Body::Interior(edges) = &mut node.body else { unreachable!("leaves were handled above") };
        for (edge, span) in edges.iter_mut().zip(&spans) {
            let part = layer.slice(span, pager)?;
            (points, ranges) = (points + part.run.entries(), ranges + part.ranges.len());
            edge.push_layer(part, pager, merge)?;
        }
        assert_eq!(points, layer.run.entries(), "a node that takes points in has others than they were");
        assert_eq!(
            ranges,
            layer.ranges.len(),
            "a range message comes to rest at another number of edges than one"
        );
        Ok(node)
    }

    /// `leaf` with `layers`, the oldest first, over what it holds. Small upserts may make large values: where they make
    /// more than an edit should hold, the rest is left for another flush.
    pub fn fill_leaf(&self, mut leaf: Node, layers: Vec<Layer>) -> Result<FilledLeaf> {
        let (pager, end) = (self.cx.pager, leaf.span.hi.clone());
        let (mut behind, mut left) = (Vec::new(), Vec::new());
        for layer in layers {
            let here = match leaf.span.hi == end {
                true => Cow::Borrowed(&layer),
                false => Cow::Owned(layer.slice(&leaf.span, pager)?),
            };
            check_inside(&leaf, &here)?;
            let Body::Leaf(run) = &leaf.body else { unreachable!("asked of leaves only") };
            let most = run.bytes() + here.run.bytes() + MAX_GROWTH_NODES * self.cx.limits.node;
            let (filled, stop) = self.apply_to_leaf(run, &here, most)?;
            if let Some(at) = stop {
                if at <= leaf.span.lo || !leaf.span.contains(&at) {
                    return Err(Error::corrupt("node", 0, "a leaf has keys outside its span"));
                }
                let rest = Span { lo: at.clone(), hi: leaf.span.hi.clone() };
                behind.push(leaf.clone().clipped(&rest, pager)?);
                leaf.span.hi = Some(at);
            }
            leaf.body = Body::Leaf(filled);
            if leaf.span.hi != end
                && let Some(lo) = leaf.span.hi.clone()
            {
                left.push(layer.slice(&Span { lo, hi: end.clone() }, pager)?);
            }
        }
        left.retain(|layer| !layer.is_empty());
        let parts = std::iter::once(leaf).chain(behind.into_iter().rev()).collect();
        Ok(FilledLeaf { parts, left })
    }

    /// The pairs of a leaf after the messages of a layer; if they became more than `most` bytes, those below the key
    /// that is given too.
    fn apply_to_leaf(&self, run: &Run, layer: &Layer, most: usize) -> Result<(Run, Option<Bytes>)> {
        let pager = self.cx.pager;
        if layer.ranges.iter().any(|r| r.target.is_some()) {
            return Err(Error::corrupt("message", 0, "a Goto above a leaf"));
        }
        let kept = run.without(&layer.ranges, pager)?;
        let merged = merge_into_leaf(&kept, &layer.run, &layer.updates, most, pager, self.cx.merge)?;
        let entries = kept.entries() + layer.run.entries();
        assert!(merged.0.entries() <= entries, "a leaf has more pairs than it had and has taken in");
        Ok(merged)
    }
}

/// An error if a layer has messages outside the span of the node that takes it in: they would be lost when the layer is
/// cut into the parts of edges. The span of a node comes from the device, so it may be wrong.
fn check_inside(node: &Node, layer: &Layer) -> Result<()> {
    let ends = [layer.run.pages.first(), layer.run.pages.last()];
    let is_inside = ends.into_iter().flatten().all(|page| page.is_inside(&node.span))
        && layer.updates.iter().all(|u| node.span.covers(&u.span));
    if !is_inside {
        return Err(Error::corrupt("node", 0, "a node of another span than what refers to it"));
    }
    Ok(())
}
