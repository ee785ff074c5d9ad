//! Stores at paths: what making and opening one by its path does, and refuses.
#![allow(clippy::unwrap_used)]

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

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

#[test]
fn open_or_create_makes_a_store_once_and_opens_it_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grove.pando");
    let create = CreateOptions::default().size(64 << 20);
    let open = || Db::open_or_create(&path, &create, Options::default());
    assert!(matches!(
        Db::open_or_create(&path, &create, Options::default().read_only(true)),
        Err(Error::Io { .. })
    ));
    assert!(!path.exists(), "a reader makes nothing");
    let db = open().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 << 20);
    db.put("key", "value").unwrap();
    assert!(matches!(open(), Err(Error::Locked)));
    db.close().unwrap();
    drop(db);
    for close in [false, true] {
        let db = open().unwrap();
        assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        if close {
            db.close().unwrap();
        }
    }
    // On a device as well.
    let device = Arc::new(MemDevice::new(64 << 20));
    for found in [None, Some("value".into())] {
        let db = Db::open_or_create(device.clone(), &create, Options::default()).unwrap();
        assert_eq!(db.get(b"key").unwrap(), found);
        db.put("key", "value").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn open_or_create_goes_on_where_making_a_store_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let create = CreateOptions::default().size(64 << 20);
    // Before the file had its size, and when something had been written but no superblock.
    for written in [None, Some(2 << 20)] {
        let path = dir.path().join(format!("cut-{written:?}"));
        let file = fs::File::create(&path).unwrap();
        if let Some(at) = written {
            file.set_len(64 << 20).unwrap();
            file.write_all_at(b"a page of the table", at).unwrap();
        }
        drop(file);
        assert!(matches!(Db::open(&path, Options::default()), Err(Error::Format(_))));
        let db = Db::open_or_create(&path, &create, Options::default()).unwrap();
        db.put("key", "value").unwrap();
        db.close().unwrap();
        drop(db);
        let db = Db::open_or_create(&path, &create, Options::default()).unwrap();
        assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        let report = db.check().unwrap();
        assert!(report.findings.is_empty(), "{} findings", report.findings.len());
    }
    // One of the two superblocks is there.
    let path = dir.path().join("one superblock");
    Db::create(&path, &create, &Options::default()).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    drop(file);
    let db = Db::open_or_create(&path, &create, Options::default()).unwrap();
    db.put("key", "value").unwrap();
}

#[test]
fn open_or_create_does_not_overwrite_what_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let create = CreateOptions::default().size(64 << 20);
    // A text, something behind zeros, and a damaged store.
    let store = dir.path().join("store");
    Db::create(&store, &create, &Options::default()).unwrap();
    let mut damaged = fs::read(&store).unwrap();
    damaged[100] ^= 1;
    damaged[4096 + 100] ^= 1;
    let behind_zeros = [vec![0; (64 << 10) - 1], vec![1; 1000]].concat();
    for (name, contents) in
        [("text", b"my diary".to_vec()), ("behind zeros", behind_zeros), ("damaged", damaged)]
    {
        let path = dir.path().join(name);
        fs::write(&path, &contents).unwrap();
        let refused = Db::open_or_create(&path, &create, Options::default());
        assert!(
            matches!(refused, Err(Error::Format(_) | Error::Corrupt { .. })),
            "{name}: {:?}",
            refused.err()
        );
        assert!(fs::read(&path).unwrap() == contents, "{name} was changed");
    }
    let device = Arc::new(MemDevice::new(64 << 20));
    device.write_at(0, b"something else").unwrap();
    assert!(matches!(Db::open_or_create(device, &create, Options::default()), Err(Error::Format(_))));
    // What is refused leaves no file.
    let none = dir.path().join("none");
    let refused = Db::open_or_create(&none, &CreateOptions::default().size(4096), Options::default());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{:?}", refused.err());
    assert!(!none.exists());
}

/// Whoever comes first makes the store; nobody makes it a second time over what another has written.
#[test]
fn threads_that_open_or_create_at_once_share_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("grove.pando");
    let create = CreateOptions::default().size(64 << 20);
    std::thread::scope(|scope| {
        for i in 0..4u8 {
            let (path, create) = (&path, &create);
            scope.spawn(move || {
                loop {
                    match Db::open_or_create(path, create, Options::default().background(false)) {
                        Ok(db) => return db.put(vec![i], "here").unwrap(),
                        Err(Error::Locked) => std::thread::yield_now(),
                        Err(e) => panic!("{e}"),
                    }
                }
            });
        }
    });
    assert_eq!(Db::open(&path, Options::default()).unwrap().range(&[], None).count(), 4);
}

#[test]
fn snapshots_and_cursors_go_to_other_threads() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let db = Db::open_or_create(device, &CreateOptions::default(), Options::default()).unwrap();
    db.put("a", "1").unwrap();
    let (snapshot, mut cursor) = (db.snapshot(), db.range(&[], None));
    db.put("b", "2").unwrap();
    std::thread::scope(|scope| {
        let shared = &snapshot;
        scope.spawn(move || assert!(shared.get(b"b").unwrap().is_none()));
        scope.spawn(move || assert!(shared.get(b"a").unwrap().is_some()));
        scope.spawn(move || {
            let keys: Vec<pando_db::Bytes> = cursor.by_ref().map(|pair| pair.unwrap().0).collect();
            assert_eq!(keys, ["a"], "a later write is not shown");
        });
    });
}
