//! The directories of the live tree, found by a scan of all records: there is no index from inode numbers to paths.

use pando_db::Snapshot;

use crate::{
    error::{Error, Result},
    lineage::viewed::{ViewedLineage, ViewedLineages, ViewedNumber},
    path,
    record::{Record, Stored},
    scanned::ScannedWay,
    types::{FileKind, Ino},
    volume::Fs,
};

/// A directory on the path to the record that the scan has reached.
pub(crate) struct ScannedDir {
    pub lineage: ViewedLineage,
    /// Whether the directory is the root of its lineage.
    pub root: bool,
}

impl ScannedDir {
    /// The root of a tree.
    pub(crate) fn root() -> Self {
        Self { lineage: ViewedLineage::Lineage(0), root: true }
    }
}

impl Fs {
    /// Calls `each` with the inode numbers of all directories that ever got one, as of one moment, in the order of
    /// their paths; `go_on` before each record.
    pub(crate) fn directories(
        &self,
        go_on: impl Fn() -> Result<()>,
        mut each: impl FnMut(Ino),
    ) -> Result<()> {
        let mut lineages = self.lineages.viewed();
        let view = self.db.snapshot();
        let mut way = ScannedWay::new(ScannedDir::root());
        let mut pairs = view.prefix(&path::meta(b""));
        while let Some((key, value)) = pairs.next_ref()? {
            go_on()?;
            let own = key.get(path::KEY_HEAD_BYTES..).unwrap_or_default();
            let known = way.leave(own);
            let Some(path::Parsed::Meta(_)) = path::parse_below(key, known) else { continue };
            let stored =
                Stored::decode(value).map_err(|detail| Error::Damaged { what: "a record".into(), detail })?;
            let Stored::Record(record) = stored else { continue };
            if record.kind != FileKind::Directory || own.is_empty() {
                continue;
            }
            // An entry whose directory does not exist is in no tree; `check` reports it.
            if descend(&view, &mut lineages, &mut way, path::directory_of(own))?
                && let Some(dir) = way.last()
                && let ViewedNumber::Ino(ino) = lineages.number(&view, dir.lineage, &record)?
            {
                each(ino);
            }
        }
        Ok(())
    }
}

/// Extends `way`, from which the caller has removed what is no ancestor, to the directory with this contents prefix.
/// False if there is no such directory.
pub(crate) fn descend(
    view: &Snapshot,
    lineages: &mut ViewedLineages,
    way: &mut ScannedWay<ScannedDir>,
    dir: &[u8],
) -> Result<bool> {
    while way.contents().len() < dir.len() {
        let Some((entry, contents)) = path::next_level(dir, way.contents().len()) else {
            return Ok(false);
        };
        let record = view.get(&path::meta(&entry))?.and_then(|value| Record::decode(&value).ok());
        let Some(record) = record.filter(|r| r.kind == FileKind::Directory) else { return Ok(false) };
        let Some(above) = way.last() else { return Ok(false) };
        let lineage = lineages.inside(view, above.lineage, &record)?;
        way.enter(contents, ScannedDir { lineage, root: record.clone_id != 0 });
    }
    Ok(way.contents() == dir)
}
