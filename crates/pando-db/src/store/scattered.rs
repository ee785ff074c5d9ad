//! Scattered extents on the device: how they are named, and how their bytes are written to and read from several
//! ranges (`space::scattered`).
//!
//! An extent is named by its offset and its length. One in several ranges has [`SCATTERED`] set in the length, and the
//! offset is that of its directory: a block with the ranges, under a checksum. Uses the device and `space`.

use std::{io::IoSlice, ops::Range, sync::Arc};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::{BLOCK, Device},
    error::{Error, Result},
    pool,
    space::{Extent, MAX_EXTENT_RANGES, Space},
};

/// Bit of the length of an extent that has a directory.
pub(crate) const SCATTERED: u32 = 1 << 31;
const DIRECTORY_MAGIC: u32 = u32::from_le_bytes(*b"PDIR");
/// Bytes of a directory before its ranges: magic, number of ranges, checksum of these.
const DIRECTORY_HEAD_BYTES: usize = 4 + 4 + 8;
/// Bytes of a range in a directory: offset and length.
const RANGE_BYTES: usize = 8 + 4;
const _: () = assert!(
    DIRECTORY_HEAD_BYTES + MAX_EXTENT_RANGES * RANGE_BYTES <= BLOCK as usize,
    "the ranges of an extent fit its directory"
);

/// The length of an extent as it stands on the device.
pub(crate) fn stored_len(extent: &Extent) -> u32 {
    extent.len as u32 | if extent.is_scattered() { SCATTERED } else { 0 }
}

/// Marks an extent that stands on the device as `offset` and `len` as owned, while a store is loaded; one that may
/// be several nodes' if it is `shared`. [`Error::Corrupt`] if it cannot be one. I/O: its directory, if it has one.
pub(crate) fn adopt(
    device: &dyn Device,
    space: &Arc<Space>,
    (offset, len): (u64, u32),
    shared: bool,
) -> Result<Arc<Extent>> {
    if len & SCATTERED == 0 {
        return if shared { space.adopt_shared(offset, len.into()) } else { space.adopt(offset, len.into()) };
    }
    let bad = |detail: &str| Error::corrupt("directory of an extent", offset, detail);
    if offset.checked_add(BLOCK).is_none_or(|end| end > space.end()) {
        return Err(bad("it lies outside the store"));
    }
    let mut block = vec![0; BLOCK as usize];
    device.read_at(offset, &mut block).map_err(|e| Error::io("read of a directory", offset, e))?;
    let ranges = decode(Bytes::from(block)).ok_or_else(|| bad("it is damaged"))?;
    if ranges.iter().map(|range| range.end - range.start).sum::<u64>() != u64::from(len & !SCATTERED) {
        return Err(bad("its ranges have another length"));
    }
    space.adopt_scattered(offset, ranges, shared)
}

/// Reads the directory of an extent again, if it has one: [`Error::Corrupt`] if it is not what it was. At the next
/// opening of the store there is nothing else that says where the extent is.
pub(crate) fn verify(device: &dyn Device, extent: &Extent) -> Result<()> {
    if !extent.is_scattered() {
        return Ok(());
    }
    let mut block = vec![0; BLOCK as usize];
    let offset = extent.offset;
    device.read_at(offset, &mut block).map_err(|e| Error::io("read of a directory", offset, e))?;
    match block == encode(extent) {
        true => Ok(()),
        false => Err(Error::corrupt("directory of an extent", offset, "it is damaged")),
    }
}

fn encode(extent: &Extent) -> Bytes {
    let mut ranges = BytesMut::new();
    for range in extent.ranges() {
        ranges.put_u64_le(range.start);
        ranges.put_u32_le((range.end - range.start) as u32);
    }
    let mut out = BytesMut::with_capacity(BLOCK as usize);
    out.put_u32_le(DIRECTORY_MAGIC);
    out.put_u32_le((ranges.len() / RANGE_BYTES) as u32);
    out.put_u64_le(xxh3_64(&ranges));
    out.put_slice(&ranges);
    assert!(out.len() <= BLOCK as usize, "a directory of more than a block");
    out.resize(BLOCK as usize, 0);
    out.freeze()
}

