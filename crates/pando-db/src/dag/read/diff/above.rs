//! What waits above a place to which both sides of a difference have come, and what of it both share.
//!
//! A page (or a table) that both sides show by equal maps says the same on both. If the order of such pages is the
//! same too, keys that nothing else names have the same value on both sides, since what is below is the same: only
//! keys in other pages can differ. Changes of all values of a range are compared as a whole; where there are any,
//! the part is narrowed so that each covers all of it, and no page counts as shared, because what a change does to a
//! point depends on which of them came first.
//!
//! Pure: reads headers at hand, no pages.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::read::{
        block::PageLens,
        scan::{Descent, FoundSource},
        source::{RunAt, pages_in},
    },
    key::{Lens, Span, behind},
    node::{PageLoc, UpdateMsg, ranged::clip},
    store::page_id::PageId,
};

/// Entries that wait above a shared node up to which they are resolved one by one; if more do, they are parted
/// among its children.
pub(super) const MAX_ENTRIES_ABOVE: usize = 4096;

/// What names a page or table, and how its keys look: equal names say the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    place: Place,
    map: (Bytes, Bytes),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Stored(PageId),
    /// An address: what is there lives as long as the view.
    Memory(usize),
}

/// A page, or the points of a table.
struct Item {
    name: Name,
    /// Which source of its side it belongs to; 0 is the newest.
    source: usize,
    /// Which page of its run; none for a table.
    page: Option<usize>,
    /// Entries, or those of a table up to a little more than [`MAX_ENTRIES_ABOVE`].
    count: usize,
    /// Where its keys are, without prefix.
    keys: Span,
    shared: bool,
}

/// What a side says about a part.
#[derive(Default)]
struct Said {
    items: Vec<Item>,
    /// Changes of all values of the part, oldest first.
    changes: Vec<Bytes>,
}

/// What both sides say about a part.
pub(super) struct Above {
    sides: [Said; 2],
}

/// Which pages of a run, or that a table, are to be looked at.
pub(super) enum MessagesAbove {
    Table,
    Pages(Range<usize>),
}

impl Above {
    /// Looks at what both descents have met, and narrows their part to where all changes of ranges cover it;
    /// nothing if the headers contradict themselves, which the read of the pages will find.
    pub fn find(down: &mut [Descent<'_, '_>; 2]) -> Option<Self> {
        let mut narrowed = down[0].segment.clone();
        for side in down.iter() {
            for edge in updates(side).iter().flat_map(|(_, update)| bounds_of(update)) {
                if edge > narrowed.lo && narrowed.is_above(&edge) {
                    narrowed.hi = Some(edge);
                }
            }
        }
        down.iter_mut().for_each(|side| side.segment = narrowed.clone());
        let mut sides = [said(&down[0])?, said(&down[1])?];
        if sides.iter().all(|side| side.changes.is_empty()) {
            mark_shared(&mut sides);
        }
        Some(Self { sides })
    }

    /// True if changes of ranges do the same on both sides.
    pub fn agree(&self) -> bool {
        self.sides[0].changes == self.sides[1].changes
    }

    /// True if there are changes of ranges.
    pub fn has_changes(&self) -> bool {
        self.sides.iter().any(|side| !side.changes.is_empty())
    }

    /// Entries that may be of one side alone.
    pub fn named(&self) -> usize {
        self.count(false)
    }

    /// Entries of pages that both sides share, on both.
    pub fn shared(&self) -> usize {
        self.count(true)
    }

    fn count(&self, shared: bool) -> usize {
        let items = self.sides.iter().flat_map(|side| &side.items).filter(|item| item.shared == shared);
        items.fold(0, |sum: usize, item| sum.saturating_add(item.count))
    }

    /// The pieces of a side that the other may not have: by source, newest first.
    pub fn pieces(&self, side: usize) -> Vec<(usize, MessagesAbove)> {
        let mut pieces: Vec<(usize, MessagesAbove)> = Vec::new();
        for item in self.sides.get(side).into_iter().flat_map(|side| &side.items) {
            match (item.page, pieces.last_mut()) {
                _ if item.shared => (),
                (None, _) => pieces.push((item.source, MessagesAbove::Table)),
                (Some(page), Some((source, MessagesAbove::Pages(pages))))
                    if *source == item.source && pages.end == page =>
                {
                    pages.end += 1;
                }
                (Some(page), _) => pieces.push((item.source, MessagesAbove::Pages(page..page + 1))),
            }
        }
        pieces
    }

