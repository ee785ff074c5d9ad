//! Requests to the image past the page cache of the host: what memory is used, how long the requests are, and what
//! happens where that cannot be.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, path::Path, process::Command};

use crate::common::{Bench, has, have_fuse, text};

/// Data that is written and read: bytes.
const DATA: usize = 48 << 20;

/// An image that is not mounted yet.
fn image(size: &str) -> Bench {
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", size, "a.img"]);
    b
}

/// Bytes that do not compress.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..DATA / 4).flat_map(|_| next().to_le_bytes()).collect()
}

/// Bytes of a file in the page cache.
fn cached(path: &Path) -> u64 {
    let out = Command::new("fincore").args(["-n", "-b", "-o", "RES"]).arg(path).output().unwrap();
    text(&out.stdout).trim().parse().unwrap()
}

#[test]
fn the_image_is_not_in_the_page_cache_and_requests_are_long() {
    if !have_fuse() || !has("fincore") {
        return;
    }
    let b = image("1G");
    let data = noise();
    let device = |what: &str| b.json(&["stats", "--json", "m"])["device"][what].clone();
    for option in ["direct_io=auto", "direct_io=off"] {
        let direct = option != "direct_io=off";
        b.ok(&["mount", "--log-file", "log", "-o", option, "a.img", "m"]);
        if direct && device("direct") != true {
            eprintln!("SKIPPED: what holds temporary files takes no direct requests");
            return;
        }
        assert_eq!(device("direct"), direct);
        fs::write(b.path("m/f"), &data).unwrap();
        b.ok(&["sync", "m"]);
        let mean = device("write_bytes").as_u64().unwrap() / device("writes").as_u64().unwrap();
        b.umount();
        b.ok(&["mount", "--log-file", "log", "-o", option, "a.img", "m"]);
        let opening = device("read_bytes").as_u64().unwrap();
        assert!(fs::read(b.path("m/f")).unwrap() == data, "{option}: not what was written");
        let (bytes, reads) =
            (device("read_bytes").as_u64().unwrap() - opening, device("reads").as_u64().unwrap());
        let cached = cached(&b.path("a.img"));
        println!("{option}: mean write {mean}, {bytes} read by {reads} requests, {cached} cached");
        if direct {
            assert!(cached <= 1 << 20, "{cached} bytes of the image are in the page cache");
            assert!(mean >= 256 << 10, "a write is of {mean} bytes on average");
            assert!(bytes / reads >= 128 << 10, "{bytes} bytes in {reads} requests");
            // Where two requests of the kernel meet the same stretch, both may read it, 1 MiB at most.
            assert!(bytes <= DATA as u64 / 20 * 21 + (2 << 20), "{bytes} bytes read");
        } else {
            assert!(cached >= DATA as u64, "only {cached} bytes are: this test sees nothing");
        }
        b.umount();
        b.ok(&["check", "a.img"]);
    }
}

/// ramfs takes none.
#[test]
fn where_direct_requests_cannot_be_a_mount_says_so_and_goes_without() {
    if !have_fuse() {
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    fs::create_dir(b.path("ram")).unwrap();
    let made = Command::new("mount").args(["-t", "ramfs", "none"]).arg(b.path("ram")).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no ramfs can be mounted");
        return;
    }
    b.ok(&["mkfs", "--size", "64M", "ram/a.img"]);
    b.fails(
        &["mount", "--log-file", "log", "-o", "direct_io=on", "ram/a.img", "m"],
        1,
        "takes no direct requests",
    );
    b.ok(&["mount", "--log-file", "log", "ram/a.img", "m"]);
    assert_eq!(b.json(&["stats", "--json", "m"])["device"]["direct"], false);
    let log = fs::read_to_string(b.path("log")).unwrap();
    assert!(log.contains("takes no direct requests"), "{log}");
    fs::write(b.path("m/f"), "x").unwrap();
    b.umount();
    b.sh("umount ram");
}
