//! A regular file or a block device as a [`Device`].
//!
//! Guarantees: one writer or several readers at a time over all processes (an
//! advisory lock on the open file, and on that below a loop device), no request beyond the stated size, flush
//! means `fdatasync`, of a durable write `RWF_DSYNC`. Requests go through the kernel's page cache, or past it
//! ([`FileDevice::with_direct_io`]). A new image is sparse; [`Device::reserve`] is what turns
//! holes into promised space, and [`Device::discard`] punches holes again.

use std::{
    fs::{File, Metadata, OpenOptions, read_to_string},
    io::{self, IoSlice, IoSliceMut, Seek, SeekFrom},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use rustix::{
    fs::{
        Access, Advice, FallocateFlags, IFlags, OFlags, access, fadvise, fallocate, fstatvfs, ioctl_getflags,
        ioctl_setflags, major, minor, seek,
    },
    io::{Errno, ReadWriteFlags, preadv, pwritev2},
};

use crate::{
    device::{
        Device, DeviceStats, check_range,
        counters::Counters,
        direct::Direct,
        joined,
        lock::{self, lock},
        probe::{PROBE_BYTES, starts_with_zeros},
    },
    error::{Error, Result},
};

/// Buffers that Linux takes in one call (`IOV_MAX`).
const MAX_CALL_BUFFERS: usize = 1024;

/// A locked regular file or block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The file below a loop device, which is locked too.
    _below: Option<File>,
    /// The same file, opened once more for durable writes: the kernel reports a failed writeback once to each open
    /// file, so that neither user takes the report away from the other. `None` if a second open is impossible.
    durable: Option<File>,
    /// The file for direct I/O, if that is wanted: then all requests use it.
    direct: Option<Direct>,
    block_device: bool,
    read_only: bool,
    size: AtomicU64,
    /// The file system or device has said that it cannot punch holes.
    no_holes: AtomicBool,
    /// The file system cannot reserve space: a write has to tell that there is none, before it returns.
    no_reserve: AtomicBool,
    counters: Arc<Counters>,
}

impl FileDevice {
    /// Creates a sparse image of `size` bytes at `path`, or takes over what is there.
    ///
    /// Of a block device the first `size` bytes are used, or all of them if it is
    /// 0; they must be there. What exists is refused with [`Error::Invalid`] if its first 72 KiB hold
    /// anything but zeros (a store, another file system, a partition table),
    /// unless `force`; with `force` a file is emptied, and the first 72 KiB of
    /// a block device are zeroed. [`Error::Locked`] if it is in use.
    pub fn create(path: impl AsRef<Path>, size: u64, force: bool) -> Result<Self> {
        let path = path.as_ref();
        let device = Self::open_locked(path, false, true)?;
        if !force && !starts_with_zeros(&device)? {
            let path = path.display();
            return Err(Error::Invalid(format!(
                "{path} is not empty: open the store that it may hold, or name another file"
            )));
        }
        if device.block_device {
            if size > device.size() {
                let (path, real) = (path.display(), device.size());
                return Err(Error::Invalid(format!("{path} has {real} bytes, fewer than {size}")));
            }
            if size > 0 {
                device.size.store(size, Relaxed);
            }
            if force {
                let probe = device.size().min(PROBE_BYTES as u64) as usize;
                device.file.write_all_at(&vec![0; probe], 0).map_err(|e| Error::io("write", 0, e))?;
            }
        } else {
            if force {
                device.file.set_len(0).map_err(|e| Error::io("truncate", 0, e))?;
            }
            let _impossible = write_in_place(&device.file);
            device.file.set_len(size).map_err(|e| Error::io("resize", size, e))?;
            device.size.store(size, Relaxed);
        }
        device.file.sync_all().map_err(|e| Error::io("flush", 0, e))?;
        sync_parent(path).map_err(|e| Error::io("flush directory", 0, e))?;
        Ok(device)
    }

