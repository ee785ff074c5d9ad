//! The points of a memtable: a persistent map, or a sorted list.
//!
//! A table that is written to has a map. A table that is made of many messages at once, as from a log, has a list:
//! sorting the messages costs a fraction of inserting them into a map one by one, and the list takes less memory. The
//! first change turns the list into a map.
//!
//! Guarantees: both give the same to readers, and cloning is O(1). May use: keys and messages. No I/O.

use std::{ops::Bound, slice, sync::Arc};

use bytes::Bytes;
use imbl::{OrdMap, ordmap, shared_ptr::DefaultSharedPtr};

use crate::{
    key::{common_prefix, head},
    merge::Merge,
    node::message::Msg,
};

/// Messages about single keys, one for each, by key.
#[derive(Clone)]
pub(crate) enum Points {
    Map(OrdMap<Bytes, Msg>),
    /// Ascending; each key occurs once.
    Sorted(Arc<Vec<(Bytes, Msg)>>),
}

/// Walks through a range of points from both ends.
pub(crate) enum PointsIter<'a> {
    Map(ordmap::RangedIter<'a, Bytes, Msg, DefaultSharedPtr>),
    Sorted(slice::Iter<'a, (Bytes, Msg)>),
}

/// What the sort compares first: the bytes of the key behind the prefix that all keys share.
struct Ranked {
    head: u64,
    /// Index of the message, and its order in time.
    at: u32,
}

impl Points {
    pub fn new() -> Self {
        Points::Map(OrdMap::new())
    }

    /// The list that messages in order of time make: each is applied over those before it about the same key. There
    /// are at most `u32::MAX` of them.
    pub fn of(mut messages: Vec<(Bytes, Msg)>, merge: &dyn Merge) -> Self {
        let shared = match messages.split_first() {
            Some(((first, _), rest)) => {
                rest.iter().fold(first.len(), |len, (key, _)| common_prefix(&first[..len], key))
            }
            None => 0,
        };
        // Keys are scattered over the memory of the log. Their first bytes are copied here, so that most comparisons do
        // not read that memory again.
        let mut order: Vec<Ranked> = Vec::with_capacity(messages.len());
        order.extend((0..).zip(&messages).map(|(at, (key, _))| Ranked { head: head(&key[shared..]), at }));
        let rest = |place: &Ranked| &messages[place.at as usize].0[shared..];
        order.sort_unstable_by(|a, b| {
            let keys = a.head.cmp(&b.head).then_with(|| rest(a).cmp(rest(b)));
            keys.then(a.at.cmp(&b.at))
        });
        let mut sorted: Vec<(Bytes, Msg)> = Vec::with_capacity(messages.len());
        let mut before = None;
        for Ranked { head, at } in order {
            let (key, msg) = std::mem::replace(&mut messages[at as usize], (Bytes::new(), Msg::Delete));
            let is_alike = before.replace(head) == Some(head);
            match sorted.last_mut().filter(|(last, _)| is_alike && *last == key) {
                Some((_, older)) => {
                    let before = std::mem::replace(older, Msg::Delete);
                    *older = msg.over(before, merge);
                }
                None => sorted.push((key, msg)),
            }
        }
        sorted.shrink_to_fit();
        Points::Sorted(Arc::new(sorted))
    }

    pub fn len(&self) -> usize {
        match self {
            Points::Map(map) => map.len(),
            Points::Sorted(sorted) => sorted.len(),
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<&Msg> {
        match self {
            Points::Map(map) => map.get(key),
            Points::Sorted(sorted) => {
                let at = sorted.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
                sorted.get(at).map(|(_, msg)| msg)
            }
        }
    }

    pub fn range(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> PointsIter<'_> {
        match self {
            Points::Map(map) => PointsIter::Map(map.range::<_, [u8]>((from, to))),
            Points::Sorted(sorted) => {
                let first = match from {
                    Bound::Included(lo) => sorted.partition_point(|(key, _)| key[..] < *lo),
                    Bound::Excluded(lo) => sorted.partition_point(|(key, _)| key[..] <= *lo),
                    Bound::Unbounded => 0,
                };
                let (_, rest) = sorted.split_at(first);
                let len = match to {
                    Bound::Included(hi) => rest.partition_point(|(key, _)| key[..] <= *hi),
                    Bound::Excluded(hi) => rest.partition_point(|(key, _)| key[..] < *hi),
                    Bound::Unbounded => rest.len(),
                };
                PointsIter::Sorted(rest[..len].iter())
            }
        }
    }

    pub fn iter(&self) -> PointsIter<'_> {
        self.range((Bound::Unbounded, Bound::Unbounded))
    }

    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.iter().map(|(key, _)| key)
    }

    /// The points as a map, to be changed. A list is turned into a map first.
    pub fn as_map(&mut self) -> &mut OrdMap<Bytes, Msg> {
        if let Points::Sorted(sorted) = self {
            *self = Points::Map(sorted.iter().cloned().collect());
        }
        match self {
            Points::Map(map) => map,
            Points::Sorted(_) => unreachable!("a map was made of it"),
        }
    }
}

impl<'a> Iterator for PointsIter<'a> {
    type Item = (&'a Bytes, &'a Msg);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            PointsIter::Map(points) => points.next(),
            PointsIter::Sorted(points) => points.next().map(|(key, msg)| (key, msg)),
        }
    }
}

