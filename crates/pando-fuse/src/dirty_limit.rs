//! The limit of dirty pages that the kernel may keep: as much as the server takes in a moment.
//!
//! A clone, a sync and a close wait until the dirty pages of their files are written, behind those of all other
//! files, and in the worst case a few times over. So there must be few dirty pages if the server is slow: on a slow
//! device, on a busy processor, for single pages. If the server is fast, the limit may be higher than the kernel's
//! default, because writers would otherwise wait for each request. Guarantees: the limit follows the speed at which
//! pages were taken while they came without a pause, between [`LEAST_BYTES`] and what a mount may have. It is lower
//! while clones and syncs are made, for [`SHORT_MOMENT`] instead of [`MOMENT`] and at least
//! [`LEAST_WHILE_WAITED_BYTES`], because a clone waits until that much is taken two or three times over. It is at
//! most [`START_BYTES`] when nothing was written for [`SPEED_LASTS`], because the next writer may be slower. If the
//! limit falls below what is dirty, all writers wait until the excess is written; so the limit falls step by step, by
//! half of what is taken meanwhile, and writers continue at half of the speed. It falls at once when a call begins to
//! wait for dirty pages, because the call then waits for fewer of them, and after a second without writes.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// What the server is to take in this time may be kept.
const MOMENT: Duration = Duration::from_millis(50);
/// The moment if a call has waited for dirty pages within the last [`MEMORY`].
const SHORT_MOMENT: Duration = Duration::from_millis(8);
const MEMORY: Duration = Duration::from_secs(10);
/// The lower bound, however slow the server is. (With half of it, a writer of single pages alone was slower by a
/// quarter.)
const LEAST_BYTES: u64 = 1 << 20;
/// The lower bound if a call has waited for dirty pages within the last [`MEMORY`].
const LEAST_WHILE_WAITED_BYTES: u64 = 384 << 10;
/// The upper bound, however fast the server is, unless the kernel's default is higher.
const MOST_BYTES: u64 = 64 << 20;
/// The limit is at most this multiple of the kernel's default, a count.
const MOST_TIMES: u64 = 32;
/// The limit before the speed is known.
const START_BYTES: u64 = 8 << 20;
/// Time of work from which the speed is taken; and where it is not known yet.
const WINDOW: Duration = Duration::from_millis(100);
const FIRST_WINDOW: Duration = Duration::from_millis(10);
/// A pause between two requests that is none of the server's.
const FOREIGN_GAP: Duration = Duration::from_millis(2);
/// A pause after which the speed is not known any more.
const SPEED_LASTS: Duration = Duration::from_secs(1);

/// The limit of a mount.
pub(crate) struct DirtyLimit(Arc<Limit>);

struct Limit {
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
    /// The limit that the speed asks for: what is set falls to it step by step.
    wanted: u64,
    /// Taken since the last step, in bytes.
    since_step: u64,
    /// The limit is that of a speed.
    known: bool,
    /// A thread checks whether writing has ended.
    watched: bool,
    /// When a call last began to wait for dirty pages.
    waited: Option<Instant>,
}

impl Speed {
    fn new(limit: u64, now: Instant) -> Self {
        Self {
            limit,
            begun: now,
            last: now,
            paused: Duration::ZERO,
            bytes: 0,
            wanted: limit,
            since_step: 0,
            known: false,
            watched: false,
            waited: None,
        }
    }

    /// Notes a request; gives the limit if that is another one now.
    fn took(&mut self, bytes: u64, (from, to): (Instant, Instant), most: u64) -> Option<u64> {
        let pause = from.saturating_duration_since(self.last);
        if pause > FOREIGN_GAP {
            self.paused += pause;
        }
        self.last = self.last.max(to);
        self.bytes += bytes;
        self.since_step += bytes;
        self.look(to, most);
        self.step()
    }

