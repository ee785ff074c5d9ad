//! Every request fails once: the first, the second, the third... until the work gets through.
//!
//! The loop that SQLite's tests made known. Where one request fails, or all from one on, every third is tried, and each
//! with `PANDO_FULL=1`. After each failure the power goes,
//! and what recovery finds must be a prefix of what was done, with everything
//! that was synced, and clean to the checker. `docs/testing.md` says more.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::model::{
    campaign::{Watchdog, variable},
    config::{Config, Profile},
    rng::Rng,
    shrink::{Run, run_steps},
    step::{How, OpenWith, Step},
};
use bytes::Bytes;
use pando_db::{
    Db, Op,
    device::{FailMode, SimDevice},
    patch,
};

const WITH: OpenWith = OpenWith { memtable: 1024, cache: 32 << 10, abundant: Some(500) };

fn config(profile: Profile) -> Config {
    let (device_size, node_size) =
        if profile == Profile::Space { (4 << 20, 16 << 10) } else { (64 << 20, 4096) };
    Config { device_size, node_size, log_size: 64 << 10, first: WITH, ..Config::new(1, profile) }
}

/// A bit of everything, in an order in which each part builds on the ones before.
fn workload() -> Vec<Step> {
    let put = |key: String, len: usize| Op::Put(key.into(), vec![len as u8; len].into());
    let tree = |root: &str, files: usize, len: usize| {
        let file = |i: usize| put(format!("{root}/d{}/f{i:02}", i % 4), len + i);
        (0..files).map(|i| Step::Write(vec![file(i), put(format!("{root}/log"), i)])).collect::<Vec<_>>()
    };
    let text = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let clone = |src, dst| Op::ClonePrefix(text(src), text(dst));
    let rename = |src, dst| Op::RenamePrefix(text(src), text(dst));
    let remove =
        |prefix: &str| Op::DeleteRange(text(prefix), crate::model::oracle::successor(prefix.as_bytes()));
    let mut steps = tree("/a", 40, 400);
    steps.push(Step::Sync);
    let add = |prefix, n| Op::UpsertPrefix(text(prefix), crate::model::merge::add(n));
    steps.push(Step::Write(vec![add("/a/d1", 3)]));
    steps.push(Step::Write(vec![clone("/a", "/b"), add("/b", 7)]));
    steps.extend(tree("/b", 16, 300));
    steps.push(Step::Checkpoint);
    steps.push(Step::Snapshot(0));
    steps.push(Step::Write(vec![clone("/b/d1", "/c"), rename("/a/d2", "/e"), put("/new".into(), 5000)]));
    steps.push(Step::Write(vec![Op::Upsert(text("/c/f01"), patch::write(100, b"patched"))]));
    steps.extend(tree("/c", 20, 500));
    steps.push(Step::Sync);
    steps.push(Step::Write(vec![remove("/a")]));
    steps.push(Step::Write(vec![rename("/b", "/a"), add("", 1)]));
    steps.push(Step::Checkpoint);
    steps.extend(tree("/a", 20, 350));
    steps.push(Step::CompareSnapshot(0));
    steps.push(Step::Write(vec![remove("/e"), clone("/a", "/e")]));
    steps.push(Step::Verify);
    steps.push(Step::Sync);
    steps
}

/// A run that must pass; says which number to replay if it does not.
fn passes(test: &str, n: u64, config: &Config, steps: &[Step], watchdog: &Watchdog) -> Run {
    watchdog.begin(n);
    let run = run_steps(config, steps);
    watchdog.end();
    if let Err(error) = &run.outcome {
        let at = run.steps.len().saturating_sub(1);
        panic!(
            "number {n} fails at step {at}: {error}\n\nreplay: PANDO_SEED={n} cargo test -p pando-db --test all fail_nth::{test} -- --nocapture"
        );
    }
    run
}

/// The numbers to try: one, or all below `end`.
fn numbers(end: u64) -> std::ops::Range<u64> {
    match variable("PANDO_SEED") {
        Some(n) => n..n + 1,
        None => 0..end,
    }
}

/// Of some numbers every third, beginning with the `first`; all of them with `PANDO_FULL`, or if there is only one.
fn thinned(numbers: std::ops::Range<u64>, first: u64) -> impl Iterator<Item = u64> {
    let all = std::env::var_os("PANDO_FULL").is_some() || numbers.end - numbers.start == 1;
    let (first, step) = if all { (0, 1) } else { (first, 3) };
    numbers.skip(first as usize).step_by(step)
}

