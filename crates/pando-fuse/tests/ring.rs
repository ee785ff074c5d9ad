//! The other tests once more, with the requests coming over io_uring.
// Each brings its own copy of what all share, as programs of their own would.
#![allow(clippy::duplicate_mod)]

#[path = "beside.rs"]
mod beside;
#[path = "bypass.rs"]
mod bypass;
#[path = "coherence.rs"]
mod coherence;
#[path = "links.rs"]
mod links;
#[path = "listings.rs"]
mod listings;
#[path = "posix.rs"]
mod posix;
#[path = "waiting.rs"]
mod waiting;
#[path = "xattrs.rs"]
mod xattrs;
