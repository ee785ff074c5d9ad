//! Structural work around pages and headers that cannot be read.
//!
//! An edit that meets a page or a header that cannot be read is dropped, and made again with that place known
//! (`store/unreadable`): messages then wait at the edges whose flush would have to read there, and all other edges
//! are flushed. An edge at which many messages wait is split around the bad page, so that only messages for keys of
//! that page wait. If there are many of these alone, the edge is split among them, so that nodes do not become larger
//! than others. A delete that covers a bad page need not read it, so it is flushed and removes the damage; a range
//! message that covers the edge replaces it in any case. I/O: where damage is known, headers of children with
//! messages.

use crate::{
    dag::edit::Edit,
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span, Spans, behind},
    node::{Body, Edge, Node, NodeId, PageRef},
};

/// An edge is parted around what is bad when this fraction (1/n) of a node's size waits there.
const WAITING_FRACTION: usize = 16;

impl Error {
    /// The same, with the keys that it hides.
    pub(crate) fn about(self, keys: &Span) -> Self {
        match self {
            Error::Corrupt { what, offset, detail } => {
                let to = keys.hi.as_ref().map(|hi| format!(" to {hi:?}")).unwrap_or_default();
                Error::Corrupt { what, offset, detail: format!("{detail} (keys from {:?}{to})", keys.lo) }
            }
            other => other,
        }
    }
}

/// The keys from the first to the last one of a page.
fn span_of(page: &PageRef) -> Span {
    Span { lo: page.first_key(), hi: Some(behind(&page.last_key())) }
}

impl Edit<'_> {
    /// Whether a flush of edge `i` of node `id` would read what cannot be read.
    pub(crate) fn is_unreadable_at(&self, id: NodeId, i: usize) -> Result<bool> {
        Ok(self.cx.pager.knows_damage() && self.unreadable_at(&self.load(id)?, i)?.len() > 0)
    }

    /// The ranges of edge `i` of `node`, which was loaded for a change, for which a flush would read what cannot be
    /// read.
    pub(crate) fn unreadable_at(&self, node: &Node, i: usize) -> Result<Spans> {
        let mut bad = Spans::default();
        let Some(edge) = node.edges().get(i) else { return Ok(bad) };
        if !self.cx.pager.knows_damage() {
            return Ok(bad);
        }
        let live = node.edge_span(i);
        let is_bad = |page: &&PageRef| self.cx.pager.is_unreadable(page);
        let waiting = edge.layers.iter().flat_map(|layer| &layer.run.pages);
        waiting.filter(is_bad).filter_map(|p| span_of(p).intersect(&live)).for_each(|part| bad.insert(part));
        let Some(target) = &edge.child else { return Ok(bad) };
        let child = match self.load(target.id) {
            Ok(child) => child,
            Err(error) if error.is_damage() => {
                bad.insert(live);
                return Ok(bad);
            }
            Err(error) => return Err(error),
        };
        let lens = Lens::of_edge(&live, &target.prepend);
        let image = lens.apply_span(&live);
        let mut deleted = Spans::default();
        let ranges = edge.layers.iter().flat_map(|layer| &layer.ranges);
        ranges.filter(|range| range.target.is_none()).for_each(|range| deleted.insert(range.span.clone()));
        for part in child.pages().filter(is_bad).filter_map(|page| span_of(page).intersect(&image)) {
            let part = lens.inverse().apply_span(&part);
            // A delete takes whole pages out without a look at them.
            if !deleted.covers(&part) {
                bad.insert(part);
            }
        }
        Ok(bad)
    }

    /// Parts edges of node `id` around what cannot be read, where much waits; whether there was such an edge.
    pub(crate) fn part_around_damage(&mut self, id: NodeId) -> Result<bool> {
        let limits = self.cx.limits;
        let mut node = self.load(id)?;
        let edges = node.edges();
        let heavy = (0..edges.len()).filter(|&i| edges[i].pending() >= limits.node / WAITING_FRACTION);
        let parted = |i| Some(self.parted_at(&node, i).transpose()?.map(|parts| (i, parts)));
        let Some((i, parts)) = heavy.filter_map(parted).next().transpose()? else { return Ok(false) };
        if let Body::Interior(edges) = &mut node.body {
            edges.splice(i..=i, parts);
        }
        self.put(id, node)?;
        Ok(true)
    }

    /// What edge `i` of `node` is parted into around damage, if that makes a difference.
    fn parted_at(&self, node: &Node, i: usize) -> Result<Option<Vec<Edge>>> {
        let bad = self.unreadable_at(node, i)?;
        let Some(edge) = node.edges().get(i).filter(|_| bad.len() > 0) else { return Ok(None) };
        let live = node.edge_span(i);
        let spans: Vec<Span> = bad.iter().collect();
        let mut parts = live.without_all(&spans);
        parts.extend(spans);
        parts.sort_by(|a, b| a.lo.cmp(&b.lo));
        if parts.len() < 2 {
            let Some(middle) = middle_of(edge, &live).filter(|_| edge.pending() > self.cx.limits.node) else {
                return Ok(None);
            };
            let below = Span { lo: live.lo.clone(), hi: Some(middle.clone()) };
            parts = vec![below, Span { lo: middle, hi: live.hi.clone() }];
        }
        let side_by_side = parts.is_sorted_by(|a, b| a.hi.as_ref() == Some(&b.lo));
        let (first, last) = (parts.first().map(|part| &part.lo), parts.last().map(|part| &part.hi));
        let covers = side_by_side && first == Some(&live.lo) && last == Some(&live.hi);
        assert!(covers, "an edge that is parted around damage leaves keys out");
        let pager = self.cx.pager;
        let edges: Result<Vec<Edge>> = parts.iter().map(|part| edge.narrowed(&live, part, pager)).collect();
        or_if_damaged(edges.map(Some), None)
    }
}

/// A key that parts what waits at an edge in two halves, about.
fn middle_of(edge: &Edge, live: &Span) -> Option<bytes::Bytes> {
    let pages = || edge.layers.iter().flat_map(|layer| &layer.run.pages);
    let mut firsts: Vec<_> = pages().map(PageRef::first_key).filter(|key| *key > live.lo).collect();
    firsts.sort_unstable();
    firsts.get(firsts.len() / 2).cloned()
}
