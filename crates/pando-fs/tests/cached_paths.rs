//! Tests of names, moves, clones and threads once more, with cached paths for all directories and not only for deep
//! ones: where a lock or a path of the cache is wrong, they fail.
#![allow(clippy::unwrap_used)]

// It knows from its own path how these tests are to run.
#[path = "common/mod.rs"]
mod common;

#[path = "clones.rs"]
mod clones;
#[path = "model.rs"]
mod model;
#[path = "rollbacks.rs"]
mod rollbacks;
#[path = "snapshots.rs"]
mod snapshots;
#[path = "threads.rs"]
mod threads;
#[path = "tree.rs"]
mod tree;

#[test]
fn paths_are_cached_here_and_not_elsewhere() {
    assert_eq!((common::cached_path_depth(), crate::common::cached_path_depth()), (0, 32));
}
