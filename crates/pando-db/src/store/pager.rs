//! Reading nodes and pages: the cache over the device.
//!
//! What is dirty lives in the table's entries; what is clean is read from its extent, verified against the checksum
//! that its referrer holds, and kept in a cache with a budget in bytes whose units are single headers and pages.
//! Beside them it keeps small entries of pages that point queries had to read ([`RowCache`]), so that a small hot
//! value does not keep its page in memory. Cache keys are extent ids, which are never reused within a process, so a
//! cached piece is never taken for a later one at the same place. Takes no lock over I/O.

mod admit;
pub(crate) mod described;
mod verify;

use std::{
    hash::BuildHasher,
    io::IoSliceMut,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use quick_cache::{
    OptionsBuilder,
    sync::{Cache, DefaultLifecycle},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::Device,
    error::{Error, Result},
    format::node_codec,
    node::{Node, NodeId, PageLoc, PageRef, Run, Segment, message::Msg, page::Page, stored::Stored},
    options::Codec,
    pool::{self, Buffer},
    space::Extent,
    store::{
        cache_key::{CacheKey, Hashing},
        cached::{Cached, CachedWeighter},
        ghost::GhostList,
        inflight::{Claimed, InFlight},
        lent::Lender,
        page_id::{PageId, Wanted, place, side_by_side},
        pager::described::as_described,
        row_cache::RowCache,
        scattered,
        sequence::Sequences,
        sharded::ShardedCounter,
        table::{Loc, Table},
        unreadable::Unreadable,
        written::Written,
    },
};

pub(crate) use crate::store::cached::Keep;

/// Least raw size at which a page is closed, in bytes.
const MIN_PAGE_BYTES: usize = 512;
/// Largest raw size at which a page is closed, in bytes.
const MAX_PAGE_BYTES: usize = 32 << 10;

/// Bytes of the cache under one lock. Threads that insert take one lock each time, and a reader may wait until such a
/// thread, which has a lower priority, runs again. The number of processors does not matter, so that it does not
/// decide what is evicted.
const CACHE_SHARD_BYTES: u64 = 4 << 20;
/// Most locks of a cache.
const MAX_SHARDS: u64 = 64;

/// Size of a page, in bytes, for which there are marks of passed pages: where pages are smaller, of fewer
/// than the cache holds, so that the marks take a 256th of the budget at most.
const MIN_MARKED_PAGE_BYTES: usize = 8 << 10;

/// Part (1/n) of the cache's budget that one request reads ahead at most.
const AHEAD_SHARE: u64 = 16;

/// Bytes, unpacked, of a request from which on it is worth memory that the device lends, and part of something large.
const MIN_ONCE_BYTES: u64 = 256 << 10;

/// Part (1/n) of the budget at the start that pages may have which were read ahead and not asked for yet; of
/// what pages and headers have.
const IN_FLIGHT_SHARE: u64 = 8;

/// Part (1/n) of that which may lie in memory that the device has lent.
const LENT_SHARE: u64 = 2;

/// Part (1/n) of the budget that entries of pages may have; as long as they have less, pages have the rest.
const ROW_SHARE: u64 = 8;
/// Part (1/n) of the budget by which the memory of entries has to change before the share of pages is set anew.
const BUDGET_STEP_SHARE: u64 = 64;
/// Entries that are noted between two comparisons of that memory.
const ENTRIES_BETWEEN_LOOKS: u64 = 64;

/// A node as a reader holds it.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub node: Arc<Node>,
    /// Where its pages at home are; none for a dirty node.
    pub home: Option<Arc<Stored>>,
}

/// Reads and caches nodes and pages.
pub(crate) struct Pager {
    device: Arc<dyn Device>,
    cache: Cache<CacheKey, Cached, CachedWeighter, Hashing>,
    rows: RowCache,
    /// Entries noted since the start; what pages and headers leave them, as they were told last.
    rows_noted: AtomicU64,
    row_bytes: AtomicU64,
    /// What is being read, and what was read ahead; and the memory of this, as the cache was told last.
    in_flight: InFlight,
    ahead_bytes: AtomicU64,
    written: Option<Written>,
    lender: Lender,
    sequences: Sequences,
    /// What the cache was told; to ask it takes a lock of each of its parts, and every write asks.
    budget: AtomicU64,
    /// What was read with [`Keep::Again`].
    scanned: GhostList,
    page_target: usize,
    node_size: usize,
    codec: Codec,
    hits: ShardedCounter,
    row_hits: ShardedCounter,
    misses: ShardedCounter,
    unreadable: Unreadable<CacheKey>,
}

