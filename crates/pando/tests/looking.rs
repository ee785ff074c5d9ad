//! Who sees and changes what by the requests that tell of trees, or change all of one: differences, forks, what a
//! tree takes, changes of attributes. As in `rights.rs`, what the kernel would refuse must be refused.
//!
//! Only root can set these scenes; for others the tests are skipped, and say so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    io::Seek,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::Path,
    process::Command,
};

use crate::common::{Bench, has, text};
use pando_fuse::{
    asked::Asked,
    client::{self, ControlError},
    control::ControlRequest,
    forked::ForkAsked,
    quotas::QuotaAsked,
    tool,
};
use rustix::fs::{FileType, Mode, makedev, mkdirat, mknodat};

/// Two ordinary users.
const ANN: u32 = 41_011;
const BOB: u32 = 41_012;

/// Runs a line of the shell as a user without further groups: whether it succeeded, and what it said.
fn sh_as(b: &Bench, uid: u32, line: &str) -> (bool, String) {
    let mut command = Command::new("sh");
    let out = command.args(["-c", line]).current_dir(b.path("")).uid(uid).gid(uid).output().unwrap();
    (out.status.success(), text(&out.stdout) + &text(&out.stderr))
}

/// What makes a command of root's one that only has his number, as far as the programs for that are there.
fn roots_by_number() -> Vec<&'static str> {
    let mut wraps = Vec::new();
    if has("unshare") && Command::new("unshare").args(["-U", "true"]).status().unwrap().success() {
        wraps.extend(["unshare -U", "unshare -U -r"]);
    }
    if has("setpriv") {
        wraps.push("setpriv --bounding-set -all --inh-caps -all");
    }
    wraps
}

fn fine(b: &Bench, uid: u32, line: &str) -> String {
    let (done, said) = sh_as(b, uid, line);
    assert!(done, "{line} as {uid}: {said}");
    said
}

/// What a process of its own sees as `uid` when it tries `what` on a path.
fn look(b: &Bench, uid: u32, what: &str, path: &str) -> (bool, String) {
    let (_, said) =
        sh_as(b, uid, &format!("LOOK='{what}' LOOK_AT={path} ./looker --exact looking::looker --nocapture"));
    let found = said.lines().find_map(|line| line.strip_prefix("LOOK ")).unwrap_or_else(|| panic!("{said}"));
    match found.split_once(' ').unwrap() {
        ("ok", told) => (true, told.to_owned()),
        (_, told) => (false, told.to_owned()),
    }
}

/// Not a test: what [`look`] runs in a process of its own.
#[test]
fn looker() {
    let Ok(what) = std::env::var("LOOK") else { return };
    let path = std::env::var("LOOK_AT").unwrap();
    let path = Path::new(&path);
    let told: Result<String, ControlError> = match what.as_str() {
        "info" => tool::fork_of(path).map(|info| format!("{info:?}")),
        "usage" => tool::usage(path).map(|usage| format!("{usage:?}")),
        // Root is shown in the directory `m/rw`, and the tree by a descriptor through another mount.
        "change" => change(path, Path::new("m/rw")),
        "quota" => quota(path, Path::new("m/rw")),
        "snapshots" => return others_snapshots(path, Path::new("m/rw")),
        "alike" => tool::alike_snapshots(path, Path::new("in/f")).map(|found| format!("{found:?}")),
        "compare" => compare(path, Path::new("m/other")),
        "compare after" => compare_after(path, Path::new("m/other")),
        "merge" => merge(Path::new("m/fork"), path, Path::new("m/rw")),
        other => match other.strip_prefix("origin ") {
            Some(file) => origin(path, Path::new(file)),
            None => panic!("no {other}"),
        },
    };
    match told {
        Ok(told) => println!("\nLOOK ok {told}"),
        Err(e) => println!("\nLOOK no {e:?}"),
    }
}

