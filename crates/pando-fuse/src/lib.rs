//! Pando's FUSE server: it makes file-system calls of the kernel's requests.
//!
//! [`Mount`] puts a [`pando_fs::Fs`] on a directory and serves it. Behind it, [`transport`] is the interface to the
//! kernel (a trait, with the protocol behind it), `server` answers requests and keeps the kernel's caches right,
//! `cache` decides what may be cached. [`control`] has the requests of tools to a mount: clone a tree, remove one,
//! compare two, sync, grow, statistics. [`client`] and [`tool`] are the tool's side of these, `proof` (rights) and
//! `requests` the server's.
//!
//! `docs/fuse.md` says what the modules are for, and why the kernel gets these notifications. The table `FUSE` of the
//! engine's test `tidy_source` has the modules from the ground up, and what each imports.

/// The example of the crate's README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod asked;
mod attach;
mod automatic;
mod cache;
mod caller;
mod changes;
pub mod client;
mod coherence;
mod content;
pub mod control;
mod copies;
mod counters;
mod creators;
mod diffs;
mod dirty_limit;
mod ender;
mod ending;
mod error;
mod failures;
pub mod forked;
pub mod guard;
mod interrupts;
mod labels;
mod listings;
mod mount;
pub mod mountinfo;
mod openers;
mod own_mount;
mod own_threads;
mod past_pages;
mod pending_reports;
mod policies;
mod proof;
pub mod quotas;
mod recursive;
mod refused;
mod requests;
mod server;
mod settings;
mod spool;
mod times;
pub mod tool;
pub mod transport;
mod views;
mod writes;

pub use attach::{How, remount, unmount};
pub use coherence::StatsText;
pub use counters::{Counters, Kind, Polling};
pub use ender::Ender;
pub use error::Error;
pub use mount::{Mount, Running, exit};
pub use settings::{DirectIo, IoUring, Settings};
pub use transport::HaltPoll;
