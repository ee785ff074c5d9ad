//! Pages that did not fit when the kernel wrote them out: what readers, syncs and snapshots see of them, and when they
//! are stored.
//!
//! The kernel takes such pages for clean, so it may drop them whenever it wants memory, and some machines reclaim memory
//! all the time. Then the bytes are lost, and a sync says so (`dropped` has the tests of that). Tests that need the pages
//! to stay begin again if it did so.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::fd::AsRawFd,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    sync::Arc,
    time::Duration,
};

use crate::common::{World, soon};
use pando_db::device::MemDevice;
use pando_fs::NewSnapshot;
use pando_fuse::{Settings, asked::Asked, control::ControlRequest, tool};

/// How often a scene is begun because the kernel has dropped pages that it needs, a count.
const MAX_TRIES: usize = 20;

fn kept() -> Option<World> {
    World::with(Settings { writeback: true, ..Settings::default() })
}

/// What the kernel says of the pages of a file.
struct Pages {
    /// Pages that it writes out, a count.
    written_out: u64,
    /// Pages that it has dropped because it wanted memory, a count. (It does not count those that it was told to drop.)
    reclaimed: u64,
}

/// The pages of a file, if the kernel tells (Linux 6.5 on).
fn pages(file: &File) -> Pages {
    /// Number of the call cachestat(2).
    const CACHESTAT: libc::c_long = 451;
    // All of the file; pages in the cache, dirty ones, those that are written out, and two counts of evicted ones.
    let (range, mut counts) = ([0u64; 2], [0u64; 5]);
    // SAFETY: the descriptor is open, and the kernel reads and writes no more than these two. If the call is not known,
    // the counts stay 0.
    unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) };
    Pages { written_out: counts[2], reclaimed: counts[3] }
}

/// Pages of files that the kernel has read again after it had dropped them for their memory, a count: of all files, since
/// the machine was started.
fn refaults() -> u64 {
    // Each processor counts some dozen pages for itself before it adds them up, which root may ask for. Otherwise they do
    // so within about a second.
    if fs::read("/proc/sys/vm/stat_refresh").is_err() {
        std::thread::sleep(Duration::from_secs(2));
    }
    let stat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = stat.lines().find_map(|line| line.strip_prefix("workingset_refault_file "));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Runs `scene` again when it fails, as long as the kernel has read pages again that it had dropped.
fn again_if_reclaimed(scene: impl Fn()) {
    for _ in 1..MAX_TRIES {
        let before = refaults();
        let Err(why) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&scene)) else { return };
        if refaults() == before {
            std::panic::resume_unwind(why);
        }
        println!("perhaps because the kernel reclaims memory: tried again");
    }
    scene();
}

/// Has the kernel write a file out as in the background: nobody is told of an error. Returns once that is over.
fn write_unheard(file: &File) {
    // SAFETY: the descriptor is open.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    // Before 6.16 the kernel counts no page while the server has it.
    std::thread::sleep(Duration::from_millis(300));
    soon("pages are written out for ever", || pages(file).written_out == 0);
}

/// What did not fit when the kernel wrote it out is seen by readers; so no sync succeeds until it is stored, which it is
/// as soon as there is room, or until the file is made smaller again.
#[test]
fn pages_that_did_not_fit_are_never_taken_for_synced() {
    again_if_reclaimed(never_taken_for_synced);
}

