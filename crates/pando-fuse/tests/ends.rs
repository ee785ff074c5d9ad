//! What ends with whom: mounts with their servers, work with those who asked for it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use pando_db::device::{DeviceCall, HookedDevice, MemDevice};
use pando_fs::{DiffOptions, ModeChange, TreeChange};
use pando_fuse::{Kind, Settings, tool};
use parking_lot::{Condvar, Mutex};

use crate::common::World;

/// How long is waited for what is sure to come.
const LONG: Duration = Duration::from_secs(20);

/// Unmounts, when it is dropped, what a test has mounted.
struct Unmounts<'a>(&'a std::path::Path);

impl Drop for Unmounts<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn run(program: &str, args: &[&str], dir: &std::path::Path) {
    let status = Command::new(program).args(args).arg(dir).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

#[test]
fn what_is_mounted_over_a_mount_stays_when_its_server_ends() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount over a mount");
        return;
    }
    let Some(mut world) = World::new() else { return };
    let other = tempfile::tempdir().unwrap();
    // The mount is taken away although a file is open, and something else is mounted there.
    let dir = world.root().to_owned();
    fs::write(dir.join("f"), "x").unwrap();
    let file = File::open(dir.join("f")).unwrap();
    run("umount", &["-l"], &dir);
    run("mount", &["-t", "tmpfs", "none"], &dir);
    let _mounted = Unmounts(&dir);
    fs::write(dir.join("mine"), "mine").unwrap();
    let (done, told) = mpsc::channel();
    let ends = thread::spawn(move || {
        world.end();
        done.send(()).unwrap();
        world
    });
    let ended = told.recv_timeout(LONG);
    assert!(fs::read(dir.join("mine")).is_ok_and(|mine| mine == b"mine"), "what was mounted there is gone");
    drop(file);
    assert!(ended.is_ok(), "the server waits for whoever has a file open in a mount that is gone");
    let _world = ends.join().unwrap();
    drop(other);
}

/// A device in memory that holds up a read, counts reads, and knows which threads have read.
#[derive(Default)]
struct ReadGate {
    state: Mutex<ReadGateState>,
    moved: Condvar,
}

#[derive(Default)]
struct ReadGateState {
    /// Reads are counted, and that with this number is held up, if there is any.
    counts: bool,
    held_at: Option<u64>,
    reads: u64,
    threads: BTreeSet<String>,
}

impl ReadGate {
    fn device() -> (Arc<HookedDevice>, Arc<ReadGate>) {
        let gate = Arc::new(ReadGate::default());
        let own = gate.clone();
        let device = HookedDevice::new(Arc::new(MemDevice::new(256 << 20)), false, move |call| {
            if let DeviceCall::Read(_) = call {
                own.read();
            }
            Ok(())
        });
        (Arc::new(device), gate)
    }

    fn read(&self) {
        let mut state = self.state.lock();
        if state.counts {
            state.reads += 1;
            state.threads.insert(thread::current().name().unwrap_or_default().to_owned());
            self.moved.notify_all();
            self.moved.wait_while(&mut state, |state| state.held_at.is_some_and(|at| state.reads >= at));
        }
    }

    fn count(&self, held_at: Option<u64>) {
        *self.state.lock() = ReadGateState { counts: true, held_at, ..ReadGateState::default() };
    }

    fn release(&self) {
        self.state.lock().held_at = None;
        self.moved.notify_all();
    }

    fn reads(&self) -> u64 {
        self.state.lock().reads
    }
}

/// Lets go of the device whatever happens, so that a failure does not hang.
struct Releases<'a>(&'a ReadGate);

impl Drop for Releases<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Bytes that do not compress, others for each seed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

/// The kernel waits for the answer to a request also in the name of a process that was killed. So no request lasts
/// longer than a turn, and what nobody waits for any more ends.
#[test]
fn comparing_equal_files_answers_in_time_and_ends_with_whoever_asked() {
    const FILE_BYTES: usize = 40 << 20;
    let (device, gate) = ReadGate::device();
    let Some(mut w) = World::on(device, Settings::default()) else { return };
    let data = noise(7, FILE_BYTES);
    // Written apart, so they share nothing, and far more than is kept in memory.
    for name in ["a", "b"] {
        fs::write(w.path(name), &data).unwrap();
    }
    w.remount();
    let options = DiffOptions { ranges: true, no_renames: false };
    let (a, b) = (w.path("a"), w.path("b"));
    gate.count(Some(60));
    thread::scope(|s| {
        let _release = Releases(&gate);
        let (tell, told) = mpsc::channel();
        s.spawn(move || _ = tell.send(tool::diff(&a, &b, options, &|| true)));
        let begun = told.recv_timeout(LONG).expect("no answer as long as nothing differs").unwrap();
        let at = gate.reads();
        assert!(at >= 60, "the device was not held up: {at} reads");
        let releases = w.requests(Kind::Release);
        drop(begun);
        let begin = Instant::now();
        while w.requests(Kind::Release) == releases {
            assert!(begin.elapsed() < LONG, "the file is not closed");
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(Duration::from_millis(20));
    });
    let mut last = (gate.reads(), Instant::now());
    while last.1.elapsed() < Duration::from_millis(300) {
        thread::sleep(Duration::from_millis(10));
        if gate.reads() != last.0 {
            last = (gate.reads(), Instant::now());
        }
    }
    let few = last.0;
    assert!(few < 100, "{few} reads for a difference that nobody waits for");
    // With somebody who waits, all is read, and no content that differs is found.
    gate.count(None);
    let found = tool::diff(&w.path("a"), &w.path("b"), options, &|| true).unwrap();
    assert!(found.map(Result::unwrap).all(|change| change.ranges.is_empty()));
    assert!(gate.reads() > 4 * few, "{} reads for all, {few} until it was given up", gate.reads());
}

/// Threads that wait for the mount have no descriptors of the image: what they would read fails.
#[test]
fn threads_that_reach_into_the_mount_do_not_read_the_image() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root changes trees at once");
        return;
    }
    const HOLES: usize = 40;
    let (device, gate) = ReadGate::device();
    let Some(mut w) = World::on(device, Settings::default()) else { return };
    fs::create_dir(w.path("t")).unwrap();
    for i in 0..HOLES {
        let file = File::create(w.path(&format!("t/{i}"))).unwrap();
        (0..200u64).for_each(|block| {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&noise(block, 16 << 10), block * (48 << 10)).unwrap();
        });
        file.sync_all().unwrap();
    }
    w.remount();
    // Copies share what they are copies of, and what of that exists is not read for them.
    let copies: Vec<File> = (0..HOLES)
        .map(|i| {
            let from = File::open(w.path(&format!("t/{i}"))).unwrap();
            let to = File::create(w.path(&format!("t/copy{i}"))).unwrap();
            let len = from.metadata().unwrap().len();
            let copied = rustix::fs::copy_file_range(&from, None, &to, None, len as usize).unwrap();
            assert_eq!(copied as u64, len);
            to
        })
        .collect();
    // More than is kept in memory, so that what is asked for now has to be read.
    for i in 0..HOLES {
        assert!(fs::read(w.path(&format!("t/{i}"))).is_ok_and(|data| data.len() > 9_000_000));
    }
    gate.count(None);
    let change = TreeChange { mode: ModeChange::parse("go=", 0), ..TreeChange::default() };
    tool::change_tree(&File::open(w.path("t")).unwrap(), &change).unwrap().expect("at once");
    drop(copies);
    let readers = gate.state.lock().threads.clone();
    println!("{readers:?} have read");
    assert!(!readers.contains("pando-own-mount"), "{readers:?}");
}
