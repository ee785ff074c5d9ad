//! What a merge would do: the changes of a fork since its origin, each held against what is there to merge into.
//!
//! Goes by what the fork changed, in the order of keys, and looks elsewhere only at these places; where the fork
//! removed a directory, also at what the other side changed in it. What only the fork has is taken as a whole.
//! Guarantees that nothing is planned for a place at which both sides changed the same thing differently, unless a
//! side is preferred. Changes nothing. Uses sides, streams and comparisons of `diff`.

use std::collections::HashSet;

use bytes::Bytes;

use crate::{
    diff::{
        change::{Aspects, DiffOptions, shown},
        compare::compare,
        links::LinkScan,
        side::{Found, Pair, Side, contents_of, identity},
        stream::{Spot, Stream},
    },
    error::{Error, Result},
    fork::{
        text::{MergedText, TextBudget},
        told::{MergeChange, MergeConflict, MergeKind, MergeOptions, MergeSide},
    },
    path,
    rights::directories_in,
    types::FileKind,
};

/// What is content of a file.
const CONTENT: Aspects = Aspects(Aspects::CONTENT.0 | Aspects::SIZE.0);

/// What of a file is merged on its own.
const GROUPS: [Aspects; 6] =
    [CONTENT, Aspects::MODE, Aspects::OWNER, Aspects::TARGET, Aspects::DEVICE, Aspects::XATTRS];

/// One thing to do; paths are from the tops, in the form of keys.
#[derive(Debug)]
pub(crate) enum Step {
    /// Removes what is there, with all below it.
    Remove(Vec<u8>),
    /// Takes what the fork has there, with all below it, to where there is nothing.
    Take(Vec<u8>),
    /// Gives the file or directory that is there these aspects of the one in the fork.
    Change(Vec<u8>, Aspects),
    /// The same, and gives it this content, which is of both sides.
    Write(Vec<u8>, Aspects, Bytes),
}

/// The origin, the fork, and what it is merged into, of one moment.
pub(crate) struct Trees {
    pub base: Side,
    pub theirs: Side,
    pub ours: Side,
}

/// What is planned.
#[derive(Default)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    pub told: Vec<MergeChange>,
}

pub(crate) struct Planner<'a> {
    pub trees: &'a mut Trees,
    pub options: MergeOptions,
    /// The user who must own all that is taken and changed; none for root.
    pub owner: Option<u32>,
    /// Contents prefix of the fork: nothing around it is removed.
    pub fork: Vec<u8>,
    /// Whether there may be files with several names.
    pub links: bool,
    plan: Plan,
    /// Linked files that are changed already, by their data prefix.
    changed: HashSet<Bytes>,
    /// Directories of the origin that are missing here, as has been told.
    missed: HashSet<Vec<u8>>,
    text: TextBudget,
}

/// Others may search a directory.
const S_IXOTH: u16 = 0o001;

fn kind(entry: &[u8], value: &[u8]) -> Result<FileKind> {
    Ok(identity(entry, value)?.1)
}

/// Without the times, which are no reason for a conflict.
fn meant(aspects: Aspects) -> Aspects {
    Aspects(aspects.0 & !Aspects::TIME.0)
}

