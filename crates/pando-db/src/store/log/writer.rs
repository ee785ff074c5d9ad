//! Writing the log: appends in memory, group commit, one failure is final.
//!
//! Guarantees: an append does no I/O and waits for none; [`Log::sync`] returns
//! when all that was appended before is durable, and one write serves everybody
//! who waits; it waits for nothing but the log, unless some of it was written or
//! placed before without being flushed; writes go out in order; after a failed
//! write or flush (of which nobody can say what it left behind) nothing is
//! accepted any more.
//!
//! Values may be *set aside*: their record names a group and numbers in it, and
//! what holds the group is decided when it is written out, by a [`BlobPlacer`]: in
//! records of its own, or outside the log in extents that the log then keeps
//! alive as long as such a record may be replayed. So data that comes in bulk
//! is written once, and small writes still cost one record.
//!
//! Two locks. `buf` guards the buffer, for the time of a copy. `activity` says
//! whether somebody writes and whether somebody flushes, one of each at most:
//! the others sleep until it is done. A thread that only writes does not wait for a flush, except for a durable write
//! of at most [`MAX_DURABLE_WRITE_BYTES`] bytes. Neither lock is held over I/O.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    ops::{Deref, DerefMut},
    sync::{Arc, OnceLock, atomic::Ordering},
};

use parking_lot::{Condvar, MutexGuard};
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    device::{BLOCK, Device},
    error::{Error, Result},
    locks::Mutex,
    space::Extent,
    store::log::{
        EMPTY_SEARCH_BYTES, LogPos, Region,
        blob::{BlobPlacer, Group},
        buffer::{LogBuffer, LogSizes},
        guard::{self, Footer},
        max_payload,
    },
    waiting,
};

/// Largest buffer that is kept for reuse, in bytes.
const MAX_SPARE_BYTES: usize = 1 << 20;
/// Most that a sync writes durably, in bytes, while no other thread can write: more is written first and flushed
/// then, beside which others may write.
const MAX_DURABLE_WRITE_BYTES: usize = 1 << 20;

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
    placer: Option<Arc<dyn BlobPlacer>>,
    device: Arc<dyn Device>,
    base: u64,
    pub(super) size: u64,
    /// Seed of the footers' checksums.
    store: u64,
    pub(super) session: u64,
    buf: Mutex<LogBuffer>,
    /// Of the buffer, as of its last change, to be read without the lock.
    sizes: LogSizes,
    activity: Mutex<Activity>,
    done: Condvar,
    stopped: OnceLock<String>,
}

/// Whether a thread is writing to the device, and whether one is flushing. Writing goes on beside a flush, which
/// takes long; a durable write is both.
struct Activity {
    writing: bool,
    flushing: bool,
    durable_msn: u64,
}

/// The right to write or to flush, as the flag in [`Activity`] says. Dropped only where its work panics: then others
/// must not wait for it, and the log stops, since what was taken out of its buffer is lost.
struct Leading<'a> {
    log: &'a Log,
    flag: fn(&mut Activity) -> &mut bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.log.stop("a panic while the log was written: this is a bug".into());
        *(self.flag)(&mut self.log.activity.lock()) = false;
        self.log.done.notify_all();
    }
}

/// The buffer under its lock.
pub(super) struct LockedBuffer<'a> {
    log: &'a Log,
    guard: MutexGuard<'a, LogBuffer>,
}

impl Deref for LockedBuffer<'_> {
    type Target = LogBuffer;

    fn deref(&self) -> &LogBuffer {
        &self.guard
    }
}

impl DerefMut for LockedBuffer<'_> {
    fn deref_mut(&mut self) -> &mut LogBuffer {
        &mut self.guard
    }
}

impl Drop for LockedBuffer<'_> {
    fn drop(&mut self) {
        self.log.sizes.publish(&self.guard);
    }
}

impl Log {
    #[cfg(test)]
    /// A writer that continues at `start`, whose next record is `start_msn`,
    /// in a log of which nothing before `start` is needed.
    pub fn open(device: Arc<dyn Device>, base: u64, size: u64, start: LogPos, start_msn: u64) -> Self {
        let head = start.pos.next_multiple_of(BLOCK);
        Self::resume(Region { device, base, size, store: 0 }, start.pos, start, head, start_msn, None)
    }

