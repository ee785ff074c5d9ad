//! Attributes: times, modes, owners, and the rules that change them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;

use crate::common::*;
use pando_fs::*;

fn user(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, umask: 0o022, ..Caller::default() }
}

fn set(w: &World, path: &str, s: SetAttr) -> Attr {
    w.on(path, |a| w.fs.setattr(&w.me, a.ino, &s)).unwrap()
}

const OLD: Time = Time { secs: 1_000_000, nanos: 123_456_789 };

fn age(w: &World, path: &str) {
    let old = Some(SetTime::At(OLD));
    let attr = set(w, path, SetAttr { atime: old, mtime: old, ctime: Some(OLD), ..SetAttr::default() });
    assert_eq!((attr.atime, attr.mtime, attr.ctime), (OLD, OLD, OLD));
}

/// (mtime changed, ctime changed) since [`age`].
fn changed(w: &World, path: &str) -> (bool, bool) {
    let a = w.attr(path);
    for t in [a.mtime, a.ctime] {
        assert!(t == OLD || t.secs > 1_700_000_000, "{path}: {t:?}");
    }
    (a.mtime != OLD, a.ctime != OLD)
}

#[test]
fn attributes_are_set_and_survive() {
    let mut w = World::new();
    w.put("/f", b"12345");
    let at = |secs, nanos| Some(SetTime::At(Time { secs, nanos }));
    let s = SetAttr {
        mode: Some(0o104751),
        uid: Some(7),
        gid: Some(8),
        atime: at(-5, 999_999_999),
        mtime: at(1 << 40, 1),
        ..SetAttr::default()
    };
    let attr = set(&w, "/f", s);
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.size, attr.blocks), (0o4751, 7, 8, 5, 1));
    assert_eq!(attr.atime, Time { secs: -5, nanos: 999_999_999 });
    w.remount();
    assert_eq!(w.attr("/f"), attr);
    w.on("/f", |a| {
        let bad = SetAttr { mtime: at(0, 1_000_000_000), ..SetAttr::default() };
        assert_eq!(errno(w.fs.setattr(&w.me, a.ino, &bad)), EINVAL);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.attr("/f"), attr);
    let root = set(&w, "/", SetAttr { mode: Some(0o1777), ..SetAttr::default() });
    w.remount();
    assert_eq!(w.attr("/"), root);
}

