//! Which blocks of a file with holes exist.
//!
//! Most files have no holes, and nothing is stored about their blocks. The record of a file that has (or had) holes
//! says how many blocks exist from its beginning without a gap (`dense`); for each block behind those a map has a
//! bit. The map is stored in pieces of 512 bits (8 MiB of data) under the data prefix of the file, behind all blocks,
//! so that it is moved, cloned and removed with the data. A piece is changed by upserts, any two of which combine to
//! one. A write needs the pieces of the blocks that it writes, and that of the last block; only a search for holes,
//! and a call that makes holes, need the whole map.
//!
//! Invariant: a bit at or above `dense` is set if and only if the block exists; a file whose record says nothing has no
//! map. (A file with holes that was written by a version without maps counts as a file without holes.)

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use pando_db::{Batch, Cursor, Db, Snapshot};

use crate::{error::Result, limits::BLOCK_SIZE, path};

/// Blocks of a piece.
pub(crate) const PIECE: u64 = 512;
/// Units of `st_blocks` in a block.
const UNITS: u64 = BLOCK_SIZE / 512;
/// Bytes of memory of a piece, its part of the nodes of the tree included, which may be half empty.
const PIECE_MEMORY_BYTES: usize = 2 * (8 + PIECE as usize / 8);
/// Up to so many pieces are removed one by one.
const FEW_PIECES: usize = 8;

/// First byte of an upsert that is an [`Edit`].
pub(crate) const EDIT_TAG: u8 = 3;

/// The bits of a piece.
pub(crate) type Bits = [u64; PIECE as usize / 64];

/// The bits `from..to` of a piece.
fn range(from: u64, to: u64) -> Bits {
    let mut bits = Bits::default();
    for (i, word) in (0u64..).zip(&mut bits) {
        let below = |n: u64| match n.saturating_sub(i * 64) {
            n @ 0..64 => (1u64 << n) - 1,
            _ => u64::MAX,
        };
        *word = below(to) & !below(from);
    }
    bits
}

fn count(bits: &Bits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The bits in a stored piece; bytes beyond are not looked at.
pub(crate) fn decode(value: &[u8]) -> Bits {
    let mut bits = Bits::default();
    for (word, bytes) in bits.iter_mut().zip(value.chunks(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    bits
}

fn put_trimmed(out: &mut BytesMut, bits: &Bits) {
    bits.iter().for_each(|word| out.put_u64_le(*word));
    while out.last() == Some(&0) {
        out.truncate(out.len() - 1);
    }
}

/// A piece as it is stored, without zeros at its end; `None` if nothing is set.
pub(crate) fn encode(bits: &Bits) -> Option<Bytes> {
    let mut out = BytesMut::with_capacity(PIECE as usize / 8);
    put_trimmed(&mut out, bits);
    (!out.is_empty()).then(|| out.freeze())
}

/// A blind change of a piece: bits from `keep` on are cleared, then some are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edit {
    pub keep: u64,
    pub set: Bits,
}

impl Edit {
    pub(crate) fn apply(&self, bits: &Bits) -> Bits {
        let kept = range(0, self.keep);
        std::array::from_fn(|i| bits[i] & kept[i] | self.set[i])
    }

    /// The edit that equals this one followed by `next`.
    pub(crate) fn then(&self, next: &Self) -> Self {
        Self { keep: self.keep.min(next.keep), set: next.apply(&self.set) }
    }

    /// The edit as an upsert: its tag, `keep` (u16), then the bits to set.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(3 + PIECE as usize / 8);
        put_trimmed(&mut out, &self.set);
        let mut op = BytesMut::with_capacity(3 + out.len());
        op.put_u8(EDIT_TAG);
        op.put_u16_le(self.keep.min(PIECE) as u16);
        op.put_slice(&out);
        op.freeze()
    }

    /// The edit in an upsert; `None` if that is something else.
    pub(crate) fn decode(op: &[u8]) -> Option<Self> {
        let (first, rest) = op.split_first()?;
        let (keep, set) = rest.split_at_checked(2)?;
        let keep = u64::from(u16::from_le_bytes(keep.try_into().ok()?));
        let fits = *first == EDIT_TAG && keep <= PIECE && set.len() <= PIECE as usize / 8;
        fits.then(|| Self { keep, set: decode(set) })
    }
}

/// The map of one file in memory, or a part of it: what is stored, and how much of it counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockMap {
    /// The pieces in memory. If only a part of the map was read, this has also the pieces that were read and are empty.
    pieces: BTreeMap<u64, Bits>,
    /// Set bits of the whole map at or above `dense`.
    above: u64,
    part: Option<Part>,
}

