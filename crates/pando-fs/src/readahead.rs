//! Readahead of files that are read in order: threads read the next pages into the engine's cache, with several
//! requests at a time, before a program asks for them.
//!
//! Each open file has a [`ReadStream`], which sees the positions of its reads. Two reads in order (three small ones)
//! make a run. The window of readahead is as long as the run so far, up to [`MAX_WINDOW_BYTES`], so at most as much
//! is read in vain as the program has read. Nothing is read ahead for random reads. [`crate::file_runs`] reads ahead
//! behind the end of a file.
//!
//! Guarantees: readahead never changes the result of a read, because it brings pages of the engine into memory and
//! not bytes of files; all files together have at most a stated number of bytes read ahead; no thread is left when
//! [`Readahead::stop`] returns. A read of a page that is being read ahead waits for that request (the engine does
//! this).

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use pando_db::Cursor;
use parking_lot::{Condvar, Mutex};

/// Threads that read ahead; each has one request under way.
const MAX_THREADS: usize = 4;
/// Most and least that is read ahead of a file, bytes.
const MAX_WINDOW_BYTES: u64 = 4 << 20;
const MIN_WINDOW_BYTES: u64 = 128 << 10;
/// What a thread reads ahead at once is this part (1/n) of the longest window; pieces begin at multiples of it.
const PIECE_SHARE: u64 = 4;
/// A run as long as this needs two reads, a shorter one three, bytes.
const TWO_READ_RUN_BYTES: u64 = 64 << 10;
/// How far behind or before the end of a run a read may begin, at most; it is part of the run as long as the run
/// is longer than that. The kernel's reads overtake each other, bytes.
const SLACK_BYTES: u64 = 2 << 20;

/// A piece to be read ahead.
struct ReadJob {
    cursor: Cursor,
    bytes: u64,
    whose: Whose,
}

/// For whom a piece is read ahead.
enum Whose {
    /// A stream, if what it asked for has not been given up since: its generation is the same.
    Stream(Arc<Generation>, u64),
    /// A callback that gets the key of the first pair behind the request, if there is one.
    Told(Box<dyn FnOnce(Option<Bytes>) + Send>),
}

/// Counts the times that what is to be read ahead of a file was given up.
#[derive(Debug, Default)]
struct Generation(AtomicU64);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<ReadJob>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stopped: bool,
}

/// What files and threads share.
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Bytes of all files that were asked for ahead and not read yet.
    ahead: AtomicU64,
    budget: u64,
    /// The longest window, and what a thread reads ahead at once, bytes.
    window: u64,
    piece: u64,
    /// Bytes that were asked for ahead since the start.
    total: AtomicU64,
}

/// The threads that read ahead.
pub(crate) struct Readahead {
    shared: Arc<Shared>,
}

impl Readahead {
    /// Reads ahead up to `budget` bytes for all files together; 0: nothing. Threads are started when there is
    /// something to do.
    pub(crate) fn new(budget: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let (queue, wake) = (Mutex::default(), Condvar::new());
        // Less than this is not worth a thread.
        let budget = if budget < MIN_WINDOW_BYTES { 0 } else { budget };
        let window = budget.min(MAX_WINDOW_BYTES);
        let piece = (window / PIECE_SHARE).max(MIN_WINDOW_BYTES);
        let shared = Shared { queue, wake, ahead: zero(), budget, window, piece, total: zero() };
        Self { shared: Arc::new(shared) }
    }

    /// For a file that has been opened.
    pub(crate) fn stream(&self) -> ReadStream {
        ReadStream { shared: self.shared.clone(), generation: Arc::default(), run: Mutex::default() }
    }

    /// The longest window of a file, and the most that all files together have read ahead, bytes.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.shared.window, self.shared.budget)
    }

    /// Reads `bytes` ahead from the position of `cursor`, in a thread, and then calls `told` with the key of the
    /// first pair behind, if there is one. The callback is dropped if readahead has ended.
    pub(crate) fn bring(
        &self,
        cursor: Cursor,
        bytes: u64,
        tell: impl FnOnce(Option<Bytes>) + Send + 'static,
    ) {
        self.shared.total.fetch_add(bytes, Relaxed);
        self.shared.add(ReadJob { cursor, bytes, whose: Whose::Told(Box::new(tell)) });
    }

    /// Bytes of files that were to be read ahead since the start.
    pub(crate) fn total(&self) -> u64 {
        self.shared.total.load(Relaxed)
    }

    /// Gives up what is still to be read ahead and returns when all threads have ended. Nothing is read ahead
    /// any more.
    pub(crate) fn stop(&self) {
        let (jobs, threads) = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            (std::mem::take(&mut queue.jobs), std::mem::take(&mut queue.threads))
        };
        self.shared.wake.notify_all();
        drop(jobs);
        for thread in threads {
            // A thread that panicked has printed why; what it has not read ahead is read when it is asked for.
            let _ended = thread.join();
        }
    }
}

