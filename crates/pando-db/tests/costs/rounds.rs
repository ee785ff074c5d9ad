//! Item 2: a thousand rounds of clone and edit cost what was edited, in space, writes and scans.
//!
//! Small form: 256 KiB nodes and 16 edits a round in place of 1 MiB and 64: both a fourth, and so are the
//! bounds in bytes. Rounds, syncs and checkpoints are the same.

use pando_db::Db;

use crate::setup::{Cost, KIB, MIB, Rng, Store, edit, full, load, turn};

const ROUNDS: u64 = 1000;
const CHECKPOINT_EVERY: u64 = 100;
const VALUE: usize = 4096;

struct Sizes {
    node: u64,
    values: u64,
    edits: usize,
    /// What a byte of a bound counts: bounds are stated for 1 MiB nodes.
    scale: u64,
}

fn sizes() -> Sizes {
    if full() {
        Sizes { node: MIB, values: 16 << 10, edits: 64, scale: 1 }
    } else {
        Sizes { node: 256 * KIB, values: 4 << 10, edits: 16, scale: 4 }
    }
}

/// What the rounds came to, a round.
struct Outcome {
    grown: u64,
    written: u64,
    first: Cost,
    last: Cost,
    base: u64,
    left: u64,
}

fn name(i: u64) -> String {
    format!("r{i:04}/")
}

fn run(sizes: &Sizes, source: impl Fn(u64) -> String) -> Outcome {
    let mut store = Store::new(sizes.node, 64 * sizes.node);
    load(&store.db, "t/", sizes.values, VALUE);
    store.reopen();
    let (bytes, first) = store.scan("t/");
    let base = store.used();
    store.reopen();

    let mut rng = Rng(7);
    let before = store.cost();
    for i in 0..ROUNDS {
        store.db.clone_prefix(source(i), name(i)).unwrap();
        edit(&store.db, &mut rng, &name(i), sizes.values, VALUE, sizes.edits);
        store.db.sync().unwrap();
        if (i + 1) % CHECKPOINT_EVERY == 0 {
            store.db.checkpoint().unwrap();
            if std::env::var("TRACE").is_ok() {
                println!("{i} {} {}", store.cost() - before, store.used());
            }
        }
    }
    let written = (store.cost() - before).write_bytes / ROUNDS;
    let grown = (store.used() - base) / ROUNDS;
    store.check();
    store.reopen();
    let (cloned, last) = store.scan(&name(ROUNDS - 1));
    assert_eq!(cloned, bytes + 4 * sizes.values, "a clone has every value");

    let delete = |db: &Db| (0..ROUNDS).for_each(|i| db.delete_prefix(name(i)).unwrap());
    delete(&store.db);
    store.db.settle().unwrap();
    let left = store.used();
    if std::env::var("TRACE").is_ok() { println!("{:?}", store.db.stats().unwrap()); }
    store.check();
    Outcome { grown, written, first, last, base, left }
}

fn show(what: &str, o: &Outcome) {
    let Outcome { grown, written, first, last, base, left } = o;
    println!("item 2, {what}: space grows by {grown} B a round, {written} B are written a round");
    println!("  cold scan before {first}");
    println!("  cold scan after  {last}");
    println!("  space before {base} B, after all clones are deleted {left} B");
}

#[test]
fn rounds_from_the_original() {
    let _turn = turn();
    let sizes = sizes();
    let outcome = run(&sizes, |_| "t/".into());
    show("(a) each clone from the original", &outcome);
}

#[test]
fn rounds_from_the_previous_clone() {
    let _turn = turn();
    let sizes = sizes();
    let outcome = run(&sizes, |i| if i == 0 { "t/".into() } else { name(i - 1) });
    show("(b) each clone from the one before", &outcome);
}
