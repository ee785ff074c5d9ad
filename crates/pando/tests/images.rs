//! Commands on images that are not mounted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fs, os::unix::fs::FileExt};

use crate::common::{Bench, same, text};

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
fn the_check_of_nested_directories_costs_what_their_depth_costs() {
    let b = Bench::new();
    let mut times = Vec::new();
    for depth in [450, 1800] {
        // One after the other: the whole path is longer than the kernel takes.
        b.sh(&format!(
            "mkdir n{depth} && cd n{depth} && for i in $(seq {depth}); do mkdir d && cd -P d; done && echo x > f"
        ));
        let image = format!("{depth}.img");
        b.ok(&["mkfs", "--size", "256M", &image]);
        b.ok(&["import", &format!("n{depth}"), &format!("{image}:/n")]);
        // Of several runs the fastest: the machine may be busy.
        let runs = (0..3).map(|_| {
            let start = std::time::Instant::now();
            let report = b.json(&["check", "--json", &image]);
            let took = start.elapsed().as_secs_f64();
            assert_eq!(report["clean"].as_bool(), Some(true));
            assert_eq!(report["directories"].as_u64(), Some(depth + 2));
            took
        });
        times.push(runs.fold(f64::MAX, f64::min));
    }
    println!("check: {:.2} s for 450 nested directories, {:.2} s for 1,800", times[0], times[1]);
    assert!(times[1] < 20.0 * times[0] + 1.0, "{times:?}");
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
fn a_store_smaller_than_its_device_has_its_own_size() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    let size = |of: &str| {
        let stats = b.json(&["stats", "--json", of]);
        (stats["size"]["device"].as_u64().unwrap(), stats["size"]["used"].as_u64().unwrap())
    };
    let before = size("a.img");
    b.sh("truncate -s 1G a.img");
    assert_eq!(size("a.img"), before);
    let Some(loop_device) = b.loop_device("a.img") else { return };
    let device = loop_device.path.as_str();
    assert!(b.ok(&["mkfs", "--force", "--size", "96M", device]).contains("96.0 MiB"));
    assert_eq!(size(device).0, 96 << 20);
    b.fails(&["mkfs", "--force", "--size", "2G", device], 1, "fewer than");
    b.ok(&["grow", device]);
    assert_eq!(size(device).0, 1 << 30);
    b.ok(&["mkfs", "--force", device]);
    assert_eq!(size(device).0, 1 << 30);
    b.fails(&["mkfs", "--force", "--size", "1M", device], 1, "too small");
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let b = Bench::new();
    b.sh("echo text > f; truncate -s 64M zeros");
    for image in ["f", "zeros"] {
        b.fails(&["stats", image], 1, "mkfs");
        b.fails(&["export", &format!("{image}:/"), "x"], 1, "mkfs");
    }
    b.fails(&["check", "zeros"], 2, "no Pando store");
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
        "inspect",
        "du",
        "backup",
        "restore",
        "try",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word}");
    }
    assert!(b.ok(&["clone", "--help"]).contains("pando clone /mnt"));
    b.fails(&["frobnicate"], 2, "frobnicate");
    b.fails(&["clone", "x"], 2, "DST");
}

