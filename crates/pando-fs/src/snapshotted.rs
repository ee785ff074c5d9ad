//! Keys that say which directories have snapshots.
//!
//! A family of snapshots belongs to an inode number, and there is no index from numbers to paths. So a key under the
//! contents prefix of such a directory says that it has snapshots, and has its number: a rollback finds the families
//! below a directory by these keys. A directory without such a key, from a store of an earlier version, gets it with
//! its next snapshot.

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    error::{Error, Result},
    format::FEATURE_SNAPSHOTTED,
    inode::InodeRef,
    path::system,
    staying::Staying,
    types::{FileKind, Ino},
    volume::Fs,
};

/// The inode number that is the value of such a key.
pub(crate) fn decode_source(value: &[u8]) -> Result<Ino> {
    let detail = "not the number of a directory";
    let damaged = || Error::Damaged { what: "places of directories with snapshots".into(), detail };
    Ok(Ino::from_le_bytes(value.try_into().map_err(|_| damaged())?))
}

impl Fs {
    /// Whether some directory has, or had, snapshots, and a key says so. No I/O.
    fn has_snapshotted(&self) -> bool {
        self.has_feature(FEATURE_SNAPSHOTTED)
    }

    /// Adds the key for the directory with this number and contents prefix, unless it exists. One point query. The
    /// root cannot move, so it needs no key. The caller has set the feature bit of the store.
    pub(crate) fn note_snapshotted(&self, batch: &mut Batch, contents: &[u8], ino: Ino) -> Result<()> {
        let (key, value) = (system::snapshotted(contents), ino.to_le_bytes());
        if !contents.is_empty() && self.db.get(&key)?.is_none_or(|known| known[..] != value) {
            batch.put(key, value.to_vec());
        }
        Ok(())
    }

    /// The directories with snapshots that are at or below this contents prefix: contents prefix and number.
    pub(crate) fn snapshotted_below(&self, contents: &[u8]) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut found = Vec::new();
        if !self.has_snapshotted() {
            return Ok(found);
        }
        let mut pairs = self.db.prefix(&system::snapshotted(contents));
        while let Some((key, value)) = pairs.next_ref()? {
            let contents = system::snapshotted_contents(key).unwrap_or_default();
            found.push((contents.to_vec(), decode_source(value)?));
        }
        Ok(found)
    }

    /// EINVAL if the snapshot `number` is one of the entry `target`, which has this contents prefix if it is a
    /// directory, or of a directory below. Whoever puts something of the snapshot in its place would leave all its
    /// snapshots without a directory. The caller holds `tree` of the entry exclusively. A cursor step and a point query
    /// for each directory there that has snapshots, and a point query.
    pub(crate) fn may_be_replaced_by(&self, target: &InodeRef, contents: &[u8], number: u32) -> Result<()> {
        if target.kind != FileKind::Directory {
            return Ok(());
        }
        let below = self.snapshotted_below(contents)?;
        let sources = [target.ino].into_iter().chain(below.into_iter().map(|(_, source)| source));
        for source in sources {
            if let Some(family) = self.family(source)?
                && self.db.get(&system::snapshot(family.id, number))?.is_some()
            {
                let text = format!(
                    "{}: snapshot {number} is of it, or of a directory in it, and would be left without one; \
                     clone to another name, or see pando rollback",
                    target.label()
                );
                return Err(Error::Invalid(text));
            }
        }
        Ok(())
    }

    /// The keys that move with a directory: their prefix before and after the move. One cursor step, if there ever
    /// was a snapshot.
    pub(crate) fn move_of_snapshotted(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>> {
        let prefix = system::snapshotted(from);
        let moves = self.has_snapshotted() && self.db.prefix(&prefix).next().transpose()?.is_some();
        Ok(moves.then(|| (prefix, system::snapshotted(to))))
    }

    /// Adds the removal of the keys of a directory, given by its contents prefix, and of those below it, except the
    /// keys in `staying`. One cursor step, if there ever was a snapshot.
    pub(crate) fn drop_snapshotted(
        &self,
        batch: &mut Batch,
        contents: &[u8],
        staying: &Staying,
    ) -> Result<()> {
        match self.has_snapshotted() {
            true => self.drop_keys(batch, &system::snapshotted(contents), staying),
            false => Ok(()),
        }
    }
}