    /// Opens an existing file or block device, with a shared lock if `read_only`.
    ///
    /// [`Error::Locked`] if another process holds a lock that excludes it; `EROFS` for writing to a block device that
    /// is set read-only, which Linux opens for writing all the same.
    pub fn open(path: impl AsRef<Path>, read_only: bool) -> Result<Self> {
        Self::open_locked(path.as_ref(), read_only, false)
    }

    /// Whether writes to the file or block device are refused at `path`, because the device, or the file system that
    /// the file lies on, is set read-only.
    pub fn is_write_protected(path: impl AsRef<Path>) -> bool {
        let path = path.as_ref();
        match path.metadata() {
            Ok(found) if is_block_device(&found) => is_set_read_only(&found),
            Ok(_) => access(path, Access::WRITE_OK) == Err(Errno::ROFS),
            Err(_) => false,
        }
    }

    /// The file below the loop device at `path`, if it is one and covers the whole file: opening one of the two for
    /// writing keeps the other from being opened.
    pub fn backing_file(path: impl AsRef<Path>) -> Option<PathBuf> {
        path.as_ref().metadata().ok().as_ref().and_then(lock::below)
    }

    fn open_locked(path: &Path, read_only: bool, create: bool) -> Result<Self> {
        let opening = |e| Error::io("open", 0, e);
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).create(create).truncate(false);
        match path.metadata() {
            Ok(found) if is_block_device(&found) => {
                if !read_only && is_set_read_only(&found) {
                    return Err(opening(Errno::ROFS.into()));
                }
                // Without O_CREAT, O_EXCL asks the kernel to refuse a device that is mounted.
                let exclusive = if read_only { OFlags::empty() } else { OFlags::EXCL };
                options.create(false).custom_flags(exclusive.bits() as i32);
            }
            Ok(found) if found.is_file() => (),
            // A directory, pipe or character device, which opening could block on.
            Ok(_) => {
                let path = path.display();
                return Err(Error::Invalid(format!("{path} is neither a file nor a block device")));
            }
            Err(e) if create && e.kind() == io::ErrorKind::NotFound => (),
            Err(e) => return Err(opening(e)),
        }
        let mut file = options.open(path).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => Error::Locked,
            _ => opening(e),
        })?;
        let below = lock(&file, read_only)?;
        let block_device = is_block_device(&file.metadata().map_err(opening)?);
        let size = file.seek(SeekFrom::End(0)).map_err(opening)?;
        let size = size.into();
        let no_holes = AtomicBool::new(false);
        let durable = if read_only { None } else { open_again(&file, false, true, OFlags::empty()) };
        Ok(Self {
            file,
            _below: below,
            durable,
            direct: None,
            block_device,
            read_only,
            size,
            no_holes,
            no_reserve: AtomicBool::new(false),
            counters: Arc::default(),
        })
    }

    /// Goes past the kernel's page cache from now on, where that can be ([`Device::is_direct`]): the memory used is
    /// that of the store, 6 MiB for writes under way and 1 MiB for each other request. What reads the store again finds
    /// only what its own cache has. A write may return before it is done, and fails with the next flush then.
    pub fn with_direct_io(mut self) -> Self {
        let again = open_again(&self.file, true, !self.read_only, OFlags::DIRECT);
        self.direct = again.and_then(|file| Direct::new(file, self.counters.clone()));
        self
    }

    /// Whether space that was reserved is sure to be there.
    fn reserves(&self) -> bool {
        self.block_device || !self.no_reserve.load(Relaxed)
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }
}

