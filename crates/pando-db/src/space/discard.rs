//! Discarding: returning free space to the medium under the device.
//!
//! Guarantees: only free bytes are discarded, and they are in no list of free bytes meanwhile; afterwards they are
//! raw, so that they are reserved again before they are allocated. Free means that no [`crate::space::Extent`] holds
//! them, and extents are held for everything that a crash at this moment could make recovery read
//! (`docs/crash-safety.md`). The bytes that the caller wants to keep stay backed, or nothing is discarded, because a
//! full host could not back them again. Each call discards one piece of bounded size; allocations that need the
//! device wait for it, others do not.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    space::{BLOCK, Error, Result, Space, SpaceState},
    waiting,
};

/// Smallest range worth a discard, in bytes; a power of two.
const MIN_DISCARD_BYTES: u64 = 64 << 10;
/// Most bytes that were in use and that one discard returns.
const MAX_USED_DISCARD_BYTES: u64 = 64 << 20;
/// Most bytes of which nothing is known, and which cost little if they are a hole already.
const MAX_UNKNOWN_DISCARD_BYTES: u64 = 1 << 30;

/// What a step of discarding must heed.
#[derive(Debug, Clone, Copy)]
pub struct Discarding {
    /// Free bytes that stay backed.
    pub keep: u64,
    /// Keeps also as many bytes as were allocated recently, because these would soon be reserved again.
    pub expect_more: bool,
    /// Discards everything, in pieces down to a block, in turn: for tests.
    pub eager: bool,
}

/// How far discarding has come.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Raw bytes below this have been discarded since the space was opened.
    swept: u64,
    /// Where an eager search continues.
    eager_from: u64,
    /// Bytes allocated when the last round began.
    allocated: u64,
    /// What may be allocated until the next, judging by the last ones.
    demand: u64,
}

impl Progress {
    pub(crate) fn new(start: u64) -> Self {
        Self { swept: start, eager_from: start, allocated: 0, demand: 0 }
    }

    /// There may be something to discard among raw bytes from here on.
    pub(crate) fn sweep_from(&mut self, offset: u64) {
        self.swept = self.swept.min(offset);
    }
}

/// What a piece was, for the case that it cannot be discarded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Was {
    Backed,
    Stale,
    Raw,
}

struct DiscardRange {
    offset: u64,
    len: u64,
    was: Was,
}

impl Space {
    /// Begins a round of steps: takes stock of what was allocated since the last. The bytes that are
    /// expected to be needed until the next: half of it each quiet round, at last none.
    pub fn begin_discards(&self) -> u64 {
        let mut state = self.state();
        let allocated = state.allocated;
        let lately = allocated - std::mem::replace(&mut state.discards.allocated, allocated);
        let fading = state.discards.demand / 2;
        state.discards.demand = lately.max(if fading < MIN_DISCARD_BYTES { 0 } else { fading });
        state.discards.demand
    }

    /// Discards one piece; `false` if there is none to discard now, or the medium cannot.
    ///
    /// An error is the device's. It does no harm to what is stored, but nothing is discarded from then on.
    pub fn discard_step(&self, how: Discarding) -> Result<bool> {
        if self.no_discards.load(Relaxed) {
            return Ok(false);
        }
        let _raising = waiting::take(|| self.raising.try_lock(), || self.raising.lock());
        let keep = {
            let state = self.state();
            let demand = if how.expect_more { state.discards.demand } else { 0 };
            // A step is backed with the first byte that is needed.
            how.keep + if demand > 0 { demand + self.step(&state) } else { 0 }
        };
        let sparse = self.device.is_sparse();
        let backed = {
            let mut state = self.state();
            if state.choose(keep, how.eager, sparse).is_none() {
                return Ok(false);
            }
            state.backed.total() >= keep
        };
        // Some of the bytes that could be discarded may be needed for that.
        if !backed && !self.back_total(keep).inspect_err(|_| self.no_discards.store(true, Relaxed))? {
            return Ok(false);
        }
        let piece = {
            let mut state = self.state();
            // Others may have allocated from what was backed just now.
            if state.backed.total() < keep {
                return Ok(false);
            }
            let Some(piece) = state.choose(keep, how.eager, sparse) else { return Ok(false) };
            state.take_out(&piece);
            piece
        };
        let done = self.device.discard(piece.offset, piece.len);
        let mut state = self.state();
        assert!(state.discarding >= piece.len, "a discard ends that was not counted");
        state.discarding -= piece.len;
        match done {
            Ok(true) => {
                state.add_raw(piece.offset, piece.len);
                // There is room underneath again.
                state.refused = None;
                Ok(true)
            }
            Ok(false) => {
                self.no_discards.store(true, Relaxed);
                state.put_back(&piece);
                Ok(false)
            }
            Err(error) => {
                self.no_discards.store(true, Relaxed);
                state.add_raw(piece.offset, piece.len);
                Err(Error::io("discard", piece.offset, error))
            }
        }
    }
}

impl SpaceState {
    fn choose(&mut self, keep: u64, eager: bool, sparse: bool) -> Option<DiscardRange> {
        let least = if eager { BLOCK } else { MIN_DISCARD_BYTES };
        if let Some((offset, len)) = self.stale.first_from(0, least) {
            return Some(DiscardRange { offset, len: len.min(MAX_USED_DISCARD_BYTES), was: Was::Stale });
        }
        let surplus = self.backed.total().saturating_sub(keep) / BLOCK * BLOCK;
        if surplus >= least {
            let found = if eager {
                let from = self.discards.eager_from;
                self.backed.first_from(from, least).or_else(|| self.backed.first_from(0, least))
            } else {
                // What is low is used again first.
                self.backed.highest(least)
            };
            if let Some((offset, size)) = found {
                let len = size.min(surplus).min(MAX_USED_DISCARD_BYTES);
                return Some(DiscardRange { offset: offset + size - len, len, was: Was::Backed });
            }
        }
        if !sparse {
            return None;
        }
        while let Some((offset, size)) = self.raw.next_from(self.discards.swept) {
            if size >= least {
                return Some(DiscardRange {
                    offset,
                    len: size.min(MAX_UNKNOWN_DISCARD_BYTES),
                    was: Was::Raw,
                });
            }
            self.discards.swept = offset + size;
        }
        None
    }

    /// Removes a piece from all lists, so that it cannot be allocated.
    fn take_out(&mut self, piece: &DiscardRange) {
        let end = piece.offset + piece.len;
        match piece.was {
            Was::Raw => self.discards.swept = end,
            Was::Backed => self.discards.eager_from = end,
            Was::Stale => (),
        }
        assert!(
            piece.len > 0 && self.free.contains(piece.offset, piece.len),
            "bytes in use are to be discarded"
        );
        self.remove(piece.offset, piece.len);
        self.discarding += piece.len;
    }

    fn put_back(&mut self, piece: &DiscardRange) {
        match piece.was {
            Was::Backed => {
                self.backed.insert(piece.offset, piece.len);
                self.free.insert(piece.offset, piece.len);
            }
            Was::Stale => {
                self.stale.insert(piece.offset, piece.len);
                self.add_raw(piece.offset, piece.len);
            }
            Was::Raw => self.add_raw(piece.offset, piece.len),
        }
    }
}
