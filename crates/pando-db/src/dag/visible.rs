//! What an edge shows, judged by headers alone.
//!
//! Cutting a range out of an edge leaves slivers on both sides, between one
//! clone and the next for instance. A sliver that shows nothing must not keep
//! its child: it would take an edge, hold a reference to a node that may be
//! shared for no other reason, and keep empty neighbours from being joined.

use std::sync::Arc;

use super::edit::Edit;
use crate::{
    error::{Error, Result},
    format::node::{Body, Node, Target},
    key::{Lens, Span},
};

impl Edit<'_> {
    /// True if it is certain that an edge over `live` to `target` shows no pair and no message, of a
    /// node of height `above`. Follows one edge a level and gives up where more are visible. I/O: a
    /// header a level.
    pub fn shows_nothing(&self, live: &Span, target: &Target, above: u8) -> Result<bool> {
        let (mut live, mut target, mut above) = (live.clone(), target.clone(), above);
        loop {
            let node: Arc<Node> = self.peek(target.id)?;
            if node.height >= above {
                return Err(Error::corrupt("edge", 0, format!("node {} is not below its parent", target.id)));
            }
            let image = Lens::of_edge(&live, &target.prepend).apply_span(&live);
            let edges = match &node.body {
                Body::Leaf(run) => return Ok(!run.pages.iter().any(|p| p.meets(&image))),
                Body::Interior(edges) => edges,
            };
            let i = node.edge_at(&image.lo);
            let Some(edge) = edges.get(i) else { return Ok(false) };
            let span = node.edge_span(i);
            if !span.covers(&image) || !edge.layers.is_empty() {
                return Ok(false);
            }
            let Some(child) = &edge.child else { return Ok(true) };
            let prepend = Lens::narrowed_prepend(&span, &child.prepend, &image);
            (live, target, above) = (image, Target { prepend, ..child.clone() }, node.height);
        }
    }
}
