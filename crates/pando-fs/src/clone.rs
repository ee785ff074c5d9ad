//! Clones of whole trees, each as one batch.
//!
//! A clone is a record for its root and one prefix clone for each region, whatever lies below. Which callers may clone:
//! see `rights`. Guarantees that the copy is of one moment, and that what it replaces goes in the same batch.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf, time::Instant};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    account::Account,
    bill::{Bill, Taken},
    error::{Error, Result, show},
    exclude::{outermost, relative},
    format::FEATURE_FORKS,
    inode::{Ancestry, InodeRef, Link},
    ledger::SoleAccounts,
    lock::{Attempts, Guard, Obstacle, attempt_shared},
    merge::Change,
    path::{self, check_name, system},
    place::{At, DirAt, may_change},
    quota::Counts,
    record::Record,
    remove_tree::Removal,
    rename::End,
    rights::Rights,
    staying::Staying,
    types::{Caller, CloneReport, FileKind, Ino, Time, VerifiedRights},
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

/// What a clone was asked for, besides its two ends.
struct CloneCall<'a> {
    rights: Rights<'a>,
    /// Paths in the source that are left out.
    exclude: &'a [Vec<&'a [u8]>],
    /// The clone is a fork.
    track: bool,
    /// A newer census of links has been waited for already.
    overtaken: bool,
}

/// The two ends of a clone, whose directories are held.
struct CloneEnds<'a> {
    source: InodeRef,
    /// Where the data of a source with several names are.
    data: Option<At>,
    from: End<'a>,
    to: End<'a>,
    /// What the clone replaces.
    target: Option<InodeRef>,
    /// The data of a source with several names lie at the root of its lineage: that and what is above it. Empty for
    /// other sources.
    root: Ancestry,
}

/// What a clone copies: prefixes of keys, and to where.
struct Copies {
    prefixes: Vec<(Bytes, Bytes)>,
    /// There are linked files among them.
    links: bool,
}

impl CloneEnds<'_> {
    /// Refuses a destination that is the source or holds it, or that exists if it is not to be replaced. `is_placed`:
    /// the source is what has a name in `from`.
    fn may_meet(&self, is_placed: bool, replace: bool) -> Result<()> {
        let CloneEnds { source, from, to, target, root, .. } = self;
        let Some(target) = target else { return Ok(()) };
        let shown_name = || match from.name {
            [] => source.label(),
            name => String::from_utf8_lossy(name).into_owned(),
        };
        if target.ino == source.ino {
            return Err(Error::Invalid(format!("{}: source and destination are the same", shown_name())));
        }
        let is_around =
            is_placed && from.at.is_at_or_below(target.ino) || root.iter().any(|up| up.ino == target.ino);
        if is_around {
            let (inner, outer) = (shown_name(), show(OsStr::from_bytes(to.name)));
            let text = format!("{inner}: lies inside the destination {outer} that it would replace");
            return Err(Error::Invalid(text));
        }
        if !replace {
            return Err(Error::Exists(show(OsStr::from_bytes(to.name))));
        }
        Ok(())
    }

    /// Holds what is copied and what is replaced. A file's size and data must be of one moment, and what a directory
    /// has of its own of that of what is in it; calls below it are batches.
    fn hold(&self, tries: &mut Attempts) -> Result<[Option<Guard>; 2], Obstacle> {
        let source = match (self.source.kind, &self.data) {
            (FileKind::Directory, _) if self.source.ino == self.to.at.dir.ino => None,
            (FileKind::Directory, _) => Some(tries.exclusive(&self.source.names)?),
            (_, Some(_)) => None,
            _ => Some(attempt_shared(&self.source.tree)?),
        };
        let target = self.target.as_ref().map(|t| tries.exclusive(&t.tree)).transpose()?;
        Ok([source, target])
    }
}

