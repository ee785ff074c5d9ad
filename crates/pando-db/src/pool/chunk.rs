//! The only room of the crate with `unsafe`: memory of the kernel's, cut into pieces.
//!
//! What makes it sound: a [`Piece`] is made by [`Chunk::take`] only, which marks its units as taken, and these are marked
//! free only by [`Chunk::give`], which takes the piece away. So no two pieces overlap, and what no piece has may be
//! given to the kernel. A chunk that is dropped while there are pieces of it keeps its memory for good.

#![allow(unsafe_code)]

use std::{io, mem::ManuallyDrop, ptr::NonNull};

use memmap2::{MmapMut, UncheckedAdvice};

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 2 << 20;
/// Bytes that are taken and given at once.
pub(super) const UNIT: usize = 1 << 10;
const UNITS: usize = CHUNK / UNIT;
/// What the kernel takes back at once, at least. Where its pages are larger, it takes back nothing.
const SMALL_PAGE: usize = 4096;

/// A set of units.
type Units = [u64; UNITS / 64];

/// What a piece may be cut from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    /// What is in memory.
    Idle = 0,
    Any = 1,
}

pub(super) struct Chunk {
    map: ManuallyDrop<MmapMut>,
    base: NonNull<u8>,
    taken: Units,
    /// Not taken, and the kernel has them: never used, or given back.
    released: Units,
    taken_count: usize,
    released_count: usize,
    /// No more than so many units that follow each other are idle; or free.
    longest: [usize; 2],
}

// SAFETY: `base` points into `map`, which the chunk owns; nothing of it belongs to a thread.
unsafe impl Send for Chunk {}

/// Bytes of a chunk that nobody else has.
pub(super) struct Piece {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a piece is the only way to its bytes, which belong to no thread. Shared, it only lets read.
unsafe impl Send for Piece {}
unsafe impl Sync for Piece {}

impl Piece {
    pub fn address(&self) -> usize {
        self.at.addr().get()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes from `at` lie in the map of a chunk, which is there as long as the piece is; the kernel
        // has zeroed them, so they are initialised; and no other piece has any of them, nor is `self` borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Chunk {
    /// A chunk of which nothing is taken, and so nothing is in memory.
    pub fn new() -> io::Result<Chunk> {
        let mut map = MmapMut::map_anon(CHUNK)?;
        let base = NonNull::from(&mut map[..]).cast();
        Ok(Chunk {
            map: ManuallyDrop::new(map),
            base,
            taken: [0; UNITS / 64],
            released: [u64::MAX; UNITS / 64],
            taken_count: 0,
            released_count: UNITS,
            longest: [0, UNITS],
        })
    }

    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Units that nobody has, and that the kernel has not got back.
    pub fn idle(&self) -> usize {
        UNITS - self.taken_count - self.released_count
    }

    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.taken_count
    }

    pub fn is_empty(&self) -> bool {
        self.taken_count == 0
    }

    /// False if a piece of so many units certainly does not fit.
    pub fn may_fit(&self, units: usize, which: Free) -> bool {
        units <= self.longest[which as usize]
    }

    /// A piece of `len` bytes, not 0, if it fits.
    pub fn take(&mut self, len: usize, which: Free) -> Option<Piece> {
        let units = len.div_ceil(UNIT);
        if units == 0 {
            return None;
        }
        let found = match which {
            Free::Idle => find(|word| Some(self.taken.get(word)? | self.released.get(word)?), units),
            Free::Any => find(|word| self.taken.get(word).copied(), units),
        };
        let first = match found {
            Ok(first) => first,
            Err(longest) => {
                self.longest[which as usize] = longest;
                return None;
            }
        };
        set(&mut self.taken, first, units, true);
        self.released_count -= set(&mut self.released, first, units, false);
        self.taken_count += units;
        // SAFETY: `first + units` is at most `UNITS`, so this lies in the map.
        let at = unsafe { self.base.add(first * UNIT) };
        Some(Piece { at, len })
    }

    /// Takes a piece back.
    pub fn give(&mut self, piece: Piece) {
        let from = piece.address().wrapping_sub(self.address());
        assert!(from < CHUNK, "a piece of another chunk");
        let (first, units) = (from / UNIT, piece.len.div_ceil(UNIT));
        set(&mut self.taken, first, units, false);
        self.taken_count -= units;
        self.longest = [UNITS; 2];
    }

