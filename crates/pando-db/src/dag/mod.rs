//! The B-epsilon-DAG: a lifted B-epsilon-tree whose nodes may be shared (FAST'20).
//!
//! Nodes buffer messages for their children; a Goto, a range message, clones a whole subtree. Everything works on
//! immutable versions: a [`read::view::View`] reads one, an [`edit::Edit`] builds the next. The modules, from the
//! lowest up: `tree` (a version), `layer` (messages that arrived together), `memtable` (messages not yet in the DAG),
//! `edit` (the next version), `read`, `share` (clones), `write` (flush, split, merge), `gc`; and `check`, which
//! verifies a version. Nothing here reads or writes the log (a tree and a memtable carry the position at which they
//! end), makes a checkpoint or starts a thread.

pub(crate) mod check;
pub(crate) mod damage;
pub(crate) mod edit;
#[cfg(test)]
mod edit_tests;
pub(crate) mod gc;
pub(crate) mod layer;
pub(crate) mod longest;
pub(crate) mod memtable;
pub(crate) mod read;
pub(crate) mod share;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
pub(crate) mod write;
