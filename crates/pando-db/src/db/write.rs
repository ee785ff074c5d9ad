//! The write path: batches into the log and the in-memory table, clones included.
//!
//! A batch is applied under the front lock, in memory. What a clone must know
//! of the DAG is found before, outside the lock, against a frozen tree; if the
//! tree has moved on when the lock is taken, it is found again. So no I/O
//! happens under a lock, and a batch is atomic whatever it holds.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    engine::{Engine, Front},
    record::{self, Encoded, op_len},
};
use crate::{
    MAX_KEY, MAX_PREFIX_UPSERT, MAX_VALUE,
    batch::{Batch, Op},
    dag::{
        clone::{Base, Messages, Source, Start, find_source},
        layer::Ranged,
        memtable::Memtable,
        tree::Tree,
    },
    error::{Error, Result},
    format::{
        message::Msg,
        node::{RangeMsg, Target, UpdateMsg},
    },
    key::{Lens, Span, join},
    store::log::{AppendError, LogPos},
};

/// Pending messages up to this many bytes are copied by a clone; more are flushed first. At least
/// this much, whatever the node size.
const CARRY_MIN: usize = 4 << 10;
/// How often a clone lets its source be flushed before it copies what is pending, however much: then
/// writers refill it faster than it drains.
const PATIENCE: usize = 3;

/// Bytes of all operations on prefixes in a batch, with [`OPERATION`] for each. They go into one table, and
/// from there into one node, in which each may stand many times.
const MAX_OPERATIONS: usize = 16 * MAX_PREFIX_UPSERT;
/// What an operation on a prefix takes besides its bytes.
const OPERATION: usize = 16;

/// Points in memory that an operation on a prefix may change one by one.
const MANY: usize = 1024;

/// Highest node that may be cloned. Reached only by cloning what holds all former clones some hundred
/// times over: every level doubles what is visible.
const MAX_HEIGHT: u8 = 200;

/// What a batch needs before it can be applied.
enum Need {
    /// The part of a source that lies in this tree.
    Source(Arc<Tree>, Start),
    /// Too much is pending for this prefix.
    Flush(Bytes),
    /// The source is nested too deeply in clones.
    Refused(Error),
}

/// Sources found so far, in one version of the tree.
#[derive(Default)]
struct Sources {
    tree: Option<Arc<Tree>>,
    found: HashMap<Start, Source>,
}

impl Sources {
    fn get(&self, tree: &Arc<Tree>, start: &Start) -> Option<&Source> {
        let same = self.tree.as_ref().is_some_and(|t| Arc::ptr_eq(t, tree));
        if same { self.found.get(start) } else { None }
    }

    fn insert(&mut self, tree: Arc<Tree>, start: Start, source: Source) {
        if !self.tree.as_ref().is_some_and(|t| Arc::ptr_eq(t, &tree)) {
            self.found.clear();
            self.tree = Some(tree);
        }
        self.found.insert(start, source);
    }
}

impl Engine {
    /// Applies a batch and logs it. Not durable before the log is synced.
    pub fn write(&self, batch: &Batch) -> Result<()> {
        check(batch)?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        if batch.is_empty() {
            return Ok(());
        }
        let encoded = record::encode(batch, self.bulk.threshold());
        // With what a record about one of its values has besides.
        let (len, limit) = (encoded.len + 32, self.log.max_payload());
        if len > limit {
            return Err(Error::TooLarge { what: "batch", len: len as u64, limit: limit as u64 });
        }
        let mut sources = Sources::default();
        let mut flushed = 0;
        loop {
            self.make_room(batch, &encoded)?;
            match self.change(|front| self.try_apply(front, &encoded, &sources, flushed)) {
                Ok(true) => break,
                // The log filled up since there was room: look again.
                Ok(false) => (),
                Err(Failed::Error(error)) => return Err(error),
                Err(Failed::Need(need)) => self.meet(need, &mut sources, &mut flushed)?,
            }
        }
        self.after_write()
    }

