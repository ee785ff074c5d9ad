//! Batches as log records: logical, and all that replay needs.
//!
//! A record is a kind byte and its operations; each is a tag byte and counted
//! fields. Long values are not in it but set aside, for the log to decide
//! where they go (`store::bulk`). Decoding is total.

use std::ops::Range;

use bytes::{BufMut, Bytes};

use crate::{
    batch::{Batch, Op},
    codec::{Reader, put_bytes},
    error::Result,
    pool,
};

mod tag {
    pub const PUT: u8 = 1;
    pub const DELETE: u8 = 2;
    pub const UPSERT: u8 = 3;
    pub const DELETE_RANGE: u8 = 4;
    pub const DELETE_FROM: u8 = 5;
    pub const CLONE: u8 = 6;
    pub const RENAME: u8 = 7;
    /// A put of the next value set aside.
    pub const PUT_ASIDE: u8 = 8;
    pub const UPSERT_PREFIX: u8 = 9;
}

/// What an operation takes besides its keys and values, at most, bytes: its tag and the lengths of two fields.
const MAX_OP_HEAD_BYTES: usize = 12;

/// Kind of a record that holds all of its batch.
pub(crate) const WHOLE: u8 = 0;
/// Kind of a record with values set aside.
pub(crate) const ASIDE: u8 = 1;

/// Kind of a record that takes batches back: the number u64 of the first. Those from it up to the record do
/// not count.
pub(crate) const VOID: u8 = 4;

/// The record that takes back the batches from `first` on.
pub(crate) fn void(first: u64) -> [u8; 9] {
    let mut record = [VOID; 9];
    record[1..].copy_from_slice(&first.to_le_bytes());
    record
}

/// The first batch that a record of kind [`VOID`] takes back.
pub(crate) fn first_void(record: &[u8]) -> Option<u64> {
    match record.split_first() {
        Some((&VOID, rest)) => rest.first_chunk().map(|first| u64::from_le_bytes(*first)),
        _ => None,
    }
}

/// A batch ready to be logged.
pub(crate) struct Encoded {
    /// Kind byte and operations; only the operations if there are `values`.
    pub payload: Bytes,
    /// Keys and values that are set aside.
    pub values: Vec<(Bytes, Bytes)>,
    /// The operations, with keys and values in the memory of the payload: what keeps them keeps one allocation
    /// a batch, and not two an operation, to be freed one by one by another thread. Values set aside and
    /// prefixes, which are kept for long, are those of the batch.
    pub ops: Vec<Op>,
    /// Bytes of all of it.
    pub len: usize,
}

/// Encodes the operations of a batch, setting aside values of at least `threshold` bytes.
pub(crate) fn encode(mut ops: Vec<Op>, threshold: usize) -> Encoded {
    let mut places = Vec::with_capacity(ops.len());
    let (payload, values) = encode_noting(&ops, threshold, |first, second| places.push((first, second)));
    let len = most_bytes(&ops);
    for (op, (first, second)) in ops.iter_mut().zip(places) {
        let is_aside = is_long(op, threshold);
        match op {
            Op::Put(key, value) => {
                *key = payload.slice(first);
                if !is_aside {
                    *value = payload.slice(second);
                }
            }
            Op::Delete(key) => *key = payload.slice(first),
            Op::Upsert(key, change) => (*key, *change) = (payload.slice(first), payload.slice(second)),
            _ => (),
        }
    }
    Encoded { payload, values, ops, len }
}

/// Payload and values of [`Encoded`], for operations that are kept elsewhere.
pub(crate) fn encode_borrowed(ops: &[Op], threshold: usize) -> (Bytes, Vec<(Bytes, Bytes)>) {
    encode_noting(ops, threshold, |_, _| ())
}

/// Bytes of operations with all their values, at most.
pub(crate) fn most_bytes(ops: &[Op]) -> usize {
    ops.iter().map(|op| op_len(op) + MAX_OP_HEAD_BYTES).sum()
}

