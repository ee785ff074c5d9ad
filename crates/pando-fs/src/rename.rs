//! Renames of files and whole directories, plain, without replacing, and as exchange.
//!
//! A rename is one batch whose size does not depend on what is below: the
//! record moves, and the prefixes of data and contents are renamed by the
//! engine. Guarantees POSIX (same file: nothing; a directory only over an empty one; never
//! into itself), and that inode numbers stay across lineages. Both directories
//! and both entries are held by attempts. Uses `place`, `lineage`, `entry`.

use std::ffi::OsStr;

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    error::{Error, Result, show},
    inode::{InodeRef, Link},
    lock::{Attempts, Guard, Obstacle},
    merge::Change,
    path::{self, check_name, system},
    place::DirAt,
    record::Record,
    types::{Caller, FileKind, Ino, Time},
    volume::Fs,
};

/// Fail with EEXIST if the new name is taken.
pub const RENAME_NOREPLACE: u32 = 1;
/// Exchange the two, of whatever kind.
pub const RENAME_EXCHANGE: u32 = 2;
/// Leave a whiteout at the old name: a device node with number 0, by which overlays say that a name is gone.
pub const RENAME_WHITEOUT: u32 = 4;

/// One end of a rename: a name in a directory, and what is there.
pub(crate) struct End<'a> {
    pub at: &'a DirAt,
    pub name: &'a [u8],
    /// Path of the entry.
    pub entry: Vec<u8>,
}

impl<'a> End<'a> {
    pub(crate) fn new(at: &'a DirAt, name: &'a [u8]) -> Result<Self> {
        Ok(Self { at, name, entry: at.child(name)? })
    }

    /// One at which something is to be from now on.
    pub(crate) fn to_be(at: &'a DirAt, name: &'a [u8]) -> Result<Self> {
        Ok(Self { at, name, entry: path::new_entry(&at.contents, name)? })
    }

    /// The key prefixes of what belongs to an entry with this record besides it.
    pub(crate) fn prefixes(&self, record: &Record) -> Result<Vec<Bytes>> {
        let mut prefixes = Vec::new();
        if record.kind == FileKind::Directory {
            let contents = path::contents(&self.at.contents, self.name)?;
            prefixes.extend([path::meta(&contents), path::data(&contents)]);
        }
        if record.has_data() {
            prefixes.push(path::data(&self.entry));
        }
        Ok(prefixes)
    }

    fn link(&self) -> Link {
        Link::At { parent: self.at.dir.clone(), name: self.name.into() }
    }
}

/// Two directories, which may be one, held still with their entries.
pub(crate) struct Pair {
    first: DirAt,
    second: Option<DirAt>,
    _names: [Option<Guard>; 2],
}

impl Pair {
    pub(crate) fn first(&self) -> &DirAt {
        &self.first
    }

    pub(crate) fn second(&self) -> &DirAt {
        self.second.as_ref().unwrap_or(&self.first)
    }

    /// Adds the times of the directories whose entries change to the batch.
    pub(crate) fn touch(&self, batch: &mut Batch, change: &Change) {
        Fs::change_dir(batch, &self.first, change);
        if let Some(second) = &self.second {
            Fs::change_dir(batch, second, change);
        }
    }

    /// The same in memory, once the batch is written.
    pub(crate) fn touched(&self, change: &Change) {
        self.first.dir.change(|s| change.apply(&mut s.record));
        if let Some(second) = &self.second {
            second.dir.change(|s| change.apply(&mut s.record));
        }
    }
}

impl Fs {
    /// Holds two directories and their entries for change.
    pub(crate) fn attempt_pair(
        &self,
        tries: &mut Attempts,
        first: &InodeRef,
        second: &InodeRef,
    ) -> Result<Pair, Obstacle> {
        let first_at = self.attempt_dir(first)?;
        if first.ino == second.ino {
            let names = tries.exclusive(&first.names)?;
            return Ok(Pair { first: first_at, second: None, _names: [Some(names), None] });
        }
        let second_at = self.attempt_dir(second)?;
        let names = [Some(tries.exclusive(&first.names)?), Some(tries.exclusive(&second.names)?)];
        Ok(Pair { first: first_at, second: Some(second_at), _names: names })
    }

    /// How often a directory was moved, or anything exchanged, since this was opened. Costs no I/O.
    pub fn moves(&self) -> u64 {
        self.table.moves()
    }

