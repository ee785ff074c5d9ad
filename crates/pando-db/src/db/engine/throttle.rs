//! The write throttle: small delays of writers, so that they need not stop.
//!
//! Writers can fill memtables, dirty nodes and the log faster than threads empty them. Without a throttle they would
//! run at the speed of memory until something is full, and then wait for a whole checkpoint. So each write is delayed
//! a little once there is a backlog, the more the nearer it comes to its limit, until writers are as fast as the
//! threads. (The shape of the curve is that of the write throttle of ZFS.)
//!
//! Where flushing is slow, as on a device whose reads take a millisecond, the delay for a byte is measured: it is
//! what a byte took the flusher lately, or takes it now. So writers are spread over the time that a table takes,
//! where they would fill all tables at once and stand still until one is gone.
//! A writer that has to wait may do some of the flusher's work: then two processors are busy, where one would idle.
//!
//! A caller may wait for writes of other threads: a clone waits until the kernel has written its dirty pages of the
//! source. Meanwhile delays are put off ([`Throttle::put_off`]), up to [`MOST_PUT_OFF`] in all, and later writes make
//! up for them. So the clone does not wait for the backlog, and the average speed stays the same.
//!
//! Guarantees: no delay below the pressure at which it begins; delays are for bytes, so small writes are
//! delayed a little; no delay is longer than [`LONGEST`], or [`LONGEST_IF_SLOW`] where flushing is slow, and one step
//! of that work; no more than [`MOST_PUT_OFF`] is ever put off, also if a caller waits all the time.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use crate::{locks::Mutex, waiting};

/// What a byte costs at half the pressure, in nanoseconds: 100 MB/s.
const NANOS_PER_BYTE: f64 = 10.0;
/// A delay is kept in mind until it is worth going to sleep for.
const SHORTEST: Duration = Duration::from_micros(300);
/// The longest delay.
const LONGEST: Duration = Duration::from_millis(10);
/// The longest delay if flushing is slow.
const LONGEST_IF_SLOW: Duration = Duration::from_millis(100);
/// Most delays, in all, that are put off while a caller waits for writes of other threads.
const MOST_PUT_OFF: Duration = Duration::from_millis(100);
/// What a byte takes the flusher where it is slow, in nanoseconds: 1 MB/s.
const SLOW_NANOS_PER_BYTE: f64 = 1000.0;
/// At half the pressure a byte is delayed by 1/n of the time that a slow flusher takes for a byte. So tables are four
/// fifths full when writers are as fast as the flusher.
const SLOW_SHARE: f64 = 4.0;

/// Hands out delays to all writers of a store.
pub(crate) struct Throttle {
    began: Instant,
    /// When what was let in so far is paid for, in nanoseconds.
    paid_at: AtomicU64,
    /// How many callers wait for writes of other threads.
    waited_for: AtomicUsize,
    /// Since when the flusher works on the table that is next, in nanoseconds.
    at_work_since: AtomicU64,
    /// Nanoseconds and bytes of the tables that were flushed last, older ones with less weight.
    flushed: Mutex<(f64, f64)>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            paid_at: AtomicU64::new(0),
            waited_for: AtomicUsize::new(0),
            at_work_since: AtomicU64::new(0),
            flushed: Mutex::default(),
        }
    }
}

/// How far `used` has come from `from`, where delays begin, to `limit`: 0 to 1.
pub(crate) fn pressure(used: u64, from: u64, limit: u64) -> f64 {
    let way = limit.saturating_sub(from).max(1) as f64;
    (used.saturating_sub(from) as f64 / way).min(1.0)
}

/// As long as it lives, delays are put off: see [`Db::put_off_delays`](crate::Db::put_off_delays).
#[must_use]
pub struct DelaysPutOff<'a>(&'a Throttle);