    /// Finds the limit that the speed asks for, once enough was taken to know that.
    fn look(&mut self, now: Instant, most: u64) {
        let worked = self.last.saturating_duration_since(self.begun).saturating_sub(self.paused);
        if worked < if self.known { WINDOW } else { FIRST_WINDOW } {
            return;
        }
        let short = self.waited.is_some_and(|waited| now.saturating_duration_since(waited) < MEMORY);
        let (moment, least) =
            if short { (SHORT_MOMENT, LEAST_WHILE_WAITED_BYTES) } else { (MOMENT, LEAST_BYTES) };
        let moment = u128::from(self.bytes) * moment.as_micros() / worked.as_micros().max(1);
        let wanted = u64::try_from(moment).unwrap_or(u64::MAX).max(least).min(most);
        // Each small change would cost a call.
        if wanted < self.wanted / 4 * 3 || wanted > self.wanted / 4 * 5 {
            self.wanted = wanted;
        }
        (self.begun, self.paused, self.bytes, self.known) = (self.last, Duration::ZERO, 0, true);
    }

    /// Returns the new limit if it changes now. It rises at once. It falls by half of what was taken meanwhile, so
    /// that writers continue at half of the speed: if it fell at once, they would stop until the excess is written.
    fn step(&mut self) -> Option<u64> {
        let limit = if self.wanted < self.limit {
            let step = self.limit.saturating_sub(self.since_step / 2).max(self.wanted);
            // Each small step would cost a call.
            if step > self.wanted && step > self.limit / 8 * 7 {
                return None;
            }
            step
        } else {
            self.wanted
        };
        self.since_step = 0;
        let changes = limit != self.limit;
        self.limit = limit;
        changes.then_some(limit)
    }

    /// Notes that a call waits; gives the limit if it changes, because no call has waited of late.
    fn waits(&mut self, now: Instant) -> Option<u64> {
        let before = self.waited.replace(now);
        let first = before.is_none_or(|before| now.saturating_duration_since(before) >= MEMORY);
        (first && self.limit > START_BYTES).then(|| {
            let share = self.limit / MOMENT.as_millis() as u64 * SHORT_MOMENT.as_millis() as u64;
            (self.limit, self.since_step) = (share.max(START_BYTES), 0);
            self.wanted = self.wanted.min(self.limit);
            self.limit
        })
    }

    /// Gives the limit if that is another one because nothing was written until `now`.
    fn rested(&mut self, now: Instant) -> Option<u64> {
        let rests = now.saturating_duration_since(self.last) >= SPEED_LASTS && self.limit > START_BYTES;
        rests.then(|| {
            *self = Self { waited: self.waited, ..Self::new(START_BYTES, now) };
            START_BYTES
        })
    }
}

impl DirtyLimit {
    /// The limit of a new mount on this device (`major:minor`). `None` before Linux 6.2, and without the right to set
    /// it.
    pub(crate) fn new(device: &str) -> Option<Self> {
        let file = PathBuf::from(format!("/sys/class/bdi/{device}/max_bytes"));
        let offered = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        let start = Speed::new(START_BYTES, Instant::now());
        let limit = Limit { file, most: most_bytes(offered), speed: Mutex::new(start) };
        limit.set(START_BYTES).then(|| Self(Arc::new(limit)))
    }

    /// Notes that a call waits for dirty pages: a clone, or a sync of all.
    pub(crate) fn waited_for(&self) {
        let mut speed = self.0.speed.lock();
        if let Some(limit) = speed.waits(Instant::now()) {
            self.0.set(limit);
        }
    }

    /// Notes that the server took a request of pages.
    pub(crate) fn took(&self, bytes: u64, from: Instant) {
        let mut speed = self.0.speed.lock();
        let changed = speed.took(bytes, (from, Instant::now()), self.0.most);
        if let Some(limit) = changed {
            self.0.set(limit);
        }
        if speed.limit > START_BYTES && !speed.watched {
            let limit = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("pando-dirty".into());
            speed.watched = thread.spawn(move || wait_for_rest(&limit)).is_ok();
        }
    }
}

impl Limit {
    fn set(&self, limit: u64) -> bool {
        let set = std::fs::write(&self.file, limit.to_string());
        if let Err(e) = &set {
            log::debug!("{}: {e}", self.file.display());
        }
        set.is_ok()
    }
}

