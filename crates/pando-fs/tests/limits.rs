//! Full stores and crashes, seen from the file system.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, MemDevice};
use pando_fs::*;
use std::sync::Arc;

const ENOSPC: i32 = 28;

#[test]
fn a_full_store_says_so_loses_nothing_and_can_be_emptied() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options().background(true)).unwrap();
    let mut w = World { device, fs, me: Caller::root() };
    for round in 0..3u8 {
        w.mkdir("/d");
        let mut full = 0;
        let errno = loop {
            let path = format!("/d/f{full}");
            let made = w.create(&path).and_then(|_| w.write_at(&path, 0, &noise(200_000, round)));
            match made {
                Ok(200_000) => full += 1,
                Ok(_) => break ENOSPC,
                Err(e) => break e.errno(),
            }
            assert!(full < 400);
        };
        assert_eq!(errno, ENOSPC);
        assert!(
            full >= 150,
            "only {full} files of 200 kB fit into 64 MiB in round {round}, free {}",
            w.fs.statfs().unwrap().bavail
        );
        let s = w.fs.statfs().unwrap();
        assert!(s.bavail < s.blocks / 4, "{s:?}");
        for i in 0..full {
            assert!(w.get(&format!("/d/f{i}")).unwrap() == noise(200_000, round), "file {i}");
        }
        check_keys(&w);
        w.remount_with(options().background(true));
        assert!(w.get("/d/f0").unwrap() == noise(200_000, round));
        w.remove_tree("/d").unwrap();
        assert!(w.names("/").is_empty());
    }
}

/// Bytes that no compression makes small.
fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut r = Random::new(u64::from(seed) + 77);
    (0..len).map(|_| r.next() as u8).collect()
}

#[test]
fn after_a_crash_there_is_a_prefix_of_the_calls_with_all_that_was_synced() {
    for lost in [0, 1, 20, 200] {
        let mut w = World::new();
        let call = |w: &World, i: usize| match i % 5 {
            0 => drop(w.mkdir(&format!("/d{i}"))),
            1 => drop(w.put(&format!("/d{}/f", i - 1), &pattern(30_000, i as u8))),
            2 => drop(w.clone_tree(&format!("/d{}", i - 2), &format!("/c{i}"), false).unwrap()),
            3 => w.rename(&format!("/d{}", i - 3), &format!("/r{i}"), 0).unwrap(),
            _ => drop(w.remove_tree(&format!("/c{}", i - 2)).unwrap()),
        };
        (0..100).for_each(|i| call(&w, i));
        w.fs.sync().unwrap();
        (100..100 + lost).for_each(|i| call(&w, i));
        // What a crash leaves: the bytes on the device as they are now.
        let copy = Arc::new(MemDevice::new(w.device.size()));
        let mut bytes = vec![0; w.device.size() as usize];
        w.device.read_at(0, &mut bytes).unwrap();
        copy.write_at(0, &bytes).unwrap();
        let fs = Fs::open(copy.clone(), options()).unwrap();
        let crashed = std::mem::replace(&mut w, World { device: copy, fs, me: Caller::root() });
        let names = w.names("/");
        let expected = |calls: usize| {
            let mut names: Vec<String> = (0..calls / 5).map(|n| format!("r{}", n * 5 + 3)).collect();
            let n = calls / 5 * 5;
            match calls % 5 {
                1 | 2 => names.push(format!("d{n}")),
                3 => names.extend([format!("c{}", n + 2), format!("d{n}")]),
                4 => names.extend([format!("c{}", n + 2), format!("r{}", n + 3)]),
                _ => {}
            }
            names.sort();
            names
        };
        let prefix = (100..=100 + lost).find(|calls| expected(*calls) == names);
        assert!(prefix.is_some(), "{names:?}");
        for name in names.iter().filter(|n| n.starts_with('r')) {
            let i: u8 = (name[1..].parse::<usize>().unwrap() - 2) as u8;
            assert!(w.get(&format!("/{name}/f")).unwrap() == pattern(30_000, i));
        }
        check_keys(&w);
        // Numbers given out after the crash are none of those from before it.
        let before = w.numbers("/");
        let fresh = w.put("/fresh", b"");
        assert!(!before.values().any(|n| *n == fresh));
        crashed.fs.close().unwrap();
    }
}
