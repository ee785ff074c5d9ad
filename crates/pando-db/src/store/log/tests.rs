//! The log against crashes, failures, stale records and hostile bytes.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    Error,
    device::{BLOCK, Device, DeviceCall, FailMode, HookedDevice, MemDevice, SimDevice},
    store::log::{
        guard::{self, Footer},
        record::Header,
    },
};

const BASE: u64 = 2 * BLOCK;
const SIZE: u64 = 16 * BLOCK;
const START: LogPos = LogPos { pos: 0, chain: 0x5eed };

fn open(device: &Arc<impl Device>) -> Log {
    Log::open(device.clone(), BASE, SIZE, START, 1)
}

fn memory() -> Arc<MemDevice> {
    Arc::new(MemDevice::new(BASE + SIZE))
}

fn region(device: &Arc<impl Device>, size: u64) -> Region {
    Region { device: device.clone(), base: BASE, size, store: 0 }
}

fn reader(device: &Arc<impl Device>, start: LogPos, first: u64) -> Replay {
    Log::replay(region(device, SIZE), start, first, 0, false, false)
}

fn replay(device: &Arc<impl Device>, start: LogPos, first: u64) -> (Vec<Bytes>, Replay) {
    let mut replay = reader(device, start, first);
    let mut payloads = Vec::new();
    while let Some(record) = replay.next().unwrap() {
        assert_eq!(record.msn, first + payloads.len() as u64);
        assert_eq!(record.end, replay.position());
        payloads.push(record.payload);
    }
    assert!(replay.next().unwrap().is_none(), "the end stays the end");
    (payloads, replay)
}

/// A payload of varied content and length.
fn payload(rng: &mut StdRng) -> Vec<u8> {
    let number: u64 = rng.random();
    let len = match rng.random_range(0..10) {
        0 => 0,
        1..6 => rng.random_range(0..100),
        6..9 => rng.random_range(0..3000),
        _ => rng.random_range(0..SIZE as usize / 4 - 64),
    };
    (0..len as u64).map(|i| (number.wrapping_mul(31).wrapping_add(i * i)) as u8).collect()
}

#[test]
fn what_was_synced_is_replayed_in_order() {
    let device = memory();
    let log = open(&device);
    let rng = &mut StdRng::seed_from_u64(1);
    let mut sent = Vec::new();
    for number in 1..40 {
        let data = payload(rng);
        let data = &data[..data.len().min(1000)];
        let (left, right) = data.split_at(data.len() / 3);
        let (msn, end) = log.append(&[left, &[], right]).unwrap();
        assert_eq!((msn, end), (number, log.end()));
        sent.push(Bytes::copy_from_slice(data));
        if number % 5 == 0 {
            log.sync().unwrap();
            assert_eq!((log.durable_msn(), log.buffered()), (number, 0));
        }
    }
    let durable = log.durable_msn() as usize;
    assert_eq!(replay(&device, START, 1).0, sent[..durable], "an append alone writes nothing");
    log.write_out().unwrap();
    assert_eq!((log.durable_msn(), log.appended_msn()), (durable as u64, 39));
    assert_eq!(replay(&device, START, 1).0, sent);
    let flushes = device.stats().flushes;
    log.sync().unwrap();
    log.sync().unwrap();
    assert_eq!(device.stats().flushes, flushes + 1, "a sync with nothing to do asks nothing of the device");
}

#[test]
fn a_durable_block_is_not_written_again() {
    let device = memory();
    let log = open(&device);
    for round in 0..4 {
        log.append(&[b"small"]).unwrap();
        log.sync().unwrap();
        let mut block = [0; BLOCK as usize];
        device.read_at(BASE + round * BLOCK, &mut block).unwrap();
        assert_eq!(&block[32..37], b"small");
    }
    assert_eq!(device.stats().write_bytes, 4 * BLOCK);
    assert_eq!(log.used(), 4 * BLOCK);
}

