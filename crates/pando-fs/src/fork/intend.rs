//! What a merge is to do at one path: it is told to the caller if he may see it, and becomes a step of the plan if he
//! may do it.
//!
//! Guarantees that a user other than root is told no name in a directory that he could not search on one of the sides,
//! and that nothing of another user's is taken, moved, changed or removed for him. Uses plans, sides and streams.

use bytes::Bytes;

use crate::{
    diff::{
        change::{Aspects, shown},
        links::LinkScan,
        side::{DirPair, contents_of, identity},
        stream::{DiffStream, Spot},
    },
    error::{Error, Result},
    family::SNAPSHOTS,
    fork::{
        plan::Planner,
        step::{Dirs, Occupant, Spots, Step, Told, differ, kind, meant},
        told::{MergeConflict, MergeKind, MergeSide},
    },
    path::{self, system},
    rights::directories_in,
    types::FileKind,
};

/// Others may search a directory.
const S_IXOTH: u16 = 0o001;

impl Planner<'_> {
    pub(crate) fn tell(&mut self, spots: &Spots, kind: MergeKind, aspects: Aspects) -> Result<()> {
        self.may_see(spots)?;
        self.who.bounds.plan_grows(spots.ours.len())?;
        self.told.push(Told { kind, ours: spots.ours.clone(), aspects });
        Ok(())
    }

    pub(crate) fn add_step(&mut self, step: Step) -> Result<()> {
        self.who.bounds.plan_grows(step.path_bytes())?;
        self.steps.push(step);
        Ok(())
    }

    /// Error unless each directory above an entry is the owner's, or everybody may search it: names in others are not
    /// told. The error names the topmost one.
    fn may_see(&mut self, spots: &Spots) -> Result<()> {
        let Some(owner) = self.who.owner else { return Ok(()) };
        let trees = &mut *self.trees;
        let sides = [
            (&mut trees.base, &spots.base),
            (&mut trees.theirs, &spots.theirs),
            (&mut trees.ours, &spots.ours),
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
    pub(crate) fn conflict(&mut self, spots: &Spots, why: MergeConflict, aspects: Aspects) -> Result<bool> {
        self.tell(spots, MergeKind::Conflict(why), aspects)?;
        Ok(self.who.options.prefer == Some(MergeSide::Theirs))
    }

    pub(crate) fn owned(&self, entry: &[u8], uid: u32) -> Result<()> {
        match self.who.owner.is_none_or(|owner| owner == uid) {
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
        if self.who.owner.is_none() {
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

    /// Error unless files may be put in the place of others, where the plan does that: it changes entries.
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

    pub(crate) fn remove(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let record = self.trees.ours.found(entry, value)?.record;
        self.owned(entry, record.uid)?;
        self.may_change_entries(entry)?;
        if record.kind == FileKind::Directory {
            self.fork_stays(entry, "removed")?;
            if self.who.owner.is_some() {
                let contents = self.trees.ours.place(&contents_of(entry));
                directories_in(&self.trees.ours.view, &contents, |inside, dir| {
                    self.owned(&[entry, inside].concat(), dir.uid)
                })?;
            }
        }
        self.add_step(Step::Remove(entry.to_vec()))
    }

    /// Takes what the fork has to a path where there is nothing.
    pub(crate) fn take(&mut self, spots: &Spots, value: &Bytes) -> Result<()> {
        let record = self.trees.theirs.found(&spots.theirs, value)?.record;
        self.owned(&spots.ours, record.uid)?;
        self.may_change_entries(&spots.ours)?;
        self.hides_no_snapshots(&spots.ours)?;
        let without = match record.kind {
            FileKind::Directory => self.left_out(spots)?,
            _ => Vec::new(),
        };
        let dir = path::directory_of(&spots.ours).to_vec();
        self.add_step(Step::Take { from: spots.theirs.clone(), dir, without })
    }

    /// EEXIST if an entry would take the name under which snapshots of its directory are seen.
    fn hides_no_snapshots(&self, entry: &[u8]) -> Result<()> {
        let dir = self.trees.ours.place(path::directory_of(entry));
        let is_name = path::entry(path::directory_of(entry), SNAPSHOTS)? == entry;
        match is_name && self.trees.ours.view.get(&system::snapshotted(&dir))?.is_some() {
            true => Err(Error::Exists(shown(entry).display().to_string())),
            false => Ok(()),
        }
    }

    /// What of a directory that is taken from the fork this side has moved out of it, and so has elsewhere: paths from
    /// the directory. What the fork has renamed in it as well is a conflict, and is merged where it is here.
    fn left_out(&mut self, spots: &Spots) -> Result<Vec<Vec<u8>>> {
        let (was, taken) = (contents_of(&spots.base), contents_of(&spots.theirs));
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
            let spots = Spots { base: a, theirs: b, ours: entry };
            self.conflict(&spots, MergeConflict::Renamed, Aspects::default())?;
            let trees = &mut *self.trees;
            let (x, t) = (trees.base.found(&spots.base, &base)?, trees.theirs.found(&spots.theirs, &theirs)?);
            let o = trees.ours.found(&spots.ours, &ours)?;
            self.merge_found(&spots, Some(&x), &t, &o)?;
            if id.1 == FileKind::Directory {
                let (base, theirs) = (contents_of(&spots.base), contents_of(&spots.theirs));
                self.jobs.push_back(Dirs { base, theirs, new: None });
            }
        }
        self.leave_deleted(spots, &mut without)?;
        Ok(without)
    }

    /// A directory of the origin that is not here is told as a whole; what was moved out of it is merged still.
    pub(crate) fn rest_of(&mut self, spots: &Spots, kind: FileKind) {
        if kind == FileKind::Directory {
            self.missed.insert(spots.base.clone());
            let (base, theirs) = (contents_of(&spots.base), contents_of(&spots.theirs));
            self.jobs.push_back(Dirs { base, theirs, new: None });
        }
    }

    /// Puts what the fork has in the place of what is there.
    pub(crate) fn replace(&mut self, spots: &Spots, theirs: &Bytes) -> Result<()> {
        match self.occupant(&spots.ours, &spots.base)? {
            Occupant::Nothing => {}
            Occupant::Its(ours) => self.remove(&spots.ours, &ours)?,
            Occupant::Other => {
                return self.conflict(spots, MergeConflict::Taken, Aspects::default()).map(drop);
            }
        }
        self.take(spots, theirs)
    }

    /// What is at `entry` on our side; `own` is the path in the origin of what may be replaced.
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

    /// Whether our side has what was in the origin, unchanged; of a directory some entries may have been removed, but
    /// none that come back with another one.
    pub(crate) fn is_as_it_was(&mut self, spots: &Spots, base: &Bytes, ours: &Bytes) -> Result<bool> {
        let (b, o) = (self.trees.base.found(&spots.base, base)?, self.trees.ours.found(&spots.ours, ours)?);
        if b.record.kind != o.record.kind
            || !meant(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty()
        {
            return Ok(false);
        }
        if b.record.kind != FileKind::Directory {
            return Ok(true);
        }
        let (was, is) = (contents_of(&spots.base), contents_of(&spots.ours));
        let places = (self.trees.base.place(&was), self.trees.ours.place(&is));
        let mut stream = DiffStream::new(&self.trees.base.view, (&places.0, &places.1), true)?;
        let mut roots = vec![Vec::new()];
        while let Some(spot) = stream.next()? {
            self.who.bounds.go_on()?;
            let path = match spot {
                Spot::Entry { path, .. } => path,
                Spot::Links(root) => {
                    roots.push(root.to_vec());
                    continue;
                }
            };
            if let Some(out) = self.moved_out(&was, path::directory_of(&path))? {
                stream.skip(&out);
                continue;
            }
            let (a, b) = ([&was[..], &path].concat(), [&is[..], &path].concat());
            let (base, ours) = (self.trees.base.value(&a)?, self.trees.ours.value(&b)?);
            let id = base.as_ref().map(|base| identity(&a, base)).transpose()?;
            if let Some(id) = id {
                let goes = self.follow.leaves(id, &a);
                // What was moved out here was not removed here.
                if !goes && self.follow.left_here(id, &a) {
                    return Ok(false);
                }
                if goes && id.1 == FileKind::Directory {
                    stream.skip(&contents_of(&path));
                }
                // What the fork has moved out is merged where it is there.
                if goes && ours.as_ref().map(|ours| identity(&b, ours)).transpose()?.is_none_or(|o| o == id) {
                    continue;
                }
            }
            let Some(ours) = ours else {
                match id {
                    Some(id) if self.comes_back(id, &a)? => return Ok(false),
                    _ => continue,
                }
            };
            let Some(base) = base else { return Ok(false) };
            let (x, y) = (self.trees.base.found(&a, &base)?, self.trees.ours.found(&b, &ours)?);
            if x.record.kind != y.record.kind
                || !meant(differ(&self.trees.base, &x, &self.trees.ours, &y)?).is_empty()
            {
                return Ok(false);
            }
        }
        if !self.links {
            return Ok(true);
        }
        for root in roots {
            let pair = DirPair { before: [&was[..], &root].concat(), after: [&is[..], &root].concat() };
            let trees = &mut *self.trees;
            let Some(mut scan) = LinkScan::new(pair.clone(), &mut trees.base, &mut trees.ours)? else {
                continue;
            };
            while let Some((name, base)) = scan.next(&self.trees.base)? {
                let (a, b) = ([&pair.before[..], &name].concat(), [&pair.after[..], &name].concat());
                let Some(ours) = self.trees.ours.value(&b)? else { continue };
                let (b, o) = (self.trees.base.found(&a, &base)?, self.trees.ours.found(&b, &ours)?);
                if !meant(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The topmost directory that the fork has moved, of those from the directory `from` of the origin down to `dir` in
    /// it: its contents prefix, from there.
    fn moved_out(&self, from: &[u8], dir: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut at = 0;
        while let Some((entry, contents)) = path::next_level(dir, at) {
            let entry = [from, &entry].concat();
            if let Some(value) = self.trees.base.value(&entry)?
                && self.follow.leaves(identity(&entry, &value)?, &entry)
            {
                return Ok(Some(contents.to_vec()));
            }
            at = contents.len();
        }
        Ok(None)
    }
}
