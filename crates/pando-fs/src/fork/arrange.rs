//! Renames in a merge: renames of the fork are made in the target as well, unless they conflict with others.
//!
//! Guarantee: a plan without conflicts can be made. No two entries get one path, none gets a path that is taken or
//! lies in a removed directory, and no two directories end up in each other.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::{
    diff::{
        change::{Aspects, shown},
        side::{Identity, contents_of},
    },
    error::Result,
    fork::{
        follow::{in_dir, upwards},
        planner::Planner,
        report::{MergeChange, MergeConflict, MergeKind},
        step::{Dirs, EntryPaths, Plan, Step, kind},
    },
    path::{self, system},
    record::Stored,
    types::FileKind,
};

/// Where each directory that moves goes, by its contents prefix before the merge.
#[derive(Default)]
pub(crate) struct Moved {
    dirs: HashMap<Vec<u8>, (Vec<u8>, Vec<u8>)>,
}

impl Moved {
    pub(crate) fn of(steps: &[Step]) -> Self {
        let dirs = steps.iter().filter_map(|step| match step {
            Step::Move { from, dir, name } => Some((contents_of(from), (dir.clone(), name.clone()))),
            _ => None,
        });
        Self { dirs: dirs.collect() }
    }

    /// Where the entry that has, or would have, this contents prefix goes: the contents prefix of a directory, and a
    /// name.
    pub(crate) fn target(&self, contents: &[u8]) -> Option<(&[u8], &[u8])> {
        self.dirs.get(contents).map(|(dir, name)| (&dir[..], &name[..]))
    }

    /// The directory that is moved, and that `dir` is, or lies in.
    pub(crate) fn around<'a>(&self, dir: &'a [u8]) -> Option<&'a [u8]> {
        upwards(dir).find(|above| self.dirs.contains_key(*above))
    }

    /// The contents prefix of a directory after all moves; any prefix if directories would lie in each other.
    pub(crate) fn after(&self, dir: &[u8]) -> Vec<u8> {
        let (mut at, mut left) = (dir.to_vec(), self.dirs.len());
        let mut behind: Vec<Vec<u8>> = Vec::new();
        while let Some(around) = self.around(&at).filter(|_| left > 0) {
            let Some((to, name)) = self.dirs.get(around) else { break };
            behind.push(at.get(around.len()..).unwrap_or_default().to_vec());
            behind.push(path::contents(b"", name).unwrap_or_default());
            (at, left) = (to.clone(), left - 1);
        }
        behind.into_iter().rev().fold(at, |at, part| [at, part].concat())
    }

    /// Whether a directory that is moved would come to lie in itself.
    fn is_circle(&self, moved: &[u8]) -> bool {
        let mut at = moved;
        for _ in 0..=self.dirs.len() {
            let Some((to, _)) = self.dirs.get(at) else { return false };
            match self.around(to) {
                None => return false,
                Some(around) if around == moved => return true,
                Some(around) => match self.dirs.get_key_value(around) {
                    Some((around, _)) => at = around,
                    None => return false,
                },
            }
        }
        false
    }
}