#[test]
fn the_ring_goes_round_for_many_laps() {
    let device = memory();
    let log = open(&device);
    let rng = &mut StdRng::seed_from_u64(2);
    // What is in the log: its start, the first MSN there, and the records with their ends.
    let (mut start, mut first) = (START, 1);
    let mut kept: std::collections::VecDeque<(Bytes, LogPos)> = Default::default();
    let mut number = 0;
    while log.end().pos < 40 * SIZE {
        number += 1;
        let data = payload(rng);
        while !log.fits(data.len(), 0) {
            assert!(log.used() > SIZE / 2, "full with {} bytes in use", log.used());
            assert_eq!(log.append(&[&data]), Err(AppendError::Full));
            log.sync().unwrap();
            for _ in 0..rng.random_range(0..=kept.len()) {
                (_, start) = kept.pop_front().unwrap();
                first += 1;
            }
            log.truncate(start);
        }
        let (msn, end) = log.append(&[&data]).unwrap();
        assert_eq!(msn, number);
        kept.push_back((data.into(), end));
        if rng.random_ratio(1, 4) {
            log.sync().unwrap();
            let payloads: Vec<_> = kept.iter().map(|record| record.0.clone()).collect();
            assert_eq!(replay(&device, start, first).0, payloads);
        }
    }
}

#[test]
fn limits_are_errors_and_change_nothing() {
    let log = open(&memory());
    let largest = vec![7; log.max_payload()];
    let limit = largest.len();
    let too_large = AppendError::TooLarge { len: limit + 1, limit };
    assert_eq!(log.append(&[&largest, &[1]]), Err(too_large));
    assert!(!log.fits(limit + 1, 0));
    let mut appended = 0;
    while log.fits(limit, 0) {
        log.append(&[&largest]).unwrap();
        appended += 1;
    }
    assert_eq!((appended, log.append(&[&largest])), (3, Err(AppendError::Full)));
    assert_eq!(log.appended_msn(), 3);
    // Room is made by a checkpoint, and only once the buffer is written.
    log.truncate(log.end());
    assert!(!log.fits(limit, 0));
    log.sync().unwrap();
    assert!(log.fits(limit, 0));
}

/// Lives of random work, each ended by a crash, over many seeds: what is
/// replayed is a prefix of what was appended with everything that was synced.
#[test]
fn crashes_leave_a_prefix_with_everything_synced() {
    let (mut lost, mut saved, mut replaced) = (0, 0, 0);
    for seed in 0..5000 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut device = Arc::new(SimDevice::new(BASE + SIZE, seed));
        let mut log = open(&device);
        let (mut start, mut first) = (START, 1);
        // All records from `first` on with their ends.
        let mut model: Vec<(Bytes, LogPos)> = Vec::new();
        for _life in 0..4 {
            let mut open_msn = None;
            for _ in 0..rng.random_range(0..40) {
                let data = payload(rng);
                let next = first + model.len() as u64;
                let last = open_msn.take().filter(|msn| msn + 1 == next && *msn >= first);
                let appended = match rng.random_range(0..3) {
                    0 => log.append(&[&data]).map(|appended| (appended, false)),
                    // Batches may still be coalesced with that record: it is replaced, if it is not written.
                    _ => match log.append_open(last, 0, &data, &[]) {
                        Ok(Some(appended)) => {
                            open_msn = Some(appended.0);
                            Ok((appended, last.is_some()))
                        }
                        Ok(None) => continue,
                        Err(error) => Err(error),
                    },
                };
                match appended {
                    Ok(((msn, end), true)) => {
                        assert_eq!(msn + 1, next);
                        assert!(log.durable_msn() < msn, "seed {seed}: a durable record was replaced");
                        model.pop();
                        model.push((data.into(), end));
                        replaced += 1;
                    }
                    Ok(((msn, end), false)) => {
                        assert_eq!(msn, next);
                        model.push((data.into(), end));
                    }
                    Err(error) => assert_eq!(error, AppendError::Full),
                }
                match rng.random_range(0..8) {
                    0 => log.sync().unwrap(),
                    1 => log.write_out().unwrap(),
                    2 if !model.is_empty() => {
                        // A checkpoint that holds some records, perhaps unwritten ones.
                        let gone = rng.random_range(1..=model.len());
                        start = model.drain(..gone).next_back().unwrap().1;
                        first += gone as u64;
                        log.truncate(start);
                    }
                    _ => (),
                }
            }
            let synced = (log.durable_msn() + 1).saturating_sub(first) as usize;
            device = device.reopen();
            let (payloads, replay) = replay(&device, start, first);
            assert!(payloads.len() >= synced, "seed {seed}: {} of {synced} synced", payloads.len());
            assert!(payloads.len() <= model.len(), "seed {seed}: records that nobody appended");
            for (index, (found, sent)) in payloads.iter().zip(&model).enumerate() {
                assert_eq!(found, &sent.0, "seed {seed}, record {index}");
            }
            lost += model.len() - payloads.len();
            saved += payloads.len() - synced;
            model.truncate(payloads.len());
            assert_eq!(replay.position(), model.last().map_or(start, |record| record.1));
            log = replay.into_log(None).unwrap();
        }
    }
    assert!(lost > 1000 && saved > 1000, "the crashes were not interesting: {lost} {saved}");
    assert!(replaced > 10_000, "records were replaced {replaced} times only");
}

