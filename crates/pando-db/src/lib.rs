//! Pando's engine: an embeddable key-value store whose prefixes can be cloned
//! at the price of a small write.
//!
//! A [`Db`] keeps byte strings in order in a lifted B-epsilon-DAG over a
//! [`device::Device`]. Changes are made by atomic [`Batch`]es; the batch is
//! also the unit of recovery: after a crash the state is that of a prefix of
//! the batches, and contains every batch that was synced.

mod batch;
mod key;
pub mod device;
mod error;
mod merge;
mod options;
mod stats;
#[allow(dead_code, unused_imports)] // the floors above it are being built
mod store;

pub use batch::{Batch, Op};
pub use error::{Error, Result};
pub use merge::{Merge, PatchMerge, patch};
pub use options::{CreateOptions, Options};
pub use stats::Stats;

/// Longest key that a call accepts, in bytes.
pub const MAX_KEY: usize = 16 << 10;
/// Longest value that a call accepts, in bytes.
pub const MAX_VALUE: usize = 4 << 20;
