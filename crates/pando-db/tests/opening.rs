//! How long opening a store takes whose log is long: measured, and bounded where it can be counted.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use pando_db::{
    CreateOptions, Db, Error, Options,
    device::{Device, DeviceCall, HookedDevice, MemDevice},
    identify,
};

/// A store with a log of 64 MiB on a device of 1 GiB.
fn empty() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(1 << 30));
    let create = CreateOptions::default().log_size(64 << 20);
    Db::create(device.clone(), &create, &Options::default()).unwrap();
    device
}

/// Keys in no order.
fn key(i: u64) -> Vec<u8> {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

fn options() -> Options {
    Options::default().cache_bytes(256 << 20)
}

/// What a kill leaves of a device of 1 GiB.
fn image_of(device: &MemDevice) -> Arc<MemDevice> {
    let mut image = vec![0; 1 << 20];
    let copy = Arc::new(MemDevice::new(1 << 30));
    for at in (0..1u64 << 30).step_by(1 << 20) {
        device.read_at(at, &mut image).unwrap();
        if image.iter().any(|byte| *byte != 0) {
            copy.write_at(at, &image).unwrap();
        }
    }
    copy
}

/// Opens a store whose thread for checkpoints stands still while `held`.
fn open_without_checkpoints(device: &Arc<MemDevice>, held: &Arc<AtomicBool>) -> Db {
    let holds = held.clone();
    let hooked = HookedDevice::new(device.clone(), false, move |_| {
        while holds.load(SeqCst) && thread::current().name() == Some("pando-checkpoint") {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    });
    Db::open(Arc::new(hooked) as Arc<dyn Device>, options()).unwrap()
}

/// A log that is full to the end is replayed into memory, as far as that may have the memory; what it changes in the
/// tree is the threads' work. Before, who opened it read and changed a large part of the tree.
#[test]
fn opening_with_a_full_log_reads_the_log_only() {
    const KEYS: u64 = 300_000;
    let device = empty();
    // Checkpoints come too late.
    let held = Arc::new(AtomicBool::new(false));
    let db = open_without_checkpoints(&device, &held);
    (0..KEYS).for_each(|i| db.put(key(i), vec![1; 60]).unwrap());
    db.checkpoint().unwrap();
    held.store(true, SeqCst);
    let mut i = 0;
    while db.stats().unwrap().log_used < 60 << 20 {
        (0..2000).for_each(|_| {
            i += 1;
            db.put(key(i * 7 % KEYS), i.to_be_bytes().repeat(8)).unwrap();
        });
        db.sync().unwrap();
    }
    let log = db.stats().unwrap().log_used;
    let copy = image_of(&device);
    held.store(false, SeqCst);

    let (me, read) = (thread::current().id(), Arc::new(AtomicU64::new(0)));
    let (reads, holds) = (read.clone(), held.clone());
    held.store(true, SeqCst);
    let hooked = HookedDevice::new(copy, false, move |call| {
        while holds.load(SeqCst) && thread::current().name() == Some("pando-flush") {
            thread::sleep(Duration::from_millis(10));
        }
        if let DeviceCall::Read(range) = call
            && thread::current().id() == me
        {
            reads.fetch_add(range.end - range.start, SeqCst);
        }
        Ok(())
    });
    let begin = Instant::now();
    let again = Db::open(Arc::new(hooked) as Arc<dyn Device>, options()).unwrap();
    let (took, read) = (begin.elapsed(), read.load(SeqCst));
    println!("{i} batches in {log} bytes of log replayed in {took:?}, {read} bytes read by then");
    assert!(read < log + (6 << 20), "{read} bytes were read for {log} bytes of log");
    // No writer waits for the tables that were replayed, nor for the thread that flushes them, which stands still.
    let (writer, (done, is_done)) = (again.clone(), mpsc::channel());
    let (first, second) = (key(1), key(1));
    let writes = thread::spawn(move || {
        let written = writer.put(first, "new");
        done.send(()).unwrap();
        written
    });
    let begin = Instant::now();
    let waited = is_done.recv_timeout(Duration::from_secs(20));
    println!("the first write after that took {:?}", begin.elapsed());
    held.store(false, SeqCst);
    writes.join().unwrap().unwrap();
    assert!(waited.is_ok(), "a write waited for what was replayed");
    assert_eq!(again.get(&second).unwrap().as_deref(), Some(&b"new"[..]));
    for i in 2..KEYS {
        assert_eq!(again.get(&key(i)).unwrap(), db.get(&key(i)).unwrap(), "{i}");
    }
    again.checkpoint().unwrap();
    assert_eq!(again.range(&[], None).count() as u64, KEYS);
    assert!(again.check().unwrap().findings.is_empty());
}

/// Values that lie outside of the log, in pages in the order of their keys, which the log names in that of their batches.
/// Each page is read a few times at most, not once for each value in it.
#[test]
fn opening_reads_pages_of_values_and_not_each_value() {
    const VALUES: u64 = 8_000;
    const VALUE_BYTES: u64 = 3_000;
    let device = empty();
    let held = Arc::new(AtomicBool::new(true));
    let db = open_without_checkpoints(&device, &held);
    let value = |i: u64| -> Vec<u8> {
        let words =
            (0..VALUE_BYTES / 8).map(|word| (i * 1_000_003 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        words.flat_map(u64::to_le_bytes).collect()
    };
    (0..VALUES).for_each(|i| db.put(key(i), value(i)).unwrap());
    db.sync().unwrap();
    let log = db.stats().unwrap().log_used;
    assert!(log < VALUES * VALUE_BYTES / 4, "the values stand in the log: {log} bytes");
    let copy = image_of(&device);
    held.store(false, SeqCst);

    let (me, read) = (thread::current().id(), Arc::new(AtomicU64::new(0)));
    let reads = read.clone();
    let hooked = HookedDevice::new(copy, false, move |call| {
        if matches!(call, DeviceCall::Read(_)) && thread::current().id() == me {
            reads.fetch_add(1, SeqCst);
        }
        Ok(())
    });
    let again = Db::open(Arc::new(hooked) as Arc<dyn Device>, options()).unwrap();
    let read = read.load(SeqCst);
    println!("{read} reads for {VALUES} values of {VALUE_BYTES} bytes");
    assert!(read < VALUES / 4, "{read} reads for {VALUES} values");
    (0..VALUES).for_each(|i| assert_eq!(again.get(&key(i)).unwrap().as_deref(), Some(&value(i)[..]), "{i}"));
}

/// A store whose threads never got to a checkpoint is opened from its log. The checkpoint of what was replayed is the
/// threads' work; before that little is written.
#[test]
fn opening_after_a_kill_leaves_the_checkpoint_to_the_threads() {
    const KEYS: u64 = 300_000;
    let device = empty();
    let db = Db::open(device.clone(), options()).unwrap();
    (0..KEYS).for_each(|i| db.put(key(i), vec![1; 60]).unwrap());
    db.checkpoint().unwrap();
    let base = db.stats().unwrap().log_used;
    // Less than half of the log, so that nothing asks for a checkpoint.
    let mut i = 0;
    while db.stats().unwrap().log_used < base.max(30 << 20) {
        (0..2000).for_each(|_| {
            i += 1;
            db.put(key(i * 7 % KEYS), vec![2; 60]).unwrap();
        });
        db.sync().unwrap();
    }
    let copy = image_of(&device);
    let before = copy.stats().write_bytes;
    let begin = Instant::now();
    let again = Db::open(copy.clone(), options()).unwrap();
    let took = begin.elapsed();
    let written = copy.stats().write_bytes - before;
    println!("{i} batches replayed in {took:?}, {written} bytes written by then");
    assert!(written < 1 << 20, "{written} bytes were written before the store was open");
    assert_eq!(again.get(&key(7)).unwrap(), db.get(&key(7)).unwrap());
    assert_eq!(again.range(&[], None).count() as u64, KEYS);
}

/// A store that was closed in order has nothing in its log, and that is seen without reading the log: also where idle
/// seconds left a write-out without records behind the last batch.
#[test]
fn opening_after_a_close_does_not_read_the_log() {
    const LOG: u64 = 64 << 20;
    for idle in [false, true] {
        let device = Arc::new(MemDevice::new(1 << 30));
        Db::create(device.clone(), &CreateOptions::default().log_size(LOG), &Options::default()).unwrap();
        let db = Db::open(device.clone(), Options::default()).unwrap();
        for i in 0..1000u64 {
            db.put(i.to_be_bytes().to_vec(), vec![1; 100]).unwrap();
        }
        db.sync().unwrap();
        let written = device.stats().write_bytes;
        let begin = Instant::now();
        while idle && device.stats().write_bytes == written && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(50));
        }
        db.close().unwrap();
        drop(db);
        let before = device.stats().read_bytes;
        let db = Db::open(device.clone(), Options::default()).unwrap();
        let read = device.stats().read_bytes - before;
        println!("idle before the end {idle}: {read} bytes read to open");
        assert!(read < 3 << 20, "idle before the end {idle}: {read} bytes read to open");
        assert_eq!(db.range(&[], None).count(), 1000);
        // It is not taken for empty either where it is not.
        db.put("more", "1").unwrap();
        db.sync().unwrap();
        db.put("later", "2").unwrap();
        db.sync().unwrap();
        drop(db);
        let db = Db::open(device, Options::default()).unwrap();
        assert_eq!(db.range(&[], None).count(), 1002);
    }
}

/// The last record of a log may be one of the log's own: it says where values are, or that batches do not count. It is
/// recovered with what is before it, so that the next close leaves nothing in the log, and nothing that it keeps.
#[test]
fn closing_after_a_crash_leaves_nothing_in_the_log() {
    let noise = |i: u64| -> Vec<u8> { (0..400).flat_map(|n| key(i * 400 + n)).collect() };
    // Values of 3,200 bytes are kept in records of the log's own if they are few, and else outside the log.
    for values in [3, 3000] {
        let dir = tempfile::tempdir().unwrap();
        let (path, killed) = (dir.path().join("store"), dir.path().join("killed"));
        let create = CreateOptions::default().size(64 << 20);
        Db::create(&path, &create, &options()).unwrap();
        let db = Db::open(&path, options().background(false)).unwrap();
        (0..values).for_each(|i| db.put(key(i), noise(i)).unwrap());
        db.sync().unwrap();
        std::fs::copy(&path, &killed).unwrap();
        drop(db);
        let db = Db::open(&killed, options().background(false)).unwrap();
        assert!(!identify(&killed).unwrap().clean, "{values} values: nothing was in the log");
        db.close().unwrap();
        drop(db);
        assert!(identify(&killed).unwrap().clean, "{values} values: something is left in the log");
        let db = Db::open(&killed, options().background(false)).unwrap();
        for i in 0..values {
            assert_eq!(db.get(&key(i)).unwrap().as_deref(), Some(&noise(i)[..]));
        }
        assert!(db.check().unwrap().findings.is_empty());
    }
}

/// Two stores over one device would each write over what the other has.
#[test]
fn a_device_is_open_once() {
    let device = empty();
    let open = |read_only| Db::open(device.clone(), options().background(false).read_only(read_only));
    let locked = |read_only| matches!(open(read_only), Err(Error::Locked));
    let db = open(false).unwrap();
    db.put("a", "1").unwrap();
    assert!(locked(false) && locked(true));
    let again = Db::create(device.clone(), &CreateOptions::default(), &Options::default());
    assert!(matches!(again, Err(Error::Locked)));
    let snapshot = db.snapshot();
    drop(db);
    // That keeps it open.
    assert!(locked(false));
    drop(snapshot);
    let readers = [open(true).unwrap(), open(true).unwrap()];
    assert!(locked(false));
    drop(readers);
    let db = open(false).unwrap();
    assert_eq!(db.get(b"a").unwrap().unwrap(), "1");
    db.close().unwrap();
    assert_eq!(open(false).unwrap().get(b"a").unwrap().unwrap(), "1");
}
