//! Work behind the callers' backs: flushing with the checkpoints that it needs, garbage collection, and the threads
//! that do it.
//!
//! Each step is bounded and published at once, so that a store without threads can do the same inside its
//! calls.

mod beside;
pub(crate) mod gc;
mod gc_limits;
pub(crate) mod steps;
pub(crate) mod stuck;
mod survey;
pub(crate) mod threads;
