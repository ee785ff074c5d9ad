//! Edits of the DAG: made over a version, and published at once, if there is room for what they make dirty.
//!
//! An edit asserts the invariants of all that it makes. What comes from the device is not trusted with that:
//! it is checked as it is decoded, and as edges are followed, and gives errors. So an assertion that fails is
//! a bug; nothing has been published then, and the store stops.

use std::sync::Arc;

use crate::{
    dag::{
        edit::{Changes, Context, Edit},
        tree::{Limits, Tree, idle_levels, tall_levels},
    },
    db::engine::{Engine, dirty::Dirty, superversion::Superversion},
    error::{Error, Result},
};

/// What an edit may make dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// What there is space for.
    Checked,
    /// More: of a store that is opened.
    Any,
}

impl Engine {
    pub fn context(&self) -> Context<'_> {
        Context {
            pager: &self.pager,
            merge: &*self.merge,
            limits: Limits { pending: self.most_pending(), tall: self.tall_levels(), ..self.limits },
            next_id: &self.next_id,
            handled: &self.counters.handled,
        }
    }

    /// The height from which on a node is made lower when nothing else is to be done.
    pub fn idle_levels(&self) -> u8 {
        idle_levels(self.space.used_bytes() / self.limits.node as u64, self.limits.fanout)
    }

    /// The height from which on a node is higher than what is stored asks for.
    fn tall_levels(&self) -> u8 {
        tall_levels(self.space.used_bytes() / self.limits.node as u64, self.limits.fanout)
    }

    /// Makes an edit and publishes it; made again if it came to something that cannot be read, and knows of
    /// it the next time. [`Error::NoSpace`] if there would be no space for what is dirty then. The caller holds
    /// `flushing`.
    pub(crate) fn edit<T>(
        &self,
        work: impl FnMut(&mut Edit<'_>) -> Result<T>,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<T> {
        self.edit_with(&self.context(), work, then)
    }

    /// The same within other limits.
    pub(crate) fn edit_with<T>(
        &self,
        cx: &Context<'_>,
        work: impl FnMut(&mut Edit<'_>) -> Result<T>,
        then: impl FnOnce(&mut Superversion),
    ) -> Result<T> {
        self.edit_in(cx, Room::Checked, work, then)
    }

    pub(super) fn edit_in<T>(
        &self,
        cx: &Context<'_>,
        room: Room,
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
                self.publish(changes, room, then)?;
            }
            return Ok(made);
        }
    }

    /// Publishes an edit, if it may have any `room`, or there is space for all that is dirty then: [`Error::NoSpace`]
    /// otherwise, and nothing has changed. The caller holds `flushing`. `then` runs under the same lock.
    pub fn publish(&self, changes: Changes, room: Room, then: impl FnOnce(&mut Superversion)) -> Result<()> {
        let versions = Dirty::weigh(changes.versions(), self.limits.node);
        if room == Room::Checked && !self.has_room_for(self.dirty.growth(&versions)) {
            return Err(Error::NoSpace);
        }
        let (orphans, old) = self.change(|superversion| -> Result<_> {
            let root = changes.root;
            let mut table = superversion.tree.table.clone();
            let orphans = changes.apply(&mut table)?;
            // A checkpoint that froze the new versions before they were noted would have nothing to strike
            // out, and they would count as dirty for ever.
            self.dirty.note(versions);
            let (msn, log_end) = (superversion.tree.msn, superversion.tree.log_end);
            let versions = superversion.tree.versions.clone();
            let tree = Arc::new(Tree { table, root, msn, log_end, versions });
            let old = std::mem::replace(&mut superversion.tree, tree);
            then(superversion);
            Ok((orphans, old))
        })?;
        // What only the old version reached is freed here, outside the lock.
        drop(old);
        self.share_memory();
        self.orphans.lock().extend(orphans);
        Ok(())
    }
}

/// Stops the store if an edit panics: an assertion says that this code is wrong, or a merge function does not
/// keep its word. Nothing has been published, and what is durable stays as it is.
struct StopOnPanic<'a>(&'a Engine);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.log.stop("an edit of the DAG panicked: this is a bug, or a merge function has one".into());
            self.0.signal.all();
        }
    }
}
