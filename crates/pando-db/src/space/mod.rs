//! Space: which bytes of the device are owned, by extents that give them back when dropped.
//!
//! Guarantees: an owned byte belongs to one extent; an [`Extent`] lives as long as
//! anything in memory refers to it, so "may be reused" is not decided here but
//! follows from who holds it (durable table, frozen versions, readers). What
//! is handed out is space that the medium underneath has promised: a sparse
//! image on a full disk refuses an allocation, not a later write.
//!
//! For that free bytes are either *backed* (reserved on the device in this
//! process's lifetime) or *raw*; both may lie anywhere. Allocation uses backed
//! bytes first, which also keeps an image small, and backs raw ones in steps.
//! [`discard`] turns backed bytes into raw ones again. No lock that
//! [`Extent`]'s drop takes is held over device I/O. Uses the device for
//! reservations and discards only.

mod discard;
mod free;
mod scattered;

use std::{
    collections::HashMap,
    io,
    ops::{Deref, DerefMut, Range},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;

use self::free::FreeRanges;
pub use self::{discard::Discarding, scattered::MAX_EXTENT_RANGES};
use crate::{
    device::{BLOCK, Device},
    error::{Error, Result},
    locks::Mutex,
    waiting,
};

/// Largest step in which raw bytes are backed, unless more is needed at once.
const BACKING_STEP_BYTES: u64 = 64 << 20;
/// Ranges that are looked at when the medium is full: they might be a million.
const MAX_LOOKED_RANGES: usize = 10_000;
/// How long a refused reservation is not tried again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The allocator of one store's data region.
pub struct Space {
    device: Arc<dyn Device>,
    start: u64,
    /// Serialises reservations and discards; the only lock held over device I/O.
    raising: Mutex<()>,
    state: Mutex<SpaceState>,
    /// What [`Space::free_bytes`] gives, bytes of the backed part of it, and the end: as of the last change of the
    /// state, to be read without a lock.
    free_now: AtomicU64,
    backed_now: AtomicU64,
    end_now: AtomicU64,
    /// Extents of pages adopted while a store is loaded, by offset: several nodes may name one.
    adopted: Mutex<HashMap<u64, Weak<Extent>>>,
    next_id: AtomicU64,
    /// The medium cannot, or has failed to.
    no_discards: AtomicBool,
    /// There is or was an extent in several ranges.
    any_scattered: AtomicBool,
}

/// A range of the device that its holder owns, or several ([`scattered`]). Dropping it frees them.
pub struct Extent {
    /// First byte on the device, a multiple of [`BLOCK`]; for a scattered extent, that of its directory. Not to be
    /// changed.
    pub offset: u64,
    /// Length in bytes, a multiple of [`BLOCK`]. Not to be changed.
    pub len: u64,
    /// Unique as long as the space is in use, unlike the offset: a key for the store's cache.
    pub id: u64,
    /// Holds pages and no header, so that several nodes may own it together.
    pub shared: bool,
    /// Where it is, if it is scattered.
    ranges: Box<[Range<u64>]>,
    /// Allocated from backed bytes, and so backed when it is free again.
    backed: bool,
    space: Arc<Space>,
}

struct SpaceState {
    /// All free bytes but those under discard: `backed` and `raw`, which do not overlap.
    free: FreeRanges,
    /// Promised by the device.
    backed: FreeRanges,
    /// Free bytes that the medium has not promised.
    raw: FreeRanges,
    /// Bytes of `raw` that were in use: the medium probably still holds them.
    stale: FreeRanges,
    /// Bytes in none of these while they are being discarded.
    discarding: u64,
    end: u64,
    /// Where the previous allocation ended.
    cursor: u64,
    /// Bytes ever allocated.
    allocated: u64,
    discards: discard::Progress,
    /// Whether the medium was asked, when it was full, what it holds of the raw bytes.
    looked: bool,
    /// When the device last refused a reservation, and of how many bytes.
    refused: Option<(Instant, u64)>,
}

/// The state under its lock.
struct LockedSpace<'a> {
    space: &'a Space,
    state: MutexGuard<'a, SpaceState>,
}