fn change(tree: &Path, elsewhere: &Path) -> Result<String, ControlError> {
    let (tree, elsewhere) = (File::open(tree).unwrap(), File::open(elsewhere).unwrap());
    let token = client::token(&tree)?;
    let shown = mknodat(&elsewhere, token.name(), FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
    assert_eq!(shown.unwrap_err().raw_os_error(), libc::ECANCELED);
    // Nor is it enough to be allowed something in a directory beside.
    assert!(mkdirat(&elsewhere, token.name(), Mode::RWXU).is_err());
    let change = pando_fs::TreeChange { uid: Some(BOB), ..Default::default() };
    client::send(&tree, &ControlRequest::Change { token, change }).map(|_| String::new())
}

/// Sets a quota of what is open through one mount, with all that the kernel shows of root in another directory.
fn quota(tree: &Path, elsewhere: &Path) -> Result<String, ControlError> {
    let (tree, elsewhere) = (File::open(tree).unwrap(), File::open(elsewhere).unwrap());
    let token = client::token(&tree)?;
    for at in [&tree, &elsewhere] {
        let _root = mknodat(at, token.name(), FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
    }
    client::piece(&tree, &ControlRequest::Quota { token, asked: QuotaAsked::Set(Some(1)) })
        .map(|_| String::new())
}

/// Every request about the snapshots of a directory that changes something, with all that the kernel shows in another.
fn others_snapshots(of: &Path, elsewhere: &Path) {
    let (dir, elsewhere) = (File::open(of).unwrap(), File::open(elsewhere).unwrap());
    let new = pando_fs::NewSnapshot { name: Some("stolen".into()), ..Default::default() };
    let own = client::token(&elsewhere).unwrap();
    let made = [Asked::Create(new.clone()), Asked::Take(new, own.0)];
    // Numbers are those of the whole file system.
    let changed = (1..=2).flat_map(|n| {
        [Asked::Rename(n, "other".into()), Asked::Keep(n, true), Asked::Rollback(n, true), Asked::Delete(n)]
    });
    for asked in made.into_iter().chain(changed) {
        // Beside, and in the directory itself if the kernel allows it.
        for at in [&elsewhere, &dir] {
            let token = client::token(&dir).unwrap();
            let _root = mknodat(at, token.name(), FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
            assert!(mkdirat(at, token.name(), Mode::RWXU).is_err());
            let answer = client::send(&dir, &ControlRequest::Snapshot { token, asked: asked.clone() });
            if answer.is_ok() {
                println!("\nLOOK ok {asked:?}");
                return;
            }
        }
    }
    println!("\nLOOK no all were refused");
}

/// What a file of a fork held when that was made.
fn origin(fork: &Path, file: &Path) -> Result<String, ControlError> {
    let mut copy = tempfile::tempfile().unwrap();
    // Others are not told the number, which is small.
    let number = tool::fork_of(fork).map_or(1, |info| info.number);
    tool::write_origin((fork, number), file, &mut copy)?;
    copy.rewind().unwrap();
    Ok(std::io::read_to_string(copy).unwrap())
}

/// Compares two files by descriptors that are for writing only.
fn compare(a: &Path, b: &Path) -> Result<String, ControlError> {
    let open = |path| File::options().write(true).open(path).unwrap();
    let (a, b) = (open(a), open(b));
    let (before, after) = (client::token(&a)?, client::token(&b)?);
    let request = ControlRequest::Diff { before, after, ranges: true, no_renames: false };
    client::piece(&a, &request).map(|(told, _)| format!("{} bytes", told.len()))
}

/// The same where the first may be read.
fn compare_after(secret: &Path, known: &Path) -> Result<String, ControlError> {
    let (secret, known) = (File::options().write(true).open(secret).unwrap(), File::open(known).unwrap());
    let (before, after) = (client::token(&known)?, client::token(&secret)?);
    let request = ControlRequest::Diff { before, after, ranges: true, no_renames: false };
    client::piece(&known, &request).map(|(told, _)| format!("{} bytes", told.len()))
}

/// Merges a fork into a directory, with all that the kernel shows in another.
fn merge(fork: &Path, into: &Path, elsewhere: &Path) -> Result<String, ControlError> {
    let open = |path| File::open(path).unwrap();
    let (fork, to, elsewhere) = (open(fork), open(into), open(elsewhere));
    let (token, into) = (client::token(&fork)?, client::token(&to)?);
    for (at, token) in [(&fork, token), (&elsewhere, into)] {
        let _root = mknodat(at, token.name(), FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
        assert!(mkdirat(at, token.name(), Mode::RWXU).is_err());
    }
    let asked = ForkAsked::Merge(pando_fs::MergeOptions::default());
    client::piece(&fork, &ControlRequest::Fork { token, into, asked }).map(|_| String::new())
}

#[test]
fn snapshots_are_made_and_changed_by_owners_through_mounts_that_may_be_written_to() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(&format!(
        "mkdir -p ro m/t m/rw m/theirs; echo x > m/t/f; chmod 777 m/rw m/theirs; chown {ANN} m/theirs
         mount --bind m/t ro; mount -o remount,bind,ro ro"
    ));
    b.ok(&["snapshot", "create", "m/t", "one"]);
    fine(&b, ANN, "./pando snapshot create m/theirs one");
    b.sh("echo y > m/t/f");
    for (uid, of) in [(0, "ro"), (BOB, "m/theirs"), (BOB, "m/t")] {
        let (done, said) = look(&b, uid, "snapshots", of);
        assert!(!done, "{of} as {uid}: {said}");
    }
    for dir in ["m/t", "m/theirs"] {
        assert_eq!(b.sh(&format!("ls {dir}/.snapshots")), "one\n", "{dir}");
    }
    assert_eq!(b.sh("cat m/t/f"), "y\n");
    b.sh("umount ro");
}

#[test]
fn forks_are_merged_by_owners_through_mounts_that_may_be_written_to() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("mkdir -p ro m/t m/rw m/theirs; echo x > m/t/f; chmod 777 m/rw m/theirs");
    b.ok(&["fork", "m/t", "m/fork"]);
    b.sh("echo y > m/fork/f; chmod 777 m/fork; mount --bind m/t ro; mount -o remount,bind,ro ro");
    for (uid, into) in [(0, "ro"), (BOB, "m/theirs"), (BOB, "m/rw")] {
        let (done, said) = look(&b, uid, "merge", into);
        assert!(!done, "{into} as {uid}: {said}");
    }
    fine(
        &b,
        BOB,
        "set -e; mkdir m/own; ! ./pando merge m/fork --into m/own || exit 1
         ! ./pando merge --dry-run m/fork --into m/own || exit 1; ls m/own",
    );
    assert_eq!(b.sh("cat m/t/f; ls m/theirs m/own"), "x\nm/own:\n\nm/theirs:\n");
    b.ok(&["merge", "m/fork"]);
    assert_eq!(b.sh("cat ro/f; umount ro"), "y\n");
}

#[test]
fn a_tree_is_not_changed_through_a_read_only_bind_mount() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("mkdir -p ro m/t/d m/rw; echo x > m/t/d/f; mount --bind m/t ro; mount -o remount,bind,ro ro");
    let (done, said) = look(&b, 0, "change", "ro");
    assert!(!done, "{said}");
    assert_eq!(fs::metadata(b.path("m/t/d/f")).unwrap().uid(), 0);
    for line in ["chown -R 41012 ro", "chmod -R 777 ro", "touch -R ro"] {
        let (done, said) = sh_as(&b, 0, &format!("./pando {line}"));
        assert!(!done && said.contains("ead-only"), "{line}: {said}");
    }
    // Through the other mount it is.
    let (done, said) = sh_as(&b, 0, "./pando chown -R 41012 m/t");
    assert!(done, "{said}");
    assert_eq!(fs::metadata(b.path("m/t/d/f")).unwrap().uid(), BOB);
    b.sh("umount ro");
}

#[test]
fn a_quota_is_not_set_through_a_read_only_bind_mount() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("mkdir -p ro m/t m/rw; mount --bind m/t ro; mount -o remount,bind,ro ro");
    let (done, said) = look(&b, 0, "quota", "ro");
    assert!(!done, "{said}");
    b.sh("echo x > m/t/f");
    assert_eq!(b.ok(&["quota", "list", "-H", "m"]), "");
    // Where it may be written to, it is.
    b.ok(&["quota", "set", "m/t", "1G"]);
    assert_eq!(b.ok(&["quota", "list", "-H", "m"]).lines().count(), 1);
    b.sh("umount ro");
}

