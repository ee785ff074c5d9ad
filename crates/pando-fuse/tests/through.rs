//! The other tests once more, without the kernel's write-back cache. What only that has: `kept.rs`.
// Each brings its own copy of what all share, as programs of their own would.
#![allow(clippy::duplicate_mod)]

#[path = "bypass.rs"]
mod bypass;
#[path = "coherence.rs"]
mod coherence;
#[path = "links.rs"]
mod links;
#[path = "posix.rs"]
mod posix;