impl Deref for LockedSpace<'_> {
    type Target = SpaceState;

    fn deref(&self) -> &SpaceState {
        &self.state
    }
}

impl DerefMut for LockedSpace<'_> {
    fn deref_mut(&mut self) -> &mut SpaceState {
        &mut self.state
    }
}

impl Drop for LockedSpace<'_> {
    fn drop(&mut self) {
        self.space.free_now.store(self.state.free_bytes(), Relaxed);
        self.space.backed_now.store(self.state.backed.total(), Relaxed);
        self.space.end_now.store(self.state.end, Relaxed);
    }
}

impl SpaceState {
    /// Bytes that may be allocated, as far as the device gives them.
    fn free_bytes(&self) -> u64 {
        let raw = if self.refused.is_none() { &self.raw } else { &self.stale };
        self.backed.total() + raw.total() + self.discarding
    }
}

impl Space {
    /// Manages `[start, end)` of the device, all of it free. Both are multiples of [`BLOCK`].
    pub fn new(device: Arc<dyn Device>, start: u64, end: u64) -> Arc<Self> {
        assert!(start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK) && start <= end);
        let mut state = SpaceState {
            free: FreeRanges::default(),
            backed: FreeRanges::default(),
            raw: FreeRanges::default(),
            stale: FreeRanges::default(),
            discarding: 0,
            end,
            cursor: start,
            allocated: 0,
            discards: discard::Progress::new(start),
            looked: false,
            refused: None,
        };
        state.add_raw(start, end - start);
        Arc::new(Self {
            device,
            start,
            raising: Mutex::new(()),
            free_now: AtomicU64::new(state.free_bytes()),
            backed_now: AtomicU64::new(state.backed.total()),
            end_now: AtomicU64::new(end),
            state: Mutex::new(state),
            adopted: Mutex::default(),
            next_id: AtomicU64::new(1),
            no_discards: AtomicBool::new(false),
            any_scattered: AtomicBool::new(false),
        })
    }

    /// Marks a range as owned while a store is loaded.
    ///
    /// [`Error::Corrupt`] if it is empty, unaligned, outside, or overlaps an owned one.
    pub fn adopt(self: &Arc<Self>, offset: u64, len: u64) -> Result<Arc<Extent>> {
        self.adopt_as(offset, len, false)
    }

    fn adopt_as(self: &Arc<Self>, offset: u64, len: u64, shared: bool) -> Result<Arc<Extent>> {
        self.adopt_range(offset, len)?;
        // It is unknown whether the medium has promised all of it: a copied image may have holes.
        Ok(self.extent(offset, len, shared, false))
    }

    fn adopt_range(&self, offset: u64, len: u64) -> Result<()> {
        let corrupt = |detail: &str| Err(Error::corrupt("extent", offset, format!("{len} bytes {detail}")));
        if len == 0 || !len.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK) {
            return corrupt("are not whole blocks");
        }
        let mut state = self.state();
        if offset < self.start || offset.checked_add(len).is_none_or(|end| end > state.end) {
            return corrupt("lie outside the data region");
        }
        if !state.free.contains(offset, len) {
            return corrupt("overlap an extent owned by something else");
        }
        state.remove(offset, len);
        Ok(())
    }

    /// Marks a range of pages as owned while a store is loaded; the same range again is the same extent.
    ///
    /// Errors as for [`Space::adopt`]: another range that overlaps is not the same.
    pub fn adopt_shared(self: &Arc<Self>, offset: u64, len: u64) -> Result<Arc<Extent>> {
        self.adopt_once((offset, len, &[]), || self.adopt_as(offset, len, true))
    }

    /// The extent of these pages, if it was adopted before, or what `adopt` gives.
    fn adopt_once(
        &self,
        (offset, len, ranges): (u64, u64, &[Range<u64>]),
        adopt: impl FnOnce() -> Result<Arc<Extent>>,
    ) -> Result<Arc<Extent>> {
        let mut adopted = self.adopted.lock();
        let is_same = |e: &Arc<Extent>| e.len == len && *e.ranges == *ranges;
        if let Some(known) = adopted.get(&offset).and_then(Weak::upgrade).filter(is_same) {
            return Ok(known);
        }
        let extent = adopt()?;
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
        let len = blocks(len)?;
        Ok(self.extent(self.take(len)?, len, false, true))
    }

    /// An extent for pages that several nodes may come to own.
    pub fn allocate_shared(self: &Arc<Self>, len: u64) -> Result<Arc<Extent>> {
        let len = blocks(len)?;
        Ok(self.extent(self.take(len)?, len, true, true))
    }

    /// Both side by side: an extent for a single owner, and behind it one for pages.
    pub fn allocate_both(self: &Arc<Self>, own: u64, shared: u64) -> Result<(Arc<Extent>, Arc<Extent>)> {
        let (own, shared) = (blocks(own)?, blocks(shared)?);
        let offset = self.take(own.checked_add(shared).ok_or(Error::NoSpace)?)?;
        Ok((self.extent(offset, own, false, true), self.extent(offset + own, shared, true, true)))
    }

    /// Takes whole blocks out of what is free and backed; where they begin.
    fn take(&self, len: u64) -> Result<u64> {
        let take = || self.state().take(len);
        if let Some(offset) = take() {
            return Ok(offset);
        }
        let _raising = waiting::take(|| self.raising.try_lock(), || self.raising.lock());
        loop {
            // Others may have backed or freed something since.
            if let Some(offset) = take() {
                return Ok(offset);
            }
            let run = self.state().place_for(len).ok_or(Error::NoSpace)?;
            if self.back(run, len)? {
                continue;
            }
            // A full medium has what it holds already.
            let held = self.state().stale.find(len);
            match held {
                Some(offset) if self.back_stale(offset, len)? => (),
                _ if self.look_for_held()? => (),
                _ => return take().ok_or(Error::NoSpace),
            }
        }
    }

    /// Bytes that allocations could hand out (fragmentation apart): the backed
    /// ones, and the raw ones as long as the device did not refuse to back
    /// them. No I/O: after a refusal only [`Space::allocate`] and
    /// [`Space::ensure_backed`] find out that there is room again.
    pub fn free_bytes(&self) -> u64 {
        self.free_now.load(Relaxed)
    }

    /// Whether the device has refused to back bytes, and was not found to do so since: [`Space::free_bytes`] leaves out
    /// what it might give by now.
    pub fn is_refused(&self) -> bool {
        self.state().refused.is_some()
    }

    /// Where it ends: the size of the store, which the device may exceed.
    pub fn end(&self) -> u64 {
        self.end_now.load(Relaxed)
    }

    /// The locked state. Its sizes are published when it is unlocked.
    fn state(&self) -> LockedSpace<'_> {
        LockedSpace { space: self, state: self.state.lock() }
    }

    #[cfg(test)]
    /// Length of the longest free range, backed or not.
    pub fn largest_free(&self) -> u64 {
        self.state().free.largest()
    }

    /// Bytes owned by extents.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state();
        let unused = state.free.total() + state.discarding;
        assert!(unused <= state.end - self.start, "more space is free than there is");
        state.end - self.start - unused
    }

    /// Adds `[end, new_end)` after the device has grown. `new_end` is a multiple of [`BLOCK`].
    pub fn grow(&self, new_end: u64) {
        let mut state = self.state();
        assert!(new_end.is_multiple_of(BLOCK) && new_end >= state.end, "the data region cannot shrink");
        let old_end = std::mem::replace(&mut state.end, new_end);
        state.add_raw(old_end, new_end - old_end);
        state.refused = None;
    }

    /// Tries to have at least `bytes` of free space backed, reserving as needed; whether it is so.
    ///
    /// After a refusal the device is asked at most once a second. A device that fails otherwise is
    /// not full, and the error says so.
    pub fn ensure_backed(&self, bytes: u64) -> Result<bool> {
        if self.backed_now.load(Relaxed) >= bytes {
            return Ok(true);
        }
        let _raising = waiting::take(|| self.raising.try_lock(), || self.raising.lock());
        self.back_total(bytes)
    }

    /// Backs `bytes` in all, for a caller that holds `raising`.
    fn back_total(&self, bytes: u64) -> Result<bool> {
        loop {
            let (missing, stale, run) = {
                let state = self.state();
                (bytes.saturating_sub(state.backed.total()), state.stale.largest_range(), state.raw.first())
            };
            if missing == 0 {
                return Ok(true);
            }
            // First what the medium has given already; it is found out once where it has not.
            if let Some((offset, len)) = stale {
                if !self.back_stale(offset, len.min(missing.next_multiple_of(BLOCK)))? {
                    self.state().stale.remove_within(offset, len);
                }
                continue;
            }
            match run {
                Some((offset, len)) if self.back((offset, len), len.min(missing))? => (),
                Some(_) if self.look_for_held()? => (),
                _ => return Ok(false),
            }
        }
    }

    #[cfg(test)]
    /// Free bytes that the device has promised.
    pub fn backed_bytes(&self) -> u64 {
        self.state().backed.total()
    }

    #[cfg(test)]
    /// Owned ranges in order, as (offset, length); adjacent extents appear as one.
    pub fn owned_ranges(&self) -> Vec<(u64, u64)> {
        let state = self.state();
        let (mut owned, mut at) = (Vec::new(), self.start);
        for (offset, len) in state.free.iter().chain([(state.end, 0)]) {
            if at < offset {
                owned.push((at, offset - at));
            }
            at = offset + len;
        }
        owned
    }

    /// Backs the first raw bytes of a free range: what is missing for `len` bytes at its start and a step
    /// more, or as much as the device gives. False if the device refuses even a block, or has done so just
    /// now. The caller holds `raising`.
    fn back(&self, (start, run): (u64, u64), len: u64) -> Result<bool> {
        let (from, gap, needed, share) = {
            let state = self.state();
            let Some((from, gap)) = state.raw.next_from(start).filter(|&(from, _)| from < start + run) else {
                // Somebody has freed bytes meanwhile or taken them, so that the range is another: again.
                return Ok(true);
            };
            let needed = (start + len).saturating_sub(from).next_multiple_of(BLOCK).clamp(BLOCK, gap);
            if state.refused.is_some_and(|(when, bytes)| needed >= bytes && when.elapsed() < PATIENCE) {
                return Ok(false);
            }
            (from, gap, needed, self.step(&state))
        };
        let backed = self.reserve(from, share.max(needed).min(gap))?;
        let mut state = self.state();
        if backed == 0 {
            state.refused = Some((Instant::now(), needed));
            return Ok(false);
        }
        state.promised(from, backed);
        state.refused = None;
        Ok(true)
    }

    /// On a full medium, once: finds out what it holds of the raw bytes, from before the store was opened.
    /// Whether that was done now. The caller holds `raising`.
    fn look_for_held(&self) -> Result<bool> {
        if std::mem::replace(&mut self.state().looked, true) {
            return Ok(false);
        }
        let raw = |from| self.state().raw.next_from(from);
        let step = self.step(&self.state());
        let mut at = self.start;
        for _ in 0..MAX_LOOKED_RANGES {
            // The medium does not report reserved bytes that were never written; they begin at the end of the used
            // ones.
            let Some((start, len)) = raw(at) else { break };
            if self.reserve(start, BLOCK)? > 0 {
                self.state().promised(start, BLOCK);
                let more = self.reserve(start + BLOCK, (len - BLOCK).min(step))?;
                self.state().promised(start + BLOCK, more);
            }
            at = start + len;
        }
        at = self.start;
        for _ in 0..MAX_LOOKED_RANGES {
            let held = self.device.next_held(at).map_err(|e| Error::io("look for space", at, e))?;
            let Some((from, len)) = held else { break };
            let end = (from + len) / BLOCK * BLOCK;
            let mut from = from.max(at).next_multiple_of(BLOCK);
            let mut state = self.state();
            while let Some((offset, len)) = state.raw.next_from(from).filter(|&(offset, _)| offset < end) {
                let len = len.min(end - offset);
                state.stale.remove_within(offset, len);
                state.stale.insert(offset, len);
                from = offset + len;
            }
            at = (end + BLOCK).max(from);
        }
        Ok(true)
    }

    /// Backs bytes that were in use before, which are then not stale any more. Returns whether the device backed any.
    fn back_stale(&self, offset: u64, len: u64) -> Result<bool> {
        let backed = self.reserve(offset, len)?;
        let mut state = self.state();
        state.stale.remove_within(offset, len);
        state.promised(offset, backed);
        if backed < len {
            // There are holes in it; what else is in it must not be forgotten.
            state.discards.sweep_from(offset);
        }
        Ok(backed > 0)
    }

    /// How many of `len` raw bytes the device promises: all, or half of them, and so on.
    fn reserve(&self, from: u64, len: u64) -> Result<u64> {
        let mut step = len;
        loop {
            match self.device.reserve(from, step) {
                Ok(()) => return Ok(step),
                Err(e) if !is_full(&e) => return Err(Error::io("reserve", from, e)),
                // Less than is needed helps as well: after a reopen what the device holds already is
                // found out step by step.
                Err(_) if step > BLOCK => step = (step / 2).next_multiple_of(BLOCK),
                Err(_) => return Ok(0),
            }
        }
    }

    /// How many bytes are backed at once, at least.
    fn step(&self, state: &SpaceState) -> u64 {
        BACKING_STEP_BYTES.min(((state.end - self.start) / 16).next_multiple_of(BLOCK))
    }

    fn extent(self: &Arc<Self>, offset: u64, len: u64, shared: bool, backed: bool) -> Arc<Extent> {
        self.extent_of(offset, len, Vec::new(), shared, backed)
    }

    fn extent_of(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        ranges: Vec<Range<u64>>,
        shared: bool,
        backed: bool,
    ) -> Arc<Extent> {
        if !ranges.is_empty() {
            self.any_scattered.store(true, Relaxed);
        }
        let id = self.next_id.fetch_add(1, Relaxed);
        Arc::new(Extent { offset, len, id, shared, ranges: ranges.into(), backed, space: self.clone() })
    }
}

