//! Replacing tall nodes of which little is shown by leaves, while the store is idle.
//!
//! Clones of clones leave many levels of nodes above a few pairs: each level has an edge or two that still show
//! something, most of them to shared nodes, so that no node can take over the edges of its children without becoming
//! too wide. This module collects all pairs that such a node shows, from the node and everything below, and makes
//! them its content: the node becomes a leaf, or the parent of some leaves. It shows the same pairs as before, so a
//! shared node may be changed in place.
//!
//! Guarantees: the new nodes take no more space than those that they replace, and a node becomes lower or stays as it
//! is, so walks end. A node stays higher than the targets of the Gotos that rest above it, and does not become a leaf
//! below one. Whether a Goto rests there is checked when the node is changed, in all nodes that refer to it; if the
//! walk has not met all of these, the node stays as it is. The root is never a leaf. Works on an [`Edit`]; the caller
//! publishes. I/O: of a node a bounded number of headers and of bytes in pages.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
};

use crate::{
    dag::{
        edit::Edit,
        gc::survey::Survey,
        layer::run::{RunBuilder, merge_runs},
        write::split::Pieces,
    },
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Node, NodeId, Run, Target},
    store::table::Table,
};

/// Nodes that are read for one that is looked at.
const MAX_READ_NODES: usize = 256;
/// Nodes that refer to one that is changed: each is looked at once more then.
const MAX_REFERRER_NODES: usize = 64;
/// Most bytes that are gathered, if as many leaves as a node has edges hold more.
const MAX_GATHERED_BYTES: usize = 512 << 10;
/// Least height of a node that is worth a look, in levels.
const MIN_COLLAPSE_LEVELS: u8 = 2;
/// Bytes of a block: what a node takes on the device is a multiple of it.
const BLOCK_BYTES: usize = 4096;

/// A node that can become lower, and all that refer to it.
pub(crate) type Collapsible = (NodeId, Vec<NodeId>);

/// What is known of a node before its turn.
#[derive(Default)]
struct Referrers {
    nodes: Vec<NodeId>,
    /// There are too many to look at again.
    too_many: bool,
    /// The least height that the Gotos allow which rest above it.
    least: u8,
}

/// A walk over one version, highest nodes first.
#[derive(Default)]
pub(crate) struct CollapseSurvey {
    queue: BTreeMap<(Reverse<u8>, NodeId), Referrers>,
    /// Nodes that can become lower. What is below one of them, and below nothing else, has not been looked at.
    found: VecDeque<Collapsible>,
}

impl Survey for CollapseSurvey {
    type Found = Collapsible;

    fn go_on(&mut self, edit: &Edit<'_>, nodes: usize) -> Result<bool> {
        let mut read = 0;
        while read < nodes {
            let Some(((Reverse(height), id), above)) = self.queue.pop_first() else { return Ok(false) };
            // What an unreadable node refers to is not known: its targets keep more references than are met here.
            let Some(node) = or_if_damaged(edit.peek(id).map(Some), None)? else { continue };
            read += 1;
            if !above.too_many {
                let least = if id == edit.root { 1 } else { above.least };
                let mut met = Gathering::new(edit);
                let pieces = or_if_damaged(edit.in_place_of(id, least, &mut met), None)?;
                read += met.met.len();
                if pieces.is_some() {
                    self.found.push_back((id, above.nodes));
                    continue;
                }
            }
            for edge in node.edges() {
                let gotos =
                    edge.layers.iter().flat_map(|layer| &layer.ranges).filter_map(|r| r.target.as_ref());
                let least = edit.least_below(edge)?;
                let child = edge.child.iter().map(|target| (target, least));
                for (target, least) in child.chain(gotos.map(|target| (target, 0))) {
                    let below = edit.height(target.id)?;
                    if below < MIN_COLLAPSE_LEVELS || below >= height {
                        continue;
                    }
                    let known = self.queue.entry((Reverse(below), target.id)).or_default();
                    known.least = known.least.max(least);
                    if known.nodes.last() != Some(&id) && !known.too_many {
                        known.too_many = known.nodes.len() == MAX_REFERRER_NODES;
                        known.nodes.push(id);
                    }
                    if known.too_many {
                        known.nodes = Vec::new();
                    }
                }
            }
        }
        Ok(true)
    }

    fn found(&mut self) -> &mut VecDeque<Collapsible> {
        &mut self.found
    }

    /// Looks again at all that refers to the node, so the version that was surveyed does not matter.
    fn change(edit: &mut Edit<'_>, found: &Collapsible, _: &Table) -> Result<bool> {
        edit.collapse(found)
    }
}

/// What is gathered for one node.
struct Gathering {
    left_bytes: usize,
    left_nodes: usize,
    /// What each node that was met refers to, and the bytes that it takes.
    met: HashMap<NodeId, (Vec<NodeId>, usize)>,
}

