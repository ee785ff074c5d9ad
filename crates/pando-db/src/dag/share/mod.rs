//! Sharing: how a clone of a range becomes an edge to a node that others show too.
//!
//! `place` finds the node of a clone's source and makes a Goto to it, `convert` makes an edge of a Goto,
//! `rekey` shows a node as one of its edges does, `join` and `visible` take back what clones leave behind.

pub(crate) mod convert;
pub(crate) mod join;
pub(crate) mod place;
pub(crate) mod rekey;
pub(crate) mod visible;
