//! Verifies that the guards of the write-outs that a reader passes are as they were written.
//!
//! Records have checksums of their own, and they determine what their guard must be. A crash may leave a torn guard, or
//! none. So a wrong guard counts as damage only if a later footer of the same session says that the records were
//! durable: a session says this only after it has written and flushed the whole write-out. A footer of a later
//! session may refer to records that a recovery has found, and proves nothing about their guard. Other wrong guards are
//! reported only if they differ from the right one in a few bytes; a guard that is absent is not reported. Footers
//! are always verified. The other parts are verified on request, since the records have to be read again for that.

use std::{fmt, ops::RangeInclusive};

use crate::{
    device::BLOCK,
    error::Result,
    store::log::{
        Found, LogPos, Replay,
        guard::{self, FOOTER_BYTES, Footer, GuardPart},
        reader::Replayed,
    },
};

/// At most so many wrong parts of guards are reported.
const MAX_TOLD: usize = 1000;
/// At most so many wrong marks between two write-outs are reported. A mark is a footer without records.
const MAX_MARKS: usize = 8;

/// A part of a guard that differs from what was written. No record is lost by that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongGuard {
    part: GuardPart,
    /// The place of its first wrong byte on the device; for a footer, that of its first byte.
    at: u64,
    /// The records of its write-out; `None` for a mark.
    records: Option<RangeInclusive<u64>>,
    /// True if it was durable once, so that no crash can have torn it.
    pub was_durable: bool,
}

impl fmt::Display for WrongGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, wrong) = match self.part {
            GuardPart::Footer => ("footer", "does not match its checksum"),
            GuardPart::Parity => ("parity", "does not match"),
            GuardPart::Sums => ("checksums of units", "do not match"),
            GuardPart::Padding => ("padding", "is not zero"),
        };
        match &self.records {
            Some(records) => write!(f, "the {part} of records {} to {}", records.start(), records.end())?,
            None => write!(f, "the {part} of a mark")?,
        }
        write!(f, " (byte {}) {wrong}", self.at)
    }
}

/// What the reader knows about the guards so far.
#[derive(Default)]
pub(super) struct Guards {
    /// True if the parts other than footers are verified.
    wholly: bool,
    /// The write-out that the last record belongs to.
    reading: Option<Reading>,
    /// The position at which the next write-out begins, after the reader has left the last one.
    next_begin: Option<u64>,
    /// What the reader has found behind the last record.
    behind: BetweenWriteOuts,
    wrong: Vec<Wrong>,
}

/// The beginning of a write-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    At(u64),
    /// At the start of the log, or before it.
    BeforeStart,
    /// Unknown, because some of its records are lost.
    Unknown,
}

/// A write-out, as far as its records tell.
#[derive(Debug, Clone, Copy)]
struct Reading {
    begin: Begin,
    /// The number of the first record of it that was read, and the checksum which that record is chained to.
    first: u64,
    chain: u64,
    session: u64,
}

/// What the reader has found between a write-out and the next one.
#[derive(Default)]
struct BetweenWriteOuts {
    /// The footer of the write-out.
    footer: Option<Footer>,
    /// The position of bytes that are nearly that footer.
    like: Option<u64>,
    /// Wrong parts of marks, with their positions.
    marks: Vec<(GuardPart, u64)>,
    /// The newest record that footers of the write-out's session say was durable.
    durable: u64,
}

/// A part of a guard that is not as it was written.
struct Wrong {
    part: GuardPart,
    pos: u64,
    records: Option<RangeInclusive<u64>>,
    session: u64,
    was_durable: bool,
    /// True if the bytes that stand there show that it was written once.
    was_written: bool,
}

impl Guards {
    /// Notes that a record was read, which begins at `before`.
    pub fn pass(&mut self, before: LogPos, record: &Replayed) {
        let continues = self.reading.is_some_and(|reading| reading.session == record.session);
        if continues {
            return;
        }
        let begin = match (self.next_begin.take(), self.reading) {
            (Some(begin), _) if begin == before.pos => Begin::At(begin),
            // A new session has begun here, and has overwritten the guard of the last one.
            (None, Some(_)) if before.pos.is_multiple_of(BLOCK) => Begin::At(before.pos),
            (None, None) => Begin::BeforeStart,
            _ => Begin::Unknown,
        };
        let Replayed { msn, session, .. } = *record;
        self.reading = Some(Reading { begin, first: msn, chain: before.chain, session });
    }

    /// Forgets what was found behind an earlier record.
    pub fn look_behind(&mut self) {
        self.behind = BetweenWriteOuts::default();
    }

