//! Changes of whole trees, and how the kernel gets the new attributes.
//!
//! The file system changes all records by one message, and returns the inodes known to the kernel that were changed.
//! The kernel has attributes of these, which may be valid for a day, and with its write-back cache it owns the times
//! of regular files. So the server sets a time of each by a call on its own mount, as a program would. The kernel
//! then takes all attributes from the answer, and its own change time is the present one. Other calls that set
//! attributes of that inode come before or after, because the kernel locks the inode meanwhile. The server recognises
//! such a request ([`OwnThreads`](crate::own_threads)), and sets only what was to be set.
//!
//! Guarantee: once the call has returned, no program sees an attribute from before. An answer to a lookup that was
//! sent before the change and has not reached the kernel is waited for, at most [`TAKEN_PATIENCE`]. A program can
//! keep the kernel's lock on an inode, such as by a write from memory whose pages do not come: the times that the
//! kernel owns of such a file may stay old, and the call returns nevertheless.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use pando_fs::{Attr, Caller, FileKind, SetAttr, Time, TreeChange, TreeChangeReport, waiting};
use parking_lot::{Condvar, Mutex};

use crate::{
    caller::may_change_all,
    coherence::MountState,
    own_mount::{OwnMount, UnsharedFiles},
    proof::ProvenRights,
    transport::{Context, Errno, Outcome},
};

/// How long the server waits for answers that the kernel has not taken in yet.
const TAKEN_PATIENCE: Duration = Duration::from_secs(1);
/// How long between looks whether it has.
const TAKEN_POLL: Duration = Duration::from_millis(1);
/// How long the server waits for an inode that is locked.
const INODE_LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Threads that one change has the kernel take attributes by, if those before wait, a count.
const MAX_TAKER_THREADS: usize = 4;
/// And all changes together: beyond them none is begun.
const MAX_OWN_THREADS: usize = 32;

/// Inodes whose attributes the kernel is to take.
struct Taking {
    state: Mutex<TakingState>,
    /// Signalled when an inode is done, or a thread has failed.
    moved: Condvar,
    /// Modification time that they get, if they do.
    mtime: Option<Time>,
    /// When it is no longer waited for those of which the kernel does not know yet.
    until: Instant,
    /// The call has returned. From now on a file may have been changed by other calls, and then keeps its time.
    late: Arc<AtomicBool>,
}

#[derive(Default)]
struct TakingState {
    left: VecDeque<(u64, FileKind)>,
    /// Inodes that threads are working on, a count.
    in_hand: usize,
    /// Inodes that are done, a count.
    taken: usize,
    failed: Option<io::Error>,
    /// A thread could not begin.
    stopped: bool,
}

impl Taking {
    fn next(&self) -> Option<(u64, FileKind)> {
        let mut state = self.state.lock();
        let next = state.left.pop_front()?;
        state.in_hand += 1;
        Some(next)
    }

    fn again(&self, inode: (u64, FileKind)) {
        let mut state = self.state.lock();
        state.left.push_back(inode);
        state.in_hand -= 1;
    }

    fn taken(&self, outcome: io::Result<()>) {
        let mut state = self.state.lock();
        state.in_hand -= 1;
        state.taken += 1;
        match outcome {
            Err(e) if e.raw_os_error() != Some(libc::ESTALE) => state.failed = Some(e),
            _ => {}
        }
        self.moved.notify_one();
    }

    fn stop(&self, error: io::Error) {
        let mut state = self.state.lock();
        (state.failed, state.stopped) = (Some(error), true);
        self.moved.notify_one();
    }

    /// Waits until all are taken, or a thread could not begin; false if none was taken for [`INODE_LOCK_PATIENCE`].
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.left.is_empty() && state.in_hand == 0 || state.stopped {
                return true;
            }
            let before = state.taken;
            let late = self.moved.wait_for(&mut state, INODE_LOCK_PATIENCE).timed_out();
            if late && state.taken == before {
                return false;
            }
        }
    }
}

impl MountState {
    /// Changes the tree that the token shows, and returns the microseconds that this took. Only for workers.
    pub(crate) fn change_tree(
        self: &Arc<Self>,
        c: &Context,
        shows: &ProvenRights,
        change: &TreeChange,
    ) -> pando_fs::Result<u64> {
        // Root of a container may lack the capabilities to change files of others.
        if !shows.root || !may_change_all(c) {
            let why = "only root may change whole trees at once";
            return Err(pando_fs::Error::NotPermitted { name: "tree".into(), why });
        }
        // This shows that the mount through which the tree was opened may be written to.
        if !shows.adds_to_source() {
            return Err(pando_fs::Error::Access("tree".into()));
        }
        let Some(way) = self.own_mount.get() else {
            return Err(pando_fs::Error::Unsupported("trees at once, without a way into the mount"));
        };
        // What was written before must not be taken for a change after it.
        self.write_out_below(shows.source);
        let report = self.fs.change_tree(shows.source, change)?;
        for (ino, _) in &report.known {
            // The kernel may have forgotten the inode.
            let _gone = self.notify.get().map(|notify| notify.forget_attributes(*ino));
        }
        self.have_all_taken(way, &report);
        Ok(report.micros)
    }

