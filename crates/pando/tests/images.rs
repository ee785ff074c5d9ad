//! Commands on images that are not mounted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use common::{Bench, same};

#[test]
fn trees_go_in_and_come_out_without_a_mount() {
    let b = Bench::new();
    let tree = b.tree("t");
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.ok(&["import", "t", "a.img:/again"]);
    b.fails(&["import", "t", "a.img:/t"], 1, "exists");
    b.fails(&["import", "none", "a.img:/n"], 1, "none");
    b.fails(&["import", "t", "a.img:/no/such/dir"], 1, "no");
    b.fails(&["import", "t", "a.img"], 2, "IMAGE:/PATH");
    b.ok(&["export", "a.img:/t", "out"]);
    same(&tree, b.path("out"));
    b.fails(&["export", "a.img:/t", "out"], 1, "not empty");
    b.fails(&["export", "a.img:/none", "other"], 1, "none");
    b.ok(&["export", "a.img:/again/src/deep", "deep"]);
    same(tree.join("src/deep"), b.path("deep"));
    b.ok(&["export", "a.img:/", "all"]);
    same(&tree, b.path("all/again"));
    b.ok(&["import", "t/src/f1", "a.img:/file"]);
    b.ok(&["export", "a.img:/file", "file"]);
    assert_eq!(fs::read(b.path("file")).unwrap(), b"file 1\n");
    // Everything into the root of a new image.
    b.ok(&["mkfs", "--size", "64M", "b.img"]);
    b.ok(&["import", "t", "b.img:/"]);
    b.ok(&["export", "b.img:/", "root"]);
    same(&tree, b.path("root"));
    let report = b.json(&["check", "--json", "a.img"]);
    assert_eq!((report["version"].as_u64(), report["clean"].as_bool()), (Some(1), Some(true)));
    assert!(report["files"].as_u64().unwrap() > 120);
}

#[test]
fn mkfs_overwrites_only_when_told() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "--label", "grove", "a.img"]);
    assert_eq!(fs::metadata(b.path("a.img")).unwrap().len(), 64 << 20);
    b.fails(&["mkfs", "a.img"], 1, "--force");
    b.sh("echo data > f");
    b.fails(&["mkfs", "--size", "64M", "f"], 1, "--force");
    assert_eq!(fs::read(b.path("f")).unwrap(), b"data\n");
    b.tree("t");
    b.ok(&["import", "t", "a.img:/t"]);
    b.ok(&["mkfs", "--force", "a.img"]);
    assert_eq!(fs::metadata(b.path("a.img")).unwrap().len(), 64 << 20, "an image keeps its size");
    b.fails(&["export", "a.img:/t", "x"], 1, "/t");
    b.fails(&["mkfs", "--size", "1K", "small.img"], 1, "too small");
    b.fails(&["mkfs", "--node-size", "1K", "n.img"], 1, "between");
    b.fails(&["mkfs", "--size", "four", "n.img"], 2, "512K");
    b.fails(&["mkfs", "nowhere/a.img"], 1, "nowhere/a.img");
    assert!(!b.path("small.img").exists() && !b.path("n.img").exists());
}

#[test]
fn stats_and_grow_work_offline() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "--label", "grove", "a.img"]);
    let stats = b.json(&["stats", "--json", "a.img"]);
    assert_eq!((stats["version"].as_u64(), stats["mounted"].as_bool()), (Some(1), Some(false)));
    assert_eq!(stats["label"].as_str(), Some("grove"));
    assert_eq!(stats["size"]["device"].as_u64(), Some(64 << 20));
    b.ok(&["grow", "--size", "128M", "a.img"]);
    assert_eq!(b.json(&["stats", "--json", "a.img"])["size"]["device"].as_u64(), Some(128 << 20));
    // A file that was made larger by other means.
    b.sh("truncate -s 200M a.img");
    b.ok(&["grow", "a.img"]);
    assert_eq!(b.json(&["stats", "--json", "a.img"])["size"]["device"].as_u64(), Some(200 << 20));
    b.fails(&["grow", "--size", "64M", "a.img"], 1, "grow a.img");
    b.fails(&["stats", "none"], 1, "none");
    b.fails(&["grow", "."], 1, "not in a mounted");
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let b = Bench::new();
    b.sh("echo text > f; truncate -s 64M zeros");
    for image in ["f", "zeros"] {
        b.fails(&["stats", image], 1, "mkfs");
        b.fails(&["export", &format!("{image}:/"), "x"], 1, "mkfs");
    }
    b.fails(&["check", "zeros"], 3, "errors");
    b.fails(&["check", "none"], 1, "none");
    b.fails(&["umount", "."], 1, "no file system is mounted");
    b.fails(&["sync", "."], 1, "not in a mounted");
    b.fails(&["rm", "-r", "f"], 1, "not in a mounted");
    assert!(b.path("f").exists());
}

#[test]
fn help_tells_commands_examples_and_exit_codes() {
    let b = Bench::new();
    let help = b.ok(&["--help"]);
    for word in [
        "mkfs",
        "mount",
        "umount",
        "clone",
        "sync",
        "mv",
        "rm",
        "check",
        "import",
        "export",
        "grow",
        "stats",
        "try",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert!(b.ok(&["clone", "--help"]).contains("Example: pando clone"));
    b.fails(&["frobnicate"], 2, "frobnicate");
    b.fails(&["clone", "x"], 2, "DST");
}
