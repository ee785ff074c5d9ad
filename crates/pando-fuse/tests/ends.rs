//! What ends with whom: mounts with their servers, work with those who asked for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::common::World;

/// How long is waited for what is sure to come.
const LONG: Duration = Duration::from_secs(20);

/// Unmounts, when it is dropped, what a test has mounted.
struct Unmounts<'a>(&'a std::path::Path);

impl Drop for Unmounts<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn run(program: &str, args: &[&str], dir: &std::path::Path) {
    let status = Command::new(program).args(args).arg(dir).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

#[test]
fn what_is_mounted_over_a_mount_stays_when_its_server_ends() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount over a mount");
        return;
    }
    let Some(mut world) = World::new() else { return };
    let other = tempfile::tempdir().unwrap();
    // The mount is taken away although a file is open, and something else is mounted there.
    let dir = world.root().to_owned();
    fs::write(dir.join("f"), "x").unwrap();
    let file = File::open(dir.join("f")).unwrap();
    run("umount", &["-l"], &dir);
    run("mount", &["-t", "tmpfs", "none"], &dir);
    let _mounted = Unmounts(&dir);
    fs::write(dir.join("mine"), "mine").unwrap();
    let (done, told) = mpsc::channel();
    let ends = thread::spawn(move || {
        world.end();
        done.send(()).unwrap();
        world
    });
    let ended = told.recv_timeout(LONG);
    assert!(fs::read(dir.join("mine")).is_ok_and(|mine| mine == b"mine"), "what was mounted there is gone");
    drop(file);
    assert!(ended.is_ok(), "the server waits for whoever has a file open in a mount that is gone");
    let _world = ends.join().unwrap();
    drop(other);
}
