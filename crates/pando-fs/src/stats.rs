//! Figures about a mounted file system, and the latency histogram behind them.
//!
//! Guarantees that recording is lock-free and that a figure, once counted, is
//! never lost. May use the engine's statistics and nothing else of the crate.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures about a mounted file system, taken at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FsStats {
    /// The engine's own figures.
    pub engine: pando_db::Stats,
    /// Inodes in memory: those that the kernel or a handle refers to, and their ancestors.
    pub inodes_in_memory: u64,
    /// Bytes of memory for each of them, without its name and symlink target: a constant.
    pub inode_bytes: u64,
    /// Open files.
    pub open_handles: u64,
    /// Open directories.
    pub open_dirs: u64,
    /// Bytes of files that were to be read ahead since the mount, because they were read in order.
    pub readahead_bytes: u64,
    /// Clones made since the mount.
    pub clones: u64,
    /// How long these took for their callers, with what they waited for: [`crate::Fs::clone_took`].
    pub clone_latency: Histogram,
}

/// Counts by powers of two of microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// (exclusive upper bound in microseconds, count), ascending, without empty tails.
    pub buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.1).sum()
    }

    /// The upper bound, in microseconds, of the bucket that holds the `share` quantile (0.0 to
    /// 1.0); `None` if nothing was recorded.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.buckets.iter().find_map(|&(upper, count)| {
            seen += count;
            (seen >= wanted).then_some(upper)
        })
    }
}

/// Buckets of a histogram, a count: the last holds all that took 2^38 microseconds or more.
const BUCKETS: usize = 40;

/// A histogram that is being filled.
#[derive(Debug)]
pub(crate) struct Recorder {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Recorder {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Recorder {
    /// The bucket of a value, microseconds. Bucket i holds the values below 2^i and not below 2^(i-1).
    fn bucket(&self, micros: u64) -> Option<&AtomicU64> {
        self.buckets.get(((u64::BITS - micros.leading_zeros()) as usize).min(BUCKETS - 1))
    }

    /// Counts one value, microseconds.
    pub(crate) fn record(&self, micros: u64) {
        if let Some(b) = self.bucket(micros) {
            b.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts `micros` in place of a value `was` that was recorded before.
    pub(crate) fn correct(&self, was: u64, micros: u64) {
        let one_less = |count: u64| count.checked_sub(1);
        let recorded = |b: &AtomicU64| b.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if self.bucket(was).is_some_and(recorded) {
            self.record(micros);
        }
    }

    /// The counts so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let mut buckets: Vec<_> =
            self.buckets.iter().enumerate().map(|(i, b)| (1 << i, b.load(Ordering::Relaxed))).collect();
        while buckets.last().is_some_and(|b| b.1 == 0) {
            buckets.pop();
        }
        let empty = buckets.iter().take_while(|b| b.1 == 0).count();
        buckets.drain(..empty);
        Histogram { buckets }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_power_of_two_above_them() {
        let r = Recorder::default();
        for v in [3, 4, 5, 7, 1000] {
            r.record(v);
        }
        let h = r.histogram();
        assert_eq!(h.count(), 5);
        assert_eq!(h.buckets.first(), Some(&(4, 1)));
        assert_eq!(h.buckets.get(1), Some(&(8, 3)));
        assert_eq!(h.buckets.last(), Some(&(1024, 1)));
        assert_eq!(h.quantile(0.5), Some(8));
        assert_eq!(h.quantile(1.0), Some(1024));
        assert_eq!(Histogram::default().quantile(0.5), None);
        r.correct(1000, 4000);
        r.correct(70_000, 80_000);
        assert_eq!((r.histogram().count(), r.histogram().quantile(1.0)), (5, Some(4096)));
    }
}
