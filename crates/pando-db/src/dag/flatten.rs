//! Keeping the DAG low: taking the visible edges of a child into its parent.
//!
//! A clone whose source spans several edges of the root makes a new root, and an
//! edge may show little of a tall node. What counts for a query is what is
//! visible: a child of which an edge shows a few edges only is not worth its
//! level, and they are taken into the parent, which splits if it becomes too
//! wide. So the height follows the number of live edges, not the number of
//! clones ever made. Happens to nodes that are being rewritten anyway.

use super::edit::Edit;
use crate::{
    error::Result,
    format::node::{Body, Edge, Layer, Node, NodeId, Target},
    key::{Lens, Span},
};

/// Above this height even children that show more, or in which much waits, are taken in.
const TALL: u8 = 10;
/// Edges that a node may reach by taking tall children in, as a multiple of the fanout.
const MOST: usize = 4;
/// A view of fewer edges than this fraction (1/n) of the fanout is not worth a level.
const THIN: usize = 4;

impl Edit<'_> {
    /// `node` without levels below it that do little, and the children that it took in: once it has
    /// been put, they may be without references. I/O: headers of shared or tall children, and
    /// pages on the fringes of what they show.
    pub fn flatten(&self, mut node: Node) -> Result<(Node, Vec<NodeId>)> {
        let mut taken = Vec::new();
        let mut i = 0;
        while i < node.edges().len() {
            let Some(target) = node.edges()[i].child.clone() else {
                i += 1;
                continue;
            };
            let live = node.edge_span(i);
            let Some(child) = self.thin_child(&node, &live, &target)? else {
                i += 1;
                continue;
            };
            let mut child = child.simple(&live, &target, self.cx.pager)?;
            let lift = Lens::of_edge(&live, &Default::default());
            for layer in node.take_layers(i) {
                child = self.absorb(child, layer.through(&lift))?;
            }
            // The edges taken in may be thin themselves: look at this place again.
            node = node.with_edges_of(i, child);
            if !taken.contains(&target.id) {
                taken.push(target.id);
            }
        }
        Ok((node, taken))
    }

    /// The child of an edge, if it is an interior node of which the edge shows too little.
    fn thin_child(&self, node: &Node, live: &Span, target: &Target) -> Result<Option<Node>> {
        let height = self.height(target.id)?;
        let tall = height >= TALL;
        // A private child without a prefix is healed when it is flushed into.
        if height == 0 || (!tall && target.prepend.is_empty() && self.count(target.id) <= 1) {
            return Ok(None);
        }
        let child = self.load_below(target.id, node.height)?;
        let siblings = node.edges().len();
        let (edges, pending) = visible(&child, live, target);
        let limits = self.cx.limits;
        let thin = edges <= limits.fanout / THIN && pending <= limits.abundant;
        let too_tall = tall && edges <= limits.fanout && siblings + edges <= MOST * limits.fanout;
        Ok((thin || too_tall).then_some(child))
    }
}

impl Node {
    /// Takes the messages that wait at edge `i`.
    pub fn take_layers(&mut self, i: usize) -> Vec<Layer> {
        match &mut self.body {
            Body::Interior(edges) => std::mem::take(&mut edges[i].layers),
            Body::Leaf(_) => Vec::new(),
        }
    }

    /// This node with the edges of `child`, which is simple, in place of edge `i`, at which nothing
    /// waits. Their prefixes stay: what the edge lifted, they lift now.
    pub fn with_edges_of(mut self, i: usize, child: Node) -> Node {
        let live = self.edge_span(i);
        let back = Lens::of_edge(&live, &Default::default()).inverse();
        if let (Body::Interior(edges), Body::Interior(mut lower)) =
            (&mut self.body, child.through(&back).body)
        {
            assert!(edges[i].layers.is_empty(), "messages above a level that goes");
            if let Some(first) = lower.first_mut() {
                first.lo = live.lo;
            }
            edges.splice(i..=i, lower);
        }
        self
    }
}

/// How many edges of `child` an edge over `live` shows, and how many bytes wait at them.
fn visible(child: &Node, live: &Span, target: &Target) -> (usize, usize) {
    let image = Lens::of_edge(live, &target.prepend).apply_span(live);
    let shown = (0..child.edges().len()).filter(|&i| child.edge_span(i).overlaps(&image));
    shown.fold((0, 0), |(edges, bytes), i| (edges + 1, bytes + Edge::pending(&child.edges()[i])))
}
