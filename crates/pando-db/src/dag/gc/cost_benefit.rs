//! Cost and benefit of pushing deletes down: an estimate, from headers, of the bytes that this would free.
//!
//! Beside steady writes the deletes at an edge are pushed down only if they free enough together, because removing one
//! small value from a leaf costs writing the whole leaf. So the space that stays unfreed is a small part of each node,
//! and each freed byte costs a bounded number of written bytes. Works on an [`Edit`], and changes nothing.
//! I/O: headers, a stated number.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span, Spans},
    node::{Body, Edge, Node, NodeId, PageRef, Target},
};

/// Deletes are pushed down beside writes if they free at least 1/n of the size of a node.
const PUSHDOWN_FRACTION: usize = 32;
/// A delete in a memtable is large if it frees at least 1/n of the size of a node.
const LARGE_DELETE_FRACTION: usize = 4;
/// Headers that are read for one estimate, a count.
const ESTIMATE_HEADERS: usize = 16;

impl Edit<'_> {
    /// True if the deletes that wait at edge `i` of `node` free enough to be flushed into the child of that edge,
    /// which is private, or if the child shows nothing any more. I/O: some headers, which are subtracted from `left`.
    pub(super) fn pays_to_push_down(&self, node: &Node, i: usize, left: &mut usize) -> Result<bool> {
        let Some(edge) = node.edges().get(i) else { return Ok(false) };
        let Some(target) = edge.child.as_ref().filter(|target| self.is_private(target.id)) else {
            return Ok(false);
        };
        if self.leads_to_nothing(edge)? {
            return Ok(true);
        }
        let enough = (self.cx.limits.node / PUSHDOWN_FRACTION).max(1);
        let live = node.edge_span(i);
        let mut estimate = Estimate { enough, bytes: 0, looks: ESTIMATE_HEADERS };
        let deleted = edge.deleted();
        if deleted.iter().next().is_some() {
            self.add_covered(&deleted, target, &live, &mut estimate)?;
        }
        let mut points =
            edge.layers.iter().flat_map(|layer| &layer.run.pages).filter(|page| page.deletes).peekable();
        if let Some(page) = points.peek().filter(|_| estimate.wants_more()) {
            let each = self.entry_bytes_at(target, &live, &page.first_key(), &mut estimate)?;
            // Which of the messages are deletes is not known without reading them.
            estimate.bytes += points.map(|page| page.count as usize).sum::<usize>().saturating_mul(each);
        }
        *left = left.saturating_sub(ESTIMATE_HEADERS - estimate.looks);
        Ok(estimate.bytes >= enough)
    }

    /// True if the child of `edge` is an interior node that shows nothing any more: only the edges that lead to it keep
    /// it. False if the child cannot be read.
    pub(super) fn leads_to_nothing(&self, edge: &Edge) -> Result<bool> {
        match &edge.child {
            Some(target) if self.height(target.id)? > 0 => {
                Ok(or_if_damaged(self.peek(target.id).map(|node| node.is_void()), false)?)
            }
            _ => Ok(false),
        }
    }

    /// True if edge `i` of `node` leads to a leaf that holds more than the edge shows. False if the leaf cannot be
    /// read. I/O: its header, if the edge is loose.
    pub(super) fn hides_part_of_leaf(&self, node: &Node, i: usize) -> Result<bool> {
        let Some(edge) = node.edges().get(i).filter(|edge| edge.loose) else { return Ok(false) };
        let Some(target) = &edge.child else { return Ok(false) };
        if self.height(target.id)? > 0 {
            return Ok(false);
        }
        let Some(child) = self.peek_readable(target.id)? else { return Ok(false) };
        let live = node.edge_span(i);
        let image = Lens::of_edge(&live, &target.prepend).apply_span(&live);
        let mut pages = child.pages();
        Ok(pages.any(|page| !image.contains(&page.first_key()) || !image.contains(&page.last_key())))
    }

    /// True if deleting `range` frees a large part of a node. Shared nodes do not count: a delete frees nothing in
    /// them. I/O: at most `left` headers.
    pub fn is_large_delete(&self, range: &Span, left: usize) -> Result<bool> {
        let mut deleted = Spans::default();
        deleted.insert(range.clone());
        let enough = (self.cx.limits.node / LARGE_DELETE_FRACTION).max(1);
        let mut estimate = Estimate { enough, bytes: 0, looks: left };
        self.add_covered(&deleted, &Target::plain(self.root), &Span::all(), &mut estimate)?;
        Ok(estimate.bytes >= enough)
    }

    /// Adds the bytes of all that `deleted` covers below `target`, which an edge with live range `live` leads to.
    fn add_covered(
        &self,
        deleted: &Spans,
        target: &Target,
        live: &Span,
        estimate: &mut Estimate,
    ) -> Result<()> {
        if !self.is_private(target.id) || !estimate.look() {
            return Ok(());
        }
        let Some(child) = self.peek_readable(target.id)? else { return Ok(()) };
        let lens = Lens::of_edge(live, &target.prepend);
        let image = lens.apply_span(live);
        let mut inside = Spans::default();
        let parts = deleted.iter().filter_map(|span| span.intersect(live));
        parts.for_each(|part| inside.insert(lens.apply_span(&part)));
        if let Body::Leaf(run) = &child.body {
            for page in &run.pages {
                let parts = inside.iter().filter(|part| page.meets(part));
                estimate.bytes +=
                    parts.map(|part| covered_bytes(page, &part)).sum::<usize>().min(page.raw as usize);
                if !estimate.wants_more() {
                    break;
                }
            }
            return Ok(());
        }
        for (i, below) in child.edges().iter().enumerate() {
            let Some(seen) = child.edge_span(i).intersect(&image) else { continue };
            let Some(target) = &below.child else { continue };
            if inside.covers(&seen) {
                // The whole node can be dropped, which is enough for any estimate.
                estimate.bytes = estimate.bytes.max(estimate.enough);
            } else if inside.iter().any(|part| part.overlaps(&seen)) {
                self.add_covered(&inside, target, &child.edge_span(i), estimate)?;
            }
            if !estimate.wants_more() {
                break;
            }
        }
        Ok(())
    }

    /// Mean bytes of an entry in the leaf that holds `key`, below `target`, which an edge with live range `live` leads
    /// to; 0 if that leaf cannot be read.
    fn entry_bytes_at(
        &self,
        target: &Target,
        live: &Span,
        key: &Bytes,
        estimate: &mut Estimate,
    ) -> Result<usize> {
        let (mut target, mut live, mut key) = (target.clone(), live.clone(), key.clone());
        while estimate.look() {
            let Some(node) = self.peek_readable(target.id)? else { break };
            key = Lens::of_edge(&live, &target.prepend).apply(&key);
            if let Body::Leaf(run) = &node.body {
                let entries: usize = run.pages.iter().map(|page| page.count as usize).sum();
                return Ok(run.bytes().checked_div(entries).unwrap_or(0));
            }
            // A sealed image may have an edge that shows more than its child holds.
            if !node.span.contains(&key) {
                break;
            }
            let i = node.edge_at(&key);
            let Some(below) = node.edges().get(i).and_then(|edge| edge.child.clone()) else { break };
            (live, target) = (node.edge_span(i), below);
        }
        Ok(0)
    }

    /// The node, or `None` if it cannot be read.
    fn peek_readable(&self, id: NodeId) -> Result<Option<std::sync::Arc<Node>>> {
        or_if_damaged(self.peek(id).map(Some), None)
    }
}

