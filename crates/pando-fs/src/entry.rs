//! Making and removing single entries: create, mknod, mkdir, symlink, unlink, rmdir.
//!
//! Each call is one batch: the entry's record and its directory's times change
//! together or not at all. Guarantees POSIX ownership of what is made (umask,
//! set-group-id directories) and that a removed file which is open stays
//! readable and writable until its last handle is released.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    bill::{Above, Bill, Taken},
    error::{Error, Result, show},
    inode::{Inode, InodeRef, Link},
    late_calls::KeptFile,
    limits::MAX_SYMLINK,
    lineage::number::number,
    lock::{self, Guard},
    merge::Change,
    mode::{S_ISGID, S_IXGRP},
    open_flags::O_EXCL,
    orphan::Fate,
    path::{self, check_name, system},
    place::{DirAt, may_change},
    record::Record,
    staying::Staying,
    types::{Attr, Caller, FileHandle, FileKind, Ino, Time},
    volume::Fs,
};

/// The entry that is to be made.
struct New<'a> {
    kind: FileKind,
    mode: u32,
    rdev: u32,
    target: Option<&'a [u8]>,
}

impl Fs {
    /// Adds a change of the directory's own record to the batch.
    pub(crate) fn change_dir(batch: &mut Batch, at: &DirAt, change: &Change) {
        batch.upsert(at.meta(), change.encode());
    }

    /// Makes an entry. The caller gets the guards that keep it from being changed.
    fn make(&self, c: &Caller, parent: Ino, name: &OsStr, new: New<'_>) -> Result<(InodeRef, DirAt, Guard)> {
        self.writable()?;
        let bytes = check_name(name)?;
        let dir = self.dir(parent)?;
        let (at, names) = self.hold_names(&dir, true)?;
        let entry = path::new_entry(&at.contents, bytes)?;
        let key = path::meta(&entry);
        if self.db.get(&key)?.is_some() {
            return Err(Error::Exists(show(name)));
        }
        self.may_enter(&dir, bytes)?;
        let now = self.now();
        let fresh = Record::new(new.kind, (new.mode & 0o7777) as u16, self.fresh_file()?, now);
        let mut batch = Batch::new();
        let record = self.new_record(&mut batch, c, &at, &path::data(&entry), fresh, &new)?;
        let touched = Change::modified(now);
        batch.put(key, record.encode());
        Self::change_dir(&mut batch, &at, &touched);
        self.db.write(batch)?;
        dir.change(|s| touched.apply(&mut s.record));
        let ino = number(dir.lineage, record.fileno);
        let link = Link::At { parent: dir.clone(), name: bytes.into() };
        match self.table.enter(ino, dir.lineage, None, link, record) {
            Some(inode) => Ok((inode, at, names)),
            None => Err(Error::Stale(ino)),
        }
    }

    /// The record of what is made in a directory: its owner, mode and access lists, of which those that do not fit it
    /// go below `data` in the batch.
    fn new_record(
        &self,
        batch: &mut Batch,
        c: &Caller,
        at: &DirAt,
        data: &[u8],
        mut record: Record,
        new: &New<'_>,
    ) -> Result<Record> {
        if !self.inherit(batch, at, data, &mut record)? {
            record.perm &= !(c.umask as u16);
        }
        record.uid = c.uid;
        record.gid = c.gid;
        record.rdev = new.rdev;
        let (dir_perm, dir_gid) = at.dir.peek(|s| (s.record.perm, s.record.gid));
        if dir_perm & S_ISGID != 0 {
            record.gid = dir_gid;
            if new.kind == FileKind::Directory {
                record.perm |= S_ISGID;
            } else if record.perm & S_IXGRP != 0
                && !c.keeps_group_bit.unwrap_or_else(|| c.is_root() || c.in_group(dir_gid))
            {
                record.perm &= !S_ISGID;
            }
        }
        if let Some(target) = new.target {
            record.perm = 0o777;
            record.size = target.len() as u64;
            record.symlink = Some(Bytes::copy_from_slice(target));
        }
        Ok(record)
    }

