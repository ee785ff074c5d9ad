//! Reading the log back: everything from a position on that the chain proves.
//!
//! Guarantees: ends without error at the first record that is not valid, which
//! is the ordinary end of a log; a failed device request is an error and never
//! taken for the end. Reads each byte at most about once, ahead in large
//! pieces. Memory is bounded by the longest payload (a quarter of the ring),
//! time by one lap.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Log, LogPos, Place, max_payload,
    record::{HEADER, Header, record_len},
};
use crate::{
    Error, Result,
    device::{BLOCK, Device},
};

/// How much is read at once, in bytes.
const AHEAD: u64 = 1 << 20;

/// A valid record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Its sequence number.
    pub msn: u64,
    /// What was appended.
    pub payload: Bytes,
    /// The position behind it.
    pub end: LogPos,
}

/// A reader of the log, in order.
pub struct Replay {
    device: Arc<dyn Device>,
    base: u64,
    size: u64,
    start: LogPos,
    at: LogPos,
    next_msn: u64,
    ended: bool,
    /// Behind the end stands a record that is valid but must not be.
    cut: bool,
    /// Bytes read ahead, and the position of the first.
    window: Vec<u8>,
    window_at: u64,
}

impl Log {
    /// Reads the log in `[base, base + size)` from `start` on, where the record `first_msn` stands.
    pub fn replay(device: Arc<dyn Device>, base: u64, size: u64, start: LogPos, first_msn: u64) -> Replay {
        assert!(size.is_multiple_of(BLOCK) && base.is_multiple_of(BLOCK) && size > 0);
        Replay {
            device,
            base,
            size,
            start,
            at: start,
            next_msn: first_msn,
            ended: false,
            cut: false,
            window: Vec::new(),
            window_at: start.pos,
        }
    }
}

impl Replay {
    /// The next valid record, `None` at the end of the log and from then on.
    /// [`Error::Io`] if the device fails; a later call tries again.
    #[allow(clippy::should_implement_trait)] // fallible, unlike an iterator
    pub fn next(&mut self) -> Result<Option<Replayed>> {
        if self.ended {
            return Ok(None);
        }
        // A write-out ended here or the log was opened anew here: then the next block continues.
        let next_block = self.at.pos.next_multiple_of(BLOCK);
        let mut found = self.record_at(self.at.pos)?;
        if found.is_none() && next_block != self.at.pos {
            found = self.record_at(next_block)?;
        }
        match &found {
            Some(record) => {
                self.at = record.end;
                self.next_msn += 1;
            }
            None => {
                self.ended = true;
                self.window = Vec::new();
            }
        }
        Ok(found)
    }

    #[cfg(test)]
    /// The position behind the last record that was returned.
    pub fn position(&self) -> LogPos {
        self.at
    }

    /// Takes the log to end behind a record that was returned, before one whose values are missing.
    pub fn cut(&mut self, end: LogPos, next_msn: u64) {
        (self.at, self.next_msn, self.ended, self.cut) = (end, next_msn, true, true);
    }

    /// Makes the record behind the end invalid. It is whole but for its values, which may come to stand
    /// where they are looked for when they are written a second time.
    fn erase(&self) -> Result<()> {
        let within = self.at.pos % self.size;
        let (block, at) = (self.base + within / BLOCK * BLOCK, (within % BLOCK) as usize);
        let failed = |e| Error::io("end the log", block, e);
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read_at(block, &mut bytes).map_err(failed)?;
        // All else stays as it is, so that nothing else can be torn.
        bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0);
        self.device.write_at(block, &bytes).map_err(failed)
    }

    /// A writer that continues behind the last valid record and keeps
    /// everything since the start of this replay until it is truncated.
    ///
    /// Flushes the device: what was replayed may have been written by a
    /// process that died before its own flush. [`Error::Invalid`] before the
    /// end was reached: writing there would destroy records. Without a placer nothing is to be written.
    pub fn into_log(self, placer: Option<Arc<dyn Place>>) -> Result<Log> {
        if !self.ended {
            return Err(Error::Invalid("the log has not been replayed to its end".into()));
        }
        if self.cut && placer.is_some() {
            self.erase()?;
        }
        self.device.flush().map_err(|e| Error::io("flush", self.base, e))?;
        Ok(Log::resume(self.device, self.base, self.size, self.start.pos, self.at, self.next_msn, placer))
    }

    /// The record at a position, if a valid one stands there.
    fn record_at(&mut self, pos: u64) -> Result<Option<Replayed>> {
        // One lap holds everything; whatever is behind it belongs to the lap before.
        let limit = (self.start.pos - self.start.pos % BLOCK).saturating_add(self.size);
        if limit.saturating_sub(pos) < HEADER as u64 {
            return Ok(None);
        }
        let Some(&stored) = self.bytes(pos, HEADER)?.first_chunk() else { return Ok(None) };
        let Some(header) = Header::decode(&stored) else { return Ok(None) };
        let len = header.len as usize;
        let taken = record_len(len);
        if header.msn != self.next_msn || len > max_payload(self.size) || taken > limit - pos {
            return Ok(None);
        }
        let chain = self.at.chain;
        let payload = self.bytes(pos + HEADER as u64, len)?;
        let (proven, chain) = header.encode(xxh3_64(payload), chain);
        if proven != stored {
            return Ok(None);
        }
        let payload = Bytes::copy_from_slice(payload);
        Ok(Some(Replayed { msn: header.msn, payload, end: LogPos { pos: pos + taken, chain } }))
    }

    /// `len` bytes at a position, from the window or the device.
    fn bytes(&mut self, pos: u64, len: usize) -> Result<&[u8]> {
        let have = self.window_at..=self.window_at + self.window.len() as u64;
        let end = pos + len as u64;
        if !(have.contains(&pos) && have.contains(&end)) {
            let ahead = AHEAD.min(self.size).max(len as u64) as usize;
            // What is ahead may be unreadable without being part of the log.
            if self.load(pos, ahead).is_err() {
                self.load(pos, len)?;
            }
        }
        let from = (pos - self.window_at) as usize;
        Ok(&self.window[from..from + len])
    }

    fn load(&mut self, pos: u64, len: usize) -> Result<()> {
        self.window.clear();
        self.window.resize(len, 0);
        self.window_at = pos;
        let (mut at, mut rest) = (pos, &mut self.window[..]);
        while !rest.is_empty() {
            let within = at % self.size;
            let piece = rest.len().min((self.size - within) as usize);
            let (buf, more) = rest.split_at_mut(piece);
            if let Err(error) = self.device.read_at(self.base + within, buf) {
                // Half-filled, so nothing of it may be used.
                self.window.clear();
                return Err(Error::io("read the log", self.base + within, error));
            }
            (at, rest) = (at + piece as u64, more);
        }
        Ok(())
    }
}
