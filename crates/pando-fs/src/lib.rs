//! Placeholder of the crate's map; filled by the commits that follow.
