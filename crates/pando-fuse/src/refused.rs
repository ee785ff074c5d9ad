//! Pages that the kernel has written out and the server has refused, mostly for lack of room: they are tried again.
//!
//! The kernel tells the program that waits for such a page of the error, once, and takes the page for clean: readers
//! see what is stored nowhere, and the next sync finds nothing to do. A database that reads its log in this state goes
//! on behind records that are lost with the mount. So what was refused is noted here. Guarantees: while something of a
//! file is noted, no sync of it succeeds; what is noted is stored as soon as there is room for it, with what the page
//! cache has at that time, unless the file was changed there meanwhile. Notes are bounded; a file with more of them
//! than there is room for cannot be synced until the kernel forgets it. `writes` does what is noted here. Uses
//! `ending` and `transport`.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::{
    ending::{PATIENCE_AT_END, join_within},
    transport::{Errno, Outcome},
};

/// How long between tries.
const PERIOD: Duration = Duration::from_millis(500);
/// Most bytes that are tried at once: those of a request.
const PIECE_BYTES: u64 = 1 << 20;
/// Files that are refused again in one round before it ends, a count.
const MAX_REFUSALS: usize = 8;
/// Most ranges that are noted for all files, a count.
const MAX_RANGES: usize = 1 << 16;

/// What was refused of a file.
#[derive(Debug, Default)]
struct RefusedFile {
    /// Ends by beginnings; none touch.
    ranges: BTreeMap<u64, u64>,
    /// Counts what has changed the file since the first was noted.
    changes: u64,
    /// Why, the last time.
    errno: i32,
    /// There was no room to note more.
    lost: bool,
}

impl RefusedFile {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.lost
    }

    /// Removes a range; gives by how much the number of ranges has changed.
    fn remove(&mut self, range: &Range<u64>) -> isize {
        let before = self.ranges.len() as isize;
        let behind = self.ranges.range(..range.end).rev().take_while(|(_, end)| **end > range.start);
        let hit: Vec<_> = behind.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in hit {
            self.ranges.remove(&start);
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
        }
        self.ranges.len() as isize - before
    }

    /// Adds a range; gives by how much the number of ranges has changed.
    fn add(&mut self, range: &Range<u64>) -> isize {
        let before = self.ranges.len() as isize;
        let (mut start, mut end) = (range.start, range.end);
        let behind = self.ranges.range(..=end).rev().take_while(|(_, end)| **end >= start);
        let touching: Vec<_> = behind.map(|(s, e)| (*s, *e)).collect();
        for (s, e) in touching {
            self.ranges.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.ranges.insert(start, end);
        self.ranges.len() as isize - before
    }

    fn first(&self) -> Option<Range<u64>> {
        let (start, end) = self.ranges.first_key_value()?;
        Some(*start..*end.min(&(start + PIECE_BYTES)))
    }
}

type NotedFile = Arc<Mutex<RefusedFile>>;

/// What was refused, by file.
#[derive(Default)]
pub(crate) struct Refused {
    files: Mutex<HashMap<u64, NotedFile>>,
    /// How many files there are, to be looked at without a lock.
    count: AtomicUsize,
    ranges: AtomicUsize,
    /// Files of which something was refused since [`Refused::take_untold`].
    untold: Mutex<HashSet<u64>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
    turn: Mutex<()>,
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

    /// How many files have something that is stored nowhere.
    pub(crate) fn count(&self) -> usize {
        self.unstored().len()
    }

    /// The files that have something that is stored nowhere.
    pub(crate) fn unstored(&self) -> Vec<u64> {
        if !self.any() {
            return Vec::new();
        }
        let files: Vec<_> = self.files.lock().iter().map(|(ino, file)| (*ino, file.clone())).collect();
        files.iter().filter(|(_, file)| !file.lock().is_empty()).map(|(ino, _)| *ino).collect()
    }

    fn counted(&self, ranges: isize) {
        match ranges {
            0.. => _ = self.ranges.fetch_add(ranges as usize, Ordering::Relaxed),
            _ => _ = self.ranges.fetch_sub(ranges.unsigned_abs(), Ordering::Relaxed),
        }
    }

    /// Does what changes a file, in turn with what is tried again; if it succeeds, all of `range` is what was meant.
    /// Costs a load while nothing is refused.
    pub(crate) fn around<T>(&self, ino: u64, range: Range<u64>, work: impl FnOnce() -> T) -> T
    where
        T: Succeeds,
    {
        let Some(file) = self.of(ino) else { return work() };
        let mut file = file.lock();
        let outcome = work();
        file.changes += 1;
        if outcome.succeeds() {
            self.counted(file.remove(&range));
            file.lost &= range != (0..u64::MAX);
        }
        outcome
    }

