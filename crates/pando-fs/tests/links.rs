//! Hard links: counts, numbers, what moves with a file, the counting of names, crashes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::{common::*, link_clones::farm};
use pando_db::device::{FailMode, MemDevice, SimDevice};
use pando_fs::*;
use std::{collections::BTreeMap, ffi::OsStr, path::Path, sync::Arc};

impl World {
    pub(crate) fn nlink(&self, path: &str) -> u32 {
        self.attr(path).nlink
    }

    /// Names, in groups of those that are one file, and that the counts are exact.
    pub(crate) fn groups(&self, at: &str) -> Vec<Vec<String>> {
        let mut groups: BTreeMap<Ino, (u32, Vec<String>)> = BTreeMap::new();
        for (path, attr) in self.walk(at) {
            if attr.kind != FileKind::Directory {
                let name = path[at.len()..].to_string();
                let group = groups.entry(attr.ino).or_insert((attr.nlink, Vec::new()));
                assert_eq!(group.0, attr.nlink);
                group.1.push(name);
            }
        }
        let mut out: Vec<_> = groups.into_values().map(|(_, names)| names).collect();
        out.sort();
        out
    }
}

#[test]
fn two_names_are_one_file() {
    let mut w = World::new();
    w.mkdir("/d");
    let ino = w.put("/a", &pattern(100_000, 1));
    let before = w.attr("/a");
    let linked = w.link("/a", "/d/b").unwrap();
    assert_eq!((linked.ino, linked.nlink), (ino, 2));
    assert!(linked.ctime > before.ctime && linked.mtime == before.mtime);
    assert_eq!((w.attr("/a"), w.attr("/d/b")), (linked, linked));
    w.write_at("/d/b", 5, b"edit").unwrap();
    assert_eq!(w.get("/a").unwrap()[5..9], b"edit"[..]);
    w.truncate("/a", 10).unwrap();
    assert_eq!(w.get("/d/b").unwrap().len(), 10);
    w.link("/d/b", "/c").unwrap();
    assert_eq!(w.nlink("/a"), 3);
    w.remount();
    assert_eq!((w.nlink("/c"), w.attr("/c").ino), (3, ino));
    w.unlink("/a").unwrap();
    w.unlink("/d/b").unwrap();
    assert_eq!((w.nlink("/c"), w.get("/c").unwrap().len()), (1, 10));
    w.unlink("/c").unwrap();
    let report = w.fs.check(|p| panic!("{p}")).unwrap();
    assert_eq!((report.files, report.links, report.blocks), (0, 0, 0), "nothing is left");
    check_keys(&w);
    w.assert_nothing_referenced();
}

#[test]
fn what_cannot_be_linked_is_refused() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/f", b"x");
    w.put("/g", b"y");
    assert_eq!(errno(w.link("/d", "/e")), EPERM);
    assert_eq!(errno(w.link("/f", "/g")), EEXIST);
    assert_eq!(errno(w.link("/f", "/f")), EEXIST);
    assert_eq!(errno(w.link("/none", "/h")), ENOENT);
    assert_eq!(errno(w.link("/f", "/g/h")), ENOTDIR);
    assert_eq!(
        errno(
            w.at(&format!("/{}", "n".repeat(256)), |d, n| { w.on("/f", |a| w.fs.link(&w.me, a.ino, d, n)) })
        ),
        ENAMETOOLONG
    );
    w.link("/f", "/h").unwrap();
    assert_eq!(w.nlink("/f"), 2);
    check_keys(&w);
}

#[test]
fn every_kind_but_directories_can_be_linked() {
    let mut w = World::new();
    w.symlink("/s", "target");
    for (name, mode) in [("/p", 0o010644), ("/k", 0o140600), ("/c", 0o020600)] {
        let attr = w.at(name, |d, n| w.fs.mknod(&w.me, d, n, mode, 0x103)).unwrap();
        w.fs.forget(attr.ino, 1);
    }
    for name in ["/s", "/p", "/k", "/c"] {
        let other = format!("{name}2");
        let attr = w.link(name, &other).unwrap();
        assert_eq!((attr.nlink, w.attr(&other)), (2, w.attr(name)));
    }
    w.remount();
    assert_eq!(w.on("/s2", |a| w.fs.readlink(a.ino)).unwrap(), "target");
    assert_eq!(w.attr("/c2").rdev, 0x103);
    assert_eq!(w.names("/"), ["c", "c2", "k", "k2", "p", "p2", "s", "s2"]);
    check_keys(&w);
}

