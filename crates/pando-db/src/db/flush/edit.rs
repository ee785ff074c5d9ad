//! Edits of the DAG: an edit is made over a version, and published at once if there is space for the nodes that it
//! makes dirty.
//!
//! An edit asserts the invariants of the nodes that it makes. Nodes from the device are checked when they are
//! decoded, and when edges are followed, and give errors instead. So an assertion that fails is a bug; nothing has
//! been published then, and the store stops.

use std::{
    ops::RangeInclusive,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    dag::{
        edit::{Changes, Context, Edit},
        tree::{Limits, Tree, idle_levels, tall_levels},
    },
    db::engine::{Engine, RefusedPushDown, dirty::Dirty, superversion::Superversion},
    error::{Error, Result},
};

/// Edits without space for what they push down of which one is tried again, a count. It is odd, because those for
/// memtables and those for the root come in turns.
const SKIPPED_PUSH_DOWNS: u32 = 63;

/// Whether an edit is published only if there is space on the device for all nodes that are dirty then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceCheck {
    Required,
    /// The same, and enough is left for the edit of a batch that removes the last reference to data.
    LeavesRelease,
    /// For a store that is being opened: its log is replayed in memory before anything is written.
    Skipped,
}

impl Engine {
    /// Whether a memtable with the batches of these numbers has the newest one that removes the last reference to data.
    pub(super) fn has_release(&self, batches: RangeInclusive<u64>) -> bool {
        batches.contains(&self.counters.released.load(Ordering::Relaxed))
    }

    /// The check for an edit that pushes deletes down. It may copy as many shared nodes as it can change, whose old
    /// versions stay in use, and so may each edit that goes on with it.
    pub(super) fn check_for_push_down(&self, space: SpaceCheck) -> SpaceCheck {
        match space {
            SpaceCheck::Required
                if self.superversion.read().tree.table.shared() > self.limits.edit_nodes as u64 =>
            {
                SpaceCheck::LeavesRelease
            }
            other => other,
        }
    }

    /// Makes an edit that pushes messages down; `None` if it is not tried, because the last one has found no space, and
    /// there is no more since. A try makes all nodes that it would change, and without this each small delete on a
    /// store without space would lead to one. Now and then one is tried anyway, because another may need less. The
    /// caller holds `flushing`.
    pub(super) fn push_down<T>(
        &self,
        check: SpaceCheck,
        edit: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        if check != SpaceCheck::LeavesRelease {
            return edit().map(Some);
        }
        let RefusedPushDown { free_bytes, skipped } = &self.counters.push_down_refused;
        if self.space.free_bytes() <= free_bytes.load(Ordering::Relaxed) {
            let n = skipped.fetch_add(1, Ordering::Relaxed) + 1;
            if !n.is_multiple_of(SKIPPED_PUSH_DOWNS) {
                return Ok(None);
            }
        }
        let done = edit();
        // Otherwise a checkpoint of what is dirty may free some.
        if matches!(done, Err(Error::NoSpace)) && self.dirty.count() == 0 {
            free_bytes.store(self.space.free_bytes(), Ordering::Relaxed);
        }
        done.map(Some)
    }

    /// Notes that there was space for what an edit has pushed down. The caller holds `flushing`.
    pub(super) fn note_pushed_down(&self) {
        self.counters.push_down_refused.free_bytes.store(0, Ordering::Relaxed);
    }

    pub fn context(&self) -> Context<'_> {
        Context {
            pager: &self.pager,
            merge: &*self.merge,
            limits: Limits { pending: self.most_pending(), tall: self.tall_levels(), ..self.limits },
            next_id: &self.next_id,
            handled: &self.counters.handled,
        }
    }

    /// The height from which on a node is lowered while the store is idle.
    pub fn idle_levels(&self) -> u8 {
        idle_levels(self.space.used_bytes() / self.limits.node as u64, self.limits.fanout)
    }

    /// The height from which on a node is higher than the amount of data requires.
    fn tall_levels(&self) -> u8 {
        tall_levels(self.space.used_bytes() / self.limits.node as u64, self.limits.fanout)
    }

    /// Makes an edit and publishes it. If the edit meets a node that cannot be read, it is made once more, and avoids
    /// that node. [`Error::NoSpace`] if there would be no space for the dirty nodes then. The caller holds
    /// `flushing`.
    pub(crate) fn edit<T>(
        &self,
        work: impl FnMut(&mut Edit<'_>) -> Result<T>,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<T> {
        self.edit_with(&self.context(), work, then)
    }

    /// [`Engine::edit`] with other limits than [`Engine::context`] has.
    pub(crate) fn edit_with<T>(
        &self,
        cx: &Context<'_>,
        work: impl FnMut(&mut Edit<'_>) -> Result<T>,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<T> {
        self.edit_in(cx, SpaceCheck::Required, work, then)
    }

    pub(super) fn edit_in<T>(
        &self,
        cx: &Context<'_>,
        space: SpaceCheck,
        mut work: impl FnMut(&mut Edit<'_>) -> Result<T>,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<T> {
        let base = self.superversion.read().tree.clone();
        let _stop = StopOnPanic(self);
        loop {
            let mut edit = Edit::new(cx, &base);
            let known = self.pager.damage_found();
            let made = match work(&mut edit) {
                Err(error) if error.is_damage() && self.pager.damage_found() > known => continue,
                other => other?,
            };
            let changes = edit.finish();
            if !changes.is_empty() {
                self.publish(changes, space, then)?;
            }
            return Ok(made);
        }
    }

    /// Publishes an edit. If `space` is required and there is none for all that is dirty then, this changes nothing
    /// and returns [`Error::NoSpace`]. The caller holds `flushing`. `then` runs under the superversion's lock.
    pub fn publish(
        &self,
        changes: Changes,
        space: SpaceCheck,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<()> {
        let versions = Dirty::weigh(changes.versions(), self.limits.node);
        let kept = match space {
            SpaceCheck::Required => Some(0),
            SpaceCheck::LeavesRelease => Some(self.release_reserve().min(self.reserve() / 2)),
            SpaceCheck::Skipped => None,
        };
        if kept.is_some_and(|kept| !self.has_space_for(self.dirty.growth(&versions), kept)) {
            return Err(Error::NoSpace);
        }
        let (orphans, old) = self.change(|superversion| -> Result<_> {
            let root = changes.root;
            let mut table = superversion.tree.table.clone();
            let orphans = changes.apply(&mut table)?;
            // Noted before the new versions can be seen: a checkpoint that wrote them first would find nothing to
            // remove, and they would count as dirty for ever.
            self.dirty.note(versions);
            let (msn, log_end) = (superversion.tree.msn, superversion.tree.log_end);
            let versions = superversion.tree.versions.clone();
            let tree = Arc::new(Tree { table, root, msn, log_end, versions });
            let old = std::mem::replace(&mut superversion.tree, tree);
            then(superversion);
            Ok((orphans, old))
        })?;
        // Nodes that only the old version reaches are freed here, outside the lock.
        drop(old);
        self.share_memory();
        self.orphans.lock().extend(orphans);
        Ok(())
    }
}

/// Stops the store if an edit panics: an assertion has failed, or a merge function breaks its contract. Nothing has
/// been published, and the durable state stays as it is.
struct StopOnPanic<'a>(&'a Engine);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.log.stop("an edit of the DAG panicked: this is a bug, or a merge function has one".into());
            self.0.signal.all();
        }
    }
}
