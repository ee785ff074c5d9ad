//! A mount in this process on a device in memory, unmounted whatever happens.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pando_db::device::{Device, MemDevice};
use pando_fs::{FormatOptions, Fs, MountOptions};
use pando_fuse::{
    IoUring, Kind, Mount, Polling, Running, Settings, client,
    control::ControlRequest,
    tool::{self, EntryPath},
};

pub mod mapped;

pub struct World {
    // Dropped in this order: first the mount, then the directory under it.
    running: Option<Running>,
    fs: Fs,
    device: Arc<dyn Device>,
    pub settings: Settings,
    tmp: tempfile::TempDir,
}

/// Whether the tests that use this copy of the module are to run with polling forced on: those that
/// `tests/polled.rs` takes from others.
pub fn forced() -> bool {
    module_path!().contains("::polled::")
}

/// Whether they are to run over io_uring: those that `tests/ring.rs` takes from others.
pub fn over_ring() -> bool {
    module_path!().contains("::ring::")
}

/// Whether they are to run with the kernel's write-back cache: all but those that `tests/through.rs` takes from others.
pub fn kept() -> bool {
    !module_path!().contains("::through::")
}

/// Switches FUSE over io_uring on in this kernel until this process ends, where root may; says so if it
/// cannot be had.
///
/// Other processes may rely on the switch meanwhile: whoever is the last to use it puts it back.
pub fn have_ring() -> bool {
    static HAVE: std::sync::OnceLock<Option<Switch>> = std::sync::OnceLock::new();
    let have = HAVE.get_or_init(|| {
        extern "C" fn put_back() {
            if let Some(Some(switch)) = HAVE.get() {
                switch.put_back();
            }
        }
        let switch = Switch::on();
        if switch.is_some() {
            // SAFETY: the function may be called at any time and does not unwind.
            unsafe { libc::atexit(put_back) };
        }
        switch
    });
    if have.is_none() {
        eprintln!(
            "SKIPPED: this kernel has no FUSE over io_uring, or it is off and only root may switch it on"
        );
    }
    have.is_some()
}

/// The kernel's switch, and a file by whose lock its users know of each other; it says `N` if the
/// switch has to be put back.
struct Switch(File);

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Where users of the switch find each other. There is one switch for the whole machine, so the path
/// does not depend on TMPDIR, nor on the user.
const SWITCH_LOCK: &str = "/tmp/pando-tests-enable-uring";

impl Switch {
    /// Opens the file, and makes it only if there is none: in a directory of all users, opening another
    /// user's file with `O_CREAT` may be forbidden (fs.protected_regular). A symbolic link is not followed.
    fn lock_file() -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NOFOLLOW);
        loop {
            // Only root writes to it; for the lock alone reading is enough.
            let opened = match options.clone().append(true).open(SWITCH_LOCK) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => options.open(SWITCH_LOCK),
                opened => opened,
            };
            match opened {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            match options.clone().append(true).create_new(true).mode(0o644).open(SWITCH_LOCK) {
                // Somebody else was faster.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
    }

    fn on() -> Option<Self> {
        use rustix::fs::{FlockOperation, flock};
        let file = Self::lock_file().ok()?;
        // Waits while another puts it back. (This process may hold the lock by another descriptor, so
        // to ask for it alone could last for ever.)
        flock(&file, FlockOperation::LockShared).ok()?;
        if std::fs::read_to_string(SWITCH).ok()?.trim() != "Y" {
            std::fs::write(SWITCH, "Y").ok()?;
            (&file).write_all(b"N").ok()?;
        }
        Some(Self(file))
    }

    fn put_back(&self) {
        use rustix::fs::{FlockOperation, flock};
        if flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
            && self.0.metadata().is_ok_and(|m| m.len() > 0)
        {
            let _ = std::fs::write(SWITCH, "N");
            let _ = self.0.set_len(0);
        }
    }
}

/// So long that nearly every request is found by polling.
pub const FORCED: Duration = Duration::from_millis(2);

/// Whether there is FUSE here; says so if not.
pub fn have_fuse() -> bool {
    let have = Path::new("/dev/fuse").exists();
    if !have {
        eprintln!("SKIPPED: /dev/fuse is absent");
    }
    have
}

