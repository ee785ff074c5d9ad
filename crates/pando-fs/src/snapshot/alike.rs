//! In which snapshots of a directory something is surely what it was in the snapshot before.
//!
//! `pando log` compares what a path leads to in each snapshot with what it led to in the one before. Of thousands of
//! snapshots it nearly always leads to the same, and this tells so of many at once, at the cost of some point queries
//! and of a difference in which both sides share everything. Guarantee: what is told to be the same is the same to
//! every caller, rights on the way included. Of what is not told so nothing is known: directories, for instance, are
//! not compared where there are linked files.

use std::{
    path::{Component, Path},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    error::{Error, Result},
    family::damaged,
    path::{self, check_name},
    record::{Record, Stored},
    rights::may_list,
    types::{Caller, FileKind, Ino, Time},
    volume::Fs,
};

/// What was found out about a range of snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alike {
    /// The numbers of those in which it is as in the one before.
    pub numbers: Vec<u32>,
    /// The number of the last one that was looked at, if there are more: where to go on. It is looked at again, as the
    /// one before the next.
    pub next: Option<u32>,
}

/// The path in one snapshot.
#[derive(PartialEq, Eq)]
struct Way {
    /// The directories above, without what says nothing of rights; `None` where the path ends early, because nothing is
    /// there, or nothing that could lead on.
    dirs: Vec<Option<Record>>,
    /// What it leads to, if anything.
    end: Option<WayEnd>,
}

/// The record at the end of the path.
#[derive(PartialEq, Eq)]
enum WayEnd {
    Plain(Box<Record>),
    /// Of a file that lies in the link area of its lineage, whose root is so many names below the snapshot.
    Linked {
        record: Box<Record>,
        root: usize,
        id: u64,
    },
    /// Something that should not be there: never the same as anything.
    Other,
}

impl Fs {
    /// In which of the snapshots of the directory `source`, from the number `from` on and at most `max`, the path
    /// `rest` leads to the same as in the one before. `viewer` must be able to list and enter all directories on the
    /// way; otherwise nothing is told, nor of a directory at its end. An empty path is the directory itself.
    ///
    /// Cost: for each snapshot a point query for each name, and a difference of what is there, with which the engine
    /// is done at once where both share it.
    pub fn alike_snapshots(
        &self,
        viewer: Option<&Caller>,
        source: Ino,
        rest: &Path,
        range: (u32, usize),
    ) -> Result<Alike> {
        self.alike_snapshots_unless(viewer, source, rest, range, &Arc::default())
    }

    /// The same, until `stop` is set (EINTR): where equal contents are not shared, all of them are compared.
    pub fn alike_snapshots_unless(
        &self,
        viewer: Option<&Caller>,
        source: Ino,
        rest: &Path,
        (from, max): (u32, usize),
        stop: &Arc<AtomicBool>,
    ) -> Result<Alike> {
        let mut names = Vec::new();
        for part in rest.components() {
            match part {
                Component::Normal(name) => names.push(check_name(name)?),
                _ => return Err(Error::Invalid("a path of plain names, from the directory".into())),
            }
        }
        let mut infos = self.snapshots_of(source, from, max.saturating_add(1))?;
        let mut found = Alike::default();
        if infos.len() > max {
            infos.truncate(max);
            found.next = infos.last().map(|info| info.number);
        }
        let view = self.db.snapshot();
        let mut before: Option<(u32, Way)> = None;
        for info in infos {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted("snapshots that are alike".into()));
            }
            let way = way(&view, viewer, info.number, &names)?;
            if let (Some((number, old)), Some(way)) = (&before, &way)
                && old == way
                && self.is_shared((&view, viewer, stop), way, (*number, info.number), &names)?
            {
                found.numbers.push(info.number);
            }
            before = way.map(|way| (info.number, way));
        }
        Ok(found)
    }

    /// Whether all that is under a path is the same in two snapshots, in which the path itself is.
    fn is_shared(
        &self,
        (view, viewer, stop): (&Snapshot, Option<&Caller>, &Arc<AtomicBool>),
        at: &Way,
        numbers: (u32, u32),
        names: &[&[u8]],
    ) -> Result<bool> {
        let same = |of: &dyn Fn(&[u8]) -> Bytes, a: &[u8], b: &[u8]| -> Result<bool> {
            Ok(view.diff(&of(a), view, &of(b))?.stop_on(stop).next().transpose()?.is_none())
        };
        let record = match &at.end {
            None => return Ok(true),
            Some(WayEnd::Other) => return Ok(false),
            Some(WayEnd::Plain(record)) => record,
            Some(WayEnd::Linked { root, id, .. }) => {
                let place = |number: u32| -> Result<Vec<u8>> {
                    let mut contents = path::snapshot(number);
                    for dir in names.iter().take(*root) {
                        path::enter(&mut contents, dir)?;
                    }
                    Ok(path::linked(&contents, *id))
                };
                return same(&path::data, &place(numbers.0)?, &place(numbers.1)?);
            }
        };
        let places = |number: u32| -> Result<(Vec<u8>, Vec<u8>)> {
            let mut contents = path::snapshot(number);
            let Some((last, dirs)) = names.split_last() else { return Ok((contents.clone(), contents)) };
            for dir in dirs {
                path::enter(&mut contents, dir)?;
            }
            Ok((path::entry(&contents, last)?, path::contents(&contents, last)?))
        };
        let (a, b) = (places(numbers.0)?, places(numbers.1)?);
        if record.kind != FileKind::Directory {
            return same(&path::data, &a.0, &b.0);
        }
        // Some of what is below may be closed to the viewer, who is not to hear of changes there.
        if viewer.is_some() {
            return Ok(false);
        }
        // Their contents may lie elsewhere, in a lineage around.
        if self.has_links() {
            return Ok(false);
        }
        // The keys of a whole snapshot are those of its root as well, whose record is another each time.
        if names.is_empty() {
            for kind in [path::ENTRY, path::CONTENTS] {
                let part = |root: &[u8]| [root, &[kind]].concat();
                if !same(&path::meta, &part(&a.1), &part(&b.1))? {
                    return Ok(false);
                }
            }
            return same(&path::data, &a.1, &b.1);
        }
        Ok(same(&path::data, &a.0, &b.0)? && same(&path::meta, &a.1, &b.1)? && same(&path::data, &a.1, &b.1)?)
    }
}

