//! The bytes of a log record: encoding and decoding of its header, nothing else.
//!
//! | byte | field (little-endian) |
//! | --- | --- |
//! | 0 | magic u32 |
//! | 4 | payload length u32 |
//! | 8 | MSN u64: one more than that of the record before |
//! | 16 | session u64: random, chosen each time the log is opened for writing |
//! | 24 | checksum u64: xxh3_64 of bytes 0..24 and the xxh3_64 of the payload, seeded with the checksum of
//! the record before |
//! | 32 | payload, then zeros up to a multiple of 8 |
//!
//! The seed chains the records: a record is valid only behind the record to which it was appended. MSNs only grow,
//! so a record of an earlier lap of the ring has an older one. The session is part of the checksum because a crash may
//! lose a record and keep the one behind it: if the next session appends the same bytes again, the old record behind
//! them must not become valid.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length of a header in bytes.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
const RECORD_MAGIC: u32 = 0x4c64_6e50;

/// The fields of a header without the checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) msn: u64,
    pub(crate) session: u64,
}

impl Header {
    /// The bytes of the header, and the checksum that the next record is chained to.
    pub(crate) fn encode(&self, payload_hash: u64, chain: u64) -> ([u8; RECORD_HEADER_BYTES], u64) {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.msn.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.session.to_le_bytes());
        // The payload's hash stands in for the payload, so that it can be computed early.
        bytes[24..].copy_from_slice(&payload_hash.to_le_bytes());
        let checksum = xxh3_64_with_seed(&bytes, chain);
        bytes[24..].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// The fields in these bytes if they begin with the magic number. That proves nothing yet: the record is valid if
    /// [`Header::encode`] returns the same bytes.
    pub(crate) fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (msn, rest) = rest.split_first_chunk()?;
        let (session, _) = rest.split_first_chunk()?;
        (u32::from_le_bytes(*magic) == RECORD_MAGIC).then_some(Self {
            len: u32::from_le_bytes(*len),
            msn: u64::from_le_bytes(*msn),
            session: u64::from_le_bytes(*session),
        })
    }
}

/// Bytes that a record of `payload` bytes takes.
pub(crate) fn record_len(payload: usize) -> u64 {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(8) as u64
}
