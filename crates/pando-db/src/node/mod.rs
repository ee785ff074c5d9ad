//! Nodes in memory. Immutable once published: a change is a new version that
//! shares its pages with the old one.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    key::{Lens, Longest, Span, compare_joined, join},
    node::{
        message::Msg,
        page::{Built, Page},
    },
    space::Extent,
};

pub(crate) mod message;
pub(crate) mod page;
mod prefetch;
pub(crate) mod ranged;
pub(crate) mod stored;
pub(crate) mod update;

/// Number of a node: stable while its place on disk and its content change.
pub(crate) type NodeId = u64;

/// Estimated bytes of a page reference, range message or edge in a header, for accounting.
pub(crate) const HEADER_ITEM_BYTES: usize = 64;

/// The greatest height of a node: a table that names a greater one is refused, and no level is put on top
/// of it. Far above what data and clones need (clones are refused at 200 levels).
pub(crate) const MAX_HEIGHT: u8 = 250;
/// Most bytes of a page, in its raw and in its stored form: a node with a longer one is not written, and not read.
pub(crate) const MAX_RAW_BYTES: u32 = 64 << 20;

/// A node of the DAG.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// 0 for leaves; above all children.
    pub height: u8,
    /// The local keys that this node may hold. An edge to it may show less, never more.
    pub span: Span,
    pub body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Pairs: a run of `Put`s.
    Leaf(Run),
    /// Edges in order; the first begins at `span.lo`, each ends where the next begins, the last
    /// at `span.hi`.
    Interior(Vec<Edge>),
}

/// One child range of an interior node, with the messages that wait for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Edge {
    /// Lower bound in the node's local keys; the upper one is the next edge's.
    pub lo: Bytes,
    /// Where the range continues; `None`: there is nothing below.
    pub child: Option<Target>,
    /// Pending messages, oldest layer first, in the node's local keys.
    pub layers: Vec<Layer>,
    /// The child may hold more than this edge shows, which takes space for nothing unless other edges show it.
    pub loose: bool,
}

/// The end of an edge or Goto: a node and what to put before keys that have been lifted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub id: NodeId,
    /// Translation prefix.
    pub prepend: Bytes,
}

/// Messages that arrived together. Its updates are newer than its ranges. A point is newer than both, and
/// complete: it includes what the updates of its layer do to its key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    /// The newest batch of which it may hold a message: an upper bound, kept when it is sliced.
    pub newest: u64,
    /// Disjoint, ascending.
    pub ranges: Vec<RangeMsg>,
    /// Disjoint, ascending. They apply to keys of which the layer has no point.
    pub updates: Vec<UpdateMsg>,
    pub run: Run,
}

/// A message about a range of keys: it deletes everything older there. Without a target it is a RangeDelete; with one
/// it is a Goto, and shows the target in the range (FAST'20 section 3).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RangeMsg {
    pub span: Span,
    pub target: Option<Target>,
}

/// A message that changes every value in a range of keys, and creates none (a range-upsert).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpdateMsg {
    pub span: Span,
    /// Operations as of [`crate::Merge`], oldest first; at least one.
    pub ops: SmallVec<[Bytes; 1]>,
}

/// Sorted pages with disjoint, ascending keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub pages: Vec<PageRef>,
}

/// A page and what is known of it without reading it.
#[derive(Debug, Clone)]
pub(crate) struct PageRef {
    /// What all its keys begin with; not stored in the page. At least the lifted prefix.
    pub prefix: Bytes,
    /// First and last key, without `prefix`.
    pub first: Bytes,
    pub last: Bytes,
    pub count: u32,
    /// Raw bytes.
    pub raw: u32,
    /// Every message is a `Put`.
    pub pure: bool,
    /// Some message is a `Delete`.
    pub deletes: bool,
    /// Bound of its keys, without `prefix`, and without those that are only deleted.
    pub longest: Longest,
    pub loc: PageLoc,
}

/// Where the bytes of a page are.
#[derive(Debug, Clone)]
pub(crate) enum PageLoc {
    /// In memory, part of a dirty node.
    Mem(Arc<Page>),
    /// In an extent of the node that holds this reference.
    Home(Segment),
    /// In the extent of an earlier version of a node, which lives as long as this does.
    Foreign(Arc<Extent>, Segment),
}

