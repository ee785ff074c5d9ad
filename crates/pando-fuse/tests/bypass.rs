//! Writes that bypass the page cache, and what the kernel keeps of files that the server changes
//! itself: no stale page, no stale mode, no name that is taken and absent at once.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
    time::{Duration, Instant},
};

use super::common::World;
use pando_fuse::{Kind, Settings};

macro_rules! world {
    ($settings:expr) => {
        match World::with($settings) {
            Some(world) => world,
            None => return,
        }
    };
}

/// Bytes of one direct write: many, so that a reader has time to fetch old pages while it is under way.
const BLOCK: usize = 128 << 10;

/// Asynchronous I/O of the kernel's own kind.
struct Aio(libc::c_ulong);

/// `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

impl Aio {
    fn new() -> Aio {
        let mut context: libc::c_ulong = 0;
        let done = unsafe { libc::syscall(libc::SYS_io_setup, 64, &raw mut context) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        Aio(context)
    }

    /// Writes `byte` over the blocks `blocks` of `file`, all at once, and waits for all.
    fn fill(&self, file: &File, blocks: usize, byte: u8) {
        const PWRITE: u16 = 1;
        let data = vec![byte; BLOCK];
        let mut requests: Vec<Iocb> = (0..blocks)
            .map(|i| Iocb {
                opcode: PWRITE,
                fd: file.as_raw_fd() as u32,
                buf: data.as_ptr() as u64,
                bytes: BLOCK as u64,
                offset: (i * BLOCK) as i64,
                ..Iocb::default()
            })
            .collect();
        let list: Vec<*mut Iocb> = requests.iter_mut().map(|r| r as *mut Iocb).collect();
        let mut submitted = 0;
        while submitted < blocks {
            let rest = &list[submitted..];
            let n = unsafe { libc::syscall(libc::SYS_io_submit, self.0, rest.len(), rest.as_ptr()) };
            match usize::try_from(n) {
                Ok(n) => submitted += n,
                // The kernel counts free places for each CPU, so that there may seem to be too few.
                Err(_) => assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::WouldBlock),
            }
        }
        let mut events = vec![[0u64; 4]; blocks];
        let mut seen = 0;
        let begin = Instant::now();
        while seen < blocks {
            assert!(begin.elapsed() < Duration::from_secs(20), "{seen} of {blocks} writes have ended");
            // A signal ends the call early.
            let (rest, second) = (&mut events[seen..], libc::timespec { tv_sec: 1, tv_nsec: 0 });
            let (n, to) = (rest.len(), rest.as_mut_ptr());
            let n = unsafe { libc::syscall(libc::SYS_io_getevents, self.0, n, n, to, &raw const second) };
            match usize::try_from(n) {
                Ok(n) => seen += n,
                Err(_) => assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::Interrupted),
            }
        }
        assert!(events.iter().all(|e| e[2] == BLOCK as u64), "{events:?}");
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Ends the readers, also when a write fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Direct writes by `write` beside readers through the page cache; after each round every reader
/// must see what was written.
fn beside_readers(w: &World, name: &str, rounds: u8, mut write: impl FnMut(&File, usize, u8)) {
    const BLOCKS: usize = 16;
    let path = w.path(name);
    fs::write(&path, vec![0; BLOCKS * BLOCK]).unwrap();
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let done = AtomicBool::new(false);
    let floor = AtomicU8::new(0);
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (path, done, floor) = (&path, &done, &floor);
                s.spawn(move || {
                    let file = File::open(path).unwrap();
                    let (mut stale, mut at) = (0u64, 0);
                    while !done.load(Ordering::Acquire) {
                        let least = floor.load(Ordering::Acquire);
                        let mut b = [0; 1];
                        file.read_exact_at(&mut b, (at % BLOCKS * BLOCK) as u64).unwrap();
                        stale += u64::from(b[0] < least);
                        at += 7;
                    }
                    stale
                })
            })
            .collect();
        let end = Done(&done);
        for round in 1..=rounds {
            write(&direct, BLOCKS, round);
            floor.store(round, Ordering::Release);
        }
        // Nothing is under way any more: what is old now stays so for ever.
        let all = fs::read(&path).unwrap();
        let old = all.chunks(BLOCK).filter(|b| b[0] != rounds).count();
        drop(end);
        let stale: u64 = readers.into_iter().map(|r| r.join().unwrap()).sum();
        assert_eq!((old, stale), (0, 0), "{name}: blocks that stay old, and reads of old ones");
    });
}

#[test]
fn asynchronous_direct_writes_through_read_write_opens_leave_no_old_pages() {
    let w = world!(Settings::default());
    let aio = Aio::new();
    beside_readers(&w, "aio", 250, |file, blocks, byte| aio.fill(file, blocks, byte));
}

#[test]
fn direct_writes_through_read_write_opens_leave_no_old_pages() {
    let w = world!(Settings::default());
    beside_readers(&w, "plain", 200, |file, blocks, byte| {
        for i in 0..blocks {
            file.write_all_at(&[byte; BLOCK], (i * BLOCK) as u64).unwrap();
        }
    });
    // The flag can be switched on after the open.
    beside_readers(&w, "switched", 60, |file, blocks, byte| {
        let path = w.path("switched");
        let both = OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert_eq!(unsafe { libc::fcntl(both.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) }, 0);
        let _ = file;
        both.write_all_at(&vec![byte; blocks * BLOCK], 0).unwrap();
    });
}

