//! The checker: the invariants of a version of the DAG that `docs/invariants.md` marks with C, on disk or in memory.
//!
//! Verifies: every header and page on the device against its checksum, whatever is cached, the pages of the translation
//! table, and the directories of scattered extents; order
//! and bounds of edges, messages and pairs; heights; that every edge and Goto
//! shows only what its target holds; the height rule of resting Gotos; and that
//! reference counts are exact. Extents are checked when the table is loaded:
//! each is owned once or free. Sizes and fanout are not invariants: they are
//! restored by the next flush through a node.
//!
//! Each node is read once, whatever the number of paths to it. Pages wait until there are many, and are read in the
//! order of their places: what is written at different times lies side by side on the device, and not in the nodes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    dag::tree::Tree,
    error::Error,
    key::{Lens, Longest, Span},
    node::{Body, Node, NodeId, PageRef, Run, Target, stored::Stored},
    store::{
        pager::{Handle, Pager},
        scattered,
    },
};

/// Something that is not as it should be.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub what: String,
    /// The node it is in, if it is known.
    pub node: Option<NodeId>,
    /// Keys that are affected, by one path to the node.
    pub keys: Option<(Bytes, Option<Bytes>)>,
}

/// What a check saw.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub problems: Vec<Problem>,
    pub nodes: u64,
    pub pages: u64,
    /// Raw bytes of pages.
    pub bytes: u64,
}

/// A page that waits to be read.
struct UnreadPage {
    node: NodeId,
    home: Option<Arc<Stored>>,
    page: PageRef,
}

/// Most pages that wait, a count: they take some 200 bytes each.
const MAX_WAITING: usize = 64 << 10;

struct Checker<'a> {
    tree: &'a Tree,
    pager: &'a Pager,
    report: Report,
    references: HashMap<NodeId, u64>,
    damaged: HashSet<NodeId>,
    /// Scattered extents whose directories were read, by their places; several nodes may have one in common.
    directories: HashSet<u64>,
    waiting: Vec<UnreadPage>,
}

/// Most problems that are listed, a count.
pub(crate) const MAX_PROBLEMS: usize = 1000;

pub(crate) fn check(tree: &Tree, pager: &Pager) -> Report {
    let mut checker = Checker {
        tree,
        pager,
        report: Report::default(),
        references: HashMap::new(),
        damaged: HashSet::new(),
        directories: HashSet::new(),
        waiting: Vec::new(),
    };
    let mut entries = BTreeMap::new();
    tree.table.for_each(|id, entry| {
        entries.insert(id, (entry.count, entry.height));
    });
    *checker.references.entry(tree.root).or_default() += 1;
    for &id in entries.keys() {
        checker.check_node(id);
        if checker.waiting.len() >= MAX_WAITING {
            checker.check_waiting();
        }
    }
    checker.check_waiting();
    for (&id, &(count, _)) in &entries {
        let found = checker.references.get(&id).copied().unwrap_or(0);
        if found != u64::from(count) {
            checker.problem(id, format!("it has {found} references, the table says {count}"));
        }
    }
    checker.locate_damage();
    checker.check_table();
    checker.report
}

