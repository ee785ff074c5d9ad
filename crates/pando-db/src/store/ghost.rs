//! Which pages long scans have passed lately.
//!
//! A scan of more than the cache holds would leave in it nothing but its own last part, and a scan of less
//! may be the only one: so what a long scan reads enters the cache only if one has passed it before, and not
//! longer ago than the cache holds pages (Johnson and Shasha, "2Q", VLDB 1994, where the list of what has
//! passed is `A1out`). Kept as a table of marks in groups, where a new mark takes the place of the oldest of
//! its group: an error costs a read or a place in the cache. Two scans that go side by side look like one
//! that goes twice. Takes no lock; 32 bytes a page of the cache. May use: nothing of the crate.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Marks in a group; as many groups as the cache holds pages, so that few marks are overwritten before they
/// are too old.
const GROUP_MARKS: usize = 4;

/// Most groups: far below half of what the clock counts.
const MAX_GROUPS: u64 = 1 << 28;

/// A part of the hash of a page's name above, and below when the page was passed, as [`GhostList::clock`]
/// showed. 0: none.
type Mark = AtomicU64;

/// Marks of pages, by a hash of their name.
pub(crate) struct GhostList {
    groups: Box<[[Mark; GROUP_MARKS]]>,
    /// Pages passed so far.
    clock: AtomicU32,
}

impl GhostList {
    /// For a cache that holds `pages` pages.
    pub fn new(pages: u64) -> Self {
        let groups = std::iter::repeat_with(Default::default).take(pages.clamp(1, MAX_GROUPS) as usize);
        Self { groups: groups.collect(), clock: 1.into() }
    }

    /// Notes that the page of this hash is passed, and tells if it was before, and not more than `held` pages
    /// ago: those that the cache holds now.
    pub fn again(&self, hash: u64, held: u64) -> bool {
        let now = self.clock.fetch_add(1, Relaxed);
        let age = |mark: u64| if mark == 0 { u32::MAX } else { now.wrapping_sub(mark as u32) };
        let name = hash >> 32;
        let Some(group) = self.groups.get((hash % self.groups.len() as u64) as usize) else { return false };
        let marks = group.iter().map(|mark| (mark, mark.load(Relaxed)));
        let same = marks.clone().find(|(_, mark)| mark >> 32 == name);
        let Some((mark, before)) = same.or(marks.max_by_key(|(_, mark)| age(*mark))) else { return false };
        mark.store(name << 32 | u64::from(now), Relaxed);
        same.is_some() && u64::from(age(before)) <= held.min(self.groups.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes of so many pages, spread as a hash function would.
    fn pages(count: u64) -> impl Iterator<Item = u64> {
        (1..=count).map(|page| {
            let mixed = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        })
    }

    #[test]
    fn what_the_cache_could_hold_is_known_again() {
        let passed = GhostList::new(1000);
        assert_eq!(pages(900).filter(|page| passed.again(*page, 1000)).count(), 0);
        let again = pages(900).filter(|page| passed.again(*page, 1000)).count();
        // Some marks were overwritten by others.
        assert!((850..=900).contains(&again), "{again}");
    }

    #[test]
    fn what_is_more_than_the_cache_is_not() {
        let passed = GhostList::new(1000);
        for _ in 0..3 {
            assert_eq!(pages(1500).filter(|page| passed.again(*page, 1000)).count(), 0);
        }
        // Its last part is, as what was passed lately.
        assert!(pages(1500).skip(1000).filter(|page| passed.again(*page, 1000)).count() > 300);
        // And less of it where others leave less of the cache.
        assert_eq!(pages(1500).skip(1000).filter(|page| passed.again(*page, 400)).count(), 0);
    }

    #[test]
    fn the_time_goes_round() {
        let passed = GhostList::new(10);
        passed.clock.store(u32::MAX - 3, Relaxed);
        assert_eq!(pages(5).filter(|page| passed.again(*page, 1000)).count(), 0);
        assert!(pages(5).filter(|page| passed.again(*page, 1000)).count() >= 4);
    }
}
