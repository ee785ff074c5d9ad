//! The other tests once more, with the requests found by polling, whatever else wants the CPU.

// It knows from its own path how these tests are to run.
#[path = "common/mod.rs"]
mod common;

#[path = "coherence.rs"]
mod coherence;
#[path = "posix.rs"]
mod posix;

#[test]
fn they_run_polled() {
    assert!(common::forced() && common::kept() && !common::over_ring());
    let usual = crate::common::kept() && !crate::common::over_ring() && !crate::common::forced();
    assert!(usual, "the tests above bring a module of their own");
}
