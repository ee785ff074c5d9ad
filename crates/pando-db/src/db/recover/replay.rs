//! Recovery: the log behind the last checkpoint, read, judged and applied.
//!
//! The log says which batches there are (`store::log`); here is decided what
//! damage in it means. Of two reasons for which something is missing only one
//! is innocent: that it had not been synced when the crash came. So what may
//! have been synced is never cut off without a word:
//!
//! - Records that the log could repair are replayed; it is reported.
//! - Records that were durable and are gone: opening is refused, unless it is
//!   asked to salvage what is left.
//! - A batch that misses a value outside the log, and may be in the tail that a
//!   crash has torn, does not count, nor does any after it. A record says so
//!   before the store is in use ([`Batches::void`]). The batches stay in the log:
//!   where the values of earlier ones are may be said among them.
//!   If the batch was durable, the value is damaged: its key cannot be read from
//!   then on (the tree gets a page that does not verify), and all else goes on.
//!
//! Everything is judged before the first batch is applied. A second recovery of
//! the same log comes to the same state.

use std::{sync::Arc, thread};

use bytes::Bytes;

use crate::{
    batch::{Batch, Op},
    db::{
        engine::{
            Engine,
            report::{Finding, Recovery},
        },
        record::{self, Decoded, Missing},
        recover::tables::{Tables, is_plain, threads_for},
    },
    error::{Error, Result},
    key::{Span, join},
    options::Options,
    space::Space,
    store::{
        bulk::{self, Groups},
        log::{AppendError, Found, Log, LogPos, Region, Replay},
        pager::Pager,
        superblock::{Slots, Superblock},
    },
};

/// A log that was read to its end.
pub(crate) struct Recovered {
    pub replay: Replay,
    pub report: Recovery,
    groups: Groups,
    records: Vec<Record>,
    void: Option<u64>,
}

struct Record {
    /// Empty for a record of the log's own, and for a batch that does not count: batches without effect.
    payload: Bytes,
    msn: u64,
    end: LogPos,
}

/// Takes back what is in the records from number `first` on.
fn take_back(records: &mut [Record], first: u64) {
    let from = records.partition_point(|record| record.msn < first);
    records.iter_mut().skip(from).for_each(|record| record.payload = Bytes::new());
}

/// Reads the log that a superblock names, and owns what its values lie in. Nothing is changed on the device.
pub(crate) fn read(
    slots: &Slots,
    region: Region,
    options: &Options,
    space: &Arc<Space>,
) -> Result<Recovered> {
    let Slots { newest: superblock, damaged } = slots;
    let mut report = Recovery::default();
    if let Some((slot, why)) = damaged {
        report.notes.push(format!(
            "superblock: slot {slot} does not verify ({why}): it is damaged, or a crash came while it was written; the \
             other slot is used"
        ));
    }
    let clean = superblock.clean && damaged.is_none();
    let Superblock { log_start, next_msn, log_durable, .. } = *superblock;
    let mut replay = Log::replay(region, log_start, next_msn, log_durable, clean, options.salvage);
    let (mut records, mut groups) = (Vec::new(), Groups::default());
    while let Some(found) = replay.next()? {
        let mut payload = found.payload;
        if let Some(&(bulk::INLINE | bulk::EXTENTS)) = payload.first() {
            groups.read(std::mem::take(&mut payload))?;
        } else if let Some(first) = record::first_void(&payload) {
            take_back(&mut records, first);
            payload = Bytes::new();
        }
        records.push(Record { payload, msn: found.msn, end: found.end });
    }
    if let Some(missing) = replay.missing() {
        let (from, to) = missing.into_inner();
        let at = replay.place(records.last().map_or(log_start, |last| last.end).pos);
        return Err(Error::corrupt(
            "log",
            at,
            format!(
                "records {from} to {to} were durable, and the first of them is damaged or gone: `salvage` opens the \
                 store without what is lost"
            ),
        ));
    }
    for found in replay.found() {
        match found {
            Found::Repaired { at, len, last } => {
                let what = format!("log: {len} bytes at byte {at} were not as written");
                if *last <= replay.durable() {
                    report.find(format!("{what}: damage, repaired"));
                } else {
                    report
                        .notes
                        .push(format!("{what}, but could be repaired: a crash has torn them, or damage"));
                }
            }
            Found::Lost { at, records } => {
                let (from, to) = (records.start(), records.end());
                report.find(format!(
                    "log: records {from} to {to} are lost (from byte {at} on), and were passed over"
                ));
            }
            Found::Guard(wrong) => report.find_beside_records(&wrong.to_string(), wrong.was_durable),
        }
    }
    for record in &records {
        if let Some(group) = record::group(&record.payload) {
            groups.adopt(group, space)?;
        }
    }
    Ok(Recovered { replay, report, groups, records, void: None })
}

