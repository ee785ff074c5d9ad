//! Differences between two trees, or two files, of one file system.
//!
//! The engine returns the keys whose values differ, at a cost in proportion to the difference. This module makes
//! files of them: added, removed, changed, and, by file number, moved ones. It makes two passes over the same
//! differences, the first over records only, so that a moved directory is compared with itself and not listed name by
//! name. Guarantees: the result is that of reading both trees completely, as of one moment, except for access and
//! change times; nothing is reported from a directory that the caller may not list and enter. Memory is bounded:
//! differences are returned one by one.

pub(crate) mod change;
pub(crate) mod compare;
pub(crate) mod confirm;
pub(crate) mod links;
pub(crate) mod moves;
pub(crate) mod side;
pub(crate) mod stream;
mod walk;

use crate::{
    diff::side::Side,
    error::{Error, Result},
    lock::Obstacle,
    types::{Caller, FileKind, Ino},
    volume::Fs,
};

pub use change::{Aspects, ChangeKind, DiffOptions, FileChange};
pub use walk::TreeDiff;

impl Fs {
    /// The changes that turn `before` into `after`: two directories, or two files, anywhere in the file system, at
    /// one moment. Differences come in no particular order; paths are relative to the two tops. Access and change
    /// times, inode numbers and link counts do not count as differences; a file with several names is reported under
    /// each.
    ///
    /// A file or directory with the same file number and another path in `after` counts as renamed; of a renamed
    /// directory only the differences inside are reported. (A move across the border of a clone gives files new
    /// numbers.) Beyond 131,072 candidates for renames, or 32 MiB of their paths, files are reported as removed and
    /// added.
    ///
    /// Only what `viewer` may see is reported; `None` sees everything. The caller has to check that the two tops may
    /// be read, whatever gives the right to that. EINVAL if one is a directory and the other is not.
    ///
    /// Cost: in proportion to what differs, and O(log n) for each place (see [`pando_db::Snapshot::diff`]). Where a
    /// linked file differs, also the names of linked files in its lineage, which lie together.
    pub fn diff(
        &self,
        viewer: Option<&Caller>,
        before: Ino,
        after: Ino,
        options: DiffOptions,
    ) -> Result<TreeDiff> {
        let (a, b) = (self.table.get(before)?, self.table.get(after)?);
        if (a.kind == FileKind::Directory) != (b.kind == FileKind::Directory) {
            return Err(Error::Invalid("a directory and something else have no difference to tell".into()));
        }
        if a.shows_snapshots() || b.shows_snapshots() {
            let text = ".snapshots cannot be compared as a whole; name one of the snapshots in it";
            return Err(Error::Invalid(text.into()));
        }
        // Held only while the keys are found: the rest is of one frozen moment.
        let (before, after) = self.with_attempts(|tries| {
            let first = self.attempt(&a, tries, false)?;
            let second = self.attempt(&b, tries, false)?;
            let view = self.db.snapshot();
            let side = |at: &crate::place::At| -> Result<Side, Obstacle> {
                Ok(match at.dir() {
                    Some(dir) => Side::of_dir(&view, viewer, dir, self.domain(dir).contents),
                    None => Side::of_file(&view, viewer, at.meta.clone(), at.data.clone()),
                })
            };
            Ok((side(&first)?, side(&second)?))
        })?;
        Ok(TreeDiff::new(before, after, options, a.kind == FileKind::Directory, self.has_links()))
    }
}
