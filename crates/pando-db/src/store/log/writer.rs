//! Writing the log: appends in memory, group commit, one failure is final.
//!
//! Guarantees: an append does no I/O and waits for none; [`Log::sync`] returns
//! when all that was appended before is durable, and one write and flush serve
//! everybody who waits; writes go out in order; after a failed write or flush
//! (of which nobody can say what it left behind) nothing is accepted any more.
//!
//! Two locks. `front` guards the buffer, for the time of a copy. `group` says
//! who is the leader, the one caller that writes; the others sleep until it is
//! done. Neither is held over I/O.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, OnceLock},
};

use parking_lot::{Condvar, Mutex};
use xxhash_rust::xxh3::Xxh3Default;

use super::{
    LogPos, max_payload,
    record::{Header, record_len},
};
use crate::{
    Error, Result,
    device::{BLOCK, Device},
};

/// Largest buffer that is kept for reuse, in bytes.
const KEEP: usize = 4 << 20;

/// Why a record was not appended. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The ring is full: a checkpoint has to move its start ([`Log::truncate`]), and
    /// what is buffered has to be written.
    #[error("the log is full")]
    Full,
    /// The payload is over [`Log::max_payload`].
    #[error("a record of {len} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The log has stopped for good.
    #[error("the log has stopped: {0}")]
    Stopped(String),
}

impl From<AppendError> for Error {
    /// `Full` becomes [`Error::NoSpace`], for callers that cannot make room.
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full => Error::NoSpace,
            AppendError::TooLarge { len, limit } => {
                Error::TooLarge { what: "batch", len: len as u64, limit: limit as u64 }
            }
            AppendError::Stopped(reason) => Error::Stopped { reason },
        }
    }
}

/// The writer of a log.
pub struct Log {
    device: Arc<dyn Device>,
    base: u64,
    size: u64,
    session: u64,
    front: Mutex<Front>,
    group: Mutex<Group>,
    done: Condvar,
    stopped: OnceLock<String>,
}

struct Front {
    /// Records not yet taken for writing; the first byte stands at a block boundary.
    buffer: Vec<u8>,
    /// A buffer written before, to be used again.
    spare: Vec<u8>,
    /// Where the buffer ends.
    head: u64,
    /// Everything before is on the device.
    written: u64,
    /// Everything before is no longer needed.
    tail: u64,
    /// Behind the last record.
    end: LogPos,
    msn: u64,
}

struct Group {
    leading: bool,
    durable_msn: u64,
}

impl Log {
    #[cfg(test)]
    /// A writer that continues at `start`, whose next record is `start_msn`,
    /// in a log of which nothing before `start` is needed.
    pub fn open(device: Arc<dyn Device>, base: u64, size: u64, start: LogPos, start_msn: u64) -> Self {
        Self::resume(device, base, size, start.pos, start, start_msn)
    }

    pub(super) fn resume(
        device: Arc<dyn Device>,
        base: u64,
        size: u64,
        tail: u64,
        start: LogPos,
        start_msn: u64,
    ) -> Self {
        assert!(size.is_multiple_of(BLOCK) && base.is_multiple_of(BLOCK) && size > 0);
        assert!(tail <= start.pos && start_msn > 0);
        let head = start.pos.next_multiple_of(BLOCK);
        let msn = start_msn - 1;
        let front =
            Front { buffer: Vec::new(), spare: Vec::new(), head, written: head, tail, end: start, msn };
        Self {
            device,
            base,
            size,
            session: RandomState::new().hash_one(start_msn),
            front: Mutex::new(front),
            group: Mutex::new(Group { leading: false, durable_msn: msn }),
            done: Condvar::new(),
            stopped: OnceLock::new(),
        }
    }

    /// Appends the concatenation of the parts as one record, in memory: its
    /// MSN and the position behind it. Costs hashing outside and a copy inside
    /// a short lock.
    pub fn append(&self, payload: &[&[u8]]) -> Result<(u64, LogPos), AppendError> {
        let len = payload.iter().map(|part| part.len()).sum();
        if len > self.max_payload() {
            return Err(AppendError::TooLarge { len, limit: self.max_payload() });
        }
        let mut hash = Xxh3Default::new();
        payload.iter().for_each(|part| hash.update(part));
        let hash = hash.digest();

        let mut front = self.front.lock();
        if let Some(reason) = self.stopped.get() {
            return Err(AppendError::Stopped(reason.clone()));
        }
        if !front.has_room(len, self.size) {
            return Err(AppendError::Full);
        }
        let header = Header { len: len as u32, msn: front.msn + 1, session: self.session };
        let (header, chain) = header.encode(hash, front.end.chain);
        front.buffer.extend_from_slice(&header);
        payload.iter().for_each(|part| front.buffer.extend_from_slice(part));
        let whole = front.buffer.len().next_multiple_of(8);
        front.buffer.resize(whole, 0);
        front.head += record_len(len);
        front.end = LogPos { pos: front.head, chain };
        front.msn += 1;
        Ok((front.msn, front.end))
    }

