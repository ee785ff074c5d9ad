//! Stretches: a range of keys over which the path from the root does not
//! change, and the pairs in it, taken from both ends.
//!
//! The sources of a stretch (tables, the layers on the path, the leaf) are
//! merged as they are walked. As long as one of them is alone, up to the next
//! key of any other, its entries are a [`Lane`] and are walked without a
//! comparison; most of a store is such, since most of it lies in leaves. Where
//! several speak of the same key, they are laid over each other one by one:
//! see [`Stretch::settle`]. Updates speak of keys without naming
//! them: they are heard there, for each source that has no point of the key;
//! and no feed below a source that has one in the stretch is alone
//! ([`Turn::Alone`]), so that its entries come to be settled too.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    dag::read::{
        block::Lane,
        source::{Feed, Io},
    },
    error::Result,
    key::Direction,
    merge::Merge,
    node::message::{Msg, Value},
};

pub(crate) struct Stretch {
    /// Newest first; the leaf, if any, is last.
    feeds: Vec<Feed>,
    /// The newest feed with updates: they change what is in those behind it.
    changing: Option<usize>,
    /// What was taken from the feeds, by end.
    lanes: [Lane; 2],
}

/// Whose turn it is at one end.
enum Turn {
    Nobody,
    /// One feed is alone up to the next key of another, if there is another.
    Alone(usize, Option<usize>),
    /// This feed has a key of which others have something to say.
    Tied(usize),
}

impl Stretch {
    pub(crate) fn new(feeds: Vec<Feed>) -> Self {
        let changing = feeds.iter().position(Feed::has_updates);
        Self { feeds, changing, lanes: Default::default() }
    }

    /// The lane that has just been asked for a pair from this end.
    pub fn lane(&self, end: Direction) -> &Lane {
        &self.lanes[end as usize]
    }

    /// Keys that an end has passed since this was asked last, because nothing is left of them.
    pub fn take_passed(&mut self, end: Direction) -> u64 {
        self.lanes[end as usize].take_passed()
    }

    /// Takes the next pair from an end if it is in the lane of that end.
    #[inline]
    pub fn walk(&mut self, direction: Direction, merge: &dyn Merge) -> bool {
        self.lanes[direction as usize].advance(direction, merge)
    }

    /// Takes the next pair from an end: the lane that now has it, if there is one.
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
            if !self.find_lane(direction, merge, io)? {
                // Nothing lies between the lanes: what the other end has taken is left.
                let other = direction.other();
                return Ok(self.lanes[other as usize].advance(direction, merge).then_some(other));
            }
        }
    }

    /// Goes on with the lane that is next from an end; `false` if there is none.
    fn find_lane(&mut self, direction: Direction, merge: &dyn Merge, io: &mut Io<'_>) -> Result<bool> {
        loop {
            match self.turn(direction, io)? {
                Turn::Nobody => return Ok(false),
                Turn::Alone(winner, next) => {
                    let bound = next.map(|i| self.feeds[i].lend_key(direction));
                    let part = self.feeds[winner].take_part(direction, bound.as_deref(), io);
                    if let (Some(i), Some(key)) = (next, bound) {
                        self.feeds[i].return_key(direction, key);
                    }
                    let Some(part) = part? else { return Ok(false) };
                    self.lanes[direction as usize].enter(part);
                    return Ok(true);
                }
                Turn::Tied(first) => {
                    let key = self.feeds[first].lend_key(direction);
                    let value = self.settle(first, &key, direction, merge, io)?;
                    match value {
                        Some(value) => self.lanes[direction as usize].enter_settled(&key, value),
                        None => self.lanes[direction as usize].pass(),
                    }
                    let found = !self.lanes[direction as usize].is_empty();
                    self.feeds[first].return_key(direction, key);
                    if found {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Compares the next keys of all feeds.
    fn turn(&mut self, direction: Direction, io: &mut Io<'_>) -> Result<Turn> {
        // A single feed with updates changes nothing: its points include them.
        if self.feeds.len() == 1 {
            return Ok(Turn::Alone(0, None));
        }
        let mut first: Option<usize> = None;
        let mut second: Option<usize> = None;
        let mut tied = false;
        for i in 0..self.feeds.len() {
            if !self.feeds[i].peek(direction, io)? {
                continue;
            }
            let key = self.feeds[i].key(direction);
            let order = |other: Option<usize>| {
                let order = other.map(|other| key.cmp(self.feeds[other].key(direction)))?;
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
            None => Turn::Nobody,
            // An update that is older than a point without older points finds nothing to change.
            Some(first) if tied || self.changing.is_some_and(|newer| newer < first) => Turn::Tied(first),
            Some(first) => Turn::Alone(first, second),
        })
    }

    /// Takes what the feeds say about `key`, which is next in `first` and perhaps in others behind it, and
    /// lays it over each other.
    fn settle(
        &mut self,
        first: usize,
        key: &[u8],
        direction: Direction,
        merge: &dyn Merge,
        io: &mut Io<'_>,
    ) -> Result<Value> {
        // Newest first, down to one below which nothing matters.
        let mut said: SmallVec<[Msg; 4]> = SmallVec::new();
        for i in self.changing.map_or(first, |newer| newer.min(first))..self.feeds.len() {
            let feed = &mut self.feeds[i];
            // The key of the first one is lent out; what comes before it has other keys.
            let same = i == first || (i > first && feed.peek(direction, io)? && feed.key(direction) == key);
            let msg = if same { feed.take_one(direction, io)? } else { feed.update_at(key) };
            assert!(!same || msg.is_some(), "a feed has nothing to say about a key that it has shown");
            // Below what is final nothing matters.
            said.extend(msg.filter(|_| said.last().is_none_or(|newer| !newer.is_final())));
        }
        Ok(said.into_iter().rev().fold(None::<Bytes>, |below, msg| msg.resolve(below, merge)))
    }
}
