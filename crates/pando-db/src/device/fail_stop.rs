//! A fail-stop device: after a failed flush every later one fails, too.
//!
//! A flush that fails may have lost writes of *any* thread before it, and only its caller gets the error: the next
//! flush of the same file succeeds (Rebello et al. 2020, "Can Applications Recover from fsync Failures?"). The log
//! and a checkpoint flush from different threads, and each depends on writes of the other. So flushes are serialised
//! here, and once one has failed none succeeds, nor a durable write, which is not serialised. All requests of the
//! engine pass through this module, so it also announces that a thread is about to wait for the device (`waiting`).
//! Nothing else is changed. Uses the device below and `waiting` only.

use std::{
    io::{self, IoSlice, IoSliceMut},
    sync::{Arc, OnceLock},
};

use bytes::Bytes;

use crate::{
    device::{Device, DeviceStats},
    locks::Mutex,
    waiting,
};

/// A device whose flushes fail for good once one has failed.
pub(crate) struct FailStop {
    device: Arc<dyn Device>,
    /// What the first failed flush said.
    failed: OnceLock<String>,
    /// Held over a flush: one that began beside a failing one may find nothing left to do.
    turn: Mutex<()>,
}

impl FailStop {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self { device, failed: OnceLock::new(), turn: Mutex::new(()) }
    }

    fn check(&self) -> io::Result<()> {
        match self.failed.get() {
            Some(reason) => Err(io::Error::other(format!("an earlier flush failed: {reason}"))),
            None => Ok(()),
        }
    }

    /// Remembers a failure.
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| _ = self.failed.set(error.to_string()))
    }
}

impl Device for FailStop {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        waiting::announce();
        self.device.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        waiting::announce();
        self.device.read_vectored_at(offset, bufs)
    }

    fn read_lent(&self, offset: u64, len: usize) -> io::Result<Option<Bytes>> {
        waiting::announce();
        self.device.read_lent(offset, len)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        waiting::announce();
        self.device.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        waiting::announce();
        self.device.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        waiting::announce();
        let _turn = self.turn.lock();
        self.check()?;
        self.note(self.device.flush())
    }

    /// Not serialised with flushes: it depends on no other writes, and must not wait for them.
    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        waiting::announce();
        self.check()?;
        self.note(self.device.write_durably(offset, buf))
    }

    fn reread(&self) -> io::Result<()> {
        waiting::announce();
        self.device.reread()
    }

    fn rest(&self) {
        self.device.rest();
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        waiting::announce();
        self.device.grow(size)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        waiting::announce();
        self.device.reserve(offset, len)
    }

    fn capacity(&self) -> io::Result<u64> {
        self.device.capacity()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        waiting::announce();
        self.device.discard(offset, len)
    }

    fn next_held(&self, from: u64) -> io::Result<Option<(u64, u64)>> {
        self.device.next_held(from)
    }

    fn is_direct(&self) -> bool {
        self.device.is_direct()
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
        let device = FailStop::new(below.clone());
        assert_eq!((device.size(), device.is_sparse()), (below.size(), below.is_sparse()));
        assert_eq!(device.is_direct(), below.is_direct());
        assert_eq!(device.capacity().unwrap(), below.capacity().unwrap());
        device.write_at(4096, &[1; 4096]).unwrap();
        assert!(device.discard(4096, 4096).unwrap());
        assert_eq!(below.stats().discards, 1);
        assert_eq!(device.next_held(0).unwrap(), below.next_held(0).unwrap());
        device.grow(2 << 20).unwrap();
        assert_eq!(below.size(), 2 << 20);
        device.read_vectored_at(0, &mut [IoSliceMut::new(&mut [1; 4096]), IoSliceMut::new(&mut [])]).unwrap();
        assert_eq!(below.stats().reads, 1);
    }

    #[test]
    fn after_a_failed_flush_none_succeeds() {
        let below = Arc::new(SimDevice::new(1 << 20, 1));
        let device = FailStop::new(below.clone());
        device.write_at(0, &[1]).unwrap();
        device.flush().unwrap();
        below.set_fail_at(Some(0), FailMode::Once);
        assert!(device.flush().is_err());
        below.flush().unwrap();
        assert!(device.flush().is_err());
        assert!(device.write_durably(0, &[2]).is_err());
        let mut byte = [0];
        device.read_at(0, &mut byte).unwrap();
        assert_eq!(byte, [1]);
    }

    #[test]
    fn after_a_failed_durable_write_no_flush_succeeds() {
        let below = Arc::new(SimDevice::new(1 << 20, 1));
        let device = FailStop::new(below.clone());
        assert!(device.write_durably(0, &[1]).unwrap());
        below.set_fail_at(Some(0), FailMode::Once);
        assert!(device.write_durably(0, &[2]).is_err());
        assert!(device.flush().is_err() && device.write_durably(0, &[2]).is_err());
    }
}
