//! Memory for pages: buffers of some tens of KiB, for all of the process from one pool.
//!
//! Most memory of a store is in pages of nearly one size, which many threads allocate and free all the time. In a
//! general allocator such pages leave holes between other allocations that nothing fits into: a process had half as
//! much memory again as its store had asked for. Here pages are cut from chunks that hold nothing else, and are not
//! zeroed before they are read into.
//!
//! Guarantees: a buffer shares its bytes with no other as long as it lives, and its contents are *anything* until
//! they are written. Free memory goes back to the kernel, except for [`KEPT_BYTES`] and a sixteenth of what buffers
//! have, in two cases: the buffers have not needed it for a while (many rounds of allocations, or a time without
//! any), or they have less than a quarter of the pool. If the pool cannot give a buffer (too small, too large, or the
//! kernel refuses), the buffer comes from the heap. The lock is held for microseconds: calls of the kernel, which
//! take longer, are made without it.

mod chunk;

use std::{
    collections::BTreeMap,
    ops::{Bound, Deref, DerefMut},
};

use bytes::Bytes;
use rustix::param::page_size;
use smallvec::SmallVec;

use chunk::{Allocation, CHUNK_BYTES, Chunk, Free, UNIT_BYTES};

use crate::locks::Mutex;

/// Smallest and largest buffer that the pool cuts, in bytes. The heap is as good for smaller ones; larger ones would
/// leave much of a chunk unused.
const MIN_BUFFER_BYTES: usize = 8 << 10;
const MAX_BUFFER_BYTES: usize = CHUNK_BYTES / 8;

/// Free memory that is kept although buffers have not needed as much lately, in bytes.
const KEPT_BYTES: usize = CHUNK_BYTES;
/// Rounds that count as lately, up to twice as many: in a round, as many units are given back as buffers had at most.
const RECENT_ROUNDS: usize = 16;
/// Part (1/n) of the memory of buffers that may be free and yet of no use: in gaps too small for a buffer, or in a
/// page of the kernel's that a buffer shares.
const WASTE_SHARE: usize = 16;
/// Calls of [`rest`], without an allocation between them, after which only [`KEPT_BYTES`] is kept.
const IDLE_RESTS: u32 = 100;

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Bytes to be written and then shared.
pub(crate) enum Buffer {
    Pooled(Pooled),
    Heap(Vec<u8>),
}

/// An allocation of the pool: `None` only while the value is dropped.
pub(crate) struct Pooled(Option<Allocation>);

/// True if the pool cuts buffers of this size.
fn is_pooled(len: usize) -> bool {
    (MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES).contains(&len)
}

/// A buffer of `len` bytes.
pub(crate) fn buffer(len: usize) -> Buffer {
    let allocation = if is_pooled(len) { POOL.lock().take(len) } else { None };
    let Some(mut allocation) = allocation else { return Buffer::Heap(vec![0; len]) };
    if cfg!(debug_assertions) {
        // So that tests find a caller that does not write all of it.
        allocation.bytes_mut().fill(0xa5);
    }
    Buffer::Pooled(Pooled(Some(allocation)))
}

/// An allocation with a copy of these bytes.
pub(crate) fn copy(bytes: &[u8]) -> Bytes {
    if !is_pooled(bytes.len()) {
        return Bytes::copy_from_slice(bytes);
    }
    let mut copy = buffer(bytes.len());
    copy.copy_from_slice(bytes);
    copy.into()
}

/// Bytes of memory that a buffer of `len` bytes takes.
pub(crate) fn footprint(len: usize) -> usize {
    if is_pooled(len) { len.next_multiple_of(UNIT_BYTES) } else { len }
}

/// Bytes of memory that the pool has from the kernel, in buffers or not.
pub(crate) fn resident() -> u64 {
    let pool = POOL.lock();
    ((pool.taken + pool.idle) * UNIT_BYTES) as u64
}

/// Bytes of memory that the buffers of the pool have.
pub(crate) fn in_use() -> u64 {
    (POOL.lock().taken * UNIT_BYTES) as u64
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
            Buffer::Pooled(Pooled(allocation)) => allocation.as_mut().map_or(&mut [], Allocation::bytes_mut),
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
        self.0.as_ref().map_or(&[], Allocation::bytes)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(allocation) = self.0.take() {
            give(&POOL, allocation);
        }
    }
}

/// Gives free memory back to the kernel if the pool is idle. An idle thread calls this now and then.
pub(crate) fn rest() {
    let excess = POOL.lock().rest();
    excess.give_to_kernel(&POOL);
}

/// Takes an allocation back.
fn give(pool: &Mutex<Pool>, allocation: Allocation) {
    let excess = pool.lock().give(allocation);
    excess.give_to_kernel(pool);
}

