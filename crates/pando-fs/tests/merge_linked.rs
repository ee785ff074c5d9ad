//! Merges of attributes of files with several names: a merge compares names, and the attributes are those of the file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::{World, check_keys, trees::read};
use pando_fs::*;

/// Longer than what a record holds.
const LONG: [u8; 3000] = [7; 3000];

fn chmod(w: &World, path: &str, mode: u16) {
    let mode = SetAttr { mode: Some(mode.into()), ..SetAttr::default() };
    w.on(path, |a| w.fs.setattr(&w.me, a.ino, &mode)).unwrap();
}

fn set_long(w: &World, path: &str, name: &str) {
    w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, name.as_ref(), &LONG, 0)).unwrap();
}

fn get_long(w: &World, path: &str, name: &str) -> Option<usize> {
    w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, name.as_ref())).ok().map(|value| value.len())
}

/// Modes and link counts of files, and that the file system is whole.
fn modes<const N: usize>(w: &World, paths: [&str; N]) -> [(u16, u32); N] {
    w.fs.count_links().unwrap();
    w.fs.check(|problem| panic!("{problem}")).unwrap();
    check_keys(w);
    paths.map(|path| {
        let attr = w.attr(path);
        (attr.perm, attr.nlink)
    })
}

/// A world with `/s/a`, `/s/d/b` and `/out`, names of one file, and what else `more` does.
fn linked(more: impl FnOnce(&World)) -> World {
    let w = World::new();
    w.mkdir("/s");
    w.mkdir("/s/d");
    w.put("/s/a", b"content");
    w.link("/s/a", "/s/d/b").unwrap();
    w.link("/s/a", "/out").unwrap();
    chmod(&w, "/out", 0o644);
    more(&w);
    w.fork("/s", "/f");
    w
}

fn merge(w: &World) {
    assert!(w.merge("/f", "/s", MergeOptions::default()).unwrap().merged);
    let again = w.merge("/f", "/s", MergeOptions::default()).unwrap();
    assert!(again.changes.is_empty(), "{again:?}");
}

#[test]
fn attributes_that_all_names_get_are_changed_in_place() {
    let mut w = linked(|_| ());
    chmod(&w, "/f/a", 0o600);
    set_long(&w, "/f/d/b", "user.long");
    let number = w.attr("/s/a").ino;
    merge(&w);
    for _ in 0..2 {
        assert_eq!(modes(&w, ["/s/a", "/s/d/b", "/out"]), [(0o600, 3); 3]);
        assert_eq!(["/s/a", "/s/d/b"].map(|path| w.attr(path).ino), [number; 2]);
        assert_eq!(get_long(&w, "/out", "user.long"), Some(LONG.len()));
        w.remount();
    }
}

#[test]
fn a_name_that_the_fork_removed_needs_no_attributes() {
    for dir in [false, true] {
        let w = linked(|_| ());
        chmod(&w, "/f/a", 0o600);
        match dir {
            true => _ = w.remove_tree("/f/d").unwrap(),
            false => w.unlink("/f/d/b").unwrap(),
        }
        let number = w.attr("/s/a").ino;
        merge(&w);
        assert_eq!(modes(&w, ["/s/a", "/out"]), [(0o600, 2); 2]);
        assert_eq!(w.attr("/s/a").ino, number);
        assert!(!w.exists("/s/d/b"));
    }
}

