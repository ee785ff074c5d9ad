//! Memory for pages: buffers of some tens of KiB, for all of the process from one pool.
//!
//! Most of what a store has in memory are pages of nearly one size, which come and go all the time, in many threads. Among
//! all else that a general allocator gives out they leave holes that nothing fits: a process had half as much again as its
//! store knew of. Here they are cut from chunks that nothing else shares, and are not zeroed before they are read into.
//!
//! Guarantees: a buffer is nobody else's as long as it lives, and its contents are *anything* until they are written. Memory
//! that no buffer has is given back to the kernel when buffers have not had as much for a while, or have not a quarter of it
//! any more (but for [`KEPT`]). Where the pool
//! cannot help (too small, too large, the kernel refuses), the buffer comes from the heap. May use: nothing of the crate.

mod chunk;

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
};

use bytes::Bytes;
use parking_lot::Mutex;

use chunk::{CHUNK, Chunk, Free, Piece, UNIT};

/// Smallest and largest buffer that the pool cuts, in bytes. Smaller ones the heap does as well; larger ones leave much of a
/// chunk over.
const LEAST: usize = 8 << 10;
const MOST: usize = CHUNK / 8;

/// What is kept for later though buffers have not had as much lately, in bytes.
const KEPT: usize = CHUNK;
/// Lately: since all that buffers have had at once came and went so often, or twice as often.
const ROUNDS: usize = 64;
/// Chunks of which memory is given back at once.
const MOST_SWEPT: usize = 4;

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Bytes to be written and then shared.
pub(crate) enum Buffer {
    Pooled(Pooled),
    Heap(Vec<u8>),
}

/// A piece of the pool. There always is one, until the end.
pub(crate) struct Pooled(Option<Piece>);

/// A buffer of `len` bytes.
pub(crate) fn buffer(len: usize) -> Buffer {
    let piece = if (LEAST..=MOST).contains(&len) { POOL.lock().take(len) } else { None };
    match piece {
        Some(piece) => Buffer::Pooled(Pooled(Some(piece))),
        None => Buffer::Heap(vec![0; len]),
    }
}

/// The same with these bytes in it.
pub(crate) fn copy(bytes: &[u8]) -> Bytes {
    if bytes.len() < LEAST {
        return Bytes::copy_from_slice(bytes);
    }
    let mut copy = buffer(bytes.len());
    copy.copy_from_slice(bytes);
    copy.into()
}

/// Bytes of memory that a buffer of `len` bytes takes.
pub(crate) fn footprint(len: usize) -> usize {
    if (LEAST..=MOST).contains(&len) { len.next_multiple_of(UNIT) } else { len }
}

/// Bytes of memory that the pool has from the kernel, in buffers or not.
pub(crate) fn resident() -> u64 {
    let pool = POOL.lock();
    ((pool.taken + pool.idle) * UNIT) as u64
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Pooled(pooled) => pooled.as_ref(),
            Buffer::Heap(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Pooled(Pooled(piece)) => piece.as_mut().map_or(&mut [], Piece::bytes_mut),
            Buffer::Heap(bytes) => bytes,
        }
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        match buffer {
            Buffer::Pooled(pooled) => Bytes::from_owner(pooled),
            Buffer::Heap(bytes) => bytes.into(),
        }
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Piece::bytes)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let dropped = self.0.take().map(|piece| POOL.lock().give(piece));
        // Outside of the lock: the kernel takes its time.
        drop(dropped);
    }
}

/// Chunks, by address.
struct Pool {
    chunks: BTreeMap<usize, Chunk>,
    /// The chunk that was used last.
    recent: usize,
    /// Units that pieces have, and units that no piece has but the kernel has not got back.
    taken: usize,
    idle: usize,
    /// The most units that pieces had at once: of late, and before that.
    most: [usize; 2],
    /// Units given back of late.
    given: usize,
    /// The chunk of which memory went to the kernel last.
    swept: usize,
}

