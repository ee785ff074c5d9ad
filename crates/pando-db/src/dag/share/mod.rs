//! Sharing: how a clone of a range becomes an edge to a node that others show too.
//!
//! `place` finds the node of a clone's source and makes a Goto to it, `convert` makes an edge of a Goto, `rekey`
//! rewrites a node to the keys that an edge shows, `join` and `visible` remove what deleted clones leave behind.

pub(crate) mod convert;
pub(crate) mod join;
pub(crate) mod place;
pub(crate) mod rekey;
pub(crate) mod visible;
