//! Sharing: how a clone of a range becomes an edge to a node that others show too.
//!
//! `place` finds the node of a clone's source and makes a Goto to it, `turn` lets a Goto become an edge,
//! `rekey` shows a node as one of its edges does, `join` and `visible` take back what clones leave behind.

pub(crate) mod join;
pub(crate) mod place;
pub(crate) mod rekey;
pub(crate) mod turn;
pub(crate) mod visible;
