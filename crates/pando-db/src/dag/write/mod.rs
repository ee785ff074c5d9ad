//! Writing: messages go down, and nodes stay within their limits.
//!
//! `root` takes an in-memory table in, `absorb` messages into one node, `flush` moves them to a child,
//! `split` and `flatten` keep nodes neither too large nor too small, `lower` makes them lower.

pub(crate) mod absorb;
pub(crate) mod flatten;
pub(crate) mod flush;
pub(crate) mod lower;
pub(crate) mod root;
pub(crate) mod split;