/// In the fork the names are of two files, of which one has not changed.
#[test]
fn attributes_of_one_of_several_names_are_those_of_that_name_alone() {
    let mut w = linked(|w| set_long(w, "/s/a", "user.old"));
    let original = w.attr("/s/d/b");
    w.unlink("/f/a").unwrap();
    w.put("/f/a", b"content");
    set_long(&w, "/f/a", "user.new");
    chmod(&w, "/f/a", 0o600);
    // What both sides say of the content need not be the same.
    w.write_at("/s/d/b", 0, b"CON").unwrap();
    let (_, cache) =
        w.on("/f", |f| w.on("/s", |s| w.fs.merge(None, f.ino, s.ino, MergeOptions::default()))).unwrap();
    assert!(cache.entries.contains(&(w.attr("/s").ino, "a".into())), "{cache:?}");
    merge(&w);
    for _ in 0..2 {
        assert_eq!(
            modes(&w, ["/s/a", "/s/d/b", "/out"]),
            [(0o600, 1), (original.perm, 2), (original.perm, 2)]
        );
        for name in ["/s/a", "/s/d/b", "/out"] {
            assert_eq!(w.get(name).unwrap(), b"CONtent", "{name}");
            let attrs = ["user.old", "user.new"].map(|attr| get_long(&w, name, attr).is_some());
            assert_eq!(attrs, if name == "/s/a" { [false, true] } else { [true, false] }, "{name}");
        }
        assert_eq!(w.attr("/s/d/b").ino, original.ino);
        assert_ne!(w.attr("/s/a").ino, original.ino);
        w.remount();
    }
    w.write_at("/s/a", 0, b"own").unwrap();
    assert_eq!(w.get("/out").unwrap(), b"CONtent");
}

/// One name gets another content and keeps the attributes that the other one loses.
#[test]
fn what_a_name_keeps_is_taken_along_before_another_loses_it() {
    let w = linked(|w| set_long(w, "/s/a", "user.old"));
    w.unlink("/f/a").unwrap();
    w.put("/f/a", b"content");
    w.write_at("/f/d/b", 0, b"CON").unwrap();
    let theirs = read(&w, "/f");
    merge(&w);
    assert_eq!(modes(&w, ["/s/a", "/s/d/b", "/out"]), [(0o644, 2), (0o644, 1), (0o644, 2)]);
    assert_eq!(
        (get_long(&w, "/s/a", "user.old"), get_long(&w, "/s/d/b", "user.old")),
        (None, Some(LONG.len()))
    );
    assert_eq!(read(&w, "/s"), theirs);
}

/// Names that get different attributes, and one that only the other side has made.
#[test]
fn names_that_get_different_attributes_become_files_of_their_own() {
    let w = linked(|_| ());
    for (name, mode) in [("/f/a", 0o600), ("/f/d/b", 0o640)] {
        w.unlink(name).unwrap();
        w.put(name, b"content");
        chmod(&w, name, mode);
    }
    merge(&w);
    assert_eq!(modes(&w, ["/s/a", "/s/d/b", "/out"]), [(0o600, 1), (0o640, 1), (0o644, 1)]);
    let w = linked(|_| ());
    chmod(&w, "/f/a", 0o600);
    w.link("/s/a", "/s/new").unwrap();
    merge(&w);
    let names = ["/s/a", "/s/d/b", "/s/new", "/out"];
    assert_eq!(modes(&w, names), [(0o600, 1), (0o600, 1), (0o644, 2), (0o644, 2)]);
    assert!(names.iter().all(|name| w.get(name).unwrap() == b"content"));
}

/// The lineage is that of a clone in the tree.
#[test]
fn names_in_a_clone_are_settled_in_it() {
    let w = linked(|w| {
        w.clone_tree("/s", "/copy", false).unwrap();
        w.rename("/copy", "/s/copy", 0).unwrap();
    });
    w.unlink("/f/copy/a").unwrap();
    w.put("/f/copy/a", b"content");
    chmod(&w, "/f/copy/a", 0o600);
    chmod(&w, "/f/a", 0o640);
    merge(&w);
    assert_eq!(modes(&w, ["/s/copy/a", "/s/copy/d/b"]), [(0o600, 1), (0o644, 1)]);
    assert_eq!(modes(&w, ["/s/a", "/s/d/b", "/out"]), [(0o640, 3); 3]);
    assert_eq!(w.get("/s/copy/a").unwrap(), b"content");
}

