//! Mounts a file system, serves it, and unmounts it.
//!
//! [`Mount::new`] returns when the kernel has accepted the mount and requests queue up for [`Mount::serve`], which
//! returns when the file system has been unmounted, by any process. The file system is neither opened nor closed
//! here.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use pando_fs::{AtimePolicy, Fs};

use crate::{
    attach::{How, attach},
    coherence::{KernelKeeps, StatsText},
    counters::Counters,
    dirty_limit::DirtyLimit,
    ender::Ender,
    error::Error,
    guard, mountinfo,
    own_mount::{self, OwnMount},
    server::Server,
    settings::{IoUring, Settings},
    transport::{
        own::{Channel, Session, Wishes, offer},
        poll::Poller,
    },
};

/// A file system that is mounted and waits to be served.
pub struct Mount {
    session: Session<Server>,
    dir: PathBuf,
    /// Device number of the mount.
    device: Option<String>,
    ender: Ender,
    counters: Arc<Counters>,
}

impl Mount {
    /// Mounts `fs` on `dir`.
    ///
    /// As root directly, otherwise by `fusermount3`.
    pub fn new(fs: Fs, dir: &Path, settings: &Settings, stats: Option<StatsText>) -> Result<Mount, Error> {
        let dir = dir.canonicalize().map_err(|source| Error::Io { path: dir.to_owned(), source })?;
        let counters = Arc::new(Counters::default());
        // Reading a listing that is kept does not come to the server, and so changes no access time.
        let listings = settings.atime != AtimePolicy::Strict;
        let access_lists = settings.checks_permissions();
        let keeps = KernelKeeps { writeback: settings.writeback, listings, access_lists };
        let server = Arc::new(Server::new(fs, counters.clone(), stats, keeps));
        let ring = match settings.io_uring {
            IoUring::Off => false,
            IoUring::On => offer::check().map(|()| true).map_err(Error::NoRing)?,
            IoUring::Auto => match offer::check() {
                Ok(()) => true,
                Err(e) => {
                    log::info!("requests come over /dev/fuse: {e}");
                    false
                }
            },
        };
        let fd = attach(&dir, settings)?;
        let device = mountinfo::at(&dir).ok().flatten().map(|entry| entry.device);
        let ender = Ender::new(&dir, device.as_deref(), &server.shared);
        let wishes = Wishes { writeback: settings.writeback, access_lists };
        let session = channel(ring, settings, &counters)
            .and_then(|channel| Session::new(server.clone(), fd, &dir, channel, wishes));
        let session = session.map_err(|source| {
            // Without the handshake no request on this mount would ever be answered.
            ender.force();
            Error::Io { path: dir.clone(), source }
        })?;
        if let Some(device) = &device {
            raise_readahead(device);
        }
        if let Some(limit) = device.as_deref().filter(|_| settings.writeback).and_then(DirtyLimit::new) {
            server.limit_dirty(limit);
        }
        let own = device.as_deref().and_then(|device| OwnMount::new(&dir, device));
        if let Some(own) = own {
            server.set_own_mount(own, session.awaits_answers_to_writes());
        }
        server.start_policies(device.clone());
        Ok(Mount { session, dir, device, ender, counters })
    }

    /// Whether requests come over io_uring.
    pub fn over_io_uring(&self) -> bool {
        self.session.over_io_uring()
    }

    /// Where it is mounted (absolute, without symlinks).
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file by which [`guard::cut`] ends all calls on this mount, also when this process has been killed. Root
    /// may open it, and the user who has mounted the file system.
    pub fn abort_file(&self) -> io::Result<OwnedFd> {
        guard::abort_file(self.device.as_deref().ok_or(io::ErrorKind::NotFound)?)
    }

    /// What ends the mount while it is served.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Requests by kind.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Answers requests until the file system is unmounted.
    ///
    /// If serving fails (a panic, a broken protocol) the mount is ended by force, so that no
    /// program waits for answers that never come.
    pub fn serve(self) -> io::Result<()> {
        let served = self.session.serve();
        let (handovers, by_workers) = (self.counters.handovers(), self.counters.answered_by_workers());
        log::info!("{:?}, {handovers} handovers, {by_workers} by workers", self.counters.polling());
        if served.is_err() {
            self.ender.force();
        }
        served
    }

    /// Answers requests from another thread.
    pub fn spawn(self) -> io::Result<Running> {
        let (dir, ender, counters) = (self.dir.clone(), self.ender.clone(), self.counters.clone());
        let thread = std::thread::Builder::new().name("pando-serve".into()).spawn(|| self.serve())?;
        Ok(Running { thread: Some(thread), dir, ender, counters })
    }
}

/// Ends the process, when its mount has ended and the file system is closed: also if one of its threads waits for a
/// program, nothing that its descriptors lock stays locked.
pub fn exit(code: i32) -> ! {
    own_mount::close_all();
    std::process::exit(code)
}

/// How requests are to come.
fn channel(ring: bool, settings: &Settings, counters: &Arc<Counters>) -> io::Result<Channel> {
    let readers = if ring { 1 } else { settings.threads };
    // A thread that sleeps in a read is woken for each request, whether or not another one polls.
    let limit = if ring || readers > 1 { Duration::ZERO } else { settings.poll };
    let poller =
        Poller::new(limit, !settings.poll_always, counters.clone()).with_halt_poll(settings.halt_poll)?;
    Ok(Channel { ring, readers, poller, counters: counters.clone() })
}

/// A file system that is served by a thread; unmounted when dropped.
pub struct Running {
    thread: Option<JoinHandle<io::Result<()>>>,
    dir: PathBuf,
    ender: Ender,
    counters: Arc<Counters>,
}

impl Running {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Requests by kind.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Unmounts and waits until the last request is answered. Fails if files are open, or the mount is not there any
    /// more: then it is ended by force.
    pub fn unmount(mut self) -> Result<(), Error> {
        self.ender.unmount(How::Plain)?;
        self.join()
    }

    /// Waits until someone has unmounted it and the last request is answered.
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        let at = |source| Error::Io { path: self.dir.clone(), source };
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(at(e)),
            Some(Err(_)) => Err(at(io::Error::other("the serving thread panicked"))),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.thread.is_some() {
            if !self.ender.force() {
                // Joining would wait for ever.
                return;
            }
            let _ = self.join();
        }
    }
}

/// Kilobytes that the kernel reads ahead, as its file takes them: as much as one request carries.
const READ_AHEAD_KB: u64 = 1024;
/// Lets the kernel read ahead as much as one request carries. Best effort: only root may.
fn raise_readahead(device: &str) {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(e) = std::fs::write(&file, READ_AHEAD_KB.to_string()) {
        log::debug!("{file}: {e}");
    }
}
