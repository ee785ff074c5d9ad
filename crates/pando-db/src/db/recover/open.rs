//! Creating a store, and opening one: the last checkpoint plus the log.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::AtomicU64},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    dag::{
        memtable::Memtable,
        tree::{Limits, Tree, Versions},
    },
    db::{
        budget::{
            memory,
            space::{capacity, edit_nodes},
        },
        checkpoint::{store_page, table_root},
        engine::{
            Durable, Engine, EngineCounters,
            dirty::Dirty,
            memtable_sizes::MemtableSizes,
            signal::Signal,
            skip_ranges::SkipRanges,
            superversion::{Superversion, SuperversionSlot},
            throttle::Throttle,
            watch::Watched,
        },
        recover::replay,
    },
    device::{BLOCK, Device, FailStop, InUse},
    error::{Error, Result},
    key::{Longest, Span},
    locks::{Mutex, RwLock},
    node::{Body, Edge, Node},
    options::{CreateOptions, Options},
    space::Space,
    store::{
        bulk::Bulk,
        layout::store_node,
        log::{BlobPlacer, LogPos, Region},
        pager::Pager,
        superblock::{self, Superblock},
        table::{Entry, Loc, PageAddress, Table},
    },
};

const NODE_SIZES: std::ops::RangeInclusive<u32> = 4 << 10..=16 << 20;
const DEFAULT_LOG: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// The device must have space for at least so many nodes beside the log.
const LEAST_NODES: u64 = 32;
/// Number of the root node of a new store.
const FIRST_ROOT: u64 = 1;

/// A random number. It comes from the hasher that the standard library seeds at random, so no crate for random numbers
/// is needed.
fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// The length of the log, in bytes, of a store that is created on this device with these options. [`Error::Invalid`] if
/// no store can be created with them.
pub(crate) fn checked_log_size(device: &dyn Device, create: &CreateOptions) -> Result<u64> {
    let device_size = device.size() / BLOCK * BLOCK;
    if !NODE_SIZES.contains(&create.node_size) {
        return Err(Error::Invalid(format!(
            "a node size of {} bytes; 4 KiB to 16 MiB are possible",
            create.node_size
        )));
    }
    let log_size =
        create.log_size.unwrap_or((device_size / 16).clamp(*DEFAULT_LOG.start(), *DEFAULT_LOG.end()));
    if log_size > superblock::MAX_LOG {
        return Err(Error::Invalid(format!("a log of {log_size} bytes; 64 KiB to 1 GiB are possible")));
    }
    let log_size = log_size.next_multiple_of(BLOCK);
    let data = superblock::END + log_size;
    if log_size < superblock::MIN_LOG || data + LEAST_NODES * u64::from(create.node_size) > device_size {
        return Err(Error::Invalid(format!(
            "{device_size} bytes are too few for a log of {log_size} (at least 64 KiB) and {LEAST_NODES} nodes of {}",
            create.node_size
        )));
    }
    Ok(log_size)
}

