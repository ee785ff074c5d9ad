//! Waiting for readers before a write is refused for lack of space.
//!
//! A reader holds the version of the tree that it began with, and so all nodes that were replaced since: then garbage
//! collection frees nothing. A call that reads a key takes microseconds, but its thread may not be running, so the
//! write has to wait. Guarantees: a wait is bounded, and waits that do not help, because a cursor is held for long,
//! become shorter until there are none. No I/O.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::waiting;

/// How long a write waits at most, if no write before it has waited in vain.
const READER_PATIENCE: Duration = Duration::from_millis(100);
/// How long it waits between two checks.
const READER_PAUSE: Duration = Duration::from_micros(200);
/// Waits in vain, a count, each of which halves the next wait; after these there are no more waits.
const MAX_VAIN_WAITS: u32 = 8;

/// The waits of one write.
pub(super) struct ReaderWaits<'a> {
    /// The number of waits in vain, one after the other, of this write and of earlier ones.
    vain: &'a AtomicU32,
    /// The end of this write's wait; set when the wait begins.
    until: Option<Instant>,
}

impl<'a> ReaderWaits<'a> {
    pub fn new(vain: &'a AtomicU32) -> Self {
        Self { vain, until: None }
    }

    /// Waits until fewer versions are held than now; `versions` counts them, the newest included. Returns whether
    /// there are fewer.
    pub fn for_fewer(&mut self, versions: impl Fn() -> usize) -> bool {
        let held = versions();
        if held <= 1 {
            self.vain.store(0, Ordering::Relaxed);
            return false;
        }
        let vain = self.vain.load(Ordering::Relaxed);
        let patience = if vain < MAX_VAIN_WAITS { READER_PATIENCE / (1 << vain) } else { Duration::ZERO };
        let until = *self.until.get_or_insert_with(|| Instant::now() + patience);
        waiting::announce();
        while Instant::now() < until {
            thread::sleep(READER_PAUSE);
            if versions() < held {
                self.vain.store(0, Ordering::Relaxed);
                return true;
            }
        }
        self.vain.store((vain + 1).min(MAX_VAIN_WAITS), Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn waits_for_readers_are_bounded_and_become_shorter() {
        let vain = AtomicU32::new(0);
        // No reader holds a version.
        assert!(!ReaderWaits::new(&vain).for_fewer(|| 1));
        // One reader drops its version after some checks, another does not.
        let looks = Cell::new(0);
        let counts = || {
            looks.set(looks.get() + 1);
            if looks.get() < 5 { 3 } else { 2 }
        };
        let mut waits = ReaderWaits::new(&vain);
        assert!(waits.for_fewer(counts) && looks.get() == 5);
        let begun = Instant::now();
        assert!(!waits.for_fewer(|| 2) && begun.elapsed() <= 10 * READER_PATIENCE);
        assert!((0..MAX_VAIN_WAITS).all(|_| !ReaderWaits::new(&vain).for_fewer(|| 2)));
        // There are no more waits for that reader.
        looks.set(0);
        let looked = || {
            looks.set(looks.get() + 1);
            2
        };
        assert!(!ReaderWaits::new(&vain).for_fewer(looked));
        assert_eq!(looks.get(), 1);
        // Once it has dropped its version, writes wait for readers again.
        assert!(!ReaderWaits::new(&vain).for_fewer(|| 1));
        looks.set(0);
        assert!(ReaderWaits::new(&vain).for_fewer(counts));
    }
}
