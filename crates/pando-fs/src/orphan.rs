//! Files without a name that are still open.
//!
//! The batch that removes the last name of an open file moves its record and data to an area of the system region,
//! under its inode number. Calls on the open file work there as before. The last release removes the file, or the
//! next mount after a crash. What the last release cannot remove waits in `removals`, and a thread of this module tries
//! again.

use std::{
    collections::HashSet,
    sync::Weak,
    time::{Duration, Instant},
};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    error::{Error, Result},
    inode::{Inode, InodeRef, InodeState, Link},
    late_calls::KeptFile,
    lock,
    merge::Change,
    path::{self, system},
    removals::Unremoved,
    types::{FileKind, Time},
    volume::{Fs, Inner},
};

/// Share of a store (1/n) that has to be free for files to be kept for late calls.
const PLENTY_FRACTION: u64 = 16;
/// Time between two looks at whether there is more space for what could not be removed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most time between two attempts to remove it, though there is no more space: what is free below the reserve is not
/// seen.
const ATTEMPT_EVERY: Duration = Duration::from_secs(8);

/// What happens to an inode when a name of it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The file is removed.
    Gone,
    /// The file has no name left, and is open.
    Orphan,
    /// The file has other names.
    Linked,
}

impl Fs {
    /// Adds the move of a file's record, and of the data under this prefix, into the orphan area. The record at its
    /// old place is for the caller to delete.
    pub(crate) fn make_orphan(&self, batch: &mut Batch, data: Bytes, inode: &Inode, now: Time) {
        let mut record = inode.peek(|s| s.record.clone());
        Change { ctime: Some(now), ..Change::default() }.apply(&mut record);
        // A file of size 0 has no data: no block holds bytes behind the size.
        if record.has_data() {
            batch.rename_prefix(data, system::orphan_data(inode.ino));
        }
        batch.put(system::orphan_meta(inode.ino), record.encode());
    }

    /// Notes in an inode that an entry of it was removed, and what the batch made of it. The caller holds `tree` of it,
    /// or of a directory above it, exclusively.
    pub(crate) fn removed(&self, inode: &Inode, fate: Fate, now: Time) {
        inode.change(|s| s.record.ctime = now);
        match fate {
            Fate::Linked => {
                inode.change(|s| s.record.nlink = s.record.nlink.saturating_sub(1));
                return;
            }
            Fate::Orphan => inode.relink(Link::Orphan),
            Fate::Gone => inode.relink(Link::Gone),
        }
        // The last handle may have been closed since the batch was made: a release below a directory that is removed
        // takes no lock of it.
        self.drop_orphan_if_closed(inode);
    }

    /// Notes that a call on a file that was found by name has failed with ESTALE: files that lose their last name in
    /// the next moments are kept for such calls (`late_calls`).
    pub(crate) fn came_late(&self, inode: &Inode, e: &Error) {
        if matches!(e, Error::Stale(_)) && inode.kind == FileKind::Regular {
            self.late_calls.came();
        }
    }

