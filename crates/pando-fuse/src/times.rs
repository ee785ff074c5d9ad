//! Modification times of files that are written past the kernel's write-back cache.
//!
//! With the write-back cache the kernel owns the times of regular files: it takes none from an answer, and it sets
//! none for a direct write of a file that the server opened so. For such a write the server sets the time as a
//! program would (`own_mount`), from a thread of its own, when a request asks for the attributes
//! ([`Times::wait_until_known`]). That request waits until the kernel has the time of the last write before it. The
//! thread works only on request, because it opens the mount, which makes an unmount at that moment fail as busy.
//!
//! The kernel may hold a lock on the inode until the request is answered, and a program can keep that lock on a file
//! that it writes to for any time. So the request waits no longer than [`LOOKS`] times [`LOOK_EVERY`] while the
//! thread waits for a lock on the file; but a thread that only gets no CPU is waited for, [`PATIENCE`] at most. After
//! [`LOCK_PATIENCE`] another thread takes over from one that waits for a lock, which ends when it is done. If
//! [`MAX_WAITING_FOR_USER`] threads wait for files of one user, no times of that user's files are set until one of
//! the threads is done; in all there are at most [`MAX_WAITING_IN_ALL`] such threads.
//!
//! Guarantees: a time that a program sets is never replaced by that of an earlier write, because the server lets the
//! change of this thread pass only if the file's time is still the one that is given ([`Times::change`]). If it is
//! not, because the file has been written to since, the kernel gets the time all the same, and the file keeps its
//! own: otherwise a file that is written to all the time would keep its old time. This module uses neither the file
//! system nor the kernel: [`Times::start`] gets callbacks.

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

use pando_fs::{Time, waiting};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    ending::{PATIENCE_AT_END, join_within},
    own_mount::UnsharedFiles,
};

/// How long a question for attributes waits for the time to be given, in all: for a thread that gets no CPU.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it waits at first, without telling others that it waits: as a rule the time is given by then.
const QUIET_WAIT: Duration = Duration::from_millis(2);
/// How often it looks at what the thread waits for,
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// and how many looks in a row have to find it waiting for the same lock to be answered without, a count.
const LOOKS: u32 = 5;
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
/// What says whether a thread waits for a lock in the kernel.
type Locked = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// What changes while a thread gives times, if no lock holds it up: its number, which file it is at and since when,
/// and the last write to that one.
type Progress = (u32, Option<(u64, Instant, u64)>);

/// A file whose time the kernel does not know.
#[derive(Default)]
struct Stale {
    /// The time that the kernel has,
    known: Option<Time>,
    /// or, as soon as the thread has its answer, this one.
    told: Option<Time>,
    /// The number of the last write.
    last: u64,
    /// The number of the last one whose time, or a later one, the kernel has.
    given: u64,
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
    /// The last write before.
    upto: u64,
    since: Instant,
    /// Somebody else has set the file's time since.
    overruled: bool,
}

#[derive(Default)]
struct TimesState {
    stale: HashMap<u64, Stale>,
    /// Writes so far, a count.
    writes: u64,
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

    /// Whether the kernel lacks the time of this write to the file, or a later one.
    fn lacks(&self, ino: u64, write: u64) -> bool {
        self.stale.get(&ino).is_some_and(|stale| stale.given < write)
    }

    /// Who gives the time of the file, or is to do so next.
    fn giver_of(&self, ino: u64) -> Option<&Giver> {
        let gives = |giver: &&Giver| giver.giving.as_ref().is_some_and(|giving| giving.ino == ino);
        let next = || self.givers.iter().find(|giver| !giver.replaced);
        self.givers.iter().find(gives).or_else(next)
    }

