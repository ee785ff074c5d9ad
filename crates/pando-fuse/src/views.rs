//! Snapshots that are mounted on a directory of their own, as a whole or in part (`pando mount -o snapshot=`).
//!
//! Such a mount is a bind mount, which only the kernel knows. It tells the path that what is mounted had in the file
//! system, and, where this process can follow the way to the mount without asking any file system, the inode number,
//! which is what counts.
//!
//! The path is no longer right after the snapshot was renamed, or its directory rolled back or removed, because the
//! kernel keeps the old names for what is mounted. Every call that does so looks at the mounts before. So what a mount
//! shows is noted here when it is first seen, by the number of the mount, and kept as long as the mount is there and
//! its path, if it has changed, leads to no snapshot. Other mount namespaces are looked at for
//! callers from there only, and a mount of one is noted as long as it may be there: the kernel holds the root of a
//! snapshot that it shows.
//! Where only the path is known, and a mount with the same path showed another snapshot, both count as mounted, unless
//! the kernel does not hold one.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use pando_fs::{Error, FileKind, Fs, Ino, SnapshotMount};
use parking_lot::Mutex;

use crate::mountinfo::{MountsOf, Shown, may_be_in_snapshot};

/// What the kernel writes behind the path of something that has lost its name.
const GONE_MARK: &[u8] = b"//deleted";

/// What the mounts show that were seen.
#[derive(Default)]
pub(crate) struct Views(Mutex<HashMap<u64, KnownView>>);

#[derive(Clone)]
struct KnownView {
    /// The mount namespace.
    namespace: PathBuf,
    /// The path that the kernel tells.
    root: PathBuf,
    /// The snapshots that it may show: nearly always one, or none.
    snapshots: Vec<Ino>,
}

impl Views {
    /// The snapshots that these mounts, of the file system `fs`, show. Those of other namespaces are not among them.
    pub(crate) fn of(&self, fs: &Fs, mounts: &MountsOf) -> Vec<SnapshotMount> {
        // Held until the end: a look that finds nothing noted might go by a path that is no longer right.
        let mut noted = self.0.lock();
        let before = std::mem::take(&mut *noted);
        let mut known = HashMap::new();
        let mut views = Vec::new();
        for Shown { namespace, mount, ino } in &mounts.shown {
            let root = named(&mount.root);
            let old = before.get(&mount.id).filter(|old| old.namespace == *namespace);
            let seen =
                ino.and_then(|ino| fs.snapshot_around(ino)).map(|snapshot| snapshot.into_iter().collect());
            let by_note = || {
                let snapshots = held(fs, &old.filter(|old| old.root == root)?.snapshots);
                (!snapshots.is_empty() || old.is_some_and(|old| old.snapshots.is_empty()))
                    .then_some(snapshots)
            };
            let found = match seen.or_else(by_note) {
                Some(snapshots) => Ok(snapshots),
                None => snapshot_at(fs, &root).map(|found| {
                    let others =
                        before.values().filter(|other| may_be_in_snapshot(&root) && other.root == root);
                    let others = others.chain(old.filter(|_| found.is_none()));
                    let mut all: Vec<Ino> = others.flat_map(|other| &other.snapshots).copied().collect();
                    all.extend(found);
                    all.sort_unstable();
                    all.dedup();
                    held(fs, &all)
                }),
            };
            let (root, snapshots) = match (found, old) {
                (Ok(snapshots), _) => (root, snapshots),
                // The path is not noted, so the next look asks again.
                (Err(_), Some(old)) => (old.root.clone(), old.snapshots.clone()),
                (Err(_), None) => continue,
            };
            views.extend(snapshots.iter().map(|root| SnapshotMount { root: *root, dir: mount.dir.clone() }));
            known.insert(mount.id, KnownView { namespace: namespace.clone(), root, snapshots });
        }
        for (id, mut view) in before {
            if !known.contains_key(&id) && !mounts.namespaces.contains(&view.namespace) {
                view.snapshots = held(fs, &view.snapshots);
                if !view.snapshots.is_empty() {
                    known.insert(id, view);
                }
            }
        }
        *noted = known;
        views
    }
}

/// Those of the snapshots whose root the kernel holds: it does so as long as something of one is mounted.
fn held(fs: &Fs, snapshots: &[Ino]) -> Vec<Ino> {
    snapshots.iter().copied().filter(|root| fs.is_known(*root)).collect()
}

/// The path without the kernel's mark.
fn named(root: &Path) -> PathBuf {
    let bytes = root.as_os_str().as_bytes();
    OsStr::from_bytes(bytes.strip_suffix(GONE_MARK).unwrap_or(bytes)).into()
}

/// The root of the snapshot that a path from the root of the file system lies in.
fn snapshot_at(fs: &Fs, path: &Path) -> pando_fs::Result<Option<Ino>> {
    if !may_be_in_snapshot(path) {
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
