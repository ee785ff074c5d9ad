//! How much memory the plans of users take together.
//!
//! Guarantees that the plans of one user other than root take no more than they may, however many are made at the same
//! time.

use std::{cell::Cell, collections::HashMap};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Memory of plans.
pub(crate) struct PlanMemory {
    /// What all plans of one user may take, in bytes.
    most: usize,
    /// What they take, by user.
    taken: Mutex<HashMap<u32, usize>>,
}

/// What one plan takes of it, given back when dropped.
pub(crate) struct PlanShare<'a> {
    of: &'a PlanMemory,
    /// The user whose plan this is; `None` for root, whose plans are not limited.
    owner: Option<u32>,
    bytes: Cell<usize>,
}

impl PlanMemory {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    pub(crate) fn share(&self, owner: Option<u32>) -> PlanShare<'_> {
        PlanShare { of: self, owner, bytes: Cell::new(0) }
    }
}

impl PlanShare<'_> {
    /// Adds memory of the plan of `name`. EFBIG if that is too much; then nothing is added.
    pub(crate) fn take(&self, bytes: usize, name: impl FnOnce() -> String) -> Result<()> {
        let Some(owner) = self.owner else { return Ok(()) };
        let mut all = self.of.taken.lock();
        let taken = all.entry(owner).or_default();
        let now = taken.saturating_add(bytes);
        if now > self.of.most {
            return Err(Error::PlanTooLarge(name()));
        }
        *taken = now;
        self.bytes.set(self.bytes.get() + bytes);
        Ok(())
    }

    /// The plan is given up, and another one is made.
    pub(crate) fn begin_anew(&self) {
        let Some(owner) = self.owner else { return };
        let mut all = self.of.taken.lock();
        if let Some(taken) = all.get_mut(&owner) {
            *taken = taken.saturating_sub(self.bytes.take());
            if *taken == 0 {
                all.remove(&owner);
            }
        }
    }
}

impl Drop for PlanShare<'_> {
    fn drop(&mut self) {
        self.begin_anew();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn plans_of_one_user_are_bounded_together_and_others_are_not_concerned() {
        let memory = PlanMemory::new(1000);
        let name = || "x".to_owned();
        let (first, second, other) = (memory.share(Some(7)), memory.share(Some(7)), memory.share(Some(8)));
        first.take(900, name).unwrap();
        assert!(second.take(101, name).is_err());
        second.take(100, name).unwrap();
        assert!(first.take(1, name).is_err() && second.take(usize::MAX, name).is_err());
        other.take(1000, name).unwrap();
        memory.share(None).take(usize::MAX, name).unwrap();
        second.begin_anew();
        first.take(100, name).unwrap();
        drop(first);
        second.take(1000, name).unwrap();
        drop((second, other));
        assert!(memory.taken.lock().is_empty());
    }
}