    /// How far the thread is that gives this file's time, or the one before it.
    fn progress(&self, ino: u64) -> Option<Progress> {
        let giver = self.giver_of(ino)?;
        let last = |ino: u64| self.stale.get(&ino).map_or(0, |stale| stale.last);
        Some((giver.thread, giver.giving.as_ref().map(|g| (g.ino, g.since, last(g.ino)))))
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
    work: OnceLock<(Give, Owner, Locked)>,
}

impl Times {
    /// Starts the thread; to be called once. `give` sets the time of a file in the kernel. `owner` returns its owner,
    /// without I/O, because all requests that ask for times wait for it. `locked` says whether a thread waits for a
    /// lock.
    ///
    /// This waits until the thread has closed its copies of this process's descriptors. Closing one of a file on a
    /// FUSE mount makes the kernel ask that mount's server. So this must not be called for a request, nor with a lock
    /// held.
    pub(crate) fn start(
        self: &Arc<Self>,
        give: impl Fn(&UnsharedFiles, u64) -> io::Result<()> + Send + Sync + 'static,
        owner: impl Fn(u64) -> Option<u32> + Send + Sync + 'static,
        locked: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> io::Result<()> {
        let (tell, told) = mpsc::channel();
        self.start_thread(move |begun| _ = tell.send(begun))?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))?;
        let first = self.work.set((Box::new(give), Box::new(owner), Box::new(locked))).is_ok();
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
    fn take_over<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, TimesState>,
    ) -> MutexGuard<'a, TimesState> {
        state.starting = true;
        state.givers.iter_mut().for_each(|giver| giver.replaced = true);
        drop(state);
        let times = self.clone();
        let started = self.start_thread(move |begun| {
            if begun.is_err() {
                times.state.lock().starting = false;
            }
        });
        let mut state = self.state.lock();
        if let Err(e) = started {
            state.starting = false;
            log::warn!("no further thread for times of files: {e}");
        }
        state
    }

    /// Whether there is a thread that gives times.
    pub(crate) fn runs(&self) -> bool {
        self.work.get().is_some()
    }

    /// Notes a write to `ino` that the kernel does not know the time of; `before` is the time that the file had.
    pub(crate) fn wrote(&self, ino: u64, before: Option<Time>) {
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Release);
        state.writes += 1;
        let last = state.writes;
        state.stale.entry(ino).or_insert_with(|| Stale { known: before, ..Stale::default() }).last = last;
    }

    /// The kernel may have forgotten the inode, and with it what it had of its times: `is_known` says whether it still
    /// knows it.
    pub(crate) fn forgotten(&self, ino: u64, is_known: impl FnOnce() -> bool) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            // Asked under the lock: a program that looks the file up may write to it at once.
            if !state.stale.contains_key(&ino) || is_known() {
                return;
            }
            state.stale.remove(&ino);
            self.any.store(!state.stale.is_empty(), Ordering::Release);
            self.given.notify_all();
        }
    }

    /// Whether the kernel lacks the time of `ino`, so that [`Times::wait_until_known`] may wait.
    pub(crate) fn is_stale(&self, ino: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.state.lock().stale.contains_key(&ino)
    }

    /// Whether an answer to the thread `caller` that has the attributes of `ino` leaves the kernel without its time.
    /// An answer to the thread that gives times does not, unless the file was written to since: it is about the time
    /// that has just been given.
    pub(crate) fn lacks(&self, ino: u64, caller: u32) -> bool {
        self.any.load(Ordering::Acquire) && {
            let mut state = self.state.lock();
            let upto = state.giver(caller).and_then(|giver| giver.giving.as_ref()).map(|giving| giving.upto);
            state.stale.get(&ino).is_some_and(|stale| upto.is_none_or(|upto| stale.last > upto))
        }
    }

    /// Waits until the kernel has the time of the last write to `ino`, as the module says, and returns whether it
    /// lacks none. Otherwise the kernel must not cache the attributes of the answer, because it would not ask for the
    /// time again.
    pub(crate) fn wait_until_known(self: &Arc<Self>, ino: u64) -> bool {
        let begin = Instant::now();
        let mut state = self.state.lock();
        let wanted = state.stale.get(&ino).map_or(0, |stale| stale.last);
        while state.lacks(ino, wanted) && begin.elapsed() < QUIET_WAIT {
            self.want(&mut state, ino);
            self.given.wait_until(&mut state, begin + QUIET_WAIT);
        }
        if state.lacks(ino, wanted) {
            MutexGuard::unlocked(&mut state, waiting::announce);
        }
        let (mut look, mut looks, mut before) = (begin + LOOK_EVERY, 0, None);
        while state.lacks(ino, wanted) && !state.ended && begin.elapsed() < PATIENCE {
            self.want(&mut state, ino);
            if !self.given.wait_until(&mut state, look).timed_out() {
                continue;
            }
            let progress = state.progress(ino);
            let stuck = self.is_stuck(&mut state, ino) && state.progress(ino) == progress;
            looks = if stuck && (looks == 0 || progress == before) { looks + 1 } else { u32::from(stuck) };
            (before, look) = (progress, Instant::now() + LOOK_EVERY);
            if looks >= LOOKS {
                if state.giving(ino).is_some() || !state.wants_another() && !self.may_go_on(&state, ino) {
                    break;
                }
                if state.wants_another() {
                    state = self.take_over(state);
                }
            }
        }
        let settled = !state.stale.contains_key(&ino);
        if state.lacks(ino, wanted) && state.wants_another() {
            drop(self.take_over(state));
        }
        settled
    }

    /// Has the thread give the time of a file.
    fn want(&self, state: &mut TimesState, ino: u64) {
        if let Some(stale) = state.stale.get_mut(&ino)
            && !std::mem::replace(&mut stale.urgent, true)
        {
            state.urgent.push_back(ino);
            self.wanted.notify_all();
        }
    }

    /// Whether a thread may wait for a lock on this file, if it has to.
    fn may_go_on(&self, state: &TimesState, ino: u64) -> bool {
        let gives = |giver: &Giver| giver.giving.as_ref().is_some_and(|giving| giving.ino == ino);
        let kept_up = || self.work.get().is_none_or(|(_, owner, _)| state.is_kept_up(ino, owner));
        state.givers.iter().any(gives) || state.givers.len() <= MAX_WAITING_IN_ALL && !kept_up()
    }

    /// Whether a thread that is giving this file's time, or has to be done before, waits for a lock, or there is
    /// none.
    fn is_stuck(&self, state: &mut MutexGuard<'_, TimesState>, ino: u64) -> bool {
        let Some((_, _, locked)) = self.work.get() else { return true };
        if !self.may_go_on(state, ino) {
            return true;
        }
        match state.giver_of(ino).map(|giver| (giver.thread, giver.giving.is_some())) {
            Some((thread, true)) => MutexGuard::unlocked(state, || locked(thread)),
            Some((_, false)) => false,
            None => !state.starting,
        }
    }

    /// What to do with a change of the time of `ino` to `time` (`None`: now) that has come from the thread `from`;
    /// the file has the time `now`. `alone`: it sets no access time.
    ///
    /// After a program's own change the kernel shows that time. When the kernel changes something else, as at a
    /// rename, it sends the time that it has along: that is no change.
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
            let giving = giver.giving.as_ref().filter(|g| g.ino == ino && !g.overruled && time.is_some());
            let Some(upto) = giving.map(|giving| giving.upto) else { return TimeChange::Refuse };
            let (newer, stale) = (time != now(), state.stale.get_mut(&ino));
            let written = stale.as_ref().is_some_and(|stale| stale.last > upto);
            if newer && !written {
                return TimeChange::Refuse;
            }
            if let Some(stale) = stale {
                stale.told = time;
            }
            return if newer { TimeChange::Ignore } else { TimeChange::Make };
        }
        let has = |stale: &Stale| stale.known == time || stale.told == time;
        if alone && time.is_some() && state.stale.get(&ino).is_some_and(has) {
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
        self.given.notify_all();
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
        let (_, owner, _) = self.work.get()?;
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
        let Some((give, ..)) = self.work.get() else { return };
        let upto = state.stale.get(&ino).map_or(0, |stale| stale.last);
        if let Some(giver) = state.giver(me) {
            giver.giving = Some(Giving { ino, upto, since: Instant::now(), overruled: false });
        }
        let given = MutexGuard::unlocked(state, || give(unshared, ino));
        if let Some(giver) = state.giver(me) {
            giver.giving = None;
        }
        // Cancelled: there is a newer time, and the next round gives that. After other errors nothing can
        // be done: as a rule the kernel has forgotten the file, and with it what it had of its times.
        let cancelled = given.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ECANCELED));
        match state.stale.get_mut(&ino) {
            Some(stale) if stale.last > upto || cancelled => {
                stale.urgent = false;
                if given.is_ok() {
                    (stale.given, stale.known) = (upto, stale.told.take().or(stale.known));
                }
            }
            _ => _ = state.stale.remove(&ino),
        }
        self.given.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use super::*;

    const FILE: u64 = 7;
    const LOCKED: u64 = 8;

    fn time(secs: i64) -> Option<Time> {
        Some(Time { secs, nanos: 0 })
    }

    /// The machine may be busy: the thread that gives times gets no CPU for as long as that lasts.
    #[test]
    fn who_asks_for_a_time_waits_for_a_thread_that_is_only_slow() {
        let times = Arc::new(Times::default());
        let give = |_: &UnsharedFiles, _| {
            thread::sleep(Duration::from_millis(400));
            Ok(())
        };
        times.start(give, |_| None, |_| false).unwrap();
        thread::scope(|s| {
            for ino in [FILE, FILE + 1] {
                times.wrote(ino, None);
                s.spawn({
                    let times = &times;
                    move || assert!(times.wait_until_known(ino), "an old time was told")
                });
            }
        });
        times.end();
    }

    /// A lock may be held until the question is answered. Others need not wait for it.
    #[test]
    fn nobody_waits_long_for_a_thread_that_waits_for_a_lock() {
        let times = Arc::new(Times::default());
        let gate = Arc::new((Mutex::new(true), Condvar::new()));
        let of_giver = gate.clone();
        let give = move |_: &UnsharedFiles, ino| {
            if ino == LOCKED {
                of_giver.1.wait_while(&mut of_giver.0.lock(), |closed| *closed);
            }
            Ok(())
        };
        times.start(give, |_| None, |_| true).unwrap();
        times.wrote(LOCKED, None);
        let begin = Instant::now();
        assert!(!times.wait_until_known(LOCKED));
        assert!(begin.elapsed() < PATIENCE, "an answer waited for a lock");
        times.wrote(FILE, None);
        let known = times.wait_until_known(FILE);
        *gate.0.lock() = false;
        gate.1.notify_all();
        assert!(known, "the time of another file was not told");
        times.end();
    }

    /// What the thread changes: the time of a later write is not replaced, but the kernel gets the earlier one; a
    /// time that a program sets stays.
    #[test]
    fn the_time_of_an_earlier_write_is_told_but_replaces_nothing() {
        let times = Arc::new(Times::default());
        let (seen, of_giver) = (Arc::new(Mutex::new(Vec::new())), times.clone());
        let of_test = seen.clone();
        let give = move |_: &UnsharedFiles, ino| {
            let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let round = of_test.lock().len();
            match round {
                // Another write.
                0 => of_giver.wrote(ino, time(1)),
                // A program sets the time.
                1 => assert_eq!(of_giver.change(ino, 1, (time(9), true), || time(2)), TimeChange::Make),
                _ => {}
            }
            let change = of_giver.change(ino, me, (time(1), true), || time(2));
            of_test.lock().push((change, of_giver.lacks(ino, me)));
            match change {
                TimeChange::Refuse => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                _ => Ok(()),
            }
        };
        times.start(give, |_| None, |_| false).unwrap();
        times.wrote(FILE, time(0));
        // The kernel has the time of what was written before the question, but not the last one.
        assert!(!times.wait_until_known(FILE));
        assert_eq!(times.change(FILE, 1, (time(1), true), || time(2)), TimeChange::Ignore, "a report of it");
        assert!(times.is_stale(FILE));
        assert!(times.wait_until_known(FILE));
        times.end();
        assert_eq!(*seen.lock(), [(TimeChange::Ignore, true), (TimeChange::Refuse, false)]);
    }
}
