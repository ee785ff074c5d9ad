//! Writes that must be durable when they are answered: whatever was acknowledged before `kill -9`
//! is there after it, however the file was opened.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::common::Bench;

/// How one writer writes.
struct Way {
    name: &'static str,
    /// `O_*` flags of the open.
    open: i32,
    /// `RWF_*` flags of each write.
    each: i32,
    /// Bytes of a record.
    size: usize,
    /// The file was written with zeros before.
    preallocated: bool,
}

const fn way(name: &'static str, open: i32, each: i32, size: usize, preallocated: bool) -> Way {
    Way { name, open, each, size, preallocated }
}

use libc::{O_APPEND, O_DIRECT, O_DSYNC, O_RDWR, O_SYNC, O_WRONLY, RWF_DSYNC, RWF_SYNC};

const WAYS: [Way; 13] = [
    way("wo-sync", O_WRONLY | O_SYNC, 0, 100, false),
    way("wo-dsync", O_WRONLY | O_DSYNC, 0, 5_000, false),
    way("wo-append-sync", O_WRONLY | O_APPEND | O_SYNC, 0, 333, false),
    way("wo-append-dsync", O_WRONLY | O_APPEND | O_DSYNC, 0, 40_000, false),
    way("wo-rwf-dsync", O_WRONLY, RWF_DSYNC, 100, false),
    way("wo-rwf-sync", O_WRONLY | O_APPEND, RWF_SYNC, 70, false),
    way("wo-preallocated", O_WRONLY | O_DSYNC, 0, 4096, true),
    way("rw-sync", O_RDWR | O_SYNC, 0, 100, false),
    way("rw-append-dsync", O_RDWR | O_APPEND | O_DSYNC, 0, 5_000, false),
    way("rw-rwf-dsync", O_RDWR, RWF_DSYNC, 700, false),
    way("rw-preallocated", O_RDWR | O_SYNC, 0, 8192, true),
    way("direct-dsync", O_RDWR | O_DIRECT | O_DSYNC, 0, 4096, false),
    way("direct-rwf-preallocated", O_RDWR | O_DIRECT, RWF_DSYNC, 4096, true),
];

/// Records that a preallocated file has room for; more are not written.
const ROOM: u64 = 2000;

fn record(way: &Way, i: u64) -> Vec<u8> {
    (0..way.size).map(|at| (i as usize * 31 + at * 7 + 1) as u8 | 1).collect()
}

