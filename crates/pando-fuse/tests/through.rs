//! The other tests once more, without the kernel's write-back cache. What only that has: `kept.rs`.

// It knows from its own path how these tests are to run.
#[path = "common/mod.rs"]
mod common;

#[path = "bypass.rs"]
mod bypass;
#[path = "coherence.rs"]
mod coherence;
#[path = "links.rs"]
mod links;
#[path = "posix.rs"]
mod posix;

#[test]
fn they_run_without_the_write_back_cache() {
    assert!(!common::kept() && !common::over_ring() && !common::forced());
    let usual = crate::common::kept() && !crate::common::over_ring() && !crate::common::forced();
    assert!(usual, "the tests above bring a module of their own");
}