impl World {
    /// A fresh file system, mounted.
    pub fn new() -> Option<World> {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Option<World> {
        Self::on(Arc::new(MemDevice::new(256 << 20)), settings)
    }

    /// A fresh file system on `device`, mounted.
    pub fn on(device: Arc<dyn Device>, settings: Settings) -> Option<World> {
        Self::formatted(device, settings, 64 << 10)
    }

    /// The same with nodes of this size, bytes.
    pub fn formatted(device: Arc<dyn Device>, mut settings: Settings, node: u32) -> Option<World> {
        if forced() {
            settings.poll = FORCED;
            settings.poll_always = true;
        }
        if !have_fuse() {
            return None;
        }
        settings.writeback &= kept();
        if over_ring() {
            settings.io_uring = IoUring::On;
        }
        if settings.io_uring == IoUring::On && !have_ring() {
            return None;
        }
        let options = FormatOptions::default()
            .node_size(node)
            .root_uid(rustix::process::geteuid().as_raw())
            .root_gid(rustix::process::getegid().as_raw());
        Fs::format(device.clone(), &options).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        let fs = open(&device, &settings);
        let mut world = World { running: None, fs, device, settings, tmp };
        world.mount();
        Some(world)
    }

    fn mount(&mut self) {
        let mount = Mount::new(self.fs.clone(), self.tmp.path(), &self.settings, None).unwrap();
        self.running = Some(mount.spawn().unwrap());
    }

    /// Unmounts, closes the file system, opens it again and mounts it again.
    pub fn remount(&mut self) {
        // A test beside this one may just be starting a program, whose copies of our descriptors
        // live until its exec.
        let begin = std::time::Instant::now();
        let dir = self.running.as_ref().unwrap().dir().to_owned();
        while let Err(e) = pando_fuse::unmount(&dir, pando_fuse::How::Plain) {
            let patient = begin.elapsed() < std::time::Duration::from_secs(20);
            assert!(patient && matches!(e, pando_fuse::Error::Busy(_)), "{e}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.running.take().unwrap().wait().unwrap();
        self.fs.close().unwrap();
        self.fs = open(&self.device, &self.settings);
        self.mount();
    }

    /// Ends the mount as when it is dropped.
    pub fn end(&mut self) {
        self.running = None;
    }

    pub fn root(&self) -> &Path {
        self.tmp.path()
    }

    /// The file system behind the mount.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    /// Requests of a kind so far.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.running.as_ref().unwrap().counters().get(kind)
    }

    /// Requests of all kinds so far.
    pub fn all_requests(&self) -> Vec<(&'static str, u64)> {
        self.running.as_ref().unwrap().counters().all()
    }

    /// How often a thread that was about to wait gave the reading of requests away so far.
    pub fn handovers(&self) -> u64 {
        self.running.as_ref().unwrap().counters().handovers()
    }

    /// Requests so far that another thread was woken for.
    pub fn answered_by_workers(&self) -> u64 {
        self.running.as_ref().unwrap().counters().answered_by_workers()
    }

    /// What polling for requests did so far.
    pub fn polling(&self) -> Polling {
        self.running.as_ref().unwrap().counters().polling()
    }

    /// Sends a control request that needs no rights.
    pub fn send(&self, request: &ControlRequest) -> Result<u64, client::ControlError> {
        client::send(File::open(self.root()).unwrap(), request)
    }

    pub fn entry_path(&self, name: &str) -> EntryPath {
        EntryPath::new(self.root(), name.as_ref()).unwrap()
    }

    pub fn clone_tree(&self, from: &str, to: &str, replace: bool) -> Result<u64, client::ControlError> {
        tool::clone(&self.entry_path(from), &self.entry_path(to), replace)
    }

    pub fn remove_tree(&self, name: &str) -> Result<u64, client::ControlError> {
        tool::remove(&self.entry_path(name), true)
    }
}

fn open(device: &Arc<dyn Device>, settings: &Settings) -> Fs {
    let options = MountOptions::default()
        .cache_bytes(32 << 20)
        .read_only(settings.read_only)
        .tick_times(settings.writeback)
        .kept_above(settings.writeback)
        .atime(settings.atime);
    Fs::open(device.clone(), options).unwrap()
}

/// The errno of a failed call.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Waits for what comes in the background, and demands that it does.
pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Starts a program that this process has just written, and waits for its end.
///
/// A process that another thread starts meanwhile has, until it runs its own program, the descriptor too that the
/// program was written through: for that long the kernel says ETXTBSY.
pub fn output_of_written(program: &mut std::process::Command) -> std::process::Output {
    const PATIENCE_SECONDS: u64 = 30;
    let begin = std::time::Instant::now();
    loop {
        match program.output() {
            Err(e)
                if e.kind() == io::ErrorKind::ExecutableFileBusy
                    && begin.elapsed() < Duration::from_secs(PATIENCE_SECONDS) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            output => return output.unwrap(),
        }
    }
}

/// Cuts or extends a file by its name, without opening it.
pub fn truncate(path: &Path, bytes: i64) {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a zero byte, and lives until the call returns.
    let result = unsafe { libc::truncate(name.as_ptr(), bytes) };
    assert_eq!(result, 0, "truncate: {}", io::Error::last_os_error());
}
