//! What a merge would do: the changes of a fork since its origin, each held against what is there to merge into.
//!
//! Goes by what the fork changed, in the order of keys, and looks elsewhere only at these places, wherever they are by
//! now (`follow`); where the fork removed a directory, also at what the other side changed in it. What only the fork
//! has is taken as a whole. Guarantees that nothing is planned for a place at which both sides changed the same thing
//! differently, unless a side is preferred. Changes nothing. Uses sides, streams and comparisons of `diff`.

use std::collections::{BTreeMap, HashSet, VecDeque};

use bytes::Bytes;

use crate::{
    diff::{
        change::Aspects,
        links::LinkScan,
        side::{DirPair, Found, Identity, contents_of, identity},
        stream::{DiffStream, Spot},
    },
    error::Result,
    fork::{
        bounds::Merging,
        follow::{Follow, in_dir, upwards},
        step::{Dirs, Occupant, Plan, Spots, Step, Told, Trees, differ, kind, meant},
        text::{MergedText, TextBudget},
        told::{MergeConflict, MergeKind},
    },
    path,
    types::FileKind,
};

/// What is content of a file.
const CONTENT: Aspects = Aspects(Aspects::CONTENT.0 | Aspects::SIZE.0);

/// What of a file is merged on its own.
const GROUPS: [Aspects; 6] =
    [CONTENT, Aspects::MODE, Aspects::OWNER, Aspects::TARGET, Aspects::DEVICE, Aspects::XATTRS];

/// Steps, by their place in the plan, that change attributes of a file with several names; by its data prefix.
pub(crate) type LinkedSteps = BTreeMap<Bytes, Vec<usize>>;

