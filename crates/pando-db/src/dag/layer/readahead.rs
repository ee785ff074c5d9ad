//! Read-ahead for a merge of two runs: of each run, the pages in whose range the other run has keys are read,
//! adjacent ones with one request.
//!
//! As a rule a leaf takes in messages from all over its range, so most of its pages are read and written anew; one
//! request a page would be about thirty times as many. The pages bypass the cache, because they are not read again.
//! Pages whose range has no key of the other run are not read. If a page of the other run is not in memory and spans
//! many pages of this run, whether it has keys in the range of one of them is guessed from the number of its entries.
//! A page that is read because of a wrong guess may be read once more, when it is copied. Memory: one request for
//! each of the two runs, of at most a node's size, compressed and uncompressed.

use std::sync::Arc;

use crate::{
    error::Result,
    key::compare_joined,
    node::{PageLoc, PageRef, Run, page::Page},
    store::{
        page_id::PageId,
        pager::{Pager, described::if_described},
    },
};

/// A page that is not in memory is taken to have keys in each page that it spans, if it has at least this many
/// entries for each.
const DENSE_ENTRIES: usize = 4;

/// The pages of a run, for a merge with another one.
pub(crate) struct MergeReadahead<'a> {
    run: &'a Run,
    other: &'a Run,
    pager: &'a Pager,
    /// The pages that the last request has read.
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
        self.batch.get(i).and_then(|(_, found)| if_described(None, page, found.clone()))
    }

    /// Whether the other run has a key within the range of `page`; a guess where that cannot be told without a read.
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
