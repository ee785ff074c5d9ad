//! Keeping the DAG low: taking the visible edges of a child into its parent.
//!
//! A clone whose source spans several edges of the root makes a new root, and an edge may show only few edges of a
//! tall node. Then a level costs each query a node and separates few keys. So if an edge shows few edges of its
//! child, these are taken into the parent, which splits if it becomes too wide. Thus the height follows the number of
//! live edges, not the number of clones ever made. This is done to nodes that are being rewritten anyway.
//!
//! A child that is taller than the stored data needs
//! ([`crate::dag::tree::Limits::tall`]) is replaced by its edges even if they are more, or if many messages wait in it.

use std::{collections::BTreeSet, ops::Range};

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Edge, Layer, Node, NodeId, Target},
};

/// Edges that a node may reach by taking tall children in, as a multiple of the fanout.
const MAX_FANOUT_FACTOR: usize = 8;
/// A child of which an edge shows at most 1/n of the fanout in edges is not worth a level.
const THIN_FANOUT_FRACTION: usize = 4;

impl Edit<'_> {
    /// `node`, in which the edges to thin and tall children are replaced by the edges of these children; and these
    /// children, which may have no references once the node has been put. I/O: headers of shared or tall children,
    /// and pages at the bounds of what is visible of them.
    pub fn flatten(&self, node: Node) -> Result<(Node, Vec<NodeId>)> {
        self.flatten_where(node, |edge, live, height, siblings| self.thin_child(edge, live, height, siblings))
    }

    /// [`Edit::flatten`] for the children of height `child_height`, as long as the node has at most `most` edges
    /// afterwards. I/O: their headers, and pages at the bounds of what is visible of them.
    pub(crate) fn flatten_children(
        &self,
        node: Node,
        child_height: u8,
        most: usize,
    ) -> Result<(Node, Vec<NodeId>)> {
        self.flatten_where(node, |edge, live, height, siblings| {
            let Some(target) = &edge.child else { return Ok(None) };
            if self.height(target.id)? != child_height || child_height == 0 || siblings > most {
                return Ok(None);
            }
            let shown = visible(&*self.peek(target.id)?, live, target);
            match siblings + shown.len() - 1 <= most {
                true => self.load_below(target.id, height).map(Some),
                false => Ok(None),
            }
        })
    }

    /// Replaces each edge for which `choose(edge, live range, height of the node, edges so far)` gives a child by the
    /// edges of that child. Gives the node and the children.
    fn flatten_where(
        &self,
        node: Node,
        choose: impl Fn(&Edge, &Span, u8, usize) -> Result<Option<Node>>,
    ) -> Result<(Node, Vec<NodeId>)> {
        let (height, span) = (node.height, node.span.clone());
        let Body::Interior(edges) = node.body else { return Ok((node, Vec::new())) };
        let mut taken = BTreeSet::new();
        let mut done: Vec<Edge> = Vec::with_capacity(edges.len());
        // In reverse order: the next edge is popped from the end.
        let mut rest: Vec<Edge> = edges.into_iter().rev().collect();
        while let Some(edge) = rest.pop() {
            let hi = rest.last().map(|next| next.lo.clone()).or_else(|| span.hi.clone());
            let live = Span { lo: edge.lo.clone(), hi };
            let siblings = done.len() + rest.len() + 1;
            let Some(child) = choose(&edge, &live, height, siblings)? else {
                done.push(edge);
                continue;
            };
            let Some(target) = &edge.child else {
                unreachable!("a child is chosen for an edge that has none")
            };
            let lift = Lens::of_edge(&live, &Default::default());
            let simple = child.simple(&live, target, self.cx.pager);
            let filled =
                edge.layers.iter().fold(simple, |child, layer| self.absorb(child?, layer.through(&lift)));
            let Some(child) = or_if_damaged(filled.map(Some), None)? else {
                done.push(edge);
                continue;
            };
            taken.insert(target.id);
            // The edges taken in may lead to thin children themselves: look at them next.
            rest.extend(edges_in_place_of(&live, child).into_iter().rev());
        }
        let done = self.joined(done, &span, height)?;
        Ok((Node { height, span, body: Body::Interior(done) }, taken.into_iter().collect()))
    }

    /// The child of an edge, if it is an interior node of which the edge shows too little, or which is too tall.
    fn thin_child(&self, edge: &Edge, live: &Span, above: u8, siblings: usize) -> Result<Option<Node>> {
        let Some(target) = &edge.child else { return Ok(None) };
        let limits = self.cx.limits;
        let height = self.height(target.id)?;
        let tall = height >= limits.tall;
        // A flush into a private child without a prefix takes the edges of that in by itself, if these are few.
        if height == 0 || (!tall && target.prepend.is_empty() && self.count(target.id) <= 1) {
            return Ok(None);
        }
        // A node that is too wide would be split, and the parts would need a new level: nothing would be gained.
        let most = if tall { MAX_FANOUT_FACTOR * limits.fanout } else { limits.fanout };
        if siblings >= most {
            return Ok(None);
        }
        let Some(child) = or_if_damaged(self.peek(target.id).map(Some), None)? else { return Ok(None) };
        let shown = visible(&child, live, target);
        if siblings + shown.len() - 1 > most || (!tall && shown.len() > limits.fanout) {
            return Ok(None);
        }
        let thin = shown.len() <= limits.fanout / THIN_FANOUT_FRACTION
            && shown.map(|i| child.edges()[i].pending()).sum::<usize>() <= limits.abundant;
        if !thin && !tall {
            return Ok(None);
        }
        self.load_below(target.id, above).map(Some)
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

    /// Gives edge `i`, whose messages were taken, those that wait there from now on, the oldest first.
    pub fn put_layers(&mut self, i: usize, layers: Vec<Layer>) {
        if let Body::Interior(edges) = &mut self.body {
            assert!(edges[i].layers.is_empty(), "messages are put in place of others");
            edges[i].layers = layers;
        }
    }

    /// This node with the edges of `child`, which is simple, in place of edge `i`, at which no message
    /// waits. The edges of the child lift what edge `i` lifted.
    pub fn with_edges_of(mut self, i: usize, child: Node) -> Node {
        let live = self.edge_span(i);
        if let Body::Interior(edges) = &mut self.body {
            assert!(edges[i].layers.is_empty(), "messages above a level that goes");
            assert!(child.height < self.height, "a level that goes is not below");
            edges.splice(i..=i, edges_in_place_of(&live, child));
        }
        self
    }
}