/// The ranges of a directory; `None` if it is damaged.
fn decode(mut block: Bytes) -> Option<Vec<Range<u64>>> {
    let (magic, number, sum) = (block.get_u32_le(), block.get_u32_le() as usize, block.get_u64_le());
    if magic != DIRECTORY_MAGIC || number > MAX_EXTENT_RANGES {
        return None;
    }
    let mut entries = block.split_to(number * RANGE_BYTES);
    if xxh3_64(&entries) != sum {
        return None;
    }
    let range = |_| {
        let (offset, len) = (entries.get_u64_le(), u64::from(entries.get_u32_le()));
        Some(offset..offset.checked_add(len)?)
    };
    (0..number).map(range).collect()
}

/// Writes all bytes of an extent, and its directory if it has one. A request for each of its ranges.
pub(crate) fn write(device: &dyn Device, extent: &Extent, bytes: &[u8]) -> Result<()> {
    assert_eq!(bytes.len() as u64, extent.len, "bytes that do not fill an extent");
    let put = |offset: u64, bytes: &[u8]| {
        device.write_vectored_at(offset, &[IoSlice::new(bytes)]).map_err(|e| Error::io("write", offset, e))
    };
    let mut rest = bytes;
    for range in extent.ranges() {
        let (here, more) = rest.split_at((range.end - range.start) as usize);
        put(range.start, here)?;
        rest = more;
    }
    if extent.is_scattered() { put(extent.offset, &encode(extent)) } else { Ok(()) }
}

/// Bytes of an extent, unverified: `len` from byte `from` of it on. A request for each of its ranges that they are in.
/// [`Error::Corrupt`] if it has not so many.
pub(crate) fn read(device: &dyn Device, extent: &Extent, from: u64, len: u32) -> Result<Bytes> {
    let mut bytes = pool::buffer(len as usize);
    let mut done = 0;
    for place in extent.places(from, len.into()) {
        let end = done + (place.end - place.start) as usize;
        let Some(here) = bytes.get_mut(done..end) else { break };
        device.read_at(place.start, here).map_err(|e| Error::io("read", place.start, e))?;
        done = end;
    }
    if done < len as usize {
        return Err(Error::corrupt(
            "extent",
            extent.offset,
            format!("{len} bytes from {from} on are not in it"),
        ));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::MemDevice;

    const SIZE: u64 = 64 * BLOCK;

    #[test]
    fn a_scattered_extent_is_found_again() {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
        let space = Space::new(device.clone(), 0, SIZE);
        let mut all: Vec<_> = (0..64).map(|_| space.allocate(BLOCK).unwrap()).collect();
        let mut index = 0;
        all.retain(|_| {
            index += 1;
            index % 3 == 0
        });
        let extent = space.allocate_scattered(9 * BLOCK).unwrap();
        let bytes: Vec<u8> = (0..9 * BLOCK).map(|i| (i / 7) as u8).collect();
        write(&*device, &extent, &bytes).unwrap();
        let name = (extent.offset, stored_len(&extent));
        let loaded = Space::new(device.clone(), 0, SIZE);
        let found = adopt(&*device, &loaded, name, false).unwrap();
        assert!(found.ranges().eq(extent.ranges()) && found.len == extent.len);
        verify(&*device, &found).unwrap();
        for (from, len) in [(0, 9 * BLOCK), (BLOCK - 3, 10), (5 * BLOCK + 1, 3 * BLOCK)] {
            let wanted = &bytes[from as usize..(from + len) as usize];
            assert_eq!(read(&*device, &found, from, len as u32).unwrap(), wanted);
        }
        assert!(read(&*device, &found, 8 * BLOCK, 2 * BLOCK as u32).is_err_and(|e| e.is_damage()));

        // Whatever bit of its directory is another, or if the name is, it is found out.
        let mut block = vec![0; BLOCK as usize];
        device.read_at(extent.offset, &mut block).unwrap();
        let used = DIRECTORY_HEAD_BYTES + extent.ranges().count() * RANGE_BYTES;
        for bit in 0..used * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            device.write_at(extent.offset, &block).unwrap();
            let space = Space::new(device.clone(), 0, SIZE);
            assert!(adopt(&*device, &space, name, false).is_err_and(|e| e.is_damage()), "bit {bit}");
            assert!(verify(&*device, &extent).is_err_and(|e| e.is_damage()), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        device.write_at(extent.offset, &block).unwrap();
        for (offset, len) in [(0, 0), (0, 4096), (BLOCK, 0), (SIZE, 0)] {
            let space = Space::new(device.clone(), 0, SIZE);
            let other = (name.0 + offset, name.1 + len);
            if other != name {
                assert!(adopt(&*device, &space, other, true).is_err_and(|e| e.is_damage()), "{other:?}");
            }
        }
    }
}
