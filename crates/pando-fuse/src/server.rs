//! The file system behind a transport: kernel requests to `pando-fs` calls.
//!
//! Guarantees that what the kernel caches stays right: pages, names and
//! attributes that a clone, a removal of a tree or a direct write makes stale
//! are dropped before the request that did it is answered; dirty pages of
//! shared mappings are in the file system before a clone, a copy or a sync
//! reads it. Requests that may wait (fsync, clone, copies) leave the thread
//! that reads requests.

use std::{
    ffi::OsStr,
    path::Path,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use pando_fs::{Attr, Caller, DirHandle, FileHandle, Fs, SetAttr, StatFs};

use crate::{
    cache::Caches,
    control::{Request, Response, Token},
    counters::{Counters, Kind},
    proof::{Fact, Proofs},
    transport::{Answer, Context, Copy, DirSink, Errno, Handler, Notify, Opened, Outcome, Write},
};

/// Renders statistics for `pando stats`.
pub type StatsText = Box<dyn Fn(&Fs, &Counters) -> Result<String, String> + Send + Sync>;

/// Bytes of a directory entry with attributes, at least; without them.
const PLUS_ENTRY: usize = 152;
const PLAIN_ENTRY: usize = 32;

/// A [`Handler`] on a [`Fs`].
pub(crate) struct Server {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) fs: Fs,
    caches: Caches,
    pub(crate) proofs: Proofs,
    pub(crate) counters: Arc<Counters>,
    notify: OnceLock<Arc<dyn Notify>>,
    pub(crate) stats: Option<StatsText>,
    /// User who may grow the file system besides root: the one who mounted it.
    pub(crate) owner: u32,
}

impl Server {
    pub(crate) fn new(fs: Fs, counters: Arc<Counters>, stats: Option<StatsText>) -> Self {
        let owner = rustix::process::geteuid().as_raw();
        let inner = Inner {
            fs,
            caches: Caches::default(),
            proofs: Proofs::default(),
            counters,
            notify: OnceLock::new(),
            stats,
            owner,
        };
        Self { inner: Arc::new(inner) }
    }

    fn fs(&self) -> &Fs {
        &self.inner.fs
    }

    fn count(&self, kind: Kind) {
        self.inner.counters.count(kind);
    }

    fn open_file(&self, c: &Context, ino: u64, flags: i32) -> Outcome<Opened> {
        let handle = self.fs().open_file(&caller(c, 0), ino, flags)?;
        self.inner.proofs.opened(c, ino, handle.0, flags);
        let policy = self.inner.caches.opened(ino, flags);
        Ok(Opened { handle: handle.0, direct: policy.direct, keep_cache: policy.keep })
    }

    /// Entries without attributes.
    fn list(&self, handle: DirHandle, ino: u64, cookie: u64, sink: &mut dyn DirSink) -> Outcome<()> {
        let mut from = cookie;
        loop {
            let entries = match self.fs().readdir(handle, ino, from, sink.capacity() / PLAIN_ENTRY) {
                Ok(entries) => entries,
                Err(_) if from != cookie => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            let Some(last) = entries.last() else { return Ok(()) };
            from = last.cookie;
            for e in entries {
                if !sink.add(e.ino, e.kind, &e.name, e.cookie, None) {
                    return Ok(());
                }
            }
        }
    }

    fn write_data(&self, w: &Write<'_>) -> Outcome<u32> {
        // The handle and flags of a mapping's page are a guess of the kernel.
        let (handle, append) =
            if w.writeback { (0, false) } else { (w.handle, w.flags & libc::O_APPEND != 0) };
        Ok(self.fs().write(FileHandle(handle), w.ino, w.offset, w.data, append)?)
    }
}

/// The caller without supplementary groups: for calls whose permission the kernel has checked.
fn caller(c: &Context, umask: u32) -> Caller {
    Caller { uid: c.uid, gid: c.gid, pid: c.pid, umask, groups: Vec::new() }
}

/// The caller who makes an entry with this mode. Only its groups say whether it may give away a
/// set-group-id bit; everybody else is spared the look.
fn maker(c: &Context, umask: u32, mode: u32) -> Caller {
    match mode & 0o2010 {
        0o2010 => Caller { umask, ..caller_with_groups(c) },
        _ => caller(c, umask),
    }
}

/// The caller with its supplementary groups: for what the kernel cannot check.
fn caller_with_groups(c: &Context) -> Caller {
    let mut caller = caller(c, 0);
    // Reading /proc races with the end of the process, which is waiting for this answer.
    if c.uid != 0
        && c.pid != 0
        && let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", c.pid))
        && let Some(line) = status.lines().find_map(|l| l.strip_prefix("Groups:"))
    {
        caller.groups = line.split_whitespace().filter_map(|g| g.parse().ok()).collect();
    }
    caller
}

impl Inner {
    /// Sends the notification `what`; a failure leaves stale pages behind and is logged.
    fn tell(&self, what: impl Fn(&dyn Notify) -> std::io::Result<()>) {
        match self.notify.get() {
            Some(notify) => {
                if let Err(e) = what(&**notify) {
                    log::error!("the kernel refused to drop cached data: {e}");
                }
            }
            None => debug_assert!(false, "a request came before the transport was ready"),
        }
    }

