//! Streams that carry snapshots: written by a sender, read by a receiver, on any store of any shape.
//!
//! A stream holds what files are and hold, not how a store keeps them: a whole tree, or what to do to a tree that was
//! received before. `frame` has the bytes of the stream (blocks, each compressed, checksummed, numbered and chained),
//! `record` the records in them, `sender` reads a tree, or a difference, and writes records, `receiver` applies
//! records to a tree. Both work on any tree behind the traits of `tree`; `fs_tree` implements these for an open file
//! system.
//!
//! Guarantees: a receiver applies only blocks whose checksums and order are right; a stream that ends early, or
//! continues after its end, is an error; memory is bounded by a few blocks, whatever a stream says.

mod frame;
mod fs_tree;
mod plan;
mod receiver;
mod record;
mod sender;
mod tree;

use std::io;

pub use frame::{BLOCK_BYTES, BlockReader, BlockWriter, Header, Position};
pub use fs_tree::FsTree;
pub use receiver::{BlockOutcome, Receiver};
pub use record::{StreamRecord, Totals};
pub use sender::{Sender, StreamSize};
pub use tree::{FileMeta, SourceFile, SourceTree, TargetTree};

/// Why a stream could not be written, read or applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream itself could not be read or written.
    #[error("the stream: {0}")]
    Io(io::Error),
    /// The stream ends before its end record. What came is right, and the rest can be requested again.
    #[error("the stream ends early, at byte {at} (block {block})")]
    Cut {
        /// Byte of the stream.
        at: u64,
        /// Block that is missing, counted from 0.
        block: u64,
    },
    /// The bytes are not what a sender has written. What came before is right, and the rest can be requested again.
    #[error("the stream is damaged at byte {at} (block {block}): {what}")]
    Damaged {
        /// Byte of the stream where the block begins.
        at: u64,
        /// The block, counted from 0.
        block: u64,
        /// What is wrong.
        what: String,
    },
    /// What the stream says makes no sense, and every checksum is right: it would say the same again.
    #[error("the stream is damaged at byte {at} (block {block}): {what}")]
    Senseless {
        /// Byte of the stream where the block begins.
        at: u64,
        /// The block, counted from 0.
        block: u64,
        /// What is wrong.
        what: String,
    },
    /// This is no stream, or one of an unknown version or with unknown features.
    #[error("{0}")]
    Format(String),
    /// Something in the tree that is sent or received could not be done.
    #[error("{path}: {error}")]
    Tree {
        /// Where, from the top of the tree.
        path: String,
        /// What happened.
        error: io::Error,
    },
    /// The tree is not what the stream is about, or it cannot be sent.
    #[error("{0}")]
    Refused(String),
}

impl StreamError {
    /// Whether the rest of the stream, or another try, may bring it to an end.
    pub fn can_resume(&self) -> bool {
        use io::ErrorKind as K;
        match self {
            StreamError::Io(_) | StreamError::Cut { .. } | StreamError::Damaged { .. } => true,
            // A full or broken file system may be well again; what a tree or its rights do not allow stays so.
            StreamError::Tree { error, .. } => {
                error.raw_os_error() != Some(rustix::io::Errno::LOOP.raw_os_error())
                    && !matches!(
                        error.kind(),
                        K::PermissionDenied
                            | K::NotFound
                            | K::AlreadyExists
                            | K::NotADirectory
                            | K::IsADirectory
                            | K::DirectoryNotEmpty
                            | K::InvalidInput
                            | K::InvalidFilename
                            | K::FileTooLarge
                            | K::CrossesDevices
                            | K::TooManyLinks
                            | K::ArgumentListTooLong
                            | K::Unsupported
                    )
            }
            StreamError::Senseless { .. } | StreamError::Format(_) | StreamError::Refused(_) => false,
        }
    }

    pub(crate) fn at(path: &[u8]) -> impl FnOnce(io::Error) -> StreamError {
        let path = match path.is_empty() {
            true => ".".into(),
            false => String::from_utf8_lossy(path).into_owned(),
        };
        move |error| StreamError::Tree { path, error }
    }
}
