//! Applies the removals and renames of a merge, and the entries that it takes from the fork, in an order in which
//! each new path is free.
//!
//! First all entries that are removed or moved leave their paths, the deepest ones first; then those that are moved
//! or taken are put at their new paths, the highest ones first. In between, within one batch, a moved entry lies
//! under temporary keys, unless its new path is free. Guarantee: a moved entry keeps its inode number, in memory too.

use std::cmp::Reverse;

use bytes::Bytes;

use crate::{
    diff::side::contents_of,
    error::{Error, Result},
    fork::{
        apply::Apply,
        arrange::Moved,
        fits::{depth, link_clones, name_of, prefixes},
        follow::in_dir,
        step::Step,
    },
    inode::{InodeRef, Link},
    merge::Change,
    path::{self},
    record::{Record, Stored},
    types::FileKind,
};

/// An entry that moves.
struct Moving<'a> {
    from: &'a [u8],
    dir: &'a [u8],
    /// The new path, from the top.
    to: Vec<u8>,
    number: u32,
    is_dir: bool,
    direct: bool,
}

/// An entry that leaves its path.
enum Going<'a> {
    Removed(&'a [u8]),
    Moved(Moving<'a>),
}

impl Going<'_> {
    fn from(&self) -> &[u8] {
        match self {
            Going::Removed(from) => from,
            Going::Moved(moving) => moving.from,
        }
    }
}

/// An entry that gets a path.
enum Coming<'a> {
    Moved(Moving<'a>),
    Taken { from: &'a [u8], to: Vec<u8>, without: &'a [Vec<u8>] },
}

impl Coming<'_> {
    fn to(&self) -> &[u8] {
        match self {
            Coming::Moved(moving) => &moving.to,
            Coming::Taken { to, .. } => to,
        }
    }
}

