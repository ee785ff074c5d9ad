//! Interrupted requests: their callers were killed, or got a signal.
//!
//! Guarantee: a request that has registered learns of its interrupt, also if the kernel sent that before. The kernel
//! waits for the answer nevertheless, so the caller ends when the request does.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

/// Interrupts of requests that did not ask to be told, or not yet, of which the last are known, a count.
const MOST_EARLY_INTERRUPTS: usize = 32;

/// Those of a mount.
#[derive(Default)]
pub(crate) struct Interrupts(Mutex<State>);

#[derive(Default)]
struct State {
    running: HashMap<u64, Arc<AtomicBool>>,
    /// Numbers of requests that were interrupted and are not in `running`, the oldest first.
    early: VecDeque<u64>,
}

/// Tells a request whether it was interrupted, as long as it lives.
pub(crate) struct Stop {
    of: Arc<Interrupts>,
    unique: u64,
    flag: Arc<AtomicBool>,
}

impl Interrupts {
    /// The request with this number asks to be told.
    pub(crate) fn watch(self: &Arc<Self>, unique: u64) -> Stop {
        let mut state = self.0.lock();
        let was = state.early.iter().position(|early| *early == unique);
        let flag = Arc::new(AtomicBool::new(was.is_some()));
        if let Some(at) = was {
            state.early.remove(at);
        }
        state.running.insert(unique, flag.clone());
        Stop { of: self.clone(), unique, flag }
    }

    /// The caller of this request got a signal. The kernel says that once for a request.
    pub(crate) fn interrupted(&self, unique: u64) {
        let mut state = self.0.lock();
        if let Some(flag) = state.running.get(&unique) {
            return flag.store(true, Ordering::Relaxed);
        }
        if state.early.len() == MOST_EARLY_INTERRUPTS {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }
}

impl Stop {
    /// Set when the request was interrupted.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// The same, for what keeps it.
    pub(crate) fn shared(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.of.0.lock().running.remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set(stop: &Stop) -> bool {
        stop.flag().load(Ordering::Relaxed)
    }

    #[test]
    fn whoever_asks_is_told_before_and_after() {
        let interrupts = Arc::new(Interrupts::default());
        let (one, other) = (interrupts.watch(2), interrupts.watch(4));
        interrupts.interrupted(2);
        assert!(is_set(&one) && !is_set(&other));
        interrupts.interrupted(6);
        let late = interrupts.watch(6);
        assert!(is_set(&late));
        drop((one, other, late));
        assert!(!is_set(&interrupts.watch(6)), "a number is told once");
        for unique in 100..200 {
            interrupts.interrupted(unique);
        }
        assert!(!is_set(&interrupts.watch(100)) && is_set(&interrupts.watch(199)));
        let state = interrupts.0.lock();
        assert!(state.running.is_empty() && state.early.len() < MOST_EARLY_INTERRUPTS);
    }
}
