//! Filters of a memtable: they tell readers that a key is not in it, without a search.
//!
//! There are two. [`Heads`] are the bounds of the first bytes of all keys: if a program writes one range and reads
//! another, they are enough, and they lie in memory that each read touches anyway. [`Filter`] is a blocked Bloom
//! filter: all bits of a key lie in one line of the processor's cache. Keys are only ever added, so versions of a
//! table share one filter until it is too small for one of them; a key that a later version added costs an earlier
//! one a useless search. A filter is no larger than the keys of its table need, because readers ask the filters of
//! all tables, and these should stay in the processor's cache.
//!
//! Guarantee: a key that was added is found. May use: keys.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use xxhash_rust::xxh3::xxh3_64;

use crate::key::head;

/// Words of a block: a line of 64 bytes.
const BLOCK_WORDS: usize = 8;
/// Keys for a block: a byte for each, which gives 3% of false positives.
const BLOCK_KEYS: usize = 64;
/// Bits that a key sets.
const BITS_PER_KEY: u32 = 4;
/// Bits of a hash that choose one bit of a block.
const BITS_OF_CHOICE: u32 = (BLOCK_WORDS * 64).trailing_zeros();

/// Keys of a table, approximately.
#[derive(Clone)]
pub(crate) struct Filter(Arc<[AtomicU64]>);

/// The least and the greatest head of all keys that a table ever had. Removed keys do not narrow the bounds.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    least: u64,
    greatest: u64,
}

/// The parts of a key that both filters use.
#[derive(Clone, Copy)]
pub(crate) struct KeyMark {
    head: u64,
    hash: u64,
}

impl Heads {
    pub const NONE: Heads = Heads { least: u64::MAX, greatest: 0 };

    pub fn add(&mut self, key: KeyMark) {
        self.least = self.least.min(key.head);
        self.greatest = self.greatest.max(key.head);
    }

    pub fn may_hold(&self, key: KeyMark) -> bool {
        (self.least..=self.greatest).contains(&key.head)
    }
}

impl KeyMark {
    pub fn of(key: &[u8]) -> Self {
        Self { head: head(key), hash: xxh3_64(key) }
    }

    fn block(self, blocks: usize) -> usize {
        (self.hash >> (BITS_PER_KEY * BITS_OF_CHOICE)) as usize % blocks
    }

    /// The word within its block and the mask of each bit.
    fn bits(self) -> impl Iterator<Item = (usize, u64)> {
        (0..BITS_PER_KEY).map(move |i| {
            let choice = (self.hash >> (i * BITS_OF_CHOICE)) as usize % (BLOCK_WORDS * 64);
            (choice / 64, 1 << (choice % 64))
        })
    }
}

impl Filter {
    /// An empty filter for that number of keys.
    pub fn with_capacity(keys: usize) -> Self {
        let blocks = keys.div_ceil(BLOCK_KEYS).max(1);
        Self((0..blocks * BLOCK_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// The number of keys for which it was made.
    pub fn capacity(&self) -> usize {
        self.blocks() * BLOCK_KEYS
    }

    fn blocks(&self) -> usize {
        self.0.len() / BLOCK_WORDS
    }

    pub fn add(&self, key: KeyMark) {
        let at = key.block(self.blocks()) * BLOCK_WORDS;
        for (word, mask) in key.bits() {
            // Relaxed is enough: readers get the table through a lock or a slot, which orders these bits too.
            self.0[at + word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    pub fn may_hold(&self, key: KeyMark) -> bool {
        let at = key.block(self.blocks()) * BLOCK_WORDS;
        key.bits().all(|(word, mask)| self.0[at + word].load(Ordering::Relaxed) & mask != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let filter = Filter::with_capacity(65_000);
        let hash = |i: u32| KeyMark::of(&i.to_be_bytes());
        (0..65_000).for_each(|i| filter.add(hash(i)));
        assert!((0..65_000).all(|i| filter.may_hold(hash(i))));
        let in_vain = (1_000_000..1_100_000).filter(|i| filter.may_hold(hash(*i))).count();
        assert!(in_vain < 5000, "{in_vain} of 100,000");
    }

    #[test]
    fn keys_outside_of_those_that_were_added_are_told_by_their_heads() {
        let mut heads = Heads::NONE;
        let may_hold = |heads: Heads, key: &[u8]| heads.may_hold(KeyMark::of(key));
        assert!(![&b""[..], b"a", &[0xff; 9]].into_iter().any(|key| may_hold(heads, key)));
        heads.add(KeyMark::of(b"beeches and oaks"));
        assert!(may_hold(heads, b"beeches and oaks") && !may_hold(heads, b"a") && !may_hold(heads, b"c"));
        // Eight bytes are all that they see.
        assert!(may_hold(heads, b"beeches "));
        heads.add(KeyMark::of(b""));
        assert!(may_hold(heads, b"") && may_hold(heads, b"a") && !may_hold(heads, b"c"));
    }
}
