//! The table of inodes in memory.
//!
//! The table has only inodes with references: from the kernel (lookups), an open handle, a call in progress, or a
//! child in the table. An inode knows its parent and its name there, so that renaming a directory is one change
//! whatever lies below: a path is found by walking up.
//!
//! Guarantees: at most one [`Inode`] per number; a record in memory equals the record in the engine (except for an
//! access time that is kept in memory only), also if an inode leaves the table and comes back while a thread reads
//! its record ([`Table::enter`]); an inode is in the set of children of its parent, and in no other. Nothing here
//! does I/O.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use crate::{
    blockmap::BlockMap,
    children::Children,
    error::{Error, Result},
    known_holes::KnownHoles,
    merge::Change,
    record::Record,
    types::{Attr, FileKind, Ino},
};

/// Parts of the table, each with a lock of its own.
const SHARDS: usize = 64;

/// Where an inode is.
#[derive(Debug)]
pub(crate) enum Link {
    /// The root directory.
    Root,
    /// An entry of a directory.
    At { parent: InodeRef, name: Box<[u8]> },
    /// A file with names that are counted: its keys are in the link area of the lineage whose root this is.
    Linked { root: InodeRef, id: u64 },
    /// The root of the snapshot with this number.
    Snapshot(u32),
    /// Where the snapshots of a family are seen.
    Snapshots(u64),
    /// A file without a name that is still open; its keys are in the orphan area.
    Orphan,
    /// Removed.
    Gone,
}

impl Link {
    /// What an inode with this link hangs on: what keeps it in its set of children.
    fn parent(&self) -> Option<&InodeRef> {
        match self {
            Link::At { parent, .. } | Link::Linked { root: parent, .. } => Some(parent),
            Link::Root | Link::Snapshot(_) | Link::Snapshots(_) | Link::Orphan | Link::Gone => None,
        }
    }
}

/// What changes of an inode. Nothing that can block is called while it is locked.
#[derive(Debug)]
pub(crate) struct InodeState {
    pub link: Link,
    pub record: Record,
    /// References that the kernel counts.
    pub lookups: u64,
    /// Open file handles.
    pub opens: u32,
    /// The access time in the record is not stored: see [`crate::AtimePolicy`].
    pub atime_unsaved: bool,
    /// A file without a name may get one: it was made so.
    pub linkable: bool,
    /// What is known of the holes of the file. Changed only while `tree` is held exclusively, or read anew.
    pub known: KnownHoles,
    /// Where the last write ended, byte.
    pub written_to: u64,
}

impl InodeState {
    /// Adds the access time to a change if it is not stored.
    pub(crate) fn save_atime(&self, change: &mut Change) {
        if self.atime_unsaved && change.atime.is_none() {
            change.atime = Some(self.record.atime);
        }
    }

