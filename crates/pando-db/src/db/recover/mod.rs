//! Creating a store, and opening one: the last checkpoint, and then the log behind it.
//!
//! `replay` decides which records of the log count and applies them, `tables` builds memtables from them, and `open`
//! puts the engine together.

pub(crate) mod open;
pub(crate) mod replay;
mod tables;