    /// Brings dirty pages of shared mappings into the file system. Only for workers.
    ///
    /// Dropping the pages of an inode writes dirty ones first and waits for that, which syncfs
    /// does not promise for FUSE. Only inodes open for reading and writing can have any.
    pub(crate) fn flush_mappings(&self) {
        for ino in self.caches.perhaps_dirty() {
            self.tell(|n| n.forget_pages(ino, 0, 0));
        }
    }

    /// The same for those of `top` and what is below it.
    pub(crate) fn flush_mappings_in(&self, top: u64) {
        for ino in self.caches.perhaps_dirty() {
            if self.fs.lies_in(ino, top) {
                self.tell(|n| n.forget_pages(ino, 0, 0));
            }
        }
    }

    /// Drops what a change behind the kernel's back made stale. Only for workers.
    pub(crate) fn settle(&self, report: &pando_fs::CloneReport) {
        for (dir, name) in &report.entries {
            self.tell(|n| n.forget_entry(*dir, name));
            self.tell(|n| n.forget_attributes(*dir));
        }
        for &ino in &report.replaced {
            self.tell(|n| n.forget_pages(ino, 0, 0));
        }
    }

    /// Set-user-id and set-group-id of the mode as it is now; none if there is no such file.
    fn set_id_bits(&self, ino: u64) -> u16 {
        self.fs.perm(ino).unwrap_or_default() & 0o6000
    }

    /// Clears set-user-id and set-group-id where they are set.
    fn drop_privileges(&self, c: &Context, ino: u64) -> Outcome<()> {
        if self.set_id_bits(ino) != 0 {
            let change = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            self.fs.setattr(&caller(c, 0), ino, &change)?;
        }
        Ok(())
    }
}

impl Handler for Server {
    fn start(&self, notify: Arc<dyn Notify>) {
        let first = self.inner.notify.set(notify).is_ok();
        assert!(first, "a server serves one transport");
    }