/// Creates an empty store. The former contents of the device are lost.
pub(crate) fn create(device: &Arc<dyn Device>, create: &CreateOptions, options: &Options) -> Result<()> {
    let _in_use = InUse::new(device, false)?;
    let log_size = checked_log_size(&**device, create)?;
    let device_size = device.size() / BLOCK * BLOCK;
    let data = superblock::END + log_size;
    device.reserve(superblock::END, log_size).map_err(|e| Error::io("reserve", superblock::END, e))?;
    let space = Space::new(device.clone(), data, device_size);
    let pager = Pager::new(device.clone(), 1 << 20, create.node_size, options.codec);
    let root = Node { height: 1, span: Span::all(), body: Body::Interior(vec![Edge::default()]) };
    let mut table = Table::default();
    table.set(
        FIRST_ROOT,
        Some(Entry { count: 1, height: 1, longest: Longest::NONE, loc: Loc::Dirty(Arc::new(root)) }),
    );
    let table = table.persist(&mut |_, node| store_node(&pager, &space, node, &|_| true), &mut |page| {
        store_page(&pager, &space, page)
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let uuid = if create.uuid == [0; 16] {
        (u128::from(random()) << 64 | u128::from(random())).to_le_bytes()
    } else {
        create.uuid
    };
    let mut superblock = Superblock {
        uuid,
        device_size,
        created: now,
        node_size: create.node_size,
        merge: options.merge.name().into(),
        label: create.label.clone(),
        log_base: superblock::END,
        log_size,
        // Without a random start, the log of an older store in the same place would be valid.
        log_start: LogPos { pos: 0, chain: random() },
        next_msn: 1,
        next_node: FIRST_ROOT + 1,
        root: FIRST_ROOT,
        table: table_root(&table),
        clean: true,
        incompatible: superblock::WRITTEN_FEATURES,
        ..Superblock::default()
    };
    let flush = || device.flush().map_err(|e| Error::Io { action: "flush", offset: 0, source: e });
    flush()?;
    // Both slots are written, because an older store in the same place may have left a newer generation in one.
    for generation in [1, 2] {
        superblock.generation = generation;
        superblock::write(&**device, &superblock)?;
        flush()?;
    }
    Ok(())
}

/// Opens a store, replaying its log.
pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Engine> {
    let in_use = InUse::new(&device, options.read_only)?;
    let device: Arc<dyn Device> = Arc::new(FailStop::new(device));
    if !options.read_only {
        // If the last flush of an earlier process failed, the host's page cache may still show bytes that the medium
        // has lost.
        device.reread().map_err(|e| Error::io("reread", 0, e))?;
    }
    let slots = superblock::read(&*device)?;
    let superblock = slots.newest.clone();
    if superblock.merge != options.merge.name() {
        return Err(Error::Format(format!(
            "its upserts mean `{}`, not `{}`: it belongs to another program",
            superblock.merge,
            options.merge.name()
        )));
    }
    let space = Space::new(device.clone(), superblock.log_base + superblock.log_size, superblock.device_size);
    let root = superblock.table;
    let home = PageAddress { offset: root.offset, len: root.len, sum: root.checksum };
    let home = (root.len != 0).then_some(home);
    let table = Table::load(&*device, &space, home, root.depth)?;
    match table.get(superblock.root) {
        Some(root) if root.count == 1 && root.height > 0 => (),
        found => {
            let found = found.map_or("does not exist".into(), |root| {
                format!("has height {} and {} references", root.height, root.count)
            });
            let detail = format!("its root node {} {found}", superblock.root);
            return Err(Error::corrupt("superblock", 0, detail));
        }
    }
    let (mut orphans, mut highest) = (BTreeSet::new(), 0);
    table.for_each(|id, entry| {
        if entry.count == 0 {
            orphans.insert(id);
        }
        highest = highest.max(id);
    });
    if highest >= superblock.next_node {
        let detail = format!("node {highest} exists, and {} is to be the next", superblock.next_node);
        return Err(Error::corrupt("superblock", 0, detail));
    }
    let region = Region {
        device: device.clone(),
        base: superblock.log_base,
        size: superblock.log_size,
        store: superblock.store(),
    };
    let mut recovered = replay::read(&slots, region, &options, &space)?;
    let pager = Pager::new(device.clone(), options.cache_bytes, superblock.node_size, options.codec);
    let pager = Arc::new(pager.bound_written(options.written_bytes));
    recovered.take_back_torn_tail(&pager)?;
    space.loaded();
    let (replay, report, batches) = recovered.split();
    let bulk = Arc::new(Bulk::new(pager.clone(), space.clone()));
    let (msn, log_end) = (superblock.next_msn - 1, superblock.log_start);
    let tree =
        Tree { table: table.clone(), root: superblock.root, msn, log_end, versions: Versions::default() };
    let superversion = Superversion {
        active: Memtable::new(msn, log_end),
        sealed: VecDeque::new(),
        tree: Arc::new(tree),
        skip_ranges: SkipRanges::default(),
        watched: Watched::default(),
        newest_batch: None,
    };
    let (log_base, log_size) = (superblock.log_base, superblock.log_size);
    let capacity = capacity(&*device, superblock.device_size)?;
    let mut engine = Engine {
        capacity: capacity.into(),
        bulk: bulk.clone(),
        limits: Limits {
            edit_nodes: edit_nodes(superblock.device_size.min(capacity), superblock.node_size as usize)
                .min(memory::edit_nodes(options.cache_bytes, superblock.node_size as usize)),
            edit_bytes: usize::try_from(memory::edit_bytes(options.cache_bytes)).unwrap_or(usize::MAX),
            ..Limits::new(superblock.node_size, options.abundant_bytes)
        },
        merge: options.merge.clone(),
        log: replay.into_log((!options.read_only).then_some(bulk as Arc<dyn BlobPlacer>))?,
        in_use: Mutex::new(Some(in_use)),
        device,
        space: space.clone(),
        pager: pager.clone(),
        options,
        recovery: report,
        superversion: RwLock::new(superversion),
        views: SuperversionSlot::default(),
        memtable_sizes: MemtableSizes::default(),
        flushing: Mutex::new(()),
        lowered_at: AtomicU64::new(0),
        next_id: AtomicU64::new(superblock.next_node),
        building: Mutex::default(),
        checkpointing: Mutex::new(Durable { superblock, _table: table, attempted: None }),
        orphans: Mutex::new(orphans),
        gc_yield: Mutex::default(),
        gc_progress: Mutex::default(),
        collecting: Mutex::default(),
        last_deletes: Mutex::default(),
        dirty: Dirty::default(),
        signal: Signal::default(),
        throttle: Throttle::default(),
        counters: EngineCounters::default(),
    };
    let (replayed, void) = (!batches.is_empty(), batches.void());
    batches.apply(&mut engine)?;
    if engine.options.read_only {
        return Ok(engine);
    }
    // A copy of the image may have holes in its log, where a full host would stop the store. Where it cannot be had,
    // because the host is full already or does not know reservations, writes have to tell.
    let _ = engine.device.reserve(log_base, log_size);
    engine.renew_superblock(slots.damaged.is_some())?;
    // From here on the log itself says which of its batches do not count. If there is no space for that record, the
    // checkpoint below has to make the log empty.
    let says_all = void.map_or(Ok(true), |first| engine.log_void(first))?;
    if replayed && !(says_all && engine.may_checkpoint_later()) {
        match engine.checkpoint() {
            Ok(()) => (),
            // A full store is opened all the same, because its log still has all batches that are not in the
            // checkpoint.
            Err(Error::NoSpace) if says_all => (),
            Err(error) => return Err(error),
        }
    }
    Ok(engine)
}

impl Engine {
    /// Writes both slots again if one is damaged, or if a feature bit is missing: an older version would then read a
    /// log whose format it does not know.
    fn renew_superblock(&self, damaged: bool) -> Result<()> {
        let mut durable = self.checkpointing.lock();
        if !damaged
            && durable.superblock.incompatible & superblock::WRITTEN_FEATURES == superblock::WRITTEN_FEATURES
        {
            return Ok(());
        }
        let mut superblock = durable.superblock.clone();
        self.commit(&mut superblock).inspect_err(|e| self.stop("open", e))?;
        durable.superblock = superblock;
        Ok(())
    }
}
