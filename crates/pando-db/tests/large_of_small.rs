//! Small upserts that make large values: a leaf that would grow by much takes them in by several flushes. What waits
//! above its upper keys meanwhile must be there, in its order, whatever comes beside it.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use pando_db::{Batch, CreateOptions, Db, Options, device::MemDevice, patch};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const NODE_BYTES: u32 = 4 << 10;
/// Keys below one prefix, a count.
const KEYS: u32 = 400;
/// A value at the most, beside nodes of 4 KiB.
const VALUE_BYTES: u32 = 3000;
const SEEDS: u64 = 12;
/// Batches for each seed, a count.
const BATCHES: u32 = 150;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u32) -> Vec<u8> {
    format!("a/{i:04}").into_bytes()
}

fn write(model: &mut Model, key: Vec<u8>, offset: u32, bytes: &[u8]) {
    let value = model.entry(key).or_default();
    let (from, to) = (offset as usize, offset as usize + bytes.len());
    value.resize(value.len().max(to), 0);
    value[from..to].copy_from_slice(bytes);
}

fn compare(db: &Db, model: &Model, seed: u64) {
    let pairs: Vec<_> = db.range(b"", None).map(Result::unwrap).collect();
    assert_eq!(pairs.len(), model.len(), "seed {seed}: other keys");
    for ((key, value), (wanted_key, wanted)) in pairs.iter().zip(model) {
        assert!(key == wanted_key && value == wanted, "seed {seed}: {} differs", key.escape_ascii());
    }
}

#[test]
fn a_leaf_that_takes_upserts_in_by_parts_loses_and_repeats_none() {
    for seed in 0..SEEDS {
        let mut random = SmallRng::seed_from_u64(seed);
        let device = Arc::new(MemDevice::new(256 << 20));
        let options = Options::default().background(false).memtable_bytes(8 << 10).cache_bytes(4 << 20);
        Db::create(device.clone(), &CreateOptions::default().node_size(NODE_BYTES), &options).unwrap();
        let db = Db::open(device, options).unwrap();
        let mut model = Model::new();
        for round in 0..BATCHES {
            let any = |random: &mut SmallRng| key(random.random_range(0..KEYS));
            let mut batch = Batch::new();
            match random.random_range(0..40) {
                0 => {
                    let (a, b) = (any(&mut random), any(&mut random));
                    let (from, to) = (a.clone().min(b.clone()), a.max(b));
                    batch.delete_range(from.clone(), Some(to.clone().into()));
                    model.retain(|key, _| !(&from..&to).contains(&key));
                }
                1 => {
                    let (offset, bytes) = (random.random_range(0..VALUE_BYTES), [round as u8; 3]);
                    batch.upsert_prefix("a/", patch::write(offset, &bytes));
                    let inside: Vec<_> = model.keys().filter(|k| k.starts_with(b"a/")).cloned().collect();
                    inside.into_iter().for_each(|key| write(&mut model, key, offset, &bytes));
                }
                2 => {
                    batch.clone_prefix("a/", "b/");
                    model.retain(|key, _| !key.starts_with(b"b/"));
                    let copies: Vec<_> =
                        model.iter().map(|(k, v)| ([b"b/", &k[2..]].concat(), v.clone())).collect();
                    model.extend(copies);
                }
                3 => _ = db.settle(),
                4..8 => {
                    let key = any(&mut random);
                    batch.delete(key.clone());
                    model.remove(&key);
                }
                _ => {
                    // Nearly in order, so that they go to few leaves.
                    let first = random.random_range(0..KEYS);
                    for i in first..KEYS.min(first + 60) {
                        let (offset, bytes) = (random.random_range(0..VALUE_BYTES), [round as u8; 4]);
                        batch.upsert(key(i), patch::write(offset, &bytes));
                        write(&mut model, key(i), offset, &bytes);
                    }
                }
            }
            db.write(batch).unwrap();
            if round % 50 == 49 {
                compare(&db, &model, seed);
            }
        }
        db.settle().unwrap();
        compare(&db, &model, seed);
        assert!(db.check().unwrap().findings.is_empty(), "seed {seed}: not sound");
    }
}
