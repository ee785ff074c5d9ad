//! Blocks that files must have, and what differs between two snapshots.
//!
//! A file without holes has all blocks of its size, one with holes those before the first hole: `st_blocks`, accounts
//! and searches for holes rest on that.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    check::outside::unlike_attrs,
    counter,
    error::Result,
    key_text::describe_key,
    limits::BLOCK_SIZE,
    path::{self, system},
    record::{Record, Stored},
    types::FileKind,
};

/// How many blocks of a file must exist from its beginning, by its record. None in a store that may have files from a
/// version without maps, because nothing is stored about their holes.
pub(super) fn demands(view: &Snapshot) -> Result<impl Fn(&Record) -> u64 + use<>> {
    let tracked = view.get(&system::counter(counter::UNTRACKED))?.is_none();
    Ok(move |record: &Record| {
        if record.kind != FileKind::Regular || !tracked {
            return 0;
        }
        let blocks = record.size.div_ceil(BLOCK_SIZE);
        record.dense.map_or(blocks, |dense| dense.min(blocks))
    })
}

/// The problem of a missing block, as text.
pub(super) fn lost_block(data: &[u8], block: u64) -> String {
    format!("{}: the file lacks this block, which it must have", describe_key(&path::block(data, block)))
}

/// Blocks of one file that must exist, as a scan in order meets them.
pub(super) struct MetBlocks {
    end: u64,
    next: u64,
    lost: Option<u64>,
}

impl MetBlocks {
    pub(super) fn new(wanted: Range<u64>) -> Self {
        Self { end: wanted.end, next: wanted.start, lost: None }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn note(&mut self, block: u64) {
        if (self.next..self.end).contains(&block) {
            if block != self.next {
                self.lost = self.lost.or(Some(self.next));
            }
            self.next = block + 1;
        }
    }

    /// The first one that was not met.
    pub(super) fn lost(&self) -> Option<u64> {
        self.lost.or((self.next < self.end).then_some(self.next))
    }
}

/// The first of these blocks of a file that does not exist.
fn first_lost(view: &Snapshot, data: &Bytes, wanted: Range<u64>) -> Result<Option<u64>> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut pairs = view.range(&path::block(data, wanted.start), Some(&path::block(data, wanted.end)));
    let mut met = MetBlocks::new(wanted);
    while let Some((key, _)) = pairs.next_ref()? {
        path::block_of(data, key).into_iter().for_each(|block| met.note(block));
    }
    Ok(met.lost())
}

/// The file whose changed blocks the comparison of two snapshots is in.
struct ChangedFile {
    data: Vec<u8>,
    /// `None`: there is no such file.
    size: Option<u64>,
    /// Blocks that must have existed before, if there was something.
    known: Option<u64>,
    met: MetBlocks,
}

impl ChangedFile {
    /// The problem of a new file that lacks blocks, as text. All its blocks are among the changes; its record says if
    /// it has none.
    fn lost(self) -> Option<String> {
        let lost = self.met.lost().filter(|block| self.known.is_none() && *block > 0)?;
        Some(lost_block(&self.data, lost))
    }
}