impl Edge {
    /// The ranges that the range deletes in the buffer of this edge cover.
    fn deleted(&self) -> Spans {
        let mut deleted = Spans::default();
        let ranges = self.layers.iter().flat_map(|layer| &layer.ranges);
        ranges.filter(|range| range.target.is_none()).for_each(|range| deleted.insert(range.span.clone()));
        deleted
    }
}

/// An estimate that is being made.
struct Estimate {
    /// Bytes at which the estimate ends: more make no difference.
    enough: usize,
    bytes: usize,
    /// Headers that may still be read.
    looks: usize,
}

impl Estimate {
    fn wants_more(&self) -> bool {
        self.bytes < self.enough
    }

    /// Whether one more header may be read; counts it if so.
    fn look(&mut self) -> bool {
        let may = self.looks > 0;
        self.looks = self.looks.saturating_sub(1);
        may
    }
}

/// Estimated bytes of a page of a leaf that lie in `span`, which overlaps it: at least one entry.
fn covered_bytes(page: &PageRef, span: &Span) -> usize {
    let (first, last, raw) = (page.first_key(), page.last_key(), page.raw as usize);
    if span.contains(&first) && span.contains(&last) {
        return raw;
    }
    let entry = raw / (page.count as usize).max(1);
    let bytes = ((share(&first, &last, span) * raw as f64) as usize).max(entry);
    assert!(bytes <= raw, "a part of a page is larger than the page");
    bytes
}

