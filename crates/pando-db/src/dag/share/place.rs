//! Placing clones: the clones of a memtable get the nodes of their
//! sources (FAST'20 section 3, "To clone all keys with prefix s to new keys with
//! prefix p").
//!
//! While a clone stands in a table it names keys of the state below that table
//! ([`crate::dag::memtable::range`]). When the table is the oldest, that state is the DAG at
//! hand, and each clone becomes a Goto to the lowest node that holds all of its
//! source, under the messages for the source that wait above that node. If these
//! are many they are flushed down first, into private copies of what is shared
//! (copy-on-abundant-write applied to the clone itself). A small
//! source in one leaf is copied by value: a small clone or rename must not leave
//! a Goto behind.
//!
//! This runs in the edit that applies the table, so no caller waits for it. Cost for each distinct source: O(height)
//! headers, the pages at the borders of the messages for it, and one flush for each level where many wait.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::{
        edit::Edit,
        layer::{MAX_PILE_BYTES, run::RunBuilder},
        memtable::Memtable,
        tree::out_of_node,
    },
    error::{Result, or_if_damaged},
    key::{Lens, Span},
    node::{
        Body, Layer, Node, NodeId, RangeMsg, Run, Target,
        ranged::{are_apart, clip},
        stored::{Stored, detach_page},
    },
    store::pager::{Handle, Pager},
};

/// Source data up to this many bytes, if it lies in one leaf, is copied by value.
const BY_VALUE_BYTES: usize = 64 << 10;
/// The limit after as many bytes as a node has were copied for one table, so that a burst of clones copies little.
const BY_VALUE_BURST_BYTES: usize = 1 << 10;

/// A node, and the prefix in its local keys that the source has there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NodeAt {
    id: NodeId,
    prefix: Bytes,
}

/// The source of a clone, oldest first: the base, and over it `pending`. Keys are relative to the prefix of the range.
#[derive(Default)]
pub(crate) struct CloneSource {
    /// The lowest node that holds all; `None`: there is nothing below `pending`.
    place: Option<NodeAt>,
    /// What that node has of the range, if it is a leaf and that is little.
    values: Option<Run>,
    /// Newest last.
    pending: Vec<Layer>,
    /// Estimated bytes of `pending`.
    pub bytes: usize,
}

/// The result of placing the clones of a table.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlacedClones {
    /// Clones that were copied by value.
    pub by_value: u64,
    /// Sources that were flushed down first.
    pub pushed_down: u64,
}

