//! Bytes that are stored past the page cache, beside pages that somebody else makes dirty.
//!
//! Before it sends such a write, the kernel writes out and drops the pages in its range. But a program that has the
//! file mapped may bring one back before the bytes are stored, and change others in it: when the kernel then writes
//! that page out, it has old bytes where new ones are stored. Guarantees: what the kernel writes out takes nothing back
//! that is announced here, from before it is stored until all pages from before are dropped. Of a page only the rest is
//! stored: who changes the same bytes at the same time is overtaken.

use std::{collections::HashMap, ops::Range, sync::Arc};

use parking_lot::{Mutex, RwLock};

/// Locks, a count: those of one file never wait for those of most others.
const SHARDS: usize = 64;

/// What was left out of pages; none touch.
type LeftOut = Arc<Mutex<Vec<Range<u64>>>>;

/// Ranges that are announced, by file; of each, which bytes of pages were left out.
type Announced = HashMap<u64, Vec<(Range<u64>, LeftOut)>>;

/// What is announced on a mount.
pub(crate) struct PastPages(Vec<RwLock<Announced>>);

/// A range that is announced, until this is dropped.
pub(crate) struct Announcement {
    of: Arc<PastPages>,
    ino: u64,
    left_out: LeftOut,
}

impl Default for PastPages {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| RwLock::default()).collect())
    }
}

impl PastPages {
    fn shard(&self, ino: u64) -> Option<&RwLock<Announced>> {
        self.0.get(ino as usize % SHARDS)
    }

    /// Before these bytes of a file are stored. Waits for pages of the file that are being stored.
    pub(crate) fn announce(self: &Arc<Self>, ino: u64, range: Range<u64>) -> Announcement {
        let left_out = LeftOut::default();
        if let Some(shard) = self.shard(ino) {
            shard.write().entry(ino).or_default().push((range, left_out.clone()));
        }
        Announcement { of: self.clone(), ino, left_out }
    }

    /// Stores pages by `store`, which gets the parts that nothing was announced of, in order.
    pub(crate) fn store_pages<E>(
        &self,
        ino: u64,
        pages: Range<u64>,
        mut store: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Held meanwhile: what is announced from now on is stored after these pages.
        let announced = self.shard(ino).map(RwLock::read);
        let ranges = announced.as_ref().and_then(|all| all.get(&ino)).map(Vec::as_slice).unwrap_or_default();
        let mut rest = vec![pages];
        for (range, left_out) in ranges {
            let cut = |part: Range<u64>| {
                if part.start >= range.end || part.end <= range.start {
                    return [part, 0..0];
                }
                add(&mut left_out.lock(), part.start.max(range.start)..part.end.min(range.end));
                [part.start..range.start.max(part.start), range.end.min(part.end)..part.end]
            };
            rest = rest.into_iter().flat_map(cut).filter(|part| !part.is_empty()).collect();
        }
        rest.into_iter().try_for_each(&mut store)
    }
}

/// Adds a range to others that it may touch.
fn add(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    ranges.retain(|range| {
        let apart = range.end < new.start || new.end < range.start;
        if !apart {
            new = new.start.min(range.start)..new.end.max(range.end);
        }
        apart
    });
    ranges.push(new);
}

impl Announcement {
    /// Ends it: which bytes of pages were left out.
    pub(crate) fn end(self) -> Vec<Range<u64>> {
        let left_out = self.left_out.clone();
        drop(self);
        std::mem::take(&mut *left_out.lock())
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let Some(mut shard) = self.of.shard(self.ino).map(RwLock::write) else { return };
        if let Some(ranges) = shard.get_mut(&self.ino) {
            ranges.retain(|(_, left_out)| !Arc::ptr_eq(left_out, &self.left_out));
            if ranges.is_empty() {
                shard.remove(&self.ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use super::*;

    fn stored(past: &PastPages, ino: u64, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        past.store_pages(ino, pages, |part| {
            parts.push(part);
            Ok::<_, ()>(())
        })
        .unwrap();
        parts
    }

    #[test]
    fn pages_are_stored_but_for_what_is_announced() {
        let past = Arc::new(PastPages::default());
        assert_eq!(stored(&past, 7, 0..100), [0..100]);
        let first = past.announce(7, 10..20);
        let second = past.announce(7, 15..30);
        assert_eq!(stored(&past, 7, 0..100), [0..10, 30..100]);
        assert_eq!(stored(&past, 7, 12..30), []);
        assert_eq!(stored(&past, 7, 30..40), [30..40]);
        // Another file, of the same shard and of another.
        assert_eq!(stored(&past, 7 + SHARDS as u64, 0..40), [0..40]);
        assert_eq!(stored(&past, 8, 0..40), [0..40]);
        assert_eq!(stored(&past, 7, 10..11), []);
        assert_eq!(first.end(), [10..20]);
        assert_eq!(stored(&past, 7, 0..40), [0..15, 30..40]);
        let unmet = past.announce(7, 200..201);
        assert_eq!(stored(&past, 7, 0..40), [0..15, 30..40]);
        assert_eq!((unmet.end(), second.end()), (vec![], vec![15..30]));
        assert_eq!(stored(&past, 7, 0..40), [0..40]);
        assert!(past.0.iter().all(|shard| shard.read().is_empty()));
    }
}
