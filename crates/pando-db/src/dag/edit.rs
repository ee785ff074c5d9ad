//! An edit: new versions of some nodes, built beside a frozen tree and
//! published all at once.
//!
//! It keeps exact reference counts: putting a version of a node subtracts the references of its last version and adds
//! the new ones, so the algorithms above need no bookkeeping. Reading nodes may take I/O; nothing here holds a lock
//! over it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    dag::tree::{Limits, MIN_EDIT_NODES, Tree},
    error::{Error, Result},
    key::{Longest, Span},
    merge::Merge,
    node::{
        Body, Node, NodeId, Run,
        ranged::{Ranged, are_apart},
        stored::detach,
    },
    store::{
        pager::{Handle, Pager},
        table::{Entry, Loc, Table},
    },
};

/// What the algorithms need besides the tree itself.
pub(crate) struct Context<'a> {
    pub pager: &'a Pager,
    pub merge: &'a dyn Merge,
    pub limits: Limits,
    /// The next unused node number.
    pub next_id: &'a AtomicU64,
    /// Edges and messages about ranges of the nodes that were read to be changed and put anew: what
    /// structural work costs the processor.
    pub handled: &'a AtomicU64,
}

/// New versions of nodes over a base version of the tree.
pub(crate) struct Edit<'a> {
    pub cx: &'a Context<'a>,
    base: Table,
    pub root: NodeId,
    nodes: HashMap<NodeId, Version>,
    /// Bytes that the changed nodes take.
    memory: usize,
    counts: HashMap<NodeId, i64>,
}

enum Version {
    Changed(Arc<Node>),
    /// Merged into another node or reclaimed: its references have been taken back.
    Removed,
}

impl<'a> Edit<'a> {
    pub fn new(cx: &'a Context<'a>, base: &Tree) -> Self {
        let (nodes, counts) = (HashMap::new(), HashMap::new());
        Self { cx, base: base.table.clone(), root: base.root, nodes, memory: 0, counts }
    }

    fn count_items(&self, node: &Node) {
        let ranges: usize = node.edges().iter().flat_map(|edge| &edge.layers).map(|l| l.ranges.len()).sum();
        self.cx.handled.fetch_add((node.edges().len() + ranges) as u64, Ordering::Relaxed);
    }

    /// The current version of a node, fit to be changed and put back. I/O: its header.
    pub fn load(&self, id: NodeId) -> Result<Node> {
        let node = self.load_uncounted(id)?;
        self.count_items(&node);
        Ok(node)
    }

    fn load_uncounted(&self, id: NodeId) -> Result<Node> {
        match self.nodes.get(&id) {
            Some(Version::Changed(node)) => Ok(Node::clone(node)),
            Some(Version::Removed) => Err(missing(id)),
            None => {
                let handle = self.cx.pager.node(&self.base, id)?;
                self.check_heights(id, &handle.node)?;
                Ok(match &handle.home {
                    Some(home) => detach(&handle.node, home)?,
                    None => Node::clone(&handle.node),
                })
            }
        }
    }

    /// An error if something that a node from the device refers to is not below it, or if the root holds a part of
    /// the keys: the node alone does not tell.
    fn check_heights(&self, id: NodeId, node: &Node) -> Result<()> {
        if id == self.root && node.span != Span::all() {
            return Err(Error::corrupt("root node", 0, format!("it holds {:?} and not all keys", node.span)));
        }
        for child in node.references() {
            if self.height(child)? >= node.height {
                return Err(Error::corrupt("edge", 0, format!("node {child} is not below node {id}")));
            }
        }
        if let Some(target) = self.goto_too_low(node) {
            let detail = format!("a Goto in node {id} rests too low above node {target}");
            return Err(Error::corrupt("message", 0, detail));
        }
        Ok(())
    }

    /// The current version of a node, to be looked at. I/O: its header.
    pub fn peek(&self, id: NodeId) -> Result<Arc<Node>> {
        match self.nodes.get(&id) {
            Some(Version::Changed(node)) => Ok(node.clone()),
            Some(Version::Removed) => Err(missing(id)),
            None => Ok(self.cx.pager.node(&self.base, id)?.node),
        }
    }

    /// The current version of a node below one of height `above`, with what it takes to read its pages. I/O:
    /// its header.
    pub fn handle_below(&self, id: NodeId, above: Option<u8>) -> Result<Handle> {
        let handle = match self.nodes.get(&id) {
            Some(Version::Changed(node)) => Handle { node: node.clone(), home: None },
            Some(Version::Removed) => return Err(missing(id)),
            None => self.cx.pager.node(&self.base, id)?,
        };
        match above {
            Some(above) if handle.node.height >= above => Err(not_below(id)),
            _ => Ok(handle),
        }
    }

