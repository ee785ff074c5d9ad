//! What every program expects of a file system, through a real mount.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions, Permissions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
        process::CommandExt,
    },
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::common::{World, errno, output_of_written};
use pando_fuse::Settings;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, RenameFlags, mknodat, renameat_with};

macro_rules! world {
    () => {
        match World::new() {
            Some(world) => world,
            None => return,
        }
    };
}

fn rename2(from: &std::path::Path, to: &std::path::Path, flags: RenameFlags) -> std::io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

#[test]
fn the_time_of_birth_is_told_and_stays() {
    let w = world!();
    fs::write(w.path("f"), "x").unwrap();
    let born = |path: &str| {
        let flags = rustix::fs::StatxFlags::BTIME | rustix::fs::StatxFlags::BASIC_STATS;
        let stat = rustix::fs::statx(CWD, w.path(path), rustix::fs::AtFlags::empty(), flags).unwrap();
        assert!(rustix::fs::StatxFlags::from_bits_retain(stat.stx_mask).contains(flags));
        assert_eq!((u64::from(stat.stx_mode), stat.stx_size), (0o100644, 3 * u64::from(path == "f")));
        (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
    };
    std::thread::sleep(Duration::from_millis(5));
    fs::write(w.path("f"), "yyy").unwrap();
    fs::write(w.path("g"), "").unwrap();
    let first = born("f");
    assert!(first < born("g") && first.0 > 1_700_000_000);
    let meta = fs::metadata(w.path("f")).unwrap();
    assert!(meta.mtime() > first.0 || meta.mtime_nsec() > i64::from(first.1));
    File::open(w.path("f")).unwrap().set_modified(UNIX_EPOCH).unwrap();
    fs::rename(w.path("f"), w.path("h")).unwrap();
    fs::rename(w.path("h"), w.path("f")).unwrap();
    assert_eq!(born("f"), first);
}

#[test]
fn files_are_written_read_appended_and_truncated() {
    let mut w = world!();
    let f = w.path("f");
    fs::write(&f, b"hello").unwrap();
    assert_eq!(fs::read(&f).unwrap(), b"hello");
    let mut append = OpenOptions::new().append(true).open(&f).unwrap();
    append.write_all(b" world").unwrap();
    append.seek(SeekFrom::Start(0)).unwrap();
    append.write_all(b"!").unwrap();
    assert_eq!(fs::read(&f).unwrap(), b"hello world!");
    let rw = OpenOptions::new().read(true).write(true).open(&f).unwrap();
    rw.write_all_at(b"far", 100_000).unwrap();
    assert_eq!(rw.metadata().unwrap().len(), 100_003);
    let all = fs::read(&f).unwrap();
    assert_eq!((&all[..12], &all[100_000..]), (&b"hello world!"[..], &b"far"[..]));
    assert!(all[12..100_000].iter().all(|&b| b == 0), "a hole reads as zeros");
    rw.set_len(5).unwrap();
    rw.set_len(10).unwrap();
    assert_eq!(fs::read(&f).unwrap(), b"hello\0\0\0\0\0");
    drop((append, rw));
    w.remount();
    assert_eq!(fs::read(w.path("f")).unwrap(), b"hello\0\0\0\0\0");
}

#[test]
fn large_files_come_back_whatever_the_size_of_the_calls() {
    let mut w = world!();
    let data: Vec<u8> = (0..5_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (name, chunk) in [("a", 5_000_003), ("b", 65_536), ("c", 1000)] {
        let mut f = File::create(w.path(name)).unwrap();
        for part in data.chunks(chunk) {
            f.write_all(part).unwrap();
        }
    }
    for _ in 0..2 {
        for name in ["a", "b", "c"] {
            assert!(fs::read(w.path(name)).unwrap() == data, "{name}");
            let f = File::open(w.path(name)).unwrap();
            for at in [0usize, 1, 4095, 16_383, 16_385, 1_048_575, 4_999_999] {
                let mut buf = [0; 4];
                f.read_exact_at(&mut buf, at as u64).unwrap();
                assert_eq!(buf, data[at..at + 4], "{name} at {at}");
            }
        }
        w.remount();
    }
}

#[test]
fn exclusive_and_truncating_opens() {
    let w = world!();
    let f = w.path("f");
    fs::write(&f, b"old content").unwrap();
    assert_eq!(errno(File::create_new(&f)), libc::EEXIST);
    let held = File::open(&f).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 11);
    let f2 = OpenOptions::new().write(true).truncate(true).open(&f).unwrap();
    assert_eq!(held.metadata().unwrap().len(), 0);
    f2.write_all_at(b"new", 0).unwrap();
    let mut text = String::new();
    (&held).read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
    assert_eq!(errno(File::open(w.path("none"))), libc::ENOENT);
    assert_eq!(errno(File::open(f.join("below a file"))), libc::ENOTDIR);
    assert_eq!(errno(OpenOptions::new().write(true).open(w.root())), libc::EISDIR);
}

#[test]
fn renames_replace_what_posix_lets_them_replace() {
    let mut w = world!();
    fs::write(w.path("a"), "a").unwrap();
    fs::write(w.path("b"), "b").unwrap();
    let ino = fs::metadata(w.path("a")).unwrap().ino();
    fs::rename(w.path("a"), w.path("b")).unwrap();
    assert_eq!(fs::read(w.path("b")).unwrap(), b"a");
    assert_eq!(fs::metadata(w.path("b")).unwrap().ino(), ino, "a rename keeps the inode number");
    assert!(!w.path("a").exists());

    fs::create_dir_all(w.path("d/sub")).unwrap();
    fs::write(w.path("d/sub/f"), "deep").unwrap();
    fs::create_dir(w.path("empty")).unwrap();
    fs::create_dir_all(w.path("full/x")).unwrap();
    assert!(matches!(errno(fs::rename(w.path("d"), w.path("full"))), libc::ENOTEMPTY | libc::EEXIST));
    assert_eq!(errno(fs::rename(w.path("d"), w.path("b"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(w.path("b"), w.path("empty"))), libc::EISDIR);
    assert_eq!(errno(fs::rename(w.path("d"), w.path("d/sub/inside"))), libc::EINVAL);
    fs::rename(w.path("d"), w.path("empty")).unwrap();
    assert_eq!(fs::read(w.path("empty/sub/f")).unwrap(), b"deep");

    assert_eq!(errno(rename2(&w.path("b"), &w.path("full"), RenameFlags::NOREPLACE)), libc::EEXIST);
    rename2(&w.path("b"), &w.path("full"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(w.path("full")).unwrap(), b"a");
    assert!(w.path("b/x").is_dir());
    w.remount();
    assert_eq!(fs::read(w.path("full")).unwrap(), b"a");
    assert_eq!(fs::read(w.path("empty/sub/f")).unwrap(), b"deep");
}

#[test]
fn removing_follows_the_rules() {
    let w = world!();
    fs::create_dir_all(w.path("d/e")).unwrap();
    fs::write(w.path("f"), "").unwrap();
    assert!(matches!(errno(fs::remove_dir(w.path("d"))), libc::ENOTEMPTY | libc::EEXIST));
    assert!(matches!(errno(fs::remove_file(w.path("d"))), libc::EISDIR | libc::EPERM));
    assert_eq!(errno(fs::remove_dir(w.path("f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(w.path("none"))), libc::ENOENT);
    fs::remove_dir(w.path("d/e")).unwrap();
    fs::remove_dir(w.path("d")).unwrap();
    assert_eq!(errno(fs::metadata(w.path("d/e"))), libc::ENOENT);
    assert_eq!(errno(fs::create_dir(w.path("f"))), libc::EEXIST);
}

#[test]
fn an_open_file_outlives_its_name() {
    let w = world!();
    let f = w.path("f");
    fs::write(&f, "still here").unwrap();
    let open = OpenOptions::new().read(true).write(true).open(&f).unwrap();
    fs::remove_file(&f).unwrap();
    assert!(!f.exists());
    open.write_all_at(b"STILL", 0).unwrap();
    let mut buf = [0; 10];
    open.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"STILL here");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    fs::write(&f, "another").unwrap();
    open.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"STILL here");
    assert_eq!(fs::read(&f).unwrap(), b"another");
    // The same when a rename takes the name.
    fs::write(w.path("g"), "g").unwrap();
    let open = File::open(&f).unwrap();
    fs::rename(w.path("g"), &f).unwrap();
    let mut text = String::new();
    (&open).read_to_string(&mut text).unwrap();
    assert_eq!(text, "another");
}

#[test]
fn symbolic_links_and_special_files() {
    let mut w = world!();
    fs::write(w.path("target"), "t").unwrap();
    symlink("target", w.path("link")).unwrap();
    symlink("loop", w.path("loop")).unwrap();
    let long = "x/".repeat(2000);
    symlink(&long, w.path("long")).unwrap();
    mknodat(CWD, w.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    // Closed at once: an open one would keep the mount busy.
    std::os::unix::net::UnixListener::bind(w.path("socket")).unwrap();
    for _ in 0..2 {
        assert_eq!(fs::read(w.path("link")).unwrap(), b"t");
        assert_eq!(fs::read_link(w.path("link")).unwrap(), OsStr::new("target"));
        assert_eq!(fs::symlink_metadata(w.path("link")).unwrap().len(), 6);
        assert_eq!(errno(File::open(w.path("loop"))), libc::ELOOP);
        assert_eq!(fs::read_link(w.path("long")).unwrap(), OsStr::new(&long));
        let fifo = fs::metadata(w.path("fifo")).unwrap();
        assert_eq!(fifo.mode() & libc::S_IFMT, libc::S_IFIFO);
        let socket = fs::metadata(w.path("socket")).unwrap();
        assert_eq!(socket.mode() & libc::S_IFMT, libc::S_IFSOCK);
        w.remount();
    }
}

#[test]
fn times_are_kept_to_the_nanosecond_and_move_when_they_must() {
    let mut w = world!();
    let f = w.path("f");
    fs::write(&f, "x").unwrap();
    let old = UNIX_EPOCH + Duration::new(981_173_106, 123_456_789);
    let ancient = UNIX_EPOCH - Duration::new(86_400, 500);
    for time in [old, ancient, UNIX_EPOCH - Duration::from_secs(7), UNIX_EPOCH] {
        File::options().write(true).open(&f).unwrap().set_modified(time).unwrap();
        assert_eq!(fs::metadata(&f).unwrap().modified().unwrap(), time);
        w.remount();
        assert_eq!(fs::metadata(&f).unwrap().modified().unwrap(), time);
    }
    let before = SystemTime::now() - Duration::from_millis(20);
    OpenOptions::new().append(true).open(&f).unwrap().write_all(b"y").unwrap();
    let m = fs::metadata(&f).unwrap();
    assert!(m.modified().unwrap() >= before, "a write moves mtime");
    assert!(m.ctime() >= before.duration_since(UNIX_EPOCH).unwrap().as_secs() as i64);
    let dir = fs::metadata(w.root()).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::write(w.path("g"), "").unwrap();
    let after = fs::metadata(w.root()).unwrap().modified().unwrap();
    assert!(after > dir, "a new name moves the directory's mtime");
    std::thread::sleep(Duration::from_millis(20));
    fs::remove_file(w.path("g")).unwrap();
    assert!(fs::metadata(w.root()).unwrap().modified().unwrap() > after);
    fs::set_permissions(&f, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::metadata(&f).unwrap().modified().unwrap(), m.modified().unwrap(), "chmod does not");
}

#[test]
fn listings_show_every_name_once() {
    let mut w = world!();
    fs::create_dir(w.path("d")).unwrap();
    let names: BTreeSet<String> = (0..3000)
        .map(|i| format!("{i:04}{}", "n".repeat(i % 200)))
        .chain([" ".into(), "\n".into(), "é\u{1}".into()])
        .collect();
    for (i, name) in names.iter().enumerate() {
        if i % 7 == 0 {
            fs::create_dir(w.path("d").join(name)).unwrap();
        } else {
            fs::write(w.path("d").join(name), name).unwrap();
        }
    }
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        for e in fs::read_dir(w.path("d")).unwrap() {
            let e = e.unwrap();
            let m = e.metadata().unwrap();
            let name = e.file_name().into_string().unwrap();
            assert_eq!(e.file_type().unwrap().is_dir(), m.is_dir());
            assert!(m.is_dir() || m.len() == name.len() as u64);
            assert!(seen.insert(name), "a name came twice");
        }
        assert_eq!(seen, names);
        w.remount();
    }
    // What is removed while listing may or may not come; the rest must, once.
    let mut seen = BTreeSet::new();
    for (i, e) in fs::read_dir(w.path("d")).unwrap().enumerate() {
        let e = e.unwrap();
        let name = e.file_name().into_string().unwrap();
        if i % 2 == 0 {
            if e.file_type().unwrap().is_dir() {
                fs::remove_dir(e.path()).unwrap()
            } else {
                fs::remove_file(e.path()).unwrap()
            }
        }
        assert!(seen.insert(name));
    }
    assert_eq!(seen, names);
    assert_eq!(fs::read_dir(w.path("d")).unwrap().count(), names.len() / 2);
}

/// Reads on from where the descriptor stands: names with the position behind each.
fn entries(dir: &File, most: usize) -> Vec<(String, u64)> {
    let mut buffer = Vec::with_capacity(if most < 100 { 512 } else { 16 << 10 });
    let mut raw = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    let mut all = Vec::new();
    while all.len() < most
        && let Some(entry) = raw.next()
    {
        let entry = entry.unwrap();
        all.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
    }
    all
}

#[test]
fn positions_in_a_directory_hold_over_rewinds_descriptors_and_remounts() {
    let mut w = world!();
    fs::create_dir(w.path("d")).unwrap();
    for i in 0..2000 {
        fs::write(w.path("d").join(format!("name-of-a-file-{i:04}")), "").unwrap();
    }
    let seek = |dir: &File, to: u64| rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(to)).unwrap();
    let dir = File::open(w.path("d")).unwrap();
    let all = entries(&dir, usize::MAX);
    assert_eq!(all.len(), 2002);
    let follows = |dir: &File, at: usize, wanted: Option<&(String, u64)>| {
        seek(dir, all[at].1);
        assert_eq!(entries(dir, 1).first(), wanted, "behind {:?}", all[at]);
    };
    // Read all, keep a late position, rewind and read, seek to the kept one.
    for at in [1990, 1, 77, 2001, 1000] {
        seek(&dir, 0);
        assert_eq!(entries(&dir, 30), all[..30]);
        follows(&dir, at, all.get(at + 1));
        follows(&File::open(w.path("d")).unwrap(), at, all.get(at + 1));
    }
    drop(dir);
    w.remount();
    let dir = File::open(w.path("d")).unwrap();
    for at in [1500, 2, 1999] {
        follows(&dir, at, all.get(at + 1));
    }
    fs::remove_file(w.path("d").join(&all[700].0)).unwrap();
    fs::rename(w.path("d").join(&all[701].0), w.path("moved")).unwrap();
    follows(&dir, 700, all.get(702));
    follows(&dir, 701, all.get(702));
    drop(dir);
    w.remount();
    follows(&File::open(w.path("d")).unwrap(), 700, all.get(702));
}

#[test]
fn setgid_bits_of_directories_and_of_members_stay() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become other users");
        return;
    }
    let Some(w) = World::with(Settings { allow_other: true, ..Settings::default() }) else { return };
    let mode = |name: &str| fs::metadata(w.path(name)).unwrap().mode() & 0o7777;
    fs::set_permissions(w.root(), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(w.path("d")).unwrap();
    fs::set_permissions(w.path("d"), Permissions::from_mode(0o2775)).unwrap();
    std::os::unix::fs::chown(w.path("d"), Some(71), None).unwrap();
    assert_eq!(mode("d"), 0o2775, "chown");
    std::os::unix::fs::chown(w.path("d"), None, Some(7000)).unwrap();
    assert_eq!(mode("d"), 0o2775, "chgrp");
    // As user 71, group 72, and with the group of the directory besides or not.
    for (groups, wanted) in [("--groups=7000", 0o2775), ("--clear-groups", 0o775)] {
        let script =
            format!("umask 0; use Fcntl; sysopen(F, 'f{wanted:o}', O_CREAT | O_WRONLY, 02775) or die");
        let status = Command::new("setpriv")
            .args(["--reuid=71", "--regid=72", groups, "perl", "-e", &script])
            .current_dir(w.path("d"))
            .status();
        let Ok(status) = status else {
            eprintln!("SKIPPED: no setpriv or no perl here");
            return;
        };
        assert!(status.success());
        assert_eq!(mode(&format!("d/f{wanted:o}")), wanted, "{groups}");
    }
}

#[test]
fn sparse_files_show_the_blocks_that_exist() {
    let mut w = world!();
    let blocks = |name: &str| fs::metadata(w.path(name)).unwrap().blocks();
    fs::write(w.path("dense"), vec![1; 100_000]).unwrap();
    assert_eq!(blocks("dense"), 196);
    let f = File::create(w.path("sparse")).unwrap();
    f.set_len(1 << 30).unwrap();
    assert_eq!(f.metadata().unwrap().blocks(), 0, "a GiB of nothing");
    // What the kernel keeps for a while has no blocks yet.
    let settle = |f: &File| {
        if super::common::kept() {
            f.sync_all().unwrap();
        }
    };
    f.write_all_at(b"x", 300 << 20).unwrap();
    settle(&f);
    assert_eq!(f.metadata().unwrap().blocks(), 32, "one block of 16 KiB");
    let cached = OpenOptions::new().read(true).write(true).open(w.path("sparse")).unwrap();
    cached.write_all_at(&[2; 100_000], 0).unwrap();
    settle(&cached);
    assert_eq!(cached.metadata().unwrap().blocks(), 8 * 32);
    f.set_len(200 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().blocks(), 7 * 32, "cut");
    f.set_len(1 << 40).unwrap();
    assert_eq!(f.metadata().unwrap().blocks(), 7 * 32, "extended again");
    let seek = OpenOptions::new().write(true).create(true).truncate(true).open(w.path("seek")).unwrap();
    seek.write_all_at(&[3; 1 << 20], 100 << 20).unwrap();
    settle(&seek);
    assert_eq!(blocks("seek"), 2048, "as dd seek=100 does it");
    w.clone_tree("sparse", "clone", false).unwrap();
    assert_eq!(blocks("clone"), 7 * 32);
    drop((f, cached, seek));
    w.remount();
    for (name, wanted) in [("dense", 196), ("sparse", 224), ("seek", 2048), ("clone", 224)] {
        assert_eq!(fs::metadata(w.path(name)).unwrap().blocks(), wanted, "{name} after a remount");
        let listed = fs::read_dir(w.root()).unwrap().map(Result::unwrap).find(|e| e.file_name() == name);
        assert_eq!(listed.unwrap().metadata().unwrap().blocks(), wanted, "{name} as listed");
    }
}

#[test]
fn names_have_the_usual_limits() {
    let w = world!();
    let long = "n".repeat(255);
    fs::write(w.path(&long), "x").unwrap();
    assert_eq!(fs::read(w.path(&long)).unwrap(), b"x");
    assert_eq!(errno(fs::write(w.path(&"n".repeat(256)), "x")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(w.path(&"n".repeat(256)))), libc::ENAMETOOLONG);
}

#[test]
fn statfs_tells_sizes() {
    let w = world!();
    let s = rustix::fs::statvfs(w.root()).unwrap();
    assert!(s.f_blocks > 0 && s.f_bavail <= s.f_bfree && s.f_bfree <= s.f_blocks);
    assert_eq!(s.f_namemax, 255);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(w.root().to_str().unwrap())).unwrap();
    assert!(line.contains(" fuse.pando "), "{line}");
}

#[test]
fn what_is_not_supported_says_so() {
    let w = world!();
    let f = w.path("f");
    fs::write(&f, "data").unwrap();
    let mut buf = [0; 8];
    assert_eq!(rustix::fs::getxattr(&f, "other.x", &mut buf).unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
    let open = OpenOptions::new().read(true).write(true).open(&f).unwrap();
    let collapsed = rustix::fs::fallocate(&open, FallocateFlags::COLLAPSE_RANGE, 0, 4);
    assert_eq!(collapsed.unwrap_err().raw_os_error(), libc::EOPNOTSUPP);
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(errno(rename2(&f, &w.path("g"), both)), libc::EINVAL);
    assert_eq!(fs::read(&f).unwrap(), b"data");
    open.sync_all().unwrap();
    open.sync_data().unwrap();
    File::open(w.root()).unwrap().sync_all().unwrap();
}

#[test]
fn modes_and_owners_decide_who_may() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become other users");
        return;
    }
    let Some(w) = World::with(Settings { allow_other: true, ..Settings::default() }) else { return };
    let as_nobody = |script: &str| {
        let status = Command::new("sh")
            .args(["-c", script])
            .current_dir("/")
            .env("M", w.root())
            .uid(65_534)
            .gid(65_534)
            .stderr(std::process::Stdio::null())
            .status();
        status.unwrap().success()
    };
    fs::set_permissions(w.root(), Permissions::from_mode(0o755)).unwrap();
    fs::write(w.path("private"), "p").unwrap();
    fs::set_permissions(w.path("private"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(w.path("open")).unwrap();
    fs::set_permissions(w.path("open"), Permissions::from_mode(0o1777)).unwrap();
    fs::write(w.path("open/roots"), "r").unwrap();
    assert!(!as_nobody("cat $M/private"), "a private file was read");
    assert!(!as_nobody("echo x > $M/new"), "a file was made in root's directory");
    assert!(as_nobody("umask 027; echo x > $M/open/own && mkdir $M/open/dir"));
    let own = fs::metadata(w.path("open/own")).unwrap();
    assert_eq!((own.uid(), own.gid(), own.mode() & 0o7777), (65_534, 65_534, 0o640));
    assert_eq!(fs::metadata(w.path("open/dir")).unwrap().mode() & 0o7777, 0o750);
    assert!(!as_nobody("rm -f $M/open/roots"), "the sticky bit was ignored");
    assert!(!as_nobody("chmod 777 $M/open/roots") && !as_nobody("chown nobody $M/open/roots"));
    assert!(as_nobody("chmod 600 $M/open/own && ! chown 0 $M/open/own"));

    // A write, a truncation and a change of owner by an ordinary user drop set-user-id.
    for script in ["echo y >> $M/open/s", ": > $M/open/s", "truncate -s 1 $M/open/s"] {
        fs::write(w.path("open/s"), "s").unwrap();
        std::os::unix::fs::chown(w.path("open/s"), Some(65_534), Some(65_534)).unwrap();
        fs::set_permissions(w.path("open/s"), Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(fs::metadata(w.path("open/s")).unwrap().mode() & 0o7777, 0o6777);
        assert!(as_nobody(script), "{script}");
        let mode = fs::metadata(w.path("open/s")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o777, "{script} left set-user-id alive");
    }
    fs::set_permissions(w.path("open/s"), Permissions::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(w.path("open/s"), Some(1), None).unwrap();
    assert_eq!(fs::metadata(w.path("open/s")).unwrap().mode() & 0o7777, 0o755);
}

/// As on ext4: a member of the group, by whatever of the caller's groups, keeps a set-group-id bit that is for no
/// execution, and whoever has CAP_FSETID keeps all bits, root or not. A truncating open went by the first group alone,
/// and a copy by root's user number alone.
#[test]
fn changes_of_content_drop_the_set_id_bits_that_a_write_drops() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become other users");
        return;
    }
    let Some(w) = World::with(Settings { allow_other: true, suid: true, ..Settings::default() }) else {
        return;
    };
    let member: fn() = || {
        let groups = [1234];
        // SAFETY: the list lives until the call returns. These calls change this thread alone.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 1, groups.as_ptr()), 0);
            libc::syscall(libc::SYS_setfsgid, 1000);
            libc::syscall(libc::SYS_setfsuid, 1000);
        }
    };
    let weak_root: fn() = || {
        let mut own = capabilities(None).unwrap();
        own.effective.remove(CapabilitySet::FSETID);
        set_capabilities(None, own).unwrap();
    };
    let strong_user: fn() = || {
        // SAFETY: they change this thread alone.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, 1000);
            libc::syscall(libc::SYS_setfsuid, 1000);
        }
        // The change of user took it.
        let mut own = capabilities(None).unwrap();
        assert!(!own.effective.contains(CapabilitySet::FSETID));
        own.effective.insert(CapabilitySet::FSETID);
        set_capabilities(None, own).unwrap();
    };
    let writes: fn(&World) = |w| {
        let file = OpenOptions::new().write(true).open(w.path("f")).unwrap();
        file.write_all_at(b"y", 0).unwrap();
    };
    let truncates: fn(&World) =
        |w| _ = OpenOptions::new().write(true).truncate(true).open(w.path("f")).unwrap();
    let copies: fn(&World) = |w| {
        let (from, to) = (File::open(w.path("from")), OpenOptions::new().write(true).open(w.path("f")));
        let copied = rustix::fs::copy_file_range(from.unwrap(), None, to.unwrap(), Some(&mut 2), 3);
        assert_eq!(copied, Ok(3));
    };
    let cuts: fn(&World) = |w| {
        OpenOptions::new().write(true).open(w.path("f")).unwrap().set_len(2).unwrap();
    };
    let allocates: fn(&World) = |w| {
        let file = OpenOptions::new().write(true).open(w.path("f")).unwrap();
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::ZERO_RANGE, 0, 4).unwrap();
    };
    fs::write(w.path("from"), "other").unwrap();
    for (mode, of_member, of_root) in
        [(0o2666, 0o2666, 0o666), (0o2676, 0o676, 0o676), (0o6666, 0o2666, 0o666)]
    {
        for (who, wanted) in [(member, of_member), (weak_root, of_root), (strong_user, mode)] {
            for (how, act) in [
                ("write", writes),
                ("truncate", truncates),
                ("copy", copies),
                ("cut", cuts),
                ("allocate", allocates),
            ] {
                fs::write(w.path("f"), "content").unwrap();
                std::os::unix::fs::chown(w.path("f"), Some(0), Some(1234)).unwrap();
                fs::set_permissions(w.path("f"), Permissions::from_mode(mode)).unwrap();
                std::thread::scope(|s| {
                    s.spawn(|| {
                        who();
                        act(&w);
                    });
                });
                let left = fs::metadata(w.path("f")).unwrap().mode() & 0o7777;
                assert_eq!(format!("{left:o}"), format!("{wanted:o}"), "{how}, {mode:o}");
            }
        }
    }
}

/// As on ext4: the rights of the writer count, not those of whoever has opened the file.
#[test]
fn set_id_bits_go_or_stay_with_the_writer_of_an_inherited_descriptor() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become other users");
        return;
    }
    for writeback in [true, false] {
        let settings = Settings { allow_other: true, suid: true, writeback, ..Settings::default() };
        let Some(w) = World::with(settings) else { return };
        // SAFETY: they change this thread alone.
        let as_user = || unsafe {
            libc::syscall(libc::SYS_setfsgid, 1000);
            libc::syscall(libc::SYS_setfsuid, 1000);
        };
        for flags in [0, libc::O_DIRECT] {
            for root_writes in [true, false] {
                fs::write(w.path("f"), "content").unwrap();
                fs::set_permissions(w.path("f"), Permissions::from_mode(0o666)).unwrap();
                let open = || {
                    OpenOptions::new().read(true).write(true).custom_flags(flags).open(w.path("f")).unwrap()
                };
                let write = |file: File| file.write_all_at(b"y", 0).unwrap();
                let in_thread = |act: &(dyn Fn() -> Option<File> + Sync)| {
                    std::thread::scope(|s| {
                        let user = s.spawn(|| {
                            as_user();
                            act()
                        });
                        user.join().unwrap()
                    })
                };
                let file = if root_writes { in_thread(&|| Some(open())).unwrap() } else { open() };
                fs::set_permissions(w.path("f"), Permissions::from_mode(0o6777)).unwrap();
                if root_writes {
                    write(file);
                } else {
                    in_thread(&|| {
                        write(file.try_clone().unwrap());
                        None
                    });
                }
                let left = fs::metadata(w.path("f")).unwrap().mode() & 0o7777;
                let wanted = if root_writes { 0o6777 } else { 0o777 };
                let what = format!("writeback {writeback}, flags {flags:o}, root writes: {root_writes}");
                assert_eq!(format!("{left:o}"), format!("{wanted:o}"), "{what}");
            }
        }
    }
}

