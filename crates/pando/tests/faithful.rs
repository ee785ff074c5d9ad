//! Import and export keep all of a tree, or say what they could not keep.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{FileExt, MetadataExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
};

use crate::common::{Bench, text};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};

/// An ordinary user.
const ANN: u32 = 41_003;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An access list: owner rwx, this user rw-, group r-x, mask rwx, others nothing.
fn access_list(uid: u32) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 6, uid), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

/// Permission to bind low ports, version 2 of the bytes.
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 10, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// All of an entry that a copy keeps. `file` is the path of the entry that is the same file and was met first.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Entry {
    mode: u32,
    owner: (u32, u32),
    size: i64,
    rdev: u64,
    mtime: (i64, i64),
    sparse: bool,
    content: Vec<u8>,
    attrs: BTreeMap<Vec<u8>, Vec<u8>>,
    file: Vec<u8>,
}

fn walk(top: &Path) -> BTreeMap<Vec<u8>, Entry> {
    let mut out = BTreeMap::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    enter(&dir, OsStr::new("."), b"", &mut BTreeMap::new(), &mut out);
    out
}

fn enter(
    dir: &OwnedFd,
    name: &OsStr,
    path: &[u8],
    first: &mut BTreeMap<u64, Vec<u8>>,
    out: &mut BTreeMap<Vec<u8>, Entry>,
) {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let kind = FileType::from_raw_mode(stat.st_mode);
    let by_proc = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(&by_proc, &mut names[..]).unwrap_or(0);
    let mut attrs = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(&by_proc, OsStr::from_bytes(name), &mut value[..]).unwrap();
        attrs.insert(name.to_vec(), value[..len].to_vec());
    }
    let mut content = Vec::new();
    let mut below = Vec::new();
    let mut inner = None;
    match kind {
        FileType::RegularFile => {
            let file = rustix::fs::openat(dir, name, OFlags::RDONLY, Mode::empty()).unwrap();
            File::from(file).read_to_end(&mut content).unwrap();
        }
        FileType::Symlink => content = rustix::fs::readlinkat(dir, name, Vec::new()).unwrap().into_bytes(),
        FileType::Directory => {
            let fd =
                rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            for entry in Dir::read_from(&fd).unwrap() {
                let name = entry.unwrap().file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    below.push(name);
                }
            }
            inner = Some(fd);
        }
        _ => {}
    }
    below.sort();
    let is_dir = kind == FileType::Directory;
    let file = if is_dir { path } else { first.entry(stat.st_ino).or_insert(path.to_vec()) };
    let entry = Entry {
        mode: if kind == FileType::Symlink { 0o120777 } else { stat.st_mode },
        owner: (stat.st_uid, stat.st_gid),
        size: if is_dir { 0 } else { stat.st_size },
        rdev: if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) {
            stat.st_rdev
        } else {
            0
        },
        mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
        sparse: kind == FileType::RegularFile && stat.st_blocks * 512 + (64 << 10) < stat.st_size,
        content,
        attrs,
        file: file.to_vec(),
    };
    out.insert(path.to_vec(), entry);
    for name in below {
        let path = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
        enter(inner.as_ref().unwrap(), OsStr::from_bytes(&name), &path, first, out);
    }
}