/// Memory that goes back to the kernel, outside the lock.
#[derive(Default)]
struct Excess {
    chunks: SmallVec<[Chunk; 1]>,
    /// Whole pages of the kernel's.
    allocations: Vec<Allocation>,
}

impl Excess {
    fn give_to_kernel(self, pool: &Mutex<Pool>) {
        let Self { chunks, mut allocations } = self;
        drop(chunks);
        if !allocations.is_empty() {
            let released = allocations.iter_mut().all(Allocation::release);
            pool.lock().cut_given(allocations, released);
        }
    }
}

/// Chunks, by address.
struct Pool {
    chunks: BTreeMap<usize, Chunk>,
    /// The chunk that was used last.
    recent: usize,
    /// Units of the smallest allocation that no chunk had room for since one was last given back. Indexed by
    /// [`Free`].
    too_long: [usize; 2],
    /// Units that allocations have, and free units that the kernel has not got back.
    taken: usize,
    idle: usize,
    /// The most units that allocations had at once: in the latest [`RECENT_ROUNDS`], and in those before.
    most: [usize; 2],
    /// Units given back since the latest rounds began.
    given: usize,
    /// Addresses of the chunk whose memory went to the kernel last, and of an empty chunk that is kept.
    swept: usize,
    spare: usize,
    /// The kernel does not take memory back (it is locked, for instance).
    refused: bool,
    /// Allocations given back so far; their number at the last call of `rest`; calls of `rest` since it changed.
    turns: u64,
    turns_seen: u64,
    rests: u32,
}

impl Pool {
    const fn new() -> Self {
        Self {
            chunks: BTreeMap::new(),
            recent: 0,
            too_long: [usize::MAX; 2],
            taken: 0,
            idle: 0,
            most: [0; 2],
            given: 0,
            swept: 0,
            spare: 0,
            refused: false,
            turns: 0,
            turns_seen: 0,
            rests: 0,
        }
    }

    /// An allocation of `len` bytes; none if the kernel gives no memory. Units in memory are taken before others.
    fn take(&mut self, len: usize) -> Option<Allocation> {
        let found = self.take_of(len, Free::Idle).or_else(|| self.take_of(len, Free::Any));
        let found = match found {
            Some(found) => found,
            None => {
                let mut chunk = Chunk::new().ok()?;
                let found = chunk.take(len, Free::Any)?;
                self.idle += chunk.idle();
                self.recent = chunk.address();
                self.too_long[Free::Any as usize] = usize::MAX;
                self.chunks.insert(chunk.address(), chunk);
                found
            }
        };
        self.taken += found.units();
        self.most[0] = self.most[0].max(self.taken);
        Some(found)
    }

    fn take_of(&mut self, len: usize, which: Free) -> Option<Allocation> {
        let units = len.div_ceil(UNIT_BYTES);
        if units >= self.too_long[which as usize] {
            return None;
        }
        // From the chunk that was used last on, and then those before it.
        let behind = (Bound::Included(self.recent), Bound::Unbounded);
        let before = (Bound::Unbounded, Bound::Excluded(self.recent));
        for range in [behind, before] {
            for (at, chunk) in self.chunks.range_mut(range).filter(|(_, chunk)| chunk.may_fit(units, which)) {
                let idle = chunk.idle();
                let found = chunk.take(len, which);
                self.idle = self.idle + chunk.idle() - idle;
                if found.is_some() {
                    self.recent = *at;
                    return found;
                }
            }
        }
        self.too_long[which as usize] = units;
        None
    }

    fn chunk_of(&mut self, allocation: &Allocation) -> (usize, &mut Chunk) {
        match self.chunks.range_mut(..=allocation.address()).next_back() {
            Some((at, chunk)) => (*at, chunk),
            None => unreachable!("a chunk stays as long as there are allocations of it"),
        }
    }

    /// Takes an allocation back.
    fn give(&mut self, allocation: Allocation) -> Excess {
        let units = allocation.units();
        let (at, chunk) = self.chunk_of(&allocation);
        chunk.give(allocation, false);
        let hardly_there = chunk.is_empty() && chunk.idle() * UNIT_BYTES < CHUNK_BYTES / 8;
        // The next allocation looks here first, because something has become free.
        self.recent = at;
        self.too_long = [usize::MAX; 2];
        self.taken -= units;
        self.idle += units;
        self.given += units;
        self.turns += 1;
        if self.given > RECENT_ROUNDS * self.most[0] {
            (self.most, self.given) = ([self.taken, self.most[0]], 0);
        }
        if hardly_there && self.spare != at {
            if self.chunks.get(&self.spare).is_some_and(Chunk::is_empty) {
                return Excess { chunks: self.remove(at), allocations: Vec::new() };
            }
            self.spare = at;
        }
        let enough = self.most[0].max(self.most[1]).min(4 * self.taken);
        self.without_more_than(enough)
    }