/// True if the operation has a value that is set aside.
fn is_long(op: &Op, threshold: usize) -> bool {
    matches!(op, Op::Put(_, value) if value.len() >= threshold)
}

/// Encodes a batch; `note` gets, for each operation, the positions of its fields in the payload.
fn encode_noting(
    ops: &[Op],
    threshold: usize,
    mut note: impl FnMut(Range<usize>, Range<usize>),
) -> (Bytes, Vec<(Bytes, Bytes)>) {
    let is_long = |op: &Op| is_long(op, threshold);
    let values: Vec<_> = ops
        .iter()
        .filter_map(|op| match op {
            Op::Put(key, value) if is_long(op) => Some((key.clone(), value.clone())),
            _ => None,
        })
        .collect();
    let inside = most_bytes(ops) - values.iter().map(|(_, value)| value.len()).sum::<usize>();
    // A table keeps it until it is flushed. Much memory that comes and goes like this is the pool's rather than
    // the heap's, of which only what is free at the end goes back to the kernel.
    let room = 1 + inside;
    let mut buffer = pool::buffer(room);
    let mut out: &mut [u8] = &mut buffer;
    if values.is_empty() {
        out.put_u8(WHOLE);
    }
    for op in ops {
        let (tag, first, second): (u8, &[u8], Option<&[u8]>) = match op {
            Op::Put(key, _) if is_long(op) => (tag::PUT_ASIDE, key, None),
            Op::Put(key, value) => (tag::PUT, key, Some(value)),
            Op::Delete(key) => (tag::DELETE, key, None),
            Op::Upsert(key, change) => (tag::UPSERT, key, Some(change)),
            Op::UpsertPrefix(prefix, change) => (tag::UPSERT_PREFIX, prefix, Some(change)),
            Op::DeleteRange(lo, Some(hi)) => (tag::DELETE_RANGE, lo, Some(hi)),
            Op::DeleteRange(lo, None) => (tag::DELETE_FROM, lo, None),
            Op::ClonePrefix(src, dst) => (tag::CLONE, src, Some(dst)),
            Op::RenamePrefix(src, dst) => (tag::RENAME, src, Some(dst)),
        };
        out.put_u8(tag);
        let mut put = |field: &[u8]| {
            put_bytes(&mut out, field);
            let end = room - out.len();
            end - field.len()..end
        };
        let first = put(first);
        note(first, second.map_or(0..0, put));
    }
    let used = room - out.len();
    (Bytes::from(buffer).slice(..used), values)
}

/// What a record says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// The batch; what is `missing` has no value in it.
    pub batch: Batch,
    /// Values set aside that are not there.
    pub missing: Vec<Missing>,
}

/// A value that is not where the log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Which operation of the batch puts it.
    pub op: usize,
    /// Its group, and its number in it.
    pub group: u64,
    pub number: u32,
}

/// The group of a record of kind [`ASIDE`].
pub(crate) fn group(record: &[u8]) -> Option<u64> {
    match record.split_first() {
        Some((&ASIDE, rest)) => rest.first_chunk().map(|group| u64::from_le_bytes(*group)),
        _ => None,
    }
}

