//! `pando diff` as a user has it: through a mount and offline, against `rsync` and `diff -r`, and by those who may not
//! see all.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;

use crate::common::Bench;

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(String::from).collect()
}

/// Lines but those of directories whose entries alone have changed.
fn told(b: &Bench, args: &[&str]) -> BTreeSet<String> {
    let all = b.ok(&[&["diff", "--json"], args].concat());
    let parsed = all.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let kept = parsed.filter(|l| !(l["file"] == "directory" && l["kind"] == "modified"));
    kept.map(|l| format!("{} {}", l["kind"].as_str().unwrap(), l["path"].as_str().unwrap())).collect()
}

#[test]
fn a_clone_and_its_original() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/p");
    b.ok(&["clone", "m/p", "m/q"]);
    assert_eq!(b.ok(&["diff", "m/p", "m/q"]), "");
    b.sh("cd m/q; echo more >> src/f1; rm src/f2; mv src/f3 src/deep/moved; echo new > 'new
name'; printf X | dd of=src/deep/large bs=1 seek=1000000 conv=notrunc status=none; chmod 600 src/f4; touch -d @7 src/f5
        rm src/f6; mkdir src/f6; mv empty full; ln src/f7 src/linked; ln -sfn elsewhere src/f8");
    let mut expected: BTreeSet<String> = ["modified src/f1", "removed src/f2", "renamed src/deep/moved"]
        .into_iter()
        .chain(["added new\nname", "modified src/deep/large", "modified src/f4", "modified src/f5"])
        .chain(["removed src/f6", "added src/f6", "renamed full", "added src/linked"])
        .chain(["removed src/f8", "added src/f8"])
        .map(String::from)
        .collect();
    assert_eq!(told(&b, &["m/p", "m/q"]), expected);
    // Text, for people and scripts.
    let text = b.ok(&["diff", "m/p", "m/q"]);
    assert!(text.contains("R\tsrc/f3 -> src/deep/moved\n") && text.contains("+\tnew\\012name\n"), "{text}");
    assert!(text.contains("M\t.\n") && text.contains("-\tsrc/f6\n+\tsrc/f6\n"), "{text}");
    let script = b.ok(&["diff", "-H", "m/p", "m/q"]);
    assert!(script.contains("R\tempty\tfull\n"), "{script}");
    assert!(b.ok(&["diff", "--name-only", "m/p", "m/q"]).contains("src/deep/moved\n"));
    let stat = b.ok(&["diff", "--stat", "m/p", "m/q"]);
    let last = stat.lines().last().unwrap();
    assert!(last.contains("4 added, 3 removed") && last.contains("2 renamed"), "{stat}");
    // Which bytes.
    let json = b.ok(&["diff", "--json", "m/p/src/deep", "m/q/src/deep"]);
    let large = json.lines().find(|l| l.contains("large")).unwrap();
    let large: serde_json::Value = serde_json::from_str(large).unwrap();
    assert_eq!(large["ranges"], serde_json::json!([[1_000_000, 1_000_001]]));
    assert_eq!((large["version"].as_u64(), &large["changed"][0]), (Some(1), &"content".into()));
    // A part, and files.
    assert_eq!(told(&b, &["m/p", "m/q", "src/deep"]).len(), 2);
    let one = b.ok(&["diff", "-u", "m/p/src/f1", "m/q/src/f1"]);
    assert!(one.contains("\n+more\n") && one.starts_with("--- m/p/src/f1"), "{one}");
    let all = b.ok(&["diff", "-u", "m/p", "m/q"]);
    assert!(all.contains("\n+more\n") && all.contains("--- m/p/src/f2") && all.contains("+new"), "{all}");
    b.fails(&["diff", "m/p", "m/q/src/f1"], 1, "no difference to tell");
    b.fails(&["diff", "m/p", "m/none"], 1, "No such file");
    b.fails(&["diff", "m/p", "t"], 1, "");
    b.fails(&["diff", "t", "t"], 1, "not in a mounted Pando");
    // A directory that was put in the place of a file and one that is gone, offline as well.
    let before = lines(&b.ok(&["diff", "m/p", "m/q"]));
    b.umount();
    assert_eq!(lines(&b.ok(&["diff", "a.img:/p", "a.img:/q"])), before);
    b.fails(&["diff", "-u", "a.img:/p", "a.img:/q"], 1, "mounted");
    expected.retain(|line| !line.starts_with("renamed"));
    expected
        .extend(["removed src/f3", "added src/deep/moved", "removed empty", "added full"].map(String::from));
    assert_eq!(told(&b, &["--no-renames", "a.img:/p", "a.img:/q"]), expected);
}