#[test]
fn an_open_file_is_usable_while_names_come_and_go() {
    let w = World::new();
    w.put("/a", b"one");
    let attr = w.fs.resolve(Path::new("/a")).unwrap();
    let fh = w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap();
    w.link("/a", "/b").unwrap();
    w.fs.write(fh, attr.ino, 3, b" two", false).unwrap();
    w.unlink("/a").unwrap();
    assert_eq!(w.fs.getattr(attr.ino).unwrap().nlink, 1);
    w.fs.write(fh, attr.ino, 7, b" three", false).unwrap();
    w.unlink("/b").unwrap();
    assert_eq!(w.fs.getattr(attr.ino).unwrap().nlink, 0);
    w.fs.write(fh, attr.ino, 13, &pattern(40_000, 3), false).unwrap();
    assert_eq!(w.whole(attr.ino).unwrap()[..13], b"one two three"[..]);
    assert_eq!(errno(w.at("/c", |d, n| w.fs.link(&w.me, attr.ino, d, n))), ENOENT);
    check_keys(&w);
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    w.assert_nothing_referenced();
    assert!(w.fs.db().prefix(b"\xff\xff\xff\xffO").next().is_none());
}

#[test]
fn attributes_with_keys_of_their_own_holes_and_data_move_with_the_file() {
    let mut w = World::new();
    w.put("/f", &pattern(30_000, 2));
    w.write_at("/f", 5_000_000, b"end").unwrap();
    let blocks = w.attr("/f").blocks;
    let (small, large) = (OsStr::new("user.small"), OsStr::new("user.large"));
    for (name, len) in [(small, 10), (large, 20_000)] {
        w.on("/f", |a| w.fs.set_xattr(&w.me, a.ino, name, &pattern(len, 4), 0)).unwrap();
    }
    w.link("/f", "/g").unwrap();
    for path in ["/f", "/g"] {
        w.remount();
        assert_eq!(w.attr(path).blocks, blocks);
        assert_eq!(w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, large)).unwrap(), pattern(20_000, 4));
        assert_eq!(w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, small)).unwrap(), pattern(10, 4));
        assert_eq!(w.on(path, |a| w.fs.seek(a.ino, 100_000, Seek::Data)).unwrap(), 4_997_120);
    }
    w.on("/g", |a| w.fs.set_xattr(&w.me, a.ino, large, b"now small", 0)).unwrap();
    assert_eq!(w.on("/f", |a| w.fs.get_xattr(&w.me, a.ino, large)).unwrap(), "now small");
    check_keys(&w);
    w.clone_tree("/f", "/copy", false).unwrap();
    let copy = w.attr("/copy");
    assert_eq!((copy.nlink, copy.blocks), (1, blocks));
    assert_ne!(copy.ino, w.attr("/f").ino);
    assert_eq!(w.on("/copy", |a| w.fs.get_xattr(&w.me, a.ino, large)).unwrap(), "now small");
    check_keys(&w);
}

#[test]
fn renames_of_names_and_of_what_holds_them() {
    let mut w = World::new();
    for dir in ["/x", "/x/y", "/z"] {
        w.mkdir(dir);
    }
    let ino = w.put("/x/y/f", &pattern(50_000, 5));
    w.link("/x/y/f", "/z/g").unwrap();
    w.put("/z/other", b"o");
    // A name moves, the file stays.
    w.rename("/x/y/f", "/f", 0).unwrap();
    w.rename("/f", "/x/y/f", 0).unwrap();
    // Two names of one file: nothing happens.
    w.rename("/z/g", "/x/y/f", 0).unwrap();
    assert_eq!(w.groups(""), [vec!["/x/y/f", "/z/g"], vec!["/z/other"]]);
    w.rename("/z/g", "/x/y/f", RENAME_EXCHANGE).unwrap();
    assert_eq!(errno(w.rename("/z/g", "/x/y/f", RENAME_NOREPLACE)), EEXIST);
    // A directory with a name in it moves.
    w.rename("/x", "/z/x", 0).unwrap();
    check_keys(&w);
    assert_eq!(w.attr("/z/x/y/f").ino, ino);
    // Exchanges with a plain file, and of directories.
    w.rename("/z/other", "/z/g", RENAME_EXCHANGE).unwrap();
    assert_eq!((w.get("/z/g").unwrap().len(), w.attr("/z/other").ino), (1, ino));
    w.mkdir("/empty");
    w.rename("/z", "/empty", RENAME_EXCHANGE).unwrap();
    check_keys(&w);
    w.remount();
    assert_eq!((w.attr("/empty/x/y/f").ino, w.nlink("/empty/other")), (ino, 2));
    // Over a name of a linked file, and a linked name over a plain file.
    w.put("/plain", b"p");
    w.rename("/plain", "/empty/other", 0).unwrap();
    assert_eq!(w.nlink("/empty/x/y/f"), 1);
    w.link("/empty/x/y/f", "/again").unwrap();
    w.rename("/again", "/empty/other", 0).unwrap();
    assert_eq!((w.attr("/empty/other").ino, w.nlink("/empty/x/y/f")), (ino, 2));
    // A whiteout stays where a name was.
    w.rename("/empty/other", "/moved", RENAME_WHITEOUT).unwrap();
    assert_eq!(w.attr("/empty/other").kind, FileKind::CharDevice);
    assert!(w.get("/moved").unwrap() == pattern(50_000, 5));
    check_keys(&w);
}

