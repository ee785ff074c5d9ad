//! Extents in several ranges, for what finds no room in one piece.
//!
//! Such an extent has a *directory*, a block that says where its ranges are, and that it is known by. Guarantees: as
//! long as there are free bytes for an extent and its directory, it can be had, however small the ranges are, up to
//! [`MAX_EXTENT_RANGES`] of them: so a store with scattered free space can be filled, written and emptied like
//! another.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    device::BLOCK,
    error::{Error, Result},
    space::{Extent, Space, SpaceState, blocks},
};

/// Most ranges of an extent, a count: as many as its directory has room for.
pub const MAX_EXTENT_RANGES: usize = 340;

impl Extent {
    /// Whether it is in several ranges, with a directory.
    pub fn is_scattered(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Where its bytes are on the device, in order, without the directory.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let whole = (!self.is_scattered()).then(|| self.offset..self.offset + self.len);
        self.ranges.iter().cloned().chain(whole)
    }

    /// All ranges that the extent owns.
    pub fn owned(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let directory = self.is_scattered().then(|| self.offset..self.offset + BLOCK);
        directory.into_iter().chain(self.ranges())
    }

    /// Bytes that it owns.
    pub fn owned_bytes(&self) -> u64 {
        self.len + if self.is_scattered() { BLOCK } else { 0 }
    }

    /// Where `len` of its bytes are, from byte `from` of it on, in order. What lies behind its end is left out.
    pub fn places(&self, from: u64, len: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let (mut skip, mut left) = (from, len);
        self.ranges().filter_map(move |range| {
            let size = range.end - range.start;
            let skipped = skip.min(size);
            let taken = (size - skipped).min(left);
            (skip, left) = (skip - skipped, left - taken);
            (taken > 0).then(|| range.start + skipped..range.start + skipped + taken)
        })
    }

    /// Where `len` of its bytes begin on the device, from byte `from` of it on; `None` if they are in several places.
    pub fn place(&self, from: u64, len: u64) -> Option<u64> {
        if !self.is_scattered() {
            return Some(self.offset + from);
        }
        let first = self.places(from, len).next()?;
        (first.end - first.start == len).then_some(first.start)
    }
}

impl Space {
    /// Whether there is an extent in several ranges, or was since the store was opened.
    pub fn has_scattered(&self) -> bool {
        self.any_scattered.load(Relaxed)
    }

    /// Takes `len` bytes in one piece ([`Space::allocate`]), or else in several. Errors as there.
    pub fn allocate_anywhere(self: &Arc<Self>, len: u64) -> Result<Arc<Extent>> {
        match self.allocate(len) {
            Err(Error::NoSpace) => self.allocate_scattered(len),
            other => other,
        }
    }

    /// Takes `len` bytes, rounded up to whole blocks, in as few ranges as there may be, and a block for their
    /// directory. [`Error::NoSpace`] if so many are not free, or only in more ranges than [`MAX_EXTENT_RANGES`].
    pub fn allocate_scattered(self: &Arc<Self>, len: u64) -> Result<Arc<Extent>> {
        let len = blocks(len)?;
        if !self.ensure_backed(len.checked_add(BLOCK).ok_or(Error::NoSpace)?)? {
            return Err(Error::NoSpace);
        }
        let (offset, ranges) = self.state().take_scattered(len).ok_or(Error::NoSpace)?;
        Ok(self.extent_of(offset, len, ranges, false, true))
    }

    /// Marks a scattered extent as owned while a store is loaded: its directory at `offset` names `ranges`.
    ///
    /// Errors as for [`Space::adopt`], of each of these. A shared one that was adopted before is the same extent.
    pub fn adopt_scattered(
        self: &Arc<Self>,
        offset: u64,
        ranges: Vec<Range<u64>>,
        shared: bool,
    ) -> Result<Arc<Extent>> {
        let len = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        if ranges.is_empty() || ranges.len() > MAX_EXTENT_RANGES {
            return Err(Error::corrupt(
                "extent",
                offset,
                format!("its directory names {} ranges", ranges.len()),
            ));
        }
        let adopt = || {
            let own = self.adopt_range(offset, BLOCK);
            ranges.iter().fold(own, |done, range| {
                done.and_then(|()| self.adopt_range(range.start, range.end.saturating_sub(range.start)))
            })?;
            // It is unknown whether the medium has promised all of it: a copied image may have holes.
            Ok(self.extent_of(offset, len, ranges.clone(), shared, false))
        };
        match shared {
            true => self.adopt_once((offset, len, &ranges), adopt),
            false => adopt(),
        }
    }
}

