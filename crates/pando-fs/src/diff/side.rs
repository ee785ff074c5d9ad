//! One of two trees that are compared: the entries at its paths, and what the caller may see of them.
//!
//! Paths are from the top of the tree, in the form of keys. Guarantee: for a name of a linked file, the record is
//! that of the file.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    domain::linked_record,
    error::{Error, Result},
    key_text::describe_path,
    path,
    place::DirAt,
    record::{Record, Stored},
    rights::{may_list, may_read},
    types::{Caller, FileKind},
};

/// A directory on the path to the present position.
pub(crate) struct PathDir {
    /// Contents prefix, from the volume.
    pub contents: Vec<u8>,
    /// Contents prefix of the root of its lineage.
    pub root: Vec<u8>,
    /// The caller may list and enter it, and those above.
    pub sees: bool,
    pub fileno: u64,
}

/// A tree, or a file, of a frozen state.
pub(crate) struct Side {
    pub view: Snapshot,
    viewer: Option<Caller>,
    meta: Bytes,
    data: Bytes,
    levels: Vec<PathDir>,
    /// Contents prefix by which names of linked files are in the index of the lineage around, if not that of the top.
    named: Option<Vec<u8>>,
    /// When it is set, what is being compared ends.
    pub stop: Arc<AtomicBool>,
}

/// An entry: its record, and the prefix of its data.
pub(crate) struct Found {
    pub record: Record,
    pub data: Bytes,
}

/// Two directories that are compared, by contents prefix from the tops.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirPair {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// What tells whether two entries are one file.
pub(crate) type Identity = (u64, FileKind);

fn damaged(inside: &[u8]) -> impl Fn(&'static str) -> Error {
    let what = describe_path(inside);
    move |detail| Error::Damaged { what: what.clone(), detail }
}

/// The entry of a directory as a prefix of its contents.
pub(crate) fn contents_of(entry: &[u8]) -> Vec<u8> {
    path::contents_of(b"", entry).unwrap_or_else(|| entry.to_vec())
}

/// The file number and kind in the value of an entry.
pub(crate) fn identity(inside: &[u8], value: &[u8]) -> Result<Identity> {
    match Stored::decode(value).map_err(damaged(inside))? {
        Stored::Record(record) => Ok((record.fileno, record.kind)),
        Stored::Name(name) => Ok((name.id, name.kind)),
        _ => Err(damaged(inside)("no record of an entry")),
    }
}

/// Error if what is being compared is to end.
pub(crate) fn go_on(stop: &AtomicBool) -> Result<()> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted("the difference".into())),
        false => Ok(()),
    }
}

impl Side {
    pub(crate) fn of_dir(view: &Snapshot, viewer: Option<&Caller>, at: &DirAt, root: Vec<u8>) -> Self {
        let top = PathDir { contents: at.contents.clone(), root, sees: true, fileno: 0 };
        let data = path::data(&at.entry);
        Self {
            view: view.clone(),
            viewer: viewer.cloned(),
            meta: at.meta(),
            data,
            levels: vec![top],
            named: None,
            stop: Arc::default(),
        }
    }

    /// A directory by the paths of its entry and its contents, and the contents prefix of the root of its lineage.
    pub(crate) fn of_place(
        view: &Snapshot,
        viewer: Option<&Caller>,
        (entry, contents): (&[u8], &[u8]),
        root: Vec<u8>,
    ) -> Self {
        let top = PathDir { contents: contents.to_vec(), root, sees: true, fileno: 0 };
        let (meta, data) = (path::meta(entry), path::data(entry));
        let (view, viewer, levels) = (view.clone(), viewer.cloned(), vec![top]);
        Self { view, viewer, meta, data, levels, named: None, stop: Arc::default() }
    }

    /// A file, of which the caller has shown that it may read it.
    pub(crate) fn of_file(view: &Snapshot, viewer: Option<&Caller>, meta: Bytes, data: Bytes) -> Self {
        let (view, viewer, levels) = (view.clone(), viewer.cloned(), Vec::new());
        Self { view, viewer, meta, data, levels, named: None, stop: Arc::default() }
    }

    /// The same for a copy of the directory with this contents prefix, in whose lineage the names still are.
    pub(crate) fn named(self, contents: &[u8]) -> Self {
        Self { named: Some(contents.to_vec()), ..self }
    }