    /// Applies a batch from the log during recovery, when nobody else writes.
    pub fn replay(&self, batch: &Batch, msn: u64, end: LogPos) -> Result<()> {
        let mut sources = Sources::default();
        let mut flushed = 0;
        loop {
            let applied = self.change(|front| {
                let mut active = self.applied(front, batch.ops(), &sources, flushed)?;
                active.keep(batch.ops().iter().map(op_len).sum());
                front.accept(active, msn, end, self.table_limit());
                Ok(())
            });
            match applied {
                Ok(()) => return Ok(()),
                Err(need) => self.meet(need, &mut sources, &mut flushed)?,
            }
        }
    }

    /// Does what has to come before a batch can be applied.
    fn meet(&self, need: Need, sources: &mut Sources, flushed: &mut usize) -> Result<()> {
        match need {
            Need::Source(tree, start) => {
                let source = find_source(&tree, &start, &self.pager)?;
                sources.insert(tree, start, source);
                Ok(())
            }
            Need::Flush(prefix) => {
                *flushed += 1;
                self.push_down(&prefix)
            }
            Need::Refused(error) => Err(error),
        }
    }

    /// Logs and applies, or tells what is missing; `false` if the log has no room.
    fn try_apply(
        &self,
        front: &mut Front,
        encoded: &Encoded,
        sources: &Sources,
        flushed: usize,
    ) -> Result<bool, Failed> {
        // Points change where they are in memory. Where they are many, under a lock, they are left to the
        // flusher, to which a table goes on its own anyway.
        let many = |op: &Op| match op {
            Op::UpsertPrefix(prefix, _) => front.active.has_points(&Span::prefix(prefix.clone()), MANY),
            _ => false,
        };
        let Encoded { payload, values, ops, .. } = encoded;
        if ops.iter().any(many) {
            front.seal();
        }
        // Plain operations cannot fail, so the log goes first and the table is changed in place, where no
        // reader shares it.
        let in_place = !ops.iter().any(is_clone) && !self.views.wanted();
        let active = if in_place { None } else { Some(self.applied(front, ops, sources, flushed)?) };
        let appended = if values.is_empty() {
            self.log.append(&[payload])
        } else {
            self.log.append_aside(record::ASIDE, payload, values)
        };
        let (msn, end) = match appended {
            Ok(appended) => appended,
            Err(AppendError::Full) => return Ok(false),
            Err(other) => return Err(Failed::Error(other.into())),
        };
        let mut active = match active {
            Some(active) => active,
            None => {
                drop(self.views.withdraw());
                let putting = Putting(self);
                ops.iter().for_each(|op| apply_plain(&mut front.active, op, self));
                std::mem::forget(putting);
                let empty = Memtable::new(front.active.msn, front.active.log_end);
                std::mem::replace(&mut front.active, empty)
            }
        };
        active.keep(payload.len());
        front.accept(active, msn, end, self.seal_threshold());
        front.gaps.written(ops, msn, || self.counters.gap_used.swap(false, Ordering::Relaxed));
        if ops.iter().any(|op| !matches!(op, Op::Put(..) | Op::Upsert(..) | Op::UpsertPrefix(..))) {
            self.counters.deletes.store(true, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// The active table after a batch, with sources found before; or what is missing.
    fn applied(
        &self,
        front: &Front,
        ops: &[Op],
        sources: &Sources,
        flushed: usize,
    ) -> Result<Memtable, Need> {
        let mut active = front.active.clone();
        for op in ops {
            match op {
                Op::ClonePrefix(src, dst) => {
                    self.apply_clone(front, &mut active, (src, dst), sources, flushed)?
                }
                Op::RenamePrefix(src, dst) => {
                    self.apply_clone(front, &mut active, (src, dst), sources, flushed)?;
                    active.put_range(RangeMsg { span: Span::prefix(src.clone()), target: None });
                }
                plain => apply_plain(&mut active, plain, self),
            }
        }
        Ok(active)
    }

    /// `Goto(dst -> where src lives)` and what is pending for `src`, re-keyed (DESIGN 4.3).
    fn apply_clone(
        &self,
        front: &Front,
        active: &mut Memtable,
        (src, dst): (&Bytes, &Bytes),
        sources: &Sources,
        flushed: usize,
    ) -> Result<(), Need> {
        let carry = if flushed < PATIENCE { self.limits.abundant.max(CARRY_MIN) } else { usize::MAX };
        let wanted = Span::prefix(src.clone());
        let mut pending: Vec<Messages> = Vec::new();
        let mut bytes = 0;
        let mut start = Some(Start { id: front.tree.root, prefix: src.clone() });
        // A Goto of this very batch or of an older table may be where the source begins.
        let tables = std::iter::once(&*active).chain(front.sealed.iter().rev().map(|t| &**t));
        for table in tables {
            let ranges = table.ranges_in(&wanted);
            let covering = ranges.iter().find(|r| r.span.covers(&wanted)).cloned();
            let inner = if covering.is_some() { Vec::new() } else { ranges };
            let (messages, len) = pending_in(table, &wanted, inner, carry.saturating_sub(bytes));
            bytes += len;
            if bytes > carry {
                return Err(Need::Flush(src.clone()));
            }
            pending.extend(messages);
            if let Some(range) = covering {
                start = range.target.map(|t| {
                    let prefix = Lens::of_edge(&range.span, &t.prepend).apply_shared(src);
                    Start { id: t.id, prefix }
                });
                break;
            }
        }
        let nothing = Source::default();
        let source = match start {
            Some(start) => match sources.get(&front.tree, &start) {
                Some(source) => source,
                None => return Err(Need::Source(front.tree.clone(), start)),
            },
            None => &nothing,
        };
        if bytes + source.bytes > carry {
            return Err(Need::Flush(src.clone()));
        }

        let target = match &source.base {
            Base::Node(start) => Some(Target {
                id: start.id,
                prepend: start.prefix.clone(),
                pin: Some(self.pins.pin(start.id)),
            }),
            Base::Nothing | Base::Values(_) => None,
        };
        let height = target.as_ref().and_then(|t| front.tree.table.get(t.id)).map_or(0, |e| e.height);
        if height > MAX_HEIGHT {
            let deep =
                format!("the source is {height} levels of clones of clones deep; {MAX_HEIGHT} are possible");
            return Err(Need::Refused(Error::Invalid(deep)));
        }
        self.counters.clones.fetch_add(1, Ordering::Relaxed);
        active.put_range(RangeMsg { span: Span::prefix(dst.clone()), target });
        if let Base::Values(pairs) = &source.base {
            self.counters.by_value.fetch_add(1, Ordering::Relaxed);
            for (key, value) in pairs {
                active.put(join(dst, key), Msg::Put(value.clone()), &*self.merge);
            }
        }
        let onto = Lens::new(Bytes::new(), dst.clone());
        for messages in source.pending.iter().chain(pending.iter().rev()) {
            for range in &messages.ranges {
                let mut range = range.through(&onto);
                range.target.iter_mut().for_each(|t| t.pin = Some(self.pins.pin(t.id)));
                active.put_range(range);
            }
            // A point is newer than what is there by now, and includes what the updates that come with it
            // say of its key: so these come last, and pass it by.
            for (key, msg) in &messages.points {
                active.put(onto.apply(key), msg.clone(), &*self.merge);
            }
            for update in &messages.updates {
                let is_own = |key: &[u8]| {
                    let key = key.strip_prefix(&dst[..]).unwrap_or(key);
                    messages.points.binary_search_by(|(own, _)| own[..].cmp(key)).is_ok()
                };
                active.put_update(update.through(&onto), &*self.merge, is_own);
            }
        }
        Ok(())
    }
}

enum Failed {
    Need(Need),
    Error(Error),
}

impl From<Need> for Failed {
    fn from(need: Need) -> Self {
        Failed::Need(need)
    }
}

impl Front {
    /// Takes in the active table after batch `msn`.
    fn accept(&mut self, mut active: Memtable, msn: u64, end: LogPos, seal_at: usize) {
        // Numbers in between are records of the log's own.
        assert!(msn > active.msn, "batches are numbered in order");
        (active.msn, active.log_end) = (msn, end);
        self.active = active;
        if self.active.is_full(seal_at) {
            self.seal();
        }
    }
}

/// Stops the store if what a merge function does to the active table panics: half of the batch may be in memory.
struct Putting<'a>(&'a Engine);

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        self.0.log.stop("write: a merge function panicked; open the store again for what was synced".into());
        self.0.signal.all();
    }
}

