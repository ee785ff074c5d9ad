//! Writes and other changes of bytes past the page cache, and the storing of refused pages.
//!
//! The guarantees are those of `refused`. A page that is stored again is read from the page cache, by the server's
//! access to its own mount (`own_mount`); if the page cache then asks the server for the page, the page was dropped
//! and is lost. A server without that access makes the kernel drop refused pages, so that readers see what is stored.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pando_fs::FileHandle;

use crate::{
    coherence::MountState,
    past_pages::Announcement,
    quotas::of_pages,
    transport::{Answer, Context, Errno, Outcome, Write},
};

/// How long the server waits for a page that is locked.
const LOCKED_PAGE_PATIENCE: Duration = Duration::from_secs(2);

impl MountState {
    /// Makes a file durable, and notifies the policies for snapshots.
    pub(crate) fn sync_file(&self, ino: u64, datasync: bool) -> Outcome<()> {
        self.refused.may_sync(ino)?;
        self.fs.fsync(ino, datasync)?;
        self.automatic.synced(ino);
        Ok(())
    }

    /// The answer to a write of a program, or to one of pages by the kernel.
    pub(crate) fn answer_write(self: &Arc<Self>, c: &Context, w: &Write<'_>) -> Answer<u32> {
        let (ino, offset, len) = (w.ino, w.offset, w.data.len() as u64);
        let before = self.set_id_bits(ino);
        let outcome = match w.kill_suidgid {
            true => self.drop_privileges(c, ino),
            false => Ok(()),
        };
        let bypasses = w.direct && self.caches.bypasses(w.handle);
        let (outcome, announced) = self.noting_time(ino, bypasses, || match outcome {
            Ok(()) if w.direct => self.write_past_pages(w),
            Ok(()) => (self.write_data(w), None),
            Err(e) => (Err(e), None),
        });
        if bypasses {
            self.creators.wrote(w.handle, len);
        }
        // After a change by the server the kernel updates size and times by itself, but not the mode.
        let mode_changed = self.set_id_bits(ino) != before;
        let pages_stale = !w.writeback && self.caches.wrote(ino, w.direct, offset, len) && len > 0;
        // Only for writes that bypass the page cache: after cached ones the kernel sends an fsync.
        let durable = w.direct && w.flags & libc::O_DSYNC != 0 && outcome.is_ok();
        if !mode_changed && !pages_stale && !durable && announced.is_none() {
            return Answer::Now(outcome);
        }
        let shared = self.clone();
        if !mode_changed && !pages_stale && announced.is_none() {
            return Answer::here(move || {
                shared.sync_file(ino, true)?;
                outcome
            });
        }
        Answer::later(move || {
            let stored = outcome.map_or(0, u64::from);
            if let Some(announced) = announced {
                shared.end_announced(announced, (ino, offset, stored), outcome.err());
            } else if stored > 0 && pages_stale {
                shared.tell(|n| n.forget_pages(ino, offset, stored));
            }
            if mode_changed {
                shared.bits_dropped(ino);
            }
            if durable {
                shared.sync_file(ino, true)?;
            }
            outcome
        })
    }

    /// Writes past the page cache. If the kernel may hold pages of the file, the range is announced until the old pages
    /// are dropped.
    fn write_past_pages(self: &Arc<Self>, w: &Write<'_>) -> (Outcome<u32>, Option<Announcement>) {
        let range = w.offset..w.offset.saturating_add(w.data.len() as u64);
        self.announced_if(|cached| cached, w.ino, &range, || self.write_data(w))
    }

    /// Does `work`, which stores these bytes past the page cache. The bytes are announced first if `wanted` says so,
    /// which is told whether the kernel may have pages of them. If they were not announced and the file was opened
    /// meanwhile, an old page may have been written out already: then `work` is done once more, announced.
    fn announced_if<T>(
        self: &Arc<Self>,
        wanted: impl FnOnce(bool) -> bool,
        ino: u64,
        range: &Range<u64>,
        work: impl Fn() -> Outcome<T>,
    ) -> (Outcome<T>, Option<Announcement>) {
        let announce = || self.past_pages.announce(ino, range.clone());
        let (cached, opened) = self.caches.cached(ino, range);
        let announced = wanted(cached).then(announce);
        let outcome = work();
        let again = announced.is_none() && outcome.is_ok() && self.caches.cached(ino, range).1 != opened;
        match again.then(announce) {
            Some(announced) => (work(), Some(announced)),
            None => (outcome, announced),
        }
    }