    /// Notes that records are lost, and at which position the next write-out begins.
    pub fn forget_write_out(&mut self, next: Option<u64>) {
        self.reading = None;
        // No write-out begins at the last position: if none is known, what is read next has an unknown beginning.
        self.next_begin = next.or(Some(u64::MAX));
    }

    fn tell(&mut self, wrong: Wrong) {
        if self.wrong.len() < MAX_TOLD {
            self.wrong.push(wrong);
        }
    }
}

impl Replay {
    /// Verifies all parts of guards from now on except footers: another reader has verified those.
    pub fn verify_guards(&mut self) {
        self.guards.wholly = true;
    }

    /// Examines the end of a block behind the last record, where `footer` stands, or no valid footer.
    pub(super) fn look_at_footer(&mut self, block: u64, footer: Option<Footer>) -> Result<()> {
        let (here, chain, next_msn) = (self.at.pos, self.at.chain, self.next_msn);
        let reading = self.guards.reading;
        let Some(footer) = footer else {
            let Some(&bytes) = self.bytes(block + BLOCK - FOOTER_BYTES as u64, FOOTER_BYTES)?.first_chunk()
            else {
                return Ok(());
            };
            let there = Footer::fields(&bytes);
            // A flipped bit changes at most one field.
            let is_like = |footer: &Footer| {
                let (same, all) = footer.likeness(&bytes);
                same + 1 >= all
            };
            let mark = Footer { records: 0, begin: block, first: next_msn, chain, ..there };
            let own = reading.and_then(|Reading { begin, first, chain, session }| {
                let last = next_msn - 1;
                match begin {
                    Begin::At(begin) => {
                        let records = u32::try_from(here - begin).ok()?;
                        let own = Footer { records, begin, session, first, last, chain, ..there };
                        (own.end() == block + BLOCK).then_some(own)
                    }
                    Begin::BeforeStart => {
                        let begin = here.wrapping_sub(there.records.into());
                        Some(Footer { begin, session, last, ..there })
                    }
                    Begin::Unknown => None,
                }
            });
            let behind = &mut self.guards.behind;
            let pos = block + BLOCK - FOOTER_BYTES as u64;
            // The footer of records may have any beginning, so the mark is compared first.
            if is_like(&mark) {
                if behind.marks.len() < MAX_MARKS {
                    behind.marks.push((GuardPart::Footer, pos));
                }
            } else if own.is_some_and(|own| is_like(&own)) {
                behind.like = Some(pos);
            }
            return Ok(());
        };
        for wrong in &mut self.guards.wrong {
            let last = wrong.records.as_ref().map_or(u64::MAX, |records| *records.end());
            wrong.was_durable |= wrong.session == footer.session && last <= footer.durable;
        }
        if footer.records == 0 && footer.begin == block && footer.first == next_msn && footer.chain == chain {
            if self.guards.wholly && self.guards.behind.marks.len() < MAX_MARKS {
                let zeros = self.bytes(block, BLOCK as usize - FOOTER_BYTES)?;
                let wrong = zeros.iter().position(|byte| *byte != 0);
                self.guards.behind.marks.extend(wrong.map(|at| (GuardPart::Padding, block + at as u64)));
            }
        } else if let Some(reading) = reading {
            let begins_there = match reading.begin {
                Begin::At(begin) => {
                    (begin, reading.first, reading.chain) == (footer.begin, footer.first, footer.chain)
                }
                Begin::BeforeStart => footer.begin <= self.start.pos,
                Begin::Unknown => false,
            };
            let is_own = footer.records_end() == here && footer.last == next_msn - 1;
            if begins_there && is_own && footer.session == reading.session && footer.end() == block + BLOCK {
                self.guards.behind.footer = Some(footer);
            }
        }
        if reading.is_some_and(|reading| reading.session == footer.session) {
            let behind = &mut self.guards.behind;
            behind.durable = behind.durable.max(footer.durable);
        }
        Ok(())
    }

    /// Verifies the guard of the write-out that ends with the last record. `next` is the position at which the next one
    /// begins.
    pub(super) fn leave_write_out(&mut self, next: Option<u64>) -> Result<()> {
        let behind = std::mem::take(&mut self.guards.behind);
        self.guards.next_begin = next;
        let reading = self.guards.reading.take();
        for (part, pos) in behind.marks {
            self.guards.tell(Wrong {
                part,
                pos,
                records: None,
                session: 0,
                was_durable: false,
                was_written: true,
            });
        }
        let Some(Reading { begin, first, session, .. }) = reading else { return Ok(()) };
        let last = self.next_msn - 1;
        let end = next.unwrap_or_else(|| self.limit());
        let (wrong, was_written) = match behind.footer.filter(|footer| footer.end() <= end) {
            Some(footer) => (self.wrong_parts(&footer)?, true),
            None => {
                let records = |begin: u64| usize::try_from(self.at.pos - begin).ok();
                let due = match begin {
                    Begin::At(begin) => records(begin).map(|records| begin + guard::total(records)),
                    _ => None,
                };
                let due = due.filter(|due| *due <= end).map(|due| due - FOOTER_BYTES as u64);
                let at = behind.like.or(due);
                (at.map(|at| (GuardPart::Footer, at)).into_iter().collect(), behind.like.is_some())
            }
        };
        for (part, pos) in wrong {
            self.guards.tell(Wrong {
                part,
                pos,
                records: Some(first..=last),
                session,
                was_durable: last <= behind.durable,
                was_written,
            });
        }
        Ok(())
    }