#[test]
fn through_a_read_only_bind_mount_root_sees_all_and_changes_nothing() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(&format!(
        "mkdir -p ro m/t/closed m/rw; echo x > m/t/closed/f; chown -R {ANN} m/t/closed; chmod 700 m/t/closed"
    ));
    b.ok(&["snapshot", "create", "m/t", "s"]);
    b.ok(&["fork", "m/t", "m/t/fork"]);
    b.sh("echo yy > m/t/closed/f; echo zz > m/t/fork/closed/f; mount --bind m/t ro; mount -o remount,bind,ro ro");
    assert!(b.ok(&["diff", "ro/.snapshots/s", "ro"]).contains("M\tclosed/f\n"));
    assert_eq!(b.ok(&["log", "-H", "ro/closed/f"]).lines().count(), 2);
    assert_eq!(b.ok(&["log", "-H", "ro/closed"]).lines().count(), 2);
    assert!(b.ok(&["diff", "ro/fork"]).contains("M\tclosed/f\n"));
    assert!(b.ok(&["forks", "ro"]).contains("fork"));
    b.ok(&["du", "ro"]);
    b.fails(&["quota", "set", "ro", "1G"], 1, "ead-only");
    b.fails(&["merge", "--theirs", "ro/fork"], 1, "ead-only");
    assert_eq!(b.sh("cat m/t/closed/f"), "yy\n");
    // Who has only root's number sees what others see.
    for wrap in roots_by_number() {
        let (done, said) = sh_as(&b, 0, &format!("{wrap} ./pando diff ro/.snapshots/s ro"));
        let refused = said.contains("closed: something differs in it, and you may not look into it");
        assert!(!done && refused && !said.contains("closed/f"), "{wrap}: {said}");
    }
    b.sh("umount ro");
}

