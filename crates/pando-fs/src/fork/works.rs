//! The volumes in which a merge of more than a batch is made.
//!
//! Their numbers are those of no snapshot and no fork. Pure; uses keys.

use crate::path;

/// The volumes that a merge works in: copies of what is merged into, and the next origin of the fork.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Works {
    pub work: u32,
    pub next: u32,
}

impl Works {
    /// Paths of the entry and of the contents of a copy.
    pub(crate) fn copy(self, name: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let top = path::snapshot(self.work);
        (path::entry(&top, name).unwrap_or_default(), path::contents(&top, name).unwrap_or_default())
    }

    /// Prefix of the paths of linked files in a copy of their area, of those of [`AROUND`].
    pub(crate) fn area(self, at: usize) -> Vec<u8> {
        path::all_linked(&self.copy(AROUND[at % AROUND.len()]).1)
    }
}

/// The copy that is merged into.
pub(crate) const MERGED: &[u8] = b"h";
/// The directory that is merged into, as it was at two moments.
pub(crate) const BEFORE: [&[u8]; 2] = [b"o", b"p"];
/// The area of linked files of the lineage around, as it was at the same moments.
const AROUND: [&[u8]; 2] = [b"k", b"l"];
/// Where moving entries wait.
pub(crate) const WAITING: &[u8] = b"x";
