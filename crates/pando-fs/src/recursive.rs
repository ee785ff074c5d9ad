//! Changes of the attributes of all that is in a directory, as one message.
//!
//! What `chmod -R` and its like make of a tree is one range-upsert of the engine over the records in it, whatever their
//! number (`docs/decisions/recursive-changes.md`). Guarantees that the change is one batch; that it reaches each file
//! once, also one with several names of which only some are in the tree; and that inodes in memory show it when it
//! returns. Costs besides: a look at each inode in memory of the tree, and a message for each file that has several
//! names, one of them in the tree, and is not kept in it.

use std::{collections::HashSet, time::Instant};

use pando_db::Batch;

use crate::{
    data::without_set_id,
    error::{Error, Result},
    format::FEATURE_TREE_CHANGES,
    inode::{InodeRef, Link},
    lock::{Attempts, Guard, Obstacle},
    merge::Change,
    mode::ModeChange,
    path,
    place::{DirAt, may_change},
    record::Stored,
    types::{FileKind, Ino, SetTime, Time},
    volume::Fs,
};

/// Most files outside of the tree with a name in it that one call changes, a count: each is an operation of its batch.
const MAX_LINKED_CHANGES: usize = 1 << 16;

/// What is to change of all files in a tree; `None` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeChange {
    /// The mode, but of symbolic links.
    pub mode: Option<ModeChange>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// What [`Fs::change_tree`] did.
#[derive(Debug, Clone, Default)]
pub struct TreeChangeReport {
    /// Inodes in memory that were changed and that the kernel knows.
    pub known: Vec<(Ino, FileKind)>,
    /// The times that were set, the access time first.
    pub times: (Option<Time>, Option<Time>),
    /// Microseconds.
    pub micros: u64,
}

/// A tree in which nothing moves or changes: `tree` of its top is held exclusively, or of a directory above.
struct HeldTree {
    _chain: Option<DirAt>,
    _tree: Guard,
    /// Path of the top's own entry, and contents prefix.
    entry: Vec<u8>,
    contents: Vec<u8>,
    /// The root of the lineage that the top's entries are in, and its contents prefix.
    root: InodeRef,
    root_contents: Vec<u8>,
}

impl TreeChange {
    /// The change of a record, at the time `now`.
    fn of_record(&self, now: Time) -> Result<Change> {
        let time = |t: SetTime| match t {
            SetTime::Now => Ok(now),
            SetTime::At(t) if t.nanos < 1_000_000_000 => Ok(t),
            SetTime::At(_) => Err(Error::Invalid("nanoseconds beyond a second".into())),
        };
        let mut change = Change {
            uid: self.uid,
            gid: self.gid,
            atime: self.atime.map(time).transpose()?,
            mtime: self.mtime.map(time).transpose()?,
            mode: self.mode,
            ..Change::default()
        };
        let owner = self.uid.is_some() || self.gid.is_some();
        if owner {
            // As chown(2) does, for any caller, and also if the owner stays the same.
            let drop = ModeChange::without_set_id(|mode| without_set_id(mode).unwrap_or(mode));
            change.mode = Some(self.mode.map_or(drop, |mode| mode.then(&drop)));
            change.drop_capability = true;
        }
        if owner || change.atime.is_some() || change.mtime.is_some() {
            change.ctime = Some(now);
        } else {
            change.ctime_but_links = Some(now);
        }
        Ok(change)
    }
}

impl Fs {
    /// Changes the directory `top` and everything in it. Permissions are not checked: the caller has to do so. Each
    /// file is changed once; symbolic links are changed themselves, except for their mode. Whatever is changed gets
    /// the present time as its change time. Snapshots and clones of the tree stay as they are.
    ///
    /// One batch with one message for the tree, whatever its size, and one message for each linked file that has a
    /// name in the tree and belongs to a lineage with a root above `top`. If there are more than 65,536 of these, or
    /// more than the log takes, this changes nothing (EFBIG). They are found by a scan of the names of linked files
    /// in the tree, during which calls in the whole lineage wait. Without such files, calls in the tree wait for the
    /// batch, and for a walk over the inodes in memory.
    ///
    /// EINVAL if `change` changes nothing, EROFS in a snapshot.
    pub fn change_tree(&self, top: Ino, change: &TreeChange) -> Result<TreeChangeReport> {
        let begun = Instant::now();
        self.writable()?;
        if *change == TreeChange::default() {
            return Err(Error::Invalid("no attribute to change".into()));
        }
        let top = self.dir(top)?;
        may_change(&top, true)?;
        change.of_record(Time::default())?;
        self.need_feature(FEATURE_TREE_CHANGES)?;
        let mut lineage = false;
        loop {
            let done = self.with_attempts(|tries| {
                let held = self.attempt_tree(tries, &top, lineage)?;
                let linked = match self.linked_below(&held, &top)? {
                    // Calls on a file with several names hold the root of its lineage, and not this directory.
                    Some(_) if !lineage => return Ok(None),
                    linked => linked.unwrap_or_default(),
                };
                let now = self.now();
                let change = change.of_record(now)?;
                let op = change.encode();
                let mut batch = Batch::new();
                let contents = path::meta(&held.contents);
                if held.contents != held.entry {
                    batch.upsert(path::meta(&held.entry), op.clone());
                }
                batch.upsert_prefix(contents, op.clone());
                for id in &linked {
                    batch.upsert(path::meta(&path::linked(&held.root_contents, *id)), op.clone());
                }
                self.db.write(batch).map_err(|e| match e {
                    pando_db::Error::TooLarge { what: "batch", .. } => Error::TooManyNames(top.label()),
                    other => other.into(),
                })?;
                let mut known = Vec::new();
                for inode in self.in_memory_below(&top, &held.root, &linked) {
                    let lookups = inode.change(|s| {
                        s.apply(&change);
                        s.lookups
                    });
                    if lookups > 0 {
                        known.push((inode.ino, inode.kind));
                    }
                }
                let times = (change.atime, change.mtime);
                Ok(Some(TreeChangeReport { known, times, micros: 0 }))
            })?;
            match done {
                Some(report) => {
                    return Ok(TreeChangeReport { micros: begun.elapsed().as_micros() as u64, ..report });
                }
                None => lineage = true,
            }
        }
    }