/// The batch of a record of kind [`WHOLE`] or [`ASIDE`]. `aside` gives the value of a number in a group;
/// `None` where one is missing.
pub(crate) fn decode(
    record: Bytes,
    mut aside: impl FnMut(u64, u32) -> Result<Option<Bytes>>,
) -> Result<Decoded> {
    let mut r = Reader::new(record, "log record");
    let Decoded { mut batch, mut missing } = Decoded::default();
    let (group, mut number) = match r.u8()? {
        WHOLE => (0, 0),
        ASIDE => (r.u64()?, r.u32()?),
        other => return Err(r.bad(format!("unknown kind {other}"))),
    };
    while r.remaining() > 0 {
        let tag = r.u8()?;
        let first = r.bytes()?;
        batch.push(match tag {
            tag::PUT => Op::Put(first, r.bytes()?),
            tag::PUT_ASIDE => {
                let value = aside(group, number)?;
                if value.is_none() {
                    missing.push(Missing { op: batch.len(), group, number });
                }
                number = number.wrapping_add(1);
                Op::Put(first, value.unwrap_or_default())
            }
            tag::DELETE => Op::Delete(first),
            tag::UPSERT => Op::Upsert(first, r.bytes()?),
            tag::UPSERT_PREFIX => Op::UpsertPrefix(first, r.bytes()?),
            tag::DELETE_RANGE => Op::DeleteRange(first, Some(r.bytes()?)),
            tag::DELETE_FROM => Op::DeleteRange(first, None),
            tag::CLONE => Op::ClonePrefix(first, r.bytes()?),
            tag::RENAME => Op::RenamePrefix(first, r.bytes()?),
            other => return Err(r.bad(format!("unknown operation {other}"))),
        });
    }
    Ok(Decoded { batch, missing })
}

/// Bytes of keys and values in an operation.
pub(crate) fn op_len(op: &Op) -> usize {
    match op {
        Op::Put(a, b)
        | Op::Upsert(a, b)
        | Op::UpsertPrefix(a, b)
        | Op::ClonePrefix(a, b)
        | Op::RenamePrefix(a, b) => a.len() + b.len(),
        Op::Delete(a) => a.len(),
        Op::DeleteRange(lo, hi) => lo.len() + hi.as_ref().map_or(0, Bytes::len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: u64, _: u32) -> Result<Option<Bytes>> {
        Ok(None)
    }

    #[test]
    fn records_round_trip() {
        let mut batch = Batch::new();
        batch.put("a", "1").delete("b").upsert("c", "op").delete_prefix("d").delete_range("\u{ff}", None);
        batch.clone_prefix("e", "f").rename_prefix("g", "h").upsert_prefix("", "op").upsert_prefix("i", "");
        let encoded = encode(batch.ops().to_vec(), 100);
        assert!(encoded.values.is_empty());
        assert_eq!(encoded.ops, batch.ops());
        assert_eq!(
            decode(encoded.payload, none).expect("well-formed"),
            Decoded { batch, missing: Vec::new() }
        );
    }

    #[test]
    fn long_values_are_set_aside_and_found_again() {
        let mut batch = Batch::new();
        batch.put("a", "long value").put("b", "short").put("c", "another one");
        let Encoded { payload, values, ops, .. } = encode(batch.ops().to_vec(), 10);
        assert_eq!(ops, batch.ops());
        assert_eq!(values.len(), 2);
        let mut record = vec![ASIDE];
        record.extend_from_slice(&7u64.to_le_bytes());
        record.extend_from_slice(&5u32.to_le_bytes());
        record.extend_from_slice(&payload);
        let find = |group, number: u32| {
            assert_eq!(group, 7);
            Ok(values.get(number as usize - 5).map(|(_, value)| value.clone()))
        };
        assert_eq!(group(&record), Some(7));
        let missing = Vec::new();
        assert_eq!(decode(record.clone().into(), find).expect("well-formed"), Decoded { batch, missing });
        let missing = decode(record.into(), none).expect("well-formed").missing;
        assert_eq!(missing, [(0, 5), (2, 6)].map(|(op, number)| Missing { op, group: 7, number }));
    }

    #[test]
    fn every_cut_is_an_error_or_a_shorter_batch() {
        let mut batch = Batch::new();
        batch.put("key", "value").clone_prefix("e", "f");
        let record = encode(batch.ops().to_vec(), 100).payload;
        for len in 0..record.len() {
            if let Ok(cut) = decode(record.slice(..len), none) {
                assert!(cut.batch.len() < batch.len());
            }
        }
    }
}
