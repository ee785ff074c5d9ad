//! Tens of thousands of clones of one tree are deleted, in several orders: what each costs does not grow with their
//! number, nobody waits long meanwhile, all space comes back, and a crash in the middle changes nothing of that.
//!
//! Clones that are deleted one by one are deleted in many memtables: in one, the order would make no difference.
//!
//! `PANDO_FULL=1` measures 30,000 and 100,000 clones.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{Device, DeviceCall, FileDevice, HookedDevice, MemDevice},
};

/// Values of 100 bytes in the tree that is cloned, and beside it.
const VALUES: u64 = 3_000;
/// Values that are changed in each clone.
const CHANGES: u64 = 3;
/// Clones that are deleted between two checkpoints, and until the log becomes durable between them.
const BETWEEN_CHECKPOINTS: u64 = 250;
const BETWEEN_SYNCS: u64 = 125;
/// What two numbers of clones may differ in beside what each clone costs: a level more on the way to each, and the ends
/// of walks.
const MORE_PERCENT: u64 = 60;

/// Most items that deleting a clone may take, whatever their number: 56 to 130 were measured, and 1,000 and more where
/// the root, or all nodes on the way to each, were made anew without need.
const MOST_ITEMS: u64 = 200;

/// In which order clones are deleted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    OldestFirst,
    NewestFirst,
    Scattered,
    /// All by one delete.
    AtOnce,
    /// By a delete of what the tree itself is in as well.
    WithTheTree,
}

const ORDERS: [Order; 5] =
    [Order::OldestFirst, Order::NewestFirst, Order::Scattered, Order::AtOnce, Order::WithTheTree];

impl Order {
    /// Which clone is the `i`th that is deleted, if they are deleted one by one.
    fn nth(self, i: u64, count: u64) -> Option<u64> {
        match self {
            Order::OldestFirst => Some(i),
            Order::NewestFirst => Some(count - 1 - i),
            // A number that has no factor in common with the counts.
            Order::Scattered => Some(i * 7_919 % count),
            Order::AtOnce | Order::WithTheTree => None,
        }
    }

    fn delete(self, db: &Db, count: u64) {
        self.delete_noting(db, count, &AtomicU64::new(0));
    }

    /// Notes how many deletes a crash must not take back.
    fn delete_noting(self, db: &Db, count: u64, durable: &AtomicU64) {
        match self {
            Order::AtOnce => db.delete_prefix("p/c").unwrap(),
            Order::WithTheTree => db.delete_prefix("p/").unwrap(),
            _ => (0..count).filter_map(|i| Some((i, self.nth(i, count)?))).for_each(|(i, clone)| {
                db.delete_prefix(name(clone)).unwrap();
                let done = i + 1;
                if done % BETWEEN_CHECKPOINTS == 0 {
                    db.checkpoint().unwrap();
                } else if done % BETWEEN_SYNCS == 0 {
                    db.sync().unwrap();
                } else {
                    return;
                }
                durable.store(done, Relaxed);
            }),
        }
    }
}

fn full() -> bool {
    std::env::var_os("PANDO_FULL").is_some()
}

fn name(i: u64) -> String {
    format!("p/c{i:08}/")
}