/// Each run of sectors of an unsynced tail in turn is missing: a short one is computed again, a long one ends
/// the log.
#[test]
fn a_torn_tail_ends_the_log_wherever_it_is_torn() {
    let device = memory();
    let log = open(&device);
    for number in 0..5u8 {
        log.append(&[&[number; 300]]).unwrap();
    }
    log.sync().unwrap();
    let synced_end = log.end().pos.next_multiple_of(BLOCK);
    let mut ends = Vec::new();
    for number in 5..12u8 {
        ends.push(log.append(&[&vec![number; 1900]]).unwrap().1.pos);
    }
    log.write_out().unwrap();
    let mut counts = Vec::new();
    for (at, len) in (synced_end..ends[6]).step_by(512).flat_map(|at| [(at, 512), (at, 4096)]) {
        let mut sectors = vec![0; len];
        device.read_at(BASE + at, &mut sectors).unwrap();
        device.write_at(BASE + at, &vec![0; len]).unwrap();
        let payloads = replay(&device, START, 1).0;
        // At least the records that end before the missing sectors; exactly these, where more is gone than
        // the guard can compute.
        let whole = ends.iter().filter(|&&end| end <= at).count();
        assert!(payloads.len() >= 5 + whole, "{len} bytes at {at}");
        assert!(len == 4096 || payloads.len() == 12, "a sector at {at} cannot be repaired");
        assert!(payloads.iter().enumerate().all(|(number, data)| data[0] == number as u8));
        counts.push(payloads.len() - whole);
        device.write_at(BASE + at, &sectors).unwrap();
    }
    assert!(counts.iter().filter(|&&count| count == 5).count() > 15, "{counts:?}");
    assert_eq!(replay(&device, START, 1).0.len(), 12);
}

/// A record lost in a crash is appended again byte for byte: what the run
/// before the crash had written behind it must not come back to life.
#[test]
fn records_of_before_a_crash_stay_dead() {
    let device = memory();
    let log = open(&device);
    for data in [b"one", b"two", b"six"] {
        log.append(&[data]).unwrap();
        log.sync().unwrap();
    }
    let mut second = [0; BLOCK as usize];
    device.read_at(BASE + BLOCK, &mut second).unwrap();
    device.write_at(BASE + BLOCK, &[0; BLOCK as usize]).unwrap();
    let (payloads, reader) = replay(&device, START, 1);
    assert_eq!(payloads, ["one"]);
    let log = reader.into_log(None).unwrap();
    assert_eq!((log.appended_msn(), log.durable_msn()), (1, 1));
    assert_eq!(log.append(&[b"two"]).unwrap().0, 2);
    log.sync().unwrap();
    let mut again = [0; BLOCK as usize];
    device.read_at(BASE + BLOCK, &mut again).unwrap();
    assert!((&again[..16], &again[32..40]) == (&second[..16], &second[32..40]), "the same place and payload");
    assert_eq!(replay(&device, START, 1).0, ["one", "two"]);
    // Without the new session the third record would be valid again.
    device.write_at(BASE + BLOCK, &second).unwrap();
    assert_eq!(replay(&device, START, 1).0, ["one", "two", "six"]);
}

