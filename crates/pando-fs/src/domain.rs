//! Lineages as places: the root of one, and the keys of the linked files in it.
//!
//! A file that got a second name has its record and data in the *link area* of its lineage, under the contents
//! prefix of the lineage's root, and each of its names holds the number that it has there, and stands in an index by
//! path (`docs/decisions/hard-links.md`). The root is the nearest directory above that is the root of a clone, or
//! was moved there from another lineage; or that of the volume. Guarantees that a [`Domain`] is true as long as the
//! directory that it was made for is held.

use std::collections::BTreeSet;

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    error::{Error, Result},
    format::FEATURE_HARD_LINKS,
    inode::{InodeRef, Link},
    path,
    place::DirAt,
    record::{Record, Stored},
    sums::data_bytes,
    types::FileKind,
    volume::Fs,
};

/// The lineage that a directory lies in.
pub(crate) struct Domain {
    /// Its root.
    pub root: InodeRef,
    /// Contents prefix of the root.
    pub contents: Vec<u8>,
}

impl Domain {
    /// True if both are one.
    pub(crate) fn is(&self, other: &Domain) -> bool {
        self.root.ino == other.root.ino
    }

    /// Path of the linked file `id`.
    pub(crate) fn linked(&self, id: u64) -> Vec<u8> {
        path::linked(&self.contents, id)
    }

    /// Key that says that the entry with this path is a name of a linked file; or prefix of such keys.
    pub(crate) fn index(&self, path: &[u8]) -> Result<Bytes> {
        let damaged =
            || Error::Damaged { what: self.root.label(), detail: "an entry outside of its lineage" };
        Ok(path::meta(&path::link_name(&self.contents, path).ok_or_else(damaged)?))
    }
}

/// What is to be cloned of the link area of the root with the contents prefix `root`, with those `names` in its index,
/// to that of a root with the contents prefix `copy`.
pub(crate) fn copies_of_links(root: &[u8], names: Bytes, copy: &[u8]) -> [(Bytes, Bytes); 3] {
    let (from, to) = (path::all_linked(root), path::all_linked(copy));
    let index = path::link_name(copy, copy).unwrap_or_default();
    [(path::meta(&from), path::meta(&to)), (path::data(&from), path::data(&to)), (names, path::meta(&index))]
}

/// The record of a linked file, as `view` has it.
pub(crate) fn linked_record(view: &Snapshot, contents: &[u8], id: u64) -> Result<Record> {
    let damaged = |detail| Error::Damaged { what: format!("linked file {id}"), detail };
    let value = view.get(&path::meta(&path::linked(contents, id)))?;
    let record = Record::decode(&value.ok_or(damaged("its record does not exist"))?).map_err(damaged)?;
    // A linked record is never a directory.
    if record.kind == FileKind::Directory {
        Err(damaged("its record is that of a directory"))
    } else {
        Ok(record)
    }
}

/// What the linked files take that have names in a part of the index of their lineage, each once; names that begin as
/// `without` says do not count. `root` is the contents prefix of the lineage's root. A scan of that part, and a query
/// for each file.
pub(crate) fn linked_bytes(view: &Snapshot, root: &[u8], index: &[u8], without: &[Bytes]) -> Result<i64> {
    let mut ids = BTreeSet::new();
    let mut names = view.prefix(index);
    while let Some((key, value)) = names.next_ref()? {
        let damaged = |detail| Error::Damaged { what: "a name of a linked file".into(), detail };
        if without.iter().any(|left| key.starts_with(left)) {
            continue;
        }
        if let Stored::Indexed(id) = Stored::decode(value).map_err(damaged)? {
            ids.insert(id);
        }
    }
    let mut bytes = 0i64;
    for id in ids {
        let data = path::data(&path::linked(root, id));
        bytes = bytes.saturating_add(data_bytes(view, &data, &linked_record(view, root, id)?)?);
    }
    Ok(bytes)
}

/// The record in `value`, and the link id if that is a name of a linked file. `what` names it in errors.
pub(crate) fn record_in(
    view: &Snapshot,
    root: &[u8],
    what: impl Fn() -> String,
    value: &[u8],
) -> Result<(Record, Option<u64>)> {
    match Stored::decode(value) {
        Ok(Stored::Record(record)) => Ok((*record, None)),
        Ok(Stored::Name(name)) => Ok((linked_record(view, root, name.id)?, Some(name.id))),
        Ok(_) => Err(Error::Damaged { what: what(), detail: "no record of an entry" }),
        Err(detail) => Err(Error::Damaged { what: what(), detail }),
    }
}

impl Fs {
    /// Whether there is, or was, any linked file. No I/O.
    pub fn has_links(&self) -> bool {
        self.has_feature(FEATURE_HARD_LINKS)
    }

    /// The lineage that the entries of a directory are in. No I/O; costs what the directory is deep below the root.
    pub(crate) fn domain(&self, at: &DirAt) -> Domain {
        let mut root = at.dir.clone();
        let mut below = 0; // bytes of the contents prefix behind that of `root`
        loop {
            let up = root.peek(|s| match &s.link {
                Link::At { parent, name } if s.record.clone_id == 0 => Some((parent.clone(), name.len())),
                _ => None,
            });
            let Some((parent, name)) = up else { break };
            below += name + 2;
            root = parent;
        }
        let contents =
            at.contents.get(..at.contents.len().saturating_sub(below)).unwrap_or_default().to_vec();
        Domain { root, contents }
    }

    /// The lineage of the directory's entries, if there are names of linked files in the directory with the contents
    /// prefix `below`, which is `at` or lies in it and is no root itself. One cursor step.
    pub(crate) fn links_below(&self, at: &DirAt, below: &[u8]) -> Result<Option<Domain>> {
        if !self.has_links() {
            return Ok(None);
        }
        let domain = self.domain(at);
        let found = self.db.prefix(&domain.index(below)?).next().transpose()?.is_some();
        Ok(found.then_some(domain))
    }

    /// Whether there is any linked file in the link area of the root with this contents prefix. One cursor step.
    pub(crate) fn has_link_area(&self, contents: &[u8]) -> Result<bool> {
        let area = path::meta(&path::all_linked(contents));
        Ok(self.has_links() && self.db.prefix(&area).next().transpose()?.is_some())
    }
}