impl SpaceState {
    /// Takes a block for a directory, and the longest ranges of free bytes; nothing if there are not enough.
    fn take_scattered(&mut self, len: u64) -> Option<(u64, Vec<Range<u64>>)> {
        if self.backed.total() < len + BLOCK {
            return None;
        }
        // The shortest range that there is.
        let directory = self.backed.shortest()?;
        self.remove(directory, BLOCK);
        let (mut ranges, mut left) = (Vec::new(), len);
        while left > 0 && ranges.len() < MAX_EXTENT_RANGES {
            let Some((offset, longest)) = self.backed.largest_range() else { break };
            let taken = longest.min(left);
            self.remove(offset, taken);
            ranges.push(offset..offset + taken);
            left -= taken;
        }
        if left > 0 {
            ranges.push(directory..directory + BLOCK);
            for range in ranges {
                self.backed.insert(range.start, range.end - range.start);
                self.free.insert(range.start, range.end - range.start);
            }
            return None;
        }
        self.allocated += len + BLOCK;
        Some((directory, ranges))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::MemDevice;

    /// Every second block is free.
    fn shreds(blocks: u64) -> (Arc<Space>, Vec<Arc<Extent>>) {
        let size = blocks * BLOCK;
        let space = Space::new(Arc::new(MemDevice::new(size)), 0, size);
        let mut all: Vec<_> = (0..blocks).map(|_| space.allocate(BLOCK).unwrap()).collect();
        let mut index = 0;
        all.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        (space, all)
    }

    #[test]
    fn the_last_free_blocks_can_be_had_however_they_lie() {
        let (space, kept) = shreds(64);
        assert_eq!(space.largest_free(), BLOCK);
        assert!(matches!(space.allocate(2 * BLOCK), Err(Error::NoSpace)));
        let free = space.free_bytes();
        assert!(matches!(space.allocate_scattered(free), Err(Error::NoSpace)));
        assert_eq!(space.free_bytes(), free, "a refusal takes nothing");
        let extent = space.allocate_scattered(free - BLOCK - 1).unwrap();
        assert_eq!((space.free_bytes(), extent.len, extent.owned_bytes()), (0, free - BLOCK, free));
        assert_eq!(extent.ranges().count() as u64, free / BLOCK - 1);
        assert!(extent.owned().all(|own| kept.iter().all(|k| k.offset != own.start)));
        // Bytes in the middle, over the ends of two ranges.
        let ranges: Vec<_> = extent.ranges().collect();
        let places: Vec<_> = extent.places(BLOCK + 10, 2 * BLOCK).collect();
        let ends = [(1, 10, BLOCK), (2, 0, BLOCK), (3, 0, 10)];
        assert_eq!(places, ends.map(|(i, from, to)| ranges[i].start + from..ranges[i].start + to));
        assert_eq!(extent.place(BLOCK + 10, 100), Some(ranges[1].start + 10));
        assert_eq!(extent.place(BLOCK + 10, BLOCK), None);
        drop(extent);
        assert_eq!(space.free_bytes(), free);
        space.check_lists();
    }

    #[test]
    fn no_more_ranges_are_taken_than_a_directory_names() {
        let (space, _kept) = shreds(4 * MAX_EXTENT_RANGES as u64);
        let free = space.free_bytes();
        let most = MAX_EXTENT_RANGES as u64 * BLOCK;
        assert!(matches!(space.allocate_scattered(most + 1), Err(Error::NoSpace)));
        assert_eq!(space.free_bytes(), free);
        assert_eq!(space.allocate_scattered(most).unwrap().ranges().count(), MAX_EXTENT_RANGES);
        space.check_lists();
    }

    #[test]
    fn a_scattered_extent_that_is_adopted_owns_its_ranges() {
        let size = 64 * BLOCK;
        let space = Space::new(Arc::new(MemDevice::new(size)), 0, size);
        let range = |from: u64, to: u64| from * BLOCK..to * BLOCK;
        let extent = space.adopt_scattered(5 * BLOCK, vec![range(7, 9), range(1, 2)], true).unwrap();
        assert_eq!((extent.len, space.used_bytes()), (3 * BLOCK, 4 * BLOCK));
        let same = space.adopt_scattered(5 * BLOCK, vec![range(7, 9), range(1, 2)], true).unwrap();
        assert!(Arc::ptr_eq(&extent, &same));
        assert!(
            space.adopt_shared(5 * BLOCK, 3 * BLOCK).is_err_and(|e| e.is_damage()),
            "it is in one piece there"
        );
        let wrong: [(u64, Vec<Range<u64>>); 6] = [
            (5, vec![range(20, 21)]),
            (30, vec![range(20, 22), range(21, 23)]),
            (30, vec![range(30, 31)]),
            (30, vec![range(60, 65)]),
            (30, vec![]),
            (30, vec![Range { start: 40 * BLOCK, end: 39 * BLOCK }]),
        ];
        for (offset, ranges) in wrong {
            let error = space.adopt_scattered(offset * BLOCK, ranges.clone(), false);
            assert!(error.is_err_and(|e| e.is_damage()), "{ranges:?}");
        }
    }
}
