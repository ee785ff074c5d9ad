//! What is in memory is answered while others wait for the device: no request stands behind another's device I/O.
//!
//! Each test holds calls of the device up, sees that a request waits for one of them, and demands that files in memory
//! are opened, read, examined and listed meanwhile. Nothing here is timed: the device is let go only afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread::{self, Scope},
    time::{Duration, Instant},
};

use super::common::World;
use pando_db::device::{DeviceCall, HookedDevice, MemDevice};
use pando_fs::{ModeChange, SetTime, Time, TreeChange};
use pando_fuse::{
    Kind, Settings,
    tool::{self, EntryPath},
};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, StatxFlags, statx};

/// Longest that anything may take that does not wait for the device. A machine may be slow; a request that stands
/// behind another's I/O waits for ever.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Which calls of the device are held up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Nothing,
    Reads,
    /// All that writes or makes durable.
    Writes,
    Flushes,
    /// None, but reads end in a panic.
    Panics,
}

/// Holds calls of a device up.
pub(super) struct Gate {
    holds: Mutex<Holds>,
    released: Condvar,
    /// Calls that are held up now.
    held: AtomicUsize,
    /// Reads that have passed.
    reads: AtomicUsize,
}

impl Gate {
    fn pass(&self, call: &DeviceCall) {
        let concerns = |holds: Holds| match holds {
            Holds::Nothing | Holds::Panics => false,
            Holds::Reads => matches!(call, DeviceCall::Read(_)),
            Holds::Writes => !matches!(call, DeviceCall::Read(_)),
            Holds::Flushes => call.makes_durable(),
        };
        let mut holds = self.holds.lock();
        assert!(*holds != Holds::Panics || !matches!(call, DeviceCall::Read(_)), "on purpose");
        if concerns(*holds) {
            self.held.fetch_add(1, SeqCst);
            self.released.wait_while(&mut holds, |holds| concerns(*holds));
            self.held.fetch_sub(1, SeqCst);
        }
        if matches!(call, DeviceCall::Read(_)) {
            self.reads.fetch_add(1, SeqCst);
        }
    }

    pub(super) fn hold(&self, holds: Holds) {
        *self.holds.lock() = holds;
        self.released.notify_all();
    }
}

/// Lets the device go whatever happens, so that a failure does not hang.
pub(super) struct Release<'a>(pub(super) &'a Gate);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.hold(Holds::Nothing);
    }
}

/// Bytes of each warm and each cold file.
pub(super) const FILE_BYTES: usize = 100_000;

/// A mount with warm files in memory, cold files that are only on the device, and a gate before that.
pub(super) struct Beside {
    pub(super) world: World,
    pub(super) gate: Arc<Gate>,
}

impl Beside {
    pub(super) fn new(cold: usize) -> Option<Self> {
        let gate = Arc::new(Gate {
            holds: Mutex::new(Holds::Nothing),
            released: Condvar::new(),
            held: 0.into(),
            reads: 0.into(),
        });
        let to = gate.clone();
        let below = Arc::new(MemDevice::new(512 << 20));
        let device = HookedDevice::new(below, true, move |call| {
            to.pass(call);
            Ok(())
        });
        let mut world = World::on(Arc::new(device), Settings::default())?;
        for dir in ["warm", "cold", "made", "busy", "many"] {
            fs::create_dir(world.path(dir)).unwrap();
        }
        for i in 0..4 {
            fs::write(world.path(&format!("warm/{i}")), content(i)).unwrap();
        }
        for i in 0..cold {
            fs::create_dir(world.path(&format!("cold/{i}"))).unwrap();
            fs::write(world.path(&format!("cold/{i}/file")), noise(i)).unwrap();
        }
        for i in 0..LONG_NAMES {
            fs::create_dir(world.path(&long_name(i))).unwrap();
        }
        world.remount();
        let this = Beside { world, gate };
        this.use_warm_files();
        Some(this)
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.world.path(name)
    }

