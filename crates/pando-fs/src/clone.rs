//! Clones of whole trees, and their removal, each as one batch.
//!
//! A clone is a record for its root and one prefix clone for each region,
//! whatever lies below. Which callers may clone: see `rights`. Guarantees that
//! what is replaced or removed dies at once in memory, and that files open
//! below stay usable through their handles.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf, time::Instant};

use pando_db::Batch;

use crate::{
    account::Account,
    bill::{Above, Bill, Taken},
    census::LostNames,
    error::{Error, Result, show},
    exclude::{outermost, relative},
    format::FEATURE_FORKS,
    inode::{InodeRef, Link},
    lock::{self, Obstacle, attempt_shared},
    merge::Change,
    orphan::Fate,
    path::{self, check_name, system},
    place::may_change,
    quota::Counts,
    rename::End,
    rights::Rights,
    staying::Staying,
    types::{Caller, CloneReport, FileKind, Ino, RemoveReport, Time, VerifiedRights},
    volume::Fs,
};

/// What is to be cloned.
enum CloneSource<'a> {
    /// Whatever has this name when its directory is held.
    Named(InodeRef, &'a OsStr),
    /// This inode, wherever it is when the call looks.
    Inode(InodeRef),
}

impl CloneSource<'_> {
    /// The directory and name of the inode, which may be moved meanwhile; `None` for a file with several names.
    fn place(&self) -> Result<Option<(InodeRef, Box<[u8]>)>> {
        match self {
            CloneSource::Named(dir, name) => Ok(Some((dir.clone(), name.as_bytes().into()))),
            CloneSource::Inode(inode) => inode.peek(|s| match &s.link {
                Link::At { parent, name } => Ok(Some((parent.clone(), name.clone()))),
                Link::Linked { .. } => Ok(None),
                Link::Root => Err(Error::Invalid("the root cannot be cloned into itself".into())),
                Link::Snapshot(_) => {
                    Err(Error::Invalid("a snapshot cannot be forked; clone it first".into()))
                }
                Link::Snapshots(_) => {
                    let text = ".snapshots cannot be cloned as a whole; clone one of the snapshots in it";
                    Err(Error::Invalid(text.into()))
                }
                Link::Orphan | Link::Gone => Err(Error::Stale(inode.ino)),
            }),
        }
    }
}

/// What a removal leaves to do once its batch is written.
pub(crate) struct Removal {
    top: InodeRef,
    top_fate: Fate,
    open_below: Vec<InodeRef>,
    lineage: Option<u32>,
    /// Names of linked files that went with it.
    pub(crate) names: Option<LostNames>,
    now: Time,
}

impl Removal {
    /// Open files that have lost their last name.
    pub(crate) fn orphaned(&self) -> Vec<Ino> {
        self.open_below.iter().map(|inode| inode.ino).collect()
    }
}

impl Fs {
    /// Adds the removal of an entry and all below it, and of the keys that are kept by contents prefix there, except
    /// those `staying`. The caller holds `tree` of it exclusively.
    pub(crate) fn remove_all(
        &self,
        rights: Rights<'_>,
        batch: &mut Batch,
        end: &End<'_>,
        (top, staying): (&InodeRef, &Staying),
        now: Time,
    ) -> Result<Removal> {
        let mut open_below = Vec::new();
        let mut top_fate = Fate::Gone;
        let mut lineage = None;
        let mut names = None;
        if top.kind == FileKind::Directory {
            let contents = path::contents(&end.at.contents, end.name)?;
            self.may_empty(rights, top, &contents)?;
            self.may_leave(&end.at.dir, end.name, top)?;
            if top.peek(|s| s.record.clone_id == 0) {
                names = self.lose_names(batch, end.at, &contents)?;
            }
            open_below = self.orphan_below(batch, top, &|_| false, now)?;
            self.drop_kept_by_prefix(batch, &contents, staying)?;
            batch.delete(path::meta(&end.entry));
            // Removing a clone may remove the last reference to data that other batches have deleted.
            batch.releases();
            for prefix in top.peek(|s| end.prefixes(&s.record))? {
                batch.delete_prefix(prefix);
            }
            lineage = self.retire(batch, end.at, top)?;
        } else {
            self.may_leave(&end.at.dir, end.name, top)?;
            top_fate = self.remove_file(batch, end.at, &end.entry, top, now)?;
        }
        Ok(Removal { top: top.clone(), top_fate, open_below, lineage, names, now })
    }

