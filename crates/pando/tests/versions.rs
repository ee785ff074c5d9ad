//! `pando log` and `pando restore-file` as a user has them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, process::Command};

use crate::common::{Bench, text};

/// What `pando log` tells: the change, and the snapshot or "now".
fn log(b: &Bench, path: &str) -> Vec<(String, String)> {
    let report = b.json(&["log", "--json", path]);
    assert_eq!(report["version"], 1);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("now").to_string();
    let lines = report["changes"].as_array().unwrap().iter();
    lines.map(|line| (text(&line["change"]), text(&line["snapshot"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(change, name)| (change.to_string(), name.to_string())).collect()
}

#[test]
fn a_log_has_the_snapshots_in_which_a_file_changed() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src; echo other > m/p/beside");
    b.ok(&["snapshot", "create", "m/p", "s1"]);
    b.sh("echo one > m/p/src/f");
    b.ok(&["snapshot", "create", "m/p", "s2"]);
    // Nothing about the file, twice: once of the directory it is in.
    b.sh("echo more > m/p/beside");
    b.ok(&["snapshot", "create", "m/p/src", "inner"]);
    b.ok(&["snapshot", "create", "m/p", "s3"]);
    b.sh("echo two > m/p/src/f");
    b.ok(&["snapshot", "create", "m/p/src", "inner2"]);
    b.sh("chmod 600 m/p/src/f");
    b.ok(&["snapshot", "create", "m/p", "s4"]);
    b.sh("rm m/p/src/f");
    b.ok(&["snapshot", "create", "m/p", "s5"]);
    let of_file = [("+", "s2"), ("M", "inner2"), ("M", "s4"), ("-", "s5")];
    assert_eq!(log(&b, "m/p/src/f"), pairs(&of_file));
    b.sh("ln -s elsewhere m/p/src/f");
    assert_eq!(log(&b, "m/p/src/f"), pairs(&[&of_file[..], &[("+", "now")]].concat()));
    b.ok(&["snapshot", "create", "m/p", "s6"]);
    b.sh("ln -sfn there m/p/src/f");
    assert_eq!(log(&b, "m/p/src/f").last().unwrap(), &("M".to_string(), "now".to_string()));
    b.ok(&["snapshot", "create", "m/p", "s7"]);
    b.sh("setfattr -h -n trusted.of -v link m/p/src/f");
    assert_eq!(log(&b, "m/p/src/f").last().unwrap(), &("M".to_string(), "now".to_string()), "an attribute");
    // A directory has changed when something below it has. Times of directories count, as in pando diff.
    let of_dir = log(&b, "m/p/src");
    assert_eq!(of_dir[..2], pairs(&[("+", "s1"), ("M", "s2")]));
    assert!(!of_dir.contains(&("M".into(), "s3".into())), "{of_dir:?}");
    // For people and scripts.
    let table = b.ok(&["log", "m/p/src/f"]);
    assert!(table.contains("/p/.snapshots/s2/src/f\n") && table.starts_with('+'), "{table}");
    assert_eq!(b.ok(&["log", "-H", "m/p/src/f"]).lines().next().unwrap().split('\t').count(), 4);
    b.fails(&["log", "m/p/none"], 1, "is not there, nor in a snapshot");
    b.fails(&["log", "m/p/.snapshots/s2/src/f"], 1, "lies in a snapshot");
    b.sh("echo > outside");
    b.fails(&["log", "outside"], 1, "not in a mounted Pando");
    b.fails(&["log", "none/file"], 1, "not in a mounted Pando");
}

#[test]
fn a_file_comes_back_as_it_was() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src; echo one > m/p/src/f; chmod 640 m/p/src/f; echo a@b > 'm/p/src/a@b'; mkdir m/p/src/dir");
    b.sh("echo deep > m/p/src/dir/deep");
    b.ok(&["snapshot", "create", "m/p", "first"]);
    b.sh("echo two > m/p/src/f; rm -r 'm/p/src/a@b' m/p/src/dir");
    b.ok(&["snapshot", "create", "m/p/src", "first"]);
    b.sh("echo three > m/p/src/f");
    // What is there is not lost unasked.
    b.fails(&["restore-file", "m/p/src/f@first"], 1, "--replace");
    assert_eq!(b.sh("cat m/p/src/f"), "three\n");
    // The nearest directory with a snapshot of that name counts.
    b.ok(&["restore-file", "m/p/src/f@first", "--to", "m/p/near"]);
    assert_eq!(b.sh("cat m/p/near"), "two\n");
    b.ok(&["snapshot", "rename", "m/p", "first", "oldest"]);
    b.ok(&["restore-file", "--replace", "m/p/src/f@oldest"]);
    assert_eq!(b.sh("cat m/p/src/f; stat -c %a m/p/src/f"), "one\n640\n");
    // What is gone, trees too; and it can be written to.
    b.ok(&["restore-file", "m/p/src/a@b@oldest"]);
    b.ok(&["restore-file", "m/p/src/dir@oldest"]);
    b.sh("echo more >> m/p/src/dir/deep");
    assert_eq!(b.sh("cat m/p/src/a@b m/p/src/dir/deep"), "a@b\ndeep\nmore\n");
    assert_eq!(b.sh("cat m/p/.snapshots/oldest/src/dir/deep"), "deep\n");
    b.fails(&["restore-file", "m/p/src/f"], 1, "PATH@SNAPSHOT");
    b.fails(&["restore-file", "m/p/src/f@never"], 1, "no snapshot of a directory above");
    b.fails(&["restore-file", "m/p/none@oldest"], 1, "is not in snapshot oldest");
    // Directories above it are gone, or something else; names of snapshots have an @.
    b.ok(&["snapshot", "create", "m/p", "m@home@x"]);
    b.sh("rm -r m/p/src");
    for there in ["m/p/src/dir/deep", "m/p/src/../src/dir/deep"] {
        b.fails(&["restore-file", &format!("{there}@m@home@x")], 1, "src");
    }
    b.ok(&["restore-file", "m/p/src/dir/deep@m@home@x", "--to", "m/p/one"]);
    b.sh("echo file > m/p/src");
    b.ok(&["restore-file", "m/p/src/dir/deep@oldest", "--to", "m/p/two"]);
    assert_eq!(b.sh("cat m/p/one m/p/two"), "deep\nmore\ndeep\n");
    let of_deep = log(&b, "m/p/src/dir/deep");
    assert_eq!(of_deep, pairs(&[("+", "oldest"), ("M", "m@home@x"), ("-", "now")]));
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn a_version_is_mounted_alone_beside_its_image_and_without() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        b.fails(&["mount", "-o", "snapshot=s", "a.img", "v"], 1, "only root");
        return;
    }
    b.sh("mkdir -p m/p/in v w; echo one > m/p/in/f; echo secret > m/secret");
    b.ok(&["snapshot", "create", "m/p", "first"]);
    b.ok(&["snapshot", "create", "m", "all"]);
    b.sh("echo two > m/p/in/f");
    let image = "a.img";
    // Beside the live mount, which goes on.
    b.ok(&["mount", "-o", "snapshot=p@first", image, "v"]);
    b.ok(&["mount", "-o", "snapshot=all", image, "w"]);
    assert_eq!(b.sh("cat v/in/f w/p/in/f w/secret m/p/in/f; ls v"), "one\none\nsecret\ntwo\nin\n");
    let refused = "touch v/in/f 2>/dev/null || echo refused; test -w w/secret || echo refused";
    assert_eq!(b.sh(refused), "refused\nrefused\n");
    b.sh("echo three > m/p/in/f");
    b.fails(&["mount", "-o", "snapshot=p@none", image, "w"], 1, "no snapshot none");
    b.ok(&["umount", "v"]);
    b.ok(&["umount", "w"]);
    assert_eq!(b.sh("ls -A v w; cat m/p/in/f"), "v:\n\nw:\nthree\n");
    b.umount();
    // Alone: nothing else of the image is to be seen, and the daemon ends with it.
    b.ok(&["mount", "-o", "snapshot=/p@first", image, "v"]);
    assert_eq!(b.sh("cat v/in/f; ls -A v"), "one\nin\n");
    assert_eq!(b.sh("echo x 2>/dev/null > v/in/f || ls v/.snapshots 2>/dev/null || echo none"), "none\n");
    assert_eq!(b.sh("grep -c \"$PWD/\" /proc/self/mountinfo"), "1\n");
    b.ok(&["umount", "v"]);
    b.ok(&["check", image]);
    b.fails(&["mount", "-o", "snapshot=none", image, "v"], 1, "no snapshot none");
    b.ok(&["check", image]);
    b.fails(&["mount", "-o", "snapshot=a/b", image, "v"], 2, "NAME or DIR@NAME");
    b.fails(&["mount", "-f", "-o", "snapshot=all", image, "v"], 2, "--foreground");
}

