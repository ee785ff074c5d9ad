//! The cost tests: what operations cost in requests, bytes and seeks of the device, as growth over sizes.
//!
//! Nothing here measures time, and a run is decided by its seeds, so the figures are the same on every
//! machine. Without threads in the background (`background: false`) all work is done inside the calls that
//! cause it. `PANDO_COSTS=full` runs the sizes of the goals (1 MiB nodes) in place of small ones; every
//! test says why its small form is the same statement. `docs/costs.md` lists goals and figures.
#![allow(clippy::unwrap_used)]

#[path = "costs/bulk.rs"]
mod bulk;
#[path = "costs/check.rs"]
mod check;
#[path = "costs/clones.rs"]
mod clones;
#[path = "costs/delete.rs"]
mod delete;
#[path = "costs/diff.rs"]
mod diff;
#[path = "costs/hot.rs"]
mod hot;
#[path = "costs/leaves.rs"]
mod leaves;
#[path = "costs/live.rs"]
mod live;
#[path = "costs/memory.rs"]
mod memory;
#[path = "costs/passing.rs"]
mod passing;
#[path = "costs/ranges.rs"]
mod ranges;
#[path = "model/rng.rs"]
mod rng;
#[path = "costs/rounds.rs"]
mod rounds;
#[path = "costs/sequential.rs"]
mod sequential;
#[path = "costs/setup.rs"]
mod setup;
#[path = "costs/updates.rs"]
mod updates;
#[path = "costs/upserts.rs"]
mod upserts;

/// Counts what lives on the heap, for what clones take in memory.
#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;