/// Waits until nothing is written any more, and then lowers the limit to its initial value, or until it is that low.
fn wait_for_rest(limit: &Weak<Limit>) {
    loop {
        std::thread::sleep(SPEED_LASTS);
        let Some(limit) = limit.upgrade() else { return };
        let mut speed = limit.speed.lock();
        if let Some(bytes) = speed.rested(Instant::now()) {
            limit.set(bytes);
        }
        if speed.limit <= START_BYTES {
            speed.watched = false;
            return;
        }
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
        let mut speed = Speed::new(START_BYTES, Instant::now());
        // 1 GB a second, with pauses that make it 20 MB a second.
        limits(&mut speed, 1000, ms(1), ms(50));
        assert!((49 * MIB..51 * MIB).contains(&speed.limit), "{speed:?}");
        // 10 MB a second: less than a megabyte is a moment.
        assert_eq!(limits(&mut speed, 200, ms(100), Duration::ZERO).last(), Some(&LEAST_BYTES));
        assert_eq!(limits(&mut speed, 20, ms(100), ms(500)), []);
        // 250 MB a second.
        limits(&mut speed, 200, ms(4), Duration::ZERO);
        assert!((12 * MIB..13 * MIB).contains(&speed.limit), "{speed:?}");
        // One request that waits long counts for as long as it lasts.
        limits(&mut speed, 1, ms(3000), Duration::ZERO);
        assert_eq!(speed.wanted, LEAST_BYTES);
        limits(&mut speed, 4000, Duration::from_micros(200), Duration::ZERO);
        assert_eq!(speed.limit, 64 * MIB);
    }

    #[test]
    fn the_limit_falls_by_half_of_what_is_taken_meanwhile_and_rises_at_once() {
        let mut speed = Speed::new(START_BYTES, Instant::now());
        // Single pages, 20 MB a second: a moment is a MiB.
        let (mut last, mut since, mut lowest_at) = (START_BYTES, 0, 0);
        for page in 0..10_000 {
            let at = speed.last;
            since += 4096;
            let Some(limit) = speed.took(4096, (at, at + Duration::from_micros(200)), 64 * MIB) else {
                continue;
            };
            assert!(
                2 * last.saturating_sub(limit) <= since,
                "{last} falls to {limit} while {since} are taken"
            );
            (last, since, lowest_at) = (limit, 0, page * 4096);
        }
        assert!((MIB..MIB / 4 * 5).contains(&last), "{last}");
        assert!((13 * MIB..15 * MIB).contains(&lowest_at), "{lowest_at}");
        // A GB a second: more at once.
        let risen = limits(&mut speed, 200, Duration::from_millis(1), Duration::ZERO);
        assert!(risen.len() <= 2 && risen.last() > Some(&(49 * MIB)), "{risen:?}");
    }

    #[test]
    fn less_is_kept_while_somebody_waits_for_it_now_and_then() {
        let ms = Duration::from_millis;
        let mut speed = Speed::new(START_BYTES, Instant::now());
        assert_eq!(speed.waits(speed.last), None, "little is kept anyway");
        limits(&mut speed, 1000, ms(1), Duration::ZERO);
        assert!((15 * MIB / 2..17 * MIB / 2).contains(&speed.limit), "{speed:?}");
        // 10 MB a second.
        limits(&mut speed, 40, ms(100), Duration::ZERO);
        assert_eq!(speed.limit, LEAST_WHILE_WAITED_BYTES);
        limits(&mut speed, 100_000, Duration::from_micros(200), Duration::ZERO);
        assert_eq!(speed.limit, 64 * MIB, "nobody has waited for ten seconds");
        let wanted = speed.waits(speed.last);
        assert!((10 * MIB..11 * MIB).contains(&wanted.unwrap_or_default()), "{wanted:?}");
        assert_eq!(speed.waits(speed.last), None);
    }

    #[test]
    fn a_high_limit_does_not_outlive_its_writers_and_a_low_one_does() {
        let mut speed = Speed::new(START_BYTES, Instant::now());
        limits(&mut speed, 4000, Duration::from_micros(200), Duration::ZERO);
        assert_eq!(speed.limit, 64 * MIB);
        assert_eq!(speed.rested(speed.last + SPEED_LASTS / 2), None);
        assert_eq!(speed.rested(speed.last + SPEED_LASTS), Some(START_BYTES));
        limits(&mut speed, 40, Duration::from_millis(100), Duration::ZERO);
        assert_eq!((speed.limit, speed.rested(speed.last + 2 * SPEED_LASTS)), (LEAST_BYTES, None));
    }
}