    /// A child of a node of height `above`; one that is not lower is an error, so that no walk down
    /// goes in circles. I/O: its header.
    pub fn load_below(&self, id: NodeId, above: u8) -> Result<Node> {
        let node = self.load(id)?;
        if node.height >= above {
            return Err(not_below(id));
        }
        Ok(node)
    }

    /// Height of a node, without reading it.
    pub fn height(&self, id: NodeId) -> Result<u8> {
        match self.nodes.get(&id) {
            Some(Version::Changed(node)) => Ok(node.height),
            Some(Version::Removed) => Err(missing(id)),
            None => self.base.get(id).map(|e| e.height).ok_or_else(|| missing(id)),
        }
    }

    /// False if the node has been taken out, by this edit or an earlier one.
    pub fn exists(&self, id: NodeId) -> bool {
        match self.nodes.get(&id) {
            Some(version) => matches!(version, Version::Changed(_)),
            None => self.base.get(id).is_some(),
        }
    }

    /// True if a node is the same version with as many references as in another table.
    pub fn is_as_in(&self, other: &Table, id: NodeId) -> bool {
        let unchanged = !self.nodes.contains_key(&id) && self.counts.get(&id).is_none_or(|delta| *delta == 0);
        let (Some(now), Some(then)) = (self.base.get(id), other.get(id)) else { return false };
        let same = match (&now.loc, &then.loc) {
            (Loc::Dirty(a), Loc::Dirty(b)) => Arc::ptr_eq(a, b),
            (Loc::Stored(a), Loc::Stored(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        unchanged && same && now.count == then.count
    }

    /// References to a node, as of the versions put so far.
    pub fn count(&self, id: NodeId) -> i64 {
        let base = self.base.get(id).map_or(0, |e| i64::from(e.count));
        base + self.counts.get(&id).copied().unwrap_or(0)
    }

    /// True if changing the node in place is seen along one path only.
    pub fn is_private(&self, id: NodeId) -> bool {
        self.count(id) == 1
    }

    /// Sets the version of an existing node, which no two paths may show: what is changed in a shared node
    /// would be seen along all of them. (A node that is attached by its parent's next version has no
    /// reference yet.)
    pub fn put(&mut self, id: NodeId, node: Node) -> Result<()> {
        let count = self.count(id);
        assert!(count <= 1, "node {id} has {count} references and is changed in place");
        self.put_for_all(id, node)
    }

    /// Sets the version of a node that several paths may show, where none of them can tell the difference:
    /// what is taken out is shown by none, or shown by what came in its place.
    pub fn put_pruned(&mut self, id: NodeId, node: Node) -> Result<()> {
        assert!(self.count(id) > 0, "node {id} is pruned, and nothing refers to it");
        self.put_for_all(id, node)
    }

    fn put_for_all(&mut self, id: NodeId, node: Node) -> Result<()> {
        self.forget_references(id)?;
        self.insert(id, node);
        Ok(())
    }

    /// Adds a node.
    pub fn create(&mut self, node: Node) -> NodeId {
        let id = self.cx.next_id.fetch_add(1, Ordering::Relaxed);
        let is_new = !self.nodes.contains_key(&id) && self.base.get(id).is_none();
        assert!(is_new, "number {id} is given to a second node");
        self.insert(id, node);
        id
    }

    /// Takes a node out of the store: its content went elsewhere, or nothing refers to it.
    pub fn remove(&mut self, id: NodeId) -> Result<()> {
        // The parent's next version may not stand in the edit yet: one reference is that of its last.
        let count = self.count(id);
        assert!(count <= 1, "node {id} has {count} references and is taken out");
        assert_ne!(id, self.root, "the root is taken out");
        self.forget_references(id)?;
        self.replace(id, Version::Removed);
        Ok(())
    }

    /// Makes `id` the root: the superblock's reference moves.
    pub fn set_root(&mut self, id: NodeId) {
        assert!(self.exists(id), "node {id} is made the root and does not exist");
        *self.counts.entry(self.root).or_default() -= 1;
        *self.counts.entry(id).or_default() += 1;
        self.root = id;
    }

    /// Takes nodes that nothing refers to out of the store. What only they referred to follows in a
    /// later edit, so that each is a bounded piece of work. I/O: their headers.
    pub fn reclaim(&mut self, orphans: &[NodeId]) -> Result<()> {
        for &id in orphans {
            // One that waited in the queue may have been referred to again, and taken out since.
            if self.exists(id) && self.count(id) == 0 {
                self.remove(id)?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, id: NodeId, node: Node) {
        check_shape(&node);
        self.count_items(&node);
        for child in node.references() {
            let below = self.height(child).is_ok_and(|height| height < node.height);
            assert!(
                below,
                "node {id} of height {} refers to node {child}, which is not below it",
                node.height
            );
            *self.counts.entry(child).or_default() += 1;
        }
        self.assert_gotos_can_descend(&node);
        self.memory += node.memory();
        self.replace(id, Version::Changed(Arc::new(node)));
    }

    fn replace(&mut self, id: NodeId, version: Version) {
        if let Some(Version::Changed(old)) = self.nodes.insert(id, version) {
            assert!(self.memory >= old.memory(), "an edit holds less than one of its nodes");
            self.memory -= old.memory();
        }
    }

    /// Asserts that Gotos that rest in a node can be flushed after a node below has become lower.
    pub fn check_gotos(&self, id: NodeId) -> Result<()> {
        if self.exists(id) {
            self.assert_gotos_can_descend(&*self.peek(id)?);
        }
        Ok(())
    }

    fn assert_gotos_can_descend(&self, node: &Node) {
        if let Some(target) = self.goto_too_low(node) {
            panic!("a Goto to node {target} rests too low above it");
        }
    }

    /// The target of a resting Goto that cannot be flushed into the child of its edge, or into a new one. There must
    /// be none.
    fn goto_too_low(&self, node: &Node) -> Option<NodeId> {
        node.edges().iter().find_map(|edge| {
            let below = || match &edge.child {
                Some(child) => self.height(child.id).unwrap_or(0),
                None => node.height - 1,
            };
            let mut gotos =
                edge.layers.iter().flat_map(|l| &l.ranges).filter_map(|r| Some(r.target.as_ref()?.id));
            gotos.find(|&target| !self.height(target).is_ok_and(|height| height < below()))
        })
    }

    fn forget_references(&mut self, id: NodeId) -> Result<()> {
        let old = match self.nodes.get(&id) {
            Some(Version::Changed(node)) => node.clone(),
            Some(Version::Removed) => return Err(missing(id)),
            // Leaves refer to nothing: freeing a tree reads the headers of its interior nodes only.
            None if self.base.get(id).is_some_and(|e| e.height == 0) => return Ok(()),
            None => self.cx.pager.node(&self.base, id)?.node,
        };
        for child in old.references() {
            *self.counts.entry(child).or_default() -= 1;
        }
        Ok(())
    }

    /// True once the edit holds as many nodes as one edit should, or as much memory.
    pub fn is_large(&self) -> bool {
        let limits = &self.cx.limits;
        let nodes = self.nodes.len();
        nodes >= limits.edit_nodes || (nodes >= MIN_EDIT_NODES && self.memory >= limits.edit_bytes)
    }

    /// Nodes that the edit holds.
    pub fn changed_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The edit as it is to be published. Cost: in proportion to the headers of what has changed.
    pub fn finish(self) -> Changes {
        self.check_finished();
        let longest = self.longest_keys();
        Changes { root: self.root, nodes: self.nodes, counts: self.counts, longest }
    }

    /// What holds once all parts of nodes have their parents: a node holds no prefix that all of its keys share, since
    /// what refers to it takes that off, and the root is no leaf.
    fn check_finished(&self) {
        for (id, version) in &self.nodes {
            let Version::Changed(node) = version else { continue };
            assert_eq!(node.span.common_prefix_len(), 0, "all keys of node {id} begin alike");
            assert!(*id != self.root || node.height > 0, "the root is a leaf");
            assert!(*id != self.root || node.span == Span::all(), "the root does not hold all keys");
        }
    }

    /// Bounds of the keys of every node that has changed, from below: those of what has not are in the table.
    fn longest_keys(&self) -> HashMap<NodeId, Longest> {
        let changed = |(id, version): (&NodeId, &Version)| match version {
            Version::Changed(node) => Some((*id, node.clone())),
            Version::Removed => None,
        };
        let mut nodes: Vec<_> = self.nodes.iter().filter_map(changed).collect();
        nodes.sort_by_key(|(_, node)| node.height);
        let mut longest: HashMap<NodeId, Longest> = HashMap::with_capacity(nodes.len());
        for (id, node) in nodes {
            let of = |child| {
                let known = longest.get(&child).copied();
                known.or_else(|| Some(self.base.get(child)?.longest)).unwrap_or(Longest::UNKNOWN)
            };
            let bound = node.longest_key(of);
            longest.insert(id, bound);
        }
        longest
    }
}

fn not_below(id: NodeId) -> Error {
    Error::corrupt("edge", 0, format!("node {id} is not below its parent"))
}

fn missing(id: NodeId) -> Error {
    Error::corrupt("node reference", 0, format!("node {id} does not exist"))
}

/// What every version of every node satisfies; cheap enough to assert always.
fn check_shape(node: &Node) {
    assert!(!node.span.is_empty(), "a node over no keys");
    let edges = node.edges();
    assert_eq!(node.height == 0, edges.is_empty(), "leaves have no edges, interior nodes some");
    if let Some(first) = edges.first() {
        assert_eq!(first.lo, node.span.lo, "the first edge begins where the node does");
        assert!(edges.windows(2).all(|w| w[0].lo < w[1].lo), "edges in order");
        assert!(edges.last().is_some_and(|e| node.span.is_above(&e.lo)), "edges within the node");
    }
    if let Body::Leaf(run) = &node.body {
        check_run(run, &node.span);
        assert!(run.pages.iter().all(|page| page.pure), "a leaf holds messages");
    }
    for (i, edge) in edges.iter().enumerate() {
        let live = node.edge_span(i);
        assert!(edge.layers.is_sorted_by_key(|layer| layer.newest), "layers out of order");
        for layer in &edge.layers {
            check_ranges(&layer.ranges, &live, "a range message");
            check_ranges(&layer.updates, &live, "an update");
            assert!(
                layer.updates.iter().all(|update| !update.ops.is_empty()),
                "an update without operations"
            );
            check_run(&layer.run, &live);
        }
    }
}

/// What holds for the pages of a run that lies in `live`.
fn check_run(run: &Run, live: &Span) {
    let lifted = live.common_prefix_len();
    for page in &run.pages {
        assert!(page.is_inside(live), "messages outside their edge");
        assert!(page.prefix.len() >= lifted, "a page has less prefix than its edge lifts");
    }
    assert!(run.pages.is_sorted_by(|a, b| a.is_below(b)), "pages out of order");
}

/// What holds for the range messages or the updates of a layer that lies in `live`.
fn check_ranges<T: Ranged>(messages: &[T], live: &Span, what: &str) {
    let inside = |message: &T| live.covers(message.span()) && !message.span().is_empty();
    assert!(messages.iter().all(inside), "{what} crosses its edge");
    assert!(are_apart(messages), "{what} overlaps the one before it");
}

/// The result of an edit, ready to be applied to the current table.
pub(crate) struct Changes {
    pub root: NodeId,
    nodes: HashMap<NodeId, Version>,
    counts: HashMap<NodeId, i64>,
    /// Bounds of the keys of the changed nodes.
    longest: HashMap<NodeId, Longest>,
}

impl Changes {
    /// Lays the changes over `table`, the current version: the base of the edit, in which only
    /// places of unchanged nodes may have changed since. Gives the numbers of nodes whose count
    /// became 0. No I/O.
    pub fn apply(self, table: &mut Table) -> Result<Vec<NodeId>> {
        let mut orphans = Vec::new();
        let mut counts = self.counts;
        for (id, version) in self.nodes {
            let delta = counts.remove(&id).unwrap_or(0);
            let count = table.get(id).map_or(0, |e| i64::from(e.count)) + delta;
            match version {
                Version::Changed(node) => {
                    let count = checked_count(id, count)?;
                    if count == 0 {
                        orphans.push(id);
                    }
                    let longest = self.longest.get(&id).copied().unwrap_or(Longest::UNKNOWN);
                    let entry = Entry { count, height: node.height, longest, loc: Loc::Dirty(node) };
                    table.set(id, Some(entry));
                }
                Version::Removed => {
                    if count != 0 {
                        return Err(Error::corrupt(
                            "reference count",
                            0,
                            format!("node {id} removed with {count}"),
                        ));
                    }
                    table.set(id, None);
                }
            }
        }
        for (id, delta) in counts.into_iter().filter(|(_, delta)| *delta != 0) {
            let entry = table.get(id).ok_or_else(|| missing(id))?.clone();
            let count = checked_count(id, i64::from(entry.count) + delta)?;
            if count == 0 {
                orphans.push(id);
            }
            table.set(id, Some(Entry { count, ..entry }));
        }
        // An orphan that refers to the root makes this so, which only a forged table has.
        if table.get(self.root).is_none_or(|root| root.count == 0) {
            return Err(Error::corrupt("reference count", 0, "nothing refers to the root"));
        }
        Ok(orphans)
    }

    /// The new versions; `None` for nodes taken out.
    pub fn versions(&self) -> Vec<(NodeId, Option<Arc<Node>>)> {
        let version = |v: &Version| match v {
            Version::Changed(node) => Some(node.clone()),
            Version::Removed => None,
        };
        self.nodes.iter().map(|(id, v)| (*id, version(v))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.counts.is_empty()
    }
}

fn checked_count(id: NodeId, count: i64) -> Result<u32> {
    u32::try_from(count)
        .map_err(|_| Error::corrupt("reference count", 0, format!("node {id} would have {count} references")))
}
