//! `pando fork`, `forks`, `discard` and `diff FORK` as a user has them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[macro_use]
mod common;

#[test]
fn a_fork_knows_what_it_changed_and_goes_without_a_trace() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src m/p/.trees; echo one > m/p/src/f; echo keep > m/p/keep");
    b.ok(&["fork", "--exclude", ".trees", "m/p", "m/p/.trees/a"]);
    b.ok(&["clone", "--track", "m/p/src", "m/other"]);
    b.fails(&["fork", "m/p/keep", "m/file"], 1, "not a directory");
    assert_eq!(b.ok(&["diff", "m/p/.trees/a"]), "");
    b.sh("echo two > m/p/.trees/a/src/f; rm m/p/.trees/a/keep; echo new > m/p/.trees/a/new");
    b.sh("echo later > m/p/src/f");
    let told = b.ok(&["diff", "--no-renames", "m/p/.trees/a"]);
    let mut lines: Vec<_> = told.lines().filter(|line| !line.ends_with("\t.")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["+\tnew", "-\tkeep", "M\tsrc/f"]);
    // A clone of a fork is none, and a fork that is moved stays one.
    b.ok(&["clone", "m/p/.trees/a", "m/copy"]);
    b.fails(&["diff", "m/copy"], 1, "not a fork");
    b.fails(&["discard", "m/copy"], 1, "not a fork");
    b.sh("mv m/p m/q; mv m/q/.trees/a m/a");
    let report = b.json(&["forks", "--json", "m/q"]);
    assert_eq!(report["forks"].as_array().unwrap().len(), 1);
    let fork = &report["forks"][0];
    assert!(fork["path"].as_str().unwrap().ends_with("/m/a"), "{fork}");
    assert!(fork["source"].as_str().unwrap().ends_with("/m/q"), "{fork}");
    assert_eq!((&fork["state"], fork["created"].is_string()), (&"changed".into(), true));
    assert!(fork["changed"].as_u64().unwrap() >= 3, "{fork}");
    assert_eq!(b.ok(&["forks", "-H", "m"]).lines().count(), 2);
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/q"]), "");
    // Whatever removes it, or what it was made of.
    b.remount();
    b.sh("rm -rf m/other");
    assert_eq!(b.ok(&["forks", "-H", "m"]).lines().count(), 1);
    b.sh("rm -r m/q");
    assert!(b.ok(&["forks", "m"]).contains(" orphan "));
    b.ok(&["discard", "m/a"]);
    assert_eq!(b.ok(&["forks", "-H", "m"]), "");
    b.umount();
    b.ok(&["check", "a.img"]);
}
