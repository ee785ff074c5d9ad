//! Work on an image that is not mounted, and copies by clones.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    time::{Duration, Instant},
};

use crate::common::{Bench, same};

fn image() -> Bench {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
    b.tree("t");
    b.ok(&["import", "t", "a.img:/t"]);
    b
}

#[test]
fn trees_are_cloned_renamed_and_removed_without_a_mount() {
    let b = image();
    b.ok(&["clone", "a.img:/t", "a.img:/u"]);
    b.ok(&["clone", "a.img:/t/src/f1", "a.img:/u/g"]);
    b.fails(&["clone", "a.img:/t", "a.img:/u"], 1, "exists");
    b.ok(&["clone", "--replace", "a.img:/u/src/f2", "a.img:/u/g"]);
    assert_eq!(b.ok(&["cat", "a.img:/u/g", "a.img:/t/src/f1"]), "file 2\nfile 1\n");
    b.ok(&["mv", "a.img:/u/src", "a.img:/moved"]);
    b.fails(&["mv", "a.img:/moved", "a.img:/t"], 1, "exists");
    b.fails(&["rm", "a.img:/u"], 1, "give -r");
    b.ok(&["rm", "-r", "a.img:/u", "a.img:/t/src/f3"]);
    b.fails(&["rm", "a.img:/t/src/f3"], 1, "f3");
    // What cannot be done keeps nothing else from being done.
    b.ok(&["clone", "a.img:/t/src/f1", "a.img:/w"]);
    b.fails(&["rm", "a.img:/none", "a.img:/w"], 1, "none");
    b.fails(&["ls", "a.img:/w", "a.img:/none"], 1, "none");
    assert_eq!(b.ok(&["ls", "a.img:/"]), "moved\nt\n");
    b.fails(&["clone", "a.img:/t", "other"], 1, "in one image");
    b.ok(&["mkfs", "--size", "64M", "b.img"]);
    b.fails(&["clone", "a.img:/t", "b.img:/t"], 1, "in one image");
    b.fails(&["ls", "a.img:/none"], 1, "none");
    b.fails(&["cat", "a.img:/t"], 1, "regular");
    // What exists is meant as it is.
    fs::create_dir_all(b.path("a.img:")).unwrap();
    fs::write(b.path("a.img:/t"), "x").unwrap();
    b.fails(&["rm", "a.img:/t"], 1, "not in a mounted");
    fs::remove_dir_all(b.path("a.img:")).unwrap();
    b.ok(&["export", "a.img:/moved", "back"]);
    same(b.path("t/src"), b.path("back"));
    b.ok(&["check", "a.img"]);
}

/// A whole snapshot is cloned as in a mount.
#[test]
fn a_snapshot_is_cloned_without_a_mount() {
    let b = image();
    if !crate::common::have_fuse() {
        return;
    }
    fs::create_dir(b.path("m")).unwrap();
    b.mount();
    b.ok(&["snapshot", "create", "m/t", "s1"]);
    b.sh("rm -r m/t/src");
    b.umount();
    b.ok(&["clone", "a.img:/t/.snapshots/s1", "a.img:/back"]);
    b.ok(&["cp", "-a", "a.img:/t/.snapshots/s1", "a.img:/copy"]);
    b.ok(&["clone", "--replace", "a.img:/t/.snapshots/s1", "a.img:/new"]);
    b.fails(&["clone", "a.img:/t/.snapshots/s1", "a.img:/back"], 1, "exists");
    b.ok(&["clone", "--replace", "a.img:/t/.snapshots/s1", "a.img:/back"]);
    let exclude = ["clone", "--exclude", "src", "a.img:/t/.snapshots/s1", "a.img:/x"];
    b.fails(&exclude, 1, "nothing is left out of a whole snapshot");
    b.fails(&["clone", "a.img:/t/.snapshots/s2", "a.img:/x"], 1, "no such file");
    for name in ["back", "copy", "new"] {
        b.ok(&["export", &format!("a.img:/{name}"), name]);
        same(b.path("t"), b.path(name));
    }
    b.ok(&["check", "a.img"]);
}

