//! The engine's state: what the front, the flusher and the checkpointer share.
//!
//! Locks, in the order in which they may be taken: `checkpointing`,
//! `flushing`, `pouring`, `front`. The first two serialise maintenance and are
//! held over I/O; a foreground call waits for them only where memory, the log or
//! the device is full. `pouring` and `front` are held for memory operations only.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use super::{
    gaps::Gaps,
    recovery::Recovery,
    signal::Signal,
    throttle::Throttle,
    tidy::{Progress, Worth},
    views::Views,
};
use crate::{
    dag::{
        edit::{Changes, Context},
        memtable::Memtable,
        pour::Pouring,
        tree::{Limits, Tree},
    },
    device::{BLOCK, Device},
    error::{Error, Result},
    format::node::{Node, NodeId},
    merge::Merge,
    options::Options,
    store::{
        bulk::Bulk, layout::bytes_to_write, log::Log, pager::Pager, space::Space, superblock::Superblock,
        table::Table,
    },
};

pub(crate) struct Engine {
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
    /// What the medium could hold of the device when the store was opened: `u64::MAX` if all of it.
    pub capacity: u64,
    pub front: RwLock<Front>,
    pub views: Views,
    /// Held by whoever changes the structure of the DAG.
    pub flushing: Mutex<()>,
    /// A table whose turn comes soon, as far as writers that had to wait have poured it into pages.
    pub pouring: Mutex<Option<Pouring>>,
    /// The last durable checkpoint; held while the next is made.
    pub checkpointing: Mutex<Durable>,
    /// Nodes with count 0, waiting for the reclaimer.
    pub orphans: Mutex<BTreeSet<NodeId>>,
    /// Whether giving space back gives any.
    pub worth: Mutex<Worth>,
    /// Where giving space back is.
    pub tidying: Mutex<Progress>,
    /// The same of large deletes beside other work.
    pub tidying_beside: Mutex<Progress>,
    /// Held by whoever tidies, over I/O; taken before all others. Nobody waits for it but [`Engine::settle`].
    pub tidiers: Mutex<()>,
    pub next_id: AtomicU64,
    pub dirty: Dirty,
    pub signal: Signal,
    pub throttle: Throttle,
    pub counters: Counters,
}

/// What foreground calls read and write.
pub(crate) struct Front {
    pub active: Memtable,
    /// Oldest first; the flusher takes from the front.
    pub sealed: VecDeque<Arc<Memtable>>,
    pub tree: Arc<Tree>,
    pub gaps: Gaps,
}

/// What the superblock on the device says, and the table version it names: while it is held, none of
/// its extents is reused.
pub(crate) struct Durable {
    pub superblock: Superblock,
    /// Held, not read.
    pub _table: Table,
    /// What the superblock may say, if writing the next one was begun and did not succeed. Held for the
    /// same reason.
    pub attempted: Option<Table>,
}

/// What the fixed part of a node's header takes at most, in bytes.
const HEADER: usize = 128;

#[derive(Default)]
pub(crate) struct Counters {
    pub checkpoints: AtomicU64,
    pub checkpoint_micros: AtomicU64,
    pub clones: AtomicU64,
    pub by_value: AtomicU64,
    pub push_downs: AtomicU64,
    /// Edges and messages about ranges that structural work went through.
    pub handled: AtomicU64,
    /// Keys that cursors came by of which nothing was left.
    pub deletes_passed: AtomicU64,
    /// A cursor has begun behind a gap since this was asked last.
    pub gap_used: AtomicBool,
    /// State in which the last write was refused for lack of space; 0: none was.
    pub refused_at: AtomicU64,
    /// Something was deleted since deletes were last carried down.
    pub deletes: AtomicBool,
    /// Enough was taken out beside other work for a checkpoint that gives it back.
    pub freed: AtomicBool,
    /// Nodes that were taken out because nothing refers to them any more.
    pub reclaimed: AtomicU64,
    /// They have been: the next checkpoint that is asked for gives their space back, and is made in any case.
    pub settled: AtomicBool,
}

/// A dirty node, the memory it holds and the bytes it will take on the device.
pub(crate) type Weighed = (Arc<Node>, usize, usize);

