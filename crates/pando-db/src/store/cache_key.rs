//! What the caches of the store are keyed by, and how the keys are hashed. May use: nothing.

/// Where a piece is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CacheKey {
    pub extent: u64,
    /// Byte offset of the piece within the extent; the header is at 0.
    pub offset: u32,
}

/// Without random keys: what is evicted, and so what is read, follows from what was done. The numbers
/// hashed are the store's own; nobody chooses them.
pub(crate) type Hashing = foldhash::fast::FixedState;
