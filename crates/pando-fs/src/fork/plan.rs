//! Plans a merge: compares each change of a fork since its origin with the state of the directory to merge into.
//!
//! Walks the changes of the fork in the order of keys, and reads the other trees only at the same entries, wherever
//! they are by now (`follow`); where the fork removed a directory, also what the other side changed in it. A tree that
//! only the fork has is taken as a whole. Guarantees that no step is planned for an entry that both sides changed
//! differently, unless a side is preferred. Changes nothing.

use bytes::Bytes;

use crate::{
    diff::{
        change::Aspects,
        links::LinkScan,
        side::{DirPair, Identity, contents_of, identity},
        stream::{DiffStream, Spot},
    },
    error::Result,
    fork::{
        aspects::CONTENT_AND_SIZE,
        follow::{Follow, in_dir, upwards},
        planner::Planner,
        report::{MergeConflict, MergeKind},
        step::{Dirs, EntryPaths, Occupant, Plan, differ, kind, without_times},
    },
    path,
    types::FileKind,
};

impl Planner<'_> {
    /// The plan. Costs what a difference of the origin and the fork costs, and one of the records alone of the origin
    /// and this side.
    pub(crate) fn plan(mut self) -> Result<Plan> {
        loop {
            self.merging.bounds.plan_begins();
            self.follow =
                Follow::find(self.trees, &self.undone, self.links, &|| self.merging.bounds.go_on())?;
            let undone = self.undone.len();
            let tops = (self.trees.base.top()?, self.trees.theirs.top()?, self.trees.ours.top()?);
            self.merge_found(&EntryPaths::default(), Some(&tops.0), &tops.1, &tops.2)?;
            self.jobs.push_back(Dirs::default());
            while let Some(dirs) = self.jobs.pop_front() {
                self.walk(&dirs)?;
            }
            if self.undone.len() == undone {
                self.decide_linked()?;
                self.may_renew()?;
                return self.arranged();
            }
            // Again, without these renames.
            self.steps.clear();
            self.planned.clear();
            self.linked.clear();
            self.missed.clear();
        }
    }

    fn walk(&mut self, dirs: &Dirs) -> Result<()> {
        let t = &self.trees;
        let before = match dirs.new {
            None => t.base.place(&dirs.base),
            Some(_) => path::snapshot(path::SNAPSHOTS_END),
        };
        let places = (before, t.theirs.place(&dirs.theirs));
        let mut stream = DiffStream::new(&t.base.view, (&places.0, &places.1), true)?;
        let mut roots = vec![Vec::new()];
        while let Some(spot) = stream.next()? {
            self.merging.bounds.go_on()?;
            match spot {
                Spot::Entry { path, .. } => self.spot(&mut stream, dirs, &path)?,
                Spot::Links(root) if !root.is_empty() => roots.push(root.to_vec()),
                Spot::Links(_) => {}
            }
        }
        if self.links && dirs.new.is_none() {
            for root in roots {
                self.linked(dirs, &root)?;
            }
        }
        Ok(())
    }

    /// Merges linked files that the fork has changed below a directory while their names stay the same.
    fn linked(&mut self, dirs: &Dirs, root: &[u8]) -> Result<()> {
        let pair = DirPair { before: [&dirs.base, root].concat(), after: [&dirs.theirs, root].concat() };
        let trees = &mut *self.trees;
        let Some(mut scan) = LinkScan::new(pair.clone(), &mut trees.base, &mut trees.theirs)? else {
            return Ok(());
        };
        let mut names = Vec::new();
        while let Some((inside, value)) = scan.next(&self.trees.base)? {
            let (base, theirs) = ([&pair.before[..], &inside].concat(), [&pair.after[..], &inside].concat());
            if self.trees.theirs.value(&theirs)?.is_some_and(|new| new == value) {
                names.push((base, theirs, value));
            }
        }
        for (base, theirs, value) in names {
            // The directories around need not be those of the origin.
            if self.follow.there(self.trees, identity(&base, &value)?, &base)?.as_ref() == Some(&theirs) {
                self.on_both(dirs, (&base, &value), (&theirs, &value))?;
            }
        }
        Ok(())
    }

    /// Reports a conflict at the topmost directory around an entry of the origin that this side does not have: nothing
    /// in it can be merged.
    fn lost(&mut self, dirs: &Dirs, entry: &[u8]) -> Result<()> {
        let dir = path::directory_of(entry);
        let is_missed =
            |above: &[u8]| path::entry_of_contents(above).is_some_and(|e| self.missed.contains(&e));
        if upwards(dir).any(is_missed) {
            return Ok(());
        }
        let mut from = dirs.base.len();
        while let Some((base, contents)) = path::next_level(dir, from) {
            if self.follow.dir_here(self.trees, contents)?.is_some() {
                from = contents.len();
                continue;
            }
            // Other things may lie in it.
            if !self.missed.insert(base.clone()) {
                return Ok(());
            }
            let around = self.follow.dir_here(self.trees, path::directory_of(&base))?.unwrap_or_default();
            let ours = in_dir(&around, &base);
            let theirs = [&dirs.theirs, base.get(dirs.base.len()..).unwrap_or_default()].concat();
            let why = match self.trees.ours.value(&ours)? {
                Some(_) => MergeConflict::Kind,
                None => MergeConflict::RemovedHere,
            };
            let paths = EntryPaths { base, theirs, ours };
            if self.conflict(&paths, why, Aspects::default())?
                && let Some(value) = self.trees.theirs.value(&paths.theirs)?
            {
                self.replace(&paths, &value)?;
            }
            return Ok(());
        }
        Ok(())
    }

    fn spot(&mut self, stream: &mut DiffStream, dirs: &Dirs, path: &[u8]) -> Result<()> {
        let (a, b) = ([&dirs.base, path].concat(), [&dirs.theirs, path].concat());
        let base = if dirs.new.is_some() { None } else { self.trees.base.value(&a)? };
        let id = |entry: &[u8], value: &Option<Bytes>| {
            value.as_ref().map(|value| identity(entry, value)).transpose()
        };
        let theirs = self.trees.theirs.value(&b)?;
        let (x, y) = (id(&a, &base)?, id(&b, &theirs)?);
        let is_dir = |id: Option<Identity>| id.is_some_and(|id| id.1 == FileKind::Directory);
        match (&base, &theirs) {
            (Some(base), Some(theirs)) => {
                let leaves = x != y && x.is_some_and(|x| self.follow.leaves(x, &a));
                let comes = x != y && y.is_some_and(|y| self.follow.source(y, &b).is_some());
                let one = !leaves && !comes;
                if one && x.map(|x| x.1) == y.map(|y| y.1) {
                    return self.on_both(dirs, (&a, base), (&b, theirs));
                }
                if is_dir(x) || is_dir(y) {
                    stream.skip(&contents_of(path));
                }
                if one {
                    return self.turned(dirs, (&a, base), (&b, theirs));
                }
                if !leaves {
                    self.removed((&a, base), &b)?;
                }
                self.came(dirs, &a, (&b, theirs))
            }
            (Some(base), None) => {
                if is_dir(x) {
                    stream.skip(&contents_of(path));
                }
                match x.is_some_and(|x| self.follow.leaves(x, &a)) {
                    true => Ok(()), // it is merged where it has come to
                    false => self.removed((&a, base), &b),
                }
            }
            (None, Some(theirs)) => {
                if is_dir(y) {
                    stream.skip(&contents_of(path));
                }
                self.came(dirs, &a, (&b, theirs))
            }
            (None, None) => Ok(()),
        }
    }

    /// The fork has a new entry at `b`; the same path in the origin is `a`.
    fn came(&mut self, dirs: &Dirs, a: &[u8], (b, theirs): (&[u8], &Bytes)) -> Result<()> {
        let inside = a.get(dirs.base.len()..).unwrap_or_default();
        let dir = match &dirs.new {
            Some(new) => Some([new, path::directory_of(inside)].concat()),
            None => self.follow.dir_here(self.trees, path::directory_of(a))?,
        };
        let Some(dir) = dir else { return self.lost(dirs, a) };
        let id = identity(b, theirs)?;
        match self.follow.source(id, b) {
            Some(from) => self.moved((&from, id), (b, theirs), dir),
            None => {
                let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: in_dir(&dir, b) };
                self.added(&paths, theirs)
            }
        }
    }

    /// The fork has removed it.
    fn removed(&mut self, (a, base): (&[u8], &Bytes), b: &[u8]) -> Result<()> {
        let id = identity(a, base)?;
        let here = self.follow.here(self.trees, id, a)?;
        let (Some(entry), Some(ours)) = (here.entry, here.value) else {
            return match (self.follow.there_aside(id, a), self.follow.here_aside(id, a)) {
                (None, Some(ours)) => self.removed_elsewhere(a, b, ours),
                _ => Ok(()),
            };
        };
        let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        if !here.moved && self.is_as_it_was(&paths, base, &ours)? && !self.is_left_there(id, a, b)? {
            self.tell(&paths, MergeKind::Removed, Aspects::default())?;
            return self.remove(&paths.ours, &ours);
        }
        match self.conflict(&paths, MergeConflict::RemovedThere, Aspects::default())? {
            true => self.remove(&paths.ours, &ours),
            false => Ok(()),
        }
    }

    /// The fork has removed an entry that this side has moved by a rename that is not followed.
    fn removed_elsewhere(&mut self, a: &[u8], b: &[u8], ours: Vec<u8>) -> Result<()> {
        let Some(value) = self.trees.ours.value(&ours)? else { return Ok(()) };
        // On this side another entry of the origin is there, which the fork has not removed.
        if self.follow.origin_of(self.trees, &ours, &value)?.is_some() {
            return Ok(());
        }
        let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours };
        match self.conflict(&paths, MergeConflict::RemovedThere, Aspects::default())? {
            true => self.remove(&paths.ours, &value),
            false => Ok(()),
        }
    }

    /// The fork has made it.
    fn added(&mut self, paths: &EntryPaths, theirs: &Bytes) -> Result<()> {
        match self.occupant(&paths.ours, &[])? {
            Occupant::Nothing => {
                let id = identity(&paths.theirs, theirs)?;
                if let Some(base) = self.follow.source_aside(id, &paths.theirs)
                    && self.follow.deleted_here(self.trees, id, &base)?
                {
                    // The entry is not new: the fork has moved it there, and this side has deleted it.
                    let paths = EntryPaths { base, ..paths.clone() };
                    return match self.conflict(&paths, MergeConflict::RemovedHere, Aspects::default())? {
                        true => self.replace(&paths, theirs),
                        false => Ok(()),
                    };
                }
                self.tell(paths, MergeKind::Added, Aspects::default())?;
                self.take(paths, theirs)
            }
            Occupant::Its(ours) => self.both_new(paths, theirs, &ours),
            Occupant::Other => self.conflict(paths, MergeConflict::Taken, Aspects::default()).map(drop),
        }
    }

    /// Both sides have an entry there, and the origin has none of this kind.
    fn both_new(&mut self, paths: &EntryPaths, theirs: &Bytes, ours: &Bytes) -> Result<()> {
        let (there, here) = (kind(&paths.theirs, theirs)?, kind(&paths.ours, ours)?);
        if there != here {
            if self.conflict(paths, MergeConflict::Kind, Aspects::default())? {
                self.replace(paths, theirs)?;
            }
            return Ok(());
        }
        let trees = &mut *self.trees;
        let (t, o) = (trees.theirs.found(&paths.theirs, theirs)?, trees.ours.found(&paths.ours, ours)?);
        self.merge_found(paths, None, &t, &o)?;
        if there == FileKind::Directory {
            let new = Some(contents_of(&paths.ours));
            self.jobs.push_back(Dirs { base: Vec::new(), theirs: contents_of(&paths.theirs), new });
        }
        Ok(())
    }

    /// The entry is of another kind in the fork than in the origin.
    fn turned(
        &mut self,
        dirs: &Dirs,
        (a, base): (&[u8], &Bytes),
        (b, theirs): (&[u8], &Bytes),
    ) -> Result<()> {
        let here = self.follow.here(self.trees, identity(a, base)?, a)?;
        let Some(entry) = here.entry else { return self.lost(dirs, a) };
        if here.moved {
            self.removed((a, base), b)?;
            return self.came(dirs, a, (b, theirs));
        }
        let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        let Some(ours) = here.value else {
            if self.conflict(&paths, MergeConflict::RemovedHere, Aspects::default())? {
                self.replace(&paths, theirs)?;
            }
            return Ok(());
        };
        if self.is_as_it_was(&paths, base, &ours)? && !self.is_left_there(identity(a, base)?, a, b)? {
            self.tell(&paths, MergeKind::Replaced, Aspects::default())?;
            return self.replace(&paths, theirs);
        }
        self.both_new(&paths, theirs, &ours)
    }

    /// The entry is of one kind in the origin and the fork.
    fn on_both(
        &mut self,
        dirs: &Dirs,
        (a, base): (&[u8], &Bytes),
        (b, theirs): (&[u8], &Bytes),
    ) -> Result<()> {
        let (x, t) = (self.trees.base.found(a, base)?, self.trees.theirs.found(b, theirs)?);
        let here = self.follow.here(self.trees, identity(a, base)?, a)?;
        if let (Some(entry), Some(ours)) = (&here.entry, &here.value)
            && kind(entry, ours)? == x.record.kind
        {
            let o = self.trees.ours.found(entry, ours)?;
            let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: entry.clone() };
            let id = identity(a, base)?;
            // Another file has its name in the fork.
            if id.1 != FileKind::Directory
                && self.is_left_there(id, a, b)?
                && !without_times(differ(&self.trees.base, &x, &self.trees.theirs, &t)?).is_empty()
            {
                return match self.conflict(&paths, MergeConflict::Changed, CONTENT_AND_SIZE)? {
                    true => self.replace(&paths, theirs),
                    false => Ok(()),
                };
            }
            return self.merge_found(&paths, Some(&x), &t, &o);
        }
        if without_times(differ(&self.trees.base, &x, &self.trees.theirs, &t)?).is_empty() {
            return Ok(());
        }
        let Some(entry) = here.entry else { return self.lost(dirs, a) };
        if x.record.kind == FileKind::Directory {
            // What was moved out of it here comes in the order of keys.
            self.missed.insert(a.to_vec());
        }
        let there = self.trees.ours.value(&entry)?;
        let why = if there.is_some() { MergeConflict::Kind } else { MergeConflict::RemovedHere };
        let paths = EntryPaths { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        match self.conflict(&paths, why, Aspects::default())? {
            true => self.replace(&paths, theirs),
            false => Ok(()),
        }
    }
}
