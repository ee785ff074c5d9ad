//! Renames of files and whole directories, plain, without replacing, and as exchange.
//!
//! A rename is one batch whose size does not depend on what is below: the
//! record moves, and the prefixes of data and contents are renamed by the
//! engine. Guarantees POSIX (same file: nothing; a directory only over an empty one; never
//! into itself), and that inode numbers stay across lineages. Both directories
//! and both entries are held by attempts.

use std::ffi::OsStr;

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    bill::{Bill, Taken},
    error::{Error, Result, show},
    inode::{InodeRef, Link},
    late_calls::KeptFile,
    lock::{Attempts, Guard, Obstacle},
    merge::Change,
    orphan::Fate,
    path::{self, check_name, system},
    place::{DirAt, may_change},
    quota::Counts,
    record::{LinkName, Record},
    staying::Staying,
    types::{Caller, FileKind, Ino, Time},
    volume::Fs,
};

/// Bit of the flags of a rename: fail with EEXIST if the new name is taken.
pub const RENAME_NOREPLACE: u32 = 1;
/// Exchange the two, of whatever kind.
pub const RENAME_EXCHANGE: u32 = 2;
/// Leave a whiteout at the old name: a device node with number 0, by which overlays say that a name is gone.
pub const RENAME_WHITEOUT: u32 = 4;

/// The source or the destination of a rename: a name in a directory, and the entry there.
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

    /// The destination of a new entry.
    pub(crate) fn to_be(at: &'a DirAt, name: &'a [u8]) -> Result<Self> {
        Ok(Self { at, name, entry: path::new_entry(&at.contents, name)? })
    }

    /// The prefix of the contents, if the entry is a directory.
    pub(crate) fn contents(&self) -> Result<Vec<u8>> {
        path::contents(&self.at.contents, self.name)
    }

    /// The key prefixes of what belongs to an entry with this record besides it.
    pub(crate) fn prefixes(&self, record: &Record) -> Result<Vec<Bytes>> {
        let mut prefixes = Vec::new();
        if record.kind == FileKind::Directory {
            let contents = self.contents()?;
            prefixes.extend([path::meta(&contents), path::data(&contents)]);
        }
        if record.has_data() {
            prefixes.push(path::data(&self.entry));
        }
        Ok(prefixes)
    }

    /// Where an inode is that has this name.
    pub(crate) fn link(&self) -> Link {
        Link::At { parent: self.at.dir.clone(), name: self.name.into() }
    }
}

/// What a rename moves of one inode.
enum MovedKeys {
    /// Its record, as it is then, and prefixes of keys: from, to.
    Record { record: Record, prefixes: Vec<(Bytes, Bytes)> },
    /// One name of a linked file, whose record has the key `file`, with the keys that leave and enter the index of
    /// names.
    Name { file: Bytes, name: LinkName, left: Bytes, entered: Bytes },
}

impl MovedKeys {
    fn prefixes(&self) -> &[(Bytes, Bytes)] {
        match self {
            MovedKeys::Record { prefixes, .. } => prefixes,
            MovedKeys::Name { .. } => &[],
        }
    }

    /// Adds what goes at the old name besides what stands there.
    fn leave(&self, batch: &mut Batch) {
        if let MovedKeys::Name { left, .. } = self {
            batch.delete(left.clone());
        }
    }

    /// Adds what stands at the new name, whose path is `entry`.
    fn arrive(&self, batch: &mut Batch, entry: &[u8], now: Time) {
        match self {
            MovedKeys::Record { record, .. } => batch.put(path::meta(entry), record.encode()),
            MovedKeys::Name { file, name, entered, .. } => {
                let change = Change { ctime: Some(now), ..Change::default() };
                batch.put(path::meta(entry), name.encode());
                batch.put(entered.clone(), name.encode_index()).upsert(file.clone(), change.encode())
            }
        };
    }

    /// Makes the change in memory, once the batch is written.
    fn done(self, inode: &InodeRef, to: &End<'_>, now: Time) {
        match self {
            MovedKeys::Record { record, .. } => {
                inode.change(|s| s.record = record);
                inode.move_to(to.link());
            }
            MovedKeys::Name { .. } => inode.change(|s| s.record.ctime = now),
        }
    }
}

