//! The data of files: reads, writes, truncation.
//!
//! A file is blocks of 16 KiB under its data prefix; a block that is absent or
//! short reads as zeros behind its end. Invariant: no block holds bytes behind
//! the size of the file, so growing never shows old bytes. Writes are blind: whole blocks are
//! puts, parts of blocks are upserts, size and times an upsert in the same
//! batch. Reads take their view of the engine while the place of the file is
//! held, and do the I/O after they have released it.

use bytes::{Bytes, BytesMut};
use pando_db::{Batch, Cursor};

use crate::{
    bill::{Above, Reserved},
    blockmap::BlockMap,
    error::{Error, Result},
    handle::OpenFile,
    holes::Holes,
    inode::InodeRef,
    limits::{BLOCK_SIZE, MAX_FILE_SIZE},
    merge::{self, Change, Size},
    mode::{S_ISGID, S_ISUID, S_IXGRP},
    open_flags::{O_ACCMODE, O_APPEND, O_RDONLY, O_WRONLY},
    path,
    place::At,
    record::Record,
    types::{AtimePolicy, Caller, DAY_SECONDS, FileHandle, FileKind, Ino, Time},
    volume::Fs,
};

/// Up to so many blocks are removed one by one: a range message costs more than a few deletes.
pub(crate) const FEW_BLOCKS: u64 = 8;
/// Largest part of a write that is one batch, bytes: it must fit a quarter of the smallest log.
pub(crate) const WRITE_BYTES: usize = 128 << 10;
/// A write in order of at most so many bytes may be logged with those before and behind it.
const JOINED_BYTES: usize = 64 << 10;

/// The mode after a change by a caller who may not keep set-id bits; `None` if it stays the same.
pub(crate) fn without_set_id(perm: u16) -> Option<u16> {
    let mut new = perm & !S_ISUID;
    if perm & S_IXGRP != 0 {
        new &= !S_ISGID;
    }
    (new != perm).then_some(new)
}

/// The mode after a change by `c` of a file of the group `gid`. If `c` neither has CAP_FSETID nor is in that group,
/// this also clears a set-group-id bit of a file that the group cannot execute.
pub(crate) fn without_set_id_by(c: &Caller, perm: u16, gid: u32) -> Option<u16> {
    let mut new = without_set_id(perm).unwrap_or(perm);
    if !c.keeps_set_id() && !c.in_group(gid) {
        new &= !S_ISGID;
    }
    (new != perm).then_some(new)
}

/// The writer of a file, and the time of the write.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    /// Set-id bits stay, as where root writes.
    keeps_set_id: bool,
    /// The times of the file afterwards; without, they are as they were.
    now: Option<Time>,
    /// A capability stays: of what the kernel writes out late it has taken that away when it was written, and the file
    /// may have got another one since.
    keeps_capability: bool,
}

impl Written {
    /// By a program, so that capabilities go.
    pub(crate) fn by(keeps_set_id: bool, now: Option<Time>) -> Self {
        Self { keeps_set_id, now, keeps_capability: false }
    }
}

impl Fs {
    /// Adds the removal of all that lies under the data prefix of an entry with this record.
    pub(crate) fn drop_data(batch: &mut Batch, data: &Bytes, record: &Record) {
        let size = if record.kind == FileKind::Regular { record.size } else { 0 };
        if record.has_outside() {
            batch.delete_prefix(data.clone());
            return;
        }
        Self::drop_blocks(batch, data, size, record.dense.is_some(), false);
    }

    /// Adds the removal of all blocks of a file of this size, which has a map if it is `sparse`, and may have `more`
    /// keys that stay.
    fn drop_blocks(batch: &mut Batch, data: &Bytes, size: u64, sparse: bool, more: bool) {
        let blocks = size.div_ceil(BLOCK_SIZE);
        if blocks > FEW_BLOCKS || sparse {
            match more {
                true => batch.delete_range(path::block(data, 0), Some(path::block(data, path::ATTRS_BEGIN))),
                false => batch.delete_prefix(data.clone()),
            };
            return;
        }
        for block in 0..blocks {
            batch.delete(path::block(data, block));
        }
    }