#[test]
fn others_stay_outside_unless_let_in() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become other users");
        return;
    }
    let w = world!();
    fs::set_permissions(w.root(), Permissions::from_mode(0o777)).unwrap();
    let status = Command::new("ls").arg(w.root()).uid(65_534).gid(65_534).current_dir("/").output().unwrap();
    assert!(!status.status.success());
}

/// Root may do everything but run what nobody may run; git asks before it runs a hook, shells before they run a name.
#[test]
fn what_nobody_may_run_is_not_said_to_be_executable() {
    use rustix::fs::{Access, access};
    for default_permissions in [None, Some(true)] {
        let Some(w) = World::with(Settings { default_permissions, ..Settings::default() }) else { return };
        let may = |how: Access| access(w.path("f"), how).map_err(|e| e.raw_os_error());
        fs::write(w.path("f"), "#!/bin/sh\n").unwrap();
        for (mode, runs) in [(0o600, false), (0o610, true), (0o000, false), (0o001, true)] {
            fs::set_permissions(w.path("f"), Permissions::from_mode(mode)).unwrap();
            let runs = if runs { Ok(()) } else { Err(libc::EACCES) };
            assert_eq!(may(Access::EXEC_OK), runs, "{mode:o}");
            assert_eq!(may(Access::EXEC_OK | Access::READ_OK), runs, "{mode:o}");
            assert_eq!(may(Access::READ_OK | Access::WRITE_OK), Ok(()), "{mode:o}");
        }
        fs::create_dir(w.path("d")).unwrap();
        fs::set_permissions(w.path("d"), Permissions::from_mode(0o000)).unwrap();
        assert_eq!(access(w.path("d"), Access::EXEC_OK), Ok(()));
        assert_eq!(access(w.path("none"), Access::EXISTS), Err(rustix::io::Errno::NOENT));
    }
}

