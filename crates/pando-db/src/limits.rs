//! What a caller may ask of the engine at most. May use: nothing.

/// Longest key, in bytes. A call that is given a longer one, or that would make one by cloning or renaming, is
/// refused. (An older version let clones make longer ones: these can be read and deleted.)
pub const MAX_KEY: usize = 16 << 10;
/// Longest operation that [`crate::Batch::upsert_prefix`] accepts, in bytes: it may wait in many places at
/// once.
pub const MAX_PREFIX_UPSERT: usize = 4 << 10;
/// Longest value that a call accepts, in bytes. A batch, with its values, has at most a quarter of the log besides
/// ([`crate::CreateOptions::log_size`]), so this is the limit in stores of more than 256 MiB, and by default a 64th of
/// its size in a smaller one.
pub const MAX_VALUE: usize = 4 << 20;

/// Longest value that upserts may make of another, in bytes. An operation whose result would be longer does
/// nothing: the value stays as it was.
pub const MAX_MERGED: usize = 32 << 20;
