//! What the kernel's write-back cache gives, and that nothing is lost or stale by it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    sync::Arc,
    time::{Duration, Instant},
};

use common::World;
use pando_db::device::{Device, MemDevice};
use pando_fuse::{Kind, Settings};

fn kept() -> Option<World> {
    World::with(Settings { writeback: true, ..Settings::default() })
}

/// A log: a line each call, at the end.
#[test]
fn lines_of_a_log_are_gathered_by_the_kernel() {
    let Some(w) = kept() else { return };
    let (mut log, mut sent) =
        (OpenOptions::new().append(true).create(true).open(w.path("log")).unwrap(), Vec::new());
    for i in 0..20_000 {
        let line = format!("{i:08} what is said in a line\n");
        log.write_all(line.as_bytes()).unwrap();
        sent.extend_from_slice(line.as_bytes());
    }
    assert_eq!(log.metadata().unwrap().len(), sent.len() as u64, "the size is known at once");
    drop(log);
    let writes = w.requests(Kind::Write);
    assert!(writes <= 8, "{writes} requests to write {} lines", 20_000);
    assert!(fs::read(w.path("log")).unwrap() == sent);
    assert_eq!(w.requests(Kind::Read), 0, "what was just written is in the page cache");
}

/// Several descriptors append to one file, from several threads: every line is there, whole, once.
#[test]
fn appends_of_several_do_not_tear() {
    let Some(mut w) = kept() else { return };
    std::thread::scope(|s| {
        for who in 0..4 {
            let path = w.path("log");
            s.spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(path).unwrap();
                (0..2000).for_each(|i| log.write_all(format!("{who}:{i:05}\n").as_bytes()).unwrap());
            });
        }
    });
    w.remount();
    let text = fs::read_to_string(w.path("log")).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    let wanted = (0..4).flat_map(|who| (0..2000).map(move |i| format!("{who}:{i:05}")));
    assert!(lines.into_iter().eq(wanted));
}

/// Requests of a small file: the times of one that is written right after it was made need no request of their own,
/// unless the clock ticks in between.
#[test]
fn a_small_new_file_is_a_create_a_write_and_a_release() {
    let Some(w) = kept() else { return };
    const FILES: u64 = 500;
    for i in 0..FILES {
        fs::write(w.path(&format!("f{i}")), [b'x'; 200]).unwrap();
    }
    assert_eq!((w.requests(Kind::Create), w.requests(Kind::Write)), (FILES, FILES));
    let blocks = |i: u64| fs::metadata(w.path(&format!("f{i}"))).unwrap().blocks();
    let begin = Instant::now();
    while (0..FILES).any(|i| blocks(i) == 0) {
        assert!(begin.elapsed() < Duration::from_secs(10), "the blocks of closed files are not known");
    }
    let times = w.requests(Kind::Setattr);
    println!("{times} of {FILES} files needed a request for their times");
    assert!(times < FILES * 3 / 4, "{times} requests for times");
}

/// What is written to files that are still open is in a clone that is made then, however it was opened.
#[test]
fn a_clone_has_what_was_written_before_it() {
    let Some(w) = kept() else { return };
    fs::create_dir(w.path("src")).unwrap();
    let wo = File::create(w.path("src/wo")).unwrap();
    let rw = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(w.path("src/rw"))
        .unwrap();
    for round in 0..20u8 {
        let bytes = vec![round + 1; 300_000 + usize::from(round)];
        wo.write_all_at(&bytes, 0).unwrap();
        rw.write_all_at(&bytes[..5000], u64::from(round) * 7000).unwrap();
        let name = format!("c{round}");
        w.clone_tree("src", &name, false).unwrap();
        wo.write_all_at(&[99; 10], 1000).unwrap();
        assert!(fs::read(w.path(&format!("{name}/wo"))).unwrap() == bytes, "round {round}");
        let other = fs::read(w.path(&format!("{name}/rw"))).unwrap();
        assert!(
            other.len() == usize::from(round) * 7000 + 5000 && other.ends_with(&bytes[..5000]),
            "round {round}"
        );
        assert_eq!(fs::read(w.path("src/wo")).unwrap()[1000], 99, "and the source goes on");
    }
}

/// Time and size are those of the last write, for every way to write, and the same after a remount.
#[test]
fn size_and_times_follow_every_write() {
    let Some(mut w) = kept() else { return };
    let path = w.path("f");
    fs::write(&path, vec![1; 100_000]).unwrap();
    let seen = || {
        let m = fs::metadata(&path).unwrap();
        (m.len(), (m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()))
    };
    let mut last = seen();
    for (flags, offset, len) in
        [(0, 10, 4), (0, 99_999, 500), (libc::O_DIRECT, 8192, 4096), (libc::O_APPEND, 0, 100)]
    {
        std::thread::sleep(Duration::from_millis(20));
        let file = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
        let page = [[7u8; 4096]; 3];
        let at = page.as_ptr().align_offset(4096) % 4096;
        file.write_all_at(&page.as_flattened()[at..at + len], offset).unwrap();
        let now = seen();
        let size = if flags == libc::O_APPEND { last.0 + 100 } else { last.0.max(offset + len as u64) };
        assert!(now.0 == size && now.1 > last.1 && now.2 > last.2, "{flags:#o}: {last:?} {now:?}");
        drop(file);
        assert_eq!(seen(), now, "closing changes no time");
        last = now;
    }
    w.remount();
    assert_eq!(seen(), last);
}

/// Calls of every size are written once.
#[test]
fn data_is_written_once_at_every_call_size() {
    for (writeback, most) in [(true, 1.1), (false, 1.1)] {
        for call in [4096, 10_240, 40_960, 100_000] {
            let device = Arc::new(MemDevice::new(256 << 20));
            let settings = Settings { writeback, ..Settings::default() };
            let Some(w) = World::formatted(device.clone(), settings, 1 << 20) else { return };
            let mut r = 88172645463325252u64;
            let mut noise = || {
                r ^= r << 13;
                r ^= r >> 7;
                r ^= r << 17;
                r
            };
            let bytes: Vec<u8> = (0..(24 << 20) / 8).flat_map(|_| noise().to_le_bytes()).collect();
            let before = device.stats();
            let mut file = File::create(w.path("f")).unwrap();
            bytes.chunks(call).for_each(|part| file.write_all(part).unwrap());
            file.sync_all().unwrap();
            let after = device.stats();
            let ratio = (after.write_bytes - before.write_bytes) as f64 / bytes.len() as f64;
            let reads = after.reads - before.reads;
            println!("writeback {writeback}, calls of {call}: {ratio:.3} written a byte, {reads} reads");
            assert!(ratio <= most && reads <= 8, "writeback {writeback}, {call}: {ratio}, {reads} reads");
            drop(file);
            assert!(fs::read(w.path("f")).unwrap() == bytes);
        }
    }
}
