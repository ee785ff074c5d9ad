//! The queue of the census: the lineages in which a thread counts names, and those that wait for it.
//!
//! Guarantees: one thread at a time counts in a lineage, and a root that waits is found wherever it is moved to.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::{MutexGuard, RwLock};

use crate::{background_queue::BackgroundQueue, inode::InodeRef, types::Ino};

/// Time after which the watcher is called a second time for an inode: at the first call, an answer with the old count
/// may have been on its way to a kernel that did not know the inode yet.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Called with the number of an inode whose count of names has changed.
pub(crate) type Watcher = Box<dyn Fn(Ino) + Send + Sync>;

#[derive(Default)]
struct NamesToCount {
    /// Roots of the lineages in which a thread counts.
    busy: HashSet<Ino>,
    /// Roots that are known to be counted, or to wait for it.
    seen: HashSet<Ino>,
    /// Roots that wait, besides those that the store names. They stay in memory, as their place may change.
    waiting: VecDeque<InodeRef>,
    /// Inodes for which the watcher is to be called a second time, and when.
    told: VecDeque<(Instant, Ino)>,
    /// There is work for the thread.
    wake: bool,
}

/// The right to count in a lineage, of one thread at a time.
pub(crate) struct CountingClaim(Arc<Counting>, Ino);

impl Drop for CountingClaim {
    fn drop(&mut self) {
        self.0.queue.lock().work.busy.remove(&self.1);
    }
}

/// The counting of names on a mount.
#[derive(Default)]
pub(crate) struct Counting {
    queue: BackgroundQueue<NamesToCount>,
    /// Held shared by calls that put files into link areas, exclusively by the thread that removes ranges of them.
    pub area: RwLock<()>,
    watcher: OnceLock<Watcher>,
}

impl Counting {
    /// The right to count in the lineage with this root, if no other thread has it.
    pub(crate) fn begin(counting: &Arc<Self>, root: Ino) -> Option<CountingClaim> {
        let begun = counting.queue.lock().work.busy.insert(root);
        begun.then(|| CountingClaim(counting.clone(), root))
    }

    /// Notes that linked files of this root are looked at; false if that is known.
    pub(crate) fn is_new(&self, root: Ino) -> bool {
        self.queue.lock().work.seen.insert(root)
    }

    /// Forgets all roots that [`Counting::is_new`] has noted.
    pub(crate) fn forget_all(&self) {
        self.queue.lock().work.seen.clear();
    }

    /// Puts the root of a lineage into the queue of those to be counted.
    pub(crate) fn wants(&self, root: InodeRef) {
        self.queue.lock().work.waiting.push_back(root);
    }

    /// One of the roots that wait.
    pub(crate) fn next(&self) -> Option<InodeRef> {
        self.queue.lock().work.waiting.pop_front()
    }

    /// Wakes the background thread, and notes that it is started if there is none: then it is true.
    pub(crate) fn start(&self) -> bool {
        self.queue.lock().work.wake = true;
        self.queue.wake();
        self.queue.start(|_| true)
    }

    /// Whether the background thread has something to count; if not, it has to end. Calls the watcher a second time
    /// for inodes that are due, and waits until the others are.
    pub(crate) fn has_work(&self) -> bool {
        let mut state = self.queue.lock();
        loop {
            let has_work = state.work.wake || !state.work.told.is_empty();
            if !self.queue.goes_on(&mut state, has_work) {
                return false;
            }
            let now = Instant::now();
            let due = state.work.told.iter().take_while(|(at, _)| *at <= now).count();
            if due > 0 {
                let due: Vec<_> = state.work.told.drain(..due).collect();
                MutexGuard::unlocked(&mut state, || due.iter().for_each(|(_, ino)| self.notify(*ino)));
            } else if state.work.wake {
                state.work.wake = false;
                return true;
            } else if let Some((at, _)) = state.work.told.front().copied() {
                self.queue.wait_until(&mut state, at);
            }
        }
    }

    /// Waits for `time`. False if the mount ends meanwhile.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let mut state = self.queue.lock();
        self.queue.wait_until(&mut state, Instant::now() + time);
        !state.is_stopped()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.queue.is_stopped()
    }

    /// Notes that the background thread has ended.
    pub(crate) fn ended(&self) {
        self.queue.ended();
    }

    /// Ends the counting, and returns when the background thread has ended.
    pub(crate) fn stop(&self) {
        self.queue.stop();
        let waiting = std::mem::take(&mut self.queue.lock().work.waiting);
        drop(waiting); // which may drop the last reference of an inode: not under the lock
    }

    /// Registers the watcher. Called once.
    pub(crate) fn watch(&self, watcher: Watcher) {
        let _second = self.watcher.set(watcher);
    }

    /// Calls the watcher for an inode; with `again` a second time later, for which the caller has to call
    /// [`Counting::start`].
    pub(crate) fn tell(&self, ino: Ino, again: bool) {
        self.notify(ino);
        if again && self.watcher.get().is_some() {
            self.queue.lock().work.told.push_back((Instant::now() + TOLD_AGAIN_AFTER, ino));
        }
    }

    /// Whether a second call of the watcher is due for any inode.
    pub(crate) fn tells_again(&self) -> bool {
        !self.queue.lock().work.told.is_empty()
    }

    fn notify(&self, ino: Ino) {
        if let Some(watcher) = self.watcher.get() {
            watcher(ino);
        }
    }
}