/// Checks what is in snapshot `number` and not the same in snapshot `last`: records, the directories they are in, and
/// blocks.
pub(super) fn check_changes(
    view: &Snapshot,
    last: u32,
    number: u32,
    tell: &mut dyn FnMut(String),
) -> Result<()> {
    let (own, before) = (path::volume(number), path::volume(last));
    let mut file: Option<ChangedFile> = None;
    // Linked files that are gone, by the contents prefix of the root of their lineage.
    let mut gone: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
    let demanded = demands(view)?;
    let mark = path::snapshot(number).len();
    for change in view.diff(&before, view, &own)? {
        let change = change?;
        let key: Bytes = [&own[..], &change.key].concat().into();
        let what = || describe_key(&key);
        let record_of = |key: &Bytes| -> Result<Option<Record>> {
            Ok(view.get(key)?.and_then(|value| Record::decode(&value).ok()))
        };
        // The record that was there before, and the key of it.
        let old = |key: &Bytes| -> Result<Option<Record>> {
            record_of(&[&before[..], key.get(before.len()..).unwrap_or_default()].concat().into())
        };
        let Some(path) = path::path_of(&key) else {
            tell(format!("{}: not a key of a snapshot", key.escape_ascii()));
            continue;
        };
        match (path::parse(&key), change.after) {
            (Some(parsed @ (path::Parsed::Meta(_) | path::Parsed::Linked(..))), Some(value)) => {
                let record = match Stored::decode(&value) {
                    Ok(Stored::Record(record)) => record,
                    // Whether a file of this number exists is checked where the copy is counted.
                    Ok(Stored::Name(_)) => continue,
                    Ok(_) => {
                        tell(format!("{}: no record of an entry", what()));
                        continue;
                    }
                    Err(detail) => {
                        tell(format!("{}: {detail}", what()));
                        continue;
                    }
                };
                if matches!(parsed, path::Parsed::Meta(names) if !names.is_empty()) {
                    let parent = path::entry_of_contents(path::directory_of(&path));
                    let parent = parent.map(|entry| record_of(&path::meta(&entry))).transpose()?.flatten();
                    if parent.is_none_or(|parent| parent.kind != FileKind::Directory) {
                        tell(format!("{}: its directory does not exist", what()));
                    }
                }
                let data = path::data_of(&key);
                if record.kind == FileKind::Regular {
                    let end = path::block(&data, record.size.div_ceil(BLOCK_SIZE));
                    if view.range(&end, Some(&path::block(&data, path::MAP))).next().transpose()?.is_some() {
                        tell(format!("{}: bytes behind the end of the file", what()));
                    }
                    // A block that existed before is reported if it is missing now.
                    let known = old(&key)?.as_ref().map(&demanded);
                    let lost = match known {
                        Some(known) => first_lost(view, &data, known..demanded(&record))?,
                        None => first_lost(view, &data, 0..demanded(&record).min(1))?,
                    };
                    lost.into_iter().for_each(|block| tell(lost_block(&data, block)));
                }
                if let Some(text) = unlike_attrs(view, &key, &record)? {
                    tell(format!("{}: {text}", what()));
                }
            }
            (Some(path::Parsed::Linked(_, id)), None) => {
                gone.entry(path::root_below(&path, mark).unwrap_or_default().to_vec())
                    .or_default()
                    .insert(id);
            }
            (Some(path::Parsed::LinkName(..)), Some(value)) => {
                let root = path::root_below(&path, mark).unwrap_or_default();
                match Stored::decode(&value) {
                    Ok(Stored::Indexed(id)) if view.get(&path::meta(&path::linked(root, id)))?.is_none() => {
                        tell(format!("{}: names a linked file that does not exist", what()));
                    }
                    Ok(Stored::Indexed(_)) => {}
                    _ => tell(format!("{}: not an entry of the index of names", what())),
                }
            }
            // What was in a directory that is gone must be gone too.
            (Some(path::Parsed::Meta(_)), None) => {
                if let Some(contents) = path::contents_of(b"", &path)
                    && view.prefix(&path::meta(&contents)).next().transpose()?.is_some()
                {
                    tell(format!("{}: is gone, and what was in it is not", what()));
                }
            }
            (Some(path::Parsed::Data(_, block) | path::Parsed::LinkedData(_, _, block)), value)
                if block < path::MAP =>
            {
                let data = key.get(..key.len().saturating_sub(8)).unwrap_or_default();
                if file.as_ref().is_none_or(|file| file.data != data) {
                    file.take().and_then(ChangedFile::lost).into_iter().for_each(&mut *tell);
                    let meta = path::meta_of(data);
                    let record = record_of(&meta)?.filter(|r| r.kind == FileKind::Regular);
                    let known = old(&meta)?.as_ref().map(&demanded);
                    let must = record.as_ref().map_or(0, &demanded);
                    let (size, met) = (record.map(|record| record.size), MetBlocks::new(0..must));
                    file = Some(ChangedFile { data: data.to_vec(), size, known, met });
                }
                let Some(seen) = &mut file else { continue };
                let Some(value) = value else {
                    if seen.known.is_some_and(|known| block < known.min(seen.met.end())) {
                        tell(lost_block(data, block));
                    }
                    continue;
                };
                seen.met.note(block);
                let end = block.saturating_mul(BLOCK_SIZE).saturating_add(value.len() as u64);
                if seen.size.is_none_or(|size| end > size) {
                    tell(format!("{}: bytes that belong to no file", what()));
                }
            }
            // Other pieces of data, and marks.
            (Some(path::Parsed::System(_)) | None, _) => {
                tell(format!("{}: not a key of a snapshot", key.escape_ascii()));
            }
            (Some(_), _) => {}
        }
    }
    file.and_then(ChangedFile::lost).into_iter().for_each(&mut *tell);
    for (root, ids) in gone {
        let Some(index) = path::link_name(&root, &root) else { continue };
        let mut names = view.prefix(&path::meta(&index));
        while let Some((key, value)) = names.next_ref()? {
            if let Ok(Stored::Indexed(id)) = Stored::decode(value)
                && ids.contains(&id)
            {
                tell(format!("{}: names a linked file that is gone", describe_key(key)));
            }
        }
    }
    Ok(())
}