/// A stored page within an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Which of the node's extents; 0 where the extent is named beside it.
    pub part: u8,
    /// Byte offset from the start of the extent.
    pub offset: u32,
    /// Stored bytes.
    pub len: u32,
    /// xxh3 of the stored bytes.
    pub sum: u64,
    /// How the stored bytes give the raw ones: see [`Codec`](crate::Codec).
    pub codec: u8,
}

impl Node {
    /// A leaf without pairs.
    pub fn empty_leaf(span: Span) -> Self {
        Self { height: 0, span, body: Body::Leaf(Run::default()) }
    }

    pub fn edges(&self) -> &[Edge] {
        match &self.body {
            Body::Interior(edges) => edges,
            Body::Leaf(_) => &[],
        }
    }

    /// The live range of edge `i`.
    pub fn edge_span(&self, i: usize) -> Span {
        edge_span(self.edges(), &self.span, i)
    }

    /// True if nothing is visible in the node.
    pub fn is_void(&self) -> bool {
        match &self.body {
            Body::Leaf(run) => run.pages.is_empty(),
            Body::Interior(edges) => edges.iter().all(Edge::is_void),
        }
    }

    /// Index of the edge whose range holds `key`.
    pub fn edge_at(&self, key: &[u8]) -> usize {
        self.edges().partition_point(|e| *e.lo <= *key).saturating_sub(1)
    }

    /// Every node that this one refers to, once per reference.
    pub fn references(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.edges().iter().flat_map(|edge| {
            let gotos = edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| r.target.as_ref());
            edge.child.iter().chain(gotos).map(|t| t.id)
        })
    }

    /// Bound of the keys that may be seen through this node, given that of the nodes that it refers to. Cost: in
    /// proportion to the header.
    pub fn longest_key(&self, of: impl Fn(NodeId) -> Longest) -> Longest {
        let shown = |live: &Span, target: &Target| target.longest_key(live, of(target.id));
        let pages = self.pages().map(PageRef::longest_key).max();
        let below = self.edges().iter().enumerate().flat_map(|(i, edge)| {
            let child = edge.child.iter().map(move |target| shown(&self.edge_span(i), target));
            let gotos = edge.layers.iter().flat_map(|layer| &layer.ranges);
            child.chain(gotos.filter_map(|range| Some(shown(&range.span, range.target.as_ref()?))))
        });
        below.chain(pages).max().unwrap_or(Longest::NONE)
    }

    /// Every page, in the order in which it is stored.
    pub fn pages(&self) -> Box<dyn Iterator<Item = &PageRef> + '_> {
        match &self.body {
            Body::Leaf(run) => Box::new(run.pages.iter()),
            Body::Interior(edges) => {
                Box::new(edges.iter().flat_map(|e| &e.layers).flat_map(|l| &l.run.pages))
            }
        }
    }

    /// The pages, to change their places.
    pub fn pages_mut(&mut self) -> Box<dyn Iterator<Item = &mut PageRef> + '_> {
        match &mut self.body {
            Body::Leaf(run) => Box::new(run.pages.iter_mut()),
            Body::Interior(edges) => {
                Box::new(edges.iter_mut().flat_map(|e| &mut e.layers).flat_map(|l| &mut l.run.pages))
            }
        }
    }

    /// Raw bytes of pages and an estimate of the header.
    pub fn bytes(&self) -> usize {
        let pages: usize = self.pages().map(PageRef::bytes).sum();
        pages + self.edge_bytes() + self.range_bytes()
    }

    /// Estimated bytes of the messages about ranges, which stand in the header.
    fn range_bytes(&self) -> usize {
        self.edges().iter().flat_map(|e| &e.layers).map(Layer::range_bytes).sum()
    }

    /// Estimated bytes of the edge table, without messages.
    pub fn edge_bytes(&self) -> usize {
        self.edges().iter().map(Edge::bytes).sum()
    }

    /// The newest batch of which a message waits in this node; 0 if none does.
    pub fn newest(&self) -> u64 {
        self.edges().iter().filter_map(|e| e.layers.last()).map(|l| l.newest).max().unwrap_or(0)
    }

    /// Bytes of memory that this node takes, with the pages that are there because of it.
    pub fn memory(&self) -> usize {
        let pages: usize = self.pages().map(PageRef::memory).sum();
        let layers: usize = self.edges().iter().map(|edge| edge.layers.len()).sum();
        let edges = size_of_val(self.edges()) + layers * size_of::<Layer>();
        pages + edges + self.edge_bytes() + self.range_bytes()
    }
}

