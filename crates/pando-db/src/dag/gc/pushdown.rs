//! Pushdown of tombstones: flushing deletes that no later write would push down, and dropping nodes that nothing
//! shows, where that frees space.
//!
//! A delete costs one message, and frees what it covers when it arrives there. At the borders of its range, and after
//! clones, there are nodes that show only part of what they hold. A store that is idle after deletes, or short of
//! space, does not wait until later writes flush the deletes and rewrite such nodes. Deletes are not flushed into
//! shared nodes, because a private copy would take space: `prune` removes from these what nothing shows, and if nothing
//! is left of one, it is taken off its edges here. From interior nodes that hold something in vain only `prune` takes
//! it, for the same reason: a flush would carry all that waits above them down with the deletes, and pages of messages
//! that other versions of the node use as well would be written once more.
//!
//! The work has two halves, so that no lock is held over a walk. [`Edit::waiting_tombstones`] walks a version, a
//! bounded number of nodes from any key on, and returns keys at which deletes wait. [`Edit::push_down_at`] goes to one
//! such key in the present version, and flushes on the way down.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Node, NodeId},
};

/// What a walk looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tombstones {
    /// All deletes, and edges that show only part of a leaf.
    All,
    /// Deletes that free enough to be pushed down beside writes ([`Edit::pays_to_push_down`]).
    Worthwhile,
    /// As `All`, and edges where many other messages wait: the values that these replace take space until they arrive.
    AndMessages,
}

/// Where space is short, the messages of an edge are flushed if they take at least 1/n of the size of a node.
const MANY_FRACTION: usize = 32;
/// Least bytes of messages that are flushed for that reason: fewer would not free a block.
const MANY_BYTES: usize = 4 << 10;

/// A bounded piece of a walk.
pub(crate) struct TombstoneWalk<'w> {
    /// The walk begins at this key: former pieces have dealt with the keys below it.
    pub from: &'w Bytes,
    pub which: Tombstones,
    /// Nodes that may still be looked at, a count.
    pub left: usize,
    /// Most places to find, a count.
    pub most: usize,
    /// The result, ascending: a key at each edge at which there is something to do.
    pub found: Vec<Bytes>,
}

impl Edit<'_> {
    /// Does one piece of a walk over private nodes. Returns the key at which the next piece is to begin, `None` at the
    /// end. Changes nothing. I/O: at most `walk.left` headers, and those on the path to its beginning.
    pub fn waiting_tombstones(&self, walk: &mut TombstoneWalk<'_>) -> Result<Option<Bytes>> {
        self.waiting_below(self.root, &Span::all(), &Lens::identity(), walk)
    }

    /// The part of [`Edit::waiting_tombstones`] below one node, of which the path `lens` shows `seen`.
    fn waiting_below(
        &self,
        id: NodeId,
        seen: &Span,
        lens: &Lens,
        walk: &mut TombstoneWalk<'_>,
    ) -> Result<Option<Bytes>> {
        // A node that cannot be read is left out, and so is one of which a damaged image shows more than it spans.
        let node = or_if_damaged(self.peek(id).map(Some), None)?;
        let Some(node) = node.filter(|node| node.span.covers(seen)) else { return Ok(None) };
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
            // An edge that begins before `from` was done by a former piece: a walk beside steady deletes must advance.
            let is_next = walk.which != Tombstones::Worthwhile || live.lo >= from;
            let wanted = match private {
                true => is_next && self.is_wanted(&node, i, walk.which, &mut walk.left)?,
                false => walk.which != Tombstones::Worthwhile && self.leads_to_nothing(edge)?,
            };
            if wanted {
                let ascends = walk.found.last().is_none_or(|last| *last <= key) && *walk.from <= key;
                assert!(ascends, "a walk for deletes goes back");
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

    /// Whether edge `i` of `node` has what a walk for `which` looks for. Headers that are read for an estimate are
    /// subtracted from `left`.
    fn is_wanted(&self, node: &Node, i: usize, which: Tombstones, left: &mut usize) -> Result<bool> {
        let Some(edge) = node.edges().get(i) else { return Ok(false) };
        let many = (self.cx.limits.node / MANY_FRACTION).max(MANY_BYTES);
        match which {
            Tombstones::AndMessages if edge.pending() >= many && edge.child.is_some() => Ok(true),
            Tombstones::All | Tombstones::AndMessages => Ok(edge.holds_deletes()
                || self.hides_part_of_leaf(node, i)?
                || self.leads_to_nothing(edge)?),
            Tombstones::Worthwhile => self.pays_to_push_down(node, i, left),
        }
    }

    /// Pushes deletes down on the paths to `keys`, as far as they go. Some stay above if the edit becomes large. I/O:
    /// as [`Edit::push_down_at`], for each key.
    pub fn push_down_on<'k>(&mut self, keys: impl Iterator<Item = &'k Bytes>) -> Result<()> {
        for key in keys {
            while !self.is_large() && self.push_down_at(key, Tombstones::All)? {}
        }
        Ok(())
    }

    /// Flushes the edges on the path from the root to `key` that have what `which` says. Returns whether there were
    /// any. I/O: headers of private interior nodes, some for each estimate, and what a flush takes.
    pub fn push_down_at(&mut self, key: &Bytes, which: Tombstones) -> Result<bool> {
        let mut any = false;
        let (mut id, mut lens, mut above) = (self.root, Lens::identity(), None);
        let mut path = vec![id];
        while !self.is_large() {
            // Most nodes of the path are only read: a node that is changed is copied with all its messages.
            let node = self.handle_below(id, above)?.node;
            let local = lens.apply(key);
            if !node.span.contains(&local) {
                break;
            }
            let i = node.edge_at(&local);
            let Some(edge) = node.edges().get(i) else { break };
            let private = edge.child.as_ref().is_none_or(|t| self.is_private(t.id));
            if !private {
                any |= which != Tombstones::Worthwhile
                    && self.leads_to_nothing(edge)?
                    && self.take_off(id, i)?;
                break;
            }
            if self.unreadable_at(&node, i)?.len() > 0 {
                break;
            }
            if self.is_wanted(&node, i, which, &mut usize::MAX.clone())? {
                any = true;
                self.flush_edge(id, i)?;
            }
            // The flush may have replaced the edge, or merged it with a neighbour: look again.
            let node = self.peek(id)?;
            let i = node.edge_at(&local);
            let Some(edge) = node.edges().get(i) else { break };
            let Some(target) = &edge.child else { break };
            if self.height(target.id)? == 0 || !self.is_private(target.id) {
                break;
            }
            lens = lens.then(&Lens::of_edge(&node.edge_span(i), &target.prepend));
            (id, above) = (target.id, Some(node.height));
            path.push(id);
        }
        if any {
            self.lower_path(&path)?;
        }
        Ok(any)
    }

    /// Removes the child of edge `i` of node `id`, which is private, if no edge shows anything of the child. No flush
    /// would find this: the child was shared when `prune` emptied it, and this edge may be its last reference.
    fn take_off(&mut self, id: NodeId, i: usize) -> Result<bool> {
        let mut node = self.load(id)?;
        let (span, height) = (node.span.clone(), node.height);
        let Body::Interior(edges) = &mut node.body else { return Ok(false) };
        let Some(edge) = edges.get_mut(i) else { return Ok(false) };
        // The child may have become unreadable since.
        if !self.leads_to_nothing(edge)? {
            return Ok(false);
        }
        (edge.child, edge.loose) = (None, false);
        edge.drop_idle();
        *edges = self.joined(std::mem::take(edges), &span, height)?;
        self.put(id, node)?;
        Ok(true)
    }
}
