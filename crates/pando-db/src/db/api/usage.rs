//! The space that prefixes take on the device, and how much their deletion would free.
//!
//! The deletion of each of several groups of prefixes is simulated, of each for itself, in one pass over the nodes,
//! from the highest to the lowest. So all references to a node have been seen when the pass reaches it, and it is known
//! which keys of it each group shows, and which the rest of the store does:
//!
//! - If one group shows all that anybody shows, the whole node would be removed with it.
//! - Otherwise those pages and references would be removed from it that nobody else shows: the node would be made
//!   simple, or pruned (`dag/gc/prune.rs`). If several paths go on showing it, little of a leaf stays where it is, and
//!   so do pages of an edge of which anything else is shown (`usage/taken.rs`, `usage/rewritten.rs`).
//!
//! What would be removed is *exclusive*; what the group shows and would stay is *shared*. What nobody shows any more
//! goes by itself, and is nobody's. An extent of pages, which several nodes may use, is freed with the last of them
//! (`usage/extents.rs`). What the paths to a node show is merged before it is passed on (`usage/paths.rs`), and
//! groups with successive numbers are one run (`usage/groups.rs`): so a node costs the same however many paths lead
//! to it, and ten thousand snapshots are looked at as fast as the nodes that they have. Reads headers only and takes
//! no lock over that. A clone that waits in a memtable is no node yet: then the memtables are flushed first, as by a
//! checkpoint.

mod extents;
mod groups;
mod paths;
mod rewritten;
mod taken;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use self::{
    extents::Extents,
    groups::{ShownBy, Sums},
    paths::{PathSpans, ShownSpan, only_group},
    rewritten::NodePages,
    taken::{OnePath, Refs},
};
use crate::{
    dag::read::view::View,
    db::{engine::Engine, handle::Db},
    device::BLOCK,
    error::{Error, Result},
    key::{Lens, Span},
    node::{
        Body, NodeId, Run, Target,
        ranged::{clip, cut},
    },
    store::{
        pager::Handle,
        table::{Entry, Loc},
    },
};

impl Db {
    /// The space that the keys under `prefix` take on the device, and how much of it would be freed if they were
    /// deleted: see [`Usage`] for what is exact. Cost: the headers of all interior nodes, and of the leaves that the
    /// prefix reaches; a pass over the translation table in memory; a few words for each extent of pages that the
    /// prefix reaches. Where a clone waits in a memtable, a flush of the memtables before that.
    pub fn usage(&self, prefix: &[u8]) -> Result<Usage> {
        self.usage_of(&[Bytes::copy_from_slice(prefix)])
    }

    /// The usage of several prefixes together; none may be a prefix of another.
    pub fn usage_of(&self, prefixes: &[Bytes]) -> Result<Usage> {
        Ok(self.usage_of_each(&[prefixes.to_vec()])?.pop().unwrap_or_default())
    }

    /// The usage of each of several groups of prefixes, as if it alone were deleted; no prefix may be a prefix of
    /// another. Cost: as of one group that has all of them, whatever their number, if groups that share something are
    /// near each other.
    pub fn usage_of_each(&self, groups: &[Vec<Bytes>]) -> Result<Vec<Usage>> {
        let mut sorted: Vec<&Bytes> = groups.iter().flatten().collect();
        sorted.sort_unstable();
        // If a prefix lies in another, it or one like it follows that one directly in this order.
        if sorted.windows(2).any(|pair| matches!(pair, [a, b] if b.starts_with(a))) {
            return Err(Error::Invalid("one prefix lies in another".into()));
        }
        usage(self.engine(), groups)
    }
}

/// The space of the keys under a prefix. All sizes are bytes.
///
/// The figures are those of the moment of the call, and are most exact when the store has settled (see
/// [`crate::Db::settle`]): space that earlier deletes will free anyway is in no figure, unless a node has it together
/// with all that it has of the prefix. Pages of the translation table and the log are not included.
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
    /// blocks only), extents that these nodes would no longer use, less what they would copy, and data that is not
    /// written yet (whose length after compression is unknown).
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
    /// How many references were seen.
    references: u64,
    /// Local keys that these show.
    shown: PathSpans,
    /// Those that show anything.
    refs: Refs,
}

