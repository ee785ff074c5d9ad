//! Pages are compressed as the store is opened, and read however they were written.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use pando_db::{Codec, CreateOptions, Db, Options, device::MemDevice};

#[test]
fn a_store_may_change_its_codec_from_one_opening_to_the_next() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = |codec| Options::default().codec(codec).background(false);
    Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options(Codec::None)).unwrap();
    let value = |i: u32| format!("the quick brown fox {i} jumps over the lazy dog ").repeat(40);
    let mut used = Vec::new();
    let codecs = [Codec::None, Codec::Lz4, Codec::Zstd(3), Codec::Zstd(19)];
    for (round, codec) in codecs.into_iter().enumerate() {
        let db = Db::open(device.clone(), options(codec)).unwrap();
        let before = db.stats().unwrap().used;
        for i in 0..1000 {
            db.put(format!("{round}/{i:04}"), value(i)).unwrap();
        }
        db.settle().unwrap();
        used.push(db.stats().unwrap().used - before);
        for round in 0..=round {
            for i in 0..1000 {
                assert_eq!(db.get(format!("{round}/{i:04}").as_bytes()).unwrap().unwrap(), value(i));
            }
        }
        assert!(db.check().unwrap().findings.is_empty());
        db.close().unwrap();
    }
    assert!(used[0] > 1_500_000, "{used:?}");
    assert!(used[1] * 2 < used[0] && used[2] <= used[1], "{used:?}");
}
