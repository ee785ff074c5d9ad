//! Structural work: flushing sealed tables into the DAG, reclaiming what nothing refers to. Carrying deletes
//! further is [`crate::db::background::gc`]'s.
//!
//! One at a time, under the `flushing` lock, each step bounded; the result is
//! published at once.
//!
//! An edit asserts the invariants of all that it makes. What comes from the device is not trusted with that:
//! it is checked as it is decoded, and as edges are followed, and gives errors. So an assertion that fails is
//! a bug; nothing has been published then, and the store stops.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::MutexGuard;

use crate::{
    dag::{
        edit::{Context, Edit},
        memtable::build::MemtableBuild,
    },
    db::engine::{Engine, FlushStep, Room, signal::Work, superversion::Superversion},
    error::{Error, Result},
    node::NodeId,
    waiting,
};

/// Points, and bytes of them, that a waiting writer builds at once: a fraction of a millisecond.
const BUILD_POINTS: usize = 512;
const BUILD_BYTES: usize = 64 << 10;

/// Nodes that one reclaim step takes out.
pub(super) const RECLAIM_NODES: usize = 64;

impl Engine {
    /// Applies the oldest sealed table to the DAG.
    pub fn flush_step(&self) -> Result<FlushStep> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        // Asked for here: before, several threads could find room for one edit each.
        if self.is_tight()? {
            return Ok(FlushStep::NoRoom);
        }
        self.or_no_room(self.apply_oldest(Room::Checked))
    }

    /// What a step came to that had no room, and can have it once what is dirty is written.
    fn or_no_room(&self, step: Result<FlushStep>) -> Result<FlushStep> {
        match step {
            Err(Error::NoSpace) if self.dirty.count() > 0 => Ok(FlushStep::NoRoom),
            other => other,
        }
    }

    /// Applies the oldest sealed table to the DAG. The caller holds `flushing`.
    fn apply_oldest(&self, room: Room) -> Result<FlushStep> {
        let Some(table) = self.superversion.read().sealed.front().cloned() else {
            return Ok(FlushStep::Nothing);
        };
        // What came in bulk is taken over as the log has placed it.
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
        // What cannot be carried further waits at the top: for what cannot be read, or because space is short although
        // nothing is dirty.
        let stays =
            |error: &Error| error.is_damage() || matches!(error, Error::NoSpace) && self.dirty.count() == 0;
        let placed = match self.edit_in(&cx, room, |edit| edit.apply_table(&table, layer.clone()), done) {
            Err(error) if stays(&error) => {
                match self.edit_in(&cx, room, |edit| edit.keep_table(&table, layer.clone()), done) {
                    Err(error) if error.is_damage() => {
                        self.edit_in(&cx, room, |edit| edit.keep_table_above(&table, layer.clone()), done)?
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

    /// Takes a little off the flusher, for a writer that has to wait for it: builds some points of a table
    /// that will be its next, or goes on with that, into pages. `false` if there is nothing to do, or another
    /// writer does it. As long as values that came in bulk wait anywhere, no table is begun.
    pub fn help_build(&self) -> bool {
        let Some(mut building) = self.building.try_lock() else { return false };
        let next = {
            let superversion = self.superversion.read();
            let going_on =
                building.as_ref().and_then(|p| superversion.sealed.iter().find(|table| p.is_of(table)));
            // The first one is the flusher's as a rule, which takes over what was built of it.
            match going_on.or_else(|| superversion.sealed.get(1)) {
                Some(table) => table.clone(),
                None => return false,
            }
        };
        let mut begun = match building.take_if(|p| p.is_of(&next)) {
            Some(begun) => begun,
            // Values that came in bulk lie in pages, or will: the flusher takes these over whole.
            None if self.log.has_blobs() || !self.bulk.is_empty() => return false,
            None => MemtableBuild::new(next, self.pager.page_target()),
        };
        let more = begun.go_on(BUILD_POINTS, BUILD_BYTES);
        *building = Some(begun);
        more
    }

    /// Goes on flushing where an edit had to stop; nothing is to be done if the root is within its limit.
    ///
    /// Once for each table it lowers a DAG that is much too tall first: the edit of a table with many clones has no
    /// room for that where the cache is small, and each such table would leave it higher.
    pub fn relieve_step(&self) -> Result<FlushStep> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        if self.is_tight()? {
            return Ok(FlushStep::NoRoom);
        }
        let step = self.or_no_room(self.relieve(Room::Checked));
        match step {
            // Nothing is dirty, and still there is no room: what comes is kept at the top.
            Err(Error::NoSpace) => Ok(FlushStep::Nothing),
            other => other,
        }
    }

    /// The same within some room. The caller holds `flushing`.
    fn relieve(&self, room: Room) -> Result<FlushStep> {
        // What can be read has been carried down before, or will be by the next one.
        let or_not = |done: Result<bool>| match done {
            Err(error) if error.is_damage() => Ok(false),
            other => other,
        };
        let msn = self.superversion.read().tree.msn;
        let is_new = self.lowered_at.swap(msn, Ordering::Relaxed) != msn;
        let cx = self.context();
        let done = is_new && or_not(self.edit_in(&cx, room, |edit| edit.lower_too_tall(), |_| ()))?
            || or_not(self.edit_in(&cx, room, |edit| edit.relieve_root(), |_| ()))?;
        Ok(if done { FlushStep::Done } else { FlushStep::Nothing })
    }

    /// The turn to change the DAG, with room for what an edit makes dirty: makes a checkpoint of what is dirty first
    /// where that is short. The caller holds neither this nor `checkpointing`.
    pub(super) fn turn_with_room(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            let turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
            if !self.is_tight()? {
                return Ok(turn);
            }
            drop(turn);
            self.checkpoint_nodes(|_| true)?;
        }
    }

    /// Before more is made dirty: makes a checkpoint where that could fill the device, or where dirty nodes
    /// have as much memory as they may.
    pub fn make_way(&self) -> Result<()> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        if self.is_full_of_dirt() {
            match self.checkpoint_nodes(Engine::is_full_of_dirt) {
                // What can be flushed in memory is.
                Ok(()) | Err(Error::NoSpace) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the messages of memory and root further down by one bounded step. What an edit had to leave in the root
    /// goes first: it would grow with every table.
    pub fn flush_messages(&self) -> Result<FlushStep> {
        match self.relieve_step()? {
            FlushStep::Nothing => self.flush_step(),
            other => Ok(other),
        }
    }

    /// Whether there may be more to do after a step. Where it had no room, what is dirty is written.
    pub fn goes_on(&self, step: FlushStep) -> Result<bool> {
        if step == FlushStep::NoRoom {
            self.checkpoint_nodes(|_| true)?;
        }
        Ok(step != FlushStep::Nothing)
    }

    /// Applies all sealed tables, with checkpoints between where they have to be.
    pub fn flush_all(&self) -> Result<()> {
        loop {
            self.make_way()?;
            let step = self.or_given_back(self.flush_messages())?;
            if !self.goes_on(step)? {
                return Ok(());
            }
        }
    }

    /// Applies all that is in memory now; the number of the newest batch among that.
    pub fn flush_what_is_written(&self) -> Result<u64> {
        let until = self.change(|superversion| {
            superversion.seal();
            superversion.active.msn
        });
        self.flush_until(until)?;
        Ok(until)
    }

    /// Applies sealed tables in the same way until all batches up to `msn` are in the tree, or there are no more.
    pub fn flush_until(&self, msn: u64) -> Result<()> {
        loop {
            self.make_way()?;
            let mut step = self.relieve_step()?;
            if step == FlushStep::Nothing && self.superversion.read().tree.msn < msn {
                step = self.or_given_back(self.flush_step())?;
            }
            if !self.goes_on(step)? {
                return Ok(());
            }
        }
    }

    /// Applies all sealed tables without writing anything: for recovery, where the device may not be
    /// writable.
    pub fn flush_all_in_memory(&self) -> Result<()> {
        while self.flush_in_memory()? {}
        Ok(())
    }

    /// The same by one step, whatever is dirty: `false` if there is nothing to do.
    pub fn flush_in_memory(&self) -> Result<bool> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        let step = match self.relieve(Room::Any)? {
            FlushStep::Nothing => self.apply_oldest(Room::Any)?,
            other => other,
        };
        Ok(step != FlushStep::Nothing)
    }

    /// Takes all nodes without references out of the store, also those that this frees, but none that others make
    /// meanwhile: they could go on for ever.
    pub fn reclaim_all(&self) -> Result<()> {
        let end = self.next_id.load(Ordering::SeqCst);
        while self.reclaim_before(end)? {}
        Ok(())
    }

    /// Takes some nodes without references out of the store; `false` if there are none that can be.
    pub fn reclaim_step(&self) -> Result<bool> {
        self.reclaim_before(NodeId::MAX)
    }

    /// The same of nodes that have numbers below `end`.
    fn reclaim_before(&self, end: NodeId) -> Result<bool> {
        let _turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        let some: Vec<NodeId> = {
            let mut orphans = self.orphans.lock();
            let some: Vec<_> = orphans.range(..end).copied().take(RECLAIM_NODES).collect();
            some.iter().for_each(|id| {
                orphans.remove(id);
            });
            some
        };
        if some.is_empty() {
            return Ok(false);
        }
        let mut reclaimed = self.edit(|edit| edit.reclaim(&some), |_| ());
        if reclaimed.as_ref().is_err_and(Error::is_damage) {
            // One by one: a node that cannot be read leads nobody knows where, and stays with what it owns.
            let one = |id| match self.edit(|edit| edit.reclaim(&[id]), |_| ()) {
                Err(error) if error.is_damage() => Ok(()),
                other => other,
            };
            reclaimed = some.iter().copied().try_for_each(one);
        }
        match &reclaimed {
            Ok(()) => _ = self.counters.reclaimed.fetch_add(some.len() as u64, Ordering::Relaxed),
            Err(_) => self.orphans.lock().extend(some),
        }
        reclaimed.map(|()| true)
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

    fn edit_in<T>(
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

    /// What a write leaves to do where no threads do it.
    pub fn after_write(&self) -> Result<()> {
        if self.options.background {
            if self.views.sizes.sealed() > 0 {
                self.signal.ask(Work::Flush);
            }
            return Ok(());
        }
        let result = self.maintain_inline();
        if let Err(error) = &result {
            // The batch itself is in; what failed is the store's own work.
            self.fail("flush", error);
        }
        Ok(())
    }

    fn maintain_inline(&self) -> Result<()> {
        self.flush_all()?;
        self.reclaim_step()?;
        if self.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Stops the store, unless the failure is one that passes.
    pub fn fail(&self, during: &str, error: &Error) {
        if !matches!(error, Error::NoSpace) {
            self.stop(during, error);
        }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;
    use crate::{Batch, CreateOptions, Db, Options, device::MemDevice};

    /// Whoever takes out all nodes does not wait for those who free more and more: their nodes are newer.
    #[test]
    fn nodes_that_are_freed_meanwhile_are_left_to_the_next() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).expect("memory");
        let db = Db::open(device, options).expect("a store");
        let write = |tree: &str| {
            (0..4_000).for_each(|i| db.put(format!("{tree}/{i:05}"), vec![7; 400]).expect("room"));
            db.checkpoint().expect("room");
        };
        write("old");
        let engine = db.engine();
        let end = engine.next_id.load(Ordering::SeqCst);
        write("new");
        let mut batch = Batch::new();
        batch.delete_prefix("old/").delete_prefix("new/");
        db.write(batch).expect("room");
        db.checkpoint().expect("room");
        let newer = || engine.orphans.lock().range(end..).count();
        let before = newer();
        assert!(before > 0 && engine.orphans.lock().first().is_some_and(|id| *id < end), "nodes of both");
        while engine.reclaim_before(end).expect("readable") {}
        assert!(engine.orphans.lock().first().is_some_and(|id| *id >= end) && newer() >= before);
        engine.reclaim_all().expect("readable");
        assert!(engine.orphans.lock().is_empty());
        assert!(db.check().expect("readable").findings.is_empty());
    }

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
