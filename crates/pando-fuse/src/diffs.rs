//! Differences that are being sent to tools, and their encoding; and other long answers in the same way.
//!
//! A difference may be as long as two trees, so it is sent in pieces: it belongs to the open file on which it was
//! requested, each request returns the next piece, and closing the file ends it. A thread of its own computes the
//! difference, one piece ahead of the requests. So no request lasts longer than [`TURN`], however much of both trees
//! is equal: this matters because the kernel waits for an answer even if the caller was killed. Each user may have
//! few differences, because each holds the space of everything that is deleted meanwhile. One ends by itself
//! ([`Diffs::end_idle`]) if no piece is taken for a minute, if its pieces are taken very slowly, and after a day
//! ([`DIFF_PATIENCE`]). A difference that was ended stops at the end of the page that
//! it reads; until then its thread counts for its user. So memory, threads and snapshots are bounded in number and in
//! time.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pando_fs::{Aspects, ChangeKind, FileChange, FileKind, OriginFile, TreeDiff};
use parking_lot::{Condvar, Mutex};

use crate::{
    content,
    ending::{PATIENCE_AT_END, join_within},
};

/// Differences of one user at a time, a count; a further one ends the oldest.
const MAX_DIFFS_OF_USER: usize = 8;
/// Differences of all users at a time, a count. Beyond it the user with most loses one to a user with fewer.
const MAX_DIFFS: usize = 64;
/// Root may have so many besides, a count.
const MAX_DIFFS_OF_ROOT: usize = MAX_DIFFS_OF_USER;
/// Threads of one user at a time, a count, with those of differences that were ended and have not noticed yet.
const MAX_DIFF_THREADS_OF_USER: usize = 2 * MAX_DIFFS_OF_USER;
/// Threads of all users but root at a time, a count.
const MAX_DIFF_THREADS: usize = 2 * MAX_DIFFS;

/// How long the server waits for who takes the pieces of a difference.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// For each request; and for all of them, besides what `bytes_per_second` allows.
    idle: Duration,
    /// The bytes that were taken allow a second of waiting each time.
    bytes_per_second: u64,
    /// From the beginning to the end, whoever waits for whom.
    lifetime: Duration,
}

/// `pando diff` takes all pieces at once, and stays far within these.
pub(crate) const DIFF_PATIENCE: Patience = Patience {
    idle: Duration::from_secs(60),
    bytes_per_second: 64 << 10,
    lifetime: Duration::from_secs(24 * 60 * 60),
};

/// How long one request waits for differences: then there may be fewer bytes than fit, and none perhaps.
const TURN: Duration = Duration::from_millis(200);
/// Bytes of a difference before its paths and ranges.
const HEAD_BYTES: usize = 4 + 1 + 1 + 2 + 8 + 8 + 4 + 4;

/// Bytes that are computed ahead of requests.
const AHEAD_BYTES: usize = 128 << 10;

/// A difference under way. When it is dropped, the thread ends that looks for what differs.
struct DiffSession {
    uid: u32,
    begun: Instant,
    /// When the last request for it ended.
    used: Instant,
    /// How long it has waited for requests before that.
    waited: Duration,
    /// The bytes that were taken.
    taken: u64,
    told: Arc<DiffProgress>,
}

impl DiffSession {
    fn new(uid: u32, told: Arc<DiffProgress>) -> Self {
        let now = Instant::now();
        Self { uid, begun: now, used: now, waited: Duration::ZERO, taken: 0, told }
    }

    /// How long it is kept if no request comes; nothing if it is over.
    fn time_left(&self, patience: &Patience) -> Duration {
        let idle = self.used.elapsed();
        let allowed = patience.idle + Duration::from_secs(self.taken / patience.bytes_per_second);
        let left = [
            patience.idle.saturating_sub(idle),
            allowed.saturating_sub(self.waited + idle),
            patience.lifetime.saturating_sub(self.begun.elapsed()),
        ];
        left.into_iter().min().unwrap_or_default()
    }

    fn is_over(&self, patience: &Patience) -> bool {
        self.time_left(patience).is_zero()
    }
}

impl Drop for DiffSession {
    fn drop(&mut self) {
        self.told.stop.store(true, Ordering::Relaxed);
        // A thread that read the flag before it was set waits by now.
        drop(self.told.found.lock());
        self.told.moved.notify_all();
    }
}

/// What was found and how far it was told.
struct DiffProgress {
    found: Mutex<FoundBytes>,
    moved: Condvar,
    /// The difference is not wanted any more.
    stop: Arc<AtomicBool>,
}

