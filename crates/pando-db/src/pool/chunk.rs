//! The only module of the crate with `unsafe`: anonymous memory from the kernel, cut into allocations.
//!
//! Why it is sound: only a [`Chunk`] makes an [`Allocation`], and marks its units as taken; only [`Chunk::give`]
//! marks them free, and consumes the allocation. So no two allocations overlap. Memory that is returned to the kernel
//! is first taken as an allocation, so no buffer has any of it. A chunk that is dropped while it has allocations
//! leaks its memory.

#![allow(unsafe_code)]

use std::{io, mem::ManuallyDrop, ops::Range, ptr::NonNull};

use memmap2::MmapMut;
use rustix::{
    mm::{Advice, madvise},
    param::page_size,
};

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 2 << 20;
/// Bytes of a unit: an allocation has whole units.
pub(crate) const UNIT_BYTES: usize = 1 << 10;
const CHUNK_UNITS: usize = CHUNK_BYTES / UNIT_BYTES;

/// A set of units.
type Units = [u64; CHUNK_UNITS / 64];

/// The free units that an allocation may be cut from.
#[derive(Clone, Copy)]
pub(crate) enum Free {
    /// Units in memory: they were not returned to the kernel.
    Idle = 0,
    Any = 1,
}

pub(crate) struct Chunk {
    map: ManuallyDrop<MmapMut>,
    base: NonNull<u8>,
    taken: Units,
    /// Units that are neither taken nor in memory: never used, or returned to the kernel.
    released: Units,
    taken_count: usize,
    released_count: usize,
    /// Upper bounds of the longest run of idle units, and of free units, in units. Indexed by [`Free`].
    longest: [usize; 2],
}

// SAFETY: `base` points into `map`, which the chunk owns, and nothing in it is bound to a thread.
unsafe impl Send for Chunk {}

/// Bytes of a chunk that no other allocation has.
pub(crate) struct Allocation {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: its bytes are reached through the allocation only, and are bound to no thread. A shared reference only
// reads.
unsafe impl Send for Allocation {}
unsafe impl Sync for Allocation {}

impl Allocation {
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn units(&self) -> usize {
        self.len.div_ceil(UNIT_BYTES)
    }

