//! The state of an open store, which all modules of `db` share. The modules above have what is done with it.
//!
//! Locks, in the order in which they may be taken: `last_deletes`, `collecting`, `checkpointing`, `flushing`,
//! `building`, `superversion`. The first four serialise maintenance and are held over I/O. A foreground call waits
//! for them only where memory, the log or the device is full, and in `settle`, `checkpoint`, `grow`, `close`, and
//! `uuid`, which a backup asks for too. `building` and `superversion` are held for memory operations only. Each other
//! lock of the engine (`orphans`, `gc_yield`, `gc_progress`, `Signal::shutdown`, those of the slot of views, of the
//! throttle, the space and the dirty nodes) is held for a moment.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{
    batch::Op,
    dag::{memtable::build::MemtableBuild, read::view::View, tree::Limits},
    db::engine::{
        dirty::Dirty,
        gc_state::{GcProgress, GcYield, LastDeletes},
        memtable_sizes::MemtableSizes,
        report::Recovery,
        signal::Signal,
        superversion::{Superversion, SuperversionSlot},
        throttle::Throttle,
    },
    device::{Device, InUse},
    error::{Error, Result},
    key::Span,
    locks::{Mutex, RwLock},
    merge::Merge,
    node::NodeId,
    options::Options,
    space::Space,
    store::{bulk::Bulk, log::Log, pager::Pager, superblock::Superblock, table::Table},
    waiting,
};

pub(crate) mod coalesce;
pub(crate) mod dirty;
pub(crate) mod gc_state;
pub(crate) mod memtable_sizes;
pub(crate) mod report;
pub(crate) mod signal;
pub(crate) mod skip_ranges;
pub(crate) mod superversion;
pub(crate) mod throttle;
pub(crate) mod watch;

/// What all parts of an open store share.
pub(crate) struct Engine {
    /// Until the store is closed.
    pub in_use: Mutex<Option<InUse>>,
    pub device: Arc<dyn Device>,
    pub space: Arc<Space>,
    pub pager: Arc<Pager>,
    pub bulk: Arc<Bulk>,
    pub log: Log,
    pub merge: Arc<dyn Merge>,
    pub options: Options,
    /// What was found when the log was replayed.
    pub recovery: Recovery,
    pub limits: Limits,
    /// What the medium could hold of the device, in bytes, when the store was opened or grown last: `u64::MAX` if all
    /// of it.
    pub capacity: AtomicU64,
    pub superversion: RwLock<Superversion>,
    /// The published view of `superversion`, which readers take without its lock.
    pub views: SuperversionSlot,
    pub memtable_sizes: MemtableSizes,
    /// Held while the structure of the DAG is changed.
    pub flushing: Mutex<()>,
    /// The last batch of the tree for which [`Engine::relieve_step`] has looked at its height.
    pub lowered_at: AtomicU64,
    /// A table whose turn comes soon, as far as writers that had to wait have built it into pages.
    pub building: Mutex<Option<MemtableBuild>>,
    /// The last durable checkpoint; held while the next is made.
    pub checkpointing: Mutex<Durable>,
    /// Nodes with count 0, waiting for the reclaimer.
    pub orphans: Mutex<BTreeSet<NodeId>>,
    /// Whether garbage collection frees more space than it takes, where space is short.
    pub gc_yield: Mutex<GcYield>,
    /// The state of garbage collection between its steps.
    pub gc_progress: Mutex<GcProgress>,
    /// Held over I/O by the thread that collects garbage. Only [`Engine::settle`] waits for it.
    pub collecting: Mutex<()>,
    /// Held by a delete that a full store admits into the last part of the reserve, until it is in the memtable; over
    /// I/O. Taken before all other locks.
    pub last_deletes: Mutex<LastDeletes>,
    pub next_id: AtomicU64,
    pub dirty: Dirty,
    pub signal: Signal,
    pub throttle: Throttle,
    pub counters: EngineCounters,
}

/// The superblock on the device, and the version of the table that it names: as long as that is held, none of its
/// extents is reused or discarded.
pub(crate) struct Durable {
    pub superblock: Superblock,
    /// This is only held, never read.
    pub _table: Table,
    /// The version that the superblock on the device may name instead, because writing it was begun and did not
    /// succeed. It is held for the same reason.
    pub attempted: Option<Table>,
}

/// The last edit that found no space for what it pushes down, on a store with shared nodes.
#[derive(Default)]
pub(crate) struct RefusedPushDown {
    /// Bytes that were free then; 0 if there has been space since, or always was.
    pub free_bytes: AtomicU64,
    /// Edits that were not tried since the store was opened, a count.
    pub skipped: AtomicU32,
}

