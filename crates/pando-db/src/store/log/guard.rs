//! The guard: parity and checksums behind the records of one write-out. With them a reader finds damage, distinguishes
//! it from a torn end of the log, and repairs it.
//!
//! A write-out is records, then its guard, and ends at a block boundary:
//!
//! ```text
//! records | zeros to a whole unit | parity units | zeros | a sum u32 for each unit | footer
//! ```
//!
//! The records are cut into units ([`fn@unit`]). Unit i is in stripe i mod m; the parity unit of a stripe is the
//! exclusive-or of its units and of bytes 0xff. So one unit of each stripe can be computed from the others. The bytes
//! 0xff keep the parity of a single unit from being a copy of it, in which a reader could find valid records. There are
//! as many parity units (m) as fit into the padding, and at least one for every [`UNITS_PER_PARITY`] units. The sums
//! say which unit is damaged.
//!
//! The footer has the numbers of the records, the checksum that their chain begins with, and the number of the last
//! record that was durable when the footer was written. It has a checksum of its own, seeded with a number of the
//! store. Records do not depend on the guard: they are replayed without it as well. No I/O.
//!
//! | byte of the footer | field (little-endian) |
//! | --- | --- |
//! | 0 | magic u32 |
//! | 4 | bytes of records u32 |
//! | 8 | position u64 where the write-out begins |
//! | 16 | session u64 |
//! | 24 | MSN u64 of the first record; behind the last one if there are none |
//! | 32 | MSN u64 of the last record |
//! | 40 | MSN u64 up to which all was durable before |
//! | 48 | checksum u64 of the record before the first: the chain's seed |
//! | 56 | checksum u64: xxh3_64 of bytes 0..56, seeded with the store's number |

use std::ops::Range;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::device::BLOCK;

/// Length of a footer in bytes.
pub(crate) const FOOTER_BYTES: usize = 64;
const FOOTER_MAGIC: u32 = 0x6775_6172;
/// At most so many units share a parity unit.
const UNITS_PER_PARITY: usize = 128;
/// Bytes of a unit of a short write-out: so small that the guard fits into the rest of the last block.
const SMALL_UNIT_BYTES: usize = 512;
/// A write-out with at most so many bytes of records is short.
const SMALL_LIMIT_BYTES: usize = 64 << 10;
/// Bytes of the checksum of a unit.
const SUM_BYTES: usize = 4;

/// Bytes of a unit in a write-out with so many bytes of records.
pub(crate) fn unit(records: usize) -> usize {
    if records <= SMALL_LIMIT_BYTES { SMALL_UNIT_BYTES } else { BLOCK as usize }
}

/// A part of a write-out besides its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardPart {
    /// The numbers and the length of the records.
    Footer,
    /// The units from which damaged ones are computed.
    Parity,
    /// The checksums of the units.
    Sums,
    /// The zeros behind the records and between the other parts.
    Padding,
}

/// How a write-out is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    unit: usize,
    /// Units of records.
    units: usize,
    /// Parity units.
    parity: usize,
    /// Bytes of the whole write-out, a multiple of the block size.
    pub(crate) total: usize,
}

impl Layout {
    /// The layout for so many bytes of records.
    pub(crate) fn of(records: usize) -> Self {
        let unit = unit(records);
        let units = records.div_ceil(unit);
        let rest = units * SUM_BYTES + FOOTER_BYTES;
        let total =
            ((units + units.div_ceil(UNITS_PER_PARITY)) * unit + rest).next_multiple_of(BLOCK as usize);
        let parity = (total - rest - units * unit) / unit;
        Self { unit, units, parity: parity.min(units), total }
    }

    fn parity_at(&self) -> usize {
        self.units * self.unit
    }

    fn sums_at(&self) -> usize {
        self.total - FOOTER_BYTES - self.units * SUM_BYTES
    }
}

/// Bytes that a write-out of so many bytes of records takes.
pub(crate) fn total(records: usize) -> u64 {
    Layout::of(records).total as u64
}

