//! Mounts of ordinary users that carry the type and the name of an image, but are none of it.
//!
//! Only root can set these scenes; for others the tests are skipped, and say so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use crate::common::Bench;

/// An ordinary user.
const ANN: u32 = 41_021;

/// A FUSE server of hers that never answers, mounted on `dir` as if it were the image `source`.
struct Pose<'a> {
    bench: &'a Bench,
    dir: &'a str,
    server: Child,
}

impl<'a> Pose<'a> {
    fn new(bench: &'a Bench, source: &str, dir: &'a str) -> Self {
        let options = format!("fd=3,rootmode=40000,user_id={ANN},group_id={ANN}");
        let source = bench.path(source);
        let line = format!(
            "mkdir -p {dir}; exec 3<>/dev/fuse; mount -i -t fuse.pando -o {options} {} {dir}; echo ready; read end",
            source.display()
        );
        let mut server = Command::new("sh")
            .args(["-ec", &line])
            .current_dir(bench.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "the scene was not set");
        Self { bench, dir, server }
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.bench.path(self.dir).to_str())
    }
}

impl Drop for Pose<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.bench.path(self.dir)).status();
        let _ = self.server.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        let _ = self.server.wait();
    }
}

fn scene() -> Option<Bench> {
    if !rustix::process::geteuid().is_root() || !crate::common::have_fuse() {
        eprintln!("SKIPPED: needs root and FUSE");
        return None;
    }
    let b = Bench::new();
    b.sh("mkdir m");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.sh("ln a.img other.img");
    Some(b)
}

#[test]
fn the_mount_of_an_ordinary_user_is_not_taken_for_that_of_an_image_of_roots() {
    let Some(b) = scene() else { return };
    for source in ["a.img", "other.img"] {
        let pose = Pose::new(&b, source, "posed");
        b.ok(&["mkfs", "--force", "--size", "64M", "a.img"]);
        b.mount();
        b.sh("mkdir m/d; echo x > m/d/f");
        b.ok(&["snapshot", "create", "m/d", "s"]);
        // The newest mount is hers.
        drop(pose);
        let pose = Pose::new(&b, source, "posed");
        b.sh("mkdir -p v");
        b.ok(&["mount", "-o", "snapshot=d@s", "a.img", "v"]);
        assert_eq!(b.sh("cat v/f; umount v"), "x\n");
        b.fails(&["mkfs", "--force", "a.img"], 4, "/m; unmount it first");
        b.umount();
        assert!(pose.is_mounted(), "{source}: hers was unmounted");
        b.ok(&["check", "a.img"]);
    }
}

/// Whoever owns the image may mount it, and that mount counts for root too.
#[test]
fn the_mount_of_the_owner_of_an_image_counts() {
    let Some(b) = scene() else { return };
    b.sh(&format!("chown {ANN} a.img"));
    let _pose = Pose::new(&b, "a.img", "owned");
    b.fails(&["mkfs", "--force", "a.img"], 4, "is mounted on");
}
