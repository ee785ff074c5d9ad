//! Aligned memory for direct requests, used again and again.
//!
//! A buffer is as large as its request, to the next power of two: whoever keeps a part of what was read keeps all of
//! the buffer. The memory is the kernel's, not the allocator's: there the buffers that come and go would leave holes
//! of a MiB in the arena of each thread.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use memmap2::MmapMut;
use parking_lot::Mutex;

/// Bytes of the largest buffer: the longest direct request.
pub(super) const BUFFER: usize = 1 << 20;
/// Bytes of the smallest one.
const LEAST_BUFFER: usize = 16 << 10;
/// How many sizes there are (a count).
const SIZES: usize = (BUFFER / LEAST_BUFFER).ilog2() as usize + 1;
/// How many of the largest buffers are kept for reuse, and of each other size (counts): 16 MiB.
const KEPT: (usize, usize) = (12, 4);

/// Memory that nobody uses now, by size.
type Kept = Mutex<[Vec<MmapMut>; SIZES]>;

/// Memory that begins at a page of the kernel's. Dropped, it is used again.
pub(super) struct Aligned {
    /// None once it is dropped.
    memory: Option<MmapMut>,
    home: Arc<Kept>,
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
        let most = if memory.len() == BUFFER { KEPT.0 } else { KEPT.1 };
        let mut kept = self.home.lock();
        match kept.get_mut(size(memory.len())) {
            Some(kept) if kept.len() < most => kept.push(memory),
            // Given back to the kernel without the lock.
            _ => drop(kept),
        }
    }
}

/// Which size has room for so many bytes: 0 is the smallest.
fn size(len: usize) -> usize {
    len.div_ceil(LEAST_BUFFER).next_power_of_two().ilog2() as usize
}

/// Where buffers come from.
#[derive(Debug, Default)]
pub(super) struct Buffers(Arc<Kept>);

impl Buffers {
    /// A buffer of at least `len` bytes, with anything in them; at most [`BUFFER`]. An error if there is no memory.
    pub(super) fn take(&self, len: usize) -> io::Result<Aligned> {
        assert!(len <= BUFFER, "a buffer of {len} bytes for a direct request");
        let size = size(len);
        let kept = self.0.lock().get_mut(size).and_then(Vec::pop);
        let memory = match kept {
            Some(memory) => memory,
            None => MmapMut::map_anon(LEAST_BUFFER << size)?,
        };
        Ok(Aligned { memory: Some(memory), home: self.0.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_hardly_larger_than_its_request_and_few_are_kept() {
        let buffers = Buffers::default();
        for (len, expected) in [
            (0, LEAST_BUFFER),
            (1, LEAST_BUFFER),
            (LEAST_BUFFER, LEAST_BUFFER),
            (LEAST_BUFFER + 1, 2 * LEAST_BUFFER),
            (BUFFER / 2 + 1, BUFFER),
            (BUFFER, BUFFER),
        ] {
            let taken: Vec<_> = (0..40).map(|_| buffers.take(len).unwrap()).collect();
            assert!(taken.iter().all(|b| b.len() == expected && b.as_ptr().addr() % 4096 == 0), "{len}");
        }
        let kept = buffers.0.lock();
        assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 0, 0, 0, 0, 12]);
        assert!(kept.iter().flatten().map(|memory| memory.len()).sum::<usize>() <= 16 << 20);
    }
}