/// A file that has one name left is in the link area until that name is renamed; then also into another clone.
#[test]
fn the_last_name_of_a_file_goes_anywhere_and_takes_the_file_out_of_the_link_area() {
    let mut w = World::new();
    w.mkdir("/d");
    w.mkdir("/d/e");
    w.clone_tree("/d", "/c", false).unwrap();
    let ino = w.put("/d/a", &pattern(60_000, 4));
    w.link("/d/a", "/d/e/b").unwrap();
    assert_eq!(errno(w.rename("/d/a", "/c/a", 0)), EXDEV, "it has another name");
    w.unlink("/d/a").unwrap();
    let before = w.attr("/d/e/b");
    assert_eq!((before.ino, before.nlink), (ino, 1));
    assert_eq!(errno(w.rename("/d/e", "/c/f", 0)), EXDEV, "nobody looks at what is in the directory");
    w.rename("/d/e/b", "/c/b", 0).unwrap();
    assert_eq!((w.attr("/c/b").ino, w.attr("/c/b").mtime), (ino, before.mtime));
    w.rename("/d/e", "/c/f", 0).unwrap();
    w.remount();
    assert_eq!((w.attr("/c/b").ino, w.nlink("/c/b")), (ino, 1));
    assert_eq!(w.get("/c/b").unwrap(), pattern(60_000, 4));
    check_keys(&w);
    // Inside of one clone, also by exchange with another such file and with what is none, and open.
    for name in ["p", "q"] {
        w.put(&format!("/c/{name}"), name.as_bytes());
        w.link(&format!("/c/{name}"), &format!("/c/{name}2")).unwrap();
        w.unlink(&format!("/c/{name}")).unwrap();
    }
    let open = w.fs.resolve("/c/p2".as_ref()).unwrap();
    let fh = w.fs.open_file(&w.me, open.ino, O_RDWR).unwrap();
    w.rename("/c/p2", "/c/q2", RENAME_EXCHANGE).unwrap();
    assert_eq!((w.get("/c/p2").unwrap(), w.get("/c/q2").unwrap()), (b"q".to_vec(), b"p".to_vec()));
    assert_eq!(w.fs.write(fh, open.ino, 1, b"!", false).unwrap(), 1);
    w.fs.release(open.ino, fh);
    w.fs.forget(open.ino, 1);
    assert_eq!(w.get("/c/q2").unwrap(), b"p!");
    w.rename("/c/q2", "/c/f", RENAME_EXCHANGE).unwrap();
    w.link("/c/f", "/c/g").unwrap();
    w.rename("/c/p2", "/c/g", 0).unwrap();
    w.rename("/c/g", "/p", 0).unwrap();
    w.rename("/c/f", "/r", 0).unwrap();
    w.fs.count_links().unwrap();
    w.remount();
    assert_eq!((w.get("/p").unwrap(), w.get("/r").unwrap()), (b"q".to_vec(), b"p!".to_vec()));
    assert_eq!((w.nlink("/p"), w.nlink("/r")), (1, 1));
    let report = w.fs.check(|p| panic!("{p}")).unwrap();
    assert_eq!((report.files, report.links), (3, 0), "nothing is left in a link area");
    check_keys(&w);
    w.assert_nothing_referenced();
}

