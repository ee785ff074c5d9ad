//! Programs that keep the kernel's lock on a file or a directory, for as long as they like: they write from memory, or
//! list into memory, that does not come. What the server does unasked for others, and its end, does not wait for them.
//!
//! The memory is a mapping of a file on another mount, whose device is held up.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File},
    io::{BufRead, Write},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::fs::{FileExt, MetadataExt},
    },
    thread,
    time::{Duration, Instant},
};

use memmap2::{MmapMut, MmapOptions};
use pando_fs::{NewSnapshot, StoredPolicy};
use pando_fuse::{asked::Asked, tool};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::{
    beside::{Beside, FILE_BYTES, Holds, PATIENCE, Release, noise},
    common::{World, kept},
};

/// Files of the mount whose device is held up, so large that their end does not come with their open.
const LARGE_BYTES: usize = 40 * FILE_BYTES;

/// A mount whose files make memory that does not come.
fn slow_memory(files: usize) -> Option<(Beside, Vec<MmapMut>)> {
    let mut b = Beside::new(0)?;
    let data: Vec<u8> = (0..40).flat_map(noise).collect();
    for i in 0..files {
        fs::write(b.path(&format!("cold/{i}")), &data).unwrap();
    }
    b.world.remount();
    let memory = |i| {
        let file = File::open(b.path(&format!("cold/{i}"))).unwrap();
        // SAFETY: nobody changes the file.
        unsafe { MmapOptions::new().len(LARGE_BYTES).map_copy(&file) }.unwrap()
    };
    let memory = (0..files).map(memory).collect();
    Some((b, memory))
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Threads of this process with this name that wait in the kernel, a count.
fn waiting(name: &str) -> usize {
    let waits = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) D "))
    };
    fs::read_dir("/proc/self/task").unwrap().flatten().filter(waits).count()
}

/// The kernel is told of a time by setting it, for which it waits for whoever writes to the file.
#[test]
fn times_are_told_beside_files_that_are_kept_locked() {
    if !rustix::process::geteuid().is_root() || !kept() {
        eprintln!("SKIPPED: without a way into the mount, or a cache of what is written, no time is told");
        return;
    }
    const LOCKED: usize = 3;
    let Some((b, memory)) = slow_memory(LOCKED) else { return };
    let mut world = World::new().unwrap();
    let data = vec![1; 2 * FILE_BYTES];
    for name in ["other", "l0", "l1", "l2"] {
        fs::write(world.path(name), &data).unwrap();
    }
    // The kernel tells of the last close of a file when it likes, and until then what is written to it is kept.
    world.remount();
    let root = world.root().to_owned();
    let open = |name: &str| File::options().write(true).open(root.join(name)).unwrap();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        let locked: Vec<File> = (0..LOCKED).map(|i| open(&format!("l{i}"))).collect();
        // The kernel is not told of the times of these until somebody asks. It has them if the clock has not moved on.
        thread::sleep(Duration::from_millis(50));
        locked.iter().for_each(|file| file.write_all_at(b"direct", 5).unwrap());
        b.gate.hold(Holds::Reads);
        for (file, memory) in locked.into_iter().zip(&memory) {
            // The mount is over when the memory comes.
            s.spawn(move || file.write_all_at(&memory[LARGE_BYTES - FILE_BYTES..], 100).unwrap_err());
        }
        b.wait_until_held(LOCKED);
        let long_ago = Timespec { tv_sec: 1000, tv_nsec: 0 };
        // Asked for its times, the server sets them, which waits.
        until("no thread waits for a lock", || {
            (0..LOCKED).for_each(|i| _ = fs::metadata(root.join(format!("l{i}"))).unwrap());
            waiting("pando-times") > 0
        });
        for i in 0..20 {
            fs::metadata(root.join(format!("l{}", i % LOCKED))).unwrap();
            let times = Timestamps { last_access: long_ago, last_modification: long_ago };
            rustix::fs::utimensat(CWD, root.join("other"), &times, AtFlags::empty()).unwrap();
            open("other").write_all_at(b"direct", 100).unwrap();
            let mtime = || fs::metadata(root.join("other")).unwrap().mtime();
            until("the time of a write is not told", || mtime() != 1000);
            assert!(mtime() > 1_000_000_000);
        }
        b.is_done("the mount does not end beside a file that is kept locked", || drop(world));
    });
}

