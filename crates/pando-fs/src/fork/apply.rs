//! Carrying a merge out: one batch, and then the same in memory; or several, on a tree that nobody sees (`hidden`).
//!
//! What is merged into is changed in place, so all that stays keeps its number, and what is open stays open. Whole
//! trees, and the data of files, are cloned. The caller holds `tree` of the directory that is merged into
//! exclusively, so no call is under way in it, and knows that the plan is of this moment. Uses plans, clones'
//! prefixes and lineages.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    attrs::CAPABILITY,
    data::without_set_id,
    diff::{
        change::Aspects,
        side::{Found, contents_of},
    },
    error::{Error, Result},
    fork::{
        bounds::Bounds,
        carried::Carried,
        fits::{link_clones, name_of},
        follow::in_dir,
        hidden::{AttributeChange, Hidden, Retired},
        step::{Step, Trees, differ},
    },
    inode::InodeRef,
    limits::BLOCK_SIZE,
    lineage::number::number,
    merge::Change,
    orphan::Fate,
    path,
    record::{Record, Stored},
    staying::Staying,
    types::{CloneReport, FileKind, Time},
    volume::Fs,
};

/// A merge that is being put into a batch.
pub(crate) struct Apply<'a> {
    pub fs: &'a Fs,
    pub trees: &'a mut Trees,
    pub into: &'a InodeRef,
    pub now: Time,
    pub batch: Batch,
    /// Lineages of directories, by contents prefix from the top; none of those that nobody looked into yet.
    pub lineages: HashMap<Vec<u8>, Option<u32>>,
    /// Directories whose entries change.
    touched: BTreeSet<Vec<u8>>,
    /// Those of them that are in memory, by contents prefix from the top.
    pub touched_inodes: HashMap<Vec<u8>, InodeRef>,
    /// Roots of lineages that are marked: names have to be counted in them. By where they are in this moment.
    uncounted: BTreeSet<Vec<u8>>,
    /// Names have to be counted somewhere.
    counts: bool,
    /// Directories that were brought to memory because something in memory moves there.
    pub targets: Vec<InodeRef>,
    changed: Vec<(InodeRef, Record)>,
    removed: Vec<(InodeRef, Fate)>,
    orphaned: Vec<InodeRef>,
    given_back: Vec<u32>,
    /// Names that mean something else: directories from the top, and names.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    tree_removed: bool,
    pub carried: Carried,
    /// What is left for the end, where the tree is one that nobody sees.
    pub hidden: Option<Hidden>,
    /// What may end it early, where nobody waits for what is done.
    pub bounds: Option<&'a Bounds<'a>>,
}

/// Whose content a file gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentOf {
    /// It keeps what it has.
    Here,
    /// The same, in a file of its own.
    Copy,
    Fork,
    Both,
}

impl<'a> Apply<'a> {
    pub(crate) fn new(fs: &'a Fs, trees: &'a mut Trees, into: &'a InodeRef, now: Time) -> Self {
        Self {
            fs,
            trees,
            into,
            now,
            batch: Batch::new(),
            lineages: HashMap::new(),
            touched: BTreeSet::new(),
            touched_inodes: HashMap::new(),
            uncounted: BTreeSet::new(),
            counts: false,
            targets: Vec::new(),
            changed: Vec::new(),
            removed: Vec::new(),
            orphaned: Vec::new(),
            given_back: Vec::new(),
            entries: Vec::new(),
            tree_removed: false,
            carried: Carried::default(),
            hidden: None,
            bounds: None,
        }
    }

    /// Adds all steps to the batch, and finds out all that [`Apply::done`] has to know: behind the batch nothing may
    /// fail.
    pub(crate) fn steps(&mut self, steps: &[Step]) -> Result<()> {
        self.load_targets(steps)?;
        // All is at its old place.
        for step in steps {
            self.bounds.map_or(Ok(()), Bounds::go_on)?;
            match step {
                Step::Change { from, to, aspects, alone } => {
                    let content = match step.makes_file() {
                        true if *alone => ContentOf::Copy,
                        true => ContentOf::Fork,
                        false => ContentOf::Here,
                    };
                    self.change((from, to), *aspects, content, None)?;
                }
                Step::Write { from, to, aspects, text } => {
                    self.change((from, to), *aspects, ContentOf::Both, Some(text))?;
                }
                Step::Remove(entry) => self.entry_changes(entry),
                Step::Take { from, dir, .. } => self.entry_changes(&in_dir(dir, from)),
                Step::Move { from, dir, name } => {
                    self.entry_changes(from);
                    self.entry_changes(&path::entry(dir, name)?);
                }
            }
            self.flush()?;
        }
        let touched = Change::modified(self.now).encode();
        for dir in std::mem::take(&mut self.touched) {
            let key = path::meta_of(&self.data_of_dir(&dir));
            self.batch.upsert(key, touched.clone());
            if let Some(inode) = self.directory(&dir)? {
                self.touched_inodes.insert(dir, inode);
            }
            self.flush()?;
        }
        self.carry(steps)
    }