/// The fork exchanges two directories, of which one had a name of a linked file and the other has it now. By paths alone
/// it would be one name that has stayed.
#[test]
fn a_name_that_came_with_another_directory_is_not_the_one_that_was_there() {
    const RENAME_EXCHANGE: u32 = 2;
    for content in [true, false] {
        let w = World::new();
        for dir in ["/s", "/s/b", "/s/c"] {
            w.mkdir(dir);
        }
        w.put("/s/a", b"content");
        w.link("/s/a", "/s/c/name").unwrap();
        w.fork("/s", "/f");
        w.rename("/f/b", "/f/c", RENAME_EXCHANGE).unwrap();
        w.unlink("/f/b/name").unwrap();
        w.link("/f/a", "/f/c/name").unwrap();
        match content {
            true => _ = w.write_at("/f/a", 0, b"CON").unwrap(),
            false => chmod(&w, "/f/a", 0o600),
        }
        w.unlink("/s/c/name").unwrap();
        w.put("/s/c/name", b"own");
        let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        let conflicts = report.changes.iter().filter(|c| matches!(c.kind, MergeKind::Conflict(_)));
        let kinds: Vec<_> = conflicts.map(|c| (c.path.to_str().unwrap(), c.kind)).collect();
        assert_eq!(kinds, [("c/name", MergeKind::Conflict(MergeConflict::RemovedThere))], "{report:?}");
        let theirs = MergeOptions { prefer: Some(MergeSide::Theirs), ..MergeOptions::default() };
        assert!(w.merge("/f", "/s", theirs).unwrap().merged);
        assert_eq!(read(&w, "/s"), read(&w, "/f"));
        modes(&w, []);
    }
}

/// A root of a lineage, with names that are to be counted, leaves the path to which another one comes, or is removed.
#[test]
fn names_are_counted_in_a_directory_that_comes_to_the_place_of_another() {
    for removed in [false, true] {
        let w = World::new();
        w.mkdir("/clone");
        w.put("/clone/x", b"clone");
        w.link("/clone/x", "/clone/y").unwrap();
        w.mkdir("/s");
        w.put("/s/a", b"content");
        w.mkdir("/s/c");
        w.clone_tree("/clone", "/s/c/clone", false).unwrap();
        w.fork("/s", "/f");
        w.rename("/f/c/clone", "/f/clone", 0).unwrap();
        w.unlink("/f/clone/x").unwrap();
        if removed {
            w.remove_tree("/f/clone").unwrap();
        }
        w.mkdir("/f/c/clone");
        w.link("/f/a", "/f/c/clone/one").unwrap();
        let theirs = read(&w, "/f");
        merge(&w);
        assert_eq!(read(&w, "/s"), theirs);
        assert_eq!(modes(&w, ["/s/c/clone/one"]), [(0o644, 1)]);
    }
}

/// A fork that lies in the root of its own lineage: that was moved out of it, and the fork into that.
#[test]
fn a_fork_that_is_no_root_has_its_linked_files_in_its_next_origin_too() {
    let mut w = World::new();
    for dir in ["/s", "/s/d", "/x"] {
        w.mkdir(dir);
    }
    w.put("/s/a", b"content");
    w.fork("/s", "/f");
    w.rename("/f/d", "/x/d", 0).unwrap();
    w.rename("/f", "/x/d/f", 0).unwrap();
    w.link("/x/d/f/a", "/x/d/f/b").unwrap();
    let merge = |w: &World| w.merge("/x/d/f", "/s", MergeOptions::default()).unwrap();
    for content in [b"CONtent", b"again!!"] {
        let changed = |w: &World| {
            let diff = w.on("/x/d/f", |f| w.fs.diff_fork(None, f.ino, DiffOptions::default())).unwrap();
            diff.map(|change| change.unwrap().path).collect::<Vec<_>>()
        };
        assert!(merge(&w).merged);
        modes(&w, []);
        assert!(changed(&w).is_empty());
        assert!(merge(&w).changes.is_empty());
        assert_eq!(read(&w, "/s"), read(&w, "/x/d/f"));
        w.write_at("/x/d/f/b", 0, content).unwrap();
        assert_eq!(changed(&w).len(), 2);
        w.remount();
    }
    assert!(merge(&w).merged);
    assert_eq!(w.get("/s/a").unwrap(), b"again!!");
    modes(&w, []);
}
