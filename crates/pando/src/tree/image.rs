//! Trees in a file system opened without a mount.

use std::{
    cell::RefCell,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{Attr, Caller, FileHandle, FileKind, Fs, Ino, ROOT, Seek, SetAttr, SetTime};

use crate::{
    below::Attrs,
    tree::{
        EntryId, Meta, Piece, Reader, Sink, View, Writer,
        lost::{LISTS, Losses, about, may_miss, sort_of},
    },
};

/// Entries fetched at a time.
const LISTING_ENTRIES: usize = 1024;

/// The tree at `root` of a file system.
pub struct Image<'a> {
    fs: &'a Fs,
    root: PathBuf,
    caller: Caller,
    /// The directory used last and those above it, from the root down without the root, each referenced:
    /// neighbours are made and read one after the other.
    way: RefCell<Vec<(OsString, Ino)>>,
}

impl<'a> Image<'a> {
    /// The tree at `root` (absolute in the file system) of `fs`.
    pub fn new(fs: &'a Fs, root: &Path) -> Self {
        Self { fs, root: root.to_owned(), caller: Caller::root(), way: RefCell::default() }
    }

    fn full(&self, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    /// The inode number of a directory. It and its ancestors keep their references until another directory is
    /// requested, so a walk costs one lookup for each step, down or up, at any depth.
    fn dir(&self, full: &Path) -> Result<Ino> {
        let mut names = Vec::new();
        for part in full.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::RootDir | Component::CurDir => {}
                _ => bail!("{}: give a path without ..", full.display()),
            }
        }
        let mut way = self.way.borrow_mut();
        let common = way.iter().zip(&names).take_while(|((had, _), name)| had == *name).count();
        while way.len() > common {
            if let Some((_, ino)) = way.pop() {
                self.fs.forget(ino, 1);
            }
        }
        let mut ino = way.last().map_or(ROOT, |(_, ino)| *ino);
        for name in names.into_iter().skip(common) {
            ino = match self.fs.lookup(ino, name) {
                Ok(attr) => attr.ino,
                Err(pando_fs::Error::NotFound(_)) => {
                    return Err(pando_fs::Error::NotFound(full.display().to_string()).into());
                }
                Err(pando_fs::Error::NotDirectory(_)) => {
                    return Err(pando_fs::Error::NotDirectory(full.display().to_string()).into());
                }
                Err(e) => return Err(e.into()),
            };
            way.push((name.to_owned(), ino));
        }
        Ok(ino)
    }

    /// The directory that holds `path`, and the name in it; `None` for the root directory.
    fn place(&self, path: &Path) -> Result<Option<(Ino, OsString)>> {
        let full = self.full(path);
        match (full.parent(), full.components().next_back()) {
            (Some(parent), Some(Component::Normal(name))) => Ok(Some((self.dir(parent)?, name.to_owned()))),
            (_, Some(Component::RootDir)) => Ok(None),
            _ => bail!("{}: names nothing", full.display()),
        }
    }

    /// Attributes with one reference.
    fn lookup(&self, path: &Path) -> Result<Attr> {
        Ok(match self.place(path)? {
            Some((dir, name)) => self.fs.lookup(dir, &name)?,
            None => self.fs.resolve(Path::new("/"))?,
        })
    }

    fn make<T>(&self, path: &Path, how: impl FnOnce(Ino, &OsStr) -> pando_fs::Result<T>) -> Result<T> {
        match self.place(path)? {
            Some((dir, name)) => Ok(how(dir, &name)?),
            None => bail!("{}: exists", self.full(path).display()),
        }
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        for (_, ino) in self.way.take() {
            self.fs.forget(ino, 1);
        }
    }
}

fn meta_of(a: &Attr) -> Meta {
    Meta {
        kind: a.kind,
        perm: a.perm.into(),
        uid: a.uid,
        gid: a.gid,
        size: if matches!(a.kind, FileKind::Regular | FileKind::Symlink) { a.size } else { 0 },
        atime: a.atime,
        mtime: a.mtime,
        rdev: if matches!(a.kind, FileKind::CharDevice | FileKind::BlockDevice) { a.rdev.into() } else { 0 },
        dev: 0,
        ino: a.ino,
        nlink: a.nlink.into(),
    }
}

/// All extended attributes of an inode.
fn attrs_of(fs: &Fs, ino: Ino) -> pando_fs::Result<Attrs> {
    let root = Caller::root();
    let names = fs.list_xattr(&root, ino)?;
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| Ok((name.to_vec(), fs.get_xattr(&root, ino, OsStr::from_bytes(name))?.to_vec())))
        .collect()
}

