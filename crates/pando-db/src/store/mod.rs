//! The store: what lies on the device besides the meaning of nodes.
//!
//! `superblock` is where everything begins, `log` the redo log, `table` says where each node lies, `layout` decides
//! where a node is written, `scattered` how extents are named, written and read, and `bulk` places large values while
//! the log is written. `pager` reads and caches nodes and pages; with it go `page_id` (where they lie), `cache_key`,
//! `cached`, `sharded` and `ghost` (the cache), `row_cache` (single entries of pages), `inflight` (what is being read),
//! `lent` (reads into memory of the device), `sequence` (what is read in order), `unreadable` (what the device could
//! not read) and `written` (what was written lately). Nothing here applies messages or knows the shape of the DAG;
//! `bulk` tells values from other messages, and the row cache stores messages.

pub(crate) mod bulk;
mod cache_key;
mod cached;
mod ghost;
mod inflight;
pub(crate) mod layout;
mod lent;
pub mod log;
pub(crate) mod page_id;
pub(crate) mod pager;
mod row_cache;
pub(crate) mod scattered;
mod sequence;
mod sharded;
pub mod superblock;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod unreadable;
mod written;
