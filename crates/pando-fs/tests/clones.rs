//! Clones of files and trees: their content, their numbers, what they replace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::*;
use pando_db::device::MemDevice;
use pando_fs::*;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

/// A tree with something of everything.
fn plant(w: &World, at: &str) {
    w.mkdir(at);
    w.mkdir(&format!("{at}/sub"));
    w.mkdir(&format!("{at}/sub/deep"));
    w.put(&format!("{at}/f"), &pattern(50_000, 1));
    w.put(&format!("{at}/sub/g"), &pattern(10, 2));
    w.put(&format!("{at}/sub/deep/h"), &pattern(300_000, 3));
    w.put(&format!("{at}/empty"), b"");
    w.symlink(&format!("{at}/link"), "sub/g");
}

/// What a tree looks like without its numbers and change times: relative path -> (attributes, content).
fn content(w: &World, at: &str) -> BTreeMap<String, (Attr, Vec<u8>)> {
    let strip = |p: &str| p[at.len()..].to_string();
    w.walk(at)
        .into_iter()
        .map(|(p, mut a)| {
            a.ino = 0;
            if p == at {
                (a.ctime, a.crtime) = Default::default();
            }
            let data = match a.kind {
                FileKind::Regular => w.get(&p).unwrap(),
                FileKind::Symlink => w.on(&p, |a| w.fs.readlink(a.ino)).unwrap().to_vec(),
                _ => Vec::new(),
            };
            (strip(&p), (a, data))
        })
        .collect()
}

#[test]
fn a_clone_has_the_content_of_its_source_and_numbers_of_its_own() {
    let mut w = World::new();
    plant(&w, "/a");
    let keys = w.numbers("/a");
    let report = w.clone_tree("/a", "/b", false).unwrap();
    assert_eq!(report.entries, [(ROOT, "b".into())]);
    assert!(report.replaced.is_empty());
    assert!(content(&w, "/a") == content(&w, "/b"));
    assert_eq!(w.numbers("/a"), keys, "the source keeps its numbers");
    let all = w.numbers("/"); // checks that no number is there twice
    w.remount();
    assert_eq!(w.numbers("/"), all);
    assert!(content(&w, "/a") == content(&w, "/b"));
    w.assert_nothing_referenced();
    assert_eq!(w.fs.stats().unwrap().clones, 0, "figures are of the mount");
    w.clone_tree("/a", "/c", false).unwrap();
    assert_eq!(w.fs.stats().unwrap().clone_latency.count(), 1);
}

#[test]
fn edits_of_a_clone_and_of_its_source_stay_apart() {
    let mut w = World::new();
    plant(&w, "/a");
    w.clone_tree("/a", "/b", false).unwrap();
    let original = content(&w, "/a");
    w.write_at("/b/sub/deep/h", 123_456, b"edited").unwrap();
    w.put("/b/new", b"new");
    w.unlink("/b/f").unwrap();
    w.rename("/b/sub", "/b/renamed", 0).unwrap();
    w.truncate("/b/renamed/g", 3).unwrap();
    assert!(content(&w, "/a") == original);
    let edited = content(&w, "/b");
    w.remove_tree("/a").unwrap();
    assert!(content(&w, "/b") == edited);
    plant(&w, "/a");
    w.remount();
    assert!(content(&w, "/b") == edited);
    w.walk("/");
}

#[test]
fn clones_of_clones_of_clones_have_numbers_of_their_own() {
    let mut w = World::new();
    plant(&w, "/a");
    w.clone_tree("/a", "/a1", false).unwrap();
    w.clone_tree("/a1", "/a2", false).unwrap();
    w.clone_tree("/a", "/a1/sub/nested", false).unwrap();
    w.clone_tree("/a1", "/a3", false).unwrap();
    w.clone_tree("/a3/sub", "/a3/sub2", false).unwrap();
    w.clone_tree("/a3", "/a2/inner", false).unwrap();
    w.clone_tree("/a2/inner/sub/nested", "/a2/inner/sub/again", false).unwrap();
    assert!(content(&w, "/a2/inner/sub/again") == content(&w, "/a"));
    let all = w.numbers("/");
    assert!(all.len() > 60, "{}", all.len());
    w.remount();
    assert_eq!(w.numbers("/"), all);
}

