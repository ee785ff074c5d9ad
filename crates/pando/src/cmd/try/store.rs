//! The store of `pando try`: mounted, or through the library where mounting is not possible.
//!
//! Guarantees: each call does the same either way, so the steps need not know which one it is.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use pando_db::device::FileDevice;
use pando_fs::{Caller, FileHandle, FormatOptions, Fs, Ino, MountOptions};
use pando_fuse::{How, client, control::ControlRequest};

use crate::cmd::r#try::{figures::Figures, workspace::Workspace};
use crate::{
    cmd::{clone, mount, umount},
    exit::{self, Coded},
    image, place,
    report::Stats,
    tree::{Sink, View, host::HostTree, image::Image},
};

/// A store with its trees, `original` and `clone`.
pub(super) struct Store {
    image: PathBuf,
    mount_point: PathBuf,
    /// The file system, where it is opened by the library; `None` where it is mounted.
    opened: Option<Fs>,
}

impl Store {
    /// Makes a file system of `size` bytes and opens it by the library.
    pub(super) fn make(work: &Workspace, size: u64) -> Result<Store> {
        let (image, mount_point) = (work.image(), work.mount_point());
        let device = Arc::new(FileDevice::create(&image, size, false)?);
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let options = FormatOptions::default().root_uid(uid.as_raw()).root_gid(gid.as_raw());
        Fs::format(device.clone(), &options)?;
        drop(device);
        let opened = Some(open(&image)?);
        Ok(Store { image, mount_point, opened })
    }

    /// Goes on through a mount, where that is possible.
    pub(super) fn mount(&mut self) -> Result<()> {
        self.close()?;
        match mount::by_command(&self.image, &self.mount_point, &[]) {
            Ok(()) => Ok(()),
            Err(e) if e.downcast_ref::<Coded>().is_some_and(|c| c.0 == exit::NO_FUSE) => {
                crate::exit::tell!("pando: {e:#}");
                crate::exit::tell!("pando: going on through the library, without a mount");
                self.opened = Some(open(&self.image)?);
                Ok(())
            }
            Err(e) => Err(e).context("mounting"),
        }
    }

    /// Unmounts and mounts again, or closes and opens again.
    pub(super) fn reopen(&mut self) -> Result<()> {
        let by_library = self.opened.is_some();
        self.close()?;
        match by_library {
            true => self.opened = Some(open(&self.image)?),
            false => mount::by_command(&self.image, &self.mount_point, &[])?,
        }
        Ok(())
    }

    /// Unmounts or closes it.
    pub(super) fn close(&mut self) -> Result<()> {
        match self.opened.take() {
            Some(fs) => Ok(fs.close()?),
            None => umount::detach(&self.mount_point, How::Plain),
        }
    }

    pub(super) fn describe(&self) -> String {
        match self.opened {
            Some(_) => "opened by the library".into(),
            None => format!("mounted on {}", self.mount_point.display()),
        }
    }

    pub(super) fn reopened(&self) -> &'static str {
        match self.opened {
            Some(_) => "closed and opened again",
            None => "unmounted and mounted again",
        }
    }

    /// The tree called `name`, to read.
    pub(super) fn view(&self, name: &str) -> Box<dyn View + '_> {
        match &self.opened {
            Some(fs) => Box::new(Image::new(fs, &Path::new("/").join(name))),
            None => Box::new(HostTree::new(&self.mount_point.join(name))),
        }
    }

    /// The tree called `name`, to write, before anything is mounted.
    pub(super) fn sink(&self, name: &str) -> Result<impl Sink + '_> {
        match &self.opened {
            Some(fs) => Ok(Image::new(fs, &Path::new("/").join(name))),
            None => bail!("it is mounted, and imports go through the library"),
        }
    }

    /// Clones a tree; the time inside the daemon, if there is one.
    pub(super) fn clone(&self, from: &str, to: &str) -> Result<Option<Duration>> {
        let Some(fs) = &self.opened else {
            let micros = clone::clone(&self.mount_point.join(from), &self.mount_point.join(to), false)?;
            return Ok(Some(Duration::from_micros(micros)));
        };
        let root = pando_fs::ROOT;
        fs.clone_tree(&Caller::root(), (root, from.as_ref()), (root, to.as_ref()), false)?;
        Ok(None)
    }

    /// Makes all that was done durable.
    pub(super) fn sync(&self) -> Result<()> {
        match &self.opened {
            Some(fs) => Ok(fs.sync()?),
            None => Ok(client::send(place::open_dir(&self.mount_point)?, &ControlRequest::Sync).map(drop)?),
        }
    }

    pub(super) fn figures(&self) -> Result<Figures> {
        let stats = match &self.opened {
            Some(fs) => Stats::of(fs, None)?,
            None => serde_json::from_str(&client::stats(place::open_dir(&self.mount_point)?)?)?,
        };
        Ok(Figures { used: stats.size.used, written: stats.device.write_bytes })
    }

    // ---- small edits, each the way a program would make it ----

    /// Does something with an entry: through the mount, or by the library.
    fn edit(
        &self,
        path: &Path,
        mounted: impl FnOnce(&Path) -> std::io::Result<()>,
        by_library: impl FnOnce(&Fs, Ino, &OsString) -> pando_fs::Result<()>,
    ) -> Result<()> {
        let failed = || format!("editing {}", path.display());
        let Some(fs) = &self.opened else {
            return mounted(&self.mount_point.join(path)).with_context(failed);
        };
        let (dir, name) = fs.resolve_parent(&Path::new("/").join(path)).with_context(failed)?;
        let outcome = by_library(fs, dir, &name);
        fs.forget(dir, 1);
        outcome.with_context(failed)
    }

    /// Writes into an existing file.
    pub(super) fn write_at(&self, path: &Path, offset: u64, data: &[u8]) -> Result<()> {
        self.edit(
            path,
            |path| OpenOptions::new().write(true).open(path)?.write_all_at(data, offset),
            |fs, dir, name| {
                let ino = fs.lookup(dir, name)?.ino;
                let handle = fs.open_file(&Caller::root(), ino, libc::O_WRONLY)?;
                write_and_close(fs, ino, handle, offset, data)
            },
        )
    }

    /// Makes a new file.
    pub(super) fn create(&self, path: &Path, data: &[u8]) -> Result<()> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        self.edit(
            path,
            |path| std::fs::write(path, data),
            |fs, dir, name| {
                let (attr, handle) = fs.create(&Caller::root(), dir, name, 0o644, flags)?;
                write_and_close(fs, attr.ino, handle, 0, data)
            },
        )
    }

    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        self.edit(
            path,
            |path| std::fs::remove_file(path),
            |fs, dir, name| fs.unlink(&Caller::root(), dir, name),
        )
    }

    /// Renames inside one directory.
    pub(super) fn rename(&self, path: &Path, name: &str) -> Result<()> {
        self.edit(
            path,
            |path| std::fs::rename(path, path.with_file_name(name)),
            |fs, dir, old| fs.rename(&Caller::root(), dir, old, dir, name.as_ref(), 0),
        )
    }
}

/// Writes to an open file that was looked up once, closes it, and forgets it.
fn write_and_close(fs: &Fs, ino: Ino, handle: FileHandle, offset: u64, data: &[u8]) -> pando_fs::Result<()> {
    let written = fs.write(handle, ino, offset, data, false);
    fs.release(ino, handle);
    fs.forget(ino, 1);
    written.map(drop)
}

fn open(image: &Path) -> Result<Fs> {
    image::open(image, MountOptions::default())
}
