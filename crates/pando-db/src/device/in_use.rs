//! The devices in use in this process: file locks keep other processes out, and this module keeps out a second store
//! of the same process.
//!
//! Guarantees: of the stores that open one device value for writing, one has it, and of those that only read it any
//! number. Two values over one medium are two devices here; for files there is the lock besides. Uses nothing but
//! the addresses of devices.

use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
};

use crate::{
    device::Device,
    error::{Error, Result},
    locks::Mutex,
};

/// Users of each device that is in use, by its address: how many readers, or a writer.
static USED: Mutex<BTreeMap<usize, Users>> = Mutex::new(BTreeMap::new());

enum Users {
    Writer,
    Readers(usize),
}

/// The right to use a device, until it is dropped. It keeps the device, or its address could become that of another.
pub(crate) struct InUse {
    device: Arc<dyn Device>,
}

fn address(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).cast::<()>() as usize
}

impl InUse {
    /// [`Error::Locked`] if another store uses the device in a way that excludes this one.
    pub fn new(device: &Arc<dyn Device>, read_only: bool) -> Result<InUse> {
        match USED.lock().entry(address(device)) {
            btree_map::Entry::Vacant(free) => {
                free.insert(if read_only { Users::Readers(1) } else { Users::Writer });
            }
            btree_map::Entry::Occupied(mut used) => match used.get_mut() {
                Users::Readers(count) if read_only => *count += 1,
                _ => return Err(Error::Locked),
            },
        }
        Ok(InUse { device: device.clone() })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut used = USED.lock();
        let address = address(&self.device);
        match used.get_mut(&address) {
            Some(Users::Readers(count)) if *count > 1 => *count -= 1,
            _ => _ = used.remove(&address),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::MemDevice;

    #[test]
    fn a_device_has_one_writer_or_some_readers() {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(0));
        let other: Arc<dyn Device> = Arc::new(MemDevice::new(0));
        let refused = |read_only| matches!(InUse::new(&device, read_only), Err(Error::Locked));
        let writer = InUse::new(&device, false).unwrap();
        assert!(refused(false) && refused(true));
        InUse::new(&other, false).unwrap();
        drop(writer);
        let readers = [InUse::new(&device, true).unwrap(), InUse::new(&device, true).unwrap()];
        assert!(refused(false));
        let [first, second] = readers;
        drop(first);
        assert!(refused(false));
        drop(second);
        assert!(!refused(false) && !refused(true));
    }
}
