//! Sinking deletes: flushing what waits only because nothing pushed it, and
//! dropping what nothing shows, where that gives space back.
//!
//! A delete costs one message, and frees what it covers when it arrives there;
//! on its fringes, and after clones, nodes stay that show only part of what
//! they hold. A store that is idle after deletes, or short of space, does not
//! wait for later writes to carry deletes down and to rewrite such nodes. Never
//! into shared nodes: a private copy would take space; what of those
//! nothing shows is pruned (`prune`).
//!
//! In two halves, so that no lock is held over a walk: [`Edit::waiting_tombstones`]
//! walks a version, a bounded number of nodes from any key on, and says where
//! something waits; [`Edit::push_down_at`] goes to one such key in the present
//! version and flushes on the way down.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span, Spans},
    node::{Body, Edge, Node, NodeId},
};

/// Which deletes are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tombstones {
    /// All, and edges that show only part of what they lead to.
    All,
    /// Deletes of ranges that cover all that some edge below leads to, or a leaf: they give back more than
    /// carrying them down costs.
    Large,
}

/// A bounded piece of a walk.
pub(crate) struct TombstoneWalk<'w> {
    /// Keys below this have been seen to.
    pub from: &'w Bytes,
    pub which: Tombstones,
    /// Nodes that may still be looked at.
    pub left: usize,
    /// Most places to find.
    pub most: usize,
    /// A key at each edge at which something waits, ascending.
    pub found: Vec<Bytes>,
}

