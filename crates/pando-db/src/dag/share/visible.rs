//! Checks by headers alone whether an edge shows anything.
//!
//! Cutting a range out of an edge leaves slivers on both sides, such as between one clone and the next. A sliver that
//! shows nothing must not keep its child: it would hold a reference to a node, which may be shared for no other
//! reason, and would keep empty neighbours from being merged.

use crate::{
    dag::edit::Edit,
    error::{Error, Result},
    key::{Lens, Span},
    node::{Body, Layer, RangeMsg, Target},
};

impl Edit<'_> {
    /// True if it is certain that an edge over `live` to `target`, of a node of height `above`, shows no pair and no
    /// message. Follows one edge for each level, and returns false if more are visible. I/O: one header for each
    /// level.
    pub fn shows_nothing(&self, live: &Span, target: &Target, above: u8) -> Result<bool> {
        let (mut live, mut target, mut above) = (live.clone(), target.clone(), above);
        loop {
            // A node that cannot be read may show anything.
            let Ok(node) = self.peek(target.id) else { return Ok(false) };
            if node.height >= above {
                return Err(Error::corrupt("edge", 0, format!("node {} is not below its parent", target.id)));
            }
            let image = Lens::of_edge(&live, &target.prepend).apply_span(&live);
            let edges = match &node.body {
                Body::Leaf(run) => return Ok(!run.meets(&image)),
                Body::Interior(edges) => edges,
            };
            let i = node.edge_at(&image.lo);
            let Some(edge) = edges.get(i) else { return Ok(false) };
            let span = node.edge_span(i);
            if !span.covers(&image) {
                return Ok(false);
            }
            let next = match waiting(&edge.layers, &image) {
                Waiting::Something => return Ok(false),
                Waiting::Range(range) => range.target.as_ref().map(|target| (range.span.clone(), target)),
                Waiting::Nothing => edge.child.as_ref().map(|target| (span, target)),
            };
            let Some((span, next)) = next else { return Ok(true) };
            let next = next.narrowed(&span, &image);
            (live, target, above) = (image, next, node.height);
        }
    }
}

/// The messages about a range of keys at an edge.
enum Waiting<'a> {
    /// There is no value, and no message that leads to one.
    Nothing,
    /// The newest message is a range message that covers all the keys.
    Range(&'a RangeMsg),
    /// There may be a value.
    Something,
}

fn waiting<'a>(layers: &'a [Layer], keys: &Span) -> Waiting<'a> {
    // Newest first. Range-upserts make no values, and deletes of a part of the keys only hide some.
    for layer in layers.iter().rev() {
        if layer.run.meets(keys) {
            return Waiting::Something;
        }
        for range in layer.ranges_meeting(keys) {
            if range.span.covers(keys) {
                return Waiting::Range(range);
            }
            if range.target.is_some() {
                return Waiting::Something;
            }
        }
    }
    Waiting::Nothing
}