impl Pool {
    const fn new() -> Self {
        Self { chunks: BTreeMap::new(), recent: 0, taken: 0, idle: 0, most: [0; 2], given: 0, swept: 0 }
    }

    /// A piece of `len` bytes; none if the kernel gives no memory. What is in memory comes first, then what is not.
    fn take(&mut self, len: usize) -> Option<Piece> {
        let found = self.take_of(len, Free::Idle).or_else(|| self.take_of(len, Free::Any));
        let found = match found {
            Some(found) => found,
            None => {
                let mut chunk = Chunk::new().ok()?;
                let found = chunk.take(len, Free::Any)?;
                self.idle += chunk.idle();
                self.recent = chunk.address();
                self.chunks.insert(chunk.address(), chunk);
                found
            }
        };
        self.taken += len.div_ceil(UNIT);
        self.most[0] = self.most[0].max(self.taken);
        Some(found)
    }

    fn take_of(&mut self, len: usize, which: Free) -> Option<Piece> {
        let fits = |chunk: &Chunk| chunk.may_fit(len.div_ceil(UNIT), which);
        let recent = self.chunks.get_mut(&self.recent).filter(|chunk| fits(chunk));
        let mut found = recent.and_then(|chunk| Self::take_from(chunk, len, which, &mut self.idle));
        if found.is_none() {
            // From the low end, so that the chunks at the other one become empty some day.
            for (at, chunk) in self.chunks.iter_mut().filter(|(_, chunk)| fits(chunk)) {
                found = Self::take_from(chunk, len, which, &mut self.idle);
                if found.is_some() {
                    self.recent = *at;
                    break;
                }
            }
        }
        found
    }

    fn take_from(chunk: &mut Chunk, len: usize, which: Free, idle: &mut usize) -> Option<Piece> {
        let before = chunk.idle();
        let piece = chunk.take(len, which);
        *idle = *idle + chunk.idle() - before;
        piece
    }

    /// Takes a piece back. Chunks that are not needed any more, to be dropped outside the lock.
    fn give(&mut self, piece: Piece) -> Vec<Chunk> {
        let (at, units) = (piece.address(), piece.len().div_ceil(UNIT));
        let Some((&at, chunk)) = self.chunks.range_mut(..=at).next_back() else {
            unreachable!("a chunk stays as long as there are pieces of it")
        };
        chunk.give(piece);
        // Where something has become free there is room next time.
        self.recent = at;
        self.taken -= units;
        self.idle += units;
        self.given += units;
        if self.given > ROUNDS * self.most[0] {
            (self.most, self.given) = ([self.taken, self.most[0]], 0);
        }
        let enough = self.most[0].max(self.most[1]).min(4 * self.taken) + KEPT / UNIT;
        let mut dropped = Vec::new();
        // What is in no memory is not worth keeping.
        if let Some(chunk) =
            self.chunks.get(&at).filter(|chunk| chunk.is_empty() && chunk.idle() * UNIT < CHUNK / 8)
        {
            self.idle -= chunk.idle();
            dropped.extend(self.chunks.remove(&at));
        }
        for _ in 0..MOST_SWEPT {
            if self.taken + self.idle <= enough {
                break;
            }
            dropped.extend(self.sweep());
        }
        dropped
    }