#[derive(Default)]
struct FoundBytes {
    bytes: VecDeque<u8>,
    /// The bytes that a request waits for.
    wanted: usize,
    /// Nothing more will be found, or why not.
    ended: Option<pando_fs::Result<()>>,
}

/// A piece of a difference.
pub(crate) struct Piece {
    pub bytes: Vec<u8>,
    /// Nothing follows.
    pub last: bool,
}

/// The differences under way, by the inode and handle that they were asked on.
#[derive(Default)]
pub(crate) struct Diffs {
    sessions: Mutex<HashMap<(u64, u64), DiffSession>>,
    /// How many, so that closing other files costs nothing.
    count: AtomicUsize,
    /// The threads that compute differences, and for whom; some have ended.
    threads: Mutex<Vec<(u32, JoinHandle<()>)>>,
}

impl Diffs {
    /// Begins to tell a difference; false if too many are under way.
    pub(crate) fn begin(&self, uid: u32, on: (u64, u64), diff: TreeDiff) -> bool {
        let stop = diff.stop();
        self.begin_encoded(uid, on, diff.map(|change| Ok(encode(&change?))), stop)
    }

    /// Begins to tell the content of a file; false if too much is under way.
    pub(crate) fn begin_content(&self, uid: u32, on: (u64, u64), file: OriginFile) -> bool {
        let (stop, size) = (file.stop(), file.size());
        let pieces = file.map(|piece| piece.map(|(at, bytes)| content::encode(at, &bytes)));
        self.begin_encoded(uid, on, std::iter::once(Ok(content::encode_size(size))).chain(pieces), stop)
    }

    /// Begins to tell what a thread takes from `all`, which ends when `stop` is set; false if too much is under way.
    fn begin_encoded(
        &self,
        uid: u32,
        on: (u64, u64),
        all: impl Iterator<Item = pando_fs::Result<Vec<u8>>> + Send + 'static,
        stop: Arc<AtomicBool>,
    ) -> bool {
        let told = DiffProgress::new(FoundBytes::default(), stop);
        if !self.has_thread_for(uid) || !self.begin_told(uid, on, told.clone()) {
            return false;
        }
        let thread = std::thread::Builder::new().name("pando-diff".into());
        match thread.spawn(move || Finds(&told).find(all)) {
            Ok(thread) => {
                self.threads.lock().push((uid, thread));
                true
            }
            Err(e) => {
                log::error!("no thread for a difference: {e}");
                self.closed(on.0, on.1);
                false
            }
        }
    }

    /// Whether the user may have one more thread. Those of ended differences run until the device has given them the
    /// page that they read.
    fn has_thread_for(&self, uid: u32) -> bool {
        let mut threads = self.threads.lock();
        threads.retain(|(_, thread)| !thread.is_finished());
        let of_user = threads.iter().filter(|(of, _)| *of == uid).count();
        let of_others = threads.iter().filter(|(of, _)| *of != 0).count();
        of_user < MAX_DIFF_THREADS_OF_USER && (uid == 0 || of_others < MAX_DIFF_THREADS)
    }

    /// Begins to tell these bytes; false if too much is under way.
    pub(crate) fn begin_bytes(&self, uid: u32, on: (u64, u64), bytes: Vec<u8>) -> bool {
        let found = FoundBytes { bytes: bytes.into(), wanted: 0, ended: Some(Ok(())) };
        self.begin_told(uid, on, DiffProgress::new(found, Arc::default()))
    }

    fn begin_told(&self, uid: u32, on: (u64, u64), told: Arc<DiffProgress>) -> bool {
        let session = DiffSession::new(uid, told);
        let mut sessions = self.sessions.lock();
        // Ended when the lock is free, which closing a file takes.
        let mut gone: Vec<DiffSession> =
            sessions.extract_if(|at, s| *at == on || s.is_over(&DIFF_PATIENCE)).map(|(_, s)| s).collect();
        let of_user = |uid: u32| sessions.iter().filter(move |(_, s)| s.uid == uid);
        let most = if uid == 0 { MAX_DIFFS + MAX_DIFFS_OF_ROOT } else { MAX_DIFFS };
        let goes = if of_user(uid).count() >= MAX_DIFFS_OF_USER {
            Some(uid)
        } else if sessions.len() >= most {
            let counts = sessions.values().map(|s| (of_user(s.uid).count(), s.uid));
            counts.max().filter(|(count, _)| *count > of_user(uid).count() + 1).map(|(_, uid)| uid)
        } else {
            None
        };
        let oldest = goes.and_then(|uid| of_user(uid).min_by_key(|(_, s)| s.used).map(|(on, _)| *on));
        gone.extend(oldest.and_then(|on| sessions.remove(&on)));
        let room = sessions.len() < most;
        match room {
            true => _ = sessions.insert(on, session),
            false => gone.push(session),
        }
        self.count.store(sessions.len(), Ordering::Release);
        drop(sessions);
        drop(gone);
        room
    }