/// `DIR@NAME` was no such file, although send, restore-file and mount take it.
#[test]
fn trees_and_files_in_snapshots_are_named_as_with_other_commands() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src; echo one > m/p/src/f; echo same > m/p/src/g; echo out > m/file");
    b.ok(&["snapshot", "create", "m/p", "s1"]);
    b.sh("echo two > m/p/src/f");
    b.ok(&["snapshot", "create", "m/p", "m@x"]);
    b.sh("echo more > m/p/src/new");
    let diff = |args: &[&str]| {
        let said = b.ok(&[&["diff", "--name-only"][..], args].concat());
        let mut lines: Vec<&str> = said.lines().filter(|line| *line != "src").collect();
        lines.sort_unstable();
        lines.join(" ")
    };
    assert_eq!(diff(&["m/p@s1", "m/p"]), "src/f src/new");
    assert_eq!(diff(&["m/p@1", "m/p@m@x"]), "src/f");
    // The same directory again, a part of both, and one file.
    assert_eq!(diff(&["m/p@s1", "@m@x"]), "src/f");
    assert_eq!(diff(&["m/p@s1", "@2", "src"]), "f");
    assert_eq!(diff(&["m/p/src@s1", "m/p/src"]), ". f new");
    assert_eq!(diff(&["m/p/src/f@s1", "m/p/src/f"]), ".");
    assert_eq!(diff(&["m/p/src/g@s1", "@m@x"]), "");
    let lines = b.ok(&["diff", "-u", "m/p@s1", "@2"]);
    assert!(lines.contains("-one\n+two\n") && lines.contains("m/p/.snapshots/s1/src/f"), "{lines}");
    // What is there is meant itself.
    b.sh("cp -a m/p m/p@s1; echo its own > m/p@s1/src/f");
    assert_eq!(diff(&["m/p@s1", "m/p"]), "src/f");
    b.sh("rm -r m/p@s1");
    // Others that take a tree.
    b.ok(&["clone", "m/p@s1", "m/copy"]);
    b.ok(&["clone", "m/p/src/f@s1", "m/f"]);
    assert_eq!(b.sh("cat m/copy/src/f m/f"), "one\none\n");
    assert!(b.ok(&["du", "-H", "m/p@s1"]).contains("/p/.snapshots/s1"));
    b.fails(&["fork", "m/p@s1", "m/fork"], 1, "make a clone of the snapshot, and fork that");
    b.fails(&["diff", "m/p@none", "m/p"], 1, "no snapshot of a directory above m/p is named so");
    b.fails(&["diff", "@s1", "m/p"], 1, "@s1: No such file");
    b.fails(&["diff", "m/p/none@s1", "m/p"], 1, "is not in snapshot s1");
    b.fails(&["diff", "m/p", "m/nothing"], 1, "m/nothing");
    assert!(b.ok(&["diff", "--help"]).contains("pando diff -u /mnt/grove/project@before /mnt/grove/project"));
    // In an image.
    b.umount();
    assert_eq!(diff(&["a.img:/p@s1", "a.img:/p"]), "src/f src/new");
    assert_eq!(diff(&["a.img:/p@1", "a.img:/p@m@x"]), "src/f");
    b.fails(&["diff", "a.img:/p@none", "a.img:/p"], 1, "p@none");
}

