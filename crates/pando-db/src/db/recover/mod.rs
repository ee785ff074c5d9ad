//! Making and opening a store: the last checkpoint, and the log behind it.
//!
//! `replay` judges and applies the log, `tables` makes tables of it, `open` puts the engine together.

pub(crate) mod open;
pub(crate) mod replay;
mod tables;
