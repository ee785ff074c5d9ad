//! A merge that is being put into a batch: what is removed and marked, and what has to follow in memory.
//!
//! What is merged into is changed in place, so all that stays keeps its number, and what is open stays open. The caller
//! holds `tree` of the directory that is merged into exclusively, so no call is under way in it, and knows that the
//! plan is of this moment.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    diff::side::contents_of,
    error::{Error, Result},
    fork::{
        bounds::Bounds,
        fits::name_of,
        hidden::{Hidden, Retired, write_in_parts},
        relocated::Relocated,
        step::Trees,
    },
    inode::InodeRef,
    lineage::number::number,
    merge::Change,
    orphan::Fate,
    path::{self, system},
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
    /// Lineages of directories, by contents prefix from the top; none for a directory of which no entry was ever looked
    /// up.
    pub lineages: HashMap<Vec<u8>, Option<u32>>,
    /// Directories whose entries change.
    pub touched: BTreeSet<Vec<u8>>,
    /// Those of them that are in memory, by contents prefix from the top.
    pub touched_inodes: HashMap<Vec<u8>, InodeRef>,
    /// Roots of lineages that are marked: names have to be counted in them. By where they are in this moment.
    uncounted: BTreeSet<Vec<u8>>,
    /// Names have to be counted somewhere.
    counts: bool,
    /// Directories that were brought to memory because something in memory moves there.
    pub targets: Vec<InodeRef>,
    pub changed: Vec<(InodeRef, Record)>,
    removed: Vec<(InodeRef, Fate)>,
    orphaned: Vec<InodeRef>,
    given_back: Vec<u32>,
    /// Names that mean another entry now: directories from the top, and names.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    tree_removed: bool,
    pub relocated: Relocated,
    /// The work that is left for the end, if the tree is hidden.
    pub hidden: Option<Hidden>,
    /// What may end the merge early, while no other call waits for it.
    pub bounds: Option<&'a Bounds<'a>>,
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
            relocated: Relocated::default(),
            hidden: None,
            bounds: None,
        }
    }

    /// The lineage of the entries of a directory, if one of them was ever looked up.
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

    /// Writes the batch if it is large and the tree is hidden.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match &self.hidden {
            Some(hidden) if self.batch.len() >= hidden.limit => self.flush_all(),
            _ => Ok(()),
        }
    }

    /// Writes the batch, whatever its size.
    pub(crate) fn flush_all(&mut self) -> Result<()> {
        let batch = std::mem::replace(&mut self.batch, Batch::new());
        write_in_parts(self.fs, batch)
    }

    /// The prefix under which the keys of one prefix of a moving entry wait.
    pub(crate) fn aside(&self, number: u32, slot: u8) -> Bytes {
        match &self.hidden {
            Some(hidden) => hidden.aside(number, slot),
            None => system::aside(number, slot),
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

    /// Notes that the directory with this contents prefix, from the volume, is moved or removed, and its marks with it.
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

    pub(crate) fn root_of(&mut self, entry: &[u8]) -> Result<Vec<u8>> {
        let level = self.trees.ours.level(path::directory_of(entry))?;
        let damaged = Error::Damaged { what: "a merge".into(), detail: "a directory that is none" };
        Ok(level.ok_or(damaged)?.root.clone())
    }

    pub(crate) fn entry_changes(&mut self, entry: &[u8]) {
        let dir = path::directory_of(entry).to_vec();
        if self.hidden.is_none() {
            self.entries.push((dir.clone(), name_of(entry).to_vec()));
        }
        self.touched.insert(dir);
    }

    pub(crate) fn remove(&mut self, entry: &[u8]) -> Result<()> {
        self.remove_for(entry, false)
    }

    /// Removes an entry. If it is `copied`, a copy of its latest state comes to its path.
    pub(crate) fn remove_for(&mut self, entry: &[u8], copied: bool) -> Result<()> {
        let Some(value) = self.trees.ours.value(entry)? else { return Ok(()) };
        let place = self.trees.ours.place(entry);
        self.batch.delete(path::meta(&place));
        let record = match Stored::decode(&value) {
            Ok(Stored::Record(record)) => *record,
            named => {
                // One name of several: a file without names is removed when they are counted.
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
            let relocated = |path: &[u8]| self.relocated.is_in_one(path);
            self.orphaned.extend(self.fs.orphan_below(&mut self.batch, top, &relocated, self.now)?);
        }
        if self.hidden.is_none() {
            self.fs.drop_kept_by_prefix(&mut self.batch, &contents, &Staying::new())?;
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

    /// Changes the inodes in memory, once the batch is written; gives what the kernel has to be told, and whether names
    /// have to be counted.
    pub(crate) fn done(mut self) -> (CloneReport, bool) {
        let mut report = CloneReport::default();
        std::mem::take(&mut self.relocated).done(self.fs, self.now, &mut report);
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