impl Recovered {
    /// Takes back the first batch of the torn tail that misses a value, and all after it.
    pub fn take_back_torn_tail(&mut self, pager: &Pager) -> Result<()> {
        let durable = self.replay.durable();
        for record in self.records.iter().filter(|record| record.msn > durable) {
            if !decode(record, &mut self.groups, pager)?.missing.is_empty() {
                self.void = Some(record.msn);
                break;
            }
        }
        if let Some(first) = self.void {
            self.replay.doubt(first);
            take_back(&mut self.records, first);
        }
        Ok(())
    }

    /// What is to be applied, without the reader of the log.
    pub fn split(self) -> (Replay, Recovery, Batches) {
        let Self { replay, report, groups, records, void } = self;
        (replay, report, Batches { groups, records, void })
    }
}

/// Batches of a log.
pub(crate) struct Batches {
    groups: Groups,
    records: Vec<Record>,
    void: Option<u64>,
}

impl Batches {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The first batch that does not count, if the log does not say so yet.
    pub fn void(&self) -> Option<u64> {
        self.void
    }

    /// Applies all of them. Nobody else uses the store yet.
    pub fn apply(mut self, engine: &mut Engine) -> Result<()> {
        self.groups.extents().for_each(|extent| engine.log.hold(extent.clone()));
        let records = std::mem::take(&mut self.records);
        engine.memtable_sizes.set_recovered(records.last().map_or(0, |record| record.msn));
        let size = (records.iter().map(|record| record.payload.len()).sum(), threads_for(engine));
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let other = self.apply_plain(engine, records.by_ref(), size)?;
            let Some((record, Decoded { batch, missing })) = other else { continue };
            if missing.is_empty() {
                engine.replay(&batch, record.msn, record.end)?;
            } else {
                self.apply_damaged(engine, &batch, &missing, &record)?;
            }
            engine.flush_backlog()?;
        }
        Ok(())
    }

    /// Applies batches up to the first that is not plain, or misses a value, and returns that one. `size`: the bytes
    /// of all records of the log, and the threads that build tables.
    fn apply_plain(
        &mut self,
        engine: &Engine,
        records: impl Iterator<Item = Record>,
        size: (usize, usize),
    ) -> Result<Option<(Record, Decoded)>> {
        thread::scope(|scope| {
            let (mut tables, mut other) = (Tables::new(engine, scope, size), None);
            for record in records {
                let decoded = decode(&record, &mut self.groups, &engine.pager)?;
                if !decoded.missing.is_empty() || !is_plain(&decoded.batch) {
                    other = Some((record, decoded));
                    break;
                }
                tables.push(decoded.batch, record.msn, record.end)?;
            }
            tables.finish()?;
            Ok(other)
        })
    }

    /// Applies a batch of which values are damaged: their keys get pages that do not verify.
    fn apply_damaged(
        &self,
        engine: &mut Engine,
        batch: &Batch,
        missing: &[Missing],
        record: &Record,
    ) -> Result<()> {
        let mut stands_in = Batch::new();
        let is_missing = |op: usize| missing.iter().any(|m| m.op == op);
        batch.ops().iter().enumerate().filter(|(i, _)| !is_missing(*i)).for_each(|(_, op)| {
            stands_in.push(op.clone());
        });
        for (key, Missing { group, number, .. }) in damaged_keys(batch, missing) {
            let what = format!(
                "log: the value of a key in batch {} is damaged where it stands outside the log",
                record.msn
            );
            let keys = Some((key.clone(), Some(join(&key, b"\0"))));
            // By its address it is known again, and long enough to be asked for.
            let value = Bytes::from(vec![0; engine.bulk.threshold()]);
            match self.groups.damaged(group, number, &key, &value) {
                Some(page) => {
                    engine.bulk.offer(key.clone(), value.clone(), page, record.msn);
                    stands_in.push(Op::Put(key, value));
                    engine.recovery.findings.push(Finding { what, keys });
                }
                None => {
                    let what = format!("{what}; nothing says where: the key keeps its former value");
                    engine.recovery.findings.push(Finding { what, keys });
                }
            }
        }
        engine.replay(&stands_in, record.msn, record.end)?;
        // Before anything can see what stands in.
        engine.seal();
        engine.flush_all_in_memory()
    }
}

