//! A directory of the host (a mounted Pando is one too) as a tree that is sent, or received.
//!
//! All calls go through descriptors from the top, and follow no symbolic link, so nothing in a stream can reach out
//! of the tree. One directory at a time is kept open, because calls mostly go to entries of the same directory.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::FileExt,
        },
    },
    path::{Path, PathBuf},
};

use pando_fs::{
    FileKind, Time,
    send::{FileMeta, SourceFile, SourceTree, TargetTree},
};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, Timespec, Timestamps,
    Uid, XattrFlags,
};

use crate::below::{Below, attrs_at, entries, split};

/// The tree below a directory.
pub struct TreeBelow {
    below: Below,
    /// The file that is written, and its path.
    open: Option<(Vec<u8>, File)>,
}

fn kind_of(mode: u32) -> FileKind {
    FileKind::from_mode(mode).unwrap_or(FileKind::Regular)
}

/// Nanoseconds are signed or not, by platform.
fn time(secs: i64, nanos: impl TryInto<u32>) -> Time {
    Time { secs, nanos: nanos.try_into().unwrap_or(0) }
}

/// A count of names has 32 or 64 bits, by platform.
fn count(names: impl Into<u64>) -> u64 {
    names.into()
}

fn meta_of(s: &Stat) -> FileMeta {
    let kind = kind_of(s.st_mode);
    FileMeta {
        kind,
        perm: (s.st_mode & 0o7777) as u16,
        uid: s.st_uid,
        gid: s.st_gid,
        size: u64::try_from(s.st_size).unwrap_or(0),
        atime: time(s.st_atime, s.st_atime_nsec),
        mtime: time(s.st_mtime, s.st_mtime_nsec),
        rdev: u32::try_from(s.st_rdev).unwrap_or(0),
        ino: s.st_ino,
        nlink: count(s.st_nlink),
    }
}

impl TreeBelow {
    /// The tree below the directory at `top`.
    pub fn new(top: &Path) -> io::Result<TreeBelow> {
        Ok(TreeBelow { below: Below::new(top)?, open: None })
    }

    /// The snapshot `name` of the directory `dir`, as a source. What is mounted in it is none of it.
    pub fn of_snapshot(dir: &Path, name: &OsStr) -> io::Result<TreeBelow> {
        let below = Below::of_one_mount(dir, &Path::new(".snapshots").join(name))?;
        Ok(TreeBelow { below, open: None })
    }

    fn opened(&self, path: &[u8], flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        self.below.at(path, |dir, name| {
            let file = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
            match file.metadata()?.is_file() {
                true => Ok(file),
                false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
            }
        })
    }

    fn written(&self) -> io::Result<&File> {
        self.open.as_ref().map(|(_, file)| file).ok_or_else(|| io::Error::other("no file is open"))
    }

    /// Gives the owner, if that is the caller, all rights to the entry at `path`. Only for entries whose mode comes
    /// later in the stream: directories in which an entry is added or removed, files whose content is sent, and
    /// entries that get attributes.
    fn open_up(&self, path: &[u8]) -> io::Result<()> {
        self.below.at(path, |dir, name| {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let rights = if kind_of(stat.st_mode) == FileKind::Directory { 0o700 } else { 0o600 };
            let mode = stat.st_mode & 0o7777;
            let own = stat.st_uid == rustix::process::geteuid().as_raw();
            if !own || kind_of(stat.st_mode) == FileKind::Symlink || mode & rights == rights {
                return Err(ErrorKind::PermissionDenied.into());
            }
            Ok(rustix::fs::chmodat(dir, name, Mode::from_raw_mode(mode | rights), AtFlags::empty())?)
        })
    }

    /// Calls `f`; again with all rights to what is at `path` if it may not for want of them. An ordinary user meets
    /// files and directories that are read-only, of the base or from before an interruption.
    fn opened_up<T>(&self, path: &[u8], f: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match f() {
            Err(e) if denied(&e) => match self.open_up(path) {
                Ok(()) => f(),
                Err(_) => Err(e),
            },
            done => done,
        }
    }

