//! Snapshots that are mounted on a directory of their own, as a whole or in part (`pando mount -o snapshot=`).
//!
//! Such a mount is a bind mount, which only the kernel knows: by the path that it had in the file system. That path
//! is no longer right after the snapshot was renamed, or its directory rolled back or removed by the server, because
//! the kernel keeps the old names for what is mounted. Every call that does so looks at the mounts before. So what a
//! mount shows is noted here when it is first seen, by the number of the mount, and kept while the mount is there and
//! its path, if it has changed, leads to no snapshot.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use pando_fs::{Error, FileKind, Fs, Ino, SnapshotMount};
use parking_lot::Mutex;

use crate::mountinfo::Entry;

/// What the kernel writes behind the path of something that has lost its name.
const GONE_MARK: &[u8] = b"//deleted";

/// What the mounts show that were seen.
#[derive(Default)]
pub(crate) struct Views(Mutex<HashMap<u64, KnownView>>);

#[derive(Clone)]
struct KnownView {
    root: PathBuf,
    snapshot: Option<Ino>,
}

impl Views {
    /// The snapshots that these mounts, of the file system `fs`, show. Those of other namespaces are not among them,
    /// and are forgotten only when no look has seen them.
    pub(crate) fn of(&self, fs: &Fs, mounts: Vec<Entry>) -> Vec<SnapshotMount> {
        // Held until the end: a look that finds nothing noted might go by a path that is no longer right.
        let mut noted = self.0.lock();
        let before = std::mem::take(&mut *noted);
        let mut known = HashMap::new();
        let mut views = Vec::new();
        for mount in mounts {
            let root = named(&mount.root);
            let old = before.get(&mount.id);
            let snapshot = match old.filter(|old| old.root == root) {
                Some(old) => old.snapshot,
                None => match snapshot_at(fs, &root) {
                    Ok(snapshot) => snapshot.or(old.and_then(|old| old.snapshot)),
                    // The path is not noted, so the next look asks again.
                    Err(_) => {
                        let Some(old) = old else { continue };
                        known.insert(mount.id, old.clone());
                        views.extend(old.snapshot.map(|root| SnapshotMount { root, dir: mount.dir }));
                        continue;
                    }
                },
            };
            known.insert(mount.id, KnownView { root, snapshot });
            views.extend(snapshot.map(|root| SnapshotMount { root, dir: mount.dir }));
        }
        *noted = known;
        views
    }
}

/// The path without the kernel's mark.
fn named(root: &Path) -> PathBuf {
    let bytes = root.as_os_str().as_bytes();
    OsStr::from_bytes(bytes.strip_suffix(GONE_MARK).unwrap_or(bytes)).into()
}

/// The root of the snapshot that a path from the root of the file system lies in.
fn snapshot_at(fs: &Fs, path: &Path) -> pando_fs::Result<Option<Ino>> {
    // Nearly all mounts show something else, and no name of such a path is looked up.
    if !path.components().any(|part| part.as_os_str() == ".snapshots") {
        return Ok(None);
    }
    let mut dir = pando_fs::ROOT;
    let mut held = Vec::new();
    let mut found = Ok(None);
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let next = match fs.lookup(dir, name) {
            Ok(next) => next,
            Err(Error::NotFound(_) | Error::NotDirectory(_)) => break,
            Err(error) => {
                found = Err(error);
                break;
            }
        };
        held.push(next.ino);
        dir = next.ino;
        if fs.snapshot_of(dir).is_some() {
            found = Ok(Some(dir));
            break;
        }
        if next.kind != FileKind::Directory {
            break;
        }
    }
    held.into_iter().for_each(|ino| fs.forget(ino, 1));
    found
}
