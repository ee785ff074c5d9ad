//! Sinking deletes: flushing what waits only because nothing pushed it, and
//! dropping what nothing shows, where that gives space back.
//!
//! A delete costs one message, and frees what it covers when it arrives there;
//! on its fringes, and after clones, nodes stay that show only part of what
//! they hold. A store that is idle after deletes, or short of space, does not
//! wait for later writes to carry deletes down and to rewrite such nodes. Never
//! into shared nodes: a private copy would take space; what of those
//! nothing shows is pruned (`prune`), and those of which nothing is left are taken off their edges here.
//!
//! In two halves, so that no lock is held over a walk: [`Edit::waiting_tombstones`]
//! walks a version, a bounded number of nodes from any key on, and says where
//! something waits; [`Edit::push_down_at`] goes to one such key in the present
//! version and flushes on the way down.

use bytes::Bytes;

use crate::{
    dag::edit::Edit,
    error::{Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Node, NodeId},
};

/// Which deletes are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tombstones {
    /// All, and edges that show only part of what they lead to.
    All,
    /// Those that give back enough for being carried down beside writes ([`Edit::is_worth_carrying`]).
    Worthwhile,
    /// All, and other messages where many wait: what they write over takes space below as long as they wait.
    AndMessages,
}

/// Where space is short, messages are flushed from an edge where they have at least 1/n of a node.
const MANY_FRACTION: usize = 32;
/// Least bytes of messages that are flushed then: fewer would not free a block.
const MANY_BYTES: usize = 4 << 10;

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
        // What cannot be read is passed by, and so is what a sealed image shows more of than there is.
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
            // One that begins before has had its turn: where much is deleted all the time, a walk gets on.
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

    fn is_wanted(&self, node: &Node, i: usize, which: Tombstones, left: &mut usize) -> Result<bool> {
        let Some(edge) = node.edges().get(i) else { return Ok(false) };
        let many = (self.cx.limits.node / MANY_FRACTION).max(MANY_BYTES);
        match which {
            Tombstones::AndMessages if edge.pending() >= many && edge.child.is_some() => Ok(true),
            Tombstones::All | Tombstones::AndMessages => {
                Ok(edge.loose || edge.holds_deletes() || self.leads_to_nothing(edge)?)
            }
            Tombstones::Worthwhile => self.is_worth_carrying(node, i, left),
        }
    }

    /// Flushes what waits at the edges on the way from the root to `key`; whether there was anything. I/O:
    /// headers of private interior nodes, some for each estimate, and what a flush takes.
    pub fn push_down_at(&mut self, key: &Bytes, which: Tombstones) -> Result<bool> {
        let mut any = false;
        let (mut id, mut lens, mut above) = (self.root, Lens::identity(), None);
        let mut path = vec![id];
        while !self.is_large() {
            // Most nodes are only looked at: what is to be changed is copied, with all that waits there.
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

    /// Takes the child off edge `i` of node `id`, which is private; of the child nothing is shown, by no edge.
    /// What was pruned in a shared node is never seen by a flush, and its last reference may be such an edge.
    fn take_off(&mut self, id: NodeId, i: usize) -> Result<bool> {
        let mut node = self.load(id)?;
        let (span, height) = (node.span.clone(), node.height);
        let Body::Interior(edges) = &mut node.body else { return Ok(false) };
        let Some(edge) = edges.get_mut(i) else { return Ok(false) };
        // What could be read before may not be readable any more.
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
