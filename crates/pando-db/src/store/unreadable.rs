//! Unreadable places: headers and pages whose last read failed or did not match its checksum.
//!
//! Structural work checks this list before it begins something that it could not complete, so one bad page does not
//! stop a store: messages for it wait, and everything else continues. The list is not stored: after a reopen the next
//! read notes such a place again, and a read that succeeds removes it. Without damage this costs nothing. Memory: two
//! words for each place, at most [`MAX_PLACES`] places; beyond that all are forgotten, and noted again when they are
//! read.

use std::{
    collections::HashSet,
    hash::Hash,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::locks::Mutex;

/// Places that are kept.
const MAX_PLACES: usize = 1 << 16;

/// A set of places, to be asked by any thread.
pub(crate) struct Unreadable<K> {
    places: Mutex<HashSet<K>>,
    any: AtomicBool,
    found: AtomicU64,
}

impl<K> Default for Unreadable<K> {
    fn default() -> Self {
        Self { places: Mutex::default(), any: AtomicBool::new(false), found: AtomicU64::new(0) }
    }
}

impl<K: Copy + Eq + Hash> Unreadable<K> {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        if self.any() { self.places.lock().len() as u64 } else { 0 }
    }

    /// How many were noted so far that were not known: an edit that fails, and finds more than before, may try again
    /// around it.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Acquire)
    }

    pub fn contains(&self, place: &K) -> bool {
        self.any() && self.places.lock().contains(place)
    }

    pub fn note(&self, place: K) {
        let mut places = self.places.lock();
        if places.len() >= MAX_PLACES {
            places.clear();
        }
        if places.insert(place) {
            self.found.fetch_add(1, Ordering::Release);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Notes that a place was read.
    pub fn strike_out(&self, place: &K) {
        if self.any() {
            let mut places = self.places.lock();
            places.remove(place);
            self.any.store(!places.is_empty(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_after_all_is_bad_no_more() {
        let bad = Unreadable::default();
        assert!(!bad.any() && !bad.contains(&1));
        bad.note(1);
        bad.note(1);
        bad.note(2);
        assert!(bad.any() && bad.contains(&1) && bad.contains(&2) && bad.found() == 2);
        bad.strike_out(&1);
        assert!(bad.any() && !bad.contains(&1));
        bad.strike_out(&2);
        assert!(!bad.any());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let bad = Unreadable::default();
        (0..3 * MAX_PLACES).for_each(|place| bad.note(place));
        assert!(bad.places.lock().len() <= MAX_PLACES);
    }
}