pub(crate) struct Planner<'a> {
    pub trees: &'a mut Trees,
    pub who: Merging<'a>,
    /// Contents prefix of the fork: nothing around it is removed.
    pub fork: Vec<u8>,
    /// Contents prefix of what it is merged into, which need not be that of the tree that stands for it here.
    pub into: Vec<u8>,
    /// Whether there may be files with several names.
    pub links: bool,
    pub steps: Vec<Step>,
    pub told: Vec<Told>,
    pub follow: Follow,
    /// Renames that cannot be made here as such.
    pub undone: HashSet<Identity>,
    /// Directories that are still to be merged.
    pub jobs: VecDeque<Dirs>,
    /// What is settled in `linked`.
    pub linked: LinkedSteps,
    /// Directories of the origin that are missing here, as has been told.
    pub missed: HashSet<Vec<u8>>,
    text: TextBudget,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        trees: &'a mut Trees,
        who: Merging<'a>,
        text: TextBudget,
        (fork, into): (Vec<u8>, Vec<u8>),
        links: bool,
    ) -> Self {
        let (linked, missed, undone) = (LinkedSteps::new(), HashSet::new(), HashSet::new());
        let (steps, told, jobs, follow) = (Vec::new(), Vec::new(), VecDeque::new(), Follow::default());
        Self { trees, who, fork, into, links, steps, told, follow, undone, jobs, linked, missed, text }
    }

    /// The plan. Costs what a difference of the origin and the fork costs, and one of the records alone of the origin
    /// and this side.
    pub(crate) fn plan(mut self) -> Result<Plan> {
        loop {
            self.who.bounds.plan_begins();
            self.follow = Follow::find(self.trees, &self.undone, self.links, &|| self.who.bounds.go_on())?;
            let undone = self.undone.len();
            let tops = (self.trees.base.top()?, self.trees.theirs.top()?, self.trees.ours.top()?);
            self.merge_found(&Spots::default(), Some(&tops.0), &tops.1, &tops.2)?;
            self.jobs.push_back(Dirs::default());
            while let Some(dirs) = self.jobs.pop_front() {
                self.walk(&dirs)?;
            }
            if self.undone.len() == undone {
                self.settle_linked()?;
                self.may_renew()?;
                return self.arranged();
            }
            // Again, without these renames.
            self.steps.clear();
            self.told.clear();
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
            self.who.bounds.go_on()?;
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

    /// Names, below a directory, of linked files that the fork has changed, where the names say the same.
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

    /// What is told at the directory around an entry of the origin that is not here: the topmost such, and nothing in
    /// it can be merged, whatever that is.
    fn lost(&mut self, dirs: &Dirs, entry: &[u8]) -> Result<()> {
        let dir = path::directory_of(entry);
        let told = |above: &[u8]| path::entry_of_contents(above).is_some_and(|e| self.missed.contains(&e));
        if upwards(dir).any(told) {
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
            let spots = Spots { base, theirs, ours };
            if self.conflict(&spots, why, Aspects::default())?
                && let Some(value) = self.trees.theirs.value(&spots.theirs)?
            {
                self.replace(&spots, &value)?;
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

    /// Something is at a place of the fork, `a` in the origin, where that has not been.
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
                let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours: in_dir(&dir, b) };
                self.added(&spots, theirs)
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
        let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        if !here.moved && self.is_as_it_was(&spots, base, &ours)? && !self.is_left_there(id, a, b)? {
            self.tell(&spots, MergeKind::Removed, Aspects::default())?;
            return self.remove(&spots.ours, &ours);
        }
        match self.conflict(&spots, MergeConflict::RemovedThere, Aspects::default())? {
            true => self.remove(&spots.ours, &ours),
            false => Ok(()),
        }
    }

    /// The fork has removed what was moved here, which is not followed.
    fn removed_elsewhere(&mut self, a: &[u8], b: &[u8], ours: Vec<u8>) -> Result<()> {
        let Some(value) = self.trees.ours.value(&ours)? else { return Ok(()) };
        // It is what this side has made of another file, which the fork has not removed.
        if self.follow.origin_of(self.trees, &ours, &value)?.is_some() {
            return Ok(());
        }
        let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours };
        match self.conflict(&spots, MergeConflict::RemovedThere, Aspects::default())? {
            true => self.remove(&spots.ours, &value),
            false => Ok(()),
        }
    }

    /// The fork has made it.
    fn added(&mut self, spots: &Spots, theirs: &Bytes) -> Result<()> {
        match self.occupant(&spots.ours, &[])? {
            Occupant::Nothing => {
                let id = identity(&spots.theirs, theirs)?;
                if let Some(base) = self.follow.source_aside(id, &spots.theirs)
                    && self.follow.deleted_here(self.trees, id, &base)?
                {
                    // It was moved there and deleted here: not something new.
                    let spots = Spots { base, ..spots.clone() };
                    return match self.conflict(&spots, MergeConflict::RemovedHere, Aspects::default())? {
                        true => self.replace(&spots, theirs),
                        false => Ok(()),
                    };
                }
                self.tell(spots, MergeKind::Added, Aspects::default())?;
                self.take(spots, theirs)
            }
            Occupant::Its(ours) => self.both_new(spots, theirs, &ours),
            Occupant::Other => self.conflict(spots, MergeConflict::Taken, Aspects::default()).map(drop),
        }
    }

    /// Both sides have something there that the origin has not, at least not of this kind.
    fn both_new(&mut self, spots: &Spots, theirs: &Bytes, ours: &Bytes) -> Result<()> {
        let (there, here) = (kind(&spots.theirs, theirs)?, kind(&spots.ours, ours)?);
        if there != here {
            if self.conflict(spots, MergeConflict::Kind, Aspects::default())? {
                self.replace(spots, theirs)?;
            }
            return Ok(());
        }
        let trees = &mut *self.trees;
        let (t, o) = (trees.theirs.found(&spots.theirs, theirs)?, trees.ours.found(&spots.ours, ours)?);
        self.merge_found(spots, None, &t, &o)?;
        if there == FileKind::Directory {
            let new = Some(contents_of(&spots.ours));
            self.jobs.push_back(Dirs { base: Vec::new(), theirs: contents_of(&spots.theirs), new });
        }
        Ok(())
    }

    /// It is of another kind in the fork.
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
        let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        let Some(ours) = here.value else {
            if self.conflict(&spots, MergeConflict::RemovedHere, Aspects::default())? {
                self.replace(&spots, theirs)?;
            }
            return Ok(());
        };
        if self.is_as_it_was(&spots, base, &ours)? && !self.is_left_there(identity(a, base)?, a, b)? {
            self.tell(&spots, MergeKind::Replaced, Aspects::default())?;
            return self.replace(&spots, theirs);
        }
        self.both_new(&spots, theirs, &ours)
    }

    /// It is of one kind in the origin and the fork.
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
            let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours: entry.clone() };
            let id = identity(a, base)?;
            // Another file has its name in the fork.
            if id.1 != FileKind::Directory
                && self.is_left_there(id, a, b)?
                && !meant(differ(&self.trees.base, &x, &self.trees.theirs, &t)?).is_empty()
            {
                return match self.conflict(&spots, MergeConflict::Changed, CONTENT)? {
                    true => self.replace(&spots, theirs),
                    false => Ok(()),
                };
            }
            return self.merge_found(&spots, Some(&x), &t, &o);
        }
        if meant(differ(&self.trees.base, &x, &self.trees.theirs, &t)?).is_empty() {
            return Ok(());
        }
        let Some(entry) = here.entry else { return self.lost(dirs, a) };
        if x.record.kind == FileKind::Directory {
            // What was moved out of it here comes in the order of keys.
            self.missed.insert(a.to_vec());
        }
        let there = self.trees.ours.value(&entry)?;
        let why = if there.is_some() { MergeConflict::Kind } else { MergeConflict::RemovedHere };
        let spots = Spots { base: a.to_vec(), theirs: b.to_vec(), ours: entry };
        match self.conflict(&spots, why, Aspects::default())? {
            true => self.replace(&spots, theirs),
            false => Ok(()),
        }
    }

    /// Merges what is of one kind on all sides, aspect by aspect.
    pub(crate) fn merge_found(
        &mut self,
        spots: &Spots,
        base: Option<&Found>,
        theirs: &Found,
        ours: &Found,
    ) -> Result<()> {
        let trees = &*self.trees;
        let apart = differ(&trees.theirs, theirs, &trees.ours, ours)?;
        let (there, here) = match base {
            Some(base) => {
                let there = differ(&trees.base, base, &trees.theirs, theirs)?;
                match there.is_empty() {
                    true => return Ok(()),
                    false => (there, differ(&trees.base, base, &trees.ours, ours)?),
                }
            }
            None => (apart, apart),
        };
        let (mut take, mut clash) = (Aspects::default(), Aspects::default());
        for group in GROUPS {
            let has = |aspects: Aspects| aspects.0 & group.0 != 0;
            if has(there) && has(apart) {
                let to = if has(here) { &mut clash } else { &mut take };
                to.0 |= group.0;
            }
        }
        if take.is_empty() && clash.is_empty() {
            return Ok(());
        }
        let mut lines = None;
        if let Some(base) = base
            && clash.contains(Aspects::CONTENT)
        {
            lines = self.lines(base, theirs, ours)?;
        }
        if lines.is_some() {
            clash.0 &= !CONTENT.0;
        }
        if !clash.is_empty() {
            if self.conflict(spots, MergeConflict::Changed, Aspects(clash.0 & (there.0 | apart.0)))? {
                take.0 |= clash.0;
            }
        } else {
            let (kind, content) = match &lines {
                None => (MergeKind::Modified, 0),
                Some(text) if text.marked => (MergeKind::Marked, CONTENT.0),
                Some(_) => (MergeKind::Lines, CONTENT.0),
            };
            self.tell(spots, kind, Aspects((take.0 | content) & there.0))?;
        }
        if take.is_empty() && lines.is_none() {
            return Ok(());
        }
        self.owned(&spots.ours, ours.record.uid)?;
        self.owned(&spots.ours, theirs.record.uid)?;
        let (from, to, aspects) = (spots.theirs.clone(), spots.ours.clone(), take);
        if let Some(text) = lines {
            self.add_step(Step::Write { from, to, aspects, text: text.bytes })?;
            return Ok(());
        }
        let step = Step::Change { from, to, aspects, alone: false };
        let is_linked = ours.record.kind != FileKind::Directory
            && ours.data != path::data(&self.trees.ours.place(&spots.ours));
        if is_linked && !step.makes_file() {
            self.linked.entry(ours.data.clone()).or_default().push(self.steps.len());
        }
        self.add_step(step)
    }

    /// The lines of both sides, if they are wanted and can be had; with markers only if no side is preferred.
    fn lines(&mut self, base: &Found, theirs: &Found, ours: &Found) -> Result<Option<MergedText>> {
        // The merged file shows its user lines of all three versions, and the origin may have another owner.
        let may_read = |found: &Found| self.who.owner.is_none_or(|owner| owner == found.record.uid);
        if !self.who.options.text || ![base, theirs, ours].into_iter().all(may_read) {
            return Ok(None);
        }
        let t = &*self.trees;
        let merged = self.text.merge_lines((&t.base, base), (&t.theirs, theirs), (&t.ours, ours))?;
        Ok(merged.filter(|text| !text.marked || self.who.options.prefer.is_none()))
    }
}
