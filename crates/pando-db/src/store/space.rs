//! Space: which bytes of the device are owned, by extents that give them back when dropped.
//!
//! Guarantees: an owned byte belongs to one extent; an [`Extent`] lives as long as
//! anything in memory refers to it, so "may be reused" is not decided here but
//! follows from who holds it (durable table, frozen versions, readers). What
//! is handed out is space that the medium underneath has promised: a sparse
//! image on a full disk refuses an allocation, not a later write.
//!
//! For that there is a high-water mark. Free bytes below it are *backed*
//! (reserved on the device in this process's lifetime), free bytes above are
//! *raw*. Allocation uses backed bytes first, which also keeps an image small,
//! and raises the mark in steps. No lock that [`Extent`]'s drop takes is held
//! over device I/O. Uses the device for reservations only.

mod free;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use self::free::FreeRanges;
use crate::{
    Error, Result,
    device::{BLOCK, Device},
};

/// Largest step in which the mark rises, in bytes.
const STEP: u64 = 64 << 20;
/// How long a refused reservation is not tried again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The allocator of one store's data region.
pub struct Space {
    device: Arc<dyn Device>,
    start: u64,
    /// Serialises reservations; the only lock held over device I/O.
    raising: Mutex<()>,
    state: Mutex<State>,
    /// Extents of pages adopted while a store is loaded, by offset: several nodes may name one.
    adopted: Mutex<HashMap<u64, Weak<Extent>>>,
    next_id: AtomicU64,
}

/// A range of the device that its holder owns. Dropping it frees the range.
pub struct Extent {
    /// First byte on the device, a multiple of [`BLOCK`]. Not to be changed.
    pub offset: u64,
    /// Length in bytes, a multiple of [`BLOCK`]. Not to be changed.
    pub len: u64,
    /// Unique as long as the space is in use, unlike the offset: a key for the store's cache.
    pub id: u64,
    /// Holds pages and no header, so that several nodes may own it together.
    pub shared: bool,
    space: Arc<Space>,
}

struct State {
    /// Free and promised by the device; all below `mark`.
    backed: FreeRanges,
    /// Free, nothing known; all at or above `mark`.
    raw: FreeRanges,
    mark: u64,
    end: u64,
    /// Where the previous allocation ended.
    cursor: u64,
    /// When the device last refused a reservation, and of how many bytes.
    refused: Option<(Instant, u64)>,
}

