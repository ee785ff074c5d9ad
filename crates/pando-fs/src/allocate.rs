//! fallocate(2) with its modes, and the search for data and holes (SEEK_DATA, SEEK_HOLE).
//!
//! No space is reserved for a file, because each write goes to a new place anyway (copy on write). So an allocation
//! only extends the file, and is refused if so much space is not free now. Zeroing a range and punching a hole are
//! the same operation: one message removes all whole blocks of the range, whatever their number, and the blocks at
//! its two ends are partly filled with zeros. A file that had no holes gets a map (`blockmap`): 64 bytes for each 8
//! MiB behind the hole, in several batches if that is much, of which only the last one has a visible effect.

use pando_db::Batch;

use crate::{
    blockmap::{BlockMap, PIECE},
    data::{FEW_BLOCKS, WRITE_BYTES, without_set_id_by},
    error::{Error, Result},
    inode::InodeRef,
    limits::{BLOCK_SIZE, MAX_FILE_SIZE},
    merge::{self, Change, Size},
    path,
    place::At,
    sums::file_bytes,
    types::{Caller, FileHandle, Ino},
    volume::Fs,
};

/// A bit of the mode of fallocate(2).
const KEEP_SIZE: i32 = 1;
/// More bits of that mode.
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// Most bytes of a message for a piece of a map, without its key.
const PIECE_MESSAGE_BYTES: usize = 100;

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte of a hole; the end of the file counts as one.
    Hole,
}