    /// Opens, reads, examines and lists what is in memory; by requests, not from the kernel's caches alone.
    fn use_warm_files(&self) {
        let requests = |kind| self.world.requests(kind);
        let before = [Kind::Open, Kind::Statx, Kind::Read].map(requests);
        for i in 0..4 {
            let mut file = File::open(self.path(&format!("warm/{i}"))).unwrap();
            // Without the kernel's pages the server has to answer.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut data = Vec::new();
            file.read_to_end(&mut data).unwrap();
            assert!(data == content(i), "file {i} has other bytes");
            let asked =
                statx(file.as_fd(), "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL);
            assert_eq!(asked.unwrap().stx_size, FILE_BYTES as u64);
        }
        assert_eq!(fs::read_dir(self.path("warm")).unwrap().count(), 4);
        let after = [Kind::Open, Kind::Statx, Kind::Read].map(requests);
        for (after, before) in after.iter().zip(before) {
            assert!(*after >= before + 4, "the server was not asked");
        }
    }

    /// Demands that the warm files can be used now, while the device is held.
    fn warm_files_are_served(&self) {
        self.is_done("a warm file was not served while others wait for the device", || self.use_warm_files());
    }

    /// Demands that this can be done now; otherwise it is `wrong`.
    pub(super) fn is_done(&self, wrong: &'static str, work: impl FnOnce() + Send) {
        let (answered, answer) = mpsc::channel();
        thread::scope(|s| {
            let _answered = Answered(&self.gate, &answer, wrong);
            s.spawn(move || {
                work();
                let _ = answered.send(());
            });
        });
    }

    /// Waits until at least so many calls of the device are held up, and then some more, so that those that they
    /// hold up have come as far as they can.
    pub(super) fn wait_until_held(&self, calls: usize) {
        let begin = Instant::now();
        while self.gate.held.load(SeqCst) < calls {
            assert!(begin.elapsed() < PATIENCE, "nobody waits for the device");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(100));
    }

    /// Reads a cold file, which waits for the device, from a thread of its own.
    fn read_cold<'s>(&'s self, s: &'s Scope<'s, '_>, i: usize, done: &'s AtomicUsize) {
        s.spawn(move || {
            let mut file = File::open(self.path(&format!("cold/{i}/file"))).unwrap();
            let mut data = vec![0; FILE_BYTES];
            file.read_exact(&mut data).unwrap();
            assert!(data == noise(i), "cold file {i} has other bytes");
            done.fetch_add(1, SeqCst);
        });
    }
}

/// Waits for an answer when it is dropped, and lets the device go and fails if none comes in that time.
struct Answered<'a>(&'a Gate, &'a mpsc::Receiver<()>, &'static str);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        if self.1.recv_timeout(PATIENCE).is_err() {
            self.0.hold(Holds::Nothing);
            assert!(thread::panicking(), "{}", self.2);
        }
    }
}

/// Directories with long names below `many`: so many that what is read of the store for one of them does not bring the
/// others.
const LONG_NAMES: usize = 1500;

fn long_name(i: usize) -> String {
    let name: String = noise(i).iter().take(120).map(|byte| format!("{byte:02x}")).collect();
    format!("many/{name}")
}

fn content(i: usize) -> Vec<u8> {
    vec![i as u8 + 1; FILE_BYTES]
}

/// Bytes that do not compress.
pub(super) fn noise(i: usize) -> Vec<u8> {
    let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..FILE_BYTES).map(|_| next()).collect()
}

/// Calls `meanwhile` while so many readers wait for the device, and lets them end.
fn with_cold_readers(b: &Beside, readers: usize, meanwhile: impl FnOnce(&AtomicUsize)) {
    let done = AtomicUsize::new(0);
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Reads);
        for i in 0..readers {
            b.read_cold(s, i, &done);
        }
        b.wait_until_held(1);
        meanwhile(&done);
    });
    assert_eq!(done.load(SeqCst), readers);
}

/// While so many readers wait for the device.
fn beside_cold_readers(readers: usize) {
    let Some(b) = Beside::new(readers) else { return };
    with_cold_readers(&b, readers, |done| {
        for _ in 0..10 {
            b.warm_files_are_served();
        }
        assert_eq!(done.load(SeqCst), 0, "a cold reader did not wait for the device");
    });
}

#[test]
fn warm_files_are_served_beside_a_cold_reader() {
    beside_cold_readers(1);
}

#[test]
fn warm_files_are_served_beside_many_cold_readers() {
    beside_cold_readers(24);
}

