//! Writes the log: appends in memory, group commit, and a stop after the first failure.
//!
//! Guarantees: an append does no I/O and does not wait for any. [`Log::sync`] returns when all records are durable that
//! were appended before the call; one write serves all threads that wait. It waits for writes of the log only, unless
//! records or values were written before without a flush: then it flushes the device. Writes are done in order. A
//! failed write or flush leaves the device in an unknown state, so the log accepts nothing afterwards.
//!
//! Values may be stored apart from their record (*set aside*): the record refers to them by a group and their numbers
//! in it. When the log is written out, a [`BlobPlacer`] decides where the group is stored: in records of its own, or
//! outside the log in extents, which the log keeps as long as such a record may be replayed. So bulk data is written
//! once, and a small write still costs one record.
//!
//! There are two locks. `buf` protects the buffer, and is held for the time of a copy. `activity` says whether a thread
//! is writing and whether a thread is flushing; there is at most one of each, and other threads sleep until it is
//! done. A thread that only writes does not wait for a flush, except for a durable write of at most
//! [`MAX_DURABLE_WRITE_BYTES`] bytes. Neither lock is held over I/O.

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

/// Buffers of at most this many bytes are kept for reuse.
const MAX_SPARE_BYTES: usize = 1 << 20;
/// A sync writes at most this many bytes by a durable write, during which no other thread can write. More bytes are
/// written first and flushed then, because other threads may write during a flush.
const MAX_DURABLE_WRITE_BYTES: usize = 1 << 20;

/// Why a record was not appended. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The ring is full. A checkpoint has to move its start ([`Log::truncate`]), and the buffer has to be written.
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
    /// Sizes of the buffer as of its last change, which are read without the lock.
    sizes: LogSizes,
    activity: Mutex<Activity>,
    done: Condvar,
    stopped: OnceLock<String>,
}

/// Whether a thread is writing to the device, and whether one is flushing it. Writes continue during a flush, because
/// a flush takes long. During a durable write both flags are set.
struct Activity {
    writing: bool,
    flushing: bool,
    durable_msn: u64,
}