impl Fs {
    /// Does what fallocate(2) does with this mode: 0, `FALLOC_FL_KEEP_SIZE` or `FALLOC_FL_ZERO_RANGE` (or both), or
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`; EOPNOTSUPP for others. ENOSPC if there is not enough free space
    /// now. No space is reserved, so later writes may fail.
    ///
    /// Zeroing and punching cost a few messages, whatever the range, and in a file without holes those for its map,
    /// once. Holes are of whole blocks of 16 KiB.
    pub fn fallocate(&self, c: &Caller, ino: Ino, offset: u64, len: u64, mode: i32) -> Result<()> {
        self.writable()?;
        let (inode, _) = self.file(FileHandle(0), ino)?;
        let end = offset.saturating_add(len);
        if len == 0 {
            return Err(Error::Invalid("a range of no bytes".into()));
        }
        if end > MAX_FILE_SIZE {
            return Err(Error::TooBig(end));
        }
        let (grows, zeros) = match mode & !KEEP_SIZE {
            0 => (true, false),
            ZERO_RANGE => (true, true),
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => (false, true),
            _ => return Err(Error::Unsupported("this mode of fallocate")),
        };
        let at = self.hold(&inode, true)?;
        let (size, sparse) = inode.peek(|s| (s.record.size, s.record.dense.is_some()));
        if grows {
            let lacking = if sparse && !zeros { len } else { end.saturating_sub(size.max(offset)) };
            if lacking > self.db.space().0 {
                return Err(pando_db::Error::NoSpace.into());
            }
        }
        let (clears, extends) = (zeros && offset < size, grows && mode & KEEP_SIZE == 0 && end > size);
        if !clears && !extends {
            // Linux counts even this as a change of the file, which clears set-id bits.
            let change = self.content_change(c, &inode);
            self.db.upsert(at.meta.clone(), change.encode())?;
            inode.change(|s| s.apply(&change));
        }
        if clears {
            self.make_hole(c, &inode, &at, (offset, end.min(size)))?;
        }
        if extends {
            let mut batch = Batch::new();
            let (above, before) = self.before(&inode, &at)?;
            let holes = self.resize_data(&mut batch, &inode, &at.data, (size, end))?;
            let mut change = self.content_change(c, &inode);
            change.size = Some(Size::AtLeast(end));
            change.dense = holes.dense;
            batch.upsert(at.meta.clone(), change.encode());
            let reserved = self.reserve_file(&mut batch, above, holes.file_bytes(&inode, end) - before)?;
            self.db.write(batch)?;
            reserved.paid();
            inode.change(|s| {
                s.apply(&change);
                s.set_map(holes.map);
            });
            self.keep_map(&inode);
        }
        Ok(())
    }

    /// The change of the record that belongs to a change of the content by `c`: times, and set-id bits.
    fn content_change(&self, c: &Caller, inode: &InodeRef) -> Change {
        let mut change = self.times_of_change(c);
        inode.peek(|s| {
            change.perm =
                if c.keeps_set_id() { None } else { without_set_id_by(c, s.record.perm, s.record.gid) };
            change.drop_capability = s.record.may_do_more();
            s.save_atime(&mut change);
        });
        change
    }

    /// Fills the bytes `from..to` with zeros; the whole blocks among them become a hole. The range lies within the
    /// file, whose `tree` the caller holds exclusively.
    fn make_hole(&self, c: &Caller, inode: &InodeRef, at: &At, (from, to): (u64, u64)) -> Result<()> {
        let size = inode.peek(|s| s.record.size);
        let data = &at.data;
        let mut batch = Batch::new();
        let (above, before) = self.before(inode, at)?;
        // The last block ends with the file.
        let (first, end) =
            (from.div_ceil(BLOCK_SIZE), if to == size { to.div_ceil(BLOCK_SIZE) } else { to / BLOCK_SIZE });
        let head =
            (!from.is_multiple_of(BLOCK_SIZE)).then(|| (from, to.min(from.next_multiple_of(BLOCK_SIZE))));
        let tail = (end >= first && to > end * BLOCK_SIZE).then_some((end * BLOCK_SIZE, to));
        for (a, b) in head.into_iter().chain(tail) {
            let block = a / BLOCK_SIZE;
            if !self.is_absent(inode, data, size, block)? {
                let zeros = vec![0; (b - a) as usize];
                batch.upsert(path::block(data, block), merge::write((a % BLOCK_SIZE) as u32, &zeros));
            }
        }
        let mut change = self.content_change(c, inode);
        let mut map = None;
        if first < end {
            let (dense, known) = self.noted_behind(inode, at, size, end)?;
            let mut noted = known;
            if end - first > FEW_BLOCKS {
                batch.delete_range(path::block(data, first), Some(path::block(data, end)));
            } else {
                (first..end).for_each(|block| _ = batch.delete(path::block(data, block)));
            }
            noted.clear(&mut batch, data, first, end);
            let dense = dense.min(first);
            noted.recount(dense);
            change.dense = Some(Some(dense));
            map = Some(noted);
        }
        batch.upsert(at.meta.clone(), change.encode()).shrinks();
        let after = match &map {
            Some(map) => file_bytes(size, change.dense.flatten(), Some(map)),
            None => before,
        };
        let reserved = self.reserve_file(&mut batch, above, after - before)?;
        self.db.write(batch)?;
        reserved.paid();
        inode.change(|s| {
            s.apply(&change);
            if map.is_some() {
                s.set_map(map);
            }
        });
        self.keep_map(inode);
        Ok(())
    }

    /// The dense beginning of a file and its map. Afterwards the map, also as stored, says of all blocks from `end`
    /// on whether they exist, so that the dense beginning may be cut to `end`.
    fn noted_behind(&self, inode: &InodeRef, at: &At, size: u64, end: u64) -> Result<(u64, BlockMap)> {
        let data = &at.data;
        let (dense, mut map) = match inode.peek(|s| s.record.dense) {
            // The map is taken out of memory while it is changed. If this fails, the next call reads it again.
            Some(dense) => match inode.change(|s| s.take_map()).filter(BlockMap::is_whole) {
                Some(map) => (dense, map),
                None => (dense, BlockMap::read(&self.db, data, dense)?),
            },
            None => {
                // Bits before the dense beginning are ignored, so the map is right after a crash between the batches,
                // too.
                let dense = size.div_ceil(BLOCK_SIZE);
                let change = Change { dense: Some(Some(dense)), ..Change::default() };
                let mut batch = Batch::new();
                batch.upsert(at.meta.clone(), change.encode()).shrinks();
                self.db.write(batch)?;
                inode.change(|s| {
                    s.apply(&change);
                    s.set_map(None);
                });
                (dense, BlockMap::default())
            }
        };
        let step = (WRITE_BYTES / (data.len() + PIECE_MESSAGE_BYTES)).max(1) as u64 * PIECE;
        let mut from = end;
        while from < dense {
            let to = dense.min((from + step) / PIECE * PIECE).max(from + 1);
            let mut batch = Batch::new();
            map.set(&mut batch, data, from, to - 1);
            batch.shrinks();
            if !batch.is_empty() {
                self.db.write(batch)?;
            }
            from = to;
        }
        Ok((dense, map))
    }

    /// The first byte at or behind `offset` that is data, or that is in a hole; ENXIO if there is none, and behind the
    /// end. Data comes in blocks of 16 KiB. No I/O but, once, a scan of the map of a file with holes.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let (inode, _) = self.file(FileHandle(0), ino)?;
        let at = self.hold(&inode, false)?;
        let (size, dense) = inode.peek(|s| (s.record.size, s.record.dense));
        let none = || Error::NothingBehind(offset);
        if offset >= size {
            return Err(none());
        }
        let Some(dense) = dense else {
            return Ok(if what == Seek::Data { offset } else { size });
        };
        let (block, blocks) = (offset / BLOCK_SIZE, size.div_ceil(BLOCK_SIZE));
        let find = |map: &BlockMap| match what {
            Seek::Data if block < dense => Some(block),
            Seek::Data => map.next(block, blocks, true),
            Seek::Hole => map.next(block.max(dense), blocks, false),
        };
        let found = match inode.peek(|s| s.map().map(find)) {
            Some(found) => found,
            None => {
                let map = BlockMap::read(&self.db, &at.data, dense)?;
                let found = find(&map);
                // The lock keeps writers out. Readers see the same bytes before and after.
                inode.change(|s| s.set_map(Some(map)));
                self.keep_map(&inode);
                found
            }
        };
        match (found, what) {
            (Some(block), _) => Ok((block * BLOCK_SIZE).max(offset)),
            (None, Seek::Hole) => Ok(size),
            (None, Seek::Data) => Err(none()),
        }
    }
}
