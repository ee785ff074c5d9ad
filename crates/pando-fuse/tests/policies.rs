//! Policies for snapshots, beside others who use the mount.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use pando_fs::{Authority, Caller, NewSnapshot, SnapshotInfo, StoredPolicy};
use pando_fuse::{Settings, asked::Asked, tool};

use crate::common::World;

/// Unmounts a directory, whatever happens.
struct Bound<'a>(&'a Path);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// A policy looked at the mounts once, before it began, and who mounted a snapshot meanwhile got ESTALE there.
#[test]
fn a_snapshot_that_is_mounted_while_a_policy_deletes_others_stays() {
    /// Snapshots, a count: their deletion takes longer than a mount.
    const SNAPSHOTS: usize = 3000;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount a snapshot");
        return;
    }
    let Some(w) = World::with(Settings::default()) else { return };
    fs::create_dir(w.path("p")).unwrap();
    fs::write(w.path("p/f"), "one").unwrap();
    let dir = w.fs().resolve("/p".as_ref()).unwrap().ino;
    let me = Caller::root();
    for n in 0..SNAPSHOTS {
        let name = Some(format!("s{n}").into());
        let new = NewSnapshot { name, valid_for_secs: Some(1), ..NewSnapshot::default() };
        w.fs().snapshot(Authority::Caller(&me), dir, &new).unwrap();
    }
    std::thread::sleep(Duration::from_millis(2100));
    let left = || w.fs().snapshots(dir).unwrap();
    let until = |what: &str, done: &dyn Fn(&[SnapshotInfo]) -> bool| {
        let begin = Instant::now();
        while !done(&left()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {} are left", left().len());
        }
    };
    let v = tempfile::tempdir().unwrap();
    let policy = StoredPolicy { every_secs: 86_400, ..StoredPolicy::default() };
    tool::snapshot(&w.path("p"), Asked::SetPolicy(Some(policy))).unwrap();
    until("none is deleted", &|all| all.len() < SNAPSHOTS);
    let last = w.path(&format!("p/.snapshots/s{}", SNAPSHOTS - 1));
    let mounted = Command::new("mount").arg("--bind").arg(&last).arg(v.path()).status().unwrap();
    let bound = Bound(v.path());
    assert!(mounted.success() && left().len() > 2, "{} are left", left().len());
    until("the others stay", &|all| all.len() <= 2);
    assert_eq!(fs::read_to_string(v.path().join("f")).unwrap(), "one");
    // It goes once nobody has it mounted, and not a minute later.
    drop(bound);
    let begin = Instant::now();
    until("it stays", &|all| all.len() == 1);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    w.fs().forget(dir, 1);
}