impl SpaceState {
    fn take(&mut self, len: u64) -> Option<u64> {
        let follows = self.backed.starting_at(self.cursor) >= len;
        let offset = if follows { self.cursor } else { self.backed.find(len)? };
        assert!(
            offset.is_multiple_of(BLOCK) && offset + len <= self.end,
            "space beside the data region is taken"
        );
        self.remove(offset, len);
        self.allocated += len;
        self.cursor = offset + len;
        Some(offset)
    }

    /// A free range of at least `len`, backed or not: (offset, length).
    fn place_for(&self, len: u64) -> Option<(u64, u64)> {
        let follows = self.free.starting_at(self.cursor) >= len;
        let offset = if follows { self.cursor } else { self.free.find(len)? };
        Some((offset, self.free.starting_at(offset)))
    }

    fn add_raw(&mut self, offset: u64, len: u64) {
        self.raw.insert(offset, len);
        self.free.insert(offset, len);
    }

    /// Takes free bytes out, of whatever kind.
    fn remove(&mut self, offset: u64, len: u64) {
        self.free.remove(offset, len);
        self.backed.remove_within(offset, len);
        self.raw.remove_within(offset, len);
        self.stale.remove_within(offset, len);
    }

    /// Notes that the device has promised these raw bytes.
    fn promised(&mut self, offset: u64, len: u64) {
        self.raw.remove(offset, len);
        self.stale.remove_within(offset, len);
        self.backed.insert(offset, len);
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let mut state = self.space.state();
        for range in self.owned() {
            let (offset, len) = (range.start, range.end - range.start);
            if self.backed {
                state.backed.insert(offset, len);
                state.free.insert(offset, len);
            } else {
                state.stale.insert(offset, len);
                state.add_raw(offset, len);
            }
        }
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Extent({}+{}, id {})", self.offset, self.len, self.id)
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Space")
            .field("start", &self.start)
            .field("end", &state.end)
            .field("backed", &state.backed.total())
            .field("raw", &state.raw.total())
            .finish_non_exhaustive()
    }
}

fn blocks(len: u64) -> Result<u64> {
    len.max(1).checked_next_multiple_of(BLOCK).ok_or(Error::NoSpace)
}

/// Whether an error says that the disk, the quota or the permitted file size is exhausted.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests;
