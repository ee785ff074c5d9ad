//! Snapshots of directories: making, renaming, keeping and deleting them.
//!
//! A snapshot is a clone of a directory, or of the whole tree, in a volume of its own, with a record (see `family`).
//! Making one is one batch whose size does not depend on what is below. So is deleting one; the space that it
//! alone owned is given back in the background. A caller that may clone a directory may make snapshots of it and change
//! those (`rights`); if the directory is gone, only root may. A snapshot never changes: every change of an entry goes
//! through `place`, which refuses.

use std::ffi::{OsStr, OsString};

use pando_db::Batch;

use crate::{
    census::overtakes,
    error::{Error, Result, show},
    family::{Family, SNAPSHOTS, damaged, decode_snapshot, encode_snapshot},
    format::{FEATURE_POLICIES, FEATURE_RECEIVED, FEATURE_SNAPSHOTS, FEATURE_SNAPSHOTTED},
    inode::{InodeRef, Link},
    lineage::number::{lineage_of, number as inode_number},
    lock,
    path::{self, check_name, system},
    place::{DirAt, may_change},
    record::Record,
    rights::Rights,
    types::{Authority, CloneReport, Ino, NewSnapshot, RECEIVING, ROOT, SnapshotInfo, Time},
    volume::Fs,
};

pub(crate) mod alike;
pub(crate) mod automatic;
mod below;
mod gone;
pub(crate) mod policy;
mod rollback;

/// Longest note of a snapshot, bytes.
pub const MAX_SNAPSHOT_NOTE: usize = 512;
/// Longest path of the source that is noted, bytes; of a longer one the end.
const MAX_SOURCE_BYTES: usize = 256;

/// A directory that is to be snapshotted, held still.
pub(crate) struct Snapshotted<'a> {
    pub dir: &'a InodeRef,
    /// The directory that the snapshot is to stand among those of, and the path of its entry.
    pub owner: (Ino, &'a [u8]),
    /// It, or what holds it.
    pub at: &'a DirAt,
    /// Path of its entry, and prefix of its contents.
    pub entry: &'a [u8],
    pub contents: &'a [u8],
}

impl<'a> From<Authority<'a>> for Rights<'a> {
    fn from(by: Authority<'a>) -> Self {
        match by {
            Authority::Caller(c) => Rights::Of(c),
            Authority::Verified(shown) => Rights::Verified(shown),
        }
    }
}

/// A name that a snapshot can have: that of an entry, not a number, and without `..`, so that it is none of a
/// selection either.
fn check_snapshot_name(name: &OsStr) -> Result<()> {
    let bytes = check_name(name)?;
    if bytes.iter().all(u8::is_ascii_digit) || bytes.windows(2).any(|pair| pair == b"..") {
        let text = format!("{}: not a name for a snapshot: a number, or with .. in it", show(name));
        return Err(Error::Invalid(text));
    }
    Ok(())
}

fn check_new(new: &NewSnapshot) -> Result<()> {
    if let Some(name) = &new.name {
        check_snapshot_name(name)?;
    }
    match new.note.len() > MAX_SNAPSHOT_NOTE {
        true => Err(Error::Invalid(format!("a note has at most {MAX_SNAPSHOT_NOTE} bytes"))),
        false => Ok(()),
    }
}

impl Fs {
    /// Makes a snapshot of the directory `source`: the effects of all calls that have returned, as of one moment. The
    /// default name is the time, as `2026-11-24T13:45:00Z`.
    ///
    /// One batch, the same cost for any size of the tree. EEXIST if the name is taken, or if the directory has an
    /// entry `.snapshots`; EPERM unless the caller may clone it; EROFS inside of a snapshot.
    pub fn snapshot(
        &self,
        by: Authority<'_>,
        source: Ino,
        new: &NewSnapshot,
    ) -> Result<(SnapshotInfo, CloneReport)> {
        self.snapshot_at(by, source, new, None)
    }

