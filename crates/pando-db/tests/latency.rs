//! On a device whose flushes stand still, nothing in the foreground stands still, but what asks for durability.
//!
//! Times prove little on a shared machine; this is the structure behind them. For the times see
//! `benches/latency.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use pando_db::{
    Batch, CreateOptions, Db, Options,
    device::{DeviceCall, HookedDevice, MemDevice},
};
use parking_lot::{Condvar, Mutex};

/// Long enough for any machine; a test that fails takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    /// Flushes that have come to the closed gate.
    waiting: Mutex<usize>,
    came: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut closed = self.closed.lock();
        if *closed {
            *self.waiting.lock() += 1;
            self.came.notify_all();
        }
        while *closed {
            self.opened.wait(&mut closed);
        }
    }

    fn close(&self) {
        *self.closed.lock() = true;
    }

    fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    /// Returns when a flush stands at the gate.
    fn wait_for_one(&self) {
        let mut waiting = self.waiting.lock();
        while *waiting == 0 {
            assert!(!self.came.wait_for(&mut waiting, PATIENCE).timed_out(), "no flush came");
        }
    }
}

/// Runs `work` while a checkpoint and a sync of the log stand still; fails if it does not end. The cache is so
/// small that more becomes dirty meanwhile than it may hold.
fn beside_a_standing_checkpoint(work: impl FnOnce(&Db) + Send + 'static) {
    beside_a_checkpoint(false, work);
}

/// The same; where the device `tells_apart` what a sync waits for, that goes on as well.
fn beside_a_checkpoint(tells_apart: bool, work: impl FnOnce(&Db) + Send + 'static) {
    let gate = Arc::new(Gate::default());
    let before = gate.clone();
    // What is to be durable at once passes the gate by, if it is told apart.
    let device = HookedDevice::new(Arc::new(MemDevice::new(256 << 20)), tells_apart, move |call| {
        if *call == DeviceCall::Flush {
            before.pass();
        }
        Ok(())
    });
    let device = Arc::new(device);
    let options = Options::default().cache_bytes(16 << 20);
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    for i in 0..1000 {
        db.put(format!("base/{i:04}"), vec![1; 1000]).unwrap();
    }
    // More than a sync makes durable by itself would have to wait for a flush.
    db.sync().unwrap();
    gate.close();
    let (checkpointing, syncing, working) = (db.clone(), db.clone(), db.clone());
    let checkpoint = std::thread::spawn(move || checkpointing.checkpoint());
    gate.wait_for_one();
    let sync = std::thread::spawn(move || {
        syncing.put("synced", "now")?;
        syncing.sync()
    });
    // Flushes take turns, so it comes to the gate only later. Should it not even have begun, less is tested.
    std::thread::sleep(Duration::from_millis(200));
    let (done, ended) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work(&working);
        done.send(()).unwrap();
    });
    let in_time = ended.recv_timeout(PATIENCE);
    gate.open();
    checkpoint.join().unwrap().unwrap();
    sync.join().unwrap().unwrap();
    worker.join().unwrap();
    in_time.expect("the foreground waited for a checkpoint");
    assert!(db.check().unwrap().findings.is_empty());
    db.close().unwrap();
}

#[test]
fn reads_and_scans_go_on_beside_a_checkpoint() {
    beside_a_standing_checkpoint(|db| {
        for i in 0..1000 {
            assert!(db.get(format!("base/{i:04}").as_bytes()).unwrap().is_some());
        }
        assert_eq!(db.prefix(b"base/").count(), 1000);
    });
}

#[test]
fn small_writes_and_clones_go_on_beside_a_checkpoint() {
    beside_a_standing_checkpoint(|db| {
        // More than dirty nodes may hold of the budget (some 46,000), not more than tables take beside (some 19,000).
        for i in 0..56_000 {
            db.put(format!("new/{i:06}"), vec![2; 100]).unwrap();
            if i % 500 == 0 {
                db.clone_prefix("base/", format!("copy/{i}/")).unwrap();
                db.put(format!("copy/{i}/0001"), vec![3; 10]).unwrap();
            }
        }
        assert_eq!(db.prefix(b"copy/55500/").count(), 1000);
    });
}

#[test]
fn values_in_bulk_go_on_beside_a_checkpoint() {
    beside_a_standing_checkpoint(|db| {
        for i in 0..400 {
            let mut batch = Batch::new();
            for block in 0..10 {
                batch.put(format!("file/{i:03}/{block}"), vec![4; 4096]);
            }
            db.write(batch).unwrap();
        }
        assert_eq!(db.prefix(b"file/").count(), 4000);
    });
}

#[test]
fn syncs_go_on_beside_a_checkpoint() {
    beside_a_checkpoint(true, |db| {
        for i in 0..100 {
            db.put(format!("new/{i:03}"), vec![5; 100]).unwrap();
            db.sync().unwrap();
        }
    });
}
