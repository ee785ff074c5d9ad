//! Names are counted while other calls go on: calls that come at each read of the count.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::{common::*, link_clones::farm};
use pando_db::device::{Device, DeviceCall, HookedDevice, MemDevice};
use pando_fs::*;
use std::{
    path::Path,
    sync::{Arc, Mutex, mpsc::channel},
    thread::{self, ThreadId},
    time::Duration,
};

const SIZE: usize = 32 << 20;
/// So many files with two names that the count is not made by the call that removes them.
const FILES: usize = 2_200;
/// Longest wait for the other call: it may need a node that the count has begun to read.
const PATIENCE: Duration = Duration::from_secs(2);

/// A store, closed, whose clone `/c` has these files in `/c/t`, and a last one there; their names are counted.
fn image() -> Vec<u8> {
    let device = Arc::new(MemDevice::new(SIZE as u64));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let w = World::over(Fs::open(device.clone(), options()).unwrap());
    farm(&w.fs, &w.me, FILES, true);
    w.mkdir("/base");
    w.rename("/s", "/base/t", 0).unwrap();
    w.mkdir("/base/u");
    w.put("/base/kept", b"kept");
    w.link("/base/kept", "/base/u/kept too").unwrap();
    w.put("/base/t/last", b"data");
    w.link("/base/t/last", "/base/t/last too").unwrap();
    w.clone_tree("/base", "/c", false).unwrap();
    w.nlink("/c/t/last");
    w.fs.count_links().unwrap();
    w.fs.close().unwrap();
    let mut image = vec![0; SIZE];
    device.read_at(0, &mut image).unwrap();
    image
}

/// Removes `/c/t` and has its names counted. At the read number `n` of the count `late` is called by another thread,
/// with the inode number of the last file, which the caller has looked up once. Whether there was such a read.
fn count_beside(image: &[u8], n: usize, late: impl Fn(&World, Ino) + Sync) -> (World, bool) {
    let below = Arc::new(MemDevice::new(SIZE as u64));
    below.write_at(0, image).unwrap();
    let counting: Arc<Mutex<Option<(ThreadId, usize)>>> = Arc::default();
    let ((begun_tx, begun_rx), (done_tx, done_rx)) = (channel(), channel());
    let (hooked, done_rx) = (counting.clone(), Mutex::new(done_rx));
    let device = HookedDevice::new(below, false, move |call| {
        let mut left = hooked.lock().unwrap();
        if let (DeviceCall::Read(_), Some((thread, left))) = (call, &mut *left)
            && *thread == thread::current().id()
        {
            *left = left.wrapping_sub(1);
            let is_it = *left == 0;
            if is_it {
                begun_tx.send(()).unwrap();
            }
        } else {
            return Ok(());
        }
        let is_it = left.as_ref().is_some_and(|(_, left)| *left == 0);
        drop(left);
        if is_it {
            _ = done_rx.lock().unwrap().recv_timeout(PATIENCE);
        }
        Ok(())
    });
    let w = World::over(Fs::open(Arc::new(device), options()).unwrap());
    let last = w.fs.resolve(Path::new("/c/t/last")).unwrap();
    assert_eq!(last.nlink, 2);
    w.remove_tree("/c/t").unwrap();
    let came = thread::scope(|scope| {
        let count = scope.spawn(|| {
            *counting.lock().unwrap() = Some((thread::current().id(), n));
            w.fs.count_links().unwrap();
            *counting.lock().unwrap() = None;
        });
        let came = loop {
            match begun_rx.recv_timeout(Duration::from_millis(5)) {
                Ok(()) => break true,
                Err(_) if count.is_finished() => break begun_rx.try_recv().is_ok(),
                Err(_) => {}
            }
        };
        if came {
            late(&w, last.ino);
            done_tx.send(()).unwrap();
        }
        count.join().unwrap();
        came
    });
    if !came {
        w.fs.forget(last.ino, 1);
    }
    (w, came)
}

/// A file that had no name when the count began, and that nobody has open when the count comes to it, has got a name in
/// between.
#[test]
fn a_file_that_gets_a_name_and_is_closed_before_the_count_comes_to_it_stays() {
    let image = image();
    let mut named = 0;
    for n in 1.. {
        let saved = Mutex::new(false);
        let (w, came) = count_beside(&image, n, |w, ino| {
            let linked = w.at("/c/saved", |d, name| w.fs.link(&w.me, ino, d, name));
            w.fs.forget(ino, if linked.is_ok() { 2 } else { 1 });
            *saved.lock().unwrap() = linked.is_ok();
        });
        if !came {
            break;
        }
        if saved.into_inner().unwrap() {
            named += 1;
            assert_eq!(w.get("/c/saved").unwrap(), b"data", "read {n} of the count");
            w.fs.count_links().unwrap();
            assert_eq!(w.nlink("/c/saved"), 1, "read {n} of the count");
        }
        check_keys(&w);
        w.assert_nothing_referenced();
    }
    println!("named at {named} reads");
    assert!(named > 2, "vacuous: {named} reads");
}

/// A tree with a name of a file is removed while the names of its lineage are being counted.
#[test]
fn names_that_go_while_others_are_counted_are_counted_next() {
    let image = image();
    let mut counted = 0;
    for n in 1.. {
        let (w, came) = count_beside(&image, n, |w, last| {
            w.fs.forget(last, 1);
            assert_eq!(w.nlink("/c/kept"), 2);
            w.remove_tree("/c/u").unwrap();
        });
        if !came {
            break;
        }
        counted += 1;
        w.fs.count_links().unwrap();
        assert_eq!(w.nlink("/c/kept"), 1, "read {n} of the count");
        assert_eq!(w.get("/c/kept").unwrap(), b"kept");
        check_keys(&w);
    }
    assert!(counted > 2, "vacuous: {counted} reads");
}
