//! Splits nodes that are too large, and merges those that are too small.
//!
//! A leaf is split at the shortest separator between the keys at 1/4 and at 3/4 of its bytes, so that few files and
//! directories lie in two leaves (FAST'20 section 4, "Preferential splitting": two key reads, no scan). If there is a
//! separator of about the same length between two extents of pages, the leaf is split there, so that both halves keep
//! their extents. Works on nodes in memory; the caller attaches the results.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span, behind, common_prefix},
    node::{Body, Edge, Node, PageLoc, PageRef, Run, Target},
};

/// Nodes that together cover what one covered, in order, all in the local keys of that one.
pub(crate) type Pieces = Vec<Node>;

/// A leaf below this fraction (1/n) of the node size looks for a neighbour to merge with.
const SMALL_LEAF_FRACTION: usize = 4;

/// A separator between two extents may be longer than the shortest one by so many bytes. That is enough to cut within a
/// file or a series of numbered keys, and too little to cut within a file instead of between two.
const BORDER_SLACK_BYTES: usize = 2;

impl Edit<'_> {
    /// The node, or the pieces of it if it is over its limits.
    pub fn split_if_large(&self, node: Node) -> Result<Pieces> {
        match node.body {
            Body::Leaf(ref run) if run.bytes() > self.cx.limits.node => self.split_leaf(node),
            Body::Leaf(_) => Ok(vec![node]),
            Body::Interior(edges) => {
                let Node { height, span, .. } = node;
                let ends = self.edge_cuts(&edges);
                Ok(parted(edges, &ends, &span, height))
            }
        }
    }

    /// The places to cut a list of edges so that each part is within the limits of a node. Cost: as that of sorting
    /// them.
    fn edge_cuts(&self, edges: &[Edge]) -> Vec<usize> {
        let limits = self.cx.limits;
        if edges.len() <= limits.fanout.min(2) {
            return Vec::new();
        }
        let mut bytes = Vec::with_capacity(edges.len() + 1);
        bytes.push(0);
        for edge in edges {
            bytes.push(bytes.last().unwrap_or(&0) + edge.bytes());
        }
        let shared: Vec<usize> = std::iter::once(0)
            .chain(edges.windows(2).map(|pair| common_prefix(&pair[0].lo, &pair[1].lo)))
            .collect();
        let mut cuts = Vec::new();
        let mut parts = vec![(0, edges.len())];
        while let Some((from, to)) = parts.pop() {
            let large =
                to - from > limits.fanout || (to - from > 2 && bytes[to] - bytes[from] > limits.node / 2);
            if large && let Some(at) = edge_pivot(&shared, from..to) {
                assert!(from < at && at < to, "a list of edges is cut at one of its ends");
                cuts.push(at);
                parts.extend([(from, at), (at, to)]);
            }
        }
        cuts.sort_unstable();
        cuts
    }

    /// Splits a leaf into two or more pieces, each within the limits if its keys allow that.
    fn split_leaf(&self, node: Node) -> Result<Pieces> {
        let Body::Leaf(run) = &node.body else { unreachable!("asked of leaves only") };
        let Some(pivot) = self.leaf_pivot(run)? else { return Ok(vec![node]) };
        let pager = self.cx.pager;
        let left = Span { lo: node.span.lo.clone(), hi: Some(pivot.clone()) };
        let right = Span { lo: pivot, hi: node.span.hi.clone() };
        assert!(!left.is_empty() && !right.is_empty(), "a pivot outside its node");
        let mut pieces = self.split_if_large(node.clone().clipped(&left, pager)?)?;
        pieces.extend(self.split_if_large(node.clipped(&right, pager)?)?);
        assert!(are_side_by_side(&pieces), "pieces of a leaf leave keys out");
        Ok(pieces)
    }

    /// The shortest key that separates the quarter of a leaf's bytes from its last quarter; `None`
    /// if the leaf has one key only.
    fn leaf_pivot(&self, run: &Run) -> Result<Option<Bytes>> {
        let Some(first) = run.pages.first().map(|p| p.first_key()) else { return Ok(None) };
        let total = run.bytes();
        let (low, high) = (self.key_at(run, total / 4)?, self.key_at(run, total / 4 * 3)?);
        if low < high {
            let shortest = high.slice(..common_prefix(&low, &high) + 1);
            let border = extent_border(run, total / 4, total / 4 * 3, shortest.len() + BORDER_SLACK_BYTES);
            return Ok(Some(border.unwrap_or(shortest)));
        }
        if first < high {
            return Ok(Some(high));
        }
        // One pair fills most of the leaf and is its first: cut behind it.
        let above = Span { lo: behind(&first), hi: None };
        Ok(run.slice(&above, self.cx.pager)?.pages.first().map(|p| p.first_key()))
    }

    /// The key of the pair at `offset` bytes from the start of a run. I/O: one page.
    fn key_at(&self, run: &Run, offset: usize) -> Result<Bytes> {
        let mut left = offset;
        for page in &run.pages {
            // Bytes are counted as for the whole leaf, with what the header has of a page. Otherwise a run of small
            // pages with long keys would be cut behind its first pair, again and again (fs: allocate.rs).
            let bytes = page.bytes();
            if left >= bytes {
                left -= bytes;
                continue;
            }
            if page.count == 1 {
                return Ok(page.first_key());
            }
            let loaded = or_if_damaged(self.cx.pager.page(None, page).map(Some), None)?;
            let Some(loaded) = loaded else { return Ok(page.first_key()) };
            for i in 0..loaded.len() {
                let len = loaded.bytes_of(i..i + 1);
                if left < len {
                    return Ok(page.entry(&loaded, i).0);
                }
                left -= len;
            }
            return Ok(page.last_key());
        }
        Ok(run.pages.last().map(|p| p.last_key()).unwrap_or_default())
    }

    /// Merges the child of edge `i` with that of a neighbour, if it has become small and both are
    /// private. I/O: at most the headers of the neighbours.
    pub fn merge_small(&mut self, mut parent: Node, i: usize) -> Result<Node> {
        let (span, height) = (parent.span.clone(), parent.height);
        let mut i = i;
        if let Body::Interior(edges) = &mut parent.body {
            let at = edges.get(i).map(|edge| edge.lo.clone());
            *edges = self.joined(std::mem::take(edges), &span, height)?;
            i = at.map_or(i, |lo| edges.partition_point(|e| e.lo <= lo).saturating_sub(1));
        }
        let Some(target) = parent.edges().get(i).and_then(|e| e.child.as_ref()) else { return Ok(parent) };
        let node = self.load(target.id)?;
        if !self.is_small(&node) {
            return Ok(parent);
        }
        for left in [Some(i), i.checked_sub(1)].into_iter().flatten() {
            if let Some(merged) = or_if_damaged(self.merge_pair(&parent, left), None)? {
                return Ok(merged);
            }
        }
        Ok(parent)
    }

    fn is_small(&self, node: &Node) -> bool {
        match &node.body {
            Body::Leaf(run) => run.bytes() < self.cx.limits.node / SMALL_LEAF_FRACTION,
            Body::Interior(edges) => edges.len() < self.cx.limits.fanout / SMALL_LEAF_FRACTION,
        }
    }

    /// `parent` after the children of edges `l` and `l + 1` were merged, if that is allowed.
    fn merge_pair(&mut self, parent: &Node, l: usize) -> Result<Option<Node>> {
        let [Some(left), Some(right)] = [l, l + 1].map(|i| parent.edges().get(i)) else { return Ok(None) };
        let (Some(a), Some(b)) = (&left.child, &right.child) else { return Ok(None) };
        if !left.layers.is_empty() && !right.layers.is_empty() {
            // Messages wait above both. Their batches interleave, and one of the two is flushed soon anyway.
            return Ok(None);
        }
        if a.id == b.id
            || !self.is_private(a.id)
            || !self.is_private(b.id)
            || self.height(a.id)? != self.height(b.id)?
        {
            return Ok(None);
        }
        let (live_a, live_b) = (parent.edge_span(l), parent.edge_span(l + 1));
        let both = Span { lo: live_a.lo.clone(), hi: live_b.hi.clone() };
        let shared = both.common_prefix_len();
        // Both in the local keys of the wider edge.
        let widen = |node: Node, live: &Span| {
            let head = live.common_prefix();
            node.through(&Lens::new(Bytes::new(), head.slice(shared..)))
        };
        let pager = self.cx.pager;
        let node_a = widen(self.load(a.id)?.simple(&live_a, a, pager)?, &live_a);
        let node_b = widen(self.load(b.id)?.simple(&live_b, b, pager)?, &live_b);
        let limits = self.cx.limits;
        let height = node_a.height;
        assert_eq!(height, node_b.height, "nodes of two heights are merged");
        let apart = node_a.span.hi.as_ref().is_some_and(|hi| *hi <= node_b.span.lo);
        assert!(apart, "nodes that are merged overlap");
        let span = Span { lo: node_a.span.lo.clone(), hi: node_b.span.hi.clone() };
        let body = match (node_a.body, node_b.body) {
            (Body::Leaf(mut a), Body::Leaf(b)) if a.bytes() + b.bytes() <= limits.node / 4 * 3 => {
                a.pages.extend(b.pages);
                Body::Leaf(a)
            }
            (Body::Interior(mut a), Body::Interior(b)) => {
                let pending: usize = a.iter().chain(&b).map(Edge::pending).sum();
                // Messages that wait above one half may be older than those inside the other.
                let waiting = !left.layers.is_empty() || !right.layers.is_empty();
                if waiting || a.len() + b.len() > limits.fanout / 2 || pending > limits.node / 2 {
                    return Ok(None);
                }
                a.extend(b);
                Body::Interior(a)
            }
            _ => return Ok(None),
        };
        let (keep, gone) = (a.id, b.id);
        let layers = [&left.layers[..], &right.layers].concat();
        let edge = Edge { lo: left.lo.clone(), child: Some(Target::plain(keep)), layers, loose: false };
        self.put(keep, Node { height, span, body })?;
        self.remove(gone)?;
        let mut merged = parent.clone();
        if let Body::Interior(edges) = &mut merged.body {
            edges.splice(l..l + 2, [edge]);
        }
        Ok(Some(merged))
    }
}

