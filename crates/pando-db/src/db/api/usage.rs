//! The space that a prefix takes on the device, and how much its deletion would free.
//!
//! The deletion of the prefix is simulated in one pass over the nodes, from the highest to the lowest, so that all
//! references to a node are known before the node itself. For each node it is known which of its references would be
//! removed, and what the others would still show:
//!
//! - if all go, the node goes itself, whole, and its own references with it;
//! - otherwise what those that are left do not show between them goes from it, pages and
//!   references: it would be made simple, or pruned (`dag/gc/prune.rs`).
//!
//! What goes is *exclusive*; what the prefix shows and what stays is *shared*. Extents of
//! pages, which several nodes may use, go with the last of them
//! (`usage/extents.rs`). What paths show of a node is brought together before it is passed on (`usage/paths.rs`), so a
//! node costs the same however many paths lead to it. Reads headers only and takes no lock. Uses the pager and the maps
//! of `key`.

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
    /// What the keys under `prefix` take on the device, and what of that would come back if they were
    /// deleted: see [`Usage`] for what is exact. Cost: the headers of all interior nodes, and of the leaves
    /// that the prefix reaches; a pass over the translation table in memory; a few words for each extent of
    /// pages that the prefix reaches.
    pub fn usage(&self, prefix: &[u8]) -> Result<Usage> {
        usage(self.engine(), &[Bytes::copy_from_slice(prefix)])
    }

    /// The usage of several prefixes together; none may be a prefix of another.
    pub fn usage_of(&self, prefixes: &[Bytes]) -> Result<Usage> {
        let mut sorted: Vec<&Bytes> = prefixes.iter().collect();
        sorted.sort_unstable();
        // Whatever begins with a key stands right behind it.
        if sorted.windows(2).any(|pair| matches!(pair, [a, b] if b.starts_with(a))) {
            return Err(Error::Invalid("one prefix lies in another".into()));
        }
        usage(self.engine(), prefixes)
    }
}

/// The space of the keys under a prefix. All sizes are bytes.
///
/// The figures are those of the moment of the call, and are best when the store has settled (see
/// [`crate::Db::settle`]): what waiting deletes are going to give back anyway counts as exclusive. Table
/// pages and the log are not in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// What can be read: keys (without what the keys of a page have in common) and values, before
    /// compression, a part that is seen twice under the prefix counted twice. An estimate: pages at the
    /// borders count whole, and so do old values until the messages that wait above them have been flushed.
    pub visible_bytes: u64,
    /// What it is kept in on the device, each node and each extent once: `exclusive_bytes + shared_bytes`. Of
    /// the empty prefix, in a store that has settled and of which no snapshot is held, just what
    /// [`crate::Stats::node_bytes`] says.
    pub stored_bytes: u64,
    /// What would be given back if everything under the prefix were deleted, once that has settled and
    /// nobody holds a snapshot of it; also what no other key shows of nodes that the prefix shares. Exact
    /// for nodes that go as a whole, and for what lies unused beside their pages: an extent that several
    /// nodes use counts as a whole if the last of them goes, and not at all otherwise. For nodes that stay
    /// see `estimated_bytes`; a page in which the prefix begins or ends counts as one that stays.
    pub exclusive_bytes: u64,
    /// What would stay, because other keys are kept there too. An extent that a node which goes shares with
    /// one which stays counts as a whole, so the figures of two prefixes may both have it.
    pub shared_bytes: u64,
    /// How much of `exclusive_bytes` is an estimate: pages in nodes that would be rewritten (which frees
    /// whole blocks only), extents that these would leave, and what is not yet written (whose compression
    /// is not known).
    pub estimated_bytes: u64,
    /// Nodes that the prefix reaches.
    pub nodes: u64,
    /// Of these, nodes that would go as a whole.
    pub exclusive_nodes: u64,
    /// Of these, nodes that something else refers to.
    pub shared_nodes: u64,
}