#[test]
fn warm_files_are_served_beside_lookups_that_miss() {
    let Some(b) = Beside::new(0) else { return };
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Reads);
        for i in 0..8 {
            let path = b.path(&long_name(i * 150));
            s.spawn(move || fs::metadata(path).unwrap());
        }
        b.wait_until_held(1);
        b.warm_files_are_served();
    });
}

#[test]
fn warm_files_are_served_beside_a_writer_that_waits_for_room() {
    beside_a_writer_that_waits(|_, _| ());
}

/// The server keeps count of pages that are being stored and of what is written past them.
#[test]
fn warm_files_are_served_beside_a_direct_write_while_pages_of_another_file_wait_for_room() {
    beside_a_writer_that_waits(|b, writer| {
        // By inode number, as that may decide who is in whose way.
        let other = (0..OTHERS).map(|i| b.path(&format!("made/other{i}")));
        let other = other.filter_map(|path| File::options().read(true).write(true).open(path).ok());
        let is_near = |file: &File| file.metadata().is_ok_and(|m| m.ino() % OTHERS == writer % OTHERS);
        let other = other.into_iter().find(is_near).expect("inode numbers follow each other");
        rustix::fs::fcntl_setfl(&other, rustix::fs::OFlags::DIRECT).unwrap();
        other.write_all_at(&[1; 4096], 0).unwrap();
    });
}

/// What is to be removed waits for the write, and is on the thread that reads requests.
#[test]
fn warm_files_are_served_beside_an_rmdir_that_waits_for_a_writer() {
    beside_a_writer_that_waits(|b, _| {
        let refused = fs::remove_dir(b.path("busy/sub")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(39), "{refused}"); // ENOTEMPTY
    });
}

/// Files that are made beside the writer, a count: with as many inode numbers in a row.
const OTHERS: u64 = 64;

/// `meanwhile` is called beside, with `busy/sub` being the directory of what is written, and its inode number.
fn beside_a_writer_that_waits(meanwhile: fn(&Beside, u64)) {
    let Some(b) = Beside::new(0) else { return };
    /// More than memory and log take without the device.
    const BYTES: usize = 200 << 20;
    let written = AtomicUsize::new(0);
    // Never read before, so that a read changes their access times.
    for i in 0..4 {
        fs::write(b.path(&format!("made/{i}")), content(i)).unwrap();
    }
    (0..OTHERS).for_each(|i| _ = File::create(b.path(&format!("made/other{i}"))).unwrap());
    let (tell, told) = mpsc::channel();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Writes);
        fs::create_dir(b.path("busy/sub")).unwrap();
        let written = &written;
        let b = &b;
        s.spawn(move || {
            let file = File::options().read(true).write(true).create_new(true).open(b.path("busy/sub/big"));
            let mut file = file.unwrap();
            tell.send(file.metadata().unwrap().ino()).unwrap();
            let data = noise(7).repeat(11);
            while written.load(SeqCst) < BYTES {
                file.write_all(&data[..1 << 20]).unwrap();
                written.fetch_add(1 << 20, SeqCst);
            }
        });
        // Until it stands still.
        let begin = Instant::now();
        let mut last = (usize::MAX, Instant::now());
        while last.1.elapsed() < Duration::from_millis(500) {
            assert!(begin.elapsed() < 3 * PATIENCE);
            let now = written.load(SeqCst);
            if now != last.0 {
                last = (now, Instant::now());
            }
            thread::sleep(Duration::from_millis(5));
        }
        assert!(last.0 < BYTES, "the writer did not have to wait");
        let writer = told.recv().unwrap();
        s.spawn(move || meanwhile(b, writer));
        thread::sleep(Duration::from_millis(200));
        for _ in 0..10 {
            b.warm_files_are_served();
        }
        b.is_done("files just written were not read beside a writer that waits for room", || {
            for i in 0..4 {
                assert!(fs::read(b.path(&format!("made/{i}"))).unwrap() == content(i));
            }
        });
        assert_eq!(written.load(SeqCst), last.0, "the writer went on");
    });
}