    /// Makes the kernel take the attributes of all these inodes, in threads with descriptors of their own. A thread
    /// may wait for any time for a program that keeps an inode locked. Then another thread takes over the remaining
    /// inodes; if several threads wait so, the rest is left as it is.
    fn have_all_taken(self: &Arc<Self>, way: &OwnMount, report: &TreeChangeReport) {
        if report.known.is_empty() {
            return;
        }
        waiting::announce();
        let taking = Arc::new(Taking {
            state: Mutex::new(TakingState {
                left: report.known.iter().copied().collect(),
                ..Default::default()
            }),
            moved: Condvar::new(),
            mtime: report.times.1,
            until: Instant::now() + TAKEN_PATIENCE,
            late: Arc::default(),
        });
        let mut takers = Vec::new();
        for _ in 0..MAX_TAKER_THREADS {
            if self.own_threads.count() >= MAX_OWN_THREADS {
                break;
            }
            let (mount, way, shared) = (self.clone(), way.clone(), taking.clone());
            let name = "pando-own-mount".to_owned();
            let started = std::thread::Builder::new().name(name).spawn(move || {
                let taken = UnsharedFiles::unshare().and_then(|_| mount.take(&way, &shared));
                if let Err(e) = taken {
                    shared.stop(e);
                }
            });
            match started {
                Ok(taker) => takers.push(taker),
                Err(e) => taking.stop(e),
            }
            if taking.wait() {
                break;
            }
        }
        taking.late.store(true, Ordering::Release);
        let mut state = taking.state.lock();
        // Nobody begins with more.
        let left = state.left.drain(..).count() + state.in_hand;
        if let Some(e) = state.failed.take() {
            log::error!("the kernel was not given what a change of a tree made: {e}");
        }
        drop(state);
        if left > 0 {
            log::warn!("programs keep files locked: {left} of a changed tree may show old times");
            return;
        }
        // The threads are about to close their descriptors of the mount, and an unmount right after the call must not
        // find it busy.
        takers.into_iter().for_each(|taker| drop(taker.join()));
    }

    /// Makes the kernel take the attributes of the remaining inodes, one after the other. This runs in a thread with
    /// descriptors of its own, which can neither write to the log nor read the image: it has no descriptors of them.
    fn take(&self, way: &OwnMount, taking: &Taking) -> io::Result<()> {
        let _own = self.own_threads.enter(&taking.late);
        let root = way.root()?;
        while let Some((ino, kind)) = taking.next() {
            let mtime = taking.mtime.filter(|_| kind == FileKind::Regular && self.caches.writeback());
            let taken = match OwnMount::open_path(&root, ino) {
                // In case it is taken for another's: then the access time stays as it is.
                Ok(file) => match self.fs.attr_in_memory(ino) {
                    Ok(now) => OwnMount::set_times(&file, now.atime, mtime),
                    Err(_) => Ok(()),
                },
                // The kernel has forgotten the inode, or the answer with it is still on its way.
                Err(_) if self.fs.is_known(ino) && Instant::now() < taking.until => {
                    taking.again((ino, kind));
                    std::thread::sleep(TAKEN_POLL);
                    continue;
                }
                Err(_) => Ok(()),
            };
            taking.taken(taken);
        }
        Ok(())
    }

    /// The answer to a request of a thread that has the kernel take attributes: only times that the kernel itself owns
    /// are set, and none if it is `late`.
    pub(crate) fn have_taken(&self, c: &Context, ino: u64, change: SetAttr, late: bool) -> Outcome<Attr> {
        let mut times = SetAttr { mtime: change.mtime, ctime: change.ctime, ..SetAttr::default() };
        if times == SetAttr::default() {
            return Ok(self.fs.getattr(ino)?);
        }
        if late {
            return Err(Errno(libc::ECANCELED));
        }
        if times.mtime.is_some() {
            // With the access time, so that the request differs from those in which the kernel only sends a time.
            let mut whole = change;
            self.filter_time(c, ino, &mut whole)?;
            times.mtime = whole.mtime;
        }
        Ok(self.fs.setattr(&Caller::root(), ino, &times)?)
    }
}
