//! What everyday operations cost in requests of the kernel: the budget of `docs/fuse.md`, counted.
//!
//! Requests that nobody waits for are counted too (RELEASE, RELEASEDIR), but for FORGET, which comes in batches
//! whenever the kernel likes. A request that the kernel sends once a mount, to learn that it is not supported, is paid
//! before.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::common::World;
use pando_fuse::Settings;

/// Requests by kind; only those that there were.
type Requests = BTreeMap<&'static str, u64>;

fn counted(w: &World) -> Requests {
    w.all_requests().into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Counts once no more come: what nobody waits for is late.
fn settled(w: &World) -> Requests {
    let mut last = (counted(w), Instant::now());
    while last.1.elapsed() < Duration::from_millis(60) {
        std::thread::sleep(Duration::from_millis(5));
        let now = counted(w);
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    last.0
}

/// The requests of `operation`.
fn cost(w: &World, operation: impl FnOnce()) -> Requests {
    let before = settled(w);
    operation();
    let mut after = settled(w);
    for (kind, n) in &mut after {
        *n -= before.get(kind).copied().unwrap_or_default();
    }
    after.retain(|_, n| *n > 0);
    after
}

fn world() -> Option<World> {
    // With these checks (where others than root use the mount) each change asks for the directory's attributes first.
    World::with(Settings { default_permissions: Some(false), ..Settings::default() })
}

/// Whether a program is there; says so if not.
fn have(program: &str) -> bool {
    let have = Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    if !have {
        eprintln!("SKIPPED: {program} is absent");
    }
    have
}

fn run(program: &str, args: &[&str], dir: &Path) {
    let out = Command::new(program).args(args).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Files that programs work on, and directories that they are in. What a first READDIRPLUS brings (about 200 entries) is
/// known to the kernel then; of a larger directory each further entry that is used costs a LOOKUP if nobody looks entries
/// up while it is read, as `find` and `rm` do not.
const FILES: u64 = 450;
const DIRS: u64 = 3;

/// Asserts that `requests` are at most so many for each file, and at most so many of a kind `besides`.
fn each(program: &str, requests: &Requests, besides: u64, budget: &[(&'static str, u64)]) {
    println!("{program}: {requests:?}");
    for (kind, n) in requests {
        let most = budget.iter().find(|(name, _)| name == kind).map_or(0, |(_, most)| *most);
        assert!(*n <= most * FILES + besides, "{program}: {n} of {kind} for {FILES} files: {requests:?}");
    }
}

fn exactly(what: &str, requests: &Requests, budget: &[(&'static str, u64)]) {
    println!("{what}: {requests:?}");
    assert_eq!(*requests, budget.iter().copied().collect(), "{what}");
}

/// What the kernel asks once a mount; FLUSH is not known.
fn pay_what_is_asked_once(w: &World) {
    let _ = rustix::fs::getxattr(w.root(), "user.x", &mut [0; 10]);
    let _ = rustix::fs::listxattr(w.root(), &mut [0; 10]);
    fs::write(w.path("once"), b"x").unwrap();
    fs::remove_file(w.path("once")).unwrap();
}

/// A directory with files in memory, one of 1,000 entries, and an empty one; nothing of it is known to the kernel.
fn prepared() -> Option<World> {
    let mut w = world()?;
    for i in 0..FILES {
        let dir = w.path(&format!("files/{}", i % DIRS));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file{i:04}")), b"content").unwrap();
    }
    fs::create_dir(w.path("large")).unwrap();
    for i in 0..1000 {
        fs::write(w.path(&format!("large/file{i:04}")), b"").unwrap();
    }
    fs::create_dir(w.path("e")).unwrap();
    w.remount();
    pay_what_is_asked_once(&w);
    for dir in ["files/1", "files/2", "large", "e"] {
        rustix::fs::stat(w.path(dir)).unwrap();
    }
    Some(w)
}

#[test]
fn calls_cost_what_the_budget_says() {
    let Some(w) = prepared() else { return };
    let p = |name: &str| w.path(name);
    let of = |operation: &dyn Fn()| cost(&w, operation);
    // As C programs ask. Rust's own call wants the time of birth, too.
    let stat = |name: &str| _ = rustix::fs::stat(p(name));
    let born = |name: &str| _ = fs::metadata(p(name));

    exactly("stat, first", &of(&|| stat("files/1/file0001")), &[("lookup", 1)]);
    exactly("stat with birth, first", &of(&|| born("files/1/file0001")), &[("statx", 1)]);
    exactly("stat with birth", &of(&|| born("files/1/file0001")), &[]);
    exactly("stat", &of(&|| stat("files/1/file0001")), &[]);
    exactly("stat of an absent name, first", &of(&|| stat("files/1/absent")), &[("lookup", 1)]);
    exactly("stat of an absent name", &of(&|| stat("files/1/absent")), &[]);

    let asks = || _ = rustix::fs::access(p("files/1/file0001"), rustix::fs::Access::EXEC_OK);
    exactly("access", &of(&asks), &[("access", 1)]);

    // Before it keeps what is written to a new file, the kernel asks whether there is a capability to drop.
    let create = [("lookup", 1), ("create", 1), ("getxattr", 1), ("write", 1), ("release", 1)];
    // If the clock ticks between the two, as it may on a busy machine, the kernel tells the time of the write besides.
    let make = || of(&|| fs::write(p("e/new"), b"x").unwrap());
    let mut made = make();
    for _ in 0..4 {
        if made.contains_key("setattr") {
            fs::remove_file(p("e/new")).unwrap();
            made = make();
        }
    }
    exactly("create, write, close", &made, &create);
    exactly("stat after that", &of(&|| stat("e/new")), &[("getattr", 1)]);
    exactly("mkdir", &of(&|| fs::create_dir(p("e/dir")).unwrap()), &[("lookup", 1), ("mkdir", 1)]);
    exactly("symlink", &of(&|| symlink("target", p("e/link")).unwrap()), &[("lookup", 1), ("symlink", 1)]);
    exactly("readlink", &of(&|| drop(fs::read_link(p("e/link")).unwrap())), &[("readlink", 1)]);
    exactly("readlink again", &of(&|| drop(fs::read_link(p("e/link")).unwrap())), &[]);
    let renamed = of(&|| fs::rename(p("e/new"), p("e/other")).unwrap());
    // The kernel owns the time of the change, and tells it.
    exactly("rename", &renamed, &[("lookup", 1), ("rename", 1), ("setattr", 1)]);
    exactly("unlink", &of(&|| fs::remove_file(p("e/other")).unwrap()), &[("setattr", 1), ("unlink", 1)]);
    exactly("rmdir", &of(&|| fs::remove_dir(p("e/dir")).unwrap()), &[("rmdir", 1)]);

    let read = || _ = File::open(p("files/2/file0002")).unwrap().read(&mut [0; 100]).unwrap();
    exactly(
        "open, read, close, first",
        &of(&read),
        &[("lookup", 1), ("open", 1), ("read", 1), ("release", 1)],
    );
    exactly("open, read, close", &of(&read), &[("open", 1), ("release", 1)]);

    let log = || File::options().append(true).create(true).open(p("log")).unwrap();
    let (first, second) = (log(), log());
    // When the kernel writes them is its own choice.
    let appended = of(&|| (0..1000).for_each(|_| (&first).write_all(b"line\n").unwrap()));
    println!("1,000 appends: {appended:?}");
    assert!(appended.values().sum::<u64>() < 50, "1,000 appends: {appended:?}");
    let synced = of(&|| first.sync_all().unwrap());
    assert!(synced.get("fsync") == Some(&1) && synced.values().sum::<u64>() <= 3, "fsync: {synced:?}");
    drop(second);
}

#[test]
fn listings_cost_what_the_budget_says() {
    let Some(w) = prepared() else { return };
    let walk = |name: &str| {
        let path = w.path(name);
        move || assert!(fs::read_dir(&path).unwrap().count() > 2)
    };
    let walk_and_stat = |name: &str| {
        let path = w.path(name);
        move || fs::read_dir(&path).unwrap().for_each(|e| _ = rustix::fs::lstat(e.unwrap().path()).unwrap())
    };
    let listing = |what: &str, mut requests: Requests, readdirs: u64| {
        // The C library asks for the attributes of what it opens, whose access time reading has changed.
        assert!(requests.remove("getattr").is_none_or(|n| n == 1));
        let wanted = [("opendir", 1), ("releasedir", 1), ("readdir", readdirs)];
        let kinds = if readdirs == 0 { 2 } else { 3 };
        exactly(what, &requests, &wanted[..kinds]);
    };
    // One of them says that there are no more.
    listing("ls of 1,000 entries, first", cost(&w, walk("large")), 3);
    listing("ls -l of 1,000 entries, first", cost(&w, walk_and_stat("large")), 6);
    listing("ls -l of 1,000 entries", cost(&w, walk_and_stat("large")), 0);
    listing("ls of 1,000 entries", cost(&w, walk("large")), 0);
    for i in 0..100 {
        fs::write(w.path(&format!("e/{i}")), b"").unwrap();
    }
    listing("ls of 100 entries, first", cost(&w, walk("e")), 2);
    listing("ls of 100 entries", cost(&w, walk("e")), 0);
    fs::write(w.path("e/new"), b"").unwrap();
    listing("ls after a change", cost(&w, walk("e")), 2);
}

#[test]
fn programs_cost_what_the_budget_says() {
    let Some(mut w) = prepared() else { return };
    let host = tempfile::tempdir().unwrap();
    let tar = host.path().join("files.tar");
    let tar = tar.to_str().unwrap();
    for program in ["cp", "tar", "rsync", "git", "rm", "ls"] {
        if !have(program) {
            continue;
        }
        // Nothing is left in the kernel's caches of what the last one did.
        w.remount();
        rustix::fs::stat(w.path("large")).unwrap();
        pay_what_is_asked_once(&w);
        let of = |args: &[&str]| cost(&w, || run(program, args, w.root()));
        match program {
            "cp" => {
                // Versions before 9 read and write instead.
                let copied = [("open", 1), ("copy", 1), ("read", 1), ("write", 1)];
                let made = [("lookup", 1), ("create", 1), ("setattr", 3), ("release", 2)];
                // Programs that keep extended attributes and access lists ask each file for them.
                let asked = [("getxattr", 2), ("listxattr", 2), ("setxattr", 1)];
                let before = w.answered_by_workers();
                each("cp -a", &of(&["-a", "files", "copies"]), 20, &[&copied[..], &made, &asked].concat());
                let others = w.answered_by_workers() - before;
                assert!(others <= FILES / 10, "other threads were woken for {others} of {FILES} copies");
            }
            "tar" => {
                // It is a caller that reads what it opens: of 16 files one is left to it.
                let read = [("getattr", 1), ("open", 1), ("release", 1)];
                each("tar c", &of(&["cf", tar, "files"]), FILES / 16 + 10, &read);
                fs::create_dir(w.path("untarred")).unwrap();
                let made = [("lookup", 1), ("create", 1), ("write", 1), ("setattr", 4), ("release", 1)];
                // At a change of owner the kernel asks whether there are capabilities to drop.
                let asked = [("getxattr", 2)];
                each("tar x", &of(&["xf", tar, "-C", "untarred"]), 20, &[&made[..], &asked].concat());
            }
            "rsync" => {
                let read = [("getattr", 1), ("open", 2), ("read", 1), ("release", 3)];
                let made = [("lookup", 3), ("create", 1), ("write", 1), ("setattr", 5), ("rename", 1)];
                let asked = [("getxattr", 2)];
                each("rsync -a", &of(&["-a", "files/", "synced"]), 20, &[&read[..], &made, &asked].concat());
            }
            "git" => {
                let source = host.path().join("source");
                fs::create_dir(&source).unwrap();
                for i in 0..FILES {
                    fs::write(source.join(format!("f{i}")), format!("content {i}\n")).unwrap();
                }
                let name = ["-c", "user.name=a", "-c", "user.email=a@b"];
                run("git", &["init", "-q"], &source);
                run("git", &["add", "."], &source);
                run("git", &[&name[..], &["commit", "-qm", "files"]].concat(), &source);
                let source = source.to_str().unwrap();
                let made = [
                    ("lookup", 3),
                    ("create", 1),
                    ("getxattr", 1),
                    ("write", 1),
                    ("getattr", 1),
                    ("release", 1),
                ];
                let args = ["clone", "-q", "--no-local", source, "cloned"];
                each("git clone", &of(&args), 100, &made);
            }
            "rm" => {
                let requests = of(&["-r", "files"]);
                each("rm -r", &requests, 20, &[("unlink", 1), ("setattr", 1)]);
                let besides: u64 = requests
                    .iter()
                    .filter(|(kind, _)| !["unlink", "setattr"].contains(kind))
                    .map(|(_, n)| n)
                    .sum();
                assert!(besides <= 10 * (DIRS + 1), "for the directories: {requests:?}");
            }
            _ => {
                let requests = of(&["-l", "large"]);
                // It asks one entry for a label and an access list, and is told that they are not supported.
                each("ls -l", &requests, 10, &[]);
                assert!(requests.values().sum::<u64>() <= 18, "a request for 100 entries: {requests:?}");
                let again = of(&["-l", "large"]);
                // To go to the directory first is an ACCESS.
                assert!(again.values().sum::<u64>() <= 6, "OPENDIR, RELEASEDIR, and for labels: {again:?}");
            }
        }
    }
}