/// It said that a snapshot cannot replace something, and to remove it first, whatever was to be replaced.
#[test]
fn a_whole_snapshot_that_is_to_replace_a_directory_is_told_how() {
    let b = mounted!();
    b.sh("mkdir m/p m/other; echo one > m/p/f");
    b.ok(&["snapshot", "create", "m/p", "s"]);
    b.sh("echo two > m/p/f; echo mine > m/other/f");
    for to in [&[][..], &["--to", "m/p"]] {
        let args = [&["restore-file", "--replace", "m/p@s"][..], to].concat();
        b.fails(&args, 1, "pando rollback m/p s");
    }
    assert_eq!(b.sh("cat m/p/f"), "two\n");
    // Another directory is replaced, at once, and nothing is left of it.
    b.ok(&["restore-file", "--replace", "m/p@s", "--to", "m/other"]);
    assert_eq!(b.sh("cat m/other/f; ls -A m"), "one\nother\np\n");
    b.ok(&["restore-file", "m/p@s", "--to", "m/new"]);
    b.ok(&["restore-file", "--replace", "m/p@s", "--to", "m/newer"]);
    b.ok(&["restore-file", "m/p@s", "--to", "m/new"]);
    assert_eq!(b.sh("cat m/new/f m/newer/f m/new/p/f"), "one\none\none\n");
    // So does a clone, and in an image too.
    b.sh("echo mine > m/other/f");
    b.ok(&["clone", "--replace", "m/p@s", "m/other"]);
    b.fails(&["clone", "--replace", "m/p@s", "m/p"], 1, "pando rollback");
    assert_eq!(b.sh("cat m/other/f m/p/f; ls -A m"), "one\ntwo\nnew\nnewer\nother\np\n");
    b.umount();
    b.ok(&["clone", "--replace", "a.img:/p/.snapshots/s", "a.img:/other"]);
    b.fails(&["clone", "--replace", "a.img:/p/.snapshots/s", "a.img:/p"], 1, "pando rollback");
    b.ok(&["check", "a.img"]);
}

