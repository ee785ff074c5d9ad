//! Inspection of a store: its nodes, edges, messages and pages as plain data.
//!
//! For tools and tests that show or check the DAG (`pando inspect`). The walk covers a frozen version, breadth first,
//! so that a limit keeps what is near the start; each node is returned once, however many paths lead to it. It
//! changes nothing and trusts nothing: a node or page that cannot be read is returned as such, with the reason, and
//! the walk continues with the others. Only edges to lower nodes are followed, so the walk ends on a damaged image,
//! too.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    dag::{memtable::Memtable, read::view::View},
    db::{engine::Engine, handle::Db},
    error::{Error, Result},
    key::{Lens, Span},
    node::{
        Body, Layer, NodeId, PageLoc, PageRef, RangeMsg, Run, Target, UpdateMsg,
        message::{Msg, ValueChange},
    },
    space::Extent,
    store::{
        pager::Handle,
        table::{Entry, Loc},
    },
};

impl Db {
    /// The DAG as plain data, for tools that show it: see [`Inspection`].
    ///
    /// Nodes and pages that cannot be read are returned as such. [`Error::Invalid`] for a start that does not exist.
    /// Cost: the headers of all interior nodes below the start and of the leaves that are given; with
    /// [`InspectOptions::messages`] their pages too. The whole result is in memory at once.
    pub fn inspect(&self, options: &InspectOptions) -> Result<Inspection> {
        inspect(self.engine(), options)
    }
}

/// What [`crate::Db::inspect`] looks at.
#[derive(Debug, Clone)]
pub struct InspectOptions {
    /// Node to begin with; `None` is the root.
    pub start: Option<u64>,
    /// Steps down from there that are followed; `None` is all. 0 is the start alone.
    pub depth: Option<usize>,
    /// Most nodes that are given; what is left is counted.
    pub limit: usize,
    /// Whether pages are read and their messages listed. Otherwise headers are read only.
    pub messages: bool,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self { start: None, depth: None, limit: 1000, messages: false }
    }
}

/// The contents of a store at one moment. All sizes are bytes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Inspection {
    /// Number of the root node.
    pub root: u64,
    /// Number of the node that the walk began with.
    pub start: u64,
    /// The newest batch that is in the nodes.
    pub batch: u64,
    /// Target size of a node.
    pub node_size: u64,
    /// Nodes in the translation table, those that wait to be reclaimed included.
    pub nodes_in_all: u64,
    /// Nodes without a reference, which wait to be reclaimed.
    pub reclaimable: Vec<u64>,
    /// Messages that are in memory only, newest first.
    pub memory: Vec<LayerInfo>,
    /// The nodes, by distance from the start.
    pub nodes: Vec<NodeInfo>,
    /// Nodes that can be reached from the start but are beyond the limit or the depth.
    pub omitted: u64,
}

/// Keys `lo <= key < hi`; no `hi` is infinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The least key.
    pub lo: Bytes,
    /// The least key above.
    pub hi: Option<Bytes>,
}

/// A node.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeInfo {
    /// Its number.
    pub id: u64,
    /// 0 for leaves.
    pub height: u8,
    /// References that the translation table counts: edges, Gotos that rest, and 1 for the root.
    pub references: u32,
    /// Steps from the start by the path on which it was first met.
    pub distance: usize,
    /// That path, as a map of whole keys; `None` if it shows nothing of the node.
    pub path: Option<PathInfo>,
    /// Where it is on the device; empty if it has changed since the last checkpoint.
    pub extents: Vec<ExtentInfo>,
    /// Bytes of all its extents; an estimate of what it will take if it has changed.
    pub bytes: u64,
    /// Bytes of its header on the device; 0 if it has changed.
    pub header_bytes: u32,
    /// What is in it, or why it cannot be read.
    pub content: Result<Content, String>,
}

/// The map that a path of edges makes: `take_off` is taken off a whole key, `put_on` put before the
/// rest, and the result is a key of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// Whole keys that the path shows. Where the walk did not begin at the root, the keys of its start
    /// count as whole.
    pub shown: KeyRange,
    /// What is taken off.
    pub take_off: Bytes,
    /// What is put on.
    pub put_on: Bytes,
}