fn equal(a: &Path, b: &Path) {
    let (a, b) = (walk(a), walk(b));
    assert!(a.len() > 5);
    for (path, entry) in &a {
        let other = b.get(path).unwrap_or_else(|| panic!("{:?} is missing", text(path)));
        assert!(
            entry == other,
            "{:?}:\n{:?}\n{:?}",
            text(path),
            Entry { content: Vec::new(), ..entry.clone() },
            Entry { content: Vec::new(), ..other.clone() }
        );
    }
    assert_eq!(a.len(), b.len(), "there is more in the second");
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// A tree with a bit of all that files can be, as far as the user may make it.
fn everything(b: &Bench) -> PathBuf {
    let t = b.path("t");
    for dir in ["a/b", "z/empty", "a/inherits"] {
        fs::create_dir_all(t.join(dir)).unwrap();
    }
    // Names of one file: in one directory, in others, before and behind files of one name.
    fs::write(t.join("a/one"), "linked content".repeat(3000)).unwrap();
    fs::write(t.join("plain"), "plain").unwrap();
    for name in ["a/two", "a/b/three", "z/four", "five"] {
        fs::hard_link(t.join("a/one"), t.join(name)).unwrap();
    }
    fs::write(t.join("z/other"), "another").unwrap();
    fs::hard_link(t.join("z/other"), t.join("a/other")).unwrap();
    // A file with a name outside of the tree.
    fs::write(b.path("outside"), "outside").unwrap();
    fs::hard_link(b.path("outside"), t.join("z/inside")).unwrap();
    std::os::unix::fs::symlink("nowhere/at all", t.join("link")).unwrap();
    fs::hard_link(t.join("link"), t.join("z/same link")).unwrap();
    let special = |name: &str, kind, dev| {
        rustix::fs::mknodat(CWD, t.join(name), kind, Mode::RUSR | Mode::WUSR, dev).unwrap();
    };
    special("fifo", FileType::Fifo, 0);
    fs::hard_link(t.join("fifo"), t.join("z/fifo")).unwrap();
    special("socket", FileType::Socket, 0);
    // Holes at the begin, in the middle and at the end.
    let sparse = File::create(t.join("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 5 << 20).unwrap();
    sparse.write_all_at(&[7; 100_000], 9 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    File::create(t.join("nothing")).unwrap().set_len(3 << 20).unwrap();
    // Names of any bytes.
    for name in [&b"\xff\xfe not text"[..], b"new\nline", b" ", b"-rf", &[b'n'; 255]] {
        fs::write(t.join(OsString::from_vec(name.to_vec())), name).unwrap();
    }
    set(&t.join("a/one"), "user.note", b"on a linked file");
    set(&t.join("plain"), "user.large", &[3; 2000]);
    set(&t.join("plain"), "user.empty", b"");
    set(&t.join("a/b"), "user.dir", b"of a directory");
    set(&t.join("plain"), ACCESS, &access_list(4711));
    set(&t.join("a/inherits"), DEFAULT, &access_list(4712));
    set(&t.join("a/inherits"), ACCESS, &access_list(4713));
    for (name, mode) in [
        ("a/one", 0o640),
        ("z/other", 0o4755),
        ("a/b", 0o2750),
        ("z/empty", 0o1777),
        ("sparse", 0o400),
        ("z", 0o555),
    ] {
        fs::set_permissions(t.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if is_root() {
        special("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        special("block", FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
        fs::set_permissions(t.join("null"), fs::Permissions::from_mode(0o666)).unwrap();
        set(&t.join("link"), "trusted.of_link", b"link");
        set(&t.join("null"), "trusted.of_device", b"device");
        set(&t.join("a"), "trusted.of_dir", &[1, 0, 2]);
        for (name, uid, gid) in
            [("five", 1001, 1002), ("link", 70_000, 80_000), ("a/b", 1001, 0), ("fifo", 0, 5)]
        {
            std::os::unix::fs::lchown(t.join(name), Some(uid), Some(gid)).unwrap();
        }
        fs::set_permissions(t.join("a/b"), fs::Permissions::from_mode(0o2750)).unwrap();
        fs::write(t.join("program"), "#!/bin/sh").unwrap();
        std::os::unix::fs::chown(t.join("program"), Some(1001), Some(1001)).unwrap();
        set(&t.join("program"), CAPABILITY, &capability());
    }
    let old = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
    for (name, mtime) in [
        ("plain", old(-5, 999_999_999)),
        ("link", old(1, 1)),
        ("z/empty", old(4_000_000_000, 5)),
        ("a", old(77, 78)),
        ("fifo", old(9, 10)),
    ] {
        let times = Timestamps { last_access: old(100, 123_456_789), last_modification: mtime };
        rustix::fs::utimensat(CWD, t.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    t
}

/// A scene that an ordinary user may enter, with the program.
fn scene() -> Bench {
    let b = Bench::new();
    fs::set_permissions(b.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    b.copy_program(env!("CARGO_BIN_EXE_pando"), "pando");
    b
}

/// Runs the program as an ordinary user; code and what it said.
fn as_ann(b: &Bench, args: &[&str]) -> (i32, String) {
    let mut command = std::process::Command::new(b.path("pando"));
    let out = command.args(args).current_dir(b.path("")).uid(ANN).gid(ANN).output().unwrap();
    (out.status.code().unwrap_or(-1), text(&out.stdout) + &text(&out.stderr))
}

#[test]
fn a_tree_with_all_that_files_can_be_comes_out_as_it_went_in() {
    let b = Bench::new();
    let tree = everything(&b);
    let before = walk(&tree);
    assert!(before[&b"sparse"[..]].sparse && before[&b"nothing"[..]].sparse);
    assert_eq!(before[&b"z/four"[..]].file, b"a/b/three");
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    let said = b.ok(&["import", "t", "a.img:/t"]);
    assert!(said.contains("hard links"), "{said}");
    b.ok(&["export", "a.img:/t", "out"]);
    let read = fs::symlink_metadata(b.path("out/fifo")).unwrap();
    assert_eq!((read.atime(), read.atime_nsec()), (100, 123_456_789));
    equal(&tree, &b.path("out"));
    // A part of it, in which some names of a file are missing.
    b.ok(&["export", "a.img:/t/z", "part"]);
    equal(&tree.join("z"), &b.path("part"));
    b.ok(&["import", "out", "a.img:/again"]);
    let report = b.json(&["check", "--json", "a.img"]);
    assert_eq!(report["clean"].as_bool(), Some(true), "{report}");
    b.ok(&["export", "a.img:/again", "again"]);
    equal(&tree, &b.path("again"));
}

#[test]
fn what_is_imported_is_seen_in_the_mount_and_goes_through_try() {
    if !crate::common::have_fuse() {
        return;
    }
    let b = Bench::new();
    let tree = everything(&b);
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mount", "-o", "dev,suid", "a.img", "m"]);
    equal(&tree, &b.path("m/t"));
    // A mount is a directory of the host as any other: into another image, and out of one into it.
    b.ok(&["mkfs", "--size", "256M", "b.img"]);
    b.ok(&["import", "m/t", "b.img:/"]);
    b.ok(&["export", "b.img:/", "m/back"]);
    equal(&tree, &b.path("m/back"));
    fs::create_dir(b.path("work")).unwrap();
    let said = b.ok(&["try", "--no-cp", "--work-dir", "work", "t"]);
    assert!(said.contains("compared again: as they must be"), "{said}");
}

#[test]
fn an_ordinary_user_keeps_what_is_hers_and_is_told_of_the_rest() {
    if !is_root() {
        eprintln!("SKIPPED: only root can set the scene");
        return;
    }
    let b = scene();
    let tree = everything(&b);
    b.ok(&["mkfs", "--size", "256M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.sh(&format!("chown {ANN} a.img && mkdir ann && chown {ANN}:{ANN} ann"));
    let (code, said) = as_ann(&b, &["export", "a.img:/t", "ann/out"]);
    assert_eq!(code, 8, "{said}");
    for line in [
        "2 device nodes, pipes, sockets or symbolic links were left out; the first: ann/out/block",
        "owners or groups were not kept",
        "extended attributes were not kept",
        "modes were not kept",
        "copied, but not with all that belongs to it",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    // Once for each file or directory that is not hers, and no name counts twice.
    let all = walk(&tree);
    let files = all.iter().filter(|(path, entry)| **path == entry.file && entry.rdev == 0).count();
    assert!(said.contains(&format!("{files} owners or groups")), "{files}: {said}");
    let out = walk(&b.path("ann/out"));
    for (path, want) in all.iter().filter(|(_, entry)| entry.rdev == 0) {
        let got = &out[path];
        let kept = |entry: &Entry| {
            (entry.size, entry.mtime, entry.sparse, entry.content.clone(), entry.file.clone())
        };
        assert_eq!(kept(got), kept(want), "{}", text(path));
        let user = |entry: &Entry| {
            let mut attrs = entry.attrs.clone();
            attrs.retain(|name, _| name.starts_with(b"user.") || name.starts_with(b"system."));
            attrs
        };
        assert_eq!(user(got), user(want), "{}", text(path));
        // A program of another user must not run with the rights of the one who copied it.
        assert_eq!((got.owner, got.mode & 0o6000), ((ANN, ANN), 0), "{}", text(path));
        assert_eq!(got.mode & !0o6000, want.mode & !0o6000, "{}", text(path));
    }

    // All that is hers goes in and comes out as it is.
    b.sh(&format!("cd ann/out && chmod 4755 z/other && chmod 2750 a/b && cd .. && chown -R {ANN}:{ANN} ."));
    let (code, said) = as_ann(&b, &["import", "ann/out", "a.img:/hers"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = as_ann(&b, &["export", "a.img:/hers", "ann/again"]);
    assert_eq!(code, 0, "{said}");
    equal(&b.path("ann/out"), &b.path("ann/again"));
}

#[test]
fn a_host_without_attributes_costs_attributes_and_says_how_many() {
    let b = Bench::new();
    if !is_root() || !crate::common::has("mount") {
        eprintln!("SKIPPED: only root can set the scene");
        return;
    }
    b.sh("mkdir t && for i in 1 2 3; do echo $i > t/$i; done");
    for i in 1..=3 {
        set(&b.path(&format!("t/{i}")), "user.a", b"1");
        set(&b.path(&format!("t/{i}")), "user.b", b"2");
    }
    set(&b.path("t/2"), ACCESS, &access_list(4711));
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.sh("mkdir ram && mount -t ramfs none ram");
    let out = b.run(&["export", "a.img:/t", "ram/out"]);
    let said = text(&out.stderr);
    let same = b.sh("diff -r t ram/out && stat -c %a ram/out/2; umount ram");
    assert_eq!(out.status.code(), Some(8), "{said}");
    assert!(said.contains("6 extended attributes were not kept; the first: ram/out/1: user."), "{said}");
    assert!(said.contains("1 access control lists were not kept; the first: ram/out/2"), "{said}");
    assert_eq!(same, "770\n");
}

#[test]
fn a_copy_inherits_no_access_list_from_where_it_is_made() {
    let b = Bench::new();
    b.sh("mkdir -p t/d around && echo x > t/d/f && echo y > t/g && chmod 640 t/g && chmod 750 t/d");
    set(&b.path("around"), DEFAULT, &access_list(4711));
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    // The directory in the image has a default list as well.
    b.ok(&["import", "around", "a.img:/around"]);
    b.ok(&["import", "t", "a.img:/around/t"]);
    b.ok(&["import", "t/g", "a.img:/around/g"]);
    b.ok(&["export", "a.img:/around/t", "around/t"]);
    b.ok(&["export", "a.img:/around/g", "around/g"]);
    let none = |dir: &Path| walk(dir).into_values().all(|entry| entry.attrs.is_empty());
    assert!(none(&b.path("around/t")));
    let mut attrs = [0; 100];
    assert_eq!(rustix::fs::llistxattr(b.path("around/g"), &mut attrs[..]), Ok(0));
    assert_eq!(
        b.sh("cd around && stat -c '%a %n' t t/d t/d/f t/g g"),
        b.sh("stat -c '%a %n' t t/d t/d/f t/g; echo 640 g")
    );
}

#[test]
fn paths_longer_than_the_kernel_takes_in_one_call_go_both_ways() {
    let b = Bench::new();
    let name = "d".repeat(200);
    b.sh(&format!("mkdir t && cd t && for i in $(seq 40); do mkdir {name} && cd -P {name}; done && echo deep > f && ln f g"));
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.ok(&["import", "t", "a.img:/t"]);
    b.ok(&["export", "a.img:/t", "out"]);
    let mut dir = rustix::fs::open(b.path("out"), OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in 0..40 {
        dir = rustix::fs::openat(&dir, &name, OFlags::RDONLY, Mode::empty()).unwrap();
    }
    let ino = |name: &str| rustix::fs::statat(dir.as_fd(), name, AtFlags::empty()).unwrap().st_ino;
    assert_eq!(ino("f"), ino("g"));
}
