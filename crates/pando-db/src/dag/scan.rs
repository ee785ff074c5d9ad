//! Scans: pairs in key order, forwards and backwards, one window at a time.
//!
//! A window is a range of keys over which the path from the root does not
//! change: one page of one leaf, and what the layers above say about it. It is
//! found by one descent and merged in memory, so a scan costs a header per
//! level and window at most (cached as a rule) and reads every page once, side
//! by side with others (see [`Ahead`]).

use std::sync::Arc;

use bytes::Bytes;

use super::{
    ahead::Ahead,
    layer::clip,
    memtable::Memtable,
    run::bounds,
    update::Sweep,
    view::{View, child_node, out_of_node},
};
use crate::{
    error::Result,
    format::{
        message::Msg,
        node::{Body, Edge, NodeId, RangeMsg, Run, UpdateMsg},
    },
    key::{Lens, Span},
    merge::Merge,
    store::{
        pager::{Handle, Pager},
        table::Stored,
    },
};

/// Most points that a window takes from one in-memory table.
const TABLE_WINDOW: usize = 512;

/// Which end of the remaining range is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A source of point messages within the window.
enum Source<'a> {
    Table(&'a Memtable),
    Run { run: Run, updates: Vec<UpdateMsg>, home: Option<Arc<Stored>>, lens: Lens },
}

/// Finds and reads windows.
pub(crate) struct Scanner<'a> {
    pub view: &'a View,
    pub pager: &'a Pager,
    pub merge: &'a dyn Merge,
}

/// The state of a descent: the window so far, and how its keys look in the node at hand.
struct Descent<'a, 's> {
    pager: &'a Pager,
    ahead: &'s mut Ahead,
    direction: Direction,
    window: Span,
    lens: Lens,
    /// Newest first; the leaf, if any, is last.
    sources: Vec<Source<'a>>,
}

/// Where a descent goes on.
enum Next {
    Node(NodeId),
    End,
}

impl<'a> Scanner<'a> {
    /// The first (or last) window of `range`, which must not be empty, and its pairs.
    pub fn window(
        &self,
        range: &Span,
        direction: Direction,
        ahead: &mut Ahead,
    ) -> Result<(Span, Vec<(Bytes, Bytes)>)> {
        let mut descent = Descent {
            pager: self.pager,
            ahead,
            direction,
            window: range.clone(),
            lens: Lens::identity(),
            sources: Vec::new(),
        };
        let mut next = Next::Node(self.view.tree.root);
        for table in &self.view.tables {
            let table: &'a Memtable = table;
            let covering = descent.restrict_to_table(table);
            descent.sources.push(Source::Table(table));
            if let Some(range) = covering {
                next = descent.follow(&range);
                break;
            }
        }
        let mut above = None;
        while let Next::Node(id) = next {
            let handle = child_node(self.pager, &self.view.tree.table, id, above)?;
            above = Some(handle.node.height);
            let local = descent.local();
            if !handle.node.span.covers(&local) {
                return Err(out_of_node(id, &handle.node, &local.lo));
            }
            next = descent.through_node(&handle);
        }
        let Descent { window, sources, ahead, .. } = descent;
        let pairs = self.merge_sources(&sources, &window, ahead)?;
        ahead.grow();
        Ok((window, pairs))
    }

