//! Range-upserts: one message that changes every value under a prefix. What the model test does at random,
//! here by name, and what only a certain state shows.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::model::merge::{DELETE, ModelMerge, add};
use bytes::Bytes;
use pando_db::{
    Batch, CreateOptions, Db, Error, InspectOptions, MAX_PREFIX_UPSERT, Merge, MessageInfo, Options,
    device::{Device, MemDevice},
    patch,
};

fn options(memtable: usize) -> Options {
    Options::default().background(false).memtable_bytes(memtable).merge(Arc::new(ModelMerge))
}

fn store(node: u32, memtable: usize) -> (Arc<MemDevice>, Db) {
    let device = Arc::new(MemDevice::new(64 << 20));
    let create = CreateOptions::default().node_size(node);
    Db::create(device.clone(), &create, &options(memtable)).unwrap();
    let db = Db::open(device.clone(), options(memtable)).unwrap();
    (device, db)
}

fn get(db: &Db, key: &str) -> Option<Vec<u8>> {
    db.get(key.as_bytes()).unwrap().map(|value| value.to_vec())
}

fn sound(db: &Db) {
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// Values of one byte, all the same.
fn fill(db: &Db, prefix: &str, count: usize, value: u8) {
    for i in 0..count {
        db.put(format!("{prefix}{i:05}"), vec![value; 100]).unwrap();
    }
}

fn values(db: &Db, prefix: &str) -> Vec<u8> {
    let firsts = db.prefix(prefix.as_bytes()).map(|pair| {
        let (key, value) = pair.unwrap();
        assert_eq!(db.get(&key).unwrap().as_ref(), Some(&value), "a scan and a get differ");
        assert!(value.iter().all(|byte| *byte == value[0]), "a value changed in part");
        value[0]
    });
    let firsts: Vec<u8> = firsts.collect();
    let back: Vec<u8> = {
        let mut cursor = db.prefix(prefix.as_bytes());
        std::iter::from_fn(|| cursor.next_back()).map(|pair| pair.unwrap().1[0]).collect()
    };
    assert!(firsts.iter().rev().eq(&back), "a scan and one from the back differ");
    firsts
}

#[test]
fn every_value_changes_and_none_is_made() {
    let (_, db) = store(4096, 1 << 20);
    fill(&db, "a/", 10, 1);
    db.delete("a/00003").unwrap();
    db.upsert_prefix("a/", add(5)).unwrap();
    db.upsert_prefix("b/", patch::write(0, b"x")).unwrap();
    assert_eq!(values(&db, "a/"), [6; 9]);
    assert_eq!(get(&db, "a/00003"), None);
    assert_eq!(db.prefix(b"b/").count(), 0);
    db.checkpoint().unwrap();
    assert_eq!(values(&db, ""), [6; 9]);
}

/// Each operation is seen by what is written before it and by nothing that is written after.
#[test]
fn what_is_written_later_is_not_changed() {
    for checkpoints in [false, true] {
        let (_, db) = store(4096, 1 << 20);
        let step = || {
            if checkpoints {
                db.checkpoint().unwrap()
            }
        };
        db.put("k1", vec![1]).unwrap();
        step();
        db.upsert_prefix("k", add(10)).unwrap();
        step();
        db.put("k2", vec![1]).unwrap();
        db.upsert("k1", add(100)).unwrap();
        db.upsert("k3", patch::write(0, &[7])).unwrap();
        step();
        db.upsert_prefix("k", add(1)).unwrap();
        step();
        assert_eq!(get(&db, "k1"), Some(vec![112]));
        assert_eq!(get(&db, "k2"), Some(vec![2]));
        assert_eq!(get(&db, "k3"), Some(vec![8]));
        sound(&db);
    }
}

/// An operation that deletes is not followed by one that would make the value anew, however they meet.
#[test]
fn a_value_that_is_deleted_on_the_way_stays_deleted() {
    for checkpoints in 0..8 {
        let (_, db) = store(4096, 1 << 20);
        let step = |n: u32| {
            if checkpoints >> n & 1 == 1 {
                db.checkpoint().unwrap()
            }
        };
        fill(&db, "", 200, 1);
        db.checkpoint().unwrap();
        db.upsert_prefix("000", DELETE).unwrap();
        step(0);
        db.upsert_prefix("", patch::write(0, &[9; 100])).unwrap();
        step(1);
        // A plain one does make it anew, and what follows finds it.
        db.upsert("00007", patch::write(0, &[3; 100])).unwrap();
        step(2);
        db.upsert_prefix("00", add(1)).unwrap();
        let mut expected = vec![10; 101];
        expected[0] = 4;
        assert_eq!(values(&db, ""), expected, "{checkpoints:b}");
        db.checkpoint().unwrap();
        assert_eq!(values(&db, ""), expected, "{checkpoints:b}");
        sound(&db);
    }
}

/// What waits for the source of a clone is put under the copy table by table. A point of one includes the
/// updates of its own table, and no others: those of older ones must be added, its own must not.
#[test]
fn a_clone_carries_updates_and_points_of_several_layers() {
    for small_memory in [false, true] {
        let (_, db) = store(16 << 10, if small_memory { 1 << 10 } else { 1 << 20 });
        fill(&db, "s/", 300, 1);
        db.settle().unwrap();
        for round in 0..4 {
            db.upsert_prefix("s/", add(1)).unwrap();
            db.upsert(format!("s/{:05}", 7), add(50)).unwrap();
            db.upsert_prefix("s/0000", add(1)).unwrap();
            db.upsert(format!("s/{:05}", 8 + round), add(20)).unwrap();
            if round == 2 {
                let mut batch = Batch::new();
                batch.delete_range("s/00200", Some(Bytes::from_static(b"s/00250")));
                db.write(batch).unwrap();
            }
            if round % 2 == 0 {
                // Makes a layer of it.
                db.checkpoint().unwrap();
            }
            db.clone_prefix("s/", format!("d{round}/")).unwrap();
            let source = values(&db, "s/");
            assert_eq!(source[7], 1 + 52 * (round + 1), "round {round}");
            assert_eq!(values(&db, &format!("d{round}/")), source, "round {round}");
            db.upsert_prefix(format!("d{round}/"), add(100)).unwrap();
            let changed: Vec<u8> = source.iter().map(|byte| byte.wrapping_add(100)).collect();
            assert_eq!(values(&db, &format!("d{round}/")), changed, "round {round}");
            assert_eq!(values(&db, "s/"), source, "round {round}");
        }
        db.rename_prefix("d3/", "e/").unwrap();
        let source: Vec<u8> = values(&db, "s/").iter().map(|byte| byte.wrapping_add(100)).collect();
        assert_eq!(values(&db, "e/"), source);
        db.settle().unwrap();
        assert_eq!(values(&db, "e/"), source);
        sound(&db);
    }
}

/// A page that the log has placed stands for points only while they are just what is in it.
#[test]
fn pages_of_the_log_do_not_hide_a_change() {
    for (at_once, crash) in [(false, false), (false, true), (true, false), (true, true)] {
        let (device, mut db) = store(1 << 20, 8 << 20);
        let value = |i: usize| vec![i as u8; 4000];
        let mut batch = Batch::new();
        (0..200).for_each(|i| _ = batch.put(format!("a/{i:05}"), value(i)));
        if at_once {
            batch.upsert_prefix("a/0000", add(1));
        }
        db.write(batch).unwrap();
        // The values go to extents of their own, but stay in the table in memory.
        db.sync().unwrap();
        if !at_once {
            db.upsert_prefix("a/0000", add(1)).unwrap();
            db.sync().unwrap();
        }
        if crash {
            drop(db);
            db = Db::open(device.clone(), options(8 << 20)).unwrap();
        }
        for round in 0..2 {
            for i in 0..200 {
                let expected = value(if i < 10 { i + 1 } else { i });
                assert_eq!(get(&db, &format!("a/{i:05}")), Some(expected), "{i} in round {round}");
            }
            db.checkpoint().unwrap();
        }
        sound(&db);
    }
}

/// A table with many points under the prefix is sealed first, so that no lock is held while they change.
#[test]
fn many_points_in_memory_are_not_changed_one_by_one() {
    let (device, db) = store(1 << 20, 8 << 20);
    for (count, left) in [(1000, 1001), (3000, 1)] {
        fill(&db, "a/", count, 1);
        db.put("b", vec![1; 100]).unwrap();
        db.upsert_prefix("", add(1)).unwrap();
        db.upsert("a/00007", add(1)).unwrap();
        db.upsert_prefix("a/00007", add(1)).unwrap();
        let mut expected = vec![2; count + 1];
        expected[7] = 4;
        assert_eq!(values(&db, ""), expected);
        let memory = db.inspect(&InspectOptions::default()).unwrap().memory;
        let points: u32 = memory.iter().flat_map(|table| &table.pages).map(|page| page.entries).sum();
        assert_eq!(points, left, "points in memory");
    }
    let expected = values(&db, "");
    db.sync().unwrap();
    drop(db);
    // A replay may put all into one table.
    let db = Db::open(device, options(8 << 20)).unwrap();
    assert_eq!(values(&db, ""), expected);
    db.checkpoint().unwrap();
    assert_eq!(values(&db, ""), expected);
    sound(&db);
}

#[test]
fn snapshots_and_cursors_do_not_see_later_changes() {
    let (_, db) = store(4096, 1 << 10);
    fill(&db, "a/", 300, 1);
    let (snapshot, mut cursor) = (db.snapshot(), db.prefix(b"a/"));
    for _ in 0..50 {
        db.upsert_prefix("a/", add(1)).unwrap();
        db.put("b", vec![0; 500]).unwrap();
    }
    db.checkpoint().unwrap();
    assert!(cursor.all(|pair| pair.unwrap().1 == vec![1; 100]));
    assert!(snapshot.prefix(b"a/").all(|pair| pair.unwrap().1 == vec![1; 100]));
    assert_eq!(values(&db, "a/"), [51; 300]);
    sound(&db);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let (device, db) = store(4096, 1 << 20);
    db.put("a", vec![1]).unwrap();
    let mut batch = Batch::new();
    batch.upsert_prefix("a", add(1)).upsert_prefix("a", vec![9; MAX_PREFIX_UPSERT + 1]);
    assert!(matches!(db.write(batch), Err(Error::TooLarge { .. })));
    let mut batch = Batch::new();
    (0..17).for_each(|_| _ = batch.upsert_prefix("a", vec![9; MAX_PREFIX_UPSERT]));
    assert!(matches!(db.write(batch), Err(Error::TooLarge { .. })));
    assert!(matches!(
        db.upsert_prefix(vec![b'k'; pando_db::MAX_KEY + 1], add(1)),
        Err(Error::TooLarge { .. })
    ));
    db.upsert_prefix("a", vec![9; MAX_PREFIX_UPSERT]).unwrap();
    assert_eq!(get(&db, "a"), Some(vec![1]));
    db.close().unwrap();
    let db = Db::open(device, options(1 << 20).read_only(true)).unwrap();
    assert!(matches!(db.upsert_prefix("a", add(1)), Err(Error::ReadOnly)));
}

/// Many operations that no merge makes one, over pieces of each other: what waits stays bounded.
#[test]
fn updates_that_pile_up_are_carried_down() {
    let (device, db) = store(4096, 8 << 20);
    fill(&db, "", 500, 0);
    db.checkpoint().unwrap();
    for round in 0..400u32 {
        // Truncations beyond the end change nothing; between them additions are not made one.
        db.upsert_prefix(format!("{:03}", round % 5), patch::truncate(1000)).unwrap();
        db.upsert_prefix("", add(1)).unwrap();
        db.upsert_prefix("", vec![99; 200]).unwrap();
    }
    assert_eq!(values(&db, ""), [(400 % 256) as u8; 500]);
    db.checkpoint().unwrap();
    let seen = db.inspect(&InspectOptions::default()).unwrap();
    let longest = seen.nodes.iter().map(|node| node.header_bytes).max().unwrap();
    assert!(longest < 8 << 20, "a header of {longest} bytes");
    assert_eq!(values(&db, ""), [(400 % 256) as u8; 500]);
    sound(&db);
    drop(db);
    let db = Db::open(device, options(8 << 20)).unwrap();
    assert_eq!(values(&db, ""), [(400 % 256) as u8; 500]);
}

#[test]
fn what_waits_can_be_looked_at() {
    let (_, db) = store(4096, 1 << 20);
    fill(&db, "a/", 300, 1);
    db.settle().unwrap();
    db.upsert_prefix("a/", add(1)).unwrap();
    db.upsert("a/00000", add(2)).unwrap();
    assert_eq!(db.stats().unwrap().updates_pending, 1);
    let all = InspectOptions { messages: true, ..InspectOptions::default() };
    let memory = db.inspect(&all).unwrap().memory;
    assert_eq!(memory[0].updates[0].range.as_prefix(), Some(&b"a/"[..]));
    assert_eq!(memory[0].updates[0].operations, [add(1)]);
    let entries = memory[0].pages[0].messages.clone().unwrap().unwrap();
    let MessageInfo::Upsert(operations) = &entries[0].message else { panic!("{entries:?}") };
    let seen: Vec<_> = operations.iter().map(|op| (op.operation.clone(), op.if_present)).collect();
    assert_eq!(seen, [(add(1), true), (add(2), false)]);
    db.checkpoint().unwrap();
    assert!(db.stats().unwrap().updates_pending > 0);
    let nodes = db.inspect(&all).unwrap().nodes;
    let edges = nodes[0].content.as_ref().unwrap().edges.iter();
    assert!(edges.flat_map(|edge| &edge.layers).any(|layer| !layer.updates.is_empty()));
}

/// A store of format version 2 is not read as if it were one of version 3.
#[test]
fn the_version_before_is_refused_by_name() {
    let (device, db) = store(4096, 1 << 20);
    db.close().unwrap();
    drop(db);
    let mut bytes = vec![0; 1 << 20];
    device.read_at(0, &mut bytes).unwrap();
    for slot in [0, crate::image::BLOCK] {
        bytes[slot + 8] = 2;
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[slot..slot + crate::image::BLOCK - 8]);
        bytes[slot + crate::image::BLOCK - 8..slot + crate::image::BLOCK].copy_from_slice(&sum.to_le_bytes());
    }
    device.write_at(0, &bytes[..2 * crate::image::BLOCK]).unwrap();
    let error = Db::open(device, options(1 << 20)).unwrap_err();
    assert!(matches!(&error, Error::Format(why) if why.contains("version 2; this is 3")), "{error}");
}

/// Sets the value, or deletes it. Of two plain changes the second decides; of two changes of a prefix it is left out
/// behind one that deletes.
struct Setting;

impl Merge for Setting {
    fn name(&self) -> &'static str {
        "setting"
    }

    fn apply(&self, _: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        (op != DELETE).then(|| Bytes::copy_from_slice(op))
    }

    fn combine(&self, _: &[u8], second: &[u8]) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(second))
    }

    fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(if first == DELETE { first } else { second }))
    }
}

/// Where a change of the key itself waits too, those of prefixes were combined as plain ones in no test.
#[test]
fn changes_of_a_prefix_are_combined_as_such_behind_one_of_the_key() {
    let options = || options(1 << 20).merge(Arc::new(Setting));
    let device = Arc::new(MemDevice::new(64 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(device, options()).unwrap();
    db.put("key", "old").unwrap();
    db.checkpoint().unwrap();
    db.upsert("key", "one").unwrap();
    db.upsert_prefix("", DELETE).unwrap();
    db.upsert_prefix("", "two").unwrap();
    assert_eq!(get(&db, "key"), None);
    db.settle().unwrap();
    assert_eq!(get(&db, "key"), None);
}