/// The path in a snapshot; `None` if the viewer may not look along it, or it may lead elsewhere.
fn way(view: &Snapshot, viewer: Option<&Caller>, number: u32, names: &[&[u8]]) -> Result<Option<Way>> {
    let mut contents = path::snapshot(number);
    let mut entry = contents.clone();
    let mut found = Way { dirs: Vec::new(), end: None };
    // The root of the lineage around: its contents prefix, and how many names it is below the snapshot.
    let mut root = (contents.clone(), 0);
    for depth in 0..=names.len() {
        let value = view.get(&path::meta(&entry))?;
        let stored = value.map(|value| Stored::decode(&value)).transpose();
        let stored = stored.map_err(damaged(format!("snapshot {number}")))?;
        let Some(name) = names.get(depth) else {
            found.end = match stored {
                None => None,
                Some(Stored::Record(record)) => Some(WayEnd::Plain(Box::new(compared(&record)))),
                Some(Stored::Name(name)) => Some(linked_end(view, &root, name.id)?),
                Some(_) => Some(WayEnd::Other),
            };
            break;
        };
        let record = match stored {
            None => None,
            Some(Stored::Record(record)) if record.kind != FileKind::Symlink => Some(record),
            // A symbolic link, which whoever looks follows, or a linked file, which may be one.
            Some(_) => return Ok(None),
        };
        let Some(record) = record.filter(|record| record.kind == FileKind::Directory) else {
            found.dirs.push(None);
            break;
        };
        if viewer.is_some_and(|c| !may_list(c, (view, &path::data(&entry), &record))) {
            return Ok(None);
        }
        // An access list with a key of its own may be another one.
        if record.has_outside() {
            return Ok(None);
        }
        if record.clone_id != 0 {
            root = (contents.clone(), depth);
        }
        found.dirs.push(Some(rights_of(&record)));
        entry = path::entry(&contents, name)?;
        path::enter(&mut contents, name)?;
    }
    Ok(Some(found))
}

/// The linked file `id` of the lineage with this root, as the end of a path.
fn linked_end(view: &Snapshot, (contents, root): &(Vec<u8>, usize), id: u64) -> Result<WayEnd> {
    let Some(value) = view.get(&path::meta(&path::linked(contents, id)))? else { return Ok(WayEnd::Other) };
    Ok(match Stored::decode(&value) {
        Ok(Stored::Record(record)) if record.kind != FileKind::Directory => {
            WayEnd::Linked { record: Box::new(compared(&record)), root: *root, id }
        }
        _ => WayEnd::Other,
    })
}

/// What a difference tells of a record: all but when it was read, and which clone it is the root of.
fn compared(record: &Record) -> Record {
    Record { atime: record.mtime, clone_id: u64::from(record.clone_id != 0), account: None, ..record.clone() }
}

/// What of a directory decides who may walk through it.
fn rights_of(record: &Record) -> Record {
    let only = Record::new(record.kind, record.perm, record.fileno, Time::default());
    Record { uid: record.uid, gid: record.gid, attrs: record.attrs.clone(), ..only }
}