    fn merge_sources(
        &self,
        sources: &[Source<'_>],
        window: &Span,
        ahead: &mut Ahead,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let mut merged: Vec<(Bytes, Msg)> = Vec::new();
        for source in sources.iter().rev() {
            let newer = self.messages(source, window, ahead)?;
            source.update(&mut merged, &newer, window, self.merge);
            merged = lay_over(merged, newer, self.merge);
        }
        let pairs = merged.into_iter();
        Ok(pairs.filter_map(|(key, msg)| Some((key, msg.into_value(self.merge)?))).collect())
    }

    fn messages(&self, source: &Source<'_>, window: &Span, ahead: &mut Ahead) -> Result<Vec<(Bytes, Msg)>> {
        match source {
            Source::Table(table) => {
                Ok(table.points_in(window).map(|(key, msg)| (key.clone(), msg.clone())).collect())
            }
            Source::Run { run, home, lens, .. } => {
                let local = lens.apply_span(window);
                let mut out = Vec::new();
                for page in &run.pages[run.page_from(&local.lo)..] {
                    if !page.meets(&local) {
                        break;
                    }
                    let loaded = match ahead.page(home.as_ref(), page) {
                        Some(loaded) => loaded,
                        None => self.pager.page(home.as_ref(), page)?,
                    };
                    let (from, to) = bounds(page, &loaded, &local);
                    // Where the page's prefix already holds what the path put on, keys are built once.
                    let head = page.prefix.starts_with(&lens.pre).then(|| lens.invert(&page.prefix));
                    match head {
                        Some(head) => out.extend(loaded.entries(from..to, &head)),
                        None => out.extend((from..to).map(|i| {
                            let (key, msg) = page.entry(&loaded, i);
                            (lens.invert(&key), msg)
                        })),
                    }
                }
                Ok(out)
            }
        }
    }
}

impl Source<'_> {
    /// Does to the messages of all `older` sources what the updates of this one say, where it has no point
    /// of its own, which would include them.
    fn update(&self, older: &mut [(Bytes, Msg)], points: &[(Bytes, Msg)], window: &Span, merge: &dyn Merge) {
        let updates = match self {
            Source::Table(table) => table.updates_in(window),
            Source::Run { updates, .. } if updates.is_empty() => return,
            Source::Run { updates, lens, .. } => {
                let (local, back) = (lens.apply_span(window), lens.inverse());
                clip(updates, &local).iter().map(|u| u.through(&back)).collect()
            }
        };
        if updates.is_empty() {
            return;
        }
        let mut sweep = Sweep::new(&updates);
        let mut points = points.iter().peekable();
        for (key, msg) in older {
            while points.next_if(|(point, _)| *point < *key).is_some() {}
            if points.peek().is_none_or(|(point, _)| point != key)
                && let Some(update) = sweep.at(key)
            {
                let before = std::mem::replace(msg, Msg::Delete);
                *msg = update.over(before, merge);
            }
        }
    }
}