impl Checker<'_> {
    fn problem(&mut self, id: NodeId, what: String) {
        self.damaged.insert(id);
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(Problem {
                what: format!("node {id}: {what}"),
                node: Some(id),
                keys: None,
            });
        }
    }

    /// What is in memory of the table is whole. What is on the device is read when the store is opened.
    fn check_table(&mut self) {
        let tree = self.tree;
        tree.table.for_each_home(|home| {
            if let Err(error) = home.verify(&**self.pager.device())
                && self.report.problems.len() < MAX_PROBLEMS
            {
                self.report.problems.push(Problem { what: error.to_string(), node: None, keys: None });
            }
        });
    }

    /// A bound of key lengths that is too small would let clones make keys that are too long.
    fn check_bound(&mut self, id: NodeId, node: &Node) {
        let of = |id| self.tree.table.get(id).map_or(Longest::UNKNOWN, |entry| entry.longest);
        if node.longest_key(of) > of(id) {
            self.problem(id, "keys are longer than its bound says".into());
        }
    }

    fn check_node(&mut self, id: NodeId) {
        let handle = match self.pager.node_on_device(&self.tree.table, id) {
            Ok(handle) => handle,
            Err(error) => return self.problem(id, error.to_string()),
        };
        self.report.nodes += 1;
        if id == self.tree.root && handle.node.span != Span::all() {
            self.problem(id, "it is the root and does not hold all keys".into());
        }
        for part in handle.home.iter().flat_map(|home| &home.parts) {
            if part.is_scattered()
                && self.directories.insert(part.offset)
                && let Err(error) = scattered::verify(&**self.pager.device(), part)
            {
                self.problem(id, error.to_string());
            }
        }
        for reference in handle.node.references() {
            *self.references.entry(reference).or_default() += 1;
        }
        let node = handle.node.clone();
        self.check_bound(id, &node);
        match &node.body {
            Body::Leaf(run) => {
                let span = node.span.clone();
                self.check_run(id, &handle, run, &span);
                if node.height != 0 || run.pages.iter().any(|p| !p.pure) {
                    self.problem(id, "a leaf above height 0, or with messages".into());
                }
            }
            Body::Interior(edges) => {
                if edges.first().is_none_or(|e| e.lo != node.span.lo) || node.height == 0 {
                    self.problem(id, "its edges do not cover its keys".into());
                }
                for i in 0..edges.len() {
                    self.check_edge(id, &handle, &node, i);
                }
            }
        }
    }

    fn check_edge(&mut self, id: NodeId, handle: &Handle, node: &Node, i: usize) {
        let (edge, live) = (&node.edges()[i], node.edge_span(i));
        if live.is_empty() {
            return self.problem(id, format!("edge {i} covers nothing"));
        }
        if let Some(target) = &edge.child {
            self.check_target(id, &live, target, node.height);
        }
        if edge.layers.windows(2).any(|w| w[0].newest > w[1].newest) {
            self.problem(id, format!("layers of edge {i} are out of order"));
        }
        if let (Some(target), Some(oldest)) = (&edge.child, edge.layers.first())
            && let Ok(child) = self.pager.node(&self.tree.table, target.id)
            && child.node.newest() > oldest.newest
        {
            let (below, above) = (child.node.newest(), oldest.newest);
            self.problem(
                id,
                format!("batch {above} waits above node {}, which has batch {below}", target.id),
            );
        }
        // It must be possible to flush a resting Goto into the child of its edge.
        let child = edge.child.as_ref().and_then(|t| self.tree.table.get(t.id));
        let flushed_to = child.map_or(node.height.saturating_sub(1), |c| c.height);
        for layer in &edge.layers {
            self.check_run(id, handle, &layer.run, &live);
            let mut end = Some(live.lo.clone());
            for range in &layer.ranges {
                if !live.covers(&range.span) || end.is_none_or(|end| range.span.lo < end) {
                    self.problem(id, format!("range messages of edge {i} overlap or leave it"));
                }
                end = range.span.hi.clone();
                if let Some(target) = &range.target {
                    self.check_target(id, &range.span, target, flushed_to);
                }
            }
            let mut end = Some(live.lo.clone());
            for update in &layer.updates {
                if !live.covers(&update.span) || end.is_none_or(|end| update.span.lo < end) {
                    self.problem(id, format!("updates of edge {i} overlap or leave it"));
                }
                if update.span.is_empty() || update.ops.is_empty() {
                    self.problem(id, format!("an update of edge {i} changes nothing"));
                }
                end = update.span.hi.clone();
            }
        }
    }

    /// `target` must be below `above` and hold all that is shown of it over `live`.
    fn check_target(&mut self, id: NodeId, live: &Span, target: &Target, above: u8) {
        let child = match self.pager.node(&self.tree.table, target.id) {
            Ok(child) => child,
            Err(error) => return self.problem(id, format!("its child {}: {error}", target.id)),
        };
        if child.node.height >= above {
            self.problem(id, format!("its child {} is not low enough", target.id));
        }
        let image = Lens::of_edge(live, &target.prepend).apply_span(live);
        if !child.node.span.covers(&image) {
            self.problem(
                id,
                format!("it shows {image:?} of node {}, which has {:?}", target.id, child.node.span),
            );
        }
    }

    fn check_run(&mut self, id: NodeId, handle: &Handle, run: &Run, span: &Span) {
        let mut last: Option<Bytes> = None;
        for page in &run.pages {
            let ordered = last.is_none_or(|last| last < page.first_key());
            if !ordered || !page.is_inside(span) {
                self.problem(id, "pages out of order or out of bounds".into());
            }
            last = Some(page.last_key());
            self.waiting.push(UnreadPage { node: id, home: handle.home.clone(), page: page.clone() });
        }
    }

    /// Reads the pages that wait. I/O: all of them, those that lie side by side at once.
    fn check_waiting(&mut self) {
        let waiting = mem::take(&mut self.waiting);
        let pages = waiting.iter().enumerate().map(|(i, w)| (i, w.home.as_ref(), &w.page));
        let mut wrong = Vec::new();
        self.pager.pages_on_device(pages, |i, read| {
            let page = &waiting[i].page;
            match read {
                Ok(loaded) if loaded.longest() > page.longest => {
                    wrong.push((i, Error::corrupt("node page", 0, "keys are longer than the header says")));
                }
                Ok(_) => {
                    self.report.pages += 1;
                    self.report.bytes += u64::from(page.raw);
                }
                Err(error) => wrong.push((i, error)),
            }
        });
        wrong.sort_by_key(|(i, _)| *i);
        for (i, error) in wrong {
            self.problem(waiting[i].node, error.to_string());
        }
    }

    /// Finds for every damaged node the keys that lead to it, by a walk that visits each sound node
    /// once.
    fn locate_damage(&mut self) {
        if self.damaged.is_empty() {
            return;
        }
        let mut seen = HashSet::from([self.tree.root]);
        let mut queue = vec![(self.tree.root, Span::all(), Lens::identity())];
        let mut keys: HashMap<NodeId, Span> = HashMap::new();
        while let Some((id, shown, lens)) = queue.pop() {
            if self.damaged.contains(&id) {
                keys.entry(id).or_insert_with(|| shown.clone());
            }
            let Ok(handle) = self.pager.node(&self.tree.table, id) else { continue };
            let local = lens.apply_span(&shown);
            for (i, edge) in handle.node.edges().iter().enumerate() {
                let live = handle.node.edge_span(i);
                let gotos = edge.layers.iter().flat_map(|l| &l.ranges);
                let gotos = gotos.filter_map(|r| Some((r.span.clone(), r.target.clone()?)));
                for (live, target) in edge.child.iter().map(|t| (live.clone(), t.clone())).chain(gotos) {
                    let Some(visible) = live.intersect(&local) else { continue };
                    if seen.insert(target.id) {
                        let down = lens.then(&Lens::of_edge(&live, &target.prepend));
                        let shown = lens.inverse().apply_span(&visible);
                        queue.push((target.id, shown, down));
                    }
                }
            }
        }
        for problem in &mut self.report.problems {
            let span = problem.node.and_then(|id| keys.get(&id));
            problem.keys = span.map(|s| (s.lo.clone(), s.hi.clone()));
        }
    }
}
