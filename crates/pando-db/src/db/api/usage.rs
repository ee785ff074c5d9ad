//! The space that a prefix takes on the device, and how much its deletion would free.
//!
//! The deletion of the prefix is simulated in one pass over the nodes, from the highest to the lowest. So all
//! references to a node have been seen when the pass reaches it, and it is known which of them would be removed, and
//! what the others would still show:
//!
//! - If all of them would be removed, the whole node would be removed, with its own references.
//! - Otherwise those pages and references would be removed from it that no remaining reference shows: the node would be
//!   made simple, or pruned (`dag/gc/prune.rs`).
//!
//! What would be removed is *exclusive*; what the prefix shows and would stay is *shared*. An extent of pages, which
//! several nodes may use, is freed with the last of them (`usage/extents.rs`). What the paths to a node show is merged
//! before it is passed on (`usage/paths.rs`), so a node costs the same however many paths lead to it. Reads headers
//! only and takes no lock over that. Uses the pager and the maps of `key`.

mod extents;
mod paths;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;

use self::{
    extents::Extents,
    paths::{PathSpans, ShownSpan},
};
use crate::{
    dag::read::view::View,
    db::{api::inspect::stored_len, engine::Engine, handle::Db},
    device::BLOCK,
    error::{Error, Result},
    key::{Lens, Span, behind},
    node::{
        Body, NodeId, Run, Target,
        ranged::{clip, cut},
    },
    store::{
        layout::is_worth_keeping,
        pager::Handle,
        table::{Entry, Loc},
    },
};

impl Db {
    /// The space that the keys under `prefix` take on the device, and how much of it would be freed if they were
    /// deleted: see [`Usage`] for what is exact. Cost: the headers of all interior nodes, and of the leaves that the
    /// prefix reaches; a pass over the translation table in memory; a few words for each extent of pages that the
    /// prefix reaches.
    pub fn usage(&self, prefix: &[u8]) -> Result<Usage> {
        usage(self.engine(), &[Bytes::copy_from_slice(prefix)])
    }

    /// The usage of several prefixes together; none may be a prefix of another.
    pub fn usage_of(&self, prefixes: &[Bytes]) -> Result<Usage> {
        let mut sorted: Vec<&Bytes> = prefixes.iter().collect();
        sorted.sort_unstable();
        // If a prefix lies in another, it or one like it follows that one directly in this order.
        if sorted.windows(2).any(|pair| matches!(pair, [a, b] if b.starts_with(a))) {
            return Err(Error::Invalid("one prefix lies in another".into()));
        }
        usage(self.engine(), prefixes)
    }
}

/// The space of the keys under a prefix. All sizes are bytes.
///
/// The figures are those of the moment of the call, and are most exact when the store has settled (see
/// [`crate::Db::settle`]): space that earlier deletes will free anyway counts as exclusive. Pages of the translation
/// table and the log are not included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of the keys (without the prefix that the keys of a page share) and values that can be read, before
    /// compression. Data that is visible twice under the prefix counts twice. This is an estimate: pages at the borders
    /// of the prefix count whole, and old values count until the messages that wait above them have been flushed.
    pub visible_bytes: u64,
    /// Bytes on the device in which this is stored, each node and each extent counted once: `exclusive_bytes +
    /// shared_bytes`. For the empty prefix, in a store that has settled and of which no snapshot is held, this is equal
    /// to [`crate::Stats::node_bytes`].
    pub stored_bytes: u64,
    /// Bytes that would be freed if everything under the prefix were deleted, once the store has settled and no
    /// snapshot of the data is held. Includes the parts of shared nodes that no other key shows. Exact for nodes that
    /// would be removed as a whole, and for unused space beside their pages: an extent that several nodes use counts as
    /// a whole if the last of them would be removed, and not at all otherwise. For nodes that would stay see
    /// `estimated_bytes`; a page in which the prefix begins or ends counts as one that stays.
    pub exclusive_bytes: u64,
    /// Bytes that would stay, because other keys are stored there too. An extent that is used by a node that would be
    /// removed and by one that would stay counts as a whole, so it may be included in the figures of two prefixes.
    pub shared_bytes: u64,
    /// The part of `exclusive_bytes` that is an estimate: pages in nodes that would be rewritten (which frees whole
    /// blocks only), extents that these nodes would no longer use, and data that is not written yet (whose length after
    /// compression is unknown).
    pub estimated_bytes: u64,
    /// Nodes that the prefix reaches.
    pub nodes: u64,
    /// How many of these nodes would be removed as a whole.
    pub exclusive_nodes: u64,
    /// How many of these nodes would stay and have something of the prefix.
    pub shared_nodes: u64,
}

