//! Scans: pairs in key order, forwards and backwards, one segment at a time.
//!
//! A segment is a range of keys over which the path from the root does not
//! change: what one leaf shows, where no range message begins or ends, and what
//! the layers above say about it. It is found by one descent, which reads a
//! header per level at most (cached as a rule); its pages are read as they are
//! needed, each once, side by side with others (see [`ScanReadahead`]).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    dag::{
        memtable::Memtable,
        read::{
            readahead::ScanReadahead,
            segment::ScanSegment,
            source::{Io, MergeSource, RunAt, pages_in},
            view::View,
        },
        tree::{child_node, out_of_node},
    },
    error::Result,
    key::{Direction, Lens, Span},
    merge::Merge,
    node::{
        Body, Edge, Layer, NodeId, PageRef, RangeMsg,
        ranged::{Ranged, clip},
    },
    store::pager::{Handle, Pager},
};

/// Finds segments and takes pairs from them.
pub(crate) struct Scanner<'a> {
    pub view: &'a View,
    pub pager: &'a Pager,
    pub merge: &'a dyn Merge,
    pub readahead: &'a mut ScanReadahead,
}

/// A source of points that the descent has met.
pub(super) enum FoundSource<'a> {
    Table(&'a Arc<Memtable>, Lens),
    Run(RunAt, Lens),
}

/// The state of a descent: the segment so far, and how its keys look in the node at hand.
pub(super) struct Descent<'a, 's> {
    view: &'a View,
    pager: &'a Pager,
    readahead: &'s mut ScanReadahead,
    direction: Direction,
    pub segment: Span,
    pub lens: Lens,
    /// Newest first; the leaf, if any, is last.
    pub sources: SmallVec<[FoundSource<'a>; 4]>,
    /// The height of the node above the next one.
    above: Option<u8>,
}

/// Where a descent goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    Node(NodeId),
    End,
}

impl Scanner<'_> {
    /// The first (or last) segment of `range`, which must not be empty.
    pub fn segment(&mut self, range: Span, direction: Direction) -> Result<(Span, ScanSegment)> {
        let (view, pager) = (self.view, self.pager);
        let begins = match direction {
            Direction::Forward => Some(range.lo.clone()),
            Direction::Backward => range.hi.clone(),
        };
        let mut descent = Descent::new(view, pager, self.readahead, direction, range, Lens::identity());
        let mut next = descent.enter_tables();
        while let NextStep::Node(id) = next {
            next = match descent.enter_child(id) {
                Ok(next) => next,
                Err(error) => {
                    let Descent { segment, readahead, .. } = descent;
                    readahead.unread = Some(Box::new(segment));
                    return Err(error);
                }
            };
        }
        let segment = descent.segment.clone();
        let follows = match direction {
            Direction::Forward => begins.as_ref() == Some(&segment.lo),
            Direction::Backward => begins == segment.hi,
        };
        assert!(follows && !segment.is_empty(), "a scan leaves keys out");
        Ok((segment, ScanSegment::new(descent.merge_sources())))
    }

    /// Takes the next pair of `segment` from an end: the entry run that now has it, if there is one.
    #[inline]
    pub fn advance(&mut self, segment: &mut ScanSegment, direction: Direction) -> Result<Option<Direction>> {
        segment.advance(direction, self.merge, &mut Io { pager: self.pager, readahead: self.readahead })
    }
}

impl<'a, 's> Descent<'a, 's> {
    /// A descent to `segment`, whose keys `lens` maps to those of the view.
    pub fn new(
        view: &'a View,
        pager: &'a Pager,
        readahead: &'s mut ScanReadahead,
        direction: Direction,
        segment: Span,
        lens: Lens,
    ) -> Self {
        Self { view, pager, readahead, direction, segment, lens, sources: SmallVec::new(), above: None }
    }

    /// Takes what the memtables say about the segment.
    pub fn enter_tables(&mut self) -> NextStep {
        for table in &self.view.tables {
            let local = self.local();
            let covering = self.restrict_to_range(&local, table.outermost_range(&local, self.direction));
            self.sources.push(FoundSource::Table(table, self.lens.clone()));
            if let Some(range) = covering {
                let Some(origin) = &range.origin else { return NextStep::End };
                // Older tables have what the clone shows under the keys of its source.
                self.lens = self.lens.then(&Lens::of_edge(&range.span, origin));
            }
        }
        NextStep::Node(self.view.tree.root)
    }

    /// Reads the node to which the descent goes on, and takes what it says about the segment.
    pub fn enter_child(&mut self, id: NodeId) -> Result<NextStep> {
        let handle = child_node(self.pager, &self.view.tree.table, id, self.above)?;
        let local = self.local();
        if !handle.node.span.covers(&local) {
            return Err(out_of_node(id, &handle.node, &local.lo));
        }
        self.above = Some(handle.node.height);
        Ok(self.enter_node(handle, local))
    }

    /// What the sources that were met have in the segment. Only now is it known what of each lies in it.
    pub fn merge_sources(self) -> Vec<MergeSource> {
        let Self { segment, sources, .. } = self;
        let sources = sources.into_iter().filter_map(|source| match source {
            FoundSource::Table(table, lens) => {
                let local = lens.apply_span(&segment);
                let empty = table.points_in(&local).next().is_none() && table.updates_in(&local).is_empty();
                (!empty).then(|| MergeSource::of_table(table.clone(), lens, local))
            }
            FoundSource::Run(at, lens) => {
                let local = lens.apply_span(&segment);
                MergeSource::of_run(at, lens, local)
            }
        });
        sources.collect()
    }

