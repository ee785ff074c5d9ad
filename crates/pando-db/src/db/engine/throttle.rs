//! Slowing writers down, so that they need not stand still.
//!
//! Writers fill tables, dirty nodes and the log faster than threads empty them, if they are let. Without a
//! throttle they would run at the speed of memory until something is full, and then wait for a whole
//! checkpoint. So each write is delayed a little once the backlog is worth mentioning, the more the nearer it
//! comes to its limit, until what comes in is what goes out. (The shape of the curve is that of the write
//! throttle of ZFS.)
//!
//! Who has to wait may do some of the work that it waits for: two processors are busy then, where one slept.
//!
//! Guarantees: no delay below the pressure at which it begins; delays are for bytes, so small writes are
//! delayed a little; no delay is longer than [`LONGEST`] and one step of that work. May use: nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// What a byte costs at half the pressure, in nanoseconds: 100 MB/s.
const NANOS_PER_BYTE: f64 = 10.0;
/// A delay is kept in mind until it is worth going to sleep for.
const SHORTEST: Duration = Duration::from_micros(300);
/// The longest delay.
const LONGEST: Duration = Duration::from_millis(10);

/// Hands out delays to all writers of a store.
pub(crate) struct Throttle {
    began: Instant,
    /// When what was let in so far is paid for, in nanoseconds.
    paid_at: AtomicU64,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { began: Instant::now(), paid_at: AtomicU64::new(0) }
    }
}

/// How far `used` has come from `from`, where delays begin, to `limit`: 0 to 1.
pub(crate) fn pressure(used: u64, from: u64, limit: u64) -> f64 {
    let way = limit.saturating_sub(from).max(1) as f64;
    (used.saturating_sub(from) as f64 / way).min(1.0)
}

impl Throttle {
    /// Waits as a writer of so many bytes has to, and meanwhile does what it can to make waiting unnecessary:
    /// `work` is a little of that, and says if there is more. No lock is to be held.
    pub fn delay(&self, bytes: usize, pressure: f64, work: impl Fn() -> bool) {
        if pressure <= 0.0 {
            return;
        }
        let now = self.began.elapsed();
        let Some(delay) = self.due(bytes, pressure, now) else { return };
        let left = || (now + delay).checked_sub(self.began.elapsed());
        while left().is_some() && work() {}
        if let Some(left) = left() {
            std::thread::sleep(left);
        }
    }

    /// The delay of a write of so many bytes that comes `now`, unless it is too short.
    fn due(&self, bytes: usize, pressure: f64, now: Duration) -> Option<Duration> {
        let cost = bytes as f64 * NANOS_PER_BYTE * pressure / (1.0 - pressure.min(0.999));
        let cost = (cost as u64).min(LONGEST.as_nanos() as u64);
        let now = now.as_nanos() as u64;
        let pay = |at: u64| Some(at.max(now) + cost);
        let before = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).unwrap_or(now);
        let delay = Duration::from_nanos(before.max(now) + cost - now).min(LONGEST);
        (delay >= SHORTEST).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_begin_at_the_threshold_and_grow_without_bound_towards_the_limit() {
        assert_eq!(pressure(10, 10, 20), 0.0);
        assert_eq!(pressure(15, 10, 20), 0.5);
        assert_eq!(pressure(50, 10, 20), 1.0);
        let at = |pressure| Throttle::default().due(100_000, pressure, Duration::ZERO);
        assert_eq!(at(0.1), None);
        assert_eq!(at(0.5), Some(Duration::from_millis(1)));
        assert_eq!(at(0.9), Some(Duration::from_millis(9)));
        assert_eq!(at(1.0), Some(LONGEST));
    }

    #[test]
    fn who_has_to_wait_works_meanwhile() {
        let worked = std::cell::Cell::new(0);
        let work = |much: u32| {
            worked.set(worked.get() + 1);
            worked.get() < much
        };
        let throttle = Throttle::default();
        throttle.delay(1000, 0.0, || work(9));
        throttle.delay(1000, 0.5, || work(9));
        assert_eq!(worked.get(), 0, "nobody has to wait");
        let began = Instant::now();
        throttle.delay(100_000, 0.9, || work(3));
        assert!(worked.get() == 3 && began.elapsed() >= Duration::from_millis(8), "the rest is slept");
        // Work without end ends with the delay.
        throttle.delay(100_000, 0.9, || work(u32::MAX));
        assert!(worked.get() > 3);
    }

    #[test]
    fn small_writes_pay_together() {
        let throttle = Throttle::default();
        let delays: Vec<_> = (0..1000).filter_map(|_| throttle.due(1000, 0.5, Duration::ZERO)).collect();
        // 10 us each: the 30th is the first that sleeps, and from then on all do, as no time passes.
        assert_eq!(delays.len(), 971);
        assert_eq!(delays[0], SHORTEST);
        // Who waited has paid.
        assert_eq!(throttle.due(1000, 0.5, Duration::from_secs(1)), None);
    }
}