#[test]
fn each_call_changes_the_times_that_posix_says() {
    let w = World::new();
    w.mkdir("/d");
    w.mkdir("/e");
    w.put("/d/f", b"x");
    let reset = || {
        for path in ["/d", "/e", "/d/f"] {
            age(&w, path);
        }
    };
    reset();
    w.write_at("/d/f", 0, b"y").unwrap();
    assert_eq!((changed(&w, "/d/f"), changed(&w, "/d")), ((true, true), (false, false)));
    reset();
    set(&w, "/d/f", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    assert_eq!(changed(&w, "/d/f"), (false, true));
    reset();
    w.truncate("/d/f", 1).unwrap();
    assert_eq!(changed(&w, "/d/f"), (true, true));
    reset();
    w.put("/d/g", b"");
    assert_eq!((changed(&w, "/d"), changed(&w, "/d/f")), ((true, true), (false, false)));
    reset();
    w.rename("/d/f", "/e/f", 0).unwrap();
    assert_eq!((changed(&w, "/d"), changed(&w, "/e")), ((true, true), (true, true)));
    assert_eq!(changed(&w, "/e/f"), (false, true));
    w.rename("/e/f", "/d/f", 0).unwrap();
    reset();
    w.unlink("/d/g").unwrap();
    assert_eq!((changed(&w, "/d"), changed(&w, "/e")), ((true, true), (false, false)));
    reset();
    w.clone_tree("/d/f", "/e/f", false).unwrap();
    assert_eq!(
        (changed(&w, "/d"), changed(&w, "/e"), changed(&w, "/d/f")),
        ((false, false), (true, true), (false, false))
    );
    reset();
    w.remove_tree("/e").unwrap();
    w.get("/d/f").unwrap();
    w.names("/d");
    assert_eq!((changed(&w, "/d"), changed(&w, "/d/f")), ((false, false), (false, false)));
}

#[test]
fn access_times_follow_the_policy() {
    for (policy, first, second) in [
        (AtimePolicy::Noatime, false, false),
        (AtimePolicy::Relatime, true, false),
        (AtimePolicy::Strict, true, true),
    ] {
        let mut w = World::new();
        w.put("/f", b"x");
        w.remount_with(options().atime(policy));
        let t0 = w.attr("/f").atime;
        w.get("/f").unwrap();
        let t1 = w.attr("/f").atime;
        std::thread::sleep(std::time::Duration::from_millis(2));
        w.get("/f").unwrap();
        let t2 = w.attr("/f").atime;
        assert_eq!((t0 != t1, t1 != t2), (first, second), "{policy:?}");
        w.remount();
        assert_eq!(w.attr("/f").atime, t2);
    }
}

#[test]
fn what_is_made_belongs_to_the_caller_or_to_the_group_of_a_setgid_directory() {
    let w = World::new();
    let me = user(10, 20);
    w.mkdir("/d");
    let d = w.attr("/d").ino;
    set(&w, "/d", SetAttr { mode: Some(0o777), ..SetAttr::default() });
    w.on("/d", |_| {
        let f = w.fs.mknod(&me, d, "f".as_ref(), 0o100666, 5)?;
        assert_eq!((f.perm, f.uid, f.gid, f.kind, f.rdev), (0o644, 10, 20, FileKind::Regular, 0));
        let b = w.fs.mknod(&me, d, "b".as_ref(), 0o060600, 0x801)?;
        assert_eq!((b.kind, b.rdev), (FileKind::BlockDevice, 0x801));
        for (name, mode, kind) in [
            ("p", 0o010600, FileKind::Fifo),
            ("s", 0o140600, FileKind::Socket),
            ("c", 0o020600, FileKind::CharDevice),
        ] {
            assert_eq!(w.fs.mknod(&me, d, name.as_ref(), mode, 1)?.kind, kind);
        }
        set(&w, "/d", SetAttr { mode: Some(0o2777), gid: Some(99), ..SetAttr::default() });
        let f = w.fs.mknod(&me, d, "g".as_ref(), 0o102775, 0)?;
        assert_eq!((f.perm, f.gid), (0o755, 99), "no set-group-id for a group that the caller is not in");
        let s = w.fs.mkdir(&me, d, "sub".as_ref(), 0o777)?;
        assert_eq!((s.perm, s.gid), (0o2755, 99));
        Ok(())
    })
    .unwrap();
}

#[test]
fn set_id_bits_fall_when_others_change_the_file() {
    let w = World::new();
    let me = user(10, 20);
    w.put("/f", b"data");
    let arm = |mode| {
        let attr = set(&w, "/f", SetAttr { mode: Some(mode), ..SetAttr::default() });
        assert_eq!(u32::from(attr.perm), mode);
    };
    let perm = || w.attr("/f").perm;
    w.on("/f", |a| {
        let (mine, roots) = (w.fs.open_file(&me, a.ino, O_RDWR)?, w.fs.open_file(&w.me, a.ino, O_RDWR)?);
        arm(0o6755);
        w.fs.write(roots, a.ino, 0, b"x", false)?;
        assert_eq!(perm(), 0o6755);
        w.fs.write(mine, a.ino, 0, b"x", false)?;
        assert_eq!(perm(), 0o755);
        arm(0o6745);
        w.fs.write(mine, a.ino, 0, b"x", false)?;
        assert_eq!(perm(), 0o2745, "set-group-id without group execution means something else");
        arm(0o6755);
        w.fs.setattr(&me, a.ino, &SetAttr { size: Some(1), ..SetAttr::default() })?;
        assert_eq!(perm(), 0o755);
        arm(0o6755);
        w.fs.setattr(&w.me, a.ino, &SetAttr { size: Some(1), kill_suidgid: true, ..SetAttr::default() })?;
        assert_eq!(perm(), 0o755);
        arm(0o6755);
        w.fs.setattr(&w.me, a.ino, &SetAttr { uid: Some(5), ..SetAttr::default() })?;
        assert_eq!(perm(), 0o755);
        arm(0o6755);
        w.fs.setattr(&w.me, a.ino, &SetAttr { uid: Some(5), mode: Some(0o4755), ..SetAttr::default() })?;
        assert_eq!(perm(), 0o4755);
        let cut = SetAttr { size: Some(1), ..SetAttr::default() };
        set(&w, "/f", SetAttr { gid: Some(30), ..SetAttr::default() });
        for (caller, kept) in [(user(10, 30), 0o2745), (me.clone(), 0o745)] {
            arm(0o6745);
            w.fs.setattr(&caller, a.ino, &cut)?;
            assert_eq!(perm(), kept, "only who is in the group keeps it");
            arm(0o6745);
            w.fs.fallocate(&caller, a.ino, 0, 10, 0)?;
            assert_eq!(perm(), kept);
        }
        w.fs.release(a.ino, mine);
        w.fs.release(a.ino, roots);
        Ok(())
    })
    .unwrap();
}

#[test]
fn to_allocate_what_a_file_has_counts_as_a_change() {
    let w = World::new();
    let me = user(10, 20);
    w.put("/f", &[1; 100_000]);
    let (keep_size, punch, zero) = (1, 2, 16);
    for (offset, mode) in [
        (50_000, 0),
        (50_000, keep_size),
        (200_000, keep_size),
        (200_000, keep_size | zero),
        (200_000, keep_size | punch),
    ] {
        let before = set(&w, "/f", SetAttr { mode: Some(0o6777), ..SetAttr::default() });
        std::thread::sleep(std::time::Duration::from_millis(2));
        w.on("/f", |a| w.fs.fallocate(&me, a.ino, offset, 1000, mode)).unwrap();
        let after = w.attr("/f");
        assert_eq!((after.perm, after.size), (0o777, 100_000), "{offset} {mode}");
        assert!(after.mtime > before.mtime && after.ctime > before.ctime, "{offset} {mode}");
        // A kernel that keeps what is written says itself when that was.
        let reports = Caller { reports_times: true, ..me.clone() };
        w.on("/f", |a| w.fs.fallocate(&reports, a.ino, offset, 1000, mode)).unwrap();
        assert_eq!((w.attr("/f").mtime, w.attr("/f").ctime), (after.mtime, after.ctime));
    }
}

#[test]
fn reading_a_link_changes_its_access_time() {
    let mut w = World::new();
    w.fs.symlink(&w.me, ROOT, OsStr::new("l"), OsStr::new("target")).unwrap();
    w.remount_with(options().atime(AtimePolicy::Relatime));
    let link = w.fs.lookup(ROOT, OsStr::new("l")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    w.fs.readlink(link.ino).unwrap();
    let read = w.attr("/l");
    assert!(read.atime > link.atime && read.ctime == link.ctime);
    w.fs.readlink(link.ino).unwrap();
    assert_eq!(w.attr("/l").atime, read.atime, "relatime");
}

#[test]
fn who_may_clone_and_remove_trees() {
    let w = World::new();
    let (me, other) = (user(10, 20), user(11, 21));
    w.mkdir("/home");
    w.mkdir("/home/mine");
    w.mkdir("/shut");
    w.put("/home/mine/f", b"x");
    let own = |path: &str, uid, mode| {
        set(&w, path, SetAttr { uid: Some(uid), mode: Some(mode), ..SetAttr::default() })
    };
    own("/home/mine", 10, 0o755);
    own("/home", 0, 0o1777);
    let remove = |c: &Caller, path: &str| w.at(path, |d, n| w.fs.remove_tree(c, d, n));
    assert_eq!(errno(w.clone_as(&other, "/home/mine", "/home/theirs", false)), EPERM);
    assert_eq!(errno(w.clone_as(&me, "/home/mine", "/shut/copy", false)), EACCES);
    w.clone_as(&me, "/home/mine", "/home/copy", false).unwrap();
    assert_eq!((w.attr("/home/copy").uid, w.attr("/home/copy").perm), (10, 0o755));
    w.mkdir("/home/roots");
    assert_eq!(errno(w.clone_as(&me, "/home/mine", "/home/roots", true)), EPERM);
    assert_eq!(errno(remove(&other, "/home/copy")), EPERM);
    own("/home", 0, 0o777);
    assert_eq!(errno(remove(&other, "/home/copy")), EPERM, "the top is another's");
    own("/home", 0, 0o755);
    assert_eq!(errno(remove(&me, "/home/copy")), EACCES);
    set(&w, "/home", SetAttr { gid: Some(20), mode: Some(0o775), ..SetAttr::default() });
    remove(&me, "/home/copy").unwrap();
    assert_eq!(w.names("/home"), ["mine", "roots"]);
}

#[test]
fn a_change_of_owner_leaves_the_setgid_bit_of_a_directory() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/f", b"");
    w.put("/lock", b"");
    let mode = |path, mode| set(&w, path, SetAttr { mode: Some(mode), ..SetAttr::default() }).perm;
    for (uid, gid) in [(Some(5), None), (None, Some(6)), (Some(7), Some(8))] {
        for kill_suidgid in [false, true] {
            let owner = SetAttr { uid, gid, kill_suidgid, ..SetAttr::default() };
            mode("/d", 0o2775);
            assert_eq!(set(&w, "/d", owner).perm, 0o2775, "directories keep it: {owner:?}");
            mode("/f", 0o6775);
            assert_eq!(set(&w, "/f", owner).perm, 0o775, "executables lose both: {owner:?}");
            mode("/lock", 0o2664);
            assert_eq!(
                set(&w, "/lock", owner).perm,
                0o2664,
                "without group execution it means something else"
            );
        }
    }
    mode("/d", 0o7775);
    assert_eq!(set(&w, "/d", SetAttr { uid: Some(9), ..SetAttr::default() }).perm, 0o7775);
}

#[test]
fn a_member_by_supplementary_group_may_make_setgid_files() {
    let w = World::new();
    w.mkdir("/d");
    set(&w, "/d", SetAttr { mode: Some(0o2777), gid: Some(500), ..SetAttr::default() });
    let dir = w.attr("/d").ino;
    let dir_ref = w.fs.resolve(std::path::Path::new("/d")).unwrap();
    for (groups, perm) in [(vec![], 0o775), (vec![499], 0o775), (vec![499, 500], 0o2775)] {
        let c = Caller { uid: 77, gid: 78, groups, ..Caller::default() };
        let name = format!("f{}", c.groups.len());
        let (attr, fh) = w.fs.create(&c, dir, name.as_ref(), 0o2775, O_RDWR).unwrap();
        assert_eq!((attr.perm, attr.gid), (perm, 500), "{c:?}");
        w.fs.release(attr.ino, fh);
        w.fs.forget(attr.ino, 1);
    }
    w.fs.forget(dir_ref.ino, 1);
}

#[test]
fn reading_a_clone_or_its_source_does_not_copy_what_they_share() {
    let device = std::sync::Arc::new(pando_db::device::MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let o = options().atime(AtimePolicy::Relatime);
    let fs = Fs::open(device.clone(), o.clone()).unwrap();
    let mut w = World { device, fs, me: Caller::root() };
    w.mkdir("/src");
    for i in 0..6000 {
        w.put(&format!("/src/file-with-a-long-name-{i:05}"), b"content");
    }
    w.fs.db().settle().unwrap();
    w.clone_tree("/src", "/copy", false).unwrap();
    w.remount_with(o.clone());
    w.fs.db().settle().unwrap();
    let alone = |w: &World| {
        w.fs.db().settle().unwrap();
        let own = |p: &str| w.fs.usage_of_path(std::path::Path::new(p)).unwrap().exclusive_bytes;
        own("/copy") + own("/src")
    };
    let before = alone(&w);
    let start = Time::now();
    for tree in ["/copy", "/src"] {
        for i in 0..6000 {
            w.on(&format!("{tree}/file-with-a-long-name-{i:05}"), |a| {
                w.fs.read(NONE, a.ino, 0, 10)?;
                let now = w.fs.getattr(a.ino)?.atime;
                assert!(now >= start, "{tree} {i}: the access time is seen, {now:?}");
                Ok(())
            })
            .unwrap();
        }
        w.names(tree);
    }
    let after = alone(&w);
    println!("exclusive bytes of both: {before} before reading all files, {after} after");
    assert!(after < before + 100_000, "{before} -> {after}");
    // An access time that was only seen is stored with the next change of the file.
    w.on("/copy/file-with-a-long-name-00007", |a| {
        w.fs.read(NONE, a.ino, 0, 10)?;
        let seen = w.fs.getattr(a.ino)?.atime;
        w.fs.write(NONE, a.ino, 0, b"C", false)?;
        assert_eq!(w.fs.getattr(a.ino)?.atime, seen);
        Ok(())
    })
    .unwrap();
    w.remount_with(o.clone());
    assert!(w.attr("/copy/file-with-a-long-name-00007").atime >= start);
    // That of a file changed after the last clone is stored at once.
    w.put("/newer", b"x");
    w.get("/newer").unwrap();
    let read = w.attr("/newer").atime;
    w.remount_with(o);
    assert_eq!(w.attr("/newer").atime, read);
}

#[test]
fn a_tree_goes_as_a_whole_only_if_every_directory_in_it_may_be_emptied() {
    let w = World::new();
    let (me, other) = (user(10, 20), user(11, 20));
    let own = |path: &str, uid| {
        set(&w, path, SetAttr { uid: Some(uid), gid: Some(20), mode: Some(0o777), ..SetAttr::default() })
    };
    own("/", 10);
    for dir in ["/t", "/t/mine", "/t/mine/theirs", "/t/mine/theirs/deep", "/t/empty", "/new"] {
        w.mkdir(dir);
        own(dir, 10);
    }
    w.put("/t/mine/theirs/deep/f", b"of the other one");
    let remove = |c: &Caller| w.at("/t", |d, n| w.fs.remove_tree(c, d, n));
    for theirs in ["/t", "/t/mine/theirs", "/t/mine/theirs/deep"] {
        own(theirs, 11);
        for refused in [remove(&me), w.clone_as(&me, "/new", "/t", true)] {
            let e = refused.unwrap_err();
            assert_eq!(e.errno(), EPERM, "{theirs}: {e}");
            assert!(e.to_string().starts_with(&theirs[1..]), "{theirs}: {e}");
        }
        own(theirs, 10);
    }
    assert_eq!(errno(remove(&other)), EPERM);
    assert_eq!(w.get("/t/mine/theirs/deep/f").unwrap(), b"of the other one");
    // Files of others, and empty directories, go with the directory that they are in.
    own("/t/empty", 11);
    own("/t/mine/theirs/deep/f", 11);
    remove(&me).unwrap();
    assert_eq!(w.names("/"), ["new"]);
}

#[test]
fn only_what_may_be_looked_into_is_counted() {
    let w = World::new();
    for dir in ["/t", "/t/a", "/t/a/b", "/t/c"] {
        w.mkdir(dir);
    }
    let mode = |path: &str, mode| {
        set(&w, path, SetAttr { mode: Some(mode), gid: Some(20), ..SetAttr::default() });
    };
    let sees = |c: &Caller, path: &str| {
        w.on(path, |a| Ok(w.fs.may_see_all(c, a.ino).map_err(|e| e.errno()))).unwrap()
    };
    let (member, stranger) = (user(10, 20), user(10, 30));
    assert_eq!((sees(&member, "/t"), sees(&stranger, "/t")), (Ok(()), Ok(())));
    mode("/t/a/b", 0o750);
    assert_eq!((sees(&member, "/t"), sees(&stranger, "/t")), (Ok(()), Err(EPERM)));
    assert_eq!(sees(&stranger, "/t/c"), Ok(()));
    for closed in [0o700, 0o744, 0o711] {
        mode("/t/a/b", closed);
        assert_eq!(sees(&member, "/t"), Err(EPERM), "{closed:o}");
    }
    // One who might be in the group is refused where members are.
    mode("/t/a/b", 0o705);
    assert_eq!((sees(&member, "/t/a"), sees(&stranger, "/t/a")), (Err(EPERM), Err(EPERM)));
}

/// What has no name any more, and is open, has attributes still: a directory, and what has no content.
#[test]
fn attributes_of_what_was_removed_can_be_set_while_it_is_open() {
    let w = World::new();
    w.mkdir("/dir");
    w.symlink("/link", "target");
    w.put("/file", b"content");
    for (path, mode) in [("/dir", Some(0o700)), ("/link", None), ("/file", Some(0o600))] {
        w.at(path, |dir, name| {
            let attr = w.fs.lookup(dir, name)?;
            let handle =
                (attr.kind == FileKind::Regular).then(|| w.fs.open_file(&w.me, attr.ino, 2).unwrap());
            match attr.kind {
                FileKind::Directory => w.rmdir(path)?,
                _ => w.unlink(path)?,
            }
            let s = SetAttr { mode, uid: Some(7), gid: Some(8), ..SetAttr::default() };
            let set = w.fs.setattr(&w.me, attr.ino, &s)?;
            let is = w.fs.getattr(attr.ino)?;
            assert_eq!((set.uid, set.gid, set.nlink), (7, 8, 0), "{path}");
            assert_eq!(
                (is.uid, is.gid, is.perm),
                (7, 8, mode.map_or(attr.perm, |mode| mode as u16)),
                "{path}"
            );
            handle.into_iter().for_each(|handle| w.fs.release(attr.ino, handle));
            w.fs.forget(attr.ino, 1);
            Ok(())
        })
        .unwrap();
    }
    w.assert_nothing_referenced();
}

/// A list that is too long for the record counts as one that stands there.
#[test]
fn what_a_long_access_list_closes_is_not_looked_into() {
    let w = World::new();
    w.mkdir("/t");
    w.mkdir("/t/a");
    w.put("/t/a/secret", b"1");
    set(&w, "/t/a", SetAttr { mode: Some(0o770), gid: Some(20), ..SetAttr::default() });
    let mut list = 2u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, perm: u16, id: u32| {
        list.extend(tag.to_le_bytes());
        list.extend(perm.to_le_bytes());
        list.extend(id.to_le_bytes());
    };
    entry(1, 7, u32::MAX);
    (0..130).for_each(|i| entry(2, 7, 1000 + i));
    entry(4, 0, u32::MAX); // the group may nothing
    entry(0x10, 7, u32::MAX);
    entry(0x20, 0, u32::MAX);
    w.on("/t/a", |a| w.fs.set_xattr(&w.me, a.ino, "system.posix_acl_access".as_ref(), &list, 0)).unwrap();
    let member = user(10, 20);
    let seen = w.on("/t", |a| Ok(w.fs.may_see_all(&member, a.ino).map_err(|e| e.errno()))).unwrap();
    assert_eq!(seen, Err(EPERM));
}
