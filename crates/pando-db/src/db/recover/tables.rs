//! Builds memtables from runs of plain batches of a log, in several threads, while the next batches are decoded.
//!
//! A batch is plain if it does not depend on what is below it: it has no clone, and no change of all values under a
//! prefix. Most batches are plain. A run of them is cut into chunks of bounded size. The size does not depend on the
//! number of threads, so that a log always gives the same tables. Each chunk becomes a table of its own, so no
//! thread waits for another, and no lock is taken for a batch. A chunk that is too short for a table goes into the
//! active one. May use: the engine and its write path. The only I/O is that of flushing tables when too many wait.

use std::{
    collections::VecDeque,
    panic::resume_unwind,
    thread::{self, Scope, ScopedJoinHandle},
};

use crate::{
    batch::{Batch, Op},
    dag::memtable::Memtable,
    db::{engine::Engine, record::op_len},
    error::Result,
    store::log::LogPos,
};

/// Bytes that an operation takes in a table besides its key and value: at least as many as tables count for it.
const OP_BYTES: usize = 96;
/// A whole log should become at most so many tables, because a reader has to search each of them. Tables are made
/// larger than usual for that.
const MANY_TABLES: usize = 24;
/// A table that is larger than usual has at most this part (1/n) of the budget.
const LARGE_TABLE_SHARE: u64 = 16;
/// At most so many replayed tables wait to be flushed, because a reader has to search each of them.
const MAX_BACKLOG_TABLES: usize = 32;

/// At most so many threads build tables.
const MAX_THREADS: usize = 8;

/// The operations of consecutive batches, with the number of the last batch and its end in the log.
#[derive(Default)]
struct TableChunk {
    ops: Vec<Op>,
    last: Option<(u64, LogPos)>,
    /// An upper bound of the bytes that the operations take in a table.
    bytes: usize,
}

/// True if the batch is plain.
pub(super) fn is_plain(batch: &Batch) -> bool {
    let plain = |op: &Op| matches!(op, Op::Put(..) | Op::Delete(..) | Op::Upsert(..) | Op::DeleteRange(..));
    batch.ops().iter().all(plain)
}

/// How many threads build tables at once. The caller keeps the result: asking the system for it takes longer than
/// a short run of batches.
pub(super) fn threads_for(engine: &Engine) -> usize {
    match engine.options.background {
        true => thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
        false => 1,
    }
}

/// A run of plain batches from which tables are built.
pub(super) struct Tables<'scope, 'env> {
    engine: &'env Engine,
    scope: &'scope Scope<'scope, 'env>,
    /// The size of a chunk in bytes.
    target: usize,
    /// How many other threads build tables at once; 0 if this thread builds them itself.
    threads: usize,
    /// Tables that are being built, in order.
    at_work: VecDeque<ScopedJoinHandle<'scope, Memtable>>,
    /// The last batch of these or of an older table, and its end in the log.
    taken: (u64, LogPos),
    /// The chunk that is being collected.
    next: TableChunk,
}

impl<'scope, 'env> Tables<'scope, 'env> {
    /// Begins a run. `log_bytes` are the bytes of all records of the log, and `threads` is what [`threads_for`] says.
    pub fn new(
        engine: &'env Engine,
        scope: &'scope Scope<'scope, 'env>,
        (log_bytes, threads): (usize, usize),
    ) -> Self {
        let large = usize::try_from(engine.options.cache_bytes / LARGE_TABLE_SHARE).unwrap_or(usize::MAX);
        let target = engine.table_limit().max((2 * log_bytes / MANY_TABLES).min(large));
        let taken = {
            let superversion = engine.superversion.read();
            (superversion.active.msn, superversion.active.log_end)
        };
        Self {
            engine,
            scope,
            target,
            threads: if threads > 1 { threads } else { 0 },
            at_work: VecDeque::new(),
            taken,
            next: TableChunk::default(),
        }
    }

    /// Adds the next batch.
    pub fn push(&mut self, batch: Batch, msn: u64, end: LogPos) -> Result<()> {
        let follows = self.next.last.is_none_or(|(last, at)| last < msn && at.pos < end.pos);
        assert!(follows, "batches of a log are taken in out of order");
        let bytes: usize = batch.ops().iter().map(|op| OP_BYTES + op_len(op)).sum();
        if self.next.last.is_some() && self.next.bytes + bytes > self.target {
            self.build()?;
        }
        self.next.ops.extend(batch.into_parts().0);
        self.next.last = Some((msn, end));
        self.next.bytes += bytes;
        Ok(())
    }

    /// Ends the run. All of its batches are in tables afterwards.
    pub fn finish(mut self) -> Result<()> {
        if self.next.bytes > self.target / 2 {
            self.build()?;
        }
        while let Some(first) = self.at_work.pop_front() {
            self.take_in(first)?;
        }
        let TableChunk { ops, last, .. } = self.next;
        if let Some((msn, end)) = last {
            let mut batch = Batch::new();
            ops.into_iter().for_each(|op| _ = batch.push(op));
            self.engine.replay(&batch, msn, end)?;
        }
        self.engine.flush_backlog()
    }

    /// Builds a table from the collected chunk.
    fn build(&mut self) -> Result<()> {
        let TableChunk { ops, last, .. } = std::mem::take(&mut self.next);
        let Some(last) = last else { return Ok(()) };
        let (engine, before) = (self.engine, std::mem::replace(&mut self.taken, last));
        if self.threads == 0 {
            return engine.take_in(engine.table_of(before, ops, last));
        }
        if self.at_work.len() >= self.threads
            && let Some(first) = self.at_work.pop_front()
        {
            self.take_in(first)?;
        }
        self.at_work.push_back(self.scope.spawn(move || engine.table_of(before, ops, last)));
        Ok(())
    }

    fn take_in(&self, at_work: ScopedJoinHandle<'scope, Memtable>) -> Result<()> {
        self.engine.take_in(at_work.join().unwrap_or_else(|why| resume_unwind(why)))
    }
}

impl Engine {
    /// Adds a table, whose batches are newer than all earlier ones, to the superversion.
    fn take_in(&self, table: Memtable) -> Result<()> {
        self.change(|superversion| superversion.push(table));
        self.flush_backlog()
    }

    /// Flushes tables to the tree in memory while more of them wait than the background threads may be left with.
    pub(super) fn flush_backlog(&self) -> Result<()> {
        let most = if self.options.background { self.max_recovered() } else { 0 };
        loop {
            let waits = {
                let superversion = self.superversion.read();
                let bytes: usize = superversion.sealed.iter().map(|table| table.bytes()).sum();
                !superversion.sealed.is_empty()
                    && (superversion.sealed.len() > MAX_BACKLOG_TABLES || bytes as u64 > most)
            };
            if !waits || !self.flush_in_memory()? {
                return Ok(());
            }
        }
    }
}
