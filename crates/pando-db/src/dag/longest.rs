//! Searches for a key under a prefix that is longer than a limit, which a clone to a longer prefix must exclude.
//!
//! Bounds of key lengths stand in the translation table for each node, beside each page, and in memtables. They admit
//! most clones without a search. Otherwise the search descends only into nodes that may hold a longer key; a key that
//! is found counts if it has a value in the view. So the answer is exact, whatever the bounds are. (Only if hundreds
//! of thousands of longer keys were deleted just before, the search gives up and says that there may be one.)
//!
//! Cost: nothing if the bounds admit the clone; otherwise O(height) headers for each place with longer keys, and a
//! point query for each of those keys until one has a value.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::{
        layer::run::bounds,
        memtable::{Memtable, range::TableRange},
        read::view::View,
        tree::{Tree, child_node, out_of_node},
    },
    error::Result,
    key::{Lens, Longest, Span},
    limits::MAX_KEY,
    merge::Merge,
    node::{Body, Node, NodeId, Run, Target, ranged::Ranged},
    store::{
        pager::{Handle, Pager},
        table::{Entry, Loc, Table},
    },
};

/// Nodes that are read, and keys that are looked up, a count, before the search gives up. This happens only if so
/// many longer keys were just deleted.
const MAX_STEPS: u64 = 1 << 18;
/// Range messages, a count, that are cut out of a range one by one; if there are more, each longer key is looked up
/// instead.
const MAX_CUTS: usize = 64;

/// Bounds of up to this many bytes are not worth being made tight.
const LONG_BYTES: usize = MAX_KEY / 16;

/// A range of keys of a state, and the length that no key with a value may exceed.
#[derive(Debug, Clone)]
pub(crate) struct Within {
    pub span: Span,
    pub most: usize,
}

/// The length of a key under `prefix` with a value and of more than `most` bytes, if there is one. I/O: see the module.
pub(crate) fn longer_key(
    view: &View,
    prefix: &Bytes,
    most: usize,
    pager: &Pager,
    merge: &dyn Merge,
) -> Result<Option<usize>> {
    let mut search = Search { view, pager, merge, most, steps: 0, todo: Vec::new() };
    search.todo.push(Todo {
        span: Span::prefix(prefix.clone()),
        up: Lens::identity(),
        place: Location::Table(0),
    });
    search.run()
}

/// The ranges below `table` that must not have longer keys, if `within` above it is to have none.
pub(crate) fn below_table(table: &Memtable, within: &Within) -> Vec<Within> {
    let mut below = Vec::new();
    pieces_below(table, &within.span, &Lens::identity(), within.most, |span, up| {
        below.push(Within { span, most: (within.most + up.strip.len()).saturating_sub(up.prepend.len()) });
    });
    below
}

/// The parts of the state below `table` that `span` shows, with the maps of their keys.
fn pieces_below(table: &Memtable, span: &Span, up: &Lens, most: usize, mut piece: impl FnMut(Span, Lens)) {
    let mut cuts = Vec::new();
    for range in table.ranges_meeting(span) {
        if cuts.len() <= MAX_CUTS {
            cuts.push(&range.span);
        }
        if may_exceed(range.longest, up, most)
            && let Some((down, image)) = range.clipped(span).as_ref().and_then(TableRange::source)
        {
            piece(image, down.inverse().then(up));
        }
    }
    if cuts.len() > MAX_CUTS {
        return piece(span.clone(), up.clone());
    }
    span.without_all(cuts).into_iter().for_each(|rest| piece(rest, up.clone()));
}

/// True if a local key within this bound may have more than `most` bytes in the keys of the view.
fn may_exceed(local: Longest, up: &Lens, most: usize) -> bool {
    local.through(up.strip.len(), up.prepend.len()).exceeds(most)
}

/// A node whose bound may be lowered: it was not rewritten when its children changed.
pub(crate) struct Tighter {
    id: NodeId,
    of: Loc,
    node: Arc<Node>,
}

