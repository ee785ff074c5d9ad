//! What a merge of two runs reads: of each run the pages in whose range the other has keys, those that lie
//! side by side with one request.
//!
//! A leaf takes in messages from all over its range, as a rule, so most of its pages are opened, and written
//! anew: a request for each would be thirty times as many. They are read past the cache, which has better to
//! keep. Pages that the other run does not touch are not read. Where one of its pages is not in memory and
//! spans many of this run's, that is a guess by the number of its entries: a page of which nothing is taken
//! then may be read once more, when it is copied. Memory: one request for each of two runs, of a node's size
//! at most, packed and unpacked.

use std::sync::Arc;

use crate::{
    error::Result,
    key::compare_joined,
    node::{PageLoc, PageRef, Run, page::Page},
    store::{page_id::PageId, pager::Pager},
};

/// Entries for each page that it spans with which a page that is not at hand is taken to touch all of them.
const DENSE_ENTRIES: usize = 4;

/// The pages of a run, for a merge with another one.
pub(crate) struct MergeReadahead<'a> {
    run: &'a Run,
    other: &'a Run,
    pager: &'a Pager,
    /// What the last request brought.
    batch: Vec<(PageId, Arc<Page>)>,
}

impl<'a> MergeReadahead<'a> {
    pub fn new(run: &'a Run, other: &'a Run, pager: &'a Pager) -> Self {
        Self { run, other, pager, batch: Vec::new() }
    }

    /// Page `i` of the run, which is `page`. At most one read.
    pub fn page(&mut self, i: usize, page: &PageRef) -> Result<Arc<Page>> {
        if let Some(found) = self.read_before(page) {
            return Ok(found);
        }
        let follow = self.run.pages.get(i + 1..).unwrap_or_default();
        let follow = follow.iter().take_while(|page| self.is_touched(page));
        let batch =
            self.pager.read_for_the_last_time(std::iter::once(page).chain(follow), self.pager.node_size());
        self.batch = batch;
        match self.read_before(page) {
            Some(read) => Ok(read),
            None => self.pager.page(None, page),
        }
    }

    fn read_before(&self, page: &PageRef) -> Option<Arc<Page>> {
        let piece = PageId::of(None, page)?;
        let i = self.batch.binary_search_by_key(&piece, |(piece, _)| *piece).ok()?;
        self.batch.get(i).map(|(_, page)| page.clone())
    }

    /// True if the other run has a key within the range of `page`, as far as can be told without reading.
    fn is_touched(&self, page: &PageRef) -> bool {
        let (first, last) = (page.first_key(), page.last_key());
        let Some(theirs) = self.other.pages.get(self.other.page_from(&first)) else { return false };
        if compare_joined(&theirs.prefix, &theirs.first, &last).is_gt() {
            return false;
        }
        let begins_or_ends_here = compare_joined(&theirs.prefix, &theirs.first, &first).is_ge()
            || compare_joined(&theirs.prefix, &theirs.last, &last).is_le();
        match &theirs.loc {
            _ if begins_or_ends_here => true,
            PageLoc::Mem(loaded) => {
                let next = theirs.search(loaded, &first).0;
                next < loaded.len() && theirs.key(loaded, next) <= last
            }
            PageLoc::Home(_) | PageLoc::Foreign(..) => {
                let spanned =
                    self.run.page_from(&theirs.last_key()) - self.run.page_from(&theirs.first_key());
                theirs.count as usize >= DENSE_ENTRIES * spanned
            }
        }
    }
}