    /// The wrong parts of a guard whose footer is right, with their positions.
    fn wrong_parts(&mut self, footer: &Footer) -> Result<Vec<(GuardPart, u64)>> {
        let total = footer.end() - footer.begin;
        if !self.guards.wholly || total > self.region.size {
            return Ok(Vec::new());
        }
        let proven = self.start.pos.saturating_sub(footer.begin) as usize;
        let bytes = self.bytes(footer.begin, total as usize)?.to_vec();
        let wrong = guard::verify(bytes, footer, self.region.store, proven);
        Ok(wrong.into_iter().map(|(part, at)| (part, footer.begin + at as u64)).collect())
    }

    /// What is to be reported of the guards, at the end of the log.
    pub(super) fn found_in_guards(&mut self) -> Vec<Found> {
        let wrong = std::mem::take(&mut self.guards.wrong);
        let told = |wrong: &Wrong| {
            (wrong.was_durable || wrong.was_written)
                && (wrong.part != GuardPart::Footer || !self.guards.wholly)
        };
        let found =
            wrong.into_iter().filter(told).map(|Wrong { part, pos, records, was_durable, .. }| {
                Found::Guard(WrongGuard { part, at: self.place(pos), records, was_durable })
            });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        device::{Device, MemDevice, SimDevice},
        store::log::{BlobPlacer, Group, Log, Placed, Region},
    };

    /// For a log without values outside it, whose recovery mends it.
    struct Nowhere;

    impl BlobPlacer for Nowhere {
        fn place(&self, _: Group, _: usize) -> Result<Placed> {
            Ok(Placed { payloads: Vec::new(), extents: Vec::new() })
        }
    }

    const SIZE: u64 = 64 * BLOCK;

    fn region(device: &Arc<impl Device>) -> Region {
        Region { device: device.clone(), base: 0, size: SIZE, store: 0 }
    }

    fn replay(device: &Arc<impl Device>, (start, first): (LogPos, u64), wholly: bool) -> Replay {
        let mut replay = Log::replay(region(device), start, first, 0, false, false);
        if wholly {
            replay.verify_guards();
        }
        while replay.next().unwrap().is_some() {}
        replay
    }

    /// What two readers tell, of which one verifies the footers.
    fn told(device: &Arc<impl Device>, start: (LogPos, u64)) -> Vec<WrongGuard> {
        let readers = [false, true].map(|wholly| replay(device, start, wholly).found().to_vec());
        let guards = readers.into_iter().flatten().filter_map(|found| match found {
            Found::Guard(wrong) => Some(wrong),
            _ => None,
        });
        guards.collect()
    }

    fn number(device: &Arc<impl Device>, byte: u64) -> u8 {
        let mut bytes = [0];
        device.read_at(byte, &mut bytes).unwrap();
        bytes[0]
    }

    /// A log with write-outs of several lengths, of which the first records are not needed any more.
    #[test]
    fn every_byte_behind_the_start_is_a_record_or_is_verified() {
        for skipped in 0..4 {
            let device = Arc::new(MemDevice::new(SIZE));
            let log = Log::open(device.clone(), 0, SIZE, LogPos { pos: 0, chain: 7 }, 1);
            let (mut ends, mut written) = (Vec::new(), Vec::new());
            for (count, len) in [(5, 700), (1, 100), (3, 2000), (3, 25_000)] {
                for n in 0..count {
                    ends.push(log.append(&[&vec![n as u8 + 1; len]]).unwrap().1);
                }
                log.sync().unwrap();
                let behind = ends.last().unwrap().pos;
                written.push(behind..log.used());
            }
            log.append(&[&[3]]).unwrap();
            log.sync().unwrap();
            let start = match skipped {
                0 => (LogPos { pos: 0, chain: 7 }, 1),
                n => (ends[n - 1], n as u64 + 1),
            };
            assert!(told(&device, start).is_empty());
            for (i, guard) in written.iter().enumerate() {
                let step = (guard.end - guard.start) as usize / 300 + 1;
                // Checksums of units in which not all is needed: of the first write-out, which has 8.
                let sums = guard.end - 64 - 8 * 4;
                let unproven = sums..sums + if i == 0 { start.0.pos.div_ceil(512) * 4 } else { 0 };
                for at in (guard.clone()).step_by(step).chain(guard.end - 64..guard.end) {
                    if unproven.contains(&at) {
                        continue;
                    }
                    let before = number(&device, at);
                    device.write_at(at, &[before ^ 0x10]).unwrap();
                    let found = told(&device, start);
                    let is_footer = at + 64 >= guard.end;
                    assert!(
                        found.len() == 1
                            && found[0].was_durable
                            && (found[0].part == GuardPart::Footer) == is_footer
                            && (!is_footer || found[0].at == guard.end - 64),
                        "{skipped} skipped, write-out {i}, byte {at}: {found:?}"
                    );
                    device.write_at(at, &[before]).unwrap();
                }
            }
        }
    }

