//! Answers to READDIR and READDIRPLUS.
//!
//! The kernel holds the lock of the directory over such a request, and no entry is made or removed until it is
//! answered. So the answer is short where entries come and go between two requests, and as long as the kernel takes it
//! elsewhere.

use pando_fs::DirHandle;

use crate::{
    server::Server,
    transport::{DirSink, Outcome},
};

/// Bytes of a directory entry with attributes, at least; without them.
const PLUS_ENTRY: usize = 152;
const PLAIN_ENTRY: usize = 32;
/// Entries of an answer about a directory that others change meanwhile, a count: with attributes, and without. Either
/// takes about as long as two creates.
const FEW_PLUS_ENTRIES: usize = 64;
const FEW_PLAIN_ENTRIES: usize = 256;

impl Server {
    /// Entries without attributes.
    pub(super) fn list(
        &self,
        handle: DirHandle,
        ino: u64,
        cookie: u64,
        sink: &mut dyn DirSink,
    ) -> Outcome<()> {
        let most = self.most(ino, FEW_PLAIN_ENTRIES).min(sink.capacity() / PLAIN_ENTRY);
        let mut given = false;
        let listed = self.fs().readdir_names(handle, ino, cookie, most, |e| {
            let fits = sink.add(e.ino, e.kind, e.name, e.cookie, None);
            given |= fits;
            fits
        });
        if given {
            self.shared.listings.listed(ino, cookie != 0, false);
        }
        match listed {
            // The next request meets the error again.
            Err(e) if !given => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Entries with attributes. What fits is not known, so they are fetched as they go: references taken in vain cost.
    pub(super) fn list_with_attributes(
        &self,
        handle: DirHandle,
        ino: u64,
        cookie: u64,
        sink: &mut dyn DirSink,
    ) -> Outcome<()> {
        let (mut from, mut left) = (cookie, self.most(ino, FEW_PLUS_ENTRIES));
        loop {
            let wanted = left.min(sink.capacity() / PLUS_ENTRY);
            let entries = match self.fs().readdir_plus(handle, ino, from, wanted) {
                Ok(entries) => entries,
                // The entries before the error are counted already, and are returned; the next request meets the
                // error again.
                Err(_) if from != cookie => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            let Some(last) = entries.last() else { return Ok(()) };
            self.shared.listings.listed(ino, cookie != 0, true);
            from = last.cookie;
            left -= entries.len();
            let (mut room, ended) = (true, entries.len() < wanted);
            for e in entries {
                // An entry whose time the kernel does not have is looked up when a program asks for its attributes.
                let stale = self.shared.times.is_stale(e.ino);
                let counted = e.name != "." && e.name != ".." && !stale;
                if stale {
                    self.fs().forget(e.ino, 1);
                }
                room = room && sink.add(e.ino, e.kind, &e.name, e.cookie, counted.then_some(&e.attr));
                if !room && counted {
                    self.fs().forget(e.ino, 1);
                }
            }
            if !room || ended || left == 0 {
                return Ok(());
            }
        }
    }

    /// Entries that one answer may have: `few` if entries of the directory came or went lately.
    fn most(&self, ino: u64, few: usize) -> usize {
        if self.shared.listings.takes_short(ino) { few } else { usize::MAX }
    }
}