/// What is known of a node before the pass reaches it.
#[derive(Default)]
struct Visit {
    /// How many references would be removed with the prefix.
    gone: u64,
    /// How many references would stay.
    stays: u64,
    /// Local keys that the remaining references would show.
    kept: PathSpans,
    /// Local keys that can be read under the prefix, and how many times.
    shown: PathSpans,
}

/// What is known of a node, or of a part of it, when the pass reaches it: ascending ranges that neither overlap nor
/// touch.
struct Seen {
    kept: Vec<Span>,
    shown: Vec<ShownSpan>,
}

impl Seen {
    fn clipped(&self, span: &Span) -> Seen {
        Seen { kept: clip(&self.kept, span), shown: clip(&self.shown, span) }
    }
}

/// Bytes of the pages of one node that lie in one extent, or in the node's own space.
#[derive(Default)]
struct Pages {
    /// Pages that no remaining reference shows.
    go: u64,
    /// Pages that would stay.
    stay: u64,
    /// The same without compression.
    stay_raw: u64,
    /// Pages that would stay and that the prefix shows.
    seen: u64,
    /// Those of them that would be shown only in part, and so would be rewritten; also without compression.
    cut: u64,
    cut_raw: u64,
}

struct UsageWalk<'a> {
    engine: &'a Engine,
    view: &'a View,
    queue: BTreeMap<(Reverse<u8>, NodeId), Visit>,
    /// Extents that several nodes may use. Their sums are known when all nodes have been seen.
    extents: Extents,
    usage: Usage,
}

impl Engine {
    /// A view of the present state or of a slightly later one, in which every clone made so far has been placed in the
    /// DAG.
    fn view_without_clones(&self) -> Result<Arc<View>> {
        loop {
            let view = self.view();
            if !view.tables.iter().any(|table| table.has_clones()) {
                return Ok(view);
            }
            self.seal();
            // Batches that arrive meanwhile need not be flushed, because the DAG alone is a consistent state.
            while self.superversion.read().tree.msn < view.msn {
                if !self.options.read_only {
                    self.make_way()?;
                }
                let step = self.flush_messages()?;
                if !self.goes_on(step)? {
                    break;
                }
            }
            let tree = self.superversion.read().tree.clone();
            if tree.msn >= view.msn {
                let msn = tree.msn;
                return Ok(Arc::new(View::new(Vec::new(), tree, msn, None)));
            }
        }
    }
}

/// The usage of some prefixes together. See [`crate::Db::usage`].
fn usage(engine: &Engine, prefixes: &[Bytes]) -> Result<Usage> {
    let view = engine.view_without_clones()?;
    let spans: Vec<Span> = prefixes.iter().map(|prefix| Span::prefix(prefix.clone())).collect();
    let mut walk = UsageWalk {
        engine,
        view: &view,
        queue: BTreeMap::new(),
        extents: Extents::default(),
        usage: Usage::default(),
    };
    walk.memory(&spans)?;
    while let Some(((_, id), visit)) = walk.queue.pop_first() {
        walk.node(id, visit)?;
    }
    let extents = walk.extents.sum(&view.tree.table);
    let usage = &mut walk.usage;
    usage.exclusive_bytes += extents.exclusive;
    usage.shared_bytes += extents.shared;
    usage.estimated_bytes += extents.estimated;
    usage.stored_bytes = usage.exclusive_bytes.saturating_add(usage.shared_bytes);
    Ok(walk.usage)
}