    /// Whether the kernel holds references of the inode, or may get some: it is in memory for its sake.
    pub fn is_known(&self, ino: Ino) -> bool {
        self.table.find(ino).is_some_and(|inode| inode.peek(|s| s.lookups > 0))
    }

    /// Tries to lock the tree at `top`, or with `lineage` the whole lineage around it, so that nothing in it changes.
    fn attempt_tree(
        &self,
        tries: &mut Attempts,
        top: &InodeRef,
        lineage: bool,
    ) -> Result<HeldTree, Obstacle> {
        let up = top.ancestry()?;
        let root_at =
            up.iter().position(|inode| inode.peek(|s| s.record.clone_id != 0)).unwrap_or(up.len() - 1);
        let held_at = if lineage { root_at } else { 0 };
        let chain = up.get(held_at + 1).map(|above| self.attempt_dir(above)).transpose()?;
        let _tree = tries.exclusive(&up[held_at].tree)?;
        // Nothing below moves any more, nor does this directory itself. Is it all as it was seen?
        let mut contents = chain.as_ref().map(|chain| chain.contents.clone()).unwrap_or_default();
        let mut own = contents.len();
        for (at, inode) in up.iter().enumerate().take(held_at + 1).rev() {
            own = contents.len();
            let same = inode.peek(|s| match (&s.link, up.get(at + 1)) {
                (Link::Root, None) => Ok(true),
                (Link::At { parent, name }, Some(above)) if parent.ino == above.ino => {
                    path::enter(&mut contents, name).map(|()| true)
                }
                _ => Ok(false),
            })?;
            if !same {
                return Err(Obstacle::Taken { lock: inode.tree.clone(), exclusive: false });
            }
        }
        // The root of the lineage, as seen from here: those above are held, so it is the same.
        let mut below = 0;
        let mut root = &up[0];
        for (at, inode) in up.iter().enumerate() {
            root = inode;
            let name = inode.peek(|s| match &s.link {
                Link::At { name, .. } if s.record.clone_id == 0 => Some(name.len()),
                _ => None,
            });
            match name {
                Some(name) => below += name + 2,
                None if at == root_at => break,
                None => return Err(Obstacle::Taken { lock: inode.tree.clone(), exclusive: false }),
            }
        }
        let root_contents = contents.get(..contents.len().saturating_sub(below)).unwrap_or_default().to_vec();
        let entry = path::entry_of(&contents, own);
        Ok(HeldTree { _chain: chain, _tree, entry, contents, root: root.clone(), root_contents })
    }

    /// The files with several names that have one below `top` and are kept outside of it; `None` if there are none.
    fn linked_below(&self, held: &HeldTree, top: &InodeRef) -> Result<Option<HashSet<u64>>> {
        if !self.has_links() || held.root.ino == top.ino {
            return Ok(None); // those of a root are kept in it
        }
        let damaged = |detail| Error::Damaged { what: top.label(), detail };
        let index = path::link_name(&held.root_contents, &held.contents)
            .ok_or_else(|| damaged("an entry outside of its lineage"))?;
        let mut ids = HashSet::new();
        let index = path::meta(&index);
        let mut names = self.db.prefix(&index);
        while let Some((_, value)) = names.next_ref()? {
            match Stored::decode(value).map_err(damaged)? {
                Stored::Indexed(id) => ids.insert(id),
                _ => return Err(damaged("no entry of the index of names")),
            };
            if ids.len() > MAX_LINKED_CHANGES {
                return Err(Error::TooManyNames(top.label()));
            }
        }
        Ok((!ids.is_empty()).then_some(ids))
    }