/// Gives an inode the rest: a change of the owner takes attributes away, so these come last.
fn finish(
    fs: &Fs,
    ino: Ino,
    meta: &Meta,
    size: Option<u64>,
    (attrs, losses): (&Attrs, &mut Losses),
) -> Result<()> {
    let root = Caller::root();
    let change = SetAttr {
        mode: (meta.kind != FileKind::Symlink).then_some(meta.perm),
        uid: Some(meta.uid),
        gid: Some(meta.gid),
        size,
        atime: Some(SetTime::At(meta.atime)),
        mtime: Some(SetTime::At(meta.mtime)),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &change)?;
    for (name, value) in attrs {
        match fs.set_xattr(&root, ino, OsStr::from_bytes(name), value, 0) {
            Err(e) if may_miss(e.errno()) => losses.push((sort_of(name), about(name, &e))),
            done => done?,
        }
    }
    Ok(())
}

impl View for Image<'_> {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn meta(&self, path: &Path) -> Result<Meta> {
        let attr = self.lookup(path).with_context(|| View::show(self, path))?;
        self.fs.forget(attr.ino, 1);
        Ok(meta_of(&attr))
    }

    fn list(&self, path: &Path) -> Result<Vec<(OsString, Meta)>> {
        match self.list_some(path) {
            (all, None) => Ok(all),
            (_, Some(error)) => Err(error),
        }
    }

    fn list_some(&self, path: &Path) -> (Vec<(OsString, Meta)>, Option<anyhow::Error>) {
        let fail = || View::show(self, path);
        let opened = self.dir(&self.full(path)).and_then(|ino| Ok((ino, self.fs.opendir(ino)?)));
        let (ino, handle) = match opened.with_context(fail) {
            Ok(opened) => opened,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let mut out = Vec::new();
        let mut cookie = 0;
        let result = loop {
            let entries = match self.fs.readdir(handle, ino, cookie, LISTING_ENTRIES) {
                Ok(entries) => entries,
                Err(e) => break Err(e),
            };
            match entries.last() {
                Some(last) => cookie = last.cookie,
                None => break Ok(()),
            }
            let named = entries.into_iter().filter(|e| e.name != "." && e.name != "..");
            out.extend(named.map(|e| (e.name, meta_of(&e.attr))));
        };
        self.fs.releasedir(handle);
        (out, result.with_context(fail).err())
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Reader + '_>> {
        let fail = || View::show(self, path);
        let attr = self.lookup(path).with_context(fail)?;
        let handle = match self.fs.open_file(&self.caller, attr.ino, libc::O_RDONLY) {
            Ok(handle) => handle,
            Err(e) => {
                self.fs.forget(attr.ino, 1);
                return Err(e).with_context(fail);
            }
        };
        let file = OpenFile { fs: self.fs, ino: attr.ino, handle };
        Ok(Box::new(ImageReader { file, name: fail(), at: 0, size: attr.size, careful: 0, data_end: 0 }))
    }

    fn readlink(&self, path: &Path) -> Result<OsString> {
        let fail = || View::show(self, path);
        let attr = self.lookup(path).with_context(fail)?;
        let target = self.fs.readlink(attr.ino);
        self.fs.forget(attr.ino, 1);
        Ok(OsString::from_vec(target.with_context(fail)?.to_vec()))
    }

    fn attrs(&self, path: &Path) -> Result<Attrs> {
        let fail = || View::show(self, path);
        let attr = self.lookup(path).with_context(fail)?;
        let attrs = attrs_of(self.fs, attr.ino);
        self.fs.forget(attr.ino, 1);
        attrs.with_context(fail)
    }
}

/// A handle and the reference under it.
struct OpenFile<'a> {
    fs: &'a Fs,
    ino: Ino,
    handle: FileHandle,
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.fs.release(self.ino, self.handle);
        self.fs.forget(self.ino, 1);
    }
}

struct ImageReader<'a> {
    file: OpenFile<'a>,
    name: String,
    at: u64,
    size: u64,
    /// Up to this byte blocks are read one by one.
    careful: u64,
    /// Up to this byte there is no hole that the file system knows of.
    data_end: u64,
}

impl Reader for ImageReader<'_> {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        if self.at >= self.size {
            return Ok(Piece::End);
        }
        if self.at >= self.data_end {
            // Terabytes of nothing are passed at once. Where the map of the file cannot be read, all is.
            let data = match self.file.fs.seek(self.file.ino, self.at, Seek::Data) {
                Err(pando_fs::Error::NothingBehind(_)) => self.size,
                other => other.unwrap_or(self.at),
            };
            let hole = match self.file.fs.seek(self.file.ino, data, Seek::Hole) {
                Err(pando_fs::Error::NothingBehind(_)) => self.size,
                other => other.unwrap_or(self.size),
            };
            self.data_end = hole.max(data);
            if data > self.at {
                let len = data - self.at;
                self.at = data;
                return Ok(Piece::Hole(len));
            }
        }
        let block = pando_fs::BLOCK_SIZE - self.at % pando_fs::BLOCK_SIZE;
        let most = if self.at < self.careful { block } else { buf.len() as u64 };
        let most = most.min((self.data_end - self.at).max(1));
        let want = u32::try_from(most.min(buf.len() as u64)).unwrap_or(u32::MAX);
        let data = self.file.fs.read(self.file.handle, self.file.ino, self.at, want);
        if data.is_err() && u64::from(want) > block {
            // Some of these blocks may be readable.
            self.careful = self.at + u64::from(want);
            return self.next(buf);
        }
        let data = data.with_context(|| self.name.clone())?;
        if data.is_empty() {
            bail!("{}: ends at byte {} of {}", self.name, self.at, self.size);
        }
        self.at += data.len() as u64;
        // Whole chunks of zeros are as good as holes.
        if data.iter().all(|&b| b == 0) {
            return Ok(Piece::Hole(data.len() as u64));
        }
        match buf.get_mut(..data.len()) {
            Some(to) => to.copy_from_slice(&data),
            None => bail!("{}: more bytes than asked for", self.name),
        }
        Ok(Piece::Data(data.len()))
    }

    fn pass(&mut self) -> u64 {
        let block = pando_fs::BLOCK_SIZE - self.at % pando_fs::BLOCK_SIZE;
        let passed = block.min(self.size.saturating_sub(self.at));
        self.at += passed;
        passed
    }

    fn attrs(&mut self) -> Result<Attrs> {
        attrs_of(self.file.fs, self.file.ino).with_context(|| self.name.clone())
    }
}

