//! Cursors and snapshots: consistent reads that last as long as one holds them.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;

use crate::{
    dag::read::{block::EntryRun, readahead::ScanReadahead, scan::Scanner, segment::ScanSegment, view::View},
    db::engine::{Engine, skip_ranges::MIN_PASSED_KEYS},
    error::Result,
    key::{Direction, Span, behind},
};

/// A consistent view of the store that later changes do not affect: it shows every write that had returned before it
/// was taken, and none that began later.
///
/// It may be moved to another thread and used by several at once (it is `Send` and `Sync`). While a snapshot exists,
/// nothing that it can reach is freed, and the store stays open and its file locked. In memory it holds what has been
/// replaced since, of the memtable and of the translation table: next to nothing at first, some 100 KB each were
/// measured where thousands are held beside writes all over a store. No budget limits that.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) engine: Arc<Engine>,
    pub(crate) view: Arc<View>,
}

impl Snapshot {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.view.get(key, &self.engine.pager, &*self.engine.merge)
    }

    /// The pairs in `[lo, hi)` (`None`: no upper bound), in order, from either end.
    pub fn range(&self, lo: &[u8], hi: Option<&[u8]>) -> Cursor {
        self.clone().into_range(lo, hi)
    }

    /// The pairs whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: &[u8]) -> Cursor {
        self.clone().into_prefix(prefix)
    }

    pub(crate) fn into_range(self, lo: &[u8], hi: Option<&[u8]>) -> Cursor {
        let range = Span::new(Bytes::copy_from_slice(lo), hi.map(Bytes::copy_from_slice));
        Cursor {
            snapshot: self,
            rest: Some(range.clone()).filter(|r| !r.is_empty()),
            bounds: None,
            range,
            behind: None,
            segments: [None, None],
            readahead: ScanReadahead::default(),
        }
    }

    pub(crate) fn into_prefix(self, prefix: &[u8]) -> Cursor {
        self.into_range(prefix, crate::key::successor(prefix).as_deref())
    }
}

/// A pair that a cursor lends.
pub type PairRef<'a> = (&'a [u8], &'a [u8]);

/// The pairs of a range in key order, as of the moment the cursor was made: later writes do not appear in it, those
/// of the same thread neither. A cursor may be moved to another thread (it is `Send`). While it exists, nothing of
/// its range is freed, and the store stays open.
///
/// There are two ways to take them, which may be mixed: [`Cursor::next_ref`] and [`Cursor::next_back_ref`] lend a
/// pair until the next call, and mostly allocate nothing; as a [`DoubleEndedIterator`] a cursor gives owned pairs.
/// Both ways take pairs from the low end or from the high end, and the cursor ends when the two ends meet. It also
/// ends after an error, unless [`Cursor::skip_unreadable`] is called.
///
/// ```
/// # use std::sync::Arc;
/// # use pando_db::{CreateOptions, Db, Options, device::MemDevice};
/// # let device = Arc::new(MemDevice::new(64 << 20));
/// # Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
/// # let db = Db::open(device, Options::default())?;
/// db.put("tree/aspen", "1")?;
/// db.put("tree/oak", "2")?;
/// let mut cursor = db.prefix(b"tree/");
/// while let Some((key, value)) = cursor.next_ref()? {
///     println!("{} = {}", key.escape_ascii(), value.escape_ascii());
/// }
/// let last = db.prefix(b"tree/").next_back().transpose()?;
/// assert_eq!(last, Some(("tree/oak".into(), "2".into())));
/// # Ok::<(), pando_db::Error>(())
/// ```
///
/// Memory: besides the cache, some pages of each node on the path from the root, and up to 8 MiB of read-ahead.
pub struct Cursor {
    snapshot: Snapshot,
    /// What it was made for.
    range: Span,
    /// Where it began last, if not with all of its range.
    bounds: Option<Box<Span>>,
    /// What neither end has come to.
    rest: Option<Span>,
    /// After an error: the keys that could not be read, and the end of the cursor that met them.
    behind: Option<Box<(Span, Direction)>>,
    /// Where the ends are, by [`Direction`].
    segments: [Option<Box<ScanSegment>>; 2],
    readahead: ScanReadahead,
}

