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
    process::{Command, Stdio},
    sync::{
        atomic::{AtomicBool, AtomicU8, Ordering},
        mpsc::RecvTimeoutError,
    },
    time::{Duration, Instant},
};

use super::common::{World, mapped::Map, output_of_written};
use pando_fuse::{Kind, Settings};
use rustix::fs::{FallocateFlags, fallocate};

macro_rules! world {
    ($settings:expr) => {
        match World::with($settings) {
            Some(world) => world,
            None => return,
        }
    };
}

/// How long a program may take that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
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

    /// Writes `byte` over the first `blocks` of `size` bytes of `file`, all at once, and waits for all.
    fn fill(&self, file: &File, blocks: usize, size: usize, byte: u8) {
        const PWRITE: u16 = 1;
        let data = vec![byte; size];
        let mut requests: Vec<Iocb> = (0..blocks)
            .map(|i| Iocb {
                opcode: PWRITE,
                fd: file.as_raw_fd() as u32,
                buf: data.as_ptr() as u64,
                bytes: size as u64,
                offset: (i * size) as i64,
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
        assert!(events.iter().all(|e| e[2] == size as u64), "{events:?}");
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
    beside_readers(&w, "aio", 250, |file, blocks, byte| aio.fill(file, blocks, BLOCK, byte));
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

/// The kernel drops pages once, before the first request of a call; behind it newer ones do, if they wait for it.
#[test]
fn readers_that_come_and_go_during_one_long_direct_write_leave_no_old_pages() {
    const BYTES: usize = 24 << 20;
    const PAGE: usize = 4096;
    let w = world!(Settings::default());
    let (path, aio) = (w.path("long"), Aio::new());
    fs::write(&path, vec![0; BYTES]).unwrap();
    for round in 1..=40 {
        let done = AtomicBool::new(false);
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let read = std::thread::scope(|s| {
            let (path, done) = (&path, &done);
            // One, and most of the time it has nothing open: what somebody has open is dropped anyhow.
            let reader = s.spawn(move || {
                let (mut b, mut reads) = ([0; 1], 0usize);
                // On a busy machine the thread may begin behind the write only.
                while reads == 0 || !done.load(Ordering::Acquire) {
                    let page = reads * 1237 % (BYTES / PAGE);
                    File::open(path).unwrap().read_exact_at(&mut b, (page * PAGE) as u64).unwrap();
                    assert!(b[0] == round || b[0] == round - 1);
                    reads += 1;
                    std::thread::sleep(Duration::from_micros(100));
                }
                reads
            });
            let end = Done(done);
            match round % 4 {
                0 => assert_eq!(file.write_at(&vec![round; BYTES], 0).unwrap(), BYTES),
                _ => aio.fill(&file, 1, BYTES, round),
            }
            drop(end);
            reader.join().unwrap()
        });
        drop(file);
        assert!(read > 0);
        let all = fs::read(&path).unwrap();
        let old = all.chunks(PAGE).filter(|page| page.iter().any(|b| *b != round)).count();
        assert_eq!(old, 0, "pages that stay old, in round {round}, of {read} that were read");
    }
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

/// A program of root that starts another one drops a shared mapping while it holds a lock of its process, and waits
/// for the write of its pages. The server asked, for a file with set-id bits, for what needs that lock: both waited for
/// ever, and so did all that met one of them.
#[test]
fn an_exec_with_a_mapped_set_id_file_waits_for_nothing_that_waits_for_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let w = world!(Settings { suid: true, ..Settings::default() });
    // Whoever waits for such a process waits for ever too, and so may this test.
    let (goes_on, told) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        loop {
            match told.recv_timeout(3 * PATIENCE) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("the exec of root with a mapped set-id file has not ended");
                    std::process::abort();
                }
            }
        }
    });
    // It hung in some of the times.
    for mode in [0o4755, 0o2755, 0o6755, 0o2745].repeat(5) {
        goes_on.send(()).unwrap();
        let p = w.path("p");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&p).unwrap();
        file.set_len(1 << 20).unwrap();
        file.sync_all().unwrap();
        fs::set_permissions(&p, Permissions::from_mode(mode)).unwrap();
        let map = Map::new(&file, 1 << 20, true);
        map.set_in_pages(0, 65);
        drop(file);
        let ended = map.ends_by_exec(PATIENCE);
        assert!(ended, "the exec of root with a file of mode {mode:o} has not ended");
        assert_eq!(fs::metadata(&p).unwrap().mode() & 0o7777, mode, "root keeps them");
        assert_eq!(fs::read(&p).unwrap()[4096], 65);
    }
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
        let out = output_of_written(Command::new(&p).arg("-u").uid(65_534).gid(65_534));
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
        let out = output_of_written(Command::new(&p).arg("-u").uid(65_534).gid(65_534));
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

/// Bytes of a slot: not a part of a page, so that slots of all writers lie in most pages.
const SLOT: usize = 500;

/// Who changes the slots of a file, each its own, a count.
const WRITERS: usize = 4;

/// The slots of the writer `first`.
fn slots(first: usize) -> impl Iterator<Item = usize> {
    (first..BLOCK / SLOT).step_by(WRITERS).map(|slot| slot * SLOT)
}

