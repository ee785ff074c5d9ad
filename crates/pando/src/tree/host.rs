//! Trees in directories of the host (a mounted Pando is one too).

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{FileKind, Time};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps};

use crate::tree::{Meta, Piece, Reader, Sink, View, Writer};

/// A directory (or single file) of the host.
pub struct Host {
    root: PathBuf,
    /// Whether owners can be set: only root may give files away.
    owners: bool,
}

impl Host {
    /// The tree at `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), owners: rustix::process::geteuid().is_root() }
    }

    fn full(&self, path: &Path) -> PathBuf {
        // Joining an empty path would add a slash, which follows links.
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

fn kind(t: fs::FileType) -> FileKind {
    if t.is_dir() {
        FileKind::Directory
    } else if t.is_symlink() {
        FileKind::Symlink
    } else if t.is_char_device() {
        FileKind::CharDevice
    } else if t.is_block_device() {
        FileKind::BlockDevice
    } else if t.is_fifo() {
        FileKind::Fifo
    } else if t.is_socket() {
        FileKind::Socket
    } else {
        FileKind::Regular
    }
}

fn time(secs: i64, nanos: i64) -> Time {
    Time { secs, nanos: u32::try_from(nanos).unwrap_or(0) }
}

fn meta_of(m: &fs::Metadata) -> Meta {
    let kind = kind(m.file_type());
    Meta {
        kind,
        perm: m.permissions().mode() & 0o7777,
        uid: m.uid(),
        gid: m.gid(),
        size: if matches!(kind, FileKind::Regular | FileKind::Symlink) { m.size() } else { 0 },
        atime: time(m.atime(), m.atime_nsec()),
        mtime: time(m.mtime(), m.mtime_nsec()),
        rdev: if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { m.rdev() } else { 0 },
        ino: m.ino(),
        nlink: m.nlink(),
    }
}

impl View for Host {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn meta(&self, path: &Path) -> Result<Meta> {
        let m = fs::symlink_metadata(self.full(path)).with_context(|| View::show(self, path))?;
        Ok(meta_of(&m))
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        let fail = || View::show(self, path);
        let mut out = Vec::new();
        for entry in fs::read_dir(self.full(path)).with_context(fail)? {
            let entry = entry.with_context(fail)?;
            let m = entry.metadata().with_context(|| entry.path().display().to_string())?;
            out.push((entry.file_name(), meta_of(&m)));
        }
        Ok(out)
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Reader + '_>> {
        let fail = || View::show(self, path);
        let flags = libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(self.full(path)).with_context(fail)?;
        let m = file.metadata().with_context(fail)?;
        // Only where blocks are missing can there be holes worth two calls each.
        let sparse = m.blocks().saturating_mul(512) < m.size();
        Ok(Box::new(HostReader { file, name: fail(), at: 0, data_until: 0, size: m.size(), sparse }))
    }

    fn readlink(&self, path: &Path) -> Result<OsString> {
        let target = fs::read_link(self.full(path)).with_context(|| View::show(self, path))?;
        Ok(target.into_os_string())
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

    fn finish(self: Box<Self>) -> Result<()> {
        if self.hole {
            self.file.set_len(self.at)?;
        }
        Ok(())
    }
}

impl Sink for Host {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn mkdir(&self, path: &Path) -> Result<()> {
        let full = self.full(path);
        match rustix::fs::mkdir(&full, Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) if path.as_os_str().is_empty() && full.is_dir() => Ok(()),
            other => Ok(other?),
        }
    }

    fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.full(path))?;
        Ok(Box::new(HostWriter { file, at: 0, hole: false }))
    }

    fn symlink(&self, path: &Path, target: &OsString) -> Result<()> {
        Ok(std::os::unix::fs::symlink(target, self.full(path))?)
    }

    fn special(&self, path: &Path, meta: &Meta) -> Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        rustix::fs::mknodat(CWD, self.full(path), kind, Mode::RUSR | Mode::WUSR, meta.rdev)?;
        Ok(())
    }

    fn set_meta(&self, path: &Path, meta: &Meta) -> Result<()> {
        let full = self.full(path);
        if self.owners {
            std::os::unix::fs::lchown(&full, Some(meta.uid), Some(meta.gid))?;
        }
        if meta.kind != FileKind::Symlink {
            fs::set_permissions(&full, fs::Permissions::from_mode(meta.perm))?;
        }
        let spec = |t: Time| Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() };
        let times = Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
        rustix::fs::utimensat(CWD, &full, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
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

    use super::super::{Progress, compare, copy};
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
        let mut meta = Host::new(&a).meta(Path::new("sub/file")).unwrap();
        (meta.mtime, meta.perm) = (old, 0o4755);
        Host::new(&a).set_meta(Path::new("sub/file"), &meta).unwrap();

        let count = copy(&Host::new(&a), &Host::new(&b), &Progress::none()).unwrap();
        assert_eq!((count.dirs, count.files), (3, 3));
        let differences =
            compare::compare(&Host::new(&a), &Host::new(&b), &Default::default(), &Progress::none()).unwrap();
        assert_eq!(differences, Vec::<String>::new());
        assert_eq!(Host::new(&b).meta(Path::new("sub/file")).unwrap().mtime, old);
        assert!(fs::metadata(b.join("sparse")).unwrap().blocks() * 512 < 2 << 20, "the holes were filled");
        assert!(copy(&Host::new(&a), &Host::new(&b), &Progress::none()).is_err(), "nothing is overwritten");
        assert!(check_new_or_empty(&b).is_err());
        assert!(check_new_or_empty(&b.join("sub/empty")).is_ok());
    }
}
