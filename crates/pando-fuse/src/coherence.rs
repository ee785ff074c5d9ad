//! What all requests share, and the kernel's caches kept right.
//!
//! Guarantees: what a call here was told to drop (pages, names, attributes), the kernel has dropped when the call
//! returns; dirty pages of shared mappings are in the file system then. Notifications may wait for other requests, so
//! they are sent from answers that are worked out while another thread reads requests
//! ([`Answer::Later`](crate::transport::Answer) and `Here`).

use std::{
    collections::HashSet,
    ffi::OsStr,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pando_fs::{Caller, FileHandle, FileKind, Fs, SetAttr, SetTime, SnapshotMount, waiting};
use parking_lot::Mutex;

use crate::{
    automatic::Automatic,
    cache::Caches,
    caller::changer,
    counters::Counters,
    creators::Creators,
    diffs::Diffs,
    dirty_limit::DirtyLimit,
    interrupts::Interrupts,
    labels::Labels,
    listings::Listings,
    mountinfo,
    openers::Openers,
    own_mount::{self, OwnMount, UnsharedFiles},
    own_threads::OwnThreads,
    past_pages::PastPages,
    pending_reports::PendingReports,
    proof::Proofs,
    refused::Refused,
    times::{TimeChange, Times},
    transport::{Behind, Context, Errno, Notify, Outcome},
    views::Views,
};

/// How long written files are collected before the kernel is told to ask for their blocks again.
const GATHER_FILES_FOR: Duration = Duration::from_millis(50);
/// How long is waited for an open of a file whose pages are to be written out.
const PATIENCE_TO_OPEN: Duration = Duration::from_secs(2);
/// With less room than this below a quota, files that are open for writing only are written through.
const TIGHT_BYTES: u64 = 256 << 20;

/// Files of up to so many bytes come with their open: what the kernel reads at once, if they are read at all.
const MAX_GIVEN_BYTES: u64 = 128 << 10;

/// Renders statistics for `pando stats`.
pub type StatsText = Box<dyn Fn(&Fs, &Counters) -> Result<String, String> + Send + Sync>;

/// What the requests of a mount share.
pub(crate) struct MountState {
    pub(crate) fs: Fs,
    pub(crate) caches: Caches,
    pub(crate) listings: Listings,
    pub(crate) labels: Labels,
    pub(crate) proofs: Proofs,
    /// Differences that are being told.
    pub(crate) diffs: Diffs,
    pub(crate) counters: Arc<Counters>,
    pub(crate) interrupts: Arc<Interrupts>,
    pub(crate) notify: OnceLock<Arc<dyn Notify>>,
    /// The server's access to its own mount, if it may open files there by handle.
    pub(crate) own_mount: OnceLock<OwnMount>,
    /// The same, set only if the kernel counts pages as written when the server has answered for them, and not before
    /// (Linux 6.16). The server then also uses its mount without being asked: to tell the kernel times, and to have
    /// pages written out.
    pub(crate) own_mount_unasked: OnceLock<OwnMount>,
    pub(crate) own_threads: OwnThreads,
    /// Callers that make small files one after the other.
    pub(crate) creators: Creators,
    /// Callers that read the small files that they open.
    pub(crate) openers: Openers,
    /// Files whose time the kernel does not know.
    pub(crate) times: Arc<Times>,
    /// How much the kernel may keep of what is written, if that can be said.
    pub(crate) dirty_limit: OnceLock<DirtyLimit>,
    /// Pages of the kernel's that did not fit.
    pub(crate) refused: Refused,
    /// Ranges that are written past the page cache while other programs may have its pages dirty.
    pub(crate) past_pages: Arc<PastPages>,
    /// Carries out policies for snapshots.
    pub(crate) automatic: Arc<Automatic>,
    /// What these have changed and the kernel is to be told of.
    pub(crate) pending_reports: PendingReports,
    pub(crate) stats: Option<StatsText>,
    /// Inodes whose attributes the kernel is to forget: see [`MountState::written`].
    pub(crate) written: Mutex<Vec<u64>>,
    /// Files of which the server itself has dropped set-id bits: see [`MountState::bits_dropped`].
    pub(crate) bare: Mutex<HashSet<u64>>,
    /// Length of `bare`, so that a FORGET of another inode takes no lock.
    bare_len: AtomicUsize,
    /// Mounts that show snapshots.
    pub(crate) views: Views,
    /// The device number of the mount, `major:minor`, if it could be found out.
    pub(crate) device: OnceLock<String>,
    /// User who may grow the file system besides root: the one who mounted it.
    pub(crate) owner: u32,
}

/// What the kernel does by itself in a mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelKeeps {
    /// The kernel has a write-back cache for this mount.
    pub(crate) writeback: bool,
    /// The kernel caches listings of directories.
    pub(crate) listings: bool,
    /// The kernel checks and caches access lists.
    pub(crate) access_lists: bool,
}