#[test]
fn what_lies_in_a_directory_that_may_not_be_entered_is_not_told() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("mkdir m/closed m/open; echo secret-content > m/closed/f; chmod 744 m/closed; chmod 777 m/open");
    fine(&b, BOB, "echo secret-contexx > m/open/f; ls m/closed; ! cat m/closed/f");
    for line in ["diff --json m/closed m/open", "diff m/open m/closed", "du m/closed"] {
        let (done, said) = sh_as(&b, BOB, &format!("./pando {line}"));
        assert!(!done && said.contains("ermission denied"), "{line}: {said}");
    }
    let (done, said) = look(&b, BOB, "usage", "m/closed");
    assert!(!done, "{said}");
    // Groups are the kernel's business.
    b.sh(&format!("chgrp {BOB} m/closed; chmod 750 m/closed"));
    let (_, said) = sh_as(&b, BOB, "./pando diff m/closed m/open");
    assert!(said.contains("M\tf"), "{said}");
    b.sh("chgrp 41099 m/closed");
    let groups = format!("setpriv --reuid {BOB} --regid {BOB} --groups 41099");
    if has("setpriv") {
        let said =
            fine(&b, 0, &format!("{groups} ./pando diff m/closed m/open; {groups} ./pando du m/closed"));
        assert!(said.contains("M\tf"), "{said}");
    }
    fine(&b, 0, "./pando diff m/closed m/open; ./pando du m/closed");
}

