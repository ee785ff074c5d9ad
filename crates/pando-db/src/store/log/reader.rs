//! Reads the log back: all records from a position on whose chain of checksums is valid.
//!
//! Guarantees: the returned records are a prefix of those that were appended. A record that is not valid is repaired by
//! the guard of its write-out if possible. Otherwise the log ends there, and [`Replay::missing`] says whether records
//! that were durable once are behind the end, which only damage can cause. A failed device request is an error, and
//! is never taken for the end. The reader reads ahead in large pieces, and each byte about twice at most. Memory is
//! bounded by the longest write-out, time by that of reading the log a few times.

use std::{ops::RangeInclusive, sync::Arc};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::BLOCK,
    error::{Error, Result},
    store::log::{
        BlobPlacer, EMPTY_SEARCH_BYTES, Log, LogPos, Region,
        guard::{self, FOOTER_BYTES, Footer},
        max_payload,
        reader::guards::Guards,
        record::{Header, RECORD_HEADER_BYTES, record_len},
    },
};

mod guards;

pub use guards::WrongGuard;

/// Bytes that are read at once.
const READ_BYTES: u64 = EMPTY_SEARCH_BYTES;
/// Payloads of at most this many bytes share the memory into which they were read; longer ones are copied.
const MAX_SHARED_BYTES: usize = 16 << 10;
/// All attempts to repair a write-out together read at most so many times the length of the log, a count.
const REPAIR_LAPS: u64 = 16;
/// At most this part (1/n) of the log may lie unused behind its last record when it is opened.
const MAX_GAP_SHARE: u64 = 4;

/// A valid record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its sequence number.
    pub msn: u64,
    /// The session of the log that wrote it.
    pub session: u64,
    /// What was appended.
    pub payload: Bytes,
    /// The position behind it.
    pub end: LogPos,
}

/// Something in the log that differs from what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Bytes on the device that were computed again from the rest of their write-out. `last` is the last record of that
    /// write-out.
    Repaired {
        /// First byte on the device.
        at: u64,
        /// Length in bytes.
        len: u64,
        /// The last record of the write-out.
        last: u64,
    },
    /// Records that are lost, and were skipped.
    Lost {
        /// The byte on the device at which the first of them should begin.
        at: u64,
        /// Their sequence numbers.
        records: RangeInclusive<u64>,
    },
    /// A part of a guard differs from what was written.
    Guard(WrongGuard),
}

/// A reader of the log, in order.
pub struct Replay {
    region: Region,
    start: LogPos,
    at: LogPos,
    next_msn: u64,
    /// Where the next write-out begins, once the log has ended.
    head: u64,
    ended: bool,
    /// The newest record that a footer or the superblock says was durable.
    durable: u64,
    clean: bool,
    /// True if the reader skips lost records and continues behind them.
    salvage: bool,
    /// The number of the first record that does not count although it is valid: see [`Replay::doubt`].
    in_doubt: u64,
    found: Vec<Found>,
    guards: Guards,
    /// Bytes that were computed again, with their places on the device.
    to_mend: Vec<(u64, Vec<u8>)>,
    /// Bytes that further attempts to repair may still read.
    repairs_left: u64,
    /// A write-out that was repaired in memory, and its position.
    repaired: Option<(u64, Vec<u8>)>,
    /// Bytes that were read ahead, which the payloads of records share, and the position of the first.
    window: Bytes,
    window_at: u64,
}

impl Log {
    /// Begins to read the log at `start`, where the record `first_msn` stands. Records up to `durable` must exist. With
    /// `salvage` the reader skips lost records, so those that it returns may be no prefix. `clean` says that the log
    /// was empty when `start` was noted: if no record is found, it is not searched to its end.
    pub fn replay(
        region: Region,
        start: LogPos,
        first_msn: u64,
        durable: u64,
        clean: bool,
        salvage: bool,
    ) -> Replay {
        let Region { base, size, .. } = region;
        assert!(size.is_multiple_of(BLOCK) && base.is_multiple_of(BLOCK) && size > 0);
        Replay {
            region,
            start,
            at: start,
            next_msn: first_msn,
            head: start.pos.next_multiple_of(BLOCK),
            ended: false,
            durable,
            clean,
            salvage,
            in_doubt: u64::MAX,
            found: Vec::new(),
            guards: Guards::default(),
            to_mend: Vec::new(),
            repairs_left: REPAIR_LAPS * size,
            repaired: None,
            window: Bytes::new(),
            window_at: start.pos,
        }
    }
}