impl Space {
    /// Manages `[start, end)` of the device, all of it free. Both are multiples of [`BLOCK`].
    pub fn new(device: Arc<dyn Device>, start: u64, end: u64) -> Arc<Self> {
        assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK) && start <= end);
        let (backed, mut raw) = (FreeRanges::default(), FreeRanges::default());
        raw.insert(start, end - start);
        let state = State { backed, raw, mark: start, end, cursor: start, refused: None };
        Arc::new(Self {
            device,
            start,
            raising: Mutex::new(()),
            state: Mutex::new(state),
            adopted: Mutex::default(),
            next_id: AtomicU64::new(1),
        })
    }

    /// Marks a range as owned while a store is loaded.
    ///
    /// [`Error::Corrupt`] if it is empty, unaligned, outside, or overlaps an owned one.
    pub fn adopt(self: &Arc<Self>, offset: u64, len: u64) -> Result<Arc<Extent>> {
        self.adopt_as(offset, len, false)
    }

    fn adopt_as(self: &Arc<Self>, offset: u64, len: u64, shared: bool) -> Result<Arc<Extent>> {
        let corrupt = |detail: &str| Err(Error::corrupt("extent", offset, format!("{len} bytes {detail}")));
        if len == 0 || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK) {
            return corrupt("are not whole blocks");
        }
        let mut state = self.state.lock();
        if offset < self.start || offset.checked_add(len).is_none_or(|end| end > state.end) {
            return corrupt("lie outside the data region");
        }
        let (low, high) = state.split(offset, len);
        if !state.backed.contains(low.0, low.1) || !state.raw.contains(high.0, high.1) {
            return corrupt("overlap an extent owned by something else");
        }
        state.backed.remove(low.0, low.1);
        state.raw.remove(high.0, high.1);
        drop(state);
        Ok(self.extent(offset, len, shared))
    }

    /// Marks a range of pages as owned while a store is loaded; the same range again is the same extent.
    ///
    /// Errors as for [`Space::adopt`]: another range that overlaps is not the same.
    pub fn adopt_shared(self: &Arc<Self>, offset: u64, len: u64) -> Result<Arc<Extent>> {
        let mut adopted = self.adopted.lock();
        if let Some(known) = adopted.get(&offset).and_then(Weak::upgrade).filter(|e| e.len == len) {
            return Ok(known);
        }
        let extent = self.adopt_as(offset, len, true)?;
        adopted.insert(offset, Arc::downgrade(&extent));
        Ok(extent)
    }

    /// Ends the time in which extents are adopted.
    pub fn loaded(&self) {
        *self.adopted.lock() = HashMap::new();
    }

    /// Takes `len` bytes, rounded up to whole blocks, in one piece: behind the
    /// previous allocation if there is room, else at a low offset.
    ///
    /// [`Error::NoSpace`] if no free range is long enough or the medium under
    /// the device is full. O(log n) in memory; now and then one reservation on
    /// the device.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Result<Arc<Extent>> {
        self.allocate_as(len, false)
    }

    /// The same, for pages that several nodes may come to own.
    pub fn allocate_shared(self: &Arc<Self>, len: u64) -> Result<Arc<Extent>> {
        self.allocate_as(len, true)
    }

    /// Takes a part of the longest free range that the device has promised: `fit` says how many bytes of
    /// that many are of use. For what does not find room in one piece. [`Error::NoSpace`] if none are.
    pub fn allocate_part(
        self: &Arc<Self>,
        shared: bool,
        fit: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Arc<Extent>> {
        let mut state = self.state.lock();
        let longest = state.backed.largest();
        let len = fit(longest).next_multiple_of(BLOCK);
        if len == 0 || len > longest {
            return Err(Error::NoSpace);
        }
        let offset = state.take(len).ok_or(Error::NoSpace)?;
        drop(state);
        Ok(self.extent(offset, len, shared))
    }

    fn allocate_as(self: &Arc<Self>, len: u64, shared: bool) -> Result<Arc<Extent>> {
        let len = len.max(1).checked_next_multiple_of(BLOCK).ok_or(Error::NoSpace)?;
        let take = || self.state.lock().take(len).map(|offset| self.extent(offset, len, shared));
        if let Some(extent) = take() {
            return Ok(extent);
        }
        let _turn = self.raising.lock();
        loop {
            // Others may have raised the mark or freed something since.
            if let Some(extent) = take() {
                return Ok(extent);
            }
            let missing = {
                let state = self.state.lock();
                if state.largest() < len {
                    return Err(Error::NoSpace);
                }
                len - state.frontier().min(len - 1)
            };
            if !self.raise(missing)? {
                return take().ok_or(Error::NoSpace);
            }
        }
    }

    /// Bytes that allocations could hand out (fragmentation apart): the backed
    /// ones, and the raw ones as long as the device did not refuse to back
    /// them. No I/O: after a refusal only [`Space::allocate`] and
    /// [`Space::ensure_backed`] find out that there is room again.
    pub fn free_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.backed.total() + if state.refused.is_none() { state.raw.total() } else { 0 }
    }

    #[cfg(test)]
    /// Length of the longest free range, backed or not.
    pub fn largest_free(&self) -> u64 {
        self.state.lock().largest()
    }

    /// Bytes owned by extents.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.end - self.start - state.backed.total() - state.raw.total()
    }

    /// Adds `[end, new_end)` after the device has grown. `new_end` is a multiple of [`BLOCK`].
    pub fn grow(&self, new_end: u64) {
        let mut state = self.state.lock();
        assert!(new_end.is_multiple_of(BLOCK) && new_end >= state.end, "the data region cannot shrink");
        let old_end = std::mem::replace(&mut state.end, new_end);
        state.raw.insert(old_end, new_end - old_end);
        state.refused = None;
    }

    /// Tries to have at least `bytes` of free space backed, reserving as needed; whether it is so.
    ///
    /// After a refusal the device is asked at most once a second. A device that fails otherwise is
    /// not full, and the error says so.
    pub fn ensure_backed(&self, bytes: u64) -> Result<bool> {
        let missing = || bytes.saturating_sub(self.state.lock().backed.total());
        if missing() == 0 {
            return Ok(true);
        }
        let _turn = self.raising.lock();
        loop {
            match missing() {
                0 => return Ok(true),
                more if !self.raise(more)? => return Ok(missing() == 0),
                _ => (),
            }
        }
    }

    #[cfg(test)]
    /// Owned ranges in order, as (offset, length); adjacent extents appear as one.
    pub fn owned_ranges(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let (mut owned, mut at) = (Vec::new(), self.start);
        for (offset, len) in state.backed.iter().chain(state.raw.iter()).chain([(state.end, 0)]) {
            if at < offset {
                owned.push((at, offset - at));
            }
            at = offset + len;
        }
        owned
    }

    /// Raises the mark over the next raw bytes, by a step that covers `missing` bytes or the first raw
    /// range, or by as much as the device gives. False if there are no raw bytes or the device refuses
    /// even a block. The caller holds `raising`.
    fn raise(&self, missing: u64) -> Result<bool> {
        let (from, end, needed) = {
            let state = self.state.lock();
            let Some((from, len)) = state.raw.first() else { return Ok(false) };
            let needed = missing.next_multiple_of(BLOCK).min(len);
            if state.refused.is_some_and(|(when, bytes)| needed >= bytes && when.elapsed() < PATIENCE) {
                return Ok(false);
            }
            (from, state.end, needed)
        };
        let share = ((end - self.start) / 16).next_multiple_of(BLOCK);
        let mut step = STEP.min(share).max(needed).min(end - from);
        loop {
            match self.device.reserve(from, step) {
                Ok(()) => break,
                Err(e) if !is_full(&e) => return Err(Error::io("reserve", from, e)),
                // Less than is needed helps as well: after a reopen what the device holds already is
                // found out step by step.
                Err(_) if step > BLOCK => step = (step / 2).next_multiple_of(BLOCK),
                Err(_) => {
                    self.state.lock().refused = Some((Instant::now(), needed));
                    return Ok(false);
                }
            }
        }
        self.state.lock().move_mark(from + step);
        Ok(true)
    }

    fn extent(self: &Arc<Self>, offset: u64, len: u64, shared: bool) -> Arc<Extent> {
        let id = self.next_id.fetch_add(1, Relaxed);
        Arc::new(Extent { offset, len, id, shared, space: self.clone() })
    }
}