    /// Adds the removal of data behind `new`, which is not 0, from a file of size `old`.
    fn cut_data(batch: &mut Batch, data: &Bytes, old: u64, new: u64) {
        let (first, end) = (new.div_ceil(BLOCK_SIZE), old.div_ceil(BLOCK_SIZE));
        if end - first > FEW_BLOCKS {
            batch.delete_range(path::block(data, first), Some(path::block(data, path::MAP)));
        } else {
            for block in first..end {
                batch.delete(path::block(data, block));
            }
        }
        if !new.is_multiple_of(BLOCK_SIZE) {
            batch.upsert(path::block(data, new / BLOCK_SIZE), merge::cut((new % BLOCK_SIZE) as u32));
        }
    }

    /// Adds what a change of size from `old` to `new` does to the data of a file whose `tree` is held exclusively.
    /// Gives what its record says of holes then, if that changes, and its map.
    pub(crate) fn resize_data(
        &self,
        batch: &mut Batch,
        inode: &InodeRef,
        data: &Bytes,
        (old, new): (u64, u64),
    ) -> Result<Holes> {
        let dense = inode.peek(|s| s.record.dense);
        let (had, has) = (old.div_ceil(BLOCK_SIZE), new.div_ceil(BLOCK_SIZE));
        if new == 0 {
            if old > 0 {
                let more = inode.peek(|s| s.record.has_outside());
                Self::drop_blocks(batch, data, old, dense.is_some(), more);
            }
            return Ok(Holes { dense: dense.is_some().then_some(None), map: None });
        }
        if new < old {
            Self::cut_data(batch, data, old, new);
            let Some(dense) = dense else { return Ok(Holes::default()) };
            let left = dense.min(has);
            let mut map = self.map(inode, data, dense)?;
            map.cut(batch, data, has, left);
            return Ok(Holes { dense: (left != dense).then_some(Some(left)), map: Some(map) });
        }
        Ok(match dense {
            None if has > had => Holes { dense: Some(Some(had)), map: Some(BlockMap::default()) },
            None => Holes::default(),
            Some(_) => Holes { dense: None, map: inode.peek(|s| s.part_of_map().cloned()) },
        })
    }

