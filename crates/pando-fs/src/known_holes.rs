//! The holes of a file as far as its inode in memory knows them: the map or a part of it, or only the number of blocks.
//!
//! Guarantee: the answers fit the present record, if each change of a map passes through this module.

use crate::blockmap::BlockMap;

/// The known holes of a file. Most files have none, and pay for a pointer only.
#[derive(Debug, Default)]
pub(crate) struct KnownHoles(Option<Box<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The map, once it or a piece of it was read.
    map: Option<BlockMap>,
    /// Without a map.
    count: Option<BlockCount>,
}

/// How many blocks a file has.
#[derive(Debug, Clone, Copy)]
struct BlockCount {
    /// The dense beginning and the size of the file for which this holds.
    of: (u64, u64),
    /// The value of `st_blocks`.
    units: u64,
    /// Blocks behind the dense beginning.
    above: u64,
}

impl KnownHoles {
    /// The whole map.
    pub(crate) fn map(&self) -> Option<&BlockMap> {
        self.part().filter(|map| map.is_whole())
    }

    /// The map or a part of it.
    pub(crate) fn part(&self) -> Option<&BlockMap> {
        self.0.as_ref()?.map.as_ref()
    }

    /// The part of the map in memory, to which the caller adds pieces that it has read, for a file with this dense
    /// beginning and size.
    pub(crate) fn part_mut(&mut self, dense: u64, size: u64) -> &mut BlockMap {
        let known = self.0.get_or_insert_default();
        let count = known.count.take().filter(|count| count.of == (dense, size));
        known.map.get_or_insert_with(|| BlockMap::part(count.map(|count| count.above)))
    }

    /// Takes the map or the part of it out, to be changed and put back. Nothing is known meanwhile.
    pub(crate) fn take(&mut self) -> Option<BlockMap> {
        self.0.take()?.map
    }

    pub(crate) fn set(&mut self, map: Option<BlockMap>) {
        self.0 = map.map(|map| Box::new(Known { map: Some(map), count: None }));
    }

    /// The value of `st_blocks` of a file with holes, if it is known.
    pub(crate) fn units(&self, dense: u64, size: u64) -> Option<u64> {
        let known = self.0.as_deref()?;
        match &known.map {
            Some(map) => map.known_units(dense, size),
            None => known.count.filter(|count| count.of == (dense, size)).map(|count| count.units),
        }
    }

    /// Whether the number of blocks behind the dense beginning is known.
    pub(crate) fn is_counted(&self, dense: u64, size: u64) -> bool {
        let Some(known) = self.0.as_deref() else { return false };
        match &known.map {
            Some(map) => map.is_counted(),
            None => known.count.is_some_and(|count| count.of == (dense, size)),
        }
    }

    /// Stores the number of blocks that a whole map has; the map itself is not kept.
    pub(crate) fn count_by(&mut self, whole: &BlockMap, dense: u64, size: u64) {
        match self.0.as_deref_mut().and_then(|known| known.map.as_mut()) {
            Some(map) => map.count_by(whole, size),
            None => self.set_count(whole, dense, size),
        }
    }

    /// Stores the number of blocks of a map that is dropped, if the map has it.
    pub(crate) fn set_count(&mut self, map: &BlockMap, dense: u64, size: u64) {
        let of = (dense, size);
        let count =
            map.known_units(dense, size).map(|units| BlockCount { of, units, above: map.blocks_above() });
        self.0 = count.map(|count| Box::new(Known { map: None, count: Some(count) }));
    }
}
