//! Snapshots of directories that were removed: finding them, and giving them to another directory.
//!
//! Snapshots stay when their directory is removed, whatever removes it: a removal of a tree, a rollback or a clone
//! that replaces a directory above. They belong to its inode number, which no directory has any more.
//! [`Fs::adopt_snapshots`] gives them to an existing directory, where they can be listed, read, cloned and deleted as
//! usual.

use std::{
    collections::HashSet,
    ffi::OsString,
    sync::atomic::{AtomicBool, Ordering},
};

use pando_db::Batch;

use crate::{
    error::{Error, Result},
    family::{Family, SNAPSHOTS},
    format::FEATURE_SNAPSHOTTED,
    lock,
    path::{self, system},
    rights::Rights,
    types::{Authority, CloneReport, Ino, ROOT, SnapshotInfo},
    volume::Fs,
};

impl Fs {
    /// The snapshots of all directories that are gone, by number. Costs a scan of the records of all files, if
    /// any directory but the root has or had snapshots.
    pub fn snapshots_of_gone(&self) -> Result<Vec<SnapshotInfo>> {
        self.snapshots_of_gone_unless(&AtomicBool::new(false))
    }

    /// The same, until `stop` is set (EINTR).
    pub fn snapshots_of_gone_unless(&self, stop: &AtomicBool) -> Result<Vec<SnapshotInfo>> {
        let mut found = Vec::new();
        for (_, family) in self.families_of_gone(stop)? {
            found.extend(self.snapshots_from(family.id, 0, usize::MAX)?);
        }
        found.sort_unstable_by_key(|info| info.number);
        Ok(found)
    }

    /// Gives the directory `dir` all snapshots of that directory, which is gone, of which `number` is one. They keep
    /// numbers and names. Costs what [`Fs::snapshots_of_gone`] costs, and one batch.
    ///
    /// ENOENT if `number` is no snapshot of a directory that is gone; EEXIST if `dir` has snapshots, or an entry
    /// `.snapshots`; EPERM unless the caller is root; EROFS inside of a snapshot.
    pub fn adopt_snapshots(&self, by: Authority<'_>, dir: Ino, number: u32) -> Result<CloneReport> {
        self.writable()?;
        if !Rights::from(by).all() {
            let why = "only root may take those of a directory that is gone";
            return Err(Error::NotPermitted { name: "snapshots".into(), why });
        }
        let dir = self.dir(dir)?;
        self.need_feature(FEATURE_SNAPSHOTTED)?;
        // No lock is held over the scan, because a directory that is gone does not come back.
        let Some((source, family)) = self.gone_family_of(number)? else {
            return Err(Error::NotFound(format!("snapshot {number} of a directory that is gone")));
        };
        let (at, _names) = self.hold_names(&dir, true)?;
        let has_entry = self.db.get(&path::meta(&path::entry(&at.contents, SNAPSHOTS)?))?.is_some();
        if has_entry || !self.snapshots_of(dir.ino, 0, 1)?.is_empty() {
            let text = format!("{}/{}", dir.label(), String::from_utf8_lossy(SNAPSHOTS));
            return Err(Error::Exists(text));
        }
        let family_dir = self.family_dir(Some(&dir), &family)?;
        let _snapshots = lock::exclusive(&family_dir.names);
        // Another call may have adopted them, or deleted this one, since the scan.
        self.info_of(&family, number)?;
        if self.family(source)?.is_none_or(|found| found.id != family.id) {
            return Err(Error::NotFound(format!("snapshot {number} of a directory that is gone")));
        }
        let now = self.now();
        let mut batch = Batch::new();
        self.move_family(&mut batch, (source, dir.ino), &Family { changed: now, ..family }, &at.contents)?;
        self.db.write(batch)?;
        self.snapshots_changed(&family_dir, now);
        let entries = vec![(dir.ino, OsString::from(".snapshots"))];
        Ok(CloneReport { entries, ..CloneReport::default() })
    }

    /// Deletes the snapshot `number` of a directory that is gone, as [`Fs::delete_snapshot`] does. What was found to be
    /// gone is remembered, so a further one costs little.
    ///
    /// ENOENT if it is none of a directory that is gone; EPERM if it is kept, and unless the caller is root.
    pub fn delete_gone_snapshot(&self, by: Authority<'_>, number: u32) -> Result<CloneReport> {
        self.writable()?;
        let by = Rights::from(by);
        if !by.all() {
            let why = "only root may delete those of a directory that is gone";
            return Err(Error::NotPermitted { name: "snapshots".into(), why });
        }
        let Some((source, _)) = self.gone_family_of(number)? else {
            return Err(Error::NotFound(format!("snapshot {number} of a directory that is gone")));
        };
        self.delete_snapshot_by(by, source, number)
    }

    /// The family of a directory that is gone which has the snapshot `number`, and the number of the directory.
    fn gone_family_of(&self, number: u32) -> Result<Option<(Ino, Family)>> {
        let has_it = |family: &Family| -> Result<bool> {
            Ok(self.db.get(&system::snapshot(family.id, number))?.is_some())
        };
        let known: Vec<Ino> = self.known_gone.lock().iter().copied().collect();
        for source in known {
            if let Some(family) = self.family(source)?
                && has_it(&family)?
            {
                return Ok(Some((source, family)));
            }
        }
        for found in self.families_of_gone(&AtomicBool::new(false))? {
            if has_it(&found.1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The families whose directories are gone, with the numbers that these had.
    fn families_of_gone(&self, stop: &AtomicBool) -> Result<Vec<(Ino, Family)>> {
        let mut missing: HashSet<Ino> = self.snapshot_sources()?.into_iter().collect();
        missing.remove(&ROOT);
        if !missing.is_empty() {
            let go_on = || match stop.load(Ordering::Relaxed) {
                true => Err(Error::Interrupted("snapshots of directories that are gone".into())),
                false => Ok(()),
            };
            self.directories(go_on, |ino| _ = missing.remove(&ino))?;
        }
        self.known_gone.lock().extend(&missing);
        let mut found = Vec::new();
        for source in missing {
            found.extend(self.family(source)?.map(|family| (source, family)));
        }
        Ok(found)
    }
}
