//! Ends a mount from outside of its server's threads: on a signal, or when its owner is dropped.
//!
//! Guarantees: only the mount of this server is unmounted, and nothing that was mounted on the directory instead or
//! over it. (Except in the moment between the check and the call, because the kernel unmounts by path only.) If the
//! mount is covered, or was detached while files were open, its connection is cut, so that the server ends wherever
//! cutting is allowed (see `guard`).

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use crate::{
    attach::{How, unmount},
    coherence::MountState,
    error::Error,
    guard, mountinfo,
};

/// Ends a mount. Clones end the same one.
#[derive(Clone)]
pub struct Ender(Arc<Ends>);

struct Ends {
    dir: PathBuf,
    /// Device number of the mount, if it could be found out.
    device: Option<String>,
    /// What cuts the connection.
    abort: Option<File>,
    /// What the server has, as long as there is one.
    served: Weak<MountState>,
}

impl Ender {
    /// Ends the mount on `dir` (absolute, without symlinks) with this device number.
    pub(crate) fn new(dir: &Path, device: Option<&str>, served: &Arc<MountState>) -> Self {
        let abort = device.and_then(|device| match guard::abort_file(device) {
            Ok(file) => Some(file.into()),
            Err(e) => {
                log::info!("{}: the connection cannot be cut: {e}", dir.display());
                None
            }
        });
        let (dir, device, served) = (dir.to_owned(), device.map(str::to_owned), Arc::downgrade(served));
        Self(Arc::new(Ends { dir, device, abort, served }))
    }

    /// Unmounts it where it is: on its directory, or where it was moved to. [`Error::NotMounted`] if it is nowhere,
    /// or something is mounted over it.
    pub fn unmount(&self, how: How) -> Result<(), Error> {
        let Ends { dir, device, .. } = &*self.0;
        match device.as_deref().map_or_else(|| Some(dir.clone()), |device| place(dir, device)) {
            Some(place) => unmount(&place, how),
            None => Err(Error::NotMounted(dir.clone())),
        }
    }

    /// Ends the mount: as umount would, or else by force, when what programs have written is stored.
    pub fn end(&self) {
        let dir = self.0.dir.display();
        match self.unmount(How::Plain) {
            Ok(()) => return,
            Err(Error::Busy(_)) => {}
            Err(Error::NotMounted(_)) => log::warn!("{dir}: the mount is not there any more"),
            Err(e) => log::error!("{e}"),
        }
        // What programs have written to mappings is written back while there is still someone to write it to.
        if let Some(served) = self.0.served.upgrade()
            && let Err(e) = served.store_all()
        {
            log::error!("{dir}: sync before the end: {e}");
        }
        self.force();
    }

    /// Ends the mount at once: every call on it fails from then on. False if that could not be done.
    pub(crate) fn force(&self) -> bool {
        let unmounted = match self.unmount(How::Force) {
            Ok(()) | Err(Error::NotMounted(_)) => true,
            Err(e) => {
                log::error!("{e}");
                false
            }
        };
        // The kernel keeps a detached mount as long as it is in use, and there may be bind mounts of it.
        let cut = self.0.abort.as_ref().is_some_and(|abort| match guard::cut(abort) {
            Ok(()) => true,
            Err(e) => {
                log::error!("{}: cutting the connection: {e}", self.0.dir.display());
                false
            }
        });
        unmounted || cut
    }
}

/// A directory on which the topmost mount is the one with this device number, `dir` before others.
fn place(dir: &Path, device: &str) -> Option<PathBuf> {
    let all = mountinfo::all().unwrap_or_default();
    let is_own = |dir: &Path| all.iter().rfind(|e| e.dir == dir).is_some_and(|e| e.device == device);
    let own = all.iter().filter(|e| e.device == device).map(|e| e.dir.as_path());
    std::iter::once(dir).chain(own).find(|dir| is_own(dir)).map(Path::to_owned)
}
