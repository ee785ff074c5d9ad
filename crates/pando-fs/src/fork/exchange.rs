//! The end of a merge that was made in a hidden tree: one batch replaces the contents of the directory by the result,
//! and then the inodes in memory are changed.
//!
//! Guarantees: entries that stay keep their inode numbers; open files that are removed stay readable; keys by
//! contents prefix (`by_prefix`) follow their directories. The caller holds both trees exclusively, and has replayed
//! the changes of other calls. Cost: a walk over the inodes in memory of the directories that the merge changes, and
//! the steps that were left for the end.

use std::{collections::HashMap, ffi::OsString, os::unix::ffi::OsStringExt};

use bytes::Bytes;
use pando_db::{Batch, Snapshot};

use crate::{
    bill::{Bill, Taken},
    diff::side::{Side, contents_of},
    error::{Error, Result},
    fork::{
        apply::Apply,
        follow::in_dir,
        hidden::Hidden,
        landing::Landing,
        places::Places,
        replay::overlay,
        step::{Step, Trees},
        works::{BEFORE, MERGED, Works},
    },
    forks::{Fork, damaged},
    inode::{InodeRef, Link},
    orphan::Fate,
    path::{self, system},
    record::Record,
    types::{CloneReport, FileKind, Ino, Time},
    volume::Fs,
};

/// See the module.
pub(crate) struct Exchange<'a> {
    pub fs: &'a Fs,
    pub places: &'a Places,
    pub works: Works,
    pub steps: &'a [Step],
    pub landing: &'a Landing<'a>,
    pub hidden: &'a Hidden,
    pub into: &'a InodeRef,
    /// The record of the directory when the merge began.
    pub top: &'a Record,
    pub view: &'a Snapshot,
    /// Bytes that the plan adds to what the tree takes.
    pub brought: i64,
    pub now: Time,
}

/// The changes in memory to be made when the batch is written.
#[derive(Default)]
struct InMemory {
    removed: Vec<(InodeRef, Fate)>,
    moved: Vec<(InodeRef, InodeRef, Box<[u8]>)>,
    /// Inodes whose records change, with the new record, and whether the kernel has to be notified.
    changed: Vec<(InodeRef, Record, bool)>,
    /// Directories by contents prefix.
    dirs: HashMap<Vec<u8>, Ino>,
}

/// A function for each inode in memory: it gets the inode, the contents prefix of its parent from the top, and its
/// relation to the parent.
type Each<'a> = dyn FnMut(&InodeRef, &[u8], Hangs) -> Result<()> + 'a;

/// The relation of an inode in memory to its parent.
enum Hangs {
    /// An entry of the directory, with this name.
    Entry(Box<[u8]>),
    /// A linked file of the lineage whose root the parent is, with its link id.
    Linked(u64),
}