    /// The segment in the local keys of the node at hand.
    fn local(&self) -> Span {
        self.lens.apply_span(&self.segment)
    }

    /// Narrows the segment to a part of it, given in local keys.
    fn narrow(&mut self, local: &Span) {
        let global = self.lens.inverse().apply_span(local);
        if let Some(part) = self.segment.intersect(&global) {
            self.segment = part;
        }
    }

    /// Goes to the target of a range message that covers the whole segment.
    fn follow(&mut self, range: &RangeMsg) -> NextStep {
        match &range.target {
            Some(target) => {
                self.lens = self.lens.then(&Lens::of_edge(&range.span, &target.prepend));
                NextStep::Node(target.id)
            }
            None => NextStep::End,
        }
    }

    /// Narrows the segment so that the range messages of a source either cover all of it or do not
    /// touch it; the message, if one covers it. `outermost` is the first of those that overlap `local`, and backwards
    /// the last.
    fn restrict_to_range<R: Ranged + Clone>(&mut self, local: &Span, outermost: Option<&R>) -> Option<R> {
        let outermost = outermost?;
        match self.direction {
            Direction::Forward => {
                let first = outermost;
                if first.span().lo <= local.lo {
                    self.narrow(
                        &Span { lo: local.lo.clone(), hi: first.span().hi.clone() }.intersect(local)?,
                    );
                    return Some(first.clone());
                }
                self.narrow(&Span { lo: local.lo.clone(), hi: Some(first.span().lo.clone()) });
                None
            }
            Direction::Backward => {
                let last = outermost;
                let reaches_end = match (&last.span().hi, &local.hi) {
                    (None, _) => true,
                    (Some(hi), Some(end)) => hi >= end,
                    (Some(_), None) => false,
                };
                if reaches_end {
                    self.narrow(&Span { lo: last.span().lo.clone(), hi: local.hi.clone() }.intersect(local)?);
                    return Some(last.clone());
                }
                let lo = last.span().hi.clone().unwrap_or_default();
                self.narrow(&Span { lo, hi: local.hi.clone() });
                None
            }
        }
    }

    /// Takes what a node says about the segment, which is `local` in its keys.
    fn enter_node(&mut self, handle: Handle, mut local: Span) -> NextStep {
        let Handle { node, home } = handle;
        let Body::Interior(edges) = &node.body else {
            self.sources.push(FoundSource::Run(RunAt { node, home, layer: None }, self.lens.clone()));
            return NextStep::End;
        };
        let i = self.choose_edge(edges, &local);
        if self.direction == Direction::Forward {
            // What waits in this node lies in a few places, in each of them edge after edge.
            let later = edges[i..].iter().take_while(|e| local.is_above(&e.lo));
            let now = waiting(edges[i..].iter().take(1), &local);
            self.readahead.fetch_messages(home.as_ref(), now, waiting(later, &local), self.pager);
        }
        let live = node.edge_span(i);
        if !live.covers(&local)
            && let Some(part) = live.intersect(&local)
        {
            self.narrow(&part);
            local = self.local();
        }
        for (j, layer) in edges[i].layers.iter().enumerate().rev() {
            let from = layer.ranges.partition_point(|r| r.span.hi.as_ref().is_some_and(|hi| *hi <= local.lo));
            let to = layer.ranges.partition_point(|r| local.is_above(&r.span.lo)).max(from);
            let ranges = &layer.ranges[from..to];
            let outermost = match self.direction {
                Direction::Forward => ranges.first(),
                Direction::Backward => ranges.last(),
            };
            let covering = self.restrict_to_range(&local, outermost);
            if to > from {
                local = self.local();
            }
            self.add_run(layer, &local, || RunAt {
                node: node.clone(),
                home: home.clone(),
                layer: Some((i, j)),
            });
            if let Some(range) = covering {
                return self.follow(&range);
            }
        }
        match &edges[i].child {
            Some(target) => {
                self.lens = self.lens.then(&Lens::of_edge(&live, &target.prepend));
                NextStep::Node(target.id)
            }
            None => NextStep::End,
        }
    }

    fn add_run(&mut self, layer: &Layer, local: &Span, at: impl FnOnce() -> RunAt) {
        if !pages_in(&layer.run, local).is_empty() || !clip(&layer.updates, local).is_empty() {
            self.sources.push(FoundSource::Run(at(), self.lens.clone()));
        }
    }

    /// The edge that holds the end of the segment which is read next.
    fn choose_edge(&self, edges: &[Edge], local: &Span) -> usize {
        let above = match self.direction {
            Direction::Forward => edges.partition_point(|e| e.lo <= local.lo),
            Direction::Backward => edges.partition_point(|e| local.is_above(&e.lo)),
        };
        above.saturating_sub(1)
    }
}

/// The pages of messages that wait at edges, as far as they may be about `local`.
fn waiting<'e>(
    edges: impl Iterator<Item = &'e Edge> + Clone,
    local: &'e Span,
) -> impl Iterator<Item = &'e PageRef> + Clone {
    let layers = edges.flat_map(|e| &e.layers);
    layers.flat_map(|l| l.run.pages.get(pages_in(&l.run, local)).unwrap_or_default())
}
