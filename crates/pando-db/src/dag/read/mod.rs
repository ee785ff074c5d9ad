//! Reading a version: point queries and scans.
//!
//! Nothing here takes a lock or changes anything. `view` answers point queries; `scan` finds segments of keys
//! over which the path does not change, `segment` merges what the sources of one say, `source` and `block`
//! take entries from pages and tables, `readahead` reads pages side by side; `diff` compares two prefixes.

pub(crate) mod block;
pub(crate) mod diff;
pub(crate) mod readahead;
pub(crate) mod scan;
pub(crate) mod segment;
mod source;
pub(crate) mod view;
