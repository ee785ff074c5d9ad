//! What long scans leave in the cache: nothing that pushes out what others use, and what comes to be used again.
//!
//! The same in both forms.

use crate::setup::{MIB, Rng, Store, key, load, page_bytes, turn};

const CACHE: u64 = 16 * MIB;
const VALUE: u64 = 1000;

fn loaded(bytes: u64) -> (Store, u64) {
    let mut store = Store::new(MIB, CACHE);
    let count = bytes / VALUE;
    load(&store.db, "t/", count, VALUE as usize);
    store.reopen();
    (store, count)
}

#[test]
fn a_long_scan_pushes_nothing_out() {
    let _turn = turn();
    // Four times the cache, of which an eighth is in use.
    let (store, count) = loaded(4 * CACHE);
    let mut rng = Rng(3);
    let hot: Vec<u64> = (0..CACHE / 8 / page_bytes(MIB)).map(|_| rng.below(count)).collect();
    let read = || {
        let cost = store.during(|db| {
            for i in &hot {
                assert!(db.get(key("t/", *i).as_bytes()).unwrap().is_some());
            }
        });
        cost.reads
    };
    let (cold, warm) = (read(), read());
    assert!(cold >= hot.len() as u64 && warm == 0, "{cold}, {warm}");
    for _ in 0..3 {
        let (bytes, cost) = store.scan("t/");
        assert!(cost.read_bytes > bytes * 9 / 10, "{cost}");
        let missing = read();
        println!("long scans: of {} hot pages {missing} are read again after one of {bytes} B", hot.len());
        assert_eq!(missing, 0);
    }
}

#[test]
fn what_is_scanned_again_is_kept() {
    let _turn = turn();
    let (store, _) = loaded(CACHE / 4);
    let bytes: Vec<u64> = (0..4).map(|_| store.scan("t/").1.read_bytes).collect();
    println!("long scans: a quarter of the cache, time after time: {bytes:?} B are read");
    // The first is remembered, the second kept, but for what was forgotten.
    assert!(bytes[0] >= CACHE / 4 && bytes[1] >= CACHE / 4 / 2, "{bytes:?}");
    assert!(bytes[2] <= bytes[1] / 4 && bytes[3] <= bytes[2] / 4, "{bytes:?}");
}