impl Drop for DelaysPutOff<'_> {
    fn drop(&mut self) {
        self.0.waited_for.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Throttle {
    /// Puts delays off until the result is dropped, because a caller waits for writes of other threads.
    pub fn put_off(&self) -> DelaysPutOff<'_> {
        self.waited_for.fetch_add(1, Ordering::Relaxed);
        DelaysPutOff(self)
    }

    /// The flusher has had nothing to do until now.
    pub fn flusher_rested(&self) {
        self.at_work_since.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// The flusher is done with a table of so many bytes. Checkpoints that it had to wait for count too.
    pub fn table_flushed(&self, bytes: usize) {
        let now = self.began.elapsed().as_nanos() as u64;
        let took = now.saturating_sub(self.at_work_since.swap(now, Ordering::Relaxed));
        let mut flushed = self.flushed.lock();
        *flushed = (flushed.0 * 0.75 + took as f64, flushed.1 * 0.75 + bytes as f64);
    }

    /// Nanoseconds that a byte takes the flusher `now`, if that is slow; `table` is the size of a full table.
    fn slow(&self, table: usize, now: Duration) -> Option<f64> {
        let (nanos, bytes) = *self.flushed.lock();
        let since = now.as_nanos() as u64;
        let since = since.saturating_sub(self.at_work_since.load(Ordering::Relaxed));
        let took = (nanos / bytes.max(1.0)).max(since as f64 / table.max(1) as f64);
        (took > SLOW_NANOS_PER_BYTE).then_some(took)
    }

    /// Waits as a writer of so many bytes has to, and meanwhile does what it can to make waiting unnecessary:
    /// `work` is a little of that, and says if there is more. No lock is to be held.
    /// `table` is the size of a full table in bytes.
    pub fn delay(&self, bytes: usize, pressure: f64, table: usize, work: impl Fn() -> bool) {
        if pressure <= 0.0 {
            return;
        }
        let now = self.began.elapsed();
        let slow = self.slow(table, now);
        let Some(delay) = self.due(bytes, pressure, slow, now) else { return };
        let left = || (now + delay).checked_sub(self.began.elapsed());
        while left().is_some() && work() {}
        if let Some(left) = left() {
            waiting::announce();
            std::thread::sleep(left);
        }
    }

    /// The delay of a write of so many bytes that comes `now`, unless it is too short.
    fn due(&self, bytes: usize, pressure: f64, slow: Option<f64>, now: Duration) -> Option<Duration> {
        let per_byte = slow.map_or(NANOS_PER_BYTE, |took| took / SLOW_SHARE);
        let longest = if slow.is_some() { LONGEST_IF_SLOW } else { LONGEST };
        let cost = bytes as f64 * per_byte * pressure / (1.0 - pressure.min(0.999));
        let cost = (cost as u64).min(longest.as_nanos() as u64);
        let now = now.as_nanos() as u64;
        let pay = |at: u64| Some(at.max(now) + cost);
        let before = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).unwrap_or(now);
        let put_off = match self.waited_for.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            _ => MOST_PUT_OFF,
        };
        let owed = Duration::from_nanos(before.max(now) + cost - now);
        let delay = owed.saturating_sub(put_off).min(longest);
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
        let at = |pressure| Throttle::default().due(100_000, pressure, None, Duration::ZERO);
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
        throttle.delay(1000, 0.0, 1 << 20, || work(9));
        throttle.delay(1000, 0.5, 1 << 20, || work(9));
        assert_eq!(worked.get(), 0, "nobody has to wait");
        let began = Instant::now();
        throttle.delay(100_000, 0.9, 1 << 20, || work(3));
        assert!(worked.get() == 3 && began.elapsed() >= Duration::from_millis(8), "the rest is slept");
        // Work without end ends with the delay.
        throttle.delay(100_000, 0.9, 1 << 20, || work(u32::MAX));
        assert!(worked.get() > 3);
    }

    #[test]
    fn small_writes_pay_together() {
        let throttle = Throttle::default();
        let delays: Vec<_> =
            (0..1000).filter_map(|_| throttle.due(1000, 0.5, None, Duration::ZERO)).collect();
        // 10 us each: the 30th is the first that sleeps, and from then on all do, as no time passes.
        assert_eq!(delays.len(), 971);
        assert_eq!(delays[0], SHORTEST);
        // The delay has been paid by waiting.
        assert_eq!(throttle.due(1000, 0.5, None, Duration::from_secs(1)), None);
    }

    #[test]
    fn delays_are_put_off_while_somebody_waits_and_made_up_for() {
        let throttle = Throttle::default();
        let due = || throttle.due(100_000, 0.5, None, Duration::ZERO);
        let millis = |n| Some(Duration::from_millis(n));
        // Each costs a millisecond.
        let (first, second) = (throttle.put_off(), throttle.put_off());
        assert!((0..100).all(|_| due().is_none()), "a tenth of a second is put off");
        drop(first);
        assert_eq!((due(), due()), (millis(1), millis(2)), "and no more than that");
        drop(second);
        assert_eq!(due(), Some(LONGEST), "others make up for it, each for a part");
        // It is paid by the time that passes.
        assert_eq!(throttle.due(100_000, 0.5, None, Duration::from_millis(101)), millis(3));
        assert_eq!(throttle.due(10, 0.5, None, Duration::from_millis(300)), None);
    }

    #[test]
    fn a_slow_flusher_is_shared_out() {
        let throttle = Throttle::default();
        let after = |millis| Duration::from_millis(millis);
        // A table of 64 KiB that takes 50 ms is fast enough; one that has taken a second already is not.
        assert_eq!(throttle.slow(64 << 10, after(50)), None);
        let took = throttle.slow(64 << 10, after(1000));
        assert!(took.is_some_and(|took| (15_000.0..16_000.0).contains(&took)), "{took:?}");
        // At four fifths of the pressure a byte is delayed for as long as it takes.
        let delay = throttle.due(1000, 0.8, Some(10_000.0), Duration::ZERO);
        assert!(delay.is_some_and(|delay| (9..12).contains(&delay.as_millis())), "{delay:?}");
        assert_eq!(throttle.due(1 << 20, 0.8, Some(10_000.0), after(1)), Some(LONGEST_IF_SLOW));
        // What has been flushed quickly since makes up for it.
        throttle.flusher_rested();
        (0..10).for_each(|_| throttle.table_flushed(64 << 10));
        assert_eq!(throttle.slow(64 << 10, throttle.began.elapsed()), None);
    }
}