/// A piece of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentInfo {
    /// First byte on the device.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Holds pages only, and may belong to other nodes as well.
    pub shared: bool,
}

/// What a node holds.
#[derive(Debug, Clone)]
pub struct Content {
    /// Local keys that the node may hold.
    pub range: KeyRange,
    /// Its edges in order; none in a leaf.
    pub edges: Vec<EdgeInfo>,
    /// The pages of a leaf.
    pub pages: Vec<PageInfo>,
}

/// An edge: a range of a node's keys, where it continues, and what waits for it.
#[derive(Debug, Clone)]
pub struct EdgeInfo {
    /// Local keys of the node that has the edge.
    pub range: KeyRange,
    /// Where the range continues; `None`: there is nothing below.
    pub child: Option<TargetInfo>,
    /// The child may hold more than the edge shows.
    pub loose: bool,
    /// Messages that wait, oldest layer first.
    pub layers: Vec<LayerInfo>,
}

/// Where an edge or a Goto leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetInfo {
    /// Number of the node.
    pub node: u64,
    /// What all keys of the range begin with; it is taken off ("lifting").
    pub take_off: Bytes,
    /// What is put before the rest (the translation prefix).
    pub put_on: Bytes,
}

/// Messages that arrived together. The updates are newer than the ranges; the points in the pages are newer
/// than both, and include what the updates do to their keys.
#[derive(Debug, Clone)]
pub struct LayerInfo {
    /// No message in it is newer than this batch.
    pub newest: u64,
    /// Range messages, disjoint and ascending.
    pub ranges: Vec<RangeInfo>,
    /// Changes of all values in a range, disjoint and ascending.
    pub updates: Vec<UpdateInfo>,
    /// Point messages.
    pub pages: Vec<PageInfo>,
}

/// A message about a range of keys: it deletes everything older there, and shows its target instead, if it has one.
#[derive(Debug, Clone)]
pub struct RangeInfo {
    /// Local keys of the node in which it rests.
    pub range: KeyRange,
    /// The target of a Goto; a RangeDelete has none.
    pub target: Option<TargetInfo>,
}

/// A message that changes every value in a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateInfo {
    /// Local keys of the node in which it rests.
    pub range: KeyRange,
    /// What is done, in order, to each key of the range while it has a value.
    pub operations: Vec<Bytes>,
}

/// A page: pairs of a leaf, or messages.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PageInfo {
    /// First key in it.
    pub first: Bytes,
    /// Last key in it.
    pub last: Bytes,
    /// What all its keys begin with, which is not stored in the page.
    pub prefix: Bytes,
    /// Entries.
    pub entries: u32,
    /// Bytes without compression.
    pub raw: u32,
    /// Bytes on the device; `None` for one in memory.
    pub stored: Option<u32>,
    /// The entries, if they were asked for, or why they cannot be read.
    pub messages: Option<Result<Vec<EntryInfo>, String>>,
}

/// An entry of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryInfo {
    /// The local key.
    pub key: Bytes,
    /// What is said about it.
    pub message: MessageInfo,
}

/// What is said about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageInfo {
    /// The key has this value.
    Put(Bytes),
    /// The key is deleted.
    Delete,
    /// These operations apply to the older value, in order.
    Upsert(Vec<OperationInfo>),
}

/// One operation on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationInfo {
    /// What is done: see [`crate::Merge`].
    pub operation: Bytes,
    /// Whether the operation applies only if the key has a value: it came with a range-upsert.
    pub if_present: bool,
}

