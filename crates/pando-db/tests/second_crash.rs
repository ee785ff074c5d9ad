//! What a recovery has come to is what the next one comes to, whatever the first found torn.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{Device, DeviceCall, HookedDevice, MemDevice, SimDevice},
};

const SEEDS: u64 = 400;
/// Bytes that a device writes as a whole, if it does not tear even these.
const SECTOR_BYTES: usize = 512;
const SIZE: usize = 3 << 20;
const BLOCK: usize = 4096;
const LOG_BYTES: usize = 1 << 20;

type Pairs = Vec<(Bytes, Bytes)>;

fn options() -> Options {
    // The thread that flushes writes the log out and does not make it durable; no checkpoint comes between.
    Options::default().memtable_bytes(30 << 10).sync_interval(Duration::from_secs(3600))
}

fn pairs(db: &Db) -> Pairs {
    db.range(&[], None).map(|pair| pair.unwrap()).collect()
}

/// Writes batches of long values, which stand outside the log, and of short ones.
fn write(db: &Db, round: u8, states: &mut Vec<BTreeMap<Vec<u8>, Vec<u8>>>) {
    for number in 0..12u8 {
        let mut state = states.last().unwrap().clone();
        let mut batch = Batch::new();
        for i in 0..u8::from(number % 3 != 0) * 3 + 1 {
            let len = if number % 3 == 0 { 20 } else { 2500 };
            let (key, value) = (vec![b'k', number % 4, i], vec![round ^ number ^ i; len]);
            batch.put(key.clone(), value.clone());
            state.insert(key, value);
        }
        db.write(batch).unwrap();
        states.push(state);
    }
    // The tables that are full are flushed, and the log is written out for them.
    std::thread::sleep(Duration::from_millis(5));
}

/// Where the last batches of a log were torn, a first recovery left them out and a second one lost others as well: the
/// record that says where the values of a group are came after the first batch that was left out. Without a record that
/// takes the batches back, what is synced behind them calls them durable, and their values are missed.
#[test]
fn a_second_crash_finds_what_the_first_recovery_found() {
    let (mut torn, mut kept, mut noted) = (0, 0, 0);
    for seed in 0..SEEDS {
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        let create = CreateOptions::default().node_size(8192).log_size(LOG_BYTES as u64);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let mut states = vec![BTreeMap::new()];
        write(&db, 0, &mut states);
        device.crash();
        drop(db);
        let mut device = device.reopen();
        let mut found = None;
        for crash in 1..4u8 {
            // This also verifies what stands beside the records of the log, of which any part may be torn.
            let looked = Db::open(device.clone(), options().read_only(true)).unwrap().check().unwrap();
            assert!(looked.findings.is_empty(), "seed {seed}, crash {crash}: {:?}", looked.findings);
            noted += looked.notes.len();
            let db = Db::open(device.clone(), options()).unwrap();
            let now = pairs(&db);
            let same = |state: &BTreeMap<Vec<u8>, Vec<u8>>| {
                state.iter().map(|(k, v)| (&k[..], &v[..])).eq(now.iter().map(|(k, v)| (&k[..], &v[..])))
            };
            let at = states.iter().rposition(same);
            let at = at.unwrap_or_else(|| panic!("seed {seed}, crash {crash}: a state that never was"));
            if let Some(found) = found {
                assert!(at >= found, "seed {seed}, crash {crash}: batch {found} was there, now it is {at}");
            }
            assert!(db.check().unwrap().findings.is_empty(), "seed {seed}, crash {crash}");
            torn += u32::from(at + 1 < states.len());
            kept += u32::from(at > 0 && at + 1 < states.len());
            states.truncate(at + 1);
            found = Some(at);
            if crash == 2 {
                write(&db, 100, &mut states);
                if seed % 2 == 0 {
                    // Behind batches that were taken back, which are not durable with it.
                    db.sync().unwrap();
                    found = Some(states.len() - 1);
                }
            }
            device.crash();
            drop(db);
            device = device.reopen();
        }
    }
    assert!(torn > 100 && kept > 50, "only {torn} torn tails, {kept} of them with batches before");
    assert!(noted > 0, "nothing was torn");
}

