//! What the cache of the pager holds: headers and pages, weighed by their memory. May use: nodes and pages.

use std::sync::Arc;

use quick_cache::Weighter;

use crate::{
    node::{Node, page::Page},
    store::cache_key::CacheKey,
};

/// Memory of an entry beside that of what it holds, in bytes, about.
const ENTRY_BYTES: u64 = 128;

#[derive(Clone)]
pub(super) enum Cached {
    Header(Arc<Node>),
    Page(Arc<Page>),
}

/// The weight of an entry is its memory in bytes.
#[derive(Clone)]
pub(super) struct ByBytes;

impl Weighter<CacheKey, Cached> for ByBytes {
    fn weight(&self, _: &CacheKey, value: &Cached) -> u64 {
        ENTRY_BYTES
            + match value {
                Cached::Header(node) => node.memory() as u64,
                Cached::Page(page) => page.memory() as u64,
            }
    }
}
