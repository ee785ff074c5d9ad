//! Scan segments: a range of keys over which the path from the root does not
//! change, and the pairs in it, taken from both ends.
//!
//! The sources of a segment (tables, the layers on the path, the leaf) are merged as they are walked. As long as one
//! of them is alone, up to the next key of any other, its entries are an [`EntryRun`] and are walked without a
//! comparison; most of a store is such, since most of it lies in leaves. If several sources have the same key, their
//! messages are merged one by one: see [`ScanSegment::resolve`]. Range-upserts apply to keys without naming them:
//! they are applied there, for each source that has no point for the key; and a source below a range-upsert in the
//! segment never counts as alone ([`Winner::Alone`]), so that its entries are resolved too.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    dag::read::{
        block::EntryRun,
        source::{Io, MergeSource},
    },
    error::Result,
    key::Direction,
    merge::Merge,
    node::message::{Msg, Value},
};

pub(crate) struct ScanSegment {
    /// Newest first; the leaf, if any, is last.
    sources: Vec<MergeSource>,
    /// The newest source with updates: they change what is in those behind it.
    changing: Option<usize>,
    /// What was taken from the sources, by end.
    entry_runs: [EntryRun; 2],
}

/// The source that has the next key at one end.
enum Winner {
    Nobody,
    /// One source is alone up to the next key of another, if there is another.
    Alone(usize, Option<usize>),
    /// This source has the next key, about which other sources have messages, too.
    Tied(usize),
}

impl ScanSegment {
    pub(crate) fn new(sources: Vec<MergeSource>) -> Self {
        let changing = sources.iter().position(MergeSource::has_updates);
        Self { sources, changing, entry_runs: Default::default() }
    }

    /// The entry run that has just been asked for a pair from this end.
    pub fn entry_run(&self, end: Direction) -> &EntryRun {
        &self.entry_runs[end as usize]
    }

    /// Deleted keys that an end has skipped since this was asked last.
    pub fn take_skipped(&mut self, end: Direction) -> u64 {
        self.entry_runs[end as usize].take_skipped()
    }

    /// Takes the next pair from an end if it is in the entry run of that end.
    #[inline]
    pub fn walk(&mut self, direction: Direction, merge: &dyn Merge) -> bool {
        self.entry_runs[direction as usize].advance(direction, merge)
    }

    /// Takes the next pair from an end: the entry run that now has it, if there is one.
    pub(crate) fn advance(
        &mut self,
        direction: Direction,
        merge: &dyn Merge,
        io: &mut Io<'_>,
    ) -> Result<Option<Direction>> {
        loop {
            if self.walk(direction, merge) {
                return Ok(Some(direction));
            }
            if !self.find_entry_run(direction, merge, io)? {
                // Nothing lies between the entry runs: what the other end has taken is left.
                let other = direction.other();
                return Ok(self.entry_runs[other as usize].advance(direction, merge).then_some(other));
            }
        }
    }

    /// Goes on with the entry run that is next from an end; `false` if there is none.
    fn find_entry_run(&mut self, direction: Direction, merge: &dyn Merge, io: &mut Io<'_>) -> Result<bool> {
        loop {
            match self.compare_sources(direction, io)? {
                Winner::Nobody => return Ok(false),
                Winner::Alone(winner, next) => {
                    let bound = next.map(|i| self.sources[i].lend_key(direction));
                    let part = self.sources[winner].take_part(direction, bound.as_deref(), io);
                    if let (Some(i), Some(key)) = (next, bound) {
                        self.sources[i].return_key(direction, key);
                    }
                    let Some(part) = part? else { return Ok(false) };
                    self.entry_runs[direction as usize].enter(part);
                    return Ok(true);
                }
                Winner::Tied(first) => {
                    let key = self.sources[first].lend_key(direction);
                    let value = self.resolve(first, &key, direction, merge, io)?;
                    match value {
                        Some(value) => self.entry_runs[direction as usize].enter_resolved(&key, value),
                        None => self.entry_runs[direction as usize].skip(),
                    }
                    let found = !self.entry_runs[direction as usize].is_empty();
                    self.sources[first].return_key(direction, key);
                    if found {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Compares the next keys of all sources.
    fn compare_sources(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<Winner> {
        // A single source with updates changes nothing: its points include them.
        if self.sources.len() == 1 {
            return Ok(Winner::Alone(0, None));
        }
        let mut first: Option<usize> = None;
        let mut second: Option<usize> = None;
        let mut tied = false;
        for i in 0..self.sources.len() {
            if !self.sources[i].peek(direction, io)? {
                continue;
            }
            let key = self.sources[i].key(direction);
            let order = |other: Option<usize>| {
                let order = other.map(|other| key.cmp(self.sources[other].key(direction)))?;
                Some(if direction == Direction::Backward { order.reverse() } else { order })
            };
            match order(first) {
                None => first = Some(i),
                Some(std::cmp::Ordering::Less) => (first, second, tied) = (Some(i), first, false),
                Some(std::cmp::Ordering::Equal) => tied = true,
                Some(std::cmp::Ordering::Greater) => {
                    if order(second).is_none_or(|order| order.is_lt()) {
                        second = Some(i);
                    }
                }
            }
        }
        Ok(match first {
            None => Winner::Nobody,
            // An update that is older than a point without older points finds nothing to change.
            Some(first) if tied || self.changing.is_some_and(|newer| newer < first) => Winner::Tied(first),
            Some(first) => Winner::Alone(first, second),
        })
    }

    /// Takes the messages of all sources about `key`, which is next in `first` and perhaps in older ones, and
    /// computes its value.
    fn resolve(
        &mut self,
        first: usize,
        key: &[u8],
        direction: Direction,
        merge: &dyn Merge,
        io: &mut Io<'_>,
    ) -> Result<Value> {
        // Newest first, down to one below which nothing matters.
        let mut said: SmallVec<[Msg; 4]> = SmallVec::new();
        for i in self.changing.map_or(first, |newer| newer.min(first))..self.sources.len() {
            let source = &mut self.sources[i];
            // The key of the first one is lent out; what comes before it has other keys.
            let same =
                i == first || (i > first && source.peek(direction, io)? && source.key(direction) == key);
            let msg = if same { source.take_one(direction, io)? } else { source.update_at(key) };
            assert!(!same || msg.is_some(), "a source has nothing to say about a key that it has shown");
            // Below what is final nothing matters.
            said.extend(msg.filter(|_| said.last().is_none_or(|newer| !newer.is_final())));
        }
        Ok(said.into_iter().rev().fold(None::<Bytes>, |below, msg| msg.resolve(below, merge)))
    }
}