    /// Counts calls between which nothing was given back. After [`IDLE_RESTS`] of them only what buffers have is
    /// needed.
    fn rest(&mut self) -> Excess {
        self.rests = if self.turns == self.turns_seen { self.rests + 1 } else { 0 };
        self.turns_seen = self.turns;
        if self.rests < IDLE_RESTS {
            return Excess::default();
        }
        self.rests = IDLE_RESTS;
        self.most = [self.taken; 2];
        self.without_more_than(self.taken)
    }

    /// The free units of one chunk, to be given to the kernel, if more than `enough` units are in memory and those
    /// that are kept besides.
    fn without_more_than(&mut self, enough: usize) -> Excess {
        if self.refused
            || self.taken + self.idle <= enough + KEPT_BYTES / UNIT_BYTES + self.taken / WASTE_SHARE
        {
            return Excess::default();
        }
        let behind = (Bound::Excluded(self.swept), Bound::Unbounded);
        let next = self.chunks.range(behind).next().or_else(|| self.chunks.iter().next());
        let Some((&at, _)) = next else { return Excess::default() };
        self.swept = at;
        let Some(chunk) = self.chunks.get_mut(&at) else { return Excess::default() };
        if chunk.is_empty() {
            return Excess { chunks: self.remove(at), allocations: Vec::new() };
        }
        let allocations = chunk.cut_idle(page_size());
        let units: usize = allocations.iter().map(Allocation::units).sum();
        self.idle -= units;
        self.taken += units;
        Excess { chunks: SmallVec::new(), allocations }
    }

    fn remove(&mut self, at: usize) -> SmallVec<[Chunk; 1]> {
        let removed = self.chunks.remove(&at);
        self.idle -= removed.as_ref().map_or(0, Chunk::idle);
        removed.into_iter().collect()
    }

