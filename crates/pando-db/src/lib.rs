//! Pando's engine: an embeddable key-value store whose prefixes can be cloned
//! at the price of a small write.
//!
//! A [`Db`] keeps byte strings in order in a lifted B-epsilon-DAG over a
//! [`device::Device`]. Changes are made by atomic [`Batch`]es; the batch is
//! also the unit of recovery: after a crash the state is that of a prefix of
//! the batches, and contains every batch that was synced.
//!
//! - A store lies in a sparse file, on a block device or in memory ([`Db::create`], [`Db::open`]). It is open once at a
//!   time for writing, or any number of times read-only ([`Options::read_only`]), in one or several processes.
//! - A [`Db`] is shared by cloning it; every call may come from any thread. Reads never wait for the I/O of a writer.
//! - What a call has written is visible to all threads when the call returns. It is durable when a later [`Db::sync`]
//!   returns, and without one after about a second ([`Options::sync_interval`]).
//! - [`Batch::expect`] makes a batch conditional, as for compare-and-set and optimistic transactions.
//! - A [`Snapshot`] is a consistent view to read, scan ([`Cursor`]) or back up ([`Snapshot::backup`]).
//! - [`Snapshot::diff`] gives the keys whose values differ between two prefixes. Where the two share the rest, as a
//!   clone and its source do, the cost is in proportion to what differs.
//! - [`Db::close`] makes a checkpoint. Dropping the last [`Db`] without it makes the log durable, but reports no
//!   error; the next opening replays the log.
//! - Upserts ([`Db::upsert`], [`Db::upsert_prefix`]) change values without reading them; [`Merge`] says what they
//!   mean.
//! - The programs in `examples` show all of this: `basics`, `branches`, `backup`, `versions`.
//! - A key has at most [`MAX_KEY`] bytes, a value [`MAX_VALUE`].
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

/// The examples of the project's README and of the crate's, so that they compile.
#[cfg(doctest)]
mod readme {
    #[doc = include_str!("../../../README.md")]
    mod project {}
    #[doc = include_str!("../README.md")]
    mod engine {}
}

mod batch;
mod codec;
mod dag;
mod db;
pub mod device;
mod error;
mod format;
mod key;
mod limits;
mod locks;
mod merge;
mod node;
mod options;
mod pool;
mod space;
mod stats;
mod store;
mod thread;
pub mod waiting;

pub use batch::{Batch, Op};
/// Keys and values, as calls give them: of the crate `bytes`.
pub use bytes::Bytes;
pub use db::{
    Backup, BackupReport, Change, CheckReport, Cursor, Db, DelaysPutOff, Diff, Finding, Identity, PairRef,
    Snapshot, identify,
};
/// What [`Db::inspect`] and [`Db::usage`] give.
pub use db::{
    Content, EdgeInfo, EntryInfo, ExtentInfo, InspectOptions, Inspection, KeyRange, LayerInfo, MessageInfo,
    NodeInfo, OperationInfo, PageInfo, PathInfo, RangeInfo, TargetInfo, UpdateInfo, Usage,
};
pub use error::{Error, Result};
pub use limits::{MAX_KEY, MAX_MERGED, MAX_PREFIX_UPSERT, MAX_VALUE};
pub use merge::{Merge, PatchMerge, patch};
pub use options::{Codec, CreateOptions, Options};
pub use stats::Stats;
