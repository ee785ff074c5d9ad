//! Rolling back to a snapshot: in the place of its directory, or as a new tree.
//!
//! A rollback is a clone of the snapshot that replaces the directory, in one batch. The state before it becomes a
//! snapshot first, unless the caller does not want that. The entries get new inode numbers, as in any clone, so that
//! entries that were moved out of the directory since the snapshot keep theirs. The directory keeps its family of
//! snapshots, and directories below keep theirs if they are found in the snapshot that is restored (`below`).

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Instant};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    account::Account,
    bill::{Bill, Taken},
    error::{Error, Result, show},
    family::Family,
    format::FEATURE_SNAPSHOTTED,
    inode::Link,
    lock::{Obstacle, attempt_shared},
    path::{self, check_name, system},
    place::may_change,
    record::Record,
    rename::End,
    rights::Rights,
    snapshot::{Snapshotted, below::TwoStates, no_snapshot},
    staying::Staying,
    types::{Authority, CloneReport, Ino, NewSnapshot, ROOT, SnapshotInfo},
    volume::Fs,
};

/// Adds the copies of all that is in a snapshot to the directory with this entry and contents prefix.
fn copy_out(batch: &mut Batch, number: u32, entry: &[u8], contents: &[u8], record: &Record) {
    let mark = path::snapshot(number);
    let (meta, data): (Bytes, Bytes) = (path::meta(contents), path::data(contents));
    batch.clone_prefix(path::meta(&mark), meta.clone());
    batch.clone_prefix(path::data(&mark), data.clone());
    // What is the root's own stands there under other keys than here.
    batch.delete(meta);
    if record.has_outside() {
        batch.delete_prefix(path::attrs_under(&data));
        batch.clone_prefix(path::attrs_under(&path::data(&mark)), path::attrs_under(&path::data(entry)));
    }
}

