//! Stores at paths: what making and opening one by its path does, and refuses.
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path, sync::Arc};

use pando_db::{
    Batch, CreateOptions, Db, Error, Options,
    device::{Device, MemDevice},
};

#[test]
fn a_store_is_made_and_opened_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grove.pando");
    let text = path.to_str().unwrap();
    Db::create(text, &CreateOptions::default().size(64 << 20), &Options::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    let db = Db::open(&path, Options::default()).unwrap();
    db.put("key", "value").unwrap();
    // One at a time.
    assert!(matches!(Db::open(text, Options::default()), Err(Error::Locked)));
    db.close().unwrap();
    drop(db);
    // What holds a store is not overwritten.
    let again = Db::create(path.as_path(), &CreateOptions::default(), &Options::default());
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
    let first = Db::open(path.clone(), Options::default().read_only(true)).unwrap();
    let second = Db::open(text.to_owned(), Options::default().read_only(true)).unwrap();
    assert_eq!(first.get(b"key").unwrap(), second.get(b"key").unwrap());
    assert_eq!(first.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(matches!(first.put("key", "other"), Err(Error::ReadOnly)));
    // What only looks goes through, and what is refused leaves the store as it was.
    let mut look = Batch::new();
    look.expect("key", Some("value".into()));
    first.write(look).unwrap();
    first.write(Batch::new()).unwrap();
    assert!(matches!(first.checkpoint(), Err(Error::ReadOnly)));
    assert!(matches!(first.grow(128 << 20), Err(Error::ReadOnly)));
    assert!(matches!(first.settle(), Err(Error::ReadOnly)));
    assert_eq!(first.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    first.close().unwrap();
}

#[test]
fn sizes_of_new_files() {
    let dir = tempfile::tempdir().unwrap();
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    let small = CreateOptions::default().node_size(4096).log_size(64 << 10);
    Db::create(&new, &small, &Options::default()).unwrap();
    assert_eq!(len(&new), 16 << 30);
    fs::File::create(&old).unwrap().set_len(5 << 20).unwrap();
    Db::create(&old, &small, &Options::default()).unwrap();
    assert_eq!(len(&old), 5 << 20, "the size of a file that exists");
    // What is refused leaves no file, but one that was there.
    let none = dir.path().join("none");
    assert!(matches!(
        Db::create(&none, &small.clone().size(4096), &Options::default()),
        Err(Error::Invalid(_))
    ));
    assert!(!none.exists());
    let of_size = |size| Db::create(&none, &small.clone().size(size), &Options::default());
    assert!(matches!(of_size(u64::MAX), Err(Error::Invalid(_))));
    assert!(!none.exists());
    // Most hosts have no files of 2^62 bytes.
    match of_size(1 << 62) {
        Ok(()) => fs::remove_file(&none).unwrap(),
        Err(e) => assert!(!none.exists(), "{e}"),
    }
    assert!(matches!(Db::open(&none, Options::default()), Err(Error::Io { .. })));
    fs::File::create(&none).unwrap().set_len(4096).unwrap();
    assert!(matches!(Db::create(&none, &small, &Options::default()), Err(Error::Invalid(_))));
    assert!(none.exists());
}

#[test]
fn devices_go_as_they_are() {
    let device = Arc::new(MemDevice::new(64 << 20));
    Db::create(device.clone(), &CreateOptions::default().size(1), &Options::default()).unwrap();
    let device: Arc<dyn Device> = device;
    Db::open(device, Options::default()).unwrap().put("a", "1").unwrap();
}

#[test]
fn a_backup_is_restored_to_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    let create = CreateOptions::default().size(64 << 20);
    Db::create(&old, &create, &Options::default()).unwrap();
    let db = Db::open(&old, Options::default()).unwrap();
    db.put("key", "value").unwrap();
    let mut stream = Vec::new();
    db.snapshot().backup(&mut stream).unwrap();
    // A store is not overwritten, and an error leaves no file that was not there.
    assert!(matches!(Db::restore(&old, &stream[..], &create, &Options::default()), Err(Error::Locked)));
    let cut = &stream[..stream.len() - 1];
    assert!(matches!(Db::restore(&new, cut, &create, &Options::default()), Err(Error::Corrupt { .. })));
    assert!(!new.exists());
    assert_eq!(Db::restore(&new, &stream[..], &create, &Options::default()).unwrap().pairs, 1);
    let restored = Db::open(&new, Options::default()).unwrap();
    assert_eq!(restored.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    db.close().unwrap();
    drop(db);
    let again = Db::restore(&old, &stream[..], &create, &Options::default());
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
}