/// The kernel is told of a new name, for which it waits for whoever lists the directory.
#[test]
fn policies_are_carried_out_beside_directories_that_are_kept_locked() {
    let Some((b, mut memory)) = slow_memory(1) else { return };
    let world = World::new().unwrap();
    for name in ["locked", "other"] {
        fs::create_dir(world.path(name)).unwrap();
    }
    let create = Asked::Create(NewSnapshot { name: Some("first".into()), ..NewSnapshot::default() });
    tool::snapshot(&world.path("locked"), create).unwrap();
    let dir = File::open(world.path("locked/.snapshots")).unwrap();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Reads);
        let memory = &mut memory[0][LARGE_BYTES - FILE_BYTES..];
        s.spawn(move || {
            // SAFETY: the memory is ours alone, and as long as it is said to be.
            unsafe {
                libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), memory.as_mut_ptr(), memory.len())
            };
        });
        b.wait_until_held(1);
        let has = |name: &str, count| {
            let dir = world.fs().resolve(name.as_ref()).unwrap();
            world.fs().snapshots(dir.ino).unwrap().len() == count
        };
        let policy = StoredPolicy { every_secs: 3600, ..StoredPolicy::default() };
        for (name, count) in [("locked", 2), ("other", 1)] {
            tool::snapshot(&world.path(name), Asked::SetPolicy(Some(policy))).unwrap();
            until("a policy is not carried out", || has(name, count));
        }
        b.is_done("the mount does not end beside a directory that is kept locked", || drop(world));
    });
}

/// Where the process finds the mount that permits all opens there.
const LISTENS: &str = "PANDO_TEST_LISTENS";

/// Is that process: as a scanner of files does, it looks where the data of each is before it permits the open.
#[test]
fn listener() {
    let Some(dir) = std::env::var_os(LISTENS) else { return };
    let path = std::ffi::CString::new(dir.as_encoded_bytes()).unwrap();
    // SAFETY: no memory is passed but the path, which ends with a zero.
    let listener = unsafe {
        let listener = libc::fanotify_init(libc::FAN_CLASS_CONTENT, libc::O_RDONLY as u32);
        let marks = libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT;
        match libc::fanotify_mark(listener, marks, libc::FAN_OPEN_PERM, libc::AT_FDCWD, path.as_ptr()) {
            0 => std::os::fd::OwnedFd::from_raw_fd(listener),
            _ => return println!("skipped: {}", std::io::Error::last_os_error()),
        }
    };
    println!("listening");
    let header = size_of::<libc::fanotify_event_metadata>();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = rustix::io::read(&listener, &mut buffer) {
        for event in buffer[..n].chunks_exact(header) {
            let fd = i32::from_ne_bytes(event[16..20].try_into().unwrap());
            // SAFETY: no memory is passed; the descriptor came with the event, for us.
            let fd = unsafe {
                libc::lseek(fd, 0, libc::SEEK_DATA);
                std::os::fd::OwnedFd::from_raw_fd(fd)
            };
            let allow = [fd.as_raw_fd().to_ne_bytes(), libc::FAN_ALLOW.to_ne_bytes()].concat();
            rustix::io::write(&listener, &allow).unwrap();
        }
    }
}

/// A process that does not outlive its test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Each open waits for it, those of the server in its own mount too.
#[test]
fn who_permits_opens_may_ask_where_the_data_is() {
    let Some(world) = World::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("not root: skipped");
    }
    let path = world.path("f");
    fs::write(&path, vec![7; FILE_BYTES]).unwrap();
    let listener = format!("{}::listener", module_path!().split_once("::").unwrap().1);
    let mut listener = Killed(
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &listener, "--nocapture"])
            .env(LISTENS, world.root())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let told = std::io::BufReader::new(listener.0.stdout.take().unwrap());
    let first =
        told.lines().map(Result::unwrap).find(|line| line.contains("listening") || line.contains("skipped"));
    if first.is_none_or(|line| line.contains("skipped")) {
        return println!("this kernel asks nobody: skipped");
    }
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all(b"dirty").unwrap();
    let begin = Instant::now();
    let seen = fs::read(&path).unwrap();
    assert!(seen[..5] == *b"dirty" && seen[5..] == [7; FILE_BYTES - 5]);
    // All that was asked by the server is answered soon.
    drop(file);
    drop(listener);
    println!("permitted after {:?}", begin.elapsed());
    assert!(begin.elapsed() < PATIENCE);
}