impl Inspection {
    /// The node with this number, if it is among those given. O(n).
    pub fn node(&self, id: u64) -> Option<&NodeInfo> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

impl NodeInfo {
    /// The targets of its edges and Gotos, with the ranges in which they are visible; `true` for Gotos.
    pub fn targets(&self) -> impl Iterator<Item = (&KeyRange, &TargetInfo, bool)> {
        let edges = self.content.iter().flat_map(|content| &content.edges);
        edges.flat_map(|edge| {
            let child = edge.child.iter().map(|target| (&edge.range, target, false));
            let ranges = edge.layers.iter().flat_map(|layer| &layer.ranges);
            child.chain(ranges.filter_map(|r| Some((&r.range, r.target.as_ref()?, true))))
        })
    }
}

impl PathInfo {
    /// The whole key that is `local` in the node by this path; `None` for one that cannot be seen so.
    pub fn whole_key(&self, local: &[u8]) -> Option<Bytes> {
        let rest = local.strip_prefix(&self.put_on[..])?;
        Some([&self.take_off[..], rest].concat().into())
    }

    /// What of the range `local` of the node can be seen by this path, as whole keys.
    pub fn whole_range(&self, local: &KeyRange) -> Option<KeyRange> {
        let lens = Lens::new(self.take_off.clone(), self.put_on.clone());
        let shown = Span::new(self.shown.lo.clone(), self.shown.hi.clone());
        let local = Span::new(local.lo.clone(), local.hi.clone());
        if !shown.lo.starts_with(&lens.strip) {
            return None;
        }
        let visible = local.intersect(&lens.apply_span(&shown))?;
        visible.lo.starts_with(&lens.prepend).then(|| (&lens.inverse().apply_span(&visible)).into())
    }
}

impl KeyRange {
    /// The prefix that just the keys of this range have in common; `None` if it is no such range.
    pub fn as_prefix(&self) -> Option<&[u8]> {
        (self.hi == crate::key::successor(&self.lo)).then_some(&self.lo)
    }
}

impl From<&Span> for KeyRange {
    fn from(span: &Span) -> Self {
        Self { lo: span.lo.clone(), hi: span.hi.clone() }
    }
}

/// The extents of a node and their bytes; of one in memory, an estimate of the latter.
fn place(entry: &Entry) -> (Vec<ExtentInfo>, u64) {
    match &entry.loc {
        Loc::Dirty(node) => (Vec::new(), node.bytes() as u64),
        Loc::Stored(stored) => {
            let info = |e: &Arc<Extent>| -> Vec<_> {
                let range =
                    |r: Range<u64>| ExtentInfo { offset: r.start, len: r.end - r.start, shared: e.shared };
                e.owned().map(range).collect()
            };
            let parts: Vec<_> = stored.parts.iter().flat_map(info).collect();
            let bytes = parts.iter().map(|part| part.len).sum();
            (parts, bytes)
        }
    }
}

/// Bytes of a page on the device; `None` for one in memory.
pub(crate) fn stored_len(page: &PageRef) -> Option<u32> {
    match &page.loc {
        PageLoc::Mem(_) => None,
        PageLoc::Home(segment) | PageLoc::Foreign(_, segment) => Some(segment.len),
    }
}

/// Whole keys by some path, and the map that it makes of them.
type Path = (Span, Lens);

/// A node that the walk comes to.
struct Step {
    id: NodeId,
    distance: usize,
    /// `None`: nothing of it is seen by this path.
    path: Option<Path>,
    /// Height of the node above.
    above: Option<u8>,
}

struct Inspector<'a> {
    engine: &'a Engine,
    view: &'a View,
    options: &'a InspectOptions,
}

/// Looks into the store as it is now. See [`crate::Db::inspect`].
fn inspect(engine: &Engine, options: &InspectOptions) -> Result<Inspection> {
    let view = engine.view();
    let table = &view.tree.table;
    let start = options.start.unwrap_or(view.tree.root);
    if table.get(start).is_none() {
        return Err(Error::Invalid(format!("there is no node {start}")));
    }
    let (mut nodes_in_all, mut reclaimable) = (0, Vec::new());
    table.for_each(|id, entry| {
        nodes_in_all += 1;
        if entry.count == 0 {
            reclaimable.push(id);
        }
    });
    let inspector = Inspector { engine, view: &view, options };
    let memory = view.tables.iter().map(|table| inspector.memory(table)).collect();
    let (nodes, omitted) = inspector.walk(start);
    Ok(Inspection {
        root: view.tree.root,
        start,
        batch: view.tree.msn,
        node_size: engine.limits.node as u64,
        nodes_in_all,
        reclaimable,
        memory,
        nodes,
        omitted,
    })
}

