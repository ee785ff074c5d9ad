//! A device in memory: for tests, benches of the engine alone and throw-away stores.
//!
//! Sparse, so that a large size costs nothing. "Durable" means until it is
//! dropped; it never fails a request that lies inside it.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::{
    device::{Device, DeviceStats, check_range, counters::Counters, sparse::Sparse},
    locks::RwLock,
};

/// A device in plain memory.
#[derive(Debug, Default)]
pub struct MemDevice {
    bytes: RwLock<Sparse<{ 64 << 10 }>>,
    size: AtomicU64,
    counters: Counters,
}

impl MemDevice {
    /// A device of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        Self { size: size.into(), ..Self::default() }
    }
}

impl Device for MemDevice {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), offset, buf.len() as u64)?;
        self.bytes.read().read(offset, buf);
        self.counters.read(offset, buf.len());
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_range(self.size(), offset, buf.len() as u64)?;
        self.bytes.write().write(offset, buf);
        self.counters.write(buf.len());
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        if self.size.fetch_max(size, Relaxed) > size {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device cannot shrink"));
        }
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size(), offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_range(self.size(), offset, len)?;
        self.bytes.write().clear(offset, len);
        self.counters.discard(len);
        Ok(true)
    }

    fn stats(&self) -> DeviceStats {
        self.counters.stats()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_huge_device_costs_nothing_and_reads_zeros() {
        let device = MemDevice::new(1 << 50);
        let mut buf = [1; 100];
        device.read_at((1 << 50) - 100, &mut buf).unwrap();
        assert_eq!(buf, [0; 100]);
    }

    #[test]
    fn what_was_written_is_read_across_chunks() {
        let device = MemDevice::new(1 << 20);
        let data: Vec<u8> = (0..200_000u32).map(|i| (i * 7 % 251) as u8).collect();
        device.write_at(65_500, &data).unwrap();
        let mut buf = vec![0; data.len() + 2];
        device.read_at(65_499, &mut buf).unwrap();
        assert_eq!((buf[0], &buf[1..=data.len()], buf[data.len() + 1]), (0, &data[..], 0));
    }

    #[test]
    fn what_is_discarded_is_zero_and_takes_no_memory() {
        let device = MemDevice::new(1 << 20);
        device.write_at(0, &vec![9; 300_000]).unwrap();
        device.discard(100, 200_000).unwrap();
        let mut buf = vec![1; 300_000];
        device.read_at(0, &mut buf).unwrap();
        assert!(buf.iter().enumerate().all(|(i, &byte)| (byte == 0) == (100..200_100).contains(&i)));
        assert!(!device.bytes.read().holds(64 << 10) && device.bytes.read().holds(0));
        assert!(device.discard(1 << 20, 1).is_err());
    }

    #[test]
    fn requests_outside_are_refused_and_not_counted() {
        let device = MemDevice::new(4096);
        assert!(device.read_at(4090, &mut [0; 7]).is_err());
        assert!(device.write_at(u64::MAX, &[0; 7]).is_err());
        assert!(device.grow(4095).is_err());
        assert_eq!(device.stats(), DeviceStats::default());
        device.grow(8192).unwrap();
        device.write_at(8185, &[1; 7]).unwrap();
        assert_eq!(device.size(), 8192);
    }

    #[test]
    fn requests_bytes_and_seeks_are_counted() {
        let device = MemDevice::new(1 << 20);
        for offset in [0, 10, 20, 500, 510, 0] {
            device.read_at(offset, &mut [0; 10]).unwrap();
        }
        device.write_at(5, &[0; 33]).unwrap();
        device.flush().unwrap();
        assert!(device.discard(0, 7).unwrap());
        let expected = DeviceStats {
            reads: 6,
            read_bytes: 60,
            read_seeks: 2,
            writes: 1,
            write_bytes: 33,
            flushes: 1,
            discards: 1,
            discard_bytes: 7,
        };
        assert_eq!(device.stats(), expected);
    }
}