/// What is known of a node before its turn.
#[derive(Default)]
struct Visit {
    /// References that go with the prefix.
    gone: u64,
    /// References that stay.
    stays: u64,
    /// Local keys that these show afterwards.
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

/// Bytes of the pages of one node that lie in one place.
#[derive(Default)]
struct Pages {
    /// Nothing that stays shows them.
    go: u64,
    stay: u64,
    /// The bytes that stay, without compression.
    stay_raw: u64,
    /// Bytes that stay and that the prefix shows.
    seen: u64,
    /// Bytes of these in pages that would be shown only in part, and so rewritten; also without compression.
    cut: u64,
    cut_raw: u64,
}

struct UsageWalk<'a> {
    engine: &'a Engine,
    view: &'a View,
    queue: BTreeMap<(Reverse<u8>, NodeId), Visit>,
    /// Extents that nodes may use together: known when all have been seen.
    extents: Extents,
    usage: Usage,
}

impl Engine {
    /// The state of now or a little later, in which each clone that was made so far has its node.
    fn view_without_clones(&self) -> Result<Arc<View>> {
        loop {
            let view = self.view();
            if !view.tables.iter().any(|table| table.has_clones()) {
                return Ok(view);
            }
            self.seal();
            // Batches that come meanwhile are not waited for: the DAG alone is a consistent state, too.
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

/// Adds up what is under some prefixes together. See [`crate::Db::usage`].
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
        let mut hidden: Vec<Span> = Vec::new();
        for table in &self.view.tables {
            for part in spans.iter().flat_map(|span| span.without_all(&hidden)) {
                let points = table.points_in(&part).map(|(key, msg)| (key.len() + msg.len()) as u64);
                let bytes = points.sum::<u64>();
                self.see(bytes);
                // Deleted before it is written anywhere, it takes nothing.
                self.usage.exclusive_bytes += bytes;
                self.usage.estimated_bytes += bytes;
            }
            hidden.extend(table.ranges.values().map(|range| range.span.clone()));
        }
        // The superblock's reference never goes.
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

    /// Counts what can be read. A damaged store may show anything any number of times.
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
            // What refers to it besides is not known, and may show everything.
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

    /// Counts a node that goes as a whole.
    fn goes(&mut self, entry: &Entry) {
        let (own, written) = own_bytes(entry);
        self.usage.exclusive_nodes += 1;
        self.usage.exclusive_bytes += own;
        self.usage.estimated_bytes += if written { 0 } else { own };
        extents::of_node(entry).into_iter().for_each(|extent| self.extents.goes(extent, !written));
    }

    /// Counts a node of which something stays.
    fn stays(&mut self, entry: &Entry, handle: &Handle, seen: &Seen) {
        let (mut own, mut apart) = (Pages::default(), HashMap::<u64, Pages>::new());
        for page in handle.node.pages() {
            // The least key above the last one ends the range.
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

    /// Passes on to what a node refers to, and counts what can be read in it.
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
            // Newest first: what a range message covers hides all that is older.
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

    /// Passes an edge or Goto over `live` of a node of this `fate`, of which this is `seen`, on to its target.
    fn refer(&mut self, live: &Span, target: &Target, seen: &Seen, fate: Fate, above: u8) -> Result<()> {
        let entry = self.view.tree.table.get(target.id);
        // Of a leaf with this reference only, all that is shown now is shown afterwards.
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

/// What becomes of a node when the prefix is deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The node is removed, and so are its references.
    Gone,
    /// The node stays; references that show nothing any more are removed.
    Stays,
}

fn missing(id: NodeId) -> Error {
    Error::corrupt("node reference", 0, format!("node {id} does not exist"))
}

/// Bytes of what a node alone owns, and whether it is written. For one that is not, an estimate without the
/// pages that lie in extents of their own.
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

/// Raw bytes of the pages of a run that can be read, as often as they are seen. A page counts whole, and as often as
/// the part of it that is seen most.
fn readable(run: &Run, shown: &[ShownSpan]) -> u64 {
    let mut bytes = 0u64;
    // The page that was counted last, and how many times.
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