/// It went nowhere, although all of it works in a mount.
#[test]
fn cp_puts_things_into_directories_without_a_mount() {
    let b = image();
    b.ok(&["clone", "a.img:/t/src", "a.img:/d"]);
    let f1 = b.ok(&["cat", "a.img:/t/src/f1"]);
    b.ok(&["cp", "-a", "a.img:/t/src/f1", "a.img:/t/src/f2", "a.img:/t/src/deep", "a.img:/t"]);
    assert_eq!(b.ok(&["cat", "a.img:/t/f1"]), f1);
    let names = b.ok(&["ls", "a.img:/t"]);
    assert!(["deep", "f1", "f2"].iter().all(|name| names.lines().any(|line| line == *name)), "{names}");
    b.fails(&["cp", "-a", "a.img:/t/src/f1", "a.img:/t/src/f2", "a.img:/none"], 1, "not a directory");
    // The first of two of one name is not lost; with -n it stays without a word, as with cp.
    b.ok(&["cp", "-aT", "a.img:/t/src/f2", "a.img:/d/f1"]);
    b.fails(&["cp", "-a", "a.img:/t/src/f1", "a.img:/d/f1", "a.img:/d/deep"], 1, "f1 has just become");
    assert_eq!(b.ok(&["cat", "a.img:/d/deep/f1"]), f1);
    b.ok(&["cp", "-an", "a.img:/d/f1", "a.img:/t/src/f1", "a.img:/d/deep"]);
    assert_eq!(b.ok(&["cat", "a.img:/d/deep/f1"]), f1);
    b.fails(&["cp", "-a", "-t", "a.img:/none", "a.img:/t/src/f1"], 1, "not a directory");
    // What is there: a file is replaced or left alone, a directory is not merged.
    b.ok(&["cp", "-a", "-n", "a.img:/t/src/f1", "a.img:/t/f2"]);
    assert_eq!(b.ok(&["cat", "a.img:/t/f2"]), b.ok(&["cat", "a.img:/t/src/f2"]));
    let said = b.ok(&["cp", "-av", "a.img:/t/src/f1", "a.img:/t/f2"]);
    assert_eq!(said, "a.img:/t/src/f1 -> a.img:/t/f2\n");
    assert_eq!(b.ok(&["cat", "a.img:/t/f2"]), f1);
    b.fails(&["cp", "-a", "a.img:/t/src/deep", "a.img:/t"], 1, "only in a mounted file system");
    b.fails(&["cp", "-a", "a.img:/t/src/.", "a.img:/t"], 1, "only in a mounted file system");
    b.fails(&["cp", "-aT", "a.img:/t/src/f1", "a.img:/t/deep"], 1, "is a directory");
    b.fails(&["cp", "-aT", "a.img:/t/deep", "a.img:/t/f1"], 1, "is not a directory");
    // One that fails keeps the others from nothing.
    b.fails(&["cp", "-a", "a.img:/t/none", "a.img:/t/src/f1", "a.img:/d/deep"], 1, "none");
    assert_eq!(b.ok(&["cat", "a.img:/d/deep/f1"]), f1);
    b.ok(&["check", "a.img"]);
}

/// Names are bytes, on a command line too; JSON, which is text, has their digits.
#[test]
fn names_that_are_no_text_are_names() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "128M", "--node-size", "64K", "a.img"]);
    b.sh("mkdir t; echo one > t/$(printf 'f\\377')");
    b.ok(&["import", "t", "a.img:/t"]);
    let place = |path: &[u8]| OsStr::from_bytes(&[b"a.img:", path].concat()).to_owned();
    let run = |args: &[&OsStr]| {
        let out = b.command(&[]).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    let text = OsStr::new;
    let (old, new) = (place(b"/t/f\xff"), place(b"/t/g\xfe"));
    assert_eq!(run(&[text("cat"), &old]), b"one\n");
    run(&[text("clone"), &old, &new]);
    run(&[text("rm"), &old]);
    assert_eq!(run(&[text("ls"), text("a.img:/t")]), b"g\xfe\n");
    let told: serde_json::Value = serde_json::from_slice(&run(&[text("du"), text("--json"), &new])).unwrap();
    let hex: String = new.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(told["paths"][0]["path_hex"], hex.as_str());
    run(&[text("export"), &new, text("out")]);
    assert_eq!(fs::read(b.path("out")).unwrap(), b"one\n");
}

#[test]
fn listings_show_what_ls_shows() {
    let b = image();
    let long = b.ok(&["ls", "-lR", "a.img:/t"]);
    for line in [
        "-rws--x--x   1 ",
        "drwxrwxrwt ",
        "2002-03-04 05:06:07 ",
        "link -> src/f1\n",
        "\n/t/src/deep:\n",
        "prw-",
    ] {
        assert!(long.contains(line), "{line:?}: {long}");
    }
    assert!(b.ok(&["ls", "-ld", "a.img:/t/src/deep"]).starts_with("drwx------ "));
    let names: Vec<String> = b.ok(&["ls", "a.img:/t/src"]).lines().map(str::to_owned).collect();
    assert!(names.is_sorted() && names.len() == 62, "{names:?}");
    let large = fs::read(b.path("t/src/sparse")).unwrap();
    assert!(b.command(&["cat", "a.img:/t/src/sparse"]).output().unwrap().stdout == large);
}

