//! Where a prefix lives: the first half of a clone (FAST'20 section 3, "To
//! clone all keys with prefix s to new keys with prefix p").
//!
//! Finds the lowest node that holds all keys of a prefix, and the messages for
//! them that still wait above it. Both are relative to the prefix, so that
//! they can be put under another. Reads a frozen tree only; cost O(height)
//! headers, and the pages of pending messages.

use bytes::Bytes;

use super::{
    edit::Edit,
    tree::Tree,
    view::{child_node, out_of_node},
};
use crate::{
    error::Result,
    format::{
        message::Msg,
        node::{Body, Layer, Node, NodeId, RangeMsg, Run, UpdateMsg},
        node_codec::detach,
    },
    key::{Lens, Span},
    store::pager::Pager,
};

/// Source data up to this many bytes, if it lies in one leaf, is copied by value: a small clone or
/// rename must not leave a Goto behind.
pub(crate) const BY_VALUE: usize = 64 << 10;

/// Where the search begins: a node, and the prefix in its local keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Start {
    pub id: NodeId,
    pub prefix: Bytes,
}

/// What stands under a prefix, oldest first: `base`, and over it `pending`. Keys are relative to the
/// prefix.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub base: Base,
    /// Newest last.
    pub pending: Vec<Messages>,
    /// Estimated bytes of `pending`.
    pub bytes: usize,
}

/// The oldest part of what stands under a prefix.
#[derive(Debug, Default)]
pub(crate) enum Base {
    #[default]
    Nothing,
    /// All keys of the node that begin with the prefix given.
    Node(Start),
    /// These pairs.
    Values(Vec<(Bytes, Bytes)>),
}

/// Messages relative to a prefix, of one layer or table: updates are newer than ranges, points newer than
/// both and complete.
#[derive(Debug, Default, Clone)]
pub(crate) struct Messages {
    pub ranges: Vec<RangeMsg>,
    pub updates: Vec<UpdateMsg>,
    /// Ascending.
    pub points: Vec<(Bytes, Msg)>,
}

/// Finds what stands under the prefix of `start`.
pub(crate) fn find_source(tree: &Tree, start: &Start, pager: &Pager) -> Result<Source> {
    let mut source = Source::default();
    let mut at = start.clone();
    let mut above = None;
    loop {
        let handle = child_node(pager, &tree.table, at.id, above)?;
        above = Some(handle.node.height);
        let wanted = Span::prefix(at.prefix.clone());
        if !handle.node.span.covers(&wanted) {
            return Err(out_of_node(at.id, &handle.node, &at.prefix));
        }
        let node = match &handle.home {
            Some(home) => detach(&handle.node, home)?,
            None => Node::clone(&handle.node),
        };
        match descend(&node, &wanted, &mut source, pager)? {
            Way::Down(next) => at = next,
            Way::Ends => break,
            Way::Here => {
                source.base = match &node.body {
                    Body::Leaf(run) => small_values(run, &wanted, pager)?.unwrap_or(Base::Node(at)),
                    Body::Interior(_) => Base::Node(at),
                };
                break;
            }
        }
    }
    source.pending.reverse();
    Ok(source)
}

enum Way {
    /// One child or Goto target holds everything that is older.
    Down(Start),
    /// There is nothing older.
    Ends,
    /// This node is the lowest that holds all.
    Here,
}

/// Collects what waits in `node` for the prefix, newest first, and tells where the rest is.
fn descend(node: &Node, wanted: &Span, source: &mut Source, pager: &Pager) -> Result<Way> {
    let Body::Interior(edges) = &node.body else { return Ok(Way::Here) };
    let i = node.edge_at(&wanted.lo);
    let live = node.edge_span(i);
    if !live.covers(wanted) {
        return Ok(Way::Here);
    }
    let step = |live: &Span, target: &crate::format::node::Target| {
        let prefix = Lens::of_edge(live, &target.prepend).apply_shared(&wanted.lo);
        Way::Down(Start { id: target.id, prefix })
    };
    for layer in edges[i].layers.iter().rev() {
        let covering = layer.ranges.iter().find(|r| r.span.covers(wanted));
        let mut part = layer.slice(wanted, pager)?;
        if covering.is_some() {
            part.ranges.clear();
        }
        if !part.is_empty() {
            source.bytes += part.bytes();
            source.pending.push(relative(&part, &wanted.lo, pager)?);
        }
        if let Some(range) = covering {
            return Ok(range.target.as_ref().map_or(Way::Ends, |t| step(&range.span, t)));
        }
    }
    Ok(edges[i].child.as_ref().map_or(Way::Ends, |t| step(&live, t)))
}