impl Edit<'_> {
    /// Goes on with a walk over private nodes; the key where the next one is to go on, `None` at the end.
    /// Changes nothing. I/O: at most `walk.left` headers, and those on the way to where it goes on.
    pub fn waiting_tombstones(&self, walk: &mut TombstoneWalk<'_>) -> Result<Option<Bytes>> {
        self.waiting_below(self.root, &Span::all(), &Lens::identity(), walk)
    }

    /// The same below a node of which `seen` is shown, through `lens`.
    fn waiting_below(
        &self,
        id: NodeId,
        seen: &Span,
        lens: &Lens,
        walk: &mut TombstoneWalk<'_>,
    ) -> Result<Option<Bytes>> {
        // What cannot be read is passed by.
        let Some(node) = or_if_damaged(self.peek(id).map(Some), None)? else { return Ok(None) };
        walk.left = walk.left.saturating_sub(1);
        let begins = lens.invert_shared(&seen.lo);
        let from = if begins >= *walk.from { seen.lo.clone() } else { lens.apply(walk.from) };
        let first = node.edge_at(&from);
        for i in first..node.edges().len() {
            let Some(edge) = node.edges().get(i).filter(|edge| seen.is_above(&edge.lo)) else { break };
            let Some(live) = node.edge_span(i).intersect(seen) else { continue };
            let local = live.lo.clone().max(from.clone());
            let key = lens.invert_shared(&local);
            if walk.left == 0 && i > first || walk.found.len() >= walk.most {
                return Ok(Some(key));
            }
            let private = edge.child.as_ref().is_none_or(|t| self.is_private(t.id));
            if private && self.is_wanted(&node, i, walk)? {
                walk.found.push(key);
            }
            let Some(target) = edge.child.as_ref().filter(|_| private) else { continue };
            if self.height(target.id)? == 0 {
                continue;
            }
            let down = Lens::of_edge(&node.edge_span(i), &target.prepend);
            if let Some(next) =
                self.waiting_below(target.id, &down.apply_span(&live), &lens.then(&down), walk)?
            {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    fn is_wanted(&self, node: &Node, i: usize, walk: &mut TombstoneWalk<'_>) -> Result<bool> {
        let Some(edge) = node.edges().get(i) else { return Ok(false) };
        match walk.which {
            Tombstones::All => Ok(edge.loose || edge.holds_deletes() || self.leads_to_nothing(edge)?),
            Tombstones::Large => {
                let deleted = edge.deleted();
                Ok(deleted.iter().next().is_some()
                    && self.frees_a_node(&deleted, edge, &node.edge_span(i), &mut walk.left)?)
            }
        }
    }

    /// True if the child shows nothing any more, and only its edge keeps it.
    fn leads_to_nothing(&self, edge: &Edge) -> Result<bool> {
        match &edge.child {
            Some(target) if self.height(target.id)? > 0 => {
                Ok(or_if_damaged(self.peek(target.id).map(|node| node.is_void()), false)?)
            }
            _ => Ok(false),
        }
    }

    /// True if `deleted` covers all that an edge somewhere below `edge`, which has the range `live`, shows of
    /// its child, or most of a leaf. I/O: headers, counted in `left`.
    fn frees_a_node(&self, deleted: &Spans, edge: &Edge, live: &Span, left: &mut usize) -> Result<bool> {
        let Some(target) = &edge.child else { return Ok(false) };
        if !self.is_private(target.id) {
            return Ok(false);
        }
        *left = left.saturating_sub(1);
        let Some(child) = or_if_damaged(self.peek(target.id).map(Some), None)? else { return Ok(false) };
        let lens = Lens::of_edge(live, &target.prepend);
        let image = lens.apply_span(live);
        let mut inside = Spans::default();
        deleted
            .iter()
            .filter_map(|span| span.intersect(live))
            .for_each(|s| inside.insert(lens.apply_span(&s)));
        if let Body::Leaf(run) = &child.body {
            let is_covered = |first: &Bytes, last: &Bytes| inside.contains(first) && inside.contains(last);
            let covered = run.pages.iter().filter(|page| is_covered(&page.first_key(), &page.last_key()));
            return Ok(covered.map(|page| page.raw as usize).sum::<usize>() > self.cx.limits.node / 4);
        }
        for (i, below) in child.edges().iter().enumerate() {
            let Some(seen) = child.edge_span(i).intersect(&image) else { continue };
            if inside.covers(&seen) {
                if below.child.is_some() {
                    return Ok(true);
                }
            } else if inside.iter().any(|part| part.overlaps(&seen))
                && *left > 0
                && self.frees_a_node(&inside, below, &child.edge_span(i), left)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// True if the range gives back more than carrying it down costs, as [`Tombstones::Large`] says, and its
    /// way down is not shared.
    pub fn is_large_delete(&self, range: &Span, mut left: usize) -> Result<bool> {
        let mut deleted = Spans::default();
        deleted.insert(range.clone());
        let root = Edge { child: Some(crate::node::Target::plain(self.root)), ..Edge::default() };
        self.frees_a_node(&deleted, &root, &Span::all(), &mut left)
    }

    /// Flushes what waits at the edges on the way from the root to `key`; whether there was anything. I/O:
    /// headers of private interior nodes, and what a flush takes.
    pub fn push_down_at(&mut self, key: &Bytes) -> Result<bool> {
        let mut any = false;
        let (mut id, mut lens) = (self.root, Lens::identity());
        let mut passed = vec![id];
        while !self.is_large() {
            let node = self.load(id)?;
            let local = lens.apply(key);
            let i = node.edge_at(&local);
            let Some(edge) = node.edges().get(i) else { break };
            let private = edge.child.as_ref().is_none_or(|t| self.is_private(t.id));
            if !private || self.unreadable_at(&node, i)?.len() > 0 {
                break;
            }
            if edge.loose || edge.holds_deletes() || self.leads_to_nothing(edge)? {
                any = true;
                self.flush_edge(id, i)?;
            }
            // The flush may have replaced the edge, or merged it with a neighbour: look again.
            let node = self.load(id)?;
            let i = node.edge_at(&local);
            let Some(edge) = node.edges().get(i) else { break };
            let Some(target) = &edge.child else { break };
            if self.height(target.id)? == 0 || !self.is_private(target.id) {
                break;
            }
            lens = lens.then(&Lens::of_edge(&node.edge_span(i), &target.prepend));
            id = target.id;
            passed.push(id);
        }
        if any {
            self.sink(&passed)?;
        }
        Ok(any)
    }
}

impl Edge {
    /// True if a delete of keys or ranges waits here.
    fn holds_deletes(&self) -> bool {
        self.layers.iter().any(|layer| {
            layer.ranges.iter().any(|r| r.target.is_none()) || layer.run.pages.iter().any(|p| p.deletes)
        })
    }

    /// True if a Goto waits here.
    pub(crate) fn holds_gotos(&self) -> bool {
        self.layers.iter().flat_map(|layer| &layer.ranges).any(|range| range.target.is_some())
    }

    /// What ranges the deletes that wait here cover.
    fn deleted(&self) -> Spans {
        let mut deleted = Spans::default();
        let ranges = self.layers.iter().flat_map(|layer| &layer.ranges);
        ranges.filter(|range| range.target.is_none()).for_each(|range| deleted.insert(range.span.clone()));
        deleted
    }
}