    /// Data prefix of the directory with this contents prefix from the top.
    fn data_of_dir(&self, dir: &[u8]) -> Bytes {
        match dir.is_empty() {
            true => self.trees.ours.own_data(),
            false => {
                let entry = path::entry_of_contents(dir).unwrap_or_default();
                path::data(&self.trees.ours.place(&entry))
            }
        }
    }

    /// The lineage of the entries of a directory, if anybody looked into it.
    pub(crate) fn lineage(&mut self, dir: &[u8]) -> Result<Option<u32>> {
        if dir.is_empty() {
            return Ok(Some(self.into.lineage));
        }
        if let Some(known) = self.lineages.get(dir) {
            return Ok(*known);
        }
        let entry = path::entry_of_contents(dir).unwrap_or_default();
        let around = self.lineage(path::directory_of(&entry))?;
        let value = self.trees.ours.value(&entry)?.unwrap_or_default();
        let lineage = match (around, Stored::decode(&value)) {
            (Some(around), Ok(Stored::Record(record))) if record.clone_id != 0 => {
                self.fs.lineages.known(&self.fs.db, around, record.clone_id)?
            }
            (around, _) => around,
        };
        self.lineages.insert(dir.to_vec(), lineage);
        Ok(lineage)
    }

    /// The inode of an entry with this record, if it is in memory.
    pub(crate) fn inode(&mut self, entry: &[u8], record: &Record) -> Result<Option<InodeRef>> {
        if entry.is_empty() {
            return Ok(Some(self.into.clone()));
        }
        if self.hidden.is_some() {
            return Ok(None); // its number is that of another place
        }
        let Some(around) = self.lineage(path::directory_of(entry))? else { return Ok(None) };
        let ino = match (record.kind, record.pin) {
            (FileKind::Directory, _) if record.clone_id != 0 => match self.lineage(&contents_of(entry))? {
                Some(inside) => number(inside, record.fileno),
                None => return Ok(None),
            },
            (FileKind::Directory, _) | (_, None) => number(around, record.fileno),
            (_, Some(pin)) if pin.lineage == around => pin.ino,
            _ => number(around, record.fileno),
        };
        Ok(self.fs.table.find(ino))
    }

    /// The inode of the directory with this contents prefix from the top, if it is in memory.
    pub(crate) fn directory(&mut self, dir: &[u8]) -> Result<Option<InodeRef>> {
        if self.hidden.is_some() {
            return Ok(None);
        }
        if dir.is_empty() {
            return Ok(Some(self.into.clone()));
        }
        let entry = path::entry_of_contents(dir).unwrap_or_default();
        match Stored::decode(&self.trees.ours.value(&entry)?.unwrap_or_default()) {
            Ok(Stored::Record(record)) => self.inode(&entry, &record),
            _ => Ok(None),
        }
    }

    /// Marks the names in a lineage as uncounted, whose root has this contents prefix at this point of the batch.
    pub(crate) fn uncount(&mut self, root: Vec<u8>) -> Result<()> {
        if !self.uncounted.contains(&root) {
            match &mut self.hidden {
                Some(hidden) => hidden.mark(self.fs, &mut self.batch, &root)?,
                None => _ = self.fs.mark_uncounted(&mut self.batch, &root)?,
            }
            self.uncounted.insert(root);
            self.counts = true;
        }
        Ok(())
    }

    /// What has this contents prefix, from the volume, leaves its place or goes, and its marks with it.
    pub(crate) fn marks_leave(&mut self, contents: &[u8]) {
        self.uncounted.retain(|root| !root.starts_with(contents));
    }

