//! Keys that a rollback keeps: those of directories that the restored state has too.

use std::collections::HashSet;

use bytes::Bytes;
use pando_db::Batch;

use crate::{error::Result, volume::Fs};

/// Keys that are kept when all others with their prefix are deleted.
pub(crate) type Staying = HashSet<Bytes>;

impl Fs {
    /// Adds to a batch that all keys with this prefix are deleted, except for those in `staying`. Costs one cursor
    /// step if none stay, otherwise one for each key with the prefix.
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