#[derive(Default)]
pub(crate) struct EngineCounters {
    pub checkpoints: AtomicU64,
    pub checkpoint_micros: AtomicU64,
    pub clones: AtomicU64,
    pub by_value: AtomicU64,
    pub push_downs: AtomicU64,
    /// Batches whose clones could not be admitted by bounds of key lengths alone.
    pub length_searches: AtomicU64,
    /// Batches that were coalesced with the batch before.
    pub coalesced: AtomicU64,
    /// Edges and messages about ranges that structural work went through, and messages in memory that clones copied.
    pub handled: AtomicU64,
    /// Keys that cursors came by of which nothing was left.
    pub deletes_passed: AtomicU64,
    /// A cursor has begun behind a skip range since this was asked last.
    pub skip_range_used: AtomicBool,
    /// State in which the last write was refused for lack of space; 0: none was.
    pub refused_at: AtomicU64,
    pub push_down_refused: RefusedPushDown,
    /// The newest batch known to remove the last reference to data, or a later one in the same memtable.
    pub released: AtomicU64,
    /// Waits in vain for readers, one after the other, by writes that would have been refused.
    pub vain_reader_waits: AtomicU32,
    /// Since when the flusher has found no room for a table, although nothing was dirty.
    pub stuck_since: Mutex<Option<Instant>>,
    /// Something was deleted since deletes were last pushed down.
    pub deletes: AtomicBool,
    /// Something was deleted since the last walk beside writes began.
    pub deletes_beside: AtomicBool,
    /// Garbage collection beside writes has freed enough for a checkpoint.
    pub freed: AtomicBool,
    /// Nodes without references that were reclaimed, a count.
    pub reclaimed: AtomicU64,
    /// Garbage collection of an idle store has ended: the next checkpoint that is asked for frees the space, and is
    /// made in any case.
    pub settled: AtomicBool,
}

impl EngineCounters {
    /// Notes that there may be space to free, if one of the operations can delete anything.
    pub fn note_deletes(&self, ops: &[Op]) {
        if ops.iter().any(|op| !matches!(op, Op::Put(..) | Op::Upsert(..) | Op::UpsertPrefix(..))) {
            self.deletes.store(true, Ordering::Relaxed);
            self.deletes_beside.store(true, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// The UUID of the store.
    pub fn uuid(&self) -> [u8; 16] {
        waiting::take(|| self.checkpointing.try_lock(), || self.checkpointing.lock()).superblock.uuid
    }

    /// Bytes of the device that the medium can hold.
    pub fn backed_size(&self) -> u64 {
        self.space.end().min(self.capacity.load(Ordering::Relaxed))
    }

    /// The error that stopped the store, if one did.
    pub fn check_running(&self) -> Result<()> {
        match self.log.stopped() {
            Some(reason) => Err(Error::Stopped { reason }),
            None => Ok(()),
        }
    }

    /// Stops the store for good, because a change could not be completed.
    pub fn stop(&self, during: &str, error: &Error) {
        self.log.stop(format!("{during}: {error}"));
        self.signal.all();
    }

    /// Stops the store, unless the failure is one that passes.
    pub fn fail(&self, during: &str, error: &Error) {
        if !matches!(error, Error::NoSpace) {
            self.stop(during, error);
        }
    }

    /// Makes the active table a sealed one, if there is anything in it.
    pub fn seal(&self) {
        self.change(Superversion::seal);
    }

    /// A consistent view of everything written so far: see [`SuperversionSlot::view`].
    pub fn view(&self) -> Arc<View> {
        self.views.view(&self.superversion)
    }

    /// Calls `read` with such a view: see [`SuperversionSlot::with_view`].
    pub fn with_view<T>(&self, read: impl FnOnce(&View) -> T) -> T {
        self.views.with_view(&self.superversion, read)
    }

    /// Changes the superversion, and what readers see of it from then on.
    pub fn change<T>(&self, change: impl FnOnce(&mut Superversion) -> T) -> T {
        self.views.change(&self.superversion, |superversion| {
            let result = change(superversion);
            self.memtable_sizes.publish(superversion);
            result
        })
    }

    /// Notes that in the version after batch `seen` nothing was to be seen in `span`.
    pub fn found_empty(&self, seen: u64, span: Span) {
        let mut superversion = self.superversion.write();
        let now = superversion.active.msn;
        let more = superversion.skip_ranges.found(seen, now, span);
        // The next reader shall know.
        let old = more.then(|| self.views.withdraw());
        drop(superversion);
        drop(old);
    }
}