/// Two directories, which may be one, held still with their entries.
pub(crate) struct LockedDirs {
    first: DirAt,
    second: Option<DirAt>,
    _names: [Option<Guard>; 2],
}

impl LockedDirs {
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

    /// Applies `change` to the directory in memory, once the batch is written.
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
    ) -> Result<LockedDirs, Obstacle> {
        let first_at = self.attempt_dir(first)?;
        if first.ino == second.ino {
            let names = tries.exclusive(&first.names)?;
            return Ok(LockedDirs { first: first_at, second: None, _names: [Some(names), None] });
        }
        let second_at = self.attempt_dir(second)?;
        let names = [Some(tries.exclusive(&first.names)?), Some(tries.exclusive(&second.names)?)];
        Ok(LockedDirs { first: first_at, second: Some(second_at), _names: names })
    }

    /// How many renames have moved a directory, or exchanged two entries, since the file system was opened. No I/O.
    pub fn moves(&self) -> u64 {
        self.table.moves()
    }

    /// Moves `name` of `parent` to `newname` of `newparent`, replacing what is there (unless [`RENAME_NOREPLACE`]),
    /// or exchanges the two ([`RENAME_EXCHANGE`]). A move may leave a whiteout in the old place
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
        /// All flag bits that are known.
        const FLAGS: u32 = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
        if flags & !FLAGS != 0 || flags & RENAME_EXCHANGE != 0 && flags != RENAME_EXCHANGE {
            return Err(Error::Invalid(format!("rename flags {flags:#x}")));
        }
        let whiteout = (flags & RENAME_WHITEOUT != 0).then_some(c);
        let flags = flags & !RENAME_WHITEOUT;
        let (from, to) = (check_name(name)?, check_name(newname)?);
        let (old, new) = (self.dir(parent)?, self.dir(newparent)?);
        may_change(&old, true)?;
        may_change(&new, true)?;
        self.with_counts(|tries, counts| {
            let pair = self.attempt_pair(tries, &old, &new)?;
            let src = End::new(pair.first(), from)?;
            let dst = End::to_be(pair.second(), to)?;
            let moved = self.child(src.at, from)?.ok_or_else(|| Error::NotFound(show(name)))?;
            let target = self.child(dst.at, to)?;
            if flags == RENAME_NOREPLACE && target.is_some() {
                return Err(Error::Exists(show(newname)).into());
            }
            if target.is_none() {
                self.may_enter(&new, to)?;
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
                (RENAME_EXCHANGE, Some(target)) => {
                    self.exchange(counts, &pair, &src, &dst, &moved, target)?
                }
                (RENAME_EXCHANGE, None) => return Err(Error::NotFound(show(newname)).into()),
                _ => self.replace(counts, &pair, (&src, &dst), &moved, target.as_ref(), whiteout)?,
            }
            Ok(())
        })
    }

    /// What moves of an inode that goes from one name to the other: its record as it is then, and prefixes of keys.
    fn moving(
        &self,
        batch: &mut Batch,
        inode: &InodeRef,
        (from, to): (&End<'_>, &End<'_>),
        now: Time,
    ) -> Result<MovedKeys> {
        let (at, to_at) = (from.at, to.at);
        let linked = inode.linked().map(|(_, id)| id);
        // A count may be too high, never too low: a file with a count of 1 has no other name, and need not stay in the
        // link area.
        let last_name = inode.peek(|s| s.record.nlink == 1);
        if let Some(id) = linked.filter(|_| !last_name) {
            let (old, new) = (self.domain(at), self.domain(to_at));
            if !old.is(&new) {
                return Err(Error::CrossesClone(inode.label()));
            }
            let name = LinkName { kind: inode.kind, id };
            let (left, entered) = (old.index(&from.entry)?, new.index(&to.entry)?);
            return Ok(MovedKeys::Name { file: path::meta(&old.linked(id)), name, left, entered });
        }
        let mut record = inode.peek(|s| s.record.clone());
        record.ctime = now;
        let (around, kept) = ((at.dir.lineage, to_at.dir.lineage), (inode.ino, inode.lineage));
        let mut names = None;
        let mut keep_root = false;
        if record.kind == FileKind::Directory {
            let below = path::contents(&at.contents, from.name)?;
            if record.clone_id != 0 {
                // The directory takes its link area along, so it must stay the root of that lineage. So must one with a
                // quota, which no linked file leaves.
                let has_quota = record.account.is_some_and(|account| account.limit.is_some());
                keep_root = around.0 != around.1 && (has_quota || self.has_link_area(&below)?);
            } else if let Some(domain) = self.links_below(at, &below)? {
                let new = self.domain(to_at);
                if !domain.is(&new) {
                    return Err(Error::CrossesClone(inode.label()));
                }
                let beyond = path::contents(&to_at.contents, to.name)?;
                names = Some((domain.index(&below)?, new.index(&beyond)?));
            }
        }
        let (file, clone) = (|| self.fresh_file(), || self.fresh_clone());
        self.lineages.moved(&self.db, batch, &mut record, around, kept, keep_root, file, clone)?;
        let mut prefixes: Vec<_> = from.prefixes(&record)?.into_iter().zip(to.prefixes(&record)?).collect();
        prefixes.extend(names);
        if record.kind == FileKind::Directory {
            let (below, beyond) =
                (path::contents(&at.contents, from.name)?, path::contents(&to_at.contents, to.name)?);
            prefixes.extend(self.moves_kept_by_prefix(&below, &beyond)?);
            self.find_marks_later(batch, now)?;
        }
        if let Some(id) = linked {
            let domain = self.domain(at);
            let file = domain.linked(id);
            batch.delete(domain.index(&from.entry)?).delete(path::meta(&file));
            let data = |(_, to): &(Bytes, Bytes)| (path::data(&file), to.clone());
            prefixes = prefixes.iter().map(data).collect(); // a file has no other prefix
        }
        Ok(MovedKeys::Record { record, prefixes })
    }

    /// What an entry takes, with all below it; wants a directory counted that never was.
    pub(crate) fn entry_taken(&self, counts: &mut Counts, end: &End<'_>, inode: &InodeRef) -> Result<Taken> {
        if inode.kind == FileKind::Directory {
            return self.tree_taken(counts, end.at, inode);
        }
        let data = match inode.linked() {
            Some((_, id)) => path::data(&self.domain(end.at).linked(id)),
            None => path::data(&end.entry),
        };
        Ok(Taken::exact(self.bytes_of(inode, &data)?))
    }

    /// Adds what a move changes in accounts.
    fn bill_move(
        &self,
        bill: &mut Bill,
        counts: &mut Counts,
        moving: &mut MovedKeys,
        inode: &InodeRef,
        (from, to): (&End<'_>, &End<'_>),
    ) -> Result<()> {
        let MovedKeys::Record { record, .. } = moving else { return Ok(()) };
        let old = match inode.linked() {
            Some(_) => self.above_links(from.at),
            None => self.above(from.at),
        };
        let (old, new) = old.apart(self.above(to.at));
        let leaves_stale = old.has_stale();
        let taken = match old.is_empty() && new.is_empty() {
            true => Taken::default(),
            false => self.entry_taken(counts, from, inode)?,
        };
        // Counts in it may be wrong, and what said so does not lie above it any more.
        if inode.kind == FileKind::Directory && leaves_stale {
            self.make_stale(record);
        }
        bill.subtract(old, taken);
        bill.add(new, taken);
        Ok(())
    }

    fn replace(
        &self,
        counts: &mut Counts,
        pair: &LockedDirs,
        (src, dst): (&End<'_>, &End<'_>),
        moved: &InodeRef,
        target: Option<&InodeRef>,
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        let now = self.now();
        let mut batch = Batch::new();
        let mut fate = Fate::Gone;
        let mut lineage = None;
        let mut nameless = Vec::new();
        let mut bill = Bill::default();
        let mut moving = self.moving(&mut batch, moved, (src, dst), now)?;
        self.bill_move(&mut bill, counts, &mut moving, moved, (src, dst))?;
        let kept = target.and_then(|target| self.keep_for_late_calls(target));
        if let Some(target) = target {
            if target.kind != FileKind::Directory && moved.kind != FileKind::Directory {
                let (above, taken) = self.leaving(dst.at, &dst.entry, target)?;
                bill.subtract(above, taken);
            }
            match (moved.kind == FileKind::Directory, target.kind == FileKind::Directory) {
                (true, false) => return Err(Error::NotDirectory(target.label())),
                (false, true) => return Err(Error::IsDirectory(target.label())),
                (false, false) => {
                    fate = self.remove_file(&mut batch, dst.at, &dst.entry, target, now)?;
                    // As in `unlink`: each such rename removes a name, unless it leaves another one.
                    if whiteout.is_none() {
                        batch.moves_once();
                    }
                }
                (true, true) => {
                    if !self.is_empty(&dst.contents()?)? {
                        return Err(Error::NotEmpty(target.label()));
                    }
                    target.peek(|s| Self::drop_data(&mut batch, &path::data(&dst.entry), &s.record));
                    let contents = dst.contents()?;
                    self.drop_kept_by_prefix(&mut batch, &contents, &Staying::new())?;
                    lineage = self.retire(&mut batch, dst.at, target)?;
                    let above = self.above(dst.at);
                    if !above.is_empty() {
                        let contents = dst.contents()?;
                        bill.subtract(above, self.leftovers(target, &contents)?);
                    }
                    nameless = self.nameless_below(&mut batch, target, now)?;
                }
            }
        }
        if whiteout.is_none() {
            batch.delete(path::meta(&src.entry));
        }
        moving.leave(&mut batch);
        moving.arrive(&mut batch, &dst.entry, now);
        for (from, to) in moving.prefixes() {
            batch.rename_prefix(from.clone(), to.clone());
        }
        if let Some(c) = whiteout {
            // Behind the renames, which would take along what lies below the data prefix of the old name.
            self.leave_whiteout(&mut batch, c, src.at, &src.entry, now)?;
        }
        let touched = Change::modified(now);
        pair.touch(&mut batch, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        kept.into_iter().for_each(KeptFile::lost_its_name);
        reserved.paid();
        pair.touched(&touched);
        if let Some(target) = target {
            nameless.iter().for_each(|file| self.removed(file, Fate::Orphan, now));
            self.removed(target, fate, now);
            self.lineages.give_back(lineage);
        }
        moving.done(moved, dst, now);
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
        counts: &mut Counts,
        pair: &LockedDirs,
        one: &End<'_>,
        two: &End<'_>,
        first: &InodeRef,
        second: &InodeRef,
    ) -> Result<()> {
        let now = self.now();
        let mut batch = Batch::new();
        let mut first_moves = self.moving(&mut batch, first, (one, two), now)?;
        let mut second_moves = self.moving(&mut batch, second, (two, one), now)?;
        let mut bill = Bill::default();
        self.bill_move(&mut bill, counts, &mut first_moves, first, (one, two))?;
        self.bill_move(&mut bill, counts, &mut second_moves, second, (two, one))?;
        first_moves.leave(&mut batch);
        second_moves.leave(&mut batch);
        first_moves.arrive(&mut batch, &two.entry, now);
        second_moves.arrive(&mut batch, &one.entry, now);
        // An exchange: the first entry is moved to a hidden place, the second to the place of the first, and the
        // first from there to the place of the second. This is one batch, so the hidden place is always empty between
        // calls.
        for (slot, (from, _)) in (0..).zip(first_moves.prefixes()) {
            batch.rename_prefix(from.clone(), system::exchange(slot));
        }
        for (from, to) in second_moves.prefixes() {
            batch.rename_prefix(from.clone(), to.clone());
        }
        for (slot, (_, to)) in (0..).zip(first_moves.prefixes()) {
            batch.rename_prefix(system::exchange(slot), to.clone());
        }
        let touched = Change::modified(now);
        pair.touch(&mut batch, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        reserved.paid();
        pair.touched(&touched);
        first_moves.done(first, two, now);
        second_moves.done(second, one, now);
        self.table.moved();
        Ok(())
    }
}
