//! What an inode in memory knows of the holes of its file: the map or a part of it, or only how many blocks there are.
//!
//! Guarantees that what is said is of the record as it is, if each change of a map passes through here.

use crate::blockmap::BlockMap;

/// What is known of the holes of a file. Most files have none: those pay for a pointer only.
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
    /// What `st_blocks` is.
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

    /// The map or a part of it, to be put back when it is changed. Nothing is known then.
    pub(crate) fn take(&mut self) -> Option<BlockMap> {
        self.0.take()?.map
    }

    pub(crate) fn set(&mut self, map: Option<BlockMap>) {
        self.0 = map.map(|map| Box::new(Known { map: Some(map), count: None }));
    }

    /// What `st_blocks` of a file with holes is, if it is known.
    pub(crate) fn units(&self, dense: u64, size: u64) -> Option<u64> {
        let known = self.0.as_deref()?;
        match &known.map {
            Some(map) => map.known_units(dense, size),
            None => known.count.filter(|count| count.of == (dense, size)).map(|count| count.units),
        }
    }

    /// Whether it is known how many blocks behind the dense beginning there are.
    pub(crate) fn is_counted(&self, dense: u64, size: u64) -> bool {
        let Some(known) = self.0.as_deref() else { return false };
        match &known.map {
            Some(map) => map.is_counted(),
            None => known.count.is_some_and(|count| count.of == (dense, size)),
        }
    }

    /// Remembers what a whole map says of how many blocks there are; that map is not kept.
    pub(crate) fn count_by(&mut self, whole: &BlockMap, dense: u64, size: u64) {
        match self.0.as_deref_mut().and_then(|known| known.map.as_mut()) {
            Some(map) => map.count_by(whole, size),
            None => self.set_count(whole, dense, size),
        }
    }

    /// Remembers of a map that goes how many blocks there are, if it says so.
    pub(crate) fn set_count(&mut self, map: &BlockMap, dense: u64, size: u64) {
        let of = (dense, size);
        let count =
            map.known_units(dense, size).map(|units| BlockCount { of, units, above: map.blocks_above() });
        self.0 = count.map(|count| Box::new(Known { map: None, count: Some(count) }));
    }
}
