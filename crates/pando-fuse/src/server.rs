//! The file system behind a transport: kernel requests to `pando-fs` calls.
//!
//! Guarantees that what the kernel caches stays right: pages, names and
//! attributes that a clone, a removal of a tree or a direct write makes stale
//! are dropped before the request that did it is answered; dirty pages of
//! shared mappings are in the file system before a clone, a copy or a sync
//! reads it. Requests that may wait for others (clones, some copies) leave the
//! thread that reads requests.

use std::{ffi::OsStr, path::Path, sync::Arc};

use bytes::Bytes;
use pando_fs::{Attr, Caller, DirHandle, FileHandle, FileKind, Fs, Seek, SetAttr, SetTime, StatFs};

use crate::{
    caller::{caller, caller_with_groups, changer, maker, of_attribute, sees_trusted},
    coherence::{KernelKeeps, MountState, StatsText},
    control::{ControlRequest, Response, Token},
    copies,
    counters::{Counters, Kind},
    dirty_limit::DirtyLimit,
    own_mount::OwnMount,
    proof::Fact,
    requests,
    transport::{
        Answer, Behind, Context, Copy, DirSink, Errno, Found, Handler, Notify, Opened, OpenedDir, Outcome,
        Write,
    },
};

/// A [`Handler`] on a [`Fs`].
pub(crate) struct Server {
    pub(crate) shared: Arc<MountState>,
}

impl Server {
    pub(crate) fn new(fs: Fs, counters: Arc<Counters>, stats: Option<StatsText>, keeps: KernelKeeps) -> Self {
        Self { shared: Arc::new(MountState::new(fs, counters, stats, keeps)) }
    }

    /// Gives the server access to its own mount; with `always` also for what it does without being asked. Called once,
    /// not for a request.
    pub(crate) fn set_own_mount(&self, mount: OwnMount, always: bool) {
        let first = self.shared.own_mount.set(mount.clone()).is_ok();
        assert!(
            first && (!always || self.shared.own_mount_unasked.set(mount).is_ok()),
            "a server has one mount"
        );
        self.shared.start_telling_times();
    }

    /// Gives the server the limit of dirty pages. Called once, not for a request.
    pub(crate) fn limit_dirty(&self, limit: DirtyLimit) {
        let first = self.shared.dirty_limit.set(limit).is_ok();
        assert!(first, "a server has one mount");
    }

    /// Starts the thread that applies policies. Called once, not for a request.
    pub(crate) fn start_policies(&self, device: Option<String>) {
        self.shared.start_policies(device);
    }

    fn fs(&self) -> &Fs {
        &self.shared.fs
    }

    fn count(&self, kind: Kind) {
        self.shared.counters.count(kind);
    }

    fn open_file(&self, c: &Context, by: &Caller, ino: u64, flags: i32) -> Outcome<Opened> {
        let handle = self.fs().open_file(by, ino, of_handle(flags))?;
        self.shared.proofs.opened(c, ino, handle.0, flags);
        let bypass = self.shared.is_for_small_changes(ino, flags) || self.shared.is_tight(ino, flags);
        let policy = self.shared.caches.opened(ino, handle.0, flags, bypass);
        if policy.keep {
            self.shared.give_pages(c, ino, handle.0, flags);
        }
        Ok(Opened { handle: handle.0, direct: policy.direct, keep_cache: policy.keep })
    }

    /// What `stat` tells, once the kernel has the time of the file.
    fn attributes(&self, ino: u64) -> Answer<Found> {
        if !self.shared.times.is_stale(ino) {
            let keep = !self.shared.refused.may_wait(ino);
            return Answer::Now(self.fs().getattr(ino).map(|attr| Found { attr, keep }).map_err(Errno::from));
        }
        let shared = self.shared.clone();
        Answer::later(move || {
            let keep = shared.times.wait_until_known(ino) && !shared.refused.may_wait(ino);
            Ok(Found { attr: shared.fs.getattr(ino)?, keep })
        })
    }
}