fn fail_each(test: &str, onwards: bool) {
    let config = config(Profile::Faults);
    let watchdog = Watchdog::new(format!("--test all fail_nth::{test}"));
    let untouched = passes(test, 0, &config, &workload(), &watchdog);
    assert!(untouched.requests > 150, "only {} requests", untouched.requests);
    // What is tried on the dead device at the end of every run fails as well.
    let at_the_end = untouched.coverage.get("failures met");
    let mut met = 0;
    for n in thinned(numbers(untouched.requests), u64::from(onwards)) {
        let steps = [&[Step::Fault { after: n, onwards }][..], &workload()].concat();
        let failures = passes(test, n, &config, &steps, &watchdog).coverage.get("failures met");
        met += u64::from(failures > at_the_end);
    }
    println!("{test}: {} requests, {met} failures noticed", untouched.requests);
    // Where it goes unnoticed, it was a read ahead that is tried again, or it hit nobody's operation.
    assert!(met > 0);
}

#[test]
fn one_request_fails() {
    fail_each("one_request_fails", false);
}

#[test]
fn the_device_fails_for_good() {
    fail_each("the_device_fails_for_good", true);
}

/// The power fails again at each request of the recovery.
#[test]
fn recovery_is_interrupted() {
    let test = "recovery_is_interrupted";
    let config = config(Profile::Crashes);
    let watchdog = Watchdog::new(format!("--test all fail_nth::{test}"));
    for n in numbers(10_000) {
        // Abandoned after the work, not closed: there is a log to replay, and nodes to write for what it says.
        let mut steps = workload();
        steps.extend(more().take(8));
        // Little, so that these do not all lead to a checkpoint, which would leave nothing to replay.
        let last = |i: usize| Step::Write(vec![Op::Put(format!("/last/{i}").into(), vec![1; 10].into())]);
        steps.extend((0..3).map(last));
        steps.push(Step::Sync);
        steps.push(Step::Reopen { how: How::CrashInRecovery(n), with: WITH });
        let coverage = passes(test, n, &config, &steps, &watchdog).coverage;
        if coverage.get("recoveries that were fast enough") > 0 {
            assert!(n > 10 || variable::<u64>("PANDO_SEED").is_some(), "a recovery of {n} requests?");
            println!("{test}: {n} requests");
            return;
        }
    }
}

/// Values enough to fill the disk under the store, whatever it keeps for itself (`db/budget/space.rs`).
fn more() -> impl Iterator<Item = Step> {
    let mut rng = Rng(1);
    (0..100).map(move |i| Step::Write(vec![Op::Put(format!("/more/{i:02}").into(), rng.noise(3000).into())]))
}

/// The disk under the store is full after this many more blocks: before the end, and for each
/// number at another step.
#[test]
fn the_disk_fills_up() {
    let test = "the_disk_fills_up";
    let config = config(Profile::Space);
    let watchdog = Watchdog::new(format!("--test all fail_nth::{test}"));
    let mut refused = 0;
    for n in numbers(120) {
        let mut steps = workload();
        steps.insert(1, Step::LimitSpace(n * 4096));
        steps.extend(more());
        steps.push(Step::MakeRoom);
        refused += passes(test, n, &config, &steps, &watchdog).coverage.get("no space").min(1);
    }
    println!("{test}: {refused} full disks");
    assert!(refused > 0 || variable::<u64>("PANDO_SEED").is_some(), "the disk never was full");
}

/// A store whose creation failed is none, or an empty one.
#[test]
fn creation_is_interrupted() {
    let config = config(Profile::Faults);
    for n in numbers(1000) {
        let device = Arc::new(SimDevice::new(config.device_size, n));
        device.set_fail_at(Some(n), FailMode::Onwards);
        let options = || config.options(&WITH);
        let created = Db::create(device.clone(), &config.create_options(), &options()).is_ok();
        device.crash();
        let opened = Db::open(device.reopen(), options());
        match opened {
            Ok(db) => assert!(db.range(&[], None).next().is_none(), "number {n}: not empty"),
            Err(error) => assert!(!created, "number {n}: created, but {error}"),
        }
        if created {
            assert!(n > 3);
            return;
        }
    }
}