    fn lookup(&self, parent: u64, name: &OsStr) -> Outcome<Option<Attr>> {
        self.count(Kind::Lookup);
        if Token::of_name(name).is_some() {
            return Err(Errno(libc::ENOENT)); // and the kernel need not remember it
        }
        match self.fs().lookup(parent, name) {
            Ok(attr) => Ok(Some(attr)),
            Err(e) if e.errno() == libc::ENOENT => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        self.inner.caches.forgotten(ino);
        self.fs().forget(ino, count);
    }

    fn getattr(&self, ino: u64) -> Outcome<Attr> {
        self.count(Kind::Getattr);
        Ok(self.fs().getattr(ino)?)
    }

    fn setattr(&self, c: &Context, ino: u64, change: SetAttr) -> Outcome<Attr> {
        self.count(Kind::Setattr);
        let about_groups = change.gid.is_some() || change.mode.is_some_and(|m| m & 0o2000 != 0);
        let caller = if about_groups { caller_with_groups(c) } else { caller(c, 0) };
        Ok(self.fs().setattr(&caller, ino, &change)?)
    }

    fn readlink(&self, ino: u64) -> Outcome<Bytes> {
        self.count(Kind::Readlink);
        Ok(self.fs().readlink(ino)?)
    }

    fn mknod(
        &self,
        c: &Context,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Outcome<Attr> {
        self.count(Kind::Mknod);
        self.inner.proofs.note(c, name, || match mode & libc::S_IFMT {
            libc::S_IFCHR | libc::S_IFBLK => Ok(Fact::AddsDevices { dir: parent }),
            _ => Ok(Fact::Adds { dir: parent }),
        })?;
        Ok(self.fs().mknod(&maker(c, umask, mode), parent, name, mode, rdev)?)
    }

    fn mkdir(&self, c: &Context, parent: u64, name: &OsStr, mode: u32, umask: u32) -> Outcome<Attr> {
        self.count(Kind::Mkdir);
        self.inner.proofs.note(c, name, || Ok(Fact::Adds { dir: parent }))?;
        Ok(self.fs().mkdir(&caller(c, umask), parent, name, mode)?)
    }

    fn symlink(&self, c: &Context, parent: u64, name: &OsStr, target: &Path) -> Outcome<Attr> {
        self.count(Kind::Symlink);
        self.inner.proofs.free(name)?;
        Ok(self.fs().symlink(&caller(c, 0), parent, name, target.as_os_str())?)
    }

    fn unlink(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()> {
        self.count(Kind::Unlink);
        Ok(self.fs().unlink(&caller(c, 0), parent, name)?)
    }

    fn rmdir(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()> {
        self.count(Kind::Rmdir);
        Ok(self.fs().rmdir(&caller(c, 0), parent, name)?)
    }

    fn rename(&self, c: &Context, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Outcome<()> {
        self.count(Kind::Rename);
        self.inner.proofs.note(c, to.1, || {
            if from.0 != to.0 {
                return Err(Errno(libc::EINVAL));
            }
            let ino = self.fs().lookup(from.0, from.1)?.ino;
            self.fs().forget(ino, 1);
            Ok(Fact::Renames { dir: from.0, name: from.1, ino })
        })?;
        Ok(self.fs().rename(&caller(c, 0), from.0, from.1, to.0, to.1, flags)?)
    }

    fn link(&self, c: &Context, ino: u64, parent: u64, name: &OsStr) -> Outcome<Attr> {
        self.inner.proofs.note(c, name, || Ok(Fact::Links { source: ino, dir: parent }))?;
        // What link(2) documents for file systems without hard links.
        Err(Errno(libc::EPERM))
    }

    fn create(
        &self,
        c: &Context,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Outcome<(Attr, Opened)> {
        self.count(Kind::Create);
        self.inner.proofs.free(name)?;
        // The kernel found the name absent, but a clone may have made it since: on ESTALE it looks
        // again and opens what is there by its own checks.
        let made_since = |e: pando_fs::Error| match e.errno() {
            libc::EEXIST if flags & libc::O_EXCL == 0 => Errno(libc::ESTALE),
            e => Errno(e),
        };
        let (attr, handle) =
            self.fs().create(&maker(c, umask, mode), parent, name, mode, flags).map_err(made_since)?;
        self.inner.proofs.opened(c, attr.ino, handle.0, flags);
        let policy = self.inner.caches.opened(attr.ino, flags);
        Ok((attr, Opened { handle: handle.0, direct: policy.direct, keep_cache: policy.keep }))
    }

    fn open(&self, c: &Context, ino: u64, flags: i32) -> Answer<Opened> {
        self.count(Kind::Open);
        if flags & libc::O_TRUNC == 0 {
            return Answer::Now(self.open_file(c, ino, flags));
        }
        let before = self.inner.set_id_bits(ino);
        let outcome = match c.uid {
            0 => Ok(()),
            _ => self.inner.drop_privileges(c, ino),
        };
        let outcome = outcome.and_then(|()| self.open_file(c, ino, flags));
        if self.inner.set_id_bits(ino) == before {
            return Answer::Now(outcome);
        }
        let inner = self.inner.clone();
        Answer::later(move || {
            inner.tell(|n| n.forget_attributes(ino));
            outcome
        })
    }

    fn read(&self, handle: u64, ino: u64, offset: u64, size: u32) -> Answer<Bytes> {
        self.count(Kind::Read);
        let outcome = self.fs().read(FileHandle(handle), ino, offset, size).map_err(Errno::from);
        match self.inner.caches.read(ino, offset, size) {
            None => Answer::Now(outcome),
            Some(from) => {
                let inner = self.inner.clone();
                // Before the answer, so that the scan goes on by large reads at once. Only the pages
                // of this read, which end before `from`, stay locked until then.
                Answer::later(move || {
                    inner.tell(|n| n.forget_pages(ino, from, 0));
                    outcome
                })
            }
        }
    }

    fn write(&self, c: &Context, w: Write<'_>) -> Answer<u32> {
        self.count(Kind::Write);
        let (ino, offset, len) = (w.ino, w.offset, w.data.len() as u64);
        let before = self.inner.set_id_bits(ino);
        let outcome = match w.kill_suidgid {
            true => self.inner.drop_privileges(c, ino),
            false => Ok(()),
        };
        let outcome = outcome.and_then(|()| self.write_data(&w));
        // Of what the server changes itself the kernel takes back size and times, not the mode.
        let mode_changed = self.inner.set_id_bits(ino) != before;
        let pages_stale = !w.writeback && self.inner.caches.wrote(ino, w.direct, offset, len) && len > 0;
        // Only for writes that bypass the page cache: after others the kernel sends an fsync.
        let durable = w.direct && w.flags & libc::O_DSYNC != 0 && outcome.is_ok();
        if !mode_changed && !pages_stale && !durable {
            return Answer::Now(outcome);
        }
        let inner = self.inner.clone();
        Answer::later(move || {
            if pages_stale {
                inner.tell(|n| n.forget_pages(ino, offset, len));
            } else if mode_changed {
                inner.tell(|n| n.forget_attributes(ino));
            }
            if durable {
                inner.fs.fsync(ino, true)?;
            }
            outcome
        })
    }

    fn release(&self, ino: u64, handle: u64, flags: i32) {
        self.count(Kind::Release);
        self.inner.proofs.closed(ino, handle);
        self.inner.caches.released(ino, flags);
        self.fs().release(ino, FileHandle(handle));
    }

    fn fsync(&self, ino: u64, datasync: bool) -> Answer<()> {
        self.count(Kind::Fsync);
        let fs = self.fs().clone();
        Answer::later(move || Ok(fs.fsync(ino, datasync)?))
    }

    fn opendir(&self, c: &Context, ino: u64, flags: i32) -> Outcome<u64> {
        self.count(Kind::Opendir);
        let handle = self.fs().opendir(ino)?.0;
        self.inner.proofs.opened(c, ino, handle, flags);
        Ok(handle)
    }

    fn readdir(&self, handle: u64, ino: u64, cookie: u64, sink: &mut dyn DirSink) -> Outcome<()> {
        self.count(Kind::Readdir);
        let handle = DirHandle(handle);
        if !sink.wants_attributes() {
            return self.list(handle, ino, cookie, sink);
        }
        // What fits is not known, so entries are fetched as they go: references taken in vain cost.
        let mut from = cookie;
        loop {
            let entries = match self.fs().readdir_plus(handle, ino, from, sink.capacity() / PLUS_ENTRY) {
                Ok(entries) => entries,
                // Those added are counted already; the next request meets the error again.
                Err(_) if from != cookie => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            let Some(last) = entries.last() else { return Ok(()) };
            from = last.cookie;
            let mut room = true;
            for e in entries {
                let counted = e.name != "." && e.name != "..";
                room = room && sink.add(e.ino, e.kind, &e.name, e.cookie, counted.then_some(&e.attr));
                if !room && counted {
                    self.fs().forget(e.ino, 1);
                }
            }
            if !room {
                return Ok(());
            }
        }
    }

    fn releasedir(&self, ino: u64, handle: u64) {
        self.inner.proofs.closed(ino, handle);
        self.fs().releasedir(DirHandle(handle));
    }

    fn statfs(&self) -> Outcome<StatFs> {
        self.count(Kind::Statfs);
        Ok(self.fs().statfs()?)
    }

    fn copy(&self, c: &Context, copy: Copy) -> Answer<u64> {
        self.count(Kind::Copy);
        let (inner, caller) = (self.inner.clone(), caller(c, 0));
        Answer::later(move || {
            // The kernel writes back the destination's dirty pages, not the source's.
            if inner.caches.is_perhaps_dirty(copy.ino_in) {
                inner.tell(|n| n.forget_pages(copy.ino_in, 0, 0));
            }
            let Copy { ino_in, offset_in, ino_out, handle_out, offset_out, len } = copy;
            let before = inner.set_id_bits(ino_out);
            let copied = inner.fs.copy_file_range(&caller, ino_in, offset_in, ino_out, offset_out, len);
            if inner.set_id_bits(ino_out) != before {
                inner.tell(|n| n.forget_attributes(ino_out));
            }
            let copied = copied?;
            if inner.fs.opened_to_sync(FileHandle(handle_out)) {
                inner.fs.fsync(ino_out, true)?;
            }
            Ok(copied)
        })
    }

    fn ioctl(&self, c: &Context, ino: u64, handle: u64, command: u32, data: &[u8]) -> Answer<Vec<u8>> {
        self.count(Kind::Ioctl);
        if !Request::is_ours(command) {
            return Answer::Now(Err(Errno(libc::ENOTTY)));
        }
        let Some(request) = Request::decode(command, data) else {
            return Answer::Now(Err(Errno(libc::EINVAL)));
        };
        if request == Request::Token {
            let token = self.inner.proofs.issue(c, ino, handle);
            return Answer::Now(token.map(|t| Response { message: t.hex(), ..Response::default() }.encode()));
        }
        let (inner, c) = (self.inner.clone(), *c);
        Answer::later(move || inner.control(&c, request))
    }
}