    /// Takes back allocations that were made to be given to the kernel. `released`: the kernel has taken them.
    fn cut_given(&mut self, allocations: Vec<Allocation>, released: bool) {
        self.refused |= !released;
        for allocation in allocations {
            let units = allocation.units();
            self.taken -= units;
            self.idle += if released { 0 } else { units };
            self.chunk_of(&allocation).1.give(allocation, released);
        }
        self.too_long = [usize::MAX; 2];
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    fn check(pool: &Mutex<Pool>) {
        let pool = pool.lock();
        assert_eq!(pool.idle, pool.chunks.values().map(Chunk::idle).sum::<usize>());
        assert_eq!(pool.taken, pool.chunks.values().map(Chunk::taken).sum::<usize>());
        pool.chunks.values().for_each(Chunk::check);
    }

    fn take(pool: &Mutex<Pool>, len: usize) -> Allocation {
        pool.lock().take(len).unwrap()
    }

    fn rest_of(pool: &Mutex<Pool>) {
        let excess = pool.lock().rest();
        excess.give_to_kernel(pool);
    }

    fn kept(pool: &Mutex<Pool>) -> usize {
        pool.lock().idle * UNIT_BYTES
    }

    /// Pieces of all sizes come and go; each keeps what was written into it, and the pool knows what it has.
    #[test]
    fn pieces_are_nobody_elses() {
        for seed in 0..8 {
            let mut random = SmallRng::seed_from_u64(seed);
            let pool = Mutex::new(Pool::new());
            let mut held: Vec<(Allocation, u8)> = Vec::new();
            for turn in 0..6000u32 {
                // It grows to some 30 MiB, shrinks, and so on.
                let growing = turn % 2000 < 1000;
                if random.random_range(0..10) < if growing { 8 } else { 3 } {
                    let len = random.random_range(MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES / 2);
                    let mut allocation = take(&pool, len);
                    let byte = random.random();
                    allocation.bytes_mut().fill(byte);
                    assert_eq!(allocation.len(), len);
                    held.push((allocation, byte));
                } else if !held.is_empty() {
                    let (allocation, byte) = held.swap_remove(random.random_range(0..held.len()));
                    assert!(allocation.bytes().iter().all(|&b| b == byte), "seed {seed}, turn {turn}");
                    give(&pool, allocation);
                }
                if turn % 64 == 0 {
                    check(&pool);
                }
            }
            held.drain(..).for_each(|(allocation, _)| give(&pool, allocation));
            check(&pool);
            assert_eq!(pool.lock().taken, 0, "seed {seed}");
            (0..IDLE_RESTS + 20).for_each(|_| rest_of(&pool));
            assert!(kept(&pool) <= KEPT_BYTES, "seed {seed}: {} KiB are kept for nothing", kept(&pool) >> 10);
            let chunks = pool.lock().chunks.len();
            assert!(chunks <= 8, "seed {seed}: {chunks} empty chunks");
        }
    }

    /// A pool that shrinks keeps what it has, in case that it grows again, and not for long.
    #[test]
    fn what_is_not_needed_goes_back_to_the_kernel() {
        let shrunk = || {
            let pool = Mutex::new(Pool::new());
            let mut held: Vec<Allocation> = (0..1000).map(|_| take(&pool, 33_000)).collect();
            let most = pool.lock().taken;
            for i in (0..1000).rev().filter(|i| i % 3 == 0) {
                give(&pool, held.swap_remove(i));
            }
            assert_eq!(
                kept(&pool),
                (most - pool.lock().taken) * UNIT_BYTES,
                "what may be needed again is gone"
            );
            (pool, held)
        };
        let little = |pool: &Mutex<Pool>| KEPT_BYTES + pool.lock().taken * UNIT_BYTES / WASTE_SHARE;
        let (pool, mut held) = shrunk();
        for _ in 0..300 * held.len() {
            give(&pool, held.swap_remove(0));
            held.push(take(&pool, 33_000));
        }
        assert!(kept(&pool) <= little(&pool), "{} KiB are kept", kept(&pool) >> 10);
        held.into_iter().for_each(|allocation| give(&pool, allocation));
        assert!(kept(&pool) <= KEPT_BYTES);

        // So it is where nothing comes and goes any more.
        let (pool, held) = shrunk();
        let before = kept(&pool);
        (0..IDLE_RESTS).for_each(|_| rest_of(&pool));
        assert_eq!(kept(&pool), before);
        (0..50).for_each(|_| rest_of(&pool));
        assert!(kept(&pool) <= little(&pool), "{} KiB are kept", kept(&pool) >> 10);
        check(&pool);
        held.into_iter().for_each(|allocation| give(&pool, allocation));
    }

    /// As long as one comes for one that goes, nothing goes to the kernel, however many there are.
    #[test]
    fn a_large_pool_is_at_peace() {
        let mut random = SmallRng::seed_from_u64(5);
        let pool = Mutex::new(Pool::new());
        let mut held: Vec<Allocation> =
            (0..16_000).map(|_| take(&pool, random.random_range(30_000..34_000))).collect();
        let mut swept = 0;
        for turn in 0..200_000 {
            let i = random.random_range(0..held.len());
            let excess = pool.lock().give(held.swap_remove(i));
            swept += u32::from(turn > 100_000 && !excess.allocations.is_empty());
            excess.give_to_kernel(&pool);
            held.push(take(&pool, random.random_range(30_000..34_000)));
        }
        assert!(swept < 2000, "memory went to the kernel in {swept} of 100,000 turns");
        check(&pool);
        held.into_iter().for_each(|allocation| give(&pool, allocation));
    }

    /// One buffer that comes and goes does not cost a chunk each time.
    #[test]
    fn an_empty_chunk_stays() {
        let pool = Mutex::new(Pool::new());
        let allocation = take(&pool, 33_000);
        let at = allocation.address();
        give(&pool, allocation);
        assert_eq!(pool.lock().chunks.len(), 1);
        assert_eq!(take(&pool, 33_000).address(), at);
    }

    /// What one size has left serves another one, without more chunks.
    #[test]
    fn what_was_given_back_is_taken_again() {
        let pool = Mutex::new(Pool::new());
        let first: Vec<Allocation> = (0..300).map(|_| take(&pool, 33_000)).collect();
        let chunks = || pool.lock().chunks.len();
        let before = chunks();
        assert_eq!(before, 300usize.div_ceil(CHUNK_BYTES / UNIT_BYTES / 33));
        let mut first: Vec<_> = first.into_iter().map(Some).collect();
        for round in 0..10 {
            let some = first.iter_mut().skip(round % 3).step_by(3);
            some.filter_map(Option::take).for_each(|allocation| give(&pool, allocation));
            first.iter_mut().filter(|slot| slot.is_none()).for_each(|slot| *slot = Some(take(&pool, 32_800)));
            assert_eq!(chunks(), before);
        }
    }

    #[test]
    fn buffers_of_every_size_can_be_written_and_shared() {
        for len in [
            0,
            1,
            MIN_BUFFER_BYTES - 1,
            MIN_BUFFER_BYTES,
            33_000,
            MAX_BUFFER_BYTES,
            MAX_BUFFER_BYTES + 1,
            3 * CHUNK_BYTES,
        ] {
            let mut buffer = buffer(len);
            assert_eq!(buffer.len(), len);
            buffer.fill(7);
            let bytes = Bytes::from(buffer);
            let copy = copy(&bytes);
            assert!(bytes.len() == len && bytes.iter().all(|&byte| byte == 7) && copy == bytes);
        }
    }
}
