//! The tests of mounts, in one program: linking one for each file took longer than most of them run. A new file becomes a
//! line here.

// Files that run again in another way bring a copy of what all share.
#![allow(clippy::duplicate_mod)]

mod beside;
mod budget;
mod bypass;
mod coherence;
mod common;
mod dropped;
mod ends;
mod given;
mod group_commit;
mod held;
mod kept;
mod links;
mod listings;
mod policies;
mod polled;
mod posix;
mod refused;
mod ring;
mod through;
mod waiting;
mod xattrs;
