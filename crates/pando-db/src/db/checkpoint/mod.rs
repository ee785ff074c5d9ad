//! Checkpoints: making a frozen version durable while everything goes on.
//!
//! Shadow paging (Rodeh 2008): dirty nodes and table pages go to free
//! space, flush, one superblock slot, flush. Until the superblock is durable
//! the previous checkpoint and the log stay untouched, so a crash at any point
//! leaves one whole state. Extents of the previous checkpoint are released
//! when its table version is dropped, after that.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bytes::Bytes;

use crate::{
    db::{
        budget::space::capacity,
        engine::{Durable, Engine},
        flush::FlushStep,
    },
    device::BLOCK,
    error::{Error, Result},
    node::NodeId,
    space::{Extent, Space},
    store::{
        layout::store_node,
        log::LogPos,
        pager::Pager,
        scattered::{self, stored_len},
        superblock::{self, Superblock, TableRoot},
        table::Table,
    },
    waiting,
};

mod bounds;
pub(crate) mod discard;

impl Engine {
    /// Makes everything written before the call part of a durable checkpoint. [`Error::ReadOnly`] if the store was
    /// opened so.
    pub fn checkpoint(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let mut durable = waiting::take(|| self.checkpointing.try_lock(), || self.checkpointing.lock());
        self.check_running()?;
        let target = self.change(|superversion| {
            superversion.seal();
            superversion.active.msn
        });
        loop {
            // Flushes as many memtables as the space beside the last checkpoint allows, and the memory for dirty
            // nodes, for which the flusher waits meanwhile. None if space is short for the nodes that are dirty
            // already: this checkpoint writes them, and the next one flushes.
            let mut stuck = None;
            while self.superversion.read().tree.msn < target {
                match self.flush_step() {
                    Ok(FlushStep::Done) if !self.is_full_of_dirt() => (),
                    Ok(_) => break,
                    // There is no space although nothing is dirty: reclaiming nodes without references may free some.
                    Err(Error::NoSpace) => {
                        stuck = Some(self.take_out_unreferenced()?);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.persist(&mut durable, false)?;
            if stuck.is_some_and(|before| self.space.free_bytes() <= before) {
                return Err(Error::NoSpace);
            }
            if self.superversion.read().tree.msn >= target {
                drop(durable);
                self.discard_inline();
                return Ok(());
            }
        }
    }

    /// Makes what has reached the DAG part of a durable checkpoint, if that is still `wanted` when no other
    /// one is being made any more. Memtables stay as they are: the log holds them, and one that is
    /// cut short is as much work below as a full one.
    pub fn checkpoint_nodes(&self, wanted: impl Fn(&Engine) -> bool) -> Result<()> {
        let mut durable = waiting::take(|| self.checkpointing.try_lock(), || self.checkpointing.lock());
        self.check_running()?;
        if wanted(self) {
            self.persist(&mut durable, false)?;
            drop(durable);
            self.discard_inline();
        }
        Ok(())
    }

    /// Makes the checkpoint that was asked for, if it is still wanted. It is one of the nodes alone, without a flush
    /// of the memtables, if that is enough.
    pub fn checkpoint_as_asked(&self) -> Result<()> {
        let flushed = self.superversion.read().tree.log_end;
        if self.log.behind(flushed) <= self.log_size() / 4 {
            self.checkpoint_nodes(Engine::wants_checkpoint)?;
        }
        if self.log_wants_checkpoint() { self.checkpoint() } else { Ok(()) }
    }

    /// Makes a last checkpoint that says that there is nothing to recover.
    pub fn checkpoint_clean(&self) -> Result<()> {
        self.checkpoint()?;
        let mut durable = waiting::take(|| self.checkpointing.try_lock(), || self.checkpointing.lock());
        // Another checkpoint may have failed in between, and it is unknown which superblock it has left.
        self.check_running()?;
        self.persist(&mut durable, true)
    }

    /// Makes the current version of the tree durable.
    fn persist(&self, durable: &mut Durable, clean: bool) -> Result<()> {
        self.tighten_bounds();
        let frozen = self.superversion.read().tree.clone();
        let next_node = self.next_id.load(Ordering::SeqCst);
        let last = &durable.superblock;
        let (log_start, next_msn) = match self.log.start_after(frozen.log_end, frozen.msn) {
            // The last one has passed records of the log's own behind the same batch. Their place has been given
            // up, whatever callers have appended since: it may be written over.
            (start, _) if start.pos < last.log_start.pos => (last.log_start, last.next_msn),
            passed => passed,
        };
        if frozen.table.home().is_some()
            && log_start == durable.superblock.log_start
            && frozen.root == durable.superblock.root
            && clean == durable.superblock.clean
        {
            return Ok(());
        }
        check_progress(last, (log_start, next_msn), next_node);
        let started = Instant::now();
        let mut written = Vec::new();
        let table = frozen.table.persist(
            &mut |id, node| {
                let stored =
                    store_node(&self.pager, &self.space, node, &|extent| frozen.table.has_own(extent))
                        .inspect_err(|e| self.fail("checkpoint", e))?;
                written.push((id, node.clone()));
                Ok(stored)
            },
            &mut |page| {
                store_page(&self.pager, &self.space, page).inspect_err(|e| self.fail("checkpoint", e))
            },
        )?;
        let mut superblock = durable.superblock.clone();
        superblock.log_start = log_start;
        superblock.next_msn = next_msn;
        superblock.next_node = next_node;
        superblock.root = frozen.root;
        superblock.table = table_root(&table);
        superblock.clean = clean;
        let mut commit = || {
            self.flush_device()?;
            self.commit(&mut superblock)
        };
        // However this ends, nothing that the device may now be recovered to is free.
        durable.attempted = Some(table.clone());
        commit().inspect_err(|e| self.stop("checkpoint", e))?;

        self.change(|superversion| {
            let tree = Arc::make_mut(&mut superversion.tree);
            tree.table = tree.table.adopt_stored(&frozen.table, &table);
        });
        written.iter().for_each(|(id, node)| self.dirty.written(*id, node));
        self.share_memory();
        // The buffer takes space in the ring as well, and perhaps no other thread writes it out.
        self.log.write_out()?;
        self.log.truncate(log_start);
        // The previous checkpoint's extents are free from here on.
        *durable = Durable { superblock, _table: table, attempted: None };
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.checkpoint_micros.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.signal.finished();
        Ok(())
    }

    /// Makes a superblock the newest in both slots.
    pub(crate) fn commit(&self, superblock: &mut Superblock) -> Result<()> {
        superblock.incompatible |= superblock::WRITTEN_FEATURES;
        if self.space.has_scattered() {
            superblock.incompatible |= superblock::SCATTERED_EXTENTS;
        }
        superblock.log_durable = self.log.durable_msn();
        superblock::commit(&*self.device, superblock)
    }

    fn flush_device(&self) -> Result<()> {
        self.device.flush().map_err(|e| Error::Io { action: "flush", offset: 0, source: e })
    }

    /// Makes the store `size` bytes long, growing the device first if it is shorter.
    pub fn grow(&self, size: u64) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let mut durable = waiting::take(|| self.checkpointing.try_lock(), || self.checkpointing.lock());
        self.check_running()?;
        let size = size / BLOCK * BLOCK;
        let old = durable.superblock.device_size;
        if size < old {
            return Err(Error::Invalid(format!("the store has {old} bytes and cannot shrink to {size}")));
        }
        if size > self.device.size() {
            self.device.grow(size).map_err(|e| Error::io("grow", size, e))?;
        }
        if size == old {
            return Ok(());
        }
        let capacity = capacity(&*self.device, size)?;
        let mut superblock = durable.superblock.clone();
        superblock.device_size = size;
        let mut commit = || {
            self.flush_device()?;
            self.commit(&mut superblock)
        };
        commit().inspect_err(|e| self.stop("grow", e))?;
        durable.superblock = superblock;
        self.capacity.store(capacity, Ordering::Relaxed);
        self.space.grow(size);
        Ok(())
    }
}

/// Writes a table page to free space.
pub(crate) fn store_page(pager: &Pager, space: &Arc<Space>, page: Bytes) -> Result<Arc<Extent>> {
    assert!(!page.is_empty(), "a table page without bytes");
    let extent = space.allocate_anywhere(page.len() as u64)?;
    scattered::write(&**pager.device(), &extent, &page)?;
    Ok(extent)
}

/// Where a persisted table begins, for the superblock.
pub(crate) fn table_root(table: &Table) -> TableRoot {
    match table.home() {
        Some(home) => TableRoot {
            offset: home.extent.offset,
            len: stored_len(&home.extent),
            checksum: home.sum,
            depth: table.depth(),
        },
        None => TableRoot::default(),
    }
}

/// Asserts that a checkpoint continues from the last one. If it moves the log's start, it passes at least one record.
fn check_progress(last: &Superblock, (log_start, next_msn): (LogPos, u64), next_node: NodeId) {
    let start = last.log_start.pos;
    assert!(next_msn >= last.next_msn, "a checkpoint of an older state than the last");
    assert!(log_start.pos >= start, "a checkpoint gives the log back what it gave up");
    assert!(log_start.pos == start || next_msn > last.next_msn, "the log's start passes bytes and no record");
    assert!(next_node >= last.next_node, "a checkpoint would give node numbers twice");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        io,
        sync::{Arc, OnceLock, Weak, atomic::AtomicU64, atomic::Ordering::Relaxed},
    };

    use super::check_progress;
    use crate::{
        CreateOptions, Db, Options,
        db::engine::Engine,
        device::{BLOCK, Device, DeviceCall, HookedDevice, SimDevice},
        locks::Mutex,
        store::{log::LogPos, superblock::Superblock},
    };

    /// A checkpoint with this start of the log, number of its first batch, and next node, after one with 100, 10, 5.
    fn progress(start: u64, next_msn: u64, next_node: u64) {
        let at = |pos| LogPos { pos, chain: 0 };
        let last = Superblock { log_start: at(100), next_msn: 10, next_node: 5, ..Superblock::default() };
        check_progress(&last, (at(start), next_msn), next_node);
    }

    #[test]
    fn checkpoints_go_on() {
        progress(100, 10, 5);
        progress(150, 11, 5);
        progress(150, 20, 9);
    }

    #[test]
    #[should_panic(expected = "a checkpoint of an older state than the last")]
    fn a_checkpoint_is_of_no_older_state() {
        progress(150, 9, 5);
    }

    #[test]
    #[should_panic(expected = "a checkpoint gives the log back what it gave up")]
    fn the_start_of_the_log_does_not_move_back() {
        progress(99, 10, 5);
    }

    #[test]
    #[should_panic(expected = "the log's start passes bytes and no record")]
    fn the_start_of_the_log_passes_records() {
        progress(150, 10, 5);
    }

    #[test]
    #[should_panic(expected = "a checkpoint would give node numbers twice")]
    fn node_numbers_are_given_once() {
        progress(150, 11, 4);
    }

    /// A checkpoint passed the log's record of a value behind the last batch in the tree, and gave its place up. The
    /// next one, with new batches in memory, began at that record again: at what may have been written over.
    #[test]
    fn a_checkpoint_does_not_begin_where_the_log_was_given_up() {
        let device = Arc::new(SimDevice::new(64 << 20, 1));
        let create = CreateOptions { node_size: 1 << 20, log_size: Some(1 << 20), ..Default::default() };
        let options = || Options { background: false, ..Options::default() };
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let engine = db.engine();
        db.put("long", vec![1; 20_000]).unwrap();
        db.sync().unwrap();
        engine.seal();
        engine.flush_all().unwrap();
        engine.checkpoint_nodes(|_| true).unwrap();
        let start = || engine.checkpointing.lock().superblock.log_start.pos;
        let (first, tree) = (start(), engine.superversion.read().tree.log_end.pos);
        assert!(first > tree + 20_000, "the record of the value was not passed");
        db.put("short", "2").unwrap();
        engine.checkpoint_nodes(|_| true).unwrap();
        assert!(start() >= first, "{} after {first}", start());
        db.sync().unwrap();
        device.crash();
        let db = Db::open(device.reopen(), options()).unwrap();
        assert_eq!(db.get(b"long").unwrap().as_deref(), Some(&[1; 20_000][..]));
        assert_eq!(db.get(b"short").unwrap().as_deref(), Some(&b"2"[..]));
        assert!(db.check().unwrap().findings.is_empty());
    }

    /// A store with small nodes.
    fn small_store() -> Arc<SimDevice> {
        let sim = Arc::new(SimDevice::new(16 << 20, 1));
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        Db::create(sim.clone(), &create, &without_threads()).unwrap();
        sim
    }

    fn without_threads() -> Options {
        Options { background: false, ..Options::default() }
    }

    /// Until the superblock of a checkpoint is durable, a crash leads back to the last one: none of its space is free.
    #[test]
    fn the_last_checkpoint_keeps_its_space_until_the_next_is_durable() {
        let sim = small_store();
        // Free bytes when the first slot of a superblock was written last, and its flush had not come.
        let free = Arc::new(AtomicU64::new(0));
        let store: Arc<OnceLock<Weak<Engine>>> = Arc::default();
        let (seen, of) = (free.clone(), store.clone());
        let device = HookedDevice::new(sim, false, move |call| {
            if let DeviceCall::Write(bytes) = call
                && bytes.start < 2 * BLOCK
                && let Some(engine) = of.get().and_then(Weak::upgrade)
            {
                seen.store(engine.space.free_bytes(), Relaxed);
            }
            Ok(())
        });
        let db = Db::open(Arc::new(device), without_threads()).unwrap();
        store.set(Arc::downgrade(db.engine())).unwrap();
        for round in 0..3 {
            (0..500).for_each(|i| db.put(format!("{i:04}"), vec![round; 500]).unwrap());
            db.checkpoint().unwrap();
        }
        // All nodes are written anew each time: what the last checkpoint had is free only behind the superblock.
        let (before, after) = (free.load(Relaxed), db.engine().space.free_bytes());
        let nodes = db.stats().unwrap().node_bytes;
        assert!(nodes > 64 << 10, "the store is too small to tell: {nodes}");
        assert!(before + nodes / 2 < after, "{before} bytes were free, {after} are, and nodes have {nodes}");
    }

    /// If the superblock cannot be written, it is unknown which of two checkpoints the device has. None of their space
    /// is free then: a discard of it might run already.
    #[test]
    fn a_checkpoint_that_may_have_reached_the_device_keeps_its_space() {
        let sim = small_store();
        // Free bytes when the superblock was to be written and was not.
        let free: Arc<OnceLock<u64>> = Arc::default();
        let store: Arc<OnceLock<Weak<Engine>>> = Arc::default();
        let (seen, of) = (free.clone(), store.clone());
        let device = HookedDevice::new(sim, false, move |call| {
            if let DeviceCall::Write(bytes) = call
                && bytes.start < 2 * BLOCK
                && let Some(engine) = of.get().and_then(Weak::upgrade)
            {
                _ = seen.set(engine.space.free_bytes());
                return Err(io::Error::other("the superblock is not written"));
            }
            Ok(())
        });
        let db = Db::open(Arc::new(device), without_threads()).unwrap();
        for round in 0..2 {
            (0..500).for_each(|i| db.put(format!("{i:04}"), vec![round; 500]).unwrap());
            if round == 0 {
                db.checkpoint().unwrap();
            }
        }
        let first = db.engine().space.free_bytes();
        store.set(Arc::downgrade(db.engine())).unwrap();
        db.checkpoint().unwrap_err();
        let begun = *free.get().unwrap();
        assert!(
            begun + (64 << 10) < first,
            "the checkpoint has written little: {first} and {begun} bytes were free"
        );
        assert_eq!(db.engine().space.free_bytes(), begun);
    }

    /// A crash could leave a superblock that tells of more than the device has: such a store is not opened.
    #[test]
    fn growth_is_durable_before_a_superblock_tells_it() {
        let sim = small_store();
        // The calls, and the size of the device at each.
        let calls: Arc<Mutex<Vec<(DeviceCall, u64)>>> = Arc::default();
        let (seen, below) = (calls.clone(), sim.clone());
        let device = HookedDevice::new(sim, false, move |call| {
            seen.lock().push((call.clone(), below.size()));
            Ok(())
        });
        let db = Db::open(Arc::new(device), without_threads()).unwrap();
        calls.lock().clear();
        db.grow(32 << 20).unwrap();
        let calls = calls.lock();
        let durable = calls.iter().position(|(call, size)| *call == DeviceCall::Flush && *size == 32 << 20);
        let told = calls
            .iter()
            .position(|(call, _)| matches!(call, DeviceCall::Write(bytes) if bytes.start < 2 * BLOCK));
        assert!(durable.zip(told).is_some_and(|(durable, told)| durable < told), "{calls:?}");
    }

    #[test]
    fn a_checkpoint_of_nodes_leaves_tables_to_the_log() {
        let device = Arc::new(SimDevice::new(16 << 20, 1));
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = || Options { background: false, memtable_bytes: 1 << 20, ..Options::default() };
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        (0..100).for_each(|i| db.put(format!("old{i}"), vec![1; 100]).unwrap());
        db.engine().seal();
        db.engine().flush_all().unwrap();
        (0..100).for_each(|i| db.put(format!("new{i}"), vec![2; 100]).unwrap());
        db.sync().unwrap();
        let (dirty, before) = (db.engine().dirty.memory(), db.stats().unwrap());
        db.engine().checkpoint_nodes(|_| false).unwrap();
        assert_eq!(
            (db.engine().dirty.memory(), db.stats().unwrap().checkpoints),
            (dirty, before.checkpoints)
        );
        db.engine().checkpoint_nodes(|_| true).unwrap();
        let after = db.stats().unwrap();
        assert_eq!((db.engine().dirty.memory(), after.checkpoints), (0, before.checkpoints + 1));
        assert_eq!(db.engine().superversion.read().active.points.len(), 100, "the table is as it was");
        assert!(after.log_used < before.log_used && after.log_used > 100 * 100, "{}", after.log_used);
        device.crash();
        let db = Db::open(device.reopen(), options()).unwrap();
        for i in 0..100 {
            assert_eq!(db.get(format!("old{i}").as_bytes()).unwrap().as_deref(), Some(&[1; 100][..]));
            assert_eq!(db.get(format!("new{i}").as_bytes()).unwrap().as_deref(), Some(&[2; 100][..]));
        }
        assert!(db.check().unwrap().findings.is_empty());
    }
}