#[test]
fn cloned_files_share_nothing_but_their_bytes() {
    let mut w = World::new();
    for size in [0, 10, 100_000] {
        w.put("/f", &pattern(size, 7));
        w.clone_tree("/f", "/g", true).unwrap();
        assert_ne!(w.attr("/f").ino, w.attr("/g").ino);
        w.write_at("/g", 5, b"edit").unwrap();
        assert!(w.get("/f").unwrap() == pattern(size, 7));
        w.remount();
        assert!(w.get("/f").unwrap() == pattern(size, 7));
        assert_eq!(w.get("/g").unwrap()[5..9], b"edit"[..]);
    }
    w.symlink("/l", "f");
    w.clone_tree("/l", "/m", false).unwrap();
    assert_ne!(w.attr("/l").ino, w.attr("/m").ino);
    assert_eq!(w.on("/m", |a| w.fs.readlink(a.ino)).unwrap(), "f");
}

#[test]
fn numbers_stay_across_moves_between_lineages() {
    let mut w = World::new();
    plant(&w, "/a");
    w.clone_tree("/a", "/b", false).unwrap();
    w.clone_tree("/a", "/c", false).unwrap();
    let number = |w: &World, p: &str| w.attr(p).ino;
    let check = |w: &mut World, from: &str, to: &str, flags: u32| {
        let tree = |w: &World, p: &str| -> Vec<Ino> {
            match w.attr(p).kind {
                FileKind::Directory => w.numbers(p).into_values().collect(),
                _ => vec![number(w, p)],
            }
        };
        let (before, other) = (tree(w, from), w.exists(to).then(|| tree(w, to)));
        w.rename(from, to, flags).unwrap();
        assert_eq!(tree(w, to), before, "{from} -> {to}");
        w.numbers("/");
        w.remount();
        assert_eq!(tree(w, to), before, "{from} -> {to}, remounted");
        if flags == RENAME_EXCHANGE {
            assert_eq!(tree(w, from), other.unwrap());
        }
    };
    check(&mut w, "/b/f", "/f", 0);
    check(&mut w, "/f", "/c/sub/f", 0);
    check(&mut w, "/b/sub", "/a/sub-of-b", 0);
    check(&mut w, "/a/sub-of-b/deep", "/deep", 0);
    check(&mut w, "/deep", "/b/deep", 0); // back into its own lineage
    check(&mut w, "/b", "/c/b", 0);
    check(&mut w, "/c", "/a/c", 0);
    check(&mut w, "/a/c/b/deep", "/a/sub", RENAME_EXCHANGE);
    check(&mut w, "/a/f", "/a/c/sub/f", RENAME_EXCHANGE);
    // Clones of what holds pins and moved directories.
    w.clone_tree("/a", "/a-again", false).unwrap();
    w.clone_tree("/a/c", "/a-again/c-again", false).unwrap();
    assert!(content(&w, "/a-again/c-again") == content(&w, "/a/c"));
    let all = w.numbers("/");
    w.remount();
    assert_eq!(w.numbers("/"), all);
    check(&mut w, "/a-again/c-again/sub/f", "/moved", 0);
    check(&mut w, "/a-again/c", "/c", 0);
    w.numbers("/");
    w.assert_nothing_referenced();
}

#[test]
fn a_source_inside_its_destination_is_refused() {
    let w = World::new();
    plant(&w, "/a");
    let over = w.clone_tree("/a/sub", "/a", true).unwrap_err();
    assert_eq!(over.errno(), EINVAL);
    assert!(over.to_string().contains("inside the destination"), "{over}");
    assert_eq!(errno(w.clone_tree("/a", "/a", true)), EINVAL);
    assert_eq!(errno(w.clone_tree("/a", "/b/c", false)), ENOENT);
    assert_eq!(errno(w.clone_tree("/none", "/b", false)), ENOENT);
    w.mkdir("/b");
    assert_eq!(errno(w.clone_tree("/a", "/b", false)), EEXIST);
    // A name that begins like another is not inside of it.
    w.clone_tree("/a", "/ab", false).unwrap();
    w.clone_tree("/a/sub", "/a/su", false).unwrap();
    assert!(content(&w, "/a/su") == content(&w, "/a/sub"));
}