impl Replay {
    /// The next valid record; `None` at the end of the log, and in all later calls. [`Error::Io`] if the device fails;
    /// a later call tries again.
    #[allow(clippy::should_implement_trait)] // fallible, unlike an iterator
    pub fn next(&mut self) -> Result<Option<Replayed>> {
        while !self.ended {
            if let Some(record) = self.record_at(self.at.pos)? {
                self.guards.pass(self.at, &record);
                self.at = record.end;
                self.next_msn += 1;
                return Ok(Some(record));
            }
            self.go_on()?;
        }
        Ok(None)
    }

    /// The position behind the last record that was returned.
    #[cfg(test)]
    pub fn position(&self) -> LogPos {
        self.at
    }

    /// The damage found so far.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// The newest record that a footer in the log, or the caller of [`Log::replay`], says was durable. It is final only
    /// when the end has been reached.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The records that were durable once and are missing behind the last one. To be called when the end has been
    /// reached.
    pub fn missing(&self) -> Option<RangeInclusive<u64>> {
        (self.next_msn <= self.durable).then_some(self.next_msn..=self.durable)
    }

    /// Notes that the records from number `first` on do not count although they are valid. Until a durable record in
    /// the log says so, no footer may say that they are durable: otherwise the next reader would take the values that
    /// they lack for damage.
    pub fn doubt(&mut self, first: u64) {
        self.in_doubt = self.in_doubt.min(first);
    }

    /// The byte on the device at which a position lies.
    pub fn place(&self, pos: u64) -> u64 {
        self.region.base + pos % self.region.size
    }