    /// Adds a whiteout to the batch: a device node of number 0 at `entry` in a directory whose `names` the caller
    /// holds, made as by [`Fs::mknod`].
    pub(crate) fn leave_whiteout(
        &self,
        batch: &mut Batch,
        c: &Caller,
        at: &DirAt,
        entry: &[u8],
        now: Time,
    ) -> Result<()> {
        let new = New { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: None };
        let fresh = Record::new(new.kind, 0, self.fresh_file()?, now);
        let record = self.new_record(batch, c, at, &path::data(entry), fresh, &new)?;
        batch.put(path::meta(entry), record.encode());
        Ok(())
    }

    /// Makes a regular file without a name, with owner and mode as if it were made in `parent`, and opens it.
    /// [`Fs::link`] can give it a name, unless O_EXCL is in `flags`; without a name it disappears with its last
    /// handle, or after a crash. Counts one reference of the kernel; release the handle as well.
    pub fn tmpfile(&self, c: &Caller, parent: Ino, mode: u32, flags: i32) -> Result<(Attr, FileHandle)> {
        self.writable()?;
        let dir = self.dir(parent)?;
        may_change(&dir, true)?;
        let at = self.hold_dir(&dir)?;
        let now = self.now();
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let fresh = Record::new(new.kind, (mode & 0o7777) as u16, self.fresh_file()?, now);
        let ino = number(dir.lineage, fresh.fileno);
        let mut batch = Batch::new();
        let record = self.new_record(&mut batch, c, &at, &system::orphan_data(ino), fresh, &new)?;
        batch.put(system::orphan_meta(ino), record.encode());
        self.db.write(batch)?;
        let entered = self.table.enter(ino, dir.lineage, None, Link::Orphan, record);
        let inode = entered.ok_or(Error::Stale(ino))?;
        inode.change(|s| {
            s.opens += 1;
            s.linkable = flags & O_EXCL == 0;
        });
        let attr = inode.count_lookup();
        Ok((attr, self.add_handle(c, inode, flags)))
    }