fn put(file: &File, way: &Way, i: u64) -> io::Result<()> {
    let bytes = record(way, i);
    let piece = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let at = i * way.size as u64;
    // SAFETY: the vector names `bytes`, which outlives the call.
    match unsafe { libc::pwritev2(file.as_raw_fd(), &piece, 1, at as i64, way.each) } {
        n if n == bytes.len() as isize => Ok(()),
        n if n >= 0 => Err(io::Error::other("short write")),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes record after record until the mount is gone; counts those that were acknowledged, and itself once it writes.
fn write_until_killed(dir: &Path, way: &Way, acknowledged: &AtomicU64, begun: &AtomicU64) {
    let access = way.open & libc::O_ACCMODE;
    let file = OpenOptions::new()
        .read(access == O_RDWR)
        .write(true)
        .create(true)
        .custom_flags(way.open & !libc::O_ACCMODE)
        .open(dir.join(way.name))
        .unwrap();
    begun.fetch_add(1, Ordering::Release);
    for i in 0.. {
        if way.preallocated && i == ROOM || put(&file, way, i).is_err() {
            return;
        }
        acknowledged.store(i + 1, Ordering::Release);
    }
}

#[test]
fn what_a_syncing_write_acknowledged_is_there_after_kill_9() {
    let Some(b) = Bench::mounted() else { return };
    acknowledged_is_there(b, "");
}

#[test]
fn the_same_without_the_write_back_cache_of_the_kernel() {
    let Some(b) = Bench::mounted() else { return };
    b.umount();
    b.ok(&["mount", "--log-file", "log", "-o", "writeback=off", "a.img", "m"]);
    acknowledged_is_there(b, "writeback=off");
}

fn acknowledged_is_there(b: Bench, options: &str) {
    for round in 0..4u64 {
        let dir = b.path(&format!("m/{round}"));
        fs::create_dir(&dir).unwrap();
        for way in WAYS.iter().filter(|w| w.preallocated) {
            fs::write(dir.join(way.name), vec![0; way.size * ROOM as usize]).unwrap();
        }
        File::open(&dir).unwrap().sync_all().unwrap();
        let pid = b.daemon();
        let acknowledged = [const { AtomicU64::new(0) }; WAYS.len()];
        let begun = AtomicU64::new(0);
        std::thread::scope(|s| {
            for (way, n) in WAYS.iter().zip(&acknowledged) {
                let (dir, begun) = (&dir, &begun);
                s.spawn(move || write_until_killed(dir, way, n, begun));
            }
            let waiting = std::time::Instant::now();
            while begun.load(Ordering::Acquire) < WAYS.len() as u64 && waiting.elapsed().as_secs() < 30 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(150 + round * 97));
            b.sh(&format!("kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"));
        });
        b.umount();
        b.ok(&["mount", "--log-file", "log", "-o", options, "a.img", "m"]);
        let mut lost = Vec::new();
        for (way, n) in WAYS.iter().zip(&acknowledged) {
            let n = n.load(Ordering::Acquire);
            assert!(n > 0, "{}: wrote nothing", way.name);
            let there = fs::read(dir.join(way.name)).unwrap_or_default();
            let kept = (0..n).filter(|&i| {
                let at = i as usize * way.size;
                there.get(at..at + way.size).is_some_and(|r| r == record(way, i))
            });
            let kept = kept.count() as u64;
            if kept < n {
                lost.push(format!("{}: {} of {n}", way.name, n - kept));
            }
        }
        assert!(lost.is_empty(), "round {round}: acknowledged and lost: {lost:?}");
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// An image and a directory to mount it at, if there is FUSE.
fn bench() -> Option<Bench> {
    if !crate::common::have_fuse() {
        return None;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    Some(b)
}

/// Mounts so that nothing becomes durable by itself before the daemon ends.
fn mount_to_be_killed(b: &Bench) {
    b.ok(&["mount", "-o", "commit=60", "--log-file", "log", "a.img", "m"]);
}

/// Kills the daemon, closes `open`, and mounts what is durable.
fn kill_and_mount(b: &Bench, open: File) {
    b.sh(&format!("kill -9 {}", b.daemon()));
    drop(open);
    b.run(&["umount", "m"]); // which fails, or says that the daemon was dead
    b.mount();
}

/// The kernel sends no fsync behind a copy.
#[test]
fn a_copy_into_a_file_that_was_opened_to_sync_is_durable() {
    let Some(b) = bench() else { return };
    mount_to_be_killed(&b);
    b.sh("echo content > m/from; echo 'old and long' > m/f");
    b.ok(&["sync", "m"]);
    let open = |flags| OpenOptions::new().write(true).custom_flags(flags).open(b.path("m/f")).unwrap();
    let from = File::open(b.path("m/from")).unwrap();
    let copied = rustix::fs::copy_file_range(&from, None, open(O_DSYNC), Some(&mut 4), 7).unwrap();
    assert_eq!(copied, 7);
    kill_and_mount(&b, from);
    assert_eq!(b.sh("cat m/f"), "old contentg\n");
    b.umount();
}

/// The data of a file that is open, and dirty in the kernel alone: the command writes it out before it asks, the
/// request alone lets the daemon do so.
#[test]
fn data_that_only_the_kernel_has_is_durable_behind_a_sync() {
    let Some(b) = bench() else { return };
    let asked: [(&str, &dyn Fn()); 2] = [
        ("command", &|| drop(b.ok(&["sync", "m"]))),
        ("request", &|| {
            let dir = File::open(b.path("m")).unwrap();
            assert_eq!(pando_fuse::client::send(dir, &pando_fuse::control::ControlRequest::Sync).unwrap(), 0);
        }),
    ];
    for (name, sync) in asked {
        mount_to_be_killed(&b);
        let file = File::create(b.path(&format!("m/{name}"))).unwrap();
        let written: Vec<u8> = (0..30_000u32).map(|at| (at % 251) as u8 | 1).collect();
        file.write_all_at(&written, 0).unwrap();
        sync();
        kill_and_mount(&b, file);
        let there = fs::read(b.path(&format!("m/{name}"))).unwrap_or_default();
        assert!(there == written, "{name}: {} of {} bytes are there", there.len(), written.len());
        b.umount();
    }
}
