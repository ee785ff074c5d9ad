//! Receiving into an image that is not mounted: as `ground`, with calls of the library.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use pando_fs::{
    Attr, Authority, Caller, DiffOptions, Error, Fs, Ino, NewSnapshot, RENAME_NOREPLACE, SnapshotInfo,
    send::{FsTree, TargetTree},
};

use crate::stream::ground::{Ground, NEW_NOTE, NOTE, begun_name};

/// In an image.
pub struct InImage<'a> {
    fs: &'a Fs,
    dir: PathBuf,
    name: OsString,
    begun: OsString,
    caller: Caller,
    /// The tree, referenced.
    top: Option<Ino>,
}

impl<'a> InImage<'a> {
    /// A tree `name` in the directory `dir`.
    pub fn new(fs: &'a Fs, dir: &Path, name: &OsStr, token: &str) -> InImage<'a> {
        let begun = begun_name(token);
        let (dir, name) = (dir.to_owned(), name.to_owned());
        InImage { fs, dir, name, begun, caller: Caller::root(), top: None }
    }

    /// Calls `f` with what is at a path, which is referenced meanwhile.
    fn on<T>(&self, path: &Path, f: impl FnOnce(&Attr) -> Result<T, Error>) -> Result<T> {
        let fail = || path.display().to_string();
        let attr = self.fs.resolve(path).with_context(fail)?;
        let done = f(&attr);
        self.fs.forget(attr.ino, 1);
        done.with_context(fail)
    }

    /// What is at a path, which is referenced.
    fn resolved(&self, path: &Path) -> Result<Ino> {
        Ok(self.fs.resolve(path).with_context(|| path.display().to_string())?.ino)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn place(&self) -> PathBuf {
        self.dir.join(&self.begun)
    }

    fn is_there(&self, path: &Path) -> Result<bool> {
        match self.on(path, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.downcast_ref(), Some(Error::NotFound(_))) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn mkdir(&self, dir: &Path, name: &OsStr) -> Result<()> {
        self.on(dir, |dir| {
            self.fs.mkdir(&self.caller, dir.ino, name, 0o700).map(|a| self.fs.forget(a.ino, 1))
        })
    }

    /// Makes the tree in the place that was begun.
    fn fill(&self, base: Option<&SnapshotInfo>) -> Result<()> {
        let place = self.resolved(&self.place())?;
        let cleared = FsTree::new(self.fs, place).clear_xattrs(b"");
        self.fs.forget(place, 1);
        cleared.with_context(|| self.place().display().to_string())?;
        let Some(base) = base else { return self.mkdir(&self.place(), &self.name) };
        self.on(&self.path(), |dir| {
            let root = self.fs.open_snapshot(dir.ino, base.number)?;
            let cloned = self.fs.resolve(&self.place()).and_then(|place| {
                let to = (place.ino, &*self.name);
                let done = self.fs.clone_snapshot(Authority::Caller(&self.caller), root.ino, to, false);
                self.fs.forget(place.ino, 1);
                done
            });
            self.fs.forget(root.ino, 1);
            cloned.map(|_| ())
        })
    }
}

impl Drop for InImage<'_> {
    fn drop(&mut self) {
        if let Some(top) = self.top {
            self.fs.forget(top, 1);
        }
    }
}

impl Ground for InImage<'_> {
    fn show(&self) -> String {
        self.path().display().to_string()
    }

    fn exists(&self) -> Result<bool> {
        self.is_there(&self.path())
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.on(&self.path(), |attr| self.fs.snapshots(attr.ino))
    }

    fn is_begun(&self) -> Result<bool> {
        self.is_there(&self.place())
    }

    fn begin(&mut self, base: Option<&SnapshotInfo>) -> Result<()> {
        self.mkdir(&self.dir, &self.begun)?;
        let filled = self.fill(base);
        if filled.is_err() {
            let _ = self.clean();
        }
        filled
    }

    fn lock(&mut self) -> Result<()> {
        // The image is locked. A receive that ended before its first record has no tree.
        self.top = self.fs.resolve(&self.place().join(&self.name)).ok().map(|attr| attr.ino);
        Ok(())
    }

    fn tree(&self) -> Result<Box<dyn TargetTree + '_>> {
        let top = self.top.context("no tree was begun")?;
        Ok(Box::new(FsTree::new(self.fs, top)))
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        let path = self.place().join(NOTE);
        if !self.is_there(&path)? {
            return Ok(None);
        }
        let read = |attr: &Attr| {
            let handle = self.fs.open_file(&self.caller, attr.ino, 0)?;
            let bytes = self.fs.read(handle, attr.ino, 0, 1 << 20);
            self.fs.release(attr.ino, handle);
            bytes
        };
        Ok(Some(self.on(&path, read)?.to_vec()))
    }

    fn set_note(&self, note: &[u8]) -> Result<()> {
        let place = self.place();
        let ino = self.resolved(&place)?;
        let mut inside = FsTree::new(self.fs, ino);
        let written = inside.create(NEW_NOTE.as_bytes(), true).and_then(|()| inside.write_at(0, note));
        drop(inside);
        let renamed = written.map_err(anyhow::Error::from).and_then(|()| {
            Ok(self.fs.rename(&self.caller, ino, NEW_NOTE.as_ref(), ino, NOTE.as_ref(), 0)?)
        });
        self.fs.forget(ino, 1);
        renamed.with_context(|| place.display().to_string())?;
        Ok(self.fs.sync()?)
    }

    fn appear(&self, new: &NewSnapshot) -> Result<()> {
        let tree = self.place().join(&self.name);
        self.on(&tree, |attr| match self.fs.snapshots(attr.ino)?.is_empty() {
            true => self.fs.snapshot(Authority::Caller(&self.caller), attr.ino, new).map(|_| ()),
            false => Ok(()),
        })?;
        self.on(&self.place(), |from| {
            let to = self.fs.resolve(&self.dir)?;
            let old = &*self.name;
            let done = self.fs.rename(&self.caller, from.ino, old, to.ino, &self.name, RENAME_NOREPLACE);
            self.fs.forget(to.ino, 1);
            done
        })
    }

    fn take(&self, new: &NewSnapshot) -> Result<SnapshotInfo> {
        let by = Authority::Caller(&self.caller);
        let tree = self.resolved(&self.place().join(&self.name))?;
        let taken = self.on(&self.path(), |dir| self.fs.snapshot_of_tree(by, dir.ino, (by, tree), new));
        self.fs.forget(tree, 1);
        Ok(taken?.0)
    }

    fn become_snapshot(&self, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<Option<SnapshotInfo>> {
        // Nobody else has the image meanwhile.
        let discard = !self.is_changed(base)?;
        self.on(&self.path(), |dir| {
            Ok(self.fs.rollback(Authority::Caller(&self.caller), dir.ino, to.number, discard)?.1)
        })
    }

    fn is_changed(&self, since: &SnapshotInfo) -> Result<bool> {
        self.on(&self.path(), |dir| {
            let root = self.fs.open_snapshot(dir.ino, since.number)?;
            let options = DiffOptions { ranges: false, no_renames: true };
            let first =
                self.fs.diff(None, root.ino, dir.ino, options).and_then(|mut all| all.next().transpose());
            self.fs.forget(root.ino, 1);
            Ok(first?.is_some())
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }

    fn clean(&self) -> Result<()> {
        self.on(&self.dir, |dir| self.fs.remove_tree(&self.caller, dir.ino, &self.begun).map(|_| ()))
    }
}
