//! Converting range messages into edges (FAST'20 section 3, "Flushing GOTO messages").
//!
//! A range message that reaches a node rests there while it can be flushed further down. A Goto whose target is too
//! near below is converted into an edge to the target, and a delete of all that an edge shows into an empty edge.
//! Guarantees: a message that rests lies within one edge, and above a child that is higher than its target.
//! I/O: headers below slivers of edges.

use std::sync::atomic::Ordering;

use crate::{
    dag::edit::Edit,
    error::{Error, Result},
    key::Span,
    node::{Body, Edge, Node, RangeMsg, Target},
};

impl Edit<'_> {
    /// Converts those of `ranges` that may not rest into edges of `node`, and returns those that rest. A conversion
    /// may merge the edge at which another range rests with neighbours whose child is too low for that range: then
    /// the other range is converted as well.
    pub fn convert_ranges(&self, node: &mut Node, ranges: Vec<RangeMsg>) -> Result<Vec<RangeMsg>> {
        let mut resting = self.convert_once(node, ranges)?;
        loop {
            let mut converting = Vec::new();
            let mut staying = Vec::with_capacity(resting.len());
            for range in resting {
                let i = node.edge_at(&range.span.lo);
                let may = match (&range.target, node.edges().get(i)) {
                    (Some(target), Some(edge)) => self.can_descend(target, edge, node.height)?,
                    _ => true,
                };
                assert!(node.edge_span(i).covers(&range.span), "a range message rests across two edges");
                if may { staying.push(range) } else { converting.push(range) }
            }
            if converting.is_empty() {
                return Ok(staying);
            }
            staying.extend(self.convert_once(node, converting)?);
            staying.sort_by(|a, b| a.span.lo.cmp(&b.span.lo));
            resting = staying;
        }
    }

    /// Converts those of `ranges` (disjoint, ascending) that may not rest into edges of `node`, in one pass over
    /// both, and returns those that rest. A converted range replaces what the node shows over it by an edge to its
    /// target: older messages in the range are dropped, edges that it covers in part are narrowed, and an edge with
    /// live data on both sides of it becomes two edges to the same child. Cost: in proportion to edges, ranges and
    /// messages of edges that are cut. I/O: headers below slivers.
    fn convert_once(&self, node: &mut Node, ranges: Vec<RangeMsg>) -> Result<Vec<RangeMsg>> {
        let pager = self.cx.pager;
        let (height, span) = (node.height, node.span.clone());
        let Body::Interior(edges) = &mut node.body else { unreachable!("leaves take no ranges in here") };
        let old = std::mem::take(edges);
        self.cx.handled.fetch_add((old.len() + ranges.len()) as u64, Ordering::Relaxed);
        let bounds: Vec<_> = old.iter().map(|e| e.lo.clone()).collect();
        let mut new: Vec<Edge> = Vec::with_capacity(old.len() + ranges.len());
        let mut resting = Vec::new();
        let mut ranges = ranges.into_iter().peekable();
        // The range that was converted last may reach into the edges that follow.
        let mut converted: Option<Span> = None;
        for (i, edge) in old.into_iter().enumerate() {
            let hi = bounds.get(i + 1).cloned().or_else(|| span.hi.clone());
            let live = Span { lo: edge.lo.clone(), hi };
            let mut rest = match &converted {
                Some(over) if over.overlaps(&live) => live.without(over).1,
                _ => Some(live.clone()),
            };
            while let Some(part) = &rest
                && let Some(range) = ranges.next_if(|range| part.is_above(&range.span.lo))
            {
                assert!(*part.lo <= *range.span.lo, "ranges are disjoint and inside their node");
                if range.target.is_none() && part.covers(&range.span) && edge.is_void() {
                    // There is nothing to delete.
                    continue;
                }
                if self.may_rest(&edge, part, height, &range)? {
                    resting.push(range);
                    continue;
                }
                self.check_below(&range, height)?;
                let (below, above) = part.without(&range.span);
                if let Some(below) = below {
                    new.push(self.sliver(edge.narrowed(&live, &below, pager)?, &below, height)?);
                }
                let loose = range.target.is_some();
                new.push(Edge { lo: range.span.lo.clone(), child: range.target, layers: Vec::new(), loose });
                converted = Some(range.span);
                rest = above;
            }
            match rest {
                Some(part) if part == live => new.push(edge),
                Some(part) => new.push(self.sliver(edge.narrowed(&live, &part, pager)?, &part, height)?),
                None => (),
            }
        }
        assert!(ranges.next().is_none(), "a range message outside its node");
        if converted.is_some() {
            new = self.joined(new, &span, height)?;
        }
        *edges = new;
        Ok(resting)
    }

    /// True if the message may rest at `edge` of a node of that height: it lies inside `live`, the part of the edge
    /// that is left, without filling it, and can still be flushed further down.
    fn may_rest(&self, edge: &Edge, live: &Span, height: u8, range: &RangeMsg) -> Result<bool> {
        if !live.covers(&range.span) || range.span.covers(live) {
            return Ok(false);
        }
        range.target.as_ref().map_or(Ok(true), |target| self.can_descend(target, edge, height))
    }

    /// True if a Goto to `target` that rests at `edge`, of a node of that height, can go on from there.
    fn can_descend(&self, target: &Target, edge: &Edge, height: u8) -> Result<bool> {
        // An edge may skip heights: it must be possible to flush what rests at it into the child that it has.
        let below = match &edge.child {
            Some(child) => self.height(child.id)?,
            None => height - 1,
        };
        Ok(self.height(target.id)? < below)
    }

    fn check_below(&self, range: &RangeMsg, height: u8) -> Result<()> {
        match &range.target {
            Some(target) if self.height(target.id)? >= height => {
                Err(Error::corrupt("message", 0, "a Goto below the height of its target"))
            }
            _ => Ok(()),
        }
    }

    /// The part of a cut edge that is left, over `live`; without its child if that shows nothing there.
    fn sliver(&self, mut edge: Edge, live: &Span, height: u8) -> Result<Edge> {
        if let Some(target) = &edge.child
            && self.shows_nothing(live, target, height)?
        {
            (edge.child, edge.loose) = (None, false);
            edge.drop_idle();
        }
        Ok(edge)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{
        dag::{
            edit::Context,
            tests::{ROOT, edge, interior, leaf, pager, ranges, tree_of},
            tree::Limits,
        },
        merge::PatchMerge,
    };

    /// Two edges to one leaf have an empty edge between them, over which a Goto may rest. When something else is
    /// converted, the three become one edge; the Goto would rest above a child that is lower than its target.
    #[test]
    fn a_goto_whose_edge_is_joined_to_a_lower_child_is_converted_as_well() {
        let (low, target, below, gone) = (2, 3, 4, 5);
        let edges = || {
            let of = |lo, child| edge(lo, child, vec![]);
            vec![of("", Some(low)), of("d", None), of("m", Some(low)), of("t", Some(gone)), of("u", None)]
        };
        let tree = tree_of([
            (ROOT, 1, interior(3, edges())),
            (low, 2, leaf("", "", &["n"])),
            (target, 1, interior(1, vec![edge("", Some(below), vec![])])),
            (below, 1, leaf("", "", &["e1"])),
            (gone, 1, leaf("t", "u", &["t1"])),
        ]);
        let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
        let limits = Limits::new(4096, None);
        let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
        let convert = |what: &[(&str, &str, Option<u64>)]| {
            let edit = Edit::new(&cx, &tree);
            let mut node = interior(3, edges());
            let resting = edit.convert_ranges(&mut node, ranges(what).ranges.to_vec()).unwrap();
            edit.finish();
            let shown = |edge: &Edge| (edge.lo.clone(), edge.child.as_ref().map(|child| child.id));
            (resting.len(), node.edges().iter().map(shown).collect::<Vec<_>>())
        };
        let goto = ("e", "f", Some(target));
        let (resting, seen) = convert(&[goto]);
        assert_eq!((resting, seen.len()), (1, 5), "vacuous: nothing rests at an empty edge");
        let (resting, seen) = convert(&[goto, ("t", "u", None)]);
        let expected =
            [("", None), ("e", Some(target)), ("f", Some(low)), ("t", None)].map(|(lo, id)| (lo.into(), id));
        assert_eq!((resting, &seen[..]), (0, &expected[..]));
    }
}