    /// The same for a write at `offset`, of which as many bytes are what was meant as it stores.
    pub(crate) fn around_write(
        &self,
        ino: u64,
        offset: u64,
        work: impl FnOnce() -> Outcome<u32>,
    ) -> Outcome<u32> {
        let Some(file) = self.of(ino) else { return work() };
        let mut file = file.lock();
        let outcome = work();
        file.changes += 1;
        if let Ok(stored) = outcome {
            self.counted(file.remove(&(offset..offset.saturating_add(stored.into()))));
        }
        outcome
    }

    /// Why something of the file is stored nowhere, if that is so.
    pub(crate) fn why_not_stored(&self, ino: u64) -> Option<Errno> {
        let file = self.of(ino)?;
        let file = file.lock();
        (!file.is_empty()).then_some(Errno(file.errno))
    }

    /// Whether something of the file may be stored nowhere. Waits for nobody.
    pub(crate) fn may_lack(&self, ino: u64) -> bool {
        self.of(ino).is_some_and(|file| file.try_lock().is_none_or(|file| !file.is_empty()))
    }

    /// Error if something of the file is stored nowhere; then it is tried again soon.
    pub(crate) fn may_sync(&self, ino: u64) -> Outcome<()> {
        match self.why_not_stored(ino) {
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
            let file = files.entry(ino).or_default().clone();
            self.count.store(files.len(), Ordering::Release);
            file
        };
        let mut file = file.lock();
        file.errno = errno;
        if self.untold.lock().insert(ino) && file.is_empty() {
            self.wake.notify_all();
        }
        match self.ranges.load(Ordering::Relaxed) < MAX_RANGES {
            true => self.counted(file.add(range)),
            false => file.lost = true,
        }
    }

    /// Files of which the kernel is to ask for the attributes before the next write, so that the writer can be told:
    /// those of which something was refused since the last call.
    pub(crate) fn take_untold(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.untold.lock())
    }

    /// Tries all again, with what `read` gives for a range of a file and what `write` does with it.
    pub(crate) fn round(
        &self,
        mut read: impl FnMut(u64, &Range<u64>) -> io::Result<Vec<u8>>,
        mut write: impl FnMut(u64, u64, &[u8]) -> Outcome<()>,
    ) {
        let files: Vec<_> = self.files.lock().iter().map(|(ino, file)| (*ino, file.clone())).collect();
        let mut refusals = 0;
        for (ino, file) in files {
            while !self.ended.load(Ordering::Relaxed) {
                let (next, changes) = {
                    let file = file.lock();
                    (file.first(), file.changes)
                };
                let Some(range) = next else { break };
                let data = match read(ino, &range) {
                    Ok(data) => data,
                    Err(e) => {
                        // One that the kernel has forgotten, with all its pages.
                        if e.raw_os_error() == Some(libc::ESTALE) {
                            self.give_up(&mut file.lock());
                        }
                        break;
                    }
                };
                let mut file = file.lock();
                if file.changes != changes {
                    break; // what was read may be old
                }
                match if data.is_empty() { Ok(()) } else { write(ino, range.start, &data) } {
                    Ok(()) => self.counted(file.remove(&range)),
                    Err(Errno(libc::ESTALE)) => self.give_up(&mut file),
                    Err(Errno(errno)) => {
                        file.errno = errno;
                        refusals += 1;
                        break;
                    }
                }
            }
            if refusals == MAX_REFUSALS {
                break;
            }
        }
    }

    fn give_up(&self, file: &mut RefusedFile) {
        self.counted(file.remove(&(0..u64::MAX)));
        file.lost = false;
    }

    /// Drops files of which nothing is left that nobody is at; whether there are others.
    fn tidy(&self) -> bool {
        let mut files = self.files.lock();
        files.retain(|_, file| Arc::strong_count(file) > 1 || !file.lock().is_empty());
        self.count.store(files.len(), Ordering::Release);
        !files.is_empty()
    }

    /// Starts the thread that tries again, unless there is one or the mount ends.
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
        self.wake.wait_for(&mut self.turn.lock(), PERIOD);
        !self.ended.load(Ordering::Relaxed)
    }

    /// Whether the thread may end, as nothing is left. Whoever notes more from then on starts another one.
    pub(crate) fn is_done(&self) -> bool {
        let mut thread = self.thread.lock();
        let done = !self.tidy();
        if done {
            *thread = None;
        }
        done
    }

    /// Ends the thread, and waits for that as `ending` says.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().take();
        self.wake.notify_all();
        join_within(PATIENCE_AT_END, "pages that did not fit", thread);
    }
}