impl Edit<'_> {
    /// The clones of `table` as a layer that belongs right below the rest of the table. The DAG must be the
    /// state right below the table.
    pub fn place_clones(&self, table: &Memtable) -> Result<(Layer, PlacedClones)> {
        let mut placed = PlacedClones::default();
        let (pager, merge) = (self.cx.pager, self.cx.merge);
        let (mut ranges, mut updates) = (Vec::new(), Vec::new());
        let mut run = RunBuilder::new(pager.page_target());
        let mut sources: HashMap<(Bytes, Option<Bytes>), CloneSource> = HashMap::new();
        let mut to_copy = self.cx.limits.node;
        for clone in table.clones() {
            let Some((_, image)) = clone.source() else { continue };
            let source = match sources.entry((image.lo.clone(), image.hi.clone())) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => entry.insert(self.source_of(&image)?),
            };
            let onto = Lens::new(Bytes::new(), clone.span.common_prefix());
            let values = source.values.as_ref().filter(|values| {
                let bytes = values.bytes();
                bytes <= BY_VALUE_BURST_BYTES || bytes <= to_copy
            });
            let (target, values) = match (values, &source.place) {
                (Some(values), _) => {
                    placed.by_value += 1;
                    to_copy = to_copy.saturating_sub(values.bytes());
                    (None, values.through(&onto))
                }
                (None, Some(place)) => {
                    (Some(Target { id: place.id, prepend: place.prefix.clone() }), Run::default())
                }
                (None, None) => (None, Run::default()),
            };
            let range = RangeMsg { span: clone.span.clone(), target };
            let mut layer = Layer { newest: 0, ranges: vec![range], updates: Vec::new(), run: values };
            for pending in &source.pending {
                layer = pending.through(&onto).over(&layer, pager, merge)?;
            }
            ranges.append(&mut layer.ranges);
            updates.append(&mut layer.updates);
            run.push_run(&layer.run, pager)?;
        }
        assert!(are_apart(&ranges), "clones of one table overlap");
        Ok((Layer { newest: table.msn, ranges, updates, run: run.finish() }, placed))
    }

    /// Finds the source in the range `image`. If a node on the path cannot be read, the search ends above it: readers
    /// of the clone then meet the damage there, as those of the source do.
    pub fn source_of(&self, image: &Span) -> Result<CloneSource> {
        let mut source = CloneSource::default();
        let mut wanted = image.clone();
        let mut place = NodeAt { id: self.root, prefix: image.common_prefix() };
        let mut above = None;
        // The node above, and what was found before it.
        let mut parent: Option<(NodeAt, usize, usize)> = None;
        loop {
            let Handle { node, home } = match (self.handle_below(place.id, above), parent) {
                (Err(error), Some((above, pending, bytes))) if error.is_damage() => {
                    source.pending.truncate(pending);
                    (source.bytes, source.place) = (bytes, Some(above));
                    break;
                }
                (found, _) => found?,
            };
            let before = (source.pending.len(), source.bytes);
            above = Some(node.height);
            assert!(wanted.lo.starts_with(&place.prefix), "a source loses the prefix of its keys on the way");
            if !node.span.covers(&wanted) {
                return Err(out_of_node(place.id, &node, &wanted.lo));
            }
            let way = self.descend(&node, home.as_ref(), &wanted, &place.prefix, &mut source);
            match or_if_damaged(way, Way::Here)? {
                Way::Down(lens, id) => {
                    wanted = lens.apply_span(&wanted);
                    let below = NodeAt { id, prefix: lens.apply_shared(&place.prefix) };
                    parent = Some((std::mem::replace(&mut place, below), before.0, before.1));
                }
                Way::Ends => break,
                Way::Here => {
                    source.pending.truncate(before.0);
                    source.bytes = before.1;
                    if let Body::Leaf(run) = &node.body {
                        let values = small_values(run, home.as_ref(), &wanted, &place.prefix, self.cx.pager);
                        source.values = or_if_damaged(values, None)?;
                    }
                    source.place = Some(place);
                    break;
                }
            }
        }
        source.pending.reverse();
        Ok(source)
    }

    /// Collects what waits in `node` for `wanted`, newest first, and tells where the rest is.
    fn descend(
        &self,
        node: &Node,
        home: Option<&Arc<Stored>>,
        wanted: &Span,
        prefix: &Bytes,
        source: &mut CloneSource,
    ) -> Result<Way> {
        let Body::Interior(edges) = &node.body else { return Ok(Way::Here) };
        let i = node.edge_at(&wanted.lo);
        let live = node.edge_span(i);
        if !live.covers(wanted) {
            return Ok(Way::Here);
        }
        let step = |live: &Span, target: &Target| Way::Down(Lens::of_edge(live, &target.prepend), target.id);
        let relative = Lens::new(prefix.clone(), Bytes::new());
        for layer in edges[i].layers.iter().rev() {
            let covering = layer.range_at(&wanted.lo).filter(|r| r.span.covers(wanted));
            let mut part = part_of(layer, home, wanted, self.cx.pager)?;
            // The clone would have all that waits as one layer.
            let piles = source.pending.iter().map(Layer::longest_pile).sum::<usize>();
            if !self.is_readable(&part.run) || piles + part.longest_pile() > MAX_PILE_BYTES {
                return Ok(Way::Here);
            }
            if covering.is_some() {
                part.ranges.clear();
            }
            if !part.is_empty() {
                source.bytes += part.bytes();
                source.pending.push(part.through(&relative));
            }
            if let Some(range) = covering {
                return Ok(range.target.as_ref().map_or(Way::Ends, |t| step(&range.span, t)));
            }
        }
        Ok(edges[i].child.as_ref().map_or(Way::Ends, |t| step(&live, t)))
    }

    /// False if a page is known to be damaged: an edit that finds one is made again, knowing of it.
    fn is_readable(&self, run: &Run) -> bool {
        !self.cx.pager.knows_damage() || !run.pages.iter().any(|page| self.cx.pager.is_unreadable(page))
    }
}

enum Way {
    /// One child or Goto target, by this map, has everything that is older.
    Down(Lens, NodeId),
    /// There is nothing older.
    Ends,
    /// This node is the lowest that holds all.
    Here,
}

/// The messages of a layer about `span`, with pages that name their extent.
fn part_of(layer: &Layer, home: Option<&Arc<Stored>>, span: &Span, pager: &Pager) -> Result<Layer> {
    let run = pages_about(&layer.run, home, span)?.slice(span, pager)?;
    let (ranges, updates) = (clip(&layer.ranges, span), clip(&layer.updates, span));
    Ok(Layer { newest: layer.newest, ranges, updates, run })
}

/// The pages of a run that may hold keys of `span`, with the names of their extents.
fn pages_about(run: &Run, home: Option<&Arc<Stored>>, span: &Span) -> Result<Run> {
    let from = run.pages.get(run.page_from(&span.lo)..).unwrap_or_default();
    let pages = from.iter().take_while(|page| page.meets(span));
    let detached = pages.map(|page| {
        let mut page = page.clone();
        if let Some(home) = home {
            detach_page(&mut page, home)?;
        }
        Ok(page)
    });
    Ok(Run { pages: detached.collect::<Result<_>>()? })
}

/// The pairs of a leaf in `wanted`, without `prefix`, if they are few enough to be copied.
fn small_values(
    run: &Run,
    home: Option<&Arc<Stored>>,
    wanted: &Span,
    prefix: &Bytes,
    pager: &Pager,
) -> Result<Option<Run>> {
    let pages = pages_about(run, home, wanted)?;
    if pager.knows_damage() && pages.pages.iter().any(|page| pager.is_unreadable(page)) {
        return Ok(None);
    }
    let inside = pages.pages.iter().filter(|p| p.is_inside(wanted)).map(|p| p.raw as usize).sum::<usize>();
    if inside > BY_VALUE_BYTES {
        return Ok(None);
    }
    let part = pages.slice(wanted, pager)?;
    let small = part.bytes() <= BY_VALUE_BYTES;
    Ok(small.then(|| part.through(&Lens::new(prefix.clone(), Bytes::new()))))
}
