//! What the kernel caches of each open file, and which cache operations that requires.
//!
//! The rules (reasons in `docs/fuse.md`): files opened for writing only
//! bypass the page cache, all others use it, written through. This module
//! remembers, per inode that is open or was partly written, how many cached
//! opens there are and whether the page cache may hold pages that a write
//! filled only in part. It decides
//! - how a file is opened,
//! - which pages the kernel must drop before a direct write is answered,
//! - when a run of small READs shows that such pages shred a scan,
//! - which inodes may have dirty pages of a shared mapping.
//!
//! With the kernel's write-back cache, opens use the page cache, with two exceptions: opens that are likely to change
//! a small part of a large existing file ([`MIN_BYPASS_BYTES`]; the cache would first read the rest of each page),
//! and new files of callers that make many in a row (`creators`). `times` then tells the kernel the times that it
//! does not know.
//!
//! This module knows no FUSE messages; the caller applies its decisions.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Page size that the kernel's cache works in, bytes.
const PAGE_BYTES: u64 = 4096;
/// Reads in a row, each at most this far behind the end of the one before, are a scan. (The
/// kernel reads ahead what lies between pages that it holds, and those pages later.)
const MAX_GAP_BYTES: u64 = 256 << 10;
/// So many reads of a scan show whether it is shredded,
const SHREDDED_READS: u32 = 8;
/// namely if they are smaller than this on average, bytes.
const SHREDDED_BYTES: u64 = 64 << 10;

/// Size of a file from which on write-only opens bypass the write-back cache, bytes. Through the cache a change of
/// a few bytes becomes one of a page, which clones then do not share. (A smaller file is soon written anew.)
pub(crate) const MIN_BYPASS_BYTES: u64 = 64 << 10;

#[derive(Default)]
struct InodeCache {
    /// The number of opens.
    opens: u32,
    /// Counts what may change the file's bytes, before the kernel knows of it: opens, and changes of its size.
    changes: u64,
    /// The page cache is being filled.
    filling: bool,
    /// Opens that use the page cache.
    cached: u32,
    /// The number of opens that may also map the file for writing.
    writable: u32,
    /// A write through the page cache left pages that are not up to date.
    partial: bool,
    /// The scan that reads look like.
    run: Run,
    /// From the first to the last page that was asked for while an open bypassed the page cache, bytes.
    beside: Range<u64>,
}

impl InodeCache {
    /// Whether the kernel may hold old pages in this range of a direct write. The kernel drops them once for each
    /// call, before it sends the first of its requests, so it may also have pages of an open that came and went since
    /// then.
    fn may_be_old(&self, range: &Range<u64>) -> bool {
        let pages = pages(range);
        self.cached > 0 || self.beside.start < pages.end && pages.start < self.beside.end
    }
}

/// The pages in which a range lies.
fn pages(range: &Range<u64>) -> Range<u64> {
    let end = range.end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX);
    range.start / PAGE_BYTES * PAGE_BYTES..end
}

/// Reads that go forward: where the last ended, how many there were, and their bytes.
#[derive(Default)]
struct Run {
    end: u64,
    reads: u32,
    bytes: u64,
}

/// How a file is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Bypass the page cache.
    pub(crate) direct: bool,
    /// Keep the pages that are cached already.
    pub(crate) keep: bool,
}

/// The state of all inodes that have any.
#[derive(Default)]
pub(crate) struct Caches {
    /// The kernel keeps what is written.
    writeback: bool,
    inodes: Mutex<HashMap<u64, InodeCache>>,
    /// The page cache of some inode has been filled.
    filled: Condvar,
    /// Inodes of which the kernel may hold pages.
    with_pages: Mutex<HashSet<u64>>,
    /// Open handles that bypass the cache of such a kernel.
    bypassing: Mutex<HashSet<u64>>,
}

/// Says that the page cache of an inode is being filled, until this is dropped. It is dropped in a panic, too:
/// otherwise nobody could open the file any more.
struct Filling<'a> {
    caches: &'a Caches,
    ino: u64,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.caches.inodes.lock().get_mut(&self.ino) {
            state.filling = false;
        }
        self.caches.filled.notify_all();
    }
}

