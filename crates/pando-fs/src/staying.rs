//! Keys of places that stay although their directory goes, because an earlier state of it takes its place.
//!
//! Uses the engine's `prefix`.

use std::collections::HashSet;

use bytes::Bytes;
use pando_db::Batch;

use crate::{error::Result, volume::Fs};

/// Such keys.
pub(crate) type Staying = HashSet<Bytes>;

impl Fs {
    /// Adds that all keys with this prefix go, but for those that are `staying`. One cursor step for each that stays,
    /// and one more.
    pub(crate) fn drop_keys(&self, batch: &mut Batch, prefix: &Bytes, staying: &Staying) -> Result<()> {
        let mut kept = Vec::new();
        let mut pairs = self.db.prefix(prefix);
        let mut any = false;
        while let Some((key, value)) = pairs.next_ref()? {
            any = true;
            if staying.is_empty() {
                break;
            }
            if staying.contains(key) {
                kept.push((key.to_vec(), value.to_vec()));
            }
        }
        if any {
            batch.delete_prefix(prefix.clone());
        }
        for (key, value) in kept {
            batch.put(key, value);
        }
        Ok(())
    }
}