impl MountState {
    pub(crate) fn new(fs: Fs, counters: Arc<Counters>, stats: Option<StatsText>, keeps: KernelKeeps) -> Self {
        Self {
            fs,
            caches: Caches::new(keeps.writeback),
            listings: Listings::new(keeps.listings),
            labels: Labels::new(keeps.access_lists),
            proofs: Proofs::default(),
            diffs: Diffs::default(),
            counters,
            interrupts: Arc::default(),
            notify: OnceLock::new(),
            own_mount: OnceLock::new(),
            own_mount_unasked: OnceLock::new(),
            own_threads: OwnThreads::default(),
            creators: Creators::default(),
            openers: Openers::default(),
            times: Arc::default(),
            dirty_limit: OnceLock::new(),
            refused: Refused::default(),
            past_pages: Arc::default(),
            automatic: Arc::default(),
            pending_reports: PendingReports::default(),
            stats,
            written: Mutex::default(),
            bare: Mutex::default(),
            bare_len: AtomicUsize::new(0),
            views: Views::default(),
            device: OnceLock::new(),
            owner: rustix::process::geteuid().as_raw(),
        }
    }

    /// Sends the notification `what`; a failure leaves stale pages behind and is logged. The kernel may wait in it
    /// for a program that has the file or directory locked, for any time.
    pub(crate) fn tell(&self, what: impl Fn(&dyn Notify) -> std::io::Result<()>) {
        waiting::announce();
        match self.notify.get() {
            Some(notify) => {
                if let Err(e) = what(&**notify) {
                    log::error!("the kernel refused to drop cached data: {e}");
                }
            }
            None => debug_assert!(false, "a request came before the transport was ready"),
        }
    }

    /// Notes that the kernel has written a file out of its write-back cache. The attributes that the kernel has lack
    /// the new blocks, and it does not ask again by itself. Returns the work of notifying it, for all files noted
    /// until then, unless another thread is about to do that.
    pub(crate) fn written(self: &Arc<Self>, ino: u64) -> Option<Behind> {
        let mut written = self.written.lock();
        written.push(ino);
        if written.len() > 1 {
            return None;
        }
        let shared = self.clone();
        Some(Box::new(move || {
            // Programs close many small files one after the other: waking this thread for each would slow them down.
            std::thread::sleep(GATHER_FILES_FOR);
            let inodes = std::mem::take(&mut *shared.written.lock());
            inodes.into_iter().for_each(|ino| shared.tell_written(ino));
        }))
    }

    /// Makes the kernel ask for the mode of a file again, whose set-id bits were dropped. Only for workers.
    ///
    /// If the kernel is told to forget attributes while an answer is on its way, it ignores that answer, and the old
    /// mode stays, with which a program could be run. So for such a file the kernel is not told to forget the blocks
    /// from then on.
    pub(crate) fn bits_dropped(&self, ino: u64) {
        if self.caches.writeback() {
            let mut bare = self.bare.lock();
            bare.insert(ino);
            self.bare_len.store(bare.len(), Ordering::Release);
        }
        self.tell(|n| n.forget_attributes(ino));
    }

