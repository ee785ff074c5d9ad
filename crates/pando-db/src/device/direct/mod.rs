//! Direct I/O to a file: requests bypass the kernel's page cache, so that a store uses no more memory than its budget.
//!
//! The kernel takes direct requests only from aligned memory, for whole blocks. So bytes pass through aligned buffers
//! ([`buffers`]), and requests that do not begin or end at a block are widened. A write is handed to a thread and
//! returns, as one to the page cache would ([`behind`]). The device reads nothing ahead: callers that know what they
//! will need request it earlier, in another thread.
//!
//! Guarantees: a read sees every write that has returned, or fails if that write failed; a flush returns when
//! every write that has returned is durable, or fails, and all later flushes and writes with it,
//! if one of them failed. Memory: [`behind::MAX_QUEUED_BYTES`] and a buffer for each request and for each that is lent
//! ([`Direct::read_lent`]), of which 16 are kept. May use: the file, threads. Knows nothing of the store.

mod behind;
mod buffers;
mod crew;

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2};

use self::{
    behind::Behind,
    buffers::{Buffers, MAX_DIRECT_BYTES},
    crew::Crew,
};
use crate::{
    device::{BLOCK, counters::Counters, joined},
    locks::Mutex,
};

/// A file that was opened for direct requests.
#[derive(Debug)]
pub(super) struct Direct {
    raw: Arc<Raw>,
    behind: Arc<Behind>,
    crew: Crew,
    /// Held while a block is read, changed in part and written.
    partial: Mutex<()>,
}

/// The file and the buffers for it.
#[derive(Debug)]
struct Raw {
    file: File,
    buffers: Buffers,
    /// Counts the requests as they are made: whole blocks, each piece of a long one for itself.
    counters: Arc<Counters>,
}

/// The whole blocks around a range.
fn blocks_around(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)
}

/// Whether two ranges have a byte in common.
fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Raw {
    /// Fills `buffer` from `offset`, both whole blocks. Gives the bytes that there are: fewer where the file ends.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match pread(&self.file, rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => {
                    self.counters.read(offset + filled as u64, read);
                    filled += read;
                    // A request that ends inside a block has met the end of the file.
                    if !read.is_multiple_of(BLOCK as usize) {
                        break;
                    }
                }
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }

    /// Writes whole blocks of an aligned buffer. With `durably` they are durable then, or nothing was written and the
    /// answer is `false`.
    fn write(&self, offset: u64, buffer: &[u8], durably: bool) -> io::Result<bool> {
        let mut done = 0;
        while let Some(rest) = buffer.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            let written = match durably {
                true => pwritev2(&self.file, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC),
                false => pwrite(&self.file, rest, at),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.counters.write(written);
                    done += written;
                }
                Err(Errno::INTR) => (),
                // Kernels before 4.7, and filters of system calls that do not know this one.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) if durably && done == 0 => {
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// Buffers of a caller that are filled one after the other.
struct Scatter<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    /// Bytes of the first one that are filled.
    filled: usize,
}

impl Scatter<'_, '_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some((first, _)) = self.bufs.split_first_mut() else { return };
            let room = first.get_mut(self.filled..).unwrap_or_default();
            let n = room.len().min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            room.iter_mut().zip(now).for_each(|(to, from)| *to = *from);
            (bytes, self.filled) = (rest, self.filled + n);
            if self.filled == first.len() {
                let bufs = std::mem::take(&mut self.bufs);
                self.bufs = bufs.split_first_mut().map_or(Default::default(), |(_, rest)| rest);
                self.filled = 0;
            }
        }
    }
}

impl Direct {
    /// Takes a file that was opened with `O_DIRECT`; `None` if it does not take direct requests of whole blocks.
    pub(super) fn new(file: File, counters: Arc<Counters>) -> Option<Self> {
        let raw = Arc::new(Raw { file, buffers: Buffers::default(), counters });
        let mut probe = raw.buffers.take(BLOCK as usize).ok()?;
        pread(&raw.file, probe.get_mut(..BLOCK as usize)?, 0).ok()?;
        drop(probe);
        let behind = Arc::new(Behind::default());
        let crew = Crew::new(raw.clone(), behind.clone());
        Some(Self { raw, behind, crew, partial: Mutex::new(()) })
    }

