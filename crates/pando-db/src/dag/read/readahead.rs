//! Readahead for scans: the next pages of a run lie side by side on the device and are read with one request, and so
//! are the messages of an interior node, for each place where they lie.
//!
//! The longer a scan is, the more it reads ahead: a short one reads only what it needs (two pages with one request if
//! its range ends in the second), and a long one at most twice that. A scan that will take its whole range uses large
//! requests from the beginning. A page stays with the scan until the scan has passed it, so it is read once. After
//! [`MAX_REQUEST_BYTES`] bytes, pages that a scan reads for the first time are not cached ([`Keep::Again`]), so that
//! a long scan uses little memory. Memory: [`MAX_REQUESTS`] requests of at most [`MAX_REQUEST_BYTES`] bytes. For
//! short scans one behind the other the pager makes requests of several pages: see [`Pager::follow`].

use std::{collections::VecDeque, sync::Arc};

use crate::{
    error::Result,
    key::Span,
    node::{PageRef, page::Page, stored::Stored},
    store::{
        page_id::{PageId, extent_of},
        pager::{Keep, Pager, described::if_described},
    },
};

/// Bytes of the first request of a scan that reads ahead.
const FIRST_BYTES: usize = 64 << 10;
/// Most bytes of a request of a scan.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Requests whose pages are kept: a scan has some runs at hand, one or more a level.
const MAX_REQUESTS: usize = 8;

/// Pages that one request brought, in the order of their places.
struct FetchedPages {
    pages: Vec<(PageId, Arc<Page>)>,
    /// What was taken last, if pages are wanted one by one: it has gone by when another one is.
    taken: Option<PageId>,
}

impl FetchedPages {
    fn find(&self, id: &PageId) -> Option<usize> {
        self.pages.binary_search_by_key(id, |(id, _)| *id).ok()
    }

    /// True if nothing is left of it but what was taken last.
    fn is_used_up(&self) -> bool {
        self.pages.iter().all(|(id, _)| self.taken.as_ref() == Some(id))
    }
}

/// The pages that a scan has read ahead.
#[derive(Default)]
pub(crate) struct ScanReadahead {
    /// The pages are read for other readers, which will ask for them later.
    for_others: bool,
    /// Bytes of the next request; 0: a page at a time.
    limit: usize,
    /// Bytes of the pages that were asked for so far.
    asked_bytes: usize,
    /// The one used last is last.
    batches: VecDeque<FetchedPages>,
    /// The keys, as the scan sees them, of the last page or header that could not be read.
    pub unread: Option<Box<Span>>,
}

impl ScanReadahead {
    /// For a scan that only brings pages into memory, with the largest requests.
    pub fn for_others() -> Self {
        Self { for_others: true, limit: MAX_REQUEST_BYTES, ..Self::default() }
    }

    /// For a scan that will take its whole range.
    pub fn for_all() -> Self {
        Self { limit: MAX_REQUEST_BYTES, ..Self::default() }
    }

    /// True if nothing was asked for so far, and what is asked for is wanted now.
    pub fn is_new(&self) -> bool {
        self.asked_bytes == 0 && !self.for_others
    }

    /// Bytes of the pages that were asked for so far, unpacked.
    pub fn asked_bytes(&self) -> usize {
        self.asked_bytes
    }

    /// Notes that the scan continues, so that it reads more ahead.
    fn grow(&mut self) {
        self.limit = (self.limit * 2).clamp(FIRST_BYTES, MAX_REQUEST_BYTES);
    }

    /// The page, which is the first of `follow`, pages of one run that a scan will want if it goes on. Those
    /// are read with it if the scan has gone on before, or if they are two, as in a short range. With
    /// `one_by_one` it leaves a page for good when it goes on to the next. At most one read.
    pub fn load<'p>(
        &mut self,
        home: Option<&Arc<Stored>>,
        page: &PageRef,
        one_by_one: bool,
        follow: impl Iterator<Item = &'p PageRef> + Clone,
        pager: &Pager,
    ) -> Result<Arc<Page>> {
        let ends_in_second = follow.clone().take(3).count() == 2;
        let limit = if ends_in_second { self.limit.max(FIRST_BYTES) } else { self.limit };
        self.fetch_up_to(limit, home, follow, pager);
        let ahead = self.page(home, page, one_by_one);
        let loaded = match ahead.and_then(|found| if_described(home, page, found)) {
            Some(loaded) => loaded,
            None => pager.page(home, page)?,
        };
        self.grow();
        self.asked_bytes = self.asked_bytes.saturating_add(page.raw as usize);
        Ok(loaded)
    }

    /// Reads what waits in an interior node for a scan that goes on: of each place where pages of `now` lie,
    /// those of the edge that is next, with what follows there of `later`, which begins with the same pages.
    /// A hint: an error is left to the read that needs the page.
    pub fn fetch_messages<'p>(
        &mut self,
        home: Option<&Arc<Stored>>,
        now: impl Iterator<Item = &'p PageRef>,
        later: impl Iterator<Item = &'p PageRef> + Clone,
        pager: &Pager,
    ) {
        if self.limit == 0 {
            return;
        }
        // Goes through `later` once, beside `now`: each descent of a scan comes by here.
        let mut rest = later;
        for page in now {
            if let Some(extent) = extent_of(home, page) {
                let there = rest.clone();
                let there = there.filter(|other| extent_of(home, other).is_some_and(|e| e.id == extent.id));
                self.fetch_up_to(self.limit, home, there, pager);
            }
            rest.next();
        }
    }

    fn fetch_up_to<'p>(
        &mut self,
        limit: usize,
        home: Option<&Arc<Stored>>,
        wanted: impl Iterator<Item = &'p PageRef>,
        pager: &Pager,
    ) {
        if limit == 0 {
            return;
        }
        let mut wanted = wanted.peekable();
        let Some(first) = wanted.peek() else { return };
        if self.page(home, first, false).is_some() {
            return;
        }
        let keep = match self.for_others {
            true => Keep::Ahead,
            false if self.asked_bytes < MAX_REQUEST_BYTES => Keep::Always,
            false => Keep::Again,
        };
        let pages = pager.read_side_by_side(home, wanted, limit, keep);
        if pages.is_empty() {
            return;
        }
        if self.batches.len() == MAX_REQUESTS {
            match self.batches.iter().position(FetchedPages::is_used_up) {
                Some(i) => drop(self.batches.remove(i)),
                // Pages that are dropped before they were used stay in the cache.
                None => {
                    let dropped = self.batches.pop_front().into_iter().flat_map(|batch| batch.pages);
                    dropped.for_each(|(id, page)| pager.keep(id, page));
                }
            }
        }
        self.batches.push_back(FetchedPages { pages, taken: None });
    }

    /// The page, if it was read ahead; what is passed by then is dropped if pages are wanted `one_by_one`.
    fn page(&mut self, home: Option<&Arc<Stored>>, page: &PageRef, one_by_one: bool) -> Option<Arc<Page>> {
        let id = PageId::of(home, page)?;
        let (i, at) = self.batches.iter().enumerate().rev().find_map(|(i, b)| Some((i, b.find(&id)?)))?;
        let mut batch = self.batches.remove(i)?;
        let found = batch.pages.get(at).map(|(_, page)| page.clone());
        if one_by_one
            && let Some(left) = batch.taken.replace(id).filter(|left| *left != id)
            && let Some(at) = batch.find(&left)
        {
            // The scan has left it for good, so its memory can be used again.
            batch.pages.remove(at);
        }
        self.batches.push_back(batch);
        found
    }
}
