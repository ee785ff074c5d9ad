//! Copies between files (copy_file_range): the data is shared where it can be, and written again where it cannot.
//!
//! A whole file onto an empty one is one clone of its data prefix. A copy to the same offset, behind all that the
//! destination holds, is a clone of ranges of blocks: one batch, whatever their size and whether they exist.
//! The engine clones prefixes of keys, and block numbers end keys with the
//! highest byte first, so a range is 256, 65,536, ... blocks that begin at a
//! multiple of their number. What cannot be made of few such ranges is left to
//! the next call of the copier, or is read and written.

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    blockmap::BlockMap,
    data::{WRITE_BYTES, Written, without_set_id_by},
    error::{Error, Result},
    inode::InodeRef,
    limits::{BLOCK_SIZE, MAX_FILE_SIZE},
    merge::{Change, Size},
    path,
    sums::file_bytes,
    types::{Caller, FileHandle, Ino},
    volume::Fs,
};

/// Largest copy in one call that is not a clone, bytes: the caller calls again for the rest.
const COPY_BYTES: u64 = 16 << 20;
/// Most ranges that one call clones, a count; the caller calls again for the rest.
const MAX_CLONED_RANGES: usize = 64;
/// Least that is worth clones rather than copying, bytes.
const MIN_SHARED_BYTES: u64 = 1 << 20;
/// Block numbers are compared in ranges of up to 256 to this power.
const TOP_LEVEL: u32 = 5;

/// Ranges of 256^level blocks, one behind the other.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges {
    /// First block and level of each.
    parts: Vec<(u64, u32)>,
    /// The block behind the last one.
    end: u64,
}

/// Ranges from block `first` on that end at or before `end`; the last may end behind it if the
/// source has nothing there (`to_the_end`). Stops where only smaller ranges would follow.
fn ranges(first: u64, end: u64, to_the_end: bool) -> Ranges {
    let mut out = Ranges { parts: Vec::new(), end: first };
    let mut largest = 1;
    while out.end < end && out.parts.len() < MAX_CLONED_RANGES {
        let at = out.end;
        let fits = |level: &u32| {
            let blocks = 1u64 << (8 * level);
            at.is_multiple_of(blocks) && (to_the_end || at + blocks <= end)
        };
        let Some(level) = (largest..=TOP_LEVEL).rev().find(fits) else { break };
        largest = level;
        out.parts.push((at, level));
        out.end = end.min(at + (1u64 << (8 * level)));
    }
    out
}

/// Prefix of the keys of 256^level blocks from `first` on.
fn prefix(data: &[u8], first: u64, level: u32) -> Bytes {
    let key = path::block(data, first);
    key.slice(..key.len().saturating_sub(level as usize))
}

impl Fs {
    /// Copies all of one file onto another, empty one, by a clone of its data: one batch whatever the size. Returns how
    /// many bytes these are, or `None` where that is not what was asked for: `len` must cover all of it. Nothing is
    /// read but what tells where the files are.
    pub fn copy_whole(&self, c: &Caller, ino_in: Ino, ino_out: Ino, len: u64) -> Result<Option<u64>> {
        self.writable()?;
        let (source, _) = self.file(FileHandle(0), ino_in)?;
        let (target, _) = self.file(FileHandle(0), ino_out)?;
        match source.ino == target.ino {
            true => Ok(None),
            false => self.clone_data(c, &source, &target, len),
        }
    }

