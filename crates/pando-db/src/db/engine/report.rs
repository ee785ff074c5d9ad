//! What is wrong with a store, as checks and recovery report it. May use: nothing.

use std::fmt;

use bytes::Bytes;

/// One thing that is wrong with a store.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What is wrong, and where.
    pub what: String,
    /// A range of keys `[lo, hi)` that is affected, where it could be found. Others may be too, if the
    /// damaged node is shared.
    pub keys: Option<(Bytes, Option<Bytes>)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        match &self.keys {
            Some((lo, Some(hi))) => write!(f, " (keys {lo:?} to {hi:?})"),
            Some((lo, None)) => write!(f, " (keys from {lo:?})"),
            None => Ok(()),
        }
    }
}

/// What was found when the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// Damage.
    pub findings: Vec<Finding>,
    /// What may be damage, or what a crash has left. Nothing is lost by it.
    pub notes: Vec<String>,
}

impl Recovery {
    pub fn find(&mut self, what: String) {
        self.findings.push(Finding { what, keys: None });
    }

    /// Says what of the log is not as written, but for its records: it is damage if it was durable once.
    pub fn find_beside_records(&mut self, what: &str, was_durable: bool) {
        if was_durable {
            self.find(format!("log: {what}: damage; no record is missing"));
        } else {
            self.notes.push(format!("log: {what}: a crash has torn it, or damage; no record is missing"));
        }
    }
}