/// What is known beside the pieces of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// How many bits are set.
    Counted,
    Uncounted,
}

impl BlockMap {
    /// Reads the map under a data prefix. One scan of 64 bytes or less for 8 MiB of the file.
    pub(crate) fn read(db: &Db, data: &[u8], dense: u64) -> Result<Self> {
        let [from, to] = Self::keys(data);
        Self::collect(db.range(&from, Some(&to)), data, dense)
    }

    /// [`BlockMap::read`] of the state that `view` shows.
    pub(crate) fn read_in(view: &Snapshot, data: &[u8], dense: u64) -> Result<Self> {
        let [from, to] = Self::keys(data);
        Self::collect(view.range(&from, Some(&to)), data, dense)
    }

    /// A part without pieces of the map of a file in which so many bits are set at or above the dense beginning, if
    /// that is known.
    pub(crate) fn part(above: Option<u64>) -> Self {
        let part = if above.is_some() { Part::Counted } else { Part::Uncounted };
        Self { pieces: BTreeMap::new(), above: above.unwrap_or_default(), part: Some(part) }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.part.is_none()
    }

    /// Whether it is known how many bits are set.
    pub(crate) fn is_counted(&self) -> bool {
        self.part != Some(Part::Uncounted)
    }

    /// Set bits at or above the dense beginning, of a map that is counted.
    pub(crate) fn blocks_above(&self) -> u64 {
        self.above
    }

    /// Whether the piece of a block is here, or known to have nothing.
    fn has_piece_of(&self, block: u64) -> bool {
        self.is_whole() || self.pieces.contains_key(&(block / PIECE))
    }

    /// Whether [`BlockMap::load`] of these blocks has nothing to read.
    pub(crate) fn has(&self, first: u64, last: u64) -> bool {
        (first / PIECE..=last / PIECE).all(|piece| self.has_piece_of(piece * PIECE))
    }

    /// Reads the pieces of the blocks `first..=last`, which a part does not have yet. One scan.
    pub(crate) fn load(db: &Db, data: &[u8], first: u64, last: u64) -> Result<BTreeMap<u64, Bits>> {
        let mut pieces: BTreeMap<u64, Bits> =
            (first / PIECE..=last / PIECE).map(|piece| (piece, Bits::default())).collect();
        let key = |piece: u64| path::block(data, path::MAP | piece);
        let mut pairs = db.range(&key(first / PIECE), Some(&key(last / PIECE + 1)));
        while let Some((key, value)) = pairs.next_ref()? {
            if let Some(bits) = path::block_of(data, key).and_then(|n| pieces.get_mut(&(n & !path::MAP))) {
                *bits = decode(value);
            }
        }
        Ok(pieces)
    }

    /// Takes in pieces that were read; those that are here already are the same.
    pub(crate) fn take_in(&mut self, pieces: BTreeMap<u64, Bits>) {
        if !self.is_whole() {
            self.pieces.extend(pieces);
        }
    }

    /// A part learns from the whole map, for a file of this size, how many blocks there are.
    pub(crate) fn count_by(&mut self, whole: &BlockMap, size: u64) {
        if self.is_whole() {
            return;
        }
        (self.above, self.part) = (whole.above, Some(Part::Counted));
        if let Some(last) = size.div_ceil(BLOCK_SIZE).checked_sub(1) {
            let piece = last / PIECE;
            self.pieces.insert(piece, whole.pieces.get(&piece).copied().unwrap_or_default());
        }
    }

    /// Bounds of the keys of the pieces.
    fn keys(data: &[u8]) -> [Bytes; 2] {
        [path::block(data, path::MAP), path::block(data, path::ATTRS_BEGIN)]
    }

    fn collect(mut pairs: Cursor, data: &[u8], dense: u64) -> Result<Self> {
        let mut map = Self::default();
        while let Some((key, value)) = pairs.next_ref()? {
            if let Some(number) = path::block_of(data, key) {
                map.pieces.insert(number & !path::MAP, decode(value));
            }
        }
        map.above = map.count(dense, u64::MAX);
        Ok(map)
    }

