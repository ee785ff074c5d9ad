//! A simulated device that crashes, tears, loses, fails and lies, from one seed.
//!
//! A testing device, in the library so that every layer and every user of the engine can test with it. It has the
//! durable bytes, and the writes that no flush has covered yet; reads see both. The same seed and the same requests
//! give the same failures. It may do what real media do:
//!
//! - A crash keeps, drops or tears each 512-byte sector of each unflushed write.
//! - A failed write may have reached the device in part.
//! - A failed flush may lose any of the unflushed writes for good although
//!   reads still show them and a later flush succeeds (as a page cache does).
//!   A failed durable write may do so to itself, and to no other.
//! - Each block of a discarded range reads as zeros, as garbage or as before; after a crash it may
//!   also be what it was, and a failed discard has happened in part.
//! - A full host disk refuses to materialise blocks.
//!
//! Overlapping unflushed writes keep their order: of those that survive in a
//! sector the newest wins, which covers every order in which whole sectors
//! could have been written.

use std::{io, sync::Arc};

use rustix::io::Errno;

use crate::{
    device::{BLOCK, Device, DeviceStats, check_range, counters::Counters, sparse::Sparse},
    locks::Mutex,
};

/// Bytes that a medium writes as a whole, if it does not tear even these.
const SECTOR_BYTES: u64 = 512;

/// What fails, from the request chosen by [`SimDevice::set_fail_at`] on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailMode {
    /// That request alone.
    Once,
    /// That request and all that follow.
    Onwards,
    /// The first flush that is not before that request.
    Flush,
}

/// The simulated device. Cheap for millions of small requests.
#[derive(Debug)]
pub struct SimDevice {
    state: Mutex<SimState>,
    counters: Counters,
}

#[derive(Debug)]
struct SimState {
    size: u64,
    prng: Prng,
    /// What survives every crash.
    durable: Sparse<{ BLOCK as usize }>,
    /// What reads see.
    current: Sparse<{ BLOCK as usize }>,
    /// Writes that no flush has covered, oldest first.
    unflushed: Vec<UnflushedWrite>,
    backing: Backing,
    requests: u64,
    /// Blocks with contents that were discarded.
    forgotten: u64,
    fail_at: Option<(u64, FailMode)>,
    lying: bool,
    dead: bool,
}

#[derive(Debug)]
struct UnflushedWrite {
    offset: u64,
    data: Box<[u8]>,
}

impl SimDevice {
    /// A device of `size` bytes, all zero, whose misfortunes follow from `seed`.
    pub fn new(size: u64, seed: u64) -> Self {
        Self::over(Sparse::default(), Backing::default(), size, Prng(seed))
    }

    fn over(content: Sparse<{ BLOCK as usize }>, backing: Backing, size: u64, prng: Prng) -> Self {
        let state = SimState {
            size,
            prng,
            current: content.clone(),
            durable: content,
            unflushed: Vec::new(),
            backing,
            requests: 0,
            forgotten: 0,
            fail_at: None,
            lying: false,
            dead: false,
        };
        Self { state: Mutex::new(state), counters: Counters::default() }
    }

    /// Makes the `n`th request from now fail with `EIO` (0 is the next one);
    /// `None` heals the device. Reads, writes, flushes, reservations, discards and growth count.
    pub fn set_fail_at(&self, n: Option<u64>, mode: FailMode) {
        let mut state = self.state.lock();
        state.fail_at = n.map(|n| (state.requests.saturating_add(n), mode));
    }

    /// Limits the bytes of 4 KiB blocks that exist under the device: what would
    /// need more fails with `ENOSPC`, as on a full disk under a sparse image.
    pub fn set_space_limit(&self, limit: Option<u64>) {
        self.state.lock().backing.limit = limit;
    }

    /// Bytes of blocks that exist under the device, by writes and reservations.
    pub fn space_used(&self) -> u64 {
        self.state.lock().backing.used
    }

    /// Whether flushes claim success and do nothing.
    pub fn set_lying(&self, lying: bool) {
        self.state.lock().lying = lying;
    }

    /// Requests so far, failed ones included.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// Blocks that had been written when they were discarded.
    pub fn forgotten(&self) -> u64 {
        self.state.lock().forgotten
    }

    /// Loses power: of what is unflushed the seed decides what survives. This
    /// handle fails every later request; go on with [`SimDevice::reopen`].
    pub fn crash(&self) {
        self.state.lock().crash();
    }

    /// A new device over what survived (crashing first, if that has not
    /// happened), with the seed advanced, no fault set and the space limit kept.
    pub fn reopen(&self) -> Arc<Self> {
        let mut state = self.state.lock();
        state.crash();
        let prng = Prng(state.prng.next());
        Arc::new(Self::over(state.durable.clone(), state.backing.clone(), state.size, prng))
    }

