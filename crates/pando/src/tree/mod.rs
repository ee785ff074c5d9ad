//! Reading, writing, copying and comparing trees of files on the host and in images.
//!
//! [`View`] reads a tree and [`Sink`] writes one; both exist for a directory
//! of the host ([`host`]) and for a file system opened without a mount
//! ([`image`]). [`copy`](copy::copy) and [`compare`](compare::compare) work on
//! any pair.

pub mod compare;
pub mod copy;
pub mod host;
pub mod image;
pub mod lost;

use std::{
    collections::HashSet,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use pando_fs::{FileKind, Time};

use crate::{below::Attrs, tree::lost::Losses};

/// Bytes moved at a time.
pub const CHUNK_BYTES: usize = 1 << 20;

/// What is kept of a file besides its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes, for regular files and symbolic links.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Device number of device nodes.
    pub rdev: u64,
    /// Number of the file system that it lies on.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Names of this file.
    pub nlink: u64,
}

/// What was made, to be told from what is put in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryId {
    /// Number of the file system that it lies on.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// One step of reading a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// This many bytes were read.
    Data(usize),
    /// Nothing but zeros for this many bytes.
    Hole(u64),
    /// The end.
    End,
}

/// An open file of a [`View`].
pub trait Reader {
    /// Reads the next bytes into `buf`: fewer than fit only before a hole or the end.
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece>;

    /// After an error: skips what could not be read, and returns how many bytes that is; 0 if it cannot go on.
    fn pass(&mut self) -> u64 {
        0
    }

    /// Its extended attributes.
    fn attrs(&mut self) -> Result<Attrs>;
}

/// A tree that can be read. Paths are relative to its root; the empty path is the root.
pub trait View {
    /// How messages name `path`.
    fn show(&self, path: &Path) -> String;
    /// Metadata, not following links.
    fn meta(&self, path: &Path) -> Result<Meta>;
    /// Names in a directory with their metadata, in no particular order.
    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>>;
    /// Like [`View::list`], but after an error it returns the entries that could be read, and the error.
    fn list_some(&self, path: &Path) -> (Vec<(OsString, Meta)>, Option<anyhow::Error>) {
        match self.list(path) {
            Ok(all) => (all, None),
            Err(error) => (Vec::new(), Some(error)),
        }
    }
    /// Opens a regular file.
    fn open(&self, path: &Path) -> Result<Box<dyn Reader + '_>>;
    /// Target of a symbolic link.
    fn readlink(&self, path: &Path) -> Result<OsString>;
    /// Extended attributes of anything, access lists among them.
    fn attrs(&self, path: &Path) -> Result<Attrs>;
}

/// An open file of a [`Sink`].
pub trait Writer {
    /// Appends bytes.
    fn write(&mut self, data: &[u8]) -> Result<()>;
    /// Leaves a hole.
    fn skip(&mut self, len: u64) -> Result<()>;
    /// Ends the file here and gives it owner, attributes, mode and times.
    fn finish(self: Box<Self>, meta: &Meta, attrs: &Attrs, losses: &mut Losses) -> Result<()>;
}

/// A tree that can be written. Paths are relative to its root.
pub trait Sink {
    /// How messages name `path`.
    fn show(&self, path: &Path) -> String;
    /// Makes a directory, whose owner, mode and times [`Sink::set_meta`] sets. Fails if it exists, except for the
    /// root.
    fn mkdir(&self, path: &Path) -> Result<EntryId>;
    /// Makes a regular file.
    fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>>;
    /// Makes a symbolic link.
    fn symlink(&self, path: &Path, target: &OsString) -> Result<EntryId>;
    /// Makes a device node, pipe or socket.
    fn special(&self, path: &Path, meta: &Meta) -> Result<EntryId>;
    /// Gives the file `first` another name, `path`.
    fn link(&self, first: &Path, path: &Path) -> Result<()>;
    /// Removes the access lists that `path` has inherited from the directory that it was made in.
    fn clear_access_lists(&self, path: &Path) -> Result<()>;
    /// Sets owner, attributes, mode and times of `made`; what cannot be set is added to `losses`, also that something
    /// else is at `path` by now, which stays as it is.
    fn set_meta(
        &self,
        path: &Path,
        made: EntryId,
        meta: &Meta,
        attrs: &Attrs,
        losses: &mut Losses,
    ) -> Result<()>;
}

