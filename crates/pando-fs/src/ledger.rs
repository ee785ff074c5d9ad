//! The state of accounts in memory: the lock for changing them, and the accounts that have to be counted.
//!
//! A call that changes the space of a tree adds the difference to the accounts in memory and in its batch, and holds
//! the lock shared until both are done. So a thread that holds the lock exclusively finds the same accounts in memory
//! as in the engine. Guarantees: one thread at a time counts, and a thread waits for the lock only as long as the
//! batches in progress take.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::atomic::{AtomicU64, Ordering},
};

use pando_db::waiting;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{background_queue::BackgroundQueue, inode::InodeRef};

/// Most directories in snapshots whose counts are remembered.
const MAX_FROZEN_DIRS: usize = 256;
/// Most directories that wait to be counted; those beyond are found again when something below them changes.
const MAX_WAITING_DIRS: usize = 256;

/// The lock, held shared.
pub(crate) type SharedAccounts<'a> = RwLockReadGuard<'a, ()>;
/// The lock, held exclusively.
pub(crate) type SoleAccounts<'a> = RwLockWriteGuard<'a, ()>;

/// The accounts of a mount.
#[derive(Default)]
pub(crate) struct Ledger {
    accounts: RwLock<()>,
    counting: Mutex<()>,
    /// How often accounts became stale.
    marks: AtomicU64,
    /// Bytes of directories in snapshots, which never change, by contents prefix: it begins with the number of the
    /// volume, which is never reused, unlike inode numbers.
    frozen: Mutex<HashMap<Vec<u8>, i64>>,
    /// Numbers of snapshots from which linked files without a name were removed, and that may not show it.
    stripped: Mutex<HashSet<u32>>,
    /// Directories to be counted: stale, or above something that is.
    stale: BackgroundQueue<VecDeque<InodeRef>>,
}

impl Ledger {
    /// Waits while a thread holds the lock exclusively.
    pub(crate) fn shared(&self) -> SharedAccounts<'_> {
        waiting::take(|| self.accounts.try_read(), || self.accounts.read())
    }

    /// Waits for batches that are under way.
    pub(crate) fn alone(&self) -> SoleAccounts<'_> {
        waiting::take(|| self.accounts.try_write(), || self.accounts.write())
    }

    /// Waits until no other thread counts.
    pub(crate) fn count_alone(&self) -> MutexGuard<'_, ()> {
        waiting::take(|| self.counting.try_lock(), || self.counting.lock())
    }

    /// To be called with the lock held, before accounts become stale.
    pub(crate) fn mark(&self) {
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    /// With the lock held exclusively: no account has become stale since this was the same.
    pub(crate) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }

    /// What the directory in a snapshot with this contents prefix takes, if it was counted.
    pub(crate) fn frozen(&self, contents: &[u8]) -> Option<i64> {
        self.frozen.lock().get(contents).copied()
    }

    /// Remembers what the directory in a snapshot with this contents prefix takes.
    pub(crate) fn note_frozen(&self, contents: Vec<u8>, bytes: i64) {
        let mut frozen = self.frozen.lock();
        if frozen.len() >= MAX_FROZEN_DIRS {
            frozen.clear();
        }
        frozen.insert(contents, bytes);
    }

    /// Forgets what was counted in the snapshot with this contents prefix.
    pub(crate) fn forget_frozen(&self, root: &[u8]) {
        self.frozen.lock().retain(|contents, _| !contents.starts_with(root));
    }

    /// To be called before linked files without a name are removed from a snapshot that may not show it afterwards:
    /// what was counted in it may be too much from now on.
    pub(crate) fn note_stripped(&self, number: u32) {
        self.stripped.lock().insert(number);
    }

    /// Whether that was said of a snapshot.
    pub(crate) fn was_stripped(&self, number: u32) -> bool {
        self.stripped.lock().contains(&number)
    }

    /// Puts a directory into the queue of those to be counted.
    pub(crate) fn wants(&self, dir: &InodeRef) {
        let mut stale = self.stale.lock();
        let known = stale.work.iter().any(|other| other.ino == dir.ino);
        if !known && !stale.is_stopped() && stale.work.len() < MAX_WAITING_DIRS {
            stale.work.push_back(dir.clone());
        }
    }

    /// The next of the queue.
    pub(crate) fn next(&self) -> Option<InodeRef> {
        self.stale.lock().work.pop_front()
    }

    /// Notes that a background thread counts; false if one does already, the queue is empty, or the mount ends.
    pub(crate) fn start(&self) -> bool {
        self.stale.start(|waiting| !waiting.is_empty())
    }

    /// Whether the background thread is to go on. If not, there is none from now on.
    pub(crate) fn goes_on(&self) -> bool {
        let mut stale = self.stale.lock();
        let has_work = !stale.work.is_empty();
        self.stale.goes_on(&mut stale, has_work)
    }

    /// The background thread has ended.
    pub(crate) fn ended(&self) {
        self.stale.ended();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stale.is_stopped()
    }

    /// Ends the counting, and returns when the background thread has ended.
    pub(crate) fn stop(&self) {
        self.stale.stop();
        let waiting = std::mem::take(&mut self.stale.lock().work);
        drop(waiting); // which may drop the last reference of an inode: not under the lock
    }
}