impl Fs {
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
        let name = check_name(dst.1)?;
        let exclude = outermost(exclude.iter().map(|path| relative(path)).collect::<Result<_>>()?);
        let new = self.dir(dst.0)?;
        may_change(&new, true)?;
        let (mut report, removal) = self.with_counts(|tries, counts| {
            let place = src.place()?;
            let pair = self.attempt_pair(tries, place.as_ref().map_or(&new, |(old, _)| old), &new)?;
            let to = End::to_be(pair.second(), name)?;
            let (source, held) = self.source_now(src, place.as_ref(), pair.first(), tries)?;
            let from = End::new(pair.first(), place.as_ref().map_or(&b""[..], |(_, name)| name))?;
            if track {
                source.must_be_dir()?;
                may_change(&source, true)?; // what is in a snapshot has no place that a merge could lead back to
                self.need_feature(FEATURE_FORKS)?;
            }
            let target = self.child(to.at, name)?;
            let root = source.linked().map(|(root, _)| root.ancestry()).transpose()?.unwrap_or_default();
            let ends = CloneEnds { source, data: held, from, to, target, root };
            ends.may_meet(place.is_some(), replace)?;
            rights.may_clone(&ends.source)?;
            match &ends.target {
                Some(target) => rights.may_remove(&ends.to.at.dir, target)?,
                None => {
                    self.may_enter(&new, name)?;
                    rights.may_add(&ends.to.at.dir)?;
                }
            }
            let _held = ends.hold(tries)?;
            self.may_replace_around_snapshot(&ends)?;
            let call = CloneCall { rights, exclude: &exclude, track, overtaken: tries.overtaken };
            self.write_clone(&call, &ends, counts)
        })?;
        if let Some(names) = removal.and_then(|removal| removal.names) {
            self.count_lost(names);
        }
        report.micros = start.elapsed().as_micros() as u64;
        self.clone_latency.record(report.micros);
        Ok(report)
    }

    /// The inode that a clone is made of, now that the directory of its name is held as `at`; for a file with several
    /// names also the place of its data, held.
    fn source_now(
        &self,
        src: &CloneSource<'_>,
        place: Option<&(InodeRef, Box<[u8]>)>,
        at: &DirAt,
        tries: &mut Attempts,
    ) -> Result<(InodeRef, Option<At>), Obstacle> {
        match (src, place) {
            (CloneSource::Named(..), Some((_, from))) => {
                let found = self.child(at, from)?;
                let name = || String::from_utf8_lossy(from).into_owned();
                Ok((found.ok_or_else(|| Error::NotFound(name()))?, None))
            }
            (CloneSource::Inode(wanted), Some((_, from))) => match self.child(at, from)? {
                Some(found) if found.ino == wanted.ino => Ok((found, None)),
                // The inode has been moved since its place was looked up.
                _ => Err(Obstacle::Taken { lock: wanted.tree.clone(), exclusive: false }),
            },
            (CloneSource::Inode(wanted), None) | (CloneSource::Named(wanted, _), None) => {
                Ok((wanted.clone(), Some(self.attempt(wanted, tries, false)?)))
            }
        }
    }

    /// Refuses a clone out of a snapshot that would replace the directory of the snapshot, or one around it.
    fn may_replace_around_snapshot(&self, ends: &CloneEnds<'_>) -> Result<()> {
        let Some(target) = ends.target.as_ref().filter(|_| ends.source.frozen) else { return Ok(()) };
        let up = if ends.root.is_empty() { &ends.source.ancestry()?[..] } else { &ends.root[..] };
        let of_snapshot = |top: &InodeRef| {
            top.peek(|s| match s.link {
                Link::Snapshot(number) => Some(number),
                _ => None,
            })
        };
        if let Some(number) = up.last().and_then(of_snapshot) {
            self.may_be_replaced_by(target, &ends.to.contents()?, number)?;
        }
        Ok(())
    }

    /// Writes the clone as one batch, and then updates what is in memory. The caller holds both ends.
    fn write_clone(
        &self,
        call: &CloneCall<'_>,
        ends: &CloneEnds<'_>,
        counts: &mut Counts,
    ) -> Result<(CloneReport, Option<Removal>), Obstacle> {
        let CloneEnds { source, from, to, target, .. } = ends;
        // What accounts say is what is there, until the batch is written.
        let accounts = self.lock_accounts();
        let now = self.now();
        let mut batch = Batch::new();
        let mut bill = Bill::default();
        let above = self.above(to.at);
        let mut record = self.record_of_clone(source, now)?;
        let copies = self.copies(&mut batch, ends, &record, call.overtaken)?;
        let mut taken = Taken::default();
        if record.account.is_some() || !above.is_empty() {
            taken = match &ends.data {
                Some(at) => Taken::exact(self.bytes_of(source, &at.data)?),
                None => self.entry_taken(counts, from, source)?,
            };
        }
        if let Some(target) = target {
            let (around, gone) = self.going(counts, to, target)?;
            bill.subtract(around, gone);
        }
        let links = copies.links;
        let removal = self.put_copies(&mut batch, call.rights, ends, copies, now)?;
        let mut counts_names = links;
        if source.kind == FileKind::Directory {
            self.find_marks_later(&mut batch, now)?;
            counts_names |= self.exclude(&mut batch, from, to, call.exclude)?;
            let counted = record.account.is_some() || !above.is_empty();
            let left_out = self.left_out(counts, source, from, call.exclude, counted)?;
            let without = left_out.all;
            left_out.correct(&mut batch, to)?;
            if counted {
                taken.bytes -= without.bytes;
                if links && above.has_limit() {
                    taken.bytes += self.linked_taken(counts, source, from, call.exclude)?;
                }
                // The copy has all linked files of the lineage until the census has counted names.
                taken.inexact |= without.inexact || links;
                record.account = Some(Account {
                    limit: record.account.and_then(|account| account.limit),
                    used: taken.bytes,
                    stale: taken.inexact,
                });
            } else if self.is_stale_around(from.at) {
                self.make_stale(&mut record);
            }
        }
        bill.add(above, taken);
        if links {
            self.mark_uncounted(&mut batch, &to.contents()?)?;
        }
        batch.put(path::meta(&to.entry), record.encode());
        if call.track {
            let of = (&from.contents()?[..], counts_names);
            let by = (call.rights.uid(), now);
            self.add_fork(&mut batch, (&to.entry, &to.contents()?), &record, of, by)?;
        }
        self.write_copy(batch, to.at, (accounts, bill), now, call.overtaken)?;
        if let Some(removal) = &removal {
            self.removed_all(removal);
        }
        if counts_names {
            self.count_names_soon();
        }
        if call.track {
            self.strip_soon();
        }
        Ok((self.report_of_copy(to, target.as_ref(), removal.as_ref()), removal))
    }

    /// The record of a clone of `source`: owner, mode and times are those of the source.
    fn record_of_clone(&self, source: &InodeRef, now: Time) -> Result<Record> {
        let mut record = source.peek(|s| s.record.clone());
        (record.ctime, record.crtime) = (now, now);
        (record.nlink, record.pin, record.clone_id) = (1, None, 0);
        match source.kind {
            FileKind::Directory => record.clone_id = self.fresh_clone()?,
            _ => record.fileno = self.fresh_file()?,
        }
        Ok(record)
    }

    /// The prefixes of keys that a clone with this record copies. Adds, for a directory in a tree with linked files,
    /// what makes the copy a lineage of its own.
    fn copies(
        &self,
        batch: &mut Batch,
        CloneEnds { source, data, from, to, .. }: &CloneEnds<'_>,
        record: &Record,
        overtaken: bool,
    ) -> Result<Copies> {
        let mut prefixes = Vec::new();
        match source.linked() {
            None => prefixes.extend(from.prefixes(record)?.into_iter().zip(to.prefixes(record)?)),
            Some((_, id)) if record.has_data() => {
                let data = match data {
                    Some(at) => at.data.clone(),
                    None => path::data(&self.domain(from.at).linked(id)),
                };
                prefixes.push((data, path::data(&to.entry)));
            }
            Some(_) => {}
        }
        let mut links = false;
        if source.kind == FileKind::Directory && source.peek(|s| s.record.clone_id == 0) {
            let contents = (&from.contents()?[..], &to.contents()?[..]);
            let of_links = self.clones_of_links(batch, from.at, contents, overtaken)?;
            links = !of_links.is_empty();
            prefixes.extend(of_links);
        }
        Ok(Copies { prefixes, links })
    }

    /// Adds the copies, and the removal of what they replace.
    fn put_copies(
        &self,
        batch: &mut Batch,
        rights: Rights<'_>,
        CloneEnds { source, to, target, .. }: &CloneEnds<'_>,
        Copies { prefixes, links }: Copies,
        now: Time,
    ) -> Result<Option<Removal>> {
        let remove =
            |batch: &mut Batch, target| self.remove_all(rights, batch, to, (target, &Staying::new()), now);
        let Some(target) = target else {
            for (from, to) in prefixes {
                batch.clone_prefix(from, to);
            }
            return Ok(None);
        };
        // The replaced entry may be in the copy, or be a name of a file that has other names in the copy.
        let is_in_copy = to.at.is_at_or_below(source.ino) || links && target.linked().is_some();
        if !is_in_copy {
            let removal = remove(batch, target)?;
            for (from, to) in prefixes {
                batch.clone_prefix(from, to);
            }
            return Ok(Some(removal));
        }
        // The copy must show the state before this call: it is first made at a hidden place.
        for (slot, (from, _)) in (0..).zip(&prefixes) {
            batch.clone_prefix(from.clone(), system::exchange(slot));
        }
        let removal = remove(batch, target)?;
        for (slot, (_, to)) in (0..).zip(prefixes) {
            batch.rename_prefix(system::exchange(slot), to);
        }
        Ok(Some(removal))
    }

    /// Writes the batch that puts a copy into the directory `at`, whose times change with it, and notes in memory that
    /// a tree was cloned. The space that the copy refers to is reserved in the accounts.
    pub(crate) fn write_copy(
        &self,
        mut batch: Batch,
        at: &DirAt,
        (accounts, bill): (Option<SoleAccounts<'_>>, Bill),
        now: Time,
        overtaken: bool,
    ) -> Result<(), Obstacle> {
        let touched = Change::modified(now);
        Self::change_dir(&mut batch, at, &touched);
        batch.put(system::cloned(), now.encode());
        let reserved = self.reserve_alone(&accounts, &mut batch, bill)?;
        self.write_unless_overtaken(batch, overtaken)?;
        reserved.paid();
        drop(accounts);
        self.tree_cloned(now);
        at.dir.change(|s| touched.apply(&mut s.record));
        Ok(())
    }

    /// The report of a copy at `to`, whose time is not known yet.
    pub(crate) fn report_of_copy(
        &self,
        to: &End<'_>,
        target: Option<&InodeRef>,
        removal: Option<&Removal>,
    ) -> CloneReport {
        CloneReport {
            replaced: target.map(|target| target.ino).into_iter().collect(),
            orphaned: removal.map(Removal::orphaned).unwrap_or_default(),
            entries: vec![(to.at.dir.ino, OsStr::from_bytes(to.name).to_os_string())],
            micros: 0,
        }
    }
}
