//! Merging lines: what both sides wrote is there once, what clashes is marked, and what is no text stays a conflict.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;

use super::common::{Random, World, check_keys};
use pando_fs::*;

fn merge(w: &World, prefer: Option<MergeSide>) -> MergeReport {
    let o = MergeOptions { prefer, text: true, ..MergeOptions::default() };
    w.merge("/f", "/s", o).unwrap()
}

fn kinds(report: &MergeReport) -> Vec<(String, MergeKind)> {
    let one = |c: &MergeChange| (c.path.to_string_lossy().into_owned(), c.kind);
    let mut all: Vec<_> = report.changes.iter().map(one).collect();
    all.sort();
    all
}

fn text(lines: &[String]) -> Vec<u8> {
    lines.concat().into_bytes()
}

/// Writes `data` over a file, and cuts it off behind that.
fn rewrite(w: &World, path: &str, data: &[u8]) {
    w.truncate(path, 0).unwrap();
    w.write_at(path, 0, data).unwrap();
}

fn attr_of(w: &World, path: &str) -> Result<bytes::Bytes> {
    w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, OsStr::new("user.large")))
}

fn set(w: &World, path: &str, mode: u32) {
    let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
    w.on(path, |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
}

/// Edits far enough from each other that there is one right answer: files of no block, of one and of some.
#[test]
fn lines_that_only_one_side_changed_are_all_there() {
    for seed in 1..60 {
        let mut random = Random::new(seed);
        let mut w = World::new();
        w.mkdir("/s");
        let count = [6, 40, 900][seed as usize % 3];
        let base: Vec<String> = (0..count).map(|i| format!("line {i} of the origin\n")).collect();
        w.put("/s/file", &text(&base));
        w.put("/s/other", b"beside");
        // Attributes that lie outside of the record stay with the file, or are those of the fork if it changed them.
        let mut large = vec![b'a'; 5000];
        let set_attr = |w: &World, path: &str, value: &[u8]| {
            w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new("user.large"), value, 0)).unwrap();
        };
        set_attr(&w, "/s/file", &large);
        w.fork("/s", "/f");
        let (mut ours, mut theirs, mut both) = (base.clone(), base.clone(), base.clone());
        for i in (0..count).step_by(3) {
            let change = match random.below(4) {
                0 => String::new(),
                1 => format!("changed {i}\n"),
                2 => format!("added before {i}\n{}", base[i]),
                _ => continue,
            };
            let side = if random.below(2) == 0 { &mut ours } else { &mut theirs };
            side[i] = change.clone();
            both[i] = change;
        }
        rewrite(&w, "/s/file", &text(&ours));
        rewrite(&w, "/f/file", &text(&theirs));
        if ours != base && theirs != base && random.below(2) == 0 {
            large.fill(b'b');
            set_attr(&w, "/f/file", &large);
        }
        set(&w, "/s/file", 0o4711);
        let report = merge(&w, None);
        assert!(report.merged, "seed {seed}");
        if ours != base && theirs != base {
            assert_eq!(kinds(&report), [("file".to_owned(), MergeKind::Lines)], "seed {seed}");
            // Content of both sides gets no rights that one of them gave.
            assert_eq!(w.attr("/s/file").perm, 0o711, "seed {seed}");
        }
        let wanted = text(&both);
        for _ in 0..2 {
            assert_eq!(w.get("/s/file").unwrap(), wanted, "seed {seed}");
            assert_eq!(w.attr("/s/file").size, wanted.len() as u64, "seed {seed}");
            assert_eq!(attr_of(&w, "/s/file").unwrap(), large, "seed {seed}");
            check_keys(&w);
            w.remount();
        }
        assert_eq!(w.get("/f/file").unwrap(), text(&theirs), "seed {seed}");
        assert!(merge(&w, None).changes.is_empty(), "seed {seed}");
    }
}

#[test]
fn lines_that_clash_are_marked_or_one_side_has_the_file() {
    for prefer in [None, Some(MergeSide::Ours), Some(MergeSide::Theirs)] {
        let w = World::new();
        w.mkdir("/s");
        w.put("/s/file", b"one\ntwo\nthree\n");
        w.fork("/s", "/f");
        rewrite(&w, "/s/file", b"one\nours\nthree\n");
        rewrite(&w, "/f/file", b"one\ntheirs\nthree\nfour\n");
        let report = merge(&w, prefer);
        assert!(report.merged);
        let (kind, wanted) = match prefer {
            None => (
                MergeKind::Marked,
                "one\n<<<<<<< ours\nours\n||||||| original\ntwo\n=======\ntheirs\n>>>>>>> theirs\nthree\nfour\n",
            ),
            Some(MergeSide::Ours) => (MergeKind::Conflict(MergeConflict::Changed), "one\nours\nthree\n"),
            Some(MergeSide::Theirs) => {
                (MergeKind::Conflict(MergeConflict::Changed), "one\ntheirs\nthree\nfour\n")
            }
        };
        assert_eq!(kinds(&report), [("file".to_owned(), kind)]);
        assert_eq!(String::from_utf8(w.get("/s/file").unwrap()).unwrap(), wanted);
        check_keys(&w);
    }
}

