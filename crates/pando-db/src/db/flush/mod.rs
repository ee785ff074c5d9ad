//! Structural work: flushing sealed memtables into the DAG (here), reclaiming nodes without references (`reclaim`),
//! and the edits that do both (`edit`).
//!
//! Work is done in bounded steps, one at a time under the lock `flushing`; the result of a step is published at once.
//! A step that finds no space changes nothing and returns [`FlushStep::NeedsCheckpoint`]: checkpoints are made by the
//! modules above.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    dag::{edit::Edit, memtable::build::MemtableBuild},
    db::{
        engine::{Engine, superversion::Superversion},
        flush::edit::SpaceCheck,
    },
    error::{Error, Result},
    waiting,
};

pub(crate) mod edit;
pub(crate) mod reclaim;

/// Points, a count, and their bytes that a waiting writer builds into pages at once: this takes a fraction of a
/// millisecond.
const BUILD_POINTS: usize = 512;
const BUILD_BYTES: usize = 64 << 10;

/// The result of a step of flushing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum FlushStep {
    /// There was nothing to flush.
    Nothing,
    Done,
    /// A checkpoint has to write the dirty nodes first: with more of them there might not be enough space to write
    /// them.
    NeedsCheckpoint,
}

impl Engine {
    /// Applies the oldest sealed table to the DAG.
    pub fn flush_step(&self) -> Result<FlushStep> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        // Checked under the lock: otherwise several threads could find space for one edit each.
        if self.is_tight()? {
            return Ok(FlushStep::NeedsCheckpoint);
        }
        self.or_needs_checkpoint(self.apply_oldest(SpaceCheck::Required))
    }

    /// The result of a step, which needs a checkpoint if it found no space while nodes are dirty.
    fn or_needs_checkpoint(&self, step: Result<FlushStep>) -> Result<FlushStep> {
        match step {
            Err(Error::NoSpace) if self.dirty.count() > 0 => Ok(FlushStep::NeedsCheckpoint),
            other => other,
        }
    }

    /// Applies the oldest sealed table to the DAG. The caller holds `flushing`.
    fn apply_oldest(&self, space: SpaceCheck) -> Result<FlushStep> {
        let Some(table) = self.superversion.read().sealed.front().cloned() else {
            return Ok(FlushStep::Nothing);
        };
        // Bulk values must be placed by the log first: the flush takes their pages over.
        if self.log.has_blobs() {
            self.log.write_out()?;
        }
        let begun = self.building.lock().take_if(|building| building.is_of(&table));
        let layer = match begun {
            Some(building) => building.finish(),
            None => table.to_layer(self.pager.page_target(), |points| self.bulk.page_at(points))?,
        };
        let done = |superversion: &mut Superversion| {
            let applied = superversion.sealed.pop_front();
            assert!(
                applied.is_some_and(|t| Arc::ptr_eq(&t, &table)),
                "another table than the oldest was applied"
            );
            let tree = Arc::make_mut(&mut superversion.tree);
            assert!(tree.msn < table.first_msn, "a table was applied that is older than the tree");
            assert!(tree.log_end.pos <= table.log_end.pos, "a table was applied that the log has passed");
            (tree.msn, tree.log_end) = (table.msn, table.log_end);
        };
        let cx = self.context();
        // A table that cannot be flushed into the nodes below waits at the top of the DAG: because a node cannot be
        // read, or because space is short although nothing is dirty.
        let stays =
            |error: &Error| error.is_damage() || matches!(error, Error::NoSpace) && self.dirty.count() == 0;
        let releases = self.has_release(table.first_msn..=table.msn);
        // Clones were admitted only where there was more space. They are not kept at the root without need, because
        // what waits for their sources is copied there.
        let check = match releases || table.has_clones() {
            true => space,
            false => self.check_for_push_down(space),
        };
        // What a release deletes is to be free soon, and other messages that wait at the root could take the space for
        // that: they stay there.
        let only_deletes = releases && !table.has_clones() && self.is_short();
        let deleted = || table.ranges.values().filter(|range| range.is_delete()).map(|range| &range.span.lo);
        let apply = || {
            let with = |edit: &mut Edit<'_>| match only_deletes {
                true => {
                    let placed = edit.keep_table(&table, layer.clone())?;
                    edit.push_down_on(deleted())?;
                    Ok(placed)
                }
                false => edit.apply_table(&table, layer.clone()),
            };
            let applied = self.edit_in(&cx, check, with, done)?;
            self.note_pushed_down();
            Ok(applied)
        };
        let placed = match self.push_down(check, apply).and_then(|pushed| pushed.ok_or(Error::NoSpace)) {
            Err(error) if stays(&error) => {
                match self.edit_in(&cx, space, |edit| edit.keep_table(&table, layer.clone()), done) {
                    Err(error) if error.is_damage() => {
                        self.edit_in(&cx, space, |edit| edit.keep_table_above(&table, layer.clone()), done)?
                    }
                    other => other?,
                }
            }
            other => other?,
        };
        self.counters.by_value.fetch_add(placed.by_value, Ordering::Relaxed);
        self.counters.push_downs.fetch_add(placed.pushed_down, Ordering::Relaxed);
        self.bulk.forget(table.msn);
        self.throttle.table_flushed(table.bytes());
        self.note_not_stuck();
        self.signal.finished();
        Ok(FlushStep::Done)
    }

    /// Notes that a memtable was flushed, so the flusher is not stuck.
    fn note_not_stuck(&self) {
        *self.counters.stuck_since.lock() = None;
    }

    /// Builds pages from some points of the next memtable to be flushed. A writer that has to wait for the flusher
    /// does this for it (cooperative memtable build). `false` if there is nothing to build, or another writer does
    /// it. No table is begun as long as bulk values wait in the log or in memory.
    pub fn help_build(&self) -> bool {
        let Some(mut building) = self.building.try_lock() else { return false };
        let next = {
            let superversion = self.superversion.read();
            let going_on =
                building.as_ref().and_then(|p| superversion.sealed.iter().find(|table| p.is_of(table)));
            // Not the first memtable: the flusher mostly has it already.
            match going_on.or_else(|| superversion.sealed.get(1)) {
                Some(table) => table.clone(),
                None => return false,
            }
        };
        let mut begun = match building.take_if(|p| p.is_of(&next)) {
            Some(begun) => begun,
            // The pages of bulk values are taken over whole by the flusher.
            None if self.log.has_blobs() || !self.bulk.is_empty() => return false,
            None => MemtableBuild::new(next, self.pager.page_target()),
        };
        let more = begun.go_on(BUILD_POINTS, BUILD_BYTES);
        *building = Some(begun);
        more
    }

    /// Continues flushing where an edit had to stop. There is nothing to do if the root is within its limit.
    ///
    /// Once for each memtable, this first lowers a DAG that is much too tall. If the cache is small, the edit that
    /// applies a table with many clones cannot do so, and each such table would leave the DAG higher.
    pub fn relieve_step(&self) -> Result<FlushStep> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        if self.is_tight()? {
            return Ok(FlushStep::NeedsCheckpoint);
        }
        let step = self.or_needs_checkpoint(self.relieve(SpaceCheck::Required));
        match step {
            // There is no space although nothing is dirty: the messages stay at the top of the DAG.
            Err(Error::NoSpace) => Ok(FlushStep::Nothing),
            other => other,
        }
    }

    /// [`Engine::relieve_step`] without its checks. The caller holds `flushing`.
    fn relieve(&self, space: SpaceCheck) -> Result<FlushStep> {
        // An edit that meets a damaged node changes nothing: the next table may take another path.
        let or_not = |done: Result<bool>| match done {
            Err(error) if error.is_damage() => Ok(false),
            other => other,
        };
        let msn = self.superversion.read().tree.msn;
        let is_new = self.lowered_at.swap(msn, Ordering::Relaxed) != msn;
        let cx = self.context();
        let check = self.check_for_push_down(space);
        if is_new && or_not(self.edit_in(&cx, check, |edit| edit.lower_too_tall(), |_| ()))? {
            return Ok(FlushStep::Done);
        }
        let relieved =
            self.push_down(check, || or_not(self.edit_in(&cx, check, |edit| edit.relieve_root(), |_| ())))?;
        if relieved != Some(true) {
            return Ok(FlushStep::Nothing);
        }
        self.note_pushed_down();
        Ok(FlushStep::Done)
    }

    /// Applies all sealed memtables without writing to the device: for recovery, because the device may be read-only.
    pub fn flush_all_in_memory(&self) -> Result<()> {
        while self.flush_in_memory()? {}
        Ok(())
    }

    /// One step of [`Engine::flush_all_in_memory`], without a check of the space. `false` if there is nothing to do.
    pub fn flush_in_memory(&self) -> Result<bool> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        let step = match self.relieve(SpaceCheck::Skipped)? {
            FlushStep::Nothing => self.apply_oldest(SpaceCheck::Skipped)?,
            other => other,
        };
        Ok(step != FlushStep::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::{Batch, CreateOptions, Db, Options, device::MemDevice};

    /// The flusher is held up, so that tables wait; writers build what they like, also none of one or all of
    /// the next.
    #[test]
    fn what_writers_build_is_what_the_flusher_takes() {
        for seed in 0..20 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let device = Arc::new(MemDevice::new(64 << 20));
            Db::create(device.clone(), &CreateOptions::default(), &Options::default()).expect("memory");
            let db = Db::open(device, Options::default()).expect("a store");
            let engine = db.engine();
            let mut oracle = BTreeMap::new();
            let mut built = 0;
            for _ in 0..3 {
                let held_up = engine.flushing.lock();
                for _ in 0..rng.random_range(1..5) {
                    for _ in 0..rng.random_range(1..5) {
                        let mut batch = Batch::new();
                        for _ in 0..rng.random_range(1..400) {
                            let key = format!("{}/{:04}", rng.random_range(0..5), rng.random_range(0..500));
                            if rng.random_range(0..4) == 0 {
                                batch.delete(key.clone());
                                oracle.remove(&key);
                            } else {
                                let value = vec![rng.random::<u8>(); rng.random_range(0..200)];
                                batch.put(key.clone(), value.clone());
                                oracle.insert(key, value);
                            }
                        }
                        if rng.random_range(0..3) == 0 {
                            let prefix = format!("{}/{}", rng.random_range(0..5), rng.random_range(0..6));
                            batch.delete_prefix(prefix.clone());
                            oracle.retain(|key, _| !key.starts_with(&prefix));
                        }
                        db.write(batch).expect("room");
                        built += u32::from(rng.random() && engine.help_build());
                    }
                    engine.seal();
                    while rng.random_range(0..4) > 0 && engine.help_build() {
                        built += 1;
                    }
                }
                drop(held_up);
                // Some of the rest goes on beside the flusher.
                (0..rng.random_range(0..20)).for_each(|_| _ = engine.help_build());
                db.checkpoint().expect("room");
                assert!(engine.building.lock().is_none(), "seed {seed}: a table stays for nothing");
                let found = db.prefix(b"").map(|pair| pair.expect("readable"));
                let expected = oracle.iter().map(|(key, value)| (key.as_bytes(), &value[..]));
                assert!(
                    found
                        .map(|(key, value)| (key.to_vec(), value.to_vec()))
                        .eq(expected.map(|(key, value)| (key.to_vec(), value.to_vec()))),
                    "seed {seed}"
                );
            }
            assert!(seed > 0 || built > 0, "nothing was built");
        }
    }

    #[test]
    fn what_comes_in_bulk_is_not_built() {
        let device = Arc::new(MemDevice::new(256 << 20));
        Db::create(device.clone(), &CreateOptions::default(), &Options::default()).expect("memory");
        let db = Db::open(device, Options::default()).expect("a store");
        let engine = db.engine();
        let held_up = engine.flushing.lock();
        for i in 0..3 {
            let mut batch = Batch::new();
            (0..32).for_each(|j| _ = batch.put(format!("{i}/{j}"), vec![j; 64 << 10]));
            db.write(batch).expect("room");
            if i > 0 {
                db.sync().expect("memory");
            }
            engine.seal();
            assert!(!engine.help_build() && engine.building.lock().is_none(), "it would be written twice");
        }
        assert!(!engine.bulk.is_empty(), "nothing came in bulk");
        drop(held_up);
        db.checkpoint().expect("room");
        assert_eq!(db.prefix(b"").count(), 96);
    }
}
