//! Pieces that are being read from the device, and pages that were read ahead and that no thread has asked for yet.
//!
//! A page that is not worth a place in the cache stays here for a little while after a thread has asked for it,
//! because a thread that reads on asks for the rest of it.
//!
//! Guarantees: of the threads that want a piece at the same time which is not in the cache, one reads it and the
//! others wait for that ([`InFlight::claim`]). A page that was read ahead stays until a thread asks for it, however
//! full the cache is, unless more pages were read ahead than have room here ([`InFlight::with_limit`]), and then until
//! [`PASSING_BYTES`] of other pages have followed it. A thread that holds a claim waits for no other, so there is no
//! deadlock. Takes no lock over I/O.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Condvar;

use crate::{
    locks::Mutex,
    node::page::Page,
    store::cache_key::{CacheKey, Hashing},
    waiting,
};

/// Most memory of pages that were asked for and stay, in bytes.
const PASSING_BYTES: u64 = 8 << 20;
/// The same as a part (1/n) of the limit for pages that are read ahead.
const PASSING_SHARE: u64 = 4;

/// Places in the order of pages read ahead that may be out of date before they are looked through.
const STALE_PLACES: usize = 64;

/// What is known of a piece.
enum Slot {
    /// Somebody reads it, and so many threads wait for that.
    Reading(usize),
    /// The page was read ahead; with `once` it is mostly needed once only.
    Ahead { page: Arc<Page>, once: bool },
    /// The page was read ahead, and a thread has taken it.
    Passing(Arc<Page>),
}

#[derive(Default)]
struct InFlightState {
    slots: HashMap<CacheKey, Slot, Hashing>,
    /// Pages read ahead, oldest first; also some that were taken since.
    order: VecDeque<CacheKey>,
    /// Those that were asked for and stay, oldest first, and their memory in bytes; also some that are gone.
    passing: VecDeque<CacheKey>,
    passing_bytes: u64,
}

/// Pieces under way, and pages read ahead.
#[derive(Default)]
pub(super) struct InFlight {
    state: Mutex<InFlightState>,
    ended: Condvar,
    /// Memory of the pages read ahead, and how much there may be, in bytes.
    held: AtomicU64,
    limit: AtomicU64,
}

/// What [`InFlight::claim`] has come to.
pub(super) enum Claimed<'i> {
    /// The page was read ahead. The caller calls [`InFlight::taken`] when it is in the cache. With `once` it may call
    /// [`InFlight::retire`] instead.
    Ahead { page: Arc<Page>, once: bool },
    /// The page was read ahead, and is not cached.
    Passing(Arc<Page>),
    /// Somebody was reading it and has come to an end: it may be in the cache now.
    Ended,
    /// The caller is to read it, if it is not in the cache meanwhile.
    Mine(Claim<'i>),
}

/// Pieces that the holder reads. The threads that wait for them go on when it is dropped.
pub(super) struct Claim<'i> {
    of: &'i InFlight,
    keys: Vec<CacheKey>,
}

impl InFlight {
    /// At most `bytes` bytes of pages that are read ahead are kept.
    pub fn with_limit(bytes: u64) -> Self {
        Self { limit: bytes.into(), ..Self::default() }
    }

