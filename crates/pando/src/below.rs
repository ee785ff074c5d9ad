//! Entries below a directory of the host, by descriptors from the top; and extended attributes.
//!
//! No symbolic link in a path is followed, so a program that changes the tree meanwhile cannot lead a call out of it.
//! A path may be longer than the kernel takes in one call. One directory at a time is kept open, because calls mostly
//! go to entries of the same directory. Paths have slashes between names, no slash at an end, and are empty for the
//! top.

use std::{
    cell::RefCell,
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, Stat, StatxAttributes, StatxFlags, makedev},
    io::Errno,
};

/// Longest path that one call takes, bytes; what is longer is walked in parts.
const STEP_BYTES: usize = 2000;
/// Most bytes of the names of extended attributes, and of a value: the kernel's limits.
const XATTR_BYTES: usize = 64 << 10;
/// Bytes of names that most files do not exceed.
const FEW_BYTES: usize = 256;

/// Extended attributes, access lists among them: name and value.
pub type Attrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A directory, and the one below it that was used last.
pub struct Below {
    top: OwnedFd,
    last: RefCell<Option<(Vec<u8>, OwnedFd)>>,
    /// For a tree that must be of one mount only.
    own: Option<Own>,
}

/// What the top of a tree of one mount is.
struct Own {
    /// What messages call it.
    path: PathBuf,
    /// Number of its file system.
    dev: u64,
}

impl Own {
    /// Refuses what is mounted at `path` in the tree.
    fn refuse(&self, path: &[u8]) -> io::Error {
        let at = self.path.join(OsStr::from_bytes(path));
        let says = "something is mounted on it; unmount it first (findmnt shows what is mounted where)";
        io::Error::other(format!("{}: {says}", at.display()))
    }
}

/// The directory and the name of a path.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

/// Opens the directory at `path`, which is not too long for one call, below `from`. EXDEV if `own` is given and
/// something else is mounted on the path.
fn step(from: BorrowedFd<'_>, path: &[u8], own: Option<&Own>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    within.set(ResolveFlags::NO_XDEV, own.is_some());
    match rustix::fs::openat2(from, OsStr::from_bytes(path), flags, Mode::empty(), within) {
        Err(Errno::NOSYS) => step_by_names(from, path, own),
        done => done,
    }
}

/// [`step`] where the kernel (or a sandbox) has no openat2.
fn step_by_names(from: BorrowedFd<'_>, path: &[u8], own: Option<&Own>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at: Option<OwnedFd> = None;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        if name == b".." {
            return Err(Errno::XDEV);
        }
        let (from, name) = (at.as_ref().map_or(from, AsFd::as_fd), OsStr::from_bytes(name));
        if let Some(own) = own
            && is_mount(from, name, own.dev)?
        {
            return Err(Errno::XDEV);
        }
        at = Some(rustix::fs::openat(from, name, flags, Mode::empty())?);
    }
    at.ok_or(Errno::NOENT)
}

/// Whether something is mounted on an entry. Before Linux 5.8 only what is of another file system than `dev` is
/// found.
fn is_mount(dir: BorrowedFd<'_>, name: &OsStr, dev: u64) -> rustix::io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(dir, name, flags, StatxFlags::TYPE) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            || makedev(found.stx_dev_major, found.stx_dev_minor) != dev),
        // Some sandboxes do not know it.
        Err(Errno::NOSYS | Errno::PERM) => {
            Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_dev != dev)
        }
        Err(e) => Err(e),
    }
}

impl Below {
    /// The tree below the directory at `top`, which is no link.
    pub fn new(top: &Path) -> io::Result<Below> {
        Self::open(top, OFlags::NOFOLLOW)
    }

    /// The tree below `top`, which may be a symbolic link to a directory.
    pub fn behind(top: &Path) -> io::Result<Below> {
        Self::open(top, OFlags::empty())
    }