/// What a table holds of `wanted`, relative to it, and its size; more than `at_most` is cut short.
fn pending_in(
    table: &Memtable,
    wanted: &Span,
    ranges: Vec<RangeMsg>,
    at_most: usize,
) -> (Option<Messages>, usize) {
    let lens = Lens::new(wanted.lo.clone(), Bytes::new());
    let mut found = Messages::default();
    let mut bytes = 0;
    for range in ranges.iter().filter_map(|r| r.clipped(wanted)) {
        bytes += crate::format::node::HEADER_ITEM + range.span.lo.len();
        found.ranges.push(range.through(&lens));
    }
    for update in table.updates_in(wanted).iter().filter_map(|u| u.clipped(wanted)) {
        bytes += update.bytes();
        found.updates.push(update.through(&lens));
    }
    for (key, msg) in table.points_in(wanted) {
        bytes += key.len() + msg.len() + 8;
        if bytes > at_most {
            break;
        }
        found.points.push((lens.apply_shared(key), msg.clone()));
    }
    let any = !found.ranges.is_empty() || !found.updates.is_empty() || !found.points.is_empty();
    (any.then_some(found), bytes)
}

fn is_clone(op: &Op) -> bool {
    matches!(op, Op::ClonePrefix(..) | Op::RenamePrefix(..))
}