/// While so many calls of fsync wait, and those who create files beside them.
fn beside_an_fsync_storm(holds: Holds) {
    let Some(b) = Beside::new(0) else { return };
    const CALLERS: usize = 100;
    let done = AtomicUsize::new(0);
    let files: Vec<File> =
        (0..CALLERS).map(|i| File::create(b.path(&format!("busy/{i}"))).unwrap()).collect();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(holds);
        for file in &files {
            let done = &done;
            s.spawn(move || {
                file.write_all_at(b"delivered", 0).unwrap();
                file.sync_all().unwrap();
                done.fetch_add(1, SeqCst);
            });
        }
        b.wait_until_held(1);
        for _ in 0..10 {
            b.warm_files_are_served();
        }
        if holds == Holds::Flushes {
            // The kernel has to drop pages before this is answered, which is not done by the thread that reads.
            let mut kept = File::open(b.path("warm/0")).unwrap();
            b.is_done("a write to a file that is read stood behind calls of fsync", || {
                let file = File::options().write(true).open(b.path("warm/0")).unwrap();
                file.write_all_at(&content(0)[..100], 0).unwrap();
                kept.read_exact(&mut [0; 100]).unwrap();
            });
        }
        assert_eq!(done.load(SeqCst), 0, "an fsync did not wait for the device");
    });
    assert_eq!(done.load(SeqCst), CALLERS);
}

#[test]
fn warm_files_are_served_beside_an_fsync_storm() {
    beside_an_fsync_storm(Holds::Flushes);
    beside_an_fsync_storm(Holds::Writes);
}

#[test]
fn warm_files_are_served_beside_a_clone_and_those_who_wait_for_it() {
    let Some(b) = Beside::new(0) else { return };
    let source = long_name(700);
    let entry = |dir: &str, name: &str| EntryPath::new(&b.path(dir), name.as_ref()).unwrap();
    fs::create_dir(b.path("made/before")).unwrap();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Reads);
        let (from, to) = (entry("many", &source["many/".len()..]), entry("made", "copy"));
        s.spawn(move || tool::clone(&from, &to, false).unwrap());
        b.wait_until_held(1);
        // These may have to wait for the clone. Others not for them.
        for i in 0..4 {
            let (looked_for, made) = (b.path(&format!("made/{i}")), b.path(&format!("made/before/{i}")));
            s.spawn(move || fs::metadata(looked_for).unwrap_err());
            s.spawn(move || fs::write(made, b"new").unwrap());
        }
        thread::sleep(Duration::from_millis(100));
        b.warm_files_are_served();
    });
    assert!(b.path("made/copy").is_dir());
}

#[test]
fn warm_files_are_served_beside_copies_and_removals() {
    let Some(b) = Beside::new(30) else { return };
    let remove = |path: &Path| fs::remove_dir_all(path).unwrap();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Reads);
        s.spawn(|| fs::copy(b.path("cold/3/file"), b.path("made/file")).unwrap());
        s.spawn(|| remove(&b.path("cold/23")));
        b.wait_until_held(1);
        b.warm_files_are_served();
    });
    assert_eq!(fs::read(b.path("made/file")).unwrap(), noise(3));
    assert!(!b.path("cold/23").exists());
}

#[test]
fn more_readers_than_threads_can_wait_are_all_answered_in_the_end() {
    const READERS: usize = 150;
    let Some(b) = Beside::new(READERS) else { return };
    with_cold_readers(&b, READERS, |_| ());
    b.use_warm_files();
}

#[test]
fn a_panic_in_a_request_that_waits_fails_that_request_only() {
    let Some(b) = Beside::new(2) else { return };
    for i in 0..2 {
        b.gate.hold(Holds::Panics);
        let failed = File::open(b.path(&format!("cold/{i}/file"))).and_then(|mut f| f.read(&mut [0; 100]));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
        b.use_warm_files();
        b.gate.hold(Holds::Nothing);
        assert!(fs::read(b.path(&format!("cold/{i}/file"))).unwrap() == noise(i));
    }
}