/// Whether a change has only the change time, which the kernel sends when a file is closed, as after a rename: then
/// no program must get an error because it did not fit.
fn is_told_by_the_way(change: &SetAttr, now: &Attr) -> bool {
    let same = change.mtime.is_none_or(|time| time == SetTime::At(now.mtime));
    let rest = SetAttr { mtime: None, ctime: None, ..*change };
    change.ctime.is_some() && same && rest == SetAttr::default()
}

/// The flags of a handle, without O_APPEND: the kernel sends an offset with each write. Only the kernel knows the end
/// of a file with pages that it has not written out; and a descriptor may have lost O_APPEND since its open
/// (fcntl(2)), or ignore it for single writes (RWF_NOAPPEND).
fn of_handle(flags: i32) -> i32 {
    flags & !libc::O_APPEND
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.end_threads();
    }
}

impl Handler for Server {
    fn start(&self, notify: Arc<dyn Notify>) {
        let first = self.shared.notify.set(notify.clone()).is_ok();
        assert!(first, "a server serves one transport");
        // The kernel asks again when a program wants the attributes. An inode that the kernel has forgotten has none.
        self.fs().watch_link_counts(move |ino| drop(notify.forget_attributes(ino)));
    }

    fn lookup(&self, c: &Context, parent: u64, name: &OsStr) -> Answer<Option<Found>> {
        self.count(Kind::Lookup);
        if self.shared.proofs.looked_up(c, parent, name) {
            return Answer::Now(Err(Errno(libc::ENOENT))); // and the kernel need not remember it
        }
        let found = match self.fs().lookup(parent, name) {
            Ok(attr) => attr,
            Err(e) if e.errno() == libc::ENOENT => return Answer::Now(Ok(None)),
            Err(e) => return Answer::Now(Err(e.into())),
        };
        self.shared.listings.looked_up(parent);
        if !self.shared.times.is_stale(found.ino) {
            let keep = !self.shared.refused.may_wait(found.ino);
            return Answer::Now(Ok(Some(Found { attr: found, keep })));
        }
        let shared = self.shared.clone();
        Answer::later(move || {
            let keep = shared.times.wait_until_known(found.ino) && !shared.refused.may_wait(found.ino);
            Ok(Some(Found { attr: shared.fs.getattr(found.ino).unwrap_or(found), keep }))
        })
    }

    fn forget(&self, ino: u64, count: u64) {
        self.shared.forgotten(ino, count);
    }

    fn interrupted(&self, unique: u64) {
        self.shared.interrupts.interrupted(unique);
    }

    fn getattr(&self, ino: u64, handle: Option<u64>) -> Answer<Found> {
        self.count(Kind::Getattr);
        if let Some(handle) = handle
            && self.shared.refused.any()
            && self.fs().opened_write_only(FileHandle(handle))
            && self.shared.refused.may_wait(ino)
        {
            let shared = self.shared.clone();
            return Answer::later(move || match shared.refused.why_it_waits(ino) {
                Some(e) => Err(e),
                None => Ok(Found { attr: shared.fs.getattr(ino)?, keep: false }),
            });
        }
        // Asked for SEEK_END, with the kernel's lock on the file held: the time could not be given before the answer.
        if handle.is_some_and(|handle| self.shared.caches.bypasses(handle)) && self.shared.times.is_stale(ino)
        {
            let attr = self.fs().getattr(ino).map_err(Errno::from);
            return Answer::Now(attr.map(|attr| Found { attr, keep: false }));
        }
        self.attributes(ino)
    }

    fn statx(&self, ino: u64) -> Answer<Found> {
        self.count(Kind::Statx);
        self.attributes(ino)
    }

    fn may_keep(&self, c: &Context, ino: u64) -> bool {
        !self.shared.times.lacks(ino, c.pid)
    }

