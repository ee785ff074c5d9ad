//! Turning range messages into edges (FAST'20 section 3, "Flushing GOTO messages").
//!
//! A range message that reaches a node rests there while it can be carried on; a Goto whose target is too
//! near below turns into an edge, and so does a delete of all that an edge shows. Guarantees: what rests lies
//! within one edge, and above a child that is higher than its target. I/O: headers below slivers of edges.

use std::sync::atomic::Ordering;

use crate::{
    dag::edit::Edit,
    error::{Error, Result},
    key::Span,
    node::{Body, Edge, Node, RangeMsg, Target},
};

impl Edit<'_> {
    /// Lets `ranges` turn into edges of `node` where they may not rest; the others. One that turns may join
    /// the edge in which another was to rest with its neighbours, whose child can be too low for that: then
    /// it turns too.
    pub fn take_all_ranges(&self, node: &mut Node, ranges: Vec<RangeMsg>) -> Result<Vec<RangeMsg>> {
        let mut resting = self.take_ranges(node, ranges)?;
        loop {
            let mut turning = Vec::new();
            let mut staying = Vec::with_capacity(resting.len());
            for range in resting {
                let i = node.edge_at(&range.span.lo);
                let may = match (&range.target, node.edges().get(i)) {
                    (Some(target), Some(edge)) => self.can_descend(target, edge, node.height)?,
                    _ => true,
                };
                assert!(node.edge_span(i).covers(&range.span), "a range message rests across two edges");
                if may { staying.push(range) } else { turning.push(range) }
            }
            if turning.is_empty() {
                return Ok(staying);
            }
            staying.extend(self.take_ranges(node, turning)?);
            staying.sort_by(|a, b| a.span.lo.cmp(&b.span.lo));
            resting = staying;
        }
    }

    /// Lets `ranges` (disjoint, ascending) turn into edges of `node` where they may not rest, in one pass
    /// over both; the others, which rest. A range that turns replaces what the node shows over it by an edge
    /// to its target: older messages in it go, edges partly covered are narrowed, one with live data on both
    /// sides becomes two to the same child. Cost: in proportion to edges, ranges and messages of edges that
    /// are cut. I/O: headers below slivers.
    fn take_ranges(&self, node: &mut Node, ranges: Vec<RangeMsg>) -> Result<Vec<RangeMsg>> {
        let pager = self.cx.pager;
        let (height, span) = (node.height, node.span.clone());
        let Body::Interior(edges) = &mut node.body else { unreachable!("leaves take no ranges in here") };
        let old = std::mem::take(edges);
        self.cx.handled.fetch_add((old.len() + ranges.len()) as u64, Ordering::Relaxed);
        let bounds: Vec<_> = old.iter().map(|e| e.lo.clone()).collect();
        let mut new: Vec<Edge> = Vec::with_capacity(old.len() + ranges.len());
        let mut resting = Vec::new();
        let mut ranges = ranges.into_iter().peekable();
        // The range that turned last: it may reach into the edges that follow.
        let mut turned: Option<Span> = None;
        for (i, edge) in old.into_iter().enumerate() {
            let hi = bounds.get(i + 1).cloned().or_else(|| span.hi.clone());
            let live = Span { lo: edge.lo.clone(), hi };
            let mut rest = match &turned {
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
                turned = Some(range.span);
                rest = above;
            }
            match rest {
                Some(part) if part == live => new.push(edge),
                Some(part) => new.push(self.sliver(edge.narrowed(&live, &part, pager)?, &part, height)?),
                None => (),
            }
        }
        assert!(ranges.next().is_none(), "a range message outside its node");
        if turned.is_some() {
            new = self.joined(new, &span, height)?;
        }
        *edges = new;
        Ok(resting)
    }

    /// True if the message lies inside `live`, what is left of an edge of a node of that height, without
    /// filling it, and may still sink.
    fn may_rest(&self, edge: &Edge, live: &Span, height: u8, range: &RangeMsg) -> Result<bool> {
        if !live.covers(&range.span) || range.span.covers(live) {
            return Ok(false);
        }
        range.target.as_ref().map_or(Ok(true), |target| self.can_descend(target, edge, height))
    }

    /// True if a Goto to `target` that rests at `edge`, of a node of that height, can go on from there.
    fn can_descend(&self, target: &Target, edge: &Edge, height: u8) -> Result<bool> {
        // An edge may skip heights: what rests above it must be able to sink into the child it has.
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

    /// What is left of an edge that was cut, without its child if nothing of that is visible.
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
