//! Appends to the log: adds a record, with or without values that are stored apart, or replaces the last record.
//!
//! Guarantees: an append works in memory only and does not wait; one that is refused has changed nothing. A record is
//! replaced only while it and its values wait at the end of the buffer, so no durable record changes, and none
//! whose sync has returned. May use: the log's buffer.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

use crate::store::log::{
    AppendError, Log, LogPos,
    blob::reserved,
    buffer::{Last, LogBuffer},
};

/// Bytes at the beginning of a record with values that are stored apart: the kind of record, the group of the values,
/// and the number of the first one.
const PREFIX_BYTES: usize = 13;

impl Log {
    /// Appends the concatenation of the parts as one record, in memory, and returns its MSN and the position behind it.
    /// The payload is hashed before the lock is taken, and copied under it.
    pub fn append(&self, payload: &[&[u8]]) -> Result<(u64, LogPos), AppendError> {
        let len = payload.iter().map(|part| part.len()).sum();
        if len > self.max_payload() {
            return Err(AppendError::TooLarge { len, limit: self.max_payload() });
        }
        let mut hash = Xxh3Default::new();
        payload.iter().for_each(|part| hash.update(part));
        let hash = hash.digest();

        let mut buf = self.buf();
        self.check_open(&buf)?;
        if !buf.has_room(len, 0, self.size) {
            return Err(AppendError::Full);
        }
        let appended = buf.push(payload, len, hash, self.session);
        buf.asked_end = buf.end.pos;
        Ok(appended)
    }

    /// Appends a record whose values are stored apart: the byte `kind`, the number u64 of their group, the number u32
    /// of the first value in the group, and `payload`. Otherwise as [`Log::append`].
    pub fn append_blobs(
        &self,
        kind: u8,
        payload: &[u8],
        values: &[(Bytes, Bytes)],
    ) -> Result<(u64, LogPos), AppendError> {
        let mut buf = self.buf();
        let last = self.push_with(&mut buf, None, kind, payload, values)?.ok_or(AppendError::Full)?;
        Ok((last.msn, buf.end))
    }

    /// Appends a record that may be replaced until another record follows it or a write-out takes it. It is made as by
    /// [`Log::append_blobs`] if it has values; otherwise `payload` alone is the record. If `replaced` names a record,
    /// the new one takes its place and its number. Returns `None` if that record cannot be replaced any more, or if
    /// there is no space for both at this moment.
    pub fn append_open(
        &self,
        replaced: Option<u64>,
        kind: u8,
        payload: &[u8],
        values: &[(Bytes, Bytes)],
    ) -> Result<Option<(u64, LogPos)>, AppendError> {
        let mut buf = self.buf();
        let Some(last) = self.push_with(&mut buf, replaced, kind, payload, values)? else {
            return Ok(None);
        };
        let appended = (last.msn, buf.end);
        buf.last = Some(last);
        Ok(Some(appended))
    }

    /// Does the work of [`Log::append_open`]. Returns what is needed to replace the record later.
    fn push_with(
        &self,
        buf: &mut LogBuffer,
        replaced: Option<u64>,
        kind: u8,
        payload: &[u8],
        values: &[(Bytes, Bytes)],
    ) -> Result<Option<Last>, AppendError> {
        let len = payload.len() + if values.is_empty() { 0 } else { PREFIX_BYTES };
        if len > self.max_payload() {
            return Err(AppendError::TooLarge { len, limit: self.max_payload() });
        }
        let reserved = values.iter().map(|(_, value)| reserved(value.len())).sum();
        self.check_open(buf)?;
        let has_room = buf.has_room(len, reserved, self.size);
        match replaced {
            None if !has_room => return Err(AppendError::Full),
            None => (),
            Some(msn) if !has_room || !buf.is_replaceable(msn) => return Ok(None),
            Some(_) => buf.take_back(),
        }
        let before = buf.end;
        let mut hash = Xxh3Default::new();
        let (msn, end) = if values.is_empty() {
            hash.update(payload);
            buf.push(&[payload], len, hash.digest(), self.session)
        } else {
            let mut prefix = [kind; PREFIX_BYTES];
            prefix[1..9].copy_from_slice(&buf.group.to_le_bytes());
            prefix[9..].copy_from_slice(&(buf.values.len() as u32).to_le_bytes());
            hash.update(&prefix);
            hash.update(payload);
            buf.push(&[&prefix, payload], len, hash.digest(), self.session)
        };
        if buf.values.is_empty() {
            buf.first_aside = msn;
        }
        buf.asked_end = end.pos;
        buf.values.extend_from_slice(values);
        buf.value_bytes += values.iter().map(|(_, value)| value.len()).sum::<usize>();
        buf.reserved += reserved;
        let last = Last { msn, len, before, values: values.len(), reserved, group: buf.group };
        Ok(Some(last))
    }
}