    /// The next piece, of at most so many bytes, in a [`TURN`] at most. `None` if none is under way.
    pub(crate) fn next(&self, uid: u32, on: (u64, u64), room: usize) -> Option<pando_fs::Result<Piece>> {
        let told = {
            let mut sessions = self.sessions.lock();
            let session = sessions.get_mut(&on).filter(|s| s.uid == uid && !s.is_over(&DIFF_PATIENCE))?;
            session.waited += session.used.elapsed();
            session.used = Instant::now();
            session.told.clone()
        };
        let piece = told.next(room)?;
        match &piece {
            Ok(piece) if !piece.last => {
                if let Some(session) = self.sessions.lock().get_mut(&on) {
                    session.used = Instant::now();
                    session.taken += piece.bytes.len() as u64;
                }
            }
            _ => self.closed(on.0, on.1),
        }
        Some(piece)
    }

    /// Ends all, and waits for the threads as `ending` says.
    pub(crate) fn end(&self) {
        let gone = std::mem::take(&mut *self.sessions.lock());
        self.count.store(0, Ordering::Release);
        drop(gone);
        let threads = std::mem::take(&mut *self.threads.lock()).into_iter().map(|(_, thread)| thread);
        join_within(PATIENCE_AT_END, "differences", threads);
    }

    /// Ends those that have waited too long for requests, and gives the time after which there may be more to end;
    /// `None` if none is left.
    pub(crate) fn end_idle(&self, patience: &Patience) -> Option<Duration> {
        let mut sessions = self.sessions.lock();
        let gone: Vec<DiffSession> =
            sessions.extract_if(|_, s| s.is_over(patience)).map(|(_, s)| s).collect();
        self.count.store(sessions.len(), Ordering::Release);
        let left = sessions.values().map(|s| s.time_left(patience)).min();
        drop(sessions);
        drop(gone);
        left
    }

    /// A file was closed.
    pub(crate) fn closed(&self, ino: u64, handle: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut sessions = self.sessions.lock();
            let gone = sessions.remove(&(ino, handle));
            self.count.store(sessions.len(), Ordering::Release);
            drop(sessions);
            drop(gone);
        }
    }
}

impl DiffProgress {
    fn new(found: FoundBytes, stop: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self { found: Mutex::new(found), moved: Condvar::new(), stop })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What was found, or will be in this turn; `None` if it has ended meanwhile.
    fn next(&self, room: usize) -> Option<pando_fs::Result<Piece>> {
        let mut found = self.found.lock();
        found.wanted = room;
        let waits =
            |found: &mut FoundBytes| found.ended.is_none() && found.bytes.len() < room && !self.is_stopped();
        self.moved.wait_while_for(&mut found, waits, TURN);
        if self.is_stopped() {
            return None;
        }
        let take = room.min(found.bytes.len());
        let bytes: Vec<u8> = found.bytes.drain(..take).collect();
        self.moved.notify_all();
        if !bytes.is_empty() {
            let last = found.bytes.is_empty() && matches!(found.ended, Some(Ok(())));
            return Some(Ok(Piece { bytes, last }));
        }
        match found.ended.take() {
            Some(Err(e)) => Some(Err(e)),
            ended => {
                let last = ended.is_some();
                found.ended = ended;
                Some(Ok(Piece { bytes, last }))
            }
        }
    }
}

/// Looks for what differs. When it is dropped, nothing more will be found.
struct Finds<'a>(&'a DiffProgress);

impl Finds<'_> {
    fn find(self, mut all: impl Iterator<Item = pando_fs::Result<Vec<u8>>>) {
        let ended = loop {
            let next = match all.next() {
                Some(Ok(next)) => next,
                Some(Err(e)) => break Err(e),
                None => break Ok(()),
            };
            let mut found = self.0.found.lock();
            found.bytes.extend(next);
            if found.bytes.len() >= found.wanted {
                self.0.moved.notify_all();
            }
            let waits = |found: &mut FoundBytes| {
                found.bytes.len() >= found.wanted.max(AHEAD_BYTES) && !self.0.is_stopped()
            };
            self.0.moved.wait_while(&mut found, waits);
        };
        // The snapshot is dropped before the end is sent.
        drop(all);
        self.0.found.lock().ended = Some(ended);
    }
}

