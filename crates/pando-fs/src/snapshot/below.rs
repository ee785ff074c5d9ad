//! Snapshots, policies and forks of the directories below one that is rolled back.
//!
//! All directories there are new ones after the rollback. A directory that was the same, at the same path, when the
//! snapshot was made keeps its snapshots, policy and forks. A directory that was moved since is looked for where its
//! own snapshots were made; if it is found there, it keeps its snapshots and its policy. Those of other directories are
//! removed with them.

use std::{collections::HashMap, ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    family::{Family, SNAPSHOTS},
    forks::{self, Fork},
    inode::InodeRef,
    lock::{Attempts, Guard, Obstacle},
    path::{self, system},
    record::Record,
    staying::Staying,
    types::{FileKind, Ino, SnapshotInfo},
    volume::Fs,
};

/// Snapshots of a directory below.
pub(super) struct FamilyBelow {
    /// Contents prefix of the directory afterwards, from the one that is rolled back.
    pub inside: Vec<u8>,
    /// Its policy, as it is stored, if it comes back to another place.
    pub moved_policy: Option<Bytes>,
    /// Number that it has before.
    pub source: Ino,
    pub family: Family,
    _dir: InodeRef,
    _names: Guard,
}

/// Two states of one tree.
pub(super) struct TwoStates<'a> {
    fs: &'a Fs,
    /// Contents prefix of the directory.
    contents: &'a [u8],
    /// The snapshot.
    info: &'a SnapshotInfo,
    /// What is known already: whether a directory is in both, as the root of the same clone even.
    known: HashMap<Vec<u8>, (bool, bool)>,
}

impl<'a> TwoStates<'a> {
    pub(super) fn new(fs: &'a Fs, contents: &'a [u8], info: &'a SnapshotInfo) -> Self {
        Self { fs, contents, info, known: HashMap::new() }
    }

    /// The record of the directory at `inside` in the tree whose top has the contents prefix `top`.
    fn record(&self, top: &[u8], inside: &[u8]) -> Result<Option<Record>> {
        let Some(entry) = path::entry_of_contents(inside) else { return Ok(None) };
        let value = self.fs.db.get(&path::meta(&[top, &entry].concat()))?;
        // What cannot be read is no directory; a check says so.
        let record = value.and_then(|value| Record::decode(&value).ok());
        Ok(record.filter(|record| record.kind == FileKind::Directory))
    }

    /// Whether the directory at `inside` had an entry of its own under which its snapshots would be seen.
    fn hides(&self, inside: &[u8]) -> Result<bool> {
        let contents = [&path::snapshot(self.info.number), inside].concat();
        Ok(self.fs.db.get(&path::meta(&path::entry(&contents, SNAPSHOTS)?))?.is_some())
    }

    /// Whether the directory with this contents prefix is the top, or was at its place in the snapshot too. Two point
    /// queries.
    fn is_same(&mut self, contents: &[u8]) -> Result<bool> {
        Ok(self.compare(contents)?.0)
    }

    /// Whether it is the same, and whether it was the root of the same clone then.
    fn compare(&mut self, contents: &[u8]) -> Result<(bool, bool)> {
        let Some(inside) = contents.strip_prefix(self.contents) else { return Ok((false, false)) };
        if inside.is_empty() {
            return Ok((true, true));
        }
        if let Some(known) = self.known.get(inside) {
            return Ok(*known);
        }
        let now = self.record(self.contents, inside)?;
        let then = self.record(&path::snapshot(self.info.number), inside)?;
        let same = now.zip(then).filter(|(now, then)| now.fileno == then.fileno);
        let clone =
            same.as_ref().is_some_and(|(now, then)| now.clone_id != 0 && now.clone_id == then.clone_id);
        self.known.insert(inside.to_vec(), (same.is_some(), clone));
        Ok((same.is_some(), clone))
    }

    /// Whether a fork at this place was one when the snapshot was made. A fork is made with a clone id that no other
    /// directory has; a rollback or a move gives it another, and then the time says so. The time alone does not: that
    /// of a snapshot may be from before its batch, and clocks are set back.
    fn was_fork(&mut self, contents: &[u8], fork: &Fork) -> Result<bool> {
        let (same, clone) = self.compare(contents)?;
        Ok(clone || same && fork.created <= self.info.created)
    }

    /// The keys of forks and policies that stay: those of the top, and of directories that are the same. A directory
    /// that became a fork after the snapshot was none then. Costs a cursor step and up to two point queries for each.
    pub(super) fn staying(&mut self) -> Result<Staying> {
        let mut staying = Staying::new();
        for (contents, _, _) in self.fs.stored_policies()? {
            if self.is_same(&contents)? {
                staying.insert(system::policy(&contents));
            }
        }
        if !self.fs.has_forks() {
            return Ok(staying);
        }
        let mut pairs = self.fs.db.prefix(&system::fork(self.contents));
        while let Some((key, value)) = pairs.next_ref()? {
            let contents = system::fork_contents(key).unwrap_or_default();
            let fork = Fork::decode(value).map_err(forks::damaged)?;
            if contents == self.contents || self.was_fork(contents, &fork)? {
                staying.insert(key.to_vec().into());
            }
        }
        drop(pairs);
        let mut pairs = self.fs.db.prefix(&system::forked_below(self.contents));
        while let Some((key, _)) = pairs.next_ref()? {
            let (contents, _) = system::forked_parts(key).ok_or_else(|| forks::damaged("impossible key"))?;
            if self.is_same(contents)? {
                staying.insert(key.to_vec().into());
            }
        }
        Ok(staying)
    }