    /// The kernel returns `count` references of an inode. It caches nothing of an inode that it has forgotten; but a
    /// program may have looked it up again, which another thread has answered.
    pub(crate) fn forgotten(&self, ino: u64, count: u64) {
        self.fs.forget(ino, count);
        let is_known = || self.fs.is_known(ino);
        self.caches.forgotten(ino, is_known);
        self.times.forgotten(ino, is_known);
        self.listings.forgotten(ino, is_known);
        self.refused.forgotten(ino, is_known);
        if self.bare_len.load(Ordering::Acquire) > 0 {
            // A thread that waits for the kernel may hold this lock. It is held over the query, because a program
            // that looks the file up may write to it at once.
            let mut bare = waiting::take(|| self.bare.try_lock(), || self.bare.lock());
            if !self.fs.is_known(ino) {
                bare.remove(&ino);
                self.bare_len.store(bare.len(), Ordering::Release);
            }
        }
    }

    /// Makes the kernel ask for the blocks of a written file again, at once. Only for workers.
    pub(crate) fn tell_written(&self, ino: u64) {
        // Held over the notification: one that came behind that of `bits_dropped` could make the kernel pass over the
        // answer that has the new mode.
        let bare = self.bare.lock();
        if bare.contains(&ino) {
            return;
        }
        // The kernel may have forgotten the inode and its attributes.
        if let Some(notify) = self.notify.get() {
            let _gone = notify.forget_attributes(ino);
        }
    }

    /// Has the kernel write out its dirty pages of these files, those of mappings too. Only for workers.
    pub(crate) fn write_out(&self, files: Vec<u64>) {
        if files.is_empty() {
            return;
        }
        waiting::announce();
        let mut left = files.clone();
        if let Some(mount) = self.own_mount_unasked.get() {
            match mount.write_out(&files, PATIENCE_TO_OPEN) {
                Ok(failed) => left = failed,
                Err(e) => log::warn!("no way into the mount: {e}"),
            }
        }
        // Refused pages exist only in the kernel, from where they are read through the own mount and stored again.
        if self.own_mount.get().is_some() {
            left.retain(|ino| !self.refused.may_wait(*ino));
        }
        // Dropping the pages of an inode writes dirty ones first, one by one, and waits for that, which syncfs
        // does not promise for FUSE.
        left.into_iter().for_each(|ino| self.tell(|n| n.forget_pages(ino, 0, 0)));
    }

    /// As [`MountState::write_out`], for all files. Only files that are open for writing can have dirty pages.
    pub(crate) fn write_out_all(&self) {
        self.write_out_for(self.caches.perhaps_dirty());
    }

    /// As [`MountState::write_out`], for a caller that will soon wait again.
    fn write_out_for(&self, files: Vec<u64>) {
        if let (Some(limit), false) = (self.dirty_limit.get(), files.is_empty()) {
            limit.waited_for();
        }
        // Each page would be delayed for all that was written before.
        let _soon = self.fs.put_off_delays();
        self.write_out(files);
    }

    /// As [`MountState::write_out`], for files in the tree at `top`. Costs a walk over the inodes in memory there, or
    /// over all open files, whichever are fewer.
    pub(crate) fn write_out_below(&self, top: u64) {
        let files = self.fs.files_in(top, self.caches.open_count()).map(|mut files| {
            files.retain(|ino| self.caches.is_perhaps_dirty(*ino));
            files
        });
        self.write_out_for(files.unwrap_or_else(|| {
            let mut files = self.caches.perhaps_dirty();
            files.retain(|ino| self.fs.lies_in(*ino, top));
            files
        }));
    }

    /// How many files at `top` and below it, perhaps, have data that is stored nowhere: it did not fit.
    pub(crate) fn unstored_below(&self, top: u64) -> u64 {
        self.unstored_in(&[top])
    }

    /// The number of such files in several trees; a file counts once if the trees lie in each other.
    pub(crate) fn unstored_in(&self, tops: &[u64]) -> u64 {
        let lies_in_one = |ino: &&u64| tops.iter().any(|top| self.fs.lies_in(**ino, *top));
        self.refused.unstored().iter().filter(lies_in_one).count() as u64
    }

    /// Whether an open with `flags` of an existing file is to bypass a kernel that keeps what is written: see
    /// `cache`.
    pub(crate) fn is_for_small_changes(&self, ino: u64, flags: i32) -> bool {
        self.caches.writeback()
            && Caches::may_suit_bypass(flags)
            && self.fs.size(ino).is_ok_and(|size| Caches::suits_bypass(flags, size))
            && self.can_tell_times()
    }

