//! Changes of attributes, of single files and of all that is in a directory: what `chmod`, `chown` and `touch` share.
//!
//! A whole tree in a mount is changed by one request if the daemon can do that for this caller, in an image by one
//! call; everything else file by file, with the caller's own rights, as coreutils do. Files are held by descriptors
//! that do not follow links, so nothing outside of the tree is reached by a name that is swapped.

use std::{
    ffi::{CStr, OsStr},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use anyhow::Result;
use pando_fs::{Caller, FileKind, Fs, SetAttr, SetTime, TreeChange};
use pando_fuse::tool;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
        chmod, chownat, fstat, openat, utimensat,
    },
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    exit::{self, Coded},
    image::ImagePath,
    offline,
};

/// What to do to the files that a command names.
pub struct Wanted<'a> {
    /// The command, for messages.
    pub name: &'static str,
    pub change: &'a TreeChange,
    /// Also to all that is in directories.
    pub recursive: bool,
    /// Where a path ends in a symbolic link, what it points to is meant.
    pub follow: bool,
}

impl Wanted<'_> {
    /// Does it to all these files; what fails is said, and the rest done.
    pub fn run(&self, paths: &[PathBuf]) -> Result<()> {
        if self.recursive {
            allow_deep_trees();
        }
        let mut failed = false;
        for path in paths {
            let done = match offline::place(path) {
                Some(inside) => self.offline(&inside).map(|()| true),
                None => self.change(path),
            };
            failed |= !done.unwrap_or_else(|e| self.failed(path, e));
        }
        if failed {
            return Err(Coded(exit::FAILURE, String::new()).into());
        }
        Ok(())
    }

    fn offline(&self, place: &ImagePath) -> Result<()> {
        offline::with(place, false, |fs| self.inside(fs, &place.path))
    }

    /// In an image, where links are not followed.
    fn inside(&self, fs: &Fs, path: &Path) -> Result<()> {
        let attr = fs.resolve(path)?;
        let change = self.change;
        let dir = attr.kind == FileKind::Directory;
        let done = if dir && self.recursive {
            fs.change_tree(attr.ino, change).map(drop)
        } else {
            let mode = change.mode.filter(|_| attr.kind != FileKind::Symlink);
            let set = SetAttr {
                mode: mode.map(|mode| mode.apply(attr.perm, dir).into()),
                uid: change.uid,
                gid: change.gid,
                atime: change.atime,
                mtime: change.mtime,
                ..SetAttr::default()
            };
            fs.setattr(&Caller::root(), attr.ino, &set).map(drop)
        };
        fs.forget(attr.ino, 1);
        Ok(done?)
    }

    /// The file or tree at a path; false if something was not changed, which has been said.
    fn change(&self, path: &Path) -> Result<bool> {
        let links = if self.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | links, Mode::empty()) {
            Ok(file) => file,
            Err(e) => return Ok(self.said(path, e.into())),
        };
        let is_dir = fstat(&file).is_ok_and(|stat| kind(&stat) == FileType::Directory);
        if !self.recursive || !is_dir {
            return Ok(self.one(&file).map_or_else(|e| self.said(path, e), |()| true));
        }
        let top = open_dir(&file, c".");
        if let Ok(top) = &top {
            match tool::change_tree(top, self.change) {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.tree(file, top, path))
    }

    /// The directory `dir`, which has been opened for reading if it may be, and all in it, one by one. Holds one
    /// descriptor for each level. The directory is first, because its new mode may give the right to read it. For a
    /// new owner it is last, as with coreutils: that may take the right to enter it, and one that may not be read stays
    /// as it is.
    fn tree(&self, dir: OwnedFd, opened: Result<OwnedFd, Errno>, path: &Path) -> bool {
        let last = self.change.uid.is_some() || self.change.gid.is_some();
        let mut all = last || self.one(&dir).map_or_else(|e| self.said(path, e), |()| true);
        let opened = opened.or_else(|_| open_dir(&dir, c"."));
        drop(dir);
        let unread =
            |e: io::Error| self.failed(path, anyhow::Error::from(e).context("cannot read directory"));
        let mut entries = match opened.and_then(Dir::new) {
            Ok(entries) => entries,
            Err(e) => return unread(e.into()),
        };
        while let Some(entry) = entries.read() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return unread(e.into()),
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = entries.fd().and_then(|dir| openat(dir, name, flags, Mode::empty()));
            all &= match file.and_then(|file| fstat(&file).map(|stat| (file, stat))) {
                Ok((file, stat)) if kind(&stat) == FileType::Directory => {
                    let opened = open_dir(&file, c".");
                    self.tree(file, opened, &path)
                }
                Ok((file, _)) => self.one(&file).map_or_else(|e| self.said(&path, e), |()| true),
                Err(Errno::NOENT) => true, // removed meanwhile
                Err(e) => self.said(&path, e.into()),
            };
        }
        if last {
            let changed = entries.fd().map_err(io::Error::from).and_then(|dir| self.one(dir));
            all &= changed.map_or_else(|e| self.said(path, e), |()| true);
        }
        all
    }

    /// What is open.
    fn one(&self, file: impl AsFd) -> io::Result<()> {
        let file = file.as_fd();
        let change = self.change;
        let stat = fstat(file)?;
        if let (Some(mode), true) = (change.mode, kind(&stat) != FileType::Symlink) {
            let dir = kind(&stat) == FileType::Directory;
            let mode = mode.apply((stat.st_mode & 0o7777) as u16, dir);
            // A descriptor that only names the file has no call of its own for this on older kernels.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            chmod(path, Mode::from_raw_mode(mode.into()))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let time = |time: Option<SetTime>| match time {
                None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                Some(SetTime::At(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
            };
            let times = Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) };
            utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    /// Says that a file was not changed.
    fn said(&self, path: &Path, why: io::Error) -> bool {
        self.failed(path, why.into())
    }

    fn failed(&self, path: &Path, why: anyhow::Error) -> bool {
        exit::say("pando", &why.context(format!("{} {}", self.name, path.display())));
        false
    }
}

/// A walk holds a descriptor for each level, of which a program has 1,024 unless it asks for more.
fn allow_deep_trees() {
    let now = getrlimit(Resource::Nofile);
    // If this is refused, entries that are too deep are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, ..now });
}

fn kind(stat: &rustix::fs::Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn open_dir(at: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}
