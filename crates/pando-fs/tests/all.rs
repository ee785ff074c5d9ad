//! The tests of the file system, in one program: linking one for each file took longer than most of them run. A new file
//! becomes a line here.

// Files that `large_merges` runs again bring a copy of what all share.
#![allow(clippy::duplicate_mod)]

mod alike;
mod allocate;
mod attrs;
mod cached_paths;
mod checks;
mod clones;
mod common;
mod counting;
mod depth;
mod diff;
mod files;
mod forks;
mod full_deletes;
mod full_disk;
mod full_orphans;
mod gaps;
mod hostile;
mod large_merges;
mod limits;
mod link_clones;
mod links;
mod lost_nodes;
mod merge_clones;
mod merge_linked;
mod merge_renames;
mod merge_text;
mod model;
mod mounted;
mod once;
mod policies;
mod quota_model;
mod quotas;
mod readahead;
mod recursive;
mod rollbacks;
mod send;
mod snapshot_crashes;
mod snapshots;
mod threads;
mod together;
mod tree;
mod xattrs;