impl State {
    fn take(&mut self, len: u64) -> Option<u64> {
        let follows = self.backed.starting_at(self.cursor) >= len;
        let offset = if follows { self.cursor } else { self.backed.find(len)? };
        self.backed.remove(offset, len);
        self.cursor = offset + len;
        Some(offset)
    }

    /// The parts of a range below and above the mark.
    fn split(&self, offset: u64, len: u64) -> ((u64, u64), (u64, u64)) {
        let low = self.mark.saturating_sub(offset).min(len);
        ((offset, low), (offset + low, len - low))
    }

    /// Length of the backed bytes that the next raw ones would continue.
    fn frontier(&self) -> u64 {
        match self.raw.first() {
            Some((offset, _)) if offset == self.mark => self.backed.ending_at(self.mark),
            _ => 0,
        }
    }

    /// Length of the longest free range; it may be backed in part.
    fn largest(&self) -> u64 {
        let across = self.backed.ending_at(self.mark) + self.raw.starting_at(self.mark);
        self.backed.largest().max(self.raw.largest()).max(across)
    }

    fn move_mark(&mut self, mark: u64) {
        while let Some((offset, len)) = self.raw.first().filter(|&(offset, _)| offset < mark) {
            let len = len.min(mark - offset);
            self.raw.remove(offset, len);
            self.backed.insert(offset, len);
        }
        self.mark = mark;
        self.refused = None;
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let mut state = self.space.state.lock();
        let (low, high) = state.split(self.offset, self.len);
        state.backed.insert(low.0, low.1);
        state.raw.insert(high.0, high.1);
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extent({}+{}, id {})", self.offset, self.len, self.id)
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Space")
            .field("start", &self.start)
            .field("end", &state.end)
            .field("mark", &state.mark)
            .field("backed", &state.backed.total())
            .field("raw", &state.raw.total())
            .finish_non_exhaustive()
    }
}

/// Whether an error says that the disk, the quota or the permitted file size is exhausted.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests;
