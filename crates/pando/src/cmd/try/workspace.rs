//! The directory that `pando try` works in, and its clean-up.
//!
//! Guarantees: dropping a [`Workspace`] unmounts, waits for the daemon to close the image and removes the directory.
//! A mount that cannot be ended stays, with the directory and a message.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fuse::{How, mountinfo};
use tempfile::TempDir;

use crate::{cmd::umount, size::show};

/// A temporary directory with an image and a mount point.
pub(super) struct Workspace {
    dir: Option<TempDir>,
    root: PathBuf,
}

impl Workspace {
    /// Makes one in `parent`, which must lie outside `tree`.
    pub(super) fn new(parent: Option<&Path>, tree: &Path) -> Result<Self> {
        let chosen = match parent {
            Some(parent) => parent.to_owned(),
            None => match std::env::var_os("TMPDIR") {
                Some(dir) => dir.into(),
                // /tmp is memory on many systems; /var/tmp is on a disk.
                None if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
                None => std::env::temp_dir(),
            },
        };
        let parent = chosen.canonicalize().with_context(|| format!("{}", chosen.display()))?;
        if parent.starts_with(tree) {
            bail!("{}: is inside the directory to copy; choose another with --work-dir", parent.display());
        }
        let dir = tempfile::Builder::new()
            .prefix("pando-try-")
            .tempdir_in(&parent)
            .with_context(|| format!("{}: choose another with --work-dir", parent.display()))?;
        let root = dir.path().to_owned();
        std::fs::create_dir(root.join("mnt"))?;
        Ok(Self { dir: Some(dir), root })
    }

    pub(super) fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    pub(super) fn mount_point(&self) -> PathBuf {
        self.root.join("mnt")
    }

    /// The path of another file in the workspace.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Bytes that the disk still has for ordinary users.
    fn free(&self) -> Result<u64> {
        let s = rustix::fs::statvfs(&self.root).with_context(|| format!("{}", self.root.display()))?;
        Ok(s.f_bavail.saturating_mul(s.f_frsize))
    }

    /// Whether the disk has room for a tree of `bytes`.
    pub(super) fn has_room(&self, bytes: u64) -> Result<bool> {
        Ok(self.free()? >= room_for(bytes))
    }

    /// Fails unless the disk has room for a tree of `bytes`.
    pub(super) fn require(&self, bytes: u64) -> Result<()> {
        if !self.has_room(bytes)? {
            bail!(
                "{}: {} free, but the tree needs about {}; choose another place with --work-dir",
                self.root.display(),
                show(self.free()?),
                show(room_for(bytes))
            );
        }
        Ok(())
    }

    /// Bytes that the sparse image takes on the disk.
    pub(super) fn image_on_disk(&self) -> Result<u64> {
        let image = self.image();
        let meta = std::fs::metadata(&image).with_context(|| format!("{}", image.display()))?;
        Ok(meta.blocks().saturating_mul(512))
    }

    fn unmount(&self) -> Result<()> {
        let dir = self.mount_point();
        while mountinfo::at(&dir)?.is_some() {
            if umount::detach(&dir, How::Plain).is_err() {
                umount::detach(&dir, How::Force)?;
            }
        }
        Ok(())
    }
}

/// Bytes that a tree of `bytes` takes on a disk: a quarter more, and 64 MiB.
fn room_for(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4).saturating_add(64 << 20)
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        match self.unmount() {
            Ok(()) => {
                if let Err(e) = dir.close() {
                    crate::exit::tell!("pando: {}: could not be removed: {e}", self.root.display());
                }
            }
            Err(e) => {
                // Something is mounted in it still, and removing the directory would remove the files in that mount.
                let kept = dir.keep();
                crate::exit::tell!("pando: {e:#}; unmount and remove {} by hand", kept.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn it_refuses_to_work_inside_the_tree_and_leaves_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        assert!(Workspace::new(Some(&root), &root).is_err());
        let other = tempfile::tempdir().unwrap();
        let work = Workspace::new(Some(&root), other.path()).unwrap();
        std::fs::write(work.image(), "x").unwrap();
        assert!(work.require(u64::MAX / 2).is_err());
        drop(work);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    }
}