    fn setattr(&self, c: &Context, ino: u64, mut change: SetAttr) -> Outcome<Attr> {
        self.count(Kind::Setattr);
        if let Some(late) = self.shared.own_threads.find(c.pid) {
            return self.shared.have_taken(c, ino, change, late);
        }
        let about_groups = change.gid.is_some() || change.mode.is_some_and(|m| m & 0o2000 != 0);
        let perm = self.fs().perm(ino).unwrap_or_default();
        let caller = if about_groups { caller_with_groups(c, perm) } else { changer(c, perm) };
        self.shared.filter_time(c, ino, &mut change)?;
        let set = || match self.fs().setattr(&caller, ino, &change) {
            Err(e) if e.errno() == libc::ENOSPC => match self.fs().getattr(ino)? {
                now if is_told_by_the_way(&change, &now) => Ok(now),
                _ => Err(e),
            },
            other => other,
        };
        let outcome = match change.size {
            Some(size) => self.shared.refused.around(ino, size..u64::MAX, set),
            None => set(),
        };
        if change.size.is_some() {
            self.shared.caches.resized(ino);
        }
        Ok(outcome?)
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
        self.shared.listings.changes(parent);
        self.shared.proofs.note(c, name, || Ok(Fact::of_node(parent, mode, rdev)))?;
        Ok(self.fs().mknod(&maker(c, umask, mode), parent, name, mode, rdev)?)
    }

    fn mkdir(&self, c: &Context, parent: u64, name: &OsStr, mode: u32, umask: u32) -> Outcome<Attr> {
        self.count(Kind::Mkdir);
        self.shared.listings.changes(parent);
        self.shared.proofs.note(c, name, || Ok(Fact::Adds { dir: parent }))?;
        Ok(self.fs().mkdir(&caller(c, umask), parent, name, mode)?)
    }

    fn symlink(&self, c: &Context, parent: u64, name: &OsStr, target: &Path) -> Outcome<Attr> {
        self.count(Kind::Symlink);
        self.shared.listings.changes(parent);
        self.shared.proofs.free(name)?;
        Ok(self.fs().symlink(&caller(c, 0), parent, name, target.as_os_str())?)
    }

