//! Odd arguments of the commands for versions: what is wrong is said, and what is meant is done.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{os::unix::process::CommandExt, process::Command};

use crate::common::{Bench, text};

/// It meant no validity: such a snapshot was kept for ever.
#[test]
fn a_validity_of_no_time_is_refused() {
    let b = mounted!();
    b.sh("mkdir m/p");
    b.fails(&["snapshot", "create", "m/p", "s", "--valid-for", "0s"], 1, "give at least a second");
    b.fails(
        &["snapshot", "policy", "m/p", "--every", "1h", "--valid-for", "0d"],
        1,
        "--valid-for 0: give at least a second",
    );
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/p"]), "");
    assert_eq!(b.ok(&["snapshot", "policy", "m/p"]), "none\n");
}

/// All of these said that there is no such file, or directory.
#[test]
fn a_path_in_an_image_is_told_to_want_a_mount_where_only_that_will_do() {
    let b = mounted!();
    b.sh("mkdir m/p; echo f > m/p/f");
    b.ok(&["snapshot", "create", "m/p", "s"]);
    b.umount();
    for args in [
        &["snapshot", "list", "a.img:/p"][..],
        &["snapshot", "create", "a.img:/p", "t"],
        &["log", "a.img:/p/f"],
        &["restore-file", "a.img:/p/f@s"],
        &["rollback", "a.img:/p", "s"],
        &["fork", "a.img:/p", "a.img:/q"],
        &["quota", "list", "a.img:/p"],
    ] {
        b.fails(args, 1, "this command wants a mounted file system: pando mount a.img DIR\n");
    }
    // Others do without, and a failure there is not for want of a mount.
    b.ok(&["diff", "a.img:/p@s", "a.img:/p"]);
    let said = text(&b.run(&["du", "a.img:/none"]).stderr);
    assert!(!said.contains("wants a mounted"), "{said}");
    b.mount();
    let said = text(&b.run(&["snapshot", "list", "m/none"]).stderr);
    assert!(!said.contains("wants a mounted"), "{said}");
}

#[test]
fn what_is_wrong_is_named() {
    let b = mounted!();
    b.sh("mkdir m/p m/q; echo f > m/p/f");
    b.ok(&["snapshot", "create", "m", "all"]);
    b.ok(&["snapshot", "create", "m/p", "s"]);
    b.ok(&["fork", "m/p", "m/task"]);
    for (args, code, says) in [
        // Which of the two is missing.
        (&["diff", "m/p", "m/none"][..], 1, "pando: m/none: No such file"),
        (&["diff", "m/none", "m/p"], 1, "pando: m/none: No such file"),
        (&["diff", "m/p", "m/q", "f"], 1, "pando: m/q/f: No such file"),
        // A path out of both was compared with itself.
        (&["diff", "m/p", "m/q", "../q"], 1, "PATH is a path in A and in B"),
        (&["diff", "-u", "m/p"], 1, "not a fork"),
        (&["merge", "m/p"], 1, "pando fork makes them"),
        (&["snapshot", "delete", "m/p", ""], 1, "an empty name"),
        (&["snapshot", "keep", "m/p", "s", ""], 1, "an empty name"),
        (&["rollback", "m/p", ""], 1, "an empty name"),
        (&["send", "-n", "@s"], 1, "write a snapshot as DIR@NAME"),
        // It was told to roll the root back, which cannot be.
        (&["restore-file", "--replace", "m@all"], 1, "restore what is in it"),
        (&["restore-file", "--replace", "m/p@s"], 1, "pando rollback m/p s"),
    ] {
        b.fails(args, code, says);
    }
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/p"]).lines().count(), 1);
    // What a terminal would obey.
    b.sh("mkdir \"m/$(printf 'red\\033[31m')\"");
    let name = b.sh("ls -d m/red*").trim_end().to_owned();
    let told = b.ok(&["du", &name]);
    assert!(told.ends_with("  m/red?[31m\n"), "{told:?}");
}

/// It said that they would be deleted.
#[test]
fn a_dry_run_of_who_may_not_delete_snapshots_says_so() {
    let Some(b) = Bench::shared("test") else { return };
    b.sh("mkdir m/p; chmod 777 m/p");
    b.ok(&["snapshot", "create", "m/p", "s"]);
    let as_user = |args: &[&str]| {
        let mut command = Command::new(b.path("pando"));
        command.args(args).current_dir(b.path("."));
        let out = command.uid(1000).gid(1000).output().unwrap();
        (out.status.code(), text(&out.stdout) + &text(&out.stderr))
    };
    let (code, said) = as_user(&["snapshot", "delete", "-n", "m/p", "s"]);
    assert!(code == Some(1) && said.contains("only its owner, or root"), "{code:?} {said}");
    b.sh("chown 1000:1000 m/p");
    assert_eq!(as_user(&["snapshot", "delete", "-n", "m/p", "s"]).0, Some(0));
    assert_eq!(as_user(&["snapshot", "delete", "m/p", "s"]), (Some(0), "deleted 1 s\n".into()));
}