    /// Keeps a file that is about to lose its last name, if late calls by that name may come. The caller holds `tree`
    /// of the file exclusively. A nearly full store keeps no files: a kept file holds its space, and its move into
    /// the orphan area takes more space than its removal.
    pub(crate) fn keep_for_late_calls(&self, inode: &InodeRef) -> Option<KeptFile<'_>> {
        let last = inode.peek(|s| !matches!(s.link, Link::Linked { .. }) || s.record.nlink <= 1);
        if inode.kind != FileKind::Regular || !last || !self.late_calls.keeps() {
            return None;
        }
        let (available, total) = self.db.space();
        if available >= total / PLENTY_FRACTION { self.late_calls.keep(inode) } else { None }
    }

    /// Takes one open back: the last one of a file without a name removes its data. The caller holds no locks.
    pub(crate) fn let_go(&self, inode: &InodeRef) {
        let _own = lock::exclusive(&inode.tree);
        inode.change(|s| s.opens = s.opens.saturating_sub(1));
        self.drop_orphan_if_closed(inode);
    }

    /// Removes an orphan that is not open any more.
    pub(crate) fn drop_orphan_if_closed(&self, inode: &Inode) {
        let ended = |s: &InodeState| s.opens == 0 && matches!(s.link, Link::Orphan);
        let last = inode.peek(ended).then(|| {
            inode.change(|s| {
                let ended = ended(s);
                if ended {
                    s.link = Link::Gone;
                }
                ended.then_some(s.record.clone())
            })
        });
        if let Some(Some(record)) = last {
            let mut batch = Batch::new();
            // Its name was deleted before, and this is not tried again.
            batch.releases().delete(system::orphan_meta(inode.ino));
            Self::drop_data(&mut batch, &system::orphan_data(inode.ino), &record);
            self.write_or_later(batch, Unremoved::Orphan(inode.ino));
        }
    }

    /// Removes by this batch what has no name any more, or has it removed later: there is no caller to tell.
    fn write_or_later(&self, batch: Batch, what: Unremoved) {
        match self.db.write(batch) {
            // Nothing is written any more; the next mount removes it.
            Ok(()) | Err(pando_db::Error::Stopped { .. }) => {}
            Err(_) => self.remove_later(what),
        }
    }

    /// Removes something, or has it removed later.
    pub(crate) fn remove_now_or_later(&self, what: Unremoved) {
        self.write_or_later(removal_of(what), what);
    }

    /// Removes what waits for it, until something cannot be removed. No call has any of that: an orphan with no handle
    /// can neither be opened nor linked, and its number is given to nothing else as long as it waits.
    pub(crate) fn remove_waiting(&self) -> Result<()> {
        while let Some(what) = self.removals.first() {
            self.db.write(removal_of(what))?;
            self.removals.removed();
        }
        Ok(())
    }

    /// The work of the background thread that removes.
    pub(crate) fn remove_in_background(weak: Weak<Inner>) {
        let Some(removals) = Fs::upgraded(&weak).map(|fs| fs.removals.clone()) else { return };
        let (mut seen, mut next, mut pause) = (0, Instant::now(), LOOK_EVERY);
        while removals.goes_on_after(LOOK_EVERY) {
            let Some(fs) = Fs::upgraded(&weak) else { return };
            // Until the first change nothing is written; and an attempt in vain may cost a few checkpoints.
            if fs.is_read_only() || fs.db.space().0 <= seen && Instant::now() < next {
                continue;
            }
            match fs.remove_waiting() {
                Ok(()) => (seen, pause) = (0, LOOK_EVERY),
                Err(Error::Engine(pando_db::Error::Stopped { .. })) => return removals.ended(),
                Err(_) => {
                    pause = (2 * pause).min(ATTEMPT_EVERY);
                    (seen, next) = (fs.db.space().0, Instant::now() + pause);
                }
            }
        }
    }

    /// Adds moves of all open files below `top` into the orphan area, and returns these files. The caller holds `tree`
    /// of `top` exclusively. Files whose path `stays` are left out. Costs a look at each open file, or at each inode in
    /// memory below `top`, whichever are fewer.
    pub(crate) fn orphan_below(
        &self,
        batch: &mut Batch,
        top: &Inode,
        stays: &dyn Fn(&[u8]) -> bool,
        now: Time,
    ) -> Result<Vec<InodeRef>> {
        let mut found: Vec<InodeRef> = Vec::new();
        for inode in self.perhaps_open_below(top) {
            let open = inode.kind == FileKind::Regular && inode.peek(|s| s.opens > 0);
            if open
                && let Some(path) = path_below(&inode, top)?
                && !stays(&path)
            {
                self.make_orphan(batch, path::data(&path), &inode, now);
                found.push(inode);
            }
        }
        Ok(found)
    }

    /// The inodes in memory below `top`, or all open files if those are fewer, each once.
    fn perhaps_open_below(&self, top: &Inode) -> Vec<InodeRef> {
        let handles = usize::try_from(self.files.len()).unwrap_or(usize::MAX);
        self.known_below(top, handles).unwrap_or_else(|| {
            let mut seen = HashSet::new();
            let open = self.files.all().into_iter().map(|open| open.inode.clone());
            open.filter(|inode| seen.insert(inode.ino)).collect()
        })
    }
}

/// What removes something that waits. Its name was deleted before.
pub(crate) fn removal_of(what: Unremoved) -> Batch {
    let mut batch = Batch::new();
    match what {
        Unremoved::Orphan(ino) => batch.releases().delete_prefix(system::orphan(ino)),
        Unremoved::Work(number) => {
            batch.releases().delete_prefix(path::volume(number)).delete(system::work(number))
        }
    };
    batch
}

/// The path under which the keys of `inode` lie if that is below the directory `top`.
fn path_below(inode: &InodeRef, top: &Inode) -> Result<Option<Vec<u8>>> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let mut below = false;
    let linked = inode.linked();
    let mut at = inode.clone();
    if let Some((root, _)) = &linked {
        below = root.ino == top.ino;
        at = root.clone();
    }
    loop {
        let (name, parent) = match at.peek(|s| match &s.link {
            Link::At { parent, name } => Some((name.clone(), Some(parent.clone()))),
            Link::Root => Some((Box::default(), None)),
            Link::Linked { .. } | Link::Orphan | Link::Gone | Link::Snapshot(_) | Link::Snapshots(_) => None,
        }) {
            Some((name, Some(parent))) => (name, parent),
            Some((_, None)) => break,
            None => return Ok(None),
        };
        names.push(name);
        below |= parent.ino == top.ino;
        at = parent;
    }
    if !below {
        return Ok(None);
    }
    let mut dir = Vec::new();
    let dirs = if linked.is_some() { 0 } else { 1 };
    while names.len() > dirs {
        if let Some(name) = names.pop() {
            path::enter(&mut dir, &name)?;
        }
    }
    match linked {
        Some((_, id)) => Ok(Some(path::linked(&dir, id))),
        None => names.pop().map(|name| path::entry(&dir, &name)).transpose(),
    }
}
