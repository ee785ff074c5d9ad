//! `pando try` on small trees, and its clean-up.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::common::Bench;

#[test]
fn it_goes_the_whole_way_mounted_and_by_the_library() {
    let b = Bench::new();
    b.tree("t");
    fs::create_dir(b.path("work")).unwrap();
    let ways: &[&[&str]] =
        if crate::common::have_fuse() { &[&[], &["--no-mount"]] } else { &[&["--no-mount"]] };
    for way in ways {
        let out = b.ok(&[&["try", "--work-dir", "work", "t"], *way].concat());
        for line in ["pando clone", "cp -a --reflink=auto", "space: clone", "compared again: as they must be"]
        {
            assert!(out.contains(line), "{line}: {out}");
        }
        assert_eq!(fs::read_dir(b.path("work")).unwrap().count(), 0, "something was left");
    }
    b.fails(&["try", "--work-dir", "t/src", "t"], 1, "--work-dir");
    b.fails(&["try", "none"], 1, "none");
}

#[test]
fn it_cleans_up_when_interrupted() {
    let b = Bench::new();
    b.sh(
        "mkdir work t; for i in $(seq 3000); do echo $i > t/$i; done; head -c 30000000 /dev/urandom > t/big",
    );
    for (round, wait) in [5u64, 50, 150, 400].into_iter().enumerate() {
        let mut command = b.interruptible(&["try", "--work-dir", "work", "t"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while fs::read_dir(b.path("work")).unwrap().count() == 0 && child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(wait));
        let signal = if round % 2 == 0 { "INT" } else { "TERM" };
        b.sh(&format!("kill -{signal} {} 2>/dev/null || true", child.id()));
        let out = child.wait_with_output().unwrap();
        assert!(
            matches!(out.status.code(), Some(0 | 1)),
            "{:?} {}",
            out.status,
            crate::common::text(&out.stderr)
        );
        assert_eq!(fs::read_dir(b.path("work")).unwrap().count(), 0, "{}", crate::common::text(&out.stderr));
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(b.path("work").to_str().unwrap()), "a mount was left");
    }
}
