//! An image that was written before bounds of key lengths were kept: it opens, and what it holds stays within the limit
//! from now on.
//!
//! `image/before_key_bounds.zst` was made by the version before that feature, as a kill leaves it: 300 short keys and
//! one of 16,000 bytes under `tree/`; a clone of them at `copy/`, with one edit; one under a prefix of 1,000 bytes, so
//! that a key is longer than keys may be; a checkpoint; and, in the log only, one more key and one more clone, under a
//! prefix of 1,500 bytes.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use pando_db::{
    CreateOptions, Db, Error, MAX_KEY, Options, Result,
    device::{Device, MemDevice},
};

/// Where the superblock has its incompatible features, in bytes.
const FEATURES_AT: u64 = 24;

fn image() -> Arc<MemDevice> {
    let bytes = zstd::decode_all(&include_bytes!("image/before_key_bounds.zst")[..]).unwrap();
    let device = Arc::new(MemDevice::new(bytes.len() as u64));
    device.write_at(0, &bytes).unwrap();
    device
}

fn options() -> Options {
    Options::default().background(false)
}

fn padded(prefix: &str, len: usize, fill: u8) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    key.resize(len, fill);
    key
}

fn contents() -> BTreeMap<Bytes, Bytes> {
    let long = padded("long", 15_995, b'x');
    let mut pairs = BTreeMap::new();
    let mut far = padded("far/", 1000, b'y');
    let mut put = |prefix: &[u8], late: bool| {
        for n in 0..300 {
            let value = if prefix == b"copy/" && n == 0 { "edited".into() } else { format!("value {n}") };
            pairs.insert([prefix, format!("{n:03}").as_bytes()].concat().into(), value.into());
        }
        pairs.insert([prefix, &long].concat().into(), "long".into());
        if late {
            pairs.insert([prefix, b"999"].concat().into(), "late".into());
        }
    };
    put(b"tree/", true);
    put(b"copy/", false);
    put(&far, false);
    far.resize(1500, b'z');
    put(&far, true);
    pairs
}

fn assert_same(db: &Db, wanted: &BTreeMap<Bytes, Bytes>) {
    let pairs: BTreeMap<Bytes, Bytes> = db.range(b"", None).map(Result::unwrap).collect();
    assert!(pairs == *wanted, "{} pairs, {} wanted", pairs.len(), wanted.len());
    let report = db.check().unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn features(device: &MemDevice) -> u64 {
    (0..2).fold(0, |features, slot| {
        let mut field = [0; 8];
        device.read_at(slot * 4096 + FEATURES_AT, &mut field).unwrap();
        features | u64::from_le_bytes(field)
    })
}

#[test]
fn a_store_without_bounds_of_keys_opens_and_keeps_the_limit_from_now_on() {
    let device = image();
    assert_eq!(features(&device), 1);
    let before = device.stats().writes;
    assert_same(&Db::open(device.clone(), options().read_only(true)).unwrap(), &contents());
    assert_eq!(device.stats().writes, before);

    let mut wanted = contents();
    let db = Db::open(device.clone(), options()).unwrap();
    assert_same(&db, &wanted);
    let clone = |wanted: &mut BTreeMap<Bytes, Bytes>, src: &[u8], dst: &[u8]| -> Result<()> {
        db.clone_prefix(src.to_vec(), dst.to_vec())?;
        let copies: Vec<_> = wanted.iter().filter(|(key, _)| key.starts_with(src)).collect();
        let copies: Vec<(Bytes, Bytes)> = copies
            .into_iter()
            .map(|(key, value)| ([dst, &key[src.len()..]].concat().into(), value.clone()))
            .collect();
        wanted.retain(|key, _| !key.starts_with(dst));
        wanted.extend(copies);
        Ok(())
    };
    let refused = |result: Result<()>| match result {
        Err(Error::TooLarge { what: "key", .. }) => (),
        other => panic!("{other:?}"),
    };
    for round in 0..2 {
        let far = padded(&format!("round{round}/"), 1200, b'r');
        refused(clone(&mut wanted, b"tree/", &far));
        refused(clone(&mut wanted, &padded("far/", 1000, b'y'), &padded("fas/", 1001, b'y')));
        // The bounds are unknown, and yet it is known that there is nothing long.
        clone(&mut wanted, b"tree/10", &padded(&format!("round{round}/"), 2000, b'r')).unwrap();
        clone(&mut wanted, b"copy/", format!("round{round}/copy/").as_bytes()).unwrap();
        // A shorter copy of what is too long may be made.
        clone(&mut wanted, &padded("far/", 1000, b'y'), format!("short{round}/").as_bytes()).unwrap();
        assert_same(&db, &wanted);
        db.checkpoint().unwrap();
        assert_same(&db, &wanted);
    }
    assert_eq!(features(&device), 11, "who cannot read it must not open it");
    // What is longer than a key may be can be deleted, by a key that no put would take.
    let long: Vec<Bytes> = wanted.keys().filter(|key| key.len() > MAX_KEY).cloned().collect();
    assert_eq!(long.len(), 4, "two, and a copy of one of them in each round");
    for key in long {
        assert!(db.get(&key).unwrap().is_some());
        db.delete(key.clone()).unwrap();
        wanted.remove(&key);
        assert_eq!(db.get(&key).unwrap(), None);
    }
    assert_same(&db, &wanted);
    db.checkpoint().unwrap();
    assert_same(&db, &wanted);
    db.close().unwrap();
    assert_same(&Db::open(device, options()).unwrap(), &wanted);
}

/// The backup was made, and said nothing; restoring it was refused, since it has keys that no put takes.
#[test]
fn a_backup_of_keys_that_are_too_long_restores() {
    let db = Db::open(image(), options()).unwrap();
    let mut stream = Vec::new();
    db.snapshot().backup(&mut stream).unwrap();
    let restored = Arc::new(MemDevice::new(256 << 20));
    Db::restore(restored.clone(), &stream[..], &CreateOptions::default(), &options()).unwrap();
    let db = Db::open(restored, options()).unwrap();
    assert_same(&db, &contents());
    // They are what they were: they can be deleted, and none can be put.
    let long: Vec<Bytes> = contents().into_keys().filter(|key| key.len() > MAX_KEY).collect();
    assert!(!long.is_empty());
    for key in long {
        assert!(matches!(db.put(key.clone(), "x"), Err(Error::TooLarge { what: "key", .. })));
        db.delete(key).unwrap();
    }
    assert!(db.range(b"", None).all(|pair| pair.unwrap().0.len() <= MAX_KEY));
}
