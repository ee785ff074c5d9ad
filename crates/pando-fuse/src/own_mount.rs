//! The server's access to its own mount: it opens files there by their inode numbers, without a path.
//!
//! The kernel does some things only for a caller: it writes out the pages that it keeps of one file (a notification
//! makes it drop them as well), and it takes a modification time into its inode. So the server makes such calls on its
//! own mount. It opens files by handle (`open_by_handle_at(2)`, which requires `CAP_DAC_READ_SEARCH`), so only a daemon
//! of root can do this.
//!
//! A thread that waits for an answer of its own process could keep a killed process from ending: the kernel ends such
//! a wait only when the connection is cut, the connection is cut when its last descriptor is closed, and a killed
//! process closes its descriptors when the last thread that shares them has ended. So a thread that calls the mount
//! has a table of descriptors of its own ([`UnsharedFiles`]), without the connection, and a daemon that is killed
//! ends at once. (`guard` is for threads that wait in a notification, on the connection itself.)
//!
//! Guarantees: an open gives the inode of this mount or fails, whatever is mounted on the directory by now; no
//! descriptor outlives a call, so the mount is not kept busy (except by threads that are not waited for any more). Each
//! call may send requests to the server, so a thread that reads requests must not make one.
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

/// Threads that may wait for the kernel after their caller has stopped waiting for them, a count: of threads that a
/// user can cause.
const MAX_LEFT_THREADS: usize = 8;
/// The same for threads that only root can cause, a count. It is larger, so that a user cannot keep the pages of others
/// from being written out.
const MAX_LEFT_ROOT_THREADS: usize = 2 * MAX_LEFT_THREADS;
/// Threads that write out the pages of several files at once, a count.
const WRITING_THREADS: usize = 4;
/// Threads that may go on closing files whose pages are written out, while no caller waits for them, a count.
const MAX_CLOSING_THREADS: usize = 32;
/// Files that such a thread keeps open and closes at its end, a count; others it closes at once.
const MAX_HELD_FILES: usize = 128;
/// How long a caller waits for such a thread: long enough that an unused mount is not busy when the call returns.
const PATIENCE_TO_CLOSE: Duration = Duration::from_millis(5);
/// How often the kernel is asked to write pages out while that ends with an error, a count.
const MAX_TRIES_BEFORE: u32 = 5;
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

/// The right of a thread to wait for the mount: it shares no descriptors with the rest of the process. It lacks the
/// descriptors of the log and the image, so it may only call functions of the file system that do no I/O.
pub(crate) struct UnsharedFiles {
    /// Not to be sent to another thread.
    _here: PhantomData<*const ()>,
}

impl UnsharedFiles {
    /// Gives this thread an empty table of descriptors of its own. For threads that have just begun.
    pub(crate) fn unshare() -> io::Result<Self> {
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

/// Closes all descriptors of the process, which frees the files that they lock although a thread still waits in the
/// kernel. For a process that does nothing more.
pub(crate) fn close_all() {
    // SAFETY: no memory is passed. Any later use of one of the descriptors fails.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
}

/// Whether a thread of this process sleeps without being interruptible, as it does for a lock in the kernel. A thread
/// that waits for an answer of the server can be interrupted. If the state cannot be read: yes.
pub(crate) fn waits_for_lock(thread: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else { return true };
    // The state is behind the name, which is in parentheses.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('D'))
}

/// Runs `work` in a thread that may wait for the mount, and waits until it ends.
pub(crate) fn with_unshared_files<T: Send>(work: impl FnOnce(&UnsharedFiles) -> T + Send) -> io::Result<T> {
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name("pando-own-mount".into());
        let thread = thread.spawn_scoped(s, || UnsharedFiles::unshare().map(|unshared| work(&unshared)))?;
        thread.join().map_err(|_| io::Error::other("a panic"))?
    })
}

/// The server's own mount, as a place where it opens files.
#[derive(Clone)]
pub(crate) struct OwnMount {
    dir: PathBuf,
    /// Major and minor number of the mount's device.
    device: (u32, u32),
    /// Threads that are not waited for any more.
    left_behind: Arc<AtomicUsize>,
    /// Of these, threads that close files which a program goes on writing.
    closing: Arc<AtomicUsize>,
}

