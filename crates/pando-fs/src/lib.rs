//! Pando's file system: paths, inodes, files, directories and clones of whole
//! trees, as keys and messages of the engine. There is no FUSE in it.

mod api_stub;
mod error;
mod stats;
mod types;

pub use api_stub::Fs;
pub use error::{Error, Result};
pub use stats::{FsStats, Histogram};
pub use types::*;

/// Largest file size, bytes: 2^53.
pub const MAX_FILE_SIZE: u64 = 1 << 53;
/// Longest name of an entry, bytes.
pub const MAX_NAME: usize = 255;
/// Longest target of a symbolic link, bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Size of a data block, bytes.
pub const BLOCK_SIZE: u64 = 16 << 10;