/// The fields of a footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footer {
    /// Bytes of records.
    pub(crate) records: u32,
    /// Position where the write-out begins.
    pub(crate) begin: u64,
    pub(crate) session: u64,
    /// Sequence numbers of its first and last record.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Every record up to this number was durable when the footer was written.
    pub(crate) durable: u64,
    /// The checksum of the record before its first record, which seeds the chain.
    pub(crate) chain: u64,
}

impl Footer {
    /// Position behind the records.
    pub(crate) fn records_end(&self) -> u64 {
        self.begin.saturating_add(self.records.into())
    }

    /// Position behind the write-out.
    pub(crate) fn end(&self) -> u64 {
        self.begin.saturating_add(total(self.records as usize))
    }

    /// Whether a position is between the beginning of the write-out and the end of its records, both included.
    pub(crate) fn holds(&self, pos: u64) -> bool {
        (self.begin..=self.records_end()).contains(&pos)
    }

    /// How many fields of this footer these bytes have too, and how many there are: all but `durable` and the
    /// checksum.
    pub(crate) fn likeness(&self, bytes: &[u8; FOOTER_BYTES]) -> (usize, usize) {
        const FIELDS: [Range<usize>; 7] = [0..4, 4..8, 8..16, 16..24, 24..32, 32..40, 48..56];
        let own = self.encode(0);
        let same = FIELDS.iter().filter(|field| own.get((*field).clone()) == bytes.get((*field).clone()));
        (same.count(), FIELDS.len())
    }

    fn encode(&self, seed: u64) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..4].copy_from_slice(&FOOTER_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.records.to_le_bytes());
        let words = [self.begin, self.session, self.first, self.last, self.durable, self.chain];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&bytes[..FOOTER_BYTES - 8], seed);
        bytes[FOOTER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The footer in these bytes, if there is a valid one.
    pub(crate) fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let bytes: &[u8; FOOTER_BYTES] = bytes.try_into().ok()?;
        if bytes[..4] != FOOTER_MAGIC.to_le_bytes() {
            return None;
        }
        let sum = xxh3_64_with_seed(&bytes[..FOOTER_BYTES - 8], seed);
        if bytes[FOOTER_BYTES - 8..] != sum.to_le_bytes() {
            return None;
        }
        // A forged footer may have any position. Later sums of positions must not overflow.
        Some(Self::fields(bytes))
            .filter(|footer| footer.begin < 1 << 62 && footer.begin.is_multiple_of(BLOCK))
    }

    /// These bytes as the fields of a footer, whether they are one or not.
    pub(crate) fn fields(bytes: &[u8; FOOTER_BYTES]) -> Self {
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let records = bytes[4..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
        let (begin, session, first) = (word(8), word(16), word(24));
        let (last, durable, chain) = (word(32), word(40), word(48));
        Self { records, begin, session, first, last, durable, chain }
    }
}

/// Puts the guard behind the records in `buffer`.
pub(crate) fn close(buffer: &mut Vec<u8>, footer: &Footer, seed: u64) {
    let layout = Layout::of(buffer.len());
    assert_eq!(footer.records as usize, buffer.len(), "a footer counts other records than it closes");
    buffer.resize(layout.total, 0);
    let (units, guard) = buffer.split_at_mut(layout.parity_at());
    guard[..layout.parity * layout.unit].fill(0xff);
    let sums = layout.sums_at() - layout.parity_at();
    for (i, unit) in units.chunks_exact(layout.unit).enumerate() {
        let stripe = i % layout.parity * layout.unit;
        xor(&mut guard[stripe..stripe + layout.unit], unit);
        guard[sums + i * SUM_BYTES..][..SUM_BYTES].copy_from_slice(&sum(unit));
    }
    let at = guard.len() - FOOTER_BYTES;
    guard[at..].copy_from_slice(&footer.encode(seed));
}

