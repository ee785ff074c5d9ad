//! The mounted file system as a whole: format, open, close, figures.
//!
//! [`Fs`] is the door of this crate; its calls are spread over the modules by
//! subject. Guarantees: a store without a format record of a known version is
//! not opened; what unlinked files left behind at a crash is removed at open.
//! Uses the engine, and starts what the other modules need.

use std::{
    collections::HashSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_db::{CreateOptions, Db, Options, device::Medium, waiting};
use parking_lot::Mutex;

use crate::{
    counter::{self, Counter, own_record},
    counting::Counting,
    error::{Error, Result},
    file_runs::FileRuns,
    handle::{Handles, OpenDir, OpenFile},
    inode::{Link, Table},
    kept_maps::KeptMaps,
    late_calls::LateCalls,
    ledger::Ledger,
    limits::MAX_NAME,
    lineage::Lineages,
    merge::FsMerge,
    mount_points::MountPoints,
    path::{self, system},
    path_cache::PathCache,
    plan_memory::PlanMemory,
    position::Positions,
    readahead::Readahead,
    record::{Record, get_time},
    stats::{FsStats, Recorder},
    types::{AtimePolicy, Caller, FileKind, FormatOptions, Ino, MountOptions, ROOT, StatFs, Time},
};

/// Version of the keys and records of the file system.
const VERSION: u32 = 1;
/// Mode of a root directory whose record cannot be read.
const LOST_ROOT_MODE: u16 = 0o755;
const MAGIC: &[u8; 8] = b"pando-fs";
/// Feature that a program must know to open at all: files with holes have maps of their blocks, and lineages
/// are given back. A store without it gets it when it is first opened for writing.
const MAPS_AND_LINEAGES: u64 = 1;
/// The same: some entry has, or had, extended attributes. A store gets it with the first of them.
pub(crate) const EXTENDED_ATTRIBUTES: u64 = 2;
/// The same: some file has, or had, more than one name. A store gets it with the first of them.
pub(crate) const HARD_LINKS: u64 = 4;
/// The same: there are, or were, snapshots. A store gets it with the first of them.
pub(crate) const SNAPSHOTS: u64 = 8;
/// The same: a tree has been changed by a message that changes the modes of all that is in it. A store gets it with the
/// first such message.
pub(crate) const TREE_CHANGES: u64 = 16;
/// Bit of the features: snapshots that say which one they were received as.
pub(crate) const RECEIVED: u64 = 32;
/// The same: there are, or were, forks. A store gets it with the first of them.
pub(crate) const FORKS: u64 = 64;
/// The same: some directory has, or had, a policy for its snapshots. A store gets it with the first of them.
pub(crate) const POLICIES: u64 = 128;
/// The same: some directory has, or had, an account of what is below it. A store gets it with the first of them.
pub(crate) const ACCOUNTS: u64 = 256;
/// The same: merges have made, or make, volumes to work in. A store gets it with the first such merge.
pub(crate) const WORKS: u64 = 512;
/// The same: some directory has, or had, snapshots, and its place says so. A store gets it with the first snapshot of a
/// directory that is made.
pub(crate) const SNAPSHOTTED: u64 = 1024;
/// All bits of features that this program knows.
const KNOWN_FEATURES: u64 = MAPS_AND_LINEAGES
    | EXTENDED_ATTRIBUTES
    | HARD_LINKS
    | SNAPSHOTS
    | TREE_CHANGES
    | RECEIVED
    | FORKS
    | POLICIES
    | ACCOUNTS
    | WORKS
    | SNAPSHOTTED;
/// Share (1/n) of the cache for data that the kernel caches too and that was not read from here, and its most bytes.
const WRITTEN_SHARE: u64 = 16;
const MAX_WRITTEN_BYTES: u64 = 64 << 20;
/// Share (1/n) of the cache that maps of files with holes may take besides it.
const MAPS_SHARE: u64 = 32;
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
    /// See [`MountOptions::changes_suspended`]; cleared by the first change.
    pub(crate) changes_suspended: AtomicBool,
    pub(crate) atime: AtimePolicy,
    pub(crate) table: Arc<Table>,
    pub(crate) files: Handles<OpenFile>,
    pub(crate) dirs: Handles<OpenDir>,
    pub(crate) file_numbers: Counter,
    pub(crate) clone_ids: Counter,
    pub(crate) snapshot_numbers: Counter,
    pub(crate) families: Counter,
    /// See [`MountOptions::snapshots_visible`].
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
    /// See [`MountOptions::tick_times`].
    pub(crate) tick_times: bool,
    /// See [`MountOptions::merge_steps`].
    pub(crate) merge_steps: usize,
    pub(crate) counting: Arc<Counting>,
    pub(crate) late_calls: LateCalls,
    pub(crate) ledger: Ledger,
    pub(crate) mount_points: MountPoints,
    pub(crate) plan_memory: PlanMemory,
    /// Directories with snapshots that are known to be gone, which do not come back.
    pub(crate) known_gone: Mutex<HashSet<Ino>>,
    pub(crate) kept_maps: KeptMaps,
    /// Whether things are done in background threads.
    pub(crate) background: bool,
    label: String,
    uuid: [u8; 16],
    /// Bits of the features that the store says it has.
    features: Mutex<u64>,
    /// The same, to be looked at without a lock.
    features_seen: AtomicU64,
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

fn encode_format(label: &str, features: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(MAGIC);
    out.put_u32_le(VERSION);
    out.put_u64_le(features); // features that a program must know to open at all
    out.put_u64_le(0); // features that a program must know to write
    out.put_u16_le(label.len() as u16);
    out.put_slice(label.as_bytes());
    out.freeze()
}

/// As much of a label as the superblock has room for: it is there for those who look without opening.
fn for_superblock(label: &str) -> &str {
    /// Bytes of the field.
    const ROOM: usize = 64;
    let label = label.split('\0').next().unwrap_or_default();
    let end = (0..=ROOM.min(label.len())).rev().find(|end| label.is_char_boundary(*end));
    end.and_then(|end| label.get(..end)).unwrap_or_default()
}

/// The label, and the features of the store.
fn decode_format(value: &[u8], read_only: bool) -> Result<(String, u64)> {
    let cut = |_| Error::Damaged { what: "format record".into(), detail: "cut short" };
    let Some(mut value) = value.strip_prefix(MAGIC) else {
        return Err(Error::Format("the store holds something else".into()));
    };
    let version = value.try_get_u32_le().map_err(cut)?;
    if version != VERSION {
        return Err(Error::Format(format!("version {version}; this program knows version {VERSION}")));
    }
    let (needed, needed_to_write) =
        (value.try_get_u64_le().map_err(cut)?, value.try_get_u64_le().map_err(cut)?);
    if needed & !KNOWN_FEATURES != 0 || (needed_to_write != 0 && !read_only) {
        return Err(Error::Format(format!(
            "features {needed:#x}/{needed_to_write:#x} that this program does not know"
        )));
    }
    let len = usize::from(value.try_get_u16_le().map_err(cut)?);
    let label =
        value.get(..len).ok_or(Error::Damaged { what: "format record".into(), detail: "cut label" })?;
    Ok((String::from_utf8_lossy(label).into_owned(), needed))
}

impl Fs {
    /// Makes an empty file system in a new file at a path, or on a device, overwriting what is there; see
    /// [`pando_db::Db::create`]. Does not open it.
    pub fn format(medium: impl Medium + Clone, o: &FormatOptions) -> Result<()> {
        if o.label.len() > MAX_NAME {
            return Err(Error::NameTooLong(o.label.clone()));
        }
        let mut create = CreateOptions::default().node_size(o.node_size).uuid(o.uuid);
        (create.size, create.log_size) = (o.size, o.log_size);
        create.label = for_superblock(&o.label).into();
        let options = Options::default().merge(Arc::new(FsMerge)).background(false);
        Db::create(medium.clone(), &create, &options)?;
        let db = Db::open(medium, options)?;
        let mut root = Record::new(FileKind::Directory, (o.root_mode & 0o7777) as u16, ROOT, Time::now());
        root.uid = o.root_uid;
        root.gid = o.root_gid;
        let mut batch = pando_db::Batch::new();
        batch.put(path::meta(b""), root.encode());
        batch.put(system::counter(counter::FILE), counter::encode(ROOT + 1));
        batch.put(system::format(), encode_format(&o.label, MAPS_AND_LINEAGES));
        db.write(batch)?;
        db.close()?;
        Ok(())
    }

    /// Opens the file system in the file at a path, or on a device, recovering it if it was not closed.
    pub fn open(medium: impl Medium, o: MountOptions) -> Result<Fs> {
        let mut options = Options::default();
        if o.kept_above {
            options = options.written_bytes((o.cache_bytes / WRITTEN_SHARE).min(MAX_WRITTEN_BYTES));
        }
        let options = options
            .cache_bytes(o.cache_bytes)
            .merge(Arc::new(FsMerge))
            .background(o.background)
            .read_only(o.read_only)
            .sync_interval(o.sync_interval)
            .checkpoint_interval(o.checkpoint_interval)
            .codec(o.codec)
            .discard(o.discard)
            .salvage(o.salvage);
        let db = Db::open(medium, options)?;
        match Self::on(db.clone(), &o) {
            Ok(fs) => Ok(fs),
            Err(e) => {
                // Only the lock on the device matters now; the first error is the one to tell.
                let _ = db.close();
                Err(e)
            }
        }
    }

    fn on(db: Db, o: &MountOptions) -> Result<Fs> {
        // What cannot be read is replaced by what does no harm, if nothing is to be written.
        let lost = |value: Bytes| o.read_only.then_some(Some(value));
        let nameless = encode_format("", MAPS_AND_LINEAGES);
        let format = own_record(&db, "format record", &system::format(), lost(nameless))?
            .ok_or_else(|| Error::Format("the store holds no file system".into()))?;
        let (label, mut features) = decode_format(&format, o.read_only)?;
        let damaged = |detail| Error::Damaged { what: "/".into(), detail };
        let plain = Record::new(FileKind::Directory, LOST_ROOT_MODE, ROOT, Time::now());
        let root = own_record(&db, "record of the root directory", &path::meta(b""), lost(plain.encode()))?
            .ok_or(damaged("the root has no record"))?;
        let root = Record::decode(&root).map_err(damaged)?;
        if root.kind != FileKind::Directory || root.fileno != ROOT {
            return Err(damaged("the root is not a directory"));
        }
        if !o.read_only && db.prefix(&system::orphans()).next().transpose()?.is_some() {
            db.delete_prefix(system::orphans())?;
        }
        if !o.read_only && features & WORKS != 0 {
            Self::drop_works(&db)?;
        }
        if !o.read_only && features & MAPS_AND_LINEAGES == 0 {
            features |= MAPS_AND_LINEAGES;
            Self::upgrade(&db, &label, features)?;
        }
        let table = Table::new();
        let kept = table.enter(ROOT, 0, None, Link::Root, root);
        // The root never leaves: the mount itself is a reference of the kernel.
        kept.ok_or(damaged("the root cannot be entered"))?.count_lookup();
        let cloned =
            own_record(&db, "time of the last clone", &system::cloned(), o.read_only.then_some(None))?;
        let cloned = cloned.and_then(|value| get_time(&mut &value[..]));
        let readahead_bytes = if o.background { o.readahead_bytes.min(db.room_ahead() / 2) } else { 0 };
        let readahead = Readahead::new(readahead_bytes);
        let (window, budget) = readahead.bounds();
        let inner = Inner {
            file_runs: Arc::new(FileRuns::new(window, budget / 2)),
            read_only: o.read_only,
            changes_suspended: AtomicBool::new(o.changes_suspended),
            atime: o.atime,
            lineages: Lineages::open(&db, table.clone(), o.read_only)?,
            table,
            files: Handles::default(),
            dirs: Handles::default(),
            file_numbers: Counter::open(&db, "file numbers", counter::FILE, 4096, 1 << 40, o.read_only)?,
            clone_ids: Counter::open(&db, "clone ids", counter::CLONE, 256, u64::MAX, o.read_only)?,
            // One by one: people see these numbers.
            snapshot_numbers: Counter::open(
                &db,
                "snapshot numbers",
                counter::SNAPSHOT,
                1,
                u64::from(path::SNAPSHOTS_END),
                o.read_only,
            )?,
            families: Counter::open(&db, "families", counter::FAMILY, 16, u64::MAX, o.read_only)?,
            snapshots_visible: o.snapshots_visible,
            positions: Positions::default(),
            cloned: Mutex::new(cloned.unwrap_or(Time { secs: i64::MIN, nanos: 0 })),
            clone_latency: Recorder::default(),
            retry: Mutex::new(()),
            paths: PathCache::default(),
            tick_times: o.tick_times,
            merge_steps: o.merge_steps,
            readahead,
            counting: Arc::default(),
            late_calls: LateCalls::default(),
            ledger: Ledger::default(),
            mount_points: MountPoints::default(),
            plan_memory: PlanMemory::new(o.merge_plan_bytes),
            known_gone: Mutex::default(),
            kept_maps: KeptMaps::new(o.cache_bytes / MAPS_SHARE),
            background: o.background,
            label,
            uuid: db.uuid(),
            features: Mutex::new(features),
            features_seen: AtomicU64::new(features),
            db,
        };
        let fs = Fs { inner: Arc::new(inner) };
        if fs.has_feature(HARD_LINKS) && fs.db.prefix(&system::all_to_count()).next().transpose()?.is_some() {
            fs.count_in_background();
        }
        Ok(fs)
    }

    /// Removes what merges that a crash has ended were working in.
    fn drop_works(db: &Db) -> Result<()> {
        let damaged = || Error::Damaged { what: "merges".into(), detail: "impossible key" };
        let mut batch = pando_db::Batch::new();
        let mut pairs = db.prefix(&system::works());
        while let Some((key, _)) = pairs.next_ref()? {
            let number = system::work_number(key).filter(|n| (1..path::SNAPSHOTS_END).contains(n));
            batch.delete_prefix(path::volume(number.ok_or_else(damaged)?)).delete(key.to_vec());
        }
        drop(pairs);
        if !batch.is_empty() {
            db.write(batch)?;
        }
        Ok(())
    }

    /// Notes that what a version without [`MAPS_AND_LINEAGES`] has written is from it.
    fn upgrade(db: &Db, label: &str, features: u64) -> Result<()> {
        let lineages = counter::decode("counter of lineages", db.get(&system::counter(counter::LINEAGE))?)?;
        let mut batch = pando_db::Batch::new();
        batch.put(system::counter(counter::UNTRACKED), counter::encode(lineages.unwrap_or(1)));
        batch.put(system::cloned(), Time::now().encode());
        batch.put(system::format(), encode_format(label, features));
        Ok(db.write(batch)?)
    }

    /// Says in the store that it has a feature, before anything is written that needs it. One write, once.
    pub(crate) fn need_feature(&self, feature: u64) -> Result<()> {
        // Held over the write, so that the record of who comes second has the bits of both.
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

    /// Makes everything durable, and a last checkpoint. Later changes fail. The file stays locked until the last
    /// clone of the handle is dropped.
    pub fn close(&self) -> Result<()> {
        self.readahead.stop();
        self.counting.stop();
        self.ledger.stop();
        if self.changes_suspended.load(Ordering::Relaxed) {
            // Nothing was changed, so the image stays as it is; the engine ends with its last handle.
            return Ok(());
        }
        if !self.read_only {
            self.late_calls.end().iter().for_each(|inode| self.let_go(inode));
            self.positions.store(&self.db);
        }
        Ok(self.db.close()?)
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

    /// For a caller who waits for writes of others: see [`pando_db::Db::put_off_delays`].
    pub fn put_off_delays(&self) -> pando_db::DelaysPutOff<'_> {
        self.db.put_off_delays()
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