impl Target {
    /// Bound of the keys that an edge or Goto over `live` shows of a node with this bound.
    pub fn longest_key(&self, live: &Span, node: Longest) -> Longest {
        node.through(self.prepend.len(), live.common_prefix_len())
    }
}

/// The live range of edge `i` of a node over `span`.
pub(crate) fn edge_span(edges: &[Edge], span: &Span, i: usize) -> Span {
    let hi = edges.get(i + 1).map(|e| Some(e.lo.clone())).unwrap_or_else(|| span.hi.clone());
    Span { lo: edges[i].lo.clone(), hi }
}

impl Edge {
    /// True if nothing is below the edge and nothing waits there.
    pub fn is_void(&self) -> bool {
        self.child.is_none() && self.layers.is_empty()
    }

    /// Estimated bytes in a header, without messages.
    pub fn bytes(&self) -> usize {
        HEADER_ITEM_BYTES + self.lo.len()
    }

    /// Pending bytes.
    pub fn pending(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// True if a delete of keys or ranges waits here.
    pub fn holds_deletes(&self) -> bool {
        self.layers.iter().any(|layer| {
            layer.ranges.iter().any(|r| r.target.is_none()) || layer.run.pages.iter().any(|p| p.deletes)
        })
    }

    /// True if a Goto waits here.
    pub fn holds_gotos(&self) -> bool {
        self.layers.iter().flat_map(|layer| &layer.ranges).any(|range| range.target.is_some())
    }
}

impl Layer {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.updates.is_empty() && self.run.pages.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.range_bytes() + self.run.bytes()
    }

    /// Estimated bytes of what is said about ranges.
    fn range_bytes(&self) -> usize {
        let ranges: usize = self.ranges.iter().map(|r| HEADER_ITEM_BYTES + r.span.lo.len()).sum();
        ranges + self.updates.iter().map(UpdateMsg::bytes).sum::<usize>()
    }

    /// The range messages that overlap `span`, ascending.
    pub fn ranges_meeting(&self, span: &Span) -> &[RangeMsg] {
        let ends_below = |r: &RangeMsg| r.span.hi.as_ref().is_some_and(|hi| *hi <= span.lo);
        let from = self.ranges.partition_point(ends_below);
        let rest = self.ranges.get(from..).unwrap_or_default();
        &rest[..rest.partition_point(|r| span.is_above(&r.span.lo))]
    }

    /// The range message that covers `key`.
    pub fn range_at(&self, key: &[u8]) -> Option<&RangeMsg> {
        let i = self.ranges.partition_point(|r| *r.span.lo <= *key).checked_sub(1)?;
        self.ranges.get(i).filter(|r| r.span.is_above(key))
    }

    /// The update that covers `key`: it counts if the layer has no point of it.
    pub fn update_at(&self, key: &[u8]) -> Option<&UpdateMsg> {
        update_at(&self.updates, key)
    }
}

/// The one of `updates` (disjoint, ascending) that covers `key`.
pub(crate) fn update_at<'a>(updates: &'a [UpdateMsg], key: &[u8]) -> Option<&'a UpdateMsg> {
    let i = updates.partition_point(|u| *u.span.lo <= *key).checked_sub(1)?;
    updates.get(i).filter(|u| u.span.is_above(key))
}

impl UpdateMsg {
    /// What it is to one of its keys.
    pub fn msg(&self) -> Msg {
        Msg::if_present(&self.ops)
    }

    /// Estimated bytes in a header, for accounting.
    pub fn bytes(&self) -> usize {
        HEADER_ITEM_BYTES + self.span.lo.len() + self.ops.iter().map(|op| op.len() + 2).sum::<usize>()
    }
}

impl Run {
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(PageRef::bytes).sum()
    }

    /// Messages or pairs in its pages, a count.
    pub fn entries(&self) -> usize {
        self.pages.iter().map(|page| page.count as usize).sum()
    }

    /// True if it may hold a key of `span`, judging by the first and last keys of its pages.
    pub fn meets(&self, span: &Span) -> bool {
        self.pages.get(self.page_from(&span.lo)).is_some_and(|page| page.meets(span))
    }

    /// Index of the first page whose last key is at least `key`.
    pub fn page_from(&self, key: &[u8]) -> usize {
        self.pages.partition_point(|p| compare_joined(&p.prefix, &p.last, key).is_lt())
    }
}