    /// Applies a change that is stored.
    pub(crate) fn apply(&mut self, change: &Change) {
        change.apply(&mut self.record);
        self.atime_unsaved &= change.atime.is_none();
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Inode {
    pub ino: Ino,
    pub kind: FileKind,
    /// Lineage of the entries of a directory; of the inode itself otherwise.
    pub lineage: u32,
    /// Whether the inode is in a snapshot, and never changes.
    pub frozen: bool,
    /// Held shared by every call on this inode and, for directories, on what is below; held
    /// exclusively to change data or place. See the module `place` for the order.
    pub tree: Arc<RwLock<()>>,
    /// For directories: held shared to read the set of entries, and exclusively to change it. Other kinds never use
    /// it, and have the lock above here, too.
    pub names: Arc<RwLock<()>>,
    /// What hangs on it in memory.
    pub(crate) children: Children,
    refs: AtomicU64,
    changed: AtomicBool,
    /// How many trees had been removed when this was last found to be below the root.
    alive_at: AtomicU64,
    state: Mutex<InodeState>,
}

impl Inode {
    /// Reads the state. `f` must not read the state of this or another inode: with the same inode it would wait for
    /// ever.
    pub(crate) fn peek<T>(&self, f: impl FnOnce(&InodeState) -> T) -> T {
        let _last = LastLock::enter();
        f(&self.state.lock())
    }

    /// Changes the state. What the change takes out must be dropped after the call, so return it.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut InodeState) -> T) -> T {
        let _last = LastLock::enter();
        let mut state = self.state.lock();
        self.changed.store(true, Ordering::Relaxed);
        f(&mut state)
    }

    /// Replaces the link. The caller holds `tree` exclusively.
    ///
    /// If the directory would lie in itself, it becomes dead instead, because a walk up would never end. Only a
    /// damaged image leads to that: if two directories have one number, one can be moved into the other.
    pub(crate) fn relink(&self, link: Link) {
        let link = match link {
            Link::At { parent, .. } if self.kind == FileKind::Directory && parent.hangs_on(self.ino) => {
                Link::Gone
            }
            link => link,
        };
        let new = link.parent().cloned();
        let old = self.change(|s| std::mem::replace(&mut s.link, link));
        if let Some(parent) = old.parent() {
            parent.children.remove(self.ino);
        }
        if let Some(parent) = &new {
            parent.children.add(self.ino);
        }
        drop(old); // may drop the last reference of the parent: not under the lock
    }

    /// What `stat` tells; of a file with holes whose map was not read, only the blocks before the
    /// first hole: see [`crate::Fs::getattr`].
    pub(crate) fn attr(&self) -> Attr {
        self.peek(|s| {
            let mut attr = attr_of(self.ino, &s.record);
            let units = s.record.dense.and_then(|dense| s.known.units(dense, s.record.size));
            attr.blocks = units.unwrap_or(attr.blocks);
            if matches!(s.link, Link::Orphan | Link::Gone) {
                attr.nlink = 0;
            }
            attr
        })
    }

    /// The directory that the keys of an inode depend on: its parent, or of a linked file the root of its lineage.
    /// `None` for the root and for orphans.
    pub(crate) fn parent(&self) -> Result<Option<InodeRef>> {
        self.peek(|s| match &s.link {
            Link::Root | Link::Orphan | Link::Snapshot(_) | Link::Snapshots(_) => Ok(None),
            Link::At { parent, .. } | Link::Linked { root: parent, .. } => Ok(Some(parent.clone())),
            Link::Gone => Err(Error::Stale(self.ino)),
        })
    }

    /// The root of the lineage and the link id, of a linked file.
    pub(crate) fn linked(&self) -> Option<(InodeRef, u64)> {
        self.peek(|s| match &s.link {
            Link::Linked { root, id } => Some((root.clone(), *id)),
            _ => None,
        })
    }

    /// Whether this is the directory in which the snapshots of another are seen.
    pub(crate) fn shows_snapshots(&self) -> bool {
        self.peek(|s| matches!(s.link, Link::Snapshots(_)))
    }

    /// Error unless this is a directory.
    pub(crate) fn must_be_dir(&self) -> Result<()> {
        match self.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Error::NotDirectory(self.label())),
        }
    }

    /// The name, for messages.
    pub(crate) fn label(&self) -> String {
        self.peek(|s| match &s.link {
            Link::At { name, .. } => String::from_utf8_lossy(name).into_owned(),
            Link::Root => "/".into(),
            Link::Snapshot(number) => format!("snapshot {number}"),
            Link::Snapshots(_) => ".snapshots".into(),
            Link::Linked { .. } | Link::Orphan | Link::Gone => format!("inode {:#x}", self.ino),
        })
    }
}

/// Held by a thread that has the state of an inode: asserts, where that costs nothing, that it takes no other.
struct LastLock;

#[cfg(debug_assertions)]
thread_local! {
    static HAS_STATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl LastLock {
    #[inline]
    fn enter() -> Self {
        #[cfg(debug_assertions)]
        assert!(!HAS_STATE.replace(true), "a thread takes the state of an inode while it has one");
        Self
    }
}

impl Drop for LastLock {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        HAS_STATE.set(false);
    }
}