impl UsageWalk<'_> {
    /// The entry in the queue of node `id`, which must be lower than `above`.
    fn visit(&mut self, id: NodeId, above: Option<u8>) -> Result<&mut Visit> {
        let entry = self.view.tree.table.get(id);
        let height = entry.map(|entry| entry.height).ok_or_else(|| missing(id))?;
        if above.is_some_and(|above| height >= above) {
            return Err(Error::corrupt("edge", 0, format!("node {id} is not below its parent")));
        }
        Ok(self.queue.entry((Reverse(height), id)).or_default())
    }

    /// Counts the memtables of the view, as if they were the messages of a node above the root, and begins at the root.
    fn memory(&mut self, spans: &[Span]) -> Result<()> {
        let mut hidden: Vec<Span> = Vec::new();
        for table in &self.view.tables {
            for part in spans.iter().flat_map(|span| span.without_all(&hidden)) {
                let points = table.points_in(&part).map(|(key, msg)| (key.len() + msg.len()) as u64);
                let bytes = points.sum::<u64>();
                self.see(bytes);
                // If it were deleted before it is written, it would take no space.
                self.usage.exclusive_bytes += bytes;
                self.usage.estimated_bytes += bytes;
            }
            hidden.extend(table.ranges.values().map(|range| range.span.clone()));
        }
        // The superblock's reference to the root is never removed.
        let root = self.visit(self.view.tree.root, None)?;
        root.stays += 1;
        for part in Span::all().without_all(spans.iter().chain(&hidden)) {
            root.kept.add(part, 1);
        }
        for part in spans.iter().flat_map(|span| span.without_all(&hidden)) {
            root.shown.add(part, 1);
        }
        Ok(())
    }

    /// Counts bytes that can be read. In a damaged store the sum may be too large for a number.
    fn see(&mut self, bytes: u64) {
        self.usage.visible_bytes = self.usage.visible_bytes.saturating_add(bytes);
    }

    fn node(&mut self, id: NodeId, visit: Visit) -> Result<()> {
        let entry = self.view.tree.table.get(id).ok_or_else(|| missing(id))?;
        let Visit { gone, stays, kept, shown } = visit;
        let mut seen = Seen { kept: kept.any(), shown: shown.counted() };
        let count = u64::from(entry.count);
        let handle = self.engine.pager.node(&self.view.tree.table, id)?;
        if gone + stays < count {
            // Some references were not seen, as those of nodes that wait to be reclaimed. They may show everything.
            seen.kept = vec![handle.node.span.clone()];
        }
        self.usage.nodes += u64::from(!seen.shown.is_empty());
        let fate = if gone >= count {
            self.goes(entry);
            Fate::Gone
        } else {
            self.stays(entry, &handle, &seen);
            Fate::Stays
        };
        self.below(&handle, &seen, fate)
    }

    /// Counts a node that would be removed as a whole.
    fn goes(&mut self, entry: &Entry) {
        let (own, written) = own_bytes(entry);
        self.usage.exclusive_nodes += 1;
        self.usage.exclusive_bytes += own;
        self.usage.estimated_bytes += if written { 0 } else { own };
        extents::of_node(entry).into_iter().for_each(|extent| self.extents.goes(extent, !written));
    }

    /// Counts a node that would stay.
    fn stays(&mut self, entry: &Entry, handle: &Handle, seen: &Seen) {
        let (mut own, mut apart) = (Pages::default(), HashMap::<u64, Pages>::new());
        for page in handle.node.pages() {
            // The range ends at the least key above the last one.
            let keys = Span::new(page.first_key(), Some(behind(&page.last_key())));
            let bytes = u64::from(stored_len(page).unwrap_or(page.raw));
            let pages = match extents::of_page(handle, page) {
                Some(extent) => apart.entry(extent.id).or_default(),
                None => &mut own,
            };
            let Seen { kept, shown } = seen.clipped(&keys);
            if kept.is_empty() {
                pages.go += bytes;
                continue;
            }
            let seen = !shown.is_empty();
            let cut = seen && kept != [keys];
            pages.stay += bytes;
            pages.stay_raw += u64::from(page.raw);
            pages.seen += if seen { bytes } else { 0 };
            pages.cut += if cut { bytes } else { 0 };
            pages.cut_raw += if cut { u64::from(page.raw) } else { 0 };
        }
        let all = handle.node.span.without_all(seen.shown.iter().map(|part| &part.span)).is_empty();
        self.usage.exclusive_bytes += own.go;
        self.usage.estimated_bytes += own.go;
        let shared = if all { own_bytes(entry).0.saturating_sub(own.go) } else { own.seen };
        self.usage.shared_bytes += shared;
        let mut any = shared > 0;
        for extent in extents::of_node(entry) {
            let Pages { go, stay, stay_raw, seen, cut, cut_raw } =
                apart.remove(&extent.id).unwrap_or_default();
            let node_size = self.engine.pager.node_size();
            if go + cut == 0 || is_worth_keeping(extent, stay - cut, stay_raw - cut_raw, node_size) {
                self.extents.stays(extent, seen, all);
                any |= all;
            } else {
                self.extents.is_left(extent, stay, seen);
            }
            any |= seen > 0;
        }
        self.usage.shared_nodes += u64::from(any);
    }

    /// Passes what is shown on to the nodes that this one refers to, and counts what can be read in it.
    fn below(&mut self, handle: &Handle, seen: &Seen, fate: Fate) -> Result<()> {
        let node = &handle.node;
        let edges = match &node.body {
            Body::Leaf(run) => {
                self.see(readable(run, &seen.shown));
                return Ok(());
            }
            Body::Interior(edges) => edges,
        };
        for (i, edge) in edges.iter().enumerate() {
            let live = node.edge_span(i);
            let mut seen = seen.clipped(&live);
            // The newest layer comes first, because a range message hides all that is older.
            for layer in edge.layers.iter().rev() {
                self.see(readable(&layer.run, &seen.shown));
                for range in &layer.ranges {
                    if let Some(target) = &range.target {
                        self.refer(&range.span, target, &seen.clipped(&range.span), fate, node.height)?;
                    }
                }
                if !layer.ranges.is_empty() {
                    seen.kept = cut(&seen.kept, &layer.ranges);
                    seen.shown = cut(&seen.shown, &layer.ranges);
                }
            }
            if let Some(target) = &edge.child {
                self.refer(&live, target, &seen, fate, node.height)?;
            }
        }
        Ok(())
    }

    /// Notes at the target of an edge or Goto over `live` what is seen through it. `fate` is that of the node which has
    /// the edge.
    fn refer(&mut self, live: &Span, target: &Target, seen: &Seen, fate: Fate, above: u8) -> Result<()> {
        let entry = self.view.tree.table.get(target.id);
        // If this is the only reference to a leaf, the leaf would show the same as now.
        let nothing_changes = fate == Fate::Stays
            && seen.kept == [live.clone()]
            && entry.is_some_and(|entry| entry.height == 0 && entry.count == 1);
        if seen.shown.is_empty() && nothing_changes {
            return Ok(());
        }
        let lens = Lens::of_edge(live, &target.prepend);
        let next = self.visit(target.id, Some(above))?;
        match fate {
            Fate::Gone => next.gone += 1,
            Fate::Stays if seen.kept.is_empty() => next.gone += 1,
            Fate::Stays => {
                next.stays += 1;
                seen.kept.iter().for_each(|part| next.kept.add(lens.apply_span(part), 1));
            }
        }
        seen.shown.iter().for_each(|part| next.shown.add(lens.apply_span(&part.span), part.times));
        Ok(())
    }
}

