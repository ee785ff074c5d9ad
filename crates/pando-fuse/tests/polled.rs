//! The other tests once more, with the requests found by polling, whatever else wants the CPU.

#[path = "coherence.rs"]
mod coherence;
#[path = "posix.rs"]
mod posix;