/// A torn write-out that its guard could repair was repaired anew by each recovery, and by the second one taken for
/// damage, because the first had made it count as durable.
#[test]
fn what_was_repaired_is_right_on_the_device_too() {
    let device = memory();
    let log = open(&device);
    log.append(&[&[7; 900]]).unwrap();
    log.write_out().unwrap();
    let torn = [0; 100];
    device.write_at(BASE + 600, &torn).unwrap();
    let (records, reading) = replay(&device, START, 1);
    assert_eq!((records.len(), reading.found().len()), (1, 1), "the guard repairs it");
    drop(reading.into_log(None).unwrap());
    assert_eq!(replay(&device, START, 1).1.found().len(), 1, "a reader changes nothing");
    drop(replay(&device, START, 1).1.into_log(Some(Arc::new(Clumsy))).unwrap());
    let (again, reading) = replay(&device, START, 1);
    assert_eq!(again, records);
    assert!(reading.found().is_empty(), "{:?}", reading.found());
}

#[test]
fn records_of_another_log_or_place_are_not_valid() {
    let device = memory();
    let log = open(&device);
    log.append(&[b"old"]).unwrap();
    log.sync().unwrap();
    let end = log.end();
    for (start, first) in [
        (LogPos { chain: 1, ..START }, 1),
        (START, 2),
        (LogPos { pos: SIZE, chain: end.chain }, 2),
        (LogPos { pos: 8, ..START }, 1),
    ] {
        assert!(replay(&device, start, first).0.is_empty(), "{start:?} {first}");
    }
}

/// What a killed process wrote but did not flush is made durable before it counts as such.
#[test]
fn what_was_replayed_survives_the_next_crash() {
    for seed in 0..100 {
        let device = Arc::new(SimDevice::new(BASE + SIZE, seed));
        let log = open(&device);
        log.append(&[b"written"]).unwrap();
        log.write_out().unwrap();
        drop(log);
        let log = replay(&device, START, 1).1.into_log(None).unwrap();
        log.sync().unwrap();
        assert_eq!(replay(&device.reopen(), START, 1).0, ["written"]);
    }
    let unread = reader(&memory(), START, 1);
    assert!(matches!(unread.into_log(None), Err(Error::Invalid(_))));
}

