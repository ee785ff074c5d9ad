//! The invariants of batches, tables and checkpoints, each broken on purpose: an assertion fails, in release builds
//! too, or the check of the store finds it. `docs/invariants.md` names them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use crate::{
    CreateOptions, Db, Options,
    batch::Op,
    dag::memtable::Memtable,
    db::{
        checkpoint::store_page,
        engine::{Engine, superversion::Superversion},
    },
    device::MemDevice,
    store::log::{Log, LogPos, Region},
};

fn store() -> (Db, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::new(64 << 20));
    let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
    let options = Options { background: false, ..Options::default() };
    Db::create(device.clone(), &create, &options).unwrap();
    (Db::open(device.clone(), options).unwrap(), device)
}

/// Changes the state of a store that holds one batch in memory, and goes on with the store.
fn broken(change: impl FnOnce(&mut Superversion), go_on: impl FnOnce(&Db)) {
    let (db, _) = store();
    db.put("a", "1").unwrap();
    change(&mut db.engine().superversion.write());
    go_on(&db);
}

/// A position behind the end of every log.
const FAR: LogPos = LogPos { pos: 1 << 40, chain: 0 };

#[test]
#[should_panic(expected = "batches are numbered in order")]
fn batches_have_ascending_numbers() {
    broken(|superversion| superversion.active.msn = 100, |db| db.put("b", "2").unwrap());
}

#[test]
#[should_panic(expected = "batches stand in the log in another order")]
fn batches_stand_in_the_log_in_their_order() {
    broken(|superversion| superversion.active.log_end = FAR, |db| db.put("b", "2").unwrap());
}

#[test]
#[should_panic(expected = "batches are numbered in order")]
fn a_table_of_the_log_holds_newer_batches_than_those_before() {
    let (db, _) = store();
    let put = Op::Put("a".into(), "1".into());
    _ = db.engine().table_of((5, LogPos::default()), vec![put], (5, FAR));
}

#[test]
#[should_panic(expected = "a table is sealed that is not newer than those before")]
fn tables_are_sealed_in_order() {
    broken(|superversion| Arc::make_mut(&mut superversion.tree).msn = 100, |db| db.engine().seal());
}

#[test]
#[should_panic(expected = "a table is sealed that ends before others in the log")]
fn tables_are_sealed_in_the_order_of_the_log() {
    broken(|superversion| Arc::make_mut(&mut superversion.tree).log_end = FAR, |db| db.engine().seal());
}

#[test]
#[should_panic(expected = "a table is taken in that is not newer than those before")]
fn tables_of_the_log_are_taken_in_in_order() {
    broken(|superversion| superversion.push(Memtable::new(0, LogPos::default())), |_| ());
}

/// Seals the batch in memory, breaks something of the tree, and flushes.
fn flushed(change: impl FnOnce(&mut Superversion)) {
    let seal_and_change = |superversion: &mut Superversion| {
        superversion.seal();
        change(superversion);
    };
    broken(seal_and_change, |db| _ = db.engine().flush_step());
}

#[test]
#[should_panic(expected = "a table was applied that is older than the tree")]
fn tables_are_applied_in_order() {
    flushed(|superversion| Arc::make_mut(&mut superversion.tree).msn = 100);
}

#[test]
#[should_panic(expected = "a table was applied that the log has passed")]
fn tables_are_applied_in_the_order_of_the_log() {
    flushed(|superversion| Arc::make_mut(&mut superversion.tree).log_end = FAR);
}

#[test]
#[should_panic(expected = "a state that is newer than the log")]
fn a_checkpoint_is_of_no_newer_state_than_the_log() {
    let newer = |superversion: &mut Superversion| Arc::make_mut(&mut superversion.tree).log_end = FAR;
    broken(newer, |db| db.engine().checkpoint_nodes(|_| true).unwrap());
}

#[test]
#[should_panic(expected = "a table page without bytes")]
fn a_table_page_has_bytes() {
    let (db, _) = store();
    let Engine { pager, space, .. } = &**db.engine();
    _ = store_page(pager, space, Bytes::new());
}

/// The tree of a deleted directory, cut off and not reclaimed yet.
#[test]
fn a_node_that_nobody_would_reclaim_is_found() {
    let (db, _) = store();
    (0..2_000).for_each(|i| db.put(format!("tree/{i:05}"), vec![7; 400]).unwrap());
    db.checkpoint().unwrap();
    db.delete_prefix("tree/").unwrap();
    db.checkpoint().unwrap();
    assert!(db.check().unwrap().findings.is_empty());
    let orphans = std::mem::take(&mut *db.engine().orphans.lock());
    assert!(!orphans.is_empty(), "nothing was cut off");
    let findings = db.check().unwrap().findings;
    let is_named = |id: &u64| {
        let what = format!("node {id}: nothing refers to it, and it is not to be reclaimed");
        findings.iter().any(|finding| finding.what == what)
    };
    assert!(orphans.iter().all(is_named), "{findings:?}");
}

/// The superblock names the batch that stands at the start of the log, whatever was written since and is of the log
/// itself: what a recovery would read is what is not in the table.
#[test]
fn the_log_begins_with_the_batch_that_the_superblock_names() {
    for seed in 0..20 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (db, device) = store();
        let engine = db.engine();
        let mut replayed = 0;
        for i in 0..150u32 {
            match rng.random_range(0..8) {
                0 => db.put(format!("long{}", i % 7), vec![1; rng.random_range(2_000..20_000)]).unwrap(),
                1 => engine.checkpoint_nodes(|_| true).unwrap(),
                2 => db.checkpoint().unwrap(),
                3 => {
                    engine.seal();
                    engine.flush_all().unwrap();
                }
                4 => db.sync().unwrap(),
                _ => db.put(format!("short{}", i % 13), vec![2; 100]).unwrap(),
            }
            if rng.random_range(0..4) > 0 {
                continue;
            }
            db.sync().unwrap();
            let superblock = engine.checkpointing.lock().superblock.clone();
            let region = Region {
                device: device.clone(),
                base: superblock.log_base,
                size: superblock.log_size,
                store: superblock.store(),
            };
            let (start, next) = (superblock.log_start, superblock.next_msn);
            let mut replay = Log::replay(region, start, next, superblock.log_durable, false, false);
            let mut last = next - 1;
            while let Some(record) = replay.next().unwrap() {
                assert_eq!(record.msn, last + 1, "seed {seed}, step {i}");
                last = record.msn;
                replayed += 1;
            }
            assert_eq!(last, engine.log.durable_msn(), "seed {seed}, step {i}: records are not found");
        }
        assert!(replayed > 50, "seed {seed}: only {replayed} records");
    }
}
