//! Modification times of files that are written past the kernel's write-back cache.
//!
//! With the write-back cache the kernel owns the times of regular files: it takes none from an answer, and it sets none
//! for a direct write of a file that the server opened so. For such a write the server sets the time as a program would
//! (`inside`), from a thread of its own, when a request asks for the attributes ([`Times::settle`]). That request waits
//! for it, but not longer than [`PATIENCE`]: the kernel may hold a lock on the inode until the request is answered.
//! The thread does nothing unasked: it opens the mount for it, which makes an unmount at that moment fail as busy.
//!
//! Guarantees: a time that a program sets is never replaced by that of an earlier write, because the server lets the
//! change of this thread pass only if the file's time is still the one that is given ([`Times::change`]). Uses neither
//! the file system nor the kernel: what is to be done is given to [`Times::start`].

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pando_fs::Time;
use parking_lot::{Condvar, Mutex};

use crate::inside::Apart;

/// How long a question for attributes waits for the time to be given.
const PATIENCE: Duration = Duration::from_millis(50);

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
    /// It is to be made.
    Make,
    /// It is none: the rest of the request is to be done.
    Ignore,
    /// It comes from the thread here and there is a newer time: refuse the request.
    Refuse,
}

#[derive(Default)]
struct TimesState {
    stale: HashMap<u64, Stale>,
    /// The thread that gives times, as the kernel names it in requests.
    thread_id: Option<u32>,
    /// What it is just giving: a file, and whether somebody else has set its time since.
    giving: Option<(u64, bool)>,
    ended: bool,
    thread: Option<JoinHandle<()>>,
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
    /// The thread has begun.
    runs: AtomicBool,
}

impl Times {
    /// Starts the thread; to be called once. `give` gives the kernel the time that a file has now.
    ///
    /// Waits until the thread has let go of its copies of this process's descriptors. To close one of a file on a FUSE
    /// mount has the kernel ask that mount's server. So this is not for a request, and no lock is held over it.
    pub(crate) fn start(
        self: &Arc<Self>,
        give: impl Fn(&Apart, u64) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let times = self.clone();
        let name = "pando-times".to_owned();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || match Apart::become_so() {
            Ok(apart) => {
                let _ = tell.send(Ok(()));
                times.work(&apart, give);
            }
            Err(e) => _ = tell.send(Err(e)),
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))?;
        let before = self.state.lock().thread.replace(thread);
        assert!(before.is_none(), "a mount has one thread for times");
        self.runs.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether there is a thread that gives times.
    pub(crate) fn runs(&self) -> bool {
        self.runs.load(Ordering::Acquire)
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

    /// Whether the kernel lacks the time of `ino`, so that [`Times::settle`] may wait.
    pub(crate) fn is_stale(&self, ino: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.state.lock().stale.contains_key(&ino)
    }

    /// Whether an answer to the thread `caller` that has the attributes of `ino` leaves the kernel without its time. An
    /// answer to the thread that gives times does not: it is about the time that has just been given.
    pub(crate) fn lacks(&self, ino: u64, caller: u32) -> bool {
        self.any.load(Ordering::Acquire) && {
            let state = self.state.lock();
            state.thread_id != Some(caller) && state.stale.contains_key(&ino)
        }
    }

    /// Waits until the kernel has the time of `ino`, for [`PATIENCE`] at most.
    pub(crate) fn settle(&self, ino: u64) {
        let (mut state, until) = (self.state.lock(), Instant::now() + PATIENCE);
        while let Some(stale) = state.stale.get_mut(&ino)
            && Instant::now() < until
        {
            stale.urgent = true;
            self.wanted.notify_one();
            self.given.wait_until(&mut state, until);
        }
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
        if state.stale.is_empty() && state.giving.is_none() {
            return TimeChange::Make;
        }
        if state.thread_id == Some(from) {
            let overruled = state.giving != Some((ino, false));
            let newer = time.is_none() || time != now();
            return if overruled || newer { TimeChange::Refuse } else { TimeChange::Make };
        }
        if alone && time.is_some() && state.stale.get(&ino).is_some_and(|s| s.known == time) {
            return TimeChange::Ignore;
        }
        if state.stale.remove(&ino).is_some() {
            self.given.notify_all();
        }
        if let Some((giving, overruled)) = &mut state.giving
            && *giving == ino
        {
            *overruled = true;
        }
        TimeChange::Make
    }

    /// Ends the thread, and waits for that.
    pub(crate) fn end(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.ended = true;
            state.thread.take()
        };
        self.wanted.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread for times of files has panicked");
        }
    }

    fn work(&self, apart: &Apart, give: impl Fn(&Apart, u64) -> io::Result<()>) {
        let mut state = self.state.lock();
        state.thread_id = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok();
        loop {
            while !state.ended && !state.stale.values().any(|s| s.urgent) {
                self.any.store(!state.stale.is_empty(), Ordering::Release);
                self.wanted.wait(&mut state);
            }
            if state.ended {
                return;
            }
            let urgent = state.stale.iter().filter(|(_, s)| s.urgent);
            let some: Vec<(u64, u64)> = urgent.map(|(ino, s)| (*ino, s.writes)).collect();
            for (ino, writes) in some {
                state.giving = Some((ino, false));
                let given = parking_lot::MutexGuard::unlocked(&mut state, || give(apart, ino));
                state.giving = None;
                let newer = state.stale.get(&ino).is_some_and(|s| s.writes != writes);
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
    }
}
