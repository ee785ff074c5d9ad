//! Writes, and pages that the kernel has written out and for which there was no room.
//!
//! Guarantees what `refused` does. A page that is tried again is read from the page cache, by the server's own access
//! to its mount (`inside`); where the page cache then asks the server for the page, the page was dropped and is lost. A
//! server without that access has the kernel drop refused pages, so that readers see what is stored.

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
    /// Makes a file durable, and lets the policies for snapshots know.
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
        let time_before = bypasses.then(|| self.fs.modified(ino).ok());
        let (outcome, announced) = match outcome {
            Ok(()) if w.direct => self.write_past_pages(w),
            Ok(()) => (self.write_data(w), None),
            Err(e) => (Err(e), None),
        };
        if let Some(time_before) = time_before {
            self.creators.wrote(w.handle, len);
            if self.fs.modified(ino).ok() != time_before {
                self.times.wrote(ino, time_before);
            }
        }
        // After a change by the server the kernel updates size and times by itself, but not the mode.
        let mode_changed = self.set_id_bits(ino) != before;
        let pages_stale = !w.writeback && self.caches.wrote(ino, w.direct, offset, len) && len > 0;
        // Only for writes that bypass the page cache: after others the kernel sends an fsync.
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
            // Bytes that were not stored stay in the pages.
            if stored > 0 && (pages_stale || announced.is_some()) {
                shared.tell(|n| n.forget_pages(ino, offset, stored));
            }
            if let Some(announced) = announced {
                let left_out = announced.end();
                if !left_out.is_empty() {
                    shared.nothing_left_out(ino, offset, stored, &left_out, outcome.err());
                }
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
        let announce = || self.past_pages.announce(w.ino, range.clone());
        let (cached, opened) = self.caches.cached(w.ino, &range);
        let announced = cached.then(announce);
        let outcome = self.write_data(w);
        // The file may have been opened meanwhile, and an old page may have been written out already.
        let again = announced.is_none() && outcome.is_ok() && self.caches.cached(w.ino, &range).1 != opened;
        match again.then(announce) {
            Some(announced) => (self.write_data(w), Some(announced)),
            None => (outcome, announced),
        }
    }

    /// After an announced write at `offset`, during which pages in the ranges `left_out` were not stored. The write has
    /// stored its first `stored` bytes: pages there are dropped, so that readers see what is stored. The rest is tried
    /// again from its pages.
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
            let rest = part.start.max(offset + stored)..part.end;
            if !rest.is_empty() {
                self.refuse(ino, &rest, why.map_or(libc::ENOSPC, |e| e.0));
            }
        }
    }

    /// The kernel reads pages of a file, so it has dropped those of them that were refused. (Without access to its
    /// mount the server has them dropped itself.)
    pub(crate) fn pages_asked_for(&self, ino: u64, offset: u64, size: u32) {
        if self.refused.any() && self.way_in.get().is_some() {
            self.refused.asked_for(ino, &(offset..offset.saturating_add(size.into())));
        }
    }

    /// Writes what a program or the kernel gives.
    fn write_data(self: &Arc<Self>, w: &Write<'_>) -> Outcome<u32> {
        let range = w.offset..w.offset.saturating_add(w.data.len() as u64);
        let outcome = self.refused.around_part(w.ino, w.offset, w.writeback, || self.write_range(w));
        if let (true, Err(e)) = (w.writeback, &outcome) {
            self.refuse(w.ino, &range, e.0);
        }
        outcome
    }

    fn write_range(&self, w: &Write<'_>) -> Outcome<u32> {
        if !w.writeback {
            return self.write_part(w);
        }
        let pages = w.offset..w.offset.saturating_add(w.data.len() as u64);
        self.past_pages.store_pages(w.ino, pages, |part| {
            let at = |byte: u64| usize::try_from(byte - w.offset).unwrap_or_default();
            let data = w.data.get(at(part.start)..at(part.end)).unwrap_or_default();
            self.write_part(&Write { offset: part.start, data, ..*w }).map(drop)
        })?;
        Ok(w.data.len() as u32)
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
        // The handle of a mapping's page is a guess of the kernel.
        let handle = FileHandle(if w.writeback { 0 } else { w.handle });
        match w.writeback || w.flags & libc::O_DIRECT != 0 {
            // For a partial write of pages the kernel reports EIO, and not the error that stopped the rest; for pages
            // it takes a part for all.
            true => Ok(self.fs.write_whole(handle, w.ino, w.offset, w.data)?),
            false => Ok(self.fs.write(handle, w.ino, w.offset, w.data, false)?),
        }
    }

    /// Stores pages that the kernel has kept.
    fn write_pages(&self, ino: u64, offset: u64, data: &[u8]) -> Outcome<u32> {
        self.fs.write_pages(ino, offset, data).map_err(|e| Errno(of_pages(Errno::from(e).0)))
    }

    /// Notes that a page of the kernel's was refused, and has it tried again.
    fn refuse(self: &Arc<Self>, ino: u64, range: &Range<u64>, errno: i32) {
        self.refused.note(ino, range, errno);
        let shared = self.clone();
        self.refused.start(move || shared.try_again());
    }

    fn try_again(&self) {
        let mut read = |ino, range: &Range<u64>| match self.way_in.get() {
            Some(inside) => inside.read_apart(ino, range, LOCKED_PAGE_PATIENCE),
            // So readers see at least what is stored.
            None => {
                self.tell(|n| n.forget_pages(ino, range.start, range.end - range.start));
                Ok(Vec::new())
            }
        };
        let mut write = |ino, offset, data: &[u8]| self.write_pages(ino, offset, data).map(drop);
        let tell_writers = || {
            for ino in self.refused.take_untold() {
                // It may have left the kernel's memory.
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
