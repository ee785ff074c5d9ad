//! Extended attributes, access lists, allocation and overlays through a mount, on originals and on clones.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use super::common::{World, errno};
use pando_fuse::{Settings, control::ControlRequest};
use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, RenameFlags, SeekFrom, XattrFlags, fallocate, renameat_with, seek,
};

macro_rules! world {
    ($settings:expr) => {
        match World::with($settings) {
            Some(world) => world,
            None => return,
        }
    };
}

fn checked() -> Settings {
    Settings { default_permissions: Some(true), ..Settings::default() }
}

fn set(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(path, name, value, flags)?)
}

fn get(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    let n = rustix::fs::lgetxattr(path, name, &mut buffer)?;
    buffer.truncate(n);
    Ok(buffer)
}

fn names(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 65_536];
    let n = rustix::fs::llistxattr(path, &mut buffer).unwrap();
    let text = String::from_utf8(buffer[..n].to_vec()).unwrap();
    let mut names: Vec<String> = text.split_terminator('\0').map(String::from).collect();
    names.sort();
    names
}

/// What a program prints, if it is there.
fn output(program: &str, args: &[&str], dir: &Path) -> Option<String> {
    match Command::new(program).args(args).current_dir(dir).output() {
        Ok(out) => {
            assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
            Some(String::from_utf8(out.stdout).unwrap())
        }
        Err(_) => {
            eprintln!("SKIPPED: {program} is absent");
            None
        }
    }
}

const NONE: XattrFlags = XattrFlags::empty();

/// `ls -l` asks each entry for both unless it is told that they are not supported, and the kernel keeps no answer.
#[test]
fn labels_and_access_lists_are_not_supported_for_whoever_lists_until_there_is_an_attribute() {
    const LIST: &str = "system.posix_acl_access";
    const LABEL: &str = "security.selinux";
    for settings in [Settings::default(), checked()] {
        let mut w = world!(settings.clone());
        let obeyed = settings.default_permissions == Some(true);
        let (f, g) = (w.path("f"), w.path("g"));
        fs::write(&f, "content").unwrap();
        fs::write(&g, "content").unwrap();
        for _ in 0..2 {
            assert_eq!(
                errno(get(&f, LIST)),
                libc::ENODATA,
                "who asks for the list alone may want to change it"
            );
            assert_eq!(errno(get(&f, LABEL)), libc::EOPNOTSUPP);
            let list = if obeyed { libc::ENODATA } else { libc::EOPNOTSUPP };
            assert_eq!(errno(get(&f, LIST)), list, "asked for behind the label");
            assert_eq!(errno(get(&g, LIST)), libc::ENODATA);
            assert_eq!(errno(get(&f, "security.capability")), libc::ENODATA);
            // Another one is as new.
            std::thread::spawn({
                let f = f.clone();
                move || assert_eq!(errno(get(&f, LIST)), libc::ENODATA)
            })
            .join()
            .unwrap();
            w.remount();
        }
        assert_eq!(errno(get(&f, LABEL)), libc::EOPNOTSUPP);
        set(&g, LABEL, b"system_u:object_r:etc_t:s0", NONE).unwrap();
        for _ in 0..2 {
            assert_eq!(get(&g, LABEL).unwrap(), b"system_u:object_r:etc_t:s0");
            assert_eq!(errno(get(&f, LABEL)), libc::ENODATA);
            assert_eq!(errno(get(&f, LIST)), libc::ENODATA);
            w.remount();
        }
    }
}

