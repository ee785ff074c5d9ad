//! Where an inode is, held still: the locks of the file system and their order.
//!
//! Each inode has a lock `tree`; each directory a lock `names` besides. A call
//! on something holds `tree` shared of all directories above it (its *chain*);
//! so whoever holds `tree` of a directory exclusively (to move, remove or replace it)
//! knows that no call is under way below, and a path once computed stays true
//! until the engine has the batch. There is no lock that all calls share
//! exclusively, and nothing here is held by calls in other subtrees.
//!
//! Order, so that nobody waits in a circle:
//! 1. the chain is taken from the root down by attempts: who meets a lock that is taken lets
//!    everything go, waits for that one with empty hands, and starts again (the walk up may have
//!    been overtaken by a rename, so its order proves nothing until all of it is held);
//! 2. then `names` of the directory, by waiting;
//! 3. then `tree` of one entry in it, by waiting.
//!
//! The walk up costs more than all the rest where trees are deep. So the ways to the deep directories used last are
//! remembered, with the number of moves (of directories, anywhere) at that time: who holds all locks of a remembered
//! way, and finds that nothing has moved since, holds the right ones.
//!
//! Calls on two directories (rename, clone, copy between files) take everything by attempts
//! ([`Fs::with_attempts`]). Uses inodes and key encoding; does no I/O.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, Mutex, RawRwLock, RwLock};
use smallvec::SmallVec;

use crate::{
    error::{Error, Result},
    inode::{Inode, InodeRef, Link},
    path,
    types::{FileKind, Ino},
    volume::Fs,
};

type Lock = Arc<RwLock<()>>;
type Shared = ArcRwLockReadGuard<RawRwLock, ()>;
type Exclusive = ArcRwLockWriteGuard<RawRwLock, ()>;

/// A lock that is held, to be let go by dropping it.
pub(crate) enum Guard {
    Shared { _guard: Shared },
    Exclusive { _guard: Exclusive },
}

/// Why an attempt to hold several locks ended.
pub(crate) enum Obstacle {
    /// Somebody has this lock: let everything go, wait for it, try again.
    Taken { lock: Lock, exclusive: bool },
    /// The call failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Obstacle {
    fn from(e: E) -> Self {
        Obstacle::Failed(e.into())
    }
}

/// Takes a lock shared if it is not held exclusively.
pub(crate) fn attempt_shared(lock: &Lock) -> Result<Guard, Obstacle> {
    let taken = || Obstacle::Taken { lock: lock.clone(), exclusive: false };
    lock.try_read_arc().map(|_guard| Guard::Shared { _guard }).ok_or_else(taken)
}

/// The attempts of one call.
#[derive(Default)]
pub(crate) struct Attempts {
    /// The lock that the last attempt failed for. Without it, a directory that others use all
    /// the time would be free when waited for, and taken again when tried.
    spare: Option<(Lock, Guard)>,
}

impl Attempts {
    /// Takes a lock exclusively if it is free.
    pub(crate) fn exclusive(&mut self, lock: &Lock) -> Result<Guard, Obstacle> {
        if let Some((_, guard)) = self.spare.take_if(|(l, _)| Arc::ptr_eq(l, lock)) {
            return Ok(guard);
        }
        let taken = || Obstacle::Taken { lock: lock.clone(), exclusive: true };
        lock.try_write_arc().map(|_guard| Guard::Exclusive { _guard }).ok_or_else(taken)
    }
}

/// Directories at least so deep have their way from the root remembered.
const DEEP: usize = 32;
/// Ways that are remembered.
const WAYS: usize = 8;

/// The way from the root to a directory, as it was when so many directories had moved.
#[derive(Debug)]
struct Way {
    dir: Weak<Inode>,
    moves: u64,
    /// `tree` of each directory from the root down, and their numbers.
    locks: Vec<Lock>,
    above: SmallVec<[Ino; 12]>,
    contents: Vec<u8>,
    /// Where in `contents` the name of the directory itself begins.
    own: usize,
}

/// The ways to the deep directories used last: finding them by walking up costs more than
/// all the rest of a call.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Whether there is any: most mounts have no deep directories, and their calls share no lock for it.
    any: AtomicBool,
    list: Mutex<VecDeque<Arc<Way>>>,
}

impl Ways {
    fn find(&self, dir: &InodeRef) -> Option<Arc<Way>> {
        self.list.lock().iter().find(|way| dir.is(&way.dir)).cloned()
    }

    fn add(&self, way: Arc<Way>) {
        self.any.store(true, Ordering::Relaxed);
        let mut ways = self.list.lock();
        ways.retain(|w| !Weak::ptr_eq(&w.dir, &way.dir));
        ways.truncate(WAYS - 1);
        ways.push_front(way);
    }
}

/// A directory whose place is held still.
pub(crate) struct DirAt {
    _chain: SmallVec<[Guard; 12]>,
    above: SmallVec<[Ino; 12]>,
    /// Path of its own entry; empty for the root.
    pub entry: Vec<u8>,
    /// Prefix of its contents.
    pub contents: Vec<u8>,
    pub dir: InodeRef,
}

