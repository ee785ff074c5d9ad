//! Snapshots on their way through pipes: trees of the host as what is sent and received, and where a receive is kept
//! until it is whole.
//!
//! The bytes, and what they say, are those of `pando_fs::send`. `host` has the calls of the system that a tree
//! needs; `ground` has what is around a received tree, in a mounted file system or in an image: the place where it
//! is made, the snapshots that it builds on, how it appears.

pub mod ground;
pub mod host;
pub mod image;