    /// Updates the inodes in memory after the batch of a removal is written.
    pub(crate) fn removed_all(&self, removal: &Removal) {
        for inode in &removal.open_below {
            self.removed(inode, Fate::Orphan, removal.now);
        }
        self.removed(&removal.top, removal.top_fate, removal.now);
        if removal.top.kind == FileKind::Directory {
            self.table.tree_removed();
        }
        self.lineages.give_back(removal.lineage);
    }

    /// Clones `src`, a file or a directory with everything below, to `dst`, which must not exist (EEXIST) unless
    /// `replace`. Pairs are (directory, name). The clone keeps owner, mode and times of the source; its change and
    /// creation times are now. The source may not lie inside the destination, nor in a snapshot of it or of a directory
    /// in it (EINVAL); for the reverse see [`Fs::clone_tree_without`]. The caller must own the source, and be allowed
    /// to write to the directory of the destination.
    ///
    /// One batch: atomic, and the same cost for any size of the tree. The clone contains the effects of all calls
    /// that have returned; writes that the kernel still keeps are not in it.
    pub fn clone_tree(
        &self,
        c: &Caller,
        src: (Ino, &OsStr),
        dst: (Ino, &OsStr),
        replace: bool,
    ) -> Result<CloneReport> {
        self.clone_tree_without(c, src, dst, replace, &[])
    }

    /// Like [`Fs::clone_tree`], but leaves out what lies at the paths `exclude`, which are relative to the cloned
    /// directory, in the same batch. Paths that do not exist are ignored.
    ///
    /// The destination may lie inside the source: the clone is made of the state before the call, so it does not
    /// contain itself. If many clones lie inside their source, each should exclude the directory that holds them, or
    /// it contains all older ones.
    pub fn clone_tree_without(
        &self,
        c: &Caller,
        src: (Ino, &OsStr),
        dst: (Ino, &OsStr),
        replace: bool,
        exclude: &[PathBuf],
    ) -> Result<CloneReport> {
        check_name(src.1)?;
        let source = CloneSource::Named(self.dir(src.0)?, src.1);
        self.clone_to(Rights::Of(c), &source, dst, replace, exclude, false)
    }

    /// Like [`Fs::clone_tree_without`], for the file or directory with the number `source`, wherever it is, with
    /// rights that the kernel has verified.
    pub fn clone_verified(
        &self,
        shown: &VerifiedRights,
        source: Ino,
        dst: (Ino, &OsStr),
        replace: bool,
        exclude: &[PathBuf],
    ) -> Result<CloneReport> {
        let source = CloneSource::Inode(self.table.get(source)?);
        self.clone_to(Rights::Verified(shown), &source, dst, replace, exclude, false)
    }

    /// Like [`Fs::clone_tree_without`], for a directory, and the clone is a fork: its first state is kept, so that
    /// [`Fs::diff_fork`] can compare the fork with it and [`Fs::merge`] can merge what has changed since.
    /// [`Fs::discard`] removes a fork. ENOTDIR for a file.
    pub fn fork_tree(
        &self,
        c: &Caller,
        src: (Ino, &OsStr),
        dst: (Ino, &OsStr),
        replace: bool,
        exclude: &[PathBuf],
    ) -> Result<CloneReport> {
        check_name(src.1)?;
        let source = CloneSource::Named(self.dir(src.0)?, src.1);
        self.clone_to(Rights::Of(c), &source, dst, replace, exclude, true)
    }

    /// Like [`Fs::fork_tree`], with rights that the kernel has verified, as [`Fs::clone_verified`].
    pub fn fork_verified(
        &self,
        shown: &VerifiedRights,
        source: Ino,
        dst: (Ino, &OsStr),
        replace: bool,
        exclude: &[PathBuf],
    ) -> Result<CloneReport> {
        let source = CloneSource::Inode(self.table.get(source)?);
        self.clone_to(Rights::Verified(shown), &source, dst, replace, exclude, true)
    }

