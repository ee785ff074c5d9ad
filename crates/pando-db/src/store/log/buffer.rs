//! The log's buffer: the records that were appended in memory and not written yet, and how much of the ring is free.
//!
//! Guarantees: records follow each other in the order of their numbers, and none is accepted for which the ring has
//! no space, including the guard of its write-out. The writer keeps the buffer under a lock. May use: the bytes of
//! records and guards. No I/O.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;

use crate::{
    device::BLOCK,
    space::Extent,
    store::log::{
        LogPos,
        guard::{self, Footer},
        record::{Header, record_len},
    },
};

/// Records and values that were appended and not written yet, and where the log begins and ends.
pub(crate) struct LogBuffer {
    /// Records that no write-out has taken yet. The first byte stands at a block boundary.
    pub bytes: Vec<u8>,
    /// A buffer that has been written; its memory is used again.
    pub spare: Vec<u8>,
    /// The position behind the buffer, where the next record begins.
    pub append_at: u64,
    /// Everything before this position was written to the device.
    pub written: u64,
    /// The position of a block that was left free before all records, for a footer that announces the first write-out
    /// if that is long.
    pub notice: Option<u64>,
    /// True if records or values were written that no flush has made durable.
    pub unflushed: bool,
    /// The number of the last record about values outside the log if no footer says yet that it is durable; else 0.
    pub unmarked: u64,
    /// The number of the newest record that a footer says is durable.
    pub announced: u64,
    /// Number (MSN) and checksum of the last record that a write-out has taken.
    pub taken: (u64, u64),
    /// Everything before this position is no longer needed.
    pub tail: u64,
    /// The position behind the last record.
    pub end: LogPos,
    /// The position behind the last record that a caller has appended; the log appends others itself.
    pub asked_end: u64,
    /// The number of the last record.
    pub msn: u64,
    /// True if callers may append no more.
    pub closed: bool,
    /// Values that wait to be placed, as the group `group`; their bytes; and the space in the ring that is reserved for
    /// them.
    pub values: Vec<(Bytes, Bytes)>,
    pub value_bytes: usize,
    pub reserved: u64,
    /// The first record that refers to one of them.
    pub first_aside: u64,
    /// The space that is reserved for values that are being placed.
    pub placing: u64,
    pub group: u64,
    /// The last record, as long as it may be replaced.
    pub last: Option<Last>,
    /// Extents of values, each with the position up to which the log must be truncated before it is dropped.
    pub held: VecDeque<(u64, Arc<Extent>)>,
    pub held_bytes: u64,
}

/// The record at the end of the buffer, and what is needed to remove it again.
pub(crate) struct Last {
    pub msn: u64,
    /// Bytes of its payload.
    pub len: usize,
    /// The end of the previous record.
    pub before: LogPos,
    /// How many of the waiting values belong to it, the space that is reserved for them, and their group.
    pub values: usize,
    pub reserved: u64,
    pub group: u64,
}

impl LogBuffer {
    /// True if record `msn` can be replaced: it is the last one in the buffer, and its values have not been placed.
    pub fn is_replaceable(&self, msn: u64) -> bool {
        let waits = |last: &Last| last.msn == msn && (last.values == 0 || last.group == self.group);
        self.last.as_ref().is_some_and(waits)
    }

    /// How many of the waiting values belong to a record that may be replaced.
    pub fn replaceable_values(&self) -> usize {
        self.last.as_ref().filter(|last| last.group == self.group).map_or(0, |last| last.values)
    }

    /// Removes the last record, which must be replaceable, and its values.
    pub fn take_back(&mut self) {
        let Some(last) = self.last.take() else { return };
        let len = record_len(last.len);
        assert!(last.msn == self.msn && self.bytes.len() as u64 >= len, "another record is the last");
        assert!(
            last.values <= self.values.len() && last.reserved <= self.reserved,
            "values of the last record are gone"
        );
        self.bytes.truncate(self.bytes.len() - len as usize);
        self.append_at -= len;
        self.end = last.before;
        self.msn -= 1;
        let own = self.values.split_off(self.values.len() - last.values);
        let bytes = own.iter().map(|(_, value)| value.len()).sum::<usize>();
        assert!(bytes <= self.value_bytes, "values go that were not counted");
        self.value_bytes -= bytes;
        self.reserved -= last.reserved;
    }