    /// Moves `name` of `parent` to `newname` of `newparent`, replacing what is there (unless
    /// [`RENAME_NOREPLACE`]), or exchanges the two ([`RENAME_EXCHANGE`]). The first may leave a whiteout behind
    /// ([`RENAME_WHITEOUT`]).
    pub fn rename(
        &self,
        c: &Caller,
        parent: Ino,
        name: &OsStr,
        newparent: Ino,
        newname: &OsStr,
        flags: u32,
    ) -> Result<()> {
        self.writable()?; // the kernel has checked the permissions of the directories
        /// All flag bits that there are.
        const ALL: u32 = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
        if flags & !ALL != 0 || flags & RENAME_EXCHANGE != 0 && flags != RENAME_EXCHANGE {
            return Err(Error::Invalid(format!("rename flags {flags:#x}")));
        }
        let whiteout = (flags & RENAME_WHITEOUT != 0).then_some(c);
        let flags = flags & !RENAME_WHITEOUT;
        let (from, to) = (check_name(name)?, check_name(newname)?);
        let (old, new) = (self.dir(parent)?, self.dir(newparent)?);
        self.with_attempts(|tries| {
            let pair = self.attempt_pair(tries, &old, &new)?;
            let src = End::new(pair.first(), from)?;
            let dst = End::to_be(pair.second(), to)?;
            let moved = self.child(src.at, from)?.ok_or_else(|| Error::NotFound(show(name)))?;
            let target = self.child(dst.at, to)?;
            if flags == RENAME_NOREPLACE && target.is_some() {
                return Err(Error::Exists(show(newname)).into());
            }
            if target.as_ref().is_some_and(|t| t.ino == moved.ino) {
                return Ok(());
            }
            if dst.at.is_at_or_below(moved.ino) {
                return Err(Error::Invalid(format!("{}: moved into itself", show(name))).into());
            }
            if let Some(target) = target.as_ref().filter(|t| src.at.is_at_or_below(t.ino)) {
                return Err(match flags {
                    RENAME_EXCHANGE => {
                        Error::Invalid(format!("{}: exchanged with what it is in", show(name)))
                    }
                    _ => Error::NotEmpty(target.label()),
                }
                .into());
            }
            let _moved = tries.exclusive(&moved.tree)?;
            let _target = target.as_ref().map(|t| tries.exclusive(&t.tree)).transpose()?;
            match (flags, &target) {
                (RENAME_EXCHANGE, Some(target)) => self.exchange(&pair, &src, &dst, &moved, target)?,
                (RENAME_EXCHANGE, None) => return Err(Error::NotFound(show(newname)).into()),
                _ => self.replace(&pair, (&src, &dst), &moved, target.as_ref(), whiteout)?,
            }
            Ok(())
        })
    }

    /// The record of an inode after its move between directories.
    fn moved_record(
        &self,
        batch: &mut Batch,
        inode: &InodeRef,
        from: &DirAt,
        to: &DirAt,
        now: Time,
    ) -> Result<Record> {
        let mut record = inode.peek(|s| s.record.clone());
        record.ctime = now;
        let (around, kept) = ((from.dir.lineage, to.dir.lineage), (inode.ino, inode.lineage));
        self.lineages.moved(batch, &mut record, around, kept, || self.fresh_file(), || self.fresh_clone())?;
        Ok(record)
    }

    fn replace(
        &self,
        pair: &Pair,
        (src, dst): (&End<'_>, &End<'_>),
        moved: &InodeRef,
        target: Option<&InodeRef>,
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        let now = Time::now();
        let mut batch = Batch::new();
        let mut orphaned = false;
        let mut lineage = None;
        if let Some(target) = target {
            match (moved.kind == FileKind::Directory, target.kind == FileKind::Directory) {
                (true, false) => return Err(Error::NotDirectory(target.label())),
                (false, true) => return Err(Error::IsDirectory(target.label())),
                (false, false) => orphaned = self.remove_file(&mut batch, &dst.entry, target, now),
                (true, true) => {
                    if !self.is_empty(&path::contents(&dst.at.contents, dst.name)?)? {
                        return Err(Error::NotEmpty(target.label()));
                    }
                    target.peek(|s| Self::drop_data(&mut batch, &path::data(&dst.entry), &s.record));
                    lineage = self.retire(&mut batch, dst.at, target)?;
                }
            }
        }
        let record = self.moved_record(&mut batch, moved, src.at, dst.at, now)?;
        match whiteout {
            None => batch.delete(path::meta(&src.entry)),
            Some(c) => {
                let mut left = Record::new(FileKind::CharDevice, 0, self.fresh_file()?, now);
                (left.uid, left.gid) = (c.uid, c.gid);
                batch.put(path::meta(&src.entry), left.encode())
            }
        };
        batch.put(path::meta(&dst.entry), record.encode());
        for (from, to) in src.prefixes(&record)?.into_iter().zip(dst.prefixes(&record)?) {
            batch.rename_prefix(from, to);
        }
        let touched = Change::modified(now);
        pair.touch(&mut batch, &touched);
        self.db.write(batch)?;
        pair.touched(&touched);
        if let Some(target) = target {
            self.removed(target, orphaned, now);
            self.lineages.give_back(lineage);
        }
        moved.change(|s| s.record = record);
        moved.relink(dst.link());
        if moved.kind == FileKind::Directory {
            self.table.moved();
        }
        if whiteout.is_none() {
            self.positions.removed(&self.db, src.name);
        }
        Ok(())
    }

    fn exchange(
        &self,
        pair: &Pair,
        one: &End<'_>,
        two: &End<'_>,
        first: &InodeRef,
        second: &InodeRef,
    ) -> Result<()> {
        let now = Time::now();
        let mut batch = Batch::new();
        let first_record = self.moved_record(&mut batch, first, one.at, two.at, now)?;
        let second_record = self.moved_record(&mut batch, second, two.at, one.at, now)?;
        batch.put(path::meta(&two.entry), first_record.encode());
        batch.put(path::meta(&one.entry), second_record.encode());
        // Out of the way, across, and back in: one batch, so the place between is always empty.
        for (slot, from) in (0..).zip(one.prefixes(&first_record)?) {
            batch.rename_prefix(from, system::exchange(slot));
        }
        for (from, to) in two.prefixes(&second_record)?.into_iter().zip(one.prefixes(&second_record)?) {
            batch.rename_prefix(from, to);
        }
        for (slot, to) in (0..).zip(two.prefixes(&first_record)?) {
            batch.rename_prefix(system::exchange(slot), to);
        }
        let touched = Change::modified(now);
        pair.touch(&mut batch, &touched);
        self.db.write(batch)?;
        pair.touched(&touched);
        first.change(|s| s.record = first_record);
        second.change(|s| s.record = second_record);
        first.relink(two.link());
        second.relink(one.link());
        self.table.moved();
        Ok(())
    }
}
