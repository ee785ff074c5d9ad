//! The entries that a merge has moved: for later steps of its batch, and for the inodes in memory when the batch is
//! written.
//!
//! Guarantee: an inode in memory gets its new place when its entry does.

use std::collections::{BTreeSet, HashSet};

use crate::{
    inode::{InodeRef, Link},
    types::{CloneReport, FileKind, Time},
    volume::Fs,
};

/// The entries that were moved.
#[derive(Default)]
pub(crate) struct Relocated {
    /// Paths, from the volume, of entries that have left their places; for directories also the contents prefixes.
    pub left: BTreeSet<Vec<u8>>,
    /// Entries that are new files by now, by path from the top.
    pub replaced: HashSet<Vec<u8>>,
    /// The moved inodes in memory, with their new directories and names.
    pub inodes: Vec<(InodeRef, InodeRef, Box<[u8]>)>,
}

impl Relocated {
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
