//! The inodes in memory below a directory.
//!
//! Each inode in memory has the set of its children in memory, so a walk finds those of a tree at a cost in
//! proportion to their number. They may be more than the candidates that a caller knows from elsewhere, such as open
//! files. So the caller limits the walk, and if there are more inodes than that, it tests each of its candidates
//! instead. No I/O.

use std::sync::Arc;

use crate::{
    inode::{Inode, InodeRef, Table},
    types::{FileKind, Ino},
    volume::Fs,
};

impl Table {
    /// The children of `of` in memory, each with a reference: its entries, and the linked files of the lineage whose
    /// root it is. No child comes, and none is moved away, while the caller holds `tree` of `of`, or of a directory
    /// above, exclusively.
    pub(crate) fn children(self: &Arc<Self>, of: &Inode) -> Vec<InodeRef> {
        of.children.all().into_iter().filter_map(|ino| self.find(ino)).collect()
    }
}

impl Fs {
    /// All inodes in memory below `top`, linked files of lineages with a root there included. No inode comes or goes
    /// while the caller holds `tree` of `top`, or of a directory above, exclusively. `None` if there are more than
    /// `most`.
    pub(crate) fn known_below(&self, top: &Inode, most: usize) -> Option<Vec<InodeRef>> {
        let mut found = Vec::new();
        let mut next = 0;
        self.add_known(top, &mut found, most)?;
        while let Some(inode) = found.get(next).cloned() {
            next += 1;
            self.add_known(&inode, &mut found, most)?;
        }
        Some(found)
    }

    fn add_known(&self, of: &Inode, found: &mut Vec<InodeRef>, most: usize) -> Option<()> {
        (of.children.len() + found.len() <= most).then(|| found.extend(self.table.children(of)))
    }

    /// The regular files in memory of which [`Fs::lies_in`] says that they lie in `top`. `None` if more than `most`
    /// inodes are to be looked at for that, or if something got another place meanwhile.
    pub fn files_in(&self, top: Ino, most: usize) -> Option<Vec<Ino>> {
        let before = self.table.places();
        let Some(top) = self.table.find(top) else { return Some(Vec::new()) };
        let mut found = self.known_below(&top, most)?;
        if self.has_links() {
            for above in top.ancestry().ok()? {
                let below = found.len();
                self.add_known(&above, &mut found, most)?;
                let linked: Vec<_> = found.drain(below..).filter(|inode| inode.linked().is_some()).collect();
                found.extend(linked);
            }
        }
        found.push(top);
        let files = found.iter().filter(|inode| inode.kind == FileKind::Regular);
        let mut files: Vec<Ino> = files.map(|inode| inode.ino).collect();
        files.sort_unstable();
        files.dedup();
        self.table.stayed(before).then_some(files)
    }
}
