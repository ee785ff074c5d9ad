//! Sizes of the memtables, which every write compares with its limits.
//!
//! Each change of the superversion publishes them, under its lock. Readers take no lock: they may see the sizes of
//! two changes mixed, which is good enough for limits. No I/O.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::db::engine::superversion::Superversion;

/// Sizes of the memtables as of the last change of the superversion.
#[derive(Default)]
pub(crate) struct MemtableSizes {
    /// Bytes of the active memtable and of the sealed ones.
    bytes: AtomicUsize,
    sealed_bytes: AtomicUsize,
    sealed: AtomicUsize,
    /// The number of the last batch that came from the log when the store was opened.
    recovered_msn: AtomicU64,
    recovered_bytes: AtomicUsize,
    recovered: AtomicUsize,
}

impl MemtableSizes {
    /// Takes the sizes from `superversion`. The caller holds its lock.
    pub fn publish(&self, superversion: &Superversion) {
        let sealed_bytes = superversion.sealed.iter().map(|table| table.bytes()).sum::<usize>();
        self.bytes.store(superversion.active.bytes() + sealed_bytes, Ordering::Relaxed);
        self.sealed_bytes.store(sealed_bytes, Ordering::Relaxed);
        self.sealed.store(superversion.sealed.len(), Ordering::Relaxed);
        let last = self.recovered_msn.load(Ordering::Relaxed);
        // The recovered memtables are the oldest. As a rule there are none.
        let recovered = superversion.sealed.iter().take_while(|table| table.msn <= last);
        let (count, bytes) =
            recovered.fold((0, 0), |(count, bytes), table| (count + 1, bytes + table.bytes()));
        self.recovered_bytes.store(bytes, Ordering::Relaxed);
        self.recovered.store(count, Ordering::Relaxed);
    }

    /// Counts memtables whose batches have numbers up to `msn` as recovered from the log.
    pub fn set_recovered(&self, msn: u64) {
        self.recovered_msn.store(msn, Ordering::Relaxed);
    }

    /// Bytes of all memtables.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the sealed memtables.
    pub fn sealed_bytes(&self) -> usize {
        self.sealed_bytes.load(Ordering::Relaxed)
    }

    /// How many memtables are sealed.
    pub fn sealed(&self) -> usize {
        self.sealed.load(Ordering::Relaxed)
    }

    /// Bytes of the sealed memtables that were recovered from the log and are not flushed yet.
    pub fn recovered_bytes(&self) -> usize {
        self.recovered_bytes.load(Ordering::Relaxed)
    }

    /// How many sealed memtables were recovered from the log and are not flushed yet.
    pub fn recovered(&self) -> usize {
        self.recovered.load(Ordering::Relaxed)
    }
}