#[test]
fn a_file_of_terabytes_of_nothing_is_checked_and_exported_at_once() {
    let Some(b) = Bench::mounted() else { return };
    b.sh("truncate -s 3T m/sparse; printf end | dd of=m/sparse bs=1 seek=2T conv=notrunc status=none");
    b.umount();
    let begin = Instant::now();
    let said = b.ok(&["check", "a.img"]);
    assert!(said.contains("3.0 TiB: clean"), "{said}");
    b.ok(&["export", "a.img:/sparse", "out"]);
    assert!(begin.elapsed() < Duration::from_secs(60));
    let out = fs::metadata(b.path("out")).unwrap();
    assert!(out.size() == 3 << 40 && out.blocks() < 1000, "{}", out.blocks());
    let tail = b.sh("dd if=out bs=1 skip=2T count=5 status=none | od -An -c");
    assert_eq!(tail.split_whitespace().collect::<Vec<_>>(), ["e", "n", "d", "\\0", "\\0"]);
}

#[test]
fn cp_copies_as_cp_does() {
    let Some(b) = Bench::mounted() else { return };
    b.tree("t");
    b.sh("cp -a t m/t; mkdir m/into m/cp");
    b.ok(&["cp", "-a", "m/t", "m/new"]);
    b.ok(&["cp", "-a", "m/t", "m/into"]);
    b.ok(&["cp", "-a", "--reflink=always", "m/t/src/f1", "m/t/link", "m/t/fifo", "m/into"]);
    same(b.path("t"), b.path("m/new"));
    same(b.path("t"), b.path("m/into/t"));
    assert_eq!(fs::read(b.path("m/into/f1")).unwrap(), b"file 1\n");
    assert!(b.path("m/into/link").is_symlink());
    // Merged, beside what cp makes of the same.
    b.sh("for d in pando cp; do
            mkdir -p m/$d/src/deep m/$d/own; echo old > m/$d/src/f1; echo mine > m/$d/own/f; echo y > m/$d/src/mine
            touch -d @5 m/$d/own/f m/$d/own m/$d/src/mine
          done");
    b.ok(&["cp", "-a", "m/t/.", "m/pando"]);
    b.sh("cp -a m/t/. m/cp");
    same(b.path("m/cp"), b.path("m/pando"));
    assert_eq!(fs::read(b.path("m/pando/src/f1")).unwrap(), b"file 1\n");
    assert_eq!(fs::metadata(b.path("m/pando/src/deep")).unwrap().permissions().mode() & 0o7777, 0o700);
    b.ok(&["cp", "-an", "m/t/src/f2", "m/pando/own/f"]);
    assert_eq!(fs::read(b.path("m/pando/own/f")).unwrap(), b"mine\n");
    b.ok(&["cp", "-aT", "m/t/src/f2", "m/pando/own/f"]);
    b.ok(&["cp", "-a", "-t", "m/pando/own", "m/t/src/f4", "m/t/src/f5"]);
    assert_eq!(fs::metadata(b.path("m/pando/own/f4")).unwrap().size(), 7);
    b.fails(&["cp", "-a", "m/t/src", "m/into/f1"], 1, "not a directory");
    b.fails(&["cp", "-aT", "m/t/src/f1", "m/into"], 1, "is a directory");
    b.fails(&["cp", "-a", "m/t", "host"], 1, "one mounted");
    b.fails(&["cp", "-a", "t", "m/x"], 1, "one mounted");
    b.fails(&["cp", "-a", "m/t/src/f1", "m/t/src/f1"], 1, "the same");
    b.fails(&["cp", "-a", "m/t/src/f1", "m/t/src/f2", "m/none"], 1, "not a directory");
    b.fails(&["cp", "-a", "m/t"], 1, "where to");
    b.sh("mkdir m/one m/two m/both; echo one > m/one/f; echo two > m/two/f");
    b.fails(&["cp", "-a", "m/one/f", "m/two/f", "m/both"], 1, "m/one/f has just become");
    b.sh("test $(cat m/both/f) = one; rm m/both/f");
    b.fails(&["cp", "-a", "m/none/f", "m/two/f", "m/both"], 1, "No such file");
    b.sh("test $(cat m/both/f) = two; rm -r m/one m/two m/both");
    let clones = b.json(&["stats", "--json", "m"])["clones"]["count"].as_u64().unwrap();
    assert!(clones >= 5, "{clones}");
    b.umount();
    b.ok(&["cp", "-a", "a.img:/t", "a.img:/offline"]);
    assert!(b.ok(&["ls", "a.img:/"]).contains("offline"));
    b.ok(&["check", "a.img"]);
}