#[test]
fn a_flipped_bit_is_found_and_its_file_is_named() {
    let b = Bench::new();
    let tree = b.tree("t");
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.ok(&["check", "a.img"]);
    // Random bytes do not compress, so they are in the image as they are.
    let content = fs::read(tree.join("src/deep/large")).unwrap();
    let needle = &content[1_000_000..1_000_032];
    let mut image = fs::read(b.path("a.img")).unwrap();
    let places: Vec<usize> =
        image.windows(needle.len()).enumerate().filter(|(_, w)| *w == needle).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the content is not in the image");
    for at in places {
        image[at + 7] ^= 1;
    }
    fs::write(b.path("a.img"), image).unwrap();
    let out = b.run(&["check", "--json", "a.img"]);
    assert_eq!(out.status.code(), Some(3), "{}", crate::common::text(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["clean"].as_bool(), Some(false));
    let named = |e: &serde_json::Value| e["path"].as_str().is_some_and(|p| p.contains("/t/src/deep/large"));
    assert!(report["errors"].as_array().unwrap().iter().any(named), "{report}");
    // What is not hit can still be read.
    b.ok(&["export", "a.img:/t/src/f1", "f1"]);
    assert_eq!(fs::read(b.path("f1")).unwrap(), b"file 1\n");
}

#[test]
fn inspect_shows_the_nodes_of_an_image() {
    let b = Bench::new();
    b.tree("t");
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let seen = b.json(&["inspect", "--json", "a.img"]);
    assert_eq!(seen["version"].as_u64(), Some(1));
    let nodes = seen["nodes"].as_array().unwrap();
    assert!(nodes.len() > 5 && nodes.len() as u64 <= seen["nodes_in_all"].as_u64().unwrap());
    assert_eq!(nodes[0]["id"], seen["root"]);
    assert_eq!(seen["omitted"].as_u64(), Some(0));
    // Whole keys of nodes deep below are shown as paths.
    let text = b.ok(&["inspect", "--keys", "a.img"]);
    for name in ["meta:/t/src/f17 = ", "data:/t/src/deep/large[3] = ", "meta:/t/link = ", "system:F = "] {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert_eq!(text.matches(&format!("node {}: height", nodes[1]["id"])).count(), 1, "shown once");
    // Parts of it: what is left out is counted.
    let few = b.json(&["inspect", "--json", "--limit", "3", "a.img"]);
    assert_eq!(few["nodes"].as_array().unwrap().len(), 3);
    assert_eq!(few["omitted"].as_u64().unwrap() as usize, nodes.len() - 3);
    let more = format!("... and {} more nodes", nodes.len() - 3);
    assert!(b.ok(&["inspect", "--limit", "3", "a.img"]).contains(&more));
    assert!(b.ok(&["inspect", "--limit", "3", "--svg", "-", "a.img"]).contains(&more));
    let top = b.json(&["inspect", "--json", "--depth", "0", "a.img"]);
    assert_eq!(top["nodes"].as_array().unwrap().len(), 1);
    let leaf = nodes.iter().find(|n| n["height"].as_u64() == Some(0)).unwrap()["id"].to_string();
    let alone = b.json(&["inspect", "--json", "--node", &leaf, "a.img"]);
    assert_eq!((alone["nodes"].as_array().unwrap().len(), alone["start"].to_string()), (1, leaf));
    b.fails(&["inspect", "--node", "99999999", "a.img"], 1, "99999999");
    b.fails(&["inspect", "none"], 1, "none");
    b.fails(&["inspect", "t/src/f1"], 1, "cannot be opened");
    b.fails(&["inspect", "--json", "--svg", "x", "a.img"], 2, "--svg");
    b.ok(&["inspect", "--svg", "p.svg", "a.img"]);
    let drawn = fs::read_to_string(b.path("p.svg")).unwrap();
    // Where there is little room, a node has no text.
    let texts = drawn.matches("<text").count();
    assert!(drawn.starts_with("<svg ") && texts > nodes.len() / 2, "{texts} of {}", nodes.len());
    if crate::common::has("xmllint") {
        b.sh("xmllint --noout p.svg");
    }
}

#[test]
fn inspect_shows_damage_and_goes_on_beside_it() {
    let b = Bench::new();
    // Many small files, so that pages lie right behind the headers of their nodes.
    b.sh("mkdir t; for i in $(seq 1500); do echo \"text $i\" > t/file-$i; done");
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let seen = b.json(&["inspect", "--json", "a.img"]);
    let nodes = seen["nodes"].as_array().unwrap();
    let leaves: Vec<_> = nodes.iter().filter(|n| n["height"].as_u64() == Some(0)).collect();
    let image = fs::File::options().read(true).write(true).open(b.path("a.img")).unwrap();
    let flip = |at: usize, bits: u8| {
        let mut byte = [0];
        image.read_exact_at(&mut byte, at as u64).unwrap();
        image.write_all_at(&[byte[0] ^ bits], at as u64).unwrap();
    };
    let at = |node: &serde_json::Value| node["extents"][0]["offset"].as_u64().unwrap() as usize;
    // The header of one leaf, and a page of another.
    let other = leaves[1];
    let two = [at(leaves[0]) + 9, at(other) + other["header_bytes"].as_u64().unwrap() as usize + 5];
    two.iter().for_each(|at| flip(*at, 0x10));
    let out = b.run(&["inspect", "--json", "--keys", "a.img"]);
    assert_eq!(out.status.code(), Some(3), "{}", crate::common::text(&out.stderr));
    let now: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(now["nodes"].as_array().unwrap().len(), nodes.len());
    let broken = now["nodes"].as_array().unwrap().iter().filter(|n| n["error"].is_string());
    assert_eq!(broken.map(|n| &n["id"]).collect::<Vec<_>>(), [&leaves[0]["id"]]);
    let text = b.run(&["inspect", "--keys", "a.img"]);
    assert_eq!(crate::common::text(&text.stdout).matches("CANNOT BE READ").count(), 2);
    b.fails(&["inspect", "--svg", "p.svg", "a.img"], 3, "cannot be read");
    assert!(fs::read_to_string(b.path("p.svg")).unwrap().contains("cannot be read"));
    // Bits anywhere: whatever it says, it says it without a panic.
    two.iter().for_each(|at| flip(*at, 0x10));
    let used: Vec<usize> = nodes.iter().map(at).chain([0, 4096, 8192]).collect();
    for (i, at) in used.into_iter().enumerate() {
        flip(at + i * 7 % 200, 1 << (i % 8));
        let out = b.run(&["inspect", "--keys", "a.img"]);
        flip(at + i * 7 % 200, 1 << (i % 8));
        assert!(matches!(out.status.code(), Some(0 | 1 | 3)), "{at}: {}", crate::common::text(&out.stderr));
        assert!(
            !crate::common::text(&out.stderr).contains("panicked"),
            "{at}: {}",
            crate::common::text(&out.stderr)
        );
    }
}

#[test]
fn backup_and_restore_make_the_same_tree() {
    let b = Bench::new();
    let tree = b.tree("t");
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "--label", "grove", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let said = b.ok(&["backup", "a.img", "a.backup"]);
    assert!(said.contains("pairs"), "{said}");
    b.fails(&["backup", "a.img", "a.backup"], 1, "--force");
    b.ok(&["backup", "--force", "a.img", "a.backup"]);
    b.ok(&["restore", "--size", "64M", "a.backup", "b.img"]);
    b.ok(&["export", "b.img:/t", "out"]);
    same(&tree, b.path("out"));
    b.ok(&["check", "b.img"]);
    let stats = b.json(&["stats", "--json", "b.img"]);
    assert_eq!(stats["label"].as_str(), Some("grove"));
    assert_eq!(stats["size"]["device"].as_u64(), Some(64 << 20));
    assert_eq!(stats["nodes"]["target_size"].as_u64(), Some(64 << 10));
    // Through a pipe, and nothing is overwritten unasked.
    let pando = env!("CARGO_BIN_EXE_pando");
    b.sh(&format!("{pando} backup a.img - | {pando} restore --size 64M - c.img"));
    b.ok(&["export", "c.img:/t/src", "src"]);
    same(tree.join("src"), b.path("src"));
    b.fails(&["restore", "--size", "64M", "a.backup", "c.img"], 1, "--force");
    b.ok(&["restore", "--force", "a.backup", "c.img"]);
    // What is no backup, or not a whole one, leaves nothing behind.
    b.sh("head -c 1000000 a.backup > cut; cp a.backup bent; printf damage | dd of=bent bs=1 seek=500000 conv=notrunc status=none");
    b.fails(&["restore", "--size", "64M", "cut", "d.img"], 1, "ends in the middle");
    b.fails(&["restore", "--size", "64M", "bent", "d.img"], 1, "checksum");
    b.fails(&["restore", "--size", "64M", "t/src/f1", "d.img"], 1, "backup");
    b.fails(&["restore", "--size", "4M", "--log-size", "1M", "a.backup", "d.img"], 1, "no space");
    assert!(!b.path("d.img").exists());
    b.fails(&["restore", "--force", "cut", "c.img"], 1, "ends in the middle");
    b.fails(&["stats", "c.img"], 1, "mkfs");
    b.fails(&["restore", "none", "d.img"], 1, "none");
    b.fails(&["backup", "none", "x"], 1, "none");
    b.fails(&["backup", "t/src/f1", "x"], 1, "cannot be opened");
    assert!(!b.path("x").exists());
}

#[test]
fn a_backup_that_fails_leaves_the_one_before_and_never_touches_the_image() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let b = Bench::new();
    b.tree("t");
    b.ok(&["mkfs", "--size", "64M", "--node-size", "64K", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.ok(&["backup", "a.img", "a.backup"]);
    let before = fs::read(b.path("a.backup")).unwrap();
    let here = || b.sh("ls -A");
    let files = here();
    // The file may be no longer than a part of what is written, as where a disk is full; nor does a signal end it.
    let pando = env!("CARGO_BIN_EXE_pando");
    b.sh(&format!(
        "trap '' XFSZ; ulimit -f 1000; ! {pando} backup --force a.img a.backup 2> said || exit 1
         grep -q 'too large' said"
    ));
    fs::remove_file(b.path("said")).unwrap();
    assert!(fs::read(b.path("a.backup")).is_ok_and(|now| now == before), "the last good backup is gone");
    assert_eq!(here(), files);

    // The image by any of its names.
    b.sh("ln a.img hard; ln -s a.img soft");
    let image = fs::read(b.path("a.img")).unwrap();
    for name in ["a.img", "hard", "soft", "/proc/self/cwd/a.img"] {
        b.fails(&["backup", "--force", "a.img", name], 1, "is the image itself");
        assert!(fs::read(b.path("a.img")).is_ok_and(|now| now == image), "{name}");
    }
    b.sh("test -e hard; test -L soft; rm hard soft");

    // One that takes the place of another has its mode and owner, and its links stay links.
    b.sh("echo old > old; chmod 604 old; ln -s old link");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(b.path("old"), Some(7), Some(8)).unwrap();
    }
    let owner = |meta: &fs::Metadata| (meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777);
    let was = owner(&fs::metadata(b.path("old")).unwrap());
    b.ok(&["backup", "--force", "a.img", "link"]);
    assert_eq!(owner(&fs::metadata(b.path("old")).unwrap()), was);
    assert!(fs::read(b.path("old")).is_ok_and(|now| now == before) && b.path("link").is_symlink());
    b.ok(&["backup", "--force", "a.img", "new"]);
    b.sh("echo plain > plain; test $(stat -c %a plain) = $(stat -c %a new)");
    // What is no file is written to as it is.
    b.sh(&format!(
        "mkfifo pipe; cat pipe > out & {pando} backup --force a.img pipe; wait
         cmp out a.backup; test -p pipe"
    ));
    b.ok(&["backup", "--force", "a.img", "/dev/null"]);
    assert_eq!(b.sh("ls -A | wc -l").trim(), "9", "{}", here());
}

#[test]
fn a_backup_is_not_written_over_an_image_that_is_mounted() {
    let b = mounted!();
    b.sh("echo kept > m/f; ln a.img hard");
    b.ok(&["mkfs", "--size", "64M", "--node-size", "64K", "b.img"]);
    for name in ["a.img", "hard"] {
        b.fails(&["backup", "--force", "b.img", name], 4, "is mounted on");
        b.sh(&format!("test -e {name}"));
    }
    b.umount();
    b.ok(&["check", "a.img"]);
    b.ok(&["backup", "--force", "b.img", "a.img"]);
    // By another name of the same bytes.
    let device = b.loop_device("b.img");
    if let Some(device) = &device {
        b.fails(&["backup", "--force", "b.img", &device.path], 1, "is the image itself");
        b.fails(&["backup", "--force", &device.path, "b.img"], 1, "is the image itself");
    }
    drop(device);
    b.ok(&["check", "b.img"]);
}

#[test]
fn a_picture_is_not_written_over_its_image() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.sh("ln -s a.img link");
    let before = fs::read(b.path("a.img")).unwrap();
    for name in ["a.img", "link"] {
        b.fails(&["inspect", "--svg", name, "a.img"], 1, "is the image itself");
        assert!(fs::read(b.path("a.img")).is_ok_and(|now| now == before), "{name}");
    }
    b.ok(&["inspect", "--svg", "new", "a.img"]);
}

/// A file system of a test's own is unmounted whatever happens, behind the loop device over a file in it.
struct TestHost<'a>(&'a Bench);

