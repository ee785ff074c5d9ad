//! What long scans leave in the cache: nothing that pushes out what others use, and what comes to be used again.
//!
//! The same in both forms.

use pando_db::patch;

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
    for backward in [true, true, true, false, false, false] {
        let mut bytes = 0;
        let cost = store.during(|db| {
            let mut pairs = db.prefix(b"t/");
            while let Some(pair) = if backward { pairs.next_back() } else { pairs.next() } {
                let (key, value) = pair.unwrap();
                bytes += (key.len() + value.len()) as u64;
            }
        });
        // Where it turns round it meets what it has just passed.
        assert!((bytes / 3 * 2..bytes / 10 * 11).contains(&cost.read_bytes), "{cost}");
        let missing = read();
        println!("long scans: of {} hot pages {missing} are read again after one of {bytes} B", hot.len());
        assert_eq!(missing, 0, "backward: {backward}");
    }
}

/// Messages wait above some leaves, and of what lies between many pages are in the cache, so that requests are many and small
/// until the next message is wanted.
#[test]
fn a_page_is_read_once_a_scan() {
    const EVERY: u64 = 2048;
    const MESSAGES: u64 = 256;
    let _turn = turn();
    let mut store = Store::new(MIB, CACHE);
    let count = CACHE / 2 / VALUE;
    load(&store.db, "t/", count, VALUE as usize);
    for i in (0..count).filter(|i| i % EVERY < MESSAGES) {
        store.db.upsert(key("t/", i), patch::write(0, b"changed")).unwrap();
    }
    store.reopen();
    let (_, cold) = store.scan("t/");
    store.reopen();
    let two_pages = 2 * page_bytes(MIB) / (VALUE + 20);
    let warm = store.during(|db| {
        // Backwards: in order, what lies between would be read with them.
        for i in (0..count).rev().filter(|i| i % EVERY > 2 * MESSAGES && i % two_pages == 0) {
            assert!(db.get(key("t/", i).as_bytes()).unwrap().is_some());
        }
    });
    let (bytes, rest) = store.scan("t/");
    println!(
        "long scans: {bytes} B: cold {cold}\n            some pages {warm}\n              the rest {rest}"
    );
    assert!(warm.read_bytes > cold.read_bytes / 4 && rest.reads > 2 * cold.reads);
    assert!(warm.read_bytes + rest.read_bytes <= cold.read_bytes, "pages are read twice");
}

#[test]
fn what_is_scanned_again_is_kept() {
    let _turn = turn();
    let (store, _) = loaded(CACHE / 4);
    let bytes: Vec<u64> = (0..4).map(|_| store.scan("t/").1.read_bytes).collect();
    println!("long scans: a quarter of the cache, time after time: {bytes:?} B are read");
    // The beginning of the first is kept, the rest remembered; that of the second is kept, but for what was forgotten.
    assert!(bytes[0] >= CACHE / 4 && bytes[1] >= CACHE / 4 / 3, "{bytes:?}");
    assert!(bytes[2] <= bytes[1] / 4 && bytes[3] <= bytes[2] / 4, "{bytes:?}");
}
