//! `pando fork`, `forks`, `discard` and `diff FORK` as a user has them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{io::Read, process::Stdio, time::Duration};

use crate::common::Bench;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn a_fork_knows_what_it_changed_and_goes_without_a_trace() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src m/p/.trees; echo one > m/p/src/f; echo keep > m/p/keep");
    b.ok(&["fork", "--exclude", ".trees", "m/p", "m/p/.trees/a"]);
    b.ok(&["clone", "--track", "m/p/src", "m/other"]);
    b.fails(&["fork", "m/p/keep", "m/file"], 1, "fork m/p/keep to m/file: keep: not a directory");
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

/// The origin has no path, so the server tells what was in it.
#[test]
fn the_lines_that_a_fork_has_changed_are_shown() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src 'm/p/odd'; cd m/p; seq 3000 > src/f; echo same > keep; echo gone > gone
        printf 'a\\0b' > binary; echo 1 > src/linked; ln src/linked linked; echo x > 'odd/a\nb'
        truncate -s 20M sparse; echo end >> sparse; seq 9 > old; ln -s keep link");
    b.ok(&["fork", "m/p", "m/task"]);
    // What the source becomes is nothing to the fork.
    b.sh("cd m/p; echo other > src/f; rm gone old; echo 3 > linked");
    b.sh("cd m/task; sed -i s/^1500$/changed/ src/f; rm gone; echo new > new; printf 'a\\0c' > binary
        echo 2 > linked; echo y > 'odd/a\nb'; echo more >> sparse; mv old src/moved; echo ten >> src/moved
        ln -sf new link; chmod 600 keep");
    let shown = |b: &Bench| b.ok(&["diff", "-u", "m/task"]);
    let all = shown(&b);
    let has = |text: &str| assert!(all.contains(text), "{text:?} in {all}");
    has("--- m/task@origin/src/f\n+++ m/task/src/f\t");
    has(" 1499\n-1500\n+changed\n 1501\n");
    has("--- m/task@origin/gone\n+++ /dev/null\t");
    has("-gone\n");
    has("--- /dev/null\t");
    has("+new\n");
    has("Binary files m/task@origin/binary and m/task/binary differ\n");
    has("--- m/task@origin/linked\n");
    has("--- m/task@origin/src/linked\n");
    has("-1\n+2\n");
    has("--- \"m/task@origin/odd/a\\nb\"\n");
    has("rename from old\nrename to src/moved\n--- m/task@origin/old\n+++ m/task/src/moved\t");
    has("+ten\n");
    has("Binary files m/task@origin/sparse and m/task/sparse differ\n");
    for not in ["other", "keep", "link\n", "+3"] {
        assert!(!all.contains(not), "{not:?} in {all}");
    }
    b.sh("rm m/task/sparse m/task/src/moved m/task/'odd/a\nb'");
    b.ok(&["merge", "--theirs", "m/task", "--into", "m/p"]);
    assert_eq!(shown(&b), "", "the present state is the origin");
    b.sh("echo last > m/task/new");
    assert!(shown(&b).ends_with("-new\n+last\n"));
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// A fork with as many changes as are counted was said to have more.
#[test]
fn forks_with_more_changes_than_are_counted_say_so() {
    let b = mounted!();
    b.sh("mkdir m/p; echo one > m/p/f");
    b.ok(&["fork", "m/p", "m/f"]);
    b.sh("ln -s target m/f/link");
    let fork = || b.json(&["forks", "--json", "m/p"])["forks"][0].clone();
    let few = fork();
    // The time of the top differs as well.
    assert_eq!((few["changed"].as_u64(), few["changed_bytes"].as_u64()), (Some(2), Some(0)), "{few}");
    b.sh("cd m/f; seq 9998 | xargs touch");
    let all = fork();
    assert_eq!(
        (all["changed"].as_u64(), all["changed_more"].as_bool()),
        (Some(10_000), Some(false)),
        "{all}"
    );
    b.sh("touch m/f/last");
    let more = fork();
    assert_eq!(
        (more["changed"].as_u64(), more["changed_more"].as_bool()),
        (Some(10_000), Some(true)),
        "{more}"
    );
    assert!(b.ok(&["forks", "m/p"]).contains(" 10000+ "));
}

#[test]
fn a_merge_is_seen_at_once_and_conflicts_change_nothing() {
    let b = mounted!();
    b.sh("mkdir -p m/p/src m/p/old; echo one > m/p/src/f; echo base > m/p/both; echo x > m/p/old/x");
    b.ok(&["fork", "m/p", "m/f"]);
    b.sh(
        "echo longer than before > m/f/src/f; rm -r m/f/old; mkdir -p m/f/new/deep; echo n > m/f/new/deep/n",
    );
    b.sh("chmod 600 m/f/both; echo mine > m/p/mine");
    // The kernel knows all of it, and somebody has the old file open.
    b.sh("cat m/p/src/f m/p/both m/p/old/x; ls -lR m/p");
    let mut held = std::fs::File::open(b.path("m/p/src/f")).unwrap();
    assert_eq!(b.ok(&["merge", "-n", "m/f"]), "M\tboth\n+\tnew\n-\told\nM\tsrc/f\n");
    b.sh("test -e m/p/old/x -a ! -e m/p/new");
    b.ok(&["merge", "m/f"]);
    b.sh("test \"$(cat m/p/src/f)\" = 'longer than before' -a \"$(cat m/p/mine)\" = mine");
    b.sh("test \"$(stat -c %a m/p/both)\" = 600 -a ! -e m/p/old -a \"$(cat m/p/new/deep/n)\" = n");
    b.sh("ls m/p | tr '\\n' ' ' | grep -qx 'both mine new src '");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut held, &mut text).unwrap();
    assert_eq!(text, "one\n");
    drop(held);
    assert_eq!(b.ok(&["merge", "m/f"]), "");
    // Both sides.
    b.sh("echo theirs > m/f/both; echo ours > m/p/both; echo two > m/f/src/f");
    b.fails(&["merge", "m/f"], 7, "1 conflict: nothing was merged");
    b.fails(&["merge", "--json", "m/f"], 7, "1 conflict");
    b.sh("test \"$(cat m/p/both)\" = ours -a \"$(cat m/p/src/f)\" = 'longer than before'");
    b.ok(&["merge", "--theirs", "m/f"]);
    b.sh("test \"$(cat m/p/both)\" = theirs -a \"$(cat m/p/src/f)\" = two");
    let report = b.json(&["merge", "--json", "-n", "m/f"]);
    assert_eq!((&report["merged"], &report["conflicts"]), (&false.into(), &0.into()));
    b.sh("printf '1\\n2\\n3\\n4\\n5\\n' > m/p/both");
    b.sh("cp m/p/both m/f/both");
    b.ok(&["merge", "m/f"]);
    b.sh("sed -i s/1/here/ m/p/both; sed -i s/5/there/ m/f/both");
    assert_eq!(b.ok(&["merge", "--text", "m/f"]), "L\tboth\n");
    b.sh("test \"$(tr '\\n' ' ' < m/p/both)\" = 'here 2 3 4 there '");
    b.sh("sed -i s/3/up/ m/p/both; sed -i s/3/down/ m/f/both");
    b.fails(&["merge", "m/f"], 7, "1 conflict: nothing was merged");
    b.fails(&["merge", "--text", "-n", "m/f"], 7, "1 file: lines that conflict would stand between markers");
    b.fails(&["merge", "--text", "m/f"], 7, "1 file: lines that conflict stand between markers");
    b.sh("grep -qx '<<<<<<< ours' m/p/both && grep -qx up m/p/both && grep -qx down m/p/both");
    b.sh("printf 'theirs\\n' > m/p/both");
    b.fails(&["merge", "m/p", "--into", "m/f"], 1, "not a fork");
    b.fails(&["merge", "m/f", "--into", "m"], 1, "not the root");
    b.remount();
    b.sh("test \"$(cat m/p/both)\" = theirs -a \"$(cat m/p/mine)\" = mine");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// The kernel waits for the answer to a request, also in the name of a process that was killed. So the server ends the
/// request.
#[test]
fn a_merge_that_is_interrupted_or_killed_ends_soon_and_has_done_nothing() {
    let b = mounted!();
    const FILES: usize = 20_000;
    std::fs::create_dir(b.path("m/p")).unwrap();
    let write = |dir: &str, text: &str| {
        (0..FILES).for_each(|i| std::fs::write(b.path(&format!("m/{dir}/{i}")), text).unwrap());
    };
    write("p", "old");
    b.ok(&["fork", "m/p", "m/f"]);
    write("f", "newer");
    let count = |text: &str| b.sh(&format!("grep -rlx {text} m/p | wc -l")).trim().parse::<usize>().unwrap();
    for signal in [Signal::INT, Signal::KILL] {
        let mut merge = b.interruptible(&["merge", "m/f"]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(merge.try_wait().unwrap().is_none(), "it is over already");
        kill_process(Pid::from_child(&merge), signal).unwrap();
        let status = merge.wait().unwrap();
        assert!(!status.success(), "{status:?}");
        assert_eq!((count("old"), count("newer")), (FILES, 0), "{status:?}");
    }
    b.ok(&["merge", "--quiet", "m/f"]);
    assert_eq!((count("old"), count("newer")), (0, FILES));
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// A process that is stopped waits for no answer, so the merge ends; when it goes on it begins again.
#[test]
fn a_merge_whose_process_is_stopped_goes_on_with_it() {
    let b = mounted!();
    const FILES: usize = 4_000;
    std::fs::create_dir(b.path("m/p")).unwrap();
    for i in 0..FILES {
        std::fs::write(b.path(&format!("m/p/{i}")), "old").unwrap();
    }
    b.ok(&["fork", "m/p", "m/f"]);
    for i in 0..FILES {
        std::fs::write(b.path(&format!("m/f/{i}")), "newer").unwrap();
    }
    // Stops a process and lets it go on; says whether that was while it worked and had said nothing.
    let stopped = |args: &[&str], signal, after: Duration| {
        let said = std::fs::File::create(b.path("said")).unwrap();
        let run = || b.command(args).stdout(said).stderr(Stdio::piped()).spawn().unwrap();
        let mut child = run();
        let pid = Pid::from_child(&child);
        std::thread::sleep(after);
        let is_over = child.try_wait().unwrap().is_some();
        let mut was_working = false;
        if !is_over {
            kill_process(pid, signal).unwrap();
            was_working = std::fs::metadata(b.path("said")).unwrap().len() == 0;
            std::thread::sleep(Duration::from_millis(200));
            kill_process(pid, Signal::CONT).unwrap();
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{args:?} {signal:?}: {}", String::from_utf8_lossy(&out.stderr));
        was_working
    };
    // However fast it is here: by the time that it takes to say something undisturbed.
    let at_any_moment = |args: &[&str]| {
        let time = || {
            let begun = std::time::Instant::now();
            let mut child = b.command(args).stdout(Stdio::piped()).spawn().unwrap();
            let (mut out, mut said) = (child.stdout.take().unwrap(), vec![0]);
            out.read_exact(&mut said).unwrap();
            let takes = begun.elapsed();
            out.read_to_end(&mut said).unwrap();
            assert!(child.wait().unwrap().success(), "{args:?}");
            let lines = said.iter().filter(|b| **b == b'\n').count();
            assert!(lines >= FILES, "{args:?}: {lines} lines");
            (takes, lines)
        };
        let ((takes, lines), (again, _)) = (time(), time());
        let takes = takes.min(again);
        // Without a terminal SIGTSTP stops nobody whose process group is an orphan.
        for signal in [Signal::TSTP, Signal::STOP] {
            // The first of these moments at which it works still is one late in its work.
            let mut after = takes;
            let hit = (0..12).any(|_| {
                after = after * 3 / 4;
                let was_working = stopped(args, signal, after);
                let said = std::fs::read_to_string(b.path("said")).unwrap();
                assert_eq!(said.lines().count(), lines, "{args:?} {signal:?}");
                was_working
            });
            assert!(hit, "{args:?} {signal:?}: was over each time, of {takes:?}");
        }
    };
    at_any_moment(&["merge", "-n", "m/f"]);
    // The same of a difference, which looks for renames first.
    for i in 0..FILES {
        std::fs::rename(b.path(&format!("m/f/{i}")), b.path(&format!("m/f/r{i}"))).unwrap();
    }
    at_any_moment(&["diff", "m/f"]);
    b.umount();
}

#[test]
fn who_owns_the_fork_and_what_changes_may_merge_and_see_it() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root");
        return;
    }
    b.umount();
    b.ok(&["mount", "-o", "allow_other", "a.img", "m"]);
    let pando = env!("CARGO_BIN_EXE_pando");
    let user = |args: &str| {
        let script =
            format!("setpriv --reuid 12345 --regid 12345 --clear-groups {pando} {args} 2>&1 || true");
        b.sh(&script)
    };
    if !user("--version").contains("pando") {
        eprintln!("SKIPPED: the program cannot be run by another user here");
        return;
    }
    b.sh("chmod 755 . m; mkdir m/d m/own ro; echo x > m/d/f; echo y > m/d/g");
    b.ok(&["fork", "m/d", "m/t"]);
    b.sh("echo new > m/t/f; chown 12345 m/own");
    let at = |name: &str| b.path(name).display().to_string();
    let (d, t) = (at("m/d"), at("m/t"));
    let denied =
        |said: &str| said.contains("ermission denied") || said.contains("ermitted") || said.contains("only");
    for args in [
        format!("merge {t}"),
        format!("merge -n {t}"),
        format!("merge {t} --into {}", at("m/own")),
        format!("discard {t}"),
        format!("fork {d} {}/x", at("m/own")),
    ] {
        let said = user(&args);
        assert!(denied(&said), "{args}: {said:?}");
    }
    // The forks of others are not listed.
    assert_eq!(user(&format!("forks -H {}", at("m"))), "");
    assert_eq!(b.ok(&["forks", "-H", "m"]).lines().count(), 1);
    b.sh("chown 12345 m/d m/t m/d/f");
    assert!(user(&format!("merge {t}")).contains("f: belongs to another user"));
    b.sh("chown 12345 m/t/f; test \"$(cat m/d/f)\" = x");
    assert_eq!(user(&format!("merge {t}")), "M\tf\n");
    b.sh("test \"$(cat m/d/f)\" = new -a \"$(stat -c %u m/d/f)\" = 12345; echo more > m/t/f");
    // A mount that may only be read is no way to change something.
    b.sh("mount --bind m ro; mount -o remount,bind,ro ro");
    let (fork, into) = (at("ro/t"), at("ro/d"));
    let outcome = b.run(&["merge", &fork, "--into", &into]);
    b.sh("umount ro");
    assert!(!outcome.status.success());
    b.sh("test \"$(cat m/d/f)\" = new");
}
