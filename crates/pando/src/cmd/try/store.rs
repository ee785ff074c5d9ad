//! The store of `pando try`: mounted, or through the library where mounting is not possible.

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
use pando_fs::{Caller, FormatOptions, Fs, Ino, MountOptions};
use pando_fuse::{How, client, control::Request};

use crate::cmd::r#try::workspace::Workspace;
use crate::{
    cmd::{clone, mount, umount},
    exit::{self, Coded},
    image, place,
    report::Stats,
    tree::{Sink, View, host::Host, image::Image},
};

/// Space and traffic at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    /// Bytes that the store uses.
    pub(super) used: u64,
    /// Bytes written to the device since it was opened.
    pub(super) written: u64,
}

/// A store with its trees, `original` and `clone`.
pub(super) struct Store {
    image: PathBuf,
    mount_point: PathBuf,
    way: Way,
}

enum Way {
    Mounted,
    Library(Fs),
    Closed,
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
        let way = Way::Library(open(&image)?);
        Ok(Store { image, mount_point, way })
    }

    /// Goes on through a mount, where that is possible.
    pub(super) fn mount(&mut self) -> Result<()> {
        self.close()?;
        self.way = match mount::by_command(&self.image, &self.mount_point, &[]) {
            Ok(()) => Way::Mounted,
            Err(e) if e.downcast_ref::<Coded>().is_some_and(|c| c.0 == exit::NO_FUSE) => {
                eprintln!("pando: {e:#}");
                eprintln!("pando: going on through the library, without a mount");
                Way::Library(open(&self.image)?)
            }
            Err(e) => return Err(e).context("mounting"),
        };
        Ok(())
    }

    pub(super) fn describe(&self) -> String {
        match self.way {
            Way::Mounted => format!("mounted on {}", self.mount_point.display()),
            _ => "opened by the library".into(),
        }
    }

    pub(super) fn reopened(&self) -> &'static str {
        match self.way {
            Way::Mounted => "unmounted and mounted again",
            _ => "closed and opened again",
        }
    }

    /// The tree called `name`, to read.
    pub(super) fn view(&self, name: &str) -> Result<Box<dyn View + '_>> {
        Ok(match &self.way {
            Way::Mounted => Box::new(Host::new(&self.mount_point.join(name))),
            Way::Library(fs) => Box::new(Image::new(fs, &Path::new("/").join(name))),
            Way::Closed => bail!("the store is closed"),
        })
    }

    /// The tree called `name`, to write, before anything is mounted.
    pub(super) fn sink(&self, name: &str) -> Result<impl Sink + '_> {
        match &self.way {
            Way::Library(fs) => Ok(Image::new(fs, &Path::new("/").join(name))),
            _ => bail!("the store is not open"),
        }
    }

    /// Clones a tree; the time inside the daemon, if there is one.
    pub(super) fn clone(&self, from: &str, to: &str) -> Result<Option<Duration>> {
        match &self.way {
            Way::Mounted => {
                let micros = clone::clone(&self.mount_point.join(from), &self.mount_point.join(to), false)?;
                Ok(Some(Duration::from_micros(micros)))
            }
            Way::Library(fs) => {
                let root = pando_fs::ROOT;
                fs.clone_tree(&Caller::root(), (root, from.as_ref()), (root, to.as_ref()), false)?;
                Ok(None)
            }
            Way::Closed => bail!("the store is closed"),
        }
    }

    pub(super) fn sync(&self) -> Result<()> {
        match &self.way {
            Way::Mounted => {
                client::send(place::open_dir(&self.mount_point)?, &Request::Sync)?;
                Ok(())
            }
            Way::Library(fs) => Ok(fs.sync()?),
            Way::Closed => bail!("the store is closed"),
        }
    }

    pub(super) fn figures(&self) -> Result<Figures> {
        let stats = match &self.way {
            Way::Mounted => serde_json::from_str(&client::stats(place::open_dir(&self.mount_point)?)?)?,
            Way::Library(fs) => Stats::of(fs, None)?,
            Way::Closed => bail!("the store is closed"),
        };
        Ok(Figures { used: stats.size.used, written: stats.device.write_bytes })
    }

    /// Unmounts and mounts again, or closes and opens again.
    pub(super) fn reopen(&mut self) -> Result<()> {
        let mounted = matches!(self.way, Way::Mounted);
        self.close()?;
        self.way = if mounted {
            mount::by_command(&self.image, &self.mount_point, &[])?;
            Way::Mounted
        } else {
            Way::Library(open(&self.image)?)
        };
        Ok(())
    }

    pub(super) fn close(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.way, Way::Closed) {
            Way::Mounted => umount::detach(&self.mount_point, How::Plain),
            Way::Library(fs) => Ok(fs.close()?),
            Way::Closed => Ok(()),
        }
    }

    // ---- small edits, each the way a program would make it ----

    fn on<T>(
        &self,
        path: &Path,
        mounted: impl FnOnce(&Path) -> std::io::Result<T>,
        library: impl FnOnce(&Fs, Ino, &OsString) -> pando_fs::Result<T>,
    ) -> Result<T> {
        let fail = || format!("editing {}", path.display());
        match &self.way {
            Way::Mounted => mounted(&self.mount_point.join(path)).with_context(fail),
            Way::Library(fs) => {
                let (dir, name) = fs.resolve_parent(&Path::new("/").join(path)).with_context(fail)?;
                let result = library(fs, dir, &name);
                fs.forget(dir, 1);
                result.with_context(fail)
            }
            Way::Closed => bail!("the store is closed"),
        }
    }

    /// Writes into an existing file.
    pub(super) fn write_at(&self, path: &Path, offset: u64, data: &[u8]) -> Result<()> {
        self.on(
            path,
            |p| OpenOptions::new().write(true).open(p)?.write_all_at(data, offset),
            |fs, dir, name| {
                let attr = fs.lookup(dir, name)?;
                let handle = fs.open_file(&Caller::root(), attr.ino, libc::O_WRONLY)?;
                let written = fs.write(handle, attr.ino, offset, data, false);
                fs.release(attr.ino, handle);
                fs.forget(attr.ino, 1);
                written.map(|_| ())
            },
        )
    }

    /// Makes a new file.
    pub(super) fn create(&self, path: &Path, data: &[u8]) -> Result<()> {
        self.on(
            path,
            |p| std::fs::write(p, data),
            |fs, dir, name| {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
                let (attr, handle) = fs.create(&Caller::root(), dir, name, 0o644, flags)?;
                let written = fs.write(handle, attr.ino, 0, data, false);
                fs.release(attr.ino, handle);
                fs.forget(attr.ino, 1);
                written.map(|_| ())
            },
        )
    }

    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        self.on(path, |p| std::fs::remove_file(p), |fs, dir, name| fs.unlink(&Caller::root(), dir, name))
    }

    /// Renames inside one directory.
    pub(super) fn rename(&self, path: &Path, name: &str) -> Result<()> {
        self.on(
            path,
            |p| std::fs::rename(p, p.with_file_name(name)),
            |fs, dir, old| fs.rename(&Caller::root(), dir, old, dir, name.as_ref(), 0),
        )
    }
}

fn open(image: &Path) -> Result<Fs> {
    image::open(image, MountOptions::default())
}
