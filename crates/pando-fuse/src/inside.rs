//! The server's own way into its mount: to a file by its inode number, without a path.
//!
//! There are things that the kernel does for a caller and for nobody else: write out the pages that it keeps of one
//! file (a notification makes it drop them as well), and take in a modification time. So the server becomes a
//! caller. It opens by handle (`open_by_handle_at(2)`, which asks for `CAP_DAC_READ_SEARCH`), so only a daemon of
//! root has this way.
//!
//! A thread that waits for an answer of its own process must not keep that process from ending: the kernel lets go of
//! it only when the connection is cut, which happens when the last descriptor of it is closed, and a killed process
//! closes its descriptors when the last thread has ended that shares them. So whoever comes this way has a table of
//! descriptors of its own ([`Apart`]), without the connection: a daemon that is killed ends at once. (For those that
//! wait on the connection itself, in a notification, there is `guard`.)
//!
//! Guarantees: what is opened is the inode of this mount or nothing, whatever is mounted on the directory by now; no
//! descriptor outlives a call, so the mount is not kept busy (but for threads that nobody waits for). Every call may
//! send requests to the server, so none is for a thread that reads them. Uses nothing of the crate.
#![allow(unsafe_code)]

use std::{
    io,
    marker::PhantomData,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use pando_fs::Time;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_OMIT};

/// Threads that may wait for the kernel although nobody waits for them any more, a count: where a user can make them.
const MAX_LEFT_BEHIND: usize = 8;
/// The same, where only root can, a count. So no user keeps the pages of others from being written out this way.
const MAX_LEFT_BY_ROOT: usize = 2 * MAX_LEFT_BEHIND;
/// Threads that write out the pages of several files at once, a count.
const LANES: usize = 4;
/// Threads that may close files whose pages are written out, while nobody waits for them, a count.
const MAX_CLOSING: usize = 32;
/// Files that such a thread closes at its end, a count; what else it opens is closed at once.
const MAX_OPEN: usize = 128;
/// How long is waited for such a thread at first: a mount that nobody else uses is free then.
const PATIENCE_TO_CLOSE: Duration = Duration::from_millis(5);
/// How often pages are written out although that ends with an error, a count.
const MAX_ERRORS_BEFORE: u32 = 5;
/// The type of FUSE's file handles: inode number and generation.
const HANDLE_TYPE: libc::c_int = 0x81;

/// A file handle of FUSE, as `struct file_handle` with its bytes. Inode numbers are never used twice, so the
/// generation is always 0.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    ino_high: u32,
    ino_low: u32,
    generation: u32,
}

/// The right of a thread to wait for the mount: it shares no descriptors with the rest of the process. It cannot
/// write to the log, nor read the image, whose descriptors it does not have: of the file system it may call what does
/// no I/O.
pub(crate) struct Apart {
    /// Not for another thread.
    _here: PhantomData<*const ()>,
}

