//! A device that calls a function before each request: to count requests, delay them, or make them fail.
//!
//! A testing device, in the library for the same reason as [`SimDevice`](crate::device::SimDevice). Guarantee: the
//! function is called once for each read, write and flush, by the thread that makes it, before the device below; an
//! error of the function is that of the request. A second function may be called after each request that has
//! succeeded below, before it returns. A vectored read is one read. It discards nothing and knows of no space that is
//! held, as a device that offers neither, unless it is told to pass these calls on. Uses the device below only.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;

use crate::device::{Device, DeviceStats};

/// A call that is about to be made, with the bytes of the device that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceCall {
    /// Of [`Device::read_at`].
    Read(Range<u64>),
    /// Of [`Device::write_at`], and of a durable write on a device that cannot do one.
    Write(Range<u64>),
    /// Of [`Device::write_durably`].
    WriteDurably(Range<u64>),
    /// Of [`Device::flush`].
    Flush,
}

impl DeviceCall {
    /// Whether something is durable when it has returned.
    pub fn makes_durable(&self) -> bool {
        matches!(self, DeviceCall::Flush | DeviceCall::WriteDurably(_))
    }
}

/// What is asked before a call.
type Hook = dyn Fn(&DeviceCall) -> io::Result<()> + Send + Sync;

/// The function that is called after a request.
type AfterHook = dyn Fn(&DeviceCall) + Send + Sync;

/// A device with a function before its calls.
pub struct HookedDevice {
    below: Arc<dyn Device>,
    tells_apart: bool,
    /// Durable writes, which the device below does not count as such.
    durable_writes: AtomicU64,
    passes_discards: bool,
    /// Whether the device lends memory for reads.
    lends: bool,
    hook: Box<Hook>,
    after: Box<AfterHook>,
}

impl HookedDevice {
    /// Calls `hook` before each request to `below`. With `tells_apart` the device offers durable writes, by plain
    /// ones below.
    pub fn new(
        below: Arc<dyn Device>,
        tells_apart: bool,
        hook: impl Fn(&DeviceCall) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            below,
            tells_apart,
            durable_writes: 0.into(),
            passes_discards: false,
            lends: false,
            hook: Box::new(hook),
            after: Box::new(|_| ()),
        }
    }

    /// Tells `after` of each call that has succeeded below, before it returns.
    #[must_use]
    pub fn and_after(mut self, after: impl Fn(&DeviceCall) + Send + Sync + 'static) -> Self {
        self.after = Box::new(after);
        self
    }

    /// Passes discards on to the device below.
    #[must_use]
    pub fn with_discards(mut self) -> Self {
        self.passes_discards = true;
        self
    }

    /// Lends memory for reads, as a device does that goes past a page cache: [`Device::read_lent`].
    #[must_use]
    pub fn with_memory_to_lend(mut self) -> Self {
        self.lends = true;
        self
    }

    /// A call with what is asked before it and told after it.
    fn call<T>(&self, call: &DeviceCall, below: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        (self.hook)(call)?;
        let done = below()?;
        (self.after)(call);
        Ok(done)
    }
}

fn range(offset: u64, buf: &[u8]) -> Range<u64> {
    offset..offset.saturating_add(buf.len() as u64)
}

impl Device for HookedDevice {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.call(&DeviceCall::Read(range(offset, buf)), || self.below.read_at(offset, buf))
    }

    fn read_lent(&self, offset: u64, len: usize) -> io::Result<Option<Bytes>> {
        if !self.lends {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes)?;
        Ok(Some(bytes.into()))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.call(&DeviceCall::Write(range(offset, buf)), || self.below.write_at(offset, buf))
    }

    fn flush(&self) -> io::Result<()> {
        self.call(&DeviceCall::Flush, || self.below.flush())
    }

    fn write_durably(&self, offset: u64, buf: &[u8]) -> io::Result<bool> {
        if !self.tells_apart {
            return self.write_at(offset, buf).map(|()| false);
        }
        self.call(&DeviceCall::WriteDurably(range(offset, buf)), || self.below.write_at(offset, buf))?;
        self.durable_writes.fetch_add(1, Relaxed);
        Ok(true)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        if self.passes_discards { self.below.discard(offset, len) } else { Ok(false) }
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.below.grow(size)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.below.reserve(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        let below = self.below.stats();
        DeviceStats { flushes: below.flushes + self.durable_writes.load(Relaxed), ..below }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Mutex;

    use super::*;
    use crate::device::MemDevice;

    #[test]
    fn each_call_is_told_once_and_may_be_refused() {
        for tells_apart in [false, true] {
            let told = Arc::new(Mutex::new(Vec::new()));
            let (to, below) = (told.clone(), Arc::new(MemDevice::new(1 << 20)));
            let device = HookedDevice::new(below.clone(), tells_apart, move |call| {
                to.lock().unwrap().push(call.clone());
                match call {
                    DeviceCall::Read(range) if range.contains(&5000) => Err(io::Error::from_raw_os_error(5)),
                    _ => Ok(()),
                }
            });
            let done = Arc::new(AtomicU64::new(0));
            let counted = done.clone();
            let device = device.and_after(move |_| _ = counted.fetch_add(1, Relaxed));
            device.write_at(10, &[1; 4]).unwrap();
            assert_eq!(device.write_durably(20, &[2; 4]).unwrap(), tells_apart);
            device.flush().unwrap();
            device.read_vectored_at(10, &mut [io::IoSliceMut::new(&mut [0; 4])]).unwrap();
            assert!(device.read_at(4096, &mut [0; 4096]).is_err());
            let durable =
                if tells_apart { DeviceCall::WriteDurably(20..24) } else { DeviceCall::Write(20..24) };
            let wanted = [
                DeviceCall::Write(10..14),
                durable,
                DeviceCall::Flush,
                DeviceCall::Read(10..14),
                DeviceCall::Read(4096..8192),
            ];
            assert_eq!(*told.lock().unwrap(), wanted);
            assert_eq!(done.load(Relaxed), 4, "the refused one is not done");
            assert_eq!(device.stats().flushes, 1 + u64::from(tells_apart));
            assert!(!device.discard(0, 4096).unwrap() && device.with_discards().discard(0, 4096).unwrap());
            assert_eq!((below.stats().reads, below.stats().writes), (1, 2));
        }
    }
}
