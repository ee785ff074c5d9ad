//! Merging neighbouring edges that show the same child by the same map.
//!
//! A clone adds two edges to its node, its own and one for the keys behind it; a deleted clone must leave none. So
//! neighbouring edges without a child and without messages become one, edges that show the same child by the same map
//! become one, and so do two such edges with an empty edge between them, if the child has nothing in the range of
//! that. Otherwise each deleted clone would leave an edge for ever, and a reference that keeps the child shared. This
//! is done wherever edges of a node change.

use crate::{
    dag::edit::Edit,
    error::Result,
    key::{Lens, Span, join},
    node::{Edge, Target},
};

/// Joins neighbouring edges with nothing below and nothing pending.
pub(crate) fn join_empty(edges: &mut Vec<Edge>) {
    edges.dedup_by(|next, kept| next.is_void() && kept.is_void());
}

impl Edit<'_> {
    /// `edges`, of a node of that height over `span`, in which edges that show the same child by the same map are
    /// merged. Cost: in proportion to their number. I/O: if an empty edge lies between two views of the same child,
    /// headers below that.
    pub(crate) fn joined(&self, edges: Vec<Edge>, span: &Span, height: u8) -> Result<Vec<Edge>> {
        let bounds: Vec<_> = edges.iter().map(|e| e.lo.clone()).collect();
        let end_of = |i: usize| bounds.get(i + 1).cloned().or_else(|| span.hi.clone());
        let mut kept: Vec<Edge> = Vec::with_capacity(edges.len());
        for (i, edge) in edges.into_iter().enumerate() {
            if edge.is_void() && kept.last().is_some_and(Edge::is_void) {
                continue;
            }
            let live = Span { lo: edge.lo.clone(), hi: end_of(i) };
            if let Some((back, target)) = self.same_view(&kept, &edge, &live, height)? {
                kept.truncate(kept.len() + 1 - back);
                if let Some(first) = kept.last_mut() {
                    first.child = Some(target);
                    first.loose = true;
                    first.add_beside(edge.layers, self.cx.pager, self.cx.merge)?;
                }
                continue;
            }
            kept.push(edge);
        }
        assert!(kept.first().is_none_or(|edge| edge.lo == span.lo), "joined edges leave keys out");
        assert!(kept.is_sorted_by(|a, b| a.lo < b.lo), "joined edges are out of order");
        Ok(kept)
    }

    /// If the last of `kept`, or the one before an empty one, shows the same child as `edge` does over
    /// `live`, and one edge could show all of it: how many back that is, and what it would show.
    fn same_view(
        &self,
        kept: &[Edge],
        edge: &Edge,
        live: &Span,
        height: u8,
    ) -> Result<Option<(usize, Target)>> {
        let Some(child) = &edge.child else { return Ok(None) };
        // Edges may have been parted around what cannot be read.
        if self.cx.pager.knows_damage() {
            return Ok(None);
        }
        let (before, gap) = match kept {
            [.., before, gap] if gap.is_void() => (before, Some(gap)),
            [.., before] => (before, None),
            [] => return Ok(None),
        };
        let Some(same) = before.child.as_ref().filter(|other| other.id == child.id) else { return Ok(None) };
        let end = gap.map_or(&live.lo, |gap| &gap.lo);
        let low = Span { lo: before.lo.clone(), hi: Some(end.clone()) };
        let Some(both) = one_map(&low, same, live, child) else { return Ok(None) };
        let Some(gap) = gap else { return Ok(Some((1, both))) };
        let whole = Span { lo: low.lo, hi: live.hi.clone() };
        let hidden = Span { lo: gap.lo.clone(), hi: Some(live.lo.clone()) };
        let shown = both.narrowed(&whole, &hidden);
        let image = Lens::of_edge(&hidden, &shown.prepend).apply_span(&hidden);
        // What the child does not hold at all must not come to be shown.
        let inside = self.peek(shown.id)?.span.covers(&image);
        Ok((inside && self.shows_nothing(&hidden, &shown, height)?).then_some((2, both)))
    }
}

/// The target of one edge from the start of `low` to the end of `high` that shows what `a` does over `low`
/// and `b` over `high`, both of the same node, if there is one.
fn one_map(low: &Span, a: &Target, high: &Span, b: &Target) -> Option<Target> {
    let whole = Span { lo: low.lo.clone(), hi: high.hi.clone() };
    let strip = whole.common_prefix_len();
    let head = |span: &Span| span.lo.slice(strip..span.common_prefix_len());
    let base = a.prepend.strip_suffix(&head(low)[..])?;
    let prepend = a.prepend.slice(..base.len());
    (join(&prepend, &head(high)) == b.prepend).then(|| Target { prepend, ..a.clone() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// Two ranges, one above the other.
    fn spans() -> impl Strategy<Value = (Span, Span)> {
        let key = prop::collection::vec(prop::sample::select(vec![0u8, 0x61, 0xff]), 0..4);
        (prop::collection::btree_set(key, 3..=4), any::<bool>()).prop_map(|(keys, open)| {
            let keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
            let low = Span { lo: keys[0].clone(), hi: Some(keys[1].clone()) };
            let lo = if open { keys[1].clone() } else { keys[keys.len() - 2].clone() };
            (low, Span { lo, hi: if open && keys.len() > 3 { None } else { keys.last().cloned() } })
        })
    }

    fn key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop::sample::select(vec![0u8, 0x61, 0xff]), 0..4).prop_map(Bytes::from)
    }

    proptest! {
        #[test]
        fn parts_of_one_edge_are_one_map((low, high) in spans(), prepend in key()) {
            let whole = Span { lo: low.lo.clone(), hi: high.hi.clone() };
            let target = Target { prepend, ..Target::plain(7) };
            let both = one_map(&low, &target.narrowed(&whole, &low), &high, &target.narrowed(&whole, &high));
            prop_assert_eq!(both, Some(target));
        }

        #[test]
        fn one_map_shows_what_both_do((low, high) in spans(), p in key(), q in key(), k in key()) {
            let (p, q) = (Target { prepend: p, ..Target::plain(7) }, Target { prepend: q, ..Target::plain(7) });
            if let Some(both) = one_map(&low, &p, &high, &q) {
                let wide = Lens::of_edge(&Span { lo: low.lo.clone(), hi: high.hi.clone() }, &both.prepend);
                for (part, target) in [(&low, &p), (&high, &q)] {
                    if part.contains(&k) {
                        prop_assert_eq!(wide.apply(&k), Lens::of_edge(part, &target.prepend).apply(&k));
                    }
                }
            }
        }
    }
}
