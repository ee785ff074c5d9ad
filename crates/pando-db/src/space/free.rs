//! A set of free byte ranges, searchable by place and by size.
//!
//! Ranges never overlap or touch (neighbours merge), so each operation costs
//! O(log n) however fragmented the space is. Memory only; knows no device.

use std::collections::{BTreeMap, BTreeSet};

/// How many ranges of the same class as the request are tried in order of offset.
const MAX_TRIED_RANGES: usize = 32;

/// Free ranges, in bytes.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    /// Offset to length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset).
    by_size: BTreeSet<(u64, u64)>,
    /// Offsets of the ranges of length [2^class, 2^(class + 1)).
    by_class: Vec<BTreeSet<u64>>,
    total: u64,
}

impl Default for FreeRanges {
    fn default() -> Self {
        let by_class = vec![BTreeSet::new(); u64::BITS as usize];
        Self { by_offset: BTreeMap::new(), by_size: BTreeSet::new(), by_class, total: 0 }
    }
}

impl FreeRanges {
    /// Sum of all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    #[cfg(test)]
    /// Length of the longest range, 0 if there is none.
    pub(crate) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(len, _)| len)
    }

    /// The longest range: (offset, length).
    pub(crate) fn largest_range(&self) -> Option<(u64, u64)> {
        self.by_size.last().map(|&(len, offset)| (offset, len))
    }

    /// Where the shortest range begins.
    pub(crate) fn shortest(&self) -> Option<u64> {
        self.by_size.first().map(|&(_, offset)| offset)
    }

    /// The lowest range: (offset, length).
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.by_offset.first_key_value().map(|(&offset, &len)| (offset, len))
    }

    #[cfg(test)]
    /// All ranges in order: (offset, length).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_offset.iter().map(|(&offset, &len)| (offset, len))
    }

    /// Length of the range that begins at `offset`, 0 if none does.
    pub(crate) fn starting_at(&self, offset: u64) -> u64 {
        self.by_offset.get(&offset).copied().unwrap_or(0)
    }

    /// The first free bytes at or behind `from`, as far as they go: (offset, length).
    pub(crate) fn next_from(&self, from: u64) -> Option<(u64, u64)> {
        match self.around(from) {
            Some((start, len)) if start + len > from => Some((from, start + len - from)),
            _ => self.by_offset.range(from..).next().map(|(&offset, &len)| (offset, len)),
        }
    }

    /// The highest range of at least `least` bytes, a power of two.
    pub(crate) fn highest(&self, least: u64) -> Option<(u64, u64)> {
        let offset = *self.by_class[class(least)..].iter().filter_map(BTreeSet::last).max()?;
        Some((offset, self.starting_at(offset)))
    }

    /// The first range of at least `least` bytes, a power of two, that begins at or behind `from`.
    pub(crate) fn first_from(&self, from: u64, least: u64) -> Option<(u64, u64)> {
        let next = |offsets: &BTreeSet<u64>| offsets.range(from..).next().copied();
        let offset = self.by_class[class(least)..].iter().filter_map(next).min()?;
        Some((offset, self.starting_at(offset)))
    }

    /// Takes what is free of `[offset, offset + len)` out.
    pub(crate) fn remove_within(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        while let Some((at, len)) = self.next_from(offset).filter(|&(at, _)| at < end) {
            self.remove(at, len.min(end - at));
        }
    }

    /// Whether all of `[offset, offset + len)` is free (true for nothing).
    pub(crate) fn contains(&self, offset: u64, len: u64) -> bool {
        len == 0 || self.around(offset).is_some_and(|(start, size)| offset + len <= start + size)
    }

    /// A range of at least `len` with a low offset, if any is long enough.
    ///
    /// First fit, except that of the many that may or may not fit only the
    /// first few are looked at before a certain or the tightest fit is taken.
    pub(crate) fn find(&self, len: u64) -> Option<u64> {
        let class = class(len);
        let (own, above) = self.by_class.split_at(class + 1);
        let certain = above.iter().filter_map(|offsets| offsets.first()).min();
        let near = own.last()?.iter().take(MAX_TRIED_RANGES).find(|&&offset| self.starting_at(offset) >= len);
        let tightest = || self.by_size.range((len, 0)..).next().map(|&(_, offset)| offset);
        near.into_iter().chain(certain).min().copied().or_else(tightest)
    }

    /// Adds a range and merges it with its neighbours. It must not be free already.
    pub(crate) fn insert(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + len);
        if let Some((before, size)) = self.around(offset) {
            assert!(before + size <= offset, "bytes at {offset} were freed twice");
            if before + size == offset {
                self.unlink(before, size);
                start = before;
            }
        }
        if let Some((&after, &size)) = self.by_offset.range(offset..).next() {
            assert!(end <= after, "bytes at {after} were freed twice");
            if after == end {
                self.unlink(after, size);
                end = after + size;
            }
        }
        self.link(start, end - start);
    }

    /// Takes `[offset, offset + len)` out. All of it must be free.
    pub(crate) fn remove(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let Some((start, size)) = self.around(offset).filter(|(start, size)| offset + len <= start + size)
        else {
            panic!("{len} bytes at {offset} are taken but not free");
        };
        self.unlink(start, size);
        self.link(start, offset - start);
        self.link(offset + len, start + size - (offset + len));
    }

    /// The last range that begins at or before `offset`.
    fn around(&self, offset: u64) -> Option<(u64, u64)> {
        self.by_offset.range(..=offset).next_back().map(|(&start, &len)| (start, len))
    }

    fn link(&mut self, offset: u64, len: u64) {
        if len > 0 {
            let is_new = self.by_offset.insert(offset, len).is_none()
                && self.by_size.insert((len, offset))
                && self.by_class[class(len)].insert(offset);
            assert!(is_new, "a free range at {offset} is entered twice");
            self.total += len;
        }
    }

    fn unlink(&mut self, offset: u64, len: u64) {
        let is_known = self.by_offset.remove(&offset) == Some(len)
            && self.by_size.remove(&(len, offset))
            && self.by_class[class(len)].remove(&offset);
        assert!(is_known && self.total >= len, "a free range at {offset} is not in all indexes");
        self.total -= len;
    }
}

/// Power of two at or below `len`, which must not be zero.
fn class(len: u64) -> usize {
    len.ilog2() as usize
}
