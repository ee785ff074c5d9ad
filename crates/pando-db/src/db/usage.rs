//! What a prefix takes on the device, and what of it would come back.
//!
//! One pass over the nodes that the prefix shows, from the highest to the
//! lowest, so that everything that refers to a node has been seen before it.
//! On the way down it is counted which references would go with the prefix:
//!
//! - a node of which all references go, goes itself, whole: its extent is
//!   *exclusive*, and its own references go too;
//! - a node that stays but is reached by one remaining reference only would be
//!   changed in place: of it, the pages inside the prefix are exclusive;
//! - a node that something else refers to as well stays as it is: *shared*.
//!
//! Reads headers only and takes no lock. Uses the pager and the maps of `key`.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use bytes::Bytes;

use super::{
    engine::Engine,
    inspect::{place, stored_len},
};
use crate::{
    dag::view::View,
    device::BLOCK,
    error::{Error, Result},
    format::node::{Body, NodeId, Run, Target},
    key::{Lens, Span},
    store::pager::Handle,
};

/// What the keys under a prefix take. All sizes are bytes.
///
/// The figures are those of the moment of the call, and are best when the store has settled: right after
/// [`crate::Db::checkpoint`], with deletes carried down and reclaimed. Table pages and the log are not in
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// What can be read: keys (without what the keys of a page have in common) and values, before
    /// compression, a part that is seen twice under the prefix counted twice. An estimate: pages at the
    /// borders count whole, and so do old values until what waits above them has been carried down.
    pub visible_bytes: u64,
    /// What it is kept in on the device, each node once: `exclusive_bytes + shared_bytes`.
    pub stored_bytes: u64,
    /// What would be given back if everything under the prefix were deleted, once that has settled and
    /// nobody holds a snapshot of it. Exact for nodes that go as a whole; for nodes at the borders, and
    /// nodes not yet written, see `estimated_bytes`.
    pub exclusive_bytes: u64,
    /// What would stay, because other keys are kept there too.
    pub shared_bytes: u64,
    /// How much of `exclusive_bytes` is an estimate: pages in nodes that would be rewritten (which frees
    /// whole blocks only), and nodes not yet written (whose compression is not known).
    pub estimated_bytes: u64,
    /// Nodes that the prefix reaches.
    pub nodes: u64,
    /// Of these, nodes that would go as a whole.
    pub exclusive_nodes: u64,
    /// Of these, nodes that something else refers to.
    pub shared_nodes: u64,
}

/// What of a node can be seen, and how many times.
type Shown = BTreeMap<(Bytes, Option<Bytes>), u64>;

/// What is known of a node before its turn.
#[derive(Default)]
struct Visit {
    /// References that go with the prefix.
    gone: u64,
    /// References that stay but show less, from nodes that would be changed in place.
    narrowed: u64,
    /// Local keys that would be deleted, as far as these references show them.
    deleted: Vec<Span>,
    /// Local keys that can be read.
    shown: Shown,
}

struct Walk<'a> {
    engine: &'a Engine,
    view: &'a View,
    /// Gotos in memory, which the table does not count.
    uncounted: HashMap<NodeId, u64>,
    queue: BTreeMap<(Reverse<u8>, NodeId), Visit>,
    usage: Usage,
}

/// Adds up what is under some prefixes together. See [`crate::Db::usage`].
pub(super) fn usage(engine: &Engine, prefixes: &[Bytes]) -> Result<Usage> {
    let view = engine.view();
    let spans: Vec<Span> = prefixes.iter().map(|prefix| Span::prefix(prefix.clone())).collect();
    let mut walk = Walk {
        engine,
        view: &view,
        uncounted: HashMap::new(),
        queue: BTreeMap::new(),
        usage: Usage::default(),
    };
    walk.memory(&spans)?;
    while let Some(((_, id), visit)) = walk.queue.pop_first() {
        walk.node(id, visit)?;
    }
    let usage = &mut walk.usage;
    usage.stored_bytes = usage.exclusive_bytes.saturating_add(usage.shared_bytes);
    Ok(walk.usage)
}

