//! What is kept under the place of a directory, which is its contents prefix: forks, and policies for snapshots.
//!
//! Whatever moves or removes a directory moves or removes these keys in the same batch, so there are none without a
//! directory. Uses `forks` and `policies`.

use bytes::Bytes;
use pando_db::Batch;

use crate::{error::Result, volume::Fs};

impl Fs {
    /// What moves with a directory: prefixes of keys, from and to, by the contents prefix that it has and will have.
    /// Up to three cursor steps, none in a store that never had a fork or a policy.
    pub(crate) fn moves_kept_by_place(&self, from: &[u8], to: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        let mut moves = self.moves_of_forks(from, to)?;
        moves.extend(self.move_of_policies(from, to)?);
        Ok(moves)
    }

    /// Adds what goes with the directory that has this contents prefix. If it `stays`, as a place of another tree, what
    /// is kept of itself stays too. Costs as [`Fs::drop_forks`], and a cursor step.
    pub(crate) fn drop_kept_by_place(&self, batch: &mut Batch, contents: &[u8], stays: bool) -> Result<()> {
        self.drop_forks(batch, contents, stays)?;
        self.drop_policies(batch, contents, stays)
    }
}