    /// Takes a name out of the index of linked files, or `all` that begin so.
    fn unname(&mut self, root: Vec<u8>, inside: &[u8], all: bool) -> Result<()> {
        if let Some(hidden) = &mut self.hidden {
            if hidden.root == root {
                hidden.unnamed.push((inside.to_vec(), all));
                return Ok(());
            }
            hidden.areas.insert(root.clone());
        }
        let name = path::meta(&self.trees.ours.link_name(&root, inside));
        match all {
            true => self.batch.delete_prefix(name),
            false => self.batch.delete(name),
        };
        self.uncount(root)
    }

    /// Whether what is at an entry is a linked file that is not in the tree that nobody sees.
    fn is_for_the_end(&mut self, entry: &[u8]) -> Result<bool> {
        let is_name = |value: &Bytes| matches!(Stored::decode(value), Ok(Stored::Name(_)));
        if self.hidden.is_none() || !self.trees.ours.value(entry)?.as_ref().is_some_and(is_name) {
            return Ok(false);
        }
        let root = self.root_of(entry)?;
        let Some(hidden) = &mut self.hidden else { return Ok(false) };
        let around = hidden.root == root;
        if !around {
            hidden.areas.insert(root);
        }
        Ok(around)
    }

    fn root_of(&mut self, entry: &[u8]) -> Result<Vec<u8>> {
        let level = self.trees.ours.level(path::directory_of(entry))?;
        let damaged = Error::Damaged { what: "a merge".into(), detail: "a directory that is none" };
        Ok(level.ok_or(damaged)?.root.clone())
    }

    fn entry_changes(&mut self, entry: &[u8]) {
        let dir = path::directory_of(entry).to_vec();
        if self.hidden.is_none() {
            self.entries.push((dir.clone(), name_of(entry).to_vec()));
        }
        self.touched.insert(dir);
    }

    pub(crate) fn remove(&mut self, entry: &[u8]) -> Result<()> {
        self.remove_for(entry, false)
    }

    /// Removes what is at an entry; a copy of all that it is by then comes to its place, if it is `copied`.
    fn remove_for(&mut self, entry: &[u8], copied: bool) -> Result<()> {
        let Some(value) = self.trees.ours.value(entry)? else { return Ok(()) };
        let place = self.trees.ours.place(entry);
        self.batch.delete(path::meta(&place));
        let record = match Stored::decode(&value) {
            Ok(Stored::Record(record)) => *record,
            named => {
                // One name of several: who has none left goes when they are counted.
                let root = self.root_of(entry)?;
                if let (Some(hidden), Ok(Stored::Name(name)), false) = (&mut self.hidden, named, copied) {
                    hidden.watch(&root, name.id);
                }
                return self.unname(root, entry, false);
            }
        };
        let inode = self.inode(entry, &record)?;
        if record.kind != FileKind::Directory {
            let data = path::data(&place);
            let fate = match &inode {
                Some(inode) => self.fs.remove_last(&mut self.batch, data, inode, self.now),
                None => {
                    Fs::drop_data(&mut self.batch, &data, &record);
                    Fate::Gone
                }
            };
            self.removed.extend(inode.map(|inode| (inode, fate)));
            return Ok(());
        }
        let contents = self.trees.ours.place(&contents_of(entry));
        if let Some(top) = &inode {
            let carried = |path: &[u8]| self.carried.is_in_one(path);
            self.orphaned.extend(self.fs.orphan_below(&mut self.batch, top, &carried, self.now)?);
        }
        if self.hidden.is_none() {
            self.fs.drop_kept_by_place(&mut self.batch, &contents, &Staying::new())?;
        }
        self.batch.delete_prefix(path::meta(&contents)).delete_prefix(path::data(&contents));
        self.marks_leave(&contents);
        if record.has_data() {
            self.batch.delete_prefix(path::data(&place));
        }
        if self.fs.has_links() && record.clone_id == 0 {
            let (root, inside) = (self.root_of(entry)?, contents_of(entry));
            let names = path::meta(&self.trees.ours.link_name(&root, &inside));
            let view = &self.trees.ours.view;
            if view.prefix(&names).next().transpose()?.is_some() {
                if let Some(hidden) = &mut self.hidden {
                    hidden.watch_all(&root, (view, &names), self.bounds)?;
                }
                self.unname(root, &inside, true)?;
            }
        }
        let around = self.lineage(path::directory_of(entry))?;
        let inside = self.lineage(&contents_of(entry))?;
        if let (Some(around), Some(inside)) = (around, inside) {
            if let Some(hidden) = &mut self.hidden {
                hidden.retire(Retired { around, record, inside });
                return Ok(());
            }
            let fs = self.fs;
            self.given_back.extend(fs.lineages.retire(&fs.db, &mut self.batch, around, &record, inside)?);
        }
        self.removed.extend(inode.map(|inode| (inode, Fate::Gone)));
        self.tree_removed = true;
        Ok(())
    }