    /// Makes a file, device node, pipe or socket; the type bits of `mode` say which. EINVAL for
    /// directories and symbolic links. Counts one reference of the kernel.
    pub fn mknod(&self, c: &Caller, parent: Ino, name: &OsStr, mode: u32, rdev: u32) -> Result<Attr> {
        let kind = match FileKind::from_mode(mode) {
            None | Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Error::Invalid(format!("mode {mode:#o}: not what mknod makes")));
            }
            Some(kind) => kind,
        };
        let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { rdev } else { 0 };
        let (inode, ..) = self.make(c, parent, name, New { kind, mode, rdev, target: None })?;
        Ok(inode.count_lookup())
    }

    /// Makes a directory. Counts one reference of the kernel.
    pub fn mkdir(&self, c: &Caller, parent: Ino, name: &OsStr, mode: u32) -> Result<Attr> {
        let (inode, ..) =
            self.make(c, parent, name, New { kind: FileKind::Directory, mode, rdev: 0, target: None })?;
        Ok(inode.count_lookup())
    }

    /// Makes a symbolic link to `target` (1 to 4095 bytes). Counts one reference of the kernel.
    pub fn symlink(&self, c: &Caller, parent: Ino, name: &OsStr, target: &OsStr) -> Result<Attr> {
        let target = target.as_bytes();
        if target.is_empty() {
            return Err(Error::NotFound(String::new()));
        }
        if target.len() > MAX_SYMLINK || target.contains(&0) {
            return Err(Error::NameTooLong(show(name)));
        }
        let new = New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: Some(target) };
        let (inode, ..) = self.make(c, parent, name, new)?;
        Ok(inode.count_lookup())
    }

    /// Makes a regular file and opens it; EEXIST if the name is taken (the kernel asks for files
    /// that it has not found). Counts one reference of the kernel; release the handle as well.
    pub fn create(
        &self,
        c: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(Attr, FileHandle)> {
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let (inode, _at, _names) = self.make(c, parent, name, new)?;
        inode.change(|s| s.opens += 1);
        let attr = inode.count_lookup();
        Ok((attr, self.add_handle(c, inode, flags)))
    }

    /// The target of a symbolic link; EINVAL for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Bytes> {
        let inode = self.table.get(ino)?;
        let target = inode.peek(|s| s.record.symlink.clone());
        let target =
            target.ok_or_else(|| Error::Invalid(format!("{}: not a symbolic link", inode.label())))?;
        self.accessed(&inode);
        Ok(target)
    }

    /// Adds the removal of one entry that is not a directory, in the directory `at`: its record, and its data, which
    /// moves to the orphan area if it is open; or, if it has other names, this one alone. The caller holds `tree` of
    /// the inode exclusively and calls [`Fs::removed`] when the batch is written, with the answer.
    pub(crate) fn remove_file(
        &self,
        batch: &mut Batch,
        at: &DirAt,
        entry: &[u8],
        inode: &InodeRef,
        now: Time,
    ) -> Result<Fate> {
        batch.delete(path::meta(entry));
        let linked = inode.linked();
        let Some((_, id)) = linked else { return Ok(self.remove_last(batch, path::data(entry), inode, now)) };
        let domain = self.domain(at);
        batch.delete(domain.index(entry)?);
        let path = domain.linked(id);
        if inode.peek(|s| s.record.nlink) > 1 {
            let change = Change { nlink: -1, ctime: Some(now), ..Change::default() };
            batch.upsert(path::meta(&path), change.encode());
            return Ok(Fate::Linked);
        }
        batch.delete(path::meta(&path));
        Ok(self.remove_last(batch, path::data(&path), inode, now))
    }

    /// What the accounts above lose when [`Fs::remove_file`] removes this name of a file: which accounts, and how much.
    pub(crate) fn leaving(&self, at: &DirAt, entry: &[u8], inode: &InodeRef) -> Result<(Above, Taken)> {
        if !self.has_accounts() || inode.kind != FileKind::Regular {
            return Ok(Default::default());
        }
        let (above, data) = match inode.linked() {
            None => (self.above(at), path::data(entry)),
            Some(_) if inode.peek(|s| s.record.nlink) > 1 => return Ok(Default::default()),
            Some((_, id)) => (self.above_links(at), path::data(&self.domain(at).linked(id))),
        };
        let bytes = if above.is_empty() { 0 } else { self.bytes_of(inode, &data)? };
        Ok((above, Taken::exact(bytes)))
    }

    /// Adds the removal of the data of a file without names, whose record is removed.
    pub(crate) fn remove_last(&self, batch: &mut Batch, data: Bytes, inode: &InodeRef, now: Time) -> Fate {
        if inode.kind == FileKind::Regular && inode.peek(|s| s.opens > 0) {
            self.make_orphan(batch, data, inode, now);
            return Fate::Orphan;
        }
        inode.peek(|s| Self::drop_data(batch, &data, &s.record));
        Fate::Gone
    }

    /// Removes the entry `name`, which must not be a directory (EISDIR).
    pub fn unlink(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<()> {
        let _ = c; // the kernel has checked the permissions of the directory
        self.writable()?;
        let bytes = check_name(name)?;
        let dir = self.dir(parent)?;
        let (at, _names) = self.hold_names(&dir, true)?;
        let inode = self.child(&at, bytes)?.ok_or_else(|| Error::NotFound(show(name)))?;
        if inode.kind == FileKind::Directory {
            return Err(Error::IsDirectory(show(name)));
        }
        let _own = lock::exclusive(&inode.tree);
        let now = self.now();
        let touched = Change::modified(now);
        let mut batch = Batch::new();
        let entry = at.child(bytes)?;
        let mut bill = Bill::default();
        let (above, taken) = self.leaving(&at, &entry, &inode)?;
        bill.subtract(above, taken);
        let kept = self.keep_for_late_calls(&inode);
        let fate = self.remove_file(&mut batch, &at, &entry, &inode, now)?;
        // If the file is open, its data moves. To repeat that, a caller has to make files, which takes space.
        batch.moves_once();
        Self::change_dir(&mut batch, &at, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        kept.into_iter().for_each(KeptFile::lost_its_name);
        reserved.paid();
        dir.change(|s| touched.apply(&mut s.record));
        self.removed(&inode, fate, now);
        self.positions.removed(&self.db, bytes);
        Ok(())
    }

    /// Adds to the removal of the directory `dir` in `at` that its lineage is given back; see [`Lineages::retire`].
    ///
    /// [`Lineages::retire`]: crate::lineage::Lineages::retire
    pub(crate) fn retire(&self, batch: &mut Batch, at: &DirAt, dir: &InodeRef) -> Result<Option<u32>> {
        let record = dir.peek(|s| s.record.clone());
        self.lineages.retire(&self.db, batch, at.dir.lineage, &record, dir.lineage)
    }

    /// True if the directory with this contents prefix has no entry. One cursor step.
    pub(crate) fn is_empty(&self, contents: &[u8]) -> Result<bool> {
        let (lo, hi) = path::listing(contents, None);
        Ok(self.db.range(&lo, Some(&hi)).next().transpose()?.is_none())
    }

    /// Adds the moves of open files into the orphan area that the removal of an empty directory would take along: an
    /// open file whose names are not counted yet may be in its link area without having any. The caller holds `tree` of
    /// the directory exclusively.
    pub(crate) fn nameless_below(&self, batch: &mut Batch, dir: &Inode, now: Time) -> Result<Vec<InodeRef>> {
        match self.has_links() && dir.peek(|s| s.record.clone_id != 0) {
            true => self.orphan_below(batch, dir, &|_| false, now),
            false => Ok(Vec::new()),
        }
    }

    /// Removes the empty directory `name`.
    pub fn rmdir(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<()> {
        let _ = c; // as for unlink
        self.writable()?;
        let bytes = check_name(name)?;
        let dir = self.dir(parent)?;
        let (at, _names) = self.hold_names(&dir, true)?;
        let inode = self.child(&at, bytes)?.ok_or_else(|| Error::NotFound(show(name)))?;
        inode.must_be_dir()?;
        let _own = lock::exclusive(&inode.tree);
        if !self.is_empty(&path::contents(&at.contents, bytes)?)? {
            return Err(Error::NotEmpty(show(name)));
        }
        let now = self.now();
        let touched = Change::modified(now);
        let mut batch = Batch::new();
        let entry = at.child(bytes)?;
        batch.delete(path::meta(&entry));
        inode.peek(|s| Self::drop_data(&mut batch, &path::data(&entry), &s.record));
        let nameless = self.nameless_below(&mut batch, &inode, now)?;
        // Removing the entries one by one has left a tombstone for each. A tombstone frees space only when it reaches
        // the leaf, and never in a leaf that a clone shares. These two range deletes replace all of them.
        let below = path::contents(&at.contents, bytes)?;
        batch.delete_prefix(path::meta(&below)).delete_prefix(path::data(&below));
        self.drop_kept_by_prefix(&mut batch, &below, &Staying::new())?;
        let lineage = self.retire(&mut batch, &at, &inode)?;
        Self::change_dir(&mut batch, &at, &touched);
        let above = self.above(&at);
        let mut bill = Bill::default();
        if !above.is_empty() {
            bill.subtract(above, self.leftovers(&inode, &below)?);
        }
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        reserved.paid();
        dir.change(|s| touched.apply(&mut s.record));
        nameless.iter().for_each(|file| self.removed(file, Fate::Orphan, now));
        self.removed(&inode, Fate::Gone, now);
        self.lineages.give_back(lineage);
        self.positions.removed(&self.db, bytes);
        Ok(())
    }
}
