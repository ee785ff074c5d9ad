//! Open files and attributes: open, release, fsync, getattr, setattr.
//!
//! Guarantees the POSIX rules that the kernel leaves to a file system which
//! runs with `default_permissions`: set-id bits fall at a change of owner or
//! of content, times follow each change.

use pando_db::Batch;

use crate::{
    bill::Reserved,
    data::without_set_id_by,
    error::{Error, Result},
    inode::{InodeRef, Link},
    limits::MAX_FILE_SIZE,
    merge::{Change, Size},
    open_flags::{O_ACCMODE, O_DSYNC, O_TRUNC, O_WRONLY},
    place::may_change,
    types::{Attr, Caller, FileHandle, FileKind, Ino, SetAttr, SetTime, Time},
    volume::Fs,
};

impl Fs {
    /// The attributes as of stat(2). No I/O, because an inode with references is in memory; for a file with holes the
    /// first call scans its block map.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.table.get(ino)?;
        let attr = self.attr(&inode);
        // A removed inode that is asked about through a handle still answers; one below a
        // directory that was removed or replaced as a whole does not.
        if attr.nlink > 0 && !inode.is_alive() {
            let attr = inode.attr(); // it may have been unlinked since
            return if attr.nlink == 0 { Ok(attr) } else { Err(Error::Stale(ino)) };
        }
        Ok(attr)
    }

    /// The attributes as far as memory has them: no I/O, and no wait for a call in progress. For a file with holes
    /// the blocks may be only those before the first hole.
    pub fn attr_in_memory(&self, ino: Ino) -> Result<Attr> {
        let inode = self.table.get(ino)?;
        let attr = inode.attr();
        match attr.nlink == 0 || inode.is_alive() {
            true => Ok(attr),
            false => Err(Error::Stale(ino)),
        }
    }

    /// Changes attributes, in one batch. The mode of a symbolic link cannot be changed (EOPNOTSUPP).
    pub fn setattr(&self, c: &Caller, ino: Ino, s: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let inode = self.table.get(ino)?;
        if s.size.is_some() {
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::IsDirectory(inode.label())),
                _ => return Err(Error::Invalid(format!("{}: has no size to set", inode.label()))),
            }
        }
        if s.mode.is_some() && inode.kind == FileKind::Symlink {
            return Err(Error::Unsupported("the mode of a symbolic link"));
        }
        if s.size.is_some_and(|n| n > MAX_FILE_SIZE) {
            return Err(Error::TooBig(s.size.unwrap_or_default()));
        }
        self.apply_attr(c, &inode, s)?;
        Ok(self.attr(&inode))
    }

    fn apply_attr(&self, c: &Caller, inode: &InodeRef, s: &SetAttr) -> Result<()> {
        let at = match self.hold(inode, true) {
            Ok(at) => Some(at),
            // A kernel that owns the times of files tells those of a removed one as well, and would take the error for
            // one of the whole file system.
            Err(Error::Stale(_)) if s.is_of_times_only() => None,
            // A directory, or something without content, that is open still: nothing of it is stored any more.
            Err(Error::Stale(_)) if s.size.is_none() && inode.peek(|st| matches!(st.link, Link::Gone)) => {
                None
            }
            Err(e) => {
                self.came_late(inode, &e);
                return Err(e);
            }
        };
        let now = self.now();
        let (old_size, perm, gid) = inode.peek(|st| (st.record.size, st.record.perm, st.record.gid));
        let time = |t: SetTime| match t {
            SetTime::Now => Ok(now),
            SetTime::At(t) if t.nanos < 1_000_000_000 => Ok(t),
            SetTime::At(_) => Err(Error::Invalid("nanoseconds beyond a second".into())),
        };
        let mut change = Change {
            size: s.size.map(Size::Set),
            perm: s.mode.map(|m| (m & 0o7777) as u16),
            uid: s.uid,
            gid: s.gid,
            atime: s.atime.map(time).transpose()?,
            mtime: s.mtime.map(time).transpose()?,
            ctime: Some(s.ctime.map_or(Ok(now), |t| time(SetTime::At(t)))?),
            drop_capability: (s.size.is_some() || s.uid.is_some() || s.gid.is_some() || s.kill_suidgid)
                && inode.peek(|st| st.record.may_do_more()),
            ..Change::default()
        };
        if s.size.is_some() && s.mtime.is_none() {
            change.mtime = Some(now);
        }
        // A change of owner clears the set-id bits of executables, whoever makes it; a change of content does so
        // unless root makes it. Directories keep theirs, which mean something else.
        let owner_changes = s.uid.is_some() || s.gid.is_some();
        let content_changes = s.size.is_some() && !c.keeps_set_id();
        let drops = owner_changes || content_changes || s.kill_suidgid;
        if change.perm.is_none() && drops && inode.kind != FileKind::Directory {
            change.perm = without_set_id_by(c, perm, gid);
        }
        let Some(at) = at else {
            inode.change(|st| st.apply(&change));
            return Ok(());
        };
        inode.peek(|st| st.save_atime(&mut change));
        let mut batch = Batch::new();
        let mut holes = None;
        let mut reserved = Reserved::default();
        if let Some(size) = s.size {
            let (above, before) = self.before(inode, &at)?;
            let resized = self.resize_data(&mut batch, inode, &at.data, (old_size, size))?;
            change.dense = resized.dense;
            if !above.is_empty() {
                reserved = self.reserve_file(&mut batch, above, resized.file_bytes(inode, size) - before)?;
            }
            holes = Some(resized);
            if size < old_size {
                batch.shrinks();
            }
        }
        batch.upsert(at.meta.clone(), change.encode());
        self.db.write(batch)?;
        reserved.paid();
        inode.change(|st| {
            st.apply(&change);
            if let Some(holes) = holes {
                st.set_map(holes.map);
            }
        });
        self.keep_map(inode);
        Ok(())
    }

    /// Opens a regular file; `flags` are those of open(2): the access mode, O_APPEND and O_TRUNC are honoured.
    /// Permissions are not checked: the kernel has done so. Close the handle with [`Fs::release`].
    pub fn open_file(&self, c: &Caller, ino: Ino, flags: i32) -> Result<FileHandle> {
        let inode = self.table.get(ino)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory(inode.label())),
            _ => return Err(Error::Invalid(format!("{}: not a regular file", inode.label()))),
        }
        if flags & O_ACCMODE != 0 || flags & O_TRUNC != 0 {
            self.writable()?;
            may_change(&inode, true)?;
        }
        let handle = {
            // Held, so that a removal of the tree around sees both the count and the handle.
            let _at = self.hold(&inode, false).inspect_err(|e| self.came_late(&inode, e))?;
            inode.change(|s| s.opens += 1);
            self.add_handle(c, inode.clone(), flags)
        };
        if flags & O_TRUNC != 0 {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(e) = self.apply_attr(c, &inode, &cut) {
                self.release(ino, handle);
                return Err(e);
            }
        }
        Ok(handle)
    }

    /// Closes a handle. Closing the last handle of a file without a name removes its data.
    pub fn release(&self, ino: Ino, fh: FileHandle) {
        let _ = ino;
        let Some(open) = self.files.remove(fh.0) else { return };
        self.let_go(&open.inode);
    }

    /// Whether the handle was opened for writing only. No I/O.
    pub fn opened_write_only(&self, fh: FileHandle) -> bool {
        self.files.get(fh.0).is_ok_and(|open| open.flags & O_ACCMODE == O_WRONLY)
    }

    /// Whether the handle was opened with `O_SYNC` or `O_DSYNC`. No I/O.
    pub fn opened_to_sync(&self, fh: FileHandle) -> bool {
        self.files.get(fh.0).is_ok_and(|open| open.flags & O_DSYNC != 0)
    }

    /// Permission and set-id bits of the mode. No I/O, never waits for a call under way.
    pub fn perm(&self, ino: Ino) -> Result<u16> {
        Ok(self.table.get(ino)?.peek(|s| s.record.perm))
    }

    /// Bytes of a file. No I/O, never waits for a call under way.
    pub fn size(&self, ino: Ino) -> Result<u64> {
        Ok(self.table.get(ino)?.peek(|s| s.record.size))
    }

    /// The time of the last change of content. No I/O, never waits for a call under way.
    pub fn modified(&self, ino: Ino) -> Result<Time> {
        Ok(self.table.get(ino)?.peek(|s| s.record.mtime))
    }

    /// Returns when the effects of all calls that have returned, on this file or any other, are durable.
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let _ = (ino, datasync); // the log is one sequence
        Ok(self.db.sync()?)
    }
}