impl Exchange<'_> {
    /// Writes the batch. `None` if other calls have changed what the merge changes; otherwise the cached entries that
    /// the kernel has to drop, and whether names have to be counted.
    pub(crate) fn run(&self) -> Result<Option<(CloneReport, bool)>> {
        let (fs, ours, mut batch) = (self.fs, &self.places.ours, Batch::new());
        fs.may_leave_from(self.into, self.steps.iter().filter_map(Step::leaves))?;
        fs.may_bring_steps(&ours.contents, self.steps)?;
        let (entry, contents) = self.works.copy(MERGED);
        let Some(mut record) = self.top_record(&mut batch, &entry)? else { return Ok(None) };
        let mut trees = Trees { base: self.side(), theirs: self.side(), ours: self.side() };
        let mut apply = Apply::new(fs, &mut trees, self.into, self.now);
        let mut memory = self.memory(&mut batch, &mut apply)?;
        if !self.linked_files(&mut batch, &mut apply, &mut memory)? {
            return Ok(None);
        }
        if !self.kept_by_prefix(&mut batch)? {
            return Ok(None);
        }
        for (from, to) in path::without_links(&contents).into_iter().zip(path::without_links(&ours.contents))
        {
            batch.rename_prefix(from, to);
        }
        let mut given_back = Vec::new();
        for gone in &self.hidden.retired {
            let (around, inside) = (gone.around, gone.inside);
            given_back.extend(fs.lineages.retire(&fs.db, &mut batch, around, &gone.record, inside)?);
        }
        match self.hidden.marks {
            true => _ = batch.put(system::marks_to_find(), self.now.encode()),
            false => fs.find_marks_later(&mut batch, self.now)?,
        }
        self.next_origin(&mut batch)?;
        batch.delete_prefix(path::volume(self.works.work)).delete(system::work(self.works.work));
        batch.put(system::cloned(), fs.now().encode());
        let parent = self.into.parent()?.ok_or(Error::Stale(self.into.ino))?;
        let above = fs.above_in(&parent, path::directory_of(&ours.entry), false);
        // The tree is counted later, because of the names of linked files.
        let accounts = fs.lock_accounts();
        if accounts.is_some() {
            // No call is in the directory, so its account in memory is the stored one.
            record.account = self.into.peek(|s| s.record.account);
            fs.bring(self.into, &mut record, self.brought)?;
            fs.ledger.mark();
        }
        batch.put(path::meta(&ours.entry), record.encode());
        let mut bill = Bill::default();
        bill.add(above, Taken { bytes: self.brought, inexact: true });
        let reserved = fs.reserve_alone(&accounts, &mut batch, bill)?;
        fs.db.write(batch).map_err(|e| match e {
            pando_db::Error::TooLarge { what: "batch", .. } => Error::MergeTooLarge {
                name: self.into.label(),
                changes: self.hidden.unnamed.len() + self.hidden.linked.len(),
            },
            other => other.into(),
        })?;
        reserved.paid();
        drop(accounts);
        fs.tree_cloned(fs.now());
        self.into.change(|s| {
            s.record = record;
            s.atime_unsaved = false;
        });
        for lineage in given_back {
            fs.lineages.give_back(Some(lineage));
        }
        fs.recount_later(self.into);
        let counts = self.hidden.marks || !self.hidden.unnamed.is_empty();
        Ok(Some((self.change_memory(memory), counts)))
    }

    /// The directory as it is now.
    fn side(&self) -> Side {
        let ours = &self.places.ours;
        Side::of_place(self.view, None, (&ours.entry, &ours.contents), ours.root.clone())
    }

    /// The new record of the directory itself, with its extended attributes outside the record.
    fn top_record(&self, batch: &mut Batch, entry: &[u8]) -> Result<Option<Record>> {
        let damaged = |detail| Error::Damaged { what: "a merge".into(), detail };
        let value = self.fs.db.get(&path::meta(entry))?.ok_or(damaged("its directory is not there"))?;
        let merged = Record::decode(&value).map_err(damaged)?;
        let live = self.into.peek(|s| s.record.clone());
        let outside = self.top.has_outside() || merged.has_outside() || live.has_outside();
        // A record does not have the values of attributes outside of it, so these are compared.
        if self.landing.at(b"").attrs && outside {
            let own = path::attrs_under(&path::data(&self.places.ours.entry));
            let before = path::attrs_under(&path::data(&self.works.copy(BEFORE[0]).0));
            if live.attrs != self.top.attrs
                || self.view.diff(&before, self.view, &own)?.next().transpose()?.is_some()
            {
                return Ok(None);
            }
            batch.delete_prefix(own.clone());
            batch.rename_prefix(path::attrs_under(&path::data(entry)), own);
        }
        Ok(overlay(self.top, &live, &merged))
    }

    /// The record at a path of the copy.
    fn stored(&self, path: &[u8]) -> Result<Option<Record>> {
        let value = self.fs.db.get(&path::meta(path))?;
        Ok(value.and_then(|value| Record::decode(&value).ok()))
    }

    /// Calls `each` for the inodes in memory in the directories that the merge changes or removes.
    fn each_in_memory(&self, each: &mut Each<'_>) -> Result<()> {
        let mut dirs = vec![(self.into.clone(), Vec::new(), false)];
        while let Some((dir, contents, goes)) = dirs.pop() {
            for inode in self.fs.table.children(&dir) {
                let Some(hangs) = inode.peek(|s| match &s.link {
                    Link::At { name, .. } => Some(Hangs::Entry(name.clone())),
                    Link::Linked { id, .. } => Some(Hangs::Linked(*id)),
                    _ => None,
                }) else {
                    continue;
                };
                if let (FileKind::Directory, Hangs::Entry(name)) = (inode.kind, &hangs) {
                    let inside = path::contents(&contents, name)?;
                    let site = self.landing.at(&path::entry(&contents, name)?);
                    let goes = (goes || site.removed || site.renewed) && !site.moved;
                    if goes || self.landing.any_below(&inside) {
                        dirs.push((inode.clone(), inside, goes));
                    }
                }
                each(&inode, &contents, hangs)?;
            }
        }
        Ok(())
    }

    /// The inodes of the directories into which inodes in memory are moved, read into memory.
    fn parents_of_moved(&self, apply: &mut Apply<'_>) -> Result<Vec<InodeRef>> {
        let mut parents = Vec::new();
        self.each_in_memory(&mut |_, dir, hangs| {
            if let Hangs::Entry(name) = hangs
                && let Some((dir, _)) = self.landing.target_of(&path::entry(dir, &name)?)
            {
                parents.push(apply.loaded(dir)?);
            }
            Ok(())
        })?;
        Ok(parents)
    }

    /// Finds the change of each inode in memory in the directory, and adds the moves of open files that are removed
    /// to the batch.
    fn memory(&self, batch: &mut Batch, apply: &mut Apply<'_>) -> Result<InMemory> {
        let (ours, mut out) = (&self.places.ours, InMemory::default());
        out.dirs.insert(Vec::new(), self.into.ino);
        let copy = self.works.copy(MERGED).1;
        let place = |inside: &[u8]| [&ours.contents[..], inside].concat();
        let work = |inside: &[u8]| [&copy[..], inside].concat();
        let _parents = self.parents_of_moved(apply)?;
        self.each_in_memory(&mut |inode, dir, hangs| {
            let open = inode.kind == FileKind::Regular && inode.peek(|s| s.opens > 0);
            let name = match hangs {
                Hangs::Entry(name) => name,
                // The lineage of the directory itself stays.
                Hangs::Linked(_) if dir.is_empty() => return Ok(()),
                Hangs::Linked(id) => {
                    let root = path::entry_of_contents(dir).unwrap_or_default();
                    match self.landing.land(&root) {
                        Some(to) => {
                            let linked = path::linked(&work(&contents_of(&to)), id);
                            if let Some(record) = self.stored(&linked)? {
                                out.changed.push((inode.clone(), record, true));
                            }
                        }
                        None if open => {
                            let linked = path::linked(&place(dir), id);
                            self.fs.make_orphan(batch, path::data(&linked), inode, self.now);
                            out.removed.push((inode.clone(), Fate::Orphan));
                        }
                        None => {}
                    }
                    return Ok(());
                }
            };
            let entry = path::entry(dir, &name)?;
            let (site, to) = (self.landing.at(&entry), self.landing.land(&entry));
            let is_dir = inode.kind == FileKind::Directory;
            if is_dir {
                out.dirs.insert(contents_of(&entry), inode.ino);
            }
            let goes = site.removed || site.renewed;
            let Some(to) = to.filter(|_| !goes) else {
                if open {
                    self.fs.make_orphan(batch, path::data(&place(&entry)), inode, self.now);
                }
                if goes || open {
                    out.removed.push((inode.clone(), if open { Fate::Orphan } else { Fate::Gone }));
                }
                return Ok(());
            };
            if site.changed || site.moved || is_dir && self.landing.touches(&contents_of(&entry)) {
                let record = self.stored(&work(&to))?;
                let tell = site.changed || site.moved;
                out.changed.extend(record.map(|record| (inode.clone(), record, tell)));
            }
            if site.moved
                && let Some((dir, name)) = self.landing.target_of(&entry)
            {
                out.moved.push((inode.clone(), apply.loaded(dir)?, name.into()));
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Changes linked files that are not in the copies, and their names; false if other calls have changed these.
    fn linked_files(&self, batch: &mut Batch, apply: &mut Apply<'_>, memory: &mut InMemory) -> Result<bool> {
        let ours = &self.places.ours;
        for (inside, all) in &self.hidden.unnamed {
            let path = [&ours.contents[..], inside].concat();
            let name = path::meta(&path::link_name(&ours.root, &path).unwrap_or_default());
            match all {
                true => batch.delete_prefix(name),
                false => batch.delete(name),
            };
        }
        if !self.hidden.unnamed.is_empty() {
            self.fs.mark_uncounted(batch, &ours.root)?;
        }
        for change in &self.hidden.linked {
            let file = path::linked(&ours.root, change.before.fileno);
            let live = self.fs.db.get(&path::meta(&file))?;
            let live = live.and_then(|value| Record::decode(&value).ok());
            let Some(live) = live else { return Ok(false) };
            let Some(record) = overlay(&change.before, &live, &change.after) else { return Ok(false) };
            // Attributes outside the record are replaced; `watched` has only their values.
            if change.attrs.is_some() && live.attrs != change.before.attrs {
                return Ok(false);
            }
            if change.alone.is_some() {
                // The copy has what was written meanwhile by any name of the file.
                let Some(to) = self.landing.land(&change.entry) else { return Ok(false) };
                let place = [&self.works.copy(MERGED).1[..], &to].concat();
                change.put_copy(batch, &path::data(&file), &place, &record);
                continue;
            }
            change.put(batch, &path::data(&file), &record);
            if let Some(inode) = apply.inode(&change.entry, &live)? {
                memory.changed.push((inode, record.clone(), true));
            }
        }
        Ok(true)
    }

    /// Moves or removes the keys that are kept by contents prefix for directories in this one: forks, policies and
    /// snapshots. False if another call has moved the fork that is merged into a directory that the merge moves or
    /// removes.
    fn kept_by_prefix(&self, batch: &mut Batch) -> Result<bool> {
        let (fs, top) = (self.fs, &self.places.ours.contents);
        // The new path of a directory, if it lies in this one and is moved or removed.
        let goes = |place: &[u8]| -> Option<Option<Vec<u8>>> {
            let inside = place.strip_prefix(&top[..]).filter(|inside| !inside.is_empty())?;
            let to = self.landing.land(&path::entry_of_contents(inside)?).map(|entry| contents_of(&entry));
            (to.as_deref() != Some(inside)).then(|| to.map(|to| [&top[..], &to].concat()))
        };
        let mut puts = Vec::new();
        for (place, uid, policy) in fs.stored_policies()? {
            if let Some(to) = goes(&place) {
                batch.delete(system::policy(&place));
                puts.extend(to.map(|to| (system::policy(&to), policy.encode(uid))));
            }
        }
        for (place, ino) in fs.snapshotted_below(top)? {
            if let Some(to) = goes(&place) {
                batch.delete(system::snapshotted(&place));
                puts.extend(to.map(|to| (system::snapshotted(&to), ino.to_le_bytes().to_vec().into())));
            }
        }
        let mut gone = Vec::new();
        if fs.has_forks() {
            let mut pairs = self.view.prefix(&system::fork(top));
            while let Some((key, value)) = pairs.next_ref()? {
                // A plan moves no fork, but one may have been made since below what it moves.
                let Some(to) = goes(system::fork_contents(key).unwrap_or_default()) else { continue };
                let number = Fork::decode(value).map_err(damaged)?.number;
                if number == self.places.fork.number {
                    return Ok(false); // its place is that where its next origin is put down
                }
                batch.delete(key.to_vec());
                match to {
                    Some(to) => puts.push((system::fork(&to), Bytes::copy_from_slice(value))),
                    None => {
                        batch.delete_prefix(path::volume(number));
                        gone.push(number);
                    }
                }
            }
            drop(pairs);
            let below = system::forked_below(top);
            let all = if gone.is_empty() { below } else { system::forked_below(b"") };
            let mut pairs = self.view.prefix(&all);
            while let Some((key, _)) = pairs.next_ref()? {
                let (place, number) = system::forked_parts(key).ok_or_else(|| damaged("impossible key"))?;
                let to = goes(place);
                if gone.contains(&number) || to.is_some() {
                    batch.delete(key.to_vec());
                }
                if let Some(Some(to)) = to
                    && !gone.contains(&number)
                {
                    puts.push((system::forked(&to, number), Bytes::new()));
                }
            }
        }
        for (key, value) in puts {
            batch.put(key, value);
        }
        Ok(true)
    }

    /// The origin of the fork becomes the state of this directory when the merge began, if the fork was made of it.
    fn next_origin(&self, batch: &mut Batch) -> Result<()> {
        let (place, ours, old) = (&self.places.theirs, &self.places.ours, self.places.fork);
        let number = self.works.next;
        batch.delete(system::work(number));
        if !self.fs.is_source_of(&ours.contents, old.number)? {
            batch.delete_prefix(path::volume(number));
            return Ok(());
        }
        batch.put(system::fork(&place.contents), Fork { number, since: self.now, ..old }.encode());
        batch.delete(system::forked(&ours.contents, old.number));
        batch.put(system::forked(&ours.contents, number), Bytes::new());
        batch.delete_prefix(path::volume(old.number));
        Ok(())
    }

    /// Changes the inodes in memory; returns the cached entries that the kernel has to drop.
    fn change_memory(&self, memory: InMemory) -> CloneReport {
        let (fs, mut report) = (self.fs, CloneReport::default());
        for (inode, parent, name) in memory.moved {
            inode.move_to(Link::At { parent, name });
        }
        for (inode, record, tell) in memory.changed {
            inode.change(|s| {
                s.record = record;
                s.atime_unsaved = false;
            });
            if tell {
                report.replaced.push(inode.ino);
            }
        }
        for (inode, fate) in memory.removed {
            fs.removed(&inode, fate, self.now);
            let to = if fate == Fate::Orphan { &mut report.orphaned } else { &mut report.replaced };
            to.push(inode.ino);
        }
        // Trees were removed, and directories may have moved.
        fs.table.tree_removed();
        let mut entry = |dir: &[u8], name: &[u8]| {
            if let Some(ino) = memory.dirs.get(dir) {
                fs.positions.removed(&fs.db, name);
                report.entries.push((*ino, OsString::from_vec(name.to_vec())));
            }
        };
        let name_of = |path: &[u8]| {
            let name = path.get(path::directory_of(path).len() + 1..path.len().saturating_sub(1));
            name.unwrap_or_default().to_vec()
        };
        for step in self.steps {
            match step {
                Step::Remove(path) => entry(path::directory_of(path), &name_of(path)),
                Step::Take { from, dir, .. } => entry(dir, &name_of(&in_dir(dir, from))),
                Step::Move { from, dir, name } => {
                    entry(path::directory_of(from), &name_of(from));
                    entry(dir, name);
                }
                Step::Change { to, .. } | Step::Write { to, .. } if self.landing.at(to).renewed => {
                    entry(path::directory_of(to), &name_of(to));
                }
                Step::Change { .. } | Step::Write { .. } => {}
            }
        }
        report
    }
}