    /// Changes every byte of the range, in what reads see and in what is durable.
    pub fn corrupt(&self, offset: u64, len: u64) {
        let state = &mut *self.state.lock();
        for at in offset..offset.saturating_add(len).min(state.size) {
            let flip = state.prng.below(255) as u8 + 1;
            for content in [&mut state.durable, &mut state.current] {
                let mut byte = [0];
                content.read(at, &mut byte);
                content.write(at, &[byte[0] ^ flip]);
            }
        }
    }
}

impl SimState {
    /// Counts a request and decides whether it fails.
    fn request(&mut self) -> io::Result<()> {
        self.request_of(false)
    }

    fn request_of(&mut self, flush: bool) -> io::Result<()> {
        let number = self.requests;
        self.requests += 1;
        let fails = match self.fail_at {
            Some((at, FailMode::Flush)) if flush && number >= at => {
                self.fail_at = None;
                true
            }
            Some((_, FailMode::Flush)) => false,
            Some((at, FailMode::Once)) => number == at,
            Some((at, FailMode::Onwards)) => number >= at,
            None => false,
        };
        if fails || self.dead { Err(Errno::IO.into()) } else { Ok(()) }
    }

    fn crash(&mut self) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        // Purely independent sectors would hardly ever show the states in which all, nothing or
        // a run of whole writes survived, so the crash as a whole has a temper.
        let unflushed = std::mem::take(&mut self.unflushed);
        let temper = self.prng.below(5);
        let reached = self.prng.below(unflushed.len() as u64 + 1) as usize;
        for (index, write) in unflushed.iter().enumerate() {
            match (temper, index.cmp(&reached)) {
                (0, _) => (),
                (1, _) => self.durable.write(write.offset, &write.data),
                (2, std::cmp::Ordering::Less) => self.durable.write(write.offset, &write.data),
                (2, std::cmp::Ordering::Greater) => (),
                (3, _) => match self.prng.below(3) {
                    0 => (),
                    1 => self.durable.write(write.offset, &write.data),
                    _ => self.keep_some_sectors(write),
                },
                _ => self.keep_some_sectors(write),
            }
        }
    }

    /// Makes a random choice of the sectors of a write durable, and some of them in part.
    fn keep_some_sectors(&mut self, write: &UnflushedWrite) {
        let end = write.offset + write.data.len() as u64;
        let mut at = write.offset;
        while at < end {
            let next = (at / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES).min(end);
            let (mut from, mut to) = (at, next);
            match self.prng.below(8) {
                0..3 => to = from,
                3 => to -= self.prng.below(to - from),
                4 => from += self.prng.below(to - from),
                _ => (),
            }
            let piece = (from - write.offset) as usize..(to - write.offset) as usize;
            self.durable.write(from, &write.data[piece]);
            at = next;
        }
    }

    /// After a failed flush each write is durable, lost (perhaps in part), or still waiting.
    fn fail_flush(&mut self) {
        for write in std::mem::take(&mut self.unflushed) {
            match self.prng.below(4) {
                0 => self.durable.write(write.offset, &write.data),
                1 => self.keep_some_sectors(&write),
                2 => (),
                _ => self.unflushed.push(write),
            }
        }
    }

    /// Gives whole blocks back to the host, each to become what the seed decides.
    fn discard(&mut self, offset: u64, len: u64) {
        let (first, end) = (offset.div_ceil(BLOCK), (offset + len) / BLOCK);
        for block in first..end {
            // For other blocks this makes no difference: they are zero, or what a crash has left of an earlier discard.
            if !self.current.holds(block * BLOCK) {
                continue;
            }
            self.forgotten += 1;
            let mut content = [0; BLOCK as usize];
            match self.prng.below(4) {
                0 => continue,
                1 => (),
                _ => content
                    .chunks_exact_mut(8)
                    .for_each(|c| c.copy_from_slice(&self.prng.next().to_le_bytes())),
            }
            self.write(block * BLOCK, &content);
        }
        self.backing.remove(first, end);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.current.write(offset, data);
        self.unflushed.push(UnflushedWrite { offset, data: data.into() });
    }

    /// A write that is durable at once, before earlier writes of other threads.
    fn write_through(&mut self, offset: u64, data: &[u8]) {
        self.current.write(offset, data);
        self.durable.write(offset, data);
        // An older write to the same bytes cannot come up again.
        let end = offset + data.len() as u64;
        for write in &mut self.unflushed {
            let (from, to) = (offset.max(write.offset), end.min(write.offset + write.data.len() as u64));
            if from < to {
                let old = &mut write.data[(from - write.offset) as usize..(to - write.offset) as usize];
                old.copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            }
        }
    }
}