    fn open(top: &Path, how: OFlags) -> io::Result<Below> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | how;
        let top = match rustix::fs::open(top, flags, Mode::empty()) {
            // What may not be listed may be gone through.
            Err(Errno::ACCESS) => rustix::fs::open(top, flags | OFlags::PATH, Mode::empty())?,
            done => done?,
        };
        Ok(Below { top, last: RefCell::new(None), own: None })
    }

    /// The tree below the directory at `path` in the one at `top`, which may be a symbolic link, as far as it belongs
    /// to the mount of `top`: [`Below::in_dir`] fails if something else is mounted on the path.
    pub fn of_one_mount(top: &Path, path: &Path) -> io::Result<Below> {
        let mut above = Self::behind(top)?;
        let dev = rustix::fs::fstat(&above.top)?.st_dev;
        above.own = Some(Own { path: top.to_owned(), dev });
        let inside = above.in_dir(path.as_os_str().as_bytes(), |dir| dir.try_clone())?;
        let own = Own { path: top.join(path), dev };
        Ok(Below { top: inside, last: RefCell::new(None), own: Some(own) })
    }

    /// Refuses the entry `name` of `dir`, which is at `path`, if something is mounted on it that is not to be met.
    pub fn refuse_mount(&self, dir: &OwnedFd, name: &OsStr, path: &[u8]) -> io::Result<()> {
        match &self.own {
            Some(own) if !path.is_empty() && is_mount(dir.as_fd(), name, own.dev)? => Err(own.refuse(path)),
            _ => Ok(()),
        }
    }

    /// The error for a step that failed behind `begin` bytes of `path`, from `from` over `names`.
    fn lost(&self, error: Errno, path: &[u8], begin: usize, from: BorrowedFd<'_>, names: &[u8]) -> io::Error {
        let Some(own) = self.own.as_ref().filter(|_| error == Errno::XDEV) else { return error.into() };
        let mut ends = (0..=names.len()).filter(|end| names.get(*end).is_none_or(|b| *b == b'/'));
        let on = |end: &usize| {
            let way = names.get(..*end).unwrap_or_default();
            step(from, way, Some(own)).is_err_and(|e| e == Errno::XDEV)
        };
        let end = ends.find(on).unwrap_or(names.len());
        own.refuse(path.get(..begin + end).unwrap_or(path))
    }

    /// Calls `f` with a descriptor of a directory (O_PATH).
    pub fn in_dir<T>(&self, path: &[u8], f: impl FnOnce(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        if path.is_empty() {
            return f(&self.top);
        }
        let mut last = self.last.borrow_mut();
        // What lies below the directory used last is reached from there.
        let known = match &*last {
            Some((had, dir)) => path.strip_prefix(&had[..]).and_then(|rest| match rest {
                [] => Some((dir, rest)),
                [b'/', rest @ ..] => Some((dir, rest)),
                _ => None,
            }),
            None => None,
        };
        let (from, mut rest) = match known {
            Some((dir, [])) => return f(dir),
            Some((dir, rest)) => (dir, rest),
            None => (&self.top, path),
        };
        let mut at: Option<OwnedFd> = None;
        while !rest.is_empty() {
            let cut = match rest.len() > STEP_BYTES {
                true => rest.iter().take(STEP_BYTES).rposition(|b| *b == b'/').unwrap_or(rest.len()),
                false => rest.len(),
            };
            let (next, tail) = rest.split_at(cut);
            let (begin, from) = (path.len() - rest.len(), at.as_ref().unwrap_or(from).as_fd());
            let found = step(from, next, self.own.as_ref());
            let found = found.map_err(|e| self.lost(e, path, begin, from, next))?;
            rest = tail.strip_prefix(b"/").unwrap_or(tail);
            at = Some(found);
        }
        let Some(dir) = at else { return f(&self.top) };
        let done = f(&dir);
        *last = Some((path.to_vec(), dir));
        done
    }

    /// Calls `f` with the directory of an entry and its name; the name of the top is `.`.
    pub fn at<T>(&self, path: &[u8], f: impl FnOnce(&OwnedFd, &OsStr) -> io::Result<T>) -> io::Result<T> {
        if path.is_empty() {
            return f(&self.top, OsStr::new("."));
        }
        let (dir, name) = split(path);
        self.in_dir(dir, |dir| f(dir, OsStr::from_bytes(name)))
    }

    /// Calls `f` with a path that means an entry to calls that take no directory.
    pub fn by_proc<T>(&self, path: &[u8], f: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        self.at(path, |dir, name| f(&PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)))
    }

    /// Lets go of the directory used last, which may have another path now.
    pub fn forget_dir(&self) {
        *self.last.borrow_mut() = None;
    }
}

