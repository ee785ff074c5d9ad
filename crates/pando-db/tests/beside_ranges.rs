//! Scans beside many deletes of ranges that are still in memory.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use pando_db::{CreateOptions, Db, Options, device::MemDevice};

use super::{expect, one_of_three_tries};

/// Directories that `rm -r` takes one by one leave a message each.
const RANGES: u32 = 40_000;

fn key(i: u32, name: &str) -> String {
    format!("{i:08}/{name}")
}

/// A scan looks at each message once, and not for each step at all those before it.
#[test]
fn a_scan_takes_each_deleted_range_once() {
    let device = std::sync::Arc::new(MemDevice::new(256 << 20));
    let options = Options::default().background(false).cache_bytes(128 << 20);
    Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let mut batch = pando_db::Batch::new();
    (0..RANGES).for_each(|i| _ = batch.put(key(i, "a"), "1").put(key(i, "b"), "2"));
    db.write(batch).unwrap();
    db.checkpoint().unwrap();
    for i in 0..RANGES {
        db.delete_prefix(key(i, "b")).unwrap();
    }
    one_of_three_tries(|| {
        let begin = Instant::now();
        let forward: Vec<_> = db.range(b"", None).map(|pair| pair.unwrap().0).collect();
        let backward: Vec<_> = db.range(b"", None).rev().map(|pair| pair.unwrap().0).collect();
        let took = begin.elapsed();
        assert_eq!(forward.len(), RANGES as usize);
        assert!(forward.iter().eq(backward.iter().rev()));
        expect(took < Duration::from_secs(4), format!("two scans took {took:?}"))
    });
}