    /// The last write-out may have been torn, and so may a mark at any time.
    #[test]
    fn what_a_crash_may_have_torn_is_no_damage() {
        let device = Arc::new(MemDevice::new(SIZE));
        let start = (LogPos { pos: 0, chain: 7 }, 1);
        let log = Log::open(device.clone(), 0, SIZE, start.0, 1);
        log.append(&[b"one"]).unwrap();
        log.sync().unwrap();
        log.mark_rest().unwrap();
        log.append(&[b"two"]).unwrap();
        log.sync().unwrap();
        assert!(told(&device, start).is_empty());
        for (byte, damage) in
            [(0, true), (1, false), (2, false)].map(|(block, damage)| (block * BLOCK + 4032, damage))
        {
            for at in byte..byte + 64 {
                let before = number(&device, at);
                device.write_at(at, &[before ^ 1]).unwrap();
                let found = told(&device, start);
                assert!(found.len() == 1 && found[0].was_durable == damage, "byte {at}: {found:?}");
                device.write_at(at, &[before]).unwrap();
            }
        }
        // What was not written at all is not told of.
        device.write_at(2 * BLOCK + 512, &[0; 3584]).unwrap();
        assert!(told(&device, start).is_empty());
        assert_eq!(replay(&device, start, false).position().pos, 2 * BLOCK + 40);
    }

    /// Lives of random work, each ended by a crash, in a ring that goes round: no guard is called damaged, in whatever
    /// way the next session writes over it.
    #[test]
    fn no_crash_makes_a_guard_look_damaged() {
        let (mut torn, mut durable) = (0, 0);
        for seed in 0..3000 {
            let rng = &mut StdRng::seed_from_u64(seed);
            let mut device = Arc::new(SimDevice::new(SIZE, seed));
            let mut start = (LogPos { pos: 0, chain: seed }, 1);
            let mut log = Log::open(device.clone(), 0, SIZE, start.0, 1);
            for _life in 0..5 {
                let mut ends = Vec::new();
                for _ in 0..rng.random_range(0..30) {
                    let len = match rng.random_range(0..8) {
                        0 => 4064 - rng.random_range(0..5) * 8,
                        1..6 => rng.random_range(0..1500),
                        _ => rng.random_range(0..SIZE as usize / 5),
                    };
                    let byte: u8 = rng.random();
                    if let Ok(appended) = log.append(&[&vec![byte; len]]) {
                        ends.push(appended);
                    }
                    match rng.random_range(0..8) {
                        0..2 => log.sync().unwrap(),
                        2 => log.write_out().unwrap(),
                        3 => log.mark_rest().unwrap(),
                        4 if !ends.is_empty() => {
                            // A checkpoint writes the log first.
                            log.write_out().unwrap();
                            let (msn, end) = ends[rng.random_range(0..ends.len())];
                            ends.retain(|(other, _)| *other > msn);
                            start = (end, msn + 1);
                            device.flush().unwrap();
                            log.truncate(end);
                        }
                        _ => (),
                    }
                }
                durable += log.durable_msn() + 1 - start.1.min(log.durable_msn() + 1);
                device = device.reopen();
                let found = told(&device, start);
                let damage = found.iter().find(|wrong| wrong.was_durable);
                assert!(damage.is_none(), "seed {seed}: {damage:?}");
                torn += found.len();
                let placer = seed.is_multiple_of(2).then(|| Arc::new(Nowhere) as Arc<dyn BlobPlacer>);
                log = replay(&device, start, false).into_log(placer).unwrap();
            }
        }
        assert!(torn > 100 && durable > 10_000, "{torn} torn guards, {durable} durable records");
    }
}
