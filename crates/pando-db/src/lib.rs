//! Pando's engine: an embeddable key-value store whose prefixes can be cloned
//! at the price of a small write.
//!
//! A [`Db`] keeps byte strings in order in a lifted B-epsilon-DAG over a
//! [`device::Device`]. Changes are made by atomic [`Batch`]es; the batch is
//! also the unit of recovery: after a crash the state is that of a prefix of
//! the batches, and contains every batch that was synced.
//!
//! ```
//! use std::sync::Arc;
//! use pando_db::{Db, CreateOptions, Options, device::MemDevice};
//!
//! # fn main() -> pando_db::Result<()> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
//! let db = Db::open(device, Options::default())?;
//! db.put("trees/aspen", "47000 trunks")?;
//! db.clone_prefix("trees/", "copy/")?;
//! db.put("copy/aspen", "one root")?;
//! assert_eq!(db.get(b"trees/aspen")?.as_deref(), Some(&b"47000 trunks"[..]));
//! assert_eq!(db.get(b"copy/aspen")?.as_deref(), Some(&b"one root"[..]));
//! db.close()?;
//! # Ok(())
//! # }
//! ```

mod batch;
mod dag;
mod db;
pub mod device;
mod error;
mod format;
mod key;
mod merge;
mod options;
mod pool;
mod stats;
mod store;
mod thread;

pub use batch::{Batch, Op};
pub use db::{Backup, BackupReport, CheckReport, Cursor, Db, Finding, PairRef, Snapshot};
/// What [`Db::inspect`] and [`Db::usage`] give.
pub use db::{
    Content, EdgeInfo, EntryInfo, ExtentInfo, InspectOptions, Inspection, KeyRange, LayerInfo, MessageInfo,
    NodeInfo, OperationInfo, PageInfo, PathInfo, RangeInfo, TargetInfo, UpdateInfo, Usage,
};
pub use error::{Error, Result};
pub use merge::{Merge, PatchMerge, patch};
pub use options::{Codec, CreateOptions, Options};
pub use stats::Stats;

/// Longest key that a call accepts, in bytes.
pub const MAX_KEY: usize = 16 << 10;
/// Longest operation that [`Batch::upsert_prefix`] accepts, in bytes: it may wait in many places at once.
pub const MAX_PREFIX_UPSERT: usize = 4 << 10;
/// Longest value that a call accepts, in bytes.
pub const MAX_VALUE: usize = 4 << 20;

/// Longest value that upserts may make of another, in bytes. An operation whose result would be longer does nothing:
/// the value stays as it was.
pub const MAX_MERGED: usize = 32 << 20;
