//! Recovery: reads the log behind the last checkpoint, decides which batches count, and applies them.
//!
//! The reader of the log (`store::log`) finds the records. This module decides what damage means. Data may be missing
//! for two reasons: it had not been synced when the crash came, which is no error, or it is damaged. So data that may
//! have been synced is never dropped without a report:
//!
//! - Records that the log could repair are replayed, and the repair is reported.
//! - If records are gone that were durable, the store is not opened, unless the caller asks to salvage the rest.
//! - A batch may lack a value that is stored outside the log. If the batch may be in the tail that a crash has torn,
//!   neither it nor any later batch counts. A record in the log says so before the store is in use
//!   ([`Batches::void`]). These batches stay in the log, because records among them may say where the values of
//!   earlier batches are. If the batch was durable, the value is damaged: its key cannot be read from then on (the
//!   tree gets a page that does not verify), and everything else can.
//!
//! All of this is decided before the first batch is applied. A second recovery of the same log comes to the same
//! state.

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

/// What a log holds that was read to its end.
pub(crate) struct Recovered {
    pub replay: Replay,
    pub report: Recovery,
    groups: Groups,
    records: Vec<Record>,
    void: Option<u64>,
}

struct Record {
    /// Empty for a record that is not a batch of a caller, and for a batch that does not count: an empty batch changes
    /// nothing, and keeps its number.
    payload: Bytes,
    msn: u64,
    end: LogPos,
}

/// Makes the records from number `first` on batches without effect.
fn take_back(records: &mut [Record], first: u64) {
    let from = records.partition_point(|record| record.msn < first);
    records.iter_mut().skip(from).for_each(|record| record.payload = Bytes::new());
}

/// Reads the log that a superblock names, and marks the extents of its values as allocated. Changes nothing on the
/// device.
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
    /// Drops the first batch of the torn tail that lacks a value, and all batches behind it.
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

    /// Parts the reader of the log, the report, and the batches that are to be applied.
    pub fn split(self) -> (Replay, Recovery, Batches) {
        let Self { replay, report, groups, records, void } = self;
        (replay, report, Batches { groups, records, void })
    }
}

/// The batches of a log, in order.
pub(crate) struct Batches {
    groups: Groups,
    records: Vec<Record>,
    void: Option<u64>,
}

impl Batches {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The number of the first batch that does not count, if the log has no record yet that says so.
    pub fn void(&self) -> Option<u64> {
        self.void
    }

    /// Applies all batches. No other thread uses the store yet.
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

    /// Applies batches up to the first that is not plain or lacks a value, and returns that one. `size` is the number
    /// of bytes of all records in the log, and the number of threads that build memtables.
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

    /// Applies a batch in which some values are damaged. Their keys get pages that do not verify.
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
            // The flush recognises the value by its address, and asks only for values of at least this length.
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
        // This comes before any reader can see the values that stand in for the damaged ones.
        engine.seal();
        engine.flush_all_in_memory()
    }
}

impl Engine {
    /// Appends a durable record to the log which says that its batches from `first` on do not count; `false` if the log
    /// has no space for it. Without this record, values that are written later to the same places could make these
    /// batches valid again.
    pub(super) fn log_void(&self, first: u64) -> Result<bool> {
        let (msn, end) = match self.log.append(&[&record::void(first)]) {
            Ok(appended) => appended,
            Err(AppendError::Full) => return Ok(false),
            Err(other) => return Err(other.into()),
        };
        self.replay(&Batch::new(), msn, end)?;
        self.log.sync()?;
        assert!(self.log.durable_msn() >= msn, "batches are taken back by a record that is not durable");
        Ok(true)
    }

    /// Whether the checkpoint can be made later, while the store is in use: nothing in the log was damaged, and there
    /// are background threads.
    pub(super) fn may_checkpoint_later(&self) -> bool {
        self.options.background && self.recovery.findings.is_empty() && self.recovery.notes.is_empty()
    }
}

/// The keys that have a damaged value after the batch has been applied.
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
            // An upsert of a damaged value leaves it damaged.
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
