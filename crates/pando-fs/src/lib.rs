//! Pando's file system: paths, inodes, files, directories and clones of whole
//! trees, as keys and messages of the engine. There is no FUSE in it.
//!
//! [`Fs`] has the calls: those that a kernel makes of a file system, by inode number; calls on whole trees, such as
//! [`Fs::clone_tree`] and [`Fs::remove_tree`], by (directory, name); and a few by path. Each change is one batch of
//! the engine, so after a crash the tree is that of a prefix of the calls.
//!
//! What a program that uses the crate has to know:
//!
//! - *Permissions.* The calls that a kernel makes do not check permissions, because the kernel has done so: any
//!   [`Caller`] may open, write or remove any file. There a [`Caller`] says who owns what is made, and whether set-id
//!   bits are cleared. [`Fs`] checks permissions where no kernel can: for clones, removals of trees, snapshots, forks
//!   and merges.
//! - *References.* Each call that returns an [`Attr`] of an entry says if it "counts one reference": [`Fs::forget`]
//!   gives that back. An inode stays in memory until all its references are given back; [`ROOT`] always is. An open
//!   handle is closed with [`Fs::release`].
//! - *Durability.* A call is visible to all threads when it returns, and durable after [`Fs::sync`] or [`Fs::fsync`],
//!   or after about a second ([`MountOptions::sync_interval`]). [`Fs::close`] makes a checkpoint; dropping the last
//!   [`Fs`] without it leaves the log to the next opening.
//! - *Errors.* [`Error::errno`] gives the errno that a kernel would return.
//! - *Flags* are those of Linux's open(2), as numbers.
//!
//! Keys and values are below (`path`, `record`, `merge`), then what is in memory (`inode`, `handle`, `volume`), then
//! the calls by subject, each in a module of its own. The table `FS` of the engine's test `tidy_source` has all modules
//! from the ground up, and what each may use; `docs/architecture.md` says where to begin.
//!
//! ```
//! use std::{ffi::OsStr, path::Path, sync::Arc};
//! use pando_db::device::MemDevice;
//! use pando_fs::{Caller, FormatOptions, Fs, MountOptions, ROOT};
//!
//! # fn main() -> pando_fs::Result<()> {
//! let device = Arc::new(MemDevice::new(64 << 20));
//! Fs::format(device.clone(), &FormatOptions::default())?;
//! let fs = Fs::open(device, MountOptions::default())?;
//! let me = Caller::root();
//! let grove = fs.mkdir(&me, ROOT, OsStr::new("grove"), 0o755)?;
//! let (tree, handle) = fs.create(&me, grove.ino, OsStr::new("aspen"), 0o644, 2)?; // O_RDWR
//! fs.write(handle, tree.ino, 0, b"one root", false)?;
//! fs.release(tree.ino, handle);
//! fs.clone_tree(&me, (ROOT, OsStr::new("grove")), (ROOT, OsStr::new("copy")), false)?;
//! let copy = fs.resolve(Path::new("/copy/aspen"))?;
//! assert_ne!(copy.ino, tree.ino);
//! let handle = fs.open_file(&me, copy.ino, 0)?; // O_RDONLY
//! assert_eq!(&fs.read(handle, copy.ino, 0, 100)?[..], b"one root");
//! fs.release(copy.ino, handle);
//! for ino in [grove.ino, tree.ino, copy.ino] {
//!     fs.forget(ino, 1);
//! }
//! # fs.close()
//! # }
//! ```

/// The example of the crate's README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod account;
mod acl;
mod allocate;
mod attrs;
mod background;
mod background_queue;
mod below;
mod bill;
mod blockmap;
mod by_prefix;
mod census;
mod check;
mod children;
mod clone;
mod copy;
mod counter;
mod counting;
mod data;
mod diff;
mod dir;
mod directories;
mod domain;
mod entry;
mod error;
mod exclude;
mod family;
mod file;
mod file_runs;

mod fork;
mod forks;
mod format;
mod frozen;
mod gaps;
mod handle;
mod holes;
mod inode;
mod kept_maps;
mod key_text;
mod known_holes;
mod late_calls;
mod ledger;
mod limits;
mod lineage;
mod link;
mod lock;
mod merge;
mod mode;
mod mount_points;
mod mounted;
mod name;
mod open;
mod open_flags;
mod orphan;
mod path;
mod path_cache;
mod place;
mod plan_memory;
mod policies;
mod position;
mod quota;
mod readahead;
mod record;
mod recursive;
mod removals;
mod remove_tree;
mod rename;
mod rights;
mod scanned;
pub mod send;
mod snapshot;
mod snapshotted;
mod stats;
mod staying;
mod sums;
mod types;
mod uncounted;
mod usage;
mod volume;
mod xattr;

pub use allocate::Seek;
pub use check::CheckReport;
pub use diff::{Aspects, ChangeKind, DiffOptions, FileChange, TreeDiff};
pub use dir::NamedEntry;
pub use error::{Error, Result};
pub use fork::{MergeChange, MergeConflict, MergeKind, MergeOptions, MergeReport, MergeSide, OriginFile};
pub use key_text::{describe_key, name_key, name_piece};
pub use limits::{BLOCK_SIZE, MAX_FILE_SIZE, MAX_NAME, MAX_SYMLINK};
pub use merge::FsMerge;
pub use mode::ModeChange;
pub use mount_points::SnapshotMount;
pub use mounted::MountedOn;
pub use name::RESERVED;
pub use pando_db::{Codec, waiting};
pub use policies::{MAX_FREE_PERCENT, MAX_POLICIES, PolicyInfo, StoredPolicy};
pub use quota::Quota;
pub use recursive::{TreeChange, TreeChangeReport};
pub use rename::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use snapshot::{
    MAX_SNAPSHOT_NOTE,
    alike::Alike,
    automatic::{PolicyStep, PolicyWork},
};
pub use stats::{FsStats, Histogram};
pub use types::*;
pub use usage::Usage;
pub use volume::Fs;
pub use xattr::{XATTR_CREATE, XATTR_REPLACE};
