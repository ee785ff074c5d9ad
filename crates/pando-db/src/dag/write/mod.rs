//! Writing: flushing messages down, and keeping nodes within their limits.
//!
//! `root` applies a memtable, `absorb` adds messages to a node, `flush` moves them to a child, `split` and `flatten`
//! keep nodes within their sizes, `lower` reduces their height, `widen` lets an edge take in empty ranges beside it.

pub(crate) mod absorb;
pub(crate) mod flatten;
pub(crate) mod flush;
pub(crate) mod lower;
pub(crate) mod root;
pub(crate) mod split;
pub(crate) mod widen;
