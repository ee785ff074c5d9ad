//! Lent pages: cached pages in the memory into which the device has read them.
//!
//! Direct I/O reads into aligned memory, from which a page would have to be copied into new memory: allocation and
//! copy together cost more than the read. Pages that come by one request and are dropped together may stay in that
//! memory. But one remaining page keeps the memory of all, so this memory is counted here, and bounded.
//!
//! Guarantee: lent memory does not exceed the caller's limit, except by requests that are made at the same moment.
//! Uses the device. Knows nothing of caches.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::{device::Device, store::page_id::Wanted};

/// Most memory that is lent at a time, in bytes.
const MAX_LENT_BYTES: u64 = 64 << 20;

/// Reads into memory of the device.
pub(super) struct Lender {
    device: Arc<dyn Device>,
    /// What is not back yet, in bytes.
    out: Arc<AtomicU64>,
}

/// Memory that is counted as long as a part of it is there.
struct Lent {
    bytes: Bytes,
    out: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let bytes = self.bytes.len() as u64;
        assert!(self.out.fetch_sub(bytes, Relaxed) >= bytes, "memory comes back that was not lent");
    }
}

impl Lender {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, out: Arc::default() }
    }

    /// The bytes of pages that lie side by side, unverified, by one request. `None` if the device lends none, or
    /// fails, or would have lent more than `most` bytes.
    pub fn read(&self, wanted: &[Wanted<'_>], most: u64) -> Option<Vec<Bytes>> {
        let (first, last) = (wanted.first()?, wanted.last()?);
        let len = last.end() - first.at;
        if self.out.load(Relaxed) + len > most.min(MAX_LENT_BYTES) {
            return None;
        }
        let bytes = self.device.read_lent(first.at, len as usize).ok()??;
        assert_eq!(bytes.len() as u64, len, "the device lends other memory than it was asked for");
        self.out.fetch_add(len, Relaxed);
        let all = Bytes::from_owner(Lent { bytes, out: self.out.clone() });
        let piece = |wanted: &Wanted<'_>| {
            let from = (wanted.at - first.at) as usize;
            all.slice(from..from + wanted.segment.len as usize)
        };
        Some(wanted.iter().map(piece).collect())
    }
}