    /// Whether a quota leaves so little space that a file opened for writing only should be written through: for
    /// pages in the write-back cache a program would hear of an error only at sync and close.
    pub(crate) fn is_tight(&self, ino: u64, flags: i32) -> bool {
        self.caches.writeback()
            && Caches::may_suit_bypass(flags & !libc::O_TRUNC)
            && self.fs.quota_left(ino).is_some_and(|left| left < TIGHT_BYTES)
            && self.can_tell_times()
    }

    /// Gives the kernel the pages of a small file with the answer to its open, if the caller is one that reads what it
    /// opens: that saves it a READ, and with it a sleep. Reads what a READ would.
    pub(crate) fn give_pages(&self, c: &Context, ino: u64, handle: u64, flags: i32) {
        if flags & (libc::O_ACCMODE | libc::O_DIRECT | libc::O_PATH) != libc::O_RDONLY {
            return;
        }
        let size = self.fs.size(ino).unwrap_or_default();
        if !(1..=MAX_GIVEN_BYTES).contains(&size) {
            return;
        }
        // Over what it has and the server has refused, nothing is put.
        if self.refused.may_wait(ino) {
            return;
        }
        let Some(changes) = self.caches.may_fill(ino) else { return };
        let (true, Some(notify)) = (self.openers.opened(c.pid, handle), self.notify.get()) else { return };
        // An error is the business of the READ that then comes.
        let Ok(data) = self.fs.read(FileHandle(handle), ino, 0, size as u32) else { return };
        if data.len() as u64 != size {
            return;
        }
        self.caches.fill(ino, changes, || {
            if let Err(e) = notify.give_pages(ino, &data) {
                log::debug!("the kernel took no pages of {ino:#x}: {e}");
            }
        });
    }

    /// Whether a kernel that keeps what is written can be told the time of a write that bypasses it.
    pub(crate) fn can_tell_times(&self) -> bool {
        self.times.runs()
    }

    /// Starts the thread that tells a kernel with a write-back cache the times of writes that bypass it. Not for a
    /// request.
    pub(crate) fn start_telling_times(self: &Arc<Self>) {
        if !self.caches.writeback() || self.own_mount_unasked.get().is_none() {
            return;
        }
        let (shared, owned) = (Arc::downgrade(self), Arc::downgrade(self));
        let give = move |unshared: &UnsharedFiles, ino| {
            let gone = || std::io::Error::from_raw_os_error(libc::ESTALE);
            let shared = shared.upgrade().ok_or_else(gone)?;
            let time = shared.fs.modified(ino).map_err(|_| gone())?;
            let mount = shared.own_mount_unasked.get().ok_or_else(gone)?.clone();
            // What it may wait for is not to keep the file system.
            drop(shared);
            mount.set_modified(unshared, ino, time)
        };
        let owner = move |ino| owned.upgrade()?.fs.attr_in_memory(ino).ok().map(|attr| attr.uid);
        let started = self.times.start(give, owner, own_mount::waits_for_lock);
        if let Err(e) = started {
            log::warn!("no thread for times of files: {e}");
        }
    }

