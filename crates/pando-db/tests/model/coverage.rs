//! What a campaign has really met, so that a test cannot become vacuous unnoticed.

use std::{collections::BTreeMap, fmt};

/// Named counts; those added with [`Coverage::reach`] are maxima.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    sums: BTreeMap<&'static str, u64>,
    peaks: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.sums.entry(what).or_default() += count;
    }

    pub fn reach(&mut self, what: &'static str, value: u64) {
        let peak = self.peaks.entry(what).or_default();
        *peak = value.max(*peak);
    }

    pub fn get(&self, what: &str) -> u64 {
        self.sums.get(what).or(self.peaks.get(what)).copied().unwrap_or(0)
    }

    pub fn merge(&mut self, other: &Coverage) {
        other.sums.iter().for_each(|(what, count)| self.add(what, *count));
        other.peaks.iter().for_each(|(what, value)| self.reach(what, *value));
    }

    /// What is required and was not met.
    pub fn missing(&self, required: &[(&'static str, u64)]) -> Vec<String> {
        let short = |&&(what, least): &&(&'static str, u64)| self.get(what) < least;
        required
            .iter()
            .filter(short)
            .map(|(what, least)| format!("{what}: {} (at least {least} wanted)", self.get(what)))
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.sums {
            write!(f, "\n  {what}: {count}")?;
        }
        for (what, peak) in &self.peaks {
            write!(f, "\n  {what}: up to {peak}")?;
        }
        Ok(())
    }
}
