//! What is done with a part of two sides: keys that may differ are resolved on both, in order.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    dag::read::{
        diff::{
            above::{Above, MessagesAbove},
            side::Side,
        },
        readahead::ScanReadahead,
        scan::{Descent, FoundSource},
        segment::ScanSegment,
        source::{Io, MergeSource},
    },
    error::Result,
    key::{Direction, Span, join},
    merge::Merge,
    node::message::{Msg, Value},
    store::pager::Pager,
};

const FORWARD: Direction = Direction::Forward;

/// A key without its prefix that has another value on one side than on the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub key: Bytes,
    pub before: Value,
    pub after: Value,
}

/// Says whether to go on: its error ends the difference.
pub(crate) type GoOn<'a> = dyn Fn() -> Result<()> + 'a;

/// What is left to be done in a part.
pub(super) enum DiffWork {
    Nothing,
    /// Keys that some pages name may differ, and no others.
    Some(Box<Named>),
    /// Every key may differ.
    All(Box<[SideWalk; 2]>),
}

impl DiffWork {
    /// All keys of a part in which both descents have ended.
    pub fn all(down: [Descent<'_, '_>; 2]) -> Self {
        DiffWork::All(Box::new(down.map(|side| SideWalk {
            segment: ScanSegment::new(side.merge_sources()),
            readahead: ScanReadahead::default(),
            at_pair: false,
        })))
    }

    /// Keys of a part that not only shared pages name.
    pub fn some(down: &[Descent<'_, '_>; 2], above: Above, is_end: bool) -> Self {
        let sources = [0, 1].map(|i| {
            let pieces = above.pieces(i).into_iter();
            pieces.filter_map(|(source, piece)| piece_source(&down[i], source, piece)).collect()
        });
        let alone = !above.has_changes();
        DiffWork::Some(Box::new(Named {
            sources,
            shared: above.shared_keys(),
            alone,
            is_end,
            readahead: ScanReadahead::default(),
        }))
    }

    /// The next difference of the part. Asks before each pair whether to `go_on`.
    pub fn next(
        &mut self,
        sides: &[Side; 2],
        (pager, merge): (&Pager, &dyn Merge),
        go_on: &GoOn<'_>,
    ) -> Result<Option<Difference>> {
        match self {
            DiffWork::Nothing => Ok(None),
            DiffWork::Some(named) => named.next(sides, (pager, merge), go_on),
            DiffWork::All(walks) => next_of(walks, (pager, merge), go_on),
        }
    }
}

fn piece_source(side: &Descent<'_, '_>, source: usize, piece: MessagesAbove) -> Option<MergeSource> {
    match (side.sources.get(source)?, piece) {
        (FoundSource::Table(table, lens), MessagesAbove::Table) => {
            let local = lens.apply_span(&side.segment);
            Some(MergeSource::of_points((*table).clone(), lens.clone(), local))
        }
        (FoundSource::Run(at, lens), MessagesAbove::Pages(pages)) => {
            let local = lens.apply_span(&side.segment);
            Some(MergeSource::of_pages(at.clone(), lens.clone(), local, pages))
        }
        _ => None,
    }
}

/// The pairs of one side.
pub(super) struct SideWalk {
    segment: ScanSegment,
    readahead: ScanReadahead,
    /// There is a pair that was not compared yet.
    at_pair: bool,
}

impl SideWalk {
    /// Makes sure that a pair is at hand; `false` if there is none.
    fn fill(&mut self, pager: &Pager, merge: &dyn Merge) -> Result<bool> {
        if !self.at_pair {
            let mut io = Io { pager, readahead: &mut self.readahead };
            self.at_pair = self.segment.advance(FORWARD, merge, &mut io)?.is_some();
        }
        Ok(self.at_pair)
    }

    fn key(&self) -> &[u8] {
        self.segment.entry_run(FORWARD).key()
    }

    fn value(&self) -> &[u8] {
        self.segment.entry_run(FORWARD).value()
    }