#[test]
fn removed_trees_take_their_names_along() {
    let mut w = World::new();
    for dir in ["/a", "/a/b", "/c"] {
        w.mkdir(dir);
    }
    for i in 0..20 {
        w.put(&format!("/a/b/f{i}"), &pattern(i * 1000, i as u8));
        w.link(&format!("/a/b/f{i}"), &format!("/a/g{i}")).unwrap();
        if i % 2 == 0 {
            w.link(&format!("/a/b/f{i}"), &format!("/c/h{i}")).unwrap();
        }
    }
    let attr = w.fs.resolve(Path::new("/a/g3")).unwrap();
    let fh = w.fs.open_file(&w.me, attr.ino, O_RDWR).unwrap();
    w.remove_tree("/a").unwrap();
    assert_eq!(w.fs.getattr(attr.ino).unwrap().nlink, 0);
    assert!(w.whole(attr.ino).unwrap() == pattern(3000, 3));
    assert_eq!(w.groups("").len(), 10);
    assert!((0..20).step_by(2).all(|i| w.nlink(&format!("/c/h{i}")) == 1));
    check_keys(&w);
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    // By replacing it with a clone.
    w.mkdir("/d");
    w.link("/c/h4", "/d/x").unwrap();
    w.mkdir("/e");
    w.clone_tree("/e", "/d", true).unwrap();
    assert_eq!(w.nlink("/c/h4"), 1);
    w.remount();
    check_keys(&w);
    let report = w.fs.check(|p| panic!("{p}")).unwrap();
    assert_eq!(report.files, 10);
}

#[test]
fn what_a_tree_takes_counts_linked_files_once() {
    let w = World::new();
    w.mkdir("/a");
    w.mkdir("/b");
    w.put("/a/x", &pattern(500_000, 1));
    w.link("/a/x", "/a/y").unwrap();
    w.link("/a/x", "/b/z").unwrap();
    w.fs.db().settle().unwrap();
    let of = |path: &str| w.fs.usage_of_path(Path::new(path)).unwrap().visible_bytes;
    for path in ["/a", "/b", "/", "/a/y"] {
        assert!(of(path).abs_diff(500_000) < 40_000, "{path}: {}", of(path));
    }
}

/// A count looks at the names of one moment. One that came to a file late, which had got a name since and was closed
/// again, took the file away.
#[test]
fn a_file_that_gets_a_name_while_names_are_counted_keeps_its_data() {
    let w = World::new();
    farm(&w.fs, &w.me, 24_000, true);
    w.mkdir("/base");
    w.rename("/s", "/base/t", 0).unwrap();
    w.put("/base/t/last", b"data");
    w.link("/base/t/last", "/base/t/last too").unwrap();
    let mut named = 0;
    for _ in 0..3 {
        w.clone_tree("/base", "/c", false).unwrap();
        w.nlink("/c/t/last"); // has them counted
        w.fs.count_links().unwrap();
        let open = w.fs.resolve("/c/t/last".as_ref()).unwrap();
        assert_eq!(open.nlink, 2);
        // Where the files of the clone are kept that have several names, and this one last.
        let id = (open.ino & ((1 << 40) - 1)).to_be_bytes();
        let records = w.fs.db().prefix(b"\0\0\0\0M").map(|pair| pair.unwrap().0);
        let own = records.filter(|key| key.ends_with(&id)).max_by_key(|key| key.len()).unwrap();
        let area = &own[..own.len() - id.len()];
        let first = || w.fs.db().prefix(area).next().map(|pair| pair.unwrap().0);
        w.remove_tree("/c/t").unwrap();
        let was = first();
        assert!(was.is_some());
        let linked = std::thread::scope(|s| {
            let count = s.spawn(|| w.fs.count_links().unwrap());
            while first() == was && !count.is_finished() {}
            let linked = w.at("/c/saved", |d, n| w.fs.link(&w.me, open.ino, d, n));
            w.fs.forget(open.ino, if linked.is_ok() { 2 } else { 1 });
            linked.is_ok()
        });
        if linked {
            named += 1;
            assert_eq!(w.get("/c/saved").unwrap(), b"data");
            w.fs.count_links().unwrap();
            assert_eq!(w.nlink("/c/saved"), 1);
        }
        check_keys(&w);
        w.remove_tree("/c").unwrap();
    }
    println!("{named} of 3 got a name in time");
    assert!(named > 0, "vacuous");
}

