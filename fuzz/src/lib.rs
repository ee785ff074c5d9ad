//! What the fuzz targets and the maker of their first inputs share: how an input of `receive` is laid out, and the tree
//! that it meets.
//!
//! The first byte of an input says what it is. `STREAM`: the rest is a stream as `pando receive` reads it. `BLOCKS`: the
//! rest is a list of blocks of records, each behind its length (u16, little-endian; the top bit says that the receiver
//! is interrupted before it), as they are when all checksums are right.

use std::{ffi::OsStr, path::Path, sync::Arc};

use pando_db::device::MemDevice;
use pando_fs::{AtimePolicy, Caller, Error, FormatOptions, Fs, Ino, MountOptions, Result};

/// First byte of a whole stream; others than these two count by their lowest bit.
pub const STREAM: u8 = 0;
/// First byte of a list of blocks.
pub const BLOCKS: u8 = 1;
/// In the length of a block: the receiver is interrupted before it.
pub const INTERRUPTED: u16 = 1 << 15;

/// Bytes of the device.
const DEVICE_BYTES: u64 = 32 << 20;
/// For reading and writing (open(2)).
const O_RDWR: i32 = 2;

/// A file system in memory.
pub struct World {
    pub fs: Fs,
    pub me: Caller,
}

impl World {
    pub fn new() -> Result<Self> {
        let device = Arc::new(MemDevice::new(DEVICE_BYTES));
        Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10).log_size(1 << 20))?;
        let options =
            MountOptions::default().background(false).atime(AtimePolicy::Noatime).cache_bytes(16 << 20);
        Ok(Self { fs: Fs::open(device, options)?, me: Caller::root() })
    }

    /// Runs `f` with the directory and name of a path.
    pub fn at<T>(&self, path: &str, f: impl FnOnce(Ino, &OsStr) -> Result<T>) -> Result<T> {
        let (dir, name) = self.fs.resolve_parent(Path::new(path))?;
        let result = f(dir, &name);
        self.fs.forget(dir, 1);
        result
    }

    pub fn mkdir(&self, path: &str) -> Result<()> {
        let made = self.at(path, |d, n| self.fs.mkdir(&self.me, d, n, 0o755))?;
        self.fs.forget(made.ino, 1);
        Ok(())
    }

    pub fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        let (attr, handle) = self.at(path, |d, n| self.fs.create(&self.me, d, n, 0o644, O_RDWR))?;
        let written = self.fs.write(handle, attr.ino, 0, data, false);
        self.fs.release(attr.ino, handle);
        self.fs.forget(attr.ino, 1);
        written.map(drop)
    }

    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        let source = self.fs.resolve(Path::new(from))?;
        let made = self.at(to, |d, n| self.fs.link(&self.me, source.ino, d, n))?;
        self.fs.forget(source.ino, 1);
        self.fs.forget(made.ino, 1);
        Ok(())
    }

    pub fn symlink(&self, path: &str, target: &str) -> Result<()> {
        let made = self.at(path, |d, n| self.fs.symlink(&self.me, d, n, OsStr::new(target)))?;
        self.fs.forget(made.ino, 1);
        Ok(())
    }

    /// The tree that a stream is applied to, and a file beside it that no stream may change.
    pub fn with_a_tree() -> Result<Self> {
        let w = Self::new()?;
        for dir in ["/beside", "/x", "/x/d", "/x/d/e"] {
            w.mkdir(dir)?;
        }
        w.put("/beside/file", b"not to be changed")?;
        w.put("/x/a", b"one")?;
        w.put("/x/d/b", &[7; 40_000])?;
        w.put("/x/d/e/c", b"three")?;
        w.link("/x/a", "/x/d/l")?;
        w.symlink("/x/s", "/beside")?;
        Ok(w)
    }

    /// The content of a file that is short.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        let attr = self.fs.resolve(Path::new(path))?;
        let read = self.fs.read(pando_fs::FileHandle(0), attr.ino, 0, 4096);
        self.fs.forget(attr.ino, 1);
        read.map(|bytes| bytes.to_vec())
    }

    /// The first thing that the check finds wrong.
    pub fn problem(&self) -> std::result::Result<Option<String>, Error> {
        let mut found = None;
        self.fs.check(|line| {
            found.get_or_insert_with(|| line.to_owned());
        })?;
        Ok(found)
    }
}
