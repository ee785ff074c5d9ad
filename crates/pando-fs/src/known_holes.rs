//! What an inode in memory knows of the holes of its file: the map, or only how many blocks there are.
//!
//! Guarantees that what is said is of the record as it is, if each change of a map passes through here.

use crate::blockmap::BlockMap;

/// What is known of the holes of a file. Most files have none: those pay for a pointer only.
#[derive(Debug, Default)]
pub(crate) struct KnownHoles(Option<Box<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The map, once it was read.
    map: Option<BlockMap>,
    /// Without a map: the dense beginning, the size, and what `st_blocks` is while the file has these.
    units: Option<(u64, u64, u64)>,
}

impl KnownHoles {
    pub(crate) fn map(&self) -> Option<&BlockMap> {
        self.0.as_ref()?.map.as_ref()
    }

    /// The map, to be put back when it is changed.
    pub(crate) fn take(&mut self) -> Option<BlockMap> {
        self.0.take()?.map
    }

    pub(crate) fn set(&mut self, map: Option<BlockMap>) {
        self.0 = map.map(|map| Box::new(Known { map: Some(map), units: None }));
    }

    /// What `st_blocks` of a file with holes is, if it is known.
    pub(crate) fn units(&self, dense: u64, size: u64) -> Option<u64> {
        match self.0.as_deref()? {
            Known { map: Some(map), .. } => Some(map.units(dense, size)),
            Known { units: Some((d, s, units)), .. } if (*d, *s) == (dense, size) => Some(*units),
            _ => None,
        }
    }

    /// Remembers what `st_blocks` is by a map that is not kept.
    pub(crate) fn set_units(&mut self, map: &BlockMap, dense: u64, size: u64) {
        let units = Some((dense, size, map.units(dense, size)));
        self.0 = Some(Box::new(Known { map: None, units }));
    }
}
