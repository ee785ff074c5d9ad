//! Decides which listings of directories the kernel may cache.
//!
//! A cached listing costs nothing to read again. The kernel drops it when an entry changes by its own request. After
//! a change by the server (a clone, the removal of a tree) it has to be notified, and drops the pages. But the answer
//! to an earlier READDIR may be put into the cache after that. So until all who had the directory open at the change
//! have closed it, it is opened without a cache, and the first open after that drops the cached pages. Guarantee: an
//! open after such a change never shows an older listing.
//!
//! The kernel asks for attributes with the first entries, and with later ones if programs look entries up. With a
//! cached listing it looks up each entry that it does not know, one by one. So a listing that came without attributes
//! is not used again, nor one whose entries the kernel has forgotten since.
//!
//! Requests of the kernel that change entries wait for the lock that the kernel holds over a READDIR, so behind such a
//! request answers are short for a while. This module knows no FUSE messages, and uses no other module.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Lookups of entries, a count, while a directory is open, which show that the kernel does not know the entries any
/// more.
const MANY_LOOKUPS: u32 = 32;

/// Answers behind a change that are to be short, a count: a program that changes entries will do so again, and makes
/// several other requests between two changes.
const SHORT_ANSWERS: u32 = 8;

/// A directory that is open or has changed.
#[derive(Default)]
struct ListedDir {
    /// Handles that are open.
    open: Vec<u64>,
    /// The opens that existed at the last change by the server.
    old: Vec<u64>,
    /// The directory has changed since it was last opened, or has to be read again for another reason.
    stale: bool,
    /// Entries of it were read without attributes.
    bare: bool,
    /// Entries that were looked up since it was opened last.
    lookups: u32,
    /// Answers, a count, that are to be short, because a request of the kernel made or removed an entry.
    short: u32,
}

/// How a directory is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListingPolicy {
    /// The kernel may keep the listing, and use the one that it has kept.
    pub(crate) cached: bool,
    /// What it has kept is still right.
    pub(crate) keep: bool,
}

/// The directories that are open or have changed.
pub(crate) struct Listings {
    /// Whether any is to be kept.
    wanted: bool,
    dirs: Mutex<HashMap<u64, ListedDir>>,
}

