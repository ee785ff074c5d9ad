//! What comes into the cache: nodes and pages that were written, and pages that were read.
//!
//! Guarantees: no I/O. May use: what the pager may.

use std::sync::Arc;

use crate::{
    error::Result,
    node::{Node, PageLoc, Segment, page::Page, stored::Stored},
    space::Extent,
    store::{cache_key::CacheKey, cached::Cached, page_id::PageId, pager::Pager, written::Written},
};

impl Pager {
    /// Pages of bulk values that were not read since they were written have so much memory at most.
    pub fn bound_written(mut self, most_bytes: Option<u64>) -> Self {
        self.written = most_bytes.map(Written::new);
        self
    }

    /// Takes a page that was read, and not kept, into the cache.
    pub fn keep(&self, PageId(key): PageId, page: Arc<Page>) {
        self.insert(key, &page);
    }

    /// A page in the cache. If it was only written so far, it counts as read from now on, and is kept like others.
    pub(super) fn cached_page(&self, key: &CacheKey) -> Option<Arc<Page>> {
        match self.cache.get(key)? {
            Cached::Page(page) => Some(page),
            Cached::Written(page) => {
                self.cache.insert(*key, Cached::Page(page.clone()));
                Some(page)
            }
            Cached::Header(_) => None,
        }
    }

    /// Takes a page into the cache, in memory of its own.
    pub(super) fn insert(&self, key: CacheKey, page: &Arc<Page>) {
        self.cache.insert(key, Cached::Page(page.clone().own()));
    }

    /// Takes a node that was just written into the cache, pages that are in memory included, so
    /// that a checkpoint does not make what is hot cold.
    pub fn admit(&self, place: &Stored, dirty: &Node, stored: &Node) -> Result<()> {
        for (old, new) in dirty.pages().zip(stored.pages()) {
            if let (PageLoc::Mem(page), PageLoc::Home(segment)) = (&old.loc, &new.loc) {
                self.admit_page(place.part(*segment)?, *segment, page);
            }
        }
        let key = CacheKey { extent: place.head()?.id, offset: 0 };
        self.cache.insert(key, Cached::Header(Arc::new(stored.clone())));
        Ok(())
    }

    /// Takes a page that was just written into the cache.
    fn admit_page(&self, extent: &Extent, segment: Segment, page: &Arc<Page>) {
        let key = CacheKey { extent: extent.id, offset: segment.offset };
        self.cache.insert(key, Cached::Page(page.clone()));
    }

    /// The same of one whose values came in bulk: for a while only, where [`Pager::bound_written`] says so.
    pub fn admit_written(&self, extent: &Extent, segment: Segment, page: &Arc<Page>) {
        let Some(written) = &self.written else { return self.admit_page(extent, segment, page) };
        let key = CacheKey { extent: extent.id, offset: segment.offset };
        self.cache.insert(key, Cached::Written(page.clone()));
        for old in written.note(key, page.len(), page.memory() as u64) {
            self.cache.remove_if(&old, |found| matches!(found, Cached::Written(_)));
        }
    }
}
