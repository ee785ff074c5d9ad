//! A tree of an open file system, as the source or the target of a stream.

use std::{
    cell::RefCell,
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt,
};

use crate::{
    allocate::Seek,
    error::Error,
    open_flags::O_WRONLY,
    send::tree::{FileMeta, SourceFile, SourceTree, TargetTree},
    types::{Attr, Caller, FileHandle, FileKind, Ino, SetAttr, SetTime, Time},
    volume::Fs,
};

/// Entries fetched at a time, a count.
const LISTING_ENTRIES: usize = 1024;
/// Bits of the mode of fallocate(2).
const PUNCH_MODE: i32 = 1 | 2;

/// The tree below a directory, with the rights of root.
pub struct FsTree<'a> {
    fs: &'a Fs,
    top: Ino,
    caller: Caller,
    /// The directories on the path that was used last, without the top, each with a reference.
    way: RefCell<Vec<(OsString, Ino)>>,
    /// The file that is written.
    open: Option<HeldFile<'a>>,
}

/// A file that is referenced, and open, as long as this lives.
struct HeldFile<'a> {
    fs: &'a Fs,
    ino: Ino,
    handle: FileHandle,
    size: u64,
}

impl Drop for HeldFile<'_> {
    fn drop(&mut self) {
        self.fs.release(self.ino, self.handle);
        self.fs.forget(self.ino, 1);
    }
}

fn io(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno()).kind();
    io::Error::new(kind, error)
}

fn meta_of(a: &Attr) -> FileMeta {
    FileMeta {
        kind: a.kind,
        perm: a.perm,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        atime: a.atime,
        mtime: a.mtime,
        rdev: a.rdev,
        ino: a.ino,
        nlink: a.nlink.into(),
    }
}

/// The directory and the name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

impl<'a> FsTree<'a> {
    /// The tree below the directory `top`, which the caller keeps referenced.
    pub fn new(fs: &'a Fs, top: Ino) -> Self {
        Self { fs, top, caller: Caller::root(), way: RefCell::default(), open: None }
    }

    /// A directory, which stays referenced until another one is asked for.
    fn dir(&self, path: &[u8]) -> io::Result<Ino> {
        let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect();
        let mut way = self.way.borrow_mut();
        let common = way.iter().zip(&names).take_while(|((had, _), name)| had.as_bytes() == **name).count();
        while way.len() > common {
            if let Some((_, ino)) = way.pop() {
                self.fs.forget(ino, 1);
            }
        }
        let mut ino = way.last().map_or(self.top, |(_, ino)| *ino);
        for name in names.into_iter().skip(common) {
            let name = OsStr::from_bytes(name);
            let attr = self.fs.lookup(ino, name).map_err(io)?;
            way.push((name.to_owned(), attr.ino));
            ino = attr.ino;
        }
        Ok(ino)
    }

    /// Forgets the path that was used last, because a change may make it wrong.
    fn forget_way(&self) {
        for (_, ino) in self.way.take() {
            self.fs.forget(ino, 1);
        }
    }

    /// The directory and name of something below the top.
    fn place<'p>(&self, path: &'p [u8]) -> io::Result<(Ino, &'p OsStr)> {
        let (dir, name) = split(path);
        Ok((self.dir(dir)?, OsStr::from_bytes(name)))
    }

    /// Calls `f` with the attributes of something, which is referenced meanwhile.
    fn on<T>(&self, path: &[u8], f: impl FnOnce(&Attr) -> Result<T, Error>) -> io::Result<T> {
        if path.is_empty() {
            return self.fs.getattr(self.top).and_then(|attr| f(&attr)).map_err(io);
        }
        let (dir, name) = self.place(path)?;
        let attr = self.fs.lookup(dir, name).map_err(io)?;
        let done = f(&attr).map_err(io);
        self.fs.forget(attr.ino, 1);
        done
    }

    fn opened(&self, path: &[u8], flags: i32) -> io::Result<HeldFile<'a>> {
        let (dir, name) = self.place(path)?;
        let attr = self.fs.lookup(dir, name).map_err(io)?;
        let opened = match attr.kind {
            FileKind::Regular => self.fs.open_file(&self.caller, attr.ino, flags),
            _ => Err(Error::Invalid(format!("{}: not a regular file", name.display()))),
        };
        match opened {
            Ok(handle) => Ok(HeldFile { fs: self.fs, ino: attr.ino, handle, size: attr.size }),
            Err(e) => {
                self.fs.forget(attr.ino, 1);
                Err(io(e))
            }
        }
    }

    fn made(&self, made: Result<Attr, Error>) -> io::Result<()> {
        let attr = made.map_err(io)?;
        self.fs.forget(attr.ino, 1);
        Ok(())
    }

    fn written(&self) -> io::Result<&HeldFile<'a>> {
        self.open.as_ref().ok_or_else(|| io::Error::other("no file is open"))
    }
}

