//! Freezes a directory: a read-only clone in a volume of its own, which is a snapshot or the origin of a fork.
//!
//! The volume has a number that no other volume has had, and the directory is its root, and the root of a lineage.
//! The clone is three operations, whatever the size of the tree: a prefix clone of the entries, one of the data, and
//! one of the extended attributes outside the records. Callers have to handle files with several names themselves.

use pando_db::Batch;

use crate::{
    error::{Error, Result},
    path,
    record::Record,
    volume::Fs,
};

impl Fs {
    /// A number for a volume. No I/O but for one number of a few thousand.
    pub(crate) fn fresh_volume(&self) -> Result<u32> {
        let taken = self.snapshot_numbers.take(&self.db)?;
        u32::try_from(taken).map_err(|_| Error::Exhausted("snapshot numbers"))
    }

    /// Adds to the batch that the volume `number` has what the directory with the contents prefix `contents` is at this
    /// place of the batch. `entry` is the path of its entry, and `record` what it has there.
    pub(crate) fn freeze(
        &self,
        batch: &mut Batch,
        number: u32,
        (entry, contents): (&[u8], &[u8]),
        record: &Record,
    ) -> Result<()> {
        let mark = path::snapshot(number);
        batch.clone_prefix(path::meta(contents), path::meta(&mark));
        batch.clone_prefix(path::data(contents), path::data(&mark));
        if record.has_outside() {
            let own = path::attrs_under(&path::data(entry));
            batch.clone_prefix(own, path::attrs_under(&path::data(&mark)));
        }
        self.put_frozen_root(batch, number, record)
    }

    /// Adds the record of the root of a volume, by that which the directory has.
    pub(crate) fn put_frozen_root(&self, batch: &mut Batch, number: u32, record: &Record) -> Result<()> {
        let root = Record { clone_id: self.fresh_clone()?, pin: None, ..record.clone() };
        batch.put(path::meta(&path::snapshot(number)), root.encode());
        Ok(())
    }
}
