//! Modification times of files that are written past the kernel's write-back cache.
//!
//! With the write-back cache the kernel owns the times of regular files: it takes none from an answer, and it sets
//! none for a direct write of a file that the server opened so. For such a write the server sets the time as a
//! program would (`own_mount`), from a thread of its own, when a request asks for the attributes
//! ([`Times::wait_until_known`]). That request waits for it, but not longer than [`TIME_PATIENCE`]: the kernel may
//! hold a lock on the inode until the request is answered. The thread works only on request, because it opens the
//! mount, which makes an unmount at that moment fail as busy.
//!
//! A program can keep the kernel's lock on a file that it writes to for any time, and the thread waits for that. So
//! after [`LOCK_PATIENCE`] another thread takes over, and the first ends when it is done. If [`MAX_WAITING_FOR_USER`]
//! threads wait for files of one user, no times of that user's files are set until one of the threads is done; in all
//! there are at most [`MAX_WAITING_IN_ALL`] such threads.
//!
//! Guarantees: a time that a program sets is never replaced by that of an earlier write, because the server lets the
//! change of this thread pass only if the file's time is still the one that is given ([`Times::change`]). This module
//! uses neither the file system nor the kernel: [`Times::start`] gets callbacks.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pando_fs::Time;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    ending::{PATIENCE_AT_END, join_within},
    own_mount::UnsharedFiles,
};

/// How long a question for attributes waits for the time to be given.
const TIME_PATIENCE: Duration = Duration::from_millis(50);
/// How long a thread waits for a lock before another one takes over.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// Threads that may wait for locks on the files of one user, a count.
const MAX_WAITING_FOR_USER: usize = 4;
/// And on all files, a count.
const MAX_WAITING_IN_ALL: usize = 32;

/// What gives the kernel the time that a file has now.
type Give = Box<dyn Fn(&UnsharedFiles, u64) -> io::Result<()> + Send + Sync>;
/// What says whose a file is.
type Owner = Box<dyn Fn(u64) -> Option<u32> + Send + Sync>;

/// A file whose time the kernel does not know.
#[derive(Default)]
struct Stale {
    /// The time that the kernel has.
    known: Option<Time>,
    /// Writes so far, a count: whether there were more since the time was given.
    writes: u64,
    /// Somebody waits for it.
    urgent: bool,
}

/// What to do with a change of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeChange {
    /// Make the change.
    Make,
    /// Make the rest of the request, without the time.
    Ignore,
    /// Refuse the request: it comes from the thread of this module, and there is a newer time.
    Refuse,
}

/// A thread that gives times.
struct Giver {
    /// The thread's number in the kernel's requests.
    thread: u32,
    giving: Option<Giving>,
    /// Another one has taken over.
    replaced: bool,
}

/// What a thread is just giving.
struct Giving {
    ino: u64,
    since: Instant,
    /// Somebody else has set the file's time since.
    overruled: bool,
}

#[derive(Default)]
struct TimesState {
    stale: HashMap<u64, Stale>,
    /// Files that requests wait for, and some for which the wait has ended.
    urgent: VecDeque<u64>,
    givers: Vec<Giver>,
    /// A thread has been started and has not begun.
    starting: bool,
    ended: bool,
    threads: Vec<JoinHandle<()>>,
}

impl TimesState {
    fn giver(&mut self, thread: u32) -> Option<&mut Giver> {
        self.givers.iter_mut().find(|giver| giver.thread == thread)
    }

    /// What is being given of this file.
    fn giving(&mut self, ino: u64) -> Option<&mut Giving> {
        self.givers.iter_mut().filter_map(|giver| giver.giving.as_mut()).find(|giving| giving.ino == ino)
    }

    fn gives(&self, thread: u32) -> bool {
        self.givers.iter().any(|giver| giver.thread == thread)
    }

    /// Whether another thread is to take over from the one that gives times.
    fn wants_another(&self) -> bool {
        let waits = |giving: &Giving| giving.since.elapsed() >= LOCK_PATIENCE;
        let stuck = |giver: &Giver| giver.replaced || giver.giving.as_ref().is_some_and(waits);
        !self.ended
            && !self.starting
            && self.givers.len() <= MAX_WAITING_IN_ALL
            && self.givers.iter().all(stuck)
    }

