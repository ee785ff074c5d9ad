//! Trees in directories of the host (a mounted Pando is one too).

use std::{
    borrow::Cow,
    cell::OnceCell,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{FileKind, Time};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use crate::{
    below::{Attrs, Below, attrs_at, attrs_of, entries},
    tree::{
        CHUNK_BYTES, EntryId, Meta, Piece, Reader, Sink, View, Writer,
        lost::{LISTS, Losses, Lost, about, may_miss, sort_of},
    },
};

/// Set-id bits.
const SET_IDS: u32 = 0o6000;

/// A directory (or single file) of the host.
pub struct HostTree {
    root: PathBuf,
    /// A directory, and where the root of the tree is in it; opened when it is needed first.
    base: OnceCell<(Below, Vec<u8>)>,
}

impl HostTree {
    /// The tree at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), base: OnceCell::new() }
    }

    fn full(&self, path: &Path) -> PathBuf {
        // Joining an empty path would add a slash, which follows links.
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    fn base(&self) -> io::Result<&(Below, Vec<u8>)> {
        if let Some(base) = self.base.get() {
            return Ok(base);
        }
        let base = match (Below::new(&self.root), self.root.file_name()) {
            (Ok(below), _) => (below, Vec::new()),
            // A file, or nothing yet: an entry of the directory that it is in.
            (Err(_), Some(name)) => {
                let dir = self.root.parent().filter(|dir| !dir.as_os_str().is_empty());
                (Below::behind(dir.unwrap_or(Path::new(".")))?, name.as_bytes().to_vec())
            }
            (Err(e), None) => return Err(e),
        };
        Ok(self.base.get_or_init(|| base))
    }

    /// The directory of all, and the path of `path` in it.
    fn place<'p>(&self, path: &'p Path) -> io::Result<(&Below, Cow<'p, [u8]>)> {
        let (below, prefix) = self.base()?;
        let path = path.as_os_str().as_bytes();
        Ok(match (&prefix[..], path) {
            ([], path) => (below, Cow::Borrowed(path)),
            (prefix, []) => (below, Cow::Owned(prefix.to_vec())),
            (prefix, path) => (below, Cow::Owned([prefix, b"/", path].concat())),
        })
    }

    /// Calls `f` with the directory of an entry and its name.
    fn at<T>(&self, path: &Path, f: impl FnOnce(&OwnedFd, &OsStr) -> io::Result<T>) -> io::Result<T> {
        let (below, path) = self.place(path)?;
        below.at(&path, f)
    }

    /// Calls `f` with a path that means an entry to calls that take no directory.
    fn by_path<T>(&self, path: &Path, f: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
        let (below, in_base) = self.place(path)?;
        match below.by_proc(&in_base, &f) {
            // Some sandboxes have no /proc.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !Path::new("/proc/self/fd").exists() => {
                f(&self.full(path))
            }
            done => done,
        }
    }
}

/// Nanoseconds are signed or not, by platform.
fn time(secs: i64, nanos: impl TryInto<u32>) -> Time {
    Time { secs, nanos: nanos.try_into().unwrap_or(0) }
}

/// A count of names, and a size, have different types, by platform.
fn number(n: impl TryInto<u64>) -> u64 {
    n.try_into().unwrap_or(0)
}

fn meta_of(s: &Stat) -> Meta {
    let kind = FileKind::from_mode(s.st_mode).unwrap_or(FileKind::Regular);
    let has_size = matches!(kind, FileKind::Regular | FileKind::Symlink);
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    Meta {
        kind,
        perm: s.st_mode & 0o7777,
        uid: s.st_uid,
        gid: s.st_gid,
        size: if has_size { number(s.st_size) } else { 0 },
        atime: time(s.st_atime, s.st_atime_nsec),
        mtime: time(s.st_mtime, s.st_mtime_nsec),
        rdev: if is_device { s.st_rdev } else { 0 },
        dev: s.st_dev,
        ino: s.st_ino,
        nlink: number(s.st_nlink),
    }
}

