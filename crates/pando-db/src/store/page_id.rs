//! Where stored pages lie, and which of them one request brings.
//!
//! Pure: no I/O. May use: pages and extents.

use std::sync::Arc;

use crate::{
    device::BLOCK,
    node::{PageLoc, PageRef, Segment, stored::Stored},
    space::Extent,
    store::cache_key::CacheKey,
};

/// Names a stored page; pages of one extent are in the order of their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PageId(pub(super) CacheKey);

impl PageId {
    /// The name of a page of a node; none for one that is in memory.
    pub fn of(home: Option<&Arc<Stored>>, page: &PageRef) -> Option<Self> {
        let (extent, segment) = place(home, page)?;
        Some(PageId(CacheKey { extent: extent.id, offset: segment.offset }))
    }
}

/// The extent where a page is stored, if it is.
pub(crate) fn extent_of<'p>(home: Option<&'p Arc<Stored>>, page: &'p PageRef) -> Option<&'p Arc<Extent>> {
    place(home, page).map(|(extent, _)| extent)
}

/// Where a page is stored, if it is.
pub(super) fn place<'p>(
    home: Option<&'p Arc<Stored>>,
    page: &'p PageRef,
) -> Option<(&'p Arc<Extent>, Segment)> {
    match (&page.loc, home) {
        (PageLoc::Foreign(extent, segment), _) => Some((extent, *segment)),
        (PageLoc::Home(segment), Some(stored)) => Some((stored.part(*segment).ok()?, *segment)),
        (PageLoc::Home(_), None) | (PageLoc::Mem(_), _) => None,
    }
}

/// A page to be read.
pub(super) struct Wanted<'p> {
    pub page: &'p PageRef,
    pub segment: Segment,
    pub key: CacheKey,
    /// Byte of the device at which it begins.
    pub at: u64,
}

impl<'p> Wanted<'p> {
    /// A page that is stored, in one place.
    pub fn of(home: Option<&Arc<Stored>>, page: &'p PageRef) -> Option<Self> {
        let (extent, segment) = place(home, page)?;
        let key = CacheKey { extent: extent.id, offset: segment.offset };
        let at = extent.place(segment.offset.into(), segment.len.into())?;
        Some(Self { page, segment, key, at })
    }

    pub fn end(&self) -> u64 {
        self.at + u64::from(self.segment.len)
    }
}

/// The first of `pages`, and those right behind it that one request of up to `limit` bytes would bring as
/// well.
pub(super) fn side_by_side<'p>(
    home: Option<&Arc<Stored>>,
    pages: impl Iterator<Item = &'p PageRef>,
    limit: usize,
) -> Vec<Wanted<'p>> {
    let mut wanted: Vec<Wanted<'p>> = Vec::new();
    for page in pages {
        let Some(next) = Wanted::of(home, page) else { break };
        if let (Some(first), Some(last)) = (wanted.first(), wanted.last())
            && !is_in_one_request(first, last, &next, limit)
        {
            break;
        }
        wanted.push(next);
    }
    wanted
}

/// How many of the first of `wanted`, in the order of their places, one request of up to `limit` bytes brings. None
/// only of none.
pub(super) fn first_in_one_request(wanted: &[Wanted<'_>], limit: usize) -> usize {
    let Some(first) = wanted.first() else { return 0 };
    let pairs = wanted.iter().zip(wanted.iter().skip(1));
    1 + pairs.take_while(|(last, next)| is_in_one_request(first, last, next, limit)).count()
}

/// True if a request of up to `limit` bytes that brings the pages from `first` to `last` would bring `next` as well.
fn is_in_one_request(first: &Wanted<'_>, last: &Wanted<'_>, next: &Wanted<'_>, limit: usize) -> bool {
    // The next extent begins at a block, so a little may lie between.
    let follows = next.at >= last.end() && next.at - last.end() < BLOCK;
    follows && next.end() - first.at <= limit as u64
}