    /// Takes the pair.
    fn take(&mut self) -> (Bytes, Value) {
        self.at_pair = false;
        let pair = self.segment.entry_run(FORWARD);
        (Bytes::copy_from_slice(pair.key()), Some(pair.value_bytes()))
    }
}

fn next_of(
    [a, b]: &mut [SideWalk; 2],
    (pager, merge): (&Pager, &dyn Merge),
    go_on: &GoOn<'_>,
) -> Result<Option<Difference>> {
    loop {
        go_on()?;
        let order = match (a.fill(pager, merge)?, b.fill(pager, merge)?) {
            (false, false) => return Ok(None),
            (true, false) => std::cmp::Ordering::Less,
            (false, true) => std::cmp::Ordering::Greater,
            (true, true) => a.key().cmp(b.key()),
        };
        if order.is_eq() && a.value() == b.value() {
            (a.at_pair, b.at_pair) = (false, false);
            continue;
        }
        let before = order.is_le().then(|| a.take());
        let after = order.is_ge().then(|| b.take());
        let (before_key, before) = before.unzip();
        let (after_key, after) = after.unzip();
        let key = before_key.or(after_key).unwrap_or_default();
        return Ok(Some(Difference { key, before: before.flatten(), after: after.flatten() }));
    }
}

/// The keys that messages of one side name, above a place that both share.
pub(super) struct Named {
    /// Newest first.
    sources: [Vec<MergeSource>; 2],
    /// Where shared pages may name the same keys.
    shared: Vec<Span>,
    /// No change of a range is about the part.
    alone: bool,
    /// Below there is nothing.
    is_end: bool,
    readahead: ScanReadahead,
}

/// What one side says about a key, newest first, down to what is final.
type Messages = SmallVec<[Msg; 4]>;

impl Named {
    fn next(
        &mut self,
        sides: &[Side; 2],
        (pager, merge): (&Pager, &dyn Merge),
        go_on: &GoOn<'_>,
    ) -> Result<Option<Difference>> {
        while let Some((key, [a, b])) = self.take(pager)? {
            go_on()?;
            let complete = self.alone && !self.names(&key);
            if complete && a == b {
                continue;
            }
            let resolve = |side: &Side, said: Messages| match complete
                && (self.is_end || said.last().is_some_and(Msg::is_final))
            {
                true => {
                    Ok(said.into_iter().rev().fold(None::<Bytes>, |below, msg| msg.resolve(below, merge)))
                }
                false => side.view.get(&join(&side.prefix, &key), pager, merge),
            };
            let (before, after) = (resolve(&sides[0], a)?, resolve(&sides[1], b)?);
            if before != after {
                return Ok(Some(Difference { key, before, after }));
            }
        }
        Ok(None)
    }

    /// True if a shared page may say something about the key.
    fn names(&self, key: &[u8]) -> bool {
        let i = self.shared.partition_point(|span| *span.lo <= *key);
        i.checked_sub(1).and_then(|i| self.shared.get(i)).is_some_and(|span| span.is_above(key))
    }

    /// Takes the next key, and what both sides say about it.
    fn take(&mut self, pager: &Pager) -> Result<Option<(Bytes, [Messages; 2])>> {
        let mut io = Io { pager, readahead: &mut self.readahead };
        let mut least: Option<Vec<u8>> = None;
        for source in self.sources.iter_mut().flatten() {
            if source.peek(FORWARD, &mut io)?
                && least.as_ref().is_none_or(|key| source.key(FORWARD) < &key[..])
            {
                least = Some(source.key(FORWARD).to_vec());
            }
        }
        let Some(key) = least.map(Bytes::from) else { return Ok(None) };
        let mut said = [Messages::new(), Messages::new()];
        for (sources, said) in self.sources.iter_mut().zip(&mut said) {
            for source in sources {
                if source.peek(FORWARD, &mut io)? && source.key(FORWARD) == key {
                    let msg = source.take_one(FORWARD, &mut io)?;
                    // Below what is final nothing matters.
                    said.extend(msg.filter(|_| said.last().is_none_or(|newer: &Msg| !newer.is_final())));
                }
            }
        }
        Ok(Some((key, said)))
    }
}