    /// Where keys of shared pages are: disjoint, ascending.
    pub fn shared_keys(&self) -> Vec<Span> {
        let mut spans: Vec<Span> =
            self.sides[0].items.iter().filter(|item| item.shared).map(|item| item.keys.clone()).collect();
        spans.sort_by(|a, b| a.lo.cmp(&b.lo));
        let mut out: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match out.last_mut() {
                Some(last) if last.hi.as_ref().is_none_or(|hi| *hi >= span.lo) => {
                    last.hi = last.hi.take().zip(span.hi).map(|(a, b)| a.max(b));
                }
                _ => out.push(span),
            }
        }
        out
    }
}

/// Marks the items that both sides share in the same order.
fn mark_shared([before, after]: &mut [Said; 2]) {
    let mut names: BTreeMap<&Name, usize> = BTreeMap::new();
    for (i, item) in before.items.iter().enumerate() {
        names.insert(&item.name, i);
    }
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for (j, item) in after.items.iter().enumerate() {
        // What stands twice on a side counts once.
        pairs.extend(names.remove(&item.name).map(|i| (i, j)));
    }
    let mut order: Vec<(usize, usize)> =
        pairs.iter().map(|(i, j)| (before.items[*i].source, after.items[*j].source)).collect();
    order.sort_unstable();
    // Items of one source have different keys: among them the order does not matter.
    let (mut group, mut newest) = (None, 0);
    let mut highest = 0;
    for (a, b) in order {
        if group != Some(a) {
            (group, newest) = (Some(a), highest);
        }
        if b < newest {
            return;
        }
        highest = highest.max(b);
    }
    for (i, j) in pairs {
        before.items[i].shared = true;
        after.items[j].shared = true;
    }
}

fn bounds_of(update: &UpdateMsg) -> impl Iterator<Item = Bytes> {
    std::iter::once(update.span.lo.clone()).chain(update.span.hi.clone())
}

/// The changes of ranges in the part, without prefix, by source.
fn updates(side: &Descent<'_, '_>) -> Vec<(usize, UpdateMsg)> {
    let mut out = Vec::new();
    for (i, source) in side.sources.iter().enumerate() {
        let found = match source {
            FoundSource::Table(table, lens) => {
                let local = lens.apply_span(&side.segment);
                let back = lens.inverse();
                clip(&table.updates_in(&local), &local).iter().map(|update| update.through(&back)).collect()
            }
            FoundSource::Run(at, lens) => at.updates(lens, &lens.apply_span(&side.segment)),
        };
        out.extend(found.into_iter().map(|update| (i, update)));
    }
    out
}

fn said(side: &Descent<'_, '_>) -> Option<Said> {
    let mut said = Said::default();
    for (source, found) in side.sources.iter().enumerate() {
        match found {
            FoundSource::Table(table, lens) => {
                let local = lens.apply_span(&side.segment);
                let count = table.points_in(&local).take(MAX_ENTRIES_ABOVE + 1).count();
                if count > 0 {
                    let map = lens.shortest();
                    let place = Place::Memory(Arc::as_ptr(table) as usize);
                    let name = Name { place, map: (map.strip, map.prepend) };
                    let keys = side.segment.clone();
                    said.items.push(Item { name, source, page: None, count, keys, shared: false });
                }
            }
            FoundSource::Run(at, lens) => {
                let local = lens.apply_span(&side.segment);
                let run = at.run()?;
                for page in pages_in(run, &local) {
                    said.items.extend(page_item(at, lens, &local, source, page)?);
                }
            }
        }
    }
    let mut changes = updates(side);
    // Oldest first; of each source there is one, since it covers the part.
    changes.reverse();
    said.changes = changes.into_iter().flat_map(|(_, update)| update.ops).collect();
    Some(said)
}

/// A page as an item, if it may hold keys of the part.
fn page_item(at: &RunAt, lens: &Lens, local: &Span, source: usize, i: usize) -> Option<Option<Item>> {
    let page = at.run()?.pages.get(i)?;
    let place = match (&page.loc, PageId::of(at.home.as_ref(), page)) {
        (_, Some(id)) => Place::Stored(id),
        (PageLoc::Mem(memory), None) => Place::Memory(Arc::as_ptr(memory) as usize),
        _ => return None,
    };
    let name = Name { place, map: PageLens::through(lens, page).ok()?.shortest() };
    let held = Span { lo: page.first_key(), hi: Some(behind(&page.last_key())) };
    Some(held.intersect(local).map(|held| Item {
        name,
        source,
        page: Some(i),
        count: page.count as usize,
        keys: lens.inverse().apply_span(&held),
        shared: false,
    }))
}