/// Random calls on links, clones and removals, with a crash now and then: after each everything checks, and when names
/// are counted each file has just the names that it says.
fn crash_run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let mut r = Random::new(seed);
    let mut device = Arc::new(SimDevice::new(64 << 20, seed));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let me = Caller::root();
    let mut fs = Fs::open(device.clone(), options()).unwrap();
    let mut crashes = 0;
    let path = |r: &mut Random| {
        let depth = 1 + r.below(3);
        (0..depth).map(|_| format!("/{}", ["a", "b", "c", "d"][r.below(4)])).collect::<String>()
    };
    for step in 0..steps {
        let (from, to) = (path(&mut r), path(&mut r));
        let at = |path: &str, f: &dyn Fn(Ino, &OsStr) -> Result<()>| {
            let Ok((dir, name)) = fs.resolve_parent(Path::new(path)) else { return };
            let _refused = f(dir, &name);
            fs.forget(dir, 1);
        };
        match r.below(12) {
            0 => at(&from, &|d, n| fs.mkdir(&me, d, n, 0o755).map(|a| fs.forget(a.ino, 1))),
            1 | 2 => at(&from, &|d, n| {
                let (attr, fh) = fs.create(&me, d, n, 0o644, 2)?;
                fs.write(fh, attr.ino, 0, &pattern(step * 37 % 40_000, step as u8), false)?;
                fs.release(attr.ino, fh);
                fs.forget(attr.ino, 1);
                Ok(())
            }),
            3..6 => {
                if let Ok(source) = fs.resolve(Path::new(&from)) {
                    at(&to, &|d, n| fs.link(&me, source.ino, d, n).map(|a| fs.forget(a.ino, 1)));
                    fs.forget(source.ino, 1);
                }
            }
            6 => at(&from, &|d, n| fs.unlink(&me, d, n)),
            7 => at(&from, &|d, n| {
                let Ok((d2, n2)) = fs.resolve_parent(Path::new(&to)) else { return Ok(()) };
                let done = fs.rename(&me, d, n, d2, &n2, if step % 3 == 0 { RENAME_EXCHANGE } else { 0 });
                fs.forget(d2, 1);
                done
            }),
            8 => at(&from, &|d, n| {
                let Ok((d2, n2)) = fs.resolve_parent(Path::new(&to)) else { return Ok(()) };
                let done = fs.clone_tree(&me, (d, n), (d2, &n2), step % 2 == 0);
                fs.forget(d2, 1);
                done.map(drop)
            }),
            9 if r.below(4) == 0 => at(&from, &|d, n| fs.remove_tree(&me, d, n).map(drop)),
            10 => drop(fs.count_links()),
            _ if r.below(4) == 0 => {
                if r.below(3) == 0 {
                    let _ = fs.db().sync();
                }
                device.set_fail_at(Some(r.below(30) as u64), FailMode::Onwards);
                // The power may fail in the middle of the counting, or of a checkpoint.
                let _ = fs.count_links();
                let _ = fs.db().checkpoint();
                device.crash();
                drop(fs);
                device = device.reopen();
                fs = Fs::open(device.clone(), options()).unwrap();
                crashes += 1;
                let w = World { device: Arc::new(MemDevice::new(1 << 20)), fs: fs.clone(), me: me.clone() };
                assert_eq!(fs.check(|p| panic!("seed {seed}, step {step}: {p}")).unwrap().problems, 0);
                w.walk("/");
                fs.count_links().unwrap();
                let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
                let all = w.walk("/");
                all.values().for_each(|a| *names.entry(a.ino).or_default() += 1);
                all.iter().for_each(|(p, a)| assert_eq!(a.nlink, names[&a.ino], "seed {seed}: {p}"));
                fs.check(|p| panic!("seed {seed}, step {step}, counted: {p}")).unwrap();
            }
            _ => {}
        }
    }
    assert!(crashes > 0);
}

#[test]
fn crashes_leave_exact_counts_and_no_file_without_names() {
    random_runs(8, 1500, crash_run);
}

