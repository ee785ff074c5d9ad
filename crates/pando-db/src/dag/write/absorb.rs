//! Taking messages into a node: range messages rest, or are converted into edges;
//! points go to the edge of their key; range-upserts are split among the edges
//! that they cover; at a leaf all of them become pairs.
//!
//! Invariant kept: every message of an interior node lies within one edge, and
//! a Goto rests only at least two levels above its target (FAST'20 section 3,
//! "Flushing GOTO messages").

use crate::{
    dag::{edit::Edit, layer::run::merge_runs},
    error::{Error, Result},
    node::{Body, Layer, Node, Run},
};

impl Edit<'_> {
    /// `node` with `layer` over all that it holds.
    pub fn absorb(&self, mut node: Node, mut layer: Layer) -> Result<Node> {
        // Messages outside the span would be lost when the layer is cut into the parts of edges. The span of a node
        // comes from the device, so it may be wrong.
        let ends = [layer.run.pages.first(), layer.run.pages.last()];
        let is_inside = ends.into_iter().flatten().all(|page| page.is_inside(&node.span))
            && layer.updates.iter().all(|u| node.span.covers(&u.span));
        if !is_inside {
            return Err(Error::corrupt("node", 0, "a node of another span than what refers to it"));
        }
        if let Body::Leaf(run) = &node.body {
            node.body = Body::Leaf(self.apply_to_leaf(run, &layer)?);
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

    /// The pairs of a leaf after the messages of a layer.
    fn apply_to_leaf(&self, run: &Run, layer: &Layer) -> Result<Run> {
        let pager = self.cx.pager;
        if layer.ranges.iter().any(|r| r.target.is_some()) {
            return Err(Error::corrupt("message", 0, "a Goto above a leaf"));
        }
        let kept = run.without(&layer.ranges, pager)?;
        let merged = merge_runs(&kept, &layer.run, [&[], &layer.updates], true, pager, self.cx.merge)?;
        let most = kept.entries() + layer.run.entries();
        assert!(merged.entries() <= most, "a leaf has more pairs than it had and has taken in");
        Ok(merged)
    }
}