fn never_taken_for_synced() {
    const MIB: usize = 1 << 20;
    let Some(w) = kept() else { return };
    fs::create_dir(w.path("dir")).unwrap();
    let dir = fs::metadata(w.path("dir")).unwrap().ino();
    w.fs().set_quota(dir, Some(5 << 20)).unwrap();
    let (old, new) = (vec![b'A'; 3 * MIB], vec![b'B'; 4 * MIB]);
    let open = |name: &str| {
        let path = w.path("dir").join(name);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    };
    let errno = |e: std::io::Error| e.raw_os_error().unwrap();
    let file = open("f");
    file.write_all_at(&old, 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&new, old.len() as u64).unwrap();
    assert_eq!(errno(file.sync_all().unwrap_err()), libc::ENOSPC);
    drop(file);
    let file = open("f");
    let mut seen = vec![0; 7 * MIB];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen[..3 * MIB] == old && seen[3 * MIB..] == new, "readers see what the kernel has");
    for _ in 0..3 {
        assert_eq!(errno(file.sync_all().unwrap_err()), libc::ENOSPC, "it is stored nowhere");
    }
    assert_eq!(w.send(&ControlRequest::Sync).unwrap(), 1, "a file is not durable");
    // Other files are synced as ever.
    let other = open("../other");
    other.write_all_at(b"x", 0).unwrap();
    other.sync_all().unwrap();
    let synced = |file: &File| {
        let done = || file.sync_all().map_err(|e| assert_eq!(errno(e), libc::ENOSPC)).is_ok();
        soon("it is tried again", done);
    };
    let stored = |file: &File, len: usize| {
        let ino = file.metadata().unwrap().ino();
        let piece = |at: usize| w.fs().read(pando_fs::FileHandle(0), ino, at as u64, MIB as u32).unwrap();
        (0..len).step_by(MIB).flat_map(|at| piece(at).to_vec()).collect::<Vec<_>>()
    };
    w.fs().set_quota(dir, Some(100 << 20)).unwrap();
    synced(&file);
    assert_eq!(w.send(&ControlRequest::Sync).unwrap(), 0);
    assert!(stored(&file, 7 * MIB) == seen, "what was synced is what was seen");
    // Written again, or made smaller: then nothing of it is missing.
    w.fs().set_quota(dir, Some(9 << 20)).unwrap();
    let second = open("g");
    second.write_all_at(&new, 0).unwrap();
    assert_eq!(errno(second.sync_all().unwrap_err()), libc::ENOSPC);
    assert_eq!(errno(second.sync_all().unwrap_err()), libc::ENOSPC);
    second.set_len(0).unwrap();
    second.sync_all().unwrap();
    // Over what a snapshot has too, by a mapping, with other bytes than at first.
    w.fs().set_quota(dir, Some(8 << 20)).unwrap();
    drop(second);
    fs::remove_file(w.path("dir").join("g")).unwrap();
    w.fs().set_quota(dir, Some(7 << 20)).unwrap();
    file.write_all_at(b"tail", 7 * MIB as u64).unwrap();
    assert_eq!(errno(file.sync_all().unwrap_err()), libc::ENOSPC);
    file.write_all_at(b"more", 7 * MIB as u64).unwrap();
    assert_eq!(errno(file.sync_all().unwrap_err()), libc::ENOSPC);
    w.fs().set_quota(dir, None).unwrap();
    synced(&file);
    assert_eq!(stored(&file, 8 * MIB)[7 * MIB..], *b"more");
}

/// Nor does a copy leave them out, which a program makes because it can read them: it has what can be read.
#[test]
fn a_copy_has_the_pages_that_did_not_fit() {
    again_if_reclaimed(copied_with_what_did_not_fit);
}

fn copied_with_what_did_not_fit() {
    const MIB: usize = 1 << 20;
    let Some(w) = kept() else { return };
    fs::create_dir(w.path("dir")).unwrap();
    let dir = fs::metadata(w.path("dir")).unwrap().ino();
    w.fs().set_quota(dir, Some(5 << 20)).unwrap();
    let written: Vec<u8> = (0..7 * MIB).map(|i| (i / 4096) as u8 | 1).collect();
    let path = w.path("dir/f");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&written, 0).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert!(fs::read(&path).unwrap() == written, "readers see what the kernel has");
    let file = File::open(&path).unwrap();
    let seek = |offset: usize, whence: libc::c_int| {
        // SAFETY: the descriptor is open.
        unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) }
    };
    for at in (0..7 * MIB).step_by(MIB / 2) {
        assert_eq!(seek(at, libc::SEEK_DATA), at as i64, "data");
        assert_eq!(seek(at, libc::SEEK_HOLE), (7 * MIB) as i64, "at {at}");
    }
    for (name, out) in [
        ("copy", w.path("copy")),
        ("outside", std::env::temp_dir().join(format!("pando-{}", std::process::id()))),
    ] {
        let copied = fs::copy(&path, &out).unwrap();
        let bytes = fs::read(&out).unwrap();
        fs::remove_file(&out).unwrap();
        assert!(copied == 7 << 20 && bytes == written, "{name}: {copied} bytes");
    }
    // `cp` looks for holes.
    let cp = std::process::Command::new("cp").arg(&path).arg(w.path("cp")).status().unwrap();
    assert!(cp.success() && fs::read(w.path("cp")).unwrap() == written);
}

