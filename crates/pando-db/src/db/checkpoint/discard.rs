//! Giving freed space back to the host: when, and how much stays.
//!
//! `space/discard.rs` knows what may be discarded. This module discards after checkpoints, which free space, in
//! rounds, and keeps enough space backed for the dirty nodes and the reserve, so that deletes work when the host is
//! full. A failure to discard is no failure of the store.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{db::engine::Engine, space::Discarding};

/// Pieces that are discarded before looking whether there is other work.
const ROUND_PIECES: usize = 8;
/// Time between rounds: what was freed and is not used again meanwhile is given back.
const ROUND: Duration = Duration::from_secs(1);
/// Most time that closing a store takes for this.
const AT_CLOSE: Duration = Duration::from_secs(5);

/// The rounds of the thread that makes checkpoints.
pub(crate) struct Rounds {
    begun: Instant,
    /// Checkpoints when the last round began.
    checkpoints: u64,
    /// No allocation is expected: the round discards everything that can be discarded.
    last: bool,
    /// The round is not over.
    pub more: bool,
}

impl Rounds {
    pub fn new() -> Self {
        Self { begun: Instant::now(), checkpoints: 0, last: true, more: false }
    }

    /// Some pieces of the round, or of the next if it is time for one.
    pub fn go_on(&mut self, engine: &Engine) {
        if !self.more {
            let checkpoints = engine.counters.checkpoints.load(Ordering::Relaxed);
            if self.begun.elapsed() < ROUND || (self.last && checkpoints == self.checkpoints) {
                return;
            }
            let expected = engine.space.begin_discards();
            *self = Self { begun: Instant::now(), checkpoints, last: expected == 0, more: true };
        }
        self.more = engine.discard_some(true, ROUND_PIECES);
    }
}

impl Engine {
    /// A round where there are no threads.
    pub fn discard_inline(&self) {
        if !self.options.background {
            self.space.begin_discards();
            self.discard_some(true, ROUND_PIECES);
        }
    }

    /// Discards everything that can be discarded, before the store is closed.
    pub fn discard_at_close(&self) {
        let begun = Instant::now();
        // If nothing was changed, there is nothing to discard.
        let changed = self.counters.checkpoints.load(Ordering::Relaxed) > 0;
        while changed && self.discard_some(false, 1) && begun.elapsed() < AT_CLOSE {}
    }

    /// Up to that many pieces; whether there may be more.
    fn discard_some(&self, expect_more: bool, steps: usize) -> bool {
        (0..steps).all(|_| {
            if !self.options.discard || self.options.read_only || self.check_running().is_err() {
                return false;
            }
            let keep = self.owed() + self.reserve() + self.working_space();
            let eager = self.options.discard_eagerly;
            // Nobody misses what was not given back; the space does not try again.
            self.space
                .discard_step(Discarding { keep, expect_more: expect_more && !eager, eager })
                .unwrap_or(false)
        })
    }
}