impl PageRef {
    pub fn from_built(built: Built) -> Self {
        let Built { prefix, page, pure, deletes } = built;
        let last = page.len().saturating_sub(1);
        Self {
            prefix,
            first: Bytes::copy_from_slice(page.key(0)),
            last: Bytes::copy_from_slice(page.key(last)),
            count: page.len() as u32,
            raw: page.data().len() as u32,
            pure,
            deletes,
            longest: page.longest(),
            loc: PageLoc::Mem(Arc::new(page)),
        }
    }

    pub fn first_key(&self) -> Bytes {
        join(&self.prefix, &self.first)
    }

    pub fn last_key(&self) -> Bytes {
        join(&self.prefix, &self.last)
    }

    /// Bound of the keys that may have a value because of this page.
    pub fn longest_key(&self) -> Longest {
        self.longest.through(0, self.prefix.len())
    }

    /// True if its only message is an upsert.
    pub fn is_one_upsert(&self) -> bool {
        self.count == 1 && !self.pure && !self.deletes
    }

    /// True if it lies where it can stay when the node that refers to it is written anew: filling up a
    /// small neighbour from it would cost it and, one after another, all that follow.
    pub fn is_placed(&self) -> bool {
        matches!(&self.loc, PageLoc::Foreign(extent, _) if extent.shared)
    }

    /// True if all its keys are less than those of `other`. Copies nothing where both have one prefix.
    pub fn is_below(&self, other: &PageRef) -> bool {
        match self.prefix == other.prefix {
            true => self.last < other.first,
            false => compare_joined(&other.prefix, &other.first, &self.last_key()).is_gt(),
        }
    }

    /// True if all its keys lie in `span`.
    pub fn is_inside(&self, span: &Span) -> bool {
        compare_joined(&self.prefix, &self.first, &span.lo).is_ge()
            && span.hi.as_ref().is_none_or(|hi| compare_joined(&self.prefix, &self.last, hi).is_lt())
    }

    /// True if it may hold a key of `span`, judging by its first and last key.
    pub fn meets(&self, span: &Span) -> bool {
        compare_joined(&self.prefix, &self.last, &span.lo).is_ge()
            && span.hi.as_ref().is_none_or(|hi| compare_joined(&self.prefix, &self.first, hi).is_lt())
    }

    /// The page with its keys mapped by `lens`: only the prefix changes.
    pub fn through(mut self, lens: &Lens) -> Self {
        self.prefix = lens.apply_shared(&self.prefix);
        self
    }

    /// Raw bytes of the page and an estimate of what the header says of it.
    pub fn bytes(&self) -> usize {
        self.raw as usize + self.header_bytes()
    }

    fn header_bytes(&self) -> usize {
        HEADER_ITEM_BYTES + self.prefix.len() + self.first.len() + self.last.len()
    }

    /// Bytes of memory that the reference takes, with the page if it is there because of it.
    fn memory(&self) -> usize {
        let page = match &self.loc {
            PageLoc::Mem(page) => page.memory(),
            PageLoc::Home(_) | PageLoc::Foreign(..) => 0,
        };
        page + size_of::<PageRef>() + self.prefix.len() + self.first.len() + self.last.len()
    }

    /// Index of the first entry of `page`, which is this one, at or above the full key `key`, and
    /// whether it is equal.
    pub fn search(&self, page: &Page, key: &[u8]) -> (usize, bool) {
        match key.strip_prefix(&self.prefix[..]) {
            Some(suffix) => page.search(suffix),
            None if *key < *self.prefix => (0, false),
            None => (page.len(), false),
        }
    }

    /// [`PageRef::search`], if all entries before `from` are known to lie below `key`.
    pub fn search_from(&self, page: &Page, from: usize, key: &[u8]) -> usize {
        match key.strip_prefix(&self.prefix[..]) {
            Some(suffix) => page.search_from(from, suffix),
            None => self.search(page, key).0,
        }
    }

    /// The full key of entry `i` of `page`, which is this one.
    pub fn key(&self, page: &Page, i: usize) -> Bytes {
        if self.prefix.is_empty() { page.key_bytes(i) } else { join(&self.prefix, page.key(i)) }
    }

    /// Entry `i` of `page`, which is this one, with its full key.
    pub fn entry(&self, page: &Page, i: usize) -> (Bytes, Msg) {
        (self.key(page, i), page.msg(i))
    }
}