/// The entries of the directory `name` of `dir` (`.`: that itself), with what is known of each; no link followed.
pub fn entries(dir: &OwnedFd, name: &OsStr) -> io::Result<Vec<(OsString, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut out = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            out.push((name.to_owned(), stat));
        }
    }
    Ok(out)
}

/// What lists the names of attributes, and what gets a value: into a buffer, and how many bytes it is.
fn attrs_by(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Attrs> {
    let mut few = [0u8; FEW_BYTES];
    let names = match list(&mut few) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(len) => few.get(..len).unwrap_or_default().to_vec(),
        Err(Errno::RANGE) => {
            let mut many = vec![0; XATTR_BYTES];
            let len = list(&mut many)?;
            many.truncate(len);
            many
        }
        Err(e) => return Err(e.into()),
    };
    let mut out = Vec::new();
    let mut value = vec![0; XATTR_BYTES];
    for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
        match get(OsStr::from_bytes(name), &mut value) {
            Ok(len) => out.push((name.to_vec(), value.get(..len).unwrap_or_default().to_vec())),
            // The attribute was removed in between.
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(out)
}

/// The attributes of what is at `path`, no link followed; none where there cannot be any.
pub fn attrs_at(path: &Path) -> io::Result<Attrs> {
    let get = |name: &OsStr, value: &mut [u8]| rustix::fs::lgetxattr(path, name, value);
    attrs_by(|names| rustix::fs::llistxattr(path, names), get)
}

/// [`attrs_at`] without those that the caller may not read: of a directory that he may not read he sees access lists.
pub fn readable_attrs_at(path: &Path) -> io::Result<Attrs> {
    let get = |name: &OsStr, value: &mut [u8]| match rustix::fs::lgetxattr(path, name, value) {
        Err(Errno::ACCESS) => Err(Errno::NODATA),
        got => got,
    };
    attrs_by(|names| rustix::fs::llistxattr(path, names), get)
}

/// The attributes of an open file.
pub fn attrs_of(file: impl AsFd) -> io::Result<Attrs> {
    let get = |name: &OsStr, value: &mut [u8]| rustix::fs::fgetxattr(&file, name, value);
    attrs_by(|names| rustix::fs::flistxattr(&file, names), get)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_alone_lead_where_one_call_leads_and_not_out() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tmp.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/", tmp.path().join("a/out")).unwrap();
        let top = Below::new(tmp.path()).unwrap();
        for how in [step, step_by_names] {
            let dir = how(top.top.as_fd(), b"a/b", None).unwrap();
            let (x, y) =
                (rustix::fs::fstat(&dir).unwrap(), std::fs::metadata(tmp.path().join("a/b")).unwrap());
            assert_eq!(x.st_ino, std::os::unix::fs::MetadataExt::ino(&y));
            for bad in ["a/out", "a/out/tmp", "..", "none"] {
                assert!(how(top.top.as_fd(), bad.as_bytes(), None).is_err(), "{bad}");
            }
            // On /proc something is mounted.
            let root = Below::new(Path::new("/")).unwrap();
            let own = Own { path: "/".into(), dev: rustix::fs::fstat(&root.top).unwrap().st_dev };
            assert!(how(root.top.as_fd(), b"proc/1", None).is_ok());
            assert_eq!(how(root.top.as_fd(), b"proc/1", Some(&own)).unwrap_err(), Errno::XDEV);
        }
    }

    #[test]
    fn directories_below_the_last_are_found_from_there_and_others_from_the_top() {
        let tmp = tempfile::tempdir().unwrap();
        let paths = ["a", "a/b", "a/b/c", "a/bc", "a/b/c/d", "a", "ab", "a/b"];
        paths.iter().for_each(|path| std::fs::create_dir_all(tmp.path().join(path)).unwrap());
        let top = Below::new(tmp.path()).unwrap();
        for path in paths {
            let found = top.in_dir(path.as_bytes(), |dir| Ok(rustix::fs::fstat(dir)?.st_ino)).unwrap();
            let there = std::fs::metadata(tmp.path().join(path)).unwrap();
            assert_eq!(found, std::os::unix::fs::MetadataExt::ino(&there), "{path}");
        }
    }
}