impl Drop for Finds<'_> {
    fn drop(&mut self) {
        let panicked = || Err(pando_fs::Error::Unsupported("a difference that a panic has ended"));
        self.0.found.lock().ended.get_or_insert_with(panicked);
        self.0.moved.notify_all();
    }
}

const CHANGE_KINDS: [ChangeKind; 5] = [
    ChangeKind::Added,
    ChangeKind::Removed,
    ChangeKind::Modified,
    ChangeKind::Renamed,
    ChangeKind::Unreadable,
];

const FILES: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::CharDevice,
    FileKind::BlockDevice,
    FileKind::Fifo,
    FileKind::Socket,
];

fn place_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).unwrap_or(all.len()) as u8
}

/// A difference as bytes: how many follow (u32), kind, kind of file, aspects (u16), sizes (u64), bytes of the path and
/// of the former path (u32; all bits set if there is none), the paths, then ranges.
fn encode(change: &FileChange) -> Vec<u8> {
    let from = change.from.as_deref().map(OsStr::as_bytes);
    let path = change.path.as_bytes();
    let mut out = vec![0; 4];
    out.extend([place_of(&CHANGE_KINDS, &change.kind), place_of(&FILES, &change.file)]);
    out.extend(change.aspects.0.to_le_bytes());
    out.extend(change.size_before.to_le_bytes());
    out.extend(change.size_after.to_le_bytes());
    out.extend((path.len() as u32).to_le_bytes());
    out.extend(from.map_or(u32::MAX, |from| from.len() as u32).to_le_bytes());
    out.extend(path);
    out.extend(from.unwrap_or_default());
    for (from, to) in &change.ranges {
        out.extend(from.to_le_bytes());
        out.extend(to.to_le_bytes());
    }
    let len = (out.len() as u32).to_le_bytes();
    out.splice(..4, len);
    out
}

/// Differences read from pieces.
#[derive(Default)]
pub(crate) struct DiffDecoder {
    bytes: Vec<u8>,
    at: usize,
}

impl DiffDecoder {
    /// Takes a piece in.
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(piece);
    }

    /// True if no part of a difference is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next difference: `Ok(None)` if the rest of it is still to come, an error if the bytes make no sense.
    pub(crate) fn next(&mut self) -> Result<Option<FileChange>, ()> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(len) = rest.first_chunk::<4>().map(|len| u32::from_le_bytes(*len) as usize) else {
            return Ok(None);
        };
        if len < HEAD_BYTES {
            return Err(());
        }
        let Some(record) = rest.get(..len) else { return Ok(None) };
        let change = decode(record).ok_or(())?;
        self.at += len;
        Ok(Some(change))
    }
}

fn decode(record: &[u8]) -> Option<FileChange> {
    let mut rest = record.get(4..)?;
    let mut take = |n: usize| -> Option<&[u8]> {
        let (head, tail) = rest.split_at_checked(n)?;
        rest = tail;
        Some(head)
    };
    let [kind, file] = take(2)?.try_into().ok()?;
    let aspects = Aspects(u16::from_le_bytes(take(2)?.try_into().ok()?));
    let size_before = u64::from_le_bytes(take(8)?.try_into().ok()?);
    let size_after = u64::from_le_bytes(take(8)?.try_into().ok()?);
    let path_len = u32::from_le_bytes(take(4)?.try_into().ok()?) as usize;
    let from_len = u32::from_le_bytes(take(4)?.try_into().ok()?);
    let path = OsString::from_vec(take(path_len)?.to_vec());
    let from = match from_len {
        u32::MAX => None,
        len => Some(OsString::from_vec(take(len as usize)?.to_vec())),
    };
    let (pairs, []) = rest.as_chunks::<16>() else { return None };
    let number = |half: &[u8]| half.try_into().ok().map(u64::from_le_bytes);
    let ranges = pairs.iter().map(|pair| Some((number(&pair[..8])?, number(&pair[8..])?)));
    Some(FileChange {
        kind: *CHANGE_KINDS.get(usize::from(kind))?,
        file: *FILES.get(usize::from(file))?,
        path,
        from,
        aspects,
        size_before,
        size_after,
        ranges: ranges.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests;
