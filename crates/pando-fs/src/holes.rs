//! The holes of a file: what is known of them in memory, and the operations of batches that change them.
//!
//! The first `stat` of a file with holes reads its map (`blockmap`); after that the number of its blocks is known. A
//! write reads the pieces of the map that it changes, and a search for holes reads the whole map; the inode keeps
//! what was read. The memory of all maps is bounded (`kept_maps`).

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    blockmap::BlockMap,
    error::Result,
    inode::{InodeRef, InodeState},
    limits::BLOCK_SIZE,
    sums::{file_bytes, units_bytes},
    types::{Attr, FileKind},
    volume::Fs,
};

/// What a change of size does to what is known of holes.
#[derive(Default)]
pub(crate) struct Holes {
    /// What the record says then, if that changes.
    pub dense: Option<Option<u64>>,
    pub map: Option<BlockMap>,
}

impl Holes {
    /// What the file takes then, bytes, if it has this size.
    pub(crate) fn file_bytes(&self, inode: &InodeRef, size: u64) -> i64 {
        file_bytes(size, self.dense.unwrap_or(inode.peek(|s| s.record.dense)), self.map.as_ref())
    }
}

/// What a write does to what is known of holes.
pub(crate) enum MapChange {
    Nothing,
    /// The dense beginning grows from one block to another.
    Grown(u64, u64),
    /// A new map, and a new dense beginning if the file had no map.
    Map(Option<u64>, BlockMap),
}

impl MapChange {
    pub(crate) fn dense(&self) -> Option<Option<u64>> {
        match self {
            MapChange::Grown(_, to) => Some(Some(*to)),
            MapChange::Map(Some(dense), _) => Some(Some(*dense)),
            _ => None,
        }
    }

    /// What a file with this dense beginning and map before takes then, bytes, if it has this size.
    pub(crate) fn file_bytes(&self, (dense, map): (Option<u64>, Option<&BlockMap>), size: u64) -> i64 {
        match (self, dense, map) {
            (MapChange::Map(new, map), dense, _) => file_bytes(size, new.or(dense), Some(map)),
            (MapChange::Grown(from, to), _, Some(map)) => units_bytes(map.units_grown(*from, *to, size)),
            (MapChange::Grown(_, to), _, None) => file_bytes(size, Some(*to), None),
            (MapChange::Nothing, dense, map) => file_bytes(size, dense, map),
        }
    }

    /// Applies the change in memory.
    pub(crate) fn apply(self, s: &mut InodeState) {
        match self {
            MapChange::Nothing => {}
            MapChange::Grown(from, to) => {
                let mut map = s.take_map();
                if let Some(map) = &mut map {
                    map.grown(from, to);
                }
                s.set_map(map);
            }
            MapChange::Map(_, map) => s.set_map(Some(map)),
        }
    }
}

impl InodeState {
    /// The whole map of a file with holes, if it is in memory.
    pub(crate) fn map(&self) -> Option<&BlockMap> {
        self.known.map()
    }

    /// What is in memory of the map.
    pub(crate) fn part_of_map(&self) -> Option<&BlockMap> {
        self.known.part()
    }

    /// Takes the map out of memory; the caller changes it and puts it back.
    pub(crate) fn take_map(&mut self) -> Option<BlockMap> {
        self.known.take()
    }

    /// Every change of a map goes through here: nothing else is known then.
    pub(crate) fn set_map(&mut self, map: Option<BlockMap>) {
        self.known.set(map);
    }

    /// Whether the map has to be read to say how many blocks there are.
    pub(crate) fn is_uncounted(&self) -> bool {
        self.record.dense.is_some_and(|dense| self.known.units(dense, self.record.size).is_none())
    }

    /// Takes the map out of memory, and remembers how many blocks there are.
    fn let_map_go(&mut self) -> Option<BlockMap> {
        self.known.part()?;
        let map = self.known.take()?;
        if let Some(dense) = self.record.dense {
            self.known.set_count(&map, dense, self.record.size);
        }
        Some(map)
    }
}

impl Fs {
    /// The map of a file, which is read if it is not in memory. The caller holds `tree` of the file.
    pub(crate) fn map(&self, inode: &InodeRef, data: &Bytes, dense: u64) -> Result<BlockMap> {
        match inode.peek(|s| s.map().cloned()) {
            Some(map) => Ok(map),
            None => BlockMap::read(&self.db, data, dense),
        }
    }

    /// Adds to a batch that writes blocks `first..=last` of a file of this size what is noted of them. The caller
    /// holds `tree` of the file exclusively and applies the answer in memory when the batch is written.
    pub(crate) fn note_blocks(
        &self,
        batch: &mut Batch,
        inode: &InodeRef,
        data: &Bytes,
        size: u64,
        (first, last): (u64, u64),
    ) -> Result<MapChange> {
        let had = size.div_ceil(BLOCK_SIZE);
        let dense = inode.peek(|s| s.record.dense);
        Ok(match dense {
            None if first <= had => MapChange::Nothing,
            None => {
                let mut map = BlockMap::default();
                map.set(batch, data, first, last);
                MapChange::Map(Some(had), map)
            }
            Some(dense) if last < dense => MapChange::Nothing,
            Some(dense) if first <= dense => {
                // A number of blocks that is not known before the change is not known after it.
                if inode.peek(|s| s.known.is_counted(dense, size)) {
                    self.load_pieces(inode, data, dense, Some((dense, last)))?;
                }
                MapChange::Grown(dense, last + 1)
            }
            Some(dense) => {
                self.load_pieces(inode, data, dense, Some((first, last)))?;
                // Taken out of the inode and put back when the batch is written; read again if it is not.
                let mut map = inode.change(|s| s.take_map()).unwrap_or_else(|| BlockMap::part(None));
                map.set(batch, data, first, last);
                MapChange::Map(None, map)
            }
        })
    }