impl Walk<'_> {
    /// The visit of node `id` that is to come, below height `above`.
    fn visit(&mut self, id: NodeId, above: Option<u8>) -> Result<&mut Visit> {
        let entry = self.view.tree.table.get(id);
        let height = entry.map(|entry| entry.height).ok_or_else(|| missing(id))?;
        if above.is_some_and(|above| height >= above) {
            return Err(Error::corrupt("edge", 0, format!("node {id} is not below its parent")));
        }
        Ok(self.queue.entry((Reverse(height), id)).or_default())
    }

    /// What is in memory only: like a node above the root, with its Gotos over one edge.
    fn memory(&mut self, spans: &[Span]) -> Result<()> {
        let mut shown = Shown::new();
        spans.iter().for_each(|span| show(&mut shown, span.clone(), 1));
        let mut hidden: Vec<Span> = Vec::new();
        for table in &self.view.tables {
            for span in spans {
                let points = minus(span, &hidden).into_iter().flat_map(|part| {
                    let points = table.points_in(&part).map(|(key, msg)| (key.len() + msg.len()) as u64);
                    points.collect::<Vec<_>>()
                });
                self.usage.visible_bytes += points.sum::<u64>();
            }
            let before = hidden.len();
            for (_, range) in &table.ranges {
                if let Some(target) = &range.target {
                    *self.uncounted.entry(target.id).or_default() += 1;
                    let hidden = hidden.get(..before).unwrap_or_default();
                    self.refer(&range.span, target, spans, &shown, hidden, Reference::PrivateAbove(None))?;
                }
                hidden.push(range.span.clone());
            }
        }
        let root = self.visit(self.view.tree.root, None)?;
        root.narrowed = 1;
        root.deleted = spans.to_vec();
        for ((lo, hi), times) in &shown {
            for part in minus(&Span::new(lo.clone(), hi.clone()), &hidden) {
                show(&mut root.shown, part, *times);
            }
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId, visit: Visit) -> Result<()> {
        let entry = self.view.tree.table.get(id).ok_or_else(|| missing(id))?;
        let count = u64::from(entry.count) + self.uncounted.get(&id).copied().unwrap_or(0);
        let handle = self.engine.pager.node(&self.view.tree.table, id)?;
        let (extents, bytes) = place(entry);
        let written = !extents.is_empty();
        let whole = match written {
            true => extents.iter().map(|extent| extent.len).sum(),
            false => bytes.next_multiple_of(BLOCK),
        };
        self.usage.nodes += 1;
        let height = handle.node.height;
        let how = if visit.gone >= count {
            self.usage.exclusive_nodes += 1;
            self.usage.exclusive_bytes += whole;
            self.usage.estimated_bytes += if written { 0 } else { whole };
            Reference::Gone(height)
        } else if visit.narrowed == 1 && count - visit.gone == 1 {
            let inside = inside(&handle, |span| covered(span, &visit.deleted));
            self.usage.exclusive_bytes += inside;
            self.usage.estimated_bytes += inside;
            Reference::PrivateAbove(Some(height))
        } else {
            self.usage.shared_nodes += 1;
            let all = visit
                .shown
                .keys()
                .any(|(lo, hi)| Span::new(lo.clone(), hi.clone()).covers(&handle.node.span));
            self.usage.shared_bytes += match all {
                true => whole,
                false => inside(&handle, |page| {
                    visit.shown.keys().any(|(lo, hi)| Span::new(lo.clone(), hi.clone()).overlaps(page))
                }),
            };
            Reference::Stays(height)
        };
        self.below(&handle, &visit, how)
    }

    /// Passes on to what a node refers to, and counts what can be read in it.
    fn below(&mut self, handle: &Handle, visit: &Visit, how: Reference) -> Result<()> {
        let node = &handle.node;
        let edges = match &node.body {
            Body::Leaf(run) => {
                self.usage.visible_bytes += readable(run, &visit.shown, &[]);
                return Ok(());
            }
            Body::Interior(edges) => edges,
        };
        for (i, edge) in edges.iter().enumerate() {
            // Newest first: what a range message covers hides all that is older.
            let mut hidden: Vec<Span> = Vec::new();
            for layer in edge.layers.iter().rev() {
                self.usage.visible_bytes += readable(&layer.run, &visit.shown, &hidden);
                let before = hidden.len();
                for range in &layer.ranges {
                    if let Some(target) = &range.target {
                        let hidden = hidden.get(..before).unwrap_or_default();
                        self.refer(&range.span, target, &visit.deleted, &visit.shown, hidden, how)?;
                    }
                    hidden.push(range.span.clone());
                }
            }
            if let Some(target) = &edge.child {
                self.refer(&node.edge_span(i), target, &visit.deleted, &visit.shown, &hidden, how)?;
            }
        }
        Ok(())
    }

    /// Passes an edge or Goto on to its target.
    fn refer(
        &mut self,
        live: &Span,
        target: &Target,
        deleted: &[Span],
        shown: &Shown,
        hidden: &[Span],
        how: Reference,
    ) -> Result<()> {
        let lens = Lens::of_edge(live, &target.prepend);
        let mut seen = Shown::new();
        for ((lo, hi), times) in shown {
            let Some(part) = Span::new(lo.clone(), hi.clone()).intersect(live) else { continue };
            for part in minus(&part, hidden) {
                show(&mut seen, lens.apply_span(&part), *times);
            }
        }
        let above = how.height();
        let goes = matches!(how, Reference::Gone(_));
        let in_place = matches!(how, Reference::PrivateAbove(_));
        let parts: Vec<Span> = deleted.iter().filter_map(|span| span.intersect(live)).collect();
        if seen.is_empty() && !goes && (!in_place || parts.is_empty()) {
            return Ok(());
        }
        let visit = self.visit(target.id, above)?;
        if goes || (in_place && covered(live, deleted)) {
            visit.gone += 1;
        } else if in_place && !parts.is_empty() {
            visit.narrowed += 1;
            visit.deleted.extend(parts.iter().map(|part| lens.apply_span(part)));
        }
        for ((lo, hi), times) in seen {
            show(&mut visit.shown, Span::new(lo, hi), times);
        }
        Ok(())
    }
}