    /// The answer to fallocate(2) with `mode`. The kernel drops the pages of a zeroed range, or zeroes parts of them,
    /// only after the answer. Until then a program may change other bytes of these pages by a mapping, so that the
    /// old bytes of the range are written out, too.
    pub(crate) fn answer_fallocate(
        self: &Arc<Self>,
        c: &Context,
        (ino, offset, len): (u64, u64, u64),
        mode: i32,
    ) -> Answer<()> {
        let bits = self.set_id_bits(ino);
        let caller = self.content_changer(c, ino);
        let zeroed = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let range = offset..offset.saturating_add(if zeroed { len } else { 0 });
        let allocate = || {
            let allocate = || self.fs.fallocate(&caller, ino, offset, len, mode).map_err(Errno::from);
            self.refused.around(ino, range.clone(), allocate)
        };
        let (outcome, announced) = self.noting_time(ino, !caller.reports_times, || match zeroed {
            true => self.announced_if(|_| self.caches.is_perhaps_dirty(ino), ino, &range, allocate),
            false => (allocate(), None),
        });
        self.answer_announced((ino, offset, len), bits, announced, outcome)
    }

    /// To be called before an open truncates a file. A kernel with a write-back cache writes no pages out until the
    /// open is answered. Without that cache it does, and a page that is stored after the truncation would extend the
    /// file again.
    pub(crate) fn announce_cut(self: &Arc<Self>, ino: u64) -> Option<Announcement> {
        let mapped = !self.caches.writeback() && self.caches.is_perhaps_dirty(ino);
        mapped.then(|| self.past_pages.announce(ino, 0..u64::MAX))
    }

