//! The engine: what holds log, memory and DAG together, and the calls of a [`Db`].
//!
//! `engine` is the state that all share. Each other room adds one thing that is done with it, and uses only those
//! before it here: `record` encodes batches for the log; `budget` reckons how much memory and space is left; `flush`
//! brings messages into the DAG, by edits; `checkpoint` makes the DAG durable, and frees what the last one held;
//! `background` collects garbage, flushes with the checkpoints that it needs, and has the threads; `admission` lets a
//! batch in when there is room, or has room made; `write` takes batches in; `recover` opens a store, `cursor` reads,
//! `handle` is the [`Db`], `diff` compares, and `api` holds the calls of a [`Db`] that are programs of their own.
//!
//! So a step of flushing makes no checkpoint: it says that it has no room, and its callers in `background` make one. A
//! checkpoint does flush, by steps. What the threads are to do is asked for with a [`engine::signal::Signal`].

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