impl Fs {
    /// Makes the directory `source` what it was in its snapshot `number`, in one batch. What it is now becomes a
    /// snapshot first, which is returned, unless `discard`. Files that are open stay usable by their handles.
    ///
    /// EINVAL for the root, which nothing can replace: clone the directories of its snapshot. EPERM and EACCES as for a
    /// clone that replaces the directory; EDQUOT too, by the limits of directories above.
    pub fn rollback(
        &self,
        by: Authority<'_>,
        source: Ino,
        number: u32,
        discard: bool,
    ) -> Result<(CloneReport, Option<SnapshotInfo>)> {
        self.writable()?;
        self.need_feature(FEATURE_SNAPSHOTTED)?;
        let rights = Rights::from(by);
        let dir = self.dir(source)?;
        if source == ROOT {
            let text =
                "the root cannot be rolled back; clone the directories of its snapshot back one by one";
            return Err(Error::Invalid(text.into()));
        }
        may_change(&dir, true)?;
        rights.may_clone(&dir)?;
        let mut counts = false;
        let (report, before, removal) = self.with_counts(|tries, wanted| {
            let (parent, name) = dir.peek(|s| match &s.link {
                Link::At { parent, name } => Ok((parent.clone(), name.clone())),
                _ => Err(Error::Stale(source)),
            })?;
            let at = self.attempt_dir(&parent)?;
            let _names = tries.exclusive(&parent.names)?;
            let end = End::to_be(&at, &name)?;
            if self.child(&at, &name)?.is_none_or(|found| found.ino != source) {
                // The directory has been moved since its place was looked up.
                return Err(Obstacle::Taken { lock: dir.tree.clone(), exclusive: false });
            }
            rights.may_remove(&parent, &dir)?;
            let _own = tries.exclusive(&dir.tree)?;
            let (family, family_dir, _) = self.family_of(source)?;
            let _snapshots = tries.exclusive(&family_dir.names)?;
            let family = self.family_held(source, &family)?;
            let info = self.info_of(&family, number)?;
            let root = self.snapshot_root(number)?.ok_or_else(|| no_snapshot(number))?;
            let contents = path::contents(&at.contents, &name)?;
            let now = self.now();
            let mut states = TwoStates::new(self, &contents, &info);
            let families = states.families(tries)?;
            let staying = states.staying()?;
            let mut batch = Batch::new();
            let accounts = self.lock_accounts();
            let above = self.above(&at);
            let mut bill = Bill::default();
            let mut comes = None;
            // If linked files are shared with a tree around this one, a census counts later what of them goes.
            if above.has_limit() && self.links_below(&at, &contents)?.is_none() {
                bill.subtract(self.above(&at), self.entry_taken(wanted, &end, &dir)?);
                comes = Some(self.tree_taken(wanted, &self.attempt_dir(&root)?, &root)?);
            }
            let before = match discard {
                true => None,
                false => {
                    let (owner, entry) = ((source, &end.entry[..]), &end.entry[..]);
                    let place = Snapshotted { dir: &dir, owner, at: &at, entry, contents: &contents };
                    let note = format!("before the rollback to snapshot {number}");
                    let new = NewSnapshot { note, ..NewSnapshot::default() };
                    let new = (&new, now);
                    Some(self.add_snapshot(&mut batch, rights, &place, &family, new, tries.overtaken)?)
                }
            };
            let removal = self.remove_all(rights, &mut batch, &end, (&dir, &staying), now)?;
            let mut record = root.peek(|s| s.record.clone());
            record.clone_id = self.fresh_clone()?;
            record.ctime = now;
            // The quota is that of the place. What is there now is counted later.
            let limit = dir.peek(|s| s.record.account.and_then(|account| account.limit));
            if limit.is_some() || record.account.is_some() || !above.is_empty() {
                let used = record.account.map_or(0, |account| account.used);
                let used = comes.map_or(used, |taken| taken.bytes);
                record.account = Some(Account { limit, used, stale: true });
            }
            // Names of linked files are counted later; so is everything else if no limit needs the sum now.
            bill.add(above, Taken { bytes: comes.map_or(0, |taken| taken.bytes), inexact: true });
            copy_out(&mut batch, number, &end.entry, &contents, &record);
            self.find_marks_later(&mut batch, now)?;
            counts = self.count_copy(&mut batch, &path::snapshot(number), &contents)?;
            batch.put(path::meta(&end.entry), record.encode());
            let (ino, lineage) = self.lineages.identity(&self.db, at.dir.lineage, &record)?;
            let top = Family { changed: now, ..family };
            self.move_family(&mut batch, (source, ino), &top, &contents)?;
            for below in &families {
                let ino = states.number_after(lineage, &below.inside)?;
                let place = [&contents[..], &below.inside].concat();
                self.move_family(&mut batch, (below.source, ino), &below.family, &place)?;
                // A policy that stays in this place is another directory's.
                if let (Some(policy), key) = (&below.moved_policy, system::policy(&place))
                    && !staying.contains(&key)
                {
                    batch.put(key, policy.clone());
                }
            }
            self.write_copy(batch, &at, (accounts, bill), now, tries.overtaken)?;
            self.removed_all(&removal);
            self.snapshots_changed(&family_dir, now);
            let mut entries = vec![(parent.ino, show_name(&name))];
            entries.extend(before.iter().map(|info| (family_dir.ino, info.name.clone())));
            Ok((
                CloneReport { replaced: vec![source], orphaned: removal.orphaned(), entries, micros: 0 },
                before,
                removal,
            ))
        })?;
        if counts {
            self.count_names_soon();
        }
        self.strip_soon();
        if let Some(names) = removal.names {
            self.count_lost(names);
        }
        if let Some((parent, name)) = report.entries.first() {
            self.recount_at(*parent, name.as_bytes());
        }
        Ok((report, before))
    }

    /// The number of the snapshot that `ino`, which is in memory, is the root of.
    pub fn snapshot_of(&self, ino: Ino) -> Option<u32> {
        self.table.find(ino)?.peek(|s| match s.link {
            Link::Snapshot(number) => Some(number),
            _ => None,
        })
    }