    /// Finds where the log continues if there is no valid record at this place; sets `ended` if it continues nowhere.
    fn go_on(&mut self) -> Result<()> {
        let here = self.at.pos;
        self.guards.look_behind();
        // The positions at which the next record, and the next write-out, should begin.
        let (mut broken, mut head) = (here, here.next_multiple_of(BLOCK));
        // The first write-out behind the missing records.
        let mut next: Option<Footer> = None;
        // A log that was empty, and in which nothing has been found, is not searched to its end.
        let mut enough = if self.clean { here + EMPTY_SEARCH_BYTES } else { u64::MAX };
        let mut block = here - here % BLOCK;
        while block + BLOCK <= self.limit() && block <= enough {
            let at_block = LogPos { pos: block, ..self.at };
            if block >= here && self.record_at(block)?.is_some() {
                self.leave_write_out(Some(block))?;
                self.at = at_block;
                return Ok(());
            }
            let footer = self.footer_in(block)?;
            self.look_at_footer(block, footer)?;
            if let Some(footer) = footer {
                self.durable = self.durable.max(footer.durable);
                if self.clean && footer.begin >= here {
                    // A footer without records, which neither says that later records were durable nor announces any,
                    // only moves the search forward.
                    let says_nothing = footer.records == 0 && footer.durable.max(footer.last) < self.next_msn;
                    enough = if says_nothing { footer.end() + EMPTY_SEARCH_BYTES } else { u64::MAX };
                }
                // If the footer is one of another lap, nothing else in it matters.
                let footer = Some(footer).filter(|footer| footer.end() == block + BLOCK);
                let Some(footer) = footer else {
                    block += BLOCK;
                    continue;
                };
                let goes_on = footer.first == self.next_msn && footer.chain == self.at.chain;
                if footer.holds(here) && here < footer.records_end() {
                    if self.repair(&footer, here)? {
                        return Ok(());
                    }
                    // Records that were read of this write-out may depend on its guard, which must not be overwritten.
                    head = if here > footer.begin { footer.end() } else { head };
                } else if footer.holds(here) {
                    head = footer.end();
                } else if footer.begin >= here && footer.records > 0 && goes_on {
                    broken = footer.begin;
                    if self.repair(&footer, broken)? {
                        self.leave_write_out(Some(broken))?;
                        self.at.pos = broken;
                        return Ok(());
                    }
                } else if footer.begin >= here && footer.records > 0 && footer.first > self.next_msn {
                    next = next.or(Some(footer));
                }
            }
            block += BLOCK;
        }
        self.head = head;
        match self.missing() {
            Some(missing) if self.salvage => {
                self.guards.forget_write_out(next.map(|next| next.begin));
                self.pass(broken, next, *missing.end())
            }
            _ => {
                self.leave_write_out(None)?;
                self.end();
                Ok(())
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        let found = self.found_in_guards();
        self.found.extend(found);
        self.window = Bytes::new();
        self.repaired = None;
    }

    /// Repairs the write-out that a footer belongs to. Returns whether the record at `pos` is valid then.
    fn repair(&mut self, footer: &Footer, pos: u64) -> Result<bool> {
        let total = footer.end() - footer.begin;
        if self.repaired.as_ref().is_some_and(|(begin, _)| *begin == footer.begin) || total > self.region.size
        {
            return Ok(false);
        }
        // In a log as this module writes it, write-outs do not overlap, so few of them contain `pos`. In a forged image
        // each block may end one that does, so the work is bounded.
        let Some(left) = self.repairs_left.checked_sub(total) else { return Ok(false) };
        self.repairs_left = left;
        let mut bytes = self.bytes(footer.begin, total as usize)?.to_vec();
        let places = guard::repair(&mut bytes, footer.records as usize);
        if places.is_empty() {
            return Ok(false);
        }
        let right: Vec<_> = places.iter().map(|place| bytes.get(place.clone()).map(<[u8]>::to_vec)).collect();
        let before = self.repaired.replace((footer.begin, bytes));
        if self.record_at(pos)?.is_none() {
            // The write-out is one of an earlier session, or more is damaged than can be repaired.
            self.repaired = before;
            return Ok(false);
        }
        for (place, right) in places.into_iter().zip(right) {
            let at = self.place(footer.begin + place.start as u64);
            self.to_mend.extend(right.map(|right| (at, right)));
            self.found.push(Found::Repaired { at, len: place.len() as u64, last: footer.last });
        }
        Ok(true)
    }

    /// Skips the record at `pos`, which is lost: continues at the record behind it, at the write-out `next`, or ends
    /// behind the last record that was durable.
    fn pass(&mut self, pos: u64, next: Option<Footer>, last: u64) -> Result<()> {
        let (at, lost) = (self.place(pos), self.next_msn);
        if let Some((header, stored)) = self.header_at(pos)?
            && lost < last
        {
            // If only the payload is damaged, the chain continues with the checksum in the header.
            let behind = LogPos { pos: pos + record_len(header.len as usize), chain: stored };
            let before = std::mem::replace(&mut self.at, behind);
            self.next_msn += 1;
            let goes_on = self.record_at(behind.pos)?.is_some();
            if goes_on {
                self.found.push(Found::Lost { at, records: lost..=lost });
                return Ok(());
            }
            (self.at, self.next_msn) = (before, lost);
        }
        match next.filter(|next| next.first <= last) {
            Some(next) => {
                self.found.push(Found::Lost { at, records: lost..=next.first - 1 });
                (self.at, self.next_msn) = (LogPos { pos: next.begin, chain: next.chain }, next.first);
            }
            None => {
                self.found.push(Found::Lost { at, records: lost..=last });
                self.next_msn = last + 1;
                self.end();
            }
        }
        Ok(())
    }

    /// One lap of the ring behind the start; no record of this log lies further on.
    fn limit(&self) -> u64 {
        (self.start.pos - self.start.pos % BLOCK).saturating_add(self.region.size)
    }

    /// The footer at the end of a block, if there is a valid one that belongs to this log and this place.
    fn footer_in(&mut self, block: u64) -> Result<Option<Footer>> {
        let (size, store) = (self.region.size, self.region.store);
        let end = block + BLOCK;
        let footer = Footer::decode(self.bytes(end - FOOTER_BYTES as u64, FOOTER_BYTES)?, store);
        Ok(footer.filter(|footer| footer.end() % size == end % size))
    }

    /// Writes repaired bytes back to their places. They count as durable from now on, so the next reader must not
    /// depend on the guard to read them. Only the repaired unit of a block changes.
    fn mend(&self) -> Result<()> {
        let device = &self.region.device;
        for (at, right) in &self.to_mend {
            let (block, inside) = (at / BLOCK * BLOCK, (at % BLOCK) as usize);
            let failed = |e| Error::io("mend the log", block, e);
            let mut bytes = vec![0; BLOCK as usize];
            device.read_at(block, &mut bytes).map_err(failed)?;
            bytes.iter_mut().skip(inside).zip(right).for_each(|(byte, right)| *byte = *right);
            device.write_at(block, &bytes).map_err(failed)?;
        }
        Ok(())
    }

    /// A writer that continues behind the last valid record, and keeps everything since the start of this replay until
    /// it is truncated.
    ///
    /// Flushes the device, because the replayed records may have been written by a process that died before its flush.
    /// [`Error::Invalid`] if the end has not been reached: writing there would destroy records. Without a placer
    /// nothing is written; with one, repaired bytes are written back to the device.
    pub fn into_log(self, placer: Option<Arc<dyn BlobPlacer>>) -> Result<Log> {
        if !self.ended {
            return Err(Error::Invalid("the log has not been replayed to its end".into()));
        }
        if placer.is_some() {
            self.mend()?;
        }
        let flushed = self.region.device.flush();
        flushed.map_err(|e| Error::io("flush", self.region.base, e))?;
        // A torn write-out, or a footer that announces one that was never written, may leave a long gap behind the last
        // record. The gap would stay part of the log even after a checkpoint, and could leave no space for a batch. So
        // a long gap is given up; the records that were repaired by means of it have been written back by now.
        let behind = self.at.pos.next_multiple_of(BLOCK);
        let head = if self.head.saturating_sub(behind) > self.region.size / MAX_GAP_SHARE {
            behind
        } else {
            self.head
        };
        let is_empty = self.clean && self.at == self.start && head == behind;
        let log = Log::resume(self.region, self.start.pos, self.at, head, self.next_msn, placer);
        log.doubt(self.in_doubt);
        if is_empty {
            log.buf().keep_room_for_notice();
        }
        Ok(log)
    }

    /// The header at a position and the checksum in it, if the number and length are those that the next record may
    /// have.
    fn header_at(&mut self, pos: u64) -> Result<Option<(Header, u64)>> {
        // The whole log fits into one lap of the ring. Bytes behind it belong to the lap before.
        let room = self.limit().saturating_sub(pos);
        if room < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let Some(&stored) = self.bytes(pos, RECORD_HEADER_BYTES)?.first_chunk::<RECORD_HEADER_BYTES>() else {
            return Ok(None);
        };
        let Some(header) = Header::decode(&stored) else { return Ok(None) };
        let (len, sum) = (header.len as usize, stored.last_chunk().map_or(0, |sum| u64::from_le_bytes(*sum)));
        let fits = len <= max_payload(self.region.size) && record_len(len) <= room;
        Ok((header.msn == self.next_msn && fits).then_some((header, sum)))
    }

    /// The record at a position, if a valid one stands there.
    fn record_at(&mut self, pos: u64) -> Result<Option<Replayed>> {
        let Some((header, stored)) = self.header_at(pos)? else { return Ok(None) };
        let (len, chain) = (header.len as usize, self.at.chain);
        let payload = self.bytes(pos + RECORD_HEADER_BYTES as u64, len)?;
        let (_, chain) = header.encode(xxh3_64(payload), chain);
        if chain != stored {
            return Ok(None);
        }
        let payload = self.shared(pos + RECORD_HEADER_BYTES as u64, len)?;
        let end = LogPos { pos: pos + record_len(len), chain };
        Ok(Some(Replayed { msn: header.msn, session: header.session, payload, end }))
    }

    /// The same bytes in memory that can be kept. Short payloads share the memory into which they were read. Keeping
    /// one of them keeps all of that memory, but they are usually dropped together, and allocating memory for each
    /// would cost more than reading it.
    fn shared(&mut self, pos: u64, len: usize) -> Result<Bytes> {
        let bytes = self.bytes(pos, len)?;
        let copied = (len > MAX_SHARED_BYTES).then(|| Bytes::copy_from_slice(bytes));
        let place = bytes.as_ptr_range();
        let window = self.window.as_ptr_range();
        match copied {
            Some(copied) => Ok(copied),
            None if window.start <= place.start && place.end <= window.end && len > 0 => {
                let from = (pos - self.window_at) as usize;
                Ok(self.window.slice(from..from + len))
            }
            None => Ok(Bytes::copy_from_slice(self.bytes(pos, len)?)),
        }
    }

    /// `len` bytes at a position: from the repaired write-out, from the window, or from the device.
    fn bytes(&mut self, pos: u64, len: usize) -> Result<&[u8]> {
        let end = pos + len as u64;
        let inside = |(begin, bytes): &&(u64, Vec<u8>)| *begin <= pos && end <= begin + bytes.len() as u64;
        if self.repaired.as_ref().filter(inside).is_none() {
            let have = self.window_at..=self.window_at + self.window.len() as u64;
            if !(have.contains(&pos) && have.contains(&end)) {
                let ahead = READ_BYTES.min(self.region.size).max(len as u64) as usize;
                // Bytes further ahead may be unreadable, and not part of the log.
                if self.load(pos, ahead).is_err() {
                    self.load(pos, len)?;
                }
            }
            let from = (pos - self.window_at) as usize;
            return Ok(&self.window[from..from + len]);
        }
        let Some((begin, bytes)) = &self.repaired else { return Ok(&[]) };
        let from = (pos - begin) as usize;
        Ok(&bytes[from..from + len])
    }

    fn load(&mut self, pos: u64, len: usize) -> Result<()> {
        let Region { device, base, size, .. } = &self.region;
        // If a read below fails, the window stays empty.
        (self.window, self.window_at) = (Bytes::new(), pos);
        let mut window = vec![0; len];
        let (mut at, mut rest) = (pos, &mut window[..]);
        while !rest.is_empty() {
            let within = at % size;
            let piece = rest.len().min((size - within) as usize);
            let (buf, more) = rest.split_at_mut(piece);
            device.read_at(base + within, buf).map_err(|e| Error::io("read the log", base + within, e))?;
            (at, rest) = (at + piece as u64, more);
        }
        self.window = window.into();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    use super::*;
    use crate::device::{Device, DeviceCall, HookedDevice, MemDevice};

    /// Each block says that it ends a write-out that began at the start of the log: all of these were read and summed
    /// whole, one after the other.
    #[test]
    fn footers_that_anybody_may_have_made_cost_some_laps_at_most() {
        // Twice what is read at once, so that reads are seen.
        const SIZE: u64 = 2 * READ_BYTES;
        let memory = Arc::new(MemDevice::new(SIZE));
        let mut records = 1;
        for block in (READ_BYTES / BLOCK..SIZE / BLOCK).step_by(2) {
            let end = (block + 1) * BLOCK;
            while guard::total(records as usize + 1) <= end {
                records += 1;
            }
            let (begin, first) = (0, 1);
            let footer = Footer { records, begin, session: 1, first, last: 9, durable: 0, chain: 5 };
            let mut bytes = vec![0; records as usize];
            guard::close(&mut bytes, &footer, 0);
            if bytes.len() as u64 == end {
                memory.write_at(end - FOOTER_BYTES as u64, &bytes[bytes.len() - FOOTER_BYTES..]).unwrap();
            }
        }
        let read = Arc::new(AtomicU64::new(0));
        let count = read.clone();
        let device = HookedDevice::new(memory, false, move |call| {
            if let DeviceCall::Read(bytes) = call {
                count.fetch_add(bytes.end - bytes.start, Relaxed);
            }
            Ok(())
        });
        let region = Region { device: Arc::new(device), base: 0, size: SIZE, store: 0 };
        let mut replay = Log::replay(region, LogPos { pos: 0, chain: 5 }, 1, 0, false, false);
        assert!(replay.next().unwrap().is_none());
        let laps = read.load(Relaxed) / SIZE;
        assert!((8..50).contains(&laps), "{laps} times as much as there is was read");
    }
}
