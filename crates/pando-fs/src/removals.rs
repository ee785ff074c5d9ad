//! What has no name any more, and could not be removed when that was to happen: mostly because the store was full.
//!
//! The last release of an orphan removes it, and there is no caller to tell of an error. So what could not be removed
//! waits here, and a thread tries again. Guarantees: one thread at a time removes, and a number stays in the queue
//! until the batch that removes it is written, so that nothing else gets the number before. Memory: 16 bytes for each
//! file that waits, which had an inode in memory until then.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use crate::{background_queue::BackgroundQueue, types::Ino};

/// Something without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unremoved {
    /// An orphan that is not open any more.
    Orphan(Ino),
    /// The volume in which a merge worked that was not made.
    Work(u32),
}

/// What waits to be removed on a mount.
#[derive(Default)]
pub(crate) struct Removals {
    queue: BackgroundQueue<VecDeque<Unremoved>>,
}

impl std::fmt::Debug for Removals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removals").field("waiting", &self.queue.lock().work.len()).finish_non_exhaustive()
    }
}

impl Removals {
    /// Puts something into the queue.
    pub(crate) fn add(&self, what: Unremoved) {
        self.queue.lock().work.push_back(what);
    }

    /// The first of the queue, which stays in it until [`Removals::removed`].
    pub(crate) fn first(&self) -> Option<Unremoved> {
        self.queue.lock().work.front().copied()
    }

    /// Takes the first out of the queue: it is removed.
    pub(crate) fn removed(&self) {
        self.queue.lock().work.pop_front();
    }

    /// Inode numbers of the files that wait.
    pub(crate) fn orphans(&self) -> HashSet<Ino> {
        let queue = self.queue.lock();
        let orphan = |what: &Unremoved| match what {
            Unremoved::Orphan(ino) => Some(*ino),
            Unremoved::Work(_) => None,
        };
        queue.work.iter().filter_map(orphan).collect()
    }

    /// Notes that the background thread is started; false if there is one already, or the mount ends.
    pub(crate) fn start(&self) -> bool {
        self.queue.start(|_| true)
    }

    /// Waits for `time`. False if the background thread is to end, because nothing waits or the mount ends: then there
    /// is none from now on.
    pub(crate) fn goes_on_after(&self, time: Duration) -> bool {
        let mut queue = self.queue.lock();
        if !queue.work.is_empty() {
            self.queue.wait_until(&mut queue, Instant::now() + time);
        }
        let has_work = !queue.work.is_empty();
        self.queue.goes_on(&mut queue, has_work)
    }

    /// Notes that the background thread has ended.
    pub(crate) fn ended(&self) {
        self.queue.ended();
    }

    /// Returns when the background thread has ended, after which none is started.
    pub(crate) fn stop(&self) {
        self.queue.stop();
    }
}