#[test]
fn replacing_kills_what_was_there() {
    let mut w = World::new();
    plant(&w, "/a");
    plant(&w, "/old");
    w.put("/old/only-here", &pattern(40_000, 9));
    w.on("/old/only-here", |f| {
        let fh = w.fs.open_file(&w.me, f.ino, O_RDWR)?;
        let dir = w.fs.resolve("/old/sub".as_ref())?;
        let deep = w.fs.resolve("/old/sub/deep".as_ref())?;
        let top = w.attr("/old").ino;
        let report = w.clone_tree("/a", "/old", true)?;
        assert_eq!(report.replaced, [top]);
        assert!(content(&w, "/old") == content(&w, "/a"));
        assert!(!w.exists("/old/only-here"));
        for dead in [dir.ino, deep.ino] {
            assert_eq!(errno(w.fs.getattr(dead)), ESTALE);
            assert_eq!(errno(w.fs.lookup(dead, "g".as_ref())), ESTALE);
            assert_eq!(errno(w.fs.create(&w.me, dead, "zombie".as_ref(), 0o644, 0)), ESTALE);
            w.fs.forget(dead, 1);
        }
        assert!(w.whole(f.ino)? == pattern(40_000, 9), "open files stay with their handles");
        w.fs.release(f.ino, fh);
        Ok(())
    })
    .unwrap();
    w.clone_tree("/a/f", "/old", true).unwrap();
    assert!(w.get("/old").unwrap() == pattern(50_000, 1));
    w.clone_tree("/a", "/old", true).unwrap();
    assert!(content(&w, "/old") == content(&w, "/a"));
    w.remount();
    assert!(content(&w, "/old") == content(&w, "/a"));
    w.remove_tree("/old").unwrap();
    w.remove_tree("/a").unwrap();
    let left: Vec<_> = w.fs.db().range(b"", Some(b"\xff")).map(|p| p.unwrap().0).collect();
    assert_eq!(left.len(), 1, "only the root's record is left of the tree");
}

#[test]
fn the_root_of_a_clone_keeps_owner_mode_and_times() {
    let w = World::new();
    plant(&w, "/a");
    let old = SetTime::At(Time { secs: 5, nanos: 6 });
    let s = SetAttr {
        mode: Some(0o3751),
        uid: Some(4),
        gid: Some(5),
        atime: Some(old),
        mtime: Some(old),
        ..SetAttr::default()
    };
    w.on("/a", |a| w.fs.setattr(&w.me, a.ino, &s)).unwrap();
    w.clone_tree("/a", "/b", false).unwrap();
    let (a, b) = (w.attr("/a"), w.attr("/b"));
    assert_eq!((a.perm, a.uid, a.gid, a.atime, a.mtime), (b.perm, b.uid, b.gid, b.atime, b.mtime));
    assert!(b.ctime > a.ctime && b.crtime > a.crtime);
}

#[test]
fn numbers_survive_eviction_and_relookup() {
    let w = World::new();
    plant(&w, "/a");
    w.clone_tree("/a", "/b", false).unwrap();
    let first = w.fs.resolve("/b/sub/deep/h".as_ref()).unwrap();
    w.fs.forget(first.ino, 1);
    w.assert_nothing_referenced();
    let again = w.fs.resolve("/b/sub/deep/h".as_ref()).unwrap();
    assert_eq!(first, again);
    // Forgetting more than was counted must not take what others hold.
    let dir = w.fs.resolve("/b/sub".as_ref()).unwrap();
    w.fs.forget(again.ino, 100);
    w.fs.forget(again.ino, 1);
    w.fs.forget(ROOT, 5);
    assert_eq!(w.fs.getattr(dir.ino).unwrap(), dir);
    w.fs.forget(dir.ino, 1);
    w.assert_nothing_referenced();
}