/// What would happen to a node if the prefix were deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The node would be removed, with its references.
    Gone,
    /// The node would stay, without references that show nothing any more.
    Stays,
}

fn missing(id: NodeId) -> Error {
    Error::corrupt("node reference", 0, format!("node {id} does not exist"))
}

/// Bytes of the space that a node alone owns, and whether the node is written. If it is not, they are an estimate,
/// without the pages that lie in extents of pages.
fn own_bytes(entry: &Entry) -> (u64, bool) {
    match &entry.loc {
        Loc::Stored(stored) => {
            let own = stored.parts.iter().filter(|part| !part.shared);
            (own.map(|part| part.owned_bytes()).sum(), true)
        }
        Loc::Dirty(node) => {
            let placed = node.pages().filter(|page| page.is_placed()).map(|page| u64::from(page.raw));
            let bytes = (node.bytes() as u64).saturating_sub(placed.sum());
            (bytes.next_multiple_of(BLOCK), false)
        }
    }
}

/// Raw bytes of the pages of a run that can be read. A page counts whole, and as many times as the part of it that is
/// shown by most paths.
fn readable(run: &Run, shown: &[ShownSpan]) -> u64 {
    let mut bytes = 0u64;
    // The page that was counted last, and how many times it was counted.
    let mut last: Option<(usize, u64)> = None;
    for ShownSpan { span, times } in shown {
        let from = run.page_from(&span.lo);
        let pages = run.pages.iter().enumerate().skip(from);
        for (at, page) in pages.take_while(|(_, page)| page.meets(span)) {
            let before = last.filter(|(page, _)| *page == at).map_or(0, |(_, times)| times);
            let more = times.saturating_sub(before);
            bytes = bytes.saturating_add(u64::from(page.raw).saturating_mul(more));
            last = Some((at, before.max(*times)));
        }
    }
    bytes
}
