//! Tests that bound how long something takes: no others run beside them.

mod bursts;
mod clones_beside_writers;
mod group_commit;
mod pile_of_upserts;
mod tidy;