/// The nth request fails, once or from then on: the log stops, nothing synced is lost.
#[test]
fn one_failure_is_final_and_loses_nothing_synced() {
    let mut failures = 0;
    for (nth, mode) in (0..60).flat_map(|n| [(n, FailMode::Once), (n, FailMode::Onwards)]) {
        let device = Arc::new(SimDevice::new(BASE + SIZE, nth));
        let log = open(&device);
        device.set_fail_at(Some(nth), mode);
        let rng = &mut StdRng::seed_from_u64(nth);
        let (mut sent, mut synced) = (Vec::new(), 0);
        loop {
            let data = payload(rng);
            match log.append(&[&data]) {
                Ok(_) => sent.push(Bytes::from(data)),
                Err(AppendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
            let result =
                if rng.random() { log.sync().map(|()| synced = sent.len()) } else { log.write_out() };
            if let Err(error) = result {
                assert!(matches!(error, Error::Stopped { .. }), "{error}");
                assert!(matches!(log.append(&[b"more"]), Err(AppendError::Stopped(_))));
                let requests = device.requests();
                assert!(matches!(log.sync(), Err(Error::Stopped { .. })));
                assert!(matches!(log.write_out(), Err(Error::Stopped { .. })));
                assert_eq!(device.requests(), requests, "a stopped log leaves the device alone");
                assert!(log.stopped().is_some());
                failures += 1;
                break;
            }
        }
        assert_eq!(log.durable_msn(), synced as u64);
        let payloads = replay(&device.reopen(), START, 1).0;
        assert!(payloads.len() >= synced, "request {nth}");
        assert_eq!(payloads, sent[..payloads.len()]);
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn a_failed_read_is_an_error_and_not_the_end() {
    let device = Arc::new(SimDevice::new(BASE + SIZE, 1));
    let log = open(&device);
    log.append(&[b"one"]).unwrap();
    log.sync().unwrap();
    let mut reader = reader(&device, START, 1);
    device.set_fail_at(Some(0), FailMode::Onwards);
    assert!(matches!(reader.next(), Err(Error::Io { .. })));
    device.set_fail_at(None, FailMode::Once);
    assert_eq!(reader.next().unwrap().unwrap().payload, "one");
}

#[test]
fn a_log_stopped_from_outside_gives_that_reason() {
    let log = open(&memory());
    log.append(&[b"one"]).unwrap();
    log.stop("checkpoint failed".into());
    log.stop("later".into());
    assert_eq!(log.stopped().as_deref(), Some("checkpoint failed"));
    assert!(matches!(log.sync(), Err(Error::Stopped { reason }) if reason == "checkpoint failed"));
}

/// Changed bytes anywhere: no panic, no endless loop, and what comes out is still a prefix.
#[test]
fn hostile_bytes_end_the_log() {
    let device = memory();
    let log = open(&device);
    let rng = &mut StdRng::seed_from_u64(3);
    let mut sent = Vec::new();
    while log.fits(2000, 0) {
        let data: Vec<u8> = (0..rng.random_range(0..2000)).map(|_| rng.random()).collect();
        log.append(&[&data]).unwrap();
        sent.push(Bytes::from(data));
    }
    log.sync().unwrap();
    for _ in 0..3000 {
        let at = BASE + rng.random_range(0..SIZE - 8);
        let mut before = [0; 8];
        device.read_at(at, &mut before).unwrap();
        let after: [u8; 8] = if rng.random() { rng.random() } else { [0xff; 8] };
        device.write_at(at, &after).unwrap();
        let payloads = replay(&device, START, 1).0;
        assert_eq!(payloads, sent[..payloads.len()]);
        device.write_at(at, &before).unwrap();
    }
    assert_eq!(replay(&device, START, 1).0, sent);
}

/// Lengths that an attacker gave a right checksum are still held to the ring.
#[test]
fn a_forged_length_is_refused() {
    for len in [u32::MAX, SIZE as u32, SIZE as u32 / 4] {
        let device = memory();
        let (header, _) = Header { len, msn: 1, session: 0 }.encode(0, START.chain);
        device.write_at(BASE, &header).unwrap();
        assert!(replay(&device, START, 1).0.is_empty());
    }
}

/// A footer that tells of a write-out which began before the log does, and of whose records none is there, made a clean
/// log overtake itself, or left no room in it for ever.
#[test]
fn a_footer_without_records_takes_no_room() {
    let start = LogPos { pos: 2 * BLOCK, ..START };
    let mut reached = 0;
    for (clean, blocks) in [true, false].into_iter().flat_map(|clean| (3..18).map(move |n| (clean, n))) {
        let device = memory();
        let mut bytes = vec![0; blocks * BLOCK as usize];
        let records = bytes.len() as u32;
        let footer =
            Footer { records, begin: 0, session: 0, first: 1, last: 1, durable: 0, chain: START.chain };
        let end = footer.end();
        if end > start.pos + SIZE {
            continue;
        }
        reached = reached.max(end);
        guard::close(&mut bytes, &footer, 0);
        let last = &bytes[bytes.len() - BLOCK as usize..];
        device.write_at(BASE + (end - BLOCK) % SIZE, last).unwrap();
        let mut replay = Log::replay(region(&device, SIZE), start, 1, 0, clean, false);
        assert!(replay.next().unwrap().is_none());
        let log = replay.into_log(Some(Arc::new(Clumsy))).unwrap();
        let longest = vec![7; log.max_payload()];
        log.append(&[&longest]).unwrap_or_else(|e| panic!("{blocks} blocks, clean {clean}: {e:?}"));
        log.sync().unwrap();
        assert_eq!(
            self::replay(&device, start, 1).0,
            [Bytes::from(longest)],
            "{blocks} blocks, clean {clean}"
        );
    }
    assert!(reached > SIZE / 4 * 3 + start.pos, "no footer near the end of the lap: {reached}");
}

/// Where flushes of a device wait.
struct Gate {
    /// Whether it is closed, and whether a flush has come to it.
    state: Mutex<(bool, bool)>,
    moved: Condvar,
}

/// A device whose flush takes its time, or waits at a gate.
fn slow(closed: bool) -> (Arc<HookedDevice>, Arc<Gate>) {
    let gate = Arc::new(Gate { state: Mutex::new((closed, false)), moved: Condvar::new() });
    let passes = gate.clone();
    let device = HookedDevice::new(Arc::new(MemDevice::new(BASE + 64 * SIZE)), false, move |call| {
        if *call == DeviceCall::Flush {
            std::thread::sleep(Duration::from_millis(2));
            let mut state = passes.state.lock();
            state.1 = true;
            passes.moved.notify_all();
            while state.0 {
                passes.moved.wait(&mut state);
            }
        }
        Ok(())
    });
    (Arc::new(device), gate)
}

#[test]
fn one_flush_serves_many() {
    let (device, _) = slow(false);
    let log = Log::open(device.clone(), BASE, 64 * SIZE, START, 1);
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let log = &log;
            scope.spawn(move || {
                for _ in 0..40 {
                    let (msn, _) = log.append(&[&[thread; 50]]).unwrap();
                    log.sync().unwrap();
                    assert!(log.durable_msn() >= msn);
                }
            });
        }
    });
    let flushes = device.stats().flushes;
    assert!(flushes < 160, "{flushes} flushes for 320 syncs of 8 threads");
    let mut reader = Log::replay(region(&device, 64 * SIZE), START, 1, 0, false, false);
    let mut count = 0;
    while reader.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 320);
}