#[test]
fn attributes_have_the_errors_of_posix_on_originals_and_clones() {
    let mut w = world!(Settings::default());
    fs::create_dir(w.path("tree")).unwrap();
    fs::write(w.path("tree/f"), "content").unwrap();
    fs::create_dir(w.path("tree/d")).unwrap();
    symlink("f", w.path("tree/l")).unwrap();
    let large: Vec<u8> = (0..65_536u32).map(|i| i as u8).collect();
    for round in ["tree", "copy"] {
        for name in ["f", "d"] {
            let path = w.path(round).join(name);
            assert_eq!(errno(get(&path, "user.none")), libc::ENODATA);
            assert_eq!(
                errno(rustix::fs::lremovexattr(&path, "user.none").map_err(Into::into)),
                libc::ENODATA
            );
            assert_eq!(errno(set(&path, "user.r", b"", XattrFlags::REPLACE)), libc::ENODATA);
            let fresh = format!("user.new-in-{round}");
            let before = fs::metadata(&path).unwrap();
            // Until the clock that times are taken from has ticked.
            std::thread::sleep(std::time::Duration::from_millis(11));
            set(&path, &fresh, b"value", XattrFlags::CREATE).unwrap();
            let after = fs::metadata(&path).unwrap();
            assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
            assert_eq!(errno(set(&path, &fresh, b"", XattrFlags::CREATE)), libc::EEXIST);
            set(&path, "trusted.large", &large, NONE).unwrap();
            set(&path, "security.test", b"label", NONE).unwrap();
            assert_eq!(errno(set(&path, "user.big", &[0; 65_537], NONE)), libc::E2BIG);
            assert_eq!(errno(set(&path, "unknown.x", b"", NONE)), libc::EOPNOTSUPP);
            assert_eq!(errno(set(&path, &format!("user.{}", "n".repeat(251)), b"", NONE)), libc::ERANGE);
            let short = rustix::fs::lgetxattr(&path, "trusted.large", &mut [0u8; 10]);
            assert_eq!(errno(short.map_err(Into::into)), libc::ERANGE);
            let short = rustix::fs::llistxattr(&path, &mut [0u8; 3]);
            assert_eq!(errno(short.map_err(Into::into)), libc::ERANGE);
            assert!(get(&path, "trusted.large").unwrap() == large);
        }
        assert_eq!(errno(set(&w.path(round).join("l"), "user.a", b"", NONE)), libc::EPERM);
        set(&w.path(round).join("l"), "trusted.a", b"of a link", NONE).unwrap();
        if round == "tree" {
            w.clone_tree("tree", "copy", false).unwrap();
        }
    }
    let expected = ["security.test", "trusted.large", "user.new-in-copy", "user.new-in-tree"];
    for _ in 0..2 {
        assert_eq!(names(&w.path("copy/f")), expected);
        assert_eq!(names(&w.path("copy/d")), expected);
        assert_eq!(names(&w.path("tree/f")), ["security.test", "trusted.large", "user.new-in-tree"]);
        assert!(get(&w.path("copy/d"), "trusted.large").unwrap() == large);
        assert_eq!(get(&w.path("copy/l"), "trusted.a").unwrap(), b"of a link");
        w.remount();
    }
}

