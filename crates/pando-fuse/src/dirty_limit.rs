//! How much of what is written the kernel may keep: what the server takes in a moment.
//!
//! A clone, a sync and a close wait for what the kernel has of the files that they are about, behind what it has of all
//! others, and in the worst case a few times over. So that must be little where the server is slow: on a slow device,
//! on a busy processor, for single pages. Where the server is fast it may be more than the kernel offers, as writers
//! would wait for each request otherwise. Guarantees that what the kernel may keep follows the speed at which pages
//! were taken while they came without a pause, between [`LEAST_BYTES`] and what a new mount may have. Uses nothing.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// What the server is to take in this time may be kept.
const MOMENT: Duration = Duration::from_millis(50);
/// However slow the server is.
const LEAST_BYTES: u64 = 4 << 20;
/// However fast it is, but for where the kernel offers more.
const MOST_BYTES: u64 = 64 << 20;
/// And at most so many times what that offers, a count.
const MOST_TIMES: u64 = 32;
/// Time of work from which the speed is taken.
const WINDOW: Duration = Duration::from_millis(200);
/// A pause between two requests that is none of the server's.
const PAUSE: Duration = Duration::from_millis(2);

/// The limit of a mount.
pub(crate) struct DirtyLimit {
    /// Takes the limit, in bytes.
    file: PathBuf,
    most: u64,
    speed: Mutex<Speed>,
}

/// The speed of late.
#[derive(Debug)]
struct Speed {
    /// The limit that is set.
    limit: u64,
    begun: Instant,
    last: Instant,
    paused: Duration,
    bytes: u64,
}

impl Speed {
    fn new(limit: u64, now: Instant) -> Self {
        Self { limit, begun: now, last: now, paused: Duration::ZERO, bytes: 0 }
    }

    /// Notes a request; gives the limit if that is another one now.
    fn took(&mut self, bytes: u64, (from, to): (Instant, Instant), most: u64) -> Option<u64> {
        let pause = from.saturating_duration_since(self.last);
        if pause > PAUSE {
            self.paused += pause;
        }
        self.last = self.last.max(to);
        self.bytes += bytes;
        let worked = self.last.saturating_duration_since(self.begun).saturating_sub(self.paused);
        if worked < WINDOW {
            return None;
        }
        let moment = u128::from(self.bytes) * MOMENT.as_micros() / worked.as_micros().max(1);
        let wanted = u64::try_from(moment).unwrap_or(u64::MAX).max(LEAST_BYTES).min(most);
        // Each small change would cost a call.
        let differs = wanted < self.limit / 4 * 3 || wanted > self.limit / 4 * 5;
        let limit = if differs { wanted } else { self.limit };
        *self = Self::new(limit, self.last);
        differs.then_some(limit)
    }
}

impl DirtyLimit {
    /// Of a new mount on this device (`major:minor`), to which the kernel offers less than it may have. `None` before
    /// Linux 6.2, and without the right to set it.
    pub(crate) fn raised(device: &str) -> Option<Self> {
        let file = PathBuf::from(format!("/sys/class/bdi/{device}/max_bytes"));
        let offered = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        let most = most_bytes(offered);
        let limit = Self { file, most, speed: Mutex::new(Speed::new(most, Instant::now())) };
        limit.set(most).then_some(limit)
    }

    /// Notes that the server took a request of pages.
    pub(crate) fn took(&self, bytes: u64, from: Instant) {
        let changed = self.speed.lock().took(bytes, (from, Instant::now()), self.most);
        if let Some(limit) = changed {
            self.set(limit);
        }
    }

    fn set(&self, limit: u64) -> bool {
        let set = std::fs::write(&self.file, limit.to_string());
        if let Err(e) = &set {
            log::debug!("{}: {e}", self.file.display());
        }
        set.is_ok()
    }
}

/// What the kernel may keep of a fast server's. A hundredth of what may be dirty at all is what it offers: on small
/// machines so little that a writer waits for each request.
fn most_bytes(offered: u64) -> u64 {
    offered.saturating_mul(MOST_TIMES).min(MOST_BYTES).max(offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_kernel_may_keep_more_but_not_most_of_its_memory() {
        assert_eq!(most_bytes(8 * MIB), 64 * MIB);
        assert_eq!(most_bytes(MIB), 32 * MIB, "a third of what may be dirty on a machine of 600 MB");
        for more in [0, 64 * MIB, 500 * MIB, u64::MAX] {
            assert_eq!(most_bytes(more), more);
        }
    }

    /// The limits that come of requests of a MiB that take so long each, with such a pause behind each.
    fn limits(speed: &mut Speed, requests: usize, took: Duration, pause: Duration) -> Vec<u64> {
        let mut limits = Vec::new();
        for _ in 0..requests {
            let from = speed.last + pause;
            limits.extend(speed.took(MIB, (from, from + took), 64 * MIB));
        }
        limits
    }

    #[test]
    fn the_limit_follows_the_speed_of_the_server_and_not_that_of_the_writers() {
        let ms = Duration::from_millis;
        let mut speed = Speed::new(64 * MIB, Instant::now());
        // 2 GB a second, with pauses that make it 20 MB a second.
        assert_eq!(limits(&mut speed, 1000, Duration::from_micros(500), ms(50)), []);
        // 20 MB a second: a megabyte is a moment.
        assert_eq!(limits(&mut speed, 20, ms(50), Duration::ZERO), [LEAST_BYTES]);
        assert_eq!(limits(&mut speed, 20, ms(50), ms(500)), []);
        // 250 MB a second.
        limits(&mut speed, 200, ms(4), Duration::ZERO);
        assert!((12 * MIB..13 * MIB).contains(&speed.limit), "{speed:?}");
        // One request that waits long counts as much as it lasts.
        assert_eq!(limits(&mut speed, 1, ms(3000), Duration::ZERO), [LEAST_BYTES]);
        limits(&mut speed, 2000, Duration::from_micros(300), Duration::ZERO);
        assert_eq!(speed.limit, 64 * MIB);
    }
}