impl Drop for Readahead {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn add(self: &Arc<Self>, job: ReadJob) {
        let mut queue = self.queue.lock();
        if queue.stopped {
            return;
        }
        queue.jobs.push_back(job);
        if queue.idle < queue.jobs.len() && queue.threads.len() < MAX_THREADS {
            let shared = self.clone();
            let spawned = thread::Builder::new().name("pando-ahead".into()).spawn(move || shared.work());
            // If no thread can be started, nothing is read ahead; the read itself continues.
            queue.threads.extend(spawned);
        }
        if queue.threads.is_empty() {
            queue.jobs.clear();
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// What a thread does until it is to stop.
    fn work(&self) {
        loop {
            let mut job = {
                let mut queue = self.queue.lock();
                loop {
                    if queue.stopped {
                        return;
                    }
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    queue.idle += 1;
                    self.wake.wait(&mut queue);
                    queue.idle -= 1;
                }
            };
            // An error is dropped: the read that needs the page meets it again, and reports it.
            match job.whose {
                Whose::Stream(current, asked) if current.0.load(Relaxed) != asked => (),
                Whose::Stream(..) => drop(job.cursor.read_ahead(job.bytes)),
                Whose::Told(tell) => {
                    let more = job.cursor.read_ahead(job.bytes).unwrap_or(false);
                    let next = more.then(|| job.cursor.next_ref().ok().flatten()).flatten();
                    tell(next.map(|(key, _)| Bytes::copy_from_slice(key)));
                }
            }
        }
    }
}

/// Where a file is read in order.
#[derive(Debug, Default)]
struct Run {
    begin: u64,
    end: u64,
    reads: u32,
    /// Up to where it was asked for ahead.
    asked: u64,
    /// Bytes that it has of [`Shared::ahead`].
    held: u64,
    /// The whole file has been read in order.
    whole: bool,
}

impl Run {
    /// Notes a read; `false` if it begins another run.
    fn note(&mut self, read: &Range<u64>) -> bool {
        let slack = (self.end - self.begin).min(SLACK_BYTES);
        let is_run = self.reads >= 2;
        let follows = match read.start {
            start if start == self.end => self.reads > 0,
            start if is_run => start + slack >= self.end && start <= self.end + slack,
            // The second one was faster.
            _ => self.reads == 1 && read.end == self.begin,
        };
        if follows {
            self.begin = self.begin.min(read.start);
            self.end = self.end.max(read.end);
            self.reads = self.reads.saturating_add(1);
        } else {
            *self = Run {
                begin: read.start,
                end: read.end,
                reads: 1,
                asked: 0,
                held: self.held,
                whole: self.whole,
            };
        }
        follows
    }