impl Device for SimDevice {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.request()?;
        check_range(state.size, offset, buf.len() as u64)?;
        state.current.read(offset, buf);
        self.counters.read(offset, buf.len());
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let alive = !state.dead;
        let served = state.request();
        check_range(state.size, offset, buf.len() as u64)?;
        if served.is_err() && alive {
            let reached = state.prng.below(buf.len() as u64 + 1) as usize;
            if state.backing.add(offset, reached as u64).is_ok() {
                state.write(offset, &buf[..reached]);
            }
        }
        served?;
        state.backing.add(offset, buf.len() as u64)?;
        state.write(offset, buf);
        self.counters.write(buf.len());
        Ok(())
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        let state = &mut *self.state.lock();
        let alive = !state.dead;
        let served = state.request_of(true);
        check_range(state.size, offset, buf.len() as u64)?;
        if served.is_err() && alive && state.backing.add(offset, buf.len() as u64).is_ok() {
            // Either the write or its flush has failed.
            let reached = match state.prng.below(2) {
                0 => state.prng.below(buf.len() as u64 + 1) as usize,
                _ => buf.len(),
            };
            let others = std::mem::take(&mut state.unflushed);
            state.write(offset, &buf[..reached]);
            state.fail_flush();
            let left = std::mem::replace(&mut state.unflushed, others);
            state.unflushed.extend(left);
        }
        served?;
        state.backing.add(offset, buf.len() as u64)?;
        if state.lying {
            state.write(offset, buf);
        } else {
            state.write_through(offset, buf);
        }
        self.counters.write(buf.len());
        self.counters.flush();
        Ok(true)
    }

    fn flush(&self) -> io::Result<()> {
        let state = &mut *self.state.lock();
        if let Err(error) = state.request_of(true) {
            state.fail_flush();
            return Err(error);
        }
        if !state.lying {
            for write in state.unflushed.drain(..) {
                state.durable.write(write.offset, &write.data);
            }
        }
        self.counters.flush();
        Ok(())
    }

    fn reread(&self) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.request()?;
        state.current = state.durable.clone();
        for UnflushedWrite { offset, data } in &state.unflushed {
            state.current.write(*offset, data);
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.state.lock().size
    }

    fn capacity(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.request()?;
        Ok(state.backing.limit.unwrap_or(u64::MAX).min(state.size))
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.request()?;
        if size < state.size {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device cannot shrink"));
        }
        state.size = size;
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.request()?;
        check_range(state.size, offset, len)?;
        state.backing.add(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        let state = &mut *self.state.lock();
        let alive = !state.dead;
        let served = state.request();
        check_range(state.size, offset, len)?;
        if served.is_err() && alive {
            let reached = state.prng.below(len + 1);
            state.discard(offset, reached);
        }
        served?;
        state.discard(offset, len);
        self.counters.discard(len);
        Ok(true)
    }

    fn next_held(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        let mut state = self.state.lock();
        state.request()?;
        Ok(state.backing.next(from, state.size))
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn stats(&self) -> DeviceStats {
        self.counters.stats()
    }
}

/// Which 4 KiB blocks exist on the host, as a sparse bit set.
#[derive(Debug, Default, Clone)]
struct Backing {
    /// One bit a block, 64 blocks a word.
    words: std::collections::HashMap<u64, u64>,
    used: u64,
    limit: Option<u64>,
}

impl Backing {
    /// Materialises the blocks of a range, all or none.
    fn add(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (first, end) = (offset / BLOCK, offset.saturating_add(len).div_ceil(BLOCK));
        if len == 0 {
            return Ok(());
        }
        let masks = masks(first, end);
        let have = |word| self.words.get(&word).copied().unwrap_or(0);
        let new: u64 =
            masks.clone().map(|(word, mask)| (mask & !have(word)).count_ones() as u64 * BLOCK).sum();
        if new > 0 && self.limit.is_some_and(|limit| self.used + new > limit) {
            return Err(Errno::NOSPC.into());
        }
        for (word, mask) in masks {
            *self.words.entry(word).or_default() |= mask;
        }
        self.used += new;
        Ok(())
    }

    /// The first blocks that exist at or behind `from`: (offset, length).
    fn next(&self, from: u64, size: u64) -> Option<(u64, u64)> {
        let exists =
            |block: &u64| self.words.get(&(block / 64)).is_some_and(|word| word >> (block % 64) & 1 == 1);
        let last = *self.words.keys().max()? * 64 + 63;
        let first = (from.div_ceil(BLOCK)..=last.min(size / BLOCK)).find(exists)?;
        let end = (first..).find(|block| !exists(block))?;
        Some((first * BLOCK, (end - first) * BLOCK))
    }

    /// Gives back the blocks `[first, end)`.
    fn remove(&mut self, first: u64, end: u64) {
        for (word, mask) in masks(first, end) {
            if let Some(have) = self.words.get_mut(&word) {
                self.used -= (*have & mask).count_ones() as u64 * BLOCK;
                *have &= !mask;
            }
        }
    }
}

/// Words of a bit set and the bits `[first, end)` in each.
fn masks(first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + Clone {
    let words = if first < end { first / 64..end.div_ceil(64) } else { 0..0 };
    words.map(move |word| {
        let low = first.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, (u64::MAX >> (64 - (high - low))) << low)
    })
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and every seed is a good one.
#[derive(Debug)]
struct Prng(u64);

impl Prng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests;