fn apply_plain(active: &mut Memtable, op: &Op, engine: &Engine) {
    let merge = &*engine.merge;
    match op {
        Op::Put(key, value) => active.put(key.clone(), Msg::Put(value.clone()), merge),
        Op::Delete(key) => active.put(key.clone(), Msg::Delete, merge),
        Op::Upsert(key, change) => active.put(key.clone(), Msg::upsert(change.clone()), merge),
        Op::DeleteRange(lo, hi) => {
            let span = Span::new(lo.clone(), hi.clone());
            if !span.is_empty() {
                active.put_range(RangeMsg { span, target: None });
            }
        }
        Op::UpsertPrefix(prefix, change) => {
            let update =
                UpdateMsg { span: Span::prefix(prefix.clone()), ops: SmallVec::from_iter([change.clone()]) };
            active.put_update(update, merge, |_| false);
        }
        Op::ClonePrefix(..) | Op::RenamePrefix(..) => unreachable!("clones are applied with their sources"),
    }
}

fn check(batch: &Batch) -> Result<()> {
    let key = |key: &Bytes| match key.len() {
        0..=MAX_KEY => Ok(()),
        len => Err(Error::TooLarge { what: "key", len: len as u64, limit: MAX_KEY as u64 }),
    };
    let value = |value: &Bytes| match value.len() {
        0..=MAX_VALUE => Ok(()),
        len => Err(Error::TooLarge { what: "value", len: len as u64, limit: MAX_VALUE as u64 }),
    };
    let mut operations = 0;
    let mut operation = |change: &Bytes| {
        operations += change.len() + OPERATION;
        let too_large =
            |what, len, limit| Err(Error::TooLarge { what, len: len as u64, limit: limit as u64 });
        match change.len() {
            len if len > MAX_PREFIX_UPSERT => too_large("operation on a prefix", len, MAX_PREFIX_UPSERT),
            _ if operations > MAX_OPERATIONS => {
                too_large("all operations on prefixes", operations, MAX_OPERATIONS)
            }
            _ => Ok(()),
        }
    };
    for op in batch.ops() {
        match op {
            Op::Put(k, v) | Op::Upsert(k, v) => key(k).and(value(v))?,
            Op::UpsertPrefix(prefix, change) => key(prefix).and(operation(change))?,
            Op::Delete(k) => key(k)?,
            Op::DeleteRange(lo, hi) => key(lo).and(hi.as_ref().map_or(Ok(()), key))?,
            Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) => {
                key(src).and(key(dst))?;
                if src.starts_with(dst) || dst.starts_with(src) {
                    return Err(Error::Overlap);
                }
            }
        }
    }
    Ok(())
}