impl Drop for FsTree<'_> {
    fn drop(&mut self) {
        self.forget_way();
    }
}

impl SourceTree for FsTree<'_> {
    fn meta(&self, path: &[u8]) -> io::Result<FileMeta> {
        self.on(path, |attr| Ok(meta_of(attr)))
    }

    fn list(&self, path: &[u8]) -> io::Result<Vec<(OsString, FileMeta)>> {
        let ino = self.dir(path)?;
        let handle = self.fs.opendir(ino).map_err(io)?;
        let mut out = Vec::new();
        let mut cookie = 0;
        let done = loop {
            match self.fs.readdir(handle, ino, cookie, LISTING_ENTRIES) {
                Ok(entries) => {
                    let Some(last) = entries.last() else { break Ok(()) };
                    cookie = last.cookie;
                    let named = entries.into_iter().filter(|e| e.name != "." && e.name != "..");
                    // What is sent is frozen, so `.snapshots` in it is an entry of the user's own, as any other.
                    out.extend(named.map(|e| (e.name, meta_of(&e.attr))));
                }
                Err(e) => break Err(io(e)),
            }
        };
        self.fs.releasedir(handle);
        done.map(|()| out)
    }

    fn readlink(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        self.on(path, |attr| Ok(self.fs.readlink(attr.ino)?.to_vec()))
    }

    fn xattrs(&self, path: &[u8], _: FileKind) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.on(path, |attr| {
            let names = self.fs.list_xattr(&self.caller, attr.ino)?;
            let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
            let value = |name: &[u8]| {
                let value = self.fs.get_xattr(&self.caller, attr.ino, OsStr::from_bytes(name))?;
                Ok((name.to_vec(), value.to_vec()))
            };
            names.map(value).collect()
        })
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn SourceFile + '_>> {
        Ok(Box::new(self.opened(path, 0)?))
    }
}

impl SourceFile for HeldFile<'_> {
    fn read_at(&mut self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let want = u32::try_from(buf.len()).unwrap_or(u32::MAX);
        let data = self.fs.read(self.handle, self.ino, offset, want).map_err(io)?;
        match buf.get_mut(..data.len()) {
            Some(to) => to.copy_from_slice(&data),
            None => return Err(io::Error::other("more bytes than asked for")),
        }
        Ok(data.len())
    }

    fn data_from(&mut self, offset: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
        let end = end.min(self.size);
        if offset >= end {
            return Ok(None);
        }
        let begin = match self.fs.seek(self.ino, offset, Seek::Data) {
            Ok(begin) if begin < end => begin,
            Ok(_) | Err(Error::NothingBehind(_)) => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        let stop = self.fs.seek(self.ino, begin, Seek::Hole).map_err(io)?;
        Ok(Some((begin, stop.min(end))))
    }
}

