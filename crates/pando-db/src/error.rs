//! What can go wrong in the engine, as types.
//!
//! Every fallible public call returns [`Result`]. Nothing that comes from a
//! device or a caller makes the engine panic: it becomes one of these values.
//! Depends on nothing else in the crate.

use std::{io, path::Path};

use bytes::Bytes;

/// Result of an engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An engine error.
///
/// The variants tell a caller what it can do: retry elsewhere (`NoSpace`),
/// correct its call (`Invalid`, `TooLarge`, `Overlap`), read again and repeat (`Conflict`), stop (`Io`,
/// `Corrupt`, `Stopped`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed a request.
    #[error("{action} at byte {offset}: {source}")]
    Io {
        /// What was being done, for example `read` or `flush`.
        action: &'static str,
        /// Byte offset on the device (0 where it has no meaning).
        offset: u64,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Bytes on the device are not what their checksum or format says.
    #[error("corrupt {what} at byte {offset}: {detail}")]
    Corrupt {
        /// Which structure, for example `superblock` or `node page`.
        what: &'static str,
        /// Byte offset on the device (0 where unknown).
        offset: u64,
        /// What was expected and what was found.
        detail: String,
    },
    /// The store, or the disk under a sparse image, is full. Nothing has changed, and reads go on.
    ///
    /// Deletes are let in longer than other batches, because a part of the store is reserved for them: delete, then
    /// write again. The space of what was deleted is freed before a write is refused, or by [`crate::Db::settle`];
    /// what a [`crate::Snapshot`] or [`crate::Cursor`] can still reach is freed when that is dropped.
    /// [`crate::Db::grow`] makes the store larger, and [`crate::Db::space`] says how much is left.
    ///
    /// A store is full before live data fill it: nodes have room for changes, and a part is reserved. With small random
    /// values, live data were 53 to 80% of a full store, the less the smaller the nodes and the more was overwritten.
    #[error("no space left in the store")]
    NoSpace,
    /// An earlier write or flush failed; the store accepts no more changes.
    #[error("the store stopped accepting changes: {reason}")]
    Stopped {
        /// The first failure.
        reason: String,
    },
    /// The store was opened read-only.
    #[error("the store is open read-only")]
    ReadOnly,
    /// A key, value or batch above its stated limit.
    #[error("{what} of {len} bytes is over the limit of {limit}")]
    TooLarge {
        /// For example `key`, `value`, `batch`, `operation on a prefix`; a part of a node, if a store stops because
        /// that would become too long. For messages, not for decisions: there may be more in later versions.
        what: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A key does not have the value that a batch expects ([`crate::Batch::expect`]), or there is one under a prefix
    /// under which the batch expects none ([`crate::Batch::expect_empty`]). Nothing of the batch was applied.
    #[error("conflict: key {:?} {}", String::from_utf8_lossy(.key), conflict(.found))]
    Conflict {
        /// The first of the expected keys that has another value, or the first key under such a prefix.
        key: Bytes,
        /// The value it has; `None` if it has none.
        found: Option<Bytes>,
    },
    /// Source and destination of a clone or rename lie inside one another.
    #[error("source and destination overlap: one is a prefix of the other")]
    Overlap,
    /// The device holds no store, or one of another version.
    #[error("not a usable store: {0}")]
    Format(String),
    /// The store is open already, in this process or another, and one of the two opens it for writing. A snapshot or
    /// a cursor of it keeps it open too.
    #[error("the store is open already, here or in another process")]
    Locked,
    /// The caller has asked to stop: see [`crate::Diff::stop_on`].
    #[error("it was stopped")]
    Interrupted,
    /// A parameter out of its range.
    #[error("invalid argument: {0}")]
    Invalid(String),
}

impl Error {
    /// An I/O error with its place.
    pub fn io(action: &'static str, offset: u64, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NOSPC.raw_os_error() => Error::NoSpace,
            _ => Error::Io { action, offset, source },
        }
    }

    /// A corruption with its place.
    pub fn corrupt(what: &'static str, offset: u64, detail: impl Into<String>) -> Self {
        Error::Corrupt { what, offset, detail: detail.into() }
    }

    /// The error with the file or device that it is about.
    pub(crate) fn of(self, path: &Path) -> Self {
        match self {
            Error::Io { action, offset, source } => {
                let source =
                    io::Error::new(source.kind(), OfPath { path: path.display().to_string(), source });
                Error::Io { action, offset, source }
            }
            Error::Corrupt { what, offset, detail } => {
                Error::Corrupt { what, offset, detail: format!("{detail} ({})", path.display()) }
            }
            Error::Format(why) => Error::Format(format!("{}: {why}", path.display())),
            other => other,
        }
    }

    /// True if data could not be read or is corrupt. Other parts of the store may be intact.
    pub fn is_damage(&self) -> bool {
        match self {
            Error::Corrupt { .. } => true,
            Error::Io { action, .. } => *action == "read",
            _ => false,
        }
    }
}

/// An error of the operating system, and where.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
struct OfPath {
    path: String,
    #[source]
    source: io::Error,
}

/// The outcome, or `otherwise` if something could not be read.
pub(crate) fn or_if_damaged<T>(outcome: Result<T>, otherwise: T) -> Result<T> {
    match outcome {
        Err(error) if error.is_damage() => Ok(otherwise),
        other => other,
    }
}

/// The description of the value that was found, without the value itself, which may be long or secret.
fn conflict(found: &Option<Bytes>) -> String {
    match found {
        Some(value) => format!("has a value that was not expected ({} bytes)", value.len()),
        None => "has no value, but one is expected".into(),
    }
}
