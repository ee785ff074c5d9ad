//! `pando snapshot`: which ones a selection means, what is said of them, and what happens beside others' calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Child;

use crate::common::Bench;

fn names(b: &Bench, dir: &str) -> Vec<String> {
    let list = b.ok(&["snapshot", "list", "-H", dir]);
    list.lines().map(|line| line.split('\t').nth(1).unwrap().to_owned()).collect()
}

fn make(b: &Bench, dir: &str, made: &[&str]) {
    for name in made {
        b.ok(&["snapshot", "create", dir, name]);
    }
}

fn begun(b: &Bench, script: &str) -> Child {
    let script = format!("pando() {{ {} \"$@\"; }}; {script}", env!("CARGO_BIN_EXE_pando"));
    std::process::Command::new("sh").args(["-c", &script]).current_dir(b.path("")).spawn().unwrap()
}

/// A sign was taken for a part of a number: `delete d +2` deleted snapshot 2.
#[test]
fn a_name_that_looks_like_a_number_with_a_sign_is_a_name() {
    let b = mounted!();
    b.sh("mkdir m/d; echo 1 > m/d/f");
    make(&b, "m/d", &["one"]);
    b.sh("echo 2 > m/d/f");
    make(&b, "m/d", &["two"]);
    b.sh("echo 3 > m/d/f");
    make(&b, "m/d", &["+2"]);
    b.sh("echo now > m/d/f");
    assert!(b.ok(&["snapshot", "delete", "-n", "m/d", "+2"]).starts_with("would delete 3 +2: "));
    b.ok(&["restore-file", "m/d/f@+2", "--to", "m/old"]);
    assert_eq!(b.sh("cat m/old"), "3\n");
    b.ok(&["snapshot", "keep", "m/d", "+2"]);
    let kept = b.json(&["snapshot", "list", "--json", "m/d"]);
    let kept: Vec<_> = kept["snapshots"].as_array().unwrap().iter().map(|one| one["keep"] == true).collect();
    assert_eq!(kept, [false, false, true]);
    b.ok(&["snapshot", "release", "m/d", "+2"]);
    let pando = env!("CARGO_BIN_EXE_pando");
    b.sh(&format!("{pando} send m/d@+2 | {pando} receive m copy"));
    assert_eq!((b.sh("cat m/copy/f"), names(&b, "m/copy")), ("3\n".into(), vec!["+2".to_owned()]));
    b.ok(&["rollback", "--discard", "m/d", "+2"]);
    assert_eq!(b.sh("cat m/d/f"), "3\n");
    b.ok(&["snapshot", "rename", "m/d", "+2", "+1"]);
    assert_eq!(names(&b, "m/d"), ["one", "two", "+1"]);
    b.ok(&["snapshot", "delete", "m/d", "+1"]);
    assert_eq!(names(&b, "m/d"), ["one", "two"]);
    for args in [&["delete", "m/d", "+1"][..], &["delete", "m/d", "+1..+2"], &["keep", "m/d", "+2"]] {
        b.fails(&[&["snapshot"][..], args].concat(), 1, "no such snapshot");
    }
    b.fails(&["send", "m/d@+1"], 1, "no snapshot +1");
    b.fails(&["restore-file", "m/d/f@+1"], 1, "is named so");
}

/// `..` of two ends that are left out deleted all snapshots.
#[test]
fn not_all_snapshots_are_deleted_by_a_range_without_ends() {
    let b = mounted!();
    b.sh("mkdir m/d");
    make(&b, "m/d", &["one", "two", "three"]);
    b.fails(&["snapshot", "delete", "m/d", ".."], 1, "name an end, as in one..three");
    b.fails(&["snapshot", "delete", "m/d", "three..one"], 1, "the range is reversed; write one..three");
    assert_eq!(names(&b, "m/d").len(), 3);
    // What is deleted is said.
    assert_eq!(b.ok(&["snapshot", "prune", "m/d", "--keep-last", "2"]), "deleted 1 one\n");
    assert_eq!(b.ok(&["snapshot", "delete", "m/d", "two.."]), "deleted 2 two\ndeleted 3 three\n");
    make(&b, "m/d", &["four"]);
    b.sh("rmdir m/d");
    assert_eq!(b.ok(&["snapshot", "orphans", "--delete", "m"]), "deleted 4 four\n");
}

#[test]
fn two_that_delete_the_same_snapshots_at_once_both_succeed() {
    let b = mounted!();
    b.sh("mkdir m/d");
    let prune = ["snapshot", "prune", "m/d", "--keep-last", "1"];
    for round in 0..3 {
        for i in 0..60 {
            b.ok(&["snapshot", "create", "m/d", &format!("s{round}-{i}")]);
        }
        let mut beside = begun(&b, "pando snapshot prune m/d --keep-last 1 > /dev/null");
        let own = b.run(&prune);
        assert!(beside.wait().unwrap().success());
        assert!(own.status.success(), "{}", crate::common::text(&own.stderr));
        assert_eq!(names(&b, "m/d"), [format!("s{round}-59")]);
    }
    // That the directory is not there is another thing.
    b.fails(&["snapshot", "delete", "m/none", "s"], 1, "No such file");
}
