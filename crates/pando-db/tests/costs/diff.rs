//! A difference of two trees reads what differs: where they differ in ten places, the same pages whatever the size of
//! the trees, and a node a level.
//!
//! Small form: 64 KiB nodes in place of 1 MiB, for trees that are as many levels high with less data.

use pando_db::{Db, patch};

use crate::setup::{Cost, KIB, MIB, Store, full, key, load, page_bytes, turn};

const VALUE: usize = 100;
const PLACES: u64 = 10;

fn count_changes(db: &Db, a: &str, b: &str) -> u64 {
    let changes = db.diff(a.as_bytes(), b.as_bytes()).unwrap().collect::<Result<Vec<_>, _>>();
    changes.unwrap().len() as u64
}

/// The cost of a cold difference in which `changes` are found.
fn cold(store: &mut Store, a: &str, b: &str, changes: u64) -> Cost {
    store.reopen();
    store.during(|db| assert_eq!(count_changes(db, a, b), changes))
}

struct Measured {
    levels: u64,
    same: Cost,
    fresh: Cost,
    settled: Cost,
    chmod: Cost,
    renamed: Cost,
}

fn measure(node: u64, cache: u64, count: u64) -> Measured {
    let mut store = Store::new(node, cache);
    let store = &mut store;
    load(&store.db, "a/", 10, VALUE);
    load(&store.db, "t/", count, VALUE);
    load(&store.db, "z/", 10, VALUE);
    store.db.clone_prefix("t/", "c/").unwrap();
    let same = cold(store, "t/", "c/", 0);
    let edit = |db: &Db| {
        for i in 0..PLACES {
            let at = count / PLACES * i + count / (2 * PLACES);
            db.upsert(key("c/", at), patch::write(3, b"changed")).unwrap();
        }
    };
    edit(&store.db);
    // The changes wait above what both share.
    let fresh = cold(store, "t/", "c/", PLACES);
    // So much more comes that they go down: leaves are private now.
    for round in 0..64u64 {
        for i in 0..PLACES {
            let at = count / PLACES * i + count / (2 * PLACES);
            for k in 0..16 {
                let value = vec![(round * 16 + k) as u8; 200];
                store.db.put(format!("{}-{round}-{k}", key("c/", at)), value).unwrap();
            }
        }
        store.db.checkpoint().unwrap();
    }
    let settled = cold(store, "t/", "c/", PLACES * (1 + 64 * 16));
    // A change of all values before the clone is no difference, and one after it is known without reading what it
    // is about.
    store.db.upsert_prefix("t/", patch::write(0, b"!")).unwrap();
    store.db.clone_prefix("t/", "d/").unwrap();
    store.db.upsert(key("d/", count / 2), patch::write(3, b"changed")).unwrap();
    let chmod = cold(store, "t/", "d/", 1);
    store.db.rename_prefix("d/", "moved/to/elsewhere/").unwrap();
    let renamed = cold(store, "t/", "moved/to/elsewhere/", 1);
    store.check();
    Measured { levels: store.levels(), same, fresh, settled, chmod, renamed }
}

#[test]
fn a_difference_costs_what_differs() {
    let _turn = turn();
    let (node, cache, trees) = match full() {
        true => (MIB, 256 * MIB, [100_000, 1_000_000, 10_000_000]),
        false => (64 * KIB, 16 * MIB, [10_000, 100_000, 1_000_000]),
    };
    println!("differences of trees with {PLACES} places changed, cold; {node} B nodes");
    let mut first: Option<Measured> = None;
    for count in trees {
        let m = measure(node, cache, count);
        let of = |m: &Measured| {
            [
                ("nothing differs", m.same),
                ("changes wait above", m.fresh),
                ("changes in private leaves", m.settled),
                ("all values changed before", m.chmod),
                ("renamed", m.renamed),
            ]
        };
        for (name, cost) in of(&m) {
            println!("{count:>9} values, {:>2} levels  {name:<26} {cost}", m.levels);
        }
        let Some(first) = &first else {
            first = Some(m);
            continue;
        };
        let more = m.levels.saturating_sub(first.levels);
        for ((name, cost), (_, base)) in of(&m).into_iter().zip(of(first)) {
            let said = format!("{name}, {count}: {cost}; of the smallest tree: {base}");
            // One more node a level on the path to each place, on both sides: of each the header and a page.
            let nodes = more * 2 * PLACES;
            assert!(cost.reads <= base.reads + 2 * nodes, "{said}");
            assert!(cost.read_bytes <= base.read_bytes + 2 * nodes * page_bytes(node), "{said}");
        }
    }
}