#[test]
fn the_mount_ends_when_the_last_request_that_waits_is_answered() {
    let Some(b) = Beside::new(3) else { return };
    let gate = b.gate.clone();
    let _release = Release(&gate);
    b.gate.hold(Holds::Reads);
    let readers: Vec<_> = (0..3)
        .map(|i| {
            let path = b.path(&format!("cold/{i}/file"));
            thread::spawn(move || fs::read(path))
        })
        .collect();
    b.wait_until_held(1);
    let Beside { world, .. } = b;
    let ended = Arc::new(AtomicUsize::new(0));
    let (late, to) = (gate.clone(), ended.clone());
    let release = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        assert_eq!(to.load(SeqCst), 0, "the mount was over while a request waited for the device");
        late.hold(Holds::Nothing);
    });
    // By force, as files are open.
    drop(world);
    ended.store(1, SeqCst);
    release.join().unwrap();
    for reader in readers {
        assert!(reader.join().unwrap().is_err(), "an answer came through a mount that was over");
    }
}

#[test]
fn a_stream_of_small_files_stays_with_one_thread() {
    let Some(b) = Beside::new(0) else { return };
    const FILES: usize = 3000;
    let before = b.world.handovers();
    for i in 0..FILES {
        fs::write(b.path(&format!("made/{i}")), b"a file of a few bytes").unwrap();
    }
    for i in 0..FILES {
        assert_eq!(fs::read(b.path(&format!("made/{i}"))).unwrap().len(), 21);
    }
    let handovers = b.world.handovers() - before;
    // The reservation of space, and writers that were slowed down.
    assert!(handovers < FILES as u64 / 100, "{handovers} handovers");
}

#[test]
fn one_who_waits_for_the_device_alone_wakes_no_other_thread() {
    const COLD: usize = 40;
    let Some(b) = Beside::new(COLD) else { return };
    let (before, reads) = (b.world.handovers(), b.gate.reads.load(SeqCst));
    // Kept open, as nobody waits for RELEASE: it could come while the next one waits.
    let mut open = Vec::new();
    for i in 0..COLD {
        let file = File::open(b.path(&format!("cold/{i}/file"))).unwrap();
        // Otherwise the kernel asks for more at the same time.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut data = [0; 4];
        file.read_exact_at(&mut data, 50_000).unwrap();
        assert_eq!(data, noise(i)[50_000..50_004]);
        open.push(file);
    }
    assert!(b.gate.reads.load(SeqCst) - reads >= COLD, "the device was not asked");
    let handovers = b.world.handovers() - before;
    assert!(handovers < COLD as u64 / 4, "{handovers} handovers for {COLD} reads");
}

#[test]
fn one_who_syncs_alone_wakes_no_other_thread() {
    const SYNCS: u64 = 60;
    let Some(b) = Beside::new(0) else { return };
    let mut file = File::create(b.path("made/log")).unwrap();
    let mut sync = || {
        file.write_all(b"a line\n").unwrap();
        file.sync_all().unwrap();
    };
    // From the first one on there is a thread that could read requests meanwhile.
    for _ in 0..10 {
        sync();
    }
    let (handovers, workers) = (b.world.handovers(), b.world.answered_by_workers());
    for _ in 0..SYNCS {
        sync();
    }
    let (handovers, workers) = (b.world.handovers() - handovers, b.world.answered_by_workers() - workers);
    assert!(handovers < SYNCS / 4, "{handovers} handovers for {SYNCS} syncs");
    assert!(workers < SYNCS / 4, "{workers} of {SYNCS} syncs were answered by other threads");
}

#[test]
fn who_syncs_while_others_make_requests_is_served_by_other_threads() {
    let Some(b) = Beside::new(0) else { return };
    let file = File::create(b.path("busy/file")).unwrap();
    let sync = || {
        file.write_all_at(b"delivered", 0).unwrap();
        file.sync_all().unwrap();
    };
    for _ in 0..10 {
        sync();
    }
    let before = b.world.answered_by_workers();
    thread::scope(|s| {
        let _release = Release(&b.gate);
        b.gate.hold(Holds::Flushes);
        s.spawn(sync);
        b.wait_until_held(1);
        // This one finds another thread reading; from then on syncs have one of their own.
        b.warm_files_are_served();
    });
    for _ in 0..10 {
        sync();
    }
    let workers = b.world.answered_by_workers() - before;
    // Over io_uring each request has a thread.
    assert!(
        workers >= 10 || super::common::over_ring(),
        "{workers} of 10 syncs were answered by other threads"
    );
}

