//! The model test: random operations, crashes and failures against an oracle.
//!
//! See `docs/testing.md` for what is checked, how long it runs and how a seed
//! is replayed. The first test takes the whole time of this file on one
//! thread, the others share another.

mod model;

use model::{
    campaign::{campaign, campaign_with_threads},
    config::{Config, Profile},
    shrink::run_seed,
};

#[test]
fn all_operations_and_crashes() {
    let required = [
        ("batches", 2000),
        ("heights", 4),
        ("seen: shared nodes", 20),
        ("seen: pending Gotos", 20),
        ("seen: pending range-upserts", 20),
        ("pending range-upserts", 30),
        ("snapshots compared", 20),
        ("held cursors compared", 20),
        ("held cursors moved", 5),
        ("overlaps refused", 5),
        ("reopened", 20),
        ("second crashes", 3),
        ("batches lost by crashes", 10),
        ("blocks discarded", 5000),
        ("batches that expect", 200),
        ("conflicts", 100),
        ("copies near the longest key", 5),
        ("copies of keys too long refused", 20),
        ("batches coalesced since open", 20),
    ];
    campaign("all_operations_and_crashes", Profile::Crashes, 1.0, &required);
}

#[test]
fn failing_requests() {
    let required = [
        ("batches", 1000),
        ("failures met", 50),
        ("heights", 3),
        ("seen: shared nodes", 10),
        ("blocks discarded", 1000),
    ];
    campaign("failing_requests", Profile::Faults, 0.3, &required);
}

#[test]
fn full_stores() {
    let required = [
        ("batches", 1000),
        ("no space", 50),
        ("heights", 3),
        ("seen: shared nodes", 10),
        ("blocks discarded", 100),
    ];
    campaign("full_stores", Profile::Space, 0.25, &required);
}

#[test]
fn lying_devices() {
    let required = [("batches", 500), ("batches lost by crashes", 10), ("blocks discarded", 100)];
    campaign("lying_devices", Profile::Lies, 0.1, &required);
}

#[test]
fn with_threads_in_the_background() {
    let required = [("batches", 500), ("heights", 3), ("reopened", 10), ("blocks discarded", 100)];
    campaign_with_threads("with_threads_in_the_background", Profile::Crashes, 0.1, &required);
}

#[test]
fn failing_requests_beside_threads() {
    let required = [("batches", 500), ("failures met", 20), ("heights", 3)];
    campaign_with_threads("failing_requests_beside_threads", Profile::Faults, 0.05, &required);
}

#[test]
fn full_stores_beside_threads() {
    // Few of the runs fill the store, those that do often: `full_stores` is where there are many.
    let required = [("batches", 500), ("no space", 1), ("heights", 3)];
    campaign_with_threads("full_stores_beside_threads", Profile::Space, 0.05, &required);
}

/// Without this nothing that the other tests say could be replayed.
#[test]
fn one_seed_is_one_run() {
    for profile in [Profile::Crashes, Profile::Faults, Profile::Space, Profile::Lies] {
        for seed in 1..9 {
            let config = Config::new(seed, profile);
            let (first, second) = (run_seed(&config), run_seed(&config));
            assert_eq!(first.outcome, second.outcome, "{profile:?}, seed {seed}");
            assert!(first.steps == second.steps, "{profile:?}, seed {seed}: other steps");
            assert_eq!(first.asked, second.asked, "{profile:?}, seed {seed}: other requests");
            assert_eq!(first.digest, second.digest, "{profile:?}, seed {seed}: another end");
        }
    }
}