    /// Where a directory that is not at its place in the snapshot was then, from the top: at a place where one of its
    /// own snapshots was made, the last before this one or the first after it, if that is the same directory. Costs a
    /// look at each of its snapshots, and up to three point queries.
    fn place_then(&self, contents: &[u8], family: &Family) -> Result<Option<Vec<u8>>> {
        let inside = contents.strip_prefix(self.contents).unwrap_or_default();
        let Some(now) = self.record(self.contents, inside)? else { return Ok(None) };
        let own = self.fs.snapshots_from(family.id, 0, usize::MAX)?;
        let after = own.partition_point(|own| own.number < self.info.number);
        let (before, after) = (after.checked_sub(1).and_then(|last| own.get(last)), own.get(after));
        for own in before.into_iter().chain(after) {
            let Some(inside) = self.inside_of(&own.source)? else { continue };
            let then = self.record(&path::snapshot(self.info.number), &inside)?;
            // A clone has the file number of what it was made of, and a mark that this one has not, or has too.
            let is_this =
                |then: Record| then.fileno == now.fileno && (then.clone_id == 0 || now.clone_id != 0);
            if then.is_some_and(is_this) {
                return Ok(Some(inside));
            }
        }
        Ok(None)
    }

    /// The contents prefix, from the top, of a directory that had this path while the top had the path at which its
    /// snapshot was made.
    fn inside_of(&self, path: &OsStr) -> Result<Option<Vec<u8>>> {
        let Ok(relative) = Path::new(path).strip_prefix(&self.info.source) else { return Ok(None) };
        let mut inside = Vec::new();
        for name in relative {
            inside = path::contents(&inside, name.as_bytes())?;
        }
        Ok(Some(inside).filter(|inside| !inside.is_empty()))
    }

    /// The snapshots of directories below that stay, held so that nobody else changes which there are. Costs a cursor
    /// step and up to three point queries for each directory with snapshots, and more for one that was moved.
    pub(super) fn families(&mut self, tries: &mut Attempts) -> Result<Vec<FamilyBelow>, Obstacle> {
        let mut places: HashMap<Vec<u8>, (Vec<u8>, Ino)> = HashMap::new();
        let mut others = Vec::new();
        for (contents, source) in self.fs.snapshotted_below(self.contents)? {
            if contents == self.contents {
                continue;
            }
            if self.is_same(&contents)? {
                let inside = contents.get(self.contents.len()..).unwrap_or_default().to_vec();
                places.insert(inside, (contents, source));
            } else {
                others.push((contents, source));
            }
        }
        // A directory that is still in its place goes before those that were moved: a clone, and what is in it, has
        // the file numbers of its source. A place has the snapshots of one directory.
        for (contents, source) in others {
            let Some(family) = self.fs.family(source)? else { continue };
            if let Some(inside) = self.place_then(&contents, &family)? {
                places.entry(inside).or_insert((contents, source));
            }
        }
        let mut families = Vec::new();
        for (inside, (contents, source)) in places {
            if self.hides(&inside)? {
                continue;
            }
            let Some(family) = self.fs.family(source)? else { continue };
            let moved = contents.strip_prefix(self.contents) != Some(&inside);
            let dir = self.fs.family_dir(self.fs.table.find(source).as_ref(), &family)?;
            let names = tries.exclusive(&dir.names)?;
            // Somebody may have changed it before it was held.
            let Some(family) = self.fs.family(source)?.filter(|found| found.id == family.id) else {
                continue;
            };
            let moved_policy = if moved { self.fs.db.get(&system::policy(&contents))? } else { None };
            families.push(FamilyBelow { inside, moved_policy, source, family, _dir: dir, _names: names });
        }
        Ok(families)
    }

    /// The number that the directory at `inside` has where the top is of lineage `lineage`.
    pub(super) fn number_after(&self, lineage: u32, inside: &[u8]) -> Result<Ino> {
        let missing = || Error::NotFound(format!("a directory in snapshot {}", self.info.number));
        let mark = path::snapshot(self.info.number);
        let (mut lineage, mut at, mut number) = (lineage, 0, None);
        while let Some((_, contents)) = path::next_level(inside, at) {
            let record = self.record(&mark, contents)?;
            let record = record.ok_or_else(missing)?;
            let (ino, within) = self.fs.lineages.identity(&self.fs.db, lineage, &record)?;
            (lineage, at, number) = (within, contents.len(), Some(ino));
        }
        number.ok_or_else(missing)
    }
}