    /// Gives to the kernel all of its pages here that no piece has a part of.
    pub fn release(&mut self) {
        let mut at = 0;
        while at < UNITS {
            let taken = |word: usize| self.taken.get(word).copied();
            let first = next(taken, at, false);
            at = next(taken, first, true);
            let start = (first * UNIT).next_multiple_of(SMALL_PAGE);
            let end = at * UNIT / SMALL_PAGE * SMALL_PAGE;
            if start >= end
                || next(|word| self.released.get(word).copied(), start / UNIT, false) >= end / UNIT
            {
                continue;
            }
            // SAFETY: of these bytes nobody has a piece; that they become zeros is seen by nobody.
            let done =
                unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            if done.is_ok() {
                let (first, units) = (start / UNIT, (end - start) / UNIT);
                self.released_count += set(&mut self.released, first, units, true);
            }
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.is_empty() {
            // SAFETY: it is dropped only here, and there is no piece that points to it.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// The first of `count` units that follow each other and are not in a set, given by its words; or how many do, at most.
fn find(words: impl Fn(usize) -> Option<u64>, count: usize) -> Result<usize, usize> {
    let (mut at, mut longest) = (0, 0);
    while at < UNITS {
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

/// The first unit from `at` on that is in the set, or is not; or `UNITS`.
fn next(words: impl Fn(usize) -> Option<u64>, at: usize, is_in: bool) -> usize {
    let (mut word, mut skip) = (at / 64, at % 64);
    while let Some(bits) = words(word) {
        let bits = if is_in { bits } else { !bits } >> skip << skip;
        if bits != 0 {
            return word * 64 + bits.trailing_zeros() as usize;
        }
        (word, skip) = (word + 1, 0);
    }
    UNITS
}

/// Puts units into the set, or takes them out; how many were not, or were, in it.
fn set(units: &mut Units, first: usize, count: usize, is_in: bool) -> usize {
    let mut changed = 0;
    let (mut at, end) = (first, (first + count).min(UNITS));
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
        let pieces: Vec<Piece> = std::iter::from_fn(|| chunk.take(100 * UNIT - 5, Free::Any)).collect();
        assert_eq!((pieces.len(), chunk.idle()), (UNITS / 100, 0));
        assert!(!chunk.may_fit(100, Free::Any) && chunk.may_fit(UNITS % 100, Free::Any));
        let mut last = chunk.take(UNITS % 100 * UNIT, Free::Any).unwrap();
        last.bytes_mut().fill(1);
        assert!(chunk.take(1, Free::Any).is_none() && chunk.idle() == 0);
        for (i, piece) in pieces.into_iter().enumerate() {
            assert_eq!(piece.address() - chunk.address(), i * 100 * UNIT);
            chunk.give(piece);
        }
        assert_eq!((chunk.taken(), chunk.idle()), (UNITS % 100, UNITS - UNITS % 100));
        assert!(last.bytes().iter().all(|&byte| byte == 1));
        chunk.give(last);
        assert!(chunk.is_empty() && chunk.may_fit(UNITS, Free::Idle));
    }

    #[test]
    fn what_goes_to_the_kernel_is_counted_and_can_be_taken_again() {
        let mut chunk = Chunk::new().unwrap();
        // The second begins within a page of the kernel's, and the third ends in one.
        let mut pieces: Vec<Piece> =
            [9, 33, 40, 33].into_iter().map(|n| chunk.take(n * UNIT, Free::Any).unwrap()).collect();
        pieces.iter_mut().for_each(|piece| piece.bytes_mut().fill(3));
        assert_eq!(chunk.idle(), 0);
        let second = pieces.remove(1);
        chunk.give(second);
        assert_eq!(chunk.idle(), 33);
        chunk.release();
        // From 12 KiB to 40 KiB.
        assert_eq!(chunk.idle(), 33 - 28);
        let again = chunk.take(33 * UNIT, Free::Any).unwrap();
        assert_eq!(chunk.idle(), 0);
        assert!(
            again.bytes()[3 * UNIT..31 * UNIT].iter().all(|&byte| byte == 0),
            "the kernel has not got it"
        );
        assert!(pieces.iter().all(|piece| piece.bytes().iter().all(|&byte| byte == 3)));
        pieces.into_iter().chain([again]).for_each(|piece| chunk.give(piece));
        chunk.release();
        assert!(chunk.is_empty() && chunk.idle() == 0);
    }

    #[test]
    fn a_chunk_that_goes_first_leaves_its_pieces_their_memory() {
        let mut chunk = Chunk::new().unwrap();
        let mut piece = chunk.take(10 * UNIT, Free::Any).unwrap();
        drop(chunk);
        piece.bytes_mut().fill(9);
        assert!(piece.bytes().iter().all(|&byte| byte == 9));
    }
}
