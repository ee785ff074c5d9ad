//! Linked files that a large merge changes, or of which it removes names, and that are in none of its copies.
//!
//! They lie in the area of the lineage around, where other calls go on writing to them. Guarantees that a write to such
//! a file clashes with the merge if the merge would lose it. Pure functions.

use std::collections::HashSet;

use crate::{path, record::Record};

/// Most files that are known by number, a count; beyond these, every file counts as one of them.
const MAX_LEAVING_FILES: usize = 1 << 20;
/// Bytes of the number of a file in a key of the area.
const ID_BYTES: usize = 8;

/// See the module. Files by their number in the lineage.
#[derive(Default)]
pub(crate) struct Watched {
    /// Files that lose a name: if it was the last one, what was written to the file is lost.
    leaving: HashSet<u64>,
    any_leaves: bool,
    /// Files that get extended attributes from the fork, some of which lie outside of the record.
    attrs: HashSet<u64>,
}

/// Whether two records of a file are the same, apart from the access time and changes by other names of the file.
fn alike(before: &[u8], after: &[u8]) -> bool {
    match (Record::decode(before), Record::decode(after)) {
        (Ok(a), Ok(b)) => Record { atime: b.atime, ctime: b.ctime, nlink: b.nlink, ..a } == b,
        _ => false,
    }
}

impl Watched {
    pub(crate) fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.attrs.is_empty()
    }

    /// A name of this file goes.
    pub(crate) fn leaves(&mut self, id: u64) {
        match self.leaving.len() < MAX_LEAVING_FILES {
            true => _ = self.leaving.insert(id),
            false => self.any_leaves |= !self.leaving.contains(&id),
        }
    }

    /// This file gets attributes that lie outside of its record.
    pub(crate) fn gets_attributes(&mut self, id: u64) {
        self.attrs.insert(id);
    }

    fn is_leaving(&self, id: u64) -> bool {
        self.any_leaves || self.leaving.contains(&id)
    }

    /// Whether a change of a record in the area meets the merge: the key behind the prefix of the area, and values.
    pub(crate) fn meets_record(&self, key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) -> bool {
        // A file that has come meanwhile had one name, at a path that the copies show.
        let (Some(before), Some(id)) = (before, id_in(key)) else { return false };
        self.is_leaving(id) && !after.is_some_and(|after| alike(before, after))
    }

    /// Whether a change of data in the area does.
    pub(crate) fn meets_data(&self, key: &[u8]) -> bool {
        let (Some(id), Some(number)) = (id_in(key), number_in(key)) else { return false };
        self.is_leaving(id)
            || self.attrs.contains(&id) && (path::ATTRS_BEGIN..path::ATTRS_END).contains(&number)
    }

    /// The first key of data behind one that does not meet the merge that may do so; `None` if there is none.
    pub(crate) fn next_data(&self, key: &[u8]) -> Option<Vec<u8>> {
        match (id_in(key), number_in(key)) {
            (Some(id), Some(number)) if self.attrs.contains(&id) && number < path::ATTRS_BEGIN => {
                Some([id.to_be_bytes(), path::ATTRS_BEGIN.to_be_bytes()].concat())
            }
            _ => path::behind(key.get(..ID_BYTES).unwrap_or(key)).map(Vec::from),
        }
    }
}

/// The file in a key of the area.
fn id_in(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.first_chunk()?))
}

/// The number of a block, or of an attribute, in a key of data there.
fn number_in(key: &[u8]) -> Option<u64> {
    id_in(key.get(ID_BYTES..)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::{FileKind, Time};

    #[test]
    fn what_is_written_to_a_file_that_leaves_meets_the_merge_and_what_is_read_does_not() {
        let time = |secs| Time { secs, nanos: 0 };
        let old = Record::new(FileKind::Regular, 0o644, 7, time(1));
        let read = Record { atime: time(2), ctime: time(3), nlink: 3, ..old.clone() };
        let written = Record { mtime: time(2), ..old.clone() };
        let [old, read, written] = [&old, &read, &written].map(Record::encode);
        let mut watched = Watched::default();
        assert!(watched.is_empty());
        watched.leaves(7);
        watched.gets_attributes(8);
        let id = |id: u64| id.to_be_bytes();
        let meets = |id: [u8; 8], after| watched.meets_record(&id, Some(&old[..]), after);
        assert!(meets(id(7), Some(&written[..])) && meets(id(7), None));
        assert!(!meets(id(7), Some(&read[..])) && !meets(id(8), Some(&written[..])));
        assert!(!watched.meets_record(&id(7), None, Some(&written[..])));
        let data = |file: u64, number: u64| [id(file), id(number)].concat();
        assert!(watched.meets_data(&data(7, 0)) && watched.meets_data(&data(8, path::ATTRS_BEGIN + 5)));
        assert!(!watched.meets_data(&data(8, 0)) && !watched.meets_data(&data(6, path::ATTRS_BEGIN)));
        assert!(!watched.meets_data(&data(8, path::ATTRS_END)));
        assert_eq!(watched.next_data(&data(8, 3)).unwrap(), data(8, path::ATTRS_BEGIN));
        assert_eq!(watched.next_data(&data(8, path::ATTRS_END)).unwrap(), id(9));
        assert_eq!(watched.next_data(&data(6, 3)).unwrap(), id(7));
    }

    #[test]
    fn where_too_many_leave_to_be_known_any_may() {
        let mut watched = Watched::default();
        (0..MAX_LEAVING_FILES as u64).for_each(|id| watched.leaves(id));
        let data = |id: u64| [id, 0].map(u64::to_be_bytes).concat();
        assert!(watched.meets_data(&data(5)) && !watched.meets_data(&data(u64::MAX)));
        watched.leaves(5);
        assert!(!watched.meets_data(&data(u64::MAX)));
        watched.leaves(u64::MAX - 1);
        assert!(watched.meets_data(&data(u64::MAX)));
    }
}
