//! Detects sequential reads of leaf pages by their places on the device, so that the next pages are read ahead.
//!
//! A program that reads many small values in the order of their keys, each by a query of its own (as when it reads the
//! files of a directory), reads page after page of the same leaf. On a device without a cache, each page would be a
//! request. After [`MIN_READS`] pages that follow each other, a read also reads the pages behind, and more of them the
//! longer the sequence is ([`Sequences::missed`]), as readahead of files does. A sequence continues in another leaf if
//! it has come to the end of a leaf and the next read is one of the first page of a leaf. Several sequences are tracked
//! at a time, because a lookup and a read of a file continue in different places.
//!
//! Deterministic, no I/O. One short lock for each page that has to be read.

use crate::locks::Mutex;

/// Sequences that are tracked at a time: a count.
const SEQUENCES: usize = 16;
/// Reads in order, a count, from which on pages are read ahead.
const MIN_READS: u32 = 3;
/// Bytes that one read reads at first, and at most.
const FIRST_BYTES: usize = 64 << 10;
const MAX_AHEAD_BYTES: usize = 512 << 10;
/// At most so many bytes lie between two pages of a sequence: pages that were in memory already, or were not wanted.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// A sequence of pages that follow each other.
#[derive(Debug, Clone, Copy, Default)]
struct Sequence {
    /// The byte of the device behind the last page; 0 if there is no sequence.
    next: u64,
    /// The number of reads in it.
    reads: u32,
    /// True if the last page was the last one of its leaf.
    at_end: bool,
    /// The time of the last read, on a clock that counts reads.
    used: u64,
}

#[derive(Debug, Default)]
struct SequenceState {
    sequences: [Sequence; SEQUENCES],
    now: u64,
}

/// The sequences that are tracked.
#[derive(Debug, Default)]
pub(super) struct Sequences(Mutex<SequenceState>);

impl Sequences {
    /// Notes that a page of `len` bytes at byte `at` has to be read, and whether it is the first and the last one of
    /// its leaf. Returns how many bytes are to be read from there on; 0 if the page alone.
    pub fn missed(&self, at: u64, len: u32, (first, last): (bool, bool)) -> usize {
        let mut state = self.0.lock();
        let SequenceState { sequences, now } = &mut *state;
        *now += 1;
        let goes_on = |s: &Sequence| s.next != 0 && (s.next..s.next + MAX_GAP_BYTES).contains(&at);
        let newest = |s: &&mut Sequence| s.used;
        let found = sequences.iter_mut().filter(|s| goes_on(s)).max_by_key(newest);
        let found = match found {
            None if first => sequences.iter_mut().filter(|s| s.at_end).max_by_key(newest),
            found => found,
        };
        let reads = found.as_ref().map_or(1, |s| s.reads.saturating_add(1));
        let place = match found {
            Some(sequence) => Some(sequence),
            None => sequences.iter_mut().min_by_key(|s| s.used),
        };
        if let Some(sequence) = place {
            *sequence = Sequence { next: at + u64::from(len), reads, at_end: last, used: *now };
        }
        match reads.checked_sub(MIN_READS) {
            None => 0,
            Some(more) => (FIRST_BYTES << more.min(8)).min(MAX_AHEAD_BYTES),
        }
    }

    /// Notes that the read of the page that ends at byte `end` has also read what follows, up to byte `next`. `last`
    /// says whether the leaf ends there.
    pub fn brought(&self, end: u64, next: u64, last: bool) {
        let mut state = self.0.lock();
        if let Some(sequence) = state.sequences.iter_mut().find(|s| s.next == end) {
            sequence.next = next;
            sequence.at_end = last;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = 30_000;
    const INSIDE: (bool, bool) = (false, false);

    fn page(i: u64) -> u64 {
        (1 << 20) + i * u64::from(PAGE)
    }

    #[test]
    fn pages_in_order_bring_more_and_more() {
        let sequences = Sequences::default();
        let asked: Vec<_> = (0..8).map(|i| sequences.missed(page(i), PAGE, INSIDE)).collect();
        assert_eq!(asked, [0, 0, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 512 << 10, 512 << 10]);
    }

    #[test]
    fn what_a_read_brought_is_not_missed_again() {
        let sequences = Sequences::default();
        (0..3).for_each(|i| _ = sequences.missed(page(i), PAGE, INSIDE));
        sequences.brought(page(3), page(40), false);
        assert_eq!(sequences.missed(page(40), PAGE, INSIDE), 128 << 10);
        assert_eq!(sequences.missed(page(39), PAGE, INSIDE), 0, "backwards is no order");
    }

    #[test]
    fn a_sequence_goes_on_in_the_next_leaf() {
        let sequences = Sequences::default();
        (0..3).for_each(|i| _ = sequences.missed(page(i), PAGE, INSIDE));
        assert!(sequences.missed(page(3), PAGE, (false, true)) > 0);
        assert_eq!(sequences.missed(page(9000), PAGE, INSIDE), 0, "in the middle of a leaf it does not");
        assert!(sequences.missed(page(5000), PAGE, (true, false)) > 0);
    }

    #[test]
    fn several_are_followed_at_a_time_and_pages_at_random_are_none() {
        let sequences = Sequences::default();
        let asked: Vec<_> = (0..5)
            .flat_map(|i| [page(i), page(7000 + i)])
            .map(|at| sequences.missed(at, PAGE, INSIDE) > 0)
            .collect();
        assert_eq!(asked, [false, false, false, false, true, true, true, true, true, true]);
        let mut at = 1u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(sequences.missed(at >> 30, PAGE, INSIDE), 0);
        }
    }
}