/// The lineage of an inode number.
fn lineage(ino: Ino) -> u64 {
    ino >> 40
}

#[test]
fn lineages_of_removed_clones_are_given_to_later_ones() {
    let mut w = World::new();
    w.mkdir("/src");
    w.put("/src/f", b"x");
    let mut most = 0;
    for i in 0..6000 {
        w.clone_tree("/src", "/c", false).unwrap();
        most = most.max(lineage(w.attr("/c/f").ino));
        match i % 3 {
            0 => drop(w.remove_tree("/c").unwrap()),
            1 => {
                w.unlink("/c/f").unwrap();
                w.rmdir("/c").unwrap();
            }
            _ => {
                w.clone_tree("/src", "/c", true).unwrap();
                w.attr("/c");
                w.remove_tree("/c").unwrap();
            }
        }
    }
    println!("6,000 rounds used lineages up to {most}");
    assert!(most < 2500, "lineage {most} after 6,000 clones of which one at most lived");
    w.remount();
    let rows = w.fs.db().prefix(b"\xff\xff\xff\xffL").count();
    assert_eq!(rows, 0, "rows of the table of lineages are left");
    check_keys(&w);
}

/// Fills the store, and looks into the clones `/c1` and `/c2` of `/s`: the inode number of `/c1/f`, of which the part
/// for the clone could not be stored. Then there is space again.
fn look_into_clones_on_a_full_store(w: &World) -> Ino {
    w.mkdir("/s");
    w.put("/s/f", b"x");
    w.clone_tree("/s", "/c1", false).unwrap();
    w.clone_tree("/s", "/c2", false).unwrap();
    w.mkdir("/ballast");
    let mut files = 0;
    for size in [1 << 20, 100_000, 4_000, 500, 60, 1] {
        let data: Vec<u8> =
            (0..size as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 55) as u8).collect();
        loop {
            let path = format!("/ballast/{files}");
            files += 1;
            if w.create(&path).is_err() || w.write_at(&path, 0, &data).is_err() {
                break;
            }
        }
    }
    let ino = w.attr("/c1/f").ino;
    let rows = w.fs.db().prefix(b"\xff\xff\xff\xffL").count();
    assert_eq!(rows, 0, "vacuous: the number could be noted");
    w.remove_tree("/ballast").unwrap();
    ino
}

