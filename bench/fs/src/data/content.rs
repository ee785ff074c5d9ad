//! Bytes that nothing compresses, known at every offset.
//!
//! They repeat after some MiB, which is further than any compressor looks
//! back, but for a stamp in each 4 KiB that is a function of the offset: data
//! at the wrong place is seen, and producing them costs a copy.

use anyhow::{Result, ensure};
use pando_bench_common::Random;

use super::mix;

const POOL_BYTES: usize = 4 << 20;
const STAMP_EVERY: u64 = 4096;
const STAMP_BYTES: u64 = 8;

/// The content of one file, however long.
pub struct Content {
    seed: u64,
    pool: Vec<u8>,
}

impl Content {
    /// The content of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, pool: Random::new(seed).bytes(POOL_BYTES) }
    }

    /// Fills `out` with what stands at `offset`.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let from = ((offset + done as u64) % POOL_BYTES as u64) as usize;
            let piece = (out.len() - done).min(POOL_BYTES - from);
            out[done..done + piece].copy_from_slice(&self.pool[from..from + piece]);
            done += piece;
        }
        let end = offset + out.len() as u64;
        let mut at = offset / STAMP_EVERY * STAMP_EVERY;
        while at < end {
            let stamp = mix(self.seed, at).to_le_bytes();
            let (from, to) = (at.max(offset), (at + STAMP_BYTES).min(end));
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&stamp[(from - at) as usize..(to - at) as usize]);
            }
            at += STAMP_EVERY;
        }
    }

    /// What stands at `offset`.
    pub fn at(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.fill(offset, &mut out);
        out
    }

    /// An error if `found` is not what stands at `offset`. `scratch` is memory to use.
    pub fn check(&self, offset: u64, found: &[u8], scratch: &mut Vec<u8>) -> Result<()> {
        scratch.resize(found.len(), 0);
        self.fill(offset, scratch);
        ensure!(scratch == found, "wrong data in the {} bytes at {offset}", found.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_the_same_however_it_is_cut() {
        let content = Content::new(3);
        let start = POOL_BYTES as u64 - 5000;
        let whole = content.at(start, 20_000);
        for (from, len) in [(0, 1), (900, 3), (903, 8), (905, 6000), (4999, 15_000)] {
            assert_eq!(content.at(start + from as u64, len), whole[from..from + len]);
        }
    }

    #[test]
    fn data_of_another_place_is_seen() {
        let content = Content::new(4);
        let moved = content.at(4096, 4096 + POOL_BYTES);
        let mut scratch = Vec::new();
        assert!(content.check(4096, &moved, &mut scratch).is_ok());
        // The pool repeats here, the stamp does not.
        let repeated = content.at(4096 + POOL_BYTES as u64, 4096);
        assert!(content.check(4096, &repeated, &mut scratch).is_err());
    }
}