#[test]
fn snapshots_and_trees_that_share_nothing_against_rsync_and_diff() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/p; cp -a t m/other");
    // Nothing is shared, and nothing differs but the times of directories that cp has set again.
    assert_eq!(told(&b, &["m/p", "m/other"]), BTreeSet::new());
    b.ok(&["snapshot", "create", "m/p", "s"]);
    b.sh("cd m/p; for i in 10 11 12; do echo changed > src/f$i; done; rm src/f13 src/f14; mkdir -p n/o; echo x > n/o/x
        cd ../other; for i in 20 21; do echo changed > src/f$i; done; rm -r src/deep");
    for (a, z) in [("m/p/.snapshots/s", "m/p"), ("m/p", "m/p/.snapshots/s"), ("m/p", "m/other"), ("t", "m/p")]
    {
        if a == "t" {
            continue; // of another file system
        }
        // What rsync would send or delete, by content.
        let rsync = b.sh(&format!(
            "rsync -rlcn --delete --out-format='%o %n' {a}/ {z}/ 2>/dev/null | sed 's:/$::' | sort -u"
        ));
        let rsync: BTreeSet<String> = rsync
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(op, name)| if op == "del." { format!("+ {name}") } else { format!("- {name}") })
            .collect();
        // `rsync A Z` makes Z what A is: what it deletes was added, what it sends was removed or changed.
        let ours = b.ok(&["diff", "--json", "--no-renames", a, z]);
        let ours: BTreeSet<String> = ours
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|l| {
                let content = l["changed"].as_array().unwrap().iter().any(|c| c == "content");
                l["kind"] != "modified" || content
            })
            .map(|l| {
                let path = l["path"].as_str().unwrap().to_string();
                if l["kind"] == "added" { format!("+ {path}") } else { format!("- {path}") }
            })
            .collect();
        let special = |set: BTreeSet<String>| -> BTreeSet<String> {
            set.into_iter().filter(|name| !name.contains("fifo") && name != "- ." && name != "+ .").collect()
        };
        assert_eq!(special(ours.clone()), special(rsync), "{a} {z}");
        // And what diff -r says differs.
        let said = b.sh(&format!("diff -rq --no-dereference {a} {z} | grep -c ' differ$' || true"));
        let changed = ours.iter().filter(|l| l.starts_with("- ")).count();
        assert!(said.trim().parse::<usize>().unwrap() <= changed, "{said} {ours:?}");
    }
}

#[test]
fn lines_of_files_in_a_renamed_directory_are_compared_with_those_at_the_old_path() {
    let b = mounted!();
    b.sh("mkdir -p m/a/old/deep; echo one > m/a/old/f; echo one > m/a/old/deep/g; echo x > m/a/z");
    b.ok(&["clone", "m/a", "m/b"]);
    b.sh("cd m/b; mv old new; mv new/deep moved; for f in new/f moved/g z; do echo two >> $f; done");
    let all = b.ok(&["diff", "-u", "m/a", "m/b"]);
    for (old, new) in [("old/f", "new/f"), ("old/deep/g", "moved/g"), ("z", "z")] {
        assert!(
            all.contains(&format!("--- m/a/{old}\t")) && all.contains(&format!("+++ m/b/{new}\t")),
            "{all}"
        );
    }
    assert_eq!(all.matches("\n+two\n").count(), 3, "{all}");
    // What was renamed is said, whatever it is, and differs or not.
    for (old, new) in [("old", "new"), ("old/deep", "moved")] {
        assert!(all.contains(&format!("rename from {old}\nrename to {new}\n")), "{all}");
    }
    assert_eq!(all.matches("rename from").count(), 2, "{all}");
    assert!(!b.ok(&["diff", "-u", "--no-renames", "m/a", "m/b"]).contains("rename"));
    // The old path stands beside what differs for programs only.
    let text = b.ok(&["diff", "m/a", "m/b"]);
    assert!(text.contains("R\told -> new\n") && text.contains("M\tnew/f\n"), "{text}");
    let json = b.ok(&["diff", "--json", "m/a", "m/b"]);
    let file = json.lines().find(|line| line.contains("\"new/f\"")).unwrap();
    assert!(file.contains("\"kind\":\"modified\"") && file.contains("\"from\":\"old/f\""), "{file}");
}

