//! The steps by which a merge removes, takes or replaces what is at one path.
//!
//! Guarantees that each is one that the user may make (`allowed`), that what the other side has moved out of a
//! directory, or has deleted in it, does not come with that directory, and that nothing comes to a name under which
//! snapshots are seen.

use bytes::Bytes;

use crate::{
    diff::{change::Aspects, side::contents_of},
    error::Result,
    fork::{
        coming::may_bring,
        planner::Planner,
        report::MergeConflict,
        step::{Dirs, EntryPaths, Occupant, Step},
    },
    path,
    rights::directories_in,
    types::FileKind,
};

impl Planner<'_> {
    pub(crate) fn remove(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let record = self.trees.ours.found(entry, value)?.record;
        self.owned(entry, record.uid)?;
        self.may_change_entries(entry)?;
        if record.kind == FileKind::Directory {
            self.fork_stays(entry, "removed")?;
            if self.merging.owner.is_some() {
                let contents = self.trees.ours.place(&contents_of(entry));
                directories_in(&self.trees.ours.view, &contents, |inside, dir| {
                    self.owned(&[entry, inside].concat(), dir.uid)
                })?;
            }
        }
        self.add_step(Step::Remove(entry.to_vec()))
    }

    /// Takes an entry of the fork to a free path.
    pub(crate) fn take(&mut self, paths: &EntryPaths, value: &Bytes) -> Result<()> {
        let record = self.trees.theirs.found(&paths.theirs, value)?.record;
        self.owned(&paths.ours, record.uid)?;
        self.may_change_entries(&paths.ours)?;
        self.hides_no_snapshots(&paths.ours)?;
        let without = match record.kind {
            FileKind::Directory => self.left_out(paths)?,
            _ => Vec::new(),
        };
        let dir = path::directory_of(&paths.ours).to_vec();
        self.add_step(Step::Take { from: paths.theirs.clone(), dir, without })
    }

    /// EEXIST if an entry would take the name under which snapshots of its directory are seen.
    pub(crate) fn hides_no_snapshots(&self, entry: &[u8]) -> Result<()> {
        let view = &self.trees.ours.view;
        may_bring(&self.into, entry, |key| Ok(view.get(key)?.is_some()))
    }

    /// Entries in a directory that is taken from the fork which this side has moved out of it, and so has elsewhere:
    /// paths from the directory. If the fork has renamed such an entry in the directory as well, that is a conflict,
    /// and the entry is merged where it is here.
    fn left_out(&mut self, paths: &EntryPaths) -> Result<Vec<Vec<u8>>> {
        let (was, taken) = (contents_of(&paths.base), contents_of(&paths.theirs));
        let mut without = Vec::new();
        for (a, id) in self.follow.moved_out(&was) {
            let Some(b) = self.follow.there(self.trees, id, &a)? else { continue };
            let Some(inside) = b.strip_prefix(&taken[..]) else { continue };
            without.push(inside.to_vec());
            if !self.follow.leaves(id, &a) {
                continue; // it is merged where it comes in the order of keys
            }
            let here = self.follow.here(self.trees, id, &a)?;
            let values = (self.trees.base.value(&a)?, self.trees.theirs.value(&b)?, here.value);
            let (Some(base), Some(theirs), Some(ours), Some(entry)) =
                (values.0, values.1, values.2, here.entry)
            else {
                continue;
            };
            let paths = EntryPaths { base: a, theirs: b, ours: entry };
            self.conflict(&paths, MergeConflict::Renamed, Aspects::default())?;
            let trees = &mut *self.trees;
            let (x, t) = (trees.base.found(&paths.base, &base)?, trees.theirs.found(&paths.theirs, &theirs)?);
            let o = trees.ours.found(&paths.ours, &ours)?;
            self.merge_found(&paths, Some(&x), &t, &o)?;
            if id.1 == FileKind::Directory {
                let (base, theirs) = (contents_of(&paths.base), contents_of(&paths.theirs));
                self.jobs.push_back(Dirs { base, theirs, new: None });
            }
        }
        self.leave_deleted(paths, &mut without)?;
        Ok(without)
    }

    /// Replaces what occupies a path by the entry of the fork.
    pub(crate) fn replace(&mut self, paths: &EntryPaths, theirs: &Bytes) -> Result<()> {
        match self.occupant(&paths.ours, &paths.base)? {
            Occupant::Nothing => {}
            Occupant::Its(ours) => self.remove(&paths.ours, &ours)?,
            Occupant::Other => {
                return self.conflict(paths, MergeConflict::Taken, Aspects::default()).map(drop);
            }
        }
        self.take(paths, theirs)
    }
}
