//! What all cost tests share: stores on counted memory, seeded noise, cost as a difference, tables.

use std::{
    collections::HashSet,
    fmt, io,
    ops::{AddAssign, Div, Sub},
    sync::{
        Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

pub use crate::rng::Rng;
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{BLOCK, Device, DeviceStats, MemDevice},
    patch,
};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
/// Unit in which `MemDevice` keeps what was written.
const CHUNK: u64 = 64 * KIB;

/// True if the sizes of the goals are to be run.
pub fn full() -> bool {
    std::env::var("PANDO_COSTS").is_ok_and(|v| v == "full")
}

/// Raw size at which the engine closes a page of a node.
pub fn page_bytes(node_size: u64) -> u64 {
    (node_size / 8).clamp(512, 32 * KIB)
}

static TURN: RwLock<()> = RwLock::new(());

/// For a test that counts what its own device is asked: beside others of this kind.
pub fn turn() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that counts memory in use, which is that of the whole process: no other cost test runs beside it.
pub fn turn_alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// What the device served.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    pub reads: u64,
    pub read_bytes: u64,
    pub seeks: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// Of the writes: those that begin with a node, and those of pages of the translation table.
    pub nodes: u64,
    pub table_pages: u64,
}

impl Cost {
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.write_bytes
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            seeks: self.seeks - before.seeks,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            nodes: self.nodes - before.nodes,
            table_pages: self.table_pages - before.table_pages,
        }
    }
}

impl Div<u64> for Cost {
    type Output = Cost;

    fn div(self, by: u64) -> Cost {
        Cost {
            reads: self.reads / by,
            read_bytes: self.read_bytes / by,
            seeks: self.seeks / by,
            writes: self.writes / by,
            write_bytes: self.write_bytes / by,
            nodes: self.nodes / by,
            table_pages: self.table_pages / by,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Cost) {
        self.reads += more.reads;
        self.read_bytes += more.read_bytes;
        self.seeks += more.seeks;
        self.writes += more.writes;
        self.write_bytes += more.write_bytes;
        self.nodes += more.nodes;
        self.table_pages += more.table_pages;
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { reads, read_bytes, seeks, writes, write_bytes, nodes, table_pages } = self;
        write!(
            f,
            "{reads:>7} reads {read_bytes:>11} B {seeks:>7} seeks | {writes:>6} writes {write_bytes:>11} B \
             ({nodes} nodes, {table_pages} table pages)"
        )
    }
}

/// A device in memory that also tells what is written, by the magic numbers of `docs/format.md`.
struct Counting {
    memory: MemDevice,
    nodes: AtomicU64,
    table_pages: AtomicU64,
    /// Chunks of 64 KiB that were ever written: what `MemDevice` keeps.
    chunks: Mutex<HashSet<u64>>,
}

impl Counting {
    fn cost(&self) -> Cost {
        let s = self.memory.stats();
        Cost {
            reads: s.reads,
            read_bytes: s.read_bytes,
            seeks: s.read_seeks,
            writes: s.writes,
            write_bytes: s.write_bytes,
            nodes: self.nodes.load(Relaxed),
            table_pages: self.table_pages.load(Relaxed),
        }
    }
}

impl Device for Counting {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        match buf.get(..4) {
            Some(b"PNOD") => _ = self.nodes.fetch_add(1, Relaxed),
            Some(b"PTBK" | b"PTBI") => _ = self.table_pages.fetch_add(1, Relaxed),
            _ => (),
        }
        self.chunks.lock().unwrap().extend(offset / CHUNK..(offset + buf.len() as u64).div_ceil(CHUNK));
        self.memory.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.memory.grow(size)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.reserve(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.memory.stats()
    }
}

/// A store in counted memory that can be closed and opened again.
pub struct Store {
    pub db: Db,
    device: Arc<Counting>,
    options: Options,
}

impl Store {
    /// An empty store with the usual proportions: a table in memory of `8` nodes, as 8 MiB are to 1 MiB.
    pub fn new(node_size: u64, cache_bytes: u64) -> Self {
        Self::with_memtable(node_size, cache_bytes, 8 * node_size)
    }

    pub fn with_memtable(node_size: u64, cache_bytes: u64, memtable: u64) -> Self {
        let memory = MemDevice::new(1 << 40);
        let device =
            Arc::new(Counting { memory, nodes: 0.into(), table_pages: 0.into(), chunks: Mutex::default() });
        let options =
            Options::default().background(false).cache_bytes(cache_bytes).memtable_bytes(memtable as usize);
        let create = CreateOptions::default().node_size(node_size as u32);
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device.clone(), options.clone()).unwrap();
        Self { db, device, options }
    }

    /// Closes and opens the store: nothing but the translation table is in memory. The cost of opening.
    pub fn reopen(&mut self) -> Cost {
        self.db.close().unwrap();
        let before = self.cost();
        self.db = Db::open(self.device.clone(), self.options.clone()).unwrap();
        self.cost() - before
    }

    /// What the device has served so far.
    pub fn cost(&self) -> Cost {
        self.device.cost()
    }

    /// Bytes of memory that the device keeps.
    pub fn device_memory(&self) -> u64 {
        self.device.chunks.lock().unwrap().len() as u64 * CHUNK
    }

    /// What the device serves during `work`.
    pub fn during(&self, work: impl FnOnce(&Db)) -> Cost {
        let before = self.cost();
        work(&self.db);
        self.cost() - before
    }

    /// Bytes of the device that nodes and table pages own: without log and superblocks.
    pub fn used(&self) -> u64 {
        let stats = self.db.stats().unwrap();
        stats.used - stats.log_size - 2 * BLOCK
    }

    /// Reads all pairs under a prefix: their bytes, and the cost.
    pub fn scan(&self, prefix: &str) -> (u64, Cost) {
        let mut bytes = 0;
        let cost = self.during(|db| {
            for pair in db.prefix(prefix.as_bytes()) {
                let (key, value) = pair.unwrap();
                bytes += (key.len() + value.len()) as u64;
            }
        });
        (bytes, cost)
    }

    /// Nodes that are there, at all heights.
    pub fn nodes(&self) -> u64 {
        self.db.stats().unwrap().nodes_by_height.iter().sum()
    }

    /// Levels of the DAG.
    pub fn levels(&self) -> u64 {
        self.db.stats().unwrap().nodes_by_height.len() as u64
    }

    /// No invariant is violated.
    pub fn check(&self) {
        let findings = self.db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}

/// The `i`th key under a prefix.
pub fn key(prefix: &str, i: u64) -> String {
    format!("{prefix}{i:09}")
}

/// Puts `count` values of `len` incompressible bytes under `prefix`, in order.
pub fn load(db: &Db, prefix: &str, count: u64, len: usize) {
    let mut rng = Rng(count);
    let a_batch = (256 * KIB / len as u64).clamp(1, 256);
    let mut i = 0;
    while i < count {
        let mut batch = Batch::new();
        for _ in 0..a_batch.min(count - i) {
            batch.put(key(prefix, i), rng.noise(len));
            i += 1;
        }
        db.write(batch).unwrap();
    }
}

/// Changes 16 bytes in each of `edits` random values of `len` bytes under `prefix`, blindly.
pub fn edit(db: &Db, rng: &mut Rng, prefix: &str, count: u64, len: usize, edits: usize) {
    for _ in 0..edits {
        let at = rng.below(len as u64 - 15) as u32;
        db.upsert(key(prefix, rng.below(count)), patch::write(at, &rng.noise(16))).unwrap();
    }
}