/// The attributes that a record gives an inode.
pub(crate) fn attr_of(ino: Ino, r: &Record) -> Attr {
    let size = if r.kind == FileKind::Directory { 4096 } else { r.size };
    Attr {
        ino,
        size,
        blocks: match (r.kind, r.dense) {
            (FileKind::Regular, None) => size.div_ceil(512),
            (FileKind::Regular, Some(dense)) => BlockMap::default().units(dense, size),
            _ => 0,
        },
        atime: r.atime,
        mtime: r.mtime,
        ctime: r.ctime,
        crtime: r.crtime,
        kind: r.kind,
        perm: r.perm,
        nlink: r.nlink,
        uid: r.uid,
        gid: r.gid,
        rdev: r.rdev,
        blksize: crate::limits::BLOCK_SIZE as u32,
    }
}

/// A counted reference: while it lives, the inode stays in the table.
#[derive(Debug)]
pub(crate) struct InodeRef {
    table: Arc<Table>,
    inode: Arc<Inode>,
}

impl Deref for InodeRef {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl InodeRef {
    /// As [`Inode::relink`], for a move to another directory.
    pub(crate) fn move_to(&self, link: Link) {
        self.table.moving.fetch_add(1, Ordering::AcqRel);
        self.relink(link);
        self.table.places.fetch_add(1, Ordering::AcqRel);
        self.table.moving.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a reference of the kernel.
    pub(crate) fn count_lookup(&self) -> Attr {
        self.inode.refs.fetch_add(1, Ordering::Relaxed);
        self.inode.state.lock().lookups += 1;
        self.attr()
    }

    /// Whether the inode is still below the root, or never was. Walks up only if a tree has been removed as
    /// a whole since the last time.
    pub(crate) fn is_alive(&self) -> bool {
        let removed = self.table.trees_removed.load(Ordering::Acquire);
        if self.alive_at.load(Ordering::Relaxed) == removed {
            return true;
        }
        let alive = self.ancestry().is_ok();
        if alive {
            self.alive_at.store(removed, Ordering::Relaxed);
        }
        alive
    }

    /// For finding out later whether something is this inode still: see [`InodeRef::is`].
    pub(crate) fn weak(&self) -> Weak<Inode> {
        Arc::downgrade(&self.inode)
    }

    /// True if `other` was made of this inode, which has been in the table since.
    pub(crate) fn is(&self, other: &Weak<Inode>) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.inode), other.as_ptr())
    }

    /// Whether this is the inode `ino`, or one that is reached by climbing is. Without locks.
    fn hangs_on(&self, ino: Ino) -> bool {
        let mut at = Some(self.clone());
        while let Some(inode) = at {
            if inode.ino == ino {
                return true;
            }
            at = inode.parent().ok().flatten();
        }
        false
    }

    /// The inode and those above it, itself first; ESTALE if one of them was removed.
    ///
    /// Without locks: by the time that it returns, renames may have changed it. Verify under locks.
    pub(crate) fn ancestry(&self) -> Result<Ancestry> {
        'walk: loop {
            let mut up = Ancestry::new();
            up.push(self.clone());
            while let Some(last) = up.last() {
                match last.parent() {
                    Ok(Some(parent)) => up.push(parent),
                    Ok(None) => return Ok(up),
                    Err(_) => break,
                }
            }
            // The topmost inode was removed. The ones below it are dead only if they are still below it, because they
            // may have been moved away before the removal. They are checked from the top down: a child of a dead
            // inode cannot be moved any more.
            for pair in up.windows(2).rev() {
                if let [below, above] = pair
                    && !matches!(below.parent(), Ok(Some(p)) if p.ino == above.ino)
                {
                    continue 'walk;
                }
            }
            return Err(Error::Stale(self.ino));
        }
    }
}