    /// Takes the buffered records to write them, with the contents of their footer, and the number of the last record
    /// that is complete: one that refers to values that are not placed yet is not. Reserves the space of the guard.
    pub fn take(&mut self, session: u64, durable: u64) -> (Vec<u8>, Footer, u64) {
        let spare = std::mem::take(&mut self.spare);
        let buffer = std::mem::replace(&mut self.bytes, spare);
        self.last = None;
        let begin = self.append_at - buffer.len() as u64;
        assert!(begin.is_multiple_of(BLOCK), "a write-out begins inside a block");
        let footer = self.footer(buffer.len(), begin, session, durable);
        if !buffer.is_empty() {
            self.announced = self.announced.max(durable);
            self.append_at = footer.end();
            self.taken = (self.msn, self.end.chain);
        }
        let aside = if self.values.is_empty() { self.msn + 1 } else { self.first_aside };
        assert!((1..=self.msn + 1).contains(&aside), "values wait for a record that was not appended");
        let complete = aside - 1;
        (buffer, footer, complete)
    }

    /// Leaves a block free before the first record, in a log that was empty when it was opened. Recovery does not
    /// search all of such a log, and would not find a long write-out whose beginning is damaged.
    pub fn keep_room_for_notice(&mut self) {
        assert!(self.bytes.is_empty() && self.written == self.append_at, "something was appended already");
        self.notice = Some(self.append_at);
        self.append_at += guard::total(0);
        self.written = self.append_at;
    }

    /// The footer of all records that no write-out has taken yet: `records` bytes from position `begin` on.
    pub fn footer(&self, records: usize, begin: u64, session: u64, durable: u64) -> Footer {
        assert!(records <= u32::MAX as usize, "a write-out longer than any log");
        let (msn, chain) = self.taken;
        Footer { records: records as u32, begin, session, first: msn + 1, last: self.msn, durable, chain }
    }

    /// The first byte that must not be overwritten, because it is needed or not written yet.
    pub fn oldest(&self) -> u64 {
        let oldest = self.tail.min(self.written);
        assert!(oldest <= self.append_at, "the log ends before it begins");
        oldest - oldest % BLOCK
    }

    /// Keeps extents until the log is truncated at its present end or behind it.
    pub fn keep(&mut self, extents: impl IntoIterator<Item = Arc<Extent>>) {
        for extent in extents {
            let ascends = self.held.back().is_none_or(|(pos, _)| *pos <= self.end.pos);
            assert!(ascends, "extents are kept for records out of order");
            self.held_bytes += extent.len;
            self.held.push_back((self.end.pos, extent));
        }
    }

    /// Appends a record to the buffer. The caller has checked that there is space.
    pub fn push(&mut self, payload: &[&[u8]], len: usize, hash: u64, session: u64) -> (u64, LogPos) {
        self.last = None;
        assert_eq!(payload.iter().map(|part| part.len()).sum::<usize>(), len, "a record of another length");
        assert!(self.bytes.len().is_multiple_of(8), "a record begins beside its place");
        let header = Header { len: len as u32, msn: self.msn + 1, session };
        let (header, chain) = header.encode(hash, self.end.chain);
        self.bytes.extend_from_slice(&header);
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let whole = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(whole, 0);
        self.append_at += record_len(len);
        self.end = LogPos { pos: self.append_at, chain };
        self.msn += 1;
        (self.msn, self.end)
    }

    /// Whether one more record fits, with the guard of its write-out, and with `reserved` bytes of space for values in
    /// addition to those that wait already.
    pub fn has_room(&self, len: usize, reserved: u64, size: u64) -> bool {
        let sizes = LogSizes::default();
        sizes.publish(self);
        sizes.has_room(len, reserved, size)
    }
}

/// Sizes of a log's buffer, in bytes. Each is exact as of the last change of the buffer. Two of them that are read one
/// after the other may be of different moments.
#[derive(Default)]
pub(crate) struct LogSizes {
    /// Bytes of the ring in use: from the first byte that must not be overwritten to the end.
    pub used: AtomicU64,
    /// Bytes of the extents that are kept for records of the log.
    pub held_bytes: AtomicU64,
    /// Bytes of the records, and of the values, that wait to be written.
    records: AtomicU64,
    values: AtomicU64,
    /// Space that is reserved for waiting values, and for those that are being placed.
    reserved: AtomicU64,
    placing: AtomicU64,
}

