//! Making, opening and closing a file system.
//!
//! Guarantees: a store without a format record of a known version is not opened; what unlinked files left behind at a
//! crash is removed at open. Stands above all modules whose threads it starts and ends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use pando_db::{Batch, CreateOptions, Db, Options, device::Medium};
use parking_lot::Mutex;

use crate::{
    counter::{self, Counter, own_record},
    error::{Error, Result},
    file_runs::FileRuns,
    format::{
        FEATURE_HARD_LINKS, FEATURE_MAPS_AND_LINEAGES, FEATURE_WORKS, decode_format, encode_format,
        for_superblock,
    },
    handle::Handles,
    inode::{Link, Table},
    kept_maps::KeptMaps,
    late_calls::LateCalls,
    ledger::Ledger,
    limits::MAX_NAME,
    lineage::Lineages,
    merge::FsMerge,
    mount_points::MountPoints,
    orphan::removal_of,
    path::{self, system},
    path_cache::PathCache,
    plan_memory::PlanMemory,
    position::Positions,
    readahead::Readahead,
    record::{Record, get_time},
    removals::{Removals, Unremoved},
    stats::Recorder,
    types::{FileKind, FormatOptions, MountOptions, ROOT, Time},
    volume::{Fs, Inner, Workers},
};

/// Mode of a root directory whose record cannot be read.
const LOST_ROOT_MODE: u16 = 0o755;
/// Share (1/n) of the cache for data that the kernel caches too and that was not read from here, and its most bytes.
const WRITTEN_SHARE: u64 = 16;
const MAX_WRITTEN_BYTES: u64 = 64 << 20;
/// Share (1/n) of the cache that maps of files with holes may take besides it.
const MAPS_SHARE: u64 = 32;