    /// Reads the pieces of the map that say of these blocks whether they exist, and of the last block if it is known
    /// how many there are, unless they are in memory. The caller holds `tree` of the file: writers are locked out, and
    /// readers see the same bytes before and after. One scan for each of the two, of pieces that lie beside each other.
    fn load_pieces(
        &self,
        inode: &InodeRef,
        data: &Bytes,
        dense: u64,
        blocks: Option<(u64, u64)>,
    ) -> Result<()> {
        let (size, counted) = inode.peek(|s| (s.record.size, s.known.is_counted(dense, s.record.size)));
        let last = size.div_ceil(BLOCK_SIZE).checked_sub(1);
        let last = last.filter(|last| counted && *last >= dense).map(|last| (last, last));
        let mut read = false;
        for (first, last) in blocks.into_iter().chain(last) {
            if inode.peek(|s| s.part_of_map().is_some_and(|map| map.has(first, last))) {
                continue;
            }
            let pieces = BlockMap::load(&self.db, data, first, last)?;
            inode.change(|s| s.known.part_mut(dense, size).take_in(pieces));
            read = true;
        }
        if read {
            self.keep_map(inode);
        }
        Ok(())
    }

    /// Makes sure that the number of blocks of a file with holes is known. The caller holds `tree` of the file. If
    /// they were not counted yet, this reads the whole map and does not keep it, because a listing of files needs the
    /// maps of many.
    fn count_blocks(&self, inode: &InodeRef, data: &Bytes, dense: u64) -> Result<()> {
        let (size, counted) = inode.peek(|s| (s.record.size, s.known.is_counted(dense, s.record.size)));
        if inode.peek(|s| s.known.units(dense, size)).is_some() {
            return Ok(());
        }
        if counted {
            return self.load_pieces(inode, data, dense, None);
        }
        let map = BlockMap::read(&self.db, data, dense)?;
        inode.change(|s| s.known.count_by(&map, dense, size));
        Ok(())
    }

    /// The attributes for `stat`, for which the map of a file with holes is read. The caller holds no lock. If the
    /// map cannot be read, only the blocks before the first hole count.
    pub(crate) fn attr(&self, inode: &InodeRef) -> Attr {
        if inode.peek(|s| s.is_uncounted())
            && let Ok(at) = self.hold(inode, false)
            && let Some(dense) = inode.peek(|s| s.record.dense)
        {
            let _unknown = self.count_blocks(inode, &at.data, dense);
        }
        inode.attr()
    }

    /// Whether a block is known not to exist: it lies behind the end, or in a hole. For a write of a part of a block,
    /// in a file whose `tree` is held exclusively; a piece of the map of one with holes is read if it is not in memory.
    pub(crate) fn is_absent(&self, inode: &InodeRef, data: &Bytes, size: u64, block: u64) -> Result<bool> {
        match inode.peek(|s| s.record.dense) {
            _ if block >= size.div_ceil(BLOCK_SIZE) => Ok(true),
            Some(dense) if block >= dense => {
                self.load_pieces(inode, data, dense, Some((block, block)))?;
                Ok(inode.peek(|s| s.part_of_map().is_some_and(|map| !map.exists(block))))
            }
            _ => Ok(false),
        }
    }

    /// What a file takes, bytes; nothing but regular files takes any. The caller holds `tree` of it; the map of one
    /// with holes is read if it was not counted. Afterwards what is in memory of the map says so too.
    pub(crate) fn bytes_of(&self, inode: &InodeRef, data: &Bytes) -> Result<i64> {
        if inode.kind != FileKind::Regular {
            return Ok(0);
        }
        if let Some(dense) = inode.peek(|s| s.record.dense) {
            self.count_blocks(inode, data, dense)?;
            inode.change(|s| _ = s.known.part_mut(dense, s.record.size));
            self.load_pieces(inode, data, dense, None)?;
        }
        Ok(inode.peek(|s| file_bytes(s.record.size, s.record.dense, s.part_of_map())))
    }

    /// To be called when a map was put into this inode: drops the maps of other inodes if all maps take too much
    /// memory. The caller holds `tree` of the inode.
    pub(crate) fn keep_map(&self, inode: &InodeRef) {
        let bytes = inode.peek(|s| s.part_of_map().map_or(0, BlockMap::memory_bytes));
        if bytes == 0 {
            return;
        }
        for ino in self.kept_maps.note(inode.ino, bytes) {
            let Some(other) = self.table.find(ino) else { continue };
            // A thread that uses a map holds this lock.
            let left = match other.tree.try_write() {
                Some(_alone) => {
                    let map = other.change(|s| s.let_map_go());
                    drop(map); // not under the lock of the state
                    None
                }
                None => other.peek(|s| s.part_of_map().map(BlockMap::memory_bytes)),
            };
            left.into_iter().for_each(|bytes| self.kept_maps.note_again(ino, bytes));
        }
    }
}