impl Inspector<'_> {
    fn load(&self, id: NodeId) -> Result<Handle> {
        self.engine.pager.node(&self.view.tree.table, id)
    }

    /// Breadth first from `start`, by edges before Gotos, and by both before paths that show nothing;
    /// beyond the limit nodes are counted only.
    fn walk(&self, start: NodeId) -> (Vec<NodeInfo>, u64) {
        let (mut nodes, mut omitted, mut seen) = (Vec::new(), 0, HashSet::new());
        let all = Some((Span::all(), Lens::identity()));
        let mut queue = VecDeque::from([Step { id: start, distance: 0, path: all, above: None }]);
        let (mut gotos, mut hidden) = (VecDeque::new(), VecDeque::new());
        let next = |queues: [&mut VecDeque<Step>; 3]| queues.into_iter().find_map(VecDeque::pop_front);
        while let Some(step) = next([&mut queue, &mut gotos, &mut hidden]) {
            if !seen.insert(step.id) {
                continue;
            }
            let deep = self.options.depth.is_some_and(|depth| step.distance > depth);
            let given = !deep && nodes.len() < self.options.limit;
            let leaf = self.view.tree.table.get(step.id).is_some_and(|entry| entry.height == 0);
            omitted += u64::from(!given);
            if !given && leaf {
                continue;
            }
            let handle = self.load(step.id).and_then(|handle| match step.above {
                Some(above) if handle.node.height >= above => {
                    Err(Error::corrupt("edge", 0, format!("node {} is not below its parent", step.id)))
                }
                _ => Ok(handle),
            });
            if given {
                nodes.push(self.node(&step, &handle));
            }
            let Ok(handle) = handle else { continue };
            for (live, target, goto) in targets(&handle) {
                let path = step.path.as_ref().and_then(|path| follow(path, &live, &target));
                let queue = match (path.is_some(), goto) {
                    (true, false) => &mut queue,
                    (true, true) => &mut gotos,
                    (false, _) => &mut hidden,
                };
                let (distance, above) = (step.distance + 1, Some(handle.node.height));
                queue.push_back(Step { id: target.id, distance, path, above });
            }
        }
        (nodes, omitted)
    }

    fn node(&self, step: &Step, handle: &Result<Handle>) -> NodeInfo {
        let id = step.id;
        let path = step.path.as_ref().map(|(shown, lens)| PathInfo {
            shown: shown.into(),
            take_off: lens.strip.clone(),
            put_on: lens.prepend.clone(),
        });
        let entry = self.view.tree.table.get(id);
        let (extents, bytes) = entry.map(place).unwrap_or_default();
        let header_bytes = match entry.map(|entry| &entry.loc) {
            Some(Loc::Stored(stored)) => stored.header_len,
            _ => 0,
        };
        NodeInfo {
            id,
            height: entry.map_or(0, |entry| entry.height),
            references: entry.map_or(0, |entry| entry.count),
            distance: step.distance,
            path,
            extents,
            bytes,
            header_bytes,
            content: handle.as_ref().map(|handle| self.content(handle)).map_err(ToString::to_string),
        }
    }

    fn content(&self, handle: &Handle) -> Content {
        let node = &handle.node;
        let mut content = Content { range: (&node.span).into(), edges: Vec::new(), pages: Vec::new() };
        match &node.body {
            Body::Leaf(run) => content.pages = self.pages(run, Some(handle)),
            Body::Interior(edges) => {
                for (i, edge) in edges.iter().enumerate() {
                    let live = node.edge_span(i);
                    content.edges.push(EdgeInfo {
                        range: (&live).into(),
                        child: edge.child.as_ref().map(|child| target_info(&live, child)),
                        loose: edge.loose,
                        layers: edge.layers.iter().map(|layer| self.layer(layer, handle)).collect(),
                    });
                }
            }
        }
        content
    }

    fn layer(&self, layer: &Layer, handle: &Handle) -> LayerInfo {
        LayerInfo {
            newest: layer.newest,
            ranges: layer.ranges.iter().map(range_info).collect(),
            updates: layer.updates.iter().map(update_info).collect(),
            pages: self.pages(&layer.run, Some(handle)),
        }
    }

    fn memory(&self, table: &Arc<Memtable>) -> LayerInfo {
        let layer = table.to_layer(self.engine.pager.page_target(), |_| None).unwrap_or_default();
        LayerInfo {
            newest: layer.newest,
            ranges: layer.ranges.iter().map(range_info).collect(),
            updates: layer.updates.iter().map(update_info).collect(),
            pages: self.pages(&layer.run, None),
        }
    }

    fn pages(&self, run: &Run, handle: Option<&Handle>) -> Vec<PageInfo> {
        run.pages.iter().map(|page| self.page(page, handle)).collect()
    }

    fn page(&self, page: &PageRef, handle: Option<&Handle>) -> PageInfo {
        let home = handle.and_then(|handle| handle.home.as_ref());
        let messages = self.options.messages.then(|| {
            let loaded = self.engine.pager.page(home, page).map_err(|error| error.to_string())?;
            let entries = (0..loaded.len()).map(|i| {
                let (key, message) = page.entry(&loaded, i);
                EntryInfo { key, message: message.into() }
            });
            Ok(entries.collect())
        });
        PageInfo {
            first: page.first_key(),
            last: page.last_key(),
            prefix: page.prefix.clone(),
            entries: page.count,
            raw: page.raw,
            stored: stored_len(page),
            messages,
        }
    }
}

