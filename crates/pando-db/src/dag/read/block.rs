//! Blocks: sorted messages at hand, and entry runs through them.
//!
//! A block is a page seen from the root, or some points of a memtable.
//! An [`EntryRun`] is a piece of a block about which nothing else has anything to
//! say, so that it is walked entry by entry without comparing anything. A step
//! along an entry run allocates nothing and counts no reference: the key is put
//! together in a buffer that is used over and over, the value stays where it is.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    key::{Direction, Lens, join},
    merge::Merge,
    node::{PageRef, message::Msg, page::Page},
};

/// The way back of a [`Lens`], for one page: from a stored suffix to the key that the root shows. It removes `strip`,
/// which all visible suffixes begin with, and adds `prepend`. A lens goes from the root down to the keys of a node; a
/// page leaves out the prefix that its keys share, so it needs a map of its own.
#[derive(Debug, Clone)]
pub(crate) struct PageLens {
    strip: Bytes,
    prepend: Bytes,
}

impl PageLens {
    /// The map for `page`, which lies below a path whose map is `lens`.
    pub fn through(lens: &Lens, page: &PageRef) -> Result<Self> {
        if page.prefix.starts_with(&lens.prepend) {
            return Ok(Self { prepend: lens.invert_shared(&page.prefix), strip: Bytes::new() });
        }
        if lens.prepend.starts_with(&page.prefix) {
            return Ok(Self { prepend: lens.strip.clone(), strip: lens.prepend.slice(page.prefix.len()..) });
        }
        Err(Error::corrupt("node", 0, "a page has a prefix that no key of its range has"))
    }

    /// The prefixes that are put on and taken off, without their common suffix: equal for maps that do the same.
    pub fn shortest(&self) -> (Bytes, Bytes) {
        let Lens { strip, prepend } = Lens::new(self.prepend.clone(), self.strip.clone()).shortest();
        (strip, prepend)
    }

    /// Puts the key with this suffix into `out`.
    pub fn key_into(&self, suffix: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.prepend);
        out.extend_from_slice(suffix.get(self.strip.len()..).unwrap_or_default());
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Block {
    Page {
        page: Arc<Page>,
        seen: PageLens,
    },
    Points(Arc<Vec<(Bytes, Msg)>>),
    /// One pair that was computed from several sources; its key is that of the entry run.
    Resolved(Bytes),
}

impl Block {
    /// Index of the first entry at or above `key`, and whether it is equal.
    pub fn search(&self, key: &[u8]) -> (usize, bool) {
        match self {
            Block::Page { page, seen } => match key.strip_prefix(&seen.prepend[..]) {
                Some(rest) if seen.strip.is_empty() => page.search(rest),
                Some(rest) => page.search(&join(&seen.strip, rest)),
                None if *key < *seen.prepend => (0, false),
                None => (page.len(), false),
            },
            Block::Points(points) => match points.binary_search_by(|(k, _)| (**k).cmp(key)) {
                Ok(i) => (i, true),
                Err(i) => (i, false),
            },
            Block::Resolved(_) => (0, false),
        }
    }

    /// Puts the key of entry `i` into `out`.
    pub fn key_into(&self, i: usize, out: &mut Vec<u8>) {
        match self {
            Block::Page { page, seen } => seen.key_into(page.key(i), out),
            Block::Points(points) => {
                out.clear();
                out.extend_from_slice(&points[i].0);
            }
            Block::Resolved(_) => {}
        }
    }

    pub fn msg(&self, i: usize) -> Msg {
        match self {
            Block::Page { page, .. } => page.msg(i),
            Block::Points(points) => points[i].1.clone(),
            Block::Resolved(value) => Msg::Put(value.clone()),
        }
    }
}

/// A block and which of its entries are left.
#[derive(Debug, Clone)]
pub(crate) struct EntryRange {
    pub block: Block,
    pub left: Range<usize>,
}

impl EntryRange {
    /// The next entry from an end.
    pub fn next(&self, direction: Direction) -> Option<usize> {
        match direction {
            _ if self.left.is_empty() => None,
            Direction::Forward => Some(self.left.start),
            Direction::Backward => Some(self.left.end - 1),
        }
    }

    /// Takes the next entry from an end off.
    pub fn step(&mut self, direction: Direction) {
        match direction {
            Direction::Forward => self.left.start += 1,
            Direction::Backward => self.left.end -= 1,
        }
    }

