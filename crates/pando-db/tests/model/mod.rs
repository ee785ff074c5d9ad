//! The model test's harness: an oracle beside the engine, driven by one seed.
//!
//! A [`generate::Generator`] invents [`step::Step`]s, a [`runner::Runner`]
//! does each of them to a store on a simulated device and to an ordered map
//! ([`oracle::World`]), and compares. The steps are plain data, so a failing
//! run can be cut down to the few steps that matter ([`shrink`]), and a
//! [`campaign`] runs seeds for a stated time. Uses the public API only: what
//! it tests is what users get.
//!
//! Each test binary uses a part of this, hence:
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod campaign;
pub mod config;
pub mod coverage;
pub mod generate;
pub mod merge;
pub mod oracle;
pub mod reading;
pub mod rng;
pub mod runner;
pub mod shrink;
pub mod step;