struct ImageWriter<'a> {
    file: OpenFile<'a>,
    at: u64,
    written: u64,
}

impl Writer for ImageWriter<'_> {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            let n = self.file.fs.write(self.file.handle, self.file.ino, self.at, rest, false)? as usize;
            match rest.get(n..) {
                Some(tail) if n > 0 => rest = tail,
                _ => bail!("nothing was written"),
            }
            self.at += n as u64;
        }
        self.written = self.at;
        Ok(())
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.at += len;
        Ok(())
    }

    fn finish(self: Box<Self>, meta: &Meta, attrs: &Attrs, losses: &mut Losses) -> Result<()> {
        let size = (self.written < self.at).then_some(self.at);
        finish(self.file.fs, self.file.ino, meta, size, (attrs, losses))
    }
}

impl Sink for Image<'_> {
    fn show(&self, path: &Path) -> String {
        self.full(path).display().to_string()
    }

    fn mkdir(&self, path: &Path) -> Result<EntryId> {
        let is_root = path.as_os_str().is_empty();
        match self.lookup(path) {
            Ok(attr) => {
                self.fs.forget(attr.ino, 1);
                if is_root && attr.kind == FileKind::Directory {
                    return Ok(id(attr.ino));
                }
                bail!("{}: exists", self.full(path).display());
            }
            Err(e) if is_missing(&e) => {}
            Err(e) => return Err(e),
        }
        let attr = self.make(path, |dir, name| self.fs.mkdir(&self.caller, dir, name, 0o700))?;
        self.fs.forget(attr.ino, 1);
        Ok(id(attr.ino))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
        let (attr, handle) =
            self.make(path, |dir, name| self.fs.create(&self.caller, dir, name, 0o600, flags))?;
        let file = OpenFile { fs: self.fs, ino: attr.ino, handle };
        Ok(Box::new(ImageWriter { file, at: 0, written: 0 }))
    }

    fn symlink(&self, path: &Path, target: &OsString) -> Result<EntryId> {
        let attr = self.make(path, |dir, name| self.fs.symlink(&self.caller, dir, name, target))?;
        self.fs.forget(attr.ino, 1);
        Ok(id(attr.ino))
    }

    fn special(&self, path: &Path, meta: &Meta) -> Result<EntryId> {
        let mode = meta.kind.mode_bits() | 0o600;
        let rdev = u32::try_from(meta.rdev).context("a device number beyond 32 bits")?;
        let attr = self.make(path, |dir, name| self.fs.mknod(&self.caller, dir, name, mode, rdev))?;
        self.fs.forget(attr.ino, 1);
        Ok(id(attr.ino))
    }

    fn link(&self, first: &Path, path: &Path) -> Result<()> {
        let attr = self.lookup(first)?;
        let made = self.make(path, |dir, name| self.fs.link(&self.caller, attr.ino, dir, name));
        if let Ok(attr) = &made {
            self.fs.forget(attr.ino, 1);
        }
        self.fs.forget(attr.ino, 1);
        made.map(|_| ())
    }

    fn clear_access_lists(&self, path: &Path) -> Result<()> {
        let attr = self.lookup(path)?;
        let clear = |list: &str| self.fs.remove_xattr(&self.caller, attr.ino, list.as_ref());
        let cleared = LISTS.iter().try_for_each(|list| clear(list));
        self.fs.forget(attr.ino, 1);
        Ok(cleared?)
    }

    fn set_meta(
        &self,
        path: &Path,
        _: EntryId,
        meta: &Meta,
        attrs: &Attrs,
        losses: &mut Losses,
    ) -> Result<()> {
        // Nobody else has the image, so a path leads to what was made there.
        let attr = self.lookup(path)?;
        let done = finish(self.fs, attr.ino, meta, None, (attrs, losses));
        self.fs.forget(attr.ino, 1);
        done
    }
}

fn id(ino: u64) -> EntryId {
    EntryId { dev: 0, ino }
}

fn is_missing(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(pando_fs::Error::NotFound(_)))
}
