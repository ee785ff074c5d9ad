//! The keys of records and of data that differ, as one sequence of paths.
//!
//! Guarantees: each path comes once, in the order of keys; skipped parts are not read.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::AtomicBool},
};

use bytes::Bytes;
use pando_db::{Change, Diff, Snapshot};

use crate::{error::Result, path};

/// Bytes of a number in a key: of a block at its end, of a linked file at the beginning of its path.
pub(crate) const NUMBER_BYTES: usize = 8;
/// Most directories whose data is skipped at once, a count; for others the data is skipped file by file.
const MAX_BARE_DIRS: usize = 1 << 16;
/// Differences, a count, that are read and dropped before the rest of a skipped range is skipped: a skip costs a
/// descent from the root.
const FEW_DIFFERENCES: usize = 16;
/// Prefixes, a count, that are kept before those behind the position are dropped.
const KEPT_PREFIXES: usize = 1 << 10;

/// A difference of two prefixes, with one step of looking ahead.
pub(crate) struct Ahead {
    diff: Diff,
    next: Option<Change>,
    /// Keys below this one are left out.
    from: Option<Bytes>,
}

impl Ahead {
    pub(crate) fn new(view: &Snapshot, (before, after): (&[u8], &[u8])) -> Result<Self> {
        Ok(Self { diff: view.diff(before, view, after)?, next: None, from: None })
    }

    /// Ends when `stop` is set.
    pub(crate) fn stop_on(self, stop: &Arc<AtomicBool>) -> Self {
        Self { diff: self.diff.stop_on(stop), ..self }
    }

    /// The key of the next difference.
    pub(crate) fn peek(&mut self) -> Result<Option<Bytes>> {
        let mut passed = 0;
        while self.next.is_none()
            && let Some(next) = self.diff.next().transpose()?
        {
            match &self.from {
                Some(from) if next.key < *from => {
                    passed += 1;
                    if passed == FEW_DIFFERENCES {
                        self.diff.seek(from);
                    }
                }
                _ => self.next = Some(next),
            }
        }
        Ok(self.next.as_ref().map(|change| change.key.clone()))
    }

    pub(crate) fn take(&mut self) -> Option<Change> {
        self.next.take()
    }

    /// Continues with the first difference at or above `key`.
    pub(crate) fn skip_to(&mut self, key: &[u8]) {
        if self.next.as_ref().is_none_or(|change| change.key < key) {
            self.next = None;
            if self.from.as_ref().is_none_or(|from| **from < *key) {
                self.from = Some(Bytes::copy_from_slice(key));
            }
        }
    }
}

/// Prefixes of which none lies in another.
struct Prefixes {
    all: BTreeSet<Bytes>,
    /// The number of prefixes at which those behind the position are dropped.
    purge: usize,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { all: BTreeSet::new(), purge: KEPT_PREFIXES }
    }
}

impl Prefixes {
    /// Adds a prefix while the walk is at `at`.
    fn add(&mut self, at: &[u8], prefix: &[u8]) {
        if self.all.len() >= self.purge {
            self.all.retain(|p| &p[..] > at || at.starts_with(p));
            self.purge = KEPT_PREFIXES.max(self.all.len() * 2);
        }
        self.all.insert(Bytes::copy_from_slice(prefix));
    }

    /// The prefix that `path` lies in.
    fn around(&self, path: &[u8]) -> Option<Bytes> {
        let below = (std::ops::Bound::Unbounded, std::ops::Bound::Included(path));
        self.all.range::<[u8], _>(below).next_back().filter(|p| path.starts_with(p)).cloned()
    }
}

/// A place at which something differs.
pub(crate) enum Spot {
    /// An entry, with its record on both sides if that differs, and whether its data does.
    Entry { path: Bytes, records: Option<(Option<Bytes>, Option<Bytes>)>, data: bool },
    /// Linked files of the lineage whose root has this contents prefix.
    Links(Bytes),
}

/// The differences below two directories.
pub(crate) struct DiffStream {
    meta: Ahead,
    /// `None` if only records are compared.
    data: Option<Ahead>,
    skipped: Prefixes,
    bare: Prefixes,
    at: Bytes,
    ended: bool,
}

/// The first key behind those that begin with a path or contents prefix, which end in a zero.
fn behind(prefix: &[u8]) -> Bytes {
    path::behind(prefix).unwrap_or_default()
}

impl DiffStream {
    /// The differences of the directories with these contents prefixes, from the volume.
    pub(crate) fn new(view: &Snapshot, (before, after): (&[u8], &[u8]), data: bool) -> Result<Self> {
        let meta = Ahead::new(view, (&path::meta(before), &path::meta(after)))?;
        let data = data.then(|| Ahead::new(view, (&path::data(before), &path::data(after)))).transpose()?;
        let (skipped, bare) = (Prefixes::default(), Prefixes::default());
        Ok(Self { meta, data, skipped, bare, at: Bytes::new(), ended: false })
    }

    /// Ends when `stop` is set, however much is equal.
    pub(crate) fn stop_on(self, stop: &Arc<AtomicBool>) -> Self {
        let data = self.data.map(|ahead| ahead.stop_on(stop));
        Self { meta: self.meta.stop_on(stop), data, ..self }
    }

    /// Skips everything under a contents prefix; with an empty one, everything that is left.
    pub(crate) fn skip(&mut self, contents: &[u8]) {
        if contents.is_empty() {
            self.ended = true;
            return;
        }
        self.skipped.add(&self.at, contents);
    }

    /// Skips the data under a contents prefix, all of which is on one side only.
    pub(crate) fn skip_data(&mut self, contents: &[u8]) {
        if self.data.is_some() && self.bare.all.len() < MAX_BARE_DIRS && self.bare.around(contents).is_none()
        {
            self.bare.add(&self.at, contents);
        }
    }

    /// The next place.
    pub(crate) fn next(&mut self) -> Result<Option<Spot>> {
        while !self.ended {
            let meta = self.meta.peek()?;
            if let Some(key) = &meta {
                if key.is_empty() {
                    self.meta.take(); // the record of a root, which is its own entry
                    continue;
                }
                if let Some(prefix) = self.skipped.around(key) {
                    self.meta.skip_to(&behind(&prefix));
                    continue;
                }
            }
            let mut data = None;
            if let Some(ahead) = &mut self.data
                && let Some(key) = ahead.peek()?
            {
                let path = key.slice(..key.len().saturating_sub(NUMBER_BYTES));
                if path.is_empty() {
                    ahead.take();
                    continue;
                }
                if let Some(prefix) = self.skipped.around(&path).or_else(|| self.bare.around(&path)) {
                    ahead.skip_to(&behind(&prefix));
                    continue;
                }
                data = Some(path);
            }
            let Some(path) = meta.iter().chain(&data).min().cloned() else { return Ok(None) };
            self.at = path.clone();
            let root = path::root_below(&path, 0).unwrap_or_default().len();
            if path::is_of_links(&path) {
                let root = path.slice(..root);
                let end = path::behind_links(&root);
                self.meta.skip_to(&end);
                if let Some(ahead) = &mut self.data {
                    ahead.skip_to(&end);
                }
                return Ok(Some(Spot::Links(root)));
            }
            let mut records = None;
            if meta.as_ref() == Some(&path) {
                records = self.meta.take().map(|change| (change.before, change.after));
            }
            let with_data = data.as_ref() == Some(&path);
            if with_data && let Some(ahead) = &mut self.data {
                ahead.skip_to(&behind(&path));
            }
            return Ok(Some(Spot::Entry { path, records, data: with_data }));
        }
        Ok(None)
    }
}