impl<'a> Descent<'a, '_> {
    /// The window in the local keys of the node at hand.
    fn local(&self) -> Span {
        self.lens.apply_span(&self.window)
    }

    /// Narrows the window to a part of it, given in local keys.
    fn narrow(&mut self, local: &Span) {
        let global = self.lens.inverse().apply_span(local);
        if let Some(window) = self.window.intersect(&global) {
            self.window = window;
        }
    }

    /// Goes to the target of a range message that covers the whole window.
    fn follow(&mut self, range: &RangeMsg) -> Next {
        match &range.target {
            Some(target) => {
                self.lens = self.lens.then(&Lens::of_edge(&range.span, &target.prepend));
                Next::Node(target.id)
            }
            None => Next::End,
        }
    }

    /// Narrows the window so that the range messages of a source either cover all of it or do not
    /// touch it; the message, if one covers it. `ranges` overlap `local` and are ascending.
    fn restrict_to_ranges(&mut self, local: &Span, ranges: &[RangeMsg]) -> Option<RangeMsg> {
        match self.direction {
            Direction::Forward => {
                let first = ranges.first()?;
                if first.span.lo <= local.lo {
                    self.narrow(&Span { lo: local.lo.clone(), hi: first.span.hi.clone() }.intersect(local)?);
                    return Some(first.clone());
                }
                self.narrow(&Span { lo: local.lo.clone(), hi: Some(first.span.lo.clone()) });
                None
            }
            Direction::Backward => {
                let last = ranges.last()?;
                let reaches_end = match (&last.span.hi, &local.hi) {
                    (None, _) => true,
                    (Some(hi), Some(end)) => hi >= end,
                    (Some(_), None) => false,
                };
                if reaches_end {
                    self.narrow(&Span { lo: last.span.lo.clone(), hi: local.hi.clone() }.intersect(local)?);
                    return Some(last.clone());
                }
                let lo = last.span.hi.clone().unwrap_or_default();
                self.narrow(&Span { lo, hi: local.hi.clone() });
                None
            }
        }
    }

    fn restrict_to_table(&mut self, table: &Memtable) -> Option<RangeMsg> {
        let covering = self.restrict_to_ranges(&self.window.clone(), &table.ranges_in(&self.window));
        let window = self.window.clone();
        match self.direction {
            Direction::Forward => {
                if let Some((key, _)) = table.points_in(&window).nth(TABLE_WINDOW) {
                    self.window.hi = Some(key.clone());
                }
            }
            Direction::Backward => {
                if let Some(key) = table.point_from_end(&window, TABLE_WINDOW) {
                    self.window.lo = key.clone();
                }
            }
        }
        covering
    }

    fn through_node(&mut self, handle: &Handle) -> Next {
        let node = &handle.node;
        let edges = match &node.body {
            Body::Leaf(run) => {
                self.add_run(run, &[], handle);
                return Next::End;
            }
            Body::Interior(edges) => edges,
        };
        let i = self.choose_edge(edges);
        if self.direction == Direction::Forward {
            // All that waits in this node lies in one piece, edge after edge.
            let shown = self.local();
            let later = edges[i..].iter().take_while(|e| shown.is_above(&e.lo));
            let wanted = later.flat_map(|e| &e.layers).flat_map(|l| &l.run.pages);
            self.ahead.fetch(handle.home.as_ref(), wanted.filter(|p| p.meets(&shown)), self.pager);
        }
        let live = node.edge_span(i);
        if let Some(part) = live.intersect(&self.local()) {
            self.narrow(&part);
        }
        for layer in edges[i].layers.iter().rev() {
            let local = self.local();
            let from = layer.ranges.partition_point(|r| r.span.hi.as_ref().is_some_and(|hi| *hi <= local.lo));
            let to = layer.ranges.partition_point(|r| local.is_above(&r.span.lo)).max(from);
            let covering = self.restrict_to_ranges(&local, &layer.ranges[from..to]);
            self.add_run(&layer.run, &layer.updates, handle);
            if let Some(range) = covering {
                return self.follow(&range);
            }
        }
        match &edges[i].child {
            Some(target) => {
                self.lens = self.lens.then(&Lens::of_edge(&live, &target.prepend));
                Next::Node(target.id)
            }
            None => Next::End,
        }
    }

    /// The edge that holds the end of the window which is read next.
    fn choose_edge(&self, edges: &[Edge]) -> usize {
        let local = self.local();
        let above = match self.direction {
            Direction::Forward => edges.partition_point(|e| e.lo <= local.lo),
            Direction::Backward => edges.partition_point(|e| local.is_above(&e.lo)),
        };
        above.saturating_sub(1)
    }

    /// Narrows the window so that it takes at most one page of the run.
    fn restrict_to_pages(&mut self, run: &Run) {
        let local = self.local();
        match self.direction {
            Direction::Forward => {
                let first = run.page_from(&local.lo);
                if let Some(next) = run.pages.get(first + 1) {
                    let end = next.first_key();
                    if local.is_above(&end) {
                        self.narrow(&Span { lo: local.lo, hi: Some(end) });
                    }
                }
            }
            Direction::Backward => {
                let behind = run.pages.partition_point(|p| local.is_above(&p.first_key()));
                if let Some(last) = behind.checked_sub(1).and_then(|i| run.pages.get(i)) {
                    let lo = last.first_key();
                    if lo > local.lo {
                        self.narrow(&Span { lo, hi: local.hi });
                    }
                }
            }
        }
    }

    /// Takes a run as a source, with the window narrowed to one page of it.
    fn add_run(&mut self, run: &Run, updates: &[UpdateMsg], handle: &Handle) {
        if self.direction == Direction::Forward {
            // What the scan will want of this run, if it goes on to the end of what is visible here.
            let shown = self.local();
            let wanted = run.pages[run.page_from(&shown.lo)..].iter().take_while(|p| p.meets(&shown));
            self.ahead.fetch(handle.home.as_ref(), wanted, self.pager);
        }
        self.restrict_to_pages(run);
        let local = self.local();
        let pages: Vec<_> =
            run.pages[run.page_from(&local.lo)..].iter().take_while(|p| p.meets(&local)).cloned().collect();
        let updates = clip(updates, &local);
        if !pages.is_empty() || !updates.is_empty() {
            let (home, lens) = (handle.home.clone(), self.lens.clone());
            self.sources.push(Source::Run { run: Run { pages }, updates, home, lens });
        }
    }
}

/// Two ascending lists of messages as one.
fn lay_over(older: Vec<(Bytes, Msg)>, newer: Vec<(Bytes, Msg)>, merge: &dyn Merge) -> Vec<(Bytes, Msg)> {
    if older.is_empty() {
        return newer;
    }
    if newer.is_empty() {
        return older;
    }
    let mut out = Vec::with_capacity(older.len() + newer.len());
    let mut older = older.into_iter().peekable();
    for (key, msg) in newer {
        while let Some(below) = older.next_if(|(k, _)| *k < key) {
            out.push(below);
        }
        let msg = match older.next_if(|(k, _)| *k == key) {
            Some((_, under)) => msg.over(under, merge),
            None => msg,
        };
        out.push((key, msg));
    }
    out.extend(older);
    out
}
