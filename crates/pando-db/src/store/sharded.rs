//! Counters that many threads add to at once.
//!
//! Each thread adds to one of a few cells, each in a cache line of its own: a single counter would travel
//! between processors with every read of the cache. Guarantee: the sum is exact once the threads are done.
//! May use: thread numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread;

const CELLS: usize = 16;

/// A number alone in its line; two, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// A counter.
#[derive(Default)]
pub(crate) struct ShardedCounter([Alone; CELLS]);

impl ShardedCounter {
    /// Counts one.
    pub fn add(&self) {
        self.0[thread::number() as usize % CELLS].0.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let tally = ShardedCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..CELLS + 3 {
                scope.spawn(|| (0..1000).for_each(|_| tally.add()));
            }
        });
        assert_eq!(tally.sum(), 1000 * (CELLS as u64 + 3));
    }
}
