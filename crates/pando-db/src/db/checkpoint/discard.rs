//! Decides when freed space is given back to the host (discarded), and how much free space stays allocated there.
//!
//! `space/discard.rs` knows what may be discarded. Checkpoints free space, so this module discards after them, in
//! rounds. It keeps enough space allocated on the host for the dirty nodes and the reserve, so that deletes work when
//! the host is full. A failure to discard is no failure of the store.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{db::engine::Engine, space::Discarding};

/// Pieces, a count, that are discarded before the thread looks for other work.
const ROUND_PIECES: usize = 8;
/// Time between rounds, in which space that was freed may be allocated again.
const ROUND: Duration = Duration::from_secs(1);
/// Closing a store discards for at most this time.
const AT_CLOSE: Duration = Duration::from_secs(5);

/// The rounds of discards that the thread for checkpoints makes.
pub(crate) struct Rounds {
    begun: Instant,
    /// The number of checkpoints when the last round began.
    checkpoints: u64,
    /// True if no allocation is expected, so that the round discards everything that it can.
    last: bool,
    /// True if the round is not over.
    pub more: bool,
}

impl Rounds {
    pub fn new() -> Self {
        Self { begun: Instant::now(), checkpoints: 0, last: true, more: false }
    }

    /// Discards some pieces of the round, or of the next one if it is due.
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
    /// Makes a round in the calling thread, if there are no background threads.
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

    /// Discards up to so many pieces. Returns whether there may be more.
    fn discard_some(&self, expect_more: bool, steps: usize) -> bool {
        (0..steps).all(|_| {
            if !self.options.discard || self.options.read_only || self.check_running().is_err() {
                return false;
            }
            let keep = self.owed() + self.reserve() + self.working_space();
            let eager = self.options.discard_eagerly;
            // An error is ignored, because no caller depends on the discard; nothing is discarded afterwards.
            self.space
                .discard_step(Discarding { keep, expect_more: expect_more && !eager, eager })
                .unwrap_or(false)
        })
    }
}
