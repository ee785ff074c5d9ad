//! The other tests once more, with the requests coming over io_uring.

// It knows from its own path how these tests are to run.
#[path = "common/mod.rs"]
mod common;

#[path = "beside.rs"]
mod beside;
#[path = "bypass.rs"]
mod bypass;
#[path = "coherence.rs"]
mod coherence;
#[path = "held.rs"]
mod held;
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

#[test]
fn they_run_over_io_uring() {
    assert!(common::over_ring() && common::kept() && !common::forced());
    let usual = crate::common::kept() && !crate::common::over_ring() && !crate::common::forced();
    assert!(usual, "the tests above bring a module of their own");
}
