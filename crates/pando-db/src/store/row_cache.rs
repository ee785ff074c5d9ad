//! A cache of single entries of stored pages: what a point query found in a page, or that it found nothing.
//!
//! Otherwise a small value that is read often would keep a whole page in memory, 300 times its size. An entry is
//! identified by the place of its page (the number of the extent, which is never reused within a process, and the
//! offset in it) and by the key as stored in the page. Stored pages never change. So no write, clone or delete has to
//! invalidate anything: a query finds a changed key first, in another page or in a memtable, and unused entries are
//! evicted. All paths to a shared page share its entries. Memory: [`RowCache::weight`], at most the given limit.
//! Takes no lock over I/O. May use: messages.

use std::hash::Hash;

use quick_cache::{
    Equivalent, OptionsBuilder, Weighter,
    sync::{Cache, DefaultLifecycle},
};

use crate::{
    node::message::Msg,
    store::cache_key::{CacheKey, Hashing},
};

/// Memory of an entry beside key and content, in bytes: the cache's slot, its share of tables that double,
/// two allocations.
const ROW_BYTES: usize = 192;
/// Bytes of the cache under one lock.
const ROW_SHARD_BYTES: u64 = 512 << 10;
/// Most locks of a cache.
const MAX_SHARDS: u64 = 64;
/// Largest key and content of an entry, as a part (1/n) of a page.
const ROW_PAGE_SHARE: usize = 8;
/// Bytes of key and content up to which an entry is small whatever the size of a page.
const SMALL_ROW_BYTES: usize = 192;

/// The name of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RowKey {
    page: CacheKey,
    suffix: Box<[u8]>,
}

/// A borrowed identifier, for a lookup.
struct RowRef<'k> {
    page: CacheKey,
    suffix: &'k [u8],
}

impl Hash for RowKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        RowRef { page: self.page, suffix: &self.suffix }.hash(state);
    }
}

impl Hash for RowRef<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.page.hash(state);
        self.suffix.hash(state);
    }
}

impl Equivalent<RowKey> for RowRef<'_> {
    fn equivalent(&self, key: &RowKey) -> bool {
        self.page == key.page && *self.suffix == *key.suffix
    }
}

/// A message as stored in a page; `None` if the page has none about the key.
type Row = Option<(u8, Box<[u8]>)>;

#[derive(Clone)]
struct RowWeighter;

impl Weighter<RowKey, Row> for RowWeighter {
    fn weight(&self, key: &RowKey, row: &Row) -> u64 {
        let content = row.as_ref().map_or(0, |(_, content)| content.len());
        (ROW_BYTES + key.suffix.len() + content) as u64
    }
}

/// Entries of pages.
pub(super) struct RowCache {
    rows: Cache<RowKey, Row, RowWeighter, Hashing>,
    /// Most bytes of key and content.
    longest: usize,
}

impl RowCache {
    /// A cache of `budget` bytes for entries of pages of `page_target` bytes.
    pub fn new(budget: u64, page_target: usize) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((budget / (2 * ROW_BYTES as u64)).max(64) as usize)
            .weight_capacity(budget)
            .shards((budget / ROW_SHARD_BYTES).clamp(2, MAX_SHARDS) as usize)
            .build()
            .unwrap_or_else(|e| unreachable!("all that has no default was given: {e}"));
        let rows =
            Cache::with_options(options, RowWeighter, Hashing::with_seed(2), DefaultLifecycle::default());
        Self { rows, longest: (page_target / ROW_PAGE_SHARE).max(SMALL_ROW_BYTES) }
    }

    /// What the page says about the key that is `suffix` in it: a message, or `Some(None)` for none. `None`
    /// if that is not known.
    pub fn get(&self, page: CacheKey, suffix: &[u8]) -> Option<Option<Msg>> {
        let row = self.rows.get(&RowRef { page, suffix })?;
        Some(row.map(|(kind, content)| Msg::decode(kind, content.into())))
    }

    /// Notes what the page says about a key, if that is small: kind and content of the message as they stand
    /// there. True if it was.
    pub fn insert(&self, page: CacheKey, suffix: &[u8], found: Option<(u8, &[u8])>) -> bool {
        let is_small = suffix.len() + found.map_or(0, |(_, content)| content.len()) <= self.longest;
        if is_small {
            let row = found.map(|(kind, content)| (kind, content.into()));
            self.rows.insert(RowKey { page, suffix: suffix.into() }, row);
        }
        is_small
    }

    /// Bytes of memory. Takes a lock of each of its parts.
    pub fn weight(&self) -> u64 {
        self.rows.weight()
    }

    /// What it may take from now on, in bytes. What is over goes at once.
    pub fn set_capacity(&self, budget: u64) {
        self.rows.set_capacity(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(extent: u64, offset: u32) -> CacheKey {
        CacheKey { extent, offset }
    }

    #[test]
    fn an_entry_is_of_its_page_and_key_only() {
        let cache = RowCache::new(1 << 20, 32 << 10);
        assert!(cache.insert(page(1, 0), b"key", Some((Msg::PUT, b"value"))));
        assert!(cache.insert(page(1, 0), b"none", None));
        assert!(cache.insert(page(1, 0), b"gone", Some((Msg::DELETE, b""))));
        assert_eq!(cache.get(page(1, 0), b"key"), Some(Some(Msg::Put("value".into()))));
        assert_eq!(cache.get(page(1, 0), b"none"), Some(None));
        assert_eq!(cache.get(page(1, 0), b"gone"), Some(Some(Msg::Delete)));
        for (other, suffix) in
            [(page(2, 0), &b"key"[..]), (page(1, 1), b"key"), (page(1, 0), b"ke"), (page(1, 0), b"")]
        {
            assert_eq!(cache.get(other, suffix), None);
        }
    }

    #[test]
    fn it_keeps_what_is_small_and_within_its_budget() {
        const BUDGET: u64 = 1 << 20;
        let cache = RowCache::new(BUDGET, 32 << 10);
        assert!(!cache.insert(page(1, 0), b"key", Some((Msg::PUT, &[0; 4 << 10]))));
        assert_eq!(cache.get(page(1, 0), b"key"), None);
        for i in 0..100_000u32 {
            cache.insert(page(1, 0), &i.to_be_bytes(), Some((Msg::PUT, &[7; 100])));
        }
        assert!((BUDGET / 8 * 7..=BUDGET).contains(&cache.weight()), "{}", cache.weight());
        cache.set_capacity(BUDGET / 4);
        assert!(cache.weight() <= BUDGET / 4, "{}", cache.weight());
    }
}