    /// Takes off and gives the entries from an end up to, and without, `bound`.
    pub fn split_off(&mut self, direction: Direction, bound: Option<&[u8]>) -> EntryRange {
        let Range { start, end } = self.left;
        let (taken, left) = match (direction, bound) {
            (Direction::Forward, None) => (start..end, end..end),
            (Direction::Backward, None) => (start..end, start..start),
            (Direction::Forward, Some(bound)) => {
                let at = self.block.search(bound).0.clamp(start, end);
                (start..at, at..end)
            }
            (Direction::Backward, Some(bound)) => {
                let (at, found) = self.block.search(bound);
                let at = (at + usize::from(found)).clamp(start, end);
                (at..end, start..at)
            }
        };
        self.left = left;
        EntryRange { block: self.block.clone(), left: taken }
    }
}

/// Bytes between the entry that is taken and what the processor is asked to prefetch meanwhile.
const PREFETCH_DISTANCE_BYTES: usize = 768;
/// Bytes that are prefetched: two cache lines, more than most entries take.
const PREFETCH_BYTES: usize = 128;

/// Pairs that follow each other in one block, and the one that was taken last.
#[derive(Debug)]
pub(crate) struct EntryRun {
    range: EntryRange,
    key: Vec<u8>,
    /// Bytes of `key` that all keys of the entry run begin with.
    prefix_len: usize,
    /// Where the value is in the page of the entry run; `None`: it is in `own`.
    inside: Option<Range<usize>>,
    own: Bytes,
    /// Deleted keys that have been skipped so far, before this run too.
    skipped: u64,
}

impl Default for EntryRun {
    fn default() -> Self {
        let range = EntryRange { block: Block::Resolved(Bytes::new()), left: 0..0 };
        Self { range, key: Vec::new(), prefix_len: 0, inside: None, own: Bytes::new(), skipped: 0 }
    }
}

impl EntryRun {
    /// Goes on along other entries, alone in their range of keys.
    pub(crate) fn enter(&mut self, range: EntryRange) {
        self.range = range;
        self.key.clear();
        if let Block::Page { seen, .. } = &self.range.block {
            self.key.extend_from_slice(&seen.prepend);
        }
        self.prefix_len = self.key.len();
        self.inside = None;
        self.own = Bytes::new();
    }

    /// Goes on with one pair.
    pub(crate) fn enter_resolved(&mut self, key: &[u8], value: Bytes) {
        self.enter(EntryRange { block: Block::Resolved(value), left: 0..1 });
        self.key.extend_from_slice(key);
    }

    /// True if no entry is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.range.left.is_empty()
    }

    /// Takes the next pair from an end; `false` if there is none.
    #[inline]
    pub fn advance(&mut self, direction: Direction, merge: &dyn Merge) -> bool {
        while let Some(i) = self.range.next(direction) {
            self.range.step(direction);
            let Block::Page { page, seen } = &self.range.block else {
                match self.take_message(i, merge) {
                    true => return true,
                    false => continue,
                }
            };
            let entry = page.entry(i);
            let soon = match direction {
                Direction::Forward => entry.content.end + PREFETCH_DISTANCE_BYTES,
                Direction::Backward => {
                    entry.content.start.saturating_sub(PREFETCH_DISTANCE_BYTES + PREFETCH_BYTES)
                }
            };
            page.prefetch(soon, PREFETCH_BYTES);
            self.inside = Some(entry.content.clone());
            self.key.truncate(self.prefix_len);
            self.key.extend_from_slice(entry.key.get(seen.strip.len()..).unwrap_or_default());
            if entry.is_put() || self.take_message(i, merge) {
                return true;
            }
        }
        false
    }

    /// Takes entry `i`, which is no plain value in a page. No older message exists for its key, so this message alone
    /// gives the value. False if the key is deleted.
    #[inline(never)]
    fn take_message(&mut self, i: usize, merge: &dyn Merge) -> bool {
        if let Block::Points(points) = &self.range.block
            && let Some((key, _)) = points.get(i)
        {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.inside = None;
        match self.range.block.msg(i).into_value(merge) {
            Some(value) => {
                self.own = value;
                true
            }
            None => {
                self.skipped += 1;
                false
            }
        }
    }

    /// Counts a deleted key that was skipped before the entry run.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// Deleted keys that were skipped since this was asked last.
    pub(crate) fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// The key of the pair that was taken last.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Its value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match (&self.inside, &self.range.block) {
            (Some(content), Block::Page { page, .. }) => page.data().get(content.clone()).unwrap_or_default(),
            _ => &self.own,
        }
    }

    /// Its value, to keep: shares the memory of what it lies in.
    pub fn value_bytes(&self) -> Bytes {
        match (&self.inside, &self.range.block) {
            (Some(_), Block::Page { page, .. }) => page.data().slice_ref(self.value()),
            _ => self.own.clone(),
        }
    }
}