impl TargetTree for FsTree<'_> {
    fn meta(&mut self, path: &[u8]) -> io::Result<FileMeta> {
        SourceTree::meta(self, path)
    }

    fn mkdir(&mut self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        self.made(self.fs.mkdir(&self.caller, dir, name, 0o700))
    }

    fn create(&mut self, path: &[u8], again: bool) -> io::Result<()> {
        self.open = None;
        let (dir, name) = self.place(path)?;
        match self.fs.create(&self.caller, dir, name, 0o600, O_WRONLY | 0o200) {
            Ok((attr, handle)) => {
                self.open = Some(HeldFile { fs: self.fs, ino: attr.ino, handle, size: 0 });
                Ok(())
            }
            Err(Error::Exists(_)) if again => {
                TargetTree::open(self, path)?;
                self.set_len(0)
            }
            Err(e) => Err(io(e)),
        }
    }

    fn open(&mut self, path: &[u8]) -> io::Result<()> {
        self.open = None;
        self.open = Some(self.opened(path, O_WRONLY)?);
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        // Each call has told its own.
        self.open = None;
        Ok(())
    }

    fn write_at(&mut self, mut offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.written()?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = file.fs.write(file.handle, file.ino, offset, rest, false).map_err(io)?;
            match rest.get(n as usize..) {
                Some(tail) if n > 0 => rest = tail,
                _ => return Err(io::Error::from(io::ErrorKind::WriteZero)),
            }
            offset += u64::from(n);
        }
        Ok(())
    }

    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let file = self.written()?;
        match len {
            0 => Ok(()),
            len => file.fs.fallocate(&self.caller, file.ino, offset, len, PUNCH_MODE).map_err(io),
        }
    }

    fn set_len(&mut self, size: u64) -> io::Result<()> {
        let file = self.written()?;
        let change = SetAttr { size: Some(size), ..SetAttr::default() };
        file.fs.setattr(&self.caller, file.ino, &change).map(|_| ()).map_err(io)
    }

    fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        self.made(self.fs.symlink(&self.caller, dir, name, OsStr::from_bytes(target)))
    }

    fn special(&mut self, path: &[u8], kind: FileKind, rdev: u32) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        self.made(self.fs.mknod(&self.caller, dir, name, kind.mode_bits() | 0o600, rdev))
    }

    fn link(&mut self, to: &[u8], path: &[u8]) -> io::Result<()> {
        let (from, old) = self.place(to)?;
        let attr = self.fs.lookup(from, old).map_err(io)?;
        let linked = self
            .place(path)
            .and_then(|(dir, name)| self.made(self.fs.link(&self.caller, attr.ino, dir, name)));
        self.fs.forget(attr.ino, 1);
        linked
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (old_dir, old) = split(from);
        // The way leads to one directory at a time, so this one is referenced by itself.
        let held = match old_dir {
            b"" => None,
            dir => {
                let (above, name) = self.place(dir)?;
                Some(self.fs.lookup(above, name).map_err(io)?.ino)
            }
        };
        let done = self.place(to).and_then(|(new_dir, new)| {
            let (from, flags) = (held.unwrap_or(self.top), crate::rename::RENAME_NOREPLACE);
            self.fs.rename(&self.caller, from, OsStr::from_bytes(old), new_dir, new, flags).map_err(io)
        });
        if let Some(ino) = held {
            self.fs.forget(ino, 1);
        }
        self.forget_way();
        done
    }

    fn unlink(&mut self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        self.fs.unlink(&self.caller, dir, name).map_err(io)
    }

    fn rmdir(&mut self, path: &[u8]) -> io::Result<()> {
        let (dir, name) = self.place(path)?;
        let done = self.fs.rmdir(&self.caller, dir, name).map_err(io);
        self.forget_way();
        done
    }

    fn chown(&mut self, path: &[u8], uid: u32, gid: u32) -> io::Result<()> {
        let change = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.on(path, |attr| match (attr.uid, attr.gid) == (uid, gid) {
            true => Ok(()),
            false => self.fs.setattr(&self.caller, attr.ino, &change).map(|_| ()),
        })
    }

    fn clear_xattrs(&mut self, path: &[u8]) -> io::Result<()> {
        self.on(path, |attr| {
            let names = self.fs.list_xattr(&self.caller, attr.ino)?;
            for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
                self.fs.remove_xattr(&self.caller, attr.ino, OsStr::from_bytes(name))?;
            }
            Ok(())
        })
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> io::Result<()> {
        self.on(path, |attr| self.fs.set_xattr(&self.caller, attr.ino, OsStr::from_bytes(name), value, 0))
    }

    fn set_meta(
        &mut self,
        path: &[u8],
        owner: (u32, u32),
        perm: u16,
        atime: Time,
        mtime: Time,
    ) -> io::Result<()> {
        self.chown(path, owner.0, owner.1)?;
        self.on(path, |attr| {
            let change = SetAttr {
                mode: (attr.kind != FileKind::Symlink).then_some(perm.into()),
                atime: Some(SetTime::At(atime)),
                mtime: Some(SetTime::At(mtime)),
                ..SetAttr::default()
            };
            self.fs.setattr(&self.caller, attr.ino, &change).map(|_| ())
        })
    }
}
