//! Permissions in merges: what the caller may see, and what that user may change at a path.
//!
//! Guarantees for a user other than root: the report has no name from a directory that the user could not search on
//! one of the sides; nothing that belongs to another user is taken, moved, changed or removed.

use crate::{
    diff::{
        change::{Aspects, shown},
        side::contents_of,
    },
    error::{Error, Result},
    fork::{
        planner::Planner,
        report::{MergeConflict, MergeKind, MergeSide},
        step::{Dirs, EntryPaths, Occupant, PlannedChange, Step, kind},
    },
    mode::S_IXOTH,
    path,
    types::FileKind,
};

impl Planner<'_> {
    pub(crate) fn tell(&mut self, paths: &EntryPaths, kind: MergeKind, aspects: Aspects) -> Result<()> {
        self.may_see(paths)?;
        self.merging.bounds.plan_grows(paths.ours.len())?;
        self.planned.push(PlannedChange { kind, ours: paths.ours.clone(), aspects });
        Ok(())
    }

    pub(crate) fn add_step(&mut self, step: Step) -> Result<()> {
        self.merging.bounds.plan_grows(step.path_bytes())?;
        self.steps.push(step);
        Ok(())
    }

    /// Error unless each directory above an entry belongs to the owner or may be searched by all: names in other
    /// directories are not told. The error names the topmost one.
    fn may_see(&mut self, paths: &EntryPaths) -> Result<()> {
        let Some(owner) = self.merging.owner else { return Ok(()) };
        let trees = &mut *self.trees;
        let sides = [
            (&mut trees.base, &paths.base),
            (&mut trees.theirs, &paths.theirs),
            (&mut trees.ours, &paths.ours),
        ];
        for (side, entry) in sides {
            let dir = path::directory_of(entry).to_vec();
            let mut from = 0;
            while let Some((above, contents)) = path::next_level(&dir, from) {
                from = contents.len();
                let Some(value) = side.value(&above)? else { continue };
                if kind(&above, &value)? != FileKind::Directory {
                    continue;
                }
                let record = side.found(&above, &value)?.record;
                if record.uid != owner && record.perm & S_IXOTH == 0 {
                    return Err(Error::NotPermitted {
                        name: shown(&above).to_string_lossy().into_owned(),
                        why: "belongs to another user, and something in it differs: only root may merge that",
                    });
                }
            }
        }
        Ok(())
    }

    /// Notes a conflict; true if the fork's side is to be taken.
    pub(crate) fn conflict(
        &mut self,
        paths: &EntryPaths,
        why: MergeConflict,
        aspects: Aspects,
    ) -> Result<bool> {
        self.tell(paths, MergeKind::Conflict(why), aspects)?;
        Ok(self.merging.options.prefer == Some(MergeSide::Theirs))
    }

    pub(crate) fn owned(&self, entry: &[u8], uid: u32) -> Result<()> {
        match self.merging.owner.is_none_or(|owner| owner == uid) {
            true => Ok(()),
            false => Err(Error::NotPermitted {
                name: shown(entry).to_string_lossy().into_owned(),
                why: "belongs to another user: only root, or who owns all that a merge takes, changes and removes, \
                      and the directories around it, may merge",
            }),
        }
    }

    /// Error unless entries of the directory around this one may be changed.
    pub(crate) fn may_change_entries(&mut self, entry: &[u8]) -> Result<()> {
        if self.merging.owner.is_none() {
            return Ok(());
        }
        let dir = path::directory_of(entry).to_vec();
        let uid = match dir.is_empty() {
            true => self.trees.ours.top()?.record.uid,
            false => {
                let above = path::entry_of_contents(&dir).unwrap_or_default();
                let Some(value) = self.trees.ours.value(&above)? else { return Ok(()) };
                self.trees.ours.found(&above, &value)?.record.uid
            }
        };
        self.owned(entry, uid)
    }

    /// Error unless the user may replace files by others, if the plan does so.
    pub(crate) fn may_renew(&mut self) -> Result<()> {
        for to in self.renewed() {
            self.may_change_entries(&to)?;
        }
        Ok(())
    }

    /// Error if the fork lies in the directory `entry`.
    pub(crate) fn fork_stays(&self, entry: &[u8], what: &str) -> Result<()> {
        match self.fork.starts_with(&[&self.into[..], &contents_of(entry)].concat()) {
            true => {
                let text = format!("{}: the fork lies in it, which would be {what}", shown(entry).display());
                Err(Error::Invalid(text))
            }
            false => Ok(()),
        }
    }

    /// A missing directory of the origin is reported as a whole; entries that were moved out of it are still merged.
    pub(crate) fn rest_of(&mut self, paths: &EntryPaths, kind: FileKind) {
        if kind == FileKind::Directory {
            self.missed.insert(paths.base.clone());
            let (base, theirs) = (contents_of(&paths.base), contents_of(&paths.theirs));
            self.jobs.push_back(Dirs { base, theirs, new: None });
        }
    }

    /// What occupies `entry` on this side; `own` is the path in the origin of an entry that may be replaced.
    pub(crate) fn occupant(&mut self, entry: &[u8], own: &[u8]) -> Result<Occupant> {
        let Some(value) = self.trees.ours.value(entry)? else { return Ok(Occupant::Nothing) };
        let Some(origin) = self.follow.origin_of(self.trees, entry, &value)? else {
            return Ok(Occupant::Its(value));
        };
        if origin == own {
            return Ok(Occupant::Its(value));
        }
        Ok(match self.follow.goes_there(self.trees, &origin)? {
            true => Occupant::Nothing,
            false => Occupant::Other,
        })
    }
}
