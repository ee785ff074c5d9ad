//! Counts extents of pages that several nodes may use as the allocator does. Such an extent is freed as a whole when
//! the last node that uses any of it is removed. So the walk over the nodes under a prefix notes for each use of an
//! extent whether it is removed. At the end one pass over the translation table counts all uses: if all of them are
//! removed, the extent is freed. The table has the uses in the version that is walked; reference counts in memory
//! would include those of older versions. The pass does no I/O (0.07 s for a million nodes), and is left out if no
//! use goes.
//!
//! Guarantees: no extent is counted twice. May use: the table, and the places of pages.

use std::collections::HashMap;

use crate::{
    node::{PageLoc, PageRef},
    space::Extent,
    store::{
        pager::Handle,
        table::{Entry, Loc, Table},
    },
};

/// The extents of pages under a prefix, by id, and what would happen to each.
#[derive(Default)]
pub(crate) struct Extents {
    claims: HashMap<u64, ExtentUse>,
}

/// What would happen to one extent. Sizes are bytes.
#[derive(Default)]
struct ExtentUse {
    len: u64,
    /// How many nodes would no longer use it.
    let_go: u64,
    /// Whether one of these nodes would be rewritten for that.
    rewritten: bool,
    /// Bytes that these nodes still need, and would copy to another place.
    copied: u64,
    /// Bytes of its pages that would stay and that the prefix shows.
    seen: u64,
    /// Whether it counts as a whole, because all that one of its nodes has belongs to the prefix.
    whole: bool,
}

/// The sum over all extents of pages, in bytes.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub exclusive: u64,
    pub shared: u64,
    /// The part of `exclusive` that is an estimate.
    pub estimated: u64,
}

impl Extents {
    fn claim(&mut self, extent: &Extent) -> &mut ExtentUse {
        let claim = self.claims.entry(extent.id).or_default();
        claim.len = extent.owned_bytes();
        claim
    }

    /// Notes that a node that uses the extent would be removed. `unwritten` says that the node is not written yet, so
    /// that its pages may be stored elsewhere.
    pub fn goes(&mut self, extent: &Extent, unwritten: bool) {
        let claim = self.claim(extent);
        claim.let_go += 1;
        claim.whole = true;
        claim.rewritten |= unwritten;
    }

    /// Notes that a node would be rewritten without the extent. It would copy `copied` bytes of it, of which the prefix
    /// shows `seen`.
    pub fn is_left(&mut self, extent: &Extent, copied: u64, seen: u64) {
        let claim = self.claim(extent);
        claim.let_go += 1;
        claim.rewritten = true;
        claim.copied = claim.copied.saturating_add(copied);
        claim.seen = claim.seen.saturating_add(seen);
    }

    /// Notes that a node would still use the extent. The prefix shows `seen` bytes of its pages there, or all of the
    /// node.
    pub fn stays(&mut self, extent: &Extent, seen: u64, all: bool) {
        let claim = self.claim(extent);
        claim.seen = claim.seen.saturating_add(seen);
        claim.whole |= all;
    }

    /// The sums for the version of the store that has this table. O(entries) if any node would no longer use an extent.
    pub fn sum(&self, table: &Table) -> Sum {
        let mut uses: HashMap<u64, u64> = HashMap::new();
        if self.claims.values().any(|claim| claim.let_go > 0) {
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
        let mut sum = Sum::default();
        for (id, claim) in &self.claims {
            if claim.let_go > 0 && claim.let_go >= uses.get(id).copied().unwrap_or(0) {
                let copied = claim.copied.min(claim.len);
                let back = claim.len - copied;
                sum.exclusive += back;
                sum.estimated += if claim.rewritten { back } else { 0 };
                sum.shared += claim.seen.min(copied);
            } else {
                sum.shared += if claim.whole { claim.len } else { claim.seen.min(claim.len) };
            }
        }
        sum
    }
}

/// The extents of pages that a node uses, each once.
pub(crate) fn of_node(entry: &Entry) -> Vec<&Extent> {
    let mut found: Vec<&Extent> = Vec::new();
    each_of(entry, |extent| {
        if !found.iter().any(|known| known.id == extent.id) {
            found.push(extent);
        }
    });
    found
}

/// The extent of pages in which a page lies; `None` if it lies in the space of its node, or in memory.
pub(crate) fn of_page<'a>(handle: &'a Handle, page: &'a PageRef) -> Option<&'a Extent> {
    let extent = match &page.loc {
        PageLoc::Mem(_) => None,
        PageLoc::Home(segment) => handle.home.as_ref().and_then(|stored| stored.part(*segment).ok()),
        PageLoc::Foreign(extent, _) => Some(extent),
    };
    extent.map(|extent| &**extent).filter(|extent| extent.shared)
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
    use std::sync::Arc;

    use super::*;
    use crate::{
        device::MemDevice,
        key::{Longest, Span},
        node::{Body, Node, Segment, message::Msg, page::Builder, stored::Stored},
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

    fn sum(exclusive: u64, shared: u64, estimated: u64) -> Sum {
        Sum { exclusive, shared, estimated }
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
        extents.goes(&one, false);
        assert_eq!(extents.sum(&older), sum(0, 8192, 0));
        assert_eq!(extents.sum(&table), sum(8192, 0, 0));
        extents.goes(&other, false);
        assert_eq!(extents.sum(&table), sum(8192, 12288, 0), "a node in memory holds it");
        // The node in memory would copy what it needs of it, of which the prefix shows a part.
        extents.is_left(&other, 1000, 300);
        assert_eq!(extents.sum(&table), sum(8192 + 11288, 300, 11288));
        assert_eq!(extents.sum(&older), sum(11288, 8192 + 300, 11288));
    }

    #[test]
    fn of_an_extent_that_stays_counts_what_is_seen_once_and_no_more_than_it_has() {
        let space = Space::new(Arc::new(MemDevice::new(1 << 20)), 0, 1 << 20);
        let extent = space.allocate_shared(8192).expect("room");
        let table = Table::default();
        let mut extents = Extents::default();
        extents.stays(&extent, 5000, false);
        assert_eq!(extents.sum(&table), sum(0, 5000, 0));
        extents.stays(&extent, 5000, false);
        assert_eq!(extents.sum(&table), sum(0, 8192, 0));
        let mut extents = Extents::default();
        extents.stays(&extent, 0, true);
        assert_eq!(extents.sum(&table), sum(0, 8192, 0));
    }
}
