//! What walks of a whole version have in common: in bounded steps they look for nodes that can be changed, which are
//! changed later, some at a time, in the version that there is then.
//!
//! May use: `edit`. I/O: that of the walks.

use std::collections::VecDeque;

use crate::{dag::edit::Edit, error::Result, store::table::Table};

/// A walk over one version.
pub(crate) trait Survey {
    /// A node that can be changed, and what is known of it.
    type Found;

    /// Goes on until about `nodes` nodes have been read; false if that was all. `edit` is to be an empty one over the
    /// same version each time.
    fn go_on(&mut self, edit: &Edit<'_>, nodes: usize) -> Result<bool>;

    /// What it has found and its caller has not taken yet.
    fn found(&mut self) -> &mut VecDeque<Self::Found>;

    /// Changes a node that was found in the version of `surveyed`, unless what was found is true of it no more; whether
    /// it did.
    fn change(edit: &mut Edit<'_>, found: &Self::Found, surveyed: &Table) -> Result<bool>;
}
