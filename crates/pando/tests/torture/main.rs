//! The whole program under torture: the built binary, real mounts, real programs.
//!
//! Each test is bounded: some seconds by default, as long as the environment
//! variable `PANDO_TORTURE_SECONDS` says otherwise. What is random follows from
//! a seed that is printed and can be set by `PANDO_TORTURE_SEED`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bed;
mod block_device;
mod clones;
mod crowd;
mod full;
mod full_host;
mod identity;
mod kill;
mod memory;
mod model;
mod programs;
mod random;
mod trees;