    /// Adds a write of `bytes` at `offset` to a file of size `size`, in which their blocks may be known to be `absent`.
    fn write_data(batch: &mut Batch, data: &Bytes, size: u64, offset: u64, mut bytes: &[u8], absent: bool) {
        let mut block = offset / BLOCK_SIZE;
        let mut within = (offset % BLOCK_SIZE) as usize;
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_SIZE as usize - within));
            let key = path::block(data, block);
            // Whole, or all that there is of the block: then what it held does not matter.
            let held = size.saturating_sub(block * BLOCK_SIZE).min(BLOCK_SIZE);
            if within == 0 && part.len() as u64 >= held {
                batch.put_copy(key, part);
            } else if absent {
                let mut value = BytesMut::zeroed(within);
                value.extend_from_slice(part);
                batch.put(key, value);
            } else {
                batch.upsert(key, merge::write(within as u32, part));
            }
            bytes = rest;
            block += 1;
            within = 0;
        }
    }

    /// A handle by which `c` has opened a file. Set-id bits stay when it is written by that, if a kernel says with each
    /// write whether they go, or if the caller may keep them.
    pub(crate) fn add_handle(&self, c: &Caller, inode: InodeRef, flags: i32) -> FileHandle {
        let keeps_set_id = c.told_when_set_id_goes || c.keeps_set_id();
        let stream = self.readahead.stream();
        FileHandle(self.files.add(OpenFile { inode, flags, keeps_set_id, stream }))
    }

    /// The file that a call names by handle or, with handle 0, by number.
    pub(crate) fn file(
        &self,
        fh: FileHandle,
        ino: Ino,
    ) -> Result<(InodeRef, Option<std::sync::Arc<OpenFile>>)> {
        let (inode, open) = match fh.0 {
            0 => (self.table.get(ino)?, None),
            n => {
                let open = self.files.get(n)?;
                if open.inode.ino != ino {
                    return Err(Error::BadHandle(n));
                }
                (open.inode.clone(), Some(open))
            }
        };
        match inode.kind {
            FileKind::Regular => Ok((inode, open)),
            FileKind::Directory => Err(Error::IsDirectory(inode.label())),
            _ => Err(Error::Invalid(format!("{}: not a regular file", inode.label()))),
        }
    }

    /// Up to `size` bytes from `offset`: fewer only at the end of the file. Holes read as zeros.
    pub fn read(&self, fh: FileHandle, ino: Ino, offset: u64, size: u32) -> Result<Bytes> {
        let (inode, open) = self.file(fh, ino)?;
        if open.as_ref().is_some_and(|o| o.flags & O_ACCMODE == O_WRONLY) {
            return Err(Error::BadHandle(fh.0));
        }
        let bytes = self.read_at(&inode, open.as_deref(), offset, size)?;
        if !bytes.is_empty() {
            self.accessed(&inode);
        }
        Ok(bytes)
    }

    /// As [`Fs::read`], without an open file, and not as an access to the file: for a kernel that completes a page of
    /// which a program has written a part.
    pub fn read_rest_of_page(&self, ino: Ino, offset: u64, size: u32) -> Result<Bytes> {
        let (inode, _) = self.file(FileHandle(0), ino)?;
        self.read_at(&inode, None, offset, size)
    }

    fn read_at(&self, inode: &InodeRef, open: Option<&OpenFile>, offset: u64, size: u32) -> Result<Bytes> {
        let at = self.hold(inode, false)?;
        let end = inode.peek(|s| s.record.size).min(offset.saturating_add(size.into()));
        if offset >= end {
            return Ok(Bytes::new());
        }
        let (first, last) = (offset / BLOCK_SIZE, (end - 1) / BLOCK_SIZE);
        let view = self.view(&at.data, first, last);
        let data = at.data.clone();
        if let Some(open) = open {
            let size = inode.peek(|s| s.record.size);
            let whole = open.stream.note(offset..end, size, |next| {
                let (first, last) = (next.start / BLOCK_SIZE, (next.end - 1) / BLOCK_SIZE);
                self.db.range(&path::block(&data, first), Some(&path::block(&data, last + 1)))
            });
            if whole {
                self.read_whole(&data, size);
            }
        }
        drop(at);
        view.bytes(&data, offset, end)
    }

    /// A file has been read whole, in order: has read ahead what lies behind it, if its neighbours were as well.
    fn read_whole(&self, data: &Bytes, size: u64) {
        let Some(wanted) = self.file_runs.read_whole(data, size) else { return };
        let (runs, run, end) = (self.file_runs.clone(), wanted.run, wanted.to.clone());
        let cursor = self.db.range(&wanted.from, Some(&wanted.to));
        self.readahead.bring(cursor, wanted.bytes, move |next| runs.asked(run, next.unwrap_or(end)));
    }

    /// What blocks `first` to `last` hold now.
    fn view(&self, data: &Bytes, first: u64, last: u64) -> View {
        if first == last {
            View::One(self.db.snapshot(), path::block(data, first))
        } else {
            let range = self.db.range(&path::block(data, first), Some(&path::block(data, last + 1)));
            View::Many(range.take_all())
        }
    }

    /// Writes `data` at `offset`, or at the end (`append`, or a handle opened so). Reads nothing.
    /// Returns how much was written: less than all only if the rest failed.
    pub fn write(&self, fh: FileHandle, ino: Ino, offset: u64, data: &[u8], append: bool) -> Result<u32> {
        let (inode, keeps_set_id, appends) = self.file_to_write(fh, ino)?;
        let at = self.hold(&inode, true)?;
        let offset = if append || appends { inode.peek(|s| s.record.size) } else { offset };
        self.write_at(&inode, &at, offset, data, Written::by(keeps_set_id, Some(self.now())))
    }

    /// As [`Fs::write`] at `offset`, but writes all of `data`. After an error a part of it may have been written.
    pub fn write_whole(&self, fh: FileHandle, ino: Ino, offset: u64, data: &[u8]) -> Result<u32> {
        let (inode, keeps_set_id, _) = self.file_to_write(fh, ino)?;
        let at = self.hold(&inode, true)?;
        self.write_whole_at(&inode, &at, offset, data, Written::by(keeps_set_id, Some(self.now())))
    }

    /// As [`Fs::write_whole`], for pages of the kernel's write-back cache: the kernel has checked the writer, and
    /// sends the times itself.
    pub fn write_pages(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<u32> {
        let (inode, keeps_set_id, _) = self.file_to_write(FileHandle(0), ino)?;
        let at = self.hold(&inode, true)?;
        self.write_whole_at(
            &inode,
            &at,
            offset,
            data,
            Written { keeps_capability: true, ..Written::by(keeps_set_id, None) },
        )
    }

    /// What a change of content by `c` changes of the times: see [`Caller::reports_times`].
    pub(crate) fn times_of_change(&self, c: &Caller) -> Change {
        let now = (!c.reports_times).then(|| self.now());
        Change { mtime: now, ctime: now, ..Change::default() }
    }

    /// A file that is to be written through this handle, whether root opened it, and whether for appends only.
    fn file_to_write(&self, fh: FileHandle, ino: Ino) -> Result<(InodeRef, bool, bool)> {
        self.writable()?;
        let (inode, open) = self.file(fh, ino)?;
        let flags = open.as_ref().map_or(0, |o| o.flags);
        if open.is_some() && flags & O_ACCMODE == O_RDONLY {
            return Err(Error::BadHandle(fh.0));
        }
        Ok((inode, open.is_none_or(|o| o.keeps_set_id), flags & O_APPEND != 0))
    }

    /// As [`Fs::write_at`], but writes all of `data`, or returns the error of the call that failed.
    fn write_whole_at(
        &self,
        inode: &InodeRef,
        at: &At,
        offset: u64,
        data: &[u8],
        written: Written,
    ) -> Result<u32> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            done += self.write_at(inode, at, offset + done as u64, rest, written)? as usize;
        }
        Ok(done as u32)
    }

    /// The accounts around a file that is about to change, and what it takes before, bytes: see [`Fs::bytes_of`].
    pub(crate) fn before(&self, inode: &InodeRef, at: &At) -> Result<(Above, i64)> {
        let above = self.above_file(at);
        let bytes = if above.is_empty() { 0 } else { self.bytes_of(inode, &at.data)? };
        Ok((above, bytes))
    }

    /// Writes to a file whose `tree` is held exclusively.
    pub(crate) fn write_at(
        &self,
        inode: &InodeRef,
        at: &At,
        offset: u64,
        data: &[u8],
        Written { keeps_set_id, now, keeps_capability }: Written,
    ) -> Result<u32> {
        let (data_key, meta_key) = (&at.data, &at.meta);
        let end = offset.saturating_add(data.len() as u64);
        if end > MAX_FILE_SIZE || data.len() > u32::MAX as usize {
            return Err(Error::TooBig(end));
        }
        let mut done = 0;
        while done < data.len() {
            let from = offset + done as u64;
            // Batches end on block borders, and a part that does not fill a block is a batch of its own: if the file
            // is written in order, the next write continues that block, and the engine coalesces both batches.
            let (within, left) = ((from % BLOCK_SIZE) as usize, data.len() - done);
            let block = BLOCK_SIZE as usize;
            let unit = match within {
                0 if left >= block => WRITE_BYTES.min(left / block * block),
                _ => block - within,
            };
            let part = data.get(done..data.len().min(done + unit)).unwrap_or_default();
            let (size, perm, drop_capability) =
                inode.peek(|s| (s.record.size, s.record.perm, !keeps_capability && s.record.may_do_more()));
            let mut batch = Batch::new();
            let end = from + part.len() as u64;
            let blocks = (from / BLOCK_SIZE, (end - 1) / BLOCK_SIZE);
            // For a block that is written whole this makes no difference.
            let absent = match part.len() < block {
                true => self.is_absent(inode, data_key, size, blocks.0),
                false => Ok(false),
            };
            let known = absent.and_then(|absent| {
                let (above, before) = self.before(inode, at)?;
                let noted = self.note_blocks(&mut batch, inode, data_key, size, blocks)?;
                if above.is_empty() {
                    return Ok((absent, noted, Reserved::default()));
                }
                let was = inode.peek(|s| s.record.dense);
                let after = inode.peek(|s| noted.file_bytes((was, s.part_of_map()), size.max(end)));
                Ok((absent, noted, self.reserve_file(&mut batch, above, after - before)?))
            });
            let (absent, noted, reserved) = match known {
                Ok(known) => known,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            let mut change = Change {
                size: Some(Size::AtLeast(end)),
                perm: if keeps_set_id { None } else { without_set_id(perm) },
                dense: noted.dense(),
                mtime: now,
                ctime: now,
                drop_capability,
                ..Change::default()
            };
            inode.peek(|s| s.save_atime(&mut change));
            let in_order = inode.peek(|s| s.written_to == from || size == from);
            if in_order && part.len() <= JOINED_BYTES {
                batch.may_coalesce();
            }
            Self::write_data(&mut batch, data_key, size, from, part, absent);
            batch.upsert(meta_key.clone(), change.encode());
            match self.db.write(batch) {
                Ok(()) => {
                    reserved.paid();
                    inode.change(|s| {
                        s.apply(&change);
                        noted.apply(s);
                        s.written_to = end;
                    });
                    self.keep_map(inode);
                }
                Err(_) if done > 0 => break,
                Err(e) => return Err(e.into()),
            }
            done += part.len();
        }
        Ok(done as u32)
    }

    /// Sets the access time if the policy asks for it. A failure to do so is no failure of the read.
    pub(crate) fn accessed(&self, inode: &InodeRef) {
        if self.is_read_only() || self.atime == AtimePolicy::Noatime || inode.frozen {
            return;
        }
        let now = self.now();
        let due = |r: &crate::record::Record| {
            self.atime == AtimePolicy::Strict
                || r.atime <= r.mtime
                || r.atime <= r.ctime
                || now.secs.saturating_sub(r.atime.secs) >= DAY_SECONDS
        };
        if !inode.peek(|s| due(&s.record)) {
            return;
        }
        // An access is no reason to copy what clones share. A record that was changed after the last clone
        // is shared with none.
        let may_be_shared = inode.peek(|s| s.record.ctime) <= *self.cloned.lock();
        if self.atime == AtimePolicy::Relatime && may_be_shared {
            return inode.change(|s| {
                if due(&s.record) {
                    s.record.atime = now;
                    s.atime_unsaved = true;
                }
            });
        }
        let Ok(at) = self.hold(inode, true) else { return };
        let change = Change { atime: Some(now), ..Change::default() };
        if inode.peek(|s| due(&s.record)) && self.db.upsert(at.meta.clone(), change.encode()).is_ok() {
            inode.change(|s| s.apply(&change));
        }
    }
}

