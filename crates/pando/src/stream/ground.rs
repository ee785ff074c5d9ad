//! Receiving into a mounted file system: the place where a tree is made, and how it gets to its path.
//!
//! Beside the destination, the directory `.pando-receive-TOKEN` has the tree as far as it was received, and the
//! position in the stream. It is accessible to its owner only; a directory of that name that others can access is
//! left alone. A new tree gets its snapshot there and is then renamed to its path; an existing tree gets a snapshot
//! of what was received among its own, and is rolled back to it. Each is one step, so no other program sees an
//! incomplete tree.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pando_fs::{DiffOptions, NewSnapshot, RECEIVING, SnapshotInfo, send::TargetTree};
use pando_fuse::{
    asked::Asked,
    client,
    control::ControlRequest,
    tool::{self, EntryPath},
};
use rustix::{
    fs::{
        AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, open, openat, renameat,
        renameat_with, syncfs, unlinkat,
    },
    io::Errno,
};

use crate::stream::host::TreeBelow;

/// Names of the note, beside the tree, which has the name that it is to have.
pub const NOTE: &str = ".pando-note";
pub const NEW_NOTE: &str = ".pando-note-new";

/// Most bytes of it that are read: it has the path of a file in hexadecimal digits.
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// How long a receive waits for the lock of what it has just made.
const WAIT_FOR_OWN_LOCK: Duration = Duration::from_secs(2);

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
    /// Makes the place where the tree is made, with an empty tree or one that is a clone of a snapshot, and locks it.
    fn begin(&mut self, base: Option<&SnapshotInfo>) -> Result<()>;
    /// Keeps other processes from continuing the same stream.
    fn lock(&mut self) -> Result<()>;
    /// The tree, to be filled.
    fn tree(&self) -> Result<Box<dyn TargetTree + '_>>;
    /// The last note.
    fn note(&self) -> Result<Option<Vec<u8>>>;
    /// Makes all that was done durable, then notes how far that is.
    fn set_note(&self, note: &[u8]) -> Result<()>;
    /// Makes a snapshot of the new tree, and puts it into its place.
    fn appear(&self, new: &NewSnapshot) -> Result<()>;
    /// Makes a snapshot of the tree among those of what is in its place.
    fn take(&self, new: &NewSnapshot) -> Result<SnapshotInfo>;
    /// Whether what is in its place differs from a snapshot of it.
    fn is_changed(&self, since: &SnapshotInfo) -> Result<bool>;
    /// Makes what is in its place the snapshot `to`; what it was is kept as a snapshot if it is not what `base` is.
    fn become_snapshot(&self, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<Option<SnapshotInfo>>;
    /// Makes what was done durable.
    fn sync(&self) -> Result<()>;
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
    /// The directory `begun`, once it is known to be the caller's own. Everything in it is reached by this descriptor.
    place: Option<fs::File>,
    /// What signals raise that are to end the work.
    stop: Arc<AtomicBool>,
}

impl Mounted {
    /// A tree `name` in the directory `dir`; what may take long ends when `stop` is raised and a signal comes.
    pub fn new(dir: &Path, name: &OsStr, token: &str, stop: Arc<AtomicBool>) -> Mounted {
        let begun = dir.join(begun_name(token));
        Mounted { dir: dir.to_owned(), name: name.to_owned(), begun, place: None, stop }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    fn differ(&self, before: &Path, after: &Path) -> Result<bool> {
        let options = DiffOptions { ranges: false, no_renames: true };
        let again = || !self.stop.load(Ordering::Relaxed);
        let first = tool::diff(before, after, options, &again).and_then(|mut all| all.next().transpose());
        Ok(first.with_context(|| self.show())?.is_some())
    }

    /// Opens the directory `begun`. In a directory of other users they may have put anything there, so it is refused
    /// unless only the caller can have put something into it.
    fn enter(&mut self) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = open(&self.begun, flags, Mode::empty()).with_context(|| self.begun())?;
        let place = fs::File::from(place);
        let meta = place.metadata().with_context(|| self.begun())?;
        if meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o077 != 0 {
            bail!("{}: is not yours, or open to others; nothing in it is touched", self.begun());
        }
        self.place = Some(place);
        Ok(())
    }

    fn place(&self) -> Result<&fs::File> {
        self.place.as_ref().with_context(|| format!("{}: nothing was begun", self.begun()))
    }