impl Drop for TestHost<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path("host")).status();
    }
}

#[test]
fn a_backup_to_a_device_that_could_not_store_it_fails() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: needs root");
    }
    let b = Bench::new();
    // A device that promises more than it can keep: what its cache has taken is refused when it is written out.
    b.sh("mkdir t host; mount -t tmpfs -o size=24M none host; truncate -s 256M host/disk");
    let _host = TestHost(&b);
    b.sh("head -c 60000000 /dev/urandom > t/f");
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let Some(device) = b.loop_device("host/disk") else { return };
    b.fails(&["backup", "--force", "a.img", &device.path], 1, "backup a.img to");
    let pando = env!("CARGO_BIN_EXE_pando");
    b.sh(&format!(
        "! {pando} backup a.img - > {} 2> said || exit 1; grep -q 'backup a.img to' said",
        device.path
    ));
}

#[test]
fn a_device_is_locked_while_a_backup_is_written_to_it() {
    if !rustix::process::geteuid().is_root() || !crate::common::has("flock") {
        return eprintln!("SKIPPED: needs root and flock");
    }
    let b = Bench::new();
    b.sh("mkdir t; truncate -s 256M disk; head -c 60000000 /dev/urandom > t/f");
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let Some(device) = b.loop_device("disk") else { return };
    // It is stopped once it has written some of what there is.
    let pando = env!("CARGO_BIN_EXE_pando");
    let said = b.sh(&format!(
        "{pando} backup --force a.img {dev} > /dev/null & pid=$!
         while bytes=$(sed -n 's/^wchar: //p' /proc/$pid/io) && [ $bytes -lt 2000000 ]; do :; done
         kill -STOP $pid
         [ $(sed -n 's/^wchar: //p' /proc/$pid/io) -lt 60000000 ] || echo late
         if flock -n -s {dev} true; then echo free; else echo locked; fi
         kill -CONT $pid; wait $pid; flock -n -s {dev} true",
        dev = device.path
    ));
    assert_eq!(said, "locked\n");
    b.ok(&["backup", "a.img", "file"]);
    b.sh(&format!("cmp -n $(stat -c %s file) file {}", device.path));
}

