//! Garbage collection: taking out of the DAG what nothing shows any more.
//!
//! `pushdown` carries deletes to where they free something, beside writers where `worth` says so; `prune` takes out
//! of shared nodes what no path shows; `lower` takes levels off, and `collapse` puts leaves in the place of tall nodes
//! that show little. What `prune` and `collapse` change they find by a `survey`. Nodes without references are taken out
//! by [`crate::dag::edit::Edit::reclaim`].

pub(crate) mod collapse;
pub(crate) mod lower;
pub(crate) mod prune;
pub(crate) mod pushdown;
pub(crate) mod survey;
mod worth;
