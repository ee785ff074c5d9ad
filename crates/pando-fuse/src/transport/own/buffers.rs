//! A pool of buffers that requests are read into.
//!
//! In a stream of large writes, fresh memory for each request would cost more than copying its bytes: the kernel
//! zeroes each page of it, with a fault for each. So the buffer that was used last is used next. While requests come,
//! as many buffers are kept as recent requests have used at once. The memory of the others, and of most buffers when
//! none was used for a moment, is returned to the kernel ([`Buffers::rest`]).
//!
//! Guarantees: a buffer belongs to the thread that took it until it is dropped; at rest [`KEPT_BUFFERS`] stay.

use std::{
    io,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use parking_lot::Mutex;

use crate::transport::own::device::READ_BUFFER_BYTES;

/// Buffers that are kept at rest, a count: 8 MiB of memory at most.
const KEPT_BUFFERS: usize = 8;
/// Buffers above that number go back to the kernel when none was taken for so long.
pub(super) const REST: Duration = Duration::from_secs(1);

/// The free buffers.
#[derive(Default)]
struct Spare {
    /// The one used last is the last.
    buffers: Vec<MmapMut>,
    /// When one was taken last.
    taken: Option<Instant>,
    /// The fewest free buffers at any time since then: so many are not needed.
    fewest: usize,
    counted_from: Option<Instant>,
}

impl Spare {
    /// The buffers that were of no use for [`REST`], but for those that are kept at rest.
    fn unused(&mut self, now: Instant) -> Vec<MmapMut> {
        if self.counted_from.is_some_and(|from| now.duration_since(from) < REST) {
            return Vec::new();
        }
        let gone = self.fewest.min(self.buffers.len().saturating_sub(KEPT_BUFFERS));
        let gone = self.buffers.drain(..gone).collect();
        (self.fewest, self.counted_from) = (self.buffers.len(), Some(now));
        gone
    }
}

/// Where buffers come from.
#[derive(Default)]
pub(super) struct Buffers(Arc<Mutex<Spare>>);

/// Memory for one request; its pages are real only as far as a request was ever long. When it is dropped another
/// request can take it.
pub(super) struct RequestBuffer {
    /// `None` only while the buffer is dropped.
    memory: Option<MmapMut>,
    home: Arc<Mutex<Spare>>,
}

impl Buffers {
    /// A buffer, in which the bytes of an earlier request may stand. Fails if the kernel gives no memory.
    pub(super) fn take(&self) -> io::Result<RequestBuffer> {
        let (kept, unused) = {
            let (mut spare, now) = (self.0.lock(), Instant::now());
            spare.taken = Some(now);
            let unused = spare.unused(now);
            let kept = spare.buffers.pop();
            spare.fewest = spare.fewest.min(spare.buffers.len());
            (kept, unused)
        };
        // Dropped without the lock, because the kernel takes long to unmap them.
        drop(unused);
        let memory = match kept {
            Some(memory) => memory,
            None => MmapMut::map_anon(READ_BUFFER_BYTES)?,
        };
        Ok(RequestBuffer { memory: Some(memory), home: self.0.clone() })
    }

    /// True if there are more than at rest. Then [`Buffers::rest`] is to be called after [`REST`].
    pub(super) fn are_many(&self) -> bool {
        self.0.lock().buffers.len() > KEPT_BUFFERS
    }

    /// Returns all buffers but [`KEPT_BUFFERS`] to the kernel, if none was taken for `since`.
    pub(super) fn rest(&self, since: Duration) {
        let mut spare = self.0.lock();
        if spare.taken.is_some_and(|taken| taken.elapsed() < since) {
            return;
        }
        let keep = spare.buffers.len().min(KEPT_BUFFERS);
        let gone = spare.buffers.split_off(keep);
        drop(spare);
        // Dropped without the lock, because the kernel takes long to unmap them.
        drop(gone);
    }
}

impl Deref for RequestBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl DerefMut for RequestBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for RequestBuffer {
    fn drop(&mut self) {
        self.home.lock().buffers.extend(self.memory.take());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A request is read into the memory that was used last.
    #[test]
    fn memory_of_requests_is_used_again() {
        let buffers = Buffers::default();
        let mut first = buffers.take().unwrap();
        assert_eq!(first.len(), READ_BUFFER_BYTES);
        first[7] = 1;
        let second = buffers.take().unwrap();
        let at = (first.as_ptr(), second.as_ptr());
        assert_ne!(at.0, at.1, "two requests have the same memory");
        drop(second);
        drop(first);
        let again = buffers.take().unwrap();
        assert_eq!((again.as_ptr(), again[7]), (at.0, 1), "memory that was just used is not used next");
    }

    /// What a burst had goes back while single requests go on to come.
    #[test]
    fn what_a_burst_had_goes_back_beside_other_requests() {
        let buffers = Buffers::default();
        let many: Vec<_> = (0..3 * KEPT_BUFFERS).map(|_| buffers.take().unwrap()).collect();
        drop(many);
        let count = || buffers.0.lock().buffers.len();
        let later = |buffers: &Buffers| {
            let mut spare = buffers.0.lock();
            spare.counted_from = spare.counted_from.and_then(|from| from.checked_sub(REST));
        };
        later(&buffers);
        drop(buffers.take().unwrap());
        assert_eq!(count(), 3 * KEPT_BUFFERS, "they were in use");
        // Twelve at once from now on.
        for _ in 0..3 {
            later(&buffers);
            drop((0..12).map(|_| buffers.take().unwrap()).collect::<Vec<_>>());
        }
        assert_eq!(count(), 12);
        for _ in 0..3 {
            later(&buffers);
            drop(buffers.take().unwrap());
        }
        assert_eq!(count(), KEPT_BUFFERS);
    }

    /// As many buffers as were used at once stay while requests come, and are freed afterwards.
    #[test]
    fn what_many_requests_had_goes_back_at_rest() {
        let buffers = Buffers::default();
        let many: Vec<_> = (0..3 * KEPT_BUFFERS).map(|_| buffers.take().unwrap()).collect();
        assert!(!buffers.are_many());
        drop(many);
        assert!(buffers.are_many());
        buffers.rest(REST);
        assert_eq!(buffers.0.lock().buffers.len(), 3 * KEPT_BUFFERS, "they may be wanted in a moment");
        buffers.rest(Duration::ZERO);
        assert_eq!(buffers.0.lock().buffers.len(), KEPT_BUFFERS);
        assert!(!buffers.are_many());
    }
}
