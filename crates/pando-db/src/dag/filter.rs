//! A filter that says of most keys that are not in a table that they are not.
//!
//! A blocked Bloom filter: all bits of a key lie in one line of the processor's cache. Keys are only ever added, so
//! versions of a table share one filter until it is too small for one of them; what a later version added costs an earlier one a look in vain. It is as large as
//! the keys of its table need, because readers ask those of all tables, and these should stay in the processor's cache.
//!
//! Guarantee: a key that was added is found. May use: nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use xxhash_rust::xxh3::xxh3_64;

/// Words of a block: a line of 64 bytes.
const BLOCK_WORDS: usize = 8;
/// Keys for a block: a byte each, and so 3% of others in vain.
const BLOCK_KEYS: usize = 64;
/// Bits that a key sets.
const BITS: u32 = 4;
/// Bits of a hash that choose one bit of a block.
const CHOICE: u32 = (BLOCK_WORDS * 64).trailing_zeros();

/// Keys of a table, approximately.
#[derive(Clone)]
pub(crate) struct Filter(Arc<[AtomicU64]>);

/// What a filter sees of a key.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    pub fn of(key: &[u8]) -> Self {
        Self(xxh3_64(key))
    }

    fn block(self, blocks: usize) -> usize {
        (self.0 >> (BITS * CHOICE)) as usize % blocks
    }

    /// The word within its block and the mask of each bit.
    fn bits(self) -> impl Iterator<Item = (usize, u64)> {
        (0..BITS).map(move |i| {
            let choice = (self.0 >> (i * CHOICE)) as usize % (BLOCK_WORDS * 64);
            (choice / 64, 1 << (choice % 64))
        })
    }
}

impl Filter {
    /// A filter for so many keys.
    pub fn with_room(keys: usize) -> Self {
        let blocks = keys.div_ceil(BLOCK_KEYS).max(1);
        Self((0..blocks * BLOCK_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Keys for which it was made.
    pub fn room(&self) -> usize {
        self.blocks() * BLOCK_KEYS
    }

    fn blocks(&self) -> usize {
        self.0.len() / BLOCK_WORDS
    }

    pub fn add(&self, key: KeyHash) {
        let at = key.block(self.blocks()) * BLOCK_WORDS;
        for (word, mask) in key.bits() {
            // Whoever is to see the key gets the table through a lock or a slot, and with it these.
            self.0[at + word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    pub fn may_hold(&self, key: KeyHash) -> bool {
        let at = key.block(self.blocks()) * BLOCK_WORDS;
        key.bits().all(|(word, mask)| self.0[at + word].load(Ordering::Relaxed) & mask != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_and_little_else() {
        let filter = Filter::with_room(65_000);
        let hash = |i: u32| KeyHash::of(&i.to_be_bytes());
        (0..65_000).for_each(|i| filter.add(hash(i)));
        assert!((0..65_000).all(|i| filter.may_hold(hash(i))));
        let in_vain = (1_000_000..1_100_000).filter(|i| filter.may_hold(hash(*i))).count();
        assert!(in_vain < 5000, "{in_vain} of 100,000");
    }
}
