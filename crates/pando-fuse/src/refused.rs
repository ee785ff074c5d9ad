//! Refused pages: pages that the kernel has written out and the server could not store, mostly for lack of space.
//! The server tries again later to store them.
//!
//! The kernel reports the error once, to the program that waits for such a page, and marks the page clean: readers
//! see bytes that are stored nowhere, and the next sync finds nothing to do. A database that reads its log in this
//! state continues behind records that are lost with the mount. So the ranges of refused pages are noted here.
//! Guarantees: while a range of a file is noted, no sync of the file succeeds; a noted range is stored as soon as
//! there is space for it, with the bytes that the page cache has at that time, unless the file was changed there
//! meanwhile. The kernel may drop a page that it takes for clean. If it reads that page later, its bytes are lost:
//! such a range is noted as lost, and is not tried again with the bytes that the server itself has given. It stays
//! noted until no program has the file open, because the kernel writes whole pages, of which a program may have
//! changed one byte only. The number of noted ranges is bounded; a file with more of them cannot be synced until the
//! kernel forgets it. `writes` stores what is noted here.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use pando_fs::{Seek, waiting};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    ending::{PATIENCE_AT_END, join_within},
    transport::{Errno, Outcome},
};

/// How long between tries.
const PERIOD: Duration = Duration::from_millis(500);
/// Most bytes that are tried at once: those of a request.
const RETRY_BYTES: u64 = 1 << 20;
/// Files that are refused again in one round before it ends, a count.
const MAX_REFUSED_FILES: usize = 8;
/// Most ranges that are noted for all files, a count.
const MAX_RANGES: usize = 1 << 16;

