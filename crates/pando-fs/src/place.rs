//! Places: where an inode is, kept there by locks. This module has the locks of the file system and their order.
//!
//! Each inode has a lock `tree`, and each directory also a lock `names`. A call on an inode holds `tree` of all
//! directories above it shared (its *chain*). So a thread that holds `tree` of a directory exclusively (to move,
//! remove or replace it) knows that no call is in progress below, and a computed path stays true until the engine has
//! the batch. No lock is taken exclusively by all calls, and calls in different subtrees share only locks that they
//! take shared.
//!
//! Order, so that there is no deadlock:
//! 1. the chain is taken from the root down by attempts: a call that meets a taken lock releases all its locks, waits
//!    for that one, and starts again (a rename may have changed the path since the walk up, so the path is certain
//!    only when the whole chain is held);
//! 2. then `names` of the directory, by waiting;
//! 3. then `tree` of one entry in it, by waiting.
//!
//! In deep trees the walk up costs more than all the rest, so the paths of deep directories are cached (`path_cache`).
//! A call that holds all locks of a cached path, and finds that no directory has moved since, holds the right ones.
//!
//! In a file system that is opened for reading only nothing can move, and no chain is taken.
//!
//! Calls on two directories (rename, clone, copy between files) take everything by attempts
//! ([`Fs::with_attempts`]). Does no I/O.

use std::sync::Arc;

use bytes::Bytes;
use pando_db::waiting;
use smallvec::SmallVec;

use crate::{
    error::{Error, Result},
    inode::{InodeRef, Link},
    lock::{self, Attempts, Guard, Lock, Obstacle, attempt_shared, shared},
    path,
    path_cache::CachedPath,
    types::{FileKind, Ino},
    volume::Fs,
};

/// Attempts, a count, that may fail in a row for the lock that the call has just waited for. If more do, the call
/// holds the lock itself, which is a bug.
const MAX_OWN_OBSTACLES: usize = 100;

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
    /// The directory that it depends on: itself, if it is one.
    pub(crate) fn dir(&self) -> Option<&DirAt> {
        self._chain.as_ref().filter(|_| self.data.is_empty())
    }

    /// The directory that it depends on: its own, that of its entry, or the root of the lineage of a linked file; none
    /// if it has no name.
    pub(crate) fn around(&self) -> Option<&DirAt> {
        self._chain.as_ref()
    }

    /// The prefixes of all keys that are its own or below it; none lies in another.
    pub(crate) fn prefixes(&self) -> Vec<Bytes> {
        match &self._chain {
            // A root: its own record is the first key of its region.
            Some(dir) if self.data.is_empty() && dir.entry == dir.contents => {
                vec![path::meta(&dir.contents), path::data(&dir.contents)]
            }
            Some(dir) if self.data.is_empty() => {
                vec![self.meta.clone(), path::meta(&dir.contents), path::data(&dir.contents)]
            }
            _ => vec![self.meta.clone(), self.data.clone()],
        }
    }
}

/// Error if `inode` is to be changed and is in a snapshot.
pub(crate) fn may_change(inode: &InodeRef, change: bool) -> Result<()> {
    match change && inode.frozen {
        true => Err(Error::InSnapshot(inode.label())),
        false => Ok(()),
    }
}

