//! A cache of the paths of deep directories.
//!
//! Walking up from a deep directory costs more than all the rest of a call. So the paths of the deep directories that
//! were used last are kept, each with the number of moves of directories until then. A cached path may be out of
//! date: the caller takes the locks of all directories on it, and then checks that no directory has moved since.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    inode::{Inode, InodeRef},
    lock::Lock,
    types::Ino,
};

/// Directories deeper than this have their path remembered.
const MIN_DEPTH: usize = 32;
/// Paths that are remembered, a count.
const MAX_PATHS: usize = 8;

/// The path from the root to a directory.
#[derive(Debug)]
pub(crate) struct CachedPath {
    pub dir: Weak<Inode>,
    /// How many directories had moved when the path was found: [`Table::moves`](crate::inode::Table::moves).
    pub moves: u64,
    /// `tree` of each directory from the root down; none where nothing can move.
    pub locks: Vec<Lock>,
    /// Their numbers.
    pub above: SmallVec<[Ino; 12]>,
    pub contents: Vec<u8>,
    /// Where in `contents` the name of the directory itself begins.
    pub own: usize,
}

/// The paths of the deep directories used last.
#[derive(Debug, Default)]
pub(crate) struct PathCache {
    /// Whether there is any: most mounts have no deep directories, and their calls share no lock for it.
    any: AtomicBool,
    list: Mutex<VecDeque<Arc<CachedPath>>>,
}

impl PathCache {
    /// True if a directory with so many above it is worth an entry.
    pub(crate) fn wants(depth: usize) -> bool {
        depth > MIN_DEPTH
    }

    /// True if nothing is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The path of `dir`; it is right if no directory has moved since.
    pub(crate) fn find(&self, dir: &InodeRef) -> Option<Arc<CachedPath>> {
        self.list.lock().iter().find(|path| dir.is(&path.dir)).cloned()
    }

    /// Remembers a path, and forgets the one that was not used for the longest time.
    pub(crate) fn add(&self, path: Arc<CachedPath>) {
        self.any.store(true, Ordering::Relaxed);
        let mut list = self.list.lock();
        list.retain(|w| !Weak::ptr_eq(&w.dir, &path.dir));
        list.truncate(MAX_PATHS - 1);
        list.push_front(path);
    }
}