/// The sums of [`Usage`], by group.
#[derive(Default)]
struct UsageSums {
    visible: Sums,
    stored: Sums,
    exclusive: Sums,
    estimated: Sums,
    nodes: Sums,
    exclusive_nodes: Sums,
    shared_nodes: Sums,
}

struct UsageWalk<'a> {
    engine: &'a Engine,
    view: &'a View,
    queue: BTreeMap<(Reverse<u8>, NodeId), Visit>,
    /// Extents that several nodes may use. Their sums are known when all nodes have been seen.
    extents: Extents,
    sums: UsageSums,
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

/// The usage of each of some groups of prefixes. See [`crate::Db::usage_of_each`].
fn usage(engine: &Engine, groups: &[Vec<Bytes>]) -> Result<Vec<Usage>> {
    let view = engine.view_without_clones()?;
    let mut shown = Vec::new();
    for (group, prefixes) in (0u32..).zip(groups) {
        let by = ShownBy::of(group, 1);
        shown.extend(
            prefixes.iter().map(|prefix| ShownSpan { span: Span::prefix(prefix.clone()), by: by.clone() }),
        );
    }
    let others = Span::all().without_all(shown.iter().map(|part| &part.span));
    shown.extend(others.into_iter().map(|span| ShownSpan { span, by: ShownBy::others() }));
    shown.sort_unstable_by(|a, b| a.span.lo.cmp(&b.span.lo));
    let mut walk = UsageWalk {
        engine,
        view: &view,
        queue: BTreeMap::new(),
        extents: Extents::default(),
        sums: UsageSums::default(),
    };
    walk.memory(shown)?;
    while let Some(((_, id), visit)) = walk.queue.pop_first() {
        #[cfg(test)]
        tests::LOOKED_AT.set(tests::LOOKED_AT.get() + visit.references);
        walk.node(id, visit)?;
    }
    let extents = walk.extents.sum(&view.tree.table);
    let each = |sums: Sums| sums.each(groups.len());
    let UsageSums { visible, stored, exclusive, estimated, nodes, exclusive_nodes, shared_nodes } = walk.sums;
    let [visible, nodes] = [visible, nodes].map(each);
    let [exclusive_nodes, shared_nodes] = [exclusive_nodes, shared_nodes].map(each);
    let both = |a: Sums, b: Sums| -> Vec<u64> {
        each(a).into_iter().zip(each(b)).map(|(a, b)| a.saturating_add(b)).collect()
    };
    let stored = both(stored, extents.stored);
    // What is copied takes up again what comes back elsewhere.
    let less = |sums: Vec<u64>, copied: &[u64]| -> Vec<u64> {
        sums.into_iter().zip(copied).map(|(sum, copied)| sum.saturating_sub(*copied)).collect()
    };
    let copied = each(extents.copied);
    let exclusive = less(both(exclusive, extents.exclusive), &copied);
    let estimated = less(both(estimated, extents.estimated), &copied);
    let of = |sums: &[u64], group: usize| sums.get(group).copied().unwrap_or(0);
    let usages = (0..groups.len()).map(|group| Usage {
        visible_bytes: of(&visible, group),
        stored_bytes: of(&stored, group),
        exclusive_bytes: of(&exclusive, group),
        shared_bytes: of(&stored, group).saturating_sub(of(&exclusive, group)),
        estimated_bytes: of(&estimated, group),
        nodes: of(&nodes, group),
        exclusive_nodes: of(&exclusive_nodes, group),
        shared_nodes: of(&shared_nodes, group),
    });
    Ok(usages.collect())
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
    fn memory(&mut self, mut shown: Vec<ShownSpan>) -> Result<()> {
        let view = self.view;
        for table in &view.tables {
            for part in shown.iter().filter(|part| !part.by.listed().is_empty()) {
                let points = table.points_in(&part.span).map(|(key, msg)| (key.len() + msg.len()) as u64);
                let bytes = points.sum::<u64>();
                self.sums.visible.add(&part.by, bytes);
                self.sums.stored.add(&part.by, bytes);
                // If it were deleted before it is written, it would take no space.
                self.sums.exclusive.add(&part.by, bytes);
                self.sums.estimated.add(&part.by, bytes);
            }
            let hidden: Vec<Span> = table.ranges.values().map(|range| range.span.clone()).collect();
            shown = cut(&shown, &hidden);
        }
        let root = self.visit(view.tree.root, None)?;
        root.references += 1;
        root.refs.add(None, &OnePath::Always);
        shown.into_iter().for_each(|part| root.shown.add(part.span, part.by));
        Ok(())
    }

    fn node(&mut self, id: NodeId, visit: Visit) -> Result<()> {
        let entry = self.view.tree.table.get(id).ok_or_else(|| missing(id))?;
        let mut shown = visit.shown.counted();
        let count = u64::from(entry.count);
        // Some references were not seen, as those of nodes that wait to be reclaimed. They may show everything. And the
        // superblock's reference to the root is never removed.
        let is_held = visit.references < count || id == self.view.tree.root;
        let is_ours = shown.iter().any(|part| !part.by.listed().is_empty());
        if entry.height == 0 && !is_ours && (is_held || !shown.is_empty()) {
            return Ok(());
        }
        let handle = self.engine.pager.node(&self.view.tree.table, id)?;
        let mut one_path = visit.refs.one_path();
        if visit.references < count {
            one_path = OnePath::never();
            let mut held = PathSpans::default();
            held.add(handle.node.span.clone(), ShownBy::others());
            shown.into_iter().for_each(|part| held.add(part.span, part.by));
            shown = held.counted();
        }
        let any = shown.iter().fold(ShownBy::default(), |any, part| any.merged(&part.by, true));
        self.sums.nodes.add(&any, 1);
        match any.only().filter(|_| !is_held) {
            Some(group) => self.goes(group, entry),
            None if any.is_empty() && !is_held => {
                extents::of_node(entry).into_iter().for_each(|extent| self.extents.is_dead(extent));
            }
            None if is_ours => self.stays(entry, &handle, &shown, &one_path),
            None => {}
        }
        self.below(&handle, &shown, &one_path)
    }

    /// Counts a node that would be removed as a whole with a group.
    fn goes(&mut self, group: u32, entry: &Entry) {
        let (own, written) = own_bytes(entry);
        let sums = &mut self.sums;
        sums.exclusive_nodes.add_one(group, 1);
        sums.stored.add_one(group, own);
        sums.exclusive.add_one(group, own);
        sums.estimated.add_one(group, if written { 0 } else { own });
        extents::of_node(entry).into_iter().for_each(|extent| self.extents.goes(group, extent, !written));
    }

    /// Counts a node that would stay whatever group is deleted.
    fn stays(&mut self, entry: &Entry, handle: &Handle, shown: &[ShownSpan], one_path: &OnePath) {
        let node = &handle.node;
        let pages = NodePages::of(handle, shown);
        let all = shows_all(shown, &node.span);
        let mut any = all.clone();
        self.sums.stored.add(&all, own_bytes(entry).0);
        for page in pages.own() {
            self.sums.stored.add(&page.by.without(&all), page.bytes);
        }
        let node_size = self.engine.pager.node_size();
        for extent in extents::of_node(entry) {
            let seen: Vec<_> = pages.in_extent(extent.id).map(|page| (page.by.clone(), page.bytes)).collect();
            self.extents.stays(extent, &seen, &all);
        }
        for page in &pages.all {
            any = any.merged(&page.by, true);
        }
        for (group, rewritten) in pages.rewritten(one_path, node_size) {
            self.sums.exclusive.add_one(group, rewritten.own);
            self.sums.estimated.add_one(group, rewritten.own);
            for extent in extents::of_node(entry) {
                if !rewritten.kept.contains(&extent.id) {
                    let copied = rewritten.copied.get(&extent.id).copied().unwrap_or(0);
                    self.extents.is_left(group, extent, copied);
                }
            }
        }
        self.sums.shared_nodes.add(&any, 1);
    }

    /// Passes what is shown on to the nodes that this one refers to, and counts what can be read in it.
    fn below(&mut self, handle: &Handle, shown: &[ShownSpan], one_path: &OnePath) -> Result<()> {
        let node = &handle.node;
        let edges = match &node.body {
            Body::Leaf(run) => {
                read(run, shown, &mut self.sums.visible);
                return Ok(());
            }
            Body::Interior(edges) => edges,
        };
        for (i, edge) in edges.iter().enumerate() {
            let live = node.edge_span(i);
            let mut shown = clip(shown, &live);
            let (of_edge, is_seen) = (only_group(&shown), !shown.is_empty());
            // The newest layer comes first, because a range message hides all that is older.
            for layer in edge.layers.iter().rev() {
                read(&layer.run, &shown, &mut self.sums.visible);
                for range in &layer.ranges {
                    if let Some(target) = &range.target {
                        let seen = clip(&shown, &range.span);
                        // A pruned node loses what this range shows only together with the whole edge.
                        let only = only_group(&seen);
                        let goes = match only {
                            Some(group) => of_edge == only || one_path.without(group),
                            None => seen.is_empty() && (!is_seen || *one_path == OnePath::Always),
                        };
                        let next = self.refer(&range.span, target, &seen, node.height)?;
                        if let Some(refs) = next.filter(|_| !goes || !seen.is_empty()) {
                            refs.add(only.filter(|_| goes), one_path);
                        }
                    }
                }
                if !layer.ranges.is_empty() {
                    shown = cut(&shown, &layer.ranges);
                }
            }
            if let Some(target) = &edge.child {
                let next = self.refer(&live, target, &shown, node.height)?;
                if let Some(refs) = next.filter(|_| !shown.is_empty()) {
                    refs.add(only_group(&shown), one_path);
                }
            }
        }
        Ok(())
    }

    /// Notes at the target of an edge or Goto over `live` what is seen through it. Returns where to note what becomes
    /// of the reference; `None` if that cannot matter.
    fn refer(
        &mut self,
        live: &Span,
        target: &Target,
        shown: &[ShownSpan],
        above: u8,
    ) -> Result<Option<&mut Refs>> {
        let entry = self.view.tree.table.get(target.id);
        let is_leaf = entry.is_some_and(|entry| entry.height == 0 && entry.count == 1);
        // This is the only reference, and no group shows anything through it.
        if is_leaf && !shown.is_empty() && shown.iter().all(|part| part.by.listed().is_empty()) {
            return Ok(None);
        }
        let lens = Lens::of_edge(live, &target.prepend);
        let next = self.visit(target.id, Some(above))?;
        next.references += 1;
        shown.iter().for_each(|part| next.shown.add(lens.apply_span(&part.span), part.by.clone()));
        Ok(Some(&mut next.refs))
    }
}