    /// Takes what the fork has at `entry` to where the place will be, from the top.
    pub(crate) fn take(&mut self, entry: &[u8], to: &[u8], without: &[Vec<u8>]) -> Result<()> {
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

    fn found(&mut self, (from, to): (&[u8], &[u8])) -> Result<Option<(Found, Found)>> {
        if to.is_empty() {
            return Ok(Some((self.trees.ours.top()?, self.trees.theirs.top()?)));
        }
        let (ours, theirs) = (self.trees.ours.value(to)?, self.trees.theirs.value(from)?);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(None) };
        Ok(Some((self.trees.ours.found(to, &ours)?, self.trees.theirs.found(from, &theirs)?)))
    }

    /// Changes what is at `entry` to what the fork has at `from`; `text` is content of both sides for it.
    fn change(
        &mut self,
        (from, entry): (&[u8], &[u8]),
        aspects: Aspects,
        content: ContentOf,
        text: Option<&Bytes>,
    ) -> Result<()> {
        let Some((ours, theirs)) = self.found((from, entry))? else { return Ok(()) };
        let has = |one: Aspects| aspects.0 & one.0 != 0;
        let mut record = ours.record.clone();
        record.ctime = self.now;
        if has(Aspects::XATTRS) {
            record.attrs = theirs.record.attrs.clone();
        }
        if has(Aspects::MODE) {
            record.perm = theirs.record.perm;
        }
        if has(Aspects::OWNER) {
            (record.uid, record.gid) = (theirs.record.uid, theirs.record.gid);
        }
        self.drop_mixed_privileges(&mut record, (&ours, &theirs), content)?;
        if matches!(content, ContentOf::Fork | ContentOf::Both) {
            return self.change_content(entry, (&ours, &theirs), record, has(Aspects::XATTRS), text);
        }
        if content == ContentOf::Copy {
            self.entry_changes(entry);
            self.remove_for(entry, true)?;
            self.carried.replaced(entry);
        }
        let outside = ours.record.has_outside() || theirs.record.has_outside();
        let change = AttributeChange {
            entry: entry.to_vec(),
            before: ours.record,
            after: record,
            attrs: (has(Aspects::XATTRS) && outside).then_some(theirs.data),
            alone: if content == ContentOf::Copy { Some(self.fs.fresh_file()?) } else { None },
        };
        if self.is_for_the_end(entry)?
            && let Some(hidden) = &mut self.hidden
        {
            if change.attrs.is_some() {
                hidden.watched.gets_attributes(change.before.fileno);
            }
            hidden.linked.push(change);
            return Ok(());
        }
        if change.alone.is_some() {
            change.put_copy(&mut self.batch, &ours.data, &self.trees.ours.place(entry), &change.after);
            return Ok(());
        }
        change.put(&mut self.batch, &ours.data, &change.after);
        if let Some(inode) = self.inode(entry, &change.before)? {
            self.changed.push((inode, change.after));
        }
        Ok(())
    }

    /// What one side has written does not get the rights that only the other side gave: set-id bits and
    /// capabilities stay where content, mode, owner and capabilities are all those of one side.
    fn drop_mixed_privileges(
        &self,
        record: &mut Record,
        (ours, theirs): (&Found, &Found),
        content: ContentOf,
    ) -> Result<()> {
        let perm = without_set_id(record.perm);
        let capable = record.attrs.get(CAPABILITY).is_some();
        if record.kind != FileKind::Regular || perm.is_none() && !capable {
            return Ok(());
        }
        let all_of = |side: &Found| {
            let r = &side.record;
            (r.perm, r.uid, r.gid) == (record.perm, record.uid, record.gid)
                && r.attrs.get(CAPABILITY) == record.attrs.get(CAPABILITY)
        };
        let one_side = match content {
            ContentOf::Both => false,
            ContentOf::Fork => all_of(theirs),
            ContentOf::Here | ContentOf::Copy if all_of(ours) => true,
            ContentOf::Here | ContentOf::Copy => {
                let apart = differ(&self.trees.theirs, theirs, &self.trees.ours, ours)?;
                all_of(theirs) && apart.0 & (Aspects::CONTENT.0 | Aspects::SIZE.0) == 0
            }
        };
        if !one_side {
            record.perm = perm.unwrap_or(record.perm);
            if capable {
                record.attrs = record.attrs.without(CAPABILITY);
            }
        }
        Ok(())
    }