/// In which snapshots something is the same tells that it is there, and when it changed.
#[test]
fn in_which_snapshots_a_file_is_the_same_is_told_to_those_who_may_walk_to_it() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("mkdir -p m/d/in; echo 1 > m/d/in/f; chmod 744 m/d");
    (0..4).for_each(|i| drop(b.ok(&["snapshot", "create", "m/d", &format!("s{i}")])));
    let (done, said) = look(&b, BOB, "alike", "m/d");
    assert!(!done && said.contains("permission denied"), "{said}");
    // Now he may enter it, but not what it was in the snapshots.
    b.sh("chmod 755 m/d");
    assert_eq!(look(&b, BOB, "alike", "m/d"), (true, "[]".into()));
    (4..7).for_each(|i| drop(b.ok(&["snapshot", "create", "m/d", &format!("s{i}")])));
    assert_eq!(look(&b, BOB, "alike", "m/d"), (true, "[6, 7]".into()));
    b.sh("chmod 711 m/d/in");
    (7..10).for_each(|i| drop(b.ok(&["snapshot", "create", "m/d", &format!("s{i}")])));
    assert_eq!(look(&b, BOB, "alike", "m/d"), (true, "[6, 7]".into()));
    assert_eq!(look(&b, 0, "alike", "m/d"), (true, "[2, 3, 4, 6, 7, 9, 10]".into()));
}

#[test]
fn files_are_compared_for_those_only_who_have_opened_them_for_reading() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh("echo secret > m/closed; echo secrex > m/other; chmod 622 m/closed; chmod 666 m/other");
    let (done, said) = sh_as(&b, BOB, "./pando diff m/closed m/other");
    assert!(!done && said.contains("ermission denied"), "{said}");
    for mode in ["622", "666"] {
        b.sh(&format!("chmod {mode} m/closed"));
        for what in ["compare", "compare after"] {
            let (done, said) = look(&b, BOB, what, "m/closed");
            assert!(!done && said.contains("Refused"), "{what}, {mode}: {said}");
        }
    }
    assert!(fine(&b, BOB, "./pando diff --json m/closed m/other").contains("\"ranges\":[[5,6]]"));
}

/// That a fork may be listed tells the names in it, and nothing of what they were.
#[test]
fn what_a_fork_has_changed_is_told_to_those_who_may_enter_it() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(
        "mkdir m/d; echo x > m/d/secretname; ./pando fork m/d m/fork; rm m/fork/secretname; chmod 744 m/fork",
    );
    let (done, said) = sh_as(&b, BOB, "./pando diff m/fork");
    assert!(!done && said.contains("ermission denied") && !said.contains("secretname"), "{said}");
    // By his groups he may do less than others, which only the kernel knows.
    b.sh("chgrp 41099 m/fork; chmod 745 m/fork");
    if has("setpriv") {
        let groups = format!("setpriv --reuid {BOB} --regid {BOB} --groups 41099");
        let (done, said) = sh_as(&b, 0, &format!("{groups} ./pando diff m/fork"));
        assert!(!done && said.contains("ermission denied") && !said.contains("secretname"), "{said}");
    }
    assert!(fine(&b, BOB, "./pando diff m/fork").contains("-\tsecretname"));
}

#[test]
fn what_a_fork_was_made_of_is_told_to_those_who_could_see_it() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(&format!(
        "mkdir -p m/hidden/o; echo x > m/hidden/o/secretname; echo y > m/hidden/o/f; chown -R {ANN} m/hidden; chmod 700 m/hidden m/hidden/o"
    ));
    fine(
        &b,
        ANN,
        "./pando fork m/hidden/o m/fork && rm m/fork/secretname && echo z > m/fork/f && chmod 755 m/fork",
    );
    // What it was is closed to others, and where it was as well.
    let (done, said) = sh_as(&b, BOB, "./pando diff m/fork");
    assert!(!done && !said.contains("secretname"), "{said}");
    let (done, said) = look(&b, BOB, "info", "m/fork");
    assert!(!done && !said.contains("hidden"), "{said}");
    let (_, said) = sh_as(&b, BOB, "./pando merge --dry-run m/fork; ./pando forks m");
    assert!(!said.contains("hidden") && !said.contains("secretname"), "{said}");
    for uid in [ANN, 0] {
        assert!(fine(&b, uid, "./pando diff m/fork").contains("-\tsecretname"));
        let (done, said) = look(&b, uid, "info", "m/fork");
        assert!(done && said.contains("/hidden/o"), "{said}");
        fine(&b, uid, "./pando merge --dry-run m/fork; ./pando forks m/hidden/o | grep fork");
    }
    // A fork that root has made for her is hers as well.
    b.sh("./pando fork m/hidden/o m/given");
    let (done, said) = look(&b, ANN, "info", "m/given");
    assert!(done, "{said}");
    // One that was open from the start is told to all.
    b.sh(&format!("mkdir m/plain; echo x > m/plain/f; chown -R {ANN} m/plain"));
    fine(&b, ANN, "./pando fork m/plain m/fork2 && echo y > m/fork2/f");
    assert!(fine(&b, BOB, "./pando diff m/fork2").contains("M\tf"));
}