/// The groups that show all of `span`, of which these parts are shown.
fn shows_all(shown: &[ShownSpan], span: &Span) -> ShownBy {
    let Some((first, others)) = shown.split_first() else { return ShownBy::default() };
    if !span.without_all(shown.iter().map(|part| &part.span)).is_empty() {
        return ShownBy::default();
    }
    others.iter().fold(first.by.clone(), |all, part| all.merged(&part.by, false))
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

/// Adds raw bytes of the pages of a run that can be read. A page counts whole, and as many times as the part of it that
/// is shown by most paths.
fn read(run: &Run, shown: &[ShownSpan], visible: &mut Sums) {
    // The page that was met last, and who shows it.
    let mut last: Option<(usize, ShownBy)> = None;
    let mut count = |page: Option<(usize, ShownBy)>| {
        if let Some((page, by)) = page
            && let Some(page) = run.pages.get(page)
        {
            visible.add_times(&by, page.raw.into());
        }
    };
    for ShownSpan { span, by } in shown.iter().filter(|part| !part.by.listed().is_empty()) {
        let from = run.page_from(&span.lo);
        let pages = run.pages.iter().enumerate().skip(from);
        for (at, _) in pages.take_while(|(_, page)| page.meets(span)) {
            last = match last.take() {
                Some((page, before)) if page == at => Some((at, before.merged(by, true))),
                before => {
                    count(before);
                    Some((at, by.clone()))
                }
            };
        }
    }
    count(last);
}