    /// Keeps the entries in place on which something is mounted, in the namespace of this process or of the process
    /// `pid`, for calls of this thread, as long as the result lives: the kernel unmounts what is mounted on an entry
    /// that it is told to forget. Keeps the snapshots that are mounted there from being deleted. Reads `/proc`.
    pub(crate) fn keep_mounted(&self, pid: u32) -> pando_fs::MountedOn<'_> {
        let (points, views) = self.mounts_for(pid);
        self.fs.mounted_on(&points, views)
    }

    /// What is mounted in the file system in these two namespaces, and the snapshots that are mounted there.
    pub(crate) fn mounts_for(&self, pid: u32) -> (Vec<PathBuf>, Vec<SnapshotMount>) {
        let mounts = self.device.get().map(|device| mountinfo::mounts_of(device, pid));
        let mounts = mounts.unwrap_or_else(|| Ok(Default::default())).unwrap_or_else(|e| {
            log::warn!("what is mounted in the file system: {e}");
            Default::default()
        });
        let views = self.views.of(&self.fs, &mounts);
        (mounts.points, views)
    }

    /// Looks at what is mounted before the kernel removes or replaces the entry, if it is a directory with snapshots:
    /// the paths of mounts that show these may lead to others afterwards.
    pub(crate) fn look_before_removal(&self, c: &Context, (dir, name): (u64, &OsStr)) {
        if !self.fs.had_snapshots() {
            return;
        }
        let Ok(found) = self.fs.lookup(dir, name) else { return };
        if found.kind == FileKind::Directory && self.fs.has_snapshots(found.ino) {
            // Another look may be waited for.
            waiting::announce();
            self.mounts_for(c.pid);
        }
        self.fs.forget(found.ino, 1);
    }

    /// Makes the kernel drop what a change by the server made stale. Only for workers.
    pub(crate) fn drop_stale(&self, report: &pando_fs::CloneReport) {
        for (dir, name) in &report.entries {
            self.tell(|n| n.forget_entry(*dir, name));
            // Its listing and its attributes.
            self.listings.changed(*dir);
            self.tell(|n| n.forget_pages(*dir, 0, 0));
        }
        for &ino in &report.replaced {
            self.tell(|n| n.forget_pages(ino, 0, 0));
        }
        for &ino in &report.orphaned {
            self.tell(|n| n.forget_attributes(ino));
        }
    }

    /// The kernel knows that two directories have changed, but not that the listing of one that has moved between them
    /// names another parent.
    pub(crate) fn has_moved(&self, (dir, name): (u64, &OsStr)) {
        if let Ok(moved) = self.fs.lookup(dir, name) {
            if moved.kind == FileKind::Directory {
                self.listings.changed(moved.ino);
            }
            self.fs.forget(moved.ino, 1);
        }
    }

    /// Ends the threads of the mount's own.
    pub(crate) fn end_threads(&self) {
        self.automatic.end();
        self.times.end();
        self.refused.end();
        self.diffs.end();
    }

    /// Takes out of a change what is none of the time of a file, or refuses it: see [`Times::change`].
    pub(crate) fn filter_time(&self, c: &Context, ino: u64, change: &mut SetAttr) -> Outcome<()> {
        let time = match change.mtime {
            None => return Ok(()),
            Some(SetTime::At(time)) => Some(time),
            Some(SetTime::Now) => None,
        };
        let now = || self.fs.modified(ino).ok();
        match self.times.change(ino, c.pid, (time, change.atime.is_none()), now) {
            TimeChange::Make => {}
            TimeChange::Ignore => change.mtime = None,
            TimeChange::Refuse => return Err(Errno(libc::ECANCELED)),
        }
        Ok(())
    }

    /// The caller of a request that changes the content of a file in the store at once, and not by a write. The kernel
    /// has then set the file's times already, and reports them, unless its clock has not moved on since the ones that
    /// it has. If a write bypassed its cache before, these may be older than that: then the server takes the time.
    pub(crate) fn content_changer(&self, c: &Context, ino: u64) -> Caller {
        let reports_times = self.caches.knows_times(ino) && !self.times.is_stale(ino);
        Caller { reports_times, ..changer(c, self.fs.perm(ino).unwrap_or_default()) }
    }

    /// Does `work`, which may set the time of a file. If the kernel owns the times of files, and has not set this one
    /// itself (`unknown`), it is to be given the time later.
    pub(crate) fn noting_time<T>(&self, ino: u64, unknown: bool, work: impl FnOnce() -> T) -> T {
        let noted = unknown && self.caches.writeback();
        let before = noted.then(|| self.fs.modified(ino).ok());
        let outcome = work();
        if let Some(before) = before
            && self.fs.modified(ino).ok() != before
        {
            self.times.wrote(ino, before);
        }
        outcome
    }

    /// Set-user-id and set-group-id of the mode as it is now; none if there is no such file.
    pub(crate) fn set_id_bits(&self, ino: u64) -> u16 {
        self.fs.perm(ino).unwrap_or_default() & 0o6000
    }

    /// Clears set-user-id and set-group-id where they are set.
    pub(crate) fn drop_privileges(&self, c: &Context, ino: u64) -> Outcome<()> {
        if self.set_id_bits(ino) != 0 {
            let change = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            self.fs.setattr(&changer(c, self.fs.perm(ino)?), ino, &change)?;
        }
        Ok(())
    }
}