    /// Memory of pages that were read ahead, in bytes.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Memory that pages read ahead may have, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Claims a piece that is not in the cache. Waits while another thread reads it.
    pub fn claim(&self, key: CacheKey) -> Claimed<'_> {
        let mut state = self.state.lock();
        match state.slots.get(&key) {
            None => {
                state.slots.insert(key, Slot::Reading(0));
                Claimed::Mine(Claim { of: self, keys: vec![key] })
            }
            Some(Slot::Ahead { page, once }) => Claimed::Ahead { page: page.clone(), once: *once },
            Some(Slot::Passing(page)) => Claimed::Passing(page.clone()),
            Some(Slot::Reading(_)) => {
                waiting::announce();
                // Counted anew after each wake-up: meanwhile one read may have ended and another begun.
                while let Some(Slot::Reading(waiting)) = state.slots.get_mut(&key) {
                    *waiting += 1;
                    self.ended.wait(&mut state);
                    if let Some(Slot::Reading(waiting)) = state.slots.get_mut(&key) {
                        *waiting = waiting.saturating_sub(1);
                    }
                }
                Claimed::Ended
            }
        }
    }

    /// Claims the first of `keys`, and those behind it up to one that another thread reads or that was read ahead.
    /// Never waits.
    pub fn claim_first(&self, keys: impl Iterator<Item = CacheKey>) -> Claim<'_> {
        let mut state = self.state.lock();
        let mut claim = Claim { of: self, keys: Vec::new() };
        for key in keys {
            if state.slots.contains_key(&key) {
                break;
            }
            state.slots.insert(key, Slot::Reading(0));
            claim.keys.push(key);
        }
        claim
    }

    /// Whether a thread reads the piece, or it was read ahead.
    pub fn knows(&self, key: &CacheKey) -> bool {
        self.state.lock().slots.contains_key(key)
    }

    /// A page that was read ahead is in the cache now.
    pub fn taken(&self, key: &CacheKey) {
        let mut state = self.state.lock();
        if let Some(Slot::Ahead { page, .. }) = state.slots.get(key) {
            let bytes = page.memory() as u64;
            assert!(
                self.held.fetch_sub(bytes, Relaxed) >= bytes,
                "a page read ahead goes and was not counted"
            );
            state.slots.remove(key);
        }
    }

    /// Notes that a page that was read ahead was taken: it is dropped when enough other pages were taken.
    pub fn retire(&self, key: CacheKey) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(slot) = state.slots.get_mut(&key) else { return };
        let Slot::Ahead { page, .. } = slot else { return };
        let page = page.clone();
        state.passing_bytes += page.memory() as u64;
        *slot = Slot::Passing(page);
        state.passing.push_back(key);
        let most = PASSING_BYTES.min(self.limit() / PASSING_SHARE);
        while state.passing_bytes > most
            && let Some(page) = state.forget_passing()
        {
            self.held.fetch_sub(page.memory() as u64, Relaxed);
            gone.push(page);
        }
    }
}

impl InFlightState {
    /// Takes out the page that was asked for and has stayed longest.
    fn forget_passing(&mut self) -> Option<Arc<Page>> {
        let key = self.passing.pop_front()?;
        match self.slots.remove(&key) {
            Some(Slot::Passing(page)) => {
                let bytes = page.memory() as u64;
                assert!(self.passing_bytes >= bytes, "a page that was asked for goes and was not counted");
                self.passing_bytes -= bytes;
                Some(page)
            }
            _ => unreachable!("what stays is taken out here only"),
        }
    }
}

impl Claim<'_> {
    /// How many pieces it is for: the first ones of those asked for.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Lets go of all but the first `count`.
    pub fn truncate(&mut self, count: usize) {
        if count < self.keys.len() {
            let rest = self.keys.split_off(count);
            self.of.end(&rest);
        }
    }

    /// Keeps pages, of those it is for, for the threads that ask for them later, which is `once` as a rule, or is
    /// not. What has no room any more is given back, the oldest first: it belongs into the cache.
    pub fn keep_ahead<'p>(
        &self,
        once: bool,
        pages: impl Iterator<Item = (CacheKey, &'p Arc<Page>)>,
    ) -> Vec<(CacheKey, Arc<Page>)> {
        let (mut out, mut gone) = (Vec::new(), Vec::new());
        let mut state = self.of.state.lock();
        let state = &mut *state;
        let mut held = self.of.held.load(Relaxed);
        let mut awaited = false;
        for (key, page) in pages {
            held += page.memory() as u64;
            let before = state.slots.insert(key, Slot::Ahead { page: page.clone(), once });
            awaited |= matches!(before, Some(Slot::Reading(1..)));
            state.order.push_back(key);
        }
        while held > self.of.limit()
            && let Some(page) = state.forget_passing()
        {
            held -= page.memory() as u64;
            gone.push(page);
        }
        while held > self.of.limit()
            && let Some(oldest) = state.order.pop_front()
        {
            if let Some(Slot::Ahead { page, .. }) = state.slots.get(&oldest) {
                held -= page.memory() as u64;
                out.push((oldest, page.clone()));
                state.slots.remove(&oldest);
            }
        }
        if state.order.len() > 2 * state.slots.len() + STALE_PLACES {
            let slots = &state.slots;
            state.order.retain(|key| matches!(slots.get(key), Some(Slot::Ahead { .. })));
        }
        self.of.held.store(held, Relaxed);
        if awaited {
            self.of.ended.notify_all();
        }
        out
    }
}

impl InFlight {
    /// Ends claims whose pieces were not stored.
    fn end(&self, keys: &[CacheKey]) {
        if keys.is_empty() {
            return;
        }
        let mut awaited = false;
        let mut state = self.state.lock();
        for key in keys {
            if let Some(Slot::Reading(waiting)) = state.slots.get(key) {
                awaited |= *waiting > 0;
                state.slots.remove(key);
            }
        }
        if awaited {
            self.ended.notify_all();
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.of.end(&self.keys);
    }
}
