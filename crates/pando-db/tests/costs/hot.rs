//! Small values that are read again and again, scattered over a store that is much larger than the cache: their pages do
//! not fit it, they do.
//!
//! The same in both forms.

use std::ops::Range;

use pando_db::patch;

use crate::setup::{MIB, Rng, Store, key, load, page_bytes, turn};

const CACHE: u64 = 24 * MIB;
const VALUE: usize = 100;
const COUNT: u64 = 6 * CACHE / (VALUE as u64 + 20);
/// Their pages have 2.6 times the cache, they a hundredth of it.
const HOT: usize = 2000;

fn loaded() -> (Store, Vec<u64>) {
    let mut store = Store::new(MIB, CACHE);
    load(&store.db, "t/", COUNT, VALUE);
    store.reopen();
    let mut rng = Rng(7);
    let hot = (0..HOT).map(|_| rng.below(COUNT)).collect();
    assert!(HOT as u64 * page_bytes(MIB) > 2 * CACHE);
    (store, hot)
}

/// Reads all of `hot` so often, in another order each time: device reads of each round.
fn rounds(store: &Store, hot: &[u64], prefix: &str, rounds: Range<u64>) -> Vec<u64> {
    let mut hot = hot.to_vec();
    let mut round = |seed: u64| {
        let mut rng = Rng(seed);
        (1..hot.len()).for_each(|i| hot.swap(i, rng.below(i as u64 + 1) as usize));
        let cost = store.during(|db| {
            for i in &hot {
                assert!(db.get(key(prefix, *i).as_bytes()).unwrap().is_some());
            }
        });
        cost.reads
    };
    rounds.map(&mut round).collect()
}

#[test]
fn hot_small_values_need_no_room_for_their_pages() {
    let _turn = turn();
    let (store, hot) = loaded();
    let reads = rounds(&store, &hot, "t/", 1..5);
    println!("hot values: {HOT} of {COUNT}, pages of 2.6 times the cache: {reads:?} reads a round");
    assert!(reads[0] > HOT as u64 / 10 * 9, "the first round is not cold: {reads:?}");
    assert!(reads[1..].iter().all(|reads| *reads <= HOT as u64 / 100), "{reads:?}");
}

/// A scan of all there is and cold reads of other keys push them out as little as they push out hot pages.
#[test]
fn hot_small_values_stay_beside_scans_and_cold_reads() {
    let _turn = turn();
    let (store, hot) = loaded();
    rounds(&store, &hot, "t/", 1..4);
    store.scan("t/");
    let after_scan = rounds(&store, &hot, "t/", 4..5)[0];
    let mut rng = Rng(11);
    let mut after_cold = Vec::new();
    for turn in 5..9 {
        (0..HOT).for_each(|_| _ = store.db.get(key("t/", rng.below(COUNT)).as_bytes()).unwrap());
        after_cold.extend(rounds(&store, &hot, "t/", turn..turn + 1));
    }
    println!(
        "hot values: {after_scan} reads after a scan of all; {after_cold:?} after as many cold reads each"
    );
    assert!(after_scan <= HOT as u64 / 20, "{after_scan}");
    assert!(after_cold.iter().all(|reads| *reads <= HOT as u64 / 10), "{after_cold:?}");
}

/// Those of a clone are the same pages, so the same values; messages that wait above say with no read that they know nothing of a key.
#[test]
fn hot_small_values_are_shared_by_clones_and_found_below_messages() {
    let _turn = turn();
    let (mut store, hot) = loaded();
    store.db.clone_prefix("t/", "clone/").unwrap();
    let mut rng = Rng(5);
    for _ in 0..20_000 {
        store.db.upsert(key("t/", rng.below(COUNT)), patch::write(3, b"x")).unwrap();
    }
    store.reopen();
    let original = rounds(&store, &hot, "t/", 1..4);
    let clone = rounds(&store, &hot, "clone/", 4..7);
    println!("hot values: {original:?} reads a round below messages, {clone:?} of a clone afterwards");
    assert!(original[1..].iter().chain(&clone[1..]).all(|reads| *reads <= HOT as u64 / 100));
    assert!(clone[0] <= HOT as u64 / 5, "the clone's values are read again");
}
