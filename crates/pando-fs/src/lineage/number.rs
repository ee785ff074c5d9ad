//! The encoding of lineage numbers in inode numbers and in rows of the lineage table.
//!
//! Pure functions; uses errors and the encoding of counters.

use bytes::Bytes;

use crate::{
    counter,
    error::{Error, Result},
    types::Ino,
};

/// Lineages are below this number.
pub(crate) const LINEAGES: u32 = 1 << 24;
/// The low bits of an inode number that are the file number.
const FILE_BITS: u32 = 40;

/// The inode number of a file in a lineage.
pub(crate) fn number(lineage: u32, fileno: u64) -> Ino {
    debug_assert!(lineage < LINEAGES && fileno >> FILE_BITS == 0);
    u64::from(lineage) << FILE_BITS | fileno
}

/// The lineage in an inode number.
pub(crate) fn lineage_of(ino: Ino) -> u32 {
    (ino >> FILE_BITS) as u32
}

/// The lineage in a row of the table.
pub(crate) fn decode_row(row: Option<Bytes>) -> Result<Option<u32>> {
    let Some(n) = counter::decode("lineage table", row)? else { return Ok(None) };
    match u32::try_from(n) {
        Ok(n) if n < LINEAGES => Ok(Some(n)),
        _ => Err(Error::Damaged { what: "lineage table".into(), detail: "impossible lineage" }),
    }
}