impl Apart {
    /// Gives this thread a table of descriptors of its own, with none in it. For threads that have just begun.
    pub(crate) fn become_so() -> io::Result<Self> {
        const FIRST: libc::c_uint = 0;
        // SAFETY: no memory is passed. The calling thread has no descriptor in use, by the rule above; those of the
        // other threads stay open in their table.
        match unsafe {
            libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
        } {
            0 => Ok(Self { _here: PhantomData }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Closes all descriptors of the process, so that what they keep locked is free although a thread of it waits in the
/// kernel. For a process that does nothing more.
pub(crate) fn close_all() {
    // SAFETY: no memory is passed. Whoever would use one of the descriptors comes to nothing.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
}

/// Does `work` in a thread that may wait for the mount, and waits for that.
pub(crate) fn apart<T: Send>(work: impl FnOnce(&Apart) -> T + Send) -> io::Result<T> {
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name("pando-inside".into());
        let thread = thread.spawn_scoped(s, || Apart::become_so().map(|apart| work(&apart)))?;
        thread.join().map_err(|_| io::Error::other("a panic"))?
    })
}

/// A mount, as its server reaches into it.
#[derive(Clone)]
pub(crate) struct Inside {
    dir: PathBuf,
    /// Major and minor number of the mount's device.
    device: (u32, u32),
    /// Threads that nobody waits for any more.
    left_behind: Arc<AtomicUsize>,
    /// Of those that close files which somebody goes on writing.
    closing: Arc<AtomicUsize>,
}

impl Inside {
    /// The way into the mount on `dir`, whose device is `device` (`major:minor`); `None` if this process has
    /// none. May be called before requests are answered.
    pub(crate) fn new(dir: &Path, device: &str) -> Option<Self> {
        let (major, minor) = device.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        // The capability may be missing: this asks for it, and comes to no file.
        let none = open_by_handle(CWD.as_raw_fd(), 0, OFlags::PATH);
        let may = !matches!(&none, Err(e) if e.raw_os_error() == Some(libc::EPERM));
        may.then(|| Self {
            dir: dir.to_owned(),
            device,
            left_behind: Arc::default(),
            closing: Arc::default(),
        })
    }

    /// Opens the inode `ino`, which the kernel must know. Requests: OPENDIR and RELEASEDIR of the root, and what
    /// `flags` ask for (none with `O_PATH`).
    fn open(&self, ino: u64, flags: OFlags) -> io::Result<OwnedFd> {
        open_by_handle(self.root()?.as_raw_fd(), ino, flags | OFlags::CLOEXEC)
    }

    /// Opens the root of the mount. For threads apart.
    pub(crate) fn root(&self) -> io::Result<OwnedFd> {
        // A descriptor without access (O_PATH) is not taken for this.
        let root = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.dir, root, Mode::empty())?;
        let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&root, c"", known, StatxFlags::TYPE)?;
        if (stat.stx_dev_major, stat.stx_dev_minor) != self.device {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        Ok(root)
    }

    /// A descriptor of the inode `ino`, of any kind, which the kernel must know; good for naming it. No request.
    pub(crate) fn open_path(root: &OwnedFd, ino: u64) -> io::Result<OwnedFd> {
        open_by_handle(root.as_raw_fd(), ino, OFlags::PATH | OFlags::CLOEXEC)
    }

    /// Sets the access time, and the modification time if it is given, of what this is a descriptor of, by a SETATTR of
    /// this thread.
    pub(crate) fn set_times(file: &OwnedFd, atime: Time, mtime: Option<Time>) -> io::Result<()> {
        let time = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: time(atime), last_modification: mtime.map_or(omitted, time) };
        Ok(rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Gives the kernel the modification time of a file, by a SETATTR of this thread.
    pub(crate) fn set_modified(&self, _: &Apart, ino: u64, time: Time) -> io::Result<()> {
        let file = self.open(ino, OFlags::PATH)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
        };
        Ok(rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Reads a range of a file as its readers see it, and gives what there is of it. Waits no longer than `patience`.
    /// If the kernel then waits for somebody else, a thread stays until it does no longer, of [`MAX_LEFT_BEHIND`] at
    /// most.
    pub(crate) fn read_apart(&self, ino: u64, range: &Range<u64>, patience: Duration) -> io::Result<Vec<u8>> {
        let (range, (tell, told)) = (range.clone(), mpsc::sync_channel(1));
        let thread = self.begin(MAX_LEFT_BEHIND, move |root| {
            let opened = root.and_then(|root| open_by_handle(root.as_raw_fd(), ino, READ_QUIETLY));
            // What is told does not wait for the file to be closed, in which the kernel writes its pages out.
            let _told = match &opened {
                Ok(file) => tell.send(read_range(file, &range)),
                Err(e) => tell.send(Err(io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))),
            };
        })?;
        // Of one that was told of, only the close is left.
        thread.leave();
        told.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Has the kernel write the dirty pages of these files, those of mappings too, and waits until the server has
    /// answered for them. It keeps the pages, also those that the server refused: there is nothing else of them. Gives
    /// the files that could not be opened; if the kernel asks somebody else whether they may be (fanotify(7)), no
    /// longer than `patience` is waited for that, and then a thread stays as in [`Inside::read_apart`].
    ///
    /// Up to [`LANES`] threads do it, each for its share of the files: in turn, the last file would be written with
    /// all that became dirty while the others were.
    ///
    /// When a file is closed, the kernel writes what has become dirty meanwhile, and waits for all of it. That is not
    /// waited for here, for up to [`MAX_OPEN`] files a thread and unless about [`MAX_CLOSING`] threads are at it. Until
    /// then the mount is busy, as it mostly is by whoever makes pages dirty.
    pub(crate) fn write_out(&self, files: &[u64], patience: Duration) -> io::Result<Vec<u64>> {
        let lanes = files.len().min(LANES);
        let (mut begun, mut left) = (Vec::new(), Vec::new());
        for lane in 0..lanes {
            let share: Vec<u64> = files.iter().skip(lane).step_by(lanes).copied().collect();
            match self.begin_write_out(share.clone()) {
                Ok(write_out) => begun.push(write_out),
                Err(e) if begun.is_empty() => return Err(e),
                Err(_) => left.extend(share),
            }
        }
        let mut closing = Vec::new();
        for write_out in begun {
            closing.extend(write_out.wait(patience, &mut left));
        }
        let until = Instant::now() + PATIENCE_TO_CLOSE;
        closing.into_iter().for_each(|write_out| write_out.wait_for_close(&self.closing, until));
        Ok(left)
    }

    /// Begins to do so for a share of the files.
    fn begin_write_out(&self, files: Vec<u64>) -> io::Result<PageWriter> {
        let (tell, told) = mpsc::channel();
        let asked = files.clone();
        let closing = Begun { all: self.closing.clone(), over: Arc::default() };
        let closes = EndsWhenDropped(closing.clone());
        let thread = self.begin(MAX_LEFT_BY_ROOT, move |root| {
            let mut open = Vec::new();
            for ino in asked {
                let file = match &root {
                    Ok(root) => open_by_handle(root.as_raw_fd(), ino, READ_QUIETLY),
                    Err(e) => Err(io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO))),
                };
                // The kernel has forgotten the file, so it keeps nothing of it.
                let gone =
                    matches!((&root, &file), (Ok(_), Err(e)) if e.raw_os_error() == Some(libc::ESTALE));
                let mut failed = file.is_err() && !gone;
                if let Ok(file) = file {
                    let _ = tell.send(PageStep::Begun);
                    let written = write_pages(&file);
                    failed = written.is_err();
                    // What is left the kernel writes when the file is closed, which is told of behind that.
                    if matches!(written, Ok(true)) && open.len() < MAX_OPEN {
                        open.push(file);
                    }
                }
                let _ = tell.send(PageStep::Done { failed });
            }
            drop((open, root));
            drop(closes);
            let _ = tell.send(PageStep::Closed);
        })?;
        Ok(PageWriter { files, told, thread, closing })
    }

    /// Begins `work` in a thread apart, with the root of the mount. EAGAIN if as many as `most` wait for the kernel
    /// that nobody waits for any more.
    fn begin(
        &self,
        most: usize,
        work: impl FnOnce(io::Result<OwnedFd>) + Send + 'static,
    ) -> io::Result<Begun> {
        if self.left_behind.load(Ordering::Relaxed) >= most {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let begun = Begun { all: self.left_behind.clone(), over: Arc::default() };
        let (inside, own) = (self.clone(), EndsWhenDropped(begun.clone()));
        let thread = std::thread::Builder::new().name("pando-inside".into());
        thread.spawn(move || {
            let _own = own;
            // ESTALE is to mean that the kernel has forgotten the file, not that something hides the mount.
            work(Apart::become_so().and_then(|_| inside.root().map_err(io::Error::other)));
        })?;
        Ok(begun)
    }
}

/// A thread that has the pages of some files written out.
struct PageWriter {
    files: Vec<u64>,
    told: mpsc::Receiver<PageStep>,
    thread: Begun,
    /// The same thread, as one that closes files.
    closing: Begun,
}

impl PageWriter {
    /// Waits until the pages are written, and no longer than `patience` for a file to be opened. Those that could not
    /// be are added to `left`. Gives the thread back if it may still have files to close.
    fn wait(self, patience: Duration, left: &mut Vec<u64>) -> Option<PageWriter> {
        let (mut waiting, mut writing) = (self.files.iter().copied(), false);
        let mut at = waiting.next();
        while let Some(ino) = at {
            let step = match writing {
                true => self.told.recv().ok(),
                false => self.told.recv_timeout(patience).ok(),
            };
            match step {
                Some(PageStep::Begun) => writing = true,
                Some(PageStep::Done { failed }) => {
                    left.extend(failed.then_some(ino));
                    (at, writing) = (waiting.next(), false);
                }
                Some(PageStep::Closed) | None => {
                    self.thread.leave();
                    left.extend(at.into_iter().chain(waiting));
                    return None;
                }
            }
        }
        Some(self)
    }

    /// Waits until its files are closed, but not beyond `until` while only some of `all` such threads are at it.
    fn wait_for_close(self, all: &AtomicUsize, until: Instant) {
        let closed = match all.load(Ordering::Relaxed) < MAX_CLOSING {
            true => self.told.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
            false => self.told.recv().ok(),
        };
        if closed.is_none() {
            self.closing.leave();
        }
    }
}

/// A thread that may wait for the kernel longer than somebody waits for it.
#[derive(Clone)]
struct Begun {
    /// How many such threads nobody waits for any more.
    all: Arc<AtomicUsize>,
    /// It has ended, or nobody waits for it any more.
    over: Arc<AtomicBool>,
}

impl Begun {
    /// Nobody waits for it any more.
    fn leave(&self) {
        // Counted first, so that its end takes nothing away that is not there.
        self.all.fetch_add(1, Ordering::SeqCst);
        self.second_takes_away();
    }

    fn ended(&self) {
        self.second_takes_away();
    }

    /// Of its end and of being left, which come in any order, the second ends the count.
    fn second_takes_away(&self) {
        if self.over.swap(true, Ordering::SeqCst) {
            self.all.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What a thread has while it runs: it has ended when this is dropped, also by a panic.
struct EndsWhenDropped(Begun);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// What is told of a file whose pages are written out.
enum PageStep {
    /// It is open.
    Begun,
    /// What was dirty is written, or it was not opened.
    Done { failed: bool },
    /// All are, and the root too.
    Closed,
}

/// How a file is opened of which nothing is to be changed.
const READ_QUIETLY: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOATIME).union(OFlags::CLOEXEC);

/// Has the dirty pages of a file written; `false` if some may be left. That the server refuses some is no error.
fn write_pages(file: &OwnedFd) -> io::Result<bool> {
    const WAIT: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // All three together have the kernel write what is dirty now, and nothing that becomes dirty meanwhile.
    const ALL: libc::c_uint = WAIT | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let call = |flags| {
        // SAFETY: the descriptor is open, and no memory is passed.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // An error that nobody has heard of yet ends a call before it writes anything. (What is left then the kernel writes
    // when the file is closed, but only if it keeps what is written.)
    let mut done = Ok(());
    for _ in 0..MAX_ERRORS_BEFORE {
        done = call(ALL);
        if done.is_ok() {
            break;
        }
        let _told = call(WAIT);
    }
    match done {
        Ok(()) => Ok(true),
        Err(e)
            if !matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EIO | libc::EFBIG)) =>
        {
            Err(e)
        }
        Err(_) => Ok(false),
    }
}

/// What there is of a range.
fn read_range(file: &OwnedFd, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut data = vec![0; usize::try_from(range.end - range.start).unwrap_or_default()];
    let mut read = 0;
    while let Some(rest) = data.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, range.start + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    data.truncate(read);
    Ok(data)
}

/// Opens what the handle of `ino` stands for in the file system of `root`.
fn open_by_handle(root: libc::c_int, ino: u64, flags: OFlags) -> io::Result<OwnedFd> {
    let mut handle = Handle {
        bytes: 12,
        kind: HANDLE_TYPE,
        ino_high: (ino >> 32) as u32,
        ino_low: ino as u32,
        generation: 0,
    };
    let flags = flags.bits() as libc::c_int;
    // SAFETY: the struct has the layout of `struct file_handle` and as many bytes behind it as it says; the
    // kernel reads it only.
    let fd = unsafe { libc::open_by_handle_at(root, (&raw mut handle).cast(), flags) };
    match fd {
        ..0 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor was just opened, for us.
        _ => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn threads_that_panic_do_not_take_the_way_in_from_others() {
        let (left_behind, closing) = Default::default();
        let inside = Inside { dir: PathBuf::new(), device: (0, 0), left_behind, closing };
        for _ in 0..3 {
            inside.begin(1, |_| panic!("on purpose")).unwrap().leave();
            let begin = Instant::now();
            while inside.left_behind.load(Ordering::SeqCst) > 0 {
                assert!(begin.elapsed() < Duration::from_secs(20), "it is waited for although it has ended");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
