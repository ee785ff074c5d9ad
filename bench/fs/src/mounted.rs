//! A contender that is mounted, and the way to have its files cold.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};

use crate::{
    contender::Kind,
    process::{self, Own, interrupted},
};

/// The name of the mount point in the directory of the run.
pub const POINT: &str = "mnt";

/// What drops the kernel's caches when it is written to.
pub const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// How long a mount may take to appear, and a daemon to end.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(1);

/// What it takes to mount a contender.
#[derive(Debug, Clone)]
pub struct How {
    /// Which.
    pub kind: Kind,
    /// The device or image.
    pub device: PathBuf,
    /// An empty directory.
    pub point: PathBuf,
    /// Pando's program.
    pub pando: PathBuf,
    /// Pando's cache in bytes, if it is not to choose.
    pub cache: Option<u64>,
    /// More options for Pando.
    pub pando_options: Option<String>,
    /// The control group of the daemon.
    pub group: Option<PathBuf>,
    /// Where the daemon logs.
    pub log: PathBuf,
}

/// A mount; it is undone when it is dropped.
#[derive(Debug)]
pub struct Mounted {
    how: How,
    daemon: Option<Own>,
    is_mounted: bool,
}

impl Mounted {
    /// Makes the file system anew and mounts it.
    pub fn fresh(how: How) -> Result<Self> {
        process::run(&mut how.kind.mkfs(&how.pando, &how.device))?;
        Self::mount(how)
    }

    /// Mounts it.
    pub fn mount(how: How) -> Result<Self> {
        let mut mounted = Self { how, daemon: None, is_mounted: false };
        let how = &mounted.how;
        if how.kind != Kind::Pando {
            let mut command = Command::new("mount");
            command.args(["-t", how.kind.mount_type()]);
            if !how.kind.options().is_empty() {
                command.args(["-o", how.kind.options()]);
            }
            process::run(command.arg(&how.device).arg(&how.point))?;
            mounted.is_mounted = true;
            return Ok(mounted);
        }
        let mut command = process::in_group(how.group.as_deref(), &how.pando);
        command.args(["mount", "--foreground", "-o", how.kind.options()]);
        if let Some(options) = &how.pando_options {
            command.args(["-o", options]);
        }
        if let Some(cache) = how.cache {
            command.arg("--cache").arg(cache.to_string());
        }
        command.arg(&how.device).arg(&how.point);
        let (log, point) = (how.log.clone(), how.point.clone());
        // From here on it is undone if it does not come to a mount.
        let daemon = mounted.daemon.insert(Own::start_session(&mut process::logged(command, &log)?)?);
        let start = Instant::now();
        while !is_mount_point(&point)? {
            if let Some(status) = daemon.try_wait()? {
                bail!("the daemon ended ({status}): {}", last_line(&log));
            }
            if interrupted() {
                bail!("interrupted");
            }
            ensure!(start.elapsed() < PATIENCE, "the daemon has not mounted after {} s", PATIENCE.as_secs());
            sleep(POLL);
        }
        mounted.is_mounted = true;
        Ok(mounted)
    }

    /// Pando's process.
    pub fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Own::id)
    }

    /// Unmounts it. Returns when the device is closed.
    pub fn unmount(mut self) -> Result<How> {
        self.undo(UnmountFlags::empty())?;
        Ok(self.how.clone())
    }

    /// Unmounts it, drops what the kernel keeps, and mounts it again.
    pub fn cold(self) -> Result<Self> {
        let how = self.unmount()?;
        fs::write(DROP_CACHES, "3").context("dropping caches")?;
        Self::mount(how)
    }

    fn undo(&mut self, flags: UnmountFlags) -> Result<()> {
        if self.is_mounted {
            let point = &self.how.point;
            unmount(point, flags).with_context(|| format!("unmounting {}", point.display()))?;
            self.is_mounted = false;
        }
        if let Some(mut daemon) = self.daemon.take() {
            let status = daemon.wait(PATIENCE).context("unmounted")?;
            ensure!(status.success(), "the daemon ended with {status}: {}", last_line(&self.how.log));
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.is_mounted {
            // A daemon that has not mounted yet, and may just be about to: it is killed first.
            if self.daemon.take().is_some() && is_mount_point(&self.how.point).unwrap_or(false) {
                let _detached = unmount(&self.how.point, UnmountFlags::DETACH);
            }
            return;
        }
        // Processes that were just killed may need a moment to let go of their files.
        let start = Instant::now();
        while let Err(error) = self.undo(UnmountFlags::empty()) {
            if start.elapsed() > Duration::from_secs(5) {
                eprintln!("{error:#}; it is detached");
                let _detached = self.undo(UnmountFlags::DETACH);
                return;
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// Whether something is mounted on `dir`.
fn is_mount_point(dir: &Path) -> Result<bool> {
    // The fifth field is the mount point. It has no spaces to be escaped, or this program would not find it.
    let text = fs::read_to_string("/proc/self/mountinfo").context("reading the list of mounts")?;
    Ok(text.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == dir)))
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("it said nothing").to_string()
}