/// What becomes of the references of a node of that height.
#[derive(Clone, Copy)]
enum Reference {
    /// They go with it.
    Gone(u8),
    /// It would be changed in place, so those inside the prefix go. `None`: what is in memory.
    PrivateAbove(Option<u8>),
    /// They stay.
    Stays(u8),
}

impl Reference {
    fn height(self) -> Option<u8> {
        match self {
            Reference::Gone(height) | Reference::Stays(height) => Some(height),
            Reference::PrivateAbove(height) => height,
        }
    }
}

fn missing(id: NodeId) -> Error {
    Error::corrupt("node reference", 0, format!("node {id} does not exist"))
}

fn show(shown: &mut Shown, span: Span, times: u64) {
    let seen = shown.entry((span.lo, span.hi)).or_default();
    *seen = seen.saturating_add(times);
}

/// True if one of `spans` holds all of `span`. Prefixes are nested or apart, so none needs two of them.
fn covered(span: &Span, spans: &[Span]) -> bool {
    spans.iter().any(|other| other.covers(span))
}

/// What is left of `span` without `hidden`.
fn minus(span: &Span, hidden: &[Span]) -> Vec<Span> {
    let mut left = vec![span.clone()];
    for cut in hidden {
        left = left
            .into_iter()
            .flat_map(|part| match part.overlaps(cut) {
                true => <[_; 2]>::from(part.without(cut)).into_iter().flatten().collect(),
                false => vec![part],
            })
            .collect();
    }
    left
}

/// Stored bytes of the pages of a node whose first to last key are as asked for.
fn inside(handle: &Handle, asked: impl Fn(&Span) -> bool) -> u64 {
    let pages = handle.node.pages().filter(|page| {
        // The least key above the last one ends the range.
        let above = [&page.last_key()[..], &[0]].concat();
        asked(&Span::new(page.first_key(), Some(above.into())))
    });
    pages.map(|page| u64::from(stored_len(page).unwrap_or(page.raw))).sum()
}

/// Raw bytes of the pages of a run that can be read, as often as they are seen.
fn readable(run: &Run, shown: &Shown, hidden: &[Span]) -> u64 {
    let mut bytes = 0u64;
    for ((lo, hi), times) in shown {
        for part in minus(&Span::new(lo.clone(), hi.clone()), hidden) {
            let from = run.page_from(&part.lo);
            let pages = run.pages.get(from..).unwrap_or_default().iter().take_while(|page| page.meets(&part));
            let raw: u64 = pages.map(|page| u64::from(page.raw)).sum();
            bytes = bytes.saturating_add(raw.saturating_mul(*times));
        }
    }
    bytes
}