    /// Does something with an entry of a directory, which it changes.
    fn change<T>(&self, path: &[u8], f: impl Fn(&OwnedFd, &OsStr) -> io::Result<T>) -> io::Result<T> {
        self.opened_up(split(path).0, || self.below.at(path, &f))
    }

    fn unlinked(&self, path: &[u8]) -> io::Result<()> {
        self.change(path, |dir, name| Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?))
    }
}

fn denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::ACCESS.raw_os_error())
}

impl SourceTree for TreeBelow {
    fn meta(&self, path: &[u8]) -> io::Result<FileMeta> {
        self.below.at(path, |dir, name| {
            self.below.refuse_mount(dir, name, path)?;
            Ok(meta_of(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
        })
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<(OsString, FileMeta)>> {
        // What is sent is frozen, so `.snapshots` in it is an entry of the user's own, as any other.
        let found = self.below.in_dir(path, |dir| {
            let found = entries(dir, OsStr::new("."))?;
            for (name, _) in &found {
                self.below.refuse_mount(dir, name, &join(path, name.as_bytes()))?;
            }
            Ok(found)
        })?;
        Ok(found.into_iter().map(|(name, stat)| (name, meta_of(&stat))).collect())
    }

    fn readlink(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.below.at(path, |dir, name| Ok(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes()))
    }

    fn xattrs(&self, path: &[u8], _: FileKind) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.below.by_proc(path, attrs_at)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn SourceFile + '_>> {
        let file = self.opened(path, OFlags::RDONLY)?;
        let stat = rustix::fs::fstat(&file)?;
        // Holes are searched for, with two calls each, only if blocks are missing.
        let sparse = (stat.st_blocks as u64).saturating_mul(512) < stat.st_size as u64;
        Ok(Box::new(HostFile { file, sparse, size: stat.st_size as u64 }))
    }
}

struct HostFile {
    file: File,
    sparse: bool,
    size: u64,
}

impl SourceFile for HostFile {
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn data_from(&mut self, offset: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let end = end.min(self.size);
        if offset >= end {
            return Ok(None);
        }
        if !self.sparse {
            return Ok(Some((offset, end)));
        }
        let begin = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(begin) if begin < end => begin,
            Ok(_) | Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let stop = rustix::fs::seek(&self.file, SeekFrom::Hole(begin))?;
        Ok(Some((begin, stop.min(end))))
    }
}

impl TargetTree for TreeBelow {
    fn meta(&mut self, path: &[u8]) -> io::Result<FileMeta> {
        SourceTree::meta(self, path)
    }

    fn mkdir(&mut self, path: &[u8]) -> io::Result<()> {
        self.change(path, |dir, name| Ok(rustix::fs::mkdirat(dir, name, Mode::RWXU)?))
    }

    fn create(&mut self, path: &[u8], again: bool) -> io::Result<()> {
        self.close()?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let made = || self.opened_up(split(path).0, || self.opened(path, flags | OFlags::EXCL));
        let file = match again.then(|| self.opened(path, flags | OFlags::TRUNC)) {
            // The one from the time before may have got its mode, and that of its directory, which forbid to write.
            Some(Err(e)) if denied(&e) => match self.unlinked(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {
                    let file = made()?;
                    // The directory may be complete by now, and gives an access list to what is made in it again.
                    self.clear_xattrs(path)?;
                    file
                }
            },
            Some(done) => done?,
            None => made()?,
        };
        self.open = Some((path.to_vec(), file));
        Ok(())
    }

    fn open(&mut self, path: &[u8]) -> io::Result<()> {
        self.close()?;
        let file = self.opened_up(path, || self.opened(path, OFlags::WRONLY))?;
        self.open = Some((path.to_vec(), file));
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let Some((path, file)) = self.open.take() else { return Ok(()) };
        // Its times, which a sender says of each file, were not set, where it would have been closed.
        let told = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path_of(&path).display()));
        file.sync_all().map_err(told)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.written()?.write_all_at(bytes, offset)
    }

    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match len {
            0 => Ok(()),
            len => Ok(rustix::fs::fallocate(self.written()?, mode, offset, len)?),
        }
    }

    fn set_len(&mut self, size: u64) -> io::Result<()> {
        self.written()?.set_len(size)
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.change(path, |dir, name| Ok(rustix::fs::symlinkat(OsStr::from_bytes(target), dir, name)?))
    }

    fn special(&mut self, path: &[u8], kind: FileKind, rdev: u32) -> io::Result<()> {
        let kind = FileType::from_raw_mode(kind.mode_bits());
        self.change(path, |dir, name| {
            Ok(rustix::fs::mknodat(dir, name, kind, Mode::RUSR | Mode::WUSR, u64::from(rdev))?)
        })
    }

    fn link(&mut self, to: &[u8], path: &[u8]) -> io::Result<()> {
        // Only one directory is kept open, so the other needs a descriptor of its own.
        let from = self.below.at(to, |dir, _| dir.try_clone())?;
        let old = OsStr::from_bytes(split(to).1);
        self.change(path, |dir, name| Ok(rustix::fs::linkat(&from, old, dir, name, AtFlags::empty())?))
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let at = self.below.at(from, |dir, _| dir.try_clone())?;
        let old = OsStr::from_bytes(split(from).1);
        let flags = RenameFlags::NOREPLACE;
        let moved =
            || self.below.at(to, |dir, name| Ok(rustix::fs::renameat_with(&at, old, dir, name, flags)?));
        // Either directory may be read-only, and then both.
        let done = self.opened_up(split(from).0, || self.opened_up(split(to).0, moved));
        self.below.forget_dir();
        done
    }

    fn unlink(&mut self, path: &[u8]) -> io::Result<()> {
        self.unlinked(path)
    }

    fn rmdir(&mut self, path: &[u8]) -> io::Result<()> {
        let done = self.change(path, |dir, name| Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?));
        self.below.forget_dir();
        done
    }

    fn chown(&mut self, path: &[u8], uid: u32, gid: u32) -> io::Result<()> {
        let meta = SourceTree::meta(self, path)?;
        if (meta.uid, meta.gid) == (uid, gid) {
            return Ok(());
        }
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        self.below
            .at(path, |dir, name| Ok(rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn clear_xattrs(&mut self, path: &[u8]) -> io::Result<()> {
        for (name, _) in self.xattrs(path, FileKind::Regular)? {
            let remove = |file: &Path| Ok(rustix::fs::lremovexattr(file, OsStr::from_bytes(&name))?);
            self.opened_up(path, || self.below.by_proc(path, remove))?;
        }
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
        let name = OsStr::from_bytes(name);
        let set = |file: &Path| Ok(rustix::fs::lsetxattr(file, name, value, XattrFlags::empty())?);
        self.opened_up(path, || self.below.by_proc(path, set))
    }

    fn set_meta(
        &mut self,
        path: &[u8],
        owner: (u32, u32),
        perm: u16,
        atime: Time,
        mtime: Time,
    ) -> io::Result<()> {
        let time = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
        let mode = Mode::from_raw_mode(perm.into());
        if let Some((_, file)) = self.open.take_if(|(open, _)| open == path) {
            let stat = rustix::fs::fstat(&file)?;
            if (stat.st_uid, stat.st_gid) != owner {
                rustix::fs::fchown(&file, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
            }
            rustix::fs::fchmod(&file, mode)?;
            rustix::fs::futimens(&file, &times)?;
            // Close is where the kernel reports that dirty pages could not be stored.
            return match nix::unistd::close(file) {
                // No write fails so.
                Err(nix::errno::Errno::EINTR) => Ok(()),
                done => Ok(done?),
            };
        }
        self.chown(path, owner.0, owner.1)?;
        self.below.at(path, |dir, name| {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if kind_of(stat.st_mode) != FileKind::Symlink {
                rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?;
            }
            Ok(rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
        })
    }
}

/// The path of an entry of a directory.
fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// A path of bytes.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}