    /// About how much memory it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.pieces.len() * PIECE_MEMORY_BYTES) as u64
    }

    /// Set bits of blocks `from..to`.
    fn count(&self, from: u64, to: u64) -> u64 {
        if from >= to {
            return 0;
        }
        let pieces = self.pieces.range(from / PIECE..=(to - 1) / PIECE);
        pieces
            .map(|(piece, bits)| {
                let start = piece.saturating_mul(PIECE);
                let within = range(from.saturating_sub(start), to.saturating_sub(start));
                count(&std::array::from_fn(|i| bits[i] & within[i]))
            })
            .sum()
    }

    /// Whether the bit of a block is set.
    pub(crate) fn exists(&self, block: u64) -> bool {
        self.count(block, block.saturating_add(1)) > 0
    }

    /// Adds to `batch` that none of the blocks `from..to` exists, whatever the map says of them.
    pub(crate) fn clear(&mut self, batch: &mut Batch, data: &Bytes, from: u64, to: u64) {
        assert!(self.is_whole(), "a part of a map does not say which pieces are to go");
        if from >= to {
            return;
        }
        let key = |piece: u64| path::block(data, path::MAP | piece);
        let whole = from.div_ceil(PIECE)..to / PIECE;
        let gone: Vec<u64> = match whole.is_empty() {
            true => Vec::new(),
            false => self.pieces.range(whole.clone()).map(|(piece, _)| *piece).collect(),
        };
        gone.iter().for_each(|piece| _ = self.pieces.remove(piece));
        if gone.len() > FEW_PIECES {
            batch.delete_range(key(whole.start), Some(key(whole.end)));
        } else {
            gone.iter().for_each(|piece| _ = batch.delete(key(*piece)));
        }
        // At most two pieces are cut; they may be one.
        let mut cut = [from / PIECE, (to - 1) / PIECE].to_vec();
        cut.dedup();
        for piece in cut.into_iter().filter(|piece| !whole.contains(piece)) {
            let start = piece * PIECE;
            let (keep, end) = (from.saturating_sub(start), (to - start).min(PIECE));
            if let Some(bits) = self.pieces.get_mut(&piece) {
                let behind = range(end, PIECE);
                let edit = Edit { keep, set: std::array::from_fn(|i| bits[i] & behind[i]) };
                batch.upsert(key(piece), edit.encode());
                *bits = edit.apply(bits);
            }
        }
    }

    /// Counts anew, for another dense beginning.
    pub(crate) fn recount(&mut self, dense: u64) {
        assert!(self.is_whole(), "a part of a map cannot be counted");
        self.above = self.count(dense, u64::MAX);
    }

    /// The first block of `from..to` whose bit is `set`, or is not.
    pub(crate) fn next(&self, from: u64, to: u64, set: bool) -> Option<u64> {
        assert!(self.is_whole(), "a part of a map does not say where the next block is");
        let flip = if set { 0 } else { u64::MAX };
        let mut at = from;
        while at < to {
            let (piece, within) = (at / PIECE, at % PIECE);
            let Some(bits) = self.pieces.get(&piece) else {
                if !set {
                    return Some(at);
                }
                at = self.pieces.range(piece + 1..).next()?.0.saturating_mul(PIECE);
                continue;
            };
            let wanted = range(within, PIECE);
            let found = (0u64..).zip(bits.iter().zip(wanted)).find_map(|(i, (word, wanted))| {
                let bits = (word ^ flip) & wanted;
                (bits != 0).then(|| piece * PIECE + i * 64 + u64::from(bits.trailing_zeros()))
            });
            match found {
                Some(block) => return (block < to).then_some(block),
                None => at = (piece + 1) * PIECE,
            }
        }
        None
    }

    /// First and last block of each run of set bits in `from..to`.
    pub(crate) fn runs(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        assert!(self.is_whole(), "a part of a map does not say which blocks there are");
        let mut runs: Vec<(u64, u64)> = Vec::new();
        if from >= to {
            return runs;
        }
        for (piece, bits) in self.pieces.range(from / PIECE..=(to - 1) / PIECE) {
            let start = piece.saturating_mul(PIECE);
            let words = (0u64..).zip(bits).filter(|(_, word)| **word != 0);
            for (i, word) in words {
                let set = (0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| start + i * 64 + bit);
                for block in set.filter(|b| (from..to).contains(b)) {
                    match runs.last_mut() {
                        Some((_, last)) if *last + 1 == block => *last = block,
                        _ => runs.push((block, block)),
                    }
                }
            }
        }
        runs
    }

    /// Adds to `batch` that blocks `first..=last` exist, as far as it is not known.
    pub(crate) fn set(&mut self, batch: &mut Batch, data: &Bytes, first: u64, last: u64) {
        assert!(self.has(first, last), "a piece that was not read does not say what is set already");
        for piece in first / PIECE..=last / PIECE {
            let start = piece * PIECE;
            let wanted = range(first.saturating_sub(start), last + 1 - start);
            let counted = self.is_counted();
            let bits = self.pieces.entry(piece).or_default();
            let set: Bits = std::array::from_fn(|i| wanted[i] & !bits[i]);
            if set != Bits::default() {
                let edit = Edit { keep: PIECE, set };
                batch.upsert(path::block(data, path::MAP | piece), edit.encode());
                *bits = edit.apply(bits);
                if counted {
                    self.above += count(&set);
                }
            }
        }
    }

    /// The blocks `from..to` are part of the dense beginning now.
    pub(crate) fn grown(&mut self, from: u64, to: u64) {
        if self.is_counted() {
            self.above -= self.count(from, to);
        }
    }

    /// Adds to `batch` that no block from `end` on exists; `dense` is what is left of the beginning.
    pub(crate) fn cut(&mut self, batch: &mut Batch, data: &Bytes, end: u64, dense: u64) {
        assert!(self.is_whole(), "a part of a map does not say which pieces are to go");
        let (piece, within) = (end / PIECE, end % PIECE);
        let first = if within == 0 { piece } else { piece + 1 };
        let gone = self.pieces.split_off(&first);
        if gone.len() > FEW_PIECES {
            batch.delete_range(
                path::block(data, path::MAP | first),
                Some(path::block(data, path::ATTRS_BEGIN)),
            );
        } else {
            for piece in gone.keys() {
                batch.delete(path::block(data, path::MAP | piece));
            }
        }
        if within != 0
            && let Some(bits) = self.pieces.get_mut(&piece)
        {
            let edit = Edit { keep: within, set: Bits::default() };
            batch.upsert(path::block(data, path::MAP | piece), edit.encode());
            *bits = edit.apply(bits);
        }
        self.above = self.count(dense, u64::MAX);
    }

    /// What `st_blocks` is, unless this is a part that does not say so: see [`BlockMap::units`].
    pub(crate) fn known_units(&self, dense: u64, size: u64) -> Option<u64> {
        let last = size.div_ceil(BLOCK_SIZE).checked_sub(1);
        let ends = last.is_none_or(|last| last < dense || self.has_piece_of(last));
        (self.is_counted() && ends).then(|| self.units(dense, size))
    }

    /// The value of `st_blocks`: units of 512 bytes of the blocks that exist; the last block counts up to the end of
    /// the file. If only a part of the map is in memory, its blocks must have been counted, and the piece of the last
    /// block must be there if that block exists.
    pub(crate) fn units(&self, dense: u64, size: u64) -> u64 {
        let blocks = dense + self.above;
        let Some(last) = size.div_ceil(BLOCK_SIZE).checked_sub(1) else { return 0 };
        let exists = last < dense || self.count(last, last + 1) > 0;
        let beyond = (last + 1) * BLOCK_SIZE - size;
        blocks * UNITS - if exists { beyond / 512 } else { 0 }
    }

    /// [`BlockMap::units`] after the dense beginning has grown from `dense` to `to`.
    pub(crate) fn units_grown(&self, dense: u64, to: u64, size: u64) -> u64 {
        let above = self.above - self.count(dense, to);
        let mut grown = Self { pieces: BTreeMap::new(), above, part: None };
        let Some(last) = size.div_ceil(BLOCK_SIZE).checked_sub(1) else { return 0 };
        if last >= to && self.exists(last) {
            grown
                .pieces
                .extend(self.pieces.get_key_value(&(last / PIECE)).map(|(piece, bits)| (*piece, *bits)));
        }
        grown.units(to, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_edits_are_one() {
        let edits: Vec<_> = [(512, 0, 1), (512, 500, 512), (100, 0, 0), (0, 63, 65), (64, 70, 300)]
            .map(|(keep, from, to)| Edit { keep, set: range(from, to) })
            .into();
        for a in &edits {
            assert_eq!(Edit::decode(&a.encode()), Some(*a));
            for b in &edits {
                for old in [Bits::default(), [u64::MAX; 8], range(3, 400)] {
                    assert_eq!(a.then(b).apply(&old), b.apply(&a.apply(&old)), "{a:?} {b:?}");
                }
            }
        }
        for bad in [&b""[..], b"\x03", b"\x03\x01", b"\x03\x01\x03", b"\x08\x00\x00"] {
            assert_eq!(Edit::decode(bad), None);
        }
    }

    #[test]
    fn cleared_bits_are_found_as_such() {
        let data = Bytes::from_static(b"data");
        let mut map = BlockMap::default();
        let mut model = vec![false; 4000];
        let mut seed = 5u64;
        for _ in 0..300 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (a, b) = ((seed >> 33) % 4000, (seed >> 45) % 4000);
            let (from, to) = (a.min(b), a.max(b));
            let mut batch = Batch::new();
            match seed >> 20 & 1 {
                0 if from < to => map.set(&mut batch, &data, from, to - 1),
                _ => map.clear(&mut batch, &data, from, to),
            }
            model[from as usize..to as usize].fill(seed >> 20 & 1 == 0);
            assert!(batch.len() <= 12, "a range is few messages");
            for set in [false, true] {
                let next = (a..4000).find(|i| model[*i as usize] == set);
                assert_eq!(map.next(a, 4000, set), next, "{a} {set}");
            }
            map.recount(0);
            assert_eq!(map.above, model.iter().filter(|set| **set).count() as u64);
        }
    }

    #[test]
    fn a_part_says_what_the_whole_map_says() {
        let data = Bytes::from_static(b"data");
        let mut random = 7u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        for round in 0..40 {
            let mut dense = below(600);
            let mut whole = BlockMap::default();
            for _ in 0..below(8) {
                let first = dense + below(6000);
                whole.set(&mut Batch::new(), &data, first, first + below(30));
            }
            whole.recount(dense);
            let mut part = BlockMap::part((round % 2 == 0).then_some(whole.above));
            let mut size = (dense + below(6000)) * BLOCK_SIZE + below(BLOCK_SIZE);
            let load = |part: &mut BlockMap, whole: &BlockMap, first: u64, last: u64| {
                let bits = |piece: u64| whole.pieces.get(&piece).copied().unwrap_or_default();
                part.take_in((first / PIECE..=last / PIECE).map(|piece| (piece, bits(piece))).collect());
            };
            for step in 0..200 {
                let (first, blocks) = (dense + below(6000), below(30));
                let last = first + blocks;
                load(&mut part, &whole, first, last);
                assert!(part.has(first, last));
                assert_eq!(part.exists(first), whole.exists(first), "round {round} step {step}");
                match below(4) {
                    0 => {
                        let to = dense + blocks + 1;
                        load(&mut part, &whole, dense, to - 1);
                        whole.grown(dense, to);
                        part.grown(dense, to);
                        (dense, size) = (to, size.max(to * BLOCK_SIZE));
                    }
                    1 => part.count_by(&whole, size),
                    _ => {
                        let mut batches = [Batch::new(), Batch::new()];
                        whole.set(&mut batches[0], &data, first, last);
                        part.set(&mut batches[1], &data, first, last);
                        assert_eq!(batches[0].len(), batches[1].len(), "round {round} step {step}");
                        size = size.max((last + 1) * BLOCK_SIZE - below(BLOCK_SIZE));
                    }
                }
                let told = part.known_units(dense, size);
                assert!(
                    told.is_none_or(|told| told == whole.units(dense, size)),
                    "round {round} step {step}"
                );
                let ends = size.div_ceil(BLOCK_SIZE) - 1;
                load(&mut part, &whole, ends, ends);
                assert_eq!(part.known_units(dense, size).is_some(), part.is_counted());
            }
            assert!(part.is_counted() && !part.is_whole());
        }
    }

    #[test]
    fn pieces_are_stored_without_their_zeros() {
        assert_eq!(encode(&Bits::default()), None);
        for (from, to) in [(0, 1), (0, 512), (511, 512), (63, 65), (100, 110)] {
            let bits = range(from, to);
            assert_eq!(count(&bits), to - from);
            assert_eq!(
                encode(&bits).map(|bytes| (bytes.len() as u64, decode(&bytes))),
                Some((to.div_ceil(8), bits))
            );
        }
    }
}