/// A last line may lack its newline, in one version or in several.
#[test]
fn markers_have_lines_of_their_own_behind_a_line_without_a_newline() {
    for (base, ours, theirs, wanted) in [
        (
            "one\nbase",
            "one\nmine",
            "one\nfork",
            "one\n<<<<<<< ours\nmine\n||||||| original\nbase\n=======\nfork\n>>>>>>> theirs\n",
        ),
        (
            "one\nbase\n",
            "one\nmine",
            "one\nfork\n",
            "one\n<<<<<<< ours\nmine\n||||||| original\nbase\n=======\nfork\n>>>>>>> theirs\n",
        ),
        ("base", "", "fork", "<<<<<<< ours\n||||||| original\nbase\n=======\nfork\n>>>>>>> theirs\n"),
        // Where nothing clashes the end is that of the side that changed it.
        ("one\n2\n3\n4\nend\n", "uno\n2\n3\n4\nend\n", "one\n2\n3\n4\nend", "uno\n2\n3\n4\nend"),
        ("one\n2\n3\n4\nend", "uno\n2\n3\n4\nend", "one\n2\n3\n4\nend\n", "uno\n2\n3\n4\nend\n"),
    ] {
        let w = World::new();
        w.mkdir("/s");
        w.put("/s/file", base.as_bytes());
        w.fork("/s", "/f");
        rewrite(&w, "/s/file", ours.as_bytes());
        rewrite(&w, "/f/file", theirs.as_bytes());
        assert!(merge(&w, None).merged);
        assert_eq!(String::from_utf8(w.get("/s/file").unwrap()).unwrap(), wanted);
    }
}

#[test]
fn what_is_no_text_or_clashes_otherwise_stays_a_conflict() {
    let w = World::new();
    w.mkdir("/s");
    let lines: Vec<String> = (0..10).map(|i| format!("{i}\n")).collect();
    let long = "x\n".repeat(600_000);
    let many = "\n".repeat(30_000);
    for name in ["binary", "mode", "sparse"] {
        w.put(&format!("/s/{name}"), &text(&lines));
    }
    w.put("/s/long", long.as_bytes());
    w.put("/s/many", many.as_bytes());
    w.fork("/s", "/f");
    for (side, line, mode) in [("/s", 1, 0o600), ("/f", 8, 0o640)] {
        let mut changed = lines.clone();
        changed[line] = format!("{side}\n");
        rewrite(&w, &format!("{side}/mode"), &text(&changed));
        set(&w, &format!("{side}/mode"), mode);
        changed[line].push('\0');
        rewrite(&w, &format!("{side}/binary"), &text(&changed));
        w.truncate(&format!("{side}/sparse"), 50_000 + mode as u64).unwrap();
        w.write_at(&format!("{side}/long"), line as u64 * 1000, b"y").unwrap();
        w.write_at(&format!("{side}/many"), line as u64 * 1000, b"y").unwrap();
    }
    let before = w.walk("/s");
    let report = merge(&w, None);
    assert!(!report.merged);
    let clash = MergeKind::Conflict(MergeConflict::Changed);
    let names = ["binary", "long", "many", "mode", "sparse"];
    assert_eq!(kinds(&report), names.map(|name| (name.to_owned(), clash)));
    assert_eq!(w.walk("/s"), before);
    // The side decides on the mode, and the lines are of both.
    assert!(merge(&w, Some(MergeSide::Theirs)).merged);
    assert_eq!(w.attr("/s/mode").perm, 0o640);
    assert_eq!(w.get("/s/mode").unwrap(), b"0\n/s\n2\n3\n4\n5\n6\n7\n/f\n9\n");
    assert_eq!(w.get("/s/long").unwrap()[1000], b'x', "the whole file of the fork");
    check_keys(&w);
}

#[test]
fn a_file_with_several_names_is_merged_by_each() {
    let mut w = World::new();
    w.mkdir("/s");
    w.put("/s/a", b"1\n2\n3\n4\n5\n");
    w.link("/s/a", "/s/b").unwrap();
    w.fork("/s", "/f");
    rewrite(&w, "/s/a", b"1\nours\n3\n4\n5\n");
    rewrite(&w, "/f/b", b"1\n2\n3\n4\ntheirs\n");
    assert!(merge(&w, None).merged);
    w.remount();
    for name in ["/s/a", "/s/b"] {
        assert_eq!(w.get(name).unwrap(), b"1\nours\n3\n4\ntheirs\n", "{name}");
    }
    w.fs.check(|problem| panic!("{problem}")).unwrap();
}

/// Somebody replaces another's file, which he may not read, on both sides: the lines of the origin are not shown to him.
#[test]
fn nobody_gets_lines_of_an_origin_that_is_not_his() {
    let w = World::new();
    let own = |path: &str| {
        let change = SetAttr { uid: Some(1000), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
    };
    w.mkdir("/s");
    w.put("/s/file", b"secret\n");
    set(&w, "/s/file", 0o600);
    w.fork("/s", "/f");
    for dir in ["/s", "/f"] {
        let file = format!("{dir}/file");
        w.unlink(&file).unwrap();
        w.put(&file, format!("of {dir}\n").as_bytes());
        own(dir);
        own(&file);
    }
    let merge_as = |owner, dry_run| {
        let o = MergeOptions { dry_run, text: true, ..MergeOptions::default() };
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(owner, f.ino, s.ino, o))).unwrap().0
    };
    let report = merge_as(Some(1000), false);
    assert!(!report.merged);
    assert_eq!(kinds(&report), [("file".to_owned(), MergeKind::Conflict(MergeConflict::Changed))]);
    assert_eq!(w.get("/s/file").unwrap(), b"of /s\n");
    // Who may read everything is shown them.
    assert_eq!(kinds(&merge_as(None, true)), [("file".to_owned(), MergeKind::Marked)]);
}
