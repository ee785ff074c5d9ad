//! Garbage collection: removing from the DAG what no reader can see.
//!
//! `pushdown` flushes deletes down to where they free something; beside writers only where `cost_benefit` says that it
//! pays. `prune` removes from shared nodes what no path shows; `lower` removes levels, and `collapse` replaces tall
//! nodes that show little by leaves. `prune` and `collapse` find what they change by a `survey`. Nodes without
//! references are removed by [`crate::dag::edit::Edit::reclaim`].

pub(crate) mod collapse;
mod cost_benefit;
pub(crate) mod lower;
pub(crate) mod prune;
pub(crate) mod pushdown;
pub(crate) mod survey;