impl View for HostTree {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn meta(&self, path: &Path) -> Result<Meta> {
        let stat = self.at(path, |dir, name| Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?));
        Ok(meta_of(&stat.with_context(|| View::show(self, path))?))
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let found = self.at(path, entries).with_context(|| View::show(self, path))?;
        Ok(found.into_iter().map(|(name, stat)| (name, meta_of(&stat))).collect())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Reader + '_>> {
        let fail = || View::show(self, path);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |dir: &OwnedFd, name: &OsStr| Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?);
        let file = File::from(self.at(path, open).with_context(fail)?);
        let stat = rustix::fs::fstat(&file).with_context(fail)?;
        let size = number(stat.st_size);
        // Only where blocks are missing are there holes worth two calls each; blocks behind the end may hide that,
        // which matters in large files.
        let sparse = size > CHUNK_BYTES as u64 || number(stat.st_blocks).saturating_mul(512) < size;
        Ok(Box::new(HostReader { file, name: fail(), at: 0, data_until: 0, size, sparse }))
    }

    fn readlink(&self, path: &Path) -> Result<OsString> {
        let read = |dir: &OwnedFd, name: &OsStr| Ok(rustix::fs::readlinkat(dir, name, Vec::new())?);
        let target = self.at(path, read).with_context(|| View::show(self, path))?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn attrs(&self, path: &Path) -> Result<Attrs> {
        self.by_path(path, attrs_at).with_context(|| View::show(self, path))
    }
}

struct HostReader {
    file: File,
    name: String,
    at: u64,
    data_until: u64,
    size: u64,
    sparse: bool,
}

impl HostReader {
    /// Finds where data begins at or after the present position, and until where it goes.
    fn find_data(&mut self) -> Result<u64> {
        use rustix::fs::SeekFrom as S;
        let start = match rustix::fs::seek(&self.file, S::Data(self.at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => self.size.max(self.at),
            Err(_) => {
                self.sparse = false;
                return Ok(0);
            }
        };
        self.data_until = match rustix::fs::seek(&self.file, S::Hole(start)) {
            Ok(end) => end,
            Err(_) => self.size,
        };
        let hole = start.saturating_sub(self.at);
        self.at = start;
        self.file.seek(SeekFrom::Start(start)).with_context(|| self.name.clone())?;
        Ok(hole)
    }
}

impl Reader for HostReader {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        if self.sparse && self.at >= self.data_until && self.at < self.size {
            let hole = self.find_data()?;
            if hole > 0 {
                return Ok(Piece::Hole(hole));
            }
        }
        let room = match self.sparse {
            true if self.at < self.data_until => buf.len().min((self.data_until - self.at) as usize),
            _ => buf.len(),
        };
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..room).filter(|r| !r.is_empty()) {
            match self.file.read(rest) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).with_context(|| self.name.clone()),
            }
            // What fits is in the buffer: asking again would only find the end.
            if self.at + filled as u64 == self.size {
                break;
            }
        }
        self.at += filled as u64;
        Ok(if filled == 0 { Piece::End } else { Piece::Data(filled) })
    }

    fn attrs(&mut self) -> Result<Attrs> {
        attrs_of(self.file.as_fd()).with_context(|| self.name.clone())
    }
}

/// What was made, by its descriptor.
struct Made<'a> {
    fd: BorrowedFd<'a>,
    /// The descriptor has no access (`O_PATH`): the entry is neither a regular file nor a directory that may be listed.
    named: bool,
}