/// Finds nodes with long bounds that can be lowered, from the root down, and reads at most `budget` nodes; the lowest
/// nodes come first. A node that cannot be read keeps its bound. I/O: the headers of interior nodes with long bounds.
pub(crate) fn tighter_bounds(tree: &Tree, pager: &Pager, mut budget: usize) -> Vec<Tighter> {
    let mut found = HashMap::new();
    tighter(tree, pager, tree.root, &mut budget, &mut found);
    let lower = |(id, (node, longest))| {
        let entry = tree.table.get(id).filter(|entry| longest < entry.longest)?;
        Some(Tighter { id, of: entry.loc.clone(), node })
    };
    let mut found: Vec<Tighter> = found.into_iter().filter_map(lower).collect();
    found.sort_unstable_by_key(|found| found.node.height);
    found
}

/// The nodes that were read, and their bounds.
type LookedAt = HashMap<NodeId, (Arc<Node>, Longest)>;

/// Notes the bound of every node that is read. Heights descend, so this ends.
fn tighter(tree: &Tree, pager: &Pager, id: NodeId, budget: &mut usize, found: &mut LookedAt) {
    let Some(entry) = tree.table.get(id) else { return };
    if entry.height == 0 || !entry.longest.exceeds(LONG_BYTES) || found.contains_key(&id) || *budget == 0 {
        return;
    }
    *budget -= 1;
    let Ok(handle) = pager.node(&tree.table, id) else { return };
    if handle.node.height != entry.height {
        return;
    }
    for child in handle.node.references() {
        if tree.table.get(child).is_some_and(|child| child.height < entry.height) {
            tighter(tree, pager, child, budget, found);
        }
    }
    let known = |id| tree.table.get(id).map_or(Longest::UNKNOWN, |entry| entry.longest);
    let of = |child| found.get(&child).map_or(Longest::UNKNOWN, |(_, longest)| *longest).min(known(child));
    let longest = handle.node.longest_key(of);
    found.insert(id, (handle.node, longest));
}