/// The messages of a layer, all below `prefix`, without it.
fn relative(layer: &Layer, prefix: &Bytes, pager: &Pager) -> Result<Messages> {
    let lens = Lens::new(prefix.clone(), Bytes::new());
    let ranges = layer.ranges.iter().map(|r| r.through(&lens)).collect();
    let updates = layer.updates.iter().map(|u| u.through(&lens)).collect();
    Ok(Messages { ranges, updates, points: entries(&layer.run, &lens, pager)? })
}

fn entries(run: &Run, lens: &Lens, pager: &Pager) -> Result<Vec<(Bytes, Msg)>> {
    let mut out = Vec::new();
    for page in &run.pages {
        let loaded = pager.page(None, page)?;
        for i in 0..loaded.len() {
            let (key, msg) = page.entry(&loaded, i);
            out.push((lens.apply_shared(&key), msg));
        }
    }
    Ok(out)
}

/// The pairs of a leaf in `wanted`, if they are few enough to be copied.
fn small_values(run: &Run, wanted: &Span, pager: &Pager) -> Result<Option<Base>> {
    let inside = run.pages.iter().filter(|p| p.is_inside(wanted)).map(|p| p.raw as usize).sum::<usize>();
    if inside > BY_VALUE {
        return Ok(None);
    }
    let part = run.slice(wanted, pager)?;
    if part.bytes() > BY_VALUE {
        return Ok(None);
    }
    let lens = Lens::new(wanted.lo.clone(), Bytes::new());
    let pairs = entries(&part, &lens, pager)?.into_iter();
    Ok(Some(Base::Values(
        pairs.filter_map(|(k, m)| if let Msg::Put(v) = m { Some((k, v)) } else { None }).collect(),
    )))
}

impl Edit<'_> {
    /// Flushes what waits for `prefix` down to the lowest node that holds all of it, private copies
    /// of shared nodes on the way included: the case in which a clone's pending messages are too
    /// many to be copied (copy-on-abundant-write applied to the clone itself, DESIGN 4.3).
    /// Cost: one flush a level.
    pub fn push_down(&mut self, prefix: &Bytes) -> Result<()> {
        assert!(!self.cx.pins.is_pinned(self.root) || self.height(self.root)? > 0, "a root is interior");
        if self.cx.pins.is_pinned(self.root) {
            return Ok(());
        }
        let mut at = Start { id: self.root, prefix: prefix.clone() };
        loop {
            let wanted = Span::prefix(at.prefix.clone());
            let covering = |node: &Node| {
                let i = node.edge_at(&wanted.lo);
                (node.height > 0 && node.edge_span(i).covers(&wanted)).then_some(i)
            };
            let Some(i) = covering(&self.load(at.id)?) else { return Ok(()) };
            self.flush_edge(at.id, i)?;
            // The flush may have split the child, or merged it with its neighbour.
            let node = self.load(at.id)?;
            let Some(i) = covering(&node) else { return Ok(()) };
            let Some(target) = &node.edges()[i].child else { return Ok(()) };
            let prefix = Lens::of_edge(&node.edge_span(i), &target.prepend).apply_shared(&wanted.lo);
            at = Start { id: target.id, prefix };
            if !self.is_private(at.id) {
                return Ok(());
            }
        }
    }

    /// Takes nodes that nothing refers to out of the store. What only they referred to follows in a
    /// later edit, so that each is a bounded piece of work. I/O: their headers.
    pub fn reclaim(&mut self, orphans: &[NodeId]) -> Result<()> {
        for &id in orphans {
            // One that waited in the queue may have been referred to again, and taken out since.
            if self.exists(id) && self.count(id) == 0 && !self.cx.pins.is_pinned(id) {
                self.remove(id)?;
            }
        }
        Ok(())
    }
}
