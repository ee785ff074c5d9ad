//! Removals of whole trees, each as one batch, by a call of its own or where something else takes the place of a tree.
//!
//! A removal is a delete of a record and of one prefix for each region, whatever lies below. Which callers may remove:
//! see `rights`. Guarantees that what is removed dies at once in memory, and that files open below stay usable through
//! their handles.

use std::{ffi::OsStr, time::Instant};

use pando_db::Batch;

use crate::{
    bill::{Above, Bill, Taken},
    census::LostNames,
    error::{Error, Result, show},
    inode::InodeRef,
    lock,
    merge::Change,
    orphan::Fate,
    path::{self, check_name},
    quota::Counts,
    rename::End,
    rights::Rights,
    staying::Staying,
    types::{Caller, FileKind, Ino, RemoveReport, Time, VerifiedRights},
    volume::Fs,
};

/// What a removal leaves to do once its batch is written.
pub(crate) struct Removal {
    top: InodeRef,
    top_fate: Fate,
    open_below: Vec<InodeRef>,
    lineage: Option<u32>,
    /// Names of linked files that went with it.
    pub(crate) names: Option<LostNames>,
    now: Time,
}

impl Removal {
    /// Open files that have lost their last name.
    pub(crate) fn orphaned(&self) -> Vec<Ino> {
        self.open_below.iter().map(|inode| inode.ino).collect()
    }
}

impl Fs {
    /// Adds the removal of an entry and all below it, and of the keys that are kept by contents prefix there, except
    /// those `staying`. The caller holds `tree` of it exclusively.
    pub(crate) fn remove_all(
        &self,
        rights: Rights<'_>,
        batch: &mut Batch,
        end: &End<'_>,
        (top, staying): (&InodeRef, &Staying),
        now: Time,
    ) -> Result<Removal> {
        let mut open_below = Vec::new();
        let mut top_fate = Fate::Gone;
        let mut lineage = None;
        let mut names = None;
        if top.kind == FileKind::Directory {
            let contents = end.contents()?;
            self.may_empty(rights, top, &contents)?;
            self.may_leave(&end.at.dir, end.name, top)?;
            if top.peek(|s| s.record.clone_id == 0) {
                names = self.lose_names(batch, end.at, &contents)?;
            }
            open_below = self.orphan_below(batch, top, &|_| false, now)?;
            self.drop_kept_by_prefix(batch, &contents, staying)?;
            batch.delete(path::meta(&end.entry));
            // Removing a clone may remove the last reference to data that other batches have deleted.
            batch.releases();
            for prefix in top.peek(|s| end.prefixes(&s.record))? {
                batch.delete_prefix(prefix);
            }
            lineage = self.retire(batch, end.at, top)?;
        } else {
            self.may_leave(&end.at.dir, end.name, top)?;
            top_fate = self.remove_file(batch, end.at, &end.entry, top, now)?;
        }
        Ok(Removal { top: top.clone(), top_fate, open_below, lineage, names, now })
    }

    /// Updates the inodes in memory after the batch of a removal is written.
    pub(crate) fn removed_all(&self, removal: &Removal) {
        for inode in &removal.open_below {
            self.removed(inode, Fate::Orphan, removal.now);
        }
        self.removed(&removal.top, removal.top_fate, removal.now);
        if removal.top.kind == FileKind::Directory {
            self.table.tree_removed();
        }
        self.lineages.give_back(removal.lineage);
    }

    /// What goes from where when an entry is removed with all below it.
    pub(crate) fn going(&self, counts: &mut Counts, end: &End<'_>, top: &InodeRef) -> Result<(Above, Taken)> {
        if top.kind != FileKind::Directory {
            return self.leaving(end.at, &end.entry, top);
        }
        let above = self.above(end.at);
        let taken = match above.is_empty() {
            true => Taken::default(),
            false => self.entry_taken(counts, end, top)?,
        };
        Ok((above, taken))
    }

    /// Removes the entry `name` of `parent` with everything below it, as `rm -r` does, in one batch.
    pub fn remove_tree(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<RemoveReport> {
        self.remove_by(Rights::Of(c), parent, name, false)
    }

    /// Like [`Fs::remove_tree`], with rights that the kernel has verified.
    pub fn remove_verified(&self, shown: &VerifiedRights, parent: Ino, name: &OsStr) -> Result<RemoveReport> {
        self.remove_by(Rights::Verified(shown), parent, name, false)
    }

    /// Like [`Fs::discard`], with rights that the kernel has verified.
    pub fn discard_verified(
        &self,
        shown: &VerifiedRights,
        parent: Ino,
        name: &OsStr,
    ) -> Result<RemoveReport> {
        self.remove_by(Rights::Verified(shown), parent, name, true)
    }

    /// `fork`: it must be one.
    pub(crate) fn remove_by(
        &self,
        rights: Rights<'_>,
        parent: Ino,
        name: &OsStr,
        fork: bool,
    ) -> Result<RemoveReport> {
        self.counting_for(|counts| self.remove_once(counts, rights, parent, name, fork))
    }

    fn remove_once(
        &self,
        counts: &mut Counts,
        rights: Rights<'_>,
        parent: Ino,
        name: &OsStr,
        fork: bool,
    ) -> Result<RemoveReport> {
        let start = Instant::now();
        self.writable()?;
        let bytes = check_name(name)?;
        let dir = self.dir(parent)?;
        let (at, names) = self.hold_names(&dir, true)?;
        let end = End::new(&at, bytes)?;
        let top = self.child(&at, bytes)?.ok_or_else(|| Error::NotFound(show(name)))?;
        rights.may_remove(&dir, &top)?;
        if fork && self.fork_at(&path::contents(&at.contents, bytes)?)?.is_none() {
            let text = format!("{}: not a fork; pando rm -r removes any tree", show(name));
            return Err(Error::Invalid(text));
        }
        let own = lock::exclusive(&top.tree);
        let now = self.now();
        let touched = Change::modified(now);
        let mut batch = Batch::new();
        let mut bill = Bill::default();
        let (above, gone) = self.going(counts, &end, &top)?;
        bill.subtract(above, gone);
        let removal = self.remove_all(rights, &mut batch, &end, (&top, &Staying::new()), now)?;
        Self::change_dir(&mut batch, &at, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        reserved.paid();
        dir.change(|s| touched.apply(&mut s.record));
        self.removed_all(&removal);
        self.positions.removed(&self.db, bytes);
        drop((own, names, at));
        let orphaned = removal.orphaned();
        if let Some(names) = removal.names {
            self.count_lost(names);
        }
        Ok(RemoveReport {
            replaced: vec![top.ino],
            orphaned,
            entries: vec![(dir.ino, name.to_os_string())],
            micros: start.elapsed().as_micros() as u64,
        })
    }
}
