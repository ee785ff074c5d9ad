//! Reads of single headers and pages, and verifying reads, which read from the device even what is cached.
//!
//! A checker that used the cache would find no damage on the device. Guarantees: a verifying read returns what the
//! device has now, unless the piece is not written yet; pages that are read in this way displace no others from the
//! cache. An unreadable place is noted for readers only if they would have to read it: as long as the piece is cached
//! it is good, and its next change writes it to another place. May use: what the pager may.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    error::{Error, Result},
    format::node_codec,
    node::{Node, NodeId, PageLoc, PageRef, Segment, page::Page, stored::Stored},
    space::Extent,
    store::{
        cache_key::CacheKey,
        cached::Cached,
        page_id::{Wanted, first_in_one_request, place},
        pager::{Handle, Pager},
        scattered,
        table::{Loc, Table},
    },
};

/// Most bytes that a request brings to be verified.
const MAX_VERIFY_BYTES: usize = 1 << 20;

impl Handle {
    /// The node, if it is as high as the table says.
    pub(super) fn of_height(self, table: &Table, id: NodeId) -> Result<Handle> {
        match table.get(id) {
            Some(entry) if entry.height == self.node.height => Ok(self),
            _ => {
                Err(Error::corrupt("node header", 0, format!("node {id} has another height than the table")))
            }
        }
    }
}

impl Pager {
    /// The header of a node, from the device.
    pub(super) fn read_header(&self, stored: &Stored) -> Result<Node> {
        let head = stored.head()?;
        let bytes = scattered::read(&*self.device, head, 0, stored.header_len)?;
        if xxh3_64(&bytes) != stored.header_sum {
            return Err(Error::corrupt("node header", head.offset, "its checksum does not match"));
        }
        let lens: Vec<u64> = stored.parts.iter().map(|part| part.len).collect();
        node_codec::decode(bytes, &lens)
    }

    /// A page, from the device.
    pub(super) fn read_page(&self, page: &PageRef, extent: &Extent, segment: Segment) -> Result<Page> {
        let from = u64::from(segment.offset);
        let at = extent.place(from, 1).unwrap_or(extent.offset);
        let bytes = scattered::read(&*self.device, extent, from, segment.len)?;
        node_codec::load_page(page, segment, bytes, at)
    }

    /// Node `id` of a table version, as it is on the device if it is stored. One read: of the header.
    pub fn node_on_device(&self, table: &Table, id: NodeId) -> Result<Handle> {
        if let Some(Loc::Stored(stored)) = table.get(id).map(|entry| &entry.loc) {
            let key = CacheKey { extent: stored.head()?.id, offset: 0 };
            let node = Arc::new(self.noting_if_needed(key, self.read_header(stored))?);
            if self.cache.peek(&key).is_some() {
                return Handle { node, home: Some(stored.clone()) }.of_height(table, id);
            }
            // The checker compares it with its parents next.
            self.cache.insert(key, Cached::Header(node));
        }
        self.node(table, id)
    }

    /// A page of a node, as it is on the device if it is stored; `home` as for [`Pager::page`]. One read: of the page.
    pub fn page_on_device(&self, home: Option<&Arc<Stored>>, page: &PageRef) -> Result<Arc<Page>> {
        match (&page.loc, place(home, page)) {
            (PageLoc::Mem(_), _) | (_, None) => self.page(home, page),
            (_, Some((extent, segment))) => {
                let key = CacheKey { extent: extent.id, offset: segment.offset };
                self.noting_if_needed(key, self.read_page(page, extent, segment)).map(Arc::new)
            }
        }
    }

    /// The same for many pages, whatever their nodes, in the order of their places: `see` gets the key that came with
    /// each. Those that lie side by side are brought by one request of at most [`MAX_VERIFY_BYTES`]. Where one of them
    /// is bad, they are read one by one.
    pub fn pages_on_device<'p, K: Copy>(
        &self,
        pages: impl Iterator<Item = (K, Option<&'p Arc<Stored>>, &'p PageRef)>,
        mut see: impl FnMut(K, Result<Arc<Page>>),
    ) {
        let mut placed = Vec::new();
        for (key, home, page) in pages {
            match Wanted::of(home, page) {
                Some(wanted) if !matches!(page.loc, PageLoc::Mem(_)) => placed.push((wanted, (key, home))),
                _ => see(key, self.page_on_device(home, page)),
            }
        }
        placed.sort_by_key(|(wanted, _)| wanted.at);
        let (wanted, whose): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        let (mut wanted, mut whose) = (wanted.as_slice(), whose.as_slice());
        while !wanted.is_empty() {
            let number = first_in_one_request(wanted, MAX_VERIFY_BYTES);
            let (group, more_wanted) = wanted.split_at(number);
            let (group_whose, more_whose) = whose.split_at(number);
            let stored = self.read_to_verify(group);
            for (i, (wanted, &(key, home))) in group.iter().zip(group_whose).enumerate() {
                let loaded = stored.get(i).and_then(|stored| {
                    node_codec::load_page(wanted.page, wanted.segment, stored.clone(), wanted.at).ok()
                });
                see(
                    key,
                    match loaded {
                        Some(page) => self.noting_if_needed(wanted.key, Ok(Arc::new(page))),
                        None => self.page_on_device(home, wanted.page),
                    },
                );
            }
            (wanted, whose) = (more_wanted, more_whose);
        }
    }

    /// The bytes of pages that lie side by side, unverified; of none if there is one only, or they cannot be read
    /// together.
    fn read_to_verify(&self, group: &[Wanted<'_>]) -> Vec<Bytes> {
        if group.len() < 2 {
            return Vec::new();
        }
        let lent = self.lender.read(group, MAX_VERIFY_BYTES as u64);
        lent.map_or_else(|| self.read_apart(group), Ok).unwrap_or_default()
    }

    fn noting_if_needed<T>(&self, key: CacheKey, read: Result<T>) -> Result<T> {
        match read {
            Err(error) if self.cache.peek(&key).is_some() => Err(error),
            other => self.noting(key, other),
        }
    }
}
