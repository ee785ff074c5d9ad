//! The engine: what holds log, memory and DAG together, and the calls of a [`Db`].
//!
//! `engine` is the state that all share; each other room adds one thing that is done with it: `write` takes
//! batches in, `admission` says when there is room for one, `background` flushes and collects garbage,
//! `checkpoint` makes things durable, `recover` opens a store, `cursor` reads, `diff` compares, and `api` holds the
//! calls of a [`Db`] that are programs of their own. May use everything below.

pub(crate) mod admission;
pub(crate) mod api;
pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod cursor;
pub(crate) mod diff;
pub(crate) mod engine;
pub(crate) mod handle;
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
pub use engine::report::Finding;
pub use handle::Db;