    fn clone_to(
        &self,
        rights: Rights<'_>,
        src: &CloneSource<'_>,
        dst: (Ino, &OsStr),
        replace: bool,
        exclude: &[PathBuf],
        track: bool,
    ) -> Result<CloneReport> {
        let start = Instant::now();
        self.writable()?;
        let to = check_name(dst.1)?;
        let exclude = outermost(exclude.iter().map(|path| relative(path)).collect::<Result<_>>()?);
        let new = self.dir(dst.0)?;
        may_change(&new, true)?;
        let (mut report, removal) = self.with_counts(|tries, counts| {
            let place = src.place()?;
            let pair = self.attempt_pair(tries, place.as_ref().map_or(&new, |(old, _)| old), &new)?;
            let end = End::to_be(pair.second(), to)?;
            let (source, held) = match (src, &place) {
                (CloneSource::Named(..), Some((_, from))) => {
                    let name = || String::from_utf8_lossy(from).into_owned();
                    let found = self.child(pair.first(), from)?;
                    (found.ok_or_else(|| Error::NotFound(name()))?, None)
                }
                (CloneSource::Inode(wanted), Some((_, from))) => match self.child(pair.first(), from)? {
                    Some(found) if found.ino == wanted.ino => (found, None),
                    // The inode has been moved since its place was looked up.
                    _ => return Err(Obstacle::Taken { lock: wanted.tree.clone(), exclusive: false }),
                },
                (CloneSource::Inode(wanted), None) | (CloneSource::Named(wanted, _), None) => {
                    (wanted.clone(), Some(self.attempt(wanted, tries, false)?))
                }
            };
            let from = place.as_ref().map_or(&b""[..], |(_, name)| name);
            let shown_name = || match from {
                [] => source.label(),
                name => String::from_utf8_lossy(name).into_owned(),
            };
            let source_end = End::new(pair.first(), from)?;
            if track {
                source.must_be_dir()?;
                may_change(&source, true)?; // what is in a snapshot has no place that a merge could lead back to
                self.need_feature(FEATURE_FORKS)?;
            }
            let target = self.child(end.at, to)?;
            let refuse = |text: String| Err(Obstacle::from(Error::Invalid(text)));
            if target.as_ref().is_some_and(|t| t.ino == source.ino) {
                return refuse(format!("{}: source and destination are the same", shown_name()));
            }
            let inside = end.at.is_at_or_below(source.ino);
            // The data of a file with several names lie at the root of their lineage.
            let root = source.linked().map(|(root, _)| root.ancestry()).transpose()?.unwrap_or_default();
            let above = target.as_ref().is_some_and(|t| {
                place.is_some() && source_end.at.is_at_or_below(t.ino)
                    || root.iter().any(|up| up.ino == t.ino)
            });
            if above {
                return refuse(format!(
                    "{}: lies inside the destination {} that it would replace",
                    shown_name(),
                    show(dst.1)
                ));
            }
            if target.is_some() && !replace {
                return Err(Error::Exists(show(dst.1)).into());
            }
            rights.may_clone(&source)?;
            match &target {
                Some(target) => rights.may_remove(&end.at.dir, target)?,
                None => {
                    self.may_enter(&new, to)?;
                    rights.may_add(&end.at.dir)?;
                }
            }
            // A file's size and data must be of one moment, and what a directory has of its own of that of what is in
            // it; calls below it are batches.
            let _source = match (source.kind, &held) {
                (FileKind::Directory, _) if source.ino == end.at.dir.ino => None,
                (FileKind::Directory, _) => Some(tries.exclusive(&source.names)?),
                (_, Some(_)) => None,
                _ => Some(attempt_shared(&source.tree)?),
            };
            let _target = target.as_ref().map(|t| tries.exclusive(&t.tree)).transpose()?;
            if let Some(target) = target.as_ref().filter(|_| source.frozen) {
                let up = if root.is_empty() { source.ancestry()? } else { root };
                let of_snapshot = |top: &InodeRef| {
                    top.peek(|s| match s.link {
                        Link::Snapshot(number) => Some(number),
                        _ => None,
                    })
                };
                if let Some(number) = up.last().and_then(of_snapshot) {
                    self.may_be_replaced_by(target, &path::contents(&end.at.contents, to)?, number)?;
                }
            }
            // What accounts say is what is there, until the batch is written.
            let accounts = self.lock_accounts();
            let now = self.now();
            let mut batch = Batch::new();
            let mut bill = Bill::default();
            let above = self.above(end.at);
            let mut record = source.peek(|s| s.record.clone());
            record.ctime = now;
            record.crtime = now;
            record.nlink = 1;
            record.pin = None;
            record.clone_id = 0;
            match source.kind {
                FileKind::Directory => record.clone_id = self.fresh_clone()?,
                _ => record.fileno = self.fresh_file()?,
            }
            let (mut copies, mut links) = (Vec::new(), false);
            match source.linked() {
                None => {
                    copies.extend(source_end.prefixes(&record)?.into_iter().zip(end.prefixes(&record)?));
                }
                Some((_, id)) if record.has_data() => {
                    let data = match &held {
                        Some(at) => at.data.clone(),
                        None => path::data(&self.domain(source_end.at).linked(id)),
                    };
                    copies.push((data, path::data(&end.entry)));
                }
                Some(_) => {}
            }
            if source.kind == FileKind::Directory && source.peek(|s| s.record.clone_id == 0) {
                let below = path::contents(&source_end.at.contents, source_end.name)?;
                let prefixes = (&below[..], &path::contents(&end.at.contents, to)?[..]);
                let of_links = self.clones_of_links(&mut batch, source_end.at, prefixes, tries.overtaken)?;
                links = !of_links.is_empty();
                copies.extend(of_links);
            }
            let mut taken = Taken::default();
            if record.account.is_some() || !above.is_empty() {
                taken = match &held {
                    Some(at) => Taken::exact(self.bytes_of(&source, &at.data)?),
                    None => self.entry_taken(counts, &source_end, &source)?,
                };
            }
            if let Some(target) = &target {
                let (around, gone) = self.going(counts, &end, target)?;
                bill.subtract(around, gone);
            }
            let remove = |batch: &mut Batch| {
                target
                    .as_ref()
                    .map(|t| self.remove_all(rights, batch, &end, (t, &Staying::new()), now))
                    .transpose()
            };
            // The replaced entry is in the copy, or is a name of a file that has other names in the copy.
            let in_copy = inside || links && target.as_ref().is_some_and(|t| t.linked().is_some());
            let removal = if in_copy && target.is_some() {
                // The copy must show the state before this call: it is first made at a hidden place.
                for (slot, (from, _)) in (0..).zip(&copies) {
                    batch.clone_prefix(from.clone(), system::exchange(slot));
                }
                let removal = remove(&mut batch)?;
                for (slot, (_, to)) in (0..).zip(copies) {
                    batch.rename_prefix(system::exchange(slot), to);
                }
                removal
            } else {
                let removal = remove(&mut batch)?;
                for (from, to) in copies {
                    batch.clone_prefix(from, to);
                }
                removal
            };
            let mut counts_names = links;
            if source.kind == FileKind::Directory {
                self.find_marks_later(&mut batch, now)?;
                counts_names |= self.exclude(&mut batch, &source_end, &end, &exclude)?;
                let counted = record.account.is_some() || !above.is_empty();
                let left_out = self.left_out(counts, &source, &source_end, &exclude, counted)?;
                let without = left_out.all;
                left_out.correct(&mut batch, &end)?;
                if counted {
                    taken.bytes -= without.bytes;
                    if links && above.has_limit() {
                        taken.bytes += self.linked_taken(counts, &source, &source_end, &exclude)?;
                    }
                    // The copy has all linked files of the lineage until the census has counted names.
                    taken.inexact |= without.inexact || links;
                    record.account = Some(Account {
                        limit: record.account.and_then(|account| account.limit),
                        used: taken.bytes,
                        stale: taken.inexact,
                    });
                } else if self.is_stale_around(source_end.at) {
                    self.make_stale(&mut record);
                }
            }
            bill.add(above, taken);
            if links {
                self.mark_uncounted(&mut batch, &path::contents(&end.at.contents, to)?)?;
            }
            batch.put(path::meta(&end.entry), record.encode());
            if track {
                let contents = path::contents(&end.at.contents, to)?;
                let of = path::contents(&source_end.at.contents, source_end.name)?;
                let of = (&of[..], counts_names);
                self.add_fork(&mut batch, (&end.entry, &contents), &record, of, (rights.uid(), now))?;
            }
            let touched = Change::modified(now);
            Self::change_dir(&mut batch, end.at, &touched);
            batch.put(system::cloned(), now.encode());
            let reserved = self.reserve_alone(&accounts, &mut batch, bill)?;
            self.write_unless_overtaken(batch, tries.overtaken)?;
            reserved.paid();
            drop(accounts);
            {
                let mut cloned = self.cloned.lock();
                *cloned = now.max(*cloned);
            }
            end.at.dir.change(|s| touched.apply(&mut s.record));
            if let Some(removal) = &removal {
                self.removed_all(removal);
            }
            if counts_names {
                self.count_names_soon();
            }
            if track {
                self.strip_soon();
            }
            let report = CloneReport {
                replaced: target.iter().map(|t| t.ino).collect(),
                orphaned: removal.as_ref().map(Removal::orphaned).unwrap_or_default(),
                entries: vec![(end.at.dir.ino, dst.1.to_os_string())],
                micros: 0,
            };
            Ok((report, removal))
        })?;
        if let Some(names) = removal.and_then(|removal| removal.names) {
            self.count_lost(names);
        }
        report.micros = start.elapsed().as_micros() as u64;
        self.clone_latency.record(report.micros);
        Ok(report)
    }

