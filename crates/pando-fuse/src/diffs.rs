//! Differences that are being sent to tools, and their encoding; and other long answers in the same way.
//!
//! A difference may be as long as two trees, so it is sent in pieces: it belongs to the open file on which it was
//! requested, each request returns the next piece, and closing the file ends it. A thread of its own computes the
//! difference, one piece ahead of the requests. So no request lasts longer than [`TURN`], however much of both trees
//! is equal: this matters because the kernel waits for an answer even if the caller was killed. Each user may have
//! few differences, and one from which no piece is taken for a minute ends by itself ([`Diffs::end_idle`]), because
//! its snapshot holds the space of everything that is deleted meanwhile. A difference that was ended stops at the end
//! of the page that it reads. So memory, threads and snapshots are bounded in number and in time.

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
/// How long a difference is kept without a request for it.
pub(crate) const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// How long one request waits for differences: then there may be fewer bytes than fit, and none perhaps.
const TURN: Duration = Duration::from_millis(200);
/// Bytes of a difference before its paths and ranges.
const HEAD_BYTES: usize = 4 + 1 + 1 + 2 + 8 + 8 + 4 + 4;

/// Bytes that are computed ahead of requests.
const AHEAD_BYTES: usize = 128 << 10;

/// A difference under way. When it is dropped, the thread ends that looks for what differs.
struct DiffSession {
    uid: u32,
    used: Instant,
    told: Arc<DiffProgress>,
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
    /// The threads that compute differences; some have ended.
    threads: Mutex<Vec<JoinHandle<()>>>,
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
        if !self.begin_told(uid, on, told.clone()) {
            return false;
        }
        let thread = std::thread::Builder::new().name("pando-diff".into());
        match thread.spawn(move || Finds(&told).find(all)) {
            Ok(thread) => {
                let mut threads = self.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                true
            }
            Err(e) => {
                log::error!("no thread for a difference: {e}");
                self.closed(on.0, on.1);
                false
            }
        }
    }

    /// Begins to tell these bytes; false if too much is under way.
    pub(crate) fn begin_bytes(&self, uid: u32, on: (u64, u64), bytes: Vec<u8>) -> bool {
        let found = FoundBytes { bytes: bytes.into(), wanted: 0, ended: Some(Ok(())) };
        self.begin_told(uid, on, DiffProgress::new(found, Arc::default()))
    }

    fn begin_told(&self, uid: u32, on: (u64, u64), told: Arc<DiffProgress>) -> bool {
        let session = DiffSession { uid, used: Instant::now(), told };
        let mut sessions = self.sessions.lock();
        // Ended when the lock is free, which closing a file takes.
        let mut gone: Vec<DiffSession> = sessions
            .extract_if(|at, s| *at == on || s.used.elapsed() >= ABANDONED_AFTER)
            .map(|(_, s)| s)
            .collect();
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
            let session = sessions.get_mut(&on).filter(|s| s.uid == uid)?;
            session.used = Instant::now();
            session.told.clone()
        };
        let piece = told.next(room)?;
        if !matches!(&piece, Ok(piece) if !piece.last) {
            self.closed(on.0, on.1);
        }
        Some(piece)
    }

    /// Ends all, and waits for the threads as `ending` says.
    pub(crate) fn end(&self) {
        let gone = std::mem::take(&mut *self.sessions.lock());
        self.count.store(0, Ordering::Release);
        drop(gone);
        let threads = std::mem::take(&mut *self.threads.lock());
        join_within(PATIENCE_AT_END, "differences", threads);
    }

    /// Ends those without a request for `idle`, and gives the time after which there may be more to end; `None` if none
    /// is left.
    pub(crate) fn end_idle(&self, idle: Duration) -> Option<Duration> {
        let mut sessions = self.sessions.lock();
        let gone: Vec<DiffSession> =
            sessions.extract_if(|_, s| s.used.elapsed() >= idle).map(|(_, s)| s).collect();
        self.count.store(sessions.len(), Ordering::Release);
        let left = sessions.values().map(|s| idle.saturating_sub(s.used.elapsed())).min();
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_that_nobody_asks_about_ends() {
        let diffs = Diffs::default();
        assert!(diffs.begin_bytes(7, (1, 1), vec![0; 9]));
        std::thread::sleep(Duration::from_millis(20));
        assert!(diffs.begin_bytes(7, (1, 2), vec![0; 9]));
        let left = diffs.end_idle(Duration::from_millis(20)).unwrap();
        assert!(left <= Duration::from_millis(20));
        assert!(diffs.next(7, (1, 1), 4).is_none() && diffs.next(7, (1, 2), 4).is_some());
        assert_eq!(diffs.end_idle(Duration::ZERO), None);
        assert!(diffs.next(7, (1, 2), 4).is_none());
    }

    /// Who has a descriptor from another user has not what that user was told by it.
    #[test]
    fn one_is_told_to_the_user_who_has_asked() {
        let diffs = Diffs::default();
        assert!(diffs.begin_bytes(7, (1, 1), vec![0; 9]));
        assert!(diffs.next(8, (1, 1), 4).is_none());
        let piece = diffs.next(7, (1, 1), 4).unwrap().unwrap();
        assert_eq!((piece.bytes.len(), piece.last), (4, false));
        assert!(diffs.next(0, (1, 1), 4).is_none());
    }

    #[test]
    fn no_user_keeps_another_from_asking() {
        let diffs = Diffs::default();
        let mut handle = 0;
        let mut begin = |uid: u32| {
            handle += 1;
            diffs.begin_bytes(uid, (1, handle), vec![0; 9]).then_some((1, handle))
        };
        // Eight users with eight each, and then one with one and root.
        let firsts: Vec<_> =
            (100..108).map(|uid| (0..MAX_DIFFS_OF_USER).map(|_| begin(uid).unwrap()).min()).collect();
        let (one, root) = (begin(7).unwrap(), begin(0).unwrap());
        assert!(diffs.next(7, one, 4).is_some() && diffs.next(0, root, 4).is_some());
        let gone = (100..).zip(&firsts).filter(|(uid, first)| diffs.next(*uid, first.unwrap(), 4).is_none());
        assert_eq!(gone.count(), 1, "one of those with most has lost the one that was used least lately");
        // If each user has one, none loses it; root is not refused.
        for uid in 200..400 {
            begin(uid);
        }
        assert!(begin(500).is_none());
        assert!(begin(0).is_some());
        assert!(diffs.next(7, one, 4).is_some());
        assert!(diffs.sessions.lock().len() <= MAX_DIFFS + MAX_DIFFS_OF_ROOT);
    }

    #[test]
    fn differences_come_back_from_pieces_of_any_size_and_nonsense_is_an_error() {
        let full = FileChange {
            kind: ChangeKind::Renamed,
            file: FileKind::Socket,
            path: OsString::from_vec(b"a/\xff\n".to_vec()),
            from: Some("b".into()),
            aspects: Aspects(5),
            size_before: u64::MAX,
            size_after: 7,
            ranges: vec![(1, 2), (3, u64::MAX)],
        };
        let plain = FileChange { from: None, path: OsString::new(), ranges: Vec::new(), ..full.clone() };
        let all = [full.clone(), plain, full];
        let bytes: Vec<u8> = all.iter().flat_map(encode).collect();
        for size in [1, 3, 50, 1000] {
            let (mut reader, mut found) = (DiffDecoder::default(), Vec::new());
            for piece in bytes.chunks(size) {
                reader.add(piece);
                while let Some(change) = reader.next().unwrap() {
                    found.push(change);
                }
            }
            assert!(found == all && reader.is_empty());
        }
        let one = encode(&all[1]);
        for (at, value) in [(0, 3), (4, 9), (5, 9), (24, 200)] {
            let mut bad = one.clone();
            bad[at] = value;
            let mut reader = DiffDecoder::default();
            reader.add(&bad);
            reader.add(&[0; 300]);
            assert_eq!(reader.next(), Err(()), "byte {at}");
        }
    }
}
