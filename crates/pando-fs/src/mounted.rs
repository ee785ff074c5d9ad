//! Entries on which another file system is mounted, and which therefore must not be moved or removed; and snapshots
//! that are mounted elsewhere, which must not be deleted.
//!
//! Only the kernel knows what is mounted on a directory, and it refuses to remove or rename that directory. A change
//! of a whole tree removes or moves many entries without the kernel, which would unmount what is mounted on them. So
//! before such a change a thread names the entries on which something is mounted ([`Fs::mounted_on`]). Guarantee:
//! until it takes this back, no call of the thread moves or removes such an entry, alone or with a tree around it;
//! those calls fail (EBUSY). Calls of other threads are not affected, because mounts depend on the namespace of the
//! caller. A snapshot that a mount shows may be renamed, and its directory rolled back or removed, because the mount
//! goes on showing it; only its deletion fails.

use std::{
    ffi::OsStr,
    marker::PhantomData,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use crate::{
    error::{Error, Result, show},
    family::SNAPSHOTS,
    inode::{InodeRef, Link},
    mount_points::{MountPoint, SnapshotMount},
    path,
    types::{Ino, ROOT},
    volume::Fs,
};

/// What was said to be mounted on, until it is dropped.
pub struct MountedOn<'a> {
    fs: &'a Fs,
    /// The number of the note; `None` if there was nothing to note.
    id: Option<u64>,
    /// Directories that stay in memory meanwhile.
    dirs: Vec<Ino>,
    /// Not to be sent to another thread: the list belongs to the one that made it.
    _here: PhantomData<*const ()>,
}

impl Drop for MountedOn<'_> {
    fn drop(&mut self) {
        self.id.into_iter().for_each(|id| self.fs.mount_points.take_back(id));
        self.dirs.iter().for_each(|dir| self.fs.forget(*dir, 1));
    }
}

impl Fs {
    /// Keeps the entries at these paths (from the root) in place, because something is mounted on them. Until the
    /// result is dropped, no call of this thread moves or removes one of them, alone or with a tree around it
    /// (EBUSY), by removal, replacement, rollback, merge, or the removal of a snapshot. Paths without an entry are
    /// ignored. One point query of the engine for each name that is not in memory.
    ///
    /// Meanwhile no call of this thread deletes a snapshot that is in `views` (EBUSY).
    pub fn mounted_on(&self, paths: &[PathBuf], views: Vec<SnapshotMount>) -> MountedOn<'_> {
        let mut mounted = MountedOn { fs: self, id: None, dirs: Vec::new(), _here: PhantomData };
        let points: Vec<_> = paths.iter().flat_map(|path| self.points_of(path, &mut mounted.dirs)).collect();
        if !points.is_empty() || !views.is_empty() {
            mounted.id = Some(self.mount_points.note(points, views));
        }
        mounted
    }

    /// EBUSY if a mount shows the snapshot `name` with this root.
    pub(crate) fn may_delete(&self, name: &OsStr, root: Ino) -> Result<()> {
        match self.mount_points.view_of(root) {
            Some(view) => Err(Error::Shown { name: show(name), dir: view.dir.display().to_string() }),
            None => Ok(()),
        }
    }

    fn points_of(&self, path: &Path, dirs: &mut Vec<Ino>) -> Vec<MountPoint> {
        let mut points = Vec::new();
        let mut names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let (mut dir, mut name) = (ROOT, names.next());
        while let Some(now) = name {
            name = names.next();
            // What is above the snapshots of a directory is no part of the path of what is in one.
            if name.is_none() || now.as_bytes() == SNAPSHOTS {
                points.push(MountPoint { dir, name: now.as_bytes().into() });
            }
            let Ok(found) = self.lookup(dir, now) else { return Vec::new() };
            dirs.push(found.ino);
            dir = found.ino;
        }
        points
    }

    /// EBUSY if something is mounted on the entry `name` of `dir`, which is `top`, or below it.
    pub(crate) fn may_leave(&self, dir: &InodeRef, name: &[u8], top: &InodeRef) -> Result<()> {
        for point in self.mount_points.known() {
            let inside = match point.dir == dir.ino && *point.name == *name {
                true => Some(Vec::new()),
                false => self.names_from(top, &point),
            };
            if let Some(inside) = inside {
                return Err(mounted(name, &inside));
            }
        }
        Ok(())
    }

    /// EBUSY if something is mounted on one of the entries `going`, which are to be removed, or below one. Their
    /// paths begin at `top`, and are in the form of keys.
    pub(crate) fn may_leave_from<'a>(
        &self,
        top: &InodeRef,
        going: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<()> {
        for point in self.mount_points.known() {
            let Some(names) = self.names_from(top, &point) else { continue };
            let Some((last, dirs)) = names.split_last() else { continue };
            let (mut contents, mut entries) = (Vec::new(), Vec::new());
            for dir in dirs {
                entries.push(path::entry(&contents, dir)?);
                contents = path::contents(&contents, dir)?;
            }
            entries.push(path::entry(&contents, last)?);
            if going.clone().any(|path| entries.iter().any(|entry| **entry == *path)) {
                return Err(mounted(top.label().as_bytes(), &names));
            }
        }
        Ok(())
    }

    /// The names from `top` down to where something is mounted; `None` if it does not lie in there.
    fn names_from(&self, top: &InodeRef, point: &MountPoint) -> Option<Vec<Box<[u8]>>> {
        let up = self.table.find(point.dir)?.ancestry().ok()?;
        let depth = up.iter().position(|inode| inode.ino == top.ino)?;
        let name = |inode: &InodeRef| {
            inode.peek(|s| match &s.link {
                Link::At { name, .. } => Some(name.clone()),
                _ => None,
            })
        };
        let dirs = up.iter().take(depth).rev();
        dirs.map(name).chain([Some(point.name.clone())]).collect()
    }
}

fn mounted(first: &[u8], inside: &[Box<[u8]>]) -> Error {
    let mut path = PathBuf::from(OsStr::from_bytes(first));
    path.extend(inside.iter().map(|name| OsStr::from_bytes(name)));
    Error::MountPoint(path.display().to_string())
}
