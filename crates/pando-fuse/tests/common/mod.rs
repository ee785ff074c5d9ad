//! A mount in this process on a device in memory, unmounted whatever happens.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pando_db::device::{Device, MemDevice};
use pando_fs::{FormatOptions, Fs, MountOptions};
use pando_fuse::{
    Kind, Mount, Polling, Running, Settings, client,
    control::Request,
    tool::{self, Spot},
};

pub struct World {
    // Dropped in this order: first the mount, then the directory under it.
    running: Option<Running>,
    fs: Fs,
    device: Arc<dyn Device>,
    pub settings: Settings,
    tmp: tempfile::TempDir,
}

/// Whether the tests of this program are to run with polling forced on: those that
/// `tests/polled.rs` takes from others.
fn forced() -> bool {
    module_path!().starts_with("polled::")
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

    pub fn with(mut settings: Settings) -> Option<World> {
        if forced() {
            settings.poll = FORCED;
            settings.poll_always = true;
        }
        if !have_fuse() {
            return None;
        }
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(256 << 20));
        let options = FormatOptions::default()
            .node_size(64 << 10)
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
            let patient = begin.elapsed() < std::time::Duration::from_secs(5);
            assert!(patient && matches!(e, pando_fuse::Error::Busy(_)), "{e}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.running.take().unwrap().wait().unwrap();
        self.fs.close().unwrap();
        self.fs = open(&self.device, &self.settings);
        self.mount();
    }

    pub fn root(&self) -> &Path {
        self.tmp.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.tmp.path().join(name)
    }

    /// Requests of a kind so far.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.running.as_ref().unwrap().counters().get(kind)
    }

    /// What polling for requests did so far.
    pub fn polling(&self) -> Polling {
        self.running.as_ref().unwrap().counters().polling()
    }

    /// Sends a control request that needs no rights.
    pub fn send(&self, request: &Request) -> Result<u64, client::Error> {
        client::send(File::open(self.root()).unwrap(), request)
    }

    pub fn spot(&self, name: &str) -> Spot {
        Spot::new(self.root(), name.as_ref()).unwrap()
    }

    pub fn clone_tree(&self, from: &str, to: &str, replace: bool) -> Result<u64, client::Error> {
        tool::clone(&self.spot(from), &self.spot(to), replace)
    }

    pub fn remove_tree(&self, name: &str) -> Result<u64, client::Error> {
        tool::remove(&self.spot(name), true)
    }
}

fn open(device: &Arc<dyn Device>, settings: &Settings) -> Fs {
    let options =
        MountOptions::default().cache_bytes(32 << 20).read_only(settings.read_only).atime(settings.atime);
    Fs::open(device.clone(), options).unwrap()
}

/// The errno of a failed call.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}