/// The edges of `child`, which is simple, in the keys of its parent, which shows it over `live`.
fn edges_in_place_of(live: &Span, child: Node) -> Vec<Edge> {
    let back = Lens::of_edge(live, &Default::default()).inverse();
    let child = child.through(&back);
    assert_eq!(child.span, *live, "a level that goes shows other keys than its edge");
    let Body::Interior(mut edges) = child.body else { unreachable!("leaves have no edges") };
    if let Some(first) = edges.first_mut() {
        first.lo = live.lo.clone();
    }
    edges
}

/// The edges of `child` that an edge over `live` shows.
fn visible(child: &Node, live: &Span, target: &Target) -> Range<usize> {
    let image = Lens::of_edge(live, &target.prepend).apply_span(live);
    let end = child.edges().partition_point(|edge| image.is_above(&edge.lo));
    child.edge_at(&image.lo)..end
}

#[cfg(test)]
mod tests {
    use crate::dag::tests::{edge, edit, interior};

    /// Such an edge was lost, with all messages that waited there.
    #[test]
    #[should_panic(expected = "a child is chosen for an edge that has none")]
    fn an_edge_without_a_child_is_not_dropped_with_its_messages() {
        let node = interior(1, vec![edge("", None, vec![])]);
        let flat = edit(|edit| edit.flatten_where(node.clone(), |_, _, _, _| Ok(Some(node.clone()))));
        assert!(flat.is_ok_and(|(flat, _)| !flat.edges().is_empty()), "the edge is gone");
    }
}
