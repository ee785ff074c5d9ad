//! Giving space back: deletes that wait in the DAG are carried to where they free something, what nothing
//! shows any more is taken out of nodes, and checkpoints free what that has replaced.
//!
//! In bounded steps, each published like every structural change. Guarantees: where readers hold old
//! versions, so that steps give nothing back, they leave checkpoints and deletes most of the space that is
//! kept for them.
//!
//! Walks that look for what there is to do hold no lock and go on where they were: a step looks at
//! [`STEP_NODES`] nodes at most. Only what was found is changed under the lock, some at a time.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::{
    dag::{
        edit::Edit,
        gc::pushdown::{TombstoneWalk, Tombstones},
    },
    db::{
        background::gc_limits::STEP_NODES,
        engine::{
            Engine,
            gc_state::{GcProgress, GcStage, GcStep, Settling},
        },
    },
    error::{Error, Result},
    key::behind,
    waiting,
};

/// Places at which one step carries deletes down.
const STEP_PLACES: usize = 8;
/// Steps that changed something, after which it is seen whether enough has come back.
const ROUND_STEPS: usize = 32;
impl Engine {
    /// Flushes deletes down, reclaims and checkpoints until there is `enough` space, or nothing more
    /// can be given back; whether there is. Where others go on writing it is about what was there when it began.
    pub fn settle(&self, enough: &dyn Fn() -> Result<bool>) -> Result<bool> {
        waiting::announce();
        let _turn = waiting::take(|| self.collecting.try_lock(), || self.collecting.lock());
        let until = self.flush_what_is_written()?;
        let settling = Some(Settling { until, walks: 0 });
        *self.gc_progress.lock() = GcProgress { settling, ..GcProgress::default() };
        let settled = (|| {
            loop {
                self.reclaim_all()?;
                self.checkpoint()?;
                // What the former checkpoint held may be given back only by the next.
                if enough()? || self.gc_progress.lock().has_settled() || !self.gc_until_changed()? {
                    self.reclaim_all()?;
                    self.checkpoint()?;
                    return enough();
                }
            }
        })();
        // Where it has stopped early, what walks hold is not needed.
        self.let_walks_go();
        self.gc_progress.lock().settling = None;
        settled
    }

    /// Lets go of the versions that walks hold, where there is one; they begin anew.
    pub(super) fn let_walks_go(&self) {
        let held = self.gc_progress.lock().let_go();
        // Not while the lock is held.
        drop(held);
    }

    fn settles_beside(&self) -> bool {
        let newest = self.superversion.read().active.msn;
        self.gc_progress.lock().settles_beside(newest)
    }

    /// Steps until enough of them have changed something for a checkpoint; `false` if there was nothing to
    /// change.
    fn gc_until_changed(&self) -> Result<bool> {
        let mut changed = 0;
        while changed < ROUND_STEPS && !self.gc_progress.lock().has_settled() && self.gc_step()? {
            changed += usize::from(std::mem::take(&mut self.gc_progress.lock().changed));
        }
        Ok(changed > 0)
    }

