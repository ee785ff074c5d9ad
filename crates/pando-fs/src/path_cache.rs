//! A cache of the paths of deep directories.
//!
//! Walking up from a deep directory costs more than all the rest of a call. So the paths of some deep directories are
//! kept, each with the number of moves of directories until then. A cached path may be out of date: the caller takes
//! the locks of all directories on it, and then checks that no directory has moved since.

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

/// Most cached paths, a count.
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

/// The paths that were added last.
#[derive(Debug)]
pub(crate) struct PathCache {
    /// Paths of more than so many directories are cached.
    depth: usize,
    /// Whether any path is cached. Most mounts have no deep directories, and their calls need not take the lock.
    any: AtomicBool,
    list: Mutex<VecDeque<Arc<CachedPath>>>,
}

impl PathCache {
    /// A cache for paths of more than `depth` directories, the root included.
    pub(crate) fn new(depth: usize) -> Self {
        Self { depth, any: AtomicBool::new(false), list: Mutex::default() }
    }

    /// True if a path of so many directories is to be cached.
    pub(crate) fn wants(&self, depth: usize) -> bool {
        depth > self.depth
    }

    /// True if no path is cached.
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// The cached path of `dir`. It is right if no directory has moved since.
    pub(crate) fn find(&self, dir: &InodeRef) -> Option<Arc<CachedPath>> {
        self.list.lock().iter().find(|path| dir.is(&path.dir)).cloned()
    }

    /// Adds a path, and drops the one that was added first.
    pub(crate) fn add(&self, path: Arc<CachedPath>) {
        self.any.store(true, Ordering::Relaxed);
        let mut list = self.list.lock();
        list.retain(|w| !Weak::ptr_eq(&w.dir, &path.dir));
        list.truncate(MAX_PATHS - 1);
        list.push_front(path);
    }
}
