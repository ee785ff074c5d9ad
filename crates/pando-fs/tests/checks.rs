//! The check finds what is wrong, and says where; damage is an error, never a panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_fs::*;

/// The problems that a check tells.
fn problems(w: &World) -> Vec<String> {
    let mut told = Vec::new();
    let report = w.fs.check(|p| told.push(p.to_string())).unwrap();
    assert_eq!(report.problems as usize, told.len());
    told
}

fn key(region: u8, path: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 0, region], path].concat()
}

#[test]
fn each_kind_of_damage_is_told_with_its_path() {
    let w = World::new();
    w.mkdir("/d");
    w.mkdir("/d/e");
    w.put("/d/e/f", &pattern(40_000, 1));
    w.put("/g", b"g");
    w.clone_tree("/d", "/c", false).unwrap();
    assert_eq!(problems(&w), [""; 0]);
    let db = w.fs.db();
    let damage = |k: Vec<u8>, value: Option<&[u8]>, expected: &str| {
        let good = db.get(&k).unwrap();
        match value {
            Some(v) => db.put(k.clone(), v.to_vec()).unwrap(),
            None => db.delete(k.clone()).unwrap(),
        }
        let told = problems(&w);
        assert!(told.iter().any(|t| t.contains(expected)), "{expected:?} not in {told:?}");
        match good {
            Some(v) => db.put(k, v).unwrap(),
            None => db.delete(k).unwrap(),
        }
        assert_eq!(problems(&w), [""; 0]);
    };
    let record = |path: &[u8]| db.get(&key(b'M', path)).unwrap().unwrap();
    damage(key(b'M', b"\x01g\0"), Some(b"nonsense"), "/g: shorter than a record");
    damage(key(b'M', b"\x01d\0"), None, "/d/e: its directory does not exist");
    damage(key(b'M', b"\x01d\0"), Some(&record(b"\x01g\0")), "/d/e: its directory does not exist");
    damage(key(b'M', b"\x02d\0\x01e\0"), None, "/d/e/f: its directory does not exist");
    damage(key(b'M', b"\x01h\0"), Some(&record(b"\x01g\0")), "of two entries");
    damage(key(b'M', b"\x07h\0"), Some(&record(b"\x01g\0")), "not a key of the tree");
    damage(key(b'D', b"\x01g\0\0\0\0\0\0\0\0\x01"), Some(b"x"), "/g (data from byte 16384): bytes behind");
    damage(key(b'D', b"\x01n\0\0\0\0\0\0\0\0\0"), Some(b"x"), "/n (data from byte 0): belongs to no file");
    damage(key(b'D', b"\x01n"), Some(b"x"), "not a key of data");
}

/// A file without holes has all its blocks; one with holes those before the first of them.
#[test]
fn a_block_that_is_lost_is_told() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", &pattern(4 * 16384, 1));
    w.put("/d/one", b"one");
    w.put("/d/holes", &pattern(3 * 16384, 1));
    w.truncate("/d/holes", 100 * 16384).unwrap();
    w.put("/d/linked", b"linked");
    w.link("/d/linked", "/d/again").unwrap();
    let snapshot = w.on("/d", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()));
    let first = snapshot.unwrap().0.number;
    w.put("/d/later", &pattern(2 * 16384, 2));
    w.write_at("/d/f", 4 * 16384, &pattern(16384, 3)).unwrap();
    let snapshot = w.on("/d", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()));
    let second = snapshot.unwrap().0.number;
    assert_eq!(problems(&w), [""; 0]);
    let db = w.fs.db();
    let lose = |volume: u32, path: &[u8], block: u64, expected: &str| {
        let key = [&volume.to_be_bytes()[..], b"D", path, &block.to_be_bytes()].concat();
        let good = db.get(&key).unwrap().expect("there is such a block");
        db.delete(key.clone()).unwrap();
        let told = problems(&w);
        assert!(
            told.iter().any(|t| t.contains(expected) && t.contains("lack")),
            "{expected:?} not in {told:?}"
        );
        db.put(key, good).unwrap();
        assert_eq!(problems(&w), [""; 0]);
    };
    for block in 0..5 {
        lose(0, b"\x02d\0\x01f\0", block, "/d/f");
    }
    lose(0, b"\x02d\0\x01one\0", 0, "/d/one");
    for block in 0..3 {
        lose(0, b"\x02d\0\x01holes\0", block, "/d/holes");
    }
    for (number, blocks) in [(first, 4), (second, 5)] {
        for block in 0..blocks {
            lose(number, b"\x01f\0", block, "f");
        }
        lose(number, b"\x01one\0", 0, "one");
        lose(number, b"\x01holes\0", 2, "holes");
    }
    lose(second, b"\x01later\0", 0, "later");
    lose(second, b"\x01later\0", 1, "later");
}