/// Ranges of a file: ends by beginnings; none touch.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges that overlap `range`, last first.
    fn meeting(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let behind = self.0.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        behind.map(|(start, end)| *start..*end).filter(|_| !range.is_empty()).collect()
    }

    /// Whether they contain all of `range`.
    fn have(&self, range: &Range<u64>) -> bool {
        matches!(&self.meeting(range)[..], [one] if one.start <= range.start && range.end <= one.end)
    }

    fn remove(&mut self, range: &Range<u64>) {
        for Range { start, end } in self.meeting(range) {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    fn add(&mut self, range: &Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        let behind = self.0.range(..=end).rev().take_while(|(_, end)| **end >= start);
        let touching: Vec<_> = behind.map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touching {
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    /// The range that contains `at`, or else the next one.
    fn next(&self, at: u64) -> Option<Range<u64>> {
        let around = self.0.range(..=at).next_back().filter(|(_, end)| **end > at);
        around.or_else(|| self.0.range(at..).next()).map(|(start, end)| *start..*end)
    }

    fn first(&self) -> Option<Range<u64>> {
        let (start, end) = self.0.first_key_value()?;
        Some(*start..*end.min(&(start + RETRY_BYTES)))
    }
}

/// What was refused of a file.
#[derive(Debug)]
struct RefusedFile {
    /// Ranges whose pages the kernel may still have.
    kept: Ranges,
    /// Ranges whose pages it has dropped.
    gone: Ranges,
    /// Counts changes of the file since the first range was noted.
    changes: u64,
    /// The error of the last refusal.
    errno: i32,
    /// The bound was reached, so not all ranges are noted.
    lost: bool,
    /// Ranges of all files, a count.
    all: Arc<AtomicUsize>,
}

impl RefusedFile {
    fn new(all: Arc<AtomicUsize>) -> Self {
        let (kept, gone) = (Ranges::default(), Ranges::default());
        Self { kept, gone, changes: 0, errno: 0, lost: false, all }
    }

    fn is_empty(&self) -> bool {
        self.gone.is_empty() && !self.waits()
    }

    /// Whether a noted range waits to be stored.
    fn waits(&self) -> bool {
        !self.kept.is_empty() || self.lost
    }

    fn len(&self) -> usize {
        self.kept.0.len() + self.gone.0.len()
    }

    /// Changes the noted ranges, and their count.
    fn note(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.len();
        change(self);
        match self.len() {
            now if now < before => self.all.fetch_sub(before - now, Ordering::Relaxed),
            now => self.all.fetch_add(now - before, Ordering::Relaxed),
        };
    }

    /// Drops the notes of a range.
    fn remove(&mut self, range: &Range<u64>) {
        self.note(|file| {
            file.kept.remove(range);
            file.gone.remove(range);
        });
        self.lost &= *range != (0..u64::MAX);
    }

    fn has_room(&self) -> bool {
        self.all.load(Ordering::Relaxed) < MAX_RANGES
    }

    /// Notes that the kernel's pages of a range are stored, also those parts that the server had given to the kernel.
    fn stored(&mut self, range: &Range<u64>) {
        self.note(|file| file.kept.remove(range));
    }

    /// Notes that the kernel reads a range, so it has no pages of it.
    fn asked_for(&mut self, range: &Range<u64>) {
        for met in self.kept.meeting(range) {
            let part = met.start.max(range.start)..met.end.min(range.end);
            let has_room = self.has_room();
            self.note(|file| {
                file.kept.remove(&part);
                if has_room {
                    file.gone.add(&part);
                }
            });
            self.lost |= !has_room;
        }
    }

    /// The error of a sync, if there is one.
    fn why(&self) -> Option<Errno> {
        match (self.gone.is_empty(), self.waits()) {
            // More space would not bring those bytes back.
            (false, _) => Some(Errno(libc::EIO)),
            (true, true) => Some(Errno(self.errno)),
            (true, false) => None,
        }
    }
}

impl Drop for RefusedFile {
    fn drop(&mut self) {
        self.all.fetch_sub(self.len(), Ordering::Relaxed);
    }
}

type NotedFile = Arc<Mutex<RefusedFile>>;

/// The lock of the file, for a thread that reads requests: another thread that holds it may be waiting for space.
fn held(file: &NotedFile) -> MutexGuard<'_, RefusedFile> {
    waiting::take(|| file.try_lock(), || file.lock())
}

/// What was refused, by file.
#[derive(Default)]
pub(crate) struct Refused {
    files: Mutex<HashMap<u64, NotedFile>>,
    /// How many files there are, to be read without a lock.
    count: AtomicUsize,
    /// Ranges of all files, a count.
    ranges: Arc<AtomicUsize>,
    /// The least inode number with which the next round begins.
    next: AtomicU64,
    /// Files with refused pages since the last [`Refused::take_untold`].
    untold: Mutex<HashSet<u64>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
    sleeping: Mutex<()>,
    wake: Condvar,
}

impl Refused {
    fn of(&self, ino: u64) -> Option<NotedFile> {
        if self.any() { self.files.lock().get(&ino).cloned() } else { None }
    }

    /// Whether something is noted.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// How many files have pages that are stored nowhere.
    pub(crate) fn count(&self) -> usize {
        self.unstored().len()
    }

    /// The files with pages that are stored nowhere.
    pub(crate) fn unstored(&self) -> Vec<u64> {
        if !self.any() {
            return Vec::new();
        }
        let files: Vec<_> = self.files.lock().iter().map(|(ino, file)| (*ino, file.clone())).collect();
        files.iter().filter(|(_, file)| !file.lock().is_empty()).map(|(ino, _)| *ino).collect()
    }

    /// Runs a change of a file while no range of the file is tried again; if the change succeeds, the notes of `range`
    /// are dropped. Costs a load while nothing is refused.
    pub(crate) fn around<T>(&self, ino: u64, range: Range<u64>, work: impl FnOnce() -> T) -> T
    where
        T: Succeeds,
    {
        let Some(file) = self.of(ino) else { return work() };
        let mut file = held(&file);
        let outcome = work();
        file.changes += 1;
        if outcome.succeeds() {
            file.remove(&range);
        }
        outcome
    }

    /// As [`Refused::around`], for a write at `offset`: the notes of the bytes that it has stored are dropped. If it
    /// wrote pages of the kernel (`of_pages`) that the kernel had dropped before, their notes stay.
    pub(crate) fn around_part<N, E>(
        &self,
        ino: u64,
        offset: u64,
        of_pages: bool,
        work: impl FnOnce() -> Result<N, E>,
    ) -> Result<N, E>
    where
        N: Copy + Into<u64>,
    {
        let Some(file) = self.of(ino) else { return work() };
        let mut file = held(&file);
        let outcome = work();
        file.changes += 1;
        if let Ok(stored) = &outcome {
            let range = offset..offset.saturating_add((*stored).into());
            if of_pages { file.stored(&range) } else { file.remove(&range) }
        }
        outcome
    }

    /// Notes that the kernel reads pages, so it has dropped the refused ones in this range.
    pub(crate) fn asked_for(&self, ino: u64, range: &Range<u64>) {
        if let Some(file) = self.of(ino) {
            held(&file).asked_for(range);
        }
    }

    /// A file was closed: `is_open` says whether another program still has it open. If none has, the notes of lost
    /// ranges are dropped: each program that had the file open was told at a sync or at its close.
    pub(crate) fn closed(&self, ino: u64, is_open: impl FnOnce() -> bool) {
        let Some(file) = self.of(ino) else { return };
        let mut file = held(&file);
        if !is_open() {
            file.note(|file| file.gone = Ranges::default());
        }
    }

    /// The kernel may have forgotten a file, with all its pages: `is_known` says whether it still knows it.
    pub(crate) fn forgotten(&self, ino: u64, is_known: impl FnOnce() -> bool) {
        let Some(file) = self.of(ino) else { return };
        // Held while `is_known` runs, so that no range is noted of a file that the kernel looks up in between.
        let mut file = held(&file);
        if !is_known() {
            file.changes += 1;
            file.remove(&(0..u64::MAX));
        }
    }

    /// The error because of which a range of the file waits to be stored, if one does.
    pub(crate) fn why_it_waits(&self, ino: u64) -> Option<Errno> {
        let file = self.of(ino)?;
        let file = held(&file);
        file.waits().then_some(Errno(file.errno))
    }

    /// Where data, or a hole, is next in a file, if `stored` says that of what is stored: pages that wait to be stored
    /// are data, which a program would leave out of a copy otherwise. If not all of them are noted, the error of the
    /// last refusal.
    pub(crate) fn seek(
        &self,
        ino: u64,
        offset: u64,
        what: Seek,
        stored: impl Fn(u64, Seek) -> Outcome<u64>,
    ) -> Outcome<u64> {
        let file = self.of(ino);
        if let Some(file) = file.as_ref().map(held).filter(|file| file.lost) {
            return Err(Errno(file.errno));
        }
        // The lock is not held while something is read.
        let behind = |at: u64| file.as_ref().and_then(|file| held(file).kept.next(at));
        // What is stored may end before them.
        let stored = |at: u64, what: Seek| match stored(at, what) {
            Err(Errno(libc::ENXIO)) => Ok(None),
            other => other.map(Some),
        };
        let none = Errno(libc::ENXIO);
        if what == Seek::Data {
            let waits = behind(offset).map(|range| range.start.max(offset));
            return stored(offset, what)?.into_iter().chain(waits).min().ok_or(none);
        }
        let mut at = offset;
        loop {
            let hole = match stored(at, what)? {
                Some(hole) => hole,
                None if at > offset || behind(at).is_some() => at,
                None => return Err(none),
            };
            match behind(hole).filter(|range| range.contains(&hole)) {
                Some(range) => at = range.end,
                None => return Ok(hole),
            }
        }
    }

    /// Whether a range of the file may wait to be stored. Takes no lock that a slow call holds.
    pub(crate) fn may_wait(&self, ino: u64) -> bool {
        self.of(ino).is_some_and(|file| file.try_lock().is_none_or(|file| file.waits()))
    }

    /// Error if a range of the file is stored nowhere; that range is tried again soon.
    pub(crate) fn may_sync(&self, ino: u64) -> Outcome<()> {
        match self.of(ino).and_then(|file| held(&file).why()) {
            None => Ok(()),
            Some(e) => {
                self.wake.notify_all();
                Err(e)
            }
        }
    }

    pub(crate) fn note(&self, ino: u64, range: &Range<u64>, errno: i32) {
        let file = {
            let mut files = self.files.lock();
            let new = || Arc::new(Mutex::new(RefusedFile::new(self.ranges.clone())));
            let file = files.entry(ino).or_insert_with(new).clone();
            self.count.store(files.len(), Ordering::Release);
            file
        };
        let mut file = held(&file);
        file.errno = errno;
        if self.untold.lock().insert(ino) && !file.waits() {
            self.wake.notify_all();
        }
        let has_room = file.has_room();
        file.note(|file| {
            if has_room {
                file.kept.add(range);
            }
        });
        file.lost |= !has_room;
    }

    /// Files with refused pages since the last call. The kernel has to ask for their attributes before the next write,
    /// so that the writer is told.
    pub(crate) fn take_untold(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.untold.lock())
    }

    /// Tries to store all noted ranges: `read` returns the bytes of a range of a file, `write` stores them.
    pub(crate) fn round(
        &self,
        mut read: impl FnMut(u64, &Range<u64>) -> io::Result<Vec<u8>>,
        mut write: impl FnMut(u64, u64, &[u8]) -> Outcome<()>,
    ) {
        let mut files: Vec<_> = self.files.lock().iter().map(|(ino, file)| (*ino, file.clone())).collect();
        // Each round goes on where the one before was given up, so that files for which there is no space do not keep
        // the others from their turn.
        files.sort_unstable_by_key(|(ino, _)| *ino);
        let next = self.next.load(Ordering::Relaxed);
        let at = files.partition_point(|(ino, _)| *ino < next);
        files.rotate_left(at);
        let mut refusals = 0;
        for (ino, file) in files {
            while !self.ended.load(Ordering::Relaxed) {
                let (next, changes) = {
                    let file = file.lock();
                    (file.kept.first(), file.changes)
                };
                let Some(range) = next else { break };
                let data = match read(ino, &range) {
                    Ok(data) => data,
                    Err(e) => {
                        // The kernel has forgotten the file, with all its pages.
                        if e.raw_os_error() == Some(libc::ESTALE) {
                            file.lock().remove(&(0..u64::MAX));
                        }
                        break;
                    }
                };
                let mut file = file.lock();
                if file.changes != changes {
                    break; // what was read may be old
                }
                if !file.kept.have(&range) {
                    continue; // and so it is where it was read from what is stored
                }
                match if data.is_empty() { Ok(()) } else { write(ino, range.start, &data) } {
                    Ok(()) => file.stored(&range),
                    Err(Errno(libc::ESTALE)) => file.remove(&(0..u64::MAX)),
                    Err(Errno(errno)) => {
                        file.errno = errno;
                        refusals += 1;
                        break;
                    }
                }
            }
            if refusals == MAX_REFUSED_FILES {
                self.next.store(ino + 1, Ordering::Relaxed);
                break;
            }
        }
    }

    /// Drops files without notes that no other thread works on; whether files are left.
    fn tidy(&self) -> bool {
        let mut files = self.files.lock();
        files.retain(|_, file| Arc::strong_count(file) > 1 || !file.lock().is_empty());
        self.count.store(files.len(), Ordering::Release);
        !files.is_empty()
    }

    /// Starts the thread that tries ranges again, unless there is one or the mount ends.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) {
        let mut thread = self.thread.lock();
        if self.ended.load(Ordering::Relaxed) || thread.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        match std::thread::Builder::new().name("pando-again".into()).spawn(work) {
            Ok(started) => *thread = Some(started),
            Err(e) => log::error!("no thread for pages that did not fit: {e}"),
        }
    }

    /// Waits until it is time to try again; false at the end.
    pub(crate) fn wait(&self) -> bool {
        self.wake.wait_for(&mut self.sleeping.lock(), PERIOD);
        !self.ended.load(Ordering::Relaxed)
    }

    /// Whether the thread may end, because nothing is left. A range that is noted later starts another thread.
    pub(crate) fn is_done(&self) -> bool {
        let mut thread = self.thread.lock();
        let done = !self.tidy();
        if done {
            *thread = None;
        }
        done
    }

    /// Ends the thread, and waits for its end as `ending` says.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        self.wake.notify_all();
        join_within(PATIENCE_AT_END, "pages that did not fit", thread);
    }
}

/// A result that may be an error.
pub(crate) trait Succeeds {
    /// True if it is no error.
    fn succeeds(&self) -> bool;
}

impl<T, E> Succeeds for Result<T, E> {
    fn succeeds(&self) -> bool {
        self.is_ok()
    }
}

#[cfg(test)]
mod tests;
