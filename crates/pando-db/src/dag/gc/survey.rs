//! Surveys: walks over a whole version that find, in bounded steps, nodes that can be changed. The changes are made
//! later, some at a time, in the version of that moment.
//!
//! May use: `edit`. I/O: that of the walks.

use std::collections::VecDeque;

use crate::{dag::edit::Edit, error::Result, store::table::Table};

/// A walk over one version.
pub(crate) trait Survey {
    /// A node that can be changed, with what the walk knows of it.
    type Found;

    /// Continues until about `nodes` nodes have been read. False at the end of the walk. `edit` must be an empty one,
    /// over the same version each time.
    fn go_on(&mut self, edit: &Edit<'_>, nodes: usize) -> Result<bool>;

    /// The nodes that were found and that the caller has not taken yet.
    fn found(&mut self) -> &mut VecDeque<Self::Found>;

    /// Changes a node that was found in the version of `surveyed`, unless the finding is not true of it any more.
    /// Returns whether it did.
    fn change(edit: &mut Edit<'_>, found: &Self::Found, surveyed: &Table) -> Result<bool>;
}
