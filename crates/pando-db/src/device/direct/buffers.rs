//! Aligned memory for direct requests, used again and again.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use parking_lot::Mutex;

/// Bytes of a buffer: the longest direct request.
pub(super) const BUFFER: usize = 1 << 20;
/// What the memory of a request has to be aligned to, in bytes: more than any medium asks for.
const ALIGN: usize = 4096;
/// Buffers that are kept for reuse.
const KEPT_BUFFERS: usize = 16;

/// Memory that nobody uses now.
type Kept = Mutex<Vec<Vec<u8>>>;

/// [`BUFFER`] bytes that begin at a multiple of [`ALIGN`]. Dropped, it is used again.
pub(super) struct Aligned {
    memory: Vec<u8>,
    from: usize,
    home: Arc<Kept>,
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.get(self.from..self.from + BUFFER).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.from..self.from + BUFFER).unwrap_or_default()
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        let mut kept = self.home.lock();
        if kept.len() < KEPT_BUFFERS {
            kept.push(std::mem::take(&mut self.memory));
        }
    }
}

/// Where buffers come from.
#[derive(Debug, Default)]
pub(super) struct Buffers(Arc<Kept>);

impl Buffers {
    /// A buffer with anything in it.
    pub(super) fn take(&self) -> Aligned {
        let kept = self.0.lock().pop();
        let memory = kept.unwrap_or_else(|| vec![0; BUFFER + ALIGN]);
        // The heap does not move with the vector.
        let from = memory.as_ptr().addr().wrapping_neg() % ALIGN;
        Aligned { memory, from, home: self.0.clone() }
    }
}
