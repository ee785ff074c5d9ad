//! The mounted file system as a whole: what is in memory of it, its features and its figures.
//!
//! [`Fs`] is the door of this crate; its calls are spread over the modules by subject. `open` makes one.

use std::{
    collections::HashSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pando_db::{Db, waiting};
use parking_lot::Mutex;

use crate::{
    counter::Counter,
    counting::Counting,
    error::{Error, Result},
    file_runs::FileRuns,
    format::encode_format,
    handle::{Handles, OpenDir, OpenFile},
    inode::Table,
    kept_maps::KeptMaps,
    late_calls::LateCalls,
    ledger::Ledger,
    limits::MAX_NAME,
    lineage::Lineages,
    mount_points::MountPoints,
    path::system,
    path_cache::PathCache,
    plan_memory::PlanMemory,
    position::Positions,
    readahead::Readahead,
    removals::Removals,
    stats::{FsStats, Recorder},
    types::{AtimePolicy, Caller, CloneReport, Ino, StatFs, Time},
};

/// Unit of the figures of [`StatFs`], bytes.
const STATFS_UNIT: u32 = 4096;

/// An open file system. Cheap to clone: all clones are one file system, and any may be used from any thread. Dropping
/// the last clone without [`Fs::close`] makes the log durable and leaves the rest to recovery at the next opening.
#[derive(Clone)]
pub struct Fs {
    inner: Arc<Inner>,
}

/// What [`Fs`] holds.
pub struct Inner {
    pub(crate) db: Db,
    pub(crate) read_only: bool,
    /// See [`crate::MountOptions::changes_suspended`]; cleared by the first change.
    pub(crate) changes_suspended: AtomicBool,
    pub(crate) atime: AtimePolicy,
    pub(crate) table: Arc<Table>,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) file_numbers: Counter,
    pub(crate) clone_ids: Counter,
    pub(crate) snapshot_numbers: Counter,
    pub(crate) families: Counter,
    /// See [`crate::MountOptions::snapshots_visible`].
    pub(crate) snapshots_visible: bool,
    pub(crate) lineages: Lineages,
    pub(crate) positions: Positions,
    /// When a tree was cloned last; long ago if none was.
    pub(crate) cloned: Mutex<Time>,
    pub(crate) clone_latency: Recorder,
    /// See [`Fs::with_attempts`].
    pub(crate) retry: Mutex<()>,
    pub(crate) paths: PathCache,
    pub(crate) readahead: Readahead,
    pub(crate) file_runs: Arc<FileRuns>,
    /// See [`crate::MountOptions::tick_times`].
    pub(crate) tick_times: bool,
    /// See [`crate::MountOptions::merge_steps`].
    pub(crate) merge_steps: usize,
    /// See [`crate::MountOptions::nameless_bytes`].
    pub(crate) nameless_bytes: u64,
    pub(crate) counting: Arc<Counting>,
    pub(crate) late_calls: LateCalls,
    pub(crate) removals: Arc<Removals>,
    pub(crate) ledger: Ledger,
    pub(crate) mount_points: MountPoints,
    pub(crate) plan_memory: PlanMemory,
    /// Directories with snapshots that are known to be gone, which do not come back.
    pub(crate) known_gone: Mutex<HashSet<Ino>>,
    pub(crate) kept_maps: KeptMaps,
    /// What the background threads run; `None`: there are none.
    pub(crate) workers: Option<Workers>,
    pub(crate) label: String,
    pub(crate) uuid: [u8; 16],
    /// Bits of the features that the store says it has.
    pub(crate) features: Mutex<u64>,
    /// A copy of the features that is read without a lock.
    pub(crate) features_seen: AtomicU64,
}

/// What the background threads run. Modules that find work for these threads stand below the modules that do it; so the
/// opening, which stands above all, names it here.
#[derive(Clone, Copy)]
pub(crate) struct Workers {
    /// Counts names of linked files until [`Counting::has_work`] says that nothing is left.
    pub count_names: fn(Weak<Inner>),
    /// Counts trees with stale accounts until [`Ledger::goes_on`] says that nothing is left.
    pub count_trees: fn(Weak<Inner>),
    /// Removes what waits in [`Inner::removals`] until nothing is left.
    pub remove: fn(Weak<Inner>),
}