impl OwnMount {
    /// The mount on `dir`, whose device is `device` (`major:minor`); `None` if this process may not open files by
    /// handle. May be called before requests are answered.
    pub(crate) fn new(dir: &Path, device: &str) -> Option<Self> {
        let (major, minor) = device.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        // The capability may be missing: this call requires it, and opens no file.
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

    /// Opens the root of the mount. Only for threads with [`UnsharedFiles`].
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

    /// A descriptor (`O_PATH`) of the inode `ino`, of any kind, which the kernel must know. Sends no request.
    pub(crate) fn open_path(root: &OwnedFd, ino: u64) -> io::Result<OwnedFd> {
        open_by_handle(root.as_raw_fd(), ino, OFlags::PATH | OFlags::CLOEXEC)
    }

    /// Sets the access time of an open file, and its modification time if one is given. The kernel sends a SETATTR of
    /// this thread.
    pub(crate) fn set_times(file: &OwnedFd, atime: Time, mtime: Option<Time>) -> io::Result<()> {
        let time = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: time(atime), last_modification: mtime.map_or(omitted, time) };
        Ok(rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Sets the modification time of a file in the kernel's inode. The kernel sends a SETATTR of this thread.
    pub(crate) fn set_modified(&self, _: &UnsharedFiles, ino: u64, time: Time) -> io::Result<()> {
        let file = self.open(ino, OFlags::PATH)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() },
        };
        Ok(rustix::fs::utimensat(&file, c"", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Reads a range of a file as its readers see it, up to the end of the file. Waits no longer than `patience`. If
    /// the kernel waits longer, for a lock of another process, one of at most [`MAX_LEFT_THREADS`] threads stays until
    /// that wait ends.
    pub(crate) fn read(&self, ino: u64, range: &Range<u64>, patience: Duration) -> io::Result<Vec<u8>> {
        let (range, (tell, told)) = (range.clone(), mpsc::sync_channel(1));
        let thread = self.begin(MAX_LEFT_THREADS, move |root| {
            let opened = root.and_then(|root| open_by_handle(root.as_raw_fd(), ino, READ_QUIETLY));
            // The result is sent before the file is closed, because a close writes out pages.
            let _told = match &opened {
                Ok(file) => tell.send(read_range(file, &range)),
                Err(e) => tell.send(Err(io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO)))),
            };
        })?;
        // If the result was sent, only the close is left.
        thread.leave();
        told.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Has the kernel write the dirty pages of these files, those of mappings too, and waits until the server has
    /// answered for them. The kernel keeps the pages, also those that the server refused: there is no other copy of
    /// them. Gives the files that could not be opened. If the kernel asks another process whether they may be opened
    /// (fanotify(7)), this waits for that no longer than `patience`, and then a thread stays as in
    /// [`OwnMount::read`].
    ///
    /// Up to [`WRITING_THREADS`] threads do it, each for its share of the files. A single thread would write the last
    /// file with all that became dirty while it wrote the others.
    ///
    /// When a file is closed, the kernel writes the pages that have become dirty meanwhile, and waits for all of them.
    /// This call does not wait for that, for up to [`MAX_HELD_FILES`] files a thread, unless about
    /// [`MAX_CLOSING_THREADS`] threads close files already. Until the files are closed the mount is busy, as it mostly
    /// is anyway because of the programs that write.
    pub(crate) fn write_out(&self, files: &[u64], patience: Duration) -> io::Result<Vec<u64>> {
        let lanes = files.len().min(WRITING_THREADS);
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

    /// Starts the thread for a share of the files.
    fn begin_write_out(&self, files: Vec<u64>) -> io::Result<PageWriter> {
        let (tell, told) = mpsc::channel();
        let asked = files.clone();
        let closing = Begun { all: self.closing.clone(), over: Arc::default() };
        let closes = EndsWhenDropped(closing.clone());
        let thread = self.begin(MAX_LEFT_ROOT_THREADS, move |root| {
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
                    // The kernel writes the rest when the file is closed; so this file is reported as written after
                    // that.
                    if matches!(written, Ok(true)) && open.len() < MAX_HELD_FILES {
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

    /// Starts `work` in a thread with [`UnsharedFiles`], and gives it the root of the mount. EAGAIN if `most` threads
    /// already wait for the kernel without a caller that waits for them.
    fn begin(
        &self,
        most: usize,
        work: impl FnOnce(io::Result<OwnedFd>) + Send + 'static,
    ) -> io::Result<Begun> {
        if self.left_behind.load(Ordering::Relaxed) >= most {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let begun = Begun { all: self.left_behind.clone(), over: Arc::default() };
        let (mount, own) = (self.clone(), EndsWhenDropped(begun.clone()));
        let thread = std::thread::Builder::new().name("pando-own-mount".into());
        thread.spawn(move || {
            let _own = own;
            // ESTALE has to mean that the kernel has forgotten the file, not that another mount hides this one.
            work(UnsharedFiles::unshare().and_then(|_| mount.root().map_err(io::Error::other)));
        })?;
        Ok(begun)
    }
}

/// A thread that writes out the pages of some files.
struct PageWriter {
    files: Vec<u64>,
    told: mpsc::Receiver<PageStep>,
    thread: Begun,
    /// The same thread, counted among those that close files.
    closing: Begun,
}

impl PageWriter {
    /// Waits until the pages are written, and no longer than `patience` for a file to be opened. Files that could not
    /// be opened are added to `left`. Gives the thread back if it may still have files to close.
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

    /// Waits until its files are closed, but not beyond `until` while only a part of `all` such threads closes files.
    fn wait_for_close(self, all: &AtomicUsize, until: Instant) {
        let closed = match all.load(Ordering::Relaxed) < MAX_CLOSING_THREADS {
            true => self.told.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
            false => self.told.recv().ok(),
        };
        if closed.is_none() {
            self.closing.leave();
        }
    }
}

/// A thread that may wait for the kernel longer than its caller waits for the thread.
#[derive(Clone)]
struct Begun {
    /// How many such threads nobody waits for any more.
    all: Arc<AtomicUsize>,
    /// The thread has ended, or nobody waits for it any more.
    over: Arc<AtomicBool>,
}

impl Begun {
    /// Notes that nobody waits for the thread any more.
    fn leave(&self) {
        // Counted first, because the end of the thread subtracts it again.
        self.all.fetch_add(1, Ordering::SeqCst);
        self.second_takes_away();
    }

    /// Notes that the thread has ended.
    fn ended(&self) {
        self.second_takes_away();
    }

    /// The thread ends and is left in any order; the second of these events subtracts it from the count.
    fn second_takes_away(&self) {
        if self.over.swap(true, Ordering::SeqCst) {
            self.all.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Held by a thread while it runs. Dropping it, also in a panic, notes that the thread has ended.
struct EndsWhenDropped(Begun);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// What the thread reports of a file whose pages it writes out.
enum PageStep {
    /// The file is open.
    Begun,
    /// Its dirty pages are written, or it was not opened.
    Done { failed: bool },
    /// All files are closed, and the root too.
    Closed,
}

/// Flags that open a file without changing it, its access time included.
const READ_QUIETLY: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOATIME).union(OFlags::CLOEXEC);

/// Writes out the dirty pages of a file; `false` if some may be left. Pages that the server refuses are no error.
fn write_pages(file: &OwnedFd) -> io::Result<bool> {
    const WAIT: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
    // All three flags together have the kernel write the pages that are dirty now, and none that become dirty
    // meanwhile.
    const SYNC_FLAGS: libc::c_uint = WAIT | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let call = |flags| {
        // SAFETY: the descriptor is open, and no memory is passed.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // A pending error ends a call before it writes anything. (The kernel writes the remaining pages when the file is
    // closed, but only with the write-back cache.)
    let mut done = Ok(());
    for _ in 0..MAX_TRIES_BEFORE {
        done = call(SYNC_FLAGS);
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

/// Reads a range of a file, up to the end of the file.
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

/// Opens the inode `ino` in the file system of `root`.
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
    fn threads_that_panic_are_not_counted_for_ever() {
        let (left_behind, closing) = Default::default();
        let mount = OwnMount { dir: PathBuf::new(), device: (0, 0), left_behind, closing };
        for _ in 0..3 {
            mount.begin(1, |_| panic!("on purpose")).unwrap().leave();
            let begin = Instant::now();
            while mount.left_behind.load(Ordering::SeqCst) > 0 {
                assert!(begin.elapsed() < Duration::from_secs(20), "it is waited for although it has ended");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
