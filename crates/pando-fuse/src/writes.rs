//! Writes, and pages that the kernel has written out and that did not fit.
//!
//! Guarantees what `refused` does; a page that is tried again is read through the page cache, by the server's own way
//! into the mount. A server without that has the kernel drop such pages, so readers see what is stored. Uses
//! `coherence`, `refused` and `inside`.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use pando_fs::FileHandle;

use crate::{
    coherence::MountState,
    quotas::of_pages,
    transport::{Errno, Outcome, Write},
};

/// How long a page is waited for that somebody has locked.
const PATIENCE: Duration = Duration::from_secs(2);

impl MountState {
    /// Writes what a program or the kernel gives.
    pub(crate) fn write_data(self: &Arc<Self>, w: &Write<'_>) -> Outcome<u32> {
        let range = w.offset..w.offset.saturating_add(w.data.len() as u64);
        // Of another write a part may be done: what did not fit before is tried again with what is there then.
        let whole = if w.writeback && self.caches.writeback() { range.clone() } else { 0..0 };
        let outcome = self.refused.around(w.ino, whole, || self.write_range(w));
        if let (true, Err(e)) = (w.writeback, &outcome) {
            self.refuse(w.ino, &range, e.0);
        }
        outcome
    }

    fn write_range(&self, w: &Write<'_>) -> Outcome<u32> {
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
        match w.flags & libc::O_DIRECT != 0 {
            // Of a part that is written the kernel makes EIO, and what stopped the rest is not heard of.
            true => Ok(self.fs.write_whole(handle, w.ino, w.offset, w.data)?),
            false => Ok(self.fs.write(handle, w.ino, w.offset, w.data, false)?),
        }
    }

    /// Stores pages that the kernel has kept.
    fn write_pages(&self, ino: u64, offset: u64, data: &[u8]) -> Outcome<u32> {
        self.fs.write_pages(ino, offset, data).map_err(|e| Errno(of_pages(Errno::from(e).0)))
    }

    /// Notes that a page of the kernel's was refused, and sees that it is tried again.
    fn refuse(self: &Arc<Self>, ino: u64, range: &Range<u64>, errno: i32) {
        self.refused.note(ino, range, errno);
        let shared = self.clone();
        self.refused.start(move || shared.try_again());
    }

    fn try_again(&self) {
        let mut read = |ino, range: &Range<u64>| match self.way_in.get() {
            Some(inside) => inside.read_apart(ino, range, PATIENCE),
            // Then what readers see is at least what there is.
            None => {
                self.tell(|n| n.forget_pages(ino, range.start, range.end - range.start));
                Ok(Vec::new())
            }
        };
        let mut write = |ino, offset, data: &[u8]| self.write_pages(ino, offset, data).map(drop);
        while self.refused.wait() {
            self.refused.round(&mut read, &mut write);
            if self.refused.is_done() {
                return;
            }
        }
    }
}