#[test]
fn lines_of_a_renamed_file_come_behind_what_it_was_called() {
    let b = mounted!();
    b.sh("mkdir m/a; echo one > m/a/f; echo same > m/a/g; ln -s x m/a/l");
    b.ok(&["clone", "m/a", "m/b"]);
    b.sh("cd m/b; mv f 'new
f'; echo two >> 'new
f'; mv g h; mv l k");
    let all = b.ok(&["diff", "-u", "m/a", "m/b"]);
    assert!(all.contains("rename from f\nrename to \"new\\nf\"\n--- m/a/f\t"), "{all}");
    for (old, new) in [("g", "h"), ("l", "k")] {
        assert!(all.contains(&format!("rename from {old}\nrename to {new}\n")), "{all}");
    }
    assert_eq!((all.matches("rename ").count(), all.matches("---").count()), (6, 1), "{all}");
}

#[test]
fn that_there_is_no_diff_is_no_write_error() {
    let b = mounted!();
    b.sh("mkdir m/a; echo one > m/a/f");
    b.ok(&["clone", "m/a", "m/b"]);
    b.sh("echo two >> m/b/f");
    let out = b.command(&["diff", "-u", "m/a", "m/b"]).env("PATH", "/nonexistent").output().unwrap();
    let said = crate::common::text(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("install diffutils"), "{said}");
    assert!(!said.contains("write error"), "{said}");
}

#[test]
fn lines_of_a_file_that_cannot_be_read_are_missing_and_the_exit_code_says_so() {
    let b = mounted!();
    b.sh(
        "mkdir m/a; head -c 3000000 /dev/urandom | tr X x > m/a/large; echo one > m/a/z; cp m/a/large large",
    );
    b.ok(&["clone", "m/a", "m/b"]);
    // Files of bytes that are no text are not compared line by line, which is no failure.
    b.sh("printf X | dd of=m/b/large bs=1 seek=2900000 conv=notrunc status=none; echo two >> m/b/z");
    let all = b.ok(&["diff", "-u", "m/a", "m/b"]);
    assert!(all.contains("Binary files m/a/large and m/b/large differ"), "{all}");
    b.umount();
    let content = std::fs::read(b.path("large")).unwrap();
    let needle = &content[1_000_000..1_000_032];
    let mut image = std::fs::read(b.path("a.img")).unwrap();
    let places: Vec<usize> =
        image.windows(needle.len()).enumerate().filter(|(_, w)| *w == needle).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the content is not in the image");
    places.iter().for_each(|at| image[at + 7] ^= 1);
    std::fs::write(b.path("a.img"), image).unwrap();
    b.mount();
    for (x, y) in [("a", "b"), ("b", "a")] {
        b.sh(&format!("! cmp m/{x}/large large 2> said || exit 1; grep -q 'Input/output error' said"));
        let out = b.command(&["diff", "-u", &format!("m/{x}"), &format!("m/{y}")]).output().unwrap();
        let (said, lines) = (crate::common::text(&out.stderr), crate::common::text(&out.stdout));
        assert_eq!(out.status.code(), Some(3), "{said}{lines}");
        assert!(said.contains("Input/output error") && lines.contains("two\n"), "{said}{lines}");
    }
}

/// More differences than fit into one answer, and a reader that goes away.
#[test]
fn many_differences_come_in_pieces() {
    let b = mounted!();
    b.sh("mkdir m/a m/b; cd m/b; seq -f 'a-file-with-a-rather-long-name-so-that-answers-are-full-%05.0f' 3000 | xargs touch");
    let all = b.ok(&["diff", "--name-only", "m/a", "m/b"]);
    assert_eq!(all.lines().count(), 3001);
    assert_eq!(lines(&all).len(), 3001);
    let head = b.sh(&format!("{} diff m/a m/b | head -n 3 | wc -l", env!("CARGO_BIN_EXE_pando")));
    assert_eq!(head.trim(), "3");
    // What is asked while another asks.
    b.sh(&format!(
        "for i in 1 2 3 4; do {} diff -H m/a m/b > out$i & done; wait; cmp out1 out2; cmp out1 out3; cmp out1 out4",
        env!("CARGO_BIN_EXE_pando")
    ));
}

#[test]
fn those_who_may_not_look_are_told_nothing() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root");
        return;
    }
    b.umount();
    b.ok(&["mount", "-o", "allow_other", "a.img", "m"]);
    b.sh("chmod 755 . m; mkdir -p m/d/open m/d/closed; echo x > m/d/open/f; echo x > m/d/open/own; echo x > m/d/closed/f
        chmod 700 m/d/closed; chmod 600 m/d/open/own");
    b.ok(&["clone", "m/d", "m/e"]);
    b.ok(&["snapshot", "create", "m/d", "s"]);
    b.sh("echo y > m/e/open/f; echo y > m/e/open/own; echo y > m/e/closed/f; echo other > m/d/closed/f");
    let pando = env!("CARGO_BIN_EXE_pando");
    let user = |args: &str| {
        let script = format!(
            "setpriv --reuid 12345 --regid 12345 --clear-groups {pando} {args} 2>&1 && echo code 0 || echo code $?"
        );
        b.sh(&script)
    };
    if !user("--version").contains("pando") {
        eprintln!("SKIPPED: the program cannot be run by another user here");
        return;
    }
    let dir = b.path("m").display().to_string();
    let said = user(&format!("diff --json {dir}/d {dir}/e"));
    assert!(
        said.contains("\"open/f\"") && said.contains("\"unreadable\"") && said.contains("code 3"),
        "{said}"
    );
    assert!(!said.contains("closed/f"), "{said}");
    let own: Vec<&str> = said.lines().filter(|line| line.contains("open/own")).collect();
    assert!(own.iter().all(|line| !line.contains("content") && line.contains("\"ranges\":[]")), "{own:?}");
    assert!(own.iter().any(|line| line.contains("\"unreadable\"")), "{own:?}");
    assert!(user(&format!("diff {dir}/d {dir}/e/closed")).contains("ermission denied"));
    // Root sees all, in snapshots too.
    assert!(b.ok(&["diff", "m/d", "m/e"]).contains("closed/f"));
    assert!(b.ok(&["diff", "m/d/.snapshots/s", "m/d"]).contains("closed/f"));
}