/// An error that nobody has heard of yet does not keep what was written later from a snapshot. (Two things see to that:
/// the server writes out again behind such an error, and the kernel does when the server closes the file.)
#[test]
fn what_is_written_behind_a_refusal_is_written_out() {
    again_if_reclaimed(written_out_behind_a_refusal);
}

fn written_out_behind_a_refusal() {
    const MIB: usize = 1 << 20;
    let Some(w) = kept() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("not root: skipped");
    }
    fs::create_dir(w.path("dir")).unwrap();
    let dir = fs::metadata(w.path("dir")).unwrap().ino();
    w.fs().set_quota(dir, Some(2 << 20)).unwrap();
    let path = w.path("dir").join("f");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&vec![b'A'; 4 * MIB], 0).unwrap();
    write_unheard(&file);
    w.fs().set_quota(dir, None).unwrap();
    // Tried again, it is stored, without the program having heard of anything.
    let ino = file.metadata().unwrap().ino();
    let stored = |at: usize| w.fs().read(pando_fs::FileHandle(0), ino, at as u64, 4).unwrap();
    soon("it is tried again", || (0..4 * MIB).step_by(MIB / 4).all(|at| stored(at)[..] == *b"AAAA"));
    std::thread::sleep(Duration::from_millis(600));
    file.write_all_at(b"late", 1000).unwrap();
    tool::snapshot(
        &w.path("dir"),
        Asked::Create(NewSnapshot { name: Some("s".into()), ..NewSnapshot::default() }),
    )
    .unwrap();
    assert_eq!(fs::read(w.path("dir/.snapshots/s/f")).unwrap()[1000..1004], *b"late");
}

/// After a rename the kernel has a change time that it tells by the way, when a file is closed. On a full store there may
/// be no room for that, which is nothing that a reader has to hear of.
#[test]
fn a_file_that_was_renamed_on_a_full_store_is_read_without_an_error() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let Some(w) = World::on(device, Settings { writeback: true, ..Settings::default() }) else { return };
    fs::create_dir(w.path("k")).unwrap();
    let data = vec![b'd'; 200_000];
    (0..20).for_each(|i| fs::write(w.path(&format!("k/{i}")), &data).unwrap());
    let mut random = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let step = || {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 56) as u8
        };
        std::iter::repeat_with(step).take(len).collect()
    };
    for size in [1 << 20, 64 << 10, 4 << 10, 300] {
        let mut refused = 0;
        for i in 0..20_000 {
            let stored = File::create(w.path(&format!("{size}.{i}")))
                .and_then(|mut f| f.write_all(&noise(size)).and_then(|()| f.sync_all()));
            refused += usize::from(stored.is_err());
            if refused > 3 {
                break;
            }
        }
    }
    let mut renamed = 0;
    for i in 0..20 {
        let name = w.path(&format!("k/{i}.new"));
        if fs::rename(w.path(&format!("k/{i}")), &name).is_err() {
            continue;
        }
        renamed += 1;
        let file = File::open(&name).unwrap();
        assert_eq!(file.metadata().unwrap().len(), data.len() as u64);
        // SAFETY: the descriptor is this one's alone, and nobody uses it afterwards.
        let closed = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) };
        assert_eq!(closed, 0, "file {i}: {}", std::io::Error::last_os_error());
    }
    assert!(renamed > 0, "vacuous: no file could be renamed");
}

