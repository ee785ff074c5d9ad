//! Mounting a snapshot alone, on a directory of its own (`pando mount -o snapshot=`).
//!
//! A snapshot is the directory `DIR/.snapshots/NAME`, and this is a bind mount of it: the daemon that serves the image
//! serves it as well, and opening an old version costs no more than a walk to it. Nothing else of the file system can
//! be reached from there.

use std::{
    ffi::OsStr,
    fs::File,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};
use pando_fuse::{How, mountinfo, unmount};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, openat2},
    io::Errno,
    mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount_remount, move_mount, open_tree},
};

use crate::exit::{self, Coded};

/// A snapshot as an option of a mount names it: `NAME`, of the whole file system, or `DIR@NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    dir: PathBuf,
    name: String,
}

impl FromStr for Version {
    type Err = Coded;

    fn from_str(text: &str) -> Result<Version, Coded> {
        let (dir, name) = text.rsplit_once('@').unwrap_or(("", text));
        let dir = dir.trim_start_matches('/');
        if matches!(name, "" | "." | "..") || name.contains('/') {
            return Err(Coded(exit::USAGE, format!("snapshot={text}: write it as NAME or DIR@NAME")));
        }
        Ok(Version { dir: dir.into(), name: name.into() })
    }
}

impl Version {
    /// Where it is seen, from the top of its file system.
    fn path(&self) -> PathBuf {
        self.dir.join(".snapshots").join(&self.name)
    }

    /// Its directory, from there.
    fn shown_dir(&self) -> &Path {
        if self.dir.as_os_str().is_empty() { Path::new(".") } else { &self.dir }
    }

    /// The version in the file system that is mounted on `mounted`, as a mount that is attached to no directory yet.
    fn find(&self, mounted: &Path) -> Result<OwnedFd> {
        let top = File::open(mounted).with_context(|| format!("{}", mounted.display()))?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let version = match openat2(&top, self.path(), flags, Mode::empty(), resolve) {
            Ok(version) => version,
            Err(Errno::NOENT) if openat2(&top, self.shown_dir(), flags, Mode::empty(), resolve).is_err() => {
                bail!("/{}: no such directory in the file system", self.dir.display())
            }
            Err(Errno::NOENT) => bail!(
                "/{}: has no snapshot {}; pando snapshot list shows what there is",
                self.dir.display(),
                self.name
            ),
            Err(e) => return Err(e).with_context(|| format!("/{}", self.path().display())),
        };
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        open_tree(&version, "", flags).context("putting a version on a directory of its own")
    }
}

/// Refuses callers other than root, before anything is done.
pub fn allowed() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "snapshot=: only root may put a version on a directory of its own; DIR/.snapshots/NAME of the mounted \
                file system shows it to others";
    Err(Coded(exit::FAILURE, text.into()).into())
}

/// Mounts `version` of the file system that is mounted on `mounted` on `dir`, read-only.
pub fn bind(version: &Version, mounted: &Path, dir: &Path) -> Result<()> {
    place(&version.find(mounted)?, dir)
}

/// Replaces the file system that was just mounted on `dir` by its `version`. If that fails nothing stays mounted.
pub fn narrow(version: &Version, dir: &Path) -> Result<()> {
    let found = version.find(dir);
    // The daemon runs as long as there is a mount of it. This is one, so it is unmounted for the daemon to end.
    unmount(dir, How::Plain).or_else(|_| unmount(dir, How::Lazy))?;
    place(&found?, dir)
}

fn place(tree: &OwnedFd, dir: &Path) -> Result<()> {
    let fail = || format!("{}", dir.display());
    move_mount(tree, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).with_context(fail)?;
    read_only(dir).with_context(fail).inspect_err(|_| {
        let _ = unmount(dir, How::Lazy);
    })
}

/// A snapshot refuses changes by itself; this tells programs that ask beforehand.
fn read_only(dir: &Path) -> Result<()> {
    let now = rustix::fs::statvfs(dir)?.f_flag;
    let kept = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = kept.into_iter().filter(|(flag, _)| now.contains(*flag)).map(|(_, flag)| flag);
    let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
    Ok(mount_remount(dir, flags, OsStr::from_bytes(b""))?)
}

/// Where the image is mounted already, as a whole.
pub fn mounted(image: &Path) -> Result<Option<PathBuf>> {
    let all = mountinfo::of_image(image)?.into_iter();
    Ok(all.rev().find(|mount| mount.root == Path::new("/") && !mountinfo::is_dead(&mount.dir)).map(|m| m.dir))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Version;

    #[test]
    fn versions_are_named_with_or_without_a_directory() {
        let path = |text: &str| text.parse::<Version>().map(|version| version.path()).ok();
        assert_eq!(path("monday").as_deref(), Some(Path::new(".snapshots/monday")));
        assert_eq!(path("/a/b@monday").as_deref(), Some(Path::new("a/b/.snapshots/monday")));
        assert_eq!(path("a@b/c@1").as_deref(), Some(Path::new("a@b/c/.snapshots/1")));
        assert_eq!(path("@monday"), path("monday"));
        for wrong in ["", "a@", "a@..", "a/b"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
