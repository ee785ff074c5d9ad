//! Making a child simple: dropping what its edge does not show and cancelling
//! the translation prefix, so that the DAG is locally a lifted B-epsilon-tree
//! (FAST'20 section 3, figures 5 and 6). In memory, as part of the flush,
//! split or merge that needs it.

use crate::{
    error::{Error, Result},
    key::{Lens, Span},
    node::{Body, Edge, Node, Target},
    store::pager::Pager,
};

impl Node {
    /// This node as an edge over `live` to `target` shows it, with local keys `k[strip..]`.
    /// I/O: pages at the borders of what is visible.
    pub fn simple(self, live: &Span, target: &Target, pager: &Pager) -> Result<Node> {
        let image = Lens::of_edge(live, &target.prepend).apply_span(live);
        if !self.span.covers(&image) {
            let detail =
                format!("an edge shows {image:?} of node {}, which holds {:?}", target.id, self.span);
            return Err(Error::corrupt("edge", 0, detail));
        }
        Ok(self.clipped(&image, pager)?.lifted(target.prepend.len()))
    }

    /// The part of this node over `span`.
    pub fn clipped(self, span: &Span, pager: &Pager) -> Result<Node> {
        assert!(self.span.covers(span) && !span.is_empty(), "a node is clipped to what it does not hold");
        if self.span == *span {
            return Ok(self);
        }
        let body = match &self.body {
            Body::Leaf(run) => Body::Leaf(run.slice(span, pager)?),
            Body::Interior(edges) => {
                let mut kept: Vec<Edge> = Vec::with_capacity(edges.len());
                for (i, edge) in edges.iter().enumerate() {
                    let live = self.edge_span(i);
                    if let Some(sub) = live.intersect(span) {
                        kept.push(edge.narrowed(&live, &sub, pager)?);
                    }
                }
                Body::Interior(kept)
            }
        };
        Ok(Node { height: self.height, span: span.clone(), body })
    }

    /// The node without the first `len` bytes of its keys, which they all share. Only the prefixes of pages change,
    /// not the pages.
    pub fn lifted(self, len: usize) -> Node {
        if len == 0 {
            return self;
        }
        assert!(len <= self.span.common_prefix_len(), "more is taken off the keys of a node than they share");
        let lens = Lens::new(self.span.lo.slice(..len), Default::default());
        self.through(&lens)
    }

    /// The node with all its keys mapped by `lens`.
    pub fn through(self, lens: &Lens) -> Node {
        let body = match self.body {
            Body::Leaf(run) => Body::Leaf(run.through(lens)),
            Body::Interior(edges) => Body::Interior(
                edges
                    .into_iter()
                    .map(|e| Edge {
                        lo: lens.apply_shared(&e.lo),
                        child: e.child,
                        layers: e.layers.iter().map(|l| l.through(lens)).collect(),
                        loose: e.loose,
                    })
                    .collect(),
            ),
        };
        Node { height: self.height, span: lens.apply_span(&self.span), body }
    }
}
