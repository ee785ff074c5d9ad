//! What the server keeps of files that the kernel has forgotten, and pages that the kernel writes out late.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::{io, sync::mpsc};

use pando_db::device::MemDevice;
use pando_fs::{FormatOptions, MountOptions, ROOT};

use super::*;

/// A kernel that accepts every notification.
struct Obedient;

impl Notify for Obedient {
    fn forget_entry(&self, _: u64, _: &OsStr) -> io::Result<()> {
        Ok(())
    }
    fn forget_pages(&self, _: u64, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn forget_attributes(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn give_pages(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fn server(writeback: bool) -> Server {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(device, MountOptions::default()).unwrap();
    let keeps = KernelKeeps { writeback, listings: true, access_lists: false };
    let server = Server::new(fs, Arc::default(), None, keeps);
    server.start(Arc::new(Obedient));
    server
}

fn wait<T>(answer: Answer<T>) -> Outcome<T> {
    match answer {
        Answer::Now(outcome) => outcome,
        Answer::Later(work) | Answer::Here(work) => work(),
    }
}

/// Makes a set-user-id file and writes to it as a user who may not keep that bit.
fn bared(server: &Server, c: &Context, name: &OsStr) -> (u64, u64) {
    let (attr, opened) = server.create(c, ROOT, name, 0o4755, 0, libc::O_RDWR).unwrap();
    let (ino, handle) = (attr.ino, opened.handle);
    let write = Write {
        handle,
        ino,
        offset: 0,
        data: b"x",
        writeback: false,
        direct: false,
        kill_suidgid: true,
        flags: libc::O_RDWR,
    };
    assert_eq!(wait(server.write(c, write)).unwrap(), 1);
    assert_eq!(server.shared.set_id_bits(ino), 0, "vacuous: the bit is kept");
    (ino, handle)
}

#[test]
fn of_files_that_lost_set_id_bits_nothing_is_kept_when_they_are_forgotten() {
    let server = server(true);
    let c =
        Context { uid: 1000, gid: 1000, pid: 1, unique: 0, keeps_group_bit: None, says_when_bits_go: true };
    let name = OsStr::new("f");
    for _ in 0..1000 {
        let (ino, handle) = bared(&server, &c, name);
        server.unlink(&c, ROOT, name).unwrap();
        drop(server.release(ino, handle, libc::O_RDWR));
        server.forget(ino, 1);
    }
    assert_eq!(server.shared.bare.lock().len(), 0);
    // The kernel is not notified of an inode that it still knows, however many references it returns.
    let (ino, _) = bared(&server, &c, name);
    wait(server.lookup(&c, ROOT, name)).unwrap();
    server.forget(ino, 1);
    assert!(server.shared.bare.lock().contains(&ino));
    server.forget(ino, 1);
    assert!(server.shared.bare.lock().is_empty());
}

#[test]
fn of_refused_pages_nothing_is_kept_when_their_file_is_forgotten() {
    let server = server(true);
    let made = server.create(&ROOT_USER, ROOT, OsStr::new("f"), 0o644, 0, libc::O_RDWR).unwrap();
    let (ino, handle) = (made.0.ino, made.1.handle);
    server.shared.refused.note(ino, &(0..4096), libc::ENOSPC);
    drop(server.release(ino, handle, libc::O_RDWR));
    assert!(server.shared.refused.may_wait(ino), "the kernel may have the page");
    server.forget(ino, 1);
    assert!(!server.shared.refused.may_wait(ino));
}

/// A FORGET that is worked on when the file was looked up and written again, by another thread, takes nothing away.
#[test]
fn a_late_forget_leaves_what_is_noted_of_a_file_that_is_known() {
    let server = server(true);
    let name = OsStr::new("f");
    let made = server.create(&ROOT_USER, ROOT, name, 0o644, 0, libc::O_RDWR).unwrap();
    let (ino, handle) = (made.0.ino, made.1.handle);
    drop(server.release(ino, handle, libc::O_RDWR));
    wait(server.lookup(&ROOT_USER, ROOT, name)).unwrap();
    server.shared.times.wrote(ino, Some(pando_fs::Time::now()));
    server.shared.caches.wrote(ino, false, 0, 1);
    assert!(server.shared.times.is_stale(ino), "vacuous: the kernel has the time");
    server.forget(ino, 1);
    assert!(server.shared.times.is_stale(ino));
    server.forget(ino, 1);
    assert!(!server.shared.times.is_stale(ino));
}

/// The kernel must not take a file for longer than it is.
#[test]
fn a_file_that_was_cut_since_its_pages_were_read_is_not_given_them() {
    for size in [None, Some(1)] {
        let server = server(true);
        let made = server.create(&ROOT_USER, ROOT, OsStr::new("f"), 0o644, 0, libc::O_RDONLY).unwrap();
        let ino = made.0.ino;
        let changes = server.shared.caches.may_fill(ino).unwrap();
        server.setattr(&ROOT_USER, ino, SetAttr { size, mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let mut given = false;
        server.shared.caches.fill(ino, changes, || given = true);
        assert_eq!(given, size.is_none());
    }
}

/// The kernel sets the times of a file whose writes it keeps. Those of one that is written past its cache it does not
/// know.
#[test]
fn the_kernel_is_asked_for_times_of_files_only_whose_writes_it_keeps() {
    let server = server(true);
    let made = server.create(&ROOT_USER, ROOT, OsStr::new("f"), 0o644, 0, libc::O_RDONLY).unwrap();
    let ino = made.0.ino;
    assert!(server.shared.content_changer(&ROOT_USER, ino).reports_times);
    assert!(server.shared.caches.opened(ino, u64::MAX, libc::O_WRONLY, true).direct);
    assert!(!server.shared.content_changer(&ROOT_USER, ino).reports_times);
}

/// Its snapshot holds the space of all that is deleted meanwhile.
#[test]
fn a_difference_ends_when_what_it_was_asked_on_is_closed() {
    let server = server(true);
    let dir = server.opendir(&ROOT_USER, ROOT, libc::O_RDONLY).unwrap().handle;
    let file = server.create(&ROOT_USER, ROOT, OsStr::new("f"), 0o644, 0, libc::O_RDONLY).unwrap();
    let (ino, handle) = (file.0.ino, file.1.handle);
    let diffs = &server.shared.diffs;
    for on in [(ROOT, dir), (ino, handle)] {
        assert!(diffs.begin_bytes(0, on, vec![0; 9]) && diffs.next(0, on, 4).is_some());
    }
    server.releasedir(ROOT, dir);
    drop(server.release(ino, handle, libc::O_RDONLY));
    assert!(diffs.next(0, (ROOT, dir), 4).is_none() && diffs.next(0, (ino, handle), 4).is_none());
}

/// What the kernel is not told of has no reference by it: what is kept in memory for it would stay, and the space of a
/// tree that is removed.
#[test]
fn a_proof_that_an_entry_may_be_removed_keeps_no_reference_to_it() {
    let server = server(true);
    let dir = server.mkdir(&ROOT_USER, ROOT, OsStr::new("d"), 0o755, 0).unwrap().ino;
    let token = server.shared.proofs.issue(&ROOT_USER, ROOT, 1, true).unwrap();
    let shown = server.rename(&ROOT_USER, (ROOT, OsStr::new("d")), (ROOT, &token.name()), 0);
    assert_eq!(shown, Err(Errno(libc::ECANCELED)));
    server.forget(dir, 1);
    assert!(!server.shared.fs.is_known(dir));
}

const ROOT_USER: Context =
    Context { uid: 0, gid: 0, pid: 1, unique: 0, keeps_group_bit: None, says_when_bits_go: true };
/// Bytes of the pages that are written out.
const PAGES_BYTES: usize = 16 << 10;

/// A file that a program may have mapped, with old bytes in its pages: its inode number and a handle.
fn mapped(server: &Server, dir: u64) -> (u64, u64) {
    let made = server.create(&ROOT_USER, dir, OsStr::new("f"), 0o644, 0, libc::O_RDWR).unwrap();
    let of = (made.0.ino, made.1.handle);
    write_out(server, of.0, &[b'o'; PAGES_BYTES]).unwrap();
    of
}

/// The kernel writes out the pages of a mapping.
fn write_out(server: &Server, ino: u64, data: &[u8]) -> Outcome<u32> {
    wait(server.write(&ROOT_USER, a_write((ino, 0), 0, data, true)))
}

fn a_write((ino, handle): (u64, u64), offset: u64, data: &[u8], of_pages: bool) -> Write<'_> {
    Write {
        handle,
        ino,
        offset,
        data,
        writeback: of_pages,
        direct: !of_pages,
        kill_suidgid: false,
        flags: libc::O_RDWR | if of_pages { 0 } else { libc::O_DIRECT },
    }
}

/// What is stored of the file: pieces of equal bytes, with their lengths.
fn stored(server: &Server, ino: u64) -> Vec<(u8, usize)> {
    let data = server.shared.fs.read(FileHandle(0), ino, 0, 1 << 20).unwrap();
    data.chunk_by(|a, b| a == b).map(|piece| (piece[0], piece.len())).collect()
}

/// The kernel drops the pages of the range, and zeroes its parts of others, only behind the answer.
#[test]
fn a_range_that_is_zeroed_or_punched_does_not_come_back_with_pages_of_a_mapping() {
    for mode in [libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_PUNCH_HOLE] {
        let server = server(true);
        let (ino, _) = mapped(&server, ROOT);
        let answer = server.fallocate(&ROOT_USER, ino, 100, 9000, mode | libc::FALLOC_FL_KEEP_SIZE);
        let mut pages = [b'o'; PAGES_BYTES];
        pages[50] = b'n';
        write_out(&server, ino, &pages).unwrap();
        wait(answer).unwrap();
        let wanted = [(b'o', 50), (b'n', 1), (b'o', 49), (0, 9000), (b'o', PAGES_BYTES - 9100)];
        assert_eq!(stored(&server, ino), wanted, "mode {mode:#x}");
        // From then on the pages have what is stored.
        write_out(&server, ino, &pages).unwrap();
        assert_eq!(stored(&server, ino)[2], (b'o', PAGES_BYTES - 51), "mode {mode:#x}");
    }
}

/// A kernel that keeps nothing of what programs write still keeps pages of mappings, and writes them out beside an open
/// that cuts the file off.
#[test]
fn a_file_that_an_open_cuts_off_does_not_grow_again_by_pages_of_a_mapping() {
    let server = server(false);
    let (ino, _) = mapped(&server, ROOT);
    let answer = server.open(&ROOT_USER, ino, libc::O_RDWR | libc::O_TRUNC);
    write_out(&server, ino, &[b'o'; PAGES_BYTES]).unwrap();
    wait(answer).unwrap();
    assert_eq!(stored(&server, ino), []);
    assert_eq!(server.shared.fs.size(ino).unwrap(), 0);
}

/// A mapping has a page back before a direct write to a part of it is stored, and the page does not fit.
#[test]
fn a_direct_write_is_not_taken_back_by_pages_that_did_not_fit_at_first() {
    for announced_later in [false, true] {
        let server = server(true);
        let dir = server.mkdir(&ROOT_USER, ROOT, OsStr::new("d"), 0o755, 0).unwrap().ino;
        let (ino, handle) = mapped(&server, dir);
        // What did not fit is tried again by this test.
        let refused = &server.shared.refused;
        let (hold, held) = mpsc::channel::<()>();
        refused.start(move || _ = held.recv());
        server.shared.fs.set_quota(dir, Some(PAGES_BYTES as u64 + 4096)).unwrap();
        let refuse = || write_out(&server, ino, &vec![b'o'; 1 << 20]).unwrap_err();
        let direct = || server.write(&ROOT_USER, a_write((ino, handle), 100, &[b'd'; 500], false));
        let again = || {
            let read =
                |_: u64, range: &std::ops::Range<u64>| Ok(vec![b'o'; (range.end - range.start) as usize]);
            server.shared.fs.set_quota(dir, None).unwrap();
            refused.round(read, |ino, offset, data| server.shared.write_again(ino, offset, data));
            assert!(!refused.may_wait(ino), "vacuous: it was not tried");
        };
        if announced_later {
            refuse();
            let announced = server.shared.past_pages.announce(ino, 100..600);
            again();
            assert_eq!(announced.end(), [100..600]);
            wait(direct()).unwrap();
        } else {
            let answer = direct();
            refuse();
            assert!(refused.may_wait(ino), "vacuous: it did fit");
            again();
            wait(answer).unwrap();
        }
        let wanted = [(b'o', 100), (b'd', 500), (b'o', (1 << 20) - 600)];
        assert_eq!(stored(&server, ino), wanted, "announced later: {announced_later}");
        drop(hold);
    }
}