    fn unlink(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()> {
        self.count(Kind::Unlink);
        self.shared.listings.changes(parent);
        Ok(self.fs().unlink(&caller(c, 0), parent, name)?)
    }

    fn rmdir(&self, c: &Context, parent: u64, name: &OsStr) -> Outcome<()> {
        self.count(Kind::Rmdir);
        self.shared.listings.changes(parent);
        self.shared.look_before_removal(c, (parent, name));
        Ok(self.fs().rmdir(&caller(c, 0), parent, name)?)
    }

    fn rename(&self, c: &Context, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Outcome<()> {
        self.count(Kind::Rename);
        [from.0, to.0].into_iter().for_each(|dir| self.shared.listings.changes(dir));
        self.shared.proofs.note(c, to.1, || {
            if from.0 != to.0 {
                return Err(Errno(libc::EINVAL));
            }
            let ino = self.fs().lookup(from.0, from.1)?.ino;
            self.fs().forget(ino, 1);
            Ok(Fact::Renames { dir: from.0, name: from.1, ino })
        })?;
        if flags & pando_fs::RENAME_EXCHANGE == 0 {
            self.shared.look_before_removal(c, to);
        }
        let moves = self.fs().moves();
        self.fs().rename(&caller(c, 0), from.0, from.1, to.0, to.1, flags)?;
        if from.0 != to.0 && self.fs().moves() != moves {
            self.shared.has_moved(to);
            if flags & pando_fs::RENAME_EXCHANGE != 0 {
                self.shared.has_moved(from);
            }
        }
        Ok(())
    }

    fn link(&self, c: &Context, ino: u64, parent: u64, name: &OsStr) -> Outcome<Attr> {
        self.count(Kind::Link);
        self.shared.listings.changes(parent);
        self.shared.proofs.note(c, name, || Ok(Fact::Links { source: ino, dir: parent }))?;
        Ok(self.fs().link(&caller(c, 0), ino, parent, name)?)
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
        self.shared.listings.changes(parent);
        self.shared.proofs.free(name)?;
        // The kernel found the name absent, but a clone may have made it since: on ESTALE it looks
        // again and opens what is there by its own checks.
        let made_since = |e: pando_fs::Error| match e.errno() {
            libc::EEXIST if flags & libc::O_EXCL == 0 => Errno(libc::ESTALE),
            e => Errno(e),
        };
        let made = self.fs().create(&maker(c, umask, mode), parent, name, mode, of_handle(flags));
        let (attr, handle) = made.map_err(made_since)?;
        self.shared.proofs.opened(c, attr.ino, handle.0, flags);
        let copied = self.shared.can_tell_times() && self.shared.creators.made(c.pid, handle.0, flags);
        let bypass = copied || self.shared.is_tight(attr.ino, flags);
        let policy = self.shared.caches.opened(attr.ino, handle.0, flags, bypass);
        Ok((attr, Opened { handle: handle.0, direct: policy.direct, keep_cache: policy.keep }))
    }

    fn tmpfile(
        &self,
        c: &Context,
        parent: u64,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Outcome<(Attr, Opened)> {
        self.count(Kind::Create);
        let (attr, handle) = self.fs().tmpfile(&maker(c, umask, mode), parent, mode, of_handle(flags))?;
        self.shared.proofs.opened(c, attr.ino, handle.0, flags);
        let policy = self.shared.caches.opened(attr.ino, handle.0, flags, false);
        Ok((attr, Opened { handle: handle.0, direct: policy.direct, keep_cache: policy.keep }))
    }

    fn open(&self, c: &Context, ino: u64, flags: i32) -> Answer<Opened> {
        self.count(Kind::Open);
        if flags & libc::O_TRUNC == 0 {
            return Answer::Now(self.open_file(c, &caller(c, 0), ino, flags));
        }
        let before = self.shared.set_id_bits(ino);
        // The set-id bits that a write would drop go with the content.
        let by = changer(c, self.fs().perm(ino).unwrap_or_default());
        let announced = self.shared.announce_cut(ino);
        let open = || self.open_file(c, &by, ino, flags);
        let outcome = self.shared.refused.around(ino, 0..u64::MAX, open);
        self.shared.answer_announced((ino, 0, u64::MAX), before, announced, outcome)
    }

    fn read(&self, handle: u64, ino: u64, offset: u64, size: u32, of_pages: bool) -> Answer<Bytes> {
        self.count(Kind::Read);
        if of_pages {
            self.shared.pages_asked_for(ino, offset, size);
        }
        self.shared.openers.read(handle);
        let shredded = self.shared.caches.read(ino, offset, size);
        let outcome = match self.fs().read(FileHandle(handle), ino, offset, size).map_err(Errno::from) {
            // To keep a part of a page that was written, the kernel reads the rest, by the handle of the write.
            Err(Errno(libc::EBADF)) if self.shared.caches.writeback() => {
                self.fs().read_rest_of_page(ino, offset, size).map_err(Errno::from)
            }
            other => other,
        };
        match shredded {
            None => Answer::Now(outcome),
            Some(from) => {
                let shared = self.shared.clone();
                // Done before the answer, so that the scan continues with large reads at once. Only the pages of this
                // read, which end before `from`, are locked until then.
                Answer::later(move || {
                    shared.tell(|n| n.forget_pages(ino, from, 0));
                    outcome
                })
            }
        }
    }

    fn write(&self, c: &Context, w: Write<'_>) -> Answer<u32> {
        self.count(Kind::Write);
        self.shared.answer_write(c, &w)
    }

    fn release(&self, ino: u64, handle: u64, flags: i32) -> Option<Behind> {
        self.count(Kind::Release);
        self.shared.proofs.closed(ino, handle);
        self.shared.diffs.closed(ino, handle);
        self.shared.openers.closed(handle);
        self.shared.creators.closed(handle, || self.fs().size(ino).unwrap_or_default());
        let direct = self.shared.caches.released(ino, handle, flags);
        self.shared.refused.closed(ino, || self.shared.caches.is_open(ino));
        self.fs().release(ino, FileHandle(handle));
        let writes = self.shared.caches.writeback() && flags & libc::O_ACCMODE != libc::O_RDONLY;
        // Then the kernel must ask for the attributes again.
        let unknown = writes && (!direct || self.shared.times.is_stale(ino));
        unknown.then(|| self.shared.written(ino)).flatten()
    }

    fn fsync(&self, ino: u64, datasync: bool) -> Answer<()> {
        self.count(Kind::Fsync);
        let shared = self.shared.clone();
        if ino == pando_fs::ROOT {
            return Answer::later(move || {
                // A sync of the root is one of everything.
                if shared.caches.writeback() {
                    shared.write_out_all();
                }
                shared.fs.fsync(ino, datasync)?;
                shared.automatic.synced_all();
                Ok(())
            });
        }
        Answer::here(move || {
            shared.sync_file(ino, datasync)?;
            if shared.caches.writeback() {
                shared.tell_written(ino);
            }
            Ok(())
        })
    }

    fn opendir(&self, c: &Context, ino: u64, flags: i32) -> Outcome<OpenedDir> {
        self.count(Kind::Opendir);
        let handle = self.fs().opendir(ino)?.0;
        self.shared.proofs.opened(c, ino, handle, flags);
        let policy = self.shared.listings.opened(ino, handle);
        Ok(OpenedDir { handle, cached: policy.cached, keep_cache: policy.keep })
    }

    fn readdir(&self, handle: u64, ino: u64, cookie: u64, sink: &mut dyn DirSink) -> Outcome<()> {
        self.count(Kind::Readdir);
        let handle = DirHandle(handle);
        match sink.wants_attributes() {
            true => self.list_with_attributes(handle, ino, cookie, sink),
            false => self.list(handle, ino, cookie, sink),
        }
    }

    fn releasedir(&self, ino: u64, handle: u64) {
        self.count(Kind::Releasedir);
        self.shared.proofs.closed(ino, handle);
        self.shared.diffs.closed(ino, handle);
        self.shared.listings.released(ino, handle);
        self.fs().releasedir(DirHandle(handle));
    }

    fn statfs(&self, ino: u64) -> Outcome<StatFs> {
        self.count(Kind::Statfs);
        Ok(self.fs().statfs_at(ino)?)
    }

    fn setxattr(&self, c: &Context, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Answer<()> {
        self.count(Kind::Setxattr);
        let (before, bits) = (self.fs().perm(ino).unwrap_or_default(), self.shared.set_id_bits(ino));
        // Groups matter for an access list of a set-group-id file only, and where the kernel does not obey it.
        let is_list = name.as_encoded_bytes().starts_with(b"system.");
        let about_groups = is_list && bits != 0 && c.keeps_group_bit.is_none();
        let caller = if about_groups { caller_with_groups(c, bits) } else { of_attribute(c, name) };
        let outcome = self.fs().set_xattr(&caller, ino, name, value, flags).map_err(Errno::from);
        let mode = self.fs().perm(ino).unwrap_or_default();
        if mode == before || self.shared.set_id_bits(ino) != bits {
            return self.shared.answer_announced((ino, 0, 0), bits, None, outcome);
        }
        // An access list has set the mode. Where the kernel does not check permissions, it keeps the one that it knows.
        // `cp -a` sets a list of each file: no other thread is woken for it.
        let shared = self.shared.clone();
        Answer::here(move || {
            shared.tell(|n| n.forget_attributes(ino));
            outcome
        })
    }

    fn getxattr(&self, c: &Context, ino: u64, name: &OsStr) -> Outcome<Bytes> {
        self.count(Kind::Getxattr);
        let outcome = self.fs().get_xattr(&of_attribute(c, name), ino, name).map_err(Errno::from);
        self.shared.labels.answer(c, (ino, name), outcome, || self.fs().has_attributes())
    }

    fn listxattr(&self, c: &Context, ino: u64) -> Outcome<Bytes> {
        self.count(Kind::Listxattr);
        let list = |trusted_attrs| self.fs().list_xattr(&Caller { trusted_attrs, ..caller(c, 0) }, ino);
        let all = list(Some(true))?;
        let is_hidden = |name: &[u8]| name.starts_with(b"trusted.");
        match all.split(|b| *b == 0).any(is_hidden) && !sees_trusted(c) {
            true => Ok(list(Some(false))?),
            false => Ok(all),
        }
    }

    fn removexattr(&self, c: &Context, ino: u64, name: &OsStr) -> Outcome<()> {
        self.count(Kind::Removexattr);
        Ok(self.fs().remove_xattr(&of_attribute(c, name), ino, name)?)
    }

    fn fallocate(&self, c: &Context, ino: u64, offset: u64, len: u64, mode: i32) -> Answer<()> {
        self.count(Kind::Fallocate);
        self.shared.answer_fallocate(c, (ino, offset, len), mode)
    }

    fn access(&self, ino: u64, mask: i32) -> Outcome<()> {
        self.count(Kind::Access);
        let executes = mask & libc::X_OK != 0;
        let attr = self.fs().getattr(ino)?;
        // Only root gets here, who may do everything but execute a file without any execute bit.
        let refused = executes && attr.kind != FileKind::Directory && attr.perm & 0o111 == 0;
        if refused { Err(Errno(libc::EACCES)) } else { Ok(()) }
    }

    fn seek(&self, ino: u64, offset: u64, what: Seek) -> Answer<u64> {
        self.count(Kind::Lseek);
        if !self.shared.caches.is_perhaps_dirty(ino) && !self.shared.refused.any() {
            return Answer::Now(self.fs().seek(ino, offset, what).map_err(Errno::from));
        }
        let shared = self.shared.clone();
        Answer::later(move || {
            // What is in a mapping only is data too.
            if shared.caches.is_perhaps_dirty(ino) {
                shared.write_out(vec![ino]);
            }
            let stored = |at: u64, what: Seek| shared.fs.seek(ino, at, what).map_err(Errno::from);
            shared.refused.seek(ino, offset, what, stored)
        })
    }

    fn copy(&self, c: &Context, copy: Copy) -> Answer<u64> {
        self.count(Kind::Copy);
        copies::answer(&self.shared, c, copy)
    }

    fn unsupported(&self) {
        self.count(Kind::Unsupported);
    }

    fn ioctl(&self, c: &Context, ino: u64, handle: u64, command: u32, data: &[u8]) -> Answer<Vec<u8>> {
        self.count(Kind::Ioctl);
        if !ControlRequest::is_ours(command) {
            return Answer::Now(Err(Errno(libc::ENOTTY)));
        }
        let Some(request) = ControlRequest::decode(command, data) else {
            return Answer::Now(Err(Errno(libc::EINVAL)));
        };
        if request == ControlRequest::Token {
            let reads = !self.fs().opened_write_only(FileHandle(handle));
            let token = self.shared.proofs.issue(c, ino, handle, reads);
            // Without a way into the mount all that the kernel keeps has to be written first, by the tool.
            let value = self.shared.caches.writeback() && self.shared.own_mount_unasked.get().is_none();
            let value = u64::from(value);
            let answer = |t: Token| Response { message: t.hex(), value, ..Response::default() }.encode();
            return Answer::Now(token.map(answer));
        }
        let (shared, c) = (self.shared.clone(), *c);
        let stop = shared.interrupts.watch(c.unique);
        Answer::later(move || requests::answer(&shared, &c, (ino, handle), request, &stop))
    }
}

mod listing;
#[cfg(test)]
mod tests;