impl Pager {
    /// A pager with a cache of `budget` bytes, for a store of this node size.
    pub fn new(device: Arc<dyn Device>, budget: u64, node_size: u32, codec: Codec) -> Self {
        let options = OptionsBuilder::new()
            .estimated_items_capacity((budget / (16 << 10)).max(64) as usize)
            .weight_capacity(budget)
            .shards((budget / CACHE_SHARD_BYTES).clamp(2, MAX_SHARDS) as usize)
            .build()
            .unwrap_or_else(|e| unreachable!("all that has no default was given: {e}"));
        let page_target = (node_size as usize / 8).clamp(MIN_PAGE_BYTES, MAX_PAGE_BYTES);
        Self {
            lender: Lender::new(device.clone()),
            device,
            codec,
            node_size: node_size as usize,
            scanned: GhostList::new(budget / page_target.max(MIN_MARKED_PAGE_BYTES) as u64),
            page_target,
            rows: RowCache::new(budget / ROW_SHARE, page_target),
            rows_noted: 0.into(),
            row_bytes: 0.into(),
            in_flight: InFlight::with_limit(budget / IN_FLIGHT_SHARE),
            ahead_bytes: 0.into(),
            written: None,
            sequences: Sequences::default(),
            budget: budget.into(),
            cache: Cache::with_options(
                options,
                CachedWeighter,
                Hashing::with_seed(0),
                DefaultLifecycle::default(),
            ),
            hits: ShardedCounter::default(),
            row_hits: ShardedCounter::default(),
            misses: ShardedCounter::default(),
            unreadable: Unreadable::default(),
        }
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Raw size at which pages are closed, in bytes.
    pub fn page_target(&self) -> usize {
        self.page_target
    }

    /// Target size of a node, in bytes.
    pub fn node_size(&self) -> usize {
        self.node_size
    }

    /// How pages are to be compressed.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// What clean data may take from now on, in bytes. What is over goes at once.
    pub fn set_budget(&self, budget: u64) {
        self.budget.store(budget, Ordering::Relaxed);
        self.rows.set_capacity(budget / ROW_SHARE);
        self.share_with_rows();
    }

    /// Gives pages and headers what entries of pages, and pages that were read ahead, leave.
    fn share_with_rows(&self) {
        let budget = self.budget();
        let step = (budget / BUDGET_STEP_SHARE).max(1);
        let rows = self.rows.weight().next_multiple_of(step).min(budget / ROW_SHARE);
        let ahead = self.in_flight.held().next_multiple_of(step).min(budget / 2);
        assert!(rows + ahead <= budget, "parts of the cache have more than its budget");
        self.row_bytes.store(rows, Ordering::Relaxed);
        self.ahead_bytes.store(ahead, Ordering::Relaxed);
        self.cache.set_capacity(budget - rows - ahead);
    }

    /// Adapts the cache's limit if the memory of pages that were read ahead has changed enough.
    fn share_with_pages_ahead(&self) {
        if self.in_flight.held().abs_diff(self.ahead_bytes.load(Ordering::Relaxed))
            > self.budget() / BUDGET_STEP_SHARE
        {
            self.share_with_rows();
        }
    }

    /// Memory that pages may have which are read ahead, in bytes.
    pub fn max_readahead_bytes(&self) -> u64 {
        self.in_flight.limit()
    }

    /// Notes an entry of a page that had to be read for it.
    fn note_row(&self, page: CacheKey, suffix: &[u8], found: Option<(u8, &[u8])>) {
        if !self.rows.insert(page, suffix, found) {
            return;
        }
        let count = self.rows_noted.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(ENTRIES_BETWEEN_LOOKS)
            && self.rows.weight().abs_diff(self.row_bytes.load(Ordering::Relaxed))
                > self.budget() / BUDGET_STEP_SHARE
        {
            self.share_with_rows();
        }
    }

    /// What clean data may take, in bytes.
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Bytes of clean data in the cache.
    pub fn cached_bytes(&self) -> u64 {
        self.cache.weight() + self.rows.weight() + self.in_flight.held()
    }

    /// Node `id` of a table version. At most one read: of the header.
    pub fn node(&self, table: &Table, id: NodeId) -> Result<Handle> {
        let entry = table
            .get(id)
            .ok_or_else(|| Error::corrupt("node reference", 0, format!("node {id} does not exist")))?;
        let handle = match &entry.loc {
            Loc::Dirty(node) => Handle { node: node.clone(), home: None },
            Loc::Stored(stored) => Handle { node: self.header(stored)?, home: Some(stored.clone()) },
        };
        handle.of_height(table, id)
    }

    #[cfg(test)]
    pub fn stored_node(&self, stored: &Stored) -> Result<Arc<Node>> {
        self.header(stored)
    }

    fn header(&self, stored: &Stored) -> Result<Arc<Node>> {
        let head = stored.head()?;
        let key = CacheKey { extent: head.id, offset: 0 };
        let _claim = loop {
            if let Some(Cached::Header(node)) = self.cache.get(&key) {
                self.hits.add();
                return Ok(node);
            }
            match self.in_flight.claim(key) {
                Claimed::Mine(_) if matches!(self.cache.peek(&key), Some(Cached::Header(_))) => (),
                Claimed::Mine(claim) => break Some(claim),
                Claimed::Ended => (),
                // A page that claims to lie in the place of a header: a damaged one.
                Claimed::Ahead { .. } | Claimed::Passing(_) => break None,
            }
        };
        self.misses.add();
        let node = Arc::new(self.noting(key, self.read_header(stored))?);
        self.cache.insert(key, Cached::Header(node.clone()));
        Ok(node)
    }

    /// The outcome of a read, with the place remembered if it is bad.
    fn noting<T>(&self, key: CacheKey, read: Result<T>) -> Result<T> {
        match &read {
            Ok(_) => self.unreadable.strike_out(&key),
            Err(_) => self.unreadable.note(key),
        }
        read
    }

    /// Places that could not be read the last time, as far as they are remembered.
    pub fn damage_known(&self) -> u64 {
        self.unreadable.len()
    }

    /// True if places are known that cannot be read.
    pub fn knows_damage(&self) -> bool {
        self.unreadable.any()
    }

    /// Grows whenever another place turns out to be unreadable.
    pub fn damage_found(&self) -> u64 {
        self.unreadable.found()
    }

    /// True if a stored page could not be read the last time. No I/O.
    pub fn is_unreadable(&self, page: &PageRef) -> bool {
        PageId::of(None, page).is_some_and(|PageId(key)| self.unreadable.contains(&key))
    }

    /// A page of a node; `home` is where the node is, if it is a stored one. At most one read: of the
    /// page.
    pub fn page(&self, home: Option<&Arc<Stored>>, page: &PageRef) -> Result<Arc<Page>> {
        match &page.loc {
            PageLoc::Mem(memory) => Ok(memory.clone()),
            PageLoc::Foreign(extent, segment) => self.stored_page(page, extent, *segment),
            PageLoc::Home(segment) => match home {
                Some(stored) => self.stored_page(page, stored.part(*segment)?, *segment),
                None => Err(Error::corrupt("node page", 0, "a page at home in a node that is not stored")),
            },
        }
    }

    /// Notes that page `i` of a leaf is about to be read, if it is not in the cache. If leaves are read in order it
    /// is read now, with those behind it, and a page behind the leaf is expected next. A hint: what fails is left
    /// to the read that needs the page.
    pub fn follow(&self, home: Option<&Arc<Stored>>, run: &Run, i: usize) {
        let pages = run.pages.get(i..).unwrap_or_default();
        let Some(wanted) = pages.first().and_then(|page| Wanted::of(home, page)) else { return };
        if self.cache.peek(&wanted.key).is_some() || self.in_flight.knows(&wanted.key) {
            return;
        }
        let limit = self.sequences.missed(wanted.at, wanted.segment.len, (i == 0, pages.len() == 1));
        if limit == 0 {
            return;
        }
        // Not into the cache, which evicts pages first that no thread has used yet.
        let read = self.read_side_by_side(home, pages.iter(), limit, Keep::Ahead);
        let last = pages.get(read.len().wrapping_sub(1)).and_then(|page| Wanted::of(home, page));
        if let Some(last) = last {
            self.sequences.brought(wanted.end(), last.end(), read.len() == pages.len());
        }
    }

    /// The message that a page of a node has about `key`; `home` as for [`Pager::page`]. At most one read: of
    /// the page, before which `missed` is called.
    pub fn find(
        &self,
        home: Option<&Arc<Stored>>,
        page: &PageRef,
        key: &[u8],
        missed: impl FnOnce(),
    ) -> Result<Option<Msg>> {
        let Some(suffix) = key.strip_prefix(&page.prefix[..]) else { return Ok(None) };
        let msg = |loaded: &Page| loaded.find(suffix).map(|i| loaded.msg(i));
        let Some((extent, segment)) = place(home, page) else {
            return Ok(msg(&*self.page(home, page)?));
        };
        let at = CacheKey { extent: extent.id, offset: segment.offset };
        if let Some(loaded) = self.cached_page(&at) {
            self.hits.add();
            return Ok(msg(&*as_described(page, extent, segment, loaded)?));
        }
        if let Some(known) = self.rows.get(at, suffix) {
            self.row_hits.add();
            return Ok(known);
        }
        missed();
        let loaded = self.stored_page(page, extent, segment)?;
        let found = loaded.find(suffix);
        self.note_row(at, suffix, found.map(|i| loaded.stored_msg(i)));
        Ok(found.map(|i| loaded.msg(i)))
    }

    fn stored_page(&self, page: &PageRef, extent: &Arc<Extent>, segment: Segment) -> Result<Arc<Page>> {
        let key = CacheKey { extent: extent.id, offset: segment.offset };
        let _claim = loop {
            if let Some(found) = self.cached_page(&key) {
                self.hits.add();
                return as_described(page, extent, segment, found);
            }
            match self.in_flight.claim(key) {
                Claimed::Ended => (),
                Claimed::Ahead { page: found, once } => {
                    self.hits.add();
                    if self.asked_for(key, &found, once) {
                        self.share_with_pages_ahead();
                    }
                    return as_described(page, extent, segment, found);
                }
                Claimed::Passing(found) => {
                    self.hits.add();
                    return as_described(page, extent, segment, found);
                }
                Claimed::Mine(_) if self.cache.peek(&key).is_some_and(|found| found.is_page()) => (),
                Claimed::Mine(claim) => break claim,
            }
        };
        self.misses.add();
        let parsed = Arc::new(self.noting(key, self.read_page(page, extent, segment))?);
        self.cache.insert(key, Cached::Page(parsed.clone()));
        Ok(parsed)
    }

    /// Somebody asks for a page that was read ahead: whether it is in the cache now. What is stored as it is costs no
    /// more than its read, and a mount has what it has passed on in the kernel's cache: to keep it costs more than that
    /// when it is read `once`, because the memory is new to the process.
    fn asked_for(&self, key: CacheKey, page: &Arc<Page>, once: bool) -> bool {
        if (page.is_lent() || once) && !self.was_scanned(&key) {
            self.in_flight.retire(key);
            return false;
        }
        self.insert(key, page);
        self.in_flight.taken(&key);
        true
    }

    /// Reads the first of `pages`, with those that lie right behind it, up to `limit` bytes and to one that
    /// is in the cache, with one request; in order of their places. Empty where that would not
    /// be two, unless `keep` says otherwise than [`Pager::page`], or fails: then that will tell.
    pub fn read_side_by_side<'p>(
        &self,
        home: Option<&Arc<Stored>>,
        pages: impl Iterator<Item = &'p PageRef>,
        limit: usize,
        keep: Keep,
    ) -> Vec<(PageId, Arc<Page>)> {
        let limit = limit.min((self.budget() / AHEAD_SHARE) as usize);
        let mut wanted = side_by_side(home, pages.take_while(|page| !self.is_cached(home, page)), limit);
        // A piece that another thread reads, or has read ahead, is not read again. A scan that reads only for itself
        // makes no other thread wait.
        let shared = matches!(keep, Keep::Always | Keep::Ahead);
        let mut claim = self.in_flight.claim_first(wanted.iter().map(|wanted| wanted.key).filter(|_| shared));
        if shared {
            // A read may have ended since it was looked for.
            let claimed = wanted.iter().take(claim.len());
            let unknown = claimed.take_while(|wanted| self.cache.peek(&wanted.key).is_none()).count();
            claim.truncate(unknown);
            wanted.truncate(unknown);
        }
        if wanted.len() < 2 && keep == Keep::Always {
            return Vec::new();
        }
        let bytes: u64 = wanted.iter().map(|wanted| u64::from(wanted.page.raw)).sum();
        // If the store has a bound for written pages, there is a cache above it, which keeps what is read as well.
        let once = self.written.is_some() && bytes >= MIN_ONCE_BYTES;
        let keep = if once && keep == Keep::Always { Keep::Once } else { keep };
        let read = self.read_all(&wanted, keep);
        if matches!(keep, Keep::Ahead | Keep::Once) {
            let out = claim.keep_ahead(once, read.iter().map(|(PageId(key), page)| (*key, page)));
            out.into_iter().for_each(|(key, page)| self.insert(key, &page));
            if keep == Keep::Once {
                for (PageId(key), page) in &read {
                    self.asked_for(*key, page, once);
                }
            }
            self.share_with_pages_ahead();
        }
        read
    }