/// Blocks of a file at one moment, not read yet.
enum View {
    One(pando_db::Snapshot, Bytes),
    Many(Cursor),
}

impl View {
    /// The bytes `from..to` of the file.
    fn bytes(self, data: &[u8], from: u64, to: u64) -> Result<Bytes> {
        let len = (to - from) as usize;
        match self {
            View::One(snapshot, key) => {
                let block = snapshot.get(&key)?.unwrap_or_default();
                let within = (from % BLOCK_SIZE) as usize;
                if block.len() >= within + len {
                    return Ok(block.slice(within..within + len));
                }
                let mut out = BytesMut::with_capacity(len);
                out.extend_from_slice(block.get(within..).unwrap_or_default());
                out.resize(len, 0);
                Ok(out.freeze())
            }
            View::Many(mut cursor) => {
                let mut out = BytesMut::with_capacity(len);
                while let Some((key, value)) = cursor.next_ref()? {
                    let damaged = Error::Damaged { what: "file data".into(), detail: "impossible block key" };
                    let start = path::block_of(data, key).ok_or(damaged)? * BLOCK_SIZE;
                    let value = value.get(..value.len().min(BLOCK_SIZE as usize)).unwrap_or_default();
                    // Only the first block can begin before `from`.
                    let skip = from.saturating_sub(start) as usize;
                    let value = value.get(skip..).unwrap_or_default();
                    let at = (start.max(from) - from) as usize;
                    if at < out.len() || at >= len {
                        continue;
                    }
                    out.resize(at, 0);
                    out.extend_from_slice(value.get(..value.len().min(len - at)).unwrap_or_default());
                }
                out.resize(len, 0);
                Ok(out.freeze())
            }
        }
    }
}
