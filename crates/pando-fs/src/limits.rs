//! The limits of the file system.
//!
//! Constants only; this module uses nothing.

/// Largest file size, bytes: 2^53.
pub const MAX_FILE_SIZE: u64 = 1 << 53;
/// Longest name of an entry, bytes.
pub const MAX_NAME: usize = 255;
/// Longest target of a symbolic link, bytes.
pub const MAX_SYMLINK: usize = 4095;
/// Size of a data block, bytes.
pub const BLOCK_SIZE: u64 = 16 << 10;