    /// Whether a payload of that length could be appended now.
    pub fn fits(&self, payload_len: usize) -> bool {
        payload_len <= self.max_payload() && self.front.lock().has_room(payload_len, self.size)
    }

    /// Longest payload in bytes: with its header a quarter of the ring.
    pub fn max_payload(&self) -> usize {
        max_payload(self.size)
    }

    /// Returns when everything appended before the call is durable.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        let target = self.appended_msn();
        let mut group = self.group.lock();
        while group.durable_msn < target {
            if group.leading {
                self.done.wait(&mut group);
                continue;
            }
            self.check()?;
            group.leading = true;
            drop(group);
            let outcome = self.drain().and_then(|msn| {
                self.device.flush().map_err(|e| format!("flush of the log: {e}"))?;
                Ok(msn)
            });
            group = self.group.lock();
            group.leading = false;
            match outcome {
                Ok(msn) => group.durable_msn = msn,
                Err(reason) => _ = self.stopped.set(reason),
            }
            self.done.notify_all();
        }
        Ok(())
    }

    /// Writes what is buffered, without a flush; waits for its turn.
    pub fn write_out(&self) -> Result<()> {
        let mut group = self.group.lock();
        while group.leading {
            self.done.wait(&mut group);
        }
        self.check()?;
        group.leading = true;
        drop(group);
        let outcome = self.drain();
        if let Err(reason) = outcome {
            _ = self.stopped.set(reason);
        }
        self.group.lock().leading = false;
        self.done.notify_all();
        self.check()
    }

    /// Gives up everything before `start`, because a durable checkpoint holds it.
    pub fn truncate(&self, start: LogPos) {
        let mut front = self.front.lock();
        assert!(start.pos <= front.head, "the log is truncated behind its end");
        front.tail = front.tail.max(start.pos);
    }

    /// Bytes of the ring in use, the rest of the last block excepted.
    pub fn used(&self) -> u64 {
        let front = self.front.lock();
        front.head - front.oldest()
    }

    /// Bytes that wait to be written.
    pub fn buffered(&self) -> usize {
        self.front.lock().buffer.len()
    }

    /// MSN of the last appended record.
    pub fn appended_msn(&self) -> u64 {
        self.front.lock().msn
    }

    /// Every record up to this MSN is durable.
    pub fn durable_msn(&self) -> u64 {
        self.group.lock().durable_msn
    }

    #[cfg(test)]
    /// The position behind the last appended record.
    pub fn end(&self) -> LogPos {
        self.front.lock().end
    }

    /// Stops the log for good: later appends and syncs fail with this reason (or an earlier one).
    pub fn stop(&self, reason: String) {
        _ = self.stopped.set(reason);
    }

    /// Why the log stopped, if it did.
    pub fn stopped(&self) -> Option<String> {
        self.stopped.get().cloned()
    }

    fn check(&self) -> Result<()> {
        match self.stopped.get() {
            Some(reason) => Err(Error::Stopped { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Writes the buffer to the device; the MSN of the last record in it or
    /// before it. For the leader only. Failures come back as the reason to stop.
    fn drain(&self) -> Result<u64, String> {
        let (mut buffer, begin, msn) = self.front.lock().take();
        let (mut pos, mut rest) = (begin, &buffer[..]);
        while !rest.is_empty() {
            let within = pos % self.size;
            let (piece, more) = rest.split_at(rest.len().min((self.size - within) as usize));
            let at = self.base + within;
            self.device.write_at(at, piece).map_err(|e| format!("write of the log at byte {at}: {e}"))?;
            (pos, rest) = (pos + piece.len() as u64, more);
        }
        let mut front = self.front.lock();
        front.written = pos;
        if buffer.capacity() <= KEEP {
            buffer.clear();
            front.spare = buffer;
        }
        Ok(msn)
    }
}

impl Front {
    /// Takes the buffer, padded to whole blocks, with its position and last MSN.
    fn take(&mut self) -> (Vec<u8>, u64, u64) {
        let spare = std::mem::take(&mut self.spare);
        let mut buffer = std::mem::replace(&mut self.buffer, spare);
        let begin = self.head - buffer.len() as u64;
        buffer.resize(buffer.len().next_multiple_of(BLOCK as usize), 0);
        self.head = begin + buffer.len() as u64;
        assert!(begin.is_multiple_of(BLOCK), "a write-out begins inside a block");
        (buffer, begin, self.msn)
    }

    /// First byte that must not be overwritten: of what is needed, or still to be written.
    fn oldest(&self) -> u64 {
        let oldest = self.tail.min(self.written);
        oldest - oldest % BLOCK
    }

    /// Whether one more record fits, with the padding that its write-out may need.
    fn has_room(&self, len: usize, size: u64) -> bool {
        (self.head + record_len(len)).next_multiple_of(BLOCK) - self.oldest() <= size
    }
}