    /// The root of the snapshot that the inode `ino` lies in, if it lies in one. `None` if it is not in memory.
    pub fn snapshot_around(&self, ino: Ino) -> Option<Option<Ino>> {
        // One that was deleted is none any more.
        let up = self.table.find(ino)?.ancestry().unwrap_or_default();
        let top = up.last().filter(|top| top.peek(|s| matches!(s.link, Link::Snapshot(_))));
        Some(top.map(|top| top.ino))
    }

    /// Clones the snapshot with the root `root` to `dst`, which must not exist (EEXIST) unless `replace`: then what is
    /// there is removed in the same batch. Rights as for a clone of any directory. EINVAL if that is the directory of
    /// the snapshot, which a rollback sets back, or one above it.
    pub fn clone_snapshot(
        &self,
        by: Authority<'_>,
        root: Ino,
        dst: (Ino, &OsStr),
        replace: bool,
    ) -> Result<CloneReport> {
        let start = Instant::now();
        self.writable()?;
        let rights = Rights::from(by);
        let to = check_name(dst.1)?;
        let (root, new) = (self.dir(root)?, self.dir(dst.0)?);
        may_change(&new, true)?;
        rights.may_clone(&root)?;
        let mut counts = false;
        let (mut report, removal) = self.with_counts(|tries, wanted| {
            let at = self.attempt_dir(&new)?;
            let _names = tries.exclusive(&new.names)?;
            // Held, so that the snapshot is not deleted meanwhile.
            let _root = attempt_shared(&root.tree)?;
            let number = root.peek(|s| match s.link {
                Link::Snapshot(number) => Ok(number),
                _ => Err(Error::Stale(root.ino)),
            })?;
            let end = End::to_be(&at, to)?;
            let target = self.child(&at, to)?;
            match &target {
                Some(_) if !replace => return Err(Error::Exists(show(dst.1)).into()),
                Some(target) => rights.may_remove(&new, target)?,
                None => {
                    self.may_enter(&new, to)?;
                    rights.may_add(&new)?;
                }
            }
            let _target = target.as_ref().map(|target| tries.exclusive(&target.tree)).transpose()?;
            if let Some(target) = &target {
                // It reads of each directory below that has snapshots, for which nobody else is to wait.
                self.may_be_replaced_by(target, &path::contents(&at.contents, to)?, number)?;
            }
            let accounts = self.lock_accounts();
            let now = self.now();
            let mut batch = Batch::new();
            let mut bill = Bill::default();
            let mut removal = None;
            if let Some(target) = &target {
                let (around, gone) = self.going(wanted, &end, target)?;
                bill.subtract(around, gone);
                removal = Some(self.remove_all(rights, &mut batch, &end, (target, &Staying::new()), now)?);
            }
            let mut record = root.peek(|s| s.record.clone());
            (record.ctime, record.crtime) = (now, now);
            record.clone_id = self.fresh_clone()?;
            let contents = path::contents(&at.contents, to)?;
            copy_out(&mut batch, number, &end.entry, &contents, &record);
            self.find_marks_later(&mut batch, now)?;
            counts = self.count_copy(&mut batch, &path::snapshot(number), &contents)?;
            let above = self.above(&at);
            if record.account.is_some() || !above.is_empty() {
                let mut taken = self.tree_taken(wanted, &self.attempt_dir(&root)?, &root)?;
                // Linked files without a name in it go when names are counted.
                taken.inexact |= counts;
                let limit = record.account.and_then(|account| account.limit);
                record.account = Some(Account { limit, used: taken.bytes, stale: taken.inexact });
                bill.add(above, taken);
            }
            batch.put(path::meta(&end.entry), record.encode());
            self.write_copy(batch, &at, (accounts, bill), now, tries.overtaken)?;
            if let Some(removal) = &removal {
                self.removed_all(removal);
            }
            Ok((self.report_of_copy(&end, target.as_ref(), removal.as_ref()), removal))
        })?;
        if counts {
            self.count_names_soon();
        }
        if let Some(names) = removal.and_then(|removal| removal.names) {
            self.count_lost(names);
        }
        report.micros = start.elapsed().as_micros() as u64;
        self.clone_latency.record(report.micros);
        Ok(report)
    }
}

fn show_name(name: &[u8]) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(name.to_vec())
}