/// A separator of at most `len` bytes between two pages of different extents, the nearest to the middle
/// between the offsets `low` and `high`. No I/O.
fn extent_border(run: &Run, low: usize, high: usize, len: usize) -> Option<Bytes> {
    let extent = |page: &PageRef| match &page.loc {
        PageLoc::Foreign(extent, _) if page.is_placed() => Some(extent.id),
        _ => None,
    };
    let mut at = 0;
    let mut best: Option<(usize, Bytes)> = None;
    for pair in run.pages.windows(2) {
        let [before, next] = pair else { continue };
        at += before.bytes();
        if at < low || at > high || extent(before) == extent(next) {
            continue;
        }
        let (last, first) = (before.last_key(), next.first_key());
        let separator = first.slice(..(common_prefix(&last, &first) + 1).min(first.len()));
        let off = at.abs_diff(low.midpoint(high));
        if separator.len() <= len && best.as_ref().is_none_or(|(other, _)| off < *other) {
            best = Some((off, separator));
        }
    }
    best.map(|(_, separator)| separator)
}

/// Nodes with the edges of one over `span`, cut where `cuts` say.
fn parted(edges: Vec<Edge>, cuts: &[usize], span: &Span, height: u8) -> Pieces {
    let bounds: Vec<_> = cuts.iter().filter_map(|&at| edges.get(at)).map(|edge| edge.lo.clone()).collect();
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let mut rest = edges.into_iter();
    let mut from = 0;
    let mut lo = span.lo.clone();
    for (&at, bound) in cuts.iter().zip(bounds) {
        let edges = rest.by_ref().take(at - from).collect();
        let hi = Some(bound.clone());
        let piece = Span { lo: std::mem::replace(&mut lo, bound), hi };
        pieces.push(Node { height, span: piece, body: Body::Interior(edges) });
        from = at;
    }
    let last = Span { lo, hi: span.hi.clone() };
    pieces.push(Node { height, span: last, body: Body::Interior(rest.collect()) });
    assert!(pieces.iter().all(|piece| !piece.edges().is_empty()), "a piece of a node without edges");
    assert!(are_side_by_side(&pieces), "pieces of a node leave keys out");
    pieces
}

/// True if each piece ends where the next begins.
fn are_side_by_side(pieces: &[Node]) -> bool {
    pieces.is_sorted_by(|a, b| a.span.hi.as_ref() == Some(&b.span.lo))
}

/// The edge at which the edges `part` are cut in two: in the middle half, that which shares the shortest prefix with
/// the edge before it. `shared` has these lengths.
fn edge_pivot(shared: &[usize], part: std::ops::Range<usize>) -> Option<usize> {
    let n = part.len();
    if n < 2 {
        return None;
    }
    let (from, to) = ((n / 4).max(1), (n * 3 / 4).max(2).min(n));
    let middle = part.start + n / 2;
    (part.start + from..part.start + to).min_by_key(|&i| (shared[i], i.abs_diff(middle)))
}
