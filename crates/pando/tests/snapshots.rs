//! Snapshots as a user has them: `pando snapshot`, `pando rollback`, and what ordinary programs see.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::Command,
};

use crate::common::{same, text};

const EROFS: i32 = 30;

#[test]
fn a_snapshot_is_the_tree_as_it_was() {
    let b = mounted!();
    let tree = b.tree("t");
    b.sh("cp -a t m/p");
    assert!(!b.path("m/p/.snapshots").exists(), "the kernel is told that nothing is there");
    assert_eq!(b.ok(&["snapshot", "create", "m/p", "first", "--note", "as it came"]), "first\n");
    b.sh("rm -r m/p/src/deep; echo changed > m/p/src/f1; ln m/p/src/f2 m/p/src/linked");
    let first = b.path("m/p/.snapshots/first");
    same(&tree, &first);
    // In no listing, so nobody falls in; there for who asks.
    assert_eq!(b.sh("ls -A m/p | grep -c snapshots || true").trim(), "0");
    assert_eq!(b.sh("find m/p -name first | wc -l").trim(), "0");
    assert_eq!(b.sh("ls m/p/.snapshots").trim(), "first");
    let (there, live) =
        (fs::metadata(first.join("src/f2")).unwrap(), fs::metadata(b.path("m/p/src/f2")).unwrap());
    assert_ne!(there.ino(), live.ino());
    assert_eq!(there.mtime_nsec(), live.mtime_nsec());
    // Nobody can change it, whoever he is.
    let errors = [
        fs::write(first.join("new"), "x").unwrap_err(),
        fs::write(first.join("src/f1"), "x").unwrap_err(),
        fs::remove_file(first.join("src/f1")).unwrap_err(),
        fs::create_dir(first.join("dir")).unwrap_err(),
        fs::rename(first.join("src/f1"), first.join("src/f0")).unwrap_err(),
        fs::create_dir(b.path("m/p/.snapshots/other")).unwrap_err(),
        fs::remove_dir(&first).unwrap_err(),
        fs::set_permissions(&first, fs::metadata(&tree).unwrap().permissions()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.raw_os_error(), Some(EROFS), "{error}");
    }
    b.remount();
    same(&tree, &first);
    assert_eq!(fs::metadata(first.join("src/f2")).unwrap().ino(), there.ino(), "after a remount");
    b.ok(&["clone", "m/p/.snapshots/first", "m/again"]);
    same(&tree, b.path("m/again"));
    b.ok(&["clone", "m/p/.snapshots/first/src", "m/part"]);
    same(tree.join("src"), b.path("m/part"));
    b.fails(&["clone", "m/again", "m/p/.snapshots/x"], 1, "is in a snapshot");
    b.sh("echo x > m/again/src/f1");
    same(&tree, &first);
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn they_are_listed_kept_renamed_and_deleted() {
    let b = mounted!();
    b.sh("mkdir m/d; head -c 3000000 /dev/urandom > m/d/f");
    b.ok(&["snapshot", "create", "m/d", "one", "--keep"]);
    b.ok(&["snapshot", "create", "m/d", "two", "--valid-for", "7d", "--note", "why\tnot"]);
    let named = b.ok(&["snapshot", "create", "m/d"]);
    assert!(named.ends_with("Z\n"), "{named}");
    b.fails(&["snapshot", "create", "m/d", "one"], 1, "exists");
    b.fails(&["snapshot", "create", "m/d", "12"], 1, "not a name");
    b.sh("rm m/d/f");
    let list = b.json(&["snapshot", "list", "--json", "--space", "m/d"]);
    let (one, two) = (&list["snapshots"][0], &list["snapshots"][1]);
    assert_eq!((one["name"].as_str(), one["keep"].as_bool()), (Some("one"), Some(true)));
    assert_eq!((two["valid_for_seconds"].as_u64(), two["note"].as_str()), (Some(604_800), Some("why\tnot")));
    assert_eq!(two["source"], "/d");
    assert!(one["refers"].as_u64().unwrap() > 2_900_000 && one["alone"].as_u64().unwrap() < 500_000, "{one}");
    let listed = b.ok(&["snapshot", "list", "m/d"]);
    assert!(listed.starts_with("NUMBER"), "{listed}");
    assert!(listed.contains("keep") && listed.contains("valid=1w"), "{listed}");
    let script = b.ok(&["snapshot", "list", "-H", "m/d"]);
    assert_eq!(script.lines().count(), 3);
    assert!(script.lines().all(|line| line.split('\t').count() == 6), "{script}");
    // What is asked for, in the order that is asked for.
    let asked = |more: &[&str]| b.ok(&[&["snapshot", "list", "-H", "m/d"], more].concat());
    assert_eq!(asked(&["-o", "name,number", "-S", "number"]).lines().nth(1), Some("two\t2"));
    assert_eq!(asked(&["-o", "number", "-s", "age"]), "3\n2\n1\n");
    let sizes = asked(&["-o", "alone,refers", "-s", "alone"]);
    let alone = |line: &str| line.split_once('\t').and_then(|(alone, _)| alone.parse::<u64>().ok());
    let sizes: Vec<_> = sizes.lines().map(|line| alone(line).expect("a number of bytes")).collect();
    assert!(sizes.len() == 3 && sizes.is_sorted(), "{sizes:?}");
    assert!(b.ok(&["snapshot", "list", "-o", "user,note", "m/d"]).starts_with("USER  NOTE\n"));
    b.fails(&["snapshot", "list", "-o", "colour", "m/d"], 2, "colour");
    b.fails(&["snapshot", "list", "--json", "-o", "name", "m/d"], 2, "--json");
    b.fails(&["snapshot", "create", "m/d", ""], 1, "an empty name");
    b.fails(&["snapshot", "delete", "m/d", "one"], 1, "release it first");
    assert!(b.path("m/d/.snapshots/one").exists(), "it was kept");
    b.fails(&["snapshot", "delete", "m/d", "nothing"], 1, "no such snapshot");
    b.fails(&["snapshot", "delete", "m/d"], 1, "say which");
    let said = b.ok(&["snapshot", "delete", "m/d", "1..3", "-n"]);
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.starts_with("would leave 1 one: it is kept\nwould delete 2 two:"), "{said}");
    // One that is kept is left, and does not keep others from being deleted.
    b.ok(&["snapshot", "create", "m/d", "four"]);
    let outcome = b.run(&["snapshot", "delete", "m/d", "1..1", "four.."]);
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(
        outcome.status.success() && said.contains("snapshot one of m/d: is kept, and was left"),
        "{said}"
    );
    assert!(b.path("m/d/.snapshots/one").exists() && !b.path("m/d/.snapshots/four").exists());
    b.ok(&["snapshot", "create", "m/d", "five"]);
    b.fails(&["snapshot", "delete", "m/d", "one", "five"], 1, "release it first");
    assert!(b.path("m/d/.snapshots/one").exists() && !b.path("m/d/.snapshots/five").exists());
    b.ok(&["snapshot", "rename", "m/d", "one", "uno"]);
    assert!(b.path("m/d/.snapshots/uno/f").exists() && !b.path("m/d/.snapshots/one").exists());
    b.ok(&["snapshot", "release", "m/d", "uno"]);
    b.fails(&["snapshot", "prune", "m/d"], 1, "without a policy");
    b.ok(&["snapshot", "prune", "m/d", "--keep-last", "1", "--dry-run"]);
    assert_eq!(b.sh("ls m/d/.snapshots | wc -l").trim(), "3");
    b.ok(&["snapshot", "prune", "m/d", "--keep-last", "1"]);
    // The one that is valid stays.
    assert_eq!(b.sh("ls m/d/.snapshots | wc -l").trim(), "2");
    b.ok(&["snapshot", "delete", "m/d", "2.."]);
    assert_eq!(b.sh("ls m/d/.snapshots | wc -l").trim(), "0");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn going_back_brings_the_tree_back() {
    let b = mounted!();
    let tree = b.tree("t");
    b.sh("cp -a t m/p");
    b.ok(&["snapshot", "create", "m/p", "good"]);
    b.sh("rm -r m/p/src; echo bad > m/p/bad");
    let before = b.ok(&["rollback", "m/p", "good"]);
    same(&tree, b.path("m/p"));
    assert_eq!(fs::read(b.path("m/p/.snapshots").join(before.trim()).join("bad")).unwrap(), b"bad\n");
    assert_eq!(b.sh("ls m/p/.snapshots | wc -l").trim(), "2");
    b.sh("echo worse > m/p/worse");
    assert_eq!(b.ok(&["rollback", "--discard", "m/p", "good"]), "");
    same(&tree, b.path("m/p"));
    assert_eq!(b.sh("ls m/p/.snapshots | wc -l").trim(), "2");
    b.ok(&["snapshot", "create", "m", "all"]);
    assert!(b.path("m/.snapshots/all/p/src").exists());
    b.fails(&["rollback", "m", "all"], 1, "root");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn what_is_left_of_a_directory_that_is_gone_comes_to_another() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root");
        return;
    }
    b.sh("mkdir m/d m/other; head -c 300000 /dev/urandom > m/d/f; cp m/d/f before");
    b.ok(&["snapshot", "create", "m/d", "one", "--keep"]);
    // Nothing in a name is obeyed by a terminal, or takes a line or field of its own.
    b.umount();
    b.ok(&["mount", "-o", "allow_other", "a.img", "m"]);
    b.sh("chmod 755 . m; chown 41001 m/d");
    b.copy_program(env!("CARGO_BIN_EXE_pando"), "pando");
    let mut other = Command::new(b.path("pando"));
    other.args(["snapshot", "create", "m/d", "two\n9\t\u{1b}[31m"]).current_dir(b.path(""));
    assert!(other.uid(41_001).gid(41_001).output().unwrap().status.success());
    b.ok(&["snapshot", "create", "m/other", "stays"]);
    assert_eq!(b.ok(&["snapshot", "create", "m/other", "a\n\u{1b}[31m\\"]), "a??[31m\\\n");
    b.fails(&["snapshot", "delete", "m/other", "no\n\u{1b}[31m"], 1, "no??[31m");
    b.ok(&["snapshot", "delete", "m/other", "a\n\u{1b}[31m\\"]);
    let second = "2\ttwo\\0129\\011\\033[31m";
    assert!(b.ok(&["snapshot", "list", "-H", "m/d"]).lines().any(|line| line.starts_with(second)));
    b.ok(&["rm", "-r", "m/d"]);
    for _ in 0..2 {
        let found = b.ok(&["snapshot", "orphans", "-H", "m"]);
        let lines: Vec<Vec<&str>> = found.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!((lines.len(), &lines[0][..2], lines[0][4]), (2, &["1", "one"][..], "/d"), "{found}");
        // What each takes, and who made it.
        let bytes =
            |field: usize| lines.iter().map(|line| line[field].parse::<u64>().unwrap()).collect::<Vec<_>>();
        assert!(bytes(6).iter().all(|refers| (300_000..600_000).contains(refers)), "{found}");
        assert!(bytes(7).iter().all(|alone| *alone < 100_000) && bytes(8) == [0, 41_001], "{found}");
        assert!(found.lines().nth(1).unwrap().starts_with(second), "{found}");
        b.remount();
    }
    assert_eq!(b.json(&["snapshot", "orphans", "--json", "m"])["snapshots"].as_array().unwrap().len(), 2);
    b.fails(&["snapshot", "adopt", "m/other", "1"], 1, "exists");
    b.sh("mkdir m/new; ls m/new/.snapshots 2>/dev/null || true");
    b.fails(&["snapshot", "adopt", "m/new", "3"], 1, "snapshot 3 of a directory that is gone");
    b.ok(&["snapshot", "adopt", "m/new", "2"]);
    assert_eq!(b.ok(&["snapshot", "orphans", "-H", "m"]), "");
    b.sh("cmp before m/new/.snapshots/one/f");
    b.ok(&["rollback", "m/new", "one", "--discard"]);
    b.sh("cmp before m/new/f");
    b.ok(&["snapshot", "release", "m/new", "one"]);
    b.ok(&["snapshot", "delete", "m/new", "1..2"]);
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/new"]), "");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn those_of_directories_that_are_gone_are_deleted_at_once() {
    let b = mounted!();
    b.sh("mkdir m/d m/e m/there; head -c 500000 /dev/urandom > m/d/f; echo x > m/e/f");
    for (dir, name) in [("d", "one"), ("d", "two"), ("e", "kept"), ("e", "three"), ("there", "four")] {
        b.ok(&["snapshot", "create", &format!("m/{dir}"), name]);
    }
    b.ok(&["snapshot", "keep", "m/e", "kept"]);
    b.sh("rm -r m/d m/e");
    let would = b.ok(&["snapshot", "orphans", "--delete", "-n", "m"]);
    let lines: Vec<&str> = would.lines().collect();
    assert!(lines[0].starts_with("would delete 1 one: ") && lines[0].ends_with(" of its own"), "{would}");
    assert_eq!((lines.len(), lines[2]), (5, "would leave 3 kept: it is kept"), "{would}");
    b.fails(&["snapshot", "orphans", "-n", "m"], 2, "--delete");
    let out = b.run(&["snapshot", "orphans", "--delete", "m"]);
    let said = text(&out.stderr);
    assert!(
        out.status.success() && said.contains("snapshot 3 kept of /e, which is gone: is kept, and was left"),
        "{said}"
    );
    let left = b.ok(&["snapshot", "orphans", "-H", "m"]);
    assert_eq!((left.lines().count(), left.split('\t').nth(1)), (1, Some("kept")), "{left}");
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/there"]).lines().count(), 1);
    b.remount();
    // What it takes may be estimated otherwise by then.
    let again = b.ok(&["snapshot", "orphans", "-H", "m"]);
    assert_eq!((again.lines().count(), again.split('\t').nth(1)), (1, Some("kept")), "{again}");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// As `btrfs subvolume snapshot` does: a name that leads to a directory is as good as the directory.
#[test]
fn of_a_link_to_a_directory_they_are_those_of_the_directory() {
    let b = mounted!();
    b.sh("mkdir m/d; echo x > m/d/f; ln -s d m/link; ln -s f m/d/file; ln -s none m/dangling; ln -s m/d outside");
    b.ok(&["snapshot", "create", "m/link", "one"]);
    b.ok(&["snapshot", "create", "outside", "two"]);
    assert_eq!(b.sh("ls m/d/.snapshots"), "one\ntwo\n");
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m/link"]).lines().count(), 2);
    b.ok(&["snapshot", "delete", "m/link", "one"]);
    assert_eq!(b.sh("ls m/d/.snapshots; readlink m/link"), "two\nd\n");
    b.fails(&["snapshot", "create", "m/d/file", "x"], 1, "Not a directory");
    b.fails(&["snapshot", "create", "m/dangling", "x"], 1, "No such file");
    // The directory that holds them has none, and is easily named by mistake.
    b.fails(&["snapshot", "list", "m/d/.snapshots"], 1, "holds the snapshots of");
    assert_eq!(b.ok(&["snapshot", "list", "-H", "m"]), "");
}

#[test]
fn they_show_in_listings_if_asked() {
    let b = mounted!();
    b.sh("mkdir m/d m/none; echo x > m/d/f");
    b.ok(&["snapshot", "create", "m/d", "s"]);
    b.umount();
    b.ok(&["mount", "-o", "snapdir=visible", "a.img", "m"]);
    for _ in 0..2 {
        assert_eq!(b.sh("ls -A m/d").split_whitespace().collect::<Vec<_>>(), [".snapshots", "f"]);
        assert_eq!(b.sh("ls -Al m/d | grep -c snapshots").trim(), "1");
        assert_eq!(b.sh("ls -A m/none; ls -A m/d/.snapshots/s").trim(), "f");
    }
    b.ok(&["snapshot", "create", "m/none", "t"]);
    assert_eq!(b.sh("ls -A m/none").trim(), ".snapshots");
}

/// Who may clone a directory, and write to it through this mount, may do this; others and other mounts may not.
#[test]
fn rights_are_those_of_a_clone() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root");
        return;
    }
    b.umount();
    b.ok(&["mount", "-o", "allow_other", "a.img", "m"]);
    let pando = env!("CARGO_BIN_EXE_pando");
    let (dir, ro) = (b.path("m/d"), b.path("ro"));
    b.sh("chmod 755 . m; mkdir m/d ro; echo x > m/d/f");
    b.ok(&["snapshot", "create", "m/d", "s"]);
    let user = |args: &str| {
        let script =
            format!("setpriv --reuid 12345 --regid 12345 --clear-groups {pando} {args} 2>&1 || true");
        b.sh(&script)
    };
    let d = dir.display();
    if !user("--version").contains("pando") {
        eprintln!("SKIPPED: the program cannot be run by another user here");
        return;
    }
    // Where the directory was may lie behind what the user can reach. What is not known is a dash.
    let list = |said: &str| said.trim_end_matches('\n').split('\t').nth(4).map(str::to_owned);
    assert_eq!(list(&user(&format!("snapshot list -H {d}"))).as_deref(), Some("-"));
    assert_eq!(list(&b.ok(&["snapshot", "list", "-H", "m/d"])).as_deref(), Some("/d"));
    for args in [
        format!("snapshot create {d} t"),
        format!("snapshot delete {d} s"),
        format!("snapshot keep {d} s"),
        format!("snapshot policy {d} --every 1h"),
        format!("snapshot policy {d} --off"),
        format!("snapshot policies {d}"),
        format!("snapshot orphans {d}"),
        format!("snapshot orphans --delete {d}"),
        format!("snapshot adopt {d} 1"),
        format!("rollback {d} s"),
    ] {
        let said = user(&args);
        let refused = ["ermission denied", "ermitted", "only root"].iter().any(|why| said.contains(why));
        assert!(refused, "{args}: {said:?}");
    }
    assert!(user(&format!("snapshot list -H {d}")).starts_with("1\ts\t"));
    // What a log leaves out is said.
    b.sh("chmod 700 m/d");
    let log = user(&format!("log {d}"));
    assert!(log.contains("permission denied: its snapshots are left out"), "{log:?}");
    b.sh("chmod 755 m/d");
    assert!(!user(&format!("log {d}")).contains("left out"));
    b.sh("chown 12345 m/d");
    assert_eq!(user(&format!("snapshot create {d} own")), "own\n");
    assert_eq!(user(&format!("snapshot delete {d} own")), "deleted 2 own\n");
    // A mount that may only be read is no way to change something.
    b.sh("mount --bind m ro; mount -o remount,bind,ro ro");
    let through = ro.join("d");
    let outcome = b.run(&["snapshot", "delete", through.to_str().unwrap(), "s"]);
    b.sh("umount ro");
    assert!(!outcome.status.success());
    assert!(b.path("m/d/.snapshots/s/f").exists());
}