/// A program that writes and does not sync hears of a full store too, soon: not only when it closes the file.
#[test]
fn a_writer_hears_that_the_store_is_full() {
    const MIB: usize = 1 << 20;
    let device = Arc::new(MemDevice::new(64 << 20));
    let Some(w) = World::on(device, Settings { writeback: true, ..Settings::default() }) else { return };
    let mut random = 1u64;
    let mut block = vec![0; MIB];
    for flags in [libc::O_TRUNC, libc::O_APPEND] {
        let path = w.path("f");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).custom_flags(flags).open(&path).unwrap();
        let mut written = 0;
        let told = loop {
            block.iter_mut().for_each(|byte| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (random >> 56) as u8;
            });
            match file.write_all(&block) {
                Ok(()) => written += MIB,
                Err(e) => break e,
            }
            assert!(written < 2048 * MIB, "{flags:#o}: a program writes without end into 64 MiB");
        };
        assert_eq!(told.raw_os_error(), Some(libc::ENOSPC), "{flags:#o}");
        assert!(written > 16 * MIB, "{flags:#o}: {written}");
        // Whoever looks at the file is not concerned, and changes nothing for the writer.
        assert_eq!(fs::metadata(&path).unwrap().len(), file.metadata().unwrap().len());
        // Space of the file before may come back late, so that a little fits after all.
        let again = (0..64).find_map(|_| file.write_all(&block).err());
        assert_eq!(again.and_then(|e| e.raw_os_error()), Some(libc::ENOSPC), "{flags:#o}");
        // With room again it goes on.
        file.set_len(0).unwrap();
        soon("it is not refused for ever", || file.write_all(b"fits").is_ok());
        // The kernel tells of the error once.
        let _told = file.sync_all();
        file.sync_all().unwrap();
        drop(file);
        fs::remove_file(&path).unwrap();
    }
}

/// The only copy of what did not fit is the kernel's. What others do that has such pages written out first, before the
/// program has heard of the error, leaves it there.
#[test]
fn what_did_not_fit_is_kept_when_others_sync_and_clone() {
    let Some(w) = kept() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("not root: skipped");
    }
    fs::create_dir(w.path("dir")).unwrap();
    let dir = fs::metadata(w.path("dir")).unwrap().ino();
    let kinds: [(&str, &dyn Fn()); 4] = [
        ("sync of all", &|| _ = w.send(&ControlRequest::Sync)),
        ("fsync of a directory", &|| File::open(w.root()).unwrap().sync_all().unwrap()),
        ("snapshot", &|| {
            tool::snapshot(&w.path("dir"), Asked::Create(NewSnapshot::default())).unwrap();
        }),
        ("size of a tree", &|| _ = tool::usage(&w.path("dir")).unwrap()),
    ];
    for (kind, others) in kinds {
        let kept = (0..MAX_TRIES).any(|_| is_kept_beside(&w, dir, kind, others));
        assert!(kept, "{kind}: the kernel drops these pages each time");
    }
}

/// Writes pages that do not fit, runs `others`, and demands that the pages are still there and are stored in the end.
/// `false` if the kernel has dropped some for their memory.
fn is_kept_beside(w: &World, dir: u64, kind: &str, others: &dyn Fn()) -> bool {
    const MIB: usize = 1 << 20;
    w.fs().set_quota(dir, Some(5 << 20)).unwrap();
    let path = w.path("dir").join("f");
    let _ = fs::remove_file(&path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let written: Vec<u8> =
        (0..7 * MIB).map(|i| if i < 3 * MIB { b'A' } else { (i / 4096) as u8 | 1 }).collect();
    file.write_all_at(&written[..3 * MIB], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&written[3 * MIB..], 3 * MIB as u64).unwrap();
    write_unheard(&file);
    others();
    // A sync says so of pages that are lost, from the time on when the kernel reads them.
    let is_lost = || file.sync_all().is_err_and(|e| e.raw_os_error() == Some(libc::EIO));
    let before = refaults();
    let mut seen = vec![0; 7 * MIB];
    let reclaimed = pages(&file).reclaimed;
    file.read_exact_at(&mut seen, 0).unwrap();
    if seen != written && reclaimed + (refaults() - before) > 0 {
        return false;
    }
    assert!(seen == written, "{kind}: what was written is gone");
    let refused = file.sync_all().unwrap_err().raw_os_error();
    if refused == Some(libc::EIO) {
        return false;
    }
    assert_eq!(refused, Some(libc::ENOSPC), "{kind}");
    w.fs().set_quota(dir, None).unwrap();
    soon(kind, || is_lost() || file.sync_all().is_ok());
    if is_lost() {
        return false;
    }
    let ino = file.metadata().unwrap().ino();
    for at in (0..7 * MIB).step_by(MIB) {
        let piece = w.fs().read(pando_fs::FileHandle(0), ino, at as u64, MIB as u32).unwrap();
        assert!(piece[..] == written[at..at + MIB], "{kind}: at {at}");
    }
    true
}