/// See [`InodeRef::ancestry`].
pub(crate) type Ancestry = SmallVec<[InodeRef; 12]>;

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        self.inode.refs.fetch_add(1, Ordering::Relaxed);
        Self { table: self.table.clone(), inode: self.inode.clone() }
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        let mut last = self.table.put(&self.inode, 1);
        // An inode that leaves the table drops its reference to its parent, which may then leave, and so on. This is
        // a loop and no recursion, because trees may be deep.
        while let Some(inode) = last.take() {
            let link = std::mem::replace(&mut inode.state.lock().link, Link::Gone);
            if let Link::At { parent, .. } | Link::Linked { root: parent, .. } = link {
                // Taking the fields apart without running this function again.
                let parent_inode = parent.inode.clone();
                parent_inode.refs.fetch_add(1, Ordering::Relaxed);
                drop(parent); // not the last one, by the line above
                last = self.table.put(&parent_inode, 1);
            }
        }
    }
}

type Shard = Mutex<HashMap<Ino, Arc<Inode>>>;

/// The inodes in memory.
#[derive(Debug)]
pub(crate) struct Table {
    shards: Vec<Shard>,
    len: AtomicU64,
    /// Counts inodes that left after a change. See [`Table::enter`].
    departures: AtomicU64,
    /// Counts trees that were removed or replaced as a whole, with what was below.
    trees_removed: AtomicU64,
    /// Counts directories that were moved, and trees that were removed. See [`Table::moves`].
    moves: AtomicU64,
    /// Counts inodes that got another place, and those that are just getting one.
    places: AtomicU64,
    moving: AtomicU64,
}

