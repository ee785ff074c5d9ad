//! Flushing: moving messages down, one heavy edge at a time, into simple
//! children only.
//!
//! A shared child is copied only when enough messages wait for it
//! (copy-on-abundant-write, FAST'20 section 3): until then other children are
//! flushed, or the node is split. Works on an [`Edit`]; the caller publishes.

use crate::{
    dag::{edit::Edit, layer::check_order},
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Edge, Layer, Node, NodeId, Target},
};

/// A node to be, with its number if it has one already.
pub(crate) type NodePart = (Option<NodeId>, Node);

/// Bytes of messages that wait in an interior node.
pub(crate) fn pending(node: &Node) -> usize {
    node.edges().iter().map(Edge::pending).sum()
}

impl Edit<'_> {
    /// Flushes edges of node `id` until its pending messages are within the limit. The node must
    /// be private. It may be left too wide: its parent splits it.
    pub fn relieve(&mut self, id: NodeId) -> Result<()> {
        while !self.is_large() {
            if self.cx.pager.knows_damage() && self.part_around_damage(id)? {
                continue;
            }
            // Where every heavy child is shared and none has enough to be worth a copy, messages
            // wait: their number is bounded by the fanout times the threshold.
            let Some(i) = self.edge_to_flush(&*self.peek(id)?)? else { return Ok(()) };
            self.flush_edge(id, i)?;
        }
        Ok(())
    }

    /// The edge to flush if the node has more pending than it should, among those whose child may be written
    /// at that price. Above the limit it is the one with most. Below it, messages beyond a node's worth wait
    /// for company; but those of an edge that go on together do not: as sequential inserts, they would only
    /// be written once more.
    pub(crate) fn edge_to_flush(&self, node: &Node) -> Result<Option<usize>> {
        let mut stuck = Vec::new();
        loop {
            match self.heaviest(node, &stuck)? {
                Some(i) if self.unreadable_at(node, i)?.len() > 0 => stuck.push(i),
                found => return Ok(found),
            }
        }
    }

    /// The edge with most messages among those that are not `stuck`.
    fn heaviest(&self, node: &Node, stuck: &[usize]) -> Result<Option<usize>> {
        let limits = &self.cx.limits;
        let held_up: usize = stuck.iter().filter_map(|&i| node.edges().get(i)).map(Edge::pending).sum();
        let all = pending(node).saturating_sub(held_up);
        if all <= limits.node {
            return Ok(None);
        }
        let free = node.edges().iter().enumerate().filter(|(i, _)| !stuck.contains(i));
        let worth = free.filter_map(|(i, edge)| {
            let pending = edge.pending();
            let private = edge.child.as_ref().is_none_or(|t| self.is_private(t.id));
            (pending > 0 && (private || pending >= limits.abundant)).then_some((pending, i))
        });
        if all > limits.pending {
            return Ok(worth.max().map(|(_, i)| i));
        }
        for (pending, i) in worth {
            if pending >= limits.node && self.go_on_together(node, i)? {
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    /// True if at least half as many bytes as a node has, of the points at edge `i`, would go to one edge of the
    /// child, or to one leaf. I/O: the child's header.
    fn go_on_together(&self, node: &Node, i: usize) -> Result<bool> {
        let Some(edge) = node.edges().get(i) else { return Ok(false) };
        let Some(target) = &edge.child else { return Ok(true) };
        let Some(child) = or_if_damaged(self.peek(target.id).map(Some), None)? else { return Ok(false) };
        if child.height == 0 {
            return Ok(true);
        }
        let lens = Lens::of_edge(&node.edge_span(i), &target.prepend);
        Ok(most_at_one_edge(&edge.layers, &lens, &child) >= self.cx.limits.node / 2)
    }

    /// Moves all messages of edge `i` of node `id` into its child, making the child simple first,
    /// and takes in what the child becomes: one node, several, or none. If upserts make a leaf much larger, those of
    /// its upper keys stay where they are; some go down always.
    pub fn flush_edge(&mut self, id: NodeId, i: usize) -> Result<()> {
        let mut parent = self.load(id)?;
        let live = parent.edge_span(i);
        let layers = parent.take_layers(i);
        let child = parent.edges()[i].child.clone();
        let lift = Lens::of_edge(&live, &Default::default());
        let layers: Vec<Layer> = layers.iter().map(|l| l.through(&lift)).collect();

        let (child_id, mut node) = match child {
            Some(target) => {
                let node =
                    self.load_below(target.id, parent.height)?.simple(&live, &target, self.cx.pager)?;
                (self.is_private(target.id).then_some(target.id), node)
            }
            None => (None, self.fresh_child(parent.height, &layers, lift.apply_span(&live))?),
        };
        assert_eq!(node.span, lift.apply_span(&live), "the child is not simple: flushing it would lose keys");
        assert!(node.height < parent.height, "messages are flushed into a node that is not below");
        if node.height > 0 {
            for layer in layers {
                node = self.absorb(node, layer)?;
            }
            let mut parts = self.within_limits(child_id, node)?;
            match parts.pop() {
                Some((Some(child_id), child)) if parts.is_empty() && self.fits_inside(&parent, &child) => {
                    self.remove(child_id)?;
                    parent = parent.with_edges_of(i, child);
                }
                last => {
                    parts.extend(last);
                    parent = self.attach(parent, i, parts)?;
                }
            }
        } else {
            let filled = self.fill_leaf(node, self.at_once(layers)?)?;
            let mut parts = Vec::with_capacity(filled.parts.len());
            for (number, leaf) in std::iter::once(child_id).chain(std::iter::repeat(None)).zip(filled.parts) {
                parts.extend(self.parts(number, leaf)?);
            }
            let down = lift.inverse();
            parent.put_layers(i, filled.left.iter().map(|l| l.through(&down)).collect());
            parent = self.attach(parent, i, parts)?;
        }
        // The reference count of a child says whether it may be merged in place, and it is right only when the parent
        // has been put into the edit.
        self.put(id, parent.clone())?;
        let parent = self.merge_small(parent, i)?;
        self.put(id, parent)
    }

    /// Layers for a leaf. It is built anew for each that it takes in, and so it takes them in as one, or as few as they
    /// fit.
    fn at_once(&self, layers: Vec<Layer>) -> Result<Vec<Layer>> {
        let (pager, merge) = (self.cx.pager, self.cx.merge);
        for pair in layers.windows(2) {
            check_order(&pair[0], &pair[1])?;
        }
        // The newest are the smallest.
        let mut merged: Vec<Layer> = Vec::new();
        for older in layers.into_iter().rev() {
            let both = match merged.last() {
                Some(newer) => newer.over_unless_long(&older, pager, merge)?,
                None => None,
            };
            match (both, merged.last_mut()) {
                (Some(both), Some(newer)) => *newer = both,
                _ => merged.push(older),
            }
        }
        merged.reverse();
        assert!(merged.is_sorted_by_key(|layer| layer.newest), "layers for a leaf are out of order");
        Ok(merged)
    }

    /// Node `id`, put anew without levels below it that do nothing, at the least height.
    fn flattened(&mut self, id: NodeId) -> Result<Node> {
        let before = self.load(id)?;
        let (high, span) = (before.height, before.span.clone());
        let (node, taken) = self.flatten(before)?;
        let node = self.lowest(node)?;
        assert!(node.height <= high, "a node without levels that do nothing is higher than with them");
        assert_eq!(node.span, span, "a node without levels that do nothing holds other keys");
        self.put(id, node.clone())?;
        self.reclaim(&taken)?;
        Ok(node)
    }

    /// True if a child has so few edges that its parent can take them over, and a level goes.
    pub(crate) fn fits_inside(&self, parent: &Node, child: &Node) -> bool {
        let edges = parent.edges().len() + child.edges().len() - 1;
        edges <= self.cx.limits.fanout / 2 && pending(child) <= self.cx.limits.node / 4
    }

    /// The node at the least height that its children and resting Gotos allow. Only for nodes above which no Goto
    /// rests: its target might be too high for the lowered node.
    pub(crate) fn lowest(&self, mut node: Node) -> Result<Node> {
        node.height = self.height_needed(&node)?;
        Ok(node)
    }

    /// The least height that the children and resting Gotos of a node allow.
    pub(crate) fn height_needed(&self, node: &Node) -> Result<u8> {
        let mut height = 1;
        for edge in node.edges() {
            match &edge.child {
                Some(child) => height = height.max(self.height(child.id)? + 1),
                None => {
                    let gotos = edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref());
                    for target in gotos {
                        height = height.max(self.height(target.id)? + 2);
                    }
                }
            }
        }
        if height > node.height {
            return Err(Error::corrupt("node", 0, "it is lower than what hangs below it"));
        }
        Ok(height)
    }

    /// A node for an edge that leads nowhere yet: a leaf, or where Gotos wait, one right above the
    /// highest target. There that Goto is converted into an edge. In a taller one all might rest, and a parent
    /// with room for it would take it back as it was: the flush would have done nothing.
    fn fresh_child(&self, parent_height: u8, layers: &[Layer], span: Span) -> Result<Node> {
        let gotos = layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref());
        let Some(height) = gotos.map(|t| self.height(t.id)).reduce(|a, b| Ok(a?.max(b?))).transpose()? else {
            return Ok(Node::empty_leaf(span));
        };
        if height.saturating_add(1) >= parent_height {
            return Err(Error::corrupt("message", 0, "a Goto rests too low above its target"));
        }
        let edge = Edge { lo: span.lo.clone(), ..Default::default() };
        Ok(Node { height: height + 1, span, body: Body::Interior(vec![edge]) })
    }

    /// `node`, whose number is `id` if it has one, as parts within the limits of width and size. The first
    /// keeps the number.
    pub(crate) fn parts(&self, id: Option<NodeId>, node: Node) -> Result<Vec<NodePart>> {
        let pieces = self.split_if_large(node)?.into_iter();
        Ok(std::iter::once(id).chain(std::iter::repeat(None)).zip(pieces).collect())
    }

    /// The interior `node`, whose number is `id` if it has one, within all limits: parted where it is too
    /// wide, what waits in it flushed where that is too much, without levels below it that do nothing, at the
    /// least height.
    pub(crate) fn within_limits(&mut self, id: Option<NodeId>, node: Node) -> Result<Vec<NodePart>> {
        // Parted first, since flushing goes through all edges of a node for each that it flushes. All stand
        // in the edit before children are judged by their counts.
        let mut ids = Vec::new();
        for (id, node) in self.parts(id, node)? {
            ids.push(self.put_or_create(id, node)?);
        }
        let mut parts = Vec::with_capacity(ids.len());
        for id in ids {
            assert!(self.count(id) <= 1, "node {id} is shared and flushed");
            self.relieve(id)?;
            let node = self.flattened(id)?;
            parts.extend(self.parts(Some(id), node)?);
        }
        Ok(parts)
    }

    fn put_or_create(&mut self, id: Option<NodeId>, node: Node) -> Result<NodeId> {
        match id {
            Some(id) => self.put(id, node).map(|()| id),
            None => Ok(self.create(node)),
        }
    }

    /// Replaces edge `i` of `parent` by edges to `parts`, which together cover it. Numbers of parts without
    /// content are given up.
    pub(crate) fn attach(&mut self, mut parent: Node, i: usize, parts: Vec<NodePart>) -> Result<Node> {
        let live = parent.edge_span(i);
        let lift = Lens::of_edge(&live, &Default::default());
        let Body::Interior(edges) = &mut parent.body else {
            unreachable!("pieces hang below interior nodes")
        };
        let old = edges.remove(i);
        let side_by_side = parts.is_sorted_by(|(_, a), (_, b)| a.span.hi.as_ref() == Some(&b.span.lo));
        assert!(side_by_side, "parts of a node leave keys out or overlap");
        let ends = parts.last().is_some_and(|(_, last)| lift.apply_span(&live).hi == last.span.hi);
        assert!(ends, "parts do not end where their edge does");
        let mut new = Vec::with_capacity(parts.len());
        for (id, piece) in parts {
            let upper = lift.inverse().apply_span(&piece.span);
            let part = upper.intersect(&live).unwrap_or(upper);
            let child = if piece.is_void() {
                id.map_or(Ok(()), |id| self.remove(id))?;
                None
            } else {
                let mut node = piece.lifted(part.common_prefix_len() - lift.strip.len());
                if node.height > 0 {
                    node = self.lowest(node)?;
                }
                Some(Target::plain(self.put_or_create(id, node)?))
            };
            let layers = old.layers_within(&live, &part, self.cx.pager)?;
            let mut edge = Edge { lo: part.lo, child, layers, loose: false };
            edge.drop_idle();
            new.push(edge);
        }
        assert!(
            new.first().is_some_and(|edge| edge.lo == live.lo),
            "parts do not begin where their edge does"
        );
        assert!(new.is_sorted_by(|a, b| a.lo < b.lo), "parts of an edge are out of order");
        edges.splice(i..i, new);
        Ok(parent)
    }
}

