//! Differences of files with several names, found by their numbers, because the values of their names are the same on
//! both sides.
//!
//! The linked files of a lineage lie together, so those that differ are found at a cost in proportion to their
//! number. Their names are then searched for in the index of names below the compared directory, for some thousand
//! files at a time. From a snapshot, files are removed that have no name in it (`gaps`), so nearly all others may
//! differ: if more than a few do, those without a name below the directory are skipped.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::{
    diff::{
        side::{DirPair, Side, go_on},
        stream::{Ahead, NUMBER_BYTES},
    },
    error::Result,
    path,
    record::Stored,
};

/// Numbers of files that are looked for at once, a count.
const FILES_AT_ONCE: usize = 1 << 12;
/// Differing files, a count, from which on those without a name are skipped.
const FEW_FILES: usize = 16;
/// Most names, a count, of which the numbers of the files are held in memory to do so.
const MAX_NAMES: usize = 1 << 22;

/// The linked files that differ between two lineages, and their names below a pair of directories.
pub(crate) struct LinkScan {
    pub pair: DirPair,
    meta: Ahead,
    data: Ahead,
    wanted: BTreeSet<u64>,
    /// How many files have differed.
    differing: usize,
    /// The numbers of the files with names below the first directory, ascending, once they are needed.
    named: Option<Vec<u64>>,
    /// Contents prefix of the root of the lineage in the first tree.
    root: Vec<u8>,
    /// The same in the second.
    pub other_root: Vec<u8>,
    /// The position in the index of names, while a search is in progress.
    at: Option<Bytes>,
}

impl LinkScan {
    /// The linked files of a pair of directories; `None` if one of them does not exist.
    pub(crate) fn new(pair: DirPair, before: &mut Side, after: &mut Side) -> Result<Option<Self>> {
        let Some(root) = before.level(&pair.before)?.map(|level| level.root.clone()) else { return Ok(None) };
        let Some(other) = after.level(&pair.after)?.map(|level| level.root.clone()) else { return Ok(None) };
        let (a, b) = (path::all_linked(&root), path::all_linked(&other));
        let meta = Ahead::new(&before.view, (&path::meta(&a), &path::meta(&b)))?.stop_on(&before.stop);
        let data = Ahead::new(&before.view, (&path::data(&a), &path::data(&b)))?.stop_on(&before.stop);
        Ok(Some(Self {
            pair,
            meta,
            data,
            wanted: BTreeSet::new(),
            differing: 0,
            named: None,
            root,
            other_root: other,
            at: None,
        }))
    }

    /// The number of the next file that differs, and has a name below the directory if it is known which ones have.
    fn next_file(&mut self) -> Result<Option<u64>> {
        let number = |key: Option<Bytes>| {
            key.and_then(|key| Some(u64::from_be_bytes(key.get(..NUMBER_BYTES)?.try_into().ok()?)))
        };
        let (meta, data, first) = loop {
            let (meta, data) = (number(self.meta.peek()?), number(self.data.peek()?));
            let Some(first) = meta.iter().chain(&data).min().copied() else { return Ok(None) };
            let named = self.named.as_deref().unwrap_or(&[]);
            match named.get(named.partition_point(|id| *id < first)) {
                _ if self.named.is_none() => break (meta, data, first),
                None => return Ok(None),
                Some(id) if *id == first => break (meta, data, first),
                Some(id) => {
                    let key = id.to_be_bytes();
                    self.meta.skip_to(&key);
                    self.data.skip_to(&key);
                }
            }
        };
        let behind =
            path::behind(&first.to_be_bytes()).unwrap_or_else(|| vec![u8::MAX; NUMBER_BYTES + 1].into());
        if meta == Some(first) {
            self.meta.take();
        }
        if data == Some(first) {
            self.data.skip_to(&behind);
        }
        Ok(Some(first))
    }

    /// Finds out which files have names below the directory, unless these are too many to be held in memory.
    fn find_named(&mut self, before: &Side, index: &[u8]) -> Result<()> {
        let (mut ids, mut names) = (Vec::new(), before.view.prefix(index));
        while let Some((_, value)) = names.next_ref()? {
            go_on(&before.stop)?;
            if let Ok(Stored::Indexed(id)) = Stored::decode(value) {
                ids.push(id);
            }
            if ids.len() > MAX_NAMES {
                return Ok(());
            }
        }
        ids.sort_unstable();
        ids.dedup();
        self.named = Some(ids);
        Ok(())
    }

    /// The next name of a file that differs: its path from the pair of directories, and its value. `None` at the end.
    pub(crate) fn next(&mut self, before: &Side) -> Result<Option<(Vec<u8>, Bytes)>> {
        let dir = before.place(&self.pair.before);
        let Some(index) = path::link_name(&self.root, &dir).map(|index| path::meta(&index)) else {
            return Ok(None);
        };
        loop {
            if self.at.is_none() {
                self.wanted.clear();
                while self.wanted.len() < FILES_AT_ONCE
                    && let Some(id) = self.next_file()?
                {
                    self.wanted.insert(id);
                    self.differing += 1;
                    if self.differing == FEW_FILES {
                        self.find_named(before, &index)?;
                    }
                }
                if self.wanted.is_empty() {
                    return Ok(None);
                }
                self.at = Some(index.clone());
            }
            let at = self.at.take().unwrap_or_default();
            let mut names = before.view.range(&at, path::behind(&index).as_deref());
            while let Some((key, value)) = names.next_ref()? {
                go_on(&before.stop)?;
                let Ok(Stored::Indexed(id)) = Stored::decode(value) else { continue };
                if !self.wanted.contains(&id) {
                    continue;
                }
                let inside = key.get(index.len()..).unwrap_or_default().to_vec();
                self.at = Some([key, &[0]].concat().into());
                let entry = [&self.pair.before[..], &inside].concat();
                if let Some(value) = before.value(&entry)? {
                    return Ok(Some((inside, value)));
                }
            }
            self.at = None;
        }
    }
}