    /// Makes a snapshot; its time is `at_time` if one is given.
    fn snapshot_at(
        &self,
        by: Authority<'_>,
        source: Ino,
        new: &NewSnapshot,
        at_time: Option<Time>,
    ) -> Result<(SnapshotInfo, CloneReport)> {
        self.writable()?;
        let dir = self.dir(source)?;
        Rights::from(by).may_clone(&dir)?;
        check_new(new)?;
        let (at, _names) = self.hold_names(&dir, true)?;
        self.need_features_of(new)?;
        self.hides_none(&at.contents)?;
        let family = self.family_or_new(&dir)?;
        let family_dir = self.family_dir(Some(&dir), &family)?;
        let _snapshots = lock::exclusive(&family_dir.names);
        let now = at_time.unwrap_or_else(|| self.now());
        let owner = (dir.ino, &at.entry[..]);
        let place = Snapshotted { dir: &dir, owner, at: &at, entry: &at.entry, contents: &at.contents };
        let accounts = self.lock_accounts();
        let mut overtaken = false;
        let info = loop {
            let mut batch = Batch::new();
            let by = Rights::from(by);
            let info = self.add_snapshot(&mut batch, by, &place, &family, (new, now), overtaken)?;
            match self.db.write(batch) {
                Err(e) if !overtaken && overtakes(&e) => overtaken = true,
                written => break written.map(|()| info)?,
            }
        };
        drop(accounts);
        self.snapshots_changed(&family_dir, now);
        self.tree_cloned(now);
        self.strip_soon();
        let entries = vec![(dir.ino, OsString::from(".snapshots")), (family_dir.ino, info.name.clone())];
        Ok((info, CloneReport { entries, ..CloneReport::default() }))
    }