    /// A writer that continues the chain of `start` at `head`, where a block begins, and keeps all from
    /// `tail` on.
    pub(crate) fn resume(
        region: Region,
        tail: u64,
        start: LogPos,
        head: u64,
        start_msn: u64,
        placer: Option<Arc<dyn BlobPlacer>>,
    ) -> Self {
        let Region { device, base, size, store } = region;
        assert!(size.is_multiple_of(BLOCK) && base.is_multiple_of(BLOCK) && size > 0);
        assert!(tail <= start.pos && start.pos <= head && head.is_multiple_of(BLOCK) && start_msn > 0);
        let msn = start_msn - 1;
        let session = RandomState::new().hash_one(start_msn);
        let buf = LogBuffer {
            bytes: Vec::new(),
            spare: Vec::new(),
            append_at: head,
            written: head,
            notice: None,
            unflushed: false,
            unmarked: 0,
            announced: 0,
            taken: (msn, start.chain),
            tail,
            end: start,
            asked_end: start.pos,
            msn,
            closed: false,
            values: Vec::new(),
            value_bytes: 0,
            reserved: 0,
            first_aside: 0,
            placing: 0,
            // Not a number of an earlier run, whose last records may be in the log still.
            group: session & !0xffff_ffff,
            last: None,
            held: VecDeque::new(),
            held_bytes: 0,
        };
        let sizes = LogSizes::default();
        sizes.publish(&buf);
        Self {
            sizes,
            placer,
            device,
            base,
            size,
            store,
            session,
            buf: Mutex::new(buf),
            activity: Mutex::new(Activity { writing: false, flushing: false, durable_msn: msn }),
            done: Condvar::new(),
            stopped: OnceLock::new(),
        }
    }

    /// Takes no record from number `first` on for durable before the next sync.
    pub(super) fn doubt(&self, first: u64) {
        let mut activity = self.activity.lock();
        activity.durable_msn = activity.durable_msn.min(first.saturating_sub(1));
    }