#[test]
fn a_backup_is_not_restored_over_itself() {
    let b = Bench::new();
    b.tree("t");
    b.ok(&["mkfs", "--size", "64M", "--node-size", "64K", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.sh("head -c 20000000 /dev/urandom > t/f");
    b.ok(&["import", "t/f", "a.img:/f"]);
    b.ok(&["backup", "a.img", "a.backup"]);
    b.sh("ln a.backup hard; ln -s a.backup soft");
    let before = fs::read(b.path("a.backup")).unwrap();
    let is_whole = |name: &str| {
        assert!(fs::read(b.path("a.backup")).is_ok_and(|now| now == before), "{name}: the backup is gone");
    };
    let pando = env!("CARGO_BIN_EXE_pando");
    for name in ["a.backup", "hard", "soft", "/proc/self/cwd/a.backup"] {
        b.fails(&["restore", "--force", "a.backup", name], 1, "is the backup itself");
        b.fails(&["restore", "--force", name, "a.backup"], 1, "is the backup itself");
        is_whole(name);
        b.sh(&format!(
            "! {pando} restore --force - {name} < a.backup 2> said || exit 1; grep -q 'is the backup itself' said"
        ));
        is_whole(name);
    }
    if let Some(device) = b.loop_device("a.backup") {
        for (from, to) in [("a.backup", device.path.as_str()), (device.path.as_str(), "a.backup")] {
            b.fails(&["restore", "--force", from, to], 1, "is the backup itself");
            is_whole(to);
        }
    }
    b.ok(&["restore", "--size", "64M", "a.backup", "b.img"]);
    b.sh(&format!("{pando} restore --force - b.img < a.backup"));
}

#[test]
fn du_tells_what_is_exclusive_in_an_image() {
    let b = Bench::new();
    b.tree("t");
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    let line = |path: &str| b.json(&["du", "--json", path])["paths"][0].clone();
    let tree = line("a.img:/t");
    let number = |line: &serde_json::Value, name: &str| line[name].as_u64().unwrap();
    // Pieces of 16 KiB take four blocks each, and three of them a header, where nodes are as small as here.
    assert!(number(&tree, "exclusive") > 3_100_000 && number(&tree, "exclusive") < 3_900_000, "{tree}");
    assert_eq!(number(&tree, "total"), number(&tree, "exclusive") + number(&tree, "shared"));
    let file = line("a.img:/t/src/deep/large");
    assert!(number(&file, "visible").abs_diff(3_000_000) < 200_000, "{file}");
    let text = b.ok(&["du", "-H", "a.img:/", "a.img:/t/src"]);
    assert!(text.contains("Exclusive") && text.contains("MiB") && text.ends_with("a.img:/t/src\n"), "{text}");
    b.fails(&["du", "a.img:/none"], 1, "none");
    b.fails(&["du", "none"], 1, "none");
    b.fails(&["du", "t"], 1, "not in a mounted");
    b.fails(&["du"], 2, "PATH");
}

/// It said that 4 KiB are too small.
#[test]
fn mkfs_of_what_is_no_file_says_so() {
    let b = Bench::new();
    b.sh("mkdir d; mkfifo p; ln -s d l");
    for args in [&["mkfs", "d"][..], &["mkfs", "--size", "64M", "d"], &["mkfs", "--force", "l"]] {
        b.fails(args, 1, "is a directory");
    }
    for args in [&["mkfs", "p"][..], &["mkfs", "--force", "--size", "64M", "/dev/null"]] {
        let said = text(&b.run(args).stderr);
        assert!(said.contains("is neither a file nor a block device\n"), "{said}");
    }
}