/// Also if its mode gives no right to the caller: who has opened a file may read it, by whatever right.
#[test]
fn files_are_compared_by_who_may_open_them_whatever_their_mode() {
    for options in ["writeback=on", "allow_other"] {
        let b = mounted!();
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: not root");
            return;
        }
        b.umount();
        b.ok(&["mount", "-o", options, "a.img", "m"]);
        b.sh("chmod 755 . m; mkdir m/a; for f in own other none group; do echo aaaa > m/a/$f; done
            cd m/a; chmod 600 own other; chmod 0 none; chmod 640 group; chown 12345 other; chown 12345:41099 group");
        b.ok(&["clone", "m/a", "m/b"]);
        b.ok(&["snapshot", "create", "m/a", "s"]);
        b.sh("cd m; for d in a b; do for f in own other none group; do
                cp -a $d/$f t; echo $d$d > t2; cat t2 > $d/$f; touch -r t $d/$f; rm t t2; done; done");
        for name in ["own", "other", "none", "group"] {
            let (x, y) = (format!("m/a/{name}"), format!("m/b/{name}"));
            assert_eq!(b.ok(&["diff", &x, &y]), "M\t.\n", "{options} {name}");
            assert!(
                b.ok(&["diff", "--json", "m/a", "m/b", name]).contains("\"ranges\":["),
                "{options} {name}"
            );
            assert!(b.ok(&["diff", "-u", &x, &y]).contains("\n+bb\n"), "{options} {name}");
            assert_eq!(b.ok(&["log", "-H", &x]).lines().count(), 2, "{options} {name}");
        }
        let user = |groups: &str, args: &str| {
            let (dir, pando) = (b.path("m").display().to_string(), env!("CARGO_BIN_EXE_pando"));
            let who = format!("setpriv --reuid 12346 --regid 12346 {groups}");
            let line = format!("cd {dir}; {who} {pando} {args} 2>&1 && echo code 0 || echo code $?");
            b.sh(&line)
        };
        if options == "allow_other" && user("--clear-groups", "--version").contains("pando") {
            assert_eq!(user("--groups 41099", "diff a/group b/group"), "M\t.\ncode 0\n");
            for args in ["diff a/group b/group", "diff -u a/own b/own", "diff a b none", "log a/own"] {
                let said = user("--clear-groups", args);
                assert!(said.contains("ermission denied") && said.contains("code 1"), "{args}: {said}");
            }
            // Beside others, that it could not be compared is told.
            for args in ["diff a b", "diff -u a b", "diff --stat a b"] {
                let said = user("--clear-groups", args);
                for name in ["own", "other", "none", "group"] {
                    assert!(said.contains(&format!("pando: {name}: ")), "{args}: {said}");
                }
                assert!(said.contains("code 3") && !said.contains("+bb"), "{args}: {said}");
            }
        }
    }
}

/// It said that they lie in no mounted Pando file system.
#[test]
fn special_files_are_compared_by_the_directories_in_which_they_are() {
    let b = mounted!();
    b.sh("mkdir m/a m/b; mkfifo m/a/p; mkfifo -m 600 m/b/p; ln -s none m/a/l");
    b.fails(&["diff", "m/a/p", "m/b/p"], 1, "name the directory in which it is");
    b.fails(&["diff", "m/a/l", "m/b/p"], 1, "No such file");
    assert_eq!(b.ok(&["diff", "-H", "m/a", "m/b"]).lines().filter(|line| line.contains('p')).count(), 1);
}
