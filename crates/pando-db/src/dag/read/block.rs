//! Blocks: sorted messages at hand, and entry runs through them.
//!
//! A block is a page seen from the root, or some points of an in-memory table.
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

/// How the keys of a page look from the root: `cut`, which all of interest begin with, is taken off the
/// stored suffix, and `head` put on.
#[derive(Debug, Clone)]
pub(crate) struct KeyMap {
    head: Bytes,
    cut: Bytes,
}

impl KeyMap {
    /// The keys of `page`, which lies below a path that is `lens`.
    pub fn through(lens: &Lens, page: &PageRef) -> Result<Self> {
        if page.prefix.starts_with(&lens.pre) {
            return Ok(Self { head: lens.invert_shared(&page.prefix), cut: Bytes::new() });
        }
        if lens.pre.starts_with(&page.prefix) {
            return Ok(Self { head: lens.head.clone(), cut: lens.pre.slice(page.prefix.len()..) });
        }
        Err(Error::corrupt("node", 0, "a page has a prefix that no key of its range has"))
    }

    /// The prefixes that are put on and taken off, without their common suffix: equal for maps that do the same.
    pub fn shortest(&self) -> (Bytes, Bytes) {
        let Lens { head, pre } = Lens::new(self.head.clone(), self.cut.clone()).shortest();
        (head, pre)
    }

    /// Puts the key with this suffix into `out`.
    pub fn key_into(&self, suffix: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.head);
        out.extend_from_slice(suffix.get(self.cut.len()..).unwrap_or_default());
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Block {
    Page {
        page: Arc<Page>,
        seen: KeyMap,
    },
    Points(Arc<Vec<(Bytes, Msg)>>),
    /// One pair that several sources have a part in; its key is the entry run's.
    Settled(Bytes),
}

impl Block {
    /// Index of the first entry at or above `key`, and whether it is equal.
    pub fn search(&self, key: &[u8]) -> (usize, bool) {
        match self {
            Block::Page { page, seen } => match key.strip_prefix(&seen.head[..]) {
                Some(rest) if seen.cut.is_empty() => page.search(rest),
                Some(rest) => page.search(&join(&seen.cut, rest)),
                None if *key < *seen.head => (0, false),
                None => (page.len(), false),
            },
            Block::Points(points) => match points.binary_search_by(|(k, _)| (**k).cmp(key)) {
                Ok(i) => (i, true),
                Err(i) => (i, false),
            },
            Block::Settled(_) => (0, false),
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
            Block::Settled(_) => {}
        }
    }

    pub fn msg(&self, i: usize) -> Msg {
        match self {
            Block::Page { page, .. } => page.msg(i),
            Block::Points(points) => points[i].1.clone(),
            Block::Settled(value) => Msg::Put(value.clone()),
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

/// Bytes between the entry that is taken and what the processor is asked to fetch meanwhile, and how much
/// that is: two lines, more than most entries take.
const PREFETCH_DISTANCE_BYTES: usize = 768;
const PREFETCH_BYTES: usize = 128;

/// Pairs that follow each other in one block, and the one that was taken last.
#[derive(Debug)]
pub(crate) struct EntryRun {
    part: EntryRange,
    key: Vec<u8>,
    /// Bytes of `key` that all keys of the entry run begin with.
    head: usize,
    /// Where the value is in the page of the entry run; `None`: it is `apart`.
    inside: Option<Range<usize>>,
    apart: Bytes,
    /// Deleted keys that have been skipped so far, before this run too.
    passed: u64,
}

impl Default for EntryRun {
    fn default() -> Self {
        let part = EntryRange { block: Block::Settled(Bytes::new()), left: 0..0 };
        Self { part, key: Vec::new(), head: 0, inside: None, apart: Bytes::new(), passed: 0 }
    }
}

impl EntryRun {
    /// Goes on along other entries, alone in their range of keys.
    pub(crate) fn enter(&mut self, part: EntryRange) {
        self.part = part;
        self.key.clear();
        if let Block::Page { seen, .. } = &self.part.block {
            self.key.extend_from_slice(&seen.head);
        }
        self.head = self.key.len();
        self.inside = None;
        self.apart = Bytes::new();
    }

    /// Goes on with one pair.
    pub(crate) fn enter_settled(&mut self, key: &[u8], value: Bytes) {
        self.enter(EntryRange { block: Block::Settled(value), left: 0..1 });
        self.key.extend_from_slice(key);
    }

    /// True if no entry is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.part.left.is_empty()
    }

    /// Takes the next pair from an end; `false` if there is none.
    #[inline]
    pub fn advance(&mut self, direction: Direction, merge: &dyn Merge) -> bool {
        while let Some(i) = self.part.next(direction) {
            self.part.step(direction);
            let Block::Page { page, seen } = &self.part.block else {
                match self.take_apart(i, merge) {
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
            self.key.truncate(self.head);
            self.key.extend_from_slice(entry.key.get(seen.cut.len()..).unwrap_or_default());
            if entry.is_put() || self.take_apart(i, merge) {
                return true;
            }
        }
        false
    }

    /// The same for entry `i` if it is not a plain value in a page. No older message exists for its key, so this
    /// message alone gives the value.
    #[inline(never)]
    fn take_apart(&mut self, i: usize, merge: &dyn Merge) -> bool {
        if let Block::Points(points) = &self.part.block
            && let Some((key, _)) = points.get(i)
        {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        self.inside = None;
        match self.part.block.msg(i).into_value(merge) {
            Some(value) => {
                self.apart = value;
                true
            }
            None => {
                self.passed += 1;
                false
            }
        }
    }

    /// Counts a key that was passed before the entry run.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Keys that were passed since this was asked last.
    pub(crate) fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    /// The key of the pair that was taken last.
    #[inline]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Its value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match (&self.inside, &self.part.block) {
            (Some(content), Block::Page { page, .. }) => page.data().get(content.clone()).unwrap_or_default(),
            _ => &self.apart,
        }
    }

    /// Its value, to keep: shares the memory of what it lies in.
    pub fn value_bytes(&self) -> Bytes {
        match (&self.inside, &self.part.block) {
            (Some(_), Block::Page { page, .. }) => page.data().slice_ref(self.value()),
            _ => self.apart.clone(),
        }
    }
}
