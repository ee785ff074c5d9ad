//! How mounts end: closed well, on a device that fails, under a daemon that is killed; and what is no image.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, LET_GO, text};
use pando_fuse::{client, control::ControlRequest, quotas::QuotaAsked};

/// Code of `pando umount` where closing failed.
const NOT_CLOSED: i32 = 6;
/// Code where somebody uses it.
const BUSY: i32 = 4;

fn kill(b: &Bench) {
    let pid = b.daemon();
    b.sh(&format!("kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"));
}

/// With a mounted image of 64 MiB, which can be read as a whole; `None` where there is no FUSE.
fn small() -> Option<Bench> {
    if !crate::common::have_fuse() {
        return None;
    }
    let b = Bench::new();
    b.sh("mkdir m");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.mount();
    Some(b)
}

#[test]
fn a_mount_point_whose_daemon_was_killed_is_mounted_again() {
    let Some(b) = Bench::mounted() else { return };
    b.sh("ln -s m link");
    for (round, dir) in ["m", "link", "./m/", "m"].iter().enumerate() {
        fs::write(b.path("m/f"), format!("{round}")).unwrap();
        b.ok(&["sync", "m"]);
        kill(&b);
        if round % 2 == 1 {
            // Who looks at it meets the error first.
            assert!(fs::read_dir(b.path("m")).is_err());
        }
        let out = b.run(&["mount", "--log-file", "log", "a.img", dir]);
        let said = text(&out.stderr);
        assert!(out.status.success() && said.contains("removed a mount"), "{dir}: {said}");
        assert_eq!(fs::read_to_string(b.path("m/f")).unwrap(), format!("{round}"));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(mounts.matches(b.path("m").to_str().unwrap()).count(), 1, "one mount only");
    // One that lives is left alone.
    b.fails(&["mount", "a.img", "m"], 4, "is mounted on");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn umount_of_a_dead_mount_says_what_that_means() {
    let Some(b) = Bench::mounted() else { return };
    kill(&b);
    let out = b.run(&["umount", "m"]);
    assert!(out.status.success() && text(&out.stderr).contains("had been killed"), "{}", text(&out.stderr));
    b.mount();
    // The word of the dead is not taken for that of the living.
    let out = b.run(&["umount", "m"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
}

#[test]
fn umount_fails_if_the_daemon_is_killed_before_it_has_closed() {
    let Some(b) = Bench::mounted() else { return };
    fs::write(b.path("m/f"), "x").unwrap();
    let pid = b.daemon();
    b.sh(&format!("ls m; kill -STOP {pid}"));
    let umount = b.command(&["umount", "m"]).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while fs::read_to_string("/proc/self/mounts").unwrap().contains(b.path("m").to_str().unwrap()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "not unmounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    b.sh(&format!("kill -9 {pid}"));
    let out = umount.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert!(out.status.code() == Some(NOT_CLOSED) && said.contains("killed"), "{:?}: {said}", out.status);
    b.mount();
    b.umount();
}

/// A container, for instance: its mounts began as a copy of ours, and what is unmounted here stays there.
#[test]
fn umount_and_mount_name_who_keeps_it_in_another_mount_namespace() {
    let Some(b) = Bench::mounted() else { return };
    fs::write(b.path("m/f"), "x").unwrap();
    let mut inside = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(format!("{LET_GO} echo ready; exec sleep 300"))
        .args(["sh".as_ref(), b.path("m").as_os_str()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(inside.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    if ready != "ready\n" {
        inside.wait().unwrap();
        return eprintln!("SKIPPED: no mount namespace may be made here");
    }
    let begin = Instant::now();
    let who = format!("process {} (sleep) still has it mounted", inside.id());
    b.fails(&["umount", "m"], BUSY, &who);
    b.fails(&["mount", "a.img", "m"], BUSY, &who);
    b.fails(&["check", "a.img"], BUSY, &who);
    let patient = begin.elapsed();
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert!(patient < Duration::from_secs(45), "{patient:?}");
    b.ok(&["check", "a.img"]);
    b.mount();
    assert_eq!(fs::read_to_string(b.path("m/f")).unwrap(), "x");
    b.umount();
}

/// A file system on `host`, unmounted when dropped.
struct Host<'a>(&'a Bench);

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path("host")).status();
    }
}

#[test]
fn umount_fails_if_the_device_did_when_the_image_was_closed() {
    if !rustix::process::geteuid().is_root() || !crate::common::have_fuse() {
        return eprintln!("SKIPPED: needs root and FUSE");
    }
    let b = Bench::new();
    // A device that promises more than it can keep: writes fail with EIO when its host is full.
    b.sh("mkdir m host; mount -t tmpfs -o size=24M none host; truncate -s 256M host/disk");
    let _host = Host(&b);
    let Some(loop_device) = b.loop_device("host/disk") else { return };
    let device = &loop_device.path;
    b.ok(&["mkfs", "--node-size", "64K", "--force", device]);
    b.ok(&["mount", "-o", "commit=60,nodiscard", "--log-file", "log", device, "m"]);
    // Some of it is refused when it is written, or only at the end: either way it is not in the image.
    b.sh("head -c 60000000 /dev/urandom > m/f || true; echo y > m/g || true");
    let out = b.run(&["umount", "m"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(NOT_CLOSED), "{said}{}", fs::read_to_string(b.path("log")).unwrap());
    assert!(said.contains("was not closed") && said.contains(device), "{said}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(b.path("m").to_str().unwrap()), "unmounted it is all the same");
}

#[test]
fn what_is_no_image_is_not_damaged() {
    let b = Bench::new();
    b.sh("echo text > text; truncate -s 64M zeros; head -c 1000000 /dev/urandom > noise; : > empty");
    for file in ["text", "zeros", "noise", "empty"] {
        b.fails(&["check", file], 2, "cannot be checked");
    }
    b.fails(&["check", "none"], 1, "none");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.ok(&["check", "a.img"]);
    // What was an image is damaged.
    b.sh("for at in 100 4196; do printf damage | dd of=a.img bs=1 seek=$at conv=notrunc status=none; done");
    b.fails(&["check", "a.img"], 3, "1 error");
}

#[test]
fn a_read_only_mount_writes_nothing_and_can_be_remounted() {
    let Some(b) = small() else { return };
    b.sh("mkdir m/d; echo x > m/d/f; touch -a -d 2001-01-01 m/d/f");
    b.umount();
    let image = || fs::read(b.path("a.img")).unwrap();
    let before = image();
    for options in ["ro", "ro,norecovery", "ro,strictatime"] {
        b.ok(&["mount", "-o", options, "a.img", "m"]);
        assert_eq!(fs::write(b.path("m/g"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
        b.fails(&["clone", "m/d", "m/e"], 1, "ead-only");
        b.fails(&["rm", "-r", "m/d"], 1, "ead-only");
        b.sh("cat m/d/f; ls -R m");
        b.ok(&["du", "m"]);
        b.umount();
        assert!(image() == before, "{options}: the image has changed");
    }
    b.fails(&["mount", "-o", "norecovery", "a.img", "m"], 1, "only with ro");
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a part: only root may remount");
        return;
    }
    b.ok(&["mount", "-o", "ro", "a.img", "m"]);
    b.sh("mount -i -o remount,rw m; echo y > m/g; echo z >> m/d/f");
    b.ok(&["clone", "m/d", "m/e"]);
    b.ok(&["sync", "m"]);
    b.sh("mount -i -o remount,ro m; ! touch m/h || exit 1; mount -i -o remount,rw m; touch m/h");
    b.umount();
    b.ok(&["check", "a.img"]);
    b.mount();
    assert_eq!(fs::read_to_string(b.path("m/e/f")).unwrap(), "x\nz\n");
    assert!(b.path("m/h").exists());
    b.umount();
}

/// What is damaged, or was not closed, may be looked at before anything is recovered, however the image is protected.
#[test]
fn commands_that_read_an_image_leave_every_byte_of_it_as_it_was() {
    let Some(b) = small() else { return };
    b.sh("mkdir m/d; echo x > m/d/f");
    b.ok(&["sync", "m"]);
    b.sh(&format!("kill -9 {}", b.daemon()));
    b.run(&["umount", "m"]); // which fails, or says that the daemon was dead
    let image = || fs::read(b.path("a.img")).unwrap();
    let before = image();
    assert_ne!(b.json(&["info", "--json", "a.img"])["state"].as_str(), Some("closed"), "vacuous");
    for args in [
        &["export", "a.img:/d", "out"][..],
        &["ls", "a.img:/d"],
        &["cat", "a.img:/d/f"],
        &["du", "a.img:/d"],
        &["check", "a.img"],
        &["stats", "a.img"],
        &["inspect", "a.img"],
        &["backup", "a.img", "backup"],
    ] {
        b.ok(args);
        assert!(image() == before, "{args:?}: the image has changed");
    }
    assert_eq!(b.sh("cat out/f"), "x\n");
}

/// What only root may ask changes nothing in a mount that may not be written to, by whatever program it is asked.
#[test]
fn no_request_of_root_changes_a_read_only_mount() {
    if !rustix::process::geteuid().is_root() || !crate::common::have_fuse() {
        return eprintln!("SKIPPED: needs root and FUSE");
    }
    let b = Bench::new();
    b.sh("mkdir m");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.mount();
    b.sh("mkdir m/d; echo x > m/d/f; touch -a -d 2001-01-01 m/d/f");
    b.ok(&["snapshot", "create", "m/d", "s"]);
    b.umount();
    let image = || fs::read(b.path("a.img")).unwrap();
    let before = image();
    b.ok(&["mount", "-o", "ro", "a.img", "m"]);
    b.fails(&["quota", "set", "m/d", "1G"], 1, "ead-only");
    for dir in ["m/d", "m/d/.snapshots/s"] {
        for limit in [Some(1 << 30), None] {
            let dir = fs::File::open(b.path(dir)).unwrap();
            let token = client::token(&dir).unwrap();
            let asked = QuotaAsked::Set(limit);
            let told = client::piece(&dir, &ControlRequest::Quota { token, asked });
            assert!(told.is_err(), "{limit:?}: {told:?}");
        }
    }
    // Looking is none of it.
    assert_eq!(b.ok(&["quota", "list", "-H", "m"]), "");
    b.ok(&["snapshot", "orphans", "m"]);
    b.ok(&["snapshot", "policies", "m"]);
    b.sh("cat m/d/f");
    b.umount();
    assert!(image() == before, "the image has changed");
}

/// A daemon closes its image for a moment after umount(8) has returned: as all other commands, `mkfs` waits for it.
#[test]
fn mkfs_waits_until_an_image_is_closed() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    let daemon = fs::File::open(b.path("a.img")).unwrap();
    daemon.lock().unwrap();
    let begun = Instant::now();
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop(daemon);
    });
    b.ok(&["mkfs", "--force", "--size", "64M", "a.img"]);
    assert!(begun.elapsed() >= Duration::from_millis(500), "it was not locked");
    closing.join().unwrap();
}
