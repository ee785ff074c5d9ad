//! Short ranges: what is read for some pairs that follow each other, once the headers are in memory.
//!
//! The same in both forms, with pages as large as they get.

use crate::setup::{MIB, Store, key, load, page_bytes, turn};

const COUNT: u64 = 100_000;
/// 15 KB: in one page, or in two.
const PAIRS: u64 = 128;
const PLACES: u64 = 20;

#[test]
fn a_short_range_reads_its_pages_with_one_request_and_no_others() {
    let _turn = turn();
    let mut store = Store::new(MIB, 64 * MIB);
    load(&store.db, "t/", COUNT, 100);
    store.db.checkpoint().unwrap();
    let page = page_bytes(MIB);
    let far = |i: u64| i * (COUNT / PLACES) + 137;
    let range = |i: u64| (key("t/", far(i)), key("t/", far(i) + PAIRS));
    let mut cost = |name: &str, most_requests: u64, most_pages: u64, read: &dyn Fn(&pando_db::Db, u64)| {
        store.reopen();
        // Headers, and nothing else.
        store.db.usage(b"").unwrap();
        let cost = store.during(|db| (0..PLACES).for_each(|i| read(db, i)));
        println!("{name:>26}: {cost}");
        assert!(cost.requests() <= most_requests, "{name}: {most_requests} requests would do");
        assert!(cost.read_bytes <= most_pages * page, "{name}: {most_pages} pages would do");
        assert!(cost.read_bytes >= PLACES * page / 2, "{name}: all was there already");
    };
    cost("up to its end", PLACES, 2 * PLACES, &|db, i| {
        let (lo, hi) = range(i);
        assert_eq!(db.range(lo.as_bytes(), Some(hi.as_bytes())).count() as u64, PAIRS);
    });
    // Where a range goes down into another page, that is another request.
    cost("down to its beginning", 2 * PLACES, 2 * PLACES, &|db, i| {
        let (lo, hi) = range(i);
        assert_eq!(db.range(lo.as_bytes(), Some(hi.as_bytes())).rev().count() as u64, PAIRS);
    });
    cost("the first of all behind it", PLACES, PLACES, &|db, i| {
        assert!(db.range(range(i).0.as_bytes(), None).next().is_some());
    });
}
