//! Primitive fields: fixed little-endian integers, LEB128 varints, counted byte strings.

use bytes::{Buf, BufMut, Bytes};

use crate::error::{Error, Result};

/// Appends an unsigned LEB128 integer.
pub(crate) fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Bytes of an unsigned LEB128 integer.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a byte string with its length.
pub(crate) fn put_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Reads an unsigned LEB128 integer at the head of `input` and its width in bytes.
#[inline]
pub(crate) fn peek_varint(input: &[u8]) -> Option<(u64, usize)> {
    // Most lengths are short, and searches read many.
    if let Some(&byte) = input.first()
        && byte < 0x80
    {
        return Some((byte.into(), 1));
    }
    let mut value = 0u64;
    for (i, &byte) in input.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(7 * i as u32)?;
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Reads fields from a buffer; every error names the structure being read.
pub(crate) struct Reader {
    input: Bytes,
    what: &'static str,
}

impl Reader {
    pub fn new(input: Bytes, what: &'static str) -> Self {
        Self { input, what }
    }

    /// An error in the structure being read.
    pub fn bad(&self, detail: impl Into<String>) -> Error {
        Error::corrupt(self.what, 0, detail)
    }

    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    pub fn take(&mut self, len: usize) -> Result<Bytes> {
        if len > self.input.len() {
            return Err(self.bad(format!("a field of {len} bytes with {} left", self.input.len())));
        }
        Ok(self.input.split_to(len))
    }

    /// A field of fixed length, without a count of the shared memory going up and down for it.
    fn fixed<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let Some(&field) = self.input.first_chunk() else {
            return Err(self.bad(format!("a field of {LEN} bytes with {} left", self.input.len())));
        };
        self.input.advance(LEN);
        Ok(field)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.fixed().map(u8::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.fixed().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.fixed().map(u64::from_le_bytes)
    }

    pub fn varint(&mut self) -> Result<u64> {
        let (value, width) = peek_varint(&self.input).ok_or_else(|| self.bad("a bad varint"))?;
        self.input.advance(width);
        Ok(value)
    }

    pub fn varint_u32(&mut self) -> Result<u32> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| self.bad(format!("{value} does not fit its field")))
    }

    /// A count of items that take at least `min_bytes` each: bounded by what is left.
    pub fn count(&mut self, min_bytes: usize) -> Result<usize> {
        let count = self.varint()?;
        if count > (self.input.len() / min_bytes.max(1)) as u64 {
            return Err(self.bad(format!("a count of {count} with {} bytes left", self.input.len())));
        }
        Ok(count as usize)
    }

    pub fn bytes(&mut self) -> Result<Bytes> {
        let len = self.count(1)?;
        self.take(len)
    }

    pub fn end(self) -> Result<()> {
        if self.input.is_empty() { Ok(()) } else { Err(self.bad("bytes behind the end")) }
    }
}