    /// Puts a new file with the content of the fork's, or the `text` of both, in the place of one, as a program does
    /// that writes a file beside and renames it: who has the old one open keeps that, and a kernel that keeps sizes
    /// itself meets a new number.
    fn change_content(
        &mut self,
        entry: &[u8],
        (ours, theirs): (&Found, &Found),
        attributes: Record,
        attrs: bool,
        text: Option<&Bytes>,
    ) -> Result<()> {
        let (from, to) = (&theirs.record, path::data(&self.trees.ours.place(entry)));
        let stay = !attrs && ours.record.has_outside();
        if stay {
            self.batch.clone_prefix(path::attrs_under(&ours.data), self.aside(u32::MAX, 0));
        }
        self.entry_changes(entry);
        self.remove(entry)?;
        self.carried.replaced(entry);
        let record = Record {
            fileno: self.fs.fresh_file()?,
            pin: None,
            nlink: 1,
            size: text.map_or(from.size, |text| text.len() as u64),
            dense: if text.is_some() { None } else { from.dense },
            symlink: from.symlink.clone(),
            rdev: from.rdev,
            // Build tools go by it: what was built here since the fork wrote the file is older than the new content.
            mtime: self.now,
            crtime: self.now,
            ..attributes
        };
        // Extended attributes lie beside the blocks.
        if let Some(text) = text {
            for (block, bytes) in (0..).zip(text.chunks(BLOCK_SIZE as usize)) {
                self.batch.put(path::block(&to, block), text.slice_ref(bytes));
            }
            if attrs && from.has_outside() {
                self.batch.clone_prefix(path::attrs_under(&theirs.data), path::attrs_under(&to));
            }
        } else {
            if from.has_data() {
                self.batch.clone_prefix(theirs.data.clone(), to.clone());
            }
            if !attrs && from.has_outside() {
                self.batch.delete_prefix(path::attrs_under(&to));
            }
        }
        if stay {
            self.batch.rename_prefix(self.aside(u32::MAX, 0), path::attrs_under(&to));
        }
        self.batch.put(path::meta(&self.trees.ours.place(entry)), record.encode());
        Ok(())
    }

    /// Says in memory what was done, once the batch is written: what the kernel has to be told, and whether names have
    /// to be counted.
    pub(crate) fn done(mut self) -> (CloneReport, bool) {
        let mut report = CloneReport::default();
        std::mem::take(&mut self.carried).done(self.fs, self.now, &mut report);
        for (inode, record) in std::mem::take(&mut self.changed) {
            inode.change(|s| {
                s.record = record;
                s.atime_unsaved = false;
            });
            report.replaced.push(inode.ino);
        }
        let touched = Change::modified(self.now);
        for inode in self.touched_inodes.values() {
            inode.change(|s| touched.apply(&mut s.record));
        }
        for inode in &self.orphaned {
            self.fs.removed(inode, Fate::Orphan, self.now);
            report.orphaned.push(inode.ino);
        }
        for (inode, fate) in &self.removed {
            self.fs.removed(inode, *fate, self.now);
            let to = if *fate == Fate::Gone { &mut report.replaced } else { &mut report.orphaned };
            to.push(inode.ino);
        }
        if self.tree_removed {
            self.fs.table.tree_removed();
        }
        for lineage in self.given_back {
            self.fs.lineages.give_back(Some(lineage));
        }
        for (dir, name) in self.entries {
            self.fs.positions.removed(&self.fs.db, &name);
            if let Some(inode) = self.touched_inodes.get(&dir) {
                use std::os::unix::ffi::OsStringExt;
                report.entries.push((inode.ino, std::ffi::OsString::from_vec(name)));
            }
        }
        (report, self.counts)
    }
}