    /// Whether so many threads wait for locks on files of this one's owner that no other one is to begin.
    fn is_kept_up(&self, ino: u64, owner: &Owner) -> bool {
        let giving = self.givers.iter().filter(|giver| giver.replaced).filter_map(|g| g.giving.as_ref());
        let waited_for: Vec<u64> = giving.map(|giving| giving.ino).collect();
        waited_for.len() >= MAX_WAITING_FOR_USER && {
            let mine = owner(ino);
            waited_for.into_iter().filter(|ino| owner(*ino) == mine).count() >= MAX_WAITING_FOR_USER
        }
    }
}

/// The files whose time the kernel is to be given, and the thread that does it.
#[derive(Default)]
pub(crate) struct Times {
    state: Mutex<TimesState>,
    /// There is something to do for the thread.
    wanted: Condvar,
    /// A file has left those that are stale.
    given: Condvar,
    /// Whether there are any, to be asked without the lock.
    any: AtomicBool,
    /// What the threads do; without it there are none.
    work: OnceLock<(Give, Owner)>,
}

impl Times {
    /// Starts the thread; to be called once. `give` sets the time of a file in the kernel, and `owner` returns its
    /// owner, without I/O, because all requests that ask for times wait for it.
    ///
    /// This waits until the thread has closed its copies of this process's descriptors. Closing one of a file on a
    /// FUSE mount makes the kernel ask that mount's server. So this must not be called for a request, nor with a lock
    /// held.
    pub(crate) fn start(
        self: &Arc<Self>,
        give: impl Fn(&UnsharedFiles, u64) -> io::Result<()> + Send + Sync + 'static,
        owner: impl Fn(u64) -> Option<u32> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let (tell, told) = mpsc::channel();
        self.start_thread(move |begun| _ = tell.send(begun))?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))?;
        let first = self.work.set((Box::new(give), Box::new(owner))).is_ok();
        assert!(first, "a mount has one thread for times");
        self.wanted.notify_all();
        Ok(())
    }

    /// Starts a thread that gives times; `told` is called by it when it has begun, or could not.
    fn start_thread(self: &Arc<Self>, told: impl FnOnce(io::Result<()>) + Send + 'static) -> io::Result<()> {
        let times = self.clone();
        let name = "pando-times".to_owned();
        let thread =
            std::thread::Builder::new().name(name).spawn(move || match UnsharedFiles::unshare() {
                Ok(unshared) => {
                    told(Ok(()));
                    times.work(&unshared);
                }
                Err(e) => told(Err(e)),
            })?;
        let mut state = self.state.lock();
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
        Ok(())
    }

    /// Has another thread take over from one that waits for a lock.
    fn take_over(self: &Arc<Self>, mut state: MutexGuard<'_, TimesState>) {
        state.starting = true;
        state.givers.iter_mut().for_each(|giver| giver.replaced = true);
        drop(state);
        let times = self.clone();
        let started = self.start_thread(move |begun| {
            if begun.is_err() {
                times.state.lock().starting = false;
            }
        });
        if let Err(e) = started {
            self.state.lock().starting = false;
            log::warn!("no further thread for times of files: {e}");
        }
    }

    /// Whether there is a thread that gives times.
    pub(crate) fn runs(&self) -> bool {
        self.work.get().is_some()
    }

    /// Notes a write to `ino` that the kernel does not know the time of; `before` is the time that the file had.
    pub(crate) fn wrote(&self, ino: u64, before: Option<Time>) {
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Release);
        state.stale.entry(ino).or_insert_with(|| Stale { known: before, ..Stale::default() }).writes += 1;
    }

    /// The kernel has forgotten the inode, and with it what it had of its times.
    pub(crate) fn forgotten(&self, ino: u64) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            state.stale.remove(&ino);
            self.any.store(!state.stale.is_empty(), Ordering::Release);
            self.given.notify_all();
        }
    }

    /// Whether the kernel lacks the time of `ino`, so that [`Times::wait_until_known`] may wait.
    pub(crate) fn is_stale(&self, ino: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.state.lock().stale.contains_key(&ino)
    }

    /// Whether an answer to the thread `caller` that has the attributes of `ino` leaves the kernel without its time. An
    /// answer to the thread that gives times does not: it is about the time that has just been given.
    pub(crate) fn lacks(&self, ino: u64, caller: u32) -> bool {
        self.any.load(Ordering::Acquire) && {
            let state = self.state.lock();
            !state.gives(caller) && state.stale.contains_key(&ino)
        }
    }

    /// Waits until the kernel has the time of `ino`, at most [`TIME_PATIENCE`], and returns whether it has. If not,
    /// the kernel must not cache the attributes of the answer, because it would not ask for the time again.
    pub(crate) fn wait_until_known(self: &Arc<Self>, ino: u64) -> bool {
        let (mut state, until) = (self.state.lock(), Instant::now() + TIME_PATIENCE);
        while let Some(stale) = state.stale.get_mut(&ino)
            && Instant::now() < until
        {
            if !std::mem::replace(&mut stale.urgent, true) {
                state.urgent.push_back(ino);
                self.wanted.notify_all();
            }
            self.given.wait_until(&mut state, until);
        }
        let settled = !state.stale.contains_key(&ino);
        if !settled && state.wants_another() {
            self.take_over(state);
        }
        settled
    }

    /// What to do with a change of the time of `ino` to `time` (`None`: now) that has come from the thread `from`; the
    /// file has the time `now`. `alone`: it sets no access time.
    ///
    /// After a program's own change the kernel shows that time. When the kernel changes something else, as at a rename,
    /// it sends the time that it has along: that is no change.
    pub(crate) fn change(
        &self,
        ino: u64,
        from: u32,
        (time, alone): (Option<Time>, bool),
        now: impl FnOnce() -> Option<Time>,
    ) -> TimeChange {
        let mut state = self.state.lock();
        if state.stale.is_empty() && state.givers.iter().all(|giver| giver.giving.is_none()) {
            return TimeChange::Make;
        }
        if let Some(giver) = state.giver(from) {
            let gives = giver.giving.as_ref().is_some_and(|g| g.ino == ino && !g.overruled);
            let newer = time.is_none() || time != now();
            return if !gives || newer { TimeChange::Refuse } else { TimeChange::Make };
        }
        if alone && time.is_some() && state.stale.get(&ino).is_some_and(|s| s.known == time) {
            return TimeChange::Ignore;
        }
        if state.stale.remove(&ino).is_some() {
            self.given.notify_all();
        }
        if let Some(giving) = state.giving(ino) {
            giving.overruled = true;
        }
        TimeChange::Make
    }

    /// Ends the threads, and waits for that as `ending` says.
    pub(crate) fn end(&self) {
        let threads = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.threads)
        };
        self.wanted.notify_all();
        join_within(PATIENCE_AT_END, "times of files", threads);
    }

    /// The work of a thread: it sets the times that requests wait for, until another thread takes over.
    fn work(&self, unshared: &UnsharedFiles) {
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut state = self.state.lock();
        state.starting = false;
        state.givers.push(Giver { thread: me, giving: None, replaced: false });
        while !state.ended && state.giver(me).is_some_and(|giver| !giver.replaced) {
            match self.next(&mut state) {
                Some(ino) => self.give(&mut state, unshared, (me, ino)),
                None => {
                    self.any.store(!state.stale.is_empty(), Ordering::Release);
                    self.wanted.wait(&mut state);
                }
            }
        }
        state.givers.retain(|giver| giver.thread != me);
    }

    /// A file whose time is to be given.
    fn next(&self, state: &mut TimesState) -> Option<u64> {
        let (_, owner) = self.work.get()?;
        while let Some(ino) = state.urgent.pop_front() {
            let free = state.giving(ino).is_none() && !state.is_kept_up(ino, owner);
            match state.stale.get_mut(&ino) {
                Some(stale) if stale.urgent && free => return Some(ino),
                // The next caller has it looked at again.
                Some(stale) => stale.urgent = false,
                None => {}
            }
        }
        None
    }

    fn give(&self, state: &mut MutexGuard<'_, TimesState>, unshared: &UnsharedFiles, (me, ino): (u32, u64)) {
        let Some((give, _)) = self.work.get() else { return };
        let writes = state.stale.get(&ino).map(|stale| stale.writes);
        if let Some(giver) = state.giver(me) {
            giver.giving = Some(Giving { ino, since: Instant::now(), overruled: false });
        }
        let given = MutexGuard::unlocked(state, || give(unshared, ino));
        if let Some(giver) = state.giver(me) {
            giver.giving = None;
        }
        let newer = state.stale.get(&ino).is_some_and(|s| Some(s.writes) != writes);
        // Cancelled: there is a newer time, and the next round gives that. After other errors nothing can
        // be done: as a rule the kernel has forgotten the file, and with it what it had of its times.
        let again = newer || given.is_err_and(|e| e.raw_os_error() == Some(libc::ECANCELED));
        match state.stale.get_mut(&ino) {
            Some(stale) if again => stale.urgent = false,
            _ => _ = state.stale.remove(&ino),
        }
        self.given.notify_all();
    }
}