impl DirAt {
    /// True for the directory itself and those above it.
    pub(crate) fn is_at_or_below(&self, ino: Ino) -> bool {
        self.above.contains(&ino)
    }

    /// Path of the entry `name`.
    pub(crate) fn child(&self, name: &[u8]) -> Result<Vec<u8>> {
        path::entry(&self.contents, name)
    }

    /// Key of its own record.
    pub(crate) fn meta(&self) -> Bytes {
        path::meta(&self.entry)
    }
}

/// An inode whose place and record are held still, and the keys that are its own.
pub(crate) struct At {
    _chain: Option<DirAt>,
    _own: Guard,
    /// Key of the record.
    pub meta: Bytes,
    /// Prefix of the data blocks (of a regular file).
    pub data: Bytes,
}

impl At {
    /// The prefixes of all keys that are its own or below it; none lies in another.
    pub(crate) fn prefixes(&self) -> Vec<Bytes> {
        match &self._chain {
            // The root: its own record is the first key of its region.
            Some(dir) if self.data.is_empty() && dir.entry.is_empty() => {
                vec![path::meta(b""), path::data(b"")]
            }
            Some(dir) if self.data.is_empty() => {
                vec![self.meta.clone(), path::meta(&dir.contents), path::data(&dir.contents)]
            }
            _ => vec![self.meta.clone(), self.data.clone()],
        }
    }
}

