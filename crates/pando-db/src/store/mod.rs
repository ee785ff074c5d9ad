//! The store: what lies on the device besides the meaning of nodes.
//!
//! Rooms so far: [`space`] (who owns which bytes), [`superblock`] (where
//! everything begins) and [`log`] (the redo log). They use the device and the
//! crate's errors only, and know nothing of keys or messages.

pub(crate) mod bulk;
pub(crate) mod layout;
pub mod log;
pub(crate) mod pager;
mod passed;
pub mod space;
pub mod superblock;
pub(crate) mod table;
mod tally;
mod unreadable;