/// What may have failed.
pub(crate) trait Succeeds {
    /// Whether it has not.
    fn succeeds(&self) -> bool;
}

impl<T, E> Succeeds for Result<T, E> {
    fn succeeds(&self) -> bool {
        self.is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn held(refused: &Refused, ino: u64) -> Vec<(u64, u64)> {
        let file = refused.of(ino).unwrap();
        let file = file.lock();
        file.ranges.iter().map(|(start, end)| (*start, *end)).collect()
    }

    #[test]
    fn ranges_join_and_are_cut_and_the_count_is_theirs() {
        let refused = Refused::default();
        for (start, end) in [(10, 20), (30, 40), (20, 25), (50, 60)] {
            refused.note(7, &(start..end), libc::ENOSPC);
        }
        assert_eq!(held(&refused, 7), [(10, 25), (30, 40), (50, 60)]);
        let done = |range| refused.around(7, range, || Ok::<_, ()>(()));
        done(12..35).unwrap();
        assert_eq!(held(&refused, 7), [(10, 12), (35, 40), (50, 60)]);
        refused.around(7, 0..100, || Err::<(), _>(())).unwrap_err();
        assert_eq!(refused.ranges.load(Ordering::Relaxed), 3);
        done(40..u64::MAX).unwrap();
        assert_eq!(held(&refused, 7), [(10, 12), (35, 40)]);
        assert!(refused.may_sync(7) == Err(Errno(libc::ENOSPC)) && refused.may_sync(8).is_ok());
        assert_eq!(refused.count(), 1);
        done(0..u64::MAX).unwrap();
        assert!(refused.may_sync(7).is_ok() && refused.count() == 0);
        assert_eq!(refused.ranges.load(Ordering::Relaxed), 0);
        assert!(!refused.tidy());
        assert!(refused.of(7).is_none());
    }

    #[test]
    fn what_was_refused_is_stored_when_there_is_room_and_never_over_what_is_newer() {
        let refused = Refused::default();
        refused.note(1, &(0..3 << 20), libc::ENOSPC);
        refused.note(2, &(5..9), libc::ENOSPC);
        refused.note(3, &(5..9), libc::ENOSPC);
        let mut stored = Vec::new();
        let mut room = 2 << 20;
        let mut read = |ino: u64, range: &Range<u64>| match ino {
            3 => Err(io::Error::from_raw_os_error(libc::ESTALE)),
            _ => Ok(vec![ino as u8; (range.end - range.start) as usize]),
        };
        let mut write = |ino, offset, data: &[u8]| {
            if ino == 1 && room < data.len() {
                return Err(Errno(libc::EDQUOT));
            }
            room -= if ino == 1 { data.len() } else { 0 };
            stored.push((ino, offset, data.len()));
            Ok(())
        };
        refused.round(&mut read, &mut write);
        assert_eq!(refused.may_sync(1), Err(Errno(libc::EDQUOT)));
        assert!(refused.may_sync(2).is_ok() && refused.may_sync(3).is_ok());
        assert!(refused.tidy());
        stored.sort_unstable();
        assert_eq!(stored, [(1, 0, 1 << 20), (1, 1 << 20, 1 << 20), (2, 5, 4)]);
        // Others write there between the reading and the storing.
        let mut read = |ino: u64, range: &Range<u64>| {
            refused.around(ino, range.end..range.end, || Ok::<_, ()>(())).unwrap();
            Ok(vec![0; (range.end - range.start) as usize])
        };
        refused.round(&mut read, |_, _, _| panic!("what was read is old"));
        assert_eq!(held(&refused, 1), [(2 << 20, 3 << 20)]);
    }

    #[test]
    fn more_than_there_is_room_for_is_not_forgotten() {
        let refused = Refused::default();
        for i in 0..=MAX_RANGES as u64 {
            refused.note(1, &(2 * i..2 * i + 1), libc::ENOSPC);
        }
        refused.round(|_, _| Ok(vec![1]), |_, _, _| Ok(()));
        assert!(refused.may_sync(1).is_err(), "the last is stored nowhere");
        refused.round(|_, _| Err(io::ErrorKind::Other.into()), |_, _, _| Ok(()));
        assert!(refused.tidy());
        refused.around(1, 0..u64::MAX, || Ok::<_, ()>(())).unwrap();
        assert!(!refused.tidy());
    }
}
