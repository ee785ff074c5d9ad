//! What commands say at their edges, and their exit codes: what is misspelt, where output cannot be written.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::text;

#[test]
fn what_was_to_be_left_out_and_is_not_there_is_said() {
    let b = mounted!();
    b.sh("mkdir -p m/a/d; echo x > m/a/d/f");
    for (number, command) in ["clone", "fork"].iter().enumerate() {
        let to = format!("m/to{number}");
        let out = b.run(&[command, "--exclude", "d", "--exclude", "nothing/here", "m/a", &to]);
        let said = text(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert_eq!(said, "pando: --exclude nothing/here: nothing lies there in m/a\n");
        assert_eq!(b.sh(&format!("ls {to}")), "");
    }
    b.umount();
    let out = b.run(&["clone", "--exclude", "d", "--exclude", "e", "a.img:/a", "a.img:/b"]);
    assert_eq!(text(&out.stderr), "pando: --exclude e: nothing lies there in a.img:/a\n");
    b.ok(&["ls", "a.img:/b"]);
}

/// Of what lies where the caller may not look it is not known that nothing lies there, and it is left out all the same.
#[test]
fn what_was_to_be_left_out_where_nobody_may_look_is_not_called_absent() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root");
        return;
    }
    b.umount();
    b.ok(&["mount", "-o", "allow_other", "a.img", "m"]);
    b.sh("chmod 755 . m; mkdir -p m/u/a/closed; echo x > m/u/a/closed/f; chmod 700 m/u/a/closed");
    b.sh("chown 12345 m/u m/u/a");
    let pando = env!("CARGO_BIN_EXE_pando");
    let user = |args: &str| {
        b.sh(&format!("setpriv --reuid 12345 --regid 12345 --clear-groups {pando} {args} 2>&1 || true"))
    };
    if !user("--version").contains("pando") {
        eprintln!("SKIPPED: the program cannot be run by another user here");
        return;
    }
    let at = |name: &str| b.path(name).display().to_string();
    let (source, to) = (at("m/u/a"), at("m/u"));
    for (number, command) in ["clone", "fork"].iter().enumerate() {
        let said =
            user(&format!("{command} --exclude closed/f --exclude closed/none {source} {to}/b{number}"));
        assert_eq!(said, "", "{command}");
        assert_eq!(b.sh(&format!("find m/u/b{number} -mindepth 1")), format!("m/u/b{number}/closed\n"));
        let said = user(&format!("{command} --exclude none {source} {to}/c{number}"));
        assert!(said.contains("--exclude none: nothing lies there in "), "{said}");
    }
}

#[test]
fn a_name_with_a_slash_behind_it_is_that_of_a_directory() {
    let b = mounted!();
    b.sh("mkdir m/d; echo x > m/f; echo y > m/g");
    for line in
        [&["cp", "-a", "m/f", "m/none/"][..], &["cp", "-aT", "m/f", "m/none/"], &["clone", "m/f", "m/none/"]]
    {
        b.fails(line, 1, "cannot create 'm/none/': Not a directory");
        assert_eq!(b.sh("ls m"), "d\nf\ng\n", "{line:?}");
    }
    b.fails(&["cp", "-a", "m/f", "m/g/"], 1, "Not a directory");
    b.fails(&["mv", "m/f", "m/none/"], 1, "Not a directory");
    b.ok(&["cp", "-a", "m/d", "m/e/"]);
    b.ok(&["clone", "m/d", "m/c/"]);
    b.umount();
    for command in ["clone", "mv"] {
        b.fails(&[command, "a.img:/f", "a.img:/none/"], 1, "Not a directory");
    }
    b.ok(&["mv", "a.img:/c", "a.img:/k/"]);
    assert_eq!(b.ok(&["ls", "a.img:/"]).lines().count(), 5);
}

/// Nobody who reads is no failure; a full disk is one, and what was asked is done all the same.
#[test]
fn output_that_cannot_be_written_is_said_and_stops_nothing() {
    let b = mounted!();
    let pando = env!("CARGO_BIN_EXE_pando");
    b.sh("mkdir -p m/p m/q; seq -f m/p/%.0f 2000 | xargs touch");
    let code = |line: &str| {
        let said = b.sh(&format!("{line} && echo 0 || echo $?"));
        said.lines().last().unwrap().to_owned()
    };
    for line in
        ["snapshot create m/p", "snapshot list m/p", "diff m/p m/q", "diff --stat m/p m/q", "du m", "stats m"]
    {
        let said = b.sh(&format!("{pando} {line} 2>&1 > /dev/full || echo code $?"));
        assert!(said.contains("pando: write error: ") && said.ends_with("code 1\n"), "{line}: {said}");
        // To one who has gone.
        for to in ["| true", "2>&1 > /dev/full | true", "> /dev/full 2>&1", ">&- 2>&-", "2> /dev/full"] {
            let line = format!("( {pando} {line}; test $? -le 1 ) {to}");
            assert_eq!(code(&line), "0", "{line}");
        }
    }
    assert!(b.ok(&["snapshot", "list", "-H", "m/p"]).lines().count() >= 6, "they were made");
    // Errors that nobody can read leave the code as it is.
    for to in ["2> /dev/full", "2>&-"] {
        assert_eq!(code(&format!("{pando} cp -a m/none1 m/none2 m/p m/q {to}")), "1", "{to}");
        assert_eq!(code(&format!("{pando} merge m/p {to}")), "1", "{to}");
        assert_eq!(code(&format!("{pando} mount none.img m {to}")), "1", "{to}");
    }
    assert!(b.path("m/q/p/1").exists(), "the rest was copied");
}