/// An access list: of the owner, a user, the group, the mask, and others.
fn list(permissions: [u16; 5]) -> Vec<u8> {
    let tags: [(u16, u32); 5] = [(1, !0), (2, 4321), (4, !0), (16, !0), (32, !0)];
    let entries = tags.iter().zip(permissions);
    let bytes = entries.flat_map(|((tag, id), bits)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    2u32.to_le_bytes().into_iter().chain(bytes).collect()
}

#[test]
fn the_mode_that_an_access_list_sets_is_seen_at_once() {
    for settings in [Settings::default(), checked()] {
        let w = world!(settings);
        fs::write(w.path("f"), "1").unwrap();
        fs::set_permissions(w.path("f"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(w.path("d")).unwrap();
        for name in ["f", "d"] {
            // With answers that the kernel does not doubt any more.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mode = || fs::metadata(w.path(name)).unwrap().mode() & 0o7777;
            let before = mode();
            set(&w.path(name), "system.posix_acl_access", &list([6, 0, 0, 0, 0]), XattrFlags::empty())
                .unwrap();
            assert_eq!((mode(), before != 0o600), (0o600, true), "{name}");
        }
    }
}

#[test]
fn access_lists_are_obeyed_inherited_and_changed_by_chmod() {
    let w = world!(Settings { allow_other: true, ..checked() });
    let dir = w.root();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(w.path("f"), "secret").unwrap();
    fs::set_permissions(w.path("f"), fs::Permissions::from_mode(0o600)).unwrap();
    if output("setfacl", &["-m", "u:4321:r", "f"], dir).is_none() {
        return;
    }
    let list = output("getfacl", &["-cn", "f"], dir).unwrap();
    assert!(list.contains("user:4321:r--") && list.contains("mask::r--"), "{list}");
    let reads = |uid: u32| {
        use std::os::unix::process::CommandExt;
        let mut cat = Command::new("cat");
        cat.arg(w.path("f")).uid(uid).gid(uid);
        cat.output().unwrap().status.success()
    };
    // Only root may let others in; elsewhere there is nobody to ask.
    if rustix::process::geteuid().is_root() {
        assert!(reads(4321) && !reads(4322));
        fs::set_permissions(w.path("f"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!reads(4321), "chmod has set the mask");
    }
    fs::create_dir(w.path("d")).unwrap();
    output("setfacl", &["-d", "-m", "u:4321:rwx,o::-", "d"], dir).unwrap();
    Command::new("sh")
        .args(["-c", "umask 077; mkdir d/sub; echo > d/file"])
        .current_dir(dir)
        .status()
        .unwrap();
    let sub = output("getfacl", &["-cn", "d/sub"], dir).unwrap();
    assert!(sub.contains("\nuser:4321:rwx") && sub.contains("default:user:4321:rwx"), "{sub}");
    assert!(sub.contains("\nmask::rwx") && sub.contains("\nother::---"), "the umask does not count: {sub}");
    assert_eq!(fs::metadata(w.path("d/file")).unwrap().mode() & 0o777, 0o660);
    w.clone_tree("d", "copy", false).unwrap();
    let list = |name: &str| output("getfacl", &["-cn", name], dir).unwrap();
    assert_eq!(list("copy/sub"), sub);
    output("setfacl", &["-b", "copy/sub"], dir).unwrap();
    assert!(!list("copy/sub").contains("4321"));
    assert_eq!(list("d/sub"), sub);
    output("sh", &["-c", "umask 077; touch plain"], dir).unwrap();
    assert_eq!(
        fs::metadata(w.path("plain")).unwrap().mode() & 0o777,
        0o600,
        "without a list the umask counts"
    );
}

#[test]
fn a_write_takes_capabilities_away() {
    let w = world!(Settings::default());
    // Version 2, effective, one permitted bit.
    let mut capability = vec![1, 0, 0, 2, 0, 4];
    capability.resize(20, 0);
    for how in ["write", "map", "truncate", "chown"] {
        let f = w.path(how);
        fs::write(&f, [7; 5000]).unwrap();
        if set(&f, "security.capability", &capability, NONE).is_err() {
            eprintln!("SKIPPED: capabilities cannot be set here");
            return;
        }
        assert_eq!(get(&f, "security.capability").unwrap(), capability);
        let open = OpenOptions::new().read(true).write(true).open(&f).unwrap();
        match how {
            "write" => open.write_all_at(b"x", 100).unwrap(),
            "truncate" => open.set_len(10).unwrap(),
            "chown" => std::os::unix::fs::chown(&f, Some(1), Some(1)).unwrap(),
            _ => OpenOptions::new().write(true).open(&f).unwrap().write_all_at(b"x", 0).unwrap(),
        }
        assert_eq!(errno(get(&f, "security.capability")), libc::ENODATA, "{how}");
    }
}

/// Where the kernel keeps what is written, it has the times too. If nothing has changed in them for it, since the clock
/// had not moved on, the server took a time of its own, which was shown once the kernel had forgotten the file.
#[test]
fn files_that_are_punched_or_copied_to_keep_the_times_that_are_shown() {
    const FILES: usize = 400;
    let mut w = world!(Settings::default());
    fs::write(w.path("source"), vec![3; 50_000]).unwrap();
    let path = |i: usize| w.path(&format!("f{i}"));
    let open = |i: usize| OpenOptions::new().read(i % 4 != 3).write(true).open(path(i)).unwrap();
    // Small changes of those that are large bypass what the kernel keeps.
    let bytes = |i: usize| if i % 4 == 3 { 200_000 } else { 30_000 };
    (0..FILES).for_each(|i| fs::write(path(i), vec![1; bytes(i)]).unwrap());
    w.send(&ControlRequest::Sync).unwrap();
    let source = File::open(w.path("source")).unwrap();
    for i in 0..FILES {
        let writer = open(i);
        writer.write_all_at(&[2; 3000], 30_000).unwrap();
        let _still_open = (i % 8 == 3).then_some(writer);
        match i % 3 {
            0 => fallocate(open(i), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1000, 9000)
                .unwrap(),
            1 => fallocate(open(i), FallocateFlags::ZERO_RANGE, 1000, 40_000).unwrap(),
            _ => {
                let (mut from, mut to) = (100, 5000);
                rustix::fs::copy_file_range(&source, Some(&mut from), open(i), Some(&mut to), 9000).unwrap();
            }
        }
    }
    let times = |w: &World| -> Vec<_> {
        let meta = |i: usize| fs::metadata(w.path(&format!("f{i}"))).unwrap();
        (0..FILES)
            .map(|i| (meta(i).mtime(), meta(i).mtime_nsec(), meta(i).ctime(), meta(i).ctime_nsec()))
            .collect()
    };
    let shown = times(&w);
    drop(source);
    w.remount();
    let stored = times(&w);
    let others = (0..FILES).filter(|i| shown[*i] != stored[*i]).count();
    assert_eq!(others, 0, "of {FILES} files so many have other times now");
}

#[test]
fn holes_are_punched_and_found() {
    let mut w = world!(Settings::default());
    let data = vec![9u8; 1 << 20];
    fs::write(w.path("f"), &data).unwrap();
    let f = OpenOptions::new().read(true).write(true).open(w.path("f")).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&f, punch, 100_000, 500_000).unwrap();
    let mut expected = data.clone();
    expected[100_000..600_000].fill(0);
    assert!(fs::read(w.path("f")).unwrap() == expected);
    let hole = seek(&f, SeekFrom::Hole(0)).unwrap();
    assert_eq!((hole, seek(&f, SeekFrom::Data(hole)).unwrap()), (7 << 14, 36 << 14));
    assert!(f.metadata().unwrap().blocks() < 1400);
    fallocate(&f, FallocateFlags::ZERO_RANGE, 1 << 19, 1 << 20).unwrap();
    expected.truncate(1 << 19);
    expected.resize((1 << 19) + (1 << 20), 0);
    assert!(fs::read(w.path("f")).unwrap() == expected);
    fallocate(&f, FallocateFlags::empty(), 0, 8 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 8 << 20);
    fallocate(&f, FallocateFlags::KEEP_SIZE, 0, 16 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 8 << 20);
    assert_eq!(errno(fallocate(&f, FallocateFlags::empty(), 0, 1 << 40).map_err(Into::into)), libc::ENOSPC);
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(errno(fallocate(&f, flags, 0, 1 << 16).map_err(Into::into)), libc::EOPNOTSUPP);
    }
    assert_eq!(errno(seek(&f, SeekFrom::Data(4 << 20)).map_err(Into::into)), libc::ENXIO);
    drop(f);
    w.clone_tree("f", "copy", false).unwrap();
    w.remount();
    let f = File::open(w.path("copy")).unwrap();
    assert_eq!(seek(&f, SeekFrom::Hole(0)).unwrap(), 7 << 14);
    expected.resize(8 << 20, 0);
    assert!(fs::read(w.path("copy")).unwrap() == expected);
}

#[test]
fn a_rename_leaves_a_whiteout() {
    let mut w = world!(Settings::default());
    fs::create_dir(w.path("d")).unwrap();
    fs::write(w.path("d/f"), "x").unwrap();
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, w.path(from), CWD, w.path(to), flags);
    rename("d/f", "g", RenameFlags::WHITEOUT).unwrap();
    rename("d", "e", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    let taken = rename("g", "e", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE);
    assert_eq!(errno(taken.map_err(Into::into)), libc::EEXIST);
    for _ in 0..2 {
        for name in ["e/f", "d"] {
            let left = fs::symlink_metadata(w.path(name)).unwrap();
            assert!(left.file_type().is_char_device() && left.rdev() == 0, "{name}");
        }
        assert_eq!(fs::read(w.path("g")).unwrap(), b"x");
        w.remount();
    }
}

/// It is made like any other file: it had the caller's group and no access list.
#[test]
fn a_whiteout_inherits_what_its_directory_gives() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut w = world!(Settings { dev: true, ..Settings::default() });
    let d = w.path("d");
    fs::create_dir(&d).unwrap();
    std::os::unix::fs::chown(&d, None, Some(2000)).unwrap();
    fs::set_permissions(&d, Permissions::from_mode(0o2775)).unwrap();
    set(&d, "system.posix_acl_default", &list([7, 6, 5, 7, 0]), XattrFlags::empty()).unwrap();
    fs::write(d.join("f"), "x").unwrap();
    let flags = RenameFlags::WHITEOUT;
    renameat_with(CWD, d.join("f"), CWD, d.join("g"), flags).unwrap();
    rustix::fs::mknodat(CWD, d.join("made"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    for _ in 0..2 {
        let of = |name: &str| {
            let path = w.path("d").join(name);
            let m = fs::symlink_metadata(&path).unwrap();
            (m.mode(), m.gid(), m.rdev(), get(&path, "system.posix_acl_access").unwrap())
        };
        assert_eq!(of("f"), of("made"));
        assert_eq!(of("f").1, 2000);
        w.remount();
    }
}

#[test]
fn an_overlay_has_its_upper_layer_here() {
    let w = world!(Settings { dev: true, ..Settings::default() });
    for dir in ["lower/sub", "upper", "work", "merged"] {
        fs::create_dir_all(w.path(dir)).unwrap();
    }
    for name in ["lower/gone", "lower/changed", "lower/sub/inside"] {
        fs::write(w.path(name), "below").unwrap();
    }
    let p = |name: &str| w.path(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", p("lower"), p("upper"), p("work"));
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options, &p("merged")])
        .output()
        .unwrap();
    if !mounted.status.success() {
        let text = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(
            !rustix::process::geteuid().is_root() || text.contains("unknown filesystem type"),
            "overlay: {text}"
        );
        eprintln!("SKIPPED: no overlays here: {text}");
        return;
    }
    let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        fs::remove_file(w.path("merged/gone")).unwrap();
        fs::write(w.path("merged/changed"), "above").unwrap();
        fs::rename(w.path("merged/sub/inside"), w.path("merged/moved")).unwrap();
        fs::remove_dir_all(w.path("merged/sub")).unwrap();
        fs::create_dir(w.path("merged/sub")).unwrap();
        assert_eq!(fs::read(w.path("merged/moved")).unwrap(), b"below");
        assert_eq!(fs::read_dir(w.path("merged/sub")).unwrap().count(), 0);
        assert_eq!(fs::read(w.path("lower/changed")).unwrap(), b"below");
        assert!(!w.path("merged/gone").exists());
    }));
    // A child that another test has forked, and that has not become its program yet, holds what was open then.
    let unmounted = (0..50).any(|_| {
        let done = Command::new("umount").arg(w.path("merged")).status().unwrap().success();
        if !done {
            std::thread::sleep(Duration::from_millis(100));
        }
        done
    });
    used.unwrap();
    assert!(unmounted);
    assert!(fs::symlink_metadata(w.path("upper/gone")).unwrap().file_type().is_char_device());
    assert_eq!(fs::read(w.path("upper/changed")).unwrap(), b"above");
    assert_eq!(get(&w.path("upper/sub"), "trusted.overlay.opaque").unwrap(), b"y");
}

