//! The flag that a mount has ended.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set once, when the mount has ended.
#[derive(Default)]
pub(super) struct Ended(AtomicBool);

impl Ended {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