/// A look into a clone gives it a number, on a full store too, which cannot be stored there. A file that takes its own
/// number out of the clone had the same as one in another clone, after the next mount.
#[test]
fn a_number_that_a_full_store_could_not_note_is_not_given_to_another_clone() {
    let device = Arc::new(MemDevice::new(24 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
    let ino = look_into_clones_on_a_full_store(&w);
    w.rename("/c1/f", "/f", 0).unwrap();
    w.fs.close().unwrap();
    w.fs = Fs::open(device, options()).unwrap();
    let other = w.attr("/c2/f").ino;
    assert_eq!(w.attr("/f").ino, ino);
    assert_ne!(lineage(other), lineage(ino));
    check_keys(&w);
}

/// The same for a file that comes into such a clone: it keeps its number there, which a copy of it does not have.
#[test]
fn a_file_keeps_its_number_in_a_clone_whose_number_a_full_store_could_not_note() {
    let device = Arc::new(MemDevice::new(24 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
    let ino = w.put("/in", b"the file");
    look_into_clones_on_a_full_store(&w);
    w.rename("/in", "/c1/in", 0).unwrap();
    w.clone_tree("/c1", "/c3", false).unwrap();
    w.fs.close().unwrap();
    w.fs = Fs::open(device, options()).unwrap();
    // The first who is looked at gets the next number.
    assert_ne!(w.attr("/c3/in").ino, ino, "a copy has the number of the file");
    assert_eq!(w.attr("/c1/in").ino, ino, "the file has another number after a mount");
    w.walk("/");
    check_keys(&w);
}

#[test]
fn a_lineage_whose_numbers_live_on_elsewhere_is_not_given_again() {
    let w = World::new();
    w.mkdir("/src");
    w.mkdir("/src/sub");
    w.put("/src/f", b"x");
    w.put("/src/g", b"x");
    w.put("/src/sub/h", b"x");
    w.mkdir("/kept");
    let mut kept = Vec::new();
    for i in 0..3000 {
        w.clone_tree("/src", "/c", false).unwrap();
        if i % 100 == 0 {
            // Out of the clone: a file, a directory; into it: a file. They keep their numbers.
            for (from, to) in [("/c/f", format!("/kept/f{i}")), ("/c/sub", format!("/kept/d{i}"))] {
                let ino = w.attr(from).ino;
                w.rename(from, &to, 0).unwrap();
                kept.push((to, ino));
            }
            w.put("/in", b"");
            w.rename("/in", "/c/in", 0).unwrap();
            w.clone_tree("/c", &format!("/kept/c{i}"), false).unwrap();
            let ino = w.attr("/c/in").ino;
            w.rename("/c/in", &format!("/kept/in{i}"), 0).unwrap();
            kept.push((format!("/kept/in{i}"), ino));
        }
        if i % 100 == 50 {
            // A clone of a tree into which something was moved once.
            w.clone_tree(&format!("/kept/c{}", i - 50), "/c", true).unwrap();
        }
        // A lineage that was given again would show here: its numbers are those that were kept.
        for (path, ino) in w.numbers("/c") {
            let same = kept.iter().find(|(_, kept)| *kept == ino);
            assert!(same.is_none(), "round {i}: {path} and {same:?} have one number");
        }
        w.remove_tree("/c").unwrap();
    }
    for (path, ino) in &kept {
        assert_eq!(w.attr(path).ino, *ino, "{path}");
    }
    w.walk("/");
    check_keys(&w);
}

/// A file that was moved into a clone has the number that it had, which the clone's own copies keep in their records,
/// where it means nothing. When it had left the clone again and the clone was removed, a copy of such a copy in a
/// clone that gets the same lineage would have the number of the file.
#[test]
fn a_file_that_was_in_a_clone_shares_its_number_with_no_copy_of_it() {
    let w = World::new();
    w.mkdir("/src");
    w.put("/src/f", b"x");
    w.clone_tree("/src", "/c", false).unwrap();
    let inside = lineage(w.attr("/c/f").ino);
    let ino = w.put("/in", b"the file");
    w.rename("/in", "/c/in", 0).unwrap();
    w.clone_tree("/c", "/kept", false).unwrap();
    w.rename("/c/in", "/in", 0).unwrap();
    w.remove_tree("/c").unwrap();
    let mut again = 0;
    for round in 0..1_000 {
        w.clone_tree("/kept", "/c", false).unwrap();
        assert_ne!(lineage(w.attr("/c/f").ino), inside, "round {round}");
        assert_ne!(w.attr("/c/in").ino, ino, "round {round}");
        again += u32::from(lineage(w.attr("/c/f").ino) < inside + round);
        w.remove_tree("/c").unwrap();
    }
    assert!(again > 100, "vacuous: {again} lineages were given again");
    assert_eq!((w.attr("/in").ino, w.get("/in").unwrap()), (ino, b"the file".to_vec()));
    w.walk("/");
    check_keys(&w);
}

#[test]
fn a_lineage_is_not_given_again_while_the_kernel_or_a_handle_knows_its_numbers() {
    let w = World::new();
    w.mkdir("/src");
    w.put("/src/f", b"content");
    let mut held = Vec::new();
    for i in 0..5000 {
        w.clone_tree("/src", "/c", false).unwrap();
        if i % 1000 == 0 {
            let attr = w.fs.resolve(std::path::Path::new("/c/f")).unwrap();
            held.push((attr.ino, w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap()));
        }
        let ino = w.attr("/c/f").ino;
        assert_eq!(
            held.iter().filter(|(open, _)| *open == ino).count(),
            usize::from(i % 1000 == 0),
            "round {i}"
        );
        w.remove_tree("/c").unwrap();
    }
    for (ino, fh) in held {
        assert_eq!(&w.fs.read(fh, ino, 0, 100).unwrap()[..], b"content");
        w.fs.release(ino, fh);
        w.fs.forget(ino, 1);
    }
}

#[test]
fn when_lineages_run_out_those_that_nothing_uses_are_found() {
    let mut w = World::new();
    w.mkdir("/src");
    w.mkdir("/src/in");
    w.put("/src/in/f", b"x");
    w.mkdir("/kept");
    for i in 0..20 {
        w.clone_tree("/src", &format!("/kept/c{i}"), false).unwrap();
        w.clone_tree("/src/in", &format!("/kept/c{i}/nested"), false).unwrap();
    }
    w.rename("/kept/c3/in", "/moved", 0).unwrap();
    w.rename("/kept/c4/in/f", "/file", 0).unwrap();
    w.remove_tree("/kept/c3").unwrap();
    w.remove_tree("/kept/c4").unwrap();
    let before = w.numbers("/");
    // As if sixteen million had been given out.
    let counter = [&b"\xff\xff\xff\xffC"[..], b"l"].concat();
    w.fs.db().put(counter.clone(), ((1u64 << 24) - 5).to_le_bytes().to_vec()).unwrap();
    w.remount();
    for i in 0..200 {
        w.clone_tree("/src", &format!("/kept/n{i}"), false).unwrap();
        w.attr(&format!("/kept/n{i}/in/f"));
    }
    let mut after = w.numbers("/");
    after.retain(|path, _| !path.starts_with("/kept/n"));
    assert_eq!(before, after);
    w.remount();
    for i in 200..260 {
        w.clone_tree("/src", &format!("/kept/n{i}"), false).unwrap();
        w.attr(&format!("/kept/n{i}/in/f"));
    }
    w.walk("/");
    check_keys(&w);
}

fn clone_without(w: &World, from: &str, to: &str, replace: bool, exclude: &[&str]) -> Result<CloneReport> {
    let exclude: Vec<_> = exclude.iter().map(Into::into).collect();
    w.at(from, |d, n| w.at(to, |d2, n2| w.fs.clone_tree_without(&w.me, (d, n), (d2, n2), replace, &exclude)))
}

#[test]
fn a_clone_inside_its_source_is_of_the_moment_before() {
    let mut w = World::new();
    plant(&w, "/a");
    let before = content(&w, "/a");
    // In the source itself, and deeper; each copy lacks itself and has what was there before.
    w.clone_tree("/a", "/a/x", false).unwrap();
    assert!(content(&w, "/a/x") == before);
    let second = content(&w, "/a");
    w.clone_tree("/a", "/a/sub/y", false).unwrap();
    let without_times = |mut tree: BTreeMap<String, (Attr, Vec<u8>)>| {
        tree.values_mut().for_each(|(a, _)| {
            (a.atime, a.mtime, a.ctime) = Default::default();
            a.crtime = Default::default();
        });
        tree
    };
    assert!(without_times(content(&w, "/a/sub/y")) == without_times(second));
    // Replaced: the copy holds what it takes the place of, also a file that is open there.
    w.put("/a/sub/y/f", b"open");
    let attr = w.fs.resolve("/a/sub/y/f".as_ref()).unwrap();
    let fh = w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap();
    w.clone_tree("/a", "/a/sub/y", true).unwrap();
    assert_eq!(w.get("/a/sub/y/sub/y/f").unwrap(), b"open");
    assert_eq!(w.whole(attr.ino).unwrap(), b"open");
    w.fs.write(fh, attr.ino, 0, b"OPEN", false).unwrap();
    assert_eq!(w.get("/a/sub/y/sub/y/f").unwrap(), b"open");
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    let numbers = w.numbers("/");
    check_keys(&w);
    w.remount();
    assert_eq!(w.numbers("/"), numbers);
    // Both sides are independent.
    w.put("/a/f", b"changed");
    assert!(w.get("/a/sub/y/f").unwrap() == pattern(50_000, 1));
    check_keys(&w);
    w.assert_nothing_referenced();
}

#[test]
fn what_is_excluded_is_not_in_the_clone() {
    let mut w = World::new();
    plant(&w, "/a");
    w.mkdir("/a/w");
    w.link("/a/f", "/a/sub/f2").unwrap();
    w.link("/a/f", "/a/sub/deep/f3").unwrap();
    for i in 0..20 {
        clone_without(&w, "/a", &format!("/a/w/{i}"), false, &["w"]).unwrap();
    }
    clone_without(&w, "/a", "/b", false, &["./w", "sub/deep", "sub/f2", "empty", "none/at/all", "nor"])
        .unwrap();
    assert_eq!(w.names("/b"), ["f", "link", "sub"]);
    assert_eq!(w.names("/b/sub"), ["g"]);
    assert_eq!(w.names("/a/w/19"), ["empty", "f", "link", "sub"]);
    assert_eq!(w.names("/a").len(), 5);
    for bad in ["..", "/w", "w/../sub", "", "."] {
        assert_eq!(errno(clone_without(&w, "/a", "/c", false, &[bad])), EINVAL, "{bad}");
    }
    w.walk("/");
    w.fs.count_links().unwrap();
    check_keys(&w);
    assert_eq!((w.attr("/b/f").nlink, w.attr("/a/w/7/f").nlink, w.attr("/a/f").nlink), (1, 3, 3));
    // Of a clone with links of its own, and of one inside of what is cloned.
    clone_without(&w, "/a/w/3", "/c", false, &["sub/deep"]).unwrap();
    clone_without(&w, "/a", "/d", false, &["w/4/sub/f2"]).unwrap();
    w.walk("/");
    w.fs.count_links().unwrap();
    check_keys(&w);
    assert_eq!((w.attr("/c/f").nlink, w.attr("/d/w/4/f").nlink, w.attr("/d/w/5/f").nlink), (2, 2, 3));
    let numbers = w.numbers("/");
    w.remount();
    assert_eq!(w.numbers("/"), numbers);
    check_keys(&w);
}

/// Its attributes may not be older than what is in it, nor others than its record counts.
#[test]
fn a_clone_of_a_directory_has_the_attributes_of_the_moment_of_its_contents() {
    const ROUNDS: u64 = 2_000;
    let w = World::new();
    w.mkdir("/s");
    w.mkdir("/c");
    w.put("/s/f", &0u64.to_le_bytes());
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut seen = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let set = |name: &str, value: &[u8]| {
                w.on("/s", |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new(name), value, 0)).unwrap()
            };
            for n in 1.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                set("user.n", &u64::to_le_bytes(n));
                w.write_at("/s/f", 0, &u64::to_le_bytes(n)).unwrap();
                match n % 2 {
                    0 => w.on("/s", |a| w.fs.remove_xattr(&w.me, a.ino, OsStr::new("user.large"))).unwrap(),
                    _ => set("user.large", &[7; 2048]),
                }
                changes.store(n, Ordering::Relaxed);
            }
        });
        let _done = SetWhenDropped(&done);
        for round in 0..ROUNDS {
            w.clone_tree("/s", &format!("/c/{round}"), false).unwrap();
            let inside = number(&w.get(&format!("/c/{round}/f")).unwrap());
            let own = w.on(&format!("/c/{round}"), |a| w.fs.get_xattr(&w.me, a.ino, OsStr::new("user.n")));
            let own = if inside == 0 { own.map_or(0, |own| number(&own)) } else { number(&own.unwrap()) };
            assert!(own >= inside, "clone {round}: the attribute is {own}, the contents {inside}");
            seen += u64::from(own > inside);
        }
    });
    assert!(changes.into_inner() > ROUNDS / 20, "vacuous");
    println!("{seen} clones between the two");
    w.fs.check(|p| panic!("{p}")).unwrap();
    check_keys(&w);
}
