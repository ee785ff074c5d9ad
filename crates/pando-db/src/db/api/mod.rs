//! Calls of a [`crate::Db`] that are programs of their own: check, usage, statistics, inspection, backup, restore, and
//! what a store says of itself.
//!
//! They read versions of the store and change nothing that it shows: `restore` makes a new one, and `usage` flushes
//! memtables where a clone waits in one.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod identity;
pub(crate) mod inspect;
pub(crate) mod restore;
pub(crate) mod stats;
pub(crate) mod usage;