/// The directory went, and its snapshots, that of the source too, were orphans, which was not said.
#[test]
fn a_part_of_a_snapshot_that_is_to_replace_its_directory_is_refused() {
    let b = mounted!();
    b.sh("mkdir -p m/up/p/sub; echo one > m/up/p/sub/f");
    b.ok(&["snapshot", "create", "m/up/p", "s"]);
    for source in ["m/up/p/sub@s", "m/up/p/sub/f@s"] {
        b.fails(&["clone", "--replace", source, "m/up/p"], 1, "pando rollback");
        b.fails(&["clone", "--replace", source, "m/up"], 1, "another name");
    }
    b.fails(&["restore-file", "--replace", "m/up/p/sub@s", "--to", "m/up"], 1, "another name");
    b.fails(&["restore-file", "--replace", "m/up/p@s", "--to", "m/up"], 1, "another name");
    assert_eq!(b.sh("ls m/up/p/.snapshots; cat m/up/p/sub/f"), "s\none\n");
    b.ok(&["clone", "m/up/p/sub@s", "m/old"]);
    b.umount();
    b.fails(&["clone", "--replace", "a.img:/up/p/.snapshots/s/sub", "a.img:/up/p"], 1, "another name");
    b.ok(&["check", "a.img"]);
}

/// The snapshot was put beside what it was to replace, and stayed there.
#[test]
fn a_whole_snapshot_that_may_not_replace_something_leaves_nothing_behind() {
    let b = mounted!();
    b.sh("mkdir -p m/p m/other/in; echo one > m/p/f; echo mine > m/other/in/f");
    b.ok(&["snapshot", "create", "m/p", "s"]);
    if rustix::process::geteuid().is_root() {
        b.sh("mount -t tmpfs none m/other/in");
        b.fails(&["restore-file", "--replace", "m/p@s", "--to", "m/other"], 4, "something is mounted");
        b.sh("umount m/other/in");
        assert_eq!(b.sh("ls -A m; cat m/other/in/f"), "other\np\nmine\n");
    }
    b.fails(&["restore-file", "--replace", "m/p@s", "--to", "m/none/other"], 1, "No such file");
    b.fails(&["restore-file", "--replace", "m/p@s", "--to", "m"], 1, "");
    assert_eq!(b.sh("ls -A m; cat m/other/in/f"), "other\np\nmine\n");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// Each snapshot took a dozen requests, whatever had changed.
#[test]
fn a_log_of_many_snapshots_takes_few_requests_for_those_that_changed_nothing() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src/deep; echo one > m/p/src/deep/f; echo x > m/p/other; ln -s to m/p/link");
    let pando = env!("CARGO_BIN_EXE_pando");
    // Something changes before each, mostly elsewhere; the directories above change too.
    b.sh(&format!(
        "for i in $(seq 1 240); do
            echo $i > m/p/other; echo $i > m/p/src/beside; ln -sf $i m/p/src/l$i
            case $i in 50) echo two > m/p/src/deep/f;; 100) chmod 600 m/p/src/deep/f;; 150) rm m/p/src/deep/f;;
                170) echo back > m/p/src/deep/f;; 200) touch m/p/src/deep/new;; esac
            {pando} snapshot create m/p s$i
        done > /dev/null"
    ));
    let requests = || -> u64 {
        let stats = b.json(&["stats", "--json", "m"]);
        stats["requests"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum()
    };
    let told = |path: &str, most: u64, expected: &[(&str, &str)]| {
        let before = requests();
        assert_eq!(log(&b, path), pairs(expected), "{path}");
        let took = requests() - before;
        assert!(took < most, "{path}: {took} requests");
    };
    let of_file = [("+", "s1"), ("M", "s50"), ("M", "s100"), ("-", "s150"), ("+", "s170")];
    told("m/p/src/deep/f", 240, &of_file);
    told("m/p/link", 150, &[("+", "s1")]);
    let of_dir = ["s50", "s100", "s150", "s170", "s200"].map(|name| ("M", name));
    told("m/p/src/deep", 240, &[&[("+", "s1")][..], &of_dir].concat());
    assert_eq!(log(&b, "m/p/other").len(), 240);
    b.fails(&["log", "m/p/none"], 1, "is not there");
    // Deleting one in between changes what the others are compared with.
    b.ok(&["snapshot", "delete", "m/p", "s50", "s100..s160"]);
    let of_file = [("+", "s1"), ("M", "s51"), ("-", "s161"), ("+", "s170")];
    told("m/p/src/deep/f", 240, &of_file);
    // Another directory's snapshots in between.
    b.ok(&["snapshot", "create", "m/p/src", "inner"]);
    b.sh("echo three > m/p/src/deep/f");
    b.ok(&["snapshot", "create", "m/p", "last"]);
    told("m/p/src/deep/f", 300, &[&of_file[..], &[("M", "last")]].concat());
    // Files with several names are looked at one by one.
    b.sh("ln m/p/src/deep/f m/p/src/name; echo four > m/p/src/name");
    b.ok(&["snapshot", "create", "m/p", "linked"]);
    b.sh("chmod 640 m/p/src/name");
    b.ok(&["snapshot", "create", "m/p", "linked2"]);
    let lines = log(&b, "m/p/src/deep/f");
    assert_eq!(lines[lines.len() - 2..], pairs(&[("M", "linked"), ("M", "linked2")]));
    assert_eq!(log(&b, "m/p/src/deep").last().unwrap().1, "linked2");
}

