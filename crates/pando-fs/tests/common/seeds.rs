//! Which seeds a random test takes, and for how long.
//!
//! `PANDO_SEED` takes that one only. Otherwise a run that has a time by default takes the same seeds each time, so that
//! a change is not refused for what another one did; one whose time is given takes seeds from the clock.
//!
//! A busy machine gets through few seeds in the time. So a test that has to meet something goes on behind its time, for
//! a number of seeds, until it has ([`Seeds::next_until`]).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether one seed is to be replayed: then nothing is demanded of all of them together.
pub fn is_replay() -> bool {
    number("PANDO_SEED").is_some()
}

pub struct Seeds {
    replay: Option<u64>,
    base: u64,
    taken: u64,
    begun: Instant,
    time: Duration,
}

/// Seeds for `seconds`, or for what `variable` says.
pub fn seeds_for(variable: &str, seconds: u64) -> Seeds {
    let given = number(variable);
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Seeds {
        replay: number("PANDO_SEED"),
        base: number("PANDO_SEED_BASE").unwrap_or_else(|| given.map_or(1, |_| clock())),
        taken: 0,
        begun: Instant::now(),
        time: Duration::from_secs(given.unwrap_or(seconds)),
    }
}

impl Seeds {
    /// One more seed: while there is time, and behind that until it is `enough`, up to `rounds` seeds in all.
    pub fn next_until(&mut self, enough: bool, rounds: u64) -> Option<u64> {
        if enough || self.taken >= rounds { self.next() } else { self.take_late() }
    }

    /// One more seed, even if the time is over.
    pub fn take_late(&mut self) -> Option<u64> {
        let n = self.taken;
        self.taken += 1;
        match self.replay {
            Some(seed) => (n == 0).then_some(seed),
            // Odd, because some generators begin with an odd number; short enough to type.
            None => Some((self.base.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) | 1),
        }
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.taken > 0 && self.begun.elapsed() >= self.time {
            return None;
        }
        self.take_late()
    }
}