pub(crate) fn differ(a_side: &Side, a: &Found, b_side: &Side, b: &Found) -> Result<Aspects> {
    Ok(compare(a_side, a, b_side, b, DiffOptions::default())?.aspects)
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        trees: &'a mut Trees,
        (options, owner): (MergeOptions, Option<u32>),
        text: TextBudget,
        fork: Vec<u8>,
        links: bool,
    ) -> Self {
        let (changed, missed) = (HashSet::new(), HashSet::new());
        Self { trees, options, owner, fork, links, plan: Plan::default(), changed, missed, text }
    }

    /// The plan. Costs what a difference of the origin and the fork costs.
    pub(crate) fn plan(mut self) -> Result<Plan> {
        let tops = (self.trees.base.top()?, self.trees.theirs.top()?, self.trees.ours.top()?);
        self.merge_found(b"", Some(&tops.0), &tops.1, &tops.2)?;
        self.walk(&Pair::default())?;
        Ok(self.plan)
    }

    fn walk(&mut self, pair: &Pair) -> Result<()> {
        let t = &self.trees;
        let places = (t.base.place(&pair.before), t.theirs.place(&pair.after));
        let mut stream = Stream::new(&t.base.view, (&places.0, &places.1), true)?;
        let mut roots = vec![Vec::new()];
        while let Some(spot) = stream.next()? {
            match spot {
                Spot::Entry { path, .. } => self.spot(&mut stream, &path)?,
                Spot::Links(root) if !root.is_empty() => roots.push(root.to_vec()),
                Spot::Links(_) => {}
            }
        }
        if self.links {
            for root in roots {
                self.linked(root)?;
            }
        }
        Ok(())
    }

    /// Names, below a directory, of linked files that the fork has changed, where the names say the same.
    fn linked(&mut self, root: Vec<u8>) -> Result<()> {
        let pair = Pair { before: root.clone(), after: root };
        let trees = &mut *self.trees;
        let Some(mut scan) = LinkScan::new(pair.clone(), &mut trees.base, &mut trees.theirs)? else {
            return Ok(());
        };
        let mut names = Vec::new();
        while let Some((inside, value)) = scan.next(&self.trees.base)? {
            let entry = [&pair.before[..], &inside].concat();
            if self.trees.theirs.value(&entry)?.is_some_and(|new| new == value) {
                names.push((entry, value));
            }
        }
        for (entry, value) in names {
            self.on_both(&entry, &value, &value)?;
        }
        Ok(())
    }

    fn tell(&mut self, entry: &[u8], kind: MergeKind, aspects: Aspects) -> Result<()> {
        self.may_see(entry)?;
        self.plan.told.push(MergeChange { kind, path: shown(entry), aspects });
        Ok(())
    }

    /// Error unless all directories around an entry are the owner's, or all may search them: names in others are not
    /// told. It names the topmost one.
    fn may_see(&mut self, entry: &[u8]) -> Result<()> {
        let Some(owner) = self.owner else { return Ok(()) };
        let dir = path::directory_of(entry).to_vec();
        let mut from = 0;
        while let Some((above, contents)) = path::next_level(&dir, from) {
            let trees = &mut *self.trees;
            for side in [&mut trees.base, &mut trees.theirs, &mut trees.ours] {
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
            from = contents.len();
        }
        Ok(())
    }

    /// Notes a conflict; whether the fork is preferred.
    fn conflict(&mut self, entry: &[u8], why: MergeConflict, aspects: Aspects) -> Result<bool> {
        self.tell(entry, MergeKind::Conflict(why), aspects)?;
        Ok(self.options.prefer == Some(MergeSide::Theirs))
    }

    fn owned(&self, entry: &[u8], uid: u32) -> Result<()> {
        match self.owner.is_none_or(|owner| owner == uid) {
            true => Ok(()),
            false => Err(Error::NotPermitted {
                name: shown(entry).to_string_lossy().into_owned(),
                why: "belongs to another user: only root, or who owns all that a merge takes, changes and removes, \
                      and the directories around it, may merge",
            }),
        }
    }

    /// Error unless entries of the directory around this one may be changed.
    fn may_change_entries(&mut self, entry: &[u8]) -> Result<()> {
        if self.owner.is_none() {
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

    fn remove(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let record = self.trees.ours.found(entry, value)?.record;
        self.owned(entry, record.uid)?;
        self.may_change_entries(entry)?;
        if record.kind == FileKind::Directory {
            let contents = self.trees.ours.place(&contents_of(entry));
            if self.fork.starts_with(&contents) {
                let text = format!("{}: the fork lies in it, which would be removed", shown(entry).display());
                return Err(Error::Invalid(text));
            }
            if self.owner.is_some() {
                directories_in(&self.trees.ours.view, &contents, |inside, dir| {
                    self.owned(&[entry, inside].concat(), dir.uid)
                })?;
            }
        }
        self.plan.steps.push(Step::Remove(entry.to_vec()));
        Ok(())
    }

    fn take(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let record = self.trees.theirs.found(entry, value)?.record;
        self.owned(entry, record.uid)?;
        self.may_change_entries(entry)?;
        self.plan.steps.push(Step::Take(entry.to_vec()));
        Ok(())
    }

    /// Puts what the fork has in the place of what is there.
    fn replace(&mut self, entry: &[u8], ours: Option<&Bytes>, theirs: &Bytes) -> Result<()> {
        if let Some(ours) = ours {
            self.remove(entry, ours)?;
        }
        self.take(entry, theirs)
    }

    /// The topmost directory around an entry that is none where it is merged into.
    fn missing_around(&mut self, entry: &[u8]) -> Result<Option<Vec<u8>>> {
        let dir = path::directory_of(entry);
        if self.trees.ours.level(dir)?.is_some_and(|l| l.contents.ends_with(dir)) {
            return Ok(None);
        }
        let mut from = 0;
        while let Some((above, contents)) = path::next_level(dir, from) {
            let is_dir = match self.trees.ours.value(&above)? {
                Some(value) => kind(&above, &value)? == FileKind::Directory,
                None => false,
            };
            if !is_dir {
                return Ok(Some(above));
            }
            from = contents.len();
        }
        Ok(None)
    }

    /// If the directory around is not there, that is what cannot be merged, whatever is in it: true then.
    fn lost(&mut self, stream: Option<&mut Stream>, entry: &[u8]) -> Result<bool> {
        let Some(dir) = self.missing_around(entry)? else { return Ok(false) };
        let there = self.trees.ours.value(&dir)?;
        let why = if there.is_some() { MergeConflict::Kind } else { MergeConflict::RemovedHere };
        if let Some(stream) = stream {
            stream.skip(&contents_of(&dir));
        }
        // Several names of one file may lie in it.
        if !self.missed.insert(dir.clone()) {
            return Ok(true);
        }
        if self.conflict(&dir, why, Aspects::default())?
            && let Some(value) = self.trees.theirs.value(&dir)?
        {
            self.replace(&dir, there.as_ref(), &value)?;
        }
        Ok(true)
    }

    fn spot(&mut self, stream: &mut Stream, entry: &[u8]) -> Result<()> {
        let (base, theirs) = (self.trees.base.value(entry)?, self.trees.theirs.value(entry)?);
        let is_dir = |value: &Option<Bytes>| match value {
            Some(value) => Ok::<_, Error>(kind(entry, value)? == FileKind::Directory),
            None => Ok(false),
        };
        let (base_dir, their_dir) = (is_dir(&base)?, is_dir(&theirs)?);
        let go_on = match (&base, &theirs) {
            (None, None) => true,
            (Some(base), None) => {
                self.removed(entry, base)?;
                false
            }
            (None, Some(theirs)) => {
                if self.lost(Some(stream), entry)? {
                    return Ok(());
                }
                self.added(entry, theirs)?
            }
            (Some(base), Some(theirs)) if kind(entry, base)? == kind(entry, theirs)? => {
                match self.on_both(entry, base, theirs)? {
                    Some(lost) => {
                        stream.skip(&contents_of(&lost));
                        return Ok(());
                    }
                    None => true,
                }
            }
            (Some(base), Some(theirs)) => {
                if self.lost(Some(stream), entry)? {
                    return Ok(());
                }
                self.turned(entry, base, theirs)?
            }
        };
        if !go_on && (base_dir || their_dir) {
            stream.skip(&contents_of(entry));
        }
        Ok(())
    }

    /// The fork has removed it.
    fn removed(&mut self, entry: &[u8], base: &Bytes) -> Result<()> {
        let Some(ours) = self.trees.ours.value(entry)? else { return Ok(()) };
        if self.is_as_it_was(entry, base, &ours)? {
            self.tell(entry, MergeKind::Removed, Aspects::default())?;
            return self.remove(entry, &ours);
        }
        match self.conflict(entry, MergeConflict::RemovedThere, Aspects::default())? {
            true => self.remove(entry, &ours),
            false => Ok(()),
        }
    }

    /// The fork has added it; whether what is in it is merged one by one.
    fn added(&mut self, entry: &[u8], theirs: &Bytes) -> Result<bool> {
        let Some(ours) = self.trees.ours.value(entry)? else {
            self.tell(entry, MergeKind::Added, Aspects::default())?;
            self.take(entry, theirs)?;
            return Ok(false);
        };
        self.both_new(entry, theirs, &ours)
    }

    /// Both sides have something there that the origin has not, at least not of this kind.
    fn both_new(&mut self, entry: &[u8], theirs: &Bytes, ours: &Bytes) -> Result<bool> {
        let (there, here) = (kind(entry, theirs)?, kind(entry, ours)?);
        if there != here {
            if self.conflict(entry, MergeConflict::Kind, Aspects::default())? {
                self.replace(entry, Some(ours), theirs)?;
            }
            return Ok(false);
        }
        let (t, o) = (self.trees.theirs.found(entry, theirs)?, self.trees.ours.found(entry, ours)?);
        self.merge_found(entry, None, &t, &o)?;
        Ok(there == FileKind::Directory)
    }

    /// It is of another kind in the fork; whether what is in it is merged one by one.
    fn turned(&mut self, entry: &[u8], base: &Bytes, theirs: &Bytes) -> Result<bool> {
        let Some(ours) = self.trees.ours.value(entry)? else {
            if self.conflict(entry, MergeConflict::RemovedHere, Aspects::default())? {
                self.take(entry, theirs)?;
            }
            return Ok(false);
        };
        if self.is_as_it_was(entry, base, &ours)? {
            self.tell(entry, MergeKind::Replaced, Aspects::default())?;
            self.replace(entry, Some(&ours), theirs)?;
            return Ok(false);
        }
        self.both_new(entry, theirs, &ours)
    }

    /// It is of one kind in the origin and the fork. The directory that is not there, if that is why nothing in it can
    /// be merged.
    fn on_both(&mut self, entry: &[u8], base: &Bytes, theirs: &Bytes) -> Result<Option<Vec<u8>>> {
        let (b, t) = (self.trees.base.found(entry, base)?, self.trees.theirs.found(entry, theirs)?);
        let ours = self.trees.ours.value(entry)?;
        let same_kind = match &ours {
            Some(ours) => kind(entry, ours)? == b.record.kind,
            None => false,
        };
        match &ours {
            Some(ours) if same_kind => {
                let o = self.trees.ours.found(entry, ours)?;
                self.merge_found(entry, Some(&b), &t, &o)?;
                Ok(None)
            }
            _ => {
                if meant(differ(&self.trees.base, &b, &self.trees.theirs, &t)?).is_empty() {
                    return Ok(None);
                }
                if let Some(dir) = self.missing_around(entry)? {
                    self.lost(None, entry)?;
                    return Ok(Some(dir));
                }
                let why = if ours.is_some() { MergeConflict::Kind } else { MergeConflict::RemovedHere };
                if self.conflict(entry, why, Aspects::default())? {
                    self.replace(entry, ours.as_ref(), theirs)?;
                }
                Ok(Some(entry.to_vec()))
            }
        }
    }

    /// Merges what is of one kind on all sides, aspect by aspect.
    fn merge_found(
        &mut self,
        entry: &[u8],
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
            if self.conflict(entry, MergeConflict::Changed, Aspects(clash.0 & (there.0 | apart.0)))? {
                take.0 |= clash.0;
            }
        } else {
            let (kind, content) = match &lines {
                None => (MergeKind::Modified, 0),
                Some(text) if text.marked => (MergeKind::Marked, CONTENT.0),
                Some(_) => (MergeKind::Lines, CONTENT.0),
            };
            self.tell(entry, kind, Aspects((take.0 | content) & there.0))?;
        }
        if take.is_empty() && lines.is_none() {
            return Ok(());
        }
        self.owned(entry, ours.record.uid)?;
        self.owned(entry, theirs.record.uid)?;
        if let Some(text) = lines {
            self.plan.steps.push(Step::Write(entry.to_vec(), take, text.bytes));
            return Ok(());
        }
        let attributes = Aspects::MODE.0 | Aspects::OWNER.0 | Aspects::XATTRS.0;
        // A file with several names gets its attributes once; each name gets its own content.
        if take.0 & !attributes != 0 || self.changed.insert(ours.data.clone()) {
            self.plan.steps.push(Step::Change(entry.to_vec(), take));
        }
        Ok(())
    }

    /// The lines of both sides, if they are wanted and can be had; with markers only if no side is preferred.
    fn lines(&mut self, base: &Found, theirs: &Found, ours: &Found) -> Result<Option<MergedText>> {
        // The merged file shows its user lines of all three versions, and the origin may have another owner.
        let may_read = |found: &Found| self.owner.is_none_or(|owner| owner == found.record.uid);
        if !self.options.text || ![base, theirs, ours].into_iter().all(may_read) {
            return Ok(None);
        }
        let t = &*self.trees;
        let merged = self.text.merge_lines((&t.base, base), (&t.theirs, theirs), (&t.ours, ours))?;
        Ok(merged.filter(|text| !text.marked || self.options.prefer.is_none()))
    }

    /// Whether what is there is what was in the origin, or, of directories, perhaps less.
    fn is_as_it_was(&mut self, entry: &[u8], base: &Bytes, ours: &Bytes) -> Result<bool> {
        let (b, o) = (self.trees.base.found(entry, base)?, self.trees.ours.found(entry, ours)?);
        if b.record.kind != o.record.kind
            || !meant(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty()
        {
            return Ok(false);
        }
        if b.record.kind != FileKind::Directory {
            return Ok(true);
        }
        let dir = contents_of(entry);
        let places = (self.trees.base.place(&dir), self.trees.ours.place(&dir));
        let mut stream = Stream::new(&self.trees.base.view, (&places.0, &places.1), true)?;
        let mut roots = vec![dir.clone()];
        while let Some(spot) = stream.next()? {
            let path = match spot {
                Spot::Entry { path, .. } => path,
                Spot::Links(root) => {
                    roots.push([&dir[..], &root].concat());
                    continue;
                }
            };
            let inside = [&dir[..], &path].concat();
            let Some(ours) = self.trees.ours.value(&inside)? else { continue };
            let Some(base) = self.trees.base.value(&inside)? else { return Ok(false) };
            let (b, o) = (self.trees.base.found(&inside, &base)?, self.trees.ours.found(&inside, &ours)?);
            if b.record.kind != o.record.kind
                || !meant(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty()
            {
                return Ok(false);
            }
        }
        if !self.links {
            return Ok(true);
        }
        for root in roots {
            let pair = Pair { before: root.clone(), after: root };
            let trees = &mut *self.trees;
            let Some(mut scan) = LinkScan::new(pair.clone(), &mut trees.base, &mut trees.ours)? else {
                continue;
            };
            while let Some((name, base)) = scan.next(&self.trees.base)? {
                let inside = [&pair.before[..], &name].concat();
                let Some(ours) = self.trees.ours.value(&inside)? else { continue };
                let (b, o) = (self.trees.base.found(&inside, &base)?, self.trees.ours.found(&inside, &ours)?);
                if !meant(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