/// The old content of a file is told to whoever could have read it when the fork was made.
#[test]
fn what_files_of_a_fork_held_is_told_to_those_who_could_read_it() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(&format!(
        "mkdir -p m/d/closed; cd m/d; for f in open own closed/in; do echo secret > $f; done
         chown -R {ANN} .; chmod 600 own; chmod 700 closed"
    ));
    fine(
        &b,
        ANN,
        "./pando fork m/d m/fork && cd m/fork && chmod 755 closed && chmod 644 own && echo z > open && echo z > own \
         && echo z > closed/in",
    );
    let (done, said) = sh_as(&b, BOB, "./pando diff -u m/fork");
    assert!(!done && !said.contains("secret") && said.contains("only its owner"), "{said}");
    assert!(fine(&b, ANN, "./pando diff -u m/fork").matches("-secret").count() == 3);
    // What the difference does not name can be asked for by name.
    for (uid, file, may) in [
        (BOB, "open", false),
        (BOB, "own", false),
        (BOB, "closed/in", false),
        (ANN, "own", true),
        (ANN, "closed/in", true),
        (0, "own", true),
        (0, "closed/in", true),
        (ANN, "none", false),
        (ANN, "closed", false),
        (ANN, "open/in", false),
        (0, "../d/own", false),
    ] {
        let (done, said) = look(&b, uid, &format!("origin {file}"), "m/fork");
        assert_eq!((done, said.contains("secret")), (may, may), "{file} as {uid}: {said}");
    }
    // The fork is Bob's now; what it was made of is not, nor are names in it.
    b.sh(&format!("chown {BOB} m/fork"));
    assert!(look(&b, BOB, "origin open", "m/fork").0);
    for file in ["own", "closed/in", "closed/no/x"] {
        let (done, said) = look(&b, BOB, &format!("origin {file}"), "m/fork");
        assert!(!done && said.contains("errno: 13"), "{file}: {said}");
    }
    let (done, said) = look(&b, ANN, "origin f", "m/d");
    assert!(!done && said.contains("not a fork"), "{said}");
    b.umount();
}

#[test]
fn on_a_read_only_mount_root_is_root_and_who_only_has_its_number_is_not() {
    let Some(b) = Bench::shared("looker") else { return };
    b.sh(&format!(
        "mkdir -p m/a/closed m/b; echo x > m/a/closed/secretname; chown -R {ANN} m/a/closed; chmod 700 m/a/closed"
    ));
    fine(&b, ANN, "./pando fork m/a/closed m/fork");
    b.umount();
    b.ok(&["mount", "-o", "ro,allow_other", "--log-file", "log", "a.img", "m"]);
    let lines = ["du m/a", "diff m/a m/b"];
    for wrap in roots_by_number() {
        assert!(!sh_as(&b, 0, &format!("{wrap} ls m/a/closed")).0, "{wrap}");
        for line in lines {
            let (done, said) = sh_as(&b, 0, &format!("{wrap} ./pando {line}"));
            assert!(!done && !said.contains("secretname"), "{wrap} pando {line}: {said}");
        }
        let (_, said) = sh_as(&b, 0, &format!("{wrap} ./pando forks m"));
        assert!(!said.contains("closed"), "{wrap}: {said}");
    }
    let said = fine(&b, 0, "./pando du m/a; ./pando diff m/a m/b; ./pando forks m");
    assert!(said.contains("secretname") && said.contains("m/fork"), "{said}");
    b.umount();
}