fn write_only(flags: i32) -> bool {
    flags & libc::O_ACCMODE == libc::O_WRONLY
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl Caches {
    /// For a kernel that keeps what is written (`writeback`), or that does not.
    pub(crate) fn new(writeback: bool) -> Self {
        Self { writeback, ..Self::default() }
    }

    /// Whether the kernel keeps what is written.
    pub(crate) fn writeback(&self) -> bool {
        self.writeback
    }

    /// Whether the flags of an open are those of one that [`Caches::suits_bypass`] may be true of.
    pub(crate) fn may_suit_bypass(flags: i32) -> bool {
        write_only(flags) && flags & (libc::O_APPEND | libc::O_TRUNC) == 0
    }

    /// Whether an open with these flags of an existing file of `bytes` is one for small changes of a large file.
    pub(crate) fn suits_bypass(flags: i32, bytes: u64) -> bool {
        Self::may_suit_bypass(flags) && bytes >= MIN_BYPASS_BYTES
    }

    /// Counts an open with `O_*` `flags`, which got `handle`, and says how to do it. `bypass`: it is better to
    /// bypass a cache that keeps what is written, and the kernel can be told of times.
    pub(crate) fn opened(&self, ino: u64, handle: u64, flags: i32, bypass: bool) -> Policy {
        let direct = Policy { direct: true, keep: true };
        let mut inodes = self.not_filling(ino);
        let state = inodes.entry(ino).or_default();
        state.opens += 1;
        state.changes += 1;
        if !self.writeback && write_only(flags) {
            return direct;
        }
        // If the kernel caches the writes of other opens, each direct write would have to wait for their pages.
        if self.writeback && bypass && state.writable == 0 {
            self.bypassing.lock().insert(handle);
            return direct;
        }
        state.cached += 1;
        state.writable += u32::from(writes(flags));
        // Without `keep` the kernel drops the clean pages of the file, and with them those
        // that are not up to date: the next scan gets large reads again.
        Policy { direct: false, keep: !std::mem::take(&mut state.partial) }
    }

    /// Whether the kernel has the time of each change of the file: it keeps what is written, and no open bypasses that.
    pub(crate) fn knows_times(&self, ino: u64) -> bool {
        self.writeback && self.inodes.lock().get(&ino).is_none_or(|state| state.opens == state.cached)
    }

    /// Whether `handle` bypasses a cache that keeps what is written.
    pub(crate) fn bypasses(&self, handle: u64) -> bool {
        self.writeback && self.bypassing.lock().contains(&handle)
    }

    /// Counts the last close of `handle`, which was opened with `flags`; whether it bypassed the page cache.
    pub(crate) fn released(&self, ino: u64, handle: u64, flags: i32) -> bool {
        let direct = match self.writeback {
            true => self.bypassing.lock().remove(&handle),
            false => write_only(flags),
        };
        let mut inodes = self.inodes.lock();
        let Some(state) = inodes.get_mut(&ino) else {
            debug_assert!(false, "inode {ino:#x} was closed more often than opened");
            return direct;
        };
        state.opens = state.opens.saturating_sub(1);
        if !direct {
            state.cached = state.cached.saturating_sub(1);
            state.writable = state.writable.saturating_sub(u32::from(writes(flags)));
        }
        if state.opens == state.cached {
            state.beside = 0..0;
        }
        if state.opens == 0 && !state.partial {
            inodes.remove(&ino);
        }
        direct
    }

    /// Whether the file is open.
    pub(crate) fn is_open(&self, ino: u64) -> bool {
        self.inodes.lock().get(&ino).is_some_and(|state| state.opens > 0)
    }

    /// The state of all inodes, locked at a moment when the page cache of this inode is not being filled.
    fn not_filling(&self, ino: u64) -> MutexGuard<'_, HashMap<u64, InodeCache>> {
        let mut inodes = self.inodes.lock();
        while inodes.get(&ino).is_some_and(|s| s.filling) {
            self.filled.wait(&mut inodes);
        }
        inodes
    }

    /// To be called before the kernel is notified that the size of a file has changed other than by a write.
    pub(crate) fn resized(&self, ino: u64) {
        if let Some(state) = self.not_filling(ino).get_mut(&ino) {
            state.changes += 1;
        }
    }

    /// To be called before a file is read to give the kernel its pages, while its open is not answered yet. Returns
    /// the argument for [`Caches::fill`]; `None` if the kernel may hold pages of the file, or the file is open
    /// elsewhere.
    pub(crate) fn may_fill(&self, ino: u64) -> Option<u64> {
        if self.with_pages.lock().contains(&ino) {
            return None;
        }
        self.inodes.lock().get(&ino).filter(|s| s.opens == 1).map(|s| s.changes)
    }

    /// Calls `give`, which fills the page cache with what was read, if the file was not opened or changed since
    /// [`Caches::may_fill`]. Meanwhile opens and changes of the size wait: pages that another program has written
    /// must not be replaced, and the kernel must not take the file for longer than it is.
    pub(crate) fn fill(&self, ino: u64, changes: u64, give: impl FnOnce()) {
        let begin = |s: &mut InodeCache| {
            let same = s.opens == 1 && s.changes == changes;
            s.filling = same;
            same
        };
        if !self.inodes.lock().get_mut(&ino).is_some_and(begin) {
            return;
        }
        let _filling = Filling { caches: self, ino };
        self.with_pages.lock().insert(ino);
        give();
    }

    /// The kernel may have dropped the inode, and its pages with it: `is_known` says whether it still knows it. Asked
    /// under each lock, because a program that looks the file up may read and write it at once.
    pub(crate) fn forgotten(&self, ino: u64, is_known: impl Fn() -> bool) {
        {
            let mut with_pages = self.with_pages.lock();
            if with_pages.contains(&ino) && !is_known() {
                with_pages.remove(&ino);
            }
        }
        let mut inodes = self.inodes.lock();
        if inodes.get(&ino).is_some_and(|s| s.opens == 0) && !is_known() {
            inodes.remove(&ino);
        }
    }

    /// Notes a write that bypassed the page cache (`direct`) or went through it. True: a reader may
    /// have cached the old bytes while the write was under way, so drop these pages before answering.
    ///
    /// (The kernel drops the pages of a direct write before it sends it, not after. How the file was
    /// opened does not tell: `O_DIRECT` on a cached open bypasses the page cache as well, and can be
    /// switched on and off. Pages of a write that did not bypass it are locked until the answer.)
    pub(crate) fn wrote(&self, ino: u64, direct: bool, offset: u64, len: u64) -> bool {
        if !direct {
            self.with_pages.lock().insert(ino);
        }
        let mut inodes = self.inodes.lock();
        let Some(state) = inodes.get_mut(&ino) else { return false };
        if direct {
            return state.may_be_old(&(offset..offset.saturating_add(len)));
        }
        let whole = offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES);
        // A kernel that keeps what is written has read what a page lacks before.
        state.partial |= !whole && !self.writeback;
        false
    }

    /// Notes a read, before anything is read: a write that is stored later then finds it. `Some(from)`: pages that
    /// are not up to date shred a scan; drop all from byte `from` on.
    pub(crate) fn read(&self, ino: u64, offset: u64, size: u32) -> Option<u64> {
        self.with_pages.lock().insert(ino);
        let mut inodes = self.inodes.lock();
        let state = inodes.get_mut(&ino)?;
        let end = offset.checked_add(size.into())?;
        if state.opens > state.cached {
            let asked = pages(&(offset..end));
            let (had, none) = (&state.beside, state.beside.is_empty());
            state.beside = if none { asked } else { had.start.min(asked.start)..had.end.max(asked.end) };
        }
        if !state.partial {
            return None;
        }
        let run = &mut state.run;
        if offset < run.end || offset - run.end > MAX_GAP_BYTES {
            *run = Run::default();
        }
        *run = Run { end, reads: run.reads + 1, bytes: run.bytes + u64::from(size) };
        if run.reads < SHREDDED_READS {
            return None;
        }
        let shredded = run.bytes / u64::from(run.reads) < SHREDDED_BYTES;
        *run = Run::default();
        if !shredded {
            return None;
        }
        state.partial = false;
        // The pages being read are locked until they are answered: begin after them.
        Some(end.next_multiple_of(PAGE_BYTES))
    }

    /// How many files are open, about.
    pub(crate) fn open_count(&self) -> usize {
        self.inodes.lock().len()
    }

    /// Inodes that may have dirty pages.
    pub(crate) fn perhaps_dirty(&self) -> Vec<u64> {
        self.inodes.lock().iter().filter(|(_, s)| s.writable > 0).map(|(&ino, _)| ino).collect()
    }

    /// Whether the kernel may hold pages in this range for an open, or for one that was closed after the kernel
    /// dropped those of a direct write; and what changes when the inode is opened.
    pub(crate) fn cached(&self, ino: u64, range: &Range<u64>) -> (bool, u64) {
        self.inodes.lock().get(&ino).map_or((false, 0), |s| (s.may_be_old(range), s.changes))
    }

    /// Whether pages of this inode may become dirty by another open than `handle`, which is for writing, and with
    /// `write_only` for writing alone.
    pub(crate) fn others_may_dirty(&self, ino: u64, handle: u64, write_only: bool) -> bool {
        let direct = if self.writeback { self.bypasses(handle) } else { write_only };
        let own = u32::from(!direct);
        self.inodes.lock().get(&ino).is_some_and(|s| s.writable > own)
    }

    /// Whether this inode may have dirty pages.
    pub(crate) fn is_perhaps_dirty(&self, ino: u64) -> bool {
        self.inodes.lock().get(&ino).is_some_and(|s| s.writable > 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        sync::{
            Barrier,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use super::*;

    #[test]
    fn what_others_may_dirty_does_not_count_the_own_open() {
        for writeback in [true, false] {
            let c = Caches::new(writeback);
            c.opened(2, 7, libc::O_RDWR, false);
            assert!(!c.others_may_dirty(2, 7, false), "writeback {writeback}");
            c.opened(2, 8, libc::O_RDWR, false);
            assert!(c.others_may_dirty(2, 7, false) && c.others_may_dirty(2, 8, false));
            c.opened(3, 9, libc::O_WRONLY, true);
            assert!(!c.others_may_dirty(3, 9, true), "writeback {writeback}");
            c.opened(3, 10, libc::O_RDWR, false);
            assert!(c.others_may_dirty(3, 9, true), "writeback {writeback}");
        }
    }

    #[test]
    fn only_write_only_opens_are_direct() {
        let c = Caches::default();
        assert!(c.opened(2, 0, libc::O_WRONLY | libc::O_APPEND, false).direct);
        assert!(!c.opened(2, 0, libc::O_RDONLY, false).direct);
        assert!(!c.opened(2, 0, libc::O_RDWR, false).direct);
    }

    #[test]
    fn with_the_write_back_cache_all_that_write_may_be_dirty() {
        let c = Caches::new(true);
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY] {
            assert_eq!(c.opened(2 + flags as u64, 0, flags, false), Policy { direct: false, keep: true });
        }
        assert!(c.is_perhaps_dirty(2 + libc::O_WRONLY as u64) && c.is_perhaps_dirty(2 + libc::O_RDWR as u64));
        assert!(!c.is_perhaps_dirty(2));
        c.wrote(3, false, 10, 4);
        assert!(c.opened(3, 0, libc::O_WRONLY, false).keep, "the kernel has made the page whole");
        c.released(3, 0, libc::O_WRONLY);
        c.released(3, 0, libc::O_WRONLY);
        assert!(!c.is_perhaps_dirty(3));
    }

    #[test]
    fn small_changes_of_a_large_file_bypass_the_write_back_cache() {
        let (large, new) = (MIN_BYPASS_BYTES, libc::O_WRONLY | libc::O_TRUNC);
        assert!(Caches::suits_bypass(libc::O_WRONLY, large));
        for (flags, bytes) in [(libc::O_RDWR, large), (libc::O_WRONLY, large - 1), (new, large)] {
            assert!(!Caches::suits_bypass(flags, bytes), "{flags:#o} {bytes}");
        }
        assert!(!Caches::suits_bypass(libc::O_WRONLY | libc::O_APPEND, large));
        let c = Caches::new(true);
        assert!(c.opened(2, 7, libc::O_WRONLY, true).direct && c.bypasses(7) && !c.is_perhaps_dirty(2));
        assert!(!c.opened(2, 8, libc::O_RDWR, false).direct && !c.bypasses(8));
        assert!(!c.opened(2, 9, libc::O_WRONLY, true).direct, "another's writes are kept");
        assert!(c.wrote(2, true, 0, 4), "pages that readers hold");
        for handle in [7, 8, 9] {
            c.released(2, handle, if handle == 8 { libc::O_RDWR } else { libc::O_WRONLY });
            assert!(!c.bypasses(handle));
        }
        assert!(c.inodes.lock().is_empty() && c.bypassing.lock().is_empty());
    }

    #[test]
    fn a_partial_write_costs_the_next_open_its_cache_once() {
        let c = Caches::default();
        c.opened(2, 0, libc::O_RDWR, false);
        c.wrote(2, false, 0, 8192);
        assert!(c.opened(2, 0, libc::O_RDONLY, false).keep, "whole pages are up to date");
        c.wrote(2, false, 10, 4);
        c.released(2, 0, libc::O_RDWR);
        c.released(2, 0, libc::O_RDONLY);
        assert!(!c.opened(2, 0, libc::O_RDONLY, false).keep);
        assert!(c.opened(2, 0, libc::O_RDONLY, false).keep);
    }

    #[test]
    fn direct_writes_drop_pages_only_while_someone_caches() {
        let c = Caches::default();
        assert!(!c.wrote(2, true, 0, 4));
        c.opened(2, 0, libc::O_RDONLY, false);
        assert!(c.wrote(2, true, 0, 4));
        assert!(!c.wrote(2, false, 0, 4), "those pages are locked until the answer");
        c.released(2, 0, libc::O_RDONLY);
        assert!(!c.wrote(2, true, 0, 4));
        c.opened(2, 0, libc::O_RDWR | libc::O_DIRECT, false);
        assert!(c.wrote(2, true, 0, 4), "it may be mapped");
    }

    #[test]
    fn what_was_read_and_closed_beside_an_open_that_writes_directly_may_be_old() {
        const FAR: u64 = 1 << 30;
        for writeback in [true, false] {
            let c = Caches::new(writeback);
            let read = || {
                c.opened(2, 8, libc::O_RDONLY, false);
                c.read(2, PAGE_BYTES, 4096);
                c.released(2, 8, libc::O_RDONLY);
            };
            // The kernel drops these pages before the first write that it sends.
            read();
            c.opened(2, 7, libc::O_WRONLY, true);
            assert!(!c.wrote(2, true, PAGE_BYTES, 4096), "writeback {writeback}");
            // But not again before the further ones of one long call.
            read();
            let (cached, opens) = c.cached(2, &(PAGE_BYTES..FAR));
            assert!(cached, "somebody may map the old page: writeback {writeback}");
            assert!(c.wrote(2, true, PAGE_BYTES + 10, 4), "the old page stays: writeback {writeback}");
            // Others were not read.
            for at in [0, 2 * PAGE_BYTES, FAR] {
                assert!(!c.wrote(2, true, at, 4096) && c.cached(2, &(at..at + 4096)) == (false, opens));
            }
            c.opened(2, 9, libc::O_WRONLY, true);
            c.released(2, 7, libc::O_WRONLY);
            assert!(c.wrote(2, true, 0, FAR), "there still is one: writeback {writeback}");
            c.released(2, 9, libc::O_WRONLY);
            c.opened(2, 7, libc::O_WRONLY, true);
            assert!(!c.wrote(2, true, 0, FAR), "writeback {writeback}");
        }
    }

    #[test]
    fn a_shredded_scan_is_seen_and_random_reads_are_not() {
        let c = Caches::default();
        c.opened(2, 0, libc::O_RDWR, false);
        c.wrote(2, false, 1, 1);
        for page in [0, 700, 3, 400, 900, 1, 2, 3, 4, 5, 6, 5000] {
            assert_eq!(c.read(2, page * PAGE_BYTES, 4096), None);
        }
        for i in 0..20 {
            assert_eq!(c.read(2, i << 20, 1 << 20), None, "a scan by large reads");
        }
        for i in 0..7 {
            assert_eq!(c.read(2, (i * 3) * PAGE_BYTES, 4096), None);
        }
        assert_eq!(c.read(2, 21 * PAGE_BYTES, 8192), Some(23 * PAGE_BYTES));
        for i in 0..20 {
            assert_eq!(c.read(2, i * PAGE_BYTES, 4096), None, "said once until the next partial write");
        }
    }

    #[test]
    fn only_writable_cached_opens_can_be_dirty_and_nothing_is_kept_for_long() {
        let c = Caches::default();
        c.opened(2, 0, libc::O_RDWR, false);
        c.opened(3, 0, libc::O_RDONLY, false);
        c.opened(4, 0, libc::O_WRONLY, false);
        assert_eq!(c.perhaps_dirty(), [2]);
        assert!(c.is_perhaps_dirty(2) && !c.is_perhaps_dirty(3));
        c.wrote(2, false, 1, 1);
        c.released(2, 0, libc::O_RDWR);
        c.released(3, 0, libc::O_RDONLY);
        c.released(4, 0, libc::O_WRONLY);
        c.forgotten(2, || false);
        assert!(c.inodes.lock().is_empty());
    }

    #[test]
    fn pages_are_given_to_the_only_open_while_nothing_happens() {
        let c = Caches::new(true);
        let given = |changes| {
            let mut given = false;
            c.fill(2, changes, || given = true);
            given
        };
        assert_eq!(c.may_fill(2), None, "nobody has it open");
        c.opened(2, 0, libc::O_RDONLY, false);
        let changes = c.may_fill(2).unwrap();
        c.opened(2, 1, libc::O_WRONLY, true);
        assert!(c.may_fill(2).is_none() && !given(changes), "another open");
        c.released(2, 1, libc::O_WRONLY);
        assert!(!given(changes), "there was one");
        let changes = c.may_fill(2).unwrap();
        c.resized(2);
        assert!(!given(changes), "its size has changed");
        let changes = c.may_fill(2).unwrap();
        assert!(given(changes));
        assert_eq!(c.may_fill(2), None, "the kernel has them");
        c.released(2, 0, libc::O_RDONLY);
        c.forgotten(2, || false);
        c.opened(2, 0, libc::O_RDONLY, false);
        assert!(c.may_fill(2).is_some());
        c.wrote(2, false, 0, 4096);
        assert_eq!(c.may_fill(2), None, "a write has left some");
    }

    #[test]
    fn opens_and_changes_of_size_wait_while_pages_are_given() {
        let c = Caches::new(true);
        c.opened(2, 0, libc::O_RDONLY, false);
        let changes = c.may_fill(2).unwrap();
        let (begun, go) = (Barrier::new(3), Mutex::new(()));
        let done = AtomicU32::new(0);
        let held = go.lock();
        let count = || _ = done.fetch_add(1, Ordering::SeqCst);
        std::thread::scope(|s| {
            s.spawn(|| {
                c.fill(2, changes, || {
                    begun.wait();
                    drop(go.lock());
                    assert_eq!(done.load(Ordering::SeqCst), 0, "somebody did not wait");
                });
            });
            s.spawn(|| {
                begun.wait();
                c.opened(2, 1, libc::O_RDWR, false);
                count();
            });
            begun.wait();
            let resizing = s.spawn(|| {
                c.resized(2);
                count();
            });
            c.opened(3, 2, libc::O_RDWR, false); // another file does not wait
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            resizing.join().unwrap();
        });
        assert_eq!(done.into_inner(), 2);
    }
}