    /// The same for pages that are not read again, because what they hold is being written anew: up to
    /// `limit` bytes, packed and unpacked, one page or more, and the cache does not learn of them. Empty also
    /// if the first is in it.
    pub fn read_for_the_last_time<'p>(
        &self,
        pages: impl Iterator<Item = &'p PageRef>,
        limit: usize,
    ) -> Vec<(PageId, Arc<Page>)> {
        let mut unpacked = 0;
        let unknown = pages.take_while(|page| {
            unpacked += page.raw as usize;
            (unpacked <= limit || unpacked == page.raw as usize) && !self.is_cached(None, page)
        });
        self.read_all(&side_by_side(None, unknown, limit), Keep::Never)
    }

    /// The stored form of the first of `pages`, and of those that lie right behind it, for copying them as
    /// they are; with one request, up to `limit` bytes, if all of them can be read. What is damaged is given
    /// as it is: under the checksum that it has it is known for damaged wherever it is copied to, and takes
    /// nothing else with it. `None` for what the device cannot read.
    pub fn stored_bytes<'p>(
        &self,
        pages: impl Iterator<Item = &'p PageRef>,
        limit: usize,
    ) -> Result<Vec<(Segment, Option<Bytes>)>> {
        let mut pages = pages.peekable();
        let first = pages.peek().and_then(|page| place(None, page));
        let wanted = side_by_side(None, pages, limit);
        if wanted.is_empty() {
            // The header may lie in several places.
            let (extent, segment) =
                first.ok_or_else(|| Error::corrupt("node page", 0, "a page of no known extent"))?;
            let stored = scattered::read(&*self.device, extent, segment.offset.into(), segment.len).ok();
            if stored.as_ref().is_none_or(|stored| xxh3_64(stored) != segment.sum) {
                self.unreadable.note(CacheKey { extent: extent.id, offset: segment.offset });
            }
            return Ok(vec![(segment, stored)]);
        }
        let stored: Vec<Option<Bytes>> = match self.read_apart(&wanted) {
            Ok(stored) => stored.into_iter().map(Some).collect(),
            Err(_) => wanted.iter().map(|w| self.read(w.at, w.segment.len).ok()).collect(),
        };
        assert_eq!(stored.len(), wanted.len(), "other pages are copied than were asked for");
        let given = |(wanted, stored): (&Wanted<'_>, Option<Bytes>)| {
            if stored.as_ref().is_none_or(|stored| xxh3_64(stored) != wanted.segment.sum) {
                self.unreadable.note(wanted.key);
            }
            (wanted.segment, stored)
        };
        Ok(wanted.iter().zip(stored).map(given).collect())
    }

    /// Notes that a scan reads a page, and tells if one did before, not longer ago than the cache holds pages.
    fn was_scanned(&self, key: &CacheKey) -> bool {
        self.scanned.again(Hashing::with_seed(1).hash_one(key), self.budget() / self.page_target as u64)
    }

    fn is_cached(&self, home: Option<&Arc<Stored>>, page: &PageRef) -> bool {
        PageId::of(home, page).is_some_and(|PageId(key)| self.cache.peek(&key).is_some())
    }

    /// Reads pages that lie side by side with one request, in the order of their places. A damaged page ends the
    /// result; those before it are good.
    fn read_all(&self, wanted: &[Wanted<'_>], keep: Keep) -> Vec<(PageId, Arc<Page>)> {
        let lent = match keep {
            Keep::Ahead | Keep::Once => self.lender.read(wanted, self.in_flight.limit() / LENT_SHARE),
            _ => None,
        };
        let is_lent = lent.is_some();
        let Ok(pieces) = lent.map_or_else(|| self.read_apart(wanted), Ok) else { return Vec::new() };
        assert_eq!(pieces.len(), wanted.len(), "a request gives other pages than it was asked for");
        let parse = |(wanted, stored): (&Wanted<'_>, Bytes)| {
            let Wanted { page, segment, key, at } = wanted;
            let parsed = node_codec::load_page(page, *segment, stored, *at).ok()?;
            // What had to be unpacked has memory of its own.
            let parsed =
                Arc::new(if is_lent && node_codec::is_raw(*segment) { parsed.lent() } else { parsed });
            self.misses.add();
            let keep = match keep {
                Keep::Always => true,
                Keep::Again => self.was_scanned(key),
                Keep::Never | Keep::Ahead | Keep::Once => false,
            };
            if keep {
                self.cache.insert(*key, Cached::Page(parsed.clone()));
            }
            Some((PageId(*key), parsed))
        };
        let mut read: Vec<_> = wanted.iter().zip(pieces).map_while(parse).collect();
        read.sort_unstable_by_key(|(piece, _)| *piece);
        read
    }

    /// Cache hits and misses since open.
    pub fn hit_counts(&self) -> (u64, u64) {
        (self.hits.sum() + self.row_hits.sum(), self.misses.sum())
    }

    /// Of the hits, those of single entries of pages; and the memory of these, in bytes.
    pub fn row_counts(&self) -> (u64, u64) {
        (self.row_hits.sum(), self.rows.weight())
    }

    /// The bytes of pages that lie side by side, unverified, with one request; each in memory of its own, so
    /// that one that stays in the cache does not keep all the others.
    fn read_apart(&self, wanted: &[Wanted<'_>]) -> Result<Vec<Bytes>> {
        let Some(first) = wanted.first() else { return Ok(Vec::new()) };
        let mut end = first.at;
        let buffers = wanted.iter().flat_map(|wanted| {
            let before = wanted.at.saturating_sub(std::mem::replace(&mut end, wanted.end()));
            [pool::buffer(before as usize), pool::buffer(wanted.segment.len as usize)]
        });
        let mut buffers: Vec<Buffer> = buffers.collect();
        let filled = buffers.iter_mut().filter(|buffer| !buffer.is_empty());
        let mut filled: Vec<IoSliceMut<'_>> = filled.map(|buffer| IoSliceMut::new(buffer)).collect();
        self.device.read_vectored_at(first.at, &mut filled).map_err(|e| Error::io("read", first.at, e))?;
        assert_eq!(buffers.len(), 2 * wanted.len(), "pages that are read have other buffers than they need");
        Ok(buffers.into_iter().skip(1).step_by(2).map(Bytes::from).collect())
    }

    /// Bytes of the device, unverified.
    pub fn read(&self, offset: u64, len: u32) -> Result<Bytes> {
        let mut bytes = pool::buffer(len as usize);
        self.device.read_at(offset, &mut bytes).map_err(|e| Error::io("read", offset, e))?;
        Ok(bytes.into())
    }
}