/// Bytes of keys, behind their common prefix, that an interpolation looks at.
const INTERPOLATED_BYTES: usize = 8;

/// The share (0 to 1) of the keys from `first` to `last` that lies in `span`, by interpolation: as if the keys were
/// spread evenly over all that are written with the same characters (digits, ASCII, or any bytes).
fn share(first: &[u8], last: &[u8], span: &Span) -> f64 {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let rest =
        |key: &[u8]| -> Vec<u8> { key.iter().copied().skip(common).take(INTERPOLATED_BYTES).collect() };
    let (begin, end) = (rest(first), rest(last));
    let all = |is: fn(&u8) -> bool| begin.iter().chain(&end).all(is);
    let (least, kinds) = match () {
        () if all(u8::is_ascii_digit) => (b'0', 10.0),
        () if all(|byte| byte.is_ascii() && *byte != 0x7f) => (b' ', 95.0),
        () => (0, 256.0),
    };
    let place = |key: &[u8]| -> f64 {
        // Clamped between the two, so that the key begins with their common prefix.
        let rest = rest(key.clamp(first, last));
        (0..INTERPOLATED_BYTES).fold(0.0, |sum, i| {
            let digit = rest.get(i).map_or(0.0, |byte| f64::from(byte.saturating_sub(least)));
            sum * kinds + digit.min(kinds - 1.0)
        })
    };
    let (from, to) = (place(first), place(last));
    let lo = place(&span.lo);
    let hi = span.hi.as_ref().map_or(to, |hi| place(hi));
    match to - from {
        whole if whole > 0.0 => ((hi - lo) / whole).clamp(0.0, 1.0),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_keys_is_guessed_from_where_they_stand() {
        let share = |lo: &str, hi: Option<&str>| {
            super::share(
                b"dir/0100",
                b"dir/0200",
                &Span::new(lo.to_string(), hi.map(|hi| hi.to_string().into())),
            )
        };
        assert!((share("dir/0150", None) - 0.5).abs() < 0.01);
        assert!((share("dir/0110", Some("dir/0120")) - 0.1).abs() < 0.01);
        assert!((share("dir/0110/", Some("dir/01100")) - 0.0).abs() < 0.01);
        assert_eq!(share("a", Some("b")), 0.0);
        assert_eq!(share("a", None), 1.0);
        let binary =
            super::share(&[7, 0, 0], &[7, 128, 0], &Span::new(vec![7, 32], Some(vec![7, 64].into())));
        assert!((binary - 0.25).abs() < 0.01);
        let names = Span::new("m", Some("n".into()));
        assert!((super::share(b"a", b"z", &names) - 0.04).abs() < 0.01);
        assert_eq!(super::share(b"a", b"a", &Span::all()), 0.0, "one key: the caller counts an entry");
    }
}
