//! What a merge leaves for its end if its steps go into a hidden tree.
//!
//! The steps are several batches then, so no effect of them may be visible before the last: neither in the area of
//! linked files of the lineage around, nor in memory, nor in the keys that are kept by contents prefix. Guarantees that
//! a batch changes no key outside of the volumes of the merge.

use std::collections::HashSet;

use bytes::Bytes;
use pando_db::{Batch, Snapshot};

use crate::{
    error::Result,
    fork::{bounds::Bounds, watched::Watched},
    path,
    record::{Record, Stored},
    volume::Fs,
};

/// Lineages that are given back at the end, a count; more than these are found unused by marking.
const MAX_RETIRED_LINEAGES: usize = 1 << 12;

/// A change of the attributes of a file.
pub(crate) struct AttributeChange {
    /// Its name, or one of them, from the top.
    pub entry: Vec<u8>,
    pub before: Record,
    pub after: Record,
    /// Data prefix of the file in the fork, if the extended attributes change, and lie outside of a record.
    pub attrs: Option<Bytes>,
    /// The number that this name gets, if it becomes a file of its own.
    pub alone: Option<u64>,
}

impl AttributeChange {
    /// Gives the record, and the extended attributes outside of it, to the file with this data prefix.
    pub(crate) fn put(&self, batch: &mut Batch, data: &Bytes, record: &Record) {
        if let Some(from) = &self.attrs {
            let own = path::attrs_under(data);
            batch.delete_prefix(own.clone()).clone_prefix(path::attrs_under(from), own);
        }
        batch.put(path::meta_of(data), record.encode());
    }

    /// The same for a copy of the file with this data prefix, at a path that is free.
    pub(crate) fn put_copy(&self, batch: &mut Batch, from: &Bytes, place: &[u8], record: &Record) {
        let (to, fileno) = (path::data(place), self.alone.unwrap_or(record.fileno));
        let own = Record { fileno, pin: None, nlink: 1, crtime: record.ctime, ..record.clone() };
        if own.has_data() {
            batch.clone_prefix(from.clone(), to.clone());
        }
        self.put(batch, &to, &own);
    }
}

/// The root of a lineage that is removed.
pub(crate) struct Retired {
    pub around: u32,
    pub record: Record,
    pub inside: u32,
}

/// See the module.
pub(crate) struct Hidden {
    /// Contents prefix under which what moves waits.
    pub waiting: Vec<u8>,
    /// Most operations of a batch, a count.
    pub limit: usize,
    /// Contents prefix of the root of the lineage around, which is not in the tree to work in.
    pub root: Vec<u8>,
    /// What goes from the index of names there: a path from the top, and whether all that begins so.
    pub unnamed: Vec<(Vec<u8>, bool)>,
    /// Linked files that change there.
    pub linked: Vec<AttributeChange>,
    /// Those of them that other calls may not change until the end.
    pub watched: Watched,
    /// Roots in the tree in whose areas something was changed, by contents prefix.
    pub areas: HashSet<Vec<u8>>,
    /// Names have to be counted in some of them.
    pub marks: bool,
    pub retired: Vec<Retired>,
}

impl Hidden {
    pub(crate) fn new(waiting: Vec<u8>, limit: usize, root: Vec<u8>) -> Self {
        Self {
            waiting,
            limit,
            root,
            unnamed: Vec::new(),
            linked: Vec::new(),
            watched: Watched::default(),
            areas: HashSet::new(),
            marks: false,
            retired: Vec::new(),
        }
    }

    /// The prefix under which the keys of one prefix of a moving entry wait.
    pub(crate) fn aside(&self, number: u32, slot: u8) -> Bytes {
        [&path::meta(&self.waiting)[..], &number.to_be_bytes(), &[slot]].concat().into()
    }

    /// Watches a linked file that loses a name, if its lineage has this root and is the one around.
    pub(crate) fn watch(&mut self, root: &[u8], id: u64) {
        if self.root == root {
            self.watched.leaves(id);
        }
    }

    /// The same for all files that have names with this prefix in the index of `view`. Reads those names.
    pub(crate) fn watch_all(
        &mut self,
        root: &[u8],
        (view, names): (&Snapshot, &[u8]),
        bounds: Option<&Bounds<'_>>,
    ) -> Result<()> {
        if self.root != root {
            return Ok(());
        }
        let mut found = view.prefix(names);
        while let Some((_, value)) = found.next_ref()? {
            bounds.map_or(Ok(()), Bounds::go_on)?;
            if let Ok(Stored::Indexed(id)) = Stored::decode(value) {
                self.watched.leaves(id);
            }
        }
        Ok(())
    }

    /// Adds that names have to be counted under a root in the tree; where that will be is found at the end.
    pub(crate) fn mark(&mut self, fs: &Fs, batch: &mut Batch, root: &[u8]) -> Result<()> {
        batch.put(path::meta(&path::uncounted(root, fs.fresh_clone()?)), Stored::UNCOUNTED);
        self.marks = true;
        Ok(())
    }

    pub(crate) fn retire(&mut self, root: Retired) {
        if root.record.clone_id != 0 && self.retired.len() < MAX_RETIRED_LINEAGES {
            self.retired.push(root);
        }
    }
}

/// Writes operations that need not be one batch: in order, and no more at once than the log takes.
pub(crate) fn write_in_parts(fs: &Fs, batch: Batch) -> Result<()> {
    let mut left = Vec::from_iter((!batch.is_empty()).then_some(batch));
    while let Some(batch) = left.pop() {
        match fs.db.write(batch.clone()) {
            Err(pando_db::Error::TooLarge { what: "batch", .. }) if batch.len() > 1 => {
                let (mut first, mut second) = (Batch::new(), Batch::new());
                for (i, op) in batch.ops().iter().enumerate() {
                    let half = if i < batch.len() / 2 { &mut first } else { &mut second };
                    half.push(op.clone());
                }
                left.extend([second, first]);
            }
            done => done?,
        }
    }
    Ok(())
}