impl Device for FileDevice {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buf.len() as u64)?;
        if let Some(direct) = &self.direct {
            return direct.read(offset, &mut [IoSliceMut::new(buf)]);
        }
        self.file.read_exact_at(buf, offset)?;
        self.counters.read(offset, buf.len());
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        check_range(self.size(), offset, len as u64)?;
        if let Some(direct) = &self.direct {
            return direct.read(offset, bufs);
        }
        let (mut at, mut rest) = (offset, bufs);
        IoSliceMut::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let now = rest.len().min(MAX_CALL_BUFFERS);
            match preadv(&self.file, &mut rest[..now], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    at += read as u64;
                    IoSliceMut::advance_slices(&mut rest, read);
                }
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        self.counters.read(offset, len);
        Ok(())
    }

    fn read_lent(&self, offset: u64, len: usize) -> io::Result<Option<Bytes>> {
        check_range(self.size(), offset, len as u64)?;
        match &self.direct {
            Some(direct) => direct.read_lent(offset, len),
            None => Ok(None),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        check_range(self.size(), offset, buf.len() as u64)?;
        if let Some(direct) = &self.direct {
            return direct.write(offset, buf, !self.reserves());
        }
        self.file.write_all_at(buf, offset)?;
        self.counters.write(buf.len());
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let Some(direct) = &self.direct else { return self.write_at(offset, &joined(bufs)) };
        self.check_writable()?;
        check_range(self.size(), offset, bufs.iter().map(|buf| buf.len() as u64).sum())?;
        direct.write_vectored(offset, bufs, !self.reserves())
    }

    fn rest(&self) {
        if let Some(direct) = &self.direct {
            direct.rest();
        }
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            direct.drain()?;
        }
        self.file.sync_data()?;
        self.counters.flush();
        Ok(())
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        let plainly = || {
            self.write_at(offset, buf)?;
            Ok(false)
        };
        let Some(file) = &self.durable else { return plainly() };
        self.check_writable()?;
        check_range(self.size(), offset, buf.len() as u64)?;
        if let Some(direct) = &self.direct {
            if !direct.write_durably(offset, buf)? {
                return plainly();
            }
            self.counters.flush();
            return Ok(true);
        }
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            match pwritev2(file, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += written as u64;
                    rest = rest.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => (),
                // Kernels before 4.7, and filters of system calls that do not know this one. If it is
                // something else, an ordinary write will say so.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM) => return plainly(),
                Err(error) => return Err(error.into()),
            }
        }
        self.counters.write(buf.len());
        self.counters.flush();
        Ok(true)
    }

    /// Drops clean pages from the page cache: the kernel marks pages clean whose writeback has failed, and still
    /// shows them. Dirty pages stay.
    fn reread(&self) -> io::Result<()> {
        if !self.read_only {
            self.file.sync_data()?;
        }
        match fadvise(&self.file, 0, None, Advice::DontNeed) {
            // The file has no page cache.
            Ok(()) | Err(Errno::INVAL | Errno::SPIPE | Errno::NOSYS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn capacity(&self) -> io::Result<u64> {
        if self.block_device {
            return Ok(self.size());
        }
        let held = self.file.metadata()?.blocks().saturating_mul(512);
        let around = fstatvfs(&self.file)?;
        Ok(held.saturating_add(around.f_bavail.saturating_mul(around.f_frsize)).min(self.size()))
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.check_writable()?;
        if size < self.size() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device cannot shrink"));
        }
        if self.block_device {
            check_range((&self.file).seek(SeekFrom::End(0))?, 0, size)?;
        } else {
            self.file.set_len(size)?;
        }
        self.size.fetch_max(size, Relaxed);
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        check_range(self.size(), offset, len)?;
        if self.block_device || len == 0 {
            return Ok(());
        }
        loop {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len) {
                Err(Errno::INTR) => continue,
                Ok(()) => return Ok(()),
                // The file system cannot promise: then writes will have to tell.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.no_reserve.store(true, Relaxed);
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.check_writable()?;
        check_range(self.size(), offset, len)?;
        if self.no_holes.load(Relaxed) || len == 0 {
            return Ok(false);
        }
        if let Some(direct) = &self.direct {
            // Nothing older may come after it.
            direct.wait_for(&(offset..offset + len));
        }
        loop {
            match fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => {
                    self.counters.discard(len);
                    return Ok(true);
                }
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => {
                    self.no_holes.store(true, Relaxed);
                    return Ok(false);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// What was reserved and never written does not count: there is no portable way to ask for it.
    fn next_held(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        if self.block_device || from >= self.size() {
            return Ok(None);
        }
        // All other requests have an offset and do not use the file's position.
        let found = seek(&self.file, rustix::fs::SeekFrom::Data(from))
            .and_then(|data| Ok((data, seek(&self.file, rustix::fs::SeekFrom::Hole(data))?)));
        match found {
            Ok((data, hole)) => Ok(Some((data, hole - data))),
            // No more data; or nothing can be said.
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    fn is_sparse(&self) -> bool {
        !self.block_device
    }

    fn stats(&self) -> DeviceStats {
        self.counters.stats()
    }
}

/// Another file description of an open file; none without `/proc`.
fn open_again(file: &File, read: bool, write: bool, flags: OFlags) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(read).write(write).custom_flags(flags.bits() as i32);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// Whether a block device is set read-only (`blockdev --setro`), as sysfs says. Without sysfs the first write tells.
fn is_set_read_only(device: &Metadata) -> bool {
    let (major, minor) = (major(device.rdev()), minor(device.rdev()));
    read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|ro| ro.trim_end() == "1")
}

/// Asks a file system that copies on write (Btrfs) to write an empty file in place: there a write takes new space
/// otherwise, also where space was reserved, so that a full host stops a store.
fn write_in_place(file: &File) -> io::Result<()> {
    let flags = ioctl_getflags(file)?;
    Ok(ioctl_setflags(file, flags | IFlags::NOCOW)?)
}

/// Makes the name of a new file durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn several_buffers_are_filled_by_one_request() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("image"), 1 << 20, false).unwrap();
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i % 251) as u8).collect();
        device.write_at(1000, &bytes).unwrap();
        // Empty ones anywhere, and more than one call of the kernel takes.
        for sizes in [vec![0, 7, 0, 4096, 30_000, 0], vec![17; 2500], vec![0, 0], vec![]] {
            let mut bufs: Vec<Vec<u8>> = sizes.iter().map(|len| vec![0xff; *len]).collect();
            let before = device.stats();
            let mut slices: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            device.read_vectored_at(1000, &mut slices).unwrap();
            let read = bufs.concat();
            assert_eq!(read, bytes[..read.len()]);
            let after = device.stats();
            assert_eq!(
                (after.reads - before.reads, after.read_bytes - before.read_bytes),
                (1, read.len() as u64)
            );
        }
        let mut buf = [0; 100];
        assert!(device.read_vectored_at((1 << 20) - 50, &mut [IoSliceMut::new(&mut buf)]).is_err());
    }

    #[test]
    fn bytes_survive_closing_and_opening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 1 << 20, false).unwrap();
        device.write_at(70_000, b"grove").unwrap();
        device.flush().unwrap();
        assert_eq!((device.stats().writes, device.stats().write_bytes, device.stats().flushes), (1, 5, 1));
        drop(device);
        let device = FileDevice::open(&path, true).unwrap();
        let mut buf = [1; 7];
        device.read_at(69_999, &mut buf).unwrap();
        assert_eq!(&buf, b"\0grove\0");
        assert_eq!(device.size(), 1 << 20);
        let discarded = device.discard(0, 1).map(drop);
        for refused in [device.write_at(0, &[1]), device.grow(2 << 20), device.reserve(0, 1), discarded] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
    }

    #[test]
    fn a_writer_excludes_all_and_readers_exclude_writers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let writer = FileDevice::create(&path, 1 << 20, false).unwrap();
        assert!(matches!(FileDevice::open(&path, false), Err(Error::Locked)));
        assert!(matches!(FileDevice::open(&path, true), Err(Error::Locked)));
        assert!(matches!(FileDevice::create(&path, 1 << 20, true), Err(Error::Locked)));
        drop(writer);
        let reader = FileDevice::open(&path, true).unwrap();
        let second = FileDevice::open(&path, true).unwrap();
        assert!(matches!(FileDevice::open(&path, false), Err(Error::Locked)));
        drop((reader, second));
        FileDevice::open(&path, false).unwrap();
    }

    #[test]
    fn what_holds_data_is_not_overwritten_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        // Btrfs has its superblock at 64 KiB, with this in it, and nothing before.
        for (zeros, data) in [(60_000, "data"), ((64 << 10) + 64, "_BHRfS_M")] {
            std::fs::write(&path, [&vec![0; zeros], data.as_bytes()].concat()).unwrap();
            assert!(matches!(FileDevice::create(&path, 1 << 20, false), Err(Error::Invalid(_))));
            assert_eq!(std::fs::read(&path).unwrap().len(), zeros + data.len());
        }
        let device = FileDevice::create(&path, 1 << 20, true).unwrap();
        assert!(starts_with_zeros(&device).unwrap());
        drop(device);
        // An image of zeros alone may be taken over.
        assert_eq!(FileDevice::create(&path, 2 << 20, false).unwrap().size(), 2 << 20);
        assert!(matches!(FileDevice::create(dir.path(), 1 << 20, true), Err(Error::Invalid(_))));
        assert!(matches!(FileDevice::open(dir.path().join("none"), false), Err(Error::Io { .. })));
    }

    #[test]
    fn an_image_is_sparse_until_reserved_and_can_grow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 64 << 20, false).unwrap();
        assert_eq!(path.metadata().unwrap().blocks(), 0);
        assert!((1..=64 << 20).contains(&device.capacity().unwrap()));
        device.write_at(5000, b"kept").unwrap();
        device.reserve(0, 1 << 20).unwrap();
        assert!(path.metadata().unwrap().blocks() * 512 >= 1 << 20);
        let mut buf = [0; 4];
        device.read_at(5000, &mut buf).unwrap();
        assert_eq!(&buf, b"kept");
        device.flush().unwrap();
        assert_eq!(device.next_held(4096).unwrap().map(|(at, _)| at), Some(4096));
        assert_eq!(device.next_held(2 << 20).unwrap(), None);
        if device.discard(4096, 1 << 20).unwrap() {
            assert!(path.metadata().unwrap().blocks() * 512 <= 8192);
            device.read_at(5000, &mut buf).unwrap();
            assert_eq!(buf, [0; 4]);
            assert_eq!((device.stats().discards, device.stats().discard_bytes), (1, 1 << 20));
        }
        assert_eq!(device.size(), 64 << 20);
        device.grow(65 << 20).unwrap();
        assert_eq!((device.size(), path.metadata().unwrap().len()), (65 << 20, 65 << 20));
        assert!(device.grow(1 << 20).is_err());
        assert!(device.write_at(65 << 20, &[1]).is_err());
        assert!(device.reserve(65 << 20, 1).is_err());
        assert!(device.discard(65 << 20, 1).is_err());
    }

    #[test]
    fn a_durable_write_is_seen_counted_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 1 << 20, false).unwrap();
        let before = device.stats();
        assert!(device.write_durably(4090, &[7; 5000]).unwrap());
        let after = device.stats();
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
        let mut found = [0; 5000];
        device.read_at(4090, &mut found).unwrap();
        assert_eq!(found, [7; 5000]);
        assert!(device.write_durably((1 << 20) - 1, &[1, 2]).is_err());
        device.grow(2 << 20).unwrap();
        assert!(device.write_durably((1 << 20) - 1, &[1, 2]).unwrap());
        drop(device);
        let device = FileDevice::open(&path, true).unwrap();
        assert!(device.write_durably(0, &[1]).is_err());
        let mut found = [0; 2];
        device.read_at((1 << 20) - 1, &mut found).unwrap();
        assert_eq!(found, [1, 2]);
    }
}