/// The right to write or to flush, for which a flag in [`Activity`] is set. It is dropped only if the work panics. Then
/// other threads must not wait for it, and the log stops, because the records that were taken out of the buffer are
/// lost.
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
    /// A writer that continues at `start` with the record `start_msn`. Nothing before `start` is needed.
    pub fn open(device: Arc<dyn Device>, base: u64, size: u64, start: LogPos, start_msn: u64) -> Self {
        let head = start.pos.next_multiple_of(BLOCK);
        Self::resume(Region { device, base, size, store: 0 }, start.pos, start, head, start_msn, None)
    }

    /// A writer whose next record is chained to `start` and is written at `head`, where a block begins. The log is kept
    /// from `tail` on.
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
            // The number differs from those of earlier sessions, whose last records may still be in the log.
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

    /// Records from number `first` on do not count as durable before the next sync.
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

    /// Whether a payload of that length could be appended now, with so many bytes reserved for values set aside.
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
                // Other threads may write during the flush, and set this again.
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
        // If values outside the log have become durable, a footer must say so: otherwise recovery could not distinguish
        // damaged values from values that were never written.
        if self.buf().unmarked == 0 {
            return Ok(());
        }
        self.mark(|buf, durable| (1..=durable).contains(&buf.unmarked))
    }

    /// Writes a footer which says that the last records are durable, if they are and may be replayed. It is called when
    /// the log has not been written for a while. If these records are damaged later, recovery does not take their
    /// beginning for the end of the log. At most one block is written, without a flush.
    pub fn mark_rest(&self) -> Result<()> {
        self.mark(|buf, durable| durable > buf.announced && buf.asked_end > buf.tail)
    }

    /// Writes a footer with the number of the last durable record, if that is `news` and no thread is writing.
    fn mark(&self, news: impl Fn(&LogBuffer, u64) -> bool) -> Result<()> {
        let mut activity = self.activity.lock();
        if activity.writing || self.stopped.get().is_some() {
            // The footer of the next write-out says the same.
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

    /// Writes a footer without records (a mark), if there is space for it and nothing else to write. Only the thread
    /// that has the right to write may call this.
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
        // Later records may be durable without the mark, because nothing depends on it.
        self.buf().written = pos + block.len() as u64;
        Ok(())
    }

    /// Writes the buffer, without a flush and without waiting for one. It waits for the right to write, which a sync of
    /// few bytes may hold until they are durable.
    pub fn write_out(&self) -> Result<()> {
        if let Err(reason) = self.write_buffered(false) {
            _ = self.stopped.set(reason);
        }
        self.check()
    }

    /// The same. Returns the MSN of the last record that is written, or the reason to stop. With `durably` the records
    /// are durable as well, unless `unflushed` is set.
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

    /// Gives up everything before `start`, because a durable checkpoint contains it.
    pub fn truncate(&self, start: LogPos) {
        let mut buf = self.buf();
        assert!(start.pos <= buf.append_at, "the log is truncated behind its end");
        buf.tail = buf.tail.max(start.pos);
        // If no record of a caller is left, no group is referred to, and no extent is needed.
        let needed = |pos: u64| pos > start.pos && buf.asked_end > start.pos;
        let gone = buf.held.iter().take_while(|(pos, _)| !needed(*pos)).count();
        let gone: Vec<_> = buf.held.drain(..gone).collect();
        let bytes = gone.iter().map(|(_, extent)| extent.len).sum::<u64>();
        assert!(bytes <= buf.held_bytes, "extents were kept that were not counted");
        buf.held_bytes -= bytes;
        drop(buf);
        drop(gone);
    }

    /// Where the log may begin if no record up to `pos` and `msn` is needed any more, and the number of the first
    /// record there. If only records of the log's own follow, they are skipped, because they belong to the batches
    /// before.
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

    /// Keeps an extent until the log is truncated behind all its present records.
    pub fn hold(&self, extent: Arc<Extent>) {
        let mut buf = self.buf();
        buf.keep([extent]);
    }

    /// Bytes of the extents that are kept for records that may be replayed.
    pub fn held_bytes(&self) -> u64 {
        self.sizes.held_bytes.load(Ordering::Relaxed)
    }

    /// True if values are set aside and not placed yet, even if a thread is placing them. [`Log::write_out`] returns
    /// when they have been placed.
    pub fn has_blobs(&self) -> bool {
        let buf = self.buf();
        buf.reserved + buf.placing > 0
    }

    /// Bytes of the ring in use, without the rest of the last block.
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

    /// Writes the buffer to the device and returns the MSN of the last complete record. Only the thread that has the
    /// right to write may call this. A failure is returned as the reason to stop.
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
            // If something is unflushed, a flush is needed anyway, and makes this durable as well.
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
        // This is set after the write, because a flush that began before does not cover it.
        buf.unflushed |= unflushed;
        assert!(buf.written <= pos && pos <= buf.append_at, "the log was written beside its buffer");
        buf.written = pos;
        if buffer.capacity() <= MAX_SPARE_BYTES {
            buffer.clear();
            buf.spare = buffer;
        }
        Ok(msn)
    }

    /// Writes a footer without records at the position `pos`. It announces the records of the write-out that `footer`
    /// closes.
    fn announce(&self, pos: u64, footer: &Footer) -> Result<(), String> {
        let mut block = Vec::new();
        guard::close(&mut block, &Footer { records: 0, begin: pos, ..*footer }, self.store);
        let at = self.base + pos % self.size;
        self.device.write_at(at, &block).map_err(|e| format!("write of the log at byte {at}: {e}"))
    }

    /// Places the values that are set aside, and appends the records that say where they are; `false` if there are
    /// none.
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
        // Only one thread writes at a time, so all reserved space belongs to this group.
        let room = std::mem::take(&mut buf.placing);
        assert!(buf.append_at - before <= room, "records about values took more room than was kept");
        buf.keep(placed.extents);
        Ok(true)
    }
}