/// Repairs the records of a whole write-out as far as possible. Returns the places of the units that were repaired.
pub(crate) fn repair(write_out: &mut [u8], records: usize) -> Vec<Range<usize>> {
    let layout = Layout::of(records);
    if write_out.len() != layout.total || layout.parity == 0 {
        return Vec::new();
    }
    let mut repaired = Vec::new();
    let bad_units: Vec<usize> = (0..layout.units).filter(|i| !has_its_sum(write_out, &layout, *i)).collect();
    for &i in &bad_units {
        let stripe = i % layout.parity;
        // If two units of a stripe are damaged, neither can be computed.
        if bad_units.iter().any(|&j| j != i && j % layout.parity == stripe) {
            continue;
        }
        let mut unit = write_out[layout.parity_at() + stripe * layout.unit..][..layout.unit].to_vec();
        for j in (stripe..layout.units).step_by(layout.parity).filter(|j| *j != i) {
            xor(&mut unit, &write_out[j * layout.unit..][..layout.unit]);
        }
        unit.iter_mut().for_each(|byte| *byte = !*byte);
        let at = i * layout.unit..(i + 1) * layout.unit;
        // Otherwise the parity unit or the sum itself is damaged.
        if write_out[layout.sums_at() + i * SUM_BYTES..][..SUM_BYTES] == sum(&unit) {
            write_out[at.clone()].copy_from_slice(&unit);
            repaired.push(at);
        }
    }
    repaired
}

/// The parts of a write-out that differ from what [`close`] has written, each with its first wrong byte. The caller has
/// verified the footer, and the records from byte `proven` on. The bytes before may have been overwritten.
pub(crate) fn verify(
    mut write_out: Vec<u8>,
    footer: &Footer,
    seed: u64,
    proven: usize,
) -> Vec<(GuardPart, usize)> {
    let records = footer.records as usize;
    let layout = Layout::of(records);
    if write_out.len() != layout.total {
        return Vec::new();
    }
    // The records are right, so a unit that had to be repaired had wrong bytes in the zeros behind them.
    let repaired = repair(&mut write_out, records);
    let mut wrong: Vec<_> = repaired.iter().map(|unit| (GuardPart::Padding, unit.start)).collect();
    wrong.retain(|(_, at)| *at >= proven);
    let mut right: Vec<u8> = write_out.iter().take(records).copied().collect();
    close(&mut right, footer, seed);
    let is_proven = |unit: usize| unit * layout.unit >= proven;
    let is_known = |unit: usize| is_proven(unit) || has_its_sum(&write_out, &layout, unit);
    let parity =
        (0..layout.parity).filter(|stripe| (*stripe..layout.units).step_by(layout.parity).all(is_known));
    let parity = parity.map(|stripe| {
        let at = layout.parity_at() + stripe * layout.unit;
        (GuardPart::Parity, at..at + layout.unit)
    });
    let sums = (0..layout.units).filter(|unit| is_proven(*unit)).map(|unit| {
        let at = layout.sums_at() + unit * SUM_BYTES;
        (GuardPart::Sums, at..at + SUM_BYTES)
    });
    let behind = layout.parity_at() + layout.parity * layout.unit;
    let zeros =
        [records..layout.parity_at(), behind..layout.sums_at()].map(|zeros| (GuardPart::Padding, zeros));
    for (part, at) in parity.chain(sums).chain(zeros) {
        let differs = |i: &usize| right.get(*i) != write_out.get(*i);
        wrong.extend(at.clone().find(differs).map(|at| (part, at)));
    }
    let mut first = Vec::<(GuardPart, usize)>::new();
    for (part, at) in wrong {
        if !first.iter().any(|(other, _)| *other == part) {
            first.push((part, at));
        }
    }
    first
}

/// Whether a unit matches its checksum in the guard.
fn has_its_sum(write_out: &[u8], layout: &Layout, unit: usize) -> bool {
    let at = layout.sums_at() + unit * SUM_BYTES;
    write_out[at..at + SUM_BYTES] == sum(&write_out[unit * layout.unit..(unit + 1) * layout.unit])
}

fn xor(into: &mut [u8], from: &[u8]) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a ^= b);
}

