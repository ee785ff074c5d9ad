//! Counts extents of pages that several nodes may use as the allocator does. Such an extent is freed as a whole when
//! the last node that uses any of it is removed. So the walk over the nodes under the prefixes notes for each use of an
//! extent with which group it is removed. At the end one pass over the translation table counts all uses: if all of
//! them are removed with one group, the extent is freed with it. The table has the uses in the version that is walked;
//! reference counts in memory would include those of older versions. The pass does no I/O (0.07 s for a million nodes),
//! and is left out if no use goes.
//!
//! Guarantees: no extent is counted twice. May use: the table, and the places of pages.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    db::api::usage::groups::{ShownBy, Sums},
    node::{PageLoc, PageRef, Segment},
    space::Extent,
    store::{
        pager::Handle,
        table::{Entry, Loc, Table},
    },
};

/// The extents of pages under the prefixes, by id, and what would happen to each.
#[derive(Default)]
pub(super) struct Extents {
    claims: HashMap<u64, ExtentUse>,
}

/// What would happen to one extent. Sizes are bytes.
#[derive(Default)]
struct ExtentUse {
    len: u64,
    /// By group, what happens if that is deleted.
    alone: BTreeMap<u32, ExtentAlone>,
    /// How many nodes use it that nothing shows any more.
    dead: u64,
    /// Bytes of its pages that each group shows.
    seen: Sums,
    /// The groups for which it counts as a whole, because all that one of its nodes has belongs to them.
    whole: ShownBy,
}

/// What would happen to an extent if one group were deleted.
#[derive(Default)]
struct ExtentAlone {
    /// How many nodes would no longer use it.
    let_go: u64,
    /// Whether one of these nodes would be rewritten for that.
    rewritten: bool,
    /// Bytes that these nodes still need, and would copy to another place.
    copied: u64,
}

/// The sums over all extents of pages, in bytes, by group.
#[derive(Default)]
pub(super) struct ExtentSums {
    pub exclusive: Sums,
    /// What counts at all.
    pub stored: Sums,
    /// The part of `exclusive` that is an estimate.
    pub estimated: Sums,
    /// What would be copied out of extents that stay, because others use them too.
    pub copied: Sums,
}

impl Extents {
    fn claim(&mut self, extent: &Extent) -> &mut ExtentUse {
        let claim = self.claims.entry(extent.id).or_default();
        claim.len = extent.owned_bytes();
        claim
    }

    /// Notes that a node that uses the extent would be removed with the group. `unwritten` says that the node is not
    /// written yet, so that its pages may be stored elsewhere.
    pub fn goes(&mut self, group: u32, extent: &Extent, unwritten: bool) {
        let claim = self.claim(extent);
        claim.whole = claim.whole.merged(&ShownBy::of(group, 1), true);
        let alone = claim.alone.entry(group).or_default();
        alone.let_go += 1;
        alone.rewritten |= unwritten;
    }

    /// Notes that a node that nothing shows any more uses the extent: it is in nobody's way.
    pub fn is_dead(&mut self, extent: &Extent) {
        self.claim(extent).dead += 1;
    }

    /// Notes that a node would be rewritten without the extent if the group were deleted. It would copy `copied` bytes
    /// of it. [`Extents::stays`] is called for it too.
    pub fn is_left(&mut self, group: u32, extent: &Extent, copied: u64) {
        let alone = self.claim(extent).alone.entry(group).or_default();
        alone.let_go += 1;
        alone.rewritten = true;
        alone.copied = alone.copied.saturating_add(copied);
    }

    /// Notes that a node uses the extent that would stay. Each group shows so many bytes of its pages there, and these
    /// `all` of the node.
    pub fn stays(&mut self, extent: &Extent, seen: &[(ShownBy, u64)], all: &ShownBy) {
        let claim = self.claim(extent);
        seen.iter().for_each(|(groups, bytes)| claim.seen.add(groups, *bytes));
        claim.whole = claim.whole.merged(all, true);
    }

    /// The sums for the version of the store that has this table. O(entries) if any node would no longer use an extent.
    pub fn sum(&self, table: &Table) -> ExtentSums {
        let mut uses: HashMap<u64, u64> = HashMap::new();
        if self.claims.values().any(|claim| !claim.alone.is_empty()) {
            let mut once = Vec::new();
            table.for_each(|_, entry| {
                once.clear();
                each_of(entry, |extent| {
                    if self.claims.contains_key(&extent.id) && !once.contains(&extent.id) {
                        once.push(extent.id);
                        *uses.entry(extent.id).or_default() += 1;
                    }
                });
            });
        }
        let mut sums = ExtentSums::default();
        for (id, claim) in &self.claims {
            let seen = claim.seen.groups();
            sums.stored.add(&claim.whole, claim.len);
            for run in seen.without(&claim.whole).listed() {
                sums.stored.add_run(run, run.times.min(claim.len));
            }
            for (group, alone) in &claim.alone {
                if alone.let_go + claim.dead < uses.get(id).copied().unwrap_or(0) {
                    sums.copied.add_one(*group, alone.copied);
                    continue;
                }
                let back = claim.len - alone.copied.min(claim.len);
                sums.exclusive.add_one(*group, back);
                sums.estimated.add_one(*group, if alone.rewritten { back } else { 0 });
                // What comes back is stored, also beside the pages that the group shows.
                if claim.whole.times(*group) == 0 {
                    sums.stored.add_one(*group, back.saturating_sub(seen.times(*group).min(claim.len)));
                }
            }
        }
        sums
    }
}

/// The extents of pages that a node uses, each once.
pub(super) fn of_node(entry: &Entry) -> Vec<&Extent> {
    let mut found: Vec<&Extent> = Vec::new();
    each_of(entry, |extent| {
        if !found.iter().any(|known| known.id == extent.id) {
            found.push(extent);
        }
    });
    found
}