/// The image of a store that was killed: a synced batch, one that reached the log, one of which the log came through and
/// the values outside it did not, and others behind it.
fn torn_tail() -> Vec<u8> {
    let options = options().background(false);
    let device = Arc::new(MemDevice::new(SIZE as u64));
    let create = CreateOptions::default().node_size(8192).log_size(LOG_BYTES as u64);
    Db::create(device.clone(), &create, &options).unwrap();
    let db = Db::open(device.clone(), options).unwrap();
    db.put("a", "durable").unwrap();
    db.sync().unwrap();
    db.put("b", "in the log").unwrap();
    let noise: Vec<u8> = (0..20_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    let mut batch = Batch::new();
    noise.chunks(2500).enumerate().for_each(|(i, value)| _ = batch.put(format!("c{i}"), value.to_vec()));
    db.write(batch).unwrap();
    // The table becomes full, and what waits for the log is written out with it and not flushed.
    (0..200).for_each(|i| db.put(format!("d{i}"), vec![i as u8; 200]).unwrap());
    let mut image = image(&*device);
    for value in noise.chunks(2500) {
        let at = image.windows(64).position(|bytes| bytes == &value[..64]).unwrap();
        image[at..at + 64].fill(0);
    }
    image
}

fn image(device: &dyn Device) -> Vec<u8> {
    let mut image = vec![0; SIZE];
    device.read_at(0, &mut image).unwrap();
    image
}

fn device(image: &[u8]) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(SIZE as u64));
    device.write_at(0, image).unwrap();
    device
}

/// Power fails in each write of the first recovery, of which any sectors come through: what that leaves must not make a
/// batch count that lacks its values. The footer behind the record that takes batches back called them durable, and came
/// through without it: then their values were missed.
#[test]
fn a_recovery_of_a_torn_tail_that_is_torn_itself_changes_nothing() {
    let torn = torn_tail();
    let expected: [(Bytes, Bytes); 2] =
        [("a", "durable"), ("b", "in the log")].map(|(k, v)| (k.into(), v.into()));
    let (mut in_log, mut tried) = (0, 0);
    // Each write with what it wrote, in order.
    let below = device(&torn);
    let writes = Arc::new(Mutex::new(Vec::new()));
    let (noted, source) = (writes.clone(), below.clone());
    let hooked = HookedDevice::new(below, true, |_| Ok(())).and_after(move |call| {
        let (DeviceCall::Write(range) | DeviceCall::WriteDurably(range)) = call else { return };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        source.read_at(range.start, &mut bytes).unwrap();
        noted.lock().unwrap().push((range.start as usize, bytes));
    });
    let db = Db::open(Arc::new(hooked), options().background(false)).unwrap();
    assert_eq!(pairs(&db), expected, "the first recovery");
    drop(db);
    let mut before = torn;
    for (number, (at, bytes)) in writes.lock().unwrap().iter().enumerate() {
        let sectors: Vec<_> = bytes.chunks(SECTOR_BYTES).enumerate().collect();
        for which in 0..1u32 << sectors.len().min(8) {
            let mut image = before.clone();
            for (i, sector) in sectors.iter().filter(|(i, _)| which >> (i % 8) & 1 == 1) {
                image[at + i * SECTOR_BYTES..][..sector.len()].copy_from_slice(sector);
            }
            let what = format!("write {number} at {at}, sectors {which:b}");
            let db = Db::open(device(&image), options().background(false)).unwrap();
            let found = db.range(&[], None).map(|pair| pair.unwrap_or_else(|e| panic!("{what}: {e}")));
            assert!(found.eq(expected.clone()), "{what}: another state");
            let findings = db.check().unwrap().findings;
            assert!(findings.is_empty(), "{what}: {findings:?}");
            tried += 1;
        }
        in_log += u32::from((2 * BLOCK..2 * BLOCK + LOG_BYTES).contains(at));
        before[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(in_log > 0 && tried >= 256, "{tried} states, {in_log} writes of the log");
}