    /// Gives to the kernel what nobody has of the chunk that is next; the chunk, if nobody has anything of it.
    fn sweep(&mut self) -> Option<Chunk> {
        let next = self.chunks.range_mut(self.swept + 1..).next();
        let (&at, chunk) = match next {
            Some(next) => next,
            None => self.chunks.iter_mut().next()?,
        };
        self.swept = at;
        self.idle -= chunk.idle();
        if chunk.is_empty() {
            return self.chunks.remove(&at);
        }
        chunk.release();
        self.idle += chunk.idle();
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    impl Pool {
        fn check(&self) {
            assert_eq!(self.idle, self.chunks.values().map(Chunk::idle).sum::<usize>());
            assert_eq!(self.taken, self.chunks.values().map(Chunk::taken).sum::<usize>());
        }
    }

    /// Pieces of all sizes come and go; each keeps what was written into it, and the pool knows what it has.
    #[test]
    fn pieces_are_nobody_elses() {
        for seed in 0..8 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut pool = Pool::new();
            let mut held: Vec<(Piece, u8)> = Vec::new();
            for turn in 0..6000u32 {
                // It grows to some 30 MiB, shrinks, and so on.
                let growing = turn % 2000 < 1000;
                if random.random_range(0..10) < if growing { 8 } else { 3 } {
                    let len = random.random_range(LEAST..=MOST / 2);
                    let mut piece = pool.take(len).unwrap();
                    let byte = random.random();
                    piece.bytes_mut().fill(byte);
                    assert_eq!(piece.len(), len);
                    held.push((piece, byte));
                } else if !held.is_empty() {
                    let (piece, byte) = held.swap_remove(random.random_range(0..held.len()));
                    assert!(piece.bytes().iter().all(|&b| b == byte), "seed {seed}, turn {turn}");
                    pool.give(piece);
                }
                if turn % 64 == 0 {
                    pool.check();
                }
            }
            held.drain(..).for_each(|(piece, _)| drop(pool.give(piece)));
            pool.check();
            assert_eq!(pool.taken, 0, "seed {seed}");
            assert!(pool.idle * UNIT <= KEPT, "seed {seed}: {} KiB are kept for nothing", pool.idle);
            assert!(pool.chunks.len() <= 8, "seed {seed}: {} empty chunks", pool.chunks.len());
        }
    }

    /// A pool that shrinks keeps what it has, in case that it grows again, and not for long.
    #[test]
    fn what_is_not_needed_goes_back_to_the_kernel() {
        let mut pool = Pool::new();
        let mut held: Vec<Piece> = (0..1000).map(|_| pool.take(33_000).unwrap()).collect();
        let most = pool.taken;
        for i in (0..1000).rev().filter(|i| i % 3 == 0) {
            pool.give(held.swap_remove(i));
        }
        assert_eq!(pool.taken + pool.idle, most, "what may be needed again is gone");
        for _ in 0..300 * held.len() {
            pool.give(held.swap_remove(0));
            held.push(pool.take(33_000).unwrap());
        }
        assert!(pool.idle * UNIT < KEPT + CHUNK, "{} KiB are kept", pool.idle);
        held.into_iter().for_each(|piece| drop(pool.give(piece)));
        assert!(pool.idle * UNIT <= KEPT);
    }

    /// What one size has left serves another one, without more chunks.
    #[test]
    fn what_was_given_back_is_taken_again() {
        let mut pool = Pool::new();
        let first: Vec<Piece> = (0..300).map(|_| pool.take(33_000).unwrap()).collect();
        let chunks = pool.chunks.len();
        assert_eq!(chunks, 300usize.div_ceil(CHUNK / UNIT / 33));
        let mut first: Vec<_> = first.into_iter().map(Some).collect();
        for round in 0..10 {
            first.iter_mut().skip(round % 3).step_by(3).filter_map(Option::take).for_each(|piece| {
                pool.give(piece);
            });
            first.iter_mut().filter(|slot| slot.is_none()).for_each(|slot| *slot = pool.take(32_800));
            assert_eq!(pool.chunks.len(), chunks);
        }
    }

    #[test]
    fn buffers_of_every_size_can_be_written_and_shared() {
        for len in [0, 1, LEAST - 1, LEAST, 33_000, MOST, MOST + 1, 3 * CHUNK] {
            let mut buffer = buffer(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(7);
            let bytes = Bytes::from(buffer);
            let copy = copy(&bytes);
            assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 7) && copy == bytes);
        }
    }
}