    /// Copies up to `len` bytes between files and returns how many: less than `len` at the end of the source, and
    /// after 16 MiB, when the caller calls again.
    ///
    /// A copy of a whole file to an empty one clones its data: one batch whatever the size. A part of at least a
    /// mebibyte is cloned as well if it goes to the same offset, behind all data of the target, and up to the end of
    /// the source or a multiple of 4 MiB or a GiB; the next call copies the rest.
    pub fn copy_file_range(
        &self,
        c: &Caller,
        ino_in: Ino,
        off_in: u64,
        ino_out: Ino,
        off_out: u64,
        len: u64,
    ) -> Result<u64> {
        self.writable()?;
        let (source, _) = self.file(FileHandle(0), ino_in)?;
        let (target, _) = self.file(FileHandle(0), ino_out)?;
        if off_out.saturating_add(len.min(source.peek(|s| s.record.size))) > MAX_FILE_SIZE {
            return Err(Error::TooBig(off_out));
        }
        if source.ino == target.ino {
            let apart = off_in.saturating_add(len) <= off_out || off_out.saturating_add(len) <= off_in;
            if !apart {
                return Err(Error::Invalid(format!("{}: copied onto itself", source.label())));
            }
        } else if off_in == off_out {
            if off_in == 0
                && let Some(copied) = self.clone_data(c, &source, &target, len)?
            {
                return Ok(copied);
            }
            if let Some(copied) = self.share_data(c, &source, &target, off_in, len)? {
                return Ok(copied);
            }
        }
        let mut done = 0;
        let len = len.min(COPY_BYTES);
        while done < len {
            let unit = (len - done).min(WRITE_BYTES as u64) as u32;
            let bytes = match self.read(FileHandle(0), ino_in, off_in.saturating_add(done), unit) {
                Ok(bytes) => bytes,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            if bytes.is_empty() {
                break;
            }
            let written = self.hold(&target, true).and_then(|at| {
                let written = Written::by(c.keeps_set_id(), self.times_of_change(c).mtime);
                self.write_at(&target, &at, off_out + done, &bytes, written)
            });
            match written {
                Ok(n) => done += u64::from(n),
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Clones the data of `source` into `target` if that is empty and `len` covers the source.
    fn clone_data(&self, c: &Caller, source: &InodeRef, target: &InodeRef, len: u64) -> Result<Option<u64>> {
        self.with_attempts(|tries| {
            let from = self.attempt(source, tries, false)?;
            let to = self.attempt(target, tries, true)?;
            let (size, dense) = source.peek(|s| (s.record.size, s.record.dense));
            let (held, perm, drop_capability) =
                target.peek(|s| (s.record.size, s.record.perm, s.record.may_do_more()));
            let outside = [source, target].iter().any(|i| i.peek(|s| s.record.has_outside()));
            if size == 0 || held != 0 || len < size {
                return Ok(None);
            }
            let change = Change {
                size: Some(Size::Set(size)),
                perm: if c.keeps_set_id() {
                    None
                } else {
                    without_set_id_by(c, perm, target.peek(|s| s.record.gid))
                },
                dense: Some(dense),
                drop_capability,
                ..self.times_of_change(c)
            };
            let mut batch = Batch::new();
            match outside {
                false => {
                    batch.clone_prefix(from.data.clone(), to.data.clone());
                }
                // Blocks and map only: their keys differ from those of extended attributes in the first byte.
                true => {
                    for first in [0, path::MAP] {
                        let of = |data: &Bytes| path::block(data, first).slice(..data.len() + 1);
                        batch.clone_prefix(of(&from.data), of(&to.data));
                    }
                }
            }
            batch.upsert(to.meta.clone(), change.encode());
            let above = self.above_file(&to);
            // The target is empty, so it takes nothing yet. A caller that reads the map of the source beside others
            // sees what they see.
            let more = if above.is_empty() { 0 } else { self.bytes_of(source, &from.data)? };
            let reserved = self.reserve_file(&mut batch, above, more)?;
            self.db.write(batch)?;
            reserved.paid();
            target.change(|s| {
                change.apply(&mut s.record);
                s.set_map(None); // with the data, and read when it is asked for
            });
            Ok(Some(size))
        })
    }

    /// Shares up to `len` bytes from `offset` of `source` with `target`, to the same offset, and
    /// returns how many; `None` if they have to be copied. One batch.
    fn share_data(
        &self,
        c: &Caller,
        source: &InodeRef,
        target: &InodeRef,
        offset: u64,
        len: u64,
    ) -> Result<Option<u64>> {
        if !offset.is_multiple_of(BLOCK_SIZE) {
            return Ok(None);
        }
        let first = offset / BLOCK_SIZE;
        self.with_attempts(|tries| {
            let from = self.attempt(source, tries, false)?;
            let to = self.attempt(target, tries, true)?;
            let (size, source_dense) = source.peek(|s| (s.record.size, s.record.dense));
            let (held, perm, target_dense) = target.peek(|s| (s.record.size, s.record.perm, s.record.dense));
            let drop_capability = target.peek(|s| s.record.may_do_more());
            let end = size.min(offset.saturating_add(len));
            if held > offset || end <= offset {
                return Ok(None);
            }
            // A block that is copied in part would bring bytes behind the new size along.
            let blocks = if end == size { end.div_ceil(BLOCK_SIZE) } else { end / BLOCK_SIZE };
            let ranges = ranges(first, blocks, end == size);
            let end = end.min(ranges.end * BLOCK_SIZE);
            if end.saturating_sub(offset) < MIN_SHARED_BYTES {
                return Ok(None);
            }
            let mut batch = Batch::new();
            let (above, before) = self.before(target, &to)?;
            for &(at, level) in &ranges.parts {
                batch.clone_prefix(prefix(&from.data, at, level), prefix(&to.data, at, level));
            }
            // What is known of holes afterwards. Blocks before `held` are the target's, those
            // from `first` on the source's, and none is between.
            let had = held.div_ceil(BLOCK_SIZE);
            let begins = target_dense.unwrap_or(had);
            let existing = source_dense.unwrap_or(u64::MAX).clamp(first, ranges.end);
            let dense = if begins == first { existing } else { begins };
            let noted = if target_dense.is_none() && dense == ranges.end {
                None
            } else {
                let mut map = match target_dense {
                    Some(dense) => self.map(target, &to.data, dense)?,
                    None => BlockMap::default(),
                };
                if dense < existing {
                    map.set(&mut batch, &to.data, first, existing - 1);
                }
                if let Some(source_dense) = source_dense {
                    let theirs = self.map(source, &from.data, source_dense)?;
                    for (from, last) in theirs.runs(existing, ranges.end) {
                        map.set(&mut batch, &to.data, from, last);
                    }
                }
                Some(map)
            };
            let change = Change {
                size: Some(Size::Set(end)),
                perm: if c.keeps_set_id() {
                    None
                } else {
                    without_set_id_by(c, perm, target.peek(|s| s.record.gid))
                },
                dense: noted.is_some().then_some(Some(dense)),
                drop_capability,
                ..self.times_of_change(c)
            };
            batch.upsert(to.meta.clone(), change.encode());
            let after = file_bytes(end, noted.is_some().then_some(dense), noted.as_ref());
            let reserved = self.reserve_file(&mut batch, above, after - before)?;
            self.db.write(batch)?;
            reserved.paid();
            target.change(|s| {
                change.apply(&mut s.record);
                s.set_map(noted);
            });
            self.keep_map(target);
            Ok(Some(end - offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_few_and_stop_where_they_would_become_small() {
        const M: u64 = 256; // blocks of 4 MiB
        const G: u64 = 65_536; // blocks of a GiB
        assert_eq!(ranges(0, 0x3_ffc0, false).parts, [(0, 2), (G, 2), (2 * G, 2)]);
        assert_eq!(ranges(3 * G, 4 * G + 6_144, true).parts, [(3 * G, 3 - 1), (4 * G, 3 - 1)]);
        assert_eq!(ranges(3 * G, 4 * G + 6_144, true).end, 4 * G + 6_144);
        assert_eq!(ranges(0, 100, false), Ranges { parts: vec![], end: 0 });
        assert_eq!(ranges(17, 5 * G, true).parts, []);
        let rising = ranges(G - 2 * M, 3 * G + 1, false);
        assert_eq!(rising.parts, [(G - 2 * M, 1), (G - M, 1), (G, 2), (2 * G, 2)]);
        assert_eq!(ranges(M, 3 * G, false).parts.len(), MAX_CLONED_RANGES);
    }

    #[test]
    fn a_prefix_covers_its_blocks_and_no_others() {
        let p = prefix(b"file", 0x0102_0000, 2);
        for (block, within) in
            [(0x0102_0000, true), (0x0102_ffff, true), (0x0103_0000, false), (0x0101_ffff, false)]
        {
            assert_eq!(path::block(b"file", block).starts_with(&p), within, "{block:#x}");
        }
        assert!(!path::block(b"file", crate::path::MAP).starts_with(&prefix(b"file", 0, TOP_LEVEL)));
    }
}