/// An answer with the count before may be on its way to a kernel that does not know the inode yet when it is told that
/// the count has changed. So it is told once more.
#[test]
fn who_keeps_link_counts_is_told_of_new_ones_twice() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default()).unwrap();
    let w = World::over(Fs::open(device, options().background(true)).unwrap());
    let (send, told) = std::sync::mpsc::channel();
    w.fs.watch_link_counts(move |ino| _ = send.send((std::time::Instant::now(), ino)));
    ["/a", "/a/in", "/a/out"].iter().for_each(|dir| _ = w.mkdir(dir));
    for i in 0..20 {
        w.put(&format!("/a/in/{i}"), b"linked");
        w.link(&format!("/a/in/{i}"), &format!("/a/out/{i}")).unwrap();
    }
    // The kernel knows one of them, with the count before; on a slow machine that may take a few attempts.
    let look = |i: i32| {
        w.clone_tree("/a/in", &format!("/copy{i}"), false).unwrap();
        let attr = w.at(&format!("/copy{i}/3"), |d, n| w.fs.lookup(d, n)).unwrap();
        if attr.nlink == 1 {
            w.fs.forget(attr.ino, 1);
        }
        (attr.nlink == 2).then_some(attr)
    };
    let known = (0..100).find_map(look).expect("always counted before it is looked at");
    let next = || told.recv_timeout(std::time::Duration::from_secs(60)).expect("nothing is told");
    let (first, second) = (next(), next());
    assert_eq!((first.1, second.1), (known.ino, known.ino));
    assert!(second.0 - first.0 > std::time::Duration::from_millis(500), "at once");
    assert_eq!(w.fs.getattr(known.ino).unwrap().nlink, 1);
    w.fs.forget(known.ino, 1);
    assert!(told.try_recv().is_err(), "more than the kernel knows of");
}

#[test]
fn a_file_made_without_a_name_can_get_its_first_one() {
    let mut w = World::new();
    w.mkdir("/d");
    let make =
        |w: &World, flags: i32| w.on("/d", |d| w.fs.tmpfile(&w.me, d.ino, 0o640, O_RDWR | flags)).unwrap();
    let (attr, fh) = make(&w, 0);
    assert_eq!((attr.nlink, attr.perm, attr.size), (0, 0o640, 0));
    w.fs.write(fh, attr.ino, 0, &pattern(100_000, 8), false).unwrap();
    let large = OsStr::new("user.large");
    w.fs.set_xattr(&w.me, attr.ino, large, &pattern(9000, 1), 0).unwrap();
    assert!(w.names("/d").is_empty());
    let link = |w: &World, path: &str, ino: Ino| {
        let attr = w.at(path, |d, n| w.fs.link(&w.me, ino, d, n))?;
        w.fs.forget(attr.ino, 1);
        Ok(attr)
    };
    let linked = link(&w, "/d/a", attr.ino).unwrap();
    assert_eq!((linked.ino, linked.nlink), (attr.ino, 1));
    assert_eq!(link(&w, "/d/b", attr.ino).unwrap().nlink, 2);
    w.fs.write(fh, attr.ino, 0, b"after", false).unwrap();
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    w.remount();
    assert_eq!((&w.get("/d/b").unwrap()[..5], w.attr("/d/a").ino), (&b"after"[..], attr.ino));
    assert_eq!(w.on("/d/a", |a| w.fs.get_xattr(&w.me, a.ino, large)).unwrap(), pattern(9000, 1));
    // Into another clone: it keeps its number there.
    w.clone_tree("/d", "/copy", false).unwrap();
    let (attr, fh) = make(&w, 0);
    w.fs.write(fh, attr.ino, 0, b"x", false).unwrap();
    assert_eq!(link(&w, "/copy/x", attr.ino).unwrap().ino, attr.ino);
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    // Not one that was opened so, nor one that lost its name.
    let (attr, fh) = make(&w, 0o200);
    assert_eq!(errno(link(&w, "/d/c", attr.ino)), ENOENT);
    w.fs.release(attr.ino, fh);
    w.fs.forget(attr.ino, 1);
    w.remount();
    assert_eq!(w.attr("/copy/x").ino >> 40, 0, "pinned");
    w.fs.count_links().unwrap();
    check_keys(&w);
    // One that nobody named is gone with its handle, or after a crash.
    let (attr, fh) = make(&w, 0);
    w.fs.write(fh, attr.ino, 0, &pattern(50_000, 1), false).unwrap();
    let orphans = |w: &World| w.fs.db().prefix(b"\xff\xff\xff\xffO").count();
    assert!(orphans(&w) > 1);
    w.fs.release(attr.ino, fh);
    assert_eq!(orphans(&w), 0);
    let (attr, fh) = make(&w, 0);
    w.fs.write(fh, attr.ino, 0, &pattern(50_000, 1), false).unwrap();
    w.remount();
    assert_eq!(orphans(&w), 0);
    check_keys(&w);
}
