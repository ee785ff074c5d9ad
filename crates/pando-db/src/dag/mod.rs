//! The B-epsilon-DAG.
pub mod key;