fn scattered(i: u64) -> u64 {
    (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn value(i: u64) -> Vec<u8> {
    (0..100).map(|j| (scattered(i) >> (j % 57)) as u8).collect()
}

fn options(background: bool) -> Options {
    Options::default().background(background).cache_bytes(64 << 20)
}

/// A store with a tree that will be cloned, and another one.
fn store(device: Arc<dyn Device>, node_size: u32, background: bool) -> Db {
    let create = CreateOptions::default().node_size(node_size);
    Db::create(device.clone(), &create, &options(background)).unwrap();
    let db = Db::open(device, options(background)).unwrap();
    for tree in ["kept/", "p/t/"] {
        for from in (0..VALUES).step_by(1_000) {
            let mut batch = Batch::new();
            (from..from + 1_000).for_each(|i| _ = batch.put(format!("{tree}{i:08}"), value(i)));
            db.write(batch).unwrap();
        }
    }
    db.settle().unwrap();
    db
}

fn make_clones(db: &Db, count: u64) {
    for i in 0..count {
        db.clone_prefix("p/t/", name(i)).unwrap();
        for change in 0..CHANGES {
            db.put(format!("{}{:08}", name(i), (i * 7_919 + change * 613) % VALUES), "changed").unwrap();
        }
    }
    db.checkpoint().unwrap();
}

/// What some work took.
#[derive(Debug, Clone, Copy)]
struct Taken {
    requests: u64,
    bytes: u64,
    /// Edges and messages that structural work went through.
    items: u64,
    processor: Duration,
}

/// Time of this thread on a processor.
fn processor_time() -> Duration {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(times.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn during(db: &Db, work: impl FnOnce()) -> Taken {
    let (before, began) = (db.stats().unwrap(), processor_time());
    work();
    let processor = processor_time().saturating_sub(began);
    let after = db.stats().unwrap();
    let (from, to) = (before.device, after.device);
    Taken {
        requests: to.reads + to.writes - from.reads - from.writes,
        bytes: to.read_bytes + to.write_bytes - from.read_bytes - from.write_bytes,
        items: after.items_handled - before.items_handled,
        processor,
    }
}

fn is_sound(db: &Db) {
    let findings = db.check().unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
}

/// What a store is like when all clones are gone.
fn is_as_before(db: &Db, before: &pando_db::Stats, what: &str) {
    let after = db.stats().unwrap();
    let most = before.node_bytes + before.node_bytes / 8 + 8 * before.node_size.min(64 << 10);
    assert!(
        after.node_bytes <= most,
        "{what}: {} B of nodes, {} B before",
        after.node_bytes,
        before.node_bytes
    );
    assert!(
        after.nodes_by_height.len() <= before.nodes_by_height.len() + 1,
        "{what}: {:?}, before {:?}",
        after.nodes_by_height,
        before.nodes_by_height
    );
    assert_eq!(db.prefix(b"p/c").count(), 0, "{what}");
    assert_eq!(db.prefix(b"kept/").count() as u64, VALUES, "{what}");
    is_sound(db);
}

/// What making and deleting `count` clones takes, until all of it is free.
fn cost(node_size: u32, order: Order, count: u64) -> (Taken, Taken) {
    let db = store(Arc::new(MemDevice::new(4 << 30)), node_size, false);
    let before = db.stats().unwrap();
    let made = during(&db, || make_clones(&db, count));
    assert!(db.stats().unwrap().node_bytes > before.node_bytes + count * 32, "the clones are not there");
    if !full() {
        is_sound(&db);
    }
    let deleted = during(&db, || {
        order.delete(&db, count);
        db.settle().unwrap();
    });
    is_as_before(&db, &before, &format!("{node_size} B nodes, {order:?}, {count} clones"));
    (made, deleted)
}

#[test]
fn deleting_many_clones_costs_in_proportion_to_their_number() {
    // Of fewer, those between two checkpoints are in few nodes.
    let (few, many) = if full() { (30_000, 100_000) } else { (2_000, 8_000) };
    // What does not fit into the cache any more is read again: the clones of a node by one request.
    let read_again = if full() { 2 * few } else { 0 };
    let mut failures = Vec::new();
    for (node_size, order) in
        [64 << 10, 4 << 10].into_iter().flat_map(|size| ORDERS.map(|order| (size, order)))
    {
        let sizes = [few, many].map(|count| (count, cost(node_size, order, count)));
        for (count, (made, deleted)) in &sizes {
            let each = |what: &str, taken: &Taken| {
                println!(
                    "{node_size} B nodes, {order:?}, {count} clones {what}: for each {:.3} requests, {} B, {} items, \
                     {:?}",
                    taken.requests as f64 / *count as f64,
                    taken.bytes / count,
                    taken.items / count,
                    taken.processor / *count as u32
                );
            };
            each("made", made);
            each("deleted", deleted);
        }
        let [(_, (_, less)), (_, (_, more))] = sizes;
        let may = |less: u64, fixed: u64| (less + fixed) * many / few * (100 + MORE_PERCENT) / 100;
        // A machine that others use.
        let most = less.processor * (3 * many / few) as u32 + Duration::from_millis(500);
        let holds = more.items <= may(less.items, 4 * few)
            && more.items <= many * MOST_ITEMS
            && more.requests <= may(less.requests, 100 + read_again)
            && more.bytes <= may(less.bytes, few * 100)
            && more.processor < most;
        if !holds {
            failures.push(format!("{node_size} B nodes, {order:?}: {less:?} for {few}, {more:?} for {many}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// All that a device holds at this moment.
fn copy(device: &MemDevice) -> Arc<MemDevice> {
    const CHUNK_BYTES: usize = 1 << 20;
    let copy = Arc::new(MemDevice::new(device.size()));
    let mut chunk = vec![0; CHUNK_BYTES];
    for at in (0..device.size()).step_by(CHUNK_BYTES) {
        device.read_at(at, &mut chunk).unwrap();
        if chunk.iter().any(|byte| *byte != 0) {
            copy.write_at(at, &chunk).unwrap();
        }
    }
    copy
}

/// The power fails at some writes between the deletes, and while their space is given back: the clones that were deleted
/// first are gone, as many as were durable at least, the others are whole, the check finds nothing, and what is left can
/// be deleted.
#[test]
fn a_crash_while_many_clones_are_deleted_leaves_a_sound_store() {
    let count = if full() { 30_000 } else { 1_000 };
    for (node_size, order) in [
        (64 << 10, Order::Scattered),
        (64 << 10, Order::AtOnce),
        (4 << 10, Order::OldestFirst),
        (4 << 10, Order::NewestFirst),
        (4 << 10, Order::AtOnce),
    ] {
        let what = format!("{node_size} B nodes, {order:?}");
        let ([deleting, settling], ..) = crash(node_size, order, count, u64::MAX);
        assert!(deleting + settling >= 8, "{what}: {deleting} and {settling} writes are too few");
        let between =
            (1..4).map(|quarter| deleting * quarter / 4).filter(|at| deleting >= 8 && at % deleting > 0);
        let after = (1..4).map(|quarter| deleting + settling * quarter / 4);
        let mut in_the_middle = 0;
        for at in between.chain(after) {
            let what = format!("{what}, a crash at write {at} of {deleting} and {settling}");
            let (_, before, crashed) = crash(node_size, order, count, at);
            let Crashed { device, durable } = crashed.unwrap();
            let db = Db::open(device, options(false)).unwrap();
            is_sound(&db);
            let gone = deleted(&db, order, count, &what);
            println!("{what}: {gone} of {count} clones are gone, {durable} of them had to be");
            assert!(gone >= durable, "{what}: {gone} of {durable} durable deletes are there");
            in_the_middle += u64::from(gone > 0 && gone < count);
            order.delete(&db, count);
            db.settle().unwrap();
            is_as_before(&db, &before, &what);
        }
        assert!(in_the_middle >= 2 || order == Order::AtOnce, "{what}: no crashes came between two deletes");
    }
}

/// What a device held when the power failed, and how many deletes were durable by then.
struct Crashed {
    device: Arc<MemDevice>,
    durable: u64,
}

/// Deletes clones, on a device whose power fails at write `at`. The writes while they are deleted and while their space
/// is given back; what the store was like before the clones; and the crash.
fn crash(node_size: u32, order: Order, count: u64, at: u64) -> ([u64; 2], pando_db::Stats, Option<Crashed>) {
    let below = Arc::new(MemDevice::new(1 << 30));
    let crashed: Arc<Mutex<Option<Crashed>>> = Arc::default();
    let (seen, from, durable) = <(Arc<AtomicU64>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
    let (copied, taken, counted) = (below.clone(), crashed.clone(), seen.clone());
    let (begun, noted) = (from.clone(), durable.clone());
    let device = HookedDevice::new(below, false, move |call| {
        if matches!(call, DeviceCall::Write(_)) {
            let n = counted.fetch_add(1, Relaxed);
            if begun.load(Relaxed) > 0 && n == begun.load(Relaxed).saturating_add(at) {
                let crashed = Crashed { device: copy(&copied), durable: noted.load(Relaxed) };
                *taken.lock().unwrap() = Some(crashed);
            }
        }
        Ok(())
    });
    let db = store(Arc::new(device), node_size, false);
    let before = db.stats().unwrap();
    make_clones(&db, count);
    let begun = seen.load(Relaxed);
    from.store(begun, Relaxed);
    order.delete_noting(&db, count, &durable);
    let deleted = seen.load(Relaxed);
    db.settle().unwrap();
    let settled = seen.load(Relaxed);
    is_as_before(&db, &before, &format!("{node_size} B nodes, {order:?}"));
    let crashed = crashed.lock().unwrap().take();
    ([deleted - begun, settled - deleted], before, crashed)
}

/// How many clones are gone; these are the first ones of `order`, and the others are whole.
fn deleted(db: &Db, order: Order, count: u64, what: &str) -> u64 {
    let is_there = |clone: u64| db.get(format!("{}{:08}", name(clone), clone * 7_919 % VALUES).as_bytes());
    let clones = || (0..count).map(|i| order.nth(i, count).unwrap_or(i));
    let there: Vec<bool> = clones().map(|clone| is_there(clone).unwrap().is_some()).collect();
    let gone = there.iter().take_while(|there| !**there).count();
    assert!(
        there[gone..].iter().all(|there| *there),
        "{what}: a later delete is there without an earlier one"
    );
    assert!(order.nth(0, count).is_some() || gone == 0 || gone as u64 == count, "{what}: half a delete");
    for (clone, there) in clones().zip(there).step_by(31) {
        let values = db.prefix(name(clone).as_bytes()).count() as u64;
        assert_eq!(values, if there { VALUES } else { 0 }, "{what}: clone {clone}");
    }
    gone as u64
}

/// Kilobytes of memory of this process: now, and the most since that was asked to begin anew.
fn memory_kib() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// Others put and read single values while clones are deleted.
#[test]
fn nobody_waits_long_while_many_clones_are_deleted() {
    /// Far more than any wait seen; on a busy machine a thread may not run for a while.
    const MOST_WAIT: Duration = Duration::from_secs(3);
    const MOST_UNTIL_BACK: Duration = Duration::from_secs(300);
    let (counts, orders): (&[u64], &[Order]) = match full() {
        true => (&[30_000, 100_000], &ORDERS),
        false => (&[2_000], &[Order::Scattered, Order::AtOnce]),
    };
    for (&count, (node_size, &order)) in counts.iter().flat_map(|count| {
        let all =
            [64 << 10, 4 << 10].into_iter().flat_map(|size| orders.iter().map(move |order| (size, order)));
        all.map(move |setup| (count, setup))
    }) {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::create(directory.path().join("image"), 4 << 30, false).unwrap();
        let db = store(Arc::new(device), node_size, true);
        let before = db.stats().unwrap();
        make_clones(&db, count);
        _ = fs::write("/proc/self/clear_refs", "5");
        let (resident, _) = memory_kib();
        let (stop, longest) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
        let (deleting, back) = thread::scope(|scope| {
            scope.spawn(|| {
                let mut i = 0;
                while !stop.load(Relaxed) {
                    let key = format!("kept/{:08}", scattered(i) % VALUES);
                    let timed = |most: &AtomicU64, call: &dyn Fn()| {
                        let begun = Instant::now();
                        call();
                        most.fetch_max(begun.elapsed().as_micros() as u64, Relaxed);
                    };
                    timed(&longest[0], &|| db.put(key.clone(), value(i)).unwrap());
                    timed(&longest[1], &|| assert!(db.get(key.as_bytes()).unwrap().is_some()));
                    thread::sleep(Duration::from_millis(1));
                    i += 1;
                }
            });
            let begun = Instant::now();
            order.delete(&db, count);
            let deleting = begun.elapsed();
            // What is written meanwhile takes space too.
            let most = before.node_bytes + before.node_bytes / 4 + 16 * (64 << 10);
            while db.stats().unwrap().node_bytes > most && begun.elapsed() < MOST_UNTIL_BACK {
                thread::sleep(Duration::from_millis(100));
                // Beside writes at first, then in a store that is left alone: what clones have left in shared nodes waits
                // for that.
                if begun.elapsed() > deleting + Duration::from_secs(5) {
                    stop.store(true, Relaxed);
                }
            }
            let back = begun.elapsed();
            stop.store(true, Relaxed);
            (deleting, back)
        });
        let [put, get] = longest.map(|most| Duration::from_micros(most.into_inner()));
        let what = format!("{node_size} B nodes, {order:?}, {count} clones");
        println!(
            "{what}: deleted in {deleting:?}, space back after {back:?}; longest put {put:?}, get {get:?}; {} KiB of \
             memory, {} KiB at most",
            resident,
            memory_kib().1
        );
        assert!(put < MOST_WAIT && get < MOST_WAIT, "{what}: a put took {put:?}, a get {get:?}");
        assert!(back < MOST_UNTIL_BACK, "{what}: the space is not back");
        db.settle().unwrap();
        is_as_before(&db, &before, &what);
        db.close().unwrap();
    }
}
