//! The image that all contenders use in turn, and the loop device over it.
//!
//! One file for all: the same place on the disk, written in full before, so
//! that nobody has to allocate it. The loop device reads and writes it past
//! the page cache (direct I/O), so that a request to the device is one to the
//! disk.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

const WRITE_BYTES: usize = 4 << 20;

/// A directory that is made, and removed with all that is in it.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// Makes one in `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let parent = fs::canonicalize(parent).with_context(|| format!("looking for {}", parent.display()))?;
        let dir = parent.join(format!("pando-bench-fs-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Its path, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // The mount point goes first, and only if it is empty: what might still be mounted there is not to be deleted.
        let mount_point = self.0.join(crate::mounted::POINT);
        if mount_point.exists()
            && let Err(error) = fs::remove_dir(&mount_point)
        {
            eprintln!("{} is left as it is: {error}", self.0.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("removing {}: {error}", self.0.display());
        }
    }
}

/// What contenders are made on.
#[derive(Debug)]
pub struct Disk {
    device: PathBuf,
    /// The name of the loop device, if there is one.
    name: Option<String>,
}

impl Disk {
    /// Makes the image in `dir` and attaches it.
    pub fn with_loop(dir: &Path, bytes: u64) -> Result<Self> {
        ensure!(Path::new("/dev/loop-control").exists(), "there are no loop devices");
        let image = dir.join("image");
        write_in_full(&image, bytes)?;
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]).arg(&image);
        let device = process::output(&mut command)?.trim().to_string();
        let name = device.strip_prefix("/dev/").context("losetup has named no device")?.to_string();
        let disk = Self { device: device.into(), name: Some(name.clone()) };
        let direct = fs::read_to_string(format!("/sys/block/{name}/loop/dio")).unwrap_or_default();
        if direct.trim() != "1" {
            eprintln!(
                "NOTE: the loop device cannot do direct I/O here: the page cache of the host takes part"
            );
        }
        Ok(disk)
    }

    /// Makes a sparse image in `dir` and no device.
    pub fn without_loop(dir: &Path, bytes: u64) -> Result<Self> {
        let device = dir.join("image");
        File::create(&device)?.set_len(bytes)?;
        Ok(Self { device, name: None })
    }

    /// What a file system is made on.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Where the kernel counts its requests, if it does.
    pub fn statistics(&self) -> Option<PathBuf> {
        self.name.as_ref().map(|name| Path::new("/sys/block").join(name).join("stat"))
    }

    /// `major:minor` of the device.
    pub fn numbers(&self) -> Result<String> {
        let name = self.name.as_ref().context("there is no device")?;
        Ok(fs::read_to_string(format!("/sys/block/{name}/dev"))?.trim().to_string())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.name.is_some()
            && let Err(error) = process::clean(Command::new("losetup").arg("-d").arg(&self.device))
        {
            eprintln!("detaching {}: {error:#}", self.device.display());
        }
    }
}

fn write_in_full(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let free = rustix::fs::fstatvfs(&file)?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    ensure!(
        free > bytes + bytes / 8,
        "an image of {} MiB does not fit into the {} MiB that are free in {}: see --image-size and --dir",
        bytes >> 20,
        free >> 20,
        path.display()
    );
    let zeros = vec![0; WRITE_BYTES];
    let mut done = 0;
    while done < bytes {
        if process::interrupted() {
            bail!("interrupted");
        }
        let piece = (bytes - done).min(WRITE_BYTES as u64);
        file.write_all_at(&zeros[..piece as usize], done)?;
        done += piece;
    }
    file.flush()?;
    file.sync_all()?;
    Ok(())
}