    /// What says, in the lineage with this root, that an entry, or what begins so, is a name of a linked file.
    pub(crate) fn link_name(&self, root: &[u8], inside: &[u8]) -> Vec<u8> {
        let around = self.levels.first().is_some_and(|top| top.root == root);
        let path = match &self.named {
            Some(contents) if around => [contents, inside].concat(),
            _ => self.place(inside),
        };
        path::link_name(root, &path).unwrap_or_default()
    }

    /// The top itself.
    pub(crate) fn top(&self) -> Result<Found> {
        let value = self.view.get(&self.meta)?.ok_or_else(|| damaged(b"")("its record does not exist"))?;
        let record = Record::decode(&value).map_err(damaged(b""))?;
        Ok(Found { record, data: self.data.clone() })
    }

    /// Prefix of the data of the top itself.
    pub(crate) fn own_data(&self) -> Bytes {
        self.data.clone()
    }

    /// Contents prefix, or path, from the volume.
    pub(crate) fn place(&self, inside: &[u8]) -> Vec<u8> {
        let top = self.levels.first().map_or(&b""[..], |top| &top.contents);
        [top, inside].concat()
    }

    /// The directory with the contents prefix `dir`; `None` if there is none. A point query for each level that was
    /// not on the path to the last position.
    pub(crate) fn level(&mut self, dir: &[u8]) -> Result<Option<&PathDir>> {
        let whole = self.place(dir);
        while self.levels.len() > 1 && self.levels.last().is_some_and(|l| !whole.starts_with(&l.contents)) {
            self.levels.pop();
        }
        while let Some(last) = self.levels.last()
            && last.contents.len() < whole.len()
        {
            let Some((entry, contents)) = path::next_level(&whole, last.contents.len()) else {
                return Ok(None);
            };
            let Some(value) = self.view.get(&path::meta(&entry))? else { return Ok(None) };
            let record = match Stored::decode(&value).map_err(damaged(&entry))? {
                Stored::Record(record) if record.kind == FileKind::Directory => record,
                _ => return Ok(None),
            };
            let level = PathDir {
                contents: contents.to_vec(),
                root: if record.clone_id != 0 { contents.to_vec() } else { last.root.clone() },
                sees: last.sees
                    && self
                        .viewer
                        .as_ref()
                        .is_none_or(|c| may_list(c, (&self.view, &path::data(&entry), &record))),
                fileno: record.fileno,
            };
            self.levels.push(level);
        }
        Ok(self.levels.last())
    }

    /// File numbers of the directories from the one with the contents prefix `from` down to `dir`, without that.
    pub(crate) fn numbers(&mut self, from: &[u8], dir: &[u8]) -> Result<Vec<u64>> {
        let above = self.place(from).len();
        self.level(dir)?;
        Ok(self.levels.iter().filter(|l| l.contents.len() > above).map(|l| l.fileno).collect())
    }

    /// The value of an entry.
    pub(crate) fn value(&self, inside: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.view.get(&path::meta(&self.place(inside)))?)
    }

    /// The entry with this value.
    pub(crate) fn found(&mut self, inside: &[u8], value: &[u8]) -> Result<Found> {
        match Stored::decode(value).map_err(damaged(inside))? {
            Stored::Record(record) => Ok(Found { record: *record, data: path::data(&self.place(inside)) }),
            Stored::Name(name) => {
                let level = self.level(path::directory_of(inside))?;
                let root = level.ok_or_else(|| damaged(inside)("its directory does not exist"))?.root.clone();
                let record = linked_record(&self.view, &root, name.id)?;
                Ok(Found { record, data: path::data(&path::linked(&root, name.id)) })
            }
            _ => Err(damaged(inside)("no record of an entry")),
        }
    }

    /// Whether the caller may read an entry that it may walk to. The top counts as readable, because the caller has
    /// opened it.
    pub(crate) fn may_read(&self, found: &Found) -> bool {
        self.sees_all()
            || found.data == self.data
            || self.viewer.as_ref().is_some_and(|c| may_read(c, (&self.view, &found.data, &found.record)))
    }

    /// Whether the caller sees everything.
    pub(crate) fn sees_all(&self) -> bool {
        self.viewer.is_none()
    }
}
