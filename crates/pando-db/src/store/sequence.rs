//! Sequential reads of leaf pages, recognised by their places, so that the next pages are read with one request. A
//! program that reads many small values in the order of their keys, each by a query of its own (as when it reads the
//! files of a directory), asks for page after page of the same leaf. On a device without a cache of its own below,
//! each would be a request. After [`MIN_READS`] pages that lie behind each other a read brings what follows as well,
//! the longer the more ([`Sequences::missed`]), as with files: at most twice what is wanted, if it goes on. A
//! sequence goes on in another leaf where it came to the end of one and somebody begins with the first page of
//! another. Several sequences are followed at a time, because a lookup and a read of a file continue in different
//! places.
//!
//! Deterministic, no I/O. One short lock for each page that has to be read. May use nothing.

use crate::locks::Mutex;

/// Sequences that are followed at a time: a count.
const SEQUENCES: usize = 16;
/// Reads in order after which more is read: a count.
const MIN_READS: u32 = 3;
/// What one read brings at first and at most, in bytes.
const FIRST_BYTES: usize = 64 << 10;
const MAX_AHEAD_BYTES: usize = 512 << 10;
/// Most that may lie between two pages of a sequence, in bytes: what was in memory already, or was not wanted.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// Pages that were read one behind the other.
#[derive(Debug, Clone, Copy, Default)]
struct Sequence {
    /// Byte of the device behind the last one; 0: there is none.
    next: u64,
    /// How many reads there were.
    reads: u32,
    /// The last one was the last of its leaf.
    at_end: bool,
    /// When it was gone on with last.
    used: u64,
}

#[derive(Debug, Default)]
struct SequenceState {
    sequences: [Sequence; SEQUENCES],
    now: u64,
}

/// What is known of sequences.
#[derive(Debug, Default)]
pub(super) struct Sequences(Mutex<SequenceState>);

impl Sequences {
    /// Notes that a page of `len` bytes at byte `at` has to be read, which is the first or the last of its leaf, or
    /// not. Bytes to read from there on; 0: the page alone.
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

    /// Notes that the read of the page that ends at byte `end` has brought what lies up to byte `next`.
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
