//! Which inodes in memory hang on an inode: its entries, and the linked files of a lineage whose root it is.
//!
//! So a call that changes a tree finds what it has to say in memory at the cost of what is in memory of that tree, not
//! of the whole file system. Guarantees nothing about the inodes themselves: the table keeps this set in step with
//! their links. Takes no other lock.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::types::Ino;

/// See the module. A set with an order grows without a pause, unlike a hash table. Most inodes are files: those pay for
/// a pointer only.
#[derive(Debug, Default)]
#[allow(clippy::box_collection)]
pub(crate) struct Children(Mutex<Option<Box<BTreeSet<Ino>>>>);

impl Children {
    /// Adds one that was not there.
    pub(crate) fn add(&self, ino: Ino) {
        let added = self.0.lock().get_or_insert_default().insert(ino);
        assert!(added, "inode {ino:#x} comes twice to one directory in memory");
    }

    /// Takes out one that was there.
    pub(crate) fn remove(&self, ino: Ino) {
        let mut children = self.0.lock();
        let removed = children.as_mut().is_some_and(|children| children.remove(&ino));
        assert!(removed, "inode {ino:#x} leaves a directory in memory that it was not in");
        if children.as_ref().is_some_and(|children| children.is_empty()) {
            *children = None;
        }
    }

    /// The numbers of all children, ascending.
    pub(crate) fn all(&self) -> Vec<Ino> {
        self.0.lock().as_ref().map(|children| children.iter().copied().collect()).unwrap_or_default()
    }

    /// The number of children.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().as_ref().map_or(0, |children| children.len())
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_takes_no_memory_when_it_is_empty() {
        let children = Children::default();
        assert!(children.is_empty() && size_of::<Children>() <= 16);
        children.add(7);
        children.add(3);
        assert!(children.all() == [3, 7] && children.len() == 2);
        children.remove(7);
        assert!(!children.is_empty());
        children.remove(3);
        assert!(children.is_empty() && children.all().is_empty());
    }
}
