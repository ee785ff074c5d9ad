//! Whether there is something on a device that must not be overwritten unasked. Uses the device only.

use crate::{
    device::Device,
    error::{Error, Result},
};

/// How many bytes at the start of a device must be zero before it is overwritten unasked: all up to the end of Btrfs's
/// superblock, which lies at 64 KiB. Making a store writes its superblocks there, at last, and nothing else.
pub(super) const PROBE_BYTES: usize = 72 << 10;

/// True if nothing is on a device, as far as its beginning shows.
pub(super) fn starts_with_zeros(device: &dyn Device) -> Result<bool> {
    let mut probe = vec![0; device.size().min(PROBE_BYTES as u64) as usize];
    device.read_at(0, &mut probe).map_err(|e| Error::io("read", 0, e))?;
    Ok(probe.iter().all(|&byte| byte == 0))
}