impl Gathering {
    fn new(edit: &Edit<'_>) -> Self {
        let limits = edit.cx.limits;
        let left_bytes = (limits.fanout * limits.node).min(MAX_GATHERED_BYTES.max(limits.node / 2));
        Self { left_bytes, left_nodes: MAX_READ_NODES, met: HashMap::new() }
    }

    /// Counts bytes that were found; false if that is too many.
    fn take(&mut self, bytes: usize) -> bool {
        match self.left_bytes.checked_sub(bytes) {
            Some(left) => self.left_bytes = left,
            None => return false,
        }
        true
    }

    fn meet(&mut self, id: NodeId, node: &Node) -> bool {
        let Some(left) = self.left_nodes.checked_sub(1) else { return false };
        self.left_nodes = left;
        self.met.entry(id).or_insert_with(|| (node.references().collect(), on_device(node)));
        true
    }
}

/// Estimated bytes that a node takes on the device.
fn on_device(node: &Node) -> usize {
    node.bytes().next_multiple_of(BLOCK_BYTES)
}

impl Edit<'_> {
    /// Begins a walk over the version of this edit, which must be empty; `None` if the DAG is not higher than its data
    /// asks for.
    pub fn collapse_survey(&self) -> Result<Option<CollapseSurvey>> {
        let height = self.height(self.root)?;
        if height <= self.cx.limits.tall || self.cx.pager.knows_damage() {
            return Ok(None);
        }
        let queue = BTreeMap::from([((Reverse(height), self.root), Referrers::default())]);
        Ok(Some(CollapseSurvey { queue, found: VecDeque::new() }))
    }

    /// Puts leaves, or a node right above some, in the place of a node that a walk has found in this version or an
    /// earlier one; whether it did. I/O: that of one node.
    fn collapse(&mut self, (id, referrers): &Collapsible) -> Result<bool> {
        let id = *id;
        let Some(least) = self.least_height(id, referrers)? else { return Ok(false) };
        let pieces = or_if_damaged(self.in_place_of(id, least, &mut Gathering::new(self)), None)?;
        let Some(mut pieces) = pieces else { return Ok(false) };
        let old = self.peek(id)?;
        let below: BTreeSet<NodeId> = old.references().collect();
        let node = match pieces.pop() {
            Some(leaf) if pieces.is_empty() && least == 0 => leaf,
            last => {
                pieces.extend(last);
                let parts = pieces.into_iter().map(|piece| (None, piece)).collect();
                let node = self.above_parts(parts, Node::empty_leaf(old.span.clone()))?;
                Node { height: node.height.max(least), ..node }
            }
        };
        assert!(node.height < old.height, "a node that is to become lower does not");
        assert!(node.height >= least, "a node becomes lower than the Gotos above it allow");
        assert_eq!(node.span, old.span, "a node that becomes lower holds other keys");
        self.put_pruned(id, node)?;
        for above in referrers {
            self.check_gotos(*above)?;
        }
        self.reclaim(&below.into_iter().collect::<Vec<_>>())?;
        Ok(true)
    }

    /// The least height of a node of which all that refers to it is among `referrers`, by the Gotos that rest there
    /// and have to be flushed into it; `None` if there is anything else. A leaf takes no Goto in.
    fn least_height(&self, id: NodeId, referrers: &[NodeId]) -> Result<Option<u8>> {
        if !self.exists(id) {
            return Ok(None);
        }
        let is_root = id == self.root;
        let (mut least, mut references) = (u8::from(is_root), i64::from(is_root));
        for &above in referrers {
            if !self.exists(above) {
                continue;
            }
            let Some(node) = or_if_damaged(self.peek(above).map(Some), None)? else { return Ok(None) };
            for edge in node.edges().iter().filter(|edge| edge.child.as_ref().is_some_and(|to| to.id == id)) {
                least = least.max(self.least_below(edge)?);
            }
            references += node.references().filter(|to| *to == id).count() as i64;
        }
        Ok((references > 0 && references == self.count(id)).then_some(least))
    }

    /// The leaves that show what a node does, if with them it becomes lower, and no lower than `least`, and if they
    /// take no more space than what would go with what it is now.
    fn in_place_of(&self, id: NodeId, least: u8, met: &mut Gathering) -> Result<Option<Pieces>> {
        let node = self.load(id)?;
        let whole = node.span.clone();
        if node.height < MIN_COLLAPSE_LEVELS.max(least.saturating_add(1)) {
            return Ok(None);
        }
        met.meet(id, &node);
        let Some(run) = self.gathered(&node, met)? else { return Ok(None) };
        let pieces = self.split_if_large(Node { height: 0, span: node.span, body: Body::Leaf(run) })?;
        assert!(pieces.iter().all(|piece| piece.height == 0), "what is gathered is no leaf");
        let (first, last) = (pieces.first(), pieces.last());
        let covers = first.is_some_and(|first| first.span.lo == whole.lo)
            && last.is_some_and(|last| last.span.hi == whole.hi);
        assert!(covers, "leaves in the place of a node hold other keys");
        let above = if pieces.len() > 1 || least > 0 { BLOCK_BYTES } else { 0 };
        let made = pieces.iter().map(on_device).sum::<usize>() + above;
        Ok((made <= self.bytes_that_go(id, met)?).then_some(pieces))
    }

    /// All pairs that a node shows, in its keys; `None` if they are too many.
    fn gathered(&self, node: &Node, met: &mut Gathering) -> Result<Option<Run>> {
        let edges = match &node.body {
            Body::Leaf(run) => return Ok(met.take(run.bytes()).then(|| run.clone())),
            Body::Interior(edges) => edges,
        };
        let (pager, merge) = (self.cx.pager, self.cx.merge);
        let mut all = RunBuilder::new(pager.page_target());
        for (i, edge) in edges.iter().enumerate() {
            let mut run = Run::default();
            if let Some(target) = &edge.child {
                let Some(shown) = self.gathered_below(&node.edge_span(i), target, node.height, met)? else {
                    return Ok(None);
                };
                run = shown;
            }
            for layer in &edge.layers {
                if !met.take(layer.run.bytes()) {
                    return Ok(None);
                }
                let mut kept = run.without(&layer.ranges, pager)?.into_owned();
                for range in &layer.ranges {
                    let Some(target) = &range.target else { continue };
                    let Some(shown) = self.gathered_below(&range.span, target, node.height, met)? else {
                        return Ok(None);
                    };
                    kept = merge_runs(&kept, &shown, [&[], &[]], true, pager, merge)?;
                }
                run = merge_runs(&kept, &layer.run, [&[], &layer.updates], true, pager, merge)?;
            }
            all.push_run(&run, pager)?;
        }
        Ok(Some(all.finish()))
    }

    /// The pairs that an edge or Goto over `live` shows, in the keys of its node.
    fn gathered_below(
        &self,
        live: &Span,
        target: &Target,
        above: u8,
        met: &mut Gathering,
    ) -> Result<Option<Run>> {
        let node = self.load_below(target.id, above)?;
        if !met.meet(target.id, &node) {
            return Ok(None);
        }
        let back = Lens::of_edge(live, &Default::default()).inverse();
        let shown = self.gathered(&node.simple(live, target, self.cx.pager)?, met)?;
        Ok(shown.map(|run| run.through(&back)))
    }

    /// Bytes of the node and of those below that nothing else refers to, as far as they were met.
    fn bytes_that_go(&self, id: NodeId, met: &Gathering) -> Result<usize> {
        let mut order = Vec::with_capacity(met.met.len());
        for &id in met.met.keys() {
            order.push((Reverse(self.height(id)?), id));
        }
        order.sort_unstable();
        let mut lost: HashMap<NodeId, i64> = HashMap::new();
        let mut bytes = 0;
        // All nodes that refer to a node are higher, so they come first.
        for (_, at) in order {
            let references = lost.get(&at).copied().unwrap_or(0);
            if references > self.count(at) {
                return Err(Error::corrupt(
                    "reference count",
                    0,
                    format!("node {at} has fewer than were met"),
                ));
            }
            let goes = at == id || references > 0 && references == self.count(at);
            let Some((below, own)) = met.met.get(&at).filter(|_| goes) else { continue };
            bytes += own;
            below.iter().for_each(|child| *lost.entry(*child).or_default() += 1);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{Arc, atomic::AtomicU64};

    use bytes::Bytes;

    use super::*;
    use crate::{
        dag::{
            edit::Context,
            tree::{Limits, Tree, Versions},
        },
        device::MemDevice,
        key::Longest,
        merge::PatchMerge,
        node::{Edge, Layer, RangeMsg, message::Msg},
        options::Codec,
        store::{
            log::LogPos,
            pager::Pager,
            table::{Entry, Loc, Table},
        },
    };

    const ROOT: NodeId = 1;
    const TALL: NodeId = 2;
    const UNDER_TALL: NodeId = 3;
    const OTHER: NodeId = 4;
    const UNDER_OTHER: NodeId = 5;

    fn edge(lo: &str, child: NodeId, gotos: &[(&str, &str, NodeId)]) -> Edge {
        let goto = |(lo, hi, id): &(&str, &str, NodeId)| RangeMsg {
            span: Span::new(lo.to_string(), Some(hi.to_string().into())),
            target: Some(Target::plain(*id)),
        };
        let layer = Layer { newest: 5, ranges: gotos.iter().map(goto).collect(), ..Layer::default() };
        let layers = if gotos.is_empty() { vec![] } else { vec![layer] };
        Edge { lo: lo.to_string().into(), child: Some(Target::plain(child)), layers, loose: false }
    }

    fn interior(height: u8, edges: Vec<Edge>) -> Node {
        Node { height, span: Span::all(), body: Body::Interior(edges) }
    }

    fn leaf(key: &str) -> Node {
        let mut writer = RunBuilder::new(1 << 10);
        writer.push(key.to_string().into(), Msg::Put(Bytes::from_static(b"v")));
        Node { height: 0, span: Span::all(), body: Body::Leaf(writer.finish()) }
    }

    /// A root above a tall node and another one, each above a leaf.
    fn tree(gotos: &[(&str, &str, NodeId)]) -> Tree {
        let nodes = [
            (ROOT, interior(9, vec![edge("", TALL, gotos), edge("m", OTHER, &[])])),
            (TALL, interior(6, vec![edge("", UNDER_TALL, &[])])),
            (UNDER_TALL, leaf("c")),
            (OTHER, interior(3, vec![edge("", UNDER_OTHER, &[])])),
            (UNDER_OTHER, leaf("x")),
        ];
        let mut table = Table::default();
        for (id, node) in &nodes {
            let referred = nodes.iter().flat_map(|(_, node)| node.references()).filter(|to| to == id).count();
            let (height, loc) = (node.height, Loc::Dirty(Arc::new(node.clone())));
            let count = referred as u32 + u32::from(*id == ROOT);
            table.set(*id, Some(Entry { count, height, longest: Longest::UNKNOWN, loc }));
        }
        Tree { table, root: ROOT, msn: 9, log_end: LogPos::default(), versions: Versions::default() }
    }

    /// Lowers the tall node and the other one; the heights that they and the root come to.
    fn collapsed(tree: &Tree) -> [u8; 3] {
        let pager = Pager::new(Arc::new(MemDevice::new(1 << 20)), 1 << 20, 4096, Codec::None);
        let (next, handled) = (AtomicU64::new(10), AtomicU64::new(0));
        let limits = Limits { tall: 1, ..Limits::new(64 << 10, None) };
        let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
        let mut edit = Edit::new(&cx, tree);
        for id in [TALL, OTHER] {
            assert!(edit.collapse(&(id, vec![ROOT])).unwrap());
        }
        let heights = [ROOT, TALL, OTHER].map(|id| edit.height(id).unwrap());
        // Gotos that rested above the old nodes must still be flushed into the lower ones, so this flushes them.
        let resting = edit.peek(ROOT).unwrap().edges().iter().position(Edge::holds_gotos);
        if let Some(i) = resting {
            edit.flush_edge(ROOT, i).unwrap();
        }
        edit.finish().apply(&mut tree.table.clone()).unwrap();
        heights
    }

    #[test]
    fn what_shows_little_becomes_a_leaf() {
        assert_eq!(collapsed(&tree(&[])), [9, 0, 0]);
    }

    /// A leaf takes in no Goto, and a node above it would become lower than what the Goto leads to.
    #[test]
    fn a_node_stays_above_what_a_goto_leads_to_that_rests_above_it() {
        assert_eq!(collapsed(&tree(&[("c", "d", OTHER)])), [9, 4, 0]);
        assert_eq!(collapsed(&tree(&[("c", "d", UNDER_OTHER)])), [9, 1, 0]);
    }

    /// A store whose root is a leaf is not opened, and a root has edges that it may give up (model test,
    /// `all_operations_and_crashes`: a root that was a leaf was called lower than what hangs below it).
    #[test]
    fn the_root_stays_an_interior_node() {
        let tree = tree(&[]);
        let pager = Pager::new(Arc::new(MemDevice::new(1 << 20)), 1 << 20, 4096, Codec::None);
        let (next, handled) = (AtomicU64::new(10), AtomicU64::new(0));
        let limits = Limits { tall: 1, ..Limits::new(64 << 10, None) };
        let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
        let looked = Edit::new(&cx, &tree);
        let mut survey = looked.collapse_survey().unwrap().unwrap();
        while survey.go_on(&looked, 1).unwrap() {}
        assert_eq!(survey.found, [(ROOT, vec![])]);
        let mut edit = Edit::new(&cx, &tree);
        // What refers to it and was not met could be anything.
        assert!(!edit.collapse(&(OTHER, vec![])).unwrap());
        assert!(edit.collapse(&(ROOT, vec![])).unwrap());
        assert_eq!(edit.height(ROOT).unwrap(), 1);
        assert!(!edit.heal_root().unwrap());
        edit.finish().apply(&mut tree.table.clone()).unwrap();
    }
}
