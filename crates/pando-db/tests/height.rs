//! The height follows what is visible, not how many clones were ever made.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{Batch, CreateOptions, Db, Options, device::MemDevice};

/// Nested clones and renames of prefixes that straddle the root's edges used to raise the root by
/// one level each time, until its height overflowed.
#[test]
fn nested_clones_and_renames_do_not_pile_up_levels() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = Options::default().background(false);
    Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let mut state = 88172645463325252u64;
    let mut random = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % n
    };
    for i in 0..12_000u32 {
        let mut path =
            || -> String { (0..1 + random(4)).map(|_| ["a/", "b/", "c/"][random(3) as usize]).collect() };
        let (p, q) = (path(), path());
        let apart = !p.starts_with(&q) && !q.starts_with(&p);
        match random(4) {
            0 | 1 => db.put(format!("D{p}f{}", random(3)), vec![i as u8; 16_000]).unwrap(),
            2 if apart => {
                let mut batch = Batch::new();
                batch.delete_prefix(format!("D{q}")).clone_prefix(format!("D{p}"), format!("D{q}"));
                db.write(batch).unwrap();
            }
            3 if apart => db.rename_prefix(format!("D{p}"), format!("D{q}")).unwrap(),
            _ => {}
        }
        if i % 500 == 0 {
            let height = db.stats().unwrap().nodes_by_height.len();
            assert!(height <= 20, "{height} levels after {i} operations");
        }
    }
    assert!(db.check().unwrap().findings.is_empty());
}
