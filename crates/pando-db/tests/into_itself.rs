//! Clones below their own source: what they hold, and that many of them in turn, each without the others, cost what as
//! many beside the source cost.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{
    Batch, CreateOptions, Db, Error, Options,
    device::{Device, MemDevice},
};

const NODE_BYTES: u32 = 16 << 10;
const CLONES: u32 = 1000;

fn store() -> (Arc<MemDevice>, Db) {
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &CreateOptions::default().node_size(NODE_BYTES), &Options::default()).unwrap();
    let db = Db::open(device.clone(), Options::default().background(false)).unwrap();
    let mut batch = Batch::new();
    for i in 0..20_000u32 {
        batch.put(format!("s/{i:08}"), format!("{i:0>80}"));
        batch.put(format!("s/z{i:08}"), vec![7; 30]);
    }
    for name in ["a", "t", "z"] {
        for i in 0..3000 {
            batch.put(format!("{name}{i:05}"), vec![1; 50]);
        }
    }
    db.write(batch).unwrap();
    db.settle().unwrap();
    (device, db)
}

fn under(db: &Db, prefix: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let strip = |key: &[u8]| key[prefix.len()..].to_vec();
    db.prefix(prefix.as_bytes()).map(|pair| pair.unwrap()).map(|(k, v)| (strip(&k), v.to_vec())).collect()
}

#[test]
fn a_copy_below_its_source_is_of_the_moment_before() {
    let (_, db) = store();
    let before = under(&db, "s/");
    // From the table, from the DAG, over an older copy, and again from within.
    for round in 0..4 {
        let mut wanted = under(&db, "s/");
        db.clone_prefix("s/", "s/copy/").unwrap();
        assert!(under(&db, "s/copy/") == wanted, "{round}");
        if round % 2 == 0 {
            db.settle().unwrap();
        }
        assert!(under(&db, "s/copy/") == wanted, "{round}");
        wanted.retain(|(key, _)| !key.starts_with(b"copy/"));
        assert!(wanted == before, "{round}");
        db.put(format!("s/copy/{round}"), "new").unwrap();
    }
    db.clone_prefix("s/copy/", "s/copy/copy/x/").unwrap();
    let report = db.check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert!(matches!(db.clone_prefix("", "x"), Err(Error::Overlap)));
    assert!(matches!(db.clone_prefix("s/", "s/"), Err(Error::Overlap)));
    assert!(matches!(db.clone_prefix("s/copy/", "s/"), Err(Error::Overlap)));
    assert!(matches!(db.rename_prefix("s/", "s/x/"), Err(Error::Overlap)));
}

/// Bytes written, bytes of all nodes and the height after many clones in turn, each with an edit, to below `at`.
fn many(at: &str) -> (u64, u64, usize) {
    let (device, db) = store();
    let wanted = under(&db, "s/");
    let before = device.stats().write_bytes;
    for i in 0..CLONES {
        let copy = format!("{at}{i:04}/");
        let mut batch = Batch::new();
        batch.clone_prefix("s/", copy.clone());
        batch.delete_prefix(format!("{copy}w/"));
        batch.put(format!("{copy}{i}"), "edit");
        db.write(batch).unwrap();
        if i % 100 == 99 {
            db.checkpoint().unwrap();
        }
        if i % 333 == 0 {
            let mut held = under(&db, &copy);
            held.retain(|(key, _)| key != format!("{i}").as_bytes());
            assert!(held == wanted, "copy {i}");
        }
    }
    db.settle().unwrap();
    let report = db.check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let written = device.stats().write_bytes - before;
    let stats = db.stats().unwrap();
    (written, stats.node_bytes, stats.nodes_by_height.len())
}

#[test]
fn a_thousand_clones_inside_cost_what_a_thousand_beside_cost() {
    let (inside, beside) = (many("s/w/"), many("w/"));
    println!("inside {inside:?}, beside {beside:?}: bytes written, bytes of nodes, height");
    assert!(inside.0 <= beside.0 * 3, "written: {inside:?} {beside:?}");
    assert!(inside.1 <= beside.1 * 2, "kept: {inside:?} {beside:?}");
    assert!(inside.2 <= beside.2 + 1, "height: {inside:?} {beside:?}");
}