impl Made<'_> {
    /// Where calls that take no such descriptor find it; nowhere in a sandbox without /proc.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(self.fd)?)
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> rustix::io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(self.fd, c"", uid, gid, AtFlags::EMPTY_PATH)
    }

    fn chmod(&self, perm: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(perm);
        if !self.named {
            return Ok(rustix::fs::fchmod(self.fd, mode)?);
        }
        match rustix::fs::chmod(self.path(), mode) {
            // A wrong mode is found out afterwards.
            Err(Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }

    fn set_times(&self, meta: &Meta) -> io::Result<()> {
        let spec = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
        if !self.named {
            return Ok(rustix::fs::futimens(self.fd, &times)?);
        }
        match rustix::fs::utimensat(self.fd, c"", &times, AtFlags::EMPTY_PATH) {
            // Linux before 5.8.
            Err(Errno::INVAL) => {
                Ok(rustix::fs::utimensat(rustix::fs::CWD, self.path(), &times, AtFlags::empty())?)
            }
            done => Ok(done?),
        }
    }

    fn set_attr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let (attr, flags) = (OsStr::from_bytes(name), XattrFlags::empty());
        match self.named {
            false => Ok(rustix::fs::fsetxattr(self.fd, attr, value, flags)?),
            true => Ok(rustix::fs::setxattr(self.path(), attr, value, flags)?),
        }
    }

    /// Sets all, in the order in which nothing takes back what was set before, and looks at what has come of it: file
    /// systems without owners, and modes that the caller may not give, are silent about it.
    fn set(&self, meta: &Meta, attrs: &Attrs, losses: &mut Losses) -> io::Result<()> {
        let is_link = meta.kind == FileKind::Symlink;
        let mut perm = meta.perm;
        let stat = self.stat()?;
        let owner = (meta.uid, meta.gid);
        if (stat.st_uid, stat.st_gid) != owner {
            let changed = self.chown(Some(meta.uid), Some(meta.gid));
            let given = match changed {
                // The group alone may be one of the caller's.
                Err(Errno::PERM) if stat.st_gid != meta.gid => self.chown(None, Some(meta.gid)).and(changed),
                other => other,
            };
            match given {
                Ok(()) => {}
                Err(e @ (Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                    let why = format!("{}:{}: {}", meta.uid, meta.gid, io::Error::from(e));
                    losses.push((Lost::Owner, why));
                    // Nobody else's programs run as the caller.
                    perm &= !SET_IDS;
                }
                Err(e) => return Err(e.into()),
            }
        }
        for (name, value) in attrs {
            match self.set_attr(name, value) {
                Err(e) if e.raw_os_error().is_some_and(may_miss) => {
                    losses.push((sort_of(name), about(name, &e)));
                }
                done => done?,
            }
        }
        if !is_link {
            self.chmod(perm)?;
        }
        self.set_times(meta)?;
        let got = meta_of(&self.stat()?);
        let owner_lost = losses.iter().any(|(lost, _)| *lost == Lost::Owner);
        if (got.uid, got.gid) != owner && !owner_lost {
            losses
                .push((Lost::Owner, format!("{}:{} instead of {}:{}", got.uid, got.gid, meta.uid, meta.gid)));
        }
        if got.perm != meta.perm && !is_link {
            losses.push((Lost::Mode, format!("{:o} instead of {:o}", got.perm, meta.perm)));
        }
        if got.mtime != meta.mtime {
            let (got, want) = (got.mtime, meta.mtime);
            let why = format!("{}.{:09} instead of {}.{:09}", got.secs, got.nanos, want.secs, want.nanos);
            losses.push((Lost::Time, why));
        }
        Ok(())
    }
}

struct HostWriter {
    file: File,
    at: u64,
    /// Whether the file ends in a hole so far.
    hole: bool,
}

impl Writer for HostWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(data)?;
        self.at += data.len() as u64;
        self.hole = false;
        Ok(())
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.at += len;
        self.hole = true;
        self.file.seek(SeekFrom::Start(self.at))?;
        Ok(())
    }

    fn finish(self: Box<Self>, meta: &Meta, attrs: &Attrs, losses: &mut Losses) -> Result<()> {
        if self.hole {
            self.file.set_len(self.at)?;
        }
        Ok(Made { fd: self.file.as_fd(), named: false }.set(meta, attrs, losses)?)
    }
}

impl Sink for HostTree {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn mkdir(&self, path: &Path) -> Result<EntryId> {
        Ok(self.at(path, |dir, name| {
            let made = rustix::fs::mkdirat(dir, name, Mode::RWXU);
            let there = made == Err(Errno::EXIST) && path.as_os_str().is_empty();
            if !there {
                made?;
            }
            match entry_at(dir, name)? {
                (FileKind::Directory, id) => Ok(id),
                _ => Err(Errno::EXIST.into()),
            }
        })?)
    }

    fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = self.at(path, |dir, name| Ok(rustix::fs::openat(dir, name, flags, mode)?))?;
        Ok(Box::new(HostWriter { file: file.into(), at: 0, hole: false }))
    }

    fn symlink(&self, path: &Path, target: &OsString) -> Result<EntryId> {
        Ok(self.at(path, |dir, name| {
            rustix::fs::symlinkat(target, dir, name)?;
            Ok(entry_at(dir, name)?.1)
        })?)
    }

    fn special(&self, path: &Path, meta: &Meta) -> Result<EntryId> {
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(self.at(path, |dir, name| {
            rustix::fs::mknodat(dir, name, kind, mode, meta.rdev)?;
            Ok(entry_at(dir, name)?.1)
        })?)
    }

    fn link(&self, first: &Path, path: &Path) -> Result<()> {
        // Only one directory is kept open, so the other needs a descriptor of its own.
        let (from, old) = self.at(first, |dir, name| Ok((dir.try_clone()?, name.to_owned())))?;
        Ok(self.at(path, |dir, name| Ok(rustix::fs::linkat(&from, &old, dir, name, AtFlags::empty())?))?)
    }

    fn clear_access_lists(&self, path: &Path) -> Result<()> {
        for list in LISTS {
            match self.by_path(path, |path| Ok(rustix::fs::lremovexattr(path, list)?)) {
                // The entry has no such attribute, or cannot have any.
                Err(e) if e.raw_os_error().is_some_and(may_miss) => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn set_meta(
        &self,
        path: &Path,
        made: EntryId,
        meta: &Meta,
        attrs: &Attrs,
        losses: &mut Losses,
    ) -> Result<()> {
        let is_dir = meta.kind == FileKind::Directory;
        let (fd, named) = self.at(path, |dir, name| {
            let open =
                |how| rustix::fs::openat(dir, name, how | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            match is_dir.then(|| open(OFlags::RDONLY | OFlags::DIRECTORY)) {
                Some(Ok(fd)) => Ok((fd, false)),
                _ => Ok((open(OFlags::PATH)?, true)),
            }
        })?;
        // From here on only the descriptor is used, because the name may be changed by others.
        let entry = Made { fd: fd.as_fd(), named };
        if entry_of(&entry.stat()?) != (meta.kind, made) {
            losses.push((Lost::Replaced, "is not what was made there".into()));
            return Ok(());
        }
        Ok(entry.set(meta, attrs, losses)?)
    }
}

/// The kind and identity of an entry.
fn entry_of(stat: &Stat) -> (FileKind, EntryId) {
    let meta = meta_of(stat);
    (meta.kind, EntryId { dev: meta.dev, ino: meta.ino })
}

/// The kind and identity of the entry `name`; symbolic links are not followed.
fn entry_at(dir: &OwnedFd, name: &OsStr) -> io::Result<(FileKind, EntryId)> {
    Ok(entry_of(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

/// Refuses a destination that exists and is not an empty directory.
pub fn check_new_or_empty(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => bail!("{}: exists and is not empty; give a new name", dir.display()),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            bail!("{}: exists; give a new name", dir.display())
        }
        Err(e) => Err(e).with_context(|| String::from_utf8_lossy(dir.as_os_str().as_bytes()).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::super::{Progress, compare, copy::copy};
    use super::*;

    #[test]
    fn a_copy_keeps_everything_holes_included() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir_all(a.join("sub/empty")).unwrap();
        fs::write(a.join("sub/file"), "x".repeat(3_000_000)).unwrap();
        let sparse = File::create(a.join("sparse")).unwrap();
        sparse.set_len(9 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 5 << 20).unwrap();
        std::os::unix::fs::symlink("nowhere", a.join("link")).unwrap();
        fs::set_permissions(a.join("sub"), fs::Permissions::from_mode(0o2750)).unwrap();
        let old = Time { secs: -5, nanos: 7 };
        let mut meta = HostTree::new(&a).meta(Path::new("sub/file")).unwrap();
        (meta.mtime, meta.perm) = (old, 0o4755);
        let id = EntryId { dev: meta.dev, ino: meta.ino };
        let (path, losses) = (Path::new("sub/file"), &mut Losses::new());
        HostTree::new(&a).set_meta(path, id, &meta, &Attrs::new(), losses).unwrap();
        assert_eq!(*losses, []);

        let (count, not_kept) = copy(&HostTree::new(&a), &HostTree::new(&b), &Progress::none()).unwrap();
        assert_eq!((count.dirs, count.files), (3, 3));
        assert_eq!(not_kept.lines().next(), None);
        let differences =
            compare::compare(&HostTree::new(&a), &HostTree::new(&b), &Default::default(), &Progress::none())
                .unwrap();
        assert_eq!(differences, Vec::<String>::new());
        assert_eq!(HostTree::new(&b).meta(Path::new("sub/file")).unwrap().mtime, old);
        assert!(fs::metadata(b.join("sparse")).unwrap().blocks() * 512 < 2 << 20, "the holes were filled");
        assert!(
            copy(&HostTree::new(&a), &HostTree::new(&b), &Progress::none()).is_err(),
            "nothing is overwritten"
        );
        assert!(check_new_or_empty(&b).is_err());
        assert!(check_new_or_empty(&b.join("sub/empty")).is_ok());
    }
}
