//! Aligned memory for direct requests, used again and again.
//!
//! A buffer is as large as its request, to the next power of two: a caller that keeps a part of what was read keeps
//! all of the buffer. The memory is the kernel's, not the allocator's: there the buffers that come and go would
//! leave holes of a MiB in the arena of each thread.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use memmap2::MmapMut;

use crate::locks::Mutex;

/// Bytes of the largest buffer: the longest direct request.
pub(super) const MAX_DIRECT_BYTES: usize = 1 << 20;
/// Bytes of the smallest one.
const MIN_DIRECT_BYTES: usize = 16 << 10;
/// How many sizes there are (a count).
const SIZES: usize = (MAX_DIRECT_BYTES / MIN_DIRECT_BYTES).ilog2() as usize + 1;
/// How many buffers of a size are kept for reuse at most: of the largest, and of each other size (counts). A stream of
/// large requests gives some tens back at once, and takes them again.
const MOST_KEPT: (usize, usize) = (48, 8);
/// Buffers that are kept at rest: 12 MiB.
const KEPT_AT_REST: (usize, usize) = (8, 4);
/// Buffers that were of no use for so long go back to the kernel.
const REST: Duration = Duration::from_secs(1);

/// Of those with two counts, that for this size.
fn of_size(counts: (usize, usize), size: usize) -> usize {
    if size + 1 == SIZES { counts.0 } else { counts.1 }
}

/// Memory that is not in use now.
#[derive(Debug, Default)]
struct Kept {
    /// By size; the one used last is the last.
    buffers: [Vec<MmapMut>; SIZES],
    /// The fewest that there were at once since then: so many of the first were of no use.
    fewest: [usize; SIZES],
    counted_from: Option<Instant>,
}

/// Memory that begins at a page of the kernel's. Dropped, it is used again.
pub(super) struct Aligned {
    /// `None` once the buffer is dropped.
    memory: Option<MmapMut>,
    home: Arc<Mutex<Kept>>,
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let size = size(memory.len());
        let mut kept = self.home.lock();
        match kept.buffers.get_mut(size) {
            Some(kept) if kept.len() < of_size(MOST_KEPT, size) => kept.push(memory),
            // Given back to the kernel without the lock.
            _ => drop(kept),
        }
    }
}

/// Which size has room for so many bytes: 0 is the smallest.
fn size(len: usize) -> usize {
    len.div_ceil(MIN_DIRECT_BYTES).next_power_of_two().ilog2() as usize
}

/// Where buffers come from.
#[derive(Debug, Default)]
pub(super) struct Buffers(Arc<Mutex<Kept>>);

impl Buffers {
    /// A buffer of at least `len` bytes, with anything in them; at most [`MAX_DIRECT_BYTES`]. An error if there is no
    /// memory.
    pub(super) fn take(&self, len: usize) -> io::Result<Aligned> {
        assert!(len <= MAX_DIRECT_BYTES, "a buffer of {len} bytes for a direct request");
        let size = size(len);
        let memory = match self.0.lock().take(size) {
            Some(memory) => memory,
            None => MmapMut::map_anon(MIN_DIRECT_BYTES << size)?,
        };
        Ok(Aligned { memory: Some(memory), home: self.0.clone() })
    }

    /// To be called now and then: frees buffers that were not used recently.
    pub(super) fn rest(&self) {
        let unused = self.0.lock().unused(Instant::now());
        // Dropped without the lock, because the kernel takes long to unmap them.
        drop(unused);
    }
}

impl Kept {
    fn take(&mut self, size: usize) -> Option<MmapMut> {
        let buffers = self.buffers.get_mut(size)?;
        let taken = buffers.pop();
        if let Some(fewest) = self.fewest.get_mut(size) {
            *fewest = (*fewest).min(buffers.len());
        }
        taken
    }

    /// What was of no use since it was counted last, if that is a while ago.
    fn unused(&mut self, now: Instant) -> Vec<MmapMut> {
        if self.counted_from.is_some_and(|from| now.duration_since(from) < REST) {
            return Vec::new();
        }
        self.counted_from = Some(now);
        let mut unused = Vec::new();
        for ((size, buffers), fewest) in self.buffers.iter_mut().enumerate().zip(&mut self.fewest) {
            let too_many = buffers.len().saturating_sub(of_size(KEPT_AT_REST, size));
            unused.extend(buffers.drain(..too_many.min(*fewest)));
            *fewest = buffers.len();
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_hardly_larger_than_its_request() {
        let buffers = Buffers::default();
        for (len, expected) in [
            (0, MIN_DIRECT_BYTES),
            (1, MIN_DIRECT_BYTES),
            (MIN_DIRECT_BYTES, MIN_DIRECT_BYTES),
            (MIN_DIRECT_BYTES + 1, 2 * MIN_DIRECT_BYTES),
            (MAX_DIRECT_BYTES / 2 + 1, MAX_DIRECT_BYTES),
            (MAX_DIRECT_BYTES, MAX_DIRECT_BYTES),
        ] {
            let buffer = buffers.take(len).unwrap();
            assert!(buffer.len() == expected && buffer.as_ptr().addr().is_multiple_of(4096), "{len}");
        }
    }

    #[test]
    fn what_a_burst_had_goes_back_to_the_kernel() {
        let buffers = Buffers::default();
        let burst = |n: usize, len| drop((0..n).map(|_| buffers.take(len).unwrap()).collect::<Vec<_>>());
        let counts = || buffers.0.lock().buffers.each_ref().map(Vec::len);
        let later = || {
            let from = &mut buffers.0.lock().counted_from;
            *from = from.and_then(|from| from.checked_sub(REST));
        };
        burst(100, MAX_DIRECT_BYTES);
        burst(100, 1);
        assert_eq!(counts(), [8, 0, 0, 0, 0, 0, 48]);
        (0..9).for_each(|_| buffers.rest());
        assert_eq!(counts(), [8, 0, 0, 0, 0, 0, 48], "they may be wanted in a moment");
        // Twenty at once from now on.
        for _ in 0..2 {
            burst(20, MAX_DIRECT_BYTES);
            later();
            buffers.rest();
        }
        assert_eq!(counts(), [4, 0, 0, 0, 0, 0, 20]);
        later();
        buffers.rest();
        assert_eq!(counts(), [4, 0, 0, 0, 0, 0, 8]);
    }
}
