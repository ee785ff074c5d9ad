//! Figures of `pando try`: sizes, times, and how they are shown. Pure.

use std::time::Duration;

use crate::size::show;

/// Space and traffic of the store at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    /// Bytes that the store uses.
    pub(super) used: u64,
    /// Bytes written to the device since it was opened.
    pub(super) written: u64,
}

/// How long something took: until it had returned, and until it was durable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) done: Duration,
    pub(super) durable: Duration,
}

impl Times {
    pub(super) fn show(&self) -> String {
        format!("{}, durable after {}", seconds(self.done), seconds(self.durable))
    }
}

/// A time in the unit that suits it.
pub(super) fn seconds(d: Duration) -> String {
    match d.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// The difference of two sizes, which is negative where a checkpoint has freed more than was added.
pub(super) fn grown(before: u64, after: u64) -> String {
    if after >= before { show(after - before) } else { format!("-{}", show(before - after)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_differences_are_readable() {
        assert_eq!(seconds(Duration::from_millis(1500)), "1.50 s");
        assert_eq!(seconds(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(seconds(Duration::from_micros(15)), "15 us");
        assert_eq!((grown(10, 2058).as_str(), grown(2058, 10).as_str()), ("2.0 KiB", "-2.0 KiB"));
    }
}
