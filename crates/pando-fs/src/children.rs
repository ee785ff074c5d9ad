//! The children of an inode in memory: its entries, and the linked files of a lineage whose root it is.
//!
//! With these sets a call that changes a tree finds the inodes in memory that it has to change at a cost in
//! proportion to their number, and not to all inodes in memory. The table keeps the sets in agreement with the links
//! of inodes. Takes no other lock.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::types::Ino;

/// The set of children. An ordered set grows without a pause, unlike a hash table. Most inodes are files, and pay for
/// a pointer only.
#[derive(Debug, Default)]
#[allow(clippy::box_collection)]
pub(crate) struct Children(Mutex<Option<Box<BTreeSet<Ino>>>>);

impl Children {
    /// Adds a child that was not in the set.
    pub(crate) fn add(&self, ino: Ino) {
        let added = self.0.lock().get_or_insert_default().insert(ino);
        assert!(added, "inode {ino:#x} comes twice to one directory in memory");
    }

    /// Removes a child that was in the set.
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
