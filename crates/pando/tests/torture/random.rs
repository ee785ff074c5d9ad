//! A small generator of random numbers: the same seed gives the same run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From `PANDO_TORTURE_SEED` or the clock; says which on stderr.
    pub fn seeded(test: &str) -> Self {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64 % 1_000_000;
        let given = std::env::var("PANDO_TORTURE_SEED").ok().map(|s| s.parse().expect("a number as seed"));
        let seed = given.unwrap_or_else(clock);
        eprintln!("{test}: PANDO_TORTURE_SEED={seed}");
        Self::new(seed)
    }

    pub fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Bytes that no compression makes small.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// When a test that may go on for as long as it likes has to stop.
pub struct Deadline(Instant);

impl Deadline {
    /// `default` seconds from now, or what `PANDO_TORTURE_SECONDS` says.
    pub fn after(default: u64) -> Self {
        let given = std::env::var("PANDO_TORTURE_SECONDS").ok().map(|s| s.parse().expect("seconds"));
        Self(Instant::now() + Duration::from_secs(given.unwrap_or(default)))
    }

    pub fn passed(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// Tries until `done` or `seconds` have passed; whether it came to be.
pub fn within(seconds: u64, mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if done() {
            return true;
        }
        if begin.elapsed() > Duration::from_secs(seconds) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