    /// The answer of a call that has changed `len` bytes from `offset` on, or has failed, with its announcement. If
    /// the call has dropped set-id bits, which were `bits`, the kernel is notified before the answer.
    pub(crate) fn answer_announced<T: Send + 'static>(
        self: &Arc<Self>,
        (ino, offset, len): (u64, u64, u64),
        bits: u16,
        announced: Option<Announcement>,
        outcome: Outcome<T>,
    ) -> Answer<T> {
        let mode_changed = self.set_id_bits(ino) != bits;
        if !mode_changed && announced.is_none() {
            return Answer::Now(outcome);
        }
        let shared = self.clone();
        let work = move || {
            if let Some(announced) = announced {
                let stored = if outcome.is_ok() { len } else { 0 };
                let why = outcome.as_ref().err().copied();
                shared.end_announced(announced, (ino, offset, stored), why);
            }
            if mode_changed {
                shared.bits_dropped(ino);
            }
            outcome
        };
        if mode_changed { Answer::later(work) } else { Answer::here(work) }
    }

    /// Ends an announcement. Of its bytes, `stored` from `offset` on are stored. Not for a thread that reads requests.
    fn end_announced(
        self: &Arc<Self>,
        announced: Announcement,
        (ino, offset, stored): (u64, u64, u64),
        why: Option<Errno>,
    ) {
        // Bytes that are not stored stay in the pages.
        if stored > 0 {
            self.tell(|n| n.forget_pages(ino, offset, stored));
        }
        let left_out = announced.end();
        if !left_out.is_empty() {
            self.nothing_left_out(ino, offset, stored, &left_out, why);
        }
    }

    /// Called after an announced change at `offset`, during which bytes were left out of pages; the change has stored
    /// its first `stored` bytes. Pages of these that were changed meanwhile are dropped, so that readers see what is
    /// stored. Bytes that the change did not store are tried again from the pages.
    fn nothing_left_out(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        stored: u64,
        left_out: &[Range<u64>],
        why: Option<Errno>,
    ) {
        if stored > 0 {
            self.tell(|n| n.forget_pages(ino, offset, stored));
        }
        for part in left_out {
            let rest = part.start.max(offset.saturating_add(stored))..part.end;
            if !rest.is_empty() {
                self.refuse(ino, &rest, why.map_or(libc::ENOSPC, |e| e.0));
            }
        }
    }

    /// Notes that the kernel reads pages of a file, so it has dropped the refused ones among them. (Without access to
    /// its own mount the server makes the kernel drop them.)
    pub(crate) fn pages_asked_for(&self, ino: u64, offset: u64, size: u32) {
        if self.refused.any() && self.own_mount.get().is_some() {
            self.refused.asked_for(ino, &(offset..offset.saturating_add(size.into())));
        }
    }

    /// Stores the bytes of a WRITE, of a program or of the kernel.
    fn write_data(self: &Arc<Self>, w: &Write<'_>) -> Outcome<u32> {
        let store =
            |w: &Write<'_>| self.refused.around_part(w.ino, w.offset, w.writeback, || self.write_part(w));
        if !w.writeback {
            return store(w);
        }
        let all = w.data.len() as u32;
        let mut outcome = Ok(all);
        self.store_pages((w.ino, w.offset), w.data, |offset, data| {
            if outcome.is_ok() {
                outcome = store(&Write { offset, data, ..*w }).map(|_| all);
            }
            // Bytes that were left out are not noted, because another write stores them. The note is made under this
            // lock, because the next write that stores some of these bytes removes them from it.
            if let Err(e) = &outcome {
                self.refuse(w.ino, &(offset..offset.saturating_add(data.len() as u64)), e.0);
            }
            Ok(())
        })?;
        outcome
    }

    /// Calls `store` for those parts of pages of a file, from `offset` on, that are not announced.
    fn store_pages(
        &self,
        (ino, offset): (u64, u64),
        data: &[u8],
        mut store: impl FnMut(u64, &[u8]) -> Outcome<()>,
    ) -> Outcome<()> {
        let pages = offset..offset.saturating_add(data.len() as u64);
        self.past_pages.store_pages(ino, pages, |part| {
            let at = |byte: u64| usize::try_from(byte - offset).unwrap_or_default();
            store(part.start, data.get(at(part.start)..at(part.end)).unwrap_or_default())
        })
    }

    fn write_part(&self, w: &Write<'_>) -> Outcome<u32> {
        if w.writeback && self.caches.writeback() {
            let from = Instant::now();
            let outcome = self.write_pages(w.ino, w.offset, w.data);
            if let (Some(limit), Ok(_)) = (self.dirty_limit.get(), &outcome) {
                limit.took(w.data.len() as u64, from);
            }
            return outcome;
        }
        // For a page that was changed by a mapping, the kernel sends any handle of the file.
        let handle = FileHandle(if w.writeback { 0 } else { w.handle });
        match w.writeback || w.flags & libc::O_DIRECT != 0 {
            // For a partial write of pages the kernel reports EIO, and not the error that stopped the rest; for pages
            // it takes a part for all.
            true => Ok(self.fs.write_whole(handle, w.ino, w.offset, w.data)?),
            false => Ok(self.fs.write(handle, w.ino, w.offset, w.data, false)?),
        }
    }

    /// Stores pages of the kernel's write-back cache.
    fn write_pages(&self, ino: u64, offset: u64, data: &[u8]) -> Outcome<u32> {
        self.fs.write_pages(ino, offset, data).map_err(|e| Errno(of_pages(Errno::from(e).0)))
    }

    /// Notes that a page of the kernel was refused, and starts the thread that tries again to store it.
    fn refuse(self: &Arc<Self>, ino: u64, range: &Range<u64>, errno: i32) {
        self.refused.note(ino, range, errno);
        let shared = self.clone();
        self.refused.start(move || shared.try_again());
    }

    /// Stores pages that were refused before.
    pub(crate) fn write_again(&self, ino: u64, offset: u64, data: &[u8]) -> Outcome<()> {
        self.store_pages((ino, offset), data, |at, part| self.write_pages(ino, at, part).map(drop))
    }

    fn try_again(&self) {
        let mut read = |ino, range: &Range<u64>| match self.own_mount.get() {
            Some(mount) => mount.read(ino, range, LOCKED_PAGE_PATIENCE),
            // Without access to the mount the page is dropped, so that readers see at least what is stored.
            None => {
                self.tell(|n| n.forget_pages(ino, range.start, range.end - range.start));
                Ok(Vec::new())
            }
        };
        let mut write = |ino, offset, data: &[u8]| self.write_again(ino, offset, data);
        let tell_writers = || {
            for ino in self.refused.take_untold() {
                // The kernel may have forgotten the inode.
                let _gone = self.notify.get().map(|n| n.forget_attributes(ino));
            }
        };
        tell_writers();
        while self.refused.wait() {
            tell_writers();
            self.refused.round(&mut read, &mut write);
            if self.refused.is_done() {
                return;
            }
        }
    }
}
