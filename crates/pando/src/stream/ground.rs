//! Where a received tree is made, and how it appears: in a mounted file system.
//!
//! Beside the tree that is to be, `.pando-receive-TOKEN` holds the tree as far as it has come, and a note of how
//! far that is. It is open to its owner only. A new tree gets its snapshot there and is then renamed to its place;
//! one that is there already gets a snapshot of what was received among its own, and becomes that. Both are one
//! step each, so nothing half done is ever seen. Uses `host`.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{DiffOptions, NewSnapshot, RECEIVING, SnapshotInfo, send::Target};
use pando_fuse::{
    asked::Asked,
    client,
    control::Request,
    tool::{self, EntryPath},
};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use crate::stream::host::Host;

/// Names of the note, beside the tree, which has the name that it is to have.
pub const NOTE: &str = ".pando-note";
pub const NEW_NOTE: &str = ".pando-note-new";

/// What is around a received tree.
pub trait Ground {
    /// The place of the tree, for messages.
    fn show(&self) -> String;
    /// Whether something is there.
    fn exists(&self) -> Result<bool>;
    /// The snapshots of what is there.
    fn snapshots(&self) -> Result<Vec<SnapshotInfo>>;
    /// Whether something was begun.
    fn is_begun(&self) -> Result<bool>;
    /// Makes the place where the tree is made, with an empty tree or one that is a clone of a snapshot.
    fn begin(&mut self, base: Option<&SnapshotInfo>) -> Result<()>;
    /// Keeps others from going on with the same.
    fn lock(&mut self) -> Result<()>;
    /// The tree, to be filled.
    fn tree(&self) -> Result<Box<dyn Target + '_>>;
    /// The last note.
    fn note(&self) -> Result<Option<Vec<u8>>>;
    /// Makes all that was done durable, then notes how far that is.
    fn set_note(&self, note: &[u8]) -> Result<()>;
    /// Makes a snapshot of the new tree, and puts it into its place.
    fn appear(&self, new: &NewSnapshot) -> Result<()>;
    /// Makes a snapshot of the tree among those of what is in its place.
    fn take(&self, new: &NewSnapshot) -> Result<SnapshotInfo>;
    /// Makes what is in its place the snapshot `to`; what it was is kept as a snapshot if it is not what `base` is.
    fn become_snapshot(&self, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<Option<SnapshotInfo>>;
    /// Removes what was begun.
    fn clean(&self) -> Result<()>;
}

/// The name of the place where a tree is made.
pub fn begun_name(token: &str) -> OsString {
    format!("{RECEIVING}{token}").into()
}

/// In a mounted file system.
pub struct Mounted {
    dir: PathBuf,
    name: OsString,
    begun: PathBuf,
    lock: Option<fs::File>,
}

impl Mounted {
    /// A tree `name` in the directory `dir`.
    pub fn new(dir: &Path, name: &OsStr, token: &str) -> Mounted {
        let begun = dir.join(begun_name(token));
        Mounted { dir: dir.to_owned(), name: name.to_owned(), begun, lock: None }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn begun(&self) -> String {
        self.begun.display().to_string()
    }
}

fn is_there(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| format!("{}", path.display())),
    }
}

impl Ground for Mounted {
    fn show(&self) -> String {
        self.path().display().to_string()
    }

    fn exists(&self) -> Result<bool> {
        is_there(&self.path())
    }

    fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        tool::list_snapshots(&self.path()).with_context(|| format!("snapshots of {}", self.show()))
    }

    fn is_begun(&self) -> Result<bool> {
        is_there(&self.begun)
    }

    fn begin(&mut self, base: Option<&SnapshotInfo>) -> Result<()> {
        let fail = || self.begun();
        fs::DirBuilder::new().mode(0o700).create(&self.begun).with_context(fail)?;
        // What it inherits from the directory around it would go on to all that is made in it.
        let mut around = Host::new(&self.begun).with_context(fail)?;
        around.clear_xattrs(b"").with_context(fail)?;
        match base {
            None => around.mkdir(self.name.as_encoded_bytes()).with_context(fail),
            Some(base) => {
                let from = EntryPath::new(&self.path().join(".snapshots"), &base.name).with_context(fail)?;
                let to = EntryPath::new(&self.begun, &self.name).with_context(fail)?;
                tool::clone(&from, &to, false).map(|_| ()).with_context(fail)
            }
        }
    }

    fn lock(&mut self) -> Result<()> {
        let file = fs::File::open(&self.begun).with_context(|| self.begun())?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{}: another process is receiving this", self.begun());
        }
        self.lock = Some(file);
        Ok(())
    }

    fn tree(&self) -> Result<Box<dyn Target + '_>> {
        let tree = self.begun.join(&self.name);
        Ok(Box::new(Host::new(&tree).with_context(|| format!("{}", tree.display()))?))
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        match fs::read(self.begun.join(NOTE)) {
            Ok(note) => Ok(Some(note)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| self.begun()),
        }
    }

    fn set_note(&self, note: &[u8]) -> Result<()> {
        let fail = || self.begun();
        let dir = fs::File::open(&self.begun).with_context(fail)?;
        rustix::fs::syncfs(&dir).with_context(fail)?;
        client::send(&dir, &Request::Sync).with_context(fail)?;
        let new = self.begun.join(NEW_NOTE);
        fs::write(&new, note).with_context(fail)?;
        fs::File::open(&new).and_then(|file| file.sync_all()).with_context(fail)?;
        fs::rename(&new, self.begun.join(NOTE)).with_context(fail)
    }

    fn appear(&self, new: &NewSnapshot) -> Result<()> {
        let tree = self.begun.join(&self.name);
        let fail = || self.show();
        if tool::list_snapshots(&tree).with_context(fail)?.is_empty() {
            tool::snapshot(&tree, Asked::Create(new.clone())).with_context(fail)?;
        }
        renameat_with(CWD, &tree, CWD, self.path(), RenameFlags::NOREPLACE).with_context(fail)
    }

    fn take(&self, new: &NewSnapshot) -> Result<SnapshotInfo> {
        tool::snapshot_of_tree(&self.path(), &self.begun.join(&self.name), new.clone())
            .with_context(|| self.show())
    }

    fn become_snapshot(&self, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<Option<SnapshotInfo>> {
        let fail = || self.show();
        let before = self.path().join(".snapshots").join(&base.name);
        let options = DiffOptions { ranges: false, no_renames: true };
        let changed = tool::diff(&before, &self.path(), options).with_context(fail)?.next().transpose();
        let changed = changed.with_context(fail)?.is_some();
        let place = EntryPath::new(&self.dir, &self.name).with_context(fail)?;
        tool::rollback(&place, to.number, !changed).with_context(fail)
    }

    fn clean(&self) -> Result<()> {
        let fail = || self.begun();
        let place =
            EntryPath::new(&self.dir, self.begun.file_name().unwrap_or_default()).with_context(fail)?;
        tool::remove(&place, true).map(|_| ()).with_context(fail)
    }
}
