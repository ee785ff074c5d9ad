//! A device of which a failed flush is remembered: every later one fails too.
//!
//! A flush that fails may have lost what *anybody* wrote before it, and tells
//! only its caller: the next flush of the same file succeeds, as if all were
//! well (Rebello et al. 2020, "Can Applications Recover from fsync Failures?").
//! The log and a checkpoint flush from different threads, and each rests on what
//! the other wrote. So flushes take turns here, and once one has failed none
//! succeeds. Nothing else is changed. Uses the device below only.

use std::{io, sync::Arc};

use parking_lot::Mutex;

use super::{Device, DeviceStats};

/// A device whose flushes fail for good once one has failed.
pub(crate) struct Sticky {
    device: Arc<dyn Device>,
    /// What the first failed flush said; held while one is under way.
    failed: Mutex<Option<String>>,
}

impl Sticky {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, failed: Mutex::new(None) }
    }
}

impl Device for Sticky {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        // Held over the flush: one that began beside a failing one may have found nothing left to do.
        let mut failed = self.failed.lock();
        if let Some(reason) = &*failed {
            return Err(io::Error::other(format!("an earlier flush failed: {reason}")));
        }
        self.device.flush().inspect_err(|error| *failed = Some(error.to_string()))
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.device.grow(size)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.reserve(offset, len)
    }

    fn capacity(&self) -> io::Result<u64> {
        self.device.capacity()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.device.discard(offset, len)
    }

    fn next_held(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        self.device.next_held(from)
    }

    fn is_sparse(&self) -> bool {
        self.device.is_sparse()
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::{FailMode, SimDevice};

    #[test]
    fn all_else_reaches_the_device_below() {
        let below = Arc::new(SimDevice::new(1 << 20, 1));
        let device = Sticky::new(below.clone());
        assert_eq!((device.size(), device.is_sparse()), (below.size(), below.is_sparse()));
        assert_eq!(device.capacity().unwrap(), below.capacity().unwrap());
        device.write_at(4096, &[1; 4096]).unwrap();
        assert!(device.discard(4096, 4096).unwrap());
        assert_eq!(below.stats().discards, 1);
        assert_eq!(device.next_held(0).unwrap(), below.next_held(0).unwrap());
        device.grow(2 << 20).unwrap();
        assert_eq!(below.size(), 2 << 20);
    }

    #[test]
    fn after_a_failed_flush_none_succeeds() {
        let below = Arc::new(SimDevice::new(1 << 20, 1));
        let device = Sticky::new(below.clone());
        device.write_at(0, &[1]).unwrap();
        device.flush().unwrap();
        below.set_fail_at(Some(0), FailMode::Once);
        assert!(device.flush().is_err());
        below.flush().unwrap();
        assert!(device.flush().is_err());
        let mut byte = [0];
        device.read_at(0, &mut byte).unwrap();
        assert_eq!(byte, [1]);
    }
}