/// One record that cannot be decoded does not end the check, in a store with accounts.
#[test]
fn behind_a_damaged_record_the_rest_is_checked() {
    let w = World::new();
    w.mkdir("/q");
    w.put("/q/f", b"f");
    w.put("/z", &pattern(40_000, 1));
    w.on("/q", |a| w.fs.set_quota(a.ino, Some(1 << 20))).unwrap();
    assert_eq!(problems(&w), [""; 0]);
    w.fs.db().put(key(b'M', b"\x02q\0\x01f\0"), "nonsense").unwrap();
    w.fs.db().put(key(b'D', b"\x01z\0\0\0\0\0\0\0\0\x09"), "x").unwrap();
    let told = problems(&w);
    for expected in ["/q/f: shorter than a record", "/z (data from byte 147456): bytes behind"] {
        assert!(told.iter().any(|t| t.contains(expected)), "{expected:?} not in {told:?}");
    }
}

#[test]
fn damaged_records_are_io_errors_of_what_they_belong_to() {
    let mut w = World::new();
    w.put("/good", b"good");
    w.put("/bad", b"bad");
    w.fs.db().put(key(b'M', b"\x01bad\0"), "nonsense").unwrap();
    let e = w.on("/bad", Ok).unwrap_err();
    assert_eq!(e.errno(), 5);
    assert!(e.to_string().contains("bad"), "{e}");
    assert_eq!(w.get("/good").unwrap(), b"good");
    let dh = w.fs.opendir(ROOT).unwrap();
    assert_eq!(errno(w.fs.readdir(dh, ROOT, 0, 100)), 5);
    w.fs.releasedir(dh);
    // Two entries with one number: the second one is refused, not mixed up with the first.
    let good = w.fs.db().get(&key(b'M', b"\x01good\0")).unwrap().unwrap();
    w.fs.db().put(key(b'M', b"\x01twin\0"), good).unwrap();
    w.on("/good", |_| {
        assert_eq!(errno(w.on("/twin", Ok)), 5);
        Ok(())
    })
    .unwrap();
    w.fs.db().put(key(b'M', b""), "nonsense").unwrap();
    w.fs.close().unwrap();
    assert_eq!(Fs::open(w.device.clone(), options()).unwrap_err().errno(), 5);
    w = World::new();
    w.fs.db().delete(b"\xff\xff\xff\xffF".to_vec()).unwrap();
    w.fs.close().unwrap();
    let e = Fs::open(w.device.clone(), options()).unwrap_err();
    assert!(e.to_string().contains("no file system"), "{e}");
}

#[test]
fn keys_in_words() {
    assert_eq!(describe_key(&key(b'M', b"")), "/");
    assert_eq!(describe_key(&key(b'M', b"\x02a\0\x01b\0")), "/a/b");
    assert_eq!(describe_key(&key(b'D', b"\x01b\0\0\0\0\0\0\0\0\x02")), "/b (data from byte 32768)");
    assert_eq!(describe_key(b"\xff\xff\xff\xffF"), "system record 'F'");
    assert_eq!(describe_key(b"?"), "unknown key ?");
}

#[test]
fn a_store_from_before_there_were_maps_opens_and_is_marked() {
    let mut w = World::new();
    w.put("/f", &pattern(50_000, 1));
    w.mkdir("/d");
    w.clone_tree("/d", "/e", false).unwrap();
    w.attr("/e");
    let format = b"\xff\xff\xff\xffF";
    let features = |w: &World| {
        let value = w.fs.db().get(format).unwrap().unwrap();
        u64::from_le_bytes(value[12..20].try_into().unwrap())
    };
    let set = |w: &World, features: u64| {
        let mut value = w.fs.db().get(format).unwrap().unwrap().to_vec();
        value[12..20].copy_from_slice(&features.to_le_bytes());
        w.fs.db().put(format.to_vec(), value).unwrap();
    };
    assert_eq!(features(&w), 1);
    set(&w, 0);
    w.remount_with(options().read_only(true));
    assert_eq!(features(&w), 0, "only looked at");
    w.remount();
    assert_eq!((features(&w), w.fs.label()), (1, ""));
    assert_eq!(w.get("/f").unwrap(), pattern(50_000, 1));
    w.truncate("/f", 1 << 20).unwrap();
    assert_eq!(w.attr("/f").blocks, 4 * BLOCK_SIZE / 512);
    // The lineage of the clone made before is not given to another.
    let old = w.attr("/e").ino >> 40;
    w.remove_tree("/e").unwrap();
    for i in 0..1000 {
        w.clone_tree("/d", "/e", false).unwrap();
        assert_ne!(w.attr("/e").ino >> 40, old, "{i}");
        w.remove_tree("/e").unwrap();
    }
    check_keys(&w);
    set(&w, 1 << 40);
    w.fs.close().unwrap();
    let error = Fs::open(w.device.clone(), options()).unwrap_err();
    assert!(error.to_string().contains("features 0x10000000000"), "{error}");
}