/// Every edge and Goto of a node that leads somewhere, with its range; `true` for Gotos.
fn targets(handle: &Handle) -> Vec<(Span, Target, bool)> {
    let node = &handle.node;
    let mut found = Vec::new();
    for (i, edge) in node.edges().iter().enumerate() {
        found.extend(edge.child.iter().map(|target| (node.edge_span(i), target.clone(), false)));
        let ranges = edge.layers.iter().flat_map(|layer| &layer.ranges);
        found.extend(ranges.filter_map(|range| Some((range.span.clone(), range.target.clone()?, true))));
    }
    found
}

/// The path continued by an edge; `None` if the edge shows nothing by this path (it may by another), or is damaged
/// and does not fit.
fn follow((shown, lens): &Path, live: &Span, target: &Target) -> Option<Path> {
    let edge = Lens::of_edge(live, &target.prepend);
    let visible = live.intersect(&lens.apply_span(shown))?;
    let composes = edge.strip.starts_with(&lens.prepend) || lens.prepend.starts_with(&edge.strip);
    let fits = composes && visible.lo.starts_with(&lens.prepend);
    fits.then(|| (lens.inverse().apply_span(&visible), lens.then(&edge)))
}

fn target_info(live: &Span, target: &Target) -> TargetInfo {
    TargetInfo { node: target.id, take_off: live.common_prefix(), put_on: target.prepend.clone() }
}

fn range_info(range: &RangeMsg) -> RangeInfo {
    RangeInfo {
        range: (&range.span).into(),
        target: range.target.as_ref().map(|target| target_info(&range.span, target)),
    }
}

fn update_info(update: &UpdateMsg) -> UpdateInfo {
    UpdateInfo { range: (&update.span).into(), operations: update.ops.to_vec() }
}

impl From<Msg> for MessageInfo {
    fn from(message: Msg) -> Self {
        match message {
            Msg::Put(value) => MessageInfo::Put(value),
            Msg::Delete => MessageInfo::Delete,
            Msg::Upsert(changes) => {
                let info = |ValueChange { op, if_present }| OperationInfo { operation: op, if_present };
                MessageInfo::Upsert(changes.iter().cloned().map(info).collect())
            }
        }
    }
}