    /// Carries deletes to where they free something, or takes out what nothing shows any more, or looks for
    /// such, by one bounded step; `false` if a whole walk has found nothing, or if readers hold what such
    /// steps replace, so that they would cost the space that deletes and checkpoints need.
    pub fn gc_step(&self) -> Result<bool> {
        if self.is_short() {
            // Frees what the last step has replaced, if nobody holds it.
            let (unfreed, held) = {
                let mut gc_progress = self.gc_progress.lock();
                let unfreed = std::mem::take(&mut gc_progress.unfreed);
                (unfreed, unfreed.then(|| gc_progress.let_go()))
            };
            drop(held);
            if unfreed {
                self.checkpoint()?;
            }
            let (newest, free) = (self.log.appended_msn(), self.space.free_bytes());
            if !self.worth.lock().goes_on(newest, free, self.reserve() / 8) {
                return Ok(false);
            }
        }
        let mut stage = self.gc_progress.lock().stage;
        loop {
            let step = match stage {
                GcStage::Deletes if self.pushdown_step()? => GcStep::GoesOn,
                GcStage::Deletes => GcStep::Nothing,
                GcStage::Unseen => self.prune_step()?,
                GcStage::Root if self.heal_step()? => GcStep::Changed,
                GcStage::Root => GcStep::Nothing,
                GcStage::Little => self.collapse_step()?,
                GcStage::Tall => self.lower_step()?,
            };
            let next = match step {
                GcStep::GoesOn => Some(stage),
                GcStep::Changed => Some(GcStage::default()),
                GcStep::Nothing => stage.next(),
            };
            // Nobody who settles waits for a store to become lower while others make it higher.
            let next = next.filter(|next| match next {
                GcStage::Little | GcStage::Tall => !self.settles_beside(),
                _ => true,
            });
            stage = next.unwrap_or_default();
            self.gc_progress.lock().stage = stage;
            if step != GcStep::Nothing || next.is_none() {
                return Ok(step != GcStep::Nothing);
            }
        }
    }

    /// Takes edges and levels away that the root does not need any more, by one step; whether there were any.
    /// Whether there are is found out on a version first, so that what has to be read is read without the lock.
    fn heal_step(&self) -> Result<bool> {
        let base = self.superversion.read().tree.clone();
        match Edit::new(&self.gc_context(), &base).heal_root() {
            Ok(false) => return Ok(false),
            Ok(true) => (),
            Err(error) if error.is_damage() => (),
            Err(error) => return Err(error),
        }
        let _turn = self.turn_with_room()?;
        let shrunk = or_unchanged(self.edit_with(&self.gc_context(), |edit| edit.heal_root(), |_| ()))?;
        let mut gc_progress = self.gc_progress.lock();
        gc_progress.has_changed(shrunk);
        Ok(shrunk)
    }

    /// Makes nodes lower where the DAG is higher than its data asks for, by one bounded step. What has to be read for
    /// it is read on a version first, without the lock.
    pub(super) fn lower_step(&self) -> Result<GcStep> {
        if self.is_short() {
            return Ok(GcStep::Nothing);
        }
        // What waits to be reclaimed may refer to what is to become lower.
        if self.reclaim_step()? {
            return Ok(GcStep::GoesOn);
        }
        let cx = self.idle_context();
        let base = self.superversion.read().tree.clone();
        let found = match Edit::new(&cx, &base).lower() {
            Err(error) if error.is_damage() => false,
            other => other?,
        };
        let lowered = found && {
            let _turn = self.turn_with_room()?;
            or_unchanged(self.edit_with(&cx, |edit| edit.lower(), |_| ()))?
        };
        let mut gc_progress = self.gc_progress.lock();
        gc_progress.has_changed(lowered);
        if lowered {
            gc_progress.lowered = true;
            return Ok(GcStep::GoesOn);
        }
        Ok(if std::mem::take(&mut gc_progress.lowered) { GcStep::Changed } else { GcStep::Nothing })
    }