/// A name that is no text is found by its bytes, in every line.
#[test]
fn names_that_are_no_text_are_told_as_bytes_too() {
    let b = mounted!();
    let name = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let dir = Path::new("m").join(name(b"a\xff"));
    std::fs::create_dir(b.path("m").join(name(b"a\xff"))).unwrap();
    std::fs::write(b.path("").join(&dir).join("f"), "x").unwrap();
    let told = |command: &mut Command| {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        out.stdout
    };
    told(b.command(&["snapshot", "create"]).arg(&dir).arg("s"));
    let log = told(b.command(&["log", "--json"]).arg(dir.join("f")));
    let log: serde_json::Value = serde_json::from_slice(&log).unwrap();
    let line = &log["changes"][0];
    assert_eq!((&line["change"], &line["snapshot"]), (&"+".into(), &"s".into()));
    assert!(line["snapshot_hex"].is_null() && log["path_hex"].is_string(), "{log}");
    let hex = |field: &str| line[field].as_str().unwrap_or_else(|| panic!("no {field} in {line}"));
    assert!(
        hex("dir_hex").ends_with("2f61ff") && hex("path_hex").ends_with("61ff2f2e736e617073686f74732f732f66"),
        "{line}"
    );
    b.umount();
    let image = name(b"i\xff.img");
    std::fs::rename(b.path("a.img"), b.path("").join(&image)).unwrap();
    let info = told(b.command(&["info", "--json"]).arg(&image));
    let info: serde_json::Value = serde_json::from_slice(&info).unwrap();
    assert!(info["image_hex"].as_str().unwrap().ends_with("69ff2e696d67"), "{info}");
    let made = std::time::Duration::from_secs(info["created_seconds"].as_u64().unwrap());
    assert!(made.as_secs() > 1_700_000_000 && std::time::UNIX_EPOCH + made <= std::time::SystemTime::now());
}
