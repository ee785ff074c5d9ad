//! Tables for runs of plain batches of a log, built by several threads while the next batches are decoded.
//!
//! A batch is plain if it asks for nothing below it: no clone, and no change of all values under a prefix. Most
//! of a log is. Such a run is cut into pieces of bounded size, whatever the number of threads, so that one log
//! always gives the same tables. A piece becomes a table of its own, so no thread waits for another, and no lock
//! is taken for a batch. What is too short for a table goes into the active one. May use: the engine and its
//! write path. No I/O but what flushing a backlog takes.

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

/// What an operation takes in a table besides its key and value, in bytes: as much as tables count for it, or more.
const OP_BYTES: usize = 96;
/// Tables that a log should come to at most, if they may be larger than usual for it: each is a place to look.
const MANY_TABLES: usize = 24;
/// Part (1/n) of the budget that a table has at most which is larger than usual.
const LARGE_TABLE_SHARE: u64 = 16;
/// Tables that may be there that are replayed and not flushed: each is a place to look for every reader.
const MAX_BACKLOG_TABLES: usize = 32;

/// Threads that build tables at most.
const MAX_THREADS: usize = 8;

/// Operations of batches beside each other, and the number of the last one and where it ends in the log.
#[derive(Default)]
struct TableChunk {
    ops: Vec<Op>,
    last: Option<(u64, LogPos)>,
    /// What it will take in a table, at most.
    bytes: usize,
}

/// True if the batch may be in a run of plain ones.
pub(super) fn is_plain(batch: &Batch) -> bool {
    let plain = |op: &Op| matches!(op, Op::Put(..) | Op::Delete(..) | Op::Upsert(..) | Op::DeleteRange(..));
    batch.ops().iter().all(plain)
}

/// Threads that build tables at once, a count. To ask for it takes the system longer than a small run of batches.
pub(super) fn threads_for(engine: &Engine) -> usize {
    match engine.options.background {
        true => thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
        false => 1,
    }
}

/// Plain batches that are built into tables.
pub(super) struct Tables<'scope, 'env> {
    engine: &'env Engine,
    scope: &'scope Scope<'scope, 'env>,
    /// Size of a piece in bytes.
    target: usize,
    /// Threads beside this one that build tables at once; none if it builds them itself.
    threads: usize,
    /// Tables that are being built, in order.
    at_work: VecDeque<ScopedJoinHandle<'scope, Memtable>>,
    /// The last batch in them or in an older table, and where it ends in the log.
    taken: (u64, LogPos),
    /// The next piece.
    next: TableChunk,
}

impl<'scope, 'env> Tables<'scope, 'env> {
    /// For a run in a log with so many bytes of records, which so many threads build ([`threads_for`]).
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

    /// Takes in the batch behind the last one.
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

    /// Ends the run: all of it is in tables then.
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

    /// Builds a table of the next piece.
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
    /// Takes in a table of batches that are newer than all before.
    fn take_in(&self, table: Memtable) -> Result<()> {
        self.change(|superversion| superversion.push(table));
        self.flush_backlog()
    }

    /// Flushes tables in memory while there are more than may wait for the threads in the background.
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
