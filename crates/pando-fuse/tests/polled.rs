//! The other tests once more, with the requests found by polling, whatever else wants the CPU.
// Each of the two brings its own copy of what both share, as two programs would.
#![allow(clippy::duplicate_mod)]

#[path = "coherence.rs"]
mod coherence;
#[path = "posix.rs"]
mod posix;