    /// The inodes in memory that are `top` or in it, and those of the linked files `ids` of the lineage of `root`.
    fn in_memory_below(&self, top: &InodeRef, root: &InodeRef, ids: &HashSet<u64>) -> Vec<InodeRef> {
        let (mut all, mut looked_at) = (vec![top.clone()], 0);
        while let Some(inode) = all.get(looked_at) {
            looked_at += 1;
            all.extend(self.table.children(inode));
        }
        // In memory these are children of the lineage's root, which lies above `top`.
        if root.ino != top.ino && !ids.is_empty() {
            let mut linked = self.table.children(root);
            linked.retain(|inode| {
                inode.peek(|s| matches!(s.link, Link::Linked { id, .. } if ids.contains(&id)))
            });
            all.append(&mut linked);
        }
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsStr, path::Path, sync::atomic::AtomicBool, sync::atomic::Ordering, time::Duration};

    use pando_db::device::MemDevice;

    use super::*;
    use crate::types::{Caller, FormatOptions, MountOptions, ROOT};

    /// A call on a file changes the store and then memory. A change of a tree in between would come in another order in
    /// memory than in the store.
    fn waits_for_a_call_on(linked: bool) {
        let device = std::sync::Arc::new(MemDevice::new(64 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
        let fs = Fs::open(device, MountOptions::default().background(false)).unwrap();
        let me = Caller::root();
        let top = fs.mkdir(&me, ROOT, OsStr::new("t"), 0o755).unwrap();
        let inner = fs.mkdir(&me, top.ino, OsStr::new("d"), 0o755).unwrap();
        let file = fs.mknod(&me, inner.ino, OsStr::new("f"), 0o100777, 0).unwrap();
        if linked {
            // From here on it is kept in the root.
            fs.link(&me, file.ino, ROOT, OsStr::new("l")).unwrap();
        }
        let change = TreeChange { mode: ModeChange::parse("o=", 0), ..TreeChange::default() };
        let done = AtomicBool::new(false);
        let call = fs.hold(&fs.table.get(file.ino).unwrap(), true).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                fs.change_tree(top.ino, &change).unwrap();
                done.store(true, Ordering::Release);
            });
            std::thread::sleep(Duration::from_millis(200));
            let early = done.load(Ordering::Acquire);
            drop(call);
            assert!(!early, "it has not waited");
        });
        assert_eq!(fs.resolve(Path::new("/t/d/f")).unwrap().perm, 0o770);
    }

    #[test]
    fn a_change_of_a_tree_waits_for_calls_in_it() {
        waits_for_a_call_on(false);
    }

    #[test]
    fn a_change_of_a_tree_waits_for_calls_on_linked_files_that_it_names() {
        waits_for_a_call_on(true);
    }

    #[test]
    fn a_change_of_a_tree_with_too_many_names_of_linked_files_changes_nothing() {
        let device = std::sync::Arc::new(MemDevice::new(512 << 20));
        Fs::format(device.clone(), &FormatOptions::default()).unwrap();
        let fs = Fs::open(device, MountOptions::default().background(false)).unwrap();
        let me = Caller::root();
        let top = fs.mkdir(&me, ROOT, OsStr::new("t"), 0o755).unwrap().ino;
        let out = fs.mkdir(&me, ROOT, OsStr::new("out"), 0o755).unwrap().ino;
        let link = |i: usize| {
            let name = format!("{i}");
            let file = fs.mknod(&me, top, OsStr::new(&name), 0o100644, 0).unwrap().ino;
            fs.link(&me, file, out, OsStr::new(&name)).unwrap();
            fs.forget(file, 2);
        };
        (0..MAX_LINKED_CHANGES).for_each(link);
        let change = |mode| TreeChange { mode: ModeChange::parse(mode, 0), ..TreeChange::default() };
        let perm = |path: &str| fs.resolve(Path::new(path)).unwrap().perm;
        let last = MAX_LINKED_CHANGES - 1;
        fs.change_tree(top, &change("600")).unwrap();
        assert_eq!((perm("/t/0"), perm(&format!("/out/{last}"))), (0o600, 0o600));
        link(MAX_LINKED_CHANGES);
        let refused = fs.change_tree(top, &change("777"));
        assert!(matches!(refused, Err(Error::TooManyNames(_))), "{refused:?}");
        assert_eq!(
            (perm("/t"), perm("/t/0"), perm(&format!("/t/{MAX_LINKED_CHANGES}"))),
            (0o600, 0o600, 0o644)
        );
        // The lineage above, in which all of them are kept, has no such limit.
        fs.change_tree(ROOT, &change("640")).unwrap();
        assert_eq!((perm("/t"), perm(&format!("/t/{MAX_LINKED_CHANGES}"))), (0o640, 0o640));
    }
}