    /// What goes from where when an entry is removed with all below it.
    pub(crate) fn going(&self, counts: &mut Counts, end: &End<'_>, top: &InodeRef) -> Result<(Above, Taken)> {
        if top.kind != FileKind::Directory {
            return self.leaving(end.at, &end.entry, top);
        }
        let above = self.above(end.at);
        let taken = match above.is_empty() {
            true => Taken::default(),
            false => self.entry_taken(counts, end, top)?,
        };
        Ok((above, taken))
    }

    /// Removes the entry `name` of `parent` with everything below it, as `rm -r` does, in one batch.
    pub fn remove_tree(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<RemoveReport> {
        self.remove_by(Rights::Of(c), parent, name, false)
    }

    /// Like [`Fs::remove_tree`], with rights that the kernel has verified.
    pub fn remove_verified(&self, shown: &VerifiedRights, parent: Ino, name: &OsStr) -> Result<RemoveReport> {
        self.remove_by(Rights::Verified(shown), parent, name, false)
    }

    /// Like [`Fs::discard`], with rights that the kernel has verified.
    pub fn discard_verified(
        &self,
        shown: &VerifiedRights,
        parent: Ino,
        name: &OsStr,
    ) -> Result<RemoveReport> {
        self.remove_by(Rights::Verified(shown), parent, name, true)
    }

    /// `fork`: it must be one.
    pub(crate) fn remove_by(
        &self,
        rights: Rights<'_>,
        parent: Ino,
        name: &OsStr,
        fork: bool,
    ) -> Result<RemoveReport> {
        self.counting_for(|counts| self.remove_once(counts, rights, parent, name, fork))
    }

    fn remove_once(
        &self,
        counts: &mut Counts,
        rights: Rights<'_>,
        parent: Ino,
        name: &OsStr,
        fork: bool,
    ) -> Result<RemoveReport> {
        let start = Instant::now();
        self.writable()?;
        let bytes = check_name(name)?;
        let dir = self.dir(parent)?;
        let (at, names) = self.hold_names(&dir, true)?;
        let end = End::new(&at, bytes)?;
        let top = self.child(&at, bytes)?.ok_or_else(|| Error::NotFound(show(name)))?;
        rights.may_remove(&dir, &top)?;
        if fork && self.fork_at(&path::contents(&at.contents, bytes)?)?.is_none() {
            let text = format!("{}: not a fork; pando rm -r removes any tree", show(name));
            return Err(Error::Invalid(text));
        }
        let own = lock::exclusive(&top.tree);
        let now = self.now();
        let touched = Change::modified(now);
        let mut batch = Batch::new();
        let mut bill = Bill::default();
        let (above, gone) = self.going(counts, &end, &top)?;
        bill.subtract(above, gone);
        let removal = self.remove_all(rights, &mut batch, &end, (&top, &Staying::new()), now)?;
        Self::change_dir(&mut batch, &at, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        reserved.paid();
        dir.change(|s| touched.apply(&mut s.record));
        self.removed_all(&removal);
        self.positions.removed(&self.db, bytes);
        drop((own, names, at));
        let orphaned = removal.orphaned();
        if let Some(names) = removal.names {
            self.count_lost(names);
        }
        Ok(RemoveReport {
            replaced: vec![top.ino],
            orphaned,
            entries: vec![(dir.ino, name.to_os_string())],
            micros: start.elapsed().as_micros() as u64,
        })
    }
}
