//! The difference of two prefixes: what lies below one side and not below the other, found without reading what
//! both share.
//!
//! Both sides are descended side by side, over a range of keys that narrows as paths diverge. If both reach the same
//! node by equal lenses, they can differ only in keys of messages above it: those keys are resolved one by one, and
//! nothing below is read ([`above`]). If the nodes differ, the higher one is descended further; two different leaves
//! are merged. So a difference reads only the nodes in which the sides differ, and the messages above the nodes that
//! they share.
//!
//! A node of one version is the same in another if the table has the same entry for it, and what is below it is
//! the same too: that is known of leaves, and of every node where both sides are of one version. Between versions
//! the headers of all interior nodes are compared, and of leaves those that were written anew since.
//!
//! The result does not depend on what is shared. Only reads; no locks.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    dag::read::{
        diff::{
            above::{Above, MAX_ENTRIES_ABOVE},
            join::DiffWork,
        },
        readahead::ScanReadahead,
        scan::{Descent, NextStep},
    },
    error::Result,
    key::{Direction, Span},
    merge::Merge,
    store::{pager::Pager, table::Loc},
};

mod above;
mod join;
mod side;

pub(crate) use join::{Difference, GoOn};
pub(crate) use side::Side;

/// If two leaves share more than this many entries, in common pages, for each entry that they do not share, only the
/// pages that differ are read.
const SHARED_PER_OTHER_ENTRY: usize = 8;

/// The difference of two sides, as far as it has been found.
pub(crate) struct Differ {
    sides: [Side; 2],
    /// What has not been looked at.
    rest: Option<Span>,
    work: DiffWork,
}

impl Differ {
    pub fn new(before: Side, after: Side) -> Self {
        Self { sides: [before, after], rest: Some(Span::all()), work: DiffWork::Nothing }
    }

    /// Goes on with the first key at or above `key`, which may have been passed.
    pub fn seek(&mut self, key: &[u8]) {
        self.rest = Some(Span::new(Bytes::copy_from_slice(key), None));
        self.work = DiffWork::Nothing;
    }

    /// The next difference. After an error there is none. However much is equal, `go_on` is asked for each part and
    /// each pair.
    pub fn next(&mut self, pager: &Pager, merge: &dyn Merge, go_on: &GoOn<'_>) -> Result<Option<Difference>> {
        let found = self.find(pager, merge, go_on);
        if found.is_err() {
            (self.rest, self.work) = (None, DiffWork::Nothing);
        }
        found
    }

    fn find(&mut self, pager: &Pager, merge: &dyn Merge, go_on: &GoOn<'_>) -> Result<Option<Difference>> {
        loop {
            if let Some(found) = self.work.next(&self.sides, (pager, merge), go_on)? {
                return Ok(Some(found));
            }
            let Some(rest) = self.rest.take() else { return Ok(None) };
            go_on()?;
            let (part, work) = self.part(rest.clone(), pager)?;
            assert!(rest.covers(&part) && !part.is_empty(), "a part must be one of what is left");
            self.rest = rest.without(&part).1;
            self.work = work;
        }
    }

    /// The first part of `rest` over which the paths of both sides do not change, and what is to be done there.
    fn part(&self, rest: Span, pager: &Pager) -> Result<(Span, DiffWork)> {
        // No messages are read ahead: those of other edges may be shared.
        let (mut left, mut right) = (ScanReadahead::default(), ScanReadahead::default());
        let [before, after] = &self.sides;
        let mut down = [(before, &mut left), (after, &mut right)].map(|(side, readahead)| {
            Descent::new(&side.view, pager, readahead, Direction::Forward, rest.clone(), side.lens())
        });
        let mut part = rest;
        let mut next = [NextStep::End; 2];
        for (side, next) in down.iter_mut().zip(&mut next) {
            side.segment = part;
            *next = side.enter_tables();
            part = side.segment.clone();
        }
        loop {
            down.iter_mut().for_each(|side| side.segment = part.clone());
            if self.same_place(&down, next)
                && let Some(work) = self.above(&mut down, next)
            {
                return Ok((down[0].segment.clone(), work));
            }
            part = down[0].segment.clone();
            let [a, b] = [0, 1].map(|i| self.sides[i].entry(next[i]).map(|entry| entry.height));
            if next == [NextStep::End; 2] {
                return Ok((part, DiffWork::all(down)));
            }
            for (i, height) in [a, b].into_iter().enumerate() {
                // The higher node is entered first, so that both descents can reach the same node. A node that is not
                // in the table is an error.
                if let NextStep::Node(id) = next[i]
                    && height >= a.max(b)
                {
                    down[i].segment = part;
                    next[i] = down[i].enter_child(id)?;
                    part = down[i].segment.clone();
                }
            }
        }
    }

    /// True if both sides go on with the same keys and values.
    fn same_place(&self, down: &[Descent<'_, '_>; 2], next: [NextStep; 2]) -> bool {
        let [NextStep::Node(a), NextStep::Node(b)] = next else { return next == [NextStep::End; 2] };
        if a != b || down[0].lens.shortest() != down[1].lens.shortest() {
            return false;
        }
        let [before, after] = &self.sides;
        if Arc::ptr_eq(&before.view.tree, &after.view.tree) {
            return true;
        }
        match (before.entry(next[0]), after.entry(next[1])) {
            (Some(a), Some(b)) => a.height == 0 && b.height == 0 && same_version(&a.loc, &b.loc),
            _ => false,
        }
    }

    /// The work for a place that both sides reach, if that is known without descending further.
    fn above(&self, down: &mut [Descent<'_, '_>; 2], next: [NextStep; 2]) -> Option<DiffWork> {
        let above = Above::find(down)?;
        let is_end = next == [NextStep::End; 2];
        if above.named() == 0 && above.agree() {
            return Some(DiffWork::Nothing);
        }
        let sparse = match is_end {
            true => above.named().saturating_mul(SHARED_PER_OTHER_ENTRY) < above.shared(),
            false => above.named() <= MAX_ENTRIES_ABOVE,
        };
        (sparse && above.agree()).then(|| DiffWork::some(down, above, is_end))
    }
}

fn same_version(a: &Loc, b: &Loc) -> bool {
    match (a, b) {
        (Loc::Dirty(a), Loc::Dirty(b)) => Arc::ptr_eq(a, b),
        (Loc::Stored(a), Loc::Stored(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}
