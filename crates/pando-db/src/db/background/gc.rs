//! The garbage collector: it pushes deletes down to where they free something, removes from nodes what nothing shows,
//! and has checkpoints free the nodes that this replaces.
//!
//! It works in bounded steps, each of which is published like any structural change. Guarantees: while readers hold old
//! versions, so that steps free nothing, the collector leaves checkpoints and deletes most of the space that is
//! reserved for them.
//!
//! The walks that find work hold no lock, and continue where they stopped: a step reads at most [`STEP_NODES`] nodes.
//! The lock `flushing` is held only while some of the places that were found are changed.

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

/// Places at which one step pushes deletes down, a count.
const STEP_PLACES: usize = 8;
/// Steps that change something, a count, between two checks of whether enough space is free.
const ROUND_STEPS: usize = 32;

impl Engine {
    /// Pushes deletes down, reclaims nodes and makes checkpoints until there is `enough` space or nothing more can be
    /// freed. Returns whether there is enough. If other threads go on writing, this deals with what was deleted before
    /// the call.
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
                // Extents that the former checkpoint refers to are free only after the next one.
                if enough()? || self.gc_progress.lock().has_settled() || !self.gc_until_changed()? {
                    self.reclaim_all()?;
                    self.checkpoint()?;
                    return enough();
                }
            }
        })();
        // After an early stop the walks still hold versions, which are not needed any more.
        self.let_walks_go();
        self.gc_progress.lock().settling = None;
        settled
    }

    /// Drops the versions that walks hold. The walks begin anew.
    pub(super) fn let_walks_go(&self) {
        let held = self.gc_progress.lock().let_go();
        // Dropped outside the lock, because that may free a whole version.
        drop(held);
    }

    /// Whether a call of [`Engine::settle`] is under way while other threads write.
    fn settles_beside(&self) -> bool {
        let newest = self.superversion.read().active.msn;
        self.gc_progress.lock().settles_beside(newest)
    }

    /// Makes steps until [`ROUND_STEPS`] of them have changed something, or all deletes have arrived. `false` if there
    /// was nothing to change.
    fn gc_until_changed(&self) -> Result<bool> {
        let mut changed = 0;
        while changed < ROUND_STEPS && !self.gc_progress.lock().has_settled() && self.gc_step()? {
            let mut progress = self.gc_progress.lock();
            changed += usize::from(std::mem::take(&mut progress.changed));
            if changed > 0 && progress.stage == GcStage::Messages && !progress.begun {
                break;
            }
        }
        Ok(changed > 0)
    }

    /// Makes one bounded step of garbage collection. `false` if a whole walk has found nothing, or if readers hold the
    /// nodes that such steps replace, so that more steps would use up the space that deletes and checkpoints need.
    pub fn gc_step(&self) -> Result<bool> {
        if self.is_short() {
            // A checkpoint frees the nodes that the last step has replaced, unless a reader holds them.
            let (unfreed, held) = {
                let mut gc_progress = self.gc_progress.lock();
                let unfreed = std::mem::take(&mut gc_progress.unfreed);
                // A walk for messages holds nothing, and goes on.
                let ends = unfreed && gc_progress.stage != GcStage::Messages;
                (unfreed, ends.then(|| gc_progress.let_go()))
            };
            drop(held);
            if unfreed {
                self.checkpoint()?;
            }
            let (newest, free) = (self.log.appended_msn(), self.space.free_bytes());
            if !self.gc_yield.lock().goes_on(newest, free, self.reserve() / 8) {
                return Ok(false);
            }
        }
        let mut stage = self.gc_progress.lock().stage;
        loop {
            let step = match stage {
                GcStage::Deletes if self.pushdown_step(Tombstones::All)? => GcStep::GoesOn,
                GcStage::Deletes => GcStep::Nothing,
                GcStage::Unseen => self.prune_step()?,
                GcStage::Root => self.heal_step()?,
                GcStage::Messages => self.messages_step()?,
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
            // A step ends where the deletes have arrived, because they may have freed enough.
            if step != GcStep::Nothing || next.is_none_or(|next| next == GcStage::Messages) {
                return Ok(step != GcStep::Nothing || next.is_some());
            }
        }
    }

    /// Removes edges and levels that the root does not need any more, in one step, after the nodes without references,
    /// because what only these share is private then. The step is first tried on a version that nobody changes, so that
    /// no lock is held while nodes are read.
    fn heal_step(&self) -> Result<GcStep> {
        // Nobody who settles waits for what others cut off meanwhile.
        if !self.settles_beside() && self.reclaim_step()? {
            return Ok(GcStep::GoesOn);
        }
        let base = self.superversion.read().tree.clone();
        match Edit::new(&self.gc_context(), &base).heal_root() {
            Ok(false) => return Ok(GcStep::Nothing),
            Ok(true) => (),
            Err(error) if error.is_damage() => (),
            Err(error) => return Err(error),
        }
        let _turn = self.lock_for_edit()?;
        let shrunk = or_unchanged(self.edit_with(&self.gc_context(), |edit| edit.heal_root(), |_| ()))?;
        let mut gc_progress = self.gc_progress.lock();
        gc_progress.has_changed(shrunk);
        Ok(if shrunk { GcStep::Changed } else { GcStep::Nothing })
    }

    /// Lowers nodes, in one bounded step, if the DAG is higher than its data needs. The step is first tried on a
    /// version that nobody changes, so that no lock is held while nodes are read.
    pub(super) fn lower_step(&self) -> Result<GcStep> {
        if self.is_short() {
            return Ok(GcStep::Nothing);
        }
        // Nodes that wait to be reclaimed may refer to the nodes that are to be lowered, which must be higher than
        // these.
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
            let _turn = self.lock_for_edit()?;
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

    /// Continues the walk for messages that wait in the DAG by one bounded step, if the store is nearly short of space.
    fn messages_step(&self) -> Result<GcStep> {
        if !self.is_nearly_short() {
            self.gc_progress.lock().begun = false;
            return Ok(GcStep::Nothing);
        }
        let goes_on = self.pushdown_step(Tombstones::AndMessages)?;
        Ok(match (goes_on, self.gc_progress.lock().begun) {
            (true, true) => GcStep::GoesOn,
            (true, false) => GcStep::Changed,
            (false, _) => GcStep::Nothing,
        })
    }

    /// Continues the walk for what waits in the DAG by one bounded step, and pushes down what it finds. `false` at the
    /// end of a walk that has found nothing.
    pub fn pushdown_step(&self, which: Tombstones) -> Result<bool> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        // The two may differ: some records of the log are no batches.
        let (newest, written) = (self.log.appended_msn(), self.superversion.read().active.msn);
        let from = {
            let mut walked = self.gc_progress.lock();
            if !walked.begun {
                (walked.begun, walked.from, walked.since, walked.any) = (true, Bytes::new(), newest, false);
            }
            walked.from.clone()
        };
        let (found, mut next) = self.look_for_tombstones(&from, which, STEP_PLACES)?;
        let mut any = false;
        for key in &found {
            // If space is short, each place is a step of its own: the checkpoint behind it shows whether it has freed
            // any.
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

    /// A step of a walk beside writes, from key `from` on: it pushes deletes down at the first place where that pays.
    /// Returns whether there was one, and the key at which the walk continues, `None` at its end. After a pushdown
    /// the walk continues at the same key, because the deletes may wait again at a lower node.
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

    /// Keys at which deletes wait, `most` of them at most, and the key at which the walk continues.
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

    /// Pushes the deletes on the path to `key` down. Returns whether there were any.
    fn push_down_at(&self, key: &Bytes, which: Tombstones) -> Result<bool> {
        let _turn = self.lock_for_edit()?;
        or_unchanged(self.edit_with(&self.gc_context(), |edit| edit.push_down_at(key, which), |_| ()))
    }

    /// True if a delete in a memtable would free a large part of a node. I/O: headers on its path.
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

    /// Nodes that were reclaimed since open, a count. Their space is free after the next checkpoint.
    pub fn reclaimed(&self) -> u64 {
        self.counters.reclaimed.load(Ordering::Relaxed)
    }
}

/// The result of an edit of the garbage collector. The edit has changed nothing if it met a node that cannot be read,
/// or if there is no space for the nodes that it would make dirty.
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
        dag::gc::pushdown::Tombstones,
        db::engine::gc_state::{GcStage, GcStep},
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
                db.engine().pushdown_step(Tombstones::All).unwrap();
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
            ("for levels of the root", &|| assert_eq!(db.engine().heal_step().unwrap(), GcStep::Nothing)),
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

    /// A full store may find enough space while messages are carried down. Deletes that come later are pushed down all
    /// the same, wherever that walk stood and whether or not the store is still short.
    #[test]
    fn deletes_that_come_after_a_walk_for_messages_are_pushed_down() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        for i in 0..5_000u32 {
            db.put(format!("a/{i:06}"), i.wrapping_mul(0x9e37_79b9).to_be_bytes().repeat(20)).unwrap();
        }
        db.settle().unwrap();
        {
            let mut progress = db.engine().gc_progress.lock();
            (progress.stage, progress.begun, progress.from) = (GcStage::Messages, true, "b".into());
        }
        db.engine().let_walks_go();
        (0..5_000u32).step_by(3).for_each(|i| db.delete(format!("a/{i:06}")).unwrap());
        db.checkpoint().unwrap();
        while db.engine().gc_step().unwrap() {}
        let steps = (0..1000).take_while(|_| db.engine().pushdown_step(Tombstones::All).unwrap()).count();
        let (found, _) = db.engine().look_for_tombstones(&Bytes::new(), Tombstones::All, 1).unwrap();
        assert!(found.is_empty() && steps == 0, "deletes waited: {steps} more steps");
        db.close().unwrap();
    }

    /// A Goto that rested, low below a tall root, over an edge with nothing below, and a delete beside it:
    /// the flush made a child for them, which had so few edges that the root took them back. A full store
    /// looked for space for ever, and an idle one never came to rest.
    #[test]
    fn pushdown_comes_to_an_end_beside_a_resting_goto() {
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
            let steps = (0..1000).take_while(|_| db.engine().pushdown_step(Tombstones::All).unwrap()).count();
            assert!(steps < 1000, "deletes are pushed down for ever");
        }
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}
