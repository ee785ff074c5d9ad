//! What a merge has moved: for later steps of its batch, and for the inodes in memory when the batch is written.
//!
//! Guarantees that an inode in memory has its new place when its entry has.

use std::collections::{BTreeSet, HashSet};

use crate::{
    inode::{InodeRef, Link},
    types::{CloneReport, FileKind, Time},
    volume::Fs,
};

/// What was moved.
#[derive(Default)]
pub(crate) struct Carried {
    /// Paths, from the volume, of entries that have left their places; of directories also the contents prefixes.
    pub left: BTreeSet<Vec<u8>>,
    /// Files that are new ones already, by their path from the top.
    pub replaced: HashSet<Vec<u8>>,
    /// Those in memory, with the directory and the name that they get.
    pub inodes: Vec<(InodeRef, InodeRef, Box<[u8]>)>,
}

impl Carried {
    /// Whether the keys under this path, from the volume, belong to an entry that has left its place.
    pub(crate) fn is_in_one(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == 0).filter_map(|(i, _)| path.get(..=i));
        ends.into_iter().any(|part| self.left.contains(part)) || self.left.contains(path)
    }

    /// Notes that `entry` is a new file from now on.
    pub(crate) fn replaced(&mut self, entry: &[u8]) {
        self.replaced.insert(entry.to_vec());
    }

    /// Moves the inodes in memory, once the batch is written.
    pub(crate) fn done(self, fs: &Fs, now: Time, report: &mut CloneReport) {
        let mut dirs = false;
        for (inode, parent, name) in self.inodes {
            inode.change(|s| s.record.ctime = now);
            inode.move_to(Link::At { parent, name });
            report.replaced.push(inode.ino);
            dirs |= inode.kind == FileKind::Directory;
        }
        if dirs {
            fs.table.moved();
        }
    }
}
