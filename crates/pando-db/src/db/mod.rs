//! The engine: what holds log, memory and DAG together, and the calls of a [`Db`].
//!
//! `engine` is the state that all modules share. Each other module adds one thing that is done with it, and uses only
//! those before it in this list: `record` encodes batches for the log; `budget` computes how much memory and space is
//! left; `flush` applies memtables to the DAG, by edits; `checkpoint` makes the DAG durable, and frees what the last
//! checkpoint held; `background` collects garbage, flushes with the checkpoints that this needs, and has the threads;
//! `admission` admits a batch when there is space for it, and waits or frees space until then; `write` logs and
//! applies batches; `recover` opens a store, `cursor` reads, `handle` is the [`Db`], `diff` compares, and `api` has
//! the larger calls of a [`Db`], such as backup and check.
//!
//! A step of flushing makes no checkpoint: it returns that it needs one, and its callers in `background` make it. A
//! checkpoint does flush, by steps. Callers ask the threads for work with a [`engine::signal::Signal`].

pub(crate) mod admission;
pub(crate) mod api;
pub(crate) mod background;
pub(crate) mod budget;
pub(crate) mod checkpoint;
pub(crate) mod cursor;
pub(crate) mod diff;
pub(crate) mod engine;
pub(crate) mod flush;
pub(crate) mod handle;
pub(crate) mod record;
pub(crate) mod recover;
#[cfg(test)]
mod tests;
pub(crate) mod write;

pub use api::{
    backup::BackupReport,
    check::CheckReport,
    identity::{Identity, identify},
    inspect::{
        Content, EdgeInfo, EntryInfo, ExtentInfo, InspectOptions, Inspection, KeyRange, LayerInfo,
        MessageInfo, NodeInfo, OperationInfo, PageInfo, PathInfo, RangeInfo, TargetInfo, UpdateInfo,
    },
    restore::Backup,
    usage::Usage,
};
pub use cursor::{Cursor, PairRef, Snapshot};
pub use diff::{Change, Diff};
pub use engine::{report::Finding, throttle::DelaysPutOff};
pub use handle::Db;