const OWNER: u32 = 1001;
const OTHER: u32 = 1002;

/// Runs a shell script as the other user.
fn as_other(dir: &Path, script: &str) {
    let out =
        Command::new("sh").args(["-ec", script]).current_dir(dir).uid(OTHER).gid(OTHER).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn set_id_bits_that_a_write_by_another_drops_are_gone_for_the_kernel_too() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let settings = Settings { allow_other: true, suid: true, ..Settings::default() };
    let w = world!(settings);
    fs::set_permissions(w.root(), Permissions::from_mode(0o777)).unwrap();
    let kept = [
        "echo x >> p",
        ": > p",
        "truncate -s 3 p",
        "printf x | dd of=p conv=notrunc status=none",
        "printf x | dd of=p oflag=direct conv=notrunc status=none",
        "dd if=/dev/zero of=p bs=4096 count=1 oflag=sync conv=notrunc status=none",
        "exec 3<>p; echo x >&3",
        "echo 12 > q; cp q p; rm q",
        "chmod u-x,o-x p 2>/dev/null || echo x >> p",
    ];
    let program = fs::read("/usr/bin/id").unwrap();
    for script in kept {
        let p = w.path("p");
        fs::write(&p, &program).unwrap();
        std::os::unix::fs::chown(&p, Some(OWNER), Some(OWNER)).unwrap();
        fs::set_permissions(&p, Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(&p), 0o6777);
        as_other(w.root(), script);
        // The kernel judges by the mode that it keeps, which stat(2) would renew: so it is run first, by a program that
        // root has put back, which changes no mode.
        OpenOptions::new().write(true).open(&p).unwrap().write_all_at(&program, 0).unwrap();
        let out = Command::new(&p).arg("-u").uid(65_534).gid(65_534).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "65534", "run after {script}");
        assert_eq!(mode(&p) & 0o6000, 0, "after {script}");
        fs::remove_file(&p).unwrap();
    }
    // And what runs then runs as who started it.
    let p = w.path("p");
    fs::copy("/usr/bin/id", &p).unwrap();
    std::os::unix::fs::chown(&p, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(&p, Permissions::from_mode(0o6777)).unwrap();
    let run = || {
        let out = Command::new(&p).arg("-u").uid(65_534).gid(65_534).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(run().trim(), OWNER.to_string(), "the mount honours the bits");
    as_other(w.root(), "echo x >> p");
    assert_eq!(run().trim(), "65534");
    // A change of owner.
    fs::set_permissions(&p, Permissions::from_mode(0o6777)).unwrap();
    std::os::unix::fs::chown(&p, Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(mode(&p) & 0o6000, 0);
    // A descriptor that another opened, written by root, and one of root's written after.
    fs::set_permissions(&p, Permissions::from_mode(0o6777)).unwrap();
    OpenOptions::new().append(true).open(&p).unwrap().write_at(b"x", 0).unwrap();
    assert_eq!(mode(&p) & 0o6000, 0o6000, "root keeps them");
}

/// One thread clones onto a name until it may, the other makes and removes a file of that name until a call of `make`
/// says that it met the clone.
fn beside_clones(w: &World, name: &str, make: impl Fn(&Path) -> bool) {
    fs::write(w.path("source"), "from the source").unwrap();
    let path = w.path(name);
    for _ in 0..400 {
        let cloned = AtomicBool::new(false);
        let go = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                go.wait();
                while w.clone_tree("source", name, false).is_err() {}
                cloned.store(true, Ordering::Release);
            });
            go.wait();
            let begin = Instant::now();
            while !make(&path) {
                assert!(begin.elapsed() < Duration::from_secs(20), "no clone came");
                assert!(!cloned.load(Ordering::Acquire), "what the clone made is gone");
                fs::remove_file(&path).unwrap();
            }
        });
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn creating_beside_a_clone_of_that_name_opens_what_the_clone_made() {
    let w = world!(Settings::default());
    beside_clones(&w, "target", |path| {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut text = String::new();
        file.unwrap_or_else(|e| panic!("to create: {e}")).read_to_string(&mut text).unwrap();
        assert!(["", "from the source"].contains(&&text[..]), "{text}");
        !text.is_empty()
    });
}

#[test]
fn an_exclusive_create_beside_a_clone_of_that_name_fails_or_comes_first() {
    let w = world!(Settings::default());
    beside_clones(&w, "target", |path| {
        match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Ok(mut file) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, "", "both were first");
                false
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EEXIST));
                true
            }
        }
    });
}

#[test]
fn a_listing_with_attributes_fills_the_room_that_the_kernel_offers() {
    let mut w = world!(Settings::default());
    const FILES: usize = 2000;
    fs::create_dir(w.path("d")).unwrap();
    for i in 0..FILES {
        File::create(w.path(&format!("d/{i:05}"))).unwrap();
    }
    w.remount();
    let before = w.requests(Kind::Readdir);
    let mut total = 0;
    for entry in fs::read_dir(w.path("d")).unwrap() {
        total += entry.unwrap().metadata().map(|_| 1).unwrap();
    }
    let requests = w.requests(Kind::Readdir) - before;
    assert_eq!(total, FILES);
    assert!(requests <= 20, "{requests} requests for {FILES} entries");
}