    /// Goes on looking for deletes that wait in the DAG, by one bounded step, and carries those that it finds
    /// to where they free something; `false` at the end of a walk that has found none.
    pub fn pushdown_step(&self) -> Result<bool> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        // The log has records of its own, which are no batches.
        let (newest, written) = (self.log.appended_msn(), self.superversion.read().active.msn);
        let from = {
            let mut walked = self.gc_progress.lock();
            if !walked.begun {
                (walked.begun, walked.from, walked.since, walked.any) = (true, Bytes::new(), newest, false);
            }
            walked.from.clone()
        };
        let which = if self.is_nearly_short() { Tombstones::AndMessages } else { Tombstones::All };
        let (found, mut next) = self.look_for_tombstones(&from, which, STEP_PLACES)?;
        let mut any = false;
        for key in &found {
            // Where space is short each is a step: a checkpoint tells whether it has given any back.
            if any && self.is_short() {
                next = Some(key.clone());
                break;
            }
            any |= self.push_down_at(key, which)?;
        }
        let mut walked = self.gc_progress.lock();
        walked.any |= any;
        walked.has_changed(any);
        match next {
            Some(next) => walked.from = next,
            None => {
                return Ok(walked.has_walked(newest, written));
            }
        }
        Ok(true)
    }

    /// A step of a walk beside writes, from key `from` on: carries the deletes at one place down, if it comes to some
    /// that are worth it; whether it did, and where the walk goes on, if it does. It goes on where it has
    /// carried something, since that may have come to wait again, further down.
    pub fn pushdown_beside(&self, from: &Bytes) -> Result<(bool, Option<Bytes>)> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        let (found, next) = self.look_for_tombstones(from, Tombstones::Worthwhile, 1)?;
        let Some(key) = found.into_iter().next() else { return Ok((false, next)) };
        match self.push_down_at(&key, Tombstones::Worthwhile)? {
            true => Ok((true, Some(key))),
            false => Ok((false, Some(behind(&key)))),
        }
    }

    /// Keys at which deletes wait, some at most, and where to go on.
    fn look_for_tombstones(
        &self,
        from: &Bytes,
        which: Tombstones,
        most: usize,
    ) -> Result<(Vec<Bytes>, Option<Bytes>)> {
        let mut walk = TombstoneWalk { from, which, left: STEP_NODES, most, found: Vec::new() };
        let base = self.superversion.read().tree.clone();
        let cx = self.context();
        let next = Edit::new(&cx, &base).waiting_tombstones(&mut walk)?;
        Ok((walk.found, next))
    }

    /// Carries the deletes on the way to `key` down; whether there were any.
    fn push_down_at(&self, key: &Bytes, which: Tombstones) -> Result<bool> {
        let _turn = self.turn_with_room()?;
        or_unchanged(self.edit_with(&self.gc_context(), |edit| edit.push_down_at(key, which), |_| ()))
    }

    /// True if a delete in memory gives back much at once. I/O: headers on its way.
    pub fn holds_large_delete(&self) -> Result<bool> {
        let (base, deletes) = {
            let superversion = self.superversion.read();
            let tables = superversion.sealed.iter().map(|table| &**table).chain([&superversion.active]);
            let ranges = tables.flat_map(|table| table.ranges.values()).filter(|range| range.is_delete());
            (
                superversion.tree.clone(),
                ranges.take(STEP_NODES).map(|range| range.span.clone()).collect::<Vec<_>>(),
            )
        };
        let cx = self.context();
        let edit = Edit::new(&cx, &base);
        for range in &deletes {
            if edit.is_large_delete(range, STEP_NODES)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Nodes that were taken out so far: their space comes back with the next checkpoint.
    pub fn reclaimed(&self) -> u64 {
        self.counters.reclaimed.load(Ordering::Relaxed)
    }
}

/// What an edit of garbage collection came to: nothing has changed if it met what cannot be read, or if there is no
/// space for what it would make dirty.
fn or_unchanged(edit: Result<bool>) -> Result<bool> {
    match edit {
        Err(error) if error.is_damage() || matches!(error, Error::NoSpace) => Ok(false),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{
            Arc, OnceLock,
            atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use bytes::Bytes;

    use crate::{
        CreateOptions, Db, Options,
        db::engine::gc_state::GcStep,
        device::{DeviceCall, HookedDevice, MemDevice},
    };

    /// How long a read is held up for a write before it is said that this waits for the read.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Each read of a walk is held up until somebody else has written and flushed: what is written comes into the root,
    /// under the locks that a flush takes. Nothing waits in the store, so the walks change nothing, and no read is one
    /// of a change under the lock.
    #[test]
    fn no_lock_is_held_over_a_read_of_a_walk() {
        let (store, held) = (Arc::new(OnceLock::<Db>::new()), Arc::new(AtomicU64::new(0)));
        let (walking, stuck) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (db, reads, holds, waited) = (store.clone(), held.clone(), walking.clone(), stuck.clone());
        let device = HookedDevice::new(Arc::new(MemDevice::new(64 << 20)), false, move |call| {
            let Some(db) = db.get().cloned() else { return Ok(()) };
            // What the other one reads is not held up.
            if !matches!(call, DeviceCall::Read(_)) || !holds.swap(false, Relaxed) {
                return Ok(());
            }
            let (done, end) = mpsc::channel();
            let number = reads.fetch_add(1, Relaxed);
            thread::spawn(move || {
                // It does not wait for a read of this header: the root has been changed before the walk.
                db.put("b/", number.to_be_bytes().to_vec()).unwrap();
                let _too_late = done.send(());
            });
            waited.fetch_or(end.recv_timeout(PATIENCE).is_err(), Relaxed);
            holds.store(!waited.load(Relaxed), Relaxed);
            Ok(())
        });
        let device = Arc::new(device);
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = Options { background: false, cache_bytes: 64 << 10, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        for i in 0..20_000u32 {
            db.put(format!("a/{i:06}"), i.wrapping_mul(0x9e37_79b9).to_be_bytes().repeat(20)).unwrap();
        }
        db.delete("a/000777").unwrap();
        db.settle().unwrap();
        db.put("b/", "the root is in memory from here on").unwrap();
        let _first = store.set(db.clone());
        let walks: [(&str, &dyn Fn()); 4] = [
            ("for deletes in an idle store", &|| loop {
                db.engine().pushdown_step().unwrap();
                if !db.engine().gc_progress.lock().begun {
                    break;
                }
            }),
            ("for deletes beside writes", &|| {
                let mut from = Some(Bytes::new());
                while let Some(at) = from {
                    from = db.engine().pushdown_beside(&at).unwrap().1;
                }
            }),
            ("for what nothing shows", &|| while db.engine().prune_step().unwrap() == GcStep::GoesOn {}),
            ("for levels of the root", &|| assert!(!db.engine().heal_step().unwrap())),
        ];
        for (what, walk) in walks {
            held.store(0, Relaxed);
            walking.store(true, Relaxed);
            walk();
            walking.store(false, Relaxed);
            println!("{what}: {} reads", held.load(Relaxed));
            assert!(!stuck.load(Relaxed), "the walk {what}: a write waited for read {}", held.load(Relaxed));
            assert!(held.load(Relaxed) > 0, "the walk {what} read nothing");
        }
        db.close().unwrap();
    }

    /// A Goto that rested, low below a tall root, over an edge with nothing below, and a delete beside it:
    /// the flush made a child for them, which had so few edges that the root took them back. A full store
    /// looked for space for ever, and an idle one never came to rest.
    #[test]
    fn sinking_comes_to_an_end_beside_a_resting_goto() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = Options { background: false, memtable_bytes: 1 << 12, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        for directory in 0..200 {
            for file in 0..60 {
                for tree in ["a", "m"] {
                    db.put(format!("{tree}/{directory:03}/{file:02}"), vec![7; 100]).unwrap();
                }
            }
        }
        // Whole edges of the root are empty now.
        db.delete_prefix("m").unwrap();
        db.checkpoint().unwrap();
        for directory in (0..200).step_by(7) {
            db.clone_prefix(format!("a/{directory:03}/"), format!("m/{directory:03}/x/")).unwrap();
            db.delete_prefix(format!("m/{directory:03}/y")).unwrap();
            db.checkpoint().unwrap();
            let steps = (0..1000).take_while(|_| db.engine().pushdown_step().unwrap()).count();
            assert!(steps < 1000, "deletes sink for ever");
        }
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}