/// Fills slots of the writer `first` again and again until `end`, by `store`, and reads them back by `load`. Gives what
/// they have to hold.
fn fill_slots(
    first: usize,
    end: Instant,
    store: impl Fn(usize, &[u8]),
    load: impl Fn(usize) -> Vec<u8>,
) -> Vec<(usize, u8)> {
    let slots: Vec<usize> = slots(first).collect();
    let mut held = vec![0u8; slots.len()];
    let mut random = first as u64 + 1;
    while Instant::now() < end {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let i = (random >> 33) as usize % slots.len();
        if random >> 62 == 0 {
            assert!(
                load(slots[i]) == [held[i]; SLOT],
                "writer {first}: its own bytes at {} are gone",
                slots[i]
            );
        } else {
            held[i] = held[i].wrapping_add(1);
            store(slots[i], &[held[i]; SLOT]);
        }
    }
    slots.into_iter().zip(held).collect()
}

/// Where the process that has the file mapped finds it, and how long it runs, in ms.
const MAPS: &str = "PANDO_TEST_MAPS";

/// Is that process. (It is another one, because memory of the server must not wait for the server's answers.)
#[test]
fn mapper() {
    let Ok(told) = std::env::var(MAPS) else { return };
    let (millis, path) = told.split_once(' ').unwrap();
    let mapped = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: what others change in it is expected.
    let map = memmap2::MmapOptions::new().len(BLOCK).map_raw(&mapped).unwrap();
    // SAFETY: the slot lies in the mapping; others write to other slots.
    let at = |at: usize| unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().add(at), SLOT) };
    fs::write(format!("{path}.mapped"), "").unwrap();
    let end = Instant::now() + Duration::from_millis(millis.parse().unwrap());
    let held = fill_slots(1, end, |slot, bytes| at(slot).copy_from_slice(bytes), |slot| at(slot).to_vec());
    let bytes: Vec<u8> = held.into_iter().map(|(_, byte)| byte).collect();
    fs::write(format!("{path}.held"), bytes).unwrap();
}

/// One program writes to a file past the cache, another copies to it, a third has it mapped, and a fourth zeroes what it
/// has written, each to bytes of its own in the same pages. The kernel drops the pages of the first two before, and may
/// have them back, and dirty, before the new bytes are stored; it zeroes pages of the fourth when that is stored.
#[test]
fn what_is_stored_past_a_mapping_is_not_taken_back_by_its_pages() {
    const MILLIS: u64 = 1500;
    for writeback in [true, false] {
        let mut w = world!(Settings { writeback, ..Settings::default() });
        fs::write(w.path("f"), [0; BLOCK]).unwrap();
        w.remount();
        let path = w.path("f");
        let direct = &OpenOptions::new().write(true).open(&path).unwrap();
        let copied = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let source =
            OpenOptions::new().read(true).write(true).create_new(true).open(w.path("source")).unwrap();
        let mapper = format!("{}::mapper", module_path!().split_once("::").unwrap().1);
        let mut mapper = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &mapper])
            .env(MAPS, format!("{MILLIS} {}", path.display()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !w.path("f.mapped").exists() {
            assert!(mapper.try_wait().unwrap().is_none(), "it has not come to the file");
            std::thread::sleep(Duration::from_millis(5));
        }
        let reader = File::open(&path).unwrap();
        let read = |at: usize| {
            let mut bytes = vec![0; SLOT];
            reader.read_exact_at(&mut bytes, at as u64).unwrap();
            bytes
        };
        let end = Instant::now() + Duration::from_millis(MILLIS);
        let [first, third, fourth] = std::thread::scope(|s| {
            let store = |at: usize, bytes: &[u8]| direct.write_all_at(bytes, at as u64).unwrap();
            let first = s.spawn(move || fill_slots(0, end, store, read));
            let fourth = s.spawn(move || {
                let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                let own: Vec<usize> = slots(3).collect();
                for at in own.iter().copied().cycle().take_while(|_| Instant::now() < end) {
                    store(at, &[0xaa; SLOT]);
                    fallocate(direct, zero, at as u64, SLOT as u64).unwrap();
                    assert!(read(at) == [0; SLOT], "what was zeroed at {at} is back");
                }
                own.into_iter().map(|at| (at, 0)).collect()
            });
            // What the mapping has changed is written out all the time, as beside clones and syncs.
            s.spawn(|| {
                while Instant::now() < end {
                    let write = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
                    let done = unsafe { libc::sync_file_range(copied.as_raw_fd(), 0, 0, write) };
                    assert_eq!(done, 0, "{}", io::Error::last_os_error());
                }
            });
            let third = s.spawn(|| {
                let store = |at: usize, bytes: &[u8]| {
                    source.write_all_at(bytes, 0).unwrap();
                    let (mut from, mut to) = (0, at as u64);
                    let copied =
                        rustix::fs::copy_file_range(&source, Some(&mut from), &copied, Some(&mut to), SLOT);
                    assert_eq!(copied, Ok(SLOT));
                };
                fill_slots(2, end, store, read)
            });
            [first, third, fourth].map(|thread| thread.join().unwrap())
        });
        assert!(mapper.wait().unwrap().success());
        let held = fs::read(w.path("f.held")).unwrap();
        let second = slots(1).zip(held).collect();
        copied.sync_all().unwrap();
        let stored = w.fs().read(pando_fs::FileHandle(0), copied.metadata().unwrap().ino(), 0, BLOCK as u32);
        let stored = stored.unwrap();
        for (writer, slots) in [first, second, third, fourth].iter().enumerate() {
            for (at, byte) in slots {
                let is = &stored[*at..at + SLOT];
                let other = is.iter().filter(|b| *b != byte).count();
                assert_eq!(
                    other, 0,
                    "bytes that are not {byte}: writer {writer} at {at}, writeback {writeback}"
                );
            }
        }
    }
}
