//! What a merge leaves for its end where its steps go into a tree that nobody sees.
//!
//! The steps are batches of any number then, so nothing of them may be seen: neither in the area of linked files of
//! the lineage around, nor in memory, nor in what is kept by place. Guarantees that a batch names no key outside of the
//! volumes to work in. Uses keys and records.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    error::Result,
    path,
    record::{Record, Stored},
    volume::Fs,
};

/// Lineages that are given back at the end, a count; of more than these, marking finds out that nobody has them.
const MAX_RETIRED: usize = 1 << 12;

/// A change of the attributes of a linked file in the area around.
pub(crate) struct LinkedChange {
    /// A name of it, from the top.
    pub entry: Vec<u8>,
    pub before: Record,
    pub after: Record,
    /// Data prefix of the file in the fork, if its extended attributes, or those here, lie outside of the record.
    pub attrs: Option<Bytes>,
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
    /// Linked files that change there, by their number.
    pub linked: HashMap<u64, LinkedChange>,
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
            linked: HashMap::new(),
            areas: HashSet::new(),
            marks: false,
            retired: Vec::new(),
        }
    }

    /// Where the keys of one prefix of something wait.
    pub(crate) fn aside(&self, number: u32, slot: u8) -> Bytes {
        [&path::meta(&self.waiting)[..], &number.to_be_bytes(), &[slot]].concat().into()
    }

    /// Adds that names have to be counted under a root in the tree; where that will be is found at the end.
    pub(crate) fn mark(&mut self, fs: &Fs, batch: &mut Batch, root: &[u8]) -> Result<()> {
        batch.put(path::meta(&path::uncounted(root, fs.fresh_clone()?)), Stored::UNCOUNTED);
        self.marks = true;
        Ok(())
    }

    pub(crate) fn retire(&mut self, root: Retired) {
        if root.record.clone_id != 0 && self.retired.len() < MAX_RETIRED {
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