/// A program that writes from memory which does not come keeps the kernel's lock on the file for as long as it likes.
/// Nobody else waits for that: changes of the tree return, and take no thread with them.
#[test]
#[allow(unsafe_code)]
fn changes_of_a_tree_do_not_wait_for_a_file_that_is_kept_locked() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root changes trees at once");
        return;
    }
    let Some(mut b) = Beside::new(0) else { return };
    // So large that its end does not come with its open.
    const LARGE_BYTES: usize = 40 * FILE_BYTES;
    fs::write(b.path("cold/large"), (0..40).flat_map(noise).collect::<Vec<u8>>()).unwrap();
    b.world.remount();
    let world = World::new().unwrap();
    fs::create_dir_all(world.path("t/d")).unwrap();
    for name in ["t/locked", "t/d/other"] {
        fs::write(world.path(name), vec![1; 2 * FILE_BYTES]).unwrap();
    }
    let cold = File::open(b.path("cold/large")).unwrap();
    // SAFETY: nobody changes the file.
    let memory = unsafe { memmap2::Mmap::map(&cold) }.unwrap();
    let change = |mode| {
        let change = TreeChange { mode: ModeChange::parse(mode, 0), ..TreeChange::default() };
        tool::change_tree(&File::open(world.path("t")).unwrap(), &change).unwrap().expect("at once");
        fs::metadata(world.path("t/d/other")).unwrap().permissions().mode() & 0o777
    };
    thread::scope(|s| {
        let _release = Release(&b.gate);
        let file = File::options().write(true).open(world.path("t/locked")).unwrap();
        file.write_all_at(&[2; 10], 5).unwrap();
        b.gate.hold(Holds::Reads);
        s.spawn(move || file.write_all_at(&memory[LARGE_BYTES - FILE_BYTES..], 100).unwrap());
        b.wait_until_held(1);
        // More than there are threads for what does not wait.
        b.is_done("a change of a tree waited for a locked file", || {
            thread::scope(|s| (0..20).for_each(|_| _ = s.spawn(|| assert_eq!(change("go="), 0o600))));
        });
        b.is_done("nothing is made durable beside a locked file", || {
            File::open(world.path("t/d/other")).unwrap().sync_all().unwrap();
            rustix::fs::syncfs(File::open(world.path("")).unwrap()).unwrap();
        });
        assert_eq!(change("g=r,o="), 0o640);
        let long_ago = SetTime::At(Time { secs: 1000, nanos: 0 });
        let times = TreeChange { mtime: Some(long_ago), ..TreeChange::default() };
        tool::change_tree(&File::open(world.path("t")).unwrap(), &times).unwrap().expect("at once");
    });
    // What was written later is not said to be older.
    let written = || fs::metadata(world.path("t/locked")).unwrap().mtime();
    for _ in 0..20 {
        assert!(written() > 1_000_000_000, "{}", written());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::metadata(world.path("t/d/other")).unwrap().mtime(), 1000);
    assert_eq!(fs::metadata(world.path("t/locked")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(change("g="), 0o600);
}

/// A program that reads a file by its name, while another replaces it by renaming as fast as it can, finds it each time.
#[test]
fn a_name_that_is_renamed_over_all_the_time_can_be_opened_each_time() {
    const OPENS: usize = 6000;
    let Some(w) = World::new() else { return };
    let content = |i: usize| format!("{i:08}").repeat(10).into_bytes();
    fs::write(w.path("f"), content(0)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (failed, replaced) = thread::scope(|s| {
        let replacer = s.spawn(|| {
            let mut i = 0;
            while !done.load(SeqCst) {
                i += 1;
                fs::write(w.path("new"), content(i)).unwrap();
                fs::rename(w.path("new"), w.path("f")).unwrap();
            }
            i
        });
        let read = |_: usize| {
            let read = fs::read(w.path("f"))?;
            assert!(read.len() == 80 && read.chunks(8).all(|part| part == &read[..8]), "torn: {read:?}");
            Ok::<_, std::io::Error>(())
        };
        let failed: Vec<_> = (0..OPENS).filter_map(|i| read(i).err()).map(|e| e.to_string()).collect();
        done.store(true, SeqCst);
        (failed, replacer.join().unwrap())
    });
    assert!(
        failed.is_empty(),
        "{} of {OPENS} opens failed beside {replaced} renames: {}",
        failed.len(),
        failed[0]
    );
}