impl Cursor {
    /// The next pair from the low end, lent until the next call.
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<PairRef<'_>>> {
        Ok(self.advance(Direction::Forward)?.map(|entry_run| (entry_run.key(), entry_run.value())))
    }

    /// The next pair from the high end, lent until the next call.
    #[inline]
    pub fn next_back_ref(&mut self) -> Result<Option<PairRef<'_>>> {
        Ok(self.advance(Direction::Backward)?.map(|entry_run| (entry_run.key(), entry_run.value())))
    }

    /// Restarts the cursor with the pairs of its range from `key` on, including those that were taken before: the
    /// next pair from the low end is the first one at or above `key`.
    ///
    /// Cost: none now, and one search from the root when the next pair is taken.
    pub fn seek(&mut self, key: &[u8]) {
        let from = Span::new(Bytes::copy_from_slice(key), None);
        self.restart(from);
    }

    /// Restarts the cursor with the pairs of its range below `key`, including those that were taken before: the next
    /// pair from the high end is the last one below `key`. Cost as [`Cursor::seek`].
    pub fn seek_back(&mut self, key: &[u8]) {
        let below = Span::new(Bytes::new(), Some(Bytes::copy_from_slice(key)));
        self.restart(below);
    }

    /// Says that all of the range will be taken, from the low end: read-ahead has its full size from the first
    /// request on, and does not grow as the cursor advances. Call it before the first pair is taken.
    ///
    /// Cost: none. If the cursor is dropped early, up to 1 MiB was read in vain.
    pub fn take_all(mut self) -> Self {
        self.readahead = ScanReadahead::for_all();
        self
    }

    /// Reads the next pages of the range, from the low end, into the cache, for other readers of the same keys, and
    /// moves the cursor behind them. It stops after about `bytes` of pages, or returns `false` when nothing is left.
    /// It does not read what is in memory, and waits for pages that another thread is reading. The pages stay in the
    /// cache until they are used, as long as such pages take no more than
    /// [`Db::max_readahead_bytes`](crate::Db::max_readahead_bytes).
    ///
    /// Cost: the reads of a scan, by requests of up to 1 MiB from the first one on.
    pub fn read_ahead(&mut self, bytes: u64) -> Result<bool> {
        self.readahead = ScanReadahead::for_others();
        while (self.readahead.asked_bytes() as u64) < bytes {
            if self.advance(Direction::Forward)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// After an error: moves the cursor past what could not be read, and returns the range of keys that it skips,
    /// from the first up to the second (`None`: no upper bound). Returns `None` and does nothing if there was no
    /// error, if the error concerns the store as a whole, or if pairs were taken from both ends.
    ///
    /// All values of these keys are skipped, also those in memory and in other nodes. Cost: one search from the root
    /// when the next pair is taken.
    pub fn skip_unreadable(&mut self) -> Option<(Bytes, Option<Bytes>)> {
        let (bad, direction) = *self.behind.take()?;
        let bounds = self.bounds.as_deref().unwrap_or(&self.range);
        let bad = bad.intersect(bounds)?;
        let (below, above) = bounds.without(&bad);
        let rest = match direction {
            Direction::Forward => above,
            Direction::Backward => below,
        };
        self.segments = [None, None];
        self.readahead = ScanReadahead::default();
        self.bounds = rest.clone().map(Box::new);
        self.rest = rest;
        Some((bad.lo, bad.hi))
    }

    fn restart(&mut self, part: Span) {
        self.segments = [None, None];
        self.rest = self.range.intersect(&part);
        self.behind = None;
        self.bounds = self.rest.clone().map(Box::new);
        // What is read next may lie elsewhere.
        self.readahead = ScanReadahead::default();
    }

    /// Takes the next pair from an end: the entry run that has it.
    #[inline]
    fn advance(&mut self, direction: Direction) -> Result<Option<&EntryRun>> {
        // Mostly there is more of what one walks along.
        let merge = &*self.snapshot.engine.merge;
        if let Some(segment) = &mut self.segments[direction as usize]
            && segment.walk(direction, merge)
        {
            return Ok(self.segments[direction as usize]
                .as_ref()
                .map(|segment| segment.entry_run(direction)));
        }
        let found = match self.find(direction) {
            Ok(found) => found,
            Err(error) => {
                let bad = self.readahead.unread.take();
                let by_one_end = self.segments[direction.other() as usize].is_none();
                self.behind =
                    bad.filter(|_| by_one_end && error.is_damage()).map(|bad| Box::new((*bad, direction)));
                self.segments = [None, None];
                self.rest = None;
                return Err(match &self.behind {
                    Some(bad) => error.about(&bad.0),
                    None => error,
                });
            }
        };
        Ok(found
            .and_then(|(end, entry_run)| Some(self.segments[end as usize].as_ref()?.entry_run(entry_run))))
    }

    /// Finds the next pair: the segment of that end, and the entry run in it.
    #[inline(never)]
    fn find(&mut self, direction: Direction) -> Result<Option<(Direction, Direction)>> {
        let other = direction.other();
        let Self { snapshot, rest, segments, readahead, .. } = self;
        let (engine, view) = (&*snapshot.engine, &*snapshot.view);
        // Where this end begins, nothing need be looked for where nothing is.
        let first = segments[direction as usize].is_none();
        if first && let Some(skip_ranges) = &view.skip_ranges {
            let whole = rest.take();
            *rest = whole.as_ref().and_then(|whole| skip_ranges.shorten(whole));
            if *rest != whole && !engine.counters.skip_range_used.load(Ordering::Relaxed) {
                engine.counters.skip_range_used.store(true, Ordering::Relaxed);
            }
        }
        let mut begin = rest.clone().filter(|_| first);
        let mut passed = 0;
        let mut scanner = Scanner { view, pager: &engine.pager, merge: &*engine.merge, readahead };
        loop {
            if let Some(segment) = &mut segments[direction as usize] {
                let found = scanner.advance(segment, direction)?;
                match segment.take_skipped(direction) {
                    0 => (),
                    more => {
                        passed += more;
                        engine.counters.deletes_passed.fetch_add(more, Ordering::Relaxed);
                    }
                }
                if let Some(entry_run) = found {
                    if passed >= MIN_PASSED_KEYS
                        && let Some(begin) = begin.take()
                    {
                        engine.found_empty(
                            view.msn,
                            before(begin, direction, segment.entry_run(entry_run).key()),
                        );
                    }
                    return Ok(Some((direction, entry_run)));
                }
            }
            let Some(range) = rest.take() else { break };
            let (span, segment) = scanner.segment(range.clone(), direction)?;
            assert!(range.covers(&span) && !span.is_empty(), "a segment must be part of what is left");
            let (below, above) = range.without(&span);
            *rest = match direction {
                Direction::Forward => above,
                Direction::Backward => below,
            };
            segments[direction as usize] = Some(Box::new(segment));
        }
        if passed >= MIN_PASSED_KEYS
            && segments[other as usize].is_none()
            && let Some(begin) = begin
        {
            engine.found_empty(view.msn, begin);
        }
        // The ends have met: what the other one has come to is left.
        let Some(segment) = &mut segments[other as usize] else { return Ok(None) };
        Ok(scanner.advance(segment, direction)?.map(|entry_run| (other, entry_run)))
    }

    fn next_pair(&mut self, direction: Direction) -> Option<Result<(Bytes, Bytes)>> {
        let found = self.advance(direction).transpose()?;
        Some(found.map(|entry_run| (Bytes::copy_from_slice(entry_run.key()), entry_run.value_bytes())))
    }
}

/// What of `range` an end has passed that has come to `key`.
fn before(range: Span, direction: Direction, key: &[u8]) -> Span {
    match direction {
        Direction::Forward => Span { hi: Some(Bytes::copy_from_slice(key)), ..range },
        Direction::Backward => Span { lo: behind(key), ..range },
    }
}

impl Iterator for Cursor {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_pair(Direction::Forward)
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_pair(Direction::Backward)
    }
}