impl LogSizes {
    /// Publishes the sizes of `buffer`.
    pub fn publish(&self, buffer: &LogBuffer) {
        self.used.store(buffer.append_at - buffer.oldest(), Relaxed);
        self.held_bytes.store(buffer.held_bytes, Relaxed);
        self.records.store(buffer.bytes.len() as u64, Relaxed);
        self.values.store(buffer.value_bytes as u64, Relaxed);
        self.reserved.store(buffer.reserved, Relaxed);
        self.placing.store(buffer.placing, Relaxed);
    }

    /// Bytes that wait to be written.
    pub fn buffered(&self) -> usize {
        (self.records.load(Relaxed) + self.values.load(Relaxed)) as usize
    }

    /// As [`LogBuffer::has_room`].
    pub fn has_room(&self, len: usize, reserved: u64, size: u64) -> bool {
        let waiting = self.records.load(Relaxed);
        let records = waiting + record_len(len);
        let (placing, reserved) = (self.placing.load(Relaxed), self.reserved.load(Relaxed) + reserved);
        let total = |bytes: u64| if bytes == 0 { 0 } else { guard::total(bytes as usize) };
        // Values may be stored in records of the log. Those that are being placed go into the same write-out as the
        // waiting records; the others go into that one or into a later one. Either case may take more space, because
        // long write-outs have longer units.
        let together = total(records + placing + reserved);
        let apart = total(records + placing) + total(reserved);
        self.used.load(Relaxed).saturating_sub(waiting) + together.max(apart) <= size
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{
        device::MemDevice,
        store::log::{AppendError, BlobPlacer, Group, Log, Placed, Region, record::RECORD_HEADER_BYTES},
    };

    const KIND: u8 = 1;

    /// Places values in records of the log, which take all the room that was kept, or nearly none of it; others may
    /// append meanwhile.
    #[derive(Default)]
    struct Inline {
        rng: Option<parking_lot::Mutex<StdRng>>,
        log: OnceLock<Weak<Log>>,
        appended: AtomicU64,
    }

    impl BlobPlacer for Inline {
        fn place(&self, group: Group, _: usize) -> crate::Result<Placed> {
            let mut rest = 128;
            if let (Some(rng), Some(log)) = (&self.rng, self.log.get().and_then(Weak::upgrade)) {
                let mut rng = rng.lock();
                for _ in 0..rng.random_range(0..3) {
                    self.appended.fetch_add(u64::from(append(&log, &mut rng)), Relaxed);
                }
                if rng.random() {
                    rest = rng.random_range(0..128);
                }
            }
            let record = |value: &Bytes| Bytes::from(vec![7; value.len() + rest]);
            let payloads = group.values.iter().map(|(_, value)| record(value)).collect();
            Ok(Placed { payloads, extents: Vec::new() })
        }
    }

    fn open(blocks: u64, placer: Arc<Inline>) -> Arc<Log> {
        let size = blocks * BLOCK;
        let region = Region { device: Arc::new(MemDevice::new(size)), base: 0, size, store: 0 };
        let log = Log::resume(region, 0, Default::default(), 0, 1, Some(placer.clone()));
        let log = Arc::new(log);
        _ = placer.log.set(Arc::downgrade(&log));
        log
    }

    fn values(lens: &[usize]) -> Vec<(Bytes, Bytes)> {
        lens.iter().map(|len| (Bytes::from("key"), Bytes::from(vec![3; *len]))).collect()
    }

    /// Appends a record, perhaps with values, most often so that a write-out is not far from where its units become
    /// longer; whether there was room.
    fn append(log: &Log, rng: &mut StdRng) -> bool {
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(0..200),
            1 => rng.random_range(0..20_000),
            _ => rng.random_range(40_000..65_000),
        };
        let appended = match rng.random() {
            true => log.append(&[&vec![1; len]]),
            false => {
                let longest = if rng.random() { 4_000 } else { 40_000 };
                let lens: Vec<_> =
                    (0..rng.random_range(1..3)).map(|_| rng.random_range(2_000..longest)).collect();
                log.append_blobs(KIND, &vec![1; len / 4], &values(&lens))
            }
        };
        match appended {
            Ok(_) => true,
            Err(AppendError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Room was kept for values as if they were written apart. With the records before them they were more than
    /// 64 KiB, whose guard is longer: a full log overtook itself, and stopped.
    #[test]
    fn values_that_make_a_write_out_longer_than_its_parts_have_room() {
        for (first, lens) in [(63_400, &[2048][..]), (55_600, &[10_000]), (47_200, &[16_384, 2048])] {
            let log = open(64, Arc::default());
            while 64 * BLOCK - log.used() > 18 * BLOCK {
                log.append(&[&[1]]).unwrap();
                log.sync().unwrap();
            }
            log.append(&[&vec![2; first - RECORD_HEADER_BYTES]]).unwrap();
            _ = log.append_blobs(KIND, &[5, 5, 5], &values(lens));
            log.write_out().unwrap();
            assert!(log.used() <= 64 * BLOCK);
        }
    }

    /// Whatever is taken in has room, when and with what else it may be written.
    #[test]
    fn all_that_was_taken_in_can_be_written() {
        let (mut refused, mut meanwhile) = (0, 0);
        for seed in 0..400 {
            let rng = &mut StdRng::seed_from_u64(seed);
            let inner = parking_lot::Mutex::new(StdRng::seed_from_u64(seed ^ 0xffff_0000));
            let placer = Arc::new(Inline { rng: Some(inner), ..Default::default() });
            let log = open(rng.random_range(64..90), placer.clone());
            for _ in 0..60 {
                if !append(&log, rng) {
                    refused += 1;
                    log.write_out().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    if rng.random() {
                        log.truncate(log.end());
                    }
                } else if rng.random_ratio(1, 6) {
                    log.write_out().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                }
            }
            log.sync().unwrap();
            meanwhile += placer.appended.load(Relaxed);
        }
        assert!(refused > 1000 && meanwhile > 1000, "not interesting: {refused}, {meanwhile}");
    }

    /// A log of 64 blocks that is as it should be, with a record.
    fn sound() -> Arc<Log> {
        let log = open(64, Arc::default());
        log.append(&[&[1; 100]]).unwrap();
        log
    }

    const FAR: LogPos = LogPos { pos: 1 << 40, chain: 0 };

    #[test]
    #[should_panic(expected = "the log is truncated behind its end")]
    fn a_log_is_truncated_within_it() {
        sound().truncate(FAR);
    }

    #[test]
    #[should_panic(expected = "a state that is newer than the log")]
    fn a_log_begins_within_it() {
        _ = sound().start_after(FAR, 1);
    }

    #[test]
    #[should_panic(expected = "more bytes than records behind a state")]
    fn what_stands_behind_a_state_is_newer() {
        _ = sound().start_after(LogPos::default(), 1);
    }

    #[test]
    #[should_panic(expected = "the log ends before it begins")]
    fn a_log_ends_behind_its_start() {
        let log = sound();
        let mut buf = log.buf();
        (buf.tail, buf.written) = (FAR.pos, FAR.pos);
        // The sizes are published then.
        drop(buf);
    }

    #[test]
    #[should_panic(expected = "the log overtakes itself")]
    fn the_end_of_a_log_does_not_pass_its_start() {
        let log = sound();
        log.buf().append_at += 64 * BLOCK;
        _ = log.write_out();
    }

    #[test]
    #[should_panic(expected = "a write-out begins inside a block")]
    fn a_write_out_begins_with_a_block() {
        let log = sound();
        log.buf().append_at += 8;
        _ = log.write_out();
    }

    #[test]
    #[should_panic(expected = "values wait for a record that was not appended")]
    fn values_wait_for_a_record() {
        let log = sound();
        let mut buf = log.buf();
        (buf.values, buf.first_aside) = (values(&[3]), 9);
        buf.take(0, 0);
    }

    #[test]
    #[should_panic(expected = "another record is the last")]
    fn the_last_record_is_taken_back() {
        let log = sound();
        let mut buf = log.buf();
        let last = Last { msn: 7, len: 100, before: LogPos::default(), values: 0, reserved: 0, group: 0 };
        buf.last = Some(last);
        buf.take_back();
    }

    #[test]
    #[should_panic(expected = "values go that were not counted")]
    fn values_are_counted() {
        let log = sound();
        let mut buf = log.buf();
        buf.values = values(&[3]);
        let last = Last { msn: 1, len: 100, before: LogPos::default(), values: 1, reserved: 0, group: 0 };
        buf.last = Some(last);
        buf.take_back();
    }

    #[test]
    #[should_panic(expected = "a record of another length")]
    fn a_record_has_the_length_that_it_says() {
        let log = sound();
        log.buf().push(&[&[1; 3]], 4, 0, 0);
    }
}