impl Engine {
    /// Says in the log, durably, that its batches from `first` on do not count; `false` if it has no room for
    /// that. Else their values, written again to the same places, would make them valid after all.
    pub(super) fn log_void(&self, first: u64) -> Result<bool> {
        let (msn, end) = match self.log.append(&[&record::void(first)]) {
            Ok(appended) => appended,
            Err(AppendError::Full) => return Ok(false),
            Err(other) => return Err(other.into()),
        };
        self.replay(&Batch::new(), msn, end)?;
        self.log.sync()?;
        Ok(true)
    }

    /// Whether a checkpoint can wait until the store is in use: nothing in the log was damaged, and there are
    /// threads.
    pub(super) fn may_checkpoint_later(&self) -> bool {
        self.options.background && self.recovery.findings.is_empty() && self.recovery.notes.is_empty()
    }
}

/// The keys that have a damaged value when the batch has been applied.
fn damaged_keys(batch: &Batch, missing: &[Missing]) -> Vec<(Bytes, Missing)> {
    let mut keys: Vec<(Bytes, Missing)> = Vec::new();
    for (i, op) in batch.ops().iter().enumerate() {
        let copied = |src: &Bytes, dst: &Bytes, keys: &[(Bytes, Missing)]| -> Vec<(Bytes, Missing)> {
            let under = keys.iter().filter_map(|(key, m)| Some((key.strip_prefix(&src[..])?, *m)));
            under.map(|(rest, m)| (join(dst, rest), m)).collect()
        };
        match op {
            Op::Put(key, _) | Op::Delete(key) => {
                keys.retain(|(other, _)| other != key);
                let damaged = missing.iter().find(|m| m.op == i);
                keys.extend(damaged.map(|m| (key.clone(), *m)));
            }
            Op::DeleteRange(lo, hi) => {
                let span = Span::new(lo.clone(), hi.clone());
                keys.retain(|(key, _)| !span.contains(key));
            }
            Op::ClonePrefix(src, dst) => {
                let more = copied(src, dst, &keys);
                keys.retain(|(key, _)| !key.starts_with(dst));
                keys.extend(more);
            }
            Op::RenamePrefix(src, dst) => {
                let more = copied(src, dst, &keys);
                keys.retain(|(key, _)| !key.starts_with(dst) && !key.starts_with(src));
                keys.extend(more);
            }
            // What comes to a value that nobody knows is not known either.
            Op::Upsert(..) | Op::UpsertPrefix(..) => (),
        }
    }
    keys
}

fn decode(record: &Record, groups: &mut Groups, pager: &Pager) -> Result<Decoded> {
    if record.payload.is_empty() {
        return Ok(Decoded::default());
    }
    record::decode(record.payload.clone(), |group, number| groups.value(group, number, pager))
}