    /// The locked buffer. Its sizes are published when it is unlocked.
    pub(super) fn buf(&self) -> LockedBuffer<'_> {
        LockedBuffer { log: self, guard: self.buf.lock() }
    }

    pub(super) fn check_open(&self, buf: &LogBuffer) -> Result<(), AppendError> {
        match self.stopped.get() {
            Some(reason) => Err(AppendError::Stopped(reason.clone())),
            None if buf.closed => Err(AppendError::Stopped("it is being closed".into())),
            None => Ok(()),
        }
    }

    /// Refuses every append from now on. What was appended before can still be synced.
    pub fn close(&self) {
        self.buf().closed = true;
    }

    /// Whether a payload of that length could be appended now, with that much room for values set aside.
    pub fn fits(&self, payload_len: usize, reserved: u64) -> bool {
        payload_len <= self.max_payload() && self.sizes.has_room(payload_len, reserved, self.size)
    }

    /// Longest payload in bytes: with its header a quarter of the ring.
    pub fn max_payload(&self) -> usize {
        max_payload(self.size)
    }

    /// Returns when everything appended before the call is durable.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        let target = self.appended_msn();
        let mut activity = self.activity.lock();
        while activity.durable_msn < target {
            if activity.flushing {
                waiting::announce();
                self.done.wait(&mut activity);
                continue;
            }
            self.check()?;
            activity.flushing = true;
            drop(activity);
            let leading = Leading { log: self, flag: |activity| &mut activity.flushing };
            let outcome = self.write_buffered(true).and_then(|msn| {
                // Others may write beside the flush: that is unflushed again.
                if std::mem::take(&mut self.buf().unflushed) {
                    self.device.flush().map_err(|e| format!("flush of the log: {e}"))?;
                }
                Ok(msn)
            });
            std::mem::forget(leading);
            activity = self.activity.lock();
            activity.flushing = false;
            match outcome {
                Ok(msn) => {
                    assert!(msn >= activity.durable_msn, "what was durable is no more");
                    activity.durable_msn = msn;
                }
                Err(reason) => _ = self.stopped.set(reason),
            }
            self.done.notify_all();
        }
        drop(activity);
        // Where values outside the log have become durable, nothing else could tell that they were there from
        // that they never were.
        if self.buf().unmarked == 0 {
            return Ok(());
        }
        self.mark(|buf, durable| (1..=durable).contains(&buf.unmarked))
    }

    /// For a log that has not been written for a while: says of the last records, if they are durable and
    /// may be replayed, that they are. Should they be damaged, their end is not taken for that of the log. One
    /// write of a block at most, which is not durable itself.
    pub fn mark_rest(&self) -> Result<()> {
        self.mark(|buf, durable| durable > buf.announced && buf.asked_end > buf.tail)
    }

    /// Writes what is durable, if that is `news` and no thread is writing.
    fn mark(&self, news: impl Fn(&LogBuffer, u64) -> bool) -> Result<()> {
        let mut activity = self.activity.lock();
        if activity.writing || self.stopped.get().is_some() {
            // The next footer says so.
            return Ok(());
        }
        activity.writing = true;
        let durable = activity.durable_msn;
        drop(activity);
        let leading = Leading { log: self, flag: |activity| &mut activity.writing };
        let outcome = self.write_mark(durable, news);
        std::mem::forget(leading);
        self.activity.lock().writing = false;
        self.done.notify_all();
        outcome.or_else(|reason| {
            _ = self.stopped.set(reason);
            self.check()
        })
    }

    /// Writes a footer without records, if there is room for one and nothing else to write. For the leader
    /// only.
    fn write_mark(&self, durable: u64, news: impl Fn(&LogBuffer, u64) -> bool) -> Result<(), String> {
        let (footer, pos) = {
            let mut buf = self.buf();
            let idle = buf.bytes.is_empty() && buf.values.is_empty() && buf.placing == 0;
            if !news(&buf, durable) || !idle || !buf.has_room(BLOCK as usize, 0, self.size) {
                return Ok(());
            }
            if durable >= buf.unmarked {
                buf.unmarked = 0;
            }
            buf.announced = buf.announced.max(durable);
            let pos = buf.append_at;
            buf.append_at += guard::total(0);
            (buf.footer(0, pos, self.session, durable), pos)
        };
        let mut block = Vec::new();
        guard::close(&mut block, &footer, self.store);
        let at = self.base + pos % self.size;
        self.device.write_at(at, &block).map_err(|e| format!("write of the log at byte {at}: {e}"))?;
        // What is behind it may be durable without it: nothing depends on it.
        self.buf().written = pos + block.len() as u64;
        Ok(())
    }

    /// Writes what is buffered, without a flush and without waiting for one; waits for its turn to write,
    /// which a sync of little may hold until that is durable.
    pub fn write_out(&self) -> Result<()> {
        if let Err(reason) = self.write_buffered(false) {
            _ = self.stopped.set(reason);
        }
        self.check()
    }

    /// The same, with the MSN up to which all is written, or the reason to stop. With `durably` it is durable
    /// as well if nothing stays unflushed.
    fn write_buffered(&self, durably: bool) -> Result<u64, String> {
        let mut activity = self.activity.lock();
        while activity.writing {
            waiting::announce();
            self.done.wait(&mut activity);
        }
        if let Some(reason) = self.stopped.get() {
            return Err(reason.clone());
        }
        activity.writing = true;
        drop(activity);
        let leading = Leading { log: self, flag: |activity| &mut activity.writing };
        let outcome = self.drain(durably);
        std::mem::forget(leading);
        self.activity.lock().writing = false;
        self.done.notify_all();
        outcome
    }

    /// Gives up everything before `start`, because a durable checkpoint holds it.
    pub fn truncate(&self, start: LogPos) {
        let mut buf = self.buf();
        assert!(start.pos <= buf.append_at, "the log is truncated behind its end");
        buf.tail = buf.tail.max(start.pos);
        // No record of a caller is left that could name a group: then none is needed.
        let needed = |pos: u64| pos > start.pos && buf.asked_end > start.pos;
        let gone = buf.held.iter().take_while(|(pos, _)| !needed(*pos)).count();
        let gone: Vec<_> = buf.held.drain(..gone).collect();
        let bytes = gone.iter().map(|(_, extent)| extent.len).sum::<u64>();
        assert!(bytes <= buf.held_bytes, "extents were kept that were not counted");
        buf.held_bytes -= bytes;
        drop(buf);
        drop(gone);
    }

    /// Where the log may begin if all records up to `pos` and `msn` are not needed any more, and the number
    /// of the first record there: behind records of the log's own too, which only serve those of callers
    /// before them.
    pub fn start_after(&self, pos: LogPos, msn: u64) -> (LogPos, u64) {
        let buf = self.buf();
        assert!(pos.pos <= buf.end.pos && msn <= buf.msn, "a state that is newer than the log");
        // The record at `pos`, if there is one, must be the next one.
        assert!(buf.asked_end <= pos.pos || msn < buf.msn, "more bytes than records behind a state");
        if buf.asked_end > pos.pos || !buf.values.is_empty() || buf.placing > 0 {
            return (pos, msn + 1);
        }
        (buf.end, buf.msn + 1)
    }

    /// Keeps an extent until the log is truncated behind everything that is in it now.
    pub fn hold(&self, extent: Arc<Extent>) {
        let mut buf = self.buf();
        buf.keep([extent]);
    }

    /// Bytes of extents that are kept for the records that may be replayed.
    pub fn held_bytes(&self) -> u64 {
        self.sizes.held_bytes.load(Ordering::Relaxed)
    }

    /// True if values are set aside and not placed yet, be it that somebody is at it: [`Log::write_out`]
    /// returns when they are.
    pub fn has_blobs(&self) -> bool {
        let buf = self.buf();
        buf.reserved + buf.placing > 0
    }

    /// Bytes of the ring in use, the rest of the last block excepted.
    pub fn used(&self) -> u64 {
        self.sizes.used.load(Ordering::Relaxed)
    }

    /// Bytes of the ring behind `pos`.
    pub fn behind(&self, pos: LogPos) -> u64 {
        self.buf().append_at.saturating_sub(pos.pos)
    }

    /// Bytes that wait to be written.
    pub fn buffered(&self) -> usize {
        self.sizes.buffered()
    }

    /// MSN of the last appended record.
    pub fn appended_msn(&self) -> u64 {
        self.buf().msn
    }

    /// Every record up to this MSN is durable.
    pub fn durable_msn(&self) -> u64 {
        self.activity.lock().durable_msn
    }

    #[cfg(test)]
    /// The position behind the last appended record.
    pub fn end(&self) -> LogPos {
        self.buf().end
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
    fn drain(&self, durably: bool) -> Result<u64, String> {
        let placed = self.place_values()?;
        let known = self.activity.lock().durable_msn;
        let (mut buffer, footer, msn, durably, notice) = {
            let mut buf = self.buf();
            if placed {
                buf.unmarked = buf.msn;
            } else if known >= buf.unmarked && !buf.bytes.is_empty() {
                buf.unmarked = 0;
            }
            let (buffer, footer, msn) = buf.take(self.session, known);
            assert!(buf.append_at - buf.oldest() <= self.size, "the log overtakes itself");
            // What is unflushed needs a flush, which covers this as well.
            let durably = durably && !placed && !buf.unflushed && buffer.len() <= MAX_DURABLE_WRITE_BYTES;
            let notice = if buffer.is_empty() { None } else { buf.notice.take() };
            (buffer, footer, msn, durably, notice)
        };
        if !buffer.is_empty() {
            guard::close(&mut buffer, &footer, self.store);
        }
        let begin = footer.begin;
        let mut unflushed = placed;
        if let Some(at) = notice.filter(|at| footer.end() - at > EMPTY_SEARCH_BYTES / 2) {
            self.announce(at, &footer)?;
            unflushed = true;
        }
        let (mut pos, mut rest) = (begin, &buffer[..]);
        while !rest.is_empty() {
            let within = pos % self.size;
            let (piece, more) = rest.split_at(rest.len().min((self.size - within) as usize));
            let at = self.base + within;
            let write = match durably {
                true => self.device.write_durably(at, piece),
                false => self.device.write_at(at, piece).map(|()| false),
            };
            unflushed |= !write.map_err(|e| format!("write of the log at byte {at}: {e}"))?;
            (pos, rest) = (pos + piece.len() as u64, more);
        }
        let mut buf = self.buf();
        // Only now: a flush that began before does not cover it.
        buf.unflushed |= unflushed;
        assert!(buf.written <= pos && pos <= buf.append_at, "the log was written beside its buffer");
        buf.written = pos;
        if buffer.capacity() <= MAX_SPARE_BYTES {
            buffer.clear();
            buf.spare = buffer;
        }
        Ok(msn)
    }

    /// Writes a footer at the position `pos` that has no records of its own and announces those of the write-out that
    /// `footer` closes.
    fn announce(&self, pos: u64, footer: &Footer) -> Result<(), String> {
        let mut block = Vec::new();
        guard::close(&mut block, &Footer { records: 0, begin: pos, ..*footer }, self.store);
        let at = self.base + pos % self.size;
        self.device.write_at(at, &block).map_err(|e| format!("write of the log at byte {at}: {e}"))
    }

    /// Places the values set aside and appends the records that say where; `false` if there are none.
    fn place_values(&self) -> Result<bool, String> {
        let Some(placer) = &self.placer else { return Ok(false) };
        let group = {
            let mut buf = self.buf();
            if buf.values.is_empty() {
                return Ok(false);
            }
            let open = buf.values.len() - buf.replaceable_values();
            let reserved = std::mem::take(&mut buf.reserved);
            buf.placing += reserved;
            buf.value_bytes = 0;
            buf.group += 1;
            let values = std::mem::take(&mut buf.values);
            Group { id: buf.group - 1, values, open, msn: buf.msn }
        };
        let max = self.max_payload();
        let placed = placer.place(group, max).map_err(|e| format!("placing values: {e}"))?;
        let mut buf = self.buf();
        let before = buf.append_at;
        for payload in &placed.payloads {
            assert!(payload.len() <= max, "a record about values is too long");
            let mut hash = Xxh3Default::new();
            hash.update(payload);
            buf.push(&[payload], payload.len(), hash.digest(), self.session);
        }
        // One leader at a time: all that is being placed is this group.
        let room = std::mem::take(&mut buf.placing);
        assert!(buf.append_at - before <= room, "records about values took more room than was kept");
        buf.keep(placed.extents);
        Ok(true)
    }
}