impl Apply<'_> {
    /// Adds the removals, the moves and the entries that are taken to the batch.
    pub(crate) fn relocate(&mut self, steps: &[Step]) -> Result<()> {
        let moved = Moved::of(steps);
        let (mut going, mut coming) = (Vec::new(), Vec::new());
        let mut numbers = 0u32..;
        for step in steps {
            match step {
                Step::Remove(entry) => going.push(Going::Removed(entry)),
                Step::Move { from, dir, name } => {
                    let to = path::entry(&moved.after(dir), name)?;
                    let value = self.trees.ours.value(from)?.unwrap_or_default();
                    let is_dir = self.record(&value)?.kind == FileKind::Directory;
                    let free = self.trees.ours.value(&path::entry(dir, name)?)?.is_none();
                    let direct = free && moved.around(dir).is_none();
                    let number = numbers.next().unwrap_or_default();
                    going.push(Going::Moved(Moving { from, dir, to, number, is_dir, direct }));
                }
                Step::Take { from, dir, without } => {
                    coming.push(Coming::Taken { from, to: in_dir(&moved.after(dir), from), without });
                }
                Step::Change { .. } | Step::Write { .. } => {}
            }
        }
        going.sort_by_key(|going| Reverse(depth(going.from())));
        for going in going {
            match going {
                Going::Removed(entry) => self.remove(entry)?,
                Going::Moved(moving) => {
                    self.leave(&moving)?;
                    coming.push(Coming::Moved(moving));
                }
            }
            self.flush()?;
        }
        coming.sort_by_key(|coming| depth(coming.to()));
        for coming in coming {
            match coming {
                Coming::Moved(moving) => self.arrive(&moving)?,
                Coming::Taken { from, to, without } => self.take(from, &to, without)?,
            }
            self.flush()?;
        }
        Ok(())
    }

    /// Removes the entry `inside` from a directory that was taken from the fork, whose contents prefixes are `from` and
    /// `to`.
    pub(crate) fn leave_out(&mut self, from: &[u8], to: &[u8], inside: &[u8]) -> Result<()> {
        let (there, here) = ([from, inside].concat(), [to, inside].concat());
        let Some(value) = self.trees.theirs.value(&there)? else { return Ok(()) };
        let is_dir = matches!(Stored::decode(&value), Ok(Stored::Record(r)) if r.kind == FileKind::Directory);
        let place = self.trees.ours.place(&here);
        self.batch.delete(path::meta(&place)).delete_prefix(path::data(&place));
        let contents = self.trees.ours.place(&contents_of(&here));
        if is_dir {
            self.batch.delete_prefix(path::meta(&contents)).delete_prefix(path::data(&contents));
            self.marks_leave(&contents);
        }
        if self.fs.has_links() {
            // The root of the lineage is in what was taken, or that itself.
            let around = self.trees.theirs.place(from);
            let level = self.trees.theirs.level(path::directory_of(&there))?;
            let root = level.and_then(|level| level.root.strip_prefix(&around[..])).unwrap_or_default();
            let root = self.trees.ours.place(&[to, root].concat());
            let name = path::link_name(&root, if is_dir { &contents } else { &place }).unwrap_or_default();
            self.batch.delete_prefix(path::meta(&name));
            self.uncount(root)?;
        }
        Ok(())
    }

    fn record(&self, value: &[u8]) -> Result<Box<Record>> {
        match Stored::decode(value) {
            Ok(Stored::Record(record)) => Ok(record),
            _ => Err(Error::Damaged { what: "a merge".into(), detail: "no record of what moves" }),
        }
    }

    /// Prefixes of all keys of a moving entry, from and to, with those that are kept by contents prefix.
    fn pairs(&self, moving: &Moving<'_>) -> Result<Vec<(Bytes, Bytes)>> {
        let all = |entry: &[u8]| prefixes(&self.trees.ours, entry, moving.is_dir);
        let mut pairs: Vec<_> = all(moving.from).into_iter().zip(all(&moving.to)).collect();
        if moving.is_dir && self.hidden.is_none() {
            let place = |entry: &[u8]| self.trees.ours.place(&contents_of(entry));
            pairs.extend(self.fs.moves_kept_by_prefix(&place(moving.from), &place(&moving.to))?);
        }
        Ok(pairs)
    }

    fn leave(&mut self, moving: &Moving<'_>) -> Result<()> {
        let place = self.trees.ours.place(moving.from);
        let to = path::new_entry(&self.trees.ours.place(path::directory_of(&moving.to)), self.name(moving))?;
        debug_assert_eq!(to, self.trees.ours.place(&moving.to));
        for (slot, (from, to)) in (0..).zip(self.pairs(moving)?) {
            let to = if moving.direct { to } else { self.aside(moving.number, slot) };
            self.batch.rename_prefix(from, to);
        }
        self.marks_leave(&self.trees.ours.place(&contents_of(moving.from)));
        if self.hidden.is_some() {
            return Ok(());
        }
        if moving.is_dir {
            self.fs.find_marks_later(&mut self.batch, self.now)?;
            self.relocated.left.insert(self.trees.ours.place(&contents_of(moving.from)));
        }
        self.relocated.left.insert(place);
        if self.relocated.replaced.contains(moving.from) {
            return Ok(());
        }
        let value = self.trees.ours.value(moving.from)?.unwrap_or_default();
        let record = self.record(&value)?;
        if let Some(inode) = self.inode(moving.from, &record)? {
            let parent = self.loaded(moving.dir)?;
            self.touched_inodes.insert(moving.dir.to_vec(), parent.clone());
            self.relocated.inodes.push((inode, parent, self.name(moving).into()));
        }
        Ok(())
    }

    fn name<'m>(&self, moving: &'m Moving<'_>) -> &'m [u8] {
        let dir = path::directory_of(&moving.to).len();
        moving.to.get(dir + 1..moving.to.len().saturating_sub(1)).unwrap_or_default()
    }

    fn arrive(&mut self, moving: &Moving<'_>) -> Result<()> {
        let changed = Change { ctime: Some(self.now), ..Change::default() };
        let record = path::meta(&self.trees.ours.place(&moving.to));
        if !moving.direct {
            for (slot, (_, to)) in (0..).zip(self.pairs(moving)?) {
                self.batch.rename_prefix(self.aside(moving.number, slot), to);
            }
        }
        self.batch.upsert(record, changed.encode());
        Ok(())
    }

    /// Loads the directories to which an entry in memory moves, before anything is looked up there. The directories
    /// around are loaded too, which may change and move as well.
    pub(crate) fn load_targets(&mut self, steps: &[Step]) -> Result<()> {
        let moves = steps.iter().filter_map(|step| match step {
            Step::Move { from, dir, .. } => Some((from, dir)),
            _ => None,
        });
        let mut rest: Vec<_> = moves.filter(|_| self.hidden.is_none()).collect();
        let mut before = usize::MAX;
        while rest.len() < before {
            before = rest.len();
            let mut left = Vec::new();
            for (from, dir) in rest {
                if self.directory(&contents_of(from))?.is_none() {
                    left.push((from, dir));
                    continue;
                }
                let target = self.loaded(dir)?;
                self.targets.push(target);
                // More directories are in memory by now.
                self.lineages.clear();
            }
            rest = left;
        }
        Ok(())
    }

    /// Loads the directory with this contents prefix, as before the merge. The caller holds all of the tree.
    pub(crate) fn loaded(&mut self, dir: &[u8]) -> Result<InodeRef> {
        if dir.is_empty() {
            return Ok(self.into.clone());
        }
        let entry = path::entry_of_contents(dir).unwrap_or_default();
        let parent = self.loaded(path::directory_of(&entry))?;
        loop {
            let departures = self.fs.table.departures();
            let value = self.fs.db.get(&path::meta(&self.trees.ours.place(&entry)))?.unwrap_or_default();
            let record = self.record(&value)?;
            let (ino, inside) = self.fs.lineages.identity(&self.fs.db, parent.lineage, &record)?;
            let above = path::directory_of(&entry).len();
            let name = entry.get(above + 1..entry.len().saturating_sub(1)).unwrap_or_default();
            let link = Link::At { parent: parent.clone(), name: name.into() };
            if let Some(inode) = self.fs.table.enter(ino, inside, Some(departures), link, *record) {
                return Ok(inode);
            }
        }
    }

    /// Takes what the fork has at `entry` to where the place will be, from the top.
    fn take(&mut self, entry: &[u8], to: &[u8], without: &[Vec<u8>]) -> Result<()> {
        let inside = to;
        let Some(value) = self.trees.theirs.value(entry)? else { return Ok(()) };
        let found = self.trees.theirs.found(entry, &value)?;
        let dir = self.trees.ours.place(path::directory_of(to));
        let place = path::new_entry(&dir, name_of(to))?;
        let mut record = Record { pin: None, nlink: 1, ctime: self.now, crtime: self.now, ..found.record };
        if record.kind == FileKind::Directory {
            let root_of_its_own = record.clone_id != 0;
            record.clone_id = self.fs.fresh_clone()?;
            if self.hidden.is_none() {
                self.fs.find_marks_later(&mut self.batch, self.now)?;
            }
            let (from, to) =
                (self.trees.theirs.place(&contents_of(entry)), self.trees.ours.place(&contents_of(to)));
            self.batch.clone_prefix(path::meta(&from), path::meta(&to));
            self.batch.clone_prefix(path::data(&from), path::data(&to));
            if self.fs.has_links() && !root_of_its_own {
                self.take_links(entry, &from, &to)?;
            }
        } else {
            record.fileno = self.fs.fresh_file()?;
        }
        if record.has_data() {
            self.batch.clone_prefix(found.data, path::data(&place));
        }
        self.batch.put(path::meta(&place), record.encode());
        without.iter().try_for_each(|left| self.leave_out(&contents_of(entry), &contents_of(inside), left))
    }

    /// Takes the link area along that a directory of the fork uses, and the names that are in the directory.
    fn take_links(&mut self, entry: &[u8], from: &[u8], to: &[u8]) -> Result<()> {
        let clones = link_clones(self.trees, entry, from, to)?;
        if clones.is_empty() {
            return Ok(());
        }
        for (from, to) in clones {
            self.batch.clone_prefix(from, to);
        }
        self.uncount(to.to_vec())
    }
}
