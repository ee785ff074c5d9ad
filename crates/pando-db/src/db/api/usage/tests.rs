//! What a question about many snapshots costs, by the references to nodes that are followed.

use std::{cell::Cell, sync::Arc};

use bytes::Bytes;

use crate::{CreateOptions, Db, Options, device::MemDevice};

thread_local! {
    /// References to nodes that were followed by this thread.
    pub(super) static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
}

/// A tree with so many snapshots, with changes before each.
fn with_snapshots(count: u32) -> (Db, Vec<Vec<Bytes>>) {
    let device = Arc::new(MemDevice::new(128 << 20));
    let options = || Options::default().background(false).memtable_bytes(64 << 10);
    Db::create(device.clone(), &CreateOptions::default().node_size(16 << 10), &options()).expect("made");
    let db = Db::open(device, options()).expect("opened");
    let put = |n: u32, value: u8| db.put(format!("a/{n:06}"), vec![value; 300]).expect("put");
    (0..1000).for_each(|n| put(n, 0));
    let mut all = Vec::new();
    for snapshot in 0..count {
        (0..5).for_each(|n| put((snapshot * 7 + n * 211) % 1000, snapshot as u8));
        let name = Bytes::from(format!("s{snapshot:05}/"));
        db.clone_prefix("a/", name.clone()).expect("cloned");
        all.push(vec![name]);
    }
    db.settle().expect("settled");
    (db, all)
}

fn looked_at(what: impl FnOnce()) -> u64 {
    let before = LOOKED_AT.get();
    what();
    LOOKED_AT.get() - before
}

#[test]
fn many_snapshots_are_looked_at_in_one_walk() {
    let [few, many] = [100, 400].map(|count| {
        let (db, all) = with_snapshots(count);
        let mut told = Vec::new();
        let together = looked_at(|| told = db.usage_of_each(&all).expect("told"));
        let mut single = Vec::new();
        let singly = looked_at(|| {
            single = all.iter().map(|one| db.usage_of(one).expect("told")).collect();
        });
        println!("{count} snapshots: {together} references in one walk, {singly} one by one");
        assert!(told == single, "one by one something else is said");
        (together, singly)
    });
    let ratio = many.0 as f64 / few.0 as f64;
    assert!(ratio < 5.0, "four times the snapshots: {ratio:.1} times the references");
    assert!(many.1 > 8 * few.1, "one by one they are quadratic, or this measures nothing: {few:?}, {many:?}");
}