#[test]
fn programs_run_from_it() {
    let w = world!();
    fs::copy("/bin/sh", w.path("sh")).unwrap();
    let output = output_of_written(Command::new(w.path("sh")).args(["-c", "echo grove"]));
    assert_eq!(output.stdout, b"grove\n");
    let script = w.path("script");
    let mut f = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&script).unwrap();
    f.write_all(b"#!/bin/sh\necho $0\n").unwrap();
    drop(f);
    let output = output_of_written(&mut Command::new(&script));
    assert_eq!(output.stdout, format!("{}\n", script.display()).into_bytes());
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mut w = world!();
    fs::write(w.path("f"), "x").unwrap();
    w.settings.read_only = true;
    w.remount();
    assert_eq!(fs::read(w.path("f")).unwrap(), b"x");
    assert_eq!(errno(fs::write(w.path("g"), "")), libc::EROFS);
    assert_eq!(errno(fs::remove_file(w.path("f"))), libc::EROFS);
    assert!(w.clone_tree("f", "g", false).is_err());
    w.settings.read_only = false;
    w.remount();
    fs::write(w.path("g"), "").unwrap();
}

#[test]
fn inode_numbers_last() {
    let mut w = world!();
    fs::create_dir(w.path("d")).unwrap();
    for i in 0..100 {
        fs::write(w.path(&format!("d/{i}")), "").unwrap();
    }
    w.clone_tree("d", "e", false).unwrap();
    let numbers = |w: &World| -> Vec<u64> {
        ["d", "e"]
            .iter()
            .flat_map(|d| (0..100).map(move |i| format!("{d}/{i}")).chain([(*d).to_owned()]))
            .map(|p| fs::metadata(w.path(&p)).unwrap().ino())
            .collect()
    };
    let before = numbers(&w);
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), before.len(), "two files share a number");
    w.remount();
    assert_eq!(numbers(&w), before);
}
