//! Mounting, serving and unmounting.
//!
//! [`Mount::new`] returns when the kernel has accepted the mount and requests
//! queue up for [`Mount::serve`], which returns when the file system has been
//! unmounted, by whomever. The file system is neither opened nor closed here.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use fuser::{Config, SessionACL};
use pando_fs::{AtimePolicy, Codec, Fs};
use rustix::mount::UnmountFlags;

use crate::{
    attach::attach,
    counters::Counters,
    mountinfo,
    server::{Server, StatsText},
    transport::{
        Handler,
        fuser::{Adapter, Notifier},
        own::{self, offer},
        poll::Poller,
    },
};

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error(
        "/dev/fuse cannot be used: {0}: load the kernel module (modprobe fuse), \
         give this container the device, or open it to users (chmod 666 /dev/fuse)"
    )]
    NoDevice(io::Error),
    /// Mounting needs a helper that is not installed.
    #[error(
        "fusermount3 is not installed and only root mounts without it: \
         install the package fuse3 (Debian, Ubuntu: apt install fuse3)"
    )]
    NoHelper,
    /// `allow_other` is not allowed to ordinary users here.
    #[error("allow_other: add the line user_allow_other to /etc/fuse.conf, or mount without it")]
    NoAllowOther,
    /// The mount point is in use.
    #[error("{0}: in use: close the files and leave the directories below it (lsof {0} names the programs)")]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{0}: no file system is mounted there")]
    NotMounted(PathBuf),
    /// FUSE over io_uring was asked for and cannot be had.
    #[error("io_uring=on: {0}")]
    NoRing(offer::Missing),
    /// A mount option that is not known.
    #[error("{0}: unknown mount option")]
    Option(String),
    /// Anything else.
    #[error("{path}: {source}")]
    Io {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Whether requests come over io_uring instead of `/dev/fuse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel offers it.
    Auto,
    /// Always; the mount fails where the kernel does not offer it.
    On,
    /// Never.
    Off,
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    /// The kernel checks permissions. Unless said, it does wherever they can matter: not where root
    /// mounts for nobody else, because then every check would pass, at the price of a request for
    /// each change of a directory.
    pub default_permissions: Option<bool>,
    /// Refuse every change.
    pub read_only: bool,
    /// With `read_only`: do not even recover the image, and never write to it.
    pub no_recovery: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Access times.
    pub atime: AtimePolicy,
    /// Interval after which the log is flushed unasked.
    pub commit: Option<Duration>,
    /// How data is compressed when it is written.
    pub compress: Codec,
    /// Read ahead of files that are read in order.
    pub readahead: bool,
    /// Give freed space back to what the image lies on.
    pub discard: bool,
    /// Mount an image whose log is damaged beyond repair, without what is lost.
    pub salvage: bool,
    /// What `mount` and `findmnt` show as the source.
    pub fsname: Option<String>,
    /// Threads that read requests.
    pub threads: usize,
    /// How long to look for the next request before sleeping, while they come densely; zero for
    /// never. Only one thread does, so with more it gains nothing and is off.
    pub poll: Duration,
    /// Go on polling even if somebody else wants the CPU: for tests and measurements.
    pub poll_always: bool,
    /// Whether requests come over io_uring; `threads` and `poll` are then of no account.
    pub io_uring: IoUring,
}

/// Longest time to poll, which is also how dense requests must be; a second would be no polling
/// between requests any more.
const MAX_POLL_MICROS: u64 = 100_000;

impl Settings {
    /// Whether the kernel is asked to check permissions.
    pub(crate) fn checks_permissions(&self) -> bool {
        let only_root = !self.allow_other && rustix::process::geteuid().is_root();
        self.default_permissions.unwrap_or(!only_root)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_other: false,
            default_permissions: None,
            read_only: false,
            no_recovery: false,
            dev: false,
            suid: false,
            exec: true,
            atime: AtimePolicy::default(),
            commit: None,
            compress: Codec::default(),
            readahead: true,
            discard: true,
            salvage: false,
            fsname: None,
            threads: 1,
            poll: Duration::from_micros(200),
            poll_always: false,
            io_uring: IoUring::Off,
        }
    }
}

impl Settings {
    /// Applies a comma-separated list of options as `mount -o` takes them; later ones win.
    /// Options that only matter to `fstab` or to other file systems are accepted.
    pub fn apply(&mut self, list: &str) -> Result<(), Error> {
        for option in list.split(',').filter(|o| !o.is_empty()) {
            let unknown = || Error::Option(option.to_owned());
            match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "norecovery" => self.no_recovery = true,
                "recovery" => self.no_recovery = false,
                "allow_other" => self.allow_other = true,
                "default_permissions" => self.default_permissions = Some(true),
                "no_default_permissions" => self.default_permissions = Some(false),
                "dev" => self.dev = true,
                "nodev" => self.dev = false,
                "suid" => self.suid = true,
                "nosuid" => self.suid = false,
                "exec" => self.exec = true,
                "noexec" => self.exec = false,
                "atime" | "relatime" => self.atime = AtimePolicy::Relatime,
                "noatime" => self.atime = AtimePolicy::Noatime,
                "strictatime" => self.atime = AtimePolicy::Strict,
                "discard" => self.discard = true,
                "salvage" => self.salvage = true,
                "nodiscard" => self.discard = false,
                "poll_always" => self.poll_always = true,
                "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "nofail" | "_netdev"
                | "async" | "diratime" | "nodiratime" | "norelatime" | "nostrictatime" => {}
                _ => match option.split_once('=') {
                    Some(("fsname", name)) => self.fsname = Some(name.to_owned()),
                    Some(("subtype", _)) => {}
                    Some(("compress", name)) => {
                        self.compress = codec(name).ok_or_else(unknown)?;
                    }
                    Some(("commit", seconds)) => {
                        let seconds: u32 = seconds.parse().map_err(|_| unknown())?;
                        self.commit = Some(Duration::from_secs(u64::from(seconds.max(1))));
                    }
                    Some(("threads", n)) => {
                        let n = n.parse().ok().filter(|n| (1..=64).contains(n));
                        self.threads = n.ok_or_else(unknown)?;
                    }
                    Some(("readahead", "on")) => self.readahead = true,
                    Some(("readahead", "off")) => self.readahead = false,
                    Some(("io_uring", "auto")) => self.io_uring = IoUring::Auto,
                    Some(("io_uring", "on")) => self.io_uring = IoUring::On,
                    Some(("io_uring", "off")) => self.io_uring = IoUring::Off,
                    Some(("poll", micros)) => {
                        let micros = micros.parse().ok().filter(|n| *n <= MAX_POLL_MICROS);
                        self.poll = Duration::from_micros(micros.ok_or_else(unknown)?);
                    }
                    _ if option.starts_with("x-") || option.starts_with("comment=") => {}
                    _ => return Err(unknown()),
                },
            }
        }
        Ok(())
    }
}

/// `none`, `lz4`, `zstd` or `zstd:LEVEL`.
fn codec(name: &str) -> Option<Codec> {
    match name.split_once(':').unwrap_or((name, "")) {
        ("none", "") => Some(Codec::None),
        ("lz4", "") => Some(Codec::Lz4),
        ("zstd", "") => Some(Codec::Zstd(3)),
        ("zstd", level) => level.parse().ok().filter(|level| (1..=19).contains(level)).map(Codec::Zstd),
        _ => None,
    }
}

/// What answers requests.
enum Session {
    /// The FUSE library over `/dev/fuse`.
    Library(fuser::Session<Adapter<Server>>),
    /// Our own, over io_uring.
    Own(own::Session<Server>),
}

/// A file system that is mounted and waits to be served.
pub struct Mount {
    session: Session,
    dir: PathBuf,
    /// Device number of the mount.
    device: Option<String>,
    counters: Arc<Counters>,
}

impl Mount {
    /// Mounts `fs` on `dir`.
    ///
    /// As root directly, otherwise by `fusermount3`.
    pub fn new(fs: Fs, dir: &Path, settings: &Settings, stats: Option<StatsText>) -> Result<Mount, Error> {
        let dir = dir.canonicalize().map_err(|source| Error::Io { path: dir.to_owned(), source })?;
        let counters = Arc::new(Counters::default());
        let server = Arc::new(Server::new(fs, counters.clone(), stats));
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
        let session = match ring {
            true => own::Session::new(server, fd, &dir).map(Session::Own),
            false => over_device(server, fd, settings, &counters).map(Session::Library),
        };
        let session = session.map_err(|source| {
            // Without the handshake nobody will ever answer on this mount.
            if let Err(e) = unmount(&dir, How::Force) {
                log::error!("{e}");
            }
            Error::Io { path: dir.clone(), source }
        })?;
        let device = mountinfo::at(&dir).ok().flatten().map(|entry| entry.device);
        raise_readahead(device.as_deref());
        Ok(Mount { session, dir, device, counters })
    }

    /// Whether requests come over io_uring.
    pub fn over_io_uring(&self) -> bool {
        matches!(self.session, Session::Own(_))
    }

    /// Where it is mounted (absolute, without symlinks).
    pub fn dir(&self) -> &Path {
        &self.dir
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
        let served = match self.session {
            Session::Library(session) => session.run(),
            Session::Own(session) => session.serve(),
        };
        log::info!("{:?}", self.counters.polling());
        // Only our own mount: someone may have unmounted it and mounted another here.
        if served.is_err()
            && let Ok(Some(now)) = mountinfo::at(&self.dir)
            && self.device.as_ref() == Some(&now.device)
            && let Err(e) = unmount(&self.dir, How::Force)
        {
            log::error!("{e}");
        }
        served
    }

    /// Answers requests from another thread.
    pub fn spawn(self) -> io::Result<Running> {
        let (dir, counters) = (self.dir.clone(), self.counters.clone());
        let thread = std::thread::Builder::new().name("pando-serve".into()).spawn(|| self.serve())?;
        Ok(Running { thread: Some(thread), dir, counters })
    }
}

/// The session of the FUSE library.
fn over_device(
    server: Arc<Server>,
    fd: OwnedFd,
    settings: &Settings,
    counters: &Arc<Counters>,
) -> io::Result<fuser::Session<Adapter<Server>>> {
    let mut config = Config::default();
    config.n_threads = Some(settings.threads.max(1));
    config.clone_fd = settings.threads > 1;
    // The kernel itself keeps others out unless `allow_other` was given to it.
    let acl = SessionACL::All;
    let polled = if settings.threads > 1 { None } else { fd.try_clone().ok() };
    let poller = Poller::new(polled, settings.poll, !settings.poll_always, counters.clone());
    let session = fuser::Session::from_fd(Adapter::new(server.clone(), poller), fd, acl, config)?;
    server.start(Arc::new(Notifier(session.notifier())));
    Ok(session)
}

/// A file system that is served by a thread; unmounted when dropped.
pub struct Running {
    thread: Option<JoinHandle<io::Result<()>>>,
    dir: PathBuf,
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

    /// Unmounts and waits until the last request is answered. Fails if files are open.
    pub fn unmount(mut self) -> Result<(), Error> {
        unmount(&self.dir, How::Plain)?;
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
            if let Err(e) = unmount(&self.dir, How::Force)
                && !matches!(e, Error::NotMounted(_))
            {
                // Joining would wait for ever.
                log::error!("{e}");
                return;
            }
            let _ = self.join();
        }
    }
}

/// Lets the kernel read ahead as much as one request carries. Best effort: only root may.
fn raise_readahead(device: Option<&str>) {
    const WANTED_KB: u32 = 1024;
    let Some(device) = device else { return };
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(e) = std::fs::write(&file, WANTED_KB.to_string()) {
        log::debug!("{file}: {e}");
    }
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Fail if it is in use.
    Plain,
    /// Detach it now; it ends when the last file is closed.
    Lazy,
    /// Detach it and cut off whoever uses it; for a daemon that must end, or is dead. Dirty
    /// pages of mappings that cannot be written any more are lost.
    Force,
}

/// Unmounts what is mounted on exactly `dir` (absolute, without symlinks).
pub fn unmount(dir: &Path, how: How) -> Result<(), Error> {
    let at = |source: io::Error| Error::Io { path: dir.to_owned(), source };
    let flags = match how {
        How::Plain => UnmountFlags::empty(),
        How::Lazy => UnmountFlags::DETACH,
        How::Force => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy(dir.to_owned())),
        Err(rustix::io::Errno::INVAL) => Err(Error::NotMounted(dir.to_owned())),
        Err(rustix::io::Errno::PERM) => by_helper(dir, how),
        Err(e) => Err(at(e.into())),
    }
}

fn by_helper(dir: &Path, how: How) -> Result<(), Error> {
    let at = |source: io::Error| Error::Io { path: dir.to_owned(), source };
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if how != How::Plain {
        command.arg("-z");
    }
    let output = match command.arg("--").arg(dir).output() {
        Ok(output) => output,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoHelper),
        Err(e) => return Err(at(e)),
    };
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if text.contains("busy") {
        Err(Error::Busy(dir.to_owned()))
    } else if text.contains("not found in") {
        Err(Error::NotMounted(dir.to_owned()))
    } else {
        Err(at(io::Error::other(text)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn options_are_understood_and_unknown_ones_refused() {
        let mut s = Settings::default();
        s.apply("rw,noatime,allow_other,dev,suid,,defaults,commit=5,x-systemd.automount").unwrap();
        assert!(s.discard);
        s.apply("ro,nosuid,nodiscard").unwrap();
        assert!(!s.discard);
        s.apply("discard").unwrap();
        assert!(s.discard);
        assert!(s.allow_other && s.dev && s.read_only && !s.suid && s.checks_permissions());
        assert_eq!((s.atime, s.commit), (AtimePolicy::Noatime, Some(Duration::from_secs(5))));
        s.apply("poll=50").unwrap();
        assert_eq!((s.poll, s.poll_always), (Duration::from_micros(50), false));
        s.apply("poll=0,poll_always").unwrap();
        assert!(s.poll.is_zero() && s.poll_always);
        for (name, is) in [("auto", IoUring::Auto), ("on", IoUring::On), ("off", IoUring::Off)] {
            s.apply(&format!("io_uring={name}")).unwrap();
            assert_eq!(s.io_uring, is);
        }
        for (name, is) in [("off", false), ("on", true)] {
            s.apply(&format!("readahead={name}")).unwrap();
            assert_eq!(s.readahead, is);
        }
        s.apply("compress=zstd:9").unwrap();
        assert_eq!(s.compress, Codec::Zstd(9));
        s.apply("compress=none").unwrap();
        assert_eq!(s.compress, Codec::None);
        for bad in [
            "frobnicate",
            "commit=x",
            "compress=zip",
            "compress=zstd:20",
            "compress=lz4:1",
            "threads=0",
            "readahead=1",
            "poll=",
            "poll=-1",
            "poll=100001",
            "io_uring=perhaps",
        ] {
            assert!(matches!(s.apply(bad), Err(Error::Option(o)) if o == bad), "{bad}");
        }
    }

    #[test]
    fn unmounting_what_is_not_mounted_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(dir.path(), How::Plain), Err(Error::NotMounted(_) | Error::Io { .. })));
    }
}
