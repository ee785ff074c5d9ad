//! What a recovery has come to is what the next one comes to, whatever the first found torn.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{FailMode, SimDevice},
};

const SEEDS: u64 = 400;
/// Requests of a recovery at which power fails.
const REQUESTS: u64 = 24;

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
/// record that says where the values of a group are came after the first batch that was left out.
#[test]
fn a_second_crash_finds_what_the_first_recovery_found() {
    let (mut torn, mut kept) = (0, 0);
    for seed in 0..SEEDS {
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        let create = CreateOptions::default().node_size(8192).log_size(1 << 20);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let mut states = vec![BTreeMap::new()];
        write(&db, 0, &mut states);
        device.crash();
        drop(db);
        let mut device = device.reopen();
        let mut found = None;
        for crash in 1..4u8 {
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
            }
            device.crash();
            drop(db);
            device = device.reopen();
        }
    }
    assert!(torn > 100 && kept > 50, "only {torn} torn tails, {kept} of them with batches before");
}

/// Power fails at each request of the first recovery: what it has written so far must not make a batch count that lacks
/// its values. The footer behind the record that takes batches back called them durable, and came through without it.
#[test]
fn a_crash_in_the_recovery_of_a_torn_tail_changes_nothing() {
    let mut failed = 0;
    for seed in 0..SEEDS / 2 {
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        let create = CreateOptions::default().node_size(8192).log_size(1 << 20);
        Db::create(device.clone(), &create, &options()).unwrap();
        let db = Db::open(device.clone(), options()).unwrap();
        let mut states = vec![BTreeMap::new()];
        write(&db, 0, &mut states);
        device.crash();
        drop(db);
        let state_of = |db: &Db| {
            let now = pairs(db);
            states.iter().rposition(|state| {
                state.iter().map(|(k, v)| (&k[..], &v[..])).eq(now.iter().map(|(k, v)| (&k[..], &v[..])))
            })
        };
        let whole = state_of(&Db::open(device.reopen(), options()).unwrap());
        if whole == Some(states.len() - 1) {
            continue;
        }
        for request in 0..REQUESTS {
            let first = device.reopen();
            first.set_fail_at(Some(request), FailMode::Onwards);
            failed += u32::from(Db::open(first.clone(), options()).is_err());
            let second = Db::open(first.reopen(), options()).unwrap();
            assert!(state_of(&second).is_some(), "seed {seed}, request {request}: a state that never was");
            assert!(second.check().unwrap().findings.is_empty(), "seed {seed}, request {request}");
        }
    }
    assert!(failed > 200, "only {failed} recoveries failed");
}