impl std::ops::Deref for Fs {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs")
            .field("label", &self.label)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Fs {
    /// Notes that a tree was cloned: records that were changed before `now` may be shared.
    pub(crate) fn tree_cloned(&self, now: Time) {
        let mut cloned = self.cloned.lock();
        *cloned = now.max(*cloned);
    }

    /// Sets a feature bit of the store before anything that needs it is written. One write, the first time.
    pub(crate) fn need_feature(&self, feature: u64) -> Result<()> {
        // Held over the write, so that the second of two records has the bits of both.
        let mut features = waiting::take(|| self.features.try_lock(), || self.features.lock());
        if *features & feature != feature {
            self.db.put(system::format(), encode_format(&self.label, *features | feature))?;
            *features |= feature;
            self.features_seen.store(*features, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the store says that it has a feature. No I/O.
    pub(crate) fn has_feature(&self, feature: u64) -> bool {
        self.features_seen.load(Ordering::Acquire) & feature == feature
    }

    /// The file system of what an opening has put together.
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// A handle that does not keep the file system open.
    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// The file system, if some other handle still keeps it open.
    pub(crate) fn upgraded(weak: &Weak<Inner>) -> Option<Fs> {
        weak.upgrade().map(|inner| Fs { inner })
    }

    /// The engine underneath.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// The name given at format.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The UUID of the store.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// True if it was opened read-only, or with [`crate::MountOptions::changes_suspended`] and no change has been
    /// made since.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.changes_suspended.load(Ordering::Relaxed)
    }

    /// Returns when the effects of all calls that have returned are durable.
    pub fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    /// Makes the file system, and its file or device if that is shorter, `size` bytes long; see
    /// [`pando_db::Db::grow`].
    pub fn grow(&self, size: u64) -> Result<()> {
        self.writable()?;
        Ok(self.db.grow(size)?)
    }

    /// Space figures as of statfs(2). Shared data counts once.
    pub fn statfs(&self) -> Result<StatFs> {
        let (available, total) = self.db.space();
        let free = available / u64::from(STATFS_UNIT);
        Ok(StatFs {
            blocks: total / u64::from(STATFS_UNIT),
            bfree: free,
            bavail: free,
            files: 0,
            ffree: 0,
            bsize: STATFS_UNIT,
            namelen: MAX_NAME as u32,
            frsize: STATFS_UNIT,
        })
    }

    /// For a caller that waits for writes of other threads: see [`pando_db::Db::put_off_delays`].
    pub fn put_off_delays(&self) -> pando_db::DelaysPutOff<'_> {
        self.db.put_off_delays()
    }

    /// Adds the time that a clone took for its caller, waits included, to the statistics.
    pub fn clone_took(&self, report: &CloneReport, took: Duration) {
        self.clone_latency.correct(report.micros, took.as_micros() as u64);
    }

    /// Figures of this mount and its engine.
    pub fn stats(&self) -> Result<FsStats> {
        let clone_latency = self.clone_latency.histogram();
        Ok(FsStats {
            engine: self.db.stats()?,
            inodes_in_memory: self.table.len(),
            inode_bytes: Table::inode_bytes(),
            open_handles: self.files.len(),
            open_dirs: self.dirs.len(),
            readahead_bytes: self.readahead.total(),
            clones: clone_latency.count(),
            clone_latency,
        })
    }

    /// The time of a change that is made now.
    pub(crate) fn now(&self) -> Time {
        if self.tick_times { Time::of_tick() } else { Time::now() }
    }

    /// Error if the mount is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if self.changes_suspended.load(Ordering::Relaxed) {
            self.changes_suspended.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A file number never used before.
    pub(crate) fn fresh_file(&self) -> Result<u64> {
        self.file_numbers.take(&self.db)
    }

    /// A clone id never used before.
    pub(crate) fn fresh_clone(&self) -> Result<u64> {
        self.clone_ids.take(&self.db)
    }

    /// True if `c` owns what `uid` owns, or is root.
    pub(crate) fn owns(c: &Caller, uid: u32) -> bool {
        c.is_root() || c.uid == uid
    }
}