impl Table {
    /// An empty table.
    pub(crate) fn new() -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        let zero = || AtomicU64::new(0);
        let (len, departures, trees_removed, moving) = (zero(), zero(), zero(), zero());
        Arc::new(Self { shards, len, departures, trees_removed, moves: zero(), places: zero(), moving })
    }

    fn shard(&self, ino: Ino) -> &Shard {
        // File numbers are dense and lineages sparse: both take part.
        &self.shards[(ino ^ (ino >> 40)) as usize % SHARDS]
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes of an inode without its name and target.
    pub(crate) fn inode_bytes() -> u64 {
        let (arc, lock, entry, child) = (16, 24, 24 + 8, 16);
        (size_of::<Inode>() + arc + 2 * lock + entry + child) as u64
    }

    /// The lineages of all inodes in memory, and of their numbers. Looks at each.
    pub(crate) fn lineages(&self) -> HashSet<u32> {
        let mut found = HashSet::new();
        for shard in &self.shards {
            for inode in shard.lock().values() {
                found.insert(inode.lineage);
                found.insert((inode.ino >> 40) as u32);
            }
        }
        found
    }

    /// To be called when the top of a tree that was removed as a whole is marked so.
    pub(crate) fn tree_removed(&self) {
        self.trees_removed.fetch_add(1, Ordering::Release);
        self.moved();
    }

    /// To be called when a directory has got another place, while its `tree` is held exclusively.
    pub(crate) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// If a call holds `tree` of all directories above some place and finds the same number as before, the place
    /// has not moved in between.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// To be asked before links are followed without locks: see [`Table::stayed`].
    pub(crate) fn places(&self) -> u64 {
        self.places.load(Ordering::Acquire)
    }

    /// Whether no inode has got another place since `places` was given, nor is just getting one.
    pub(crate) fn stayed(&self, places: u64) -> bool {
        self.moving.load(Ordering::Acquire) == 0 && self.places() == places
    }

    /// To be read before a record is read that is given to [`Table::enter`].
    pub(crate) fn departures(&self) -> u64 {
        self.departures.load(Ordering::Acquire)
    }

    /// The inode, if it is in memory.
    pub(crate) fn find(self: &Arc<Self>, ino: Ino) -> Option<InodeRef> {
        let shard = self.shard(ino).lock();
        let inode = shard.get(&ino)?.clone();
        inode.refs.fetch_add(1, Ordering::Relaxed);
        drop(shard);
        Some(InodeRef { table: self.clone(), inode })
    }

    /// The inode that a call names by number.
    pub(crate) fn get(self: &Arc<Self>, ino: Ino) -> Result<InodeRef> {
        self.find(ino).ok_or(Error::Stale(ino))
    }

    /// The inode `ino`: that in memory, or else a new one with this link and record.
    ///
    /// `None` if it is not in memory but may have been changed there since `departures` was
    /// read, so that the record may be old: read it again. The caller holds the `names` lock of
    /// the directory in `link`, so that the entry itself cannot change.
    pub(crate) fn enter(
        self: &Arc<Self>,
        ino: Ino,
        lineage: u32,
        departures: Option<u64>,
        link: Link,
        record: Record,
    ) -> Option<InodeRef> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.get(&ino).cloned() {
            inode.refs.fetch_add(1, Ordering::Relaxed);
            drop(shard);
            return Some(InodeRef { table: self.clone(), inode });
        }
        if departures.is_some_and(|d| d != self.departures()) {
            drop(shard); // before `link`, whose parent may live in the same shard
            return None;
        }
        let frozen = match &link {
            Link::Snapshot(_) | Link::Snapshots(_) => true,
            Link::At { parent, .. } | Link::Linked { root: parent, .. } => parent.frozen,
            Link::Root | Link::Orphan | Link::Gone => false,
        };
        let tree = Arc::new(RwLock::new(()));
        let names = match record.kind {
            FileKind::Directory => Arc::new(RwLock::new(())),
            _ => tree.clone(),
        };
        // While the shard is locked: else this one and one that leaves could pass each other.
        if let Some(parent) = link.parent() {
            parent.children.add(ino);
        }
        let inode = Arc::new(Inode {
            ino,
            kind: record.kind,
            lineage,
            frozen,
            tree,
            names,
            children: Children::default(),
            refs: AtomicU64::new(1),
            changed: AtomicBool::new(departures.is_none()),
            // The caller holds the directory in `link` where it is.
            alive_at: AtomicU64::new(self.trees_removed.load(Ordering::Acquire)),
            state: Mutex::new(InodeState {
                link,
                record,
                lookups: 0,
                opens: 0,
                atime_unsaved: false,
                linkable: false,
                known: KnownHoles::default(),
                written_to: 0,
            }),
        });
        shard.insert(ino, inode.clone());
        self.len.fetch_add(1, Ordering::Relaxed);
        drop(shard);
        Some(InodeRef { table: self.clone(), inode })
    }

    /// Drops up to `n` references that the kernel holds.
    pub(crate) fn forget(self: &Arc<Self>, ino: Ino, n: u64) {
        let Some(inode) = self.find(ino) else { return };
        let dropped = {
            let mut s = inode.state.lock();
            let n = s.lookups.min(n);
            s.lookups -= n;
            n
        };
        // Never the last: `inode` is one more.
        let left = self.put(&inode.inode, dropped);
        debug_assert!(left.is_none());
    }

    /// Drops `n` references; the inode if it left the table with them.
    fn put(&self, inode: &Arc<Inode>, n: u64) -> Option<Arc<Inode>> {
        let before = inode.refs.fetch_sub(n, Ordering::AcqRel);
        assert!(before >= n, "more references dropped than taken");
        if before > n {
            return None;
        }
        let mut shard = self.shard(inode.ino).lock();
        let current = shard.get(&inode.ino).is_some_and(|i| Arc::ptr_eq(i, inode));
        if !current || inode.refs.load(Ordering::Acquire) != 0 {
            return None;
        }
        if inode.changed.load(Ordering::Relaxed) {
            self.departures.fetch_add(1, Ordering::Release);
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        assert!(inode.children.is_empty(), "an inode leaves memory before what hangs on it");
        if let Some(parent) = inode.state.lock().link.parent() {
            parent.children.remove(inode.ino);
        }
        shard.remove(&inode.ino)
    }
}