impl Planner<'_> {
    /// The fork has moved an entry from `a` of the origin to `b`; the directory around `b` has the contents prefix
    /// `dir` on this side.
    pub(crate) fn moved(
        &mut self,
        (a, id): (&[u8], Identity),
        (b, theirs): (&[u8], &Bytes),
        dir: Vec<u8>,
    ) -> Result<()> {
        let here = self.follow.here(self.trees, id, a)?;
        let want = in_dir(&dir, b);
        let paths = |ours: &[u8]| EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: ours.to_vec() };
        let (Some(entry), Some(ours)) = (here.entry, here.value) else {
            let paths = paths(&want);
            if self.conflict(&paths, MergeConflict::RemovedHere, Aspects::default())? {
                self.replace(&paths, theirs)?;
            }
            self.rest_of(&paths, id.1);
            return Ok(());
        };
        let paths = paths(&entry);
        if kind(&entry, &ours)? != id.1 {
            if self.conflict(&paths, MergeConflict::Kind, Aspects::default())? {
                self.remove(&entry, &ours)?;
                self.replace(&EntryPaths { ours: want, ..paths.clone() }, theirs)?;
            }
            self.rest_of(&paths, id.1);
            return Ok(());
        }
        let stays = entry == want
            || here.moved && !self.conflict(&paths, MergeConflict::Renamed, Aspects::default())?;
        let (Some(base), record) = (self.trees.base.value(a)?, self.trees.ours.found(&entry, &ours)?) else {
            return Ok(());
        };
        if !stays {
            if self.cannot_move((&entry, &ours), &dir, id)? {
                self.undone.insert(id);
                return Ok(());
            }
            self.tell(&paths, MergeKind::Renamed, Aspects::default())?;
            self.owned(&entry, record.record.uid)?;
            self.may_change_entries(&entry)?;
            self.may_change_entries(&want)?;
            self.hides_no_snapshots(&want)?;
            self.fork_stays(&entry, "moved")?;
            let name = in_dir(b"", b);
            let name = name.get(1..name.len().saturating_sub(1)).unwrap_or_default().to_vec();
            self.add_step(Step::Move { from: entry, dir, name })?;
        }
        let trees = &mut *self.trees;
        let (x, y) = (trees.base.found(a, &base)?, trees.theirs.found(b, theirs)?);
        self.merge_found(&paths, Some(&x), &y, &record)?;
        if id.1 == FileKind::Directory {
            self.jobs.push_back(Dirs { base: contents_of(a), theirs: contents_of(b), new: None });
        }
        Ok(())
    }

    /// Whether an entry cannot be moved as it is: across the border of a clone, with names of linked files in it, or
    /// with forks in it, whose origins would be removed with a directory around.
    fn cannot_move(&mut self, (entry, value): (&[u8], &Bytes), dir: &[u8], id: Identity) -> Result<bool> {
        let root = |planner: &mut Self, dir: &[u8]| -> Result<Vec<u8>> {
            Ok(planner.trees.ours.level(dir)?.map(|level| level.root.clone()).unwrap_or_default())
        };
        let from = root(self, path::directory_of(entry))?;
        if from != root(self, dir)? {
            return Ok(true);
        }
        if id.1 != FileKind::Directory {
            // The file may have got its second name on this side.
            return Ok(matches!(Stored::decode(value), Ok(Stored::Name(_))));
        }
        let inside = contents_of(entry);
        let names = self.links.then(|| path::meta(&self.trees.ours.link_name(&from, &inside)));
        let forks = system::fork(&[&self.into[..], &inside].concat());
        for prefix in names.iter().chain([&forks]) {
            if self.trees.ours.view.prefix(prefix).next().transpose()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The finished plan. Moves that would collide become conflicts that no preferred side settles.
    pub(crate) fn arranged(mut self) -> Result<Plan> {
        let moved = Moved::of(&self.steps);
        let going = self.steps.iter().filter_map(|step| match step {
            Step::Remove(entry) => Some(entry.clone()),
            Step::Move { from, .. } => Some(from.clone()),
            _ => None,
        });
        let going: HashSet<Vec<u8>> = going.collect();
        let removed = self.steps.iter().filter_map(|step| match step {
            Step::Remove(entry) => Some(contents_of(entry)),
            _ => None,
        });
        let removed: HashSet<Vec<u8>> = removed.collect();
        let mut conflicts = Vec::new();
        for step in &self.steps {
            let (dir, entry, from) = match step {
                Step::Take { from, dir, .. } => (dir, in_dir(dir, from), None),
                Step::Move { from, dir, name } => (dir, path::entry(dir, name)?, Some(from)),
                _ => continue,
            };
            let goes = upwards(dir).find(|above| removed.contains(*above) || moved.dirs.contains_key(*above));
            let taken = !going.contains(&entry) && self.trees.ours.value(&entry)?.is_some();
            if taken || goes.is_some_and(|above| removed.contains(above)) {
                conflicts.push((from.unwrap_or(&entry).clone(), MergeConflict::Taken));
            } else if let Some(from) = from
                && moved.is_circle(&contents_of(from))
            {
                conflicts.push((from.clone(), MergeConflict::Circle));
            }
        }
        // An entry that this side has moved into a directory that is removed would be lost.
        let goes = |dir: &[u8]| removed.contains(dir) || moved.dirs.contains_key(dir);
        for (a, entry) in if removed.is_empty() { Vec::new() } else { self.follow.all_here() } {
            let around = upwards(path::directory_of(&entry)).find(|above| goes(above));
            if !goes(&contents_of(&entry))
                && around.is_some_and(|above| removed.contains(above))
                && !self.follow.goes_there(self.trees, &a)?
            {
                conflicts.push((entry, MergeConflict::MovedInto));
            }
        }
        let planned =
            std::mem::take(&mut self.planned).into_iter().map(|one| (one.kind, one.ours, one.aspects));
        let conflicts =
            conflicts.into_iter().map(|(entry, why)| (MergeKind::Conflict(why), entry, Aspects(0)));
        let all: Vec<_> = planned.chain(conflicts).collect();
        let mut targets = HashMap::new();
        for step in &self.steps {
            if let Step::Move { from, dir, name } = step {
                targets.insert(from.clone(), path::entry(&moved.after(dir), name)?);
            }
        }
        let change = |(kind, ours, aspects): (MergeKind, Vec<u8>, Aspects)| {
            // Conflicts are reported at present paths, the rest at paths after the merge.
            let stays = matches!(kind, MergeKind::Conflict(_)) || ours.is_empty();
            let to = match targets.get(&ours) {
                _ if stays => ours.clone(),
                // An entry that is removed, or comes to the path, is another one than the entry that moves away.
                Some(to) if !matches!(kind, MergeKind::Removed | MergeKind::Added) => to.clone(),
                _ => in_dir(&moved.after(path::directory_of(&ours)), &ours),
            };
            let from = (kind == MergeKind::Renamed).then(|| shown(&ours));
            MergeChange { kind, path: shown(&to), from, aspects }
        };
        let changes = all.into_iter().map(change).collect();
        Ok(Plan { steps: std::mem::take(&mut self.steps), changes, brought: 0 })
    }
}