/// Most bytes of the points of `layers` that go to one edge of `child`, which shows their keys through
/// `lens`: by pages, each counted where it begins.
fn most_at_one_edge(layers: &[Layer], lens: &Lens, child: &Node) -> usize {
    let mut bytes = vec![0; child.edges().len()];
    for page in layers.iter().flat_map(|layer| &layer.run.pages) {
        if let Some(bytes) = bytes.get_mut(child.edge_at(&lens.apply(&page.first_key()))) {
            *bytes += page.raw as usize;
        }
    }
    bytes.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dag::layer::run::RunBuilder,
        node::{Run, message::Msg},
    };
    use bytes::Bytes;

    /// Puts of `p/0000` and so on, in pages of 500 bytes.
    fn run(numbers: impl Iterator<Item = u32>) -> Run {
        let mut writer = RunBuilder::new(500);
        numbers.for_each(|i| writer.push(format!("p/{i:04}").into(), Msg::Put(Bytes::from_static(&[1; 90]))));
        writer.finish()
    }

    #[test]
    fn what_goes_on_together_is_told_from_what_parts() {
        let edge = |lo: String| Edge { lo: lo.into(), ..Default::default() };
        let child = Node {
            height: 1,
            span: Span::all(),
            body: Body::Interior(
                (0..8).map(|i| edge(if i == 0 { String::new() } else { format!("q{i}") })).collect(),
            ),
        };
        // The edge shows p/ as q.
        let lens = Lens::new("p/".into(), "q".into());
        let most = |run: Run| {
            let all: u32 = run.pages.iter().map(|page| page.raw).sum();
            let layers = [Layer { run, ..Default::default() }];
            (8.0 * most_at_one_edge(&layers, &lens, &child) as f64 / f64::from(all.max(1))).round() as usize
        };
        assert_eq!(most(run((0..8000).step_by(80))), 1, "all over: an eighth at each edge");
        assert_eq!(most(run(7000..7100)), 8, "in order at the end: all at the last");
        assert_eq!(most(run(2950..3050)), 4, "across a bound: half at each side");
        assert_eq!(most(Run::default()), 0);
    }
}