    /// What is to be read ahead now of a file of `size` bytes: up to `most` behind the run, by pieces of `piece`.
    fn wanted(&self, size: u64, most: u64, piece: u64) -> Range<u64> {
        let len = self.end - self.begin;
        if self.reads < 2 || (self.reads == 2 && len < TWO_READ_RUN_BYTES) {
            return 0..0;
        }
        let window = len.max(MIN_WINDOW_BYTES).min(most);
        let from = self.asked.max(self.end);
        let mut to = self.end.saturating_add(window).min(size);
        if to < size && window >= 2 * piece {
            to = to / piece * piece;
        }
        // Requests are not too small: a quarter of the window at once, or the rest of the file.
        if to <= from || (to < size && to - from < window / PIECE_SHARE) {
            return 0..0;
        }
        from..to
    }
}

/// What is known of the reads of an open file.
pub(crate) struct ReadStream {
    shared: Arc<Shared>,
    generation: Arc<Generation>,
    run: Mutex<Run>,
}

impl ReadStream {
    /// Notes a read of the bytes `read` of a file of `size` bytes, and has read ahead what is likely to come
    /// next. `cursor` gives the pairs of a range of bytes of the file, as they are now. Returns whether all of the file
    /// has been read in order by now, and had not been before.
    pub(crate) fn note(&self, read: Range<u64>, size: u64, cursor: impl Fn(Range<u64>) -> Cursor) -> bool {
        if self.shared.budget == 0 {
            return false;
        }
        let mut run = self.run.lock();
        if !run.note(&read) {
            self.generation.0.fetch_add(1, Relaxed);
        }
        let is_whole = run.begin == 0 && run.end >= size;
        let whole = is_whole && !std::mem::replace(&mut run.whole, is_whole);
        let (most, piece) = (self.shared.window, self.shared.piece);
        let mut wanted = run.wanted(size, most, piece);
        // Bytes that the program has read no longer count for the limit.
        let held = run.asked.saturating_sub(run.end);
        let others = self.shared.ahead.fetch_sub(run.held.saturating_sub(held), Relaxed);
        let others = others - run.held;
        run.held = held;
        let free = self.shared.budget.saturating_sub(others + held);
        if wanted.end - wanted.start > free {
            // Others have the rest: a whole piece or nothing.
            wanted.end = wanted.start.max((wanted.start + free) / piece * piece);
        }
        if wanted.is_empty() {
            return whole;
        }
        let bytes = wanted.end - wanted.start;
        run.asked = wanted.end;
        run.held = wanted.end - run.end;
        self.shared.ahead.fetch_add(run.held - held, Relaxed);
        self.shared.total.fetch_add(bytes, Relaxed);
        drop(run);
        let generation = self.generation.0.load(Relaxed);
        let mut from = wanted.start;
        while from < wanted.end {
            let to = ((from / piece + 1) * piece).min(wanted.end);
            let whose = Whose::Stream(self.generation.clone(), generation);
            self.shared.add(ReadJob { cursor: cursor(from..to), bytes: to - from, whose });
            from = to;
        }
        whole
    }
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        self.generation.0.fetch_add(1, Relaxed);
        self.shared.ahead.fetch_sub(self.run.get_mut().held, Relaxed);
    }
}

impl std::fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.run.lock().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether reads of these places make something to be read ahead, of a file of 1 GiB.
    fn asks(reads: &[(u64, u64)]) -> bool {
        let mut run = Run::default();
        reads.iter().any(|&(at, len)| {
            run.note(&(at..at + len));
            !run.wanted(1 << 30, MAX_WINDOW_BYTES, 1 << 20).is_empty()
        })
    }

    #[test]
    fn a_run_is_two_large_reads_or_three_small_ones() {
        const K: u64 = 1 << 10;
        assert!(!asks(&[(0, 128 * K)]));
        assert!(asks(&[(0, 128 * K), (128 * K, 128 * K)]));
        assert!(asks(&[(128 * K, 128 * K), (0, 128 * K)]), "the second was faster");
        assert!(!asks(&[(0, 4 * K), (4 * K, 4 * K)]));
        assert!(asks(&[(0, 4 * K), (4 * K, 4 * K), (8 * K, 4 * K)]));
        assert!(!asks(&[(0, 4 * K), (40 * K, 4 * K), (80 * K, 4 * K), (120 * K, 4 * K)]));
        assert!(!asks(&[(900 * K, 128 * K), (500 * K, 128 * K), (100 * K, 128 * K)]));
    }

    #[test]
    fn the_window_is_as_long_as_the_run_and_never_more_than_its_bound() {
        let mut run = Run::default();
        let (size, step) = (64 << 20, 128 << 10);
        for at in (0..size).step_by(step as usize) {
            assert!(run.note(&(at..at + step)) || at == 0);
            let wanted = run.wanted(size, MAX_WINDOW_BYTES, 1 << 20);
            if !wanted.is_empty() {
                assert!(wanted.start >= run.end && wanted.start >= run.asked, "once");
                assert!(
                    wanted.end - run.end <= MAX_WINDOW_BYTES.min(run.end.max(MIN_WINDOW_BYTES))
                        && wanted.end <= size
                );
                run.asked = wanted.end;
            }
        }
        assert_eq!(run.asked, size);
    }
}