    /// Makes a snapshot that shows the directory `tree`, which must not lie in `source` nor around it, and stands among
    /// those of `source`: what was received becomes one before it becomes the directory (see [`Fs::rollback`]).
    /// Costs and errors as of [`Fs::snapshot`]; the caller must be allowed to clone both. `source` must have snapshots.
    pub fn snapshot_of_tree(
        &self,
        by: Authority<'_>,
        source: Ino,
        tree: (Authority<'_>, Ino),
        new: &NewSnapshot,
    ) -> Result<(SnapshotInfo, CloneReport)> {
        self.writable()?;
        let (dir, shown) = (self.dir(source)?, self.dir(tree.1)?);
        Rights::from(by).may_clone(&dir)?;
        Rights::from(tree.0).may_clone(&shown)?;
        check_new(new)?;
        may_change(&dir, true)?;
        may_change(&shown, true)?;
        self.need_features_of(new)?;
        self.with_attempts(|tries| {
            let at = self.attempt_dir(&dir)?;
            let from = self.attempt_dir(&shown)?;
            // A rollback would put it over the snapshots.
            self.hides_none(&from.contents)?;
            if from.is_at_or_below(dir.ino) || at.is_at_or_below(shown.ino) {
                let text = "the tree of a snapshot lies in its directory, or around it";
                return Err(Error::Invalid(text.into()).into());
            }
            let _names = tries.exclusive(&dir.names)?;
            let _inside = tries.exclusive(&shown.names)?;
            let (family, family_dir, _) = self.family_of(source)?;
            let _snapshots = tries.exclusive(&family_dir.names)?;
            let family = self.family_held(source, &family)?;
            let now = self.now();
            let mut batch = Batch::new();
            let owner = (source, &at.entry[..]);
            let (entry, contents) = (&from.entry[..], &from.contents[..]);
            let place = Snapshotted { dir: &shown, owner, at: &from, entry, contents };
            let accounts = self.lock_accounts();
            let by = Rights::from(by);
            let info = self.add_snapshot(&mut batch, by, &place, &family, (new, now), tries.overtaken)?;
            self.write_unless_overtaken(batch, tries.overtaken)?;
            drop(accounts);
            self.snapshots_changed(&family_dir, now);
            self.tree_cloned(now);
            self.strip_soon();
            let entries = vec![(family_dir.ino, info.name.clone())];
            Ok((info, CloneReport { entries, ..CloneReport::default() }))
        })
    }

    /// EEXIST if the directory with this contents prefix has an entry of the name under which snapshots are seen.
    fn hides_none(&self, contents: &[u8]) -> Result<()> {
        match self.db.get(&path::meta(&path::entry(contents, SNAPSHOTS)?))? {
            Some(_) => Err(Error::HidesSnapshots(String::from_utf8_lossy(SNAPSHOTS).into_owned())),
            None => Ok(()),
        }
    }

    fn need_features_of(&self, new: &NewSnapshot) -> Result<()> {
        let received = if new.received.is_some() { FEATURE_RECEIVED } else { 0 };
        let automatic = if new.automatic { FEATURE_POLICIES } else { 0 };
        self.need_feature(FEATURE_SNAPSHOTS | FEATURE_SNAPSHOTTED | received | automatic)
    }

    /// The family of a directory; a new one, which is not stored yet, if it has none. The caller holds locks, so that
    /// no other call makes one.
    fn family_or_new(&self, dir: &InodeRef) -> Result<Family> {
        match self.family(dir.ino)? {
            Some(family) => Ok(family),
            None => Ok(Family {
                id: self.families.take(&self.db)?,
                fileno: self.fresh_file()?,
                changed: self.now(),
            }),
        }
    }

    /// Adds a snapshot to a family, made `now`. The caller holds its `.snapshots` exclusively, and has the turn at
    /// accounts alone. The batch expects what [`Fs::clones_of_links`] says; so does `overtaken`.
    fn add_snapshot(
        &self,
        batch: &mut Batch,
        rights: Rights<'_>,
        place: &Snapshotted<'_>,
        family: &Family,
        (new, now): (&NewSnapshot, Time),
        overtaken: bool,
    ) -> Result<SnapshotInfo> {
        let name = match &new.name {
            Some(name) if self.snapshot_named(family.id, name.as_encoded_bytes())?.is_some() => {
                return Err(Error::Exists(show(name)));
            }
            Some(name) => name.clone(),
            None => self.free_name(family, now)?,
        };
        let number = self.fresh_volume()?;
        let info = SnapshotInfo {
            number,
            name,
            source: source_path(place.owner.1),
            created: now,
            keep: new.keep,
            valid_for_secs: new.valid_for_secs.filter(|secs| *secs > 0),
            note: new.note.clone(),
            uid: rights.uid(),
            received: new.received,
            automatic: new.automatic,
        };
        let mut record = place.dir.peek(|s| s.record.clone());
        if self.is_stale_around(place.at) {
            self.make_stale(&mut record);
        }
        let mut around = false;
        if place.dir.ino == ROOT {
            batch.clone_prefix(path::volume(path::LIVE), path::volume(number));
            self.put_frozen_root(batch, number, &record)?;
        } else {
            self.freeze(batch, number, (place.entry, place.contents), &record)?;
            if record.clone_id == 0 {
                let prefixes = (place.contents, &path::snapshot(number)[..]);
                for (from, to) in self.clones_of_links(batch, place.at, prefixes, overtaken)? {
                    batch.clone_prefix(from, to);
                    around = true;
                }
            }
        }
        self.strip_later(batch, number, place.contents, around)?;
        batch.put(system::snapshot(family.id, number), encode_snapshot(&info));
        batch.put(
            system::snapshot_name(family.id, info.name.as_encoded_bytes()),
            number.to_le_bytes().to_vec(),
        );
        batch.put(system::family(place.owner.0), Family { changed: now, ..*family }.encode());
        self.keep_number(batch, place.owner.0)?;
        if let Some(contents) = path::contents_of(b"", place.owner.1) {
            self.note_snapshotted(batch, &contents, place.owner.0)?;
        }
        batch.put(system::cloned(), now.encode());
        Ok(info)
    }

    /// Adds that snapshots are those of the directory with the number `to` and this contents prefix, no longer of
    /// `from`.
    fn move_family(
        &self,
        batch: &mut Batch,
        (from, to): (Ino, Ino),
        family: &Family,
        contents: &[u8],
    ) -> Result<()> {
        batch.delete(system::family(from));
        batch.put(system::family(to), family.encode());
        self.keep_number(batch, to)?;
        self.note_snapshotted(batch, contents, to)
    }

    /// Notes that the number of a directory is in use as long as it has snapshots, whatever becomes of it.
    fn keep_number(&self, batch: &mut Batch, source: Ino) -> Result<()> {
        let lineage = lineage_of(source);
        if lineage != 0 {
            self.lineages.save(&self.db, lineage)?;
            batch.put(system::tainted(lineage), vec![1]);
        }
        Ok(())
    }

    /// The time as a name that is free.
    fn free_name(&self, family: &Family, now: Time) -> Result<OsString> {
        let time = policy::utc_text(now);
        let mut name = time.clone();
        for more in 2u32.. {
            if self.snapshot_named(family.id, name.as_bytes())?.is_none() {
                break;
            }
            name = format!("{time}-{more}");
        }
        Ok(name.into())
    }

    fn snapshots_changed(&self, family_dir: &InodeRef, now: Time) {
        family_dir.change(|s| {
            (s.record.mtime, s.record.ctime) = (now, now);
        });
    }

    /// The snapshots of the directory `source`, which may be gone, by number.
    pub fn snapshots(&self, source: Ino) -> Result<Vec<SnapshotInfo>> {
        match self.family(source)? {
            Some(family) => self.snapshots_from(family.id, 0, usize::MAX),
            None => Ok(Vec::new()),
        }
    }

    /// Like [`Fs::snapshots`], from the number `from` on, and at most `max` of them. ESTALE for a directory in memory
    /// that is gone and has none: a rollback gives them to what it has become.
    pub fn snapshots_of(&self, source: Ino, from: u32, max: usize) -> Result<Vec<SnapshotInfo>> {
        match self.family(source)? {
            Some(family) => self.snapshots_from(family.id, from, max),
            None if self.table.find(source).is_some_and(|dir| !dir.is_alive()) => Err(Error::Stale(source)),
            None => Ok(Vec::new()),
        }
    }

    /// The inode numbers of all directories that have or had snapshots.
    pub fn snapshot_sources(&self) -> Result<Vec<Ino>> {
        let mut out = Vec::new();
        let mut pairs = self.db.prefix(&system::families());
        while let Some((key, _)) = pairs.next_ref()? {
            out.push(system::family_source(key).ok_or_else(|| damaged("families")("impossible key"))?);
        }
        Ok(out)
    }

    /// The root directory of a snapshot of `source`. Counts one reference of the kernel.
    pub fn open_snapshot(&self, source: Ino, number: u32) -> Result<crate::types::Attr> {
        let (family, family_dir, _) = self.family_of(source)?;
        let _snapshots = lock::shared(&family_dir.names);
        self.info_of(&family, number)?;
        let root = self.snapshot_root(number)?.ok_or_else(|| no_snapshot(number))?;
        Ok(root.count_lookup())
    }

    /// The family of the directory `source`, its `.snapshots`, and the directory if it is in memory.
    fn family_of(&self, source: Ino) -> Result<(Family, InodeRef, Option<InodeRef>)> {
        let family = self.family(source)?;
        let family = family.ok_or_else(|| Error::NotFound("snapshots of this directory".into()))?;
        let dir = self.table.find(source).filter(|dir| !dir.frozen && dir.is_alive());
        let family_dir = self.family_dir(dir.as_ref(), &family)?;
        Ok((family, family_dir, dir))
    }

    /// Reads the family of `source` again, now that its `.snapshots` is locked. ESTALE if a rollback or another call
    /// has given the family to another directory.
    fn family_held(&self, source: Ino, found: &Family) -> Result<Family> {
        let family = self.family(source)?.filter(|family| family.id == found.id);
        family.ok_or(Error::Stale(source))
    }

    fn info_of(&self, family: &Family, number: u32) -> Result<SnapshotInfo> {
        let value = self.db.get(&system::snapshot(family.id, number))?.ok_or_else(|| no_snapshot(number))?;
        decode_snapshot(number, &value).map_err(damaged(format!("snapshot {number}")))
    }

    /// Whether a caller may change the snapshots of a directory: if it may clone it; if that is gone, only root may.
    fn may_manage(rights: Rights<'_>, dir: Option<&InodeRef>) -> Result<()> {
        match dir {
            Some(dir) => rights.may_clone(dir),
            None if rights.all() => Ok(()),
            None => Err(Error::NotPermitted {
                name: "snapshots".into(),
                why: "only root may change those of a directory that is gone",
            }),
        }
    }

    /// Error if a caller may not delete the snapshots of the directory `source`.
    pub fn may_delete_snapshots(&self, by: Authority<'_>, source: Ino) -> Result<()> {
        Self::may_manage(by.into(), Some(&self.dir(source)?))
    }

    /// Deletes a snapshot. EPERM if it is kept, EBUSY if a mount shows it ([`Fs::mounted_on`]). Calls on open files in
    /// it fail with ESTALE afterwards. Space that it alone owned is freed in the background.
    pub fn delete_snapshot(&self, by: Authority<'_>, source: Ino, number: u32) -> Result<CloneReport> {
        self.delete_snapshot_by(by.into(), source, number)
    }

    /// Those of the snapshots that no mount shows, as far as this thread has said what is mounted.
    pub(super) fn without_mounted(&self, snapshots: &[SnapshotInfo]) -> Result<Vec<SnapshotInfo>> {
        let mut left = snapshots.to_vec();
        if !self.mount_points.has_views() {
            return Ok(left);
        }
        let mut failed = Ok(());
        left.retain(|info| match self.root_of_snapshot(info.number) {
            Ok(Some((ino, ..))) => self.mount_points.view_of(ino).is_none(),
            Ok(None) => true,
            Err(error) => {
                failed = Err(error);
                true
            }
        });
        failed.map(|()| left)
    }

    /// The number of the root of a snapshot, its record and its lineage. `None` if no number was ever given to it.
    fn root_of_snapshot(&self, number: u32) -> Result<Option<(Ino, Record, u32)>> {
        let record = self.db.get(&path::meta(&path::snapshot(number)))?;
        let Some(record) = record.and_then(|value| Record::decode(&value).ok()) else { return Ok(None) };
        let inside = self.lineages.known(&self.db, 0, record.clone_id)?;
        Ok(inside.map(|inside| (inode_number(inside, record.fileno), record, inside)))
    }

    fn delete_snapshot_by(&self, by: Rights<'_>, source: Ino, number: u32) -> Result<CloneReport> {
        self.writable()?;
        let (family, family_dir, dir) = self.family_of(source)?;
        Self::may_manage(by, dir.as_ref())?;
        let _snapshots = lock::exclusive(&family_dir.names);
        let family = self.family_held(source, &family)?;
        let info = self.info_of(&family, number)?;
        if info.keep {
            return Err(Error::NotPermitted { name: show(&info.name), why: "is kept; release it first" });
        }
        let now = self.now();
        let mut batch = Batch::new();
        batch.releases().delete_prefix(path::volume(number));
        batch.delete(system::snapshot(family.id, number));
        batch.delete(system::snapshot_name(family.id, info.name.as_encoded_bytes()));
        batch.put(system::family(source), Family { changed: now, ..family }.encode());
        let mut lineage = None;
        let mut root = None;
        if let Some((ino, record, inside)) = self.root_of_snapshot(number)? {
            lineage = self.lineages.retire(&self.db, &mut batch, 0, &record, inside)?;
            root = self.table.find(ino);
        }
        if let Some(root) = &root {
            self.may_leave(&family_dir, info.name.as_encoded_bytes(), root)?;
            self.may_delete(&info.name, root.ino)?;
        }
        // No call is inside when it is removed.
        let _tree = root.as_ref().map(|root| lock::exclusive(&root.tree));
        self.db.write(batch)?;
        if let Some(root) = &root {
            root.relink(Link::Gone);
            self.table.tree_removed();
        }
        self.lineages.give_back(lineage);
        self.snapshots_changed(&family_dir, now);
        Ok(CloneReport {
            replaced: root.iter().map(|root| root.ino).collect(),
            entries: vec![(family_dir.ino, info.name)],
            ..CloneReport::default()
        })
    }

    /// Gives a snapshot another name.
    pub fn rename_snapshot(
        &self,
        by: Authority<'_>,
        source: Ino,
        number: u32,
        name: &OsStr,
    ) -> Result<CloneReport> {
        check_snapshot_name(name)?;
        self.change_snapshot(by, source, number, |info| info.name = name.to_owned())
    }

    /// Keeps a snapshot from being deleted, or releases it.
    pub fn keep_snapshot(
        &self,
        by: Authority<'_>,
        source: Ino,
        number: u32,
        keep: bool,
    ) -> Result<CloneReport> {
        self.change_snapshot(by, source, number, |info| info.keep = keep)
    }

    fn change_snapshot(
        &self,
        by: Authority<'_>,
        source: Ino,
        number: u32,
        change: impl FnOnce(&mut SnapshotInfo),
    ) -> Result<CloneReport> {
        self.writable()?;
        let (family, family_dir, dir) = self.family_of(source)?;
        Self::may_manage(by.into(), dir.as_ref())?;
        let _snapshots = lock::exclusive(&family_dir.names);
        let family = self.family_held(source, &family)?;
        let old = self.info_of(&family, number)?;
        let mut info = old.clone();
        change(&mut info);
        let now = self.now();
        let mut batch = Batch::new();
        batch.put(system::snapshot(family.id, number), encode_snapshot(&info));
        let mut entries = Vec::new();
        if info.name != old.name {
            let key = |name: &OsString| system::snapshot_name(family.id, name.as_encoded_bytes());
            if self.db.get(&key(&info.name))?.is_some() {
                return Err(Error::Exists(show(&info.name)));
            }
            if let Some(root) = self.snapshot_root(number)? {
                self.may_leave(&family_dir, old.name.as_encoded_bytes(), &root)?;
            }
            batch.delete(key(&old.name));
            batch.put(key(&info.name), number.to_le_bytes().to_vec());
            batch.put(system::family(source), Family { changed: now, ..family }.encode());
            entries = vec![(family_dir.ino, old.name), (family_dir.ino, info.name)];
        }
        self.db.write(batch)?;
        if !entries.is_empty() {
            self.snapshots_changed(&family_dir, now);
        }
        Ok(CloneReport { entries, ..CloneReport::default() })
    }
}

fn no_snapshot(number: u32) -> Error {
    Error::NotFound(format!("snapshot {number}"))
}

/// The path of an entry as people write it, or the end of a long one.
fn source_path(entry: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let mut path = Vec::new();
    for name in path::names(entry).unwrap_or_default() {
        if name.starts_with(RECEIVING.as_bytes()) {
            continue; // where it is made; it will be beside that
        }
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    let cut = path.len().saturating_sub(MAX_SOURCE_BYTES);
    OsString::from_vec(path.split_off(cut))
}
