//! The pieces of a long answer, fetched by a thread ahead of a reader that may be slow.
//!
//! Guarantees: the pieces come in their order, each once, and an error comes after those before it. Memory:
//! [`MAX_MEMORY_BYTES`]; what is more lies in a temporary file without a name. The thread ends with the answer, or when
//! the reader has gone. Knows nothing of what the pieces hold.

use std::{
    collections::VecDeque,
    io::{self, Read, Seek, SeekFrom, Write},
    sync::Arc,
    thread,
};

use parking_lot::{Condvar, Mutex};
use tempfile::SpooledTempFile;

use crate::client::ControlError;

/// Bytes of pieces that are kept in memory.
const MAX_MEMORY_BYTES: usize = 4 << 20;

/// A piece, and whether there are more.
type Fetched = Result<(Vec<u8>, bool), ControlError>;

pub(crate) struct Spool {
    state: Mutex<SpoolState>,
    changed: Condvar,
}

struct SpoolState {
    /// The pieces, one behind the other.
    file: SpooledTempFile,
    /// Lengths of those that are not read yet, in bytes, and whether there are more behind them.
    waiting: VecDeque<(usize, bool)>,
    read: u64,
    written: u64,
    /// Why there are no more.
    failed: Option<ControlError>,
}

impl Spool {
    /// Fetches pieces until there are no more. Error if there can be no thread.
    pub fn fetching(mut fetch: impl FnMut() -> Fetched + Send + 'static) -> io::Result<Arc<Self>> {
        let state = SpoolState {
            file: SpooledTempFile::new(MAX_MEMORY_BYTES),
            waiting: VecDeque::new(),
            read: 0,
            written: 0,
            failed: None,
        };
        let spool = Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() });
        let weak = Arc::downgrade(&spool);
        let work = move || {
            loop {
                let fetched = fetch();
                let Some(spool) = weak.upgrade() else { return };
                let mut state = spool.state.lock();
                let kept = fetched.and_then(|(piece, more)| state.keep(&piece, more).map(|()| more));
                let more = kept.unwrap_or_else(|e| {
                    state.failed = Some(e);
                    false
                });
                spool.changed.notify_all();
                if !more {
                    return;
                }
            }
        };
        thread::Builder::new().name("pando-spool".into()).spawn(work)?;
        Ok(spool)
    }

    /// The next piece, and whether there are more; waits for it. An error comes once.
    pub fn next(&self) -> Fetched {
        let mut state = self.state.lock();
        loop {
            if let Some((len, more)) = state.waiting.pop_front() {
                return Ok((state.take(len)?, more));
            }
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            self.changed.wait(&mut state);
        }
    }
}

impl SpoolState {
    fn keep(&mut self, piece: &[u8], more: bool) -> Result<(), ControlError> {
        let to = |e: io::Error| io::Error::new(e.kind(), format!("a temporary file (see TMPDIR): {e}"));
        self.file.seek(SeekFrom::Start(self.written)).map_err(to)?;
        self.file.write_all(piece).map_err(to)?;
        self.written += piece.len() as u64;
        self.waiting.push_back((piece.len(), more));
        Ok(())
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; len];
        self.file.seek(SeekFrom::Start(self.read))?;
        self.file.read_exact(&mut piece)?;
        self.read += len as u64;
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering::Relaxed},
        time::{Duration, Instant},
    };

    use super::*;

    const PIECES: u64 = 40;

    /// Longer than the memory in all, each of another length.
    fn piece(i: u64) -> Vec<u8> {
        vec![i as u8; 150_000 + i as usize]
    }

    fn until(is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A server that waits for no reader has told all when the first piece is read.
    #[test]
    fn all_is_fetched_before_it_is_read() {
        let fetched = Arc::new(AtomicU64::new(0));
        let spool = {
            let fetched = fetched.clone();
            Spool::fetching(move || {
                let i = fetched.fetch_add(1, Relaxed);
                Ok((piece(i), i + 1 < PIECES))
            })
        };
        let spool = spool.unwrap();
        until(|| fetched.load(Relaxed) == PIECES);
        for i in 0..PIECES {
            let (found, more) = spool.next().unwrap();
            assert!(found == piece(i) && more == (i + 1 < PIECES), "piece {i}");
        }
    }

    #[test]
    fn an_error_comes_behind_what_was_before_it() {
        let mut left = 2;
        let spool = Spool::fetching(move || match left {
            0 => Err(ControlError::Version),
            _ => {
                left -= 1;
                Ok((vec![left; 3], true))
            }
        });
        let spool = spool.unwrap();
        assert_eq!(spool.next().unwrap(), (vec![1; 3], true));
        assert_eq!(spool.next().unwrap(), (vec![0; 3], true));
        assert!(matches!(spool.next(), Err(ControlError::Version)));
    }

    #[test]
    fn the_thread_ends_when_the_reader_has_gone() {
        let fetched = Arc::new(AtomicU64::new(0));
        let spool = {
            let fetched = fetched.clone();
            Spool::fetching(move || {
                fetched.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(1));
                Ok((vec![1], true))
            })
        };
        drop(spool.unwrap());
        until(|| Arc::strong_count(&fetched) == 1);
    }
}
