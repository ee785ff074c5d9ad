//! Requests that wait (for a flush here) hold up no others, however many they are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    sync::{Arc, Barrier, mpsc},
    time::Duration,
};

use super::common::World;
use pando_db::device::{DeviceCall, HookedDevice, MemDevice};
use pando_fuse::Settings;
use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A device in memory whose flushes wait while it is held.
struct Held {
    device: Arc<HookedDevice>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    held: Mutex<bool>,
    released: Condvar,
}

impl Held {
    fn new() -> Self {
        let gate = Arc::new(Gate::default());
        let waits = gate.clone();
        let device = HookedDevice::new(Arc::new(MemDevice::new(256 << 20)), false, move |call| {
            if *call == DeviceCall::Flush {
                waits.released.wait_while(&mut waits.held.lock(), |held| *held);
            }
            Ok(())
        });
        Self { device: Arc::new(device), gate }
    }

    fn hold(&self, held: bool) {
        *self.gate.held.lock() = held;
        self.gate.released.notify_all();
    }
}

/// Lets go of the device whatever happens, so that a failure does not hang.
struct Release<'a>(&'a Held);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

/// Binds the calling thread to one CPU: its requests then go through one queue.
fn on_one_cpu() {
    let mut first = CpuSet::new();
    first.set(0);
    let _ = sched_setaffinity(None, &first);
}

#[derive(Clone, Copy)]
enum Synced {
    Files,
    Directories,
}

/// While `waiting` threads wait for a flush, another of the same CPU must be served.
fn others_are_served_beside(waiting: usize, what: Synced) {
    let device = Held::new();
    let Some(mut w) = World::on(device.device.clone(), Settings::default()) else { return };
    fs::write(w.path("cold"), [7; 100]).unwrap();
    fs::create_dir(w.path("dir")).unwrap();
    // Nothing of it is in the kernel's caches afterwards.
    w.remount();
    let make = |i| {
        let path = w.path(&format!("f{i}"));
        match what {
            Synced::Files => File::create(path),
            Synced::Directories => fs::create_dir(&path).and_then(|()| File::open(path)),
        }
    };
    let files: Vec<File> = (0..waiting).map(|i| make(i).unwrap()).collect();
    let (answered, answer) = mpsc::channel();
    let begun = Barrier::new(waiting + 1);
    std::thread::scope(|s| {
        let _release = Release(&device);
        device.hold(true);
        for file in &files {
            s.spawn(|| {
                on_one_cpu();
                begun.wait();
                file.sync_all().unwrap();
            });
        }
        begun.wait();
        // All of them are in the kernel by then, most of them in its queue.
        std::thread::sleep(Duration::from_millis(300));
        s.spawn(|| {
            on_one_cpu();
            let data = fs::read(w.path("cold")).unwrap();
            let listed = fs::read_dir(w.path("dir")).unwrap().count();
            fs::write(w.path("dir/new"), b"new").unwrap();
            let _ = answered.send((data, listed));
        });
        let seen = answer.recv_timeout(Duration::from_secs(10));
        assert_eq!(seen, Ok((vec![7; 100], 0)), "a reader waited for {waiting} calls of fsync");
    });
}

#[test]
fn a_few_calls_of_fsync_hold_up_no_reader() {
    others_are_served_beside(4, Synced::Files);
}

#[test]
fn as_many_calls_of_fsync_as_a_queue_has_room_for_hold_up_no_reader() {
    others_are_served_beside(20, Synced::Files);
}

#[test]
fn hundreds_of_calls_of_fsync_hold_up_no_reader() {
    others_are_served_beside(200, Synced::Files);
}

#[test]
fn hundreds_of_calls_of_fsync_on_directories_hold_up_no_reader() {
    others_are_served_beside(200, Synced::Directories);
}