impl Tighter {
    /// Lowers the bound in `table`, a later version, if the node is still the same: to the bound that follows from
    /// those of its children in this table, some of which may be later versions with higher bounds.
    pub fn apply(&self, table: &mut Table) {
        let same = |entry: &&Entry| match (&entry.loc, &self.of) {
            (Loc::Dirty(a), Loc::Dirty(b)) => Arc::ptr_eq(a, b),
            (Loc::Stored(a), Loc::Stored(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let of = |child| table.get(child).map_or(Longest::UNKNOWN, |entry| entry.longest);
        let longest = self.node.longest_key(of);
        if let Some(entry) = table.get(self.id).filter(same).filter(|entry| longest < entry.longest).cloned()
        {
            table.set(self.id, Some(Entry { longest, ..entry }));
        }
    }
}

struct Search<'a> {
    view: &'a View,
    pager: &'a Pager,
    merge: &'a dyn Merge,
    most: usize,
    steps: u64,
    todo: Vec<Todo>,
}

struct Todo {
    /// Local keys.
    span: Span,
    /// The map from them to the keys of the view.
    up: Lens,
    place: Location,
}

enum Location {
    /// The tables from this one on, newest first, and the DAG below them.
    Table(usize),
    /// A node below one of this height.
    Node(NodeId, Option<u8>),
}

impl Search<'_> {
    fn run(&mut self) -> Result<Option<usize>> {
        while let Some(Todo { span, up, place }) = self.todo.pop() {
            let found = match place {
                Location::Table(level) => self.table(level, &span, &up)?,
                Location::Node(id, above) => self.node(id, above, &span, &up)?,
            };
            if found.is_some() {
                return Ok(found);
            }
            if self.steps > MAX_STEPS {
                return Ok(Some(self.most + 1));
            }
        }
        Ok(None)
    }

    fn table(&mut self, level: usize, span: &Span, up: &Lens) -> Result<Option<usize>> {
        let view = self.view;
        let Some(table) = view.tables.get(level) else {
            let place = Location::Node(view.tree.root, None);
            self.todo.push(Todo { span: span.clone(), up: up.clone(), place });
            return Ok(None);
        };
        if may_exceed(table.longest(), up, self.most) {
            for (key, msg) in table.points_in(span) {
                if msg.may_make_value()
                    && may_exceed(Longest::of(key.len()), up, self.most)
                    && let Some(len) = self.judge(&up.apply(key))?
                {
                    return Ok(Some(len));
                }
            }
        }
        let todo = &mut self.todo;
        pieces_below(table, span, up, self.most, |span, up| {
            todo.push(Todo { span, up, place: Location::Table(level + 1) });
        });
        Ok(None)
    }

    fn node(&mut self, id: NodeId, above: Option<u8>, span: &Span, up: &Lens) -> Result<Option<usize>> {
        let bound = self.view.tree.table.get(id).map_or(Longest::UNKNOWN, |entry| entry.longest);
        if !may_exceed(bound, up, self.most) {
            return Ok(None);
        }
        // Nodes of an older version have no bounds: all their keys have to be checked.
        self.steps += u64::from(bound != Longest::UNKNOWN);
        let handle = child_node(self.pager, &self.view.tree.table, id, above)?;
        let node = &handle.node;
        if !node.span.covers(span) {
            return Err(out_of_node(id, node, &span.lo));
        }
        let edges = match &node.body {
            Body::Leaf(run) => return self.keys(&handle, run, span, up),
            Body::Interior(edges) => edges,
        };
        let meeting = edges.iter().enumerate().skip(node.edge_at(&span.lo));
        for (i, edge) in meeting.take_while(|(_, edge)| span.is_above(&edge.lo)) {
            let live = node.edge_span(i);
            let Some(shown) = live.intersect(span) else { continue };
            let mut left = vec![shown.clone()];
            for layer in edge.layers.iter().rev() {
                if let Some(len) = self.keys(&handle, &layer.run, &shown, up)? {
                    return Ok(Some(len));
                }
                let ranges = layer.ranges_meeting(&shown);
                for range in ranges {
                    let Some(target) = &range.target else { continue };
                    for part in left.iter().filter_map(|part| part.intersect(&range.span)) {
                        self.follow(&range.span, target, &part, up, node.height);
                    }
                }
                if ranges.len() <= MAX_CUTS && left.len() <= MAX_CUTS {
                    let cuts = || ranges.iter().map(|range| &range.span);
                    left = left.iter().flat_map(|part| part.without_all(cuts())).collect();
                }
            }
            if let Some(target) = &edge.child {
                left.iter().for_each(|part| self.follow(&live, target, part, up, node.height));
            }
        }
        Ok(None)
    }

    /// Adds what an edge or Goto over `live` shows in `part`.
    fn follow(&mut self, live: &Span, target: &Target, part: &Span, up: &Lens, above: u8) {
        let down = Lens::of_edge(live, &target.prepend);
        let up = down.inverse().then(up);
        let bound = self.view.tree.table.get(target.id).map_or(Longest::UNKNOWN, |entry| entry.longest);
        if may_exceed(bound, &up, self.most) {
            let place = Location::Node(target.id, Some(above));
            self.todo.push(Todo { span: down.apply_span(part), up, place });
        }
    }

    /// Checks the longer keys of a run in `span`.
    fn keys(&mut self, handle: &Handle, run: &Run, span: &Span, up: &Lens) -> Result<Option<usize>> {
        let from = run.pages.get(run.page_from(&span.lo)..).unwrap_or_default();
        for page in from.iter().take_while(|page| page.meets(span)) {
            if !may_exceed(page.longest_key(), up, self.most) {
                continue;
            }
            let loaded = self.pager.page(handle.home.as_ref(), page)?;
            let (from, to) = bounds(page, &loaded, span);
            for i in from..to {
                let entry = loaded.entry(i);
                let len = Longest::of(page.prefix.len() + entry.key.len());
                if entry.may_make_value()
                    && may_exceed(len, up, self.most)
                    && let Some(len) = self.judge(&up.apply(&page.key(&loaded, i)))?
                {
                    return Ok(Some(len));
                }
            }
        }
        Ok(None)
    }

    /// The length of a key of the view if it has a value.
    fn judge(&mut self, key: &[u8]) -> Result<Option<usize>> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Ok(Some(key.len()));
        }
        Ok(self.view.get(key, self.pager, self.merge)?.map(|_| key.len()))
    }
}