/// Files and bytes of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Directories, the root included.
    pub dirs: u64,
    /// Everything else.
    pub files: u64,
    /// Bytes of the regular files; a file with several names counts once.
    pub bytes: u64,
    /// Names, among the files, that are not the first of their file.
    pub linked: u64,
}

impl Count {
    fn add(&mut self, meta: &Meta) {
        match meta.kind {
            FileKind::Directory => self.dirs += 1,
            FileKind::Regular => {
                self.files += 1;
                self.bytes += meta.size;
            }
            _ => self.files += 1,
        }
    }

    /// Counts another name of a file that is counted already.
    fn add_name(&mut self) {
        self.files += 1;
        self.linked += 1;
    }
}

/// A progress bar, and the flag that stops the work.
pub struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

/// The work was stopped by Ctrl-C or a signal.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Progress {
    /// A bar for `bytes` on stderr, or a spinner if that is 0; silent if stderr is not a terminal.
    pub fn new(what: &'static str, bytes: u64, stop: Arc<AtomicBool>) -> Self {
        let (bar, style) = match bytes {
            0 => (ProgressBar::new_spinner(), "{prefix:>10} {spinner} {msg}"),
            n => (
                ProgressBar::new(n),
                "{prefix:>10} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, stop }
    }

    /// A spinner while the server works on one request, which a signal ends with this process.
    pub fn of_request(what: &'static str) -> Self {
        Self::new(what, 0, Arc::default())
    }

    /// A silent one, which never stops the work.
    #[cfg(test)]
    pub fn none() -> Self {
        Self { bar: ProgressBar::hidden(), stop: Arc::default() }
    }

    /// Counts bytes; fails once the work is to stop.
    pub fn advance(&self, bytes: u64) -> Result<()> {
        self.bar.inc(bytes);
        if self.stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Shows the path that is worked on; fails once the work is to stop.
    pub fn at(&self, path: &Path) -> Result<()> {
        if !self.bar.is_hidden() {
            self.bar.set_message(path.display().to_string());
        }
        self.advance(0)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Counts the tree under `root` of `view`.
pub fn count(view: &dyn View, root: &Path, progress: &Progress) -> Result<Count> {
    let mut count = Count::default();
    let mut linked = HashSet::new();
    let meta = view.meta(root)?;
    count.add(&meta);
    let mut todo = if meta.kind == FileKind::Directory { vec![root.to_owned()] } else { Vec::new() };
    while let Some(dir) = todo.pop() {
        progress.at(&dir)?;
        for (name, meta) in view.list(&dir)? {
            if meta.kind == FileKind::Directory {
                count.add(&meta);
                todo.push(dir.join(name));
            } else if meta.nlink > 1 && !linked.insert((meta.dev, meta.ino)) {
                count.add_name();
            } else {
                count.add(&meta);
            }
        }
    }
    Ok(count)
}

/// Reads all files below the root of `view`, to bring them into the page cache.
pub fn read(view: &dyn View, progress: &Progress) -> Result<()> {
    let mut buf = vec![0; CHUNK_BYTES];
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        progress.at(&dir)?;
        for (name, meta) in view.list(&dir)? {
            let path = dir.join(name);
            match meta.kind {
                FileKind::Directory => todo.push(path),
                FileKind::Regular => {
                    let mut file = view.open(&path)?;
                    loop {
                        match file.next(&mut buf)? {
                            Piece::Data(n) => progress.advance(n as u64)?,
                            Piece::Hole(n) => progress.advance(n)?,
                            Piece::End => break,
                        }
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}
