//! What is kept for a directory under its contents prefix in the system region: that it is a fork or has some, a
//! policy for snapshots, and that it has snapshots.
//!
//! A batch that moves or removes a directory moves or removes these keys, so there are none without a directory.

use bytes::Bytes;
use pando_db::Batch;

use crate::{error::Result, staying::Staying, volume::Fs};

impl Fs {
    /// What moves with a directory: prefixes of keys, from and to, by the contents prefix that it has and will have.
    /// Up to four cursor steps, none in a store that never had a fork, a policy or a snapshot.
    pub(crate) fn moves_kept_by_prefix(&self, from: &[u8], to: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        let mut moves = self.moves_of_forks(from, to)?;
        moves.extend(self.move_of_policies(from, to)?);
        moves.extend(self.move_of_snapshotted(from, to)?);
        Ok(moves)
    }

    /// Adds what goes with the directory that has this contents prefix, and with all below, but for what is
    /// `staying`. Costs as [`Fs::drop_forks`], and two cursor steps.
    pub(crate) fn drop_kept_by_prefix(
        &self,
        batch: &mut Batch,
        contents: &[u8],
        staying: &Staying,
    ) -> Result<()> {
        self.drop_forks(batch, contents, staying)?;
        self.drop_policies(batch, contents, staying)?;
        self.drop_snapshotted(batch, contents, staying)
    }
}