impl Fs {
    /// Runs `f` until it meets no lock that is taken, waiting for such a lock in between.
    /// `f` must take locks by attempts only.
    pub(crate) fn with_attempts<T>(
        &self,
        mut f: impl FnMut(&mut Attempts) -> Result<T, Obstacle>,
    ) -> Result<T> {
        let mut turn = None;
        let mut attempts = Attempts::default();
        loop {
            match f(&mut attempts) {
                Ok(value) => return Ok(value),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Taken { lock, exclusive }) => {
                    attempts.spare = None; // wait with empty hands
                    // Of those who failed once, one at a time tries again: two cannot go on
                    // hindering each other.
                    if turn.is_none() {
                        turn = Some(self.turn.lock());
                    }
                    if exclusive {
                        let _guard = lock.write_arc();
                        attempts.spare = Some((lock, Guard::Exclusive { _guard }));
                    } else {
                        drop(lock.read());
                    }
                }
            }
        }
    }

    /// The remembered way to a directory, or to its parent and one step more.
    fn way(&self, dir: &InodeRef) -> Result<Option<Arc<Way>>> {
        if !self.ways.any.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let moves = self.table.moves();
        if let Some(way) = self.ways.find(dir).filter(|way| way.moves == moves) {
            return Ok(Some(way));
        }
        let Some((parent, name)) = dir.peek(|s| match &s.link {
            Link::At { parent, name } => Some((parent.clone(), name.clone())),
            _ => None,
        }) else {
            return Ok(None);
        };
        let Some(up) = self.ways.find(&parent).filter(|way| way.moves == moves) else { return Ok(None) };
        let mut contents = Vec::with_capacity(up.contents.len() + name.len() + 2);
        contents.extend_from_slice(&up.contents);
        path::enter(&mut contents, &name)?;
        let mut locks = Vec::with_capacity(up.locks.len() + 1);
        locks.extend(up.locks.iter().cloned());
        locks.push(dir.tree.clone());
        let mut above = up.above.clone();
        above.push(dir.ino);
        let own = up.contents.len();
        let way = Arc::new(Way { dir: dir.weak(), moves, locks, above, contents, own });
        self.ways.add(way.clone());
        Ok(Some(way))
    }

    /// Holds the place of a directory still by a remembered way, if it is that still.
    fn attempt_way(&self, dir: &InodeRef, way: &Way) -> Result<Option<DirAt>, Obstacle> {
        let mut chain = SmallVec::with_capacity(way.locks.len());
        for lock in &way.locks {
            chain.push(attempt_shared(lock)?);
        }
        // No directory above can move now, and none has since the way was found. The directory itself
        // may have been removed, being empty.
        let linked = dir.peek(|s| matches!(s.link, Link::At { .. }));
        if !linked || self.table.moves() != way.moves {
            return Ok(None);
        }
        let entry = path::entry_of(&way.contents, way.own);
        let (above, contents) = (way.above.clone(), way.contents.clone());
        Ok(Some(DirAt { _chain: chain, above, entry, contents, dir: dir.clone() }))
    }

    /// Holds the place of a directory still, if no lock on the way is taken.
    ///
    /// Costs what the directory is deep: a lock for each level, and for those deeper than 32 whose way is not
    /// remembered the walk up.
    pub(crate) fn attempt_dir(&self, dir: &InodeRef) -> Result<DirAt, Obstacle> {
        dir.must_be_dir()?;
        if let Some(way) = self.way(dir)?
            && let Some(at) = self.attempt_way(dir, &way)?
        {
            return Ok(at);
        }
        let moves = self.table.moves();
        let up = dir.ancestry()?;
        let mut chain = SmallVec::new();
        let mut above = SmallVec::new();
        let mut contents = Vec::new();
        let mut own = 0; // where in it the name of the directory itself begins
        let mut previous: Option<&InodeRef> = None;
        for inode in up.iter().rev() {
            chain.push(attempt_shared(&inode.tree)?);
            // Now that it is held, its link cannot change: is it still the one that we walked?
            let same = inode.peek(|s| match (&s.link, previous) {
                (Link::Root, None) => Ok(true),
                (Link::At { parent, name }, Some(p)) if parent.ino == p.ino => {
                    own = contents.len();
                    path::enter(&mut contents, name).map(|()| true)
                }
                _ => Ok(false),
            });
            if !same? {
                return Err(Obstacle::Taken { lock: inode.tree.clone(), exclusive: false });
            }
            above.push(inode.ino);
            previous = Some(inode);
        }
        let entry = path::entry_of(&contents, own);
        if above.len() > DEEP {
            let locks = up.iter().rev().map(|inode| inode.tree.clone()).collect();
            let (above, contents) = (above.clone(), contents.clone());
            self.ways.add(Arc::new(Way { dir: dir.weak(), moves, locks, above, contents, own }));
        }
        Ok(DirAt { _chain: chain, above, entry, contents, dir: dir.clone() })
    }

    /// Holds the place of a directory still.
    pub(crate) fn hold_dir(&self, dir: &InodeRef) -> Result<DirAt> {
        loop {
            match self.attempt_dir(dir) {
                Ok(at) => return Ok(at),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Taken { lock, .. }) => drop(lock.read()),
            }
        }
    }

    /// Holds the place of a directory still, and its entries: for change (alone) or for looking.
    pub(crate) fn hold_names(&self, dir: &InodeRef, change: bool) -> Result<(DirAt, Guard)> {
        let at = self.hold_dir(dir)?;
        let names = match change {
            true => Guard::Exclusive { _guard: dir.names.write_arc() },
            false => Guard::Shared { _guard: dir.names.read_arc() },
        };
        Ok((at, names))
    }

    fn at(&self, inode: &InodeRef, own: impl FnOnce() -> Result<Guard, Obstacle>) -> Result<At, Obstacle> {
        if inode.kind == FileKind::Directory {
            let chain = self.attempt_dir(inode)?;
            let _own = own()?;
            return Ok(At { meta: chain.meta(), data: Bytes::new(), _own, _chain: Some(chain) });
        }
        let again = || Obstacle::Taken { lock: inode.tree.clone(), exclusive: false };
        let parent = inode.parent()?;
        let chain = match parent.as_ref().map(|p| self.attempt_dir(p)).transpose() {
            Ok(chain) => chain,
            // The directory is dead, but is this still in it? It may have been moved away before,
            // or be an orphan now.
            Err(Obstacle::Failed(Error::Stale(_))) => {
                let now = inode.parent()?;
                return match (now, parent) {
                    (Some(now), Some(parent)) if now.ino == parent.ino => Err(Error::Stale(inode.ino).into()),
                    _ => Err(again()),
                };
            }
            Err(other) => return Err(other),
        };
        let _own = own()?;
        // A rename or unlink may have been faster than our lock.
        let keys = inode.peek(|s| match (&s.link, &chain) {
            (Link::Orphan, None) => {
                Some(Ok((path::system::orphan_meta(inode.ino), path::system::orphan_data(inode.ino))))
            }
            (Link::At { parent, name }, Some(c)) if parent.ino == c.dir.ino => {
                Some(c.child(name).map(|entry| (path::meta(&entry), path::data(&entry))))
            }
            (Link::Gone, _) => Some(Err(Error::Stale(inode.ino))),
            _ => None,
        });
        match keys {
            Some(keys) => {
                keys.map(|(meta, data)| At { meta, data, _own, _chain: chain }).map_err(Obstacle::from)
            }
            None => Err(again()),
        }
    }

    fn own_lock<'a>(&self, inode: &'a InodeRef) -> &'a Lock {
        match inode.kind {
            FileKind::Directory => &inode.names,
            _ => &inode.tree,
        }
    }

    /// Holds an inode's place and record still: for change (alone) or for looking.
    pub(crate) fn hold(&self, inode: &InodeRef, change: bool) -> Result<At> {
        let lock = self.own_lock(inode);
        loop {
            let at = self.at(inode, || {
                Ok(match change {
                    true => Guard::Exclusive { _guard: lock.write_arc() },
                    false => Guard::Shared { _guard: lock.read_arc() },
                })
            });
            match at {
                Ok(at) => return Ok(at),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Taken { lock, .. }) => drop(lock.read()),
            }
        }
    }

    /// Like [`Fs::hold`], but only if nothing on the way is taken.
    pub(crate) fn attempt(
        &self,
        inode: &InodeRef,
        tries: &mut Attempts,
        change: bool,
    ) -> Result<At, Obstacle> {
        let lock = self.own_lock(inode);
        self.at(inode, || if change { tries.exclusive(lock) } else { attempt_shared(lock) })
    }
}
