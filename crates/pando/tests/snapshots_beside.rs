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

/// Of each one's own bytes no sum can be made: what several share with each other is in none of them.
#[test]
fn a_dry_run_tells_what_all_of_them_together_would_give_back() {
    let b = mounted!();
    b.sh("mkdir m/d; head -c 12M /dev/urandom > m/d/f");
    make(&b, "m/d", &["n1", "n2", "n3"]);
    b.sh("rm m/d/f");
    make(&b, "m/d", &["n4"]);
    b.ok(&["sync", "m"]);
    let mib = |args: &[&str]| {
        let said = b.ok(args);
        let (_, last) = said.trim_end().rsplit_once('\n').unwrap();
        let (size, unit) = last.strip_prefix("together: ").expect(&said).split_once(' ').unwrap();
        let size = size.trim_start_matches('~').parse::<f64>().unwrap();
        if unit == "MiB would come back" { size } else { 0.0 }
    };
    let all = [
        &["snapshot", "delete", "-n", "m/d", "1.."][..],
        &["snapshot", "prune", "-n", "m/d", "--keep-last", "1"],
    ];
    for args in all {
        assert!((12.0..16.0).contains(&mib(args)), "{args:?}: {}", b.ok(args));
    }
    // One that stays holds what they share; one that is kept stays.
    assert!(mib(&["snapshot", "delete", "-n", "m/d", "n1..n2", "n4"]) < 1.0);
    b.ok(&["snapshot", "keep", "m/d", "n2"]);
    assert!(mib(&["snapshot", "delete", "-n", "m/d", "1.."]) < 1.0);
    b.ok(&["snapshot", "release", "m/d", "n2"]);
    assert!(!b.ok(&["snapshot", "delete", "-n", "m/d", "n1"]).contains("together"));
    b.sh("rm -r m/d");
    b.ok(&["sync", "m"]);
    if rustix::process::geteuid().is_root() {
        let told = mib(&["snapshot", "orphans", "--delete", "-n", "m"]);
        let used =
            || b.sh("df -B1 --output=used m | tail -1").trim().parse::<f64>().unwrap() / f64::from(1 << 20);
        let before = used();
        b.ok(&["snapshot", "orphans", "--delete", "m"]);
        // It is given back behind. Nodes that it shares with others make it an estimate, and what was changed before
        // may be given back at the same time.
        let begun = std::time::Instant::now();
        let freed = || before - used();
        while freed() < told - 2.5 && begun.elapsed().as_secs() < 30 {
            b.ok(&["sync", "m"]);
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        let freed = freed();
        assert!((12.0..16.0).contains(&told), "{told} MiB told");
        assert!((told - 2.5..told + 6.0).contains(&freed), "{told} MiB told, {freed} freed");
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// A disk that is full took no line of what was deleted, and the rest stayed on it.
#[test]
fn what_cannot_be_printed_is_deleted_all_the_same() {
    let b = mounted!();
    b.sh("mkdir m/d");
    make(&b, "m/d", &["a", "b", "c", "d"]);
    let full = |args: &str| {
        let command = format!("pando snapshot {args} > /dev/full 2> said");
        assert!(!begun(&b, &command).wait().unwrap().success());
        b.sh("cat said")
    };
    assert!(full("delete m/d b c").contains("No space left"));
    assert_eq!(names(&b, "m/d"), ["a", "d"]);
    let said = full("prune m/d --min-free 100%");
    assert!(said.contains("no snapshot is left to delete"), "{said}");
    assert_eq!(names(&b, "m/d"), [""; 0]);
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

#[test]
fn lists_and_logs_leave_out_what_is_deleted_meanwhile() {
    let b = mounted!();
    b.sh("mkdir m/d; echo x > m/d/f");
    make(&b, "m/d", &["stays"]);
    for i in 0..150 {
        b.ok(&["snapshot", "create", "m/d", &format!("s{i}")]);
    }
    let mut beside = begun(&b, "for i in $(seq 0 149); do pando snapshot delete m/d s$i > /dev/null; done");
    while beside.try_wait().unwrap().is_none() {
        let listed = b.ok(&["snapshot", "list", "-H", "--space", "m/d"]);
        assert!(listed.starts_with("1\tstays\t"), "{listed}");
        let log = b.ok(&["log", "-H", "m/d/f"]);
        assert!(log.lines().count() == 1 && log.ends_with("/d/.snapshots/stays/f\n"), "{log}");
    }
    assert_eq!(names(&b, "m/d"), ["stays"]);
}

/// What others may look into is no reason to refuse the whole table.
#[test]
fn a_row_that_is_refused_leaves_the_others() {
    let Some(b) = Bench::shared("test") else { return };
    b.sh("mkdir m/d; head -c 100000 /dev/urandom > m/d/f; chown -R 41001 m/d");
    make(&b, "m/d", &["open"]);
    b.sh("mkdir -m 700 m/d/closed; chmod 755 m/d");
    make(&b, "m/d", &["closed"]);
    let ann =
        |args: &str| b.sh(&format!("setpriv --reuid 41001 --regid 41001 --clear-groups ./pando {args}"));
    if !crate::common::has("setpriv") {
        return;
    }
    let listed = ann("snapshot list -H --space m/d");
    let fields: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
    assert!(fields[0][3].parse::<u64>().unwrap() > 90_000, "{listed}");
    assert_eq!((fields[1][1], &fields[1][3..5]), ("closed", &["-", "-"][..]), "{listed}");
    assert!(ann("snapshot list --space m/d").starts_with("NUMBER  NAME    AGE  REFERS"));
    let would = ann("snapshot delete -n m/d 1..");
    assert!(would.contains("would delete 2 closed: - of its own\ntogether: not known"), "{would}");
}

#[test]
fn a_link_to_a_directory_is_rolled_back_and_forked_as_the_directory() {
    let b = mounted!();
    b.sh("mkdir m/k; echo old > m/k/f; ln -s k m/l; ln -s none m/dangling; ln -s k/f m/file");
    make(&b, "m/k", &["s"]);
    b.sh("echo new > m/k/f");
    b.ok(&["fork", "m/l", "m/fork"]);
    b.ok(&["clone", "--track", "m/l", "m/track"]);
    assert_eq!(b.sh("cat m/fork/f m/track/f"), "new\nnew\n");
    let forks = b.ok(&["forks", "-H", "m/k"]);
    assert_eq!(forks.lines().count(), 2, "{forks}");
    b.ok(&["rollback", "--discard", "m/l", "s"]);
    assert_eq!(b.sh("cat m/k/f; readlink m/l"), "old\nk\n");
    b.ok(&["clone", "m/l", "m/again"]);
    assert_eq!(b.sh("readlink m/again"), "k\n", "a clone of a link is a link");
    b.fails(&["fork", "m/file", "m/x"], 1, "not a directory");
    b.fails(&["rollback", "m/dangling", "s"], 1, "No such file");
}

/// The root of the mount was shown, with the quota of the directory that the snapshot is of.
#[test]
fn a_snapshot_has_no_quotas() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    b.sh("mkdir -p m/k/in");
    b.ok(&["quota", "set", "m/k", "10M"]);
    b.ok(&["quota", "set", "m/k/in", "5M"]);
    make(&b, "m/k", &["s"]);
    make(&b, "m", &["all"]);
    for of in ["m/k/.snapshots/s", "m/k/.snapshots/s/in", "m/k/.snapshots", "m/.snapshots/all"] {
        assert_eq!(b.ok(&["quota", "list", "-H", of]), "", "{of}");
    }
    assert_eq!(b.ok(&["quota", "list", "-H", "m/k"]).lines().count(), 2);
}

#[test]
fn what_cannot_be_done_says_what_to_do_instead() {
    let b = mounted!();
    b.sh("mkdir -p m/u/sub m/into; echo 1 > m/u/f; echo 1 > m/u/sub/g");
    make(&b, "m/u", &["s"]);
    let pando = env!("CARGO_BIN_EXE_pando");
    let receive =
        |path: &str| b.sh(&format!("{pando} send m/u@s 2>/dev/null | {pando} receive m {path} 2>&1 || true"));
    assert!(receive("../x").starts_with("pando: ../x: PATH is a path inside of m"), "{}", receive("../x"));
    for path in [".snapshots", "u/.snapshots", "u/.snapshots/z"] {
        assert!(receive(path).contains(&format!("{path}: .snapshots is where snapshots are seen")), "{path}");
    }
    assert_eq!(b.sh("ls -A m"), "into\nu\n");
    // One's own entry of that name.
    b.sh("mkdir m/into/.snapshots");
    b.fails(&["snapshot", "create", "m/into", "x"], 1, ".snapshots: is an entry of its own");
    b.sh("rmdir m/into/.snapshots");
    for path in ["m/u/.snapshots", "m/u/.snapshots/", "m/u/.snapshots/s"] {
        b.fails(&["rm", "-r", path], 1, "pando snapshot delete");
    }
    b.fails(&["rm", "-r", "m/into/.snapshots"], 1, "No such file");
    // Into a directory, as cp does.
    b.ok(&["restore-file", "m/u/f@s", "--to", "m/into/"]);
    b.fails(&["restore-file", "m/u/f@s", "--to", "m/into"], 1, "exists");
    b.sh("echo 2 > m/into/f");
    b.ok(&["restore-file", "--replace", "m/u/f@s", "--to", "m/into"]);
    assert_eq!(b.sh("cat m/into/f"), "1\n");
    b.ok(&["restore-file", "m/u/sub@s", "--to", "m/into"]);
    assert_eq!(b.sh("cat m/into/sub/g"), "1\n");
    b.ok(&["restore-file", "--replace", "m/u/sub@s", "--to", "m/into"]);
    assert_eq!(b.sh("ls m/into"), "g\n");
    if rustix::process::geteuid().is_root() {
        b.sh("mkdir v");
        b.fails(&["mount", "-o", "snapshot=nodir@A", "a.img", "v"], 1, "/nodir: no such directory");
        b.fails(&["mount", "-o", "snapshot=u@A", "a.img", "v"], 1, "/u: has no snapshot A");
        b.fails(&["mount", "-o", "snapshot=A", "a.img", "v"], 1, "/: has no snapshot A");
    }
    b.sh("mv m/u/f \"$(printf 'm/u/r\\nn')\"");
    let shown = b.ok(&["diff", "-u", "m/u/.snapshots/s", "m/u"]);
    assert_eq!(shown, "rename from f\nrename to \"r\\nn\"\n");
}

/// The last field was missing to `read` of the shell, which takes tabs together.
#[test]
fn a_note_that_is_not_there_is_a_field_all_the_same() {
    let b = mounted!();
    b.sh("mkdir m/d");
    b.ok(&["snapshot", "create", "m/d", "a"]);
    b.ok(&["snapshot", "create", "m/d", "b", "--note", "some words"]);
    let list = b.ok(&["snapshot", "list", "-H", "m/d"]);
    let notes: Vec<&str> = list.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert_eq!(notes, ["-", "some words"]);
    let notes = b.json(&["snapshot", "list", "--json", "m/d"]);
    assert!(notes["snapshots"].as_array().unwrap().iter().all(|one| one["note"] != "-"));
    if rustix::process::geteuid().is_root() {
        b.sh("rmdir m/d");
        let list = b.ok(&["snapshot", "orphans", "-H", "m"]);
        let notes: Vec<&str> = list.lines().map(|line| line.split('\t').nth(5).unwrap()).collect();
        assert_eq!(notes, ["-", "some words"]);
    }
}

/// What all together would give back was in no JSON.
#[test]
fn a_dry_run_is_told_to_programs() {
    let b = mounted!();
    b.sh("mkdir m/d; head -c 4M /dev/urandom > m/d/f");
    make(&b, "m/d", &["n1", "n2", "n3"]);
    b.sh("rm m/d/f");
    make(&b, "m/d", &["n4"]);
    b.ok(&["snapshot", "keep", "m/d", "n4"]);
    b.ok(&["sync", "m"]);
    let told = b.json(&["snapshot", "delete", "-n", "--json", "m/d", "1.."]);
    assert_eq!(told["version"], 1);
    let together = told["together"].as_u64().unwrap();
    assert!((4 << 20..6 << 20).contains(&together), "{together}");
    let lines = told["snapshots"].as_array().unwrap();
    let of = |line: &serde_json::Value| (line["name"].clone(), line["action"].clone(), line["why"].clone());
    let words: Vec<_> = lines.iter().map(of).collect();
    let deleted = |name: &str| (name.into(), "delete".into(), serde_json::Value::Null);
    assert_eq!(words[..3], [deleted("n1"), deleted("n2"), deleted("n3")]);
    assert_eq!(words[3], ("n4".into(), "leave".into(), "kept".into()));
    assert!(lines[0]["alone"].as_u64().unwrap() < 1 << 20 && lines[0]["number"] == 1, "{told}");
    assert!(lines[3]["alone"].is_null() && lines[3]["estimated"].is_null());
    // What is an estimate is a number of its own, and has a mark for people.
    let would = b.ok(&["snapshot", "delete", "-n", "m/d", "1.."]);
    for line in &lines[..3] {
        let estimated = line["estimated"].as_u64().unwrap();
        assert!(estimated <= line["alone"].as_u64().unwrap(), "{told}");
        let said = format!("would delete {} {}: ~", line["number"], line["name"].as_str().unwrap());
        assert_eq!(would.contains(&said), estimated > 0, "{would}\n{told}");
    }
    let estimated = told["together_estimated"].as_u64().unwrap();
    assert_eq!(would.contains("together: ~"), estimated > 0, "{would}\n{told}");
    // Of one alone it is what it alone takes.
    let one = b.json(&["snapshot", "delete", "-n", "--json", "m/d", "n1"]);
    assert_eq!(one["together"], one["snapshots"][0]["alone"]);
    let none = b.json(&["snapshot", "prune", "-n", "--json", "m/d", "--keep-last", "9"]);
    assert_eq!((&none["together"], none["snapshots"].as_array().unwrap().len()), (&0.into(), 0));
    let pruned = b.json(&["snapshot", "prune", "-n", "--json", "m/d", "--keep-last", "1"]);
    assert_eq!(pruned["snapshots"].as_array().unwrap().len(), 3);
    assert_eq!(names(&b, "m/d").len(), 4);
    b.fails(&["snapshot", "delete", "--json", "m/d", "1.."], 2, "--dry-run");
    b.fails(&["snapshot", "prune", "--json", "m/d", "--keep-last", "1"], 2, "--dry-run");
    if rustix::process::geteuid().is_root() {
        b.sh("rm -r m/d");
        b.ok(&["sync", "m"]);
        let told = b.json(&["snapshot", "orphans", "--delete", "-n", "--json", "m"]);
        assert_eq!(told["snapshots"].as_array().unwrap().len(), 4);
        assert!(told["together"].as_u64().unwrap() > 4 << 20, "{told}");
        b.fails(&["snapshot", "orphans", "--delete", "--json", "m"], 2, "--dry-run");
    }
}