const WORKERS: Workers = Workers {
    count_names: Fs::count_names_in_background,
    count_trees: Fs::count_trees_in_background,
    remove: Fs::remove_in_background,
};

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
        let mut batch = Batch::new();
        batch.put(path::meta(b""), root.encode());
        batch.put(system::counter(counter::FILE_NUMBERS), counter::encode(ROOT + 1));
        batch.put(system::format(), encode_format(&o.label, FEATURE_MAPS_AND_LINEAGES));
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
                // Closing only releases the lock on the device. The caller gets the first error.
                let _ = db.close();
                Err(e)
            }
        }
    }

    fn on(db: Db, o: &MountOptions) -> Result<Fs> {
        // What cannot be read is replaced by what does no harm, if nothing is to be written.
        let lost = |value: Bytes| o.read_only.then_some(Some(value));
        let nameless = encode_format("", FEATURE_MAPS_AND_LINEAGES);
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
        let mut unremoved = Vec::new();
        if !o.read_only {
            Self::drop_orphans(&db, &mut unremoved)?;
        }
        if !o.read_only && features & FEATURE_WORKS != 0 {
            Self::drop_works(&db, &mut unremoved)?;
        }
        if !o.read_only && features & FEATURE_MAPS_AND_LINEAGES == 0 {
            features |= FEATURE_MAPS_AND_LINEAGES;
            Self::upgrade(&db, &label, features)?;
        }
        let table = Table::new();
        let kept = table.enter(ROOT, 0, None, Link::Root, root);
        // The root never leaves: the mount itself is a reference of the kernel.
        kept.ok_or(damaged("the root cannot be entered"))?.count_lookup();
        let cloned =
            own_record(&db, "time of the last clone", &system::cloned(), o.read_only.then_some(None))?;
        let cloned = cloned.and_then(|value| get_time(&mut &value[..]));
        let readahead_bytes =
            if o.background { o.readahead_bytes.min(db.max_readahead_bytes() / 2) } else { 0 };
        let readahead = Readahead::new(readahead_bytes);
        let (window, budget) = readahead.bounds();
        let removals = Arc::<Removals>::default();
        let inner = Inner {
            file_runs: Arc::new(FileRuns::new(window, budget / 2)),
            read_only: o.read_only,
            changes_suspended: AtomicBool::new(o.changes_suspended),
            atime: o.atime,
            lineages: Lineages::open(&db, (table.clone(), removals.clone()), o.read_only)?,
            table,
            files: Handles::default(),
            dirs: Handles::default(),
            file_numbers: Counter::open(
                &db,
                "file numbers",
                counter::FILE_NUMBERS,
                4096,
                1 << 40,
                o.read_only,
            )?,
            clone_ids: Counter::open(&db, "clone ids", counter::CLONE_IDS, 256, u64::MAX, o.read_only)?,
            // Reserved one by one, so that a crash skips none: users see these numbers.
            snapshot_numbers: Counter::open(
                &db,
                "snapshot numbers",
                counter::SNAPSHOT_NUMBERS,
                1,
                u64::from(path::SNAPSHOTS_END),
                o.read_only,
            )?,
            families: Counter::open(&db, "families", counter::FAMILY_NUMBERS, 16, u64::MAX, o.read_only)?,
            snapshots_visible: o.snapshots_visible,
            positions: Positions::default(),
            cloned: Mutex::new(cloned.unwrap_or(Time { secs: i64::MIN, nanos: 0 })),
            clone_latency: Recorder::default(),
            retry: Mutex::new(()),
            paths: PathCache::new(o.cached_path_depth),
            tick_times: o.tick_times,
            merge_steps: o.merge_steps,
            nameless_bytes: o.nameless_bytes,
            readahead,
            counting: Arc::default(),
            late_calls: LateCalls::default(),
            removals,
            ledger: Ledger::default(),
            mount_points: MountPoints::default(),
            plan_memory: PlanMemory::new(o.merge_plan_bytes),
            known_gone: Mutex::default(),
            kept_maps: KeptMaps::new(o.cache_bytes / MAPS_SHARE),
            workers: o.background.then_some(WORKERS),
            label,
            uuid: db.uuid(),
            features: Mutex::new(features),
            features_seen: AtomicU64::new(features),
            db,
        };
        let fs = Fs::new(inner);
        if fs.has_feature(FEATURE_HARD_LINKS)
            && fs.db.prefix(&system::all_to_count()).next().transpose()?.is_some()
        {
            fs.count_names_soon();
        }
        fs.strip_soon();
        unremoved.into_iter().for_each(|what| fs.remove_later(what));
        Ok(fs)
    }

    /// Removes the orphans that a crash has left, or adds them to those that a full store could not remove: it can be
    /// opened all the same.
    fn drop_orphans(db: &Db, unremoved: &mut Vec<Unremoved>) -> Result<()> {
        let all = system::orphans();
        let mut found = db.prefix(&all).next().transpose()?;
        if found.is_none() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.releases().delete_prefix(all.clone());
        match db.write(batch) {
            Err(pando_db::Error::NoSpace) => {}
            written => return Ok(written?),
        }
        let behind = path::behind(&all);
        // A key without a number, which only a damaged store has, and those behind it stay until the next mount.
        while let Some(ino) = found.and_then(|(key, _)| system::orphan_number(&key)) {
            unremoved.push(Unremoved::Orphan(ino));
            let Some(next) = path::behind(&system::orphan(ino)) else { break };
            found = db.range(&next, behind.as_deref()).next().transpose()?;
        }
        Ok(())
    }

    /// Removes what merges that a crash has ended were working in, or adds it to what a full store could not remove.
    fn drop_works(db: &Db, unremoved: &mut Vec<Unremoved>) -> Result<()> {
        let damaged = || Error::Damaged { what: "merges".into(), detail: "impossible key" };
        let mut pairs = db.prefix(&system::works());
        let mut works = Vec::new();
        while let Some((key, _)) = pairs.next_ref()? {
            let number = system::work_number(key).filter(|n| (1..path::SNAPSHOTS_END).contains(n));
            works.push(Unremoved::Work(number.ok_or_else(damaged)?));
        }
        drop(pairs);
        for work in works {
            match db.write(removal_of(work)) {
                Err(pando_db::Error::NoSpace) => unremoved.push(work),
                written => written?,
            }
        }
        Ok(())
    }

    /// Notes that what a version without [`FEATURE_MAPS_AND_LINEAGES`] has written is from it.
    fn upgrade(db: &Db, label: &str, features: u64) -> Result<()> {
        let lineages = counter::decode("counter of lineages", db.get(&system::counter(counter::LINEAGE))?)?;
        let mut batch = Batch::new();
        let untracked = counter::encode(lineages.unwrap_or(1));
        // A full image must open too, to be emptied.
        counter::put_on_full(&mut batch, system::counter(counter::UNTRACKED), untracked);
        batch.put(system::cloned(), Time::now().encode());
        batch.put(system::format(), encode_format(label, features));
        Ok(db.write(batch)?)
    }

    /// Makes everything durable, and a last checkpoint. Later changes fail. The file stays locked until the last
    /// clone of the handle is dropped.
    pub fn close(&self) -> Result<()> {
        self.readahead.stop();
        self.counting.stop();
        self.ledger.stop();
        self.removals.stop();
        if self.changes_suspended.load(Ordering::Relaxed) {
            // Nothing was changed, so the image stays as it is; the engine ends with its last handle.
            return Ok(());
        }
        if !self.read_only {
            self.late_calls.end().iter().for_each(|inode| self.let_go(inode));
            // What still cannot be removed waits for the next mount.
            let _left = self.remove_waiting();
            self.positions.store(&self.db);
        }
        Ok(self.db.close()?)
    }
}
