//! Marks that say where names of linked files have to be counted (`census`).
//!
//! A mark lies in the lineage, so it moves and is cloned with it. The system region names the contents prefix that the
//! lineage had when it was marked; a batch that moves or copies marks notes there that this may not be true any more.
//! It also names the volumes from which files without a name are to be removed (`gaps`).

use bytes::Bytes;
use pando_db::{Batch, Snapshot};

use crate::{
    error::Result,
    path::{self, system},
    record::Stored,
    types::Time,
    volume::Fs,
};

/// Lineages that wait to be counted, a count, of which it is found out whether they lie in a new snapshot.
const MOST_WAITING: usize = 64;

impl Fs {
    /// Adds that linked files without a name are to be removed from the volume `number`, which the batch makes of the
    /// directory with the contents prefix `source`: of its root if the files of a lineage `around` came along, and of
    /// each root whose names wait to be counted. One cursor step, and one more for each lineage that waits, if there
    /// ever was a linked file.
    pub(crate) fn strip_later(
        &self,
        batch: &mut Batch,
        number: u32,
        source: &[u8],
        around: bool,
    ) -> Result<()> {
        if around {
            batch.put(system::to_strip(number, b""), Bytes::new());
        }
        if !self.has_links() {
            return Ok(());
        }
        let mut waiting = self.db.range(&system::all_to_count(), Some(&system::marks_to_find()));
        for _ in 0..MOST_WAITING {
            match waiting.next_ref() {
                Ok(Some((_, contents))) => {
                    if let Some(inside) = contents.strip_prefix(source) {
                        batch.put(system::to_strip(number, inside), Bytes::new());
                    }
                }
                Ok(None) => break,
                // Then files stay that could have gone.
                Err(e) if e.is_damage() => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Asks the background thread to remove files without a name from new volumes, if any waits for that.
    pub(crate) fn strip_soon(&self) {
        if self.has_links() && self.db.prefix(&system::all_to_strip()).next().is_some() {
            self.count_names_soon();
        }
    }

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
