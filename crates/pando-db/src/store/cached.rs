//! What the cache of the pager holds: headers and pages, weighed by their memory. May use: nodes and pages.

use std::sync::Arc;

use quick_cache::Weighter;

use crate::{
    node::{Node, page::Page},
    store::cache_key::CacheKey,
};

/// Memory of an entry beside that of what it holds, in bytes, about.
const CACHED_ITEM_BYTES: u64 = 128;

/// Whether the cache learns of the pages that a request brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Keep all pages.
    Always,
    /// Keep pages that were read in this way before: see `GhostList`.
    Again,
    /// Keep none.
    Never,
    /// Keep pages when a thread asks for them: see `InFlight`.
    Ahead,
    /// As `Ahead`, and the caller takes all of them now: for a caller above which something else caches what it reads.
    Once,
}

#[derive(Clone)]
pub(super) enum Cached {
    Header(Arc<Node>),
    Page(Arc<Page>),
    /// A page of values that was written and was not read since.
    Written(Arc<Page>),
}

impl Cached {
    pub fn is_page(&self) -> bool {
        matches!(self, Self::Page(_) | Self::Written(_))
    }
}

/// The weight of an entry is its memory in bytes.
#[derive(Clone)]
pub(super) struct CachedWeighter;

impl Weighter<CacheKey, Cached> for CachedWeighter {
    fn weight(&self, _: &CacheKey, value: &Cached) -> u64 {
        CACHED_ITEM_BYTES
            + match value {
                Cached::Header(node) => node.memory() as u64,
                Cached::Page(page) | Cached::Written(page) => page.memory() as u64,
            }
    }
}