#[test]
fn programs_copy_attributes_lists_and_holes() {
    let w = world!(Settings::default());
    let dir = w.root();
    fs::create_dir_all(w.path("tree/d")).unwrap();
    fs::write(w.path("tree/f"), "content").unwrap();
    set(&w.path("tree/f"), "user.small", b"1", NONE).unwrap();
    set(&w.path("tree/d"), "user.large", &[5; 30_000], NONE).unwrap();
    let lists = output("setfacl", &["-m", "u:4321:rx", "tree/f", "tree/d"], dir).is_some();
    let sparse = File::create(w.path("tree/sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.write_all_at(b"end", (4 << 20) + 5).unwrap();
    w.clone_tree("tree", "cloned", false).unwrap();
    let copies: [(&str, &[&str]); 3] = [
        ("cp", &["-a", "tree", "cp"]),
        (
            "sh",
            &["-c", "mkdir tar && tar --xattrs --acls -C tree -cf - . | tar --xattrs --acls -C tar -xf -"],
        ),
        ("rsync", &["-aAXS", "tree/", "rsync/"]),
    ];
    let mut made = vec!["cloned"];
    for (program, args) in copies {
        if output(program, args, dir).is_some() {
            made.push(if program == "sh" { "tar" } else { program });
        }
    }
    for copy in made {
        let of = |name: &str| w.path(copy).join(name);
        assert_eq!(get(&of("f"), "user.small").unwrap(), b"1", "{copy}");
        assert_eq!(get(&of("d"), "user.large").unwrap(), [5; 30_000], "{copy}");
        assert_eq!(names(&of("f")), names(&w.path("tree/f")), "{copy}");
        if lists {
            assert_eq!(
                get(&of("f"), "system.posix_acl_access").unwrap(),
                get(&w.path("tree/f"), "system.posix_acl_access").unwrap(),
                "{copy}"
            );
        }
        assert!(fs::read(of("sparse")).unwrap() == fs::read(w.path("tree/sparse")).unwrap(), "{copy}");
        let blocks = fs::metadata(of("sparse")).unwrap().blocks();
        assert!(blocks <= 64 || copy == "tar", "{copy}: {blocks} units of 512 bytes");
    }
}

/// The kernel asks for them for whoever has CAP_SYS_ADMIN, by whatever user id, and the server refused all but root.
#[test]
fn whoever_the_kernel_lets_has_trusted_attributes_whatever_the_user_id() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root has the capability");
        return;
    }
    let w = world!(checked());
    let path = w.path("f");
    fs::write(&path, b"x").unwrap();
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    set(&path, "user.u", b"1", XattrFlags::empty()).unwrap();
    let file = path.as_path();
    let drop_admin = || {
        let mut own = capabilities(None).unwrap();
        own.effective.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, own).unwrap();
    };
    std::thread::scope(|s| {
        // Of this thread alone, as the capabilities are: all that is not about files stays.
        s.spawn(|| {
            // SAFETY: a call without pointers.
            unsafe { libc::syscall(libc::SYS_setfsuid, 1000) };
            set(file, "trusted.t", b"2", XattrFlags::empty()).unwrap();
            assert_eq!(
                (get(file, "trusted.t").unwrap(), names(file)),
                (b"2".to_vec(), vec!["trusted.t".into(), "user.u".into()])
            );
            drop_admin();
            assert_eq!(errno(set(file, "trusted.t", b"3", XattrFlags::empty())), libc::EPERM);
            assert_eq!((errno(get(file, "trusted.t")), names(file)), (libc::ENODATA, vec!["user.u".into()]));
        });
        s.spawn(|| {
            while get(file, "trusted.t").is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Root is shown what it may not have by its name no more than by a list.
            drop_admin();
            assert_eq!((errno(get(file, "trusted.t")), names(file)), (libc::ENODATA, vec!["user.u".into()]));
        });
    });
    rustix::fs::lremovexattr(file, "trusted.t").unwrap();
    assert_eq!(names(file), ["user.u"]);
}
