//! Batches as log records: logical, and all that replay needs.
//!
//! A record is the concatenation of its operations; each is a tag byte and
//! counted fields. Decoding is total.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    batch::{Batch, Op},
    error::Result,
    format::codec::{Reader, put_bytes},
};

mod tag {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const UPSERT: u8 = 3;
    pub const DELETE_RANGE: u8 = 4;
    pub const DELETE_FROM: u8 = 5;
    pub const CLONE: u8 = 6;
    pub const RENAME: u8 = 7;
}

pub(super) fn encode(batch: &Batch) -> Bytes {
    let size: usize = batch.ops().iter().map(|op| op_len(op) + 12).sum();
    let mut out = BytesMut::with_capacity(size);
    for op in batch.ops() {
        let (tag, first, second): (u8, &[u8], Option<&[u8]>) = match op {
            Op::Put(key, value) => (tag::PUT, key, Some(value)),
            Op::Delete(key) => (tag::DELETE, key, None),
            Op::Upsert(key, change) => (tag::UPSERT, key, Some(change)),
            Op::DeleteRange(lo, Some(hi)) => (tag::DELETE_RANGE, lo, Some(hi)),
            Op::DeleteRange(lo, None) => (tag::DELETE_FROM, lo, None),
            Op::ClonePrefix(src, dst) => (tag::CLONE, src, Some(dst)),
            Op::RenamePrefix(src, dst) => (tag::RENAME, src, Some(dst)),
        };
        out.put_u8(tag);
        put_bytes(&mut out, first);
        if let Some(second) = second {
            put_bytes(&mut out, second);
        }
    }
    out.freeze()
}

pub(super) fn decode(record: Bytes) -> Result<Batch> {
    let mut r = Reader::new(record, "log record");
    let mut batch = Batch::new();
    while r.remaining() > 0 {
        let tag = r.u8()?;
        let first = r.bytes()?;
        batch.push(match tag {
            tag::PUT => Op::Put(first, r.bytes()?),
            tag::DELETE => Op::Delete(first),
            tag::UPSERT => Op::Upsert(first, r.bytes()?),
            tag::DELETE_RANGE => Op::DeleteRange(first, Some(r.bytes()?)),
            tag::DELETE_FROM => Op::DeleteRange(first, None),
            tag::CLONE => Op::ClonePrefix(first, r.bytes()?),
            tag::RENAME => Op::RenamePrefix(first, r.bytes()?),
            other => return Err(r.bad(format!("unknown operation {other}"))),
        });
    }
    Ok(batch)
}

/// Bytes of keys and values in an operation.
pub(super) fn op_len(op: &Op) -> usize {
    match op {
        Op::Put(a, b) | Op::Upsert(a, b) | Op::ClonePrefix(a, b) | Op::RenamePrefix(a, b) => {
            a.len() + b.len()
        }
        Op::Delete(a) => a.len(),
        Op::DeleteRange(lo, hi) => lo.len() + hi.as_ref().map_or(0, Bytes::len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let mut batch = Batch::new();
        batch.put("a", "1").delete("b").upsert("c", "op").delete_prefix("d").delete_range("\u{ff}", None);
        batch.clone_prefix("e", "f").rename_prefix("g", "h");
        assert_eq!(decode(encode(&batch)).expect("well-formed"), batch);
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_batch() {
        let mut batch = Batch::new();
        batch.put("key", "value").clone_prefix("e", "f");
        let record = encode(&batch);
        for len in 0..record.len() {
            if let Ok(cut) = decode(record.slice(..len)) {
                assert!(cut.len() < batch.len());
            }
        }
    }
}
