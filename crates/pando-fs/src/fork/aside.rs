//! Renames of the fork into directories that are new in it. A merge does not follow them: the entry is added with the
//! new directory, or not at all.
//!
//! Guarantees: an entry that the fork has moved in this way is removed here only if it is added at its new path, also
//! if this side is preferred; an entry that was deleted here does not come back without a conflict.

use std::collections::HashSet;

use bytes::Bytes;

use crate::{
    diff::{
        change::Aspects,
        side::{Identity, contents_of, identity},
    },
    error::Result,
    fork::{
        follow::{in_dir, upwards},
        planner::Planner,
        report::MergeConflict,
        step::{EntryPaths, Occupant, differ, kind, without_times},
    },
    path,
    types::FileKind,
};

impl Planner<'_> {
    /// An entry that the fork has moved into a directory that is taken, and that this side has deleted, is a conflict;
    /// it is left out unless the fork is preferred.
    pub(crate) fn leave_deleted(&mut self, paths: &EntryPaths, without: &mut Vec<Vec<u8>>) -> Result<()> {
        let (taken, ours) = (contents_of(&paths.theirs), contents_of(&paths.ours));
        let mut left: HashSet<Vec<u8>> = HashSet::new();
        for (id, base, theirs) in self.follow.aside_below(false, &taken) {
            self.merging.bounds.go_on()?;
            let is_below = upwards(path::directory_of(&theirs)).any(|dir| left.contains(dir));
            if is_below || !self.follow.deleted_here(self.trees, id, &base)? {
                continue;
            }
            let inside = theirs.get(taken.len()..).unwrap_or_default().to_vec();
            left.insert(contents_of(&theirs));
            let paths = EntryPaths { base, ours: [&ours[..], &inside].concat(), theirs };
            if !self.conflict(&paths, MergeConflict::RemovedHere, Aspects::default())? {
                without.push(inside);
            }
        }
        Ok(())
    }

    /// Whether an entry of the origin that this side still has, or something in it, is at another path of the fork than
    /// `but`, and is not taken from there if this side is preferred.
    pub(crate) fn is_left_there(&mut self, id: Identity, entry: &[u8], but: &[u8]) -> Result<bool> {
        if !self.follow.has_aside_there() {
            return Ok(false);
        }
        let place = self.follow.ever_there(self.trees, id, entry)?;
        if place != but && self.is_there(&place, id)? && !self.will_be_taken(&place)? {
            return Ok(true);
        }
        if id.1 != FileKind::Directory {
            return Ok(false);
        }
        for (id, base, theirs) in self.follow.aside_below(true, &contents_of(entry)) {
            self.merging.bounds.go_on()?;
            if self.follow.here(self.trees, id, &base)?.value.is_some() && !self.will_be_taken(&theirs)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_there(&self, entry: &[u8], id: Identity) -> Result<bool> {
        let value = self.trees.theirs.value(entry)?;
        Ok(value.map(|value| identity(entry, &value)).transpose()? == Some(id))
    }

    /// Whether this side has deleted the entry that the fork has moved to `entry`.
    fn is_deleted_here(&mut self, entry: &[u8]) -> Result<bool> {
        let Some(value) = self.trees.theirs.value(entry)? else { return Ok(false) };
        let id = identity(entry, &value)?;
        match self.follow.source_aside(id, entry) {
            Some(base) => self.follow.deleted_here(self.trees, id, &base),
            None => Ok(false),
        }
    }

    /// Whether the entry that the fork has moved to `to` is taken from there if this side is preferred: all directories
    /// around it are here or are taken, and its path is free.
    fn will_be_taken(&mut self, to: &[u8]) -> Result<bool> {
        let dir = path::directory_of(to);
        // The contents prefix of the directory here; none if the directory is taken with one around it.
        let mut ours = Some(Vec::new());
        // The contents prefix that it had in the origin; none if it is new.
        let mut base = Some(Vec::new());
        let mut at = 0;
        while let Some((entry, contents)) = path::next_level(dir, at) {
            at = contents.len();
            let above = base;
            base = self.follow.dir_in_origin(self.trees, contents)?;
            ours = match (&base, ours) {
                (Some(base), _) => match self.follow.dir_here(self.trees, base)? {
                    Some(here) => Some(here),
                    None => return Ok(false),
                },
                (None, Some(around)) => {
                    let (place, was) = (in_dir(&around, &entry), above.map(|above| in_dir(&above, &entry)));
                    let value = match self.occupant(&place, &[])? {
                        Occupant::Nothing => None,
                        Occupant::Its(value) => Some(value),
                        // An entry that is of another kind in the fork.
                        Occupant::Other => match self.trees.ours.value(&place)? {
                            Some(value) if kind(&place, &value)? != FileKind::Directory => {
                                let Some(was) = was else { return Ok(false) };
                                match self.makes_way(was, &entry, &place, &value)? {
                                    true => None,
                                    false => return Ok(false),
                                }
                            }
                            value => value,
                        },
                    };
                    match value {
                        None if self.is_deleted_here(&entry)? => return Ok(false),
                        None => None,
                        Some(value) if kind(&place, &value)? == FileKind::Directory => {
                            Some(contents_of(&place))
                        }
                        Some(_) => return Ok(false),
                    }
                }
                (None, None) if self.is_deleted_here(&entry)? => return Ok(false),
                (None, None) => None,
            };
        }
        let Some(around) = ours else { return Ok(true) };
        let place = in_dir(&around, to);
        let Occupant::Its(value) = self.occupant(&place, &[])? else { return Ok(true) };
        let Some(theirs) = self.trees.theirs.value(to)? else { return Ok(true) };
        let trees = &mut *self.trees;
        let (t, o) = (trees.theirs.found(to, &theirs)?, trees.ours.found(&place, &value)?);
        if t.record.kind != o.record.kind {
            return Ok(false);
        }
        // The entries of a directory are merged one by one.
        let same = || Ok(without_times(differ(&trees.theirs, &t, &trees.ours, &o)?).is_empty());
        if t.record.kind == FileKind::Directory { Ok(true) } else { same() }
    }

    /// Whether a file here is the one of the origin, and is removed because the fork has a directory at its path.
    fn makes_way(&mut self, base: Vec<u8>, theirs: &[u8], ours: &[u8], value: &Bytes) -> Result<bool> {
        let Some(was) = self.trees.base.value(&base)? else { return Ok(false) };
        let here = self.follow.here(self.trees, identity(&base, &was)?, &base)?;
        if here.moved || here.entry.as_deref() != Some(ours) {
            return Ok(false);
        }
        let paths = EntryPaths { base, theirs: theirs.to_vec(), ours: ours.to_vec() };
        self.is_as_it_was(&paths, &was, value)
    }
}