impl Listings {
    /// Keeps listings if `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { wanted, dirs: Mutex::default() }
    }

    /// Notes that a directory was opened by `handle`, and says how to do it.
    pub(crate) fn opened(&self, ino: u64, handle: u64) -> ListingPolicy {
        let mut dirs = self.dirs.lock();
        let dir = dirs.entry(ino).or_default();
        dir.open.push(handle);
        if !self.wanted {
            return ListingPolicy { cached: false, keep: false };
        }
        dir.stale |= std::mem::take(&mut dir.lookups) >= MANY_LOOKUPS;
        let cached = dir.old.is_empty() && !dir.bare;
        let keep = !dir.stale;
        dir.stale &= !cached;
        ListingPolicy { cached, keep }
    }

    /// Notes that entries of an open directory were read, behind others or as the first, with attributes or without.
    pub(crate) fn listed(&self, ino: u64, behind: bool, with_attributes: bool) {
        if self.wanted
            && behind
            && let Some(dir) = self.dirs.lock().get_mut(&ino)
        {
            dir.bare = !with_attributes;
        }
    }

    /// Notes that a request of the kernel makes or removes an entry.
    pub(crate) fn changes(&self, ino: u64) {
        if let Some(dir) = self.dirs.lock().get_mut(&ino) {
            dir.short = SHORT_ANSWERS;
        }
    }

    /// Whether the next answer about this directory is to be short; asked once an answer.
    pub(crate) fn takes_short(&self, ino: u64) -> bool {
        self.dirs.lock().get_mut(&ino).is_some_and(|dir| {
            let short = dir.short > 0;
            dir.short = dir.short.saturating_sub(1);
            short
        })
    }

    /// Notes that an entry was looked up that is there.
    pub(crate) fn looked_up(&self, ino: u64) {
        if self.wanted
            && let Some(dir) = self.dirs.lock().get_mut(&ino)
        {
            dir.lookups += 1;
        }
    }

    /// Notes that `handle` was closed, and all that was read by it has arrived.
    pub(crate) fn released(&self, ino: u64, handle: u64) {
        let mut dirs = self.dirs.lock();
        let Some(dir) = dirs.get_mut(&ino) else { return };
        dir.open.retain(|&h| h != handle);
        dir.old.retain(|&h| h != handle);
        let unwanted = dir.stale || dir.bare || dir.lookups >= MANY_LOOKUPS;
        if dir.open.is_empty() && !unwanted {
            dirs.remove(&ino);
        }
    }

    /// Notes that the server has changed the entries of a directory. The kernel has to be notified after this.
    pub(crate) fn changed(&self, ino: u64) {
        if self.wanted {
            let mut dirs = self.dirs.lock();
            let dir = dirs.entry(ino).or_default();
            dir.old.clone_from(&dir.open);
            dir.stale = true;
        }
    }

    /// The kernel may have dropped the inode, and its listing with it: `is_known` says whether it still knows it.
    pub(crate) fn forgotten(&self, ino: u64, is_known: impl FnOnce() -> bool) {
        let mut dirs = self.dirs.lock();
        if dirs.get(&ino).is_some_and(|dir| dir.open.is_empty()) && !is_known() {
            dirs.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: ListingPolicy = ListingPolicy { cached: true, keep: true };
    const FRESH: ListingPolicy = ListingPolicy { cached: true, keep: false };
    const NOT_CACHED: ListingPolicy = ListingPolicy { cached: false, keep: false };

    #[test]
    fn listings_are_kept_until_the_server_changes_them() {
        let l = Listings::new(true);
        assert_eq!(l.opened(2, 1), KEPT);
        l.released(2, 1);
        assert_eq!(l.opened(2, 2), KEPT);
        l.released(2, 2);
        l.changed(2);
        assert_eq!((l.opened(2, 3), l.opened(3, 4)), (FRESH, KEPT));
        assert_eq!(l.opened(2, 5), KEPT, "dropped once");
        for (ino, handle) in [(2, 3), (3, 4), (2, 5)] {
            l.released(ino, handle);
        }
        assert!(l.dirs.lock().is_empty());
    }

    #[test]
    fn while_one_who_may_have_read_the_old_listing_has_it_open_nothing_is_kept() {
        let l = Listings::new(true);
        l.opened(2, 1);
        l.opened(2, 2);
        l.changed(2);
        l.released(2, 1);
        assert_eq!(l.opened(2, 3), NOT_CACHED);
        l.released(2, 2);
        assert_eq!(l.opened(2, 4), FRESH);
        l.released(2, 3);
        l.changed(2);
        l.forgotten(2, || false);
        assert_eq!(l.opened(2, 5), NOT_CACHED, "it is open, so it was not forgotten");
    }

    #[test]
    fn a_listing_without_attributes_is_not_used_again_nor_one_whose_entries_are_looked_up() {
        let l = Listings::new(true);
        assert_eq!(l.opened(2, 1), KEPT);
        l.listed(2, false, true);
        l.listed(2, true, false);
        l.released(2, 1);
        assert!(!l.opened(2, 2).cached);
        l.listed(2, false, true);
        l.listed(2, true, true);
        l.released(2, 2);
        assert_eq!(l.opened(2, 3), KEPT);
        (0..MANY_LOOKUPS).for_each(|_| l.looked_up(2));
        l.released(2, 3);
        assert_eq!(l.opened(2, 4), FRESH);
        l.released(2, 4);
        assert!(l.dirs.lock().is_empty());
    }

    #[test]
    fn answers_are_short_for_a_while_behind_a_change_of_an_open_directory() {
        for wanted in [true, false] {
            let l = Listings::new(wanted);
            l.changes(2);
            l.opened(2, 1);
            assert!(!l.takes_short(2), "it was changed before it was opened");
            l.changes(2);
            assert!((0..SHORT_ANSWERS).all(|_| l.takes_short(2)) && !l.takes_short(2));
            l.changes(3);
            assert!(!l.takes_short(2) && !l.takes_short(3));
            l.released(2, 1);
            assert!(l.dirs.lock().is_empty());
        }
    }

    #[test]
    fn what_is_forgotten_takes_no_memory_and_where_nothing_is_kept_nothing_stays_noted() {
        let l = Listings::new(true);
        l.changed(2);
        l.forgotten(2, || false);
        assert!(l.dirs.lock().is_empty());
        let off = Listings::new(false);
        off.changed(2);
        assert!(off.dirs.lock().is_empty());
        assert_eq!(off.opened(2, 1), NOT_CACHED);
        off.released(2, 1);
        assert!(off.dirs.lock().is_empty());
    }
}
