//! Locks of inodes, taken by attempts.
//!
//! A call that needs the locks of several subtrees must not wait for one while it holds another. It takes each only if
//! it is free ([`attempt_shared`], [`Attempts::exclusive`]); an [`Obstacle`] says which lock to wait for before the
//! next attempt. `place` has the order of all locks. A call keeps its locks while it waits for the device, so a wait
//! for such a lock may be a wait for the device, and is announced.

use std::sync::Arc;

use pando_db::waiting;
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, RawRwLock, RwLock};

use crate::error::Error;

pub(crate) type Lock = Arc<RwLock<()>>;
type SharedGuard = ArcRwLockReadGuard<RawRwLock, ()>;
type ExclusiveGuard = ArcRwLockWriteGuard<RawRwLock, ()>;

/// A lock that is held. Dropping this releases it.
pub(crate) enum Guard {
    Shared { _guard: SharedGuard },
    Exclusive { _guard: ExclusiveGuard },
}

/// Why an attempt to hold several locks ended.
pub(crate) enum Obstacle {
    /// Another thread has this lock: release all locks, wait for it, try again.
    Taken { lock: Lock, exclusive: bool },
    /// What was found out is no longer so, and the batch that expected it was refused: try again.
    Overtaken,
    /// The call failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Obstacle {
    fn from(e: E) -> Self {
        Obstacle::Failed(e.into())
    }
}

/// Takes a lock shared, and waits for it if it is held exclusively.
pub(crate) fn shared(lock: &Lock) -> Guard {
    let _guard = waiting::take(|| lock.try_read_arc(), || lock.read_arc());
    Guard::Shared { _guard }
}

/// Takes a lock exclusively, and waits for it.
pub(crate) fn exclusive(lock: &Lock) -> Guard {
    let _guard = waiting::take(|| lock.try_write_arc(), || lock.write_arc());
    Guard::Exclusive { _guard }
}

/// Takes a lock shared if it is not held exclusively.
pub(crate) fn attempt_shared(lock: &Lock) -> Result<Guard, Obstacle> {
    let taken = || Obstacle::Taken { lock: lock.clone(), exclusive: false };
    lock.try_read_arc().map(|_guard| Guard::Shared { _guard }).ok_or_else(taken)
}

/// The attempts of one call.
#[derive(Default)]
pub(crate) struct Attempts {
    /// The lock for which the last attempt failed, held by now. Without this, a lock that other calls use all the
    /// time would be free when this call has waited for it, and taken again at the next attempt.
    pub spare: Option<(Lock, Guard)>,
    /// Another call has changed the tree during an attempt. The next attempt does not check for that, because other
    /// calls may never stop.
    pub overtaken: bool,
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