/// Sizes of the nodes that the next checkpoint must write.
#[derive(Default)]
pub(crate) struct Dirty {
    nodes: Mutex<HashMap<NodeId, Weighed>>,
    memory: AtomicU64,
    bytes: AtomicU64,
}

impl Dirty {
    /// Bytes of memory that dirty nodes hold.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes that writing them takes at most.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Nodes that are dirty.
    pub fn count(&self) -> u64 {
        self.nodes.lock().len() as u64
    }

    /// What to note of new versions: this goes through their pages, so it is done before a lock is taken.
    pub fn weigh(
        versions: Vec<(NodeId, Option<Arc<Node>>)>,
        node_size: usize,
    ) -> Vec<(NodeId, Option<Weighed>)> {
        let weighed = |node: Arc<Node>| {
            // A node takes whole blocks, and some of it is header.
            let bytes = (bytes_to_write(&node, node_size) + HEADER).next_multiple_of(BLOCK as usize);
            let memory = node.memory();
            (node, memory, bytes)
        };
        versions.into_iter().map(|(id, version)| (id, version.map(weighed))).collect()
    }

    /// Notes new versions, and nodes that are gone (`None`).
    pub fn note(&self, versions: Vec<(NodeId, Option<Weighed>)>) {
        let mut nodes = self.nodes.lock();
        for (id, version) in versions {
            let old = match version {
                Some((node, memory, bytes)) => {
                    self.memory.fetch_add(memory as u64, Ordering::Relaxed);
                    self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                    nodes.insert(id, (node, memory, bytes))
                }
                None => nodes.remove(&id),
            };
            self.forget(old);
        }
    }

    /// Notes that this version has been written.
    pub fn written(&self, id: NodeId, version: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        if nodes.get(&id).is_some_and(|(node, ..)| Arc::ptr_eq(node, version)) {
            let old = nodes.remove(&id);
            self.forget(old);
        }
    }

    fn forget(&self, old: Option<Weighed>) {
        if let Some((_, memory, bytes)) = old {
            self.memory.fetch_sub(memory as u64, Ordering::Relaxed);
            self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Engine {
    pub fn context(&self) -> Context<'_> {
        Context {
            pager: &self.pager,
            merge: &*self.merge,
            limits: Limits { pending: self.most_pending(), ..self.limits },
            next_id: &self.next_id,
            handled: &self.counters.handled,
        }
    }

    /// The error that stopped the store, if one did.
    pub fn check_running(&self) -> Result<()> {
        match self.log.stopped() {
            Some(reason) => Err(Error::Stopped { reason }),
            None => Ok(()),
        }
    }

    /// Stops the store for good: a change could not be carried through.
    pub fn stop(&self, during: &str, error: &Error) {
        self.log.stop(format!("{during}: {error}"));
        self.signal.all();
    }

    /// Makes the active table a sealed one, if there is anything in it.
    pub fn seal(&self) {
        self.change(Front::seal);
    }

    /// Publishes an edit. The caller holds `flushing`. `then` runs under the same lock.
    pub fn publish(&self, changes: Changes, then: impl FnOnce(&mut Front)) -> Result<()> {
        let versions = Dirty::weigh(changes.versions(), self.limits.node);
        let (orphans, old) = self.change(|front| -> Result<_> {
            let root = changes.root;
            let mut table = front.tree.table.clone();
            let orphans = changes.apply(&mut table)?;
            // A checkpoint that froze the new versions before they were noted would have nothing to strike
            // out, and they would count as dirty for ever.
            self.dirty.note(versions);
            let (msn, log_end) = (front.tree.msn, front.tree.log_end);
            let old = std::mem::replace(&mut front.tree, Arc::new(Tree { table, root, msn, log_end }));
            then(front);
            Ok((orphans, old))
        })?;
        // What only the old version reached is freed here, outside the lock.
        drop(old);
        self.share_memory();
        self.orphans.lock().extend(orphans);
        Ok(())
    }
}

impl Front {
    pub fn seal(&mut self) {
        if !self.active.is_empty() {
            let next = Memtable::new(self.active.msn, self.active.log_end);
            self.sealed.push_back(Arc::new(std::mem::replace(&mut self.active, next)));
        }
    }

    /// Bytes of all in-memory tables.
    pub fn table_bytes(&self) -> usize {
        self.active.bytes() + self.sealed.iter().map(|t| t.bytes()).sum::<usize>()
    }
}
