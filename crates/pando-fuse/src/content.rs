//! The content of a file, as the daemon tells it to a tool that has no path to it.
//!
//! The bytes: the size of the file (u64), then for each part that is stored where it begins (u64), how many bytes
//! follow (u32), and these. What lies between is zeros, and takes no bytes. Pure.

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of a part before its content.
const PART_HEAD_BYTES: usize = 8 + 4;

/// The beginning of an answer.
pub(crate) fn encode_size(size: u64) -> Vec<u8> {
    size.to_le_bytes().into()
}

/// A part of the content.
pub(crate) fn encode(at: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PART_HEAD_BYTES + bytes.len());
    out.extend(at.to_le_bytes());
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
    out
}

/// Writes content that comes in pieces of any size.
#[derive(Default)]
pub(crate) struct ContentDecoder {
    bytes: Vec<u8>,
    size: Option<u64>,
}

/// The bytes are no content of a file.
fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer that makes no sense")
}

impl ContentDecoder {
    /// Takes a piece in, and writes the parts that are complete by it. `to` is an empty file, and gets holes where
    /// nothing is stored.
    pub(crate) fn add(&mut self, piece: &[u8], to: &mut (impl Write + Seek)) -> io::Result<()> {
        self.bytes.extend_from_slice(piece);
        let mut rest = &self.bytes[..];
        if self.size.is_none() {
            let Some((size, behind)) = rest.split_first_chunk::<8>() else { return Ok(()) };
            (self.size, rest) = (Some(u64::from_le_bytes(*size)), behind);
        }
        while let Some((at, behind)) = rest.split_first_chunk::<8>()
            && let Some((len, behind)) = behind.split_first_chunk::<4>()
            && let Some((part, behind)) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)
        {
            let (at, len) = (u64::from_le_bytes(*at), part.len() as u64);
            if at.checked_add(len).is_none_or(|end| Some(end) > self.size) {
                return Err(nonsense());
            }
            to.seek(SeekFrom::Start(at))?;
            to.write_all(part)?;
            rest = behind;
        }
        let used = self.bytes.len() - rest.len();
        self.bytes.drain(..used);
        Ok(())
    }

    /// The size of the file, when nothing follows; an error if a part of the answer is missing.
    pub(crate) fn end(self) -> io::Result<u64> {
        self.size.filter(|_| self.bytes.is_empty()).ok_or_else(nonsense)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Cursor;

    use super::*;

    #[test]
    fn content_comes_back_from_pieces_of_any_size_and_nonsense_is_an_error() {
        let told = [encode_size(100), encode(3, b"abc"), encode(90, &[7; 10])].concat();
        let mut wanted = vec![0; 100];
        wanted[3..6].copy_from_slice(b"abc");
        wanted[90..].fill(7);
        for size in 1..told.len() {
            let (mut decoder, mut file) = (ContentDecoder::default(), Cursor::new(Vec::new()));
            told.chunks(size).for_each(|piece| decoder.add(piece, &mut file).unwrap());
            assert_eq!(
                (decoder.end().unwrap(), file.into_inner()),
                (100, wanted.clone()),
                "pieces of {size}"
            );
        }
        for len in 0..told.len() {
            let (mut decoder, mut file) = (ContentDecoder::default(), Cursor::new(Vec::new()));
            decoder.add(&told[..len], &mut file).unwrap();
            let is_whole = [8, 8 + PART_HEAD_BYTES + 3].contains(&len);
            assert_eq!(decoder.end().is_ok(), is_whole, "{len} bytes");
        }
        for (at, len) in [(91, 10), (u64::MAX, 1), (101, 0)] {
            let told = [encode_size(100), encode(at, &vec![7; len])].concat();
            assert!(ContentDecoder::default().add(&told, &mut Cursor::new(Vec::new())).is_err(), "{at}");
        }
    }
}
