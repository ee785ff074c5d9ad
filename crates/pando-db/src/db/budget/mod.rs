//! How much memory and space a store may use, how much is in use, and what is left. Nothing is changed here but the
//! size of the cache.

pub(crate) mod memory;
pub(crate) mod space;