impl Fs {
    /// Runs `f` until it meets no lock that is taken, waiting for such a lock in between.
    /// `f` must take locks by attempts only. [`Error::Damaged`] if it needs one lock twice, as records that were
    /// tampered with can have it.
    pub(crate) fn with_attempts<T>(
        &self,
        mut f: impl FnMut(&mut Attempts) -> Result<T, Obstacle>,
    ) -> Result<T> {
        let mut retrying = None;
        let mut attempts = Attempts::default();
        let mut own = 0;
        loop {
            let handed = attempts.spare.as_ref().map(|(lock, _)| lock.clone());
            match f(&mut attempts) {
                Ok(value) => return Ok(value),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Overtaken) => attempts.overtaken = true,
                Err(Obstacle::Taken { lock, exclusive }) => {
                    // The call holds this lock already and wants it a second time.
                    own = match handed.map(|handed| Arc::ptr_eq(&handed, &lock)) {
                        Some(true) => own + 1,
                        Some(false) => 0,
                        None => own,
                    };
                    if own > MAX_OWN_OBSTACLES {
                        let what = "what is to be changed".into();
                        return Err(Error::Damaged { what, detail: "two of its directories are one" });
                    }
                    attempts.spare = None; // no lock is held while waiting for another
                    // Of the calls that have failed once, one at a time tries again, so that two cannot obstruct each
                    // other for ever.
                    if retrying.is_none() {
                        retrying = Some(waiting::take(|| self.retry.try_lock(), || self.retry.lock()));
                    }
                    if exclusive {
                        let guard = lock::exclusive(&lock);
                        attempts.spare = Some((lock, guard));
                    } else {
                        drop(shared(&lock));
                    }
                }
            }
        }
    }

    /// The cached path to a directory; if only that to its parent is cached, it is extended by one step.
    fn cached_path(&self, dir: &InodeRef) -> Result<Option<Arc<CachedPath>>> {
        if self.paths.is_empty() {
            return Ok(None);
        }
        let moves = self.table.moves();
        if let Some(found) = self.paths.find(dir).filter(|found| found.moves == moves) {
            return Ok(Some(found));
        }
        let Some((parent, name)) = dir.peek(|s| match &s.link {
            Link::At { parent, name } => Some((parent.clone(), name.clone())),
            _ => None,
        }) else {
            return Ok(None);
        };
        let Some(up) = self.paths.find(&parent).filter(|found| found.moves == moves) else { return Ok(None) };
        let mut contents = Vec::with_capacity(up.contents.len() + name.len() + 2);
        contents.extend_from_slice(&up.contents);
        path::enter(&mut contents, &name)?;
        let mut locks = Vec::new();
        if !self.read_only {
            locks.reserve(up.locks.len() + 1);
            locks.extend(up.locks.iter().cloned());
            locks.push(dir.tree.clone());
        }
        let mut above = up.above.clone();
        above.push(dir.ino);
        let own = up.contents.len();
        let path = Arc::new(CachedPath { dir: dir.weak(), moves, locks, above, contents, own });
        self.paths.add(path.clone());
        Ok(Some(path))
    }

    /// Holds the place of a directory still by a cached path; `None` if the path is out of date.
    fn attempt_cached(&self, dir: &InodeRef, cached: &CachedPath) -> Result<Option<DirAt>, Obstacle> {
        let mut chain = SmallVec::with_capacity(cached.locks.len());
        for lock in &cached.locks {
            chain.push(attempt_shared(lock)?);
        }
        // No directory above can move now, and none has since the path was found. The directory itself
        // may have been removed, being empty.
        let linked = dir.peek(|s| matches!(s.link, Link::At { .. }));
        if !linked || self.table.moves() != cached.moves {
            return Ok(None);
        }
        let entry = path::entry_of(&cached.contents, cached.own);
        let (above, contents) = (cached.above.clone(), cached.contents.clone());
        Ok(Some(DirAt { _chain: chain, above, entry, contents, dir: dir.clone() }))
    }

    /// Holds the place of a directory still, if no lock on the path is taken.
    ///
    /// Costs a lock for each level; and the walk up, unless the path is cached, as those of deep directories are.
    pub(crate) fn attempt_dir(&self, dir: &InodeRef) -> Result<DirAt, Obstacle> {
        dir.must_be_dir()?;
        if let Some(found) = self.cached_path(dir)?
            && let Some(at) = self.attempt_cached(dir, &found)?
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
            if !self.read_only {
                chain.push(attempt_shared(&inode.tree)?);
            }
            // Now that it is held, its link cannot change: is it still the one that we walked?
            let same = inode.peek(|s| match (&s.link, previous) {
                (Link::Root, None) => Ok(true),
                (Link::Snapshot(number), None) => {
                    contents = path::snapshot(*number);
                    own = contents.len();
                    Ok(true)
                }
                // `.snapshots` has no keys of its own.
                (Link::Snapshots(_), None) => {
                    contents = path::snapshot(path::SNAPSHOTS_END);
                    own = contents.len();
                    Ok(true)
                }
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
        if self.paths.wants(above.len()) {
            let locked = up.iter().rev().filter(|_| !self.read_only);
            let locks = locked.map(|inode| inode.tree.clone()).collect();
            let (above, contents) = (above.clone(), contents.clone());
            self.paths.add(Arc::new(CachedPath { dir: dir.weak(), moves, locks, above, contents, own }));
        }
        Ok(DirAt { _chain: chain, above, entry, contents, dir: dir.clone() })
    }

    /// Holds the place of a directory still.
    pub(crate) fn hold_dir(&self, dir: &InodeRef) -> Result<DirAt> {
        loop {
            match self.attempt_dir(dir) {
                Ok(at) => return Ok(at),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Taken { lock, .. }) => drop(shared(&lock)),
                Err(Obstacle::Overtaken) => (),
            }
        }
    }

    /// Holds the place of a directory still, and its entries: for change (alone) or for looking.
    pub(crate) fn hold_names(&self, dir: &InodeRef, change: bool) -> Result<(DirAt, Guard)> {
        may_change(dir, change)?;
        let at = self.hold_dir(dir)?;
        let names = match change {
            true => lock::exclusive(&dir.names),
            false => shared(&dir.names),
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
            (Link::Linked { root, id }, Some(c)) if root.ino == c.dir.ino => {
                let path = path::linked(&c.contents, *id);
                Some(Ok((path::meta(&path), path::data(&path))))
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
        may_change(inode, change)?;
        let lock = self.own_lock(inode);
        loop {
            let at = self.at(inode, || {
                Ok(match change {
                    true => lock::exclusive(lock),
                    false => shared(lock),
                })
            });
            match at {
                Ok(at) => return Ok(at),
                Err(Obstacle::Failed(e)) => return Err(e),
                Err(Obstacle::Taken { lock, .. }) => drop(shared(&lock)),
                Err(Obstacle::Overtaken) => (),
            }
        }
    }

    /// Like [`Fs::hold`], but only if no lock on the path is taken.
    pub(crate) fn attempt(
        &self,
        inode: &InodeRef,
        tries: &mut Attempts,
        change: bool,
    ) -> Result<At, Obstacle> {
        may_change(inode, change)?;
        let lock = self.own_lock(inode);
        self.at(inode, || if change { tries.exclusive(lock) } else { attempt_shared(lock) })
    }
}