    /// A path of something in it that does not lead by its name.
    fn inside(&self, name: &OsStr) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/self/fd/{}", self.place()?.as_raw_fd())).join(name))
    }

    /// Makes the tree in it.
    fn fill(&self, base: Option<&SnapshotInfo>) -> Result<()> {
        let fail = || self.begun();
        // What it inherits from the directory around it would go on to all that is made in it.
        let mut around = TreeBelow::new(&self.inside(OsStr::new("."))?).with_context(fail)?;
        around.clear_xattrs(b"").with_context(fail)?;
        match base {
            None => around.mkdir(self.name.as_encoded_bytes()).with_context(fail),
            Some(base) => {
                let from = EntryPath::new(&self.path().join(".snapshots"), &base.name).with_context(fail)?;
                let to = EntryPath::new(&self.inside(OsStr::new("."))?, &self.name).with_context(fail)?;
                tool::clone(&from, &to, false).map(|_| ()).with_context(fail)?;
                // Somebody may have given the name to another snapshot meanwhile.
                let is_base = |info: &SnapshotInfo| (info.number, &info.name) == (base.number, &base.name);
                match self.snapshots()?.iter().any(is_base) {
                    true => Ok(()),
                    false => bail!(
                        "{}: snapshot {} was renamed or deleted meanwhile; receive it again",
                        self.show(),
                        base.name.display()
                    ),
                }
            }
        }
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
        match fs::DirBuilder::new().mode(0o700).create(&self.begun) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail!("{}: another process has just begun to receive this", self.begun())
            }
            made => made.with_context(|| self.begun())?,
        }
        self.enter()?;
        // Another process may look at this moment whether the lock is held: that takes it for an instant.
        let asked = Instant::now();
        while let Err(held) = self.lock() {
            if asked.elapsed() > WAIT_FOR_OWN_LOCK {
                return Err(held);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let filled = self.fill(base);
        if filled.is_err() {
            let _ = self.clean();
        }
        filled
    }

    fn lock(&mut self) -> Result<()> {
        if self.place.is_none() {
            self.enter()?;
        }
        if flock(self.place()?, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{}: another process is receiving this", self.begun());
        }
        Ok(())
    }

    fn tree(&self) -> Result<Box<dyn TargetTree + '_>> {
        let tree = self.inside(&self.name)?;
        Ok(Box::new(TreeBelow::new(&tree).with_context(|| self.begun())?))
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut note = Vec::new();
        match openat(self.place()?, NOTE, flags, Mode::empty()) {
            Ok(file) => fs::File::from(file).take(MAX_NOTE_BYTES).read_to_end(&mut note),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => Err(e.into()),
        }
        .with_context(|| self.begun())?;
        Ok(Some(note))
    }

    fn set_note(&self, note: &[u8]) -> Result<()> {
        let fail = || self.begun();
        let dir = self.place()?;
        // If a process that changes names is killed, the kernel may record the end of its own request for times as a
        // failed write, and report that to the next caller. No write fails in that way.
        let synced = syncfs(dir);
        if synced == Err(Errno::INTR) { syncfs(dir) } else { synced }.with_context(fail)?;
        client::send(dir, &ControlRequest::Sync).with_context(fail)?;
        match unlinkat(dir, NEW_NOTE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e).with_context(fail),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let new = openat(dir, NEW_NOTE, flags, Mode::RUSR | Mode::WUSR).with_context(fail)?;
        let mut new = fs::File::from(new);
        new.write_all(note).and_then(|()| new.sync_all()).with_context(fail)?;
        renameat(dir, NEW_NOTE, dir, NOTE).with_context(fail)
    }

    fn appear(&self, new: &NewSnapshot) -> Result<()> {
        let tree = self.inside(&self.name)?;
        let fail = || self.show();
        if tool::list_snapshots(&tree).with_context(fail)?.is_empty() {
            tool::snapshot(&tree, Asked::Create(new.clone())).with_context(fail)?;
        }
        renameat_with(self.place()?, &self.name, CWD, self.path(), RenameFlags::NOREPLACE).with_context(fail)
    }

    fn take(&self, new: &NewSnapshot) -> Result<SnapshotInfo> {
        tool::snapshot_of_tree(&self.path(), &self.inside(&self.name)?, new.clone())
            .with_context(|| self.show())
    }

    fn become_snapshot(&self, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<Option<SnapshotInfo>> {
        let fail = || self.show();
        let place = EntryPath::new(&self.dir, &self.name).with_context(fail)?;
        // Others may write until the very moment of the rollback, so what was there is kept whatever it is, and looked
        // at when it changes no more.
        let Some(was) = tool::rollback(&place, to.number, false).with_context(fail)? else { return Ok(None) };
        let snapshots = self.path().join(".snapshots");
        let same = self.differ(&snapshots.join(&base.name), &snapshots.join(&was.name)).is_ok_and(|d| !d);
        // What cannot be compared, or deleted, stays, which is no failure.
        let deleted = same && tool::snapshot(&self.path(), Asked::Delete(was.number)).is_ok();
        Ok((!deleted).then_some(was))
    }

    fn is_changed(&self, since: &SnapshotInfo) -> Result<bool> {
        self.differ(&self.path().join(".snapshots").join(&since.name), &self.path())
    }

    fn sync(&self) -> Result<()> {
        // The directory around it need not be readable. The new tree may be gone already.
        if self.place().is_ok_and(|place| place.sync_all().is_ok()) {
            return Ok(());
        }
        let synced = fs::File::open(&self.dir).and_then(|dir| dir.sync_all());
        synced.with_context(|| format!("sync {}", self.dir.display()))
    }

    fn clean(&self) -> Result<()> {
        let fail = || self.begun();
        let (own, there) = (self.place()?.metadata()?, fs::symlink_metadata(&self.begun).with_context(fail)?);
        if (own.dev(), own.ino()) != (there.dev(), there.ino()) {
            bail!("{}: is another one than was begun", self.begun());
        }
        let place =
            EntryPath::new(&self.dir, self.begun.file_name().unwrap_or_default()).with_context(fail)?;
        tool::remove(&place, true).map(|_| ()).with_context(fail)
    }
}
