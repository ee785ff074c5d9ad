//! What a store must be able to do to take part.
//!
//! Every engine has an adapter in a file of its own, which maps these few
//! calls to what its makers recommend for them, and nothing else. An adapter
//! must not cache, defer or skip work.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::data::Key;

/// One change.
#[derive(Clone, Copy)]
pub enum Op<'a> {
    /// Sets a key.
    Put(&'a [u8], &'a [u8]),
    /// Adds to the little-endian counter in the first eight bytes of a value.
    Add(&'a [u8], u64),
}

/// How a store is opened.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Settings {
    /// Memory for cached and buffered data, in bytes.
    pub cache: u64,
    /// Most bytes that will ever be in the store.
    pub room: u64,
}

/// Where read values go.
pub type ValueSink<'a> = &'a mut dyn FnMut(Option<&[u8]>) -> Result<()>;
/// Where scanned pairs go.
pub type PairSink<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// Pairs that one batch of a copy holds.
pub const COPY_BATCH: usize = 10_000;

/// An open store.
pub trait Engine: Send + Sync {
    /// Applies all changes or none. With `durable`, returns when they would survive a loss of
    /// power; otherwise as early as the engine can.
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()>;

    /// Makes all former writes durable.
    fn sync(&self) -> Result<()>;

    /// The values of `keys`, from one view if the engine has such a thing.
    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()>;

    /// All pairs under `prefix` in order, from one view.
    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()>;

    /// Removes all keys under `prefix`, durably.
    fn delete_prefix(&self, prefix: &[u8]) -> Result<()>;

    /// Copies all keys under `src` to `dst` (of the same length), not durably. Who has nothing
    /// for it reads and writes all of them.
    fn copy_prefix(&self, src: &[u8], dst: &[u8]) -> Result<()> {
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::with_capacity(COPY_BATCH);
        let flush = |pairs: &mut Vec<(Vec<u8>, Vec<u8>)>| {
            let ops: Vec<Op<'_>> = pairs.iter().map(|(k, v)| Op::Put(k, v)).collect();
            let result = self.write(&ops, false);
            pairs.clear();
            result
        };
        self.scan(src, &mut |key, value| {
            pairs.push(([dst, &key[src.len()..]].concat(), value.to_vec()));
            if pairs.len() == COPY_BATCH { flush(&mut pairs) } else { Ok(()) }
        })?;
        flush(&mut pairs)
    }

    /// Finishes what was put off: write buffers, compactions, checkpoints.
    fn settle(&self) -> Result<()>;
}

/// What a merge of the peers and of Pando means: adds `delta` to the counter at the front.
pub fn add(old: Option<&[u8]>, delta: u64) -> Vec<u8> {
    let mut value = old.unwrap_or(&[0; 8]).to_vec();
    value.resize(value.len().max(8), 0);
    if let Some(counter) = value.first_chunk_mut::<8>() {
        *counter = u64::from_le_bytes(*counter).wrapping_add(delta).to_le_bytes();
    }
    value
}

/// A kind of engine that was compiled in.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Its name, as given to `--engines`.
    pub name: &'static str,
    /// Opens the store in a directory, which exists, or makes one there.
    pub open: fn(&Path, Settings) -> Result<Box<dyn Engine>>,
}

/// The first key above everything under `prefix`, if there is one.
#[cfg(any(feature = "rocksdb", feature = "lmdb", feature = "redb"))]
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut next = prefix[..=keep].to_vec();
    next[keep] += 1;
    Some(next)
}