/// The extent of pages in which a page lies; `None` if it lies in the space of its node, or in memory.
pub(super) fn of_page<'a>(handle: &'a Handle, page: &'a PageRef) -> Option<(&'a Arc<Extent>, Segment)> {
    let placed = match &page.loc {
        PageLoc::Mem(_) => None,
        PageLoc::Home(segment) => {
            let part = handle.home.as_ref().and_then(|stored| stored.part(*segment).ok());
            part.map(|extent| (extent, *segment))
        }
        PageLoc::Foreign(extent, segment) => Some((extent, *segment)),
    };
    placed.filter(|(extent, _)| extent.shared)
}

/// Calls `visit` for every extent of pages that a node uses, for some of them several times.
fn each_of<'a>(entry: &'a Entry, mut visit: impl FnMut(&'a Extent)) {
    match &entry.loc {
        Loc::Stored(stored) => stored.parts.iter().filter(|part| part.shared).for_each(|part| visit(part)),
        Loc::Dirty(node) => {
            for page in node.pages() {
                if let PageLoc::Foreign(extent, _) = &page.loc
                    && extent.shared
                {
                    visit(extent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::MemDevice,
        key::{Longest, Span},
        node::{Body, Node, message::Msg, page::Builder, stored::Stored},
        space::Space,
    };

    fn stored(parts: Vec<Arc<Extent>>) -> Entry {
        let stored = Stored { parts, header_len: 1, header_sum: 0 };
        Entry { count: 1, height: 0, longest: Longest::NONE, loc: Loc::Stored(Arc::new(stored)) }
    }

    /// A node in memory two of whose pages lie in `extent`.
    fn dirty(extent: &Arc<Extent>) -> Entry {
        let mut builder = Builder::default();
        builder.push(bytes::Bytes::from_static(b"key"), Msg::Delete);
        let mut page = PageRef::from_built(builder.finish().expect("not empty"));
        let segment = Segment { part: 0, offset: 0, len: 10, sum: 0, codec: 0 };
        page.loc = PageLoc::Foreign(extent.clone(), segment);
        let mut node = Node::empty_leaf(Span::all());
        let Body::Leaf(run) = &mut node.body else { panic!("a leaf") };
        run.pages = vec![page.clone(), page];
        Entry { count: 1, height: 0, longest: Longest::NONE, loc: Loc::Dirty(Arc::new(node)) }
    }

    /// Bytes of group 0: exclusive, shared, estimated.
    fn sum(extents: &Extents, table: &Table) -> (u64, u64, u64) {
        let sums = extents.sum(table);
        let first = |sums: Sums| sums.each(1)[0];
        let (exclusive, stored) = (first(sums.exclusive), first(sums.stored));
        (exclusive, stored - exclusive, first(sums.estimated))
    }

    fn show(bytes: u64) -> [(ShownBy, u64); 1] {
        [(ShownBy::of(0, 1), bytes)]
    }

    #[test]
    fn an_extent_goes_with_the_last_node_of_this_version() {
        let space = Space::new(Arc::new(MemDevice::new(1 << 20)), 0, 1 << 20);
        let own = || space.allocate(4096).expect("room");
        let (one, other) = (space.allocate_shared(8192), space.allocate_shared(12288));
        let (one, other) = (one.expect("room"), other.expect("room"));
        let mut table = Table::default();
        table.set(1, Some(stored(vec![own(), one.clone(), other.clone()])));
        table.set(2, Some(stored(vec![own(), one.clone(), one.clone()])));
        table.set(3, Some(dirty(&other)));
        // An older version has one user more.
        let older = table.clone();
        table.set(4, Some(stored(vec![own()])));
        table.set(2, Some(stored(vec![own()])));

        let mut extents = Extents::default();
        extents.goes(0, &one, false);
        assert_eq!(sum(&extents, &older), (0, 8192, 0));
        assert_eq!(sum(&extents, &table), (8192, 0, 0));
        extents.goes(0, &other, false);
        assert_eq!(sum(&extents, &table), (8192, 12288, 0), "a node in memory holds it");
        // The node in memory would copy what it needs of it.
        extents.is_left(0, &other, 1000);
        extents.stays(&other, &show(300), &ShownBy::default());
        assert_eq!(sum(&extents, &table), (8192 + 11288, 1000, 11288));
        assert_eq!(sum(&extents, &older), (11288, 8192 + 1000, 11288));
        // Each group for itself; what nothing shows any more holds nothing.
        let mut extents = Extents::default();
        extents.goes(1, &one, false);
        extents.goes(2, &one, false);
        assert_eq!(extents.sum(&older).exclusive.each(3), [0, 0, 0]);
        assert_eq!(extents.sum(&older).stored.each(3), [0, 8192, 8192]);
        extents.is_dead(&one);
        assert_eq!(extents.sum(&older).exclusive.each(3), [0, 8192, 8192]);
    }

    #[test]
    fn of_an_extent_that_stays_counts_what_is_seen_once_and_no_more_than_it_has() {
        let space = Space::new(Arc::new(MemDevice::new(1 << 20)), 0, 1 << 20);
        let extent = space.allocate_shared(8192).expect("room");
        let table = Table::default();
        let mut extents = Extents::default();
        extents.stays(&extent, &show(5000), &ShownBy::default());
        assert_eq!(sum(&extents, &table), (0, 5000, 0));
        extents.stays(&extent, &show(5000), &ShownBy::default());
        assert_eq!(sum(&extents, &table), (0, 8192, 0));
        let mut extents = Extents::default();
        extents.stays(&extent, &[], &ShownBy::of(0, 1));
        assert_eq!(sum(&extents, &table), (0, 8192, 0));
    }
}
