//! The store: what lies on the device besides the meaning of nodes.
//!
//! `superblock` is where everything begins, `log` the redo log, `table` says where each node lies, `pager`
//! reads and caches nodes and pages, `page_id` knows where these lie, `inflight` what is being read, `lent` reads into
//! memory of the device, `sequence` knows what is read in order, `row_cache` keeps single entries of pages, `layout`
//! decides where a node is written, `scattered` how extents are named, written and read, `bulk` places large values
//! while the log is written. May use: `device`, `space`, `node` and `format`; knows nothing of messages' meaning or of
//! the DAG's shape.

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
mod unreadable;
mod written;
