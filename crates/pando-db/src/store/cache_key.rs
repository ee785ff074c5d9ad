//! What the caches of the store are keyed by, and how the keys are hashed. May use: nothing.

/// Where a piece is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheKey {
    pub extent: u64,
    /// Byte offset of the piece within the extent; the header is at 0.
    pub offset: u32,
}

/// A hash without random keys, so that evictions, and therefore reads, are deterministic. Only numbers of the store
/// itself are hashed, which no attacker chooses.
pub(crate) type Hashing = foldhash::fast::FixedState;
