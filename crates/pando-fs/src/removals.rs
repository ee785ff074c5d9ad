//! What has no name any more, and could not be removed when that was to happen: mostly because the store was full.
//!
//! The last release of an orphan removes it, and there is no caller to tell of an error. So what could not be removed
//! waits here, and a thread tries again. Guarantees: one thread at a time removes, and a number stays in the queue
//! until the batch that removes it is written, so that nothing else gets the number before. Memory: 16 bytes for each
//! file that waits, which had an inode in memory until then.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::types::Ino;

/// Something without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unremoved {
    /// An orphan that is not open any more.
    Orphan(Ino),
    /// The volume in which a merge worked that was not made.
    Work(u32),
}

#[derive(Default)]
struct RemovalQueue {
    waiting: VecDeque<Unremoved>,
    running: bool,
    stopped: bool,
}

/// What waits to be removed on a mount.
#[derive(Default)]
pub(crate) struct Removals {
    queue: Mutex<RemovalQueue>,
    changed: Condvar,
}

impl std::fmt::Debug for Removals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removals").field("waiting", &self.queue.lock().waiting.len()).finish_non_exhaustive()
    }
}

impl Removals {
    /// Puts something into the queue.
    pub(crate) fn add(&self, what: Unremoved) {
        self.queue.lock().waiting.push_back(what);
    }

    /// The first of the queue, which stays in it until [`Removals::removed`].
    pub(crate) fn first(&self) -> Option<Unremoved> {
        self.queue.lock().waiting.front().copied()
    }

    /// Takes the first out of the queue: it is removed.
    pub(crate) fn removed(&self) {
        self.queue.lock().waiting.pop_front();
    }

    /// Inode numbers of the files that wait.
    pub(crate) fn orphans(&self) -> HashSet<Ino> {
        let queue = self.queue.lock();
        let orphan = |what: &Unremoved| match what {
            Unremoved::Orphan(ino) => Some(*ino),
            Unremoved::Work(_) => None,
        };
        queue.waiting.iter().filter_map(orphan).collect()
    }

    /// Notes that the background thread is started; false if there is one already, or the mount ends.
    pub(crate) fn start(&self) -> bool {
        let mut queue = self.queue.lock();
        !queue.stopped && !std::mem::replace(&mut queue.running, true)
    }

    /// Waits for `time`. False if the background thread is to end, because nothing waits or the mount ends: then there
    /// is none from now on.
    pub(crate) fn goes_on_after(&self, time: Duration) -> bool {
        let mut queue = self.queue.lock();
        if !queue.stopped && !queue.waiting.is_empty() {
            self.changed.wait_for(&mut queue, time);
        }
        let goes_on = !queue.stopped && !queue.waiting.is_empty();
        if !goes_on {
            queue.running = false;
            self.changed.notify_all();
        }
        goes_on
    }

    /// Notes that the background thread has ended.
    pub(crate) fn ended(&self) {
        self.queue.lock().running = false;
        self.changed.notify_all();
    }

    /// Returns when the background thread has ended, after which none is started.
    pub(crate) fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.stopped = true;
        self.changed.notify_all();
        while queue.running {
            self.changed.wait(&mut queue);
        }
    }
}