/// The checksum of a unit.
fn sum(unit: &[u8]) -> [u8; SUM_BYTES] {
    (xxh3_64(unit) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn write_out(records: usize) -> Vec<u8> {
        let mut buffer: Vec<u8> = (0..records).map(|i| (i * i / 7 + i) as u8).collect();
        let footer = Footer {
            records: records as u32,
            begin: 8192,
            session: 1,
            first: 5,
            last: 6,
            durable: 4,
            chain: 9,
        };
        close(&mut buffer, &footer, 77);
        let at = buffer.len() - FOOTER_BYTES;
        assert_eq!(Footer::decode(&buffer[at..], 77), Some(footer));
        assert_eq!(Footer::decode(&buffer[at..], 78), None);
        assert_eq!(8192 + buffer.len() as u64, footer.end());
        buffer
    }

    #[test]
    fn any_damaged_unit_is_computed_again() {
        for records in [1, 40, 511, 512, 513, 3072, 3073, 5000, 40_000, 65_536, 65_537, 300_000, 2_000_000] {
            let whole = write_out(records);
            let unit = unit(records);
            let step = (records / unit / 40).max(1) * unit + 13;
            for at in (0..records).step_by(step) {
                let mut hurt = whole.clone();
                let from = at / unit * unit;
                hurt[at] ^= 4;
                assert_eq!(repair(&mut hurt, records), vec![from..from + unit]);
                assert!(hurt == whole);
                hurt[from..from + unit].fill(0xee);
                repair(&mut hurt, records);
                assert!(hurt == whole, "{records} bytes, unit at {from}");
            }
        }
    }

    #[test]
    fn guards_are_small() {
        // One block stays one block for what is synced alone, as a rule.
        assert_eq!(total(0), BLOCK);
        assert!((1..=3072).all(|records| total(records) == BLOCK));
        // Room for what may be written is room for less.
        assert!((0..1 << 20).step_by(8).all(|records| total(records) <= total(records + 8)));
        for records in [64 << 10, 128 << 10, 1 << 20, 16 << 20] {
            let share = total(records) as f64 / records as f64;
            assert!(share < 1.08, "{records} bytes: {share}");
        }
        assert!((total(16 << 20) as f64) < (16 << 20) as f64 * 1.01);
    }

    #[test]
    fn what_is_not_as_written_is_told_by_its_part() {
        use GuardPart::{Padding, Parity, Sums};
        for records in [1usize, 40, 512, 3000, 5000, 40_000, 70_001, 300_000] {
            let whole = write_out(records);
            let layout = Layout::of(records);
            let footer = Footer::decode(&whole[layout.total - FOOTER_BYTES..], 77).unwrap();
            let told = |bytes: &[u8], proven| verify(bytes.to_vec(), &footer, 77, proven);
            assert_eq!(told(&whole, 0), []);
            for at in (records..layout.total - FOOTER_BYTES).step_by((layout.total - records) / 400 + 1) {
                let mut hurt = whole.clone();
                hurt[at] ^= 8;
                let found = told(&hurt, 0);
                let behind = layout.parity_at() + layout.parity * layout.unit;
                let (part, at) = match at {
                    // Known by its unit.
                    _ if at < layout.parity_at() => (Padding, at / layout.unit * layout.unit),
                    _ if at < behind => (Parity, at),
                    _ if at < layout.sums_at() => (Padding, at),
                    _ => (Sums, at),
                };
                assert_eq!(found, [(part, at)], "{records} bytes of records, byte {at}");
            }
            // The ring has come round to what is not needed any more.
            for unit in (0..layout.units).step_by(layout.units / 9 + 1) {
                let mut overwritten = whole.clone();
                let end = ((unit + 1) * layout.unit).min(records);
                overwritten[..end].fill(0xc3);
                assert_eq!(told(&overwritten, end), [], "{records} bytes of records, unit {unit}");
            }
        }
    }

    #[test]
    fn what_cannot_be_repaired_is_left() {
        let mut bytes = write_out(600_000);
        // More than a burst of one unit a stripe.
        bytes[..300_000].fill(1);
        let before = bytes.clone();
        assert!(repair(&mut bytes, 600_000).is_empty());
        assert!(bytes == before);
        assert!(repair(&mut bytes, 1).is_empty(), "a length that does not fit");
    }
}
