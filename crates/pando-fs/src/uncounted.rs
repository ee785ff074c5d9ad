//! Marks that say where names of linked files have to be counted (`census`).
//!
//! A mark lies in the lineage, so it moves and is cloned with it. The system region names the contents prefix that the
//! lineage had when it was marked; a batch that moves or copies marks notes there that this may not be true any more.

use pando_db::{Batch, Snapshot};

use crate::{
    error::Result,
    path::{self, system},
    record::Stored,
    types::Time,
    volume::Fs,
};

impl Fs {
    /// Adds a mark that the names in a lineage have to be counted, whose root has this contents prefix then.
    pub(crate) fn mark_uncounted(&self, batch: &mut Batch, contents: &[u8]) -> Result<u64> {
        let number = self.fresh_clone()?;
        batch.put(path::meta(&path::uncounted(contents, number)), Stored::UNCOUNTED);
        batch.put(system::to_count(number), contents.to_vec());
        Ok(number)
    }

    /// To be added to a batch that moves or copies a directory: says that uncounted marks have to be searched for, if
    /// there may be any in it, because their recorded places are wrong then. One cursor step, if there ever was a
    /// linked file.
    pub(crate) fn find_marks_later(&self, batch: &mut Batch, now: Time) -> Result<()> {
        if self.has_links() && self.db.prefix(&system::all_to_count()).next().transpose()?.is_some() {
            batch.put(system::marks_to_find(), now.encode());
        }
        Ok(())
    }
}

/// The marks in a lineage.
pub(crate) fn marks(view: &Snapshot, contents: &[u8]) -> Result<Vec<u64>> {
    let prefix = path::meta(&path::all_uncounted(contents));
    let mut numbers = Vec::new();
    let mut found = view.prefix(&prefix);
    while let Some((key, _)) = found.next_ref()? {
        numbers.extend(path::link_id_of(&prefix, key));
    }
    Ok(numbers)
}
