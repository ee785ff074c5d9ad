//! Tables for runs of plain batches of a log, built by several threads at once.
//!
//! A batch is plain if it asks for nothing below it: no clone, and no change of all values under a prefix. Most
//! of a log is. Such a run is cut into pieces of bounded size, whatever the number of threads, so that one log
//! always gives the same tables. A piece becomes a table of its own, so no thread waits for another, and no lock
//! is taken for a batch. What is too short for a table goes into the active one. May use: the engine and its
//! write path. No I/O but what flushing a backlog takes.

use std::{panic::resume_unwind, thread};

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

/// Plain batches that wait to be built into tables.
pub(super) struct Tables {
    /// Size of a piece in bytes.
    target: usize,
    threads: usize,
    /// Pieces that are long enough.
    whole: Vec<TableChunk>,
    /// And the next.
    next: TableChunk,
}

impl Tables {
    /// For a log with so many bytes of records.
    pub fn new(engine: &Engine, log_bytes: usize) -> Self {
        let large = usize::try_from(engine.options.cache_bytes / LARGE_TABLE_SHARE).unwrap_or(usize::MAX);
        let target = engine.table_limit().max((2 * log_bytes / MANY_TABLES).min(large));
        let threads = match engine.options.background {
            true => thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS),
            false => 1,
        };
        Self { target, threads, whole: Vec::new(), next: TableChunk::default() }
    }

    /// True if the batch may be in such a run.
    pub fn takes(batch: &Batch) -> bool {
        let is_plain =
            |op: &Op| matches!(op, Op::Put(..) | Op::Delete(..) | Op::Upsert(..) | Op::DeleteRange(..));
        batch.ops().iter().all(is_plain)
    }

    /// Takes in the batch behind the last one.
    pub fn push(&mut self, engine: &Engine, batch: Batch, msn: u64, end: LogPos) -> Result<()> {
        let follows = self.next.last.is_none_or(|(last, at)| last < msn && at.pos < end.pos);
        assert!(follows, "batches of a log are taken in out of order");
        let bytes: usize = batch.ops().iter().map(|op| OP_BYTES + op_len(op)).sum();
        if self.next.last.is_some() && self.next.bytes + bytes > self.target {
            self.whole.push(std::mem::take(&mut self.next));
            if self.whole.len() >= self.threads {
                self.build(engine)?;
            }
        }
        self.next.ops.extend(batch.into_parts().0);
        self.next.last = Some((msn, end));
        self.next.bytes += bytes;
        Ok(())
    }

    /// Ends the run: all of it is in tables then.
    pub fn finish(&mut self, engine: &Engine) -> Result<()> {
        let next = std::mem::take(&mut self.next);
        if next.bytes > self.target / 2 {
            self.whole.push(next);
            return self.build(engine);
        }
        self.build(engine)?;
        if let Some((msn, end)) = next.last {
            let mut batch = Batch::new();
            next.ops.into_iter().for_each(|op| _ = batch.push(op));
            engine.replay(&batch, msn, end)?;
        }
        engine.flush_backlog()
    }

    fn build(&mut self, engine: &Engine) -> Result<()> {
        let mut before = {
            let superversion = engine.superversion.read();
            (superversion.active.msn, superversion.active.log_end)
        };
        let mut jobs = Vec::new();
        for piece in self.whole.drain(..) {
            let Some(last) = piece.last else { continue };
            jobs.push((std::mem::replace(&mut before, last), piece.ops, last));
        }
        let tables: Vec<Memtable> = match jobs.len() {
            0 | 1 => jobs.into_iter().map(|(before, ops, last)| engine.table_of(before, ops, last)).collect(),
            _ => thread::scope(|scope| {
                let start = |(before, ops, last)| scope.spawn(move || engine.table_of(before, ops, last));
                let at_work: Vec<_> = jobs.into_iter().map(start).collect();
                at_work
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|why| resume_unwind(why)))
                    .collect()
            }),
        };
        for table in tables {
            engine.change(|superversion| superversion.push(table));
            engine.flush_backlog()?;
        }
        Ok(())
    }
}

impl Engine {
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
