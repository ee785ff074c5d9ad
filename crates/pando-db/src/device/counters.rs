//! Counting of what a device serves: the figures on which cost tests rest.
//!
//! Every device owns one [`Counters`] and reports each request that it served
//! in full; a refused or failed request is not counted. Uses atomics only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::DeviceStats;

/// Running totals, updated without a lock.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    read_seeks: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    discard_bytes: AtomicU64,
    /// Where the previous read ended.
    read_end: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, offset: u64, len: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(len as u64, Relaxed);
        if self.read_end.swap(offset + len as u64, Relaxed) != offset {
            self.read_seeks.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn write(&self, len: usize) {
        self.writes.fetch_add(1, Relaxed);
        self.write_bytes.fetch_add(len as u64, Relaxed);
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub(crate) fn discard(&self, len: u64) {
        self.discards.fetch_add(1, Relaxed);
        self.discard_bytes.fetch_add(len, Relaxed);
    }

    pub(crate) fn stats(&self) -> DeviceStats {
        DeviceStats {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            read_seeks: self.read_seeks.load(Relaxed),
            writes: self.writes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            discard_bytes: self.discard_bytes.load(Relaxed),
        }
    }
}