#[test]
fn an_append_waits_for_no_flush() {
    let (device, gate) = slow(true);
    let log = Log::open(device.clone(), BASE, SIZE, START, 1);
    log.append(&[b"one"]).unwrap();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| log.sync());
        let mut state = gate.state.lock();
        while !state.1 {
            gate.moved.wait(&mut state);
        }
        drop(state);
        // The flush hangs; this would hang with it.
        assert_eq!(log.append(&[b"two"]).unwrap().0, 2);
        assert_eq!(log.durable_msn(), 0);
        gate.state.lock().0 = false;
        gate.moved.notify_all();
        syncing.join().unwrap().unwrap();
    });
    assert_eq!((log.durable_msn(), log.appended_msn()), (1, 2), "the second came too late for this flush");
}

/// Puts values nowhere: a bug.
struct Clumsy;

impl BlobPlacer for Clumsy {
    fn place(&self, _: Group, _: usize) -> crate::Result<Placed> {
        panic!("a bug")
    }
}

/// A panic of the one who wrote the log for all left everybody else waiting for it, and so a store that could
/// not even be dropped.
#[test]
fn a_panic_while_the_log_is_written_stops_it_for_all() {
    let writes: [fn(&Log) -> crate::Result<()>; 2] = [Log::sync, Log::write_out];
    for (first, then) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let log = Log::resume(region(&memory(), SIZE), 0, START, 0, 1, Some(Arc::new(Clumsy)));
        log.append_blobs(1, b"one", &[(Bytes::from("key"), Bytes::from("value"))]).unwrap();
        let (send, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let panics = std::panic::AssertUnwindSafe(|| writes[first](&log));
            assert!(std::panic::catch_unwind(panics).is_err());
            _ = send.send(writes[then](&log));
        });
        let stopped = done.recv_timeout(Duration::from_secs(20)).expect("nobody waits for ever");
        assert!(matches!(stopped, Err(Error::Stopped { .. })), "{first}, {then}");
    }
}

/// Such a state would make the log begin where no record has that number.
#[test]
#[should_panic(expected = "more bytes than records behind a state")]
fn the_log_begins_at_a_record() {
    let log = open(&memory());
    log.append(&[b"one"]).unwrap();
    log.start_after(START, 1);
}