    /// Fills all of `bufs`, one after the other, from `offset` on.
    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let range = offset..offset + len as u64;
        self.wait_and_check(&range)?;
        let mut to = Scatter { bufs, filled: 0 };
        let mut at = range.start;
        while at < range.end {
            at += self.read_some(at..range.end, &mut to)?;
        }
        Ok(())
    }

    /// The `len` bytes from `offset` on, in the memory that they were read into; `None` if they do not fit it.
    pub(super) fn read_lent(&self, offset: u64, len: usize) -> io::Result<Option<Bytes>> {
        let range = offset..offset + len as u64;
        let blocks = blocks_around(&range);
        let wanted = (blocks.end - blocks.start) as usize;
        if wanted > MAX_DIRECT_BYTES {
            return Ok(None);
        }
        self.wait_and_check(&range)?;
        let mut buffer = self.raw.buffers.take(wanted)?;
        let filled = self.raw.read(blocks.start, buffer.get_mut(..wanted).unwrap_or_default())?;
        let from = (range.start - blocks.start) as usize;
        if filled < from + len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Bytes::from_owner(buffer).slice(from..from + len)))
    }

    /// Reads the first bytes of a range, and says how many.
    fn read_some(&self, range: Range<u64>, to: &mut Scatter<'_, '_>) -> io::Result<u64> {
        let begin = range.start / BLOCK * BLOCK;
        let blocks = blocks_around(&(begin..range.end.min(begin + MAX_DIRECT_BYTES as u64)));
        let wanted = (blocks.end - begin) as usize;
        let mut buffer = self.raw.buffers.take(wanted)?;
        let filled = self.raw.read(begin, buffer.get_mut(..wanted).unwrap_or_default())?;
        let (from, until) = ((range.start - begin) as usize, filled.min((range.end - begin) as usize));
        match buffer.get(from..until) {
            Some(found) if !found.is_empty() => {
                to.put(found);
                Ok(found.len() as u64)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Gives back memory that was needed for a while.
    pub(super) fn rest(&self) {
        self.raw.buffers.rest();
    }

    /// Writes `bytes`, some time before the next flush returns. With `now` before this returns.
    pub(super) fn write(&self, offset: u64, bytes: &[u8], now: bool) -> io::Result<()> {
        self.behind.check()?;
        for (at, piece) in whole_blocks(offset, bytes) {
            let range = at..at + piece.len() as u64;
            if range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK) {
                if now {
                    self.write_now(range, piece, false)?;
                } else {
                    let bufs = [IoSlice::new(piece)];
                    self.behind.add(range, &bufs, &self.raw.buffers, || self.crew.write())?;
                }
            } else {
                self.write_partial(range, piece)?;
            }
        }
        Ok(())
    }

    /// Writes several buffers, one after the other: whole blocks are copied once, into the requests.
    pub(super) fn write_vectored(&self, offset: u64, bufs: &[IoSlice<'_>], now: bool) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let range = offset..offset + len as u64;
        if now || blocks_around(&range) != range {
            return self.write(offset, &joined(bufs), now);
        }
        let (mut at, mut request, mut room) = (offset, Vec::with_capacity(bufs.len()), MAX_DIRECT_BYTES);
        let mut add = |request: &mut Vec<IoSlice<'_>>, len: usize| {
            let range = at..at + len as u64;
            at = range.end;
            let added = self.behind.add(range, request, &self.raw.buffers, || self.crew.write());
            request.clear();
            added
        };
        for buf in bufs {
            let mut rest = &buf[..];
            while !rest.is_empty() {
                let (here, more) = rest.split_at(rest.len().min(room));
                request.push(IoSlice::new(here));
                (rest, room) = (more, room - here.len());
                if room == 0 {
                    add(&mut request, MAX_DIRECT_BYTES)?;
                    room = MAX_DIRECT_BYTES;
                }
            }
        }
        if room < MAX_DIRECT_BYTES { add(&mut request, MAX_DIRECT_BYTES - room) } else { Ok(()) }
    }

    /// Writes whole blocks, behind all that was written there before, and returns when that is done.
    fn write_now(&self, range: Range<u64>, bytes: &[u8], durably: bool) -> io::Result<bool> {
        let mut buffer = self.raw.buffers.take(bytes.len())?;
        fill(&mut buffer, bytes);
        self.wait_for(&range);
        self.raw.write(range.start, buffer.get(..bytes.len()).unwrap_or_default(), durably)
    }

    /// Changes bytes of one block, by reading and writing the block. Meanwhile the block is written only by this
    /// function.
    fn write_partial(&self, range: Range<u64>, bytes: &[u8]) -> io::Result<()> {
        let _alone = self.partial.lock();
        let block = blocks_around(&range);
        self.wait_and_check(&block)?;
        let len = (block.end - block.start) as usize;
        let mut buffer = self.raw.buffers.take(len)?;
        let whole = buffer.get_mut(..len).unwrap_or_default();
        let found = self.raw.read(block.start, whole)?;
        if let Some(missing) = whole.get_mut(found..) {
            missing.fill(0);
        }
        let from = (range.start - block.start) as usize;
        if let Some(place) = whole.get_mut(from..from + bytes.len()) {
            fill(place, bytes);
        }
        self.raw.write(block.start, whole, false).map(drop)
    }

    /// Writes `bytes` durably; `false` if that cannot be, and it must be written otherwise.
    pub(super) fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        self.behind.check()?;
        let range = offset..offset + bytes.len() as u64;
        if blocks_around(&range) != range || bytes.is_empty() {
            return Ok(false);
        }
        for (at, piece) in whole_blocks(offset, bytes) {
            let range = at..at + piece.len() as u64;
            if !self.write_now(range, piece, true)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns when every write that has returned is done; the error of the first that failed, now and from then on.
    pub(super) fn drain(&self) -> io::Result<()> {
        self.close(None);
        self.behind.drain();
        self.behind.check()
    }

    /// Returns when every write to the range that has returned is done.
    pub(super) fn wait_for(&self, range: &Range<u64>) {
        self.close(Some(range));
        self.behind.wait_for(range);
    }

    /// Waits for writes to the range; fails if one of them did.
    fn wait_and_check(&self, range: &Range<u64>) -> io::Result<()> {
        self.close(Some(range));
        self.behind.wait_and_check(range)
    }

    /// Does the open write if it is to the range, or to any: for a caller that will wait for it. To wake another thread
    /// for it, and to be woken by that one, takes longer than to make the request.
    fn close(&self, range: Option<&Range<u64>>) {
        if self.behind.close(range) {
            self.behind.write_one(&self.raw);
        }
    }
}

impl Drop for Direct {
    /// What was written is done here or on its way: the crew ends when it is done.
    fn drop(&mut self) {
        self.close(None);
    }
}

/// Pieces of a write: runs of whole blocks that fit a buffer, and what is in a block of its own before or behind.
fn whole_blocks(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let (mut at, mut rest) = (offset, bytes);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = rest.len() as u64 / BLOCK * BLOCK;
        let len = match at % BLOCK {
            0 if whole > 0 => whole.min(MAX_DIRECT_BYTES as u64) as usize,
            0 => rest.len(),
            inside => rest.len().min((BLOCK - inside) as usize),
        };
        let (piece, more) = rest.split_at(len);
        let found = (at, piece);
        (at, rest) = (at + len as u64, more);
        Some(found)
    })
}

/// Copies buffers, one after the other, to the beginning of `to`, which has room for them.
fn gather(mut to: &mut [u8], bufs: &[IoSlice<'_>]) {
    for buf in bufs {
        let Some((here, rest)) = to.split_at_mut_checked(buf.len()) else { return };
        here.copy_from_slice(buf);
        to = rest;
    }
}

fn fill(to: &mut [u8], from: &[u8]) {
    if let Some(to) = to.get_mut(..from.len()) {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests;