impl DoubleEndedIterator for PointsIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            PointsIter::Map(points) => points.next_back(),
            PointsIter::Sorted(points) => points.next_back().map(|(key, msg)| (key, msg)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::{
        dag::memtable::{Memtable, filter::KeyMark},
        store::log::LogPos,
    };

    /// A meaning of upserts in which their order counts: one is put behind the value, and an empty one deletes it.
    #[derive(Debug)]
    struct Suffixes;

    impl Merge for Suffixes {
        fn name(&self) -> &'static str {
            "behind"
        }

        fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
            (!op.is_empty()).then(|| [old.unwrap_or_default(), op].concat().into())
        }
    }

    fn message() -> impl Strategy<Value = (Bytes, Msg)> {
        let key = (0usize..12, prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..4))
            .prop_map(|(shared, rest)| [&b"something shared"[..shared], &rest].concat().into());
        let content = prop::collection::vec(any::<u8>(), 0..3).prop_map(Bytes::from);
        let msg = (0..3, content).prop_map(|(kind, content)| match kind {
            0 => Msg::Put(content),
            1 => Msg::Delete,
            _ => Msg::upsert(content),
        });
        (key, msg)
    }

    proptest! {
        #[test]
        fn a_table_of_many_messages_is_that_into_which_they_are_put(
            messages in prop::collection::vec(message(), 0..600),
            bounds in prop::collection::vec(message(), 2..20),
        ) {
            let start = (4, LogPos { pos: 0, chain: 0 });
            let last = (700, LogPos { pos: 9, chain: 1 });
            let mut one_by_one = Memtable::new(start.0, start.1);
            for (key, msg) in &messages {
                one_by_one.put(key.clone(), msg.clone(), &Suffixes);
                one_by_one.keep(key.len() + msg.len());
            }
            (one_by_one.msn, one_by_one.log_end) = last;
            let at_once = Memtable::of_points(start, messages.clone(), last, &Suffixes);
            prop_assert!(matches!(at_once.points, Points::Sorted(_)));
            prop_assert!(at_once.points.iter().eq(one_by_one.points.iter()));
            let numbers = |table: &Memtable| {
                (table.bytes(), table.kept, table.msn, table.first_msn, table.log_end, table.longest())
            };
            prop_assert_eq!(numbers(&at_once), numbers(&one_by_one));
            for (key, _) in messages.iter().chain(&bounds) {
                let mark = KeyMark::of(key);
                prop_assert_eq!(at_once.point(key, mark), one_by_one.point(key, mark));
            }
            let pairs = bounds.iter().zip(&bounds[1..]).map(|((a, _), (b, _))| (a.min(b), a.max(b)));
            for (lo, hi) in pairs.filter(|(lo, hi)| lo < hi) {
                let ends = [Bound::Included(&lo[..]), Bound::Excluded(&lo[..]), Bound::Unbounded];
                for (from, to) in ends.into_iter().flat_map(|from| {
                    [Bound::Included(&hi[..]), Bound::Excluded(&hi[..]), Bound::Unbounded].map(|to| (from, to))
                }) {
                    let (a, b) = (at_once.points.range((from, to)), one_by_one.points.range((from, to)));
                    prop_assert!(a.eq(b));
                    let (a, b) = (at_once.points.range((from, to)), one_by_one.points.range((from, to)));
                    prop_assert!(a.rev().eq(b.rev()));
                }
            }
            // What comes later is put into it as into any.
            let (mut later, mut expected) = (at_once.clone(), one_by_one);
            for (key, msg) in bounds {
                later.put(key.clone(), msg.clone(), &Suffixes);
                expected.put(key, msg, &Suffixes);
            }
            prop_assert!(later.points.iter().eq(expected.points.iter()));
            prop_assert_eq!(later.bytes(), expected.bytes());
        }
    }
}