    /// Returns the memory to the kernel, after which it reads as zeros. False if the kernel refuses, or if the
    /// allocation is not whole pages of the kernel.
    pub fn release(&mut self) -> bool {
        let page = page_size();
        let whole_pages = self.address().is_multiple_of(page) && self.len.is_multiple_of(page);
        // SAFETY: these are whole pages of the kernel's, so only the bytes of this allocation change, which no other
        // allocation has, and `self` is borrowed mutably.
        whole_pages && unsafe { madvise(self.at.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }.is_ok()
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes from `at` lie in the map of a chunk, which is there as long as the allocation is; the
        // kernel has zeroed them, so they are initialised; no other allocation has any of them, and `self` is not
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Chunk {
    /// A new chunk: no unit is taken, and none is in memory.
    pub fn new() -> io::Result<Chunk> {
        let mut map = MmapMut::map_anon(CHUNK_BYTES)?;
        // Filling a new chunk costs more in page faults than in reading; a huge page needs one fault instead of
        // hundreds. This is a hint: a kernel without huge pages, or with none free, uses small ones.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let base = NonNull::from(&mut map[..]).cast();
        Ok(Chunk {
            map: ManuallyDrop::new(map),
            base,
            taken: [0; CHUNK_UNITS / 64],
            released: [u64::MAX; CHUNK_UNITS / 64],
            taken_count: 0,
            released_count: CHUNK_UNITS,
            longest: [0, CHUNK_UNITS],
        })
    }

    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Number of units that are free and in memory.
    pub fn idle(&self) -> usize {
        CHUNK_UNITS - self.taken_count - self.released_count
    }

    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken_count
    }

    pub fn is_empty(&self) -> bool {
        self.taken_count == 0
    }

    /// False if an allocation of so many units certainly does not fit.
    pub fn may_fit(&self, units: usize, which: Free) -> bool {
        units <= self.longest[which as usize]
    }

    /// The set of units, by its words, that an allocation of this kind cannot have.
    fn busy(&self, which: Free) -> impl Fn(usize) -> Option<u64> {
        move |word| match which {
            Free::Idle => Some(self.taken.get(word)? | self.released.get(word)?),
            Free::Any => self.taken.get(word).copied(),
        }
    }

    /// An allocation of `len` bytes; none if it does not fit, or if `len` is 0.
    pub fn take(&mut self, len: usize, which: Free) -> Option<Allocation> {
        let units = len.div_ceil(UNIT_BYTES);
        if units == 0 {
            return None;
        }
        let first = match find(self.busy(which), units) {
            Ok(first) => first,
            Err(longest) => {
                self.longest[which as usize] = longest;
                return None;
            }
        };
        Some(self.cut(first, len))
    }

    /// Takes an allocation back. `released`: its memory has gone to the kernel.
    pub fn give(&mut self, allocation: Allocation, released: bool) {
        let from = allocation.address().wrapping_sub(self.address());
        assert!(from < CHUNK_BYTES, "an allocation of another chunk");
        let (first, units) = (from / UNIT_BYTES, allocation.units());
        set(&mut self.taken, first, units, false);
        self.taken_count -= units;
        self.longest = [CHUNK_UNITS; 2];
        if released {
            self.released_count += set(&mut self.released, first, units, true);
        }
    }

    /// Takes all idle memory that makes up whole pages of the kernel's, which have `page` bytes, so that the caller
    /// can give it to the kernel.
    pub fn cut_idle(&mut self, page: usize) -> Vec<Allocation> {
        let mut cut = Vec::new();
        let mut at = 0;
        while at < CHUNK_UNITS {
            let first = next(self.busy(Free::Idle), at, false);
            at = next(self.busy(Free::Idle), first, true);
            let pages = whole_pages(first * UNIT_BYTES..at * UNIT_BYTES, page);
            if !pages.is_empty() {
                cut.push(self.cut(pages.start / UNIT_BYTES, pages.len()));
            }
        }
        cut
    }

    /// Takes `len` bytes from the unit `first` on, all of which are free.
    fn cut(&mut self, first: usize, len: usize) -> Allocation {
        let units = len.div_ceil(UNIT_BYTES);
        assert!(first + units <= CHUNK_UNITS, "an allocation that reaches beyond its chunk");
        let free = set(&mut self.taken, first, units, true);
        assert_eq!(free, units, "an allocation that overlaps another one");
        self.released_count -= set(&mut self.released, first, units, false);
        self.taken_count += units;
        // SAFETY: it lies in the map, as asserted.
        let at = unsafe { self.base.add(first * UNIT_BYTES) };
        Allocation { at, len }
    }

    /// Counts the units anew, and compares.
    #[cfg(test)]
    pub fn check(&self) {
        let count = |units: &Units| units.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        assert_eq!((self.taken_count, self.released_count), (count(&self.taken), count(&self.released)));
        assert!(self.taken.iter().zip(&self.released).all(|(taken, released)| taken & released == 0));
        for which in [Free::Idle, Free::Any] {
            assert!(
                find(self.busy(which), CHUNK_UNITS + 1)
                    .is_err_and(|longest| longest <= self.longest[which as usize])
            );
        }
    }
}

/// The part of a range of bytes that is whole pages.
fn whole_pages(bytes: Range<usize>, page: usize) -> Range<usize> {
    bytes.start.next_multiple_of(page)..bytes.end / page * page
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.is_empty() {
            // SAFETY: the map is dropped only here, and no allocation points to it.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// First unit of a run of `count` units that are not in a set, given by its words. `Err`: length of the longest run.
fn find(words: impl Fn(usize) -> Option<u64>, count: usize) -> Result<usize, usize> {
    let (mut at, mut longest) = (0, 0);
    while at < CHUNK_UNITS {
        let first = next(&words, at, false);
        let end = next(&words, first, true);
        if end - first >= count {
            return Ok(first);
        }
        longest = longest.max(end - first);
        at = end;
    }
    Err(longest)
}

/// The first unit from `at` on that is in the set, or is not; or `CHUNK_UNITS`.
fn next(words: impl Fn(usize) -> Option<u64>, at: usize, is_in: bool) -> usize {
    let (mut word, mut skip) = (at / 64, at % 64);
    while let Some(bits) = words(word) {
        let bits = (if is_in { bits } else { !bits }) >> skip << skip;
        if bits != 0 {
            return word * 64 + bits.trailing_zeros() as usize;
        }
        (word, skip) = (word + 1, 0);
    }
    CHUNK_UNITS
}

/// Puts units into the set, or takes them out. Gives how many units this has changed.
fn set(units: &mut Units, first: usize, count: usize, is_in: bool) -> usize {
    let mut changed = 0;
    let (mut at, end) = (first, (first + count).min(CHUNK_UNITS));
    while at < end {
        let here = (end - at).min(64 - at % 64);
        let mask = (u64::MAX >> (64 - here)) << (at % 64);
        let word = &mut units[at / 64];
        let new = if is_in { *word | mask } else { *word & !mask };
        changed += (*word ^ new).count_ones() as usize;
        *word = new;
        at += here;
    }
    changed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_chunk_is_cut_from_its_beginning_to_its_end_and_no_further() {
        let mut chunk = Chunk::new().unwrap();
        assert_eq!((chunk.idle(), chunk.is_empty()), (0, true));
        let allocations: Vec<Allocation> =
            std::iter::from_fn(|| chunk.take(100 * UNIT_BYTES - 5, Free::Any)).collect();
        assert_eq!((allocations.len(), chunk.idle()), (CHUNK_UNITS / 100, 0));
        assert!(!chunk.may_fit(100, Free::Any) && chunk.may_fit(CHUNK_UNITS % 100, Free::Any));
        let mut last = chunk.take(CHUNK_UNITS % 100 * UNIT_BYTES, Free::Any).unwrap();
        last.bytes_mut().fill(1);
        assert!(chunk.take(1, Free::Any).is_none() && chunk.idle() == 0);
        for (i, allocation) in allocations.into_iter().enumerate() {
            assert_eq!(allocation.address() - chunk.address(), i * 100 * UNIT_BYTES);
            chunk.give(allocation, false);
        }
        assert_eq!((chunk.taken(), chunk.idle()), (CHUNK_UNITS % 100, CHUNK_UNITS - CHUNK_UNITS % 100));
        assert!(last.bytes().iter().all(|&byte| byte == 1));
        chunk.give(last, false);
        assert!(chunk.is_empty() && chunk.may_fit(CHUNK_UNITS, Free::Idle));
    }

    /// Whatever the size of the kernel's pages: nothing goes to it that an allocation has a part of.
    #[test]
    fn what_goes_to_the_kernel_is_counted_and_can_be_taken_again() {
        for page in [4096, 16 << 10, 64 << 10] {
            let mut chunk = Chunk::new().unwrap();
            // The second begins within a page of the kernel's, and the third ends in one.
            let sizes = [9, 150, 40, 33];
            let mut allocations: Vec<Allocation> =
                sizes.into_iter().map(|n| chunk.take(n * UNIT_BYTES, Free::Any).unwrap()).collect();
            allocations.iter_mut().for_each(|allocation| allocation.bytes_mut().fill(3));
            assert_eq!(chunk.idle(), 0);
            let second = allocations.remove(1);
            chunk.give(second, false);
            assert_eq!(chunk.idle(), 150);
            let mut cut = chunk.cut_idle(page);
            chunk.check();
            let pages = (9 * UNIT_BYTES).next_multiple_of(page)..159 * UNIT_BYTES / page * page;
            assert_eq!((cut.len(), cut[0].address() - chunk.address()), (1, pages.start));
            assert_eq!(cut[0].len(), pages.len());
            assert!(cut[0].release());
            chunk.give(cut.remove(0), true);
            assert_eq!(chunk.idle(), 150 - pages.len() / UNIT_BYTES);
            assert!(chunk.cut_idle(page).is_empty(), "what the kernel has cannot be given to it");
            chunk.check();
            let again = chunk.take(150 * UNIT_BYTES, Free::Any).unwrap();
            assert_eq!(chunk.idle(), 0);
            let start = pages.start - 9 * UNIT_BYTES;
            let zeros = &again.bytes()[start..start + pages.len()];
            assert!(zeros.iter().all(|&byte| byte == 0), "the kernel has not got it");
            assert!(
                allocations.iter().all(|allocation| allocation.bytes().iter().all(|&byte| byte == 3)),
                "{page}"
            );
            allocations.into_iter().chain([again]).for_each(|allocation| chunk.give(allocation, false));
            chunk.check();
            assert!(chunk.is_empty());
        }
    }

    #[test]
    fn parts_of_pages_do_not_go_to_the_kernel() {
        let mut chunk = Chunk::new().unwrap();
        let mut allocations: Vec<Allocation> =
            (0..3).map(|_| chunk.take(9 * UNIT_BYTES, Free::Any).unwrap()).collect();
        allocations[1].bytes_mut().fill(1);
        assert!(!allocations[1].release(), "neither its beginning nor its end is that of a page");
        assert!(allocations[1].bytes().iter().all(|&byte| byte == 1));
        allocations.into_iter().for_each(|allocation| chunk.give(allocation, false));
    }

    #[test]
    fn a_chunk_that_goes_first_leaves_its_pieces_their_memory() {
        let mut chunk = Chunk::new().unwrap();
        let mut allocation = chunk.take(10 * UNIT_BYTES, Free::Any).unwrap();
        drop(chunk);
        allocation.bytes_mut().fill(9);
        assert!(allocation.bytes().iter().all(|&byte| byte == 9));
    }
}
